//! Address spaces: making them, ending them, and entries that gained rights.

use crate::place::{engine, engine_here, quell_engine, quell_space, room, space};
use crate::status::{answer, quell_status};
use crate::values::{kernel_entries, quell_range};
use quell::Frame;

/// Makes an address space whose root table is in frame `root` (its physical address divided by 4096), loaded on no CPU.
/// `space` is memory of any content that stays where it is until the space has been retired.
///
/// The root is a table of the machine's format that maps the kernel as every root does, until quell_space_retire has
/// returned. No other space has this root.
///
/// Context: any but an NMI. Does not wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_space_new(
    engine: *mut quell_engine,
    space: *mut quell_space,
    root: u64,
) -> quell_status {
    answer(|| {
        let place = room(space)?;
        // SAFETY: C vouches for its memory, and for the root.
        unsafe {
            let made = self::engine(engine)?.new_space(Frame(root));
            place.write(made);
        }
        Ok(())
    })
}

/// Makes a space of the kernel's own mappings, which every CPU has loaded from the start and for ever: stacks, memory
/// of `vmalloc`, windows onto I/O memory, the text of modules. Their changes are reported to batches as those of any
/// other space. The initiator of a flush asks every CPU that is online, but for those between quell_enter_user and
/// quell_enter_kernel, and waits until each has flushed. `entries` is an `enum quell_kernel_entries`: what TLBs keep of
/// these mappings. A kernel may have several such spaces. `space` is memory of any content that stays where it is for
/// ever: a kernel space is not retired.
///
/// The root in frame `root` maps the kernel. With QUELL_KERNEL_ENTRIES_GLOBAL all entries that are reported with this
/// space are global; with QUELL_KERNEL_ENTRIES_TAGGED they may be or not. quell_hw_invalidate handles
/// QUELL_INVALIDATE_KIND_KERNEL and QUELL_INVALIDATE_KIND_EVERYTHING.
///
/// The kernel may unmap a range that it uses no more with quell_batch_finish_deferred, whatever its rights were: it
/// gives the addresses out again after quell_flush_until, the frames after quell_flush_before_reuse.
///
/// Refuses an `entries` that is none of the enumeration.
///
/// Context: any but an NMI. Does not wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_kernel_space_new(
    engine: *mut quell_engine,
    space: *mut quell_space,
    root: u64,
    entries: u32,
) -> quell_status {
    answer(|| {
        let place = room(space)?;
        // SAFETY: C vouches for its memory, and for the root.
        unsafe {
            let engine = self::engine(engine)?;
            place.write(engine.new_kernel_space(Frame(root), kernel_entries(entries)?));
        }
        Ok(())
    })
}

/// Ends a space in which no user thread will ever run again: makes every CPU leave its root. On return no walker reads
/// its tables, and they, the root included, may be freed; the memory of the space is zero, and its owner's again.
///
/// It does not wait for a CPU that the engine made leave the space before. So when it returns, no CPU may be in
/// quell_switch_to or quell_cpu_offline with this space as `from`, and none may make such a call later: it
/// writes to the memory of the space. A kernel that counts the CPUs that loaded the space last calls this
/// when the count is zero.
///
/// Refuses a space that this CPU runs (switch away, or enter lazy mode first), one that an unfinished batch was told
/// of, and one of the kernel's, which has no end.
///
/// Context: interrupts on or off. May wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_space_retire(
    engine: *mut quell_engine,
    space: *mut quell_space,
) -> quell_status {
    answer(|| {
        {
            // SAFETY: C vouches for its memory.
            let (engine, space) = unsafe { (engine_here(engine)?, self::space(space)?) };
            if engine.runs(space) || space.id().kernel().is_some() {
                return Err(quell_status::Running);
            }
            if space.is_in_batch() {
                return Err(quell_status::InBatch);
            }
            engine.retire(space);
        }
        // SAFETY: no CPU has the space, and C promises that nothing else uses it. Memory that is zero is no space.
        unsafe { space.write_bytes(0, 1) };
        Ok(())
    })
}

/// The name of a space, which no other space of the engine ever has; 0 for memory without a space.
///
/// Context: any.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_space_id(space: *const quell_space) -> u64 {
    // SAFETY: C vouches for its memory.
    unsafe { self::space(space) }.map_or(0, |space| space.id().0)
}

/// Whether an unfinished batch was told of a space; then quell_space_retire refuses it. False for memory without a
/// space.
///
/// Context: any.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_space_is_in_batch(space: *const quell_space) -> bool {
    // SAFETY: C vouches for its memory.
    unsafe { self::space(space) }.is_ok_and(|space| space.is_in_batch())
}

/// The frame of a space's root table; 0 for memory without a space.
///
/// Context: any.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_space_root(space: *const quell_space) -> u64 {
    // SAFETY: C vouches for its memory.
    unsafe { self::space(space) }.map_or(0, |space| space.root().0)
}

/// Makes this CPU, if it has `space` loaded, forget the translations of a range that has *gained* rights: after a
/// fault, on machines whose TLBs keep an entry that refused an access. Other CPUs notice by faults of their own. Not
/// for changes that need a flush.
///
/// Context: any but an NMI. Does not wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_refresh(
    engine: *mut quell_engine,
    space: *mut quell_space,
    range: quell_range,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let (engine, space) = unsafe { (engine_here(engine)?, self::space(space)?) };
        engine.refresh(space, range.checked()?);
        Ok(())
    })
}

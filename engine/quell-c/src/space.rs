//! Makes and retires address spaces, and refreshes entries that gained rights.

use crate::place::{engine, engine_here, quell_engine, quell_space, room, space};
use crate::status::{answer, quell_status};
use crate::values::{enum_quell_kernel_entries, kernel_entries, quell_range};
use quell::Frame;

/// Makes an address space that no CPU has loaded.
///
/// Its root table is in frame `root` (the physical address divided by 4096). Until quell_space_retire returns, the root
/// must be a table in the machine's format that maps the kernel as every root does. No other space may have this root.
///
/// `space` is memory of any content, which must not move until the space is retired.
///
/// Context: any but an NMI. Does not wait.
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

/// Makes a space for the kernel's own mappings, which every CPU always has loaded.
///
/// Such mappings are stacks, `vmalloc` memory, I/O mappings and module text, for example. Report their changes to
/// batches like those of any other space. The initiator of a flush sends a request to every online CPU, except those
/// between quell_enter_user and quell_enter_kernel, and waits until each has flushed. A change that is reported with
/// QUELL_SCOPE_TABLES has no exceptions. A kernel may have several such spaces.
///
/// `space` is memory of any content, which must never move: a kernel space can't be retired.
///
/// The root in frame `root` maps the kernel. With QUELL_KERNEL_ENTRIES_GLOBAL every entry that is reported with this
/// space must be global; with QUELL_KERNEL_ENTRIES_TAGGED an entry may be global or not. quell_hw_invalidate must
/// handle QUELL_INVALIDATION_KIND_KERNEL and QUELL_INVALIDATION_KIND_EVERYTHING.
///
/// The kernel may unmap a range that it no longer uses with quell_batch_finish_deferred, whatever its rights were. It
/// may use the addresses again after quell_flush_until, and the frames after quell_flush_before_reuse.
///
/// Refuses an `entries` that isn't in the enumeration. In a library without the feature "kernel" it always refuses.
///
/// Context: any but an NMI. Does not wait.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_kernel_space_new(
    engine: *mut quell_engine,
    space: *mut quell_space,
    root: u64,
    entries: enum_quell_kernel_entries,
) -> quell_status {
    answer(|| {
        let place = room(space)?;
        // SAFETY: C vouches for its memory.
        let engine = unsafe { self::engine(engine) }?;
        let entries = kernel_entries(entries)?;
        #[cfg(not(feature = "kernel"))]
        {
            let _ = (place, engine, entries, root);
            return Err(quell_status::Unsupported);
        }
        #[cfg(feature = "kernel")]
        {
            // SAFETY: C vouches for its memory, and for the root.
            unsafe { place.write(engine.new_kernel_space(Frame(root), entries)) };
            Ok(())
        }
    })
}

/// Retires a space in which no user thread will ever run again.
///
/// It makes every CPU leave the space's root. After it returns, no walker reads its tables, so they may be freed, the
/// root included. The space's memory is then zero, and belongs to the caller again.
///
/// If the engine made a CPU leave the space earlier, that CPU may still pass the space as `from` to quell_switch_to or
/// quell_cpu_offline. Such a call writes to the space's memory, and this function doesn't wait for it. So when this
/// function returns, no CPU may be in such a call, and none may make one later. A kernel can, for example, count the
/// CPUs that loaded this space last, and retire it when the count is zero.
///
/// Refuses a space that this CPU runs (switch away or enter lazy mode first), a space with changes in an unfinished
/// batch, and a kernel space.
///
/// Context: interrupts on or off. May wait.
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
            if engine.this_cpu().runs(space) || space.id().kernel().is_some() {
                return Err(quell_status::Running);
            }
            if space.is_in_batch() {
                return Err(quell_status::InBatch);
            }
            engine.retire(space);
        }
        // SAFETY: no CPU has the space, and C promises that nothing else uses it. Zeroed memory holds no space.
        unsafe { space.write_bytes(0, 1) };
        Ok(())
    })
}

/// Returns the id of a space. No other space of the engine ever has the same id.
///
/// Returns 0 for memory without a space.
///
/// Context: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_space_id(space: *const quell_space) -> u64 {
    // SAFETY: C vouches for its memory.
    unsafe { self::space(space) }.map_or(0, |space| space.id().0)
}

/// Returns whether an unfinished batch has changes of a space.
///
/// If so, quell_space_retire refuses the space. Returns false for memory without a space.
///
/// Context: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_space_is_in_batch(space: *const quell_space) -> bool {
    // SAFETY: C vouches for its memory.
    unsafe { self::space(space) }.is_ok_and(|space| space.is_in_batch())
}

/// Returns the frame of a space's root table.
///
/// Returns 0 for memory without a space.
///
/// Context: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_space_root(space: *const quell_space) -> u64 {
    // SAFETY: C vouches for its memory.
    unsafe { self::space(space) }.map_or(0, |space| space.root().0)
}

/// Drops this CPU's translations of a range of `space` that has *gained* rights.
///
/// It does nothing if the space isn't loaded. Call it after a fault, on machines whose TLBs keep an entry that refused
/// an access. Other CPUs notice the change by faults of their own. Don't use it for changes that need a flush.
///
/// Context: any but an NMI. Does not wait.
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
        engine.this_cpu().refresh(space, range.checked()?);
        Ok(())
    })
}

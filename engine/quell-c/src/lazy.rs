//! What is owed until reuse (S3), and second actors.

use crate::place::{engine, engine_here, quell_engine, quell_residue, quell_space, quell_stamp};
use crate::place::{residue, space, stamp};
use crate::status::{answer, quell_status};

/// Makes a residue that owes nothing. Memory that is zero is one already.
///
/// Context: any.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_residue_init(residue: *mut quell_residue) -> quell_status {
    answer(|| {
        let place = crate::place::room(residue)?;
        // SAFETY: C vouches for its memory.
        unsafe { place.write(quell::Residue::new()) };
        Ok(())
    })
}

/// Whether the frame owes nothing: one load, with acquire. True for NULL.
///
/// Context: any.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_residue_is_clear(residue: *const quell_residue) -> bool {
    // SAFETY: C vouches for its memory.
    unsafe { self::residue(residue) }.map_or(true, |residue| residue.is_clear())
}

/// The frame's entries are about to be cleared without a flush.
///
/// Context: under the lock of the page-cache slot, before the first entry is cleared.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_residue_begin(residue: *mut quell_residue) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        unsafe { self::residue(residue) }?.begin();
        Ok(())
    })
}

/// The frame's flush is owed as of `*stamp`, which quell_batch_finish_owed gave. With a stamp of zero it was flushed,
/// as quell_residue_flushed says.
///
/// Context: under the lock of quell_residue_begin.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_residue_owe(
    residue: *mut quell_residue,
    stamp: *const quell_stamp,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory. A stamp of zero, shifted, is a residue that is clear.
        let (residue, stamp) = unsafe { (self::residue(residue)?, self::stamp(stamp)?) };
        residue.owe(stamp);
        Ok(())
    })
}

/// The frame was flushed after all, or its entries were not cleared.
///
/// Context: under the lock of quell_residue_begin.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_residue_flushed(residue: *mut quell_residue) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        unsafe { self::residue(residue) }?.clear();
        Ok(())
    })
}

/// Takes the frame back for the page that it belonged to, to be mapped as it was: read-only, at the same places. No
/// flush is needed. False if it was claimed first, where a pointer is refused, and on a CPU that the engine has no
/// number for: then it is not the page's.
///
/// The residue is clear afterwards, and says nothing any more of the places at which the frame is not mapped again,
/// where stale entries may be in use: map it at every place that it was taken away from before the lock is dropped, or
/// treat each entry that still names it as a mapping of it, and report that to the batch when the mapping goes.
///
/// Context: under the lock of the page-cache slot. Does not wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_rescue(
    engine: *mut quell_engine,
    residue: *mut quell_residue,
) -> bool {
    // SAFETY: C vouches for its memory.
    match unsafe { (engine_here(engine), self::residue(residue)) } {
        (Ok(engine), Ok(residue)) => residue.rescue(engine),
        _ => false,
    }
}

/// Claims a frame for a new owner, and pays its debt first if that is not paid yet. True: the frame is the caller's.
/// False: it is not, because it was rescued or never owed, a pointer is refused, or the engine has no number for this
/// CPU.
///
/// Context: interrupts on or off. May wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_claim(
    engine: *mut quell_engine,
    residue: *mut quell_residue,
) -> bool {
    // SAFETY: C vouches for its memory.
    match unsafe { (engine_here(engine), self::residue(residue)) } {
        (Ok(engine), Ok(residue)) => engine.claim(residue).is_some(),
        _ => false,
    }
}

/// Whether a claim of this frame would interrupt no CPU: two loads when nothing is owed. False if a pointer is
/// refused.
///
/// Context: any but an NMI. Does not wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_is_paid(
    engine: *const quell_engine,
    residue: *const quell_residue,
) -> bool {
    // SAFETY: C vouches for its memory.
    match unsafe { (self::engine(engine), self::residue(residue)) } {
        (Ok(engine), Ok(residue)) => engine.is_paid(residue),
        _ => false,
    }
}

/// Pays the frame's debt. Called before an entry of `space` is rewritten whose marker names the frame (what the
/// embedder left in an entry that it emptied lazily), and before a page-cache slot that held the frame is filled again.
/// One load when nothing is owed. A residue that quell_rescue has cleared says nothing of other markers that name the
/// frame.
///
/// Context: interrupts on or off. May wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_settle_residue(
    engine: *mut quell_engine,
    residue: *mut quell_residue,
    space: *mut quell_space,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let (engine, residue) = unsafe { (engine_here(engine)?, self::residue(residue)?) };
        // SAFETY: C vouches for the memory of the space.
        engine.settle_residue(residue, unsafe { self::space(space) }?);
        Ok(())
    })
}

/// For code that finds an entry of `space` already cleared, by another CPU, and relies on that: on return no CPU uses a
/// translation of the space that was cleared before the call. Three loads when nothing is owed.
///
/// Context: interrupts on or off. May wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_settle(
    engine: *mut quell_engine,
    space: *mut quell_space,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let (engine, space) = unsafe { (engine_here(engine)?, self::space(space)?) };
        engine.settle(space);
        Ok(())
    })
}

/// As quell_settle, but leaves flushes alone that are owed until reuse: for code that handles markers one by one
/// and has found an entry cleared without a marker. Two loads when no batch is outstanding.
///
/// Context: as quell_settle.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_settle_deferred(
    engine: *mut quell_engine,
    space: *mut quell_space,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let (engine, space) = unsafe { (engine_here(engine)?, self::space(space)?) };
        engine.settle_deferred(space);
        Ok(())
    })
}

/// As quell_settle_deferred, but waits until every CPU has flushed, where that waits for receipts; idle CPUs flush, too.
/// For code that is about to write an entry of another page size where it finds none. Whoever cleared the entry
/// reported it with QUELL_SCOPE_TABLES. Two loads when no batch is outstanding.
///
/// Context: as quell_settle.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_settle_tables(
    engine: *mut quell_engine,
    space: *mut quell_space,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let (engine, space) = unsafe { (engine_here(engine)?, self::space(space)?) };
        engine.settle_tables(space);
        Ok(())
    })
}

/// Pays all debts up to `*stamp`: on return no CPU uses a translation whose flush a batch owed that ended, with this
/// stamp or an earlier one, before the call. Called before the bytes of a page change whose former frame, unmapped as
/// of `*stamp`, CPUs may still read; and before addresses of the kernel's half are given out again. One load when
/// nothing is owed.
///
/// Context: interrupts on or off. May wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_settle_stamp(
    engine: *mut quell_engine,
    stamp: *const quell_stamp,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let (engine, stamp) = unsafe { (engine_here(engine)?, self::stamp(stamp)?) };
        engine.settle_stamp(stamp);
        Ok(())
    })
}

/// Whether any flush may be owed until reuse: false is certain, true may be left over from a stamp that came to
/// nothing. False for memory without an engine.
///
/// Context: any.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_owes_anything(engine: *const quell_engine) -> bool {
    // SAFETY: C vouches for its memory.
    unsafe { self::engine(engine) }.is_ok_and(|engine| engine.owes_anything())
}

/// Pays every debt there is: for a background thread, so that claims need not wait. It may miss a batch whose
/// quell_batch_finish_owed has not returned.
///
/// Context: interrupts on or off. May wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_pay_all(engine: *mut quell_engine) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        unsafe { engine_here(engine) }?.pay_all();
        Ok(())
    })
}

/// For a CPU that is in the kernel anyway, at a fault: flushes its tag if the flush clock has run a sixteenth of the
/// ledger ahead of it, so that a later payment need not interrupt it. Two loads if not.
///
/// Context: any but an NMI, on an online CPU. Does not wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_catch_up(engine: *mut quell_engine) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        unsafe { engine_here(engine) }?.catch_up();
        Ok(())
    })
}

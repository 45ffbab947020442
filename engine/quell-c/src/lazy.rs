//! The deferred flush until reuse (S3), and later observers.

use crate::place::{deferred_flush, space, stamp};
use crate::place::{
    engine, engine_here, quell_deferred_flush, quell_engine, quell_space, quell_stamp,
};
use crate::status::{answer, quell_status};

/// Makes a deferred flush that has no deferred flush. Memory that is zero is one already.
///
/// Context: any.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_deferred_flush_init(
    deferred_flush: *mut quell_deferred_flush,
) -> quell_status {
    answer(|| {
        let place = crate::place::room(deferred_flush)?;
        // SAFETY: C vouches for its memory.
        unsafe { place.write(quell::DeferredFlush::new()) };
        Ok(())
    })
}

/// Whether the frame has no deferred flush: one load, with acquire. True for NULL.
///
/// Context: any.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_deferred_flush_is_clear(
    deferred_flush: *const quell_deferred_flush,
) -> bool {
    // SAFETY: C vouches for its memory.
    unsafe { self::deferred_flush(deferred_flush) }
        .map_or(true, |deferred_flush| deferred_flush.is_clear())
}

/// The frame's entries are about to be cleared without a flush.
///
/// Context: under the lock of the page-cache slot, before the first entry is cleared.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_deferred_flush_begin(
    deferred_flush: *mut quell_deferred_flush,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        unsafe { self::deferred_flush(deferred_flush) }?.begin();
        Ok(())
    })
}

/// The frame's flush is deferred as of `*stamp`, which quell_batch_finish_deferred gave. With a stamp of zero it was
/// flushed, as quell_deferred_flush_flushed says.
///
/// Context: under the lock of quell_deferred_flush_begin.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_deferred_flush_defer(
    deferred_flush: *mut quell_deferred_flush,
    stamp: *const quell_stamp,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory. A stamp of zero, shifted, is a deferred flush that is clear.
        let (deferred_flush, stamp) =
            unsafe { (self::deferred_flush(deferred_flush)?, self::stamp(stamp)?) };
        deferred_flush.defer(stamp);
        Ok(())
    })
}

/// The frame was flushed after all, or its entries were not cleared.
///
/// Context: under the lock of quell_deferred_flush_begin.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_deferred_flush_flushed(
    deferred_flush: *mut quell_deferred_flush,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        unsafe { self::deferred_flush(deferred_flush) }?.clear();
        Ok(())
    })
}

/// Takes the frame back for the page that it belonged to, to be mapped as it was: read-only, at the same places. No
/// flush is needed. False if it was reused first, where a pointer is refused, and on a CPU that the engine has no
/// number for: then it is not the page's.
///
/// The deferred flush is clear afterwards, and says nothing any more of the places at which the frame is not mapped
/// again, where stale entries may be in use: map it at every place that it was taken away from before the lock is
/// dropped, or treat each entry that still names it as a mapping of it, and report that to the batch when the mapping
/// goes.
///
/// Context: under the lock of the page-cache slot. Does not wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_reinstate(
    engine: *mut quell_engine,
    deferred_flush: *mut quell_deferred_flush,
) -> bool {
    // SAFETY: C vouches for its memory.
    match unsafe { (engine_here(engine), self::deferred_flush(deferred_flush)) } {
        (Ok(engine), Ok(deferred_flush)) => deferred_flush.reinstate(engine),
        _ => false,
    }
}

/// Reuses a frame for a new owner, and makes its deferred flush first if that is not paid yet. True: the frame is the
/// caller's. False: it is not, because it was reinstated or never deferred, a pointer is refused, or the engine has no
/// number for this CPU.
///
/// Context: interrupts on or off. May wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_flush_before_reuse(
    engine: *mut quell_engine,
    deferred_flush: *mut quell_deferred_flush,
) -> bool {
    // SAFETY: C vouches for its memory.
    match unsafe { (engine_here(engine), self::deferred_flush(deferred_flush)) } {
        (Ok(engine), Ok(deferred_flush)) => engine.flush_before_reuse(deferred_flush).is_some(),
        _ => false,
    }
}

/// Whether a reuse of this frame would interrupt no CPU: two loads when no flush is deferred. False if a pointer is
/// refused.
///
/// Context: any but an NMI. Does not wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_is_flushed(
    engine: *const quell_engine,
    deferred_flush: *const quell_deferred_flush,
) -> bool {
    // SAFETY: C vouches for its memory.
    match unsafe { (self::engine(engine), self::deferred_flush(deferred_flush)) } {
        (Ok(engine), Ok(deferred_flush)) => engine.is_flushed(deferred_flush),
        _ => false,
    }
}

/// Pays the frame's deferred flush. Called before an entry of `space` is rewritten whose marker names the frame (what
/// the embedder left in an entry that it emptied lazily), and before a page-cache slot that held the frame is filled
/// again. One load when no flush is deferred. A deferred flush that quell_reinstate has cleared says nothing of other
/// markers that name the frame.
///
/// Context: interrupts on or off. May wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_flush_before_refill(
    engine: *mut quell_engine,
    deferred_flush: *mut quell_deferred_flush,
    space: *mut quell_space,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let (engine, deferred_flush) =
            unsafe { (engine_here(engine)?, self::deferred_flush(deferred_flush)?) };
        // SAFETY: C vouches for the memory of the space.
        engine.flush_before_refill(deferred_flush, unsafe { self::space(space) }?);
        Ok(())
    })
}

/// For code that finds an entry of `space` already cleared, by another CPU, and relies on that: on return no CPU uses a
/// translation of the space that was cleared before the call. Three loads when no flush is deferred.
///
/// Context: interrupts on or off. May wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_flush_pending(
    engine: *mut quell_engine,
    space: *mut quell_space,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let (engine, space) = unsafe { (engine_here(engine)?, self::space(space)?) };
        engine.flush_pending(space);
        Ok(())
    })
}

/// As quell_flush_pending, but leaves flushes alone that are deferred until reuse: for code that handles markers one
/// by one and has found an entry cleared without a marker. Two loads when no batch is outstanding.
///
/// Context: as quell_flush_pending.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_flush_pending_batches(
    engine: *mut quell_engine,
    space: *mut quell_space,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let (engine, space) = unsafe { (engine_here(engine)?, self::space(space)?) };
        engine.flush_pending_batches(space);
        Ok(())
    })
}

/// As quell_flush_pending_batches, but waits until every CPU has flushed, where that waits for receipts; idle CPUs
/// flush, too. For code that is about to write an entry of another page size where it finds none. Whoever cleared the
/// entry reported it with QUELL_SCOPE_TABLES. Two loads when no batch is outstanding.
///
/// Context: as quell_flush_pending.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_flush_pending_tables(
    engine: *mut quell_engine,
    space: *mut quell_space,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let (engine, space) = unsafe { (engine_here(engine)?, self::space(space)?) };
        engine.flush_pending_tables(space);
        Ok(())
    })
}

/// Makes all deferred flushes up to `*stamp`: on return no CPU uses a translation whose flush a batch deferred that
/// ended, with this stamp or an earlier one, before the call. Called before the bytes of a page change whose former
/// frame, unmapped as of `*stamp`, CPUs may still read; and before addresses of the kernel's half are given out again.
/// One load when no flush is deferred.
///
/// Context: interrupts on or off. May wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_flush_until(
    engine: *mut quell_engine,
    stamp: *const quell_stamp,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let (engine, stamp) = unsafe { (engine_here(engine)?, self::stamp(stamp)?) };
        engine.flush_until(stamp);
        Ok(())
    })
}

/// Whether any flush may be deferred until reuse: false is certain, true may be left over from a stamp that came to
/// nothing. False for memory without an engine.
///
/// Context: any.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_has_deferred(engine: *const quell_engine) -> bool {
    // SAFETY: C vouches for its memory.
    unsafe { self::engine(engine) }.is_ok_and(|engine| engine.has_deferred())
}

/// Makes every deferred flush there is: for a background thread, so that reuses need not wait. It may miss a batch
/// whose quell_batch_finish_deferred has not returned.
///
/// Context: interrupts on or off. May wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_flush_deferred(engine: *mut quell_engine) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        unsafe { engine_here(engine) }?.flush_deferred();
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

//! Defers flushes until a frame is reused, and makes them when other code relies on a cleared entry.

use crate::place::{
    CEngine, content, engine, engine_here, quell_deferred_flush, quell_engine, quell_space,
    quell_stamp, room, space,
};
use crate::status::{answer, quell_status};
use quell::DeferredFlush;

/// Initialises a frame's word: the frame has no deferred flush.
///
/// Zeroed memory is initialised already.
///
/// Context: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_deferred_flush_init(
    deferred_flush: *mut quell_deferred_flush,
) -> quell_status {
    answer(|| {
        let place = room(deferred_flush)?;
        // SAFETY: C vouches for its memory.
        unsafe { place.write(DeferredFlush::new()) };
        Ok(())
    })
}

/// Returns whether the frame has no deferred flush, with one acquire load.
///
/// Returns true for NULL.
///
/// Context: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_deferred_flush_is_clear(
    deferred_flush: *const quell_deferred_flush,
) -> bool {
    // SAFETY: C vouches for its memory.
    unsafe { content(deferred_flush) }.map_or(true, DeferredFlush::is_clear)
}

/// Marks a frame whose entries are about to be cleared without a flush.
///
/// Context: under the lock of the page-cache slot, before the first entry is cleared.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_deferred_flush_begin(
    deferred_flush: *mut quell_deferred_flush,
) -> quell_status {
    // SAFETY: C vouches for its memory.
    unsafe { content(deferred_flush) }.map(DeferredFlush::begin).into()
}

/// Records `*stamp`, which quell_batch_finish_deferred wrote, as the frame's deferred flush.
///
/// A stamp of zero means that the batch flushed. Then the call does the same as quell_deferred_flush_flushed.
///
/// Context: under the lock of quell_deferred_flush_begin.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_deferred_flush_defer(
    deferred_flush: *mut quell_deferred_flush,
    stamp: *const quell_stamp,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory. A stamp of zero clears the word.
        let (deferred_flush, stamp) = unsafe { (content(deferred_flush)?, *content(stamp)?) };
        deferred_flush.defer(stamp);
        Ok(())
    })
}

/// Clears the mark of quell_deferred_flush_begin.
///
/// Use it if the frame was flushed after all, or if its entries were not cleared.
///
/// Context: under the lock of quell_deferred_flush_begin.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_deferred_flush_flushed(
    deferred_flush: *mut quell_deferred_flush,
) -> quell_status {
    // SAFETY: C vouches for its memory.
    unsafe { content(deferred_flush) }.map(DeferredFlush::clear).into()
}

/// Takes a frame back for its page, to be mapped read-only at the same places.
///
/// No flush is needed. Returns false if the frame was reused first, if a pointer is refused, or on a CPU that the
/// engine doesn't have. Then the frame no longer belongs to the page.
///
/// Afterwards the frame has no deferred flush, although CPUs may still use stale entries for pages where it isn't
/// mapped again. So do one of two things:
/// * Map the frame again at every place from which it was unmapped, before you drop the lock.
/// * Treat each entry that still names the frame as a mapping of it. Report the entry to the batch when you remove that
///   mapping.
///
/// Context: under the lock of the page-cache slot. Does not wait.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_reinstate(
    engine: *mut quell_engine,
    deferred_flush: *mut quell_deferred_flush,
) -> bool {
    // SAFETY: C vouches for its memory.
    match unsafe { (engine_here(engine), content(deferred_flush)) } {
        (Ok(engine), Ok(deferred_flush)) => deferred_flush.reinstate(engine),
        _ => false,
    }
}

/// Makes the frame's deferred flush if still outstanding. Takes the frame for a new owner.
///
/// Returns whether the caller now owns the frame. Returns false if the frame was reinstated or never had a deferred
/// flush. Also returns false if a pointer is refused, or on a CPU that the engine doesn't have.
///
/// Context: interrupts on or off. May wait.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_flush_before_reuse(
    engine: *mut quell_engine,
    deferred_flush: *mut quell_deferred_flush,
) -> bool {
    // SAFETY: C vouches for its memory.
    match unsafe { (engine_here(engine), content(deferred_flush)) } {
        (Ok(engine), Ok(deferred_flush)) => engine.flush_before_reuse(deferred_flush).is_some(),
        _ => false,
    }
}

/// Returns whether reusing this frame would interrupt no CPU.
///
/// It costs two loads when no flush is deferred. Returns false if a pointer is refused.
///
/// Context: any but an NMI. Does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_is_flushed(
    engine: *const quell_engine,
    deferred_flush: *const quell_deferred_flush,
) -> bool {
    // SAFETY: C vouches for its memory.
    match unsafe { (self::engine(engine), content(deferred_flush)) } {
        (Ok(engine), Ok(deferred_flush)) => engine.is_flushed(deferred_flush),
        _ => false,
    }
}

/// Makes the frame's deferred flush, so that its entries and page-cache slot may be refilled.
///
/// Call it before you overwrite a marker in a table of `space`: a non-present entry that names the frame. If the
/// frame's batch has not ended yet, the call flushes `space` like quell_flush_pending.
///
/// Call it also before you fill a page-cache slot that held the frame. Hold the slot's lock: then the batch has ended,
/// and any space will do as `space`.
///
/// It costs one load when no flush is deferred. After quell_reinstate it flushes nothing, although other markers may
/// still name the frame.
///
/// Context: interrupts on or off. May wait.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_flush_before_refill(
    engine: *mut quell_engine,
    deferred_flush: *mut quell_deferred_flush,
    space: *mut quell_space,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let (engine, deferred_flush) = unsafe { (engine_here(engine)?, content(deferred_flush)?) };
        // SAFETY: C vouches for the memory of the space.
        engine.flush_before_refill(deferred_flush, unsafe { self::space(space) }?);
        Ok(())
    })
}

/// Flushes all pending changes of `space`.
///
/// It's for later observers: code that finds an entry already cleared by another CPU and relies on that. After it
/// returns, no CPU uses a translation of the space that was cleared before the call. It costs three loads when no flush
/// is pending.
///
/// Context: interrupts on or off. May wait.
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

/// Flushes all outstanding batches of `space`, but leaves flushes that are deferred until reuse.
///
/// It's for code that handles markers one by one and has found an entry cleared without a marker. Other code calls
/// quell_flush_pending. It costs two loads when no batch is outstanding.
///
/// Context: as quell_flush_pending.
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

/// Flushes all outstanding batches of `space`, and waits until no TLB uses the old translations.
///
/// quell_flush_pending_batches may return once each target has taken its request (a receipt). This function waits
/// longer, and idle CPUs leave the space's root. It's for code that finds an entry cleared and is about to write an
/// entry of another page size there. The code that cleared the entry must have reported it with QUELL_SCOPE_TABLES. It
/// costs two loads when no batch is outstanding.
///
/// Context: as quell_flush_pending.
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

/// Makes all deferred flushes up to `*stamp`.
///
/// After it returns, no CPU uses a translation whose flush a batch deferred before the call, with this stamp or an
/// earlier one. Call it before addresses of the kernel's half are used again. Also call it before the content of a page
/// changes, if the page's former frame was unmapped with `*stamp` and CPUs may still read it. It costs one load when no
/// flush is deferred.
///
/// Context: interrupts on or off. May wait.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_flush_until(
    engine: *mut quell_engine,
    stamp: *const quell_stamp,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let (engine, stamp) = unsafe { (engine_here(engine)?, *content(stamp)?) };
        engine.flush_until(stamp);
        Ok(())
    })
}

/// Returns whether any flush may be deferred until reuse.
///
/// If it returns false, none is. It may return true because of a stamp that was never used. Returns false for memory
/// without an engine.
///
/// Context: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_has_deferred(engine: *const quell_engine) -> bool {
    // SAFETY: C vouches for its memory.
    unsafe { self::engine(engine) }.is_ok_and(CEngine::has_deferred)
}

/// Makes every deferred flush.
///
/// A background thread can call it, so that reusing a frame needn't wait. It may miss a batch whose
/// quell_batch_finish_deferred hasn't returned.
///
/// Context: interrupts on or off. May wait.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_flush_deferred(engine: *mut quell_engine) -> quell_status {
    // SAFETY: C vouches for its memory.
    unsafe { engine_here(engine) }.map(CEngine::flush_deferred).into()
}

/// Flushes this CPU's tag if many flushes were deferred since its last flush.
///
/// Many means a sixteenth of the ledger's entries: 4 deferred flushes with 64 entries, for example. Call it when a CPU
/// is in the kernel anyway, for example at a fault. A later deferred flush then needn't interrupt the CPU. It costs two
/// loads if there's nothing to do.
///
/// Context: any but an NMI, on an online CPU. Does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_catch_up(engine: *mut quell_engine) -> quell_status {
    // SAFETY: C vouches for its memory.
    unsafe { engine_here(engine) }.map(|engine| engine.this_cpu().catch_up()).into()
}

//! Collects changed entries and their frames in a batch, flushes once, and returns the frames.
//!
//! The caller provides an array for the frames, which the batch uses until it's finished. In Rust an iterator returns
//! the flushed frames; in C the caller reads them from the array.

use crate::flight::Callback;
use crate::held::{BatchContent, BatchPlace, NoFrames, held, open, with_run_reported};
use crate::place::{engine_here, quell_batch, quell_engine, quell_space, quell_stamp, room, space};
use crate::status::{answer, quell_status};
use crate::values::{
    enum_quell_purpose, enum_quell_scope, enum_quell_stride, purpose, quell_range, scope,
};
use core::ffi::c_void;
use core::mem::MaybeUninit;
use quell::{Outcome, Scope};

/// Begins a batch in memory of any content.
///
/// `frames` is an array for the names of `room` frames; it may be NULL if `room` is 0. The batch owns the array until
/// it's finished. A full batch must be finished, which costs a shootdown, so choose a long array: 64 frames, for
/// example.
///
/// A batch records ranges for up to QUELL_BATCH_SPACES spaces. If changes of further spaces are reported, the end of
/// the batch flushes all of those spaces. It does so on every CPU that may have them loaded, and on some others.
///
/// Finish every batch to which something was reported. Otherwise its entries are never flushed, and its spaces have a
/// flush pending for ever.
///
/// Context: any but an NMI. Does not wait.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_batch_begin(
    engine: *mut quell_engine,
    batch: *mut quell_batch,
    purpose: enum_quell_purpose,
    frames: *mut *mut c_void,
    room: usize,
) -> quell_status {
    answer(|| {
        let place = crate::place::room(batch)?;
        // SAFETY: C vouches for its memory.
        let engine = unsafe { engine_here(engine) }?;
        let purpose = self::purpose(purpose)?;
        if frames.is_null() && room != 0 {
            return Err(quell_status::Null);
        }
        if !frames.is_aligned() {
            return Err(quell_status::Misaligned);
        }
        // SAFETY: C vouches for the memory of the batch and for the array of frames.
        unsafe {
            BatchPlace::begin(place, engine.hw(), frames, room, || {
                engine.batch_of_spaces(purpose, NoFrames)
            })
        };
        Ok(())
    })
}

/// Returns whether the batch can't take another frame. If so, finish it.
///
/// Returns true for memory without a batch.
///
/// Context: any but an NMI.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_batch_is_full(batch: *mut quell_batch) -> bool {
    // SAFETY: C vouches for its memory.
    unsafe { open(batch).map_or(true, |place| BatchPlace::is_full(place)) }
}

/// Returns whether nothing was reported to the batch since it was begun or finished.
///
/// Finishing an empty batch does nothing. Returns true for memory without a batch, and false for a batch whose flush
/// was started.
///
/// Context: any but an NMI.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_batch_is_empty(batch: *mut quell_batch) -> bool {
    // SAFETY: C vouches for its memory.
    match unsafe { held(batch) } {
        // SAFETY: there is a batch.
        Ok(BatchContent::Batch(changes)) => unsafe {
            changes.is_empty() && BatchPlace::frames(batch.cast()) == 0
        },
        Ok(BatchContent::InFlight(_) | BatchContent::Announced(_)) => false,
        Err(_) => true,
    }
}

/// Returns whether the batch will flush all of `space` in at least this `scope`.
///
/// If so, you may skip further reports of the space until the batch is finished. Always returns false on machines that
/// broadcast invalidations, and for a space beyond the batch's QUELL_BATCH_SPACES. Also returns false for memory
/// without a batch or a space, and for a batch whose flush was started.
///
/// Context: as quell_batch_changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_batch_covers(
    batch: *mut quell_batch,
    space: *mut quell_space,
    scope: enum_quell_scope,
) -> bool {
    let covers = || {
        // SAFETY: C vouches for its memory, and keeps the space until the batch is finished.
        let (batch, space) = unsafe { (with_run_reported(batch)?, self::space(space)?) };
        Ok::<_, quell_status>(batch.covers(space, self::scope(scope)?))
    };
    covers().unwrap_or(false)
}

/// Reports a change to the batch on behalf of quell_batch_changed. Call that inline function instead.
///
/// Context: as quell_batch_changed.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_batch_report(
    batch: *mut quell_batch,
    space: *mut quell_space,
    start: u64,
    pages: u64,
    stride: enum_quell_stride,
    scope: enum_quell_scope,
) -> quell_status {
    let range = quell_range { start, pages, stride };
    answer(|| {
        // SAFETY: C vouches for its memory, and keeps the space until the batch is finished.
        unsafe {
            let (place, space) = (open(batch)?, self::space(space)?);
            BatchPlace::report(place, space, range.checked()?, self::scope(scope)?);
        }
        Ok(())
    })
}

/// Reports that entries anywhere in `space` changed.
///
/// If you know the range, call quell_batch_changed instead.
///
/// Context: as quell_batch_changed.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_batch_changed_all(
    batch: *mut quell_batch,
    space: *mut quell_space,
    scope: enum_quell_scope,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory, and keeps the space until the batch is finished.
        let (changes, space) = unsafe { (with_run_reported(batch)?, self::space(space)?) };
        let scope = self::scope(scope)?;
        crate::left::reported(batch.cast(), space);
        changes.changed_all(space, scope);
        Ok(())
    })
}

/// Reports a range with its frame. We add the frame first, so that a full batch reports nothing.
#[inline]
unsafe fn report(
    batch: *mut quell_batch,
    space: *mut quell_space,
    range: quell_range,
    scope: Scope,
    frame: *mut c_void,
) -> Result<(), quell_status> {
    // SAFETY: C vouches for its memory, and keeps the space until the batch is finished.
    unsafe {
        let space = self::space(space)?;
        let range = range.checked()?;
        let place = open(batch)?;
        BatchPlace::hold(place, frame)?;
        BatchPlace::report(place, space, range, scope);
    }
    Ok(())
}

/// Reports cleared entries to the batch on behalf of quell_batch_unmapped. Call that inline function instead.
///
/// Context: as quell_batch_changed.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_batch_report_unmapped(
    batch: *mut quell_batch,
    space: *mut quell_space,
    start: u64,
    pages: u64,
    stride: enum_quell_stride,
    frame: *mut c_void,
) -> quell_status {
    let range = quell_range { start, pages, stride };
    // SAFETY: C vouches for its memory.
    answer(|| unsafe { report(batch, space, range, Scope::Leaf, frame) })
}

/// Reports that a page-table page that spanned `range` was unlinked from `space`.
///
/// `frame` is the kernel's name of that page. The flush drops walker caches too, and interrupts CPUs that have the
/// space loaded lazily. The initiator waits until every target has flushed. If the table still mapped pages, the flush
/// drops only the first page of each stride of the range.
///
/// Refuses a full batch, and then reports nothing.
///
/// Context: as quell_batch_changed.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_batch_table_unlinked(
    batch: *mut quell_batch,
    space: *mut quell_space,
    range: quell_range,
    frame: *mut c_void,
) -> quell_status {
    // SAFETY: C vouches for its memory.
    answer(|| unsafe { report(batch, space, range, Scope::Tables, frame) })
}

/// Adds a frame to the batch without reporting an entry.
///
/// Use it if nothing maps the frame any more, or if its entries were all reported with quell_batch_changed. The latter
/// helps if several spaces mapped the frame, for example.
///
/// Refuses a full batch.
///
/// Context: as quell_batch_changed.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_batch_hold(
    batch: *mut quell_batch,
    frame: *mut c_void,
) -> quell_status {
    // SAFETY: C vouches for its memory.
    answer(|| unsafe { BatchPlace::hold(open(batch)?, frame) })
}

/// Notifies the batch that the caller dropped the lock under which it reported changes.
///
/// It matters only if batching is off. The batch then flushes these changes, unless its purpose is QUELL_PURPOSE_CALL
/// or its flush may be deferred. The frames stay in its array. So with batching off, a kernel that calls this function
/// after each change flushes each change separately. A kernel that never calls it flushes when the batch is finished.
///
/// Context: interrupts on or off. May wait.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_batch_unlocked(batch: *mut quell_batch) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory, and has kept the spaces.
        unsafe { with_run_reported(batch) }?.unlocked();
        Ok(())
    })
}

/// Flushes all reported changes, and returns the frames.
///
/// After it returns, no user access on any CPU uses a reported translation. The batch's array holds `*count` frames, in
/// the order in which they were reported, and belongs to the caller. The batch is then empty and may be used again.
/// `count` may be NULL.
///
/// Context: interrupts on or off. May wait, but not after quell_batch_poll has returned true.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_batch_finish(
    batch: *mut quell_batch,
    count: *mut usize,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory, and has kept the spaces.
        match unsafe { held(batch) }? {
            // SAFETY: as above.
            BatchContent::Batch(_) => drop(unsafe { with_run_reported(batch) }?.finish()),
            // SAFETY: the batch is in flight, and C has kept its spaces.
            BatchContent::InFlight(flight) => unsafe { BatchPlace::land(flight) },
            // We refuse it, because its callback would find that no flush exists.
            BatchContent::Announced(_) => return Err(quell_status::InFlight),
        }
        crate::left::finished(batch.cast());
        // SAFETY: there is a batch, which has flushed. C vouches for the memory behind `count`.
        unsafe { tell(count, BatchPlace::give_frames(batch.cast())) };
        Ok(())
    })
}

/// Starts the flush of the batch without waiting for other CPUs.
///
/// The flush proceeds by itself. Until it's over, only quell_batch_poll and quell_batch_finish accept the batch, and
/// its memory must not move.
///
/// When the flush is over, quell calls `callback` once, with `argument`, on any CPU, with interrupts masked. That may
/// be inside any call of quell except the inline ones: quell_on_interrupt, quell_poll in a lock's loop, a wait of another
/// batch, or quell_batch_start. So the callback must not take a lock that a CPU may hold during a call of quell, such as
/// that of a run queue. It may put a thread on a list without a lock, or finish the batch itself. It must not call any
/// other function of quell.
/// quell_batch_finish refuses the batch until quell has called the callback. The callback may run before this function
/// returns. On a machine that broadcasts invalidations it does, after the barrier that completes them, unless a device
/// has yet to answer.
///
/// Without a callback (NULL), call quell_batch_poll until it returns true, or quell_batch_finish, which waits.
///
/// Refuses in a library without the feature "start".
///
/// Context: any but an NMI. Does not wait.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_batch_start(
    batch: *mut quell_batch,
    callback: Option<extern "C" fn(argument: *mut c_void)>,
    argument: *mut c_void,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory, keeps the spaces, and started no flush of the batch.
        unsafe {
            let place = open(batch)?;
            if !cfg!(feature = "start") {
                return Err(quell_status::Unsupported);
            }
            BatchPlace::report_run(place);
            let Some(callback) = callback else {
                BatchPlace::start(place, false);
                return Ok(());
            };
            let hw = (*place).hw();
            let callback: Callback = callback;
            (&raw mut (*place).callback).write(MaybeUninit::new((callback, argument)));
            hw.flights().start(place, hw);
        }
        Ok(())
    })
}

/// Returns whether a started flush is over, so that quell_batch_finish wouldn't wait.
///
/// Call it on any CPU, any number of times. Each call continues the check of the targets where the last call ended, at
/// the first CPU that hadn't answered. Returns true for a batch whose flush wasn't started, and for memory without a
/// batch.
///
/// If devices also walk the tables (`quell_hooks.secondary_is_done`), call it again once they have answered, because
/// quell gets no notice of their answers.
///
/// On a machine that broadcasts invalidations, the call executes the barrier that completes the flush. It returns true
/// unless a device has yet to answer, or another CPU is checking this batch for its callback.
///
/// Context: any but an NMI. Does not wait for other CPUs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_batch_poll(batch: *mut quell_batch) -> bool {
    // SAFETY: C vouches for its memory, and keeps the spaces.
    match unsafe { held(batch) } {
        // SAFETY: the batch is in flight, and C keeps its spaces.
        Ok(BatchContent::InFlight(flight)) => unsafe { BatchPlace::is_over(flight) },
        // SAFETY: as above.
        Ok(BatchContent::Announced(flight)) => unsafe {
            let hw = (*flight).hw();
            hw.flights().look(hw);
            !matches!(held(batch), Ok(BatchContent::Announced(_)))
        },
        Ok(BatchContent::Batch(_)) | Err(_) => true,
    }
}

/// # Safety
/// `count` may be written, or is NULL.
unsafe fn tell(count: *mut usize, frames: usize) {
    // SAFETY: as the caller promises. Its content may be anything.
    if let Some(count) = unsafe { count.cast::<MaybeUninit<usize>>().as_mut() } {
        count.write(frames);
    }
}

/// Defers the batch's flush until the frames are reused, or else flushes now.
///
/// If it flushed, `*stamp` is zero. As with quell_batch_finish, the array then holds `*count` frames.
///
/// It flushes now if lazy unmap is off, if the ledger is full, or if the batch has
/// * an unlinked table,
/// * mappings of both the kernel and a user space,
/// * changes of more than QUELL_BATCH_SPACES spaces, or
/// * a space with more outstanding batches than quell can count.
///
/// If the flush is deferred, record it in each frame: call quell_deferred_flush_defer with this stamp. Do that before
/// you drop the lock under which you called quell_deferred_flush_begin. You may drop the locks of the page tables
/// before this call. Code that finds an entry already cleared still flushes then (quell_flush_pending): until this call
/// it finds the outstanding batch, and afterwards the deferred flush.
///
/// The caller guarantees that every mapping of every frame was read-only and clean, or was a kernel mapping that no CPU
/// uses any more. quell doesn't check this.
///
/// Context: under the lock of quell_deferred_flush_begin. May wait for other CPUs if it flushes, and for devices if
/// there are any.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_batch_finish_deferred(
    batch: *mut quell_batch,
    count: *mut usize,
    stamp: *mut quell_stamp,
) -> quell_status {
    answer(|| {
        let place = room(stamp)?;
        // SAFETY: C vouches for its memory, and has kept the spaces.
        match unsafe { with_run_reported(batch) }?.finish_deferred() {
            // SAFETY: `room` has checked the pointer, and C vouches for the memory behind it.
            Outcome::Deferred(deferred) => unsafe { place.write(deferred.stamp()) },
            // SAFETY: C vouches for the memory behind `stamp`. No stamp is zero: they count from 1.
            Outcome::Flushed(_) => unsafe { stamp.write_bytes(0, 1) },
        }
        crate::left::finished(batch.cast());
        // SAFETY: there is a batch, which has flushed or deferred. C vouches for the memory behind `count`.
        unsafe { tell(count, BatchPlace::give_frames(batch.cast())) };
        Ok(())
    })
}

//! Batches: what changed is reported, the batch is finished, and then the frames are the caller's again (S0).
//!
//! The frames wait in an array of the caller's, which is theirs and the batch's in turn: where Rust's iterator gives
//! out what was flushed, here the array counts.

use crate::held::{BatchPlace, CBatch, Frames, Held, batch, held};
use crate::place::{engine_here, quell_batch, quell_engine, quell_space, quell_stamp, room, space};
use crate::status::{answer, quell_status};
use crate::values::{purpose, quell_range, scope};
use core::ffi::c_void;
use quell::{Outcome, Scope};

/// Begins a batch for a purpose (`enum quell_purpose`), in memory of any content. `frames` is an array for the names of
/// `room` frames, which belongs to the batch until that is finished; NULL if `room` is 0. A full batch must be
/// finished, which costs a shootdown: the longer the array, the better. Of spaces the batch has places for
/// QUELL_BATCH_SPACES; of one more it keeps nothing, and its end flushes all of that space, on all CPUs that may have
/// it loaded and some others.
///
/// Every batch to which something was reported must be finished: otherwise its entries stay unflushed, and its spaces
/// are in deferred flush for ever.
///
/// Context: any but an NMI. Does not wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_batch_begin(
    engine: *mut quell_engine,
    batch: *mut quell_batch,
    purpose: u32,
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
            BatchPlace::begin(place, || {
                engine.batch_of_spaces(purpose, Frames::new(frames, room))
            })
        };
        Ok(())
    })
}

/// Whether there is room for no more frames: finish it. True for memory without a batch.
///
/// Context: any but an NMI.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_batch_is_full(batch: *mut quell_batch) -> bool {
    // SAFETY: C vouches for its memory.
    unsafe { self::batch(batch) }.map_or(true, |batch| batch.is_full())
}

/// Whether nothing was reported to the batch since it was begun or finished, so that finishing it does nothing. True
/// for memory without a batch, false for one whose flush was started.
///
/// Context: any but an NMI.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_batch_is_empty(batch: *mut quell_batch) -> bool {
    // SAFETY: C vouches for its memory.
    match unsafe { held(batch) } {
        Ok(Held::Batch(batch)) => batch.is_empty(),
        Ok(Held::InFlight(_)) => false,
        Err(_) => true,
    }
}

/// Whether everything of `space` is flushed as the batch is finished, and at least as far as `scope` says (an
/// `enum quell_scope`). Then there is nothing to be added until it is finished, and further reports of the space may be
/// left out. Never true where invalidations are broadcast, nor of a space that the batch has no place for; false for
/// memory without a batch or a space, and for a batch whose flush was started.
///
/// Context: as quell_batch_changed.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_batch_covers(
    batch: *mut quell_batch,
    space: *mut quell_space,
    scope: u32,
) -> bool {
    let covers = || {
        // SAFETY: C vouches for its memory, and keeps the space until the batch is finished.
        let (batch, space) = unsafe { (self::batch(batch)?, self::space(space)?) };
        Ok::<_, quell_status>(batch.covers(space, self::scope(scope)?))
    };
    covers().unwrap_or(false)
}

/// Entries of `space` were cleared or lost rights, and no frame goes with them. `scope` is an `enum quell_scope`.
///
/// Context: after the tables were written, under their lock. Does not wait for other CPUs. Where invalidations are
/// broadcast and S0 is off it executes the barrier of its own CPU.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_batch_changed(
    batch: *mut quell_batch,
    space: *mut quell_space,
    range: quell_range,
    scope: u32,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory, and keeps the space until the batch is finished.
        let (batch, space) = unsafe { (self::batch(batch)?, self::space(space)?) };
        batch.changed(space, range.checked()?, self::scope(scope)?);
        Ok(())
    })
}

/// As quell_batch_changed, for all of the space.
///
/// Context: as quell_batch_changed.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_batch_changed_all(
    batch: *mut quell_batch,
    space: *mut quell_space,
    scope: u32,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory, and keeps the space until the batch is finished.
        let (batch, space) = unsafe { (self::batch(batch)?, self::space(space)?) };
        batch.changed_all(space, self::scope(scope)?);
        Ok(())
    })
}

/// Reports a range with a frame.
///
/// # Safety
/// As the header says.
#[inline]
unsafe fn report(
    batch: *mut quell_batch,
    space: *mut quell_space,
    range: quell_range,
    scope: Scope,
    frame: *mut c_void,
) -> Result<(), quell_status> {
    // SAFETY: C vouches for its memory, and keeps the space until the batch is finished.
    let (batch, space) = unsafe { (self::batch(batch)?, self::space(space)?) };
    let range = range.checked()?;
    hold(batch, frame)?;
    batch.changed(space, range, scope);
    Ok(())
}

/// Takes charge of a frame.
#[inline]
fn hold(batch: &mut CBatch, frame: *mut c_void) -> Result<(), quell_status> {
    if batch.is_full() {
        return Err(quell_status::Full);
    }
    batch.hold(frame);
    Ok(())
}

/// Entries of `space` were cleared, and `frame` was behind them: any name of the embedder's, which quell puts into the
/// batch's array and never looks at.
///
/// Refuses a batch that is full; nothing was reported then.
///
/// Context: as quell_batch_changed.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_batch_unmapped(
    batch: *mut quell_batch,
    space: *mut quell_space,
    range: quell_range,
    frame: *mut c_void,
) -> quell_status {
    // SAFETY: C vouches for its memory.
    answer(|| unsafe { report(batch, space, range, Scope::Leaf, frame) })
}

/// A page-table page that spanned `range` was unlinked from `space`; `frame` is the embedder's name of it. The flush
/// reaches walkers and CPUs that hold the space lazily, and its initiator waits until every target has flushed. If the
/// table still mapped pages, the flush drops only those that the range's strides name: the first of each stride.
///
/// Refuses a batch that is full; nothing was reported then.
///
/// Context: as quell_batch_changed.
///
/// # Safety
/// As the header says.
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

/// Takes charge of a frame whose entries were all reported with quell_batch_changed (one that several spaces mapped),
/// or that nothing maps any more.
///
/// Refuses a batch that is full.
///
/// Context: as quell_batch_changed.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_batch_hold(
    batch: *mut quell_batch,
    frame: *mut c_void,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        hold(unsafe { self::batch(batch) }?, frame)
    })
}

/// The lock is dropped under which changes were reported: with S0 off, and a purpose other than a call's, flushes them;
/// the frames stay in the batch's array. With S0 on it does nothing, and so it does where the flush may be deferred.
/// If it is called each time, there is a flush for each change with S0 off; if not, the batch flushes at its end.
///
/// Context: interrupts on or off. May wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_batch_unlocked(batch: *mut quell_batch) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory, and has kept the spaces.
        unsafe { self::batch(batch) }?.unlocked();
        Ok(())
    })
}

/// Flushes. On return no CPU uses a translation that was reported, in any later user access. The array of the batch
/// has `*count` frames, in the order in which they were reported; they are the caller's. The batch is empty and may be
/// filled and finished again. `count` may be NULL.
///
/// Context: interrupts on or off. May wait; after quell_batch_poll has said that the flush is over it does not.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_batch_finish(
    batch: *mut quell_batch,
    count: *mut usize,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory, and has kept the spaces.
        let frames = match unsafe { held(batch) }? {
            Held::Batch(batch) => batch.finish().count(),
            // SAFETY: the batch is in flight, and C has kept its spaces.
            Held::InFlight(flight) => unsafe { BatchPlace::land(flight) },
        };
        // SAFETY: C vouches for the memory behind `count`.
        unsafe { tell(count, frames) };
        Ok(())
    })
}

/// Begins to flush, and waits for no CPU: what quell_batch_finish does without the wait. The flush goes on by itself;
/// quell_batch_poll says when it is over; quell_batch_finish ends it and yields the frames. Until then the
/// batch takes nothing more, and its array and spaces stay.
///
/// Refuses a batch whose flush was started already.
///
/// Context: any but an NMI. Does not wait.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_batch_start(batch: *mut quell_batch) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory, and keeps the spaces.
        match unsafe { held(batch) }? {
            Held::InFlight(_) => Err(quell_status::InFlight),
            Held::Batch(_) => {
                let place = room(batch)?;
                // SAFETY: the memory holds a batch that is not in flight, and C keeps its spaces.
                unsafe { BatchPlace::start(place) };
                Ok(())
            }
        }
    })
}

/// Whether the flush that quell_batch_start began is over, so that quell_batch_finish would not wait. May be called on
/// any CPU and any number of times; each call looks at the CPUs that have answered since the last one, and at the first
/// that has not. When quell calls `quell_hooks.flush_answered`, it is time to ask again. True for a batch whose flush
/// was not started, and for memory without a batch.
///
/// On a machine with broadcasts the call itself executes the barrier that completes the flush, and says true.
///
/// Context: any but an NMI. Does not wait for other CPUs.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_batch_poll(batch: *mut quell_batch) -> bool {
    // SAFETY: C vouches for its memory, and keeps the spaces.
    match unsafe { held(batch) } {
        // SAFETY: the batch is in flight, and C keeps its spaces.
        Ok(Held::InFlight(flight)) => unsafe { BatchPlace::is_over(flight) },
        Ok(Held::Batch(_)) | Err(_) => true,
    }
}

/// # Safety
/// `count` may be written, or is NULL.
unsafe fn tell(count: *mut usize, frames: usize) {
    // SAFETY: as the caller promises. It may hold anything.
    if let Some(count) = unsafe { count.cast::<core::mem::MaybeUninit<usize>>().as_mut() } {
        count.write(frames);
    }
}

/// Owes the flush until the frames are reused (S3), if policy and ledger allow it, and flushes otherwise. A batch is
/// flushed, too, if it has an unlinked table, mappings of the kernel and of a user space, or more spaces than it has
/// places for, or if more batches of a space are outstanding than are counted. `*stamp` says which: zero is "flushed".
/// As with quell_batch_finish, the array has `*count` frames. If the flush is deferred, the caller puts each behind its
/// deferred flush (quell_deferred_flush_defer with this stamp) before it drops the lock under which it began that
/// (quell_deferred_flush_begin). It may drop the locks of the tables before this call: later observers find the batch
/// outstanding, then the deferred flush.
///
/// The caller vouches that every mapping of every frame was read-only and clean, or one of the kernel's that no CPU
/// uses any more; quell checks none of that.
///
/// Context: under those locks. May wait for other CPUs if nothing can be deferred, and for devices if there are any.
///
/// # Safety
/// As the header says.
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
        let frames = match unsafe { self::batch(batch) }?.finish_deferred() {
            Outcome::Deferred(deferred) => {
                // SAFETY: `room` has looked at the pointer, and C vouches for the memory behind it.
                unsafe { place.write(deferred.stamp()) };
                deferred.count()
            }
            Outcome::Flushed(flushed) => {
                // SAFETY: C vouches for the memory behind `stamp`. Zero is no stamp's number: they count from 1.
                unsafe { stamp.write_bytes(0, 1) };
                flushed.count()
            }
        };
        // SAFETY: C vouches for the memory behind `count`.
        unsafe { tell(count, frames) };
        Ok(())
    })
}

//! Holds the content of a batch's memory: a batch, or a started flush of one.
//!
//! A started flush borrows its batch, and both are in the same memory. So between the start and the end of the flush,
//! only the flush refers to the batch here; calls from C meanwhile read only the seal.
//!
//! If reported pages follow the last reported range, the engine doesn't get them one by one. The header's inline
//! function counts them in [`quell_run`], and [`BatchPlace::report_run`] reports them together before anything that
//! depends on them. The engine counts the batch as pending from the first page on, so later observers miss nothing.
//!
//! The frames are in C's array, and the header's inline function adds frames, too ([`quell_frames`]). So the engine's
//! batch has no frames ([`NoFrames`]): we count those in the array.

use crate::capacity::{CHECKED, QUELL_BATCH_SPACES};
use crate::flight::Callback;
use crate::machine::Machine;
use crate::place::{
    QUELL_BATCH_SIZE, QUELL_WORD_ALIGN, places, quell_batch, quell_frames, quell_run, room,
};
use crate::status::quell_status;
use crate::values::{HALF, RUN_PAGES};
use core::convert::Infallible;
use core::ffi::c_void;
use core::mem::{MaybeUninit, align_of, offset_of, size_of};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use quell::{AddressSpace, Batch, FlushInFlight, FrameList, Page, PageRange, PageSize, Scope};

places! { quell_batch: BatchPlace = QUELL_BATCH_SIZE / QUELL_WORD_ALIGN }

// The header's inline functions read and write these fields. `tests/c/sizes.c` asserts the same in C.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(
    offset_of!(BatchPlace, run.of) == 0
        && offset_of!(BatchPlace, run.next) == 8
        && offset_of!(BatchPlace, frames.next) == 16
        && offset_of!(BatchPlace, frames.end) == 24
);

/// The list of frames of the engine's batch: always empty.
pub(crate) struct NoFrames;

impl FrameList for NoFrames {
    type Frame = Infallible;

    #[inline]
    fn is_full(&self) -> bool {
        true
    }
    #[inline]
    fn is_empty(&self) -> bool {
        true
    }
    fn push(&mut self, frame: Infallible) {
        match frame {}
    }
    #[inline]
    fn take(&mut self) -> Option<Infallible> {
        None
    }
}

/// The engine's batch.
pub(crate) type CBatch =
    Batch<'static, &'static AddressSpace<Machine>, NoFrames, QUELL_BATCH_SPACES>;

/// The engine's batch whose flush was started.
type CFlushInFlight =
    FlushInFlight<'static, 'static, &'static AddressSpace<Machine>, NoFrames, QUELL_BATCH_SPACES>;

/// Memory for a batch. The seal records whether there is a batch, and whether its flush was started. A started flush
/// borrows the batch, and nothing else refers to it.
#[repr(C)]
pub(crate) struct BatchPlace {
    /// The first fields, as in the header's declaration.
    run: quell_run,
    frames: quell_frames,
    /// The array of frames.
    array: *mut *mut c_void,
    /// The first page of the run that wasn't reported to the engine.
    unreported: u64,
    seal: AtomicU64,
    batch: MaybeUninit<CBatch>,
    flight: MaybeUninit<CFlushInFlight>,
    /// The callback at the end of the started flush, with its argument.
    pub(crate) callback: MaybeUninit<(Callback, *mut c_void)>,
    /// The machine of the batch's engine.
    hw: MaybeUninit<&'static Machine>,
    /// The next batch in a list of started flushes.
    pub(crate) next: AtomicPtr<BatchPlace>,
}

/// The content of a batch's memory.
pub(crate) enum BatchContent {
    /// A batch that takes reports.
    Batch(&'static mut CBatch),
    /// A flush that was started.
    InFlight(*mut BatchPlace),
    /// A flush that was started with a callback, and isn't over.
    Announced(*mut BatchPlace),
}

impl BatchPlace {
    const SEAL: u64 = 0x0071_7565_6c6c_0b01;
    /// The flush was started without a callback.
    const IN_FLIGHT: u64 = 0x0071_7565_6c6c_0b02;
    /// The flush was started with a callback, which wasn't called yet.
    const ANNOUNCED: u64 = 0x0071_7565_6c6c_0b03;
    /// The flush is over, and its callback was called.
    const OVER: u64 = 0x0071_7565_6c6c_0b04;
    /// The value of `quell_run.of` if there is no run. No space's address yields it.
    const NO_RUN: usize = 1;

    /// Begins a batch in its place.
    ///
    /// # Safety
    /// `room` is memory for a `BatchPlace` that is used for nothing else. `array` has space for `frames` frames, and is
    /// used for nothing else while the batch holds any.
    #[inline]
    pub(crate) unsafe fn begin(
        room: *mut BatchPlace,
        hw: &'static Machine,
        array: *mut *mut c_void,
        frames: usize,
        batch: impl FnOnce() -> CBatch,
    ) {
        crate::left::begins(room.cast());
        // SAFETY: as the caller promises.
        unsafe {
            (&raw mut (*room).run.of).write(Self::NO_RUN);
            (&raw mut (*room).frames)
                .write(quell_frames { next: array, end: array.wrapping_add(frames) });
            (&raw mut (*room).array).write(array);
            (&raw mut (*room).hw).write(MaybeUninit::new(hw));
            (&raw mut (*room).batch).write(MaybeUninit::new(batch()));
            (&raw mut (*room).seal).write(AtomicU64::new(Self::SEAL));
        }
    }

    /// The machine of the batch's engine.
    ///
    /// # Safety
    /// A batch was begun here.
    pub(crate) unsafe fn hw(&self) -> &'static Machine {
        // SAFETY: as the caller promises.
        unsafe { self.hw.assume_init() }
    }

    /// Adds a frame.
    ///
    /// # Errors
    /// If there's no room for it.
    ///
    /// # Safety
    /// `room` holds a batch that isn't in flight, and no other code uses it.
    #[inline]
    pub(crate) unsafe fn hold(
        room: *mut BatchPlace,
        frame: *mut c_void,
    ) -> Result<(), quell_status> {
        // SAFETY: as the caller promises. `next` is in the array unless it's at its end.
        unsafe {
            let frames = &mut (*room).frames;
            if frames.next == frames.end {
                return Err(quell_status::Full);
            }
            frames.next.write(frame);
            frames.next = frames.next.add(1);
        }
        Ok(())
    }

    /// Returns whether there's no room for another frame.
    ///
    /// # Safety
    /// As [`BatchPlace::hold`].
    pub(crate) unsafe fn is_full(room: *mut BatchPlace) -> bool {
        // SAFETY: as the caller promises.
        let frames = unsafe { &(*room).frames };
        frames.next == frames.end
    }

    /// Returns the number of frames in the array.
    ///
    /// # Safety
    /// A batch was begun in `room`.
    #[inline]
    pub(crate) unsafe fn frames(room: *const BatchPlace) -> usize {
        // SAFETY: as the caller promises. Both addresses are in the array.
        let (next, array) = unsafe { ((*room).frames.next.addr(), (*room).array.addr()) };
        (next - array) / size_of::<*mut c_void>()
    }

    /// Gives the frames in the array to C, and returns their number. The array is free again.
    ///
    /// # Safety
    /// As [`BatchPlace::hold`]. Their translations were flushed, or C records the deferred flush.
    #[inline]
    pub(crate) unsafe fn give_frames(room: *mut BatchPlace) -> usize {
        // SAFETY: as the caller promises.
        unsafe {
            let count = Self::frames(room);
            (*room).frames.next = (*room).array;
            count
        }
    }

    /// Returns the value of `quell_run.of` for pages of a space.
    fn run_of(space: &AddressSpace<Machine>, scope: Scope) -> usize {
        core::ptr::from_ref(space).expose_provenance() + scope as usize + 2
    }

    /// Reports a range, and opens a run that later pages may extend.
    ///
    /// # Safety
    /// `room` holds a batch that isn't in flight, and no other code uses it.
    #[inline]
    pub(crate) unsafe fn report(
        room: *mut BatchPlace,
        space: &'static AddressSpace<Machine>,
        range: PageRange,
        scope: Scope,
    ) {
        // SAFETY: as the caller promises.
        unsafe {
            let run = &mut (*room).run;
            let base = range.stride == PageSize::Base && range.pages <= RUN_PAGES;
            if base && run.of == Self::run_of(space, scope) && run.next == range.start.0 {
                run.next += range.pages;
                // As in `report_elsewhere`. Pages that the header's inline functions add never reach an end.
                if run.next & (HALF - 1) == 0 {
                    Self::report_run(room);
                }
                return;
            }
            Self::report_elsewhere(room, space, range, scope);
        }
    }

    /// Reports a range that doesn't extend the run.
    ///
    /// # Safety
    /// As [`BatchPlace::report`].
    #[inline(never)]
    unsafe fn report_elsewhere(
        room: *mut BatchPlace,
        space: &'static AddressSpace<Machine>,
        range: PageRange,
        scope: Scope,
    ) {
        // SAFETY: as the caller promises.
        unsafe {
            let base = range.stride == PageSize::Base && range.pages <= RUN_PAGES;
            Self::report_run(room);
            let batch = (*room).batch.assume_init_mut();
            crate::left::reported(room.cast(), space);
            batch.changed(space, range, scope);
            let next = range.end().0;
            // We end a run at the end of a half of the address space: no page follows it.
            if base && next & (HALF - 1) != 0 && batch.may_report_late(space) {
                (*room).run = quell_run { of: Self::run_of(space, scope), next };
                (*room).unreported = next;
            }
        }
    }

    /// Reports to the engine the pages that extended the last range, and ends the run.
    ///
    /// # Safety
    /// `room` holds a batch that isn't in flight, no other code uses it, and C has kept its spaces.
    #[inline(always)]
    pub(crate) unsafe fn report_run(room: *mut BatchPlace) {
        // SAFETY: as the caller promises.
        unsafe {
            if (*room).run.of != Self::NO_RUN {
                Self::end_run(room);
            }
        }
    }

    /// Reports the pages of a run to the engine, and ends the run.
    ///
    /// # Safety
    /// As [`BatchPlace::report_run`]. There is a run.
    unsafe fn end_run(room: *mut BatchPlace) {
        // SAFETY: as the caller promises.
        let (run, from) = unsafe { (&mut (*room).run, (*room).unreported) };
        let of = core::mem::replace(&mut run.of, Self::NO_RUN) - 2;
        if run.next == from {
            return;
        }
        let (scope, range) = (
            if of & 1 == 0 { Scope::Leaf } else { Scope::Tables },
            PageRange::base(Page(from), run.next - from),
        );
        // SAFETY: `report` has written the address of a space, which C has kept. The batch is as the caller promises.
        unsafe {
            let space = &*core::ptr::with_exposed_provenance::<AddressSpace<Machine>>(of & !1);
            (*room).batch.assume_init_mut().changed(space, range, scope);
        }
    }

    /// Starts the flush of this batch. `announced` is set if [`crate::flight`] ends it. Returns whether another CPU must
    /// answer.
    ///
    /// # Safety
    /// `room` holds a batch that isn't borrowed, and no other code uses it.
    pub(crate) unsafe fn start(room: *mut BatchPlace, announced: bool) -> bool {
        // SAFETY: as the caller promises. From here on until `land` only the flush refers to the batch.
        unsafe {
            let asked = (*room).batch.assume_init_mut().start_in(&mut (*room).flight);
            let seal = if announced { Self::ANNOUNCED } else { Self::IN_FLIGHT };
            (*room).seal.store(seal, Ordering::Relaxed);
            asked
        }
    }

    /// Returns whether the started flush is over.
    ///
    /// # Safety
    /// `room` holds a started flush, and no other code uses it.
    pub(crate) unsafe fn is_over(room: *mut BatchPlace) -> bool {
        // SAFETY: as the caller promises.
        unsafe { (*room).flight.assume_init_mut() }.is_done()
    }

    /// Calls the callback of a started flush that is over. From then on the batch belongs to its owner again.
    ///
    /// # Safety
    /// As [`BatchPlace::is_over`], which returned `true`. The callback was written.
    pub(crate) unsafe fn announce(room: *mut BatchPlace) {
        // SAFETY: as the caller promises. The owner may end the batch as soon as the seal is stored.
        let (callback, argument) = unsafe { (*room).callback.assume_init_read() };
        // Release pairs with the Acquire load of `held`: the owner sees the flush as it is now.
        // SAFETY: as above.
        unsafe { (*room).seal.store(Self::OVER, Ordering::Release) };
        callback(argument);
    }

    /// Ends a started flush. May wait.
    ///
    /// # Safety
    /// As [`BatchPlace::is_over`]. Afterwards `room` holds an empty batch.
    pub(crate) unsafe fn land(room: *mut BatchPlace) {
        // SAFETY: as the caller promises; the flight is dropped only once, because the seal changes. The drop waits for
        // the end of the flush. Of a flush that is over, the drop would do nothing.
        unsafe {
            if (*room).seal.load(Ordering::Relaxed) != Self::OVER {
                (*room).flight.assume_init_drop();
            }
            (*room).seal.store(Self::SEAL, Ordering::Relaxed);
        }
    }
}

/// Returns the content of a batch's memory.
///
/// # Errors
/// If the pointer is refused, or if there is no batch.
///
/// # Safety
/// The memory is initialised, and used for nothing else while the result exists; or, in a library that checks for
/// misuse, the pointer is NULL.
#[inline]
pub(crate) unsafe fn held(place: *mut quell_batch) -> Result<BatchContent, quell_status> {
    let room = room(place)?;
    // Acquire pairs with the Release store in `announce`: we see the flush that the callback reported.
    // SAFETY: every pattern of bits is a seal. We don't touch the rest: a flush may have borrowed it.
    match unsafe { (*room).seal.load(Ordering::Acquire) } {
        // SAFETY: the seal was written with the batch.
        BatchPlace::SEAL => Ok(BatchContent::Batch(unsafe { (*room).batch.assume_init_mut() })),
        BatchPlace::IN_FLIGHT | BatchPlace::OVER if cfg!(feature = "start") => {
            Ok(BatchContent::InFlight(room))
        }
        BatchPlace::ANNOUNCED if cfg!(feature = "start") => Ok(BatchContent::Announced(room)),
        _ => Err(quell_status::NoBatch),
    }
}

/// Returns the place of a batch that takes reports.
///
/// # Errors
/// If the pointer is refused, if there is no batch, or if its flush was started.
///
/// # Safety
/// As [`held`].
#[inline]
pub(crate) unsafe fn open(place: *mut quell_batch) -> Result<*mut BatchPlace, quell_status> {
    if !CHECKED {
        return Ok(place.cast());
    }
    // SAFETY: as the caller promises.
    match unsafe { held(place) }? {
        BatchContent::Batch(_) => Ok(place.cast()),
        BatchContent::InFlight(_) | BatchContent::Announced(_) => Err(quell_status::InFlight),
    }
}

/// Reports the run to the engine, and returns the batch in this memory.
///
/// # Errors
/// As [`open`].
///
/// # Safety
/// As [`held`].
#[inline]
pub(crate) unsafe fn with_run_reported<'a>(
    place: *mut quell_batch,
) -> Result<&'a mut CBatch, quell_status> {
    // SAFETY: as the caller promises.
    unsafe {
        let room = open(place)?;
        BatchPlace::report_run(room);
        Ok((*room).batch.assume_init_mut())
    }
}

//! The content of a batch's memory: a batch, or a started flush of one.
//!
//! Such a flush borrows its batch, and both lie in the same memory. So between the start of the flush and its end, only
//! the flush refers to the batch here; calls from C meanwhile read only the seal.

use crate::capacity::{CHECKED, QUELL_BATCH_SPACES};
use crate::machine::Machine;
use crate::place::{Place, QUELL_BATCH_SIZE, QUELL_WORD_ALIGN, quell_batch, room, sized};
use crate::status::quell_status;
use core::ffi::c_void;
use core::mem::{MaybeUninit, align_of, size_of};
use quell::{AddressSpace, Batch, FrameList, InFlight};

impl Place for quell_batch {
    type Content = BatchPlace;
}

sized! { quell_batch = QUELL_BATCH_SIZE / QUELL_WORD_ALIGN }

/// The frames of a batch: names in an array that C provides.
pub(crate) struct Frames {
    array: *mut *mut c_void,
    room: usize,
    taken: usize,
    held: usize,
}

impl Frames {
    /// An empty list.
    ///
    /// # Safety
    /// `array` has room for so many, and is used for nothing else as long as the list holds any.
    pub(crate) unsafe fn new(array: *mut *mut c_void, room: usize) -> Self {
        Frames {
            array,
            room,
            taken: 0,
            held: 0,
        }
    }
}

impl FrameList<*mut c_void> for Frames {
    #[inline]
    fn is_full(&self) -> bool {
        self.held == self.room
    }
    #[inline]
    fn is_empty(&self) -> bool {
        self.held == 0
    }
    #[inline]
    fn push(&mut self, frame: *mut c_void) {
        // SAFETY: the list is not full.
        unsafe { self.array.add(self.held).write(frame) };
        self.held += 1;
    }
    #[inline]
    fn take(&mut self) -> Option<*mut c_void> {
        if self.taken == self.held {
            (self.taken, self.held) = (0, 0);
            return None;
        }
        // SAFETY: written by `push`.
        let frame = unsafe { *self.array.add(self.taken) };
        self.taken += 1;
        Some(frame)
    }
}

/// The engine's batch.
pub(crate) type CBatch = Batch<
    'static,
    'static,
    Machine,
    &'static AddressSpace<Machine>,
    *mut c_void,
    Frames,
    QUELL_BATCH_SPACES,
>;

/// The engine's batch whose flush was started.
type CInFlight = InFlight<
    'static,
    'static,
    'static,
    Machine,
    &'static AddressSpace<Machine>,
    *mut c_void,
    Frames,
    QUELL_BATCH_SPACES,
>;

/// Memory for a batch. The seal tells whether there is one, and whether its flush was started. Then the flush borrows
/// the batch, and nothing else refers to it.
pub(crate) struct BatchPlace {
    seal: u64,
    batch: MaybeUninit<CBatch>,
    flight: MaybeUninit<CInFlight>,
}

/// The content of a batch's memory.
pub(crate) enum Held {
    /// A batch that takes reports.
    Batch(&'static mut CBatch),
    /// A flush that was started.
    InFlight(*mut BatchPlace),
}

impl BatchPlace {
    const SEAL: u64 = 0x0071_7565_6c6c_0b01;
    const IN_FLIGHT: u64 = 0x0071_7565_6c6c_0b02;

    /// Begins a batch in its place.
    ///
    /// # Safety
    /// `room` is memory for a `BatchPlace` that is used for nothing else.
    pub(crate) unsafe fn begin(room: *mut BatchPlace, batch: impl FnOnce() -> CBatch) {
        // SAFETY: as the caller promises.
        unsafe {
            (&raw mut (*room).batch).write(MaybeUninit::new(batch()));
            (&raw mut (*room).seal).write(Self::SEAL);
        }
    }

    /// Starts the flush of this batch.
    ///
    /// # Safety
    /// A batch lies here, which is not borrowed, and no other code uses it.
    pub(crate) unsafe fn start(room: *mut BatchPlace) {
        // SAFETY: as the caller promises. From here on until `land` only the flush refers to the batch.
        unsafe {
            let flight = (*room).batch.assume_init_mut().start();
            (&raw mut (*room).flight).write(MaybeUninit::new(flight));
            (&raw mut (*room).seal).write(Self::IN_FLIGHT);
        }
    }

    /// Returns whether the started flush is over.
    ///
    /// # Safety
    /// A flush lies here that was started, and no other code uses it.
    pub(crate) unsafe fn is_over(room: *mut BatchPlace) -> bool {
        // SAFETY: as the caller promises.
        unsafe { (*room).flight.assume_init_mut() }.is_done()
    }

    /// Ends a started flush and returns how many frames the array holds. May wait.
    ///
    /// # Safety
    /// As [`BatchPlace::is_over`]. Afterwards a batch lies here that is empty.
    pub(crate) unsafe fn land(room: *mut BatchPlace) -> usize {
        // SAFETY: as the caller promises; what is taken out is not taken again.
        unsafe {
            let flight = (&raw mut (*room).flight).read().assume_init();
            (&raw mut (*room).seal).write(Self::SEAL);
            flight.finish().count()
        }
    }
}

/// Finds out what the memory of a batch holds.
///
/// # Errors
/// If the pointer is refused, or if there is no batch.
///
/// # Safety
/// The memory is initialised, and used for nothing else for as long as what is returned; or, in a library that looks
/// for misuse, the pointer is NULL.
#[inline]
pub(crate) unsafe fn held(place: *mut quell_batch) -> Result<Held, quell_status> {
    let room = room(place)?;
    // SAFETY: every pattern of bits is a seal. The rest is not touched: a flush may have borrowed it.
    match unsafe { (*room).seal } {
        // SAFETY: the seal was written with the batch.
        BatchPlace::SEAL => Ok(Held::Batch(unsafe { (*room).batch.assume_init_mut() })),
        BatchPlace::IN_FLIGHT => Ok(Held::InFlight(room)),
        _ => Err(quell_status::NoBatch),
    }
}

/// The batch in this memory.
///
/// # Errors
/// If the pointer is refused, if there is no batch, or if its flush was started.
///
/// # Safety
/// As [`held`].
#[inline]
pub(crate) unsafe fn batch<'a>(place: *mut quell_batch) -> Result<&'a mut CBatch, quell_status> {
    if !CHECKED {
        // SAFETY: as the caller promises, and C that it has begun a batch there and started no flush of it.
        return Ok(unsafe { (*place.cast::<BatchPlace>()).batch.assume_init_mut() });
    }
    // SAFETY: as the caller promises.
    match unsafe { held(place) }? {
        Held::Batch(batch) => Ok(batch),
        Held::InFlight(_) => Err(quell_status::InFlight),
    }
}

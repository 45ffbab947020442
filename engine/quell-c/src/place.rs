//! The memory that the embedder places: its types as C sees them, their sizes, and the way from a pointer to what
//! lies there. Every pointer to such memory is converted here: the file is long because each type has a declaration, a
//! size and a way in.
//!
//! The sizes are those of the engine's types on a 64-bit machine. Each is asserted where its type is declared: what
//! does not fit does not compile.
//!
//! Misuse that the content shows cheaply is refused: memory that is zero, and memory whose content was ended, holds
//! nothing and is refused. Memory with any other content is what its owner says it is. A library that was built with
//! QUELL_UNCHECKED=1 takes its owner's word for all of it, but where an engine is made.

use crate::capacity::{CHECKED, QUELL_BATCH_SPACES};
use crate::machine::Machine;
use crate::status::{quell_status, refuse};
use core::mem::{MaybeUninit, align_of, size_of};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use quell::{
    AddressSpace, CoalescedFlushes, DeferredFlush, Engine, Hardware, LedgerEntry, PerCpu, Slot,
    Stamp,
};

/// Bytes of a `struct quell_engine`.
pub const QUELL_ENGINE_SIZE: usize = 512;
/// Bytes of a `struct quell_cpu`.
pub const QUELL_CPU_SIZE: usize = 1408;
/// Bytes of a `struct quell_slot`.
pub const QUELL_SLOT_SIZE: usize = 64;
/// Bytes of a `struct quell_ledger_entry`.
#[cfg(not(feature = "cpus-8192"))]
pub const QUELL_LEDGER_ENTRY_SIZE: usize = 192;
/// Bytes of a `struct quell_ledger_entry`.
#[cfg(feature = "cpus-8192")]
pub const QUELL_LEDGER_ENTRY_SIZE: usize = 1088;
/// Bytes of a `struct quell_space`.
#[cfg(not(feature = "cpus-8192"))]
pub const QUELL_SPACE_SIZE: usize = 192;
/// Bytes of a `struct quell_space`.
#[cfg(feature = "cpus-8192")]
pub const QUELL_SPACE_SIZE: usize = 1088;
/// Bytes of a `struct quell_batch` for each space that it has a place for.
pub const QUELL_BATCH_SPACE_SIZE: usize = 128;
/// Bytes of a `struct quell_batch`.
#[cfg(not(feature = "cpus-8192"))]
pub const QUELL_BATCH_SIZE: usize = 280 + QUELL_BATCH_SPACES * QUELL_BATCH_SPACE_SIZE;
/// Bytes of a `struct quell_batch`.
#[cfg(feature = "cpus-8192")]
pub const QUELL_BATCH_SIZE: usize = 1176 + QUELL_BATCH_SPACES * QUELL_BATCH_SPACE_SIZE;
/// Bytes of a `struct quell_deferred_flush`.
pub const QUELL_DEFERRED_FLUSH_SIZE: usize = 8;
/// Bytes of a `struct quell_coalesced`.
pub const QUELL_COALESCED_SIZE: usize = 16;
/// Bytes of a `struct quell_stamp`.
pub const QUELL_STAMP_SIZE: usize = 8;
/// The alignment of what CPUs share, a cache line: engine, CPU, slot, ledger entry and space.
pub const QUELL_LINE_ALIGN: usize = 64;
/// The alignment of batch, deferred flush, joined flushes, stamp and plan.
pub const QUELL_WORD_ALIGN: usize = 8;

/// The engine of a machine. Place it zeroed; quell_engine_new makes it. It stays where it is.
#[repr(C, align(64))]
pub struct quell_engine {
    opaque: [u8; QUELL_ENGINE_SIZE],
}

/// The engine's state for one CPU. An array of them goes to quell_engine_new, which initialises it.
#[repr(C, align(64))]
pub struct quell_cpu {
    opaque: [u8; QUELL_CPU_SIZE],
}

/// The engine's memory for one tag of one CPU, where more than eight are wanted. An array of them goes to
/// quell_engine_new, which initialises it.
#[repr(C, align(64))]
pub struct quell_slot {
    opaque: [u8; QUELL_SLOT_SIZE],
}

/// The memory of one batch that defers its flush (S3). An array of them goes to quell_engine_new, which initialises it.
#[repr(C, align(64))]
pub struct quell_ledger_entry {
    opaque: [u8; QUELL_LEDGER_ENTRY_SIZE],
}

/// An address space. quell_space_new makes it. It stays where it is until it is retired; then its memory is zero.
#[repr(C, align(64))]
pub struct quell_space {
    opaque: [u8; QUELL_SPACE_SIZE],
}

/// A batch: entries that changed and the frames behind them. Best on the stack; quell_batch_begin makes it.
#[repr(C, align(8))]
pub struct quell_batch {
    opaque: [u8; QUELL_BATCH_SIZE],
}

/// What a frame defers: one word in the embedder's frame table. Zeroed memory is a deferred flush that has no deferred
/// flush, and a deferred flush has no deferred flush exactly while it is zero.
#[repr(C, align(8))]
pub struct quell_deferred_flush {
    opaque: [u8; QUELL_DEFERRED_FLUSH_SIZE],
}

/// The flushes of one space that tasks share, beside that space and for it alone. Zeroed memory is one that nobody has
/// asked yet.
#[repr(C, align(8))]
pub struct quell_coalesced {
    opaque: [u8; QUELL_COALESCED_SIZE],
}

/// When the flush of a batch began to be deferred: a number of 64 bits in the machine's order of bytes, larger for each
/// later deferred flush of an engine. Zero is no such moment.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct quell_stamp {
    opaque: [u8; QUELL_STAMP_SIZE],
}

/// A type of the header, and what lies in its memory.
pub(crate) trait Place: Sized {
    /// What lies there.
    type Content;
    /// Evaluated where a pointer is converted.
    const FITS: () = assert!(
        size_of::<Self::Content>() <= size_of::<Self>()
            && align_of::<Self::Content>() <= align_of::<Self>(),
        "a type of the engine has outgrown its size in place.rs"
    );
}

impl Place for quell_engine {
    type Content = Made;
}
impl Place for quell_cpu {
    type Content = PerCpu<'static, Machine>;
}
impl Place for quell_slot {
    type Content = Slot<Machine>;
}
impl Place for quell_ledger_entry {
    type Content = LedgerEntry<Machine>;
}
impl Place for quell_space {
    type Content = AddressSpace<Machine>;
}
impl Place for quell_deferred_flush {
    type Content = DeferredFlush<Machine>;
}
impl Place for quell_coalesced {
    type Content = CoalescedFlushes<Machine>;
}
impl Place for quell_stamp {
    type Content = Stamp;
}

// A size that is too large costs memory on every machine, and one that is wrong is noticed nowhere else.
macro_rules! sized {
    ($($place:ty = $size:ident / $align:ident),*) => {$(
        const _: () = assert!(size_of::<$place>() == $size && align_of::<$place>() == $align);
        #[cfg(all(debug_assertions, target_pointer_width = "64"))]
        const _: () = assert!(
            size_of::<$place>() - size_of::<<$place as $crate::place::Place>::Content>() < align_of::<$place>(),
            "a size in place.rs is larger than it need be"
        );
    )*};
}
pub(crate) use sized;

sized! {
    quell_engine = QUELL_ENGINE_SIZE / QUELL_LINE_ALIGN,
    quell_cpu = QUELL_CPU_SIZE / QUELL_LINE_ALIGN,
    quell_slot = QUELL_SLOT_SIZE / QUELL_LINE_ALIGN,
    quell_ledger_entry = QUELL_LEDGER_ENTRY_SIZE / QUELL_LINE_ALIGN,
    quell_space = QUELL_SPACE_SIZE / QUELL_LINE_ALIGN,
    quell_deferred_flush = QUELL_DEFERRED_FLUSH_SIZE / QUELL_WORD_ALIGN,
    quell_coalesced = QUELL_COALESCED_SIZE / QUELL_WORD_ALIGN,
    quell_stamp = QUELL_STAMP_SIZE / QUELL_WORD_ALIGN
}

/// The memory of something, whether it was made or not.
///
/// # Errors
/// If the pointer is NULL or not aligned.
#[inline]
pub(crate) fn room<P: Place>(place: *mut P) -> Result<*mut P::Content, quell_status> {
    const { P::FITS };
    reject(place)?;
    Ok(place.cast())
}

/// Nothing, for a pointer that may be used: in every library, where an engine is made.
///
/// # Errors
/// If it is NULL or not aligned.
pub(crate) fn examine<T>(place: *const T) -> Result<(), quell_status> {
    if place.is_null() {
        return Err(quell_status::Null);
    }
    if !place.is_aligned() {
        return Err(quell_status::Misaligned);
    }
    Ok(())
}

/// Nothing, for a pointer that may be used, and for any in a library that does not look for misuse.
///
/// # Errors
/// As [`examine`].
#[inline]
pub(crate) fn reject<T>(place: *const T) -> Result<(), quell_status> {
    if CHECKED { examine(place) } else { Ok(()) }
}

/// What lies in memory that was initialised.
///
/// # Errors
/// If the pointer is NULL or not aligned.
///
/// # Safety
/// A `P::Content` lies there, which is not moved and not ended for as long as `'a`; or, in a library that looks for
/// misuse, `place` is NULL.
#[inline]
pub(crate) unsafe fn content<'a, P: Place>(
    place: *const P,
) -> Result<&'a P::Content, quell_status> {
    let content = room(place.cast_mut())?;
    // SAFETY: as the caller promises; NULL was refused, where it may be.
    Ok(unsafe { &*content })
}

/// What stands in memory that holds an engine: an arbitrary word that zeroed memory does not have.
const SEAL: u64 = 0x0071_7565_6c6c_0a01;

/// An engine, and what the interface knows of it besides. The seal says whether the rest is initialised.
pub(crate) struct Made {
    seal: AtomicU64,
    pub(crate) cpus: usize,
    /// How many CPUs are online.
    online: AtomicUsize,
    machine: MaybeUninit<Machine>,
    engine: MaybeUninit<CEngine>,
}

impl Made {
    /// Whether memory that was zeroed, or held an engine, holds one with a CPU online.
    ///
    /// # Safety
    /// It is initialised.
    pub(crate) unsafe fn is_in_use(room: *const Made) -> bool {
        // SAFETY: every pattern of bits is a value of these two fields.
        let (seal, online) = unsafe { (&(*room).seal, &(*room).online) };
        seal.load(Ordering::Acquire) == SEAL && online.load(Ordering::Acquire) != 0
    }

    /// Makes an engine in its place, for so many CPUs; `with` makes the engine on the machine.
    ///
    /// # Errors
    /// Those of `with`; then there is no engine.
    ///
    /// # Safety
    /// `room` is memory for a `Made`, which is not moved and not used otherwise from now on.
    pub(crate) unsafe fn make(
        room: *mut Made,
        cpus: usize,
        machine: Machine,
        with: impl FnOnce(&'static Machine) -> Result<CEngine, quell_status>,
    ) -> Result<(), quell_status> {
        // SAFETY: as the caller promises. The machine is written before it is referred to, and never again.
        unsafe {
            (&raw mut (*room).seal).write(AtomicU64::new(0));
            (&raw mut (*room).cpus).write(cpus);
            (&raw mut (*room).online).write(AtomicUsize::new(0));
            (&raw mut (*room).machine).write(MaybeUninit::new(machine));
            let engine = with((*room).machine.assume_init_ref())?;
            (&raw mut (*room).engine).write(MaybeUninit::new(engine));
            (*room).seal.store(SEAL, Ordering::Release);
        }
        Ok(())
    }

    /// The engine.
    #[inline]
    pub(crate) fn engine(&self) -> &CEngine {
        // SAFETY: there is no `&Made` without the seal: `made` looks for it, or C vouches for it.
        unsafe { self.engine.assume_init_ref() }
    }

    /// # Errors
    /// If the engine has no such CPU as the one that executes the call.
    fn this_cpu(&self) -> Result<(), quell_status> {
        if !CHECKED {
            return Ok(());
        }
        let cpu = self.engine().hw().this_cpu();
        refuse(cpu.index() >= self.cpus, quell_status::Cpu)
    }

    /// The engine, for a CPU that it has a number for, online or not.
    ///
    /// # Errors
    /// If it has none.
    pub(crate) fn on_this_cpu(&self) -> Result<&CEngine, quell_status> {
        self.this_cpu()?;
        Ok(self.engine())
    }

    /// Takes this CPU into the protocol.
    ///
    /// # Errors
    /// If the engine has no such CPU, or if it is online.
    pub(crate) fn go_online(&self) -> Result<(), quell_status> {
        let engine = self.on_this_cpu()?;
        if engine.is_online() {
            return Err(quell_status::Online);
        }
        self.online.fetch_add(1, Ordering::Relaxed);
        engine.cpu_online();
        Ok(())
    }

    /// Takes this CPU out of the protocol.
    ///
    /// # Errors
    /// If the engine has no such CPU, or if it is not online.
    pub(crate) fn go_offline(
        &self,
        current: Option<&AddressSpace<Machine>>,
    ) -> Result<(), quell_status> {
        self.on_online_cpu()?.cpu_offline(current);
        // Release: the call that makes an engine here next finds this one left.
        self.online.fetch_sub(1, Ordering::Release);
        Ok(())
    }

    /// Whether quell_hw_this_cpu names a CPU of the engine's that is online.
    pub(crate) fn is_on_online_cpu(&self) -> bool {
        // Asked in every library.
        self.on_this_cpu().is_ok_and(Engine::is_online)
    }

    /// The engine, for a CPU that is online.
    ///
    /// # Errors
    /// If the engine has no such CPU, or if it is not online.
    pub(crate) fn on_online_cpu(&self) -> Result<&CEngine, quell_status> {
        let engine = self.on_this_cpu()?;
        if CHECKED {
            refuse(!engine.is_online(), quell_status::Offline)?;
        }
        Ok(engine)
    }
}

/// The engine in this memory, with what is known of it besides.
///
/// # Errors
/// If the pointer is refused, or if there is no engine.
///
/// # Safety
/// The memory is initialised, and if it holds an engine, keeps it for as long as `'a`; or, in a library that looks for
/// misuse, the pointer is NULL.
#[inline]
pub(crate) unsafe fn made<'a>(place: *const quell_engine) -> Result<&'a Made, quell_status> {
    // SAFETY: every pattern of bits is a `Made` whose seal says whether there is more.
    let made = unsafe { content(place) }?;
    if CHECKED {
        // Acquire: what was written before the seal.
        let sealed = made.seal.load(Ordering::Acquire) == SEAL;
        refuse(!sealed, quell_status::NoEngine)?;
    }
    Ok(made)
}

/// The same, with its state of the CPU that executes the call, which C names.
///
/// # Errors
/// As [`made`], if the pointer to the state is refused, and if that is another CPU's.
///
/// # Safety
/// As [`made`]; and a state of this engine's CPUs lies at `here`, or, in a library that looks for misuse, whatever is
/// aligned.
#[inline]
pub(crate) unsafe fn made_here<'a>(
    place: *const quell_engine,
    here: *const quell_cpu,
) -> Result<(&'a Made, &'a PerCpu<'static, Machine>), quell_status> {
    // SAFETY: as the caller promises.
    let made = unsafe { made(place) }?;
    if CHECKED {
        let mine = core::ptr::from_ref(made.on_this_cpu()?.here());
        examine(here)?;
        refuse(!core::ptr::addr_eq(mine, here), quell_status::Cpu)?;
    }
    // SAFETY: it is this CPU's state, or C vouches for it.
    Ok((made, unsafe { &*here.cast() }))
}

/// The engine in this memory.
///
/// # Errors
/// As [`made`].
///
/// # Safety
/// As [`made`].
#[inline]
pub(crate) unsafe fn engine<'a>(place: *const quell_engine) -> Result<&'a CEngine, quell_status> {
    // SAFETY: as the caller promises.
    unsafe { made(place) }.map(Made::engine)
}

/// The engine in this memory, for code that runs on one of its CPUs.
///
/// # Errors
/// As [`made`], and if quell_hw_this_cpu gives a number that the engine has no CPU for.
///
/// # Safety
/// As [`made`].
#[inline]
pub(crate) unsafe fn engine_here<'a>(
    place: *const quell_engine,
) -> Result<&'a CEngine, quell_status> {
    // SAFETY: as the caller promises.
    unsafe { made(place) }?.on_this_cpu()
}

/// The space in this memory.
///
/// # Errors
/// If the pointer is refused, or if there is no space.
///
/// # Safety
/// The memory is initialised, and if it holds a space, keeps it for as long as `'a`; or, in a library that looks for
/// misuse, the pointer is NULL.
#[inline]
pub(crate) unsafe fn space<'a>(
    place: *const quell_space,
) -> Result<&'a AddressSpace<Machine>, quell_status> {
    // SAFETY: a space is made of words and numbers, for which every pattern of bits is a value.
    let space = unsafe { content(place) }?;
    // No space has the id 0.
    refuse(space.id().0 == 0, quell_status::NoSpace)?;
    Ok(space)
}

/// The space in this memory, if the pointer is not NULL.
///
/// # Errors
/// If there is no space.
///
/// # Safety
/// As [`space`].
#[inline]
pub(crate) unsafe fn space_if_any<'a>(
    place: *const quell_space,
) -> Result<Option<&'a AddressSpace<Machine>>, quell_status> {
    if place.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    unsafe { space(place) }.map(Some)
}

/// The deferred flush in this memory.
///
/// # Errors
/// If the pointer is refused.
///
/// # Safety
/// The memory is initialised and stays; or, in a library that looks for misuse, the
/// pointer is NULL.
#[inline]
pub(crate) unsafe fn deferred_flush<'a>(
    place: *const quell_deferred_flush,
) -> Result<&'a DeferredFlush<Machine>, quell_status> {
    // SAFETY: a deferred flush is one word, for which every pattern of bits is a value.
    unsafe { content(place) }
}

/// The flushes that tasks share in this memory.
///
/// # Errors
/// If the pointer is refused.
///
/// # Safety
/// The memory is initialised and stays; or, in a library that looks for misuse, the
/// pointer is NULL.
#[inline]
pub(crate) unsafe fn coalesced<'a>(
    place: *const quell_coalesced,
) -> Result<&'a CoalescedFlushes<Machine>, quell_status> {
    // SAFETY: they are two words, for which every pattern of bits is a value.
    unsafe { content(place) }
}

/// The stamp in this memory.
///
/// # Errors
/// If the pointer is refused.
///
/// # Safety
/// The memory is initialised; or, in a library that looks for misuse, the
/// pointer is NULL.
#[inline]
pub(crate) unsafe fn stamp(place: *const quell_stamp) -> Result<Stamp, quell_status> {
    // SAFETY: a stamp is one number, for which every pattern of bits is a value.
    unsafe { content(place) }.copied()
}

/// The engine.
pub(crate) type CEngine = Engine<'static, Machine>;

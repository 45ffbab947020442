//! Declares the memory that the kernel provides: its types in C and their sizes.
//!
//! The module also converts each pointer to such memory to a Rust type. The sizes are those of the engine's types on a
//! 64-bit machine. Assertions beside the declarations prevent a type that doesn't fit from compiling.
//!
//! Misuse that is cheap to detect is refused: zeroed memory, and memory whose object was ended. Any other content is
//! taken as an object of the pointer's type. A library that was built with QUELL_UNCHECKED=1 checks only when it makes
//! an engine.

use crate::capacity::{CHECKED, QUELL_BATCH_SPACES};
use crate::machine::Machine;
use crate::status::{quell_status, refuse};
use core::ffi::c_void;
use core::mem::{MaybeUninit, align_of, size_of};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use quell::{AddressSpace, DeferredFlush, Engine, Hardware, LedgerEntry, PerCpuData, Slot, Stamp};

/// Bytes of a `struct quell_engine`.
pub const QUELL_ENGINE_SIZE: usize = 576;
/// Bytes of a `struct quell_cpu`.
pub const QUELL_CPU_SIZE: usize = 1536;
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
pub const QUELL_SPACE_SIZE: usize = 256;
/// Bytes of a `struct quell_space`.
#[cfg(feature = "cpus-8192")]
pub const QUELL_SPACE_SIZE: usize = 1152;
/// Bytes of a `struct quell_batch` for each of its QUELL_BATCH_SPACES spaces.
pub const QUELL_BATCH_SPACE_SIZE: usize = 128;
/// Bytes of a `struct quell_batch`.
#[cfg(not(feature = "cpus-8192"))]
pub const QUELL_BATCH_SIZE: usize = 328 + QUELL_BATCH_SPACES * QUELL_BATCH_SPACE_SIZE;
/// Bytes of a `struct quell_batch`.
#[cfg(feature = "cpus-8192")]
pub const QUELL_BATCH_SIZE: usize = 1224 + QUELL_BATCH_SPACES * QUELL_BATCH_SPACE_SIZE;
/// Bytes of a `struct quell_batch` after its `run` and `frames`.
pub const QUELL_BATCH_REST: usize = QUELL_BATCH_SIZE - 32;
/// Bytes of a `struct quell_deferred_flush`.
pub const QUELL_DEFERRED_FLUSH_SIZE: usize = 8;
/// Bytes of a `struct quell_stamp`.
pub const QUELL_STAMP_SIZE: usize = 8;
/// The alignment of shared types, a cache line: engine, CPU, slot, ledger entry and space.
pub const QUELL_LINE_ALIGN: usize = 64;
/// The alignment of the other types: batch, deferred flush, stamp and plan.
pub const QUELL_WORD_ALIGN: usize = 8;

/// The engine of a machine. Start with zeroed memory, which must not move; quell_engine_new makes the engine.
#[repr(C, align(64))]
pub struct quell_engine {
    opaque: [u8; QUELL_ENGINE_SIZE],
}

/// The engine's state for one CPU.
///
/// Pass an array of them to quell_engine_new, which initialises it.
#[repr(C, align(64))]
pub struct quell_cpu {
    opaque: [u8; QUELL_CPU_SIZE],
}

/// The engine's memory for one tag of one CPU.
///
/// It's needed if each CPU is to have more than eight tags. Pass an array of them to quell_engine_new, which
/// initialises it.
#[repr(C, align(64))]
pub struct quell_slot {
    opaque: [u8; QUELL_SLOT_SIZE],
}

/// The engine's memory for one batch's deferred flush.
///
/// Pass an array of them to quell_engine_new, which initialises it.
#[repr(C, align(64))]
pub struct quell_ledger_entry {
    opaque: [u8; QUELL_LEDGER_ENTRY_SIZE],
}

/// An address space. quell_space_new makes it.
///
/// It must not move until it's retired. After that, its memory is zero.
#[repr(C, align(64))]
pub struct quell_space {
    opaque: [u8; QUELL_SPACE_SIZE],
}

/// The adjacent pages that quell_batch_changed and quell_batch_unmapped have merged into one range. Only quell reads or
/// writes it.
#[repr(C)]
pub struct quell_run {
    /// The address of the space, plus the scope, plus 2. It's 1 if there is no range to extend.
    pub of: usize,
    /// The page after the last one of the range.
    pub next: u64,
}

/// The free places in a batch's array of frames. Only quell reads or writes it.
#[repr(C)]
pub struct quell_frames {
    /// The place of the next frame.
    pub next: *mut *mut c_void,
    /// The end of the array.
    pub end: *mut *mut c_void,
}

/// A batch: changed entries and the frames behind them.
///
/// quell_batch_begin makes it. Keep it on the stack, for example.
#[repr(C, align(8))]
pub struct quell_batch {
    /// The range that was reported last.
    pub run: quell_run,
    /// The room for further frames.
    pub frames: quell_frames,
    opaque: [u8; QUELL_BATCH_REST],
}

/// The deferred flush of one frame: a word in the kernel's frame table.
///
/// It's zero exactly while the frame has no deferred flush, so zeroed memory is a valid start.
#[repr(C, align(8))]
pub struct quell_deferred_flush {
    opaque: [u8; QUELL_DEFERRED_FLUSH_SIZE],
}

/// The time at which a batch's flush was deferred.
///
/// It's a 64-bit number in native byte order that grows with each deferred flush of an engine. Zero isn't a valid time.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct quell_stamp {
    opaque: [u8; QUELL_STAMP_SIZE],
}

/// A type of the header, with the type of its content.
pub(crate) trait Place: Sized {
    /// The type of the content.
    type Content;
    /// Asserts that the content fits. We evaluate it where we convert a pointer.
    const FITS: () = assert!(
        size_of::<Self::Content>() <= size_of::<Self>()
            && align_of::<Self::Content>() <= align_of::<Self>(),
        "a type of the engine has outgrown its size in place.rs"
    );
}

// A size that is too large costs memory on every machine, and we'd notice it nowhere else.
macro_rules! places {
    ($($place:ty: $content:ty = $size:ident / $align:ident),*) => {$(
        impl $crate::place::Place for $place {
            type Content = $content;
        }
        const _: () = assert!(size_of::<$place>() == $size && align_of::<$place>() == $align);
        #[cfg(all(debug_assertions, target_pointer_width = "64"))]
        const _: () = assert!(
            size_of::<$place>() - size_of::<$content>() < align_of::<$place>(),
            "a size in place.rs is larger than it need be"
        );
    )*};
}
pub(crate) use places;

places! {
    quell_engine: EngineCell = QUELL_ENGINE_SIZE / QUELL_LINE_ALIGN,
    quell_cpu: PerCpuData<'static, Machine> = QUELL_CPU_SIZE / QUELL_LINE_ALIGN,
    quell_slot: Slot<Machine> = QUELL_SLOT_SIZE / QUELL_LINE_ALIGN,
    quell_ledger_entry: LedgerEntry<Machine> = QUELL_LEDGER_ENTRY_SIZE / QUELL_LINE_ALIGN,
    quell_space: AddressSpace<Machine> = QUELL_SPACE_SIZE / QUELL_LINE_ALIGN,
    quell_deferred_flush: DeferredFlush<Machine> = QUELL_DEFERRED_FLUSH_SIZE / QUELL_WORD_ALIGN,
    quell_stamp: Stamp = QUELL_STAMP_SIZE / QUELL_WORD_ALIGN
}

/// Converts a pointer to memory that may hold no object yet.
///
/// # Errors
/// If the pointer is NULL or not aligned.
#[inline]
pub(crate) fn room<P: Place>(place: *mut P) -> Result<*mut P::Content, quell_status> {
    const { P::FITS };
    reject(place)?;
    Ok(place.cast())
}

/// Checks a pointer in every library. We use it where an engine is made.
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

/// Checks a pointer in a library that checks for misuse.
///
/// # Errors
/// As [`examine`].
#[inline]
pub(crate) fn reject<T>(place: *const T) -> Result<(), quell_status> {
    if CHECKED { examine(place) } else { Ok(()) }
}

/// Refers to the content of initialised memory. Every pattern of bits is a deferred flush, and a stamp.
///
/// # Errors
/// If the pointer is NULL or not aligned.
///
/// # Safety
/// `place` points to a `P::Content` that isn't moved or ended during `'a`; or, in a library that checks for misuse, it
/// is NULL.
#[inline]
pub(crate) unsafe fn content<'a, P: Place>(
    place: *const P,
) -> Result<&'a P::Content, quell_status> {
    let content = room(place.cast_mut())?;
    // SAFETY: as the caller promises. A library that checks for misuse has refused NULL above.
    Ok(unsafe { &*content })
}

/// Marks memory that holds an engine: an arbitrary number other than zero.
const SEAL: u64 = 0x0071_7565_6c6c_0a01;

/// An engine with the interface's own data about it. The seal records whether the rest is initialised.
pub(crate) struct EngineCell {
    seal: AtomicU64,
    pub(crate) cpus: usize,
    /// The number of CPUs that are online.
    online: AtomicUsize,
    machine: MaybeUninit<Machine>,
    engine: MaybeUninit<CEngine>,
}

impl EngineCell {
    /// Returns whether this memory, which was zeroed or held an engine, holds an engine with a CPU online.
    ///
    /// # Safety
    /// The memory is initialised.
    pub(crate) unsafe fn is_in_use(room: *const EngineCell) -> bool {
        // SAFETY: every pattern of bits is a value of these two fields.
        let (seal, online) = unsafe { (&(*room).seal, &(*room).online) };
        seal.load(Ordering::Acquire) == SEAL && online.load(Ordering::Acquire) != 0
    }

    /// Makes an engine for `cpus` CPUs in its place. `with` makes the engine on the machine.
    ///
    /// # Errors
    /// The errors of `with`; then there is no engine.
    ///
    /// # Safety
    /// `room` is memory for a `EngineCell` that isn't moved or used for anything else from now on.
    pub(crate) unsafe fn make<E>(
        room: *mut EngineCell,
        cpus: usize,
        machine: Machine,
        with: impl FnOnce(&'static Machine) -> Result<CEngine, E>,
    ) -> Result<(), E> {
        // SAFETY: as the caller promises. The machine is written before a reference to it exists, and never again.
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

    /// The engine on C's machine.
    #[inline]
    pub(crate) fn engine(&self) -> &CEngine {
        // SAFETY: a `&Made` exists only with the seal: `made` checks it, or C vouches for it.
        unsafe { self.engine.assume_init_ref() }
    }

    /// Returns the engine if it has this CPU, online or not.
    ///
    /// # Errors
    /// If it doesn't have this CPU.
    pub(crate) fn on_this_cpu(&self) -> Result<&CEngine, quell_status> {
        let engine = self.engine();
        if CHECKED {
            refuse(engine.hw().this_cpu().index() >= self.cpus, quell_status::Cpu)?;
        }
        Ok(engine)
    }

    /// Adds this CPU to the protocol.
    ///
    /// # Errors
    /// If the engine doesn't have this CPU, or if it's online.
    pub(crate) fn go_online(&self) -> Result<(), quell_status> {
        let engine = self.on_this_cpu()?;
        if engine.this_cpu().is_online() {
            return Err(quell_status::Online);
        }
        self.online.fetch_add(1, Ordering::Relaxed);
        engine.cpu_online();
        crate::online::came(engine.this_cpu().state());
        Ok(())
    }

    /// Removes this CPU from the protocol.
    ///
    /// # Errors
    /// If the engine doesn't have this CPU, or if it isn't online.
    pub(crate) fn go_offline(
        &self,
        current: Option<&AddressSpace<Machine>>,
    ) -> Result<(), quell_status> {
        let engine = self.on_online_cpu()?;
        engine.cpu_offline(current);
        crate::online::went(engine.this_cpu().state());
        // Release pairs with the Acquire load of `online` in `is_in_use`: an engine is made here again only after this
        // CPU has left. Lost without it: this CPU's last writes could reach the new engine's memory.
        self.online.fetch_sub(1, Ordering::Release);
        Ok(())
    }

    /// Returns whether the engine has this CPU and it is online.
    pub(crate) fn is_on_online_cpu(&self) -> bool {
        // We make this check in every library.
        self.on_this_cpu().is_ok_and(|engine| engine.this_cpu().is_online())
    }

    /// Returns the engine if this CPU is online.
    ///
    /// # Errors
    /// If the engine doesn't have this CPU, or if it isn't online.
    pub(crate) fn on_online_cpu(&self) -> Result<&CEngine, quell_status> {
        let engine = self.on_this_cpu()?;
        if CHECKED {
            refuse(!engine.this_cpu().is_online(), quell_status::Offline)?;
        }
        Ok(engine)
    }
}

/// Returns the engine in this memory, with the interface's own data.
///
/// # Errors
/// If the pointer is refused, or if there is no engine.
///
/// # Safety
/// The memory is initialised, and if it holds an engine, keeps it for as long as `'a`; or, in a library that checks for
/// misuse, the pointer is NULL.
#[inline]
pub(crate) unsafe fn made<'a>(place: *const quell_engine) -> Result<&'a EngineCell, quell_status> {
    // SAFETY: every pattern of bits is a `EngineCell` whose seal records whether the rest is initialised.
    let made = unsafe { content(place) }?;
    if CHECKED {
        // Acquire pairs with the Release store of the seal in `make`: the engine is initialised.
        let sealed = made.seal.load(Ordering::Acquire) == SEAL;
        refuse(!sealed, quell_status::NoEngine)?;
    }
    Ok(made)
}

/// Returns the engine in this memory, and this CPU's state at `here`.
///
/// # Errors
/// As [`made`]; and if `here` is refused, or is another CPU's state.
///
/// # Safety
/// As [`made`]. `here` points to the state of one of this engine's CPUs. In a library that checks for misuse it may be
/// any pointer.
#[inline]
pub(crate) unsafe fn made_here<'a>(
    place: *const quell_engine,
    here: *const quell_cpu,
) -> Result<(&'a EngineCell, &'a PerCpuData<'static, Machine>), quell_status> {
    // SAFETY: as the caller promises.
    let made = unsafe { made(place) }?;
    if CHECKED {
        let mine = core::ptr::from_ref(made.on_this_cpu()?.this_cpu().state());
        examine(here)?;
        refuse(!core::ptr::addr_eq(mine, here), quell_status::Cpu)?;
    }
    // SAFETY: it is this CPU's state, or C vouches for it.
    Ok((made, unsafe { &*here.cast() }))
}

/// Returns the engine in this memory.
///
/// # Errors
/// As [`made`].
///
/// # Safety
/// As [`made`].
#[inline]
pub(crate) unsafe fn engine<'a>(place: *const quell_engine) -> Result<&'a CEngine, quell_status> {
    // SAFETY: as the caller promises.
    unsafe { made(place) }.map(EngineCell::engine)
}

/// Returns the engine in this memory, for code that runs on one of its CPUs.
///
/// # Errors
/// As [`made`], and if the engine does not have the CPU that quell_hw_this_cpu names.
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

/// Returns the space in this memory.
///
/// # Errors
/// If the pointer is refused, or if there is no space.
///
/// # Safety
/// The memory is initialised, and if it holds a space, keeps it for as long as `'a`; or, in a library that checks for
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

/// Returns the space in this memory, or `None` if the pointer is NULL.
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

/// The engine on C's machine.
pub(crate) type CEngine = Engine<'static, Machine>;

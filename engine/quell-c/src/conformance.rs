//! Checks a kernel in C on all CPUs: its implementation of the machine and its use of the engine.
//!
//! The kernel defines the functions `quell_bench_*`, which the suite calls besides those of the machine. Only a library
//! that was built with the feature "conformance" contains the suite; leave it out of a product. `examples/boot` is a
//! kernel that runs it.

use crate::machine::Machine;
use crate::place::{EngineCell, examine, made, quell_engine, quell_space, space_if_any};
use crate::status::{answer, quell_status};
use crate::values::enum_quell_rights;
use core::ffi::{c_char, c_void};
use core::mem::{align_of, size_of};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use quell::{Extent, Frame, Page};
use quell_conformance::{Bench, Rights, Suite};
use quell_zero::{PhysicalMemory, Strategy};

/// The bytes of memory that quell_conformance_new needs, without the 32 bytes for each CPU.
pub const QUELL_CONFORMANCE_SIZE: usize = 16384;

/// The rights with which a page is mapped for the suite.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum quell_rights {
    /// No access: the entry isn't present.
    None,
    /// Loads.
    Read,
    /// Loads and stores.
    Write,
}

/// The result of one check of the suite. The texts don't end with a zero byte.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct quell_check {
    /// Its name, which begins with the clauses of the contract that it checks.
    pub name: *const c_char,
    /// The length of the name in bytes.
    pub name_length: usize,
    /// The number of CPUs on which it failed.
    pub failures: u64,
    /// A description of the failure on CPU 0; empty if the check succeeded there.
    pub saw: *const c_char,
    /// The length of that text in bytes.
    pub saw_length: usize,
}

unsafe extern "C" {
    /// Returns the number of CPUs that run the suite, which are numbered from 0.
    ///
    /// The suite may call this function and the other quell_bench_* functions on any CPU.
    pub fn quell_bench_cpus() -> u32;

    /// Allocates physically contiguous frames that nothing else uses, and returns the first.
    ///
    /// The suite never returns them.
    pub fn quell_bench_take_frames(frames: u64) -> u64;

    /// Makes a root table that maps only the kernel, not the suite's pages. Returns its frame.
    pub fn quell_bench_new_root() -> u64;

    /// Writes the entry of a base page and makes missing tables above it. Invalidates nothing.
    pub fn quell_bench_set(root: u64, page: u64, frame: u64, rights: enum_quell_rights);

    /// Unlinks the lowest table above a page, and returns its frame. Invalidates nothing.
    ///
    /// The suite calls it only if that table exists.
    pub fn quell_bench_unlink_table(root: u64, page: u64) -> u64;

    /// Reads a word of a frame through the kernel's own mapping of memory.
    pub fn quell_bench_word(frame: u64, index: u32) -> u64;

    /// Writes a word of a frame through the kernel's own mapping of memory.
    pub fn quell_bench_set_word(frame: u64, index: u32, value: u64);

    /// Loads eight bytes through the loaded root. Returns false if the load faults.
    pub fn quell_bench_try_read(address: u64, value: *mut u64) -> bool;

    /// Stores eight bytes through the loaded root. Returns false if the store faults.
    pub fn quell_bench_try_write(address: u64, value: u64) -> bool;

    /// Receives the result of a check, on CPU 0.
    pub fn quell_bench_report(check: *const quell_check);
}

impl PhysicalMemory for Machine {
    unsafe fn zero(&self, extent: Extent, _: Strategy) {
        for frame in 0..extent.frames {
            (0..512).for_each(|word| self.set_word(extent.first.plus(frame), word, 0));
        }
    }
}

// SAFETY: C's functions make the methods' promises. Each call below has no other condition.
unsafe impl Bench for Machine {
    fn cpus(&self) -> usize {
        // SAFETY: as above.
        unsafe { quell_bench_cpus() as usize }
    }
    fn take_frames(&self, frames: u64) -> Extent {
        // SAFETY: as above.
        let first = Frame(unsafe { quell_bench_take_frames(frames) });
        Extent { first, frames }
    }
    fn new_root(&self) -> Frame {
        // SAFETY: as above.
        Frame(unsafe { quell_bench_new_root() })
    }
    fn set(&self, root: Frame, page: Page, to: Option<(Frame, Rights)>) {
        let (frame, rights) = match to {
            None => (Frame(0), quell_rights::None),
            Some((frame, Rights::Read)) => (frame, quell_rights::Read),
            Some((frame, Rights::Write)) => (frame, quell_rights::Write),
        };
        // SAFETY: as above.
        unsafe { quell_bench_set(root.0, page.0, frame.0, rights as u32) };
    }
    fn unlink_table(&self, root: Frame, page: Page) -> Frame {
        // SAFETY: as above.
        Frame(unsafe { quell_bench_unlink_table(root.0, page.0) })
    }
    fn word(&self, frame: Frame, index: usize) -> u64 {
        // SAFETY: as above.
        unsafe { quell_bench_word(frame.0, index as u32) }
    }
    fn set_word(&self, frame: Frame, index: usize, value: u64) {
        // SAFETY: as above.
        unsafe { quell_bench_set_word(frame.0, index as u32, value) };
    }
    fn try_read(&self, address: u64) -> Option<u64> {
        let mut value = 0;
        // SAFETY: as above; the value outlives the call.
        unsafe { quell_bench_try_read(address, &raw mut value) }.then_some(value)
    }
    fn try_write(&self, address: u64, value: u64) -> bool {
        // SAFETY: as above.
        unsafe { quell_bench_try_write(address, value) }
    }
}

/// The suite that quell_conformance_new made.
static SUITE: AtomicPtr<Suite<'static, 'static, Machine>> = AtomicPtr::new(null_mut());

/// Makes the suite in memory that it keeps.
///
/// `memory` has `size` bytes: at least QUELL_CONFORMANCE_SIZE, plus 32 for each CPU, aligned to QUELL_LINE_ALIGN. This
/// function exists only in a library with the feature "conformance".
///
/// Refuses memory that is NULL, not aligned or too small, and an engine that wasn't made.
///
/// Context: once, before quell_conformance_run.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_conformance_new(
    engine: *mut quell_engine,
    memory: *mut c_void,
    size: usize,
) -> quell_status {
    type MachineSuite = Suite<'static, 'static, Machine>;
    answer(|| {
        // SAFETY: C vouches for its memory.
        let engine = unsafe { made(engine) }.map(EngineCell::engine)?;
        let place: *mut MachineSuite = memory.cast();
        examine(memory.cast::<Line>())?;
        const { assert!(align_of::<MachineSuite>() <= align_of::<Line>()) };
        // SAFETY: the bench has no conditions.
        let cpus = unsafe { quell_bench_cpus() } as usize;
        if size < QUELL_CONFORMANCE_SIZE + 32 * cpus {
            return Err(quell_status::Range);
        }
        let used = size_of::<MachineSuite>();
        #[cfg(target_os = "none")]
        HEAP.take_over(memory.wrapping_byte_add(used), size - used);
        #[cfg(not(target_os = "none"))]
        let _ = used;
        // SAFETY: C gives the memory to the suite, which fits.
        unsafe { place.write(Suite::new(engine)) };
        SUITE.store(place, Ordering::Release);
        Ok(())
    })
}

const _: () = assert!(size_of::<Suite<'static, 'static, Machine>>() <= QUELL_CONFORMANCE_SIZE / 2);

/// Memory that is aligned to a cache line.
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "only its alignment counts")] [u8; 64]);

/// Runs each check once on this CPU.
///
/// All CPUs of the suite call it at the same time, and CPU 0 reports the results. The calling CPU is online, takes
/// interrupts, and runs `loaded`, or no space if `loaded` is NULL. On return it runs `loaded` again.
///
/// Refuses to run before quell_conformance_new, and refuses a `loaded` that isn't a space.
///
/// Context: interrupts on. Waits.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_conformance_run(loaded: *mut quell_space) -> quell_status {
    answer(|| {
        let suite = SUITE.load(Ordering::Acquire);
        if suite.is_null() {
            return Err(quell_status::NoEngine);
        }
        // SAFETY: quell_conformance_new has written it, and C vouches for the space.
        let (suite, loaded) = unsafe { (&*suite, space_if_any(loaded)?) };
        suite.run(loaded, |check| {
            let check = quell_check {
                name: check.name.as_ptr().cast(),
                name_length: check.name.len(),
                failures: check.failures,
                saw: check.saw.as_ptr().cast(),
                saw_length: check.saw.len(),
            };
            // SAFETY: the check outlives the call.
            unsafe { quell_bench_report(&raw const check) };
        });
        Ok(())
    })
}

/// An allocator for the suite's lists, in the memory behind the suite. We never free, because the lists are small.
#[cfg(target_os = "none")]
mod heap {
    use core::alloc::{GlobalAlloc, Layout};
    use core::ffi::c_void;
    use core::ptr::null_mut;
    use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst};

    pub(super) struct Heap {
        start: AtomicPtr<c_void>,
        size: AtomicUsize,
        used: AtomicUsize,
    }

    impl Heap {
        pub(super) const fn empty() -> Self {
            Heap {
                start: AtomicPtr::new(null_mut()),
                size: AtomicUsize::new(0),
                used: AtomicUsize::new(0),
            }
        }

        pub(super) fn take_over(&self, start: *mut c_void, size: usize) {
            self.start.store(start, SeqCst);
            self.used.store(0, SeqCst);
            self.size.store(size, SeqCst);
        }
    }

    // SAFETY: each allocation gets bytes of the suite's memory that no other one got.
    unsafe impl GlobalAlloc for Heap {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            let start = self.start.load(SeqCst);
            let mut used = self.used.load(SeqCst);
            loop {
                let padding = (start.addr() + used).wrapping_neg() & (layout.align() - 1);
                let end = used + padding + layout.size();
                if end > self.size.load(SeqCst) {
                    return null_mut();
                }
                match self.used.compare_exchange(used, end, SeqCst, SeqCst) {
                    Ok(_) => return start.wrapping_byte_add(used + padding).cast(),
                    Err(other) => used = other,
                }
            }
        }
        unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
    }
}

#[cfg(target_os = "none")]
#[global_allocator]
static HEAP: heap::Heap = heap::Heap::empty();

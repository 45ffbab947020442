//! Physical memory: the kernel's heap, frames that are never freed, and the rest.
//!
//! The direct map covers all memory, so a frame's bytes are at [`pointer`](crate::direct_map::pointer). Only the
//! largest range that the boot loader reports is used; the rest is less than a megabyte on the supported machines.
//!
//! # Open memory
//!
//! The image and the heap hold Rust objects. Everything behind the heap is *open*: its frames become page tables, the
//! program's pages and the manager's, and walkers, programs and other CPUs store there at any time. So open memory
//! contains no Rust object but atomics, and Rust code accesses it in two ways only: as atomic words ([`words`]), or by
//! instructions that are opaque to the compiler ([`read`], [`write`], [`copy`]). Both check that a frame is open. So a
//! function that stores to any given frame can be safe: no frame contains an object.
//!
//! The check does not cover *meaning*: a store to a page table may let user mode into memory that is not open. So only
//! [`crate::tables`] writes entries, and checks their targets, and the manager, which owns the memory that it maps.

use crate::direct_map::pointer;
use crate::sync::Lock;
use buddy_system_allocator::Heap;
use core::alloc::{GlobalAlloc, Layout};
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use quell::{Extent, Frame};
use quell_zero::Strategy;

/// The kernel's heap: a buddy allocator behind this kernel's lock.
struct KernelHeap(Lock<Heap<32>>);

#[global_allocator]
static HEAP: KernelHeap = KernelHeap(Lock::new(Heap::new()));

// SAFETY: the buddy allocator hands out disjoint blocks of the memory from `init`, which nothing else uses, with the
// requested size and alignment.
unsafe impl GlobalAlloc for KernelHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0
            .lock()
            .alloc(layout)
            .map_or(core::ptr::null_mut(), NonNull::as_ptr)
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if let Some(pointer) = NonNull::new(pointer) {
            // SAFETY: the caller returns a block from `alloc`.
            unsafe { self.0.lock().dealloc(pointer, layout) }
        }
    }
}

/// Physical addresses not yet given away.
static FREE: Lock<Range<u64>> = Lock::new(0..0);
static TOTAL: AtomicU64 = AtomicU64::new(0);
/// Open memory, from its first address to its end: the range of [`init`], and the kernel's own tables.
static OPEN: [[AtomicU64; 2]; 2] = [const { [const { AtomicU64::new(0) }; 2] }; 2];

/// The most memory the heap takes.
const HEAP_MAX: u64 = 64 << 20;

/// Takes over `range` of physical memory.
///
/// # Safety
/// The direct map covers the range, and nothing else uses it. Called once.
pub unsafe fn init(range: Range<u64>) {
    let start = range.start.next_multiple_of(4096);
    let end = range.end & !4095;
    TOTAL.store(end - start, Relaxed);
    let heap = (((end - start) / 4).min(HEAP_MAX)) & !4095;
    // SAFETY: the caller gives the range away, and its first part becomes the heap.
    unsafe {
        HEAP.0
            .lock()
            .init(pointer::<u8>(start) as usize, heap as usize)
    };
    // SAFETY: the rest of it, to which there is no reference.
    unsafe { open(0, start + heap..end) };
    *FREE.lock() = start + heap..end;
}

/// Opens memory: the part `which` of [`OPEN`].
///
/// # Safety
/// The direct map covers the range, which never contains a Rust object other than atomics.
unsafe fn open(which: usize, range: Range<u64>) {
    OPEN[which][0].store(range.start, Relaxed);
    OPEN[which][1].store(range.end, Relaxed);
}

/// Opens the memory of the kernel's own page tables, which were made before there were frames to take.
///
/// # Safety
/// As [`init`], but that the walkers use it.
pub unsafe fn open_tables(range: Range<u64>) {
    // SAFETY: the caller's claim.
    unsafe { open(1, range) };
}

/// Where `frames` frames from `first` on are.
///
/// # Panics
/// If not all of them are open memory.
#[inline]
fn opened(first: Frame, frames: u64) -> *mut u8 {
    let start = first.address();
    let end = start.saturating_add(frames.saturating_mul(4096));
    let inside =
        |[from, to]: &[AtomicU64; 2]| from.load(Relaxed) <= start && end <= to.load(Relaxed);
    assert!(
        OPEN.iter().any(inside),
        "{start:#x}..{end:#x} is not open memory"
    );
    pointer(start)
}

/// The words of a frame.
///
/// # Panics
/// If it is not open memory.
#[inline]
pub fn words(frame: Frame) -> &'static [AtomicU64; 512] {
    // SAFETY: open memory is always mapped, a frame is aligned, and only atomics are there.
    unsafe { &*opened(frame, 1).cast() }
}

/// Reads bytes of a frame from `offset` on. A store there meanwhile may be read in part.
///
/// # Panics
/// If the frame is not open memory, or the bytes are not inside it.
pub fn read(frame: Frame, offset: usize, into: &mut [u8]) {
    assert!(
        offset <= 4096 && into.len() <= 4096 - offset,
        "beyond a frame"
    );
    let from = opened(frame, 1).wrapping_add(offset);
    // SAFETY: inside the frame, and inside the caller's slice, which no other code uses.
    unsafe { crate::arch::cpu::copy(from, into.as_mut_ptr(), into.len()) };
}

/// Writes bytes of a frame from `offset` on.
///
/// # Panics
/// If the frame is not open memory, or the bytes are not inside it.
pub fn write(frame: Frame, offset: usize, from: &[u8]) {
    assert!(
        offset <= 4096 && from.len() <= 4096 - offset,
        "beyond a frame"
    );
    let to = opened(frame, 1).wrapping_add(offset);
    // SAFETY: inside the caller's slice, and inside the frame, which contains no object.
    unsafe { crate::arch::cpu::copy(from.as_ptr(), to, from.len()) };
}

/// Copies adjacent frames. If the two ranges overlap, the second's content is unspecified afterwards.
///
/// # Panics
/// If not all of them are open memory.
pub fn copy(from: Frame, to: Frame, frames: u64) {
    let (from, to) = (opened(from, frames), opened(to, frames));
    // SAFETY: inside open memory, which contains no object.
    unsafe { crate::arch::cpu::copy(from, to, (frames * 4096) as usize) };
}

/// Zeroes an extent with `strategy`, which must not use vector registers: a user program's are not
/// saved in this kernel.
///
/// # Panics
/// If not all of it is open memory.
pub fn zero(extent: Extent, strategy: Strategy) {
    let start = opened(extent.first, extent.frames);
    // SAFETY: inside open memory, which contains no object; strategies come from the processor's features.
    unsafe { quell_arch::zero::zero(start, extent.bytes() as usize, strategy) };
}

/// Bytes of memory that the kernel was given.
pub fn total() -> u64 {
    TOTAL.load(Relaxed)
}

/// Takes one zeroed frame for ever.
///
/// # Panics
/// If there is no memory left.
pub fn take_frame() -> Frame {
    take_frames(1).first
}

/// Takes zeroed frames in a row for ever.
///
/// # Panics
/// If there is no memory left.
pub fn take_frames(frames: u64) -> Extent {
    let mut free = FREE.lock();
    assert!(free.start + frames * 4096 <= free.end, "out of memory");
    let first = Frame::containing(free.start);
    free.start += frames * 4096;
    drop(free);
    let extent = Extent { first, frames };
    // SAFETY: the frames were free, so nothing else has them, and the direct map covers them.
    unsafe { pointer::<u8>(first.address()).write_bytes(0, extent.bytes() as usize) };
    extent
}

/// Takes `bytes` of contiguous memory for ever, aligned to 2 MB; not zeroed.
pub fn take_extent(bytes: u64) -> Option<Extent> {
    let mut free = FREE.lock();
    let start = free.start.next_multiple_of(2 << 20);
    let end = start.checked_add(bytes.next_multiple_of(4096))?;
    if end > free.end {
        return None;
    }
    free.start = end;
    Some(Extent {
        first: Frame::containing(start),
        frames: (end - start) / 4096,
    })
}

/// How many bytes [`take_extent`] could still give.
pub fn left() -> u64 {
    let free = FREE.lock();
    free.end
        .saturating_sub(free.start.next_multiple_of(2 << 20))
}

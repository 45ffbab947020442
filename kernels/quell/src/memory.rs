//! Physical memory: the kernel's heap, frames that are never freed, and the rest.
//!
//! The direct map covers all memory, so a frame's bytes are at [`pointer`]. We use only the
//! largest range that the boot loader reports. The rest is less than a megabyte on the supported machines.
//!
//! # Open memory
//!
//! The image and the heap contain Rust objects. Everything behind the heap is *open*: its frames become page tables,
//! the program's pages and the manager's, and walkers, programs and other CPUs store there at any time. So open memory
//! contains no Rust objects except atomics, and Rust code may access it in only two ways: as atomic words ([`words`]),
//! or by instructions that are opaque to the compiler ([`read`], [`write`], [`copy`]). Both check that a frame is open.
//! So a function that stores to any given frame can be safe, because no frame contains an object.
//!
//! The check doesn't cover *meaning*. For example, a store to a page table may give user mode access to memory that
//! isn't open. So only two parts write entries: [`crate::tables`], which checks their targets, and the manager, which
//! owns the memory that it maps.

use crate::arch::DIRECT_MAP;
use crate::sync::Lock;
use buddy_system_allocator::Heap;
use core::alloc::{GlobalAlloc, Layout};
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use quell::{Extent, Frame};
use quell_zero::Strategy;

/// Returns the address of the byte at a physical address in the direct map.
#[inline]
pub fn pointer<T>(physical: u64) -> *mut T {
    (DIRECT_MAP + physical) as *mut T
}

/// Returns the physical address of something in the direct map, including the kernel's image.
#[inline]
pub fn physical<T>(pointer: *const T) -> u64 {
    pointer as u64 - DIRECT_MAP
}

/// The kernel's heap, which is a buddy allocator behind this kernel's lock.
struct KernelHeap(Lock<Heap<32>>);

#[global_allocator]
static HEAP: KernelHeap = KernelHeap(Lock::new(Heap::new()));

// SAFETY: the buddy allocator returns disjoint blocks of the memory from `init`, which nothing else uses, with the
// requested size and alignment.
unsafe impl GlobalAlloc for KernelHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.lock().alloc(layout).map_or(core::ptr::null_mut(), NonNull::as_ptr)
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if let Some(pointer) = NonNull::new(pointer) {
            // SAFETY: the caller returns a block from `alloc`.
            unsafe { self.0.lock().dealloc(pointer, layout) }
        }
    }
}

/// Physical addresses that nobody has taken yet.
static FREE: Lock<Range<u64>> = Lock::new(0..0);
static TOTAL: AtomicU64 = AtomicU64::new(0);
/// Open memory, from its first address to its end: the range of [`init`], and the kernel's own tables.
static OPEN: [[AtomicU64; 2]; 2] = [const { [const { AtomicU64::new(0) }; 2] }; 2];

/// The maximum size of the heap.
const HEAP_MAX: u64 = 64 << 20;

/// Takes over `range` of physical memory.
///
/// # Safety
/// The direct map covers the range, and nothing else uses it. Call this once.
pub unsafe fn init(range: Range<u64>) {
    let start = range.start.next_multiple_of(4096);
    let end = range.end & !4095;
    TOTAL.store(end - start, Relaxed);
    let heap = (((end - start) / 4).min(HEAP_MAX)) & !4095;
    // SAFETY: the caller gives us the range, and its first part becomes the heap.
    unsafe { HEAP.0.lock().init(pointer::<u8>(start) as usize, heap as usize) };
    // SAFETY: this is the rest of the range, and nothing refers to it.
    unsafe { open(0, start + heap..end) };
    *FREE.lock() = start + heap..end;
}

/// Opens memory, as part `which` of [`OPEN`].
///
/// # Safety
/// The direct map covers the range, which never contains a Rust object other than atomics.
unsafe fn open(which: usize, range: Range<u64>) {
    OPEN[which][0].store(range.start, Relaxed);
    OPEN[which][1].store(range.end, Relaxed);
}

/// Opens the memory of the kernel's own page tables. We made those before there were frames to take.
///
/// # Safety
/// As for [`init`], except that the walkers use the range.
pub unsafe fn open_tables(range: Range<u64>) {
    // SAFETY: as the caller promises.
    unsafe { open(1, range) };
}

/// Returns the address of `frames` frames from `first` on.
///
/// # Panics
/// If not all of the frames are open memory.
#[inline]
fn opened(first: Frame, frames: u64) -> *mut u8 {
    let start = first.address();
    let end = start.saturating_add(frames.saturating_mul(4096));
    let inside =
        |[from, to]: &[AtomicU64; 2]| from.load(Relaxed) <= start && end <= to.load(Relaxed);
    assert!(OPEN.iter().any(inside), "{start:#x}..{end:#x} is not open memory");
    pointer(start)
}

/// Returns the words of a frame.
///
/// # Panics
/// If the frame isn't open memory.
#[inline]
pub fn words(frame: Frame) -> &'static [AtomicU64; 512] {
    // SAFETY: open memory is always mapped, a frame is aligned, and it contains only atomics.
    unsafe { &*opened(frame, 1).cast() }
}

/// Reads bytes of a frame from `offset` on. We may read only part of a concurrent store.
///
/// # Panics
/// If the frame isn't open memory, or the bytes aren't inside it.
pub fn read(frame: Frame, offset: usize, into: &mut [u8]) {
    assert!(offset <= 4096 && into.len() <= 4096 - offset, "beyond a frame");
    let from = opened(frame, 1).wrapping_add(offset);
    // SAFETY: the bytes are inside the frame, and inside the caller's slice, which no other code uses.
    unsafe { crate::arch::cpu::copy(from, into.as_mut_ptr(), into.len()) };
}

/// Writes bytes of a frame from `offset` on.
///
/// # Panics
/// If the frame isn't open memory, or the bytes aren't inside it.
pub fn write(frame: Frame, offset: usize, from: &[u8]) {
    assert!(offset <= 4096 && from.len() <= 4096 - offset, "beyond a frame");
    let to = opened(frame, 1).wrapping_add(offset);
    // SAFETY: the bytes are inside the caller's slice, and inside the frame, which contains no object.
    unsafe { crate::arch::cpu::copy(from.as_ptr(), to, from.len()) };
}

/// Copies adjacent frames. If the two ranges overlap, the second range's content is unspecified afterwards.
///
/// # Panics
/// If not all of the frames are open memory.
pub fn copy(from: Frame, to: Frame, frames: u64) {
    let (from, to) = (opened(from, frames), opened(to, frames));
    // SAFETY: both ranges are inside open memory, which contains no object.
    unsafe { crate::arch::cpu::copy(from, to, (frames * 4096) as usize) };
}

/// Zeroes an extent with `strategy`. It must not use vector registers: this kernel doesn't save a user program's.
///
/// # Panics
/// If not all of the extent is open memory.
pub fn zero(extent: Extent, strategy: Strategy) {
    let start = opened(extent.first, extent.frames);
    // SAFETY: the extent is inside open memory, which contains no object. Strategies come from the processor's
    // features.
    unsafe { quell_arch::zero::zero(start, extent.bytes() as usize, strategy) };
}

/// Returns the bytes of memory that the kernel received.
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
    // SAFETY: the frames were free, so nothing else uses them, and the direct map covers them.
    unsafe { pointer::<u8>(first.address()).write_bytes(0, extent.bytes() as usize) };
    extent
}

/// Takes `bytes` of contiguous memory for ever, aligned to 2 MB. It isn't zeroed.
pub fn take_extent(bytes: u64) -> Option<Extent> {
    let mut free = FREE.lock();
    let start = free.start.next_multiple_of(2 << 20);
    let end = start.checked_add(bytes.next_multiple_of(4096))?;
    if end > free.end {
        return None;
    }
    free.start = end;
    Some(Extent { first: Frame::containing(start), frames: (end - start) / 4096 })
}

/// Returns the bytes that [`take_extent`] could still give.
pub fn left() -> u64 {
    let free = FREE.lock();
    free.end.saturating_sub(free.start.next_multiple_of(2 << 20))
}

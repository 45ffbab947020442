//! Physical memory: the kernel's heap, frames that are taken once and kept, and the rest.
//!
//! All memory is reachable through the direct map, so a frame's bytes are at [`pointer`]. The
//! largest range the boot loader reports is used, the rest ignored: on the machines this kernel
//! runs on that loses less than a megabyte.

use crate::sync::Lock;
use buddy_system_allocator::Heap;
use core::alloc::{GlobalAlloc, Layout};
use core::ops::Range;
use core::ptr::NonNull;
use quell::{Extent, Frame};

/// The kernel's heap: a buddy allocator behind this kernel's lock.
struct KernelHeap(Lock<Heap<32>>);

#[global_allocator]
static HEAP: KernelHeap = KernelHeap(Lock::new(Heap::new()));

// SAFETY: the buddy allocator hands out disjoint blocks of the memory it was given in `init`, which
// nothing else uses, with the size and alignment asked for.
unsafe impl GlobalAlloc for KernelHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0
            .lock()
            .alloc(layout)
            .map_or(core::ptr::null_mut(), NonNull::as_ptr)
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if let Some(pointer) = NonNull::new(pointer) {
            // SAFETY: the caller passes back what `alloc` gave it.
            unsafe { self.0.lock().dealloc(pointer, layout) }
        }
    }
}

/// Physical addresses not yet given away.
static FREE: Lock<Range<u64>> = Lock::new(0..0);
static TOTAL: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);

/// The most memory the heap takes.
const HEAP_MAX: u64 = 64 << 20;

/// Where the byte at a physical address is in the direct map.
#[inline]
pub fn pointer<T>(physical: u64) -> *mut T {
    (crate::arch::DIRECT_MAP + physical) as *mut T
}

/// The physical address of something in the direct map, the kernel's image included.
#[inline]
pub fn physical<T>(pointer: *const T) -> u64 {
    pointer as u64 - crate::arch::DIRECT_MAP
}

/// Takes over `range` of physical memory.
///
/// # Safety
/// The direct map covers the range, and nothing else uses it. Called once.
pub unsafe fn init(range: Range<u64>) {
    let start = range.start.next_multiple_of(4096);
    let end = range.end & !4095;
    TOTAL.store(end - start, core::sync::atomic::Ordering::Relaxed);
    let heap = (((end - start) / 4).min(HEAP_MAX)) & !4095;
    // SAFETY: the caller gives the range away, and the first part of it goes to the heap.
    unsafe {
        HEAP.0
            .lock()
            .init(pointer::<u8>(start) as usize, heap as usize)
    };
    *FREE.lock() = start + heap..end;
}

/// Bytes of memory that the kernel was given.
pub fn total() -> u64 {
    TOTAL.load(core::sync::atomic::Ordering::Relaxed)
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
    // SAFETY: the frames were free, so nobody else has them, and the direct map covers them.
    unsafe { pointer::<u8>(first.address()).write_bytes(0, extent.bytes() as usize) };
    extent
}

/// Takes `bytes` of contiguous memory for ever, aligned to 2 MB; not zeroed.
#[allow(dead_code)]
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
#[allow(dead_code)]
pub fn left() -> u64 {
    let free = FREE.lock();
    free.end
        .saturating_sub(free.start.next_multiple_of(2 << 20))
}

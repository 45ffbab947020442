//! Allocates the little memory that we need before a workload runs, and never frees it.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The bytes of the heap, which all CPUs share.
const BYTES: usize = 1 << 20;

struct Heap {
    memory: UnsafeCell<[u8; BYTES]>,
    used: AtomicUsize,
}

// SAFETY: we return every byte at most once.
unsafe impl Sync for Heap {}

#[global_allocator]
static HEAP: Heap = Heap { memory: UnsafeCell::new([0; BYTES]), used: AtomicUsize::new(0) };

// SAFETY: blocks are disjoint because `used` only grows, and they are inside the memory.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let base = self.memory.get() as usize;
        let mut block = core::ptr::null_mut();
        let _ = self
            .used
            .fetch_update(Relaxed, Relaxed, |used| {
                let start = (base + used).next_multiple_of(layout.align());
                let end = start + layout.size() - base;
                block = start as *mut u8;
                (end <= BYTES).then_some(end)
            })
            .inspect_err(|_| block = core::ptr::null_mut());
        block
    }
    unsafe fn dealloc(&self, _block: *mut u8, _layout: Layout) {}
}

//! Contains the code that both machines in software share: the clock and the adversary.
//!
//! | module or item | contents |
//! | --- | --- |
//! | [`fiber`] | CPUs as coroutines |
//! | [`LineAllocator`] | an allocator under which a run depends on its seed alone |
//! | [`heap`] | the heap of a search, whose bytes are part of its states |
//! | [`may_change`] | the addresses that a system call in progress may change |

pub mod fiber;
pub mod heap;

use crate::Call;
use std::alloc::{GlobalAlloc, Layout, System};

/// Returns whether a call that hasn't returned may change the content of a place.
///
/// `covers` returns whether a range, given as address and bytes, includes that place.
pub fn may_change(call: Call, covers: impl Fn(u64, u64) -> bool) -> bool {
    match call {
        Call::Unmap { address, bytes }
        | Call::Discard { address, bytes }
        | Call::Protect { address, bytes, .. }
        | Call::Map { address: Some(address), bytes, .. } => covers(address, bytes),
        Call::Remap { address, bytes, to } => {
            covers(address, bytes) || to.is_some_and(|to| covers(to, bytes))
        }
        // The file's pages may be mapped anywhere.
        Call::Write { .. } | Call::Truncate { .. } => true,
        _ => false,
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// The system's allocator, with each allocation on its own cache lines.
///
/// Two words share a modelled cache line if they share a line of the host. Within a type, the compiler decides that
/// once. Between two allocations the host's allocator would decide it, depending on its other content and on the
/// calling thread. Here no two allocations share a line, as if each came from a kernel's cache of aligned objects. So
/// the same run gives the same figures on every thread and every host.
///
/// During a search, the code under test gets memory from the search's own [`Heap`](heap::Heap) instead.
///
/// A program that runs models makes this its `#[global_allocator]`. Without it the contract is still checked, but times
/// may differ a little between runs. And a search of all schedules of programs over the memory manager can't detect
/// that two states are equal.
#[derive(Clone, Copy, Debug, Default)]
pub struct LineAllocator;

/// Rounds the layout up to whole lines. If the result would be too large, the allocation fails as it should.
fn lines(layout: Layout) -> Layout {
    layout.align_to(LINE).map_or(layout, |aligned| aligned.pad_to_align())
}

// SAFETY: each call is passed to `System`, whose contract this is, with a layout that depends on the caller's alone. So
// `dealloc` and `realloc` name the layout with which `alloc` was called. It is at least as large and at least as
// aligned as the caller's.
unsafe impl GlobalAlloc for LineAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(place) = heap::allocate(lines(layout)) {
            return place;
        }
        // SAFETY: `System` gets a layout that follows from the caller's; its size is not zero because the caller's is
        // not.
        unsafe { System.alloc(lines(layout)) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if let Some(place) = heap::allocate(lines(layout)) {
            return place;
        }
        // SAFETY: `System` gets a layout that follows from the caller's; its size is not zero because the caller's is
        // not.
        unsafe { System.alloc_zeroed(lines(layout)) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if heap::free(pointer, lines(layout)) {
            return;
        }
        // SAFETY: the place did not come from the heap, so it came from `System`, with this layout.
        unsafe { System.dealloc(pointer, lines(layout)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: LineAllocator = LineAllocator;

    #[test]
    fn no_two_allocations_share_a_line() {
        for size in [1, 8, 24, 63, 64, 65, 200] {
            let layout = Layout::from_size_align(size, 8).unwrap();
            // SAFETY: the layout has a size, and the pointers are freed with it.
            unsafe {
                let pointers = [(); 9].map(|()| LineAllocator.alloc(layout) as usize);
                for (index, &pointer) in pointers.iter().enumerate() {
                    assert_eq!(pointer % LINE, 0);
                    let end = (pointer + size - 1) / LINE;
                    let others = pointers.iter().skip(index + 1);
                    assert!(others.into_iter().all(|other| {
                        end < other / LINE || (other + size - 1) / LINE < pointer / LINE
                    }));
                }
                for pointer in pointers {
                    LineAllocator.dealloc(pointer as *mut u8, layout);
                }
            }
        }
    }
}

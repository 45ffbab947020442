//! The command's allocator: without memory it ends the command with an error instead of a signal.

use std::alloc::{GlobalAlloc, Layout};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use quell_vm::sim::LineAllocator;

/// Gives out memory as [`LineAllocator`] does, so that a run has the same figures on every thread.
pub struct Allocator;

/// Ends the process with code 1. Nothing is unwound: destructors may want memory, too.
#[cold]
fn exhausted(bytes: usize) -> ! {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Relaxed) {
        // Neither the formatting nor standard error allocates.
        let _ = writeln!(
            std::io::stderr(),
            "error: out of memory ({bytes} bytes more): take fewer CPUs, pages or threads, or raise the limit (`ulimit -v`)"
        );
    }
    std::process::exit(1)
}

fn checked(place: *mut u8, layout: Layout) -> *mut u8 {
    if place.is_null() {
        exhausted(layout.size());
    }
    place
}

// SAFETY: each call goes to `LineAllocator` with the caller's own arguments, and its result is returned unchanged.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for the caller.
        checked(unsafe { LineAllocator.alloc(layout) }, layout)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for the caller.
        checked(unsafe { LineAllocator.alloc_zeroed(layout) }, layout)
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: `place` came from `LineAllocator` with this layout.
        unsafe { LineAllocator.dealloc(place, layout) }
    }
}

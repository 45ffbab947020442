//! The command's allocator. If memory runs out, the command ends with an error instead of a signal.

use std::alloc::{GlobalAlloc, Layout};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use quell_vm::sim::LineAllocator;

/// Allocates with [`LineAllocator`], so that a run has the same figures on every thread.
pub struct Allocator;

#[cold]
fn exhausted(bytes: usize) -> ! {
    fail(format_args!(
        "error: out of memory ({bytes} bytes more): use fewer CPUs, pages or threads, or raise the limit (`ulimit -v`)"
    ))
}

/// Prints an error and ends the process with code 1. We don't unwind: destructors may allocate, too.
///
/// Allocates nothing and takes no lock: a thread that waits for memory may hold the lock of standard error or of the
/// process's exit.
pub fn fail(error: std::fmt::Arguments<'_>) -> ! {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if !IS_REPORTED.swap(true, Relaxed) {
        let mut text = [0; 300];
        let mut rest = &mut text[..];
        let _ = rest.write_fmt(error);
        let _ = rest.write_all(b"\n");
        let length = 300 - rest.len();
        end(&text[..length])
    }
    // Another thread prints the error and ends the process.
    loop {
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
}

#[cfg(unix)]
fn end(text: &[u8]) -> ! {
    let _ = rustix::io::write(rustix::stdio::stderr(), text);
    signal_hook::low_level::exit(1)
}

#[cfg(not(unix))]
fn end(text: &[u8]) -> ! {
    let _ = std::io::stderr().write_all(text);
    std::process::exit(1)
}

fn checked(place: *mut u8, layout: Layout) -> *mut u8 {
    if place.is_null() {
        exhausted(layout.size());
    }
    place
}

// SAFETY: each call forwards the caller's own arguments to `LineAllocator` and returns its result unchanged.
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

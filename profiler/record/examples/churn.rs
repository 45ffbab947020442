//! A program that shoots translations down, to be recorded: one thread uses memory all the time, so that its CPU holds
//! translations; the other gives a page back and takes it again, as often as it is told.
//!
//! `churn CALLS` runs that many `madvise(MADV_DONTNEED)`.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

const PAGE: usize = 4096;

/// The place from which the calls come; kept as a function so that it is found on stacks.
#[inline(never)]
fn give_back(page: *mut u8) {
    // SAFETY: the page is a private mapping of this program that nothing else refers to.
    unsafe {
        page.write_volatile(1);
        madvise(page.cast(), PAGE, Advice::LinuxDontNeed).expect("a page of ours is given back");
    }
    // Something stands behind the call, so that it is no jump.
    std::hint::black_box(page);
}

fn main() {
    let calls: usize = std::env::args()
        .nth(1)
        .and_then(|word| word.parse().ok())
        .unwrap_or(1000);
    // SAFETY: a new mapping, wherever the kernel puts it.
    let memory = unsafe {
        mmap_anonymous(
            null_mut(),
            2 * PAGE,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    };
    let memory = memory.expect("two pages are to be had").cast::<u8>();
    let over = AtomicBool::new(false);
    // SAFETY: within the mapping.
    let kept = unsafe { memory.add(PAGE) } as usize;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // SAFETY: this page belongs to this thread.
                unsafe { (kept as *mut u8).write_volatile(1) };
            }
        });
        for _ in 0..calls {
            give_back(memory);
        }
        over.store(true, Ordering::Relaxed);
    });
}

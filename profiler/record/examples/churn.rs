//! A program that causes shootdowns, for tests of the recorder.
//!
//! One thread accesses memory all the time, so that its CPU holds translations. The other gives a page back and touches
//! it again, as often as requested. `churn CALLS` makes that many calls of `madvise(MADV_DONTNEED)`.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

const PAGE: usize = 4096;

/// Makes one call. It's a function of its own, so that its name appears on stacks.
#[inline(never)]
fn give_back(page: *mut u8) {
    // SAFETY: the page is a private mapping of this program that nothing else refers to.
    unsafe {
        page.write_volatile(1);
        madvise(page.cast(), PAGE, Advice::LinuxDontNeed).expect("a page of ours is given back");
    }
    // Code after the call keeps the compiler from turning the call into a jump.
    std::hint::black_box(page);
}

fn main() {
    let calls: usize = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(1000);
    // SAFETY: a new mapping, wherever the kernel puts it.
    let memory = unsafe {
        mmap_anonymous(null_mut(), 2 * PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
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

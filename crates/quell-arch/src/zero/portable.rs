//! Ordinary stores, for every architecture.

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
use quell_zero::{Available, Caches, Strategy};

/// Ordinary stores alone.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn available() -> Available {
    Available::STORES
}

/// Not known without privilege.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn caches() -> Caches {
    Caches::default()
}

/// See [`super::zero`].
///
/// # Safety
///
/// As for [`super::zero`].
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub unsafe fn zero(start: *mut u8, bytes: usize, _: Strategy) {
    // SAFETY: passed on to the caller.
    unsafe { stores(start, bytes) }
}

/// Zeroes with stores of eight bytes, and of one at the ends.
///
/// The stores are volatile so that the compiler does not turn the loop into a call of `memset`,
/// which would be another strategy.
///
/// # Safety
///
/// `start..start + bytes` is valid for writes and not accessed by anybody else.
pub unsafe fn stores(start: *mut u8, bytes: usize) {
    let (head, body, tail) = super::split(start, bytes, 8);
    // SAFETY: all addresses lie within the run, and the words are aligned by `split`.
    unsafe {
        for at in 0..head {
            start.add(at).write_volatile(0);
        }
        let words: *mut u64 = start.add(head).cast();
        for at in 0..body / 8 {
            words.add(at).write_volatile(0);
        }
        let rest = start.add(head + body);
        for at in 0..tail {
            rest.add(at).write_volatile(0);
        }
    }
}

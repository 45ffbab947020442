//! The instructions behind [`quell_zero`]: one function for every [`Strategy`].
//!
//! [`available`] finds out which strategies the processor and the operating system offer, [`caches`]
//! how large the caches are, and [`zero`] zeroes memory with one of them. All three work in user
//! mode and in a kernel, without an operating system underneath and without `std`.
//!
//! # Vector registers
//!
//! The non-temporal stores of 128 bits and more on x86-64 overwrite vector registers: one, and with
//! 256 bits and more the upper parts of sixteen. The compiler is told, so user programs need not
//! care, whatever they were compiled for. A kernel that runs without saving the user's vector state must not use
//! them, although the processor has them: it takes
//! [`Available::without_vectors`](quell_zero::Available::without_vectors), which leaves it
//! `movnti` and `clzero`. On AArch64 no strategy touches a vector register.
//!
//! # Interruption and ordering
//!
//! Every strategy may be interrupted anywhere and goes on where it was. Non-temporal stores and
//! `clzero` are weakly ordered: [`zero`] ends with an `sfence`, so that a release store which
//! follows it publishes the zeros. If the thread is moved to another CPU in the middle, the stores
//! it left behind are ordered by the locked instructions of any context switch.
//!
//! # Alignment and length
//!
//! Any. What does not fill an aligned block of the strategy at either end is zeroed by plain stores.

use quell_zero::{Available, Caches, Strategy};

#[cfg(target_arch = "aarch64")]
pub(crate) mod aarch64;
mod portable;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as native;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
use portable as native;
#[cfg(target_arch = "x86_64")]
use x86_64 as native;

/// The strategies that this processor offers, those with vector registers included if the operating
/// system has enabled them.
///
/// Asks the processor every time, which may trap to a hypervisor: call it once.
pub fn available() -> Available {
    native::available()
}

/// The sizes of the data caches, where the processor tells without privilege: on x86-64.
///
/// Under a hypervisor the last-level cache may be larger than the share a guest has of it.
pub fn caches() -> Caches {
    native::caches()
}

/// Zeroes `bytes` bytes from `start` with `strategy`.
///
/// A strategy of another architecture falls back to [`Strategy::Stores`].
///
/// # Safety
///
/// * `start..start + bytes` is valid for writes, is ordinary cacheable memory, and nobody else
///   accesses it during the call.
/// * `strategy` is a member of [`available`] on this CPU.
/// * If [`Strategy::uses_vectors`], the vector registers may be overwritten: always true in a user
///   program, true in a kernel only between saving and restoring the user's vector state.
#[inline]
pub unsafe fn zero(start: *mut u8, bytes: usize, strategy: Strategy) {
    // SAFETY: passed on to the caller.
    unsafe { native::zero(start, bytes, strategy) }
}

/// Splits a run into what precedes the first block of `block` bytes, the whole aligned blocks, and
/// what follows the last: three lengths. `block` is a power of two.
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code)
)]
fn split(start: *mut u8, bytes: usize, block: usize) -> (usize, usize, usize) {
    let head = start.addr().wrapping_neg() & (block - 1);
    if head > bytes {
        return (bytes, 0, 0);
    }
    let body = (bytes - head) & !(block - 1);
    (head, body, bytes - head - body)
}

/// Zeroes the whole aligned blocks of a run with `body`, which gets the first block and a number of
/// bytes that is a multiple of `block` and not 0, and the two ends with plain stores.
///
/// # Safety
///
/// As for [`zero`]; `body` zeroes exactly what it is given.
#[inline]
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code)
)]
unsafe fn in_blocks(start: *mut u8, bytes: usize, block: usize, body: impl FnOnce(*mut u8, usize)) {
    let (head, whole, tail) = split(start, bytes, block);
    // SAFETY: the three parts lie side by side within `start..start + bytes`.
    unsafe {
        portable::stores(start, head);
        if whole > 0 {
            body(start.add(head), whole);
        }
        portable::stores(start.add(head + whole), tail);
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn split_covers_the_run_and_aligns_the_middle() {
        for block in [1usize, 8, 64, 256] {
            for address in 0..2 * block + 2 {
                for bytes in 0..4 * block + 3 {
                    let start = core::ptr::without_provenance_mut(address + 4096);
                    let (head, body, tail) = split(start, bytes, block);
                    assert_eq!(head + body + tail, bytes);
                    assert!(head < block && tail < block && body % block == 0);
                    assert!(body == 0 || (address + head) % block == 0);
                }
            }
        }
    }
}

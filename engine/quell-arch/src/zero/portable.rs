//! Ordinary stores, for every architecture, and for the two ends of a run with other strategies.

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
use quell_zero::{Caches, Strategy, StrategySet};

/// Ordinary stores: this crate has no instructions for this architecture.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub const PAGE: Strategy = Strategy::Stores;

/// Returns ordinary stores alone.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn available() -> StrategySet {
    StrategySet::STORES
}

/// Returns no sizes: reading them needs privilege.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn caches() -> Caches {
    Caches::default()
}

/// Implements [`super::zero`].
///
/// # Safety
///
/// As for [`super::zero`].
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub unsafe fn zero(start: *mut u8, bytes: usize, _: Strategy) {
    // SAFETY: as the caller promises.
    unsafe { stores(start, bytes) }
}

/// Zeroes memory with stores of eight bytes, and of one byte at the ends.
///
/// We make the stores volatile so that the compiler doesn't turn the loop into a call of `memset`, which would be
/// another strategy.
///
/// # Safety
///
/// `start..start + bytes` is valid for writes and not accessed by other code.
pub unsafe fn stores(start: *mut u8, bytes: usize) {
    let (head, body, tail) = split(start, bytes, 8);
    // SAFETY: all addresses are within the run, and `split` aligns the words.
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

/// Splits a run into three lengths: up to the first aligned block of `block` bytes, the whole blocks, and the rest.
/// `block` is a power of two.
fn split(start: *mut u8, bytes: usize, block: usize) -> (usize, usize, usize) {
    let head = start.addr().wrapping_neg() & (block - 1);
    if head > bytes {
        return (bytes, 0, 0);
    }
    let body = (bytes - head) & !(block - 1);
    (head, body, bytes - head - body)
}

/// Zeroes the whole aligned blocks of a run with `body`, and its two ends with plain stores. `body` gets the first
/// block and a number of bytes that is a multiple of `block` and not 0.
///
/// # Safety
///
/// As for [`super::zero`]; `body` zeroes exactly the bytes that it gets.
#[inline]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
pub(super) unsafe fn in_blocks(
    start: *mut u8,
    bytes: usize,
    block: usize,
    body: impl FnOnce(*mut u8, usize),
) {
    let (head, whole, tail) = split(start, bytes, block);
    // SAFETY: the three parts are adjacent, within `start..start + bytes`.
    unsafe {
        stores(start, head);
        if whole > 0 {
            body(start.add(head), whole);
        }
        stores(start.add(head + whole), tail);
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

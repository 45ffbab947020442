//! AArch64: `dc zva`, and pairs of general registers with and without the non-temporal hint.
//!
//! Zeroing with either is ordered like any other store to normal memory. A later release store publishes it, so we need
//! no fence here.

use super::portable::{self, in_blocks};
use crate::aarch64::features::{Features, Registers, registers};
use quell_zero::{Caches, Strategy, StrategySet};

/// The bytes that one turn of the `stnp` loop writes.
const LINE: usize = 64;

/// `dc zva`, with which Linux clears a page on every processor.
pub const PAGE: Strategy = Strategy::DcZva;

/// Returns the bytes that one `dc zva` zeroes; 0 if it's forbidden here.
fn zva_bytes() -> usize {
    // SAFETY: the register may be read at every exception level.
    let dczid = unsafe { registers::dczid() };
    Features::decode(Registers { dczid, ..Registers::default() }).zero_block as usize
}

/// Implements [`super::available`].
pub fn available() -> StrategySet {
    let set = StrategySet::STORES.with(Strategy::NonTemporal128);
    if zva_bytes() > 0 { set.with(Strategy::DcZva) } else { set }
}

/// Returns no sizes: reading them needs privilege.
pub fn caches() -> Caches {
    Caches::default()
}

blocks! {
    BLOCKS;

    /// Stores pairs of zero registers from `at` to `end`, with the hint that the memory isn't used again soon.
    ///
    /// # Safety
    /// As for [`super::zero`]. `at` and `end` are aligned to [`LINE`], and `end` is beyond `at`.
    unsafe fn stnp(at: *mut u8, end: *mut u8) {
        user:
            "2:",
            "stnp xzr, xzr, [x0]",
            "stnp xzr, xzr, [x0, #16]",
            "stnp xzr, xzr, [x0, #32]",
            "stnp xzr, xzr, [x0, #48]",
            "add x0, x0, #64",
            "cmp x0, x1",
            "b.ne 2b";
        in("x1") end,
        inout("x0") at,
        options(nostack)
    }

    /// Executes `dc zva` for each block from `at` to `end`.
    ///
    /// # Safety
    /// As for [`super::zero`]. `at` and `end` are aligned to `block`, which is [`zva_bytes`], and `end` is beyond `at`.
    unsafe fn dc_zva(at: *mut u8, end: *mut u8, block: usize) {
        user: "2:", "dc zva, x0", "add x0, x0, x2", "cmp x0, x1", "b.ne 2b";
        in("x1") end,
        in("x2") block,
        inout("x0") at,
        options(nostack)
    }
}

/// Implements [`super::zero`].
///
/// # Safety
///
/// As for [`super::zero`].
#[inline]
pub unsafe fn zero(start: *mut u8, bytes: usize, strategy: Strategy) {
    // SAFETY: the caller owns the run and vouches for the strategy; `in_blocks` passes only whole aligned blocks.
    unsafe {
        match strategy {
            Strategy::DcZva => {
                let block = zva_bytes();
                in_blocks(start, bytes, block, |at, n| dc_zva(at, at.add(n), block));
            }
            Strategy::NonTemporal128 => in_blocks(start, bytes, LINE, |at, n| stnp(at, at.add(n))),
            _ => portable::stores(start, bytes),
        }
    }
}

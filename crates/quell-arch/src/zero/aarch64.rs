//! AArch64: `dc zva`, and pairs of general registers with and without the non-temporal hint.
//!
//! Zeroing with either is ordered like any other store to normal memory: a release store that
//! follows publishes it, so nothing fences here.

use super::{in_blocks, portable};
use crate::aarch64::features::{Features, Registers};
use core::arch::asm;
use quell_zero::{Available, Caches, Strategy};

/// Bytes that one turn of the `stnp` loop writes.
const LINE: usize = 64;

/// Bytes that one `dc zva` zeroes; 0 if it is forbidden here.
fn zva_bytes() -> usize {
    let dczid: u64;
    // SAFETY: DCZID_EL0 may be read at every exception level; reading it has no effect.
    unsafe {
        asm!("mrs {}, dczid_el0", out(reg) dczid, options(nomem, nostack, preserves_flags));
    }
    let registers = Registers {
        dczid,
        ..Registers::default()
    };
    Features::decode(registers).zero_block as usize
}

/// See [`super::available`].
pub fn available() -> Available {
    let set = Available::STORES.with(Strategy::NonTemporal128);
    if zva_bytes() > 0 {
        set.with(Strategy::DcZva)
    } else {
        set
    }
}

/// Not known without privilege.
pub fn caches() -> Caches {
    Caches::default()
}

/// Pairs of registers, with the hint that the memory is not used again soon.
///
/// # Safety
///
/// As for [`super::zero`]; `start` is aligned to [`LINE`] and `bytes` is a multiple of it, not 0.
unsafe fn stnp(start: *mut u8, bytes: usize) {
    // SAFETY: writes `bytes` bytes from `start` and nothing else.
    unsafe {
        asm!(
            "2:",
            "stnp xzr, xzr, [{at}]",
            "stnp xzr, xzr, [{at}, #16]",
            "stnp xzr, xzr, [{at}, #32]",
            "stnp xzr, xzr, [{at}, #48]",
            "add {at}, {at}, #64",
            "cmp {at}, {end}",
            "b.ne 2b",
            at = inout(reg) start => _,
            end = in(reg) start.add(bytes),
            options(nostack),
        );
    }
}

/// `dc zva` for each block.
///
/// # Safety
///
/// As for [`super::zero`]; `start` is aligned to `block`, which is [`zva_bytes`], and `bytes` is a
/// multiple of it, not 0.
unsafe fn dc_zva(start: *mut u8, bytes: usize, block: usize) {
    // SAFETY: each turn zeroes the block at `at`, from `start` up to `start + bytes`.
    unsafe {
        asm!(
            "2:",
            "dc zva, {at}",
            "add {at}, {at}, {block}",
            "cmp {at}, {end}",
            "b.ne 2b",
            at = inout(reg) start => _,
            block = in(reg) block,
            end = in(reg) start.add(bytes),
            options(nostack),
        );
    }
}

/// See [`super::zero`].
///
/// # Safety
///
/// As for [`super::zero`].
#[inline]
pub unsafe fn zero(start: *mut u8, bytes: usize, strategy: Strategy) {
    // SAFETY: the caller owns the run and vouches for the strategy; `in_blocks` hands out only
    // whole aligned blocks.
    unsafe {
        match strategy {
            Strategy::DcZva => {
                let block = zva_bytes();
                in_blocks(start, bytes, block, |at, n| dc_zva(at, n, block));
            }
            Strategy::NonTemporal128 => in_blocks(start, bytes, LINE, |at, n| stnp(at, n)),
            _ => portable::stores(start, bytes),
        }
    }
}

//! Zeroes memory with the instructions that [`quell_zero`] chooses among.
//!
//! [`available`] returns the strategies that the processor and the operating system support. [`caches`] returns the
//! sizes of the caches, and [`zero`] zeroes memory with one strategy. They work in user mode and in a kernel, without
//! an operating system and without `std`.
//!
//! # Vector registers
//!
//! On x86-64, non-temporal stores of 128 bits and more overwrite vector registers. They're declared to the compiler, so
//! user programs need no precaution.
//!
//! A kernel that doesn't save the user's vector state must avoid these strategies. It chooses from
//! [`StrategySet::without_vectors`](quell_zero::StrategySet::without_vectors), which includes `movnti` and `clzero`,
//! for example. On AArch64 no strategy uses a vector register.
//!
//! # Interruption and ordering
//!
//! Any strategy may be interrupted and continues later. Non-temporal stores and `clzero` are weakly ordered, so
//! [`zero`] ends with an `sfence`; a later release store then publishes the zeros. If the thread moves to another CPU
//! in the middle, the locked instructions of the context switch order its earlier stores.
//!
//! # Alignment and length
//!
//! Any alignment and length is allowed. Plain stores zero the ends that don't fill an aligned block of the strategy.

use quell_zero::{Caches, Strategy, StrategySet};

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

/// Returns the strategies that this processor offers.
///
/// It includes strategies that use vector registers if the operating system has enabled these registers.
///
/// Each call queries the processor, which may trap to a hypervisor, so call it once and keep the result. The result is
/// valid for this CPU. On CPUs of several kinds, use only strategies that all of them offer.
pub fn available() -> StrategySet {
    native::available()
}

/// The strategy with which a kernel zeroes a single page on this architecture.
///
/// It's plain stores on an architecture for which this crate has no instructions.
pub const PAGE: Strategy = native::PAGE;

/// Returns the sizes of the data caches, or 0 where a size is unknown.
///
/// Only x86-64 lets unprivileged code read them. Under a hypervisor, the size of the last-level cache may exceed the
/// guest's share.
pub fn caches() -> Caches {
    native::caches()
}

/// Zeroes `bytes` bytes from `start` with `strategy`.
///
/// A strategy of another architecture falls back to [`Strategy::Stores`].
///
/// # Safety
///
/// * `start..start + bytes` is valid for writes, is ordinary cacheable memory, and is accessed by no other code during
///   the call.
/// * `strategy` is a member of [`available`] on this CPU.
/// * If [`Strategy::uses_vectors`], the vector registers may be overwritten. That always holds in a user program. In a
///   kernel it holds only between saving and restoring the user's vector state.
#[inline]
pub unsafe fn zero(start: *mut u8, bytes: usize, strategy: Strategy) {
    // SAFETY: as the caller promises.
    unsafe { native::zero(start, bytes, strategy) }
}

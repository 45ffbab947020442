//! The instructions for [`quell_zero`]: one function for every [`Strategy`].
//!
//! [`available`] returns the strategies that the processor and the operating system support, [`caches`] returns the
//! sizes of the caches, and [`zero`] zeroes memory with one strategy. All three work in user mode and in a kernel,
//! without an operating system below and without `std`.
//!
//! # Vector registers
//!
//! On x86-64, the non-temporal stores of 128 bits and more overwrite vector registers: one, and with 256 bits and more
//! the upper parts of sixteen. We declare that to the compiler, so user programs needn't care, whatever they were
//! compiled for. A kernel that runs without saving the user's vector state must not use them, although the processor
//! has them. It takes [`Available::without_vectors`](quell_zero::Available::without_vectors), which leaves `movnti` and
//! `clzero`, for example. On AArch64 no strategy uses a vector register.
//!
//! # Interruption and ordering
//!
//! Every strategy may be interrupted anywhere, and continues where it was. Non-temporal stores and `clzero` are weakly
//! ordered: [`zero`] ends with an `sfence`, so that a later release store publishes the zeros. If the thread moves to
//! another CPU in the middle, the locked instructions of any context switch order the stores that it made before.
//!
//! # Alignment and length
//!
//! Any alignment and length is allowed. Plain stores zero the ends that don't fill an aligned block of the strategy.

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

/// Returns the strategies that this processor offers.
///
/// It includes strategies with vector registers if the operating system has enabled these.
///
/// Each call queries the processor, which may trap to a hypervisor: call it once and keep the result. The result is
/// valid for this CPU. A kernel on CPUs of several kinds uses the strategies that all of them have.
pub fn available() -> Available {
    native::available()
}

/// The strategy with which a kernel for this architecture zeroes a single page.
///
/// It's plain stores on an architecture for which this crate has no instructions.
pub const PAGE: Strategy = native::PAGE;

/// Returns the sizes of the data caches, if unprivileged code can read them (x86-64). On other architectures all are 0,
/// which means unknown.
///
/// Under a hypervisor the last-level cache may be larger than the guest's share of it.
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

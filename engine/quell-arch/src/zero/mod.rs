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
//! Any. Ends that do not fill an aligned block of the strategy are zeroed by plain stores.

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
/// Vector registers are included if the operating system has enabled them.
///
/// Asks the processor every time, which may trap to a hypervisor: call it once and keep the answer. The answer is this
/// CPU's; a kernel on CPUs of several kinds takes what all of them have.
pub fn available() -> Available {
    native::available()
}

/// The strategy with which kernels of this architecture zero a single page.
///
/// It is plain stores on an architecture for which this crate has no instructions.
pub const PAGE: Strategy = native::PAGE;

/// Returns the sizes of the data caches, if unprivileged code can read them (x86-64). Elsewhere all are 0, for unknown.
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
/// * `start..start + bytes` is valid for writes, is ordinary cacheable memory, and is accessed by no other code
///   during the call.
/// * `strategy` is a member of [`available`] on this CPU.
/// * If [`Strategy::uses_vectors`], the vector registers may be overwritten: always true in a user
///   program, true in a kernel only between saving and restoring the user's vector state.
#[inline]
pub unsafe fn zero(start: *mut u8, bytes: usize, strategy: Strategy) {
    // SAFETY: passed on to the caller.
    unsafe { native::zero(start, bytes, strategy) }
}

//! Zeroes memory by extents (S1), and keeps frames known to be zero (C8).
//!
//! Memory must be zeroed before it gets a new owner, and that zeroing is most of the cost of a demand fault on a large
//! page. Three decisions make it cheap, and each is in one file:
//!
//! * **The instructions** ([`plan`]). A processor that knows the whole length amortises its start-up cost, and may stop
//!   reading lines that it will overwrite. Instructions that bypass the caches avoid these reads at any length. The
//!   fastest instruction depends on the processor and on the length, so a [`Plan`] holds one [`Strategy`] per class of
//!   length. We derive it from the [`Available`] strategies and the [`Caches`] by rule, or from a calibration of a few
//!   milliseconds.
//! * **The order and the size of pieces** ([`pieces`]). We clear the pages that are read next last, through the caches,
//!   and all others around the caches. No piece takes longer than a processor may be held without a preemption point.
//! * **The time** ([`pool`]). A [`Pool`] holds frames that were cleared in the background within a bandwidth budget, so
//!   that a fault finds them ready.
//!
//! The crate allocates nothing, locks nothing and contains no instructions of its own (`quell_arch::zero` has them).
//! From the engine it uses only the names for memory and words that CPUs share, so a kernel can use it without the
//! engine. The kernel implements [`Clear`], which is one method:
//!
//! ```
//! use quell::PAGE_BYTES;
//! use quell::{Extent, Frame};
//! use quell_zero::{Clear, ClearPolicy, Clearer, Plan, Strategy};
//! use std::sync::Mutex;
//!
//! /// Sixteen frames of memory.
//! struct Machine(Mutex<Vec<u8>>);
//!
//! impl Clear for Machine {
//!     unsafe fn zero(&self, extent: Extent, _strategy: Strategy) {
//!         let start = extent.first.address() as usize;
//!         self.0.lock().unwrap()[start..][..extent.bytes() as usize].fill(0);
//!     }
//! }
//!
//! let machine = Machine(Mutex::new(vec![0xa5; 16 * PAGE_BYTES as usize]));
//! let policy = ClearPolicy::cooperative(Plan::uniform(Strategy::Stores));
//! let extent = Extent { first: Frame(4), frames: 8 };
//!
//! // A program has faulted on frame 6: that frame is cleared last, with two on either side.
//! // SAFETY: nobody else knows of the machine.
//! let done = unsafe { Clearer::new(&machine, &policy).extent(extent, Some(Frame(6)), || ()) };
//!
//! assert_eq!(done.hot_bytes, 5 * PAGE_BYTES);
//! assert_eq!(done.bypassing_bytes, 3 * PAGE_BYTES);
//! let memory = machine.0.lock().unwrap();
//! let zeros = memory.iter().filter(|&&byte| byte == 0).count();
//! assert_eq!(zeros as u64, extent.bytes());
//! ```
//!
//! # Guarantees
//!
//! [`Clearer::extent`] zeroes every byte of an extent exactly once, whatever the policy. A [`Zeroed`] value comes only
//! from [`Clearer::frame`] and [`Pool::take`], so an allocator that requires this type can't get a frame that wasn't
//! cleared.
//!
//! # Limits
//!
//! We don't guarantee that no CPU writes the extent meanwhile: the caller must own it, without a translation through
//! which another CPU writes (C1). We don't make the content visible to other CPUs: the caller publishes the frame with
//! a release store. And the plan may not be the best one: rules of thumb and measurements can both be wrong by a few
//! percent.
#![cfg_attr(not(test), no_std)]
#![warn(clippy::missing_panics_doc)]

pub mod clearer;
pub mod machine;
pub mod pieces;
pub mod plan;
pub mod pool;
pub mod strategy;
pub mod zeroed;

pub use clearer::{ClearStats, Clearer};
pub use machine::Clear;
pub use pieces::{ClearPolicy, Piece, Pieces};
pub use plan::{Caches, Chooser, Plan, Sample};
pub use pool::{Budget, FillResult, Pool, Pooled, StopReason};
pub use strategy::{Available, Strategy, Temperature};
pub use zeroed::{Clearable, Zeroed};

#[cfg(test)]
mod tests;

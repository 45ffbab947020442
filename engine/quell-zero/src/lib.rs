//! Zeroes memory by extents (S1), and keeps frames known to be zero (C8).
//!
//! Memory must be zeroed before it gets a new owner, and most of the cost of a demand fault on a
//! large page is that zeroing. Three decisions make it cheap, and each lives in one file:
//!
//! * **With which instructions** ([`plan`]). A processor that is told the whole length amortises
//!   its start-up cost and may stop reading lines that it is going to overwrite; instructions that
//!   go around the caches do so at any length. Which of them is fastest depends on the processor
//!   and on the length, so a [`Plan`] holds one [`Strategy`] per class of length: by rule from
//!   what is [`Available`] and the [`Caches`], or from a calibration of a few milliseconds.
//! * **In which order and in how large pieces** ([`pieces`]). The pages that are read next are
//!   cleared last and through the caches, all others around the caches; no piece is longer than the
//!   time a processor may be held without a point of preemption.
//! * **When** ([`pool`]). A [`Pool`] holds frames that were cleared in the background within a
//!   budget of bandwidth, so that a fault finds them ready.
//!
//! The crate allocates nothing, locks nothing and contains no instructions of its own (`quell_arch::zero` has
//! them). Of the engine it takes the names for memory and words that CPUs share; a kernel
//! that has no use for the engine uses it alone. It implements [`Clear`], which is one method:
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
//! # What is guaranteed
//!
//! Every byte of an extent given to [`Clearer::extent`] is zeroed exactly once, by one
//! [`Clear::zero`] each, whatever the policy. A [`Zeroed`] value comes
//! only from [`Clearer::frame`] and [`Pool::take`], so an allocator that asks for one by type cannot be
//! handed a frame that was not cleared.
//!
//! # What is not guaranteed
//!
//! That no CPU writes the extent meanwhile: the caller must own it, with no translation left
//! through which another CPU writes (C1). That the content is visible to other CPUs before the
//! caller publishes the frame with a release store. That the plan is the best one: rules of
//! thumb and measurements both can be wrong by a few percent.
#![cfg_attr(not(test), no_std)]
#![warn(clippy::missing_panics_doc)]

pub mod clearer;
pub mod machine;
pub mod pieces;
pub mod plan;
pub mod pool;
pub mod strategy;
pub mod zeroed;

pub use clearer::{Cleared, Clearer};
pub use machine::Clear;
pub use pieces::{ClearPolicy, Piece, Pieces};
pub use plan::{Caches, Chooser, Plan, Sample};
pub use pool::{Budget, Filled, Pool, Pooled, Stopped};
pub use strategy::{Available, Strategy, Temperature};
pub use zeroed::{Clearable, Zeroed};

#[cfg(test)]
mod tests;

//! Zeroes memory in long runs of frames, and keeps a pool of zeroed frames.
//!
//! Zeroing by extents follows [Arora's
//! series](https://lore.kernel.org/all/20250917152418.4077386-17-ankur.a.arora@oracle.com/) for Linux.
//!
//! Memory must be zeroed before it gets a new owner. That's most of the cost of a demand fault on a large page. Three
//! decisions make it cheap, and each has its module:
//!
//! * **The instructions** ([`plan`]). A string instruction such as `rep stosb` gets a whole piece, not one page. So the
//!   processor pays its start-up cost once, and may skip reading cache lines that it will overwrite. Instructions that
//!   bypass the caches avoid these reads at any length. The fastest instruction depends on the processor and on the
//!   length, so a [`Plan`] holds one [`Strategy`] for each range of lengths. A [`Chooser`] makes the plan by a rule, or
//!   from measurements of a few milliseconds.
//! * **The order and the size of pieces** ([`pieces`]). The pages that the program reads next come last, and through
//!   the caches, so they're cached then. For the others, the plan may choose instructions that bypass the caches. The
//!   policy caps the length of a piece, so that a kernel can preempt between pieces.
//! * **The time** ([`pool`]). A [`Pool`] holds frames that were cleared in the background, within a budget of memory
//!   bandwidth. A fault finds them ready.
//!
//! The crate allocates nothing, takes no locks and contains no assembly (`quell_arch::zero` does).
//! From `quell` it uses only a few types, such as [`Extent`](quell::Extent) and [`Word`](quell::Word), so a kernel can
//! use it without the engine. The kernel implements [`PhysicalMemory`], which has one method:
//!
//! ```
//! use quell::PAGE_BYTES;
//! use quell::{Extent, Frame};
//! use quell_zero::{ClearPolicy, Clearer, PhysicalMemory, Plan, Strategy};
//! use std::sync::Mutex;
//!
//! /// Sixteen frames of memory.
//! struct Machine(Mutex<Vec<u8>>);
//!
//! impl PhysicalMemory for Machine {
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
//! [`Clearer::extent`] zeroes every byte of an extent exactly once, whatever the policy. Only [`Clearer::frame`] and
//! [`Pool::take`] return a [`ZeroedFrame`] value. So code that accepts only this type can't get a frame that wasn't
//! cleared.
//!
//! # Limits
//!
//! We don't stop other CPUs from writing to the extent. The caller must own it, and no CPU may have a translation
//! through which it could write. We don't make the zeros visible to other CPUs either: the caller publishes the frame
//! with a release store. The plan may not be the fastest one: rules of thumb and measurements can both be wrong by a
//! few percent.
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
pub use machine::PhysicalMemory;
pub use pieces::{ClearPolicy, Piece, Pieces};
pub use plan::{Caches, Chooser, Plan, Sample};
pub use pool::{Budget, FillResult, Pool, PooledMemory, StopReason};
pub use strategy::{Strategy, StrategySet, Temperature};
pub use zeroed::{OwnedMemory, ZeroedFrame};

#[cfg(test)]
mod tests;

//! The contract that the quell engine keeps, for everything that judges whether it does.
//!
//! Two machines in software, threads that play CPUs and a kernel that boots watch the engine at
//! work. Each has an oracle of its own, because each knows different things about an access. What an
//! oracle says when the contract is broken is the same everywhere and is defined here: the
//! [`Clause`], the [`Violation`], and the [`timeline`](mod@timeline) of what led to it.
//!
//! Without the feature `timeline` the crate needs no standard library.

#![no_std]

extern crate alloc;
#[cfg(feature = "timeline")]
extern crate std;

mod clause;
#[cfg(feature = "timeline")]
pub mod timeline;
mod violation;

pub use clause::Clause;
pub use violation::Violation;

//! The contract that the quell engine keeps, in the form that every oracle uses.
//!
//! Two machines in software, threads that act as CPUs, and our kernel run the engine. Each has its own oracle, because
//! each knows different facts about an access. All of them report a breach as defined here: the [`Clause`], the
//! [`Violation`], and the timeline (feature `timeline`) of the steps that led to it.

pub mod abstract_machine;
mod clause;
#[cfg(feature = "timeline")]
pub mod timeline;
mod violation;

pub use abstract_machine::AbstractMachine;
pub use clause::Clause;
pub use violation::Violation;

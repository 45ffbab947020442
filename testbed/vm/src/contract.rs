//! Defines a violation of the contract, which every oracle reports in the same form.
//!
//! The contract is the eight clauses that the engine promises; `docs/contract.md` explains them. The engine runs on two
//! machines in software, on threads that act as CPUs, and in our kernel. Each has its own oracle, because each has
//! different facts about an access. All of them report a violation in the types of this module: the [`Clause`], the
//! [`Violation`], and the timeline (feature `timeline`) of the steps that led to it.

pub mod abstract_machine;
mod clause;
#[cfg(feature = "timeline")]
pub mod timeline;
mod violation;

pub use abstract_machine::AbstractMachine;
pub use clause::Clause;
pub use violation::Violation;

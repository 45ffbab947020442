//! The contract that the quell engine keeps, as every judge of a run needs it.
//!
//! Two machines in software, threads that play CPUs and a kernel that boots watch the engine at
//! work. Each has an oracle of its own, because each knows different things about an access. All of them report
//! a breach in the same form, which is defined here: the
//! [`Clause`], the [`Violation`], and the timeline (feature `timeline`) of the steps that led to it.

pub mod abstract_machine;
mod clause;
#[cfg(feature = "timeline")]
pub mod timeline;
mod violation;

pub use abstract_machine::AbstractMachine;
pub use clause::Clause;
pub use violation::Violation;

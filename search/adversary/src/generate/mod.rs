//! Writes programs at random, and searches for schedules in which they break the contract.
//!
//! Scenarios contain only the races that their authors thought of. Here programs are data
//! ([`generated`](crate::generated)), drawn from the whole grammar of the engine's interface and of the manager's
//! calls. They're drawn by swarms: each program may use only a few kinds of operations, on a few pages, so that these
//! meet.
//!
//! Coverage is measured by the effects of CPUs on each other's words ([`footprint`](crate::footprint)). For example,
//! one place in the code writes a word that another place reads. A program that shows a new pair of places enters the
//! corpus and is changed further. A program that breaks the contract is shrunk, with its schedule ([`mod@shrink`]), and
//! written to a file that can be kept and run again ([`text`]).
//!
//! # What this does not cover
//!
//! The grammar can't express some programs: for example, mixed use of one space by the manager and other code, two
//! engines, and CPUs that never return. And no program can show behaviour that the adversary's machine doesn't have.

pub mod campaign;
pub mod corpus;
pub mod random;
mod search;
pub mod shrink;
pub mod text;
mod trial;

pub use campaign::Campaign;
pub use corpus::Corpus;
pub use search::WorkDone;
pub use shrink::Finding;
pub use text::RecordedProgram;

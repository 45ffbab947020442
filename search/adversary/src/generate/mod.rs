//! Programs that the adversary writes itself.
//!
//! Scenarios hold what their authors thought of. Here programs are data ([`generated`](crate::generated)), drawn at
//! random from the whole grammar of the engine's interface and of the manager's calls, by swarms: each program may use
//! a few kinds of operations only, on a few pages, so that these meet. Coverage is measured by what the CPUs did to
//! each other's words ([`footprint`](crate::footprint)): a program that shows a new pair of places in the code, one
//! writing what the other reads, goes into the corpus and is changed further. A program that breaks the contract is
//! shrunk, with its schedule ([`mod@shrink`]), and written down as a file that can be kept and run again ([`text`]).
//!
//! | module | what happens there |
//! | --- | --- |
//! | [`random`] | drawing and changing programs |
//! | [`search`] | one program in many schedules |
//! | [`trial`] | one program, as it is and with each mistake that may show in it |
//! | [`campaign`] | the search through programs, and for mutants |
//! | [`corpus`] | a folder of programs, to go on with |
//! | `effort` | which mutant the next program is drawn for |
//! | [`mod@shrink`] | the smallest program and schedule that break the same clause |
//! | [`text`] | programs as files and as one line |
//!
//! # What this does not cover
//!
//! What the grammar has no word for: mixed use of one space by the manager and by something else, two
//! engines, CPUs that are never heard of again. And what the machine under the adversary does not do.

pub mod campaign;
pub mod corpus;
mod effort;
pub mod random;
mod search;
pub mod shrink;
pub mod text;
mod trial;

pub use campaign::Campaign;
pub use corpus::Corpus;
pub use search::Spent;
pub use shrink::Find;
pub use text::Recorded;

//! Mistakes that are made on purpose, as data, and the instrumented copy of the workspace that makes them.
//!
//! Production code makes none of them: it is straight, and a comment at the line names the mutant. A mutant says what
//! stands in the source and what it has instead. From that a copy of the workspace is made in which the code asks at
//! each such place whether the mutant is on; searches, tests and kernels that make mistakes are built there. So one
//! build holds all mutants (*mutation schemata*: Untch, Offutt, Harrold, ISSTA 1993).
//!
//! | module | what is there |
//! | --- | --- |
//! | [`list`] | the mutants that are written by hand: `mutants/*.toml` |
//! | [`anchor`] | where they stand, and the text with all of them in it |
//! | [`selector`] | which are on, at run time; part of the copy |
//! | [`tree`] | the copies of the workspace |
//! | [`run`] | the copy, built, and its programs, run |
//!
//! A second copy holds mutants of the engine that a program makes:
//!
//! | module | what is there |
//! | --- | --- |
//! | [`points`] | where a file can be mutated, and its text with all mutants in it |
//! | [`operators`] | what chooses the mutant at run time; part of the mutated engine |
//! | [`sources`] | which files of the engine are mutated, and why the others are not |
//! | [`build`] | what of it compiles; tests and trial, built once |
//! | [`judge`] | the tests and the adversary's cases, one mutant after the other |
//! | [`kept`] | survivors that were judged, each with its reason |

pub mod anchor;
pub mod build;
pub mod judge;
pub mod kept;
pub mod list;
pub mod operators;
pub mod points;
pub mod process;
pub mod run;
pub mod selector;
pub mod sources;
pub mod tree;

pub use list::Mutant;

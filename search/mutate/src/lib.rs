//! Mutants of the engine that a program makes.
//!
//! cargo-mutants builds a program anew for each mutant, and the adversary takes a minute to build. Here one build holds
//! all mutants (*mutation schemata*: Untch, Offutt, Harrold, ISSTA 1993), and a number in the environment chooses one.
//!
//! | module | what is there |
//! | --- | --- |
//! | [`points`] | where a file can be mutated, and its text with all mutants in it |
//! | [`selector`] | what chooses the mutant at run time; part of the mutated engine |
//! | [`sources`] | which files of the engine are mutated, and why the others are not |
//! | [`tree`] | a copy of the workspace with the mutated engine |
//! | [`build`] | what of it compiles; tests and trial, built once |
//! | [`judge`] | the tests and the adversary's cases, one mutant after the other |
//! | [`kept`] | survivors that were judged, each with its reason |

pub mod build;
pub mod judge;
pub mod kept;
pub mod points;
pub mod process;
pub mod selector;
pub mod sources;
pub mod tree;

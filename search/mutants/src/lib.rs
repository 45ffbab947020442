//! Deliberate mistakes (mutants) as data, and the instrumented copy of the workspace that makes them.
//!
//! Production code contains no mutants: it's straight, and a comment at the line names the mutant. A mutant consists of
//! a piece of source and its replacement. From these we make a copy of the workspace, in which the code checks at each
//! such piece whether the mutant is on. We build searches, tests and kernels that make mistakes there. So one build
//! contains all mutants (*mutation schemata*: Untch, Offutt, Harrold, ISSTA 1993).
//!
//! | module | contents |
//! | --- | --- |
//! | [`list`] | the mutants written by hand: `mutants/*.toml` |
//! | [`anchor`] | finds their pieces, and writes the text with all of them in it |
//! | [`selector`] | decides at run time which mutants are on; part of the copy |
//! | [`tree`] | the copies of the workspace |
//! | [`run`] | builds the copy and runs its programs |
//!
//! A second copy contains mutants of the engine and the memory manager that a program generates:
//!
//! | module | contents |
//! | --- | --- |
//! | [`points`] | finds the mutations of a file, and writes its text with all of them in it |
//! | [`operators`] | chooses the mutant at run time; part of the copy |
//! | [`sources`] | the files that are mutated, and the reasons for the others |
//! | [`build`] | removes mutants that don't compile; builds the tests and the trial once |
//! | [`judge`] | runs the tests and the adversary's cases on each mutant |
//! | [`kept`] | reviewed survivors, each with its reason |

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

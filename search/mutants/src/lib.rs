//! Deliberate mistakes (mutants) as data, and the instrumented copy of the workspace that makes them.
//!
//! Production code contains no mutants: it's straight, and a comment at the line names the mutant. A mutant consists of
//! a piece of source and its replacement. From these we make a copy of the workspace, in which the code checks at each
//! such piece whether the mutant is on. We build searches, tests and kernels that make mistakes there. So one build
//! contains all mutants (*mutation schemata*: Untch, Offutt, Harrold, ISSTA 1993).
//!
//! [`list`] has the mutants written by hand. A second copy contains mutants of the engine and the memory manager that a
//! program generates ([`points`]); [`judge`] tries them.

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

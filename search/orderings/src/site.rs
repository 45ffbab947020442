//! An ordering with its comment.

use crate::tokens::{Kind, Strength};

/// One ordering in the source, and what its comment says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Site {
    /// The source file, below `crates`.
    pub file: String,
    /// The line of the call that takes the ordering: where the compiler says that the call is.
    pub line: usize,
    /// The type whose method holds it, if it is in one.
    pub owner: Option<String>,
    /// The function that holds it.
    pub function: String,
    /// What is called: `load`, `store`, `fence` and so on; empty for an ordering that is only returned.
    pub call: String,
    /// The ordering, or that this is a fence of the machine.
    pub strength: Strength,
    /// What the call does with it.
    pub kind: Kind,
    /// Which of the orderings above `Relaxed` of this call it is.
    pub nth: usize,
    /// The other sides, as the comment calls them: a phrase, with the functions in backticks.
    pub partners: String,
    /// What the two sides give each other.
    pub reason: String,
    /// What is lost without it.
    pub lost: Lost,
}

/// What shows that an ordering is needed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lost {
    /// The race of this name, under loom, with the ordering one step weaker.
    Race(String),
    /// A schedule of the adversary, with the mutant of this name.
    Mutant(String),
}

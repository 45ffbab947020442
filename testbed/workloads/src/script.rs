//! A compiled workload file: numbers and a flat list of operations.
//!
//! Loops and branches are jumps, names are places of words, and expressions are code for a small stack. So our programs
//! need no allocation and no lookup by name while they run, which suits a kernel's user mode and the machine in
//! software alike.

use crate::expression::{EvalError, Expression};
use crate::parameter::Parameter;
use crate::perform::Arguments;
use crate::team::StopReason;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use quell::Mechanism;
use quell_vm::{Call, Protection};

/// The most parameters of a workload.
pub(crate) const PARAMETERS: usize = 24;
/// The most variables of a CPU.
pub(crate) const LOCALS: usize = 48;

/// A compiled workload file.
#[derive(Debug)]
pub(crate) struct Script {
    /// Its path, for messages; a name if it is built in.
    pub path: &'static str,
    pub text: &'static str,
    pub name: &'static str,
    pub title: &'static str,
    pub mechanism: Mechanism,
    pub parameters: &'static [Parameter],
    pub cpus: Expression,
    pub processes: Expression,
    /// Parameters computed from the number of CPUs, when a command chooses that number.
    pub fits: Vec<(u8, Expression)>,
    pub memory: MemoryNeed,
    /// Pages that a call unmaps with one flush.
    pub together: Option<Expression>,
    pub figure: Figure,
    pub operation: Operation,
    pub refusals: Vec<Refusal>,
    pub threads: Vec<Thread>,
}

/// The memory that it needs, as expressions of parameters and CPUs.
#[derive(Debug)]
pub(crate) enum MemoryNeed {
    /// Touches this many bytes, and needs room for tables and caches.
    Touched { bytes: Expression, nodes: Expression },
    /// Needs exactly this much.
    Exact {
        node: Expression,
        slow: Expression,
        nodes: Expression,
        ahead: Option<Expression>,
        idle_reclaims: Expression,
    },
}

/// The workload's one figure.
#[derive(Debug)]
pub(crate) struct Figure {
    pub metric: &'static str,
    pub more_is_better: bool,
    pub value: Expression,
}

/// The definition of one operation.
#[derive(Debug)]
pub(crate) struct Operation {
    pub name: &'static str,
    pub count: Expression,
    /// Whether each operation faults, if the work is done.
    pub faults: bool,
    /// Whether the first CPU does all work.
    pub first_cpu_works: bool,
}

/// Parameter values that can't be combined.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub when: Expression,
    pub why: Vec<MessagePart>,
}

/// A piece of a message.
#[derive(Debug)]
pub(crate) enum MessagePart {
    Text(String),
    /// A parameter, in its unit's notation.
    Parameter(u8),
    Value(Expression),
}

/// A program and the CPUs that run it.
#[derive(Debug)]
pub(crate) struct Thread {
    /// Whether a CPU runs it; the first matching thread counts.
    pub when: Expression,
    pub program: Box<[Statement]>,
}

/// An operation and its line.
#[derive(Debug)]
pub(crate) struct Statement {
    pub line: u32,
    /// The first word of the statement.
    pub verb: &'static str,
    pub does: Op,
}

/// The destination of a value.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Local(u8),
    Shared(u8),
    Element { base: u8, count: u8, index: Expression },
}

/// The order of accesses to a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Ascending,
    Descending,
    /// This many accesses at random places.
    Random,
}

/// A range that is accessed word by word.
#[derive(Debug)]
pub(crate) struct Range {
    pub bytes: Expression,
    pub stride: Expression,
    pub order: Order,
    /// The number of random accesses.
    pub count: Expression,
}

/// The backing of a mapping.
#[derive(Debug)]
pub(crate) enum BackingExpr {
    Anonymous { page: Expression },
    Shared { file: Expression, offset: Expression },
    Private { file: Expression, offset: Expression },
}

/// The most arguments of a call.
pub(crate) const ARGUMENTS: usize = 3;

/// Builds a system call from the values of its arguments.
pub(crate) type CallBuilder = fn(&Arguments<'_>) -> Result<Call, StopReason>;

/// An operation of a program.
#[derive(Debug)]
pub(crate) enum Op {
    Let {
        to: Target,
        value: Expression,
    },
    Add {
        word: u8,
        by: Expression,
        into: Option<Target>,
    },
    /// One access, or the accesses to a range. The value is `None` for loads.
    Access {
        address: Expression,
        range: Option<Box<Range>>,
        value: Option<Expression>,
    },
    /// Accesses to every line of a range.
    Stream {
        address: Expression,
        bytes: Expression,
        value: Option<Expression>,
    },
    Map {
        to: Target,
        bytes: Expression,
        at: Option<Expression>,
        protection: Protection,
        behind: Box<BackingExpr>,
    },
    Protect {
        address: Expression,
        bytes: Expression,
        protection: Protection,
    },
    Call {
        make: CallBuilder,
        arguments: [Option<Expression>; ARGUMENTS],
        into: Option<Target>,
    },
    Compute(Expression),
    Barrier,
    Begin,
    End,
    Open,
    Close,
    GiveUp,
    Done(Expression),
    Bystand {
        every: Expression,
        asleep: Expression,
    },
    Without(Expression),
    Progress {
        done: Expression,
        all: Expression,
    },
    /// Jumps to another statement.
    Jump(u32),
    /// Jumps if the value is 0.
    Unless {
        condition: Expression,
        to: u32,
    },
    /// Jumps unless one variable is less than the other.
    Below {
        variable: u8,
        limit: u8,
        to: u32,
    },
    /// Increases a variable and jumps.
    Next {
        variable: u8,
        by: Expression,
        to: u32,
    },
}

/// The reason why a statement couldn't be performed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StatementError {
    /// An expression has no value.
    #[error(transparent)]
    Value(#[from] EvalError),
    /// An address is outside of every program's memory, or not a multiple of 8.
    #[error("{0:#x} is not the address of a word that a program can have")]
    Address(u64),
    /// A page size doesn't exist.
    #[error("{0} is not a page size; there are 4K, 2M and 1G")]
    Page(u64),
    /// A time is too long or too short.
    #[error("{0} ns: expected at most an hour, and at least 100 ns between two looks")]
    Time(u64),
    /// The program made more steps without an access, a call or passing time than any program needs.
    #[error("nothing that takes time for 10 million statements: does the loop end?")]
    Endless,
    /// A statement that only the first CPU may perform is in the program of another CPU.
    #[error("only CPU 0 may do this")]
    NotFirst,
    /// The window was opened or closed twice, or closed before it was opened.
    #[error("the measured window opens once, and closes once after that")]
    Window,
    /// The CPU waits at a barrier that no other CPU can reach any more.
    #[error(
        "no other CPU can reach it: each has ended, stands by or waits here too; all CPUs must reach the same barriers (`begin` and `end` are barriers), or `without` must exclude the others"
    )]
    Barrier,
    /// The CPU waits for the end of the window, but no remaining CPU could close it.
    #[error(
        "no other CPU can close the window: each has ended or stands by too; let CPU 0 `close` it"
    )]
    Unclosed,
    /// More CPUs leave the barriers than take part in them.
    #[error("fewer CPUs than this take part in barriers")]
    Members,
}

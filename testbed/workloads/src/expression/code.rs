//! The instructions of a compiled expression.

/// The words of an expression's stack.
pub(crate) const DEPTH: usize = 16;
/// The most nested parentheses, so that reading them can't exhaust the reader's own stack.
pub(super) const NESTING: usize = 32;

/// A name that an expression may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Name {
    /// A parameter of the workload.
    Parameter(u8),
    /// A variable of this CPU.
    Local(u8),
    /// A control word that all CPUs share.
    Shared(u8),
    /// This CPU, counted from 0.
    Cpu,
    /// The number of CPUs that run the workload.
    Cpus,
    /// The clock, in nanoseconds.
    Now,
    /// Whether the measurement is over.
    Stopped,
    /// In the value of a store to a range: the distance from its beginning.
    Offset,
    /// In the figure: the length of the window.
    Nanoseconds,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Less,
    AtMost,
    Greater,
    AtLeast,
    Equal,
    Unequal,
    Bits,
    Left,
    Right,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Function {
    Min,
    Max,
    Align,
    Excess,
    Choose,
    Random,
}

/// The functions: name, code and number of arguments.
pub(super) const FUNCTIONS: [(&str, Function, usize); 6] = [
    ("min", Function::Min, 2),
    ("max", Function::Max, 2),
    ("align", Function::Align, 2),
    ("excess", Function::Excess, 2),
    ("choose", Function::Choose, 3),
    ("random", Function::Random, 1),
];

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Code {
    Number(u64),
    Real(f64),
    Name(Name),
    /// The shared word at `base` plus the top of the stack, which is less than `count`.
    Element {
        base: u8,
        count: u8,
    },
    Binary(Binary),
    Not,
    Call(Function),
    /// If the top of the stack is 0, leaves 0 and skips this many instructions; otherwise drops it.
    And(u16),
    /// If the top of the stack is not 0, leaves 1 and skips this many instructions; otherwise drops it.
    Or(u16),
    /// Makes the top of the stack 0 or 1.
    Truth,
}

/// The meaning of a name in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Symbol {
    /// One word.
    One(Name),
    /// An array of `count` shared words.
    Many { base: u8, count: u8 },
}

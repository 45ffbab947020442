//! Folded stacks, as `flamegraph.pl`, inferno, speedscope and others read them: a line for each stack, its frames from
//! outside in, and what it weighs.

use std::io::{self, Write};

use crate::attribute::Weight;
use crate::report::Report;

/// What the width of a frame stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum By {
    /// Interrupts that were sent.
    #[default]
    Interrupts,
    /// Nanoseconds that targets lost.
    Stolen,
    /// Nanoseconds that initiators waited, at least.
    Waited,
}

impl By {
    /// This one of a stack's weights.
    pub fn of(self, weight: &Weight) -> u64 {
        match self {
            By::Interrupts => weight.interrupts,
            By::Stolen => weight.stolen_ns,
            By::Waited => weight.waited_ns,
        }
    }
}

/// Writes the report's stacks, those alone that weigh anything.
///
/// # Errors
/// If that fails.
pub fn write(report: &Report, by: By, to: &mut dyn Write) -> io::Result<()> {
    for (stack, weight) in &report.folded {
        let weight = by.of(weight);
        if weight > 0 {
            let stack = if stack.is_empty() {
                "(no stack)"
            } else {
                stack
            };
            writeln!(to, "{stack} {weight}")?;
        }
    }
    Ok(())
}

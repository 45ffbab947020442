//! Writes folded stacks, as `flamegraph.pl`, inferno, speedscope and others read them.
//!
//! Each line has a stack, its frames from the outermost inwards, and its weight.

use std::io::{self, Write};

use crate::attribute::Weight;
use crate::report::Report;

/// The meaning of a frame's width.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WeightKind {
    /// Interrupts that were sent.
    #[default]
    Interrupts,
    /// Nanoseconds that targets lost.
    Stolen,
    /// Nanoseconds that initiators waited, as a lower bound.
    Waited,
}

impl WeightKind {
    /// Returns the weight of this kind.
    pub fn of(self, weight: &Weight) -> u64 {
        match self {
            WeightKind::Interrupts => weight.interrupts,
            WeightKind::Stolen => weight.stolen_ns,
            WeightKind::Waited => weight.waited_ns,
        }
    }
}

/// Writes the report's stacks. Skips those without weight.
///
/// # Errors
/// If writing fails.
pub fn write(report: &Report, by: WeightKind, to: &mut dyn Write) -> io::Result<()> {
    for (stack, weight) in &report.folded {
        let weight = by.of(weight);
        if weight > 0 {
            let stack = if stack.is_empty() { "(no stack)" } else { stack };
            writeln!(to, "{stack} {weight}")?;
        }
    }
    Ok(())
}

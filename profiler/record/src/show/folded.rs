//! Writes folded stacks, as `flamegraph.pl`, inferno, speedscope and others read them.
//!
//! Each line has a stack, its frames from the outermost inwards, and its weight.

use std::io::{self, Write};

use crate::report::Report;

/// The meaning of a frame's width, in the order of [`Weights`](crate::attribute::Weights).
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

/// Writes the report's stacks. Skips those without weight.
///
/// # Errors
/// If writing fails.
pub fn write(report: &Report, by: WeightKind, to: &mut dyn Write) -> io::Result<()> {
    for (stack, weights) in &report.folded {
        let weight = weights[by as usize];
        if weight > 0 {
            let stack = if stack.is_empty() { "(no stack)" } else { stack };
            writeln!(to, "{stack} {weight}")?;
        }
    }
    Ok(())
}

//! Events that wait for their stacks.

use crate::perf::Sample;

/// An event whose stack may be incomplete.
pub struct PendingEvent {
    /// The event.
    pub sample: Sample,
    /// The lines of its stack, each after a letter for its form.
    pub raw: Vec<u8>,
    /// The form of further lines that belong to its stack. `None` if there can't be any.
    pub goes_on: Option<Kind>,
    /// Whether its stack is complete.
    pub complete: bool,
}

/// The form of a stack line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Perf,
    Kernel,
    User,
}

/// Appends a stack line after a letter for its form.
pub fn keep(raw: &mut Vec<u8>, kind: Kind, line: &[u8]) {
    raw.push(match kind {
        Kind::Perf => b'p',
        Kind::Kernel => b'k',
        Kind::User => b'u',
    });
    raw.extend_from_slice(line);
    raw.push(b'\n');
}

//! Events whose stacks may go on.

use crate::perf::Sample;

/// An event whose stack may go on.
pub struct Waiting {
    /// It.
    pub sample: Sample,
    /// The lines of its stack, each behind a letter for its kind.
    pub raw: Vec<u8>,
    /// The next lines of a stack belong to it, if they are of this kind.
    pub goes_on: Option<Kind>,
    /// Whether nothing more can come of it.
    pub complete: bool,
}

/// How a line of a stack is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Perf,
    Kernel,
    User,
}

/// Keeps a line of a stack behind a letter for how it is written.
pub fn keep(raw: &mut Vec<u8>, kind: Kind, line: &[u8]) {
    raw.push(match kind {
        Kind::Perf => b'p',
        Kind::Kernel => b'k',
        Kind::User => b'u',
    });
    raw.extend_from_slice(line);
    raw.push(b'\n');
}

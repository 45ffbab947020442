//! Mistakes of the person who typed the command, as distinct from failures of what was asked for.

/// Something on the command line, or in a file that it names, is wrong: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// A mistake that the user can correct.
pub fn usage(mistake: impl std::fmt::Display) -> anyhow::Error {
    Usage(mistake.to_string()).into()
}

//! Exit codes, and errors in the user's arguments.

/// Exit codes, printed below the help of every command.
pub const EXIT_CODES: &str = "\
Exit codes:
  0      done, and nothing wrong was found
  1      failed, or found a broken contract, a surviving mutant or a missed target
  2      wrong arguments, or a mistake in a file that they name
  3      nothing found, but not everything was searched or measured
  4      measure host could not restore a setting of this host
  128+N  ended by signal N: 130 after Ctrl-C
  `quell record -- COMMAND` ends with the code of a command that failed.";

/// An error in the arguments, or in a file that they name: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Returns an error that the user can correct.
pub fn usage(mistake: impl std::fmt::Display) -> anyhow::Error {
    Usage(mistake.to_string()).into()
}

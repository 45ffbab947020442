//! Errors of the user who requests a boot or a comparison, as distinct from failures in it.

use std::path::Path;

/// An error in the command line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub(crate) String);

impl UsageError {
    /// Creates an error that the file `path` can't be used, with the reason.
    pub(crate) fn unfit(path: &Path, why: impl ToString) -> Self {
        UsageError(format!("{}: {}", path.display(), why.to_string()))
    }
}

/// The size limit of a kernel's image in bytes.
const LONGEST: u64 = 256 << 20;

/// Reads a file that the user named.
///
/// # Errors
/// If the file can't be read, isn't a regular file, or is larger than the limit.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, UsageError> {
    let unfit = |error: std::io::Error| UsageError::unfit(path, error);
    let about = std::fs::metadata(path).map_err(unfit)?;
    if !about.is_file() {
        return Err(UsageError::unfit(path, "not a regular file"));
    }
    if about.len() > LONGEST {
        return Err(UsageError::unfit(path, "not a kernel image: longer than 256 MB"));
    }
    std::fs::read(path).map_err(unfit)
}

//! Errors of the user who requests a boot or a comparison, as distinct from failures in it.

use std::path::{Path, PathBuf};

/// An error in the command line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UsageError {
    /// No workload has rows on these numbers of CPUs.
    #[error("nothing to compare: {}", without.join("; "))]
    NoRows {
        /// The reason for each workload.
        without: Vec<String>,
    },
    /// The user named no kernel, and none was fetched.
    #[error(
        "no Linux kernel to compare with: name an image with --kernel, or download Debian's with --fetch \
         (needs apt-get and 35 MB)"
    )]
    NoKernel,
    /// The named directory for modules contains none.
    #[error("{} contains no modules: name the directory that contains `kernel`", directory.display())]
    NoModules {
        /// The given path.
        directory: PathBuf,
    },
    /// A given file or directory is not of the required kind.
    #[error("{}: {why}", path.display())]
    Unfit {
        /// The given path.
        path: PathBuf,
        /// The file's kind, and the required one.
        why: String,
    },
}

impl UsageError {
    /// Creates an error that the file `path` can't be used, with the reason.
    pub(crate) fn unfit(path: &Path, why: impl ToString) -> Self {
        let (path, why) = (path.to_path_buf(), why.to_string());
        UsageError::Unfit { path, why }
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

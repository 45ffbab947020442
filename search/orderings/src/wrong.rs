//! What can be wrong with the sources.

use std::path::{Path, PathBuf};

/// What is wrong with the sources.
#[derive(Debug, thiserror::Error)]
pub enum Wrong {
    /// A file could not be read.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A file is not Rust.
    #[error("{}: {error}", path.display())]
    Source {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        error: proc_macro2::LexError,
    },
    /// Orderings and comments do not fit: a line for each, with file, line and the way out.
    #[error("{}", .0.join("\n"))]
    Comments(Vec<String>),
}

/// The text of a file.
pub(crate) fn text(path: &Path) -> Result<String, Wrong> {
    std::fs::read_to_string(path).map_err(|error| Wrong::File {
        path: path.to_owned(),
        error,
    })
}

//! Finds workloads by name or path.

use std::io;
use std::path::Path;

use quell_workloads::files::hint;
use quell_workloads::{FileError, Workload};

use crate::machines;

/// The reason why a workload wasn't found.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// No built-in workload has this name.
    #[error(
        "no workload `{name}`{}; there are {}; for a file of your own, give its path",
        hint(name, names()), names().join(", ")
    )]
    Unknown {
        /// The name that wasn't found.
        name: String,
    },
    /// The file can't be read.
    #[error("workload file {path}: {error}")]
    Unreadable {
        /// The path of the file.
        path: String,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The file is invalid. The error lists every mistake with line and key.
    #[error("{0}")]
    Wrong(FileError),
}

/// Returns whether a text can only be a file's path, not a built-in workload's name.
pub fn is_path(text: &str) -> bool {
    let path = Path::new(text);
    Workload::from_name(text).is_none()
        && (path.exists() || path.extension().is_some() || path.components().count() != 1)
}

/// Finds a built-in workload, or reads a workload file if the text is a path.
///
/// Parameters have their default values.
///
/// # Errors
/// If there is no such workload, or if the file can't be read or is invalid. The error lists every mistake with line
/// and key.
pub fn find(text: &str) -> Result<Workload, FindError> {
    if let Some(workload) = Workload::from_name(text) {
        return Ok(workload);
    }
    if !is_path(text) {
        return Err(FindError::Unknown { name: text.into() });
    }
    let content = machines::read(Path::new(text))
        .map_err(|error| FindError::Unreadable { path: text.into(), error })?;
    Workload::parse(text, &content).map_err(FindError::Wrong)
}

/// Returns the names of the built-in workloads.
pub fn names() -> Vec<&'static str> {
    Workload::all().iter().map(Workload::name).collect()
}

//! Finds kernel files by name or path.

use std::fs;
use std::path::{Path, PathBuf};

use quell_clock::KernelFile;
use quell_clock::file::{KERNELS, built_in_kernel, no_kernel};

use crate::machines::{self, FindError};

/// The kernel for comparisons with a published Linux without its own kernel file.
pub const LINUX: &str = "linux-6.18";

/// Finds a built-in kernel, or reads a kernel file if the text is a path.
///
/// # Errors
/// If there is no such kernel, or if the file can't be read or is invalid. The error lists every mistake with line and
/// key.
pub fn find(text: &str) -> Result<KernelFile, FindError> {
    if let Some(kernel) = built_in_kernel(text) {
        return Ok(kernel);
    }
    let path = Path::new(text);
    if !path.exists() && path.components().count() == 1 && !text.ends_with(".toml") {
        let hint = "; for a file of your own, give its path";
        return Err(FindError::Wrong(no_kernel(text) + hint));
    }
    parse(path, &mut Vec::new()).map_err(FindError::Wrong)
}

/// Reads a file, after the files on which it is based. Their paths are relative to its folder.
fn parse(path: &Path, above: &mut Vec<PathBuf>) -> Result<KernelFile, String> {
    let shown = path.display().to_string();
    let content = machines::read(path).map_err(|error| format!("kernel file {shown}: {error}"))?;
    // The same file may be reached by several paths.
    let same = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if above.contains(&same) {
        return Err(format!("{shown} is based on itself"));
    }
    above.push(same);
    let base = |wanted: &str| {
        if let Some(kernel) = built_in_kernel(wanted) {
            return Ok(kernel);
        }
        let file = path.parent().unwrap_or(Path::new("")).join(wanted);
        match file.is_file() {
            true => parse(&file, above),
            false => Err(no_kernel(wanted)),
        }
    };
    KernelFile::parse_on(&shown, &content, base).map_err(|error| error.to_string())
}

/// Returns the names of the built-in kernels.
pub fn names() -> impl Iterator<Item = &'static str> {
    KERNELS.iter().map(|(name, _)| *name)
}

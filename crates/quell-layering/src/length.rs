//! Source files that are long without saying why.

use crate::{Unreadable, read};
use std::path::{Path, PathBuf};
use walkdir::WalkDir;

/// The most lines that a file may have without giving a reason.
pub const MOST: usize = 500;

/// Whether the first paragraph of a file's documentation gives a reason for its length: it says "long
/// because".
fn gives_reason(text: &str) -> bool {
    let paragraph: Vec<&str> = text
        .lines()
        .map_while(|line| line.strip_prefix("//!"))
        .map(str::trim)
        .take_while(|line| !line.is_empty())
        .collect();
    paragraph.join(" ").contains("long because")
}

/// The Rust files below a folder that have more than [`MOST`] lines and do not say why in the first paragraph
/// of their documentation, with their lengths, longest first. What Cargo builds is left out.
///
/// # Errors
/// If a file cannot be read.
pub fn unexplained(folder: &Path) -> Result<Vec<(PathBuf, usize)>, Unreadable> {
    let mut found = Vec::new();
    let files = WalkDir::new(folder).into_iter();
    for entry in files.filter_entry(|entry| entry.file_name() != "target") {
        let entry = entry.map_err(|error| Unreadable::File {
            path: folder.to_owned(),
            error: error.into(),
        })?;
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let text = read(path)?;
        let lines = text.lines().count();
        if lines > MOST && !gives_reason(&text) {
            found.push((path.to_owned(), lines));
        }
    }
    found.sort_by_key(|(path, lines)| (std::cmp::Reverse(*lines), path.clone()));
    Ok(found)
}

//! Source files that are long without saying why.
//!
//! A source is whatever a person writes and reads as code, by the ending of its name ([`SOURCES`]) or by a first line
//! that names an interpreter. The comment at its head begins with what the file is, in a paragraph of its own, and goes
//! on with an essay. The reason stands in the first paragraph of the essay, so that it does not take the place of what
//! the file is; or, where there is no essay, behind that. A line with a licence or an interpreter stands before all of
//! it.

use crate::{Unreadable, files, read};
use std::path::{Path, PathBuf};

/// The most lines that a file may have without giving a reason.
pub const MOST: usize = 500;

/// How the names of sources end.
pub const SOURCES: [&str; 11] = [
    "rs", "c", "h", "s", "S", "ld", "py", "sh", "js", "css", "toml",
];

/// What a line of a comment begins with, in one of these languages; longer ones first.
const LEADERS: [&str; 9] = ["\"\"\"", "//!", "///", "/**", "/*", "*/", "//", "*", "#"];

/// Whether a file is a source.
fn is_source(path: &Path, text: &str) -> bool {
    match path.extension() {
        Some(ending) => SOURCES.iter().any(|source| ending == *source),
        None => text.starts_with("#!"),
    }
}

/// What a line says without the signs that make it a comment; `None` if it is none.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim();
    let leader = LEADERS.iter().find(|leader| line.starts_with(*leader))?;
    Some(line[leader.len()..].trim())
}

/// Whether a comment over several lines, or a text in quotes, ends in this line; `opens` if it begins there, too.
fn closes(line: &str, opens: bool) -> bool {
    line.ends_with("*/") || line.ends_with("\"\"\"") && (!opens || line.len() >= 6)
}

/// Whether one of the first two paragraphs of a file gives a reason for its length: it says "long because".
fn gives_reason(path: &Path, text: &str) -> bool {
    let rust = path.extension().is_some_and(|ending| ending == "rs");
    let mut lines = text.lines().peekable();
    while lines
        .next_if(|line| line.starts_with("#!") || line.contains("SPDX-License-Identifier"))
        .is_some()
    {}
    let (mut paragraphs, mut begins) = (0, true);
    let mut head: Vec<&str> = Vec::new();
    // Lines of a comment over several lines, and of a text in quotes, need not begin with a sign.
    let mut open = false;
    for line in lines {
        let said = match comment(line) {
            _ if rust => line.strip_prefix("//!").map(str::trim),
            None if open => Some(line.trim()),
            said => said,
        };
        let Some(said) = said else { break };
        let opens = !open && (line.starts_with("/*") || line.starts_with("\"\"\""));
        open |= opens;
        paragraphs += usize::from(begins && !said.is_empty());
        begins = said.is_empty();
        if paragraphs > 2 {
            break;
        }
        head.push(said);
        if open && closes(line.trim(), opens) {
            break;
        }
    }
    head.join(" ").contains("long because")
}

/// The sources below a folder that have more than [`MOST`] lines and do not say why at their head, with their lengths,
/// longest first. Folders of built files, and symbolic links, are left out.
///
/// # Errors
/// If a file cannot be read.
pub fn unexplained(folder: &Path) -> Result<Vec<(PathBuf, usize)>, Unreadable> {
    let mut found = Vec::new();
    for path in files(folder) {
        let path = path?;
        let could_be = path
            .extension()
            .is_none_or(|ending| SOURCES.iter().any(|source| ending == *source));
        if !could_be {
            continue;
        }
        let text = read(&path)?;
        let lines = text.lines().count();
        if is_source(&path, &text) && lines > MOST && !gives_reason(&path, &text) {
            found.push((path, lines));
        }
    }
    found.sort_by_key(|(path, lines)| (std::cmp::Reverse(*lines), path.clone()));
    Ok(found)
}

//! Lines of prose that are too wide to be read beside each other, in documents and in comments.
//!
//! Looked at are Markdown files and, in sources, the lines that are a comment and nothing else. Left out is what cannot be
//! wrapped: rows of tables, blocks of code (between fences, or indented by four), links and words in code font that are
//! as wide by themselves, and, because only whole lines of comments are looked at, literals of text.

use crate::length::SOURCES;
use crate::{Unreadable, files, read};
use std::path::{Path, PathBuf};

/// The most columns that a line of prose may have.
pub const WIDEST: usize = 132;

/// A line that is too wide.
#[derive(Debug, PartialEq, Eq)]
pub struct Wide {
    /// Its file.
    pub path: PathBuf,
    /// Its number, from 1.
    pub line: usize,
    /// How many columns it has.
    pub columns: usize,
}

/// What the lines of comments begin with in a source of this kind.
fn signs(ending: &str) -> &'static [&'static str] {
    match ending {
        "rs" => &["///", "//!", "//"],
        "c" | "h" | "s" | "S" | "js" | "css" => &["//", "/*", "* "],
        _ => &["# "],
    }
}

/// The prose of a line: all of it in a document, what is behind the sign of a comment in a source.
fn prose<'l>(line: &'l str, signs: Option<&[&str]>) -> Option<&'l str> {
    let Some(signs) = signs else {
        return Some(line);
    };
    let line = line.trim_start();
    let text = signs.iter().find_map(|sign| line.strip_prefix(sign))?;
    Some(text.strip_prefix(' ').unwrap_or(text))
}

/// Whether a line has a place at which it may be broken: a space that is in no link and no code font.
fn can_break(text: &str) -> bool {
    let (mut code, mut link, mut before) = (false, 0, ' ');
    let mark = |c: char| c.is_ascii_digit() || "-*+.".contains(c);
    for c in text.trim_start_matches(|c| mark(c) || c == ' ').chars() {
        match c {
            '`' => code = !code,
            _ if code => {}
            '[' => link += 1,
            '(' if before == ']' => link += 1,
            ']' | ')' if link > 0 => link -= 1,
            ' ' if link == 0 => return true,
            _ => {}
        }
        before = c;
    }
    false
}

/// The lines of a text that are too wide, by their numbers, with their columns. `signs` are those of comments; a document has none.
fn wide_lines(text: &str, signs: Option<&[&str]>) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut fence = false;
    for (line, number) in text.lines().zip(1..) {
        let Some(prose) = prose(line, signs) else {
            fence = false;
            continue;
        };
        let fences = prose.trim_start().starts_with("```");
        fence ^= fences;
        let aside =
            fence || fences || prose.starts_with("    ") || prose.trim_start().starts_with('|');
        let columns = line.chars().count();
        if columns > WIDEST && !aside && can_break(prose) {
            found.push((number, columns));
        }
    }
    found
}

/// The lines of prose below a folder that have more than [`WIDEST`] columns. Folders of built files, and symbolic links, are
/// left out.
///
/// # Errors
/// If a file cannot be read.
pub fn too_wide(folder: &Path) -> Result<Vec<Wide>, Unreadable> {
    let mut found = Vec::new();
    for path in files(folder) {
        let path = path?;
        let ending = path.extension().and_then(|ending| ending.to_str());
        let signs = match ending {
            Some("md") => None,
            Some(ending) if SOURCES.contains(&ending) => Some(signs(ending)),
            _ => continue,
        };
        let lines = wide_lines(&read(&path)?, signs);
        found.extend(lines.into_iter().map(|(line, columns)| Wide {
            path: path.clone(),
            line,
            columns,
        }));
    }
    found.sort_by(|one, other| (&one.path, one.line).cmp(&(&other.path, other.line)));
    Ok(found)
}

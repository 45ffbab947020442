//! Small edits of sources that are not ours.
//!
//! An edit names a file, a short anchor in it that stands there exactly once, and what to do there. It says nothing
//! of the text around, so that it holds while that changes, and it fails where it does not: an anchor that is missing,
//! or there twice, is an [`EditError`] that names file and anchor. An edit that was made already is not made again.

use serde::Deserialize;
use std::path::{Path, PathBuf};

/// A list of edits, and of files to put beside them.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Edits {
    /// Whole files.
    #[serde(default)]
    pub file: Vec<NewFile>,
    /// Edits, in order.
    #[serde(default)]
    pub edit: Vec<Edit>,
}

/// A file of ours.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct NewFile {
    /// Where it is, beside the list.
    pub from: PathBuf,
    /// Where it goes.
    pub to: PathBuf,
}

/// One edit. Exactly one of `with`, `after` and `before` says what is done at the anchor.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// The file to be changed.
    pub file: PathBuf,
    /// What it is for.
    pub why: String,
    /// The anchor: stands in the file exactly once.
    pub at: String,
    /// Where what is replaced ends: the first of these after the anchor. The anchor's end if absent.
    pub through: Option<String>,
    /// What replaces the anchor, or everything from it through the end.
    pub with: Option<String>,
    /// What comes after the anchor's line.
    pub after: Option<String>,
    /// What comes before the anchor's line.
    pub before: Option<String>,
}

/// Why an edit cannot be made.
#[derive(thiserror::Error, Debug)]
pub enum EditError {
    /// The anchor is not there, or not once.
    #[error(
        "{file}: \"{at}\" stands there {found} times, not once ({why}): the sources are not those that the edits were \
         written for"
    )]
    Anchor {
        /// The file.
        file: PathBuf,
        /// The anchor.
        at: String,
        /// What the edit is for.
        why: String,
        /// How often it is there.
        found: usize,
    },
    /// The end is not there.
    #[error(
        "{file}: no \"{through}\" after \"{at}\" ({why}): the sources are not those that the edits were written for"
    )]
    End {
        /// The file.
        file: PathBuf,
        /// The anchor.
        at: String,
        /// The end.
        through: String,
        /// What the edit is for.
        why: String,
    },
    /// The edit puts nothing, or two things.
    #[error("{file}: the edit at \"{at}\" must put something: one of `with`, `after` and `before`")]
    Ambiguous {
        /// The file.
        file: PathBuf,
        /// The anchor.
        at: String,
    },
    /// A file cannot be read or written.
    #[error("{file}: {error}")]
    File {
        /// The file.
        file: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The list is no list of edits.
    #[error("{file}: {error}")]
    List {
        /// The list.
        file: PathBuf,
        /// Why.
        error: toml::de::Error,
    },
}

fn read(file: &Path) -> Result<String, EditError> {
    std::fs::read_to_string(file).map_err(|error| EditError::File {
        file: file.to_path_buf(),
        error,
    })
}

/// Writes a file if it does not say that already, so that nothing is built again for it.
///
/// # Errors
/// If it cannot be written.
pub fn write(file: &Path, text: &str) -> Result<(), EditError> {
    let wrong = |error| EditError::File {
        file: file.to_path_buf(),
        error,
    };
    if std::fs::read_to_string(file).is_ok_and(|held| held == text) {
        return Ok(());
    }
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).map_err(wrong)?;
    }
    std::fs::write(file, text).map_err(wrong)
}

impl Edit {
    /// The text with the edit.
    ///
    /// # Errors
    /// If the anchor or the end is missing.
    pub fn apply(&self, text: &str) -> Result<String, EditError> {
        let ambiguous = || EditError::Ambiguous {
            file: self.file.clone(),
            at: self.at.clone(),
        };
        let puts = [&self.with, &self.after, &self.before];
        let one = puts
            .iter()
            .filter_map(|put| put.as_ref())
            .filter(|put| !put.is_empty());
        if one.count() != 1 || (self.through.is_some() && self.with.is_none()) {
            return Err(ambiguous());
        }
        if self.is_made(text) {
            return Ok(text.to_string());
        }
        let found = text.matches(&self.at).count();
        if found != 1 {
            return Err(EditError::Anchor {
                file: self.file.clone(),
                at: self.at.clone(),
                why: self.why.clone(),
                found,
            });
        }
        let start = text.find(&self.at).ok_or_else(ambiguous)?;
        let mut end = start + self.at.len();
        if let Some(through) = &self.through {
            let length = text[end..].find(through).ok_or_else(|| EditError::End {
                file: self.file.clone(),
                at: self.at.clone(),
                through: through.clone(),
                why: self.why.clone(),
            })?;
            end += length + through.len();
        }
        let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = text[end..].find('\n').map_or(text.len(), |at| end + at + 1);
        let (from, to, put) = match (&self.with, &self.after, &self.before) {
            (Some(with), _, _) => (start, end, with),
            (_, Some(after), _) => (line_end, line_end, after),
            (_, _, Some(before)) => (line_start, line_start, before),
            _ => return Err(ambiguous()),
        };
        Ok([&text[..from], put, &text[to..]].concat())
    }

    /// Whether what the edit puts is there, and what it takes away is not.
    fn is_made(&self, text: &str) -> bool {
        match (&self.with, &self.after, &self.before) {
            (Some(with), _, _) if with.contains(&self.at) => text.contains(with.as_str()),
            (Some(with), _, _) => !text.contains(&self.at) && text.contains(with.as_str()),
            (_, Some(put), _) | (_, _, Some(put)) => text.contains(put.as_str()),
            _ => false,
        }
    }
}

impl Edits {
    /// Reads a list, with `@NAME@` in it replaced as `names` says.
    ///
    /// # Errors
    /// If it cannot be read or is no list.
    pub fn read(list: &Path, names: &[(&str, &str)]) -> Result<Self, EditError> {
        let mut text = read(list)?;
        for (name, value) in names {
            text = text.replace(&format!("@{name}@"), value);
        }
        toml::from_str(&text).map_err(|error| EditError::List {
            file: list.to_path_buf(),
            error,
        })
    }

    /// Makes all edits in `sources`; `beside` is the folder of our files. Nothing is written unless every anchor
    /// is there.
    ///
    /// # Errors
    /// The first edit that cannot be made.
    pub fn apply(&self, sources: &Path, beside: &Path) -> Result<(), EditError> {
        let mut changed: Vec<(PathBuf, String)> = Vec::new();
        for edit in &self.edit {
            let path = sources.join(&edit.file);
            let index = match changed.iter().position(|(known, _)| *known == path) {
                Some(index) => index,
                None => {
                    changed.push((path.clone(), read(&path)?));
                    changed.len() - 1
                }
            };
            let text = &mut changed[index].1;
            *text = edit.apply(text)?;
        }
        for file in &self.file {
            changed.push((sources.join(&file.to), read(&beside.join(&file.from))?));
        }
        for (path, text) in &changed {
            write(path, text)?;
        }
        Ok(())
    }
}

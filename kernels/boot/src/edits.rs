//! Edits third-party sources by a list of anchors.
//!
//! A kernel that gets the engine isn't part of this project; only our changes are. A list, which is a TOML file,
//! contains whole files of ours, and edits. An [`Edit`] gives a file, a short anchor in it, and text to put in the
//! anchor's place, before its line or after it. It doesn't depend on the text around it. A missing or ambiguous anchor
//! is an [`EditError`] that names file and anchor. We write nothing unless every edit of the list is possible, because
//! a kernel with half of them would be worse than none.
//!
//! [`Edits::changed`] reads delivered sources, makes every edit, and writes nothing. [`Edits::apply`] changes a copy in
//! place. It may be repeated, because it skips edits that were made before.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use walkdir::WalkDir;

/// A list of edits, and of files to add.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Edits {
    /// Whole files to add.
    #[serde(default)]
    pub file: Vec<NewFile>,
    /// Edits in order: each is applied to the result of earlier edits of its file.
    #[serde(default)]
    pub edit: Vec<Edit>,
}

/// A file of ours, or a folder of them.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct NewFile {
    /// The path, from the list's folder. A folder includes all files below it.
    pub from: PathBuf,
    /// The path in the sources. A folder's files keep their places in it.
    pub to: PathBuf,
}

/// An edit. At least one of `with`, `before` and `after` is present and not empty.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// The file to change, from the root of the sources.
    pub file: PathBuf,
    /// The purpose of the edit.
    pub why: String,
    /// The anchor. It occurs exactly once in the file, or is the first one after `within`.
    pub at: String,
    /// A text before the anchor that occurs exactly once in the file.
    pub within: Option<String>,
    /// The end of the replaced text: the first occurrence of this after the anchor. By default it's the anchor's end.
    pub through: Option<String>,
    /// The text that replaces the anchor, or everything from the anchor through the end.
    pub with: Option<String>,
    /// Lines to insert before the line in which the anchor begins.
    pub before: Option<String>,
    /// Lines to insert after the line in which the replaced text ends.
    pub after: Option<String>,
}

/// The reason why an edit is impossible.
#[derive(thiserror::Error, Debug)]
pub enum EditError {
    /// An anchor, or its `within`, is missing or not unique.
    #[error(
        "{file}: found \"{at}\" {found} times instead of once ({why}); use the sources that the edit was written for, or name \
         the right place with `within`"
    )]
    Anchor {
        /// The file.
        file: PathBuf,
        /// The text.
        at: String,
        /// The edit's purpose.
        why: String,
        /// The number of occurrences.
        found: usize,
    },
    /// The anchor doesn't follow `within`, or the end doesn't follow the anchor.
    #[error(
        "{file}: no \"{missing}\" after \"{after}\" ({why}); use the sources that the edit was written for"
    )]
    Missing {
        /// The file.
        file: PathBuf,
        /// The missing text.
        missing: String,
        /// The text that it should follow.
        after: String,
        /// The edit's purpose.
        why: String,
    },
    /// The edit is empty or meaningless.
    #[error(
        "{file}: the edit at \"{at}\" needs an anchor and at least one of `with`, `before` and `after`, none of them empty; \
         `through` names the end of the text that `with` replaces"
    )]
    Meaningless {
        /// The file.
        file: PathBuf,
        /// The anchor.
        at: String,
    },
    /// A file can't be read or written.
    #[error("{file}: {error}")]
    File {
        /// The file.
        file: PathBuf,
        /// The error.
        error: std::io::Error,
    },
    /// The list isn't a list of edits.
    #[error("{file}: {error}")]
    List {
        /// The list.
        file: PathBuf,
        /// The error.
        error: toml::de::Error,
    },
}

/// Returns a function that describes an error of this file.
fn of(file: &Path) -> impl Fn(std::io::Error) -> EditError {
    move |error| EditError::File { file: file.to_path_buf(), error }
}

/// Writes a file unless it already has this content. So builds don't repeat in vain.
///
/// Creates a new file. If the old one shares its content with others by hard links, those keep theirs.
///
/// # Errors
/// If the file can't be written.
pub fn write(file: &Path, content: impl AsRef<[u8]>) -> Result<(), EditError> {
    let content = content.as_ref();
    if std::fs::read(file).is_ok_and(|held| held == content) {
        return Ok(());
    }
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).map_err(of(file))?;
    }
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(of(file)(error)),
        _ => {}
    }
    std::fs::write(file, content).map_err(of(file))
}

/// Returns all files below a folder, relative to it, in order. For a file, returns one empty path.
///
/// # Errors
/// If the folder can't be read.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>, EditError> {
    let mut found = Vec::new();
    for entry in WalkDir::new(folder).sort_by_file_name() {
        let entry = entry.map_err(|error| of(folder)(error.into()))?;
        if !entry.file_type().is_dir()
            && let Ok(name) = entry.path().strip_prefix(folder)
        {
            found.push(name.to_path_buf());
        }
    }
    Ok(found)
}

impl Edit {
    /// Returns the text with the edit. Returns it unchanged if the edit was made before, which means that the new text
    /// is there and the old text isn't.
    ///
    /// # Errors
    /// If the anchor is missing or ambiguous, the end is missing, or the edit is empty.
    pub fn apply(&self, text: &str) -> Result<String, EditError> {
        self.check()?;
        if self.is_made(text) {
            return Ok(text.to_string());
        }
        self.make(text)
    }

    /// Checks that the edit isn't meaningless.
    ///
    /// # Errors
    /// If the edit has no meaning in any text.
    fn check(&self) -> Result<(), EditError> {
        let puts = || [&self.with, &self.before, &self.after].into_iter().flatten();
        let texts = [Some(&self.at), self.within.as_ref(), self.through.as_ref()];
        let empty = puts().chain(texts.into_iter().flatten()).any(String::is_empty);
        if empty || puts().count() == 0 || (self.through.is_some() && self.with.is_none()) {
            return Err(EditError::Meaningless { file: self.file.clone(), at: self.at.clone() });
        }
        Ok(())
    }

    /// Returns whether the edit's new text is there and its old text isn't.
    fn is_made(&self, text: &str) -> bool {
        let puts = [&self.with, &self.before, &self.after];
        let taken = match &self.with {
            Some(with) => with.contains(&self.at) || !text.contains(&self.at),
            None => true,
        };
        taken && puts.into_iter().flatten().all(|put| text.contains(put))
    }

    /// Returns the end of the only occurrence of a text.
    fn only(&self, text: &str, wanted: &str) -> Result<usize, EditError> {
        let mut found = text.match_indices(wanted);
        match (found.next(), found.count()) {
            (Some((at, _)), 0) => Ok(at + wanted.len()),
            (first, more) => Err(EditError::Anchor {
                file: self.file.clone(),
                at: wanted.to_string(),
                why: self.why.clone(),
                found: usize::from(first.is_some()) + more,
            }),
        }
    }

    /// Returns the end of the first occurrence of a text after `from`, which is the end of another text.
    fn first(
        &self,
        text: &str,
        from: usize,
        after: &str,
        wanted: &str,
    ) -> Result<usize, EditError> {
        match text[from..].find(wanted) {
            Some(at) => Ok(from + at + wanted.len()),
            None => Err(EditError::Missing {
                file: self.file.clone(),
                missing: wanted.to_string(),
                after: after.to_string(),
                why: self.why.clone(),
            }),
        }
    }

    /// Returns the text with the edit, even if it was made before.
    fn make(&self, text: &str) -> Result<String, EditError> {
        let anchored = match &self.within {
            None => self.only(text, &self.at)?,
            Some(within) => self.first(text, self.only(text, within)?, within, &self.at)?,
        };
        let start = anchored - self.at.len();
        let end = match &self.through {
            None => anchored,
            Some(through) => self.first(text, anchored, &self.at, through)?,
        };
        let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let (line_end, ending) = match text[end..].find('\n') {
            Some(at) => (end + at + 1, ""),
            None => (text.len(), "\n"),
        };
        let put = |text: &Option<String>| text.clone().unwrap_or_default();
        let after = match &self.after {
            Some(after) => [ending, after].concat(),
            None => String::new(),
        };
        let anchor = self.with.as_deref().unwrap_or(&text[start..end]);
        Ok([
            &text[..line_start],
            &put(&self.before),
            &text[line_start..start],
            anchor,
            &text[end..line_end],
            &after,
            &text[line_end..],
        ]
        .concat())
    }
}

impl Edits {
    /// Reads a list, with each `@NAME@` replaced from `names`.
    ///
    /// # Errors
    /// If the list can't be read, or isn't a list.
    pub fn read(list: &Path, names: &[(&str, &str)]) -> Result<Self, EditError> {
        let mut text = std::fs::read_to_string(list).map_err(of(list))?;
        for (name, value) in names {
            text = text.replace(&format!("@{name}@"), value);
        }
        toml::from_str(&text).map_err(|error| EditError::List { file: list.to_path_buf(), error })
    }

    /// Returns the files that the list changes or adds, with paths and new contents.
    ///
    /// `sources` are unedited, and `beside` is the folder of our files. Writes nothing.
    ///
    /// # Errors
    /// The first edit that is impossible, or file that can't be read.
    pub fn changed(
        &self,
        sources: &Path,
        beside: &Path,
    ) -> Result<BTreeMap<PathBuf, Vec<u8>>, EditError> {
        self.contents(sources, beside, |_, _| false)
    }

    /// Makes all edits in `sources` that weren't made before. `beside` is the folder of our files. Writes nothing
    /// unless every anchor is there.
    ///
    /// # Errors
    /// The first edit that is impossible, or file that can't be read or written.
    pub fn apply(&self, sources: &Path, beside: &Path) -> Result<(), EditError> {
        for (name, content) in self.contents(sources, beside, Edit::is_made)? {
            write(&sources.join(name), content)?;
        }
        Ok(())
    }

    /// Applies the list to the sources. `made` decides about each edit from the original file, not from the result of
    /// earlier edits, because several edits may have equal texts.
    fn contents(
        &self,
        sources: &Path,
        beside: &Path,
        made: fn(&Edit, &str) -> bool,
    ) -> Result<BTreeMap<PathBuf, Vec<u8>>, EditError> {
        let mut texts: BTreeMap<&Path, (String, String)> = BTreeMap::new();
        for edit in &self.edit {
            edit.check()?;
            let (before, text) = match texts.remove(edit.file.as_path()) {
                Some(known) => known,
                None => {
                    let path = sources.join(&edit.file);
                    let text = std::fs::read_to_string(&path).map_err(of(&path))?;
                    (text.clone(), text)
                }
            };
            let text = match made(edit, &before) {
                true => text,
                false => edit.make(&text)?,
            };
            texts.insert(&edit.file, (before, text));
        }
        let edited = texts.into_iter();
        let mut contents: BTreeMap<PathBuf, Vec<u8>> =
            edited.map(|(name, (_, text))| (name.to_path_buf(), text.into_bytes())).collect();
        for (from, to) in self.added(beside)? {
            contents.insert(to, std::fs::read(&from).map_err(of(&from))?);
        }
        Ok(contents)
    }

    /// Returns the files that the list adds: source path, and destination in the sources.
    ///
    /// # Errors
    /// If one of their folders can't be read.
    pub fn added(&self, beside: &Path) -> Result<Vec<(PathBuf, PathBuf)>, EditError> {
        let mut added = Vec::new();
        for file in &self.file {
            let from = beside.join(&file.from);
            for name in files(&from)? {
                // A single file has an empty relative path, and joining that would make it a folder.
                match name.as_os_str().is_empty() {
                    true => added.push((from.clone(), file.to.clone())),
                    false => added.push((from.join(&name), file.to.join(&name))),
                }
            }
        }
        Ok(added)
    }
}

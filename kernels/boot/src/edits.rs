//! Edits third-party sources by a list of anchors.
//!
//! A kernel that gets the engine isn't part of this project; only our changes are. A list, which is a TOML file,
//! contains whole files of ours, and edits. An [`Edit`] gives a file, a short anchor in it, and text to put in the
//! anchor's place, before its line or after it. It doesn't depend on the text around it. The error of a missing or
//! ambiguous anchor names file and anchor. We write nothing unless every edit of the list is possible, because a kernel
//! with half of them would be worse than none.
//!
//! [`Edits::changed`] reads delivered sources, makes every edit, and writes nothing. [`Edits::apply`] changes a copy in
//! place. It may be repeated, because it skips edits that were made before.

use anyhow::{Context, anyhow, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Display;
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

/// Writes a file unless it already has this content. So builds don't repeat in vain.
///
/// Creates a new file. If the old one shares its content with others by hard links, those keep theirs.
///
/// # Errors
/// If the file can't be written.
pub fn write(file: &Path, content: impl AsRef<[u8]>) -> anyhow::Result<()> {
    let content = content.as_ref();
    if std::fs::read(file).is_ok_and(|held| held == content) {
        return Ok(());
    }
    let replace = || {
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        if file.exists() {
            std::fs::remove_file(file)?;
        }
        std::fs::write(file, content)
    };
    replace().with_context(|| format!("writing {}", file.display()))
}

/// Reads a file.
///
/// # Errors
/// If the file can't be read, or isn't text.
pub fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))
}

/// Returns all files below a folder, relative to it, in order. For a file, returns one empty path.
///
/// # Errors
/// If the folder can't be read.
pub fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in WalkDir::new(folder).sort_by_file_name() {
        let entry = entry?;
        if !entry.file_type().is_dir()
            && let Ok(name) = entry.path().strip_prefix(folder)
        {
            found.push(name.to_path_buf());
        }
    }
    Ok(found)
}

impl Edit {
    /// Returns whether the edit's new text is there and its old text isn't.
    fn is_made(&self, text: &str) -> bool {
        let puts = [&self.with, &self.before, &self.after];
        let taken = match &self.with {
            Some(with) => with.contains(&self.at) || !text.contains(&self.at),
            None => true,
        };
        taken && puts.into_iter().flatten().all(|put| text.contains(put))
    }

    /// Describes a place that the edit doesn't find.
    fn lost(&self, what: impl Display) -> anyhow::Error {
        anyhow!(
            "{}: {what} ({}); use the sources that the edit was written for",
            self.file.display(),
            self.why
        )
    }

    /// Returns the end of the only occurrence of a text.
    fn only(&self, text: &str, wanted: &str) -> anyhow::Result<usize> {
        match text.match_indices(wanted).collect::<Vec<_>>()[..] {
            [(at, _)] => Ok(at + wanted.len()),
            ref found => {
                let found = format!("found \"{wanted}\" {} times instead of once", found.len());
                bail!("{}, or name the right place with `within`", self.lost(found))
            }
        }
    }

    /// Returns the end of the first occurrence of a text after `from`, which is the end of another text.
    fn first(&self, text: &str, from: usize, after: &str, wanted: &str) -> anyhow::Result<usize> {
        let at = text[from..].find(wanted);
        let at = at.ok_or_else(|| self.lost(format!("no \"{wanted}\" after \"{after}\"")))?;
        Ok(from + at + wanted.len())
    }

    /// Returns the text with the edit, even if it was made before.
    ///
    /// # Errors
    /// If the anchor is missing or ambiguous, the end is missing, or the edit has no meaning in any text.
    pub(crate) fn make(&self, text: &str) -> anyhow::Result<String> {
        let puts = || [&self.with, &self.before, &self.after].into_iter().flatten();
        let texts = [Some(&self.at), self.within.as_ref(), self.through.as_ref()];
        let empty = puts().chain(texts.into_iter().flatten()).any(String::is_empty);
        if empty || puts().count() == 0 || (self.through.is_some() && self.with.is_none()) {
            bail!(
                "{}: the edit at \"{}\" needs an anchor and at least one of `with`, `before` and `after`, none of \
                 them empty; `through` names the end of the text that `with` replaces",
                self.file.display(),
                self.at
            );
        }
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
    pub fn read(list: &Path, names: &[(&str, &str)]) -> anyhow::Result<Self> {
        let mut text = read(list)?;
        for (name, value) in names {
            text = text.replace(&format!("@{name}@"), value);
        }
        toml::from_str(&text).with_context(|| list.display().to_string())
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
    ) -> anyhow::Result<BTreeMap<PathBuf, Vec<u8>>> {
        self.contents(sources, beside, |_, _| false)
    }

    /// Makes all edits in `sources` that weren't made before. `beside` is the folder of our files. Writes nothing
    /// unless every anchor is there.
    ///
    /// # Errors
    /// The first edit that is impossible, or file that can't be read or written.
    pub fn apply(&self, sources: &Path, beside: &Path) -> anyhow::Result<()> {
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
    ) -> anyhow::Result<BTreeMap<PathBuf, Vec<u8>>> {
        let mut texts: BTreeMap<&Path, (String, String)> = BTreeMap::new();
        for edit in &self.edit {
            if !texts.contains_key(&*edit.file) {
                let text = read(&sources.join(&edit.file))?;
                texts.insert(&edit.file, (text.clone(), text));
            }
            if let Some((before, text)) = texts.get_mut(&*edit.file)
                && !made(edit, before)
            {
                *text = edit.make(text)?;
            }
        }
        let edited = texts.into_iter();
        let mut contents: BTreeMap<PathBuf, Vec<u8>> =
            edited.map(|(name, (_, text))| (name.to_path_buf(), text.into_bytes())).collect();
        for (from, to) in self.added(beside)? {
            let content = std::fs::read(&from);
            contents.insert(to, content.with_context(|| format!("reading {}", from.display()))?);
        }
        Ok(contents)
    }

    /// Returns the files that the list adds: source path, and destination in the sources.
    ///
    /// # Errors
    /// If one of their folders can't be read.
    pub fn added(&self, beside: &Path) -> anyhow::Result<Vec<(PathBuf, PathBuf)>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(at: &str) -> Edit {
        Edit {
            file: PathBuf::from("src/some.rs"),
            why: "a test".into(),
            at: at.into(),
            within: None,
            through: None,
            with: None,
            after: None,
            before: None,
        }
    }

    const TEXT: &str = "one\n  two { a; b; }\nthree\n";

    #[test]
    fn an_edit_replaces_and_inserts_and_is_made_once() {
        let two = || edit("two");
        let with = || Some("four".to_string());
        let line = |line: &str| Some(format!("{line}\n"));
        for (edit, expected) in [
            (Edit { with: with(), ..two() }, "one\n  four { a; b; }\nthree\n"),
            (Edit { through: Some("}".into()), with: with(), ..two() }, "one\n  four\nthree\n"),
            (
                Edit { with: Some("two, four".into()), ..two() },
                "one\n  two, four { a; b; }\nthree\n",
            ),
            (Edit { after: line("four"), ..two() }, "one\n  two { a; b; }\nfour\nthree\n"),
            (Edit { before: line("four"), ..two() }, "one\nfour\n  two { a; b; }\nthree\n"),
            (
                Edit { with: with(), before: line("three"), after: line("five"), ..two() },
                "one\nthree\n  four { a; b; }\nfive\nthree\n",
            ),
        ] {
            assert!(!edit.is_made(TEXT));
            assert_eq!(edit.make(TEXT).unwrap(), expected);
            assert!(edit.is_made(expected), "{edit:?}");
        }
        let last = Edit { after: line("four"), ..edit("two") };
        assert_eq!(last.make("one\ntwo").unwrap(), "one\ntwo\nfour\n");
    }

    #[test]
    fn an_anchor_is_found_where_it_is_meant() {
        const C: &str = "int other(void)\n{\n\treturn 0;\n}\n\nint some(void)\n{\n\treturn 0;\n}\n";
        let within = Edit {
            within: Some("int some(void)".into()),
            before: Some("\tprepare();\n".into()),
            ..edit("return 0;")
        };
        let expected = C.replace("int some(void)\n{\n", "int some(void)\n{\n\tprepare();\n");
        assert_eq!(within.make(C).unwrap(), expected);

        let with = || Some("four".to_string());
        let missing = Edit { with: with(), ..edit("five") };
        let twice = Edit { with: with(), ..edit("e") };
        let endless = Edit { through: Some("five".into()), with: with(), ..edit("two") };
        let both = [C, C].concat();
        for (edit, text, named) in [
            (&missing, TEXT, &["src/some.rs", "\"five\" 0 times", "a test"][..]),
            (&twice, TEXT, &["\"e\" 3 times"]),
            (&endless, TEXT, &["src/some.rs", "no \"five\" after \"two\""]),
            (
                &within,
                "int some(void)\n{\n}\n",
                &["src/some.rs", "\"return 0;\" after \"int some(void)\""],
            ),
            (&within, "\treturn 0;\n", &["found \"int some(void)\" 0 times"]),
            (&within, &both, &["found \"int some(void)\" 2 times"]),
        ] {
            let error = edit.make(text).unwrap_err().to_string();
            named.iter().for_each(|part| assert!(error.contains(part), "{part}: {error}"));
        }
    }

    #[test]
    fn an_edit_that_means_nothing_is_refused() {
        let empty = Edit { with: Some(String::new()), after: Some("four\n".into()), ..edit("two") };
        let through_nothing =
            Edit { through: Some("}".into()), after: Some("four\n".into()), ..edit("two") };
        let nowhere = Edit { with: Some("four".into()), ..edit("") };
        for wrong in [edit("two"), empty, through_nothing, nowhere] {
            let error = wrong.make(TEXT).unwrap_err().to_string();
            assert!(error.contains("needs an anchor"), "{error}");
        }
    }

    const LIST: &str = r#"
[[file]]
from = "ours"
to = "src"

[[edit]]
file = "a.c"
why = "the second line"
at = "one"
after = "two\n"

[[edit]]
file = "a.c"
why = "the third"
at = "two"
after = "three\n"

"#;

    /// Creates a folder with a list, a file of ours, and sources. Returns the list and the path of the sources.
    fn delivered(folder: &Path) -> (Edits, PathBuf) {
        let list = folder.join("list.toml");
        std::fs::write(&list, LIST).unwrap();
        write(&folder.join("ours/deep/b.c"), "ours\n").unwrap();
        let sources = folder.join("sources");
        write(&sources.join("a.c"), "one\n").unwrap();
        (Edits::read(&list, &[]).unwrap(), sources)
    }

    #[test]
    fn edits_of_a_file_build_on_each_other_and_leave_what_was_delivered_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (list, sources) = delivered(folder.path());
        for _ in 0..2 {
            let files = list.changed(&sources, folder.path()).unwrap();
            assert_eq!(files[Path::new("a.c")], b"one\ntwo\nthree\n");
            assert_eq!(files[Path::new("src/deep/b.c")], b"ours\n");
            assert_eq!(files.len(), 2);
        }
        assert_eq!(std::fs::read(sources.join("a.c")).unwrap(), b"one\n");
        assert!(!sources.join("src").exists());
    }

    /// In place, a list may be repeated. On delivered sources, every edit is made, even if its text is there already.
    #[test]
    fn only_in_place_is_an_edit_taken_for_made() {
        let folder = tempfile::tempdir().unwrap();
        let (list, sources) = delivered(folder.path());
        for _ in 0..2 {
            list.apply(&sources, folder.path()).unwrap();
            assert_eq!(std::fs::read(sources.join("a.c")).unwrap(), b"one\ntwo\nthree\n");
        }
        let error = list.changed(&sources, folder.path()).unwrap_err();
        assert!(error.to_string().contains("\"two\" 2 times"), "{error}");
    }

    /// We decide whether an edit was made from the original file, not from the result of earlier edits with the same text.
    #[test]
    fn the_same_text_goes_to_all_its_places() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("a.c");
        std::fs::write(&source, "one\ntwo\n").unwrap();
        let poll = |at: &str| Edit { file: "a.c".into(), after: Some("poll\n".into()), ..edit(at) };
        let list = Edits { file: Vec::new(), edit: vec![poll("one"), poll("two")] };
        for _ in 0..2 {
            list.apply(folder.path(), folder.path()).unwrap();
            let text = std::fs::read_to_string(&source).unwrap();
            assert_eq!(text, "one\npoll\ntwo\npoll\n");
        }
    }

    #[test]
    fn a_file_is_written_only_if_it_differs_and_never_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (source, tree) = (folder.path().join("source"), folder.path().join("tree"));
        std::fs::write(&source, "same").unwrap();
        std::fs::hard_link(&source, &tree).unwrap();
        let written = || std::fs::metadata(&tree).unwrap().modified().unwrap();
        let before = written();
        write(&tree, "same").unwrap();
        assert_eq!(written(), before);
        write(&tree, "other").unwrap();
        assert_eq!(std::fs::read(&source).unwrap(), b"same");
        assert_eq!(std::fs::read(&tree).unwrap(), b"other");
    }

    /// Each edit of the real lists has a purpose, puts whole lines, and changes a text with its anchor.
    #[test]
    fn the_real_lists_make_sense() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let series = files(&root.join("../linux/series")).unwrap().into_iter();
        let series = series.map(|name| Path::new("../linux/series").join(name));
        let lists = ["hunt/edits.toml", "../linux/edits.toml"].map(PathBuf::from);
        for list in lists.into_iter().chain(series) {
            if list.extension().is_none_or(|kind| kind != "toml") {
                continue;
            }
            let list = Edits::read(&root.join(list), &[]).unwrap();
            assert!(!list.edit.is_empty());
            for edit in &list.edit {
                assert!(!edit.why.is_empty(), "{edit:?}");
                for lines in [&edit.before, &edit.after].into_iter().flatten() {
                    assert!(lines.ends_with('\n'), "{edit:?}");
                }
                let within = edit.within.as_deref().unwrap_or_default();
                let through = edit.through.as_deref().unwrap_or_default();
                let stand_in = [within, &edit.at, through].join("\n");
                assert_ne!(edit.make(&stand_in).unwrap(), stand_in, "{edit:?}");
            }
        }
    }
}

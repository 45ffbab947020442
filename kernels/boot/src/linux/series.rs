//! Makes mails and kernels from the series of patches in `kernels/linux/series`: plain C for Linux, without the engine.
//!
//! Each patch is a list of edits (`NNNN-name.toml`) and its message (`NNNN-name.txt`); `0000-cover.txt` is the cover
//! letter. No text of Linux is in this repository: the mails come from a source tree of the user.

use super::tree::{directory, integration};
use crate::edits::{Edits, read, write};
use crate::toolchain::run;
use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Files with their contents, by their paths in the source.
pub type Files = BTreeMap<PathBuf, Vec<u8>>;

/// A patch of the series.
#[derive(Debug)]
pub struct Patch {
    /// Its message: a subject, an empty line, and the text.
    pub message: String,
    /// Its changes to the source that the earlier patches have left.
    pub edits: Edits,
}

impl Patch {
    /// Returns the first line of its message.
    pub fn subject(&self) -> &str {
        self.message.lines().next().unwrap_or_default()
    }
}

/// The folder of the series.
fn folder() -> PathBuf {
    integration().join("series")
}

/// Reads the patches, in order.
pub fn patches() -> anyhow::Result<Vec<Patch>> {
    let folder = folder();
    let entries = std::fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let mut lists = Vec::new();
    for entry in entries {
        lists.push(entry?.path());
    }
    lists.retain(|path| path.extension().is_some_and(|kind| kind == "toml"));
    lists.sort();
    let patch = |list: PathBuf| {
        Ok(Patch { message: read(&list.with_extension("txt"))?, edits: Edits::read(&list, &[])? })
    };
    lists.into_iter().map(patch).collect()
}

/// Returns the files that the series changes: the source's, then those changed by each patch.
pub fn steps(source: &Path, patches: &[Patch]) -> anyhow::Result<(Files, Vec<Files>)> {
    let now = tempfile::tempdir()?;
    let mut base = Files::new();
    for edit in patches.iter().flat_map(|patch| &patch.edits.edit) {
        if base.contains_key(&edit.file) {
            continue;
        }
        let path = source.join(&edit.file);
        let text = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        write(&now.path().join(&edit.file), &text)?;
        base.insert(edit.file.clone(), text);
    }
    let mut steps = Vec::new();
    for patch in patches {
        let files = patch
            .edits
            .changed(now.path(), &folder())
            .with_context(|| format!("\"{}\"", patch.subject()))?;
        for (file, content) in &files {
            write(&now.path().join(file), content)?;
        }
        steps.push(files);
    }
    Ok((base, steps))
}

/// A command of git in a repository.
fn git(repository: &Path, words: &[&str]) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(repository);
    git.args(["-c", "commit.gpgsign=false", "-c", "core.autocrlf=false"]);
    git.args(words).stdout(Stdio::null());
    git
}

/// Writes the series as mails (`git format-patch`), from a repository with only the changed files. Returns the mails,
/// the cover letter first.
pub fn mails(source: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let patches = patches()?;
    let (base, steps) = steps(source, &patches)?;
    let place = directory().join("series-mails");
    let (repository, mails) = (place.join("repository"), place.join("mails"));
    let _ = std::fs::remove_dir_all(&place);
    std::fs::create_dir_all(&repository)?;
    run(&mut git(&repository, &["init", "-q", "-b", "series"]))?;
    let commit = |files: &Files, message: &str| -> anyhow::Result<()> {
        for (file, content) in files {
            write(&repository.join(file), content)?;
        }
        let file = place.join("message");
        std::fs::write(&file, message)?;
        run(&mut git(&repository, &["add", "--all"]))?;
        run(git(&repository, &["commit", "-q", "--no-verify", "-F"]).arg(&file))
            .context("git needs `user.name` and `user.email` (git config --global)")
    };
    commit(&base, "Linux")?;
    for (number, (patch, files)) in patches.iter().zip(&steps).enumerate() {
        eprintln!("patch {} of {}: {}", number + 1, patches.len(), patch.subject());
        commit(files, &patch.message)?;
    }
    let cover = read(&folder().join("0000-cover.txt"))?;
    run(git(&repository, &["config", "branch.series.description"]).arg(cover))?;
    let count = format!("-{}", patches.len());
    run(git(
        &repository,
        &[
            "format-patch",
            "-q",
            "--rfc",
            "--signoff",
            "--cover-letter",
            "--cover-from-description=subject",
            &count,
            "-o",
        ],
    )
    .arg(std::path::absolute(&mails)?))?;
    let mut written = Vec::new();
    for entry in std::fs::read_dir(&mails)? {
        written.push(entry?.path());
    }
    written.sort();
    Ok(written)
}

/// Checks mails with the source's own `checkpatch.pl`, which prints its complaints.
pub fn check(source: &Path, mails: &[PathBuf]) -> anyhow::Result<()> {
    eprintln!("checkpatch.pl --strict");
    // The cover letter has no patch.
    run(Command::new("perl")
        .arg(source.join("scripts/checkpatch.pl"))
        .args(["--strict", "--terse", "--no-summary"])
        // A `Fixes:` names a commit, and Debian's source has no history.
        .args(["--ignore", "UNKNOWN_COMMIT_ID", "--root"])
        .arg(source)
        .args(mails.iter().skip(1)))
    .context("checkpatch.pl reported problems")
}

/// Makes the tree with the series' first patches, all but `left_out` of them. Files that are as they were are not
/// written, so a build compiles only the changes.
pub fn tree(source: &Path, left_out: usize) -> anyhow::Result<PathBuf> {
    let tree = directory().join("series-tree");
    let patches = patches()?;
    let (mut files, mut steps) = steps(source, &patches)?;
    if left_out >= steps.len() {
        bail!("the series has {} patches", steps.len());
    }
    steps.truncate(steps.len() - left_out);
    files.extend(steps.into_iter().flatten());
    super::tree::link(source, &tree)?;
    for (file, content) in &files {
        write(&tree.join(file), content)?;
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each edit does something, and each message is one that `git format-patch` makes a mail of.
    #[test]
    fn every_patch_can_be_read() {
        let patches = patches().unwrap();
        assert!(patches.len() >= 4);
        for patch in &patches {
            assert!(patch.subject().len() <= 75, "{}", patch.subject());
            assert!(patch.subject().contains(": "), "{}", patch.subject());
            assert_eq!(patch.message.lines().nth(1), Some(""));
            for line in patch.message.lines() {
                assert!(line.len() <= 75, "{line}");
            }
            assert!(!patch.edits.edit.is_empty());
        }
    }

    /// A patch sees the source as the one before has left it.
    #[test]
    fn patches_follow_one_another() {
        let source = tempfile::tempdir().unwrap();
        std::fs::write(source.path().join("file"), "one\n").unwrap();
        let patch = |at: &str, after: &str| {
            let list = source.path().join("list.toml");
            let text = format!(
                "[[edit]]\nfile = \"file\"\nwhy = \"a test\"\nat = \"{at}\"\nafter = \"{after}\\n\"\n"
            );
            std::fs::write(&list, text).unwrap();
            Patch { message: "a: b\n".to_string(), edits: Edits::read(&list, &[]).unwrap() }
        };
        let patches = [patch("one", "two"), patch("two", "three")];
        let (base, steps) = steps(source.path(), &patches).unwrap();
        let file = Path::new("file");
        assert_eq!(base[file], b"one\n");
        assert_eq!(steps[0][file], b"one\ntwo\n");
        assert_eq!(steps[1][file], b"one\ntwo\nthree\n");
        assert!(super::steps(source.path(), &[patch("two", "three")]).is_err());
    }
}

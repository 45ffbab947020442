//! Linux's sources: as Debian gives them, and with the engine in them.
//!
//! Both lie outside the sources of this project, below `target/linux`. What Debian gives is never touched. The tree
//! with the engine shares its files with it (hard links), but for those that are edited or ours: these are written anew,
//! and only if they differ from what is there, so that a build after a change compiles what has changed.

use crate::edits::{self, Edit};
use anyhow::{Context, bail};
use quell_boot::toolchain::{target_directory, which};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use walkdir::WalkDir;

/// Debian's package of the source.
const PACKAGE: &str = "linux-source-6.12";

/// Where everything of Linux is kept.
pub fn directory() -> PathBuf {
    target_directory("linux")
}

/// Where the integration's own files are.
pub fn integration() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integrations/linux")
}

/// Runs a command to its end.
///
/// # Errors
/// If it does not start, or fails.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command
        .status()
        .with_context(|| format!("starting {name}"))?;
    if !status.success() {
        bail!("{name} failed ({status})");
    }
    Ok(())
}

/// The source as Debian gives it, fetched with the package client if it is not there.
///
/// # Errors
/// If it is neither there nor to be had.
pub fn fetch() -> anyhow::Result<PathBuf> {
    let source = directory().join("source");
    if source.join("Makefile").is_file() {
        return Ok(source);
    }
    let partial = directory().join("source.partial");
    // Unpacked beside its place first, so that an interrupted run leaves nothing half done there.
    let _ = std::fs::remove_dir_all(&partial);
    std::fs::create_dir_all(&partial).with_context(|| format!("making {}", partial.display()))?;
    let installed = Path::new("/usr/src").join(format!("{PACKAGE}.tar.xz"));
    let archive = if installed.is_file() {
        installed
    } else {
        for program in ["apt-get", "dpkg"] {
            which(program).with_context(|| {
                format!(
                    "{program} is not here: install {PACKAGE}, or unpack Linux 6.12 to {}",
                    source.display()
                )
            })?;
        }
        eprintln!("fetching {PACKAGE}");
        run(Command::new("apt-get")
            .args(["-q", "download", PACKAGE])
            .current_dir(&partial))
        .context("apt-get update may help")?;
        let package = std::fs::read_dir(&partial)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|kind| kind == "deb"))
            .context("apt-get download left no package")?;
        run(Command::new("dpkg").arg("-x").arg(&package).arg(&partial))?;
        partial.join(format!("usr/src/{PACKAGE}.tar.xz"))
    };
    eprintln!("unpacking {}", archive.display());
    let unpacked = partial.join("tree");
    std::fs::create_dir(&unpacked)?;
    run(Command::new("tar")
        .arg("-xf")
        .arg(&archive)
        .args(["--strip-components=1", "-C"])
        .arg(&unpacked))?;
    std::fs::rename(&unpacked, &source)?;
    std::fs::remove_dir_all(&partial)?;
    Ok(source)
}

/// The tree with the engine in it, brought up to date with the edits and files of the integration. `object` is the
/// engine.
///
/// # Errors
/// If an edit does not fit, or a file cannot be read or written.
pub fn with_engine(source: &Path, object: &Path) -> anyhow::Result<PathBuf> {
    let tree = directory().join("tree");
    let files = changed(source)?;
    if !tree.join("Makefile").is_file() {
        eprintln!("copying the source");
        let partial = directory().join("tree.partial");
        let _ = std::fs::remove_dir_all(&partial);
        // Hard links: the copy takes no room.
        run(Command::new("cp").arg("-al").arg(source).arg(&partial))?;
        std::fs::rename(&partial, &tree)?;
    }
    for (file, content) in &files {
        replace(&tree.join(file), content)?;
    }
    // What an edit has changed and no longer does.
    let marker = directory().join("edited");
    for file in std::fs::read_to_string(&marker).unwrap_or_default().lines() {
        if files.contains_key(file) {
            continue;
        }
        match std::fs::read(source.join(file)) {
            Ok(content) => replace(&tree.join(file), &content)?,
            Err(_) => std::fs::remove_file(tree.join(file))?,
        }
    }
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    std::fs::write(&marker, names.join("\n"))?;
    replace(
        &tree.join("arch/x86/mm/quell_engine.o_shipped"),
        &std::fs::read(object).with_context(|| format!("reading {}", object.display()))?,
    )?;
    Ok(tree)
}

/// The files that are edited or ours, with their contents.
///
/// # Errors
/// If an edit does not fit, or a file cannot be read.
pub fn changed(source: &Path) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let here = integration();
    let list = here.join("edits.toml");
    let text =
        std::fs::read_to_string(&list).with_context(|| format!("reading {}", list.display()))?;
    let edits = edits::read(&text).with_context(|| format!("reading {}", list.display()))?;
    let mut files = edited(source, &edits)?;
    let own = here.join("files");
    for entry in WalkDir::new(&own) {
        let entry = entry?;
        if entry.file_type().is_file() {
            let name = entry
                .path()
                .strip_prefix(&own)?
                .to_string_lossy()
                .into_owned();
            if source.join(&name).exists() {
                bail!("{name} is a file of Linux's: ours needs another name");
            }
            files.insert(name, std::fs::read(entry.path())?);
        }
    }
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../quell-c/include/quell.h");
    files.insert("include/quell/engine.h".into(), std::fs::read(header)?);
    Ok(files)
}

/// The files that edits change, with all edits made.
fn edited(source: &Path, edits: &[Edit]) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    for edit in edits {
        let text = match texts.remove(&edit.file) {
            Some(text) => text,
            None => {
                let path = source.join(&edit.file);
                std::fs::read_to_string(&path)
                    .with_context(|| format!("reading {}", path.display()))?
            }
        };
        texts.insert(edit.file.clone(), edit.apply(&text)?);
    }
    Ok(texts
        .into_iter()
        .map(|(file, text)| (file, text.into_bytes()))
        .collect())
}

/// Makes a file of this content, if it is not one: a new file, since the old one is shared.
fn replace(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    if std::fs::read(path).is_ok_and(|now| now == content) {
        return Ok(());
    }
    let write = || -> std::io::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let _ = std::fs::remove_file(path);
        std::fs::write(path, content)
    };
    write().with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(at: &str) -> Vec<Edit> {
        edits::read(&format!(
            "[[edit]]\nfile = \"a.c\"\nwhy = \"x\"\nat = \"{at}\"\nafter = \"two\\n\"\n\
             [[edit]]\nfile = \"a.c\"\nwhy = \"y\"\nat = \"two\"\nafter = \"three\\n\"\n"
        ))
        .unwrap()
    }

    #[test]
    fn edits_of_a_file_build_on_each_other_and_leave_the_source_alone() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("a.c");
        std::fs::write(&source, "one\n").unwrap();
        for _ in 0..2 {
            let files = edited(folder.path(), &list("one")).unwrap();
            assert_eq!(files["a.c"], b"one\ntwo\nthree\n");
        }
        assert_eq!(std::fs::read(&source).unwrap(), b"one\n");
        let error = edited(folder.path(), &list("none")).unwrap_err();
        assert!(
            error.to_string().contains("a.c: no line \"none\""),
            "{error}"
        );
    }

    #[test]
    fn a_file_is_written_only_if_it_differs_and_never_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (source, tree) = (folder.path().join("source"), folder.path().join("tree"));
        std::fs::write(&source, "same").unwrap();
        std::fs::hard_link(&source, &tree).unwrap();
        let written = || std::fs::metadata(&tree).unwrap().modified().unwrap();
        let before = written();
        replace(&tree, b"same").unwrap();
        assert_eq!(written(), before);
        replace(&tree, b"other").unwrap();
        assert_eq!(std::fs::read(&source).unwrap(), b"same");
        assert_eq!(std::fs::read(&tree).unwrap(), b"other");
    }
}

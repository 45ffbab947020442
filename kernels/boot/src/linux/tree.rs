//! Manages two trees of Linux's sources: Debian's, and one with the engine.
//!
//! Both are below `target/linux`. We never change Debian's tree. The tree with the engine shares its files by hard
//! links, except edited ones and ours. We write those only if they differ from the present ones, so that a build
//! compiles just the changes.

use crate::edits::{Edits, write};
use crate::toolchain::{downloaded, run, target_directory, which};
use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's package of the source.
pub const PACKAGE: &str = "linux-source-6.12";

/// Returns the folder of everything about Linux.
pub fn directory() -> PathBuf {
    target_directory("linux")
}

/// Returns the folder of the integration's own files.
pub fn integration() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../linux")
}

/// The lock of a folder of builds, held until it's dropped or the process ends. Two builds at the same time would break
/// each other, because kernels of all flavours share sources and the engine's object.
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for the lock of [`directory`].
    pub fn take() -> anyhow::Result<Self> {
        Self::take_in(&directory())
    }

    /// Waits for a folder's lock, and prints a message if another process holds it.
    pub fn take_in(folder: &Path) -> anyhow::Result<Self> {
        let place = folder.join("lock");
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        let file = File::create(&place).with_context(|| format!("opening {}", place.display()))?;
        let mut taken = flock(&file, FlockOperation::NonBlockingLockExclusive);
        if taken == Err(Errno::WOULDBLOCK) {
            eprintln!("waiting for another build, which has locked {}", place.display());
            taken = flock(&file, FlockOperation::LockExclusive);
        }
        taken.with_context(|| format!("locking {}", place.display()))?;
        Ok(Lock { _file: file })
    }
}

/// Returns Debian's source, after fetching it with the package client if it's missing.
pub fn fetch(_: &Lock) -> anyhow::Result<PathBuf> {
    let source = directory().join("source");
    if source.join("Makefile").is_file() {
        return Ok(source);
    }
    let partial = directory().join("source.partial");
    // We unpack it beside its place, so that an interrupted run leaves nothing incomplete there.
    let _ = std::fs::remove_dir_all(&partial);
    std::fs::create_dir_all(&partial).with_context(|| format!("making {}", partial.display()))?;
    let installed = Path::new("/usr/src").join(format!("{PACKAGE}.tar.xz"));
    let archive = if installed.is_file() {
        installed
    } else {
        for program in ["apt-get", "dpkg"] {
            which(program).with_context(|| {
                format!(
                    "{program} is missing: install {PACKAGE}, or unpack Linux 6.12 to {}",
                    source.display()
                )
            })?;
        }
        eprintln!("fetching {PACKAGE}");
        run(Command::new("apt-get").args(["-q", "download", PACKAGE]).current_dir(&partial))
            .context("apt-get update may help")?;
        run(Command::new("dpkg").arg("-x").args([&downloaded(&partial, "deb")?, &partial]))?;
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

/// Creates a tree of hard links to the source's files, unless it exists.
pub fn link(source: &Path, tree: &Path) -> anyhow::Result<()> {
    if tree.join("Makefile").is_file() {
        return Ok(());
    }
    eprintln!("copying the source");
    let partial = tree.with_extension("partial");
    let _ = std::fs::remove_dir_all(&partial);
    // With hard links, the copy takes no space.
    run(Command::new("cp").arg("-al").arg(source).arg(&partial))?;
    Ok(std::fs::rename(&partial, tree)?)
}

/// Returns the tree with the engine, updated with the integration's edits and files. `object` is the engine.
pub fn with_engine(_: &Lock, source: &Path, object: &Path) -> anyhow::Result<PathBuf> {
    let tree = directory().join("tree");
    let files = changed(source)?;
    link(source, &tree)?;
    for (file, content) in &files {
        write(&tree.join(file), content)?;
    }
    // Restore files that an edit changed earlier but no longer does.
    let marker = directory().join("edited");
    for file in std::fs::read_to_string(&marker).unwrap_or_default().lines() {
        if files.contains_key(Path::new(file)) {
            continue;
        }
        match std::fs::read(source.join(file)) {
            Ok(content) => write(&tree.join(file), &content)?,
            Err(_) => std::fs::remove_file(tree.join(file))?,
        }
    }
    let names: Vec<_> = files.keys().map(|name| name.to_string_lossy()).collect();
    std::fs::write(&marker, names.join("\n"))?;
    write(
        &tree.join("arch/x86/mm/quell_engine.o_shipped"),
        std::fs::read(object).with_context(|| format!("reading {}", object.display()))?,
    )?;
    Ok(tree)
}

/// Reads the list of changes to Linux.
pub fn edits() -> anyhow::Result<Edits> {
    Edits::read(&integration().join("edits.toml"), &[])
}

/// Returns the files that are edited or ours, with their contents.
pub fn changed(source: &Path) -> anyhow::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let (edits, here) = (edits()?, integration());
    let added = edits.added(&here)?;
    if let Some((_, name)) = added.iter().find(|(_, name)| source.join(name).exists()) {
        bail!("{} is a file of Linux's: ours needs another name", name.display());
    }
    edits.changed(source, &here).context("kernels/linux/edits.toml")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_build_waits_for_another() {
        let folder = tempfile::tempdir().unwrap();
        let held = Lock::take_in(folder.path()).unwrap();
        std::thread::scope(|threads| {
            let (told, tells) = std::sync::mpsc::channel();
            let folder = folder.path();
            let other = threads.spawn(move || {
                let held = Lock::take_in(folder).unwrap();
                told.send(()).unwrap();
                drop(held);
            });
            // The thread doesn't get the lock as long as this one holds it.
            let soon = std::time::Duration::from_millis(100);
            assert!(tells.recv_timeout(soon).is_err());
            drop(held);
            tells.recv().unwrap();
            other.join().unwrap();
        });
    }

    #[test]
    fn the_files_of_the_integration_are_added() {
        let added = edits().unwrap().added(&integration()).unwrap();
        for name in ["arch/x86/mm/quell.c", "include/quell/engine.h"] {
            let found = added.iter().find(|(_, to)| to == Path::new(name));
            assert!(found.is_some_and(|(from, _)| from.is_file()), "{added:?}");
        }
    }
}

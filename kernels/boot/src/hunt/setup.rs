//! Builds the emulated machine: Debian's source of QEMU, our edits, its compiler.
//!
//! Everything is in one folder of the user's cache, so all checkouts share it. The finished emulator is named after a
//! digest of the edits and of our files, so a change of these builds it again, from the same objects.

use super::Target;
use crate::edits::{Edits, write};
use crate::linux::tree::Lock;
use crate::toolchain::{downloaded, missing, run_quietly as run, which};
use anyhow::{Context, bail};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs and files that a build needs, and Debian's packages of them.
const NEEDED: [(&str, &str); 10] = [
    ("apt-get", "apt"),
    ("dpkg-source", "dpkg-dev"),
    ("gcc", "gcc"),
    ("meson", "meson"),
    ("ninja", "ninja-build"),
    ("pkg-config", "pkg-config"),
    ("python3", "python3"),
    ("/usr/include/glib-2.0/glib.h", "libglib2.0-dev"),
    ("/usr/include/pixman-1/pixman.h", "libpixman-1-dev"),
    ("/usr/include/libfdt.h", "libfdt-dev"),
];

/// The release of Debian whose QEMU the edits are written for: 7.2.
const SOURCES: &str = "\
deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main
";

/// Returns what is configured for an architecture: of AArch64's machines, `virt` and one more.
const fn options(target: Target) -> &'static [&'static str] {
    match target {
        Target::X86_64 => &["--target-list=x86_64-softmmu"],
        Target::Aarch64 => &["--target-list=aarch64-softmmu", "--with-devices-aarch64=minimal"],
    }
}

/// Returns the name of the folder in which an architecture's emulator is compiled.
const fn objects_in(target: Target) -> &'static str {
    match target {
        Target::X86_64 => "objects",
        Target::Aarch64 => "objects-aarch64",
    }
}

const CONFIGURE: [&str; 7] = [
    "--without-default-features",
    "--enable-tcg",
    "--enable-system",
    "--enable-fdt=system",
    "--disable-docs",
    "--disable-tools",
    "--disable-werror",
];

/// Our edits and files.
fn ours() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/hunt"))
}

/// Returns the folder of everything that is downloaded and built: `QUELL_HUNT_CACHE`, or one in the user's cache.
fn cache() -> PathBuf {
    let path = |name| std::env::var_os(name).map(PathBuf::from);
    path("QUELL_HUNT_CACHE").unwrap_or_else(|| {
        path("XDG_CACHE_HOME")
            .or_else(|| Some(path("HOME")?.join(".cache")))
            .unwrap_or_else(std::env::temp_dir)
            .join("quell/hunt")
    })
}

/// Returns the emulator, if it was built from the present edits.
///
/// # Errors
/// If the edits cannot be read, or it was not built.
pub fn find(target: Target) -> anyhow::Result<PathBuf> {
    let emulator = place(target, &digest(target)?);
    if !emulator.is_file() {
        bail!(
            "{}: not built; `quell hunt --setup --arch {}` builds it (24 MB to download, four minutes of processor \
             time)",
            emulator.display(),
            target.arch()
        );
    }
    Ok(emulator)
}

/// Returns the name that QEMU gives to an emulator.
fn program(target: Target) -> String {
    format!("qemu-system-{}", target.arch())
}

fn place(target: Target, digest: &str) -> PathBuf {
    cache().join(format!("{}-{digest}", program(target)))
}

/// A digest of the edits and of our files.
fn digest(target: Target) -> anyhow::Result<String> {
    let mut hasher = DefaultHasher::new();
    let mut read = |file: &Path| -> anyhow::Result<()> {
        let content = std::fs::read(file).with_context(|| file.display().to_string())?;
        content.hash(&mut hasher);
        Ok(())
    };
    read(&ours().join("edits.toml"))?;
    for (from, _) in edits()?.added(ours())? {
        read(&from)?;
    }
    (options(target), CONFIGURE).hash(&mut hasher);
    Ok(format!("{:016x}", hasher.finish()))
}

fn edits() -> anyhow::Result<Edits> {
    Edits::read(&ours().join("edits.toml"), &[])
}

/// Builds the emulator of an architecture unless it was built already, and returns it. `progress` gets a line for each
/// step.
///
/// # Errors
/// If a package is missing, the source cannot be downloaded, an anchor is missing, or the build fails.
pub fn build(target: Target, progress: impl Fn(&str)) -> anyhow::Result<PathBuf> {
    let emulator = place(target, &digest(target)?);
    let cache = cache();
    let _lock = Lock::take_in(&cache)?;
    if emulator.is_file() {
        return Ok(emulator);
    }
    let missing = missing(&NEEDED);
    if !missing.is_empty() {
        bail!(
            "missing Debian packages: {}. `scripts/setup-boot --hunt` installs them",
            missing.join(" ")
        );
    }
    let source = source(&cache, &progress)?;
    let (tree, objects) = (cache.join("tree"), cache.join(objects_in(target)));
    progress("editing");
    // Before the old tree is removed: a missing anchor leaves everything as it was.
    let changed = edits()?.changed(&source, ours()).context("kernels/boot/hunt/edits.toml")?;
    remove(&tree)?;
    // Hard links: the copy takes no room, and objects of unchanged files stay valid.
    run(Command::new("cp").arg("-al").args([&source, &tree]), &cache)?;
    for (file, content) in changed {
        write(&tree.join(file), content)?;
    }
    std::fs::create_dir_all(&objects)?;
    if !objects.join("build.ninja").is_file() {
        progress("configuring");
        let meson = which("meson").context("meson is not in PATH")?;
        run(
            Command::new(tree.join("configure"))
                .args(options(target))
                .args(CONFIGURE)
                .arg(format!("--meson={}", meson.display())),
            &objects,
        )?;
    }
    progress("compiling: about four minutes of processor time the first time");
    let program = program(target);
    run(Command::new("nice").args(["ninja", "-j2", &program]), &objects)?;
    let built = objects.join(program);
    let partial = emulator.with_extension("partial");
    std::fs::copy(&built, &partial).with_context(|| built.display().to_string())?;
    std::fs::rename(&partial, &emulator)?;
    Ok(emulator)
}

/// Returns the unpacked source, downloading it if it is not there. The system's own package lists stay as they are.
fn source(cache: &Path, progress: impl Fn(&str)) -> anyhow::Result<PathBuf> {
    let source = cache.join("source");
    if source.join("configure").is_file() {
        return Ok(source);
    }
    let partial = cache.join("partial");
    remove(&partial)?;
    std::fs::create_dir_all(partial.join("lists/partial"))?;
    std::fs::write(partial.join("sources.list"), SOURCES)?;
    let apt = || {
        let mut apt = Command::new("apt-get");
        let list = format!("Dir::Etc::SourceList={}", partial.join("sources.list").display());
        let lists = format!("Dir::State::Lists={}", partial.join("lists").display());
        for option in [&list, "Dir::Etc::SourceParts=/dev/null", &lists] {
            apt.args(["-o", option]);
        }
        apt
    };
    progress("downloading QEMU's source from Debian (24 MB)");
    run(apt().args(["-q", "update"]), &partial)?;
    run(apt().args(["-q", "source", "--download-only", "qemu"]), &partial)?;
    let description = downloaded(&partial, "dsc")?;
    progress("unpacking");
    let unpack = ["--no-check", "-x"];
    run(Command::new("dpkg-source").args(unpack).arg(description).arg("source"), &partial)?;
    std::fs::rename(partial.join("source"), &source)?;
    remove(&partial)?;
    Ok(source)
}

fn remove(folder: &Path) -> anyhow::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| folder.display().to_string())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_files_are_added_and_the_digest_is_stable() {
        let added = edits().unwrap().added(ours()).unwrap();
        assert_eq!(added.len(), 6);
        assert!(added.iter().all(|(from, _)| from.is_file()), "{added:?}");
        assert_eq!(digest(Target::X86_64).unwrap(), digest(Target::X86_64).unwrap());
        assert_ne!(digest(Target::X86_64).unwrap(), digest(Target::Aarch64).unwrap());
    }
}

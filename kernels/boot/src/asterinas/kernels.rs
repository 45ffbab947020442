//! Fetches ostd, and edits and builds the kernels.

use super::Tools;
use crate::Arch;
use crate::edits::{Edits, files, read, write};
use crate::toolchain::{self, Toolchain};
use anyhow::{Context, bail};
use elf::{ElfBytes, endian::LittleEndian};
use serde_json::Value;
use similar::{ChangeTag, TextDiff};
use std::path::{Path, PathBuf};

/// The flusher of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flusher {
    /// ostd's own.
    Ostd,
    /// quell.
    Quell,
}

impl Flusher {
    /// Both flushers, the reference first.
    pub const BOTH: [Flusher; 2] = [Flusher::Ostd, Flusher::Quell];

    /// Returns the flusher's name.
    pub const fn name(self) -> &'static str {
        match self {
            Flusher::Ostd => "ostd",
            Flusher::Quell => "quell",
        }
    }

    /// Returns the lists of edits that turn the delivered sources into the kernel's.
    const fn lists(self) -> &'static [&'static str] {
        match self {
            Flusher::Ostd => &["measure.toml"],
            Flusher::Quell => &["measure.toml", "port.toml"],
        }
    }
}

/// A kernel on ostd.
pub struct Kernel {
    /// The name of its folder and package.
    name: &'static str,
    /// The suffix of the folder of its sources.
    suffix: &'static str,
    /// Its own list of edits.
    list: Option<&'static str>,
    /// Compiler flags besides [`FLAGS`].
    flags: &'static str,
    /// Additional arguments of cargo.
    arguments: &'static [&'static str],
    /// Its build folder. Kernels with common dependencies share one.
    place: &'static str,
}

/// The kernel that is measured.
pub const TRIAL: Kernel =
    Kernel { name: "trial", suffix: "", list: None, flags: "", arguments: &[], place: "build" };

/// The trial kernel, which runs quell's conformance suite instead of measuring.
pub const CONFORMANCE: Kernel = Kernel {
    suffix: "-conformance",
    list: Some("conformance.toml"),
    arguments: &["--features=conformance"],
    ..TRIAL
};

/// The trial kernel whose programs unmap and protect pages by system calls, for `quell hunt`. It measures nothing.
pub const CALLS: Kernel = Kernel { suffix: "-calls", arguments: &["--features=calls"], ..TRIAL };

/// Runs ostd's own unit tests. Tests that must panic unwind, and their runner catches that. The delivered library
/// doesn't support unwinding.
pub const UNIT: Kernel = Kernel {
    name: "unit",
    suffix: "-unit",
    list: None,
    flags: " --cfg=ktest -Cpanic=unwind",
    arguments: &[
        "-Zbuild-std=core,alloc,compiler_builtins",
        "-Zbuild-std-features=compiler-builtins-mem",
    ],
    place: "build-unit",
};

/// The amount of text that the port adds to ostd and removes from it.
#[derive(Default, serde::Serialize)]
pub struct Size {
    /// The number of added lines, including those of our files.
    pub added: usize,
    /// The number of removed lines.
    pub removed: usize,
}

/// The compiler flags of a kernel on ostd. It's linked at its run-time address, and interrupts use its stack.
const FLAGS: &str = "-Crelocation-model=static -Crelro-level=off -Cforce-unwind-tables=yes -Cno-redzone=y \
                     --check-cfg=cfg(ktest)";

/// The linker script of both kernels.
const SCRIPT: &str = "x86_64.ld";

/// Returns the folder of our files, the lists of edits and the trial kernel.
pub fn home() -> anyhow::Result<PathBuf> {
    toolchain::source("../asterinas")
}

/// Returns the folder of the engine's sources, for the lists of edits.
pub fn engine() -> anyhow::Result<String> {
    let engine = toolchain::source("../../engine/quell")?;
    engine.into_os_string().into_string().ok().context("the path is not UTF-8")
}

/// Returns the folder to which the package client unpacked ostd's sources. Fetches them if necessary.
pub fn fetch(toolchain: &Toolchain) -> anyhow::Result<PathBuf> {
    let trial = home()?.join("trial");
    let output = toolchain
        .cargo()
        .current_dir(&trial)
        .args(["metadata", "--format-version", "1", "--locked"])
        .stdout(std::process::Stdio::piped())
        .output()
        .context("finding the sources of ostd with cargo")?;
    if !output.status.success() {
        bail!(
            "cargo cannot fetch ostd and its dependencies: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let metadata: Value =
        serde_json::from_slice(&output.stdout).context("cargo's list of packages")?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let manifest = packages
        .filter(|package| package["name"] == "ostd")
        .find_map(|package| package["manifest_path"].as_str())
        .context("cargo names no sources of ostd")?;
    Ok(Path::new(manifest).parent().unwrap_or(Path::new("")).to_path_buf())
}

/// Edits the sources of a kernel and builds it. Returns the folder of the sources, and the image.
pub fn make(
    kernel: &Kernel,
    flusher: Flusher,
    tools: &Tools,
) -> anyhow::Result<(PathBuf, PathBuf)> {
    let folder = sources(kernel, flusher, &tools.delivered)?;
    let image = build(kernel, flusher, &tools.toolchain, &folder)?;
    Ok((folder, image))
}

/// Writes the sources of a kernel beside the build. Unchanged files keep their time.
fn sources(kernel: &Kernel, flusher: Flusher, delivered: &Path) -> anyhow::Result<PathBuf> {
    let home = home()?;
    let name = [flusher.name(), kernel.suffix].concat();
    let folder = toolchain::target_directory("asterinas").join(name);
    let (edited, fresh) = (folder.join("ostd"), folder.join("fresh"));
    copy(delivered, &fresh)?;
    let engine = engine()?;
    for list in flusher.lists().iter().chain(&kernel.list) {
        Edits::read(&home.join(list), &[("QUELL", &engine)])?.apply(&fresh, &home)?;
    }
    copy(&fresh, &edited)?;
    std::fs::remove_dir_all(&fresh).with_context(|| format!("removing {}", fresh.display()))?;
    let own = home.join(kernel.name);
    for file in files(&own)? {
        if !file.starts_with("target")
            && file != Path::new("Cargo.toml")
            && file != Path::new("Cargo.lock")
        {
            write(&folder.join(&file), &read(&own.join(&file))?)?;
        }
    }
    write(&folder.join(SCRIPT), &read(&home.join("trial").join(SCRIPT))?)?;
    let patched = "\n[patch.crates-io]\nostd = { path = \"ostd\" }\n";
    let manifest = read(&own.join("Cargo.toml"))? + patched;
    write(&folder.join("Cargo.toml"), &manifest)?;
    // Cargo adds patched crates to the locked versions.
    if !folder.join("Cargo.lock").exists() {
        write(&folder.join("Cargo.lock"), &read(&own.join("Cargo.lock"))?)?;
    }
    Ok(folder)
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let wanted = files(from)?;
    for file in &wanted {
        // Cargo's own note about a package that it unpacked isn't source.
        if file != Path::new(".cargo-ok") {
            write(&to.join(file), &read(&from.join(file))?)?;
        }
    }
    for file in files(to)? {
        if !wanted.contains(&file) {
            std::fs::remove_file(to.join(&file))
                .with_context(|| format!("removing {}", file.display()))?;
        }
    }
    Ok(())
}

/// Builds a kernel and returns its image.
fn build(
    kernel: &Kernel,
    flusher: Flusher,
    toolchain: &Toolchain,
    folder: &Path,
) -> anyhow::Result<PathBuf> {
    let script = folder.join(SCRIPT);
    let flags = format!("{FLAGS}{} -Clink-arg=-T{}", kernel.flags, script.display());
    let target = toolchain::target_directory("asterinas").join(kernel.place);
    let mut cargo = toolchain.build(Arch::X86_64, folder, &target, &flags);
    cargo.args(kernel.arguments);
    // ostd needs unstable features.
    let status = cargo.env("RUSTC_BOOTSTRAP", "1").status().context("starting cargo")?;
    if !status.success() {
        bail!("building the kernel with the flusher of {} with {toolchain} failed", flusher.name());
    }
    let built = target.join("x86_64-unknown-none/release").join(kernel.name);
    let mut image =
        std::fs::read(&built).with_context(|| format!("reading {}", built.display()))?;
    // The emulator loads a multiboot image only if its header is a 32-bit one.
    const MACHINE: usize = 18;
    const EM_386: [u8; 2] = [3, 0];
    let machine = image.get_mut(MACHINE..MACHINE + EM_386.len());
    machine.context("the image has no ELF header")?.copy_from_slice(&EM_386);
    let path = folder.join("kernel.elf");
    std::fs::write(&path, image).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

/// Returns the number of bytes of instructions in a kernel's image.
pub fn instructions(image: &Path) -> anyhow::Result<u64> {
    let bytes = std::fs::read(image).with_context(|| format!("reading {}", image.display()))?;
    let elf = ElfBytes::<LittleEndian>::minimal_parse(&bytes)
        .with_context(|| format!("{}: not an ELF file", image.display()))?;
    let text = elf.section_header_by_name(".text")?;
    Ok(text.context("the image has no section .text")?.sh_size)
}

/// Returns how many lines the port adds and removes in the sources that [`sources`] wrote.
pub fn size(ostd: &Path, quell: &Path) -> anyhow::Result<Size> {
    let (ostd, quell) = (ostd.join("ostd"), quell.join("ostd"));
    let mut names = files(&ostd)?;
    names.extend(files(&quell)?);
    names.sort();
    names.dedup();
    let mut size = Size::default();
    for name in names {
        let text = |folder: &Path| match std::fs::read_to_string(folder.join(&name)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            read => read.with_context(|| format!("reading {}", name.display())),
        };
        let (before, after) = (text(&ostd)?, text(&quell)?);
        for change in TextDiff::from_lines(&before, &after).iter_all_changes() {
            match change.tag() {
                ChangeTag::Insert => size.added += 1,
                ChangeTag::Delete => size.removed += 1,
                ChangeTag::Equal => {}
            }
        }
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates sources that contain every anchor of a list, in place of the crate's.
    fn stand_in(list: &Edits) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for edit in &list.edit {
            let path = folder.path().join(&edit.file);
            let before = read(&path).unwrap_or_default();
            let through = edit.through.as_deref().unwrap_or_default();
            write(&path, [&before, &edit.at, through, "\n"].concat()).unwrap();
        }
        folder
    }

    #[test]
    fn the_lists_are_made_once_and_completely_or_not_at_all() {
        let home = home().unwrap();
        for name in ["measure.toml", "port.toml", "conformance.toml"] {
            let list = Edits::read(&home.join(name), &[("QUELL", "somewhere")]).unwrap();
            let sources = stand_in(&list);
            let state = || -> Vec<String> {
                let files = list.edit.iter().map(|edit| &edit.file);
                let files = files.chain(list.file.iter().map(|file| &file.to));
                files.map(|file| read(&sources.path().join(file)).unwrap_or_default()).collect()
            };
            let untouched = state();
            list.apply(sources.path(), &home).unwrap();
            let made = state();
            assert_ne!(untouched, made);
            list.apply(sources.path(), &home).unwrap();
            assert_eq!(made, state(), "{name} is made twice");

            let last = list.edit.last().unwrap();
            let sources = stand_in(&list);
            let file = sources.path().join(&last.file);
            write(&file, read(&file).unwrap().replace(&last.at, "")).unwrap();
            let error = list.apply(sources.path(), &home).unwrap_err().to_string();
            assert!(error.contains(&*last.file.to_string_lossy()), "{error}");
            for file in &list.file {
                assert!(!sources.path().join(&file.to).exists(), "{name} is made in part");
            }
        }
    }
}

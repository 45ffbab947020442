//! Builds the kernel with an installed toolchain for bare metal.
//!
//! Our first choice is a toolchain with the target installed (`rustup target add`). The second is one with the
//! library's source, which can build it for the target (`rustup component add rust-src`, or Debian's `rust-web-src`).
//! Cargo can build the library only as an unstable feature, which we enable for this build alone.

use crate::arch::Arch;
use anyhow::{Context, bail};
use quell_mutants::{run, tree};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The command that installs everything missing.
pub const SETUP: &str = "scripts/setup-boot";

/// Returns the compiler's name of the target.
const fn target(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "x86_64-unknown-none",
        Arch::Aarch64 => "aarch64-unknown-none-softfloat",
        Arch::Riscv64 => "riscv64imac-unknown-none-elf",
    }
}

/// A compiler that can build for a target.
#[derive(Clone, Debug)]
pub struct Toolchain {
    rustc: PathBuf,
    cargo: PathBuf,
    version: String,
    /// Whether the library must be built, too.
    builds_library: bool,
    /// The linker, if it isn't the target's own.
    linker: Option<PathBuf>,
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.builds_library { ", building the library from its source" } else { "" };
        write!(f, "{} ({}){how}", self.version, self.rustc.display())
    }
}

/// Finds a program in `PATH`.
pub fn which(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}

/// Returns the Debian packages of missing programs, or of missing files, which begin with `/`.
pub(crate) fn missing(needed: &[(&str, &'static str)]) -> Vec<&'static str> {
    let is_there = |what: &str| match what.starts_with('/') {
        true => Path::new(what).exists(),
        false => which(what).is_some(),
    };
    let missing = needed.iter().filter(|(what, _)| !is_there(what));
    missing.map(|(_, package)| *package).collect()
}

/// Runs a command to its end.
///
/// # Errors
/// If the command doesn't start, or fails.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("starting {name}"))?;
    if !status.success() {
        bail!("{name} failed ({status})");
    }
    Ok(())
}

/// Runs a command in a folder. The end of its output is shown only if it fails.
///
/// # Errors
/// If the command doesn't start, or fails.
pub(crate) fn run_quietly(command: &mut Command, folder: &Path) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.current_dir(folder).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("starting {name}"))?;
    if !output.status.success() {
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(30)..].join("\n");
        bail!("{name} failed ({}):\n{last}", output.status);
    }
    Ok(())
}

/// Returns the file with this extension that a package client left in a folder.
///
/// # Errors
/// If there is none.
pub(crate) fn downloaded(folder: &Path, extension: &str) -> anyhow::Result<PathBuf> {
    std::fs::read_dir(folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|kind| kind == extension))
        .with_context(|| format!("apt-get left no .{extension} in {}", folder.display()))
}

fn ask(rustc: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new(rustc).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success()).then(|| text.trim().to_string())
}

/// Finds a toolchain that can build the kernel.
///
/// # Errors
/// If there is none: the toolchains that we tried, and the command that installs one.
pub fn find(arch: Arch) -> anyhow::Result<Toolchain> {
    let target = target(arch);
    let found = which("rustc").zip(which("cargo"));
    let debians = ("/usr/bin/rustc".into(), "/usr/bin/cargo".into());
    let mut candidates: Vec<(PathBuf, PathBuf)> = found.into_iter().chain([debians]).collect();
    candidates.dedup();
    let (mut seen, mut with_source) = (Vec::new(), None);
    for (rustc, cargo) in candidates.into_iter().filter(|(_, cargo)| cargo.is_file()) {
        let (Some(version), Some(sysroot)) =
            (ask(&rustc, &["--version"]), ask(&rustc, &["--print", "sysroot"]))
        else {
            continue;
        };
        let library = Path::new(&sysroot).join("lib/rustlib");
        if library.join(target).join("lib").is_dir() {
            return Ok(Toolchain { rustc, cargo, version, builds_library: false, linker: None });
        }
        let host = ask(&rustc, &["-vV"]).unwrap_or_default();
        let host = host.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
        let linker = which("ld.lld").or_else(|| {
            Some(library.join(host).join("bin/rust-lld")).filter(|file| file.is_file())
        });
        let has_source = library.join("src/rust/library/core").is_dir();
        seen.push(format!(
            "{version} ({}): no target {target}{}{}",
            rustc.display(),
            if has_source { "" } else { ", no library source" },
            if linker.is_some() { "" } else { ", no linker (ld.lld)" },
        ));
        if has_source && linker.is_some() && with_source.is_none() {
            with_source = Some(Toolchain { rustc, cargo, version, builds_library: true, linker });
        }
    }
    with_source.with_context(|| {
        format!(
            "no installed compiler can build for {target}\n  {}\nrun {SETUP} to install one",
            if seen.is_empty() { "no rustc was found".into() } else { seen.join("\n  ") }
        )
    })
}

/// Returns a source to build, at a place relative to this program's source.
///
/// # Errors
/// If the source isn't there.
pub fn source(place: &str) -> anyhow::Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(place);
    source
        .canonicalize()
        .with_context(|| format!("no source at {}: run this from a checkout", source.display()))
}

/// Returns the folder in which something is built or kept, beside the host's own build.
pub fn target_directory(name: &str) -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => PathBuf::from(directory).join(name),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target").join(name),
    }
}

/// Creates a `cargo` command that ignores settings for the host's build.
pub fn command(cargo: &Path) -> Command {
    let mut command = Command::new(cargo);
    for name in [
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "CARGO_BUILD_TARGET",
    ] {
        command.env_remove(name);
    }
    // Tests and scripts read the output; only people need to see a successful build.
    if !std::io::IsTerminal::is_terminal(&std::io::stderr()) {
        command.arg("--quiet");
    }
    command.stdout(Stdio::null());
    command
}

impl Toolchain {
    /// Returns the toolchain's `cargo`, which ignores settings for the host's build.
    pub fn cargo(&self) -> Command {
        let mut cargo = command(&self.cargo);
        cargo.env("RUSTC", &self.rustc);
        cargo
    }

    /// Creates a command for a bare-metal release build of the package in `source`, below `target`.
    pub fn build(&self, arch: Arch, source: &Path, target: &Path, flags: &str) -> Command {
        let mut cargo = self.cargo();
        cargo
            .current_dir(source)
            .args(["build", "--release", "--target", self::target(arch)])
            .arg("--target-dir")
            .arg(target);
        let mut flags = flags.to_string();
        if self.builds_library {
            cargo.env("RUSTC_BOOTSTRAP", "1").args([
                "-Zbuild-std=core,alloc,compiler_builtins",
                "-Zbuild-std-features=compiler-builtins-mem",
            ]);
        }
        if let Some(linker) = &self.linker {
            flags += &format!(" -Clinker={} -Clinker-flavor=ld.lld", linker.display());
        }
        if !flags.is_empty() {
            cargo.env("RUSTFLAGS", flags);
        }
        cargo
    }
}

/// Builds the kernel and returns the directory of the results. Cargo shows its own progress.
///
/// With `mutants`, builds a kernel that can make mistakes on purpose, in the copy of the workspace with the mutants.
///
/// # Errors
/// If no toolchain can build it, or the build fails.
pub fn build(arch: Arch, mutants: bool) -> anyhow::Result<PathBuf> {
    let toolchain = find(arch)?;
    let root = source("../..")?;
    let root = match mutants {
        true => {
            tree::copy(&root).context("copying the workspace with the mutants")?;
            tree::place(&root)
        }
        false => root,
    };
    let source = root.join("kernels/quell");
    // The two builds have separate folders, so that neither undoes the other.
    let directory = target_directory(if mutants { "boot-mutants" } else { "boot" });
    let flags = if mutants { run::CFG } else { "" };
    let mut cargo = toolchain.build(arch, &source, &directory, flags);
    if mutants {
        cargo.args(["--features", "mutants"]);
    }
    let status =
        cargo.status().with_context(|| format!("starting {}", toolchain.cargo.display()))?;
    if !status.success() {
        bail!("building the kernel for {arch} with {toolchain} failed");
    }
    Ok(directory.join(target(arch)).join("release"))
}

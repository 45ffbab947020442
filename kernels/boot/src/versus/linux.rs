//! Prepares a Linux to compare with: the kernel's image, its modules, and the initial file system.
//!
//! The initial file system contains only the static program as `init`, its few modules and its plan.

use super::protocol::{Job, PLAN, PROGRAMS, Program};
use crate::toolchain::{self, downloaded, run_quietly};
use crate::usage::{self, UsageError};
use anyhow::{Context, bail};
use cpio::{NewcBuilder, write_cpio};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Linux's command line.
///
/// It makes runs reproducible: no random placement, no seeding from the processor, and the clock without calibration.
/// It also makes Linux lean, to be fair to a kernel without such defences: no mitigations for processor faults, no
/// clearing of memory before it's overwritten, and no self-test of ciphers, which would run beside the first workloads.
/// We let Linux trust the timer. Otherwise it checks by the clock whether the timer ticks, which fails if the host has
/// paused the emulator.
pub const WORDS: [&str; 11] = [
    "cryptomgr.notests",
    "console=ttyS0",
    "quiet",
    "panic=-1",
    "tsc=reliable",
    "nokaslr",
    "norandmaps",
    "random.trust_cpu=off",
    "mitigations=off",
    "init_on_alloc=0",
    "no_timer_check",
];

/// The modules that jobs need, in loading order, with options. A module built into the kernel has no file, so we skip
/// it.
const MODULES: [(&str, &str); 9] = [
    ("lib/lz4/lz4_compress", ""),
    ("lib/lz4/lz4hc_compress", ""),
    ("mm/zsmalloc", ""),
    ("drivers/block/zram/zram", ""),
    ("drivers/block/brd", "rd_nr=1 rd_size=98304"),
    ("fs/nls/nls_cp437", ""),
    ("fs/nls/nls_ascii", ""),
    ("fs/fat/fat", ""),
    ("fs/fat/vfat", ""),
];

/// The pattern of package names for `--fetch`.
const PACKAGE: &str = r"^linux-image-6\.12.*-cloud-amd64(-unsigned)?$";

/// The user named no kernel, and none was fetched.
const NO_KERNEL: &str = "no Linux kernel to compare with: name an image with --kernel, or download Debian's with --fetch \
                         (needs apt-get and 35 MB)";

/// A kernel to boot.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The kernel's image.
    pub image: PathBuf,
    /// The directory of its modules, if there is one.
    pub modules: Option<PathBuf>,
    /// The kernel's release, from the image's header.
    pub release: String,
}

/// Returns the folder of fetched kernels and initial file systems.
pub fn cache() -> PathBuf {
    toolchain::target_directory("versus")
}

/// Finds the kernel: the given one, or Debian's, which is fetched on request.
pub fn find(named: Option<&Path>, modules: Option<&Path>, fetch: bool) -> anyhow::Result<Kernel> {
    if let Some(image) = named {
        return open(image, modules);
    }
    match fetched() {
        Some(image) => open(&image, None),
        None if fetch => open(&download()?, None),
        None => Err(UsageError(NO_KERNEL.into()).into()),
    }
}

fn open(image: &Path, modules: Option<&Path>) -> anyhow::Result<Kernel> {
    let bytes = usage::read(image)?;
    let release = release(&bytes)
        .ok_or_else(|| UsageError::unfit(image, "not an image of a Linux kernel for x86-64"))?;
    let modules = match modules {
        Some(directory) if directory.join("kernel").is_dir() => Some(directory.to_path_buf()),
        Some(directory) => {
            let why = format!(
                "{} contains no modules: name the directory that contains `kernel`",
                directory.display()
            );
            return Err(UsageError(why).into());
        }
        None => beside(image, &release),
    };
    Ok(Kernel { image: image.to_path_buf(), modules, release })
}

/// Returns the folder of a release's modules, in the tree that contains the image.
fn beside(image: &Path, release: &str) -> Option<PathBuf> {
    image
        .ancestors()
        .flat_map(|root| ["lib/modules", "usr/lib/modules"].map(|place| root.join(place)))
        .map(|modules| modules.join(release))
        .find(|modules| modules.join("kernel").is_dir())
}

/// Returns the release in a kernel image's header, up to the first blank. By Linux's boot protocol for x86, the header
/// has the signature `HdrS`, and at `kernel_version` the offset of a text, less 512.
pub fn release(image: &[u8]) -> Option<String> {
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let offset = image.get(0x20e..0x210)?;
    let from = usize::from(u16::from_le_bytes([offset[0], offset[1]])) + 512;
    let text = image.get(from..)?;
    let end = text.iter().take(256).position(|&byte| byte == 0)?;
    let text = std::str::from_utf8(&text[..end]).ok()?;
    let release = text.split_ascii_whitespace().next()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "._+-~".contains(c);
    // The release becomes part of a path.
    (release.chars().all(plain) && !release.starts_with('.')).then(|| release.to_string())
}

/// Returns a kernel that an earlier run fetched.
fn fetched() -> Option<PathBuf> {
    std::fs::read_dir(cache().join("debian/boot"))
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
        })
}

/// Fetches Debian's kernel with the package client and unpacks it.
fn download() -> anyhow::Result<PathBuf> {
    for program in ["apt-cache", "apt-get", "dpkg"] {
        toolchain::which(program).with_context(|| {
            format!("--fetch needs {program}, which is not installed: name an image with --kernel")
        })?;
    }
    let found = Command::new("apt-cache")
        .args(["search", "--names-only", PACKAGE])
        .output()
        .context("starting apt-cache")?;
    let package = newest(&String::from_utf8_lossy(&found.stdout)).context(
        "no Linux 6.12 cloud kernel in the package lists: run apt-get update, or name an image with \
         --kernel",
    )?;
    // We unpack it beside its place, so that an interrupted run leaves nothing incomplete there.
    let (place, partial) = (cache().join("debian"), cache().join("debian.partial"));
    let _ = std::fs::remove_dir_all(&partial);
    std::fs::create_dir_all(&partial).with_context(|| format!("making {}", partial.display()))?;
    remark!("fetching {package}");
    run_quietly(Command::new("apt-get").args(["download", &package]), &partial)?;
    let archive = downloaded(&partial, "deb")?;
    run_quietly(Command::new("dpkg").arg("-x").arg(&archive).arg("."), &partial)?;
    std::fs::remove_file(&archive)?;
    std::fs::rename(&partial, &place).with_context(|| format!("making {}", place.display()))?;
    fetched().context("the package has no kernel image")
}

/// Returns the package with the highest version among lines `name - title` of a search.
pub fn newest(search: &str) -> Option<String> {
    let numbers = |name: &str| -> Vec<u64> {
        name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
    };
    search
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        // The name of a kernel contains at least three numbers. That of a package that depends on the newest kernel has
        // two.
        .filter(|name| name.starts_with("linux-image-") && numbers(name).len() > 3)
        .max_by_key(|name| (numbers(name), name.len()))
        .map(str::to_string)
}

/// The guest's target, for any distribution that links statically.
const GUEST_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Builds the program that performs the workloads on Linux, and returns its path. Cargo shows its own progress.
///
/// It's a separate package (`guest/`), linked statically so that the initial file system needs nothing else. We build it
/// on demand, beside the host's own build.
pub fn guest() -> anyhow::Result<PathBuf> {
    let cargo = toolchain::which("cargo")
        .context("cargo is not installed; it builds the program that Linux runs")?;
    let directory = toolchain::target_directory("guest");
    let status = toolchain::command(&cargo)
        .current_dir(toolchain::source("guest")?)
        .args(["build", "--locked", "--release", "--target", GUEST_TARGET])
        .arg("--target-dir")
        .arg(&directory)
        .env("RUSTFLAGS", "-Ctarget-feature=+crt-static")
        .status()
        .with_context(|| format!("starting {}", cargo.display()))?;
    if !status.success() {
        bail!(
            "building the program that Linux runs failed; it needs the target {GUEST_TARGET} and a C \
             library to link statically (package libc6-dev)"
        );
    }
    Ok(directory.join(GUEST_TARGET).join("release/init"))
}

/// Returns the initial file system: an archive in cpio's format `newc`.
///
/// It contains the program, its modules and its plan. It also contains third-party programs to run, and `more` files by
/// name and content.
pub fn initial_files(
    kernel: &Kernel,
    program: &Path,
    jobs: &[Job],
    programs: &[Program],
    more: &BTreeMap<String, Vec<u8>>,
) -> anyhow::Result<Vec<u8>> {
    const DIRECTORY: u32 = 0o040_755;
    const FILE: u32 = 0o100_755;
    let mut files = Vec::new();
    let mut add = |name: &str, mode: u32, content: Vec<u8>| {
        files.push((NewcBuilder::new(name).mode(mode), Cursor::new(content)));
    };
    for name in ["dev", "proc", "sys", "modules"] {
        add(name, DIRECTORY, Vec::new());
    }
    let read =
        |path: &Path| std::fs::read(path).with_context(|| format!("reading {}", path.display()));
    add("init", FILE, read(program)?);
    let mut list = String::new();
    for (module, options) in MODULES {
        let Some(file) = module_file(kernel, module) else {
            continue;
        };
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        list.push_str(&format!("{name} {options}\n"));
        add(&format!("modules/{name}"), FILE, read(&file)?);
    }
    add("modules/list", FILE, list.into_bytes());
    add(PLAN, FILE, lines(jobs)?);
    if !programs.is_empty() {
        add(PROGRAMS, FILE, lines(programs)?);
    }
    let mut folders = BTreeSet::new();
    for (name, content) in more {
        // The kernel doesn't create folders that the archive lacks.
        let above: Vec<&Path> = Path::new(name).ancestors().skip(1).collect();
        for folder in above.into_iter().rev() {
            if folder != Path::new("") && folders.insert(folder.to_path_buf()) {
                add(&folder.to_string_lossy(), DIRECTORY, Vec::new());
            }
        }
        add(name, FILE, content.clone());
    }
    write_cpio(files.into_iter(), Vec::new()).context("writing the initial file system")
}

/// Formats each value as JSON on its own line.
fn lines<T: Serialize>(all: &[T]) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    for one in all {
        serde_json::to_writer(&mut text, one)?;
        text.push(b'\n');
    }
    Ok(text)
}

/// Returns the file of a module, which may be compressed in any way that a kernel can decompress by itself.
fn module_file(kernel: &Kernel, module: &str) -> Option<PathBuf> {
    let modules = kernel.modules.as_ref()?.join("kernel");
    ["ko", "ko.xz", "ko.zst", "ko.gz"]
        .map(|kind| modules.join(format!("{module}.{kind}")))
        .into_iter()
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn image(text: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 0x400];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
        image[0x300..0x300 + text.len()].copy_from_slice(text);
        image
    }

    #[test]
    fn the_release_is_read_from_the_header() {
        let text = b"6.12.117+deb12-cloud-amd64 (debian-kernel@lists.debian.org) #1 SMP\0";
        let found = release(&image(text));
        assert_eq!(found.as_deref(), Some("6.12.117+deb12-cloud-amd64"));
    }

    #[test]
    fn what_is_no_kernel_has_no_release() {
        assert_eq!(release(b""), None);
        assert_eq!(release(&[0; 4096]), None);
        assert_eq!(release(&image(b"../../etc\0")), None);
        let mut outside = image(b"6.12\0");
        outside[0x20e..0x210].copy_from_slice(&u16::MAX.to_le_bytes());
        assert_eq!(release(&outside), None);
    }

    proptest! {
        #[test]
        fn no_image_makes_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
            if let Some(signature) = bytes.get_mut(0x202..0x206) {
                signature.copy_from_slice(b"HdrS");
            }
            let _ = release(&bytes);
        }
    }

    #[test]
    fn the_newest_package_wins() {
        let search = "linux-image-6.12-cloud-amd64 - Linux for x86-64 cloud (meta-package)\n\
                      linux-image-6.12.9+deb12-cloud-amd64 - Linux 6.12 (signed)\n\
                      linux-image-6.12.117+deb12-cloud-amd64-unsigned - Linux 6.12\n\
                      linux-image-6.12.100+deb12-cloud-amd64 - Linux 6.12 (signed)\n";
        let found = newest(search);
        let expected = "linux-image-6.12.117+deb12-cloud-amd64-unsigned";
        assert_eq!(found.as_deref(), Some(expected));
        assert_eq!(newest(""), None);
    }
}

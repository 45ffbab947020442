//! Runs Bochs, the second emulator for x86-64, which is slower and stricter than QEMU.
//!
//! QEMU's translation has no PCIDs and no x2APIC, and drops global pages at every root load. Bochs has all of them and
//! faults on everything that the manuals forbid. So a run there shows that our code for such processors is legal. Bochs
//! doesn't keep entries under the tag of another space.
//!
//! Bochs boots from a disk: GRUB loads the kernel by multiboot2. Bochs needs a terminal, which `script` provides. Its
//! serial line is written to a file.

use crate::images::Images;
use crate::qemu::{Command, Machine, SERIAL};
use crate::toolchain::{SETUP, which};
use anyhow::{Context, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The folder to which packages install the firmware.
const FIRMWARE: &str = "/usr/share/bochs";

/// The processor: Bochs' oldest one with PCIDs, INVPCID and an x2APIC.
const PROCESSOR: &str = "corei7_haswell_4770";

/// Other programs that a run needs.
const PROGRAMS: [&str; 3] = ["grub-mkrescue", "xorriso", "script"];

/// Finds Bochs and everything that a run needs.
///
/// # Errors
/// The missing tool.
pub fn find() -> anyhow::Result<PathBuf> {
    let installed = |program: &str| {
        which(program).with_context(|| format!("{program} is not installed; run {SETUP} --bochs"))
    };
    for program in PROGRAMS {
        installed(program)?;
    }
    for file in ["BIOS-bochs-latest", "VGABIOS-lgpl-latest"] {
        let path = Path::new(FIRMWARE).join(file);
        ensure!(path.is_file(), "{} is missing; run {SETUP} --bochs", path.display());
    }
    installed("bochs")
}

/// Returns the command line. A directory with the disk and the configuration exists as long as it does.
///
/// # Errors
/// If the disk can't be created.
pub fn command(
    machine: &Machine,
    emulator: &Path,
    images: &Images,
    words: &[String],
) -> anyhow::Result<Command> {
    let directory = tempfile::Builder::new()
        .prefix("quell-bochs-")
        .tempdir()
        .context("creating a directory for the disk")?;
    let at = |name: &str| directory.path().join(name);
    let boot = at("disk").join("boot");
    fs::create_dir_all(boot.join("grub"))?;
    for (from, name) in [(&images.kernel, "quell-kernel"), (&images.program, "quell-user")] {
        fs::copy(from, boot.join(name)).with_context(|| format!("copying {}", from.display()))?;
    }
    let menu = format!(
        "set timeout=0\nmenuentry quell {{\n  multiboot2 /boot/quell-kernel {}\n  module2 /boot/quell-user\n}}\n",
        words.join(" ")
    );
    fs::write(boot.join("grub").join("grub.cfg"), menu)?;
    let made = std::process::Command::new("grub-mkrescue")
        .arg("-o")
        .args([at("disk.iso"), at("disk")])
        .output()
        .context("starting grub-mkrescue")?;
    ensure!(
        made.status.success(),
        "grub-mkrescue: {}",
        String::from_utf8_lossy(&made.stderr).trim()
    );
    let path = |name: &str| at(name).display().to_string();
    let settings = format!(
        "cpu: model={PROCESSOR}, count={}, ips=50000000\n\
         megs: {}\n\
         romimage: file={FIRMWARE}/BIOS-bochs-latest\n\
         vgaromimage: file={FIRMWARE}/VGABIOS-lgpl-latest\n\
         ata0-master: type=cdrom, path={}, status=inserted\n\
         boot: cdrom\n\
         display_library: term\n\
         com1: enabled=1, mode=file, dev={}\n\
         clock: sync=none, time0=1700000000\n\
         panic: action=fatal\n\
         log: {}\n",
        machine.cpus,
        machine.memory_mb,
        path("disk.iso"),
        path(SERIAL),
        path("log"),
    );
    fs::write(at("settings"), settings)?;
    // Debian's Bochs contains its debugger, which waits for a command first.
    fs::write(at("commands"), "c\n")?;
    fs::write(at(SERIAL), "")?;
    let run = format!(
        "TERM=xterm exec {} -q -f {} -rc {}",
        emulator.display(),
        path("settings"),
        path("commands")
    );
    Ok(Command {
        program: "script".into(),
        arguments: ["-qec".into(), run.into(), "/dev/null".into()].into(),
        serial: Some(Arc::new(directory)),
    })
}

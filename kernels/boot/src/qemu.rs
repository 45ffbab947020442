//! Finds QEMU and builds its command line.

use crate::arch::Arch;
use crate::toolchain::{SETUP, which};
use anyhow::{Context, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The way in which the guest's instructions are executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accelerator {
    /// QEMU's own translation: works everywhere, and keeps stale translations.
    Tcg,
    /// The host's processor: real TLBs.
    Kvm,
    /// KVM if it works, otherwise TCG.
    Auto,
}

/// A machine to boot.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The architecture.
    pub arch: Arch,
    /// The number of CPUs.
    pub cpus: u16,
    /// The memory in megabytes.
    pub memory_mb: u32,
    /// The clock advances by one nanosecond per instruction, and CPUs run in turn, so that runs repeat themselves.
    pub icount: bool,
    /// Each emulated CPU runs on its own thread.
    pub threads: bool,
    /// The way in which instructions are executed.
    pub accelerator: Accelerator,
}

/// The name of the file in [`Command::serial`].
pub const SERIAL: &str = "serial";

/// A command line for the emulator.
#[derive(Clone, Debug)]
pub struct Command {
    /// The emulator.
    pub program: PathBuf,
    /// The emulator's arguments.
    pub arguments: Vec<OsString>,
    /// The directory in which the serial line is written to the file [`SERIAL`], or `None` if it's written to standard
    /// output. Dropping the last copy removes the directory.
    pub serial: Option<Arc<tempfile::TempDir>>,
}

impl Command {
    /// Returns the command in a form that a shell accepts.
    pub fn shown(&self) -> String {
        let words = std::iter::once(self.program.as_os_str())
            .chain(self.arguments.iter().map(OsString::as_os_str));
        let quoted: Vec<_> = words
            .map(|word| {
                let word = word.to_string_lossy();
                let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+".contains(c);
                if !word.is_empty() && word.chars().all(plain) {
                    word.into_owned()
                } else {
                    format!("'{}'", word.replace('\'', r"'\''"))
                }
            })
            .collect();
        quoted.join(" ")
    }
}

/// Finds the emulator for an architecture.
///
/// # Errors
/// If the emulator isn't installed.
pub fn find(arch: Arch) -> anyhow::Result<PathBuf> {
    let name = format!("qemu-system-{arch}");
    which(&name).with_context(|| format!("{name} is not installed; run {SETUP} to install it"))
}

/// Returns the given emulator, or finds one ([`find`]).
///
/// # Errors
/// If none is given, and none is installed.
pub fn named(named: Option<&Path>, arch: Arch) -> anyhow::Result<PathBuf> {
    named.map_or_else(|| find(arch), |named| Ok(named.to_owned()))
}

/// Returns an emulator's name and version.
///
/// # Errors
/// If the emulator can't be started.
pub fn version(emulator: &Path) -> anyhow::Result<String> {
    let output = std::process::Command::new(emulator)
        .arg("--version")
        .output()
        .with_context(|| format!("starting {}", emulator.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let number = text.split_whitespace().nth(3).unwrap_or("of unknown version");
    Ok(format!("QEMU {number}"))
}

/// Checks that this process can use KVM for the architecture, or returns the reason why not.
fn kvm_works(arch: Arch) -> Result<(), String> {
    if std::env::consts::ARCH != arch.name() {
        return Err(format!("this host is {}, not {arch}", std::env::consts::ARCH));
    }
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .map(|_| ())
        .map_err(|error| format!("/dev/kvm: {error}"))
}

/// Returns whether the emulator is installed with its firmware. One that is built in its folder, like that of `quell
/// hunt`, needs Debian's.
fn has_firmware(emulator: &Path) -> bool {
    let prefix = emulator.parent().and_then(Path::parent);
    prefix.is_some_and(|prefix| prefix.join("share/qemu").is_dir())
}

impl Machine {
    /// Returns an emulated machine for x86-64. With `icount`, it counts instructions. Otherwise each CPU has a thread.
    pub fn x86_64(cpus: u16, memory_mb: u32, icount: bool) -> Self {
        let (arch, accelerator) = (Arch::X86_64, Accelerator::Tcg);
        Machine { arch, cpus, memory_mb, icount, threads: !icount, accelerator }
    }

    /// Returns the emulator's command line. `words` are the kernel's.
    ///
    /// # Errors
    /// If KVM is requested and doesn't work, or is combined with counting instructions.
    pub fn command(
        &self,
        emulator: &Path,
        kernel: &Path,
        initrd: Option<&Path>,
        words: &[String],
    ) -> anyhow::Result<Command> {
        let kvm = match self.accelerator {
            Accelerator::Tcg => false,
            Accelerator::Auto => !self.icount && kvm_works(self.arch).is_ok(),
            Accelerator::Kvm => {
                if self.icount {
                    bail!("--icount counts emulated instructions: use --accel tcg");
                }
                if let Err(why) = kvm_works(self.arch) {
                    bail!("KVM does not work here ({why}): use --accel tcg");
                }
                true
            }
        };
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(OsString::from));
        match self.arch {
            Arch::X86_64 => {
                add(&["-machine", "q35", "-device", "isa-debug-exit,iobase=0xf4,iosize=4"])
            }
            Arch::Aarch64 => add(&["-machine", "virt,gic-version=3"]),
            Arch::Riscv64 => add(&["-machine", "virt"]),
        }
        if self.arch == Arch::X86_64 && !has_firmware(emulator) {
            add(&["-L", "/usr/share/qemu", "-L", "/usr/share/seabios"]);
        }
        add(&[
            "-cpu",
            match (self.arch, kvm) {
                (_, true) => "host",
                // Runs must repeat themselves, so we leave out sources of randomness. We also leave out CMPXCHG16B: if
                // instructions are counted, QEMU 7.2 may take an interrupt after it with wrong flags.
                (Arch::X86_64, _) if self.icount => "max,-rdrand,-rdseed,-cx16",
                // Without signed return addresses, callers are words on the stack.
                (Arch::Aarch64, _) if self.icount => "max,pauth=off,lpa2=off",
                // QEMU 7.2 has no `max` for this architecture.
                (Arch::Riscv64, _) => "rv64",
                (Arch::X86_64 | Arch::Aarch64, _) => "max",
            },
        ]);
        if kvm {
            add(&["-accel", "kvm"]);
        } else if self.threads {
            add(&["-accel", "tcg,thread=multi"]);
        } else {
            add(&["-accel", "tcg,thread=single"]);
        }
        if self.icount {
            add(&["-icount", "shift=0,sleep=off", "-rtc", "base=2026-01-01,clock=vm"]);
            if self.arch == Arch::Aarch64 {
                // The guest gets random numbers from an instruction and in the device tree.
                add(&["-seed", "1"]);
            }
        }
        add(&["-smp", &self.cpus.to_string(), "-m", &self.memory_mb.to_string()]);
        add(&["-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"]);
        add(&["-append", &words.join(" ")]);
        arguments.extend(["-kernel".into(), kernel.into()]);
        if let Some(initrd) = initrd {
            arguments.extend(["-initrd".into(), initrd.into()]);
        }
        Ok(Command { program: emulator.to_path_buf(), arguments, serial: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(arch: Arch) -> Machine {
        Machine {
            arch,
            cpus: 3,
            memory_mb: 300,
            icount: false,
            threads: false,
            accelerator: Accelerator::Tcg,
        }
    }

    fn shown(machine: &Machine) -> String {
        let words = ["run=selftest".to_string(), "x=1".to_string()];
        let (qemu, kernel, program) = (Path::new("qemu"), Path::new("a kernel"), Path::new("p"));
        machine.command(qemu, kernel, Some(program), &words).unwrap().shown()
    }

    #[test]
    fn the_command_survives_a_shell() {
        let command = shown(&machine(Arch::X86_64));
        assert!(command.starts_with("qemu -machine q35 "), "{command}");
        assert!(command.contains(" -append 'run=selftest x=1' "), "{command}");
        assert!(command.contains(" -kernel 'a kernel' "), "{command}");
        assert!(command.contains(" -smp 3 -m 300 "), "{command}");
    }

    #[test]
    fn counting_instructions_excludes_kvm() {
        let counted = Machine { icount: true, ..machine(Arch::Aarch64) };
        assert!(shown(&counted).contains("-icount shift=0,sleep=off"));
        let both = Machine { accelerator: Accelerator::Kvm, ..counted };
        assert!(both.command(Path::new("qemu"), Path::new("k"), None, &[]).is_err());
    }
}

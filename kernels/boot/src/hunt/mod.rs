//! Hunts for stale translations in any x86-64 or AArch64 kernel, unmodified.
//!
//! The machine is QEMU from Debian's source package with a few edits (`hunt/edits.toml`) and files of ours
//! (`hunt/qemu/`): its TLBs do the worst that the manual allows, and a judge looks at each access through them.
//! [`setup`] builds it. [`Hunt::command`] is its command line; [`finding`] reads the judge's reports and adds symbols.

pub mod finding;
mod frames;
pub mod setup;
mod symbols;

pub use frames::FrameSource;
pub use symbols::Symbols;

use crate::Arch;
use crate::qemu::{Command, Machine};
use clap::ValueEnum;
use std::ffi::OsString;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};

/// An architecture whose kernels can be hunted in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Target {
    /// x86-64, with tables of four or five levels.
    #[value(name = "x86_64")]
    X86_64,
    /// AArch64, with a granule of 4 KB and a kernel at exception level 1.
    Aarch64,
}

impl Target {
    /// Returns the architecture.
    pub const fn arch(self) -> Arch {
        match self {
            Target::X86_64 => Arch::X86_64,
            Target::Aarch64 => Arch::Aarch64,
        }
    }
}

/// A kernel to hunt in, and the settings of the hunt.
#[derive(Clone, Debug)]
pub struct Hunt {
    /// The kernel's architecture.
    pub target: Target,
    /// The kernel's image.
    pub kernel: PathBuf,
    /// The initial file system, or another file that the kernel expects there.
    pub initrd: Option<PathBuf>,
    /// The kernel's command line.
    pub words: Vec<String>,
    /// CPUs.
    pub cpus: u16,
    /// Memory in megabytes.
    pub memory_mb: u32,
    /// The seed of all random choices: when CPUs alternate, which translations TLBs keep.
    pub seed: u64,
    /// The share of translations that TLBs keep and cache speculatively, 0 to 9. `None` switches the hunt off.
    pub aggressive: Option<u8>,
    /// Ends the machine after this many findings.
    pub findings: u32,
    /// Whether the kernel keeps stale translations of clean pages on purpose. Then reads through them are lawful.
    pub lazy_unmap: bool,
    /// The turns of the others that a held CPU misses, at least and at most. `0..=0` holds none.
    pub hold: RangeInclusive<u32>,
    /// NMIs come fewer than this many instructions after an interrupt or a switch. 0 sends none.
    pub nmi: u32,
    /// Whether a change belongs to the last entry from user mode, not to the kernel's stack. On x86-64 alone.
    pub entries: bool,
    /// Whether break-before-make is judged before user mode runs, too.
    pub boot: bool,
    /// Calls to leave out: mistakes that the hunt should find.
    pub skips: Vec<Skip>,
    /// The kernel's functions that hand out frames. With them, reuse (C1) is judged, too.
    pub sources: Vec<FrameSource>,
    /// More arguments for QEMU.
    pub more: Vec<String>,
}

/// Leaves out a call or a flush that a function made, directly or not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Skip {
    /// The first instruction of the function that returns at once, or the number of an instruction that has no effect.
    pub function: u64,
    /// The instructions of the caller.
    pub caller: Range<u64>,
    /// What the function returns.
    pub value: u64,
}

/// Returns the instructions whose effect on TLBs can be left out. The numbers are those of `hunt/qemu/`.
fn instructions(target: Target) -> &'static [(&'static str, u64)] {
    match target {
        Target::X86_64 => &[("cr3", 1), ("invlpg", 2), ("invpcid", 3)],
        Target::Aarch64 => &[("tlbi", 1), ("dsb", 2), ("dsb-stores", 3)],
    }
}

impl Skip {
    /// Reads `FUNCTION@CALLER`, or `FUNCTION` for all its calls. `cr3`, `invlpg` and `invpcid` are instructions on
    /// x86-64, `tlbi`, `dsb` and `dsb-stores` on AArch64. With `FUNCTION=VALUE`, the function returns that number instead of 0.
    ///
    /// # Errors
    /// If a name isn't that of exactly one function, or the value no number.
    pub fn read(text: &str, symbols: &Symbols, target: Target) -> Result<Skip, String> {
        let (function, caller) = match text.split_once('@') {
            Some((function, caller)) => (function, symbols.range(caller)?),
            None => (text, 0..u64::MAX),
        };
        let (function, value) = match function.split_once('=') {
            Some((function, value)) => {
                (function, value.parse().map_err(|_| format!("`{value}` is no number"))?)
            }
            None => (function, 0),
        };
        let instruction = instructions(target).iter().find(|(name, _)| *name == function);
        let function = match instruction {
            Some((_, number)) => *number,
            None => symbols.range(function)?.start,
        };
        Ok(Skip { function, caller, value })
    }
}

impl Hunt {
    /// Returns the emulator's command line.
    ///
    /// # Errors
    /// If the machine cannot be described.
    pub fn command(&self, emulator: &Path) -> anyhow::Result<Command> {
        let machine = Machine {
            arch: self.target.arch(),
            ..Machine::x86_64(self.cpus, self.memory_mb, true)
        };
        let (kernel, initrd) = (&self.kernel, self.initrd.as_deref());
        let mut command = machine.command(emulator, kernel, initrd, &self.words)?;
        command.arguments.extend(self.more.iter().map(OsString::from));
        if let Some(aggressive) = self.aggressive {
            // `env` starts it, so that the printed command line is complete.
            let (seed, findings, lazy) = (self.seed, self.findings, u8::from(self.lazy_unmap));
            let (least, most, nmi) = (self.hold.start(), self.hold.end(), self.nmi);
            let (entries, boot) = (u8::from(self.entries), u8::from(self.boot));
            let setting = format!(
                "QUELL_HUNT={seed} {aggressive} {findings} {lazy} {least}-{most} {nmi} {entries} {boot}"
            );
            let skip = |skip: &Skip| {
                let Range { start, end } = skip.caller;
                format!("{:x} {start:x} {end:x} {:x}", skip.function, skip.value)
            };
            let list = |name: &str, all: Vec<String>| {
                (!all.is_empty()).then(|| format!("{name}={}", all.join(",")).into())
            };
            let skips = list("QUELL_SKIP", self.skips.iter().map(skip).collect());
            let sources = self.sources.iter().map(FrameSource::setting);
            let sources = list("QUELL_FRAMES", sources.collect());
            let before = [setting.into()].into_iter().chain(skips).chain(sources);
            let before = before.chain([command.program.into_os_string()]);
            command.arguments.splice(0..0, before);
            command.program = "env".into();
        }
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_names_functions_or_an_instruction_and_a_value() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "1000 t f\n2000 t g\n3000 t h\n").unwrap();
        let symbols = Symbols::read(file.path()).unwrap();
        let read = |text| Skip::read(text, &symbols, Target::X86_64);
        let skip = |function, value| Ok(Skip { function, caller: 0x2000..0x3000, value });
        assert_eq!(read("f=7@g"), skip(0x1000, 7));
        assert_eq!(read("f@g"), skip(0x1000, 0));
        assert_eq!(read("cr3@g"), skip(1, 0));
        assert!(read("f=true").is_err_and(|why| why == "`true` is no number"));
    }

    #[test]
    fn the_command_has_the_seed_and_no_empty_file() {
        let hunt = Hunt {
            target: Target::X86_64,
            kernel: "k".into(),
            initrd: None,
            words: vec!["a".into(), "b=c".into()],
            cpus: 3,
            memory_mb: 256,
            seed: 7,
            aggressive: Some(9),
            findings: 2,
            lazy_unmap: true,
            hold: 8..=64,
            nmi: 64,
            entries: true,
            boot: false,
            skips: vec![Skip { function: 0x10, caller: 0x20..0x30, value: 1 }],
            sources: Vec::new(),
            more: vec!["-s".into()],
        };
        let shown = hunt.command(Path::new("emulator")).unwrap().shown();
        assert!(
            shown.starts_with(
                "env 'QUELL_HUNT=7 9 2 1 8-64 64 1 0' 'QUELL_SKIP=10 20 30 1' emulator -machine q35 "
            ),
            "{shown}"
        );
        assert!(shown.contains(" -icount shift=0,sleep=off ") && shown.contains(" -smp 3 "));
        assert!(shown.contains(" -append 'a b=c' -kernel k -s"), "{shown}");
        assert!(shown.contains(" -L ") && !shown.contains("-initrd"), "{shown}");
        let plain = Hunt { aggressive: None, initrd: Some("i".into()), ..hunt };
        let shown = plain.command(Path::new("emulator")).unwrap().shown();
        assert!(shown.starts_with("emulator -machine") && shown.contains(" -initrd i "));
        let arm = Hunt { target: Target::Aarch64, ..plain };
        let shown = arm.command(Path::new("emulator")).unwrap().shown();
        // Nothing that the guest may draw is random.
        assert!(shown.contains(" -machine virt,") && shown.contains(" -seed 1 "), "{shown}");
    }

    #[test]
    fn instructions_that_can_be_left_out_are_those_of_the_architecture() {
        let symbols = Symbols::default();
        let skip = |text, target| Skip::read(text, &symbols, target).map(|skip| skip.function);
        assert_eq!(skip("invlpg", Target::X86_64), Ok(2));
        assert_eq!(skip("dsb", Target::Aarch64), Ok(2));
        assert!(skip("invlpg", Target::Aarch64).is_err());
    }
}

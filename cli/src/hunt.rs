//! `quell hunt`: boots any kernel on TLBs that do their worst.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use quell_boot::hunt::finding::{Counts, Event};
use quell_boot::hunt::{FrameSource, Hunt, Skip, Symbols, Target, setup};
use quell_boot::{end_requested, follow, prepare};

use crate::boot::{mistaken, parsed, show};
use quell_model::output::{document_line, note, say};
use quell_model::usage::usage;
use quell_workloads::files::hint;

/// Boot an x86-64 or AArch64 kernel on emulated TLBs that do the worst that the manual allows
///
/// A judge checks each access without help from the kernel. It reports translations that CPUs can still use after the
/// system call that removed them has returned (C3 of docs/contract.md), page-table pages that they can still walk then
/// (C6), and translations of another address space (C5). With --frames, also translations of frames that have a new
/// owner (C1).
#[derive(Debug, Args)]
pub struct HuntArgs {
    /// Hunt in this kernel image; `quell` is the project's own kernel, built on demand
    #[arg(required_unless_present = "setup")]
    kernel: Option<PathBuf>,
    /// Build the emulated machine first: Debian's source of QEMU with this project's edits, once
    #[arg(long)]
    setup: bool,
    /// Emulate this architecture, which must be the kernel's
    #[arg(long, value_enum, default_value_t = Target::X86_64)]
    arch: Target,
    /// Load this initial file system; its `init` should end with a reboot or power off
    #[arg(long, value_name = "FILE")]
    initrd: Option<PathBuf>,
    /// Add to the kernel's command line; may be repeated. For Linux, `console=ttyS0 panic=-1` (on AArch64
    /// `ttyAMA0`) comes before it; for `quell`, see the options of `quell boot`, for example `run=conformance break=request`
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    append: Vec<String>,
    /// Read names of the kernel's functions from this file: ELF, or a System.map
    #[arg(long, value_name = "FILE")]
    symbols: Option<PathBuf>,
    /// Read the functions with which the kernel frees page frames and hands them out from this file, or use those of
    /// `linux` or `linux-arm64`: no CPU may then use a translation of such a frame. Needs --symbols, and for Linux the
    /// kernel's words `nokaslr no5lvl`. A kernel that tells the machine itself, as `quell` does, needs no file
    #[arg(long, value_name = "FILE", conflicts_with = "plain")]
    frames: Option<String>,
    /// Use this many CPUs, 1 to 64
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    cpus: u16,
    /// Give the machine this many megabytes of memory
    #[arg(long, default_value_t = 512, value_name = "MB", value_parser = clap::value_parser!(u32).range(128..=16_384))]
    memory: u32,
    /// Set the seed of all random choices: when CPUs alternate, which translations TLBs keep. The same seed repeats
    /// the same run
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Set how much TLBs keep and speculate, from 0 (nothing) to 9 (everything that the manual allows)
    #[arg(long, default_value_t = 9, value_name = "0..9", value_parser = clap::value_parser!(u8).range(0..=9))]
    aggressive: u8,
    /// Boot the same machine without the hunt, to compare times
    #[arg(long, conflicts_with = "aggressive")]
    plain: bool,
    /// Accept reads through stale read-only translations, for a kernel that keeps those of clean pages on purpose (lazy
    /// unmap). Always on for `quell`
    #[arg(long)]
    lazy_unmap: bool,
    /// Leave out calls of FUNCTION if CALLER, or a function that CALLER has called, calls it. This plants a mistake in
    /// an unmodified kernel: `--skip flush_tlb_mm_range@do_mprotect_pkey`. FUNCTION returns VALUE, or 0. With `cr3`,
    /// `invlpg` or `invpcid` (on AArch64 `tlbi` or `dsb`) instead of FUNCTION, that instruction flushes nothing in
    /// CALLER. Needs --symbols; may be repeated
    #[arg(long, value_name = "FUNCTION[=VALUE][@CALLER]", conflicts_with = "plain")]
    skip: Vec<String>,
    /// Hold CPUs now and then: between an interrupt and its handler, after a switch, on the way into idle, and anywhere
    /// else. A hypervisor does so with virtual CPUs. A held CPU misses from 1 up to TURNS turns of the others, or from
    /// LEAST: `64-64` is always 64
    #[arg(long, default_value = "0", value_name = "[LEAST-]TURNS", value_parser = turns)]
    hold: RangeInclusive<u32>,
    /// Interrupt CPUs with NMIs now and then: before a load of CR3, when they halt, and up to this many instructions
    /// after an interrupt, a load of CR3, or anything else. Also gives the CPUs performance counters whose overflow sends
    /// them, for profilers that read user memory in NMIs. On x86_64 alone
    #[arg(long, default_value_t = 0, value_name = "INSTRUCTIONS", conflicts_with = "plain",
          value_parser = clap::value_parser!(u32).range(0..=100_000))]
    nmi: u32,
    /// Recognize the end of a system call by the program counter and the stack pointer with which the CPU left user mode,
    /// not by the frame on the kernel's stack. For kernels that keep the user's registers elsewhere. On x86_64 alone
    #[arg(long, conflicts_with = "plain")]
    entries: bool,
    /// Judge break-before-make also before user mode first runs. On aarch64 alone
    #[arg(long, conflicts_with = "plain")]
    boot: bool,
    /// Stop after this many findings
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    findings: u32,
    /// Pass one more argument to QEMU; repeat it for more: --qemu=-drive --qemu=file=disk,format=raw,if=virtio
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    qemu: Vec<String>,
    /// End a silent machine after this many seconds of its own processor time
    #[arg(long, default_value_t = 900, value_name = "SECONDS")]
    timeout: u64,
    /// Print QEMU's command line instead of running it
    #[arg(long)]
    print_command: bool,
    /// Print findings and counts as lines of JSON
    #[arg(long)]
    json: bool,
    /// Show every line of the serial console
    #[arg(long, short)]
    verbose: bool,
}

impl HuntArgs {
    /// Returns the kernel to hunt in, with its symbols' file.
    fn hunt(&self, kernel: &Path) -> anyhow::Result<(Hunt, Option<PathBuf>)> {
        let own = kernel.as_os_str() == "quell";
        let mut words: Vec<String> = match own {
            true => Vec::new(),
            false => {
                let console = match self.arch {
                    Target::X86_64 => "console=ttyS0",
                    Target::Aarch64 => "console=ttyAMA0",
                };
                [console, "panic=-1"].map(String::from).into()
            }
        };
        words.extend(
            self.append.iter().flat_map(|words| words.split_whitespace()).map(String::from),
        );
        let mut hunt = Hunt {
            target: self.arch,
            kernel: kernel.to_owned(),
            initrd: self.initrd.clone(),
            words,
            cpus: self.cpus,
            memory_mb: self.memory,
            seed: self.seed,
            aggressive: (!self.plain).then_some(self.aggressive),
            findings: self.findings,
            hold: self.hold.clone(),
            nmi: self.nmi,
            entries: self.entries,
            boot: self.boot,
            lazy_unmap: self.lazy_unmap || own,
            skips: Vec::new(),
            sources: Vec::new(),
            more: self.qemu.clone(),
        };
        let mut symbols = self.symbols.clone();
        if own {
            if self.initrd.is_some() {
                return Err(usage("`quell` has its own program: leave out --initrd"));
            }
            parsed(&hunt.words.join(" "), "--append: ")?;
            let breaks = hunt.words.iter().any(|word| word.starts_with("break="));
            let images = prepare(self.arch.arch(), None, breaks).map_err(mistaken)?;
            symbols = symbols.or_else(|| Some(images.elf()));
            (hunt.kernel, hunt.initrd) = (images.kernel, Some(images.program));
        }
        for file in [Some(&hunt.kernel), hunt.initrd.as_ref()].into_iter().flatten() {
            if !file.is_file() {
                let why = match file.exists() {
                    true => "not a regular file".to_owned(),
                    false => format!("no such file{}", near_file(file)),
                };
                return Err(usage(format_args!("{}: {why}", file.display())));
            }
        }
        Ok((hunt, symbols))
    }
}

/// Reads `TURNS` or `LEAST-TURNS`.
fn turns(text: &str) -> Result<RangeInclusive<u32>, String> {
    const MOST: u32 = 100_000;
    let number = |text: &str| text.parse().ok().filter(|turns: &u32| *turns <= MOST);
    let (least, most) = match text.split_once('-') {
        Some((least, most)) => (number(least), number(most)),
        None => (number(text).map(|most| most.min(1)), number(text)),
    };
    match (least, most) {
        (Some(least), Some(most)) if least <= most && (least > 0 || most == 0) => Ok(least..=most),
        _ => Err(format!("expected 0 to {MOST}, or two such numbers as in `8-64`")),
    }
}

/// Returns a hint at the file beside this one with the nearest name, or at our own kernel.
fn near_file(file: &Path) -> String {
    let folder = match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let beside = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = beside.filter_map(|entry| entry.file_name().into_string().ok());
    let names: Vec<String> = names.chain(["quell".to_owned()]).collect();
    let wrong = file.file_name().unwrap_or_default().to_string_lossy();
    hint(&wrong, names.iter().map(String::as_str))
}

/// Runs the command.
///
/// # Errors
/// If something needed is missing or broken. A finding isn't an error: the exit code is 1.
pub fn run(args: HuntArgs) -> anyhow::Result<ExitCode> {
    if args.setup {
        let emulator = setup::build(args.arch, |step| note!("{step}"))?;
        say!("{}", emulator.display());
    }
    let Some(kernel) = &args.kernel else {
        return Ok(ExitCode::SUCCESS);
    };
    let x86 = Target::X86_64;
    for (given, option, arch) in [
        (args.nmi > 0, "--nmi", x86),
        (args.entries, "--entries", x86),
        (args.boot, "--boot", Target::Aarch64),
    ] {
        if given && args.arch != arch {
            return Err(usage(format_args!("{option} is for {} alone", arch.arch().name())));
        }
    }
    let (mut hunt, symbols) = args.hunt(kernel)?;
    let symbols = match symbols {
        Some(file) => Symbols::read(&file).map_err(usage)?,
        None if args.skip.is_empty() && args.frames.is_none() => Symbols::default(),
        None => {
            return Err(usage(
                "--skip and --frames need the kernel's functions: give --symbols, too",
            ));
        }
    };
    for skip in &args.skip {
        let why = |why| usage(format_args!("--skip {skip}: {why}"));
        hunt.skips.push(Skip::read(skip, &symbols, args.arch).map_err(why)?);
    }
    if let Some(frames) = &args.frames {
        hunt.sources = FrameSource::read(frames, &symbols, args.arch)
            .map_err(|why| usage(format_args!("--frames {frames}: {why:#}")))?;
    }
    let command = hunt.command(&setup::find(args.arch)?)?;
    if args.print_command {
        say!("{}", command.shown());
        return Ok(ExitCode::SUCCESS);
    }
    let again = command.shown();
    let (mut found, mut counts) = (0, None);
    let outcome = follow::run(command, Duration::from_secs(args.timeout), |line| match line {
        follow::Line::Event(event) => {
            if args.json {
                document_line(event).expect("an event is JSON");
            }
            match serde_json::from_value(event.clone()) {
                Ok(Event::Finding(finding)) => {
                    found += 1;
                    if !args.json {
                        say!("{}", finding.show(&symbols, args.arch));
                    }
                }
                Ok(Event::Hunted(these)) => counts = Some(these),
                Err(_) if !args.json => show_guest(event),
                Err(_) => {}
            }
        }
        follow::Line::Text(text) if args.verbose => note!("  | {text}"),
        follow::Line::Text(_) => {}
    })?;
    if let Some(signal) = end_requested() {
        return Ok(ExitCode::from(128u8.saturating_add(signal as u8)));
    }
    if found > 0 {
        if !args.json {
            say!("to repeat this: {again}");
        }
        return Ok(ExitCode::FAILURE);
    }
    if let Some(code) = outcome.code.filter(|code| *code != 0) {
        bail!("nothing found, but the kernel itself failed with code {code}");
    }
    // The machine prints its counts unless it was stopped.
    let Some(counts) = counts.filter(|_| !args.plain) else {
        if args.plain && outcome.failure.as_ref().is_none_or(|why| !why.ends_with("stopped")) {
            say!("ran without the hunt in {:.1} s", outcome.seconds);
            return Ok(ExitCode::SUCCESS);
        }
        for line in &outcome.last_lines {
            note!("  | {line}");
        }
        bail!(
            outcome
                .failure
                .unwrap_or_else(|| "the machine ended without printing its counts".into())
        );
    };
    if counts.walks == 0 {
        bail!(
            "no access was judged: the kernel uses tables that the machine does not cover (AArch64: granules other than \
             4 KB, or a kernel at exception level 2)"
        );
    }
    if !args.skip.is_empty() && counts.skipped == 0 {
        bail!(
            "no call was left out: the kernel made none of --skip, or has other addresses than --symbols (Linux: \
             `nokaslr` is missing?)"
        );
    }
    if !hunt.sources.is_empty() && counts.handed == 0 {
        bail!(
            "no frame was handed out: the kernel called no function of --frames, or the file's `base` is not this \
             kernel's (Linux: `nokaslr no5lvl` or CONFIG_SPARSEMEM_VMEMMAP is missing?)"
        );
    }
    say!("{}", summary(&counts, outcome.seconds));
    Ok(ExitCode::SUCCESS)
}

/// Shows an event of the guest: a failure of our own kernel, or a program that starts or fails.
fn show_guest(event: &serde_json::Value) {
    match event["event"].as_str() {
        Some("test") if event["passed"] == false => show(event),
        Some("failed" | "watchdog") => show(event),
        Some("starts") => note!("running {}", event["name"].as_str().unwrap_or_default()),
        Some("ended") if event["how"]["code"] != 0 => note!("  it ended with {}", event["how"]),
        // Other events are no failures.
        Some(_) | None => {}
    }
}

/// Describes a hunt that found nothing. The counts show whether it could have found anything.
fn summary(counts: &Counts, seconds: f64) -> String {
    format!(
        "nothing found in {seconds:.1} s: {} translations reused, {} filled speculatively; CPUs held {} times, {} NMIs; \
         {} of {} changes judged, frames freed or handed out {} times; {} accesses of devices judged; {} stale accesses \
         allowed",
        counts.hits,
        counts.guesses,
        counts.holds,
        counts.nmis,
        counts.returned,
        counts.changes,
        counts.handed,
        counts.dma,
        counts.stale
    )
}

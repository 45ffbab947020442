//! `quell versus linux`: the same workloads on stock Linux and on quell's kernel, in one emulator.
//!
//! Both kernels boot in the same QEMU with the same CPUs, memory and switches, its clock counting
//! executed instructions, so a run is reproduced byte for byte and instructions can be compared
//! exactly. On Linux one static program, the first process ([`guest`]), performs the workloads from
//! the source that quell's own kernel runs; [`plan`] says which, [`linux`] finds a kernel and puts
//! the initial file system together, [`counters`] reads what Linux counted, [`ours`] what quell's
//! kernel counted, [`report`] prints them side by side.
//!
//! What this does not show: time on real hardware. An emulated instruction has no cache misses, an
//! interrupt no latency, and TLBs that flush keep no entry that hardware would keep.

mod counters;
mod guest;
mod linux;
mod ours;
mod plan;
#[path = "../../guest/src/protocol.rs"]
mod protocol;
mod report;

use crate::boot::qemu::{self, Accelerator, Machine};
use crate::boot::{Arch, Images, follow, toolchain};
use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use plan::{Case, Scale};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Memory of either machine, in megabytes.
const MEMORY_MB: u32 = 768;

/// What `quell versus` takes.
#[derive(Debug, Args)]
pub struct VersusArgs {
    #[command(subcommand)]
    other: Other,
}

/// Whom to compare with.
#[derive(Debug, Subcommand)]
enum Other {
    /// Stock Linux, in the same emulator, instruction by instruction
    Linux(LinuxArgs),
}

/// What `quell versus linux` takes.
#[derive(Debug, Args)]
struct LinuxArgs {
    /// A Linux kernel image for x86-64, such as /boot/vmlinuz-6.12.0-cloud-amd64
    #[arg(long, value_name = "FILE", conflicts_with = "fetch")]
    kernel: Option<PathBuf>,
    /// The kernel's modules; found by themselves where a package has put them
    #[arg(long, value_name = "DIR", requires = "kernel")]
    modules: Option<PathBuf>,
    /// Get Debian's 6.12 cloud kernel with apt-get download (35 MB) and keep it for later runs
    #[arg(long)]
    fetch: bool,
    /// Which workloads, separated by commas; all unless told otherwise
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    workload: Vec<String>,
    /// How many CPUs, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8",
          value_parser = clap::value_parser!(u16).range(1..=64))]
    cpus: Vec<u16>,
    /// What quell's engine may do: all, baseline, or mechanisms joined by +
    #[arg(long, default_value = "all")]
    policy: String,
    /// How many times as much to do in each workload
    #[arg(long, default_value_t = 1, value_name = "N", conflicts_with = "quick",
          value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Do a fifth of the work: the same shape, less exact
    #[arg(long)]
    quick: bool,
    /// Words to add to Linux's command line, such as mitigations=auto
    #[arg(long = "linux-option", value_name = "WORD")]
    linux_options: Vec<String>,
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
    /// Print them as a table in Markdown, with the command that made it
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Build what is needed, print QEMU's command lines, and run none
    #[arg(long)]
    print_command: bool,
    /// Only say whether everything needed is here
    #[arg(long)]
    check: bool,
    /// Seconds after which one boot is examined and ended
    #[arg(long, default_value_t = 1800, value_name = "SECONDS")]
    timeout: u64,
    /// Show every line of the serial consoles
    #[arg(long, short)]
    verbose: bool,
}

/// Runs the command.
///
/// # Errors
/// If something needed is missing or broken. A workload that fails on one side is no error but
/// exit code 1, and its row says why.
pub fn run(args: VersusArgs) -> anyhow::Result<ExitCode> {
    let Other::Linux(args) = args.other;
    let scale = if args.quick {
        Scale::Quick
    } else {
        Scale::Times(args.rounds)
    };
    let mut cpus = args.cpus.clone();
    cpus.sort_unstable();
    cpus.dedup();
    let mut runs = Vec::new();
    for cpus in cpus {
        let cases = plan::cases(&args.workload, cpus, scale)?;
        if !cases.is_empty() {
            runs.push((machine(cpus), cases));
        }
    }
    let emulator = qemu::find(Arch::X86_64)?;
    let kernel = linux::find(args.kernel.as_deref(), args.modules.as_deref(), args.fetch)?;
    if args.check {
        let toolchain = toolchain::find(Arch::X86_64)?;
        let (emulator, release) = (emulator.display(), &kernel.release);
        println!("{emulator}, Linux {release} and {toolchain}");
        return Ok(ExitCode::SUCCESS);
    }
    let program = guest::build()?;
    if args.print_command {
        for (machine, cases) in &runs {
            let images = initial_files(&kernel, &program, machine.cpus, cases)?;
            let command = linux_command(&args, &emulator, machine, &images)?;
            println!("{}", command.shown());
            let images = ours::images()?;
            for case in cases {
                let words = ours::words(case, &args.policy);
                println!(
                    "{}",
                    command_for(&emulator, machine, &images, &words)?.shown()
                );
            }
        }
        return Ok(ExitCode::SUCCESS);
    }

    let images = ours::images();
    if let Err(error) = &images {
        eprintln!("SKIPPED: quell's own side: {error:#}");
    }
    let version = qemu::version(&emulator)?;
    let mut report = report::Report::new(&kernel.release, &version, &args.policy);
    for (machine, cases) in &runs {
        let linux = run_linux(&args, &emulator, machine, &kernel, &program, cases)?;
        let quell = match &images {
            Ok(images) => run_ours(&args, &emulator, machine, images, cases)?,
            Err(error) => vec![Err(format!("{error:#}")); cases.len()],
        };
        for ((case, linux), quell) in cases.iter().zip(linux).zip(quell) {
            report.add(case, machine.cpus, linux, quell);
        }
    }
    if args.json {
        println!("{}", report.json()?);
    } else if args.markdown {
        let words: Vec<String> = std::env::args().skip(1).collect();
        println!("{}", report.markdown(&format!("quell {}", words.join(" "))));
    } else {
        println!("{report}");
    }
    Ok(if report.complete() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The machine that both kernels get.
fn machine(cpus: u16) -> Machine {
    Machine {
        arch: Arch::X86_64,
        cpus,
        memory_mb: MEMORY_MB,
        icount: true,
        threads: false,
        accelerator: Accelerator::Tcg,
    }
}

/// The emulator's command line for a kernel: memory in two nodes, all CPUs on the first.
fn command_for(
    emulator: &std::path::Path,
    machine: &Machine,
    images: &Images,
    words: &[String],
) -> anyhow::Result<qemu::Command> {
    let mut command = machine.command(emulator, images, words)?;
    for node in 0..2 {
        let half = machine.memory_mb / 2;
        let cpus = match (node, machine.cpus) {
            (0, 1) => ",cpus=0".to_string(),
            (0, all) => format!(",cpus=0-{}", all - 1),
            _ => String::new(),
        };
        command.arguments.extend(
            [
                "-object".to_string(),
                format!("memory-backend-ram,id=node{node},size={half}M"),
                "-numa".to_string(),
                format!("node,nodeid={node},memdev=node{node}{cpus}"),
            ]
            .map(Into::into),
        );
    }
    Ok(command)
}

/// Makes the initial file system for these cases; what Linux boots with.
fn initial_files(
    kernel: &linux::Kernel,
    program: &std::path::Path,
    cpus: u16,
    cases: &[Case],
) -> anyhow::Result<Images> {
    let directory = linux::cache();
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("making {}", directory.display()))?;
    let place = directory.join(format!("initial-{cpus}.cpio"));
    let archive = linux::initial_files(kernel, program, &plan::jobs(cases))?;
    std::fs::write(&place, archive).with_context(|| format!("writing {}", place.display()))?;
    Ok(Images {
        kernel: kernel.image.clone(),
        program: place,
    })
}

fn linux_command(
    args: &LinuxArgs,
    emulator: &std::path::Path,
    machine: &Machine,
    images: &Images,
) -> anyhow::Result<qemu::Command> {
    let mut words: Vec<String> = linux::WORDS.map(String::from).into();
    words.extend(args.linux_options.iter().cloned());
    command_for(emulator, machine, images, &words)
}

/// What one side says of one case: what was measured, or why nothing was.
type Outcome = Result<report::Side, String>;

/// Boots Linux once and performs every case; the outcomes in their order.
fn run_linux(
    args: &LinuxArgs,
    emulator: &std::path::Path,
    machine: &Machine,
    kernel: &linux::Kernel,
    program: &std::path::Path,
    cases: &[Case],
) -> anyhow::Result<Vec<Outcome>> {
    let images = initial_files(kernel, program, machine.cpus, cases)?;
    let command = linux_command(args, emulator, machine, &images)?;
    let jobs = plan::jobs(cases).len() as u64;
    let bar = progress(format!("Linux on {}", counted(machine.cpus)), jobs);
    let outcome = follow(args, command, &bar, |event| {
        matches!(event["event"].as_str(), Some("done" | "failed"))
    })?;
    let events: Vec<protocol::Event> = outcome
        .events
        .iter()
        .filter_map(|event| serde_json::from_value(event.clone()).ok())
        .collect();
    for event in &events {
        if let protocol::Event::Lacking { what, why } = event {
            eprintln!("Linux lacks {what}: {why}");
        }
    }
    Ok(counters::outcomes(
        cases,
        &events,
        outcome.failure.as_deref(),
    ))
}

/// Boots quell's kernel once for each case.
fn run_ours(
    args: &LinuxArgs,
    emulator: &std::path::Path,
    machine: &Machine,
    images: &Images,
    cases: &[Case],
) -> anyhow::Result<Vec<Outcome>> {
    let name = format!("quell on {}", counted(machine.cpus));
    let bar = progress(name, cases.len() as u64);
    let mut outcomes = Vec::new();
    for case in cases {
        let words = ours::words(case, &args.policy);
        let command = command_for(emulator, machine, images, &words)?;
        let outcome = follow(args, command, &bar, |event| event["event"] == "exit")?;
        outcomes.push(ours::outcome(case, &outcome));
    }
    Ok(outcomes)
}

fn counted(cpus: u16) -> String {
    match cpus {
        1 => "1 CPU".to_string(),
        _ => format!("{cpus} CPUs"),
    }
}

/// A line that tells how far a run has come, on terminals.
fn progress(what: String, steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix} [{bar:20}] {pos}/{len} {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(steps).with_style(style).with_prefix(what);
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// Follows a boot, taking the bar a step further at each event that `step` says is one.
fn follow(
    args: &LinuxArgs,
    command: qemu::Command,
    bar: &ProgressBar,
    step: impl Fn(&serde_json::Value) -> bool,
) -> anyhow::Result<follow::Outcome> {
    let limit = Duration::from_secs(args.timeout);
    let outcome = follow::run(command, limit, |line| match line {
        follow::Line::Event(event) => {
            if step(event) {
                bar.inc(1);
            }
            if args.verbose {
                bar.suspend(|| eprintln!("  | {event}"));
            }
        }
        follow::Line::Text(text) if args.verbose => bar.suspend(|| eprintln!("  | {text}")),
        follow::Line::Text(_) => {}
    })?;
    if let (Some(why), false) = (&outcome.failure, outcome.code == Some(1)) {
        // Asking the bar while it is suspended would wait for itself.
        let name = bar.prefix();
        bar.suspend(|| {
            eprintln!("{name}: {why}");
            for line in &outcome.last_lines {
                eprintln!("  | {line}");
            }
        });
    }
    if outcome.events.is_empty() {
        bail!("the emulator said nothing; see what it prints with --verbose");
    }
    Ok(outcome)
}

//! `quell versus linux`: runs the same workloads on stock Linux and on quell's kernel, in one emulator.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use quell::Policy;
use quell_boot::versus::report::{Report, RowFilter};
use quell_boot::versus::{Comparison, Options, Scale};
use quell_model::workloads;

use crate::boot::mistaken;
use quell_model::output::{self, paragraph, say};
use quell_model::table::{Table, number, words};
use quell_model::usage::usage;

/// The arguments of `quell versus`.
#[derive(Debug, Args)]
pub struct VersusArgs {
    #[command(subcommand)]
    other: Opponent,
}

/// The kernel to compare with.
#[derive(Debug, Subcommand)]
enum Opponent {
    /// Compare with a stock Linux, instruction by instruction
    Linux(LinuxArgs),
}

/// The arguments of `quell versus linux`.
#[derive(Debug, Args)]
struct LinuxArgs {
    /// Boot this Linux kernel image for x86-64, for example /boot/vmlinuz-6.12.0-cloud-amd64
    #[arg(long, value_name = "FILE", conflicts_with = "fetch")]
    kernel: Option<PathBuf>,
    /// Use the kernel's modules from this directory [default: the one of its package]
    #[arg(long, value_name = "DIR", requires = "kernel")]
    modules: Option<PathBuf>,
    /// Fetch Debian's 6.12 cloud kernel with apt-get download (35 MB) and keep it for later runs
    #[arg(long)]
    fetch: bool,
    /// Compare with this Linux image, too, for example of `kernels/linux/run series --build`. Give the image of
    /// `build stock` as --kernel
    #[arg(long, value_name = "FILE")]
    patched: Option<PathBuf>,
    /// Add a column for this Linux image with quell's engine, from `kernels/linux/run build quell`. For --kernel, use
    /// the image of `build stock`, which has the same configuration
    #[arg(long, value_name = "FILE")]
    on_quell: Option<PathBuf>,
    /// Switch on these mechanisms in that Linux: all, off, or some of batch, extents, tags, lazy and remote, separated
    /// by commas
    #[arg(long, value_name = "LIST", default_value = "all", requires = "on_quell")]
    mechanisms: String,
    /// Run these workloads, or paths of workload files, separated by commas [default: all built-in ones]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    workload: Vec<String>,
    /// Boot with these numbers of CPUs, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8",
          value_parser = clap::value_parser!(u16).range(1..=64))]
    cpus: Vec<u16>,
    /// Boot only Linux, not quell's own kernel
    #[arg(long)]
    without_own: bool,
    /// Use this policy in quell's own kernel: all, baseline, S0+S4, all-S3 … (`quell list policies`)
    #[arg(long, default_value = "all", value_parser = quell_model::policies::mechanisms)]
    policy: Policy,
    /// Multiply the work of each workload by this factor
    #[arg(long, default_value_t = 1, value_name = "N", conflicts_with = "quick",
          value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Do a fifth of the work, with less exact results
    #[arg(long)]
    quick: bool,
    /// Boot each Linux this many times, each time at another point of a timer tick; rows are medians, with minimum and
    /// maximum
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=99))]
    boots: u16,
    /// Add this word to Linux's command line, for example mitigations=auto
    #[arg(long = "linux-option", value_name = "WORD")]
    linux_options: Vec<String>,
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
    /// Print the rows as a table in Markdown, with the command that made it
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Build, and print QEMU's command lines instead of running them
    #[arg(long)]
    print_command: bool,
    /// Only check whether everything needed is installed
    #[arg(long, conflicts_with_all = ["json", "markdown"])]
    check: bool,
    /// End a silent emulator after this many seconds of its own processor time, and print where its CPUs are
    #[arg(long, default_value_t = 1800, value_name = "SECONDS")]
    timeout: u64,
    /// Show every line of the serial consoles
    #[arg(long, short)]
    verbose: bool,
}

/// Runs the command.
///
/// # Errors
/// If something needed is missing or broken. A workload that fails on one side isn't an error: the exit code is 1, and
/// its row contains the reason.
pub fn run(args: VersusArgs) -> anyhow::Result<ExitCode> {
    let Opponent::Linux(args) = args.other;
    let workloads: Vec<_> = args
        .workload
        .iter()
        .map(|name| workloads::find(name).map_err(usage))
        .collect::<Result<_, _>>()?;
    let comparison = Comparison::plan(Options {
        kernel: args.kernel,
        modules: args.modules,
        fetch: args.fetch,
        patched: args.patched,
        on_quell: args.on_quell,
        mechanisms: args.mechanisms,
        workloads,
        cpus: args.cpus,
        own: !args.without_own,
        policy: args.policy,
        scale: if args.quick { Scale::Quick } else { Scale::Times(args.rounds) },
        linux_options: args.linux_options,
        boots: args.boots,
        limit: Duration::from_secs(args.timeout),
        verbose: args.verbose,
    })
    .map_err(mistaken)?;
    if args.check {
        say!("{}", comparison.found()?);
        return Ok(ExitCode::SUCCESS);
    }
    if args.print_command {
        for command in comparison.commands()? {
            say!("{command}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let report = comparison.run()?;
    if args.json {
        output::document(&report)?;
    } else if args.markdown {
        let words: Vec<String> = std::env::args().skip(1).collect();
        say!("{}", report.markdown(&format!("quell {}", words.join(" "))));
    } else {
        print(&report);
    }
    Ok(if report.complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(report: &Report) {
    say!(
        "Linux {} and quell (policy {}), counts per operation{}\n",
        report.linux,
        report.policy,
        report.said_of_boots()
    );
    if let Some(which) = &report.linux_on_quell {
        say!("`on quell` is Linux with the engine in it ({which})\n");
    }
    for shown in report.with_linux() {
        say!("{}", table(report, shown));
    }
    if report.has_own() {
        say!(
            "quell's own kernel: it has no file system, so do not compare these rows with Linux\n"
        );
        say!("{}", table(report, RowFilter::Quell));
    }
    for why in &report.without_rows {
        paragraph(format_args!("! no row: {why}"));
    }
    for remark in report.remarks() {
        paragraph(format_args!("! {remark}"));
    }
    say!();
    for note in report.notes {
        paragraph(format_args!("* {note}"));
    }
}

/// Returns a table with one row for each workload in each variant.
pub fn table(report: &Report, shown: RowFilter) -> Table {
    let column = |(index, name): (usize, String)| match index {
        0 | 1 => words(name),
        _ if name.starts_with("invalidations") => number(name).spare(),
        _ => number(name),
    };
    let columns = shown.columns().into_iter().enumerate().map(column);
    let mut table = Table::new(columns.collect::<Vec<_>>());
    for row in &report.rows {
        table.row(row.cells(shown));
    }
    table
}

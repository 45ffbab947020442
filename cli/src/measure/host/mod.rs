//! `quell measure host`: measures the cost of translation coherence in the running kernel.

pub mod print;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use quell_host::live::Options;
use quell_host::live::bench::ALL;
use quell_host::predict::HOST_FILE;
use quell_workloads::files::hint;

use quell_model::output::{Destination, INTERRUPTED, say};
use quell_model::usage::usage;

/// The exit code if every chosen benchmark was refused, so that nothing was measured.
const EXIT_NOTHING_MEASURED: u8 = 3;
/// The exit code if a change to the host couldn't be undone.
const EXIT_NOT_RESTORED: u8 = 4;

/// Measure the cost of TLB shootdowns and page clearing in the running kernel.
///
/// Runs without privileges as far as possible, and lists the benchmarks that need root or a setting. Removes its zram
/// swap device at the end, on an error and on Ctrl-C.
#[derive(Debug, Args)]
pub struct HostArgs {
    /// Print one JSON object instead of tables (keys: docs/measuring.md)
    #[arg(long)]
    json: bool,
    /// Measure for this long in all; set-up (a zram device) takes extra time
    #[arg(long, value_name = "N", default_value_t = 35, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Run only these benchmarks, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = known_name)]
    only: Vec<String>,
    /// List the benchmarks and exit
    #[arg(long, conflicts_with = "json")]
    list: bool,
    /// Write this host's machine file here, for `quell run --machine` and `quell predict` [default: quell-host.toml]
    #[arg(long, value_name = "FILE")]
    machine_file: Option<PathBuf>,
    /// Write no machine file
    #[arg(long, conflicts_with = "machine_file")]
    no_machine_file: bool,
}

fn known_name(name: &str) -> Result<String, String> {
    let names: Vec<_> = ALL.iter().map(|b| b.name).collect();
    if names.contains(&name) {
        Ok(name.to_owned())
    } else {
        Err(format!(
            "no such benchmark{}; there are {}",
            hint(name, names.iter().copied()),
            names.join(", ")
        ))
    }
}

impl HostArgs {
    /// Runs the chosen benchmarks and prints the results.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if self.list {
            for bench in &ALL {
                say!("{:10} {}  {}", bench.name, bench.mechanism, bench.title);
            }
            return Ok(ExitCode::SUCCESS);
        }
        let asked = self.machine_file.is_some();
        if let Some(path) = &self.machine_file {
            if !self.only.is_empty() && !self.only.iter().any(|name| name == "discard") {
                return Err(usage(format_args!(
                    "--machine-file {}: needs the benchmark discard, which --only leaves out",
                    path.display()
                )));
            }
            Destination::open("--machine-file", Some(path), "")?;
        }
        let report = Options {
            seconds: self.seconds,
            only: self.only,
            machine_file: self.machine_file.unwrap_or_else(|| HOST_FILE.into()),
            no_machine_file: self.no_machine_file,
        }
        .measure()?;
        if self.json {
            say!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            print::report(&report);
        }
        Ok(if !report.not_restored.is_empty() {
            EXIT_NOT_RESTORED.into()
        } else if report.interrupted {
            INTERRUPTED.into()
        } else if report.benchmarks.iter().any(|b| b.failed.is_some())
            || asked && report.machine_file.is_none_or(|file| file.path.is_none())
        {
            ExitCode::FAILURE
        } else if report.benchmarks.iter().all(|b| b.rows.is_empty()) {
            EXIT_NOTHING_MEASURED.into()
        } else {
            ExitCode::SUCCESS
        })
    }
}

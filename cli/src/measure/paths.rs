//! `quell measure paths`: measures the cost of the running kernel's own code, and writes a kernel file.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use quell_host::paths::measure;
use quell_model::numbers::digits;

use super::seconds;
use crate::destination;
use quell_model::output::{self, paragraph, say};
use quell_model::table::{Table, number, words};

/// Measure the running kernel's calls, faults, pages and tables, alone and with a second thread.
///
/// Needs no privileges, and 256 MB of memory. Writes a kernel file for `--kernel`.
#[derive(Debug, Args)]
pub struct PathsArgs {
    /// Measure for about this long
    #[arg(long, value_name = "N", default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
    /// Write the kernel file here, for `quell run --kernel`
    #[arg(long, value_name = "FILE")]
    kernel_file: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

impl PathsArgs {
    pub fn run(&self) -> Result<ExitCode> {
        let place = destination("--kernel-file", self.kernel_file.as_deref())?;
        let profile = measure(self.seconds)?;
        if let Some(place) = place {
            place.write(&profile.text)?;
        }
        if self.json {
            output::document(&profile)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut table = Table::new([
            words("parameter"),
            words("operation"),
            number("alone, ns"),
            number("two threads, ns"),
            number("in the model, ns"),
            number("kernel's code, ns"),
        ]);
        for cost in &profile.costs {
            table.row([
                cost.parameter.clone(),
                cost.what.to_owned(),
                digits(cost.alone_ns),
                cost.pair_ns.map_or_else(|| "-".into(), digits),
                digits(cost.model_ns),
                digits(cost.cost_ns),
            ]);
        }
        say!("{table}");
        paragraph(format_args!(
            "Linux {}; model: {}. Times are the minimum of many runs. With two threads, each works on its own memory in one \
             process.",
            profile.release, profile.machine
        ));
        Ok(ExitCode::SUCCESS)
    }
}

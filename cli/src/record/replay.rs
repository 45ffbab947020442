//! `--replay`: the recorded calls on the machine in software, as they were made, and with the kernel or the calls
//! changed.

use std::path::Path;

use clap::Args;
use quell_clock::MachineFile;
use quell_experiments::machines;
use quell_host::predict::HOST_FILE;
use quell_host::predict::recorded::Replayed;

use crate::output::{object, paragraph, say};
use crate::table::{Table, number, words};
use crate::usage::usage;

/// On which machine recordings are replayed where no file says what this host is.
const BUILT_IN: &str = "haswell-server";

/// Whether the recording is replayed, and where.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Predict the effect of other mechanisms (S0 to S4), and of larger calls: repeats the calls of the busiest process
    /// (of --program) on the machine in software
    #[arg(long)]
    replay: bool,
    /// Use this machine for --replay: a file from `quell measure host`, or a built-in name [default: quell-host.toml if
    /// it is here, else haswell-server]
    #[arg(long, value_name = "FILE", requires = "replay")]
    machine: Option<String>,
}

impl ReplayArgs {
    /// The machine, if a replay is wanted.
    ///
    /// # Errors
    /// If there is no such machine, or its file is wrong.
    pub fn machine(&self) -> anyhow::Result<Option<MachineFile>> {
        let name = match &self.machine {
            _ if !self.replay => return Ok(None),
            Some(name) => name,
            None if Path::new(HOST_FILE).exists() => HOST_FILE,
            None => BUILT_IN,
        };
        Ok(Some(machines::find(name).map_err(usage)?))
    }
}

/// Prints what a replay came to, if one was wanted, or why there is none.
pub fn print(replayed: Option<&anyhow::Result<Replayed>>) {
    match replayed {
        Some(Ok(replayed)) => show(replayed),
        Some(Err(why)) => paragraph(format_args!("\n{}", nothing(why))),
        None => {}
    }
}

/// Prints an object of JSON, with what a replay came to as its key `replay`, if one was wanted.
///
/// # Errors
/// If it cannot be written as JSON.
pub fn print_json(
    mut json: serde_json::Value,
    replayed: Option<&anyhow::Result<Replayed>>,
) -> anyhow::Result<()> {
    match replayed {
        Some(Ok(replayed)) => json["replay"] = serde_json::to_value(&replayed.replay)?,
        Some(Err(why)) => json["replay"] = serde_json::json!({"refused": why.to_string()}),
        None => {}
    }
    object(json);
    Ok(())
}

/// Prints what a replay came to.
fn show(replayed: &Replayed) {
    let told = replayed.told();
    say!("\nWhat a change would do");
    told.before.iter().for_each(paragraph);
    if !told.rows.is_empty() {
        let last = told.headings.len().saturating_sub(1);
        let column = |(at, heading): (usize, &String)| match at == 0 || at == last {
            true => words(heading),
            false => number(heading),
        };
        let mut table = Table::new(told.headings.iter().enumerate().map(column));
        for row in told.rows {
            table.row(row);
        }
        say!("{table}");
    }
    told.after.iter().for_each(paragraph);
}

/// That a recording could not be replayed, and why.
pub fn nothing(why: &anyhow::Error) -> String {
    format!("Nothing is predicted: {why}.")
}

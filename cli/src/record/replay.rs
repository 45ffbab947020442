//! `--replay`: repeats the recorded calls on the machine in software, unchanged and with changes to the kernel or the
//! calls.

use std::path::Path;

use clap::Args;
use quell_clock::MachineFile;
use quell_host::predict::HOST_FILE;
use quell_host::predict::recorded::ReplayedProgram;
use quell_model::machines;

use quell_model::output::{object, paragraph, say};
use quell_model::table::{Table, number, words};
use quell_model::usage::usage;

/// The machine for replays if there is no file about this host.
const BUILT_IN: &str = "haswell-server";

/// The options of a replay.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Predict the effect of other mechanisms (batching, lazy unmap …), and of larger calls: repeats the calls of the
    /// busiest process (of --program) on the machine in software
    #[arg(long)]
    replay: bool,
    /// Use this machine for --replay: a file from `quell measure host`, or a built-in name [default: quell-host.toml if
    /// it is here, else haswell-server]
    #[arg(long, value_name = "FILE", requires = "replay")]
    machine: Option<String>,
}

impl ReplayArgs {
    /// Returns the machine for a replay, or `None` if no replay was requested.
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

/// Prints the results of a replay, or the reason why there are none.
pub fn print(replayed: Option<&anyhow::Result<ReplayedProgram>>) {
    match replayed {
        Some(Ok(replayed)) => show(replayed),
        Some(Err(why)) => paragraph(format_args!("\n{}", nothing(why))),
        None => {}
    }
}

/// Prints a JSON object. The results of a replay, if there was one, are under its key `replay`.
pub fn print_json(
    mut json: serde_json::Value,
    replayed: Option<&anyhow::Result<ReplayedProgram>>,
) -> anyhow::Result<()> {
    match replayed {
        Some(Ok(replayed)) => json["replay"] = serde_json::to_value(&replayed.replay)?,
        Some(Err(why)) => json["replay"] = serde_json::json!({"refused": why.to_string()}),
        None => {}
    }
    object(json);
    Ok(())
}

fn show(replayed: &ReplayedProgram) {
    let told = replayed.told();
    say!("\nPredicted effect of changes");
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

/// Returns a sentence that explains why a recording couldn't be replayed.
pub fn nothing(why: &anyhow::Error) -> String {
    format!("Nothing is predicted: {why}.")
}

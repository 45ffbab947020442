//! `quell advise`: prints the changes that would remove a recording's interrupts, and nothing else.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use quell_host::predict::recorded::replay_busiest;
use quell_record::report::Report;
use serde_json::json;

use super::read::{analysed, open};
use super::{note_unknown, replay, show};
use quell_model::output::say;

/// Advise on a recording: the changes that remove shootdowns, and how many each removes
///
/// Reads a recording from `quell record -o FILE`, or the text of `perf script` or `trace-cmd report`. Prints the
/// answer, each change before and after, and the next limit. `quell record` prints the same beside its tables.
#[derive(Debug, Args)]
pub struct AdviseArgs {
    /// The recording; `-` is text on standard input
    #[arg(value_name = "FILE")]
    recording: PathBuf,
    /// Advise only on this program
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
    /// Print one JSON object with the key `advice` (docs/guide/record.md), and `replay` with --replay
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    replay: replay::ReplayArgs,
}

pub fn run(args: &AdviseArgs) -> anyhow::Result<ExitCode> {
    let machine = args.replay.machine()?;
    let (mut source, _) = open(&args.recording)?;
    let (all, calls) = analysed(&mut *source, &mut ())?;
    let host = all.host.clone();
    let only = args.program.as_deref();
    note_unknown(only, &all);
    let report = Report::new(all, only);
    let replayed =
        machine.map(|machine| replay_busiest(&calls, only, &machine, host.as_ref(), &report));
    if args.json {
        let advice = json!({"advice": report.json()["advice"]});
        replay::print_json(advice, replayed.as_ref())?;
        return Ok(ExitCode::SUCCESS);
    }
    show::answer(&report);
    if !report.advice.is_empty() {
        say!("\nInterrupts before and after each change");
        say!("{}", show::before_and_after(&report));
        say!("\nAdvice");
        show::advice(report.advice.iter());
    }
    replay::print(replayed.as_ref());
    Ok(ExitCode::SUCCESS)
}

//! `quell merge`: the parts of a sweep or of a search, put together.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use quell_experiments::results::{Header, Results};

use crate::explore::kept;
use crate::explore::output::Outcome;
use crate::output::{Destination, say};
use crate::results::{Part, ResultsFile};
use crate::sweep::summary;
use crate::usage::usage;

/// What `quell merge` takes.
#[derive(Debug, Args)]
pub struct MergeArgs {
    /// Result files of one sweep, or of one search
    #[arg(required = true, value_name = "FILE")]
    parts: Vec<PathBuf>,
    /// Write all results to this file
    #[arg(long, value_name = "FILE")]
    results: PathBuf,
    #[command(flatten)]
    summary: summary::SummaryArgs,
}

/// Puts the parts of a sweep or of a search together, and prints what all of them come to.
///
/// # Errors
/// If one cannot be read, they are not of one whole, or two differ in what came of a place.
pub fn run(args: &MergeArgs) -> Result<ExitCode> {
    let place = Destination::open("--results", Some(&args.results), "")?;
    // Which of both is said by the first line.
    let (first, others) = args.parts.split_first().context("no files")?;
    let first = Part::open(first)?;
    let outcome = if kept::is_search(first.first()) {
        if let Some(option) = args.summary.asked() {
            return Err(usage(format_args!(
                "{option} is for sweeps, and these are parts of a search"
            )));
        }
        let merged = ResultsFile::merge(first, others, place.path())?.results;
        let outcome = kept::print(&merged);
        match told(&merged, &place) {
            true => outcome,
            false => Outcome::Wrong,
        }
    } else {
        let places = args.summary.open()?;
        let merged = ResultsFile::merge(first, others, place.path())?.results;
        let good = summary::print(&merged, &places)?;
        match told(&merged, &place) && good {
            true => Outcome::Holds,
            false => Outcome::Wrong,
        }
    };
    Ok(outcome.into())
}

/// Says how much of the whole is there; whether all is.
fn told<W: Header>(merged: &Results<W>, place: &Destination) -> bool {
    let (known, missing, each) = (merged.known(), merged.missing(), W::EACH);
    match missing {
        0 => say!("results: {}, all {known} {each}s", place.shown()),
        _ => say!(
            "results: {}, {known} {each}s; {missing} are missing",
            place.shown()
        ),
    }
    missing == 0
}

//! `quell merge`: joins the parts of a sweep or of a search.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use quell_model::results::{Header, Results};

use crate::explore::kept;
use crate::explore::output::Outcome;
use quell_model::command::sweep::summary;
use quell_model::output::{Destination, say};
use quell_model::results::{ResultsFile, ResultsPart};
use quell_model::usage::usage;

/// The arguments of `quell merge`.
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

pub fn run(args: &MergeArgs) -> Result<ExitCode> {
    let place = Destination::open("--results", Some(&args.results), "")?;
    // The first line of a part shows whether it belongs to a sweep or to a search.
    let (first, others) = args.parts.split_first().context("no files")?;
    let first = ResultsPart::open(first)?;
    let outcome = if kept::is_search(first.first()) {
        if let Some(option) = args.summary.asked() {
            return Err(usage(format_args!(
                "{option}: only for parts of a sweep, and these are parts of a search"
            )));
        }
        let merged = ResultsFile::merge(first, others, place.path())?.results;
        let outcome = kept::print(&merged, false);
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

/// Prints how much of the whole is present, and returns whether all of it is.
fn told<W: Header>(merged: &Results<W>, place: &Destination) -> bool {
    let (known, missing, each) = (merged.known(), merged.missing(), W::EACH);
    match missing {
        0 => say!("results: {}, complete: {known} {each}s", place.shown()),
        _ => say!("results: {}, incomplete: {known} {each}s, {missing} missing", place.shown()),
    }
    missing == 0
}

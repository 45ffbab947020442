//! Prints a sweep's results as a table, and writes them to files: a plot, and every run as CSV and Parquet.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::numbers::digits;
use crate::output::{Destination, note, say};
use crate::results::Results;
#[cfg(feature = "parquet")]
use crate::sweep::columns;
use crate::sweep::summary::{Point, csv, plot, points};
use crate::sweep::{Head, Record};
use crate::table::{Table, number, words};
use crate::usage::usage;

/// The other files for a sweep's results.
#[derive(Debug, Args)]
pub struct SummaryArgs {
    /// Write every run to this file, as comma-separated values
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write typed columns to this file, as Parquet (if built with `--features parquet`)
    #[arg(long, value_name = "FILE")]
    parquet: Option<PathBuf>,
    /// Draw the medians to this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// The files of [`SummaryArgs`], checked before the work.
pub struct SummaryPlaces {
    csv: Option<Destination>,
    #[cfg(feature = "parquet")]
    parquet: Option<Destination>,
    plot: Option<Destination>,
}

impl SummaryArgs {
    /// Returns the first option that was given.
    pub fn asked(&self) -> Option<&'static str> {
        let options = [("--csv", &self.csv), ("--parquet", &self.parquet), ("--plot", &self.plot)];
        let mut asked = options.iter().filter(|(_, path)| path.is_some());
        asked.next().map(|(option, _)| *option)
    }

    /// Checks that the files can be written.
    ///
    /// # Errors
    /// If a file can't be written, or this command was built without support for Parquet.
    pub fn open(&self) -> Result<SummaryPlaces> {
        let open = |option, path: &Option<PathBuf>| {
            path.as_deref().map(|path| Destination::open(option, Some(path), "")).transpose()
        };
        if self.parquet.is_some() && !cfg!(feature = "parquet") {
            return Err(usage(
                "--parquet: this quell was built without Parquet; build it with `--features parquet`, or use --csv",
            ));
        }
        Ok(SummaryPlaces {
            csv: open("--csv", &self.csv)?,
            #[cfg(feature = "parquet")]
            parquet: open("--parquet", &self.parquet)?,
            plot: open("--plot", &self.plot)?,
        })
    }
}

/// Prints the results and writes the files. Returns whether every run kept the contract and has a figure.
///
/// # Errors
/// If something can't be written.
pub fn print(results: &Results<Head>, places: &SummaryPlaces) -> Result<bool> {
    let records: Vec<Record> = results.rows().collect();
    let points = points(&records);
    say!("{}, {}\n", results.head.workload, results.head.metric);
    say!("{}", table(&points));
    if let Some(place) = &places.csv {
        place.write(&csv(&records))?;
        say!("CSV: {}", place.shown());
    }
    #[cfg(feature = "parquet")]
    if let Some(place) = &places.parquet {
        place.write_with(|to| crate::sweep::parquet::write(&columns::of(&records), to))?;
        say!("Parquet: {}", place.shown());
    }
    if let Some(place) = &places.plot {
        match plot(&points, &results.head.metric) {
            Some(drawn) => {
                place.write(&drawn)?;
                say!("plot: {}", place.shown());
            }
            None => {
                note!("no plot: neither --cpus nor a numeric parameter has two values with figures")
            }
        }
    }
    let (mut violations, mut failed) = (0, 0);
    for record in &records {
        violations += record.violations;
        if let Some(why) = &record.error {
            failed += 1;
            if failed <= 3 {
                note!("failed: {why}");
            }
        }
    }
    if failed > 3 {
        note!("{} more runs failed", failed - 3);
    }
    say!("breaches of the contract: {violations}");
    Ok(violations == 0 && failed == 0)
}

fn table(points: &[Point]) -> Table {
    let names: Vec<String> =
        points.first().map_or(Vec::new(), |point| point.parameters.keys().cloned().collect());
    let columns = [words("machine"), words("policy"), number("CPUs")]
        .into_iter()
        .chain(names.iter().map(|name| number(name.as_str())))
        .chain([number("median"), number("spread"), number("seeds")]);
    let mut rows = Table::new(columns);
    for point in points {
        let or = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        let cells = [point.machine.clone(), point.policy.clone(), point.cpus.to_string()];
        let figures = [
            or(point.median().map(digits)),
            or(point.spread().map(|spread| format!("{spread:.1} %"))),
            match point.failed {
                0 => point.values.len().to_string(),
                failed => format!("{}, {failed} failed", point.values.len()),
            },
        ];
        let parameters = point.parameters.values().cloned();
        rows.row(cells.into_iter().chain(parameters).chain(figures));
    }
    rows
}

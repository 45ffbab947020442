//! `quell measure clear`: measures how fast this machine zeroes memory, and prints the engine's choices.

pub mod print;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use quell_host::clear::{Options, measure, plot};

use super::seconds;
use crate::destination;
use quell_model::output;

/// The arguments of `quell measure clear`.
#[derive(Args, Debug)]
pub struct ClearArgs {
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Write a self-contained page with the tables and the plot
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the plot as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Measure extents up to this length, in bytes or with K, M or G; takes that much memory per CPU, and at least
    /// four times the last-level cache (256 MB to 1 GB)
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = parse_bytes)]
    max_bytes: u64,
    /// Measure for this long; more time means more samples
    #[arg(long, value_name = "SECONDS", default_value_t = 40.0, value_parser = seconds)]
    seconds: f64,
    /// Leave out strategies that overwrite vector registers, which kernels often do not save
    #[arg(long)]
    no_vectors: bool,
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(['k', 'K', 'm', 'M', 'g', 'G']);
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err("expected at most one of K, M, G after the number".into()),
    };
    let number: u64 =
        digits.parse().map_err(|_| "expected a number of bytes such as 64M or 1G".to_string())?;
    match number.checked_mul(1 << shift) {
        Some(n) if n >= 64 << 10 => Ok(n),
        _ => Err("expected at least 64K: the strategies do not differ below".into()),
    }
}

/// Runs the measurement. The exit code is 1 if a target is missed.
pub fn run(args: &ClearArgs) -> Result<ExitCode> {
    let svg_place = destination("--plot", args.plot.as_deref())?;
    let page_place = destination("--html", args.html.as_deref())?;
    let report = measure(&Options {
        max_bytes: args.max_bytes,
        budget: Duration::from_secs_f64(args.seconds),
        no_vectors: args.no_vectors,
    })?;
    if let Some(place) = svg_place {
        place.write(&plot::svg(&report))?;
    }
    if let Some(place) = page_place {
        place.write(&print::html(&report))?;
    }
    if args.json {
        output::document(&report)?;
    } else {
        output::write_coloured(&print::text(&report, output::width(), output::colour()));
    }
    let met = report.verdicts.iter().all(|verdict| verdict.pass);
    Ok(ExitCode::from(u8::from(!met)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_seconds_are_read_or_refused() {
        assert_eq!(parse_bytes("64K"), Ok(64 << 10));
        assert_eq!(parse_bytes("1g"), Ok(1 << 30));
        assert_eq!(parse_bytes("65536"), Ok(65536));
        for bad in ["", "K", "4K", "1KM", "-1", "1.5G", "99999999999G", "1T"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
        assert_eq!(seconds("2.5"), Ok(2.5));
        for bad in ["0", "nan", "inf", "x", "1e9"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}

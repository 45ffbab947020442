//! `quell measure clear`: measures how fast this machine zeroes memory, and prints the engine's choices.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use quell_host::clear::report::{PlanChoice, Report, Row, bytes_label};
use quell_host::clear::{Options, measure, plot};

use super::seconds;
use crate::destination;
use quell_model::output::{self, filled};
use quell_model::table::{Cell, Table, number, verdict, words};

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
        place.write(&html(&report))?;
    }
    if args.json {
        output::document(&report)?;
    } else {
        output::write_coloured(&text(&report, output::width(), output::colour()));
    }
    let met = report.verdicts.iter().all(|verdict| verdict.pass);
    Ok(ExitCode::from(u8::from(!met)))
}

/// Returns a table of speeds, one row for each length. A star marks the engine's choice.
fn speed_table(rows: &[Row], beside: &[(&str, &[Row])], chosen: &[PlanChoice]) -> Table {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.strategy) {
            names.push(row.strategy);
        }
    }
    let picked = |name: &str| chosen.iter().any(|choice| choice.strategy == name);
    let mut columns = vec![number("extent")];
    columns.extend(names.iter().map(|&name| match picked(name) {
        true => number(name),
        false => number(name).spare(),
    }));
    columns.extend(beside.iter().map(|&(name, _)| number(name)));
    let mut table = Table::new(columns);
    for choice in chosen {
        let figure = |rows: &[Row], name: &str| {
            let mut found = rows.iter();
            found
                .find(|r| r.bytes == choice.bytes && r.strategy == name)
                .map_or("-".into(), |r| format!("{:.1}", r.gbps))
        };
        let mut cells = vec![bytes_label(choice.bytes)];
        cells.extend(names.iter().map(|&name| {
            let mark = if name == choice.strategy { "*" } else { "" };
            format!("{mark}{}", figure(rows, name))
        }));
        cells.extend(beside.iter().map(|(name, rows)| figure(rows, name)));
        table.row(cells);
    }
    table
}

fn choice_table(report: &Report) -> Table {
    let mut table = Table::new([
        number("from length"),
        words("if read next"),
        words("default rule"),
        words("if not read next"),
        words("default rule"),
    ]);
    for row in &report.plan.0 {
        table.row([
            &bytes_label(row.bytes),
            row.hot,
            row.by_rule_hot,
            row.bypassing,
            row.by_rule_bypassing,
        ]);
    }
    table
}

/// Returns the times to clear an extent and then read around the faulting page.
fn read_table(report: &Report) -> Table {
    let mut table = Table::new([
        number("extent"),
        words("strategy"),
        number("clear, us"),
        number("read, us"),
        number("both, us"),
    ]);
    for r in &report.clear_then_read {
        let us = |ns: f64| format!("{:.2}", ns / 1e3);
        table.row([
            bytes_label(r.bytes),
            r.way.to_string(),
            us(r.clear_ns),
            us(r.read_ns),
            us(r.total_ns),
        ]);
    }
    table
}

fn fault_table(report: &Report) -> Table {
    let mut table = Table::new([number("page"), words("method"), number("GB/s"), words("note")]);
    for fault in &report.demand_fault {
        let refused = fault.note.as_ref().filter(|_| fault.gbps.is_none());
        table.row([
            bytes_label(fault.page_bytes),
            fault.way.to_string(),
            fault.gbps.map_or("-".into(), |gbps| format!("{gbps:.1}")),
            refused.map_or(String::new(), |why| format!("not measured: {why}")),
        ]);
    }
    table
}

fn verdict_table(report: &Report) -> Table {
    let mut table = Table::new([
        words("verdict"),
        words("target"),
        number("ratio"),
        number("bound"),
        number("extent"),
    ]);
    for v in &report.verdicts {
        table.row([
            verdict(v.pass, if v.pass { "pass" } else { "MISS" }),
            v.target.into(),
            format!("{:.2}", v.ratio).into(),
            v.bound.to_string().into(),
            bytes_label(v.at_bytes).into(),
        ] as [Cell; 5]);
    }
    table
}

fn text(report: &Report, width: Option<usize>, colour: bool) -> String {
    let mut out = String::new();
    for (heading, table) in parts(report) {
        let _ = writeln!(out, "{}", filled(&heading, width));
        if let Some(table) = table {
            let _ = writeln!(out, "{}", table.render(width, colour));
        }
    }
    out
}

/// Returns the report's parts in order: headings with their tables, and lines without.
fn parts(report: &Report) -> Vec<(String, Option<Table>)> {
    let mut parts = Vec::new();
    let mut part = |heading: String, table: Option<Table>| parts.push((heading, table));
    let [l1d, l2, last] = report.caches.map(|b| if b == 0 { "?".into() } else { bytes_label(b) });
    part(
        format!(
            "{}; caches {l1d}, {l2}, {last}\nmemory mapped with huge pages: {:.0} %; GB/s = 10^9 bytes per second of CPU time\n",
            report.cpu,
            report.huge_page_share * 100.0
        ),
        None,
    );
    let beside: [(&str, &[Row]); 2] =
        [("memset", &report.memset), ("page-by-page", &report.page_by_page)];
    part(
        "Clearing, one core, GB/s (* = the engine's choice)".into(),
        Some(speed_table(&report.rows, &beside, &report.chosen)),
    );
    part(format!("peak write bandwidth {:.1} GB/s\n", report.peak_write_gbps), None);
    if let Some(all) = &report.all_cores {
        part(
            format!("Clearing, {} cores at once, GB/s in total", all.cores),
            Some(speed_table(&all.rows, &[("memset", &all.memset)], &all.chosen)),
        );
        part(
            format!(
                "peak write bandwidth {:.1} GB/s, page by page {:.1}\n",
                all.peak_write_gbps, all.page_by_page_gbps
            ),
            None,
        );
    }
    part(
        format!("The engine's choices, calibrated in {:.0} ms", report.calibration_ms),
        Some(choice_table(report)),
    );
    part(
        "Time to clear an extent, then read the faulting page and its two neighbours on each side"
            .into(),
        Some(read_table(report)),
    );
    part("Speed of demand faults in the running kernel".into(), Some(fault_table(report)));
    part("Targets".into(), Some(verdict_table(report)));
    part(format!("measured in {:.0} s", report.seconds), None);
    parts
}

/// Returns a self-contained HTML page, with the plot above the tables.
fn html(report: &Report) -> String {
    let parts = parts(report).into_iter();
    let tables: Vec<_> =
        parts.map(|(heading, table)| table.unwrap_or_default().for_page(heading)).collect();
    plot::page(report, &tables)
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

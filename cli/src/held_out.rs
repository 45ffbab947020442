//! `quell held-out`: published tables that the model was not made or calibrated for, beside what it predicts.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use quell_experiments::held_out::{self, Row};
use quell_experiments::jobs::Results;
use quell_experiments::numbers::{Skill, Verdict, digits};
use quell_experiments::progress;
use quell_workloads::files::hint;
use serde::Serialize;

use crate::output::{self, note, paragraph, say};
use crate::table::{Cell, Table, number, verdict, words};
use crate::usage::usage;

/// How long `--quick` may take.
const QUICK: Duration = Duration::from_secs(60);

/// What `quell held-out` takes.
#[derive(Debug, Args)]
pub struct HeldOutArgs {
    /// A built-in table, a folder with a published.toml, or a folder of such folders [default: all built-in tables]
    #[arg(value_name = "TABLE|PATH")]
    tables: Vec<String>,
    /// Run only tables that together take less than a minute
    #[arg(long)]
    quick: bool,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Print only the table of docs/held-out.md
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Json<'a> {
    tables: Vec<Named<'a>>,
    hits: usize,
    skill: Skill,
    violations: u64,
    cpu_seconds: f64,
}

/// A table and its figures.
#[derive(Serialize)]
struct Named<'a> {
    name: &'a str,
    title: &'a str,
    source: &'a str,
    seen: &'a str,
    before: &'a str,
    after: &'a str,
    rows: Vec<Row>,
}

/// Reads the tables, runs them and prints.
///
/// # Errors
/// If a table cannot be read, or a run came to no end.
pub fn run(args: &HeldOutArgs) -> Result<ExitCode> {
    let threads = rayon::current_num_threads() as u32;
    let mut tables = args.tables()?;
    if args.quick {
        tables = held_out::within(tables, QUICK, threads);
    }
    if let (Some(time), false) = (held_out::expected(&tables, threads), args.json) {
        note!(
            "{} with {}: expected to take {} on {}, if they are as fast as those on which it was timed",
            output::several(tables.len(), "table"),
            output::several(tables.iter().flat_map(held_out::Table::jobs).count(), "run"),
            progress::length(time),
            output::several(threads, "thread"),
        );
    }
    let mut results = Results::default();
    results.run(
        "running the tables",
        tables.iter().flat_map(held_out::Table::jobs),
    );
    let named = |table| named(table, &results);
    let named: Vec<Named<'_>> = tables.iter().map(named).collect();
    let rows = || named.iter().flat_map(|table| &table.rows);
    let hits = rows().filter(|row| row.verdict == Verdict::Hit).count();
    let skill = held_out::skill(rows());
    let violations = results.violations();
    if args.json {
        let failures: Vec<_> = rows().filter_map(|row| row.reason.clone()).collect();
        let json = Json {
            hits,
            skill,
            violations,
            cpu_seconds: results.outcomes().map(|outcome| outcome.host_seconds).sum(),
            tables: named,
        };
        output::document(&json)?;
        return ended(&failures, violations);
    }
    if args.markdown {
        say!("{}", table(rows()).markdown(true));
        say!("{}", textwrap::fill(&skill.words(), 120));
    } else {
        for table in &named {
            paragraph(format_args!("{}: {}", table.name, table.title));
            paragraph(format_args!(
                "  before: {}; after: {}",
                table.before, table.after
            ));
            paragraph(format_args!("  {}; {}\n", table.source, table.seen));
        }
        say!("{}", table(rows()));
        paragraph(format_args!(
            "{hits} of {} ratios are predicted within {:.0} %. None was used to calibrate the model; docs/held-out.md \
             explains the misses.",
            rows().count(),
            held_out::NEAR * 100.0
        ));
        paragraph(skill.words());
        paragraph(match violations {
            0 => "Every access was checked, and the contract held.".into(),
            count => format!("THE CONTRACT WAS BROKEN {count} times."),
        });
    }
    let failures: Vec<_> = rows().filter_map(|row| row.reason.clone()).collect();
    ended(&failures, violations)
}

impl HeldOutArgs {
    /// The tables that are asked for.
    fn tables(&self) -> Result<Vec<held_out::Table>> {
        let mut built_in = held_out::built_in()?;
        if self.tables.is_empty() {
            return Ok(built_in);
        }
        let mut tables = Vec::new();
        for wanted in &self.tables {
            match built_in.iter().position(|table| table.name == *wanted) {
                Some(index) => tables.push(built_in.remove(index)),
                None if Path::new(wanted).exists() => {
                    tables.extend(held_out::find(Path::new(wanted)).map_err(usage)?);
                }
                None => {
                    let names = || built_in.iter().map(|table| table.name.as_str());
                    return Err(usage(format_args!(
                        "no table `{wanted}`{}; built in are {}; a path names a folder with a published.toml",
                        hint(wanted, names()),
                        names().collect::<Vec<_>>().join(", ")
                    )));
                }
            }
        }
        Ok(tables)
    }
}

fn named<'a>(table: &'a held_out::Table, results: &Results) -> Named<'a> {
    let [before, after] = &table.labels;
    Named {
        name: &table.name,
        title: &table.title,
        source: &table.source,
        seen: &table.seen,
        before,
        after,
        rows: table.rows(results),
    }
}

/// How the command ends.
fn ended(failures: &[String], violations: u64) -> Result<ExitCode> {
    if !failures.is_empty() {
        bail!("{}", failures.join("; "));
    }
    Ok(match violations {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// A change in percent.
fn percent(change: f64) -> String {
    format!("{:+.1}", change * 100.0)
}

fn or_dash(value: Option<f64>, text: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".into(), text)
}

/// The figures, a row for each.
fn table<'a>(rows: impl Iterator<Item = &'a Row>) -> Table {
    let mut table = Table::new([
        words("table"),
        words("figure"),
        number("published before"),
        number("published after"),
        number("model before").spare(),
        number("model after").spare(),
        number("published %"),
        number("predicted %"),
        number("ratio off by, %"),
        words("verdict"),
    ]);
    for row in rows {
        let unit = row.unit.as_deref();
        let published = |value: Option<f64>| match (value, unit) {
            (Some(value), Some(unit)) => format!("{} {unit}", digits(value)),
            _ => "-".into(),
        };
        table.row([
            row.table.clone().into(),
            row.case.clone().into(),
            published(row.published_before).into(),
            published(row.published_after).into(),
            or_dash(row.model_before, digits).into(),
            or_dash(row.model_after, digits).into(),
            percent(row.change_published).into(),
            or_dash(row.change_predicted, percent).into(),
            or_dash(row.off, percent).into(),
            verdict(row.verdict == Verdict::Hit, row.verdict.name()),
        ] as [Cell; 10]);
    }
    table
}

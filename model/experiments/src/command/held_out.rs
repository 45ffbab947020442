//! `quell held-out`: published tables that we never used to calibrate the model, beside its predictions.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use crate::held_out::{self, Row};
use crate::jobs::Results;
use crate::numbers::{Skill, Verdict, digits};
use crate::progress;
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::options::{KernelArgs, SuggestedNames};
use crate::output::{self, note, paragraph, say};
use crate::table::{Cell, Table, number, verdict, words};
use crate::usage::usage;

/// The time limit of `--quick`.
const QUICK: Duration = Duration::from_secs(60);

/// The arguments of `quell held-out`.
#[derive(Debug, Args)]
pub struct HeldOutArgs {
    /// A built-in table, a folder with a published.toml, or a folder of such folders [default: all built-in tables]
    #[arg(value_name = "TABLE|PATH", value_parser = SuggestedNames(held_out::names), hide_possible_values = true)]
    tables: Vec<String>,
    #[command(flatten)]
    kernel: KernelArgs,
    /// Also fit at most two path costs of each table's kernel to the figures from before the change, and predict with
    /// them
    #[arg(long, value_name = "SIDE")]
    calibrate: Option<Side>,
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

/// The figures to which we fit a kernel's path costs. Figures from after a change are never used: we predict them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Side {
    /// The published figures from before the change
    Before,
}

/// The document that `--json` prints.
#[derive(Serialize)]
struct Json<'a> {
    tables: Vec<NamedTable<'a>>,
    hits: usize,
    skill: Skill,
    #[serde(skip_serializing_if = "Option::is_none")]
    calibrated_hits: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    calibrated_skill: Option<Skill>,
    violations: u64,
    cpu_seconds: f64,
}

/// A published table with its figures.
#[derive(Serialize)]
struct NamedTable<'a> {
    name: &'a str,
    title: &'a str,
    source: &'a str,
    seen: &'a str,
    before: &'a str,
    after: &'a str,
    skill: Skill,
    #[serde(skip_serializing_if = "Option::is_none")]
    calibrated_skill: Option<Skill>,
    /// The fitted path costs, each with the factor by which the fit changed it.
    fitted: BTreeMap<String, f64>,
    rows: Vec<Row>,
}

/// Reads the tables, runs them and prints the figures.
///
/// # Errors
/// If a table can't be read, or a run didn't end.
pub fn run(args: &HeldOutArgs) -> Result<ExitCode> {
    let threads = rayon::current_num_threads() as u32;
    let mut tables = args.tables()?;
    if args.quick {
        tables = held_out::within(tables, QUICK, threads);
    }
    if let (Some(time), false) = (held_out::expected(&tables, threads), args.json) {
        note!(
            "{} with {}: about {} on {}, if this host is as fast as the timed one",
            output::several(tables.len(), "table"),
            output::several(tables.iter().flat_map(held_out::Table::jobs).count(), "run"),
            progress::length(time),
            output::several(threads, "thread"),
        );
    }
    let mut results = Results::default();
    results.run("running the tables", tables.iter().flat_map(held_out::Table::jobs));
    let calibrated: Vec<_> = match args.calibrate {
        None => Vec::new(),
        Some(Side::Before) => tables.iter().map(|table| table.calibrated(&mut results)).collect(),
    };
    results.run(
        "running the calibrated tables",
        calibrated.iter().flat_map(|(table, _)| table.jobs()),
    );
    let mut named: Vec<NamedTable<'_>> =
        tables.iter().map(|table| named(table, &results)).collect();
    for (named, (table, (calibrated, factors))) in
        named.iter_mut().zip(tables.iter().zip(&calibrated))
    {
        named.rows = table.rows_with(calibrated, &results);
        named.calibrated_skill = Some(held_out::calibrated_skill(&named.rows));
        let factors = factors.iter().map(|(parameter, factor)| (parameter.name(), *factor));
        named.fitted = factors.collect();
    }
    let rows = || named.iter().flat_map(|table| &table.rows);
    let hits = rows().filter(|row| row.verdict == Verdict::Hit).count();
    let skill = held_out::skill(rows());
    let fitted = args.calibrate.is_some();
    let calibrated_hits = fitted.then(|| calibrated_hits(rows()));
    let calibrated_skill = fitted.then(|| held_out::calibrated_skill(rows()));
    let violations = results.violations();
    if args.json {
        let failures: Vec<_> = rows().filter_map(|row| row.reason.clone()).collect();
        let json = Json {
            hits,
            skill,
            calibrated_hits,
            calibrated_skill,
            violations,
            cpu_seconds: results.outcomes().map(|outcome| outcome.host_seconds).sum(),
            tables: named,
        };
        output::document(&json)?;
        return ended(&failures, violations);
    }
    if args.markdown {
        say!("{}", table(rows(), fitted).markdown(true));
        say!("{}", skill_table(&named, fitted).markdown(true));
        say!("{}", textwrap::fill(&skill.words(), 120));
        if let Some(skill) = &calibrated_skill {
            say!("\n{}", textwrap::fill(&format!("Calibrated: {}", skill.words()), 120));
        }
    } else {
        for table in &named {
            paragraph(format_args!("{}: {}", table.name, table.title));
            paragraph(format_args!("  before: {}; after: {}", table.before, table.after));
            paragraph(format_args!("  {}; {}\n", table.source, table.seen));
        }
        output::table(&table(rows(), fitted));
        output::table(&skill_table(&named, fitted));
        for table in named.iter().filter(|_| fitted) {
            let factor =
                |(name, factor): (&String, &f64)| format!("{name} times {}", digits(*factor));
            let factors: Vec<_> = table.fitted.iter().map(factor).collect();
            paragraph(format_args!(
                "{}: {}",
                table.name,
                match &factors[..] {
                    [] => "not fitted, because no figure from before the change has a unit of the model".into(),
                    factors => format!("fitted to the figures from before the change: {}", factors.join(", ")),
                }
            ));
        }
        paragraph(format_args!(
            "{hits} of {} ratios are predicted within {:.0} %. No published figure here was used to calibrate the model; \
             docs/held-out.md explains the misses.",
            rows().count(),
            held_out::NEAR * 100.0
        ));
        paragraph(skill.words());
        if let (Some(hits), Some(skill)) = (calibrated_hits, &calibrated_skill) {
            paragraph(format_args!(
                "With path costs fitted to the figures from before the change: {hits}. {}",
                skill.words()
            ));
        }
        paragraph(match violations {
            0 => "Every access was checked, and the contract held.".into(),
            count => format!("THE CONTRACT WAS BROKEN {count} times."),
        });
    }
    let failures: Vec<_> = rows().filter_map(|row| row.reason.clone()).collect();
    ended(&failures, violations)
}

impl HeldOutArgs {
    /// Returns the chosen tables, with the costs of the chosen kernel.
    fn tables(&self) -> Result<Vec<held_out::Table>> {
        let tables = held_out::named(&self.tables).map_err(usage)?;
        Ok(match self.kernel.resolve()? {
            Some(kernel) => {
                let with = |table: held_out::Table| table.with_kernel(&kernel);
                tables.into_iter().map(with).collect()
            }
            None => tables,
        })
    }
}

fn named<'a>(table: &'a held_out::Table, results: &Results) -> NamedTable<'a> {
    let [before, after] = &table.labels;
    let rows = table.rows(results);
    NamedTable {
        name: &table.name,
        title: &table.title,
        source: &table.source,
        seen: &table.seen,
        before,
        after,
        skill: held_out::skill(&rows),
        calibrated_skill: None,
        fitted: BTreeMap::new(),
        rows,
    }
}

/// Returns an error if a run failed, and exit code 1 if the contract was broken.
fn ended(failures: &[String], violations: u64) -> Result<ExitCode> {
    if !failures.is_empty() {
        bail!("{}", failures.join("; "));
    }
    Ok(match violations {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Formats a change in percent.
fn percent(change: f64) -> String {
    format!("{:+.1}", change * 100.0)
}

fn or_dash(value: Option<f64>, text: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".into(), text)
}

/// Counts the hits of the calibrated predictions. A row without one counts with its uncalibrated verdict.
fn calibrated_hits<'a>(rows: impl IntoIterator<Item = &'a Row>) -> usize {
    let verdict = |row: &Row| row.calibrated.as_ref().map_or(row.verdict, |one| one.verdict);
    rows.into_iter().filter(|row| verdict(row) == Verdict::Hit).count()
}

/// Returns a table of hits and skill, one row for each published table.
fn skill_table(tables: &[NamedTable<'_>], fitted: bool) -> Table {
    let mut head = vec![
        words("table"),
        number("rows"),
        number("hits"),
        number("rank correlation"),
        number("median log error"),
        number("if nothing changed"),
    ];
    if fitted {
        head.extend([
            number("calibrated hits"),
            number("rank correlation"),
            number("median log error"),
        ]);
    }
    let mut table = Table::new(head);
    let shown = |value: Option<f64>| or_dash(value, |value| format!("{value:.2}"));
    for one in tables {
        let hits = one.rows.iter().filter(|row| row.verdict == Verdict::Hit).count();
        let mut row = vec![
            one.name.to_owned(),
            one.rows.len().to_string(),
            hits.to_string(),
            shown(one.skill.rank_correlation),
            shown(one.skill.median_log_error),
            shown(one.skill.median_log_error_of_no_change),
        ];
        if let Some(skill) = &one.calibrated_skill {
            row.extend([
                calibrated_hits(&one.rows).to_string(),
                shown(skill.rank_correlation),
                shown(skill.median_log_error),
            ]);
        }
        table.row(row);
    }
    table
}

/// Returns a table with one row for each figure.
fn table<'a>(rows: impl Iterator<Item = &'a Row>, fitted: bool) -> Table {
    let mut head = vec![
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
    ];
    if fitted {
        head.extend([
            number("calibrated before").spare(),
            number("calibrated %"),
            number("off by, %"),
            words("calibrated verdict"),
        ]);
    }
    let mut table = Table::new(head);
    for row in rows {
        let unit = row.unit.as_deref();
        let published = |value: Option<f64>| match (value, unit) {
            (Some(value), Some(unit)) => format!("{} {unit}", digits(value)),
            _ => "-".into(),
        };
        let mut cells: Vec<Cell> = vec![
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
        ];
        if let Some(one) = &row.calibrated {
            cells.extend([
                or_dash(one.model_before, digits).into(),
                or_dash(one.change_predicted, percent).into(),
                or_dash(one.off, percent).into(),
                verdict(one.verdict == Verdict::Hit, one.verdict.name()),
            ]);
        }
        table.row(cells);
    }
    table
}

//! `quell held-out`: published tables that we never used to calibrate the model, beside its predictions.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::command::ended;
use crate::held_out::{self, Factor, Prediction, Row};
use crate::jobs::Results;
use crate::numbers::{Skill, Verdict, digits, percent};
use crate::options::{KernelArgs, SuggestedNames};
use crate::output::{self, note, paragraph, say};
use crate::progress;
use crate::table::{Table, number, or_dash, verdict, words};
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
    let named: Vec<NamedTable<'_>> = (tables.iter().enumerate())
        .map(|(index, table)| named(table, calibrated.get(index), &results))
        .collect();
    let rows = || named.iter().flat_map(|table| &table.rows);
    let hits = held_out::hits(rows(), Row::plain);
    let skill = held_out::skill(rows(), Row::plain);
    let fitted = args.calibrate.is_some();
    let calibrated_hits = fitted.then(|| held_out::hits(rows(), Row::best));
    let calibrated_skill = fitted.then(|| held_out::skill(rows(), Row::best));
    let violations = results.violations();
    let failures: Vec<_> = rows().filter_map(|row| row.reason.clone()).collect();
    if args.json {
        let json = Json {
            hits,
            skill,
            calibrated_hits,
            calibrated_skill,
            violations,
            cpu_seconds: results.outcomes().map(|outcome| outcome.run.host_seconds).sum(),
            tables: named,
        };
        output::document(&json)?;
        return ended(&failures, violations);
    }
    if args.markdown {
        say!("{}", table(&rows().collect::<Vec<_>>(), fitted).markdown(true));
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
        output::table(&table(&rows().collect::<Vec<_>>(), fitted));
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

fn named<'a>(
    table: &'a held_out::Table,
    calibrated: Option<&(held_out::Table, Vec<Factor>)>,
    results: &Results,
) -> NamedTable<'a> {
    let [before, after] = &table.labels;
    let (rows, factors) = match calibrated {
        None => (table.rows(results), &[][..]),
        Some((other, factors)) => (table.rows_with(other, results), &factors[..]),
    };
    NamedTable {
        name: &table.name,
        title: &table.title,
        source: &table.source,
        seen: &table.seen,
        before,
        after,
        skill: held_out::skill(&rows, Row::plain),
        calibrated_skill: calibrated.map(|_| held_out::skill(&rows, Row::best)),
        fitted: factors.iter().map(|(known, factor)| (known.name(), *factor)).collect(),
        rows,
    }
}

/// Returns a table of hits and skill, one row for each published table.
fn skill_table(tables: &[NamedTable<'_>], fitted: bool) -> Table {
    let shown = |value: Option<f64>| or_dash(value, |value| format!("{value:.2}"));
    let mut table = Table::of(tables)
        .column(words("table"), |one| one.name)
        .column(number("rows"), |one| one.rows.len().to_string())
        .column(number("hits"), |one| held_out::hits(&one.rows, Row::plain).to_string())
        .column(number("rank correlation"), |one| shown(one.skill.rank_correlation))
        .column(number("median log error"), |one| shown(one.skill.median_log_error))
        .column(number("if nothing changed"), |one| shown(one.skill.median_log_error_of_no_change));
    if fitted {
        let skill = |one: &NamedTable<'_>| held_out::skill(&one.rows, Row::best);
        table = table
            .column(number("calibrated hits"), |one| {
                held_out::hits(&one.rows, Row::best).to_string()
            })
            .column(number("rank correlation"), |one| shown(skill(one).rank_correlation))
            .column(number("median log error"), |one| shown(skill(one).median_log_error));
    }
    table.done()
}

/// Returns a table with one row for each figure.
fn table(rows: &[&Row], fitted: bool) -> Table {
    let published = |row: &Row, value: Option<f64>| match (value, &row.unit) {
        (Some(value), Some(unit)) => format!("{} {unit}", digits(value)),
        _ => "-".into(),
    };
    let change = |one: Prediction| or_dash(one.change_predicted, percent);
    let off = |one: Prediction| or_dash(one.off, percent);
    let judged = |one: Prediction| verdict(one.verdict == Verdict::Hit, one.verdict.name());
    let mut table = Table::of(rows)
        .column(words("table"), |row| row.table.as_str())
        .column(words("figure"), |row| row.case.as_str())
        .column(number("published before"), |row| published(row, row.published_before))
        .column(number("published after"), |row| published(row, row.published_after))
        .column(number("model before").spare(), |row| or_dash(row.plain().model_before, digits))
        .column(number("model after").spare(), |row| or_dash(row.plain().model_after, digits))
        .column(number("published %"), |row| percent(row.change_published))
        .column(number("predicted %"), |row| change(row.plain()))
        .column(number("ratio off by, %"), |row| off(row.plain()))
        .column(words("verdict"), |row| judged(row.plain()));
    if fitted {
        table = table
            .column(number("calibrated before").spare(), |row| {
                or_dash(row.best().model_before, digits)
            })
            .column(number("calibrated %"), |row| change(row.best()))
            .column(number("off by, %"), |row| off(row.best()))
            .column(words("calibrated verdict"), |row| judged(row.best()));
    }
    table.done()
}

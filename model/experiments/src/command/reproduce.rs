//! `quell reproduce`: prints every published headline beside the model's prediction.
//!
//! Without options, and as `quell` alone, it prints an introduction, one line for each mechanism, one about safety, and
//! the commands to try next. `--details` prints every figure, `--guards` the cost of safety.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use quell::Mechanism;
use quell_mutants::list;
use quell_workloads::Workload;
use quell_workloads::files::hint;
use serde::Serialize;

use crate::command::ended;
use crate::guards;
use crate::headlines::Source;
use crate::jobs::{Job, Results, accesses_per_second};
use crate::mutants;
use crate::numbers::{Skill, Verdict, digits, percent};
use crate::output::{self, Destination, paragraph, say};
use crate::report;
use crate::reproduce::{self, Experiment, Row, hits};
use crate::table::{Cell, Column, Table, number, or_dash, verdict, words};
use crate::usage::usage;

/// The arguments of `quell reproduce`.
#[derive(Debug, Args)]
pub struct ReproduceArgs {
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Show every experiment with its figures, and the reasons for misses
    #[arg(long, conflicts_with_all = ["guards", "json", "markdown"])]
    details: bool,
    /// Write the HTML report here [default: quell-report.html in target/ or the current directory]
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Run only the experiments of the table, without the report
    #[arg(long, conflicts_with = "report")]
    no_report: bool,
    /// Show only the cost of the guards: the checks that make each mechanism safe
    #[arg(long, conflicts_with = "report")]
    guards: bool,
    /// Print only the table of docs/headlines.md; with --guards, the table of model/experiments/results/guards.txt
    #[arg(long, conflicts_with_all = ["json", "report"])]
    markdown: bool,
    /// Run only this mechanism, S0 to S4, or this workload
    #[arg(long, value_name = "MECHANISM|WORKLOAD")]
    only: Option<String>,
}

/// The form in which results are printed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    Json,
    Markdown,
}

impl ReproduceArgs {
    fn form(&self) -> Form {
        match (self.json, self.markdown) {
            (true, _) => Form::Json,
            (false, true) => Form::Markdown,
            (false, false) => Form::Text,
        }
    }

    /// Returns the experiments to run; none with `--guards`.
    fn experiments(&self) -> Result<Vec<Experiment>> {
        let all = Experiment::all(self.only.as_deref());
        if all.is_empty() {
            let only = self.only.as_deref().unwrap_or_default();
            let names: Vec<_> = Workload::all().iter().map(Workload::name).collect();
            return Err(usage(format_args!(
                "--only {only}: no such experiment{}; use S0 to S4 or {}",
                hint(only, names.iter().copied()),
                names.join(", ")
            )));
        }
        Ok(if self.guards { Vec::new() } else { all })
    }

    /// Returns the report's destination, or `None` if no report is written.
    fn place(&self) -> Result<Option<Destination>> {
        if self.no_report || self.guards || self.markdown {
            return Ok(None);
        }
        let place = Destination::open("--report", self.report.as_deref(), "quell-report.html")?;
        Ok(Some(place))
    }
}

#[derive(Serialize)]
struct Json<'a> {
    rows: &'a [Row],
    skill: Skill,
    /// The change of a discard's time on many CPUs by S4.
    many_cpus: Option<ManyCpus>,
    guards: &'a [guards::Row],
    violations: u64,
    accesses_per_second: f64,
    seconds: f64,
    report: Option<String>,
}

#[derive(Serialize)]
struct ManyCpus {
    cpus: usize,
    change_predicted: f64,
}

/// An introduction for new users.
const INTRODUCTION: &str = "\
quell keeps translation caches (TLBs) coherent on many CPUs, and zeroes memory.
Below, its mechanisms on machines in software are compared with published figures:
";

/// Returns the command as the user types it, which differs in a checkout.
pub fn command() -> &'static str {
    match std::env::var_os("CARGO_PKG_NAME") {
        Some(_) => "cargo run --release --",
        None => "quell",
    }
}

/// Returns a short name that explains a mechanism.
pub fn short(mechanism: Mechanism) -> &'static str {
    match mechanism {
        Mechanism::Batch => "batching of shootdowns",
        Mechanism::Extents => "zeroing of extents",
        Mechanism::Tags => "tags (PCID, ASID)",
        Mechanism::LazyUnmap => "lazy unmap",
        Mechanism::RemoteFlush => "async remote flush",
    }
}

/// Returns a table with one row for each mechanism, and one for many CPUs if its change is known.
pub fn summary_table(rows: &[Row], many: Option<f64>) -> Table {
    let mut table = Table::new([
        words("mechanism"),
        words("change of"),
        number("published %"),
        number("predicted %"),
        words("verdict"),
    ]);
    for mechanism in Mechanism::ALL {
        let of_it = |row: &&Row| row.mechanism == mechanism.name();
        let of_it: Vec<&Row> = rows.iter().filter(of_it).collect();
        let chief = of_it.iter().find(|row| row.chief.is_some());
        let Some(row) = chief.or(of_it.first()) else {
            continue;
        };
        let hits = hits(&of_it);
        let experiment = format!("{}, {}", row.experiment, row.case);
        table.row([
            short(mechanism).into(),
            row.chief.map_or(experiment, str::to_owned).into(),
            percent(row.change_published).into(),
            or_dash(row.change_predicted, percent).into(),
            verdict(hits == of_it.len(), format!("{hits}/{} hit", of_it.len())),
        ] as [Cell; 5]);
    }
    if let Some(change) = many {
        table.row([
            "  on many CPUs".into(),
            format!("the same, {} CPUs", reproduce::MANY_CPUS).into(),
            "-".into(),
            percent(change).into(),
            "-".into(),
        ] as [Cell; 5]);
    }
    table
}

/// The title of the progress line while experiments run.
const RUNNING: &str = "running the experiments";

/// Runs the experiments of the first row, then all others, then `others`. Prints each row as soon as its results and
/// those of all rows above it are known.
fn print_summary(plans: &[Experiment], others: &[Job], results: &mut Results) {
    let of = |mechanism: Mechanism| {
        let of_it = move |plan: &&Experiment| plan.headline.mechanism == mechanism;
        plans.iter().filter(of_it).flat_map(Experiment::runs)
    };
    let shown: Vec<Mechanism> =
        Mechanism::ALL.into_iter().filter(|&mechanism| of(mechanism).next().is_some()).collect();
    let many = match shown.contains(&Mechanism::RemoteFlush) {
        true => reproduce::many_cpus().to_vec(),
        false => Vec::new(),
    };
    let mut printed = 0;
    let mut print = |results: &Results| {
        let rows: Vec<Row> = plans.iter().map(|plan| plan.row(results)).collect();
        let table = summary_table(&rows, reproduce::change_on_many_cpus(results));
        let pieces = table.pieces(output::width(), output::colour());
        let known = shown.iter().take_while(|&&m| of(m).all(|job| results.has(&job)));
        // The first piece contains the headings. The last one names the columns that were left out, after all rows.
        let known = match known.count() {
            all if all == shown.len() && many.iter().all(|job| results.has(job)) => pieces.len(),
            some => 1 + some,
        };
        if printed < known {
            output::above_progress(&pieces[printed..known].concat());
            printed = known;
        }
    };
    print(results);
    let first = shown.first().into_iter().copied().flat_map(of);
    let groups = [
        first.collect::<Vec<_>>(),
        (plans.iter().flat_map(Experiment::runs)).chain(many.clone()).collect(),
        others.to_vec(),
    ];
    results.run_groups(RUNNING, groups, print);
}

/// Returns a table of every experiment. A document has two more columns, which a narrow terminal leaves out.
pub fn detail_table(rows: &[Row], document: bool) -> Table {
    let wide = |column: Column| match document {
        true => column,
        false => column.spare(),
    };
    Table::of(rows)
        .column(words(""), |row| row.mechanism)
        .column(words("experiment: figure"), |row| {
            format!("{}, {}: {}", row.experiment, row.case, row.metric)
        })
        .column(number("paper before"), |row| digits(row.published_before))
        .column(number("paper after"), |row| digits(row.published_after))
        .column(number("model before"), |row| or_dash(row.model_before, digits))
        .column(number("model after"), |row| or_dash(row.model_after, digits))
        .column(wide(number("model before off, %")), |row| or_dash(row.before_off, percent))
        .column(number("published %"), |row| percent(row.change_published))
        .column(number("predicted %"), |row| or_dash(row.change_predicted, percent))
        .column(number("off by, points").spare(), |row| {
            or_dash(row.difference_points, |points| format!("{points:+.1}"))
        })
        .column(wide(words("tolerance")), |row| row.tolerance.as_str())
        .column(number("all on").spare(), |row| or_dash(row.all_on, digits))
        .column(number("broken").spare(), |row| row.violations.to_string())
        .column(words("verdict"), |row| verdict(row.verdict == Verdict::Hit, row.verdict.name()))
        .done()
}

/// Returns a table of the guards' costs.
pub fn guard_table(rows: &[guards::Row]) -> Table {
    Table::of(rows)
        .column(words(""), |row| row.mechanism)
        .column(words("guard"), |row| row.guard)
        .column(words("risk without it"), |row| format!("{}: {}", row.clause, row.hole))
        .column(words("mutant").spare(), |row| row.without.join(", "))
        .column(words("experiment"), |row| format!("{}, {}", row.experiment, row.case))
        .column(number("gain, %"), guards::Row::gain_text)
        .column(number("the guard costs, %"), guards::Row::cost_text)
        .column(words("explanation").spare(), |row| {
            row.failed.clone().unwrap_or_else(|| row.explained())
        })
        .column(words("breaches without it"), guards::Row::broken_text)
        .done()
}

/// Returns the publications of these rows, each once, with its mechanism.
fn sources(rows: &[Row]) -> Vec<(&'static str, Source)> {
    let mut sources: Vec<_> = rows.iter().map(|row| (row.mechanism, row.source)).collect();
    sources.sort_by_key(|(mechanism, source)| (*mechanism, source.url));
    sources.dedup();
    sources
}

/// Prints the table of `docs/headlines.md` and the text below it.
fn print_markdown(rows: &[Row]) {
    say!("{}", detail_table(rows, true).markdown(false));
    for (mechanism, Source { title, url }) in sources(rows) {
        say!("* {mechanism}: [{title}]({url})");
    }
    say!("\n{}", textwrap::fill(&reproduce::skill(rows).words(), 120));
}

fn print_details(rows: &[Row]) {
    output::table(&detail_table(rows, false));
    say!();
    for (mechanism, Source { title, url }) in sources(rows) {
        paragraph(format_args!("{mechanism}: {title}"));
        // We don't wrap links: nobody can click a link that is split.
        say!("    {url}");
    }
    say!();
    for row in rows {
        if let Some(reason) = &row.reason {
            paragraph(format_args!(
                "{} {} {}, {} ({}): {reason}",
                row.verdict.name(),
                row.mechanism,
                row.experiment,
                row.case,
                row.tolerance
            ));
        }
    }
}

fn print_guards(rows: &[guards::Row]) {
    paragraph("Cost of the guards, compared with each mechanism's gain\n");
    say!("{}\n", guard_table(rows));
    paragraph(
        "Gain: time saved by the mechanism with its guard. Cost: additional time with the guard, compared with the \
         same run without it: mean, minimum and maximum of several seeds. Differences below 0.1 % are noise. Breaches \
         0: this workload does not show the mistake; `quell explore --mutants NAME` does (docs/how-far.md).",
    );
}

/// Runs the experiments, prints the table and writes the report.
///
/// # Errors
/// If there is nothing to run, or something can't be written.
pub fn run(args: &ReproduceArgs) -> Result<ExitCode> {
    let began = Instant::now();
    let form = args.form();
    let plans = args.experiments()?;
    if args.guards
        && let Some(code) = mutants::in_copy("quell-model")?
    {
        return Ok(code);
    }
    let place = args.place()?;
    // We run everything together, so that the progress line shows the time left for the whole.
    let of_report = match &place {
        Some(_) => report::jobs(&plans),
        None => Vec::new(),
    };
    let mut results = Results::default();
    if form == Form::Text && !args.guards {
        say!("{INTRODUCTION}");
        if !args.details {
            print_summary(&plans, &of_report, &mut results);
        }
    }
    let runs = plans.iter().flat_map(Experiment::runs);
    let many = (form == Form::Json && args.only.is_none()).then(reproduce::many_cpus);
    results.run(RUNNING, runs.chain(of_report).chain(many.into_iter().flatten()));
    let rows = reproduce::rows(&plans, &results);
    match form {
        Form::Markdown if !args.guards => print_markdown(&rows),
        Form::Text if args.details => print_details(&rows),
        Form::Markdown | Form::Text | Form::Json => {}
    }
    // Only the copy with the mutants can leave a guard out.
    let guarded = match list::IN_COPY && (args.guards || form == Form::Json || place.is_some()) {
        true => guards::plans(args.only.as_deref()),
        false => Vec::new(),
    };
    let left_out = guards::run(&guarded, &mut results);
    let guards: Vec<_> = guarded.iter().map(|plan| plan.row(&results, &left_out)).collect();
    match form {
        Form::Markdown if args.guards => {
            say!("{}", guard_table(&guards).markdown(true).trim_end());
        }
        Form::Text if args.guards => print_guards(&guards),
        Form::Markdown | Form::Text | Form::Json => {}
    }
    if let Some(place) = &place {
        let page = report::build(&plans, &rows, &guards, &results);
        place.write(&page.0)?;
    }
    let end = Json {
        rows: &rows,
        skill: reproduce::skill(&rows),
        many_cpus: reproduce::change_on_many_cpus(&results)
            .map(|change_predicted| ManyCpus { cpus: reproduce::MANY_CPUS, change_predicted }),
        guards: &guards,
        // We don't count runs that leave a guard out: there the contract may break, and a run may never end.
        violations: results.violations(),
        accesses_per_second: accesses_per_second(results.outcomes().chain(left_out.outcomes())),
        seconds: began.elapsed().as_secs_f64(),
        report: place.as_ref().map(Destination::shown),
    };
    match form {
        Form::Json => output::document(&end)?,
        Form::Text => end.print(args, results.outcomes().count()),
        Form::Markdown => {}
    }
    let failures: Vec<&str> = results.failures().collect();
    ended(&failures, results.violations())
}

impl Json<'_> {
    /// Prints what follows the tables.
    fn print(&self, args: &ReproduceArgs, runs: usize) {
        say!();
        if args.details {
            paragraph(format_args!(
                "Each row compares a published measurement of a kernel change with the same engine code on a machine in \
                 software. The machine's costs come only from published figures before the change. {} of {} changes \
                 are predicted within their tolerance.",
                hits(&self.rows.iter().collect::<Vec<_>>()),
                self.rows.len()
            ));
            paragraph(self.skill.words());
        }
        paragraph(match self.violations {
            0 => format!(
                "Safe: in {runs} runs every access of every CPU was checked, and the contract held."
            ),
            count => format!(
                "THE CONTRACT WAS BROKEN {count} times: `quell run` with the same workload, machine and policy lists \
                 each breach."
            ),
        });
        if args.details {
            paragraph(format_args!(
                "{:.0} s, {:.1} million accesses/s per core.",
                self.seconds,
                self.accesses_per_second / 1e6
            ));
        }
        if let Some(report) = &self.report {
            say!("Report: {report}");
        }
        if !args.details && !args.guards {
            paragraph(format_args!("Next: {} --details | --guards | --help", command()));
        }
    }
}

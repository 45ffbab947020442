//! `quell measure engine`: measures the cost of the engine itself, on a machine of threads.
//!
//! [`quell_threads::cost`] contains the measurement; this module has its arguments, tables and JSON. Real invalidations
//! and interrupts aren't included: `quell measure host` measures those.

use anyhow::Result;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use quell_threads::cost::{Cost, Costs, Row, SHOOTDOWN_PAGES};
use serde_json::{Value, json};
use std::process::ExitCode;

use quell_model::mutants;
use quell_model::output::{self, paragraph, say};
use quell_model::table::{Cell, Table, number, verdict, words};

/// The arguments of `quell measure engine`.
#[derive(Args, Debug)]
pub struct EngineArgs {
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Time each operation this many times; prints the medians of samples on an unshared core
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(3..=100_000))]
    rounds: u32,
    /// Measure the cost of the guards instead: each operation with and without its guard, in a copy of the sources that
    /// can leave it out
    #[arg(long)]
    guards: bool,
}

/// Measures the costs and prints them. The exit code is 1 if a target is missed.
pub fn run(args: &EngineArgs) -> Result<ExitCode> {
    if args.guards {
        return run_guards(args);
    }
    let bar = ProgressBar::new(u64::from(args.rounds) * 2);
    bar.set_style(ProgressStyle::with_template("{bar:30} round {pos} of {len}")?);
    let costs = quell_threads::cost::measure(args.rounds as usize, &mut |round| {
        bar.set_position(round as u64)
    });
    bar.finish_and_clear();
    if args.json {
        output::document(&document(&costs))?;
    } else {
        print(&costs);
    }
    Ok(ExitCode::from(u8::from(!costs.is_kept())))
}

fn run_guards(args: &EngineArgs) -> Result<ExitCode> {
    if let Some(code) = mutants::in_copy("quell")? {
        return Ok(code);
    }
    let guards = quell_threads::cost::guards(args.rounds as usize);
    if args.json {
        output::object(json!({ "guards": values(&guards) }));
    } else {
        say!("Cost of the guards on this host (more: quell reproduce --guards)");
        say!("{}", guard_table(&guards));
    }
    Ok(ExitCode::SUCCESS)
}

fn print(costs: &Costs) {
    output::table(&cost_table(&costs.rows));
    match costs.shootdowns {
        Some(one) => {
            paragraph(format_args!(
                "\nOne shootdown of {SHOOTDOWN_PAGES} pages, one target, latency for the initiator:"
            ));
            let mut rows = Table::new([words("  flush"), number("ns"), number("cycles")]);
            for (name, cost) in [
                ("  serial (baseline)", one.serial),
                ("  concurrent", one.concurrent),
                ("  asynchronous", one.asynchronous),
            ] {
                rows.row([
                    name.to_owned(),
                    format!("{:.0}", cost.ns),
                    format!("{:.0}", cost.cycles),
                ]);
            }
            say!("{rows}");
            let verdict = if costs.is_in_order() { "kept" } else { "MISSED" };
            say!("  asynchronous < concurrent < serial: {verdict}");
        }
        None => say!("\nNo shootdowns: this process may use only one core."),
    }
    paragraph(format_args!(
        "\nThe machine's CPUs are threads: a root load, an invalidation and an interrupt cost only a few stores. Cycles are \
         ticks of the time-stamp counter. The core was shared in {:.0} % of the samples. Columns ns and cycles are medians of \
         the other samples; quartiles are of all.",
        costs.shared_core * 100.0
    ));
}

/// Returns a table of each operation beside the one that it replaces.
pub fn cost_table(rows: &[Row]) -> Table {
    let mut table = Table::new([
        words("operation"),
        number("ns"),
        number("cycles"),
        number("quartiles, ns").spare(),
        number("limit, ns"),
        words("verdict"),
        words("instead of"),
        number("ns"),
    ]);
    for row in rows {
        let limit = row.limit_ns.map_or(String::new(), |limit| format!("< {limit:.0}"));
        let kept = row.limit_ns.map(|limit| row.cost.ns < limit);
        table.row([
            row.name.into(),
            format!("{:.1}", row.cost.ns).into(),
            format!("{:.0}", row.cost.cycles).into(),
            format!("{:.1} to {:.1}", row.quartiles.0, row.quartiles.1).into(),
            limit.into(),
            kept.map_or("".into(), |kept| verdict(kept, if kept { "kept" } else { "MISSED" })),
            row.baseline_name.into(),
            format!("{:.1}", row.baseline.ns).into(),
        ] as [Cell; 8]);
    }
    table
}

/// Returns a table of each guard's cost: the operation with its guard and without it.
pub fn guard_table(rows: &[Row]) -> Table {
    let mut table = Table::new([
        words("operation: guard"),
        number("ns"),
        number("without guard, ns"),
        number("cost of guard, ns"),
        words("mutant"),
    ]);
    for row in rows {
        table.row([
            row.name.to_string(),
            format!("{:.1}", row.cost.ns),
            format!("{:.1}", row.baseline.ns),
            format!("{:+.1}", row.cost.ns - row.baseline.ns),
            row.baseline_name.to_string(),
        ]);
    }
    table
}

fn values(rows: &[Row]) -> Vec<Value> {
    let value = |row: &Row| {
        json!({
            "name": row.name,
            "ns": row.cost.ns,
            "cycles": row.cost.cycles,
            "quartiles_ns": [row.quartiles.0, row.quartiles.1],
            "limit_ns": row.limit_ns,
            "baseline": row.baseline_name,
            "baseline_ns": row.baseline.ns,
            "baseline_cycles": row.baseline.cycles,
        })
    };
    rows.iter().map(value).collect()
}

fn document(costs: &Costs) -> Value {
    let one = |cost: Cost| json!({"ns": cost.ns, "cycles": cost.cycles});
    let shootdowns = costs.shootdowns.map(|all| {
        json!({
            "pages": SHOOTDOWN_PAGES,
            "serial": one(all.serial),
            "concurrent": one(all.concurrent),
            "asynchronous": one(all.asynchronous),
        })
    });
    json!({
        "rows": values(&costs.rows),
        "shootdowns": shootdowns,
        "shared_core": costs.shared_core,
        "kept": costs.is_kept(),
    })
}

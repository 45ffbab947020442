//! `quell scale`: runs one workload on more and more CPUs, without and with mechanisms.

use std::convert::Infallible;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use quell::Policy;
use serde::Serialize;

use crate::charts::VerticalScale;
use crate::numbers::digits;
use crate::options::{CpuNumbers, MachineArgs, WorkloadArgs, cpus_up_to, policy_or_file};
use crate::output::{self, Destination, note, paragraph, say};
use crate::policies::PolicyChoice;
use crate::scale::{Point, ShownFigure, Sweep, plot, relative};
use crate::table::{Table, number};
use crate::usage::usage;

/// The arguments of `quell scale`.
#[derive(Debug, Args)]
pub struct ScaleArgs {
    #[command(flatten)]
    workload: WorkloadArgs,
    #[command(flatten)]
    machine: MachineArgs,
    /// Compare this policy; may be repeated [default: baseline, the workload's own mechanism, and all]
    #[arg(long = "policy", value_name = "POLICY", value_parser = policy_or_file(), hide_possible_values = true)]
    policies: Vec<PolicyChoice>,
    /// Run on these numbers of CPUs, separated by commas; a single number stands for all powers of two up to it
    #[arg(long, default_value = "1024", value_name = "LIST", value_parser = cpus_up_to)]
    cpus: CpuNumbers,
    /// Show another figure: `interrupts` for each operation, or the median time of a call, for example `unmap`
    #[arg(long, value_name = "FIGURE", default_value = "figure", value_parser = shown)]
    show: ShownFigure,
    /// Add a bound for calls that flush one page on all CPUs: one interrupt, and a transfer of a cache line for each
    /// doubling of the CPUs
    #[arg(long, conflicts_with = "show")]
    bound: bool,
    /// Show each figure as a ratio to that of the first policy
    #[arg(long)]
    relative: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Write the plot here, as SVG [default: quell-scale.svg in target/ or the current directory]
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

fn shown(text: &str) -> Result<ShownFigure, Infallible> {
    Ok(match text {
        "figure" => ShownFigure::Figure,
        "interrupts" => ShownFigure::Interrupts,
        call => ShownFigure::Call(call.to_owned()),
    })
}

#[derive(Serialize)]
struct Json<'a> {
    workload: &'a str,
    machine: &'a str,
    metric: &'a str,
    policies: Vec<&'a str>,
    points: Vec<Point>,
    violations: u64,
    plot: String,
}

/// Runs the workload and prints the figures.
///
/// # Errors
/// If something chosen doesn't exist, or the workload can run on none of these numbers of CPUs.
pub fn run(args: &ScaleArgs) -> Result<ExitCode> {
    let workload = args.workload.resolve()?;
    let machine = Arc::new(args.machine.resolve()?);
    let policies = match &args.policies[..] {
        [] => vec![
            Policy::BASELINE.into(),
            Policy::only(workload.mechanism()).into(),
            Policy::ALL.into(),
        ],
        asked => asked.to_vec(),
    };
    let texts: Vec<String> = policies.iter().map(ToString::to_string).collect();
    let mut texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    texts.extend(args.bound.then_some("bound"));
    let sweep = Sweep {
        machine: machine.clone(),
        workload,
        policies,
        cpus: args.cpus.0.clone(),
        show: args.show.clone(),
        bound: args.bound,
    };
    let place = Destination::open("--plot", args.plot.as_deref(), "quell-scale.svg")?;
    let scaled = sweep.run().map_err(usage)?;
    let named = args.show.name(&workload);
    let metric = named.as_deref().unwrap_or(scaled.metric);
    let results = &scaled.results;
    let title = format!("{} on {}", workload.name(), machine.title());
    let ratio = format!("{metric}, as a ratio to {}", texts[0]);
    let (points, figure, upward) = match args.relative {
        true => (relative(&scaled.points), ratio.as_str(), VerticalScale::Evenly),
        false => (scaled.points, metric, VerticalScale::Powers),
    };
    place.write(&plot(&title, &texts, &points, figure, upward))?;
    let violations = results.violations();
    if args.json {
        let json = Json {
            workload: workload.name(),
            machine: machine.name(),
            metric: figure,
            policies: texts,
            points,
            violations,
            plot: place.shown(),
        };
        output::document(&json)?;
    } else {
        paragraph(format_args!("{title}, {figure}\n"));
        say!("{}", scale_table(&texts, &points));
        say!("\nbreaches of the contract: {violations}");
        say!("plot: {}", place.shown());
    }
    for failure in results.failures() {
        note!("failed: {failure}");
    }
    let good = violations == 0 && results.failures().next().is_none();
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns a table of the figures, one row for each number of CPUs.
pub fn scale_table(policies: &[&str], points: &[Point]) -> Table {
    let columns = std::iter::once("CPUs").chain(policies.iter().copied());
    let mut rows = Table::new(columns.map(number));
    for point in points {
        let values = point.values.iter().map(|value| value.map_or_else(|| "-".into(), digits));
        rows.row(std::iter::once(point.cpus.to_string()).chain(values));
    }
    rows
}

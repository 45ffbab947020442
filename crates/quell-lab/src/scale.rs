//! `quell scale`: one workload from 1 to 1024 CPUs, without and with mechanisms.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use maud::{PreEscaped, html};
use serde::Serialize;

use crate::bench::{Job, Results};
use crate::machines;
use crate::options::WorkloadArgs;
use crate::policy::{NamedPolicy, seed};
use crate::report::charts::{COLORS, Line, log_log};
use crate::reproduce::digits;
use crate::table::{align_right, table};
use crate::usage::usage;

/// What `quell scale` takes.
#[derive(Debug, Args)]
pub struct ScaleArgs {
    #[command(flatten)]
    workload: WorkloadArgs,
    /// A built-in machine (`quell list machines`) or the path of a machine file
    #[arg(long, default_value = "haswell-server")]
    machine: String,
    /// A policy to compare, may be repeated; baseline, the workload's own mechanism and all unless given
    #[arg(long = "policy", value_name = "POLICY")]
    policies: Vec<String>,
    /// The largest number of CPUs; the powers of two up to it are run
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u16).range(1..=1024))]
    cpus: u16,
    /// Prints one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Where the plot goes, as SVG
    #[arg(long, value_name = "FILE", default_value = "target/quell-scale.svg")]
    plot: PathBuf,
}

#[derive(Serialize)]
struct Json<'a> {
    workload: &'a str,
    machine: &'a str,
    metric: &'a str,
    policies: Vec<&'a str>,
    points: Vec<Point>,
    violations: u64,
    plot: Option<String>,
}

#[derive(Serialize)]
struct Point {
    cpus: usize,
    values: Vec<Option<f64>>,
}

/// Runs and prints.
///
/// # Errors
/// If something asked for does not exist, or the workload runs on none of the numbers of CPUs.
pub fn run(args: &ScaleArgs) -> Result<ExitCode> {
    let workload = args.workload.resolve()?;
    let machine = Arc::new(machines::find(&args.machine)?);
    let own = seed(workload.mechanism());
    let texts: Vec<&str> = if args.policies.is_empty() {
        vec!["baseline", own, "all"]
    } else {
        args.policies.iter().map(String::as_str).collect()
    };
    let policies: Vec<NamedPolicy> = texts
        .iter()
        .map(|text| text.parse().map_err(usage))
        .collect::<Result<_>>()?;
    let mut refused = "";
    let counts: Vec<usize> = (0..=10)
        .map(|power| 1 << power)
        .filter(|&cpus| cpus <= usize::from(args.cpus))
        .filter(|&cpus| {
            workload
                .check(cpus)
                .map_err(|needs| refused = needs)
                .is_ok()
        })
        .collect();
    if counts.is_empty() {
        return Err(usage(format_args!(
            "{} needs {refused}: it cannot be scaled",
            workload.name()
        )));
    }
    let job =
        |policy: &NamedPolicy, cpus| Job::new(machine.clone(), workload, policy.clone(), cpus);
    let mut results = Results::default();
    let jobs = counts
        .iter()
        .flat_map(|&cpus| policies.iter().map(move |policy| (policy, cpus)));
    results.run("running", jobs.map(|(policy, cpus)| job(policy, cpus)));

    let points: Vec<Point> = counts
        .iter()
        .map(|&cpus| Point {
            cpus,
            values: policies
                .iter()
                .map(|policy| {
                    let outcome = results.get(&job(policy, cpus)).ok()?;
                    Some(outcome.measure.value).filter(|value| value.is_finite())
                })
                .collect(),
        })
        .collect();
    let metric = results
        .outcomes()
        .next()
        .map_or("", |outcome| outcome.measure.metric);
    let plot = write_plot(args, &texts, &points, metric);
    if let Err(error) = &plot {
        eprintln!("the plot could not be written: {error:#}; --plot FILE chooses another place");
    }
    let violations = results.violations();
    let plot = plot.ok().map(|()| args.plot.display().to_string());
    if args.json {
        let json = Json {
            workload: workload.name(),
            machine: machine.name(),
            metric,
            policies: texts,
            points,
            violations,
            plot,
        };
        println!("{}", serde_json::to_string_pretty(&json)?);
    } else {
        println!("{} on {}, {metric}\n", workload.name(), machine.title());
        let header: Vec<&str> = std::iter::once("CPUs").chain(texts).collect();
        let mut rows = table(&header);
        for point in &points {
            let values = point
                .values
                .iter()
                .map(|value| value.map_or_else(|| "-".into(), digits));
            rows.add_row(std::iter::once(point.cpus.to_string()).chain(values));
        }
        align_right(&mut rows, 0..header.len());
        println!("{rows}\n\nbreaches of the contract: {violations}");
        if let Some(path) = plot {
            println!("plot: {path}");
        }
    }
    for failure in results.failures() {
        eprintln!("failed: {failure}");
    }
    let good = violations == 0 && results.failures().next().is_none();
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn write_plot(args: &ScaleArgs, policies: &[&str], points: &[Point], metric: &str) -> Result<()> {
    let lines: Vec<Line> = policies
        .iter()
        .zip(COLORS.into_iter().cycle())
        .enumerate()
        .map(|(index, (policy, color))| Line {
            name: (*policy).to_owned(),
            color,
            points: points
                .iter()
                .filter_map(|point| {
                    let value = point.values[index].filter(|&value| value > 0.0)?;
                    Some((point.cpus as f64, value))
                })
                .collect(),
        })
        .filter(|line| !line.points.is_empty())
        .collect();
    let drawn = log_log(&lines, "CPUs", metric).0.replacen(
        "<svg ",
        "<svg xmlns=\"http://www.w3.org/2000/svg\" ",
        1,
    );
    // A file of its own has no page to take its colours from.
    let style = html! { style { (PreEscaped(include_str!("report/style.css"))) } }.0;
    let at = drawn.find('>').map_or(0, |end| end + 1);
    let (head, tail) = drawn.split_at(at);
    if let Some(folder) = args.plot.parent() {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    std::fs::write(&args.plot, format!("{head}{style}{tail}"))
        .with_context(|| args.plot.display().to_string())
}

//! `quell sweep`: a grid of runs.
//!
//! The file of results is the only state ([`results`](crate::results)).

pub mod summary;

use std::iter;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use quell::Policy;
use quell_workloads::{Unit, Workload};

use crate::options::{CpuNumbers, KernelArgs, MACHINES, WORKLOADS, listed_cpus, policy_or_file};
use crate::output::{Destination, note, say, several};
use crate::policies::PolicyChoice;
use crate::results::{ResultsFile, ResultsWriter};
use crate::sweep::{self, Grid, Head, MOST_CELLS, Record, Shard};
use crate::usage::usage;
use crate::{cpu_time, machines, workloads};

/// The arguments of `quell sweep`.
#[derive(Debug, Args)]
pub struct SweepArgs {
    /// A built-in workload or the path of a workload file
    #[arg(value_parser = WORKLOADS, hide_possible_values = true)]
    workload: String,
    /// Use these machines: built-in names or paths of machine files, separated by commas
    #[arg(
        long = "machine",
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "haswell-server",
        value_parser = MACHINES,
        hide_possible_values = true
    )]
    machines: Vec<String>,
    #[command(flatten)]
    kernel: KernelArgs,
    /// Use this policy (`quell list policies`); may be repeated [default: baseline and all]
    #[arg(long = "policy", value_name = "POLICY", value_parser = policy_or_file(), hide_possible_values = true)]
    policies: Vec<PolicyChoice>,
    /// Run on these numbers of CPUs, separated by commas [default: the workload's own number]
    #[arg(long, value_name = "LIST", value_parser = listed_cpus)]
    cpus: Option<CpuNumbers>,
    /// Vary a parameter of the workload: pages=1,8,64, or pages=1..64 for each doubling from 1 to 64; may be repeated
    #[arg(long = "param", value_name = "NAME=VALUES")]
    parameters: Vec<String>,
    /// Vary a parameter of the machines (`quell list parameters`): interrupt.send=500ns,900ns; may be repeated
    #[arg(long = "set", value_name = "SECTION.KEY=VALUES")]
    figures: Vec<String>,
    /// Run each cell with this many seeds
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Run only one part of the grid: 2/5 is the second of five
    #[arg(long, value_name = "PART/ALL")]
    shard: Option<Shard>,
    /// Keep results in this file, one JSON object a line; runs that it already has are skipped [default:
    /// quell-sweep.jsonl in target/ or the current directory]
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    #[command(flatten)]
    summary: summary::SummaryArgs,
}

/// Splits the values of a machine's parameter: `section.key=value,value`.
///
/// # Errors
/// A message with the expected form.
fn figures(text: &str) -> Result<(String, Vec<String>), String> {
    let expected = "expected section.key=value,value";
    let (name, values) = text.split_once('=').ok_or(expected)?;
    let values = values.split(',').map(|value| value.trim().to_owned());
    Ok((name.trim().to_owned(), values.collect()))
}

/// Splits the values of a workload's parameter: a list, or each doubling of a range such as `1..64`.
///
/// # Errors
/// A message with the expected form.
fn values(workload: &Workload, text: &str) -> Result<(String, Vec<String>), String> {
    let expected = "expected name=value,value or name=first..last";
    let (name, values) = text.split_once('=').ok_or(expected)?;
    let unit = workload
        .parameters()
        .iter()
        .find(|parameter| parameter.name == name)
        .map_or(Unit::Count, |parameter| parameter.unit);
    let mut listed = Vec::new();
    for value in values.split(',') {
        match value.split_once("..") {
            None => listed.push(value.trim().to_owned()),
            Some((first, last)) => {
                let read = |text: &str| {
                    let expected = || format!("{name}: expected {}", unit.spelling());
                    unit.parse(text.trim()).ok_or_else(expected)
                };
                let (first, last) = (read(first)?, read(last)?);
                if first > last {
                    return Err(format!("{name}: the first value of {value} is above the last"));
                }
                let next = |&now: &u64| if now == 0 { Some(1) } else { now.checked_mul(2) };
                let doubled = iter::successors(Some(first), next);
                listed.extend(doubled.take_while(|&now| now <= last).map(|now| unit.show(now)));
            }
        }
    }
    Ok((name.to_owned(), listed))
}

/// Reads the values of an option that may be repeated.
fn each<T>(
    option: &str,
    texts: &[String],
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>> {
    let wrong = |text, wrong| usage(format_args!("{option} {text}: {wrong}"));
    texts.iter().map(|text| read(text).map_err(|why| wrong(text, why))).collect()
}

impl SweepArgs {
    fn grid(&self) -> Result<Grid> {
        let workload = workloads::find(&self.workload).map_err(usage)?;
        let machines = self.machines.iter().map(|name| {
            let machine = machines::find(name).map_err(usage)?;
            Ok(Arc::new(self.kernel.on(machine)?))
        });
        let machines = machines.collect::<Result<_>>()?;
        let axes = each("--param", &self.parameters, |text| values(&workload, text))?;
        let figures = each("--set", &self.figures, figures)?;
        let policies = match &self.policies[..] {
            [] => vec![Policy::BASELINE.into(), Policy::ALL.into()],
            asked => asked.to_vec(),
        };
        let cpus = self.cpus.as_ref().map_or(Vec::new(), |cpus| cpus.0.clone());
        let grid = Grid { workload, machines, figures, policies, cpus, axes, seeds: self.seeds };
        if grid.size() > MOST_CELLS {
            return Err(usage(format_args!(
                "more than {MOST_CELLS} runs: use fewer values or seeds"
            )));
        }
        Ok(grid)
    }
}

/// Runs the cells that have no result yet, and prints all results.
///
/// # Errors
/// If something chosen doesn't exist, or the results can't be read or written.
pub fn run(args: &SweepArgs) -> Result<ExitCode> {
    let grid = args.grid()?;
    let cells = grid.cells().map_err(usage)?;
    let head = Head::of(&grid, &cells);
    let place = Destination::open("--results", args.results.as_deref(), "quell-sweep.jsonl")?;
    let places = args.summary.open()?;
    let mut file = ResultsFile::open(place.path(), head)?;
    let mine = |index: usize| args.shard.is_none_or(|shard| shard.has(index));
    let missing: Vec<_> = cells
        .into_iter()
        .filter(|cell| mine(cell.index) && !file.results.has(cell.index))
        .collect();
    let known = file.results.known();
    if known > 0 {
        note!("skipping {known} runs that are already in {}", place.shown());
    }
    let kept = ResultsWriter::new(&mut file);
    let (begun, spent) = (Instant::now(), cpu_time::of_process());
    sweep::run(&missing, &AtomicBool::new(false), |cell, outcome| {
        kept.keep(&Record::of(&grid, cell, outcome));
    });
    kept.finish()?;
    let spent = spent.zip(cpu_time::of_process());
    if !missing.is_empty()
        && let Some((before, after)) = spent
    {
        let (took, cores) = (begun.elapsed(), rayon::current_num_threads());
        note!(
            "{} in {:.1} s; {cores} cores were {:.0} % busy",
            several(missing.len(), "run"),
            took.as_secs_f64(),
            100.0 * (after - before).div_duration_f64(took) / cores as f64
        );
    }
    let good = summary::print(&file.results, &places)?;
    say!("results: {}", place.shown());
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_lists_and_doublings() {
        let workload = Workload::from_name("swap").unwrap();
        let of = |text: &str| values(&workload, text).map(|(_, values)| values.join(" "));
        assert_eq!(of("rounds=1,5").unwrap(), "1 5");
        assert_eq!(of("rounds=1..9").unwrap(), "1 2 4 8");
        assert_eq!(of("size=64K..1M").unwrap(), "64K 128K 256K 512K 1M");
        assert_eq!(of("rounds=0..2,7").unwrap(), "0 1 2 7");
        for wrong in ["rounds", "rounds=4..2", "size=1x..2x"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        let most = u64::MAX;
        assert!(of(&format!("rounds=1..{most}")).unwrap().split(' ').count() == 64);
    }
}

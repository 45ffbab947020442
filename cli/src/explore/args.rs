//! The arguments of `quell explore`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use quell::Policy;
use quell_adversary::cases::Effort;
use quell_adversary::{MachineKind, Mistake, Scenario};
use quell_model::sweep::Shard;
use quell_model::workloads;

use quell_model::options::{SuggestedNames, policy};

/// Search for interleavings that break the contract, and test that known mistakes are found
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  quell explore                            all scenarios, machines and policies, a small budget
  quell explore unmap-access --exhaustive  every schedule of one scenario
  quell explore --mutants                  every known mistake must be found
  quell explore --schedules 2000           more than ten million schedules, as CI runs
  quell explore --generate --minutes 10    random programs
  quell explore --generate --mutants       the mistakes, found without any scenario
  quell explore found.toml                 search a program from a file
  quell explore mine.toml --param rounds=2 search the runs of a workload file, with few rounds
  quell explore --replay CODE              repeat a run, step by step")]
pub struct ExploreArgs {
    /// Scenarios, workloads, or files with programs or workloads; with --mutants, the mutants [default: all scenarios
    /// or mutants]
    #[arg(value_name = "NAME", value_parser = SuggestedNames(programs), hide_possible_values = true)]
    pub names: Vec<String>,
    /// Set a parameter of the workloads, for example `--param iterations=2`; may be repeated. Runs must be short here
    #[arg(long = "param", value_name = "NAME=VALUE", conflicts_with_all = ["mutants", "generate", "replay"])]
    pub parameters: Vec<String>,
    /// Run workloads on this many CPUs, 1 to 4 [default: 2, or the workload's own number if that is less]
    #[arg(long, value_name = "N", conflicts_with_all = ["mutants", "generate", "replay"])]
    pub cpus: Option<usize>,
    /// Search only on these machines (see --list)
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = SuggestedNames(machines), hide_possible_values = true)]
    pub machine: Vec<String>,
    /// Search only under this policy (`quell list policies`); may be repeated [default: the baseline, each mechanism
    /// alone, and all]
    #[arg(long, value_name = "POLICY", value_parser = policy(), hide_possible_values = true)]
    pub policy: Vec<Policy>,
    /// Try this many random schedules for each case, or a fraction of them if its runs are long [default: 1000]. With
    /// --generate: for all programs together
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub schedules: Option<u64>,
    /// Search only one part of the cases: 2/5 is the second of five
    #[arg(long, value_name = "PART/ALL", conflicts_with_all = ["mutants", "generate", "replay", "list"])]
    pub shard: Option<Shard>,
    /// Keep results in this file, one JSON object a line; cases that it already has are skipped, and `quell merge`
    /// joins the files of parts
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["mutants", "generate", "replay", "list", "minutes", "trace", "coverage"]
    )]
    pub results: Option<PathBuf>,
    /// Try every schedule: one of each set of equivalent ones, and each state of the machine once
    #[arg(long, conflicts_with = "minutes")]
    pub exhaustive: bool,
    /// With --exhaustive: stop searching a case after this many runs, including those cut short
    #[arg(
        long,
        value_name = "N",
        default_value_t = Effort::MOST,
        value_parser = clap::value_parser!(u64).range(1..),
        requires = "exhaustive"
    )]
    pub most: u64,
    /// Spread this many minutes evenly over the cases, instead of counting schedules. With --generate: search this long
    /// [default: 1]
    #[arg(long, value_name = "M", conflicts_with = "schedules", value_parser = minutes)]
    pub minutes: Option<f64>,
    /// Set the seed of all random choices: the schedules, and with --generate the programs. The same seed gives the
    /// same search on every host
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Limit the depth of priority-based search, 1 to 9
    #[arg(long, value_name = "D", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=9))]
    pub depth: u32,
    /// Use this many threads [default: one for each CPU of the host]
    #[arg(long, value_name = "N")]
    pub jobs: Option<NonZeroUsize>,
    /// List scenarios, machines, policies and mutants
    #[arg(long)]
    pub list: bool,
    /// Make each known mistake in turn; every one must be found
    #[arg(long, conflicts_with_all = ["exhaustive", "replay", "list"])]
    pub mutants: bool,
    /// Search random programs instead of the scenarios
    #[arg(long, conflicts_with_all = ["exhaustive", "replay", "list", "machine", "policy"])]
    pub generate: bool,
    /// With --generate: start from the programs in this folder, and add programs that reach something new, break the
    /// contract or kill a mutant
    #[arg(long, value_name = "DIR", requires = "generate")]
    pub corpus: Option<PathBuf>,
    /// With --mutants: print the table of search/adversary/results/mutants.txt; with --generate as well, that of
    /// search/adversary/results/survival.txt
    #[arg(long, requires = "mutants")]
    pub markdown: bool,
    /// Repeat the run of a replay code or of a program file, and print the steps of each CPU
    #[arg(long, value_name = "CODE", conflicts_with_all = ["list", "names"])]
    pub replay: Option<String>,
    /// With --replay: print this many lines of the timeline
    #[arg(long, value_name = "N", default_value_t = 60, requires = "replay")]
    pub lines: usize,
    /// Write the failing or replayed run as a trace for Perfetto or Chrome
    #[arg(long, value_name = "FILE", conflicts_with_all = ["list", "mutants", "generate"])]
    pub trace: Option<PathBuf>,
    /// Print results as JSON
    #[arg(long)]
    pub json: bool,
    /// Print how often the search reached each transition of the protocol
    #[arg(long)]
    pub coverage: bool,
}

fn programs() -> Vec<&'static str> {
    let scenarios = Scenario::ALL.iter().map(|scenario| scenario.name);
    let all = scenarios.chain(workloads::names());
    all.chain(Mistake::all().map(Mistake::name)).collect()
}

fn machines() -> Vec<&'static str> {
    MachineKind::ALL.iter().map(|kind| kind.name).collect()
}

/// Parses a number of minutes, up to a year.
fn minutes(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(minutes) if (0.001..=525_600.0).contains(&minutes) => Ok(minutes),
        _ => Err("expected a number of minutes from 0.001 to 525600".into()),
    }
}

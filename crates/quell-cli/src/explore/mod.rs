//! `quell explore`: the search for interleavings that break the contract.
//!
//! Cases (a scenario on a machine under a policy) are spread over threads; each is searched on its
//! own and the same way on every host, so a failure that is found once is found again.

mod generate;
mod output;
mod work;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::usage::usage;
use anyhow::Context;
use clap::Args;
use quell::Policy;
use quell_adversary::Scenario;
use quell_adversary::explore::{POLICIES, parse_code, replay};
use quell_adversary::generate::Recorded;
use quell_adversary::{Budget, Case, MachineKind, Mistake};
use quell_contract::timeline;

/// Search for interleavings that break the contract, and test that known mistakes are found
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 nothing found, 1 a violation, a surviving mutant or a transition that never fired, \
2 wrong usage.

Examples:
  quell explore                            all scenarios, machines and policies, a small budget
  quell explore unmap-access --exhaustive  every schedule of one scenario
  quell explore --mutants                  every known mistake must be found
  quell explore --schedules 5000           what CI runs: more than ten million schedules
  quell explore --generate --minutes 10    programs that the adversary writes itself
  quell explore --generate --mutants       the mistakes, found without any scenario
  quell explore found.toml                 search a program that was written down
  quell explore --replay CODE              repeat a run, step by step")]
pub struct ExploreArgs {
    /// Scenarios to search, or files with programs; with --mutants the mutants to test; all if none is named
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Only on these machines (see --list)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    machine: Vec<String>,
    /// Only under this policy, may be repeated: baseline, all, S0+S4, all-S3 … (`quell list policies`);
    /// nothing, each mechanism alone and everything unless given
    #[arg(long, value_name = "POLICY")]
    policy: Vec<Policy>,
    /// Random schedules for each case, 1000 unless given; of scenarios whose runs are long, a fraction. With
    /// --generate: of all programs together
    #[arg(long, value_name = "N")]
    schedules: Option<u64>,
    /// Run every schedule, equivalent ones and what follows a state once
    #[arg(long, conflicts_with = "minutes")]
    exhaustive: bool,
    /// With --exhaustive: give a case up after so many runs, those cut short included
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5_000_000,
        requires = "exhaustive"
    )]
    most: u64,
    /// Spread so many minutes evenly over the cases, instead of counting schedules. With --generate: search so
    /// long, one minute unless given
    #[arg(long, value_name = "M", conflicts_with = "schedules")]
    minutes: Option<f64>,
    /// What chooses the random schedules: the same seed searches the same schedules on every host
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The greatest depth of priority-based search
    #[arg(long, value_name = "D", default_value_t = 4)]
    depth: u32,
    /// Threads; as many as the host has CPUs if not given
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// List scenarios, machines, policies and mutants
    #[arg(long)]
    list: bool,
    /// Make each known mistake in turn; every one must be found
    #[arg(long, conflicts_with_all = ["exhaustive", "replay", "list"])]
    mutants: bool,
    /// Search programs that are drawn at random instead of the scenarios
    #[arg(long, conflicts_with_all = ["exhaustive", "replay", "list", "machine", "policy", "markdown"])]
    generate: bool,
    /// With --generate: go on with the programs in this folder, and keep there what shows something new, what
    /// breaks the contract and what kills a mutant
    #[arg(long, value_name = "DIR", requires = "generate")]
    corpus: Option<PathBuf>,
    /// With --mutants: print the table of docs/mutants.md
    #[arg(long, requires = "mutants")]
    markdown: bool,
    /// Repeat the run of a replay code, or of a program that was written down, and print what each CPU does
    #[arg(long, value_name = "CODE", conflicts_with_all = ["list", "names"])]
    replay: Option<String>,
    /// With --replay: print so many lines of the timeline
    #[arg(long, value_name = "N", default_value_t = 60)]
    lines: usize,
    /// Write the failing or replayed run as a trace for Perfetto or Chrome
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print results as JSON
    #[arg(long)]
    json: bool,
    /// Print which transitions of the protocol fired how often
    #[arg(long)]
    coverage: bool,
}

impl ExploreArgs {
    /// How many schedules generated programs get, if that is said.
    fn generated_schedules(&self) -> Option<u64> {
        self.schedules
    }
}

/// Random schedules for each case, unless something else is said.
const SCHEDULES: u64 = 1000;

/// Runs the subcommand.
///
/// # Errors
/// If a file cannot be written.
pub fn run(args: ExploreArgs) -> anyhow::Result<ExitCode> {
    if args.list {
        output::list(args.json);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(code) = &args.replay {
        return run_replay(&args, code);
    }
    let jobs = args.jobs.unwrap_or_else(|| {
        std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
    });
    if args.generate {
        let hunted = match args.mutants {
            true => mutants(&args)?,
            false if args.names.is_empty() => Vec::new(),
            false => {
                return Err(usage(
                    "--generate writes its own programs: names are for --mutants alone".to_string(),
                ));
            }
        };
        return generate::run(&args, &hunted, jobs.max(1));
    }
    if args.mutants && args.minutes.is_some() {
        return Err(usage(
            "--mutants takes no --minutes: its budgets are schedules, except with --generate"
                .to_string(),
        ));
    }
    let began = Instant::now();
    if args.mutants {
        let tested = work::test_all(&args, &mutants(&args)?, jobs.max(1));
        return Ok(output::mutants(&args, &tested, began.elapsed()));
    }
    let cases = cases(&args)?;
    let share = args.minutes.map(|minutes| {
        let total = Duration::from_secs_f64(minutes.max(0.0) * 60.0);
        total.mul_f64(jobs.max(1) as f64 / cases.len() as f64)
    });
    let budget = |now: Instant| match share {
        Some(share) => Budget::Until(now + share),
        None if args.exhaustive => Budget::Exhaustive(args.most),
        None => Budget::Schedules(args.schedules.unwrap_or(SCHEDULES)),
    };
    let results = work::explore_all(&args, &cases, budget, jobs.max(1));
    let failed = output::results(&args, &results, began.elapsed());
    if let (Some(path), Some(first)) = (
        &args.trace,
        results
            .iter()
            .find(|result| result.report.failure.is_some()),
    ) && let Some(failure) = &first.report.failure
    {
        let (_, lines) = replay(first.case, failure.deviations.clone());
        write_trace(path, &lines, &failure.violation.to_string())?;
    }
    Ok(ExitCode::from(u8::from(failed)))
}

/// The mutants that the arguments name.
fn mutants(args: &ExploreArgs) -> anyhow::Result<Vec<Mistake>> {
    let known = |name: &String| {
        Mistake::named(name).ok_or_else(|| {
            usage(format!(
                "there is no mutant `{name}`; `quell explore --list` names them all"
            ))
        })
    };
    if args.names.is_empty() {
        return Ok(Mistake::all().collect());
    }
    args.names.iter().map(known).collect()
}

fn write_trace(
    path: &std::path::Path,
    lines: &[timeline::Line],
    title: &str,
) -> anyhow::Result<()> {
    let lines = lines.iter().cloned();
    std::fs::File::create(path)
        .and_then(|file| {
            let mut file = std::io::BufWriter::new(file);
            timeline::write_chrome(title, timeline::Unit::Steps, lines, &mut file)?;
            std::io::Write::flush(&mut file)
        })
        .with_context(|| format!("cannot write the trace to {}", path.display()))?;
    eprintln!("trace written to {}", path.display());
    Ok(())
}

/// Whether a name is that of a program's file.
fn is_file(name: &str) -> bool {
    Path::new(name)
        .extension()
        .is_some_and(|extension| extension == "toml")
}

fn run_replay(args: &ExploreArgs, code: &str) -> anyhow::Result<ExitCode> {
    if code.trim_start().starts_with('{') {
        let recorded = Recorded::parse(code).map_err(usage)?;
        return generate::replay(args, &recorded);
    }
    if is_file(code) {
        return generate::replay(args, &generate::read(Path::new(code))?);
    }
    let (case, deviations) = parse_code(code).map_err(usage)?;
    let (violation, lines) = replay(case, deviations);
    if args.json {
        output::replay_json(&case, violation.as_ref(), &lines);
    } else {
        print!(
            "{}",
            timeline::columns(&lines, case.scenario.cpus, args.lines)
        );
        match &violation {
            Some(violation) => println!("\n{violation}"),
            None => println!("\nthe contract holds in this run"),
        }
    }
    if let Some(path) = &args.trace {
        let title = violation.as_ref().map(ToString::to_string);
        write_trace(path, &lines, title.as_deref().unwrap_or(case.scenario.name))?;
    }
    Ok(ExitCode::from(u8::from(violation.is_some())))
}

/// A program that was written down, on the machine that it names.
fn written(name: &str) -> anyhow::Result<Case<'static>> {
    // As long as the command lives.
    let recorded: &'static Recorded = Box::leak(Box::new(generate::read(Path::new(name))?));
    let name: &'static str = Box::leak(name.into());
    Ok(Case {
        scenario: Box::leak(Box::new(Scenario::generated(name, &recorded.program))),
        kind: recorded.kind,
        policy: recorded.policy,
        mistake: recorded.mistake,
    })
}

/// The cases that the arguments name.
fn cases(args: &ExploreArgs) -> anyhow::Result<Vec<Case<'static>>> {
    let mut scenarios = Vec::new();
    let mut cases = Vec::new();
    for name in &args.names {
        if is_file(name) {
            cases.push(written(name)?);
            continue;
        }
        match Scenario::named(name) {
            Some(scenario) => scenarios.push(scenario),
            None => {
                return Err(usage(format!(
                    "there is no scenario `{name}`; quell explore --list names them all"
                )));
            }
        }
    }
    if args.names.is_empty() {
        scenarios.extend(Scenario::ALL);
    }
    let mut machines = Vec::new();
    for name in &args.machine {
        match MachineKind::named(name) {
            Some(kind) => machines.push(*kind),
            None => {
                return Err(usage(format!(
                    "there is no machine `{name}`; quell explore --list names them all"
                )));
            }
        }
    }
    if machines.is_empty() {
        machines.extend(MachineKind::ALL);
    }
    let policies = match &args.policy[..] {
        [] => POLICIES.to_vec(),
        named => named.to_vec(),
    };
    for scenario in &scenarios {
        for kind in machines.iter().filter(|kind| scenario.runs_on(kind)) {
            for policy in &policies {
                cases.push(Case {
                    scenario,
                    kind: *kind,
                    policy: *policy,
                    mistake: None,
                });
            }
        }
    }
    if cases.is_empty() {
        return Err(usage(
            "none of these scenarios runs on these machines".to_string(),
        ));
    }
    Ok(cases)
}

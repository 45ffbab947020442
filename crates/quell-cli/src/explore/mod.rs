//! `quell explore`: the search for interleavings that break the contract.
//!
//! Cases (a scenario on a machine under a policy) are spread over threads; each is searched on its
//! own and the same way on every host, so a failure that is found once is found again.

mod args;
mod cpu_time;
mod generate;
mod output;
mod survival;
pub mod tables;
pub mod work;
mod workload;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

pub use args::ExploreArgs;

use crate::output::{Destination, say};
use crate::usage::usage;
use quell_adversary::Scenario;
use quell_adversary::explore::POLICIES;
use quell_adversary::generate::Recorded;
use quell_adversary::replay::{parse_code, parse_code_of, replay};
use quell_adversary::{Budget, Case, MachineKind, Mistake};
use quell_contract::timeline;

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
    // Tried before the work, which may take long.
    let trace = args.trace.as_deref();
    let trace = trace
        .map(|path| Destination::open("--trace", Some(path), ""))
        .transpose()?;
    if let Some(code) = &args.replay {
        return run_replay(&args, code, trace.as_ref());
    }
    let jobs = args.jobs.unwrap_or_else(|| {
        std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
    });
    if args.generate {
        let sought = match args.mutants {
            true => mutants(&args)?,
            false if args.names.is_empty() => Vec::new(),
            false => {
                return Err(usage(
                    "--generate writes its own programs: names are for --mutants alone".to_string(),
                ));
            }
        };
        return generate::run(&args, &sought, jobs.max(1));
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
    if let (Some(place), Some(first)) = (
        &trace,
        results
            .iter()
            .find(|result| result.report.failure.is_some()),
    ) && let Some(failure) = &first.report.failure
    {
        let (_, lines) = replay(first.case, failure.deviations.clone());
        output::write_trace(place, &lines, &failure.violation.to_string())?;
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

fn run_replay(
    args: &ExploreArgs,
    code: &str,
    trace: Option<&Destination>,
) -> anyhow::Result<ExitCode> {
    if code.trim_start().starts_with('{') {
        let recorded = Recorded::parse(code).map_err(usage)?;
        return generate::replay(args, &recorded, trace);
    }
    if workload::is_file(code) {
        return generate::replay(args, &generate::read(Path::new(code))?, trace);
    }
    let (case, deviations) = match workload::of_code(code) {
        Some(name) => parse_code_of(code, |_| workload::named(name)),
        None => parse_code(code),
    }
    .map_err(usage)?;
    let (violation, lines) = replay(case, deviations);
    if args.json {
        output::replay_json(&case, violation.as_ref(), &lines);
    } else {
        let columns = timeline::columns(&lines, case.scenario.cpus, args.lines);
        crate::output::write(&columns);
        match &violation {
            Some(violation) => say!("\n{violation}"),
            None => say!("\nthe contract holds in this run"),
        }
    }
    if let Some(place) = trace {
        let title = violation.as_ref().map(ToString::to_string);
        output::write_trace(
            place,
            &lines,
            title.as_deref().unwrap_or(case.scenario.name),
        )?;
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
    let mut workloads = 0;
    for name in &args.names {
        match Scenario::named(name) {
            Some(scenario) => scenarios.push(scenario),
            None if workload::is_one(name)? => {
                let whole = workload::whole_name(name, &args.parameters, args.cpus);
                scenarios.push(workload::named(&whole).map_err(usage)?);
                workloads += 1;
            }
            None if workload::is_file(name) => cases.push(written(name)?),
            None => {
                return Err(usage(format!(
                    "there is no scenario or workload `{name}`; quell explore --list and quell list workloads name them all"
                )));
            }
        }
    }
    if workloads == 0 && (args.cpus.is_some() || !args.parameters.is_empty()) {
        return Err(usage(
            "--param and --cpus are for workloads, and none is named".to_string(),
        ));
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

//! `quell explore`: the search for interleavings that break the contract.
//!
//! A case is a scenario on a machine under a policy. We spread the cases over threads. Each case is searched alone and
//! in the same way on every host, so a failure that was found once is found again.

mod args;
mod generate;
pub mod kept;
pub mod output;
mod survival;
pub mod tables;
pub mod work;

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

pub use args::ExploreArgs;
use output::ReplayedRun;

use crate::destination;

use quell_adversary::cases::{Choice, Effort, is_file, recorded, workload, workload_of};
use quell_adversary::generate::{RecordedProgram, shrink};
use quell_adversary::replay::{parse_code, parse_code_of, replay};
use quell_adversary::{Case, Mistake};
use quell_model::machines;
use quell_model::mutants::in_copy;
use quell_model::output::{Destination, INTERRUPTED, note, say};
use quell_model::results::{ResultsFile, ResultsWriter};
use quell_model::usage::usage;

pub fn run(args: ExploreArgs) -> anyhow::Result<ExitCode> {
    if args.list {
        output::list(args.json);
        return Ok(ExitCode::SUCCESS);
    }
    // A search catches the panics of the code that it runs. Without this call, it would continue without memory.
    quell_model::output::end_without_memory();
    // Checked before the work, which may take long.
    let trace = destination("--trace", args.trace.as_deref())?;
    if let Some(code) = &args.replay {
        return run_replay(&args, code, trace.as_ref());
    }
    let jobs = args.jobs.or_else(|| std::thread::available_parallelism().ok());
    let jobs = jobs.map_or(1, NonZeroUsize::get);
    if args.mutants
        && let Some(code) = in_copy_for(mutants(&args)?.into_iter().map(Some))?
    {
        return Ok(code);
    }
    if args.generate {
        let sought = match args.mutants {
            true => mutants(&args)?,
            false if args.names.is_empty() => Vec::new(),
            false => {
                return Err(usage(
                    "--generate writes its own programs: leave the names out, or add --mutants",
                ));
            }
        };
        return generate::run(&args, &sought, jobs);
    }
    if args.mutants && args.minutes.is_some() {
        return Err(usage(
            "--minutes does not work with --mutants alone: use --schedules, or add --generate",
        ));
    }
    let began = Instant::now();
    if args.mutants {
        let tested = work::test_all(&args, &mutants(&args)?, jobs)?;
        return Ok(output::mutants(&args, &tested, began.elapsed()));
    }
    let choice = Choice {
        names: &args.names,
        parameters: &args.parameters,
        cpus: args.cpus,
        machines: &args.machine,
        policies: &args.policy,
    };
    let all = choice.cases(&machines::read).map_err(usage)?;
    if let Some(code) = in_copy_for(all.iter().map(|case| case.mistake))? {
        return Ok(code);
    }
    let effort = match (args.minutes, args.exhaustive) {
        (Some(minutes), _) => Effort::Minutes(minutes),
        (None, true) => Effort::Exhaustive(args.most),
        (None, false) => args.schedules.map_or(Effort::USUAL, Effort::Schedules),
    };
    let stop = Arc::new(AtomicBool::new(false));
    work::end_on_signals(&stop)?;
    let kept = match &args.results {
        Some(path) => {
            let head = kept::Head::of(&args, &choice, &all, effort)?;
            let place = Destination::open("--results", Some(path), "")?;
            Some((ResultsFile::open(place.path(), head)?, place))
        }
        None => None,
    };
    let mine: Vec<_> = all.iter().copied().enumerate().collect();
    let mine: Vec<_> = match args.shard {
        Some(shard) => shard.of(mine).collect(),
        None => mine,
    };
    if let (Some(shard), true) = (args.shard, mine.is_empty()) {
        return Err(usage(format_args!(
            "--shard {shard}: this part is empty, because there are only {} cases; use fewer parts",
            all.len()
        )));
    }
    if let Some((file, place)) = kept {
        return search_and_keep(&args, mine, effort, jobs, &stop, file, &place);
    }
    let cases: Vec<_> = mine.into_iter().map(|(_, case)| case).collect();
    let results = work::explore_all(&args, &cases, effort, jobs, &stop, |_, _| {})?;
    let outcome = output::results(&args, &results, began.elapsed());
    if let (Some(place), Some(first)) =
        (&trace, results.iter().find(|result| result.report.failure.is_some()))
        && let Some(failure) = &first.report.failure
    {
        let (_, lines) = replay(first.case, failure.deviations.clone());
        output::write_trace(place, &lines, &failure.violation.to_string())?;
    }
    let violated = results.iter().any(|of| of.report.failure.is_some());
    Ok(ended(&stop, outcome, violated))
}

/// Returns the exit code of a search. An interrupted search without a violation hasn't shown that there is none.
fn ended(stop: &AtomicBool, found: output::Outcome, violated: bool) -> ExitCode {
    if !stop.load(Relaxed) {
        return found.into();
    }
    note!("interrupted: the search of some cases is incomplete");
    match violated {
        true => found.into(),
        false => ExitCode::from(INTERRUPTED),
    }
}

/// Searches the cases that have no result in the file yet, and prints all results.
fn search_and_keep(
    args: &ExploreArgs,
    mut cases: Vec<(usize, Case<'static>)>,
    effort: Effort,
    jobs: usize,
    stop: &AtomicBool,
    mut file: ResultsFile<kept::Head>,
    place: &Destination,
) -> anyhow::Result<ExitCode> {
    let known = file.results.known();
    if known > 0 {
        note!("skipping {known} cases that are already in {}", place.shown());
    }
    cases.retain(|(index, _)| !file.results.has(*index));
    let (places, cases): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
    let keeper = ResultsWriter::new(&mut file);
    if !cases.is_empty() {
        work::explore_all(args, &cases, effort, jobs, stop, |index, searched| {
            keeper.keep(&kept::FoundRow::of(places[index], &searched.case, &searched.report));
        })?;
    }
    keeper.finish()?;
    let outcome = kept::print(&file.results, args.json);
    if !args.json {
        say!("results: {}", place.shown());
    }
    let violated = outcome == output::Outcome::Wrong;
    Ok(ended(stop, outcome, violated))
}

/// Returns the mutants that the arguments name, or all mutants if they name none.
fn mutants(args: &ExploreArgs) -> anyhow::Result<Vec<Mistake>> {
    let known = |name: &String| Mistake::find(name).map_err(usage);
    if args.names.is_empty() {
        return Ok(Mistake::all().collect());
    }
    args.names.iter().map(known).collect()
}

/// Runs this command in the copy with the mutants, if one of these mistakes is in the source. Returns its exit code.
fn in_copy_for(
    mistakes: impl IntoIterator<Item = Option<Mistake>>,
) -> anyhow::Result<Option<ExitCode>> {
    match mistakes.into_iter().flatten().any(Mistake::is_of_source) {
        true => in_copy("quell"),
        false => Ok(None),
    }
}

fn run_replay(
    args: &ExploreArgs,
    code: &str,
    trace: Option<&Destination>,
) -> anyhow::Result<ExitCode> {
    let generated = match code.trim_start().starts_with('{') {
        true => Some(RecordedProgram::parse(code).map_err(usage)?),
        false if is_file(code) => Some(recorded(code, &machines::read).map_err(usage)?),
        false => None,
    };
    if let Some(recorded) = generated {
        if let Some(code) = in_copy_for([recorded.mistake])? {
            return Ok(code);
        }
        let run = ReplayedRun {
            name: "generated",
            machine: recorded.kind.name,
            policy: recorded.policy,
            mistake: recorded.mistake,
            cpus: recorded.program.cpus(),
            outcome: shrink::replay_lines(&recorded),
        };
        return output::replay_run(args, &run, trace);
    }
    let (case, deviations) = match workload_of(code) {
        Some(name) => parse_code_of(code, |_| workload(name, &machines::read)),
        None => parse_code(code),
    }
    .map_err(usage)?;
    if let Some(code) = in_copy_for([case.mistake])? {
        return Ok(code);
    }
    let run = ReplayedRun {
        name: case.scenario.name,
        machine: case.kind.name,
        policy: case.policy,
        mistake: case.mistake,
        cpus: case.scenario.cpus,
        outcome: replay(case, deviations),
    };
    output::replay_run(args, &run, trace)
}

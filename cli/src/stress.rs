//! `quell stress`: runs one workload on threads of the host, each of which is a CPU.
//!
//! The processor's own memory ordering determines the values that a CPU loads. So we can't repeat a run, and report no
//! times.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use quell::{Counter, Policy};
use quell_conformance::PolicyText;
use quell_mutants::Mutant;
use quell_threads::vm::{ProgramRun, Report, RunError};
use serde::Serialize;

use quell_model::command::run::{engine_rows, guard, table_of};
use quell_model::mutants;
use quell_model::options::WorkloadArgs;
use quell_model::options::policy;
use quell_model::output::{self, paragraph, say, several};
use quell_model::table::Table;
use quell_model::usage::usage;

/// The arguments of `quell stress`.
#[derive(Debug, Args)]
pub struct StressArgs {
    #[command(flatten)]
    workload: WorkloadArgs,
    /// Switch on these mechanisms: baseline, all, S0+S4, all-S3, all,tags=64 … (`quell list policies`)
    #[arg(long, default_value = "all", value_parser = policy(), hide_possible_values = true)]
    policy: Policy,
    /// Use this many CPUs, each a thread, 1 to 256 [default: the workload's own number]. More threads than cores are
    /// preempted at any point
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    cpus: Option<u16>,
    /// Set the seed of the workload's random choices; the host decides the interleaving
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Leave a guard out, to show that the oracle notices: the name of a mutant from `quell explore --mutants`. The run
    /// ends at the first violation
    #[arg(long, value_name = "GUARD", value_parser = guard)]
    without: Option<&'static Mutant>,
}

#[derive(Serialize)]
struct Json<'a> {
    workload: &'a str,
    policy: String,
    cpus: usize,
    seed: u64,
    without: Option<&'a str>,
    parameters: BTreeMap<&'a str, u64>,
    operation: &'a str,
    operations: u64,
    accesses: u64,
    faults: u64,
    calls: u64,
    shootdowns: u64,
    interrupts: u64,
    /// The engine's counts while measured; `engine_in_all` has those of the whole run.
    engine: BTreeMap<&'a str, u64>,
    engine_in_all: BTreeMap<&'a str, u64>,
    violation: Option<String>,
}

pub fn run(args: &StressArgs) -> Result<ExitCode> {
    let workload = args.workload.resolve()?;
    if args.without.is_some()
        && let Some(code) = mutants::in_copy("quell")?
    {
        return Ok(code);
    }
    let performance = ProgramRun {
        workload,
        cpus: args.cpus.map_or(workload.cpus(), usize::from),
        policy: args.policy,
        seed: args.seed,
        without: args.without,
    };
    let report = performance.run().map_err(|error| match error {
        RunError::Unfit { .. } => usage(error),
        RunError::Failed { .. } | RunError::Stuck { .. } => error.into(),
    })?;
    if args.json {
        let json = json(&performance, &report);
        output::document(&json)?;
    } else {
        print(&performance, &report);
    }
    Ok(match report.violation {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    })
}

fn json<'a>(performance: &'a ProgramRun, report: &'a Report) -> Json<'a> {
    let workload = &performance.workload;
    let parameters = workload.parameters().iter();
    let counts = |engine| engine_rows(engine).map(|(name, _, count)| (name, count)).collect();
    Json {
        workload: workload.name(),
        policy: PolicyText(performance.policy).to_string(),
        cpus: performance.cpus,
        seed: performance.seed,
        without: performance.without.map(|guard| guard.name.as_str()),
        parameters: parameters
            .filter_map(|parameter| Some((parameter.name, workload.get(parameter.name)?)))
            .collect(),
        operation: workload.operation(),
        operations: report.operations,
        accesses: report.accesses,
        faults: report.faults,
        calls: report.calls,
        shootdowns: report.engine_window.get(Counter::Shootdowns),
        interrupts: report.engine_window.get(Counter::Sent),
        engine: counts(&report.engine_window),
        engine_in_all: counts(&report.engine),
        violation: report.violation.as_ref().map(ToString::to_string),
    }
}

fn print(performance: &ProgramRun, report: &Report) {
    let (workload, cpus) = (&performance.workload, performance.cpus);
    paragraph(format_args!(
        "{} on {} of this host, policy {}, seed {}",
        workload.name(),
        several(cpus, "thread"),
        PolicyText(performance.policy),
        performance.seed
    ));
    if let Some(guard) = performance.without {
        let mistake = guard.mistake.trim();
        paragraph(format_args!("  left out: {}: {mistake}", guard.name));
    }
    let per = workload.operation();
    say!("  operations while measured: {} (one is: {per})", report.operations);
    say!(
        "  in all: {} accesses, {} faults, {} calls",
        report.accesses,
        report.faults,
        report.calls
    );
    match &report.violation {
        None => say!("  contract: kept, every access checked"),
        Some(violation) => {
            say!("  contract: BROKEN; the run ended there");
            paragraph(format_args!("    {violation}"));
        }
    }
    say!("\n{}", count_table(report));
}

pub fn count_table(report: &Report) -> Table {
    table_of(engine_rows(&report.engine_window))
}

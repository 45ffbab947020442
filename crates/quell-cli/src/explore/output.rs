//! Results for people and for programs.

use super::ExploreArgs;
use super::work::Searched;
use crate::table::table;
use quell_adversary::Scenario;
use quell_adversary::explore::{POLICIES, replay, replay_code};
use quell_adversary::mutants::{Kill, Tested};
use quell_adversary::{Case, Coverage, Failure, MachineKind, Mistake};
use quell_contract::{Violation, timeline};
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;

/// How many lines of a failing run are printed.
const LINES: usize = 60;

/// The mutants that a scenario is there to find.
fn finds(scenario: &Scenario) -> Vec<&'static str> {
    scenario.finds.to_vec()
}

/// Scenarios, machines, policies, mutants.
pub fn list(as_json: bool) {
    let machines = |scenario: &Scenario| -> Vec<&str> {
        let all = MachineKind::ALL.iter();
        all.filter(|kind| scenario.runs_on(kind))
            .map(|kind| kind.name)
            .collect()
    };
    if as_json {
        let scenarios: Vec<_> = Scenario::ALL
            .iter()
            .map(|s| {
                json!({ "name": s.name, "about": s.about, "cpus": s.cpus, "bugs": s.bugs,
                        "finds": finds(s),
                        "machines": machines(s) })
            })
            .collect();
        let kinds: Vec<_> = MachineKind::ALL
            .iter()
            .map(|k| json!({ "name": k.name, "about": k.about }))
            .collect();
        let policies: Vec<_> = POLICIES.iter().map(ToString::to_string).collect();
        let mutants: Vec<_> = Mistake::all()
            .map(|m| json!({ "name": m.name(), "mistake": m.account(), "bug": m.bugs() }))
            .collect();
        let all = json!({ "scenarios": scenarios, "machines": kinds, "policies": policies,
                          "mutants": mutants });
        println!("{all:#}");
        return;
    }
    let mut scenarios = table(&["scenario", "CPUs", "what races with what", "bugs", "finds"]);
    for s in Scenario::ALL {
        scenarios.add_row([
            s.name.to_string(),
            s.cpus.to_string(),
            s.about.to_string(),
            s.bugs.join(", "),
            finds(s).join(", "),
        ]);
    }
    println!("{scenarios}\n");
    let mut kinds = table(&["machine", "what is particular about it"]);
    for k in MachineKind::ALL {
        kinds.add_row([k.name, k.about]);
    }
    println!("{kinds}\n");
    let policies: Vec<_> = POLICIES.iter().map(ToString::to_string).collect();
    println!("policies: {}\n", policies.join(", "));
    let mut mutants = table(&["mutant", "mistake"]);
    for m in Mistake::all() {
        mutants.add_row([m.name(), m.account()]);
    }
    println!("{mutants}");
}

/// Prints what a search found; whether anything is wrong.
pub fn results(args: &ExploreArgs, results: &[Searched], elapsed: Duration) -> bool {
    let schedules: u64 = results.iter().map(|r| r.report.schedules).sum();
    let rate = schedules as f64 / elapsed.as_secs_f64();
    let wrong = |r: &&Searched| r.report.failure.is_some() || !r.report.missed.is_empty();
    let failed = results.iter().any(|r| wrong(&r));
    if args.json {
        let scenarios: Vec<_> = results
            .iter()
            .map(|r| {
                let mut row = json!({
                    "name": r.case.scenario.name,
                    "machine": r.case.kind.name,
                    "policy": r.case.policy.to_string(),
                    "schedules": r.report.schedules,
                    "exhaustive": r.report.exhaustive,
                    "violations": u64::from(r.report.failure.is_some()),
                    "pruned": r.report.pruned,
                    "states": r.report.states,
                    "stands_for": r.report.stands_for,
                    "never_fired": r.report.missed.iter().map(|m| m.label()).collect::<Vec<_>>(),
                    "fired": fired(&r.report.coverage),
                });
                if let Some(failure) = &r.report.failure {
                    row["violation"] = violation(&failure.violation);
                    row["replay"] = replay_code(&r.case, &failure.deviations).into();
                }
                row
            })
            .collect();
        let all = json!({ "scenarios": scenarios, "schedules_per_second": rate.round() });
        println!("{all:#}");
        return failed;
    }
    let mut rows = table(&["scenario", "machine", "policies", "schedules", "result"]);
    for group in results.chunk_by(|a, b| {
        a.case.scenario.name == b.case.scenario.name && a.case.kind.name == b.case.kind.name
    }) {
        let sum: u64 = group.iter().map(|r| r.report.schedules).sum();
        let exhaustive = group.iter().all(|r| r.report.exhaustive);
        let missed: Vec<_> = group
            .iter()
            .flat_map(|r| r.report.missed.iter().map(|m| m.label()))
            .collect();
        let violated: Vec<_> = group
            .iter()
            .filter_map(|r| r.report.failure.as_ref())
            .map(|f| f.violation.clause.to_string())
            .collect();
        let result = match () {
            () if !violated.is_empty() => format!("VIOLATED {}", violated.join(", ")),
            () if !missed.is_empty() => format!("never fired: {}", missed.join(", ")),
            () if exhaustive => {
                let states: u64 = group.iter().map(|r| r.report.states).sum();
                let all: f64 = group.iter().map(|r| r.report.stands_for).sum();
                match states {
                    0 => "holds in every schedule".to_string(),
                    _ => format!(
                        "holds in every schedule: {states} states, {all:.1e} schedules or more"
                    ),
                }
            }
            () if args.exhaustive => "holds so far, given up before the end".to_string(),
            () => "holds".to_string(),
        };
        let policies = match group {
            [one] => one.case.policy.to_string(),
            more => more.len().to_string(),
        };
        rows.add_row([
            group[0].case.scenario.name.to_string(),
            group[0].case.kind.name.to_string(),
            policies,
            sum.to_string(),
            result,
        ]);
    }
    println!("{rows}");
    if args.coverage {
        let mut all = Coverage::default();
        for result in results {
            all.add(&result.report.coverage);
        }
        let mut fired = table(&["transition", "fired"]);
        for (reach, count) in all.iter() {
            fired.add_row([reach.label().to_string(), count.to_string()]);
        }
        println!("{fired}");
    }
    let violations = results
        .iter()
        .filter(|r| r.report.failure.is_some())
        .count();
    println!(
        "{schedules} schedules of {} cases in {:.1} s, {rate:.0} a second; {violations} violations",
        results.len(),
        elapsed.as_secs_f64(),
    );
    // One failure in full is enough to begin with; the others have their codes.
    let mut failures = results
        .iter()
        .filter_map(|r| r.report.failure.as_ref().map(|failure| (&r.case, failure)));
    if let Some((case, failure)) = failures.next() {
        let (_, lines) = replay(*case, failure.deviations.clone());
        println!(
            "\n{} on {} under {}, shrunk from {} to {} choices:\n",
            case.scenario.name,
            case.kind.name,
            case.policy,
            failure.found_with,
            failure.deviations.len()
        );
        print!("{}", timeline::columns(&lines, case.scenario.cpus, LINES));
        println!(
            "\n{}\nquell explore --replay '{}'",
            failure.violation,
            replay_code(case, &failure.deviations)
        );
    }
    for (case, failure) in failures {
        println!(
            "\n{}\nquell explore --replay '{}'",
            failure.violation,
            replay_code(case, &failure.deviations)
        );
    }
    failed
}

fn fired(coverage: &Coverage) -> serde_json::Value {
    let pairs = coverage.iter().filter(|(_, count)| *count > 0);
    pairs
        .map(|(reach, count)| (reach.label().to_string(), count.into()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn violation(violation: &Violation) -> serde_json::Value {
    json!({
        "clause": violation.clause.to_string(),
        "cpu": violation.cpu.map(|cpu| cpu.0),
        "other_cpu": violation.other.map(|cpu| cpu.0),
        "frame": violation.frame.map(|frame| frame.0),
        "address": violation.address,
        "account": violation.account,
    })
}

/// A replayed run for programs.
pub fn replay_json(case: &Case<'_>, found: Option<&Violation>, lines: &[timeline::Line]) {
    let mutant = case.mistake.map(|mistake| mistake.name());
    let policy = case.policy.to_string();
    let (name, machine) = (case.scenario.name, case.kind.name);
    steps_json(name, machine, &policy, mutant, found, lines);
}

/// The same of any program.
pub fn steps_json(
    name: &str,
    machine: &str,
    policy: &str,
    mutant: Option<&str>,
    found: Option<&Violation>,
    lines: &[timeline::Line],
) {
    let steps: Vec<_> = lines
        .iter()
        .map(|line| json!({ "step": line.at, "cpu": line.cpu.0, "text": line.text }))
        .collect();
    let all = json!({
        "name": name,
        "machine": machine,
        "policy": policy,
        "mutant": mutant,
        "violation": found.map(violation),
        "steps": steps,
    });
    println!("{all:#}");
}

/// Prints what became of the mutants.
pub fn mutants(args: &ExploreArgs, tested: &[Tested], elapsed: Duration) -> ExitCode {
    let survivors = tested.iter().filter(|h| h.killed.is_none()).count();
    if args.json {
        let rows: Vec<_> = tested
            .iter()
            .map(|h| {
                let killed = h.killed.as_ref();
                json!({
                    "name": h.mistake.name(),
                    "bug": h.mistake.bugs(),
                    "killed": killed.is_some(),
                    "scenario": killed.map(Kill::scenario),
                    "machine": killed.and_then(Kill::machine),
                    "policy": run(killed).map(|(case, _)| case.policy.to_string()),
                    "clause": killed.map(Kill::broke),
                    "schedules": h.schedules,
                    "replay": run(killed).map(|(case, failure)| replay_code(case, &failure.deviations)),
                })
            })
            .collect();
        println!("{:#}", json!({ "mutants": rows }));
    } else if args.markdown {
        markdown(tested);
    } else {
        let mut rows = table(&[
            "mutant",
            "bug",
            "killed by",
            "machine",
            "clause",
            "schedules",
        ]);
        for h in tested {
            let (scenario, machine, clause) = killer(h).unwrap_or(("SURVIVED", "", String::new()));
            rows.add_row([
                h.mistake.name().to_string(),
                h.mistake.bugs(),
                scenario.to_string(),
                machine.to_string(),
                clause,
                h.schedules.to_string(),
            ]);
        }
        println!("{rows}");
        println!(
            "{} of {} mutants killed in {:.1} s",
            tested.len() - survivors,
            tested.len(),
            elapsed.as_secs_f64()
        );
        for survivor in tested.iter().filter(|h| h.killed.is_none()) {
            println!(
                "{} survived {} schedules: {}",
                survivor.mistake.name(),
                survivor.schedules,
                survivor.mistake.account()
            );
        }
    }
    ExitCode::from(u8::from(survivors > 0))
}

/// The run that killed a mutant.
fn run(killed: Option<&Kill>) -> Option<(&Case<'static>, &Failure)> {
    match killed {
        Some(Kill::Run(case, failure)) => Some((case, failure)),
        _ => None,
    }
}

/// Scenario, machine and clause, for tables.
fn killer(tested: &Tested) -> Option<(&'static str, &'static str, String)> {
    let kill = tested.killed.as_ref()?;
    Some((
        kill.scenario(),
        kill.machine().unwrap_or_default(),
        kill.broke(),
    ))
}

fn markdown(tested: &[Tested]) {
    println!("{}", include_str!("mutants_head.md").trim_end());
    println!();
    println!("| mutant | mistake | bug | killed by | machine | clause | schedules |");
    println!("| --- | --- | --- | --- | --- | --- | ---: |");
    for h in tested {
        let (scenario, machine, clause) = killer(h).unwrap_or(("**survived**", "", String::new()));
        println!(
            "| `{}` | {} | {} | {scenario} | {machine} | {clause} | {} |",
            h.mistake.name(),
            h.mistake.account(),
            h.mistake.bugs(),
            h.schedules
        );
    }
}

//! Output of results for people and for programs.

use super::args::ExploreArgs;
use super::tables::{self, killer};
use super::work::CaseResult;
use quell::Policy;
use quell_adversary::Scenario;
use quell_adversary::cases::{self, Row};
use quell_adversary::explore::POLICIES;
use quell_adversary::mutants::{Kill, MutantResult};
use quell_adversary::replay::{replay, replay_code};
use quell_adversary::{Case, Coverage, Failure, MachineKind, Mistake};
use quell_conformance::PolicyText;
use quell_model::cpu_time;
use quell_model::output::{self, Destination, note, paragraph, say, several, write};
use quell_vm::contract::{Violation, timeline};
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;

/// The number of lines that we print of a failing run.
const LINES: usize = 60;

pub fn list(as_json: bool) {
    let machines = |scenario: &Scenario| -> Vec<&str> {
        let all = MachineKind::ALL.iter();
        all.filter(|kind| scenario.runs_on(kind)).map(|kind| kind.name).collect()
    };
    if as_json {
        let scenarios: Vec<_> = Scenario::ALL
            .iter()
            .map(|s| {
                json!({ "name": s.name, "about": s.about, "cpus": s.cpus, "bugs": s.bugs,
                        "finds": s.finds, "machines": machines(s) })
            })
            .collect();
        let kinds: Vec<_> =
            MachineKind::ALL.iter().map(|k| json!({ "name": k.name, "about": k.about })).collect();
        let policies = POLICIES.map(|policy| PolicyText(policy).to_string());
        let mutants: Vec<_> = Mistake::all()
            .map(|m| json!({ "name": m.name(), "mistake": m.account(), "bug": m.bugs() }))
            .collect();
        let all = json!({ "scenarios": scenarios, "machines": kinds, "policies": policies,
                          "mutants": mutants });
        output::object(all);
        return;
    }
    say!("{}\n", tables::scenarios());
    say!("{}\n", tables::machines());
    let policies = POLICIES.map(|policy| PolicyText(policy).to_string());
    paragraph(format_args!("policies that a search uses by default: {}\n", policies.join(", ")));
    say!("{}", tables::mistakes());
}

/// The outcome of a search: that of its worst case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Outcome {
    /// Nothing was found.
    Holds,
    /// Nothing was found, but a case needs more schedules: not all of them were run as requested, or the case never
    /// reached the events that it exists for.
    GivenUp,
    /// A case broke the contract, or no schedule of it reaches the events that it exists for.
    Wrong,
}

impl Outcome {
    /// Returns the worst outcome of these cases. If `exhaustive_asked`, every schedule of each was to run.
    pub fn of(rows: &[Row], exhaustive_asked: bool) -> Self {
        let of_one = |row: &Row| match () {
            () if row.violation.is_some() => Outcome::Wrong,
            () if row.exhaustive && !row.never_fired.is_empty() => Outcome::Wrong,
            // A missing event may occur in a schedule that wasn't run.
            () if !row.exhaustive && (exhaustive_asked || !row.never_fired.is_empty()) => {
                Outcome::GivenUp
            }
            () => Outcome::Holds,
        };
        rows.iter().map(of_one).max().unwrap_or(Outcome::Holds)
    }
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        ExitCode::from(match outcome {
            Outcome::Holds => 0,
            Outcome::Wrong => 1,
            Outcome::GivenUp => 3,
        })
    }
}

pub fn results(args: &ExploreArgs, results: &[CaseResult], elapsed: Duration) -> Outcome {
    let schedules: u64 = results.iter().map(|r| r.report.schedules).sum();
    let rate = schedules as f64 / elapsed.as_secs_f64();
    let found: Vec<_> = results.iter().map(|r| cases::row(&r.case, &r.report)).collect();
    let outcome = Outcome::of(&found, args.exhaustive);
    if args.json {
        let scenarios: Vec<_> = results
            .iter()
            .zip(&found)
            .map(|(r, found)| {
                let mut row = json!(found);
                row["schedules_per_cpu_second"] =
                    cpu_time::rate(r.report.schedules, r.spent).into();
                row
            })
            .collect();
        let spent = results.iter().map(|r| r.spent).sum();
        let kinds: Vec<_> = paces(results)
            .map(|pace| {
                json!({
                    "over_manager": pace.over_manager,
                    "schedules": pace.schedules,
                    "decisions_per_schedule": pace.decisions_each().round(),
                    "schedules_per_cpu_second": cpu_time::rate(pace.schedules, pace.spent),
                })
            })
            .collect();
        let all = json!({
            "scenarios": scenarios,
            "kinds": kinds,
            "schedules_per_second": rate.round(),
            "schedules_per_cpu_second": cpu_time::rate(schedules, spent),
        });
        output::object(all);
        return outcome;
    }
    output::table(&tables::found(&found, args.exhaustive));
    if args.coverage {
        let mut all = Coverage::default();
        for result in results {
            all.add(&result.report.coverage);
        }
        say!("{}", tables::fired(&all));
    }
    let violations = results.iter().filter(|r| r.report.failure.is_some()).count();
    say!(
        "{} of {} in {:.1} s, {rate:.0} per second; {}",
        several(schedules, "schedule"),
        several(results.len(), "case"),
        elapsed.as_secs_f64(),
        several(violations, "violation"),
    );
    if outcome == Outcome::GivenUp && !args.exhaustive {
        let missed = found.iter().filter(|row| !row.never_fired.is_empty());
        paragraph(format_args!(
            "{} never reached the events named in the table: run more --schedules",
            several(missed.count(), "case")
        ));
    }
    for pace in paces(results) {
        let Some(rate) = cpu_time::rate(pace.schedules, pace.spent) else {
            continue;
        };
        let whose = match pace.over_manager {
            true => "scenarios of the memory manager",
            false => "scenarios of the engine alone",
        };
        say!(
            "{whose}: {rate:.0} schedules per CPU second, with {:.0} decisions each",
            pace.decisions_each()
        );
    }
    // We print the first failure in full, which is enough to begin with. The others only have their replay codes.
    let failures = results.iter().filter_map(|r| Some((&r.case, r.report.failure.as_ref()?)));
    for (at, (case, failure)) in failures.enumerate() {
        if at == 0 {
            let (_, lines) = replay(*case, failure.deviations.clone());
            say!(
                "\n{} on {} under {}, shrunk from {} to {} choices:\n",
                case.scenario.name,
                case.kind.name,
                PolicyText(case.policy),
                failure.found_with,
                failure.deviations.len()
            );
            write(&timeline::columns(&lines, case.scenario.cpus, LINES));
        }
        say!(
            "\n{}\nquell explore --replay '{}'",
            failure.violation,
            replay_code(case, &failure.deviations)
        );
    }
    outcome
}

/// Prints the results of cases, which several hosts may have searched.
pub fn rows(rows: &[Row], exhaustive_asked: bool) {
    output::table(&tables::found(rows, exhaustive_asked));
    let schedules: u64 = rows.iter().map(|row| row.schedules).sum();
    let violations: u64 = rows.iter().map(|row| row.violations).sum();
    say!(
        "{} of {}; {}",
        several(schedules, "schedule"),
        several(rows.len(), "case"),
        several(violations, "violation"),
    );
    for row in rows {
        if let (Some(breach), Some(code)) = (&row.violation, &row.replay) {
            say!("\n{}: {}\nquell explore --replay '{code}'", breach.clause, breach.account);
        }
    }
}

/// The speed at which programs of one kind were searched. A decision costs about the same in both kinds, but programs
/// over the memory manager take more decisions.
struct Pace {
    over_manager: bool,
    schedules: u64,
    decisions: u64,
    spent: Option<Duration>,
}

impl Pace {
    fn decisions_each(&self) -> f64 {
        self.decisions as f64 / self.schedules as f64
    }
}

/// Returns the pace of each kind that was searched.
fn paces(results: &[CaseResult]) -> impl Iterator<Item = Pace> {
    let kinds = [false, true].into_iter();
    let paces = kinds.map(|over_manager| {
        let those = || {
            let all = results.iter();
            all.filter(move |result| result.case.scenario.uses_vm() == over_manager)
        };
        Pace {
            over_manager,
            schedules: those().map(|result| result.report.schedules).sum(),
            decisions: those().map(|result| result.report.decisions).sum(),
            spent: those().map(|result| result.spent).sum(),
        }
    });
    paces.filter(|pace| pace.schedules > 0)
}

pub struct ReplayedRun<'a> {
    pub name: &'a str,
    pub machine: &'a str,
    pub policy: Policy,
    pub mistake: Option<Mistake>,
    pub cpus: usize,
    /// The violation, if there was one, and the steps.
    pub outcome: (Option<Violation>, Vec<timeline::Line>),
}

/// Prints a repeated run, and writes its trace.
pub fn replay_run(
    args: &ExploreArgs,
    run: &ReplayedRun<'_>,
    trace: Option<&Destination>,
) -> anyhow::Result<ExitCode> {
    let (violation, lines) = &run.outcome;
    if args.json {
        let steps = lines.iter();
        let steps = steps
            .map(|line| json!({ "step": line.at, "cpu": line.cpu.0, "text": line.text }))
            .collect::<Vec<_>>();
        output::object(json!({
            "name": run.name,
            "machine": run.machine,
            "policy": PolicyText(run.policy).to_string(),
            "mutant": run.mistake.map(Mistake::name),
            "violation": violation.as_ref().map(cases::violation),
            "steps": steps,
        }));
    } else {
        write(&timeline::columns(lines, run.cpus, args.lines));
        match violation {
            Some(violation) => say!("\n{violation}"),
            None => say!("\nthe contract holds in this run"),
        }
    }
    if let Some(place) = trace {
        let title = violation.as_ref().map_or_else(|| run.name.to_owned(), ToString::to_string);
        write_trace(place, lines, &title)?;
    }
    Ok(ExitCode::from(u8::from(violation.is_some())))
}

pub fn mutants(args: &ExploreArgs, tested: &[MutantResult], elapsed: Duration) -> ExitCode {
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
                    "policy": run(killed).map(|(case, _)| PolicyText(case.policy).to_string()),
                    "clause": killed.map(Kill::broke),
                    "schedules": h.schedules,
                    "replay": run(killed).map(|(case, failure)| replay_code(case, &failure.deviations)),
                })
            })
            .collect();
        output::object(json!({ "mutants": rows }));
    } else if args.markdown {
        markdown(tested);
    } else {
        output::table(&tables::became(tested));
        say!(
            "{} of {} mutants killed in {:.1} s",
            tested.len() - survivors,
            tested.len(),
            elapsed.as_secs_f64()
        );
        for survivor in tested.iter().filter(|h| h.killed.is_none()) {
            say!(
                "{} survived {} schedules: {}",
                survivor.mistake.name(),
                survivor.schedules,
                survivor.mistake.account()
            );
        }
    }
    ExitCode::from(u8::from(survivors > 0))
}

pub fn write_trace(
    place: &Destination,
    lines: &[timeline::Line],
    title: &str,
) -> anyhow::Result<()> {
    let lines = lines.iter().cloned();
    place.write_with(|to| timeline::write_chrome(title, timeline::Unit::Steps, lines, to))?;
    note!("trace written to {}", place.shown());
    Ok(())
}

/// Returns the run that killed a mutant, or `None` if no run did.
fn run(killed: Option<&Kill>) -> Option<(&Case<'static>, &Failure)> {
    match killed {
        Some(Kill::Run(case, failure)) => Some((case, failure)),
        Some(Kill::Clearing(_)) | None => None,
    }
}

fn markdown(tested: &[MutantResult]) {
    say!("| mutant | mistake | bug | killed by | machine | clause | schedules |");
    say!("| --- | --- | --- | --- | --- | --- | ---: |");
    for h in tested {
        let (scenario, machine, clause) = killer(h).unwrap_or(("**survived**", "", String::new()));
        say!(
            "| `{}` | {} | {} | {scenario} | {machine} | {clause} | {} |",
            h.mistake.name(),
            h.mistake.account(),
            h.mistake.bugs(),
            h.schedules
        );
    }
}

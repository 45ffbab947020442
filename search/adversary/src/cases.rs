//! Lists the cases of a search, sets their budgets, and returns results as data.
//!
//! A case is a scenario, a workload or a program in a file, on one machine under one policy. The command `quell` and
//! other languages choose cases here and write the same rows. So one description of a result serves all. The caller
//! reads files, because they may be on this host or in a message from another one.
//!
//! A workload's name contains all inputs of its runs, for example `mine.toml,cpus=2,pages=4`. Replay codes contain this
//! name.

use crate::explore::{Budget, POLICIES, Report};
use crate::generate::RecordedProgram;
use crate::kind::MachineKind;
use crate::replay::replay_code;
use crate::scenario::Scenario;
use crate::session::Case;
use crate::workload::WorkloadRun;
use crate::workload::rehearse;
use quell::Policy;
use quell_conformance::PolicyText;
use quell_vm::contract::Violation;
use quell_workloads::Workload;
use quell_workloads::files::hint;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use toml::de::DeTable;

/// The default number of CPUs of a workload that supports that many.
const CPUS: usize = 2;

/// A function that returns the text of a file, or why it can't be read.
pub type FileReader<'r> = &'r dyn Fn(&Path) -> std::io::Result<String>;

/// A user's choice of cases. An empty list means all of its kind.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// The names of scenarios and workloads, and files with workloads or programs.
    pub names: &'a [String],
    /// The parameters of the workloads, for example `pages=4`.
    pub parameters: &'a [String],
    /// The number of CPUs on which the workloads run.
    pub cpus: Option<usize>,
    /// The names of machines.
    pub machines: &'a [String],
    /// The policies; by default [`POLICIES`].
    pub policies: &'a [Policy],
}

impl Choice<'_> {
    /// Returns every chosen case, in an order that depends only on the choice.
    ///
    /// Scenarios, and the machines in them, are kept until the process ends.
    ///
    /// # Errors
    /// Returns the unknown name, or the mistakes in a file.
    pub fn cases(&self, read: FileReader<'_>) -> Result<Vec<Case<'static>>, String> {
        let mut scenarios: Vec<&'static Scenario<'static>> = Vec::new();
        let mut cases = Vec::new();
        let mut workloads = 0;
        for name in self.names {
            match Scenario::named(name) {
                Some(scenario) => scenarios.push(scenario),
                None if is_workload(name, read)? => {
                    let whole = whole_name(name, self.parameters, self.cpus);
                    scenarios.push(workload(&whole, read)?);
                    workloads += 1;
                }
                None if is_file(name) => cases.push(written(name, read)?),
                None => {
                    return Err(format!(
                        "no scenario or workload `{name}`{}; `quell explore --list` and `quell list workloads` list them",
                        hint(
                            name,
                            Scenario::ALL
                                .iter()
                                .map(|of| of.name)
                                .chain(Workload::all().iter().map(Workload::name))
                        )
                    ));
                }
            }
        }
        if workloads == 0 && (self.cpus.is_some() || !self.parameters.is_empty()) {
            return Err("--param and --cpus need a workload: name one".into());
        }
        if self.names.is_empty() {
            scenarios.extend(Scenario::ALL);
        }
        let machines = match self.machines {
            [] => MachineKind::ALL.to_vec(),
            named => named
                .iter()
                .map(|name| MachineKind::find(name).copied())
                .collect::<Result<_, _>>()?,
        };
        let policies = match self.policies {
            [] => &POLICIES[..],
            named => named,
        };
        for scenario in scenarios {
            for kind in machines.iter().filter(|kind| scenario.runs_on(kind)) {
                cases.extend(policies.iter().map(|&policy| Case {
                    scenario,
                    kind: *kind,
                    policy,
                    mistake: None,
                }));
            }
        }
        match cases.is_empty() {
            true => Err("none of these scenarios runs on these machines; `quell explore --list --json` shows the machines of each".into()),
            false => Ok(cases),
        }
    }
}

/// The amount of searching.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    /// This many random schedules of each case.
    Schedules(u64),
    /// Random schedules for this many minutes, shared by all cases.
    Minutes(f64),
    /// Every schedule, up to this many per case.
    Exhaustive(u64),
}

impl Effort {
    /// The default number of random schedules of a case.
    pub const USUAL: Effort = Effort::Schedules(1000);
    /// The default limit of schedules of a case in an exhaustive search.
    pub const MOST: u64 = 5_000_000;

    /// Returns the budget of the next case.
    ///
    /// `cases` is the number of cases that share `jobs` threads.
    pub fn budget(self, cases: usize, jobs: usize) -> Budget {
        match self {
            Effort::Schedules(count) => Budget::Schedules(count),
            Effort::Exhaustive(most) => Budget::Exhaustive(most),
            Effort::Minutes(minutes) => {
                let total = Duration::from_secs_f64(minutes.max(0.0) * 60.0);
                Budget::Until(Instant::now() + total.mul_f64(jobs as f64 / cases.max(1) as f64))
            }
        }
    }
}

/// The result of a case, without values that depend on the host.
///
/// The names of the fields in JSON never change.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The scenario's name, or the whole name of a workload ([`workload`]).
    pub name: String,
    /// The machine's name.
    pub machine: String,
    /// The policy.
    pub policy: String,
    /// The number of schedules that were run.
    pub schedules: u64,
    /// Whether these were all schedules.
    pub exhaustive: bool,
    /// 1 if a run broke the contract, and 0 otherwise.
    pub violations: u64,
    /// The number of schedules that were cut short, because the search had already run their continuation.
    pub pruned: u64,
    /// The number of distinct states of the machine.
    pub states: u64,
    /// A lower bound of the number of schedules that the states represent.
    pub stands_for: f64,
    /// The transitions of the protocol that the scenario must reach and didn't.
    pub never_fired: Vec<String>,
    /// The count of each transition that fired.
    pub fired: BTreeMap<String, u64>,
    /// The violation, if a run broke the contract.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub violation: Option<Breach>,
    /// The code that replays the violating run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<String>,
}

/// A violation of the contract as data. The names of the fields in JSON never change.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Breach {
    /// The clause that was broken.
    pub clause: String,
    /// The CPU on which it was broken.
    pub cpu: Option<usize>,
    /// The other CPU that was involved.
    pub other_cpu: Option<usize>,
    /// The frame.
    pub frame: Option<u64>,
    /// The address.
    pub address: Option<u64>,
    /// A description of the failure.
    pub account: String,
}

/// Builds the row of a case.
pub fn row(case: &Case<'_>, report: &Report) -> Row {
    let fired = report.coverage.iter().filter(|(_, count)| *count > 0);
    let failure = report.failure.as_ref();
    Row {
        name: case.scenario.name.into(),
        machine: case.kind.name.into(),
        policy: PolicyText(case.policy).to_string(),
        schedules: report.schedules,
        exhaustive: report.exhaustive,
        violations: u64::from(failure.is_some()),
        pruned: report.pruned,
        states: report.states,
        stands_for: report.stands_for,
        never_fired: report.missed.iter().map(|reach| reach.label().into()).collect(),
        fired: fired.map(|(reach, count)| (reach.label().into(), count)).collect(),
        violation: failure.map(|failure| violation(&failure.violation)),
        replay: failure.map(|failure| replay_code(case, &failure.deviations)),
    }
}

/// Describes a violation of the contract as data.
pub fn violation(violation: &Violation) -> Breach {
    Breach {
        clause: violation.clause.to_string(),
        cpu: violation.cpu.map(|cpu| cpu.0.into()),
        other_cpu: violation.other.map(|cpu| cpu.0.into()),
        frame: violation.frame.map(|frame| frame.0),
        address: violation.address,
        account: violation.account.clone(),
    }
}

/// Returns whether a name is that of a file.
pub fn is_file(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "toml")
}

fn text(name: &str, read: FileReader<'_>) -> Result<String, String> {
    read(Path::new(name)).map_err(|error| format!("{name}: {error}"))
}

/// Reads a program from a file.
///
/// # Errors
/// If the file can't be read, or doesn't contain a program.
pub fn recorded(name: &str, read: FileReader<'_>) -> Result<RecordedProgram, String> {
    RecordedProgram::parse(&text(name, read)?).map_err(|error| format!("{name}: {error}"))
}

/// Reads a program from a file, as a case on the machine that it names.
fn written(name: &str, read: FileReader<'_>) -> Result<Case<'static>, String> {
    let recorded: &'static RecordedProgram = Box::leak(Box::new(recorded(name, read)?));
    let name: &'static str = Box::leak(name.into());
    Ok(Case {
        scenario: Box::leak(Box::new(Scenario::generated(name, &recorded.program))),
        kind: recorded.kind,
        policy: recorded.policy,
        mistake: recorded.mistake,
    })
}

/// Returns whether a name is that of a workload, built in or in a file. A file may also contain a program.
fn is_workload(name: &str, read: FileReader<'_>) -> Result<bool, String> {
    if !is_file(name) {
        return Ok(Workload::from_name(name).is_some());
    }
    let text = text(name, read)?;
    // The reader of programs reports text that isn't TOML.
    Ok(DeTable::parse(&text).is_ok_and(|table| !table.get_ref().contains_key("program")))
}

/// Returns the name of a workload with its parameters.
fn whole_name(name: &str, parameters: &[String], cpus: Option<usize>) -> String {
    let mut whole = name.to_owned();
    if let Some(cpus) = cpus {
        whole += &format!(",cpus={cpus}");
    }
    for pair in parameters {
        whole += &format!(",{pair}");
    }
    whole
}

/// Returns the name of the workload in a replay code, if it contains one.
pub fn workload_of(code: &str) -> Option<&str> {
    // The machine, the policy and the choices have no colons.
    let name = code.rsplitn(4, ':').nth(3)?;
    let plain = name.split(',').next()?;
    (is_file(plain) || Workload::from_name(plain).is_some()).then_some(name)
}

/// Creates the scenario of the workload with this whole name.
///
/// The whole name includes the parameters.
///
/// # Errors
/// If there is no such workload, if a parameter is wrong, or if the workload doesn't run under the adversary.
pub fn workload(whole: &str, read: FileReader<'_>) -> Result<&'static Scenario<'static>, String> {
    let mut parts = whole.split(',');
    let name = parts.next().unwrap_or_default();
    let mut workload = match Workload::from_name(name) {
        Some(workload) => workload,
        None => Workload::parse(name, &text(name, read)?).map_err(|wrong| wrong.to_string())?,
    };
    let mut cpus = workload.cpus().min(CPUS);
    for pair in parts {
        match pair.split_once('=') {
            Some(("cpus", number)) if workload.get("cpus").is_none() => {
                let wrong = || format!("{whole}: expected a number of CPUs, not {number}");
                cpus = number.parse().map_err(|_| wrong())?;
            }
            _ => workload.set(pair).map_err(|wrong| format!("--param {pair}: {wrong}"))?,
        }
    }
    let refused = |why: String| format!("{whole}: {why}");
    let performance: &'static WorkloadRun =
        Box::leak(Box::new(WorkloadRun::new(workload, cpus).map_err(refused)?));
    let name: &'static str = Box::leak(whole.into());
    let scenario = rehearse(performance, name).map_err(refused)?;
    Ok(Box::leak(Box::new(scenario)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &Path) -> std::io::Result<String> {
        Err(std::io::ErrorKind::NotFound.into())
    }

    #[test]
    fn a_workload_is_found_again_by_its_whole_name() {
        let whole = whole_name("dontneed", &["iterations=2".into()], Some(3));
        assert_eq!(whole, "dontneed,cpus=3,iterations=2");
        let scenario = workload(&whole, &nothing).expect("it runs");
        assert_eq!((scenario.name, scenario.cpus), (&whole[..], 3));
        let code = format!("{whole}:x86:S0+S4:12.3-4.5");
        assert_eq!(workload_of(&code), Some(&whole[..]));
        assert_eq!(workload_of("c:/mine.toml,a=1:x86:all:"), Some("c:/mine.toml,a=1"));
        assert_eq!(workload_of("unmap-access:x86:all:1.2"), None);
        for wrong in ["dontneed,pages", "dontneed,page=1", "dontneed,cpus=9"] {
            assert!(workload(wrong, &nothing).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_left_empty_is_everything() {
        let all = Choice { names: &[], parameters: &[], cpus: None, machines: &[], policies: &[] };
        let cases = all.cases(&nothing).expect("all of them");
        for scenario in Scenario::ALL {
            let of = |case: &&Case<'_>| case.scenario.name == scenario.name;
            let machines = MachineKind::ALL.iter();
            let machines = machines.filter(|kind| scenario.runs_on(kind)).count();
            assert_eq!(cases.iter().filter(of).count(), machines * POLICIES.len());
        }
        let one = Choice {
            names: &["unmap-access".into()],
            machines: &["x86".into()],
            policies: &[Policy::ALL],
            ..all
        };
        assert_eq!(one.cases(&nothing).expect("it runs there").len(), 1);
    }

    #[test]
    fn minutes_are_shared_by_the_cases_that_run_at_once() {
        let share = |cases, jobs| match Effort::Minutes(2.0).budget(cases, jobs) {
            Budget::Until(end) => end.duration_since(Instant::now()).as_secs_f64(),
            other => panic!("{other:?}"),
        };
        assert!((14.0..=15.0).contains(&share(16, 2)) && share(1, 1) > 119.0);
    }
}

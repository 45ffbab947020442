//! The tables of `quell explore`.

use quell_adversary::cases::Row;
use quell_adversary::mutants::MutantResult;
use quell_adversary::{Coverage, MachineKind, Mistake, Scenario};

use quell_model::table::{Cell, Table, number, verdict, words};

pub fn scenarios() -> Table {
    let mut rows = Table::new([
        words("scenario"),
        number("CPUs"),
        words("race"),
        words("bugs").spare(),
        words("finds").spare(),
    ]);
    for s in Scenario::ALL {
        rows.row([
            s.name.to_string(),
            s.cpus.to_string(),
            s.about.to_string(),
            s.bugs.join(", "),
            s.finds.join(", "),
        ]);
    }
    rows
}

pub fn machines() -> Table {
    let mut rows = Table::new([words("machine"), words("properties")]);
    for kind in MachineKind::ALL {
        rows.row([kind.name, kind.about]);
    }
    rows
}

pub fn mistakes() -> Table {
    let mut rows = Table::new([words("mutant"), words("mistake")]);
    for mistake in Mistake::all() {
        rows.row([mistake.name(), mistake.account()]);
    }
    rows
}

/// Returns a table of a search's results, one row for each scenario on each machine.
pub fn found(results: &[Row], exhaustive_asked: bool) -> Table {
    let mut rows = Table::new([
        words("scenario"),
        words("machine"),
        words("policies"),
        number("schedules"),
        words("result"),
    ]);
    for group in results.chunk_by(|a, b| a.name == b.name && a.machine == b.machine) {
        let sum: u64 = group.iter().map(|r| r.schedules).sum();
        let exhaustive = group.iter().all(|r| r.exhaustive);
        let missed: Vec<_> =
            group.iter().flat_map(|r| r.never_fired.iter().map(String::as_str)).collect();
        let violated: Vec<_> = group
            .iter()
            .filter_map(|r| r.violation.as_ref())
            .map(|violation| violation.clause.as_str())
            .collect();
        let result = match () {
            () if !violated.is_empty() => format!("VIOLATED {}", violated.join(", ")),
            () if exhaustive_asked && !exhaustive => {
                "holds so far, but not every schedule was run".to_string()
            }
            () if !missed.is_empty() => format!("never reached: {}", missed.join(", ")),
            () if exhaustive => {
                let states: u64 = group.iter().map(|r| r.states).sum();
                let all: f64 = group.iter().map(|r| r.stands_for).sum();
                match states {
                    0 => "holds in every schedule".to_string(),
                    _ => format!(
                        "holds in every schedule: {states} states, {all:.1e} schedules or more"
                    ),
                }
            }
            () => "holds".to_string(),
        };
        let policies = match group {
            [one] => one.policy.clone(),
            more => more.len().to_string(),
        };
        rows.row([
            group[0].name.clone().into(),
            group[0].machine.clone().into(),
            policies.into(),
            sum.to_string().into(),
            verdict(violated.is_empty() && missed.is_empty(), result),
        ] as [Cell; 5]);
    }
    rows
}

/// Returns a table of how often each transition of the protocol fired.
pub fn fired(coverage: &Coverage) -> Table {
    let mut rows = Table::new([words("transition"), number("count")]);
    for (reach, count) in coverage.iter() {
        rows.row([reach.label().to_string(), count.to_string()]);
    }
    rows
}

/// Returns the scenario, machine and clause that killed a mutant, or `None` if it survived.
pub fn killer(tested: &MutantResult) -> Option<(&'static str, &'static str, String)> {
    let kill = tested.killed.as_ref()?;
    Some((kill.scenario(), kill.machine().unwrap_or_default(), kill.broke()))
}

pub fn became(tested: &[MutantResult]) -> Table {
    let mut rows = Table::new([
        words("mutant"),
        words("bug").spare(),
        words("killed by"),
        words("machine"),
        words("clause"),
        number("schedules"),
    ]);
    for h in tested {
        let (scenario, machine, clause) = killer(h).unwrap_or(("SURVIVED", "", String::new()));
        rows.row([
            h.mistake.name().into(),
            h.mistake.bugs().into(),
            verdict(h.killed.is_some(), scenario),
            machine.into(),
            clause.into(),
            h.schedules.to_string().into(),
        ] as [Cell; 6]);
    }
    rows
}

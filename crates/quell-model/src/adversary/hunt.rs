//! Hunting mutants: for each known mistake, a scenario and a machine in which it breaks the
//! contract.
//!
//! A mutant says nothing about where it shows, so every scenario is tried on every machine: a few
//! schedules each first, then more, until one fails. Mistakes of the manager are looked for over
//! the manager first, the others in the engine's own scenarios. What is found is the same on every
//! host.

use super::explore::{Budget, Failure, Plan, explore};
use super::kind::MachineKind;
use super::session::{Case, Session};
use crate::scenarios::Scenario;
use quell::mutant::Mutant;
use quell::{Mechanism, Policy};

/// Schedules per case, round by round.
const ROUNDS: [u64; 3] = [30, 200, 1_500];

/// The policies under which mutants are hunted.
///
/// Everything on, as most mistakes are about a mechanism; and everything but the asynchronous,
/// inlined flush, whose handler is more careful than the simple one.
const POLICIES: [Policy; 2] = [Policy::ALL, Policy::only(Mechanism::Batch)];

/// What became of a mutant.
#[derive(Clone, Debug)]
pub struct Hunted {
    /// The mutant.
    pub mutant: Mutant,
    /// Where it was killed and by what; `None` if it survived.
    pub killed: Option<(Case, Failure)>,
    /// Schedules of the killing case until it failed; of all cases, if none did.
    pub schedules: u64,
}

/// The scenarios in the order in which a mutant is looked for there.
fn scenarios(mutant: Mutant) -> impl Iterator<Item = &'static Scenario> {
    let managed = mutant.name().starts_with("Vm");
    let wanted = move |scenario: &&Scenario| scenario.is_managed() == managed;
    let first = Scenario::ALL.iter().filter(wanted);
    first.chain(
        Scenario::ALL
            .iter()
            .filter(move |scenario| !wanted(scenario)),
    )
}

/// The numbers of the known bugs that a mutant stands for, as its account names them.
pub fn bugs(mutant: Mutant) -> String {
    let mistake = mutant.mistake();
    let Some((_, tail)) = mistake.rsplit_once('(') else {
        return String::new();
    };
    let inside = tail.split(')').next().unwrap_or_default();
    let inside = inside
        .trim_start_matches("bugs ")
        .trim_start_matches("bug ");
    let known = |word: &str| {
        let digits = word.trim_start_matches('L');
        !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit())
    };
    let list: Vec<&str> = inside.split(", ").filter(|word| known(word)).collect();
    list.join(", ")
}

/// Whether the same search without the mistake finds nothing: if it does find something, the
/// mistake is not what was found.
fn holds_unmutated(plan: &Plan, schedules: u64) -> bool {
    let case = Case {
        mutant: None,
        ..plan.case
    };
    let plan = Plan {
        case,
        budget: Budget::Schedules(schedules),
        ..*plan
    };
    let report = explore(&mut Session::new(case), &plan, |_, _| true);
    report.failure.is_none()
}

/// Hunts one mutant. `keep_on` is asked before each case.
pub fn hunt(mutant: Mutant, seed: u64, mut keep_on: impl FnMut() -> bool) -> Hunted {
    let mut tried = 0;
    for schedules in ROUNDS {
        for policy in POLICIES {
            for scenario in scenarios(mutant) {
                for kind in MachineKind::ALL {
                    if !scenario.runs_on(kind) {
                        continue;
                    }
                    if !keep_on() {
                        return Hunted {
                            mutant,
                            killed: None,
                            schedules: tried,
                        };
                    }
                    let case = Case {
                        scenario,
                        kind: *kind,
                        policy,
                        mutant: Some(mutant),
                    };
                    let plan = Plan {
                        case,
                        budget: Budget::Schedules(schedules),
                        seed,
                        depth: 4,
                    };
                    let report = explore(&mut Session::new(case), &plan, |_, _| true);
                    tried += report.schedules;
                    if let Some(failure) = report.failure
                        && holds_unmutated(&plan, report.schedules)
                    {
                        return Hunted {
                            mutant,
                            killed: Some((case, failure)),
                            schedules: report.schedules,
                        };
                    }
                }
            }
        }
    }
    Hunted {
        mutant,
        killed: None,
        schedules: tried,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bugs_are_read_from_the_accounts() {
        assert_eq!(bugs(Mutant::SwitchPublishesLate), "8");
        assert_eq!(bugs(Mutant::SettleSkipped), "3, 6, 19");
        assert_eq!(bugs(Mutant::RefillSkipsDebt), "L1, L2, L3");
        assert_eq!(bugs(Mutant::WaiterServesNobody), "");
    }
}

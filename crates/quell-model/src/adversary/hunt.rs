//! Hunting mutants: for each known mistake, a scenario and a machine in which it breaks the
//! contract.
//!
//! A mutant says nothing about where it shows, so every scenario is tried on every machine: a few
//! schedules each first, then more, until one fails. What is found is the same on every host.

use super::explore::{Budget, Failure, Plan, explore};
use super::kind::MachineKind;
use super::session::{Case, Session};
use crate::scenarios::Scenario;
use quell::mutant::Mutant;
use quell::{Mechanism, Policy};

/// Schedules per case, round by round.
const ROUNDS: [u64; 3] = [60, 600, 6_000];

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

/// The mutants that the adversary must kill: those of the engine's protocol.
pub fn mutants() -> impl Iterator<Item = Mutant> {
    let protocol = |mutant: &Mutant| {
        let name = mutant.name();
        !["Vm", "Zero", "Pool"].iter().any(|of| name.starts_with(of))
    };
    Mutant::ALL.iter().copied().filter(protocol)
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

/// Hunts one mutant. `keep_on` is asked before each case.
pub fn hunt(mutant: Mutant, seed: u64, mut keep_on: impl FnMut() -> bool) -> Hunted {
    let mut tried = 0;
    for schedules in ROUNDS {
        for policy in POLICIES {
            for scenario in Scenario::ALL {
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
                    if let Some(failure) = report.failure {
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

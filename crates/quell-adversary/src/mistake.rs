//! Mistakes that are made on purpose: a search that does not find one of them has proved nothing.
//!
//! A mistake is one of three. A *rule* of the engine, of the memory manager or of zeroing is not kept: the code decides
//! otherwise at that line. Something goes wrong at the *boundary* to the machine: an interrupt is not
//! sent, an invalidation reaches less than it should ([`broken`](crate::broken)). Or an *ordering* is weaker than the code says:
//! stores to one word of the engine become visible in any order ([`Weakened`]).
//!
//! Scenarios, replay codes and `docs/mutants.md` name a mistake by its name, which never changes.

use crate::broken::Boundary;
use quell::Rule;

/// An ordering that is left out.
#[derive(Debug)]
pub struct Weakened {
    /// Its name.
    pub name: &'static str,
    /// The word, as the engine names it ([`PerCpu::word_name`](quell::PerCpu::word_name)), whose stores are made
    /// relaxed.
    pub word: &'static str,
    /// What that means.
    pub mistake: &'static str,
}

/// The orderings that are left out, one at a time.
pub static WEAKENED: &[Weakened] = &[
    Weakened {
        name: "RelaxedDone",
        word: "done",
        mistake: "The acknowledgement is stored relaxed.",
    },
    Weakened {
        name: "RelaxedLeaveLazy",
        word: "state",
        mistake: "A lazy CPU declares itself running with a relaxed store (bug 34).",
    },
];

/// A mistake.
#[derive(Clone, Copy, Debug)]
pub enum Mistake {
    /// A rule is not kept.
    Rule(&'static Rule),
    /// Something goes wrong at the boundary to the machine.
    Boundary(Boundary),
    /// An ordering is weaker than the code says.
    Ordering(&'static Weakened),
}

impl PartialEq for Mistake {
    fn eq(&self, other: &Mistake) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Mistake {}

impl Mistake {
    /// Every mistake.
    pub fn all() -> impl Iterator<Item = Mistake> {
        let rules = [
            quell::rules::ALL,
            quell_zero::rules::zero::ALL,
            quell_vm::rules::ALL,
        ];
        let rules = rules.into_iter().flatten().copied().map(Mistake::Rule);
        let boundary = Boundary::ALL.iter().copied().map(Mistake::Boundary);
        let orderings = WEAKENED.iter().map(Mistake::Ordering);
        rules.chain(boundary).chain(orderings)
    }

    /// The mistake of this name.
    pub fn named(name: &str) -> Option<Mistake> {
        Mistake::all().find(|mistake| mistake.name() == name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Mistake::Rule(rule) => rule.name,
            Mistake::Boundary(boundary) => boundary.name(),
            Mistake::Ordering(weakened) => weakened.name,
        }
    }

    /// What is done wrong, in a sentence that ends with the numbers of known bugs, if there are any.
    pub fn account(self) -> &'static str {
        let account = match self {
            Mistake::Rule(rule) => rule.mistake,
            Mistake::Boundary(boundary) => boundary.account(),
            Mistake::Ordering(weakened) => weakened.mistake,
        };
        account.trim()
    }

    /// The numbers of the known bugs that it stands for, as its account names them.
    pub fn bugs(self) -> String {
        let Some((_, tail)) = self.account().rsplit_once('(') else {
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

    /// Whether it is one of the memory manager's.
    pub fn is_the_managers(self) -> bool {
        self.name().starts_with("Vm")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    fn bugs(name: &str) -> String {
        Mistake::named(name).expect(name).bugs()
    }

    #[test]
    fn bugs_are_read_from_the_accounts() {
        assert_eq!(bugs("SwitchPublishesLate"), "8");
        assert_eq!(bugs("SettleSkipped"), "3, 6, 19");
        assert_eq!(bugs("RefillSkipsDebt"), "L1, L2, L3");
        assert_eq!(bugs("WaiterServesNobody"), "");
    }

    #[test]
    fn names_are_told_apart_and_scenarios_name_what_there_is() {
        let mut names: Vec<_> = Mistake::all().map(Mistake::name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for scenario in Scenario::ALL {
            for name in scenario.finds {
                assert!(names.contains(name), "{}: {name}", scenario.name);
            }
        }
    }
}

//! Lists the deliberate mistakes by which a search proves its strength.
//!
//! If a search misses one of them, its silence about other code proves little. There are three kinds of mistakes:
//!
//! * A *mutant* changes some lines of the engine, of the memory manager, of zeroing or of one of the kernels here
//!   ([`quell_mutants::list`]).
//! * A mistake at the *boundary* to the machine: for example, an interrupt isn't sent, or an invalidation drops less
//!   than it should ([`broken`](crate::broken)).
//! * A weakened *ordering*: of the stores to one word, or of one kind of operation in one file of the engine
//!   ([`OrderingMistake`]).
//!
//! Scenarios, replay codes and `search/adversary/results/mutants.txt` refer to a mistake by its name, which never
//! changes.

use crate::broken::Boundary;
use crate::kind::{MachineKind, Stores};
use quell_mutants::Mutant;
use quell_workloads::files::hint;
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};

/// A kind of operation that has a memory ordering.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OperationKind {
    /// A load, and an exchange that fails.
    Load,
    /// A store.
    Store,
    /// An exchange, or another atomic read and write.
    Modify,
    /// A fence of the memory model.
    Fence,
}

/// An operation whose ordering is weakened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WeakenedOperation {
    /// Stores to this word become relaxed.
    ///
    /// The word's name is that of [`PerCpuData::word_name`](quell::PerCpuData::word_name).
    Stores(&'static str),
    /// Operations of this kind and ordering in a source file become one step weaker.
    ///
    /// `SeqCst` becomes `Acquire`, `Release` or `AcqRel`, and any other ordering becomes `Relaxed`. A fence is omitted.
    In(&'static str, OperationKind, Ordering),
}

/// A mistake that weakens an ordering.
#[derive(Debug)]
pub struct OrderingMistake {
    /// The mistake's name.
    pub name: &'static str,
    /// The operation that is weakened.
    pub what: WeakenedOperation,
    /// A description of the mistake.
    pub mistake: &'static str,
}

impl OrderingMistake {
    /// Returns whether it may change a run on such a machine. On others the machine itself orders the operation more
    /// strongly than the weakened code requests.
    fn shows_on(&self, kind: &MachineKind) -> bool {
        match self.what {
            WeakenedOperation::In(_, OperationKind::Store | OperationKind::Fence, SeqCst) => true,
            WeakenedOperation::Stores(_)
            | WeakenedOperation::In(_, OperationKind::Store | OperationKind::Fence, _) => {
                kind.stores == Stores::Unordered
            }
            WeakenedOperation::In(_, OperationKind::Load, SeqCst)
            | WeakenedOperation::In(_, OperationKind::Modify, Release | AcqRel) => {
                kind.stores == Stores::Unordered
            }
            WeakenedOperation::In(_, OperationKind::Load | OperationKind::Modify, _) => {
                kind.reorders
            }
        }
    }

    /// Returns the ordering of an operation under this mistake.
    #[inline]
    pub(crate) fn order(&self, file: &str, operation: OperationKind, order: Ordering) -> Ordering {
        match self.what {
            WeakenedOperation::In(in_file, kind, weakened)
                if kind == operation && weakened == order && file.ends_with(in_file) =>
            {
                match (order, operation) {
                    (SeqCst, OperationKind::Load) => Acquire,
                    (SeqCst, OperationKind::Store) => Release,
                    (SeqCst, OperationKind::Modify) => AcqRel,
                    _ => Relaxed,
                }
            }
            _ => order,
        }
    }
}

/// The weakened orderings that show as a violation of the contract.
///
/// Tests under loom weaken every ordering in the source.
pub static WEAKENED: &[OrderingMistake] = &[
    OrderingMistake {
        name: "RelaxedDone",
        what: WeakenedOperation::Stores("done"),
        mistake: "The acknowledgement is stored relaxed.",
    },
    OrderingMistake {
        name: "RelaxedLeaveLazy",
        what: WeakenedOperation::Stores("state"),
        mistake: "A lazy CPU declares itself running with a relaxed store (bug 34).",
    },
    OrderingMistake {
        name: "InboxLooksCross",
        what: WeakenedOperation::In("engine/quell/src/inbox.rs", OperationKind::Load, SeqCst),
        mistake: "Initiator and target read each other's count before their own is visible.",
    },
    OrderingMistake {
        name: "InboxPostsCross",
        what: WeakenedOperation::In("engine/quell/src/inbox.rs", OperationKind::Modify, SeqCst),
        mistake: "Posts and receipts are not sequentially consistent.",
    },
    OrderingMistake {
        name: "SpaceReadEarly",
        what: WeakenedOperation::In("engine/quell/src/space.rs", OperationKind::Load, SeqCst),
        mistake: "A space's generation and loaded CPUs are read before this CPU's own announcement is visible.",
    },
    OrderingMistake {
        name: "SpaceAnnouncesLate",
        what: WeakenedOperation::In("engine/quell/src/space.rs", OperationKind::Modify, SeqCst),
        mistake: "The counts of a space's generations, batches and loaded CPUs are changed without ordering.",
    },
    OrderingMistake {
        name: "LedgerReadRelaxed",
        what: WeakenedOperation::In("engine/quell/src/ledger.rs", OperationKind::Load, Acquire),
        mistake: "The flush clock and the record of the deferred flushes already made are read relaxed.",
    },
    OrderingMistake {
        name: "TagLockTakenRelaxed",
        what: WeakenedOperation::In("engine/quell/src/asid.rs", OperationKind::Modify, Acquire),
        mistake: "The lock of the system-wide tags is acquired with a relaxed operation.",
    },
    OrderingMistake {
        name: "VmLockTakenRelaxed",
        // The lock passes its caller on.
        what: WeakenedOperation::In("testbed/vm/src/frame.rs", OperationKind::Modify, AcqRel),
        mistake: "The locks of tables are acquired with relaxed operations.",
    },
];

/// A deliberate mistake.
#[derive(Clone, Copy, Debug)]
pub enum Mistake {
    /// A mutant of the code, which only the [instrumented copy](quell_mutants) contains.
    Source(&'static Mutant),
    /// A mistake at the interface of the machine.
    Boundary(Boundary),
    /// An ordering weaker than in the code.
    Ordering(&'static OrderingMistake),
}

impl PartialEq for Mistake {
    fn eq(&self, other: &Mistake) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Mistake {}

impl Mistake {
    /// Returns every mistake.
    pub fn all() -> impl Iterator<Item = Mistake> {
        let mutants = quell_mutants::list::all().iter().map(Mistake::Source);
        let boundary = Boundary::ALL.iter().copied().map(Mistake::Boundary);
        let orderings = WEAKENED.iter().map(Mistake::Ordering);
        mutants.chain(boundary).chain(orderings)
    }

    /// Returns the mistake of this name.
    pub fn named(name: &str) -> Option<Mistake> {
        Mistake::all().find(|mistake| mistake.name() == name)
    }

    /// Finds a mistake by name.
    ///
    /// # Errors
    /// Returns a sentence with the nearest name if there is no such mistake.
    pub fn find(name: &str) -> Result<Mistake, String> {
        Mistake::named(name).ok_or_else(|| {
            let near = hint(name, Mistake::all().map(Mistake::name));
            format!("no mutant `{name}`{near}; `quell explore --list` lists them")
        })
    }

    /// Returns the mistake's name.
    pub fn name(self) -> &'static str {
        match self {
            Mistake::Source(mutant) => &mutant.name,
            Mistake::Boundary(boundary) => boundary.name(),
            Mistake::Ordering(weakened) => weakened.name,
        }
    }

    /// Describes the mistake in a sentence that ends with the numbers of known bugs.
    pub fn account(self) -> &'static str {
        let account = match self {
            Mistake::Source(mutant) => &mutant.mistake,
            Mistake::Boundary(boundary) => boundary.account(),
            Mistake::Ordering(weakened) => weakened.mistake,
        };
        account.trim()
    }

    /// Returns the numbers of the known bugs that the mistake reproduces.
    pub fn bugs(self) -> String {
        let Some((_, tail)) = self.account().rsplit_once('(') else {
            return String::new();
        };
        let inside = tail.split(')').next().unwrap_or_default();
        let inside = inside.trim_start_matches("bugs ").trim_start_matches("bug ");
        let known = |word: &str| {
            let digits = word.trim_start_matches('L');
            !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit())
        };
        let list: Vec<&str> = inside.split(", ").filter(|word| known(word)).collect();
        list.join(", ")
    }

    /// Returns whether it may change a run on such a machine.
    pub(crate) fn shows_on(self, kind: &MachineKind) -> bool {
        match self {
            Mistake::Ordering(weakened) => weakened.shows_on(kind),
            Mistake::Source(_) | Mistake::Boundary(_) => true,
        }
    }

    /// Returns whether the mistake is in the code. Only the instrumented copy has such a mistake.
    pub fn is_of_source(self) -> bool {
        matches!(self, Mistake::Source(_))
    }

    /// Returns whether the mistake is in the memory manager.
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
        assert_eq!(bugs("FlushPendingSkipped"), "3, 6, 19");
        assert_eq!(bugs("RefillSkipsFlush"), "L1, L2, L3");
        assert_eq!(bugs("WaiterSkipsInbox"), "");
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

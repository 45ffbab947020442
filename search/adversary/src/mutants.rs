//! Finds, for each deliberate mistake, a scenario and a machine in which it breaks the contract.
//!
//! Each scenario names the mutants that it should find, and a mutant is sought there first. The budgets grow from round
//! to round, so that the easy mutants are found before much is spent on the others. If a mutant survives there, or if
//! no scenario names it, it's sought in every scenario. A weakened ordering is sought only on machines that don't order
//! more strongly than the code requests. The result is the same on every host.
//!
//! A few mutants can't show in any access. Those are judged by [`clearing`].

use crate::clearing;
use crate::explore::{Budget, Exploration, Failure, explore};
use crate::kind::MachineKind;
use crate::mistake::Mistake;
use crate::scenario::Scenario;
use crate::session::{Case, Session};
use quell::{Mechanism, Policy};

/// The schedules per case in the scenarios that name the mutant, by round.
const NAMED: [u64; 5] = [20, 200, 2_000, 10_000, 40_000];

/// The schedules per case in all other scenarios, by round.
const ELSEWHERE: [u64; 3] = [30, 200, 1_500];

/// The policies under which mutants are tested.
///
/// The first has all mechanisms, because most mistakes concern one of them. The second is without the asynchronous,
/// inlined flush, whose handler is more careful than the simple one.
const POLICIES: [Policy; 2] = [Policy::ALL, Policy::only(Mechanism::Batch)];

/// The way in which a mutant was killed.
#[derive(Clone, Debug)]
pub enum Kill {
    /// A run broke the contract.
    Run(Box<Case<'static>>, Failure),
    /// A promise about zeroing was broken that no access can show. This is the promise's description.
    Clearing(&'static str),
}

impl Kill {
    /// Returns the name of the scenario, or of the check that replaced it.
    pub fn scenario(&self) -> &'static str {
        match self {
            Kill::Run(case, _) => case.scenario.name,
            Kill::Clearing(_) => "promises of zeroing",
        }
    }

    /// Returns the name of the machine, if it matters.
    pub fn machine(&self) -> Option<&'static str> {
        match self {
            Kill::Run(case, _) => Some(case.kind.name),
            Kill::Clearing(_) => None,
        }
    }

    /// Returns the violated clause, or the broken promise about zeroing.
    pub fn broke(&self) -> String {
        match self {
            Kill::Run(_, failure) => failure.violation.clause.to_string(),
            Kill::Clearing(account) => (*account).to_string(),
        }
    }
}

/// The result of the search for one mistake.
#[derive(Clone, Debug)]
pub struct MutantResult {
    /// The mistake.
    pub mistake: Mistake,
    /// The kill, or `None` if the mistake survived.
    pub killed: Option<Kill>,
    /// The number of schedules until the failure in the case that found it, or of all cases if none did.
    pub schedules: u64,
}

/// Returns the cases in which we search for a mutant, each with its number of schedules.
fn cases(mistake: Mistake) -> impl Iterator<Item = (Case<'static>, u64)> {
    let named = |scenario: &&Scenario<'static>| scenario.finds.contains(&mistake.name());
    let over_vm = mistake.is_the_managers();
    let (first, mut others): (Vec<_>, Vec<_>) = Scenario::ALL.iter().partition(named);
    others.sort_by_key(|scenario: &&Scenario<'static>| scenario.uses_vm() != over_vm);
    let rounds = |scenarios: Vec<&'static Scenario<'static>>, rounds: &'static [u64]| {
        rounds.iter().flat_map(move |&schedules| {
            let scenarios = scenarios.clone();
            POLICIES
                .into_iter()
                .flat_map(move |policy| scenarios.clone().into_iter().map(move |s| (s, policy)))
                .map(move |(scenario, policy)| (scenario, policy, schedules))
        })
    };
    rounds(first, &NAMED).chain(rounds(others, &ELSEWHERE)).flat_map(
        move |(scenario, policy, schedules)| {
            let kinds = MachineKind::ALL.iter();
            kinds.filter(move |kind| scenario.runs_on(kind) && mistake.shows_on(kind)).map(
                move |kind| {
                    let case = Case { scenario, kind: *kind, policy, mistake: Some(mistake) };
                    (case, schedules)
                },
            )
        },
    )
}

/// Returns whether the same search without the mistake finds nothing. Otherwise the mistake didn't cause the finding.
fn holds_unmutated(exploration: &Exploration, schedules: u64) -> bool {
    let case = Case { mistake: None, ..exploration.case };
    let exploration = Exploration { case, budget: Budget::Schedules(schedules), ..*exploration };
    let report = explore(&mut Session::new(case), &exploration, |_, _| true);
    report.failure.is_none()
}

/// Makes one mistake, and searches for a run in which it breaks the contract.
///
/// Before each case it calls `keep_on` with the number of schedules since the last call. If that returns `false`, the
/// search ends.
pub fn test(mistake: Mistake, seed: u64, mut keep_on: impl FnMut(u64) -> bool) -> MutantResult {
    let mut tested = MutantResult { mistake, killed: None, schedules: 0 };
    let named = Scenario::ALL.iter().any(|s| s.finds.contains(&mistake.name()));
    if let (false, Some(broken)) = (named, clearing::broken_by(mistake)) {
        tested.killed = Some(Kill::Clearing(broken));
        tested.schedules = 1;
        return tested;
    }
    let mut news = 0;
    for (case, schedules) in cases(mistake) {
        if !keep_on(news) {
            break;
        }
        let exploration =
            Exploration { case, budget: Budget::Schedules(schedules), seed, depth: 4 };
        let report = explore(&mut Session::new(case), &exploration, |_, _| true);
        news = report.schedules;
        tested.schedules += news;
        if let Some(failure) = report.failure
            && holds_unmutated(&exploration, report.schedules)
        {
            tested.killed = Some(Kill::Run(Box::new(case), failure));
            tested.schedules = news;
            break;
        }
    }
    tested
}

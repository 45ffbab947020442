//! Runs many schedules of a case, until the budget is spent or one breaks the contract.

use crate::action::Deviation;
use crate::coverage::{Coverage, ReachGoal};
use crate::machine::End;
use crate::schedule::{Rng, Strategy};
use crate::search::ExhaustiveSearch;
use crate::session::{Case, Session};
use quell::{Mechanism, Policy};
use quell_vm::contract::{Clause, Violation};
use std::time::Instant;

/// The length of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Budget {
    /// This many random schedules, divided by [`Scenario::one_in`](crate::Scenario::one_in).
    Schedules(u64),
    /// Random schedules until this moment.
    Until(Instant),
    /// Every schedule, with equivalent ones run once.
    ///
    /// The limit includes schedules that are cut short.
    Exhaustive(u64),
}

/// The inputs of a search.
#[derive(Clone, Copy, Debug)]
pub struct Exploration<'p> {
    /// The case.
    pub case: Case<'p>,
    /// The budget.
    pub budget: Budget,
    /// The seed. Each run draws its own random numbers from it.
    pub seed: u64,
    /// The greatest depth of the priority-based search: the number of orderings that a bug may need.
    pub depth: u32,
}

/// A run that broke the contract.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The violation.
    pub violation: Violation,
    /// The shortest list of choices that was found to break the contract.
    pub deviations: Vec<Deviation>,
    /// The number of choices in the list before it was shrunk.
    pub found_with: usize,
}

/// The results of a search.
#[derive(Clone, Default, Debug)]
pub struct Report {
    /// The number of schedules that ran to their end.
    pub schedules: u64,
    /// The number of schedules that were cut short because an equivalent one was run.
    pub pruned: u64,
    /// The number of distinct states; 0 if not counted.
    pub states: u64,
    /// A lower bound of the number of schedules that the states represent. It is computed only at the end of a search.
    pub stands_for: f64,
    /// The number of decisions in all runs.
    pub decisions: u64,
    /// Whether the search has run every schedule.
    pub exhaustive: bool,
    /// The first failure.
    pub failure: Option<Failure>,
    /// The count of each transition.
    pub coverage: Coverage,
    /// The transitions that the scenario must reach but didn't.
    pub missed: Vec<ReachGoal>,
}

/// Searches until the budget is spent or a run fails.
///
/// It regularly calls `progress` with the number of schedules. If that returns `false`, the search ends.
pub fn explore(
    session: &mut Session<'_>,
    exploration: &Exploration<'_>,
    progress: impl FnMut(u64, &Coverage) -> bool,
) -> Report {
    let (mut report, violation) = search(session, exploration, progress);
    if let Some(violation) = violation {
        let trail = session.trail();
        report.failure = Some(shrink(session, trail, violation));
    }
    report
}

/// Searches like [`explore`], but doesn't shrink a failing run.
///
/// Returns the violation of that run beside the report, which contains no [`Failure`]. The session's last run is the
/// failing one. There is one exception: if a dead end couldn't be reached again, the violation mentions that.
pub fn search(
    session: &mut Session<'_>,
    exploration: &Exploration<'_>,
    mut progress: impl FnMut(u64, &Coverage) -> bool,
) -> (Report, Option<Violation>) {
    let mut report = Report::default();
    let mut search = match exploration.budget {
        Budget::Exhaustive(_) => Some(session.search()),
        _ => None,
    };
    let mut runs = 0u64;
    let mut longest = 64;
    loop {
        let spent = match exploration.budget {
            Budget::Schedules(count) => {
                report.schedules >= count.div_ceil(exploration.case.scenario.one_in)
            }
            Budget::Until(end) => report.schedules.is_multiple_of(64) && Instant::now() >= end,
            Budget::Exhaustive(most) => report.schedules + report.pruned >= most,
        };
        if spent || (runs % 256 == 255 && !progress(report.schedules, &session.coverage)) {
            break;
        }
        runs += 1;
        let run = if let Some(search) = &mut search {
            if report.schedules + report.pruned > 0 && !search.advance() {
                let dead_end = search.stuck().map(|state| dead_end(session, state));
                if let Some(DeadEnd::Surprise) = dead_end {
                    *search = session.search();
                    (report.schedules, report.pruned) = (0, 0);
                    continue;
                }
                report.exhaustive = true;
                report.stands_for = search.stands_for();
                if let Some(DeadEnd::Breach(violation)) = dead_end {
                    report.coverage = session.coverage.clone();
                    return (report, Some(violation));
                }
                break;
            }
            let run = session.run_search(search);
            report.states = search.states();
            if session.take_surprise() && !matches!(run.end, End::Violated(_)) {
                *search = session.search();
                (report.schedules, report.pruned) = (0, 0);
                continue;
            }
            run
        } else {
            let seed = Rng::stream(exploration.seed, report.schedules).draw();
            let strategy = match report.schedules % 2 {
                0 => Strategy::random(seed),
                _ => {
                    let depth =
                        1 + (report.schedules / 2 % u64::from(exploration.depth.max(1))) as u32;
                    Strategy::pct(seed, depth, longest)
                }
            };
            session.run(strategy).0
        };
        longest = longest.max(run.decisions.min(exploration.case.scenario.steps));
        report.decisions += u64::from(run.decisions);
        match run.end {
            End::Pruned => {
                report.pruned += 1;
                continue;
            }
            End::Finished => report.schedules += 1,
            End::Violated(violation) => {
                report.schedules += 1;
                report.coverage = session.coverage.clone();
                return (report, Some(*violation));
            }
        }
    }
    report.coverage = session.coverage.clone();
    report.missed = session.case().missed(&report.coverage);
    (report, None)
}

impl Case<'_> {
    /// Returns the transitions that the scenario must reach on this machine but didn't.
    ///
    /// It's empty unless all mechanisms are on, because other policies reach less.
    pub fn missed(&self, coverage: &Coverage) -> Vec<ReachGoal> {
        if self.policy != Policy::ALL || self.mistake.is_some() {
            return Vec::new();
        }
        let wanted = self.scenario.must.iter().flatten();
        wanted
            .filter(|(on, reach)| on.includes(&self.kind) && coverage.get(*reach) == 0)
            .map(|(_, reach)| *reach)
            .collect()
    }
}

/// The result for a state from which the search has found no path to the end.
enum DeadEnd {
    /// A violation. Without a path to the end the contract is broken, whether or not another run shows that.
    Breach(Violation),
    /// On the way there, a run contradicted an assumption of the search, which must begin again.
    Surprise,
}

/// Runs into a state from which the search has found no path to the end, and continues from there fairly.
fn dead_end(session: &mut Session<'_>, state: u32) -> DeadEnd {
    let not_again = |why: &str| {
        let account =
            format!("no schedule leads from state {state} of the search to the end; {why}");
        DeadEnd::Breach(Violation::new(Clause::C7, account))
    };
    let mut search = ExhaustiveSearch::until(state);
    loop {
        session.run_search(&mut search);
        if session.take_surprise() {
            return DeadEnd::Surprise;
        }
        if search.found() {
            break;
        }
        if !search.advance() {
            return not_again("searched again, no run came there");
        }
    }
    match session.run(Strategy::script(session.trail())).0.end {
        End::Violated(violation) => DeadEnd::Breach(*violation),
        _ => not_again("run again from there, the programs ended"),
    }
}

/// Runs the fixed scheduler with these deviations. Returns those that made a difference, and the violation.
pub(crate) fn breaks(
    session: &mut Session<'_>,
    list: &[Deviation],
) -> Option<(Vec<Deviation>, Violation)> {
    match session.run(Strategy::script(list.to_vec())).0.end {
        End::Violated(violation) => Some((session.trail(), *violation)),
        _ => None,
    }
}

/// Leaves out deviations as long as the same clause still breaks.
pub(crate) fn shrink(
    session: &mut Session<'_>,
    trail: Vec<Deviation>,
    violation: Violation,
) -> Failure {
    let found_with = trail.len();
    let mut best = (trail, violation);
    let breaks = |session: &mut Session<'_>, list: &[Deviation], clause| {
        breaks(session, list).filter(|(_, violation)| violation.clause == clause)
    };
    let clause = best.1.clause;
    let mut attempts = 4000;
    let mut size = best.0.len().div_ceil(2).max(1);
    loop {
        let mut shorter = false;
        let mut at = 0;
        while at < best.0.len() && attempts > 0 {
            attempts -= 1;
            let mut list = best.0.clone();
            list.drain(at..(at + size).min(list.len()));
            match breaks(session, &list, clause) {
                Some(found) if found.0.len() < best.0.len() => {
                    best = found;
                    shorter = true;
                }
                _ => at += size,
            }
        }
        if attempts == 0 || (size == 1 && !shorter) {
            break;
        }
        if !shorter {
            size = size.div_ceil(2);
        }
    }
    Failure { violation: best.1, deviations: best.0, found_with }
}

/// The default policies of a search: none, each mechanism alone, all.
pub const POLICIES: [Policy; 7] = [
    Policy::BASELINE,
    Policy::only(Mechanism::Batch),
    Policy::only(Mechanism::Extents),
    Policy::only(Mechanism::Tags),
    Policy::only(Mechanism::LazyUnmap),
    Policy::only(Mechanism::RemoteFlush),
    Policy::ALL,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bare_kernel::{BareProgram, frame};
    use crate::scenario::Scenario;
    use crate::scenario::Script;
    use crate::vm_kernel::VmProgram;
    use std::collections::BTreeSet;

    /// Two CPUs unmap one page. The second one spins for ever.
    const BUSY: Scenario = Scenario {
        name: "busy",
        program: Script::Engine(BareProgram {
            first: |k| _ = k.map(0, 0, frame(0), true),
            all: |k, _| {
                if k.take(0, 0).is_none() {
                    loop {
                        k.lock(1);
                        k.unlock(1);
                    }
                }
            },
            ..BareProgram::NONE
        }),
        ..*Scenario::ALL.first().expect("there are scenarios")
    };

    fn search_busy(machine: &str, budget: Budget) -> Report {
        let case = Case::on(&BUSY, machine);
        let exploration = Exploration { case, budget, seed: 1, depth: 1 };
        explore(&mut Session::new(case), &exploration, |_, _| true)
    }

    #[test]
    fn a_loop_that_never_ends_is_found_though_no_run_is_endless() {
        let report = search_busy("x86-broadcast", Budget::Exhaustive(10_000));
        assert!(report.exhaustive, "states repeat, so the search ends");
        let failure = report.failure.expect("one of them never ends");
        assert_eq!(failure.violation.clause, Clause::C7);
    }

    #[test]
    fn a_state_that_leads_nowhere_is_a_breach_even_if_no_run_comes_there_again() {
        let case = Case::on(Scenario::named("unmap-access").expect("a scenario"), "x86-broadcast");
        let mut session = Session::new(case);
        // The first search may contradict its own assumptions.
        let breach = loop {
            if let DeadEnd::Breach(violation) = dead_end(&mut session, u32::MAX) {
                break violation;
            }
        };
        assert_eq!(breach.clause, Clause::C7);
        assert!(breach.account.contains("no run came there"), "{breach}");
        // The first state of all is reached again, and the programs end from there.
        let DeadEnd::Breach(breach) = dead_end(&mut session, 0) else {
            panic!("nothing is new there");
        };
        assert!(breach.account.contains("the programs ended"), "{breach}");
    }

    #[test]
    fn a_run_that_goes_round_for_ever_is_endless() {
        let report = search_busy("x86", Budget::Schedules(50));
        let failure = report.failure.expect("one of the two comes second");
        assert_eq!(failure.violation.clause, Clause::C7);
        assert!(failure.violation.account.starts_with("no end after"));
    }

    /// Finds a violation after the run and describes it.
    const TELLS: Scenario = Scenario {
        name: "tells",
        program: Script::Vm(VmProgram {
            after: |k| k.must(Clause::C4, false, "what was found after the run"),
            ..VmProgram::NONE
        }),
        ..*Scenario::ALL.first().expect("there are scenarios")
    };

    #[test]
    fn what_a_run_has_found_outlives_its_heap() {
        let case = Case::on(&TELLS, "x86");
        let mut session = Session::new(case);
        let mut search = session.search();
        assert!(search.by_state(), "the manager has its heap");
        let first = session.run_search(&mut search).end;
        // The next run clears the heap, and with it this run's memory.
        session.run(Strategy::default());
        let End::Violated(violation) = first else {
            panic!("nothing was found: {first:?}");
        };
        assert_eq!(violation.account, "what was found after the run");
    }

    /// Returns the final states of the machine, and the number of runs needed.
    fn ends(session: &mut Session, by_state: bool) -> (BTreeSet<u128>, u64) {
        let (mut ends, mut runs) = (BTreeSet::new(), 0);
        let mut search = ExhaustiveSearch::new(by_state);
        loop {
            let run = session.run_search(&mut search);
            runs += 1;
            assert!(runs < 1_000_000, "{:?} is too large", session.case());
            assert!(!matches!(run.end, End::Violated(_)), "{:?}", run.end);
            if session.take_surprise() {
                search = ExhaustiveSearch::new(by_state);
                (ends, runs) = (BTreeSet::new(), 0);
                continue;
            }
            if run.end == End::Finished {
                ends.insert(session.last_state());
            }
            if !search.advance() {
                return (ends, runs);
            }
        }
    }

    /// Checks that states aren't confused, because that would hide their continuations.
    #[test]
    fn telling_states_apart_loses_none_of_the_ends() {
        let mut saved = 0;
        for (scenario, machine) in [
            ("unmap-access", "x86"),
            ("unmap-access", "arm-asid8"),
            ("protect-access", "x86-pcid"),
            ("table-free", "x86"),
            ("idle-unmap", "x86"),
            ("switch-unmap", "x86-broadcast"),
            ("offline-answers", "x86"),
            ("lazy-reuse", "x86-pcid"),
            ("lazy-reuse", "riscv"),
            ("lazy-switch", "x86"),
            ("lazy-stranger", "arm-asid16"),
            ("rollover-unmap", "arm-asid8"),
            ("nmi-unmap", "x86-broadcast"),
        ] {
            let case = Case::on(Scenario::named(scenario).expect("a scenario"), machine);
            // We use one session, because states depend on the host's addresses.
            let mut session = Session::new(case);
            let (all, runs) = ends(&mut session, false);
            let (by_state, fewer) = ends(&mut session, true);
            println!("{scenario} on {machine}: {} ends, {runs} runs, by state {fewer}", all.len());
            assert_eq!(by_state, all, "{scenario} on {machine}");
            saved += runs - fewer.min(runs);
        }
        assert!(saved > 50_000, "states saved {saved} runs only");
    }
}

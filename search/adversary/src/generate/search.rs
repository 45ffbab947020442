//! Runs one program in many schedules.

use crate::action::Deviation;
use crate::footprint::PassedRules;
use crate::machine::End;
use crate::mistake::Mistake;
use crate::schedule::{Rng, Strategy};
use crate::session::Session;
use quell_mutants::Mutant;
use quell_vm::contract::Violation;

/// The greatest depth of priority-based search.
const DEPTH: u64 = 4;

/// A kind of schedule.
#[derive(Clone, Copy)]
enum Kind {
    Random,
    Pct,
    Lurking,
    Stalling,
    Changing,
}

/// The kinds, in the order in which they alternate.
const KINDS: [Kind; 8] = [
    Kind::Random,
    Kind::Changing,
    Kind::Lurking,
    Kind::Stalling,
    Kind::Pct,
    Kind::Changing,
    Kind::Lurking,
    Kind::Stalling,
];

/// The work that a search has spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkDone {
    /// The number of programs drawn.
    pub programs: u64,
    /// The number of schedules run.
    ///
    /// It doesn't include exhaustive searches, whose number of schedules depends on addresses of the host.
    pub schedules: u64,
    /// The number of moments (steps of runs) in those schedules.
    pub moments: u64,
}

/// The schedules that a program gets.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct SchedulePlan {
    /// The seed from which they are drawn.
    pub(super) seed: u64,
    /// The number of schedules, of all kinds.
    pub(super) count: u64,
    /// The number of moments after which no further schedule begins.
    pub(super) most: u64,
    /// The rule at which CPUs stall in some of the lurking schedules. In the others it's any rule that the program
    /// passes.
    pub(super) watched: Option<&'static Mutant>,
    /// Rules that other CPUs had just passed when the watched one was passed. Sometimes we watch one of these instead.
    pub(super) partners: PassedRules,
    /// Whether to end as soon as a run passes the watched rule. Until then, most schedules lurk, at any rule.
    pub(super) seeks: bool,
}

impl SchedulePlan {
    fn reached(&self, session: &Session<'_>) -> bool {
        self.watched.is_some_and(|rule| session.asked().contains(rule))
    }
}

/// Returns the mutant whose rule a mistake changes, if it has one.
pub(super) fn mutant_of(mistake: Option<Mistake>) -> Option<&'static Mutant> {
    match mistake {
        Some(Mistake::Source(rule)) => Some(rule),
        _ => None,
    }
}

/// Draws one of the rules passed.
fn any_of(asked: &PassedRules, seed: u64) -> Option<&'static Mutant> {
    let rules = Mistake::all().filter_map(|mistake| mutant_of(Some(mistake)));
    let rules: Vec<_> = rules.filter(|rule| asked.contains(rule)).collect();
    let number = Rng::new(seed).below(rules.len().max(1) as u64) as usize;
    rules.get(number).copied()
}

/// The observations of one run.
pub(super) struct RunObservation {
    /// The number of its schedule.
    pub(super) number: u64,
    /// Whether the schedule depends on the watched rule.
    pub(super) lurks: bool,
    /// Its length in decisions and in moments. Runs that differ mostly differ in length.
    pub(super) print: (u32, u32),
}

/// Runs these schedules until one breaks the contract. Returns the schedule and the violation.
pub(super) fn search(
    session: &mut Session<'_>,
    plan: SchedulePlan,
    spent: &mut WorkDone,
    see: &mut dyn FnMut(RunObservation),
) -> Option<(Vec<Deviation>, Violation)> {
    let mut longest = 64;
    let enough = spent.moments + plan.most;
    let scenario = session.case().scenario;
    let (cpus, steps) = (scenario.cpus, scenario.steps);
    let prompts = scenario.nmis + scenario.preemptions + scenario.spurious > 0;
    for number in 0..plan.count {
        if spent.moments > enough || plan.seeks && plan.reached(session) {
            break;
        }
        let seed = plan.seed.wrapping_add(number);
        let own = plan.watched.is_some() && matches!(number % 8, 2 | 5);
        let kind = if own || plan.seeks && number % 3 > 0 {
            Kind::Lurking
        } else {
            KINDS[number as usize % KINDS.len()]
        };
        let strategy = match kind {
            Kind::Random => Strategy::random(seed),
            Kind::Pct => Strategy::pct(seed, 1 + (number / 8 % DEPTH) as u32, longest),
            Kind::Lurking => {
                // Other rules matter, too: another CPU may be in an operation on which the first one relies.
                let first = plan.watched.filter(|_| own);
                let partner = || any_of(&plan.partners, seed).filter(|_| number % 16 == 6);
                session.watched = first.or_else(partner).or_else(|| any_of(&session.asked(), seed));
                Strategy::lurking(seed, prompts)
            }
            Kind::Stalling => Strategy::stalling(seed, cpus, longest),
            Kind::Changing => Strategy::changing(seed, prompts),
        };
        let run = session.run(strategy).0;
        longest = longest.max(run.decisions.min(steps));
        spent.schedules += 1;
        spent.moments += u64::from(run.moments);
        see(RunObservation {
            number,
            lurks: matches!(kind, Kind::Lurking),
            print: (run.decisions, run.moments),
        });
        if let End::Violated(violation) = run.end {
            return Some((session.trail(), *violation));
        }
    }
    None
}

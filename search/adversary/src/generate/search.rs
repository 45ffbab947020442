//! One program in many schedules.

use crate::action::Deviation;
use crate::footprint::Asked;
use crate::machine::End;
use crate::mistake::Mistake;
use crate::schedule::{Rng, Strategy};
use crate::session::Session;
use quell_mutants::Mutant;
use quell_vm::contract::Violation;

/// The greatest depth of priority-based search.
const DEPTH: u64 = 4;

/// A kind of schedules.
#[derive(Clone, Copy)]
enum Kind {
    Random,
    Pct,
    Lurking,
    Stalling,
    Changing,
}

/// The kinds in turn.
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

/// The work spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Programs drawn.
    pub programs: u64,
    /// Schedules run. Those of a search through all of a program's are left out: how many it takes depends on where
    /// the host puts things.
    pub schedules: u64,
    /// Moments that they had.
    pub moments: u64,
}

/// Which schedules a program gets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// The seed of their choice.
    pub(super) seed: u64,
    /// The number of schedules, of all kinds.
    pub(super) count: u64,
    /// Or as many as fit into this many moments.
    pub(super) most: u64,
    /// The rule at which CPUs stall in two of three of the schedules that lurk; else it is any that the program
    /// comes by.
    pub(super) watched: Option<&'static Mutant>,
    /// Rules that others had passed when the watched one was passed: one of them is watched instead now and then.
    pub(super) partners: Asked,
    /// Only as long as no run comes by the rule that is watched: most schedules lurk elsewhere.
    pub(super) seeks: bool,
}

impl Share {
    fn reached(&self, session: &Session<'_>) -> bool {
        self.watched
            .is_some_and(|rule| session.asked().contains(rule))
    }
}

/// The rule that a mistake is about, if it is about one.
pub(super) fn mutant_of(mistake: Option<Mistake>) -> Option<&'static Mutant> {
    match mistake {
        Some(Mistake::Source(rule)) => Some(rule),
        _ => None,
    }
}

/// Draws one of the rules passed.
fn any_of(asked: &Asked, seed: u64) -> Option<&'static Mutant> {
    let rules = Mistake::all().filter_map(|mistake| mutant_of(Some(mistake)));
    let rules: Vec<_> = rules.filter(|rule| asked.contains(rule)).collect();
    let number = Rng::new(seed).below(rules.len().max(1) as u64) as usize;
    rules.get(number).copied()
}

/// The observations of a run.
pub(super) struct Seeing {
    /// Which schedule it was.
    pub(super) number: u64,
    /// Whether it depends on the watched rule.
    pub(super) lurks: bool,
    /// How long it was: runs that differ mostly differ in that.
    pub(super) print: (u32, u32),
}

/// Runs these schedules until one breaks the contract. Returns the schedule and the violation.
pub(super) fn search(
    session: &mut Session<'_>,
    plan: Share,
    spent: &mut Spent,
    see: &mut dyn FnMut(Seeing),
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
                // Others matter too: another CPU may be inside an operation there that the first relies on.
                let first = plan.watched.filter(|_| own);
                let partner = || any_of(&plan.partners, seed).filter(|_| number % 16 == 6);
                session.watched = first
                    .or_else(partner)
                    .or_else(|| any_of(&session.asked(), seed));
                Strategy::lurking(seed, prompts)
            }
            Kind::Stalling => Strategy::stalling(seed, cpus, longest),
            Kind::Changing => Strategy::changing(seed, prompts),
        };
        let run = session.run(strategy).0;
        longest = longest.max(run.decisions.min(steps));
        spent.schedules += 1;
        spent.moments += u64::from(run.moments);
        see(Seeing {
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

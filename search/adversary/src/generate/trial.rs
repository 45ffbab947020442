//! Tries one program of a campaign: unchanged, and then with each mistake that may show in it.
//!
//! Most of the schedules are for the mutant for which the program was drawn. The other mutants whose rules it passes
//! get a few each, because the right program is rarer than its right schedule. A trial doesn't depend on other
//! programs: the [`Outcome`] contains the results of a lane's programs.

use super::campaign::Efforts;
use super::search::{RunObservation, SchedulePlan, WorkDone, mutant_of, search};
use super::shrink::{Finding, case};
use super::text::RecordedProgram;
use crate::action::Deviation;
use crate::explore::{self, Budget};
use crate::footprint::{FootprintSet, Footprints, PassedRules, PlacePair, meetings_of};
use crate::generated::Program;
use crate::kind::MachineKind;
use crate::mistake::Mistake;
use crate::scenario::Scenario;
use crate::schedule::Rng;
use crate::session::Session;
use quell_vm::contract::Violation;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The number of schedules of a program before its footprint is judged.
const FIRST_LOOK: u64 = 8;

/// The number of further schedules of a program that hasn't yet passed the rule of the mutant for which it was drawn.
const SEEK: u64 = 32;

/// The numbers of further schedules of a program that holds so far, if no mutant is sought, each with its weight. The
/// right program is rarer than its right schedule, so most programs get none.
const MORE_SCHEDULES: [(u64, u64); 5] = [(24, 0), (12, 8), (8, 24), (3, 100), (1, 400)];

/// The approximate limit of moments for all searches of a program, those for all mutants included. Programs with long
/// runs get fewer schedules.
const PROGRAM: u64 = 500_000;

/// The approximate limit of moments for one search of a program.
const SEARCH: u64 = 300_000;

/// The factor by which the mutant for which a program was drawn gets more schedules than others.
const WANTED: u64 = 8;

/// The same factor if fewer than [`FEW`] mutants are left.
const MORE: u64 = 12;
/// The number of mutants below which [`MORE`] applies.
const FEW: usize = 32;

/// The number of runs for which that mutant has enough moments at least, however long these runs are.
const LONG_RUNS: u64 = 16;

/// The factor for further schedules of that mutant, in a program in which it makes a difference. We run these only if
/// the mutant makes a difference in few of the programs that pass its rule.
const DIFFERS: u64 = 8;

/// The smallest number of schedules with which it makes sense to try a mutant.
const FEWEST: u64 = 4;

/// The maximum number of runs in an exhaustive search of a small program.
const EVERY_SCHEDULE: u64 = 3_000;

/// A program that is kept because it has shown something new.
#[derive(Clone, Debug)]
pub struct KeptProgram {
    /// The program on its machine.
    pub recorded: RecordedProgram,
    pub(super) asked: PassedRules,
    /// The rules that met in it.
    pub(super) met: Box<[PlacePair]>,
    /// The mutants that made a difference in it and weren't killed.
    pub(super) differs: Vec<Mistake>,
    /// Whether it has killed a mutant. Then variants of it may kill others.
    pub(super) kills: bool,
}

/// A mutant that was killed, and the program that killed it.
#[derive(Clone, Debug)]
pub struct KilledMutant {
    /// The mutant.
    pub mutant: Mistake,
    /// The program and the schedule that killed the mutant. `None` if it broke a promise that no access can show.
    pub find: Option<Finding>,
    /// The number of programs that the campaign had drawn by then.
    pub programs: u64,
    /// The number of schedules that the campaign had run by then. The lanes' schedules are counted one lane after the
    /// other.
    pub schedules: u64,
}

/// The results of a lane.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) spent: WorkDone,
    pub(super) kept: Vec<KeptProgram>,
    pub(super) seen: FootprintSet,
    pub(super) killed: Vec<KilledMutant>,
    pub(super) finds: Vec<(RecordedProgram, Violation, u64)>,
    pub(super) efforts: Efforts,
}

/// Returns whether a mistake can make a difference on this machine after these rules were passed. Mistakes at the
/// machine's interface and in orderings have no rules.
pub(super) fn may_show(mistake: Mistake, asked: &PassedRules, kind: &MachineKind) -> bool {
    match mistake {
        Mistake::Source(rule) => asked.contains(rule),
        Mistake::Ordering(_) | Mistake::Boundary(_) => mistake.shows_on(kind),
    }
}

/// A program to try.
pub(super) struct Trial<'c> {
    pub(super) recorded: RecordedProgram,
    pub(super) seed: u64,
    /// The mutant for which it was drawn. It gets most of the schedules.
    pub(super) wanted: Option<Mistake>,
    /// The mutants whose rules few programs pass.
    pub(super) rare: &'c [Mistake],
    /// The mutants that make a difference in few programs.
    pub(super) unshown: &'c [Mistake],
    /// The mutants that make a difference in few of the programs that pass their rules.
    pub(super) seldom: &'c [Mistake],
    pub(super) stop: &'c AtomicBool,
}

/// The observations of the unchanged program.
struct PlainRuns {
    asked: PassedRules,
    met: Vec<PlacePair>,
    /// The lengths of its first runs, by number, except those that depend on the watched rule.
    plain: Vec<(u64, (u32, u32))>,
    /// The mean number of moments of a run.
    cost: u64,
    /// Its index among the kept programs, if it is kept.
    kept: Option<usize>,
}

/// The number of schedules that mutants get in a program.
struct ScheduleBudget {
    /// The number for the mutant for which it was drawn, and for each other one.
    wanted: u64,
    others: u64,
    /// The number of moments for each of the other mutants. If runs are long, there aren't enough moments for all: then
    /// a few mutants get their share, and the rest get nothing.
    share: u64,
    due: u64,
}

impl ScheduleBudget {
    /// Draws the numbers of schedules.
    fn draw(rng: &mut Rng, alive: usize, may_show: usize, cost: u64) -> Self {
        // The right program is rarer than its right schedule, so counts are mostly small.
        let count = match rng.below(16) {
            0..12 => 4,
            12..15 => 12,
            _ => 60,
        };
        // The last mutants need programs drawn for them, and many schedules of these.
        let (others, wanted) = match alive < FEW {
            true => (count / 2, MORE * count),
            false => (count, WANTED * count),
        };
        ScheduleBudget {
            wanted,
            others,
            share: (PROGRAM / (may_show as u64).max(1)).min(SEARCH),
            due: others.min(FEWEST) * cost,
        }
    }
}

impl Trial<'_> {
    /// Runs the program, unchanged and with each mistake of `alive` whose rule it passes. Removes those that it kills.
    pub(super) fn run(self, alive: &mut Vec<Mistake>, outcome: &mut Outcome) {
        outcome.spent.programs += 1;
        let scenario = Scenario::generated("generated", &self.recorded.program);
        let mut session = Session::new(case(&self.recorded, &scenario));
        let Some(shown) = self.look(&mut session, outcome) else { return };
        let mut rng = Rng::new(self.seed);
        if alive.is_empty() {
            self.look_longer(&mut rng, &mut session, outcome);
            return;
        }
        let may_show = |mutant: &Mistake| may_show(*mutant, &shown.asked, &self.recorded.kind);
        let asking = alive.iter().filter(|mutant| may_show(mutant)).count();
        let energy = ScheduleBudget::draw(&mut rng, alive.len(), asking, shown.cost);
        let mut differing = Vec::new();
        alive.retain(|mutant| {
            if !may_show(mutant) || self.stop.load(Relaxed) {
                return true;
            }
            let wanted = self.wanted == Some(*mutant);
            if !wanted && rng.below(energy.due.max(1)) > energy.share {
                return true;
            }
            let plan = self.plan(*mutant, &shown, &energy);
            let (mut kills, differs) = self.tries(&mut session, *mutant, plan, &shown, outcome);
            // If a mutant makes a difference, a schedule in which that breaks the contract isn't far.
            if !kills && wanted && differs && self.seldom.contains(mutant) {
                let longer = SchedulePlan {
                    seed: rng.draw(),
                    count: DIFFERS * plan.count,
                    most: DIFFERS * plan.most,
                    ..plan
                };
                kills = self.kills(&mut session, *mutant, longer, outcome, &mut |_| {});
            }
            if differs && !kills {
                differing.push(*mutant);
            }
            !kills
        });
        self.note_differing(differing, &shown, outcome);
    }

    /// Runs the unchanged program. Returns its observations, or `None` if it breaks the contract.
    fn look(&self, session: &mut Session<'_>, outcome: &mut Outcome) -> Option<PlainRuns> {
        session.watch(Some(Box::<Footprints>::default()));
        let plan = SchedulePlan {
            seed: self.seed,
            count: FIRST_LOOK,
            most: SEARCH / 8,
            ..Default::default()
        };
        let before = outcome.spent;
        let mut plain = Vec::new();
        let found = search(session, plan, &mut outcome.spent, &mut |seen| {
            if !seen.lurks {
                plain.push((seen.number, seen.print));
            }
        });
        let footprints = session.watch(None);
        if let Some((schedule, violation)) = found {
            outcome.finds.push(self.find(schedule, violation));
            return None;
        }
        if let Some(rule) = mutant_of(self.wanted).filter(|rule| !session.asked().contains(rule)) {
            let plan = SchedulePlan { count: SEEK, watched: Some(rule), seeks: true, ..plan };
            if let Some((schedule, violation)) =
                search(session, plan, &mut outcome.spent, &mut |_| {})
            {
                outcome.finds.push(self.find(schedule, violation));
                return None;
            }
        }
        let schedules = outcome.spent.schedules - before.schedules;
        let mut shown = PlainRuns {
            asked: session.asked(),
            met: Vec::new(),
            plain,
            cost: (outcome.spent.moments - before.moments) / schedules.max(1),
            kept: None,
        };
        if let Some(footprints) = footprints {
            let family = u64::from(self.recorded.kind.broadcasts());
            shown.met = footprints.met();
            let new = outcome.seen.add(*footprints, &session.coverage, family);
            let mut rules = self.rare.iter().filter_map(|mutant| mutant_of(Some(*mutant)));
            if new || rules.any(|rule| shown.asked.contains(rule)) {
                shown.kept = Some(outcome.kept.len());
                outcome.kept.push(self.kept(shown.asked, &shown.met));
            }
        }
        Some(shown)
    }

    /// Returns the schedules that a mutant gets.
    fn plan(&self, mutant: Mistake, shown: &PlainRuns, energy: &ScheduleBudget) -> SchedulePlan {
        let rule = mutant_of(Some(mutant));
        let (count, most) = match self.wanted == Some(mutant) {
            true => (energy.wanted, SEARCH.max(LONG_RUNS * shown.cost)),
            false => (energy.others, energy.share),
        };
        SchedulePlan {
            seed: self.seed,
            count,
            most,
            watched: rule,
            partners: rule.map_or_else(PassedRules::default, |rule| {
                PassedRules::numbered(meetings_of(&shown.met, rule))
            }),
            seeks: false,
        }
    }

    /// Returns whether a mutant breaks the contract, and whether it makes a difference.
    fn tries(
        &self,
        session: &mut Session<'_>,
        mutant: Mistake,
        plan: SchedulePlan,
        shown: &PlainRuns,
        outcome: &mut Outcome,
    ) -> (bool, bool) {
        let mut differs = false;
        let kills = self.kills(session, mutant, plan, outcome, &mut |seen| {
            let with = (seen.number, seen.print);
            let mut plain = shown.plain.iter();
            let found = plain.find(|(number, _)| *number == seen.number);
            differs |= !seen.lurks && found.is_some_and(|without| *without != with);
        });
        (kills, differs)
    }

    /// Records which mutants made a difference. Keeps the program if it is one of few in which a mutant does.
    fn note_differing(&self, differing: Vec<Mistake>, shown: &PlainRuns, outcome: &mut Outcome) {
        match shown.kept {
            Some(at) => outcome.kept[at].differs = differing,
            None if differing.iter().any(|mutant| self.unshown.contains(mutant)) => {
                outcome
                    .kept
                    .push(KeptProgram { differs: differing, ..self.kept(shown.asked, &shown.met) });
            }
            None => {}
        }
    }

    fn kept(&self, asked: PassedRules, met: &[PlacePair]) -> KeptProgram {
        KeptProgram {
            recorded: self.recorded.clone(),
            asked,
            met: met.into(),
            differs: Vec::new(),
            kills: false,
        }
    }

    /// Returns whether a mutant breaks the contract, while the same schedules without it don't.
    fn kills(
        &self,
        session: &mut Session<'_>,
        mutant: Mistake,
        plan: SchedulePlan,
        outcome: &mut Outcome,
        see: &mut dyn FnMut(RunObservation),
    ) -> bool {
        session.set_mistake(Some(mutant));
        let Some((schedule, violation)) = search(session, plan, &mut outcome.spent, see) else {
            return false;
        };
        session.set_mistake(None);
        if let Some((schedule, violation)) = search(session, plan, &mut outcome.spent, &mut |_| {})
        {
            outcome.finds.push(self.find(schedule, violation));
            return false;
        }
        outcome.kept.push(KeptProgram { kills: true, ..self.kept(session.asked(), &[]) });
        let recorded = RecordedProgram {
            mistake: Some(mutant),
            clause: Some(violation.clause.to_string()),
            schedule,
            ..self.recorded.clone()
        };
        outcome.killed.push(KilledMutant {
            mutant,
            find: Some(Finding { violation, recorded }),
            programs: outcome.spent.programs,
            schedules: outcome.spent.schedules,
        });
        true
    }

    /// Returns the record of a violation without a mutant.
    fn find(
        &self,
        schedule: Vec<Deviation>,
        violation: Violation,
    ) -> (RecordedProgram, Violation, u64) {
        let recorded = RecordedProgram { schedule, ..self.recorded.clone() };
        (recorded, violation, self.seed)
    }

    /// Runs a program further that holds so far: in every schedule, if it's small.
    fn look_longer(&self, rng: &mut Rng, session: &mut Session<'_>, outcome: &mut Outcome) {
        let small = match &self.recorded.program {
            Program::Engine { shape, cpu } => {
                let first = cpu.iter().all(|lane| lane.run.len() <= 4);
                cpu.len() == 2 && shape.first_cpu == 0 && shape.open_batches == 0 && first
            }
            Program::Calls { .. } => false,
        };
        let seed = rng.draw();
        if small && rng.below(24) == 0 {
            let plan = explore::Exploration {
                case: *session.case(),
                budget: Budget::Exhaustive(EVERY_SCHEDULE),
                seed,
                depth: 1,
            };
            let report = explore::explore(session, &plan, |_, _| true);
            // We count a fixed amount, because the number of distinct states depends on the stacks' contents.
            outcome.spent.moments += SEARCH;
            if let Some(failure) = report.failure {
                let found = self.find(failure.deviations, failure.violation);
                outcome.finds.push(found);
            }
            return;
        }
        let plan = SchedulePlan {
            seed,
            count: rng.weigh(&MORE_SCHEDULES),
            most: SEARCH,
            watched: None,
            partners: PassedRules::default(),
            seeks: false,
        };
        if let Some((schedule, violation)) = search(session, plan, &mut outcome.spent, &mut |_| {})
        {
            outcome.finds.push(self.find(schedule, violation));
        }
    }
}

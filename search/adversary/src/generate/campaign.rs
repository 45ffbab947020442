//! Searches generated programs for violations, and for programs that kill mutants.
//!
//! A campaign has rounds. In each round, several *lanes* draw programs (new ones, or changed ones of the corpus), run
//! them, and keep those with new footprints. Then the lanes' results are merged in order. A lane's work is measured in
//! scheduler decisions instead of time, and depends only on the seed, the round and earlier results. So a campaign
//! finds the same on any number of threads. Only the number of rounds depends on the host.
//!
//! If mutants are sought, each program first runs unchanged. The machine records the mutants' *rules* that the program
//! passes: the places in the code that mutants change. Only those mutants can make a difference. So the program then
//! runs with each of them that survives. A mutant dies when a schedule breaks the contract and the same schedule
//! without the mutant doesn't.
//!
//! Each program is drawn for one mutant: it's changed from a program that passes the mutant's rule, or from one that
//! has killed another mutant. A program that doesn't pass the rule gets some schedules in which it might.

pub use super::trial::{KeptProgram, KilledMutant};

use super::random::{self, LargePages};
use super::search::{WorkDone, mutant_of};
use super::shrink::{Finding, shrink};
use super::text::RecordedProgram;
use super::trial::{Outcome, Trial, may_show};
use crate::clearing;
use crate::footprint::{FootprintSet, PassedRules, meetings_of};
use crate::mistake::Mistake;
use crate::schedule::Rng;
use quell_vm::sim::heap::Heap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};

/// The number of lanes of a round.
const LANES: usize = 4;

/// The approximate number of moments that a lane's runs take in a round.
const MOMENTS: u64 = 3_000_000;

/// The number of given programs that are tried in a round.
const GIVEN: usize = 16 * LANES;

/// The maximum number of programs that we keep for a surviving mutant just because they pass its rule.
const REACHING: usize = 24;

/// A mutant may make a difference in fewer than one in this many of the programs that pass its rule. Then we search
/// longer in those where it does.
const SELDOM: usize = 8;

/// The number of violations after which the campaign stops.
const ENOUGH: usize = 5;

/// A search through generated programs.
#[derive(Debug)]
pub struct Campaign {
    seed: u64,
    threads: usize,
    round: u64,
    /// The given programs that weren't tried yet.
    waiting: Vec<RecordedProgram>,
    corpus: Vec<Arc<KeptProgram>>,
    /// The mutants whose rules programs over the engine pass.
    asked_by_engine: PassedRules,
    seen: FootprintSet,
    /// The mutants that are sought and not yet killed.
    pub alive: Vec<Mistake>,
    /// The mutants that were killed, in order.
    pub killed: Vec<KilledMutant>,
    /// The violations found without a mutant.
    pub finds: Vec<Finding>,
    /// The work so far.
    pub spent: WorkDone,
    /// The part of it that was spent for each mutant.
    efforts: Efforts,
    /// If this is set, a round ends soon, with its findings so far.
    ///
    /// Those findings depend on the moment at which it was set.
    pub stop: Arc<AtomicBool>,
    /// Whether each lane ends at its first violation and doesn't shrink it.
    pub hasty: bool,
    /// The fraction of new programs that are over the memory manager, if no mutant is sought: `(2, 5)` is two in five.
    pub over_manager: (u64, u64),
}

impl Campaign {
    /// Creates a campaign.
    ///
    /// Its findings depend on `seed`, `corpus` and the mutants `sought`, but not on the number of `threads`.
    ///
    /// # Panics
    /// If [`LineAllocator`](quell_vm::sim::LineAllocator) isn't the program's `#[global_allocator]`. With another
    /// allocator, runs over the manager would depend on the addresses of memory, so the same seed would draw different
    /// programs each time.
    pub fn new(
        seed: u64,
        threads: usize,
        corpus: Vec<RecordedProgram>,
        sought: &[Mistake],
    ) -> Self {
        assert!(
            Heap::new().is_some(),
            "a campaign draws the same programs from a seed each time only under `quell_vm::sim::LineAllocator`: make that the \
             program's `#[global_allocator]`"
        );
        let mut campaign = Campaign {
            seed,
            threads: threads.max(1),
            round: 0,
            waiting: corpus,
            corpus: Vec::new(),
            asked_by_engine: PassedRules::default(),
            seen: FootprintSet::default(),
            alive: sought.to_vec(),
            killed: Vec::new(),
            finds: Vec::new(),
            spent: WorkDone::default(),
            efforts: Efforts::default(),
            stop: Arc::default(),
            hasty: false,
            over_manager: (2, 5),
        };
        // No program can break guarantees of zeroing, so we check these mutants separately.
        campaign.alive.retain(|&mutant| {
            let broken = clearing::broken_by(mutant).is_some();
            if broken {
                campaign.killed.push(KilledMutant {
                    mutant,
                    find: None,
                    programs: 0,
                    schedules: 0,
                });
            }
            !broken
        });
        campaign
    }

    /// Returns the programs that the campaign keeps.
    pub fn corpus(&self) -> impl Iterator<Item = &RecordedProgram> {
        self.corpus.iter().map(|kept| &kept.recorded)
    }

    /// Returns the number of transitions and the number of pairs seen.
    ///
    /// [`footprint`](crate::footprint) defines both.
    pub fn seen(&self) -> (usize, usize) {
        (self.seen.transitions(), self.seen.pairs())
    }

    /// Returns whether there is nothing more to search. `seeks` is set if mutants are sought.
    pub fn is_over(&self, seeks: bool) -> bool {
        self.finds.len() >= ENOUGH || (seeks && self.alive.is_empty())
    }

    /// Returns the number of surviving mutants over schedules, with a point for each mutant killed.
    pub fn survival(&self) -> Vec<(u64, usize)> {
        let all = self.alive.len() + self.killed.len();
        let points = self.killed.iter().enumerate();
        points.map(|(number, killed)| (killed.schedules, all - number - 1)).collect()
    }

    /// Runs another round. It tries the given programs first, as long as there are any.
    pub fn go_round(&mut self) {
        let given = self.waiting.len().min(GIVEN);
        let given: Vec<RecordedProgram> = self.waiting.drain(..given).collect();
        let next = AtomicUsize::new(0);
        let outcomes: Mutex<Vec<(usize, Outcome)>> = Mutex::default();
        std::thread::scope(|scope| {
            for _ in 0..self.threads.min(LANES) {
                scope.spawn(|| {
                    loop {
                        let lane = next.fetch_add(1, Relaxed);
                        if lane >= LANES {
                            break;
                        }
                        let outcome = self.lane(lane, &given);
                        let mut all = outcomes.lock().unwrap_or_else(|broken| broken.into_inner());
                        all.push((lane, outcome));
                    }
                });
            }
        });
        let mut outcomes = outcomes.into_inner().unwrap_or_else(|broken| broken.into_inner());
        outcomes.sort_by_key(|(lane, _)| *lane);
        for (_, outcome) in outcomes {
            self.merge(outcome);
        }
        self.round += 1;
    }

    fn merge(&mut self, outcome: Outcome) {
        for mut killed in outcome.killed {
            if let Some(at) = self.alive.iter().position(|&m| m == killed.mutant) {
                self.alive.remove(at);
                killed.programs += self.spent.programs;
                killed.schedules += self.spent.schedules;
                self.killed.push(killed);
            }
        }
        for (recorded, violation, seed) in outcome.finds {
            if self.finds.len() < ENOUGH {
                let find = match self.hasty {
                    true => Finding { violation, recorded },
                    false => shrink(recorded, violation, seed, &self.stop),
                };
                let known = |other: &Finding| other.recorded.program == find.recorded.program;
                if !self.finds.iter().any(known) {
                    self.finds.push(find);
                }
            }
        }
        self.spent.programs += outcome.spent.programs;
        self.spent.schedules += outcome.spent.schedules;
        self.spent.moments += outcome.spent.moments;
        self.efforts.add(&outcome.efforts);
        self.seen.merge(&outcome.seen);
        for kept in outcome.kept {
            if !kept.recorded.program.uses_vm() {
                self.asked_by_engine.add(&kept.asked);
            }
            self.corpus.push(Arc::new(kept));
        }
    }

    fn lane(&self, lane: usize, given: &[RecordedProgram]) -> Outcome {
        let mut rng = Rng::stream(self.seed, self.round * LANES as u64 + lane as u64);
        let mut outcome = Outcome { seen: self.seen.clone(), ..Outcome::default() };
        let mut alive = self.alive.clone();
        let rare: Vec<Mistake> =
            { alive.iter().copied() }.filter(|mutant| self.reaching(*mutant) < REACHING).collect();
        let unshown: Vec<Mistake> =
            { alive.iter().copied() }.filter(|mutant| self.showing(*mutant) < REACHING).collect();
        let seldom: Vec<Mistake> = { alive.iter().copied() }
            .filter(|mutant| SELDOM * self.showing(*mutant) < self.reaching(*mutant))
            .collect();
        let mut given = given.iter().skip(lane).step_by(LANES);
        let most = if self.hasty { 1 } else { ENOUGH };
        let enough =
            |outcome: &Outcome| outcome.spent.moments >= MOMENTS || outcome.finds.len() >= most;
        while !self.stop.load(Relaxed) {
            let wanted = self.efforts.next(&mut rng, &alive);
            let recorded = match given.next() {
                Some(recorded) => recorded.clone(),
                None if enough(&outcome) => break,
                None => self.next_program(&mut rng, wanted),
            };
            let trial = Trial {
                recorded,
                seed: rng.draw(),
                wanted,
                rare: &rare,
                unshown: &unshown,
                seldom: &seldom,
                stop: &self.stop,
            };
            let before = outcome.spent.moments;
            trial.run(&mut alive, &mut outcome);
            if let Some(wanted) = wanted {
                let moments = outcome.spent.moments - before;
                outcome.efforts.count(wanted, moments);
            }
        }
        outcome
    }

    /// Returns how many of the kept programs pass the rule of a mutant.
    ///
    /// A mutant without a rule counts as passed by all. If few programs pass a rule, the grammar lacks operations that
    /// lead there, or draws them too rarely.
    pub fn reaching(&self, mutant: Mistake) -> usize {
        let comes_by = |kept: &&Arc<KeptProgram>| {
            mutant_of(Some(mutant)).is_none_or(|rule| kept.asked.contains(rule))
        };
        self.corpus.iter().filter(comes_by).count()
    }

    /// Returns the number of kept programs in which a mutant made a difference.
    pub fn showing(&self, mutant: Mistake) -> usize {
        let shows = |kept: &&Arc<KeptProgram>| kept.differs.contains(&mutant);
        self.corpus.iter().filter(shows).count()
    }

    /// Returns a new program, or a changed one of the corpus. If a mutant is sought, the latter passes its rule or has
    /// killed another mutant.
    fn next_program(&self, rng: &mut Rng, wanted: Option<Mistake>) -> RecordedProgram {
        let over_vm = match wanted {
            // Programs over the engine are short, so if they pass the mutant's rule, we search there.
            Some(wanted) => match mutant_of(Some(wanted)) {
                Some(rule) if wanted.is_the_managers() => !self.asked_by_engine.contains(rule),
                _ => wanted.is_the_managers() || rng.below(16) == 0,
            },
            None => rng.below(self.over_manager.1) < self.over_manager.0,
        };
        let mut recorded = self.changed(rng, wanted, over_vm).unwrap_or_else(|| {
            let like = self.one_that_comes_by(rng, wanted, over_vm);
            // Few kinds of operations pass the rule, and mostly a changed program does so, too.
            let about = { like.filter(|_| rng.below(4) > 0) }.map(|like| &like.recorded.program);
            let program = if over_vm {
                let few = wanted.is_some_and(|wanted| self.reaching(wanted) < REACHING);
                let large = match like.map(|like| like.recorded.program.has_large_pages()) {
                    Some(true) => LargePages::Always,
                    _ if few => LargePages::Often,
                    _ => LargePages::Seldom,
                };
                random::calls_program_like(rng, large, about)
            } else {
                random::engine_program_like(rng, about)
            };
            let mut recorded = random::place(rng, program);
            if let Some(like) = like {
                recorded.kind = like.recorded.kind;
            }
            recorded
        });
        if let Some(Mistake::Ordering(_)) = wanted
            && !recorded.kind.reorders
            && rng.below(8) > 0
        {
            recorded.kind = random::reordering_machine(rng);
        }
        recorded
    }

    /// Mostly returns a program that passes the rule of the wanted mutant. The new program is as large, and runs on the
    /// same machine.
    fn one_that_comes_by(
        &self,
        rng: &mut Rng,
        wanted: Option<Mistake>,
        over_vm: bool,
    ) -> Option<&KeptProgram> {
        let rule = mutant_of(wanted).filter(|_| rng.below(4) > 0)?;
        let fits = |kept: &&Arc<KeptProgram>| {
            kept.asked.contains(rule) && kept.recorded.program.uses_vm() == over_vm
        };
        let there: Vec<_> = self.corpus.iter().filter(fits).collect();
        shorter_of_two(rng, &there).map(|kept| &**kept)
    }

    /// Returns a changed program of the corpus, in six cases of ten.
    fn changed(
        &self,
        rng: &mut Rng,
        wanted: Option<Mistake>,
        over_vm: bool,
    ) -> Option<RecordedProgram> {
        if self.corpus.is_empty() || rng.below(10) < 4 {
            return None;
        }
        let fits = |kept: &&Arc<KeptProgram>| kept.recorded.program.uses_vm() == over_vm;
        let mut stock: Vec<_> = self.corpus.iter().filter(fits).collect();
        if let Some(wanted) = wanted {
            let shows =
                |kept: &Arc<KeptProgram>| may_show(wanted, &kept.asked, &kept.recorded.kind);
            match (rng.below(8), mutant_of(Some(wanted))) {
                // Prefer those that pass the rule too, if there are any.
                (0 | 1, _) => {
                    stock.retain(|kept| kept.kills);
                    if stock.iter().any(|kept| shows(kept)) {
                        stock.retain(|kept| shows(kept));
                    }
                }
                (2..4, _) | (4..7, None) => stock.retain(|kept| kept.differs.contains(&wanted)),
                // Each operation that others may be in the middle of gets the same chance.
                (4.., Some(rule)) => {
                    let meets =
                        |kept: &&Arc<KeptProgram>| meetings_of(&kept.met, rule).collect::<Vec<_>>();
                    let mut there: Vec<u16> = stock.iter().flat_map(meets).collect();
                    there.sort_unstable();
                    there.dedup();
                    if there.is_empty() {
                        stock.retain(|kept| shows(kept));
                    } else {
                        let one = rng.pick(&there);
                        stock.retain(|kept| meetings_of(&kept.met, rule).any(|other| other == one));
                    }
                }
                _ => stock.retain(|kept| shows(kept)),
            }
        }
        let chosen = shorter_of_two(rng, &stock)?;
        let other = &self.corpus[rng.below(self.corpus.len() as u64) as usize];
        let mut recorded = chosen.recorded.clone();
        random::change(rng, &mut recorded, &other.recorded);
        Some(recorded)
    }
}

/// Returns the shorter of two programs that are drawn. A shorter program has fewer irrelevant operations, and each
/// change to it matters more.
fn shorter_of_two<'k>(
    rng: &mut Rng,
    stock: &[&'k Arc<KeptProgram>],
) -> Option<&'k Arc<KeptProgram>> {
    let mut any = || stock.get(rng.below(stock.len().max(1) as u64) as usize).copied();
    let both = [any()?, any()?];
    both.into_iter().min_by_key(|kept| kept.recorded.program.operations())
}

/// The assumed work of an unknown program, in moments.
const UNKNOWN: u64 = 100_000;

/// The work of the programs that were drawn for a mutant.
#[derive(Clone, Copy, Debug)]
struct Effort {
    mutant: Mistake,
    programs: u64,
    moments: u64,
}

/// The work for each mutant.
///
/// Programs over the engine run for some hundred moments, those with large pages for twenty thousand. So we give all
/// mutants the same work, not the same number of programs. Otherwise mutants that short programs can kill would wait for
/// those that need long ones.
#[derive(Clone, Default, Debug)]
pub(super) struct Efforts(Vec<Effort>);

impl Efforts {
    fn of(&mut self, mutant: Mistake) -> &mut Effort {
        let known = self.0.iter().position(|effort| effort.mutant == mutant);
        let at = known.unwrap_or_else(|| {
            self.0.push(Effort { mutant, programs: 0, moments: 0 });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    /// Adds the moments of a program drawn for this mutant.
    pub(super) fn count(&mut self, mutant: Mistake, moments: u64) {
        let effort = self.of(mutant);
        effort.programs += 1;
        effort.moments += moments;
    }

    /// Adds the efforts of another lane.
    pub(super) fn add(&mut self, other: &Efforts) {
        for theirs in &other.0 {
            let effort = self.of(theirs.mutant);
            effort.programs += theirs.programs;
            effort.moments += theirs.moments;
        }
    }

    /// Draws a surviving mutant. Mutants whose programs need less work are drawn more often.
    pub(super) fn next(&self, rng: &mut Rng, alive: &[Mistake]) -> Option<Mistake> {
        let weight = |mutant: &Mistake| {
            let known = self.0.iter().find(|effort| effort.mutant == *mutant);
            let (programs, moments) = known.map_or((0, 0), |known| (known.programs, known.moments));
            1 + (UNKNOWN << 10) * (programs + 1) / (moments + UNKNOWN)
        };
        let weighed: Vec<(u64, Mistake)> = alive.iter().map(|one| (weight(one), *one)).collect();
        (!weighed.is_empty()).then(|| rng.weigh(&weighed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutants_get_the_same_work_however_long_their_programs_are() {
        let sought: Vec<Mistake> = Mistake::all().take(3).collect();
        let took = |mutant: Mistake| {
            [400_000, 20_000, 90_000][sought.iter().position(|one| *one == mutant).unwrap()]
        };
        let (mut rng, mut efforts) = (Rng::new(1), Efforts::default());
        for _ in 0..6000 {
            let mutant = efforts.next(&mut rng, &sought).unwrap();
            efforts.count(mutant, took(mutant));
        }
        let least = efforts.0.iter().map(|effort| effort.moments).min().unwrap();
        let most = efforts.0.iter().map(|effort| effort.moments).max().unwrap();
        assert!(efforts.0.len() == 3 && most < 2 * least, "{efforts:?}");
        assert_eq!(efforts.next(&mut rng, &[]).map(|mutant| mutant.name()), None);
    }
}

//! The search through generated programs, and the hunt for mutants in them.
//!
//! A campaign goes round by round. In a round some *lanes* each draw programs (new ones, or changed ones
//! of the corpus), run them, and keep what shows something new; after it their results are merged in
//! order. A lane's work is measured in decisions of the scheduler, not in time, and depends only on the
//! seed, the round and what earlier rounds have found; so a campaign finds the same on any number of
//! threads, and only how many rounds it gets depends on the host.
//!
//! Where mutants are hunted, each program is first run as it is. The machine notes which mistakes the code
//! asked about on the way, and only those can make a difference; the program is run with each of them that
//! is still alive. A mutant is dead when a schedule breaks the contract and the same schedules without it
//! do not. Each program is drawn for one of them: changed from a program that comes by its rule, or from one that has
//! killed another; and what does not come by the rule gets some schedules in which it might.

use super::random;
use super::search::{Share, Spent, rule_of, search};
use super::shrink::{Find, case, shrink};
use super::text::Recorded;
use crate::action::Deviation;
use crate::clearing;
use crate::explore::{self, Budget};
use crate::footprint::{Asked, Footprints, Seen};
use crate::generated::Program;
use crate::kind::MachineKind;
use crate::mistake::Mistake;
use crate::scenario::Scenario;
use crate::schedule::Rng;
use crate::session::Session;
use quell_contract::Violation;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// How many lanes a round has.
const LANES: usize = 4;

/// How many moments of runs a lane spends in a round, about.
const MOMENTS: u64 = 3_000_000;

/// How many of the programs that were given are tried in a round.
const GIVEN: usize = 16 * LANES;

/// Schedules of a program before it is judged by what it shows.
const FIRST_LOOK: u64 = 8;

/// Schedules in which a program may come by the rule of the mutant that it was drawn for, if it has not yet.
const SEEK: u64 = 32;

/// Programs that come by the rule of a living mutant are kept, whatever else they show, until there are so many.
const REACHING: usize = 24;

/// How many moments the searches of a program may take, about, those for all mutants together: programs
/// whose runs are long get fewer schedules.
const PROGRAM: u64 = 500_000;

/// How many moments one search of a program may take, about.
const SEARCH: u64 = 400_000;

/// How many times as many schedules as others the mutant gets that a program was drawn for.
const WANTED: u64 = 5;

/// And that many runs at least, however long they are.
const LONG_RUNS: u64 = 24;

/// Runs of every schedule that a small program gets.
const EVERY_SCHEDULE: u64 = 3_000;

/// After so many breaches there is enough to mend.
const ENOUGH: usize = 5;

/// A program that is kept because it showed something new.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The program on its machine.
    pub recorded: Recorded,
    asked: Asked,
    /// It has killed a mutant: what broke there is not far from what others break.
    kills: bool,
}

/// A mutant that was killed.
#[derive(Clone, Debug)]
pub struct Killed {
    /// Which.
    pub mutant: Mistake,
    /// The program, and the schedule in which it died; `None` if a promise that no access shows was broken.
    pub find: Option<Find>,
    /// Programs of the campaign until then.
    pub programs: u64,
    /// Schedules of the campaign until then, the lanes' one after another.
    pub schedules: u64,
}

/// A search through generated programs.
#[derive(Debug)]
pub struct Campaign {
    seed: u64,
    threads: usize,
    round: u64,
    /// Programs that were given, and not tried yet.
    waiting: Vec<Recorded>,
    corpus: Vec<Arc<Kept>>,
    /// At which mistakes programs over the engine come by.
    asked_by_engine: Asked,
    seen: Seen,
    /// Mistakes that are hunted and still alive.
    pub alive: Vec<Mistake>,
    /// Mistakes that were killed, in order.
    pub killed: Vec<Killed>,
    /// What broke without any mistake.
    pub finds: Vec<Find>,
    /// What was spent.
    pub spent: Spent,
    /// Once it is set, a round ends soon, with what it has found; what is found then depends on the moment.
    pub stop: Arc<AtomicBool>,
}

/// What a lane came to.
#[derive(Default)]
struct Outcome {
    spent: Spent,
    kept: Vec<Kept>,
    seen: Seen,
    killed: Vec<Killed>,
    finds: Vec<(Recorded, Violation, u64)>,
}

impl Campaign {
    /// A campaign. Nothing but `seed`, what is given in `corpus` and which mutants are hunted decides what it
    /// finds; `threads` says how many threads it takes.
    pub fn new(seed: u64, threads: usize, corpus: Vec<Recorded>, hunted: &[Mistake]) -> Self {
        let mut campaign = Campaign {
            seed,
            threads: threads.max(1),
            round: 0,
            waiting: corpus,
            corpus: Vec::new(),
            asked_by_engine: Asked::default(),
            seen: Seen::default(),
            alive: hunted.to_vec(),
            killed: Vec::new(),
            finds: Vec::new(),
            spent: Spent::default(),
            stop: Arc::default(),
        };
        // Promises that no program can break.
        campaign.alive.retain(|&mutant| {
            let broken = clearing::broken(Some(mutant)).is_some();
            if broken {
                campaign.killed.push(Killed {
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

    /// Programs that are kept.
    pub fn corpus(&self) -> impl Iterator<Item = &Recorded> {
        self.corpus.iter().map(|kept| &kept.recorded)
    }

    /// How many transitions and how many pairs of them were seen.
    pub fn seen(&self) -> (usize, usize) {
        (self.seen.transitions(), self.seen.pairs())
    }

    /// Whether there is nothing more to look for.
    pub fn is_over(&self, hunts: bool) -> bool {
        self.finds.len() >= ENOUGH || (hunts && self.alive.is_empty())
    }

    /// How many mutants lived after so many schedules: a point for each that was killed.
    pub fn survival(&self) -> Vec<(u64, usize)> {
        let all = self.alive.len() + self.killed.len();
        let points = self.killed.iter().enumerate();
        points
            .map(|(number, killed)| (killed.schedules, all - number - 1))
            .collect()
    }

    /// Goes another round: with the programs that were given, as long as some of them were not tried.
    pub fn go_round(&mut self) {
        let given = self.waiting.len().min(GIVEN);
        let given: Vec<Recorded> = self.waiting.drain(..given).collect();
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
        let mut outcomes = outcomes
            .into_inner()
            .unwrap_or_else(|broken| broken.into_inner());
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
                let find = shrink(recorded, violation, seed, &self.stop);
                let known = |other: &Find| other.recorded.program == find.recorded.program;
                if !self.finds.iter().any(known) {
                    self.finds.push(find);
                }
            }
        }
        self.spent.programs += outcome.spent.programs;
        self.spent.schedules += outcome.spent.schedules;
        self.spent.moments += outcome.spent.moments;
        self.seen.merge(&outcome.seen);
        for kept in outcome.kept {
            if !kept.recorded.program.is_managed() {
                self.asked_by_engine.add(&kept.asked);
            }
            self.corpus.push(Arc::new(kept));
        }
    }

    fn lane(&self, lane: usize, given: &[Recorded]) -> Outcome {
        let mut rng = Rng::stream(self.seed, self.round * LANES as u64 + lane as u64);
        let mut outcome = Outcome {
            seen: self.seen.clone(),
            ..Outcome::default()
        };
        let mut alive = self.alive.clone();
        let rare: Vec<Mistake> = alive.iter().copied().filter(|m| self.is_rare(*m)).collect();
        let mut given = given.iter().skip(lane).step_by(LANES);
        let enough =
            |outcome: &Outcome| outcome.spent.moments >= MOMENTS || outcome.finds.len() >= ENOUGH;
        while !self.stop.load(Relaxed) {
            let wanted = match alive.len() as u64 {
                0 => None,
                count => Some(alive[rng.below(count) as usize]),
            };
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
                stop: &self.stop,
            };
            trial.run(&mut alive, &mut outcome);
        }
        outcome
    }

    /// Whether few programs come by the rule of a mutant.
    fn is_rare(&self, mutant: Mistake) -> bool {
        let comes_by =
            |kept: &&Arc<Kept>| rule_of(Some(mutant)).is_none_or(|rule| kept.asked.contains(rule));
        self.corpus.iter().filter(comes_by).take(REACHING).count() < REACHING
    }

    /// A new program, or a changed one of the corpus: where a mutant is hunted, of those that come by its rule, or
    /// of those that have killed others.
    fn next_program(&self, rng: &mut Rng, wanted: Option<Mistake>) -> Recorded {
        let managed = match wanted {
            // Programs over the engine are short: where they come by a mistake, it is looked for there.
            Some(wanted) => match rule_of(Some(wanted)) {
                Some(rule) if wanted.is_the_managers() => !self.asked_by_engine.contains(rule),
                _ => wanted.is_the_managers() || rng.below(16) == 0,
            },
            None => rng.below(5) < 2,
        };
        let mut recorded = self.changed(rng, wanted, managed).unwrap_or_else(|| {
            let program = if managed {
                random::calls_program(rng)
            } else {
                random::engine_program(rng)
            };
            random::place(rng, program)
        });
        if let Some(Mistake::Ordering(_)) = wanted
            && !recorded.kind.reorders
            && rng.below(8) > 0
        {
            recorded.kind = random::reordering_machine(rng);
        }
        recorded
    }

    /// A changed program of the corpus, in six cases of ten.
    fn changed(&self, rng: &mut Rng, wanted: Option<Mistake>, managed: bool) -> Option<Recorded> {
        if self.corpus.is_empty() || rng.below(10) < 4 {
            return None;
        }
        let kills = wanted.is_some() && rng.below(4) == 0;
        let fits = |kept: &&Arc<Kept>| {
            let shows =
                wanted.is_none_or(|wanted| may_show(wanted, &kept.asked, &kept.recorded.kind));
            kept.recorded.program.is_managed() == managed && if kills { kept.kills } else { shows }
        };
        let stock: Vec<_> = self.corpus.iter().filter(fits).collect();
        let chosen = stock.get(rng.below(stock.len().max(1) as u64) as usize)?;
        let other = &self.corpus[rng.below(self.corpus.len() as u64) as usize];
        let mut recorded = chosen.recorded.clone();
        random::change(rng, &mut recorded, &other.recorded);
        Some(recorded)
    }
}

/// Whether a mistake can make a difference where these rules were asked about, on this machine. At the boundary to
/// the machine nobody asks.
fn may_show(mistake: Mistake, asked: &Asked, kind: &MachineKind) -> bool {
    match mistake {
        Mistake::Rule(rule) => asked.contains(rule),
        Mistake::Ordering(weakened) => weakened.shows_on(kind),
        Mistake::Boundary(_) => true,
    }
}

/// A program that is tried.
struct Trial<'c> {
    recorded: Recorded,
    seed: u64,
    /// The mutant that it was drawn for, which gets most of the schedules.
    wanted: Option<Mistake>,
    /// Mutants whose rules few programs come by.
    rare: &'c [Mistake],
    stop: &'c AtomicBool,
}

impl Trial<'_> {
    /// Runs the program, as it is and with each mistake of `alive` that it comes by; those found go from there.
    fn run(self, alive: &mut Vec<Mistake>, outcome: &mut Outcome) {
        outcome.spent.programs += 1;
        let scenario = Scenario::generated("generated", &self.recorded.program);
        let mut session = Session::new(case(&self.recorded, &scenario));
        session.watch(Some(Box::<Footprints>::default()));
        let plan = Share {
            seed: self.seed,
            count: FIRST_LOOK,
            most: SEARCH / 4,
            watched: None,
            seeks: false,
        };
        let before = outcome.spent;
        let found = search(&mut session, plan, &mut outcome.spent);
        let footprints = session.watch(None);
        if let Some((schedule, violation)) = found {
            outcome.finds.push(self.find(schedule, violation));
            return;
        }
        if let Some(rule) = rule_of(self.wanted).filter(|rule| !session.asked.contains(rule)) {
            let plan = Share {
                count: SEEK,
                watched: Some(rule),
                seeks: true,
                ..plan
            };
            if let Some((schedule, violation)) = search(&mut session, plan, &mut outcome.spent) {
                outcome.finds.push(self.find(schedule, violation));
                return;
            }
        }
        let asked = session.asked;
        if let Some(footprints) = footprints {
            let family = u64::from(self.recorded.kind.broadcasts());
            let new = outcome.seen.add(*footprints, &session.coverage, family);
            let rules = self.rare.iter().filter_map(|mutant| rule_of(Some(*mutant)));
            if new || { rules }.any(|rule| asked.contains(rule)) {
                outcome.kept.push(Kept {
                    recorded: self.recorded.clone(),
                    asked,
                    kills: false,
                });
            }
        }
        let mut rng = Rng::new(self.seed);
        if alive.is_empty() {
            self.look_longer(&mut rng, &mut session, outcome);
            return;
        }
        let schedules = outcome.spent.schedules - before.schedules;
        let cost = (outcome.spent.moments - before.moments) / schedules.max(1);
        // The right program is rarer than the right schedule of it.
        let count = match rng.below(16) {
            0..10 => 6,
            10..15 => 24,
            _ => 80,
        };
        let asking = alive
            .iter()
            .filter(|mutant| may_show(**mutant, &asked, &self.recorded.kind));
        let share = (PROGRAM / (asking.count() as u64).max(1)).min(SEARCH);
        alive.retain(|&mutant| {
            if !may_show(mutant, &asked, &self.recorded.kind) || self.stop.load(Relaxed) {
                return true;
            }
            let wanted = self.wanted == Some(mutant);
            let plan = Share {
                seed: self.seed,
                count: if wanted { WANTED * count } else { count },
                most: if wanted {
                    SEARCH.max(LONG_RUNS * cost)
                } else {
                    share
                },
                watched: rule_of(Some(mutant)),
                seeks: false,
            };
            !self.kills(&mut session, mutant, plan, outcome)
        });
    }

    /// Whether a mutant breaks the contract, and the same schedules without it do not.
    fn kills(
        &self,
        session: &mut Session<'_>,
        mutant: Mistake,
        plan: Share,
        outcome: &mut Outcome,
    ) -> bool {
        session.set_mistake(Some(mutant));
        let Some((schedule, violation)) = search(session, plan, &mut outcome.spent) else {
            return false;
        };
        session.set_mistake(None);
        if let Some((schedule, violation)) = search(session, plan, &mut outcome.spent) {
            outcome.finds.push(self.find(schedule, violation));
            return false;
        }
        outcome.kept.push(Kept {
            recorded: self.recorded.clone(),
            asked: session.asked,
            kills: true,
        });
        let recorded = Recorded {
            mistake: Some(mutant),
            clause: Some(violation.clause.to_string()),
            schedule,
            ..self.recorded.clone()
        };
        outcome.killed.push(Killed {
            mutant,
            find: Some(Find {
                violation,
                recorded,
            }),
            programs: outcome.spent.programs,
            schedules: outcome.spent.schedules,
        });
        true
    }

    /// What breaks the contract without any mistake.
    fn find(&self, schedule: Vec<Deviation>, violation: Violation) -> (Recorded, Violation, u64) {
        let recorded = Recorded {
            schedule,
            ..self.recorded.clone()
        };
        (recorded, violation, self.seed)
    }

    /// A program that holds so far is run some more: in every schedule, if it is small.
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
            let plan = explore::Campaign {
                case: *session.case(),
                budget: Budget::Exhaustive(EVERY_SCHEDULE),
                seed,
                depth: 1,
            };
            let report = explore::explore(session, &plan, |_, _| true);
            // As if it had taken that: which states a search tells apart depends on what lies on its stacks.
            outcome.spent.moments += SEARCH;
            if let Some(failure) = report.failure {
                let found = self.find(failure.deviations, failure.violation);
                outcome.finds.push(found);
            }
            return;
        }
        let plan = Share {
            seed,
            count: [0, 0, 40, 200, 1000][rng.below(5) as usize],
            most: 2 * SEARCH,
            watched: None,
            seeks: false,
        };
        if let Some((schedule, violation)) = search(session, plan, &mut outcome.spent) {
            outcome.finds.push(self.find(schedule, violation));
        }
    }
}

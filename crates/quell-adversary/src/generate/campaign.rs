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
//! do not.

use super::random;
use super::search::{Spent, search};
use super::shrink::{Find, case, shrink};
use super::text::Recorded;
use crate::clearing;
use crate::explore::{self, Budget};
use crate::footprint::{Asked, Footprints, Seen};
use crate::generated::Program;
use crate::mistake::Mistake;
use crate::scenario::Scenario;
use crate::schedule::Rng;
use crate::session::Session;
use quell_contract::Violation;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// How many lanes a round has.
const LANES: usize = 4;

/// How many moments of runs a lane spends in a round, about.
const MOMENTS: u64 = 3_000_000;

/// Schedules of a program before it is judged by what it shows.
const FIRST_LOOK: u64 = 12;

/// How many moments the searches of a program may take, about, those for all mutants together: programs
/// whose runs are long get fewer schedules.
const PROGRAM: u64 = 500_000;

/// How many moments one search of a program may take, about.
const SEARCH: u64 = 400_000;

/// After so many breaches there is enough to mend.
const ENOUGH: usize = 5;

/// A program that is kept because it showed something new.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The program on its machine.
    pub recorded: Recorded,
    asked: Asked,
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
            corpus: Vec::new(),
            asked_by_engine: Asked::default(),
            seen: Seen::default(),
            alive: hunted.to_vec(),
            killed: Vec::new(),
            finds: Vec::new(),
            spent: Spent::default(),
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
        for (number, recorded) in corpus.into_iter().enumerate() {
            let seed = seed.wrapping_add(number as u64);
            let mut outcome = Outcome::default();
            let mut alive = campaign.alive.clone();
            try_out(recorded, seed, &mut alive, &mut outcome);
            campaign.merge(outcome);
        }
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

    /// Goes another round.
    pub fn go_round(&mut self) {
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
                        let outcome = self.lane(lane as u64);
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
                let find = shrink(recorded, violation, seed);
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

    fn lane(&self, lane: u64) -> Outcome {
        let mut rng = Rng::stream(self.seed, self.round * LANES as u64 + lane);
        let mut outcome = Outcome {
            seen: self.seen.clone(),
            ..Outcome::default()
        };
        let mut alive = self.alive.clone();
        while outcome.spent.moments < MOMENTS && outcome.finds.len() < ENOUGH {
            let recorded = self.next_program(&mut rng, &alive);
            try_out(recorded, rng.draw(), &mut alive, &mut outcome);
        }
        outcome
    }

    /// A new program, or a changed one of the corpus: where mutants are hunted, of those that come by one
    /// that is alive.
    fn next_program(&self, rng: &mut Rng, alive: &[Mistake]) -> Recorded {
        let wanted = match alive.len() as u64 {
            0 => None,
            count => Some(alive[rng.below(count) as usize]),
        };
        // Programs over the engine are short: where they come by a mistake, it is looked for there.
        let managed = match wanted {
            Some(wanted) if !self.corpus.is_empty() => {
                !may_show(wanted, &self.asked_by_engine) || rng.below(16) == 0
            }
            _ => rng.below(5) < 2,
        };
        if self.corpus.is_empty() || rng.below(10) < 4 {
            let program = if managed {
                random::calls_program(rng)
            } else {
                random::engine_program(rng)
            };
            return random::place(rng, program);
        }
        let mut pick = || &self.corpus[rng.below(self.corpus.len() as u64) as usize];
        let mut chosen = pick();
        let other = Arc::clone(pick());
        for _ in 0..64 {
            let asked = wanted.is_none_or(|wanted| may_show(wanted, &chosen.asked));
            if asked && chosen.recorded.program.is_managed() == managed {
                break;
            }
            chosen = pick();
        }
        let mut recorded = chosen.recorded.clone();
        random::change(rng, &mut recorded, &other.recorded);
        recorded
    }
}

/// Whether a mistake can make a difference where these rules were asked about. At the boundary to the machine,
/// and of orderings, nobody asks.
fn may_show(mistake: Mistake, asked: &Asked) -> bool {
    match mistake {
        Mistake::Rule(rule) => asked.contains(rule),
        Mistake::Boundary(_) | Mistake::Ordering(_) => true,
    }
}

/// Runs a program, as it is and with each mistake of `alive` that it comes by; those found go from there.
fn try_out(recorded: Recorded, seed: u64, alive: &mut Vec<Mistake>, outcome: &mut Outcome) {
    outcome.spent.programs += 1;
    let scenario = Scenario::generated("generated", &recorded.program);
    let mut session = Session::new(case(&recorded, &scenario));
    session.watch(Some(Box::<Footprints>::default()));
    let found = search(
        &mut session,
        seed,
        FIRST_LOOK,
        SEARCH / 4,
        &mut outcome.spent,
    );
    let footprints = session.watch(None);
    if let Some((schedule, violation)) = found {
        let recorded = Recorded {
            schedule,
            ..recorded.clone()
        };
        outcome.finds.push((recorded, violation, seed));
        return;
    }
    let asked = session.asked;
    if let Some(footprints) = footprints {
        let family = u64::from(recorded.kind.broadcasts());
        if outcome.seen.add(*footprints, &session.coverage, family) {
            outcome.kept.push(Kept {
                recorded: recorded.clone(),
                asked,
            });
        }
    }
    let mut rng = Rng::new(seed);
    if alive.is_empty() {
        look_longer(&mut rng, &recorded, &mut session, outcome);
        return;
    }
    let count = match rng.below(16) {
        0..9 => 8,
        9..13 => 24,
        13..15 => 80,
        _ => 400,
    };
    let asking = alive
        .iter()
        .filter(|mutant| may_show(**mutant, &asked))
        .count() as u64;
    let most = (PROGRAM / asking.max(1)).min(SEARCH);
    // The same for everybody, and once.
    let mut holds = None;
    alive.retain(|&mutant| {
        if !may_show(mutant, &asked) {
            return true;
        }
        session.set_mistake(Some(mutant));
        let Some((schedule, violation)) =
            search(&mut session, seed, count, most, &mut outcome.spent)
        else {
            return true;
        };
        session.set_mistake(None);
        let holds = *holds.get_or_insert_with(|| {
            search(&mut session, seed, count, most, &mut outcome.spent).is_none()
        });
        if !holds {
            return true;
        }
        let recorded = Recorded {
            mistake: Some(mutant),
            clause: Some(violation.clause.to_string()),
            schedule,
            ..recorded.clone()
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
        false
    });
}

/// Runs of every schedule that a small program gets.
const EVERY_SCHEDULE: u64 = 3_000;

/// A program that holds so far is run some more: in every schedule, if it is small.
fn look_longer(
    rng: &mut Rng,
    recorded: &Recorded,
    session: &mut Session<'_>,
    outcome: &mut Outcome,
) {
    let small = match &recorded.program {
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
        // Which states a search tells apart, and so how many schedules it takes, depends on what lies on its stacks. They
        // are not counted, and its moments are as if it had taken that many: a campaign spends the same on every host.
        outcome.spent.moments += SEARCH;
        if let Some(failure) = report.failure {
            let recorded = Recorded {
                schedule: failure.deviations,
                ..recorded.clone()
            };
            outcome.finds.push((recorded, failure.violation, seed));
        }
        return;
    }
    let count = [0, 0, 40, 200, 1000][rng.below(5) as usize];
    if let Some((schedule, violation)) =
        search(session, seed, count, 2 * SEARCH, &mut outcome.spent)
    {
        let recorded = Recorded {
            schedule,
            ..recorded.clone()
        };
        outcome.finds.push((recorded, violation, seed));
    }
}

//! The schedulers, which choose what happens next.
//!
//! At every point of a run some *actions* are possible: a CPU does its next step, takes an interrupt or an NMI, is
//! preempted, or one of its buffered stores becomes visible. A [`Strategy`] picks one. Whatever it is, the run can be
//! written down as its deviations from one fixed scheduler, which goes on with the same CPU as long as that can move
//! ([`default_action`]); so every run replays from a short list, and shrinking means leaving deviations out. The file
//! is long because all of them are arms of one choice, which a run makes at every step.
//!
//! * **Random**: goes on with the same CPU, or, with a probability drawn once per run, picks
//!   uniformly.
//! * **PCT** (Burckhardt et al., ASPLOS 2010): a random priority for each actor, and `depth - 1`
//!   random moments at which the one that runs falls to the lowest. A bug that needs `d` ordering
//!   constraints is found with a probability of at least 1/(n·k^(d-1)) per run.
//! * **Exhaustive**: every schedule, see [`search`](crate::search).

use crate::action::{
    ACTIONS, Action, Actions, DATA, Deviation, actor_of, default_action, members, nth,
};
use crate::search::Exhaustive;
use rand::{Rng as _, RngExt};
use rand_pcg::Pcg64;

/// The random generator of schedules and programs.
#[derive(Clone, Debug)]
pub struct Rng(Pcg64);

impl Rng {
    /// Creates the generator of a seed.
    pub fn new(seed: u64) -> Self {
        Rng::stream(seed, 0)
    }

    /// One of many independent sequences that are drawn from one seed.
    pub fn stream(seed: u64, number: u64) -> Self {
        Rng(Pcg64::new(seed.into(), number.into()))
    }

    /// 64 random bits.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`, which is not zero.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.random_range(0..bound)
    }
}

/// The stream of a run's seed for early loads; the first stream determines the actions. So a machine without early
/// loads draws the same schedules with or without this one.
const LOADS: u64 = 1;

/// How loads are satisfied early in a run: drawn once, so that some runs do it often and some never.
#[derive(Clone, Debug)]
struct Early {
    rng: Rng,
    /// How many more loads are.
    left: u32,
    /// One in this many possible early loads is early.
    one_in: u64,
    /// How many older values they may return.
    depth: u64,
}

impl Early {
    fn draw(seed: u64) -> Self {
        let mut rng = Rng::stream(seed, LOADS);
        let draw = rng.draw();
        Early {
            rng,
            left: [0, 1, 1, 2, 2, 4, 8, u32::MAX][draw as usize % 8],
            one_in: 1 << (draw >> 8 & 3),
            depth: 1 + (draw >> 16 & 3),
        }
    }

    fn pick(&mut self, count: usize) -> usize {
        if self.left == 0 || self.rng.below(self.one_in) > 0 {
            return 0;
        }
        self.left -= 1;
        let depth = (count as u64 - 1).min(self.depth);
        1 + self.rng.below(depth) as usize
    }
}

/// The state of a uniformly random scheduler.
#[derive(Debug)]
pub struct Random {
    rng: Rng,
    /// The number of free decisions, of 2^32.
    freedom: u64,
    /// The draw for this decision.
    drawn: u64,
    /// No CPU stalls or is to be interrupted in the whole run.
    keeps_on: bool,
    /// CPUs that get no turn for a while, unless no other CPU can do anything.
    stalls: [Stall; 2],
    early: Early,
    /// How often CPUs still stall where they come by the rule that is watched.
    lurks: u32,
    /// They stall at one in this many visits.
    lurks_one_in: u64,
    /// They do so where they have taken something away in a table, instead.
    lurks_at_changes: bool,
    /// Whether CPUs are sometimes interrupted there instead, as far as anything can interrupt them.
    prompts: bool,
    /// The CPU that is to be interrupted, and from which decision on.
    prompted: Option<(usize, u32)>,
}

/// For how many decisions a CPU may turn out to be interruptible.
const PROMPT: u32 = 32;

/// A CPU that gets no turn from one decision to another.
#[derive(Clone, Copy, Debug, Default)]
struct Stall {
    cpu: usize,
    from: u32,
    until: u32,
}

impl Random {
    /// One under which no CPU stalls.
    fn new(rng: Rng, freedom: u64, seed: u64) -> Self {
        Random {
            rng,
            freedom,
            drawn: 0,
            keeps_on: true,
            stalls: Default::default(),
            early: Early::draw(seed),
            lurks: 0,
            lurks_one_in: 1,
            lurks_at_changes: false,
            prompts: false,
            prompted: None,
        }
    }

    /// A CPU comes by the rule that is watched: now and then it stalls right there.
    fn come_by(&mut self, cpu: usize, decision: u32) {
        if self.lurks == 0 || self.rng.below(self.lurks_one_in) > 0 {
            return;
        }
        self.lurks -= 1;
        // A mistake there may show only some steps further on.
        let delay = match self.rng.below(4) {
            0 => 0,
            1 => self.rng.below(3) as u32,
            2 => self.rng.below(8) as u32,
            _ => self.rng.below(64) as u32,
        };
        let decision = decision.saturating_add(delay);
        if self.prompts && self.rng.below(2) == 0 {
            self.prompted = Some((cpu, decision));
            return;
        }
        let length = match self.rng.below(4) {
            2.. if self.lurks_at_changes => u32::MAX,
            0..2 => 8 + self.rng.below(64) as u32,
            2 => 400,
            _ => u32::MAX,
        };
        self.stalls[1] = self.stalls[0];
        self.stalls[0] = Stall {
            cpu,
            from: decision,
            until: decision.saturating_add(length),
        };
    }

    /// Returns the action that interrupts a CPU, if it is due now.
    fn prompt(&mut self, decision: u32, enabled: Actions) -> Actions {
        let Some((cpu, from)) = self.prompted.filter(|(_, from)| decision >= *from) else {
            return 0;
        };
        let own =
            Action::preempt(cpu).bit() | Action::nmi(cpu).bit() | Action::interrupt(cpu).bit();
        let own = own & enabled;
        if own != 0 || decision - from > PROMPT {
            self.prompted = None;
        }
        own
    }

    /// Draws for a decision, and whether that leaves the CPU that ran its turn.
    #[inline]
    fn draws_to_go_on(&mut self) -> bool {
        self.drawn = self.rng.draw();
        self.drawn & 0xffff_ffff >= self.freedom
    }

    /// Returns whether no CPU stalls at this decision, and none is to be interrupted.
    #[inline(never)]
    fn lets_go_on(&self, decision: u32) -> bool {
        self.stalled(decision) == 0 && self.prompted.is_none()
    }

    /// Returns the actions that do not happen at this decision if any other can.
    #[inline]
    fn stalled(&self, decision: u32) -> Actions {
        let active = self.stalls.iter();
        let active = active.filter(|stall| (stall.from..stall.until).contains(&decision));
        active.fold(0, |set, stall| {
            set | Action::step(stall.cpu).bit() | Action::interrupt(stall.cpu).bit()
        })
    }
}

/// The state of a priority-based scheduler.
#[derive(Debug)]
pub struct Pct {
    rng: Rng,
    /// The greater, the sooner. All actions of an actor have the same.
    priority: [u32; ACTIONS],
    changes: [u32; 8],
    /// The next of the changes.
    change: u32,
    lowest: u32,
    decision: u32,
    /// Nothing else was possible at the last decision, which then does not count.
    alone: bool,
    early: Early,
}

/// A scheduler.
#[derive(Debug)]
pub enum Strategy {
    /// Uniformly random.
    Random(Random),
    /// Priority-based.
    Pct(Box<Pct>),
    /// Depth-first.
    Exhaustive(Exhaustive),
    /// The fixed scheduler with deviations.
    Script(Script),
}

/// Deviations from the fixed scheduler.
#[derive(Debug)]
pub struct Script {
    /// In ascending order of decisions.
    pub(crate) deviations: Vec<Deviation>,
    /// The first that was not reached yet.
    next: usize,
}

impl Script {
    /// Returns the deviation at this decision, which is no earlier than at the last call.
    fn at(&mut self, decision: u32) -> Option<u8> {
        while *self.deviations.get(self.next)? < (decision, 0) {
            self.next += 1;
        }
        let &(at, choice) = &self.deviations[self.next];
        (at == decision).then_some(choice)
    }
}

impl Default for Strategy {
    /// The fixed scheduler.
    fn default() -> Self {
        Strategy::script(Vec::new())
    }
}

impl Strategy {
    /// A random scheduler.
    pub fn random(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let freedom = (1u64 << 32) >> rng.below(6);
        Strategy::Random(Random::new(rng, freedom, seed))
    }

    /// Creates a random scheduler under which a CPU stalls now and then where it passes the watched rule, or a little
    /// later, because others must intervene there if the rule matters. If it `prompts`, the intervention may be an
    /// interrupt of the CPU itself.
    pub fn lurking(seed: u64, prompts: bool) -> Self {
        let mut strategy = Strategy::random(seed);
        if let Strategy::Random(random) = &mut strategy {
            // Of a stall at each visit the later ones would never see anything.
            let draw = random.rng.draw();
            random.keeps_on = false;
            random.lurks = [1, 1, 2, u32::MAX][draw as usize % 4];
            random.lurks_one_in = [1, 2, 2, 3, 4, 8, 16, 64][(draw >> 8) as usize % 8];
            random.prompts = prompts;
        }
        strategy
    }

    /// The same where a CPU has removed an entry, or a right, from a table and no CPU has flushed yet: every other CPU
    /// relies on the unfinished change. Mostly it stalls until no other CPU can act.
    pub(crate) fn changing(seed: u64, prompts: bool) -> Self {
        let mut strategy = Strategy::random(seed);
        if let Strategy::Random(random) = &mut strategy {
            let draw = random.rng.draw();
            random.keeps_on = false;
            random.lurks = [1, 1, 2, u32::MAX][draw as usize % 4];
            random.lurks_one_in = [1, 1, 2, 4][(draw >> 8) as usize % 4];
            random.lurks_at_changes = true;
            random.prompts = prompts && draw >> 16 & 3 == 0;
        }
        strategy
    }

    /// CPU `cpu` has taken something away in a table.
    #[inline]
    pub(crate) fn has_changed_table(&mut self, cpu: usize, decision: u32) {
        if let Strategy::Random(random) = self
            && random.lurks_at_changes
        {
            random.come_by(cpu, decision);
        }
    }

    /// CPU `cpu` comes by the rule that the run watches.
    pub(crate) fn come_by(&mut self, cpu: usize, decision: u32) {
        if let Strategy::Random(random) = self
            && !random.lurks_at_changes
        {
            random.come_by(cpu, decision);
        }
    }

    /// A random scheduler under which one or two of `cpus` CPUs stall, in runs of about `steps` decisions:
    /// for some of them, for many, or until no other CPU can do anything.
    pub fn stalling(seed: u64, cpus: usize, steps: u32) -> Self {
        let mut rng = Rng::new(seed);
        let mut stalls = [Stall::default(); 2];
        let count = 1 + rng.below(2) as usize;
        for stall in &mut stalls[..count] {
            // A CPU that starts late meets the others in the middle of their operations.
            let from = match rng.below(4) {
                0 => 0,
                _ => rng.below(steps.max(1).into()) as u32,
            };
            let length = match rng.below(4) {
                0 => 8 + rng.below(64) as u32,
                1 => steps,
                2 => rng.below(steps.max(1).into()) as u32,
                _ => u32::MAX - from,
            };
            *stall = Stall {
                cpu: rng.below(cpus as u64) as usize,
                from,
                until: from.saturating_add(length),
            };
        }
        let freedom = (1u64 << 32) >> rng.below(6);
        Strategy::Random(Random {
            keeps_on: false,
            stalls,
            ..Random::new(rng, freedom, seed)
        })
    }

    /// A priority-based scheduler for bugs of this depth, in runs of about `steps` decisions.
    pub fn pct(seed: u64, depth: u32, steps: u32) -> Self {
        let mut rng = Rng::new(seed);
        let mut priority = [0; ACTIONS];
        for place in &mut priority {
            *place = 1 << 16 | rng.below(1 << 16) as u32;
        }
        for action in 0..ACTIONS {
            priority[action] = priority[actor_of(Action(action as u8))];
        }
        let mut changes = [u32::MAX; 8];
        for place in changes.iter_mut().take(depth.saturating_sub(1) as usize) {
            *place = rng.below(steps.max(1).into()) as u32;
        }
        Strategy::Pct(Box::new(Pct {
            rng,
            priority,
            changes,
            change: next_of(&changes, 0),
            lowest: 1 << 16,
            decision: 0,
            alone: false,
            early: Early::draw(seed),
        }))
    }

    /// The fixed scheduler with deviations.
    pub fn script(deviations: Vec<Deviation>) -> Self {
        Strategy::Script(Script {
            deviations,
            next: 0,
        })
    }

    /// Whether the CPU that ran goes on at this decision, if it can: then it is not worth finding out what else could
    /// happen. `repeats` says that it can, that it was picked last, and that what may happen has not changed since.
    #[inline(always)]
    pub fn goes_on(&mut self, decision: u32, repeats: bool) -> bool {
        match self {
            Strategy::Random(random) => {
                random.draws_to_go_on() && (random.keeps_on || random.lets_go_on(decision))
            }
            Strategy::Pct(pct) => repeats && pct.repeats(),
            Strategy::Exhaustive(_) => false,
            Strategy::Script(_) => self.follows(decision),
        }
    }

    /// The same of strategies that need not look for that, `None` of others, which then were not asked.
    #[inline(always)]
    pub(crate) fn goes_on_at_once(&mut self, repeats: bool) -> Option<bool> {
        match self {
            Strategy::Random(random) if random.keeps_on => Some(random.draws_to_go_on()),
            Strategy::Pct(pct) => Some(repeats && pct.repeats()),
            _ => None,
        }
    }

    /// Whether a script has nothing to say about this decision.
    #[inline(never)]
    fn follows(&mut self, decision: u32) -> bool {
        match self {
            Strategy::Script(script) => script.at(decision).is_none(),
            _ => false,
        }
    }

    /// Picks one of `enabled`, which is not empty, after [`Strategy::goes_on`] was asked.
    ///
    /// # Panics
    /// If this is the search of all schedules: it is asked by itself ([`Exhaustive::pick`]).
    #[inline]
    pub fn pick(&mut self, decision: u32, enabled: Actions, current: usize) -> Action {
        let usual = || default_action(enabled, current);
        match self {
            Strategy::Random(random) => {
                let bits = random.drawn;
                let prompt = random.prompt(decision, enabled);
                if prompt != 0 {
                    return nth(prompt, (bits >> 32) as u32 % prompt.count_ones());
                }
                let others = enabled & !random.stalled(decision);
                let enabled = if others == 0 { enabled } else { others };
                if bits & 0xffff_ffff >= random.freedom
                    && let Some(usual) = default_action(enabled, current)
                {
                    return usual;
                }
                let count = u64::from(enabled.count_ones());
                nth(enabled, (((bits >> 32) * count) >> 32) as u32)
            }
            Strategy::Pct(pct) => pct.pick(enabled),
            Strategy::Script(script) => {
                if let Some(choice) = script.at(decision)
                    && choice & DATA == 0
                    && enabled & 1u64.checked_shl(choice.into()).unwrap_or(0) != 0
                {
                    return Action(choice);
                }
                usual().unwrap_or_else(|| nth(enabled, 0))
            }
            Strategy::Exhaustive(_) => unreachable!("a search is asked by itself"),
        }
    }

    /// Picks which of `count` values a load returns: 0 is the newest.
    pub(crate) fn pick_early(&mut self, decision: u32, count: usize) -> usize {
        match self {
            Strategy::Random(random) => random.early.pick(count),
            Strategy::Pct(pct) => pct.early.pick(count),
            Strategy::Script(_) | Strategy::Exhaustive(_) => self.pick_data(decision, count),
        }
    }

    /// Picks one of `count` alternatives.
    pub fn pick_data(&mut self, decision: u32, count: usize) -> usize {
        match self {
            Strategy::Random(random) => random.rng.below(count as u64) as usize,
            Strategy::Pct(pct) => pct.rng.below(count as u64) as usize,
            Strategy::Script(script) => match script.at(decision) {
                Some(choice) if choice & DATA != 0 => usize::from(choice & !DATA).min(count - 1),
                _ => 0,
            },
            Strategy::Exhaustive(search) => search.pick_data(count),
        }
    }
}

/// The first of the changes of priorities behind this decision.
fn next_of(changes: &[u32], decision: u32) -> u32 {
    let behind = changes.iter().filter(|&&change| change > decision);
    behind.copied().min().unwrap_or(u32::MAX)
}

impl Pct {
    /// Picks what it has picked last of the same actions, unless priorities change; whether it does.
    #[inline]
    fn repeats(&mut self) -> bool {
        if self.alone {
            return true;
        }
        let repeats = self.decision + 1 != self.change;
        self.decision += u32::from(repeats);
        repeats
    }

    #[inline]
    pub(crate) fn pick(&mut self, enabled: Actions) -> Action {
        self.alone = enabled.is_power_of_two();
        if self.alone {
            return nth(enabled, 0);
        }
        self.decision += 1;
        let first = self.foremost(enabled);
        if self.decision == self.change {
            self.change = next_of(&self.changes, self.decision);
            self.fall(actor_of(first));
            return self.foremost(enabled);
        }
        first
    }

    /// The actor comes after all others from here on.
    #[cold]
    fn fall(&mut self, actor: usize) {
        self.lowest -= 1;
        for action in 0..ACTIONS {
            if actor_of(Action(action as u8)) == actor {
                self.priority[action] = self.lowest;
            }
        }
    }

    #[inline]
    fn foremost(&self, enabled: Actions) -> Action {
        members(enabled)
            .max_by_key(|&action| self.priority[usize::from(action.0)])
            .expect("something is enabled")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_cover_their_range() {
        let mut rng = Rng::new(7);
        let mut seen = [false; 10];
        for _ in 0..1000 {
            seen[rng.below(10) as usize] = true;
        }
        assert!(seen.iter().all(|&s| s));
    }

    #[test]
    fn priorities_that_repeat_pick_what_they_would_pick() {
        let mut random = Rng::new(11);
        for seed in 0..200 {
            let (mut asked, mut repeats) = (Strategy::pct(seed, 5, 60), Strategy::pct(seed, 5, 60));
            let (mut enabled, mut last, mut repeated) = (0, None, 0);
            for decision in 1..200 {
                let before = enabled;
                if random.below(3) == 0 || enabled == 0 {
                    enabled = 1 | random.draw() & random.draw() & 0xff_00f7;
                }
                let wanted = asked.pick(decision, enabled, 0);
                let same = enabled == before && last == Some(Action::step(0));
                let picked = if repeats.goes_on(decision, same) {
                    repeated += 1;
                    Action::step(0)
                } else {
                    repeats.pick(decision, enabled, 0)
                };
                assert_eq!(picked, wanted, "decision {decision} of seed {seed}");
                last = Some(picked);
            }
            assert!(repeated > 0 || seed > 0, "nothing repeats");
        }
    }
}

//! Chooses the next action of a run, by one of several schedulers.
//!
//! At every point of a run some *actions* are possible: a CPU steps, takes an interrupt or an NMI, is preempted, or one
//! of its buffered stores becomes visible. A [`Strategy`] picks one. One fixed scheduler lets the same CPU continue for
//! as long as it can ([`default_action`]). Any run can be written down as its deviations from that scheduler. So each
//! run replays from a short list, and a run is shrunk by leaving deviations out.
//!
//! * **Random**: lets the same CPU continue or, with a probability drawn once per run, picks uniformly.
//! * **PCT** (Burckhardt et al., ASPLOS 2010): each actor has a random priority, and at `depth - 1` random moments the
//!   running actor falls to the lowest one. If a bug needs `d` ordering constraints, each run finds it with a
//!   probability of at least 1/(n·k^(d-1)).
//! * **Exhaustive**: runs every schedule, see [`search`](crate::search).

use crate::action::{
    ACTIONS, Action, Actions, DATA, Deviation, actor_of, default_action, members, nth,
};
use crate::search::ExhaustiveSearch;
use rand::{Rng as _, RngExt};
use rand_pcg::Pcg64;

/// The random generator of schedules and programs.
#[derive(Clone, Debug)]
pub struct Rng(Pcg64);

impl Rng {
    /// Creates the generator for a seed.
    pub fn new(seed: u64) -> Self {
        Rng::stream(seed, 0)
    }

    /// Creates one of many independent generators for the same seed.
    pub fn stream(seed: u64, number: u64) -> Self {
        Rng(Pcg64::new(seed.into(), number.into()))
    }

    /// Returns 64 random bits.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a random number below `bound`, which isn't zero.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.random_range(0..bound)
    }
}

/// The stream of a run's seed for early loads; stream 0 determines the actions. We keep them apart so that a machine
/// without early loads draws the same schedules with or without this stream.
const LOADS: u64 = 1;

/// How often loads are satisfied early in a run. We draw it once per run, so that some runs do it often and some never.
#[derive(Clone, Debug)]
struct EarlyLoads {
    rng: Rng,
    /// The number of early loads left.
    left: u32,
    /// One in this many possible early loads is early.
    one_in: u64,
    /// The number of older values from which an early load picks.
    depth: u64,
}

impl EarlyLoads {
    fn draw(seed: u64) -> Self {
        let mut rng = Rng::stream(seed, LOADS);
        let draw = rng.draw();
        EarlyLoads {
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
pub struct RandomScheduler {
    rng: Rng,
    /// The probability of a free decision, in units of 2^-32.
    freedom: u64,
    /// The draw for this decision.
    drawn: u64,
    /// Whether the whole run has no stalls and no prompted interrupts.
    keeps_on: bool,
    /// CPUs that get no turn for a while, unless no other CPU can act.
    stalls: [Stall; 2],
    early: EarlyLoads,
    /// How many more times a CPU stalls at the watched rule.
    lurks: u32,
    /// One in this many visits of the rule makes a CPU stall.
    lurks_one_in: u64,
    /// Whether CPUs stall after they have removed an entry or a right from a table, instead of at the rule.
    lurks_at_changes: bool,
    /// Whether we sometimes interrupt the CPU there instead of stalling it, if the run has an interrupt for it.
    prompts: bool,
    /// The CPU to interrupt, and the first decision at which to do so.
    prompted: Option<(usize, u32)>,
}

/// How many decisions we wait for a prompted CPU to become interruptible.
const PROMPT: u32 = 32;

/// A CPU that gets no turn from one decision to another.
#[derive(Clone, Copy, Debug, Default)]
struct Stall {
    cpu: usize,
    from: u32,
    until: u32,
}

impl RandomScheduler {
    /// Creates a scheduler under which no CPU stalls.
    fn new(rng: Rng, freedom: u64, seed: u64) -> Self {
        RandomScheduler {
            rng,
            freedom,
            drawn: 0,
            keeps_on: true,
            stalls: Default::default(),
            early: EarlyLoads::draw(seed),
            lurks: 0,
            lurks_one_in: 1,
            lurks_at_changes: false,
            prompts: false,
            prompted: None,
        }
    }

    /// Handles a CPU's visit of the watched rule: with some probability the CPU stalls there or is interrupted.
    fn come_by(&mut self, cpu: usize, decision: u32) {
        if self.lurks == 0 || self.rng.below(self.lurks_one_in) > 0 {
            return;
        }
        self.lurks -= 1;
        // Some mistakes show only a few steps later.
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
        self.stalls[0] = Stall { cpu, from: decision, until: decision.saturating_add(length) };
    }

    /// Returns the actions that interrupt the prompted CPU, if that is due now.
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

    /// Draws for a decision. Returns whether the draw lets the running CPU continue.
    #[inline]
    fn draws_to_go_on(&mut self) -> bool {
        self.drawn = self.rng.draw();
        self.drawn & 0xffff_ffff >= self.freedom
    }

    /// Returns whether no CPU stalls at this decision and none is to be interrupted.
    #[inline(never)]
    fn lets_go_on(&self, decision: u32) -> bool {
        self.stalled(decision) == 0 && self.prompted.is_none()
    }

    /// Returns the actions that are picked at this decision only if nothing else is possible.
    #[inline]
    fn stalled(&self, decision: u32) -> Actions {
        let active = self.stalls.iter();
        let active = active.filter(|stall| (stall.from..stall.until).contains(&decision));
        active.fold(0, |set, stall| {
            set | Action::step(stall.cpu).bit() | Action::interrupt(stall.cpu).bit()
        })
    }
}

/// The state of a priority-based scheduler (PCT).
#[derive(Debug)]
pub struct Pct {
    rng: Rng,
    /// The priorities: the greatest runs first. All actions of an actor have the same.
    priority: [u32; ACTIONS],
    changes: [u32; 8],
    /// The next of `changes`: the decision at which the running actor falls to the lowest priority.
    change: u32,
    lowest: u32,
    decision: u32,
    /// Whether only one action was possible at the last decision. Such decisions don't count.
    alone: bool,
    early: EarlyLoads,
}

/// A scheduler, which picks the next action of a run.
#[derive(Debug)]
pub enum Strategy {
    /// The uniformly random scheduler.
    Random(RandomScheduler),
    /// The priority-based scheduler.
    Pct(Box<Pct>),
    /// The depth-first search of every schedule.
    Exhaustive(ExhaustiveSearch),
    /// The fixed scheduler, with deviations from a list.
    Script(Script),
}

/// A list of deviations from the fixed scheduler.
#[derive(Debug)]
pub struct Script {
    /// The deviations, in ascending order of decisions.
    pub(crate) deviations: Vec<Deviation>,
    /// The index of the first deviation that wasn't reached yet.
    next: usize,
}

impl Script {
    /// Returns the deviation at this decision, which is not before that of the last call.
    fn at(&mut self, decision: u32) -> Option<u8> {
        while *self.deviations.get(self.next)? < (decision, 0) {
            self.next += 1;
        }
        let &(at, choice) = &self.deviations[self.next];
        (at == decision).then_some(choice)
    }
}

impl Default for Strategy {
    /// Creates the fixed scheduler.
    fn default() -> Self {
        Strategy::script(Vec::new())
    }
}

impl Strategy {
    /// Creates a random scheduler without stalls.
    pub fn random(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let freedom = (1u64 << 32) >> rng.below(6);
        Strategy::Random(RandomScheduler::new(rng, freedom, seed))
    }

    /// Creates a random scheduler under which CPUs sometimes stall at the watched rule.
    ///
    /// The rule is the place in the code that a mutant changes. If it matters, other CPUs must act there or a little
    /// later. So the stall may also begin a few steps after the rule. With `prompts`, the CPU may be interrupted
    /// instead of stalled.
    pub fn lurking(seed: u64, prompts: bool) -> Self {
        Strategy::lurks(seed, [1, 2, 2, 3, 4, 8, 16, 64], |random, _| random.prompts = prompts)
    }

    /// Creates a random scheduler under which CPUs sometimes stall in the middle of a change.
    ///
    /// The stall begins where a CPU has removed an entry or a right from a table and no CPU has flushed yet: then every
    /// other CPU relies on the unfinished change. Mostly it lasts until no other CPU can act.
    pub(crate) fn changing(seed: u64, prompts: bool) -> Self {
        Strategy::lurks(seed, [1, 1, 2, 4, 1, 1, 2, 4], |random, draw| {
            random.lurks_at_changes = true;
            random.prompts = prompts && draw >> 16 & 3 == 0;
        })
    }

    /// Creates a random scheduler under which CPUs stall a few times, in one of so many visits. `set` sets the rest.
    fn lurks(seed: u64, one_in: [u64; 8], set: impl FnOnce(&mut RandomScheduler, u64)) -> Self {
        let mut strategy = Strategy::random(seed);
        if let Strategy::Random(random) = &mut strategy {
            // Mostly the number of stalls is small: with a stall at every visit, runs would never get to the later
            // visits.
            let draw = random.rng.draw();
            random.keeps_on = false;
            random.lurks = [1, 1, 2, u32::MAX][draw as usize % 4];
            random.lurks_one_in = one_in[(draw >> 8) as usize % 8];
            set(random, draw);
        }
        strategy
    }

    /// Records that CPU `cpu` has removed an entry or a right from a table.
    #[inline]
    pub(crate) fn has_changed_table(&mut self, cpu: usize, decision: u32) {
        if let Strategy::Random(random) = self
            && random.lurks_at_changes
        {
            random.come_by(cpu, decision);
        }
    }

    /// Records that CPU `cpu` has reached the watched rule.
    pub(crate) fn come_by(&mut self, cpu: usize, decision: u32) {
        if let Strategy::Random(random) = self
            && !random.lurks_at_changes
        {
            random.come_by(cpu, decision);
        }
    }

    /// Creates a random scheduler under which one or two of `cpus` CPUs stall.
    ///
    /// Each stall lasts for a few decisions, for about `steps` decisions (the expected length of the run), or until no
    /// other CPU can act.
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
        Strategy::Random(RandomScheduler {
            keeps_on: false,
            stalls,
            ..RandomScheduler::new(rng, freedom, seed)
        })
    }

    /// Creates a priority-based scheduler (PCT) for bugs that need `depth` orderings.
    ///
    /// Runs are expected to have about `steps` decisions.
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
            early: EarlyLoads::draw(seed),
        }))
    }

    /// Creates the fixed scheduler with these deviations.
    pub fn script(deviations: Vec<Deviation>) -> Self {
        Strategy::Script(Script { deviations, next: 0 })
    }

    /// Returns whether the running CPU continues at this decision, if it can.
    ///
    /// If so, the other possible actions needn't be computed. `repeats` is set if the CPU can continue, was picked
    /// last, and the possible actions haven't changed since.
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

    /// Decides like [`Strategy::goes_on`], if the strategy can do so without further checks.
    ///
    /// Returns `None` if it can't. Then it has drawn nothing yet.
    #[inline(always)]
    pub(crate) fn goes_on_at_once(&mut self, repeats: bool) -> Option<bool> {
        match self {
            Strategy::Random(random) if random.keeps_on => Some(random.draws_to_go_on()),
            Strategy::Pct(pct) => Some(repeats && pct.repeats()),
            _ => None,
        }
    }

    /// Returns whether a script has no deviation at this decision.
    #[inline(never)]
    fn follows(&mut self, decision: u32) -> bool {
        match self {
            Strategy::Script(script) => script.at(decision).is_none(),
            _ => false,
        }
    }

    /// Picks one of `enabled`, which isn't empty. Call [`Strategy::goes_on`] first: it makes the random draw.
    ///
    /// # Panics
    /// If the strategy is exhaustive. Such a search picks through [`ExhaustiveSearch::pick`] instead.
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

    /// Picks one of `count` alternatives for a choice between data.
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

/// Returns the first priority change after this decision.
fn next_of(changes: &[u32], decision: u32) -> u32 {
    let behind = changes.iter().filter(|&&change| change > decision);
    behind.copied().min().unwrap_or(u32::MAX)
}

impl Pct {
    /// Picks the last action again, unless priorities change. Returns whether it does.
    ///
    /// The possible actions must be the same as at the last decision.
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

    /// Gives the actor the lowest priority from here on.
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

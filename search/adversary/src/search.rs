//! The search through every schedule.
//!
//! Depth-first, and no work is done twice for two reasons:
//!
//! * **Sleep sets** (Godefroid): of schedules that differ only in the order of independent actions,
//!   one is run to its end. Two actions are independent if they belong to different CPUs and touch
//!   different words, and not both the translation hardware or the same interrupt line. Where an
//!   action concerns no other CPU, because its word is private to its CPU, nothing else is tried at
//!   all: it is a persistent set of its own.
//! * **States** ([`state`](crate::machine)): where two schedules lead to the same state of the machine
//!   and of every CPU, what follows is run once. A state that is met again with fewer actions asleep
//!   than before goes on with those alone that slept then; that, too, is Godefroid's.
//!
//! States of a search make a graph, and the graph shows what no single run can: a state from which
//! no schedule leads to the end of the programs is a livelock or a deadlock (C7), however long one
//! waits there. Where a run was cut short because everything possible slept, an equivalent state
//! lies on another branch; such a state counts as one that leads to the end, and the other branch
//! is judged in its place.

use crate::action::{Action, Actions, DATA, Footprint, default_action, members};
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;

/// A place on the path of the search.
#[derive(Debug)]
struct Node {
    /// What may still be tried here, the present choice excluded. Choices between data are nodes as
    /// well: this is then the number of alternatives left.
    todo: Actions,
    /// What was tried here before.
    done: Actions,
    chosen: u8,
    /// The actions that may sleep on from here: where a state is met again, only those that slept there before.
    sleepers: Actions,
    /// The state, if states are told apart.
    state: Option<u32>,
}

/// A state that was met.
#[derive(Debug)]
struct Met {
    number: u32,
    /// What has slept there every time, and was therefore not tried.
    slept: Actions,
}

/// The states of a search.
#[derive(Debug, Default)]
struct States {
    met: FxHashMap<u128, Met>,
    /// From which state to which an action leads.
    steps: Vec<(u32, u32)>,
    /// States at which a run has ended.
    ends: Vec<u32>,
    /// States at which a run was cut short because an equivalent one goes on.
    elsewhere: Vec<u32>,
}

/// The state of the depth-first search, from one run to the next.
#[derive(Debug, Default)]
pub struct Exhaustive {
    path: Vec<Node>,
    depth: usize,
    sleep: Actions,
    states: Option<States>,
    /// The state that the run has come from.
    last: Option<u32>,
    /// The run was cut short: everything possible sleeps, or was tried.
    cut: bool,
    /// The run is to end where it meets this state first.
    wanted: Option<u32>,
}

impl Exhaustive {
    /// A search; `by_state` if states can be told apart on this machine.
    pub fn new(by_state: bool) -> Self {
        Exhaustive {
            states: by_state.then(States::default),
            ..Default::default()
        }
    }

    /// The same search again, up to the first run that comes to this state.
    pub fn until(state: u32) -> Self {
        Exhaustive {
            wanted: Some(state),
            ..Self::new(true)
        }
    }

    /// Whether the run has just come to the state that was wanted.
    pub fn found(&self) -> bool {
        self.cut && self.wanted.is_some() && self.wanted == self.last
    }

    /// Whether states are told apart.
    pub fn by_state(&self) -> bool {
        self.states.is_some()
    }

    /// How many states were met; 0 if they are not told apart.
    pub fn states(&self) -> u64 {
        self.states
            .as_ref()
            .map_or(0, |states| states.met.len() as u64)
    }

    /// Whether the next choice is one that was never made: what the machine's state is then matters.
    #[inline]
    pub fn wants_state(&self) -> bool {
        self.states.is_some() && self.depth == self.path.len()
    }

    /// Prepares the next run; `false` if there is none.
    pub fn advance(&mut self) -> bool {
        if !self.cut
            && let (Some(states), Some(last)) = (&mut self.states, self.last)
        {
            states.ends.push(last);
        }
        self.cut = false;
        self.depth = 0;
        self.sleep = 0;
        self.last = None;
        while let Some(node) = self.path.last_mut() {
            if node.chosen & DATA != 0 {
                if node.todo > 0 {
                    node.todo -= 1;
                    node.chosen += 1;
                    return true;
                }
            } else if node.todo != 0 {
                node.done |= 1 << node.chosen;
                node.chosen = node.todo.trailing_zeros() as u8;
                node.todo &= node.todo - 1;
                return true;
            }
            self.path.pop();
        }
        false
    }

    /// Picks one of `enabled`; `None` cuts the run short.
    pub fn pick(
        &mut self,
        enabled: Actions,
        current: usize,
        footprint: impl Fn(Action) -> Footprint,
        alone: impl Fn(Action) -> bool,
        state: impl FnOnce() -> u128,
    ) -> Option<Action> {
        if self.depth == self.path.len() {
            let node = self.discover(enabled, current, alone, state);
            if node.is_none() {
                self.cut = true;
            }
            self.path.push(node?);
        }
        let node = &self.path[self.depth];
        self.depth += 1;
        self.last = node.state;
        let chosen = Action(node.chosen);
        let touched = footprint(chosen);
        let others = (self.sleep & node.sleepers | node.done) & !chosen.bit();
        self.sleep = 0;
        for action in members(others) {
            if footprint(action).independent(&touched) {
                self.sleep |= action.bit();
            }
        }
        Some(chosen)
    }

    /// What is to be tried at a place where the search has not been.
    fn discover(
        &mut self,
        enabled: Actions,
        current: usize,
        alone: impl Fn(Action) -> bool,
        state: impl FnOnce() -> u128,
    ) -> Option<Node> {
        let mut node = Node {
            todo: 0,
            done: 0,
            chosen: 0,
            sleepers: Actions::MAX,
            state: None,
        };
        if let Some(states) = &mut self.states {
            let count = states.met.len() as u32;
            match states.met.entry(state()) {
                Entry::Vacant(place) => {
                    place.insert(Met {
                        number: count,
                        slept: self.sleep,
                    });
                    node.state = Some(count);
                }
                Entry::Occupied(mut place) => {
                    let met = place.get_mut();
                    node.state = Some(met.number);
                    node.sleepers = met.slept;
                    node.todo = enabled & met.slept & !self.sleep;
                    met.slept &= self.sleep;
                }
            }
            if let (Some(from), Some(to)) = (self.last, node.state) {
                states.steps.push((from, to));
            }
            if self.wanted == node.state && self.wanted.is_some() {
                self.last = node.state;
                return None;
            }
            if node.sleepers != Actions::MAX {
                let chosen = members(node.todo).next()?;
                node.chosen = chosen.0;
                node.todo &= !chosen.bit();
                return Some(node);
            }
        }
        let awake = enabled & !self.sleep;
        if awake == 0 {
            if let (Some(states), Some(here)) = (&mut self.states, node.state) {
                states.elsewhere.push(here);
            }
            return None;
        }
        // Nothing else need be tried where something commutes with all of it.
        let single = members(awake).find(|action| alone(*action));
        let usual = || default_action(awake, current).or_else(|| members(awake).next());
        let chosen = single.or_else(usual)?;
        if single.is_none() {
            node.todo = awake & !chosen.bit();
        }
        node.chosen = chosen.0;
        Some(node)
    }

    /// Picks one of `count` alternatives of data.
    pub(crate) fn pick_data(&mut self, count: usize) -> usize {
        if self.depth == self.path.len() {
            self.path.push(Node {
                todo: count as u64 - 1,
                done: 0,
                chosen: DATA,
                sleepers: Actions::MAX,
                state: None,
            });
        }
        let node = &self.path[self.depth];
        self.depth += 1;
        usize::from(node.chosen & !DATA)
    }

    /// After the search: how many schedules the states stand for, at least. Each way through them from
    /// the beginning to an end is a schedule; those that were left out as equivalent are not counted. 0
    /// if states were not told apart.
    pub fn stands_for(&self) -> f64 {
        let Some(states) = &self.states else {
            return 0.0;
        };
        let steps = Steps::into_states(states);
        let mut ways = vec![0.0; states.met.len()];
        // How many ways on from a state are not counted yet.
        let mut open = vec![0u32; ways.len()];
        for step in &states.steps {
            open[step.0 as usize] += 1;
        }
        for &end in &states.ends {
            ways[end as usize] += 1.0;
        }
        let counted = |open: &u32| *open == 0;
        let mut todo: Vec<u32> = (0..ways.len() as u32)
            .filter(|&state| counted(&open[state as usize]))
            .collect();
        while let Some(state) = todo.pop() {
            for from in steps.of(state) {
                ways[from as usize] += ways[state as usize];
                open[from as usize] -= 1;
                if counted(&open[from as usize]) {
                    todo.push(from);
                }
            }
        }
        // Schedules before a circle are not counted in full, and the beginning lies before all.
        ways.first().copied().unwrap_or(0.0)
    }

    /// After the search: a state from which nothing leads to the end, the first that was met.
    pub fn stuck(&self) -> Option<u32> {
        let states = self.states.as_ref()?;
        let steps = Steps::into_states(states);
        let mut leads = vec![false; states.met.len()];
        let mut todo = [&states.ends[..], &states.elsewhere].concat();
        while let Some(state) = todo.pop() {
            if !std::mem::replace(&mut leads[state as usize], true) {
                todo.extend(steps.of(state));
            }
        }
        leads.iter().position(|leads| !leads).map(|at| at as u32)
    }
}

/// The steps between states, sorted so that those into one state lie together.
struct Steps(Vec<(u32, u32)>);

impl Steps {
    fn into_states(states: &States) -> Self {
        let mut steps: Vec<_> = states.steps.iter().map(|step| (step.1, step.0)).collect();
        steps.sort_unstable();
        Steps(steps)
    }

    /// From where steps lead into a state.
    fn of(&self, state: u32) -> impl Iterator<Item = u32> + '_ {
        let first = self.0.partition_point(|step| step.0 < state);
        let those = self.0[first..]
            .iter()
            .take_while(move |step| step.0 == state);
        those.map(|step| step.1)
    }
}

//! Searches through every schedule, depth first.
//!
//! Two techniques avoid repeated work:
//!
//! * **Sleep sets** (Godefroid): of the schedules that differ only in the order of independent actions, one is run to
//!   its end. Two actions are independent if they belong to different CPUs and touch different words, and don't both
//!   touch the translation hardware or the same interrupt line. For example, if two CPUs store to different words, one
//!   order of the stores suffices. An action on a word that is private to its CPU concerns no other CPU. Then nothing
//!   else is tried at that point: it is a persistent set of its own.
//! * **States** ([`state`](crate::machine)): if two schedules lead to the same state of the machine and of every CPU,
//!   the continuation is run once. When a state is met again with fewer sleeping actions, only those actions are tried
//!   there that are awake now and slept at every earlier visit. This rule is Godefroid's, too.
//!
//! The states of a search form a graph, which reveals more than a single run can. A state from which no schedule leads
//! to the end of the programs is a livelock or a deadlock (C7), however long one waits there. If a run was cut short
//! because all possible actions slept, an equivalent state lies on another branch. Such a state counts as one that
//! leads to the end, and the other branch is judged in its place.

use crate::action::{Action, Actions, DATA, Footprint, default_action, members};
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;

/// A choice on the path of the search.
#[derive(Debug)]
struct Node {
    /// The actions still to try here, without the present choice. If the choice is between data, the number of
    /// alternatives left.
    todo: Actions,
    /// The actions that were tried here before.
    done: Actions,
    chosen: u8,
    /// The actions that may continue to sleep after this choice. If the state was met before, only those that slept at
    /// every earlier visit.
    sleepers: Actions,
    /// The state, if the search distinguishes states.
    state: Option<u32>,
}

/// A state that the search has met.
#[derive(Debug)]
struct KnownState {
    number: u32,
    /// The actions that slept at every visit, and were therefore not tried.
    slept: Actions,
}

#[derive(Debug, Default)]
struct States {
    met: FxHashMap<u128, KnownState>,
    /// The states before and after each action.
    steps: Vec<(u32, u32)>,
    /// States at which a run has ended.
    ends: Vec<u32>,
    /// States at which a run was cut short because an equivalent one continues.
    elsewhere: Vec<u32>,
}

/// The state of the depth-first search, from one run to the next.
#[derive(Debug, Default)]
pub struct ExhaustiveSearch {
    path: Vec<Node>,
    depth: usize,
    sleep: Actions,
    states: Option<States>,
    /// The state at the last choice.
    last: Option<u32>,
    /// Whether the run was cut short, because every possible action sleeps or was tried.
    cut: bool,
    /// The state at which the run is to end.
    wanted: Option<u32>,
}

impl ExhaustiveSearch {
    /// Creates a search.
    ///
    /// If `by_state` is set, it recognizes states that it has met before, which the machine must support.
    pub fn new(by_state: bool) -> Self {
        ExhaustiveSearch { states: by_state.then(States::default), ..Default::default() }
    }

    /// Creates the same search again. It ends with the first run that reaches this state.
    pub fn until(state: u32) -> Self {
        ExhaustiveSearch { wanted: Some(state), ..Self::new(true) }
    }

    /// Returns whether the run has just reached the wanted state.
    pub fn found(&self) -> bool {
        self.cut && self.wanted.is_some() && self.wanted == self.last
    }

    /// Returns whether the search recognizes states.
    pub fn by_state(&self) -> bool {
        self.states.is_some()
    }

    /// Returns the number of states met, or 0 if the search doesn't recognize states.
    pub fn states(&self) -> u64 {
        self.states.as_ref().map_or(0, |states| states.met.len() as u64)
    }

    /// Returns whether the next choice is new, so that the search needs the machine's state.
    #[inline]
    pub fn wants_state(&self) -> bool {
        self.states.is_some() && self.depth == self.path.len()
    }

    /// Prepares the next run. Returns `false` if every schedule was run.
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

    /// Picks one of the possible actions `enabled`. `None` cuts the run short.
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

    /// Creates the node of a choice that is made for the first time, or `None` to cut the run short.
    fn discover(
        &mut self,
        enabled: Actions,
        current: usize,
        alone: impl Fn(Action) -> bool,
        state: impl FnOnce() -> u128,
    ) -> Option<Node> {
        let mut node = Node { todo: 0, done: 0, chosen: 0, sleepers: Actions::MAX, state: None };
        if let Some(states) = &mut self.states {
            let count = states.met.len() as u32;
            match states.met.entry(state()) {
                Entry::Vacant(place) => {
                    place.insert(KnownState { number: count, slept: self.sleep });
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
        // If one action commutes with everything else, we needn't try the others.
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

    /// Returns a lower bound of the number of schedules that the states represent. Call it after the search.
    ///
    /// Each path through the states from the beginning to an end is a schedule. Schedules that were left out as
    /// equivalent don't count. The result is 0 if the search doesn't recognize states.
    pub fn stands_for(&self) -> f64 {
        let Some(states) = &self.states else {
            return 0.0;
        };
        let steps = Steps::into_states(states);
        let mut ways = vec![0.0; states.met.len()];
        // The number of steps from each state that aren't counted yet.
        let mut open = vec![0u32; ways.len()];
        for step in &states.steps {
            open[step.0 as usize] += 1;
        }
        for &end in &states.ends {
            ways[end as usize] += 1.0;
        }
        let counted = |open: &u32| *open == 0;
        let mut todo: Vec<u32> =
            (0..ways.len() as u32).filter(|&state| counted(&open[state as usize])).collect();
        while let Some(state) = todo.pop() {
            for from in steps.of(state) {
                ways[from as usize] += ways[state as usize];
                open[from as usize] -= 1;
                if counted(&open[from as usize]) {
                    todo.push(from);
                }
            }
        }
        // Schedules that pass a cycle are counted only in part. State 0 is the beginning.
        ways.first().copied().unwrap_or(0.0)
    }

    /// Returns the first state from which no schedule leads to the end. Call it after the search.
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

/// The steps between states as (after, before), sorted so that those into one state are adjacent.
struct Steps(Vec<(u32, u32)>);

impl Steps {
    fn into_states(states: &States) -> Self {
        let mut steps: Vec<_> = states.steps.iter().map(|step| (step.1, step.0)).collect();
        steps.sort_unstable();
        Steps(steps)
    }

    /// Returns the states from which a step leads into `state`.
    fn of(&self, state: u32) -> impl Iterator<Item = u32> + '_ {
        let first = self.0.partition_point(|step| step.0 < state);
        let those = self.0[first..].iter().take_while(move |step| step.0 == state);
        those.map(|step| step.1)
    }
}

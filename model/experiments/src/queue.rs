//! Orders runs so that no core is idle at the end while another still works.
//!
//! The longest runs should start first, but we don't know a run's length beforehand. So we first start one run of each
//! *kind*, and its length predicts the others. Runs of a kind differ only in seed, policy or machine. Among unmeasured
//! kinds, more CPUs come first, then later places in the list, because people list values from small to large.
//!
//! The order never changes a result.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The priority of a kind's runs; the greatest starts first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Priority {
    /// One run has started and none has ended.
    Unknown,
    /// The duration of the last run that ended.
    Length(Duration),
    /// No run has started.
    Fresh,
}

/// The runs of a kind that haven't started.
struct Kind {
    urgency: Priority,
    cpus: usize,
    waiting: Vec<usize>,
}

/// Runs that haven't started.
pub(crate) struct Queue {
    state: Mutex<State>,
    /// The kind of each run.
    kind_of: Vec<usize>,
}

struct State {
    kinds: Vec<Kind>,
    /// The kinds with waiting runs.
    order: BTreeSet<(Priority, usize, usize)>,
}

impl Queue {
    /// Creates a queue from each run's number of CPUs and kind.
    pub(crate) fn new<K: Eq + Hash>(runs: impl IntoIterator<Item = (usize, K)>) -> Self {
        let mut known = HashMap::new();
        let mut kinds: Vec<Kind> = Vec::new();
        let mut kind_of = Vec::new();
        for (index, run) in runs.into_iter().enumerate() {
            let cpus = run.0;
            let kind = *known.entry(run).or_insert(kinds.len());
            if kind == kinds.len() {
                kinds.push(Kind { urgency: Priority::Fresh, cpus, waiting: Vec::new() });
            }
            kinds[kind].waiting.push(index);
            kind_of.push(kind);
        }
        let order = kinds.iter().enumerate();
        let order = order.map(|(place, kind)| (kind.urgency, kind.cpus, place)).collect();
        Queue { state: Mutex::new(State { kinds, order }), kind_of }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the index of the next run to start; `None` once all have started.
    pub(crate) fn begin(&self) -> Option<usize> {
        let mut state = self.state();
        let &(.., kind) = state.order.last()?;
        let index = state.kinds[kind].waiting.pop();
        let urgency = match state.kinds[kind].urgency {
            Priority::Fresh => Priority::Unknown,
            known @ (Priority::Unknown | Priority::Length(_)) => known,
        };
        state.place(kind, urgency);
        index
    }

    /// Records that a run has ended, and its duration.
    pub(crate) fn ended(&self, index: usize, took: Duration) {
        self.state().place(self.kind_of[index], Priority::Length(took));
    }
}

impl State {
    /// Sets the priority of a kind's waiting runs.
    fn place(&mut self, place: usize, urgency: Priority) {
        let kind = &mut self.kinds[place];
        self.order.remove(&(kind.urgency, kind.cpus, place));
        kind.urgency = urgency;
        if !kind.waiting.is_empty() {
            self.order.insert((urgency, kind.cpus, place));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates workers that take runs from the queue, each run with its kind and length. Returns the order of starts
    /// and the time of the last end. Panics if a worker gets none while some wait.
    fn worked(workers: usize, runs: &[(u32, u64)]) -> (Vec<usize>, u64) {
        let queue = Queue::new(runs.iter().map(|&(kind, _)| (1, kind)));
        let mut begun = Vec::new();
        // The time at which each worker becomes free, and its run until then.
        let mut workers: Vec<(u64, Option<usize>)> = vec![(0, None); workers];
        let mut end = 0;
        while let Some(worker) = workers.iter_mut().min() {
            let (now, ran) = *worker;
            if let Some(index) = ran {
                queue.ended(index, Duration::from_secs(runs[index].1));
                end = now;
            }
            match queue.begin() {
                Some(index) => {
                    begun.push(index);
                    *worker = (now + runs[index].1, Some(index));
                }
                None => {
                    assert_eq!(begun.len(), runs.len(), "a worker idles at {now}");
                    let gone = *worker;
                    workers.retain(|worker| *worker != gone);
                }
            }
        }
        (begun, end)
    }

    #[test]
    fn every_run_begins_once_and_no_worker_idles_while_some_wait() {
        let runs: Vec<(u32, u64)> =
            (0..1000).map(|run| (run % 7, 1 + u64::from(run % 13))).collect();
        for workers in [1, 2, 3, 64] {
            let (mut begun, end) = worked(workers, &runs);
            begun.sort_unstable();
            assert!(begun.into_iter().eq(0..1000));
            let sum: u64 = runs.iter().map(|run| run.1).sum();
            let least = sum.div_ceil(workers as u64);
            assert!(
                (least..least + 13).contains(&end),
                "{workers} workers: {end}, at least {least}"
            );
        }
    }

    /// Runs three unmeasured kinds: twenty short runs, twenty of ten times that length, two of a hundred times.
    #[test]
    fn the_longest_kind_begins_as_soon_as_its_length_is_known() {
        let mut runs = vec![(0, 1); 20];
        runs.extend([(1, 10); 20]);
        runs.extend([(2, 100); 2]);
        let (begun, end) = worked(2, &runs);
        // One of each kind starts first, the last of the list before the others; then the long ones.
        assert_eq!(begun[..3], [41, 39, 19]);
        // The other of the two longest waits until the first has ended, then starts before all others.
        let place = |run: usize| begun.iter().position(|&other| other == run);
        assert!(place(40) < place(29), "{begun:?}");
        assert_eq!(end, 420 / 2, "{begun:?}");
    }

    #[test]
    fn of_kinds_that_nobody_knows_the_one_with_more_cpus_begins_first() {
        let queue = Queue::new([(1, "a"), (8, "a"), (2, "b"), (8, "c")]);
        let begun: Vec<_> = std::iter::from_fn(|| queue.begin()).collect();
        assert_eq!(begun, [3, 1, 2, 0]);
    }
}

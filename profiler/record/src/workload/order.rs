//! Finds the order of a thread's calls, if it's short enough for a file.
//!
//! Programs repeat themselves. Successive calls of one kind become one step, and steps that recur in the same order
//! become one block. If a thread doesn't repeat itself enough, we drop its whole order, because a part of it could be
//! mistaken for everything.

use super::statement::{CallKey, CallTotals};

/// The largest number of steps of a thread to remember.
const REMEMBERED: usize = 8192;
/// The largest number of steps in a block.
const PERIOD: usize = 32;

/// Successive calls of one kind.
#[derive(Clone, Debug)]
pub struct Step {
    pub alike: CallKey,
    /// The calls, and their interrupts. In a block, the count is for one repetition, but the interrupts are for all.
    pub made: CallTotals,
    /// The total time that the thread computed before these calls.
    pub gap_ns: u64,
}

/// Steps that are repeated `times` times.
#[derive(Clone, Debug)]
pub struct Block {
    pub times: u64,
    pub steps: Vec<Step>,
}

/// The steps of a thread. `None` once there were too many.
#[derive(Clone, Debug)]
pub struct Order(Option<Vec<Step>>);

impl Default for Order {
    fn default() -> Self {
        Order(Some(Vec::new()))
    }
}

impl Order {
    /// Appends calls of one kind, after `gap_ns` of computing.
    pub fn push(&mut self, alike: CallKey, made: CallTotals, gap_ns: u64) {
        let Some(steps) = &mut self.0 else { return };
        if let Some(last) = steps.last_mut()
            && last.alike == alike
        {
            last.made.add(made);
            last.gap_ns = last.gap_ns.saturating_add(gap_ns);
        } else if steps.len() < REMEMBERED {
            steps.push(Step {
                alike,
                made,
                gap_ns,
            });
        } else {
            self.lose();
        }
    }

    /// Drops the order for good.
    pub fn lose(&mut self) {
        self.0 = None;
    }

    /// Changes every step. Neighbouring steps that become alike are merged.
    pub fn each(&mut self, change: impl Fn(CallKey) -> CallKey) {
        let mut changed = Order(self.0.as_ref().map(|_| Vec::new()));
        for step in self.0.take().into_iter().flatten() {
            changed.push(change(step.alike), step.made, step.gap_ns);
        }
        *self = changed;
    }

    /// Returns the order as blocks, or `None` if these have more than `most` steps together.
    pub fn blocks(&self, most: usize) -> Option<Vec<Block>> {
        let steps: Vec<_> = self.0.as_ref()?.iter().map(Step::together).collect();
        let mut blocks = Vec::new();
        let (mut at, mut written) = (0, 0);
        while at < steps.len() {
            let (period, times) = repeats(&steps[at..]);
            let end = at + period * times;
            let mut block = steps[at..at + period].to_vec();
            for (index, step) in steps[at + period..end].iter().enumerate() {
                block[index % period].repeat(step);
            }
            written += period;
            if written > most {
                return None;
            }
            blocks.push(Block {
                times: times as u64,
                steps: block,
            });
            at = end;
        }
        Some(blocks)
    }
}

impl Step {
    fn together(&self) -> Step {
        let (alike, made) = self.made.together(self.alike);
        Step {
            alike,
            made,
            gap_ns: self.gap_ns,
        }
    }

    fn is_like(&self, other: &Step) -> bool {
        self.alike == other.alike && self.made.count == other.made.count
    }

    /// Adds another repetition of this step.
    fn repeat(&mut self, again: &Step) {
        self.made.pages = self.made.pages.max(again.made.pages);
        self.made.interrupts += again.made.interrupts;
        self.gap_ns = self.gap_ns.saturating_add(again.gap_ns);
    }
}

/// Returns the length and count of repetitions at the start that save the most steps.
fn repeats(steps: &[Step]) -> (usize, usize) {
    let mut best = (1, 1);
    for period in 1..=PERIOD.min(steps.len() / 2) {
        let same = steps.iter().zip(&steps[period..]);
        let same = same.take_while(|(one, other)| one.is_like(other)).count();
        let times = 1 + same / period;
        let saved = |(period, times): (usize, usize)| period * (times - 1);
        if saved((period, times)) > saved(best) {
            best = (period, times);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::statement::Kind;

    /// Returns the order of calls on these numbers of pages.
    fn order(calls: impl IntoIterator<Item = u64>) -> Order {
        let mut order = Order::default();
        for pages in calls {
            let alike = CallKey {
                kind: Kind::Discard,
                bytes: pages * 4096,
                said: true,
                asked: true,
            };
            let made = CallTotals {
                count: 1,
                pages,
                interrupts: 2,
            };
            order.push(alike, made, 10);
        }
        order
    }

    /// The pages and the count of each step.
    type Steps = Vec<(u64, u64)>;

    /// Returns the number of repetitions and the steps of each block.
    fn shape(order: &Order, most: usize) -> Option<Vec<(u64, Steps)>> {
        let blocks = order.blocks(most)?;
        let steps = |block: &Block| {
            let steps = block.steps.iter();
            steps
                .map(|step| (step.made.pages, step.made.count))
                .collect()
        };
        Some(
            blocks
                .iter()
                .map(|block| (block.times, steps(block)))
                .collect(),
        )
    }

    #[test]
    fn what_repeats_itself_is_written_once() {
        let calls = std::iter::repeat_n([1, 1, 1, 2], 100).flatten();
        let calls = order([9].into_iter().chain(calls).chain([2, 5]));
        let wanted = vec![
            (1, vec![(9, 1)]),
            (99, vec![(1, 3), (2, 1)]),
            (1, vec![(1, 3)]),
            (1, vec![(2, 2)]),
            (1, vec![(5, 1)]),
        ];
        assert_eq!(shape(&calls, 6), Some(wanted));
        assert_eq!(shape(&calls, 5), None);
        let blocks = calls.blocks(6).unwrap();
        let step = &blocks[1].steps[0];
        assert_eq!((step.made.interrupts, step.gap_ns), (99 * 6, 99 * 30));
    }

    #[test]
    fn an_order_that_is_too_long_is_lost_as_a_whole() {
        let long = order((0..=REMEMBERED as u64).map(|at| at % 7 + at % 5));
        assert_eq!(shape(&long, usize::MAX), None);
        // Calls of a single kind are one step, however many there are.
        let alike = order(std::iter::repeat_n(1, 10 * REMEMBERED));
        let count = 10 * REMEMBERED as u64;
        assert_eq!(shape(&alike, 1), Some(vec![(1, vec![(1, count)])]));
        assert_eq!(shape(&order([]), 0), Some(Vec::new()));
    }

    #[test]
    fn steps_that_become_alike_are_one() {
        let mut both = order([1, 2, 1, 2]);
        both.each(|alike| CallKey {
            bytes: 4096,
            ..alike
        });
        assert_eq!(shape(&both, 1), Some(vec![(1, vec![(2, 4)])]));
        let mut lost = both;
        lost.lose();
        lost.each(|alike| alike);
        assert_eq!(shape(&lost, 9), None);
    }
}

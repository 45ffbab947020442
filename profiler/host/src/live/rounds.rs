//! Runs the benchmarks in several rounds, and merges the results.
//!
//! We run them in [`ROUNDS`] rounds, in turn: the first round of each, then the second of each, and so on. Each has its
//! share of the time and a set-up of its own. So a change of load that lasts seconds, or a lucky placement, affects some
//! samples of all of them, rather than all samples of one.
//!
//! We don't retry a benchmark that failed; its results from earlier rounds stay. Rounds don't help
//! against a machine that is busy all the time. Nor do they help against luck that lasts as long as the process: the
//! placement of its code and of the kernel's own pages, for example.

use std::time::{Duration, Instant};

use super::bench;
use super::lab::{Halt, Lab};
use super::report::{Benchmark, Refusal};

/// The number of rounds. It's odd, so that the median can't fall between two levels of load of equal length. It's
/// small, because each round needs a new set-up.
pub const ROUNDS: u32 = 5;

/// A benchmark and the results of its rounds so far.
struct BenchmarkRun<'a> {
    bench: &'a bench::Benchmark,
    found: Benchmark,
    /// Refusals, each with the number of rounds that had it.
    refused: Vec<(Refusal, u32)>,
}

impl<'a> BenchmarkRun<'a> {
    fn new(bench: &'a bench::Benchmark) -> Self {
        Self {
            bench,
            found: Benchmark {
                name: bench.name,
                mechanism: bench.mechanism,
                title: bench.title,
                ..Benchmark::default()
            },
            refused: Vec::new(),
        }
    }

    /// Runs the benchmark once more in this time, and takes its results from the lab. Returns whether a signal ended
    /// it.
    fn round(&mut self, lab: &mut Lab, budget: Duration) -> bool {
        self.found.rounds += 1;
        lab.budget = budget;
        let (name, round) = (self.bench.name, self.found.rounds);
        lab.progress.set_prefix(format!("{name} (round {round} of {ROUNDS})"));
        lab.progress.set_message("setting up");
        let begin = Instant::now();
        let result = (self.bench.run)(lab);
        self.found.seconds += begin.elapsed().as_secs_f64();
        for row in lab.rows.drain(..) {
            match self.found.rows.iter_mut().find(|r| r.key == row.key) {
                Some(earlier) => earlier.merge(row),
                None => self.found.rows.push(row),
            }
        }
        for warning in lab.warnings.drain(..) {
            if !self.found.warnings.contains(&warning) {
                self.found.warnings.push(warning);
            }
        }
        let interrupted = matches!(result, Err(Halt::Interrupted));
        // The other benchmarks can still run.
        if let Err(Halt::Failed(error)) = result {
            self.found.failed = Some(match round {
                1 => error.to_string(),
                _ => {
                    format!("{error} (in round {round} of {ROUNDS}; earlier measurements are kept)")
                }
            });
        }
        for refusal in lab.refused.drain(..) {
            match self.refused.iter_mut().find(|(r, _)| r.row == refusal.row) {
                Some((_, times)) => *times += 1,
                None => self.refused.push((refusal, 1)),
            }
        }
        interrupted
    }

    /// Returns its report. If a refusal did not happen in every round, it mentions the number of rounds.
    fn end(mut self) -> Benchmark {
        let rounds = self.found.rounds;
        for (mut refusal, times) in self.refused {
            if times < rounds {
                refusal.reason += &format!(" (in {times} of {rounds} rounds)");
            }
            self.found.refused.push(refusal);
        }
        self.found
    }
}

/// Runs the chosen benchmarks in `total` time without set-up.
///
/// Returns the results in the order of `chosen`, without benchmarks that weren't begun, and whether a signal ended the
/// run.
pub fn run(lab: &mut Lab, chosen: &[&bench::Benchmark], total: Duration) -> (Vec<Benchmark>, bool) {
    let weights: u32 = chosen.iter().map(|bench| bench.weight).sum();
    let mut courses: Vec<_> = chosen.iter().map(|bench| BenchmarkRun::new(bench)).collect();
    let mut interrupted = false;
    for turn in 0..chosen.len() * ROUNDS as usize {
        let course = &mut courses[turn % chosen.len()];
        if course.found.failed.is_some() {
            continue;
        }
        let budget = total * course.bench.weight / weights / ROUNDS;
        if course.round(lab, budget) || lab.stop.asked() {
            interrupted = true;
            break;
        }
    }
    let begun = courses.into_iter().filter(|course| course.found.rounds > 0);
    (begun.map(BenchmarkRun::end).collect(), interrupted)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io;

    use indicatif::ProgressBar;

    use super::super::lab::Stop;
    use super::super::report::Row;
    use super::*;

    thread_local! {
        /// The runs of benchmarks, with the time of each.
        static RAN: RefCell<Vec<(char, Duration)>> = const { RefCell::new(Vec::new()) };
    }

    /// Records that `name` runs. Returns its earlier number of runs, after it has measured a row.
    fn begin(name: char, lab: &mut Lab) -> usize {
        RAN.with_borrow_mut(|ran| {
            let before = ran.iter().filter(|(n, _)| *n == name).count();
            ran.push((name, lab.budget));
            lab.rows.push(Row::made_up("one", &[(before as f64, 0.0)]));
            before
        })
    }

    fn even(lab: &mut Lab) -> Result<(), Halt> {
        let before = begin('a', lab);
        lab.refuse_row("three", "never", None);
        if before == 2 {
            lab.refuse_row("four", "that time", None);
        }
        lab.warn("always");
        Ok(())
    }

    fn fails_later(lab: &mut Lab) -> Result<(), Halt> {
        match begin('d', lab) {
            2 => Err(io::Error::other("broken").into()),
            _ => Ok(()),
        }
    }

    fn signalled(lab: &mut Lab) -> Result<(), Halt> {
        match begin('e', lab) {
            1 => Err(Halt::Interrupted),
            _ => Ok(()),
        }
    }

    type Run = fn(&mut Lab) -> Result<(), Halt>;

    /// Returns the order of runs, the time of the first, their results, and whether they were interrupted.
    fn course(benches: &[(Run, u32)]) -> (String, Duration, Vec<Benchmark>, bool) {
        let (name, mechanism, title) = ("made up", "", "");
        let benches = benches.iter();
        let benches: Vec<_> = benches
            .map(|&(run, weight)| bench::Benchmark { name, mechanism, title, weight, run })
            .collect();
        let chosen: Vec<_> = benches.iter().collect();
        let mut lab = Lab::new(Stop::default(), vec![0], ProgressBar::hidden());
        RAN.take();
        let (found, interrupted) = run(&mut lab, &chosen, Duration::from_secs(10));
        let ran = RAN.take();
        (ran.iter().map(|(name, _)| name).collect(), ran[0].1, found, interrupted)
    }

    #[test]
    fn rounds_take_turns_and_nothing_is_told_twice() {
        let (order, first, found, interrupted) = course(&[(even, 2), (fails_later, 8)]);
        assert_eq!((&*order, interrupted), ("adadadaa", false));
        assert_eq!(first, Duration::from_secs(2) / ROUNDS);
        assert_eq!(found[0].rows.len(), 1);
        assert_eq!(found[0].rows[0].round_medians, [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!((found[0].rounds, found[1].rounds), (ROUNDS, 3));
        let reasons: Vec<_> = found[0].refused.iter().map(|of| of.reason.as_str()).collect();
        assert_eq!(reasons, ["never", "that time (in 1 of 5 rounds)"]);
        assert_eq!(found[0].warnings, ["always"]);
        // What fails in a later round keeps what it has.
        assert_eq!(found[1].rows[0].round_medians, [0.0, 1.0, 2.0]);
        let failed = found[1].failed.as_ref().unwrap();
        assert!(failed.contains("broken") && failed.contains("round 3 of 5"), "{failed}");
    }

    #[test]
    fn a_signal_ends_it_all_and_keeps_what_there_is() {
        let (order, _, found, interrupted) = course(&[(signalled, 1), (even, 1)]);
        assert_eq!((&*order, interrupted), ("eae", true));
        assert_eq!(found[0].rows[0].round_medians, [0.0, 1.0]);
        assert_eq!(found[1].rounds, 1);
    }
}

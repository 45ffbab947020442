//! Runs cases on threads, and shows the progress.

use super::args::ExploreArgs;
use anyhow::Context;
use quell_adversary::cases::Effort;
use quell_adversary::mutants::{self, MutantResult};
use quell_adversary::{Budget, Case, Coverage, Exploration, Mistake, Report, Session, explore};
use quell_model::cpu_time;
use quell_model::progress::{self, ProgressLine};
use rayon::prelude::*;
use rayon::{ThreadPoolBuildError, ThreadPoolBuilder};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Makes Ctrl-C and other ending signals set `stop`, so that the search prints its results. A second signal ends the
/// command at once.
pub fn end_on_signals(stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
    #[cfg(unix)]
    for &signal in signal_hook::consts::TERM_SIGNALS {
        let stop = Arc::clone(stop);
        // We use one exchange, because two threads may receive two signals at the same time.
        let ends = move || {
            if stop.swap(true, Relaxed) {
                signal_hook::low_level::exit(128 + signal);
            }
        };
        // SAFETY: an exchange and `_exit` are allowed in a signal handler, and neither panics.
        #[allow(unsafe_code)]
        let registered = unsafe { signal_hook::low_level::register(signal, ends) };
        registered.context("cannot wait for Ctrl-C")?;
    }
    Ok(())
}

pub struct CaseResult {
    pub case: Case<'static>,
    pub report: Report,
    /// The CPU time of the search, if the host measures it.
    pub spent: Option<Duration>,
}

/// Runs `task` for each number below `count` on `jobs` threads, and returns the results in order.
fn spread<T: Send>(
    count: usize,
    jobs: usize,
    task: impl Fn(usize) -> T + Sync + Send,
) -> Result<Vec<T>, ThreadPoolBuildError> {
    let threads = ThreadPoolBuilder::new().num_threads(jobs.min(count).max(1));
    // Threads take one number at a time, because a case may take a thousand times as long as its neighbour.
    let all = || (0..count).into_par_iter().with_max_len(1).map(task).collect();
    Ok(threads.build()?.install(all))
}

/// Searches all cases, until `stop` is set. Cases that had begun by then have partial results.
///
/// Calls `found` for each case that was searched to its end, with the index of the case.
pub fn explore_all(
    args: &ExploreArgs,
    cases: &[Case<'static>],
    effort: Effort,
    jobs: usize,
    stop: &AtomicBool,
    found: impl Fn(usize, &CaseResult) + Sync + Send,
) -> Result<Vec<CaseResult>, ThreadPoolBuildError> {
    let cases: Vec<_> = cases.iter().map(|&case| (case, CaseProgress::default())).collect();
    let (violations, fired) = (AtomicU64::new(0), AtomicU64::new(0));
    let began = Instant::now();
    let look = || {
        let share: f64 = cases.iter().map(|(_, spent)| spent.share()).sum();
        let schedules = cases.iter().map(|(_, spent)| spent.schedules.load(Relaxed)).sum();
        ProgressLine {
            share: share / cases.len() as f64,
            said: format!(
                "{}, {} transitions fired, {} violations",
                rate(schedules, began),
                fired.load(Relaxed),
                violations.load(Relaxed),
            ),
        }
    };
    let search = |index: usize| {
        if stop.load(Relaxed) {
            return None;
        }
        let (case, spent): &(Case<'static>, CaseProgress) = &cases[index];
        let exploration = Exploration {
            case: *case,
            budget: effort.budget(cases.len(), jobs),
            seed: args.seed,
            depth: args.depth,
        };
        let begun = Instant::now();
        let go_on = |now: u64, coverage: &Coverage| {
            let share = match exploration.budget {
                Budget::Schedules(all) => {
                    now as f64 / all.div_ceil(case.scenario.one_in).max(1) as f64
                }
                Budget::Until(end) => begun.elapsed().div_duration_f64(end - begun),
                // We know the number of schedules only when all of them were run.
                Budget::Exhaustive(_) => 0.0,
            };
            spent.tell(now, share);
            let transitions = coverage.iter().filter(|(_, count)| *count > 0).count();
            fired.fetch_max(transitions as u64, Relaxed);
            !stop.load(Relaxed)
        };
        let (report, time) =
            cpu_time::spent_on(|| explore(&mut Session::new(*case), &exploration, go_on));
        spent.tell(report.schedules, 1.0);
        violations.fetch_add(u64::from(report.failure.is_some()), Relaxed);
        let searched = CaseResult { case: *case, report, spent: time };
        // A case that `stop` cut short mustn't be kept as a result.
        if !stop.load(Relaxed) {
            found(index, &searched);
        }
        Some(searched)
    };
    let results = progress::show("searching", look, || spread(cases.len(), jobs, search))?;
    Ok(results.into_iter().flatten().collect())
}

/// The progress of a case's search.
#[derive(Default)]
struct CaseProgress {
    schedules: AtomicU64,
    millionths: AtomicU64,
}

impl CaseProgress {
    fn tell(&self, schedules: u64, share: f64) {
        self.schedules.store(schedules, Relaxed);
        self.millionths.store((share.clamp(0.0, 1.0) * 1e6) as u64, Relaxed);
    }

    fn share(&self) -> f64 {
        self.millionths.load(Relaxed) as f64 / 1e6
    }
}

fn rate(schedules: u64, began: Instant) -> String {
    let rate = schedules as f64 / began.elapsed().as_secs_f64();
    format!("{schedules} schedules, {rate:.0}/s")
}

pub fn test_all(
    args: &ExploreArgs,
    mutants: &[Mistake],
    jobs: usize,
) -> Result<Vec<MutantResult>, ThreadPoolBuildError> {
    let [tested, killed, schedules] = [const { AtomicU64::new(0) }; 3];
    let began = Instant::now();
    let look = || ProgressLine {
        share: tested.load(Relaxed) as f64 / mutants.len() as f64,
        said: format!(
            "{} of {} mutants killed, {}",
            killed.load(Relaxed),
            mutants.len(),
            rate(schedules.load(Relaxed), began)
        ),
    };
    let test = |index: usize| {
        let test = mutants::test(mutants[index], args.seed, |news| {
            schedules.fetch_add(news, Relaxed);
            true
        });
        killed.fetch_add(u64::from(test.killed.is_some()), Relaxed);
        tested.fetch_add(1, Relaxed);
        test
    };
    progress::show("testing", look, || spread(mutants.len(), jobs, test))
}

//! Cases over threads, and progress.

use super::args::ExploreArgs;
use indicatif::{ProgressBar, ProgressStyle};
use quell_adversary::mutants::{self, Tested};
use quell_adversary::{Budget, Campaign, Case, Mistake, Report, Session, explore};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What a case came to.
pub struct Searched {
    pub case: Case<'static>,
    pub report: Report,
}

fn bar(length: u64, quiet: bool, what: &str) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(length);
    let template = format!("{{elapsed}} {{bar:24}} {{pos}}/{{len}} {what}  {{msg}}");
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Does `task` for each number below `count`, on `jobs` threads; results in order.
fn spread<T: Send>(count: usize, jobs: usize, task: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(count));
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(count).max(1) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Relaxed);
                    if index >= count {
                        break;
                    }
                    let result = task(index);
                    let mut results = results.lock().unwrap_or_else(|broken| broken.into_inner());
                    results.push((index, result));
                }
            });
        }
    });
    let mut results = results
        .into_inner()
        .unwrap_or_else(|broken| broken.into_inner());
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Searches all cases.
pub fn explore_all(
    args: &ExploreArgs,
    cases: &[Case<'static>],
    budget: impl Fn(Instant) -> Budget + Sync,
    jobs: usize,
) -> Vec<Searched> {
    let bar = bar(cases.len() as u64, args.json, "cases");
    let schedules = AtomicU64::new(0);
    let violations = AtomicU64::new(0);
    let fired = AtomicU64::new(0);
    let began = Instant::now();
    let results = spread(cases.len(), jobs, |index| {
        let case = cases[index];
        let mut counted = 0;
        let campaign = Campaign {
            case,
            budget: budget(Instant::now()),
            seed: args.seed.wrapping_mul(1 << 32),
            depth: args.depth,
        };
        let report = explore(&mut Session::new(case), &campaign, |now, coverage| {
            schedules.fetch_add(now - counted, Relaxed);
            counted = now;
            let transitions = coverage.iter().filter(|(_, count)| *count > 0).count();
            fired.fetch_max(transitions as u64, Relaxed);
            let rate = schedules.load(Relaxed) as f64 / began.elapsed().as_secs_f64();
            bar.set_message(format!(
                "{} schedules, {rate:.0}/s, {} transitions fired, {} violations",
                schedules.load(Relaxed),
                fired.load(Relaxed),
                violations.load(Relaxed),
            ));
            true
        });
        schedules.fetch_add(report.schedules - counted, Relaxed);
        violations.fetch_add(u64::from(report.failure.is_some()), Relaxed);
        bar.inc(1);
        Searched { case, report }
    });
    bar.finish_and_clear();
    results
}

/// Tests all mutants.
pub fn test_all(args: &ExploreArgs, mutants: &[Mistake], jobs: usize) -> Vec<Tested> {
    let bar = bar(mutants.len() as u64, args.json, "mutants");
    let killed = AtomicU64::new(0);
    let schedules = AtomicU64::new(0);
    let began = Instant::now();
    let tell = |name: &str| {
        let sum = schedules.load(Relaxed);
        let rate = sum as f64 / began.elapsed().as_secs_f64();
        bar.set_message(format!(
            "{} killed, {sum} schedules, {rate:.0}/s, {name}",
            killed.load(Relaxed)
        ));
    };
    let tested = spread(mutants.len(), jobs, |index| {
        let mutant = mutants[index];
        let tested = mutants::test(mutant, args.seed, |news| {
            schedules.fetch_add(news, Relaxed);
            tell(mutant.name());
            true
        });
        if tested.killed.is_some() {
            killed.fetch_add(1, Relaxed);
        } else {
            bar.println(format!("{} survived", mutant.name()));
        }
        tell(mutant.name());
        bar.inc(1);
        tested
    });
    bar.finish_and_clear();
    tested
}

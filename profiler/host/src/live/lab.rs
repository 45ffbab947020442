//! Measures rows of timed samples.
//!
//! The measuring thread is pinned to one CPU, and spinning threads to one other CPU each. Counters are read only around
//! the timed part of each sample. So preparation isn't charged to it: for example, mapping memory, or reading paged-out
//! pages back.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use quell_threads::{cores, pulse};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::counters::{self, OtherLoad};
use super::report::{Check, Refusal, Row, Sample};
use crate::process::{Child, thread_cpu_time};

/// The reason why a benchmark ended early.
#[derive(Debug, thiserror::Error)]
pub enum Halt {
    /// A signal arrived.
    #[error("interrupted")]
    Interrupted,
    /// A system call failed unexpectedly.
    #[error(transparent)]
    Failed(#[from] io::Error),
}

/// A flag that `SIGINT`, `SIGTERM` and `SIGHUP` set. It is checked between samples.
#[derive(Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Takes the three signals over for the rest of the process.
    pub fn on_signals() -> io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
        }
        Ok(Self(flag))
    }

    /// Returns whether a signal arrived.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns an error if a signal arrived.
    pub fn check(&self) -> Result<(), Halt> {
        if self.asked() { Err(Halt::Interrupted) } else { Ok(()) }
    }
}

/// Threads on other CPUs that touch nothing: they keep the address space loaded there.
pub struct Spinners {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Spinners {
    /// Starts one thread on each of `cpus` and waits until all run.
    pub fn start(cpus: &[usize]) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut spinners = Self { stop: Arc::clone(&stop), threads: Vec::new() };
        for &cpu in cpus {
            let stop = Arc::clone(&stop);
            let running = Arc::new(AtomicBool::new(false));
            let ready = Arc::clone(&running);
            spinners.threads.push(std::thread::Builder::new().name(format!("spin-{cpu}")).spawn(
                move || {
                    // If the CPU was removed, the thread spins elsewhere and the interrupts show it.
                    let _ = cores::pin(&[cpu]);
                    ready.store(true, Ordering::Release);
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                },
            )?);
            while !running.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        }
        Ok(spinners)
    }

    fn cpu_times(&self) -> Vec<Duration> {
        self.threads.iter().filter_map(|t| thread_cpu_time(t).ok()).collect()
    }

    /// Returns the share of the time since `then` for which a thread had a CPU, for the thread with the least.
    fn least_share(&self, then: Vec<Duration>, wall: Duration) -> Option<f64> {
        self.cpu_times()
            .into_iter()
            .zip(then)
            .map(|(now, then)| (now - then).as_secs_f64() / wall.as_secs_f64())
            .min_by(f64::total_cmp)
    }
}

impl Drop for Spinners {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A row to measure: its name, without figures.
pub struct RowSpec<'a> {
    row: Row,
    /// The threads that spin meanwhile.
    spinners: Option<&'a Spinners>,
    /// A child that takes part. Its CPU time counts as this process's.
    child: Option<&'a Child>,
}

impl<'a> RowSpec<'a> {
    /// Creates the usual form: one call for each `op`, alone.
    pub fn single(key: impl Into<String>, op: &'static str) -> Self {
        let row = Row { key: key.into(), op, ..Row::default() };
        Self { row, spinners: None, child: None }
    }

    /// Creates the batched form of the row `single`.
    pub fn batched(key: impl Into<String>, single: impl Into<String>, op: &'static str) -> Self {
        let mut spec = Self::single(key, op);
        spec.row.instead_of = Some(single.into());
        spec
    }

    /// Adds threads that spin in the address space.
    pub fn against(mut self, spinners: &'a Spinners) -> Self {
        self.row.targets = spinners.threads.len();
        self.spinners = Some(spinners);
        self
    }

    /// Adds a child that takes part.
    pub fn beside(mut self, child: &'a Child) -> Self {
        self.child = Some(child);
        self
    }

    /// Sets the TLB interrupts of one operation on undisturbed targets: one for each.
    pub fn interrupts_each(mut self) -> Self {
        self.row.expected_interrupts = Some(self.row.targets as f64);
        self
    }

    /// Adds a check of its counters.
    pub fn checked(mut self, check: Check) -> Self {
        self.row.check = Some(check);
        self
    }
}

/// Measures rows, and keeps the results of the current benchmark.
pub struct Lab {
    /// Set to end early.
    pub stop: Stop,
    /// CPUs to use; the measuring thread is pinned to the first.
    pub cpus: Vec<usize>,
    /// Progress over the whole run, in tenths of a second of the budget.
    pub progress: ProgressBar,
    /// The time for the current benchmark.
    pub budget: Duration,
    /// The time for each of its rows.
    pub slice: Duration,
    /// Rows so far.
    pub rows: Vec<Row>,
    /// Parts that were refused so far.
    pub refused: Vec<Refusal>,
    /// Warnings about the benchmark as a whole.
    pub warnings: Vec<String>,
}

impl Lab {
    /// Creates a lab without results.
    pub fn new(stop: Stop, cpus: Vec<usize>, progress: ProgressBar) -> Self {
        let (budget, slice) = (Duration::ZERO, Duration::ZERO);
        let (rows, refused, warnings) = (Vec::new(), Vec::new(), Vec::new());
        Self { stop, cpus, progress, budget, slice, rows, refused, warnings }
    }

    /// Divides the benchmark's time among `rows` rows.
    pub fn split(&mut self, rows: usize) {
        self.slice = self.budget / rows.max(1) as u32;
    }

    /// Records that one row can't run.
    pub fn refuse_row(
        &mut self,
        row: impl Into<String>,
        reason: impl Into<String>,
        remedy: Option<&str>,
    ) {
        self.refused.push(Refusal {
            row: row.into(),
            reason: reason.into(),
            remedy: remedy.map(str::to_owned),
        });
    }

    /// Adds a warning once.
    pub fn warn(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.warnings.contains(&text) {
            self.warnings.push(text);
        }
    }

    /// Measures a row: `op` is timed and returns its number of operations.
    pub fn row(
        &mut self,
        plan: RowSpec,
        mut op: impl FnMut() -> io::Result<u64>,
    ) -> Result<(), Halt> {
        self.measure(plan, &mut || Ok(()), &mut op)
    }

    /// Measures a row: `prepare` runs before each `op`, untimed.
    pub fn prepared_row(
        &mut self,
        plan: RowSpec,
        mut prepare: impl FnMut() -> io::Result<()>,
        mut op: impl FnMut() -> io::Result<u64>,
    ) -> Result<(), Halt> {
        self.measure(plan, &mut prepare, &mut op)
    }

    // We compile this part once, not once for each row.
    fn measure(
        &mut self,
        plan: RowSpec,
        prepare: &mut dyn FnMut() -> io::Result<()>,
        op: &mut dyn FnMut() -> io::Result<u64>,
    ) -> Result<(), Halt> {
        let RowSpec { mut row, spinners, child } = plan;
        self.progress.set_message(row.key.clone());
        let children = || child.and_then(|child| child.cpu_time().ok()).unwrap_or_default();
        // Warm up: first-touch faults of code and page tables, the page cache, the spinners' address space.
        prepare()?;
        op()?;
        let begin = Instant::now();
        let company = OtherLoad::start(children())?;
        let spun_before = spinners.map(Spinners::cpu_times);
        while row.samples.len() < 3 || begin.elapsed() < self.slice {
            self.stop.check()?;
            if begin.elapsed() > self.slice * 3 && !row.samples.is_empty() {
                break;
            }
            prepare()?;
            let before = counters::now()?;
            let pulse = pulse::take();
            let start = Instant::now();
            let done = op()?;
            let took = start.elapsed();
            let pulse = pulse.max(pulse::take());
            let interrupts = row.count(&before, &counters::now()?);
            if done == 0 {
                self.stop.check()?;
                return Err(io::Error::other(format!("{}: no progress", row.key)).into());
            }
            row.ops += done;
            let each = |total: f64| total / done as f64;
            row.samples.push(Sample {
                ns: each(took.as_nanos() as f64),
                interrupts: interrupts.map(|n| each(n as f64)),
                pulse,
                round: 0,
            });
        }
        let wall = begin.elapsed();
        let spun = spinners.zip(spun_before);
        row.spinner_share = spun.and_then(|(spinners, then)| spinners.least_share(then, wall));
        row.sharing = company.end(children())?;
        row.conclude();
        row.round_medians = vec![row.ns.median];
        self.rows.push(row);
        self.progress.inc((begin.elapsed().as_millis() / 100) as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinners_run_and_stop() {
        let cpus = cores::allowed().unwrap();
        let spinners = Spinners::start(&cpus[cpus.len() - 1..]).unwrap();
        let before = spinners.cpu_times();
        while spinners.cpu_times() == before {
            std::thread::yield_now();
        }
        let stop = Arc::clone(&spinners.stop);
        drop(spinners);
        assert!(stop.load(Ordering::Relaxed));
        assert_eq!(Arc::strong_count(&stop), 1, "every thread has ended");
    }

    #[test]
    fn a_signal_is_noticed_and_survived() {
        let stop = Stop::on_signals().unwrap();
        assert!(stop.check().is_ok());
        signal_hook::low_level::raise(SIGHUP).unwrap();
        assert!(matches!(stop.check(), Err(Halt::Interrupted)));
    }
}

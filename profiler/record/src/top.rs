//! Computes the cost of shootdowns for each process, second by second, as `top` does.
//!
//! The kernel adds up the interrupts that each process sends and takes, and its waits ([`crate::perf::bpf`]). Here the
//! sums of each process become a row. Nothing is recorded and nothing is written.
//!
//! A flush that begins in one second and ends in the next counts in the second one. To limit the cost, we may stop
//! adding up for a while. Then the flushes of each process since the start are scaled up to the whole time since the
//! start, and a second gets the difference to the one before.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::perf::file::Place;
use crate::perf::live::numbers;
use crate::perf::symbols::Symbols;
use crate::perf::{Item, Progress, Sample, Sink, counters};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::attribute::site::kind_of_thread;
use crate::event::{self, Event};
use crate::figures::Range;

/// The number of new processes after which we forget those that ended. A host may start new processes for months.
const MOST_PROCESSES: usize = 1 << 12;

/// The figures of one process in one second. Counts and times are per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// The process.
    pub pid: u32,
    /// Its name, if it's known.
    pub program: String,
    /// The name of a thread that flushes at the place with most of its interrupts, unless it's the program's. `worker-*`
    /// has a number at its end.
    pub thread: Option<String>,
    /// Its CPU time in nanoseconds since its last row, which the kernel counts in steps of 10 ms. `None` if it has ended.
    pub cpu_ns: Option<u64>,
    /// Flushes of other CPUs that it requested.
    pub flushes: u64,
    /// Interrupts that it sent for them.
    pub sent: u64,
    /// Interrupts that it took.
    pub taken: u64,
    /// The time that it waited for its last target to flush, in nanoseconds.
    pub waited_ns: Option<f64>,
    /// The time that it lost as a target, to any initiator. Contains the work, but not the interrupt around it.
    pub stolen: Range,
    /// The call that sent most of its interrupts.
    pub call: String,
}

impl Row {
    /// Returns its total cost in nanoseconds: waits and lost time.
    fn paid(&self) -> f64 {
        self.waited_ns.unwrap_or(0.0) + self.stolen.most
    }
}

/// The figures of one second.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TopSecond {
    /// Seconds since the start.
    pub at: f64,
    /// The share of the second in which flushes were added up.
    pub recorded: f64,
    /// Lost events. Always 0, because nothing is recorded.
    pub lost: u64,
    /// Shootdown interrupts that were sent.
    pub interrupts: u64,
    /// The processes that sent or took any, by falling cost.
    pub processes: Vec<Row>,
}

/// A process's sums since the last second.
#[derive(Default)]
struct Sum {
    row: Row,
    calls: FxHashMap<String, u64>,
    /// The interrupts of the place with most of them, and a thread that flushes there.
    most: (u64, u32),
}

/// Returns the name of a thread, if it's another than that of its program.
fn thread_name(pid: u32, tid: u32, program: &str) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
    let name = kind_of_thread(name.trim_end());
    (name != program).then_some(name)
}

/// The CPU time of a process when we last read it.
struct RunTime {
    ran_ns: Option<u64>,
    looked: Instant,
}

impl RunTime {
    /// Reads all processes.
    fn of_all() -> FxHashMap<u32, RunTime> {
        let read = |pid| {
            let time = RunTime { ran_ns: counters::process_ns(pid), looked: Instant::now() };
            (pid, time)
        };
        numbers(Path::new("/proc")).into_iter().map(read).collect()
    }

    /// Returns the CPU time since the last call, per second.
    fn used(&mut self, pid: u32) -> Option<u64> {
        let (ran_ns, looked) = (counters::process_ns(pid), Instant::now());
        let since = (looked - self.looked).as_secs_f64().max(1e-9);
        let used = ran_ns?.saturating_sub(self.ran_ns.unwrap_or(0)) as f64 / since;
        (self.ran_ns, self.looked) = (ran_ns, looked);
        Some(used.round() as u64)
    }
}

/// Adds up the samples of a recorder, and calls `tell` each second. An error of `tell` ends the recording.
pub struct Top<F> {
    tell: F,
    sums: FxHashMap<u32, Sum>,
    known: FxHashMap<u32, RunTime>,
    /// The number of processes at the last reading of all.
    all: usize,
    last: (Duration, Duration),
    begun: Instant,
}

impl<F: FnMut(TopSecond) -> io::Result<()>> Top<F> {
    /// Creates empty sums.
    pub fn new(tell: F) -> Self {
        let known = RunTime::of_all();
        Top {
            tell,
            sums: FxHashMap::default(),
            all: known.len(),
            known,
            last: (Duration::ZERO, Duration::ZERO),
            begun: Instant::now(),
        }
    }

    /// Computes the figures of the second that ends now.
    fn end(&mut self, progress: Progress) -> TopSecond {
        let (elapsed, summed) = (progress.elapsed, progress.summed);
        let seconds = elapsed.saturating_sub(self.last.0).as_secs_f64().max(1e-9);
        let recorded = summed.saturating_sub(self.last.1).as_secs_f64() / seconds;
        self.last = (elapsed, summed);
        if self.known.len() > self.all + MOST_PROCESSES {
            self.known = RunTime::of_all();
            self.all = self.known.len();
        }
        let mut processes = Vec::new();
        for (pid, Sum { row, calls, most }) in self.sums.drain() {
            let (_, thread) = most;
            // All others started in this second.
            let known =
                self.known.entry(pid).or_insert(RunTime { ran_ns: Some(0), looked: self.begun });
            // Two calls may have sent equally many. Then choose by name, so that the row doesn't change from second to
            // second.
            let busiest = calls.into_iter().max_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
            let each = |count: u64| (count as f64 / seconds).round() as u64;
            let row = Row {
                pid,
                cpu_ns: known.used(pid),
                flushes: each(row.flushes),
                sent: each(row.sent),
                taken: each(row.taken),
                waited_ns: row.waited_ns.map(|ns| ns / seconds),
                stolen: row.stolen.times(1.0 / seconds),
                thread: thread_name(pid, thread, &row.program),
                call: busiest.map(|(call, _)| call).unwrap_or_default(),
                ..row
            };
            if row.sent > 0 || row.taken > 0 {
                processes.push(row);
            }
        }
        self.begun = Instant::now();
        processes.sort_by(|a, b| {
            let pays = b.paid().total_cmp(&a.paid());
            pays.then(b.sent.cmp(&a.sent)).then(a.pid.cmp(&b.pid))
        });
        TopSecond {
            at: elapsed.as_secs_f64(),
            recorded: recorded.min(1.0),
            lost: 0,
            interrupts: processes.iter().map(|row| row.sent).sum(),
            processes,
        }
    }
}

impl<F: FnMut(TopSecond) -> io::Result<()>> Sink for Top<F> {
    type Output = ();

    fn item(&mut self, _: &Item) -> io::Result<()> {
        Ok(())
    }

    fn sample(&mut self, sample: &Sample, _: &[Place], _: &mut Symbols) -> io::Result<()> {
        // The idle task has no useful figures.
        if sample.pid == 0 {
            return Ok(());
        }
        match event::of(sample) {
            Event::Summed { call, flushes, thread } => {
                let sum = self.sum(sample);
                sum.most = sum.most.max((flushes.interrupts, thread));
                sum.row.flushes += flushes.remote;
                sum.row.sent += flushes.interrupts;
                *sum.row.waited_ns.get_or_insert(0.0) += flushes.waited_ns as f64;
                let call = if call.is_empty() { "page fault" } else { call };
                *sum.calls.entry(call.to_owned()).or_default() += flushes.interrupts;
            }
            Event::SummedTaken { interrupts, work_ns } => {
                let sum = self.sum(sample);
                sum.row.taken += interrupts;
                let work = work_ns as f64;
                sum.row.stolen = sum.row.stolen.plus(Range { least: work, most: work });
            }
            _ => {}
        }
        Ok(())
    }

    fn second(&mut self, progress: Progress) -> io::Result<()> {
        let second = self.end(progress);
        (self.tell)(second)
    }

    fn finish(self, _: &mut Symbols) -> io::Result<()> {
        Ok(())
    }
}

impl<F> Top<F> {
    fn sum(&mut self, sample: &Sample) -> &mut Sum {
        let sum = self.sums.entry(sample.pid).or_default();
        sum.row.waited_ns.get_or_insert(0.0);
        if sum.row.program.is_empty() {
            sum.row.program = sample.comm.to_string();
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::perf::Value;

    fn sample(event: &str, pid: u32, call: &str, fields: &[(&str, u64)]) -> Sample {
        let mut all = vec![("call".into(), Value::Text(call.into()))];
        let fields = fields.iter();
        all.extend(fields.map(|&(name, value)| (name.into(), Value::Unsigned(value))));
        Sample {
            time_ns: 1,
            cpu: 0,
            pid,
            tid: pid,
            comm: format!("program-{pid}").into(),
            event: event.into(),
            fields: all,
            stack: Arc::new([]),
        }
    }

    fn progress(elapsed_ms: u64, summed_ms: u64) -> Progress {
        Progress {
            elapsed: Duration::from_millis(elapsed_ms),
            summed: Duration::from_millis(summed_ms),
            kept: 0,
            lost: 0,
        }
    }

    #[test]
    fn each_second_has_its_own_figures_and_a_line_for_each_process() {
        let mut told: Vec<TopSecond> = Vec::new();
        let mut top = Top::new(|second| {
            told.push(second);
            Ok(())
        });
        let mut symbols = Symbols::default();
        for (count, at) in [(30, 1000), (4, 2000), (0, 3000)] {
            let flushes =
                [("remote", count), ("interrupts", 2 * count), ("waited_ns", count * 5_000)];
            let taken = [("interrupts", 2 * count), ("work_ns", count * 800)];
            let munmap = [("remote", count / 4), ("interrupts", count / 4)];
            for sample in [
                sample("sums:flushes", 10, "madvise", &flushes),
                sample("sums:flushes", 10, "munmap", &munmap),
                sample("sums:taken", 20, "", &taken),
                sample("sums:flushes", 0, "", &flushes),
            ] {
                top.sample(&sample, &[], &mut symbols).unwrap();
            }
            top.second(progress(at, at / 2)).unwrap();
        }
        drop(top);
        let row = |second: &TopSecond, pid| {
            let mut rows = second.processes.iter();
            rows.find(|row| row.pid == pid).cloned().unwrap()
        };
        assert_eq!((told[0].interrupts, told[1].interrupts), (67, 9));
        let (sender, victim) = (row(&told[1], 10), row(&told[1], 20));
        assert_eq!((sender.sent, sender.taken, sender.flushes), (9, 0, 5));
        assert_eq!((victim.sent, victim.taken), (0, 8));
        assert_eq!((&*sender.program, &*sender.call), ("program-10", "madvise"));
        assert_eq!((sender.waited_ns, victim.waited_ns), (Some(20_000.0), Some(0.0)));
        assert_eq!(victim.stolen.most, 3_200.0);
        assert!((told[1].recorded - 0.5).abs() < 1e-9);
        // Nothing happened in the third second.
        assert!(told[2].processes.is_empty(), "{:?}", told[2]);
    }

    #[test]
    fn a_thread_with_a_name_of_its_own_is_named_without_its_number() {
        let thread = std::thread::Builder::new().name("flusher-7".into());
        let named = thread.spawn(|| {
            let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let name = |program| thread_name(std::process::id(), tid, program);
            (name("server"), name("flusher-*"))
        });
        let (other, same) = named.unwrap().join().unwrap();
        assert_eq!((other.as_deref(), same), (Some("flusher-*"), None));
    }
}

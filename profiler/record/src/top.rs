//! What shootdowns cost each process, second by second, while it happens.
//!
//! The kernel adds up what each process sends, waits for and takes ([`crate::perf::bpf`]); here that becomes a line for each.
//! Nothing is recorded and nothing is written. A flush that begins in one second and ends in the next is counted in the second one.
//! Where nothing was added up for a part of a second, because more would have cost too much, its figures are what the rest stands
//! for; of a second in which nothing was there are none.

use std::io;
use std::time::{Duration, Instant};

use crate::perf::file::Place;
use crate::perf::symbols::Symbols;
use crate::perf::{Item, Progress, Sample, Sink, counters};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::event::{self, Event};
use crate::figures::Range;

/// After so many processes, what is known of all of them is forgotten: hosts start processes for months.
const MOST_PROCESSES: usize = 1 << 12;

/// What one process did and suffered in a second. Counts and times are for a second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// The process.
    pub pid: u32,
    /// Its name, as far as it is known.
    pub program: String,
    /// Its time on CPUs, as the kernel counts it in steps of 10 ms, in nanoseconds; `None` if it has ended.
    pub cpu_ns: Option<u64>,
    /// Flushes of other CPUs that it asked for.
    pub flushes: u64,
    /// Interrupts that it sent for them.
    pub sent: u64,
    /// Interrupts that it took.
    pub taken: u64,
    /// What it waited for its targets, in nanoseconds: until the last of them had flushed.
    pub waited_ns: Option<f64>,
    /// The time that it lost as a target, to any initiator: the work without the interrupt around it.
    pub stolen: Range,
    /// The call by which it sent most.
    pub call: String,
}

impl Row {
    /// What it paid altogether, in nanoseconds.
    fn paid(&self) -> f64 {
        self.waited_ns.unwrap_or(0.0) + self.stolen.most
    }
}

/// A second.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Second {
    /// Seconds since it began.
    pub at: f64,
    /// In which share of it flushes were added up.
    pub recorded: f64,
    /// Events that were lost in it: none, as nothing is recorded.
    pub lost: u64,
    /// Interrupts that were sent to flush.
    pub interrupts: u64,
    /// The processes that sent or took any, those that pay most first.
    pub processes: Vec<Row>,
}

/// What was added up of a process since the last second.
#[derive(Default)]
struct Sum {
    row: Row,
    /// Interrupts by call.
    calls: FxHashMap<String, u64>,
}

/// A process by the time that it had run when that was last looked at.
struct RunTime {
    ran_ns: Option<u64>,
    looked: Instant,
}

impl RunTime {
    fn new(pid: u32) -> Self {
        RunTime {
            ran_ns: counters::process_ns(pid),
            looked: Instant::now(),
        }
    }

    /// How much of a second it has run on average since this was last asked.
    fn used(&mut self, pid: u32) -> Option<u64> {
        let (ran_ns, looked) = (counters::process_ns(pid), Instant::now());
        let since = (looked - self.looked).as_secs_f64().max(1e-9);
        let used = ran_ns?.saturating_sub(self.ran_ns.unwrap_or(0)) as f64 / since;
        (self.ran_ns, self.looked) = (ran_ns, looked);
        Some(used.round() as u64)
    }
}

/// Adds up what a recorder hands it, and tells each second to `tell`; an error of it ends the recording.
pub struct Top<F> {
    tell: F,
    sums: FxHashMap<u32, Sum>,
    known: FxHashMap<u32, RunTime>,
    last: (Duration, Duration),
}

impl<F: FnMut(Second) -> io::Result<()>> Top<F> {
    /// Nothing yet.
    pub fn new(tell: F) -> Self {
        Top {
            tell,
            sums: FxHashMap::default(),
            known: FxHashMap::default(),
            last: (Duration::ZERO, Duration::ZERO),
        }
    }

    /// What the second was that ends now.
    fn end(&mut self, progress: Progress) -> Second {
        let (elapsed, summed) = (progress.elapsed, progress.summed);
        let seconds = elapsed.saturating_sub(self.last.0).as_secs_f64().max(1e-9);
        let recorded = summed.saturating_sub(self.last.1).as_secs_f64() / seconds;
        self.last = (elapsed, summed);
        if self.known.len() > MOST_PROCESSES {
            self.known.clear();
        }
        let mut processes = Vec::new();
        for (pid, Sum { row, calls }) in self.sums.drain() {
            let known = self.known.entry(pid).or_insert_with(|| RunTime::new(pid));
            // Of two calls that sent as much, the same one each time.
            let most = calls
                .into_iter()
                .max_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
            let each = |count: u64| (count as f64 / seconds).round() as u64;
            let row = Row {
                pid,
                cpu_ns: known.used(pid),
                flushes: each(row.flushes),
                sent: each(row.sent),
                taken: each(row.taken),
                waited_ns: row.waited_ns.map(|ns| ns / seconds),
                stolen: row.stolen.times(1.0 / seconds),
                call: most.map(|(call, _)| call).unwrap_or_default(),
                ..row
            };
            if row.sent > 0 || row.taken > 0 {
                processes.push(row);
            }
        }
        processes.sort_by(|a, b| {
            let pays = b.paid().total_cmp(&a.paid());
            pays.then(b.sent.cmp(&a.sent)).then(a.pid.cmp(&b.pid))
        });
        Second {
            at: elapsed.as_secs_f64(),
            recorded: recorded.min(1.0),
            lost: 0,
            interrupts: processes.iter().map(|row| row.sent).sum(),
            processes,
        }
    }
}

impl<F: FnMut(Second) -> io::Result<()>> Sink for Top<F> {
    type Output = ();

    fn item(&mut self, _: &Item) -> io::Result<()> {
        Ok(())
    }

    fn sample(&mut self, sample: &Sample, _: &[Place], _: &mut Symbols) -> io::Result<()> {
        // The idle task's is of no use.
        if sample.pid == 0 {
            return Ok(());
        }
        match event::of(sample) {
            Event::Summed { call, flushes } => {
                let sum = self.sum(sample);
                sum.row.flushes += flushes.remote;
                sum.row.sent += flushes.interrupts;
                *sum.row.waited_ns.get_or_insert(0.0) += flushes.waited_ns as f64;
                let call = if call.is_empty() { "page fault" } else { call };
                *sum.calls.entry(call.to_owned()).or_default() += flushes.interrupts;
            }
            Event::SummedTaken {
                interrupts,
                work_ns,
            } => {
                let sum = self.sum(sample);
                sum.row.taken += interrupts;
                let work = Range::from((work_ns as f64, work_ns as f64));
                sum.row.stolen = sum.row.stolen.plus(work);
            }
            _ => {}
        }
        Ok(())
    }

    fn second(&mut self, progress: Progress) -> io::Result<()> {
        let second = self.end(progress);
        (self.tell)(second)
    }

    fn written(&self) -> u64 {
        0
    }

    fn finish(self, _: &mut Symbols) -> io::Result<()> {
        Ok(())
    }
}

impl<F> Top<F> {
    /// What was added up of the sample's process.
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
            recorded: Duration::ZERO,
            summed: Duration::from_millis(summed_ms),
            kept: 0,
            lost: 0,
            bytes: 0,
        }
    }

    #[test]
    fn each_second_has_its_own_figures_and_a_line_for_each_process() {
        let mut told: Vec<Second> = Vec::new();
        let mut top = Top::new(|second| {
            told.push(second);
            Ok(())
        });
        let mut symbols = Symbols::default();
        for (count, at) in [(30, 1000), (4, 2000), (0, 3000)] {
            let flushes = [
                ("remote", count),
                ("interrupts", 2 * count),
                ("waited_ns", count * 5_000),
            ];
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
        let row = |second: &Second, pid| {
            let mut rows = second.processes.iter();
            rows.find(|row| row.pid == pid).cloned().unwrap()
        };
        assert_eq!((told[0].interrupts, told[1].interrupts), (67, 9));
        let (sender, victim) = (row(&told[1], 10), row(&told[1], 20));
        assert_eq!((sender.sent, sender.taken, sender.flushes), (9, 0, 5));
        assert_eq!((victim.sent, victim.taken), (0, 8));
        assert_eq!((&*sender.program, &*sender.call), ("program-10", "madvise"));
        assert_eq!(
            (sender.waited_ns, victim.waited_ns),
            (Some(20_000.0), Some(0.0))
        );
        assert_eq!(victim.stolen.most, 3_200.0);
        assert!((told[1].recorded - 0.5).abs() < 1e-9);
        // Nothing happened in the third.
        assert!(told[2].processes.is_empty(), "{:?}", told[2]);
    }
}

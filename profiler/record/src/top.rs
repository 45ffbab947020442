//! What shootdowns cost each process, second by second, while it happens.
//!
//! The same arithmetic as for a recording ([`crate::attribute`]), with a process in the place of a program, and the
//! difference between two seconds in the place of a sum. Nothing is written anywhere, and the stacks are the kernel's
//! alone: they say which call it was, not from where in the program.
//!
//! Only the flushes themselves are recorded, neither system calls nor context switches, which are far more: so what an
//! initiator waited is known from the flush on its last target, and is a lower bound.
//!
//! A flush that begins in one second and ends in the next is counted in the first and its times in the second. Where
//! only a part of a second was recorded, because more would have cost too much, its figures are what that part stands
//! for; of a second of which nothing was recorded there are none.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use crate::perf::file::Place;
use crate::perf::symbols::Symbols;
use crate::perf::{Change, Frame, Item, Progress, Sample, Sink, counters};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::attribute::Attribution;
use crate::attribute::site::Span;
use crate::figures::Range;

/// After so many processes, what is known of all of them is forgotten: hosts start processes for months.
const MOST_PROCESSES: usize = 1 << 12;

/// How many stacks of the kernel are kept.
const MOST_STACKS: usize = 1 << 14;

/// What one process did and suffered in a second. Counts and times are for a second, also where it was recorded in
/// part.
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
    /// What it waited for its targets at least, in nanoseconds: until the last of them had flushed. `None` if it asked some
    /// and it was not seen when any of them had.
    pub waited_ns: Option<f64>,
    /// The time that it lost as a target, to any initiator.
    pub stolen: Range,
    /// The call, or the kernel's reason, by which it sent most.
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
    /// Seconds since recording began.
    pub at: f64,
    /// Which share of it was recorded; 0 if nothing was.
    pub recorded: f64,
    /// Events that were lost in it.
    pub lost: u64,
    /// Interrupts that were sent to flush.
    pub interrupts: u64,
    /// The processes that sent or took any, those that pay most first.
    pub processes: Vec<Row>,
}

/// What was added up for a process when the last second ended.
#[derive(Clone, Copy, Default)]
struct Sums {
    flushes: u64,
    sent: u64,
    taken: u64,
    waited_ns: u64,
    /// How many flushes that is of.
    waits: u64,
    stolen: Span,
}

/// A process by the time that it had run when that was last looked at.
struct Known {
    /// Its number as a text: by this it goes below.
    number: Arc<str>,
    name: Arc<str>,
    ran_ns: Option<u64>,
    looked: Instant,
}

impl Known {
    fn new(pid: u32, name: Arc<str>) -> Self {
        Known {
            number: pid.to_string().into(),
            name,
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
    all: Attribution,
    /// Processes that were seen, by number.
    known: FxHashMap<u32, Known>,
    /// Names of others that may be.
    names: FxHashMap<u32, Arc<str>>,
    /// What was known of each, by number, when the last second ended.
    before: FxHashMap<u32, Sums>,
    /// Interrupts of each site then.
    sites_before: Vec<u64>,
    stacks: FxHashMap<Box<[u64]>, Arc<[Frame]>>,
    last: Option<Progress>,
}

impl<F: FnMut(Second) -> io::Result<()>> Top<F> {
    /// Nothing yet.
    pub fn new(tell: F) -> Self {
        Top {
            tell,
            all: Attribution::new(),
            known: FxHashMap::default(),
            names: FxHashMap::default(),
            before: FxHashMap::default(),
            sites_before: Vec::new(),
            stacks: FxHashMap::default(),
            last: None,
        }
    }

    /// The kernel's frames of a stack, with names.
    fn stack(&mut self, places: &[Place], symbols: &mut Symbols) -> Arc<[Frame]> {
        let inside = places.iter().filter(|place| place.kernel);
        let addresses: Box<[u64]> = inside.clone().map(|place| place.address).collect();
        if let Some(known) = self.stacks.get(&addresses) {
            return known.clone();
        }
        let module: Arc<str> = "[kernel]".into();
        let frames: Arc<[Frame]> = inside
            .map(|place| Frame {
                address: place.address,
                kernel: true,
                symbol: symbols.kernel(place.address.wrapping_sub(u64::from(place.call))),
                module: Some(module.clone()),
            })
            .collect();
        if self.stacks.len() >= MOST_STACKS {
            self.stacks.clear();
        }
        self.stacks.insert(addresses, frames.clone());
        frames
    }

    /// What is known of each process now.
    fn sums(&self) -> FxHashMap<u32, Sums> {
        let pid = |name: &str| name.parse::<u32>().ok();
        let mut sums: FxHashMap<u32, Sums> = FxHashMap::default();
        for program in &self.all.programs {
            if let Some(pid) = pid(&program.name) {
                let of = sums.entry(pid).or_default();
                (of.taken, of.stolen) = (program.taken, program.stolen);
            }
        }
        for site in &self.all.sites {
            if let Some(pid) = pid(&site.place.program) {
                let of = sums.entry(pid).or_default();
                of.flushes += site.remote;
                of.sent += site.interrupts;
                of.waited_ns += site.waited.least;
                of.waits += site.waits;
            }
        }
        sums
    }

    /// By which call each process sent most since the last second.
    fn calls(&self) -> FxHashMap<u32, Arc<str>> {
        let mut sent: FxHashMap<(u32, &Arc<str>), u64> = FxHashMap::default();
        for (index, site) in self.all.sites.iter().enumerate() {
            let before = self.sites_before.get(index).copied().unwrap_or(0);
            let since = site.interrupts.saturating_sub(before);
            if let (true, Ok(pid)) = (since > 0, site.place.program.parse()) {
                *sent.entry((pid, &site.place.call)).or_default() += since;
            }
        }
        let mut sent: Vec<_> = sent.into_iter().collect();
        // What comes last stays; of two equal ones the same one each time.
        sent.sort_unstable_by_key(|((_, call), sent)| (*sent, *call));
        let last = |((pid, call), _): ((u32, &Arc<str>), u64)| (pid, call.clone());
        sent.into_iter().map(last).collect()
    }

    /// What this second was, when it ends like this.
    fn difference(&mut self, progress: Progress) -> Second {
        let (elapsed, recorded, lost) = match self.last.replace(progress) {
            Some(last) => (
                progress.elapsed.saturating_sub(last.elapsed),
                progress.recorded.saturating_sub(last.recorded),
                progress.lost.saturating_sub(last.lost),
            ),
            None => (progress.elapsed, progress.recorded, progress.lost),
        };
        let recorded = recorded.as_secs_f64();
        // What the part that was recorded stands for, and that for a second.
        let scale = 1.0 / recorded.max(1e-9);
        let (sums, calls) = (self.sums(), self.calls());
        let mut processes = Vec::new();
        for (&pid, of) in &sums {
            let was = self.before.get(&pid).copied().unwrap_or_default();
            processes.extend(self.row(pid, of, &was, calls.get(&pid), scale));
        }
        processes.sort_by(|a, b| {
            let pays = b.paid().total_cmp(&a.paid());
            pays.then(b.sent.cmp(&a.sent)).then(a.pid.cmp(&b.pid))
        });
        self.before = sums;
        let sites = self.all.sites.iter();
        self.sites_before = sites.map(|site| site.interrupts).collect();
        if self.all.programs.len() > MOST_PROCESSES {
            self.all = Attribution::new();
            self.before.clear();
            self.sites_before.clear();
            self.known.clear();
        }
        Second {
            at: progress.elapsed.as_secs_f64(),
            recorded: (recorded / elapsed.as_secs_f64().max(1e-9)).min(1.0),
            lost,
            interrupts: processes.iter().map(|row| row.sent).sum(),
            processes,
        }
    }

    /// A process's row, if there was anything of it; the idle task's is of no use.
    fn row(
        &mut self,
        pid: u32,
        of: &Sums,
        was: &Sums,
        call: Option<&Arc<str>>,
        scale: f64,
    ) -> Option<Row> {
        let since = |now: u64, was: u64| now.saturating_sub(was);
        let scaled = |now: u64, was: u64| (since(now, was) as f64 * scale).round() as u64;
        let stolen = Span {
            least: since(of.stolen.least, was.stolen.least),
            most: since(of.stolen.most, was.stolen.most),
        };
        let asked = since(of.flushes, was.flushes);
        let waits = since(of.waits, was.waits);
        let waited = since(of.waited_ns, was.waited_ns) as f64 * scale;
        let row = Row {
            pid,
            flushes: scaled(of.flushes, was.flushes),
            sent: scaled(of.sent, was.sent),
            taken: scaled(of.taken, was.taken),
            // Of some, a target's part may not have been seen.
            waited_ns: match (asked, waits) {
                (0, 0) => Some(0.0),
                (_, 0) => None,
                _ => Some(waited * asked.max(waits) as f64 / waits as f64),
            },
            stolen: Range::of(stolen, scale),
            call: call.map_or_else(String::new, ToString::to_string),
            ..Row::default()
        };
        if pid == 0 || row.sent == 0 && row.taken == 0 && row.paid() == 0.0 {
            return None;
        }
        let known = self.known.get_mut(&pid);
        Some(Row {
            program: known
                .as_ref()
                .map_or_else(String::new, |known| known.name.to_string()),
            cpu_ns: known.and_then(|known| known.used(pid)),
            ..row
        })
    }
}

impl<F: FnMut(Second) -> io::Result<()>> Sink for Top<F> {
    type Output = ();

    fn item(&mut self, item: &Item) -> io::Result<()> {
        match item {
            Item::Change(Change::Named { pid, tid, comm, .. }) if pid == tid => {
                self.names.insert(*pid, comm.clone());
                // Another program, or its number has been given to another.
                self.known.remove(pid);
            }
            Item::Change(Change::Forked { pid, parent, .. }) if pid != parent => {
                if let Some(name) = self.names.get(parent).cloned() {
                    self.names.insert(*pid, name);
                }
            }
            // A process that shares its parent's program is still another process: what is handed on says nothing of
            // it.
            Item::Change(Change::Named { .. } | Change::Forked { .. } | Change::Mapped { .. }) => {}
            Item::Change(Change::Exited { pid, tid, .. }) => {
                if pid == tid {
                    self.names.remove(pid);
                }
                self.all.item(item.clone(), &mut ());
            }
            Item::Host(_) | Item::Statistics(_) | Item::Lost(_) | Item::Window(_) => {
                self.all.item(item.clone(), &mut ())
            }
            Item::Sample(_) | Item::Count(_) | Item::Prices(_) | Item::Ran(_) | Item::Note(_) => {}
        }
        Ok(())
    }

    fn sample(
        &mut self,
        sample: &Sample,
        places: &[Place],
        symbols: &mut Symbols,
    ) -> io::Result<()> {
        let known = self.known.entry(sample.pid).or_insert_with(|| {
            let name = self.names.get(&sample.pid).unwrap_or(&sample.comm);
            Known::new(sample.pid, name.clone())
        });
        // A thread may have a name of its own.
        if sample.pid == sample.tid && *known.name != *sample.comm {
            known.name = sample.comm.clone();
        }
        let sample = Sample {
            comm: known.number.clone(),
            stack: self.stack(places, symbols),
            ..sample.clone()
        };
        self.all.item(Item::Sample(sample), &mut ());
        Ok(())
    }

    fn second(&mut self, progress: Progress) -> io::Result<()> {
        let second = self.difference(progress);
        (self.tell)(second)
    }

    fn written(&self) -> u64 {
        0
    }

    fn finish(self, _: &mut Symbols) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::reason;
    use crate::perf::{Value, symbols::Symbols};
    use std::time::Duration;

    /// What one flush of `pid` on CPU 0 makes of events, when `victim` runs on CPU 1: 1 us until it is taken, 2 us of
    /// work.
    fn flush(top: &mut dyn FnMut(&Sample), pid: u32, victim: u32, at: u64) {
        let function = || Value::Text("flush_tlb_func".into());
        let mut event = |event: &str, pid, cpu, time_ns, fields: &[(&str, Value)]| {
            let fields = fields.iter().cloned();
            let sample = Sample {
                time_ns,
                cpu,
                pid,
                tid: pid,
                comm: format!("program-{pid}").into(),
                event: event.into(),
                fields: fields.map(|(name, value)| (name.into(), value)).collect(),
                stack: Arc::new([]),
            };
            top(&sample);
        };
        let work = || ("csd", Value::Unsigned(77));
        let asked = [
            ("reason", Value::Unsigned(reason::SEND)),
            ("pages", Value::Unsigned(1)),
        ];
        event("tlb:tlb_flush", pid, 0, at - 100, &asked);
        event(
            "csd:csd_queue_cpu",
            pid,
            0,
            at,
            &[("cpu", Value::Unsigned(1)), ("func", function()), work()],
        );
        event(
            "irq_vectors:call_function_entry",
            victim,
            1,
            at + 1000,
            &[("vector", Value::Unsigned(251))],
        );
        let done = [("func", function()), work()];
        event("csd:csd_function_entry", victim, 1, at + 1200, &done);
        event("csd:csd_function_exit", victim, 1, at + 2800, &done);
        event(
            "irq_vectors:call_function_exit",
            victim,
            1,
            at + 3000,
            &[("vector", Value::Unsigned(251))],
        );
    }

    fn progress(elapsed_ms: u64, recorded_ms: u64) -> Progress {
        Progress {
            elapsed: Duration::from_millis(elapsed_ms),
            recorded: Duration::from_millis(recorded_ms),
            kept: 0,
            lost: 0,
            bytes: 0,
        }
    }

    /// Flushes in the first second, and what the next three say.
    fn seconds(first: u64, then: u64, recorded_ms: u64) -> Vec<Second> {
        let mut told = Vec::new();
        let mut top = Top::new(|second| {
            told.push(second);
            Ok(())
        });
        let mut symbols = Symbols::default();
        let mut run = |top: &mut Top<_>, from: u64, flushes: u64| {
            for number in 0..flushes {
                let mut take =
                    |sample: &Sample| top.sample(sample, &[], &mut symbols).expect("taken");
                flush(&mut take, 10, 20, from + number * 10_000);
            }
        };
        run(&mut top, 1_000_000, first);
        top.second(progress(1000, 1000)).expect("told");
        run(&mut top, 1_001_000_000, then);
        top.second(progress(2000, 1000 + recorded_ms))
            .expect("told");
        top.second(progress(3000, 2000 + recorded_ms))
            .expect("told");
        drop(top);
        told
    }

    #[test]
    fn each_second_has_its_own_figures_and_a_line_for_each_process() {
        let told = seconds(30, 4, 1000);
        let row = |second: &Second, pid| {
            let mut rows = second.processes.iter();
            rows.find(|row| row.pid == pid).cloned().expect("a row")
        };
        assert_eq!((told[0].interrupts, told[1].interrupts), (30, 4));
        let (sender, victim) = (row(&told[1], 10), row(&told[1], 20));
        assert_eq!((sender.sent, sender.taken, sender.flushes), (4, 0, 4));
        assert_eq!((victim.sent, victim.taken), (0, 4));
        assert_eq!(sender.program, "program-10");
        assert!(victim.stolen.most >= 4.0 * 1600.0, "{victim:?}");
        assert!(sender.stolen.most == 0.0 && victim.waited_ns == Some(0.0));
        let each = sender.waited_ns.expect("timed") / 4.0;
        assert_eq!(each, 2_800.0);
        // Nothing happened in the third.
        assert!(told[2].processes.is_empty(), "{:?}", told[2]);
    }

    /// What is not seen is not nothing.
    #[test]
    fn where_no_target_was_seen_to_flush_no_wait_is_told() {
        let mut told = Vec::new();
        let mut top = Top::new(|second| {
            told.push(second);
            Ok(())
        });
        let mut symbols = Symbols::default();
        for number in 0..9 {
            let mut take = |sample: &Sample| {
                let is_end = sample.event.starts_with("csd:csd_function");
                if !is_end || number % 3 == 1 {
                    top.sample(sample, &[], &mut symbols).expect("taken");
                }
            };
            let pid = if number < 3 { 10 } else { 11 };
            let pid = if number == 1 { 12 } else { pid };
            flush(&mut take, pid, 20, 1_000_000 + number * 10_000);
        }
        top.second(progress(1000, 1000)).expect("told");
        drop(top);
        let waited = |pid| {
            let row = told[0].processes.iter().find(|row| row.pid == pid);
            row.expect("a row").waited_ns
        };
        assert_eq!(waited(10), None);
        assert_eq!(waited(20), Some(0.0));
        // Two of six were seen to end, and stand for the others.
        assert_eq!(waited(11), Some(6.0 * 2_800.0));
    }

    #[test]
    fn a_second_that_was_recorded_in_part_stands_for_all_of_it() {
        let told = seconds(30, 4, 250);
        assert_eq!(told[1].interrupts, 16);
        assert!((told[1].recorded - 0.25).abs() < 1e-9);
        let victim = told[1].processes.iter().find(|row| row.pid == 20);
        assert_eq!(victim.expect("a row").taken, 16);
    }

    #[test]
    fn hosts_that_start_processes_for_ever_do_not_fill_the_memory() {
        let mut top = Top::new(|_| Ok(()));
        let mut symbols = Symbols::default();
        for pid in 1..10_000 {
            let mut take = |sample: &Sample| top.sample(sample, &[], &mut symbols).expect("taken");
            flush(&mut take, pid, 1, u64::from(pid) * 10_000);
            if pid % 1000 == 0 {
                top.second(progress(u64::from(pid), u64::from(pid)))
                    .expect("told");
            }
        }
        assert!(top.all.programs.len() <= MOST_PROCESSES + 1000);
        assert!(top.before.len() <= MOST_PROCESSES + 1000);
    }
}

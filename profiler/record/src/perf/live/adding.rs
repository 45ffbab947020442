//! Converts the kernel's sums to samples of a recording, once a second.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::cost::Mode;
use super::frequent;
use super::host::now_ns;
use super::memory;
use super::processes::Processes;
use crate::perf::bpf::{Caller, Sums};
use crate::perf::file::Place;
use crate::perf::sample::{Flushes, NameTable, Sample, Value};
use crate::perf::symbols::Symbols;

/// The function that the row `TLB` of `/proc/interrupts` counts.
const FLUSH: &str = "flush_tlb_func";

/// The least number of timed flushes for a mean.
const TIMED: u64 = 1_000;

/// The sums of a place.
#[derive(Clone, Copy, Debug, Default)]
struct Total {
    /// Flushes taken from the kernel, and those that CPUs still hold.
    taken: Flushes,
    held: Flushes,
    /// The part of both that was written.
    told: Flushes,
    /// A thread that made some of them, or 0.
    thread: u32,
}

impl Total {
    fn flushes(&self) -> u64 {
        self.taken.flushes + self.held.flushes
    }

    /// Adds both kinds of flushes and multiplies them.
    fn times(&self, scale: f64) -> Flushes {
        let mut all = self.taken;
        all.add(&self.held);
        all.times(scale)
    }

    /// Returns the flushes that aren't written yet, multiplied by `scale`, and marks them as written.
    fn tell(&mut self, scale: f64) -> Flushes {
        let new = self.times(scale).since(&self.told);
        self.told.add(&new);
        new
    }
}

/// The kernel's sums, and the part of them that was written.
pub(super) struct SumReader {
    sums: Sums,
    totals: FxHashMap<Caller, Total>,
    /// The places whose flushes CPUs held at the last reading.
    holding: Vec<Caller>,
    victims: FxHashMap<u32, (u64, u64)>,
    others: FxHashMap<u64, u64>,
    /// Flushes for which the kernel had no room.
    pub(super) lost: u64,
    begun_ns: u64,
    /// All flushes: those taken from the kernel, and those that CPUs hold.
    seen: (u64, u64),
    /// The cost of the tracepoint for a flush, besides the programs.
    pub(super) open_ns: f64,
    /// The timing of the programs, with the time and the flushes before it.
    timing: Option<(OwnedFd, u64, u64)>,
    /// The time that the programs take for a flush.
    pub(super) flush_ns: Option<f64>,
    /// The start of the current stop of summing, and the total length of earlier stops.
    stopped_ns: Option<u64>,
    was_stopped_ns: u64,
}

impl SumReader {
    /// Loads the programs that sum in the kernel.
    ///
    /// # Errors
    ///
    /// If this isn't possible. The text is a sentence with the reason.
    pub(super) fn open(symbols: &mut Symbols) -> Result<Self, String> {
        let flush = symbols.address(FLUSH);
        let flush = flush.ok_or_else(|| format!("/proc/kallsyms shows no {FLUSH}"))?;
        let open_ns = Sums::open_ns(memory::flush_ns).unwrap_or(0.0);
        let sums = Sums::open(flush).map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => "this needs CAP_BPF and CAP_PERFMON".to_owned(),
            _ => error.to_string(),
        })?;
        Ok(Self {
            sums,
            totals: FxHashMap::default(),
            holding: Vec::new(),
            victims: FxHashMap::default(),
            others: FxHashMap::default(),
            lost: 0,
            begun_ns: now_ns(),
            seen: (0, 0),
            open_ns,
            timing: None,
            flush_ns: None,
            stopped_ns: None,
            was_stopped_ns: 0,
        })
    }

    /// Discards all sums until now.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        self.take()?;
        // Earlier flushes may still be held by CPUs. We never write them.
        self.totals.retain(|_, total| total.held.flushes > 0);
        for total in self.totals.values_mut() {
            total.taken = Flushes::default();
            total.told = total.held;
        }
        self.victims.clear();
        self.others.clear();
        self.begun_ns = now_ns();
        Ok(())
    }

    /// Returns the time in which the kernel summed.
    pub(super) fn summed_ns(&self) -> u64 {
        let all = now_ns().saturating_sub(self.begun_ns);
        (all as f64 / self.scale()) as u64
    }

    /// Returns the factor that makes up for the time in which nothing was summed.
    fn scale(&self) -> f64 {
        let now = now_ns();
        let stopped = self.stopped_ns.map_or(0, |since| now.saturating_sub(since));
        let stopped = (self.was_stopped_ns + stopped) as f64;
        let all = now.saturating_sub(self.begun_ns).max(1) as f64;
        all / (all - stopped).max(all / 1e3)
    }

    /// Takes the kernel's sums since the last call.
    pub(super) fn take(&mut self) -> io::Result<()> {
        let new = self.sums.take()?;
        for caller in std::mem::take(&mut self.holding) {
            if let Some(total) = self.totals.get_mut(&caller) {
                total.held = Flushes::default();
            }
        }
        for (caller, flushes) in &new.sites {
            let total = self.totals.entry(*caller).or_default();
            total.taken.add(flushes);
        }
        for (caller, flushes) in &new.held {
            let total = self.totals.entry(*caller).or_default();
            total.held.add(flushes);
            self.holding.push(*caller);
        }
        for (caller, thread) in new.threads.iter().filter(|(_, thread)| *thread > 0) {
            if let Some(total) = self.totals.get_mut(caller) {
                total.thread = *thread;
            }
        }
        for (pid, interrupts, ns) in &new.victims {
            let victim = self.victims.entry(*pid).or_default();
            *victim = (victim.0 + interrupts, victim.1 + ns);
        }
        for (function, count) in &new.others {
            *self.others.entry(*function).or_default() += count;
        }
        let all = |sites: &[(Caller, Flushes)]| sites.iter().map(|(_, of)| of.flushes).sum::<u64>();
        self.seen = (self.seen.0 + all(&new.sites), all(&new.held));
        self.lost = new.lost;
        Ok(())
    }

    /// Begins to time the programs that sum, or ends it. Timing costs as much as a small program, so we do it briefly.
    pub(super) fn time(&mut self, on: bool) -> io::Result<()> {
        self.take()?;
        let flushes = self.seen.0 + self.seen.1;
        self.timing = match (self.timing.take(), on) {
            (None, true) => {
                // A kernel may not time programs.
                let timing = self
                    .sums
                    .time()
                    .and_then(|of| Ok((of, self.sums.timed_ns()?)));
                timing.ok().map(|(of, timed_ns)| (of, timed_ns, flushes))
            }
            (Some((_, timed_ns, before)), false) => {
                let flushes = flushes.saturating_sub(before);
                let took = self.sums.timed_ns()?.saturating_sub(timed_ns);
                if flushes >= TIMED {
                    self.flush_ns = Some(took as f64 / flushes as f64);
                }
                None
            }
            (timing, _) => timing,
        };
        Ok(())
    }

    /// Switches to another mode.
    pub(super) fn turn(&mut self, mode: Mode) -> io::Result<()> {
        if let Some(since) = self.stopped_ns.take() {
            self.was_stopped_ns += now_ns().saturating_sub(since);
        }
        self.sums.set(true, mode == Mode::Twice)
    }

    /// Stops summing until the next [`turn`](Self::turn).
    pub(super) fn stop(&mut self) -> io::Result<()> {
        self.stopped_ns.get_or_insert(now_ns());
        self.sums.set(false, false)
    }

    /// Returns the flushes of these processes until the last [`take`](Self::take).
    pub(super) fn flushes(&self, pids: impl Iterator<Item = u32>) -> FxHashMap<u32, u64> {
        let mut flushes: FxHashMap<u32, u64> = pids.map(|pid| (pid, 0)).collect();
        for (caller, total) in &self.totals {
            if let Some(flushes) = flushes.get_mut(&caller.pid) {
                *flushes += total.flushes();
            }
        }
        flushes
    }

    /// Returns the flushes of each process until the last [`take`](Self::take).
    pub(super) fn by_process(&self) -> FxHashMap<u32, u64> {
        let mut by_process = FxHashMap::default();
        for (caller, total) in &self.totals {
            *by_process.entry(caller.pid).or_default() += total.flushes();
        }
        by_process
    }

    /// Lists the processes with sums that aren't written yet.
    pub(super) fn unexplained(&self) -> impl Iterator<Item = u32> {
        let totals = self.totals.iter();
        let unexplained = totals.filter(|(_, total)| total.flushes() > total.told.flushes);
        unexplained.map(|(caller, _)| caller.pid)
    }

    /// Returns the total number of interrupts.
    pub(super) fn interrupts(&self) -> u64 {
        let scale = self.scale();
        let all = self
            .totals
            .values()
            .map(|total| total.times(scale).interrupts);
        all.sum()
    }

    /// Returns the sums since the last call as samples, with the places of their stacks.
    pub(super) fn tell(
        &mut self,
        time_ns: u64,
        processes: &mut Processes,
        names: &mut NameTable,
        symbols: &mut Symbols,
    ) -> Vec<(Sample, Vec<Place>)> {
        let mut told = Vec::new();
        let scale = self.scale();
        let [flushes, taken, queued] =
            ["sums:flushes", "sums:taken", "sums:queued"].map(|name| names.get(name));
        let mut ended = Vec::new();
        for (caller, total) in &mut self.totals {
            let new = total.tell(scale);
            let has_ended = processes.has_ended(caller.pid);
            if has_ended {
                ended.push(*caller);
            }
            if new == Flushes::default() {
                continue;
            }
            let mut fields = vec![(names.get("call"), text(&call(caller.call), names))];
            fields.extend(
                Flushes::COUNTS.map(|(name, of)| (names.get(name), Value::Unsigned(of(&new)))),
            );
            fields.push((names.get("thread"), Value::Unsigned(total.thread.into())));
            if !has_ended {
                processes.catch_up(caller.pid, names);
            }
            let addresses = [caller.after, caller.return_to];
            let addresses = addresses.into_iter().filter(|&address| address > 0);
            let stack = processes.user_places(caller.pid, addresses);
            let of = sample(time_ns, caller.pid, &flushes, fields, processes, names);
            told.push((of, stack));
        }
        for caller in &ended {
            self.totals.remove(caller);
        }
        let with = |of: u64| (of as f64 * scale).round() as u64;
        for (pid, (interrupts, ns)) in self.victims.drain() {
            let fields = [("interrupts", with(interrupts)), ("work_ns", with(ns))];
            let fields = fields.map(|(name, value)| (names.get(name), Value::Unsigned(value)));
            let of = sample(time_ns, pid, &taken, fields.into(), processes, names);
            told.push((of, Vec::new()));
        }
        for (function, count) in self.others.drain() {
            let name = symbols.kernel(function);
            let fields = vec![
                (
                    names.get("func"),
                    text(name.as_deref().unwrap_or(""), names),
                ),
                (names.get("count"), Value::Unsigned(with(count))),
            ];
            let of = sample(time_ns, 0, &queued, fields, processes, names);
            told.push((of, Vec::new()));
        }
        told
    }
}

fn text(text: &str, names: &mut NameTable) -> Value {
    Value::Text(names.get(text))
}

/// Creates a sample of a process's main thread.
fn sample(
    time_ns: u64,
    pid: u32,
    event: &Arc<str>,
    fields: Vec<(Arc<str>, Value)>,
    processes: &Processes,
    names: &mut NameTable,
) -> Sample {
    Sample {
        time_ns,
        cpu: 0,
        pid,
        tid: pid,
        comm: processes.comm(pid, names),
        event: event.clone(),
        fields,
        stack: Arc::new([]),
    }
}

/// Returns the name of a system call. Empty outside of calls.
fn call(number: Option<u32>) -> String {
    match number {
        None => String::new(),
        Some(number) => {
            frequent::name(number).map_or_else(|| format!("system call {number}"), str::to_owned)
        }
    }
}

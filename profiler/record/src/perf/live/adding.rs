//! Converts the kernel's sums to samples of a recording, once a second.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::frequent;
use super::host::now_ns;
use super::memory;
use super::processes::Processes;
use crate::attribute::ENOUGH;
use crate::perf::bpf::{SumOf, Sums};
use crate::perf::counters;
use crate::perf::file::Place;
use crate::perf::sample::{Flushes, NameTable, Sample, Value};
use crate::perf::symbols::Symbols;

/// The function that the row `TLB` of `/proc/interrupts` counts.
const FLUSH: &str = "flush_tlb_func";

/// The least number of timed flushes for a mean.
const TIMED: u64 = 1_000;

/// The sums of one kind or place.
#[derive(Clone, Copy, Debug, Default)]
struct Total {
    /// Flushes taken from the kernel, and those that CPUs still hold.
    taken: Flushes,
    held: Flushes,
    /// The part of both from before the recording.
    before: Flushes,
    /// The flushes that were written.
    told: Flushes,
    /// A thread that made some of them, or 0.
    thread: u32,
    /// Whether the process has ended, and nothing is left to write.
    is_over: bool,
    /// A moment before its first flush.
    since: Option<Moment>,
}

impl Total {
    fn flushes(&self) -> u64 {
        self.all().flushes
    }

    fn part(&mut self, is_held: bool) -> &mut Flushes {
        if is_held { &mut self.held } else { &mut self.taken }
    }

    fn all(&self) -> Flushes {
        let mut all = self.taken;
        all.add(&self.held);
        all.since(&self.before)
    }

    /// Returns whether another reading may contain flushes of this place.
    ///
    /// A CPU holds flushes until another place flushes there, even if the process has ended. We must not write them twice.
    fn is_needed(&self) -> bool {
        !self.is_over || self.held != Flushes::default()
    }

    /// Returns the flushes that aren't written yet.
    fn unwritten(&self) -> Flushes {
        self.all().since(&self.told)
    }

    /// Returns the flushes that aren't written yet, and marks them as written.
    ///
    /// `scale` makes up for stops.
    fn tell(&mut self, scale: Option<Scale>) -> Flushes {
        let mut all = self.all();
        if let Some(Scale { interrupts, flushes }) = scale {
            let flushes = all.times(flushes);
            all = all.times(interrupts);
            all.flushes = flushes.flushes.max(all.remote);
            (all.full, all.pages) = (flushes.full, flushes.pages);
        }
        let new = all.since(&self.told);
        self.told.add(&new);
        new
    }
}

/// The factors that make up for stops.
///
/// Interrupts have the factor of the kernel's own count. Not every flush sends one, so flushes have the factor of time.
#[derive(Clone, Copy)]
struct Scale {
    interrupts: f64,
    flushes: f64,
}

impl Scale {
    /// Computes the factors of what happened between two moments.
    fn between(since: Moment, until: Moment) -> Self {
        let all_ns = until.ns.saturating_sub(since.ns);
        let mut stopped = until.stopped.since(since.stopped);
        stopped.ns = stopped.ns.min(all_ns);
        let summed_ns = all_ns - stopped.ns;
        let summed = until.summed.saturating_sub(since.summed);
        Self {
            interrupts: interrupt_factor(stopped, summed_ns, summed),
            flushes: time_factor(stopped.ns, summed_ns),
        }
    }
}

/// A moment of the recording.
#[derive(Clone, Copy, Debug, Default)]
struct Moment {
    ns: u64,
    /// All stops until then, and the length of the one that lasts.
    stopped: Stop,
    stop_ns: u64,
    /// The interrupts that were summed until then.
    summed: u64,
}

impl Moment {
    /// Returns this moment without the time since a program's end.
    fn at_end(self, end_ns: u64) -> Self {
        let late_ns = self.ns.saturating_sub(end_ns);
        let mut at_end = Self { ns: self.ns - late_ns, ..self };
        at_end.stopped.ns -= late_ns.min(self.stop_ns);
        at_end
    }
}

/// The kernel's sums, and the part of them that was written.
pub(super) struct SumReader {
    sums: Sums,
    totals: FxHashMap<SumOf, Total>,
    /// The places whose flushes CPUs held at the last reading.
    holding: Vec<SumOf>,
    /// All interrupts that processes took in the recording.
    took: u64,
    /// Flushes for which the kernel had no room.
    pub(super) lost: u64,
    begun: Moment,
    /// All flushes since then, and those of the recorded processes: those taken from the kernel, and those that CPUs hold.
    seen: Total,
    wanted: Total,
    /// The cost of a flush besides the run of the programs, and of that run by the kernel's clock.
    open_ns: f64,
    run_ns: f64,
    /// The timing of the programs, with the time and the flushes before it.
    timing: Option<(OwnedFd, u64, u64)>,
    /// The start of the current stop of summing, and all earlier stops together.
    stop: Option<Stop>,
    stopped: Stop,
    /// The moment of the last reading.
    taken_at: Moment,
}

/// A moment, or a stretch of time: nanoseconds, and interrupts by the kernel's own count.
#[derive(Clone, Copy, Debug, Default)]
struct Stop {
    ns: u64,
    interrupts: u64,
}

impl Stop {
    /// Returns this moment. Without a row `TLB` no interrupts are counted.
    fn now() -> io::Result<Self> {
        Ok(Self { ns: now_ns(), interrupts: counters::shootdowns()?.unwrap_or(0) })
    }

    fn since(self, start: Stop) -> Self {
        Self {
            ns: self.ns.saturating_sub(start.ns),
            interrupts: self.interrupts.saturating_sub(start.interrupts),
        }
    }

    fn plus(self, other: Stop) -> Self {
        Self { ns: self.ns + other.ns, interrupts: self.interrupts + other.interrupts }
    }
}

impl SumReader {
    /// Loads the programs that sum in the kernel.
    pub(super) fn open(symbols: &mut Symbols) -> Result<Self, String> {
        let flush = symbols.address(FLUSH);
        let flush = flush.ok_or_else(|| format!("/proc/kallsyms shows no {FLUSH}"))?;
        let refused = |error: io::Error| match error.raw_os_error() {
            Some(libc::EPERM) => "this needs CAP_BPF and CAP_PERFMON".to_owned(),
            _ => error.to_string(),
        };
        let mut sums = Sums::open(flush).map_err(refused)?;
        let (open_ns, run_ns) = price(&mut sums).map_err(refused)?;
        Ok(Self {
            sums,
            totals: FxHashMap::default(),
            holding: Vec::new(),
            took: 0,
            lost: 0,
            begun: Moment { ns: now_ns(), ..Moment::default() },
            seen: Total::default(),
            wanted: Total::default(),
            open_ns,
            run_ns,
            timing: None,
            stop: None,
            stopped: Stop::default(),
            taken_at: Moment { ns: now_ns(), ..Moment::default() },
        })
    }

    /// Discards all sums until now.
    pub(super) fn begin(&mut self, processes: &Processes) -> io::Result<()> {
        self.take(processes)?;
        // Earlier flushes may still be held by CPUs. We never write them.
        self.totals.retain(|_, total| total.held.flushes > 0);
        for total in self.totals.values_mut().chain([&mut self.seen, &mut self.wanted]) {
            total.taken = Flushes::default();
            total.before = total.held;
        }
        self.took = 0;
        self.begun = self.now()?;
        self.taken_at = self.begun;
        self.totals.values_mut().for_each(|total| total.since = Some(self.begun));
        Ok(())
    }

    pub(super) fn summed_ns(&self) -> u64 {
        let now = now_ns();
        let stop_ns = self.stop.map_or(0, |stop| now.saturating_sub(stop.ns));
        now.saturating_sub(self.begun.ns).saturating_sub(self.stopped.ns + stop_ns)
    }

    /// Returns the CPU time that summing took from all programs, and from recorded ones.
    pub(super) fn spent_ns(&self) -> [f64; 2] {
        let flush_ns = self.open_ns + self.run_ns;
        [self.seen, self.wanted].map(|total| flush_ns * total.flushes() as f64)
    }

    fn now(&self) -> io::Result<Moment> {
        let stop = match self.stop {
            Some(stop) => Stop::now()?.since(stop),
            None => Stop::default(),
        };
        let (ns, summed) = (now_ns(), self.seen.all().interrupts);
        Ok(Moment { ns, stopped: self.stopped.plus(stop), stop_ns: stop.ns, summed })
    }

    /// Takes the kernel's sums since the last call.
    pub(super) fn take(&mut self, processes: &Processes) -> io::Result<()> {
        let new = self.sums.take()?;
        // What is new began after the last call.
        let begun = self.taken_at;
        for of in std::mem::take(&mut self.holding) {
            if let Some(total) = self.totals.get_mut(&of) {
                total.held = Flushes::default();
            }
        }
        (self.seen.held, self.wanted.held) = Default::default();
        self.holding = new.held.iter().map(|(of, ..)| *of).collect();
        let sums = new.sums.iter().map(|sum| (sum, false));
        for ((of, flushes, thread), is_held) in sums.chain(new.held.iter().map(|sum| (sum, true))) {
            let total = self.totals.entry(*of).or_default();
            total.since.get_or_insert(begun);
            if *thread > 0 {
                total.thread = *thread;
            }
            total.part(is_held).add(flushes);
            match of {
                SumOf::Place(caller) => {
                    self.seen.part(is_held).add(flushes);
                    if processes.is_wanted(caller.pid) {
                        self.wanted.part(is_held).add(flushes);
                    }
                }
                SumOf::Taken(_) => self.took += flushes.interrupts,
                SumOf::Queued(_) => {}
            }
        }
        self.lost = new.lost;
        self.taken_at = self.now()?;
        Ok(())
    }

    /// Begins to time the programs that sum, or ends it. Timing costs as much as a small program, so we do it briefly.
    pub(super) fn time(&mut self, on: bool, processes: &Processes) -> io::Result<()> {
        self.take(processes)?;
        let flushes = self.seen.flushes();
        self.timing = match (self.timing.take(), on) {
            (None, true) => {
                // A kernel may not time programs.
                let timing = self.sums.time().and_then(|of| Ok((of, self.sums.timed_ns()?)));
                timing.ok().map(|(of, timed_ns)| (of, timed_ns, flushes))
            }
            (Some((_, timed_ns, before)), false) => {
                let flushes = flushes.saturating_sub(before);
                let took = self.sums.timed_ns()?.saturating_sub(timed_ns);
                if flushes >= TIMED {
                    self.run_ns = took as f64 / flushes as f64;
                }
                None
            }
            (timing, _) => timing,
        };
        Ok(())
    }

    /// Sums again if summing has stopped.
    pub(super) fn resume(&mut self) -> io::Result<()> {
        self.sums.set(true)?;
        if let Some(stop) = self.stop.take() {
            self.stopped = self.stopped.plus(Stop::now()?.since(stop));
        }
        Ok(())
    }

    /// Stops summing until it [resumes](Self::resume).
    pub(super) fn stop(&mut self) -> io::Result<()> {
        // The program that counts interrupts is detached first.
        if self.stop.is_none() {
            self.stop = Some(Stop::now()?);
        }
        self.sums.set(false)
    }

    /// Returns the flushes of each process until the last [`take`](Self::take).
    pub(super) fn by_process(&self) -> FxHashMap<u32, u64> {
        let mut by_process = FxHashMap::default();
        for (of, total) in &self.totals {
            if let SumOf::Place(caller) = of {
                *by_process.entry(caller.pid).or_default() += total.flushes();
            }
        }
        by_process
    }

    /// Lists the processes with sums that aren't written yet.
    pub(super) fn unexplained(&self) -> impl Iterator<Item = u32> {
        self.totals.iter().filter_map(|(of, total)| match of {
            SumOf::Place(caller) if !total.is_over && total.unwritten().flushes > 0 => {
                Some(caller.pid)
            }
            _ => None,
        })
    }

    pub(super) fn interrupts(&self) -> io::Result<u64> {
        let scale = Scale::between(self.begun, self.now()?);
        Ok(self.seen.all().times(scale.interrupts).interrupts)
    }

    /// Returns the sums since the last call as samples, with the places of their stacks.
    ///
    /// If `is_whole`, they make up for the time in which nothing was summed. Otherwise only those of ended processes do,
    /// because a factor is uncertain as long as little was summed, and what was written can't be taken back.
    pub(super) fn tell(
        &mut self,
        time_ns: u64,
        is_whole: bool,
        processes: &mut Processes,
        names: &mut NameTable,
        symbols: &mut Symbols,
    ) -> io::Result<Vec<(Sample, Vec<Place>)>> {
        let mut told = Vec::new();
        let now = self.now()?;
        // The programs on targets are attached before those on initiators, and detached after them.
        let sent = self.seen.all().interrupts;
        let surplus = match now.stopped.ns > 0 && self.took >= ENOUGH {
            true => self.took as f64 / sent.max(1) as f64,
            false => 1.0,
        };
        let is_stopped = self.stop.is_some();
        for (of, total) in self.totals.iter_mut().filter(|(_, total)| !total.is_over) {
            let pid = match of {
                SumOf::Place(caller) => caller.pid,
                SumOf::Taken(pid) => *pid,
                SumOf::Queued(_) => 0,
            };
            let ended_ns = processes.ended_ns(pid);
            let has_ended = ended_ns.is_some();
            let since = *total.since.get_or_insert(now);
            let until = ended_ns.map_or(now, |end_ns| now.at_end(end_ns));
            let mut scale = Scale::between(since, until);
            match of {
                SumOf::Place(_) => {}
                SumOf::Taken(_) => scale.interrupts /= surplus,
                SumOf::Queued(_) => scale.interrupts = scale.flushes,
            }
            let new = total.tell((is_whole || has_ended).then_some(scale));
            let is_idle = new == Flushes::default();
            // A process that takes no more interrupts is forgotten. While nothing is summed, each is idle.
            let is_past = is_idle && is_whole && !is_stopped && matches!(of, SumOf::Taken(_));
            total.is_over = has_ended || is_past;
            if is_idle {
                continue;
            }
            let (mut fields, mut stack) = (Vec::new(), Vec::new());
            let event = match of {
                SumOf::Place(caller) => {
                    let call = Value::Text(names.get(&call(caller.call)));
                    fields
                        .extend([("call", call), ("thread", Value::Unsigned(total.thread.into()))]);
                    fields.extend(
                        Flushes::COUNTS.map(|(name, of)| (name, Value::Unsigned(of(&new)))),
                    );
                    if !has_ended {
                        processes.catch_up(pid, names);
                    }
                    let addresses = [caller.after, caller.return_to].into_iter();
                    stack = processes.user_places(pid, addresses.filter(|&address| address > 0));
                    "sums:flushes"
                }
                SumOf::Taken(_) => {
                    let taken = [("interrupts", new.interrupts), ("work_ns", new.work_ns)];
                    fields.extend(taken.map(|(name, value)| (name, Value::Unsigned(value))));
                    "sums:taken"
                }
                SumOf::Queued(function) => {
                    let function = Value::Text(symbols.kernel(*function).unwrap_or_default());
                    fields.extend([("func", function), ("count", Value::Unsigned(new.interrupts))]);
                    "sums:queued"
                }
            };
            told.push((sample(time_ns, pid, event, fields, processes, names), stack));
        }
        self.totals.retain(|_, total| total.is_needed());
        Ok(told)
    }
}

/// Returns the factor that makes up for a time that was missed. However short the rest was, it's at most 1000.
fn time_factor(missed_ns: u64, summed_ns: u64) -> f64 {
    let summed_ns = summed_ns.max(missed_ns / 999).max(1);
    1.0 + missed_ns as f64 / summed_ns as f64
}

/// Returns the factor of interrupts that makes up for the time in which nothing was summed.
///
/// In that time the kernel still counted them. So programs that ended meanwhile, or flushed at another rate, don't
/// distort the factor. If few interrupts were summed, it's that of the time.
fn interrupt_factor(stopped: Stop, summed_ns: u64, summed: u64) -> f64 {
    match summed >= ENOUGH && stopped.interrupts > 0 {
        true => 1.0 + stopped.interrupts as f64 / summed as f64,
        false => time_factor(stopped.ns, summed_ns),
    }
}

/// Measures the cost of summing a flush in a loop, without other CPUs: besides the run of the programs, and of that run
/// by the kernel's clock. The clock's own cost is in the run, so both together are the whole cost.
fn price(sums: &mut Sums) -> io::Result<(f64, f64)> {
    const ROUNDS: usize = 9;
    let [mut without, mut with, mut run] = [f64::INFINITY; 3];
    let loop_ns = || memory::flush_ns().unwrap_or(0.0);
    // On a busy host the least times are comparable.
    for _ in 0..ROUNDS {
        sums.set(false)?;
        without = loop_ns().min(without);
        sums.set(true)?;
        with = loop_ns().min(with);
    }
    for _ in 0..ROUNDS / 3 {
        // A kernel may not time programs.
        let Ok(_timing) = sums.time() else {
            return Ok(((with - without).max(0.0), 0.0));
        };
        let before = sums.timed_ns()?;
        loop_ns();
        run = run.min((sums.timed_ns()? - before) as f64 / f64::from(memory::FLUSHES));
    }
    Ok(((with - without - run).max(0.0), run))
}

/// Creates a sample of a process's main thread.
fn sample(
    time_ns: u64,
    pid: u32,
    event: &str,
    fields: Vec<(&str, Value)>,
    processes: &Processes,
    names: &mut NameTable,
) -> Sample {
    Sample {
        time_ns,
        cpu: 0,
        pid,
        tid: pid,
        comm: processes.comm(pid, names),
        event: names.get(event),
        fields: fields.into_iter().map(|(name, value)| (names.get(name), value)).collect(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_summed_is_made_up_for_by_the_kernels_count() {
        let stop = |ns, interrupts| Stop { ns, interrupts };
        assert_eq!(interrupt_factor(stop(0, 0), 1_000, 500), 1.0);
        // Half of the time was summed, but the program ended soon after: only a tenth is missing.
        assert_eq!(interrupt_factor(stop(1_000, 50), 1_000, 500), 1.1);
        // Few interrupts show no rate.
        assert_eq!(interrupt_factor(stop(1_000, 50), 1_000, 5), 2.0);
        // A kernel without that row.
        assert_eq!(interrupt_factor(stop(1_000, 0), 1_000, 500), 2.0);
        assert_eq!(interrupt_factor(stop(999_000, 0), 0, 0), 1000.0);
    }

    #[test]
    fn what_a_cpu_holds_of_an_ended_program_is_kept_until_it_is_taken() {
        let held = Flushes { flushes: 1, ..Flushes::default() };
        let mut total = Total { held, is_over: true, ..Total::default() };
        assert!(total.is_needed());
        (total.taken, total.held) = (held, Flushes::default());
        assert!(!total.is_needed());
    }

    #[test]
    fn what_a_cpu_held_before_the_recording_is_not_scaled() {
        let held = |interrupts| Flushes {
            flushes: interrupts,
            remote: interrupts,
            interrupts,
            ..Flushes::default()
        };
        let mut total = Total { held: held(100), before: held(90), ..Total::default() };
        let told = total.tell(Some(Scale { interrupts: 9.0, flushes: 1.0 }));
        assert_eq!((told.interrupts, total.flushes()), (90, 10));
    }

    #[test]
    fn a_program_is_scaled_by_the_time_until_its_end() {
        let stopped = |ns, interrupts| Stop { ns, interrupts };
        // Summing stopped for 5 s before the program began, and for half of its 2 s. It ended in a stop that lasts.
        let since = Moment { ns: 6_000, stopped: stopped(5_000, 800), stop_ns: 0, summed: 200 };
        let now = Moment { ns: 9_000, stopped: stopped(7_000, 900), stop_ns: 1_500, summed: 300 };
        let scale = Scale::between(since, now.at_end(8_000));
        assert_eq!((scale.interrupts, scale.flushes), (2.0, 2.0));
        let whole = Scale::between(Moment::default(), now);
        assert_eq!((whole.interrupts, whole.flushes), (4.0, 4.5));
    }

    #[test]
    fn flushes_are_not_scaled_by_interrupts() {
        let taken =
            Flushes { flushes: 100, pages: 200, remote: 10, interrupts: 10, ..Flushes::default() };
        let mut total = Total { taken, ..Total::default() };
        // Summing stopped for half of the time, but for nine of ten interrupts.
        let by = |interrupts| Some(Scale { interrupts, flushes: 2.0 });
        let told = total.tell(by(10.0));
        assert_eq!((told.flushes, told.pages, told.interrupts), (200, 400, 100));
        assert_eq!(total.tell(by(10.0)), Flushes::default());
        // Each interrupt is of a flush.
        assert_eq!(total.tell(by(30.0)).flushes, 100);
    }
}

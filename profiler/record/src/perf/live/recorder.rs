//! Opens events, reads their records by time, and passes items to a sink.
//!
//! [`plan`](super::plan) looks up the requested events, and [`drain`](super::drain) takes records.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::Duration;

use super::adding::SumReader;
use super::budget::Phase;
use super::cost::{Cost, Mode, Reading, WorkDone};
use super::drain::Reader;
use super::frequent::FrequentEvents;
use super::host::{
    FileLimit, RaisedPriority, buffer_for, host, now_ns, online, process_ns, spent_ns,
};
use super::memory;
use super::options::{Options, RecordError, SumMode};
use super::plan::Plan;
use super::processes::{Processes, numbers};
use super::records::OpenEvent;
use super::rings::{self, Ring};
use super::running::RecordingState;
use super::scope::{Scope, resolve};
use super::summary::Summary;
use super::times::Times;
use super::unwind::Unwinder;
use crate::perf::counters;
use crate::perf::file::Writer;
use crate::perf::sample::{
    Change, Count, CpuTime, FAULTS, Host, Item, LossReason, LostEvents, NameTable, Prices,
    ReadTime, Statistics,
};
use crate::perf::sink::{Progress, Sink};
use crate::perf::symbols::Symbols;
use crate::perf::tracefs::Tracefs;

/// A recorder with its events open on every CPU.
pub struct Recorder {
    options: Options,
    rings: Vec<Ring>,
    frequent: FrequentEvents,
    /// The kernel's sums, if the kernel has BPF.
    adding: Option<SumReader>,
    cost: Cost,
    /// The time until which the programs that sum are timed, and that of the next timing.
    timed_ns: Option<u64>,
    due_ns: u64,
    events: Vec<OpenEvent>,
    processes: Processes,
    names: NameTable,
    symbols: Symbols,
    unwinder: Unwinder,
    prices: Option<Prices>,
    host: Host,
    changes: Vec<Change>,
    /// Notes on requests that the kernel refused.
    notes: Vec<String>,
    command: Option<Command>,
    file_limit: FileLimit,
    times: Times,
    begun_ns: u64,
    state: RecordingState,
}

/// The time for which we hold records back. By then no CPU has an older one.
const HELD_NS: u64 = 2_000_000;

/// The time between two readings of the machine's and the programs' CPU time.
///
/// If few events come, these readings are most of the recorder's cost. They must be cheap even beside a program that
/// mostly waits.
const LOOK_NS: u64 = 250_000_000;

/// The length of a timing of the programs that sum. The first is longer, because it starts with the recording.
const TIMED_NS: (u64, u64) = (150_000_000, 20_000_000);
/// The pauses between the first timings, and between later ones.
const TIMINGS_NS: (u64, u64) = (400_000_000, 10_000_000_000);
/// The time until which timings are frequent.
const FIRST_NS: u64 = 10_000_000_000;

/// The largest number of processes in which we measure the cost.
const MEASURED: usize = 16;

/// The failed step if events can't be started or stopped.
const SWITCHED: &str = "events cannot be switched";
/// The failed step if the sink fails.
const WRITTEN: &str = "the recording cannot be written";
/// The failed step if `/proc` or the events' counts can't be read.
const COUNTERS: &str = "reading counters";

/// The time between two readings of the events' counts. Each reading interrupts every CPU.
const COUNT_NS: u64 = 1_000_000_000;

/// The event that happens once for each interrupt.
const QUEUED: &str = "csd:csd_queue_cpu";

/// The time between two calls of [`Sink::second`].
const SECOND_NS: u64 = 1_000_000_000;

impl Recorder {
    /// Opens the events. Nothing is recorded yet.
    ///
    /// # Errors
    ///
    /// If a right, a feature or a process is missing. The error is one line with the reason and a remedy.
    pub fn open(options: Options, scope: Scope) -> Result<Self, RecordError> {
        let begun_ns = spent_ns();
        let mut host = host();
        // We check the user's processes first, so that the error for a missing one is the same on every machine.
        let (pids, command) = resolve(scope, &mut host)?;
        let tracefs = Tracefs::find().map_err(RecordError::Missing)?;
        let mut names = NameTable::default();
        let asked = Plan::of(&options.wanted, &tracefs, &mut names, &mut host)?;
        let Plan { events, mut points, mut notes, .. } = asked;
        let file_limit = FileLimit::raise();
        let cpus = online().map_err(failed("/sys/devices/system/cpu/online"))?;
        let bytes = buffer_for(cpus.len());
        let prices = memory::measure(cpus.len());
        let mut symbols = Symbols::default();
        // Reads the kernel's names now rather than at the first event.
        symbols.kernel(0);
        let adding = match options.sums {
            SumMode::No => None,
            SumMode::Beside | SumMode::Alone => match SumReader::open(&mut symbols) {
                Ok(adding) => Some(adding),
                Err(why) if options.sums == SumMode::Alone => {
                    return Err(RecordError::Missing(why));
                }
                Err(why) => {
                    notes.push(format!(
                        "Flushes are not summed in the kernel: {why}. Flushes while events were not recorded are estimated."
                    ));
                    None
                }
            },
        };
        if adding.is_some() {
            points.iter_mut().for_each(|point| point.counted = false);
        }
        let rings = Ring::open_all(&cpus, bytes, &points);
        let rings = rings.map_err(|error| {
            RecordError::Event(host.events.first().cloned().unwrap_or_default(), error)
        })?;
        let frequent = FrequentEvents::of(points);
        let (processes, changes) = Processes::running(pids, &mut names, &mut host);
        Ok(Self {
            options,
            rings,
            frequent,
            cost: Cost::default(),
            adding,
            timed_ns: None,
            due_ns: 0,
            events,
            processes,
            names,
            symbols,
            unwinder: Unwinder::default(),
            prices,
            host,
            changes,
            notes,
            command,
            file_limit,
            times: Times::default(),
            begun_ns,
            state: RecordingState::default(),
        })
    }

    /// Returns the scope of the recording, and the events that exist.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Records until `stop` returns `true`, or until the recorded processes have ended.
    ///
    /// `stop` is called at least ten times a second. When recording has ended, we look up the names of functions. If
    /// the command still runs then, we don't stop it.
    ///
    /// # Errors
    ///
    /// If the command can't be started, the sink fails, or the kernel refuses an operation that worked before.
    pub fn run<S: Sink>(
        mut self,
        mut sink: S,
        mut stop: impl FnMut(Progress) -> bool,
    ) -> Result<(Summary, S::Output), RecordError> {
        let before = self.begin(&mut sink)?;
        self.state = RecordingState::new(self.options.overhead, spent_ns());
        let around_before = self.state.own_before - self.begun_ns;
        let waited_for = counters::waited_for();
        let command = self.command.take();
        let program = command.as_ref().map(|of| of.get_program().to_owned());
        let mut child = command.map(|command| self.spawn(command)).transpose()?;
        match &child {
            Some(child) => self.times.started(child.id()),
            None => {
                let pids = match self.processes.wanted() {
                    Some(wanted) => wanted.iter().copied().collect(),
                    None => numbers(Path::new("/proc")),
                };
                self.times.begin(pids.into_iter());
            }
        }
        let ahead = RaisedPriority::begin();
        if let Some(adding) = &mut self.adding {
            adding.time(true, &self.processes).map_err(failed(COUNTERS))?;
            self.timed_ns = Some(self.state.begin_ns + TIMED_NS.0);
        }
        let exit = self.record(&mut sink, &before, child.as_mut(), &mut stop)?;
        let outlived = exit.is_some() && !self.options.outlives && !self.times.is_over();
        if let (Some(_), Some(program)) = (exit, &program) {
            let name = Path::new(program).file_name().unwrap_or(program);
            let used = counters::waited_for().minus(waited_for);
            let peak_pages = super::spent::peak_pages();
            self.times.whole(used, &name.to_string_lossy(), peak_pages);
        }
        let (mut summary, output) = self.end(&before, ahead, sink)?;
        summary.around = Duration::from_nanos(around_before + spent_ns() - self.state.own_before);
        summary.around -= summary.recorder;
        summary.outlived = outlived;
        // Ctrl-C interrupts the command together with us, for example. Then it has ended, or will end by itself.
        summary.exit = match (exit, child) {
            (None, Some(mut child)) => child.try_wait().ok().flatten(),
            _ => exit,
        };
        Ok((summary, output))
    }

    /// Passes the items known in advance to the sink, and opens the first window. Returns the counters of that moment.
    fn begin<S: Sink>(&mut self, sink: &mut S) -> Result<Statistics, RecordError> {
        let mut items = vec![Item::Host(self.host.clone())];
        items.extend(std::mem::take(&mut self.changes).into_iter().map(Item::Change));
        items.extend(self.prices.map(Item::Prices));
        let told = items.iter().try_for_each(|item| sink.item(item));
        told.map_err(failed(WRITTEN))?;
        // We hurry here: events between these steps would be in the kernel's counts but not in ours.
        let ahead = RaisedPriority::begin();
        let before = counters::read(ReadTime::Before, now_ns()).map_err(failed(COUNTERS))?;
        if let Some(adding) = &mut self.adding {
            adding.begin(&self.processes).map_err(failed(COUNTERS))?;
        }
        let counting = self.rings.iter_mut().try_for_each(Ring::count);
        counting
            .and_then(|()| self.turn(Phase::Counting, Phase::Window))
            .map_err(failed(SWITCHED))?;
        drop(ahead);
        sink.item(&Item::Statistics(before.clone())).map_err(failed(WRITTEN))?;
        Ok(before)
    }

    /// Reads records and steers, until the recording ends. Returns the command's exit status if the command ended it.
    fn record<S: Sink>(
        &mut self,
        sink: &mut S,
        before: &Statistics,
        mut child: Option<&mut Child>,
        stop: &mut impl FnMut(Progress) -> bool,
    ) -> Result<Option<ExitStatus>, RecordError> {
        let mut ended = None;
        loop {
            let now = now_ns();
            self.drain(now.saturating_sub(HELD_NS), sink).map_err(failed(WRITTEN))?;
            if now >= self.state.looked_ns + LOOK_NS {
                self.look(now, before).map_err(failed(COUNTERS))?;
                // If there is a command, its exit decides instead: it has a status and a usage.
                if child.is_none() && !self.is_about_all() && self.times.is_over() {
                    return Ok(ended);
                }
            }
            if now >= self.state.told_ns + SECOND_NS {
                self.state.told_ns = now;
                self.take_sums().map_err(failed(COUNTERS))?;
                self.tell_sums(now, false, sink)?;
                sink.second(self.progress(now)).map_err(failed(WRITTEN))?;
            }
            self.steer(now).map_err(failed(SWITCHED))?;
            if let Some(running) = &mut child
                && let Ok(Some(status)) = running.try_wait()
            {
                // Records of processes that it started are still held back.
                thread::sleep(Duration::from_nanos(HELD_NS));
                self.drain(now_ns().saturating_sub(HELD_NS), sink).map_err(failed(WRITTEN))?;
                if !self.options.outlives || self.times.is_over() {
                    return Ok(Some(status));
                }
                (ended, child) = (Some(status), None);
            }
            if stop(self.progress(now)) {
                return Ok(ended);
            }
            rings::wait(&self.rings, self.state.pause());
        }
    }

    /// Reads the CPU time of the machine and the programs. Less often, also reads the events' counts.
    fn look(&mut self, now: u64, before: &Statistics) -> io::Result<()> {
        self.state.looked_ns = now;
        let is_second = now >= self.state.counted_ns + COUNT_NS;
        let mut flushed = BTreeSet::new();
        if let Some(adding) = &mut self.adding {
            adding.take(&self.processes)?;
            flushed = adding.unexplained().collect();
            // We read mappings now, while the processes run.
            for &pid in &flushed {
                self.processes.catch_up(pid, &mut self.names);
            }
        }
        // The accounts of all processes are many, and steer nothing.
        if is_second || !self.is_about_all() {
            self.times.look(&flushed);
        }
        self.state.used_ns = self.times.ns();
        self.state.busy_ns = counters::busy_ns()?.saturating_sub(before.busy_ns());
        if is_second {
            self.state.counted_ns = now;
            self.state.counted = self.counts()?.values().sum();
        }
        Ok(())
    }

    /// Opens or closes the window, according to the budget and the measured cost.
    fn steer(&mut self, now: u64) -> io::Result<()> {
        let is_closing = self.frequent.is_closing();
        if !is_closing && self.frequent.has_closed() {
            self.measure(self.state.phase.mode(true))?;
        }
        if self.time(now)? {
            return Ok(());
        }
        let (kernel, hit) = self.spent();
        let spent = spent_ns() - self.state.own_before + kernel;
        let programs =
            (!self.is_about_all()).then(|| (self.state.used_ns.saturating_sub(hit), hit));
        let machine = (self.state.busy_ns.saturating_sub(spent), spent);
        let events = [Some((machine.0, kernel)), programs];
        let closing_ns = self.cost.closing_ns(self.state.kernel().1, self.state.closed);
        let accounts = [Some(machine), programs];
        let mut next = self.state.budget.turn(now, accounts, events, closing_ns);
        if next == Phase::Window && is_closing {
            next = self.state.budget.pause(now);
        }
        self.switch_phase(next)
    }

    /// Returns the CPU time that recording took from all programs, and from recorded ones.
    fn spent(&self) -> (u64, u64) {
        let sums = self.adding.as_ref().map_or([0.0; 2], SumReader::spent_ns);
        let (kernel, hit) = self.state.kernel();
        let of_hit = self.cost.spent_ns(hit);
        // The cost is measured only in recorded programs.
        let of_all = of_hit + (kernel - hit);
        ((of_all + sums[0]) as u64, (of_hit + sums[1]) as u64)
    }

    fn switch_phase(&mut self, next: Phase) -> io::Result<()> {
        if next == self.state.phase {
            return Ok(());
        }
        self.measure(self.state.phase.mode(self.frequent.is_closing()))?;
        if next == Phase::Window {
            if self.frequent.open(&mut self.rings)? {
                self.processes.missed_mappings();
            }
            self.state.open_ns = Some(now_ns());
        }
        if next == Phase::Off {
            self.note("Counting interrupts cost more than --overhead allows, so for a part of the time only /proc/interrupts counted them. For that time, flushes and pages are estimated.");
        }
        if let Some(adding) = &mut self.adding {
            match next {
                Phase::Window | Phase::Counting => adding.resume()?,
                Phase::Off => adding.stop()?,
            }
        }
        self.turn(self.state.phase, next)?;
        self.state.turns += 1;
        if std::mem::replace(&mut self.state.phase, next) == Phase::Window {
            self.state.close(now_ns());
            self.frequent.close(&mut self.rings)?;
        }
        Ok(())
    }

    /// Begins or ends the timing of the programs that sum, if it's time. Returns whether that has changed the cost.
    fn time(&mut self, now: u64) -> io::Result<bool> {
        let Some(adding) = &mut self.adding else {
            return Ok(false);
        };
        match self.timed_ns {
            Some(until) if now >= until => {
                adding.time(false, &self.processes)?;
                let (first, later) = TIMINGS_NS;
                let is_early = now < self.state.begin_ns + FIRST_NS;
                self.due_ns = now + if is_early { first } else { later };
                self.timed_ns = None;
                self.state.look_again();
                Ok(true)
            }
            None if now >= self.due_ns && self.state.phase != Phase::Off => {
                adding.time(true, &self.processes)?;
                self.timed_ns = Some(now + TIMED_NS.1);
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    /// Ends a turn in this mode, and begins the next.
    fn measure(&mut self, mode: Mode) -> io::Result<()> {
        let reading = self.reading()?;
        self.cost.turn(mode, now_ns(), reading);
        Ok(())
    }

    /// Reads the work of the recorded processes. If all are recorded, reads that of the processes that flush most.
    fn reading(&mut self) -> io::Result<Reading> {
        let mut reading = Reading::default();
        let Some(adding) = &mut self.adding else {
            return Ok(reading);
        };
        adding.take(&self.processes)?;
        let by_process = adding.by_process();
        let flushes: Vec<(u32, u64)> = match self.processes.wanted() {
            Some(wanted) => {
                let run = wanted.iter().filter(|pid| !self.processes.has_ended(**pid));
                let flushes = |pid: &u32| (*pid, by_process.get(pid).copied().unwrap_or(0));
                run.map(flushes).take(MEASURED).collect()
            }
            None => {
                let mut most: Vec<(u32, u64)> = by_process.into_iter().collect();
                most.sort_unstable_by_key(|of| std::cmp::Reverse(of.1));
                most.truncate(MEASURED);
                most
            }
        };
        for (pid, flushes) in flushes {
            if let (Some(cpu_ns), Some(process)) = (process_ns(pid), counters::process(pid)) {
                let done = WorkDone { cpu_ns, flushes, faults: process.own.faults };
                reading.insert(pid, done);
            }
        }
        Ok(reading)
    }

    fn progress(&self, now: u64) -> Progress {
        let summed_ns = self.adding.as_ref().map_or(0, SumReader::summed_ns);
        Progress {
            elapsed: Duration::from_nanos(now.saturating_sub(self.state.begin_ns)),
            summed: Duration::from_nanos(summed_ns),
            kept: self.state.kept,
            lost: self.state.lost,
        }
    }

    /// Reads the kernel's sums.
    fn take_sums(&mut self) -> io::Result<()> {
        self.adding.as_mut().map_or(Ok(()), |adding| adding.take(&self.processes))
    }

    /// Writes the kernel's sums since the last call to the sink.
    fn tell_sums<S: Sink>(
        &mut self,
        now: u64,
        is_last: bool,
        sink: &mut S,
    ) -> Result<(), RecordError> {
        // Live figures can't wait for the end.
        let is_whole = is_last || self.options.sums == SumMode::Alone;
        let Some(adding) = &mut self.adding else {
            return Ok(());
        };
        let (processes, names) = (&mut self.processes, &mut self.names);
        let told = adding.tell(now, is_whole, processes, names, &mut self.symbols);
        for (sample, places) in told.map_err(failed(COUNTERS))? {
            sink.sample(&sample, &places, &mut self.symbols).map_err(failed(WRITTEN))?;
        }
        Ok(())
    }

    /// Adds a note once.
    fn note(&mut self, note: &str) {
        if !self.notes.iter().any(|known| known == note) {
            self.notes.push(note.to_owned());
        }
    }

    /// Returns whether the recording is about all processes.
    fn is_about_all(&self) -> bool {
        self.processes.wanted().is_none()
    }

    /// Stops the events, reads the remaining records, and passes the final items to the sink.
    ///
    /// The caller sets the command's exit status and the time spent after this.
    fn end<S: Sink>(
        &mut self,
        before: &Statistics,
        ahead: RaisedPriority,
        mut sink: S,
    ) -> Result<(Summary, S::Output), RecordError> {
        self.turn(self.state.phase, Phase::Counting).map_err(failed(SWITCHED))?;
        let ended = self.rings.iter_mut().try_for_each(Ring::end);
        ended.map_err(failed(SWITCHED))?;
        let end_ns = now_ns();
        self.measure(self.state.phase.mode(self.frequent.is_closing()))
            .map_err(failed(COUNTERS))?;
        self.state.close(end_ns);
        // These two are compared with each other, so we read them close together.
        let taken = self.take_sums();
        let after = taken.and_then(|()| counters::read(ReadTime::After, end_ns));
        let after = after.map_err(failed(COUNTERS))?;
        let busy = after.busy_ns().saturating_sub(before.busy_ns());
        let faults = after.vm("pgfault").zip(before.vm("pgfault"));
        self.times.look_at_all();
        let read = self.drain(u64::MAX, &mut sink);
        read.and_then(|()| self.missing(end_ns, &mut sink)).map_err(failed(WRITTEN))?;
        let mut exact = self.counts().map_err(failed(COUNTERS))?;
        self.state.counted = exact.values().sum();
        self.tell_sums(end_ns, true, &mut sink)?;
        let (kernel, hit) = self.spent();
        if let Some(adding) = self.adding.take() {
            let queued = self.events.iter().position(|event| &*event.name == QUEUED);
            let interrupts = adding.interrupts().map_err(failed(COUNTERS))?;
            exact.extend(queued.map(|event| (event, interrupts)));
            if adding.lost > 0 {
                let lost = adding.lost;
                self.note(&format!("The sums lack {lost} flushes, because there were too many different call sites."));
            }
        }
        // Closing takes the kernel about a second. We look up names meanwhile. If the system refuses a thread, the
        // failed call closes them.
        let rings = std::mem::take(&mut self.rings);
        let closing = thread::Builder::new().spawn(move || drop(rings));
        let own = spent_ns() - self.state.own_before;
        drop(ahead);
        let counts = self.kept(&exact, faults);
        let ran = self.times.ran();
        let used: u64 = ran.iter().map(CpuTime::ns).sum();
        let mut items = vec![Item::Statistics(after)];
        items.extend(ran.into_iter().map(Item::CpuTime));
        items.extend(counts.iter().cloned().map(Item::Count));
        let summary = Summary {
            elapsed: Duration::from_nanos(end_ns - self.state.begin_ns),
            counts,
            kept: self.state.kept,
            lost: self.state.lost,
            recorded: Duration::from_nanos(self.state.recorded_ns),
            recorder: Duration::from_nanos(own),
            kernel: Duration::from_nanos(kernel),
            pairs: self.cost.pairs(),
            busy: Duration::from_nanos(busy.saturating_sub(own + kernel)),
            hit: Duration::from_nanos(hit),
            used: (!self.is_about_all()).then(|| Duration::from_nanos(used.saturating_sub(hit))),
            turns: self.state.turns,
            ..Summary::default()
        };
        let notes = std::mem::take(&mut self.notes).into_iter();
        items.extend(notes.chain([summary.to_string()]).map(|note| Item::Note(note.into())));
        let told = items.iter().try_for_each(|item| sink.item(item));
        let output = told.and_then(|()| sink.finish(&mut self.symbols));
        // Wait, so that no event stays open in the kernel.
        let _ = closing.map(thread::JoinHandle::join);
        output.map(|output| (summary, output)).map_err(failed(WRITTEN))
    }

    /// Returns the counts of all events, exact and recorded. Page faults are by the kernel's own count, `faults`
    /// (after, before).
    fn kept(&self, exact: &BTreeMap<usize, u64>, faults: Option<(u64, u64)>) -> Vec<Count> {
        let mut counts: Vec<Count> = Vec::new();
        for (&event, &exact) in exact {
            let count = self.events[event].count(exact);
            match counts.iter_mut().find(|known| known.event == count.event) {
                Some(known) => known.add(&count),
                None => counts.push(count),
            }
        }
        let event = self.events.iter().find(|event| &*event.name == FAULTS);
        if let Some((event, (after, before))) = event.zip(faults) {
            counts.push(event.count(after.saturating_sub(before)));
        }
        counts
    }

    /// Records into a file, like [`run`](Self::run).
    ///
    /// This instance is compiled in this crate. So the optimization level of the caller doesn't affect the cost of each
    /// event.
    ///
    /// # Errors
    ///
    /// As `run`, or if the file can't be written.
    pub fn write(
        self,
        file: File,
        stop: &mut dyn FnMut(Progress) -> bool,
    ) -> Result<Summary, RecordError> {
        let writer = Writer::new(BufWriter::new(file)).map_err(failed(WRITTEN))?;
        let (summary, mut file) = self.run(writer, stop)?;
        file.flush().map_err(failed(WRITTEN))?;
        Ok(summary)
    }

    /// Switches every CPU from one phase to another.
    fn turn(&mut self, from: Phase, to: Phase) -> io::Result<()> {
        self.rings.iter_mut().try_for_each(|ring| ring.turn(from, to))
    }

    fn spawn(&mut self, mut command: Command) -> Result<Child, RecordError> {
        let child = self.file_limit.without(|| command.spawn()).map_err(|error| {
            RecordError::Command(command.get_program().to_string_lossy().into_owned(), error)
        })?;
        // We read its records after this, so we recognize them as those of the command.
        self.processes.want_command(child.id());
        Ok(child)
    }

    /// Returns the count of each counted event so far, over all CPUs.
    fn counts(&mut self) -> io::Result<BTreeMap<usize, u64>> {
        let mut sums = BTreeMap::new();
        for ring in &mut self.rings {
            for (event, count) in ring.counts()? {
                *sums.entry(event).or_default() += count;
            }
        }
        Ok(sums)
    }

    /// Takes all records up to a time from the buffers, in the order of time.
    fn drain<S: Sink>(&mut self, until_ns: u64, sink: &mut S) -> io::Result<()> {
        let reader = Reader {
            events: &mut self.events,
            processes: &mut self.processes,
            names: &mut self.names,
            symbols: &mut self.symbols,
            unwinder: &mut self.unwinder,
            times: &mut self.times,
            state: &mut self.state,
        };
        reader.drain(&mut self.rings, self.frequent.points(), until_ns, sink)
    }

    /// Writes losses that the kernel hasn't reported. It reports a loss with the next record that finds room.
    fn missing<S: Sink>(&mut self, time_ns: u64, sink: &mut S) -> io::Result<()> {
        for ring in &mut self.rings {
            let (full, unexplained) = ring.missing()?;
            for (why, count) in [(LossReason::Full, full), (LossReason::Unexplained, unexplained)] {
                if count > 0 {
                    self.state.lost += count;
                    sink.item(&Item::Lost(LostEvents { why, time_ns, cpu: ring.cpu, count }))?;
                }
            }
        }
        Ok(())
    }
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> RecordError {
    move |error| RecordError::Other(what, error)
}

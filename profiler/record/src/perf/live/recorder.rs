//! The recorder: events opened, read in the order of time, handed to a sink. What was asked for is looked up in
//! [`asked`](super::asked), and records are taken in [`drain`](super::drain). The file is long because the rest is one
//! life: open, begin, record and steer, end.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::Duration;

use super::asked::Asked;
use super::budget::Phase;
use super::drain::Reader;
use super::frequent::Frequent;
use super::host::{Ahead, FileLimit, buffer_for, host, now_ns, online, spent_ns};
use super::memory::{self, Memory};
use super::options::Options;
use super::price::{self, Price};
use super::processes::Processes;
use super::records::Opened;
use super::rights::Refused;
use super::rings::{self, Missing, Point, Ring};
use super::running::Running;
use super::scope::{Scope, resolve};
use super::summary::Summary;
use super::times::Times;
use super::unwind::Unwinder;
use crate::perf::counters;
use crate::perf::file::Writer;
use crate::perf::sample::{
    Change, Count, FAULTS, Host, Item, Lost, Names, Ran, Statistics, When, Why,
};
use crate::perf::sink::{Progress, Sink};
use crate::perf::symbols::Symbols;
use crate::perf::tracefs::Tracefs;

/// Events that are open on every CPU.
pub struct Recorder {
    options: Options,
    rings: Vec<Ring>,
    frequent: Frequent,
    events: Vec<Opened>,
    processes: Processes,
    names: Names,
    symbols: Symbols,
    unwinder: Unwinder,
    price: Price,
    memory: Option<Memory>,
    host: Host,
    changes: Vec<Change>,
    /// What the kernel would not do as it was asked.
    notes: Vec<String>,
    command: Option<Command>,
    file_limit: FileLimit,
    times: Times,
    begun_ns: u64,
}

/// Records are held back for so long, so that no CPU has an older one.
const HELD_NS: u64 = 2_000_000;

/// How often it is looked at what the machine does. That is most of what the recorder takes where little comes, and it
/// must be little of what a program takes that waits most of the time.
const LOOK_NS: u64 = 250_000_000;

/// What failed where events cannot be started or stopped.
const SWITCHED: &str = "events cannot be switched";
/// What failed where the sink refuses.
const WRITTEN: &str = "the recording cannot be written";
/// What failed where `/proc` or the events' own counts do.
const COUNTERS: &str = "reading counters";

/// CPU time that it takes to read a record and to write it: on a Zen 4 virtual machine, of a recording with 1500 a second.
const READ_NS: u64 = 4_000;

/// How often the events' counts are read, which interrupts every CPU.
const COUNT_NS: u64 = 1_000_000_000;

/// How often the sink is told of the time.
const SECOND_NS: u64 = 1_000_000_000;

impl Recorder {
    /// Opens the events. Nothing is recorded yet.
    ///
    /// # Errors
    ///
    /// In one line: what is missing, and what would help.
    pub fn open(options: Options, scope: Scope) -> Result<Self, Refused> {
        let begun_ns = spent_ns();
        let mut host = host();
        // What a person named and is not there is refused in the same words whatever this machine could record.
        let (pids, command) = resolve(scope, &mut host)?;
        let tracefs = Tracefs::find().map_err(Refused::Missing)?;
        let mut names = Names::default();
        let asked = Asked::of(&options.wanted, &tracefs, &mut names, &mut host)?;
        let Asked {
            events,
            points,
            notes,
            all_calls,
        } = asked;
        let file_limit = FileLimit::raise();
        let cpus = online().map_err(failed("/sys/devices/system/cpu/online"))?;
        let bytes = options.buffer.unwrap_or_else(|| buffer_for(cpus.len()));
        // What takes long is done first: as soon as the events are open, calls and page faults of all programs take longer.
        let price = match tracefs.format(price::TRACEPOINT, &mut names) {
            Ok(Some(format)) => Price::measure(format.id).unwrap_or_else(|_| Price::assumed()),
            _ => Price::assumed(),
        };
        let memory = memory::measure(cpus.len());
        let mut symbols = Symbols::default();
        // The kernel's names are read now, not at the first event.
        symbols.kernel(0);
        let before_ns = (price::call_ns(), memory::fault_ns(), memory::change_ns());
        let rings = Ring::open_all(&cpus, bytes, &points);
        let mut rings = rings.map_err(|error| Refused::Event {
            event: host.events[0].clone(),
            error,
        })?;
        let call_ns = price::call_ns();
        let fault_ns = memory::fault_ns().zip(before_ns.1);
        let change_ns = memory::change_ns().zip(before_ns.2);
        let is_fault = |point: &Point| point.frequent == Some(rings::Frequent::Fault);
        let has_faults = points.iter().any(is_fault);
        let turn_ns = rings::turn_ns(&mut rings).map_err(failed(SWITCHED))?;
        let recorded = rings::in_window(&mut rings, price::call_ns).map_err(failed(SWITCHED))?;
        rings::forget(&mut rings);
        let call_more_ns = (call_ns - before_ns.0).max(0.0);
        let price = Price {
            turn_ns,
            call_ns: call_more_ns,
            // The clocks around it are calls, too.
            flush_ns: change_ns.map_or(0.0, |(after, before)| {
                (after - before - 2.0 * call_more_ns).max(0.0)
            }),
            filtered_ns: (recorded - call_ns).max(0.0),
            fault_ns: fault_ns
                .filter(|_| has_faults)
                .map_or(0.0, |(after, before)| (after - before).max(0.0)),
            ..price
        };
        let mut frequent = Frequent::of(points, all_calls.map(|all| all[0]));
        frequent.expect_closing(price.closing_ns);
        let (processes, changes) = Processes::running(pids, &mut names, &mut host);
        Ok(Self {
            options,
            rings,
            frequent,
            events,
            processes,
            names,
            symbols,
            unwinder: Unwinder::default(),
            price,
            memory,
            host,
            changes,
            notes,
            command,
            file_limit,
            times: Times::default(),
            begun_ns,
        })
    }

    /// On what is recorded, and which events are there.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Records until `stop` says so, or until what the recording is about has ended. `stop` is asked at least
    /// ten times a second.
    ///
    /// The names of functions are looked up once nothing is recorded any more. A command that still runs then is left
    /// to itself.
    ///
    /// # Errors
    ///
    /// The command cannot be started, the sink refuses, or the kernel does not do what it did before.
    pub fn run<S: Sink>(
        mut self,
        mut sink: S,
        mut stop: impl FnMut(Progress) -> bool,
    ) -> Result<(Summary, S::Output), Refused> {
        let before = self.begin(&mut sink)?;
        let mut state = Running::new(self.options.overhead, spent_ns(), self.rings.len());
        let around_before = state.own_before - self.begun_ns;
        let waited_for = counters::waited_for();
        let command = self.command.take();
        let program = command.as_ref().map(|of| of.get_program().to_owned());
        let mut child = command.map(|command| self.spawn(command)).transpose()?;
        match &child {
            Some(child) => self.times.started(child.id()),
            None => {
                let pids = self.processes.wanted().into_iter().flatten();
                self.times.begin(pids.copied());
            }
        }
        let ahead = Ahead::begin();
        self.frequent.begin(state.begin_ns);
        let exit = self.record(&mut sink, &mut state, &before, child.as_mut(), &mut stop)?;
        let outlived = exit.is_some() && !self.options.outlives && !self.times.is_over();
        if let (Some(_), Some(program)) = (exit, &program) {
            let name = Path::new(program).file_name().unwrap_or(program);
            let used = counters::waited_for().minus(waited_for);
            self.times.whole(used, &name.to_string_lossy());
        }
        let (mut summary, output) = self.end(&before, ahead, &mut state, sink)?;
        summary.around = Duration::from_nanos(around_before + spent_ns() - state.own_before);
        summary.around -= summary.recorder;
        summary.outlived = outlived;
        // A command that was interrupted with us, or is to be stopped with us, has ended or ends by itself.
        summary.exit = match (exit, child) {
            (None, Some(mut child)) => child.try_wait().ok().flatten(),
            _ => exit,
        };
        Ok((summary, output))
    }

    /// Tells the sink what is known before anything happens, and opens the first window. The counters as they were
    /// then.
    fn begin<S: Sink>(&mut self, sink: &mut S) -> Result<Statistics, Refused> {
        let mut items = vec![Item::Host(self.host.clone())];
        items.extend(
            std::mem::take(&mut self.changes)
                .into_iter()
                .map(Item::Change),
        );
        let prices = self.memory.map(|memory| memory.with(&self.price));
        items.extend(prices.map(Item::Prices));
        let told = items.iter().try_for_each(|item| sink.item(item));
        told.map_err(failed(WRITTEN))?;
        // What comes between the kernel's counts and ours is in the one and not in the other.
        let ahead = Ahead::begin();
        let before = counters::read(When::Before, now_ns()).map_err(failed(COUNTERS))?;
        let counting = self.rings.iter_mut().try_for_each(Ring::count);
        counting
            .and_then(|()| self.turn(Phase::Counting, Phase::Window))
            .map_err(failed(SWITCHED))?;
        drop(ahead);
        sink.item(&Item::Statistics(before.clone()))
            .map_err(failed(WRITTEN))?;
        Ok(before)
    }

    /// Reads what comes, and steers, until it is over; how the command ended, if that is why.
    fn record<S: Sink>(
        &mut self,
        sink: &mut S,
        state: &mut Running,
        before: &Statistics,
        mut child: Option<&mut Child>,
        stop: &mut impl FnMut(Progress) -> bool,
    ) -> Result<Option<ExitStatus>, Refused> {
        let mut ended = None;
        loop {
            let now = now_ns();
            self.drain(now.saturating_sub(HELD_NS), sink, state)
                .map_err(failed(WRITTEN))?;
            if now >= state.looked_ns + LOOK_NS {
                self.look(now, before, state).map_err(failed(COUNTERS))?;
                // A command that has ended says how, and what it used.
                if child.is_none() && !self.is_about_all() && self.times.is_over() {
                    return Ok(ended);
                }
            }
            if now >= state.told_ns + SECOND_NS {
                state.told_ns = now;
                sink.second(state.progress(now, sink.written()))
                    .map_err(failed(WRITTEN))?;
            }
            let steered = self.steer(now, state);
            let is_window = state.phase == Phase::Window;
            steered
                .and_then(|()| self.frequent.look(&self.rings, now_ns(), is_window))
                .map_err(failed(SWITCHED))?;
            if let Some(running) = &mut child
                && let Ok(Some(status)) = running.try_wait()
            {
                // What it has started is told in records that are held back yet.
                thread::sleep(Duration::from_nanos(HELD_NS));
                self.drain(now_ns().saturating_sub(HELD_NS), sink, state)
                    .map_err(failed(WRITTEN))?;
                if !self.options.outlives || self.times.is_over() {
                    return Ok(Some(status));
                }
                (ended, child) = (Some(status), None);
            }
            if stop(state.progress(now, sink.written())) {
                return Ok(ended);
            }
            rings::wait(&self.rings, state.pause());
        }
    }

    /// Looks at what the machine and the programs have done meanwhile, and, less often, at the events' counts.
    fn look(&mut self, now: u64, before: &Statistics, state: &mut Running) -> io::Result<()> {
        state.looked_ns = now;
        self.times.look();
        state.used_ns = self.times.ns();
        state.busy_ns = counters::busy_ns()?.saturating_sub(before.busy_ns());
        if now >= state.counted_ns + COUNT_NS {
            state.counted_ns = now;
            state.counted = self.counts()?.values().sum();
            if let Some((now_faults, faults)) = counters::faults()?.zip(before.vm("pgfault")) {
                let within_ns = now.saturating_sub(before.time_ns);
                self.frequent
                    .faulted(now_faults.saturating_sub(faults), within_ns);
            }
        }
        Ok(())
    }

    /// Opens or closes the window, as the budget says.
    fn steer(&mut self, now: u64, state: &mut Running) -> io::Result<()> {
        if self.frequent.is_closing() {
            return Ok(());
        }
        self.frequent.have_closed(now);
        let (kernel, hit) = state.kernel(&self.price, &self.frequent, now);
        let spent = spent_ns() - state.own_before + kernel;
        let programs = (!self.is_about_all()).then(|| (state.used_ns.saturating_sub(hit), hit));
        let machine = (state.busy_ns.saturating_sub(spent), spent);
        let accounts = [Some(machine), programs];
        let done = accounts.iter().flatten().map(|(done, _)| *done as f64);
        let done = done.fold(f64::INFINITY, f64::min) / (now - state.begin_ns).max(1) as f64;
        // Before the first look, no more is known of what may be spent than that all CPUs may be busy.
        let done = match state.busy_ns {
            0 => self.rings.len() as f64,
            _ => done,
        };
        let allowed = Some(done * self.options.overhead);
        let closing = self.frequent.closing_ns(&self.price, allowed);
        // What calls and page faults take more comes and goes with these events alone, whatever else is recorded.
        let frequent = self.frequent_ns(now, state);
        let events = (
            machine.0,
            kernel.saturating_sub(frequent) + state.seen * READ_NS,
        );
        let closing_ns = closing.unwrap_or(0.0);
        // Where nothing is recorded between windows, nothing tells.
        let tells = state.phase == Phase::Between && self.rings.iter().any(Ring::has_between);
        let stirring = state.is_stirring(now) || !tells;
        let next = state
            .budget
            .turn(now, accounts, events, closing_ns, stirring);
        if next == state.phase {
            return self.close_frequent(state.phase, closing);
        }
        if next == Phase::Window {
            if self.frequent.open(&mut self.rings, now_ns())? {
                self.processes.missed_mappings();
            }
            state.open_ns = Some(now_ns());
        }
        if next == Phase::Off {
            self.note("Even to count interrupts cost more than was allowed: for a part of the time only /proc/interrupts did.");
        }
        if state.phase == Phase::Between {
            state.cut(now_ns());
        }
        self.turn(state.phase, next)?;
        state.turns += 1;
        let was = std::mem::replace(&mut state.phase, next);
        if was == Phase::Window {
            state.close(now_ns());
        } else if next == Phase::Between {
            state.cut(now_ns());
        }
        self.close_frequent(next, closing)
    }

    /// Notes it once.
    fn note(&mut self, note: &str) {
        if !self.notes.iter().any(|known| known == note) {
            self.notes.push(note.to_owned());
        }
    }

    /// What all system calls and page faults took more until now.
    fn frequent_ns(&self, now: u64, state: &Running) -> u64 {
        let within = state.recorded_ns(now);
        self.frequent.ns(now, &self.price, within) as u64
    }

    /// Begins to close the frequent events where no window needs them and they cost too much (`closing`): as a window
    /// closes, or as soon as it turns out between windows.
    fn close_frequent(&mut self, phase: Phase, closing: Option<f64>) -> io::Result<()> {
        if phase != Phase::Window && closing.is_some() && self.frequent.are_open() {
            self.frequent.close(&mut self.rings, now_ns())?;
        }
        Ok(())
    }

    /// Whether the recording is about all processes.
    fn is_about_all(&self) -> bool {
        self.processes.wanted().is_none()
    }

    /// Ends the recording: stops the events, reads what is left of them, and tells the sink what is known only now. How
    /// the command ended, and what it takes afterwards, is left to the caller.
    fn end<S: Sink>(
        &mut self,
        before: &Statistics,
        ahead: Ahead,
        state: &mut Running,
        mut sink: S,
    ) -> Result<(Summary, S::Output), Refused> {
        self.turn(state.phase, Phase::Counting)
            .map_err(failed(SWITCHED))?;
        let ended = self.rings.iter_mut().try_for_each(Ring::end);
        ended.map_err(failed(SWITCHED))?;
        let end_ns = now_ns();
        state.close(end_ns);
        let after = counters::read(When::After, end_ns).map_err(failed(COUNTERS))?;
        let busy = after.busy_ns().saturating_sub(before.busy_ns());
        let faults = after.vm("pgfault").zip(before.vm("pgfault"));
        self.times.look_at_all();
        let read = self.drain(u64::MAX, &mut sink, state);
        read.and_then(|()| self.missing(end_ns, &mut sink, state))
            .map_err(failed(WRITTEN))?;
        let mut exact = self.counts().map_err(failed(COUNTERS))?;
        state.counted = exact.values().sum();
        for ring in &mut self.rings {
            let sampled = ring.sampled(self.frequent.points());
            for (event, count) in sampled.map_err(failed(COUNTERS))? {
                *exact.entry(event).or_default() += count;
            }
        }
        // That takes the kernel a second, in which names are looked up.
        let rings = std::mem::take(&mut self.rings);
        let closing = thread::spawn(move || drop(rings));
        let own = spent_ns() - state.own_before;
        drop(ahead);
        if let Some((after, before)) = faults {
            let within_ns = end_ns.saturating_sub(state.begin_ns);
            self.frequent
                .faulted(after.saturating_sub(before), within_ns);
        }
        let (kernel, hit) = state.kernel(&self.price, &self.frequent, end_ns);
        let counts = self.kept(&exact, faults);
        let ran = self.times.ran();
        let used: u64 = ran.iter().map(Ran::ns).sum();
        let mut items = vec![Item::Statistics(after)];
        items.extend(ran.into_iter().map(Item::Ran));
        items.extend(counts.iter().cloned().map(Item::Count));
        let summary = Summary {
            elapsed: Duration::from_nanos(end_ns - state.begin_ns),
            counts,
            kept: state.kept,
            lost: state.lost,
            recorded: Duration::from_nanos(state.recorded_ns),
            recorder: Duration::from_nanos(own),
            kernel: Duration::from_nanos(kernel),
            frequent: Duration::from_nanos(self.frequent_ns(end_ns, state)),
            busy: Duration::from_nanos(busy.saturating_sub(own + kernel)),
            hit: Duration::from_nanos(hit),
            used: (!self.is_about_all()).then(|| Duration::from_nanos(used.saturating_sub(hit))),
            turns: state.turns,
            around: Duration::ZERO,
            price: self.price,
            exit: None,
            outlived: false,
        };
        let notes = std::mem::take(&mut self.notes).into_iter();
        items.extend(
            notes
                .chain([summary.to_string()])
                .map(|note| Item::Note(note.into())),
        );
        let told = items.iter().try_for_each(|item| sink.item(item));
        let output = told.and_then(|()| sink.finish(&mut self.symbols));
        // What is open in the kernel is not left behind.
        let _ = closing.join();
        output
            .map(|output| (summary, output))
            .map_err(failed(WRITTEN))
    }

    /// How often each event happened, by these counts, and was recorded; page faults by the kernel's own count, after
    /// and before.
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

    /// As [`run`](Self::run), into a file. It is compiled here: what the caller is optimised for does not become the
    /// price of each event.
    ///
    /// # Errors
    ///
    /// As `run`; or the file cannot be written.
    pub fn write(
        self,
        file: File,
        stop: &mut dyn FnMut(Progress) -> bool,
    ) -> Result<Summary, Refused> {
        let writer = Writer::new(BufWriter::new(file)).map_err(failed(WRITTEN))?;
        let (summary, mut file) = self.run(writer, stop)?;
        file.flush().map_err(failed(WRITTEN))?;
        Ok(summary)
    }

    /// Goes from recording one thing to recording another on every CPU.
    fn turn(&mut self, from: Phase, to: Phase) -> io::Result<()> {
        self.rings
            .iter_mut()
            .try_for_each(|ring| ring.turn(from, to))
    }

    /// Starts the command that is to be recorded.
    fn spawn(&mut self, mut command: Command) -> Result<Child, Refused> {
        let child = self
            .file_limit
            .without(|| command.spawn())
            .map_err(|error| Refused::Command {
                command: command.get_program().to_string_lossy().into_owned(),
                error,
            })?;
        // Its records are read after this, so none is taken for another's.
        self.processes.want_command(child.id());
        Ok(child)
    }

    /// How often each event that is counted happened so far, on all CPUs together.
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
    fn drain<S: Sink>(
        &mut self,
        until_ns: u64,
        sink: &mut S,
        state: &mut Running,
    ) -> io::Result<()> {
        let reader = Reader {
            events: &mut self.events,
            processes: &mut self.processes,
            names: &mut self.names,
            symbols: &mut self.symbols,
            unwinder: &mut self.unwinder,
            times: &mut self.times,
            state,
        };
        reader.drain(&mut self.rings, self.frequent.points(), until_ns, sink)
    }

    /// Tells of what was lost and the kernel has not told: it does when the next record finds room.
    fn missing<S: Sink>(
        &mut self,
        time_ns: u64,
        sink: &mut S,
        state: &mut Running,
    ) -> io::Result<()> {
        for ring in &mut self.rings {
            let Missing { full, untold } = ring.missing()?;
            for (why, count) in [(Why::Full, full), (Why::Untold, untold)] {
                if count > 0 {
                    state.lost += count;
                    sink.item(&Item::Lost(Lost {
                        why,
                        time_ns,
                        cpu: ring.cpu,
                        count,
                    }))?;
                }
            }
        }
        Ok(())
    }
}

/// What this was, failed.
fn failed(what: &'static str) -> impl FnOnce(io::Error) -> Refused {
    move |error| Refused::Other {
        what: what.to_owned(),
        error,
    }
}

//! Attributes every flush to its cause.
//!
//! The meaning of an event depends on the state of its thread and its CPU. [`initiator`], [`target`] and [`thread`]
//! handle the sides of a shootdown, and [`whole`] computes the result.
//!
//! An initiator begins a flush (`tlb_flush`), queues work for each target (`csd_queue_cpu`), and returns from its call.
//! Each target takes an interrupt (`call_function*`), does the work (`csd_function_*`), and continues. The address of
//! the work connects the two sides, and the stack at the time of queueing identifies the cause. So we count an
//! interrupt at the site that sent it. Its time on the target is charged to that site, and lost by the program that ran
//! there. The initiator waits until its last target is done.
//!
//! Kernels before Linux 6.4 have no `csd_queue_cpu`. There we charge flushes on targets (`tlb_flush` with reason 1) to
//! the last initiator in the same process that requested as many pages. [`Evidence`] names the method.

mod discard;
mod given;
mod initiator;
mod request;
pub mod reuse;
pub mod site;
mod slice;
mod summed;
mod target;
mod thread;
mod whole;

use std::sync::Arc;

use crate::perf::{
    Change, Count, CpuTime, Host, Item, LossReason, Prices, ReadTime, Sample, Statistics,
};
use rustc_hash::FxHashMap;

use crate::event::{self, Arguments, Event};
use crate::stack::{StackInfo, Stacks};
use discard::Discards;
use request::Requests;
pub use site::{ENOUGH, EventKinds, Evidence, Function, Program, Weights};
use site::{Events, Place, Site};
pub use slice::{Observer, Slice, Stretch};

/// The largest number of different whole stacks for flame graphs. Those that are known represent later ones.
const FOLDED: usize = 1 << 17;

/// The address of a stack's information, a program, and the thread's current call.
type Situation = (usize, usize, Option<Arc<str>>);

/// Adds up a recording, item by item.
#[derive(Debug, Default)]
pub struct Attribution {
    stacks: Stacks,
    /// All sites, in the order in which they were first seen.
    pub sites: Vec<Site>,
    places: FxHashMap<Place, usize>,
    placed: FxHashMap<Situation, (Arc<StackInfo>, usize, Arc<str>)>,
    /// All programs.
    pub programs: Vec<Program>,
    program_of_name: FxHashMap<Arc<str>, usize>,
    program_of_process: FxHashMap<u32, usize>,
    threads: FxHashMap<u32, Thread>,
    /// Page faults of processes that were forked during the recording and haven't executed another program.
    forked: FxHashMap<u32, u64>,
    cpus: Vec<Cpu>,
    requests: Requests,
    in_flight: FxHashMap<(u64, u32), u64>,
    summed: summed::FlushSums,
    /// Two counts: interrupts of sums that we divided among several sites, and the few recorded interrupts that gave
    /// the proportion.
    pub guessed: (u64, u64),
    discards: Discards,
    known: given::History,
    /// Stretches of time that ended and aren't reported yet.
    ended: Vec<Slice>,
    /// Whether a mapping is a file, by process and start, in the current window.
    mapped: FxHashMap<(u32, u64), bool>,
    /// Recorded interrupts by site and whole stack, folded.
    pub folded: FxHashMap<(usize, Arc<str>), u64>,
    /// Interrupts by the program that sent them and the program that took them.
    pub matrix: FxHashMap<(usize, usize), u64>,
    /// Work for other CPUs that was no flush, by function.
    pub functions: FxHashMap<Arc<str>, Function>,
    /// The same by the kernel's sums, if there are any.
    pub functions_summed: FxHashMap<Arc<str>, u64>,
    /// The number of recorded calls of `membarrier`, and their total time in nanoseconds.
    pub barriers: (u64, u64),
    /// Flushes that were seen on targets.
    pub received: u64,
    /// `tlb_flush` events with reason "remote IPI send". That's no count of interrupts.
    pub asked: u64,
    /// Events that were lost.
    pub lost: u64,
    /// Lost events for which the kernel gives no reason.
    pub unexplained: u64,
    /// Samples that were read.
    pub samples: u64,
    /// The first and the last time.
    pub times: Option<(u64, u64)>,
    /// The machine of the recording.
    pub host: Option<Host>,
    /// Counters before the recording.
    pub before: Option<Statistics>,
    /// Counters after the recording.
    pub after: Option<Statistics>,
    /// Exact counts.
    pub counts: Vec<Count>,
    /// The host's costs of events that are only counted.
    pub prices: Option<Prices>,
    /// The CPU time of programs, by the kernel's account.
    pub ran: Vec<CpuTime>,
    /// Notes by the source of the recording.
    pub notes: Vec<Arc<str>>,
    /// The total length of the windows in which events were recorded, in nanoseconds. `None` if all the time was
    /// recorded.
    pub windows_ns: Option<u64>,
    last_window_ns: Option<u64>,
    /// The kinds of events that were seen.
    pub seen: EventKinds,
    /// Whether the recording has events for the start of threads or processes.
    pub begins_known: bool,
    processes_known: bool,
}

#[derive(Debug, Default)]
struct Thread {
    call: Option<Call>,
    /// The request that its last flush began.
    open: Option<u64>,
    lock_since: Option<u64>,
    fault: Option<Fault>,
    /// The thread's last interrupts by site: time, start and end of the range.
    last: Vec<(usize, u64, u64, u64)>,
}

#[derive(Debug)]
struct Fault {
    since: u64,
    site: Option<usize>,
}

#[derive(Debug, Default)]
struct Call {
    name: Arc<str>,
    start_ns: u64,
    cpu: u32,
    arguments: Arguments,
    /// The ranges of a vector, as far as they are known.
    ranges: Vec<(u64, u64)>,
    site: Option<usize>,
    locked_ns: u64,
    interrupts: u64,
    gap: Option<usize>,
    events: Events,
}

#[derive(Clone, Debug, Default)]
struct Cpu {
    /// The time since which its thread has been running.
    since: Option<u64>,
    interrupt: Option<u64>,
    /// Work in this interrupt: its request and its time.
    works: Vec<Work>,
}

#[derive(Clone, Debug)]
struct Work {
    request: Option<u64>,
    function: Arc<str>,
    flush: bool,
    start: u64,
    end: Option<u64>,
}

impl Attribution {
    /// Creates an empty attribution.
    pub fn new() -> Self {
        Attribution::default()
    }

    /// Adds an item and reports stretches of time that end with it to `observer`.
    pub fn item(&mut self, item: Item, observer: &mut dyn Observer) {
        match item {
            Item::Sample(sample) => {
                self.sample(&sample);
                self.report(observer);
            }
            Item::Host(host) => self.host = Some(host),
            Item::Statistics(statistics) => match statistics.when {
                ReadTime::Before => self.before = Some(statistics),
                ReadTime::After => self.after = Some(statistics),
            },
            Item::Lost(lost) => {
                self.lost += lost.count;
                self.unexplained += lost.count * u64::from(lost.why == LossReason::Unexplained);
            }
            Item::Count(count) => self.counts.push(count),
            Item::Prices(prices) => self.prices = Some(prices),
            Item::CpuTime(ran) => self.ran.push(ran),
            Item::Note(note) => self.notes.push(note),
            Item::Window(window) => {
                *self.windows_ns.get_or_insert(0) += window.end_ns.saturating_sub(window.start_ns);
                self.window_closed(window.end_ns);
                self.report(observer);
                if window.end_ns > window.start_ns {
                    let before = self.last_window_ns.replace(window.end_ns);
                    let begun = self.before.as_ref().map(|before| before.time_ns);
                    if let Some(from_ns) = before.or(begun.filter(|&begun| begun > 0)) {
                        observer.gap(from_ns, window.start_ns);
                    }
                }
            }
            Item::Change(change) => self.change(&change),
        }
    }

    fn change(&mut self, change: &Change) {
        match change {
            Change::Named { pid, tid, comm, exec, .. } if pid == tid => {
                self.processes_known = true;
                if *exec {
                    self.forked.remove(pid);
                }
                let program = self.program_named(comm);
                self.programs[program].told = true;
                self.program_of_process.insert(*pid, program);
            }
            Change::Exited { pid, tid, .. } => {
                self.threads.remove(tid);
                if pid == tid
                    && let Some(faults) = self.forked.remove(pid)
                    && let Some(&program) = self.program_of_process.get(pid)
                {
                    self.programs[program].forked_faults += faults;
                }
            }
            Change::Forked { pid, parent, .. } => {
                self.begins_known = true;
                if let Some(&program) =
                    self.program_of_process.get(parent).filter(|_| pid != parent)
                {
                    self.programs[program].forked = true;
                    self.program_of_process.insert(*pid, program);
                    self.forked.insert(*pid, 0);
                }
            }
            _ => {}
        }
    }

    /// Ends everything that is open at the end of a window. We don't know its true end.
    fn window_closed(&mut self, end_ns: u64) {
        self.cpus.fill(Cpu::default());
        self.close_all(end_ns);
        self.threads.clear();
        self.in_flight.clear();
    }

    /// Ends all open requests, and stops following memory that was given back and not touched until now.
    fn close_all(&mut self, now: u64) {
        let threads: Vec<u32> = self.threads.keys().copied().collect();
        for tid in threads {
            self.close(tid, now);
        }
        self.mapped.clear();
        self.known = given::History::default();
        let sites = &mut self.sites;
        self.discards.stop_following(|discard| {
            let followed = now.saturating_sub(discard.time_ns);
            sites[discard.site].reuse.left(followed, discard.interrupts);
        });
    }

    fn program_named(&mut self, name: &Arc<str>) -> usize {
        if let Some(&known) = self.program_of_name.get(name) {
            return known;
        }
        let index = self.programs.len();
        self.programs.push(Program { name: name.clone(), ..Program::default() });
        self.program_of_name.insert(name.clone(), index);
        index
    }

    fn program(&mut self, sample: &Sample) -> usize {
        // A program is named by its main thread.
        let is_main = sample.tid == sample.pid;
        self.processes_known |= !is_main;
        let known = self.program_of_process.get(&sample.pid).copied();
        if let Some(program) = known.filter(|_| !is_main) {
            return program;
        }
        let program = self.program_named(&sample.comm);
        self.program_of_process.insert(sample.pid, program);
        program
    }

    /// Returns the owner of this sample's addresses.
    ///
    /// That's its process or, if a text doesn't contain processes, its program.
    fn owner(&self, sample: &Sample, program: usize) -> u64 {
        if self.processes_known { sample.pid.into() } else { (1 << 32) + program as u64 }
    }

    /// Returns whether the recording distinguishes processes from threads.
    pub fn processes_known(&self) -> bool {
        self.processes_known
    }

    fn site(&mut self, sample: &Sample, program: usize) -> (usize, Arc<str>) {
        let told = self.stacks.tell(&sample.stack);
        let call = self.threads.get(&sample.tid).and_then(|thread| thread.call.as_ref());
        let call = call.map(|call| call.name.clone());
        let key = (Arc::as_ptr(&told) as usize, program, call.clone());
        if let Some((_, site, folded)) = self.placed.get(&key) {
            return (*site, folded.clone());
        }
        let asked = told.call.clone().or(call.clone());
        let kernel = told.cause.map(Arc::from);
        let fault = || told.fault.then(|| Arc::from("page fault"));
        let call =
            (kernel.or(told.call.clone()).or(call)).or(told.outermost.clone()).or_else(fault);
        let place = Place {
            program: self.programs[program].name.clone(),
            call: call.unwrap_or_else(|| "unknown".into()),
            frames: told.site.clone(),
        };
        let sites = &mut self.sites;
        let site = *self.places.entry(place.clone()).or_insert_with(|| {
            sites.push(Site::new(place, &told, asked));
            sites.len() - 1
        });
        if self.placed.len() > 1 << 16 {
            self.placed.clear();
        }
        let name = &self.programs[program].name;
        let folded: Arc<str> = match told.folded.is_empty() {
            true => name.clone(),
            false => format!("{name};{}", told.folded).into(),
        };
        // The map keeps `told` alive, so that no other stack can get its address.
        self.placed.insert(key, (told, site, folded.clone()));
        (site, folded)
    }

    fn cpu(&mut self, cpu: u32) -> &mut Cpu {
        /// More CPUs than Linux supports. A larger number comes from a damaged recording.
        const MOST: usize = 1 << 14;
        let index = (cpu as usize).min(MOST);
        if self.cpus.len() <= index {
            self.cpus.resize_with(index + 1, Cpu::default);
        }
        &mut self.cpus[index]
    }

    fn report(&mut self, observer: &mut dyn Observer) {
        for slice in self.ended.drain(..) {
            observer.slice(&slice);
        }
    }

    fn sample(&mut self, sample: &Sample) {
        self.samples += 1;
        let now = sample.time_ns;
        let (first, last) = self.times.unwrap_or((now, now));
        self.times = Some((first.min(now), last.max(now)));
        let program = self.program(sample);
        let is_sum = sample.event.starts_with("sums:");
        if !is_sum {
            self.seen.stacks |= !sample.stack.is_empty();
            self.programs[program].events.count(Events::kind(sample));
        }
        match event::of(sample) {
            // A sum doesn't change the current state of the thread and its CPU.
            Event::Summed { call, flushes, .. } => {
                return self.add_sum(sample, program, call, flushes);
            }
            Event::SummedTaken { interrupts, work_ns } => {
                self.seen.functions = true;
                let taken = &mut self.programs[program].summed;
                *taken = (taken.0 + interrupts, taken.1 + work_ns);
                return;
            }
            Event::SummedWork { function, count } => {
                *self.functions_summed.entry(function.into()).or_default() += count;
                return;
            }
            Event::Flush { reason, pages } => self.flush(sample, program, reason, pages),
            Event::Queue { target, function, work } => {
                self.seen.queued = true;
                if event::flushes(function) {
                    self.queued(sample, program, target, work);
                }
            }
            Event::Begin { function, work } => self.begun(sample, program, function, work),
            Event::End { function } => self.worked(sample, function, program),
            Event::Interrupt { begin: true } => {
                self.seen.interrupts = true;
                let cpu = self.cpu(sample.cpu);
                cpu.interrupt = Some(now);
                cpu.works.clear();
            }
            Event::Interrupt { begin: false } => self.interrupted(sample, program),
            Event::Enter { call, arguments } => {
                let (name, cpu) = (call.into(), sample.cpu);
                let call = Call { name, start_ns: now, cpu, arguments, ..Call::default() };
                self.entered(sample, program, call)
            }
            Event::Exit { result } => self.returned(sample, program, result),
            Event::Lock { got } => self.lock(sample.tid, now, got),
            Event::Fault { address } => self.fault(sample, program, address),
            Event::Faulted => self.faulted(sample),
            // A switch belongs to no call, and sets the CPU's `since` itself.
            Event::Switch => return self.switched(sample, program),
            Event::Other => {}
        }
        let call = self.threads.get_mut(&sample.tid);
        if let Some(call) = call.and_then(|thread| thread.call.as_mut()) {
            call.events.count(Events::kind(sample));
            call.ranges.extend(event::ranges(sample));
        }
        let cpu = self.cpu(sample.cpu);
        cpu.since.get_or_insert(now);
    }

    /// Begins work that another CPU has queued for this one.
    fn begun(&mut self, sample: &Sample, program: usize, function: &str, work: u64) {
        self.seen.functions = true;
        let flush = event::flushes(function);
        let request = self.in_flight.remove(&(work, sample.cpu)).filter(|_| flush);
        self.cpu(sample.cpu).works.push(Work {
            request,
            function: function.into(),
            flush,
            start: sample.time_ns,
            end: None,
        });
        if flush {
            self.received += 1;
            if let Some(sender) = request.and_then(|id| self.requests.get(id)) {
                *self.matrix.entry((sender.program, program)).or_default() += 1;
            }
        }
    }

    /// Begins a system call.
    fn entered(&mut self, sample: &Sample, program: usize, call: Call) {
        self.close(sample.tid, sample.time_ns);
        self.threads.entry(sample.tid).or_default().call = Some(call);
        if !sample.stack.is_empty() {
            let (site, _) = self.site(sample, program);
            self.of_call(sample.tid, site);
        }
    }

    /// Ends a thread's page fault.
    fn faulted(&mut self, sample: &Sample) {
        let thread = self.threads.get_mut(&sample.tid);
        let fault = thread.and_then(|thread| thread.fault.take());
        if let Some(Fault { since, site: Some(site) }) = fault {
            self.sites[site].refault_ns += sample.time_ns.saturating_sub(since);
            self.sites[site].refaults_timed += 1;
        }
    }

    /// Takes a thread off its CPU. The event is still the thread's own.
    fn switched(&mut self, sample: &Sample, program: usize) {
        self.seen.switches = true;
        // An initiator isn't preempted while it waits. So if it's switched out, its wait is over.
        self.close(sample.tid, sample.time_ns);
        let since = self.cpu(sample.cpu).since.replace(sample.time_ns);
        if let Some(since) = since {
            self.programs[program].cpu_ns += sample.time_ns.saturating_sub(since);
        }
    }

    /// Counts an interrupt that a site sent with this stack.
    fn sent(&mut self, site: usize, folded: Arc<str>) {
        let of = (site, folded);
        if self.folded.len() < FOLDED || self.folded.contains_key(&of) {
            *self.folded.entry(of).or_default() += 1;
        }
    }
}

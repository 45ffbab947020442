//! Every flush laid at its cause. The file is long because it is one machine with one state: what an event means
//! depends on what its thread and its CPU were doing.
//!
//! An initiator says that it flushes (`tlb_flush`), queues work for each target (`csd_queue_cpu`), and returns from its
//! call; each target takes an interrupt (`call_function*`), does the work (`csd_function_*`), and goes on. The address of
//! the work ties the two sides together, and the stack of the queueing tells whose doing it was. So an interrupt is
//! counted where it was sent, its time on the target is charged to the site that sent it and suffered by the
//! program that ran there, and an initiator has waited until its last target was done.
//!
//! Not every kernel has all of these events. Where the queueing is not to be seen, interrupts that were sent with a flush on the
//! stack are counted; where these are missing, too, flushes on targets (`tlb_flush` with reason 1) are laid at
//! the initiator that last asked for as many pages in the same process. The [`Evidence`] says which it was.

pub mod bins;
mod discard;
mod request;
pub mod reuse;
pub mod site;
mod slice;

use std::collections::VecDeque;
use std::sync::Arc;

use quell_perf::{
    Change, Count, Host, Interrupts, Item, Prices, Ran, Sample, Statistics, When, Why,
};
use rustc_hash::FxHashMap;

use crate::event::{self, Event, reason};
use crate::stack::{Stacks, Told};
use bins::bin;
use discard::Discards;
use request::{Request, Requests};
use site::{Events, Place, Site, Span};
pub use slice::{Observer, Slice, Stretch};

/// How many different whole stacks are kept for flame graphs; what comes later is counted as "(other stacks)".
const FOLDED: usize = 1 << 17;
/// How many requests of other CPUs are looked through for the one that a flush on a target belongs to.
const RECENT: usize = 64;
/// How long a request can be answered, where nothing but its time tells: 100 ms.
const ANSWER_NS: u64 = 100_000_000;

/// How interrupts were told to be shootdowns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// By the work that was queued for the target.
    Queued,
    /// By the stack of the interrupt that was sent.
    Sent,
    /// By flushes on targets, laid at the CPU that had asked for them by time and size.
    Received,
    /// There was nothing to tell by.
    Nothing,
}

/// A program: all processes of one name.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Its name.
    pub name: Arc<str>,
    /// Its time on CPUs, in nanoseconds; 0 if context switches were not recorded.
    pub cpu_ns: u64,
    /// The time that its threads lost as targets, to any sender.
    pub stolen: Span,
    /// Interrupts that it took.
    pub taken: u64,
    /// Waits for `mmap_lock` outside of calls that flush, in nanoseconds.
    pub locked_ns: u64,
    /// Page faults.
    pub faults: u64,
    /// Whether a process of it was seen to fork.
    pub forked: bool,
    /// Whether the source told of a process of it: where the recording is about some processes, of these alone.
    pub told: bool,
    /// Events that were recorded while it ran.
    pub events: Events,
}

/// Work that CPUs did for others and that was no flush.
#[derive(Clone, Copy, Debug, Default)]
pub struct Function {
    /// How often.
    pub count: u64,
    /// How long, in nanoseconds.
    pub ns: u64,
}

/// What a stack tells, a program, and the call that it is in.
type Situation = (usize, usize, Option<Arc<str>>);

/// What a stack weighs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weight {
    /// Interrupts sent.
    pub interrupts: u64,
    /// Nanoseconds that targets lost.
    pub stolen_ns: u64,
    /// Nanoseconds that initiators waited.
    pub waited_ns: u64,
}

/// Adds up a recording, item by item.
#[derive(Debug, Default)]
pub struct Attribution {
    stacks: Stacks,
    /// All sites, in the order in which they were first seen.
    pub sites: Vec<Site>,
    places: FxHashMap<Place, usize>,
    /// The site of a stack in a program and a call.
    placed: FxHashMap<Situation, (Arc<Told>, usize, Arc<str>)>,
    /// All programs.
    pub programs: Vec<Program>,
    program_of_name: FxHashMap<Arc<str>, usize>,
    program_of_process: FxHashMap<u32, usize>,
    threads: FxHashMap<u32, Thread>,
    cpus: Vec<Cpu>,
    requests: Requests,
    in_flight: FxHashMap<(u64, u32), u64>,
    recent: VecDeque<u64>,
    discards: Discards,
    /// Whole stacks, folded, and what they weigh.
    pub folded: FxHashMap<Arc<str>, Weight>,
    /// Interrupts by the program that sent them and the program that took them.
    pub matrix: FxHashMap<(usize, usize), u64>,
    /// Interrupts by the CPU that sent them and the CPU that took them.
    pub cpu_matrix: FxHashMap<(u32, u32), u64>,
    /// Work for others that was no flush, by function.
    pub functions: FxHashMap<Arc<str>, Function>,
    /// Function-call interrupts in all, and reschedule interrupts.
    pub call_interrupts: u64,
    /// See `call_interrupts`.
    pub reschedules: u64,
    /// Flushes that targets were seen to do.
    pub received: u64,
    /// Of these, those whose request was not found.
    pub unmatched: u64,
    /// Context switches that flushed, and that did not.
    pub switch_flushed: u64,
    /// See `switch_flushed`.
    pub switch_kept: u64,
    /// `tlb_flush` with reason "remote IPI send", which is no count of interrupts.
    pub asked: u64,
    /// Events that were lost.
    pub lost: u64,
    /// Of these, those of which the kernel does not say why.
    pub untold: u64,
    /// Samples that were read.
    pub samples: u64,
    /// The first and the last time.
    pub times: Option<(u64, u64)>,
    /// On what the recording was made.
    pub host: Option<Host>,
    /// Counters before and after.
    pub before: Option<Statistics>,
    /// See `before`.
    pub after: Option<Statistics>,
    /// Exact counts.
    pub counts: Vec<Count>,
    /// What things cost on the host that are only counted.
    pub prices: Option<Prices>,
    /// How long programs ran, by the kernel's account.
    pub ran: Vec<Ran>,
    /// What the source wants said.
    pub notes: Vec<Arc<str>>,
    /// How long events were recorded, where that was not all the time, in nanoseconds.
    pub windows_ns: Option<u64>,
    /// Which events there are.
    pub seen: Seen,
    /// Symbols of the kernel below which a hypervisor does part of the work.
    pub paravirtual: bool,
    /// Whether the recording tells when a thread or a process begins.
    pub begins_known: bool,
    processes_known: bool,
}

/// Which events a recording has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// `csd_queue_cpu`, of whatever.
    pub queued: bool,
    /// An interrupt sent with a flush on the stack.
    pub sent: bool,
    /// `csd_function_*` on a target.
    pub functions: bool,
    /// `call_function*`.
    pub interrupts: bool,
    /// `sched_switch`.
    pub switches: bool,
    /// System calls.
    pub calls: bool,
    /// Stacks.
    pub stacks: bool,
    /// `tlb_flush`.
    pub flushes: bool,
    /// `mmap_lock`.
    pub locks: bool,
    /// Page faults.
    pub faults: bool,
}

/// What a thread is doing.
#[derive(Debug, Default)]
struct Thread {
    call: Option<Call>,
    /// The request that its last flush began.
    open: Option<u64>,
    lock_since: Option<u64>,
    fault: Option<Fault>,
    /// When it last interrupted others, by site: time and range.
    last: Vec<(usize, u64, u64, u64)>,
}

#[derive(Debug)]
struct Fault {
    since: u64,
    site: Option<usize>,
}

#[derive(Debug)]
struct Call {
    name: Arc<str>,
    start_ns: u64,
    cpu: u32,
    start: u64,
    bytes: u64,
    how: u64,
    site: Option<usize>,
    locked_ns: u64,
    locks: u64,
    interrupts: u64,
    gap: Option<usize>,
    events: Events,
}

/// What a CPU is doing.
#[derive(Clone, Debug, Default)]
struct Cpu {
    /// Since when the thread that it runs has been running.
    since: Option<u64>,
    interrupt: Option<u64>,
    /// Work in this interrupt: whose, and how long.
    works: Vec<Work>,
    /// Flushes in this interrupt that nothing but `tlb_flush` tells of.
    flushes: Vec<Option<u64>>,
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
    /// Nothing yet.
    pub fn new() -> Self {
        Attribution::default()
    }

    /// Adds an item; stretches of time that end with it are told to `observer`.
    pub fn item(&mut self, item: Item, observer: &mut dyn Observer) {
        match item {
            Item::Sample(sample) => self.sample(&sample, observer),
            Item::Host(host) => self.host = Some(host),
            Item::Statistics(statistics) => match statistics.when {
                When::Before => self.before = Some(statistics),
                When::After => self.after = Some(statistics),
            },
            Item::Lost(lost) => {
                self.lost += lost.count;
                self.untold += lost.count * u64::from(lost.why == Why::Untold);
            }
            Item::Count(count) => self.counts.push(count),
            Item::Prices(prices) => self.prices = Some(prices),
            Item::Ran(ran) => self.ran.push(ran),
            Item::Note(note) => self.notes.push(note),
            Item::Window(window) => {
                *self.windows_ns.get_or_insert(0) += window.end_ns.saturating_sub(window.start_ns);
                self.window_closed(window.end_ns);
            }
            Item::Change(change) => self.change(&change),
        }
    }

    fn change(&mut self, change: &Change) {
        match change {
            Change::Named { pid, tid, comm, .. } if pid == tid => {
                self.processes_known = true;
                let program = self.program_named(comm);
                self.programs[program].told = true;
                self.program_of_process.insert(*pid, program);
            }
            Change::Exited { tid, .. } => {
                self.threads.remove(tid);
            }
            Change::Forked { pid, parent, .. } => {
                self.begins_known = true;
                if let Some(&program) = self
                    .program_of_process
                    .get(parent)
                    .filter(|_| pid != parent)
                {
                    self.programs[program].forked = true;
                    self.program_of_process.insert(*pid, program);
                }
            }
            _ => {}
        }
    }

    /// What was going on at the end of a window has no end that is known.
    fn window_closed(&mut self, end_ns: u64) {
        for cpu in 0..self.cpus.len() {
            self.cpus[cpu] = Cpu::default();
        }
        let threads: Vec<u32> = self.threads.keys().copied().collect();
        for tid in threads {
            self.close(tid, end_ns);
        }
        self.threads.clear();
        self.in_flight.clear();
        self.stop_following_discards(end_ns);
    }

    /// What was given back and not touched until now can be followed no longer.
    fn stop_following_discards(&mut self, now: u64) {
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
        self.programs.push(Program {
            name: name.clone(),
            ..Program::default()
        });
        self.program_of_name.insert(name.clone(), index);
        index
    }

    fn program(&mut self, sample: &Sample) -> usize {
        if sample.tid == sample.pid {
            // Its main thread's name is the program's.
            let program = self.program_named(&sample.comm);
            self.program_of_process.insert(sample.pid, program);
            return program;
        }
        self.processes_known = true;
        match self.program_of_process.get(&sample.pid) {
            Some(&program) => program,
            None => {
                let program = self.program_named(&sample.comm);
                self.program_of_process.insert(sample.pid, program);
                program
            }
        }
    }

    /// Whether several threads were seen to be of one process.
    pub fn processes_known(&self) -> bool {
        self.processes_known
    }

    /// The site of this sample, in the call that the thread is in.
    fn site(&mut self, sample: &Sample, program: usize) -> (usize, Arc<str>) {
        let told = self.stacks.tell(&sample.stack);
        let call = self
            .threads
            .get(&sample.tid)
            .and_then(|thread| thread.call.as_ref());
        let call = call.map(|call| call.name.clone());
        let key = (Arc::as_ptr(&told) as usize, program, call.clone());
        if let Some((_, site, folded)) = self.placed.get(&key) {
            return (*site, folded.clone());
        }
        let kernel = told.cause.map(Arc::from);
        let fault = || told.fault.then(|| Arc::from("page fault"));
        let call = kernel.or(told.call.clone()).or(call).or_else(fault);
        let place = Place {
            program: self.programs[program].name.clone(),
            call: call.unwrap_or_else(|| "unknown".into()),
            frames: told.site.clone(),
        };
        let sites = &mut self.sites;
        let site = *self.places.entry(place.clone()).or_insert_with(|| {
            sites.push(Site::new(place, &told));
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
        // `told` is kept with it, so that no other stack can get its address.
        self.placed.insert(key, (told, site, folded.clone()));
        (site, folded)
    }

    fn cpu(&mut self, cpu: u32) -> &mut Cpu {
        /// More than Linux can have: a recording that says otherwise is wrong.
        const MOST: usize = 1 << 14;
        let index = (cpu as usize).min(MOST);
        if self.cpus.len() <= index {
            self.cpus.resize_with(index + 1, Cpu::default);
        }
        &mut self.cpus[index]
    }

    fn sample(&mut self, sample: &Sample, observer: &mut dyn Observer) {
        self.samples += 1;
        let now = sample.time_ns;
        let (first, last) = self.times.unwrap_or((now, now));
        self.times = Some((first.min(now), last.max(now)));
        self.seen.stacks |= !sample.stack.is_empty();
        let program = self.program(sample);
        if let Event::QueueBetween { function } = event::of(sample) {
            if event::flushes(function) {
                let (site, _) = self.site(sample, program);
                self.sites[site].between += 1;
            }
            // Nothing is known of what the thread and its CPU do.
            return;
        }
        self.programs[program].events.count(sample);
        match event::of(sample) {
            Event::Flush { reason, pages } => self.flush(sample, program, reason, pages),
            Event::Queue {
                target,
                function,
                work,
            } => {
                self.seen.queued = true;
                if event::flushes(function) {
                    self.queued(sample, program, target, work);
                }
            }
            Event::Send { target, call: true } => self.sent(sample, program, &[target]),
            Event::SendMany {
                targets,
                call: true,
            } => self.sent(sample, program, targets),
            Event::Send { call: false, .. } | Event::SendMany { call: false, .. } => {
                self.reschedules += 1
            }
            Event::Begin { function, work } if work != 0 => {
                self.seen.functions = true;
                let flush = event::flushes(function);
                let request = self.in_flight.remove(&(work, sample.cpu)).filter(|_| flush);
                let function = Arc::from(function);
                self.cpu(sample.cpu).works.push(Work {
                    request,
                    function,
                    flush,
                    start: now,
                    end: None,
                });
                if flush {
                    self.received += 1;
                    self.unmatched += u64::from(request.is_none());
                    if let Some(sender) = request.and_then(|id| self.requests.get(id)) {
                        *self.matrix.entry((sender.program, program)).or_default() += 1;
                        *self.cpu_matrix.entry((sender.cpu, sample.cpu)).or_default() += 1;
                    }
                }
            }
            Event::End { function, work } if work != 0 => {
                self.worked(sample, function, program, observer)
            }
            Event::Begin { .. }
            | Event::End { .. }
            | Event::Reschedule
            | Event::QueueBetween { .. } => {}
            Event::Interrupt { begin: true } => {
                self.seen.interrupts = true;
                self.call_interrupts += 1;
                let cpu = self.cpu(sample.cpu);
                cpu.interrupt = Some(now);
                cpu.works.clear();
                cpu.flushes.clear();
            }
            Event::Interrupt { begin: false } => self.interrupted(sample, program, observer),
            Event::Enter {
                call,
                start,
                bytes,
                how,
            } => {
                self.seen.calls = true;
                self.close(sample.tid, now);
                let call = Call {
                    name: call.into(),
                    start_ns: now,
                    cpu: sample.cpu,
                    start,
                    bytes,
                    how,
                    site: None,
                    locked_ns: 0,
                    locks: 0,
                    interrupts: 0,
                    gap: None,
                    events: Events::default(),
                };
                self.threads.entry(sample.tid).or_default().call = Some(call);
                if !sample.stack.is_empty() {
                    let (site, _) = self.site(sample, program);
                    self.of_call(sample.tid, site);
                }
            }
            Event::Exit { .. } => self.returned(sample, program, observer),
            Event::Lock { got } => self.lock(sample.tid, program, now, got),
            Event::Fault { address } => self.fault(sample, program, address),
            Event::Faulted => {
                let fault = self
                    .threads
                    .get_mut(&sample.tid)
                    .and_then(|thread| thread.fault.take());
                if let Some(Fault {
                    since,
                    site: Some(site),
                }) = fault
                {
                    self.sites[site].refault_ns += now.saturating_sub(since);
                    self.sites[site].refaults_timed += 1;
                }
            }
            Event::Switch { .. } => {
                self.seen.switches = true;
                // Initiators wait without being preempted: one that goes has waited to the end.
                self.close(sample.tid, now);
                // The event is the thread's that goes.
                let since = self.cpu(sample.cpu).since.replace(now);
                if let Some(since) = since {
                    self.programs[program].cpu_ns += now.saturating_sub(since);
                }
                return;
            }
            Event::Other => {}
        }
        let call = self.threads.get_mut(&sample.tid);
        if let Some(call) = call.and_then(|thread| thread.call.as_mut()) {
            call.events.count(sample);
        }
        let cpu = self.cpu(sample.cpu);
        cpu.since.get_or_insert(now);
    }

    /// The site of the call that the thread is in is known now.
    fn of_call(&mut self, tid: u32, site: usize) {
        let call = self
            .threads
            .get_mut(&tid)
            .and_then(|thread| thread.call.as_mut());
        if let Some(call) = call {
            call.site.get_or_insert(site);
        }
    }

    fn flush(&mut self, sample: &Sample, program: usize, why: u64, pages: Option<u64>) {
        self.seen.flushes = true;
        match why {
            reason::SWITCH if pages == Some(0) => self.switch_kept += 1,
            reason::SWITCH => self.switch_flushed += 1,
            reason::RECEIVED => self.flushed(sample, program, pages),
            reason::LOCAL | reason::LOCAL_SPACE | reason::SEND => {
                let asks = why == reason::SEND;
                self.asked += u64::from(asks);
                let id = self.request(sample, program, asks, pages);
                if asks {
                    self.recent.push_back(id);
                    if self.recent.len() > RECENT {
                        self.recent.pop_front();
                    }
                }
            }
            _ => {}
        }
    }

    /// The request that this event is part of: the thread's last one if it lacks this part, or a new one.
    fn request(&mut self, sample: &Sample, program: usize, asks: bool, pages: Option<u64>) -> u64 {
        let (site, folded) = self.site(sample, program);
        let open = self.threads.get(&sample.tid).and_then(|thread| thread.open);
        if let Some(request) = open.and_then(|id| self.requests.get_mut(id)) {
            let lacks = if asks { !request.asked } else { !request.local };
            if lacks && request.site == site {
                request.asked |= asks;
                request.local |= !asks;
                return open.unwrap_or_default();
            }
        }
        self.close(sample.tid, sample.time_ns);
        let gap = self.gap(sample, site);
        let id = self.requests.add(Request {
            site,
            folded,
            program,
            pid: sample.pid,
            cpu: sample.cpu,
            pages,
            began: sample.time_ns,
            sent: None,
            asked: asks,
            local: !asks,
            targets: 0,
            left: 0,
            done: None,
            end: None,
            gap,
        });
        self.threads.entry(sample.tid).or_default().open = Some(id);
        let of = &mut self.sites[site];
        of.requests += 1;
        match pages {
            Some(pages) => of.pages += pages,
            None => of.full += 1,
        }
        self.of_call(sample.tid, site);
        id
    }

    /// How long before this the thread had interrupted others from the same site.
    fn gap(&mut self, sample: &Sample, site: usize) -> usize {
        let last = self.threads.get(&sample.tid).map(|thread| &thread.last);
        let last = last.and_then(|last| last.iter().find(|(of, ..)| *of == site));
        last.map_or(bins::BINS.len(), |(_, time, ..)| {
            bin(sample.time_ns.saturating_sub(*time))
        })
    }

    fn queued(&mut self, sample: &Sample, program: usize, target: u32, work: u64) {
        let id = self.sending(sample, program);
        let Some(request) = self.requests.get_mut(id) else {
            return;
        };
        request.targets += 1;
        request.left += 1;
        let (site, gap, folded) = (request.site, request.gap, request.folded.clone());
        let first = request.targets == 1;
        self.in_flight.insert((work, target), id);
        let of = &mut self.sites[site];
        of.interrupts += 1;
        of.remote += u64::from(first);
        of.gaps[gap] += 1;
        of.hits(target);
        self.weigh(&folded).interrupts += 1;
        self.counts_in_call(sample, site, gap, first);
        self.concerns_what_was_given_back(sample, program, site);
    }

    /// An interrupt from this site may be for memory that another has given back: it would not be, were that kept.
    fn concerns_what_was_given_back(&mut self, sample: &Sample, program: usize, site: usize) {
        let Some(thread) = self.threads.get(&sample.tid) else {
            return;
        };
        let giver = match (&*self.sites[site].place.call, &thread.call, &thread.fault) {
            ("copy-on-write", _, Some(fault)) => fault.site,
            ("mprotect" | "pkey_mprotect", Some(call), _) => self
                .discards
                .find(program, call.start)
                .map(|discard| discard.site),
            _ => None,
        };
        if let Some(giver) = giver {
            *self.sites[site].given.entry(giver).or_default() += 1;
        }
    }

    /// The request for which this thread interrupts others now.
    fn sending(&mut self, sample: &Sample, program: usize) -> u64 {
        let open = self.threads.get(&sample.tid).and_then(|thread| thread.open);
        let site = self.site(sample, program).0;
        let known = open.filter(|id| {
            self.requests
                .get(*id)
                .is_some_and(|request| request.site == site && request.asked)
        });
        let id = known.unwrap_or_else(|| self.request(sample, program, true, None));
        if let Some(request) = self.requests.get_mut(id) {
            request.sent.get_or_insert(sample.time_ns);
        }
        id
    }

    fn counts_in_call(&mut self, sample: &Sample, site: usize, gap: usize, first: bool) {
        let Some(thread) = self.threads.get_mut(&sample.tid) else {
            return;
        };
        let mut range = (0, 0);
        if let Some(call) = &mut thread.call {
            call.interrupts += 1;
            call.gap.get_or_insert(gap);
            range = (call.start, call.start.saturating_add(call.bytes));
        }
        if !first {
            return;
        }
        let now = (site, sample.time_ns, range.0, range.1);
        match thread.last.iter_mut().find(|(of, ..)| *of == site) {
            Some(last) => {
                let of = &mut self.sites[site];
                of.followed += 1;
                of.adjacent += u64::from(range.1 != 0 && (last.3 == range.0 || last.2 == range.1));
                *last = now;
            }
            None => {
                // Sites that a thread has not come from for long are forgotten.
                if thread.last.len() >= 64 {
                    thread.last.remove(0);
                }
                thread.last.push(now);
            }
        }
    }

    fn weigh(&mut self, folded: &Arc<str>) -> &mut Weight {
        if self.folded.len() >= FOLDED && !self.folded.contains_key(folded) {
            return self.folded.entry("(other stacks)".into()).or_default();
        }
        self.folded.entry(folded.clone()).or_default()
    }

    /// An interrupt that calls functions was sent; to flush, if a flush is on the stack.
    fn sent(&mut self, sample: &Sample, program: usize, targets: &[u32]) {
        let told = self.stacks.tell(&sample.stack);
        if !told.flush {
            return;
        }
        self.seen.sent = true;
        let targets: Vec<u32> = targets
            .iter()
            .copied()
            .filter(|&cpu| cpu != sample.cpu)
            .collect();
        let id = self.sending(sample, program);
        let Some(request) = self.requests.get(id) else {
            return;
        };
        let (site, gap, folded) = (request.site, request.gap, request.folded.clone());
        let of = &mut self.sites[site];
        of.by_interrupt += targets.len() as u64;
        if self.seen.queued {
            return;
        }
        of.remote += u64::from(request.sent == Some(sample.time_ns));
        of.gaps[gap] += targets.len() as u64;
        for &target in &targets {
            self.sites[site].hits(target);
        }
        self.weigh(&folded).interrupts += targets.len() as u64;
        self.counts_in_call(sample, site, gap, true);
    }

    /// A target flushed: nothing but this tells of it where functions are not recorded.
    fn flushed(&mut self, sample: &Sample, program: usize, pages: Option<u64>) {
        if self.seen.functions {
            return;
        }
        self.received += 1;
        let now = sample.time_ns;
        let fits = |request: &&u64| {
            let request = self.requests.get(**request);
            request.is_some_and(|request| {
                request.cpu != sample.cpu
                    && now.saturating_sub(request.began) < ANSWER_NS
                    && request.end.is_none_or(|end| end + 1_000 >= now)
            })
        };
        let rank = |id: &&u64| {
            let request = self.requests.get(**id);
            let same = |request: &Request| request.pages == pages || pages.is_none();
            (
                request.is_some_and(|r| r.pid == sample.pid),
                request.is_some_and(same),
                **id,
            )
        };
        let found = self.recent.iter().filter(fits).max_by_key(rank).copied();
        let time = self.cpu(sample.cpu);
        if time.interrupt.is_some() {
            time.flushes.push(found);
        }
        let Some(request) = found.and_then(|id| self.requests.get_mut(id)) else {
            self.unmatched += 1;
            return;
        };
        request.done = request.done.max(Some(now));
        let (site, gap, sender, cpu) = (request.site, request.gap, request.program, request.cpu);
        let folded = request.folded.clone();
        let first = request.sent.is_none();
        request.sent.get_or_insert(request.began);
        *self.matrix.entry((sender, program)).or_default() += 1;
        *self.cpu_matrix.entry((cpu, sample.cpu)).or_default() += 1;
        let of = &mut self.sites[site];
        of.by_target += 1;
        if !self.seen.queued && !self.seen.sent {
            of.remote += u64::from(first);
            of.gaps[gap] += 1;
            of.hits(sample.cpu);
            self.weigh(&folded).interrupts += 1;
        }
    }

    /// A function that another CPU queued has run.
    fn worked(
        &mut self,
        sample: &Sample,
        function: &str,
        program: usize,
        observer: &mut dyn Observer,
    ) {
        let now = sample.time_ns;
        let cpu = self.cpu(sample.cpu);
        let in_interrupt = cpu.interrupt.is_some();
        let last = cpu
            .works
            .iter_mut()
            .rev()
            .find(|work| work.end.is_none() && &*work.function == function);
        let Some(work) = last else {
            return;
        };
        work.end = Some(now);
        let (request, start) = (work.request, work.start);
        let took = now.saturating_sub(start);
        if work.flush {
            if let Some(id) = request {
                self.done(id, now, took);
            }
            self.programs[program].stolen.least += took;
            self.programs[program].taken += 1;
        } else {
            let of = self.functions.entry(function.into()).or_default();
            of.count += 1;
            of.ns += took;
        }
        if !in_interrupt {
            // An idle CPU that polls takes work without an interrupt: what is seen is all there is.
            let works = std::mem::take(&mut self.cpu(sample.cpu).works);
            self.charge(sample, program, &works, start, now, observer);
        }
    }

    /// One target of the request is done.
    fn done(&mut self, id: u64, now: u64, took: u64) {
        let Some(request) = self.requests.get_mut(id) else {
            return;
        };
        request.left = request.left.saturating_sub(1);
        request.done = request.done.max(Some(now));
        self.sites[request.site].stolen.least += took;
        self.add_up(id);
    }

    fn interrupted(&mut self, sample: &Sample, program: usize, observer: &mut dyn Observer) {
        self.seen.interrupts = true;
        let now = sample.time_ns;
        let cpu = self.cpu(sample.cpu);
        let works = std::mem::take(&mut cpu.works);
        let flushes = std::mem::take(&mut cpu.flushes);
        let Some(start) = cpu.interrupt.take() else {
            return;
        };
        if !works.is_empty() {
            self.charge(sample, program, &works, start, now, observer);
            return;
        }
        if self.seen.functions {
            return;
        }
        let took = now.saturating_sub(start);
        if flushes.is_empty() {
            let of = self.functions.entry("not told".into()).or_default();
            of.count += 1;
            of.ns += took;
            let name = self.programs[program].name.clone();
            observer.slice(&slice::of(
                sample,
                &name,
                Stretch::Other,
                (start, now),
                "function call",
                None,
            ));
            return;
        }
        let share = took / flushes.len() as u64;
        for request in flushes {
            let site = request
                .and_then(|id| self.requests.get(id))
                .map(|request| (request.site, request.folded.clone()));
            if let Some((site, folded)) = &site {
                self.sites[*site].stolen.most += share;
                self.weigh(folded).stolen_ns += share;
            }
            self.programs[program].stolen.most += share;
            self.programs[program].taken += 1;
            let name = self.programs[program].name.clone();
            let site = site.map(|site| site.0);
            observer.slice(&slice::of(
                sample,
                &name,
                Stretch::Stolen,
                (start, now),
                "flush",
                site,
            ));
        }
    }

    /// Charges an interrupt to those whose work it did, each with the same share of what was around the work.
    fn charge(
        &mut self,
        sample: &Sample,
        program: usize,
        works: &[Work],
        start: u64,
        end: u64,
        observer: &mut dyn Observer,
    ) {
        let inside: u64 = works
            .iter()
            .filter_map(|work| Some(work.end?.saturating_sub(work.start)))
            .sum();
        let around = end.saturating_sub(start).saturating_sub(inside) / works.len().max(1) as u64;
        let name = self.programs[program].name.clone();
        for work in works {
            let Some(done) = work.end else {
                continue;
            };
            let took = done.saturating_sub(work.start) + around;
            let site = work.request.and_then(|id| self.charged(id, took));
            let kind = if work.flush {
                Stretch::Stolen
            } else {
                Stretch::Other
            };
            if work.flush {
                self.programs[program].stolen.most += took;
            }
            let time = (work.start.min(start), done.max(end));
            observer.slice(&slice::of(sample, &name, kind, time, &work.function, site));
        }
    }

    /// Adds what the interrupt of a request took; whose it was.
    fn charged(&mut self, id: u64, took: u64) -> Option<usize> {
        let request = self.requests.get(id)?;
        let (site, folded) = (request.site, request.folded.clone());
        self.sites[site].stolen.most += took;
        self.weigh(&folded).stolen_ns += took;
        Some(site)
    }

    /// The thread goes on: the request that it had open is over for it.
    fn close(&mut self, tid: u32, now: u64) {
        let open = self
            .threads
            .get_mut(&tid)
            .and_then(|thread| thread.open.take());
        if let Some(id) = open {
            if let Some(request) = self.requests.get_mut(id) {
                request.end = Some(now);
            }
            self.add_up(id);
        }
    }

    /// Adds up a request that its initiator and its targets are done with.
    fn add_up(&mut self, id: u64) {
        let Some(request) = self.requests.get_mut(id) else {
            return;
        };
        let Some(end) = request.end else {
            return;
        };
        if request.left > 0 {
            return;
        }
        let (site, folded) = (request.site, request.folded.clone());
        // Once: what is charged later finds it with nothing left to add.
        if let Some(sent) = request.sent.take() {
            let most = end.saturating_sub(sent);
            let least = request
                .done
                .map_or(0, |done| done.saturating_sub(sent).min(most));
            self.sites[site].waited.add(least, most);
            self.sites[site].waits += 1;
            self.weigh(&folded).waited_ns += least;
        }
    }

    fn returned(&mut self, sample: &Sample, program: usize, observer: &mut dyn Observer) {
        let now = sample.time_ns;
        let open = self.threads.get(&sample.tid).and_then(|thread| thread.open);
        let waited = open
            .and_then(|id| self.requests.get(id))
            .and_then(|request| {
                let sent = request.sent?;
                Some((sent, request.done.unwrap_or(now).min(now), request.site))
            });
        self.close(sample.tid, now);
        let call = self
            .threads
            .get_mut(&sample.tid)
            .and_then(|thread| thread.call.take());
        let Some(call) = call else {
            return;
        };
        let name = self.programs[program].name.clone();
        if let Some((sent, done, site)) = waited {
            observer.slice(&slice::of(
                sample,
                &name,
                Stretch::Wait,
                (sent, done),
                &call.name,
                Some(site),
            ));
        }
        let whole = slice::of(
            sample,
            &name,
            Stretch::Call,
            (call.start_ns, now),
            &call.name,
            call.site,
        );
        observer.slice(&Slice {
            cpu: call.cpu,
            ..whole
        });
        let Some(site) = call.site else {
            self.programs[program].locked_ns += call.locked_ns;
            return;
        };
        let of = &mut self.sites[site];
        of.calls += 1;
        of.call_ns += now.saturating_sub(call.start_ns);
        of.call_events.add(call.events);
        of.locked_ns += call.locked_ns;
        of.locks += call.locks;
        of.bytes += call.bytes;
        // A program may pass any number of different values.
        if of.how.len() < 64 || of.how.contains_key(&call.how) {
            *of.how.entry(call.how).or_default() += 1;
        }
        if discards(&call) {
            let sent = (call.interrupts, call.gap.unwrap_or(bins::BINS.len()));
            let before = self
                .discards
                .add(program, call.start, call.bytes, site, now, sent);
            if let Some(before) = before {
                let followed = now.saturating_sub(before.time_ns);
                self.sites[before.site]
                    .reuse
                    .left(followed, before.interrupts);
            }
        }
    }

    fn lock(&mut self, tid: u32, program: usize, now: u64, got: bool) {
        self.seen.locks = true;
        let thread = self.threads.entry(tid).or_default();
        if !got {
            thread.lock_since = Some(now);
            return;
        }
        let Some(since) = thread.lock_since.take() else {
            return;
        };
        let waited = now.saturating_sub(since);
        match &mut thread.call {
            Some(call) => {
                call.locked_ns += waited;
                call.locks += 1;
            }
            None => self.programs[program].locked_ns += waited,
        }
    }

    fn fault(&mut self, sample: &Sample, program: usize, address: u64) {
        self.seen.faults = true;
        let now = sample.time_ns;
        self.programs[program].faults += 1;
        let mut of = None;
        if let Some(discard) = self.discards.find(program, address) {
            let site = &mut self.sites[discard.site];
            of = Some(discard.site);
            site.refaults += 1;
            if !std::mem::replace(&mut discard.followed, true) {
                let after = now.saturating_sub(discard.time_ns);
                let soon = bin(after);
                site.reuse.touched(after, discard.interrupts);
                if discard.interrupts > 0 && soon <= discard.gap {
                    site.hasty[discard.gap] += discard.interrupts;
                }
            }
        }
        self.close(sample.tid, now);
        self.threads.entry(sample.tid).or_default().fault = Some(Fault {
            since: now,
            site: of,
        });
    }

    /// How interrupts were told to be shootdowns.
    pub fn evidence(&self) -> Evidence {
        if self.seen.queued {
            Evidence::Queued
        } else if self.seen.sent {
            Evidence::Sent
        } else if self.received > 0 {
            Evidence::Received
        } else {
            Evidence::Nothing
        }
    }

    /// Ends what is open, and counts interrupts by the best evidence that there was.
    pub fn finish(&mut self) {
        let end = self.times.map_or(0, |(_, last)| last);
        let threads: Vec<u32> = self.threads.keys().copied().collect();
        for tid in threads {
            self.close(tid, end);
        }
        self.stop_following_discards(end);
        let evidence = self.evidence();
        for site in &mut self.sites {
            site.interrupts = match evidence {
                Evidence::Queued | Evidence::Nothing => site.interrupts,
                Evidence::Sent => site.by_interrupt,
                Evidence::Received => site.by_target,
            };
            site.stolen.most = site.stolen.most.max(site.stolen.least);
        }
        self.weigh_sites();
        for program in &mut self.programs {
            program.stolen.most = program.stolen.most.max(program.stolen.least);
        }
    }

    /// Says what a recorded interrupt stands for, site by site. Interrupts between the stretches of time that were recorded
    /// are known by their program and call, whose sites share them as they share those within; a program's call that was
    /// seen between stretches alone has them as they are. What is missing then, by the exact count, is missing everywhere alike.
    fn weigh_sites(&mut self) {
        let mut calls: FxHashMap<(Arc<str>, Arc<str>), (u64, u64)> = FxHashMap::default();
        let key = |site: &Site| (site.place.program.clone(), site.place.call.clone());
        for site in &self.sites {
            let of = calls.entry(key(site)).or_default();
            of.0 += site.interrupts;
            of.1 += site.between;
        }
        let between: u64 = self.sites.iter().map(|site| site.between).sum();
        let missing = self.counted().map_or(1.0, |count| {
            (count.exact as f64 / (count.seen + between).max(1) as f64).max(1.0)
        });
        let seconds = self.scale_of_time();
        for site in &mut self.sites {
            // The count leaves out what the row `TLB` does.
            if &*site.place.call == "kernel mappings" {
                site.weight = seconds;
                continue;
            }
            let (within, between) = calls[&key(site)];
            if within == 0 {
                site.interrupts = site.between;
                site.requests += site.between;
                site.remote += site.between;
            } else {
                site.weight = (within + between) as f64 / within as f64;
            }
            site.weight *= missing;
        }
    }

    /// The count of the event that tells of interrupts, if it was counted.
    pub fn counted(&self) -> Option<&Count> {
        self.count(match self.evidence() {
            Evidence::Queued => "csd:csd_queue_cpu",
            Evidence::Sent => "ipi:ipi_send_cpumask",
            Evidence::Received | Evidence::Nothing => "tlb:tlb_flush",
        })
    }

    /// How long a program ran, by the kernel's account, if that is known.
    pub fn ran(&self, program: &str) -> Option<&Ran> {
        self.ran.iter().find(|ran| ran.comm == program)
    }

    /// Whether the recording is about this program: not if it only shared the machine with what was recorded.
    pub fn is_about(&self, program: &str) -> bool {
        let scope = self.host.as_ref().map_or("", |host| &*host.scope);
        let told = |known: &Program| &*known.name == program && known.told;
        matches!(scope, "" | "everything") || self.programs.iter().any(told)
    }

    /// The count of an event, if it was counted.
    pub fn count(&self, event: &str) -> Option<&Count> {
        self.counts.iter().find(|count| count.event == event)
    }

    /// What a second within the stretches of time that were recorded stands for.
    pub fn scale_of_time(&self) -> f64 {
        match self.windows_ns {
            Some(windows) if windows > 0 => (self.elapsed_ns() as f64 / windows as f64).max(1.0),
            _ => 1.0,
        }
    }

    /// How long the recording ran, in nanoseconds: between the two readings of the counters, if it has their times, because
    /// events may have been recorded during a part of that alone; else from the first event to the last.
    pub fn elapsed_ns(&self) -> u64 {
        let read = |statistics: &Option<Statistics>| {
            let time = statistics.as_ref().map(|statistics| statistics.time_ns);
            time.filter(|&time| time > 0)
        };
        let read = read(&self.before).zip(read(&self.after));
        let from_to = |(first, last): (u64, u64)| last.saturating_sub(first);
        let events = self.times.map_or(0, from_to);
        read.map_or(0, from_to).max(events)
    }

    /// By how much a row of `/proc/interrupts` grew between the two readings, over all CPUs.
    pub fn row(&self, name: &str) -> Option<u64> {
        let sum = |statistics: &Statistics| {
            let row = statistics
                .interrupts
                .iter()
                .find(|row: &&Interrupts| row.name == name)?;
            Some(row.counts.iter().sum::<u64>())
        };
        let (before, after) = (sum(self.before.as_ref()?)?, sum(self.after.as_ref()?)?);
        after.checked_sub(before)
    }

    /// How many CPUs there were, as far as is known.
    pub fn cpu_count(&self) -> usize {
        let told = self.host.as_ref().map_or(0, |host| host.cpus as usize);
        told.max(self.cpus.len())
    }
}

/// Whether a call gives memory back that is empty when it is touched again.
fn discards(call: &Call) -> bool {
    /// `MADV_DONTNEED`, `MADV_REMOVE`, `MADV_FREE`, `MADV_PAGEOUT`, `MADV_DONTNEED_LOCKED`.
    const GIVES_BACK: [u64; 5] = [4, 9, 8, 21, 24];
    match &*call.name {
        "madvise" => GIVES_BACK.contains(&call.how),
        "munmap" => true,
        _ => false,
    }
}

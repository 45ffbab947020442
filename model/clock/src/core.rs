//! The machine's state, and the effect and cost of each operation.
//!
//! A [`Core`] is plain data; its methods never suspend. An operation whose place in time matters needs
//! [`Core::may_share`]: `context` checks it, and otherwise lets other CPUs run. Shared words, interrupts and
//! translation have their own files.

mod interrupts;
mod translation;
mod words;

use crate::clock::{Clock, Point, Step};
use crate::costs::{Costs, KernelLock, Topology};
use crate::counts::Counts;
use crate::cpu::{Activity, Cpu};
use crate::file::{Parameter as P, Time};
use crate::flushes::Protocol;
use crate::latency::Latencies;
use crate::lines::Lines;
use crate::memory::{Memory, Tables};
use crate::moves::{MovedLine, Moves, Role};
use crate::oracle::Oracle;
use crate::trace::{Mark, Trace};
use quell::{CpuId, CpuSet, Frame, Page, PageRange};
use quell_vm::{LockUse, MemoryMap, Work};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::Arc;

/// Moves of a lock's line while another CPU waits for it, besides its one move to the next holder: it goes back to the
/// holder, which writes it, and to the waiter, which reads that.
const HANDOVER: f64 = 2.0;

/// The state of a machine.
pub(crate) struct Core {
    pub costs: Costs,
    pub cpus: Vec<Cpu>,
    /// The running CPU.
    pub current: usize,
    pub memory: Memory,
    pub tables: Arc<Tables>,
    pub map: MemoryMap,
    pub oracle: Oracle,
    pub trace: Trace,
    /// The moves of lines, if they are recorded.
    pub moves: Option<Box<Moves>>,
    lines: Lines,
    scheduler: Clock,
    /// The times up to which the running CPU may perform shared and private operations without a check: its limits, and
    /// the next interrupt.
    shared_until: Time,
    local_until: Time,
    /// The end of each node's pending memory requests.
    pub node_busy: Vec<Time>,
    /// The arrival of the last interrupt from another socket at each socket.
    link_busy: Vec<Time>,
    /// The time until which each of the kernel's locks is held, and the CPU that holds it.
    locks: BTreeMap<KernelLock, (Time, usize)>,
    /// The CPU that has filled each page's translation since its last flush, by root and page; `None` if several have.
    /// Only for protocols that track accesses.
    users: Option<FxHashMap<(Frame, Page), Option<usize>>>,
    /// The time at which the interconnect has carried the last broadcast.
    broadcast_busy: Time,
    broadcasts: u64,
    /// The time of the program's last step.
    pub stepped: Time,
    /// The number of CPUs whose programs haven't ended.
    pub programs: usize,
    /// The time and the counts of all CPUs at the program's first mark.
    begin: Option<(Time, Counts)>,
    pub window: Option<(Time, Counts)>,
    /// The durations of the calls that ended in between.
    pub latencies: Latencies,
}

impl Core {
    pub fn new(
        costs: Costs,
        cpus: Vec<Cpu>,
        map: MemoryMap,
        tables: Arc<Tables>,
        memory: Memory,
        scheduler: Clock,
        trace: Trace,
    ) -> Self {
        let sockets = cpus.len().div_ceil(costs.topology.per_socket);
        let tracks = costs.protocol == Protocol::Abis;
        Core {
            moves: None,
            lines: Lines::new(&costs, cpus.len()),
            link_busy: vec![0; sockets],
            oracle: Oracle::new(costs.lost.clone()),
            current: 0,
            node_busy: vec![0; map.nodes().len()],
            stepped: 0,
            programs: cpus.len(),
            costs,
            cpus,
            memory,
            tables,
            map,
            trace,
            scheduler,
            shared_until: 0,
            local_until: 0,
            locks: BTreeMap::new(),
            users: tracks.then(FxHashMap::default),
            broadcast_busy: 0,
            broadcasts: 0,
            begin: None,
            window: None,
            latencies: Latencies::default(),
        }
    }

    /// Forgets the costs of building the kernel: the machine starts at time 0.
    pub fn come_up(&mut self) {
        self.node_busy.fill(0);
        self.link_busy.fill(0);
        let cpu = self.cpu();
        cpu.now = 0;
        cpu.stores_done = 0;
        cpu.counts = Counts::default();
    }

    /// Begins or ends the program's measurement.
    pub fn mark_window(&mut self, mark: quell_vm::Mark) {
        let now = self.cpu().now;
        let all: Counts = self.cpus.iter().map(|cpu| cpu.counts).sum();
        if let Some(moves) = &mut self.moves
            && (mark == quell_vm::Mark::Begin || self.begin.is_some())
        {
            moves.mark(mark);
        }
        match (mark, self.begin) {
            (quell_vm::Mark::Begin, _) => self.begin = Some((now, all)),
            (quell_vm::Mark::End, Some((since, before))) => {
                self.window = Some((now - since, all.since(&before)));
            }
            (quell_vm::Mark::End, None) => {}
        }
    }

    /// Records that a call of the running CPU has ended that began at `start`.
    pub fn call_ended(&mut self, call: &'static str, start: Time) {
        if self.begin.is_some_and(|(begin, _)| begin <= start) && self.window.is_none() {
            let now = self.cpu().now;
            self.latencies.add(call, now - start);
        }
    }

    #[inline]
    pub fn cpu(&mut self) -> &mut Cpu {
        &mut self.cpus[self.current]
    }

    /// Lets the scheduler choose the CPU that continues.
    pub fn choose(&mut self) -> Option<usize> {
        let chosen = self.scheduler.choose(&mut self.cpus)?;
        self.current = chosen;
        let disturb = self.costs.time(P::BroadcastDisturb);
        let broadcasts = self.broadcasts;
        let cpu = self.cpu();
        let polling = cpu.activity == Activity::Polling;
        cpu.activity = Activity::Running;
        if polling {
            self.end_relax();
        }
        let cpu = self.cpu();
        if cpu.disturbed_by < broadcasts {
            let cost = (broadcasts - cpu.disturbed_by) * disturb;
            cpu.disturbed_by = broadcasts;
            cpu.now += cost;
            cpu.counts.disturbed += cost;
        }
        self.refresh();
        Some(chosen)
    }

    /// Recomputes the running CPU's limits. Call it after a change of anything on which they depend.
    #[inline]
    fn refresh(&mut self) {
        let due = self.cpus[self.current].due();
        self.shared_until = self.scheduler.limits.shared.min(due);
        self.local_until = self.scheduler.limits.local.min(due);
    }

    #[inline]
    pub fn may_share(&self) -> bool {
        self.cpus[self.current].now < self.shared_until
    }

    #[inline]
    pub fn may_run(&self) -> bool {
        self.cpus[self.current].now < self.local_until
    }

    /// Returns whether [`Core::step`] would return [`Step::Go`], by a comparison.
    #[inline]
    pub fn may(&self, point: Point) -> bool {
        match point {
            Point::Shared => self.may_share(),
            Point::Local => self.may_run(),
        }
    }

    pub fn step(&mut self, point: Point) -> Step {
        if std::thread::panicking() {
            return Step::Go;
        }
        self.scheduler.step(&self.cpus, self.current, point)
    }

    /// Ends the program of the running CPU, which turns idle.
    pub fn end_program(&mut self) {
        let cpu = self.cpu();
        cpu.ended = Some(cpu.now);
        self.programs -= 1;
    }

    /// Performs one step of waiting until the clock reaches `goal`, taking interrupts.
    pub fn wait_step(&mut self, goal: Time, activity: Activity) -> Step {
        let local_until = self.scheduler.limits.local;
        let cpu = &mut self.cpus[self.current];
        let due = cpu.due();
        if due <= cpu.now {
            return self.step(Point::Local);
        }
        if cpu.now >= goal {
            return Step::Go;
        }
        let stop = goal.min(due);
        if activity == Activity::Computing && stop <= local_until {
            cpu.now = stop;
            return if stop == due { self.step(Point::Local) } else { Step::Go };
        }
        cpu.activity = activity;
        self.scheduler.wait(&self.cpus, self.current, goal);
        Step::Suspend
    }

    /// Records what the running CPU has done since `start`.
    pub fn trace_since(&mut self, start: Time, mark: Mark) {
        let (cpu, now) = (self.current, self.cpu().now);
        self.trace.span(cpu, start, now, mark);
    }

    /// Reports that the running CPU used the machine in a forbidden way.
    fn misuse(&mut self, what: String) {
        let (cpu, now) = (self.current, self.cpu().now);
        self.oracle.misuse(cpu, now, what);
    }

    #[inline]
    pub fn spend(&mut self, time: Time) {
        self.cpus[self.current].now += time;
    }

    pub fn charge(&mut self, work: Work) -> Time {
        if let quell_vm::Work::Compress { .. } = work {
            self.cpu().filled_page = true;
        }
        let time = self.costs.work(work);
        self.shared_core(time)
    }

    /// Returns the duration of work on this CPU. It's longer while another CPU of its core works.
    #[inline]
    pub fn shared_core(&self, time: Time) -> Time {
        let Topology { per_core, .. } = self.costs.topology;
        if per_core == 1 || self.costs.amount(P::Sharing) == 1.0 {
            return time;
        }
        let first = self.current - self.current % per_core;
        let core = first..(first + per_core).min(self.cpus.len());
        let works = |cpu: usize| {
            let cpu = &self.cpus[cpu];
            // A CPU that repeats `pause` leaves the core to the other one.
            cpu.ended.is_none() && !matches!(cpu.activity, Activity::Halted | Activity::Polling)
        };
        match core.filter(|&cpu| cpu != self.current).any(works) {
            true => (time as f64 * self.costs.amount(P::Sharing)) as Time,
            false => time,
        }
    }

    /// Records that this CPU fills a page's translation, if the protocol tracks accesses.
    #[inline]
    pub fn note_user(&mut self, root: Frame, page: Page) {
        if let Some(users) = &mut self.users {
            let me = Some(self.current);
            let user = users.entry((root, page)).or_insert(me);
            *user = user.filter(|_| *user == me);
        }
    }

    /// Returns the CPUs that may have translations of these pages, and forgets them; `None` if any may.
    pub fn take_users(&mut self, root: Frame, range: PageRange) -> Option<CpuSet> {
        let users = self.users.as_mut()?;
        let pages = (0..range.pages).map(|distance| (root, range.start.plus(distance)));
        let users = pages.filter_map(|page| users.remove(&page));
        users.map(|user| Some(CpuId(user? as u16))).collect()
    }

    /// Waits for one of the kernel's locks and holds it. CPUs get it in turn, with interrupts off.
    pub fn hold(&mut self, used: LockUse, code: &'static Location<'static>) {
        let cpu = &mut self.cpus[self.current];
        let Some((lock, held)) = self.costs.lock(used, &self.map, &mut cpu.collected) else {
            return;
        };
        let now = cpu.now;
        let (free, last) = *self.locks.get(&lock).unwrap_or(&(0, self.current));
        // If a CPU waits, its reads and the release also move the line of the lock (Linux, kernel/locking/qspinlock.c).
        let handover = if free > now && held.lines > 0.0 {
            HANDOVER * self.costs.amount(P::LockScale)
        } else {
            0.0
        };
        let lines = if last == self.current { 0.0 } else { held.lines + handover };
        let fetched = (lines * self.costs.transfer(last, self.current) as f64) as Time;
        let until = now.max(free) + fetched + self.shared_core(held.hold);
        self.locks.insert(lock, (until, self.current));
        let cpu = self.cpu();
        cpu.counts.transfers += lines as u64;
        cpu.now = until;
        if lines >= 1.0 {
            self.moved(MovedLine::Lock(lock), Some(code), lines as u64, until - now);
        }
    }

    /// Records that lines came from other cores to the running CPU.
    #[inline]
    fn moved(
        &mut self,
        line: MovedLine,
        code: Option<&'static Location<'static>>,
        count: u64,
        time: Time,
    ) {
        if let Some(moves) = &mut self.moves {
            let cpu = &self.cpus[self.current];
            let role = match cpu.call {
                _ if cpu.in_interrupt => Role::Interrupt,
                Some((call, _)) => Role::Call(call.name()),
                None if cpu.in_fault => Role::Fault,
                None => Role::Program,
            };
            moves.add((line, code, role), self.current, count, time);
        }
    }
}

//! The machine's state, and what every operation of it does and costs.
//!
//! A [`Core`] is plain data: methods never suspend. An operation whose place in the order of time
//! matters is done only when [`Core::may_share`] says so; `context` asks, and lets other CPUs run
//! when the answer is no.

use crate::clock::{Limits, Scheduler};
use crate::costs::Costs;
use crate::counts::Counts;
use crate::cpu::{Activity, Cpu};
use crate::file::Time;
use crate::lines::{Lines, Use};
use crate::memory::{Memory, Tables};
use crate::oracle::Oracle;
use crate::trace::{Mark, Trace};
use quell::{CpuSet, Invalidate, Scope, Tag};
use quell_vm::machine::TABLE_WORDS;
use quell_vm::{MemoryMap, Work};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The kind of operation that a CPU is about to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Point {
    /// Others can see it.
    Shared,
    /// Nobody can.
    Local,
}

/// What a CPU does at a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The operation.
    Go,
    /// Nothing, until it is its turn.
    Suspend,
    /// Takes an interrupt first.
    Interrupt,
    /// Takes a non-maskable interrupt first.
    Nmi,
}

/// The state of a machine.
pub(crate) struct Core {
    pub costs: Costs,
    pub cpus: Vec<Cpu>,
    /// The CPU that runs.
    pub current: usize,
    pub memory: Memory,
    pub tables: Arc<Tables>,
    pub map: MemoryMap,
    pub oracle: Oracle,
    pub trace: Trace,
    lines: Lines,
    scheduler: Box<dyn Scheduler>,
    limits: Limits,
    /// Up to when the CPU that runs may do shared and private operations without looking: its
    /// limits, and the next interrupt.
    shared_until: Time,
    local_until: Time,
    /// When each node's memory has served what it was asked for.
    pub node_busy: Vec<Time>,
    /// When the interconnect has carried the last broadcast.
    broadcast_busy: Time,
    broadcasts: u64,
    /// How many CPUs' programs have not ended.
    pub programs: usize,
    /// What all CPUs had counted, and when, at the program's first mark and in between.
    begin: Option<(Time, Counts)>,
    pub window: Option<(Time, Counts)>,
}

impl Core {
    pub fn new(
        costs: Costs,
        cpus: Vec<Cpu>,
        map: MemoryMap,
        tables: Arc<Tables>,
        memory: Memory,
        scheduler: Box<dyn Scheduler>,
        trace: Trace,
    ) -> Self {
        Core {
            lines: Lines::new(&costs, cpus.len()),
            oracle: Oracle::new(),
            current: 0,
            node_busy: vec![0; map.nodes().len()],
            programs: cpus.len(),
            costs,
            cpus,
            memory,
            tables,
            map,
            trace,
            scheduler,
            limits: Limits {
                shared: 0,
                local: 0,
            },
            shared_until: 0,
            local_until: 0,
            broadcast_busy: 0,
            broadcasts: 0,
            begin: None,
            window: None,
        }
    }

    /// Everything that building the kernel cost is forgotten: the machine comes up at time 0.
    pub fn come_up(&mut self) {
        self.node_busy.fill(0);
        let cpu = self.cpu();
        cpu.now = 0;
        cpu.stores_done = 0;
        cpu.counts = Counts::default();
    }

    /// The program's measurement begins or ends.
    pub fn mark_window(&mut self, mark: quell_vm::Mark) {
        let now = self.cpu().now;
        let mut all = Counts::default();
        self.cpus.iter().for_each(|cpu| all += cpu.counts);
        match (mark, self.begin) {
            (quell_vm::Mark::Begin, _) => self.begin = Some((now, all)),
            (quell_vm::Mark::End, Some((since, before))) => {
                self.window = Some((now - since, all.since(&before)));
            }
            (quell_vm::Mark::End, None) => {}
        }
    }

    #[inline]
    pub fn cpu(&mut self) -> &mut Cpu {
        &mut self.cpus[self.current]
    }

    // ---- scheduling ------------------------------------------------------------------------

    /// Lets the scheduler choose who goes on.
    pub fn choose(&mut self) -> Option<usize> {
        let (chosen, limits) = self.scheduler.choose(&mut self.cpus)?;
        self.current = chosen;
        self.limits = limits;
        let disturb = self.costs.broadcast_disturb;
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

    /// Computes again up to when the CPU may go on; after anything that its limits depend on.
    #[inline]
    fn refresh(&mut self) {
        let due = self.cpus[self.current].due();
        self.shared_until = self.limits.shared.min(due);
        self.local_until = self.limits.local.min(due);
    }

    #[inline]
    pub fn may_share(&self) -> bool {
        self.cpus[self.current].now < self.shared_until
    }

    #[inline]
    pub fn may_run(&self) -> bool {
        self.cpus[self.current].now < self.local_until
    }

    /// Whether [`Core::step`] would say [`Step::Go`], by a comparison.
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
        self.scheduler.step(&mut self.cpus, self.current, point)
    }

    /// The program of the CPU that runs has ended; the CPU goes idle.
    pub fn end_program(&mut self) {
        let cpu = self.cpu();
        cpu.ended = Some(cpu.now);
        self.programs -= 1;
    }

    /// One step of waiting until the clock is at `goal`, taking interrupts.
    pub fn wait_step(&mut self, goal: Time, activity: Activity) -> Step {
        let local_until = self.limits.local;
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
            return if stop == due {
                self.step(Point::Local)
            } else {
                Step::Go
            };
        }
        cpu.activity = activity;
        self.scheduler.wait(&mut self.cpus, self.current, goal);
        Step::Suspend
    }

    // ---- time ------------------------------------------------------------------------------

    #[inline]
    pub fn spend(&mut self, time: Time) {
        self.cpus[self.current].now += time;
    }

    pub fn charge(&mut self, work: Work) -> Time {
        if let quell_vm::Work::Compress { .. } = work {
            self.cpu().filled_page = true;
        }
        self.costs.work(work)
    }

    // ---- shared words ----------------------------------------------------------------------

    /// Accounts for an operation on a word if it is this CPU's turn; says whether it was.
    #[inline]
    pub fn word(&mut self, address: usize, kind: Use, order: Ordering) -> bool {
        let cpu = &mut self.cpus[self.current];
        if cpu.now >= self.shared_until {
            return false;
        }
        let line = self.lines.number(address);
        let start = cpu.now;
        let access = self
            .lines
            .access(&self.costs, self.current, line, kind, start);
        cpu.counts.words += 1;
        cpu.counts.transfers += u64::from(access.transferred);
        match kind {
            // A store goes to the store buffer; who needs it done waits for it.
            Use::Store => {
                cpu.stores_done = cpu.stores_done.max(access.ready);
                cpu.now += self.costs.l1_line;
                if order == Ordering::SeqCst {
                    cpu.now = cpu.now.max(cpu.stores_done) + self.costs.atomic;
                }
            }
            Use::Load => {
                cpu.now = access.ready;
                cpu.poll
                    .load(line, start, access.ready - start, access.held);
            }
            Use::Modify => {
                let ready = match (self.costs.arm, order) {
                    (true, Ordering::Relaxed | Ordering::Acquire) => access.ready,
                    _ => access.ready.max(cpu.stores_done),
                };
                cpu.now = ready + self.costs.atomic;
            }
        }
        if kind != Use::Load {
            cpu.poll.interfere();
            self.wake_watchers(line, start);
        }
        true
    }

    /// A line was written: CPUs that sleep in a loop that loads it go on.
    #[inline]
    fn wake_watchers(&mut self, line: u32, at: Time) {
        for &watcher in self.lines.watchers(line) {
            let watcher = watcher as usize;
            let wake = self.cpus[watcher].poll.turn_that_sees(line, at);
            self.limits = self.scheduler.wake(watcher, wake);
        }
        let due = self.cpus[self.current].due();
        self.shared_until = self.limits.shared.min(due);
        self.local_until = self.limits.local.min(due);
    }

    /// One turn of a waiting loop; says whether the CPU sleeps now, until it is woken.
    pub fn relax(&mut self) -> bool {
        let pause = self.costs.pause;
        let current = self.current;
        let cpu = &mut self.cpus[current];
        cpu.counts.relaxes += 1;
        cpu.now += pause;
        if !cpu.poll.turn(cpu.now, pause) {
            return false;
        }
        let poll = self.cpus[current].poll;
        for line in poll.lines() {
            self.lines.watch(line, current);
        }
        self.cpus[current].activity = Activity::Polling;
        self.scheduler.wait(&mut self.cpus, current, poll.latest());
        true
    }

    /// The CPU that slept in a waiting loop goes on.
    pub fn end_relax(&mut self) {
        let current = self.current;
        let poll = self.cpus[current].poll;
        for line in poll.lines() {
            self.lines.unwatch(line, current);
        }
        let cpu = &mut self.cpus[current];
        let (turns, loads) = cpu.poll.wake(cpu.now);
        cpu.counts.relaxes += turns;
        cpu.counts.words += loads;
    }

    pub fn forget_word(&mut self, address: usize) {
        self.lines.forget(address);
    }

    /// A word of a page-table page, and the number of the line it lies in.
    #[inline]
    pub fn table_word(&mut self, table: quell::Frame, index: usize) -> (u64, u32) {
        let page = self.tables.page(table);
        let first = match page.first_line.load(Ordering::Relaxed) {
            0 => {
                let first = self
                    .lines
                    .number_page(page.words[0].address(), TABLE_WORDS / 8);
                page.first_line.store(first + 1, Ordering::Relaxed);
                first
            }
            known => known - 1,
        };
        (page.words[index].peek(), first + (index / 8) as u32)
    }

    /// Whether the walker of the CPU that runs can read a line without asking another core for it.
    #[inline]
    pub fn is_settled(&self, line: u32) -> bool {
        self.lines.is_settled(self.current, line)
    }

    /// The walker's access to a line of a table: as a load, or as a locked operation.
    #[inline]
    pub fn walker_access(&mut self, line: u32, kind: Use) {
        let cpu = &mut self.cpus[self.current];
        let access = self
            .lines
            .access(&self.costs, self.current, line, kind, cpu.now);
        cpu.counts.walk_reads += u64::from(kind == Use::Load);
        cpu.counts.transfers += u64::from(access.transferred);
        let time = access.ready - cpu.now;
        cpu.now += if self.costs.nested_walk == 1.0 {
            time
        } else {
            nested(time, self.costs.nested_walk)
        };
        if kind == Use::Modify {
            let start = cpu.now;
            cpu.now += self.costs.atomic;
            self.wake_watchers(line, start);
        }
    }

    pub fn fence(&mut self) {
        let fence = self.costs.fence;
        let cpu = self.cpu();
        cpu.counts.fences += 1;
        cpu.now = cpu.now.max(cpu.stores_done) + fence;
    }

    // ---- interrupts ------------------------------------------------------------------------

    /// Turns interrupts off or on; returns whether they were on.
    pub fn set_masked(&mut self, masked: bool) -> bool {
        let mask = self.costs.mask;
        let cpu = self.cpu();
        cpu.now += mask;
        let were_on = !cpu.masked;
        cpu.masked = masked;
        self.refresh();
        were_on
    }

    pub fn interrupt(&mut self, targets: &CpuSet) {
        let from = self.current;
        let start = self.cpus[from].now;
        // What was stored before is visible to the handler.
        self.cpus[from].now = start.max(self.cpus[from].stores_done);
        let mut cluster = usize::MAX;
        let mut sent = 0;
        for target in targets.iter() {
            let target = target.index();
            if target == from || target >= self.cpus.len() {
                self.oracle
                    .misuse(from, start, format!("interrupt sent to CPU {target}"));
                continue;
            }
            if target / self.costs.interrupt_cluster != cluster {
                cluster = target / self.costs.interrupt_cluster;
                self.cpus[from].now += self.costs.interrupt_send;
            }
            let far = self.costs.topology.socket(from) != self.costs.topology.socket(target);
            let remote = if far { self.costs.interrupt_remote } else { 0 };
            let at = self.cpus[from].now + self.costs.interrupt_delivery + remote;
            let arrivals = &mut self.cpus[target].arrivals;
            let place = arrivals.partition_point(|&earlier| earlier <= at);
            arrivals.insert(place, at);
            self.limits = self.scheduler.arrival(&mut self.cpus, target, at);
            self.trace.mark(target, at, Mark::Arrives(from));
            sent += 1;
        }
        self.cpus[from].counts.interrupts_sent += sent;
        let now = self.cpus[from].now;
        self.trace.span(from, start, now, Mark::Send(sent));
        self.refresh();
    }

    /// Sends a non-maskable interrupt.
    pub fn send_nmi(&mut self, target: usize) {
        let at = self.cpus[self.current].now + self.costs.interrupt_delivery;
        self.cpus[target].nmi.get_or_insert(at);
        if target != self.current {
            self.limits = self.scheduler.arrival(&mut self.cpus, target, at);
        }
        self.refresh();
    }

    pub fn begin_interrupt(&mut self) {
        let entry = self.costs.interrupt_entry;
        let cpu = self.cpu();
        cpu.handler_since = cpu.now;
        let now = cpu.now;
        let taken = cpu.arrivals.partition_point(|&at| at <= now);
        cpu.arrivals.drain(..taken);
        cpu.masked = true;
        cpu.now += entry;
        cpu.counts.interrupts_taken += 1;
        self.refresh();
    }

    pub fn end_interrupt(&mut self) {
        let exit = self.costs.interrupt_exit;
        let cpu = self.cpu();
        cpu.masked = false;
        cpu.now += exit;
        let (since, now) = (cpu.handler_since, cpu.now);
        cpu.counts.handling += now - since;
        self.trace.span(self.current, since, now, Mark::Handler);
        self.refresh();
    }

    pub fn begin_nmi(&mut self) {
        let entry = self.costs.interrupt_entry;
        let cpu = self.cpu();
        cpu.nmi = None;
        cpu.now += entry;
        cpu.counts.nmis += 1;
        self.refresh();
    }

    pub fn end_nmi(&mut self) {
        let exit = self.costs.interrupt_exit;
        self.spend(exit);
        self.refresh();
    }

    // ---- invalidation ----------------------------------------------------------------------

    /// Drops what `what` covers from the caches of a CPU.
    fn apply(&mut self, cpu: usize, what: Invalidate) {
        let arm = self.costs.arm;
        let tlb = &mut self.cpus[cpu].tlb;
        match what {
            Invalidate::Range { tag, range, scope } => {
                tlb.drop_range(tag, range, scope);
                // x86: INVLPG drops all the walker caches hold under the tag.
                if !arm {
                    tlb.drop_walker(tag);
                }
            }
            Invalidate::Tag(tag) => tlb.drop_tag(tag),
            Invalidate::All => tlb.drop_all(),
        }
    }

    pub fn invalidate(&mut self, what: Invalidate) {
        let start = self.cpu().now;
        let (cost, mark) = match what {
            Invalidate::Range { range, scope, .. } => {
                let pages = range.strides();
                self.cpu().counts.invalidated_pages += pages;
                let tables = scope == Scope::Tables;
                (
                    pages * self.costs.invalidate_page,
                    Mark::Pages(pages, tables),
                )
            }
            Invalidate::Tag(tag) => {
                self.cpu().counts.invalidated_tags += 1;
                (self.costs.invalidate_tag, Mark::Tag(tag.0))
            }
            Invalidate::All => {
                self.cpu().counts.invalidated_all += 1;
                (self.costs.invalidate_all, Mark::All)
            }
        };
        self.apply(self.current, what);
        // A serialising instruction: stores before it are done.
        let cpu = self.cpu();
        cpu.now = cpu.now.max(cpu.stores_done) + cost;
        let now = cpu.now;
        self.trace.span(self.current, start, now, mark);
    }

    pub fn broadcast(&mut self, what: Invalidate) {
        let operations = match what {
            Invalidate::Range { range, .. } => range.strides(),
            _ => 1,
        };
        let others = self.cpus.len() as u64 - 1;
        self.broadcasts += operations;
        let from = self.current;
        let cpu = &mut self.cpus[from];
        // The CPU's own broadcasts do not disturb it.
        cpu.disturbed_by += operations;
        cpu.counts.broadcasts += operations;
        cpu.broadcasts.push(what);
        let start = cpu.now;
        cpu.now += operations * self.costs.broadcast_issue;
        let occupied = operations * self.costs.broadcast_occupancy * others;
        self.broadcast_busy = self.broadcast_busy.max(start) + occupied;
        let done = self.broadcast_busy.max(cpu.now) + self.costs.broadcast_latency;
        cpu.broadcasts_done = cpu.broadcasts_done.max(done);
        let now = cpu.now;
        self.trace
            .span(from, start, now, Mark::Broadcast(operations));
    }

    pub fn complete_broadcasts(&mut self) {
        let fence = self.costs.fence;
        let drain = self.costs.broadcast_drain;
        let from = self.current;
        let sent = std::mem::take(&mut self.cpus[from].broadcasts);
        for &what in &sent {
            for cpu in 0..self.cpus.len() {
                self.apply(cpu, what);
            }
        }
        let cpu = self.cpu();
        let start = cpu.now;
        cpu.counts.broadcast_waits += 1;
        cpu.now = cpu.now.max(cpu.stores_done).max(cpu.broadcasts_done) + fence;
        if std::mem::take(&mut cpu.filled_page) {
            cpu.now += drain;
        }
        let now = cpu.now;
        cpu.counts.waiting_for_broadcasts += now - start;
        self.trace
            .span(from, start, now, Mark::Completion(sent.len() as u64));
    }

    pub fn load_root(&mut self, root: Option<quell::Frame>, tag: Tag, keep: bool) {
        let tagged = !matches!(self.costs.tagging, quell::Tagging::None);
        let keep = keep && tagged;
        let space = root.map(|root| self.oracle.space_of(root));
        let cost = if keep || root.is_none() && tagged {
            self.costs.root_keep
        } else {
            self.costs.root_flush
        };
        let start = self.cpu().now;
        let cpu = self.cpu();
        cpu.counts.root_loads += 1;
        cpu.root = root;
        cpu.tag = tag;
        cpu.space = space.unwrap_or(0);
        if !tagged {
            cpu.tlb.drop_all();
            cpu.counts.invalidated_all += 1;
        } else if !keep && root.is_some() {
            cpu.tlb.drop_tag(tag);
            cpu.counts.invalidated_tags += 1;
        }
        cpu.now = cpu.now.max(cpu.stores_done) + cost;
        let now = cpu.now;
        self.trace
            .span(self.current, start, now, Mark::Root(tag.0, keep));
    }
}

/// The time of a walker's access where a hypervisor's tables are walked too. Out of line: the
/// conversions would otherwise be made for every access.
#[cold]
fn nested(time: Time, factor: f64) -> Time {
    (time as f64 * factor) as Time
}

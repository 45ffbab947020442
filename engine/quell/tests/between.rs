//! Meetings of two calls: the second runs completely between any two steps of the first.
//!
//! Each word of this machine's memory counts its accesses. Between any two of them a hook can make another CPU do
//! something. So we run every call of CPU 0 at every step of every call of CPU 1. It's the smallest part of the
//! adversary's search, with one switch there and one back, but here all of it runs each time, in a few seconds. `cargo
//! test` does so under `Policy::ALL`, under `Policy::BASELINE` and without tags; `cargo xtask ci large` also tests the
//! other ways of waiting and of storing requests. While CPU 1 has interrupts masked, CPU 0 must proceed without its
//! answer. If it can't, we leave that meeting out. The file is long because it has a machine with TLBs of its own, and
//! every pair of 23 calls.
//!
//! Walkers are as eager as the architecture permits: between any two steps every CPU fills its TLB with all entries
//! below its root. A store to a table waits in its CPU's store buffer, as on every architecture, until an operation
//! drains the buffer: a locked operation, a full barrier, an invalidation or the load of a root. At the end no CPU may
//! use a page whose frame was reused, neither at once nor after it has switched to its other space and back. And a
//! frame whose flush was deferred has at most one new owner.

use std::cell::{Cell, OnceCell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use quell::{
    AddressSpace, Batch, Counter, CpuId, CpuSet, DeferredFlush, Engine, Features, Frame, Hardware,
    InFlight, Invalidate, LedgerEntry, NoBroadcasts, Outcome, Page, PageRange, PerCpu, Policy,
    Purpose, Tag, TagPolicy, Tagging,
};

use crate::support::serve;
use crate::support::word::{AccessHooks, HookedWord};

const CPUS: usize = 3;
/// The second call runs on CPU 0, or in a thread that preempts the first on CPU 1. CPU 2 only answers requests.
const SECOND: u16 = 0;
const FIRST: u16 = 1;

thread_local! {
    /// The machine of this thread, and the number of steps before the second call.
    static MACHINE: Cell<Option<&'static Machine>> = const { Cell::new(None) };
    static STEPS_LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    /// The number of posts that found another initiator writing.
    static CONTENDED: Cell<u64> = const { Cell::new(0) };
    static SECOND_CALL: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// Runs the hook before each access.
struct Steps;

impl AccessHooks for Steps {
    /// At most two batches of a space are counted at once.
    const BATCH_BITS: u32 = 2;

    fn before() {
        step();
    }

    fn drain() {
        if let Some(machine) = MACHINE.get() {
            machine.drain(machine.me.get());
        }
    }
}

fn step() {
    let Some(machine) = MACHINE.get() else {
        return;
    };
    machine.fill();
    let me = machine.me.get();
    if me == machine.second.get() && (me != FIRST || machine.cpu().masked.get()) {
        // No second call in its own handler or with interrupts masked: it comes before or after.
        return;
    }
    match STEPS_LEFT.get() {
        Some(0) => {
            STEPS_LEFT.set(None);
            if me == machine.second.get() {
                // The entry to its handler drains its stores.
                machine.drain(me);
            }
            let call = SECOND_CALL.take();
            call.expect("a second call was set")();
        }
        Some(left) => STEPS_LEFT.set(Some(left - 1)),
        None => {}
    }
}

/// A CPU's hardware state: its root, and for each tag the pages in its TLB, one bit each.
#[derive(Default)]
struct Cpu {
    root: Cell<Option<(usize, usize)>>,
    tlb: [Cell<u64>; 8],
    masked: Cell<bool>,
    pending: Cell<bool>,
    /// Entries that it has cleared, as root and page, and that no walker sees yet.
    stores: RefCell<Vec<(usize, u64)>>,
}

struct Machine {
    me: Cell<u16>,
    /// The CPU of the second call.
    second: Cell<u16>,
    tagged: bool,
    cpus: [Cpu; CPUS],
    /// Set while the second call runs.
    met: Cell<bool>,
    /// The second call was left in the middle, so the first may wait for it in vain.
    stuck: Cell<bool>,
    /// The pages that each root maps.
    tables: [Cell<u64>; 3],
    engine: OnceCell<E>,
}
// SAFETY: each test has its machine to itself, on one thread.
unsafe impl Sync for Machine {}
// SAFETY: each test has its machine to itself, on one thread.
unsafe impl Send for Machine {}

/// The panic of a second call that needs an answer which the first call's CPU can't give now.
struct MissingAnswer;

impl Machine {
    fn cpu(&self) -> &Cpu {
        &self.cpus[usize::from(self.me.get())]
    }

    fn fill(&self) {
        for cpu in &self.cpus {
            if let Some((root, tag)) = cpu.root.get() {
                cpu.tlb[tag].set(cpu.tlb[tag].get() | self.tables[root].get());
            }
        }
    }

    /// Clears the entry of a page, as this CPU. Outside a meeting, walkers see that at once.
    fn clear(&self, root: usize, page: u64) {
        self.cpu().stores.borrow_mut().push((root, page));
        if MACHINE.get().is_none() {
            self.drain(self.me.get());
        }
    }

    /// Makes a CPU's stores visible to all walkers.
    fn drain(&self, cpu: u16) {
        for (root, page) in self.cpus[usize::from(cpu)].stores.take() {
            let table = &self.tables[root];
            table.set(table.get() & !(1 << page));
        }
    }

    /// Runs `act` as this CPU.
    fn on<T>(&self, cpu: u16, act: impl FnOnce() -> T) -> T {
        let me = self.me.replace(cpu);
        let done = act();
        self.me.set(me);
        done
    }

    /// Takes a CPU's interrupt, if possible. Returns whether it did.
    fn answer(&self, cpu: u16) -> bool {
        let state = &self.cpus[usize::from(cpu)];
        if state.masked.get() || !state.pending.take() {
            return false;
        }
        state.masked.set(true);
        self.drain(cpu);
        self.on(cpu, || serve(self.engine.get()));
        state.masked.set(false);
        true
    }
}

// SAFETY: no frame has memory.
unsafe impl Hardware for Machine {
    type Word = HookedWord<Steps>;
    type Broadcasts = NoBroadcasts;

    fn this_cpu(&self) -> CpuId {
        CpuId(self.me.get())
    }
    fn features(&self) -> Features {
        Features {
            tagging: match self.tagged {
                true => Tagging::PerCpu { count: 7 },
                false => Tagging::None,
            },
            broadcast: false,
            full_above: 33,
        }
    }
    fn fence(&self) {
        self.drain(self.me.get());
    }
    fn invalidate(&self, what: Invalidate) {
        self.drain(self.me.get());
        let tlb = &self.cpu().tlb;
        let tag = |tag: Tag| usize::from(if self.tagged { tag.0 } else { 0 });
        match what {
            Invalidate::Range { tag: of, range, .. } => {
                let tlb = &tlb[tag(of)];
                (range.start.0..range.start.0 + range.pages)
                    .for_each(|page| tlb.set(tlb.get() & !(1 << page)));
            }
            Invalidate::Tag(of) => tlb[tag(of)].set(0),
            Invalidate::All | Invalidate::Everything => tlb.iter().for_each(|tlb| tlb.set(0)),
            Invalidate::Kernel { .. } => panic!("there is no space of the kernel"),
        }
        self.fill();
    }
    unsafe fn load_root(&self, root: Frame, tag: Tag, keep: bool) {
        self.drain(self.me.get());
        let tag = usize::from(if self.tagged { tag.0 } else { 0 });
        if !(keep && self.tagged) {
            self.cpu().tlb[tag].set(0);
        }
        self.cpu().root.set(Some((root.0 as usize, tag)));
        self.fill();
    }
    fn unload_root(&self) {
        self.drain(self.me.get());
        self.cpu().root.set(None);
        self.cpu().tlb[0].set(0);
    }
    fn interrupt(&self, targets: &CpuSet) {
        let targets = targets.iter().map(|target| &self.cpus[target.index()]);
        targets.for_each(|target| target.pending.set(true));
    }
    fn mask_interrupts(&self) -> bool {
        !self.cpu().masked.replace(true)
    }
    fn restore_interrupts(&self, were_on: bool) {
        if were_on {
            self.cpu().masked.set(false);
            self.answer(self.me.get());
        }
    }
    fn relax(&self) {
        let others = (0..CPUS as u16).filter(|&cpu| cpu != self.me.get());
        let answered = others.filter(|&cpu| self.answer(cpu)).count();
        if answered == 0 && (self.met.get() || self.stuck.get()) {
            resume_unwind(Box::new(MissingAnswer));
        }
    }
}

type E = &'static Engine<'static, Machine>;
type S = &'static AddressSpace<Machine>;
type B = Batch<'static, S>;

/// The pages of each space, and the one whose flush is deferred.
const PAGES: u64 = 0b1111_1110;
const OWED: u64 = 5;

struct World {
    machine: &'static Machine,
    engine: E,
    x: S,
    y: S,
    /// The deferred flush of the frame of page [`OWED`], which two calls may want.
    deferred_flush: &'static DeferredFlush<Machine>,
    takers: Cell<usize>,
    /// The maximum number of deferred flushes.
    room: usize,
    /// The pages of each root whose frames were reused.
    given_out: [Cell<u64>; 3],
    /// The space that each CPU loaded last.
    last: [Cell<Option<S>>; CPUS],
    /// The actions that follow when both calls have returned.
    rest: RefCell<Vec<FollowUp>>,
}

/// An action and its CPU.
type FollowUp = (u16, Box<dyn FnOnce(&World)>);

impl World {
    fn new(policy: Policy, tagged: bool, entries: usize) -> &'static World {
        let machine = leak(Machine {
            me: Cell::new(0),
            second: Cell::new(SECOND),
            tagged,
            cpus: Default::default(),
            met: Cell::new(false),
            stuck: Cell::new(false),
            tables: Default::default(),
            engine: OnceCell::new(),
        });
        let cpus = leak([PerCpu::new(), PerCpu::new(), PerCpu::new()]);
        let ledger: &[_] = Vec::leak((0..entries).map(|_| LedgerEntry::new()).collect());
        let engine =
            leak(Engine::new(machine, cpus, ledger, policy).expect("a machine that holds"));
        assert!(machine.engine.set(engine).is_ok());
        for cpu in 0..CPUS as u16 {
            machine.on(cpu, || engine.cpu_online());
        }
        machine.tables.iter().for_each(|table| table.set(PAGES));
        // SAFETY: a root is a number on this machine.
        let space = |root| leak(unsafe { engine.new_space(Frame(root)) });
        let world = leak(World {
            machine,
            engine,
            x: space(1),
            y: space(2),
            deferred_flush: leak(DeferredFlush::new()),
            takers: Cell::new(0),
            room: if policy.lazy_unmap { entries } else { 0 },
            given_out: Default::default(),
            last: Default::default(),
            rest: RefCell::default(),
        });
        for cpu in 0..CPUS as u16 {
            machine.on(cpu, || world.go(world.x));
        }
        machine.fill();
        world
    }

    fn go(&self, to: S) {
        let last = &self.last[usize::from(self.machine.me.get())];
        self.engine
            .this_cpu()
            .mask_interrupts()
            .switch(last.replace(Some(to)), to);
    }

    fn go_offline(&self) {
        let last = &self.last[usize::from(self.machine.me.get())];
        self.engine.cpu_offline(last.take());
    }

    fn wake_up(&self) {
        let last = &self.last[usize::from(self.machine.me.get())];
        if !last
            .get()
            .is_some_and(|last| self.engine.this_cpu().resume(last))
        {
            self.go(self.x);
        }
    }

    /// Returns a page of its own for each of the two calls.
    fn page(&self) -> u64 {
        1 + u64::from(self.machine.met.get())
    }

    /// Clears the page's entry and reports it.
    fn unmap(&self, batch: &mut B, space: S, page: u64) {
        let root = space.root().0;
        self.machine.clear(root as usize, page);
        batch.unmapped(space, PageRange::base(Page(page), 1), frame(root, page));
    }

    fn batch(&self, purpose: Purpose) -> &'static mut B {
        leak(self.engine.batch(purpose))
    }

    fn give_out(&self, frames: impl Iterator<Item = Frame>) {
        for Frame(frame) in frames {
            let given_out = &self.given_out[frame as usize / 64];
            given_out.set(given_out.get() | 1 << (frame % 64));
        }
    }

    /// Starts the batch's flush, and polls it once. If it isn't over, we finish it when both calls have returned.
    fn start(&'static self, batch: &'static mut B) {
        let started: &'static mut Option<InFlight<'_, '_, _>> = leak(Some(batch.start()));
        if started.as_mut().expect("it was put there").is_done() {
            self.give_out(started.take().expect("it was put there").finish());
        } else {
            self.later(|world| world.give_out(started.take().expect("it was put there").finish()));
        }
    }

    fn defer(&self, deferred_flush: &DeferredFlush<Machine>, space: S, page: u64) {
        deferred_flush.begin();
        let batch = self.batch(Purpose::Lazy);
        self.unmap(batch, space, page);
        match batch.finish_deferred() {
            Outcome::Deferred(deferred) => {
                deferred_flush.defer(deferred.stamp());
                assert_eq!(deferred.count(), 1);
            }
            Outcome::Flushed(frames) => {
                deferred_flush.clear();
                self.give_out(frames);
            }
        }
    }

    fn flush_before_reuse(&self) {
        if self
            .engine
            .flush_before_reuse(self.deferred_flush)
            .is_some()
        {
            self.takers.set(self.takers.get() + 1);
            self.give_out([frame(1, OWED)].into_iter());
        }
    }

    fn reinstate(&self) {
        if self.deferred_flush.reinstate(self.engine) {
            self.takers.set(self.takers.get() + 1);
            let table = &self.machine.tables[1];
            table.set(table.get() | 1 << OWED);
        }
    }

    fn later(&self, rest: impl FnOnce(&World) + 'static) {
        let me = self.machine.me.get();
        self.rest.borrow_mut().push((me, Box::new(rest)));
    }

    /// Panics if a CPU that may use its space has a page whose frame was reused.
    fn judge(&self, when: &str) {
        for cpu in 0..CPUS as u16 {
            let Some((root, tag)) = self.machine.cpus[usize::from(cpu)].root.get() else {
                continue;
            };
            let space = if root == 1 { self.x } else { self.y };
            if self.machine.on(cpu, || self.engine.this_cpu().runs(space)) {
                let held = self.machine.cpus[usize::from(cpu)].tlb[tag].get();
                let mapped = self.machine.tables[root].get();
                let stale = held & self.given_out[root].get() & !mapped;
                assert_eq!(
                    stale, 0,
                    "CPU {cpu} uses pages whose frames were given out, {when}"
                );
            }
        }
    }

    fn end(&self) {
        self.judge("when both calls have returned");
        loop {
            let rest = self.rest.borrow_mut().pop();
            let Some((cpu, rest)) = rest else {
                break;
            };
            self.machine.on(cpu, || rest(self));
            self.judge("when what they have begun is over");
        }
        self.machine.on(2, || self.flush_before_reuse());
        assert!(self.takers.get() < 2, "a frame has two takers");
        self.judge("when the frame that deferred its flush is reused");
        (0..CPUS as u16).for_each(|cpu| {
            self.machine.answer(cpu);
        });
        for cpu in 0..CPUS as u16 {
            self.machine.on(cpu, || {
                if !self.engine.this_cpu().is_online() {
                    self.engine.cpu_online();
                }
                self.go(self.y);
                self.judge("when each CPU has been to its other space");
                self.go(self.x);
            });
        }
        self.judge("when each CPU has been through its other space and back");
        // No stamp may be left behind, not even a void one.
        for _ in 0..self.room {
            let deferred_flush = DeferredFlush::new();
            self.defer(&deferred_flush, self.x, 3);
            assert!(self.engine.flush_before_reuse(&deferred_flush).is_some());
        }
        self.engine.flush_deferred();
        assert!(
            !self.engine.has_deferred(),
            "a deferred flush is never made"
        );
        // Nothing may stay outstanding.
        for cpu in 0..CPUS as u16 {
            self.machine.on(cpu, || self.engine.flush_pending(self.x));
        }
        assert!(!self.x.is_in_batch(), "a batch is outstanding for ever");
        let interrupts = || self.machine.cpus.iter().any(|cpu| cpu.pending.get());
        self.machine.on(2, || self.engine.flush_pending(self.x));
        assert!(
            !interrupts(),
            "an interrupt is sent for a deferred flush that was made"
        );
    }
}

/// Returns the frame of a page of a root.
fn frame(root: u64, page: u64) -> Frame {
    Frame(root * 64 + page)
}

fn leak<T>(value: T) -> &'static mut T {
    Box::leak(Box::new(value))
}

/// A call of a CPU, and the preparation that makes it possible.
struct Call {
    name: &'static str,
    before: fn(&World),
    act: fn(&'static World),
    /// Set if threads make the call: another one may preempt it on the same CPU, or be preempted by it.
    by_threads: bool,
}

const fn by_scheduler(name: &'static str, before: fn(&World), act: fn(&'static World)) -> Call {
    Call {
        name,
        before,
        act,
        by_threads: false,
    }
}

const fn by_thread(name: &'static str, act: fn(&'static World)) -> Call {
    Call {
        name,
        before: |_| {},
        act,
        by_threads: true,
    }
}

const CALLS: [Call; 23] = [
    by_scheduler(
        "switches to the space",
        |world| world.go(world.y),
        |world| world.go(world.x),
    ),
    by_scheduler(
        "switches to another",
        |world| world.go(world.x),
        |world| world.go(world.y),
    ),
    by_scheduler(
        "catches up and switches to the space",
        |world| world.go(world.y),
        |world| {
            world.engine.this_cpu().catch_up();
            world.go(world.x);
        },
    ),
    by_scheduler(
        "goes idle",
        |_| {},
        |world| world.engine.this_cpu().enter_lazy(),
    ),
    by_scheduler(
        "comes back",
        |world| world.engine.this_cpu().enter_lazy(),
        |world| world.wake_up(),
    ),
    by_scheduler(
        "looks into its inbox",
        |_| {},
        |world| world.engine.this_cpu().mask_interrupts().on_interrupt(),
    ),
    by_scheduler("goes offline", |_| {}, |world| world.go_offline()),
    // A thread that preempts another on the same CPU can't make this call: it would wait for the other.
    by_scheduler(
        "shares a flush of everything",
        |_| {},
        |world| {
            let (page, root) = (world.page(), world.x.root().0);
            world.machine.clear(root as usize, page);
            world.engine.this_cpu().flush_coalesced(world.x);
            world.give_out([frame(root, page)].into_iter());
        },
    ),
    by_scheduler(
        "goes offline, lazily",
        |world| world.engine.this_cpu().enter_lazy(),
        |world| world.go_offline(),
    ),
    by_scheduler(
        "comes online",
        |world| world.go_offline(),
        |world| {
            world.engine.cpu_online();
            world.go(world.x);
        },
    ),
    by_thread("yields to another space and back", |world| {
        let last = world.last[usize::from(world.machine.me.get())].get();
        world.go(world.y);
        world.go(last.unwrap_or(world.x));
    }),
    by_thread("catches up", |world| world.engine.this_cpu().catch_up()),
    by_thread("starts a flush", |world| {
        let batch = world.batch(Purpose::Call);
        world.unmap(batch, world.x, world.page());
        world.start(batch);
    }),
    by_thread("starts a flush of two pages", |world| {
        let batch = world.batch(Purpose::Call);
        world.unmap(batch, world.x, world.page());
        world.unmap(batch, world.x, world.page() + 5);
        world.start(batch);
    }),
    by_thread("flushes two pages, the higher one first", |world| {
        let batch = world.batch(Purpose::Call);
        world.unmap(batch, world.x, world.page() + 5);
        world.unmap(batch, world.x, world.page());
        world.give_out(batch.finish());
    }),
    by_thread("flushes", |world| {
        let batch = world.batch(Purpose::Call);
        world.unmap(batch, world.x, world.page());
        world.give_out(batch.finish());
    }),
    by_thread("flushes two pages for reclaim", |world| {
        let batch = world.batch(Purpose::Reclaim);
        world.unmap(batch, world.x, world.page());
        batch.unlocked();
        world.unmap(batch, world.x, world.page() + 5);
        world.give_out(batch.finish());
    }),
    by_thread("unmaps lazily", |world| {
        let deferred_flush = leak(DeferredFlush::new());
        let page = world.page();
        world.defer(deferred_flush, world.x, page);
        world.later(move |world| {
            if world.engine.flush_before_reuse(deferred_flush).is_some() {
                world.give_out([frame(1, page)].into_iter());
            }
        });
    }),
    by_thread("unmaps lazily and reuses", |world| {
        let deferred_flush = leak(DeferredFlush::new());
        let page = world.page();
        world.defer(deferred_flush, world.x, page);
        if world.engine.flush_before_reuse(deferred_flush).is_some() {
            world.give_out([frame(1, page)].into_iter());
        }
    }),
    by_thread(
        "unmaps a page of the other space lazily and reuses",
        |world| {
            let deferred_flush = leak(DeferredFlush::new());
            let page = world.page();
            world.defer(deferred_flush, world.y, page);
            if world.engine.flush_before_reuse(deferred_flush).is_some() {
                world.give_out([frame(2, page)].into_iter());
            }
        },
    ),
    by_thread("flushes what is pending in the space", |world| {
        world.engine.flush_pending(world.x)
    }),
    by_thread("makes every deferred flush", |world| {
        world.engine.flush_deferred()
    }),
    by_thread("reuses or reinstates the frame", |world| {
        if world.machine.met.get() {
            world.flush_before_reuse();
        } else {
            world.reinstate();
        }
    }),
];

/// The start of a meeting.
#[derive(Clone, Copy)]
struct MeetingSetup {
    policy: Policy,
    tagged: bool,
    /// The maximum number of deferred flushes.
    entries: usize,
    /// Set if the flush of a page of the space is deferred.
    deferring: bool,
    /// Set if the other CPUs run the other space.
    alone: bool,
    /// Set if the second call comes on the same CPU.
    same: bool,
}

/// The outcome of a meeting.
#[derive(PartialEq)]
enum MeetingOutcome {
    /// The second call has run to its end.
    Whole,
    /// The second call needs an answer that it can't get.
    Stuck,
    /// The first call has fewer steps.
    Not,
}

fn meet(start: MeetingSetup, first: &Call, second: &'static Call, steps: usize) -> MeetingOutcome {
    let world = World::new(start.policy, start.tagged, start.entries);
    let machine = world.machine;
    if start.deferring {
        machine.on(2, || world.defer(world.deferred_flush, world.x, OWED));
    }
    if start.alone {
        [0, 2]
            .into_iter()
            .for_each(|cpu| machine.on(cpu, || world.go(world.y)));
    }
    machine.on(FIRST, || (first.before)(world));
    if start.same {
        machine.second.set(FIRST);
    }
    machine.on(machine.second.get(), || (second.before)(world));
    STEPS_LEFT.set(Some(steps));
    SECOND_CALL.set(Some(Box::new(move || {
        let me = machine.me.get();
        machine.met.set(true);
        let done = catch_unwind(AssertUnwindSafe(|| {
            machine.on(machine.second.get(), || (second.act)(world))
        }));
        machine.met.set(false);
        machine.me.set(me);
        if let Err(why) = done {
            match why.is::<MissingAnswer>() {
                // The rest is no meeting, so we don't judge it.
                true => machine.stuck.set(true),
                false => resume_unwind(why),
            }
        }
    })));
    MACHINE.set(Some(machine));
    // A stuck call may hold what the first one waits for, so we end the first call there, too.
    let unwinds = catch_unwind(AssertUnwindSafe(|| {
        machine.on(FIRST, || (first.act)(world));
    }));
    MACHINE.set(None);
    (0..CPUS as u16).for_each(|cpu| machine.drain(cpu));
    let met = STEPS_LEFT.take().is_none();
    SECOND_CALL.set(None);
    if machine.stuck.get() {
        return MeetingOutcome::Stuck;
    }
    if let Err(why) = unwinds {
        resume_unwind(why);
    }
    if !met {
        return MeetingOutcome::Not;
    }
    let contended = world.engine.stats().get(Counter::EscalatedContention);
    CONTENDED.set(CONTENDED.get() + contended);
    world.end();
    MeetingOutcome::Whole
}

/// Runs all meetings with this start.
fn meet_everywhere(how: &str, start: MeetingSetup) {
    let (mut whole, mut stuck) = (0, 0);
    let takes_part = |call: &&Call| call.by_threads || !start.same;
    for first in CALLS.iter().filter(takes_part) {
        for second in CALLS.iter().filter(takes_part) {
            for steps in 0.. {
                assert!(steps < 10_000, "{} does not end", first.name);
                let met = catch_unwind(|| meet(start, first, second, steps));
                let met = met.unwrap_or_else(|why| {
                    eprintln!(
                        "{how}: CPU 1 {}; after {steps} steps {} {}",
                        first.name,
                        if start.same { "the same" } else { "CPU 0" },
                        second.name
                    );
                    resume_unwind(why)
                });
                match met {
                    MeetingOutcome::Whole => whole += 1,
                    MeetingOutcome::Stuck => stuck += 1,
                    MeetingOutcome::Not => break,
                }
            }
        }
    }
    println!("{how}: {whole} meetings, {stuck} that cannot be");
    assert!(
        CONTENDED.take() > 0 || start.alone || start.same,
        "an initiator that finds another one writing into an inbox counts that"
    );
    assert!(whole > stuck, "most meetings are possible");
}

fn meet_under(how: &str, policy: Policy, tagged: bool, entries: usize) {
    for (deferring, alone, same) in [
        (true, false, false),
        (false, false, false),
        (true, true, false),
        (false, true, false),
        (true, false, true),
        (false, true, true),
    ] {
        let start = MeetingSetup {
            policy,
            tagged,
            entries,
            deferring: deferring && policy.lazy_unmap,
            alone,
            same,
        };
        meet_everywhere(how, start);
    }
}

#[test]
fn with_everything() {
    meet_under("with everything", Policy::ALL, true, 4);
}

#[test]
fn without_tags() {
    meet_under("without tags", Policy::ALL, false, 4);
}

#[test]
#[ignore = "seconds, as its like take: `cargo xtask ci large`"]
fn with_one_place_in_the_ledger() {
    meet_under("with one place in the ledger", Policy::ALL, true, 1);
}

#[test]
fn with_nothing() {
    meet_under("with nothing", Policy::BASELINE, true, 0);
}

#[test]
#[ignore = "seconds, as its like take: `cargo xtask ci large`"]
fn with_one_tag_and_outboxes() {
    let policy = Policy {
        tags: TagPolicy::Slots(1),
        inline_requests: false,
        ..Policy::ALL
    };
    meet_under("with one tag and outboxes", policy, true, 4);
}

#[test]
#[ignore = "seconds, as its like take: `cargo xtask ci large`"]
fn with_waits_for_the_end() {
    let policy = Policy {
        asynchronous: false,
        concurrent: false,
        ..Policy::ALL
    };
    meet_under("with waits for the end", policy, true, 4);
}

/// inbox.rs: an outbox is free once all targets of its flush have flushed. Here one target hasn't when a thread
/// preempts the initiator, and that thread flushes twice for a third CPU.
#[test]
fn an_outbox_is_kept_for_the_flush_that_was_preempted() {
    const PREEMPTING: Call = Call {
        name: "flushes the other space twice, while CPU 0 is deaf",
        before: |world| {
            world.machine.on(0, || world.go(world.x));
            world.machine.on(2, || world.go(world.y));
        },
        act: |world| {
            let deaf = &world.machine.cpus[0].masked;
            let was = deaf.replace(true);
            for page in [2, 7] {
                let batch = world.batch(Purpose::Call);
                world.unmap(batch, world.y, page);
                world.give_out(batch.finish());
            }
            deaf.set(was);
        },
        by_threads: true,
    };
    let start = MeetingSetup {
        policy: Policy {
            inline_requests: false,
            ..Policy::ALL
        },
        tagged: true,
        entries: 4,
        deferring: false,
        alone: false,
        same: true,
    };
    let flushes = CALLS.iter().find(|call| call.name == "flushes");
    let mut whole = 0;
    for steps in 0.. {
        match meet(start, flushes.expect("a call"), &PREEMPTING, steps) {
            MeetingOutcome::Whole => whole += 1,
            MeetingOutcome::Stuck => {}
            MeetingOutcome::Not => break,
        }
    }
    assert!(whole > 20, "{whole} meetings");
}

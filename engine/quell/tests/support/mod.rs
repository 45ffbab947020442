//! A machine of two CPUs that does nothing by itself: one thread is each of them in turn, and what was asked of the
//! machine can be read.
#![allow(dead_code)] // Each test uses a part.

pub mod any;
pub mod word;

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

use quell::{
    AddressSpace, Broadcast, CoalescedFlushes, CpuId, CpuSet, DeferredFlush, Engine, Features,
    Frame, Hardware, Invalidate, KernelEntries, LedgerEntry, Outcome, Page, PageRange, PerCpu,
    Policy, Purpose, Scope, Tag, Tagging,
};

#[derive(Default)]
pub struct Machine {
    pub me: Cell<u16>,
    pub pending: [Cell<bool>; 2],
    pub interrupts: Cell<usize>,
    pub limit: Cell<usize>,
    pub invalidated: RefCell<Vec<(u16, Invalidate)>>,
    /// Comes in the middle of the next invalidation.
    pub nmi: RefCell<Option<fn(E)>>,
    pub kept: RefCell<Vec<bool>>,
    /// What other users of tables were told: a root, or `None` where it was asked whether they are done.
    pub secondary: RefCell<Vec<Option<u64>>>,
    /// They are asked so many times before they are done.
    pub busy: Cell<usize>,
    /// So many turns of waiting are left; 0 is no bound.
    pub patience: Cell<usize>,
    /// The tag of the root that was loaded last.
    pub tag: Cell<u16>,
    pub asked: Cell<usize>,
    /// How often a CPU has told of an answer to a flush in flight.
    pub answers: Cell<usize>,
    pub forbidden: Cell<bool>,
    /// What an NMI is told that comes right after a root was left.
    pub nmis: RefCell<Vec<bool>>,
    /// What an NMI is told that comes as a root is loaded.
    pub nmis_at_load: RefCell<Vec<bool>>,
    /// Whether interrupts are masked.
    pub masked: Cell<bool>,
    /// The CPUs that have forgotten what they have fetched.
    pub synchronized: RefCell<Vec<u16>>,
    pub global: bool,
    /// Whether it has no tags, whatever it broadcasts.
    pub untagged: bool,
    /// Whether it says that it broadcasts, and does not say how.
    pub mute: bool,
    /// How many tags each CPU has, or 6 if it is 0.
    pub tags: u16,
    /// [`Features::full_above`], or 33 if it is 0.
    pub full_above: u64,
    pub broadcast: Broadcasts,
    /// What it does not do as it must.
    pub breach: Cell<Option<Breach>>,
    /// The space of which a handler shares a flush.
    pub joins: Cell<Option<(S, &'static CoalescedFlushes<Machine>)>>,
    pub engine: OnceCell<&'static Engine<'static, Machine>>,
}
// SAFETY: each test has its machine to itself, on one thread.
unsafe impl Sync for Machine {}

/// A duty of the machine's, not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Breach {
    /// A thread that waits goes on elsewhere.
    MovesAsItWaits,
    /// A thread that lets interrupts in goes on elsewhere.
    MovesAsInterruptsComeOn,
    /// The features are others than before.
    FeaturesChange,
    /// Interrupts are let in while a root is loaded.
    InterruptsTheSwitch,
    /// A device goes on with a space that ends.
    DeviceStays,
    /// An interrupt handler that comes as a CPU waits shares the flush that it has interrupted.
    HandlerJoins,
}

/// What was broadcast, and with `None` where the end of it was waited for.
#[derive(Default)]
pub struct Broadcasts(pub RefCell<Vec<Option<Invalidate>>>);
// SAFETY: each test has its machine to itself, on one thread.
unsafe impl Sync for Broadcasts {}
impl Broadcast for Broadcasts {
    fn start(&self, what: Invalidate) {
        self.0.borrow_mut().push(Some(what));
    }
    fn complete(&self) {
        self.0.borrow_mut().push(None);
    }
}

// SAFETY: no memory is behind any frame: what a flush of this machine leaves behind harms nothing.
unsafe impl Hardware for Machine {
    type Word = AtomicU64;
    type Broadcasts = Broadcasts;
    const HAS_SECONDARY: bool = true;

    fn this_cpu(&self) -> CpuId {
        CpuId(self.me.get())
    }
    fn features(&self) -> Features {
        let full_above = if self.breach.get() == Some(Breach::FeaturesChange) {
            1
        } else if self.full_above == 0 {
            33
        } else {
            self.full_above
        };
        let count = if self.tags == 0 { 6 } else { self.tags };
        let tagging = match (self.untagged, self.global) {
            (true, _) => Tagging::None,
            (false, true) => Tagging::Global { bits: 8 },
            (false, false) => Tagging::PerCpu { count },
        };
        Features {
            tagging,
            broadcast: self.global,
            full_above,
        }
    }
    fn broadcasts(&self) -> Option<&Broadcasts> {
        (self.global && !self.mute).then_some(&self.broadcast)
    }
    fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
    fn invalidate(&self, what: Invalidate) {
        if let Some(nmi) = self.nmi.take() {
            nmi(self.engine.get().expect("an engine"));
        }
        self.invalidated.borrow_mut().push((self.me.get(), what));
    }
    unsafe fn load_root(&self, _root: Frame, tag: Tag, keep: bool) {
        self.tag.set(tag.0);
        if self.breach.get() == Some(Breach::InterruptsTheSwitch) {
            serve(self.engine.get());
        }
        if let Some(engine) = self.engine.get() {
            self.nmis_at_load
                .borrow_mut()
                .push(engine.this_cpu().user_access_allowed());
        }
        self.kept.borrow_mut().push(keep);
    }
    fn unload_root(&self) {
        if let Some(engine) = self.engine.get() {
            self.nmis
                .borrow_mut()
                .push(engine.this_cpu().user_access_allowed());
        }
    }
    fn start_secondary(&self, root: Frame, _range: Option<PageRange>, _scope: Scope) {
        self.secondary.borrow_mut().push(Some(root.0));
    }
    fn mark_secondary(&self) -> u64 {
        let told = self.secondary.borrow();
        told.iter().filter(|told| told.is_some()).count() as u64
    }
    fn secondary_is_done(&self, mark: u64) -> bool {
        assert!(mark <= self.mark_secondary());
        self.secondary.borrow_mut().push(None);
        let busy = self.busy.get();
        self.busy.set(busy.saturating_sub(1));
        busy == 0
    }
    fn secondary_is_attached(&self, _root: Frame) -> bool {
        self.breach.get() == Some(Breach::DeviceStays)
    }
    fn synchronize_text(&self) {
        self.synchronized.borrow_mut().push(self.me.get());
    }
    fn interrupt(&self, targets: &CpuSet) {
        self.interrupts.set(self.interrupts.get() + 1);
        assert!(
            self.limit.get() == 0 || self.interrupts.get() < self.limit.get(),
            "{} interrupts sent, and no end",
            self.interrupts.get()
        );
        let other = 1 - self.me.get();
        assert!(targets.contains(CpuId(other)) && targets.len() == 1);
        self.pending[usize::from(other)].set(true);
    }
    fn mask_interrupts(&self) -> bool {
        !self.masked.replace(true)
    }
    fn restore_interrupts(&self, were_on: bool) {
        self.masked.set(!were_on);
        if self.breach.get() == Some(Breach::MovesAsInterruptsComeOn) && were_on {
            self.me.set(1 - self.me.get());
        }
    }
    fn relax(&self) {
        if self.patience.get() > 0 {
            self.patience.set(self.patience.get() - 1);
            assert_ne!(self.patience.get(), 0, "a wait without end");
        }
        let other = 1 - self.me.get();
        if self.pending[usize::from(other)].take() {
            let me = self.me.replace(other);
            serve(self.engine.get());
            self.me.set(me);
        }
        if self.breach.get() == Some(Breach::HandlerJoins)
            && let Some((space, coalesced)) = self.joins.get()
        {
            let engine = self.engine.get().expect("an engine");
            engine.this_cpu().flush_coalesced(space, coalesced);
        }
        if self.breach.get() == Some(Breach::MovesAsItWaits) {
            self.me.set(other);
        }
    }
    fn flush_answered(&self) {
        self.answers.set(self.answers.get() + 1);
    }
    fn may_wait(&self) -> bool {
        self.asked.set(self.asked.get() + 1);
        !self.forbidden.get()
    }
}

/// Handles a shootdown interrupt on the CPU that executes the call.
pub fn serve<H: Hardware>(engine: Option<&&Engine<'_, H>>) {
    let engine = engine.expect("an engine");
    engine.this_cpu().mask_interrupts().on_interrupt();
}

/// Keeps a value for as long as the test runs.
pub fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

pub type E = &'static Engine<'static, Machine>;
pub type S = &'static AddressSpace<Machine>;

impl Machine {
    /// Makes a machine that broadcasts invalidations, or one that does not.
    pub fn new(global: bool) -> Self {
        Machine {
            global,
            ..Machine::default()
        }
    }

    /// Does something on this CPU, and goes on as CPU 0.
    pub fn on<T>(&self, cpu: u16, action: impl FnOnce() -> T) -> T {
        self.me.set(cpu);
        let result = action();
        self.me.set(0);
        result
    }

    /// Returns the CPU of each invalidation since the record was cleared.
    pub fn flushed_on(&self) -> Vec<u16> {
        let invalidated = self.invalidated.borrow();
        invalidated.iter().map(|(cpu, _)| *cpu).collect()
    }
}

pub fn world(machine: Machine, policy: Policy) -> (&'static Machine, E) {
    world_of(machine, policy, [PerCpu::new(), PerCpu::new()], 4)
}

/// With these CPUs, and so many entries in the ledger.
pub fn world_of(
    machine: Machine,
    policy: Policy,
    cpus: [PerCpu<'static, Machine>; 2],
    entries: usize,
) -> (&'static Machine, E) {
    let machine = leak(machine);
    let cpus = leak(cpus);
    let ledger: &[_] = Vec::leak((0..entries).map(|_| LedgerEntry::new()).collect());
    let engine = leak(Engine::new(machine, cpus, ledger, policy).expect("a machine that holds"));
    assert!(machine.engine.set(engine).is_ok());
    for cpu in [1, 0] {
        machine.me.set(cpu);
        engine.cpu_online();
    }
    (machine, engine)
}

pub fn space(engine: E, root: u64) -> S {
    // SAFETY: a root is a number on this machine.
    leak(unsafe { engine.new_space(Frame(root)) })
}

pub fn run_on_both(machine: &Machine, engine: E, space: S) {
    for cpu in [1, 0] {
        machine.me.set(cpu);
        engine.this_cpu().mask_interrupts().switch(None, space);
    }
}

/// Makes a machine and two spaces.
pub fn two(machine: Machine, policy: Policy) -> (&'static Machine, E, [S; 2]) {
    let (machine, engine) = world(machine, policy);
    (machine, engine, [1, 2].map(|root| space(engine, root)))
}

/// Makes a machine whose two CPUs run the same space, with everything on.
pub fn both() -> (&'static Machine, E, S) {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    (machine, engine, x)
}

pub fn kernel_space(engine: E, entries: KernelEntries) -> S {
    // SAFETY: a root is a number on this machine, and no memory is behind any frame.
    leak(unsafe { engine.new_kernel_space(Frame(9), entries) })
}

pub fn switch(engine: E, from: Option<S>, to: S) {
    engine.this_cpu().mask_interrupts().switch(from, to);
}

/// One base page.
pub const fn one(page: u64) -> PageRange {
    PageRange::base(Page(page), 1)
}

/// Unmaps one page in a batch of its own.
pub fn unmap(engine: E, space: S, page: u64) {
    let mut batch = engine.batch(Purpose::Call);
    batch.unmapped(space, one(page), Frame(page));
    assert!(batch.finish().eq([Frame(page)]));
}

/// Unmaps one page, and defers its flush.
pub fn defer(engine: E, space: S, page: u64) -> DeferredFlush<Machine> {
    let deferred_flush = DeferredFlush::new();
    deferred_flush.begin();
    let mut batch = engine.batch(Purpose::Lazy);
    batch.unmapped(space, one(page), Frame(page));
    match batch.finish_deferred() {
        Outcome::Deferred(deferred) => deferred_flush.defer(deferred.stamp()),
        Outcome::Flushed(_) => panic!("there is room in the ledger"),
    }
    deferred_flush
}

/// Returns the text of a panic.
pub fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .expect("a text")
}

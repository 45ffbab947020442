//! A machine of two CPUs that does nothing by itself. One thread runs each CPU in turn, and the machine records its
//! calls.
#![allow(dead_code)] // Each test uses a part.

pub mod any;

use std::cell::{Cell, OnceCell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use quell::{
    AddressSpace, Batch, Broadcast, CpuId, CpuSet, DeferredFlush, Engine, Features, Frame,
    FrameArray, Hardware, Invalidation, KernelEntries, LedgerEntry, Outcome, Page, PageRange,
    PerCpuAddress, PerCpuData, Policy, Purpose, Scope, Tag, Tagging,
};

#[derive(Default)]
pub struct Machine {
    pub me: Cell<u16>,
    pub pending: [Cell<bool>; 2],
    pub interrupts: Cell<usize>,
    pub limit: Cell<usize>,
    pub invalidated: RefCell<Vec<(u16, Invalidation)>>,
    /// An NMI handler, called in the middle of the next invalidation.
    pub nmi: RefCell<Option<fn(E)>>,
    pub kept: RefCell<Vec<bool>>,
    /// The calls for devices: the root of an invalidation, or `None` for a check whether they're done.
    pub secondary: RefCell<Vec<Option<u64>>>,
    /// The number of checks before devices are done.
    pub busy: Cell<usize>,
    /// The number of waiting turns left; 0 is no bound.
    pub patience: Cell<usize>,
    /// The tag of the root that was loaded last.
    pub tag: Cell<u16>,
    pub asked: Cell<usize>,
    /// The number of answers reported to a flush in flight.
    pub answers: Cell<usize>,
    /// Set if the next `may_wait` returns `false`.
    pub forbidden: Cell<bool>,
    /// The number of turns before the other CPU takes its interrupt.
    pub deaf_for: Cell<u64>,
    /// The reports of long waits: the target, the turns, and what is left of `deaf_for`.
    pub long_waits: RefCell<Vec<(CpuId, u64, u64)>>,
    /// Set if CPU 1 goes offline at the next report of a long wait.
    pub goes_at_last: Cell<bool>,
    /// Set if the hypervisor doesn't run CPU 1, and flushes it before it does.
    pub preempted: Cell<bool>,
    /// The states of CPUs, if the machine keeps them.
    pub places: RefCell<Vec<&'static PerCpuData<'static, Machine>>>,
    /// The results of `user_access_allowed` for NMIs right after a root was left.
    pub nmis: RefCell<Vec<bool>>,
    /// The results of `user_access_allowed` for NMIs while a root is loaded.
    pub nmis_at_load: RefCell<Vec<bool>>,
    /// Set while interrupts are masked.
    pub masked: Cell<bool>,
    /// The CPUs that have dropped their fetched instructions.
    pub synchronized: RefCell<Vec<u16>>,
    pub global: bool,
    /// Set if the machine has no tags, even if it broadcasts.
    pub untagged: bool,
    /// Set if its features include broadcasts but it returns none.
    pub mute: bool,
    /// The number of tags of each CPU; 0 means 6.
    pub tags: u16,
    /// [`Features::full_above`]; 0 means 33.
    pub full_above: u64,
    pub broadcast: Broadcasts,
    /// The duty that the machine breaches, if any.
    pub breach: Cell<Option<Breach>>,
    pub engine: OnceCell<&'static Engine<'static, Machine>>,
}
// SAFETY: each test has its machine to itself, on one thread.
unsafe impl Sync for Machine {}

/// A duty that the machine breaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Breach {
    /// A thread that waits continues on another CPU.
    MovesAsItWaits,
    /// A thread that unmasks interrupts continues on another CPU.
    MovesAsInterruptsComeOn,
    /// The features have changed.
    FeaturesChange,
    /// An interrupt comes while a root is loaded.
    InterruptsTheSwitch,
    /// A device keeps using a space that ends.
    DeviceStays,
}

/// The broadcasts, with `None` for each wait for completion.
#[derive(Default)]
pub struct Broadcasts(pub RefCell<Vec<Option<Invalidation>>>);
// SAFETY: each test has its machine to itself, on one thread.
unsafe impl Sync for Broadcasts {}
impl Broadcast for Broadcasts {
    fn start(&self, what: Invalidation) {
        self.0.borrow_mut().push(Some(what));
    }
    fn complete(&self) {
        self.0.borrow_mut().push(None);
    }
}

// SAFETY: no frame has memory, so a stale translation of this machine is harmless.
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
        Features { tagging, broadcast: self.global, full_above }
    }
    fn broadcasts(&self) -> Option<&Broadcasts> {
        (self.global && !self.mute).then_some(&self.broadcast)
    }
    fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
    fn invalidate(&self, what: Invalidation) {
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
            self.nmis_at_load.borrow_mut().push(engine.this_cpu().user_access_allowed());
        }
        self.kept.borrow_mut().push(keep);
    }
    fn unload_root(&self) {
        if let Some(engine) = self.engine.get() {
            self.nmis.borrow_mut().push(engine.this_cpu().user_access_allowed());
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
    fn per_cpu(&self, cpu: CpuId) -> Option<PerCpuAddress<Self>> {
        Some(self.places.borrow().get(cpu.index())?.address())
    }
    fn flush_on_reentry(&self, target: CpuId) -> bool {
        target == CpuId(1) && self.preempted.get()
    }
    fn waits_long(&self, target: CpuId, turns: u64) {
        let report = (target, turns, self.deaf_for.get());
        self.long_waits.borrow_mut().push(report);
        if self.goes_at_last.take() {
            self.on(1, || self.engine.get().expect("an engine").cpu_offline(None));
        }
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
        if self.deaf_for.get() > 0 {
            self.deaf_for.set(self.deaf_for.get() - 1);
        } else if self.pending[usize::from(other)].take() {
            let me = self.me.replace(other);
            serve(self.engine.get());
            self.me.set(me);
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
        !self.forbidden.take()
    }
}

/// Handles a shootdown interrupt on the CPU that executes the call.
pub fn serve<H: Hardware>(engine: Option<&&Engine<'_, H>>) {
    let engine = engine.expect("an engine");
    engine.this_cpu().mask_interrupts().on_interrupt();
}

/// Leaks a value, so that it lives as long as the test.
pub fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

pub type E = &'static Engine<'static, Machine>;
pub type S = &'static AddressSpace<Machine>;

impl Machine {
    /// Makes a machine that broadcasts invalidations if `global` is set.
    pub fn new(global: bool) -> Self {
        Machine { global, ..Machine::default() }
    }

    /// Runs `action` on a CPU, then continues as CPU 0.
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

    /// Returns whether a CPU has made such an invalidation since the record was cleared.
    pub fn flushed(&self, cpu: u16, such: fn(&Invalidation) -> bool) -> bool {
        let invalidated = self.invalidated.borrow();
        invalidated.iter().any(|(by, what)| *by == cpu && such(what))
    }
}

pub fn world(machine: Machine, policy: Policy) -> (&'static Machine, E) {
    world_of(machine, policy, [PerCpuData::new(), PerCpuData::new()], 4)
}

/// Makes a machine with these CPUs, and an engine with this number of ledger entries.
pub fn world_of(
    machine: Machine,
    policy: Policy,
    cpus: [PerCpuData<'static, Machine>; 2],
    entries: usize,
) -> (&'static Machine, E) {
    let machine = leak(machine);
    let cpus = leak(cpus);
    let ledger: &[_] = Vec::leak((0..entries).map(|_| LedgerEntry::new()).collect());
    let engine = leak(Engine::new(machine, cpus, ledger, policy).expect("a machine that holds"));
    begin(machine, engine);
    (machine, engine)
}

/// Brings the CPUs online.
pub fn begin(machine: &'static Machine, engine: E) {
    assert!(machine.engine.set(engine).is_ok());
    for cpu in [1, 0] {
        machine.on(cpu, || engine.cpu_online());
    }
}

pub fn space<H: Hardware>(
    engine: &'static Engine<'static, H>,
    root: u64,
) -> &'static AddressSpace<H> {
    // SAFETY: a root is a number on this machine.
    leak(unsafe { engine.new_space(Frame(root)) })
}

pub fn run_on_both(machine: &Machine, engine: E, space: S) {
    for cpu in [1, 0] {
        machine.on(cpu, || switch(engine, None, space));
    }
}

/// Makes a machine and two spaces.
pub fn two(machine: Machine, policy: Policy) -> (&'static Machine, E, [S; 2]) {
    let (machine, engine) = world(machine, policy);
    (machine, engine, [1, 2].map(|root| space(engine, root)))
}

/// Makes a machine whose two CPUs run the same space, with everything on.
pub fn both() -> (&'static Machine, E, S) {
    both_of(Machine::default(), Policy::ALL)
}

/// Makes a world whose two CPUs run the same space.
pub fn both_of(machine: Machine, policy: Policy) -> (&'static Machine, E, S) {
    let (machine, engine) = world(machine, policy);
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    (machine, engine, x)
}

/// Makes a machine with everything on, whose CPU 0 alone runs a space.
pub fn alone() -> (&'static Machine, E, S) {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    switch(engine, None, x);
    (machine, engine, x)
}

pub fn kernel_space(engine: E, entries: KernelEntries) -> S {
    // SAFETY: a root is a number on this machine, and no memory is behind any frame.
    leak(unsafe { engine.new_kernel_space(Frame(9), entries) })
}

pub fn switch<H: Hardware>(
    engine: &Engine<'_, H>,
    from: Option<&AddressSpace<H>>,
    to: &AddressSpace<H>,
) {
    engine.this_cpu().mask_interrupts().switch(from, to);
}

/// Returns the range of one base page.
pub const fn one(page: u64) -> PageRange {
    PageRange::base(Page(page), 1)
}

/// A page of the kernel.
pub const KERNEL_PAGE: u64 = 0x7_ffff_f000;

/// Makes a batch with one unmapped page.
pub fn unmapping(engine: E, purpose: Purpose, space: S, page: u64) -> Batch<'static, S> {
    let mut batch = engine.batch(purpose);
    batch.unmapped(space, one(page), Frame(page));
    batch
}

/// Unmaps one page in a batch of its own.
pub fn unmap(engine: E, space: S, page: u64) {
    let mut batch = unmapping(engine, Purpose::Call, space, page);
    assert!(batch.finish().eq([Frame(page)]));
}

/// Unmaps one page, and defers its flush.
pub fn defer(engine: E, space: S, page: u64) -> DeferredFlush<Machine> {
    let deferred_flush = DeferredFlush::new();
    deferred_flush.begin();
    match unmapping(engine, Purpose::Lazy, space, page).finish_deferred() {
        Outcome::Deferred(deferred) => deferred_flush.defer(deferred.stamp()),
        Outcome::Flushed(_) => panic!("there is room in the ledger"),
    }
    deferred_flush
}

/// A batch with a place for one space: a second space has none.
pub type SmallBatch = Batch<'static, S, FrameArray<Frame>, 1>;

pub fn small(engine: E, purpose: Purpose) -> SmallBatch {
    engine.batch_of_spaces(purpose, FrameArray::new())
}

/// Makes CPU 1 take its interrupt.
pub fn answer(machine: &Machine, engine: E) {
    assert!(machine.pending[1].take(), "CPU 1 is interrupted");
    machine.on(1, || serve(Some(&engine)));
}

/// Returns the text of the call's panic, or `None` if it returns.
pub fn panic_of(call: impl FnOnce()) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(call)).err()?;
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
}

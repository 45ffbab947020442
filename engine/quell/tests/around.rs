//! The engine's calls into the kernel that embeds it: may it wait, which flushes are answered, which waits are long,
//! where is a CPU's state, which devices use the tables, and which virtual CPUs aren't running.
//!
//! One thread runs each of the two CPUs in turn: the target handles its interrupt while the initiator waits. The file
//! is long because one machine supports all these tests.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::serve;
use quell::{
    AddressSpace, Counter, CpuId, CpuSet, DeferredFlush, Engine, Features, Frame, Hardware,
    Invalidate, KernelEntries, LedgerEntry, NoBroadcasts, Outcome, Page, PageRange, PerCpu,
    PlaceOf, Policy, Purpose, Scope, Tag, Tagging, Unsupported,
};

type Cpu = PerCpu<'static, Machine>;

#[derive(Default)]
struct Machine {
    me: Cell<u16>,
    /// Set if CPU 1 has an interrupt that it hasn't taken.
    pending: Cell<bool>,
    interrupts: Cell<usize>,
    /// Set if the next `may_wait` returns `false`.
    forbids_one_wait: Cell<bool>,
    /// The number of turns before CPU 1 takes its interrupt.
    deaf_for: Cell<u64>,
    /// Set if CPU 1 leaves the engine (`cpu_offline`) at the next report of a long wait.
    goes_at_last: Cell<bool>,
    /// The reports of long waits: target, turns, and the turns that were really over.
    long_waits: RefCell<Vec<(CpuId, u64, u64)>>,
    answers: Cell<usize>,
    places: RefCell<Vec<&'static Cpu>>,
    /// The pages that devices have cached.
    device: RefCell<Vec<Page>>,
    starting: RefCell<Vec<Option<PageRange>>>,
    /// The number of started invalidations that are complete.
    done: Cell<usize>,
    /// The number of checks before devices are done.
    busy: Cell<usize>,
    preempted: Cell<bool>,
    flushed_on_reentry: Cell<bool>,
    engine: OnceLock<&'static Engine<'static, Machine>>,
}

// SAFETY: each test has one thread, and a machine of its own.
unsafe impl Sync for Machine {}
// SAFETY: each test has one thread, and a machine of its own.
unsafe impl Send for Machine {}

impl Machine {
    fn answer(&self) {
        if self.pending.take() {
            let me = self.me.replace(1);
            serve(self.engine.get());
            self.me.set(me);
        }
    }
}

// SAFETY: there's one thread, which keeps no translations.
unsafe impl Hardware for Machine {
    const HAS_SECONDARY: bool = true;
    type Word = AtomicU64;
    type Broadcasts = NoBroadcasts;

    fn this_cpu(&self) -> CpuId {
        CpuId(self.me.get())
    }
    fn features(&self) -> Features {
        Features {
            tagging: Tagging::None,
            broadcast: false,
            full_above: 33,
        }
    }
    fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
    fn invalidate(&self, _what: Invalidate) {}
    unsafe fn load_root(&self, _root: Frame, _tag: Tag, _keep: bool) {}
    fn unload_root(&self) {}
    fn interrupt(&self, targets: &CpuSet) {
        assert!(targets.iter().eq([CpuId(1)]));
        self.interrupts.set(self.interrupts.get() + 1);
        assert!(
            self.interrupts.get() < DEAF as usize,
            "no end of interrupts"
        );
        self.pending.set(true);
    }
    fn mask_interrupts(&self) -> bool {
        false
    }
    fn restore_interrupts(&self, _were_on: bool) {}
    fn relax(&self) {
        match self.deaf_for.get() {
            0 => self.answer(),
            turns => self.deaf_for.set(turns - 1),
        }
    }
    fn synchronize_text(&self) {}
    fn per_cpu(&self, cpu: CpuId) -> Option<PlaceOf<Self>> {
        Some(self.places.borrow().get(cpu.index())?.place())
    }
    fn may_wait(&self) -> bool {
        !self.forbids_one_wait.take()
    }
    fn flush_answered(&self) {
        self.answers.set(self.answers.get() + 1);
    }
    fn waits_long(&self, target: CpuId, turns: u64) {
        let over = DEAF - self.deaf_for.get();
        self.long_waits.borrow_mut().push((target, turns, over));
        if self.goes_at_last.take() {
            let me = self.me.replace(1);
            self.engine.get().expect("an engine").cpu_offline(None);
            self.me.set(me);
        }
    }
    fn flush_on_reentry(&self, target: CpuId) -> bool {
        let defers = target == CpuId(1) && self.preempted.get();
        self.flushed_on_reentry
            .set(self.flushed_on_reentry.get() || defers);
        defers
    }
    fn start_secondary(&self, root: Frame, range: Option<PageRange>, _scope: Scope) {
        assert_eq!(root, Frame(1));
        self.starting.borrow_mut().push(range);
    }
    fn mark_secondary(&self) -> u64 {
        self.starting.borrow().len() as u64
    }
    fn secondary_is_done(&self, mark: u64) -> bool {
        if self.busy.get() > 0 {
            self.busy.set(self.busy.get() - 1);
            return false;
        }
        // Complete only the invalidations that the mark covers.
        let done = self.done.replace(self.done.get().max(mark as usize));
        for range in &self.starting.borrow()[done..self.done.get()] {
            let covers = |page: Page| range.is_none_or(|range| range.contains(page));
            self.device.borrow_mut().retain(|&page| !covers(page));
        }
        true
    }
}

type E = Engine<'static, Machine>;

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// Makes a machine whose CPUs both run one space.
fn both_run(policy: Policy) -> (&'static Machine, &'static E, &'static AddressSpace<Machine>) {
    let machine = leak(Machine::default());
    let cpus = leak([PerCpu::new(), PerCpu::new()]);
    let ledger = leak([(); 4].map(|()| LedgerEntry::new()));
    run_both(
        machine,
        leak(Engine::new(machine, cpus, ledger, policy).expect("a machine that holds")),
    )
}

fn run_both(
    machine: &'static Machine,
    engine: &'static E,
) -> (&'static Machine, &'static E, &'static AddressSpace<Machine>) {
    assert!(machine.engine.set(engine).is_ok());
    // SAFETY: this machine walks no tables, so a root is only a number.
    let space = leak(unsafe { engine.new_space(Frame(1)) });
    for cpu in [1, 0] {
        machine.me.set(cpu);
        engine.cpu_online();
        engine.this_cpu().mask_interrupts().switch(None, space);
    }
    (machine, engine, space)
}

const PAGE: PageRange = PageRange::base(Page(5), 1);

fn unmap(engine: &E, space: &'static AddressSpace<Machine>) {
    let mut batch = engine.batch::<_, Frame>(Purpose::Call);
    batch.changed(space, PAGE, Scope::Leaf);
    batch.finish().for_each(drop);
}

/// Makes a frame that has a deferred flush.
fn defer(
    engine: &E,
    space: &'static AddressSpace<Machine>,
) -> (DeferredFlush<Machine>, quell::Stamp) {
    let deferred_flush = DeferredFlush::new();
    deferred_flush.begin();
    let mut batch = engine.batch(Purpose::Lazy);
    batch.unmapped(space, PAGE, Frame(42));
    let Outcome::Deferred(deferred) = batch.finish_deferred() else {
        panic!("the ledger is empty");
    };
    let stamp = deferred.stamp();
    deferred.for_each(drop);
    deferred_flush.defer(stamp);
    (deferred_flush, stamp)
}

type Call = fn(&'static Machine, &'static E, &'static AddressSpace<Machine>);

/// Every call that may wait checks `may_wait` first. Without that check each of these would pass.
#[test]
#[cfg(debug_assertions)]
fn calls_that_may_wait_are_noticed_where_they_must_not() {
    /// Makes a call that may wait while waiting is forbidden.
    fn forbidden(machine: &Machine, call: impl FnOnce()) {
        machine.forbids_one_wait.set(true);
        call();
        assert!(!machine.forbids_one_wait.get(), "the engine has not asked");
    }
    let calls: &[(&str, Call)] = &[
        ("finish", |machine, engine, space| {
            forbidden(machine, || unmap(engine, space));
        }),
        ("drop", |machine, engine, space| {
            let mut batch = engine.batch::<_, Frame>(Purpose::Call);
            batch.changed(space, PAGE, Scope::Leaf);
            forbidden(machine, || drop(batch));
        }),
        ("unlocked, without S0", |_, _, _| {
            let (machine, engine, space) = both_run(Policy::BASELINE);
            let mut batch = engine.batch::<_, Frame>(Purpose::Reclaim);
            batch.changed(space, PAGE, Scope::Leaf);
            forbidden(machine, || batch.unlocked());
        }),
        ("InFlight::finish", |machine, engine, space| {
            let mut batch = engine.batch::<_, Frame>(Purpose::Call);
            batch.changed(space, PAGE, Scope::Leaf);
            let flight = batch.start();
            forbidden(machine, || flight.finish().for_each(drop));
        }),
        (
            "finish_deferred, for the devices",
            |machine, engine, space| {
                let mut batch = engine.batch(Purpose::Lazy);
                batch.unmapped(space, PAGE, Frame(42));
                forbidden(machine, || drop(batch.finish_deferred()));
            },
        ),
        ("flush_pending", |machine, engine, space| {
            let mut batch = engine.batch::<_, Frame>(Purpose::Call);
            batch.changed(space, PAGE, Scope::Leaf);
            forbidden(machine, || engine.flush_pending(space));
        }),
        ("flush_before_reuse", |machine, engine, space| {
            let (deferred_flush, _) = defer(engine, space);
            forbidden(machine, || {
                assert!(engine.flush_before_reuse(&deferred_flush).is_some())
            });
        }),
        ("flush_before_refill", |machine, engine, space| {
            let (deferred_flush, _) = defer(engine, space);
            forbidden(machine, || {
                engine.flush_before_refill(&deferred_flush, space)
            });
        }),
        ("flush_until", |machine, engine, space| {
            let (_, stamp) = defer(engine, space);
            forbidden(machine, || engine.flush_until(stamp));
        }),
        ("flush_deferred", |machine, engine, space| {
            defer(engine, space);
            forbidden(machine, || engine.flush_deferred());
        }),
        ("retire", |machine, engine, _| {
            // SAFETY: this machine walks no tables.
            let other = unsafe { engine.new_space(Frame(1)) };
            forbidden(machine, || engine.retire(&other));
        }),
        ("synchronize_text", |machine, engine, _| {
            forbidden(machine, || engine.this_cpu().synchronize_text());
        }),
        ("quiesce", |machine, engine, _| {
            forbidden(machine, || engine.this_cpu().quiesce());
        }),
    ];
    for (name, call) in calls {
        let (machine, engine, space) = both_run(Policy::ALL);
        let outcome = catch_unwind(AssertUnwindSafe(|| call(machine, engine, space)));
        let said = outcome.expect_err(name);
        let said = said.downcast_ref::<&str>().copied().unwrap_or_default();
        assert!(said.contains("waits for other CPUs"), "{name}: {said:?}");
    }
}

#[test]
fn a_flush_that_was_started_is_over_when_its_target_has_answered() {
    let (machine, engine, space) = both_run(Policy::ALL);
    unmap(engine, space);
    assert_eq!(
        machine.answers.get(),
        0,
        "no code waits to hear of a flush whose initiator waits"
    );
    let mut batch = engine.batch(Purpose::Call);
    batch.unmapped(space, PAGE, Frame(42));
    let mut flight = batch.start();
    assert_eq!(machine.interrupts.get(), 2);
    assert!(!flight.is_done() && space.is_in_batch());
    // Poll it on the other CPU, too.
    machine.me.set(1);
    assert!(!flight.is_done());
    engine.this_cpu().mask_interrupts().on_interrupt();
    assert_eq!(machine.answers.get(), 1);
    assert!(flight.is_done() && !space.is_in_batch());
    assert!(flight.finish().eq([Frame(42)]));
    // The batch may be filled again. If it's dropped in flight, it waits.
    machine.me.set(0);
    batch.unmapped(space, PAGE, Frame(43));
    drop(batch.start());
    assert!(!space.is_in_batch());
    let answers = machine.answers.get();
    unmap(engine, space);
    assert_eq!(
        machine.answers.get(),
        answers,
        "nothing is in flight any more"
    );
}

/// The number of turns for which a CPU with a long delay takes no interrupt.
const DEAF: u64 = 200_000;

#[test]
fn a_wait_that_lasts_is_told_and_goes_on() {
    let (machine, engine, space) = both_run(Policy::ALL);
    // The reports come in exactly these turns.
    let expected = [1 << 16, 1 << 17].map(|turns| (CpuId(1), turns, turns - 1));
    machine.deaf_for.set(DEAF);
    unmap(engine, space);
    assert_eq!(machine.long_waits.take(), expected);
    machine.deaf_for.set(DEAF);
    let mut batch = engine.batch::<_, Frame>(Purpose::Call);
    batch.changed(space, PAGE, Scope::Leaf);
    batch.start().finish().for_each(drop);
    assert_eq!(machine.long_waits.take(), expected);
    unmap(engine, space);
    assert!(machine.long_waits.take().is_empty());
}

/// switch.rs: retiring a space interrupts a CPU that still runs it again and again, and reports the wait.
#[test]
fn a_cpu_that_goes_on_running_a_space_that_ends_is_told_of() {
    let (machine, engine, space) = both_run(Policy::ALL);
    // SAFETY: this machine walks no tables, so a root is only a number.
    let other = leak(unsafe { engine.new_space(Frame(1)) });
    engine
        .this_cpu()
        .mask_interrupts()
        .switch(Some(space), other);
    machine.goes_at_last.set(true);
    engine.retire(space);
    assert!(!machine.goes_at_last.get());
    let told = machine.long_waits.take();
    assert!(matches!(told[..], [(CpuId(1), 65536, _)]), "{told:?}");
}

#[test]
fn state_of_cpus_lies_where_the_kernel_keeps_it() {
    let machine = leak(Machine::default());
    let ledger = leak([(); 4].map(|()| LedgerEntry::new()));
    let make = || Engine::with_own_state(machine, 2, ledger, Policy::ALL);
    assert_eq!(make().err(), Some(Unsupported::NoState { cpu: 0 }));
    machine.places.borrow_mut().push(leak(Cpu::new()));
    assert_eq!(make().err(), Some(Unsupported::NoState { cpu: 1 }));
    // Put the two states at different distances.
    let _between = leak([0u8; 4096]);
    machine.places.borrow_mut().push(leak(Cpu::new()));
    let (machine, engine, space) = run_both(machine, leak(make().expect("two places")));
    unmap(engine, space);
    assert_eq!(machine.interrupts.get(), 1);
    assert_eq!(engine.cpu_stats(CpuId(0)).get(Counter::Sent), 1);
    assert_eq!(engine.stats().get(Counter::Sent), 1);

    // The machine has a third CPU and a place for its state; the engine was made for two.
    machine.places.borrow_mut().push(leak(Cpu::new()));
    machine.me.set(2);
    let panics = |call: &dyn Fn()| catch_unwind(AssertUnwindSafe(call)).is_err();
    assert!(panics(&|| {
        engine.cpu_stats(CpuId(2));
    }));
    assert!(panics(&|| {
        engine.this_cpu();
    }));
}

/// hardware.rs: `per_cpu` returns a different address for each CPU.
#[test]
#[cfg(debug_assertions)]
fn two_cpus_do_not_share_their_state() {
    let machine = leak(Machine::default());
    machine.places.borrow_mut().extend([leak(Cpu::new()); 2]);
    let made = catch_unwind(AssertUnwindSafe(|| {
        let _ = Engine::with_own_state(machine, 2, &[], Policy::ALL);
    }));
    let said = made.expect_err("one place, two CPUs");
    let said = said.downcast_ref::<&str>().copied().unwrap_or_default();
    assert!(said.contains("one place for two CPUs"), "{said}");
}

/// hardware.rs: `per_cpu` returns the same address at each call.
#[test]
#[cfg(debug_assertions)]
fn state_of_cpus_that_moves_is_noticed() {
    let comes_online = |moved: &[usize]| {
        let machine = leak(Machine::default());
        let places = [(); 2].map(|()| leak(Cpu::new()));
        machine.places.borrow_mut().extend(places);
        let engine = Engine::with_own_state(machine, 2, &[], Policy::ALL).expect("two places");
        for &cpu in moved {
            machine.places.borrow_mut()[cpu] = leak(Cpu::new());
        }
        catch_unwind(AssertUnwindSafe(|| engine.cpu_online()))
    };
    assert!(comes_online(&[]).is_ok());
    for moved in [&[0][..], &[1], &[0, 1]] {
        let said = comes_online(moved).expect_err("another place");
        let said = said.downcast_ref::<&str>().copied().unwrap_or_default();
        assert!(said.contains("per_cpu has changed"), "{said}");
    }
}

#[test]
fn frames_come_out_when_devices_have_forgotten_them_too() {
    let policies = [Policy::BASELINE, Policy::ALL];
    for policy in policies {
        let (machine, engine, space) = both_run(policy);
        let fill = || machine.device.borrow_mut().extend([Page(5), Page(6)]);
        let holds = |pages: &[Page]| assert_eq!(*machine.device.borrow(), pages, "{policy:?}");
        fill();
        let mut batch = engine.batch(Purpose::Reclaim);
        batch.unmapped(space, PAGE, Frame(42));
        machine.busy.set(3);
        for frame in batch.finish() {
            let _: Frame = frame;
            holds(&[Page(6)]);
        }
        // Next, the other CPU is offline, and then no CPU has the space loaded.
        machine.me.set(1);
        engine.cpu_offline(Some(space));
        machine.me.set(0);
        let mut rest = engine.batch::<_, Frame>(Purpose::Call);
        rest.changed(space, PageRange::base(Page(6), 1), Scope::Leaf);
        rest.finish().for_each(drop);
        holds(&[]);
        // SAFETY: this machine walks no tables.
        let other = leak(unsafe { engine.new_space(Frame(1)) });
        fill();
        let mut whole = engine.batch::<_, Frame>(Purpose::Call);
        whole.changed_all(other, Scope::Leaf);
        whole.finish().for_each(drop);
        holds(&[]);
        machine.me.set(1);
        engine.cpu_online();
        engine.this_cpu().mask_interrupts().switch(None, space);
        machine.me.set(0);
        // Devices flush at the unmap, not when the deferred flush is made. They also flush for a started flush.
        fill();
        machine.busy.set(3);
        let mut lazy = engine.batch(Purpose::Lazy);
        lazy.unmapped(space, PAGE, Frame(43));
        drop(lazy.finish_deferred());
        holds(&[Page(6)]);
        let mut batch = engine.batch(Purpose::Call);
        batch.unmapped(space, PageRange::base(Page(6), 1), Frame(44));
        machine.busy.set(3);
        assert!(batch.start().finish().eq([Frame(44)]));
        holds(&[]);
    }
}

/// A CPU that waits for a device still answers others. Polling a flush in flight waits for no device.
#[test]
fn devices_that_take_long_hold_up_no_cpu() {
    let (machine, engine, space) = both_run(Policy::ALL);
    machine.device.borrow_mut().push(Page(5));
    let mut batch = engine.batch(Purpose::Call);
    batch.unmapped(space, PAGE, Frame(42));
    machine.busy.set(2);
    let mut flight = batch.start();
    machine.answer();
    assert_eq!(machine.busy.get(), 2, "asked before the CPUs have answered");
    assert!(!flight.is_done() && !flight.is_done() && space.is_in_batch());
    assert_eq!(*machine.device.borrow(), [Page(5)]);
    assert!(flight.is_done() && !space.is_in_batch());
    assert!(machine.device.borrow().is_empty());
    assert!(flight.finish().eq([Frame(42)]));
    // The same holds if no other CPU has the space loaded.
    machine.me.set(1);
    engine.this_cpu().leave(space);
    machine.me.set(0);
    machine.device.borrow_mut().push(Page(5));
    machine.busy.set(1);
    batch.unmapped(space, PAGE, Frame(43));
    let mut flight = batch.start();
    assert!(!flight.is_done());
    assert!(flight.finish().eq([Frame(43)]));
    assert!(machine.device.borrow().is_empty());
}

#[test]
fn virtual_cpus_that_do_not_run_are_not_interrupted() {
    let (machine, engine, space) = both_run(Policy::ALL);
    machine.preempted.set(true);
    unmap(engine, space);
    assert!(machine.flushed_on_reentry.take());
    assert_eq!(machine.interrupts.get(), 0);
    assert_eq!(engine.stats().get(Counter::SkippedNotRunning), 1);
    // SAFETY: this machine walks no tables.
    let kernel = leak(unsafe { engine.new_kernel_space(Frame(1), KernelEntries::Global) });
    unmap(engine, kernel);
    assert_eq!(machine.interrupts.get(), 0);
    // The hypervisor doesn't drop fetched instructions, so the CPU is interrupted for those.
    engine.this_cpu().synchronize_text();
    assert_eq!(machine.interrupts.get(), 1);
    // When the CPU runs again, it gets requests. Since it missed some, it flushes the whole tag.
    machine.preempted.set(false);
    unmap(engine, space);
    assert_eq!(machine.interrupts.get(), 2);
    assert_eq!(engine.stats().get(Counter::EscalatedGap), 1);
}

#[test]
fn a_program_that_is_not_to_be_disturbed_is_left_alone_for_the_kernels_mappings() {
    let (machine, engine, space) = both_run(Policy::ALL);
    // SAFETY: this machine walks no tables.
    let kernel = leak(unsafe { engine.new_kernel_space(Frame(1), KernelEntries::Global) });
    let on = |cpu, act: &dyn Fn()| {
        machine.me.set(cpu);
        act();
        machine.me.set(0);
    };
    let full = || engine.cpu_stats(CpuId(1)).get(Counter::FlushedFull);
    // SAFETY: nothing is accessed on this machine.
    on(1, &|| unsafe { engine.this_cpu().enter_user() });
    let before = full();
    unmap(engine, kernel);
    unmap(engine, kernel);
    assert_eq!(machine.interrupts.get(), 0);
    assert_eq!(engine.stats().get(Counter::SkippedLazy), 2);
    // It's interrupted for its space, and for tables of the kernel's half and for text.
    unmap(engine, space);
    assert_eq!(machine.interrupts.get(), 1);
    let mut tables = engine.batch(Purpose::Call);
    tables.table_unlinked(kernel, PAGE, Frame(9));
    assert!(tables.finish().eq([Frame(9)]));
    assert_eq!(machine.interrupts.get(), 2);
    engine.this_cpu().synchronize_text();
    assert_eq!(machine.interrupts.get(), 3);
    // It flushes once for both, and gets requests from then on.
    assert_eq!(full(), before);
    on(1, &|| engine.this_cpu().enter_kernel());
    on(1, &|| engine.this_cpu().enter_kernel());
    assert_eq!(full(), before + 1);
    unmap(engine, kernel);
    assert_eq!(machine.interrupts.get(), 4);
    // Without a flush left to it, a kernel entry flushes nothing.
    // SAFETY: nothing is accessed on this machine.
    on(1, &|| unsafe { engine.this_cpu().enter_user() });
    on(1, &|| engine.this_cpu().enter_kernel());
    assert_eq!(full(), before + 1);
}

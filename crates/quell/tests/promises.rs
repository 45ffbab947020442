//! What the interface's documents promise of single calls, on a machine of two CPUs that does nothing by itself.

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

use quell::{
    AddressSpace, Batch, Broadcast, CpuId, CpuSet, Engine, Features, Frame, Hardware, Invalidate,
    KernelEntries, LedgerEntry, Outcome, Page, PageRange, PerCpu, Policy, Purpose, Scope, Tag,
    TagPolicy, Tagging,
};

#[derive(Default)]
struct Machine {
    me: Cell<u16>,
    pending: Cell<bool>,
    interrupts: Cell<usize>,
    limit: Cell<usize>,
    invalidated: RefCell<Vec<(u16, Invalidate)>>,
    kept: RefCell<Vec<bool>>,
    asked: Cell<usize>,
    forbidden: Cell<bool>,
    global: bool,
    engine: OnceCell<&'static Engine<'static, Machine>>,
}
// SAFETY: each test has its machine to itself, on one thread.
unsafe impl Sync for Machine {}

struct Broadcasts;
impl Broadcast for Broadcasts {
    fn start(&self, _what: Invalidate) {}
    fn complete(&self) {}
}

// SAFETY: no memory is behind any frame: what a flush of this machine leaves behind harms nothing.
unsafe impl Hardware for Machine {
    type Word = AtomicU64;
    type Broadcasts = Broadcasts;

    fn this_cpu(&self) -> CpuId {
        CpuId(self.me.get())
    }
    fn features(&self) -> Features {
        if self.global {
            Features {
                tagging: Tagging::Global { bits: 8 },
                broadcast: true,
                full_above: 33,
            }
        } else {
            Features {
                tagging: Tagging::PerCpu { count: 6 },
                broadcast: false,
                full_above: 33,
            }
        }
    }
    fn broadcasts(&self) -> Option<&Broadcasts> {
        self.global.then_some(&Broadcasts)
    }
    fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
    fn invalidate(&self, what: Invalidate) {
        self.invalidated.borrow_mut().push((self.me.get(), what));
    }
    unsafe fn load_root(&self, _root: Frame, _tag: Tag, keep: bool) {
        self.kept.borrow_mut().push(keep);
    }
    fn unload_root(&self) {}
    fn interrupt(&self, targets: &CpuSet) {
        self.interrupts.set(self.interrupts.get() + 1);
        assert!(
            self.limit.get() == 0 || self.interrupts.get() < self.limit.get(),
            "{} interrupts sent, and no end",
            self.interrupts.get()
        );
        assert!(targets.contains(CpuId(1)) && targets.len() == 1);
        self.pending.set(true);
    }
    fn mask_interrupts(&self) -> bool {
        false
    }
    fn restore_interrupts(&self, _were_on: bool) {}
    fn relax(&self) {
        if self.pending.take() {
            let me = self.me.replace(1);
            self.engine.get().expect("an engine").on_interrupt();
            self.me.set(me);
        }
    }
    fn may_wait(&self) -> bool {
        self.asked.set(self.asked.get() + 1);
        !self.forbidden.get()
    }
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

type E = &'static Engine<'static, Machine>;
type S = &'static AddressSpace<Machine>;

fn world(machine: Machine, policy: Policy) -> (&'static Machine, E) {
    let machine = leak(machine);
    let cpus = leak([PerCpu::new(), PerCpu::new()]);
    let ledger = leak([(); 4].map(|()| LedgerEntry::new()));
    let engine = leak(Engine::new(machine, cpus, ledger, policy).expect("a machine that holds"));
    assert!(machine.engine.set(engine).is_ok());
    for cpu in [1, 0] {
        machine.me.set(cpu);
        engine.cpu_online();
    }
    (machine, engine)
}

fn space(engine: E, root: u64) -> S {
    // SAFETY: a root is a number on this machine.
    leak(unsafe { engine.new_space(Frame(root)) })
}

fn run_on_both(machine: &Machine, engine: E, space: S) {
    for cpu in [1, 0] {
        machine.me.set(cpu);
        engine.switch_to(None, space);
    }
}

/// C1: "A frame goes into the batch by value and comes out only against proof of the flush."
#[test]
fn owed_frames_that_were_forgotten_do_not_come_out_as_flushed() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    let mut batch: Batch<'_, '_, _, S, Frame> = engine.batch(Purpose::Lazy);
    batch.unmapped(x, PageRange::base(Page(5), 1), Frame(42));
    let outcome = batch.finish_owed();
    assert!(matches!(outcome, Outcome::Owed(_)));
    std::mem::forget(outcome);
    machine.invalidated.borrow_mut().clear();
    let free: Vec<Frame> = batch.finish().collect();
    assert!(
        free.is_empty() || !machine.invalidated.borrow().is_empty(),
        "{free:?} came out as flushed, and no CPU has flushed"
    );
}

/// hardware.rs: "Asked, in debug builds alone, by every call that may wait: a batch that finishes, ... retire."
#[test]
fn a_batch_that_finishes_asks_whether_it_may_wait() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    let mut batch: Batch<'_, '_, _, S, Frame> = engine.batch(Purpose::Call);
    batch.unmapped(x, PageRange::base(Page(5), 1), Frame(42));
    assert_eq!(batch.finish().count(), 1);
    assert!(machine.interrupts.get() > 0, "it waited");
    assert!(machine.asked.get() > 0, "a batch that waited has not asked");
}

#[test]
fn retire_asks_whether_it_may_wait() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    machine.me.set(1);
    engine.switch_to(None, x);
    engine.enter_lazy();
    machine.me.set(0);
    engine.retire(x);
    assert!(machine.interrupts.get() > 0, "it waited");
    assert!(
        machine.asked.get() > 0,
        "a retirement that waited has not asked"
    );
}

/// policy.rs: "0 is `TagPolicy::Off`".
#[test]
fn no_slots_are_no_tags() {
    for global in [false, true] {
        let policy = Policy {
            tags: TagPolicy::Slots(0),
            ..Policy::ALL
        };
        let (machine, engine) = world(
            Machine {
                global,
                ..Machine::default()
            },
            policy,
        );
        let (x, y) = (space(engine, 1), space(engine, 2));
        engine.switch_to(None, x);
        engine.cpu_offline(Some(x));
        engine.cpu_online();
        engine.switch_to(None, x);
        engine.switch_to(Some(x), y);
        engine.switch_to(Some(y), x);
        // Leave and come back, with one slot that nobody has taken.
        engine.enter_lazy();
        machine.me.set(1);
        let mut batch: Batch<'_, '_, _, S, Frame> = engine.batch(Purpose::Call);
        batch.changed(y, PageRange::base(Page(1), 1), Scope::Leaf);
        drop(batch);
        assert!(
            machine.kept.borrow().iter().all(|keep| !keep),
            "global {global}: entries were kept {:?}",
            machine.kept.borrow()
        );
    }
}

/// C6: "A batch with an unlinked table ... is waited for to the end".
#[test]
fn a_batch_that_has_unlinked_a_table_owes_nothing() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    let mut batch: Batch<'_, '_, _, S, Frame> = engine.batch(Purpose::Lazy);
    batch.table_unlinked(x, PageRange::base(Page(0), 1), Frame(7));
    assert!(
        matches!(batch.finish_owed(), Outcome::Flushed(_)),
        "a table's frame is owed: CPU 1's walker may still read it, and Owed frames may be dropped"
    );
}

/// The kernel's own mappings are flushed also where there is no CPU but this one.
#[test]
fn one_cpu_flushes_the_kernel_s_own_mappings() {
    let machine = leak(Machine::default());
    let cpus = leak([PerCpu::new()]);
    let ledger = leak([(); 4].map(|()| LedgerEntry::new()));
    let engine: E = leak(Engine::new(machine, cpus, ledger, Policy::ALL).expect("a machine"));
    engine.cpu_online();
    for entries in [KernelEntries::Global, KernelEntries::Tagged] {
        // SAFETY: a root is a number on this machine.
        let own = leak(unsafe { engine.new_kernel_space(Frame(1), entries) });
        machine.invalidated.borrow_mut().clear();
        let mut batch: Batch<'_, '_, _, S, Frame> = engine.batch(Purpose::Call);
        batch.unmapped(own, PageRange::base(Page(5), 1), Frame(42));
        assert_eq!(batch.finish().count(), 1);
        let done = machine.invalidated.borrow();
        assert!(
            done.iter()
                .any(|(_, what)| matches!(what, Invalidate::Kernel { .. })),
            "{entries:?}: {done:?}"
        );
    }
}

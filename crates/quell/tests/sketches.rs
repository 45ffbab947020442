//! Machines that are to come, as sketches of a `Hardware`: what each says of itself, and what its operations are.
//!
//! * Arm without broadcasts: invalidations reach their own CPU alone (`TLBI` without `IS`, `DSB NSH`), as some
//!   systems prefer where broadcasts disturb too many. ASIDs then need mean something on their own CPU only: they are
//!   tags of each CPU's own. Ranges are one operation (`TLBI RVAE1`).
//! * RISC-V with ASIDs that are the same everywhere and no broadcast: the same, lent by each hart for itself.
//! * Intel's remote action requests: an invalidation is laid into the table of each target, whose hardware carries it out
//!   without an interrupt; the sender waits until the targets have marked it done. To the engine that is a broadcast, with
//!   PCIDs that are dealt for all CPUs.
//!
//! Two that are not expressed yet: broadcasts for some spaces and tags of each CPU's own for the rest (Linux's use of
//! INVLPGB), and broadcasts that name tags of each CPU's own. [`Features::check`] refuses both, with reasons: which of the two
//! a space uses is said of the machine today, and would have to be said of the space.

use quell::{
    Broadcast, CpuId, CpuSet, Engine, Features, Frame, Hardware, Invalidate, LedgerEntry, Page,
    PageRange, PerCpu, Policy, Purpose, Tag, Tagging,
};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const CPUS: usize = 2;

/// What is particular about a machine.
trait Kind: Sized + 'static {
    const FEATURES: Features;
    /// The operations that an invalidation takes.
    fn operations(what: Invalidate) -> u64;
}

struct ArmLocal;
impl Kind for ArmLocal {
    const FEATURES: Features = Features {
        tagging: Tagging::PerCpu { count: 255 },
        broadcast: false,
        full_above: 512,
    };
    fn operations(_what: Invalidate) -> u64 {
        // A range is one, too.
        1
    }
}

struct RiscvEverywhere;
impl Kind for RiscvEverywhere {
    const FEATURES: Features = Features {
        tagging: Tagging::PerCpu { count: 4095 },
        broadcast: false,
        full_above: 64,
    };
    fn operations(what: Invalidate) -> u64 {
        match what {
            Invalidate::Range { range, .. } | Invalidate::Kernel { range, .. } => range.strides(),
            _ => 1,
        }
    }
}

struct RemoteActions;
impl Kind for RemoteActions {
    const FEATURES: Features = Features {
        tagging: Tagging::Global { bits: 12 },
        broadcast: true,
        full_above: 64,
    };
    fn operations(_what: Invalidate) -> u64 {
        // A payload names a range.
        1
    }
}

/// One thread is each of the CPUs in turn: a target takes its interrupt, or its hardware looks into its table, while
/// the initiator waits.
struct Machine<K: Kind> {
    me: Cell<usize>,
    root: [Cell<Option<(Frame, Tag)>>; CPUS],
    tlb: [RefCell<HashSet<(Tag, Page)>>; CPUS],
    pending: [Cell<bool>; CPUS],
    /// The actions that each CPU's hardware has yet to carry out.
    actions: [RefCell<Vec<Invalidate>>; CPUS],
    operations: Cell<u64>,
    engine: OnceLock<&'static Engine<'static, Machine<K>>>,
    kind: PhantomData<fn(K)>,
}

// SAFETY: each test has one thread, and a machine of its own.
unsafe impl<K: Kind> Sync for Machine<K> {}
// SAFETY: as above.
unsafe impl<K: Kind> Send for Machine<K> {}

impl<K: Kind> Machine<K> {
    fn drop_from(&self, cpu: usize, what: Invalidate) {
        self.operations
            .set(self.operations.get() + K::operations(what));
        self.tlb[cpu].borrow_mut().retain(|&(of, page)| match what {
            Invalidate::Range { tag, range, .. } => of != tag || !range.contains(page),
            Invalidate::Tag(tag) => of != tag,
            Invalidate::Kernel { .. } => true,
            Invalidate::All | Invalidate::Everything => false,
        });
    }

    fn on<R>(&self, cpu: usize, action: impl FnOnce() -> R) -> R {
        let before = self.me.replace(cpu);
        let result = action();
        self.me.set(before);
        result
    }

    /// A program on this CPU uses a page.
    fn touch(&self, page: Page) {
        let (_, tag) = self.root[self.me.get()].get().expect("a root");
        self.tlb[self.me.get()].borrow_mut().insert((tag, page));
    }

    fn holds(&self, cpu: usize, page: Page) -> bool {
        self.tlb[cpu].borrow().iter().any(|held| held.1 == page)
    }
}

impl<K: Kind> Broadcast for Machine<K> {
    fn start(&self, what: Invalidate) {
        for actions in &self.actions {
            actions.borrow_mut().push(what);
        }
    }
    fn complete(&self) {
        for cpu in 0..CPUS {
            for what in self.actions[cpu].take() {
                self.drop_from(cpu, what);
            }
        }
    }
}

// SAFETY: sets of numbers, which reach no memory; what is to be dropped from them is.
unsafe impl<K: Kind> Hardware for Machine<K> {
    type Word = AtomicU64;
    type Broadcasts = Self;

    fn broadcasts(&self) -> Option<&Self> {
        K::FEATURES.broadcast.then_some(self)
    }
    fn this_cpu(&self) -> CpuId {
        CpuId(self.me.get() as u16)
    }
    fn features(&self) -> Features {
        K::FEATURES
    }
    fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
    fn invalidate(&self, what: Invalidate) {
        self.drop_from(self.me.get(), what);
    }
    unsafe fn load_root(&self, root: Frame, tag: Tag, keep: bool) {
        if !keep {
            self.drop_from(self.me.get(), Invalidate::Tag(tag));
        }
        self.root[self.me.get()].set(Some((root, tag)));
    }
    fn unload_root(&self) {
        self.root[self.me.get()].set(None);
    }
    fn interrupt(&self, targets: &CpuSet) {
        targets
            .iter()
            .for_each(|target| self.pending[target.index()].set(true));
    }
    fn mask_interrupts(&self) -> bool {
        false
    }
    fn restore_interrupts(&self, _were_on: bool) {}
    fn relax(&self) {
        let engine = self.engine.get().expect("an engine");
        for cpu in (0..CPUS).filter(|&cpu| self.pending[cpu].take()) {
            self.on(cpu, || engine.on_interrupt());
        }
    }
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// A page is unmapped while one CPU runs its space, and another has it under a tag that is not loaded. Returns how many
/// operations a range of eight pages took.
fn unmaps<K: Kind>() -> u64 {
    let machine: &'static Machine<K> = leak(Machine {
        me: Cell::new(0),
        root: Default::default(),
        tlb: Default::default(),
        pending: Default::default(),
        actions: Default::default(),
        operations: Cell::new(0),
        engine: OnceLock::new(),
        kind: PhantomData,
    });
    let cpus = leak([(); CPUS].map(|()| PerCpu::new()));
    let ledger = leak([(); 4].map(|()| LedgerEntry::new()));
    let engine = leak(Engine::new(machine, cpus, ledger, Policy::ALL).expect("an engine"));
    assert!(machine.engine.set(engine).is_ok());
    // SAFETY: this machine walks no tables.
    let [one, other] = [1, 2].map(|root| leak(unsafe { engine.new_space(Frame(root)) }));
    for cpu in [1, 0] {
        machine.on(cpu, || {
            engine.cpu_online();
            engine.switch_to(None, one);
            (0..9).for_each(|page| machine.touch(Page(page)));
        });
    }
    machine.on(1, || engine.switch_to(Some(one), other));
    let before = machine.operations.get();
    let mut batch = engine.batch(Purpose::Call);
    batch.hold(Frame(7));
    batch.changed(one, PageRange::base(Page(0), 8), quell::Scope::Leaf);
    assert!(batch.finish().eq([Frame(7)]));
    let operations = machine.operations.get() - before;
    assert!(!machine.holds(0, Page(0)) && machine.holds(0, Page(8)));
    machine.on(1, || engine.switch_to(Some(other), one));
    assert!(!machine.holds(1, Page(0)), "loaded with what it had");
    // And while both run it.
    machine.on(1, || machine.touch(Page(8)));
    let mut batch = engine.batch::<_, Frame>(Purpose::Call);
    batch.changed(one, PageRange::base(Page(8), 1), quell::Scope::Leaf);
    batch.finish().for_each(drop);
    assert!((0..CPUS).all(|cpu| !machine.holds(cpu, Page(8))));
    operations
}

#[test]
fn an_arm_without_broadcasts_lends_each_cpu_its_tags() {
    assert_eq!(unmaps::<ArmLocal>(), 1);
}

#[test]
fn a_riscv_without_broadcasts_lends_each_hart_its_asids() {
    assert_eq!(unmaps::<RiscvEverywhere>(), 8);
}

#[test]
fn remote_actions_are_broadcasts() {
    // On each CPU.
    assert_eq!(unmaps::<RemoteActions>(), CPUS as u64);
}

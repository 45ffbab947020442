//! The memory orderings of the lock-free parts, checked with loom.
//!
//! The engine runs here unchanged on words that are loom's atomics: [`quell::Word`] is its alias for
//! whatever atomics the machine has. Loom tries the interleavings of small programs (with at most
//! two preemptions) *and* everything that loads may return under the C11 memory model. The judge is
//! loom's own: a frame is a cell without synchronisation. Whoever reads it through a TLB must be
//! ordered before the new owner who writes it, by the orderings of the engine and by nothing else;
//! if one is too weak, loom reports a race.
//!
//! Each operation of the engine with an ordering above `Relaxed` that these programs reach is then
//! weakened to `Relaxed`, one at a time, known by its place in the source. Of the places in
//! [`NEEDED`], loom must find each.
//!
//! # What is not covered
//!
//! Loom knows sequential consistency of fences but not of accesses, so a sequentially consistent
//! store or modification here is the operation followed by a fence, as compilers do it on x86; a
//! load is an acquire load. Those fences order their neighbours too, so that most of the places,
//! weakened alone, go unnoticed: that is no proof that they may be weakened. `--nocapture` prints
//! which. There are two CPUs, so letters are never merged or fought for. Table walks, store
//! buffers and broadcasts belong to the adversary.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU64, fence};
use loom::thread;
use quell::clear::Strategy;
use quell::{
    AddressSpace, CpuId, CpuSet, Engine, Epoch, Extent, Features, Frame, Hardware, Invalidate,
    Mechanism, Outcome, Page, PageRange, PerCpu, Policy, Purpose, Residue, Scope, Tag, Tagging,
    Word,
};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};

/// An operation in the engine's source: file, line and column.
type Place = (&'static str, u32, u32);

std::thread_local! {
    /// The operation that is weakened.
    static WEAK: Cell<Option<Place>> = const { Cell::new(None) };
}

/// Every operation above `Relaxed` that was reached.
static PLACES: Mutex<BTreeSet<Place>> = Mutex::new(BTreeSet::new());

/// `order`, unless this is the place to weaken.
#[track_caller]
fn ordered(order: Ordering) -> Ordering {
    if order == Relaxed {
        return order;
    }
    let at = Location::caller();
    let place = (at.file(), at.line(), at.column());
    if WEAK.get() == Some(place) {
        return Relaxed;
    }
    if WEAK.get().is_none()
        && let Ok(mut places) = PLACES.lock()
    {
        places.insert(place);
    }
    order
}

/// What loom makes of a sequentially consistent modification: see the essay.
fn modify<R>(order: Ordering, act: impl FnOnce(Ordering) -> R) -> R {
    if order != SeqCst {
        return act(order);
    }
    let result = act(AcqRel);
    fence(SeqCst);
    result
}

struct LoomWord(AtomicU64);

impl Word for LoomWord {
    fn new(value: u64) -> Self {
        LoomWord(AtomicU64::new(value))
    }
    #[track_caller]
    fn fence(order: Ordering) {
        match ordered(order) {
            Relaxed => {}
            order => fence(order),
        }
    }
    #[track_caller]
    fn load(&self, order: Ordering) -> u64 {
        match ordered(order) {
            SeqCst => self.0.load(Acquire),
            order => self.0.load(order),
        }
    }
    #[track_caller]
    fn store(&self, value: u64, order: Ordering) {
        match ordered(order) {
            SeqCst => {
                self.0.store(value, Release);
                fence(SeqCst);
            }
            order => self.0.store(value, order),
        }
    }
    #[track_caller]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        modify(ordered(order), |order| self.0.swap(value, order))
    }
    #[track_caller]
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        modify(ordered(success), |order| {
            self.0.compare_exchange(current, new, order, failure)
        })
    }
    #[track_caller]
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        modify(ordered(order), |order| self.0.fetch_add(value, order))
    }
    #[track_caller]
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        modify(ordered(order), |order| self.0.fetch_or(value, order))
    }
    #[track_caller]
    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        modify(ordered(order), |order| self.0.fetch_and(value, order))
    }
    #[track_caller]
    fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        modify(ordered(order), |order| self.0.fetch_max(value, order))
    }
}

loom::thread_local! {
    static ME: Cell<u16> = Cell::new(0);
}

fn be(cpu: u16) {
    ME.with(|me| me.set(cpu));
}

/// How many CPUs there are.
const CPUS: usize = 2;

/// A machine whose TLBs hold at most one page.
struct Machine {
    pending: [AtomicBool; CPUS],
    /// Whether the TLB of a CPU holds the page; each looks at its own alone.
    tlb: [UnsafeCell<bool>; CPUS],
    /// Whether the table maps the page.
    entry: AtomicBool,
    /// The content of the frame.
    frame: UnsafeCell<u64>,
    /// The other program has come to its end.
    over: AtomicBool,
}

// SAFETY: each CPU looks at its own TLB alone, and that the accesses to the frame are ordered is what
// is checked here: loom panics before it lets two of them race.
unsafe impl Sync for Machine {}

impl Machine {
    fn new() -> Self {
        Machine {
            pending: std::array::from_fn(|_| AtomicBool::new(false)),
            tlb: std::array::from_fn(|_| UnsafeCell::new(false)),
            entry: AtomicBool::new(true),
            frame: UnsafeCell::new(0),
            over: AtomicBool::new(false),
        }
    }

    fn set_tlb(&self, holds: bool) {
        let me = self.this_cpu().index();
        // SAFETY: only the CPU itself looks at its TLB, and loom checks that.
        self.tlb[me].with_mut(|cell| unsafe { *cell = holds });
    }

    /// A program's access: through the TLB, filled by a walk if it holds nothing.
    fn access(&self) {
        let me = self.this_cpu().index();
        // SAFETY: as above.
        let holds = self.tlb[me].with(|cell| unsafe { *cell });
        if holds || self.entry.load(Relaxed) {
            self.set_tlb(true);
            self.look();
        }
    }

    /// Reads the frame.
    fn look(&self) {
        // SAFETY: loom reports it if a new owner writes at the same time.
        self.frame.with(|cell| unsafe { *cell });
    }

    /// A new owner of the frame writes it.
    fn own(&self) {
        // SAFETY: loom reports it if somebody still reads through a TLB.
        self.frame.with_mut(|cell| unsafe { *cell = 1 });
    }
}

impl Hardware for Machine {
    type Word = LoomWord;
    fn this_cpu(&self) -> CpuId {
        CpuId(ME.with(Cell::get))
    }
    fn features(&self) -> Features {
        Features {
            tagging: Tagging::PerCpu { count: 2 },
            broadcast: false,
            full_above: 8,
        }
    }
    fn fence(&self) {
        fence(SeqCst);
    }
    fn invalidate(&self, _: Invalidate) {
        self.set_tlb(false);
    }
    fn broadcast(&self, _: Invalidate) {}
    fn complete_broadcasts(&self) {}
    fn load_root(&self, _: Frame, _: Tag, keep: bool) {
        if !keep {
            self.set_tlb(false);
        }
    }
    fn unload_root(&self) {}
    fn interrupt(&self, targets: &CpuSet) {
        for cpu in targets.iter() {
            // A swap, not a store: loom may order a store before a swap that came earlier.
            self.pending[cpu.index()].swap(true, Release);
        }
    }
    fn mask_interrupts(&self) -> bool {
        false
    }
    fn restore_interrupts(&self, _: bool) {}
    fn relax(&self) {
        thread::yield_now();
    }
    fn zero(&self, _: Extent, _: Strategy) {}
}

/// Everything that the CPUs of a program share. Loom's threads live as long as they like, so it is
/// leaked, a few kilobytes for each execution.
struct World {
    hw: &'static Machine,
    engine: Engine<'static, Machine>,
    space: AddressSpace<Machine>,
    other: AddressSpace<Machine>,
    residue: Residue<Machine>,
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

impl World {
    /// Both CPUs are online, and `prepare` was run on each.
    fn new(policy: Policy, prepare: fn(&World)) -> &'static World {
        let hw = leak(Machine::new());
        let cpus: &[PerCpu<'_, Machine>; CPUS] = leak(std::array::from_fn(|_| PerCpu::new()));
        let epochs: &[Epoch<Machine>; 2] = leak(std::array::from_fn(|_| Epoch::new()));
        let engine = Engine::new(hw, cpus, epochs, policy);
        let world = leak(World {
            hw,
            space: engine.new_space(Frame(1)),
            other: engine.new_space(Frame(2)),
            residue: Residue::new(),
            engine,
        });
        for cpu in (0..CPUS as u16).rev() {
            be(cpu);
            world.engine.cpu_online();
            prepare(world);
        }
        world
    }

    fn me(&self) -> u16 {
        self.hw.this_cpu().0
    }

    /// Takes the interrupts that come until the other program is over.
    fn serve(&self) {
        while !self.hw.over.load(Acquire) {
            if self.hw.pending[usize::from(self.me())].swap(false, Acquire) {
                self.engine.on_interrupt();
            } else {
                thread::yield_now();
            }
        }
    }

    /// Takes the page away, waits for the flush, and gives the frame away.
    fn unmap(&self, scope: Scope) {
        let mut batch = self.engine.batch(Purpose::Call);
        self.hw.entry.store(false, Release);
        let range = PageRange::base(Page(0), 1);
        match scope {
            Scope::Leaf => batch.unmapped(&self.space, range, Frame(9)),
            Scope::Tables => batch.table_unlinked(&self.space, range, Frame(9)),
        }
        for _ in batch.finish() {
            self.hw.own();
        }
    }

    /// As [`World::unmap`], where CPU 1 runs the space and more than its receipt is waited for: the
    /// invalidation itself may then be relied on.
    fn unmap_for_good(&self, scope: Scope) {
        self.unmap(scope);
        // SAFETY: loom reports it if the invalidation is not ordered before this.
        let holds = self.hw.tlb[1].with(|cell| unsafe { *cell });
        assert!(!holds, "the other CPU still holds the page");
    }

    /// Takes the page away and owes the flush.
    fn unmap_lazily(&self) {
        self.residue.begin();
        let mut batch = self.engine.batch(Purpose::Lazy);
        self.hw.entry.store(false, Release);
        batch.unmapped(&self.space, PageRange::base(Page(0), 1), Frame(9));
        match batch.finish_owed() {
            Outcome::Owed(owed) => self.residue.owe(owed.stamp()),
            Outcome::Flushed(_) => self.residue.settle_flushed(),
        }
    }

    fn claim(&self) {
        if self.engine.claim(&self.residue).is_some() {
            self.hw.own();
        }
    }
}

/// Two programs that race.
struct Race {
    name: &'static str,
    policy: Policy,
    prepare: fn(&World),
    /// On CPU 0.
    first: fn(&World),
    /// On CPU 1, which then takes interrupts until the first is over.
    second: fn(&World),
}

fn run_there(world: &World) {
    if world.me() == 1 {
        world.engine.switch_to(None, &world.space);
        world.hw.access();
    }
}

fn idle_there(world: &World) {
    run_there(world);
    if world.me() == 1 {
        world.engine.enter_lazy();
    }
}

fn run_other_there(world: &World) {
    run_there(world);
    if world.me() == 1 {
        world.engine.switch_to(Some(&world.space), &world.other);
    }
}

fn owe_there(world: &World) {
    run_there(world);
    if world.me() == 0 {
        world.unmap_lazily();
    }
}

const RACES: [Race; 9] = [
    Race {
        name: "a flush that waits until it is done",
        policy: Policy::BASELINE,
        prepare: run_there,
        first: |w| w.unmap_for_good(Scope::Leaf),
        second: |w| w.hw.access(),
    },
    Race {
        name: "a flush that waits for the receipt",
        policy: Policy::ALL,
        prepare: run_there,
        first: |w| w.unmap(Scope::Leaf),
        second: |w| w.hw.access(),
    },
    Race {
        name: "the flush of a table",
        policy: Policy::ALL,
        prepare: run_there,
        first: |w| w.unmap_for_good(Scope::Tables),
        second: |w| w.hw.access(),
    },
    Race {
        name: "an idle CPU comes back",
        policy: Policy::ALL,
        prepare: idle_there,
        first: |w| w.unmap(Scope::Leaf),
        second: |w| {
            w.engine.switch_to(Some(&w.space), &w.space);
            w.hw.access();
        },
    },
    Race {
        name: "a space is loaded while it is flushed",
        policy: Policy::only(Mechanism::Tags),
        prepare: run_other_there,
        first: |w| w.unmap(Scope::Leaf),
        second: |w| {
            w.engine.switch_to(Some(&w.other), &w.space);
            w.hw.access();
        },
    },
    Race {
        name: "a CPU leaves a space while it is flushed",
        policy: Policy::ALL,
        prepare: run_there,
        first: |w| w.unmap(Scope::Leaf),
        second: |w| {
            w.hw.access();
            w.engine.switch_to(Some(&w.space), &w.other);
        },
    },
    Race {
        name: "a claim against an access",
        policy: Policy::ALL,
        prepare: owe_there,
        first: World::claim,
        second: |w| w.hw.access(),
    },
    Race {
        name: "a claim against a rescue",
        policy: Policy::ALL,
        prepare: owe_there,
        first: World::claim,
        second: |w| {
            if w.residue.rescue(&w.engine) {
                w.hw.look();
            }
        },
    },
    Race {
        name: "a CPU goes offline while it is asked",
        policy: Policy::BASELINE,
        prepare: run_there,
        first: |w| w.unmap(Scope::Leaf),
        second: |w| {
            w.hw.access();
            w.engine.cpu_offline(Some(&w.space));
        },
    },
];

/// Runs a race in every way that loom knows, and says how many those are; panics if one is wrong.
fn check(race: &'static Race) -> usize {
    let executions = std::sync::Arc::new(AtomicUsize::new(0));
    let count = executions.clone();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.max_branches = 20_000;
    model.check(move || {
        count.fetch_add(1, Relaxed);
        let world = World::new(race.policy, race.prepare);
        let there = thread::spawn(move || {
            be(1);
            (race.second)(world);
            world.serve();
        });
        be(0);
        (race.first)(world);
        world.hw.over.store(true, Release);
        there.join().expect("the other program ended");
    });
    executions.load(Relaxed)
}

/// Whether some race is lost with this operation weakened.
fn lost(place: Place) -> bool {
    // A thread of its own: a run that panics leaves loom's state behind.
    let lost_one = |race: &'static Race| {
        let search = move || {
            WEAK.set(Some(place));
            catch_unwind(AssertUnwindSafe(|| check(race))).is_err()
        };
        std::thread::spawn(search).join().unwrap_or(true)
    };
    RACES.iter().any(lost_one)
}

/// Operations whose ordering these programs show to be needed: the end of the file's name and a part
/// of the line.
const NEEDED: [(&str, &str); 8] = [
    // Who enters the set of CPUs sees the generation, or is seen.
    ("cpu_set.rs", "fetch_or("),
    ("space.rs", "fetch_add(ONE_GENERATION"),
    ("space.rs", "fetch_add(1, SeqCst)"),
    ("space.rs", "fetch_add(u64::MAX, SeqCst)"),
    // Who leaves the lazy state sees the generation, or is seen.
    ("engine.rs", "Mutant::RelaxedLeaveLazy"),
    // Who leaves a root has ended its accesses.
    ("shootdown.rs", "state.store(LEFT"),
    // Who has received a request has ended its accesses; who has done it, its invalidation.
    ("shootdown.rs", "acks.received.swap(number, SeqCst)"),
    ("shootdown.rs", "Mutant::RelaxedDone"),
];

fn line_of(place: &Place) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let text = std::fs::read_to_string(format!("{root}{}", place.0)).unwrap_or_default();
    let line = text.lines().nth(place.1 as usize - 1).unwrap_or_default();
    line.trim().to_string()
}

#[test]
fn the_orderings_suffice_and_loom_misses_those_it_can_judge() {
    for race in &RACES {
        println!("{}: holds in {} executions", race.name, check(race));
    }
    let places: Vec<Place> = PLACES
        .lock()
        .expect("nobody panicked")
        .iter()
        .copied()
        .collect();
    let mut found = Vec::new();
    for place in &places {
        let line = line_of(place);
        let lost = lost(*place);
        let verdict = if lost { "needed" } else { "not shown" };
        println!("{verdict}: {}:{}: {line}", place.0, place.1);
        if lost {
            found.push((place.0, line));
        }
    }
    let unnoticed: Vec<_> = NEEDED
        .iter()
        .filter(|(file, part)| {
            let here = |(at, line): &(&str, String)| at.ends_with(file) && line.contains(part);
            !found.iter().any(here)
        })
        .collect();
    assert!(unnoticed.is_empty(), "weakened unnoticed: {unnoticed:?}");
}

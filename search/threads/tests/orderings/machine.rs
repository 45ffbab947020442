//! The machine under the engine: TLBs of a few pages, frames that are cells without synchronisation, and a small
//! kernel.

use crate::race::Setup;
use crate::word::LoomWord;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicUsize, fence};
use loom::sync::{Mutex, MutexGuard};
use loom::thread;
use quell::{
    AddressSpace, Broadcast, CpuId, CpuSet, DeferredFlush, Engine, Extent, Features, Frame,
    Hardware, Invalidation, KernelEntries, LedgerEntry, Outcome, Page, PageRange, PerCpuData,
    Purpose, Scope, Tag, Tagging,
};
use quell_zero::{PhysicalMemory, Strategy};
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

loom::thread_local! {
    static ME: Cell<u16> = Cell::new(0);
}

/// Makes this thread a CPU.
pub fn be(cpu: u16) {
    ME.with(|me| me.set(cpu));
}

/// A point in the engine at which a CPU can be paused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PausePoint {
    /// A request was posted and its interrupt sent.
    Sent,
    /// An inbox is locked and its request is about to be written.
    Locked,
}

/// Code that runs while a CPU is paused.
type Interference = Box<dyn FnOnce()>;

std::thread_local! {
    static HELD_UP: RefCell<Option<(PausePoint, u16, Interference)>> = const { RefCell::new(None) };
}

/// Pauses a CPU when it next reaches a point, and runs something else meanwhile.
pub fn hold_up(cpu: u16, moment: PausePoint, meanwhile: Interference) {
    HELD_UP.set(Some((moment, cpu, meanwhile)));
}

/// Records that this CPU has reached a point.
pub fn reach(moment: PausePoint) {
    let here = HELD_UP.with_borrow_mut(|held_up| {
        let me = ME.with(Cell::get);
        held_up.take_if(|(at, cpu, _)| *at == moment && *cpu == me)
    });
    if let Some((_, cpu, meanwhile)) = here {
        meanwhile();
        be(cpu);
    }
}

/// The number of pages of a space, and of frames behind them.
const PAGES: usize = 2;
/// There are tags 0 to 7.
const TAG_BITS: u8 = 3;
pub const TAGS: usize = 1 << TAG_BITS;
/// The root of the space that maps these pages.
const ROOT: u64 = 1;

/// The number of iterations of waiting loops after which loom abandons this execution: two CPUs that wait for a third
/// can schedule each other for ever.
const ENOUGH_TURNS: usize = 12;
/// The number of iterations that no wait reaches, unless it is in vain.
const MANY_TURNS: usize = 200;

/// One CPU's translation hardware.
#[derive(Default)]
struct Tlb {
    root: u64,
    tag: usize,
    /// Whether there is an entry of the space at [`ROOT`], by tag and page.
    entries: [[bool; PAGES]; TAGS],
}

impl Tlb {
    fn invalidate(&mut self, what: Invalidation) {
        match what {
            Invalidation::All | Invalidation::Everything | Invalidation::Kernel { .. } => {
                self.entries = Default::default()
            }
            Invalidation::Tag(tag) => self.entries[usize::from(tag.0)] = [false; PAGES],
            Invalidation::Range { tag, range, .. } => {
                for page in 0..PAGES {
                    if range.contains(Page(page as u64)) {
                        self.entries[usize::from(tag.0)][page] = false;
                    }
                }
            }
        }
    }
}

/// A TLB. Only its CPU uses it, or, on a machine with broadcasts, it is behind a lock. There an invalidation affects
/// every access that came before it.
enum Unit {
    Own(UnsafeCell<Tlb>),
    SharedState(Mutex<Tlb>),
}

impl Unit {
    fn with<R>(&self, look: impl FnOnce(&mut Tlb) -> R) -> R {
        match self {
            // SAFETY: only its CPU uses it, and loom checks that.
            Unit::Own(cell) => cell.with_mut(|tlb| look(unsafe { &mut *tlb })),
            Unit::SharedState(lock) => {
                let mut tlb: MutexGuard<'_, Tlb> = lock.lock().expect("no thread panicked");
                look(&mut tlb)
            }
        }
    }
}

pub struct Machine {
    features: Features,
    /// Whether CPUs share lines.
    shares: bool,
    pending: Vec<AtomicBool>,
    tlbs: Vec<Unit>,
    /// Whether the table maps a page.
    table: [AtomicBool; PAGES],
    /// The content of each frame.
    frames: [UnsafeCell<u64>; PAGES],
    /// Whether the lock of the table is free. The CPU that clears a page's entry holds it.
    unlocked: AtomicBool,
    /// The number of programs that have ended.
    over: AtomicUsize,
    /// The number of iterations of waiting loops.
    turns: std::sync::atomic::AtomicUsize,
}

// SAFETY: this test checks that accesses to the cells are ordered; loom panics before two of them race.
unsafe impl Sync for Machine {}
// SAFETY: loom panics before it lets two accesses of the cells race.
unsafe impl Send for Machine {}

impl Machine {
    pub fn new(cpus: usize, broadcast: bool, shares: bool) -> Self {
        let unit = || match broadcast {
            true => Unit::SharedState(Mutex::new(Tlb::default())),
            false => Unit::Own(UnsafeCell::new(Tlb::default())),
        };
        Machine {
            features: Features {
                tagging: match broadcast {
                    true => Tagging::Global { bits: TAG_BITS },
                    false => Tagging::PerCpu { count: 2 },
                },
                broadcast,
                full_above: 8,
            },
            shares,
            pending: (0..cpus).map(|_| AtomicBool::new(false)).collect(),
            tlbs: (0..cpus).map(|_| unit()).collect(),
            table: std::array::from_fn(|_| AtomicBool::new(true)),
            frames: std::array::from_fn(|_| UnsafeCell::new(0)),
            unlocked: AtomicBool::new(false),
            over: AtomicUsize::new(0),
            turns: Default::default(),
        }
    }

    fn tlb<R>(&self, look: impl FnOnce(&mut Tlb) -> R) -> R {
        self.tlbs[self.this_cpu().index()].with(look)
    }

    /// Accesses a page as a program, through the TLB. A walk fills an empty entry first.
    pub fn access(&self, page: usize) {
        self.tlb(|tlb| assert_eq!(tlb.root, ROOT, "the program's space is not loaded"));
        self.access_own(page);
    }

    /// Accesses a page for the kernel itself, under any root.
    pub fn access_own(&self, page: usize) {
        self.tlb(|tlb| {
            let entry = &mut tlb.entries[tlb.tag][page];
            *entry = *entry || self.table[page].load(Relaxed);
            if *entry {
                self.look(page);
            }
        });
    }

    /// Drops fetched instructions. Here that means all entries.
    pub fn forget_fetched(&self) {
        self.tlb(|tlb| tlb.invalidate(Invalidation::All));
    }

    /// Reads a frame.
    pub fn look(&self, page: usize) -> u64 {
        // SAFETY: loom reports it if a new owner writes at the same time.
        self.frames[page].with(|cell| unsafe { *cell })
    }

    /// Writes a frame as its new owner.
    pub fn own(&self, page: usize) {
        // SAFETY: loom reports it if a CPU still reads through its TLB.
        self.frames[page].with_mut(|cell| unsafe { *cell = 1 });
    }

    /// Returns whether a CPU's TLB holds a page of the space. The caller must be ordered after its accesses.
    pub fn holds(&self, cpu: usize, page: usize) -> bool {
        self.tlbs[cpu].with(|tlb| tlb.entries.iter().any(|entries| entries[page]))
    }

    /// Returns the tag and the root under which a CPU runs.
    pub fn runs(&self, cpu: usize) -> (usize, u64) {
        self.tlbs[cpu].with(|tlb| (tlb.tag, tlb.root))
    }
}

impl Broadcast for Machine {
    fn start(&self, what: Invalidation) {
        for tlb in &self.tlbs {
            tlb.with(|tlb| tlb.invalidate(what));
        }
    }
    fn complete(&self) {}
}

// SAFETY: the machine is in software, and its translations are words that loom watches.
unsafe impl Hardware for Machine {
    type Word = LoomWord;
    type Broadcasts = Self;

    fn broadcasts(&self) -> Option<&Self> {
        Some(self)
    }
    fn this_cpu(&self) -> CpuId {
        CpuId(ME.with(Cell::get))
    }
    fn features(&self) -> Features {
        self.features
    }
    fn shares_lines_from(&self) -> usize {
        if self.shares { 1 } else { usize::MAX }
    }
    fn fence(&self) {
        fence(SeqCst);
    }
    fn invalidate(&self, what: Invalidation) {
        self.tlb(|tlb| tlb.invalidate(what));
    }
    unsafe fn load_root(&self, root: Frame, tag: Tag, keep: bool) {
        self.tlb(|tlb| {
            (tlb.root, tlb.tag) = (root.0, usize::from(tag.0));
            if !keep {
                tlb.entries[tlb.tag] = [false; PAGES];
            }
        });
    }
    fn unload_root(&self) {
        self.tlb(|tlb| tlb.root = 0);
    }
    fn synchronize_text(&self) {
        self.forget_fetched();
    }
    fn interrupt(&self, targets: &CpuSet) {
        for cpu in targets.iter() {
            // This is a swap instead of a store, because loom may order a store before an earlier swap.
            self.pending[cpu.index()].swap(true, Release);
        }
        reach(PausePoint::Sent);
    }
    fn mask_interrupts(&self) -> bool {
        false
    }
    fn restore_interrupts(&self, _: bool) {}
    fn relax(&self) {
        let turns = self.turns.fetch_add(1, Relaxed);
        assert!(turns < MANY_TURNS, "C7: every CPU waits");
        if turns > ENOUGH_TURNS {
            loom::skip_branch();
        }
        thread::yield_now();
    }
}

impl PhysicalMemory for Machine {
    unsafe fn zero(&self, extent: Extent, _: Strategy) {
        // SAFETY: loom reports it if another thread reads at the same time.
        self.frames[extent.first.0 as usize].with_mut(|cell| unsafe { *cell = 0 });
    }
}

/// The state that all CPUs share.
pub struct World {
    pub hw: &'static Machine,
    pub engine: Engine<'static, Machine>,
    pub space: AddressSpace<Machine>,
    pub other: AddressSpace<Machine>,
    pub third: AddressSpace<Machine>,
    /// The kernel's own mappings. They are the same pages, for a program that is the kernel.
    pub own: AddressSpace<Machine>,
    pub deferred_flush: DeferredFlush<Machine>,
}

std::thread_local! {
    /// Values of this execution, which are dropped when it has ended.
    static LEAKED: std::cell::RefCell<Vec<Box<dyn FnOnce()>>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Shares a value with all threads of an execution, however long they live.
pub fn leak<T: 'static>(value: T) -> &'static T {
    let place = Box::into_raw(Box::new(value));
    // SAFETY: the place comes from a box and is freed once.
    let free = move || drop(unsafe { Box::from_raw(place) });
    LEAKED.with_borrow_mut(|leaked| leaked.push(Box::new(free)));
    // SAFETY: the place contains a value until `forget_last`, which is called when no thread uses it any more.
    unsafe { &*place }
}

/// Frees the memory that the last execution on this thread leaked.
pub fn forget_last() {
    LEAKED.take().into_iter().for_each(|free| free());
}

/// A program, or a CPU's preparation before the programs start.
pub type Program = fn(&World);

impl World {
    /// Creates a world in which all CPUs are online. Each has made its preparation, the last CPU first.
    pub fn new(setup: &Setup) -> &'static World {
        let cpus = setup.programs.len() + setup.held_up.len();
        let hw = leak(Machine::new(cpus, setup.broadcast, setup.shares));
        let per_cpu: Vec<PerCpuData<'static, Machine>> =
            (0..cpus).map(|_| PerCpuData::new()).collect();
        let ledger: Vec<LedgerEntry<Machine>> =
            (0..setup.ledger).map(|_| LedgerEntry::new()).collect();
        let engine = Engine::new(hw, leak(per_cpu), leak(ledger), setup.policy);
        let engine = engine.expect("a machine that holds");
        let world = leak(World {
            hw,
            space: new_space(&engine, ROOT),
            other: new_space(&engine, ROOT + 1),
            third: new_space(&engine, ROOT + 2),
            // SAFETY: in this machine in software a root is just a number, and every number is valid.
            own: unsafe { engine.new_kernel_space(Frame(ROOT), KernelEntries::Global) },
            deferred_flush: DeferredFlush::new(),
            engine,
        });
        for cpu in (0..cpus as u16).rev() {
            be(cpu);
            world.engine.cpu_online();
            (setup.prepare)(world);
        }
        world
    }

    /// Switches this CPU from one space to another.
    pub fn switch(&self, from: Option<&AddressSpace<Machine>>, to: &AddressSpace<Machine>) {
        self.engine.this_cpu().mask_interrupts().switch(from, to);
    }

    /// Serves this CPU's requests, as the handler of the shootdown interrupt.
    pub fn handle_interrupt(&self) {
        self.engine.this_cpu().mask_interrupts().on_interrupt();
    }

    pub fn me(&self) -> u16 {
        self.hw.this_cpu().0
    }

    /// Ends this CPU's program.
    pub fn end(&self) {
        self.hw.over.fetch_add(1, Release);
    }

    /// Takes interrupts until all programs have ended.
    pub fn serve(&self, programs: usize) {
        while self.hw.over.load(Acquire) < programs {
            if self.hw.pending[usize::from(self.me())].swap(false, Acquire) {
                self.handle_interrupt();
            } else {
                self.hw.relax();
            }
        }
    }

    /// Clears the page's entry. The engine makes the change visible.
    pub fn clear(&self, page: usize) -> PageRange {
        self.hw.table[page].store(false, Relaxed);
        PageRange::base(Page(page as u64), 1)
    }

    /// Unmaps a page, waits for the flush, and gives the frame to a new owner.
    pub fn unmap(&self, page: usize, purpose: Purpose, scope: Scope) {
        // We don't drop the batch: when a wait is abandoned, it would flush and wait again.
        let mut batch = ManuallyDrop::new(self.engine.batch(purpose));
        let range = self.clear(page);
        match scope {
            Scope::Leaf => batch.unmapped(&self.space, range, page),
            Scope::Tables => batch.table_unlinked(&self.space, range, page),
        }
        for page in batch.finish() {
            self.hw.own(page);
        }
    }

    /// Unmaps a page like [`World::unmap`], with CPU 1 running the space. Waits beyond its receipt. Then the
    /// invalidation itself must have been made, and we check that.
    pub fn unmap_for_good(&self, scope: Scope) {
        self.unmap(0, Purpose::Call, scope);
        assert!(!self.hw.holds(1, 0), "the other CPU still holds the page");
    }

    /// Unmaps page 0, and defers the flush if possible.
    pub fn unmap_lazily(&self) {
        self.deferred_flush.begin();
        let mut batch = self.engine.batch(Purpose::Lazy);
        let range = self.clear(0);
        batch.unmapped(&self.space, range, 0);
        match batch.finish_deferred() {
            Outcome::Deferred(deferred) => self.deferred_flush.defer(deferred.stamp()),
            Outcome::Flushed(_) => self.deferred_flush.clear(),
        }
    }

    /// Gives the frame of page 0 to a new owner. Does nothing if its flush isn't deferred.
    pub fn flush_before_reuse(&self) {
        if self.engine.flush_before_reuse(&self.deferred_flush).is_some() {
            self.hw.own(0);
        }
    }

    /// Drops the table's lock.
    pub fn unlock(&self) {
        self.hw.unlocked.store(true, Release);
    }

    /// Takes the table's lock if it is free. Returns whether it did.
    pub fn locks(&self) -> bool {
        self.hw.unlocked.load(Acquire)
    }
}

/// Creates a space with this root.
pub fn new_space(engine: &Engine<'static, Machine>, root: u64) -> AddressSpace<Machine> {
    // SAFETY: in this machine in software a root is just a number, and every number is valid.
    unsafe { engine.new_space(Frame(root)) }
}

//! A machine of threads, for the suite in Rust and through the C interface.
//!
//! A CPU is a thread. Its TLB and its walker cache are maps that never drop an entry themselves, so a missing
//! invalidation leaves a stale entry. CPUs take interrupts at accesses and in waiting loops. A broadcast takes effect
//! when its sender waits for it, not before.

use crate::{Bench, Rights};
use quell::{
    Broadcast, CpuId, CpuSet, Extent, Features, Frame, Hardware, Invalidation, KernelEntries, Page,
    PageRange, Scope, Tag, Tagging, Word,
};
use quell_zero::{PhysicalMemory, Strategy};
use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, Ordering::SeqCst};
use std::sync::{Mutex, OnceLock};

/// The number of CPUs.
pub const CPUS: usize = 3;
const FRAMES: usize = 128;
/// The number of turns of a wait for an interrupt after which the machine's watchdog ends the wait.
const HANG: u64 = 1000;

/// The fault of a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    Nothing,
    /// The engine contains this mutant.
    #[cfg(quell_mutants)]
    Mutant(&'static str),
    /// The initiator doesn't wait until broadcasts are complete.
    NoCompletion,
    /// Walker caches keep the entries of unlinked tables.
    LeafOnly,
    /// Local invalidations do nothing.
    NoInvalidation,
    /// Broadcasts reach only their sender.
    NoBroadcast,
    /// Interrupts that were masked twice are turned on by the first restore.
    MaskDoesNotNest,
    /// Loading a root always keeps its tag's entries.
    AlwaysKeeps,
    /// Zeroing leaves out the last word of a frame.
    ShortZeroing,
    /// The last CPU has the number of the CPU before it.
    OneNumberForTwo,
    /// The last CPU's number isn't below the number of CPUs.
    NumberTooHigh,
    /// An addition to a word is a load and a store.
    TornWords,
    /// A root stays loaded when its CPU leaves it.
    RootStays,
    /// Some roots don't map the kernel's half.
    RootsWithoutKernel,
    /// Sending an interrupt waits until its target has taken it.
    InterruptWaits,
    /// The tables of a process don't map the kernel's half.
    ProcessWithoutKernel,
    /// The device receives no commands.
    DeviceNotTold,
    /// The device reports that it's done before it is.
    DeviceAnswersEarly,
    /// A mark covers none of the commands that were started.
    MarkOfNothing,
    /// Global entries stay where everything must be dropped.
    KeepsGlobal,
    /// Entries of the kernel's half stay.
    KeepsKernel,
}

impl Mistake {
    /// Returns whether CPUs have wrong numbers. Such CPUs neither come online nor load anything.
    pub fn is_of_numbers(self) -> bool {
        matches!(self, Mistake::OneNumberForTwo | Mistake::NumberTooHigh)
    }
}

/// A device that walks the tables: its translations, and the commands sent to it.
#[derive(Default)]
struct Device {
    held: HashMap<(Frame, Page), u64>,
    /// The roots that the device has used.
    roots: BTreeSet<Frame>,
    told: Vec<(Frame, Option<PageRange>)>,
    carried_out: usize,
}

/// The cached translations of one CPU, and the cached tables above them.
#[derive(Default)]
struct Tlb {
    root: Option<(Frame, Tag)>,
    /// The global entries of the kernel's half are under [`GLOBAL_TAG`].
    leaves: HashMap<(Tag, Page), u64>,
    tables: HashMap<(Tag, u64), Frame>,
}

impl Tlb {
    /// Drops entries. If tags mean the same `everywhere`, entries of the kernel's half are dropped under all tags.
    fn invalidate(&mut self, what: Invalidation, everywhere: bool) {
        match what {
            Invalidation::Range { tag, range, scope } => {
                self.leaves.retain(|(held, page), _| *held != tag || !range.contains(*page));
                if scope == Scope::Tables {
                    let spans = range.start.0 / 512..=(range.end().0 - 1) / 512;
                    self.tables.retain(|(held, span), _| *held != tag || !spans.contains(span));
                }
            }
            Invalidation::Tag(tag) => {
                self.leaves.retain(|(held, _), _| *held != tag);
                self.tables.retain(|(held, _), _| *held != tag);
            }
            Invalidation::All => {
                self.leaves.retain(|(held, _), _| *held == GLOBAL_TAG);
                self.tables.clear();
            }
            Invalidation::Kernel { range, .. } => {
                let loaded = self.loaded();
                self.leaves.retain(|(held, page), _| {
                    !(everywhere || *held == loaded || *held == GLOBAL_TAG)
                        || !range.contains(*page)
                });
            }
            Invalidation::Everything => {
                self.leaves.clear();
                self.tables.clear();
            }
        }
    }

    /// Returns the loaded tag, or the kernel's if no root is loaded.
    fn loaded(&self) -> Tag {
        self.root.map_or(Tag::KERNEL, |(_, tag)| tag)
    }
}

#[derive(Default)]
struct Cpu {
    tlb: Mutex<Tlb>,
    interrupted: AtomicBool,
    masked: AtomicBool,
    broadcasts: Mutex<Vec<Invalidation>>,
}

/// A word of the machine's memory.
pub struct ToyWord(AtomicU64);

thread_local! {
    /// Whether this CPU's additions are torn.
    static TORN: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: the word is an atomic of the standard library. If additions are torn on purpose, the suite ends before the
// engine relies on one.
unsafe impl Word for ToyWord {
    fn new(value: u64) -> Self {
        ToyWord(AtomicU64::new(value))
    }
    fn fence(order: Ordering) {
        std::sync::atomic::fence(order);
    }
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.0.swap(value, order)
    }
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.0.compare_exchange(current, new, success, failure)
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        if !TORN.get() {
            return self.0.fetch_add(value, order);
        }
        let held = self.0.load(SeqCst);
        if held.is_multiple_of(64) {
            std::thread::yield_now();
        }
        self.0.store(held.wrapping_add(value), SeqCst);
        held
    }
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_or(value, order)
    }
    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_and(value, order)
    }
}

/// A machine of threads. If `SECONDARY` is set, the engine knows that the machine's device walks the tables, too.
pub struct Toy<const SECONDARY: bool = true> {
    pub wrong: Mistake,
    pub tagging: Tagging,
    memory: Vec<[AtomicU64; 512]>,
    next_frame: AtomicUsize,
    /// The entries of the two pages of the kernel's half.
    own: [AtomicU64; 2],
    /// Frames and roots that the suite took and hasn't given back.
    pub taken: Mutex<BTreeSet<Frame>>,
    cpus: [Cpu; CPUS],
    device: Mutex<Device>,
    /// The root of a process that ran before the suite.
    pub process: OnceLock<Frame>,
    /// Whether the watchdog found a CPU that made no progress, and let it continue.
    pub hung: AtomicBool,
    /// Whether a CPU has panicked, so that the others don't wait for it.
    failed: AtomicBool,
    handler: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

thread_local! {
    static ME: Cell<usize> = const { Cell::new(0) };
    /// The number of turns of waiting loops that this thread has made.
    static TURNS: Cell<u64> = const { Cell::new(0) };
}

/// Records a panic of its CPU.
pub struct PanicGuard<'t>(&'t AtomicBool);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(std::thread::panicking(), SeqCst);
    }
}

/// The bits of a leaf entry besides the frame's address.
const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const GLOBAL: u64 = 4;
/// The tag under which we keep global entries.
const GLOBAL_TAG: Tag = Tag(u16::MAX);
/// The first page of the kernel's half.
const OWN: Page = Page(1 << 40);

impl<const S: bool> Toy<S> {
    pub fn new(tagging: Tagging, wrong: Mistake) -> Self {
        Toy {
            wrong,
            tagging,
            // Frame 0 means "no table".
            memory: (0..FRAMES).map(|_| [const { AtomicU64::new(0) }; 512]).collect(),
            next_frame: AtomicUsize::new(1),
            own: Default::default(),
            taken: Mutex::default(),
            cpus: Default::default(),
            device: Mutex::default(),
            process: OnceLock::new(),
            hung: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            handler: OnceLock::new(),
        }
    }

    /// Makes this thread a CPU.
    pub fn enter(&self, cpu: usize) -> PanicGuard<'_> {
        ME.set(cpu);
        TORN.set(self.wrong == Mistake::TornWords);
        PanicGuard(&self.failed)
    }

    /// Sets the handler of the shootdown interrupt.
    pub fn handle_with(&self, handler: impl Fn() + Send + Sync + 'static) {
        let _ = self.handler.set(Box::new(handler));
    }

    fn me(&self) -> &Cpu {
        &self.cpus[ME.get()]
    }

    /// Masks or unmasks the interrupts of this CPU.
    pub fn masks(&self, masked: bool) {
        self.me().masked.store(masked, SeqCst);
    }

    pub fn is_masked(&self) -> bool {
        self.me().masked.load(SeqCst)
    }

    fn frame(&self, frame: Frame) -> &[AtomicU64; 512] {
        &self.memory[frame.0 as usize]
    }

    pub fn allocate(&self, frames: u64) -> Extent {
        let first = self.next_frame.fetch_add(frames as usize, SeqCst);
        assert!(first + frames as usize <= FRAMES, "too few frames");
        Extent { first: Frame(first as u64), frames }
    }

    /// Takes a pending interrupt unless interrupts are masked.
    fn poll(&self) {
        let me = self.me();
        if !self.is_masked() && me.interrupted.swap(false, SeqCst) {
            self.masks(true);
            self.handler.get().expect("set before the CPUs run")();
            self.masks(false);
        }
    }

    /// Calls `then` with the word at an address, if the access is allowed. This happens under the TLB's lock, so that a
    /// broadcast waits for it.
    fn access<T>(
        &self,
        address: u64,
        rights: Rights,
        then: impl FnOnce(&AtomicU64) -> T,
    ) -> Option<T> {
        self.poll();
        let mut tlb = self.me().tlb.lock().unwrap();
        let (root, tag) = tlb.root?;
        let page = Page::containing(address);
        let entry = match tlb.leaves.get(&(tag, page)) {
            Some(entry) => *entry,
            None => {
                let span = page.0 / 512;
                let walk = || Frame(self.frame(root)[span as usize % 512].load(SeqCst));
                let table = tlb.tables.get(&(tag, span)).copied().unwrap_or_else(walk);
                if table.0 == 0 {
                    return None;
                }
                tlb.tables.insert((tag, span), table);
                let entry = self.frame(table)[page.0 as usize % 512].load(SeqCst);
                if entry & PRESENT != 0 {
                    tlb.leaves.insert((tag, page), entry);
                }
                entry
            }
        };
        let allowed = entry & PRESENT != 0 && (rights == Rights::Read || entry & WRITABLE != 0);
        let frame = self.frame(Frame(entry >> 12));
        allowed.then(|| then(&frame[(address % 4096 / 8) as usize]))
    }

    /// Invalidates entries in a TLB of this machine, with the machine's mistake.
    fn forget(&self, tlb: &mut Tlb, what: Invalidation) {
        let what = match (self.wrong, what) {
            (Mistake::LeafOnly, Invalidation::Range { tag, range, .. }) => {
                Invalidation::Range { tag, range, scope: Scope::Leaf }
            }
            (Mistake::KeepsGlobal, Invalidation::Everything) => Invalidation::All,
            (Mistake::KeepsKernel, Invalidation::Kernel { .. }) => return,
            _ => what,
        };
        tlb.invalidate(what, matches!(self.tagging, Tagging::Global { .. }));
    }

    /// Returns the frame of a page of the kernel's half, or `None` if the load faults.
    fn own_frame(&self, page: Page) -> Option<Frame> {
        self.poll();
        let mut tlb = self.me().tlb.lock().unwrap();
        let without = |root: Frame| match self.wrong {
            Mistake::RootsWithoutKernel => root.0.is_multiple_of(2),
            Mistake::ProcessWithoutKernel => self.process.get() == Some(&root),
            _ => false,
        };
        if tlb.root.is_some_and(|(root, _)| without(root)) {
            return None;
        }
        let held = [tlb.loaded(), GLOBAL_TAG].map(|tag| tlb.leaves.get(&(tag, page)).copied());
        let entry = held[0].or(held[1]).unwrap_or_else(|| {
            let entry = self.own[(page.0 - OWN.0) as usize].load(SeqCst);
            if entry & PRESENT != 0 {
                let global = entry & GLOBAL != 0;
                let tag = if global { GLOBAL_TAG } else { tlb.loaded() };
                tlb.leaves.insert((tag, page), entry);
            }
            entry
        });
        (entry & PRESENT != 0).then_some(Frame(entry >> 12))
    }
}

impl<const S: bool> Broadcast for Toy<S> {
    fn start(&self, what: Invalidation) {
        self.me().broadcasts.lock().unwrap().push(what);
    }

    fn complete(&self) {
        if self.wrong == Mistake::NoCompletion {
            return;
        }
        let sent = std::mem::take(&mut *self.me().broadcasts.lock().unwrap());
        for (index, cpu) in self.cpus.iter().enumerate() {
            if self.wrong != Mistake::NoBroadcast || index == ME.get() {
                let mut tlb = cpu.tlb.lock().unwrap();
                sent.iter().for_each(|what| self.forget(&mut tlb, *what));
            }
        }
    }
}

// SAFETY: this is a machine in software, whose translations reach only its own words. That also holds for a machine
// with a fault.
unsafe impl<const S: bool> Hardware for Toy<S> {
    const HAS_SECONDARY: bool = S;

    type Word = ToyWord;
    type Broadcasts = Self;

    fn broadcasts(&self) -> Option<&Self> {
        Some(self)
    }

    fn this_cpu(&self) -> CpuId {
        let last = ME.get() == CPUS - 1;
        CpuId(match self.wrong {
            Mistake::OneNumberForTwo if last => CPUS - 2,
            Mistake::NumberTooHigh if last => CPUS,
            _ => ME.get(),
        } as u16)
    }

    fn features(&self) -> Features {
        Features {
            tagging: self.tagging,
            broadcast: matches!(self.tagging, Tagging::Global { .. }),
            // To distinguish walker caches from leaf entries, this must exceed the number of pages in a table.
            full_above: match self.tagging {
                Tagging::PerCpu { .. } => 600,
                _ => 33,
            },
        }
    }

    fn fence(&self) {
        std::sync::atomic::fence(SeqCst);
    }

    fn invalidate(&self, what: Invalidation) {
        if self.wrong != Mistake::NoInvalidation {
            self.forget(&mut self.me().tlb.lock().unwrap(), what);
        }
    }

    unsafe fn load_root(&self, root: Frame, tag: Tag, keep: bool) {
        let mut tlb = self.me().tlb.lock().unwrap();
        tlb.root = Some((root, tag));
        if !keep && self.wrong != Mistake::AlwaysKeeps {
            tlb.invalidate(Invalidation::Tag(tag), false);
        }
    }

    fn unload_root(&self) {
        if self.wrong == Mistake::RootStays {
            return;
        }
        let mut tlb = self.me().tlb.lock().unwrap();
        tlb.root = None;
        tlb.invalidate(Invalidation::Tag(Tag::KERNEL), false);
    }

    fn start_secondary(&self, root: Frame, range: Option<PageRange>, _scope: Scope) {
        if self.wrong != Mistake::DeviceNotTold {
            self.device.lock().unwrap().told.push((root, range));
        }
    }

    fn mark_secondary(&self) -> u64 {
        if self.wrong == Mistake::MarkOfNothing {
            return 0;
        }
        self.device.lock().unwrap().told.len() as u64
    }

    fn secondary_is_done(&self, mark: u64) -> bool {
        if self.wrong == Mistake::DeviceAnswersEarly {
            return true;
        }
        let device = &mut *self.device.lock().unwrap();
        // The device executes one command each time that somebody checks for completion.
        if (device.carried_out as u64) < mark {
            let (root, range) = device.told[device.carried_out];
            device.carried_out += 1;
            device.held.retain(|(of, page), _| {
                *of != root || range.is_some_and(|range| !range.contains(*page))
            });
        }
        device.carried_out as u64 >= mark
    }

    fn secondary_is_attached(&self, root: Frame) -> bool {
        self.device.lock().unwrap().roots.contains(&root)
    }

    fn interrupt(&self, targets: &CpuSet) {
        for target in targets.iter() {
            let interrupted = &self.cpus[target.index()].interrupted;
            interrupted.store(true, SeqCst);
            let mut turns = 0;
            let waits = self.wrong == Mistake::InterruptWaits;
            while waits && interrupted.load(SeqCst) && !self.hung.load(SeqCst) {
                turns += 1;
                self.hung.fetch_or(turns > HANG, SeqCst);
                self.relax();
            }
        }
    }

    fn mask_interrupts(&self) -> bool {
        !self.me().masked.swap(true, SeqCst) || self.wrong == Mistake::MaskDoesNotNest
    }

    fn restore_interrupts(&self, were_on: bool) {
        self.masks(!were_on);
        self.poll();
    }

    fn relax(&self) {
        assert!(!self.failed.load(SeqCst), "another CPU has panicked");
        self.poll();
        // We yield only at every 128th turn: on a busy host it takes long until this thread runs again.
        TURNS.set(TURNS.get() + 1);
        if TURNS.get().is_multiple_of(128) {
            std::thread::yield_now();
        }
    }
}

impl<const S: bool> PhysicalMemory for Toy<S> {
    unsafe fn zero(&self, extent: Extent, _strategy: Strategy) {
        let short = usize::from(self.wrong == Mistake::ShortZeroing);
        for frame in 0..extent.frames {
            for word in &self.frame(extent.first.plus(frame))[..512 - short] {
                word.store(0, SeqCst);
            }
        }
    }
}

// SAFETY: frames and roots are indices into this machine's own memory.
unsafe impl<const S: bool> Bench for Toy<S> {
    fn cpus(&self) -> usize {
        CPUS
    }

    fn take_frames(&self, frames: u64) -> Extent {
        let extent = self.allocate(frames);
        let mut taken = self.taken.lock().unwrap();
        taken.extend((0..frames).map(|frame| extent.first.plus(frame)));
        extent
    }

    fn give_back(&self, frames: Extent) {
        let mut taken = self.taken.lock().unwrap();
        for frame in (0..frames.frames).map(|frame| frames.first.plus(frame)) {
            assert!(taken.remove(&frame), "{frame:?} was not taken");
        }
    }

    fn new_root(&self) -> Frame {
        self.take_frames(1).first
    }

    fn free_tables(&self, top: Frame) {
        // Only roots are in `taken`: `set` made the tables below them.
        self.taken.lock().unwrap().remove(&top);
    }

    fn set(&self, root: Frame, page: Page, to: Option<(Frame, Rights)>) {
        let above = &self.frame(root)[(page.0 / 512) as usize % 512];
        if above.load(SeqCst) == 0 {
            let table = self.allocate(1).first;
            // If another CPU has made a table meanwhile, the test loses this frame.
            let _ = above.compare_exchange(0, table.0, SeqCst, SeqCst);
        }
        let table = Frame(above.load(SeqCst));
        let entry = to.map_or(0, |(frame, rights)| {
            let writable = (rights == Rights::Write) as u64 * WRITABLE;
            frame.0 << 12 | writable | PRESENT
        });
        self.frame(table)[page.0 as usize % 512].store(entry, SeqCst);
    }

    fn unlink_table(&self, root: Frame, page: Page) -> Frame {
        Frame(self.frame(root)[(page.0 / 512) as usize % 512].swap(0, SeqCst))
    }

    fn own_half(&self) -> Option<(Frame, Page)> {
        Some((Frame(0), OWN))
    }

    fn set_own(&self, page: Page, to: Option<(Frame, KernelEntries)>) {
        let entry = to.map_or(0, |(frame, entries)| {
            let global = (entries == KernelEntries::Global) as u64 * GLOBAL;
            frame.0 << 12 | global | PRESENT
        });
        self.own[(page.0 - OWN.0) as usize].store(entry, SeqCst);
    }

    fn try_read_own(&self, address: u64) -> Option<u64> {
        let frame = self.own_frame(Page::containing(address))?;
        Some(self.word(frame, (address % 4096 / 8) as usize))
    }

    fn has_device(&self) -> bool {
        true
    }

    fn try_read_by_device(&self, root: Frame, address: u64) -> Option<u64> {
        let device = &mut *self.device.lock().unwrap();
        let page = Page::containing(address);
        device.roots.insert(root);
        let walk = || match self.frame(root)[(page.0 / 512) as usize % 512].load(SeqCst) {
            0 => 0,
            table => self.frame(Frame(table))[page.0 as usize % 512].load(SeqCst),
        };
        let entry = device.held.get(&(root, page)).copied();
        let entry = entry.unwrap_or_else(walk);
        if entry & PRESENT == 0 {
            return None;
        }
        device.held.insert((root, page), entry);
        Some(self.word(Frame(entry >> 12), (address % 4096 / 8) as usize))
    }

    fn detach_device(&self, root: Frame) {
        let device = &mut *self.device.lock().unwrap();
        device.roots.remove(&root);
        device.held.retain(|(of, _), _| *of != root);
    }

    fn word(&self, frame: Frame, index: usize) -> u64 {
        self.frame(frame)[index].load(SeqCst)
    }

    fn set_word(&self, frame: Frame, index: usize, value: u64) {
        self.frame(frame)[index].store(value, SeqCst);
    }

    fn try_read(&self, address: u64) -> Option<u64> {
        self.access(address, Rights::Read, |word| word.load(SeqCst))
    }

    fn try_write(&self, address: u64, value: u64) -> bool {
        self.access(address, Rights::Write, |word| word.store(value, SeqCst)).is_some()
    }
}

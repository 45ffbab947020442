//! A machine of threads: it implements the suite's `Bench` and the functions that `quell.h` requires.
//!
//! A CPU is a thread. Its TLB and its walker cache are maps that never drop an entry by themselves. A CPU takes
//! interrupts at accesses and in waiting loops. A broadcast takes effect when its sender waits for it, not before.

use crate::bench::{Bench, Rights};
use engine::{
    CpuId, CpuSet, Extent, Features, Frame, Hardware, Invalidation, KernelEntries, NoBroadcasts,
    Page, Tag, Tagging,
};
use quell_c::machine::{quell_cpu_set, quell_invalidation, quell_invalidation_kind};
use quell_c::place::{quell_cpu, quell_engine};
use quell_c::values::quell_scope;
use quell_zero::{PhysicalMemory, Strategy};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::SeqCst};

pub const CPUS: usize = 3;
const FRAMES: usize = 128;
const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const GLOBAL: u64 = 4;
/// The tag of global entries in a TLB.
const GLOBAL_TAG: u16 = u16::MAX;
/// The first page of the kernel's half.
const OWN: Page = Page(1 << 40);

/// A mistake: of the machine, or of its embedder's calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    Nothing,
    /// Loading a root keeps its tag's entries, even without `keep`.
    AlwaysKeeps,
    /// Walker caches keep entries of unlinked tables.
    LeafOnly,
    /// The initiator doesn't wait until broadcasts are complete.
    NoCompletion,
    /// Batches are never finished.
    NotFinished,
    /// A batch gets a page of another table.
    PageTooFar,
    /// An unlinked table is reported as an unmapped page.
    TablesAsLeaves,
    /// Later observers don't flush pending changes.
    NotFlushed,
    /// Frames are reused without their deferred flush.
    NotReused,
    /// The machine keeps global entries where it must drop everything.
    KeepsGlobal,
    /// The machine keeps entries of the kernel's half.
    KeepsKernel,
    /// Addresses of the kernel's half are used again without their deferred flush.
    StampNotFlushed,
    /// The kernel space with tagged entries is made as if they were global.
    TaggedAsGlobal,
    /// A CPU enters the kernel without a call of quell_enter_kernel.
    EntersUnsaid,
}

#[derive(Default)]
struct Tlb {
    root: Option<(u64, u16)>,
    /// Leaf entries by tag and page. Global entries of the kernel's half have [`GLOBAL_TAG`].
    leaves: HashMap<(u16, u64), u64>,
    tables: HashMap<(u16, u64), u64>,
}

impl Tlb {
    /// Returns the loaded tag, which is the kernel's if no root is loaded.
    fn loaded(&self) -> u16 {
        self.root.map_or(Tag::KERNEL.0, |(_, tag)| tag)
    }

    /// Invalidates entries. If tags mean the same `everywhere`, an invalidation in the kernel's half covers all tags.
    fn invalidate(&mut self, what: &quell_invalidation, everywhere: bool) {
        let (tag, range) = (what.tag, what.range);
        match what.kind {
            quell_invalidation_kind::Range => {
                let end = range.start + range.pages;
                let pages = range.start..end;
                self.leaves.retain(|(held, page), _| *held != tag || !pages.contains(page));
                if what.scope == quell_scope::Tables {
                    let spans = range.start / 512..=(end - 1) / 512;
                    self.tables.retain(|(held, span), _| *held != tag || !spans.contains(span));
                }
            }
            quell_invalidation_kind::Tag => {
                self.leaves.retain(|(held, _), _| *held != tag);
                self.tables.retain(|(held, _), _| *held != tag);
            }
            quell_invalidation_kind::All => {
                self.leaves.retain(|(held, _), _| *held == GLOBAL_TAG);
                self.tables.clear();
            }
            quell_invalidation_kind::Kernel => {
                let (loaded, pages) = (self.loaded(), range.start..range.start + range.pages);
                self.leaves.retain(|(held, page), _| {
                    !(everywhere || [loaded, GLOBAL_TAG].contains(held)) || !pages.contains(page)
                });
            }
            quell_invalidation_kind::Everything => {
                self.leaves.clear();
                self.tables.clear();
            }
        }
    }
}

#[derive(Default)]
struct Cpu {
    tlb: Mutex<Tlb>,
    interrupted: AtomicBool,
    masked: AtomicBool,
    broadcasts: Mutex<Vec<quell_invalidation>>,
}

pub struct Kernel {
    pub tagging: Tagging,
    wrong: Mistake,
    memory: Vec<[AtomicU64; 512]>,
    next_frame: AtomicUsize,
    /// The entries of the two pages of the kernel's half.
    own: [AtomicU64; 2],
    cpus: [Cpu; CPUS],
    engine: AtomicPtr<quell_engine>,
    /// The engine's state for each CPU.
    states: [AtomicPtr<quell_cpu>; CPUS],
    /// Set if a CPU has panicked, so that the others don't wait for it.
    failed: AtomicBool,
}

/// Records a panic of its CPU.
pub struct PanicGuard(&'static Kernel);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        self.0.failed.fetch_or(std::thread::panicking(), SeqCst);
    }
}

thread_local! {
    /// This thread's machine, and the number of its CPU.
    static HERE: Cell<(Option<&'static Kernel>, usize)> = const { Cell::new((None, 0)) };
    /// The number of turns of waiting loops that this thread has made.
    static TURNS: Cell<u64> = const { Cell::new(0) };
}

fn here() -> &'static Kernel {
    HERE.get().0.expect("this thread is a CPU")
}

impl Kernel {
    /// Creates a machine, which is never freed.
    pub fn new(tagging: Tagging, wrong: Mistake) -> &'static Kernel {
        Box::leak(Box::new(Kernel {
            tagging,
            wrong,
            // Frame 0 means "no table".
            memory: (0..FRAMES).map(|_| [const { AtomicU64::new(0) }; 512]).collect(),
            next_frame: AtomicUsize::new(1),
            own: Default::default(),
            cpus: Default::default(),
            engine: AtomicPtr::default(),
            states: Default::default(),
            failed: AtomicBool::default(),
        }))
    }

    /// Makes this thread a CPU of the machine.
    pub fn enter(&'static self, cpu: usize) -> PanicGuard {
        HERE.set((Some(self), cpu));
        PanicGuard(self)
    }

    /// Sends shootdown interrupts to this engine.
    pub fn handle_with(&self, engine: *mut quell_engine, states: [*mut quell_cpu; CPUS]) {
        for (to, state) in self.states.iter().zip(states) {
            to.store(state, SeqCst);
        }
        self.engine.store(engine, SeqCst);
    }

    /// Returns the engine's state for this CPU.
    pub fn state(&self) -> *mut quell_cpu {
        self.states[HERE.get().1].load(SeqCst)
    }

    /// Calls `what` with the interrupts of this CPU masked.
    pub fn masked<T>(what: impl FnOnce() -> T) -> T {
        let were_on = quell_hw_mask_interrupts();
        let result = what();
        quell_hw_restore_interrupts(were_on);
        result
    }

    /// Returns the engine's state for this thread's CPU.
    pub fn here() -> *mut quell_cpu {
        here().state()
    }

    /// Returns the mistake of this thread's machine.
    pub fn wrong() -> Mistake {
        here().wrong
    }

    fn me(&self) -> &Cpu {
        &self.cpus[HERE.get().1]
    }

    fn frame(&self, frame: u64) -> &[AtomicU64; 512] {
        &self.memory[frame as usize]
    }

    /// Takes a pending interrupt unless interrupts are masked.
    fn poll(&self) {
        let me = self.me();
        if !me.masked.load(SeqCst) && me.interrupted.swap(false, SeqCst) {
            me.masked.store(true, SeqCst);
            // SAFETY: CPUs are online, so the engine was made.
            unsafe { quell_c::cpu::quell_on_interrupt(self.engine.load(SeqCst), self.state()) };
            me.masked.store(false, SeqCst);
        }
    }

    /// Translates an address and calls `then` with its word, or returns `None` if the access faults. The access happens
    /// under the TLB's lock, so that a broadcast waits for it.
    fn access<T>(
        &self,
        address: u64,
        rights: Rights,
        then: impl FnOnce(&AtomicU64) -> T,
    ) -> Option<T> {
        self.poll();
        let mut tlb = self.me().tlb.lock().unwrap();
        let (root, tag) = tlb.root?;
        let (page, span) = (address >> 12, address >> 21);
        let entry = match tlb.leaves.get(&(tag, page)) {
            Some(entry) => *entry,
            None => {
                let walk = || self.frame(root)[span as usize % 512].load(SeqCst);
                let table = tlb.tables.get(&(tag, span)).copied().unwrap_or_else(walk);
                if table == 0 {
                    return None;
                }
                tlb.tables.insert((tag, span), table);
                let entry = self.frame(table)[page as usize % 512].load(SeqCst);
                if entry & PRESENT != 0 {
                    tlb.leaves.insert((tag, page), entry);
                }
                entry
            }
        };
        let allowed = entry & PRESENT != 0 && (rights == Rights::Read || entry & WRITABLE != 0);
        allowed.then(|| then(&self.frame(entry >> 12)[address as usize % 4096 / 8]))
    }

    fn tags_are_everybodys(&self) -> bool {
        matches!(self.tagging, Tagging::Global { .. })
    }

    /// Translates a page of the kernel's half, whatever root is loaded.
    fn own_frame(&self, page: Page) -> Option<u64> {
        self.poll();
        let mut tlb = self.me().tlb.lock().unwrap();
        let held = [tlb.loaded(), GLOBAL_TAG].map(|tag| tlb.leaves.get(&(tag, page.0)).copied());
        let entry = held[0].or(held[1]).unwrap_or_else(|| {
            let entry = self.own[(page.0 - OWN.0) as usize].load(SeqCst);
            if entry & PRESENT != 0 {
                let global = entry & GLOBAL != 0;
                let tag = if global { GLOBAL_TAG } else { tlb.loaded() };
                tlb.leaves.insert((tag, page.0), entry);
            }
            entry
        });
        (entry & PRESENT != 0).then_some(entry >> 12)
    }

    /// Invalidates entries in a TLB of this machine, with the machine's mistake.
    fn forget(&self, tlb: &mut Tlb, what: &quell_invalidation) {
        let mut what = *what;
        match (self.wrong, what.kind) {
            (Mistake::LeafOnly, _) => what.scope = quell_scope::Leaf,
            (Mistake::KeepsGlobal, quell_invalidation_kind::Everything) => {
                what.kind = quell_invalidation_kind::All;
            }
            (Mistake::KeepsKernel, quell_invalidation_kind::Kernel) => return,
            _ => {}
        }
        tlb.invalidate(&what, self.tags_are_everybodys());
    }

    /// Masks or unmasks the interrupts of this CPU.
    pub fn masks(&self, masked: bool) {
        self.me().masked.store(masked, SeqCst);
    }
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_this_cpu() -> u32 {
    HERE.get().1 as u32
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_fence() {
    std::sync::atomic::fence(SeqCst);
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_invalidate(what: &quell_invalidation) {
    here().forget(&mut here().me().tlb.lock().unwrap(), what);
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_broadcast_start(what: &quell_invalidation) {
    here().me().broadcasts.lock().unwrap().push(*what);
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_broadcast_complete() {
    if here().wrong == Mistake::NoCompletion {
        return;
    }
    let sent = std::mem::take(&mut *here().me().broadcasts.lock().unwrap());
    for cpu in &here().cpus {
        let mut tlb = cpu.tlb.lock().unwrap();
        (sent.iter()).for_each(|what| here().forget(&mut tlb, what));
    }
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_load_root(root: u64, tag: u16, keep: bool) {
    let mut tlb = here().me().tlb.lock().unwrap();
    tlb.root = Some((root, tag));
    if !keep && here().wrong != Mistake::AlwaysKeeps {
        tlb.leaves.retain(|(held, _), _| *held != tag);
        tlb.tables.retain(|(held, _), _| *held != tag);
    }
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_unload_root() {
    let mut tlb = here().me().tlb.lock().unwrap();
    tlb.root = None;
    let kernel = Tag::KERNEL.0;
    tlb.leaves.retain(|(held, _), _| *held != kernel);
    tlb.tables.retain(|(held, _), _| *held != kernel);
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_interrupt(targets: &quell_cpu_set) {
    for (index, cpu) in here().cpus.iter().enumerate() {
        if targets.bits[index / 64] >> (index % 64) & 1 != 0 {
            cpu.interrupted.store(true, SeqCst);
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_mask_interrupts() -> bool {
    !here().me().masked.swap(true, SeqCst)
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_restore_interrupts(were_on: bool) {
    here().me().masked.store(!were_on, SeqCst);
    here().poll();
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_relax() {
    assert!(!here().failed.load(SeqCst), "another CPU has panicked");
    here().poll();
    // We yield only at every 128th turn: on a busy host it takes long until this thread runs again.
    TURNS.set(TURNS.get().wrapping_add(1));
    if TURNS.get().is_multiple_of(128) {
        std::thread::yield_now();
    }
}

#[unsafe(no_mangle)]
extern "C" fn quell_hw_may_wait() -> bool {
    true
}

// SAFETY: a machine in software, whose translations reach no memory but its own words. The suite uses its features,
// fences, interrupts and turns of a loop. The engine runs on the functions above instead.
unsafe impl Hardware for Kernel {
    type Word = AtomicU64;
    type Broadcasts = NoBroadcasts;

    fn this_cpu(&self) -> CpuId {
        CpuId(HERE.get().1 as u16)
    }
    fn features(&self) -> Features {
        Features {
            tagging: self.tagging,
            broadcast: matches!(self.tagging, Tagging::Global { .. }),
            // More than the 512 pages of a table, where the suite distinguishes walker caches from leaf entries.
            full_above: match self.tagging {
                Tagging::PerCpu { .. } => 600,
                _ => 33,
            },
        }
    }
    fn fence(&self) {
        quell_hw_fence();
    }
    fn invalidate(&self, _what: Invalidation) {
        unreachable!("the engine is on the C functions")
    }
    unsafe fn load_root(&self, _root: Frame, _tag: Tag, _keep: bool) {
        unreachable!("the engine is on the C functions")
    }
    fn unload_root(&self) {
        unreachable!("the engine is on the C functions")
    }
    fn interrupt(&self, _targets: &CpuSet) {
        unreachable!("the engine is on the C functions")
    }
    fn mask_interrupts(&self) -> bool {
        quell_hw_mask_interrupts()
    }
    fn restore_interrupts(&self, were_on: bool) {
        quell_hw_restore_interrupts(were_on);
    }
    fn relax(&self) {
        quell_hw_relax();
    }
}

impl PhysicalMemory for Kernel {
    unsafe fn zero(&self, extent: Extent, _strategy: Strategy) {
        for frame in 0..extent.frames {
            for word in self.frame(extent.first.0 + frame) {
                word.store(0, SeqCst);
            }
        }
    }
}

// SAFETY: frames and roots are numbers, and their words are in this machine's own memory.
unsafe impl Bench for Kernel {
    fn cpus(&self) -> usize {
        CPUS
    }
    fn take_frames(&self, frames: u64) -> Extent {
        let first = self.next_frame.fetch_add(frames as usize, SeqCst);
        assert!(first + frames as usize <= FRAMES, "too few frames");
        let first = Frame(first as u64);
        Extent { first, frames }
    }
    fn new_root(&self) -> Frame {
        self.take_frames(1).first
    }
    fn set(&self, root: Frame, page: Page, to: Option<(Frame, Rights)>) {
        let above = &self.frame(root.0)[(page.0 / 512) as usize % 512];
        if above.load(SeqCst) == 0 {
            let table = self.take_frames(1).first;
            // If another CPU has made a table meanwhile, the test loses this frame.
            let _ = above.compare_exchange(0, table.0, SeqCst, SeqCst);
        }
        let entry = to.map_or(0, |(frame, rights)| {
            let writable = u64::from(rights == Rights::Write) * WRITABLE;
            frame.0 << 12 | writable | PRESENT
        });
        self.frame(above.load(SeqCst))[page.0 as usize % 512].store(entry, SeqCst);
    }
    fn unlink_table(&self, root: Frame, page: Page) -> Frame {
        Frame(self.frame(root.0)[(page.0 / 512) as usize % 512].swap(0, SeqCst))
    }
    fn own_half(&self) -> Option<(Frame, Page)> {
        Some((Frame(0), OWN))
    }
    fn set_own(&self, page: Page, to: Option<(Frame, KernelEntries)>) {
        let entry = to.map_or(0, |(frame, entries)| {
            let global = u64::from(entries == KernelEntries::Global) * GLOBAL;
            frame.0 << 12 | global | PRESENT
        });
        self.own[(page.0 - OWN.0) as usize].store(entry, SeqCst);
    }
    fn try_read_own(&self, address: u64) -> Option<u64> {
        let frame = self.own_frame(Page::containing(address))?;
        Some(self.word(Frame(frame), address as usize % 4096 / 8))
    }
    fn word(&self, frame: Frame, index: usize) -> u64 {
        self.frame(frame.0)[index].load(SeqCst)
    }
    fn set_word(&self, frame: Frame, index: usize, value: u64) {
        self.frame(frame.0)[index].store(value, SeqCst);
    }
    fn try_read(&self, address: u64) -> Option<u64> {
        self.access(address, Rights::Read, |word| word.load(SeqCst))
    }
    fn try_write(&self, address: u64, value: u64) -> bool {
        let wrote = self.access(address, Rights::Write, |word| word.store(value, SeqCst));
        wrote.is_some()
    }
}

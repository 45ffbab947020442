//! The test machine: memory as atomic words, and a translation cache per CPU that keeps everything until it must drop
//! it.
//!
//! CPUs are threads, or one thread plays all of them. In the second case a CPU that waits handles the interrupts of the
//! CPUs that aren't running.

use super::Options;
use quell::{
    Break, Broadcast, CpuId, CpuSet, Extent, Features, Frame, Hardware, Invalidation, Page, Tag,
    Tagging, TlbRules,
};
use quell_vm::{Entry, Event, Level, Machine, MemoryMap};
use quell_zero::{PhysicalMemory, Strategy};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

thread_local! {
    static CPU: Cell<u16> = const { Cell::new(0) };
}

/// Makes the calling thread this CPU from now on.
pub fn be(cpu: usize) {
    CPU.set(cpu as u16);
}

#[derive(Clone, Copy)]
struct CachedTranslation {
    entry: Entry,
    level: Level,
}

#[derive(Default)]
pub struct Cpu {
    root: Option<(Frame, Tag)>,
    tlb: HashMap<(Tag, Page), CachedTranslation>,
}

pub struct TestMachine {
    options: Options,
    first: u64,
    /// The words of each frame, once it is used.
    words: Vec<OnceLock<Box<[AtomicU64; 512]>>>,
    pub cpus: Vec<Mutex<Cpu>>,
    pending: Vec<AtomicBool>,
    masked: Vec<AtomicBool>,
    pub handler: OnceLock<Box<dyn Fn() + Send + Sync>>,
    clock: AtomicU64,
    pub interrupts: AtomicU64,
    pub reinstated: AtomicU64,
    /// How many frames were zeroed.
    pub zeroed: AtomicU64,
    /// Turns of waiting loops so far.
    pub turns: AtomicU64,
    /// The number of times that the manager requested a table's words.
    pub tables_read: AtomicU64,
    at_copy: Mutex<Option<Hook>>,
    at_turn: Mutex<Option<(u64, Hook)>>,
}

/// A callback that runs once, at a moment of the machine.
type Hook = Box<dyn FnOnce() + Send>;

impl TestMachine {
    pub fn new(options: Options) -> Self {
        let nodes = options.map.nodes();
        let first = nodes.iter().map(|node| node.extent.first.0).min().unwrap();
        let last = nodes.iter().map(|node| node.extent.first.0 + node.extent.frames).max().unwrap();
        let cpus = options.cpus;
        TestMachine {
            first,
            words: (first..last).map(|_| OnceLock::new()).collect(),
            cpus: (0..cpus).map(|_| Mutex::default()).collect(),
            pending: (0..cpus).map(|_| AtomicBool::new(false)).collect(),
            masked: (0..cpus).map(|_| AtomicBool::new(false)).collect(),
            handler: OnceLock::new(),
            clock: AtomicU64::new(0),
            interrupts: AtomicU64::new(0),
            reinstated: AtomicU64::new(0),
            zeroed: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            tables_read: AtomicU64::new(0),
            at_copy: Mutex::default(),
            at_turn: Mutex::default(),
            options,
        }
    }

    /// Runs the hook when a CPU is next about to copy a page.
    pub fn at_copy(&self, hook: impl FnOnce() + Send + 'static) {
        *self.at_copy.lock().unwrap() = Some(Box::new(hook));
    }

    /// Runs the hook in the last of this many turns of waiting loops.
    pub fn after_turns(&self, turns: u64, hook: impl FnOnce() + Send + 'static) {
        let when = self.turns.load(SeqCst) + turns;
        *self.at_turn.lock().unwrap() = Some((when, Box::new(hook)));
    }

    fn page(&self, frame: Frame) -> &[AtomicU64; 512] {
        // Memory doesn't start as zeros, so the manager can't rely on that.
        self.words[(frame.0 - self.first) as usize]
            .get_or_init(|| Box::new([const { AtomicU64::new(POISON) }; 512]))
    }

    fn me(&self) -> usize {
        CPU.get() as usize
    }

    /// Takes the interrupts of this CPU, and when alone those of all others.
    fn poll(&self) {
        let me = self.me();
        for cpu in 0..self.cpus.len() {
            if (cpu == me || self.options.alone)
                && !self.masked[cpu].load(SeqCst)
                && self.pending[cpu].swap(false, SeqCst)
            {
                be(cpu);
                self.handler.get().unwrap()();
                be(me);
            }
        }
    }

    fn forget(&self, cpu: usize, what: Invalidation) {
        let mut cpu = self.cpus[cpu].lock().unwrap();
        match what {
            Invalidation::Range { tag, range, .. } => cpu.tlb.retain(|&(of, page), cached| {
                let end = page.0 + cached.level.pages();
                of != tag || end <= range.start.0 || page.0 >= range.end().0
            }),
            Invalidation::Tag(tag) => cpu.tlb.retain(|&(of, _), _| of != tag),
            _ => cpu.tlb.clear(),
        }
    }

    /// Performs one access of a program: through the cache, or else through the tables.
    pub fn access(&self, address: u64, store: Option<u64>) -> Option<u64> {
        self.poll();
        let mut cpu = self.cpus[self.me()].lock().unwrap();
        let (root, tag) = cpu.root.expect("a program runs in some space");
        let page = Page::containing(address);
        let hit = (0..3).find_map(|level| {
            let level = Level(level);
            let base = Page(page.0 & !(level.pages() - 1));
            cpu.tlb.get(&(tag, base)).copied().filter(|cached| cached.level == level)
        });
        let usable = hit.filter(|cached| {
            cached.entry.user && (store.is_none() || cached.entry.writable && cached.entry.dirty)
        });
        let cached = match usable {
            Some(cached) => cached,
            None => {
                let base = |cached: &CachedTranslation| Page(page.0 & !(cached.level.pages() - 1));
                if let Some(old) = hit {
                    cpu.tlb.remove(&(tag, base(&old)));
                }
                let cached = self.walk(root, page, store.is_some())?;
                cpu.tlb.insert((tag, base(&cached)), cached);
                cached
            }
        };
        let frame = cached.entry.frame.plus(page.0 & (cached.level.pages() - 1));
        let word = &self.page(frame)[(address % 4096 / 8) as usize];
        Some(match store {
            Some(value) => word.swap(value, SeqCst),
            None => word.load(SeqCst),
        })
    }

    fn walk(&self, root: Frame, page: Page, store: bool) -> Option<CachedTranslation> {
        let (mut table, mut level) = (root, Level::ROOT);
        loop {
            let word = &self.page(table)[level.index(page)];
            let held = word.load(SeqCst);
            let entry = self.decode(held, level);
            if !entry.present {
                return None;
            }
            if entry.table {
                (table, level) = (entry.frame, Level(level.0 - 1));
                continue;
            }
            if !entry.user
                || store && !entry.writable
                || !entry.accessed && !self.options.hardware_dirty
            {
                return None;
            }
            if store && !entry.dirty && !self.options.hardware_dirty {
                return None;
            }
            let new = Entry { accessed: true, dirty: entry.dirty || store, ..entry };
            let raw = self.encode(new, level);
            if raw == held || word.compare_exchange(held, raw, SeqCst, SeqCst).is_ok() {
                return Some(CachedTranslation { entry: new, level });
            }
        }
    }
}

const POISON: u64 = 0x5a5a_5a5a_5a5a_5a5b;

impl Broadcast for TestMachine {
    fn start(&self, what: Invalidation) {
        for cpu in 0..self.cpus.len() {
            self.forget(cpu, what);
        }
    }
    fn complete(&self) {}
}

// SAFETY: a machine in software, whose translations reach no memory but its own words.
unsafe impl Hardware for TestMachine {
    type Word = AtomicU64;
    type Broadcasts = Self;

    fn broadcasts(&self) -> Option<&Self> {
        Some(self)
    }
    fn this_cpu(&self) -> CpuId {
        CpuId(CPU.get())
    }
    fn features(&self) -> Features {
        Features {
            tagging: self.options.tagging,
            broadcast: self.options.broadcast,
            full_above: 33,
        }
    }
    fn fence(&self) {
        std::sync::atomic::fence(SeqCst);
    }
    fn invalidate(&self, what: Invalidation) {
        self.forget(self.me(), what);
    }
    unsafe fn load_root(&self, root: Frame, tag: Tag, keep: bool) {
        let mut cpu = self.cpus[self.me()].lock().unwrap();
        if !keep || self.options.tagging == Tagging::None {
            cpu.tlb.retain(|&(of, _), _| of != tag && self.options.tagging != Tagging::None);
        }
        cpu.root = Some((root, tag));
    }
    fn unload_root(&self) {
        self.cpus[self.me()].lock().unwrap().root = None;
    }
    fn interrupt(&self, targets: &CpuSet) {
        for cpu in targets.iter() {
            self.interrupts.fetch_add(1, SeqCst);
            self.pending[cpu.index()].store(true, SeqCst);
        }
    }
    fn mask_interrupts(&self) -> bool {
        !self.masked[self.me()].swap(true, SeqCst)
    }
    fn restore_interrupts(&self, were_on: bool) {
        self.masked[self.me()].store(!were_on, SeqCst);
    }
    fn relax(&self) {
        let turn = self.turns.fetch_add(1, SeqCst) + 1;
        let due = |&mut (when, _): &mut (u64, Hook)| when <= turn;
        let hook = self.at_turn.lock().unwrap().take_if(due);
        if let Some((_, hook)) = hook {
            hook();
        }
        self.poll();
        // Another CPU's thread must run, and the host may have fewer cores. A thread that has slept gets a core again
        // sooner than one that has yielded many times.
        std::thread::sleep(Duration::from_micros(10));
    }
}

impl PhysicalMemory for TestMachine {
    unsafe fn zero(&self, extent: Extent, _: Strategy) {
        self.zeroed.fetch_add(extent.frames, Relaxed);
        for frame in 0..extent.frames {
            self.page(extent.first.plus(frame)).iter().for_each(|word| word.store(0, Relaxed));
        }
    }
}

const FLAGS: [fn(&mut Entry) -> &mut bool; 8] = [
    |entry| &mut entry.present,
    |entry| &mut entry.table,
    |entry| &mut entry.writable,
    |entry| &mut entry.user,
    |entry| &mut entry.executable,
    |entry| &mut entry.accessed,
    |entry| &mut entry.dirty,
    |entry| &mut entry.global,
];

// SAFETY: frames are places in a list that only this machine has.
unsafe impl Machine for TestMachine {
    fn memory(&self) -> MemoryMap {
        self.options.map
    }
    fn cpu_count(&self) -> usize {
        self.cpus.len()
    }
    fn table(&self, frame: Frame) -> &[AtomicU64; 512] {
        self.tables_read.fetch_add(1, Relaxed);
        self.page(frame)
    }
    fn encode(&self, mut entry: Entry, _: Level) -> u64 {
        let mut raw = entry.frame.0 << 12;
        for (bit, flag) in FLAGS.iter().enumerate() {
            raw |= u64::from(*flag(&mut entry)) << bit;
        }
        raw
    }
    fn decode(&self, word: u64, _: Level) -> Entry {
        let mut entry = Entry { frame: Frame(word >> 12), ..Entry::ABSENT };
        for (bit, flag) in FLAGS.iter().enumerate() {
            *flag(&mut entry) = word >> bit & 1 != 0;
        }
        entry
    }
    fn tlb_rules(&self) -> TlbRules {
        TlbRules {
            keeps_refused: false,
            keeps_absent: false,
            user_excludes_kernel: true,
            break_before_make: Break::Size,
        }
    }
    fn hardware_dirty(&self) -> bool {
        self.options.hardware_dirty
    }
    fn read_frame(&self, frame: Frame, offset: usize, into: &mut [u8]) {
        let page = self.page(frame);
        for (at, byte) in into.iter_mut().enumerate() {
            let at = offset + at;
            *byte = page[at / 8].load(Relaxed).to_le_bytes()[at % 8];
        }
    }
    fn write_frame(&self, frame: Frame, offset: usize, from: &[u8]) {
        let page = self.page(frame);
        for (at, &byte) in from.iter().enumerate() {
            let at = offset + at;
            let mut word = page[at / 8].load(Relaxed).to_le_bytes();
            word[at % 8] = byte;
            page[at / 8].store(u64::from_le_bytes(word), Relaxed);
        }
    }
    fn copy_frames(&self, from: Frame, to: Frame, frames: u64) {
        let hook = self.at_copy.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        for frame in 0..frames {
            let (from, to) = (self.page(from.plus(frame)), self.page(to.plus(frame)));
            for (from, to) in from.iter().zip(to) {
                to.store(from.load(Relaxed), Relaxed);
            }
        }
    }
    fn now(&self) -> u64 {
        // So a CPU that waits for a time reads the clock a few times only.
        self.clock.fetch_add(10_000, Relaxed)
    }
    fn note(&self, event: Event) {
        match event {
            Event::FrameReinstated { .. } => {
                self.reinstated.fetch_add(1, Relaxed);
            }
            // The next owner must not rely on the words of the last one.
            Event::FrameAllocated { frame, frames } => {
                for at in 0..frames {
                    let page = self.page(frame.plus(at));
                    if page.iter().any(|word| word.load(Relaxed) != 0) {
                        page.iter().for_each(|word| word.store(POISON, Relaxed));
                    }
                }
            }
            // C8.
            Event::FrameZeroed { frame, frames } => {
                for at in 0..frames {
                    let page = self.page(frame.plus(at));
                    assert!(
                        page.iter().all(|word| word.load(Relaxed) == 0),
                        "C8: frame {:#x} is handed out as zeroed",
                        frame.0 + at
                    );
                }
            }
            _ => {}
        }
    }
}

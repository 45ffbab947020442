//! Implements the machine under the manager: [`Frames`] and the [`Oracle`] behind [`Threads`].

use super::frames::{Frames, Words, resolve};
use super::oracle::{AccessRecord, Oracle};
use crate::cores;
use crate::machine::{Threads, roll};
use crate::tables::{PageTables, WalkResult};
use quell::TABLE_WORDS;
use quell::{CpuId, Entry, Extent, Frame, Hardware, Level, Page, PageSize, TlbRules};
use quell_arch::x86_64::entry;
use quell_vm::{Event, MemoryMap};
use quell_zero::{PhysicalMemory, Strategy};
use std::sync::atomic::{AtomicU64, Ordering};

/// The machine under the manager, whose CPUs are threads.
pub type Machine = Threads<true, Memory>;

/// The time that passes at each read of the clock, in nanoseconds.
const LOOK: u64 = 100_000;
/// The number of times that a sleeping CPU checks for interrupts before the clock reaches its waking time.
const ASLEEP: u32 = 16;

/// The state behind the CPUs: memory, its oracle, and the clock.
pub struct Memory {
    pub frames: Frames,
    pub oracle: Oracle,
    clock: AtomicU64,
}

impl Memory {
    pub fn new(map: MemoryMap, cpus: usize) -> Self {
        Memory { frames: Frames::new(map), oracle: Oracle::new(cpus), clock: AtomicU64::new(0) }
    }

    /// Reads the clock. Each read advances it by 0.1 ms, and nothing else does.
    pub fn look_at_clock(&self) -> u64 {
        self.clock.fetch_add(LOOK, Ordering::Relaxed)
    }

    fn each(&self, extent: Extent) -> impl Iterator<Item = &Words> {
        (0..extent.frames).map(move |offset| self.frames.words(extent.first.plus(offset)))
    }
}

impl PageTables for Memory {
    const SIZES: &'static [PageSize] = &[PageSize::Base, PageSize::Large, PageSize::Huge];

    fn is_kernels(_page: u64) -> bool {
        false
    }

    fn walk(&self, root: Option<Frame>, page: u64, store: bool) -> Option<WalkResult> {
        let page = Page(page);
        loop {
            let mut lawful = true;
            let leaf = self.frames.walk(root?, page, |table| {
                lawful &= self.oracle.judge_table(&self.frames, table, page);
            })?;
            // If a walker marked an entry of a former table, it would write to another owner's memory.
            if !lawful {
                return None;
            }
            let (held, frame) = resolve(leaf.raw, leaf.level, page);
            if !held.user || store && !held.writable || self.frames.find(frame).is_none() {
                return None;
            }
            let marks = entry::ACCESSED | if store { entry::DIRTY } else { 0 };
            let marked = leaf.raw | marks;
            let (order, word) = (Ordering::AcqRel, leaf.word);
            if marked == leaf.raw
                || word.compare_exchange(leaf.raw, marked, order, Ordering::Relaxed).is_ok()
            {
                return Some(WalkResult {
                    entry: marked,
                    size: leaf.level.size()?,
                    global: held.global,
                    // We read this after the entry, so it includes everything that the entry's writer had seen.
                    since: self.frames.moment(),
                });
            }
        }
    }

    fn takes_stores(&self, word: u64) -> bool {
        let needed = entry::WRITABLE | entry::DIRTY;
        word & needed == needed
    }

    /// Returns one of eight pages around the last one.
    fn stray(&self, last: u64, roll: fn(u16) -> u16) -> u64 {
        last ^ u64::from(roll(8))
    }
}

impl Machine {
    /// Accesses a word for this CPU's program.
    ///
    /// Returns the word's value after the access, or `None` on a fault.
    pub fn access_word(&self, address: u64, store: Option<u64>) -> Option<u64> {
        let page = Page::containing(address);
        let Memory { frames, oracle, .. } = self.tables();
        self.access_for(page.0, store.is_some(), |cached| {
            let (_, frame) = resolve(cached.entry, Level::of(cached.size), page);
            let word = &frames.words(frame)[(address % 4096 / 8) as usize];
            let used = |held| AccessRecord {
                cpu: self.this_cpu(),
                root: self.root().unwrap_or_default(),
                address,
                cached,
                frame,
                store: store.is_some(),
                held,
            };
            let held = match store {
                // We don't perform a forbidden store, because it could overwrite a table that the manager then walks
                // for ever.
                Some(value) if !oracle.judge(frames, &used(value)) => return value,
                Some(value) => {
                    word.store(value, Ordering::Relaxed);
                    value
                }
                None => word.load(Ordering::Relaxed),
            };
            oracle.judge(frames, &used(held));
            held
        })
    }

    /// Checks for interrupts before one in four steps of a program, on average.
    ///
    /// If an interrupt always came before the next access, it would hide an initiator that doesn't wait.
    pub fn poll_sometimes(&self) {
        if roll(4) == 0 {
            self.poll();
        }
    }
}

impl PhysicalMemory for Machine {
    unsafe fn zero(&self, extent: Extent, _strategy: Strategy) {
        let words = self.tables().each(extent).flatten();
        words.for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

/// Returns the words in a range of bytes, which must be whole words.
fn words(offset: usize, bytes: usize) -> std::ops::Range<usize> {
    assert!(
        offset.is_multiple_of(8) && bytes.is_multiple_of(8),
        "the manager reads and writes whole words, not {bytes} bytes at {offset}"
    );
    offset / 8..(offset + bytes) / 8
}

// SAFETY: frames are the machine's own words, found by their number. Entries are encoded and decoded in one format.
unsafe impl quell_vm::Machine for Machine {
    fn memory(&self) -> MemoryMap {
        self.tables().frames.map()
    }

    fn cpu_count(&self) -> usize {
        self.cpus()
    }

    /// Distributes CPUs among the nodes that aren't slow.
    fn home_node(&self, cpu: CpuId) -> usize {
        let map = self.memory();
        let near = map.nodes().iter().filter(|node| !node.slow).count();
        cpu.index() % near.max(1)
    }

    fn table(&self, frame: Frame) -> &[AtomicU64; TABLE_WORDS] {
        self.tables().frames.words(frame)
    }

    fn encode(&self, of: Entry, level: Level) -> u64 {
        entry::encode(of, level)
    }

    fn decode(&self, word: u64, level: Level) -> Entry {
        entry::decode(word, level)
    }

    fn hardware_dirty(&self) -> bool {
        true
    }

    fn tlb_rules(&self) -> TlbRules {
        entry::RULES
    }

    fn read_frame(&self, frame: Frame, offset: usize, into: &mut [u8]) {
        let held = &self.tables().frames.words(frame)[words(offset, into.len())];
        for (bytes, word) in into.chunks_exact_mut(8).zip(held) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
    }

    fn write_frame(&self, frame: Frame, offset: usize, from: &[u8]) {
        let held = &self.tables().frames.words(frame)[words(offset, from.len())];
        for (bytes, word) in from.chunks_exact(8).zip(held) {
            let value = bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
            word.store(value, Ordering::Relaxed);
        }
    }

    fn copy_frames(&self, from: Frame, to: Frame, frames: u64) {
        let extent = |first| Extent { first, frames };
        let pairs = self.tables().each(extent(from)).zip(self.tables().each(extent(to)));
        for (from, to) in pairs.flat_map(|(from, to)| from.iter().zip(to)) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    fn now(&self) -> u64 {
        self.tables().look_at_clock()
    }

    fn halt(&self, until: u64) {
        for _ in 0..ASLEEP {
            if self.poll() {
                return;
            }
            cores::nap();
        }
        self.tables().clock.fetch_max(until, Ordering::Relaxed);
    }

    fn note(&self, event: Event) {
        let Memory { frames, oracle, .. } = self.tables();
        oracle.note(frames, self.this_cpu(), event);
    }
}

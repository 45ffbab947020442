//! Stores memory: the words and the history of each frame, and the page tables in them.
//!
//! The host allocates memory for 512 frames when one of them is first touched, so a large, mostly unused memory costs
//! little. Fresh memory is filled with bytes other than zero, which exposes a manager that relies on zeros.
//!
//! Events happen at *moments*, numbered by one counter. All of these words are read and written with relaxed ordering.
//! The engine's ordering must complete everything that the contract promises before an access begins, and the oracle
//! mustn't add any ordering.

use quell::TABLE_WORDS;
use quell::{Entry, Frame, Level, Page};
use quell_arch::x86_64::entry::decode;
use quell_vm::MemoryMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub type Words = [AtomicU64; TABLE_WORDS];

/// The number of frames for which the host allocates memory at once.
const CHUNK: u64 = 512;
const JUNK: u64 = 0x5a5a_5a5a_5a5a_5a5a;

/// The events of a frame, each with its moment.
///
/// An event that never happened has moment 0.
#[derive(Default)]
pub struct History {
    /// The moment at which the frame got its present owner.
    pub allocated: AtomicU64,
    /// The moment at which the frame lost its owner. It has had none since.
    pub freed: AtomicU64,
    /// The moment at which the frame's content was captured.
    pub captured: AtomicU64,
    /// Whether the frame is a page-table page now.
    pub is_table: AtomicBool,
}

struct Chunk {
    words: Box<[Words]>,
    histories: Box<[History]>,
}

pub struct Frames {
    map: MemoryMap,
    first: u64,
    chunks: Box<[OnceLock<Chunk>]>,
    moment: AtomicU64,
}

/// The result of a walk: the word of a present entry that maps a page.
pub struct Leaf<'f> {
    pub word: &'f AtomicU64,
    /// The word's value at the walk.
    pub raw: u64,
    /// The level of the table that contains the word.
    pub level: Level,
}

impl Frames {
    pub fn new(map: MemoryMap) -> Self {
        let ends = |node: &quell_vm::Node| node.extent.first.0 + node.extent.frames;
        let first = map.nodes().iter().map(|node| node.extent.first.0).min();
        let first = first.unwrap_or_default();
        let end = map.nodes().iter().map(ends).max().unwrap_or_default();
        Frames {
            map,
            first,
            chunks: (0..(end - first).div_ceil(CHUNK)).map(|_| OnceLock::new()).collect(),
            moment: AtomicU64::new(0),
        }
    }

    pub fn map(&self) -> MemoryMap {
        self.map
    }

    /// Begins a new moment, and returns its number.
    pub fn next_moment(&self) -> u64 {
        self.moment.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the number of the last moment that began.
    pub fn moment(&self) -> u64 {
        self.moment.load(Ordering::Relaxed)
    }

    fn place(&self, frame: Frame) -> Option<(&Chunk, usize)> {
        self.map.node_of(frame)?;
        let number = frame.0 - self.first;
        let chunk = self.chunks[(number / CHUNK) as usize].get_or_init(|| Chunk {
            words: (0..CHUNK).map(|_| [const { AtomicU64::new(JUNK) }; TABLE_WORDS]).collect(),
            histories: (0..CHUNK).map(|_| History::default()).collect(),
        });
        Some((chunk, (number % CHUNK) as usize))
    }

    pub fn find(&self, frame: Frame) -> Option<&Words> {
        let (chunk, index) = self.place(frame)?;
        Some(&chunk.words[index])
    }

    /// Returns the place of a frame. Panics if there is no such frame.
    fn known(&self, frame: Frame) -> (&Chunk, usize) {
        let place = self.place(frame);
        place.unwrap_or_else(|| panic!("frame {:#x} is outside the machine's memory", frame.0))
    }

    pub fn words(&self, frame: Frame) -> &Words {
        let (chunk, index) = self.known(frame);
        &chunk.words[index]
    }

    pub fn history(&self, frame: Frame) -> &History {
        let (chunk, index) = self.known(frame);
        &chunk.histories[index]
    }

    /// Walks from a root to the entry that maps a page.
    ///
    /// Calls `visit` with each table. Returns `None` if no present entry maps the page.
    pub fn walk(&self, root: Frame, page: Page, mut visit: impl FnMut(Frame)) -> Option<Leaf<'_>> {
        let (mut table, mut level) = (root, Level::ROOT);
        loop {
            visit(table);
            let word = &self.find(table)?[level.index(page)];
            // A walker follows the pointer that it read; the acquire represents that dependency.
            let raw = word.load(Ordering::Acquire);
            let entry = decode(raw, level);
            if !entry.present {
                return None;
            }
            if !entry.table {
                return Some(Leaf { word, raw, level });
            }
            table = entry.frame;
            // The tables are broken if an entry below the last level points to a table. Then the walk ends.
            level = Level(level.0.checked_sub(1)?);
        }
    }
}

/// Decodes an entry word in a table of this level.
///
/// Also returns the frame to which the entry maps the page.
pub fn resolve(raw: u64, level: Level, page: Page) -> (Entry, Frame) {
    let entry = decode(raw, level);
    let frame = entry.frame.plus(page.0 & (level.pages() - 1));
    (entry, frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_arch::x86_64::entry::encode;

    #[test]
    fn a_walk_goes_down_to_the_entry_that_maps() {
        let frames = Frames::new(MemoryMap::flat(Frame(1 << 18), 1024));
        let frame = |index: u64| Frame((1 << 18) + index);
        let page = Page(3 << 27 | 5 << 18 | 7 << 9 | 9);
        let set = |table: u64, level: Level, entry: Entry| {
            frames.words(frame(table)).iter().for_each(|word| word.store(0, Ordering::Relaxed));
            let word = &frames.words(frame(table))[level.index(page)];
            word.store(encode(entry, level), Ordering::Relaxed);
        };
        set(0, Level::ROOT, Entry::table(frame(1)));
        set(1, Level::HUGE, Entry::table(frame(2)));
        set(2, Level::LARGE, Entry { table: false, ..Entry::table(frame(512)) });
        let mut seen = Vec::new();
        let leaf = frames.walk(frame(0), page, |table| seen.push(table));
        let leaf = leaf.expect("it is mapped");
        assert_eq!(seen, [frame(0), frame(1), frame(2)]);
        assert_eq!(leaf.level, Level::LARGE);
        assert_eq!(resolve(leaf.raw, leaf.level, page).1, frame(512 + 9));
        assert!(frames.walk(frame(0), Page(page.0 + 512), |_| ()).is_none());
    }
}

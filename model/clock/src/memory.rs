//! Stores physical memory: the contents of frames, and the oracle's history of each.
//!
//! Only non-zero contents are stored, so gigabytes of zeroed memory cost the host nothing. One history serves 512
//! frames as long as all share it. The words of page-table pages are in [`Tables`], because manager and walkers share
//! them and the manager's references outlive an operation.

use crate::cell::ModelWord;
use crate::file::Time;
use quell::{Extent, Frame};
use quell_vm::machine::TABLE_WORDS;
use std::array;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;

/// Frames that share one entry of the directory.
const CHUNK: usize = 512;

/// A page of words.
#[repr(align(4096))]
pub struct TablePage {
    /// The words.
    pub words: [ModelWord; TABLE_WORDS],
    /// The number of its first line plus one; 0 without one. Words keep their place for a whole run, so the numbers do
    /// too.
    pub first_line: AtomicU32,
}

type TableChunk = Box<[OnceLock<Box<TablePage>>; CHUNK]>;

/// The machine's page-table pages, allocated at first use.
pub struct Tables {
    first: u64,
    chunks: Vec<OnceLock<TableChunk>>,
}

impl Tables {
    /// Creates an empty set of tables, in the memory `all`.
    pub fn new(all: Extent) -> Self {
        let chunks = (all.frames as usize).div_ceil(CHUNK);
        Tables {
            first: all.first.0,
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
        }
    }

    fn place(&self, frame: Frame) -> Option<(usize, usize)> {
        let number = frame.0.checked_sub(self.first)? as usize;
        (number / CHUNK < self.chunks.len()).then_some((number / CHUNK, number % CHUNK))
    }

    /// Returns a frame as a page-table page.
    ///
    /// # Panics
    /// If the frame is outside the machine's memory.
    #[inline]
    pub fn page(&self, frame: Frame) -> &TablePage {
        let Some((chunk, at)) = self.place(frame) else {
            panic!("frame {:#x} is outside the machine's memory", frame.0)
        };
        let chunk =
            self.chunks[chunk].get_or_init(|| Box::new(array::from_fn(|_| OnceLock::new())));
        chunk[at].get_or_init(|| {
            Box::new(TablePage {
                words: array::from_fn(|_| <ModelWord as quell::Word>::new(0)),
                first_line: AtomicU32::new(0),
            })
        })
    }

    /// Returns the words of a frame, if it ever was a page-table page.
    #[inline]
    pub fn existing(&self, frame: Frame) -> Option<&[ModelWord; TABLE_WORDS]> {
        let (chunk, at) = self.place(frame)?;
        Some(&self.chunks[chunk].get()?[at].get()?.words)
    }
}

/// The history of a frame, for the oracle.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct History {
    /// The event at which it got its owner.
    pub allocated: u32,
    /// The event at which its content was last captured.
    pub captured: u32,
    /// The event at which it lost its owner.
    pub freed: u32,
    /// The present state.
    pub state: State,
    /// Whether it is a page-table page now.
    pub table: bool,
    /// The CPU that last changed its ownership.
    pub by: u16,
    /// The time of that change.
    pub at: Time,
}

/// Whether a frame has an owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum State {
    /// It never had an owner.
    #[default]
    Untouched,
    /// A process, the page cache or the manager owns it.
    Owned,
    /// It has no owner now.
    Free,
}

type Page = [u8; 4096];

/// The histories of 512 single frames.
struct FrameHistories {
    /// Separate from the rest, because every access reads it.
    changed: [u32; CHUNK],
    histories: [History; CHUNK],
}

#[derive(Default)]
struct Chunk {
    /// The history of every frame, as long as all are the same.
    uniform: History,
    changed: u32,
    each: Option<Box<FrameHistories>>,
    pages: Option<Box<[Option<Box<Page>>; CHUNK]>>,
}

impl Chunk {
    fn each(&mut self) -> &mut FrameHistories {
        let (changed, uniform) = (self.changed, self.uniform);
        self.each.get_or_insert_with(|| {
            Box::new(FrameHistories {
                changed: [changed; CHUNK],
                histories: [uniform; CHUNK],
            })
        })
    }
}

/// The contents and the history of all frames.
pub struct Memory {
    first: u64,
    chunks: Vec<Chunk>,
    /// Pages of contents that can be reused.
    pool: Vec<Box<Page>>,
}

/// The most unused pages of contents to keep.
const POOL: usize = 4096;

impl Memory {
    /// Creates memory in which everything is zero and nothing has an owner.
    pub fn new(all: Extent) -> Self {
        let chunks = (all.frames as usize).div_ceil(CHUNK);
        Memory {
            first: all.first.0,
            chunks: (0..chunks).map(|_| Chunk::default()).collect(),
            pool: Vec::new(),
        }
    }

    #[inline]
    fn place(&self, frame: Frame) -> (usize, usize) {
        let number = frame.0.wrapping_sub(self.first) as usize;
        (number / CHUNK, number % CHUNK)
    }

    /// Returns whether the machine has such a frame.
    pub fn contains(&self, frame: Frame) -> bool {
        self.place(frame).0 < self.chunks.len()
    }

    /// Returns the history of a frame.
    pub fn history(&self, frame: Frame) -> &History {
        let (chunk, at) = self.place(frame);
        let chunk = &self.chunks[chunk];
        match &chunk.each {
            None => &chunk.uniform,
            Some(each) => &each.histories[at],
        }
    }

    /// Returns the last event after which older translations to a frame need a closer check.
    #[inline]
    pub fn changed(&self, frame: Frame) -> u32 {
        let (chunk, at) = self.place(frame);
        let chunk = &self.chunks[chunk];
        match &chunk.each {
            None => chunk.changed,
            Some(each) => each.changed[at],
        }
    }

    /// Changes the history of frames, at an event.
    pub fn update(&mut self, frame: Frame, frames: u64, event: u32, change: impl Fn(&mut History)) {
        for_chunks(self.place(frame), frames, |index, at, here| {
            let chunk = &mut self.chunks[index];
            if here == CHUNK && chunk.each.is_none() {
                chunk.changed = event;
                change(&mut chunk.uniform);
            } else {
                let each = chunk.each();
                each.changed[at..at + here].fill(event);
                each.histories[at..at + here].iter_mut().for_each(&change);
            }
        });
    }

    /// Sets the history of frames to the same value, at an event.
    pub fn set(&mut self, frame: Frame, frames: u64, event: u32, history: History) {
        for_chunks(self.place(frame), frames, |index, at, here| {
            let chunk = &mut self.chunks[index];
            if here == CHUNK {
                chunk.each = None;
                chunk.changed = event;
                chunk.uniform = history;
            } else {
                let each = chunk.each();
                each.changed[at..at + here].fill(event);
                each.histories[at..at + here].fill(history);
            }
        });
    }

    #[inline]
    fn page(&self, frame: Frame) -> Option<&Page> {
        let (chunk, at) = self.place(frame);
        self.chunks[chunk].pages.as_ref()?[at].as_deref()
    }

    fn page_mut(&mut self, frame: Frame) -> &mut Page {
        let (chunk, at) = self.place(frame);
        let pages = self.chunks[chunk]
            .pages
            .get_or_insert_with(|| Box::new(array::from_fn(|_| None)));
        pages[at].get_or_insert_with(|| match self.pool.pop() {
            Some(mut page) => {
                page.fill(0);
                page
            }
            None => Box::new([0; 4096]),
        })
    }

    /// Returns the eight bytes at an offset.
    #[inline]
    pub fn load(&self, frame: Frame, offset: usize) -> u64 {
        match self.page(frame) {
            None => 0,
            Some(page) => {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(&page[offset..offset + 8]);
                u64::from_le_bytes(bytes)
            }
        }
    }

    /// Writes eight bytes at an offset.
    #[inline]
    pub fn store(&mut self, frame: Frame, offset: usize, value: u64) {
        if value != 0 || self.page(frame).is_some() {
            self.page_mut(frame)[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Reads bytes of a frame.
    pub fn read(&self, frame: Frame, offset: usize, into: &mut [u8]) {
        match self.page(frame) {
            None => into.fill(0),
            Some(page) => into.copy_from_slice(&page[offset..offset + into.len()]),
        }
    }

    /// Writes bytes of a frame.
    pub fn write(&mut self, frame: Frame, offset: usize, from: &[u8]) {
        if self.page(frame).is_some() || from.iter().any(|&byte| byte != 0) {
            self.page_mut(frame)[offset..offset + from.len()].copy_from_slice(from);
        }
    }

    /// Makes frames zero.
    pub fn zero(&mut self, frame: Frame, frames: u64) {
        for_chunks(self.place(frame), frames, |index, at, here| {
            let Some(pages) = &mut self.chunks[index].pages else {
                return;
            };
            for page in &mut pages[at..at + here] {
                if let Some(page) = page.take()
                    && self.pool.len() < POOL
                {
                    self.pool.push(page);
                }
            }
            if here == CHUNK {
                self.chunks[index].pages = None;
            }
        });
    }

    /// Copies frames.
    pub fn copy(&mut self, from: Frame, to: Frame, frames: u64) {
        for offset in 0..frames {
            match self.page(from.plus(offset)).copied() {
                None => self.zero(to.plus(offset), 1),
                Some(page) => *self.page_mut(to.plus(offset)) = page,
            }
        }
    }

    /// Returns the first of the frames that isn't all zero, if there is one.
    pub fn first_nonzero(&self, frame: Frame, frames: u64) -> Option<Frame> {
        let mut found = None;
        for_chunks(self.place(frame), frames, |index, at, here| {
            if found.is_some() {
                return;
            }
            if let Some(pages) = &self.chunks[index].pages {
                found = (at..at + here)
                    .find(|&at| {
                        let page = pages[at].as_deref();
                        page.is_some_and(|page| page.iter().any(|&byte| byte != 0))
                    })
                    .map(|at| Frame(self.first + (index * CHUNK + at) as u64));
            }
        });
        found
    }
}

/// Calls `visit` with chunk, first frame in it and number of frames, for each chunk of a run.
fn for_chunks(
    (mut index, mut at): (usize, usize),
    frames: u64,
    mut visit: impl FnMut(usize, usize, usize),
) {
    let mut left = frames as usize;
    while left > 0 {
        let here = left.min(CHUNK - at);
        visit(index, at, here);
        left -= here;
        index += 1;
        at = 0;
    }
}

#[cfg(test)]
mod tests;

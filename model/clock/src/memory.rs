//! Stores physical memory: the contents of frames, and the oracle's history of each.
//!
//! Only non-zero contents are stored, and [patterns](content) take few bytes, so gigabytes of touched memory cost the
//! host little. One history serves 512 frames as long as all share it. The words of page-table pages are in [`Tables`],
//! because manager and walkers share them and the manager's references outlive an operation.

mod content;

use crate::file::Time;
use crate::word::ModelWord;
use content::{Bytes, Content};
use quell::{Extent, Frame};
use quell_vm::machine::TABLE_WORDS;
use std::array;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;

/// Frames that share one entry of the directory.
const CHUNK: usize = 512;

/// Frames whose contents are allocated together.
const PART: usize = 16;

type Part = Box<[Content; PART]>;

/// A page of words.
#[repr(align(4096))]
pub struct TablePage {
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
        Tables { first: all.first.0, chunks: (0..chunks).map(|_| OnceLock::new()).collect() }
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
    /// Whether it had an owner, and has none now.
    pub free: bool,
    /// Whether it is a page-table page now.
    pub table: bool,
    /// The CPU that last changed its ownership.
    pub by: u16,
    /// The time of that change.
    pub at: Time,
}

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
    parts: Option<Box<[Option<Part>; CHUNK / PART]>>,
}

impl Chunk {
    fn each(&mut self) -> &mut FrameHistories {
        let (changed, uniform) = (self.changed, self.uniform);
        self.each.get_or_insert_with(|| {
            Box::new(FrameHistories { changed: [changed; CHUNK], histories: [uniform; CHUNK] })
        })
    }
}

/// The contents and the history of all frames.
pub struct Memory {
    first: u64,
    chunks: Vec<Chunk>,
    /// Pages of contents that can be reused.
    pool: Vec<Box<Bytes>>,
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
    fn content(&self, frame: Frame) -> Option<&Content> {
        let (chunk, at) = self.place(frame);
        let part = self.chunks[chunk].parts.as_ref()?[at / PART].as_ref()?;
        Some(&part[at % PART])
    }

    /// Returns the content for a write, and the unused pages.
    fn content_mut(&mut self, frame: Frame) -> (&mut Content, &mut Vec<Box<Bytes>>) {
        let (chunk, at) = self.place(frame);
        let parts =
            self.chunks[chunk].parts.get_or_insert_with(|| Box::new(array::from_fn(|_| None)));
        let part =
            parts[at / PART].get_or_insert_with(|| Box::new(array::from_fn(|_| Content::Zero)));
        (&mut part[at % PART], &mut self.pool)
    }

    /// Returns the eight bytes at an offset.
    #[inline]
    pub fn load(&self, frame: Frame, offset: usize) -> u64 {
        self.content(frame).map_or(0, |content| content.load(offset))
    }

    /// Writes eight bytes at an offset.
    #[inline]
    pub fn store(&mut self, frame: Frame, offset: usize, value: u64) {
        if value == 0 && self.content(frame).is_none() {
            return;
        }
        let (content, pool) = self.content_mut(frame);
        if !content.store(offset, value) {
            let page = content.all(|| zeros(pool));
            page[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Reads bytes of a frame.
    pub fn read(&self, frame: Frame, offset: usize, into: &mut [u8]) {
        match self.content(frame) {
            None => into.fill(0),
            Some(content) => content.read(offset, into),
        }
    }

    /// Writes bytes of a frame.
    pub fn write(&mut self, frame: Frame, offset: usize, from: &[u8]) {
        if self.content(frame).is_none() && from.iter().all(|&byte| byte == 0) {
            return;
        }
        if let Ok(page) = <&Bytes>::try_from(from)
            && let Some(short) = Content::of(page)
        {
            self.zero(frame, 1);
            *self.content_mut(frame).0 = short;
            return;
        }
        let (content, pool) = self.content_mut(frame);
        content.all(|| zeros(pool))[offset..offset + from.len()].copy_from_slice(from);
    }

    /// Makes frames zero.
    pub fn zero(&mut self, frame: Frame, frames: u64) {
        for_chunks(self.place(frame), frames, |index, at, here| {
            let Some(parts) = &mut self.chunks[index].parts else {
                return;
            };
            for at in at..at + here {
                let Some(part) = &mut parts[at / PART] else {
                    continue;
                };
                if let Content::Any(page) = std::mem::take(&mut part[at % PART])
                    && self.pool.len() < POOL
                {
                    self.pool.push(page);
                }
            }
            if here == CHUNK {
                self.chunks[index].parts = None;
            }
        });
    }

    pub fn copy(&mut self, from: Frame, to: Frame, frames: u64) {
        for offset in 0..frames {
            let content = self.content(from.plus(offset)).cloned();
            self.zero(to.plus(offset), 1);
            if let Some(content) = content {
                *self.content_mut(to.plus(offset)).0 = content;
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
            if let Some(parts) = &self.chunks[index].parts {
                let nonzero = |at: &usize| {
                    let part = parts[at / PART].as_ref();
                    part.is_some_and(|part| part[at % PART].is_nonzero())
                };
                found = (at..at + here)
                    .find(nonzero)
                    .map(|at| Frame(self.first + (index * CHUNK + at) as u64));
            }
        });
        found
    }
}

/// Returns a page of zeros, an unused one if there is one.
fn zeros(pool: &mut Vec<Box<Bytes>>) -> Box<Bytes> {
    match pool.pop() {
        Some(mut page) => {
            page.fill(0);
            page
        }
        None => Box::new([0; 4096]),
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

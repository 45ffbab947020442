//! Keeps swapped pages compressed in memory, as LZ4 blocks, like zram.
//!
//! A slot counts the entries that name it. At first it contains the frame itself, so that a fault before the
//! compression can take the frame back. The content is captured only after the flush of the entries (C2).

use crate::frames::Frames;
use crate::lock::Lock;
use crate::machine::{Event, Machine, Work};
use crate::segmented::SegmentedArray;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use quell::Frame;
use quell::PAGE_BYTES;

const PAGE: usize = PAGE_BYTES as usize;

/// The content of a slot.
#[derive(Default)]
enum Content {
    #[default]
    Nothing,
    /// The page itself, not yet compressed.
    Frame(Frame),
    Zeros,
    Compressed(Box<[u8]>),
}

struct Slot {
    entries: u32,
    content: Content,
}

/// All slots.
pub(crate) struct Swap<'m, M: Machine> {
    frames: Arc<Frames<'m, M>>,
    slots: SegmentedArray<Lock<M::Word, Slot>, 16>,
    free: Lock<M::Word, Vec<u32>>,
    made: AtomicU32,
    limit: u32,
}

/// The result of [`Swap::read`].
pub(crate) enum SwapPage {
    /// The frame itself, with a reference for the caller.
    Frame(Frame),
    /// A frame of the caller's with a copy of the page.
    Copy(Frame),
}

impl<'m, M: Machine> Swap<'m, M> {
    /// Creates swap for `limit` pages.
    pub(crate) fn new(frames: Arc<Frames<'m, M>>, limit: u32) -> Self {
        Swap {
            frames,
            slots: SegmentedArray::new(),
            free: Lock::new(Vec::new()),
            made: AtomicU32::new(0),
            limit,
        }
    }

    fn machine(&self) -> &'m M {
        self.frames.machine()
    }

    fn slot(&self, slot: u32) -> &Lock<M::Word, Slot> {
        match self.slots.get(slot as usize) {
            Some(found) => found,
            None => panic!("an entry names swap slot {slot}, which was never made"),
        }
    }

    /// Reserves a slot that contains this frame, without entries yet. Returns `None` if swap is full.
    pub(crate) fn reserve(&self, frame: Frame) -> Option<u32> {
        let machine = self.machine();
        let reused = self.free.lock(machine).pop();
        let index = match reused {
            Some(index) => index,
            None => {
                let made = |made: u32| (made < self.limit).then_some(made + 1);
                self.made.fetch_update(Ordering::Relaxed, Ordering::Relaxed, made).ok()?
            }
        };
        let empty = || Lock::new(Slot { entries: 0, content: Content::Nothing });
        let slot = self.slots.get_or_make(index as usize, empty)?;
        *slot.lock(machine) = Slot { entries: 0, content: Content::Frame(frame) };
        Some(index)
    }

    /// Counts one more entry that names the slot.
    pub(crate) fn hold(&self, slot: u32) {
        self.slot(slot).lock(self.machine()).entries += 1;
    }

    /// Counts one entry less that names the slot. The last one frees it, unless it is still being written.
    pub(crate) fn put(&self, slot: u32) {
        let machine = self.machine();
        let mut held = self.slot(slot).lock(machine);
        held.entries -= 1;
        if held.entries == 0 && !matches!(held.content, Content::Frame(_)) {
            held.content = Content::Nothing;
            drop(held);
            self.free.lock(machine).push(slot);
        }
    }

    /// Returns the page in the slot, as a frame with a reference for the caller. The caller's entry keeps the slot
    /// alive, or else the caller finds the entry changed under the table's lock. Returns `None` if memory is short or
    /// the slot was freed.
    pub(crate) fn read(
        &self,
        slot: u32,
        alloc: impl FnOnce() -> Option<Frame>,
    ) -> Option<SwapPage> {
        let machine = self.machine();
        {
            let held = self.slot(slot).lock(machine);
            if let Content::Frame(frame) = held.content {
                self.frames.hold(frame);
                return Some(SwapPage::Frame(frame));
            }
        }
        let to = alloc()?;
        let mut page = vec![0; PAGE];
        {
            let held = self.slot(slot).lock(machine);
            match &held.content {
                Content::Compressed(data) => {
                    machine.charge(Work::Decompress { bytes: data.len() as u64 });
                    let length = lz4_flex::block::decompress_into(data, &mut page);
                    assert!(matches!(length, Ok(PAGE)), "swap slot {slot} is corrupt");
                }
                Content::Zeros => {}
                Content::Frame(_) | Content::Nothing => {
                    drop(held);
                    self.frames.put(to);
                    return None;
                }
            }
        }
        machine.write_frame(to, 0, &page);
        self.frames.state(to).zeros = false;
        Some(SwapPage::Copy(to))
    }

    /// Captures the frame's content into its slot, after its entries have been flushed.
    pub(crate) fn write(&self, slot: u32, frame: Frame) {
        let machine = self.machine();
        machine.note(Event::Captured { frame, frames: 1 });
        let mut page = vec![0; PAGE];
        machine.read_frame(frame, 0, &mut page);
        let content = if page.iter().all(|&byte| byte == 0) {
            Content::Zeros
        } else {
            let data = lz4_flex::block::compress(&page);
            machine.charge(Work::Compress { bytes: data.len() as u64 });
            Content::Compressed(data.into_boxed_slice())
        };
        let mut held = self.slot(slot).lock(machine);
        let unused = held.entries == 0;
        held.content = if unused { Content::Nothing } else { content };
        drop(held);
        if unused {
            self.free.lock(machine).push(slot);
        }
    }

    /// Copies the first bytes at `offset` of the page in the slot, for an oracle.
    ///
    /// # Safety
    /// As for [`Lock::peek`], for every lock of swap.
    pub(crate) unsafe fn peek(&self, slot: u32, offset: usize, into: &mut [u8]) -> Option<()> {
        // SAFETY: passed on to the caller.
        let held = unsafe { self.slot(slot).peek() };
        match &held.content {
            Content::Frame(frame) => self.machine().read_frame(*frame, offset, into),
            Content::Zeros => into.fill(0),
            Content::Compressed(data) => {
                let page = lz4_flex::block::decompress(data, PAGE).ok()?;
                into.copy_from_slice(&page[offset..offset + into.len()]);
            }
            Content::Nothing => return None,
        }
        Some(())
    }

    /// Checks that each slot counts as many entries as name it (`named`), and that no other slot is in use. All CPUs
    /// must be outside the manager.
    ///
    /// # Errors
    /// The first slot with a wrong count.
    pub(crate) fn check(&self, named: &BTreeMap<u32, u32>) -> Result<(), String> {
        for slot in 0..self.made.load(Ordering::Relaxed) {
            let Some(held) = self.slots.get(slot as usize) else {
                continue;
            };
            let entries = held.lock(self.machine()).entries;
            let found = named.get(&slot).copied().unwrap_or_default();
            if entries != found {
                return Err(format!(
                    "swap slot {slot} counts {entries} entries, but {found} name it"
                ));
            }
        }
        let used = self.used();
        if used != named.len() as u64 {
            return Err(format!("{used} swap slots are in use, but {} are named", named.len()));
        }
        Ok(())
    }

    /// Returns the number of slots in use.
    pub(crate) fn used(&self) -> u64 {
        let free = self.free.lock(self.machine()).len();
        u64::from(self.made.load(Ordering::Relaxed)) - free as u64
    }
}

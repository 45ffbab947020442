//! The kernel under generated programs over the engine: an embedder that keeps every rule. The file is long because
//! what keeps one rule leans on what keeps the others, and a reader must be able to check them together.
//!
//! It is larger than the [bare kernel](crate::bare_kernel) and just as literal: three levels of tables, base,
//! large and huge pages, private memory, files that several spaces map, frames with owners, batches
//! that any CPU may go on with. What a rule of the engine demands of its embedder is done here, in one
//! place each, so whatever goes wrong in a run goes wrong in the engine:
//!
//! * an entry is changed under the lock of its space, and reported before that is dropped;
//! * a page goes to a place that somebody has emptied only after [`Engine::settle_deferred`], and after
//!   [`Engine::settle_residue`] where a marker stands;
//! * whoever relies on an entry that somebody else has cleared or protected settles first;
//! * a file's page goes out lazily only if it is mapped read-only everywhere and every earlier change
//!   has been flushed; its residue begins before the first entry is cleared, and stands before the locks
//!   are dropped; the page comes back by rescue, or anew after the residue was settled;
//! * a frame is free when the batch that holds it gives it out; the kernel owns it from that moment, so
//!   that any use of an old translation is one of a frame with a new owner (C1);
//! * content is captured after the flush, under the lock, while the entry is still protected;
//! * a space ends when nobody runs it; who goes idle does not count.
//!
//! Data that a lock protects lies in words that are read and written without a point: between taking
//! the lock and giving it back nobody else looks at them.

use super::program::{
    BATCHES, EPOCHS, EngineOp, FILE_PAGES, FILES, FLAGS, Flags, For, HUGE, Lane, PAGES, Reported,
    SPACES, Shape, WINDOW,
};
use crate::action::MAX_CPUS;
use crate::cell::AdversaryWord;
use crate::context;
use crate::coverage::{Coverage, Happening};
use crate::hardware::{Adversary, RunRules};
use crate::machine::Accessed;
use crate::op::{AccessKind, Op};
use crate::oracle::Moment;
use crate::stage::Hw;
use crate::stage::Stage;
use crate::tables;
use quell::{
    AddressSpace, Batch, Engine, Epoch, Extent, Frame, Hardware, Outcome, Page, PageRange,
    PageSize, PerCpu, Purpose, Residue, Scope, TagPolicy, Word,
};
use quell_contract::Clause;
use quell_contract::timeline::Line;
use quell_vm::machine::{Event, Level, Machine, MemoryMap, Node};
use quell_zero::Clear;
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Data frames of one page each.
const SINGLES: u64 = 24;
/// Runs of frames that a large page, or the used part of a huge one, lies in.
const BLOCKS: u64 = 2;
/// How often a space number can be used.
const LIVES: usize = 2;
/// An entry that was emptied lazily names the frame that it mapped, so that this bit is set.
const MARKER: u64 = 1 << 9;
/// What a freed frame holds.
const SECRET: u64 = 0x5ec2e7;

type Space = AddressSpace<Hw>;

/// Where everything lies in physical memory: tables first, then data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    spaces: u64,
    blocks: u64,
}

impl Layout {
    /// For a program of this shape.
    pub(super) fn of(shape: &Shape, cpu: &[Lane<EngineOp>]) -> Self {
        let large = |op: &EngineOp| {
            matches!(
                op,
                EngineOp::MapLarge { .. } | EngineOp::MapHuge { .. } | EngineOp::Collapse { .. }
            )
        };
        let mut ops = cpu.iter().flat_map(|l| l.start.iter().chain(&l.run));
        Layout {
            spaces: shape.spaces.into(),
            blocks: if ops.any(large) { BLOCKS } else { 0 },
        }
    }

    fn root(self, slot: usize) -> Frame {
        Frame(1 + slot as u64)
    }

    fn middle(self, slot: usize) -> Frame {
        Frame(1 + self.spaces + slot as u64)
    }

    fn first_leaf(self) -> u64 {
        1 + 2 * self.spaces
    }

    /// How many frames may be leaf tables.
    fn leaves(self) -> u64 {
        2 * self.spaces + 4
    }

    /// Frames that may be tables.
    pub(super) fn tables(self) -> usize {
        (self.first_leaf() + self.leaves()) as usize
    }

    fn single(self, index: u64) -> Frame {
        Frame(self.tables() as u64 + index)
    }

    fn block(self, index: u64) -> Frame {
        Frame(self.tables() as u64 + SINGLES + index * WINDOW)
    }

    /// The frame after the last.
    pub(super) fn frames(self) -> usize {
        self.block(self.blocks).0 as usize
    }
}

/// A frame, by what it is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Single(Frame),
    Block(Frame),
    Table(Frame),
}

/// A frame that is freed when this is dropped.
struct Held<'k, 'm> {
    kernel: &'k Kernel<'m>,
    what: What,
}

impl Drop for Held<'_, '_> {
    fn drop(&mut self) {
        self.kernel.release(self.what);
    }
}

/// A range that a call has changed.
#[derive(Clone, Copy, Debug)]
struct Changed {
    slot: usize,
    range: PageRange,
    writable_only: bool,
}

/// A page whose content is to be captured.
#[derive(Clone, Copy, Debug)]
struct Capture {
    slot: usize,
    page: u64,
    frame: Frame,
}

/// How many ranges and how many captures a batch keeps.
const KEPT: usize = 8;

/// A batch, and what its end means.
struct Open<'k, 'm> {
    batch: Batch<'k, 'm, Hw, &'k Space, Held<'k, 'm>, RunRules>,
    purpose: Purpose,
    /// When the first call began that it is for.
    began: Moment,
    changed: [Option<Changed>; KEPT],
    captures: [Option<Capture>; KEPT],
    /// Spaces in which it has met entries that somebody else has changed.
    unsettled: u16,
}

impl Open<'_, '_> {
    fn has_room(&self) -> bool {
        self.changed[KEPT - 1].is_none() && self.captures[KEPT - 1].is_none()
    }

    fn remember(&mut self, changed: Changed) {
        if self.purpose == Purpose::Call
            && let Some(place) = self.changed.iter_mut().find(|place| place.is_none())
        {
            *place = Some(changed);
        }
    }

    fn begin(&mut self) {
        if self.changed[0].is_none() {
            self.began = context::with(|core| core.now);
        }
    }
}

/// The kernel.
pub(super) struct Kernel<'m> {
    hw: &'m Hw,
    engine: Engine<'m, Hw, RunRules>,
    shape: Shape,
    layout: Layout,
    spaces: [[Space; LIVES]; SPACES],
    /// Of each space number: how many CPUs run it, which of its lives it is in, and whether it lives.
    lives: [AdversaryWord; SPACES],
    locks: [AdversaryWord; SPACES],
    file_locks: [AdversaryWord; FILES],
    /// The frame that holds a file's page; 0 if it is not in memory. Under the file's lock.
    slots: [AdversaryWord; FILES],
    /// What a file holds while it is not in memory. Under the file's lock.
    disks: [AdversaryWord; FILES],
    /// The frame that was taken from the file lazily; 0 if none. Under the file's lock.
    shadows: [AdversaryWord; FILES],
    /// The file that a lazily taken frame was taken from. Whose the frame is alone may look.
    debtors: [AdversaryWord; SINGLES as usize],
    residues: [Residue<Hw>; SINGLES as usize],
    /// Which frames are free, as sets.
    free_singles: AdversaryWord,
    free_blocks: AdversaryWord,
    free_tables: AdversaryWord,
    told: [AdversaryWord; FLAGS],
    /// Which batches some CPU is busy with.
    busy: [AdversaryWord; BATCHES],
    /// What has become of each batch so far, as a number: for searches that tell states apart.
    traces: [AdversaryWord; BATCHES],
    current: [Cell<Current>; MAX_CPUS],
    flags: Flags,
}

/// What a CPU does; only it looks.
#[derive(Clone, Copy, Default)]
struct Current {
    /// The space that it has loaded last, with its life.
    loaded: Option<(u8, u8)>,
    /// It runs user code there.
    runs: bool,
    offline: bool,
    masked: bool,
    /// Nothing may preempt what it does now.
    pinned: bool,
    /// What runs has preempted something, and waits for no lock: it may be held by what was preempted.
    preempts: bool,
    /// The flag that it has come by last.
    flag: u8,
    /// How many stores its programs have made.
    stores: u8,
}

fn peek(word: &AdversaryWord) -> u64 {
    word.peek()
}

/// Sets what a lock protects.
fn set(word: &AdversaryWord, value: u64) {
    context::quiet_store(word, value);
}

const ALIVE: u64 = 1;
const ONE_USER: u64 = 2;
const USERS: u64 = 0xfe;
const LIFE_SHIFT: u32 = 8;
/// The space has ended, and its tables may be used again.
const GONE: u64 = 1 << 63;

fn life_of(word: u64) -> usize {
    (word >> LIFE_SHIFT) as usize & 0xff
}

impl<'m> Kernel<'m> {
    fn me(&self) -> usize {
        context::this_cpu()
    }

    fn update(&self, change: impl FnOnce(&mut Current)) {
        let cell = &self.current[self.me()];
        let mut current = cell.get();
        change(&mut current);
        cell.set(current);
    }

    fn here(&self) -> Current {
        self.current[self.me()].get()
    }

    fn lock_word(&self, word: &AdversaryWord) {
        while word.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            // Whoever holds it may wait for this CPU to flush.
            if self.here().masked {
                self.engine.on_interrupt();
            }
            self.hw.relax();
        }
    }

    /// Takes the lock of a space that lives; its life, or `None`, and the lock is not taken.
    fn lock(&self, slot: usize) -> Option<&Space> {
        if slot >= usize::from(self.shape.spaces) {
            return None;
        }
        if self.here().preempts {
            let lock = &self.locks[slot];
            if lock.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
                return None;
            }
        } else {
            self.lock_word(&self.locks[slot]);
        }
        let life = self.lives[slot].load(Acquire);
        if life & ALIVE == 0 {
            self.unlock(slot);
            return None;
        }
        Some(&self.spaces[slot][life_of(life)])
    }

    /// The space that has, or had last, this number.
    fn space(&self, slot: usize) -> &Space {
        &self.spaces[slot][life_of(peek(&self.lives[slot]))]
    }

    fn unlock(&self, slot: usize) {
        self.locks[slot].store(0, Release);
    }

    // Frames.

    fn take_bit(&self, word: &AdversaryWord) -> Option<u64> {
        loop {
            let held = word.load(Relaxed);
            if held == 0 {
                return None;
            }
            let bit = held.trailing_zeros();
            if word.fetch_and(!(1 << bit), AcqRel) & 1 << bit != 0 {
                return Some(bit.into());
            }
        }
    }

    fn take_single(&self) -> Option<Frame> {
        let index = self.take_bit(&self.free_singles)?;
        Some(self.layout.single(index))
    }

    fn take_table(&self) -> Option<Frame> {
        let index = self.take_bit(&self.free_tables)?;
        let frame = Frame(self.layout.first_leaf() + index);
        let level = Level::LEAF;
        self.hw.note(Event::TableAllocated { frame, level });
        let extent = Extent {
            first: frame,
            frames: 1,
        };
        let strategy = quell_zero::Strategy::Stores;
        self.hw.zero(extent, strategy);
        Some(frame)
    }

    /// The frame has lost its user; the kernel owns it.
    fn release(&self, what: What) {
        match what {
            What::Single(frame) => {
                self.own(frame, 1);
                let index = frame.0 - self.layout.single(0).0;
                self.free_singles.fetch_or(1 << index, Release);
            }
            What::Block(frame) => {
                self.own(frame, WINDOW);
                let index = (frame.0 - self.layout.block(0).0) / WINDOW;
                self.free_blocks.fetch_or(1 << index, Release);
            }
            What::Table(frame) => {
                self.hw.note(Event::TableFreed { frame });
                let index = frame.0 - self.layout.first_leaf();
                self.free_tables.fetch_or(1 << index, Release);
            }
        }
    }

    fn own(&self, frame: Frame, frames: u64) {
        self.hw.note(Event::FrameFreed { frame, frames });
        self.hw.note(Event::FrameAllocated { frame, frames });
        self.fill(frame, SECRET);
    }

    fn fill(&self, frame: Frame, value: u64) {
        self.hw.write_frame(frame, 0, &value.to_le_bytes());
    }

    fn residue(&self, frame: Frame) -> &Residue<Hw> {
        &self.residues[(frame.0 - self.layout.single(0).0) as usize]
    }

    fn debtor(&self, frame: Frame) -> &AdversaryWord {
        &self.debtors[(frame.0 - self.layout.single(0).0) as usize]
    }

    // Tables. All under the lock of the space.

    fn window_entry(&self, slot: usize, window: u64) -> &AdversaryWord {
        &self.hw.table(self.layout.middle(slot))[window as usize]
    }

    fn huge_entry(&self, slot: usize) -> &AdversaryWord {
        &self.hw.table(self.layout.root(slot))[1]
    }

    /// The entry of a base page, if there is a table for it.
    fn entry(&self, slot: usize, page: u64) -> Option<&AdversaryWord> {
        if page >= 2 * WINDOW {
            return None;
        }
        let word = self.window_entry(slot, page / WINDOW).load(Relaxed);
        let table = word & tables::PRESENT != 0 && word & tables::TABLE != 0;
        table.then(|| &self.hw.table(Frame(word >> 12))[(page % WINDOW) as usize])
    }

    /// The same, with a table made if nothing is there.
    fn entry_made(&self, slot: usize, page: u64) -> Option<&AdversaryWord> {
        if page >= 2 * WINDOW {
            return None;
        }
        let window = self.window_entry(slot, page / WINDOW);
        if window.load(Relaxed) & tables::PRESENT == 0 {
            let table = self.take_table()?;
            self.link(window, table);
        }
        self.entry(slot, page)
    }

    fn link(&self, window: &AdversaryWord, table: Frame) {
        let rights = tables::PRESENT | tables::TABLE | tables::WRITABLE | tables::USER;
        window.store(table.0 << 12 | rights, Release);
    }

    fn leaf_word(frame: Frame, write: bool) -> u64 {
        let rights = tables::PRESENT | tables::USER | tables::DIRTY;
        frame.0 << 12 | rights | if write { tables::WRITABLE } else { 0 }
    }

    /// Before an empty entry is written: everything that went from there has been flushed.
    fn make_ready(&self, space: &Space, held: u64) {
        if held & MARKER != 0 {
            self.engine
                .settle_residue(self.residue(Frame(held >> 12)), space);
        }
        self.engine.settle_deferred(space);
    }

    fn file_at(page: u64) -> Option<usize> {
        FILE_PAGES.iter().position(|&at| at == page)
    }

    // Running and idling.

    fn join(&self, slot: usize) -> Option<usize> {
        if slot >= usize::from(self.shape.spaces) {
            return None;
        }
        let word = &self.lives[slot];
        let mut held = word.load(Relaxed);
        loop {
            if held & ALIVE == 0 {
                return None;
            }
            match word.compare_exchange(held, held + ONE_USER, AcqRel, Relaxed) {
                Ok(_) => return Some(life_of(held)),
                Err(now) => held = now,
            }
        }
    }

    fn quit(&self, slot: usize) {
        self.lives[slot].fetch_add(0u64.wrapping_sub(ONE_USER), Release);
    }

    fn loaded(&self) -> Option<&Space> {
        let (slot, life) = self.here().loaded?;
        Some(&self.spaces[usize::from(slot)][usize::from(life)])
    }

    fn switch(&self, slot: usize) {
        let before = self.here();
        if before.runs && before.loaded.is_some_and(|(at, _)| usize::from(at) == slot) {
            return;
        }
        let Some(life) = self.join(slot) else { return };
        self.update(|here| here.pinned = true);
        self.engine
            .switch_to(self.loaded(), &self.spaces[slot][life]);
        self.update(|here| {
            here.loaded = Some((slot as u8, life as u8));
            here.runs = true;
            here.pinned = false;
        });
        if let (true, Some((old, _))) = (before.runs, before.loaded) {
            self.quit(old.into());
        }
    }

    fn idle(&self) {
        let here = self.here();
        if let (true, Some((slot, _))) = (here.runs, here.loaded) {
            self.update(|here| here.pinned = true);
            self.engine.enter_lazy();
            self.update(|here| (here.runs, here.pinned) = (false, false));
            self.quit(slot.into());
        }
    }

    fn access(&self, page: u64, value: Option<u64>) {
        let here = self.here();
        let Some((slot, _)) = here.loaded else { return };
        // Programs run with interrupts on.
        if !here.runs || here.masked {
            return;
        }
        let kind = match value {
            Some(_) => AccessKind::Store,
            None => AccessKind::Load,
        };
        let loud = context::point(Op::Access(kind));
        let me = self.me();
        let accessed = context::with(|core| {
            let accessed = core.access(me, page, 0, (kind, value.unwrap_or_default()));
            if !loud {
                core.drain_all(me);
            }
            accessed
        });
        if let (
            Accessed::Value {
                held,
                stale: Some(frame),
            },
            None,
        ) = (accessed, value)
        {
            self.compare(slot.into(), page, frame, held);
        }
    }

    /// A load went through a translation left behind: of a file it must return what the file holds.
    fn compare(&self, slot: usize, page: u64, frame: u32, held: u64) {
        let Some(file) = Self::file_at(page).filter(|&file| self.shape.maps(slot, file)) else {
            return;
        };
        // A large page that was here is no file's.
        if u64::from(frame) >= self.layout.block(0).0 {
            return;
        }
        let truth = match peek(&self.slots[file]) {
            0 => peek(&self.disks[file]),
            frame => context::with(|core| core.content(frame as u32, 0)),
        };
        self.hw.happen(Happening::Compared);
        if truth != held {
            let account = format!(
                "a load through a translation left behind returned {held:#x}, the file says {truth:#x}"
            );
            self.hw.fail(Clause::C4, Some(Frame(frame.into())), account);
        }
    }

    // Spaces that come and go.

    fn retire(&self, slot: usize) {
        if slot >= usize::from(self.shape.spaces) {
            return;
        }
        let word = &self.lives[slot];
        let held = word.load(Relaxed);
        let dying = held & !ALIVE;
        if held & ALIVE == 0
            || held & USERS != 0
            || word.compare_exchange(held, dying, AcqRel, Relaxed).is_err()
        {
            return;
        }
        self.lock_word(&self.locks[slot]);
        let space = &self.spaces[slot][life_of(held)];
        self.engine.retire(space);
        let root = self.layout.root(slot);
        self.hw.note(Event::SpaceRetired { root });
        // Nobody walks there any more. What was there must be out of every walker's sight, too, before
        // these tables, or the frames, are used again.
        let mut freed = [None; PAGES.len() + 3];
        let mut free = |what: What| {
            if let Some(place) = freed.iter_mut().find(|place| place.is_none()) {
                *place = Some(what);
            }
        };
        for window in 0..2 {
            for page in PAGES.into_iter().filter(|page| page / WINDOW == window) {
                let Some(entry) = self.entry(slot, page) else {
                    continue;
                };
                let old = entry.swap(0, AcqRel);
                if old & tables::PRESENT != 0 && Self::file_at(page).is_none() {
                    free(What::Single(Frame(old >> 12)));
                }
            }
            match self.window_entry(slot, window).swap(0, AcqRel) {
                old if old & tables::PRESENT == 0 => {}
                old if old & tables::TABLE != 0 => free(What::Table(Frame(old >> 12))),
                old => free(What::Block(Frame(old >> 12))),
            }
        }
        let old = self.huge_entry(slot).swap(0, AcqRel);
        if old & tables::PRESENT != 0 {
            free(What::Block(Frame(old >> 12)));
        }
        self.hw.fence();
        for what in freed.into_iter().flatten() {
            self.release(what);
        }
        word.store(dying | GONE, Release);
        self.unlock(slot);
    }

    fn revive(&self, slot: usize) {
        if slot >= usize::from(self.shape.spaces) {
            return;
        }
        self.lock_word(&self.locks[slot]);
        let held = self.lives[slot].load(Relaxed);
        let life = life_of(held) + 1;
        if held & GONE != 0 && life < LIVES {
            for frame in [self.layout.root(slot), self.layout.middle(slot)] {
                let level = Level::LARGE;
                self.hw.note(Event::TableAllocated { frame, level });
            }
            self.lives[slot].store((life as u64) << LIFE_SHIFT | ALIVE, Release);
        }
        self.unlock(slot);
    }

    // Mapping.

    fn map(&self, slot: usize, page: u64, write: bool) {
        if Self::file_at(page).is_some() {
            return;
        }
        let Some(space) = self.lock(slot) else { return };
        if let Some(entry) = self.entry_made(slot, page) {
            let held = entry.load(Relaxed);
            if held & tables::PRESENT == 0
                && let Some(frame) = self.take_single()
            {
                self.make_ready(space, held);
                self.fill(frame, page + 1);
                entry.store(Self::leaf_word(frame, write), Release);
            }
        }
        self.unlock(slot);
    }

    fn map_block(&self, slot: usize, word: impl FnOnce(&Self) -> &AdversaryWord) {
        let Some(space) = self.lock(slot) else { return };
        let entry = word(self);
        if entry.load(Relaxed) & tables::PRESENT == 0
            && let Some(index) = self.take_bit(&self.free_blocks)
        {
            self.make_ready(space, 0);
            entry.store(Self::leaf_word(self.layout.block(index), true), Release);
        }
        self.unlock(slot);
    }

    fn map_file(&self, slot: usize, file: usize, write: bool) {
        if !self.shape.maps(slot, file) {
            return;
        }
        self.lock_word(&self.file_locks[file]);
        if let Some(frame) = self.filled(file)
            && let Some(space) = self.lock(slot)
        {
            if let Some(entry) = self.entry_made(slot, FILE_PAGES[file]) {
                let held = entry.load(Relaxed);
                if held & tables::PRESENT == 0 {
                    self.make_ready(space, held);
                    entry.store(Self::leaf_word(frame, write), Release);
                }
            }
            self.unlock(slot);
        }
        self.unlock_file(file);
    }

    fn unlock_file(&self, file: usize) {
        self.file_locks[file].store(0, Release);
    }

    fn unprotect(&self, slot: usize, page: u64) {
        let file = Self::file_at(page);
        if let Some(file) = file {
            self.lock_word(&self.file_locks[file]);
        }
        if let Some(space) = self.lock(slot) {
            if let Some(entry) = self.entry(slot, page)
                && entry.load(Relaxed) & tables::PRESENT != 0
            {
                entry.fetch_or(tables::WRITABLE, AcqRel);
                self.engine.refresh(space, PageRange::base(Page(page), 1));
            }
            self.unlock(slot);
        }
        if let Some(file) = file {
            self.unlock_file(file);
        }
    }

    // Files. All under the lock of the file.

    /// The spaces that may map the file.
    fn mappers(&self, file: usize) -> impl Iterator<Item = usize> + use<> {
        let shape = self.shape;
        (0..usize::from(shape.spaces)).filter(move |&slot| shape.maps(slot, file))
    }

    /// The frame of a file's page, which is read in if need be.
    fn filled(&self, file: usize) -> Option<Frame> {
        if let frame @ 1.. = peek(&self.slots[file]) {
            return Some(Frame(frame));
        }
        let frame = self.take_single()?;
        if let old @ 1.. = peek(&self.shadows[file]) {
            for slot in self.mappers(file) {
                let space = self.space(slot);
                self.engine.settle_residue(self.residue(Frame(old)), space);
            }
        }
        self.fill(frame, peek(&self.disks[file]));
        set(&self.slots[file], frame.0);
        Some(frame)
    }

    fn content(&self, frame: Frame) -> u64 {
        let mut bytes = [0; 8];
        self.hw.read_frame(frame, 0, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn capture(&self, frame: Frame, frames: u64) {
        self.hw.note(Event::Captured { frame, frames });
    }

    fn reclaim(&self, file: usize) {
        self.lock_word(&self.file_locks[file]);
        if let frame @ 1.. = peek(&self.slots[file]) {
            let mut batch = self.engine.batch::<_, Held<'_, '_>>(Purpose::Reclaim);
            let mut unsettled = 0u16;
            for slot in self.mappers(file) {
                let Some(space) = self.lock(slot) else {
                    continue;
                };
                let cleared = self.entry(slot, FILE_PAGES[file]).is_some_and(|entry| {
                    let present = entry.load(Relaxed) & tables::PRESENT != 0;
                    if present {
                        entry.swap(0, AcqRel);
                    }
                    present
                });
                if cleared {
                    let range = PageRange::base(Page(FILE_PAGES[file]), 1);
                    batch.changed(space, range, Scope::Leaf);
                } else {
                    unsettled |= 1 << slot;
                }
                self.unlock(slot);
            }
            for held in batch.finish() {
                drop(held);
            }
            self.settle_all(unsettled);
            set(&self.disks[file], self.content(Frame(frame)));
            self.capture(Frame(frame), 1);
            // What was stored between the two is in the frame, and nobody can store there any more.
            set(&self.slots[file], 0);
            self.release(What::Single(Frame(frame)));
        }
        self.unlock_file(file);
    }

    fn settle_all(&self, slots: u16) {
        for slot in (0..SPACES).filter(|slot| slots >> slot & 1 != 0) {
            self.engine.settle(self.space(slot));
        }
    }

    fn reclaim_lazily(&self, files: u8) {
        let wanted = |file: usize| files >> file & 1 != 0;
        for file in (0..FILES).filter(|&file| wanted(file)) {
            self.lock_word(&self.file_locks[file]);
        }
        // Every space that maps one of them, held to the end: nobody else comes between the
        // clearing and the residue.
        let mut held = 0u16;
        for slot in 0..usize::from(self.shape.spaces) {
            let maps = (0..FILES).any(|file| wanted(file) && self.shape.maps(slot, file));
            if maps && self.lock(slot).is_some() {
                held |= 1 << slot;
            }
        }
        let mut batch = self.engine.batch::<_, Frame>(Purpose::Lazy);
        let mut taken = [None; FILES];
        for file in (0..FILES).filter(|&file| wanted(file)) {
            let slots = || {
                self.mappers(file)
                    .filter(|&slot| held >> slot & 1 != 0)
                    .filter_map(|slot| Some((slot, self.entry(slot, FILE_PAGES[file])?)))
            };
            let frame = peek(&self.slots[file]);
            let writable = tables::PRESENT | tables::WRITABLE;
            if frame == 0 || slots().any(|(_, entry)| entry.load(Relaxed) & writable == writable) {
                continue;
            }
            if let old @ 1.. = peek(&self.shadows[file]) {
                self.claim_frame(Frame(old), Some(file));
            }
            let frame = Frame(frame);
            for slot in self.mappers(file).filter(|&slot| held >> slot & 1 != 0) {
                // Entries that lost the right to write, or all of it, and are not flushed.
                self.engine.settle_deferred(self.space(slot));
            }
            set(&self.disks[file], self.content(frame));
            self.capture(frame, 1);
            self.residue(frame).begin();
            for (slot, entry) in slots() {
                if entry.load(Relaxed) & tables::PRESENT == 0 {
                    continue;
                }
                entry.swap(frame.0 << 12 | MARKER, AcqRel);
                let range = PageRange::base(Page(FILE_PAGES[file]), 1);
                batch.changed(self.space(slot), range, Scope::Leaf);
            }
            batch.hold(frame);
            taken[file] = Some(frame);
            set(&self.slots[file], 0);
        }
        if taken.iter().any(Option::is_some) {
            let stamp = match batch.finish_owed() {
                Outcome::Owed(owed) => {
                    let stamp = owed.stamp();
                    owed.for_each(drop);
                    Some(stamp)
                }
                Outcome::Flushed(frames) => {
                    frames.for_each(drop);
                    None
                }
            };
            for (file, frame) in taken.into_iter().enumerate() {
                let Some(frame) = frame else { continue };
                match stamp {
                    Some(stamp) => {
                        set(&self.shadows[file], frame.0);
                        set(self.debtor(frame), file as u64);
                        self.hw.note(Event::FrameFreed { frame, frames: 1 });
                        self.residue(frame).owe(stamp);
                    }
                    None => {
                        self.residue(frame).settle_flushed();
                        self.release(What::Single(frame));
                    }
                }
            }
        } else {
            drop(batch);
        }
        for slot in (0..SPACES).filter(|slot| held >> slot & 1 != 0) {
            self.unlock(slot);
        }
        for file in (0..FILES).filter(|&file| wanted(file)) {
            self.unlock_file(file);
        }
    }

    /// Takes a frame that owes a flush, if nobody else has. `locked` is the file whose lock is held.
    fn claim_frame(&self, frame: Frame, locked: Option<usize>) {
        if self.engine.claim(self.residue(frame)).is_none() {
            return;
        }
        self.hw.happen(Happening::Claimed);
        self.hw.note(Event::FrameAllocated { frame, frames: 1 });
        self.fill(frame, SECRET);
        // The frame is ours, so nobody else changes whose it was.
        let file = peek(self.debtor(frame)) as usize;
        if locked != Some(file) {
            self.lock_word(&self.file_locks[file]);
        }
        if peek(&self.shadows[file]) == frame.0 {
            set(&self.shadows[file], 0);
        }
        if locked != Some(file) {
            self.unlock_file(file);
        }
        let index = frame.0 - self.layout.single(0).0;
        self.free_singles.fetch_or(1 << index, Release);
    }

    fn rescue(&self, file: usize) {
        self.lock_word(&self.file_locks[file]);
        let (slot, shadow) = (peek(&self.slots[file]), peek(&self.shadows[file]));
        if slot == 0 && shadow != 0 {
            let frame = Frame(shadow);
            if self.residue(frame).rescue(&self.engine) {
                self.hw.note(Event::FrameRescued { frame });
                set(&self.slots[file], shadow);
                set(&self.shadows[file], 0);
                for slot in self.mappers(file) {
                    if self.lock(slot).is_none() {
                        continue;
                    }
                    if let Some(entry) = self.entry(slot, FILE_PAGES[file])
                        && entry.load(Relaxed) == frame.0 << 12 | MARKER
                    {
                        entry.store(Self::leaf_word(frame, false), Release);
                    }
                    self.unlock(slot);
                }
            }
        }
        self.unlock_file(file);
    }

    fn write_file(&self, file: usize, value: u64) {
        self.lock_word(&self.file_locks[file]);
        if let Some(frame) = self.filled(file) {
            self.fill(frame, value);
        }
        self.unlock_file(file);
    }

    // Moving things, each behind a flush of its own, under the lock.

    fn flush_now(&self, space: &Space, ranges: &[PageRange]) {
        let mut batch = self.engine.batch::<_, Held<'_, '_>>(Purpose::Migration);
        for &range in ranges {
            batch.changed(space, range, Scope::Leaf);
        }
        for held in batch.finish() {
            drop(held);
        }
    }

    fn move_page(&self, slot: usize, from: u64, to: u64) {
        let files = Self::file_at(from).is_some() || Self::file_at(to).is_some();
        if files || from == to {
            return;
        }
        let began = context::with(|core| core.now);
        let Some(space) = self.lock(slot) else { return };
        let range = PageRange::base(Page(from), 1);
        if let (Some(source), Some(target)) = (self.entry(slot, from), self.entry_made(slot, to))
            && source.load(Relaxed) & tables::PRESENT != 0
        {
            let held = target.load(Relaxed);
            if held & tables::PRESENT == 0 {
                self.make_ready(space, held);
                let word = source.swap(0, AcqRel);
                target.store(word, Release);
                self.flush_now(space, &[range]);
                self.returned(slot, range, began, false);
            }
        }
        self.unlock(slot);
    }

    fn migrate(&self, slot: usize, page: u64) {
        if Self::file_at(page).is_some() {
            return;
        }
        let Some(space) = self.lock(slot) else { return };
        if let Some(entry) = self.entry(slot, page)
            && entry.load(Relaxed) & tables::PRESENT != 0
            && let Some(new) = self.take_single()
        {
            let word = entry.swap(0, AcqRel);
            let old = Frame(word >> 12);
            self.flush_now(space, &[PageRange::base(Page(page), 1)]);
            self.capture(old, 1);
            self.hw.copy_frames(old, new, 1);
            entry.store(Self::leaf_word(new, word & tables::WRITABLE != 0), Release);
            self.release(What::Single(old));
        }
        self.unlock(slot);
    }

    fn split(&self, slot: usize, window: u64) {
        let Some(space) = self.lock(slot) else { return };
        let large = self.window_entry(slot, window);
        let held = large.load(Relaxed);
        if held & tables::PRESENT != 0
            && held & tables::TABLE == 0
            && let Some(table) = self.take_table()
        {
            let block = Frame(large.swap(0, AcqRel) >> 12);
            let range = PageRange::one(Page(window * WINDOW), PageSize::Large);
            self.flush_now(space, &[range]);
            self.capture(block, WINDOW);
            let pages = PAGES.into_iter().filter(|page| page / WINDOW == window);
            for page in pages.filter(|&page| Self::file_at(page).is_none()).take(2) {
                if let Some(frame) = self.take_single() {
                    self.hw.copy_frames(block.plus(page % WINDOW), frame, 1);
                    let entry = &self.hw.table(table)[(page % WINDOW) as usize];
                    entry.store(Self::leaf_word(frame, true), Relaxed);
                }
            }
            self.link(large, table);
            self.release(What::Block(block));
        }
        self.unlock(slot);
    }

    fn collapse(&self, slot: usize, window: u64) {
        let Some(space) = self.lock(slot) else { return };
        let pages = || {
            PAGES
                .into_iter()
                .filter(move |page| page / WINDOW == window)
        };
        let upper = self.window_entry(slot, window);
        let held = upper.load(Relaxed);
        let table = held & tables::PRESENT != 0 && held & tables::TABLE != 0;
        let entries = || pages().filter_map(|page| Some((page, self.entry(slot, page)?)));
        let fits = |(page, entry): (u64, &AdversaryWord)| {
            entry.load(Relaxed) == 0 || Self::file_at(page).is_none()
        };
        if table
            && entries().all(fits)
            && let Some(index) = self.take_bit(&self.free_blocks)
        {
            let block = self.layout.block(index);
            let mut batch = self.engine.batch(Purpose::Call);
            let mut old = [None; PAGES.len()];
            for ((page, entry), old) in entries().zip(&mut old) {
                let word = entry.load(Relaxed);
                if word & tables::PRESENT != 0 {
                    entry.swap(0, AcqRel);
                    *old = Some((page, Frame(word >> 12)));
                    batch.changed(space, PageRange::base(Page(page), 1), Scope::Leaf);
                }
            }
            upper.swap(0, AcqRel);
            let range = PageRange::one(Page(window * WINDOW), PageSize::Large);
            let what = What::Table(Frame(held >> 12));
            batch.table_unlinked(space, range, Held { kernel: self, what });
            drop(batch.finish());
            // What others have cleared here and not flushed.
            self.engine.settle_deferred(space);
            for (page, frame) in old.into_iter().flatten() {
                self.capture(frame, 1);
                self.hw.copy_frames(frame, block.plus(page % WINDOW), 1);
                self.release(What::Single(frame));
            }
            upper.store(Self::leaf_word(block, true), Release);
        }
        self.unlock(slot);
    }

    /// A call that took a range, or the right to write it, away returns.
    fn returned(&self, slot: usize, range: PageRange, began: Moment, writable_only: bool) {
        let root = self.layout.root(slot);
        let me = self.me();
        context::with(|core| core.set_call_began(me, began));
        self.hw.note(if writable_only {
            Event::ReturnedProtect {
                root,
                range,
                readable: true,
                writable: false,
                executable: true,
            }
        } else {
            Event::ReturnedUnmap { root, range }
        });
    }

    fn confirm(&self, slot: usize, page: u64, pages: u64) {
        let began = context::with(|core| core.now);
        let Some(space) = self.lock(slot) else { return };
        let empty = self.all_empty(slot, page, pages);
        self.unlock(slot);
        if empty {
            self.engine.settle(space);
            self.returned(slot, PageRange::base(Page(page), pages), began, false);
        }
    }

    fn all_empty(&self, slot: usize, page: u64, pages: u64) -> bool {
        let range = page..page.saturating_add(pages);
        let windows =
            (0..2u64).filter(|w| w * WINDOW < range.end && range.start < (w + 1) * WINDOW);
        let large = |window: u64| {
            let held = self.window_entry(slot, window).load(Relaxed);
            held & tables::PRESENT != 0 && held & tables::TABLE == 0
        };
        let huge = range.end > HUGE && self.huge_entry(slot).load(Relaxed) & tables::PRESENT != 0;
        let mapped = |page: &u64| {
            self.entry(slot, *page)
                .is_some_and(|entry| entry.load(Relaxed) & tables::PRESENT != 0)
        };
        !huge
            && !windows.into_iter().any(large)
            && !PAGES.iter().filter(|page| range.contains(page)).any(mapped)
    }
}

/// The kernel's threads, and the batches that they have open, wherever.
struct Desk<'k, 'm> {
    kernel: &'k Kernel<'m>,
    lanes: &'k [Lane<EngineOp>],
    /// Each is touched only by the CPU that has it marked busy. Those of a run that was cut short are
    /// forgotten, not dropped: there is nobody left to flush.
    open: ManuallyDrop<[RefCell<Option<Open<'k, 'm>>>; BATCHES]>,
    /// The run has begun: before, nobody is there to be waited for.
    begun: Cell<bool>,
}

impl<'k, 'm> Desk<'k, 'm> {
    fn new(kernel: &'k Kernel<'m>, lanes: &'k [Lane<EngineOp>]) -> Self {
        Desk {
            kernel,
            lanes,
            open: ManuallyDrop::new(Default::default()),
            begun: Cell::new(false),
        }
    }

    /// Does something with a batch, unless another CPU is busy with it; `key` says what.
    fn with(&self, batch: u8, key: u64, body: impl FnOnce(&mut Option<Open<'k, 'm>>)) {
        let kernel = self.kernel;
        let busy = &kernel.busy[usize::from(batch)];
        if busy.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            return;
        }
        let mut place = self.open[usize::from(batch)].borrow_mut();
        body(&mut place);
        let trace = &kernel.traces[usize::from(batch)];
        match &*place {
            None => set(trace, 0),
            Some(open) if open.batch.is_empty() && open.changed[0].is_none() => {
                set(trace, 1 + open.purpose as u64);
            }
            // When something was reported is part of it: returned calls are compared with that.
            Some(_) => {
                let now = context::with(|core| core.now);
                let mixed = (peek(trace) ^ key) << 32 ^ u64::from(now);
                set(trace, mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63);
            }
        }
        drop(place);
        busy.store(0, Release);
    }

    fn with_open(&self, batch: u8, key: u64, body: impl FnOnce(&mut Open<'k, 'm>)) {
        self.with(batch, key, |place| {
            if let Some(open) = place {
                body(open);
            }
        });
    }

    fn open(&self, batch: u8, purpose: For) {
        self.with(batch, purpose as u64, |place| {
            if place.as_ref().is_some_and(|open| !open.batch.is_empty()) {
                return;
            }
            let purpose = match purpose {
                For::Call => Purpose::Call,
                For::Reclaim => Purpose::Reclaim,
                For::Migration => Purpose::Migration,
            };
            *place = Some(Open {
                batch: self.kernel.engine.batch(purpose),
                purpose,
                began: 0,
                changed: [None; KEPT],
                captures: [None; KEPT],
                unsettled: 0,
            });
        });
    }

    fn unmap(&self, open: &mut Open<'k, 'm>, slot: usize, page: u64, pages: u64, report: Reported) {
        let kernel = self.kernel;
        if !open.has_room() || open.batch.is_full() {
            return;
        }
        open.begin();
        let Some(space) = kernel.lock(slot) else {
            return;
        };
        let end = page.saturating_add(pages);
        let held = |what: What| Held { kernel, what };
        let mut any = false;
        let mut found_empty = false;
        for window in (0..2).filter(|w| w * WINDOW < end && page < (w + 1) * WINDOW) {
            let upper = kernel.window_entry(slot, window);
            let word = upper.load(Relaxed);
            if word & tables::PRESENT != 0 && word & tables::TABLE == 0 {
                let block = Frame(upper.swap(0, AcqRel) >> 12);
                let range = PageRange::one(Page(window * WINDOW), PageSize::Large);
                open.batch.unmapped(space, range, held(What::Block(block)));
                continue;
            }
            let inside = |at: &u64| *at / WINDOW == window && (page..end).contains(at);
            for at in PAGES.into_iter().filter(inside) {
                let entry = kernel.entry(slot, at);
                let present = |entry: &&AdversaryWord| entry.load(Relaxed) & tables::PRESENT != 0;
                let Some(entry) = entry.filter(present) else {
                    found_empty = true;
                    continue;
                };
                let frame = Frame(entry.swap(0, AcqRel) >> 12);
                any = true;
                if Kernel::file_at(at).is_none() {
                    open.batch.hold(held(What::Single(frame)));
                }
                if report == Reported::Each {
                    let range = PageRange::base(Page(at), 1);
                    open.batch.changed(space, range, Scope::Leaf);
                }
            }
        }
        if end > HUGE {
            let old = kernel.huge_entry(slot).swap(0, AcqRel);
            if old & tables::PRESENT != 0 {
                let range = PageRange::one(Page(HUGE), PageSize::Huge);
                let what = What::Block(Frame(old >> 12));
                open.batch.unmapped(space, range, held(what));
            }
        }
        let range = PageRange::base(Page(page), pages);
        match report {
            Reported::Range if any => open.batch.changed(space, range, Scope::Leaf),
            Reported::All if any => open.batch.changed_all(space, Scope::Leaf),
            _ => {}
        }
        // Nothing of the huge mapping is looked for twice: whoever cleared it may not have flushed.
        if found_empty || end > HUGE || !any {
            open.unsettled |= 1 << slot;
        }
        open.remember(Changed {
            slot,
            range,
            writable_only: false,
        });
        kernel.unlock(slot);
    }

    fn protect(&self, open: &mut Open<'k, 'm>, slot: usize, page: u64, pages: u64, capture: bool) {
        let kernel = self.kernel;
        if !open.has_room() {
            return;
        }
        open.begin();
        let Some(space) = kernel.lock(slot) else {
            return;
        };
        let end = page.saturating_add(pages);
        let mut settles = end > 2 * WINDOW;
        for window in (0..2).filter(|w| w * WINDOW < end && page < (w + 1) * WINDOW) {
            let upper = kernel.window_entry(slot, window);
            let word = upper.load(Relaxed);
            if word & tables::PRESENT != 0 && word & tables::TABLE == 0 {
                if upper.fetch_and(!tables::WRITABLE, AcqRel) & tables::WRITABLE != 0 {
                    let range = PageRange::one(Page(window * WINDOW), PageSize::Large);
                    open.batch.changed(space, range, Scope::Leaf);
                } else {
                    settles = true;
                }
                continue;
            }
            let inside = |at: &u64| *at / WINDOW == window && (page..end).contains(at);
            for at in PAGES.into_iter().filter(inside) {
                let writable = tables::PRESENT | tables::WRITABLE;
                let entry = kernel.entry(slot, at);
                let entry = entry.filter(|entry| entry.load(Relaxed) & writable == writable);
                let Some(entry) = entry else {
                    settles = true;
                    continue;
                };
                let old = entry.fetch_and(!tables::WRITABLE, AcqRel);
                let range = PageRange::base(Page(at), 1);
                open.batch.changed(space, range, Scope::Leaf);
                if capture
                    && Kernel::file_at(at).is_none()
                    && let Some(place) = open.captures.iter_mut().find(|place| place.is_none())
                {
                    let frame = Frame(old >> 12);
                    let page = at;
                    *place = Some(Capture { slot, page, frame });
                }
            }
        }
        if end > HUGE {
            let entry = kernel.huge_entry(slot);
            if entry.fetch_and(!tables::WRITABLE, AcqRel) & tables::WRITABLE != 0 {
                let range = PageRange::one(Page(HUGE), PageSize::Huge);
                open.batch.changed(space, range, Scope::Leaf);
            }
        }
        if settles {
            open.unsettled |= 1 << slot;
        }
        open.remember(Changed {
            slot,
            range: PageRange::base(Page(page), pages),
            writable_only: true,
        });
        kernel.unlock(slot);
    }

    fn unlink(&self, open: &mut Open<'k, 'm>, slot: usize, window: u64) {
        let (page, kernel) = (window * WINDOW, self.kernel);
        self.unmap(open, slot, page, WINDOW, Reported::Each);
        let Some(space) = kernel.lock(slot) else {
            return;
        };
        let upper = kernel.window_entry(slot, window);
        let word = upper.load(Relaxed);
        let table = word & tables::PRESENT != 0 && word & tables::TABLE != 0;
        // Somebody may have mapped something meanwhile, and a marker says what must be settled.
        let idle = |at: u64| {
            let entry = kernel.entry(slot, at);
            entry.is_none_or(|entry| entry.load(Relaxed) == 0)
        };
        let mut pages = PAGES.into_iter().filter(|at| at / WINDOW == window);
        if table && pages.all(idle) && !open.batch.is_full() {
            upper.swap(0, AcqRel);
            let what = What::Table(Frame(word >> 12));
            let range = PageRange::one(Page(page), PageSize::Large);
            let table = Held { kernel, what };
            open.batch.table_unlinked(space, range, table);
        }
        kernel.unlock(slot);
    }

    /// What the end of a batch means, after its flush.
    fn ended(&self, open: &mut Open<'k, 'm>) {
        let kernel = self.kernel;
        if open.purpose == Purpose::Call {
            kernel.settle_all(std::mem::take(&mut open.unsettled));
        }
        for Capture { slot, page, frame } in
            std::mem::take(&mut open.captures).into_iter().flatten()
        {
            let Some(space) = kernel.lock(slot) else {
                continue;
            };
            let protected = kernel.entry(slot, page).is_some_and(|entry| {
                let held = entry.load(Relaxed);
                let rights = tables::PRESENT | tables::WRITABLE;
                held & rights == tables::PRESENT && held >> 12 == frame.0
            });
            if protected {
                // It may have been given the right back, and lost it again.
                kernel.engine.settle_deferred(space);
                kernel.capture(frame, 1);
            }
            kernel.unlock(slot);
        }
        for changed in std::mem::take(&mut open.changed).into_iter().flatten() {
            let Changed {
                slot,
                range,
                writable_only,
            } = changed;
            kernel.returned(slot, range, open.began, writable_only);
        }
    }

    fn finish(&self, batch: u8) {
        self.with_open(batch, 1, |open| {
            drop(open.batch.finish());
            self.ended(open);
        });
    }

    fn forget(&self, batch: u8) {
        self.with(batch, 2, |place| {
            let Some(open) = place.take() else { return };
            let Open {
                batch,
                purpose,
                began,
                changed,
                captures,
                unsettled,
            } = open;
            drop(batch);
            let mut end = Open {
                batch: self.kernel.engine.batch(purpose),
                purpose,
                began,
                changed,
                captures,
                unsettled,
            };
            self.ended(&mut end);
        });
    }

    fn sweep(&self, batch: u8, page: u64) {
        self.with_open(batch, page << 8, |open| {
            for slot in 0..usize::from(self.kernel.shape.spaces) {
                self.unmap(open, slot, page, 1, Reported::Each);
            }
        });
    }

    fn perform(&self, op: EngineOp) {
        let kernel = self.kernel;
        kernel.hw.say(|| format!("{op:?}"));
        let here = kernel.here();
        if here.offline && !matches!(op, EngineOp::Online | EngineOp::Wait { .. })
            || here.preempts && !op.may_preempt()
        {
            return;
        }
        match op {
            EngineOp::Switch { space } => kernel.switch(space.into()),
            EngineOp::Lazy => kernel.idle(),
            EngineOp::Read { page } => kernel.access(page, None),
            EngineOp::Write { page } => {
                kernel.update(|here| here.stores = here.stores.wrapping_add(1));
                let value = (kernel.me() as u64 + 1) << 8 | u64::from(kernel.here().stores);
                kernel.access(page, Some(value));
            }
            EngineOp::Map { space, page, write } => kernel.map(space.into(), page, write),
            EngineOp::MapFile { space, file, write } => {
                kernel.map_file(space.into(), file.into(), write);
            }
            EngineOp::MapLarge { space, window } => {
                let slot = usize::from(space);
                kernel.map_block(slot, |k| k.window_entry(slot, window.into()));
            }
            EngineOp::MapHuge { space } => {
                let slot = usize::from(space);
                kernel.map_block(slot, |k| k.huge_entry(slot));
            }
            EngineOp::Open { batch, purpose } => self.open(batch, purpose),
            EngineOp::Unmap {
                batch,
                space,
                page,
                pages,
                report,
            } => self.with_open(batch, page << 8 | pages << 40 | u64::from(space), |open| {
                self.unmap(open, space.into(), page, pages, report);
            }),
            EngineOp::Sweep { batch, page } => self.sweep(batch, page),
            EngineOp::Protect {
                batch,
                space,
                page,
                pages,
                capture,
            } => self.with_open(batch, page << 8 | pages << 40 | u64::from(space), |open| {
                self.protect(open, space.into(), page, pages, capture);
            }),
            EngineOp::Unlink {
                batch,
                space,
                window,
            } => self.with_open(batch, u64::from(window) << 8 | u64::from(space), |open| {
                self.unlink(open, space.into(), window.into());
            }),
            EngineOp::Finish { batch } => self.finish(batch),
            EngineOp::Forget { batch } => self.forget(batch),
            EngineOp::Confirm { space, page, pages } => kernel.confirm(space.into(), page, pages),
            EngineOp::Unprotect { space, page } => kernel.unprotect(space.into(), page),
            EngineOp::Move { space, page, to } => kernel.move_page(space.into(), page, to),
            EngineOp::Migrate { space, page } => kernel.migrate(space.into(), page),
            EngineOp::Split { space, window } => kernel.split(space.into(), window.into()),
            EngineOp::Collapse { space, window } => kernel.collapse(space.into(), window.into()),
            EngineOp::Reclaim { file } => kernel.reclaim(file.into()),
            EngineOp::ReclaimLazily { files } => kernel.reclaim_lazily(files),
            EngineOp::Claim { file } => {
                if let frame @ 1.. = peek(&kernel.shadows[usize::from(file)]) {
                    kernel.claim_frame(Frame(frame), None);
                }
            }
            EngineOp::Rescue { file } => kernel.rescue(file.into()),
            EngineOp::WriteFile { file } => {
                kernel.update(|here| here.stores = here.stores.wrapping_add(1));
                let value = (kernel.me() as u64 + 1) << 12 | u64::from(kernel.here().stores);
                kernel.write_file(file.into(), value);
            }
            EngineOp::Pay => kernel.engine.pay_all(),
            EngineOp::CatchUp => kernel.engine.catch_up(),
            EngineOp::Offline => self.offline(),
            EngineOp::Online => {
                if kernel.here().offline {
                    kernel.hw.online();
                    kernel.engine.cpu_online();
                    kernel.hw.restore_interrupts(true);
                    kernel.update(|here| here.offline = false);
                }
            }
            EngineOp::Retire { space } => kernel.retire(space.into()),
            EngineOp::Revive { space } => kernel.revive(space.into()),
            EngineOp::Mask { on } => {
                if on {
                    kernel.hw.mask_interrupts();
                } else {
                    kernel.hw.restore_interrupts(true);
                }
                kernel.update(|here| here.masked = on);
            }
            EngineOp::Tell { flag } if self.begun.get() => {
                kernel.told[usize::from(flag)].store(1, Release);
                kernel.update(|here| here.flag = here.flag.max(flag));
            }
            EngineOp::Tell { .. } => {}
            EngineOp::Wait { flag } => self.wait(flag),
        }
    }

    fn offline(&self) {
        let kernel = self.kernel;
        let here = kernel.here();
        kernel.hw.happen(Happening::Offline);
        kernel.update(|here| here.pinned = true);
        kernel.hw.mask_interrupts();
        kernel.engine.cpu_offline(kernel.loaded());
        kernel.hw.offline();
        kernel.update(|here| {
            here.offline = true;
            here.masked = false;
            here.pinned = false;
            here.loaded = None;
            here.runs = false;
        });
        if let (true, Some((slot, _))) = (here.runs, here.loaded) {
            kernel.quit(slot.into());
        }
    }

    fn wait(&self, flag: u8) {
        let kernel = self.kernel;
        let here = kernel.here();
        if !self.begun.get() || !kernel.flags.counts(kernel.me(), flag, here.flag) {
            return;
        }
        kernel.update(|here| here.flag = flag);
        while kernel.told[usize::from(flag)].load(Acquire) == 0 {
            if here.masked {
                kernel.engine.on_interrupt();
            }
            kernel.hw.relax();
        }
    }

    fn run(&self, ops: &[EngineOp]) {
        for &op in ops {
            self.perform(op);
            context::come_further();
        }
        if self.kernel.here().masked {
            self.perform(EngineOp::Mask { on: false });
        }
    }
}

impl context::Kernel for Desk<'_, '_> {
    fn interrupt(&self) {
        self.kernel.engine.on_interrupt();
    }

    /// Another thread runs here for a while; the space that was loaded cannot end meanwhile, and is loaded
    /// again when it goes on.
    fn preempt(&self) {
        let kernel = self.kernel;
        let before = kernel.here();
        if before.offline || before.pinned || before.preempts {
            return;
        }
        let space = before
            .loaded
            .filter(|_| before.runs)
            .map(|(slot, _)| usize::from(slot));
        if let Some(slot) = space
            && kernel.join(slot).is_none()
        {
            return;
        }
        kernel.update(|here| here.preempts = true);
        for &op in &self.lanes[kernel.me()].preempts {
            self.perform(op);
        }
        match space {
            Some(slot) => {
                kernel.switch(slot);
                kernel.quit(slot);
            }
            None => kernel.idle(),
        }
        kernel.update(|here| here.preempts = false);
    }

    fn nmi(&self) {
        if self.kernel.engine.user_access_allowed() {
            let me = self.kernel.me();
            context::point(Op::Access(AccessKind::Load));
            let load = (AccessKind::Load, 0);
            context::with(|core| core.access(me, self.kernel.shape.nmi_page, 0, load));
        } else {
            self.kernel.hw.happen(Happening::NmiRefused);
        }
    }

    fn kept(&self, cpu: usize) -> u64 {
        let here = self.kernel.current[cpu].get();
        let bits = [
            here.runs,
            here.offline,
            here.masked,
            here.pinned,
            here.preempts,
        ];
        let loaded = here.loaded.map_or(0, |(slot, life)| {
            1 + u64::from(slot) * LIVES as u64 + u64::from(life)
        });
        let bits = bits
            .into_iter()
            .fold(loaded, |sum, bit| sum << 1 | u64::from(bit));
        bits << 16 | u64::from(here.flag) << 8 | u64::from(here.stores)
    }
}

/// Runs a program over the engine.
pub(super) fn perform(
    shape: &Shape,
    lanes: &[Lane<EngineOp>],
    flags: Flags,
    stage: Stage<'_>,
    coverage: &mut Coverage,
) -> Vec<Line> {
    let layout = Layout::of(shape, lanes);
    let count = lanes.len();
    let memory = MemoryMap::new(&[Node {
        extent: Extent {
            first: layout.single(0),
            frames: layout.frames() as u64 - layout.single(0).0,
        },
        slow: false,
    }]);
    let first = usize::from(shape.first_cpu);
    let mut features = stage.kind.features(first + count);
    features.full_above = shape.full_above.into();
    match &mut features.tagging {
        quell::Tagging::PerCpu { count } => *count = shape.tags.into(),
        quell::Tagging::Global { bits } => *bits += shape.spare_bits,
        quell::Tagging::None => {}
    }
    // The machine judges what it is asked by what it can do.
    context::with(|core| core.features = features);
    let machine = Adversary::with(stage.kind, features, shape.first_cpu, count, memory);
    let hw = stage.broken(machine);
    // Few lie on the stack, at the same place in every run of a search.
    let (few, many): ([PerCpu<'_, Hw>; MAX_CPUS], Vec<_>);
    let cpus: &[PerCpu<'_, Hw>] = if first == 0 {
        few = std::array::from_fn(|_| PerCpu::new());
        &few[..count]
    } else {
        many = (0..first + count)
            .map(|_| PerCpu::new())
            .collect::<Vec<_>>();
        &many
    };
    let epochs: [Epoch<Hw>; EPOCHS] = std::array::from_fn(|_| Epoch::new());
    let epochs = &epochs[..shape.epochs.into()];
    let mut policy = stage.policy;
    if let TagPolicy::Slots(slots) = &mut policy.tags {
        *slots = shape.tags.into();
    }
    stage.weaken(cpus);
    let engine = Engine::with_rules(&hw, cpus, epochs, policy, RunRules)
        .expect("the engine runs on every machine that is hunted on");
    // SAFETY: in this machine in software a root is a number, and every number will do.
    let space = |slot: usize| unsafe { engine.new_space(layout.root(slot)) };
    let word = |value: u64| AdversaryWord::new(value);
    let kernel = Kernel {
        hw: &hw,
        shape: *shape,
        layout,
        spaces: std::array::from_fn(|slot| std::array::from_fn(|_| space(slot))),
        lives: std::array::from_fn(|slot| word(u64::from(slot < usize::from(shape.spaces)))),
        locks: std::array::from_fn(|_| word(0)),
        file_locks: std::array::from_fn(|_| word(0)),
        slots: std::array::from_fn(|_| word(0)),
        disks: std::array::from_fn(|file| word(file as u64 + 1)),
        shadows: std::array::from_fn(|_| word(0)),
        debtors: std::array::from_fn(|_| word(0)),
        residues: std::array::from_fn(|_| Residue::new()),
        free_singles: word((1 << SINGLES) - 1),
        free_blocks: word((1 << layout.blocks) - 1),
        free_tables: word((1 << layout.leaves()) - 1),
        told: std::array::from_fn(|_| word(0)),
        busy: std::array::from_fn(|_| word(0)),
        traces: std::array::from_fn(|_| word(0)),
        current: Default::default(),
        flags,
        engine,
    };
    let desk = Desk::new(&kernel, lanes);
    for slot in 0..usize::from(shape.spaces) {
        let top = &hw.table(layout.root(slot))[0];
        kernel.link(top, layout.middle(slot));
    }
    // As many batches as the threads of a busy program hold open while they are preempted.
    let mut preempted: Vec<ManuallyDrop<Batch<'_, '_, Hw, &Space, Frame, RunRules>>> = Vec::new();
    for (cpu, lane) in lanes.iter().enumerate() {
        stage.prepare(cpu, &desk, || {
            kernel.hw.online();
            kernel.engine.cpu_online();
            context::faultlessly(|| hw.faultlessly(|| desk.run(&lane.start)));
        });
    }
    if shape.open_batches > 0 {
        let mut open = || {
            for _ in 0..shape.open_batches {
                let mut batch = kernel.engine.batch(Purpose::Call);
                let space = &kernel.spaces[0][0];
                batch.changed(space, PageRange::base(Page(2 * WINDOW), 1), Scope::Leaf);
                preempted.push(ManuallyDrop::new(batch));
            }
        };
        stage.prepare(0, &desk, || {
            context::faultlessly(|| hw.faultlessly(&mut open));
        });
    }
    let names = |word: usize| kernel.name(cpus, epochs, word);
    desk.begun.set(true);
    let body = |cpu: usize| desk.run(&lanes[cpu].run);
    let lines = stage.perform(&desk, &body, &|| {}, &names);
    coverage.add_engine(&kernel.engine.stats());
    lines
}

impl Kernel<'_> {
    /// The name of a word, for timelines.
    fn name(&self, cpus: &[PerCpu<'_, Hw>], epochs: &[Epoch<Hw>], word: usize) -> Option<String> {
        let inside = |start: usize, size: usize| (start..start + size).contains(&word);
        let at = |list: &[AdversaryWord]| {
            list.iter()
                .position(|one| std::ptr::from_ref(one) as usize == word)
        };
        for (index, cpu) in cpus.iter().enumerate() {
            if inside(std::ptr::from_ref(cpu) as usize, size_of_val(cpu)) {
                let field = cpu.word_name(word).unwrap_or("?");
                return Some(format!("cpu{index}.{field}"));
            }
        }
        for (index, lives) in self.spaces.iter().enumerate() {
            if let Some(field) = lives.iter().find_map(|space| space.word_name(word)) {
                return Some(format!("space{index}.{field}"));
            }
        }
        for (list, what) in [
            (&self.locks[..], "lock of space"),
            (&self.lives[..], "life of space"),
            (&self.file_locks[..], "lock of file"),
            (&self.told[..], "flag"),
            (&self.busy[..], "batch"),
        ] {
            if let Some(index) = at(list) {
                return Some(format!("{what} {index}"));
            }
        }
        for (index, residue) in self.residues.iter().enumerate() {
            if inside(std::ptr::from_ref(residue) as usize, size_of_val(residue)) {
                let frame = self.layout.single(index as u64);
                return Some(format!("residue of frame {:#x}", frame.0));
            }
        }
        for (index, epoch) in epochs.iter().enumerate() {
            if inside(std::ptr::from_ref(epoch) as usize, size_of_val(epoch)) {
                return Some(format!("epoch {index}"));
            }
        }
        let engine = std::ptr::from_ref(&self.engine) as usize;
        if inside(engine, size_of_val(&self.engine)) {
            return Some(format!("engine+{:#x}", word - engine));
        }
        let (table, index) = context::place_of(word)?;
        Some(format!("entry {index} of table {table:#x}"))
    }
}

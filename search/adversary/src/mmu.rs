//! Models translation caches as the set of everything that they may hold.
//!
//! At any time a TLB may fill speculatively from anything that its walker can reach, and may drop any entry. Searching
//! through all these choices is impossible, but one set represents them all. Each CPU here holds *every* translation
//! that it could have filled since the last invalidation that covered it. It also holds every pointer to a page-table
//! page that its walker caches could have kept. The set is closed under walking: a kept pointer to a table leads to the
//! table's present entries.
//!
//! An access may use any translation of the set. If one of them breaks the contract, some timing of fills and evictions
//! does, and the run fails. So one run represents all those timings.
//!
//! An invalidation drops only translations that couldn't be walked any more when it was issued. A translation that can
//! still be walked, for example of a page that is still mapped, could be filled again at once, so it stays. Broadcasts
//! take effect when their issuer waits for their completion. They drop everything that had become unreachable before
//! they were *sent*.
//!
//! The tables of the kernel's half ([`Mmu::use_kernel`]) are always walked, whichever root is loaded, under the loaded
//! tag (0 if there is none). A global entry is held once for all tags.
//!
//! Some machines' walkers see a table write only after a barrier of the writer ([`OverwrittenEntry`]). Until then they
//! walk both the old and the new value of the word.
//!
//! This module also detects two translations of one address that must not be in a TLB together ([`breaks`]).

mod breaks;
mod held;
pub(crate) use breaks::EntryConflict;
pub(crate) use held::Leaf;

use crate::digest::{Digest, Moments};
use crate::kind::MachineKind;
use crate::oracle::{Moment, Oracle};
use crate::tables::{
    ACCESSED, Arena, BLOCK, CONTIGUOUS, DIRTY, GLOBAL, PRESENT, TABLE, USER, frame_of,
};
use held::{GLOBAL_TAG, OverwrittenEntry, Path, Pointer, TableStates, Tlb};
use quell::{Break, Invalidation};
use quell_arch::x86_64::isolation::user_tag;
use quell_vm::machine::Level;
use std::hash::Hash;
use std::ops::Range;
use std::rc::Rc;

/// The number of tags under which a TLB holds rubbish when its CPU starts.
const JUNK_TAGS: u16 = 3;

/// The translation hardware of all CPUs.
pub(crate) struct Mmu {
    arena: Rc<Arena>,
    levels: u8,
    kind: MachineKind,
    /// The translations of one address that must not meet ([`breaks`]).
    breaks: Break,
    /// Whether a TLB may hold a large page, or has held one in this run.
    large: bool,
    /// Pairs that met and that the judge hasn't examined yet.
    meetings: Vec<EntryConflict>,
    /// The root of the kernel's half, if the program has one.
    kernel: Option<u32>,
    sides: TableStates,
    /// For each frame, the number of table entries that map it, or map a large page that begins with it.
    mapped: Box<[u32]>,
    tlbs: Vec<Tlb>,
    lags: Vec<OverwrittenEntry>,
}

/// A written word of a table.
struct SavedWord {
    table: u32,
    index: usize,
    word: u64,
    written: Moment,
}

/// A saved state of the translation hardware.
pub(crate) struct SavedMmu {
    kernel: Option<u32>,
    words: Vec<SavedWord>,
    mapped: Box<[u32]>,
    tlbs: Vec<Tlb>,
    lags: Vec<OverwrittenEntry>,
}

impl Mmu {
    /// Creates the hardware of `cpus` CPUs, on a machine with `frames` frames. Only the first `tables` of these can be
    /// page-table pages.
    pub(crate) fn new(
        kind: MachineKind,
        arena: Rc<Arena>,
        cpus: usize,
        frames: usize,
        tables: usize,
    ) -> Self {
        Mmu {
            arena,
            levels: 2,
            kind,
            breaks: Break::Never,
            large: false,
            meetings: Vec::new(),
            kernel: None,
            sides: TableStates::of(tables),
            mapped: vec![0; frames].into(),
            tlbs: (0..cpus).map(|_| Tlb::default()).collect(),
            lags: Vec::new(),
        }
    }

    /// Saves the state of the translation hardware, including the words of the tables.
    pub(crate) fn save(&self) -> SavedMmu {
        let words = (0..self.sides.tables()).flat_map(|table| {
            self.written_words(table).map(move |index| SavedWord {
                table,
                index,
                word: self.arena.table(table)[index].peek(),
                written: self.sides.written((table, index)),
            })
        });
        SavedMmu {
            kernel: self.kernel,
            words: words.collect(),
            mapped: self.mapped.clone(),
            tlbs: self.tlbs.clone(),
            lags: self.lags.clone(),
        }
    }

    /// Restores a saved state.
    pub(crate) fn restore(&mut self, saved: &SavedMmu) {
        self.zero_tables();
        for saved in &saved.words {
            self.arena.table(saved.table)[saved.index].poke(saved.word);
            let place = (saved.table, saved.index);
            self.sides.use_word(place);
            self.sides.set_written(place, saved.written);
        }
        self.kernel = saved.kernel;
        self.mapped.copy_from_slice(&saved.mapped);
        for (tlb, saved) in self.tlbs.iter_mut().zip(&saved.tlbs) {
            tlb.root = saved.root;
            tlb.tag = saved.tag;
            tlb.pointers.clone_from(&saved.pointers);
            tlb.leaves.clone_from(&saved.leaves);
            self.large |= saved.leaves.iter().any(|leaf| leaf.level > 0);
            tlb.newest = saved.newest;
        }
        self.lags.clone_from(&saved.lags);
    }

    /// Forgets a run and zeroes the tables. With `receipts`, initiators may continue before their targets have flushed.
    pub(crate) fn reset(&mut self, levels: u8, receipts: bool) {
        self.levels = levels;
        self.breaks = if receipts && self.kind.breaks_by_interrupt() {
            Break::Never
        } else {
            self.kind.break_before_make
        };
        self.large = false;
        self.meetings.clear();
        self.kernel = None;
        self.mapped.fill(0);
        self.zero_tables();
        for tlb in &mut self.tlbs {
            tlb.root = None;
            tlb.tag = 0;
            tlb.pointers.clear();
            tlb.leaves.clear();
            tlb.newest = 0;
            // A TLB may hold anything when its CPU starts.
            let users = (1..JUNK_TAGS).filter(|_| self.kind.isolated);
            let users = users.map(|tag| user_tag(quell::Tag(tag)).0);
            let junk = |tag| Leaf::junk(tag, 0, PRESENT | USER, (0, 0));
            tlb.leaves.extend((0..JUNK_TAGS).chain(users).map(junk));
        }
        self.lags.clear();
    }

    fn zero_tables(&mut self) {
        self.sides.clear(|table, index| self.arena.table(table)[index].poke(0));
    }

    /// Returns whether a table entry maps this frame, or a large page that begins with it.
    pub(crate) fn maps(&self, frame: u32) -> bool {
        self.mapped.get(frame as usize).is_some_and(|&entries| entries > 0)
    }

    /// Updates the counts for [`Mmu::maps`].
    fn count_mapped(&mut self, old: u64, new: u64) {
        let frame = |word: u64| (word & (PRESENT | TABLE) == PRESENT).then(|| frame_of(word));
        let (old, new) = (frame(old), frame(new));
        if old == new {
            return;
        }
        if let Some(entries) = old.and_then(|frame| self.mapped.get_mut(frame as usize)) {
            *entries -= 1;
        }
        if let Some(entries) = new.and_then(|frame| self.mapped.get_mut(frame as usize)) {
            *entries += 1;
        }
    }

    /// Returns the indices of a table's words that may not be zero.
    pub(crate) fn written_words(&self, frame: u32) -> impl Iterator<Item = usize> + use<> {
        self.sides.words(frame)
    }

    /// Adds the state of the translation hardware to a digest ([`state`](crate::machine)). `oracle` knows the calls
    /// that forbid the use of a translation.
    pub(super) fn digest(&self, moments: &Moments, oracle: &Oracle, digest: &mut Digest) {
        let forbidden = |root: u32, pages: Range<u64>, path: Path| {
            oracle.forbids(root, pages, (path.since, path.cut))
        };
        // Whether the word still holds this entry, so that a walk would find it again.
        let stands = |(table, index): (u32, usize), written: Moment| {
            self.sides.written((table, index)) == written
        };
        for tlb in &self.tlbs {
            (tlb.tag, tlb.root).hash(digest);
            digest.add_all(tlb.pointers.iter().map(|p| {
                let what = (p.tag, p.level, p.base, p.table, p.via, p.root);
                // If the path was cut, an entry that is filled through the pointer later counts as ended at the cut.
                let cut = (p.path.cut != Moment::MAX).then(|| forbidden(p.root, p.pages(), p.path));
                let word = (p.via, Level(p.level + 1).index(quell::Page(p.base)));
                let present = p.via == p.table || stands(word, p.written);
                (what, present, moments.outlives(p.until), cut)
            }));
            digest.add_all(tlb.leaves.iter().map(|l| {
                let what = (l.tag, l.level, l.page, l.from, l.word, l.via, l.root);
                let (_, index) = l.place();
                let present = stands((l.via, index), l.written);
                let lags = self.lags.iter().any(|lag| {
                    lag.table == l.via && lag.index == index && lag.written == l.written
                });
                let times = (moments.rank(l.written), moments.outlives(l.until));
                let path = (moments.rank(l.path.since), l.path.cut == Moment::MAX);
                let forbidden = forbidden(l.root, l.pages_of(), l.path);
                (what, present, lags, times, path, forbidden)
            }));
        }
        for table in 0..self.sides.tables() {
            digest.add_all(self.written_words(table).map(|index| {
                let written = self.sides.written((table, index));
                (index, moments.rank(written))
            }));
        }
        digest.add_all(self.lags.iter().map(|lag| {
            let times = (moments.rank(lag.written), oracle.returned_since(lag.at));
            (lag.table, lag.index, lag.old, times)
        }));
    }

    /// Returns the tag under which a CPU has loaded its root.
    pub(crate) fn tag(&self, cpu: usize) -> u16 {
        self.tlbs[cpu].tag
    }

    /// Returns the root that a CPU has loaded.
    pub(crate) fn root(&self, cpu: usize) -> Option<u32> {
        self.tlbs[cpu].root
    }

    /// Records that a table word has changed in memory.
    pub(crate) fn written(
        &mut self,
        now: Moment,
        (table, index): (u32, usize),
        (old, new): (u64, u64),
    ) {
        self.count_mapped(old, new);
        let place = (table, index);
        // The word counts as possibly non-zero until the next reset, which may have to clear it.
        if (old, new) != (0, 0) {
            self.sides.use_word(place);
        }
        let before = self.sides.written(place);
        if (old ^ new) & !ACCESSED == 0 {
            return;
        }
        // If only the dirty bit changed, the walker may have set it, and the mapping isn't new.
        if (old ^ new) & !(ACCESSED | DIRTY) != 0 {
            self.sides.set_written(place, now);
        }
        let written = self.sides.written(place);
        let gone = OverwrittenEntry { table, index, old, written: before, at: now };
        let unseen = (!self.kind.lagging_walkers).then_some(now);
        if self.kind.lagging_walkers
            && !self.kind.broadcasts()
            && new & (PRESENT | TABLE) == PRESENT | TABLE
        {
            self.linked(frame_of(new), now);
        }
        for cpu in 0..self.tlbs.len() {
            if self.tlbs[cpu].root.is_none() && self.kernel.is_none() {
                continue;
            }
            self.tlbs[cpu].end(&gone, unseen);
            self.start(cpu, table, index, new, written);
        }
        if self.kind.lagging_walkers && old & PRESENT != 0 {
            self.lags.push(gone);
        }
    }

    /// Makes table writes visible to every walker.
    ///
    /// Real barriers cover the CPU's own writes, and those of others that it had observed, for example under their
    /// lock. We don't model that they cover no others.
    pub(crate) fn barrier(&mut self, now: Moment) {
        while let Some(gone) = self.lags.pop() {
            for tlb in &mut self.tlbs {
                tlb.end(&gone, Some(now));
            }
        }
    }

    /// Records that a table was linked by a release store: a walker that reaches it sees earlier stores to it. Machines
    /// with broadcasts require more, because there only a barrier publishes table writes.
    fn linked(&mut self, table: u32, now: Moment) {
        let tlbs = &mut self.tlbs;
        self.lags.retain(|gone| {
            let of_it = gone.table == table;
            if of_it {
                tlbs.iter_mut().for_each(|tlb| tlb.end(gone, Some(now)));
            }
            !of_it
        });
    }

    /// Returns whether a barrier would change what walkers see.
    pub(crate) fn lags(&self) -> bool {
        !self.lags.is_empty()
    }

    /// Records that a word can be walked from now on.
    fn start(&mut self, cpu: usize, table: u32, index: usize, word: u64, written: Moment) {
        if word & PRESENT == 0 {
            return;
        }
        let tag = self.tlbs[cpu].tag;
        let mut at = 0;
        while at < self.tlbs[cpu].pointers.len() {
            let pointer = self.tlbs[cpu].pointers[at];
            if pointer.tag == tag && pointer.table == table {
                self.judge_new(cpu, &pointer, index, word);
                self.add(cpu, pointer, index, word, written);
            }
            at += 1;
        }
    }

    /// Adds the entry at `index` of the table that `from` points to.
    fn add(&mut self, cpu: usize, from: Pointer, index: usize, word: u64, written: Moment) {
        let page = from.base + index as u64 * Level(from.level).pages();
        if word & TABLE == 0 || from.level == 0 {
            let global = self.is_global(&from, word);
            let leaf = Leaf {
                tag: if global { GLOBAL_TAG } else { from.tag },
                level: from.level,
                page,
                from: page,
                word: word & !ACCESSED,
                via: from.table,
                root: from.root,
                written,
                until: Moment::MAX,
                path: from.path.to(written),
            };
            self.large |= from.level > 0;
            let tlb = &mut self.tlbs[cpu];
            if self.kind.blocks && from.level == 0 && word & CONTIGUOUS != 0 {
                let first = page & !(BLOCK - 1);
                (first..first + BLOCK).for_each(|page| tlb.fill(leaf.of_block(page)));
            } else {
                tlb.fill(leaf);
            }
            return;
        }
        let pointer = Pointer {
            tag: from.tag,
            level: from.level - 1,
            base: page,
            table: frame_of(word),
            via: from.table,
            root: from.root,
            written,
            until: Moment::MAX,
            path: from.path.to(written),
        };
        self.add_pointer(cpu, pointer);
    }

    /// Returns whether a leaf in the table that `from` points to is the same under every tag.
    fn is_global(&self, from: &Pointer, word: u64) -> bool {
        word & GLOBAL != 0 && self.kernel == Some(from.root)
    }

    fn add_pointer(&mut self, cpu: usize, pointer: Pointer) {
        let same = |p: &&mut Pointer| {
            (p.tag, p.level, p.base, p.table, p.via, p.root)
                == (
                    pointer.tag,
                    pointer.level,
                    pointer.base,
                    pointer.table,
                    pointer.via,
                    pointer.root,
                )
        };
        match self.tlbs[cpu].pointers.iter_mut().find(same) {
            Some(known) => {
                known.until = Moment::MAX;
                known.written = pointer.written;
                known.path.join(pointer.path);
            }
            None => self.tlbs[cpu].pointers.push(pointer),
        }
        self.scan(cpu, pointer);
    }

    /// Adds everything in the table that `pointer` points to.
    fn scan(&mut self, cpu: usize, pointer: Pointer) {
        // Only the first frames can be tables, and only these have words.
        if pointer.table >= self.sides.tables() {
            return;
        }
        let judged = self.may_contradict(cpu, &pointer);
        for index in self.written_words(pointer.table) {
            let word = self.arena.table(pointer.table)[index].peek();
            if word & PRESENT != 0 {
                if judged {
                    self.judge_new(cpu, &pointer, index, word);
                }
                let written = self.sides.written((pointer.table, index));
                self.add(cpu, pointer, index, word, written);
            }
        }
        for at in 0..self.lags.len() {
            let gone = self.lags[at];
            if gone.table == pointer.table {
                let mut from = pointer;
                from.path.cut = from.path.cut.min(gone.at);
                self.judge_new(cpu, &from, gone.index, gone.old);
                self.add(cpu, from, gone.index, gone.old, gone.written);
            }
        }
    }

    /// Drops the entries that `what` covers and that couldn't be walked any more at `sent`.
    pub(crate) fn invalidate(&mut self, cpu: usize, what: Invalidation, sent: Moment) {
        let kind = (self.kind.level_hints, self.kind.broadcasts());
        self.tlbs[cpu].invalidate(what, sent, kind);
    }

    /// Returns whether an invalidation that isn't in effect yet will drop this leaf from a CPU's TLB. It was issued at
    /// `sent`.
    pub(crate) fn will_lose(
        &self,
        cpu: usize,
        leaf: &Leaf,
        (what, sent): (Invalidation, Moment),
    ) -> bool {
        let kind = (self.kind.level_hints, self.kind.broadcasts());
        self.tlbs[cpu].will_lose(leaf, (what, sent), kind)
    }

    pub(crate) fn load_root(&mut self, cpu: usize, now: Moment, root: u32, tag: u16, keep: bool) {
        self.load_half(cpu, now, (root, tag), keep, false);
    }

    /// Loads a root under a tag. In `user` mode the walker reaches nothing of the kernel's half.
    pub(crate) fn load_half(
        &mut self,
        cpu: usize,
        now: Moment,
        (root, tag): (u32, u16),
        keep: bool,
        user: bool,
    ) {
        self.leave(cpu, now);
        let tlb = &mut self.tlbs[cpu];
        if !keep {
            tlb.drop_tag(tag);
        }
        tlb.root = Some(root);
        tlb.tag = tag;
        // Kept pointers lead to their tables' present entries.
        for at in 0..tlb.pointers.len() {
            let pointer = self.tlbs[cpu].pointers[at];
            if pointer.tag == tag {
                self.scan(cpu, pointer);
            }
        }
        self.walk_from(cpu, root);
        if !user {
            self.walk_kernel(cpu);
        }
    }

    /// Makes the tables of this root reachable for walks under the loaded tag.
    pub(super) fn walk_from(&mut self, cpu: usize, root: u32) {
        let pointer = Pointer {
            tag: self.tlbs[cpu].tag,
            level: self.levels - 1,
            base: 0,
            table: root,
            via: root,
            root,
            written: 0,
            until: Moment::MAX,
            path: Path { since: 0, cut: Moment::MAX },
        };
        self.add_pointer(cpu, pointer);
    }

    /// Returns a freed page-table page that a CPU's walker can still read, and the first page that it spans. `dead`
    /// returns whether a frame was freed.
    pub(crate) fn dead_table(&self, cpu: usize, dead: impl Fn(u32) -> bool) -> Option<(u32, u64)> {
        let tlb = &self.tlbs[cpu];
        tlb.root.or(self.kernel)?;
        tlb.pointers.iter().find(|p| p.tag == tlb.tag && dead(p.table)).map(|p| (p.table, p.base))
    }

    /// Returns the entries that the CPU's TLB may hold for a page under the loaded tag.
    pub(crate) fn cached(&self, cpu: usize, page: u64) -> impl Iterator<Item = &Leaf> {
        let tlb = &self.tlbs[cpu];
        tlb.leaves
            .iter()
            .filter(move |l| (l.tag == tlb.tag || l.tag == GLOBAL_TAG) && l.covers(page))
    }

    /// Returns the entries that the CPU's TLB may hold under the loaded tag.
    pub(crate) fn held(&self, cpu: usize) -> impl Iterator<Item = &Leaf> {
        let tlb = &self.tlbs[cpu];
        tlb.leaves.iter().filter(move |l| l.tag == tlb.tag || l.tag == GLOBAL_TAG)
    }

    /// Returns the present result of a walk from this root, which is loaded.
    pub(crate) fn walk(&self, cpu: usize, root: u32, page: u64) -> Option<Leaf> {
        let tlb = &self.tlbs[cpu];
        let mut table = root;
        for level in (0..self.levels).rev() {
            let index = Level(level).index(quell::Page(page));
            let word = self.arena.pages().get(table as usize)?[index].peek();
            if word & PRESENT == 0 {
                return None;
            }
            if level == 0 || word & TABLE == 0 {
                let written = self.sides.written((table, index));
                return Some(Leaf {
                    tag: tlb.tag,
                    level,
                    page: page & !(Level(level).pages() - 1),
                    from: page & !(Level(level).pages() - 1),
                    word: word & !ACCESSED,
                    via: table,
                    root,
                    written,
                    until: Moment::MAX,
                    path: Path { since: written, cut: Moment::MAX },
                });
            }
            table = frame_of(word);
        }
        None
    }

    pub(super) fn walk_kernel(&mut self, cpu: usize) {
        if let Some(kernel) = self.kernel {
            self.walk_from(cpu, kernel);
        }
    }

    /// Gives the kernel its own half under this root. This CPU's TLB holds junk for the page `junk`.
    pub(crate) fn use_kernel(&mut self, cpu: usize, root: u32, junk: Option<u64>) {
        self.kernel = Some(root);
        let junk = junk.map(|page| Leaf::junk(GLOBAL_TAG, page, PRESENT, (root, root + 1)));
        self.tlbs[cpu].leaves.extend(junk);
        self.walk_kernel(cpu);
    }

    /// Returns the root of the kernel's half.
    pub(crate) fn kernel(&self) -> Option<u32> {
        self.kernel
    }

    /// Unloads the loaded root. If the kernel has its own half, that one stays loaded alone, under tag 0.
    pub(crate) fn unload_root(&mut self, cpu: usize, now: Moment) {
        if self.leave(cpu, now) && self.kernel.is_some() {
            let tlb = &mut self.tlbs[cpu];
            tlb.drop_tag(0);
            tlb.tag = 0;
            self.walk_kernel(cpu);
        }
    }

    /// Ends all walks from the loaded root. Returns whether there was one.
    pub(super) fn leave(&mut self, cpu: usize, now: Moment) -> bool {
        let tlb = &mut self.tlbs[cpu];
        // Without a root, only the kernel's half was walked.
        let left = tlb.root.take().is_some();
        if !left && self.kernel.is_none() {
            return false;
        }
        for p in &mut tlb.pointers {
            p.until = p.until.min(now);
            // The root of the kernel's half still leads to its tables.
            if self.kernel != Some(p.root) {
                p.path.cut = p.path.cut.min(now);
            }
        }
        for l in tlb.leaves.iter_mut().filter(|l| l.tag != GLOBAL_TAG) {
            l.until = l.until.min(now);
            if self.kernel != Some(l.root) {
                l.path.cut = l.path.cut.min(now);
            }
        }
        left
    }
}

//! Translation caches, as the set of everything they may hold.
//!
//! A TLB may fill speculatively from whatever its walker can reach, at any time, and may forget
//! whatever it likes, at any time. Searching through those choices would be hopeless, and it is not
//! needed: what matters of all of them together is one set. Each CPU has here *every* translation
//! that it could have filled at some moment since the last invalidation that covered it, and every
//! pointer to a page-table page that its walker caches could have kept (closed under walking: a
//! kept pointer to a table is followed to what the table says now). An access may then use any
//! translation of the set; if one of them breaks the contract, some timing of fills and evictions
//! does, and the run has failed. So one run stands for all those timings.
//!
//! An invalidation takes away what could no longer be walked when it was issued; what can still be
//! walked could be filled again at once, so it stays. That also covers broadcasts: they are applied
//! when their issuer waits for their completion, to everything that had become unreachable before
//! they were *sent*.
//!
//! An invalidation of a range names one page per stride, and takes away what translates one of these
//! pages ([`PageRange::names`]): a large page goes with any of its pages, base pages that were reported
//! as one large stride stay, but for the first. Where an invalidation names the size of what it is to
//! drop (Arm's level hint, given for [`Scope::Leaf`]), entries of other sizes stay altogether, and
//! everything does if the range does not begin where such a page can. INVLPG, INVLPGB and SFENCE.VMA
//! name no size. Of the walker caches the pointers on the path to a named page go, for
//! [`Scope::Tables`] alone. INVLPG drops all of them on Intel's processors; on AMD's, with translation
//! cache extensions or INVLPGB, it does not.
//!
//! Clearing a pointer to a table ends nothing below it for the hardware: a walker that has kept the pointer
//! still reads what the table says now, and fills leaves through it that were written after the
//! pointer had gone, until an invalidation with [`Scope::Tables`] reaches the pointer. The translations
//! that were filled stay even then, until they are invalidated themselves. For the contract the
//! mapping ended with the pointer all the same, and an old value that walkers still read ended when it was
//! overwritten: so each entry knows both until when it could be *walked*, and since and until when
//! the tables *led* to it, from the root on ([`Path`]).
//!
//! On machines whose walkers see a table write only after a barrier of the writer ([`Lag`]), the
//! old and the new value of the word are both walked until then.

use crate::digest::{Digest, Moments};
use crate::kind::MachineKind;
use crate::oracle::{Moment, Oracle, Used};
use crate::tables::{ACCESSED, Arena, DIRTY, PRESENT, TABLE, USER, frame_of};
use quell::{Invalidate, PageRange, Scope};
use quell_vm::machine::{Level, TABLE_WORDS};
use std::hash::Hash;
use std::ops::Range;

/// Under how many tags a TLB holds rubbish when its CPU starts.
const JUNK_TAGS: u16 = 3;

/// What is known about a table besides its words.
struct Side {
    /// Which words are not zero.
    nonzero: [u64; TABLE_WORDS / 64],
    /// When each word was written last.
    written: [Moment; TABLE_WORDS],
}

/// Since when and until when the tables in memory lead from the root to an entry.
#[derive(Clone, Copy, Debug)]
struct Path {
    /// When the entry was written; that of the last pointer on the path that still led there, if the
    /// path had been cut before the entry was written.
    since: Moment,
    /// When the path was cut: [`Moment::MAX`] if it was not.
    cut: Moment,
}

impl Path {
    /// The path to an entry that is `written` at the end of this one.
    fn to(self, written: Moment) -> Path {
        let since = if written < self.cut {
            written
        } else {
            self.since
        };
        Path { since, ..self }
    }

    /// The entry was reached on `other` too: what lasts longer counts.
    fn join(&mut self, other: Path) {
        if other.cut >= self.cut {
            *self = other;
        }
    }
}

/// A pointer to a table that a walker may have kept, or the loaded root.
#[derive(Clone, Copy, Debug)]
struct Pointer {
    tag: u16,
    /// The level of the table pointed to.
    level: u8,
    base: u64,
    table: u32,
    /// The table in which the pointer stood; the root stands in itself.
    via: u32,
    root: u32,
    written: Moment,
    /// Until when a walker could read it.
    until: Moment,
    path: Path,
}

/// A translation that a TLB may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf {
    tag: u16,
    level: u8,
    page: u64,
    pub(crate) word: u64,
    via: u32,
    root: u32,
    written: Moment,
    /// Until when it could be walked.
    pub(crate) until: Moment,
    path: Path,
}

impl Pointer {
    /// The pages that the table spans.
    fn pages(&self) -> Range<u64> {
        self.base..self.base + Level(self.level + 1).pages()
    }
}

impl Leaf {
    fn pages(&self) -> u64 {
        Level(self.level).pages()
    }

    fn covers(&self, page: u64) -> bool {
        page.wrapping_sub(self.page) < self.pages()
    }

    /// The pages that it maps.
    fn pages_of(&self) -> Range<u64> {
        self.page..self.page + self.pages()
    }

    /// As the oracle sees an access to `page` through it.
    pub(crate) fn used(&self, page: u64) -> Used {
        Used {
            root: self.root,
            page,
            frame: frame_of(self.word) + (page - self.page) as u32,
            written: self.written,
            since: self.path.since,
            until: self.path.cut,
        }
    }

    /// When the entry was written.
    pub(super) fn written(&self) -> Moment {
        self.written
    }

    /// Where the entry stands.
    pub(crate) fn place(&self, page: u64) -> (u32, usize) {
        (self.via, Level(self.level).index(quell::Page(page)))
    }
}

/// A value that a table word had: walkers may still read it, if they lag.
#[derive(Clone, Copy)]
struct Gone {
    table: u32,
    index: usize,
    old: u64,
    /// When it was written.
    written: Moment,
    /// When another one took its place.
    at: Moment,
}

#[derive(Default)]
struct Tlb {
    tag: u16,
    root: Option<u32>,
    pointers: Vec<Pointer>,
    leaves: Vec<Leaf>,
}

/// The translation hardware of all CPUs.
pub(crate) struct Mmu {
    levels: u8,
    lagging: bool,
    level_hints: bool,
    sides: Box<[Side]>,
    tlbs: Vec<Tlb>,
    lags: Vec<Gone>,
}

impl Mmu {
    pub(crate) fn new(cpus: usize, frames: usize) -> Self {
        let side = |_| Side {
            nonzero: [0; TABLE_WORDS / 64],
            written: [0; TABLE_WORDS],
        };
        Mmu {
            levels: 2,
            lagging: false,
            level_hints: false,
            sides: (0..frames).map(side).collect(),
            tlbs: (0..cpus).map(|_| Tlb::default()).collect(),
            lags: Vec::new(),
        }
    }

    /// Forgets a run; zeroes the tables.
    pub(crate) fn reset(&mut self, arena: &Arena, levels: u8, kind: &MachineKind) {
        self.levels = levels;
        self.lagging = kind.lagging_walkers;
        self.level_hints = kind.level_hints;
        for (frame, side) in self.sides.iter_mut().enumerate() {
            for (block, bits) in side.nonzero.iter_mut().enumerate() {
                let mut left = core::mem::take(bits);
                while left != 0 {
                    let index = block * 64 + left.trailing_zeros() as usize;
                    left &= left - 1;
                    arena.table(frame as u32)[index].poke(0);
                    side.written[index] = 0;
                }
            }
        }
        for tlb in &mut self.tlbs {
            tlb.root = None;
            tlb.tag = 0;
            tlb.pointers.clear();
            tlb.leaves.clear();
            // Nobody knows what a TLB holds when a CPU starts.
            tlb.leaves.extend((0..JUNK_TAGS).map(|tag| Leaf {
                tag,
                level: 0,
                page: 0,
                word: PRESENT | USER,
                via: 0,
                root: 0,
                written: 0,
                until: 0,
                path: Path { since: 0, cut: 0 },
            }));
        }
        self.lags.clear();
    }

    /// Whether an entry of any table maps this frame, or a block that begins with it.
    pub(crate) fn maps(&self, arena: &Arena, frame: u32) -> bool {
        (0..self.sides.len() as u32).any(|table| {
            self.written_words(table).any(|index| {
                let word = arena.table(table)[index].peek();
                word & (PRESENT | TABLE) == PRESENT && frame_of(word) == frame
            })
        })
    }

    /// The words of a table that may not be zero.
    pub(crate) fn written_words(&self, frame: u32) -> impl Iterator<Item = usize> + use<> {
        let nonzero = self
            .sides
            .get(frame as usize)
            .map_or([0; TABLE_WORDS / 64], |side| side.nonzero);
        nonzero.into_iter().enumerate().flat_map(|(block, bits)| {
            (0..64)
                .skip(bits.trailing_zeros() as usize)
                .filter(move |bit| bits & (1 << bit) != 0)
                .map(move |bit| block * 64 + bit)
        })
    }

    /// What the translation hardware is now ([`state`](crate::machine)). `oracle` says
    /// what is held against the use of a translation.
    pub(super) fn digest(&self, moments: &Moments, oracle: &Oracle, digest: &mut Digest) {
        let forbidden = |root: u32, pages: Range<u64>, path: Path| {
            oracle.forbids(root, pages, (path.since, path.cut))
        };
        // Whether a walk that finds the entry now finds this one again.
        let stands = |(table, index): (u32, usize), written: Moment| {
            self.sides[table as usize].written[index] == written
        };
        for tlb in &self.tlbs {
            (tlb.tag, tlb.root).hash(digest);
            digest.add_all(tlb.pointers.iter().map(|p| {
                let what = (p.tag, p.level, p.base, p.table, p.via, p.root);
                // What is filled through it later, if its path was cut, ended with the path.
                let cut = (p.path.cut != Moment::MAX).then(|| forbidden(p.root, p.pages(), p.path));
                let word = (p.via, Level(p.level + 1).index(quell::Page(p.base)));
                let present = p.via == p.table || stands(word, p.written);
                (what, present, moments.outlives(p.until), cut)
            }));
            digest.add_all(tlb.leaves.iter().map(|l| {
                let what = (l.tag, l.level, l.page, l.word, l.via, l.root);
                let index = Level(l.level).index(quell::Page(l.page));
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
        for table in 0..self.sides.len() as u32 {
            digest.add_all(self.written_words(table).map(|index| {
                let written = self.sides[table as usize].written[index];
                (index, moments.rank(written))
            }));
        }
        digest.add_all(self.lags.iter().map(|lag| {
            let times = (moments.rank(lag.written), oracle.returned_since(lag.at));
            (lag.table, lag.index, lag.old, times)
        }));
    }

    /// The root that a CPU has loaded.
    pub(crate) fn root(&self, cpu: usize) -> Option<u32> {
        self.tlbs[cpu].root
    }

    /// A table word has changed in memory.
    pub(crate) fn written(
        &mut self,
        arena: &Arena,
        now: Moment,
        (table, index): (u32, usize),
        (old, new): (u64, u64),
    ) {
        let side = &mut self.sides[table as usize];
        let bit = 1 << (index % 64);
        if new == 0 {
            // The bit stays until the next reset: it says which words may have to be cleared.
            side.nonzero[index / 64] |= u64::from(old != 0) << (index % 64);
        } else {
            side.nonzero[index / 64] |= bit;
        }
        let before = side.written[index];
        if (old ^ new) & !ACCESSED == 0 {
            return;
        }
        // A dirty bit that the walker itself sets makes no new mapping.
        if (old ^ new) & !(ACCESSED | DIRTY) != 0 {
            side.written[index] = now;
        }
        let written = side.written[index];
        let gone = Gone {
            table,
            index,
            old,
            written: before,
            at: now,
        };
        let unseen = (!self.lagging).then_some(now);
        for cpu in 0..self.tlbs.len() {
            if self.tlbs[cpu].root.is_none() {
                continue;
            }
            self.tlbs[cpu].end(&gone, unseen);
            self.start(arena, cpu, table, index, new, written);
        }
        if self.lagging && old & PRESENT != 0 {
            self.lags.push(gone);
        }
    }

    /// A barrier: table writes have reached every walker.
    ///
    /// Those of other CPUs too, if the one with the barrier had observed them; who relies on that
    /// has taken their lock. That it does not reach others is not modelled.
    pub(crate) fn barrier(&mut self, now: Moment) {
        while let Some(gone) = self.lags.pop() {
            for tlb in &mut self.tlbs {
                tlb.end(&gone, Some(now));
            }
        }
    }

    /// Whether a barrier would change what walkers see.
    pub(crate) fn lags(&self) -> bool {
        !self.lags.is_empty()
    }

    /// A word can be walked from now on.
    fn start(
        &mut self,
        arena: &Arena,
        cpu: usize,
        table: u32,
        index: usize,
        word: u64,
        written: Moment,
    ) {
        if word & PRESENT == 0 {
            return;
        }
        let tag = self.tlbs[cpu].tag;
        let mut at = 0;
        while at < self.tlbs[cpu].pointers.len() {
            let pointer = self.tlbs[cpu].pointers[at];
            if pointer.tag == tag && pointer.table == table {
                self.add(arena, cpu, pointer, index, word, written);
            }
            at += 1;
        }
    }

    /// Adds what stands at `index` of the table that `from` points to.
    fn add(
        &mut self,
        arena: &Arena,
        cpu: usize,
        from: Pointer,
        index: usize,
        word: u64,
        written: Moment,
    ) {
        let page = from.base + index as u64 * Level(from.level).pages();
        if word & TABLE == 0 || from.level == 0 {
            let leaf = Leaf {
                tag: from.tag,
                level: from.level,
                page,
                word: word & !ACCESSED,
                via: from.table,
                root: from.root,
                written,
                until: Moment::MAX,
                path: from.path.to(written),
            };
            let same = |l: &&mut Leaf| {
                (l.tag, l.level, l.page, l.word, l.via, l.root, l.written)
                    == (
                        leaf.tag, leaf.level, page, leaf.word, leaf.via, leaf.root, written,
                    )
            };
            match self.tlbs[cpu].leaves.iter_mut().find(same) {
                Some(known) => {
                    known.until = Moment::MAX;
                    known.path.join(leaf.path);
                }
                None => self.tlbs[cpu].leaves.push(leaf),
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
        self.add_pointer(arena, cpu, pointer);
    }

    fn add_pointer(&mut self, arena: &Arena, cpu: usize, pointer: Pointer) {
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
        self.scan(arena, cpu, pointer);
    }

    /// Adds everything in the table that `pointer` points to.
    fn scan(&mut self, arena: &Arena, cpu: usize, pointer: Pointer) {
        // Only the lower half of a root belongs to programs, and only tables have sides.
        let Some(side) = self.sides.get(pointer.table as usize) else {
            return;
        };
        let nonzero = side.nonzero;
        for (block, mut left) in nonzero.into_iter().enumerate() {
            while left != 0 {
                let index = block * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                let word = arena.table(pointer.table)[index].peek();
                if word & PRESENT != 0 {
                    let written = self.sides[pointer.table as usize].written[index];
                    self.add(arena, cpu, pointer, index, word, written);
                }
            }
        }
        for at in 0..self.lags.len() {
            let gone = self.lags[at];
            if gone.table == pointer.table {
                let mut from = pointer;
                from.path.cut = from.path.cut.min(gone.at);
                self.add(arena, cpu, from, gone.index, gone.old, gone.written);
            }
        }
    }

    /// Takes away what `what` covers and could no longer be walked at `sent`.
    pub(crate) fn invalidate(&mut self, cpu: usize, what: Invalidate, sent: Moment) {
        let hints = self.level_hints;
        let tlb = &mut self.tlbs[cpu];
        let (any_tag, tag) = match what {
            Invalidate::All => (true, 0),
            Invalidate::Tag(tag) | Invalidate::Range { tag, .. } => (false, tag.0),
        };
        let tagged = |entry_tag: u16| any_tag || entry_tag == tag;
        let (range, scope) = match what {
            Invalidate::Range { range, scope, .. } => (Some(range), scope),
            Invalidate::Tag(_) | Invalidate::All => (None, Scope::Tables),
        };
        if scope == Scope::Tables {
            let goes = |p: &Pointer| {
                let pages = Level(p.level + 1).pages();
                p.until <= sent
                    && tagged(p.tag)
                    && range.is_none_or(|range| range.names(quell::Page(p.base), pages))
            };
            tlb.pointers.retain(|p| !goes(p));
            tlb.end_orphans(sent);
            tlb.pointers.retain(|p| !goes(p));
        }
        let hinted = hints && scope == Scope::Leaf;
        tlb.leaves.retain(|l| {
            l.until > sent || !tagged(l.tag) || !range.is_none_or(|range| reaches(range, l, hinted))
        });
    }

    /// Loads a root.
    pub(crate) fn load_root(
        &mut self,
        arena: &Arena,
        cpu: usize,
        now: Moment,
        root: u32,
        tag: u16,
        keep: bool,
    ) {
        self.unload_root(cpu, now);
        let tlb = &mut self.tlbs[cpu];
        if !keep {
            tlb.pointers.retain(|p| p.tag != tag);
            tlb.leaves.retain(|l| l.tag != tag);
        }
        tlb.root = Some(root);
        tlb.tag = tag;
        // Pointers that were kept lead on to what their tables say now.
        for at in 0..tlb.pointers.len() {
            let pointer = self.tlbs[cpu].pointers[at];
            if pointer.tag == tag {
                self.scan(arena, cpu, pointer);
            }
        }
        let pointer = Pointer {
            tag,
            level: self.levels - 1,
            base: 0,
            table: root,
            via: root,
            root,
            written: 0,
            until: Moment::MAX,
            path: Path {
                since: 0,
                cut: Moment::MAX,
            },
        };
        self.add_pointer(arena, cpu, pointer);
    }

    /// Leaves the loaded root.
    pub(crate) fn unload_root(&mut self, cpu: usize, now: Moment) {
        let tlb = &mut self.tlbs[cpu];
        if tlb.root.take().is_none() {
            return;
        }
        for p in &mut tlb.pointers {
            p.until = p.until.min(now);
            p.path.cut = p.path.cut.min(now);
        }
        for l in &mut tlb.leaves {
            l.until = l.until.min(now);
            l.path.cut = l.path.cut.min(now);
        }
    }

    /// A page-table page that `dead` says was freed and that the walker of a CPU can still read.
    pub(crate) fn dead_table(&self, cpu: usize, dead: impl Fn(u32) -> bool) -> Option<(u32, u64)> {
        let tlb = &self.tlbs[cpu];
        tlb.root?;
        tlb.pointers
            .iter()
            .find(|p| p.tag == tlb.tag && dead(p.table))
            .map(|p| (p.table, p.base))
    }

    /// What the CPU's TLB may hold for a page under the loaded tag.
    pub(crate) fn cached(&self, cpu: usize, page: u64) -> impl Iterator<Item = &Leaf> {
        let tlb = &self.tlbs[cpu];
        tlb.leaves
            .iter()
            .filter(move |l| l.tag == tlb.tag && l.covers(page))
    }

    /// What a walk from the loaded root finds now.
    pub(crate) fn walk(&self, arena: &Arena, cpu: usize, page: u64) -> Option<Leaf> {
        let tlb = &self.tlbs[cpu];
        let root = tlb.root?;
        let mut table = root;
        for level in (0..self.levels).rev() {
            let index = Level(level).index(quell::Page(page));
            let word = arena.pages.get(table as usize)?[index].peek();
            if word & PRESENT == 0 {
                return None;
            }
            if level == 0 || word & TABLE == 0 {
                let written = self.sides[table as usize].written[index];
                return Some(Leaf {
                    tag: tlb.tag,
                    level,
                    page: page & !(Level(level).pages() - 1),
                    word: word & !ACCESSED,
                    via: table,
                    root,
                    written,
                    until: Moment::MAX,
                    path: Path {
                        since: written,
                        cut: Moment::MAX,
                    },
                });
            }
            table = frame_of(word);
        }
        None
    }
}

/// Whether invalidating a range under the leaf's tag drops the leaf; `hinted` if the invalidations
/// name the size of what they are to drop.
fn reaches(range: PageRange, leaf: &Leaf, hinted: bool) -> bool {
    let stride = range.stride.pages();
    let told = !hinted || leaf.pages() == stride && range.start.0.is_multiple_of(stride);
    told && range.names(quell::Page(leaf.page), leaf.pages())
}

impl Tlb {
    /// The tables do not lead through an entry any more. `unseen` is when walkers stopped to see it, if they
    /// have.
    fn end(&mut self, gone: &Gone, unseen: Option<Moment>) {
        let place = |via: u32, level: u8, page: u64| {
            via == gone.table && Level(level).index(quell::Page(page)) == gone.index
        };
        if gone.old & PRESENT == 0 {
            return;
        }
        if gone.old & TABLE != 0 {
            for at in 0..self.pointers.len() {
                let p = &mut self.pointers[at];
                if p.until == Moment::MAX
                    && p.table == frame_of(gone.old)
                    && p.written == gone.written
                    && place(p.via, p.level + 1, p.base)
                {
                    p.until = unseen.unwrap_or(p.until);
                    self.cut(at, gone.at);
                }
            }
        } else {
            for leaf in &mut self.leaves {
                if leaf.until == Moment::MAX
                    && (leaf.word ^ gone.old) & !ACCESSED == 0
                    && leaf.written == gone.written
                    && place(leaf.via, leaf.level, leaf.page)
                {
                    leaf.until = unseen.unwrap_or(leaf.until);
                    leaf.path.cut = leaf.path.cut.min(gone.at);
                }
            }
        }
    }

    /// The tables do not lead through a pointer any more, nor to what lies below it.
    fn cut(&mut self, at: usize, now: Moment) {
        let pointer = &mut self.pointers[at];
        if pointer.path.cut != Moment::MAX {
            return;
        }
        pointer.path.cut = now;
        let pointer = *pointer;
        let below = |tag: u16, root: u32, via: u32, page: u64| {
            (tag, root, via) == (pointer.tag, pointer.root, pointer.table)
                && pointer.pages().contains(&page)
        };
        for leaf in &mut self.leaves {
            if below(leaf.tag, leaf.root, leaf.via, leaf.page) {
                leaf.path.cut = leaf.path.cut.min(now);
            }
        }
        for at in 0..self.pointers.len() {
            let p = self.pointers[at];
            if p.via != p.table && below(p.tag, p.root, p.via, p.base) {
                self.cut(at, now);
            }
        }
    }

    /// What was walked through a pointer that is gone cannot be walked any more.
    fn end_orphans(&mut self, now: Moment) {
        let leads = |pointers: &[Pointer], tag: u16, root: u32, via: u32, page: u64| {
            let mut kept = pointers.iter();
            kept.any(|q| (q.tag, q.root, q.table) == (tag, root, via) && q.pages().contains(&page))
        };
        while let Some(at) = self.pointers.iter().position(|p| {
            p.until == Moment::MAX
                && p.via != p.table
                && !leads(&self.pointers, p.tag, p.root, p.via, p.base)
        }) {
            self.pointers[at].until = now;
        }
        for leaf in &mut self.leaves {
            if leaf.until == Moment::MAX
                && !leads(&self.pointers, leaf.tag, leaf.root, leaf.via, leaf.page)
            {
                leaf.until = now;
            }
        }
    }
}

#[cfg(test)]
mod tests;

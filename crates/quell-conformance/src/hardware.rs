//! The suite for any kernel: is its [`Hardware`] what the engine takes it for, and does the engine
//! keep the contract on it?
//!
//! A kernel that embeds the engine has a [`Hardware`] already, and a [`Clear`] for memory. For this suite it adds a [`Bench`]:
//! the few things that the engine never does, writing a table entry and touching memory. It makes an
//! engine, and a [`Suite`] from it, and lets every CPU call [`Suite::run`]. No allocator of pages, no
//! processes and no user mode are needed; accesses may be made by the kernel itself, through the
//! user half of the loaded root.
//!
//! ```text
//! let engine = Engine::new(&hardware, cpus, epochs, Policy::ALL)?;
//! // Shootdown interrupts call engine.on_interrupt() from here on.
//! let suite = Suite::new(&engine);
//! // On every CPU, at once:
//! suite.run(|check| println!("{} failed on {} CPUs: {}", check.name, check.failures, check.saw));
//! ```
//!
//! Each check makes one change as a kernel would, every CPU in turn being the one that makes it, and
//! looks through every CPU's translations before, while and after. Targets read with interrupts
//! masked for a while, because that is where an initiator that does not wait is caught.
//!
//! # What it cannot see
//!
//! Only translations that are stale *on this machine*. [`Check::kept`] of the first check says on how
//! many CPUs a translation outlived its entry at all: where it is 0 the rest proves little. Entries
//! kept under tags that are not loaded, fills by speculation and walker caches show on few
//! emulators; the adversary's machine (`quell-adversary`) is for those. A flush that never ends (C7)
//! shows as a hang: the kernel's own watchdog must end it.

use crate::verdict::{Verdict, expect};
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::Ordering::SeqCst;
use quell::{
    AddressSpace, AllRules, Engine, Extent, Frame, Hardware, Invalidate, Outcome, Page, PageRange,
    PageSize, Purpose, Residue, Rules, Scope, Word,
};
use quell_zero::{Clear, ClearPolicy, Clearer, Plan};

/// What a program may do with a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rights {
    /// Loads.
    Read,
    /// Loads and stores.
    Write,
}

/// What the suite needs besides [`Hardware`]: memory, table entries, and accesses.
///
/// Every method may be called on every CPU at any time.
pub trait Bench: Hardware + Clear {
    /// How many CPUs will run the suite, those numbered from 0.
    fn cpus(&self) -> usize;

    /// Physically contiguous frames that nothing else uses until the suite has ended.
    fn take_frames(&self, frames: u64) -> Extent;

    /// An empty root table: nothing of the suite's is mapped in it.
    fn new_root(&self) -> Frame;

    /// Writes the entry of a base page, making the tables above it where they are missing. It
    /// invalidates nothing; a plain atomic store is enough.
    fn set(&self, root: Frame, page: Page, to: Option<(Frame, Rights)>);

    /// Takes the lowest table above a page, which exists, out of its parent; returns its frame.
    fn unlink_table(&self, root: Frame, page: Page) -> Frame;

    /// Reads a word of a frame, not through the translations under test.
    fn word(&self, frame: Frame, index: usize) -> u64;

    /// Writes a word of a frame, not through the translations under test.
    fn set_word(&self, frame: Frame, index: usize, value: u64);

    /// One load of eight bytes through the loaded root; `None` if it faults.
    fn try_read(&self, address: u64) -> Option<u64>;

    /// One store of eight bytes through the loaded root; `false` if it faults.
    fn try_write(&self, address: u64, value: u64) -> bool;
}

/// What came of one check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Check {
    /// Its name, the clauses of the contract first.
    pub name: &'static str,
    /// On how many CPUs it failed.
    pub failures: u64,
    /// What the first CPU saw if it failed there, else nothing.
    pub saw: &'static str,
    /// For the check that asks whether stale translations can be seen: on how many CPUs they were.
    pub kept: Option<u64>,
}

/// Where the suite maps its pages: 2 MB apart where tables of their own are wanted.
const BASE: Page = Page(0x10_0000_0000 >> 12);
/// The pages of a leaf table.
const TABLE: u64 = 512;
/// What frames hold before and after a change.
const OLD: u64 = 0xaaaa;
const NEW: u64 = 0xbbbb;
/// Turns of the checks that race.
const ROUNDS: u64 = 12;

/// The suite, shared by all CPUs.
pub struct Suite<'e, 'm, H: Bench, R: Rules = AllRules> {
    engine: &'e Engine<'m, H, R>,
    spaces: [AddressSpace<H>; 2],
    /// Two frames for the checks that change one page.
    pair: [Frame; 2],
    /// Two more for each CPU.
    own: Vec<[Frame; 2]>,
    /// Some in a row, to be zeroed.
    block: Extent,
    residue: Residue<H>,
    arrivals: H::Word,
    failures: H::Word,
    kept: H::Word,
    stage: H::Word,
}

impl<'e, 'm, H: Bench, R: Rules> Suite<'e, 'm, H, R> {
    /// A suite for the CPUs of the bench, on an engine that runs no space yet.
    pub fn new(engine: &'e Engine<'m, H, R>) -> Self {
        let hw = engine.hw();
        let pair = || {
            let extent = hw.take_frames(2);
            [extent.first, extent.first.plus(1)]
        };
        let word = || H::Word::new(0);
        Suite {
            engine,
            spaces: [(); 2].map(|()| engine.new_space(hw.new_root())),
            pair: pair(),
            own: (0..hw.cpus()).map(|_| pair()).collect(),
            block: hw.take_frames(4),
            residue: Residue::new(),
            arrivals: word(),
            failures: word(),
            kept: word(),
            stage: word(),
        }
    }

    /// Runs every check on this CPU; all CPUs must call it. The first hands what came of each to
    /// `report`.
    ///
    /// When it returns, this CPU has left the suite's address spaces and its TLB is empty.
    pub fn run(&self, report: impl FnMut(Check)) {
        let part = Part {
            suite: self,
            engine: self.engine,
            hw: self.engine.hw(),
            me: self.engine.hw().this_cpu().index(),
            crossed: Cell::new(0),
            turn: Cell::new(0),
            current: Cell::new(None),
        };
        part.run(report);
    }
}

/// One CPU's part in the suite.
struct Part<'s, 'e, 'm, H: Bench, R: Rules> {
    suite: &'s Suite<'e, 'm, H, R>,
    engine: &'s Engine<'m, H, R>,
    hw: &'s H,
    me: usize,
    crossed: Cell<u64>,
    /// Which CPU makes the next change.
    turn: Cell<usize>,
    current: Cell<Option<usize>>,
}

/// One check of one CPU.
type Step<'s, 'e, 'm, H, R> = fn(&Part<'s, 'e, 'm, H, R>) -> Verdict;

impl<'s, 'e, 'm, H: Bench, R: Rules> Part<'s, 'e, 'm, H, R> {
    fn run(&self, mut report: impl FnMut(Check)) {
        let checks: [(&'static str, Step<'s, 'e, 'm, H, R>); 11] = [
            ("stale_translations_can_be_seen", Self::stale),
            ("C3 changed_pages_are_read_anew", Self::change),
            ("C1 frames_come_back_unused", Self::reuse),
            ("C2 captured_pages_change_no_more", Self::capture),
            ("C3 large_ranges_change_whole", Self::range),
            ("C5 spaces_see_their_own_pages", Self::isolate),
            ("C6 unlinked_tables_are_not_walked", Self::unlink),
            ("C7 everybody_flushes_at_once", Self::together),
            ("C3 second_actors_settle", Self::settle),
            ("C4 C1 owed_flushes_are_paid", Self::owe),
            ("C8 zeroed_is_zero", Self::zero),
        ];
        self.engine.cpu_online();
        self.enter(0);
        for (name, check) in checks {
            self.barrier();
            let verdict = check(self);
            if verdict.is_err() {
                self.suite.failures.fetch_add(1, SeqCst);
            }
            self.barrier();
            let failures = self.suite.failures.load(SeqCst);
            self.barrier();
            if self.me == 0 {
                self.suite.failures.store(0, SeqCst);
                report(Check {
                    name,
                    failures,
                    saw: verdict.err().unwrap_or(""),
                    kept: (name == checks[0].0).then(|| self.suite.kept.load(SeqCst)),
                });
            }
        }
        self.barrier();
        let current = self.current.get().map(|index| &self.suite.spaces[index]);
        self.engine.cpu_offline(current);
        // Whoever comes next may lend the suite's tags anew.
        self.hw.invalidate(Invalidate::All);
        self.barrier();
    }

    fn enter(&self, index: usize) {
        let from = self.current.get().map(|index| &self.suite.spaces[index]);
        self.engine.switch_to(from, &self.suite.spaces[index]);
        self.current.set(Some(index));
    }

    fn barrier(&self) {
        let cpus = self.hw.cpus() as u64;
        self.crossed.set(self.crossed.get() + 1);
        self.suite.arrivals.fetch_add(1, SeqCst);
        while self.suite.arrivals.load(SeqCst) < self.crossed.get() * cpus {
            self.hw.relax();
        }
    }

    /// The CPU whose turn it is does something between two barriers; `stage` is 0 before.
    fn lead(&self, action: impl FnOnce()) {
        self.barrier();
        if self.turn.get() == self.me {
            self.suite.stage.store(0, SeqCst);
            action();
        }
        self.turn.set((self.turn.get() + 1) % self.hw.cpus());
        self.barrier();
    }

    /// Whether it is this CPU's turn to make the change that the others look at meanwhile; the turn
    /// goes on.
    fn initiates(&self) -> bool {
        let turn = self.turn.get();
        self.turn.set((turn + 1) % self.hw.cpus());
        turn == self.me
    }

    fn root(&self, space: usize) -> Frame {
        self.suite.spaces[space].root()
    }

    /// Writes an entry of the first space.
    fn set(&self, page: Page, to: Option<(Frame, Rights)>) {
        self.hw.set(self.root(0), page, to);
    }

    /// Flushes changed entries of the first space as the end of a call does.
    fn flush(&self, page: Page, pages: u64) {
        let mut batch = self.engine.batch::<_, Frame>(Purpose::Call);
        batch.changed(
            &self.suite.spaces[0],
            PageRange::base(page, pages),
            Scope::Leaf,
        );
        batch.finish().for_each(drop);
    }

    fn reads(&self, page: Page, value: u64) -> bool {
        self.hw.try_read(page.address()) == Some(value)
    }

    /// Maps the page to a frame that holds [`OLD`], and lets every CPU read it.
    fn begin(&self, page: Page, rights: Rights) -> Verdict {
        let frame = self.suite.pair[0];
        self.lead(|| {
            self.hw.set_word(frame, 0, OLD);
            self.set(page, Some((frame, rights)));
            self.flush(page, 1);
        });
        let read = self.reads(page, OLD);
        self.barrier();
        expect(read, "a page that was mapped could not be read")
    }

    /// Takes the page out again.
    fn end(&self, page: Page) {
        self.lead(|| {
            self.set(page, None);
            self.flush(page, 1);
        });
    }

    fn until(&self, stage: u64) {
        while self.suite.stage.load(SeqCst) < stage {
            self.hw.relax();
        }
    }

    /// Does something twice with interrupts masked, letting others run in between: a target that is
    /// slow to answer.
    fn slowly(&self, mut action: impl FnMut()) {
        let were_on = self.hw.mask_interrupts();
        action();
        self.hw.relax();
        action();
        self.hw.restore_interrupts(were_on);
        self.hw.relax();
    }

    /// Not a check of the engine: a page changes and nobody flushes.
    fn stale(&self) -> Verdict {
        self.begin(BASE, Rights::Read)?;
        let [_, new] = self.suite.pair;
        self.lead(|| {
            self.hw.set_word(new, 0, NEW);
            self.set(BASE, Some((new, Rights::Read)));
            self.hw.fence();
        });
        if self.reads(BASE, OLD) {
            self.suite.kept.fetch_add(1, SeqCst);
        }
        self.end(BASE);
        Ok(())
    }

    fn change(&self) -> Verdict {
        let mut verdict = self.begin(BASE, Rights::Read);
        let frames = self.suite.pair;
        for round in 1..=self.hw.cpus() {
            let (frame, value) = (frames[round % 2], round as u64);
            self.lead(|| {
                self.hw.set_word(frame, 0, value);
                self.set(BASE, Some((frame, Rights::Read)));
                self.flush(BASE, 1);
            });
            let read = self.reads(BASE, value);
            verdict = verdict.and(expect(read, "a page was read as it was before its change"));
        }
        self.end(BASE);
        verdict
    }

    fn reuse(&self) -> Verdict {
        let mut verdict = Ok(());
        for _ in 0..ROUNDS {
            verdict = verdict.and(self.begin(BASE, Rights::Read));
            if self.initiates() {
                self.set(BASE, None);
                let mut batch = self.engine.batch(Purpose::Reclaim);
                let range = PageRange::base(BASE, 1);
                batch.unmapped(&self.suite.spaces[0], range, self.suite.pair[0]);
                for frame in batch.finish() {
                    // The new owner.
                    self.hw.set_word(frame, 0, NEW);
                }
                // Time for the others to look.
                (0..8).for_each(|_| self.hw.relax());
                self.suite.stage.store(1, SeqCst);
            } else {
                let mut met_new_owner = false;
                while self.suite.stage.load(SeqCst) == 0 {
                    self.slowly(|| met_new_owner |= self.reads(BASE, NEW));
                }
                let right = expect(!met_new_owner, "a frame's new owner was read");
                verdict = verdict.and(right);
            }
            let gone = self.hw.try_read(BASE.address()).is_none();
            verdict = verdict.and(expect(gone, "an unmapped page could be read"));
        }
        verdict
    }

    fn capture(&self) -> Verdict {
        let mut verdict = Ok(());
        let frame = self.suite.pair[0];
        let mine = BASE.address() + 8 * (1 + self.me as u64);
        for _ in 0..ROUNDS {
            verdict = verdict.and(self.begin(BASE, Rights::Write));
            let wrote = self.hw.try_write(mine, 1);
            verdict = verdict.and(expect(wrote, "a store to a writable page was refused"));
            self.barrier();
            if self.initiates() {
                self.set(BASE, Some((frame, Rights::Read)));
                self.flush(BASE, 1);
                let words = || (1..=self.hw.cpus()).map(|index| self.hw.word(frame, index));
                let captured: Vec<u64> = words().collect();
                (0..8).for_each(|_| self.hw.relax());
                let same = words().eq(captured);
                self.suite.stage.store(1, SeqCst);
                verdict = verdict.and(expect(same, "a page was written after its capture"));
            } else {
                let mut stored = 1;
                while self.suite.stage.load(SeqCst) == 0 {
                    self.slowly(|| {
                        stored += 1;
                        self.hw.try_write(mine, stored);
                    });
                }
            }
            let refused = !self.hw.try_write(mine, 0);
            verdict = verdict.and(expect(refused, "a store to a protected page went through"));
            self.end(BASE);
        }
        verdict
    }

    fn range(&self) -> Verdict {
        let above = self.hw.features().full_above.min(TABLE);
        let mut verdict = Ok(());
        // Page by page, and as a whole.
        for pages in [above.min(16), above + 8] {
            let all = |value| (0..pages).all(|page| self.reads(BASE.plus(page), value));
            for (frame, value) in self.suite.pair.into_iter().zip([OLD, NEW]) {
                self.lead(|| {
                    self.hw.set_word(frame, 0, value);
                    (0..pages)
                        .for_each(|page| self.set(BASE.plus(page), Some((frame, Rights::Read))));
                    self.flush(BASE, pages);
                });
                verdict = verdict.and(expect(all(value), "part of a range was not read anew"));
            }
            self.lead(|| {
                (0..pages).for_each(|page| self.set(BASE.plus(page), None));
                self.flush(BASE, pages);
            });
        }
        verdict
    }

    fn isolate(&self) -> Verdict {
        let [one, two] = self.suite.pair;
        let three = self.suite.own[0][0];
        self.lead(|| {
            for (frame, value) in [(one, 1), (two, 2), (three, 3)] {
                self.hw.set_word(frame, 0, value);
            }
            self.set(BASE, Some((one, Rights::Read)));
            self.hw.set(self.root(1), BASE, Some((two, Rights::Read)));
            self.hw.fence();
        });
        let mut right = true;
        for _ in 0..8 {
            right &= self.reads(BASE, 1);
            self.enter(1);
            right &= self.reads(BASE, 2);
            self.enter(0);
        }
        self.enter(1);
        // Changed while all are away.
        self.lead(|| {
            self.set(BASE, Some((three, Rights::Read)));
            self.flush(BASE, 1);
        });
        right &= self.reads(BASE, 2);
        self.enter(0);
        let fresh = self.reads(BASE, 3);
        self.end(BASE);
        expect(right, "a space saw another's page")?;
        expect(fresh, "a space was entered with what it had before a flush")
    }

    fn unlink(&self) -> Verdict {
        // A table of its own.
        let page = BASE.plus(TABLE);
        let mut verdict = Ok(());
        for _ in 0..4 {
            verdict = verdict.and(self.begin(page, Rights::Read));
            let [_, new] = self.suite.pair;
            self.lead(|| {
                let table = self.hw.unlink_table(self.root(0), page);
                let range = PageRange {
                    start: page,
                    pages: TABLE,
                    stride: PageSize::Base,
                };
                let mut batch = self.engine.batch(Purpose::Call);
                batch.table_unlinked(&self.suite.spaces[0], range, table);
                for table in batch.finish() {
                    // Its next owner stores what is no entry.
                    (0..512).for_each(|index| self.hw.set_word(table, index, 0));
                }
                self.hw.set_word(new, 0, NEW);
                self.set(page, Some((new, Rights::Read)));
                self.hw.fence();
            });
            let read = self.reads(page, NEW);
            verdict = verdict.and(expect(read, "a page was read through a freed table"));
            self.end(page);
        }
        verdict
    }

    fn together(&self) -> Verdict {
        let page = |cpu: usize| BASE.plus(cpu as u64);
        let frames = self.suite.own[self.me];
        let all = |value| (0..self.hw.cpus()).all(|cpu| self.reads(page(cpu), value));
        let mut right = true;
        for round in 0..ROUNDS {
            let frame = frames[round as usize % 2];
            self.hw.set_word(frame, 0, round);
            let were_on = (round % 3 == 0).then(|| self.hw.mask_interrupts());
            self.set(page(self.me), Some((frame, Rights::Read)));
            self.flush(page(self.me), 1);
            right &= self.reads(page(self.me), round);
            if let Some(were_on) = were_on {
                self.hw.restore_interrupts(were_on);
            }
            if round % 2 == 1 {
                self.barrier();
                right &= all(round);
                self.barrier();
            }
        }
        self.lead(|| {
            (0..self.hw.cpus()).for_each(|cpu| self.set(page(cpu), None));
            self.flush(BASE, self.hw.cpus() as u64);
        });
        expect(right, "a page was read as it was before its change")
    }

    /// One CPU has cleared an entry and not flushed yet; another sees that, settles, and relies on it.
    fn settle(&self) -> Verdict {
        let mut verdict = Ok(());
        for round in 0..ROUNDS {
            verdict = verdict.and(self.begin(BASE, Rights::Read));
            let first = self.turn.get();
            let second = (first + 1) % self.hw.cpus();
            let settles = || {
                self.until(1);
                self.engine.settle(&self.suite.spaces[0]);
                self.suite.stage.store(2, SeqCst);
            };
            if self.initiates() {
                let purpose = [Purpose::Call, Purpose::Reclaim][round as usize % 2];
                let mut batch = self.engine.batch::<_, Frame>(purpose);
                self.set(BASE, None);
                let (space, range) = (&self.suite.spaces[0], PageRange::base(BASE, 1));
                batch.changed(space, range, Scope::Leaf);
                self.suite.stage.store(1, SeqCst);
                if first == second {
                    settles();
                }
                // Not before the others have looked.
                self.until(2 + self.hw.cpus() as u64 - 1);
                let gone = self.hw.try_read(BASE.address()).is_none();
                verdict = verdict.and(expect(gone, "a page could be read that was settled"));
                batch.finish().for_each(drop);
            } else {
                if self.me == second {
                    settles();
                }
                self.until(2);
                let gone = self.hw.try_read(BASE.address()).is_none();
                self.suite.stage.fetch_add(1, SeqCst);
                verdict = verdict.and(expect(gone, "a page could be read that was settled"));
            }
            self.barrier();
        }
        verdict
    }

    fn owe(&self) -> Verdict {
        let [frame, _] = self.suite.pair;
        let residue = &self.suite.residue;
        let mut verdict = Ok(());
        for _ in 0..ROUNDS {
            verdict = verdict.and(self.begin(BASE, Rights::Read));
            self.lead(|| {
                residue.begin();
                self.set(BASE, None);
                let mut batch = self.engine.batch::<_, Frame>(Purpose::Lazy);
                let (space, range) = (&self.suite.spaces[0], PageRange::base(BASE, 1));
                batch.changed(space, range, Scope::Leaf);
                match batch.finish_owed() {
                    Outcome::Owed(owed) => residue.owe(owed.stamp()),
                    Outcome::Flushed(_) => residue.settle_flushed(),
                };
            });
            let still = self.hw.try_read(BASE.address());
            let same = still.is_none_or(|value| value == OLD);
            verdict = verdict.and(expect(same, "a frame changed before its flush was paid"));
            self.lead(|| {
                // `None` where nothing was owed: flushed at once.
                let _ = self.engine.claim(residue);
                self.hw.set_word(frame, 0, NEW);
            });
            let gone = self.hw.try_read(BASE.address()).is_none();
            verdict = verdict.and(expect(gone, "a frame's new owner was read"));
        }
        verdict
    }

    fn zero(&self) -> Verdict {
        let block = self.suite.block;
        let mut verdict = Ok(());
        for _ in 0..self.hw.cpus() {
            self.lead(|| {
                let frames = (0..block.frames).map(|frame| block.first.plus(frame));
                for frame in frames {
                    (0..512).for_each(|index| self.hw.set_word(frame, index, NEW));
                }
                let policy = ClearPolicy::cooperative(Plan::default());
                Clearer::new(self.hw, &policy)
                    .with_rules(self.engine.rules())
                    .extent(block, Some(block.first), || {});
            });
            let zero = (0..block.frames)
                .all(|frame| (0..512).all(|i| self.hw.word(block.first.plus(frame), i) == 0));
            verdict = verdict.and(expect(zero, "zeroed memory was not zero"));
            self.barrier();
        }
        verdict
    }
}

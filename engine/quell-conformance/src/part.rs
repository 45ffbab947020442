//! One CPU's part in the suite: the operations from which we build the checks.

use crate::bench::{Bench, Rights};
use crate::verdict::{Verdict, expect};
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use quell::{
    AddressSpace, DeferredFlush, Engine, Extent, Frame, KernelEntries, Outcome, Page, PageRange,
    Purpose, Scope, Stamp, Word,
};

/// The content of frames before and after a change.
pub(crate) const OLD: u64 = 0xaaaa;
pub(crate) const NEW: u64 = 0xbbbb;

/// The kinds of kernel entries of the two pages in the kernel's half.
pub(crate) const OWN_ENTRIES: [KernelEntries; 2] = [KernelEntries::Global, KernelEntries::Tagged];

/// The state that all CPUs share.
pub(crate) struct SharedState<H: Bench> {
    pub spaces: [AddressSpace<H>; 2],
    /// The kernel spaces, one for global entries and one for others.
    pub own_half: Option<[AddressSpace<H>; 2]>,
    /// Two frames for the checks that change one page.
    pub pair: [Frame; 2],
    /// Two more frames for each CPU.
    pub own: Vec<[Frame; 2]>,
    /// Adjacent frames for the check of zeroing.
    pub block: Extent,
    pub deferred_flush: DeferredFlush<H>,
    /// The number of arrivals at barriers. We don't use a word of the machine, because those are checked, too.
    pub arrivals: AtomicUsize,
    /// For each CPU number, the number of CPUs that have it.
    pub seats: Vec<H::Word>,
    /// The words that [`Part::words`] tests.
    pub words: [H::Word; 4],
    pub failures: H::Word,
    pub kept: H::Word,
    pub stage: H::Word,
}

impl<H: Bench> SharedState<H> {
    pub fn new(engine: &Engine<'_, H>) -> Self {
        let hw = engine.hw();
        let pair = || {
            let extent = hw.take_frames(2);
            [extent.first, extent.first.plus(1)]
        };
        let word = || H::Word::new(0);
        SharedState {
            // SAFETY: `Bench` promises a root of the machine's format. We free it after we've retired the
            // space.
            spaces: [(); 2].map(|()| unsafe { engine.new_space(hw.new_root()) }),
            own_half: hw.own_half().map(|(root, _)| {
                // SAFETY: `Bench` promises the root of the kernel's half, and makes entries global as requested.
                OWN_ENTRIES.map(|entries| unsafe { engine.new_kernel_space(root, entries) })
            }),
            pair: pair(),
            own: (0..hw.cpus()).map(|_| pair()).collect(),
            block: hw.take_frames(4),
            deferred_flush: DeferredFlush::new(),
            arrivals: AtomicUsize::new(0),
            seats: (0..hw.cpus()).map(|_| word()).collect(),
            words: [(); 4].map(|()| word()),
            failures: word(),
            kept: word(),
            stage: word(),
        }
    }

    /// Frees all memory that the suite took. No CPU may have one of its spaces loaded.
    pub fn give_back(&self, engine: &Engine<'_, H>) {
        for space in &self.spaces {
            engine.hw().detach_device(space.root());
            engine.retire(space);
            engine.hw().free_tables(space.root());
        }
        for [first, _] in self.own.iter().chain([&self.pair]).copied() {
            engine.hw().give_back(Extent { first, frames: 2 });
        }
        engine.hw().give_back(self.block);
    }
}

/// One CPU's part in the suite.
pub(crate) struct Part<'s, 'm, H: Bench> {
    pub shared: &'s SharedState<H>,
    pub engine: &'s Engine<'m, H>,
    pub hw: &'s H,
    pub me: usize,
    crossed: Cell<usize>,
    /// The CPU that makes the next change.
    pub turn: Cell<usize>,
    /// The space that the CPU had loaded when the suite began.
    before: Option<&'s AddressSpace<H>>,
    /// The space of the suite that this CPU has loaded.
    current: Cell<Option<usize>>,
    /// The verdict of the check that runs.
    pub verdict: Cell<Verdict>,
}

impl<'s, 'm, H: Bench> Part<'s, 'm, H> {
    pub fn new(
        shared: &'s SharedState<H>,
        engine: &'s Engine<'m, H>,
        before: Option<&'s AddressSpace<H>>,
    ) -> Self {
        Part {
            shared,
            engine,
            hw: engine.hw(),
            me: engine.hw().this_cpu().index(),
            crossed: Cell::new(0),
            turn: Cell::new(0),
            before,
            current: Cell::new(None),
            verdict: Cell::new(Ok(())),
        }
    }

    fn loaded(&self) -> Option<&'s AddressSpace<H>> {
        match self.current.get() {
            Some(index) => Some(&self.shared.spaces[index]),
            None => self.before,
        }
    }

    pub fn enter(&self, index: usize) {
        self.engine.this_cpu().mask_interrupts().switch(self.loaded(), &self.shared.spaces[index]);
        self.current.set(Some(index));
    }

    /// Loads the space that was loaded before the suite. Returns whether there was one.
    pub fn enter_before(&self) -> bool {
        if let Some(space) = self.before {
            self.engine.this_cpu().mask_interrupts().switch(self.loaded(), space);
            self.current.set(None);
        }
        self.before.is_some()
    }

    /// Loads the space that was loaded before the suite, or none.
    pub fn leave(&self) {
        if !self.enter_before() {
            // The CPU had no space loaded, so we take it offline to make it leave the suite's.
            self.engine.cpu_offline(self.loaded());
            self.engine.cpu_online();
            self.current.set(None);
        }
    }

    pub fn barrier(&self) {
        let cpus = self.hw.cpus();
        self.crossed.set(self.crossed.get() + 1);
        self.shared.arrivals.fetch_add(1, SeqCst);
        while self.shared.arrivals.load(SeqCst) < self.crossed.get() * cpus {
            self.hw.relax();
        }
    }

    /// Runs `action` between two barriers, on the CPU whose turn it is. `stage` is 0 before.
    pub fn lead(&self, action: impl FnOnce()) {
        self.barrier();
        if self.turn.get() == self.me {
            self.shared.stage.store(0, SeqCst);
            action();
        }
        self.turn.set((self.turn.get() + 1) % self.hw.cpus());
        self.barrier();
    }

    /// Returns whether it's this CPU's turn to make the change that the others read meanwhile. Passes the turn on.
    pub fn initiates(&self) -> bool {
        let turn = self.turn.get();
        self.turn.set((turn + 1) % self.hw.cpus());
        turn == self.me
    }

    pub fn root(&self, space: usize) -> Frame {
        self.shared.spaces[space].root()
    }

    /// Writes an entry of the first space.
    pub fn set(&self, page: Page, to: Option<(Frame, Rights)>) {
        self.hw.set(self.root(0), page, to);
    }

    /// Flushes changed entries of the first space, as at the end of a system call.
    pub fn flush(&self, page: Page, pages: u64) {
        self.flush_in(&self.shared.spaces[0], PageRange::base(page, pages));
    }

    /// Flushes changed entries of this space, as at the end of a system call.
    pub fn flush_in(&self, space: &AddressSpace<H>, range: PageRange) {
        let mut batch = self.engine.batch::<_, Frame>(Purpose::Call);
        batch.changed(space, range, Scope::Leaf);
        batch.finish().for_each(drop);
    }

    /// Defers the flush of changed entries of this space, and returns its stamp. Returns `None` if it was made at once.
    pub fn defer_in(&self, space: &AddressSpace<H>, range: PageRange) -> Option<Stamp> {
        let mut batch = self.engine.batch::<_, Frame>(Purpose::Lazy);
        batch.changed(space, range, Scope::Leaf);
        match batch.finish_deferred() {
            Outcome::Deferred(deferred) => Some(deferred.stamp()),
            Outcome::Flushed(_none) => None,
        }
    }

    pub fn reads(&self, page: Page, value: u64) -> bool {
        self.hw.try_read(page.address()) == Some(value)
    }

    /// Records an observation, which fails the check unless the condition holds. The first failure counts.
    pub fn expect(&self, condition: bool, otherwise: &'static str) {
        self.verdict.set(self.verdict.get().and(expect(condition, otherwise)));
    }

    /// Maps the page to a frame that contains [`OLD`]. Checks that every CPU can read it.
    pub fn begin(&self, page: Page, rights: Rights) {
        let frame = self.shared.pair[0];
        self.lead(|| {
            self.hw.set_word(frame, 0, OLD);
            self.set(page, Some((frame, rights)));
            self.flush(page, 1);
        });
        let read = self.reads(page, OLD);
        self.barrier();
        self.expect(read, "a mapped page could not be read");
    }

    /// Unmaps the page again.
    pub fn end(&self, page: Page) {
        self.lead(|| {
            self.set(page, None);
            self.flush(page, 1);
        });
    }

    pub fn until(&self, stage: u64) {
        while self.shared.stage.load(SeqCst) < stage {
            self.hw.relax();
        }
    }

    /// Runs a function with interrupts masked.
    pub fn masked(&self, action: impl FnOnce()) {
        let were_on = self.hw.mask_interrupts();
        action();
        self.hw.restore_interrupts(were_on);
    }

    /// Runs a function twice with interrupts masked, and lets others run in between. That's like a target that answers
    /// slowly.
    pub fn slowly(&self, mut action: impl FnMut()) {
        let were_on = self.hw.mask_interrupts();
        action();
        self.hw.relax();
        action();
        self.hw.restore_interrupts(were_on);
        self.hw.relax();
    }
}

//! Operations on the kernel's half: mapping and unmapping ranges with a flush or lazily, using them, and running
//! undisturbed.

use super::program::Program;
use crate::tables::{FIRST_KERNEL_PAGE, KERNEL_PAGES, PAGES};
use crate::world::{EntryWord, FILE_PAGES, KERNEL_PAGES_EACH, KernelAddress, KernelHalf, lock};
use quell::{Hardware, Outcome, Purpose, Scope};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

impl<'a> Program<'a> {
    pub fn kernel_step(&mut self) {
        let page = self.roll(KERNEL_PAGES);
        match self.roll(16) {
            0..8 => (0..8).for_each(|_| self.access_kernel()),
            8..11 => self.map_kernel(page),
            11..13 => self.unmap_kernel(page),
            13 => self.unmap_kernel_lazily(page),
            14 => self.reuse_kernel(),
            _ => self.run_undisturbed(),
        }
    }

    fn lock_kernel(&self, page: usize) -> MutexGuard<'a, KernelAddress> {
        self.lock(&self.world.kernel.pages[page].state)
    }

    fn kernel_entry(&self, page: usize) -> EntryWord {
        EntryWord(self.hw.kernel_table()[page].load(Ordering::Relaxed))
    }

    fn write_kernel_entry(&self, page: usize, entry: EntryWord) {
        self.hw.kernel_table()[page].store(entry.0, Ordering::Release);
    }

    /// Records that no later access may use an entry of an earlier version.
    fn complete_kernel(&self, page: usize, version: u64) {
        let completed = &self.world.kernel.pages[page].completed;
        completed.fetch_max(version, Ordering::Release);
    }

    /// Performs one access of the kernel, and judges it.
    fn access_kernel(&mut self) {
        if self.roll(4) == 0 {
            self.poll();
        }
        self.accesses += 1;
        let page = self.roll(KERNEL_PAGES);
        let world = self.world;
        let completed = world.kernel.pages[page].completed.load(Ordering::Relaxed);
        self.hw.access(FIRST_KERNEL_PAGE + page as u32, |cached| {
            let entry = EntryWord(cached.entry);
            if let Some(broken) = entry.breaks(world.content(entry.frame()), completed) {
                self.report(entry.frame(), &format!("page {page} of the kernel's half"), broken);
            }
        });
    }

    /// Maps a frame at an address, whose earlier flush may be deferred.
    fn map_kernel(&mut self, page: usize) {
        let Some(frame) = self.allocate() else {
            return;
        };
        let mut state = self.lock_kernel(page);
        if self.kernel_entry(page).present() {
            drop(state);
            return self.free(frame);
        }
        if let Some(stamp) = state.deferred.take() {
            self.engine.flush_until(stamp);
        }
        state.version += 1;
        self.complete_kernel(page, state.version);
        let owner = self.own(frame, FILE_PAGES, 0);
        let entry = EntryWord::new(frame, owner, state.version, false);
        let entry = match page < KERNEL_PAGES_EACH {
            true => entry.global(),
            false => entry,
        };
        self.write_kernel_entry(page, entry);
    }

    /// Unmaps some adjacent pages, and flushes them as one range.
    fn unmap_kernel(&mut self, first: usize) {
        let left = KERNEL_PAGES_EACH - first % KERNEL_PAGES_EACH;
        let pages = 1 + self.roll(left);
        let scope = [Scope::Leaf, Scope::Tables][usize::from(self.roll(8) == 0)];
        let mut states: Vec<_> =
            (first..first + pages).map(|page| self.lock_kernel(page)).collect();
        let mut gather = self.gather(Purpose::Call);
        for (page, state) in (first..).zip(&mut states) {
            let entry = self.kernel_entry(page);
            if entry.present() {
                state.version += 1;
                self.write_kernel_entry(page, EntryWord(0));
                gather.hold(entry.frame());
            }
        }
        if gather.is_empty() {
            return;
        }
        let range = KernelHalf::range(first, pages);
        gather.changed(self.world.kernel.space(first), range, scope);
        self.finish(gather);
        for (page, state) in (first..).zip(&states) {
            // This flush doesn't cover the deferred one, but no program uses that address.
            if state.deferred.is_none() {
                self.complete_kernel(page, state.version);
            }
        }
    }

    /// Unmaps a page lazily that no program uses any more.
    fn unmap_kernel_lazily(&mut self, page: usize) {
        let mut state = self.lock_kernel(page);
        let entry = self.kernel_entry(page);
        if !entry.present() {
            return;
        }
        let world = self.world;
        let deferred_flush = &world.frames[entry.frame()].deferred_flush;
        deferred_flush.begin();
        state.version += 1;
        self.write_kernel_entry(page, EntryWord(0));
        let mut gather = self.gather(Purpose::Lazy);
        let space = world.kernel.space(page);
        gather.unmapped(space, KernelHalf::range(page, 1), entry.frame());
        match gather.finish_deferred() {
            Outcome::Flushed(frames) => {
                deferred_flush.clear();
                self.complete_kernel(page, state.version);
                frames.for_each(|frame| self.free(frame));
            }
            Outcome::Deferred(deferred) => {
                deferred_flush.defer(deferred.stamp());
                state.deferred = Some(deferred.stamp());
                lock(&world.kernel.deferred, || self.hw.relax()).extend(deferred);
            }
        }
    }

    /// Reuses a frame for which a range of the kernel's half has deferred a flush.
    fn reuse_kernel(&mut self) {
        let deferred = lock(&self.world.kernel.deferred, || self.hw.relax()).pop_front();
        if let Some(frame) = deferred
            && self.engine.flush_before_reuse(&self.world.frames[frame].deferred_flush).is_some()
        {
            self.free(frame);
        }
    }

    /// Runs the CPU's program undisturbed for a while.
    fn run_undisturbed(&mut self) {
        let Some(index) = self.current.filter(|_| !self.lazy) else {
            return;
        };
        let were_on = self.hw.mask_interrupts();
        // SAFETY: on this machine only `access_kernel` uses mappings of the kernel, and it runs after the entry.
        unsafe { self.engine.this_cpu().enter_user() };
        self.hw.restore_interrupts(were_on);
        for _ in 0..1 + self.roll(16) {
            let page = self.roll(PAGES);
            self.access(&self.world.spaces[index], page, false);
        }
        let were_on = self.hw.mask_interrupts();
        self.engine.this_cpu().enter_kernel();
        self.hw.restore_interrupts(were_on);
        (0..4).for_each(|_| self.access_kernel());
    }
}

//! Performs calls on a range of addresses (`mmap`, `munmap`, `mprotect`, `mremap`, `MADV_DONTNEED`, `MADV_PAGEOUT`,
//! `move_pages`).
//!
//! A call that removes a mapping or a right flushes before it unlocks the areas and returns to the program (C3). It has
//! the areas to itself, but `munmap` shares them with readers as soon as it has removed its range. The flush covers
//!
//! * the call's own changes;
//! * entries that it found already cleared by a reclaim or another call whose flush is pending;
//! * lazy markers, like the mappings that they replace.
//!
//! Suppose that a discard removed a base page at every address of its range. Then it found no cleared entry, and the
//! flush of these pages ends every translation of the range. So it doesn't check for other pending flushes.
//!
//! The last two calls change no area and revoke no right. They lock the areas for reading, so that the range stays
//! mapped, and pass its frames to reclaim or migration, which also find all other mappings of the frames.

use crate::entry::EntryKind;
use crate::lock::ReadGuard;
use crate::machine::{Event, Freed, Level, LockUse, Machine, Path, Work};
use crate::mmu_gather::MmuGather;
use crate::processes::Process;
use crate::syscall::{Backing, Error, Protection};
use crate::tables::MigrationHandling;
use crate::vm::Vm;
use crate::vma::{Source, Vma, VmaTree, page_range};
use alloc::sync::Arc;
use alloc::vec::Vec;
use quell::{Frame, PAGE_BYTES, Page, PageRange, PageSize, Purpose};

/// The result of emptying a range.
struct RangeResult {
    /// A page reaches beyond the range, and was kept.
    cut: bool,
    /// An entry was removed.
    taken: bool,
    /// Each base page of the range had its own entry, which was removed.
    all_taken: bool,
}

impl<'m, M: Machine> Vm<'m, M> {
    /// Maps memory (`mmap`). Returns the address.
    pub(crate) fn map(
        &self,
        process: &Arc<Process<M>>,
        address: Option<u64>,
        bytes: u64,
        protection: Protection,
        backing: Backing,
    ) -> Result<u64, Error> {
        let (source, align) = match backing {
            Backing::Anonymous { page } => (Source::Anonymous(page), page.pages()),
            Backing::Shared { file, offset } | Backing::Private { file, offset } => {
                self.cache.file(file)?;
                if offset % PAGE_BYTES != 0 {
                    return Err(Error::Unaligned);
                }
                let first = offset / PAGE_BYTES;
                let shared = matches!(backing, Backing::Shared { .. });
                (Source::File { file, first, shared }, 1)
            }
        };
        let mut range = page_range(address.unwrap_or(0), bytes)?;
        self.machine().charge(Work::Area);
        let mut vmas = process.vmas.write(self.machine());
        self.machine().charge(Work::Path(Path::Map));
        match address {
            Some(_) => {
                self.split_edges(process, range)?;
                vmas.remove(range);
                self.unmap_range(process, range);
            }
            None => range.start = vmas.find_free(range.pages, align).ok_or(Error::NoSpace)?,
        }
        vmas.insert(Vma { start: range.start, end: range.end(), protection, source });
        Ok(range.start.address())
    }

    /// Unmaps a range (`munmap`).
    pub(crate) fn unmap(&self, process: &Arc<Process<M>>, range: PageRange) -> Result<u64, Error> {
        self.machine().charge(Work::Area);
        let mut vmas = process.vmas.write(self.machine());
        self.machine().charge(Work::Path(Path::Unmap));
        self.split_edges(process, range)?;
        vmas.remove(range);
        // As in Linux, faults elsewhere needn't wait for the flush. Until then no call may map the range again, because
        // we would empty it. [mutant VmUnmapsUnlocked]
        let _vmas = vmas.downgrade();
        self.unmap_range(process, range);
        Ok(0)
    }

    /// Empties the tables of a range that no area covers and whose edges cut no page, and frees empty tables. The caller
    /// holds the areas.
    pub(crate) fn unmap_range(&self, process: &Arc<Process<M>>, range: PageRange) {
        self.take_out(process, core::iter::once(range));
        // Another CPU may have cleared an entry that this call found empty, and not flushed it yet. [mutant
        // VmUnmapsUnflushed]
        self.flush_pending(process);
        self.note_unmapped(process, range);
    }

    /// Unmaps all pages of a process that no CPU can run any more, and frees its tables except the root. Memory between
    /// its areas has no pages and no tables, so we skip it.
    pub(crate) fn unmap_all(&self, process: &Arc<Process<M>>) {
        let vmas = process.vmas.read(self.machine());
        self.take_out(process, vmas.iter().map(Vma::range));
    }

    /// Empties the tables of ranges, and frees empty tables, with one flush.
    fn take_out(&self, process: &Arc<Process<M>>, ranges: impl Iterator<Item = PageRange> + Clone) {
        let mut gather = self.gather(Purpose::Call).that_frees(Freed::Unmapped);
        for range in ranges.clone() {
            // [mutant VmUnmapForgetsEntry]
            self.empty_range(process, range, &mut gather);
        }
        for range in ranges {
            self.free_empty_tables(process, range, &mut gather);
        }
        gather.flush();
    }

    fn note_unmapped(&self, process: &Process<M>, range: PageRange) {
        if !process.retired() {
            self.machine().note(Event::ReturnedUnmap { root: process.root(), range });
        }
    }

    /// Removes every page from the tables of a range, except pages that reach beyond it.
    fn empty_range(
        &self,
        process: &Arc<Process<M>>,
        whole: PageRange,
        gather: &mut MmuGather<'_, 'm, M>,
    ) -> RangeResult {
        let machine = self.machine();
        // We drain as Linux does, so that the removed pages are on the lists.
        let home = machine.home_node(machine.this_cpu());
        machine.charge(Work::Locked(LockUse::ListDrain(home)));
        let (mut cut, mut taken) = (false, false);
        let mut base_pages = 0;
        self.each_entry(process, whole, MigrationHandling::Visit, |guard, page, _| {
            let range = guard.range(page);
            // Since the edges were split, a fault may have mapped a large page across them. [mutant
            // VmDiscardsWholePage]
            let inside = range.start >= whole.start && range.end() <= whole.end();
            if !inside {
                cut = true;
                return;
            }
            machine.charge(Work::Path(Path::Zap));
            taken = true;
            match guard.take(page, EntryKind::Empty, gather) {
                EntryKind::Swapped(slot) => self.swap.put(slot),
                EntryKind::Page(_) if range.stride == PageSize::Base => base_pages += 1,
                _ => {}
            }
        });
        RangeResult { cut, taken, all_taken: base_pages == whole.pages }
    }

    /// Locks the areas for reading. All pages of the range must be mapped.
    fn lock_areas_of<'p>(
        &self,
        process: &'p Process<M>,
        range: PageRange,
    ) -> Result<ReadGuard<'p, M::Word, VmaTree>, Error> {
        let vmas = process.vmas.read(self.machine());
        if vmas.covers(range) { Ok(vmas) } else { Err(Error::NotMapped) }
    }

    /// Discards the pages of a range (`MADV_DONTNEED`).
    pub(crate) fn discard(
        &self,
        process: &Arc<Process<M>>,
        range: PageRange,
    ) -> Result<u64, Error> {
        let vmas = self.lock_areas_of(process, range)?;
        for _ in vmas.within(range) {
            self.machine().charge(Work::Path(Path::AdviseArea));
        }
        loop {
            self.split_edges(process, range)?;
            let mut gather = self.gather(Purpose::Call).that_frees(Freed::Discarded);
            let emptied = self.empty_range(process, range, &mut gather);
            if emptied.taken {
                self.machine().charge(Work::Path(Path::Advise));
            }
            // A split waits for the pages that the gather holds.
            gather.flush();
            if emptied.cut {
                continue;
            }
            // The flush of a page that this call removed ends all translations of its address, and this call needs no
            // other addresses. So calls that discard their own pages don't flush for each other.
            if !emptied.all_taken {
                // [mutant VmDiscardsUnflushed]
                self.flush_pending(process);
            }
            break;
        }
        self.note_unmapped(process, range);
        Ok(0)
    }

    /// Changes the rights to a range (`mprotect`).
    pub(crate) fn protect(
        &self,
        process: &Arc<Process<M>>,
        range: PageRange,
        protection: Protection,
    ) -> Result<u64, Error> {
        let machine = self.machine();
        machine.charge(Work::Area);
        let mut vmas = process.vmas.write(machine);
        if !vmas.covers(range) {
            return Err(Error::NotMapped);
        }
        machine.charge(Work::Path(Path::Protect));
        self.split_edges(process, range)?;
        let mut gather = self.gather(Purpose::Call);
        for vma in vmas.remove(range) {
            vmas.insert(Vma { protection, ..vma });
        }
        let readable = protection.readable();
        // A migration restores the rights that an entry had. [mutant VmProtectsPastMigration]
        self.each_entry(process, range, MigrationHandling::Wait, |guard, page, view| match view {
            EntryKind::Page(_) => {
                machine.charge(Work::Path(Path::Change));
                guard.update(page, Some(&mut gather), |entry| {
                    entry.user = readable;
                    entry.executable = protection.execute;
                    // [mutant VmProtectForgetsRight]
                    entry.writable &= protection.write;
                });
            }
            // The stale translation behind a marker can't get other rights, so flush it.
            EntryKind::Marker(_) => {
                guard.take(page, EntryKind::Empty, &mut gather);
            }
            _ => {}
        });
        gather.flush();
        // As in `unmap_range`. [mutant VmProtectsUnflushed]
        self.flush_pending(process);
        machine.note(Event::ReturnedProtect {
            root: process.root(),
            range,
            readable,
            writable: protection.write,
            executable: protection.execute,
        });
        Ok(0)
    }

    /// Moves a range (`mremap`). Returns the new address.
    pub(crate) fn remap(
        &self,
        process: &Arc<Process<M>>,
        address: u64,
        bytes: u64,
        to: Option<u64>,
    ) -> Result<u64, Error> {
        let machine = self.machine();
        let range = page_range(address, bytes)?;
        machine.charge(Work::Area);
        let mut vmas = process.vmas.write(machine);
        if !vmas.covers(range) {
            return Err(Error::NotMapped);
        }
        let target = match to {
            Some(to) => page_range(to, bytes)?.start,
            None => vmas.find_free(range.pages, 1).ok_or(Error::NoSpace)?,
        };
        let target = PageRange { start: target, ..range };
        if target.start < range.end() && range.start < target.end() {
            return Err(Error::Overlap);
        }
        machine.charge(Work::Path(Path::Remap));
        // We move entries one by one, so split large pages.
        self.split_range(process, range)?;
        self.split_edges(process, target)?;
        vmas.remove(target);
        self.unmap_range(process, target);
        // We make every table before any page moves. From here on only memory for tables can be lacking; then the old
        // mapping at the new place is gone, as `Call::Remap` documents.
        let mut filled = Vec::new();
        self.each_entry(process, range, MigrationHandling::Wait, |_, page, _| filled.push(page));
        let shifted = |page: Page| Page(page.0 - range.start.0 + target.start.0);
        for &page in &filled {
            if self.table_for(process, shifted(page), Level::LEAF).is_none() {
                // Tables exist only within areas.
                self.unmap_range(process, target);
                return Err(Error::OutOfMemory);
            }
        }
        for vma in vmas.remove(range) {
            vmas.insert(Vma { start: shifted(vma.start), end: shifted(vma.end), ..vma });
        }
        let mut gather = self.gather(Purpose::Call);
        for &page in &filled {
            self.move_entry(process, page, shifted(page), &mut gather);
        }
        self.free_empty_tables(process, range, &mut gather);
        gather.flush();
        // As in `unmap_range`, for the old place. [mutant VmRemapsUnflushed]
        self.flush_pending(process);
        self.note_unmapped(process, range);
        Ok(target.start.address())
    }

    /// Moves one base page. The old place stays in the reverse map until its flush. So a walk that finds the page at
    /// the new place also finds that the old one may still be in use.
    ///
    /// A walk of the reverse map holds the page's lock and visits the places that were listed at its start. Meanwhile
    /// the page must not move from one place to another. [mutant VmRemapsUnlocked]
    fn move_entry(
        &self,
        process: &Arc<Process<M>>,
        from: Page,
        to: Page,
        gather: &mut MmuGather<'_, 'm, M>,
    ) {
        let mut moved = false;
        while !moved {
            let mapped = self.governing(process, from).view(from).frame();
            let _lock = mapped.map(|frame| self.lock_mapped(frame));
            moved = true;
            let one = PageRange::one(from, PageSize::Base);
            self.each_entry(process, one, MigrationHandling::Wait, |source, _, view| {
                if view.frame().is_some_and(|frame| Some(frame) != mapped) {
                    moved = false;
                    return;
                }
                // No other CPU waits for two tables of this process while we hold its areas.
                let other = (!source.spans(to)).then(|| self.governing(process, to));
                let target = other.as_ref().unwrap_or(source);
                match view {
                    EntryKind::Page(_) => source.move_page(from, target, to, gather),
                    // The new place can't represent a stale translation of the old one, so flush it. [mutant
                    // VmLiftsMarker]
                    EntryKind::Marker(_) => {
                        source.take(from, EntryKind::Empty, gather);
                    }
                    _ => target.put(to, source.lift(from)),
                }
            });
        }
    }

    /// Reclaims the pages of a range (`MADV_PAGEOUT`). Returns the number of reclaimed pages.
    pub(crate) fn page_out(
        &self,
        process: &Arc<Process<M>>,
        range: PageRange,
    ) -> Result<u64, Error> {
        let _vmas = self.lock_areas_of(process, range)?;
        self.split_range(process, range)?;
        Ok(self.page_out_frames(&self.mapped_frames(process, range, |_| true)))
    }

    /// Moves the pages of a range to a node (`move_pages`). Returns the number of moved base pages.
    pub(crate) fn migrate(
        &self,
        process: &Arc<Process<M>>,
        range: PageRange,
        node: usize,
    ) -> Result<u64, Error> {
        let _vmas = self.lock_areas_of(process, range)?;
        let map = self.frames.map;
        if node >= map.nodes().len() {
            return Err(Error::NoNode);
        }
        let elsewhere = |frame| map.node_of(frame) != Some(node);
        Ok(self.migrate_frames(&self.mapped_frames(process, range, elsewhere), node))
    }

    /// Returns the first frames of the range's mapped pages that are `wanted`.
    fn mapped_frames(
        &self,
        process: &Arc<Process<M>>,
        range: PageRange,
        wanted: impl Fn(Frame) -> bool,
    ) -> Vec<Frame> {
        let mut frames = Vec::new();
        self.each_entry(process, range, MigrationHandling::Visit, |_, _, view| {
            if let EntryKind::Page(entry) = view
                && wanted(entry.frame)
            {
                frames.push(entry.frame);
            }
        });
        frames
    }
}

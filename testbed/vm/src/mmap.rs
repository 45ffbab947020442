//! Performs calls that change a process's mappings (`mmap`, `munmap`, `mprotect`, `mremap`, `MADV_DONTNEED`).
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

use crate::entry::EntryKind;
use crate::large::LargePages;
use crate::machine::{Event, Level, LockUse, Machine, Path, Work};
use crate::memory::Memory;
use crate::mmu_gather::MmuGather;
use crate::page_cache::PageCache;
use crate::pages::Pages;
use crate::process::Process;
use crate::swap::Swap;
use crate::syscall::{Backing, Error, Protection};
use crate::tables::{MigrationHandling, Tables};
use crate::vma::{Source, Vma, page_range};
use alloc::sync::Arc;
use alloc::vec::Vec;
use quell::PAGE_BYTES;
use quell::{Page, PageRange, PageSize, Purpose};

/// The result of emptying a range.
struct RangeResult {
    /// A page reaches beyond the range, and was kept.
    cut: bool,
    /// An entry was removed.
    taken: bool,
    /// Each base page of the range had its own entry, which was removed.
    all_taken: bool,
}

/// The calls that change mappings.
pub(crate) struct Mmap<'m, M: Machine> {
    tables: Arc<Tables<'m, M>>,
    cache: Arc<PageCache<'m, M>>,
    swap: Arc<Swap<'m, M>>,
    pages: Arc<Pages<'m, M>>,
    memory: Arc<Memory<'m, M>>,
    large: Arc<LargePages<'m, M>>,
}

impl<'m, M: Machine> Mmap<'m, M> {
    pub(crate) fn new(
        tables: Arc<Tables<'m, M>>,
        cache: Arc<PageCache<'m, M>>,
        swap: Arc<Swap<'m, M>>,
        pages: Arc<Pages<'m, M>>,
        memory: Arc<Memory<'m, M>>,
        large: Arc<LargePages<'m, M>>,
    ) -> Self {
        Mmap { tables, cache, swap, pages, memory, large }
    }

    fn machine(&self) -> &'m M {
        self.tables.machine()
    }

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
        let (start, end) = page_range(address.unwrap_or(0), bytes)?;
        self.machine().charge(Work::Area);
        let mut vmas = process.vmas().write(self.machine());
        self.machine().charge(Work::Path(Path::Map));
        let start = match address {
            Some(_) => {
                self.large.split_edges(process, start, end)?;
                vmas.remove(start, end);
                self.unmap_range(process, start, end);
                start
            }
            None => vmas.find_free(end.0 - start.0, align).ok_or(Error::NoSpace)?,
        };
        let end = start.plus(bytes.div_ceil(PAGE_BYTES));
        vmas.insert(Vma { start, end, protection, source });
        Ok(start.address())
    }

    /// Unmaps a range (`munmap`).
    pub(crate) fn unmap(
        &self,
        process: &Arc<Process<M>>,
        address: u64,
        bytes: u64,
    ) -> Result<u64, Error> {
        let (start, end) = page_range(address, bytes)?;
        self.machine().charge(Work::Area);
        let mut vmas = process.vmas().write(self.machine());
        self.machine().charge(Work::Path(Path::Unmap));
        self.large.split_edges(process, start, end)?;
        vmas.remove(start, end);
        // As in Linux, faults elsewhere needn't wait for the flush. Until then no call may map the range again, because
        // we would empty it. [mutant VmUnmapsUnlocked]
        let _vmas = vmas.downgrade();
        self.unmap_range(process, start, end);
        Ok(0)
    }

    /// Empties the tables of a range that no area covers and whose edges cut no page, and frees empty tables. The caller
    /// holds the areas.
    pub(crate) fn unmap_range(&self, process: &Arc<Process<M>>, start: Page, end: Page) {
        self.take_out(process, core::iter::once((start, end)));
        // Another CPU may have cleared an entry that this call found empty, and not flushed it yet. [mutant
        // VmUnmapsUnflushed]
        self.tables.flush_pending(process);
        self.note_unmapped(process, start, end);
    }

    /// Unmaps all pages of a process that no CPU can run any more, and frees its tables except the root. Memory between
    /// its areas has no pages and no tables, so we skip it.
    pub(crate) fn unmap_all(&self, process: &Arc<Process<M>>) {
        let vmas = process.vmas().read(self.machine());
        self.take_out(process, vmas.iter().map(|vma| (vma.start, vma.end)));
    }

    /// Empties the tables of ranges, and frees empty tables, with one flush.
    fn take_out(
        &self,
        process: &Arc<Process<M>>,
        ranges: impl Iterator<Item = (Page, Page)> + Clone,
    ) {
        let mut gather = self.tables.gather(Purpose::Call).that_frees();
        for (start, end) in ranges.clone() {
            // [mutant VmUnmapForgetsEntry]
            self.empty(process, start, end, &mut gather);
        }
        for (start, end) in ranges {
            self.tables.free_empty_tables(process, start, end, &mut gather);
        }
        gather.flush();
    }

    fn note_unmapped(&self, process: &Process<M>, start: Page, end: Page) {
        if !process.retired() {
            let range = PageRange::base(start, end.0 - start.0);
            self.machine().note(Event::ReturnedUnmap { root: process.root(), range });
        }
    }

    /// Removes every page from the tables of a range, except pages that reach beyond it.
    fn empty(
        &self,
        process: &Arc<Process<M>>,
        start: Page,
        end: Page,
        gather: &mut MmuGather<'_, 'm, M>,
    ) -> RangeResult {
        let machine = self.machine();
        // We drain as Linux does, so that the removed pages are on the lists.
        let home = machine.home_node(machine.this_cpu());
        machine.charge(Work::Locked(LockUse::ListDrain(home)));
        let (mut cut, mut taken) = (false, false);
        let mut base_pages = 0;
        self.tables.each_entry(process, start, end, MigrationHandling::Visit, |guard, page, _| {
            let range = guard.range(page);
            // Since the edges were split, a fault may have mapped a large page across them. [mutant
            // VmDiscardsWholePage]
            let inside = range.start >= start && range.end() <= end;
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
        RangeResult { cut, taken, all_taken: base_pages == end.0 - start.0 }
    }

    /// Discards the pages of a range (`MADV_DONTNEED`).
    pub(crate) fn discard(
        &self,
        process: &Arc<Process<M>>,
        address: u64,
        bytes: u64,
    ) -> Result<u64, Error> {
        let (start, end) = page_range(address, bytes)?;
        let vmas = process.vmas().read(self.machine());
        if !vmas.covers(start, end) {
            return Err(Error::NotMapped);
        }
        for _ in vmas.within(start, end) {
            self.machine().charge(Work::Path(Path::AdviseArea));
        }
        loop {
            self.large.split_edges(process, start, end)?;
            let mut gather = self.tables.gather(Purpose::Call).that_frees();
            let emptied = self.empty(process, start, end, &mut gather);
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
                self.tables.flush_pending(process);
            }
            break;
        }
        self.note_unmapped(process, start, end);
        Ok(0)
    }

    /// Changes the rights to a range (`mprotect`).
    pub(crate) fn protect(
        &self,
        process: &Arc<Process<M>>,
        address: u64,
        bytes: u64,
        protection: Protection,
    ) -> Result<u64, Error> {
        let (start, end) = page_range(address, bytes)?;
        let machine = self.machine();
        machine.charge(Work::Area);
        let mut vmas = process.vmas().write(machine);
        if !vmas.covers(start, end) {
            return Err(Error::NotMapped);
        }
        machine.charge(Work::Path(Path::Protect));
        self.large.split_edges(process, start, end)?;
        let mut gather = self.tables.gather(Purpose::Call);
        for vma in vmas.remove(start, end) {
            vmas.insert(Vma { protection, ..vma });
        }
        let readable = protection.read || protection.write || protection.execute;
        self.tables.each_entry(
            process,
            start,
            end,
            // A migration restores the rights that an entry had. [mutant VmProtectsPastMigration]
            MigrationHandling::Wait,
            |guard, page, view| match view {
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
            },
        );
        gather.flush();
        // As in `unmap_range`. [mutant VmProtectsUnflushed]
        self.tables.flush_pending(process);
        machine.note(Event::ReturnedProtect {
            root: process.root(),
            range: PageRange::base(start, end.0 - start.0),
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
        let (start, end) = page_range(address, bytes)?;
        let count = end.0 - start.0;
        machine.charge(Work::Area);
        let mut vmas = process.vmas().write(machine);
        if !vmas.covers(start, end) {
            return Err(Error::NotMapped);
        }
        let target = match to {
            Some(to) => page_range(to, bytes)?.0,
            None => vmas.find_free(count, 1).ok_or(Error::NoSpace)?,
        };
        if target < end && start < target.plus(count) {
            return Err(Error::Overlap);
        }
        machine.charge(Work::Path(Path::Remap));
        // We move entries one by one, so split large pages.
        self.large.split_range(process, start, end)?;
        self.large.split_edges(process, target, target.plus(count))?;
        vmas.remove(target, target.plus(count));
        self.unmap_range(process, target, target.plus(count));
        // We make every table before any page moves. From here on only memory for tables can be lacking; then the old
        // mapping at the new place is gone, as `Call::Remap` documents.
        let mut filled = Vec::new();
        self.tables.each_entry(process, start, end, MigrationHandling::Wait, |_, page, _| {
            filled.push(page)
        });
        let shifted = |page: Page| Page(page.0 - start.0 + target.0);
        for &page in &filled {
            if self.tables.table_for(process, shifted(page), Level::LEAF, &*self.memory).is_none() {
                // Tables exist only within areas.
                self.unmap_range(process, target, target.plus(count));
                return Err(Error::OutOfMemory);
            }
        }
        for vma in vmas.remove(start, end) {
            vmas.insert(Vma { start: shifted(vma.start), end: shifted(vma.end), ..vma });
        }
        let mut gather = self.tables.gather(Purpose::Call);
        for &page in &filled {
            self.move_entry(process, page, shifted(page), &mut gather);
        }
        self.tables.free_empty_tables(process, start, end, &mut gather);
        gather.flush();
        // As in `unmap_range`, for the old place. [mutant VmRemapsUnflushed]
        self.tables.flush_pending(process);
        self.note_unmapped(process, start, end);
        Ok(target.address())
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
            let mapped = self.tables.governing(process, from).view(from).frame();
            let _lock = mapped.map(|frame| self.pages.lock_mapped(frame));
            moved = true;
            self.tables.each_entry(
                process,
                from,
                from.plus(1),
                MigrationHandling::Wait,
                |source, _, view| {
                    if view.frame().is_some_and(|frame| Some(frame) != mapped) {
                        moved = false;
                        return;
                    }
                    // No other CPU waits for two tables of this process while we hold its areas.
                    let other = (!source.spans(to)).then(|| self.tables.governing(process, to));
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
                },
            );
        }
    }
}

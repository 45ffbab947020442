//! The calls that change what a process has mapped.
//!
//! A call that takes a mapping or a right away returns only after three things: its own changes
//! were flushed; entries that it found already cleared, by a reclaim or another call whose flush is
//! still to come, were settled; and the lazy markers that it met were flushed like the mappings
//! they stand for. Only then does it give up the areas and tell the program (C3).

use crate::area::{Area, Source};
use crate::entry::View;
use crate::gather::Gather;
use crate::machine::{Event, Level, Machine, USER_END, Work};
use crate::process::Process;
use crate::table::Migrating;
use crate::user::{Backing, Error, Protection};
use crate::vm::Vm;
use alloc::sync::Arc;
use alloc::vec::Vec;
use quell::addr::PAGE_BYTES;
use quell::mutant::Mutant;
use quell::{Page, PageRange, Purpose};

/// The pages of a range of addresses.
pub(crate) fn pages(address: u64, bytes: u64) -> Result<(Page, Page), Error> {
    if !address.is_multiple_of(PAGE_BYTES) {
        return Err(Error::Unaligned);
    }
    let start = Page::containing(address);
    let count = bytes.div_ceil(PAGE_BYTES);
    if count == 0 || start > USER_END || count > USER_END.0 - start.0 {
        return Err(Error::BadRange);
    }
    Ok((start, start.plus(count)))
}

impl<'m, M: Machine> Vm<'m, M> {
    pub(crate) fn map(
        &self,
        process: &Arc<Process<M>>,
        address: Option<u64>,
        bytes: u64,
        protection: Protection,
        backing: Backing,
    ) -> Result<u64, Error> {
        let (source, align) = match backing {
            Backing::Anonymous { page } => (Source::Zeros(page), page.pages()),
            Backing::Shared { file, offset } | Backing::Private { file, offset } => {
                self.file(file)?;
                if offset % PAGE_BYTES != 0 {
                    return Err(Error::Unaligned);
                }
                let first = offset / PAGE_BYTES;
                let shared = matches!(backing, Backing::Shared { .. });
                (
                    Source::File {
                        file,
                        first,
                        shared,
                    },
                    1,
                )
            }
        };
        let (start, end) = pages(address.unwrap_or(0), bytes)?;
        self.machine().charge(Work::Area);
        let mut areas = process.areas.write(self.machine());
        let start = match address {
            Some(_) => {
                self.split_edges(process, start, end)?;
                areas.remove(start, end);
                self.unmap_range(process, start, end);
                start
            }
            None => areas
                .find_free(end.0 - start.0, align)
                .ok_or(Error::NoSpace)?,
        };
        let end = start.plus(bytes.div_ceil(PAGE_BYTES));
        areas.insert(Area {
            start,
            end,
            protection,
            source,
        });
        Ok(start.address())
    }

    pub(crate) fn unmap(
        &self,
        process: &Arc<Process<M>>,
        address: u64,
        bytes: u64,
    ) -> Result<u64, Error> {
        let (start, end) = pages(address, bytes)?;
        self.machine().charge(Work::Area);
        let mut areas = process.areas.write(self.machine());
        self.split_edges(process, start, end)?;
        areas.remove(start, end);
        self.unmap_range(process, start, end);
        Ok(0)
    }

    /// Empties the tables of a range whose edges cut no page, and frees those that map nothing any
    /// more. The caller has the areas to itself.
    pub(crate) fn unmap_range(&self, process: &Arc<Process<M>>, start: Page, end: Page) {
        let mut gather = Gather::new(self, Purpose::Call);
        self.empty(process, start, end, &mut gather);
        self.free_empty_tables(process, start, end, &mut gather);
        gather.flush();
        // What this call found empty may have been emptied a moment ago.
        self.settle(process, Mutant::VmUnmapsUnsettled);
        self.note_unmapped(process, start, end);
    }

    fn note_unmapped(&self, process: &Process<M>, start: Page, end: Page) {
        if !process.retired() {
            let range = PageRange::base(start, end.0 - start.0);
            self.machine().note(Event::ReturnedUnmap {
                root: process.root(),
                range,
            });
        }
    }

    /// Takes every page out of a range of the tables.
    fn empty<'v>(
        &'v self,
        process: &Arc<Process<M>>,
        start: Page,
        end: Page,
        gather: &mut Gather<'v, 'm, M>,
    ) {
        self.each_entry(process, start, end, Migrating::Visit, |guard, page, _| {
            if let View::Swapped(slot) = guard.take(page, View::Empty, gather) {
                self.swap_put(slot);
            }
        });
    }

    pub(crate) fn discard(
        &self,
        process: &Arc<Process<M>>,
        address: u64,
        bytes: u64,
    ) -> Result<u64, Error> {
        let (start, end) = pages(address, bytes)?;
        let areas = process.areas.read(self.machine());
        if !areas.covers(start, end) {
            return Err(Error::NotMapped);
        }
        self.split_edges(process, start, end)?;
        let mut gather = Gather::new(self, Purpose::Call);
        self.empty(process, start, end, &mut gather);
        gather.flush();
        self.settle(process, Mutant::VmDiscardsUnsettled);
        self.note_unmapped(process, start, end);
        Ok(0)
    }

    pub(crate) fn protect(
        &self,
        process: &Arc<Process<M>>,
        address: u64,
        bytes: u64,
        protection: Protection,
    ) -> Result<u64, Error> {
        let (start, end) = pages(address, bytes)?;
        let machine = self.machine();
        machine.charge(Work::Area);
        let mut areas = process.areas.write(machine);
        if !areas.covers(start, end) {
            return Err(Error::NotMapped);
        }
        self.split_edges(process, start, end)?;
        let mut gather = Gather::new(self, Purpose::Call);
        for area in areas.remove(start, end) {
            areas.insert(Area { protection, ..area });
        }
        let readable = protection.read || protection.write || protection.execute;
        self.each_entry(
            process,
            start,
            end,
            Migrating::Wait,
            |guard, page, view| match view {
                View::Page(_) => guard.update(page, Some(&mut gather), |entry| {
                    entry.user = readable;
                    entry.executable = protection.execute;
                    entry.writable &= protection.write;
                }),
                // The stale translation behind a marker cannot be given other rights: it goes.
                View::Marker(_) => {
                    guard.take(page, View::Empty, &mut gather);
                }
                _ => {}
            },
        );
        gather.flush();
        self.settle(process, Mutant::VmProtectsUnsettled);
        machine.note(Event::ReturnedProtect {
            root: process.root(),
            range: PageRange::base(start, end.0 - start.0),
            readable,
            writable: protection.write,
            executable: protection.execute,
        });
        Ok(0)
    }

    pub(crate) fn remap(
        &self,
        process: &Arc<Process<M>>,
        address: u64,
        bytes: u64,
        to: Option<u64>,
    ) -> Result<u64, Error> {
        let machine = self.machine();
        let (start, end) = pages(address, bytes)?;
        let count = end.0 - start.0;
        machine.charge(Work::Area);
        let mut areas = process.areas.write(machine);
        if !areas.covers(start, end) {
            return Err(Error::NotMapped);
        }
        let target = match to {
            Some(to) => pages(to, bytes)?.0,
            None => areas.find_free(count, 1).ok_or(Error::NoSpace)?,
        };
        if target < end && start < target.plus(count) {
            return Err(Error::Overlap);
        }
        // Entries are moved one by one, so large pages go in pieces.
        self.split_range(process, start, end)?;
        self.split_edges(process, target, target.plus(count))?;
        areas.remove(target, target.plus(count));
        self.unmap_range(process, target, target.plus(count));
        // Every table first: from here on nothing fails.
        let mut filled = Vec::new();
        self.each_entry(process, start, end, Migrating::Wait, |_, page, _| {
            filled.push(page)
        });
        let shifted = |page: Page| Page(page.0 - start.0 + target.0);
        for &page in &filled {
            if self
                .table_for(process, shifted(page), Level::LEAF)
                .is_none()
            {
                return Err(Error::OutOfMemory);
            }
        }
        for area in areas.remove(start, end) {
            areas.insert(Area {
                start: shifted(area.start),
                end: shifted(area.end),
                ..area
            });
        }
        let mut gather = Gather::new(self, Purpose::Call);
        for &page in &filled {
            self.move_entry(process, page, shifted(page), &mut gather);
        }
        self.free_empty_tables(process, start, end, &mut gather);
        gather.flush();
        self.settle(process, Mutant::VmRemapsUnsettled);
        self.note_unmapped(process, start, end);
        Ok(target.address())
    }

    /// Moves one base page. The old place stays in the reverse map until its flush, so that whoever
    /// finds the page at the new place also finds that the old one may still be in use.
    ///
    /// Who walks the reverse map holds the page's lock and looks at the places that were listed as it
    /// began: between that and its looking the page must not go from one to another.
    fn move_entry<'v>(
        &'v self,
        process: &Arc<Process<M>>,
        from: Page,
        to: Page,
        gather: &mut Gather<'v, 'm, M>,
    ) {
        let unlocked = self.machine().mutant(Mutant::VmRemapsUnlocked);
        let mut moved = false;
        while !moved {
            let mapped = self.governing(process, from).view(from).frame();
            let _lock = mapped
                .filter(|_| !unlocked)
                .map(|frame| self.lock_mapped(frame));
            moved = true;
            self.each_entry(
                process,
                from,
                from.plus(1),
                Migrating::Wait,
                |source, _, view| {
                    if !unlocked && view.frame().is_some_and(|frame| Some(frame) != mapped) {
                        moved = false;
                        return;
                    }
                    // Nobody else waits for two tables of this process while its areas are held.
                    let other = (!source.spans(to)).then(|| self.governing(process, to));
                    let target = other.as_ref().unwrap_or(source);
                    match view {
                        View::Page(_) => source.move_page(from, target, to, gather),
                        // The new place cannot stand for a stale translation of the old one.
                        View::Marker(_) => {
                            source.take(from, View::Empty, gather);
                        }
                        _ => target.put(to, source.lift(from)),
                    }
                },
            );
        }
    }
}

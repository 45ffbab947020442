//! Handles page faults: makes a missing or refused entry allow the access.
//!
//! A fault locks the areas for reading and examines the entry under its table's lock. It does slow work (allocating,
//! zeroing, copying, decompressing) without that lock, then examines the entry again. If the entry has changed, the
//! fault starts over. In between, a reference keeps the old frame from being reused.
//!
//! Copy-on-write takes the old page out, flushes, and only then maps the copy, all under the table's lock. There are
//! two reasons. Another CPU must not read the old page after this one has written the new (C4), and no TLB may have two
//! frames for one address.
//!
//! A new page fills an empty entry even if another CPU's discard has emptied it and hasn't flushed yet, as in Linux. On
//! Arm the fault flushes first (`TableGuard::break_before_make`). A fault on a swapped page maps the page that was
//! there before, or a page whose flush is done.

use crate::entry::EntryKind;
use crate::frame::{Owner, order_of, size_of};
use crate::frames::Content;
use crate::machine::{Entry, Event, Level, LockUse, Machine, Path, USER_END, Work};
use crate::processes;
use crate::processes::Process;
use crate::program::{Access, Fault};
use crate::swap::SwapPage;
use crate::vm::Vm;
use crate::vma::{Source, Vma};
use alloc::sync::Arc;
use quell::{Frame, Page, PageRange, PageSize, Purpose};

/// An attempt to handle a fault.
struct Attempt<'f, M: Machine> {
    process: &'f Arc<Process<M>>,
    /// The area of the page.
    vma: &'f Vma,
    page: Page,
    access: Access,
}

/// The result of an attempt to handle a fault.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Done,
    /// Another CPU changed the entry in the meantime.
    Again,
    /// There is too little memory to copy the whole page, so the fault splits it first.
    Split,
}

impl<'m, M: Machine> Vm<'m, M> {
    /// Charges for the part of a fault that depends on its kind; `new` joins the lists of reclaim.
    fn charge_fault(&self, path: Path, new: Option<Frame>) {
        let machine = self.machine();
        machine.charge(Work::Path(path));
        if let Some(frame) = new {
            machine.charge(Work::Locked(LockUse::ListAdd(frame)));
        }
    }

    /// Handles a page fault of the process that this CPU runs. After `Ok` the access is retried.
    pub(crate) fn handle_fault(
        &self,
        process: &Arc<Process<M>>,
        page: Page,
        access: Access,
    ) -> Result<(), Fault> {
        let machine = self.machine();
        if page >= USER_END {
            return Err(Fault::NotMapped);
        }
        loop {
            // We hold it until the entry is written, so that a call that changes the area waits. [mutant
            // VmFaultsUnlocked]
            let vmas = process.vmas.read(machine);
            let vma = *vmas.find(page).ok_or(Fault::NotMapped)?;
            let allowed = match access {
                Access::Read => vma.protection.readable(),
                Access::Write => vma.protection.write,
                Access::Execute => vma.protection.execute,
            };
            if !allowed {
                return Err(Fault::Forbidden);
            }
            if self.serve(&Attempt { process, vma: &vma, page, access })? == Step::Done {
                return Ok(());
            }
            drop(vmas);
            machine.relax();
        }
    }

    fn serve(&self, attempt: &Attempt<'_, M>) -> Result<Step, Fault> {
        let &Attempt { process, vma, page, access } = attempt;
        if self.looks_unmapped(process, page) {
            return self.fill(attempt);
        }
        let guard = self.governing(process, page);
        match guard.view(page) {
            EntryKind::Table(_) => Ok(Step::Again),
            EntryKind::Moving(_) => {
                // A CPU that waits uses no translation, so no flush needs to interrupt it.
                processes::rest(self.frames.engine(), Some(process));
                guard.await_change(page);
                self.frames
                    .engine()
                    .this_cpu()
                    .mask_interrupts()
                    .switch(Some(&process.space), &process.space);
                Ok(Step::Again)
            }
            EntryKind::Swapped(slot) => {
                // We hold the slot, so that its content stays the entry's page.
                self.swap.hold(slot);
                drop(guard);
                let step = self.swap_in(attempt, slot);
                self.swap.put(slot);
                step
            }
            EntryKind::Empty | EntryKind::Marker(_) => {
                drop(guard);
                self.fill(attempt)
            }
            EntryKind::Page(entry) if access != Access::Write || entry.writable => {
                // The entry allows the access already, or lacks a bit that this fault sets.
                guard.update(page, None, |entry| {
                    entry.user = true;
                    entry.executable = vma.protection.execute;
                    entry.accessed = true;
                    entry.dirty |= access == Access::Write;
                });
                self.refresh(process, guard.range(page));
                Ok(Step::Done)
            }
            EntryKind::Page(entry) => {
                let mut state = self.frames.state(entry.frame);
                match (state.owner, vma.source) {
                    (Owner::File(..), Source::File { shared: true, .. }) => {
                        drop(state);
                        drop(guard);
                        self.file_page(attempt)
                    }
                    // [mutant VmReusesSharedPage]
                    (Owner::Anonymous, _) if state.references == 1 => {
                        drop(state);
                        guard.update(page, None, |entry| {
                            *entry = rights(*entry, vma, true);
                        });
                        self.refresh(process, guard.range(page));
                        Ok(Step::Done)
                    }
                    _ => {
                        state.hold();
                        let from = CopySource {
                            frame: entry.frame,
                            order: state.order,
                            of_file: state.owner != Owner::Anonymous,
                        };
                        drop(state);
                        let seen = guard.view(page);
                        let range = guard.range(page);
                        drop(guard);
                        let step = self.copy(attempt, range, seen, from);
                        // We drop it before the split, which waits for every reference. [mutant VmSplitsHeldBlock]
                        self.frames.put(entry.frame);
                        if step != Ok(Step::Split) {
                            return step;
                        }
                        let split = self.split(process, range.start);
                        split.map_err(|_| Fault::OutOfMemory)?;
                        Ok(Step::Again)
                    }
                }
            }
        }
    }

    /// Fills an entry that maps nothing.
    fn fill(&self, attempt: &Attempt<'_, M>) -> Result<Step, Fault> {
        match attempt.vma.source {
            Source::Anonymous(largest) => self.zeros(attempt, largest),
            Source::File { .. } => match self.file_page(attempt) {
                // The process may have a copy of the page whose entry is empty only while another CPU replaces it. Then
                // that CPU has locked the table.
                Err(Fault::BeyondEnd) if !self.is_unmapped(attempt.process, attempt.page) => {
                    Ok(Step::Again)
                }
                step => step,
            },
        }
    }

    /// Makes this CPU forget a cached refusal after an entry gained rights, on machines that cache refused
    /// translations. For example, RISC-V allows that. Other CPUs do the same when they fault.
    fn refresh(&self, process: &Process<M>, range: PageRange) {
        if self.machine().tlb_rules().keeps_refused {
            self.frames.engine().this_cpu().refresh(&process.space, range);
        }
    }

    /// Maps zeroed memory, in the largest page that fits and is available.
    fn zeros(&self, attempt: &Attempt<'_, M>, largest: PageSize) -> Result<Step, Fault> {
        let &Attempt { process, vma, page, access } = attempt;
        for size in [PageSize::Huge, PageSize::Large, PageSize::Base] {
            let start = Page(page.0 & !(size.pages() - 1));
            let fits = start >= vma.start && start.plus(size.pages()) <= vma.end;
            if size > largest || !fits {
                continue;
            }
            let level = Level::of(size);
            let taken = || {
                let guard = self.descend(process, page, level);
                guard.level() == level && matches!(guard.view(page), EntryKind::Table(_))
            };
            if size > PageSize::Base && taken() {
                continue;
            }
            let block = self.alloc(order_of(size), Content::Zeros(page.0 - start.0));
            let frame = match block {
                Some(frame) => frame,
                None if size == PageSize::Base => return Err(Fault::OutOfMemory),
                None => continue,
            };
            self.charge_fault(Path::FaultAnonymous, Some(frame));
            let Some(guard) = self.table_for(process, page, level) else {
                self.frames.put(frame);
                // The freed block may be enough for a smaller page and its tables.
                match size {
                    PageSize::Base => return Err(Fault::OutOfMemory),
                    _ => continue,
                }
            };
            if guard.level() != level || guard.view(page) != EntryKind::Empty {
                drop(guard);
                self.frames.put(frame);
                return Ok(Step::Again);
            }
            self.frames.state(frame).owner = Owner::Anonymous;
            self.machine().note(Event::FrameZeroed { frame, frames: size.pages() });
            guard.break_before_make(EntryKind::Empty, false);
            guard.map(
                page,
                Entry { dirty: access == Access::Write, ..fresh(frame, vma, vma.protection.write) },
            );
            return Ok(Step::Done);
        }
        Err(Fault::OutOfMemory)
    }

    /// Maps a page of a file, or this process's copy of it.
    fn file_page(&self, attempt: &Attempt<'_, M>) -> Result<Step, Fault> {
        let &Attempt { process, vma, page, access } = attempt;
        let machine = self.machine();
        let (id, index) = vma.file_page(page).ok_or(Fault::NotMapped)?;
        let Source::File { shared, .. } = vma.source else {
            return Err(Fault::NotMapped);
        };
        let file = self.cache.file(id).map_err(|_| Fault::BeyondEnd)?;
        let mut slot = file.slot(index).ok_or(Fault::BeyondEnd)?.lock(machine);
        self.charge_fault(Path::FaultFile, None);
        // We check this under the slot's lock, which a truncation takes after it has set the length. [mutant
        // VmMapsBeyondEnd]
        if index >= file.pages() {
            return Err(Fault::BeyondEnd);
        }
        let frame = self.cached_frame(id, index, &mut slot).map_err(|_| Fault::OutOfMemory)?;
        let write = access == Access::Write;
        if write && !shared {
            // We hold, then unlock. In the other order the page could be reclaimed in between. [mutant
            // VmHoldsAfterUnlock]
            self.frames.hold(frame);
            drop(slot);
            let seen = self.governing(process, page).view(page);
            let range = PageRange::one(page, PageSize::Base);
            let step = match seen {
                EntryKind::Empty | EntryKind::Marker(_) => {
                    let from = CopySource { frame, order: 0, of_file: true };
                    self.copy(attempt, range, seen, from)
                }
                _ => Ok(Step::Again),
            };
            self.frames.put(frame);
            return step;
        }
        let guard = self.table_for(process, page, Level::LEAF).ok_or(Fault::OutOfMemory)?;
        match guard.view(page) {
            EntryKind::Page(entry) if entry.frame == frame => {
                // We mark the page dirty before its entry allows stores. [mutants VmUpgradesCleanPage,
                // VmMapsCleanWritable]
                if write {
                    self.cache.mark_dirty(id, index, &mut slot);
                }
                guard.update(page, None, |entry| *entry = rights(*entry, vma, write));
                self.refresh(process, guard.range(page));
            }
            view @ (EntryKind::Empty | EntryKind::Marker(_)) => {
                // The emptied entry may be written again with the frame that the marker names, or after the deferred
                // flush. A frame that no longer lists the entry has been reused, so its deferred flush for this entry
                // was made; a newer one concerns other entries. [mutant VmRewritesDeferredEntry]
                if let EntryKind::Marker(old) = view
                    && old != frame
                {
                    let info = self.frames.info(old);
                    if info.state(machine).rmap.contains(process, page) {
                        self.frames
                            .engine()
                            .flush_before_refill(&info.deferred_flush, &process.space);
                        info.state(machine).rmap.remove(process, page);
                    }
                }
                if write {
                    self.cache.mark_dirty(id, index, &mut slot);
                }
                self.frames.hold(frame);
                // The entry may have had a private copy whose flush is pending. [mutant VmRefillsFileUnflushed]
                guard.break_before_make(view, false);
                guard.map(page, Entry { dirty: write, ..fresh(frame, vma, write) });
            }
            _ => return Ok(Step::Again),
        }
        Ok(Step::Done)
    }

    /// Maps a copy of a block, to which the caller holds a reference, if the entry is still `seen`.
    fn copy(
        &self,
        &Attempt { process, vma, .. }: &Attempt<'_, M>,
        range: PageRange,
        seen: EntryKind,
        original: CopySource,
    ) -> Result<Step, Fault> {
        let order = original.order;
        let Some(copy) = self.alloc(order, Content::Any) else {
            // We then copy a large page piece by piece.
            return match order {
                0 => Err(Fault::OutOfMemory),
                _ => Ok(Step::Split),
            };
        };
        self.charge_fault(Path::FaultCopy, Some(copy));
        self.copy_content(process, original, copy);
        let page = range.start;
        let guard = if size_of(order) == PageSize::Base {
            self.table_for(process, page, Level::LEAF)
        } else {
            Some(self.governing(process, page))
        };
        let Some(guard) = guard else {
            self.frames.put(copy);
            return Err(Fault::OutOfMemory);
        };
        let same = match (guard.view(page), seen) {
            (EntryKind::Page(now), EntryKind::Page(before)) => {
                now.frame == before.frame && !now.writable
            }
            (now, before) => now == before,
        };
        if !same || guard.range(page) != range {
            drop(guard);
            self.frames.put(copy);
            return Ok(Step::Again);
        }
        let mut gather = self.gather(Purpose::Call);
        guard.take(page, EntryKind::Empty, &mut gather);
        // We flush before we map: another CPU must not read the old page once this one has written the copy. [mutant
        // VmMapsCopyBeforeFlush]
        gather.flush();
        // Since the fault examined the empty entry, another CPU may have filled, used and emptied it. It recorded its
        // pending flush before it dropped the table's lock. [mutant VmFillsUnflushed]
        if seen == EntryKind::Empty {
            self.flush_pending(process);
        }
        guard.map(page, Entry { dirty: true, ..fresh(copy, vma, true) });
        Ok(Step::Done)
    }

    /// Copies the original block's content to `copy`, a new block.
    fn copy_content(&self, process: &Arc<Process<M>>, original: CopySource, copy: Frame) {
        let machine = self.machine();
        let frames = 1 << original.order;
        // The CPU that write-protected the page may not have flushed yet; until then the page may change. [mutant
        // VmCopiesUnflushed]
        self.flush_pending(process);
        // A file's page may still be stored to through shared mappings, so we don't report it as captured.
        if !original.of_file {
            machine.note(Event::Captured { frame: original.frame, frames });
        }
        machine.copy_frames(original.frame, copy, frames);
        self.frames.state(copy).set_written(Owner::Anonymous);
    }

    /// Maps a page that was swapped out.
    fn swap_in(&self, attempt: &Attempt<'_, M>, slot: u32) -> Result<Step, Fault> {
        let &Attempt { process, vma, page, .. } = attempt;
        let found = self.swap.read(slot, || self.alloc(0, Content::Any));
        let found = found.ok_or(Fault::OutOfMemory)?;
        // A page that is still being swapped out, perhaps with its flush pending, is mapped as the same frame and
        // read-only. The next fault that writes it copies it, which flushes first. Until then, a store through the old
        // entry reaches the same frame as one through this entry.
        let (frame, sole) = match found {
            SwapPage::Copy(frame) => {
                self.frames.state(frame).owner = Owner::Anonymous;
                (frame, true)
            }
            SwapPage::Frame(frame) => (frame, false),
        };
        self.charge_fault(Path::FaultSwap, Some(frame));
        let guard = self.governing(process, page);
        if guard.view(page) != EntryKind::Swapped(slot) {
            drop(guard);
            self.frames.put(frame);
            return Ok(Step::Again);
        }
        // [mutant VmSwapsInWritable]
        let writable = sole && vma.protection.write;
        guard.map(page, Entry { dirty: true, ..fresh(frame, vma, writable) });
        drop(guard);
        self.swap.put(slot);
        Ok(Step::Done)
    }
}

/// A block to copy.
#[derive(Clone, Copy)]
struct CopySource {
    frame: Frame,
    order: u8,
    /// The block is a file's page, which other processes may map writable.
    of_file: bool,
}

/// Returns an entry for a page of the area that was just touched.
fn fresh(frame: Frame, vma: &Vma, writable: bool) -> Entry {
    let entry = Entry { present: true, frame, accessed: true, ..Entry::default() };
    Entry { writable, dirty: false, ..rights(entry, vma, false) }
}

/// Grants the entry the area's rights, but the right to store only if `write`.
fn rights(mut entry: Entry, vma: &Vma, write: bool) -> Entry {
    entry.user = vma.protection.readable();
    entry.executable = vma.protection.execute;
    entry.accessed = true;
    entry.writable |= write;
    entry.dirty |= write;
    entry
}

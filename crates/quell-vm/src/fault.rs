//! Page faults: from an access that the tables refuse to an entry that allows it.
//!
//! A fault holds the areas for reading and looks at the entry under its table's lock. What takes
//! memory or time (allocating, zeroing, copying, decompressing) is done without that lock, and
//! then the entry is looked at again: if it is not what it was, the fault starts anew. In between
//! a reference keeps the frame that was looked at from becoming something else.
//!
//! A page that is *replaced* (copy-on-write) is taken out, flushed, and only then is the copy put
//! in, all under the table's lock: another CPU must not read the old page after this one has
//! written the new (C4), and machines may not see two frames behind one address.

use crate::area::{Area, Source};
use crate::entry::View;
use crate::frame::{Owner, order_of, size_of};
use crate::frames::Content;
use crate::gather::Gather;
use crate::machine::{Entry, Event, Level, Machine, USER_END, Work};
use crate::process::Process;
use crate::swap::SwapPage;
use crate::user::{Access, Fault};
use crate::vm::{Vm, readable};
use alloc::sync::Arc;
use quell::mutant::Mutant;
use quell::{Frame, Page, PageRange, PageSize, Purpose};

/// How an attempt to serve a fault ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Done,
    /// Somebody else changed the entry meanwhile.
    Again,
    /// There is no memory to copy the page whole: it is to be split first.
    Split,
}

impl<'m, M: Machine> Vm<'m, M> {
    /// Serves a page fault of the process that this CPU runs. Interrupts are on. If it returns
    /// `Ok`, the access is to be tried again.
    ///
    /// # Errors
    /// What a program gets a signal for.
    pub fn fault(&self, address: u64, access: Access) -> Result<(), Fault> {
        let machine = self.machine();
        machine.charge(Work::Fault);
        if self.config.catch_up {
            self.engine.catch_up();
        }
        let process = self.current_process().ok_or(Fault::NotMapped)?;
        let page = Page::containing(address);
        if page >= USER_END {
            return Err(Fault::NotMapped);
        }
        loop {
            let areas = process.areas.read(machine);
            let area = *areas.find(page).ok_or(Fault::NotMapped)?;
            let allowed = match access {
                Access::Read => readable(&area),
                Access::Write => area.protection.write,
                Access::Execute => area.protection.execute,
            };
            if !allowed {
                return Err(Fault::Forbidden);
            }
            if self.serve(&process, &area, page, access)? == Step::Done {
                return Ok(());
            }
            drop(areas);
            machine.relax();
        }
    }

    fn serve(
        &self,
        process: &Arc<Process<M>>,
        area: &Area,
        page: Page,
        access: Access,
    ) -> Result<Step, Fault> {
        let machine = self.machine();
        let guard = self.governing(process, page);
        match guard.view(page) {
            View::Table(_) => Ok(Step::Again),
            View::Moving(_) => {
                // Who waits uses no translation: the flush of the move that it waits for, or of any
                // other, need not interrupt it.
                self.engine.enter_lazy();
                guard.await_change(page);
                self.engine.switch_to(Some(&process.space), &process.space);
                Ok(Step::Again)
            }
            View::Swapped(slot) => {
                // Held, so that the slot stays what the entry names.
                self.swap_hold(slot);
                drop(guard);
                let step = self.swap_in(process, area, page, slot);
                self.swap_put(slot);
                step
            }
            View::Empty | View::Marker(_) => {
                drop(guard);
                match area.source {
                    Source::Zeros(largest) => self.zeros(process, area, page, access, largest),
                    Source::File { .. } => self.file_page(process, area, page, access),
                }
            }
            View::Page(entry) if access != Access::Write || entry.writable => {
                // The entry allows it already, or lacks a bit that is recorded by this fault.
                guard.update(page, None, |entry| {
                    entry.user = true;
                    entry.executable = area.protection.execute;
                    entry.accessed = true;
                    entry.dirty |= access == Access::Write;
                });
                self.refresh(process, guard.range(page));
                Ok(Step::Done)
            }
            View::Page(entry) => {
                let mut state = self.frames.info(entry.frame).state(machine);
                match (state.owner, area.source) {
                    (Owner::File(..), Source::File { shared: true, .. }) => {
                        drop(state);
                        drop(guard);
                        self.file_page(process, area, page, access)
                    }
                    (Owner::Anonymous, _) if state.references == 1 => {
                        drop(state);
                        guard.update(page, None, |entry| {
                            *entry = rights(*entry, area, true);
                        });
                        self.refresh(process, guard.range(page));
                        Ok(Step::Done)
                    }
                    _ => {
                        state.references += 1;
                        let order = state.order;
                        drop(state);
                        let seen = guard.view(page);
                        let range = guard.range(page);
                        drop(guard);
                        let step = self.copy(process, area, range, seen, entry.frame, order);
                        let split = || {
                            self.split(process, range.start)
                                .map_err(|_| Fault::OutOfMemory)
                        };
                        if step == Ok(Step::Split) && machine.mutant(Mutant::VmSplitsHeldBlock) {
                            split()?;
                        }
                        // A split waits until nobody holds the block.
                        self.put(entry.frame);
                        if step != Ok(Step::Split) {
                            return step;
                        }
                        split()?;
                        Ok(Step::Again)
                    }
                }
            }
        }
    }

    /// After an entry gained rights: on machines that cache refused translations, this CPU forgets
    /// the old one. Others find out by a fault of their own.
    fn refresh(&self, process: &Process<M>, range: PageRange) {
        if self.machine().keeps_refused() {
            self.engine.refresh(&process.space, range);
        }
    }

    /// Zeroed memory, in the largest page that fits and is to be had.
    fn zeros(
        &self,
        process: &Arc<Process<M>>,
        area: &Area,
        page: Page,
        access: Access,
        largest: PageSize,
    ) -> Result<Step, Fault> {
        for size in [PageSize::Huge, PageSize::Large, PageSize::Base] {
            let start = Page(page.0 & !(size.pages() - 1));
            let fits = start >= area.start && start.plus(size.pages()) <= area.end;
            if size > largest || !fits {
                continue;
            }
            let level = Level::of(size);
            let taken = {
                let guard = self.descend(process, page, level);
                guard.level == level && matches!(guard.view(page), View::Table(_))
            };
            if taken {
                continue;
            }
            let block = self.allocate(order_of(size), Content::Zeros(page.0 - start.0));
            let frame = match block {
                Some(frame) => frame,
                None if size == PageSize::Base => return Err(Fault::OutOfMemory),
                None => continue,
            };
            let guard = self.table_for(process, page, level);
            let Some(guard) = guard else {
                self.put(frame);
                return Err(Fault::OutOfMemory);
            };
            if guard.level != level || guard.view(page) != View::Empty {
                drop(guard);
                self.put(frame);
                return Ok(Step::Again);
            }
            self.frames.info(frame).state(self.machine()).owner = Owner::Anonymous;
            self.machine().note(Event::FrameZeroed {
                frame,
                frames: size.pages(),
            });
            let entry = fresh(frame, area, area.protection.write);
            guard.map(
                page,
                Entry {
                    dirty: access == Access::Write,
                    ..entry
                },
            );
            return Ok(Step::Done);
        }
        Err(Fault::OutOfMemory)
    }

    /// A page of a file, or this process's copy of it.
    fn file_page(
        &self,
        process: &Arc<Process<M>>,
        area: &Area,
        page: Page,
        access: Access,
    ) -> Result<Step, Fault> {
        let machine = self.machine();
        let (id, index) = area.file_page(page).ok_or(Fault::NotMapped)?;
        let Source::File { shared, .. } = area.source else {
            return Err(Fault::NotMapped);
        };
        let file = self.file(id).map_err(|_| Fault::BeyondEnd)?;
        let mut slot = file.slot(index).ok_or(Fault::BeyondEnd)?.lock(machine);
        if index >= file.pages() {
            return Err(Fault::BeyondEnd);
        }
        let frame = self
            .cached(id, index, &mut slot)
            .ok_or(Fault::OutOfMemory)?;
        let write = access == Access::Write;
        if write && !shared {
            self.hold(frame);
            drop(slot);
            let seen = self.governing(process, page).view(page);
            let range = PageRange::one(page, PageSize::Base);
            let step = match seen {
                View::Empty | View::Marker(_) => self.copy(process, area, range, seen, frame, 0),
                _ => Ok(Step::Again),
            };
            self.put(frame);
            return step;
        }
        let guard = self
            .table_for(process, page, Level::LEAF)
            .ok_or(Fault::OutOfMemory)?;
        match guard.view(page) {
            View::Page(entry) if entry.frame == frame => {
                if write {
                    self.mark_dirty(id, index, &mut slot);
                }
                guard.update(page, None, |entry| *entry = rights(*entry, area, write));
                self.refresh(process, guard.range(page));
            }
            view @ (View::Empty | View::Marker(_)) => {
                if let View::Marker(old) = view {
                    // The emptied entry is written again: with the frame it names, or after its
                    // debt was paid. A frame that does not list the entry any more was claimed,
                    // and this debt paid, since; what it owes now is about somebody else.
                    if old != frame && !machine.mutant(Mutant::VmRewritesOwedEntry) {
                        let info = self.frames.info(old);
                        if info.state(machine).maps(process, page) {
                            self.engine.settle_residue(&info.residue, &process.space);
                            info.state(machine).unmap(process, page);
                        }
                    }
                }
                if write {
                    self.mark_dirty(id, index, &mut slot);
                }
                self.hold(frame);
                guard.map(
                    page,
                    Entry {
                        dirty: write,
                        ..fresh(frame, area, write)
                    },
                );
            }
            _ => return Ok(Step::Again),
        }
        Ok(Step::Done)
    }

    /// Gives the process its own copy of `from`, to which the caller holds a reference, where its
    /// entry still is what was `seen`.
    fn copy(
        &self,
        process: &Arc<Process<M>>,
        area: &Area,
        range: PageRange,
        seen: View,
        from: Frame,
        order: u8,
    ) -> Result<Step, Fault> {
        let machine = self.machine();
        let copy = self.allocate(order, Content::Any);
        let Some(copy) = copy else {
            // A large page is copied piece by piece if it must be.
            return match order {
                0 => Err(Fault::OutOfMemory),
                _ => Ok(Step::Split),
            };
        };
        // Whoever write-protected the page may not have flushed yet, and then it may still change.
        self.settle(process, Mutant::VmCopiesUnsettled);
        machine.note(Event::Captured {
            frame: from,
            frames: 1 << order,
        });
        machine.copy_frames(from, copy, 1 << order);
        let mut state = self.frames.info(copy).state(machine);
        state.owner = Owner::Anonymous;
        state.zeros = false;
        drop(state);
        let page = range.start;
        let guard = if size_of(order) == PageSize::Base {
            self.table_for(process, page, Level::LEAF)
        } else {
            Some(self.governing(process, page))
        };
        let Some(guard) = guard else {
            self.put(copy);
            return Err(Fault::OutOfMemory);
        };
        let same = match (guard.view(page), seen) {
            (View::Page(now), View::Page(before)) => now.frame == before.frame && !now.writable,
            (now, before) => now == before,
        };
        if !same || guard.range(page) != range {
            drop(guard);
            self.put(copy);
            return Ok(Step::Again);
        }
        let mut gather = Gather::new(self, Purpose::Call);
        guard.take(page, View::Empty, &mut gather);
        if !machine.mutant(Mutant::VmMapsCopyBeforeFlush) {
            gather.flush();
        }
        guard.map(
            page,
            Entry {
                dirty: true,
                ..fresh(copy, area, true)
            },
        );
        Ok(Step::Done)
    }

    /// Brings a page back from swap.
    fn swap_in(
        &self,
        process: &Arc<Process<M>>,
        area: &Area,
        page: Page,
        slot: u32,
    ) -> Result<Step, Fault> {
        let found = self.swap_read(slot).ok_or(Fault::OutOfMemory)?;
        // A page that is still on its way out, its entry perhaps not flushed, comes back as the same
        // frame and read-only: whoever writes it next copies it, which settles; and until then a
        // store through the old entry arrives where this one would.
        let (frame, sole) = match found {
            SwapPage::Copy(frame) => {
                self.frames.info(frame).state(self.machine()).owner = Owner::Anonymous;
                (frame, true)
            }
            SwapPage::Frame(frame) => (frame, false),
        };
        let guard = self.governing(process, page);
        if guard.view(page) != View::Swapped(slot) {
            drop(guard);
            self.put(frame);
            return Ok(Step::Again);
        }
        let writable = sole && area.protection.write;
        guard.map(
            page,
            Entry {
                dirty: true,
                ..fresh(frame, area, writable)
            },
        );
        drop(guard);
        self.swap_put(slot);
        Ok(Step::Done)
    }
}

/// An entry for a page of the area that was just touched.
pub(crate) fn fresh(frame: Frame, area: &Area, writable: bool) -> Entry {
    let entry = Entry {
        present: true,
        frame,
        accessed: true,
        ..Entry::default()
    };
    Entry {
        writable,
        dirty: false,
        ..rights(entry, area, false)
    }
}

/// The entry with all rights of the area but the one to store, and that one if `write`.
fn rights(mut entry: Entry, area: &Area, write: bool) -> Entry {
    entry.user = readable(area);
    entry.executable = area.protection.execute;
    entry.accessed = true;
    entry.writable |= write;
    entry.dirty |= write;
    entry
}

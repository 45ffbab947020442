//! Checks single accesses against clauses C1 to C8.
//!
//! A few comparisons clear almost every access. They show that the word from which the translation was filled is
//! unchanged, and that nothing happened to the frame since the fill. Also, no call that revoked something from the
//! space has returned, and no table was freed. [`Core::judge`] examines the other accesses:
//!
//! * another space's translation: **C5**;
//! * the frame got a new owner after the fill, or the access stores to a frame without owner: **C1**;
//! * a store, and the frame's content was captured after the fill: **C2**;
//! * the translation differs from the tables, and a call that began after the fill and revoked the page or the right
//!   has returned: **C3**;
//! * a load through such a translation that returns other bytes than the program should read, without a concurrent call
//!   that explains it: **C4**;
//! * a walker that reads a table page after it was freed: **C6**;
//! * frames handed out as zeroed that are not: **C8**.
//!
//! The run itself detects violations of C7: CPUs that wait for each other for ever. Invalid calls that no clause covers
//! are reported as [`Clause::Misuse`].
//!
//! Calls that overlap an access get the benefit of the doubt: a translation may be used if it was filled while the call
//! that revokes it was under way.

use super::{Revocations, SMALL_RANGE};
use crate::core::Core;
use crate::memory::History;
use crate::tlb::{Rights, Translation};
use quell::{CpuId, Frame, Page, PageRange};
use quell_vm::Event;
use quell_vm::contract::{Clause, Violation};
use quell_vm::sim::may_change;

impl Core {
    fn violation(&self, clause: Clause, frame: Frame, what: impl Into<String>) -> Violation {
        let mut violation =
            Violation::new(clause, what).by(CpuId(self.current as u16)).in_frame(frame);
        violation.at = Some(self.cpus[self.current].now);
        violation
    }

    pub fn report(&mut self, violation: Violation) {
        if let (Some(cpu), Some(at)) = (violation.cpu, violation.at) {
            self.trace.mark(cpu.index(), at, crate::trace::Mark::Violation);
        }
        self.oracle.report(violation);
    }

    /// Returns whether comparisons alone show that a translation is as good as new.
    #[inline]
    pub fn unquestionable(&self, entry: &Translation, frame: Frame) -> bool {
        let cpu = &self.cpus[self.current];
        entry.filled >= self.memory.changed(frame)
            && entry.space == cpu.space
            && entry.checked >= self.oracle.changed(entry.space)
            && self
                .tables
                .existing(entry.table)
                .is_some_and(|table| table[entry.index as usize].peek() == entry.raw)
    }

    /// Judges an access through a translation that isn't unquestionable. Updates `entry` if nothing is wrong with it.
    /// Returns a violation that the access is only if the program should have read something else.
    #[cold]
    pub fn judge(
        &mut self,
        entry: &mut Translation,
        frame: Frame,
        address: u64,
        store: bool,
    ) -> Option<Box<Violation>> {
        let space = self.cpus[self.current].space;
        let page = Page::containing(address);
        let history = *self.memory.history(frame);
        let owner = Some((history.by, history.at));
        let action = if store { "store" } else { "load" };
        let (clause, what, by) = if entry.space != space {
            let root = |space: u32| self.oracle.spaces[space as usize].root.0;
            let what = format!(
                "a translation of the space with root {:#x} is used in the space with root {:#x}",
                root(entry.space),
                root(space)
            );
            (Clause::C5, what, None)
        } else if history.allocated > entry.filled {
            let what =
                format!("{action} through a translation filled before the frame got a new owner");
            (Clause::C1, what, owner)
        } else if store && history.free && history.freed > entry.filled {
            (Clause::C1, "store to a frame that has no owner".into(), owner)
        } else if store && history.captured > entry.filled {
            let what = "store through a translation after the content was captured";
            (Clause::C2, what.into(), owner)
        } else if self.is_in_tables(entry, frame, page, store) {
            return None;
        } else {
            let taken = self.oracle.spaces[space as usize].taken(page);
            let since = taken.all.max(if store { taken.write } else { taken.read });
            if since > entry.filled {
                let what = format!(
                    "{action} through the old translation after the call that took it away returned"
                );
                (Clause::C3, what, Some((taken.by, taken.at)))
            } else if store || self.explained(page) {
                return None;
            } else {
                let what = "load through a translation left behind returns other bytes";
                (Clause::C4, what.into(), owner)
            }
        };
        let mut violation = self.violation(clause, frame, what).through(address);
        violation.other = by.map(|(cpu, _)| CpuId(cpu));
        violation.other_at = by.map(|(_, at)| at);
        if clause == Clause::C4 {
            return Some(Box::new(violation));
        }
        self.report(violation);
        None
    }

    /// Returns whether the tables have the same translation, with enough rights. If so, updates `entry`.
    fn is_in_tables(&self, entry: &mut Translation, frame: Frame, page: Page, store: bool) -> bool {
        let Some((now, rights, raw)) = self.truth(page) else { return false };
        if now != frame || !rights.user || store && !rights.write {
            return false;
        }
        // It is as good as new only if it allows no more than the tables do: a load must not clear it for a store.
        if rights.write || !entry.rights.write {
            entry.checked = self.oracle.events;
            entry.raw = raw;
        }
        true
    }

    /// Returns whether a call under way explains that a page has its old value for a moment: the call may take effect
    /// at any time until it returns.
    fn explained(&self, page: Page) -> bool {
        let space = self.cpus[self.current].space;
        self.cpus.iter().any(|cpu| {
            let Some((call, _)) = cpu.call else {
                return false;
            };
            let covers = |address: u64, bytes: u64| {
                let range = address..address.saturating_add(bytes);
                cpu.space == space && (bytes == 0 || range.contains(&page.address()))
            };
            may_change(call, covers)
        })
    }

    /// Returns the translation of a page in the current space's tables.
    fn truth(&self, page: Page) -> Option<(Frame, Rights, u64)> {
        let mut table = self.cpus[self.current].root?;
        for level in (0..4u8).rev() {
            let index = quell_vm::Level(level).index(page);
            let raw = self.tables.existing(table)?[index].peek();
            let entry = self.costs.architecture.decode(raw, quell_vm::Level(level));
            if !entry.present {
                return None;
            }
            if entry.table {
                table = entry.frame;
                continue;
            }
            let offset = page.0 & (quell_vm::Level(level).pages() - 1);
            let rights = Rights { write: entry.writable, user: entry.user };
            return Some((entry.frame.plus(offset), rights, raw));
        }
        None
    }

    /// Judges a walker's read of a table page: is it still the same table?
    #[inline]
    pub fn judge_table(&mut self, table: Frame, cached: Option<u32>, address: u64) {
        let history = self.memory.history(table);
        if history.table && cached.is_none_or(|filled| filled >= history.allocated) {
            return;
        }
        let what = match cached {
            Some(_) => "a walker cache leads to a table page that was freed",
            None => "the walker reads a table page that was freed",
        };
        let (by, at) = (CpuId(history.by), history.at);
        let mut violation = self.violation(Clause::C6, table, what).through(address);
        (violation.other, violation.other_at) = (Some(by), Some(at));
        self.report(violation);
    }

    /// Records an event of the manager.
    pub fn note(&mut self, event: Event) {
        let number = self.oracle.event();
        let at = self.cpus[self.current].now;
        let by = self.current as u16;
        match event {
            Event::FrameAllocated { frame, frames } => {
                let history = History { allocated: number, by, at, ..History::default() };
                self.memory.set(frame, frames, number, history);
            }
            Event::FrameZeroed { frame, frames } => self.must_be_zero(frame, frames),
            Event::FrameFreed { frame, frames } => {
                self.memory.update(frame, frames, number, |history| {
                    history.freed = number;
                    history.free = true;
                    (history.by, history.at) = (by, at);
                });
            }
            Event::FrameReinstated { frame } => {
                self.memory.update(frame, 1, number, |history| {
                    history.free = false;
                });
            }
            Event::TableAllocated { frame, .. } => {
                if let Some(words) = self.tables.existing(frame)
                    && words.iter().any(|word| word.peek() != 0)
                {
                    let what = "a new page-table page is not zero";
                    let violation = self.violation(Clause::C8, frame, what);
                    self.report(violation);
                }
                self.memory.update(frame, 1, number, |history| {
                    history.allocated = number;
                    history.table = true;
                    history.free = false;
                    (history.by, history.at) = (by, at);
                });
            }
            Event::TableFreed { frame } => {
                self.oracle.tables_freed = number;
                self.memory.update(frame, 1, number, |history| {
                    history.table = false;
                    (history.by, history.at) = (by, at);
                });
                self.table_becomes_bytes(frame);
            }
            Event::Captured { frame, frames } => {
                self.memory.update(frame, frames, number, |history| {
                    history.captured = number;
                    (history.by, history.at) = (by, at);
                });
            }
            Event::ReturnedUnmap { root, range } => {
                let since = self.call_began(number);
                let taken = Revocations { all: since, by, at, ..Revocations::default() };
                self.take_away(root, range, taken, number);
            }
            Event::ReturnedProtect { root, range, readable, writable, executable: _ } => {
                let since = self.call_began(number);
                let unless = |right: bool| if right { 0 } else { since };
                let taken =
                    Revocations { all: 0, read: unless(readable), write: unless(writable), by, at };
                self.take_away(root, range, taken, number);
            }
            Event::SpaceRetired { root } => {
                self.oracle.by_root.remove(&root.0);
            }
        }
    }

    /// Returns the event at which the call began that reports an event now.
    fn call_began(&self, now: u32) -> u32 {
        self.cpus[self.current].call.map_or(now, |(_, began)| began)
    }

    fn take_away(&mut self, root: Frame, range: PageRange, taken: Revocations, number: u32) {
        let space = self.oracle.space_of(root);
        let space = &mut self.oracle.spaces[space as usize];
        space.changed = number;
        if range.pages <= SMALL_RANGE {
            for page in range.start.0..range.end().0 {
                space.pages.entry(page).or_default().merge(taken);
            }
        } else if let Some((_, known)) = space.ranges.iter_mut().find(|(held, _)| *held == range) {
            known.merge(taken);
        } else {
            space.ranges.push((range, taken));
        }
    }

    fn must_be_zero(&mut self, frame: Frame, frames: u64) {
        if let Some(dirty) = self.memory.first_nonzero(frame, frames) {
            let what = "memory handed out as zeroed is not zero";
            let violation = self.violation(Clause::C8, dirty, what);
            self.report(violation);
        }
    }

    /// Turns a page-table page into ordinary memory, whose content is its words.
    fn table_becomes_bytes(&mut self, frame: Frame) {
        let Some(words) = self.tables.existing(frame) else {
            return;
        };
        for (index, word) in words.iter().enumerate() {
            let value = word.peek();
            if value != 0 {
                self.memory.store(frame, 8 * index, value);
            }
        }
    }
}

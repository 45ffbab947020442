//! The contract, as a judge of single accesses.
//!
//! Nothing here knows CPUs' programs, schedulers or the engine. Frames have histories, calls have returned, and an
//! access through a translation is lawful or not. The judge names the clause, the frame, the address and both CPUs.
//!
//! The oracle of the machine under the clock judges one timing, that of its own TLBs, by when an
//! entry was filled; this one judges every timing at once, by when it could have been
//! ([`mmu`](crate::mmu)). They share the clauses and the events, not the comparisons.

use crate::op::AccessKind;
use quell::{CpuId, Frame, Page};
use quell_vm::contract::{Clause, Violation};
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};
use std::ops::Range;

/// A moment: the number of a step of the run. Later steps have greater numbers.
pub type Moment = u32;

/// The history of a frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct History {
    /// When it got its present owner.
    pub allocated: Moment,
    /// The CPU that gave it that owner.
    pub allocated_by: u8,
    /// Whether it is free.
    pub free: bool,
    /// The CPU that freed it.
    pub freed_by: u8,
    /// When its content was captured last.
    pub captured: Moment,
    /// The CPU that captured it.
    pub captured_by: u8,
    /// Whether it was a page-table page and no longer is.
    pub dead_table: bool,
}

/// A right to a page that a call removed.
#[derive(Clone, Copy, Debug)]
pub struct Returned {
    /// The address space, by its root.
    pub root: u32,
    /// The first page.
    pub start: u64,
    /// The page after the last one.
    pub end: u64,
    /// When the call was made, if that is known. It did not remove mappings that are younger: the page may have been
    /// mapped and unmapped again before it returned.
    pub began: Moment,
    /// When the call returned.
    pub at: Moment,
    /// The CPU that made it.
    pub by: u8,
    /// Loads are still allowed.
    pub readable: bool,
    /// Stores are still allowed.
    pub writable: bool,
    /// Instruction fetches are still allowed.
    pub executable: bool,
}

impl Returned {
    fn allows(&self, kind: AccessKind) -> bool {
        match kind {
            AccessKind::Load => self.readable,
            AccessKind::Store => self.writable,
            AccessKind::Fetch => self.executable,
        }
    }
}

/// The translation of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Used {
    /// The root that it was walked from.
    pub root: u32,
    /// The page.
    pub page: u64,
    /// The frame.
    pub frame: u32,
    /// When the entry that it came from was written.
    pub written: Moment,
    /// Since when the tables led there from the root: `written`, unless they never did.
    pub since: Moment,
    /// Until when they did; [`Moment::MAX`] if they still do.
    pub until: Moment,
}

/// The memory of the judge.
#[derive(Clone, Debug)]
pub struct Oracle {
    frames: Box<[History]>,
    returned: Vec<Returned>,
    /// The required results of reads: (root, page, value).
    expected: Vec<(u32, u64, u64)>,
}

impl Oracle {
    /// Creates a judge for a machine of this many frames, all owned from the start.
    pub fn new(frames: usize) -> Self {
        Oracle {
            frames: vec![History::default(); frames].into(),
            returned: Vec::with_capacity(64),
            expected: Vec::with_capacity(16),
        }
    }

    /// Forgets a run.
    pub fn reset(&mut self) {
        self.frames.fill(History::default());
        self.returned.clear();
        self.expected.clear();
    }

    /// Restores the state of another oracle for as many frames, in its own memory.
    pub(crate) fn restore(&mut self, saved: &Oracle) {
        self.frames.copy_from_slice(&saved.frames);
        self.returned.clone_from(&saved.returned);
        self.expected.clone_from(&saved.expected);
    }

    /// The history of a frame.
    pub fn frame(&self, frame: u32) -> &History {
        &self.frames[frame as usize]
    }

    /// Changes the history of a frame.
    pub fn frame_mut(&mut self, frame: u32) -> &mut History {
        &mut self.frames[frame as usize]
    }

    /// Records that a call that removed rights has returned.
    pub fn returned(&mut self, call: Returned) {
        self.returned.push(call);
    }

    /// Demands that a read of the page yields `value` from now on. `None` withdraws the demand.
    pub fn must_read(&mut self, root: u32, page: u64, value: Option<u64>) {
        self.expected.retain(|p| (p.0, p.1) != (root, page));
        if let Some(value) = value {
            self.expected.push((root, page, value));
        }
    }

    /// The histories of all frames.
    pub(super) fn frames(&self) -> impl Iterator<Item = &History> {
        self.frames.iter()
    }

    /// Returns the required results of reads: (root, page, value), in any order.
    pub(super) fn expected(&self) -> impl Iterator<Item = &(u32, u64, u64)> {
        self.expected.iter()
    }

    /// Returns a page for which returned calls forbid loads, stores or fetches through a translation of these pages
    /// that the tables contained from `since` to `until`; 0 if none.
    ///
    /// Later events remove nothing from that, and additions do not depend on calls that have returned by now.
    pub(super) fn forbids(
        &self,
        root: u32,
        pages: Range<u64>,
        (since, until): (Moment, Moment),
    ) -> [u64; 3] {
        let mut forbidden: [FxHasher; 3] = Default::default();
        for call in &self.returned {
            let (start, end) = (call.start.max(pages.start), call.end.min(pages.end));
            if call.root != root || start >= end || until > call.at || since >= call.began {
                continue;
            }
            let kinds = [AccessKind::Load, AccessKind::Store, AccessKind::Fetch];
            for (kind, forbidden) in kinds.into_iter().zip(&mut forbidden) {
                if !call.allows(kind) && (pages.end - pages.start > 1 || forbidden.finish() == 0) {
                    (start, end).hash(forbidden);
                }
            }
        }
        forbidden.map(|forbidden| forbidden.finish())
    }

    /// Returns how many calls returned at that moment or later.
    pub(super) fn returned_since(&self, moment: Moment) -> usize {
        let calls = self.returned.iter().rev();
        calls.take_while(|call| call.at >= moment).count()
    }

    /// Returns the required result of reading the page, if known.
    pub fn expected_of(&self, root: u32, page: u64) -> Option<u64> {
        let of = |p: &&(u32, u64, u64)| (p.0, p.1) == (root, page);
        self.expected.iter().find(of).map(|p| p.2)
    }

    /// Judges an access of `cpu`, which runs the address space of `root`, through a translation.
    ///
    /// C4 is not judged here: it needs the value that was read.
    pub fn judge(&self, cpu: u8, root: u32, used: &Used, kind: AccessKind) -> Option<Violation> {
        let violation = |clause, other: Option<u8>, account: String| {
            let mut violation = Violation::new(clause, account)
                .by(CpuId(cpu.into()))
                .in_frame(Frame(used.frame.into()))
                .through(Page(used.page).address());
            violation.other = other.map(|cpu| CpuId(cpu.into()));
            Some(violation)
        };
        if used.root != root {
            let account = format!(
                "a {kind} under root {root:#x} went through a translation of root {:#x}",
                used.root
            );
            return violation(Clause::C5, None, account);
        }
        let own = self.frame(root);
        if own.allocated > used.written {
            let account = format!(
                "a {kind} under root {root:#x} went through a translation of an earlier root there"
            );
            return violation(Clause::C5, Some(own.allocated_by), account);
        }
        let history = self.frame(used.frame);
        if history.allocated > used.written {
            let account = format!("a {kind} reached a frame that has a new owner");
            return violation(Clause::C1, Some(history.allocated_by), account);
        }
        if kind == AccessKind::Store && history.captured > used.written {
            let account = "a store reached a frame whose content has been captured".into();
            return violation(Clause::C2, Some(history.captured_by), account);
        }
        let broken = self.returned.iter().find(|call| {
            call.root == root
                && (call.start..call.end).contains(&used.page)
                && used.until <= call.at
                && used.since < call.began
                && !call.allows(kind)
        });
        if let Some(call) = broken {
            let what = if call.readable { "protection" } else { "unmap" };
            let account =
                format!("a {kind} used the old translation after the {what} had returned");
            return violation(Clause::C3, Some(call.by), account);
        }
        None
    }
}

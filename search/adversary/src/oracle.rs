//! Judges single accesses against the contract.
//!
//! The oracle knows nothing of CPUs' programs, schedulers or the engine. It records the history of frames and the calls
//! that have returned, and decides whether an access through a translation is lawful. Its verdict names the clause, the
//! frame, the address and both CPUs.
//!
//! The clock (`quell_clock`) has another oracle. That one judges one timing of TLB fills: the time at which an entry
//! was filled. This one judges every timing at once: the times at which an entry could have been filled
//! ([`mmu`](crate::mmu)). So the two share clauses and events, but not the comparisons.

use crate::action::AccessKind;
use quell::{CpuId, Frame, Page};
use quell_vm::contract::{Clause, Violation};
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};
use std::ops::Range;

/// A moment of a run: the number of a step.
pub type Moment = u32;

/// The history of a frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct History {
    /// The moment at which the frame got its present owner.
    pub allocated: Moment,
    /// The CPU that gave the frame to that owner.
    pub allocated_by: u8,
    /// Whether the frame is free.
    pub free: bool,
    /// The CPU that freed the frame.
    pub freed_by: u8,
    /// The moment at which the frame's content was last captured.
    pub captured: Moment,
    /// The CPU that captured the content.
    pub captured_by: u8,
    /// Whether the frame was a page-table page once and no longer is.
    pub dead_table: bool,
}

/// A call that took away rights to pages, and has returned.
#[derive(Clone, Copy, Debug)]
pub struct RevokedRight {
    /// The root of the address space.
    pub root: u32,
    /// The first page.
    pub start: u64,
    /// The page after the last one.
    pub end: u64,
    /// The moment at which the call began, or [`Moment::MAX`] if that is unknown.
    ///
    /// Mappings that are made later stay allowed, because the call didn't remove them. For example, the page may have
    /// been mapped and unmapped again before the call returned.
    pub began: Moment,
    pub at: Moment,
    /// The CPU that made the call.
    pub by: u8,
    /// Whether loads are still allowed.
    pub readable: bool,
    /// Whether stores are still allowed.
    pub writable: bool,
    /// Whether instruction fetches are still allowed.
    pub executable: bool,
}

impl RevokedRight {
    fn allows(&self, kind: AccessKind) -> bool {
        match kind {
            AccessKind::Load => self.readable,
            AccessKind::Store => self.writable,
            AccessKind::Fetch => self.executable,
        }
    }
}

/// The translation that an access used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UsedTranslation {
    /// The root from which it was walked.
    pub root: u32,
    pub page: u64,
    pub frame: u32,
    /// The moment at which the translation's entry was written.
    pub written: Moment,
    /// The moment since which the tables have led from the root to the frame.
    ///
    /// It's `written`, unless the path was cut before.
    pub since: Moment,
    /// The moment until which the tables led to the frame, or [`Moment::MAX`] if they still do.
    pub until: Moment,
}

/// The oracle: the history on which its verdicts depend.
#[derive(Clone, Debug)]
pub struct Oracle {
    frames: Box<[History]>,
    returned: Vec<RevokedRight>,
    /// The required results of reads, as (root, page, value).
    expected: Vec<(u32, u64, u64)>,
}

impl Oracle {
    /// Creates an oracle for a machine of this many frames. All of them have an owner from the start.
    pub fn new(frames: usize) -> Self {
        Oracle {
            frames: vec![History::default(); frames].into(),
            returned: Vec::with_capacity(64),
            expected: Vec::with_capacity(16),
        }
    }

    /// Clears the history for a new run.
    pub fn reset(&mut self) {
        self.frames.fill(History::default());
        self.returned.clear();
        self.expected.clear();
    }

    /// Copies the state of another oracle with as many frames, without allocating.
    pub(crate) fn restore(&mut self, saved: &Oracle) {
        self.frames.copy_from_slice(&saved.frames);
        self.returned.clone_from(&saved.returned);
        self.expected.clone_from(&saved.expected);
    }

    pub fn frame(&self, frame: u32) -> &History {
        &self.frames[frame as usize]
    }

    /// Returns the history of a frame, for changes.
    pub fn frame_mut(&mut self, frame: u32) -> &mut History {
        &mut self.frames[frame as usize]
    }

    /// Records that a call that removed rights has returned.
    pub fn returned(&mut self, call: RevokedRight) {
        self.returned.push(call);
    }

    /// Requires that reads of the page return `value` from now on. `None` ends the requirement.
    pub fn must_read(&mut self, root: u32, page: u64, value: Option<u64>) {
        self.expected.retain(|p| (p.0, p.1) != (root, page));
        if let Some(value) = value {
            self.expected.push((root, page, value));
        }
    }

    /// Returns the histories of all frames.
    pub(super) fn frames(&self) -> impl Iterator<Item = &History> {
        self.frames.iter()
    }

    /// Returns the required results of reads as (root, page, value), in any order.
    pub(super) fn expected(&self) -> impl Iterator<Item = &(u32, u64, u64)> {
        self.expected.iter()
    }

    /// Returns for loads, stores and fetches a hash of the pages where returned calls forbid them; 0 if none.
    ///
    /// It considers translations of `pages` that the tables contained from `since` to `until`.
    ///
    /// Digests of states can rely on the hash: later events remove nothing from it, and additions don't depend on calls
    /// that have returned by now.
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

    /// Returns the required result of reading the page, if there is a requirement.
    pub fn expected_of(&self, root: u32, page: u64) -> Option<u64> {
        let of = |p: &&(u32, u64, u64)| (p.0, p.1) == (root, page);
        self.expected.iter().find(of).map(|p| p.2)
    }

    /// Judges an access of `cpu`, which runs the address space of `root`, through a translation.
    ///
    /// It doesn't judge C4 (fresh reads), which needs the value that was read.
    pub fn judge(
        &self,
        cpu: u8,
        root: u32,
        used: &UsedTranslation,
        kind: AccessKind,
    ) -> Option<Violation> {
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
                "a {kind} under root {root:#x} used a translation of root {:#x}",
                used.root
            );
            return violation(Clause::C5, None, account);
        }
        let own = self.frame(root);
        if own.allocated > used.written {
            let account = format!(
                "a {kind} under root {root:#x} used a translation of an earlier root in that frame"
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

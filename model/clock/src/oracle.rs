//! Checks every access of a run against the contract.
//!
//! The oracle costs no virtual time, is always on and changes nothing. It has three facts that no CPU has:
//!
//! * the tables at this moment;
//! * the history of every frame, through the manager's [`Event`](quell_vm::Event)s;
//! * the values that a program should read ([`Kernel::peek`](crate::Kernel::peek)).

mod judge;

use crate::file::Time;
use quell::{CpuId, Frame, Page, PageRange};
use quell_vm::contract::{Clause, Violation};
use rustc_hash::FxHashMap;

/// The most violations to keep as text; all are counted.
const KEPT: usize = 64;

/// The events at which calls that removed rights to a page began; 0 is never.
#[derive(Clone, Copy, Debug, Default)]
struct Revocations {
    all: u32,
    read: u32,
    write: u32,
    by: u16,
    at: Time,
}

impl Revocations {
    fn merge(&mut self, other: Revocations) {
        self.all = self.all.max(other.all);
        self.read = self.read.max(other.read);
        self.write = self.write.max(other.write);
        (self.by, self.at) = (other.by, other.at);
    }
}

/// The most pages of a range that are recorded page by page.
const SMALL_RANGE: u64 = 64;

/// The oracle's knowledge of an address space.
#[derive(Debug, Default)]
struct Space {
    root: Frame,
    /// The event at which something was last removed.
    changed: u32,
    pages: FxHashMap<u64, Revocations>,
    ranges: Vec<(PageRange, Revocations)>,
}

impl Space {
    fn taken(&self, page: Page) -> Revocations {
        let mut taken = self.pages.get(&page.0).copied().unwrap_or_default();
        for (range, change) in &self.ranges {
            if range.contains(page) {
                taken.merge(*change);
            }
        }
        taken
    }
}

/// The oracle's state: its events and the violations that it found.
#[derive(Debug)]
pub struct Oracle {
    /// The number of events so far: the manager's events and the TLBs' fills.
    pub events: u32,
    spaces: Vec<Space>,
    by_root: FxHashMap<u64, u32>,
    /// The event at which a table page was last freed.
    tables_freed: u32,
    /// The number of violations, and the first ones in the order in which they were found.
    pub found: u64,
    pub violations: Vec<Violation>,
    /// The clauses that the policy gives up.
    lost: Vec<Clause>,
    /// The number of violations of these clauses.
    pub expected: u64,
}

impl Oracle {
    pub(crate) fn new(lost: Vec<Clause>) -> Self {
        Oracle {
            events: 0,
            // Number 0 is no space.
            spaces: vec![Space::default()],
            by_root: FxHashMap::default(),
            tables_freed: 0,
            found: 0,
            violations: Vec::new(),
            lost,
            expected: 0,
        }
    }

    /// Returns the next event's number.
    #[inline]
    pub(crate) fn event(&mut self) -> u32 {
        self.events = self.events.checked_add(1).expect("fewer than 2^32 events in a run");
        self.events
    }

    /// Returns the number of a root's address space.
    pub(crate) fn space_of(&mut self, root: Frame) -> u32 {
        *self.by_root.entry(root.0).or_insert_with(|| {
            self.spaces.push(Space { root, ..Space::default() });
            self.spaces.len() as u32 - 1
        })
    }

    /// Returns the event after which older translations of a space need another check.
    #[inline]
    pub(crate) fn changed(&self, space: u32) -> u32 {
        self.spaces[space as usize].changed.max(self.tables_freed)
    }

    pub(crate) fn report(&mut self, violation: Violation) {
        if self.lost.contains(&violation.clause) {
            self.expected += 1;
            return;
        }
        self.found += 1;
        if self.violations.len() < KEPT {
            self.violations.push(violation);
        }
    }

    /// Reports that the machine was used in a forbidden way.
    pub(crate) fn misuse(&mut self, cpu: usize, at: Time, what: String) {
        let mut violation = Violation::new(Clause::Misuse, what).by(CpuId(cpu as u16));
        violation.at = Some(at);
        self.report(violation);
    }
}

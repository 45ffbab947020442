//! What one thread did, call by call.

use std::collections::BTreeMap;

use super::order::Order;
use super::statement::{Alike, Kind, Made, PAGE};

/// How many pages a call finds whose flush named none.
pub const PAGES: u64 = 1024;

/// A call that has not returned.
#[derive(Clone, Debug)]
pub struct Open {
    pub entered_ns: u64,
    pub alike: Option<Alike>,
    pub pages: u64,
    pub interrupts: u64,
}

/// What a thread did.
#[derive(Clone, Debug, Default)]
pub struct Thread {
    /// Which of the processes it is of.
    pub process: usize,
    pub open: Option<Open>,
    /// What the kernel flushes for a reason of its own, and whether it has interrupted others.
    aside: Option<(Kind, u64)>,
    pub calls: BTreeMap<Alike, Made>,
    /// The same, in their order.
    pub order: Order,
    /// Calls that no statement stands for.
    pub others: u64,
    pub returned_ns: Option<u64>,
    pub between_ns: u64,
    /// What of it was since the last call that a statement stands for.
    gap_ns: u64,
    /// How long it was in calls.
    pub within_ns: u64,
}

impl Thread {
    pub fn count(&self) -> u64 {
        self.calls.values().map(|made| made.count).sum()
    }

    /// It has computed since its last call.
    pub fn computes_until(&mut self, time_ns: u64) {
        if let Some(returned) = self.returned_ns {
            let between = time_ns.saturating_sub(returned);
            self.between_ns = self.between_ns.saturating_add(between);
            self.gap_ns = self.gap_ns.saturating_add(between);
        }
    }

    fn add(&mut self, alike: Alike, made: Made) {
        self.calls.entry(alike).or_default().add(made);
        self.order
            .push(alike, made, std::mem::take(&mut self.gap_ns));
    }

    pub fn returned(&mut self, time_ns: u64) {
        let Some(open) = self.open.take() else { return };
        self.returned_ns = Some(time_ns);
        let within = time_ns.saturating_sub(open.entered_ns);
        self.within_ns = self.within_ns.saturating_add(within);
        match open.alike {
            Some(alike) => self.add(
                alike,
                Made {
                    count: 1,
                    pages: open.pages,
                    interrupts: open.interrupts,
                },
            ),
            None => self.others += 1,
        }
    }

    /// Has the calls of another thread, too, which computed between its own at the same time.
    pub fn join(&mut self, other: Thread) {
        for (alike, made) in other.calls {
            self.calls.entry(alike).or_default().add(made);
        }
        self.order.lose();
        self.others += other.others;
        self.between_ns = self.between_ns.max(other.between_ns);
        self.within_ns = self.within_ns.saturating_add(other.within_ns);
    }

    /// The kernel flushes for a reason of its own.
    pub fn flushes(&mut self, kind: Kind, time_ns: u64) {
        self.close_aside();
        if self.open.is_none() {
            self.computes_until(time_ns);
            self.returned_ns = Some(time_ns);
        }
        self.aside = Some((kind, 0));
    }

    /// That flush interrupts another CPU.
    pub fn interrupts(&mut self, kind: Kind, time_ns: u64) {
        if self.aside.is_none_or(|(known, _)| known != kind) {
            self.flushes(kind, time_ns);
        }
        if let Some((_, interrupts)) = &mut self.aside {
            *interrupts += 1;
        }
    }

    /// The kernel's last flush of its own is complete: every CPU that it interrupted has been counted.
    fn close_aside(&mut self) {
        let Some((kind, interrupts)) = self.aside.take() else {
            return;
        };
        let alike = Alike {
            kind,
            bytes: kind.unit(),
            said: true,
            asked: interrupts > 0,
        };
        let made = Made {
            count: 1,
            pages: kind.unit() / PAGE,
            interrupts,
        };
        self.add(alike, made);
    }

    /// A call that had not returned when the recording ended has.
    pub fn end(&mut self) {
        self.close_aside();
        let last = self.returned_ns.unwrap_or(0);
        self.returned(last);
    }

    /// What follows was not recorded: neither how a call went on nor how long it was until the next.
    pub fn interrupted(&mut self) {
        self.end();
        self.returned_ns = None;
    }

    /// A flush of so many pages is under way, for which `interrupts` were sent; without any, it is said that others are
    /// asked.
    pub fn asked(&mut self, pages: u64, interrupts: u64) {
        if let Some(open) = &mut self.open
            && let Some(alike) = &mut open.alike
        {
            alike.said |= interrupts == 0;
            alike.asked |= interrupts > 0;
            open.interrupts += interrupts;
            open.pages = pages.max(open.pages).min(alike.bytes / PAGE).min(PAGES);
        }
    }
}

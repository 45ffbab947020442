//! Collects the calls of one thread.

use std::collections::BTreeMap;

use super::statement::{CallKey, CallTotals, Kind, PAGE};

/// The number of pages that we assume for a flush of everything.
pub const PAGES: u64 = 1024;

/// A call that hasn't returned.
#[derive(Clone, Debug)]
pub struct OpenCall {
    pub entered_ns: u64,
    pub alike: Option<CallKey>,
    pub made: CallTotals,
}

/// The calls of a thread.
#[derive(Clone, Debug, Default)]
pub struct Thread {
    /// The index of its process.
    pub process: usize,
    pub open: Option<OpenCall>,
    /// The kernel's current flush for its own reason, and the number of interrupts so far.
    aside: Option<(Kind, u64)>,
    pub calls: BTreeMap<CallKey, CallTotals>,
    /// Calls that don't become a statement.
    pub others: u64,
    pub returned_ns: Option<u64>,
    pub between_ns: u64,
    /// The total time in calls.
    pub within_ns: u64,
}

impl Thread {
    pub fn count(&self) -> u64 {
        self.calls.values().map(|made| made.count).sum()
    }

    /// Adds the time since the last call as computing.
    pub fn computes_until(&mut self, time_ns: u64) {
        if let Some(returned) = self.returned_ns {
            let between = time_ns.saturating_sub(returned);
            self.between_ns = self.between_ns.saturating_add(between);
        }
    }

    fn add(&mut self, alike: CallKey, made: CallTotals) {
        self.calls.entry(alike).or_default().add(made);
    }

    pub fn returned(&mut self, time_ns: u64) {
        let Some(open) = self.open.take() else { return };
        self.returned_ns = Some(time_ns);
        let within = time_ns.saturating_sub(open.entered_ns);
        self.within_ns = self.within_ns.saturating_add(within);
        match open.alike {
            Some(alike) => self.add(alike, open.made),
            None => self.others += 1,
        }
    }

    /// Adds the calls of another thread. Both compute at the same time.
    pub fn join(&mut self, other: Thread) {
        for (alike, made) in other.calls {
            self.add(alike, made);
        }
        self.others += other.others;
        self.between_ns = self.between_ns.max(other.between_ns);
        self.within_ns = self.within_ns.saturating_add(other.within_ns);
    }

    /// Begins a flush that the kernel makes for a reason of its own.
    pub fn flushes(&mut self, kind: Kind, time_ns: u64) {
        self.close_aside();
        if self.open.is_none() {
            self.computes_until(time_ns);
            self.returned_ns = Some(time_ns);
        }
        self.aside = Some((kind, 0));
    }

    /// Counts an interrupt of that flush.
    pub fn interrupts(&mut self, kind: Kind, time_ns: u64) {
        if self.aside.is_none_or(|(known, _)| known != kind) {
            self.flushes(kind, time_ns);
        }
        if let Some((_, interrupts)) = &mut self.aside {
            *interrupts += 1;
        }
    }

    /// Ends the kernel's last flush of its own. By now, all its interrupts have been counted.
    fn close_aside(&mut self) {
        let Some((kind, interrupts)) = self.aside.take() else {
            return;
        };
        let alike = CallKey { kind, bytes: kind.unit(), said: true, asked: interrupts > 0 };
        let made = CallTotals { count: 1, pages: kind.unit() / PAGE, interrupts };
        self.add(alike, made);
    }

    /// Ends everything at the end of the recording. An open call counts as returned.
    pub fn end(&mut self) {
        self.close_aside();
        let last = self.returned_ns.unwrap_or(0);
        self.returned(last);
    }

    /// Ends everything at the end of a window. The rest of an open call, and the time to the next one, aren't recorded.
    pub fn interrupted(&mut self) {
        self.end();
        self.returned_ns = None;
    }

    /// Notes a flush of `pages` in the current call, with these interrupts. Without any, it was only about to send
    /// some.
    pub fn asked(&mut self, pages: u64, interrupts: u64) {
        if let Some(open) = &mut self.open
            && let Some(alike) = &mut open.alike
        {
            alike.said |= interrupts == 0;
            alike.asked |= interrupts > 0;
            open.made.interrupts += interrupts;
            open.made.pages = pages.max(open.made.pages).min(alike.bytes / PAGE).min(PAGES);
        }
    }
}

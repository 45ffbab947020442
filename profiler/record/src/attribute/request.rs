//! Flushes that have begun and aren't complete.

use std::sync::Arc;

use super::slice::Origin;

/// The number of requests to remember. It's far more than CPUs can have open at once.
///
/// If a recording lost events, some requests never end. Later ones replace these.
const REMEMBERED: usize = 1 << 14;

/// A flush that may have remote targets.
#[derive(Debug, Default)]
pub struct Request {
    /// The site that caused it.
    pub site: usize,
    /// Its whole stack.
    pub folded: Arc<str>,
    /// The initiator's program.
    pub program: usize,
    /// The initiator's process.
    pub pid: u32,
    /// The initiator's thread.
    pub tid: u32,
    /// The initiator's CPU.
    pub cpu: u32,
    /// The number of pages to flush. `None` if it flushes everything.
    pub pages: Option<u64>,
    /// The time of its first event.
    pub began: u64,
    /// The time of its first interrupt. `None` again once we've added up the wait.
    pub sent: Option<u64>,
    /// The same, kept for the arrows from a request to its interrupts.
    pub origin: Option<Origin>,
    /// Whether an event for its remote part was seen.
    pub asked: bool,
    /// Whether the initiator's own flush was seen.
    pub local: bool,
    /// The number of targets.
    pub targets: u32,
    /// The number of targets that aren't done.
    pub left: u32,
    /// The time at which the last target was done.
    pub done: Option<u64>,
    /// The time at which the initiator's thread continued.
    pub end: Option<u64>,
    /// The bin of the time since the thread's last interrupt from the same site.
    pub gap: usize,
}

/// The latest requests, by number.
#[derive(Debug, Default)]
pub struct Requests {
    places: Vec<(u64, Request)>,
    next: u64,
}

impl Request {
    /// Notes the time of the first interrupt. Later calls change nothing.
    pub fn sent_at(&mut self, ns: u64) {
        let sent_ns = *self.sent.get_or_insert(ns);
        let cpu = self.cpu;
        self.origin.get_or_insert(Origin { cpu, sent_ns });
    }
}

impl Requests {
    fn place(id: u64) -> usize {
        usize::try_from(id % REMEMBERED as u64).unwrap_or(0)
    }

    /// Remembers a request and returns its number.
    pub fn add(&mut self, request: Request) -> u64 {
        let id = self.next;
        self.next += 1;
        match self.places.get_mut(Self::place(id)) {
            Some(old) => *old = (id, request),
            None => self.places.push((id, request)),
        }
        id
    }

    /// Returns the request of this number, unless we've forgotten it.
    pub fn get(&self, id: u64) -> Option<&Request> {
        let found = self.places.get(Self::place(id));
        found.filter(|found| found.0 == id).map(|found| &found.1)
    }

    /// Returns the request of this number, unless we've forgotten it.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut Request> {
        let found = self.places.get_mut(Self::place(id));
        found.filter(|found| found.0 == id).map(|found| &mut found.1)
    }
}

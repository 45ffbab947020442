//! Flushes that are under way.

use std::sync::Arc;

use super::slice::Origin;

/// How many are remembered: far more than CPUs can have under way at once. A recording that lost events leaves some
/// that never end; later ones take their places.
const REMEMBERED: usize = 1 << 14;

/// A flush that others were or may be asked for.
#[derive(Debug)]
pub struct Request {
    /// Whose doing it is.
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
    /// What is flushed; `None` is everything.
    pub pages: Option<u64>,
    /// When it was first seen.
    pub began: u64,
    /// When the first target was asked; `None` again once the wait has been added up.
    pub sent: Option<u64>,
    /// The same, kept for arrows from the request to its interrupts.
    pub origin: Option<Origin>,
    /// Whether it was seen to ask others.
    pub asked: bool,
    /// Whether the initiator was seen to flush its own entries.
    pub local: bool,
    /// How many targets were asked.
    pub targets: u32,
    /// How many of them are not done.
    pub left: u32,
    /// When the last one was done.
    pub done: Option<u64>,
    /// When the initiator's thread went on.
    pub end: Option<u64>,
    /// The bin of the time since the thread's last one from the same site.
    pub gap: usize,
}

/// The latest requests, by number.
#[derive(Debug, Default)]
pub struct Requests {
    places: Vec<(u64, Request)>,
    next: u64,
}

impl Request {
    /// Notes when the first target was asked.
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

    /// Remembers one; its number.
    pub fn add(&mut self, request: Request) -> u64 {
        let id = self.next;
        self.next += 1;
        match self.places.get_mut(Self::place(id)) {
            Some(old) => *old = (id, request),
            None => self.places.push((id, request)),
        }
        id
    }

    /// The request of this number, unless it is forgotten.
    pub fn get(&self, id: u64) -> Option<&Request> {
        let found = self.places.get(Self::place(id));
        found.filter(|found| found.0 == id).map(|found| &found.1)
    }

    /// The request of this number, unless it is forgotten.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut Request> {
        let found = self.places.get_mut(Self::place(id));
        found
            .filter(|found| found.0 == id)
            .map(|found| &mut found.1)
    }
}

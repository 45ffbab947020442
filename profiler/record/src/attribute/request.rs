//! Flushes that have begun and aren't complete.

use std::collections::VecDeque;
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
    /// The time of its first interrupt.
    pub sent: Option<u64>,
    /// Whether we've added up the wait.
    pub added_up: bool,
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
    latest: VecDeque<Request>,
    first: u64,
}

impl Request {
    /// Returns the place and time from which it interrupted others, if it did.
    pub fn origin(&self) -> Option<Origin> {
        self.sent.map(|sent_ns| Origin { cpu: self.cpu, sent_ns })
    }
}

impl Requests {
    /// Remembers a request and returns its number.
    pub fn add(&mut self, request: Request) -> u64 {
        if self.latest.len() == REMEMBERED {
            self.latest.pop_front();
            self.first += 1;
        }
        self.latest.push_back(request);
        self.first + self.latest.len() as u64 - 1
    }

    /// Returns the request of this number, unless we've forgotten it.
    pub fn get(&self, id: u64) -> Option<&Request> {
        self.latest.get(id.checked_sub(self.first)? as usize)
    }

    /// Returns the request of this number, unless we've forgotten it.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut Request> {
        self.latest.get_mut(id.checked_sub(self.first)? as usize)
    }

    /// Returns all requests with their numbers, the latest first.
    pub fn latest(&self) -> impl Iterator<Item = (u64, &Request)> {
        let numbered = self.latest.iter().enumerate().rev();
        numbered.map(|(at, request)| (self.first + at as u64, request))
    }
}

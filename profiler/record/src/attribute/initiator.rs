//! Follows the initiator's side: a flush begins, and interrupts are sent for it.
//!
//! A request is the remote part of one flush. Its events are separate: `tlb_flush`, then one `csd_queue_cpu` for each
//! target. So a thread has at most one open request, and we add matching events to it.
//! We count an interrupt here, at the site that sent it. [`super::target`] charges its cost on the target.

use crate::perf::Sample;

use super::Attribution;
use super::request::Request;
use super::reuse::{BINS, bin};
use crate::event::{Arguments, reason};

impl Attribution {
    pub(super) fn flush(&mut self, sample: &Sample, program: usize, why: u64, pages: Option<u64>) {
        self.seen.flushes = true;
        match why {
            reason::RECEIVED => self.flushed(sample, program, pages),
            reason::LOCAL | reason::LOCAL_SPACE | reason::SEND => {
                let asks = why == reason::SEND;
                self.asked += u64::from(asks);
                self.request(sample, program, asks, pages);
            }
            _ => {}
        }
    }

    /// Returns the request of this event.
    ///
    /// That's the thread's open request if it lacks this part, otherwise a new one.
    fn request(&mut self, sample: &Sample, program: usize, asks: bool, pages: Option<u64>) -> u64 {
        let (site, folded) = self.site(sample, program);
        let open = self.threads.get(&sample.tid).and_then(|thread| thread.open);
        if let Some(request) = open.and_then(|id| self.requests.get_mut(id)) {
            let lacks = if asks { !request.asked } else { !request.local };
            if lacks && request.site == site {
                request.asked |= asks;
                request.local |= !asks;
                return open.unwrap_or_default();
            }
        }
        self.close(sample.tid, sample.time_ns);
        let gap = self.gap(sample, site);
        let id = self.requests.add(Request {
            site,
            folded,
            program,
            pid: sample.pid,
            tid: sample.tid,
            cpu: sample.cpu,
            pages,
            began: sample.time_ns,
            asked: asks,
            local: !asks,
            gap,
            ..Request::default()
        });
        self.threads.entry(sample.tid).or_default().open = Some(id);
        let of = &mut self.sites[site];
        of.requests += 1;
        match pages {
            Some(pages) => of.pages += pages,
            None => of.full += 1,
        }
        self.of_call(sample.tid, site);
        id
    }

    /// Returns the bin of the time since the thread last interrupted others from this site.
    fn gap(&mut self, sample: &Sample, site: usize) -> usize {
        let last = self.threads.get(&sample.tid).map(|thread| &thread.last);
        let last = last.and_then(|last| last.iter().find(|(of, ..)| *of == site));
        last.map_or(BINS.len(), |(_, time, ..)| bin(sample.time_ns.saturating_sub(*time)))
    }

    pub(super) fn queued(&mut self, sample: &Sample, program: usize, target: u32, work: u64) {
        let id = self.sending(sample, program);
        let Some(request) = self.requests.get_mut(id) else {
            return;
        };
        request.targets += 1;
        request.left += 1;
        let (site, gap, folded) = (request.site, request.gap, request.folded.clone());
        let first = request.targets == 1;
        self.in_flight.insert((work, target), id);
        let of = &mut self.sites[site];
        of.interrupts += 1;
        of.remote += u64::from(first);
        of.gaps[gap] += 1;
        // A program may name any number of threads, so we bound the map.
        if of.threads.len() < 256 || of.threads.contains_key(&sample.comm) {
            *of.threads.entry(sample.comm.clone()).or_default() += 1;
        }
        self.sent(site, folded);
        self.counts_in_call(sample, site, gap, first);
        self.concerns_what_was_given_back(sample, program, site);
    }

    /// Counts an interrupt for memory that another site gave back. It would disappear if that memory were kept.
    fn concerns_what_was_given_back(&mut self, sample: &Sample, program: usize, site: usize) {
        let owner = self.owner(sample, program);
        let Some(thread) = self.threads.get(&sample.tid) else {
            return;
        };
        let giver = match (&*self.sites[site].place.call, &thread.call, &thread.fault) {
            ("copy-on-write", _, Some(fault)) => fault.site,
            ("mprotect" | "pkey_mprotect", Some(call), _) => {
                self.discards.find(owner, call.arguments.start).map(|discard| discard.site)
            }
            _ => None,
        };
        if let Some(giver) = giver {
            *self.sites[site].given.entry(giver).or_default() += 1;
        }
    }

    /// Returns the request for which this thread sends an interrupt now.
    fn sending(&mut self, sample: &Sample, program: usize) -> u64 {
        let open = self.threads.get(&sample.tid).and_then(|thread| thread.open);
        let site = self.site(sample, program).0;
        let known = open.filter(|id| {
            self.requests.get(*id).is_some_and(|request| request.site == site && request.asked)
        });
        let id = known.unwrap_or_else(|| self.request(sample, program, true, None));
        if let Some(request) = self.requests.get_mut(id) {
            request.sent.get_or_insert(sample.time_ns);
        }
        id
    }

    fn counts_in_call(&mut self, sample: &Sample, site: usize, gap: usize, first: bool) {
        let Some(thread) = self.threads.get_mut(&sample.tid) else {
            return;
        };
        let mut range = (0, 0);
        if let Some(call) = &mut thread.call {
            call.interrupts += 1;
            call.gap.get_or_insert(gap);
            let Arguments { start, bytes, .. } = call.arguments;
            range = (start, start.saturating_add(bytes));
        }
        if !first {
            return;
        }
        let now = (site, sample.time_ns, range.0, range.1);
        match thread.last.iter_mut().find(|(of, ..)| *of == site) {
            Some(last) => {
                let of = &mut self.sites[site];
                of.followed += 1;
                of.adjacent += u64::from(range.1 != 0 && (last.3 == range.0 || last.2 == range.1));
                *last = now;
            }
            None => {
                // Bounds the memory for each thread: forget the site that was added first.
                if thread.last.len() >= 64 {
                    thread.last.remove(0);
                }
                thread.last.push(now);
            }
        }
    }
}

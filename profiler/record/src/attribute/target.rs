//! Follows the target's side: an interrupt arrives, queued work is done, and the interrupt ends.
//!
//! The interrupted program loses the interrupt's time. We charge that time to the sites whose work was done in it, and
//! split the rest around the work evenly among them. The initiator's wait ends when its last target is done.

use std::sync::Arc;

use crate::perf::Sample;

use super::request::Request;
use super::slice::{Slice, Stretch};
use super::{Attribution, Work};

/// The longest time from a request to an answer matched by time, in nanoseconds.
///
/// Longer answers are rare. Answers whose request wasn't recorded are more frequent, and without this limit we'd charge
/// them to an older request, as a wait that never happened.
const ANSWER_NS: u64 = 1_000_000;

/// The number of recent requests among which a flush on a target is matched.
const RECENT: usize = 64;

impl Attribution {
    /// Matches a target's flush with its request, if the recording has no events of functions.
    pub(super) fn flushed(&mut self, sample: &Sample, program: usize, pages: Option<u64>) {
        if self.seen.functions {
            return;
        }
        self.received += 1;
        let now = sample.time_ns;
        let fits = |(_, request): &(u64, &Request)| {
            request.cpu != sample.cpu
                && now.saturating_sub(request.began) < ANSWER_NS
                && request.end.is_none_or(|end| end + 1_000 >= now)
        };
        let rank = |(id, request): &(u64, &Request)| {
            let same = request.pages == pages || pages.is_none();
            (request.pid == sample.pid, same, *id)
        };
        let asked = self.requests.latest().filter(|(_, request)| request.asked).take(RECENT);
        let found = asked.filter(fits).max_by_key(rank).map(|(id, _)| id);
        let cpu = self.cpu(sample.cpu);
        if cpu.interrupt.is_some() {
            let (function, end) = ("flush".into(), Some(now));
            cpu.works.push(Work { request: found, function, flush: true, start: now, end });
            self.programs[program].taken += 1;
        }
        let Some(request) = found.and_then(|id| self.requests.get_mut(id)) else {
            return;
        };
        request.done = request.done.max(Some(now));
        let (site, gap, sender) = (request.site, request.gap, request.program);
        let folded = request.folded.clone();
        let first = request.sent.is_none();
        request.sent.get_or_insert(request.began);
        *self.matrix.entry((sender, program)).or_default() += 1;
        let of = &mut self.sites[site];
        of.by_target += 1;
        if !self.seen.queued {
            of.remote += u64::from(first);
            of.gaps[gap] += 1;
            self.sent(site, folded);
        }
    }

    /// Ends a function that another CPU queued.
    pub(super) fn worked(&mut self, sample: &Sample, function: &str, program: usize) {
        let now = sample.time_ns;
        let cpu = self.cpu(sample.cpu);
        let in_interrupt = cpu.interrupt.is_some();
        let last = cpu
            .works
            .iter_mut()
            .rev()
            .find(|work| work.end.is_none() && &*work.function == function);
        let Some(work) = last else {
            return;
        };
        work.end = Some(now);
        let (request, start) = (work.request, work.start);
        let took = now.saturating_sub(start);
        if work.flush {
            if let Some(id) = request {
                self.done(id, now, took);
            }
            self.programs[program].stolen.least += took as f64;
            self.programs[program].taken += 1;
        } else {
            let of = self.functions.entry(function.into()).or_default();
            of.count += 1;
            of.ns += took;
        }
        if !in_interrupt {
            // An idle CPU that polls takes work without an interrupt.
            let works = std::mem::take(&mut self.cpu(sample.cpu).works);
            self.charge(sample, program, &works, start, now);
        }
    }

    /// Ends one target's part of the request.
    fn done(&mut self, id: u64, now: u64, took: u64) {
        let Some(request) = self.requests.get_mut(id) else {
            return;
        };
        request.left = request.left.saturating_sub(1);
        request.done = request.done.max(Some(now));
        self.sites[request.site].stolen.least += took as f64;
        self.add_up(id);
    }

    pub(super) fn interrupted(&mut self, sample: &Sample, program: usize) {
        self.seen.interrupts = true;
        let now = sample.time_ns;
        let cpu = self.cpu(sample.cpu);
        let works = std::mem::take(&mut cpu.works);
        let Some(start) = cpu.interrupt.take() else {
            return;
        };
        if !works.is_empty() {
            self.charge(sample, program, &works, start, now);
        } else if !self.seen.functions {
            let of = self.functions.entry("unknown".into()).or_default();
            of.count += 1;
            of.ns += now.saturating_sub(start);
            let time = (start, now);
            self.interrupt(sample, program, Stretch::Other, time, "function call".into(), None);
        }
    }

    /// Charges an interrupt to the requests of its work. The time around the work is split evenly.
    fn charge(&mut self, sample: &Sample, program: usize, works: &[Work], start: u64, end: u64) {
        let inside: u64 =
            works.iter().filter_map(|work| Some(work.end?.saturating_sub(work.start))).sum();
        let around = end.saturating_sub(start).saturating_sub(inside) / works.len().max(1) as u64;
        for work in works {
            let Some(done) = work.end else {
                continue;
            };
            let took = done.saturating_sub(work.start) + around;
            self.charge_site(work.request, took);
            let kind = if work.flush { Stretch::Stolen } else { Stretch::Other };
            if work.flush {
                self.programs[program].stolen.most += took as f64;
            }
            let time = (work.start.min(start), done.max(end));
            self.interrupt(sample, program, kind, time, work.function.clone(), work.request);
        }
    }

    fn charge_site(&mut self, request: Option<u64>, took: u64) {
        if let Some(request) = request.and_then(|id| self.requests.get(id)) {
            self.sites[request.site].stolen.most += took as f64;
        }
    }

    /// Reports an interrupt that ends with this sample, and the request that it answered.
    fn interrupt(
        &mut self,
        sample: &Sample,
        program: usize,
        kind: Stretch,
        (start_ns, end_ns): (u64, u64),
        what: Arc<str>,
        request: Option<u64>,
    ) {
        let request = request.and_then(|id| self.requests.get(id));
        self.ended.push(Slice {
            kind,
            cpu: sample.cpu,
            tid: sample.tid,
            program: self.programs[program].name.clone(),
            start_ns,
            end_ns,
            what,
            site: request.map(|request| request.site),
            origin: request.and_then(Request::origin),
        });
    }
}

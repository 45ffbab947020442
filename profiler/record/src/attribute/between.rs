//! What is known of interrupts between the windows in which everything is recorded: who sent each, and of some when their work
//! was done.
//!
//! A CPU asks all targets of a flush, in the order of their numbers, before it asks any for another. So a flush ends where
//! the next target is not behind the last one, or another thread asks, or time has passed. The initiator has waited until
//! the last target was done; of which not all need be known, so each that is stands for its part of the flush, and all
//! together for what was waited at least. The initiator goes on as soon as it sees that the last one is done.
//!
//! An end belongs to the flush that its initiator's CPU asked for last. If that CPU's events were lost, this is another
//! flush than the last one recorded. So an end counts only once a later event of that CPU shows that nothing was lost.

use crate::perf::Sample;

use super::Attribution;
use super::aside::{Ended, Flush};
use crate::event;

/// CPUs are asked for the same flush within this time of each other. To wait for one, and to begin another, takes longer.
const TOGETHER_NS: u64 = 4_000;

impl Attribution {
    /// Work was queued for another CPU, between windows.
    pub(super) fn queued_between(
        &mut self,
        sample: &Sample,
        program: usize,
        target: u32,
        function: &str,
        work: u64,
    ) {
        self.seen.queued = true;
        if !event::flushes(function) {
            *self.functions_between.entry(function.into()).or_default() += 1;
            return;
        }
        let (site, _) = self.site(sample, program);
        self.sites[site].between += 1;
        self.confirm_ended(sample.cpu);
        let (cpu, now) = (sample.cpu, sample.time_ns);
        let known = self.between.flushes.get_mut(&cpu).filter(|flush| {
            flush.tid == sample.tid
                && flush.site == site
                && flush.last.0 < target
                && now.saturating_sub(flush.last.1) < TOGETHER_NS
        });
        let began = match known {
            Some(flush) => {
                flush.targets += 1;
                flush.last = (target, now);
                flush.began
            }
            None => {
                let flush = Flush {
                    site,
                    tid: sample.tid,
                    began: now,
                    last: (target, now),
                    targets: 1,
                };
                self.between.flushes.insert(cpu, flush);
                self.sites[site].aside.flushes += 1;
                now
            }
        };
        self.between.queued.insert((work, target), (cpu, began));
    }

    /// A flush that was queued for this CPU between windows is done.
    pub(super) fn ended_between(&mut self, sample: &Sample, work: u64) {
        let Some((cpu, began)) = self.between.queued.remove(&(work, sample.cpu)) else {
            return;
        };
        let waited = sample.time_ns.saturating_sub(began);
        let flush = self.between.flushes.get(&cpu);
        if let Some(flush) = flush.filter(|flush| flush.began == began) {
            self.between.ended.entry(cpu).or_default().push(Ended {
                site: flush.site,
                waited_ns: waited as f64 / f64::from(flush.targets),
            });
        }
    }

    /// Counts the ends of the flushes that this CPU asked for: an event of it was read, and none was lost before it.
    pub(super) fn confirm_ended(&mut self, cpu: u32) {
        for Ended { site, waited_ns } in self.between.ended.remove(&cpu).into_iter().flatten() {
            let aside = &mut self.sites[site].aside;
            aside.timed += 1;
            aside.waited_ns += waited_ns;
        }
    }

    /// Forgets what this CPU asked for: events of it were lost.
    pub(super) fn lost_between(&mut self, cpu: u32) {
        self.between.ended.remove(&cpu);
        self.between.flushes.remove(&cpu);
        self.between
            .queued
            .retain(|_, (initiator, _)| *initiator != cpu);
    }
}

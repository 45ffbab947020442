//! Computes totals of the recording: the evidence, the sites' weights, and the kernel's counts.

use crate::perf::{Count, CpuTime, Statistics};

use super::Attribution;
use super::site::{Evidence, Program};

impl Attribution {
    /// Returns the best method by which interrupts can be recognized as shootdowns.
    pub fn evidence(&self) -> Evidence {
        if self.seen.queued {
            Evidence::Queued
        } else if self.received > 0 {
            Evidence::Received
        } else {
            Evidence::Nothing
        }
    }

    /// Ends everything that is open, and counts interrupts by the best evidence.
    pub fn finish(&mut self) {
        let end = self.times.map_or(0, |(_, last)| last);
        self.close_all(end);
        let evidence = self.evidence();
        for site in &mut self.sites {
            site.interrupts = match evidence {
                Evidence::Queued | Evidence::Nothing => site.interrupts,
                Evidence::Received => site.by_target,
            };
            site.stolen.most = site.stolen.most.max(site.stolen.least);
        }
        self.weigh_sites();
        for program in &mut self.programs {
            program.stolen.most = program.stolen.most.max(program.stolen.least);
        }
    }

    /// Sets each site's weight by the kernel's sums. Without these, uses the exact count of all interrupts.
    fn weigh_sites(&mut self) {
        let missing = self
            .counted()
            .map_or(1.0, |count| (count.exact as f64 / count.seen.max(1) as f64).max(1.0));
        let seconds = self.scale_of_time();
        for site in &mut self.sites {
            site.whole = site.interrupts;
            site.timed = site.interrupts;
            // The exact count doesn't include flushes of kernel mappings, like the row `TLB`.
            site.weight = match &*site.place.call {
                "kernel mappings" => seconds,
                _ => missing,
            };
        }
        self.weigh_by_sums();
    }

    /// Returns the exact count of the event that shows interrupts, if it was counted.
    pub fn counted(&self) -> Option<&Count> {
        self.count(match self.evidence() {
            Evidence::Queued => "csd:csd_queue_cpu",
            Evidence::Received | Evidence::Nothing => "tlb:tlb_flush",
        })
    }

    /// Returns a program's CPU time by the kernel's account, if that's known.
    pub fn ran(&self, program: &str) -> Option<&CpuTime> {
        self.ran.iter().find(|ran| ran.comm == program)
    }

    /// Returns whether the recording is about this program. Others may only have shared the machine.
    pub fn is_about(&self, program: &str) -> bool {
        let scope = self.host.as_ref().map_or("", |host| &*host.scope);
        let told = |known: &Program| &*known.name == program && known.told;
        matches!(scope, "" | "everything") || self.programs.iter().any(told)
    }

    /// Returns the exact count of an event, if it was counted.
    pub fn count(&self, event: &str) -> Option<&Count> {
        self.counts.iter().find(|count| count.event == event)
    }

    /// Returns the recording's length divided by that of its windows, at least 1.
    pub fn scale_of_time(&self) -> f64 {
        match self.windows_ns {
            Some(windows) if windows > 0 => (self.elapsed_ns() as f64 / windows as f64).max(1.0),
            _ => 1.0,
        }
    }

    /// Returns the length of the recording in nanoseconds.
    ///
    /// It's the time between the two readings of the counters or, if that's longer, between the first and the last
    /// event. Events may be recorded for only a part of the time.
    pub fn elapsed_ns(&self) -> u64 {
        let read = |statistics: &Option<Statistics>| {
            let time = statistics.as_ref().map(|statistics| statistics.time_ns);
            time.filter(|&time| time > 0)
        };
        let read = read(&self.before).zip(read(&self.after));
        let from_to = |(first, last): (u64, u64)| last.saturating_sub(first);
        let events = self.times.map_or(0, from_to);
        read.map_or(0, from_to).max(events)
    }

    /// Returns the growth of a row of `/proc/interrupts` between the two readings, over all CPUs.
    pub fn row(&self, name: &str) -> Option<u64> {
        let before = self.before.as_ref()?.interrupt(name)?;
        self.after.as_ref()?.interrupt(name)?.checked_sub(before)
    }

    /// Returns the share of time that CPUs were busy, if the counters have it.
    pub fn busy(&self) -> Option<f64> {
        let (before, after) = (self.before.as_ref()?, self.after.as_ref()?);
        let ns = after.time_ns.checked_sub(before.time_ns)?;
        let busy = after.busy_ns().checked_sub(before.busy_ns())?;
        let known = ns > 0 && !after.cpu_ns.is_empty();
        known.then(|| busy as f64 / (ns as f64 * self.cpu_count().max(1) as f64))
    }

    /// Returns the number of CPUs, as far as we know it.
    pub fn cpu_count(&self) -> usize {
        let told = self.host.as_ref().map_or(0, |host| host.cpus as usize);
        told.max(self.cpus.len())
    }
}

//! What a whole recording adds up to: by which evidence interrupts are counted, what a recorded one stands for, and
//! what the kernel counted.

use crate::perf::{Count, CpuTime, Interrupts, Statistics};

use super::Attribution;
use super::totals::{Evidence, Program};

impl Attribution {
    /// How interrupts were told to be shootdowns.
    pub fn evidence(&self) -> Evidence {
        if self.seen.queued {
            Evidence::Queued
        } else if self.seen.sent {
            Evidence::Sent
        } else if self.received > 0 {
            Evidence::Received
        } else {
            Evidence::Nothing
        }
    }

    /// Ends what is open, and counts interrupts by the best evidence that there was.
    pub fn finish(&mut self) {
        let end = self.times.map_or(0, |(_, last)| last);
        let threads: Vec<u32> = self.threads.keys().copied().collect();
        for tid in threads {
            self.close(tid, end);
        }
        self.stop_following_discards(end);
        let evidence = self.evidence();
        for site in &mut self.sites {
            site.interrupts = match evidence {
                Evidence::Queued | Evidence::Nothing => site.interrupts,
                Evidence::Sent => site.by_interrupt,
                Evidence::Received => site.by_target,
            };
            site.stolen.most = site.stolen.most.max(site.stolen.least);
        }
        self.weigh_sites();
        for program in &mut self.programs {
            program.stolen.most = program.stolen.most.max(program.stolen.least);
        }
    }

    /// Says what a recorded interrupt stands for, site by site: what the kernel added up of its site, or, without such sums,
    /// as many as all do by the exact count.
    fn weigh_sites(&mut self) {
        let missing = self.counted().map_or(1.0, |count| {
            (count.exact as f64 / count.seen.max(1) as f64).max(1.0)
        });
        let seconds = self.scale_of_time();
        for site in &mut self.sites {
            site.whole = site.interrupts;
            site.timed = site.interrupts;
            site.costed = site.interrupts;
            // The count leaves out what the row `TLB` does.
            site.weight = match &*site.place.call {
                "kernel mappings" => seconds,
                _ => missing,
            };
        }
        self.weigh_by_sums();
    }

    /// The count of the event that tells of interrupts, if it was counted.
    pub fn counted(&self) -> Option<&Count> {
        self.count(match self.evidence() {
            Evidence::Queued => "csd:csd_queue_cpu",
            Evidence::Sent => "ipi:ipi_send_cpumask",
            Evidence::Received | Evidence::Nothing => "tlb:tlb_flush",
        })
    }

    /// How long a program ran, by the kernel's account, if that is known.
    pub fn ran(&self, program: &str) -> Option<&CpuTime> {
        self.ran.iter().find(|ran| ran.comm == program)
    }

    /// Whether the recording is about this program: not if it only shared the machine with what was recorded.
    pub fn is_about(&self, program: &str) -> bool {
        let scope = self.host.as_ref().map_or("", |host| &*host.scope);
        let told = |known: &Program| &*known.name == program && known.told;
        matches!(scope, "" | "everything") || self.programs.iter().any(told)
    }

    /// The count of an event, if it was counted.
    pub fn count(&self, event: &str) -> Option<&Count> {
        self.counts.iter().find(|count| count.event == event)
    }

    /// What a second within the stretches of time that were recorded stands for.
    pub fn scale_of_time(&self) -> f64 {
        match self.windows_ns {
            Some(windows) if windows > 0 => (self.elapsed_ns() as f64 / windows as f64).max(1.0),
            _ => 1.0,
        }
    }

    /// How long the recording ran, in nanoseconds: between the two readings of the counters, if it has their times,
    /// because events may have been recorded during a part of that alone; else from the first event to the last.
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

    /// By how much a row of `/proc/interrupts` grew between the two readings, over all CPUs.
    pub fn row(&self, name: &str) -> Option<u64> {
        let sum = |statistics: &Statistics| {
            let row = statistics
                .interrupts
                .iter()
                .find(|row: &&Interrupts| row.name == name)?;
            Some(row.counts.iter().sum::<u64>())
        };
        let (before, after) = (sum(self.before.as_ref()?)?, sum(self.after.as_ref()?)?);
        after.checked_sub(before)
    }

    /// Which part of their time all CPUs were busy, if the counters tell.
    pub fn busy(&self) -> Option<f64> {
        let (before, after) = (self.before.as_ref()?, self.after.as_ref()?);
        let ns = after.time_ns.checked_sub(before.time_ns)?;
        let busy = after.busy_ns().checked_sub(before.busy_ns())?;
        let known = ns > 0 && !after.cpu_ns.is_empty();
        known.then(|| busy as f64 / (ns as f64 * self.cpu_count().max(1) as f64))
    }

    /// How many CPUs there were, as far as is known.
    pub fn cpu_count(&self) -> usize {
        let told = self.host.as_ref().map_or(0, |host| host.cpus as usize);
        told.max(self.cpus.len())
    }
}

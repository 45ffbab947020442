//! What a whole recording adds up to: by which evidence interrupts are counted, what a recorded one stands for, and
//! what the kernel counted.

use std::sync::Arc;

use crate::perf::{Count, Interrupts, Ran, Statistics};
use rustc_hash::FxHashMap;

use super::Attribution;
use super::aside::Aside;
use super::site::Site;
use super::totals::{ENOUGH, Evidence, Program};

/// Interrupts that are known of a call of a program.
#[derive(Clone, Copy, Default)]
struct Known {
    /// Recorded whole.
    within: u64,
    /// Recorded between stretches of time in which everything is, and what was timed of these.
    between: u64,
    aside: Aside,
}

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
        for cpu in 0..self.cpus.len() as u32 {
            self.confirm_ended(cpu);
        }
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

    /// Says what a recorded interrupt stands for, site by site. Interrupts between the stretches of time that were
    /// recorded are known by their program and call, whose sites share them as they share those within; a program's
    /// call that was seen between stretches alone has them as they are. So it is with those of which it is known how long
    /// their initiators waited. What is missing then, by the exact count, is missing everywhere alike.
    fn weigh_sites(&mut self) {
        let mut calls: FxHashMap<(Arc<str>, Arc<str>), Known> = FxHashMap::default();
        let key = |site: &Site| (site.place.program.clone(), site.place.call.clone());
        let (mut timed, mut stolen) = (0, 0);
        for site in &self.sites {
            let of = calls.entry(key(site)).or_default();
            of.within += site.interrupts;
            of.between += site.between;
            of.aside.add(site.aside);
            timed += site.interrupts;
            stolen += site.stolen.most;
        }
        let each = (timed >= ENOUGH).then(|| stolen as f64 / timed as f64);
        let between: u64 = self.sites.iter().map(|site| site.between).sum();
        let missing = self.counted().map_or(1.0, |count| {
            (count.exact as f64 / (count.seen + between).max(1) as f64).max(1.0)
        });
        let seconds = self.scale_of_time();
        for site in &mut self.sites {
            site.whole = site.interrupts;
            site.timed = site.interrupts;
            site.costed = site.interrupts;
            // The count leaves out what the row `TLB` does.
            if &*site.place.call == "kernel mappings" {
                site.weight = seconds;
                continue;
            }
            let Known {
                within,
                between,
                aside,
            } = calls[&key(site)];
            if within == 0 {
                site.interrupts = site.between;
                site.requests += site.aside.flushes;
                site.remote += site.aside.flushes;
                site.time_aside(site.aside, each);
            } else {
                site.weight = (within + between) as f64 / within as f64;
                let part = site.whole as f64 / within as f64;
                site.time_aside(aside.part(part), each);
            }
            site.weight *= missing;
        }
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
    pub fn ran(&self, program: &str) -> Option<&Ran> {
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

//! Reads counters of the running kernel before and after an operation: `/proc/interrupts`, `/proc/vmstat`,
//! `/proc/stat`.
//!
//! All three count for the whole machine, including other programs. So a row also records their CPU time.

use std::io;
use std::ops::Add;
use std::time::{Duration, Instant};

use quell_record::perf::counters;
use quell_record::perf::{ReadTime, Statistics};

use super::report::Row;
use crate::process::own_cpu_time;

/// The row of `/proc/interrupts` that counts received shootdowns on x86.
pub const TLB: &str = "TLB";

/// Reads all three.
pub fn now() -> io::Result<Statistics> {
    counters::read(ReadTime::Before, 0)
}

/// Returns whether a row of `/proc/interrupts` is of interrupts that one CPU sends to another.
fn is_of_cpus(name: &str) -> bool {
    matches!(name, TLB | "CAL" | "RES") || name.starts_with("IPI")
}

impl Row {
    /// Adds the difference between two readings. Returns its TLB interrupts, if the kernel counts them.
    pub(super) fn count(&mut self, before: &Statistics, after: &Statistics) -> Option<u64> {
        let mut shootdowns = None;
        for row in after.interrupts.iter().filter(|row| is_of_cpus(&row.name)) {
            let earlier = before.interrupts.iter().find(|of| of.name == row.name);
            let Some(earlier) = earlier else {
                continue;
            };
            let sums = self.interrupts.entry(row.name.clone()).or_default();
            sums.resize(row.counts.len(), 0);
            let mut all = 0;
            for ((sum, now), then) in sums.iter_mut().zip(&row.counts).zip(&earlier.counts) {
                let more = now.saturating_sub(*then);
                *sum += more;
                all += more;
            }
            if row.name == TLB {
                shootdowns = Some(all);
            }
        }
        for (name, now) in after.vmstat.iter().filter(|(name, _)| tells_something(name)) {
            if let more @ 1.. = now.saturating_sub(before.vm(name).unwrap_or(*now)) {
                *self.vmstat.entry(name.clone()).or_default() += more;
            }
        }
        shootdowns
    }
}

/// Returns whether a counter of `/proc/vmstat` counts events that explain one of the benchmarks. Most are levels.
fn tells_something(name: &str) -> bool {
    const STARTS: [&str; 9] = [
        "pswp",
        "swpin",
        "swpout",
        "pgfault",
        "pgmajfault",
        "pgsteal_",
        "pgscan_",
        "workingset_refault",
        "nr_tlb",
    ];
    STARTS.iter().any(|start| name.starts_with(start))
}

/// The CPU time of other programs during a row.
pub struct OtherLoad {
    started: Instant,
    before: Statistics,
    own: Duration,
}

impl OtherLoad {
    /// Starts watching; `children` gives the CPU time of this process's children so far.
    pub fn start(children: Duration) -> io::Result<Self> {
        Ok(Self { started: Instant::now(), before: now()?, own: own_cpu_time() + children })
    }

    /// Returns the use by others since the start.
    pub fn end(&self, children: Duration) -> io::Result<CpuSharing> {
        let wall = self.started.elapsed().as_secs_f64();
        let own = (own_cpu_time() + children).saturating_sub(self.own);
        let (then, now) = (&self.before, now()?);
        let since = |of: fn(&Statistics) -> u64| of(&now).saturating_sub(of(then)) as f64 / 1e9;
        Ok(CpuSharing {
            wall,
            foreign: since(Statistics::busy_ns) - own.as_secs_f64(),
            stolen: since(Statistics::stolen_ns),
        })
    }
}

/// CPU time that others had during one or more spans, all in seconds.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct CpuSharing {
    /// The total length of the spans.
    pub wall: f64,
    /// Used by other programs. Ticks are coarse (usually 10 ms), so a short span can come out below zero.
    pub foreign: f64,
    /// Stolen by the hypervisor.
    pub stolen: f64,
}

impl CpuSharing {
    /// Returns the CPUs used by other programs, and the stolen CPUs.
    ///
    /// Returns `None` below 0.2 s in all, which ticks cannot resolve.
    pub fn cpus(&self) -> Option<(f64, f64)> {
        (self.wall >= 0.2).then(|| ((self.foreign / self.wall).max(0.0), self.stolen / self.wall))
    }
}

impl Add for CpuSharing {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            wall: self.wall + more.wall,
            foreign: self.foreign + more.foreign,
            stolen: self.stolen + more.stolen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Mapping, page_size};

    fn reading(tlb: [u64; 2], faults: u64) -> Statistics {
        let text = format!("CPU0 CPU1\nTLB: {} {} TLB shootdowns\n", tlb[0], tlb[1]);
        Statistics {
            when: ReadTime::Before,
            time_ns: 0,
            interrupts: counters::interrupts(&text),
            vmstat: counters::vmstat(&format!("pgfault {faults}\nnr_free_pages {faults}\n")),
            cpu_ns: Vec::new(),
        }
    }

    #[test]
    fn increases_add_up_and_levels_are_left_out() {
        let mut totals = Row::default();
        assert_eq!(totals.count(&reading([5, 7], 10), &reading([6, 9], 15)), Some(3));
        assert_eq!(totals.count(&reading([9, 9], 20), &reading([9, 10], 20)), Some(1));
        assert_eq!(totals.interrupts[TLB], [1, 3]);
        assert_eq!(totals.vmstat, [("pgfault".to_owned(), 5)].into());
    }

    #[test]
    fn own_faults_show_up() {
        let before = now().unwrap();
        let page = page_size();
        Mapping::anonymous(64 * page).unwrap().touch(page, 1);
        let mut totals = Row::default();
        totals.count(&before, &now().unwrap());
        // The kernel folds per-CPU counters into the file as it is read.
        assert!(totals.vmstat["pgfault"] >= 64, "{totals:?}");
    }
}

//! Reads counters of the running kernel before and after an operation: `/proc/interrupts`, `/proc/vmstat`,
//! `/proc/stat`.
//!
//! All three count for the whole machine, including other programs. So a row also records their CPU time.

use std::collections::BTreeMap;
use std::io;
use std::ops::Add;
use std::time::{Duration, Instant};

use procfs_core::{ExplicitSystemInfo, FromRead, FromReadSI, KernelStats, VmStat};

use crate::process::own_cpu_time;
use quell_record::perf::counters::interrupts;

/// The row of `/proc/interrupts` that counts received shootdowns on x86.
pub const TLB: &str = "TLB";

/// A reading of the counters.
pub struct Reading {
    /// By row of `/proc/interrupts`, one count for each online CPU.
    interrupts: BTreeMap<String, Vec<u64>>,
    vmstat: VmStat,
}

impl Reading {
    /// Reads all three.
    pub fn now() -> io::Result<Self> {
        let keep = |name: &str| matches!(name, TLB | "CAL" | "RES") || name.starts_with("IPI");
        Ok(Self {
            interrupts: interrupts(&std::fs::read_to_string("/proc/interrupts")?)
                .into_iter()
                .filter(|row| keep(&row.name))
                .map(|row| (row.name, row.counts))
                .collect(),
            vmstat: VmStat::from_file("/proc/vmstat").map_err(io::Error::other)?,
        })
    }
}

/// Increases summed over the timed parts of a row.
#[derive(Debug, Default)]
pub struct Totals {
    /// By row of `/proc/interrupts`, one count for each CPU.
    pub interrupts: BTreeMap<String, Vec<u64>>,
    /// By name in `/proc/vmstat`; only events that moved.
    pub vmstat: BTreeMap<String, u64>,
}

impl Totals {
    /// Adds the difference between two readings. Returns its TLB interrupts, if the kernel counts them.
    pub fn add(&mut self, before: &Reading, after: &Reading) -> Option<u64> {
        let mut shootdowns = None;
        for (name, counts) in &after.interrupts {
            let Some(earlier) = before.interrupts.get(name) else {
                continue;
            };
            let sums = self
                .interrupts
                .entry(name.clone())
                .or_insert_with(|| vec![0; counts.len()]);
            let mut all = 0;
            for ((sum, now), then) in sums.iter_mut().zip(counts).zip(earlier) {
                let more = now.saturating_sub(*then);
                *sum += more;
                all += more;
            }
            if name == TLB {
                shootdowns = Some(all);
            }
        }
        for (name, now) in &after.vmstat.0 {
            let more = now.saturating_sub(before.vmstat.0.get(name).copied().unwrap_or(*now));
            if let Ok(more @ 1..) = u64::try_from(more)
                && tells_something(name)
            {
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
    ticks: Ticks,
    own: Duration,
}

impl OtherLoad {
    /// Starts watching; `children` gives the CPU time of this process's children so far.
    pub fn start(children: Duration) -> io::Result<Self> {
        Ok(Self {
            started: Instant::now(),
            ticks: Ticks::now()?,
            own: own_cpu_time() + children,
        })
    }

    /// Returns the use by others since the start.
    pub fn end(&self, children: Duration) -> io::Result<CpuSharing> {
        let wall = self.started.elapsed().as_secs_f64();
        let own = (own_cpu_time() + children).saturating_sub(self.own);
        let (then, now) = (self.ticks, Ticks::now()?);
        let busy = now.busy.saturating_sub(then.busy) as f64 / TICKS_PER_SECOND as f64;
        let steal = now.steal.saturating_sub(then.steal) as f64 / TICKS_PER_SECOND as f64;
        Ok(CpuSharing {
            wall,
            foreign: busy - own.as_secs_f64(),
            stolen: steal,
        })
    }
}

/// CPU time that others had during one or more spans, all in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
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

/// `USER_HZ`, which is 100 on every architecture that this runs on.
const TICKS_PER_SECOND: u64 = 100;

/// Clock ticks of all CPUs together.
#[derive(Debug, Clone, Copy)]
struct Ticks {
    /// Running a program, the kernel, or an interrupt.
    busy: u64,
    /// Wanted to run, and the hypervisor ran another guest.
    steal: u64,
}

impl Ticks {
    fn now() -> io::Result<Self> {
        // Only ticks are used, and they do not depend on these values.
        let system = ExplicitSystemInfo {
            boot_time_secs: 0,
            ticks_per_second: TICKS_PER_SECOND,
            page_size: 0,
            is_little_endian: cfg!(target_endian = "little"),
        };
        let all = KernelStats::from_file("/proc/stat", &system)
            .map_err(io::Error::other)?
            .total;
        let interrupts = all.irq.unwrap_or(0) + all.softirq.unwrap_or(0);
        Ok(Self {
            busy: all.user + all.nice + all.system + interrupts,
            steal: all.steal.unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Mapping, page_size};

    fn reading(tlb: [u64; 2], faults: i64) -> Reading {
        let rows = BTreeMap::from([(TLB.to_owned(), tlb.to_vec())]);
        let vmstat = [("pgfault", faults), ("nr_free_pages", faults)];
        let vmstat = vmstat.map(|(name, value)| (name.to_owned(), value));
        Reading {
            interrupts: rows,
            vmstat: VmStat(vmstat.into()),
        }
    }

    #[test]
    fn increases_add_up_and_levels_are_left_out() {
        let mut totals = Totals::default();
        assert_eq!(
            totals.add(&reading([5, 7], 10), &reading([6, 9], 15)),
            Some(3)
        );
        assert_eq!(
            totals.add(&reading([9, 9], 20), &reading([9, 10], 20)),
            Some(1)
        );
        assert_eq!(totals.interrupts[TLB], [1, 3]);
        assert_eq!(totals.vmstat, BTreeMap::from([("pgfault".to_owned(), 5)]));
    }

    #[test]
    fn own_faults_show_up() {
        let before = Reading::now().unwrap();
        let page = page_size();
        Mapping::anonymous(64 * page).unwrap().touch(page, 1);
        let mut totals = Totals::default();
        totals.add(&before, &Reading::now().unwrap());
        // The kernel folds per-CPU counters into the file as it is read.
        assert!(totals.vmstat["pgfault"] >= 64, "{totals:?}");
    }
}

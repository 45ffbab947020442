//! Reads events that the kernel counts: the `tlb:tlb_flush` tracepoint by reason, and hardware counters.
//!
//! We open one counting event for each reason and CPU, with a filter in the kernel. So no event is recorded, no buffer
//! overflows, and we need no set-up in the file system: closing the descriptors ends it. We read the numbers of the
//! reasons from the tracepoint's `format`, because kernels have renumbered them.
//!
//! Counting costs about 1 µs for each event, so we do it in an extra pass that isn't timed.

use std::ffi::CString;
use std::io;

use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Event, Hardware, Tracepoint};
use perf_event::{Builder, Counter};
use quell_record::perf::tracefs::Tracefs;

use super::parse;
use super::report::FlushEvents;
use super::sys;

/// A reason that kernels before 6.14 don't have.
const WRONG_CPU: &str = "remote wrong cpu";

/// Filters in the order of the fields of [`FlushEvents`]: the reason's name, and a further condition.
const KINDS: [(&str, &str); 6] = [
    ("flush on task switch", " && pages != 0"),
    ("flush on task switch", " && pages == 0"),
    ("remote shootdown", ""),
    ("local shootdown", ""),
    ("local mm shootdown", ""),
    ("remote ipi send", ""),
];

/// A counter of `tlb:tlb_flush` on this kernel.
pub struct FlushTracepoint {
    id: u64,
    filters: Vec<CString>,
    cpus: Vec<usize>,
}

impl FlushTracepoint {
    /// Finds the tracepoint and opens it once to check the permission.
    ///
    /// # Errors
    /// A sentence with the missing feature and the remedy.
    pub fn find() -> Result<Self, String> {
        let read = |name: &str| {
            read_tracefs(&format!("events/tlb/tlb_flush/{name}")).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => "this kernel or architecture has no tlb:tlb_flush tracepoint".to_owned(),
                _ => format!("tracefs cannot be read ({error}); root (CAP_SYS_ADMIN) can, where the container lets it"),
            })
        };
        let (id, format) = (read("id")?, read("format")?);
        let id = id
            .trim()
            .parse()
            .map_err(|_| format!("tlb:tlb_flush has the id {id:?}, which is no number"))?;
        let reasons = parse::symbolic_values(&format);
        let mut filters = Vec::new();
        for (name, rest) in KINDS {
            let value = reasons
                .get(name)
                .ok_or_else(|| format!("tlb:tlb_flush has no reason {name:?} on this kernel"))?;
            filters.push(format!("reason == {value}{rest}"));
        }
        // A flush of everything has all bits of `pages` set. The kernel counts requests before it chooses targets, so
        // they aren't flushes.
        filters.push(format!(
            "pages == {} && reason != {}",
            u64::MAX,
            reasons["remote ipi send"]
        ));
        if let Some(value) = reasons.get(WRONG_CPU) {
            filters.push(format!("reason == {value}"));
        }
        let filters = filters
            .into_iter()
            .filter_map(|f| CString::new(f).ok())
            .collect();
        let online =
            std::fs::read_to_string("/sys/devices/system/cpu/online").map_err(|e| e.to_string())?;
        let found = Self {
            id,
            filters,
            cpus: parse::number_list(&online),
        };
        found.count().map_err(|error| {
            format!("perf_event_open refuses tlb:tlb_flush ({error}); needs CAP_PERFMON or kernel.perf_event_paranoid = -1")
        })?;
        Ok(found)
    }

    /// Starts counting on all CPUs.
    pub fn count(&self) -> io::Result<FlushCount> {
        let mut counters = Vec::new();
        for filter in &self.filters {
            let mut of_all_cpus = Vec::new();
            for &cpu in &self.cpus {
                let mut builder = Builder::new(Tracepoint::with_id(self.id));
                let mut counter = builder
                    .any_pid()
                    .one_cpu(cpu)
                    .include_kernel()
                    .include_hv()
                    .build()?;
                sys::set_event_filter(&counter, filter)?;
                counter.enable()?;
                of_all_cpus.push(counter);
            }
            counters.push(of_all_cpus);
        }
        Ok(FlushCount(counters))
    }
}

/// Counters that run until dropped.
pub struct FlushCount(Vec<Vec<Counter>>);

impl FlushCount {
    /// Reads the counts so far, on all CPUs.
    pub fn read(&mut self) -> io::Result<FlushEvents> {
        let mut sums = [0.0; KINDS.len() + 2];
        for (sum, counters) in sums.iter_mut().zip(&mut self.0) {
            for counter in counters {
                *sum += counter.read()? as f64;
            }
        }
        let [
            switch_flushed,
            switch_kept,
            remote_received,
            local,
            local_mm,
            remote_requested,
            full,
            wrong_cpu,
        ] = sums;
        Ok(FlushEvents {
            switch_flushed,
            switch_kept,
            remote_received,
            local,
            local_mm,
            remote_requested,
            wrong_cpu: (self.0.len() == sums.len()).then_some(wrong_cpu),
            full,
        })
    }
}

impl FlushEvents {
    /// Applies `f` to each count of two readings.
    pub fn zip(self, other: Self, f: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            switch_flushed: f(self.switch_flushed, other.switch_flushed),
            switch_kept: f(self.switch_kept, other.switch_kept),
            remote_received: f(self.remote_received, other.remote_received),
            local: f(self.local, other.local),
            local_mm: f(self.local_mm, other.local_mm),
            remote_requested: f(self.remote_requested, other.remote_requested),
            wrong_cpu: self.wrong_cpu.zip(other.wrong_cpu).map(|(a, b)| f(a, b)),
            full: f(self.full, other.full),
        }
    }
}

/// Reads a file of tracefs.
fn read_tracefs(name: &str) -> io::Result<String> {
    Tracefs::find().map_err(io::Error::other)?.read(name)
}

/// Hardware counters of the thread that opened them.
pub struct HardwareCount(Vec<(&'static str, Option<Counter>)>);

impl HardwareCount {
    /// Opens the machine's counters; missing ones are `None`.
    pub fn open() -> Self {
        let miss = |which| Cache {
            which,
            operation: CacheOp::READ,
            result: CacheResult::MISS,
        };
        Self(vec![
            ("cycles", open_hardware(Hardware::CPU_CYCLES)),
            ("instructions", open_hardware(Hardware::INSTRUCTIONS)),
            ("dtlb_load_misses", open_hardware(miss(CacheId::DTLB))),
            ("itlb_load_misses", open_hardware(miss(CacheId::ITLB))),
        ])
    }

    /// Returns whether any counter exists.
    pub fn any(&self) -> bool {
        self.0.iter().any(|(_, counter)| counter.is_some())
    }

    /// Reads the counts so far.
    pub fn read(&mut self) -> io::Result<Vec<(&'static str, Option<u64>)>> {
        self.0
            .iter_mut()
            .map(|(name, counter)| Ok((*name, counter.as_mut().map(Counter::read).transpose()?)))
            .collect()
    }
}

fn open_hardware<E: Event + Clone>(event: E) -> Option<Counter> {
    let open = |kernel: bool| {
        let mut builder = Builder::new(event.clone());
        builder.observe_self().any_cpu();
        if kernel {
            builder.include_kernel();
        }
        let mut counter = builder.build()?;
        counter.enable()?;
        io::Result::Ok(counter)
    };
    open(true).or_else(|_| open(false)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Mapping, page_size};
    use rustix::mm::Advice;

    /// This test needs root. Without access to the tracepoint it tests nothing.
    #[test]
    fn a_local_discard_is_counted_and_stops_counting_when_not_made() {
        let Ok(tracepoint) = FlushTracepoint::find() else {
            eprintln!("skipped: tlb:tlb_flush cannot be counted here");
            return;
        };
        let page = page_size();
        let map = Mapping::anonymous(page).unwrap();
        let mut count = tracepoint.count().unwrap();
        for _ in 0..1000 {
            map.touch(page, 1);
            map.advise(0, page, Advice::LinuxDontNeed).unwrap();
        }
        let events = count.read().unwrap();
        let flushed = events.local + events.local_mm;
        assert!(
            flushed >= 1000.0,
            "each discard flushes this CPU: {events:?}"
        );
    }
}

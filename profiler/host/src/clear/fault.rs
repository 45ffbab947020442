//! Measures demand faults of the running kernel: the speed at which it provides zeroed memory.
//!
//! The kernel zeroes each page on its first touch, or all pages at once in a populating call. We check the resulting
//! page size: a kernel without a free huge page silently uses base pages, and the figure would be wrong.

use super::tick;
use crate::memory::Mapping;
use crate::process::own_thread_cpu_time;
use indicatif::ProgressBar;
use quell_workloads::numbers::median;
use rustix::mm::Advice;
use serde::Serialize;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The number of bytes to map and touch for each sample.
const BYTES: usize = 256 << 20;
const HUGE: usize = 2 << 20;

/// One way to get memory from the kernel.
#[derive(Serialize, Clone, Debug)]
pub struct DemandFault {
    /// The requested page size in bytes.
    pub page_bytes: u64,
    /// `touch` (one fault per page) or `populate` (one call).
    pub way: &'static str,
    /// The median in GB/s; absent if the kernel refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbps: Option<f64>,
    /// The reason for a missing figure, or a caution about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[derive(Clone, Copy)]
struct Case {
    page_bytes: usize,
    populate: bool,
    hugetlb: bool,
}

const CASES: &[Case] = &[
    Case { page_bytes: 4096, populate: false, hugetlb: false },
    Case { page_bytes: 4096, populate: true, hugetlb: false },
    Case { page_bytes: HUGE, populate: false, hugetlb: false },
    Case { page_bytes: HUGE, populate: true, hugetlb: false },
    Case { page_bytes: 1 << 30, populate: true, hugetlb: true },
];

/// Measures all cases, interleaved, for about `time` and at least once each.
pub fn measure(time: Duration, progress: &ProgressBar) -> Vec<DemandFault> {
    let deadline = Instant::now() + time.min(Duration::from_secs(5));
    let mut found: Vec<Result<Vec<f64>, String>> = vec![Ok(Vec::new()); CASES.len()];
    for round in 0..7 {
        for (case, result) in CASES.iter().zip(&mut found) {
            if round >= 2 && Instant::now() > deadline {
                break;
            }
            if let Ok(samples) = result {
                match sample(*case) {
                    Ok(gbps) => samples.push(gbps),
                    Err(why) => *result = Err(why),
                }
            }
            tick(progress);
        }
    }
    CASES
        .iter()
        .zip(found)
        .map(|(case, result)| DemandFault {
            page_bytes: case.page_bytes as u64,
            way: if case.populate { "populate" } else { "touch" },
            gbps: result.as_ref().ok().and_then(|s| median(&mut s.clone())),
            note: result.err(),
        })
        .collect()
}

/// Maps, faults everything in, and returns GB/s of the thread's CPU time.
fn sample(case: Case) -> Result<f64, String> {
    let bytes = BYTES.max(case.page_bytes);
    let mapping = if case.hugetlb {
        Mapping::giant(bytes).map_err(|error| {
            format!(
                "no 1 GB page is reserved (as root: echo 1 > /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages): {error}"
            )
        })?
    } else {
        Mapping::anonymous(bytes + HUGE).map_err(|error| format!("cannot map memory: {error}"))?
    };
    let first = mapping.offset_of_aligned(HUGE);
    if case.page_bytes == HUGE {
        mapping
            .advise(first, bytes, Advice::LinuxHugepage)
            .map_err(|error| format!("this kernel provides no transparent huge pages: {error}"))?;
    } else if !case.hugetlb {
        // A kernel without huge pages refuses the advice, and doesn't need it.
        let _ = mapping.advise(first, bytes, Advice::LinuxNoHugepage);
    }
    let before = own_thread_cpu_time();
    if case.populate {
        mapping
            .advise(first, bytes, Advice::LinuxPopulateWrite)
            .map_err(|error| format!("MADV_POPULATE_WRITE (Linux 5.14) is refused: {error}"))?;
    } else {
        for offset in (first..first + bytes).step_by(case.page_bytes) {
            mapping.word(offset).store(1, Ordering::Relaxed);
        }
    }
    let seconds = (own_thread_cpu_time() - before).as_secs_f64();
    let huge = mapping.huge_bytes(first, bytes) as usize;
    if case.page_bytes == HUGE && huge < bytes / 10 * 9 {
        return Err(format!(
            "the kernel provided huge pages for only {} of {} MB",
            huge >> 20,
            bytes >> 20
        ));
    }
    Ok(bytes as f64 / seconds / 1e9)
}

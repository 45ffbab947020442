//! Demand faults of the running kernel: how fast it hands out zeroed memory.
//!
//! The kernel zeroes on the first touch, or all at once when asked to populate. The mapping is
//! checked for what it really got: a kernel that has no huge page to spare silently gives base
//! pages, and the figure would be about something else.

use super::bench::{cpu_time, median};
use super::progress::Progress;
use super::region::huge_bytes;
use serde::Serialize;
use std::time::{Duration, Instant};

/// How much is mapped and touched per sample.
const BYTES: usize = 256 << 20;
/// A huge page.
const HUGE: usize = 2 << 20;

/// One way to get memory from the kernel.
#[derive(Serialize, Clone, Debug)]
pub struct DemandFault {
    /// The page size asked for, in bytes.
    pub page_bytes: u64,
    /// `touch` (one fault per page) or `populate` (one call).
    pub way: &'static str,
    /// GB/s, the median; absent if it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbps: Option<f64>,
    /// Why there is no figure, or what it must not be taken for.
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
    Case {
        page_bytes: 4096,
        populate: false,
        hugetlb: false,
    },
    Case {
        page_bytes: 4096,
        populate: true,
        hugetlb: false,
    },
    Case {
        page_bytes: HUGE,
        populate: false,
        hugetlb: false,
    },
    Case {
        page_bytes: HUGE,
        populate: true,
        hugetlb: false,
    },
    Case {
        page_bytes: 1 << 30,
        populate: true,
        hugetlb: true,
    },
];

/// Measures all cases, interleaved, for about `time` and at least once each.
pub fn measure(time: Duration, progress: &Progress) -> Vec<DemandFault> {
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
            progress.tick();
        }
    }
    CASES
        .iter()
        .zip(found)
        .map(|(case, result)| DemandFault {
            page_bytes: case.page_bytes as u64,
            way: if case.populate { "populate" } else { "touch" },
            gbps: result.as_ref().ok().map(|s| median(&mut s.clone())),
            note: result.err(),
        })
        .collect()
}

/// A mapping that goes away with the value.
struct Mapping(*mut u8, usize);

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmaps what was mapped for this value.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

fn os_error(what: &str) -> String {
    format!("{what}: {}", std::io::Error::last_os_error())
}

/// Maps, faults everything in, and returns GB/s of the thread's CPU time.
fn sample(case: Case) -> Result<f64, String> {
    let bytes = BYTES.max(case.page_bytes);
    let mut flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    if case.hugetlb {
        flags |= libc::MAP_HUGETLB | libc::MAP_HUGE_1GB;
    }
    let slack = if case.hugetlb { 0 } else { HUGE };
    // SAFETY: a new private mapping at an address of the kernel's choice.
    let start = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), bytes + slack, access, flags, -1, 0)
    };
    if start == libc::MAP_FAILED {
        return Err(if case.hugetlb {
            os_error(
                "no 1 GB page is set aside (root: echo 1 > /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages)",
            )
        } else {
            os_error("cannot map memory")
        });
    }
    let mapping = Mapping(start.cast(), bytes + slack);
    // SAFETY: there is slack enough in the mapping to align by.
    let at = unsafe {
        mapping.0.add(if slack > 0 {
            mapping.0.align_offset(HUGE)
        } else {
            0
        })
    };
    if !case.hugetlb {
        let advice = if case.page_bytes == HUGE {
            libc::MADV_HUGEPAGE
        } else {
            libc::MADV_NOHUGEPAGE
        };
        // SAFETY: advice about our own mapping.
        if unsafe { libc::madvise(at.cast(), bytes, advice) } != 0 && case.page_bytes == HUGE {
            return Err(os_error("this kernel gives no transparent huge pages"));
        }
    }
    let before = cpu_time();
    if case.populate {
        // SAFETY: asks the kernel to fault our own mapping in.
        if unsafe { libc::madvise(at.cast(), bytes, libc::MADV_POPULATE_WRITE) } != 0 {
            return Err(os_error("MADV_POPULATE_WRITE (Linux 5.14) is refused"));
        }
    } else {
        for offset in (0..bytes).step_by(case.page_bytes) {
            // SAFETY: within the mapping.
            unsafe { at.add(offset).write_volatile(1) };
        }
    }
    let seconds = (cpu_time() - before).as_secs_f64();
    let huge = huge_bytes(at, bytes as u64);
    if case.page_bytes == HUGE && huge < bytes as u64 / 10 * 9 {
        return Err(format!(
            "the kernel gave huge pages for only {} of {} MB",
            huge >> 20,
            bytes >> 20
        ));
    }
    Ok(bytes as f64 / seconds / 1e9)
}

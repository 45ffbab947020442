//! Measures clearing an extent, then reading the page that faulted.
//!
//! Clearing around the caches gains little if the program then misses on that page. Each sample clears an extent with a
//! fault at a place of its own, then reads the faulting page and its neighbours. There are three ways: with plain
//! stores through the caches; as the engine's planner does, with the neighbourhood last and hot; and around the caches
//! throughout, which shows whether the planner's order helps.

use super::contender::sum;
use super::region::Region;
use super::tick;
use indicatif::ProgressBar;
use quell::{Extent, Frame, PAGE_BYTES};
use quell_workloads::numbers::median;
use quell_zero::{ClearPolicy, Plan, Strategy};
use serde::Serialize;
use std::time::{Duration, Instant};

/// The lengths of extents that fault in.
const SIZES: &[u64] = &[4 << 10, 64 << 10, 2 << 20];

/// The medians of one way at one length, in nanoseconds.
#[derive(Serialize, Clone, Debug)]
pub struct ClearReadTimes {
    /// The length of the extent.
    pub bytes: u64,
    /// `stores`, `planned` or `bypassing`.
    pub way: &'static str,
    /// The time to clear the extent.
    pub clear_ns: f64,
    /// The time to read the faulting page and its neighbours.
    pub read_ns: f64,
    /// The sum of both.
    pub total_ns: f64,
}

/// Measures all ways and lengths, interleaved, for about `time`.
pub fn measure(
    region: &mut Region,
    plan: &Plan,
    time: Duration,
    progress: &ProgressBar,
) -> Vec<ClearReadTimes> {
    let planned = ClearPolicy::preemptible(*plan);
    let stores = ClearPolicy::preemptible(Plan::uniform(Strategy::Stores));
    // In the order of the table, with the reference first.
    let ways =
        [("stores", &stores, false), ("planned", &planned, true), ("bypassing", &planned, false)];
    let mut samples = vec![(Vec::new(), Vec::new(), Vec::new()); SIZES.len() * ways.len()];
    let deadline = Instant::now() + time;
    let mut round = 0usize;
    while round < 3 || Instant::now() < deadline {
        for (s, &bytes) in SIZES.iter().enumerate() {
            for turn in 0..ways.len() {
                let w = (turn + round) % ways.len();
                let (_, policy, tell) = ways[w];
                let extents = ((4 << 20) / bytes).clamp(4, 64);
                let (mut clear, mut read) = (Duration::ZERO, Duration::ZERO);
                for i in 0..extents {
                    let start = region.span(bytes);
                    let frames = bytes / PAGE_BYTES;
                    // The place must differ from sample to sample, and be the same for all ways.
                    let fault = (i * 7919 + round as u64 * 104_729) % frames;
                    let (cleared, was_read) = one(start, frames, fault, policy, tell);
                    clear += cleared;
                    read += was_read;
                }
                let per = |d: Duration| d.as_nanos() as f64 / extents as f64;
                let into = &mut samples[s * ways.len() + w];
                into.0.push(per(clear));
                into.1.push(per(read));
                into.2.push(per(clear + read));
            }
        }
        round += 1;
        tick(progress);
    }
    let cells = SIZES.iter().flat_map(|&b| ways.iter().map(move |w| (b, w.0)));
    cells
        .zip(&mut samples)
        .map(|((bytes, way), (clear, read, total))| ClearReadTimes {
            bytes,
            way,
            clear_ns: median(clear).unwrap_or(0.0),
            read_ns: median(read).unwrap_or(0.0),
            total_ns: median(total).unwrap_or(0.0),
        })
        .collect()
}

/// Measures one extent: the time to clear it, and the time to read the neighbourhood.
fn one(
    start: *mut u8,
    frames: u64,
    fault: u64,
    policy: &ClearPolicy,
    tell: bool,
) -> (Duration, Duration) {
    let extent = Extent { first: Frame(0), frames };
    let (from, to) =
        (fault.saturating_sub(policy.neighbours), (fault + policy.neighbours + 1).min(frames));
    let begun = Instant::now();
    for piece in policy.pieces(extent, tell.then_some(Frame(fault))) {
        // SAFETY: a piece is within the extent, which starts at `start` and is as long as the span; plans hold only
        // available strategies.
        unsafe {
            let at = start.add(piece.extent.first.address() as usize);
            quell_arch::zero::zero(at, piece.extent.bytes() as usize, piece.strategy);
        }
    }
    let cleared = Instant::now();
    // SAFETY: the neighbourhood is within the extent.
    let read = unsafe { sum(start.add((from * PAGE_BYTES) as usize), (to - from) * PAGE_BYTES) };
    std::hint::black_box(read);
    (cleared - begun, cleared.elapsed())
}

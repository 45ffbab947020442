//! Measures the speed of zeroing memory on this machine, and the engine's choices from it.
//!
//! We compare contenders side by side: every round visits every contender at every length, in another order each time.
//! A figure is the median of its samples. We count the thread's time on its CPU, so other programs on the machine
//! matter only by their effect on caches and memory. Every sample clears memory that was last touched a whole region
//! ago, so that no line of it is in the caches by accident.
//!
//! The measurement doesn't cover kernels that can't use vector registers (`--no-vectors` does), clearing across NUMA
//! nodes, or memory mapped in other page sizes than that of the region, which is printed.

mod bench;
mod contender;
pub mod fault;
pub mod plot;
pub mod read;
mod region;
pub mod report;

use crate::processor::Processor;
use anyhow::{Context, Result};
use bench::{Bench, Cell};
use contender::{Contender, FILLS};
use indicatif::{ProgressBar, ProgressStyle};
use quell_threads::cores;
use quell_workloads::numbers::median;
use quell_zero::{Caches, Chooser, Plan, Temperature};
use report::{AllCores, PlanChoice, Report, Row};
use std::time::{Duration, Instant};

/// The extent lengths to measure.
const SIZES: &[u64] = &[
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    2 << 20,
    8 << 20,
    32 << 20,
    128 << 20,
    512 << 20,
    1 << 30,
];

/// The measurements, and their duration.
#[derive(Clone, Debug)]
pub struct Options {
    /// The length of the longest extent in bytes, at least 64 KB: below, strategies don't differ. Each CPU needs that
    /// much memory.
    pub max_bytes: u64,
    /// The time to measure. More time gives more samples.
    pub budget: Duration,
    /// Whether to leave out strategies that overwrite vector registers, as for kernels that don't save these.
    pub no_vectors: bool,
}

/// Shares of the time that the parts of the measurement get, in percent.
const CALIBRATION: u32 = 15;
const ONE_CORE: u32 = 45;
const ALL_CORES: u32 = 20;
const READ: u32 = 10;

/// Measures all contenders, one core and all cores.
///
/// # Errors
///
/// If there isn't enough memory for the smallest region.
pub fn measure(args: &Options) -> Result<Report> {
    let started = Instant::now();
    let budget = args.budget;
    let share = |percent: u32| budget * percent / 100;
    let progress = ProgressBar::new(budget.as_millis() as u64)
        .with_style(ProgressStyle::with_template("{wide_bar} {elapsed_precise}  {msg}")?);
    let say = |what| {
        progress.set_message(what);
        tick(&progress);
    };
    let mut available = quell_arch::zero::available();
    if args.no_vectors {
        available = available.without_vectors();
    }
    let caches = host_caches();
    let chooser = Chooser { available, caches };

    say("taking memory");
    let cpus = cores::allowed().context("cannot read the CPU affinity")?;
    let mut bench = Bench::new(&cpus, args.max_bytes, caches.last)?;

    let sizes = |most: u64| -> Vec<u64> {
        let most = most.min(args.max_bytes);
        SIZES.iter().copied().filter(|&s| s <= most).collect()
    };
    say("calibrating");
    let calibration_started = Instant::now();
    let lengths = sizes(bench.region_bytes());
    let samples = bench.calibrate(&available, &lengths, share(CALIBRATION), &progress)?;
    let calibration_ms = calibration_started.elapsed().as_secs_f64() * 1e3;
    let by_rule = chooser.defaults();
    let plan = chooser.calibrated(&by_rule, &samples);

    let contenders: Vec<Contender> = available
        .iter()
        .map(Contender::Clear)
        .chain([Contender::Memset, Contender::PageByPage])
        .collect();
    say("one core");
    let one = bench.run(
        1,
        &sizes(bench.region_bytes()),
        &contenders,
        FILLS,
        share(ONE_CORE),
        &progress,
    )?;
    let all = if cpus.len() > 1 {
        say("all cores");
        let sizes = sizes(bench.region_bytes());
        let all = share(ALL_CORES);
        let cells = bench.run(cpus.len(), &sizes, &contenders, FILLS, all, &progress)?;
        Some(AllCores {
            cores: cpus.len(),
            peak_write_gbps: peak(&cells),
            page_by_page_gbps: page_by_page(&cells),
            chosen: chosen(&cells, &plan),
            memset: rows(&cells, |c| c == Contender::Memset),
            rows: rows(&cells, |c| matches!(c, Contender::Clear(_))),
        })
    } else {
        None
    };
    say("clear, then read");
    let reads = bench.with_region(|region| read::measure(region, &plan, share(READ), &progress));
    let huge_share = bench.huge_share();
    drop(bench);
    say("demand faults");
    let faults = fault::measure(budget.saturating_sub(started.elapsed()), &progress);
    progress.finish_and_clear();

    let mut report = Report {
        peak_write_gbps: peak(&one),
        rows: rows(&one, |c| matches!(c, Contender::Clear(_))),
        chosen: chosen(&one, &plan),
        page_by_page_gbps: page_by_page(&one),
        page_by_page: rows(&one, |c| c == Contender::PageByPage),
        memset: rows(&one, |c| c == Contender::Memset),
        all_cores: all,
        clear_then_read: reads,
        demand_fault: faults,
        verdicts: Vec::new(),
        cpu: Processor::of_this_host().model.unwrap_or_else(|| std::env::consts::ARCH.into()),
        caches: [caches.l1d, caches.l2, caches.last],
        huge_page_share: huge_share,
        plan: report::PlanTable::new(&plan, &by_rule),
        calibration_ms,
        seconds: 0.0,
    };
    report.verdicts = report.judge();
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

/// Moves the bar to the time since its beginning.
fn tick(progress: &ProgressBar) {
    progress.set_position(progress.elapsed().as_millis() as u64);
}

/// Returns the figures of the cells whose contender `wanted` accepts.
fn rows(cells: &[Cell], wanted: impl Fn(Contender) -> bool) -> Vec<Row> {
    cells
        .iter()
        .filter(|c| wanted(c.contender) && !c.samples.is_empty())
        .map(|c| Row {
            bytes: c.bytes,
            strategy: c.contender.name(),
            gbps: c.median(),
            samples: c.samples.len(),
        })
        .collect()
}

/// Returns the plan's choice for each length, with its measured figure.
fn chosen(cells: &[Cell], plan: &Plan) -> Vec<PlanChoice> {
    cells
        .iter()
        .filter(|c| {
            c.contender == Contender::Clear(plan.strategy(Temperature::Bypassing, c.bytes))
                && !c.samples.is_empty()
        })
        .map(|c| PlanChoice { bytes: c.bytes, strategy: c.contender.name(), gbps: c.median() })
        .collect()
}

/// Returns the baseline's speed.
///
/// It clears 4 KB at a time at each length, so we take the median over all lengths.
fn page_by_page(cells: &[Cell]) -> f64 {
    let medians = cells
        .iter()
        .filter(|c| c.contender == Contender::PageByPage && !c.samples.is_empty())
        .map(Cell::median);
    median(&mut medians.collect::<Vec<_>>()).unwrap_or(0.0)
}

/// Returns the greatest speed of writing runs of the greatest length.
///
/// It covers zeros by each contender, and bytes that aren't zero by glibc `memset` and streaming stores.
fn peak(cells: &[Cell]) -> f64 {
    let longest = cells.iter().map(|c| c.bytes).max().unwrap_or(0);
    cells
        .iter()
        .filter(|c| c.bytes == longest && !c.samples.is_empty())
        .map(Cell::median)
        .fold(0.0, f64::max)
}

/// Returns the cache sizes, from the processor or else from Linux's data about CPU 0.
fn host_caches() -> Caches {
    let mut caches = quell_arch::zero::caches();
    if caches != Caches::default() {
        return caches;
    }
    for index in 0..8 {
        let read = |name: &str| {
            let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}");
            std::fs::read_to_string(path).ok()
        };
        let (Some(level), Some(kind), Some(size)) = (read("level"), read("type"), read("size"))
        else {
            break;
        };
        if kind.trim() == "Instruction" {
            continue;
        }
        let kilobytes: u64 = size.trim().trim_end_matches('K').parse().unwrap_or(0);
        let bytes = kilobytes << 10;
        match level.trim() {
            "1" => caches.l1d = bytes,
            "2" => caches.l2 = bytes,
            _ => {}
        }
        caches.last = caches.last.max(bytes);
    }
    caches
}

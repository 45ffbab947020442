//! Runs rounds of samples: each round visits every contender at every length, in a new random order.

use super::contender::Contender;
use super::region::{HUGE, Region};
use super::tick;
use crate::process::own_thread_cpu_time;
use anyhow::{Result, bail};
use indicatif::ProgressBar;
use procfs_core::{FromRead, Meminfo};
use quell_workloads::numbers::median;
use quell_zero::{Sample, StrategySet, Temperature};
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use quell_threads::{cores, pulse};

/// The least number of bytes that one sample clears, in extents of its length.
const SPAN: u64 = 8 << 20;
/// The longest sample that pulses before and after can characterize: about a millisecond.
const PULSED: u64 = 32 << 20;
/// The least number of samples for a decision. With fewer, the plan clears the length like shorter ones. For example,
/// on a busy machine the longest lengths get few samples, none of them quiet.
const FEW: usize = 5;

/// Lengths that are read next: one page, and a faulting page with its neighbours.
const HOT: &[u64] = &[4 << 10, 20 << 10];

/// The samples of one contender at one length, in GB/s (10^9 bytes).
pub struct Cell {
    pub bytes: u64,
    pub contender: Contender,
    /// The samples, each with the slowest of the [pulses](pulse) around it on the CPUs that took it.
    pub samples: Vec<(f64, f64)>,
}

impl Cell {
    pub fn median(&self) -> f64 {
        let mut speeds: Vec<f64> = self.samples.iter().map(|&(_, speed)| speed).collect();
        median(&mut speeds).unwrap_or(0.0)
    }

    /// Returns the median for a calibration, or `None` if the contender isn't a strategy or has [too few](FEW) samples.
    fn sample(&self) -> Option<Sample> {
        let (strategy, temperature) = match self.contender {
            Contender::Clear(strategy) => (strategy, Temperature::Bypassing),
            Contender::ClearAndRead(strategy) => (strategy, Temperature::Hot),
            _ => return None,
        };
        let picoseconds = self.bytes as f64 / self.median() * 1e3;
        (self.samples.len() >= FEW).then_some(Sample {
            strategy,
            temperature,
            bytes: self.bytes,
            ticks: picoseconds as u64,
        })
    }
}

/// Keeps only the samples of each cell that had their cores alone, if there are enough. We keep all samples of longer
/// extents, because pulses can't judge them.
fn keep_quiet(cells: &mut [Cell]) {
    let pulses = cells.iter().flat_map(|c| &c.samples);
    let Some(own) = pulse::longest_own(pulses.map(|&(pulse, _)| pulse)) else {
        return;
    };
    for cell in cells.iter_mut().filter(|c| c.bytes <= PULSED) {
        let samples = cell.samples.iter().map(|&sample| (sample.0, sample));
        match pulse::quiet(samples, own) {
            Some(quiet) if quiet.own_core => cell.samples = quiet.values,
            _ => {}
        }
    }
}

/// Returns the cells of one length in random order.
///
/// A contender leaves dirty lines in the caches. So in a fixed order, however we rotated it, some contenders would
/// always run after the one that leaves most.
fn shuffled<'a>(cells: &'a mut [Cell], bytes: u64, order: &mut Pcg64) -> Vec<&'a mut Cell> {
    let mut turn: Vec<_> = cells.iter_mut().filter(|c| c.bytes == bytes).collect();
    turn.shuffle(order);
    turn
}

/// Runs a function for each value on its CPU, on all of them at once. If the system refuses to pin a thread, samples are
/// only noisier.
fn on_each<V: Send, T: Send>(
    values: impl IntoIterator<Item = (usize, V)>,
    run: impl Fn(V) -> T + Sync,
) -> Vec<T> {
    let run = &run;
    std::thread::scope(|scope| {
        let pinned = |(cpu, value)| {
            scope.spawn(move || {
                let _ = cores::pin(&[cpu]);
                run(value)
            })
        };
        let threads: Vec<_> = values.into_iter().map(pinned).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// One region for each CPU, and the rounds over them.
pub struct Bench {
    cpus: Vec<usize>,
    regions: Vec<Region>,
}

impl Bench {
    /// Allocates memory for each CPU.
    ///
    /// The memory is enough for `max_bytes` and for several times the last-level cache, but we take at most half of the
    /// free memory.
    pub fn new(cpus: &[usize], max_bytes: u64, last_level: u64) -> Result<Self> {
        let wanted = max_bytes.max((4 * last_level).clamp(256 << 20, 1 << 30));
        let free = available_memory().unwrap_or(u64::MAX);
        let each = wanted.min(free / 2 / cpus.len() as u64) & !(HUGE - 1);
        if each < 2 * SPAN {
            bail!(
                "{} MB of memory are available for {} CPUs, but {} MB are needed: run on fewer CPUs \
                 (taskset)",
                free >> 20,
                cpus.len(),
                (cpus.len() as u64 * 4 * SPAN) >> 20
            );
        }
        let regions = on_each(cpus.iter().map(|&cpu| (cpu, each)), Region::new);
        Ok(Bench { cpus: cpus.to_vec(), regions: regions.into_iter().collect::<Result<_>>()? })
    }

    pub fn region_bytes(&self) -> u64 {
        self.regions[0].bytes
    }

    /// Returns the share of the regions that is mapped with huge pages, 0 to 1.
    pub fn huge_share(&self) -> f64 {
        let huge: u64 = self.regions.iter().map(Region::huge_bytes).sum();
        huge as f64 / (self.region_bytes() * self.regions.len() as u64) as f64
    }

    pub fn with_region<T: Send>(&mut self, f: impl Fn(&mut Region) -> T + Sync) -> T {
        on_each([(self.cpus[0], &mut self.regions[0])], f).remove(0)
    }

    /// Measures the samples for [`Chooser::calibrated`](quell_zero::Chooser::calibrated), in rounds like the
    /// comparison.
    ///
    /// We measure memory that isn't read next at each of `sizes`, and memory that is read next at lengths of its own.
    ///
    /// There is one sample for each strategy and length: the median of the quiet ones. Each clears as much as a sample
    /// of the comparison. We don't measure bursts of a few extents, because they'd show how much the caches and the
    /// memory controller can absorb. We don't take the fastest sample either, because it would show luck.
    pub fn calibrate(
        &mut self,
        available: &StrategySet,
        sizes: &[u64],
        time: Duration,
        progress: &ProgressBar,
    ) -> Result<Vec<Sample>> {
        let around: Vec<_> = available.iter().map(Contender::Clear).collect();
        let hot = available.iter().filter(|strategy| strategy.keeps_hot());
        let hot: Vec<_> = hot.map(Contender::ClearAndRead).collect();
        let mut cells = self.run(1, sizes, &around, &[], time * 4 / 5, progress)?;
        cells.extend(self.run(1, HOT, &hot, &[], time / 5, progress)?);
        Ok(cells.iter().filter_map(Cell::sample).collect())
    }

    /// Measures all contenders and lengths in rounds on the first `cores` CPUs, for about `time`. The contenders
    /// `at_longest` take part only at the greatest length.
    ///
    /// Every cell gets at least one sample; long extents are visited less often than short ones.
    /// A sample on several CPUs is the sum over them, each on its own region at the same time.
    pub fn run(
        &mut self,
        cores: usize,
        sizes: &[u64],
        contenders: &[Contender],
        at_longest: &[Contender],
        time: Duration,
        progress: &ProgressBar,
    ) -> Result<Vec<Cell>> {
        let Some(&longest) = sizes.last() else {
            bail!("the region is too small for any extent");
        };
        let mut cells: Vec<Cell> = sizes
            .iter()
            .flat_map(|&bytes| {
                let more = if bytes == longest { at_longest } else { &[] };
                contenders.iter().chain(more).map(move |&contender| Cell {
                    bytes,
                    contender,
                    samples: Vec::new(),
                })
            })
            .collect();
        let deadline = Instant::now() + time;
        let mut order = Pcg64::new(0, 0);
        for round in 0.. {
            for &bytes in sizes {
                // We give the longest extents together as much time as the short ones.
                let every = (bytes / SPAN).clamp(1, 16) as usize;
                if round % every != 0 {
                    continue;
                }
                if round > 0 && Instant::now() > deadline {
                    keep_quiet(&mut cells);
                    return Ok(cells);
                }
                let mut turn = shuffled(&mut cells, bytes, &mut order);
                self.visit(cores, bytes, &mut turn);
                tick(progress);
            }
        }
        Ok(cells)
    }

    /// Takes one sample for each of the cells, all of the same length.
    fn visit(&mut self, cores: usize, bytes: u64, turn: &mut [&mut Cell]) {
        let order: Vec<Contender> = turn.iter().map(|c| c.contender).collect();
        let barrier = Barrier::new(cores);
        let one = |region: &mut Region, contender: Contender| {
            let extents = (SPAN / bytes).max(1);
            let start = region.span(extents * bytes);
            barrier.wait();
            let pulse = pulse::take();
            let before = own_thread_cpu_time();
            for i in 0..extents {
                // SAFETY: within the span, which only this thread uses; only available strategies take part.
                unsafe { contender.write(start.add((i * bytes) as usize), bytes) };
            }
            let seconds = (own_thread_cpu_time() - before).as_secs_f64();
            let speed = (extents * bytes) as f64 / seconds / 1e9;
            (pulse.max(pulse::take()), speed)
        };
        let regions = self.cpus[..cores].iter().copied().zip(&mut self.regions);
        let taken: Vec<Vec<(f64, f64)>> = on_each(regions, |region| {
            order.iter().map(|&contender| one(region, contender)).collect()
        });
        for (i, cell) in turn.iter_mut().enumerate() {
            let all = || taken.iter().map(|one| one[i]);
            let pulse = all().map(|(pulse, _)| pulse).fold(0.0, f64::max);
            cell.samples.push((pulse, all().map(|(_, speed)| speed).sum()));
        }
    }
}

/// Returns the bytes that are available without swapping, by Linux's estimate.
fn available_memory() -> Option<u64> {
    Meminfo::from_file("/proc/meminfo").ok()?.mem_available
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clear::contender::FILLS;
    use quell_zero::Strategy;

    #[test]
    fn every_cell_gets_a_sample_even_without_time() {
        let cpus = cores::allowed().unwrap();
        let mut bench = Bench::new(&cpus[..1], 1 << 20, 0).unwrap();
        let contenders = [Contender::Clear(Strategy::Stores), Contender::Memset];
        let cells = bench
            .run(1, &[4 << 10, 1 << 20], &contenders, FILLS, Duration::ZERO, &ProgressBar::hidden())
            .unwrap();
        assert_eq!(cells.len(), 2 * contenders.len() + FILLS.len());
        assert!(cells.iter().all(|c| c.samples.len() == 1 && c.median() > 0.0));
    }

    #[test]
    fn every_contender_comes_after_every_other() {
        let names = [
            Contender::Memset,
            Contender::PageByPage,
            Contender::FillMemset,
            Contender::FillStream,
        ];
        let mut cells: Vec<Cell> =
            names.map(|contender| Cell { bytes: 4 << 10, contender, samples: Vec::new() }).into();
        let mut order = Pcg64::new(0, 0);
        let mut followed = std::collections::BTreeSet::new();
        for _ in 0..100 {
            let turn = shuffled(&mut cells, 4 << 10, &mut order);
            assert_eq!(turn.len(), names.len());
            for pair in turn.windows(2) {
                followed.insert((pair[0].contender.name(), pair[1].contender.name()));
            }
        }
        assert_eq!(followed.len(), names.len() * (names.len() - 1));
    }

    #[test]
    fn a_calibration_has_one_sample_for_each_strategy_and_length_that_was_measured_enough() {
        let cell = |contender, bytes, samples| Cell {
            bytes,
            contender,
            samples: vec![(1.0, 50.0); samples],
        };
        let strategy = Strategy::NonTemporal128;
        let cells = [
            cell(Contender::Clear(strategy), 4 << 10, FEW),
            cell(Contender::Clear(strategy), 1 << 30, FEW - 1),
            cell(Contender::ClearAndRead(Strategy::Stores), 4 << 10, FEW),
            cell(Contender::Memset, 4 << 10, FEW),
        ];
        let found: Vec<_> = cells
            .iter()
            .filter_map(Cell::sample)
            .map(|s| (s.strategy, s.temperature, s.bytes, s.ticks))
            .collect();
        let ticks = 4096 * 1000 / 50;
        assert_eq!(
            found,
            [
                (strategy, Temperature::Bypassing, 4 << 10, ticks),
                (Strategy::Stores, Temperature::Hot, 4 << 10, ticks),
            ]
        );
    }

    #[test]
    fn a_calibration_goes_by_the_median_of_quiet_samples() {
        let mut cells = [Cell {
            bytes: 64 << 10,
            contender: Contender::Clear(Strategy::Clzero),
            // The core's other thread was busy during most samples, and one sample was lucky.
            samples: [(2.0, 20.0); 9]
                .into_iter()
                .chain([(1.0, 70.0), (1.0, 71.0), (1.0, 69.0), (1.05, 70.0), (1.0, 120.0)])
                .collect(),
        }];
        keep_quiet(&mut cells);
        let ticks = cells[0].sample().map(|sample| sample.ticks);
        assert_eq!(ticks, Some((64 << 10) * 1000 / 70));
    }
}

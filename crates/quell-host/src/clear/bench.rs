//! Regions of memory, the contenders that clear them, and rounds of samples.

use super::Progress;
use anyhow::{Context, Result, bail};
use quell_zero::{Available, Sample, Strategy, Temperature};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use quell_threads::pulse;

/// How much one sample clears at least, in extents of its length.
const SPAN: u64 = 8 << 20;
/// A huge page, to which regions are aligned.
const HUGE: u64 = 2 << 20;
/// A base page.
const PAGE: u64 = 4096;

/// A private mapping of zeroed memory, aligned to huge pages and present.
pub struct Region {
    mapping: *mut u8,
    mapped: usize,
    start: *mut u8,
    bytes: u64,
    /// Where the next sample begins.
    cursor: u64,
}

// SAFETY: a region is plain memory that it owns; nothing about it belongs to one thread.
unsafe impl Send for Region {}

impl Region {
    /// Maps `bytes`, a multiple of 2 MB, asks for huge pages and touches every page.
    fn new(bytes: u64) -> Result<Self> {
        let mapped = usize::try_from(bytes + HUGE)?;
        // SAFETY: a new private mapping at an address of the kernel's choice.
        let mapping = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if mapping == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error())
                .with_context(|| format!("cannot map {} MB", bytes >> 20));
        }
        let mapping: *mut u8 = mapping.cast();
        // SAFETY: the mapping is longer than the region by one huge page.
        let start = unsafe { mapping.add(mapping.align_offset(HUGE as usize)) };
        let mut region = Region {
            mapping,
            mapped,
            start,
            bytes,
            cursor: 0,
        };
        // SAFETY: the region's own memory. Where huge pages are refused, base pages serve, and
        // `huge_bytes` tells.
        unsafe { libc::madvise(start.cast(), bytes as usize, libc::MADV_HUGEPAGE) };
        let all = region.span(bytes);
        // SAFETY: the region's own memory, to which nobody else has a pointer.
        unsafe { libc::memset(all.cast(), 0xa5, bytes as usize) };
        Ok(region)
    }

    /// Memory for the next sample: `bytes` that no sample of the last turn around has touched.
    pub fn span(&mut self, bytes: u64) -> *mut u8 {
        assert!(bytes <= self.bytes);
        if self.cursor + bytes > self.bytes {
            self.cursor = 0;
        }
        // SAFETY: within the region by the check above.
        let at = unsafe { self.start.add(self.cursor as usize) };
        // Keep spans aligned to huge pages whatever their length.
        self.cursor = (self.cursor + bytes).next_multiple_of(HUGE);
        at
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `new` mapped; no pointer into it outlives the region's user.
        unsafe { libc::munmap(self.mapping.cast(), self.mapped) };
    }
}

/// A way to write memory that takes part in the comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contender {
    /// A strategy of the engine, told the length of the extent.
    Clear(Strategy),
    /// glibc's `memset` with zero, told the length of the extent.
    Memset,
    /// The string instruction, 4 KB at a time: the baseline kernel.
    PageByPage,
    /// glibc's `memset` with a byte that is not zero: for the peak only.
    FillMemset,
    /// Streaming stores of 128 bits that are not zero: for the peak only.
    FillStream,
}

impl Contender {
    /// The name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Contender::Clear(strategy) => strategy.name(),
            Contender::Memset => "memset",
            Contender::PageByPage => "page-by-page",
            Contender::FillMemset => "fill-memset",
            Contender::FillStream => "fill-stream",
        }
    }

    /// Writes `bytes` from `start`.
    ///
    /// # Safety
    ///
    /// The memory is valid for writes and nobody else accesses it; a strategy is available here.
    unsafe fn write(self, start: *mut u8, bytes: u64) {
        let length = bytes as usize;
        // SAFETY: passed on to the caller.
        unsafe {
            match self {
                Contender::Clear(strategy) => quell_arch::zero::zero(start, length, strategy),
                Contender::Memset => {
                    libc::memset(start.cast(), 0, length);
                }
                Contender::PageByPage => {
                    for page in (0..length).step_by(PAGE as usize) {
                        clear_page(start.add(page));
                    }
                }
                Contender::FillMemset => {
                    libc::memset(start.cast(), 0x5a, length);
                }
                Contender::FillStream => stream(start, length),
            }
        }
    }
}

/// What a kernel without extents calls for each page.
///
/// # Safety
///
/// The page is valid for writes and nobody else accesses it.
#[inline(never)]
unsafe fn clear_page(page: *mut u8) {
    let strategy = if cfg!(target_arch = "aarch64") {
        Strategy::DcZva
    } else {
        Strategy::RepStosq
    };
    // SAFETY: passed on; `rep stosq` is part of x86-64, and Linux on Arm needs `dc zva` itself.
    unsafe { quell_arch::zero::zero(page, PAGE as usize, strategy) }
}

/// Streaming stores of something that is not zero.
///
/// # Safety
///
/// The memory is valid for writes, aligned to 16 bytes and as long as a multiple of them, and
/// nobody else accesses it.
unsafe fn stream(start: *mut u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 is part of x86-64; the addresses lie within the run.
    unsafe {
        use std::arch::x86_64::{_mm_set1_epi8, _mm_sfence, _mm_stream_si128};
        let value = _mm_set1_epi8(0x5a);
        for at in (0..bytes).step_by(16) {
            _mm_stream_si128(start.add(at).cast(), value);
        }
        _mm_sfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: passed on to the caller.
    unsafe {
        libc::memset(start.cast(), 0x5a, bytes);
    }
}

/// Who takes part at the greatest length only, for the peak.
const FILLS: &[Contender] = &[Contender::FillMemset, Contender::FillStream];

/// The samples of one contender at one length, in GB/s (10^9 bytes).
pub struct Cell {
    /// The length of the extents.
    pub bytes: u64,
    /// Who wrote them.
    pub contender: Contender,
    /// The samples, each with the slowest of the [pulses](pulse) around it on the CPUs that took it.
    pub samples: Vec<(f64, f64)>,
}

impl Cell {
    /// The median of the samples.
    pub fn median(&self) -> f64 {
        let mut speeds: Vec<f64> = self.samples.iter().map(|&(_, speed)| speed).collect();
        median(&mut speeds)
    }
}

/// Leaves each cell the samples in which nobody else was on the cores, if there are enough. Samples of longer extents
/// take so long that pulses before and after tell nothing about them: they stay.
fn keep_quiet(cells: &mut [Cell]) {
    let pulses = cells.iter().flat_map(|c| &c.samples);
    let Some(own) = pulse::longest_own(pulses.map(|&(pulse, _)| pulse)) else {
        return;
    };
    for cell in cells.iter_mut().filter(|c| c.bytes <= SPAN) {
        let samples = cell.samples.iter().map(|&sample| (sample.0, sample));
        match pulse::quiet(samples, own) {
            Some(quiet) if quiet.own_core => cell.samples = quiet.values,
            _ => {}
        }
    }
}

/// The median; sorts its argument. Zero for nothing.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// The time this thread has spent on a CPU.
pub fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the structure it is given; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The CPUs this process may run on.
pub fn allowed_cpus() -> Result<Vec<usize>> {
    // SAFETY: a CPU set is a plain array of bits, for which all zeros is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: writes at most the size it is given.
    let failed = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } != 0;
    if failed {
        return Err(std::io::Error::last_os_error()).context("cannot read the CPU affinity");
    }
    // SAFETY: the index is below the size of the set.
    let cpus = (0..libc::CPU_SETSIZE as usize).filter(|&c| unsafe { libc::CPU_ISSET(c, &set) });
    Ok(cpus.collect())
}

/// Keeps the calling thread on one CPU. Where that is refused, the samples are only noisier.
fn pin(cpu: usize) {
    // SAFETY: as in `allowed_cpus`; the CPU came from there, so it is below the size of the set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

/// One region for each CPU, and the rounds over them.
pub struct Bench {
    cpus: Vec<usize>,
    regions: Vec<Region>,
}

impl Bench {
    /// Takes memory: for each CPU enough for `max_bytes`, and several times the last-level cache,
    /// as far as half of what is free allows.
    pub fn new(cpus: &[usize], max_bytes: u64, last_level: u64) -> Result<Self> {
        let wanted = max_bytes.max((4 * last_level).clamp(256 << 20, 1 << 30));
        let free = available_memory().unwrap_or(u64::MAX);
        let each = wanted.min(free / 2 / cpus.len() as u64) & !(HUGE - 1);
        if each < 2 * SPAN {
            bail!(
                "{} MB of memory are available for {} CPUs; at least {} MB are needed \
                 (run it on fewer CPUs with taskset)",
                free >> 20,
                cpus.len(),
                (cpus.len() as u64 * 4 * SPAN) >> 20
            );
        }
        let regions = std::thread::scope(|scope| {
            let threads: Vec<_> = cpus
                .iter()
                .map(|&cpu| {
                    scope.spawn(move || {
                        pin(cpu);
                        Region::new(each)
                    })
                })
                .collect();
            let join = |t: std::thread::ScopedJoinHandle<'_, _>| t.join().expect("no panic");
            threads.into_iter().map(join).collect::<Result<Vec<_>>>()
        })?;
        Ok(Bench {
            cpus: cpus.to_vec(),
            regions,
        })
    }

    /// The length of each CPU's region.
    pub fn region_bytes(&self) -> u64 {
        self.regions[0].bytes
    }

    /// How much of the regions is mapped with huge pages, 0 to 1.
    pub fn huge_share(&self) -> f64 {
        let huge = |r: &Region| huge_bytes(r.start, r.bytes);
        let huge: u64 = self.regions.iter().map(huge).sum();
        huge as f64 / (self.region_bytes() * self.regions.len() as u64) as f64
    }

    /// Runs something on the first CPU and its region.
    pub fn with_region<T: Send>(&mut self, f: impl FnOnce(&mut Region) -> T + Send) -> T {
        let (cpu, region) = (self.cpus[0], &mut self.regions[0]);
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                pin(cpu);
                f(region)
            });
            thread.join().expect("no panic")
        })
    }

    /// A calibration of a few milliseconds on the first CPU, for
    /// [`Chooser::calibrated`](quell_zero::Chooser::calibrated).
    pub fn calibrate(&mut self, available: &Available) -> Vec<Sample> {
        /// Extents around the caches, with how much of each length is cleared per sample.
        const BYPASSING: &[(u64, u64)] = &[
            (4 << 10, 128 << 10),
            (16 << 10, 128 << 10),
            (64 << 10, 256 << 10),
            (256 << 10, 512 << 10),
            (2 << 20, 2 << 20),
        ];
        /// Runs that are read next: one page, and a faulting page with its neighbours.
        const HOT: &[u64] = &[4 << 10, 20 << 10];
        const ROUNDS: usize = 4;
        let available = *available;
        self.with_region(|region| {
            let mut samples = Vec::new();
            let mut take = |region: &mut Region, strategy, temperature, bytes: u64, span: u64| {
                let extents = (span / bytes).max(1);
                let start = region.span(extents * bytes);
                let before = cpu_time();
                for i in 0..extents {
                    // SAFETY: within the span, which only this thread uses; the strategy is
                    // available.
                    unsafe {
                        let at = start.add((i * bytes) as usize);
                        quell_arch::zero::zero(at, bytes as usize, strategy);
                        if temperature == Temperature::Hot {
                            std::hint::black_box(super::read::sum(at, bytes));
                        }
                    }
                }
                let picoseconds = (cpu_time() - before).as_nanos() as u64 * 1000;
                samples.push(Sample {
                    strategy,
                    temperature,
                    bytes,
                    ticks: picoseconds / extents,
                });
            };
            for _ in 0..ROUNDS {
                for &(bytes, span) in BYPASSING {
                    for strategy in available.iter() {
                        take(region, strategy, Temperature::Bypassing, bytes, span);
                    }
                }
                for &bytes in HOT {
                    for strategy in available.iter().filter(|s| s.keeps_hot()) {
                        take(region, strategy, Temperature::Hot, bytes, 128 << 10);
                    }
                }
            }
            samples
        })
    }

    /// Rounds over all contenders and lengths on the first `cores` CPUs, for about `time`.
    ///
    /// Every cell gets at least one sample; long extents are visited less often than short ones.
    /// A sample on several CPUs is the sum over them, each on its own region at the same time.
    pub fn run(
        &mut self,
        cores: usize,
        sizes: &[u64],
        contenders: &[Contender],
        time: Duration,
        progress: &Progress,
    ) -> Result<Vec<Cell>> {
        let Some(&longest) = sizes.last() else {
            bail!("the region is too small for any extent");
        };
        let mut cells: Vec<Cell> = sizes
            .iter()
            .flat_map(|&bytes| {
                let peak = if bytes == longest { FILLS } else { &[] };
                contenders.iter().chain(peak).map(move |&contender| Cell {
                    bytes,
                    contender,
                    samples: Vec::new(),
                })
            })
            .collect();
        let deadline = Instant::now() + time;
        for round in 0.. {
            for &bytes in sizes {
                // As much time for the longest extents together as for short ones.
                let every = (bytes / SPAN).clamp(1, 16) as usize;
                if round % every != 0 {
                    continue;
                }
                if round > 0 && Instant::now() > deadline {
                    keep_quiet(&mut cells);
                    return Ok(cells);
                }
                let mut turn: Vec<&mut Cell> =
                    cells.iter_mut().filter(|c| c.bytes == bytes).collect();
                let first = round / every % turn.len();
                turn.rotate_left(first);
                self.visit(cores, bytes, &mut turn);
                progress.tick();
            }
        }
        Ok(cells)
    }

    /// One sample for each of the cells, all of the same length.
    fn visit(&mut self, cores: usize, bytes: u64, turn: &mut [&mut Cell]) {
        let order: Vec<Contender> = turn.iter().map(|c| c.contender).collect();
        let barrier = Barrier::new(cores);
        let one = |region: &mut Region, contender: Contender| {
            let extents = (SPAN / bytes).max(1);
            let start = region.span(extents * bytes);
            barrier.wait();
            let pulse = pulse::take();
            let before = cpu_time();
            for i in 0..extents {
                // SAFETY: within the span, which only this thread uses; only strategies that are
                // available take part.
                unsafe { contender.write(start.add((i * bytes) as usize), bytes) };
            }
            let seconds = (cpu_time() - before).as_secs_f64();
            let speed = (extents * bytes) as f64 / seconds / 1e9;
            (pulse.max(pulse::take()), speed)
        };
        let (one, order) = (&one, &order);
        let taken: Vec<Vec<(f64, f64)>> = std::thread::scope(|scope| {
            let threads: Vec<_> = self.regions[..cores]
                .iter_mut()
                .zip(&self.cpus)
                .map(|(region, &cpu)| {
                    scope.spawn(move || {
                        pin(cpu);
                        order.iter().map(|&c| one(region, c)).collect::<Vec<_>>()
                    })
                })
                .collect();
            let join = |t: std::thread::ScopedJoinHandle<'_, _>| t.join().expect("no panic");
            threads.into_iter().map(join).collect()
        });
        for (i, cell) in turn.iter_mut().enumerate() {
            let all = || taken.iter().map(|one| one[i]);
            let pulse = all().map(|(pulse, _)| pulse).fold(0.0, f64::max);
            cell.samples
                .push((pulse, all().map(|(_, speed)| speed).sum()));
        }
    }
}

/// What Linux thinks could be taken without swapping.
fn available_memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kilobytes << 10)
}

/// How much of a run of memory the kernel maps with huge pages, from `/proc/self/smaps`.
pub fn huge_bytes(start: *const u8, bytes: u64) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let (from, to) = (start.addr(), start.addr() + bytes as usize);
    let mut inside = false;
    let mut total = 0;
    for line in maps.lines() {
        let bounds = line.split_once(' ').and_then(|(r, _)| r.split_once('-'));
        if let Some((a, b)) = bounds {
            let parse = |hex| usize::from_str_radix(hex, 16);
            if let (Ok(a), Ok(b)) = (parse(a), parse(b)) {
                inside = a < to && from < b;
            }
        } else if inside && let Some(rest) = line.strip_prefix("AnonHugePages:") {
            let kilobytes = rest.trim().trim_end_matches(" kB").parse::<u64>();
            total += kilobytes.unwrap_or(0) << 10;
        }
    }
    total.min(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&mut []), 0.0);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn contenders_write_all_they_are_given() {
        let mut region = Region::new(4 * HUGE).unwrap();
        for contender in quell_arch::zero::available()
            .iter()
            .map(Contender::Clear)
            .chain([Contender::Memset, Contender::PageByPage])
            .chain(FILLS.iter().copied())
        {
            let start = region.span(4 * HUGE);
            // SAFETY: the region's own memory, initialised by `Region::new`.
            let bytes = unsafe {
                libc::memset(start.cast(), 0xa5, (4 * HUGE) as usize);
                contender.write(start, 2 * HUGE);
                std::slice::from_raw_parts(start, (4 * HUGE) as usize)
            };
            let value = if FILLS.contains(&contender) { 0x5a } else { 0 };
            let (written, rest) = bytes.split_at((2 * HUGE) as usize);
            assert!(written.iter().all(|&b| b == value), "{contender:?}");
            assert!(rest.iter().all(|&b| b == 0xa5), "{contender:?}");
        }
    }

    #[test]
    fn spans_are_aligned_disjoint_and_wrap_around() {
        let mut region = Region::new(4 * HUGE).unwrap();
        let base = region.start.addr();
        let mut at = |bytes| (region.span(bytes).addr() - base) as u64;
        assert_eq!(at(1), 0);
        assert_eq!(at(HUGE + 1), HUGE);
        assert_eq!(at(HUGE), 3 * HUGE);
        assert_eq!(at(HUGE), 0);
        assert_eq!(at(4 * HUGE), 0);
    }

    #[test]
    fn every_cell_gets_a_sample_even_without_time() {
        let cpus = allowed_cpus().unwrap();
        let mut bench = Bench::new(&cpus[..1], 1 << 20, 0).unwrap();
        let contenders = [Contender::Clear(Strategy::Stores), Contender::Memset];
        let cells = bench
            .run(
                1,
                &[4 << 10, 1 << 20],
                &contenders,
                Duration::ZERO,
                &Progress::hidden(),
            )
            .unwrap();
        assert_eq!(cells.len(), 2 * contenders.len() + FILLS.len());
        assert!(
            cells
                .iter()
                .all(|c| c.samples.len() == 1 && c.median() > 0.0)
        );
    }
}

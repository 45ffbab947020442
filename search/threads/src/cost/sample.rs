//! Takes timings and summarizes samples.

use crate::pulse;
use std::sync::Mutex;
use std::time::Instant;

/// A function that receives the number of finished rounds.
///
/// It isn't a generic parameter, because then the timed code would be compiled in the caller's crate with its lower
/// optimization, ten times slower.
pub type Progress<'a> = Mutex<&'a mut (dyn FnMut(usize) + Send)>;

/// The time of one operation.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug, Default)]
pub struct Cost {
    /// Nanoseconds of wall-clock time.
    pub ns: f64,
    /// Ticks of the time-stamp counter; 0 without one.
    pub cycles: f64,
}

/// The cost of an operation beside the operation that it replaces.
#[derive(Clone, Debug)]
pub struct Row {
    /// The operation's name.
    pub name: &'static str,
    /// The operation's cost: the median of the [quiet](pulse::quiet) samples.
    pub cost: Cost,
    /// The first and the third quartile of all samples, in nanoseconds.
    pub quartiles: (f64, f64),
    /// The name of the replaced operation.
    pub baseline_name: &'static str,
    /// The cost of the replaced operation.
    pub baseline: Cost,
    /// The operation's limit in nanoseconds, if it has one.
    pub limit_ns: Option<f64>,
}

impl Row {
    /// Compares two operations, each with its name. The operation has no limit.
    pub(super) fn new(
        (name, samples): (&'static str, &Samples),
        (baseline_name, baseline): (&'static str, &Samples),
        longest_own: f64,
    ) -> Self {
        Row {
            name,
            cost: samples.cost(longest_own),
            quartiles: samples.quartiles(),
            baseline_name,
            baseline: baseline.cost(longest_own),
            limit_ns: None,
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn cycles() -> u64 {
    // SAFETY: RDTSC is present on every x86-64 processor and touches no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "aarch64")]
fn cycles() -> u64 {
    let ticks: u64;
    // SAFETY: user code may read the virtual counter on every system that runs std.
    unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
    ticks
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn cycles() -> u64 {
    0
}

pub fn timed(operations: usize, body: impl FnOnce()) -> Cost {
    let (ticks, began) = (cycles(), Instant::now());
    body();
    let (ns, ticks) = (began.elapsed().as_nanos(), cycles().wrapping_sub(ticks));
    Cost { ns: ns as f64 / operations as f64, cycles: ticks as f64 / operations as f64 }
}

/// Repeated timings of one operation.
///
/// Each timing has the slower of the two pulses around it.
#[derive(Clone, Default)]
pub struct Samples(pub Vec<(f64, Cost)>);

impl Samples {
    pub fn pulses(&self) -> impl Iterator<Item = f64> {
        self.0.iter().map(|&(pulse, _)| pulse)
    }

    /// Returns the median of the quiet samples.
    pub fn cost(&self, longest_own: f64) -> Cost {
        let quiet = pulse::quiet(self.0.iter().copied(), longest_own);
        let all = || self.0.iter().map(|&(_, cost)| cost).collect();
        quantile(quiet.map_or_else(all, |quiet| quiet.values), 0.5)
    }

    /// Returns the first and the third quartile of all samples, in nanoseconds.
    pub fn quartiles(&self) -> (f64, f64) {
        let all: Vec<_> = self.0.iter().map(|&(_, cost)| cost).collect();
        (quantile(all.clone(), 0.25).ns, quantile(all, 0.75).ns)
    }
}

/// Returns the longest pulse that still shows that the thread had its core alone.
pub fn longest_own<'a>(samples: impl IntoIterator<Item = &'a Samples>) -> f64 {
    pulse::longest_own(samples.into_iter().flat_map(Samples::pulses)).unwrap_or(f64::MAX)
}

fn quantile(mut costs: Vec<Cost>, part: f64) -> Cost {
    costs.sort_by(|a, b| a.ns.total_cmp(&b.ns));
    let place = ((costs.len().max(1) - 1) as f64 * part).round();
    costs.get(place as usize).copied().unwrap_or_default()
}

//! The results of a measurement, in the form that `--json` prints.
//!
//! Keys are stable: we may add new ones under the same `schema`, but we never rename one or change its unit. A value
//! that isn't available is `null`, never zero. We make [`Report::shootdown`] from the discard benchmark's two rows
//! alone; it has everything that a machine file for the model needs.

use std::collections::BTreeMap;

use serde::Serialize;

use super::counters::CpuSharing;

/// One run of `quell measure host`.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of this layout.
    pub schema: u32,
    /// The machine that was measured.
    pub host: Host,
    /// The benchmarks in the order that `--list` prints, whatever order they ran in.
    pub benchmarks: Vec<Benchmark>,
    /// The price of one shootdown; `null` if the discard benchmark did not run.
    pub shootdown: Option<Shootdown>,
    /// The costs of single steps, from which the machine file is also made.
    pub units: Units,
    /// The machine file for the model; `null` if none could be made or none was wanted.
    pub machine_file: Option<MachineFileOutcome>,
    /// The model's predictions with it, for other rows.
    pub predictions: Vec<Comparison>,
    /// The share of samples in which the measuring thread had to share its core, 0 to 1; `null` without samples.
    pub shared_core: Option<f64>,
    /// The median of [`QuietSamples::noise`] over all rows; `null` if none has any.
    pub noise: Option<f64>,
    /// Whether a signal ended the run early.
    pub interrupted: bool,
    /// Set-ups that couldn't be undone; empty if all were.
    pub not_restored: Vec<String>,
}

/// The fate of the machine file.
#[derive(Debug, Serialize)]
pub struct MachineFileOutcome {
    /// The path where it was written; `null` if it wasn't.
    pub path: Option<String>,
    /// The reason why it wasn't written, or a caution about it.
    pub note: Option<String>,
}

/// The machine.
#[derive(Debug, Serialize)]
pub struct Host {
    /// Kernel release.
    pub kernel: String,
    /// Architecture as the compiler names it.
    pub arch: &'static str,
    /// Model name of the CPU as the kernel gives it.
    pub cpu_model: Option<String>,
    /// Whether the CPU reports a hypervisor; `null` if the architecture has no such report.
    pub guest: Option<bool>,
    /// CPUs that this process may use.
    pub cpus: Vec<usize>,
    /// Bytes of a base page.
    pub page_bytes: usize,
    /// CPU features that decide how the kernel flushes: `pcid`, `invpcid`, `invlpgb`.
    pub flags: Vec<String>,
    /// Whether the run was privileged.
    pub root: bool,
}

/// One benchmark.
#[derive(Debug, Default, Serialize)]
pub struct Benchmark {
    /// The name that `--only` takes.
    pub name: &'static str,
    /// The mechanism that it exercises (`S0`..`S4`).
    pub mechanism: &'static str,
    /// Its operation, in a line.
    pub title: &'static str,
    /// Measured rows.
    pub rows: Vec<Row>,
    /// Parts that were refused.
    pub refused: Vec<Refusal>,
    /// The error that ended it early, if one did.
    pub failed: Option<String>,
    /// Reasons to doubt this benchmark as a whole.
    pub warnings: Vec<String>,
    /// The number of rounds, each with a set-up of its own. Rows contain all rounds.
    pub rounds: u32,
    /// Wall-clock seconds including set-up, of all rounds.
    pub seconds: f64,
}

/// A part that didn't run.
#[derive(Debug, Clone, Serialize)]
pub struct Refusal {
    /// The row.
    pub row: String,
    /// The reason.
    pub reason: String,
    /// The remedy, if any.
    pub remedy: Option<String>,
}

/// One line of a benchmark.
#[derive(Debug, Default, Serialize)]
pub struct Row {
    /// Stable name within the benchmark.
    pub key: String,
    /// The key of the row with the same work in single calls, if this is the batched form.
    pub instead_of: Option<String>,
    /// Other CPUs that may hold the translations (spinning threads or other readers).
    pub targets: usize,
    /// The name of one operation.
    pub op: &'static str,
    /// Nanoseconds of one thread for one operation, over the samples.
    pub ns: Spread,
    /// The median of each round, in order. They show the effect of changing load and of luck in a set-up.
    pub round_medians: Vec<f64>,
    /// The undisturbed samples, as far as detected.
    pub quiet: Option<QuietSamples>,
    /// The number of timed operations.
    pub ops: u64,
    /// TLB shootdown interrupts received on all CPUs for one operation; `null` where the kernel has no such row.
    pub tlb_interrupts_per_op: Option<f64>,
    /// Received interrupts by row of `/proc/interrupts`, one count for each CPU, over the timed parts.
    pub interrupts: BTreeMap<String, Vec<u64>>,
    /// Increase of the counters of `/proc/vmstat` that moved, over the timed parts.
    pub vmstat: BTreeMap<String, u64>,
    /// The estimated share of the time that is spent waiting for shootdowns: interrupts / targets x price / time.
    pub shootdown_share: Option<f64>,
    /// Fraction of the time for which a spinning thread had its CPU, for the thread with the least.
    pub spinner_share: Option<f64>,
    /// CPU time that other programs used, in CPUs (1.0 is one CPU all the time).
    pub foreign_cpus: Option<f64>,
    /// CPU time stolen by the hypervisor, in CPUs.
    pub stolen_cpus: Option<f64>,
    /// Reasons to doubt this row.
    pub warnings: Vec<String>,
    /// The samples behind `ns` with their interrupts, for figures across rows.
    #[serde(skip)]
    pub samples: Vec<Sample>,
    /// The use of the CPUs by others during the samples.
    #[serde(skip)]
    pub sharing: CpuSharing,
    /// TLB interrupts that one operation must have caused, if that is known.
    #[serde(skip)]
    pub expected_interrupts: Option<f64>,
    /// Checks the row's counters for further reasons to doubt it.
    #[serde(skip)]
    pub check: Option<Check>,
}

/// Returns a reason to doubt a row, if any.
pub type Check = fn(&Row) -> Option<String>;

/// One timed sample.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Nanoseconds of one thread for one operation.
    pub ns: f64,
    /// TLB interrupts for one operation.
    pub interrupts: Option<f64>,
    /// The slower of the two pulses around it, in nanoseconds (see [`quell_threads::pulse`]).
    pub pulse: f64,
    /// The round in which it was taken, from 0.
    pub round: usize,
}

/// The samples of a row without a known disturbance.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct QuietSamples {
    /// The number of these samples.
    pub samples: usize,
    /// Their median: nanoseconds of one thread for one operation.
    pub median: f64,
    /// Their TLB interrupts for one operation (median); `null` where the kernel doesn't count them.
    pub tlb_interrupts_per_op: Option<f64>,
    /// Whether all of them had their core alone. If not, too few had, so we took the least disturbed samples.
    pub own_core: bool,
    /// The median of their pulses, in nanoseconds (see [`quell_threads::pulse`]).
    #[serde(skip)]
    pub pulse: f64,
    /// The noise: the distance of the quartiles of the rounds' medians, as a share of their median; `null` for fewer
    /// than three rounds.
    pub noise: Option<f64>,
}

/// Median and spread.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Number of samples.
    pub samples: usize,
    /// Smallest.
    pub min: f64,
    /// Lower quartile.
    pub q1: f64,
    /// Median.
    pub median: f64,
    /// Upper quartile.
    pub q3: f64,
    /// Largest.
    pub max: f64,
}

impl Spread {
    /// Computes the spread of `values`, with quartiles by linear interpolation; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        let at = |fraction: f64| {
            let place = fraction * last as f64;
            let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            low + (high - low) * place.fract()
        };
        let (min, q1, median, q3, max) = (at(0.0), at(0.25), at(0.5), at(0.75), at(1.0));
        Some(Self { samples: sorted.len(), min, q1, median, q3, max })
    }
}

/// Nanoseconds of each step, the median of the quiet samples; `null` if it wasn't measured.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Units {
    /// A system call that does nothing.
    pub call_ns: Option<f64>,
    /// A discard that finds nothing.
    pub discard_nothing_ns: Option<f64>,
    /// A first touch: the fault, the page and its zeroing.
    pub fault_ns: Option<f64>,
    /// A page discarded, as one of many in a call.
    pub discard_ns: Option<f64>,
    /// A page zeroed as this architecture's kernel does, after the page before it, in memory that is in no cache.
    pub zero_ns: Option<f64>,
    /// The same from the last page to the first.
    pub zero_backwards_ns: Option<f64>,
    /// A page written to a zram device.
    pub compress_ns: Option<f64>,
    /// A page read from it.
    pub decompress_ns: Option<f64>,
    /// A page of zeros written and paged out, with the page before it read back: swapping without compressing.
    pub swap_ns: Option<f64>,
    /// A switch from one thread of a process to another, with the calls that cause it.
    pub switch_ns: Option<f64>,
}

/// A row beside its prediction.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// The benchmark.
    pub benchmark: &'static str,
    /// The row's key.
    pub row: String,
    /// Median of the measurement's quiet samples, divided by `slowdown`: nanoseconds for one operation.
    pub measured_ns: f64,
    /// If the core was shared: the time of the one-page row on an equally shared core, divided by its time that
    /// calibrated the model. `null` if both rows had the core alone, or if no sample shows it.
    pub slowdown: Option<f64>,
    /// The model's prediction, in the same unit; `null` if it couldn't run.
    pub predicted_ns: Option<f64>,
    /// (predicted - measured) / measured.
    pub error: Option<f64>,
    /// The larger [`QuietSamples::noise`] of the row and the row of one page with as many threads spinning, and of
    /// `slowdown`; `null` if one of them has none.
    pub noise: Option<f64>,
    /// Whether the error is at most 30 %; `null` without a prediction, or if the noise could change the answer.
    pub within: Option<bool>,
    /// After a miss, the known omissions of the model and disturbances of the measurement. Without a verdict, the
    /// reason.
    pub why: Option<String>,
}

/// The price of one shootdown on this host: ((with one spinning thread) - (alone)) / interrupts.
#[derive(Debug, Default, Serialize)]
pub struct Shootdown {
    /// Nanoseconds of one touch and discard of a page, alone: the median of the quiet samples, as below.
    pub alone_ns: f64,
    /// The same with one thread spinning in the address space on another CPU.
    pub one_target_ns: Option<f64>,
    /// Interrupts for one discard in the samples used.
    pub interrupts_per_op: Option<f64>,
    /// The price of one shootdown with one target, in nanoseconds.
    pub ns: Option<f64>,
    /// The number of used samples with one spinning thread. In these, at least 0.95 interrupts arrived for each
    /// discard, and the measuring thread had its core alone.
    pub quiet_samples: usize,
    /// All samples with one spinning thread.
    pub all_samples: usize,
    /// Whether the price is reliable.
    pub reliable: bool,
    /// The reason if the price is missing or isn't reliable.
    pub note: Option<String>,
}

impl Row {
    /// Returns the median of its quiet samples, or of all if too few are quiet.
    pub fn undisturbed(&self) -> f64 {
        self.quiet.map_or(self.ns.median, |quiet| quiet.median)
    }
}

#[cfg(test)]
impl Row {
    /// Creates a row of these samples, (nanoseconds, interrupts) of one operation each.
    pub fn made_up(key: &str, samples: &[(f64, f64)]) -> Self {
        let samples: Vec<_> = samples
            .iter()
            .map(|&(ns, n)| Sample { ns, interrupts: Some(n), pulse: 1.0, round: 0 })
            .collect();
        let ns = Spread::of(samples.iter().map(|s| s.ns)).unwrap();
        let interrupts = samples.iter().filter_map(|s| s.interrupts).sum::<f64>();
        Self {
            key: key.into(),
            targets: 1,
            ns,
            round_medians: vec![ns.median],
            ops: samples.len() as u64,
            tlb_interrupts_per_op: Some(interrupts / samples.len() as f64),
            samples,
            expected_interrupts: Some(1.0),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_interpolate() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0]).unwrap();
        let expected = Spread { samples: 4, min: 1.0, q1: 1.75, median: 2.5, q3: 3.25, max: 4.0 };
        assert_eq!(spread, expected);
        assert_eq!(Spread::of([7.0]).unwrap().q3, 7.0);
        assert_eq!(Spread::of([]), None);
    }
}

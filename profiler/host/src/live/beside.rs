//! Compares rows with the predictions of the calibrated model.
//!
//! The calibration uses only single steps and the discard of one page.
//!
//! The predicted rows are those that the model's workloads can do as well: the batched forms of `discard`, the
//! ping-pong of processes and the round of page-out. We used none of them to make the machine file.
//!
//! The model's machine has no neighbours. So we compare each row by the median of its quiet samples, like the rows that
//! make the machine file.
//!
//! A row whose core was always shared is compared in that state: the loops beside its samples took longer, and so did
//! those beside some samples of the row that fixed its page's price. The slowdown of these samples is taken out of the
//! row. If the rounds differ so much that the verdict could be wrong, we give none.

use super::analysis;
use super::bench::one_page_key;
use super::machine_file::{HostMachine, SWAP_ROUNDS_NS, modelled};
use super::report::{Benchmark, Comparison, Row};

/// The largest error of a prediction that counts as right.
pub const TOLERANCE: f64 = 0.30;
/// The largest noise at which a row is judged by its error alone. With more, the measurement itself could be off by much
/// of the tolerance, so the verdict must be the same for all times within the noise.
pub const NOISY: f64 = TOLERANCE / 2.0;

/// A row that the model predicts.
struct Case {
    benchmark: &'static str,
    row: &'static str,
    workload: &'static str,
    parameters: &'static [&'static str],
    cpus: usize,
    /// The factor from the workload's figure to nanoseconds of the row's operation.
    factor: f64,
    dirty: bool,
    leaves_out: &'static str,
}

const SINGLE: Case = Case {
    benchmark: "discard",
    row: "32ranges/madvise/spin0",
    workload: "dontneed",
    parameters: &["iterations=500"],
    cpus: 1,
    factor: 32.0,
    dirty: false,
    leaves_out: "the model touches each page right before its call, so their cache misses do not add up",
};

const BATCHED: Case = Case {
    row: "32ranges/process_madvise/spin0",
    // Takes every other page, as on the host.
    parameters: &["iterations=100", "pages=32", "stride=2"],
    factor: 1.0,
    leaves_out: "the model has no call with 32 ranges, so its one range spans them",
    ..SINGLE
};

const SPANNING: Case = Case {
    row: "32ranges/spanning_madvise/spin0",
    leaves_out: "no omission of the model is known here",
    ..BATCHED
};

const PINGPONG: Case = Case {
    benchmark: "pingpong",
    row: "processes/0pages",
    workload: "pingpong",
    parameters: &[],
    // The figure is in microseconds for one switch, and a round trip has two.
    factor: 2e3,
    leaves_out: "beyond a switch of threads, a switch of address spaces costs as much as on the base machine",
    ..SINGLE
};

const PAGEOUT: Case = Case {
    benchmark: "pageout",
    row: "round/spin0",
    workload: "swap",
    parameters: &["rounds=10"],
    factor: SWAP_ROUNDS_NS,
    dirty: true,
    leaves_out: "the cost of swapping without compression is that of pages of zeros, whose compressed form needs no memory",
    ..SINGLE
};

const CASES: &[Case] = &[
    SINGLE,
    Case { row: "32ranges/madvise/spin1", cpus: 2, ..SINGLE },
    BATCHED,
    Case { row: "32ranges/process_madvise/spin1", cpus: 2, ..BATCHED },
    SPANNING,
    Case { row: "32ranges/spanning_madvise/spin1", cpus: 2, ..SPANNING },
    PINGPONG,
    Case {
        row: "processes/512pages",
        parameters: &["pages=512"],
        leaves_out: "the lines of the pages themselves: the model has no data caches for user memory",
        ..PINGPONG
    },
    PAGEOUT,
    Case { row: "round/spin1", cpus: 2, ..PAGEOUT },
];

impl Case {
    fn predict(&self, host: &HostMachine) -> Result<f64, String> {
        let policy = if self.dirty { host.kernel.dirty } else { host.kernel.policy };
        let workload = (self.workload, self.parameters);
        let value = modelled(&host.machine, policy, self.cpus, workload);
        value.map(|value| value * self.factor).map_err(|error| error.to_string())
    }

    /// Returns the measured time of `row` as if its core had been as free as that of `one_page`, the row that fixed its
    /// page's price. Fails with a reason if that isn't known.
    fn measured(row: &Row, one_page: &Row) -> Result<MeasuredTime, String> {
        let too_few = |row: &Row| format!("too few samples of {}", row.key);
        let quiet = row.quiet.ok_or_else(|| too_few(row))?;
        let fixed = one_page.quiet.ok_or_else(|| too_few(one_page))?;
        let of_row = quiet.noise.ok_or_else(|| too_few(row))?;
        let noise = of_row.max(fixed.noise.ok_or_else(|| too_few(one_page))?);
        if quiet.own_core && fixed.own_core {
            return Ok(MeasuredTime { ns: quiet.median, slowdown: None, noise });
        }
        let shared = analysis::slowdown(one_page, quiet.pulse).ok_or_else(|| {
            format!(
                "the core was shared in {}, and not equally in enough samples of {}",
                row.key, one_page.key
            )
        })?;
        Ok(MeasuredTime {
            ns: quiet.median / shared.factor,
            slowdown: Some(shared.factor),
            noise: noise.max(of_row + shared.noise),
        })
    }

    fn beside(&self, row: &Row, one_page: &Row, host: &HostMachine) -> Comparison {
        let predicted = self.predict(host);
        let measured = Self::measured(row, one_page);
        let measured_ns = measured.as_ref().map_or(row.undisturbed(), |found| found.ns);
        let error = |predicted: &f64| predicted / measured_ns - 1.0;
        let (within, why) = match (&predicted, &measured) {
            (Err(why), Ok(_) | Err(_)) => (None, Some(why.clone())),
            (Ok(_), Err(why)) => (None, Some(format!("not judged: {why}"))),
            (Ok(predicted), Ok(measured)) => match measured.judge(*predicted) {
                Some(true) => (Some(true), None),
                Some(false) => (Some(false), Some(self.after_a_miss(row))),
                None => {
                    let noise = measured.noise * 1e2;
                    let why = format!(
                        "not judged: times differ by {noise:.0} %, and the verdict with them"
                    );
                    (None, Some(why))
                }
            },
        };
        Comparison {
            benchmark: self.benchmark,
            row: self.row.into(),
            measured_ns,
            slowdown: measured.as_ref().ok().and_then(|found| found.slowdown),
            error: predicted.as_ref().ok().map(error),
            predicted_ns: predicted.ok(),
            noise: measured.ok().map(|found| found.noise),
            within,
            why,
        }
    }

    /// Returns the known omissions of the model, and the disturbances of the measurement.
    fn after_a_miss(&self, row: &Row) -> String {
        let disturbed = match row.warnings.is_empty() {
            true => String::new(),
            false => format!("; measured under disturbance: {}", row.warnings.join("; ")),
        };
        format!("{}{disturbed}", self.leaves_out)
    }
}

/// A row's time as a core without neighbours would take it.
#[derive(Clone, Copy, PartialEq, Debug)]
struct MeasuredTime {
    ns: f64,
    /// The factor that was taken out, if the core was shared.
    slowdown: Option<f64>,
    /// The share by which `ns` may be off.
    noise: f64,
}

impl MeasuredTime {
    /// Returns whether the prediction is within the tolerance, or `None` if the noise leaves that open.
    ///
    /// Whatever disturbs a row makes it slower. So a noisy row that took longer than predicted isn't a miss.
    fn judge(&self, predicted: f64) -> Option<bool> {
        let error = |ns: f64| predicted / ns - 1.0;
        if self.noise <= NOISY {
            return Some(error(self.ns).abs() <= TOLERANCE);
        }
        let least = error(self.ns * (1.0 + self.noise));
        let most = error(self.ns * (1.0 - self.noise).max(0.0));
        let within = -TOLERANCE <= least && most <= TOLERANCE;
        let beyond = least > TOLERANCE;
        (within || beyond).then_some(within)
    }
}

/// Returns the keys of the predicted rows. The calibration must use none of them.
#[cfg(test)]
pub fn predicted() -> impl Iterator<Item = &'static str> {
    CASES.iter().map(|case| case.row)
}

/// Compares every row that was measured and that the model can predict.
pub fn compare(benchmarks: &[Benchmark], host: &HostMachine) -> Vec<Comparison> {
    CASES
        .iter()
        .filter_map(|case| {
            let find = |name: &str, key: &str| {
                let benchmark = benchmarks.iter().find(|b| b.name == name)?;
                benchmark.rows.iter().find(|row| row.key == key)
            };
            let one_page = find("discard", &one_page_key(case.cpus - 1))?;
            Some(case.beside(find(case.benchmark, case.row)?, one_page, host))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::report::{QuietSamples, Sample, Spread};
    use super::*;

    /// Returns a row of five rounds, each with these samples: (nanoseconds, pulse).
    fn row(samples: &[(f64, f64)], own_core: bool, noise: f64) -> Row {
        let all = (0..5).flat_map(|round| {
            samples.iter().map(move |&(ns, pulse)| Sample { ns, interrupts: None, pulse, round })
        });
        let (median, pulse) = samples[0];
        let noise = Some(noise);
        let tlb_interrupts_per_op = None;
        let quiet =
            QuietSamples { samples: 5, median, tlb_interrupts_per_op, own_core, pulse, noise };
        let ns = Spread::of([median]).unwrap();
        Row { key: "x".into(), samples: all.collect(), quiet: Some(quiet), ns, ..Row::default() }
    }

    #[test]
    fn a_row_is_judged_if_noise_cannot_change_the_verdict() {
        let judge = |noise, predicted| {
            let measured =
                Case::measured(&row(&[(100.0, 1.0)], true, noise), &row(&[(9.0, 1.0)], true, 0.0));
            measured.unwrap().judge(predicted)
        };
        for (noise, predicted, verdict) in [
            (0.01, 129.0, Some(true)),
            (0.01, 131.0, Some(false)),
            (0.2, 102.0, Some(true)),
            (0.2, 120.0, None),
            (0.2, 140.0, None),
            (0.2, 160.0, Some(false)),
            (0.2, 50.0, None),
            (1.5, 100.0, None),
            (1.5, 900.0, Some(false)),
        ] {
            assert_eq!(judge(noise, predicted), verdict, "{noise} {predicted}");
        }
    }

    #[test]
    fn the_noise_is_the_larger_one_of_both_rows() {
        let noise = |a, b| {
            let rows = [a, b].map(|noise| row(&[(1.0, 1.0)], true, noise));
            Case::measured(&rows[0], &rows[1]).unwrap().noise
        };
        assert_eq!((noise(0.3, 0.1), noise(0.1, 0.3)), (0.3, 0.3));
        let few = Row { quiet: None, ..row(&[(1.0, 1.0)], true, 0.0) };
        let said = Case::measured(&row(&[(1.0, 1.0)], true, 0.0), &few).unwrap_err();
        assert!(said.contains("too few samples of x"), "{said}");
    }

    #[test]
    fn on_a_shared_core_rows_are_compared_in_the_same_state() {
        // The one-page row had the core alone in one sample of a round, and shared it in another.
        let one_page = row(&[(100.0, 1.0), (140.0, 2.0)], true, 0.0);
        let shared = Case::measured(&row(&[(420.0, 2.0)], false, 0.01), &one_page).unwrap();
        assert_eq!((shared.ns.round(), shared.slowdown), (300.0, Some(1.4)));
        assert!((shared.noise - (0.01 + 0.4 / 3.0 / 1.4)).abs() < 1e-9);
        assert_eq!(shared.judge(300.0), Some(true));
        // Both always shared it, equally: the model was calibrated in that state.
        let always = row(&[(140.0, 2.0)], false, 0.0);
        let both = Case::measured(&row(&[(420.0, 2.0)], false, 0.01), &always).unwrap();
        assert_eq!((both.ns, both.slowdown), (420.0, Some(1.0)));
        // Nothing shows how much slower the row was.
        let other = Case::measured(&row(&[(420.0, 1.5)], false, 0.01), &one_page).unwrap_err();
        assert!(other.contains("not equally"), "{other}");
    }
}

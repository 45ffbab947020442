//! Compares rows with the predictions of the calibrated model.
//!
//! The calibration uses only single steps and the discard of one page.
//!
//! The predicted rows are those that the model's workloads can do as well: the batched forms of `discard`, the
//! ping-pong of processes and the round of page-out. We used none of them to make the machine file.
//!
//! The model's machine has no neighbours. So we compare each row by the median of its quiet samples, like the rows that
//! make the machine file. If the rounds of a row, or of the row that fixed its page's price, differ too much, we give
//! no verdict.

use super::bench::one_page_key;
use super::machine_file::{HostMachine, SWAP_ROUNDS_NS};
use super::report::{Benchmark, Comparison, Row};
use quell::Policy;
use quell_experiments::trial::Trial;
use quell_workloads::Workload;

/// The largest error of a prediction that counts as right.
pub const TOLERANCE: f64 = 0.30;
/// The largest noise at which a row is judged. With more, the measurement itself could be off by much of the
/// tolerance.
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
    leaves_out: "the model has no call with 32 ranges, so its one range spans them, and there each discarded page costs as much as alone",
    ..SINGLE
};

const SPANNING: Case = Case {
    row: "32ranges/spanning_madvise/spin0",
    leaves_out: "in the model each discarded page costs as much as alone",
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
    Case {
        row: "32ranges/madvise/spin1",
        cpus: 2,
        ..SINGLE
    },
    BATCHED,
    Case {
        row: "32ranges/process_madvise/spin1",
        cpus: 2,
        ..BATCHED
    },
    SPANNING,
    Case {
        row: "32ranges/spanning_madvise/spin1",
        cpus: 2,
        ..SPANNING
    },
    PINGPONG,
    Case {
        row: "processes/512pages",
        parameters: &["pages=512"],
        leaves_out: "the lines of the pages themselves: the model has no data caches for user memory",
        ..PINGPONG
    },
    PAGEOUT,
    Case {
        row: "round/spin1",
        cpus: 2,
        ..PAGEOUT
    },
];

impl Case {
    fn predict(&self, host: &HostMachine) -> Result<f64, String> {
        let mut workload = Workload::from_name(self.workload).ok_or("no such workload")?;
        for pair in self.parameters {
            workload.set(pair).map_err(|wrong| wrong.to_string())?;
        }
        let policy: Policy = if self.dirty {
            host.kernel.dirty
        } else {
            host.kernel.policy
        };
        let trial = Trial {
            machine: &host.machine,
            workload,
            policy,
            cpus: self.cpus,
            seed: quell_experiments::jobs::SEED,
            trace: 0,
        };
        let outcome = trial.run().map_err(|error| error.to_string())?;
        Ok(outcome.measure.value * self.factor)
    }

    /// Returns the larger noise of two rows: the row, and the row that fixed its page's price. Fails with a reason if a
    /// verdict isn't possible.
    fn noise(rows: [&Row; 2]) -> Result<f64, (Option<f64>, String)> {
        let mut most: f64 = 0.0;
        for row in rows {
            let too_few = || (None, format!("too few samples of {}", row.key));
            let quiet = row.quiet.ok_or_else(too_few)?;
            most = most.max(quiet.noise.ok_or_else(too_few)?);
        }
        match rows
            .iter()
            .find(|row| row.quiet.is_some_and(|q| !q.own_core))
        {
            Some(row) => Err((
                Some(most),
                format!("the core was always shared in {}", row.key),
            )),
            None if most > NOISY => {
                let why = format!(
                    "rounds differ by {:.0} %, more than {:.0} %",
                    most * 1e2,
                    NOISY * 1e2
                );
                Err((Some(most), why))
            }
            None => Ok(most),
        }
    }

    fn beside(&self, row: &Row, one_page: &Row, host: &HostMachine) -> Comparison {
        let measured_ns = row.undisturbed();
        let predicted = self.predict(host);
        let error = predicted
            .as_ref()
            .ok()
            .map(|predicted| (predicted - measured_ns) / measured_ns);
        let noise = Self::noise([row, one_page]);
        let within = match (error, &noise) {
            (Some(error), Ok(_)) => Some(error.abs() <= TOLERANCE),
            _ => None,
        };
        let why = match (&predicted, &noise) {
            (Err(why), _) => Some(why.clone()),
            (_, Err((_, why))) => Some(format!("not judged: {why}")),
            _ if within == Some(false) => {
                let disturbed = &row.warnings;
                let disturbed = if disturbed.is_empty() {
                    String::new()
                } else {
                    format!("; measured under disturbance: {}", disturbed.join("; "))
                };
                Some(format!("{}{disturbed}", self.leaves_out))
            }
            _ => None,
        };
        Comparison {
            benchmark: self.benchmark,
            row: self.row.into(),
            measured_ns,
            predicted_ns: predicted.ok(),
            error,
            noise: noise.map_or_else(|(most, _)| most, Some),
            within,
            why,
        }
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
    use super::super::report::QuietSamples;
    use super::*;

    fn row(noise: Option<f64>, own_core: bool) -> Row {
        let quiet = QuietSamples {
            samples: 9,
            median: 1.0,
            tlb_interrupts_per_op: None,
            own_core,
            noise,
        };
        Row {
            quiet: Some(quiet),
            ..Row::made_up("x", &[(1.0, 0.0)])
        }
    }

    #[test]
    fn beyond_the_noise_nothing_is_judged() {
        let noise = |row: Row, one_page: Row| Case::noise([&row, &one_page]);
        let (still, rough) = (Some(0.01), Some(NOISY + 0.01));
        assert_eq!(noise(row(still, true), row(Some(0.1), true)), Ok(0.1));
        for (row, one_page, found, why) in [
            (row(rough, true), row(still, true), rough, "rounds differ"),
            (row(still, true), row(rough, true), rough, "rounds differ"),
            (row(still, true), row(still, false), still, "shared"),
            (row(None, true), row(still, true), None, "too few"),
        ] {
            let (most, said) = noise(row, one_page).unwrap_err();
            assert_eq!(most, found);
            assert!(said.contains(why), "{said}");
        }
    }
}

//! What the model, calibrated on single steps and on one page discarded, says about the others.
//!
//! Predicted are the rows whose work the model's workloads do as well: the batched forms of `discard`,
//! the ping-pong of processes and the round of page-out. None of them was used to make the machine file.
//!
//! The model's machine has no neighbours. So each row stands there with the median of its quiet samples, as do those
//! that the machine file is made from.

use super::machine_file::HostMachine;
use super::report::{Benchmark, Beside, Row};
use quell::Policy;
use quell_experiments::trial::Trial;
use quell_workloads::Workload;

/// A prediction should be as near as this to what was measured.
pub const TOLERANCE: f64 = 0.30;

/// A row that the model predicts.
struct Case {
    benchmark: &'static str,
    row: &'static str,
    workload: &'static str,
    parameters: &'static [&'static str],
    cpus: usize,
    /// Nanoseconds of the row's operation in the unit of the workload's figure.
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
    // Every other page, as on the host.
    parameters: &["iterations=100", "pages=32", "stride=2"],
    factor: 1.0,
    leaves_out: "the model has no call with 32 ranges, so its one range spans them; and a page that goes costs as much there as alone",
    ..SINGLE
};

const SPANNING: Case = Case {
    row: "32ranges/spanning_madvise/spin0",
    leaves_out: "a page that goes costs as much there as alone",
    ..BATCHED
};

const PINGPONG: Case = Case {
    benchmark: "pingpong",
    row: "processes/0pages",
    workload: "pingpong",
    parameters: &[],
    // Microseconds of a switch; a round trip is two.
    factor: 2e3,
    leaves_out: "a switch of address spaces costs what the base machine's root register does, beyond a switch of threads",
    ..SINGLE
};

const PAGEOUT: Case = Case {
    benchmark: "pageout",
    row: "round/spin0",
    workload: "swap",
    parameters: &["rounds=10"],
    // Seconds for 10 000 rounds of 256 pages.
    factor: 1e9 / 10_000.0 / 256.0,
    dirty: true,
    leaves_out: "what swapping does besides compressing is that of the base machine",
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

    fn beside(&self, row: &Row, host: &HostMachine) -> Beside {
        let measured_ns = row.undisturbed();
        let predicted = self.predict(host);
        let error = predicted
            .as_ref()
            .ok()
            .map(|predicted| (predicted - measured_ns) / measured_ns);
        let within = error.map(|error| error.abs() <= TOLERANCE);
        let why = match &predicted {
            Err(why) => Some(why.clone()),
            Ok(_) if within == Some(false) => {
                let mut disturbed = row.warnings.clone();
                if row.quiet.is_some_and(|quiet| !quiet.own_core) {
                    disturbed.push("the core was always shared".into());
                }
                let disturbed = if disturbed.is_empty() {
                    String::new()
                } else {
                    format!("; measured under disturbance: {}", disturbed.join("; "))
                };
                Some(format!("{}{disturbed}", self.leaves_out))
            }
            Ok(_) => None,
        };
        Beside {
            benchmark: self.benchmark,
            row: self.row.into(),
            measured_ns,
            predicted_ns: predicted.ok(),
            error,
            within,
            why,
        }
    }
}

/// The keys of the rows that are predicted, none of which may be calibrated on.
#[cfg(test)]
pub fn predicted() -> impl Iterator<Item = &'static str> {
    CASES.iter().map(|case| case.row)
}

/// Every row that was measured and that the model can predict.
pub fn compare(benchmarks: &[Benchmark], host: &HostMachine) -> Vec<Beside> {
    CASES
        .iter()
        .filter_map(|case| {
            let row = benchmarks
                .iter()
                .find(|benchmark| benchmark.name == case.benchmark)?
                .rows
                .iter()
                .find(|row| row.key == case.row)?;
            Some(case.beside(row, host))
        })
        .collect()
}

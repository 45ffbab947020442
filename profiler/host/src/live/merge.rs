//! Computes a row from its counts, and merges the rows of several rounds.
//!
//! The load of a shared machine changes over seconds, and each set-up differs by chance (the frames that it got, or the
//! place of the compressed pages). So we measure a row in several rounds, and merge the *counts* of the rounds: we join
//! samples and add counters. *Computed* figures (spread, CPUs of others, warnings) are computed again and never
//! averaged.

use super::counters::TLB;
use super::report::{Row, Sample, Spread};

/// The share of its CPU below which a spinning thread counts as disturbed.
const SPINNER_QUIET: f64 = 0.9;
/// The number of samples below which a row gets a warning.
const FEW_SAMPLES: usize = 5;
/// The number of CPUs used by others, or stolen, above which a row gets a warning.
const NOISE: f64 = 0.1;

impl Row {
    /// Computes figures from samples, counters and the load of others.
    pub fn conclude(&mut self) {
        if let Some(ns) = Spread::of(self.samples.iter().map(|s| s.ns)) {
            self.ns = ns;
        }
        let interrupts = self.interrupts.get(TLB).map(|c| c.iter().sum::<u64>());
        self.tlb_interrupts_per_op = interrupts.map(|n| n as f64 / self.ops as f64);
        let others = self.sharing.cpus();
        self.foreign_cpus = others.map(|(foreign, _)| foreign);
        self.stolen_cpus = others.map(|(_, stolen)| stolen);
        self.warnings = self.disturbances();
    }

    /// Adds the results of a later round for the same key.
    pub fn merge(&mut self, more: Row) {
        debug_assert_eq!(self.key, more.key);
        self.ops += more.ops;
        for (name, counts) in more.interrupts {
            let sums = self.interrupts.entry(name).or_default();
            // A CPU that was added meanwhile has no count in the earlier rounds.
            sums.resize(sums.len().max(counts.len()), 0);
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        for (name, count) in more.vmstat {
            *self.vmstat.entry(name).or_default() += count;
        }
        self.spinner_share = match (self.spinner_share, more.spinner_share) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (one, other) => one.or(other),
        };
        self.sharing = self.sharing + more.sharing;
        let rounds = self.round_medians.len();
        let later = more
            .samples
            .into_iter()
            .map(|sample| Sample { round: sample.round + rounds, ..sample });
        self.samples.extend(later);
        self.round_medians.extend(more.round_medians);
        self.conclude();
    }

    /// Returns the reasons to doubt the row.
    fn disturbances(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.ns.samples < FEW_SAMPLES {
            warnings.push(format!(
                "only {} samples, so the spread is uncertain: measure longer (--seconds)",
                self.ns.samples
            ));
        }
        if let Some(share) = self.spinner_share.filter(|&s| s < SPINNER_QUIET) {
            warnings.push(format!(
                "a spinning thread had its CPU only {:.0} % of the time: while other programs ran there, no interrupt was needed and discards look cheaper",
                share * 100.0
            ));
        }
        if let Some(cpus) = self.foreign_cpus.filter(|&c| c > NOISE) {
            warnings.push(format!("other programs used {cpus:.2} CPUs meanwhile: times are too long and counters include theirs"));
        }
        if let Some(cpus) = self.stolen_cpus.filter(|&c| c > NOISE) {
            warnings.push(format!("the hypervisor took {cpus:.2} CPUs away meanwhile"));
        }
        warnings.extend(self.check.and_then(|check| check(self)));
        warnings
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::counters::CpuSharing;
    use super::*;

    const NEAR: f64 = 1e-9;

    fn rounds() -> (Row, Row) {
        let mut first = Row::made_up("x", &[(10.0, 1.0), (30.0, 1.0), (20.0, 1.0)]);
        first.ops = 300;
        first.interrupts = BTreeMap::from([(TLB.to_owned(), vec![100, 200])]);
        first.vmstat = BTreeMap::from([("pswpout".to_owned(), 300)]);
        first.spinner_share = Some(0.99);
        first.sharing = CpuSharing { wall: 3.0, foreign: 0.0, stolen: 0.3 };
        let mut second = Row::made_up("x", &[(100.0, 0.0)]);
        second.ops = 100;
        second.interrupts = BTreeMap::from([(TLB.to_owned(), vec![0, 100])]);
        second.vmstat = BTreeMap::from([("pswpout".to_owned(), 20), ("pgfault".to_owned(), 7)]);
        second.spinner_share = Some(0.5);
        second.sharing = CpuSharing { wall: 1.0, foreign: 0.8, stolen: 0.1 };
        (first, second)
    }

    #[test]
    fn samples_stand_side_by_side_and_counters_add_up() {
        let (mut row, more) = rounds();
        row.merge(more);
        // It's the median of all four samples, not the mean of 20 and 100.
        assert_eq!((row.ns.samples, row.ns.median, row.ns.max), (4, 25.0, 100.0));
        assert_eq!(row.round_medians, [20.0, 100.0]);
        let rounds: Vec<usize> = row.samples.iter().map(|sample| sample.round).collect();
        assert_eq!(rounds, [0, 0, 0, 1]);
        assert_eq!(row.ops, 400);
        assert_eq!(row.interrupts[TLB], [100, 300]);
        assert_eq!(row.tlb_interrupts_per_op, Some(1.0));
        assert_eq!(row.vmstat["pswpout"], 320);
        assert_eq!(row.vmstat["pgfault"], 7);
    }

    #[test]
    fn the_worst_spinner_and_the_others_cpus_by_time() {
        let (mut row, more) = rounds();
        row.merge(more);
        assert_eq!(row.spinner_share, Some(0.5));
        // 0.8 s of 4 s; the mean of the two rounds would be 0.4.
        assert!((row.foreign_cpus.unwrap() - 0.2).abs() < NEAR);
        assert!((row.stolen_cpus.unwrap() - 0.1).abs() < NEAR);
    }

    #[test]
    fn spans_too_short_to_tell_add_up_to_one_that_tells() {
        let short = CpuSharing { wall: 0.15, foreign: -0.01, stolen: 0.0 };
        let mut row = Row::made_up("x", &[(1.0, 0.0)]);
        row.sharing = short;
        row.conclude();
        assert_eq!(row.foreign_cpus, None);
        let mut more = Row::made_up("x", &[(1.0, 0.0)]);
        more.sharing = CpuSharing { foreign: 0.07, ..short };
        row.merge(more);
        assert!((row.foreign_cpus.unwrap() - 0.2).abs() < NEAR);
    }

    #[test]
    fn warnings_are_about_the_merged_row() {
        let (mut row, more) = rounds();
        row.check = Some(|row| (row.vmstat["pswpout"] < row.ops).then(|| "stayed".into()));
        row.conclude();
        let said = |row: &Row, what: &str| row.warnings.iter().filter(|w| w.contains(what)).count();
        assert_eq!((said(&row, "spread is uncertain"), said(&row, "stayed")), (1, 0));
        row.merge(more);
        assert_eq!((said(&row, "spread is uncertain"), said(&row, "stayed")), (1, 1));
        assert_eq!(said(&row, "50 % of the time"), 1);
        let (third, _) = rounds();
        row.merge(third);
        assert_eq!(said(&row, "spread is uncertain"), 0, "seven samples now");
    }
}

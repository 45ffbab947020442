//! Measures whether a change to a program helps.
//!
//! We run the program in pairs, unchanged and changed. Each pair yields one ratio, changed to unchanged. The bounds are
//! those of the mean of the ratios' logarithms, with 99 % confidence (Student's t). We chose 99 % because the bounds
//! are examined after every pair, to stop early. A slow drift of the host affects both runs of a pair alike, and the
//! order within a pair alternates.

use quell_workloads::numbers::median;
use serde::Serialize;

use crate::figures::Range;

/// The least number of pairs for a result.
pub const FEWEST: usize = 4;

/// The smallest relative difference that matters.
const SMALL: f64 = 0.01;

/// Student's t for 99 %, two-sided, by degrees of freedom from 1. More degrees use the last value.
const STUDENT: [f64; 20] = [
    63.66, 9.92, 5.84, 4.60, 4.03, 3.71, 3.50, 3.36, 3.25, 3.17, 3.11, 3.05, 3.01, 2.98, 2.95,
    2.92, 2.90, 2.88, 2.86, 2.85,
];

/// The conclusion from a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Finding {
    /// The value is less.
    Less,
    /// The value is more.
    More,
    /// The value is the same, within 1 %.
    Same,
    /// The value is the same or more: it's less by at most 1 %.
    NotLess,
    /// The bounds allow more than one of these.
    Unknown,
}

/// A measured value for each pair of runs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PairedRuns {
    /// The unchanged runs.
    pub before: Vec<f64>,
    /// The changed runs.
    pub after: Vec<f64>,
}

impl PairedRuns {
    /// Adds a pair.
    pub fn add(&mut self, before: f64, after: f64) {
        self.before.push(before);
        self.after.push(after);
    }

    /// Returns the medians of the unchanged and of the changed runs.
    pub fn medians(&self) -> (f64, f64) {
        let middle = |values: &[f64]| median(&mut values.to_vec()).unwrap_or(0.0);
        (middle(&self.before), middle(&self.after))
    }

    /// Computes bounds of the relative change. For example, -0.3 is 30 % less.
    ///
    /// Returns `None` if there are too few pairs, or if unchanged runs were mostly zero and changed ones weren't.
    pub fn change(&self) -> Option<Range> {
        let count = self.before.len();
        let is_from_zero = self.medians().0 == 0.0 && self.after.iter().any(|&after| after > 0.0);
        if count < FEWEST || is_from_zero {
            return None;
        }
        // Adds one to both values, because the logarithm of zero is infinite. Two zeros count as unchanged.
        let ratio = |(before, after): (&f64, &f64)| ((after + 1.0) / (before + 1.0)).ln();
        let ratios: Vec<f64> = self.before.iter().zip(&self.after).map(ratio).collect();
        let mean = ratios.iter().sum::<f64>() / count as f64;
        let squares: f64 = ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum();
        let error = (squares / (count - 1) as f64 / count as f64).sqrt();
        let by = STUDENT[(count - 2).min(STUDENT.len() - 1)] * error;
        Some(Range { least: (mean - by).exp() - 1.0, most: (mean + by).exp() - 1.0 })
    }

    /// Returns the conclusion from the pairs so far.
    pub fn finding(&self) -> Finding {
        match self.change() {
            Some(change) if change.most < 0.0 && change.least < -SMALL => Finding::Less,
            Some(change) if change.least > 0.0 && change.most > SMALL => Finding::More,
            Some(change) if change.least >= -SMALL && change.most <= SMALL => Finding::Same,
            Some(change) if change.least >= -SMALL => Finding::NotLess,
            _ => Finding::Unknown,
        }
    }

    /// Returns whether more pairs would hardly change the result.
    ///
    /// That's so if the value isn't less, or the bounds are closer to each other than half the larger one.
    pub fn is_known(&self) -> bool {
        let narrow = |change: Range| {
            let size = change.least.abs().max(change.most.abs());
            change.most - change.least < (0.5 * size).max(SMALL)
        };
        match self.finding() {
            Finding::Same | Finding::NotLess => true,
            Finding::Less | Finding::More => self.change().is_some_and(narrow),
            Finding::Unknown => false,
        }
    }
}

/// Formats a change in percent with its sign. More than tenfold, it's a factor.
pub fn signed(change: Range) -> String {
    if change.most >= 9.0 {
        let times = |share: f64| crate::figures::count((1.0 + share).round() as u64);
        return match change.least >= 1.0 {
            true => format!("{} to {} times", times(change.least), times(change.most)),
            false => format!("up to {} times", times(change.most)),
        };
    }
    let of = |share: f64| match share.abs() * 100.0 {
        10.0.. => format!("{:+.0}", share * 100.0),
        _ => format!("{:+.1}", share * 100.0),
    };
    format!("{} to {} %", of(change.least), of(change.most))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a number from -0.5 to 0.5.
    fn random(state: &mut u64) -> f64 {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*state >> 33) as f64 / (1u64 << 31) as f64 - 0.5
    }

    /// Runs at most `most` pairs with this noise and true factor.
    fn tried(seed: u64, noise: f64, factor: f64, most: usize) -> PairedRuns {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1;
        let mut pairs = PairedRuns::default();
        while pairs.before.len() < most && !pairs.is_known() {
            let mut run = |factor: f64| {
                let sum: f64 = (0..12).map(|_| random(&mut state)).sum();
                1e9 * factor * (1.0 + noise * sum)
            };
            let before = run(1.0);
            pairs.add(before, run(factor));
        }
        pairs
    }

    #[test]
    fn what_changes_is_found_and_what_does_not_is_said_to_be_the_same() {
        let found = |noise, factor, finding| {
            let all = (0..200).filter(|&seed| tried(seed, noise, factor, 40).finding() == finding);
            all.count()
        };
        assert!(found(0.02, 0.7, Finding::Less) >= 198);
        assert!(found(0.02, 1.3, Finding::More) >= 198);
        assert!(found(0.003, 1.0, Finding::Same) + found(0.003, 1.0, Finding::NotLess) >= 190);
        // Without a true change, a change is hardly ever found, however noisy the runs are and however often we look.
        for noise in [0.003, 0.05, 0.3] {
            let wrong = found(noise, 1.0, Finding::Less) + found(noise, 1.0, Finding::More);
            assert!(wrong <= 12, "{wrong} of 200 at {noise}");
        }
    }

    #[test]
    fn bounds_hold_what_is_true_and_come_together() {
        let (mut held, mut widths) = (0, [0.0, 0.0]);
        for seed in 0..200 {
            for (width, most) in widths.iter_mut().zip([5, 20]) {
                let mut pairs = tried(seed, 0.1, 0.9, 4);
                let more = tried(seed + 1000, 0.1, 0.9, most);
                for (before, after) in more.before.iter().zip(&more.after) {
                    pairs.add(*before, *after);
                }
                let change = pairs.change().unwrap();
                held += u32::from(change.least <= -0.1 && -0.1 <= change.most);
                *width += change.most - change.least;
            }
        }
        assert!(held >= 380, "{held} of 400");
        assert!(widths[1] < widths[0] / 1.5, "{widths:?}");
    }

    #[test]
    fn nothing_is_no_change_and_few_pairs_say_nothing() {
        let mut pairs = PairedRuns::default();
        for _ in 0..3 {
            pairs.add(0.0, 0.0);
        }
        assert_eq!((pairs.change(), pairs.finding()), (None, Finding::Unknown));
        pairs.add(0.0, 0.0);
        assert_eq!(pairs.finding(), Finding::Same);
        assert!(pairs.is_known());
        let change = Range { least: -0.31, most: 0.004 };
        assert_eq!(signed(change), "-31 to +0.4 %");
        let times = |least, most| signed(Range { least, most });
        assert_eq!(times(81.2, 1244.9), "82 to 1 246 times");
        assert_eq!(times(-0.5, 9.0), "up to 10 times");
        let mut none = PairedRuns::default();
        (0..6).for_each(|_| none.add(0.0, 12.0));
        assert_eq!((none.change(), none.finding()), (None, Finding::Unknown));
    }
}

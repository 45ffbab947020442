//! Formats figures, and summarizes several of them.

pub use quell_workloads::numbers::{median, spread};
use serde::Serialize;

/// The verdict about a prediction, worst first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// A run didn't end, or there is no figure.
    Failed,
    /// The prediction is outside the tolerance.
    Miss,
    /// The prediction is within the tolerance.
    Hit,
}

impl Verdict {
    /// Returns the verdict's name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Failed => "failed",
            Verdict::Miss => "miss",
            Verdict::Hit => "hit",
        }
    }
}

/// A measure of how well predicted changes agree with published ones.
///
/// Each change is a ratio of after to before.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Skill {
    pub(crate) rows: usize,
    /// Spearman's rank correlation of predicted and published ratios. Absent if all predicted or all published ratios
    /// are equal.
    pub(crate) rank_correlation: Option<f64>,
    /// The median of |ln(predicted ratio / published ratio)|. Absent if it's infinite.
    pub(crate) median_log_error: Option<f64>,
    /// The same median for the trivial prediction that nothing changes.
    pub(crate) median_log_error_of_no_change: Option<f64>,
}

impl Skill {
    /// Computes the skill of pairs of a published and a predicted ratio.
    pub fn of(pairs: &[(f64, f64)]) -> Skill {
        let median_of = |errors: &mut dyn Iterator<Item = f64>| {
            let mut errors: Vec<f64> = errors.map(f64::abs).collect();
            median(&mut errors).filter(|error| error.is_finite())
        };
        Skill {
            rows: pairs.len(),
            rank_correlation: correlation(
                &ranks(&pairs.iter().map(|pair| pair.0).collect::<Vec<_>>()),
                &ranks(&pairs.iter().map(|pair| pair.1).collect::<Vec<_>>()),
            ),
            median_log_error: median_of(
                &mut pairs.iter().map(|(published, predicted)| (predicted / published).ln()),
            ),
            median_log_error_of_no_change: median_of(
                &mut pairs.iter().map(|(published, _)| published.ln()),
            ),
        }
    }

    /// Describes the skill in a sentence.
    pub fn words(&self) -> String {
        let shown = |value: Option<f64>| value.map_or_else(|| "-".into(), |v| format!("{v:.2}"));
        let factor = |error: Option<f64>| shown(error.map(f64::exp));
        format!(
            "Skill: over {} changes, the rank correlation of predicted and published ratios is {}; the median \
             prediction is off by a factor of {} (log error {}), and a guess that nothing changes by {} ({}).",
            self.rows,
            shown(self.rank_correlation),
            factor(self.median_log_error),
            shown(self.median_log_error),
            factor(self.median_log_error_of_no_change),
            shown(self.median_log_error_of_no_change),
        )
    }
}

/// Returns the rank of each value, from 1; equal values share the mean of their ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let below = values.iter().filter(|other| *other < value).count();
        let equal = values.iter().filter(|other| *other == value).count();
        below as f64 + (equal as f64 + 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

/// Returns Pearson's correlation; `None` if either side doesn't vary.
fn correlation(a: &[f64], b: &[f64]) -> Option<f64> {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let sum = |of: &dyn Fn(f64, f64) -> f64| {
        let pairs = a.iter().zip(b);
        pairs.map(|(&a, &b)| of(a - mean_a, b - mean_b)).sum::<f64>()
    };
    let spread = (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt();
    (spread > 0.0).then(|| sum(&|a, b| a * b) / spread)
}

/// Formats a figure with four digits.
pub fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Formats a change in percent. One that rounds to zero has a sign, too, because a prediction with the wrong sign is a
/// miss.
pub(crate) fn percent(change: f64) -> String {
    format!("{:+.1}", 100.0 * change)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skill_compares_with_a_guess_that_nothing_changes() {
        let perfect = Skill::of(&[(0.5, 0.5), (2.0, 2.0), (4.0, 4.0)]);
        assert_eq!(perfect.rank_correlation, Some(1.0));
        assert_eq!(perfect.median_log_error, Some(0.0));
        assert_eq!(perfect.median_log_error_of_no_change, Some(2f64.ln()));
        let reversed = Skill::of(&[(0.5, 4.0), (2.0, 2.0), (4.0, 0.5)]);
        assert_eq!(reversed.rank_correlation, Some(-1.0));
        assert_eq!(reversed.median_log_error, Some(8f64.ln()));
        // Half of the counts become zero: the median has no logarithm, and without a difference there is no
        // correlation.
        let nothing = Skill::of(&[(0.5, 0.0), (0.6, 0.0)]);
        assert_eq!((nothing.rank_correlation, nothing.median_log_error), (None, None));
        assert_eq!(Skill::of(&[]).median_log_error, None);
        assert_eq!(ranks(&[7.0, 1.0, 7.0]), [2.5, 1.0, 2.5]);
    }
}

//! Fits a kernel's path costs to the figures that a table published from before its change.
//!
//! [`fit`] gets a [`BeforeSide`], which has no run and no figure of the other side. So we can't fit anything to those.

use quell_clock::Parameter;

use super::Metric;
use crate::jobs::{Job, Results};

/// The most path costs that are fitted to a table.
pub const MOST: usize = 2;

/// The greatest factor by which a cost changes.
const FARTHEST: f64 = 32.0;
/// The greatest factor in one step.
const STEP: f64 = 4.0;
/// The change of a cost by which we measure its effect.
const PROBE: f64 = 1.25;
/// The effect, as a share of a cost's change, below which a figure doesn't depend on the cost.
const NO_EFFECT: f64 = 0.05;
/// The size of a step at which the fit ends.
const FINE: f64 = 0.01;
/// The most steps.
const STEPS: usize = 6;

/// A run of the kernel before the change and the published figure for it.
#[derive(Clone, Debug)]
pub(super) struct BeforeRow {
    pub job: Job,
    pub reads: Metric,
    pub published: f64,
    pub unit: String,
}

/// All published figures from before a change.
#[derive(Clone, Debug)]
pub(super) struct BeforeSide(pub Vec<BeforeRow>);

/// A path cost, and the factor to which the fit changed it.
pub type Factor = (Parameter, f64);

/// Returns the same run with these costs changed.
pub(super) fn changed(job: &Job, factors: &[Factor]) -> Job {
    let scale = |machine, &(parameter, factor): &Factor| {
        quell_clock::MachineFile::scaled(&machine, parameter, factor)
    };
    let machine = (factors.iter()).fold((*job.machine).clone(), scale);
    Job { machine: machine.into(), variant: format!("{} {factors:?}", job.variant), ..job.clone() }
}

impl BeforeSide {
    /// Returns the logarithms of model over published, of the figures whose units can be compared.
    fn errors(&self, factors: &[Factor], results: &mut Results) -> Vec<f64> {
        let jobs: Vec<Job> = (self.0.iter()).map(|row| changed(&row.job, factors)).collect();
        results.run("fitting to figures from before", jobs.iter().cloned());
        let error = |(row, job): (&BeforeRow, &Job)| {
            let outcome = results.get(job).ok()?;
            let unit = row.reads.unit(outcome.measure.metric);
            let published = row.published * conversion(&row.unit, &unit)?;
            Some((row.reads.of(outcome) / published).ln()).filter(|error| error.is_finite())
        };
        self.0.iter().zip(&jobs).filter_map(error).collect()
    }
}

/// Fits at most [`MOST`] path costs to the figures from before a change, by least squares of logarithms. Returns
/// nothing if no figure can be compared or no cost matters.
pub(super) fn fit(
    before: &BeforeSide,
    parameters: &[Parameter],
    results: &mut Results,
) -> Vec<Factor> {
    let mut published: Vec<f64> = before.0.iter().map(|row| row.published).collect();
    published.dedup();
    // Fit no more costs than there are figures.
    let most = MOST.min(published.len());
    let parameters = &parameters[..parameters.len().min(most)];
    let mut factors: Vec<Factor> = parameters.iter().map(|&one| (one, 1.0)).collect();
    let square = |errors: &[f64]| errors.iter().map(|error| error * error).sum::<f64>();
    let mut errors = before.errors(&factors, results);
    if errors.is_empty() {
        return Vec::new();
    }
    for _ in 0..STEPS {
        let slopes: Vec<Vec<f64>> = (0..factors.len())
            .map(|index| {
                let mut probed = factors.clone();
                probed[index].1 *= PROBE;
                let there = before.errors(&probed, results);
                let slope = |(there, here): (f64, &f64)| (there - here) / PROBE.ln();
                there.into_iter().zip(&errors).map(slope).collect()
            })
            .collect();
        let Some(steps) = least_squares(&slopes, &errors) else {
            break;
        };
        let mut length = 1.0;
        // Halve a step that makes it worse.
        let better = loop {
            let mut next = factors.clone();
            for ((_, factor), step) in next.iter_mut().zip(&steps) {
                let step = (step * length).clamp(-STEP.ln(), STEP.ln());
                *factor = (*factor * step.exp()).clamp(1.0 / FARTHEST, FARTHEST);
            }
            let there = before.errors(&next, results);
            if square(&there) < square(&errors) {
                break Some((next, there));
            }
            length /= 2.0;
            if length < 0.2 {
                break None;
            }
        };
        let Some((next, there)) = better else { break };
        let moved = next.iter().zip(&factors);
        let far = moved.map(|(new, old)| (new.1 / old.1).ln().abs());
        let far = far.fold(0.0, f64::max);
        (factors, errors) = (next, there);
        if far < FINE {
            break;
        }
    }
    factors.retain(|(_, factor)| *factor != 1.0);
    factors
}

/// Returns the steps that make the errors smallest if they are linear. `None` if nothing has an effect.
fn least_squares(slopes: &[Vec<f64>], errors: &[f64]) -> Option<Vec<f64>> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    if slopes.iter().all(|slope| dot(slope, slope) < NO_EFFECT * NO_EFFECT * errors.len() as f64) {
        return None;
    }
    // We add a little to the squares, so that costs with the same effect share it, and costs without effect stay.
    let square = |index: usize| dot(&slopes[index], &slopes[index]) * 1.01 + 1e-4;
    let right: Vec<f64> = slopes.iter().map(|slope| -dot(slope, errors)).collect();
    let solution = match slopes.len() {
        1 => vec![right[0] / square(0)],
        2 => {
            let both = dot(&slopes[0], &slopes[1]);
            let determinant = square(0) * square(1) - both * both;
            vec![
                (right[0] * square(1) - right[1] * both) / determinant,
                (right[1] * square(0) - right[0] * both) / determinant,
            ]
        }
        _ => return None,
    };
    solution.iter().all(|step| step.is_finite()).then_some(solution)
}

/// Returns the factor from one unit to another; `None` if they can't be compared, for example `s` and `us per page`.
///
/// We compare the first words (times, or numbers of things with a prefix), and whether they are for each operation.
fn conversion(from: &str, to: &str) -> Option<f64> {
    let (from, to) = (Unit::of(from)?, Unit::of(to)?);
    let same = from.time == to.time && from.each == to.each;
    same.then(|| from.factor / to.factor)
}

struct Unit {
    factor: f64,
    time: bool,
    each: bool,
}

impl Unit {
    fn of(text: &str) -> Option<Unit> {
        let each = text.contains('/') || text.contains(" per ") || text.contains(" a second");
        let first = text.split([' ', '/']).next()?;
        let (factor, time) = match first {
            "ns" => (1e-9, true),
            "us" => (1e-6, true),
            "ms" => (1e-3, true),
            "s" => (1.0, true),
            "k" => (1e3, false),
            "M" | "MB" => (1e6, false),
            "G" | "GB" => (1e9, false),
            "" => return None,
            _ => (1.0, false),
        };
        Some(Unit { factor, time, each })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_the_same_kind_are_converted() {
        let close = |from, to, factor: f64| {
            let found: f64 = conversion(from, to).unwrap();
            assert!((found / factor - 1.0).abs() < 1e-9, "{from} {to}: {found}");
        };
        close("k loops/s", "M loops a second", 1e-3);
        close("ns/call", "ns per call", 1.0);
        close("us/call", "ns per call", 1e3);
        close("1/s", "interrupts/s", 1.0);
        assert!(conversion("s", "us per page").is_none(), "a whole run");
        assert!(conversion("ns/call", "M calls a second").is_none());
    }

    #[test]
    fn least_squares_finds_both_steps() {
        let (slopes, wanted) = (vec![vec![1.0, 2.0, 0.5], vec![0.5, -1.0, 3.0]], [0.3, -0.2]);
        let errors: Vec<f64> =
            (0..3).map(|row| -(slopes[0][row] * wanted[0] + slopes[1][row] * wanted[1])).collect();
        let found = least_squares(&slopes, &errors).unwrap();
        for (found, wanted) in found.iter().zip(wanted) {
            assert!((found - wanted).abs() < 0.02, "{found} {wanted}");
        }
        assert!(least_squares(&[vec![0.0]], &[1.0]).is_none());
    }
}

//! Estimates how soon memory that was given back is touched again.
//!
//! Windows often end before that. Memory that wasn't touched before its window ended may be touched just after it, or
//! never. If we counted that as never, we'd understate the use of keeping memory. So we follow each range for as long
//! as we can. The share that stays untouched for a time is a product over all shorter times. Each factor is the share
//! of the followed ranges that stayed untouched (Kaplan and Meier's estimate).

/// Bounds between the bins, in nanoseconds: from 10 us to 10 s.
pub const BINS: [u64; 7] =
    [10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000];

/// Returns the index of the first bound above a time. Without one, returns `BINS.len()`.
pub fn bin(ns: u64) -> usize {
    BINS.iter().position(|&bound| ns < bound).unwrap_or(BINS.len())
}

/// Counts by bin.
pub type Bins = [u64; BINS.len() + 1];

/// Sums the bins up to and including the one that ends at `BINS[last]`.
pub fn within(bins: &Bins, last: usize) -> u64 {
    bins.iter().take(last + 1).sum()
}

/// The bound of the *rule of three*, times the number of observations.
///
/// If none of n observations did something, then with 95 % confidence less than 3 / n of all would (Hanley and
/// Lippman-Hand, *If nothing goes wrong, is everything all right?*, JAMA 249, 1983).
const NONE_DID: f64 = 3.0;

/// Ranges that ended in one way, by the time since they were given back.
#[derive(Clone, Debug, Default)]
struct Endings {
    /// The sum of their weights.
    counts: Bins,
    /// The sum of their squared weights, for the effective number of observations.
    squares: [f64; BINS.len() + 1],
}

impl Endings {
    fn add(&mut self, after_ns: u64, interrupts: u64) {
        let (at, counts) = (bin(after_ns), interrupts.max(1));
        self.counts[at] += counts;
        self.squares[at] += (counts as f64).powi(2);
    }

    fn all(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Ranges by the time until they were touched, or for which we followed them.
///
/// The weight of a range is its number of interrupts, at least 1. We also count ranges without interrupts: a program
/// that seldom runs on two CPUs at once uses its memory in the same way when it does.
#[derive(Clone, Debug, Default)]
pub struct ReuseTimes {
    touched: Endings,
    /// Ranges that were given back again, or that we couldn't follow any longer.
    left: Endings,
}

/// One bin's observations.
#[derive(Clone, Copy)]
struct Step {
    /// The share of the untouched ranges that is touched in this bin.
    touched: f64,
    /// The effective number of observations. Ranges of unequal weight count as fewer: as many as would vary as much
    /// with equal weights (Kish, *Survey Sampling*, 1965).
    observed: f64,
}

impl ReuseTimes {
    /// Counts a range that was touched `after_ns` after its call, which sent this many interrupts.
    pub fn touched(&mut self, after_ns: u64, interrupts: u64) {
        self.touched.add(after_ns, interrupts);
    }

    /// Counts a range that wasn't touched while we followed it.
    pub fn left(&mut self, after_ns: u64, interrupts: u64) {
        self.left.add(after_ns, interrupts);
    }

    /// Returns the total weight of the ranges that were touched.
    pub fn known(&self) -> u64 {
        self.touched.all()
    }

    /// Returns the step of each bin of [`BINS`]. `None` where fewer than a twentieth could still be followed.
    fn steps(&self) -> [Option<Step>; BINS.len()] {
        let all = (self.touched.all() + self.left.all()) as f64;
        let (touched, left) = (&self.touched, &self.left);
        let mut followed = all;
        let mut squares: f64 = touched.squares.iter().chain(&left.squares).sum();
        let mut steps = [None; BINS.len()];
        for (at, step) in steps.iter_mut().enumerate() {
            // Ranges that left did so somewhere in the bin: half of them count as followed.
            let there = followed - left.counts[at] as f64 / 2.0;
            if followed * 20.0 >= all && there > 0.0 {
                *step = Some(Step {
                    touched: touched.counts[at] as f64 / there,
                    observed: there.powi(2) / (squares - left.squares[at] / 2.0),
                });
            }
            followed -= (touched.counts[at] + left.counts[at]) as f64;
            squares -= touched.squares[at] + left.squares[at];
        }
        steps
    }

    /// Estimates the share that is touched before each bound of [`BINS`]. Where fewer than a twentieth could still be
    /// followed, the share stays as it was.
    pub fn within(&self) -> [f64; BINS.len()] {
        let mut untouched = 1.0;
        self.steps().map(|step| {
            untouched *= step.map_or(1.0, |step| (1.0 - step.touched).max(0.0));
            1.0 - untouched
        })
    }

    /// Computes bounds for these shares, `deviations` standard deviations to each side.
    ///
    /// `missed` is the share of all ranges that wasn't recorded. If nothing was missed, there is no uncertainty.
    ///
    /// The variance is Greenwood's (*The natural duration of cancer*, Reports on Public Health and Medical Subjects
    /// 33, 1926). The logarithm of the untouched share varies by the sum of q / (p n) over all bins, where each bin
    /// leaves p and takes q of n observations. The deviation is taken from the logarithm of the negative of that
    /// logarithm. This keeps bounds between 0 and 1, and puts the farther one on the side with more room (Kalbfleisch
    /// and Prentice, *The Statistical Analysis of Failure Time Data*, 1980).
    ///
    /// That formula fails for a share of none or of all, because these show no variance. There the bound is the rule
    /// of three's, whatever the `deviations`. If none of n were touched, up to 3 / n may be. If all were, up to 3 / n
    /// of those that the last bin took may not be. With no observation, or one range of many, the share may be
    /// anything.
    pub fn between(&self, deviations: f64, missed: f64) -> [(f64, f64); BINS.len()] {
        let (mut untouched, mut variance) = (1.0, 0.0);
        let mut between = (0.0, 1.0);
        self.steps().map(|step| {
            if let Some(Step { touched, observed }) = step {
                let unseen = (NONE_DID * missed / observed).min(1.0);
                let (_, most) = between;
                if touched >= 1.0 {
                    untouched = 0.0;
                    between = (0.0, most * unseen);
                } else {
                    untouched *= 1.0 - touched;
                    variance += touched / ((1.0 - touched) * observed);
                    between = match untouched < 1.0 {
                        true => log_log(untouched, variance * missed, deviations),
                        false => (1.0 - unseen, 1.0),
                    };
                }
            }
            let (least, most) = between;
            (1.0 - most, 1.0 - least)
        })
    }

    /// Returns the share of the ranges whose fate is known up to that bound.
    ///
    /// These were touched, or followed for longer.
    pub fn followed(&self, last: usize) -> f64 {
        let all = self.touched.all() + self.left.all();
        let left: u64 = self.left.counts.iter().take(last + 1).sum();
        1.0 - left as f64 / all.max(1) as f64
    }
}

/// Computes the bounds of a share on the log-log scale. `variance` is that of the share's logarithm.
fn log_log(share: f64, variance: f64, deviations: f64) -> (f64, f64) {
    let by = (deviations * variance.sqrt() / share.ln()).exp();
    // The logarithm is negative, so `by` is below 1.
    (share.powf(by.recip()), share.powf(by))
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn all_that_is_followed_long_enough_counts_as_it_is() {
        let mut reuse = ReuseTimes::default();
        reuse.touched(5 * MS, 60);
        reuse.touched(50 * MS, 30);
        reuse.left(20_000 * MS, 10);
        let within = reuse.within();
        assert!((within[bin(5 * MS)] - 0.6).abs() < 1e-9, "{within:?}");
        assert!((within[bin(50 * MS)] - 0.9).abs() < 1e-9, "{within:?}");
        assert!((within[BINS.len() - 1] - 0.9).abs() < 1e-9, "{within:?}");
        assert_eq!((reuse.known(), reuse.followed(BINS.len() - 1)), (90, 1.0));
    }

    /// Returns ranges touched after 1 to 20 ms, recorded in windows of `stretch` ms.
    fn in_stretches(stretch: u64) -> ReuseTimes {
        let mut reuse = ReuseTimes::default();
        for given_back in 0..stretch * 10 {
            for touched in 1..=20 {
                let left = (stretch * 10 - given_back) * MS / 10;
                match touched * MS < left {
                    true => reuse.touched(touched * MS, 1),
                    false => reuse.left(left, 1),
                }
            }
        }
        reuse
    }

    #[test]
    fn short_stretches_do_not_make_reuse_rare() {
        let (long, short) = (in_stretches(10_000), in_stretches(30));
        let share = |reuse: &ReuseTimes| reuse.within()[bin(20 * MS)];
        assert!(share(&long) > 0.99, "{:?}", long.within());
        assert!(share(&short) > 0.9, "{:?}", short.within());
        // If the ranges that left counted as never touched, a third would be hidden.
        let all = short.touched.all() + short.left.all();
        assert!(short.known() * 3 < all * 2, "{short:?}");
    }

    #[test]
    fn of_what_cannot_be_followed_nothing_more_is_said() {
        let mut reuse = ReuseTimes::default();
        reuse.touched(MS / 2, 50);
        reuse.left(2 * MS, 50);
        let within = reuse.within();
        assert!((within[BINS.len() - 1] - 0.5).abs() < 1e-9, "{within:?}");
        assert!((reuse.followed(BINS.len() - 1) - 0.5).abs() < 1e-9);
        assert_eq!(ReuseTimes::default().within(), [0.0; BINS.len()]);
    }

    /// Returns the bounds of that bin, in thousandths.
    fn thousandths(reuse: &ReuseTimes, deviations: f64, at: usize) -> (i64, i64) {
        let (least, most) = reuse.between(deviations, 1.0)[at];
        let of = |share: f64| (share * 1000.0).round() as i64;
        (of(least), of(most))
    }

    fn time_in(at: usize) -> u64 {
        BINS.get(at).map_or(BINS[BINS.len() - 1], |bound| bound - 1)
    }

    /// Compares the bounds with those of a known trial.
    ///
    /// Twenty-one patients with leukaemia were given 6-mercaptopurine (Freireich and others, Blood 21, 1963; Gehan,
    /// Biometrika 52, 1965). These are the weeks until their remission ended, or until they were followed no longer
    /// (+): 6 6 6 6+ 7 9+ 10 10+ 11+ 13 16 and ten more. The confidence intervals (95 %) of being in remission, as
    /// statistics programs print them, are 0.620 to 0.952 after 6 weeks, 0.563 to 0.923 after 7, 0.503 to 0.889 after
    /// 10, and 0.432 to 0.849 after 13.
    #[test]
    fn bounds_are_those_of_a_known_trial() {
        let mut reuse = ReuseTimes::default();
        let weeks = [(true, 3), (false, 1), (true, 1), (false, 1), (true, 1)];
        let weeks = weeks.into_iter().chain([(false, 2), (true, 1), (false, 11)]);
        for (at, (ended, patients)) in weeks.enumerate() {
            for _ in 0..patients {
                if ended { reuse.touched(time_in(at), 0) } else { reuse.left(time_in(at), 0) }
            }
        }
        let bounds = [0, 2, 4, 6].map(|at| thousandths(&reuse, 1.96, at));
        assert_eq!(bounds, [(48, 380), (77, 437), (111, 497), (151, 568)]);
        // In a week without an ended remission the bounds stay the same.
        assert_eq!(reuse.between(1.96, 1.0)[1], reuse.between(1.96, 1.0)[0]);
        // If a fourth of all was missed, two deviations reach as far as one if nearly all was.
        let [fourth, all] =
            [(2.0, 0.25), (1.0, 1.0)].map(|(by, missed)| reuse.between(by, missed)[6]);
        assert!(holds(fourth, all) && holds(all, fourth), "{fourth:?} {all:?}");
    }

    #[test]
    fn of_none_of_all_and_of_one_nothing_is_sure() {
        let of = |touched: u64, left: u64| {
            let mut reuse = ReuseTimes::default();
            (0..touched).for_each(|_| reuse.touched(MS / 2, 0));
            (0..left).for_each(|_| reuse.left(20_000 * MS, 0));
            thousandths(&reuse, 2.0, bin(MS / 2))
        };
        for (touched, left) in [(0, 0), (1, 0), (0, 1), (3, 0), (0, 3)] {
            assert_eq!(of(touched, left), (0, 1000), "{touched} {left}");
        }
        assert_eq!((of(100, 0), of(0, 100)), ((970, 1000), (0, 30)));
        // If nothing was missed, there is no uncertainty.
        let mut reuse = ReuseTimes::default();
        reuse.touched(MS / 2, 1);
        let all = reuse.between(2.0, 0.0)[bin(MS / 2)];
        assert_eq!(all, (1.0, 1.0));
        // The 20 ranges that were left at 1 ms were all touched in the end. Bounds from 20 observations are wider than
        // from 100.
        let mut reuse = ReuseTimes::default();
        (0..80).for_each(|_| reuse.touched(MS / 2, 0));
        (0..20).for_each(|_| reuse.touched(5 * MS, 0));
        let (least, most) = thousandths(&reuse, 2.0, bin(5 * MS));
        assert!((950..970).contains(&least) && most == 1000, "{least}");
    }

    #[test]
    fn a_range_that_interrupted_many_is_one_observation() {
        let of = |ranges: u64, interrupts: u64| {
            let mut reuse = ReuseTimes::default();
            (0..ranges).for_each(|_| reuse.touched(MS / 2, interrupts));
            (0..ranges).for_each(|_| reuse.left(20_000 * MS, interrupts));
            thousandths(&reuse, 2.0, bin(MS / 2))
        };
        assert_eq!(of(10, 63), of(10, 1));
        assert!(of(10, 63).0 < of(630, 1).0 && of(10, 63).1 > of(630, 1).1);
    }

    prop_compose! {
        /// Ranges: whether each was touched, in which bin, and how many it interrupted.
        fn ranges()(
            ranges in prop::collection::vec((any::<bool>(), 0..=BINS.len(), 0..70u64), 0..40),
        ) -> Vec<(bool, usize, u64)> {
            ranges
        }
    }

    /// Returns a [`ReuseTimes`] with each of these ranges, repeated `times` times.
    pub(crate) fn seen(ranges: &[(bool, usize, u64)], times: u64) -> ReuseTimes {
        let mut reuse = ReuseTimes::default();
        for &(touched, at, interrupts) in ranges {
            for _ in 0..times {
                match touched {
                    true => reuse.touched(time_in(at), interrupts),
                    false => reuse.left(time_in(at), interrupts),
                }
            }
        }
        reuse
    }

    /// Returns whether a range contains another, up to rounding.
    fn holds(outer: (f64, f64), inner: (f64, f64)) -> bool {
        outer.0 <= inner.0 + 1e-9 && inner.1 <= outer.1 + 1e-9
    }

    proptest! {
        #[test]
        fn fewer_observations_never_say_more(ranges in ranges(), times in 2..9u64, missed in 0.0..1.0f64) {
            let (few, many) = (seen(&ranges, 1), seen(&ranges, times));
            // The same interrupts, each from a range of its own.
            let mut alone = ReuseTimes::default();
            for &(touched, at, interrupts) in &ranges {
                let each = seen(&[(touched, at, 1)], interrupts.max(1));
                for (all, each) in [(&mut alone.touched, each.touched), (&mut alone.left, each.left)] {
                    all.counts.iter_mut().zip(each.counts).for_each(|(all, each)| *all += each);
                    all.squares.iter_mut().zip(each.squares).for_each(|(all, each)| *all += each);
                }
            }
            let within = few.within();
            for (at, &exact) in within.iter().enumerate() {
                let [few, many, alone] = [&few, &many, &alone].map(|reuse| reuse.between(2.0, missed)[at]);
                prop_assert!(holds(few, many) && holds(few, alone), "{few:?} {many:?} {alone:?}");
                prop_assert!(holds((0.0, 1.0), few) && holds(few, (exact, exact)), "{few:?} {exact:?}");
            }
        }
    }
}

//! How soon what was given back is touched again, from recordings that often end before it is.
//!
//! Where only stretches of time are recorded, a range that was not touched before its stretch ended may have been
//! touched just after it, or never. To count it as never would say that keeping memory helps less than it does. So each
//! range is followed as long as it can be, and the share that is touched within a time is the product over all shorter
//! times of the share that was not touched among those that could still be followed (Kaplan and Meier's estimate).

use super::bins::{BINS, Bins, bin};

/// Of so many that were seen, none of which did something, that is less than this divided by their number which would,
/// with 95 % confidence: the *rule of three* (Hanley and Lippman-Hand, *If nothing goes wrong, is everything all right?*,
/// JAMA 249, 1983).
const NONE_DID: f64 = 3.0;

/// What ended so, by how long after it was given back.
#[derive(Clone, Debug, Default)]
struct Endings {
    /// Each as often as it counts.
    counts: Bins,
    /// The squares of that: of how many observations these counts are.
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

/// Ranges by how soon they were touched, and by how long they were followed without that. Each counts as often as it
/// interrupted others, and once if it did not: a program that seldom runs on two CPUs at once uses its memory as it
/// does when it does.
#[derive(Clone, Debug, Default)]
pub struct Reuse {
    touched: Endings,
    /// Those that were given back again, or could be followed no longer.
    left: Endings,
}

/// What could be followed up to a bin's end.
#[derive(Clone, Copy)]
struct Step {
    /// The share that was touched in this bin of what was not before.
    touched: f64,
    /// How many observations this share is of. Of ranges that count so differently it is fewer than there were: as many
    /// as would deviate as much if all counted alike (Kish, *Survey Sampling*, 1965).
    observed: f64,
}

impl Reuse {
    /// A range that had interrupted so many others was touched after so long.
    pub fn touched(&mut self, after_ns: u64, interrupts: u64) {
        self.touched.add(after_ns, interrupts);
    }

    /// A range was not touched as long as it was followed.
    pub fn left(&mut self, after_ns: u64, interrupts: u64) {
        self.left.add(after_ns, interrupts);
    }

    /// How many ranges are known to have been touched, as they count.
    pub fn known(&self) -> u64 {
        self.touched.all()
    }

    /// What each bin of [`BINS`] tells. Nothing, from where fewer than a twentieth could still be followed.
    fn steps(&self) -> [Option<Step>; BINS.len()] {
        let all = (self.touched.all() + self.left.all()) as f64;
        let (touched, left) = (&self.touched, &self.left);
        let mut followed = all;
        let mut squares: f64 = touched.squares.iter().chain(&left.squares).sum();
        let mut steps = [None; BINS.len()];
        for (at, step) in steps.iter_mut().enumerate() {
            // Those that left did so somewhere between the bin's bounds.
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

    /// Which share is touched before each bound of [`BINS`]. From where fewer than a twentieth could still be followed
    /// the share stays what it was: more is not known.
    pub fn within(&self) -> [f64; BINS.len()] {
        let mut untouched = 1.0;
        self.steps().map(|step| {
            untouched *= step.map_or(1.0, |step| (1.0 - step.touched).max(0.0));
            1.0 - untouched
        })
    }

    /// Between which bounds these shares lie, at least and at most, if so few were followed of all, of which this share
    /// was `missed`: so many standard `deviations` to each side. Of what was followed whole there is nothing to be
    /// unsure of.
    ///
    /// The variance is Greenwood's (*The natural duration of cancer*, Reports on Public Health and Medical Subjects 33,
    /// 1926): the logarithm of the share that is not touched varies by the sum of q / (p n) over all bins, of which each
    /// leaves p and takes q of n observations. The deviation is taken from the logarithm of the negative of that
    /// logarithm, so that bounds lie between 0 and 1 and on the side where there is room the further off (Kalbfleisch
    /// and Prentice, *The Statistical Analysis of Failure Time Data*, 1980).
    ///
    /// That says nothing of a share of none or of all, which did not vary. There the bound is the rule of three's,
    /// whatever the `deviations`: of none that were touched, of those that could be followed so long, 3 / n may have
    /// been; and of all, 3 / n of those that the last bin with any took may not. Where nothing was observed, or one
    /// range alone of many, the share may be any.
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

    /// Which share was followed longer than that bound, or touched before: what of the ranges is known up to it.
    pub fn followed(&self, last: usize) -> f64 {
        let all = self.touched.all() + self.left.all();
        let left: u64 = self.left.counts.iter().take(last + 1).sum();
        1.0 - left as f64 / all.max(1) as f64
    }
}

/// The bounds of a share between 0 and 1 whose logarithm has this variance, by its logarithm's logarithm.
fn log_log(share: f64, variance: f64, deviations: f64) -> (f64, f64) {
    let by = (deviations * variance.sqrt() / share.ln()).exp();
    // The logarithm is negative: this is below 1.
    (share.powf(by.recip()), share.powf(by))
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn all_that_is_followed_long_enough_counts_as_it_is() {
        let mut reuse = Reuse::default();
        reuse.touched(5 * MS, 60);
        reuse.touched(50 * MS, 30);
        reuse.left(20_000 * MS, 10);
        let within = reuse.within();
        assert!((within[bin(5 * MS)] - 0.6).abs() < 1e-9, "{within:?}");
        assert!((within[bin(50 * MS)] - 0.9).abs() < 1e-9, "{within:?}");
        assert!((within[BINS.len() - 1] - 0.9).abs() < 1e-9, "{within:?}");
        assert_eq!((reuse.known(), reuse.followed(BINS.len() - 1)), (90, 1.0));
    }

    /// Everything is touched after 1 to 20 ms, and recorded in stretches of so many ms.
    fn in_stretches(stretch: u64) -> Reuse {
        let mut reuse = Reuse::default();
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
        let share = |reuse: &Reuse| reuse.within()[bin(20 * MS)];
        assert!(share(&long) > 0.99, "{:?}", long.within());
        assert!(share(&short) > 0.9, "{:?}", short.within());
        // Counted as never, what was left would hide a third.
        let all = short.touched.all() + short.left.all();
        assert!(short.known() * 3 < all * 2, "{short:?}");
    }

    #[test]
    fn of_what_cannot_be_followed_nothing_more_is_said() {
        let mut reuse = Reuse::default();
        reuse.touched(MS / 2, 50);
        reuse.left(2 * MS, 50);
        let within = reuse.within();
        assert!((within[BINS.len() - 1] - 0.5).abs() < 1e-9, "{within:?}");
        assert!((reuse.followed(BINS.len() - 1) - 0.5).abs() < 1e-9);
        assert_eq!(Reuse::default().within(), [0.0; BINS.len()]);
    }

    /// The bounds of that bin, in thousandths.
    fn thousandths(reuse: &Reuse, deviations: f64, at: usize) -> (i64, i64) {
        let (least, most) = reuse.between(deviations, 1.0)[at];
        let of = |share: f64| (share * 1000.0).round() as i64;
        (of(least), of(most))
    }

    /// A time of that bin.
    fn time_in(at: usize) -> u64 {
        BINS.get(at).map_or(BINS[BINS.len() - 1], |bound| bound - 1)
    }

    /// Twenty-one patients with leukaemia who were given 6-mercaptopurine (Freireich and others, Blood 21, 1963; Gehan,
    /// Biometrika 52, 1965): weeks until their remission ended, or until they were followed no longer (+): 6 6 6 6+ 7 9+
    /// 10 10+ 11+ 13 16 and ten more. With 95 % confidence in remission after 6 weeks are 0.620 to 0.952, after 7 0.563
    /// to 0.923, after 10 0.503 to 0.889, after 13 0.432 to 0.849, as statistics' programs print it.
    #[test]
    fn bounds_are_those_of_a_known_trial() {
        let mut reuse = Reuse::default();
        let weeks = [(true, 3), (false, 1), (true, 1), (false, 1), (true, 1)];
        let weeks = weeks
            .into_iter()
            .chain([(false, 2), (true, 1), (false, 11)]);
        for (at, (ended, patients)) in weeks.enumerate() {
            for _ in 0..patients {
                match ended {
                    true => reuse.touched(time_in(at), 0),
                    false => reuse.left(time_in(at), 0),
                }
            }
        }
        let bounds = [0, 2, 4, 6].map(|at| thousandths(&reuse, 1.96, at));
        assert_eq!(bounds, [(48, 380), (77, 437), (111, 497), (151, 568)]);
        // Where no remission ended in between, nothing more is known.
        assert_eq!(reuse.between(1.96, 1.0)[1], reuse.between(1.96, 1.0)[0]);
        // Where a fourth of all was missed, two deviations go as far as one where nearly all was.
        let [fourth, all] =
            [(2.0, 0.25), (1.0, 1.0)].map(|(by, missed)| reuse.between(by, missed)[6]);
        assert!(
            holds(fourth, all) && holds(all, fourth),
            "{fourth:?} {all:?}"
        );
    }

    #[test]
    fn of_none_of_all_and_of_one_nothing_is_sure() {
        let of = |touched: u64, left: u64| {
            let mut reuse = Reuse::default();
            (0..touched).for_each(|_| reuse.touched(MS / 2, 0));
            (0..left).for_each(|_| reuse.left(20_000 * MS, 0));
            thousandths(&reuse, 2.0, bin(MS / 2))
        };
        for (touched, left) in [(0, 0), (1, 0), (0, 1), (3, 0), (0, 3)] {
            assert_eq!(of(touched, left), (0, 1000), "{touched} {left}");
        }
        assert_eq!((of(100, 0), of(0, 100)), ((970, 1000), (0, 30)));
        // Of what was followed whole there is nothing to be unsure of.
        let mut reuse = Reuse::default();
        reuse.touched(MS / 2, 1);
        let all = reuse.between(2.0, 0.0)[bin(MS / 2)];
        assert_eq!(all, (1.0, 1.0));
        // All that were left were touched in the end: of these few that says less than of all.
        let mut reuse = Reuse::default();
        (0..80).for_each(|_| reuse.touched(MS / 2, 0));
        (0..20).for_each(|_| reuse.touched(5 * MS, 0));
        let (least, most) = thousandths(&reuse, 2.0, bin(5 * MS));
        assert!((950..970).contains(&least) && most == 1000, "{least}");
    }

    #[test]
    fn a_range_that_interrupted_many_is_one_observation() {
        let of = |ranges: u64, interrupts: u64| {
            let mut reuse = Reuse::default();
            (0..ranges).for_each(|_| reuse.touched(MS / 2, interrupts));
            (0..ranges).for_each(|_| reuse.left(20_000 * MS, interrupts));
            thousandths(&reuse, 2.0, bin(MS / 2))
        };
        assert_eq!(of(10, 63), of(10, 1));
        assert!(of(10, 63).0 < of(630, 1).0 && of(10, 63).1 > of(630, 1).1);
    }

    prop_compose! {
        /// Ranges: whether each was touched, in which bin, and how many it interrupted.
        pub(crate) fn ranges()(
            ranges in prop::collection::vec((any::<bool>(), 0..=BINS.len(), 0..70u64), 0..40),
        ) -> Vec<(bool, usize, u64)> {
            ranges
        }
    }

    /// Each of them so many times.
    pub(crate) fn seen(ranges: &[(bool, usize, u64)], times: u64) -> Reuse {
        let mut reuse = Reuse::default();
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

    /// Whether a range holds another, but for what is rounded.
    pub(crate) fn holds(outer: (f64, f64), inner: (f64, f64)) -> bool {
        outer.0 <= inner.0 + 1e-9 && inner.1 <= outer.1 + 1e-9
    }

    proptest! {
        #[test]
        fn fewer_observations_never_say_more(ranges in ranges(), times in 2..9u64, missed in 0.0..1.0f64) {
            let (few, many) = (seen(&ranges, 1), seen(&ranges, times));
            // As many interrupts, each of a range of its own.
            let mut alone = Reuse::default();
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

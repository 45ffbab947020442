//! How soon what was given back is touched again, from recordings that often end before it is.
//!
//! Where only stretches of time are recorded, a range that was not touched before its stretch ended may have been
//! touched just after it, or never. To count it as never would say that keeping memory helps less than it does. So each
//! range is followed as long as it can be, and the share that is touched within a time is the product over all shorter
//! times of the share that was not touched among those that could still be followed (Kaplan and Meier's estimate).

use super::bins::{BINS, Bins, bin};

/// Ranges by how soon they were touched, and by how long they were followed without that. Each counts as often as it
/// interrupted others, and once if it did not: a program that seldom runs on two CPUs at once uses its memory as it
/// does when it does.
#[derive(Clone, Debug, Default)]
pub struct Reuse {
    touched: Bins,
    /// Those that were given back again, or could be followed no longer.
    left: Bins,
}

impl Reuse {
    /// A range that had interrupted so many others was touched after so long.
    pub fn touched(&mut self, after_ns: u64, interrupts: u64) {
        self.touched[bin(after_ns)] += interrupts.max(1);
    }

    /// A range was not touched as long as it was followed.
    pub fn left(&mut self, after_ns: u64, interrupts: u64) {
        self.left[bin(after_ns)] += interrupts.max(1);
    }

    /// How many ranges are known to have been touched, as they count.
    pub fn known(&self) -> u64 {
        self.touched.iter().sum()
    }

    /// Which share is touched before each bound of [`BINS`]. From where fewer than a twentieth could still be followed
    /// the share stays what it was: more is not known.
    pub fn within(&self) -> [f64; BINS.len()] {
        let all: u64 = self.touched.iter().chain(&self.left).sum();
        let (mut followed, mut untouched) = (all as f64, 1.0);
        let mut within = [0.0; BINS.len()];
        for (at, share) in within.iter_mut().enumerate() {
            let (touched, left) = (self.touched[at] as f64, self.left[at] as f64);
            // Those that left did so somewhere between the bin's bounds.
            let there = followed - left / 2.0;
            if followed * 20.0 >= all as f64 && there > 0.0 {
                untouched *= (1.0 - touched / there).max(0.0);
            }
            followed -= touched + left;
            *share = 1.0 - untouched;
        }
        within
    }

    /// Which share was followed longer than that bound, or touched before: what of the ranges is known up to it.
    pub fn followed(&self, last: usize) -> f64 {
        let all: u64 = self.touched.iter().chain(&self.left).sum();
        let left: u64 = self.left.iter().take(last + 1).sum();
        1.0 - left as f64 / all.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
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
        let all: u64 = short.touched.iter().chain(&short.left).sum();
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
}

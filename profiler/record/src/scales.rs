//! Scales recorded figures up to the whole recording time.
//!
//! Often only windows are recorded, and in between the kernel only counts. This module computes how many real calls,
//! page faults and interrupts each recorded one represents. It also compares the result with the kernel's own account
//! of a program's CPU time, which bounds the true cost.

use crate::perf::FAULTS;

use crate::attribute::site::Site;
use crate::attribute::{Attribution, ENOUGH};
use crate::figures::Range;

/// The least CPU time, in nanoseconds, for which we trust the kernel's account. It counts in steps of 10 ms.
pub const RAN_NS: f64 = 1e8;

/// Returns whether `of` is more than a tenth of `all`, and so can't be ignored.
pub fn is_much(of: f64, all: f64) -> bool {
    of * 10.0 > all
}

/// The factors from recorded calls and page faults to real ones.
#[derive(Clone, Copy)]
pub struct SampleScales {
    /// Whether fewer than [`ENOUGH`] interrupts were recorded in all.
    few: bool,
    /// The real page faults for each recorded one, over all programs. The kernel counts all of them anyway.
    faults: f64,
    /// The real calls for each recorded one, for sites with fewer than [`ENOUGH`] interrupts. It's the factor of all
    /// interrupts or, if there are too few of those, that of the recorded time.
    calls: f64,
}

/// The kernel's time for a program, and its ratio to the recorded events.
#[derive(Clone, Copy)]
pub struct Kernel {
    /// The whole time, in nanoseconds.
    pub ns: f64,
    /// The user time of forked processes that have ended, in nanoseconds.
    pub forked_ns: f64,
    /// The ratio of `ns` to the upper bound of the recorded work, at least 1. That's the cost of calls, waits and page
    /// faults at their prices.
    ///
    /// For example, 2 means that the kernel's account is twice as long as the events explain at most.
    pub dearer: f64,
    /// The same ratio to the lower bound. At most 1.
    pub cheaper: f64,
}

impl Kernel {
    /// Computes the ratios for a program.
    ///
    /// Returns `None` if the kernel's account of its time is missing or below a fifth of [`RAN_NS`], or if no recorded
    /// work has a price.
    pub fn of(from: &Attribution, scales: SampleScales, program: &str) -> Option<Kernel> {
        let ran = from.ran(program)?;
        let ns = ran.kernel_ns as f64;
        let of = |site: &&Site| &*site.place.program == program;
        let mut priced = Range::default();
        for site in from.sites.iter().filter(of) {
            let calls = site.serving_ns(from.prices.as_ref()).times(scales.calls(site));
            priced = priced.plus(calls).plus(site.waited.times(site.weight));
        }
        let faults = from.programs.iter().find(|of| &*of.name == program)?.faults as f64;
        if let Some(prices) = &from.prices {
            let all = faults * scales.faults(from, program);
            priced = priced.plus(prices.fault_ns.times(all));
        }
        (ns >= RAN_NS / 5.0 && priced.least > 0.0).then(|| Kernel {
            ns,
            forked_ns: ran.forked_user_ns as f64,
            dearer: (ns / priced.most).max(1.0),
            cheaper: (ns / priced.least).min(1.0),
        })
    }
}

impl SampleScales {
    /// Computes the factors of a recording.
    pub fn of(from: &Attribution) -> Self {
        let time = from.scale_of_time();
        let faults = from.count(FAULTS).filter(|count| count.seen >= ENOUGH);
        let faults = faults.map_or(time, |count| (count.exact as f64 / count.seen as f64).max(1.0));
        let few = from.counted().is_some_and(|count| count.seen < ENOUGH);
        let calls = if few { time } else { scale(from) };
        SampleScales { few, faults, calls }
    }

    /// Returns the number of real page faults for each recorded one of this program.
    ///
    /// We use the program's own count by the kernel if it's known, because a program may fault more or less often in
    /// the windows than at other times. If fewer than [`ENOUGH`] of its faults were recorded, the ratio of all programs
    /// is more reliable, unless it would yield more faults than there were.
    pub fn faults(&self, from: &Attribution, program: &str) -> f64 {
        let exact = from.ran(program).map_or(0, |ran| ran.faults);
        let known = from.programs.iter().find(|of| &*of.name == program);
        let seen = known.map_or(0, |program| program.faults);
        if exact == 0 || seen == 0 {
            return self.faults;
        }
        let own = (exact as f64 / seen as f64).max(1.0);
        if seen < ENOUGH { own.min(self.faults) } else { own }
    }

    /// Returns the number of real calls for each recorded one from this site.
    ///
    /// Nothing counts calls outside of the windows. With enough interrupts we use the factor of the interrupts, because
    /// a program does more of everything while it isn't recorded. With few interrupts that factor is unreliable, so
    /// it's capped at the factor of all sites (see `calls`).
    pub fn calls(&self, site: &Site) -> f64 {
        if self.few || site.whole < ENOUGH { site.weight.min(self.calls) } else { site.weight }
    }
}

/// Returns the number of real interrupts for each recorded one, over all sites.
pub fn scale(from: &Attribution) -> f64 {
    let counted = from.counted().filter(|count| count.seen > 0);
    counted.map_or(1.0, |count| (count.exact as f64 / count.seen as f64).max(1.0))
}

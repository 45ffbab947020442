//! What a recording of some stretches of time stands for: how many calls and page faults for one that was recorded, and
//! how the kernel's own account of a program's time bounds what these may have cost.

use crate::perf::FAULTS;

use crate::attribute::site::Site;
use crate::attribute::{Attribution, ENOUGH};
use crate::figures::Range;

/// From so much CPU time on, the kernel's account in hundredths of a second tells how much there was.
pub const RAN_NS: f64 = 2e8;

/// Whether so many of all interrupts are too many to pass over what they cost.
pub fn is_much(of: f64, all: f64) -> bool {
    of * 10.0 > all
}

/// What something recorded stands for that is no interrupt.
#[derive(Clone, Copy)]
pub struct Scales {
    /// Whether no more than a handful of interrupts was recorded in all.
    few: bool,
    /// A page fault of any program, all of which the kernel counts anyway.
    faults: f64,
    /// A call from a site with a handful of interrupts: what an interrupt is, whosever it is; or, where there is no
    /// more than a handful in all, a second.
    calls: f64,
}

/// What the kernel did for a program.
#[derive(Clone, Copy)]
pub struct Kernel {
    /// All of it, in nanoseconds.
    pub ns: f64,
    /// What processes did by themselves that were forked meanwhile and have ended, in nanoseconds.
    pub forked_ns: f64,
    /// How many times more that is than its recorded calls, waits and page faults come to by their prices, most of
    /// each.
    pub dearer: f64,
    /// How many times less than the least of each.
    pub cheaper: f64,
}

impl Kernel {
    /// Of a program, if the kernel's account of its time is known.
    pub fn of(from: &Attribution, scales: Scales, program: &str) -> Option<Kernel> {
        let ran = from.ran(program)?;
        let ns = ran.kernel_ns as f64;
        let of = |site: &&Site| &*site.place.program == program;
        let mut priced = Range::default();
        for site in from.sites.iter().filter(of) {
            let calls = Range::from(site.serving_ns(from.prices.as_ref()));
            priced = priced
                .plus(calls.times(scales.calls(site)))
                .plus(Range::of(site.waited, site.weight));
        }
        let faults = from.programs.iter().find(|of| &*of.name == program)?.faults as f64;
        if let Some(prices) = &from.prices {
            let all = faults * scales.faults(from, program);
            priced = priced.plus(Range::from(prices.fault_ns).times(all));
        }
        (ns >= RAN_NS / 10.0 && priced.least > 0.0).then(|| Kernel {
            ns,
            forked_ns: ran.forked_user_ns as f64,
            dearer: (ns / priced.most).max(1.0),
            cheaper: (ns / priced.least).min(1.0),
        })
    }
}

impl Scales {
    /// Of a recording.
    pub fn of(from: &Attribution) -> Self {
        let time = from.scale_of_time();
        let faults = from.count(FAULTS).filter(|count| count.seen >= ENOUGH);
        let faults = faults.map_or(time, |count| {
            (count.exact as f64 / count.seen as f64).max(1.0)
        });
        let few = from.counted().is_some_and(|count| count.seen < ENOUGH);
        let calls = if few { time } else { scale(from) };
        Scales { few, faults, calls }
    }

    /// A page fault of this program: what its own count by the kernel says, where that is known, because it fills more or
    /// less in the recorded stretches than at other times. Of a handful in these the ratio to all programs' says more, unless
    /// it comes to more than there were.
    pub fn faults(&self, from: &Attribution, program: &str) -> f64 {
        let exact = from.ran(program).map_or(0, |ran| ran.faults);
        let known = from.programs.iter().find(|of| &*of.name == program);
        let seen = known.map_or(0, |program| program.faults);
        if exact == 0 || seen == 0 {
            return self.faults;
        }
        let own = (exact as f64 / seen as f64).max(1.0);
        match seen < ENOUGH {
            true => own.min(self.faults),
            false => own,
        }
    }

    /// A call from this site, which nothing counts outside of the recorded stretches. With enough interrupts it is what
    /// one of these is: the program does more of everything while it is not recorded. A handful of interrupts says
    /// nothing of the others, so then it is what a recorded second stands for.
    pub fn calls(&self, site: &Site) -> f64 {
        match self.few || site.whole < ENOUGH {
            true => site.weight.min(self.calls),
            false => site.weight,
        }
    }
}

/// What a recorded interrupt stands for, all sites taken together.
pub fn scale(from: &Attribution) -> f64 {
    let counted = from.counted().filter(|count| count.seen > 0);
    counted.map_or(1.0, |count| {
        (count.exact as f64 / count.seen as f64).max(1.0)
    })
}

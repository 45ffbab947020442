//! Which strategy for which length: a small table, made once per machine.
//!
//! The table has one class per power of two from 4 KB to 1 GB and two columns, one for each
//! [`Temperature`]. Looking a length up costs a count of leading zeros and a load.
//!
//! Two ways lead to a table. [`Chooser::defaults`] is a rule over processor features and cache
//! sizes that needs no measurement; [`Chooser::calibrated`] is a pure function from measurements,
//! which the embedder takes however it can (`quell measure clear` shows how), to a table. Neither
//! reads a clock or touches memory, so the same inputs give the same table on every machine.
//!
//! Measurements are noisy and several strategies often tie. The measurement decides at each length, but
//! strategies within [`Chooser::MARGIN`] of the fastest tie, and a tie is broken without looking at the
//! measurement: the table before keeps its strategy if that is among them, else the rule's order
//! decides. So repeating a calibration on the same machine does not make the table
//! flip back and forth. Noise mostly slows a measurement down, so of several samples of one
//! strategy the fastest counts; a caller that can tell quiet samples from others does better to give their median.

use crate::strategy::{Available, Strategy, Temperature};

/// The smallest length with a class of its own: 4 KB.
const SMALLEST: u32 = 12;
/// Classes, one per power of two: 4 KB up to 1 GB and longer.
const CLASSES: usize = 19;

/// The class of a length: the largest power of two that is not longer.
const fn class(bytes: u64) -> usize {
    let log = bytes.checked_ilog2();
    match log {
        Some(log) if log >= SMALLEST => {
            let class = (log - SMALLEST) as usize;
            if class < CLASSES { class } else { CLASSES - 1 }
        }
        _ => 0,
    }
}

/// The strategy for each class of length and each temperature.
///
/// # Examples
///
/// ```
/// use quell_zero::{Plan, Strategy, Temperature};
/// let plan = Plan::uniform(Strategy::RepStos);
/// assert_eq!(plan.strategy(Temperature::Hot, 2 << 20), Strategy::RepStos);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    hot: [Strategy; CLASSES],
    bypassing: [Strategy; CLASSES],
}

impl Plan {
    /// Uses one strategy for everything. The published S1 is `Plan::uniform(Strategy::RepStos)`.
    pub const fn uniform(strategy: Strategy) -> Self {
        Plan {
            hot: [strategy; CLASSES],
            bypassing: [strategy; CLASSES],
        }
    }

    /// Returns the strategy for a run of `bytes`. A run shorter than 4 KB counts as 4 KB.
    #[inline]
    pub const fn strategy(&self, temperature: Temperature, bytes: u64) -> Strategy {
        match temperature {
            Temperature::Hot => self.hot[class(bytes)],
            Temperature::Bypassing => self.bypassing[class(bytes)],
        }
    }

    /// Returns the table as rows of (shortest length in bytes, strategy), shortest first.
    pub fn rows(&self, temperature: Temperature) -> impl Iterator<Item = (u64, Strategy)> + '_ {
        let column = match temperature {
            Temperature::Hot => &self.hot,
            Temperature::Bypassing => &self.bypassing,
        };
        (SMALLEST..).map(|log| 1 << log).zip(column.iter().copied())
    }

    fn column_mut(&mut self, temperature: Temperature) -> &mut [Strategy; CLASSES] {
        match temperature {
            Temperature::Hot => &mut self.hot,
            Temperature::Bypassing => &mut self.bypassing,
        }
    }
}

impl Default for Plan {
    fn default() -> Self {
        Plan::uniform(Strategy::Stores)
    }
}

/// Sizes of the data caches in bytes as one CPU sees them; 0 where unknown.
///
/// The rule of [`Chooser::defaults`] looks at the last level alone; a calibration needs all of them
/// to tell which lengths are worth measuring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Caches {
    /// The first-level data cache.
    pub l1d: u64,
    /// The private second-level cache.
    pub l2: u64,
    /// The last-level cache that the CPU shares with others.
    pub last: u64,
}

/// A measurement: how long one strategy took for one extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// The strategy that was used.
    pub strategy: Strategy,
    /// What was timed: for [`Temperature::Bypassing`] clearing an uncached extent, for [`Temperature::Hot`] clearing
    /// *and reading it once*.
    pub temperature: Temperature,
    /// The length of the extent in bytes.
    pub bytes: u64,
    /// The time for one extent, in a unit that all samples of a calibration share.
    ///
    /// Use a unit that is fine enough for [`Chooser::MARGIN`]: cycles or picoseconds.
    pub ticks: u64,
}

impl Sample {
    /// Returns whether this sample shows more bytes per tick than `other`, by more than one part in `margin` if given.
    fn beats(&self, other: &Sample, margin: Option<u128>) -> bool {
        // bytes / ticks > other.bytes / other.ticks, without division.
        let mine = u128::from(self.bytes) * u128::from(other.ticks);
        let theirs = u128::from(other.bytes) * u128::from(self.ticks);
        match margin {
            None => mine > theirs,
            Some(parts) => mine - mine / (parts + 1) > theirs,
        }
    }
}

/// Chooses strategies for a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Chooser {
    /// The strategies that may be used.
    pub available: Available,
    /// The sizes of the caches.
    pub caches: Caches,
}

impl Chooser {
    /// A strategy ties with the fastest if that is faster by at most one part in this number: 3 %.
    pub const MARGIN: u128 = 32;

    /// The rule's order for memory that is read next.
    const THROUGH: [Strategy; 4] = [
        Strategy::RepStos,
        Strategy::RepStosq,
        Strategy::DcZva,
        Strategy::Stores,
    ];
    /// The rule's order for memory that is not read soon.
    const AROUND: [Strategy; 6] = [
        Strategy::NonTemporal512,
        Strategy::Clzero,
        Strategy::NonTemporal256,
        Strategy::DcZva,
        Strategy::NonTemporal128,
        Strategy::NonTemporal64,
    ];

    /// By rule, shorter runs are not cleared around the caches: the drain at the end costs more
    /// than the fetches it saves. Zen 4 clears 4 KB at 24 GB/s around them and at 31 through them,
    /// and 64 KB at 75 and 31 (`docs/zeroing.md`); the drain that this implies is paid back
    /// between 4 and 8 KB. Sapphire Rapids gains from 4 KB on.
    const BYPASS_FROM: u64 = 16 << 10;

    /// Makes the table by rule, without measurement.
    ///
    /// * Memory that is read next is cleared by the string instruction where there is one, else by block
    ///   zeroing (`dc zva`), else by stores; above the size of the last-level cache nothing stays
    ///   hot, so there it is cleared as if it were not read.
    /// * Memory that is not read next is cleared, from 16 KB on, by the widest instruction that goes around
    ///   the caches. Below, as memory that is read next.
    pub fn defaults(&self) -> Plan {
        let first = |preferred: &[Strategy]| {
            preferred
                .iter()
                .copied()
                .find(|&s| self.available.has(s))
                .unwrap_or_default()
        };
        let through = first(&Self::THROUGH);
        let around = first(&Self::AROUND);
        let around = if around == Strategy::Stores {
            through
        } else {
            around
        };
        let hot_below = match self.caches.last {
            0 => u64::MAX,
            last => last,
        };
        let mut plan = Plan::uniform(through);
        for index in 0..CLASSES {
            let bytes = 1 << (SMALLEST as usize + index);
            if bytes >= hot_below {
                plan.hot[index] = around;
            }
            if bytes >= Self::BYPASS_FROM {
                plan.bypassing[index] = around;
            }
        }
        plan
    }

    /// Makes the table from measurements, starting from the table `before`.
    ///
    /// In a class with samples a strategy is chosen that ties with the fastest ([`Chooser::MARGIN`]): the incumbent of
    /// `before` if it does, else the first in the order of [`Chooser::defaults`]. A class without samples follows the
    /// nearest shorter class that has some, if `before` treated the two alike; otherwise it stays. Samples of
    /// strategies that are not available, of zero ticks or bytes, and hot samples of strategies that leave nothing in
    /// the caches are ignored.
    ///
    /// The order of the samples does not matter.
    pub fn calibrated(&self, before: &Plan, samples: &[Sample]) -> Plan {
        let mut plan = *before;
        for temperature in [Temperature::Hot, Temperature::Bypassing] {
            let usable = |s: &&Sample| {
                s.temperature == temperature
                    && s.bytes != 0
                    && s.ticks != 0
                    && self.available.has(s.strategy)
                    && (temperature == Temperature::Bypassing || s.strategy.keeps_hot())
            };
            let faster = |best: Option<Sample>, s: &Sample| match best {
                Some(b) if !s.beats(&b, None) => Some(b),
                _ => Some(*s),
            };
            // The nearest shorter class with samples: its strategy before and now.
            let mut nearest = None;
            for (index, slot) in plan.column_mut(temperature).iter_mut().enumerate() {
                let here = || {
                    samples
                        .iter()
                        .filter(usable)
                        .filter(|s| class(s.bytes) == index)
                };
                let was = *slot;
                let best = here().fold(None, faster);
                let ties = |strategy: &Strategy| {
                    let own = here().filter(|s| s.strategy == *strategy);
                    let (Some(own), Some(best)) = (own.fold(None, faster), best) else {
                        return false;
                    };
                    !best.beats(&own, Some(Self::MARGIN))
                };
                let by_rule = Self::AROUND.iter().chain(&Self::THROUGH);
                let tied = [was].iter().chain(by_rule).copied().find(ties);
                match (tied, nearest) {
                    (Some(tied), _) => *slot = tied,
                    (None, Some((alike, now))) if alike == was => *slot = now,
                    (None, _) if !self.available.has(was) => *slot = Strategy::Stores,
                    (None, _) => {}
                }
                if best.is_some() {
                    nearest = Some((was, *slot));
                }
            }
        }
        plan
    }
}

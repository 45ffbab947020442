//! Chooses the [`Strategy`] for each length, and keeps it in a small table, the [`Plan`].
//!
//! A table has a row for each power of two from 4 KB to 1 GB, and a column for each [`Temperature`]. We call the
//! lengths of a row a *class*: 4 KB up to 8 KB, for example. A lookup costs a count of leading zeros and a load.
//!
//! You make a table once per machine. There are two ways. [`Chooser::defaults`] applies a rule to the processor's
//! features and cache sizes, and needs no measurement. [`Chooser::calibrated`] turns measurements into a table. The
//! kernel takes the measurements itself (`quell measure clear` is an example). Neither function reads a clock or
//! accesses memory, so the same inputs give the same table on every machine.
//!
//! Measurements are noisy, and several strategies are often equally fast. We treat strategies within
//! [`Chooser::MARGIN`] of the fastest as a tie. If the previous table's strategy is in the tie, it stays. Otherwise the
//! rule's order decides. So a repeated calibration on the same machine doesn't flip the table back and forth. Noise
//! mostly slows a measurement down, so we use the fastest of several samples of one strategy. If you can tell which
//! samples were undisturbed, pass only their median: it's a better input.

use crate::strategy::{Strategy, StrategySet, Temperature};

/// The smallest length with a class of its own: 4 KB.
const SMALLEST: u32 = 12;
/// Classes, one per power of two: 4 KB up to 1 GB and longer.
const CLASSES: usize = 19;

/// Returns the class of a length: the largest power of two that isn't longer.
const fn class(bytes: u64) -> usize {
    match bytes >> SMALLEST {
        0 => 0,
        pages if (pages.ilog2() as usize) < CLASSES => pages.ilog2() as usize,
        _ => CLASSES - 1,
    }
}

/// Holds the strategy for each length and [`Temperature`]. Made by a [`Chooser`].
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
    /// Makes a plan with one strategy for all lengths.
    ///
    /// The zeroing of whole extents was first published with [`Strategy::RepStos`] for all lengths.
    pub const fn uniform(strategy: Strategy) -> Self {
        Plan { hot: [strategy; CLASSES], bypassing: [strategy; CLASSES] }
    }

    /// Returns the strategy for a run of `bytes`. A run shorter than 4 KB counts as 4 KB.
    #[inline]
    pub const fn strategy(&self, temperature: Temperature, bytes: u64) -> Strategy {
        self.column(temperature)[class(bytes)]
    }

    /// Returns the plan's rows: the shortest length in bytes, and the strategy from there on. The shortest row is
    /// first.
    pub fn rows(&self, temperature: Temperature) -> impl Iterator<Item = (u64, Strategy)> + '_ {
        (SMALLEST..).map(|log| 1 << log).zip(self.column(temperature).iter().copied())
    }

    const fn column(&self, temperature: Temperature) -> &[Strategy; CLASSES] {
        match temperature {
            Temperature::Hot => &self.hot,
            Temperature::Bypassing => &self.bypassing,
        }
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

/// Holds the sizes of one CPU's data caches in bytes, 0 where unknown.
///
/// [`Chooser::defaults`] uses only the last level. Code that takes measurements uses all levels, to choose the lengths
/// that are worth measuring.
///
/// # Examples
///
/// ```
/// use quell_zero::{Caches, Chooser, Strategy, StrategySet, Temperature};
/// let available = StrategySet::STORES.with(Strategy::Clzero);
/// let caches = Caches { last: 32 << 20, ..Caches::default() };
/// let plan = Chooser { available, caches }.defaults();
/// assert_eq!(plan.strategy(Temperature::Hot, 2 << 20), Strategy::Stores);
/// // An extent as long as the last-level cache doesn't stay in it.
/// assert_eq!(plan.strategy(Temperature::Hot, 32 << 20), Strategy::Clzero);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Caches {
    /// The first-level data cache.
    pub l1d: u64,
    /// The private second-level cache.
    pub l2: u64,
    /// The last-level cache that the CPU shares with others.
    pub last: u64,
}

/// Holds a measurement: the time that one strategy took for one extent.
///
/// # Examples
///
/// ```
/// use quell_zero::{Chooser, Sample, Strategy, StrategySet, Temperature};
/// let sample = |strategy, ticks| {
///     Sample { strategy, temperature: Temperature::Bypassing, bytes: 2 << 20, ticks }
/// };
/// let samples = [sample(Strategy::RepStos, 90_000), sample(Strategy::Clzero, 60_000)];
/// let available = StrategySet::STORES.with(Strategy::RepStos).with(Strategy::Clzero);
/// let chooser = Chooser { available, ..Chooser::default() };
/// let plan = chooser.calibrated(&chooser.defaults(), &samples);
/// assert_eq!(plan.strategy(Temperature::Bypassing, 2 << 20), Strategy::Clzero);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// The strategy that was used.
    pub strategy: Strategy,
    /// Selects the operation that was timed. For [`Temperature::Bypassing`], that's clearing an uncached extent. For
    /// [`Temperature::Hot`], it's clearing the extent *and reading it once*.
    pub temperature: Temperature,
    /// The length of the extent in bytes.
    pub bytes: u64,
    /// The time for one extent, in a unit that all samples of a calibration share.
    ///
    /// Use a unit that's fine enough for [`Chooser::MARGIN`]: cycles or picoseconds, for example.
    pub ticks: u64,
}

impl Sample {
    /// Returns whether this sample shows more bytes per tick than `other`, by more than one part in `margin` if given.
    fn beats(&self, other: &Sample, margin: Option<u128>) -> bool {
        // We compare bytes / ticks with other.bytes / other.ticks, without a division.
        let mine = u128::from(self.bytes) * u128::from(other.ticks);
        let theirs = u128::from(other.bytes) * u128::from(self.ticks);
        match margin {
            None => mine > theirs,
            Some(parts) => mine - mine / (parts + 1) > theirs,
        }
    }
}

/// Makes a [`Plan`] for a machine.
///
/// # Examples
///
/// ```
/// use quell_zero::{Caches, Chooser, Strategy, StrategySet, Temperature};
/// // On the machine itself: `quell_arch::zero::available()` and `quell_arch::zero::caches()`.
/// let available = StrategySet::STORES.with(Strategy::RepStos).with(Strategy::NonTemporal64);
/// let chooser = Chooser { available, caches: Caches::default() };
/// let plan = chooser.defaults();
/// assert_eq!(plan.strategy(Temperature::Hot, 2 << 20), Strategy::RepStos);
/// assert_eq!(plan.strategy(Temperature::Bypassing, 2 << 20), Strategy::NonTemporal64);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Chooser {
    /// The strategies that may be used.
    pub available: StrategySet,
    /// The sizes of the caches.
    pub caches: Caches,
}

impl Chooser {
    /// The margin of a tie: the fastest strategy leads by at most 1/32 (3 %).
    pub const MARGIN: u128 = 32;

    /// The rule's order for memory that is read next: through the caches.
    const THROUGH: [Strategy; 4] =
        [Strategy::RepStos, Strategy::RepStosq, Strategy::DcZva, Strategy::Stores];
    /// The rule's order for memory that isn't read soon: around the caches.
    const AROUND: [Strategy; 6] = [
        Strategy::NonTemporal512,
        Strategy::Clzero,
        Strategy::NonTemporal256,
        Strategy::DcZva,
        Strategy::NonTemporal128,
        Strategy::NonTemporal64,
    ];

    /// The length in bytes from which the rule clears around the caches. For shorter runs the drain at the end costs
    /// more than the fetches that it saves. For example, Zen 4 clears 4 KB at 24 GB/s around the caches and at 31 GB/s
    /// through them, but 64 KB at 75 and 31 GB/s (`docs/zeroing.md`). So the drain pays off between 4 and 8 KB.
    /// Sapphire Rapids gains from 4 KB on.
    const BYPASS_FROM: u64 = 16 << 10;

    /// Makes a plan by a rule, without measurements.
    ///
    /// * We clear memory that is read next with a string instruction, if available, else with block zeroing (`dc zva`),
    ///   else with stores. An extent as long as the last-level cache doesn't stay in it, so we clear such an extent
    ///   like memory that isn't read soon.
    /// * We clear memory that isn't read soon with an instruction that bypasses the caches, preferably a wide one. If
    ///   there's no such instruction, or the run is shorter than 16 KB, we clear it like memory that is read next.
    pub fn defaults(&self) -> Plan {
        let first = |preferred: &[Strategy]| {
            preferred.iter().copied().find(|&s| self.available.has(s)).unwrap_or_default()
        };
        let through = first(&Self::THROUGH);
        let around = first(&Self::AROUND);
        let around = if around == Strategy::Stores { through } else { around };
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

    /// Makes a plan from measurements, starting from the plan `before`.
    ///
    /// A plan has one *class* of lengths per power of two. In a class with samples, we choose among the strategies that
    /// tie with the fastest ([`Chooser::MARGIN`]). The strategy of `before` stays if it's one of them. Otherwise we
    /// take the first of them in the order of [`Chooser::defaults`].
    ///
    /// A class without samples follows the nearest shorter class with samples, if `before` has the same strategy in
    /// both. Otherwise it keeps its strategy, or gets [`Strategy::Stores`] if that strategy isn't available.
    ///
    /// We ignore samples of unavailable strategies, and samples of 0 ticks or bytes. We also ignore
    /// [`Temperature::Hot`] samples of strategies that leave nothing in the caches ([`Strategy::keeps_hot`]).
    ///
    /// The order of the samples doesn't matter.
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
                let here = || samples.iter().filter(usable).filter(|s| class(s.bytes) == index);
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

//! Names the instructions for zeroing, and holds the set that may be used.

use core::fmt;

/// Names a kind of instruction that zeroes memory.
///
/// # Examples
///
/// ```
/// use quell_zero::Strategy;
/// assert_eq!(Strategy::RepStos.to_string(), "rep-stosb");
/// assert!(Strategy::RepStos.keeps_hot());
/// assert!(!Strategy::Clzero.keeps_hot()); // around the caches
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[non_exhaustive]
#[repr(u8)]
pub enum Strategy {
    /// Ordinary stores of general registers, through the caches. Cleared memory is hot afterwards.
    #[default]
    Stores,
    /// `rep stosb`, through the caches. The processor knows the whole length.
    ///
    /// From about the size of the last-level cache on, AMD Zen no longer allocates cache lines for it.
    RepStos,
    /// `rep stosq`, like [`Strategy::RepStos`], for processors without fast byte strings.
    RepStosq,
    /// AMD `clzero`: whole cache lines, around the caches.
    Clzero,
    /// Non-temporal stores of 64 bits from a general register (`movnti`), around the caches. They don't touch vector
    /// registers.
    NonTemporal64,
    /// Non-temporal stores of 128 bits: `movntdq` on x86, which uses vector registers, or `stnp` of two general
    /// registers on Arm.
    NonTemporal128,
    /// Non-temporal stores of 256 bits.
    NonTemporal256,
    /// Non-temporal stores of 512 bits.
    NonTemporal512,
    /// Arm `dc zva`: whole blocks. The processor decides whether they're allocated in the caches.
    DcZva,
}

impl Strategy {
    /// Every strategy.
    pub const ALL: &'static [Strategy] = &[
        Strategy::Stores,
        Strategy::RepStos,
        Strategy::RepStosq,
        Strategy::Clzero,
        Strategy::NonTemporal64,
        Strategy::NonTemporal128,
        Strategy::NonTemporal256,
        Strategy::NonTemporal512,
        Strategy::DcZva,
    ];

    /// Returns the name used in reports and files, which is stable between releases.
    pub const fn name(self) -> &'static str {
        match self {
            Strategy::Stores => "stores",
            Strategy::RepStos => "rep-stosb",
            Strategy::RepStosq => "rep-stosq",
            Strategy::Clzero => "clzero",
            Strategy::NonTemporal64 => "nt64",
            Strategy::NonTemporal128 => "nt128",
            Strategy::NonTemporal256 => "nt256",
            Strategy::NonTemporal512 => "nt512",
            Strategy::DcZva => "dc-zva",
        }
    }

    /// Returns whether a short run of memory cleared this way is in the caches afterwards.
    pub const fn keeps_hot(self) -> bool {
        matches!(self, Strategy::Stores | Strategy::RepStos | Strategy::RepStosq | Strategy::DcZva)
    }

    /// Returns whether the strategy overwrites vector registers, which a kernel must save first.
    pub const fn uses_vectors(self) -> bool {
        matches!(self, Strategy::NonTemporal256 | Strategy::NonTemporal512)
            || matches!(self, Strategy::NonTemporal128) && cfg!(target_arch = "x86_64")
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Selects whether memory is cleared through the caches or around them.
///
/// # Examples
///
/// ```
/// use quell::{Extent, Frame};
/// use quell_zero::{ClearPolicy, Temperature};
/// let policy = ClearPolicy::default();
/// let extent = Extent { first: Frame(0), frames: 512 };
/// // A program reads frame 0 next: it and two neighbours stay in the caches.
/// let pieces = policy.pieces(extent, Some(Frame(0)));
/// let pieces = pieces.map(|piece| (piece.temperature, piece.extent.frames));
/// assert!(pieces.eq([(Temperature::Bypassing, 509), (Temperature::Hot, 3)]));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Temperature {
    /// A program reads the memory next: clear it through the caches.
    Hot,
    /// No program reads the memory soon: clear it around the caches, which then keep their content.
    Bypassing,
}

/// Holds the set of strategies that may be used.
///
/// `quell_arch::zero::available` returns the strategies that a processor has; a kernel may allow itself fewer
/// ([`StrategySet::without_vectors`]). [`Strategy::Stores`] is always a member.
///
/// # Examples
///
/// ```
/// use quell_zero::{Strategy, StrategySet};
/// let found = StrategySet::STORES.with(Strategy::RepStos).with(Strategy::NonTemporal512);
/// // A kernel that does not save vector registers:
/// let allowed = found.without_vectors();
/// assert!(allowed.has(Strategy::RepStos) && !allowed.has(Strategy::NonTemporal512));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StrategySet(u16);

impl StrategySet {
    /// Only ordinary stores.
    pub const STORES: StrategySet = StrategySet(1 << Strategy::Stores as u16);

    /// Adds `strategy` to the set.
    pub const fn with(self, strategy: Strategy) -> Self {
        StrategySet(self.0 | 1 << strategy as u16)
    }

    /// Removes `strategy` from the set. [`Strategy::Stores`] stays.
    pub const fn without(self, strategy: Strategy) -> Self {
        StrategySet(self.0 & !(1 << strategy as u16) | Self::STORES.0)
    }

    /// Removes strategies that overwrite vector registers, for kernels that don't save these.
    pub fn without_vectors(self) -> Self {
        Strategy::ALL.iter().filter(|s| s.uses_vectors()).fold(self, |set, &s| set.without(s))
    }

    /// Returns whether `strategy` may be used.
    pub const fn has(self, strategy: Strategy) -> bool {
        self.0 & 1 << strategy as u16 != 0
    }

    /// Iterates over the strategies of the set.
    pub fn iter(self) -> impl Iterator<Item = Strategy> {
        Strategy::ALL.iter().copied().filter(move |&s| self.has(s))
    }
}

impl Default for StrategySet {
    fn default() -> Self {
        Self::STORES
    }
}

impl fmt::Debug for StrategySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

//! Zeroing of whole extents (S1).

/// A way to zero memory, as the machine's instructions offer it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Strategy {
    /// Ordinary stores, through the caches: what is cleared is hot afterwards.
    #[default]
    Stores,
    /// `rep stosb` / `rep stosq`: the processor sees the whole length.
    RepStos,
    /// AMD `clzero`: whole lines, around the caches.
    Clzero,
    /// Non-temporal stores of 128 bits.
    NonTemporal128,
    /// Non-temporal stores of 256 bits.
    NonTemporal256,
    /// Non-temporal stores of 512 bits.
    NonTemporal512,
    /// Arm `dc zva`: whole blocks, allocated by the caches' own rules.
    DcZva,
}

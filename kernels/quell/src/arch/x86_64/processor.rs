//! The features of the processor.

use quell_arch::x86_64::features::Features;

static PROCESSOR: spin::Once<Features> = spin::Once::new();

/// Returns the features of the processor.
pub fn features() -> Features {
    *PROCESSOR.call_once(Features::detect)
}

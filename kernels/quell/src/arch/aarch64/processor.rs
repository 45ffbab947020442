//! The features of the processor.

use quell_arch::aarch64::features::Features;

static PROCESSOR: spin::Once<Features> = spin::Once::new();

/// Returns the features of the processor.
pub fn features() -> Features {
    // SAFETY: the kernel runs at level 1.
    *PROCESSOR.call_once(|| unsafe { Features::detect() })
}

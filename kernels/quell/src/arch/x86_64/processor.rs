//! What the processor can do.

use quell_arch::x86_64::features::Features;

static PROCESSOR: spin::Once<Features> = spin::Once::new();

/// What the processor can do.
pub fn features() -> Features {
    *PROCESSOR.call_once(Features::detect)
}

//! The features of the processor.

use quell_arch::riscv64::features::Features;
use quell_arch::riscv64::tlb;

static PROCESSOR: spin::Once<Features> = spin::Once::new();

/// Detects the processor's features; `isa` is the device tree's description.
///
/// # Safety
/// The first CPU, with interrupts masked, on tables that map the kernel globally.
pub unsafe fn detect(isa: &str) {
    // SAFETY: as the caller promises.
    PROCESSOR.call_once(|| Features::decode(isa, unsafe { tlb::writable_asid() }));
}

/// Returns the features of the processor.
///
/// # Panics
/// Before [`detect`].
pub fn features() -> Features {
    *PROCESSOR.get().expect("detected when the first CPU started")
}

//! What the processor can do.

use quell_arch::riscv64::features::Features;
use quell_arch::riscv64::tlb;

static PROCESSOR: spin::Once<Features> = spin::Once::new();

/// Finds out what the processor can do: `isa` is what the device tree says of it.
///
/// # Safety
/// The first CPU, with interrupts masked, on tables that map the kernel globally.
pub unsafe fn detect(isa: &str) {
    // SAFETY: the caller's claims.
    PROCESSOR.call_once(|| Features::decode(isa, unsafe { tlb::writable_asid() }));
}

/// What the processor can do.
///
/// # Panics
/// Before [`detect`].
pub fn features() -> Features {
    *PROCESSOR
        .get()
        .expect("detected when the first CPU started")
}

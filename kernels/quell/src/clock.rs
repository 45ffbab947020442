//! The kernel's clock: nanoseconds since the program was loaded, and waits with a time limit.

use crate::{arch, layout};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The architecture's clock when this clock began.
static BEGAN: AtomicU64 = AtomicU64::new(0);

/// Starts the clock. Returns the architecture's clock.
pub fn begin() -> u64 {
    let ticks = arch::cpu::ticks();
    BEGAN.store(ticks, Relaxed);
    ticks
}

/// Returns the nanoseconds since the clock began. The program counts them in the same way.
pub fn now() -> u64 {
    let ticks = arch::cpu::ticks().wrapping_sub(BEGAN.load(Relaxed));
    layout::nanoseconds(ticks, arch::cpu::ticks_per_ms())
}

/// Returns the nanoseconds since an arbitrary moment.
pub fn nanoseconds() -> u64 {
    layout::nanoseconds(arch::cpu::ticks(), arch::cpu::ticks_per_ms())
}

/// Waits until the condition holds, but no longer than a time. Returns whether it holds.
pub fn wait_for(nanoseconds: u64, condition: impl Fn() -> bool) -> bool {
    let end = self::nanoseconds() + nanoseconds;
    while !condition() {
        if self::nanoseconds() > end {
            return condition();
        }
        arch::cpu::relax();
    }
    true
}

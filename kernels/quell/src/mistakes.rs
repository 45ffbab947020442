//! Deliberate mistakes, which show that tests notice them.
//!
//! This module selects the mistake. [`crate::mistaken`] makes those of the machine, in a kernel with the feature
//! `mutants`. For those of the engine and the manager, we need a kernel built in the instrumented copy of the workspace
//! (`search/mutants`). We build measurements without either.

use core::sync::atomic::{AtomicU8, Ordering};

/// A mistake of this kernel's machine.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mistake {
    /// There is no mistake.
    Nothing,
    /// Leaves out invalidations of only this CPU that a shootdown interrupt requests.
    InvalidateOnRequest,
    /// Leaves out invalidations of only this CPU that it decides on itself.
    InvalidateHere,
    /// Leaves out broadcast invalidations.
    Broadcast,
    /// Doesn't wait for broadcast invalidations.
    SkipBarrier,
    /// Doesn't send shootdown interrupts.
    SkipInterrupt,
    /// Allows the next non-maskable interrupt after a fault in the handler of one.
    NmiReturn,
}

static MADE: AtomicU8 = AtomicU8::new(Mistake::Nothing as u8);

/// Makes a mistake from now on. `what` is `request`, `here`, `broadcast`, `nmi`, `SkipBarrier` or `SkipInterrupt` in
/// this machine, or the name of a mutant of the engine or the manager.
/// Fails if there is no such mistake, or the kernel was built without its feature `mutants`.
pub fn make(what: &str) -> Result<(), &'static str> {
    if cfg!(not(feature = "mutants")) {
        return Err("this kernel was built without the feature `mutants`");
    }
    let mistake = match what {
        "request" => Mistake::InvalidateOnRequest,
        "here" => Mistake::InvalidateHere,
        "broadcast" => Mistake::Broadcast,
        "nmi" => Mistake::NmiReturn,
        "SkipBarrier" => Mistake::SkipBarrier,
        "SkipInterrupt" => Mistake::SkipInterrupt,
        _ => {
            #[cfg(quell_mutants)]
            if let Some(number) = quell::selector::number_of(what) {
                quell::selector::choose(number);
                return Ok(());
            }
            return Err("neither request, here, broadcast, nmi nor a mutant that this kernel has");
        }
    };
    MADE.store(mistake as u8, Ordering::SeqCst);
    Ok(())
}

/// Returns whether we make this mistake of the machine.
#[inline(always)]
#[cfg_attr(all(not(target_arch = "x86_64"), not(feature = "mutants")), allow(dead_code))] // Only the handlers of interrupts there make one.
pub fn makes(mistake: Mistake) -> bool {
    cfg!(feature = "mutants") && MADE.load(Ordering::Relaxed) == mistake as u8
}

//! Deliberate mistakes, which show that tests notice them.
//!
//! This module selects the mistake. [`crate::mistaken`] makes those of the machine, in a kernel with the feature
//! `mutants`. Those of the engine and the manager need a kernel built in the instrumented copy of the workspace
//! (`search/mutants`). Measurements are built without either.

use core::sync::atomic::{AtomicU8, Ordering};

/// A mistake of this kernel's machine.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mistake {
    /// None.
    Nothing,
    /// Leaves out invalidations of this CPU alone that a shootdown interrupt requests.
    InvalidateOnRequest,
    /// Invalidations of this CPU alone that it decides on itself are left out.
    InvalidateHere,
    /// Broadcast invalidations are left out.
    Broadcast,
    /// Broadcast invalidations are not waited for.
    SkipBarrier,
    /// Shootdown interrupts are not sent.
    SkipInterrupt,
    /// A fault in the handler of a non-maskable interrupt lets in the next one.
    NmiReturn,
}

static MADE: AtomicU8 = AtomicU8::new(Mistake::Nothing as u8);

/// Makes a mistake from now on: `request`, `here`, `broadcast`, `nmi`, `SkipBarrier` or `SkipInterrupt` in this
/// machine, or a mutant of the engine or the manager by its name.
///
/// # Errors
/// If there is no such mistake, or the kernel was built without its feature `mutants`.
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

/// Whether a mistake of the machine is made.
#[inline(always)]
#[cfg_attr(
    all(not(target_arch = "x86_64"), not(feature = "mutants")),
    allow(dead_code)
)] // Only the handlers of interrupts there make one.
pub fn makes(mistake: Mistake) -> bool {
    cfg!(feature = "mutants") && MADE.load(Ordering::Relaxed) == mistake as u8
}

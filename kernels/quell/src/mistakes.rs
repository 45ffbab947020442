//! Mistakes that are made on purpose, so that tests can show that they notice.
//!
//! Here is which one is made. [`crate::mistaken`] makes those of the machine, in a kernel with the feature `mutants`. Those
//! of the engine and of the manager are made where the kernel was built in the copy of the workspace that holds them
//! (`search/mutants`). What is measured is built without either.

use core::sync::atomic::{AtomicU8, Ordering};

/// A mistake of this kernel's machine.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mistake {
    /// None.
    Nothing,
    /// Invalidations of this CPU alone that a shootdown interrupt asks for are left out.
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
/// machine, or one of the engine's or the manager's, by the name of its mutant.
///
/// # Errors
/// If there is no such thing, or the kernel was built without its feature `mutants`.
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

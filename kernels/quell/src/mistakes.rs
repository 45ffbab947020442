//! Mistakes that are made on purpose, so that tests can show that they notice.
//!
//! Here is which one is made: [`crate::mistaken`] makes those of the machine, the engine and the manager
//! leave out the rule that [`KernelRules`] says is not kept. Without the feature `mutants` there are none, and
//! what is measured is built so.

use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use quell::{Rule, Rules};

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

/// The engine's or the manager's rule that is not kept; null for none.
static FORGOTTEN: AtomicPtr<Rule> = AtomicPtr::new(core::ptr::null_mut());

/// The rules that the engine and the manager keep: all, but for one that a test leaves out.
#[derive(Clone, Copy, Debug)]
pub struct KernelRules;

impl Rules for KernelRules {
    #[inline(always)]
    fn keeps(&self, rule: &'static Rule) -> bool {
        cfg!(not(feature = "mutants"))
            || !core::ptr::eq(FORGOTTEN.load(Ordering::Relaxed), core::ptr::from_ref(rule))
    }
}

/// Makes a mistake from now on: `request`, `here`, `broadcast`, `nmi`, `SkipBarrier` or `SkipInterrupt` in this
/// machine, or a rule that is not kept, by the name of its mutant.
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
            let rule = quell_vm::rules::named(what);
            let rule = rule.ok_or("neither request, here, broadcast, nmi nor a mutant's name")?;
            FORGOTTEN.store(core::ptr::from_ref(rule).cast_mut(), Ordering::SeqCst);
            return Ok(());
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

//! Selects the mutants at run time. This file becomes a module of the engine's copy. The code of the engine, and of
//! crates that use it, calls this module wherever a mutant decides differently.
//!
//! A machine with one mistake for its whole run selects it. A search with a different mistake in each of many
//! concurrent runs installs a function that decides instead. This file uses no word that CPUs share, so no machine
//! under test treats a call as a point at which another CPU may step in.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::Relaxed};

/// The names of the mutants, in the order of their numbers from 1. The copy has those of the lists.
pub static NAMES: &[&str] = &[];

static CHOSEN: AtomicU32 = AtomicU32::new(0);

/// A `fn(u32) -> bool`, or null.
static ASKED: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Returns whether this mutant is on.
#[inline]
pub fn on(number: u32) -> bool {
    let asked = ASKED.load(Relaxed);
    if asked.is_null() {
        return CHOSEN.load(Relaxed) == number;
    }
    // SAFETY: a value other than null was stored by `install`, from a function of this type.
    let asked: fn(u32) -> bool = unsafe { core::mem::transmute(asked) };
    asked(number)
}

/// Turns one mutant on and all others off; 0 turns all off.
pub fn choose(number: u32) {
    CHOSEN.store(number, Relaxed);
}

/// Sets the function that decides which mutants are on.
pub fn install(asked: fn(u32) -> bool) {
    ASKED.store(asked as *mut (), Relaxed);
}

/// Returns the number of the mutant with this name.
pub fn number_of(name: &str) -> Option<u32> {
    let place = NAMES.iter().position(|known| *known == name)?;
    Some(place as u32 + 1)
}

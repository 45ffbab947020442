//! Which mutants are on. This file becomes a module of the engine's copy, whose code asks it wherever a mutant decides
//! otherwise; so does the code of the crates that use the engine.
//!
//! A machine that makes one mistake as long as it runs chooses it. A search that makes another in each of many runs at
//! once installs a function that is asked instead. No word that CPUs share is used here, so no machine under test takes
//! a question for a point at which another CPU may step in.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::Relaxed};

/// The names of the mutants; the number of each is its place, from 1 on. In the copy these are those of the lists.
pub static NAMES: &[&str] = &[];

static CHOSEN: AtomicU32 = AtomicU32::new(0);

/// A `fn(u32) -> bool`, or null.
static ASKED: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Whether this mutant is on.
#[inline]
pub fn on(number: u32) -> bool {
    let asked = ASKED.load(Relaxed);
    if asked.is_null() {
        return CHOSEN.load(Relaxed) == number;
    }
    // SAFETY: what is not null was stored by `install`, from a function of this type.
    let asked: fn(u32) -> bool = unsafe { core::mem::transmute(asked) };
    asked(number)
}

/// Turns one mutant on, and all others off; 0 is none.
pub fn choose(number: u32) {
    CHOSEN.store(number, Relaxed);
}

/// From now on this function says which are on.
pub fn install(asked: fn(u32) -> bool) {
    ASKED.store(asked as *mut (), Relaxed);
}

/// The number of the mutant of this name.
pub fn number_of(name: &str) -> Option<u32> {
    let place = NAMES.iter().position(|known| *known == name)?;
    Some(place as u32 + 1)
}

//! Which CPUs have used which words, in all runs of a session.
//!
//! An operation on a word that one CPU alone uses commutes with all that the others do: searches take it at once, and
//! so do schedules that are drawn at random ([`choose`](super::choose)). Whether a word is such is not known but from the
//! runs so far.

use rustc_hash::FxHashMap;

/// See the module.
#[derive(Default)]
pub(super) struct Users(FxHashMap<usize, u8>);

impl Users {
    /// A CPU uses what lies at this address; whether until now another has used it alone.
    #[inline]
    pub(super) fn add(&mut self, address: usize, cpu: usize) -> bool {
        let users = self.0.entry(address).or_default();
        let before = *users;
        *users |= 1 << cpu;
        before.is_power_of_two() && before != *users
    }

    /// Whether this CPU has used it, and no other.
    #[inline]
    pub(super) fn is_alone(&self, address: usize, cpu: usize) -> bool {
        self.0.get(&address) == Some(&(1 << cpu))
    }

    /// Whether no other CPU than this has used it.
    #[inline]
    pub(super) fn no_other(&self, address: usize, cpu: usize) -> bool {
        let users = self.0.get(&address).copied().unwrap_or_default();
        users & !(1 << cpu) == 0
    }
}

//! Which CPUs have used which words, and which have changed them, in all runs of a session.
//!
//! An operation on a word that one CPU alone uses commutes with all that the others do, and so does a load of a word that
//! no other CPU changes: searches take the former at once, schedules that are drawn at random both
//! ([`choose`](super::choose)). Whether a word is such is not known but from the runs so far.

use crate::action::MAX_CPUS;
use rustc_hash::FxHashMap;

/// The CPUs that have used a word, and above them those that have changed it.
type Known = u8;

const _: () = assert!(
    2 * MAX_CPUS <= Known::BITS as usize,
    "two bits for each CPU"
);

const USERS: Known = (1 << MAX_CPUS) - 1;

/// See the module.
#[derive(Default)]
pub(super) struct Users(FxHashMap<usize, Known>);

impl Users {
    /// A CPU uses what lies at this address, and perhaps changes it; whether until now another has used it alone.
    #[inline]
    pub(super) fn add(&mut self, address: usize, cpu: usize, changes: bool) -> bool {
        let known = self.0.entry(address).or_default();
        let before = *known & USERS;
        *known |= 1 << cpu | u8::from(changes) << cpu << MAX_CPUS;
        before.is_power_of_two() && before != *known & USERS
    }

    /// Whether this CPU has used it, and no other; for one that `changes` nothing, whether no other has changed it.
    #[inline]
    pub(super) fn lets(&self, address: usize, cpu: usize, changes: bool) -> bool {
        let Some(known) = self.0.get(&address) else {
            return false;
        };
        let others = match changes {
            true => known & USERS,
            false => known >> MAX_CPUS,
        };
        others & !(1 << cpu) == 0
    }

    /// Whether no other CPU than this has used it.
    #[inline]
    pub(super) fn no_other(&self, address: usize, cpu: usize) -> bool {
        let known = self.0.get(&address).copied().unwrap_or_default();
        known & USERS & !(1 << cpu) == 0
    }
}

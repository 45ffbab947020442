//! Which CPUs have used which words, and which have changed them, in all runs of a session.
//!
//! An operation on a word that one CPU alone uses commutes with all that the others do, and so does a load of a word that
//! no other CPU changes: searches take the former at once, schedules that are drawn at random both
//! ([`choose`](super::choose)). Whether a word is such is not known but from the runs so far.

use crate::action::MAX_CPUS;
use crate::cell::AdversaryWord;
use rustc_hash::FxHashMap;
use std::cell::Cell;

/// The CPUs that have used a word, and above them those that have changed it.
type Known = u8;

const _: () = assert!(
    2 * MAX_CPUS <= Known::BITS as usize,
    "two bits for each CPU"
);

const USERS: Known = (1 << MAX_CPUS) - 1;

/// Words whose neighbours are in one block with them: code that goes through a table goes through few blocks.
const BLOCK: usize = 64;

/// See the module.
#[derive(Default)]
pub(super) struct Users {
    /// Which block knows of the words at these addresses, in units of blocks.
    index: FxHashMap<usize, u32>,
    blocks: Vec<[Known; BLOCK]>,
    /// The block that was asked for last, beside its part of the address.
    last: Cell<(usize, u32)>,
}

/// The block of an address, and the place in it.
#[inline]
fn split(address: usize) -> (usize, usize) {
    let word = address / size_of::<AdversaryWord>();
    // No block has the number 0, which stands for none.
    (1 + word / BLOCK, word % BLOCK)
}

impl Users {
    #[inline]
    fn get(&self, address: usize) -> Known {
        let (block, place) = split(address);
        let (known, number) = self.last.get();
        if known == block {
            return self.blocks[number as usize][place];
        }
        let Some(&number) = self.index.get(&block) else {
            return 0;
        };
        self.last.set((block, number));
        self.blocks[number as usize][place]
    }

    /// A CPU uses what lies at this address, and perhaps changes it; whether until now another has used it alone.
    #[inline]
    pub(super) fn add(&mut self, address: usize, cpu: usize, changes: bool) -> bool {
        let (block, place) = split(address);
        if self.last.get().0 != block {
            let fresh = self.blocks.len() as u32;
            let number = *self.index.entry(block).or_insert(fresh);
            if number == fresh {
                self.blocks.push([0; BLOCK]);
            }
            self.last.set((block, number));
        }
        let known = &mut self.blocks[self.last.get().1 as usize][place];
        let before = *known & USERS;
        *known |= 1 << cpu | u8::from(changes) << cpu << MAX_CPUS;
        before.is_power_of_two() && before != *known & USERS
    }

    /// Whether this CPU has used it, and no other; for one that `changes` nothing, whether no other has changed it.
    #[inline]
    pub(super) fn lets(&self, address: usize, cpu: usize, changes: bool) -> bool {
        let known = self.get(address);
        let others = match changes {
            true => known & USERS,
            false => known >> MAX_CPUS,
        };
        known != 0 && others & !(1 << cpu) == 0
    }

    /// Whether no other CPU than this has used it.
    #[inline]
    pub(super) fn no_other(&self, address: usize, cpu: usize) -> bool {
        self.get(address) & USERS & !(1 << cpu) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_pass_where_no_other_changes_and_changes_where_no_other_comes() {
        let mut users = Users::default();
        let [alone, read, written, far] = [0x1000, 0x1008, 0x1010, 0x90_0000];
        assert!(!users.lets(alone, 0, false), "nothing is known of it");
        users.add(alone, 0, true);
        users.add(read, 0, true);
        assert!(users.add(read, 1, false), "another CPU comes");
        users.add(far, 1, false);
        users.add(written, 0, false);
        users.add(written, 1, true);
        let lets = |changes| [alone, read, written, far].map(|word| users.lets(word, 0, changes));
        assert_eq!(lets(false), [true, true, false, true]);
        assert_eq!(lets(true), [true, false, false, false]);
        assert!(users.no_other(alone, 0) && !users.no_other(read, 0));
    }
}

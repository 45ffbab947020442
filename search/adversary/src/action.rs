//! Defines the possible next actions of a run, and whether two of them commute.

use crate::word::AdversaryWord;
use rustc_hash::FxBuildHasher;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::Ordering;

/// The largest number of CPUs in a run.
pub const MAX_CPUS: usize = crate::generated::program::MAX_CPUS;

const _: () = assert!(MAX_CPUS <= quell_vm::sim::heap::CPUS, "each CPU has a part of the heap");

/// The number of places in a CPU's store buffer.
pub const BUFFER: usize = 8;

/// A possible next action of a run: an action of one CPU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Action(pub u8);

const INTERRUPT: u8 = MAX_CPUS as u8;
const NMI: u8 = 2 * MAX_CPUS as u8;
const PREEMPT: u8 = 3 * MAX_CPUS as u8;
const DRAIN: u8 = 4 * MAX_CPUS as u8;

/// The number of different actions.
pub const ACTIONS: usize = DRAIN as usize + MAX_CPUS * BUFFER;
const _: () = assert!(ACTIONS <= 64, "a set of actions fits into a word");

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The CPU performs its next step.
    Step,
    /// The CPU takes its pending interrupt.
    Interrupt,
    /// The CPU takes an NMI.
    Nmi,
    /// Another thread, or a device's interrupt handler, preempts the CPU's code.
    Preempt,
    /// The store in this place of the CPU's buffer becomes visible.
    Drain(usize),
}

impl Action {
    /// Creates the action "this CPU performs its next step".
    pub const fn step(cpu: usize) -> Action {
        Action(cpu as u8)
    }
    /// Creates the action "this CPU takes its pending interrupt".
    pub const fn interrupt(cpu: usize) -> Action {
        Action(INTERRUPT + cpu as u8)
    }
    /// Creates the action "this CPU takes an NMI".
    pub const fn nmi(cpu: usize) -> Action {
        Action(NMI + cpu as u8)
    }
    /// Creates the action "other code preempts this CPU's code".
    pub const fn preempt(cpu: usize) -> Action {
        Action(PREEMPT + cpu as u8)
    }
    /// Creates the action "the store in this place of the CPU's buffer becomes visible".
    pub const fn drain(cpu: usize, place: usize) -> Action {
        Action(DRAIN + (cpu * BUFFER + place) as u8)
    }
    /// Returns the CPU that acts.
    pub const fn cpu(self) -> usize {
        if self.0 < DRAIN { self.0 as usize % MAX_CPUS } else { (self.0 - DRAIN) as usize / BUFFER }
    }
    pub const fn kind(self) -> Kind {
        if self.0 < INTERRUPT {
            Kind::Step
        } else if self.0 < NMI {
            Kind::Interrupt
        } else if self.0 < PREEMPT {
            Kind::Nmi
        } else if self.0 < DRAIN {
            Kind::Preempt
        } else {
            Kind::Drain((self.0 - DRAIN) as usize % BUFFER)
        }
    }
    /// Returns the set that contains only this action.
    #[inline]
    pub const fn bit(self) -> u64 {
        1 << self.0
    }
}

/// A set of actions, one bit each ([`Action::bit`]).
pub type Actions = u64;

/// The actions that may always happen, so that no program may wait for one: NMIs and preemptions.
pub const UNPROMPTED: Actions = ((1 << (2 * MAX_CPUS)) - 1) << NMI;

const fn drains(cpu: usize) -> Actions {
    ((1 << BUFFER) - 1) << (DRAIN as usize + cpu * BUFFER)
}

pub(crate) fn members(set: Actions) -> impl Iterator<Item = Action> {
    let mut left = set;
    core::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let action = Action(left.trailing_zeros() as u8);
        left &= left - 1;
        Some(action)
    })
}

/// Returns the next action of an undisturbed run, by the fixed scheduler.
///
/// The current CPU steps as long as it can. If it can't, one of its buffered stores drains. If it has none, it takes
/// its interrupt. If it can do none of these, the next CPU in turn acts. NMIs and preemptions don't happen.
pub fn default_action(enabled: Actions, current: usize) -> Option<Action> {
    if enabled & Action::step(current).bit() != 0 {
        return Some(Action::step(current));
    }
    first_of(enabled, current, |cpu| {
        [Action::step(cpu).bit(), drains(cpu), Action::interrupt(cpu).bit()]
    })
}

/// Returns the first possible action in the order of the CPUs from `first` on, and of the sets of each.
fn first_of(
    enabled: Actions,
    first: usize,
    sets: impl Fn(usize) -> [Actions; 3],
) -> Option<Action> {
    for offset in 0..MAX_CPUS {
        for set in sets((first + offset) % MAX_CPUS) {
            if let Some(action) = members(set & enabled).next() {
                return Some(action);
            }
        }
    }
    None
}

/// The length of a CPU's turn in the fair part of a run, in decisions.
const TURN: u32 = 48;

/// Returns the next action in a run's fair part, in which the CPUs take turns.
///
/// The CPU whose turn it is takes its interrupts and drains its stores first, then steps. If it can do nothing, the
/// next CPU acts.
pub fn fair_action(enabled: Actions, decision: u32) -> Option<Action> {
    // We hash the turns, so that no two waiting loops stay in step.
    let turn = FxBuildHasher.hash_one(decision / TURN) as usize % MAX_CPUS;
    first_of(enabled, turn, |cpu| {
        [Action::interrupt(cpu).bit(), drains(cpu), Action::step(cpu).bit()]
    })
}

/// A deviation from the fixed scheduler: a decision's number, and the choice made there.
///
/// A choice between data has [`DATA`] set. Such a choice is, for example, which translation an access uses.
pub type Deviation = (u32, u8);

/// Marks a choice between data.
pub const DATA: u8 = 0x80;

/// Returns an action's actor, a number below [`ACTIONS`]. All buffered stores of a CPU are one actor.
#[inline]
pub(crate) fn actor_of(action: Action) -> usize {
    const ACTORS: [u8; ACTIONS] = {
        let mut actors = [0; ACTIONS];
        let mut number = 0;
        while number < ACTIONS as u8 {
            let action = Action(number);
            actors[number as usize] = match action.kind() {
                Kind::Drain(_) => Action::drain(action.cpu(), 0).0,
                _ => number,
            };
            number += 1;
        }
        actors
    };
    ACTORS[action.0 as usize].into()
}

/// Returns member number `n` of the set, counted from 0.
pub(crate) fn nth(set: Actions, mut n: u32) -> Action {
    let mut left = set;
    while n > 0 {
        left &= left - 1;
        n -= 1;
    }
    Action(left.trailing_zeros() as u8)
}

/// The state that an action uses. It determines whether two actions commute.
#[derive(Clone, Copy, Default, Debug)]
pub struct Footprint {
    pub(crate) cpu: u8,
    /// Whether a store drains. That commutes with its CPU's later actions, unless they use the same state.
    pub(crate) drain: bool,
    pub(crate) address: usize,
    pub(crate) writes: bool,
    /// Whether the action commutes with no write of another CPU. For example, an iteration of a waiting loop checks
    /// whether any word has changed.
    pub(crate) looks: bool,
    /// Whether it changes words of whole tables, which `address` doesn't name.
    pub(crate) many_words: bool,
    /// The use of the translation hardware: 0 for none, 1 if it reads it, 2 if it changes it.
    pub(crate) translation: u8,
    /// The CPUs whose interrupt lines it uses, as bits.
    pub(crate) lines: u8,
}

impl Footprint {
    /// Returns whether two actions with these footprints commute.
    pub fn independent(&self, other: &Footprint) -> bool {
        if self.cpu == other.cpu && (self.drain == other.drain) {
            return false;
        }
        let same_word = self.address != 0 && self.address == other.address;
        let translation = self.translation.min(other.translation) > 0
            && self.translation.max(other.translation) == 2;
        let tables = self.many_words && other.address != 0 || other.many_words && self.address != 0;
        !(same_word && (self.writes || other.writes))
            && !tables
            && !(self.looks && other.writes || other.looks && self.writes)
            && !translation
            && self.lines & other.lines == 0
    }
}

/// The kind of a program's access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AccessKind {
    Load,
    Store,
    /// An instruction fetch.
    Fetch,
}

impl fmt::Display for AccessKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AccessKind::Load => "load",
            AccessKind::Store => "store",
            AccessKind::Fetch => "fetch",
        })
    }
}

/// The next operation of a CPU.
#[derive(Clone, Copy, PartialEq, Hash, Debug)]
pub(crate) enum Op {
    /// Begin its program.
    Start,
    Load(*const AdversaryWord, Ordering),
    Store(*const AdversaryWord, Ordering),
    /// Modify a word atomically.
    Modify(*const AdversaryWord, Ordering),
    /// Read or write shared state that isn't a word. A write waits until the CPU's stores are visible.
    Touch {
        /// Its address.
        place: usize,
        writes: bool,
    },
    /// A full memory barrier.
    Fence,
    /// A full barrier that also makes table writes visible to walkers.
    Barrier,
    /// The same barrier, which also completes the CPU's own broadcasts.
    Complete,
    /// An iteration of a waiting loop.
    Relax,
    /// Sleep until an interrupt or the clock wakes the CPU.
    Halt,
    /// Wait for interrupts after the end of the program.
    Park,
    /// Mask interrupts. A pending one may still be taken first.
    Mask,
    /// Invalidate translations of this CPU.
    Invalidate,
    /// Load or unload a root.
    Root,
    /// Send an invalidation to every CPU.
    Broadcast,
    /// Report to the oracle.
    Note,
    /// Send interrupts to a set of CPUs.
    Send(u8),
    /// Access user memory.
    Access(AccessKind),
    /// Access the content of a frame through the kernel's own mapping.
    Content {
        frame: u32,
        /// Whether it is a write.
        store: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_numbered_without_gaps() {
        for number in 0..ACTIONS as u8 {
            let action = Action(number);
            let again = match action.kind() {
                Kind::Step => Action::step(action.cpu()),
                Kind::Interrupt => Action::interrupt(action.cpu()),
                Kind::Nmi => Action::nmi(action.cpu()),
                Kind::Preempt => Action::preempt(action.cpu()),
                Kind::Drain(place) => Action::drain(action.cpu(), place),
            };
            assert_eq!(again, action);
        }
    }

    #[test]
    fn the_fixed_scheduler_goes_on_with_the_same_cpu() {
        let enabled = Action::step(0).bit() | Action::step(2).bit() | Action::interrupt(2).bit();
        assert_eq!(default_action(enabled, 2), Some(Action::step(2)));
        assert_eq!(default_action(enabled, 1), Some(Action::step(2)));
        assert_eq!(default_action(Action::nmi(0).bit(), 0), None);
    }
}

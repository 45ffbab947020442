//! Checks promises of the machine that don't depend on its tables: CPU numbers, shared words, and leaving a root.
//!
//! The engine and the other checks rely on the first two. On a machine that breaks one, a flush may never end. So we
//! check them before any space is loaded, and if one fails the suite ends.

use crate::bench::{Bench, Rights};
use crate::checks::{BASE, Step};
use crate::part::{OLD, Part};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use quell::Word;

/// The number of additions that each CPU makes to a shared word.
const ADDS: u64 = 2000;
/// The number of values that one CPU passes to the others through a word.
const HANDED: u64 = 200;

/// The checks that run first, and end the suite if they fail.
pub(crate) fn all<'s, 'm, H: Bench>() -> [(&'static str, Step<'s, 'm, H>); 2] {
    [
        ("C1 C7 each_cpu_has_a_number_of_its_own", Part::numbers),
        ("C1 C7 words_are_shared", Part::words),
    ]
}

impl<H: Bench> Part<'_, '_, H> {
    /// Checks that no two CPUs have the same number.
    fn numbers(&self) {
        let seat = self.shared.seats.get(self.me);
        if let Some(seat) = seat {
            seat.fetch_add(1, SeqCst);
        }
        self.barrier();
        let alone = seat.is_none_or(|seat| seat.load(SeqCst) == 1);
        let stays = (0..ADDS).all(|_| self.hw.this_cpu().index() == self.me);
        self.expect(seat.is_some(), "a CPU's number is not below the bench's number of CPUs");
        self.expect(alone, "two CPUs have the same number");
        self.expect(stays, "the number of a CPU has changed");
    }

    /// Checks that no concurrent addition is lost, and that an acquire load sees the stores before a release store.
    fn words(&self) {
        let [sum, bits, value, flag] = &self.shared.words;
        let mine = 1 << (self.me % 64);
        for _ in 0..ADDS {
            sum.fetch_add(1, Relaxed);
            bits.fetch_or(mine, Relaxed);
            bits.fetch_and(!mine, Relaxed);
        }
        let mut in_order = true;
        if self.initiates() {
            for handed in 1..=HANDED {
                value.store(handed, Relaxed);
                flag.store(handed, Release);
            }
        } else {
            let mut seen = 0;
            while seen < HANDED {
                seen = flag.load(Acquire);
                in_order &= value.load(Relaxed) >= seen;
                self.hw.relax();
            }
        }
        self.barrier();
        let counted = sum.load(SeqCst) == ADDS * self.hw.cpus() as u64;
        let whole = bits.load(SeqCst) == 0;
        self.expect(counted && whole, "a concurrent addition to a word was lost");
        self.expect(in_order, "a store before a release store was not seen");
    }

    /// Checks that a CPU that has left its root reads nothing through it. It runs among the checks of translations,
    /// because it needs one.
    pub(crate) fn leave_root(&self) {
        self.begin(BASE, Rights::Read);
        self.engine.this_cpu().leave(&self.shared.spaces[0]);
        let gone = self.hw.try_read(BASE.address()) != Some(OLD);
        self.engine.this_cpu().mask_interrupts().switch(None, &self.shared.spaces[0]);
        let back = self.reads(BASE, OLD);
        self.end(BASE);
        self.expect(gone, "a page was read through a root that the CPU had left");
        self.expect(back, "a mapped page could not be read");
    }
}

//! Counts of events on each CPU.

use std::iter::Sum;
use std::ops::AddAssign;

macro_rules! counts {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// Counts of one CPU, or of all of them together.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counts { $($(#[doc = $doc])+ pub $name: u64,)* }

        impl Counts {
            /// Returns the counts since an earlier moment.
            pub fn since(&self, earlier: &Counts) -> Counts {
                Counts { $($name: self.$name - earlier.$name,)* }
            }

            /// Returns every count with its name and meaning, in a fixed order.
            pub fn rows(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), concat!($($doc),+), self.$name),)*].into_iter()
            }
        }

        impl AddAssign for Counts {
            fn add_assign(&mut self, other: Counts) {
                $(self.$name += other.$name;)*
            }
        }

        impl Sum for Counts {
            fn sum<I: Iterator<Item = Counts>>(all: I) -> Counts {
                all.fold(Counts::default(), |mut sum, counts| {
                    sum += counts;
                    sum
                })
            }
        }
    };
}

counts! {
    /// Loads and stores of programs.
    accesses,
    /// Accesses that missed the first-level TLB.
    tlb_first_misses,
    /// Accesses that missed both levels of the TLB.
    tlb_misses,
    /// Stores that missed both levels of the TLB.
    tlb_store_misses,
    /// Walks of the page tables: misses, and stores through clean or read-only entries.
    walks,
    /// Page-table entries that walks read.
    walk_reads,
    /// Accessed or dirty bits that walks set.
    walk_updates,
    /// Page faults.
    faults,
    /// System calls.
    calls,
    /// Interrupts sent, one for each target.
    interrupts_sent,
    /// Interrupts taken. One may answer several that were sent.
    interrupts_taken,
    /// Non-maskable interrupts taken.
    nmis,
    /// Pages invalidated one by one on this CPU.
    invalidated_pages,
    /// Whole tags invalidated on this CPU, including by root loads that flush.
    invalidated_tags,
    /// Invalidations of everything on this CPU.
    invalidated_all,
    /// Invalidations broadcast by this CPU.
    broadcasts,
    /// Waits for the completion of broadcasts.
    broadcast_waits,
    /// Full barriers.
    fences,
    /// Root loads.
    root_loads,
    /// Operations on shared words.
    words,
    /// Cache lines taken from other cores.
    transfers,
    /// Iterations of wait loops.
    relaxes,
    /// Bytes zeroed.
    zeroed,
    /// Bytes copied from frame to frame.
    copied,
    /// Picoseconds that this CPU was halted.
    halted,
    /// Picoseconds in interrupt handlers, entry and exit included.
    handling,
    /// Picoseconds that this CPU waited for its broadcasts to complete.
    waiting_for_broadcasts,
    /// Picoseconds that other CPUs' broadcasts took from this one.
    disturbed,
}

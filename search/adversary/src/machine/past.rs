//! What words held before, and how far back each CPU may still look: loads that overtake each other.
//!
//! On machines that reorder ([`MachineKind::reorders`](crate::kind::MachineKind)) a load may have been satisfied
//! before operations that come earlier in its program. Stores become visible to all other CPUs at once there
//! (Arm and RISC-V are multi-copy atomic), so all that a load can return early is what its word held at one
//! moment of the past. A word keeps its last values, each with the moment at which it became visible; a CPU keeps
//! moments before which its loads cannot have been satisfied; and a load returns any value that stood after
//! those ([`Past::older`] counts them, the scheduler picks one):
//!
//! * *the floor*, which what acquires raises. A load that was satisfied as early as possible was so when its value
//!   became visible; that moment becomes the floor at once if it acquires, at the next fence that acquires if
//!   not;
//! * what the CPU has read of the word, or stored to it, before: coherence;
//! * for a sequentially consistent load, the CPU's own last sequentially consistent store.
//!
//! An exchange reads what is newest, and acquires no more than that: its store may come later than what follows,
//! as that of Arm's exclusive pair may. One that fails is a load, of the ordering that it has then.
//!
//! | what | loads after it are satisfied no earlier than |
//! | --- | --- |
//! | a load or an exchange that acquires | the value that it has read became visible |
//! | a fence that acquires | that of every value read before |
//! | a full fence | the same, and the CPU's own stores, to words and to frames, and its invalidations took effect |
//! | a barrier of the machine | the same, and so did what the barrier waited for: walkers see the tables as they are |
//! | an interrupt | all that its senders had read or stored |
//! | a turn of a waiting loop | the values went that were read early: a CPU does not miss them for ever |
//! | anything else: invalidations, roots, other exceptions | as before |
//!
//! Times of stores alone are compared, never those of loads: so two operations on different words still commute,
//! unless both become visible.
//!
//! What is not here. A load returns nothing that is stored after its step, so no store overtakes a load of its own CPU.
//! Dependencies do not order: Rust knows none, so what the engine relies on must not need them. Loads of frames, by
//! programs and by the kernel, are satisfied at their step. Walks need no past: a TLB holds everything that was walked
//! since it was last invalidated, so what a walker read early is there, and what it reads late are the values that
//! [`mmu`](crate::mmu) keeps until a barrier.

use crate::action::MAX_CPUS;
use crate::cell::AdversaryWord;
use crate::digest::Digest;
use crate::oracle::Moment;
use rustc_hash::FxHashMap;
use std::hash::Hash;
use std::sync::atomic::Ordering;

/// The number of past values to keep per word.
pub(super) const DEPTH: usize = 4;

/// A value that a word held.
#[derive(Clone, Copy, Default)]
struct Held {
    value: u64,
    from: Moment,
    until: Moment,
}

/// The history of a word that was written in this run.
#[derive(Clone, Default)]
struct Word {
    /// The youngest first.
    old: [Held; DEPTH],
    count: usize,
    /// Its value; if memory differs, the word was moved and another has taken its place.
    value: u64,
    /// When that became visible.
    from: Moment,
    /// The value that each CPU has read or stored last, by when it became visible.
    read: [Moment; MAX_CPUS],
}

/// How far back a CPU may look.
#[derive(Clone, Copy, Default)]
struct Horizon {
    /// Later loads find nothing older.
    floor: Moment,
    /// The same after a fence that acquires.
    seen: Moment,
    /// When the last of its stores became visible, or something else that it did took effect.
    stored: Moment,
    /// When the last of those did that were sequentially consistent.
    consistent: Moment,
    /// The reads and stores of the senders of its interrupts.
    told: Moment,
    /// When the last of the values went that it has read early.
    missed: Moment,
}

/// See the module.
#[derive(Default)]
pub(super) struct Past {
    /// Whether it is kept: on machines that reorder, while the CPUs are in motion.
    kept: bool,
    words: FxHashMap<usize, Word>,
    horizons: [Horizon; MAX_CPUS],
}

fn acquires(order: Ordering) -> bool {
    matches!(
        order,
        Ordering::Acquire | Ordering::AcqRel | Ordering::SeqCst
    )
}

fn address(word: *const AdversaryWord) -> usize {
    word as usize
}

impl Past {
    /// Forgets all, and keeps nothing.
    pub(super) fn clear(&mut self) {
        *self = Past {
            words: std::mem::take(&mut self.words),
            ..Past::default()
        };
        self.words.clear();
    }

    /// From here on the past is kept.
    pub(super) fn keep(&mut self) {
        self.kept = true;
    }

    /// Returns whether it is kept.
    #[inline]
    pub(super) fn is_kept(&self) -> bool {
        self.kept
    }

    /// A word held `old` until now, when `new` became visible, which may be the same once more.
    pub(super) fn written(
        &mut self,
        word: *const AdversaryWord,
        (old, new): (u64, u64),
        now: Moment,
    ) {
        let word = self.words.entry(address(word)).or_default();
        if word.value != old {
            *word = Word::default();
        }
        word.value = new;
        word.old.rotate_right(1);
        word.old[0] = Held {
            value: old,
            from: word.from,
            until: now,
        };
        word.count = (word.count + 1).min(DEPTH);
        word.from = now;
    }

    /// Records that a store of this CPU has just become visible.
    pub(super) fn stored(
        &mut self,
        cpu: usize,
        word: *const AdversaryWord,
        consistent: bool,
        now: Moment,
    ) {
        if let Some(word) = self.words.get_mut(&address(word)) {
            word.read[cpu] = now;
        }
        let view = &mut self.horizons[cpu];
        view.stored = now;
        if consistent {
            view.consistent = now;
        }
    }

    /// Records that an operation of a CPU has just taken effect: a store to a word or a frame, an invalidation, or the
    /// operations that its barrier has waited for.
    pub(super) fn took_effect(&mut self, cpu: usize, now: Moment) {
        if self.kept {
            self.horizons[cpu].stored = now;
        }
    }

    /// Forgets a dropped word.
    pub(super) fn forget(&mut self, word: *const AdversaryWord) {
        self.words.remove(&address(word));
    }

    /// The older values that a load of this ordering may return, the youngest first.
    pub(super) fn older(
        &self,
        cpu: usize,
        word: &AdversaryWord,
        order: Ordering,
    ) -> impl Iterator<Item = u64> {
        let holds = word.peek();
        let word = self.words.get(&address(word));
        let word = word.filter(|word| word.value == holds);
        let view = &self.horizons[cpu];
        let mut least = view.floor;
        if order == Ordering::SeqCst {
            least = least.max(view.consistent);
        }
        word.into_iter().flat_map(move |word| {
            let least = least.max(word.read[cpu]);
            let old = word.old[..word.count].iter();
            old.take_while(move |held| held.until > least)
                .map(|held| held.value)
        })
    }

    /// Records that a CPU has read the present value of a word, if `age` is 0, or the older value of that number.
    pub(super) fn read(&mut self, cpu: usize, word: &AdversaryWord, age: usize, order: Ordering) {
        let holds = word.peek();
        let view = &mut self.horizons[cpu];
        let mut from = 0;
        if let Some(word) = self.words.get_mut(&address(word))
            && word.value == holds
        {
            from = match age.checked_sub(1).map(|old| word.old[old]) {
                Some(held) => {
                    view.missed = view.missed.max(held.until);
                    held.from
                }
                None => word.from,
            };
            word.read[cpu] = from;
        }
        if order == Ordering::SeqCst {
            from = from.max(view.consistent);
        }
        view.seen = view.seen.max(from);
        if acquires(order) {
            view.floor = view.floor.max(from);
        }
    }

    /// Loads after this come after all loads before.
    pub(super) fn order_loads(&mut self, cpu: usize) {
        let view = &mut self.horizons[cpu];
        view.floor = view.floor.max(view.seen);
    }

    /// Loads after this come after everything before.
    pub(super) fn fence(&mut self, cpu: usize) {
        self.order_loads(cpu);
        let view = &mut self.horizons[cpu];
        view.floor = view.floor.max(view.stored);
    }

    /// Lets a CPU see missed values when it repeats a waiting loop. Otherwise it might miss them for ever.
    pub(super) fn look_again(&mut self, cpu: usize) {
        let view = &mut self.horizons[cpu];
        view.floor = view.floor.max(view.missed);
    }

    /// Records an interrupt: earlier stores are visible to the handler.
    pub(super) fn tell(&mut self, from: usize, to: usize) {
        let Horizon { seen, stored, .. } = self.horizons[from];
        let told = &mut self.horizons[to].told;
        *told = (*told).max(seen).max(stored);
    }

    /// A CPU takes its interrupt.
    pub(super) fn hear(&mut self, cpu: usize) {
        let view = &mut self.horizons[cpu];
        view.floor = view.floor.max(view.told);
    }

    /// Returns a digest of everything that affects later reads. Moments count only by the values that became visible
    /// before them, and only values that a CPU may still distinguish.
    pub(super) fn digest(&self, count: usize, digest: &mut Digest) {
        if !self.kept {
            return;
        }
        let horizons = &self.horizons[..count];
        let least = horizons.iter().map(|view| view.floor).min().unwrap_or(0);
        let readable = |word: &Word| {
            let old = word.old[..word.count].iter();
            let least = (0..count).map(|cpu| horizons[cpu].floor.max(word.read[cpu]));
            let least = least.min().unwrap_or(0);
            old.take_while(|held| held.until > least).count()
        };
        let words = || {
            let all = self
                .words
                .iter()
                .map(|(at, word)| (*at, word, readable(word)));
            all.filter(|(_, word, _)| word.from > least)
        };
        let mut moments: Vec<Moment> = words()
            .flat_map(|(_, word, old)| word.old[..old].iter().map(|h| h.from).chain([word.from]))
            .filter(|&moment| moment > least)
            .collect();
        moments.sort_unstable();
        moments.dedup();
        let rank = |moment: Moment| moments.partition_point(|&other| other <= moment);
        for view in horizons {
            let Horizon {
                floor,
                seen,
                stored,
                consistent,
                told,
                missed,
            } = *view;
            [floor, seen, stored, consistent, told, missed]
                .map(|moment| rank(moment.max(floor)))
                .hash(digest);
        }
        digest.add_all(words().map(|(at, word, old)| {
            let values = word.old[..old]
                .iter()
                .map(|held| (held.value, rank(held.from)));
            let read = (0..count).map(|cpu| rank(word.read[cpu].max(horizons[cpu].floor)));
            let values: Vec<_> = values.collect();
            let read: Vec<_> = read.collect();
            (at, rank(word.from), values, read)
        }));
    }
}

#[cfg(test)]
mod tests;

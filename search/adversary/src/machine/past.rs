//! Keeps the past values of words, so that loads may overtake each other.
//!
//! On machines that reorder ([`MachineKind::reorders`](crate::kind::MachineKind)), a load may have been satisfied
//! before operations that come earlier in its program. Stores become visible to all other CPUs at once there (Arm and
//! RISC-V are multi-copy atomic). So an early load can only return the value that its word had at one moment of the
//! past. This module keeps the last values of each word, each with the moment at which it became visible. For each CPU
//! it keeps moments before which the CPU's loads can't have been satisfied. A load returns any value that was still
//! present after all of these moments. ([`Past::older`] counts such values, and the scheduler picks one.) The moments
//! are:
//!
//! * *The floor*, which acquire operations raise. A load is taken to be satisfied as early as possible, which is when
//!   its value became visible. If the load acquires, that moment becomes the floor at once, and otherwise at the next
//!   fence that acquires. For example, an acquire load returns a value that became visible at moment 7. Then no later
//!   load returns a value that was replaced at or before moment 7.
//! * The moment of the value that the CPU has last read from the word or stored to it (coherence).
//! * For a sequentially consistent load, the CPU's own last sequentially consistent store.
//!
//! An exchange reads the newest value, and acquires no more than that. Its store may become visible later than the
//! operations that follow, like the store of Arm's exclusive pair. An exchange that fails is a load with the ordering
//! for failure.
//!
//! | operation | loads after it are satisfied no earlier than |
//! | --- | --- |
//! | a load or an exchange that acquires | when the value that it read became visible |
//! | a fence that acquires | when every value read before became visible |
//! | a full fence | the same, and when the CPU's own stores (to words and frames) and invalidations took effect |
//! | a barrier of the machine | the same, and when everything it waited for took effect: walkers see present tables |
//! | an interrupt | everything that its senders had read or stored |
//! | an iteration of a waiting loop | when values that were read early were replaced: no CPU misses these for ever |
//! | anything else: invalidations, roots, other exceptions | as before |
//!
//! Only the times of stores are compared, never those of loads. So two operations on different words still commute,
//! unless both become visible.
//!
//! Some effects aren't modelled. A load returns nothing that is stored after its step, so no store overtakes a load of
//! its own CPU. Dependencies don't order: Rust has none, so the engine mustn't rely on them. Loads of frames, by
//! programs and by the kernel, are satisfied at their step. Walks need no past. A TLB holds everything that was walked
//! since it was last invalidated, so it includes anything that a walker read early. Values that a walker reads late,
//! until a barrier, are in [`mmu`](crate::mmu).

use crate::action::MAX_CPUS;
use crate::digest::Digest;
use crate::oracle::Moment;
use crate::word::AdversaryWord;
use rustc_hash::FxHashMap;
use std::hash::Hash;
use std::sync::atomic::Ordering;

/// The number of past values that we keep per word.
pub(super) const DEPTH: usize = 4;

/// A value that a word held.
#[derive(Clone, Copy, Default)]
struct HeldValue {
    value: u64,
    from: Moment,
    until: Moment,
}

/// The history of a word that was written in this run.
#[derive(Clone, Default)]
struct Word {
    /// The past values, youngest first.
    old: [HeldValue; DEPTH],
    count: usize,
    /// Its present value. If memory differs, the word was moved and another one has its address now.
    value: u64,
    /// When the present value became visible.
    from: Moment,
    /// For each CPU, when the value that it last read or stored became visible.
    read: [Moment; MAX_CPUS],
}

/// The moments before which a CPU's loads can't have been satisfied.
#[derive(Clone, Copy, Default)]
struct Horizon {
    /// The floor: later loads return no value that was replaced before.
    floor: Moment,
    /// The floor after the next fence that acquires.
    seen: Moment,
    /// When the CPU's last store became visible, or another of its operations took effect.
    stored: Moment,
    /// When its last sequentially consistent store became visible.
    consistent: Moment,
    /// The last read or store of the senders of its interrupts.
    told: Moment,
    /// When the last of the values that it has read early was replaced.
    missed: Moment,
}

/// The past values of all words, and the horizons of all CPUs.
#[derive(Default)]
pub(super) struct Past {
    /// Whether we keep the past: on machines that reorder, during a run.
    kept: bool,
    words: FxHashMap<usize, Word>,
    horizons: [Horizon; MAX_CPUS],
}

fn acquires(order: Ordering) -> bool {
    matches!(order, Ordering::Acquire | Ordering::AcqRel | Ordering::SeqCst)
}

fn address(word: *const AdversaryWord) -> usize {
    word as usize
}

impl Past {
    /// Forgets everything, and stops keeping the past.
    pub(super) fn clear(&mut self) {
        *self = Past { words: std::mem::take(&mut self.words), ..Past::default() };
        self.words.clear();
    }

    pub(super) fn keep(&mut self) {
        self.kept = true;
    }

    #[inline]
    pub(super) fn is_kept(&self) -> bool {
        self.kept
    }

    /// Records that `new` became visible now in a word that held `old`, which may be the same value.
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
        word.old[0] = HeldValue { value: old, from: word.from, until: now };
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
    /// operations for which its barrier has waited.
    pub(super) fn took_effect(&mut self, cpu: usize, now: Moment) {
        if self.kept {
            self.horizons[cpu].stored = now;
        }
    }

    /// Forgets a dropped word.
    pub(super) fn forget(&mut self, word: *const AdversaryWord) {
        self.words.remove(&address(word));
    }

    /// Returns the older values that a load of this ordering may return, youngest first.
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
            old.take_while(move |held| held.until > least).map(|held| held.value)
        })
    }

    /// Records that a CPU has read a value of a word: the present one if `age` is 0, or the past value of that number.
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

    /// Orders the loads of a CPU: later ones don't overtake earlier ones.
    pub(super) fn order_loads(&mut self, cpu: usize) {
        let view = &mut self.horizons[cpu];
        view.floor = view.floor.max(view.seen);
    }

    /// Orders the loads of a CPU after all its earlier operations.
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

    /// Records an interrupt that is sent: the handler will see the sender's earlier reads and stores.
    pub(super) fn tell(&mut self, from: usize, to: usize) {
        let Horizon { seen, stored, .. } = self.horizons[from];
        let told = &mut self.horizons[to].told;
        *told = (*told).max(seen).max(stored);
    }

    /// Records that a CPU takes its interrupt.
    pub(super) fn hear(&mut self, cpu: usize) {
        let view = &mut self.horizons[cpu];
        view.floor = view.floor.max(view.told);
    }

    /// Adds everything that affects later reads to a digest. A moment counts only by the values that became visible
    /// before it, and only values that a CPU may still distinguish count.
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
            let all = self.words.iter().map(|(at, word)| (*at, word, readable(word)));
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
            let Horizon { floor, seen, stored, consistent, told, missed } = *view;
            [floor, seen, stored, consistent, told, missed]
                .map(|moment| rank(moment.max(floor)))
                .hash(digest);
        }
        digest.add_all(words().map(|(at, word, old)| {
            let values = word.old[..old].iter().map(|held| (held.value, rank(held.from)));
            let read = (0..count).map(|cpu| rank(word.read[cpu].max(horizons[cpu].floor)));
            let values: Vec<_> = values.collect();
            let read: Vec<_> = read.collect();
            (at, rank(word.from), values, read)
        }));
    }
}

#[cfg(test)]
mod tests;

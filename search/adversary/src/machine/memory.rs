//! Words and frames: loads, store buffers, and when stores become visible.

use super::buffer::{BufferedOp, Fill, Target};
use super::{Core, Cpu, breach, past};
use crate::action::BUFFER;
use crate::action::Op;
use crate::kind::Stores;
use crate::oracle::Moment;
use crate::tables;
use crate::timeline::RunEvent;
use crate::word::AdversaryWord;
use quell::{CpuId, Page};
use quell_vm::contract::Clause;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// The bits of an entry whose loss programs notice.
const TAKEN: u64 = tables::PRESENT | tables::WRITABLE | tables::EXECUTABLE;

impl Core {
    /// Notes that a CPU has read or written `value`. A waiting loop needn't run again before the word changes.
    #[inline]
    fn watch(&mut self, me: usize, word: &AdversaryWord, value: u64) {
        self.cpus[me].watch.read(word, value);
    }

    #[inline]
    pub(crate) fn load(&mut self, me: usize, word: &AdversaryWord, order: Ordering) -> u64 {
        let held = word.peek();
        let cpu = &mut self.cpus[me];
        // Most loads take this path.
        if cpu.buffer.leaves_alone(word) && !self.past.is_kept() && self.timeline.is_none() {
            cpu.watch.read(word, held);
            return held;
        }
        self.load_found(me, word, order)
    }

    /// Loads a word if the result may differ from the present value, or the load must be recorded.
    #[inline(never)]
    fn load_found(&mut self, me: usize, word: &AdversaryWord, order: Ordering) -> u64 {
        let value = match self.own_store(me, word) {
            // A CPU may read its own store before others can, whatever the load's ordering.
            Some(newest) => newest,
            None if self.past.is_kept() => {
                let early = self.load_early(me, word, order, None);
                early.unwrap_or_else(|| word.peek())
            }
            None => word.peek(),
        };
        self.watch(me, word, value);
        if self.tracing() {
            self.record(me, RunEvent::Read(value));
        }
        value
    }

    /// Returns a CPU's last store to a word, if it is in its buffer.
    #[inline]
    fn own_store(&self, me: usize, word: &AdversaryWord) -> Option<u64> {
        let frame = || self.arena.place(word).map(|(frame, _)| frame);
        let newest = self.cpus[me].buffer.newest(word, frame);
        newest.map(|entry| entry.value)
    }

    /// Picks whether a load returns an older value of the word, and returns that. The value `but` is never picked.
    /// `None` means the newest value; it counts as read unless it is `but`, because then the caller records the read.
    fn load_early(
        &mut self,
        me: usize,
        word: &AdversaryWord,
        order: Ordering,
        but: Option<u64>,
    ) -> Option<u64> {
        let mut older = [(0, 0); past::DEPTH];
        let mut count = 0;
        for (age, value) in self.past.older(me, word, order).enumerate() {
            if Some(value) != but {
                older[count] = (1 + age, value);
                count += 1;
            }
        }
        let picked = self.pick_early(1 + count).checked_sub(1);
        let early = picked.map(|picked| older[picked]);
        let age = early.map_or(0, |(age, _)| age);
        if age > 0 || but.is_none_or(|but| but != word.peek()) {
            self.past.read(me, word, age, order);
        }
        let (_, value) = early?;
        if self.tracing() {
            self.record(me, RunEvent::Early);
        }
        Some(value)
    }

    /// Replaces a word's value by that of `change`, atomically. Returns the old value. With `fails`, it replaces only
    /// the given value; any other it just loads, with the given ordering.
    #[inline]
    pub(crate) fn modify(
        &mut self,
        me: usize,
        word: &AdversaryWord,
        order: Ordering,
        fails: Option<(u64, Ordering)>,
        change: impl FnOnce(u64) -> u64,
    ) -> u64 {
        let held = word.peek();
        if self.past.is_kept() {
            if let Some((wanted, order)) = fails {
                let early = self.load_early(me, word, order, Some(wanted));
                let seen = early.unwrap_or(held);
                if seen != wanted {
                    self.watch(me, word, seen);
                    return seen;
                }
            }
            self.past.read(me, word, 0, order);
        }
        let new = change(held);
        let takes_right = held & !new & TAKEN != 0 && held & tables::PRESENT != 0;
        // An entry that isn't present may be a marker for a lazily unmapped frame, whose translation still counts.
        let clears = new == 0 && held != 0;
        if (takes_right || clears) && self.arena.place(word).is_some() {
            self.strategy.has_changed_table(me, self.decisions);
        }
        self.write(me, word, new);
        // A CPU doesn't wait for its own change.
        self.watch(me, word, new);
        self.stored(me, word, order == Ordering::SeqCst);
        held
    }

    #[inline]
    pub(crate) fn store(&mut self, me: usize, word: &AdversaryWord, value: u64, order: Ordering) {
        if self.tracing() {
            self.record(me, RunEvent::Wrote(value));
        }
        // A CPU doesn't wait for its own change.
        self.cpus[me].watch.wrote(word, value);
        if order == Ordering::SeqCst && self.kind.stores == Stores::Ordered {
            self.write(me, word, value);
            return;
        }
        self.buffer(me, Target::Word(word), value, order);
    }

    pub(super) fn buffer(&mut self, me: usize, target: Target, value: u64, order: Ordering) {
        let promised = match target {
            Target::Fill(fill) => !self.mmu.maps(fill.first),
            _ => false,
        };
        let issued = self.now;
        // Completions wait for the stores of programs.
        if !matches!(target, Target::Word(_)) {
            self.outdate_those(|cpu| cpu.pending == Op::Complete);
        }
        self.outdate(me);
        let instead = match self.cpus[me].buffer.is_full() {
            true => self.pick_data(1 + BUFFER).wrapping_sub(1),
            false => 0,
        };
        let cpu = &mut self.cpus[me];
        let entry = BufferedOp {
            target,
            value,
            epoch: cpu.epoch,
            release: matches!(order, Ordering::Release | Ordering::SeqCst),
            sequential: order == Ordering::SeqCst,
            order: 0,
            issued,
            promised,
        };
        cpu.buffer.push(entry, instead);
    }

    /// Returns whether a CPU can buffer one more store before any of its stores becomes visible.
    #[inline]
    pub(super) fn has_room(&self, cpu: &Cpu) -> bool {
        self.kind.reorders || !cpu.buffer.is_full()
    }

    /// Records that a store of this CPU has just become visible.
    #[inline]
    fn stored(&mut self, cpu: usize, word: &AdversaryWord, consistent: bool) {
        if self.past.is_kept() {
            self.past.stored(cpu, word, consistent, self.now);
        }
    }

    /// Orders the stores of this CPU: later ones don't overtake earlier ones.
    pub(crate) fn order_stores(&mut self, me: usize) {
        self.cpus[me].epoch += 1;
    }

    /// Records a store outside points. Returns whether it may concern anything besides the word: walkers, CPUs that
    /// wait or may look back, or an exhaustive search.
    #[inline]
    pub(crate) fn notices(&mut self, word: &AdversaryWord, value: u64) -> bool {
        self.now += 1;
        if word.peek() != value {
            self.second_looks = 0;
        }
        let looks_back = self.past.is_kept() && self.end.is_none();
        let in_table = self.arena.place(word).is_some();
        in_table || looks_back || self.waiting != 0 || self.searches
    }

    /// Makes a store of the current CPU visible to every CPU at once.
    pub(crate) fn write_visible(&mut self, word: &AdversaryWord, value: u64) {
        self.write(self.current, word, value);
    }

    /// Orders the loads of this CPU: later ones don't overtake earlier ones.
    pub(crate) fn order_loads(&mut self, me: usize) {
        self.past.order_loads(me);
    }

    /// Makes a store of this CPU visible.
    pub(super) fn write(&mut self, me: usize, word: &AdversaryWord, value: u64) {
        let old = word.peek();
        if self.past.is_kept() {
            self.past.written(word, (old, value), self.now);
        }
        if old == value {
            return;
        }
        self.second_looks = 0;
        word.poke(value);
        // Values that a CPU has read without waiting for them matter only in searches that distinguish states.
        let mut look = self.waiting;
        if self.searches {
            look = (1 << self.count) - 1;
            self.sums.word(word, old, value);
        }
        while look != 0 {
            let cpu = look.trailing_zeros() as usize;
            look &= look - 1;
            if self.cpus[cpu].watch.written(word, value) {
                self.outdated |= self.waiting & 1 << cpu;
            }
        }
        if let Some(place) = self.arena.place(word) {
            self.table_written(me, place, (old, value));
        }
    }

    /// Handles the change of a table's word. It is out of line, because few words belong to tables.
    #[inline(never)]
    fn table_written(&mut self, me: usize, place: (u32, usize), change: (u64, u64)) {
        self.mmu.written(self.now, place, change);
        self.judge_contents();
        self.check_tables();
        self.check_breaks(me);
    }

    /// Makes the stores of a CPU visible, in their order. We do this before the run, where nothing is late, and for a
    /// CPU that a hypervisor has descheduled.
    pub(crate) fn drain_all(&mut self, cpu: usize) {
        while let Some((place, _)) = self.cpus[cpu].buffer.oldest() {
            self.drain(cpu, place);
        }
    }

    pub(super) fn drain(&mut self, cpu: usize, place: usize) {
        self.now += 1;
        self.outdate(cpu);
        let Some(entry) = self.cpus[cpu].buffer.take(place) else { return };
        if self.tracing() {
            let what = match entry.target {
                Target::Word(word) => RunEvent::Visible(word, entry.value),
                Target::Content { used, .. } => RunEvent::Landed(used.frame, entry.value),
                Target::Fill(fill) => RunEvent::Landed(fill.first, fill.words[0].unwrap_or(0)),
                Target::Invalidation { what, .. } => {
                    RunEvent::Said(format!("~ {what:?} takes effect"))
                }
            };
            self.record(cpu, what);
        }
        self.past.took_effect(cpu, self.now);
        match entry.target {
            Target::Word(word) => {
                // SAFETY: a dropped word removes itself from the buffers.
                let word = unsafe { &*word };
                self.write(cpu, word, entry.value);
                self.stored(cpu, word, entry.sequential);
            }
            Target::Invalidation { what, sent } => self.mmu.invalidate(cpu, what, sent),
            Target::Fill(fill) => self.land(cpu, &fill, entry.issued),
            Target::Content { used, word } => {
                self.outdate_those(|cpu| cpu.pending == Op::Complete);
                let history = *self.oracle.frame(used.frame);
                let broken = if history.allocated > used.written {
                    Some((Clause::C1, history.allocated_by, "that has a new owner"))
                } else if history.captured > used.written {
                    let account = "whose content has been captured";
                    Some((Clause::C2, history.captured_by, account))
                } else {
                    None
                };
                if let Some((clause, other, account)) = broken {
                    self.fail(
                        breach(
                            clause,
                            format!("a store arrived late in a frame {account}"),
                            cpu,
                            used.frame,
                        )
                        .after(CpuId(other.into()))
                        .through(Page(used.page).address()),
                    );
                }
                self.set_content(used.frame, word, entry.value);
            }
        }
    }

    /// Forgets a dropped word.
    pub(crate) fn forget(&mut self, word: &AdversaryWord) {
        if let Some(footprints) = &mut self.footprints {
            footprints.forget(std::ptr::from_ref(word) as usize);
        }
        self.past.forget(word);
        for cpu in &mut self.cpus {
            cpu.watch.forget(word);
            cpu.buffer.forget(word);
        }
        self.outdate_all();
    }

    pub(crate) fn content(&self, frame: u32, word: usize) -> u64 {
        self.content[frame as usize][word]
    }

    /// Changes the content of a frame.
    pub(crate) fn set_content(&mut self, frame: u32, word: usize, value: u64) {
        if value != self.content[frame as usize][word] {
            self.touched.push(frame);
            let old = std::mem::replace(&mut self.content[frame as usize][word], value);
            if self.searches {
                self.sums.content(frame, word, old, value);
            }
        }
    }

    /// Records that the program of a CPU makes a call.
    pub(crate) fn begin_call(&mut self, me: usize) {
        self.cpus[me].call_began = self.now;
    }

    /// Sets the moment at which the CPU's next call to return was made.
    pub(crate) fn set_call_began(&mut self, me: usize, began: Moment) {
        self.cpus[me].call_began = began;
    }

    /// Returns the moment at which the program of a CPU made its present call.
    pub(crate) fn call_began(&self, me: usize) -> Moment {
        self.cpus[me].call_began
    }

    /// Writes into frames for the kernel. The content becomes visible `at_once`, or when the buffered store drains.
    pub(crate) fn fill(&mut self, me: usize, fill: Fill, at_once: bool) {
        // If stores keep their order, a CPU that sees an entry sees all earlier stores.
        if at_once || self.kind.stores == Stores::Ordered {
            self.land(me, &fill, self.now);
        } else {
            self.current = me;
            self.buffer(me, Target::Fill(fill), 0, Ordering::Relaxed);
        }
    }

    /// Makes content that was written into frames visible.
    fn land(&mut self, cpu: usize, fill: &Fill, issued: Moment) {
        let arena = Rc::clone(&self.arena);
        for frame in fill.first..fill.first + fill.frames {
            let history = *self.oracle.frame(frame);
            if history.allocated > issued && usize::from(history.allocated_by) != cpu {
                self.fail(
                    breach(
                        Clause::C1,
                        "the kernel's store arrived late in a frame that has a new owner",
                        cpu,
                        frame,
                    )
                    .after(CpuId(history.allocated_by.into())),
                );
            }
            for (word, value) in fill.words.into_iter().enumerate() {
                if let Some(value) = value {
                    self.set_content(frame, word, value);
                }
            }
            if fill.zeroes {
                for index in self.mmu.written_words(frame) {
                    self.write(cpu, &arena.table(frame)[index], 0);
                    self.stored(cpu, &arena.table(frame)[index], false);
                }
            }
        }
    }

    /// Returns whether two stores of a CPU reach a common place, and so keep their order.
    pub(super) fn meet(&self, one: &Target, other: &Target) -> bool {
        let in_table = |fill: &Fill, word: *const AdversaryWord| {
            fill.zeroes && self.arena.place(word).is_some_and(|(frame, _)| fill.holds(frame))
        };
        match (one, other) {
            (Target::Fill(one), Target::Fill(other)) => one.meets(other),
            (Target::Fill(fill), Target::Word(word)) | (Target::Word(word), Target::Fill(fill)) => {
                in_table(fill, *word)
            }
            (Target::Fill(fill), Target::Content { used, word })
            | (Target::Content { used, word }, Target::Fill(fill)) => {
                fill.holds(used.frame) && fill.words[*word].is_some()
            }
            _ => one.is_same(other),
        }
    }
}

//! The checks. Each calls the engine, and every CPU reads before and after.

use crate::bench::{Bench, Rights};
use crate::part::{NEW, OLD, OWN_ENTRIES, Part};
use crate::verdict::{Verdict, expect};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::SeqCst;
use quell::{Frame, Outcome, Page, PageRange, PageSize, Purpose, Scope, Word};
use quell_zero::{ClearPolicy, Clearer, Plan};

/// The first page that the suite maps. Pages that need their own table are 2 MB apart.
pub(crate) const BASE: Page = Page(0x10_0000_0000 >> 12);
/// The pages of a leaf table.
const TABLE: u64 = 512;
/// The number of turns in checks that race.
const ROUNDS: u64 = 12;

/// The check that is skipped on a bench without pages in the kernel's half.
pub(crate) const OWN_HALF: &str = "C1 C3 the_kernels_own_mappings_change_everywhere";

/// The check that is skipped on a bench without a device.
pub(crate) const DEVICES: &str = "C1 C3 devices_forget_what_changed";

/// One check on one CPU.
pub(crate) type Step<'s, 'm, H> = fn(&Part<'s, 'm, H>) -> Verdict;

/// All checks, with the clauses of the contract before their names. The first determines whether we can see stale
/// translations.
pub(crate) fn all<'s, 'm, H: Bench>() -> [(&'static str, Step<'s, 'm, H>); 14] {
    [
        ("stale_translations_can_be_seen", Part::stale),
        ("C3 changed_pages_are_read_anew", Part::change),
        ("C1 frames_come_back_unused", Part::reuse),
        ("C2 captured_pages_change_no_more", Part::capture),
        ("C3 large_ranges_change_whole", Part::range),
        ("C5 spaces_see_their_own_pages", Part::isolate),
        ("C6 unlinked_tables_are_not_walked", Part::unlink),
        ("C7 everybody_flushes_at_once", Part::together),
        ("C3 later_observers_flush_pending", Part::flush_pending),
        ("C4 C1 deferred_flushes_are_made", Part::defer),
        ("C6 roots_are_left", Part::leave_root),
        ("C8 zeroed_is_zero", Part::zero),
        (OWN_HALF, Part::own_half),
        (DEVICES, Part::devices),
    ]
}

impl<H: Bench> Part<'_, '_, H> {
    /// Changes a page without a flush. This doesn't check the engine, but whether stale translations are visible.
    fn stale(&self) -> Verdict {
        self.begin(BASE, Rights::Read)?;
        let [_, new] = self.shared.pair;
        self.lead(|| {
            self.hw.set_word(new, 0, NEW);
            self.set(BASE, Some((new, Rights::Read)));
            self.hw.fence();
        });
        if self.reads(BASE, OLD) {
            self.shared.kept.fetch_add(1, SeqCst);
        }
        self.end(BASE);
        Ok(())
    }

    fn change(&self) -> Verdict {
        let mut verdict = self.begin(BASE, Rights::Read);
        let frames = self.shared.pair;
        for round in 1..=self.hw.cpus() {
            let (frame, value) = (frames[round % 2], round as u64);
            self.lead(|| {
                self.hw.set_word(frame, 0, value);
                self.set(BASE, Some((frame, Rights::Read)));
                self.flush(BASE, 1);
            });
            let read = self.reads(BASE, value);
            verdict = verdict.and(expect(read, "a page had its old content after a change"));
        }
        self.end(BASE);
        verdict
    }

    fn reuse(&self) -> Verdict {
        let mut verdict = Ok(());
        for _ in 0..ROUNDS {
            verdict = verdict.and(self.begin(BASE, Rights::Read));
            if self.initiates() {
                self.set(BASE, None);
                let mut batch = self.engine.batch(Purpose::Reclaim);
                let range = PageRange::base(BASE, 1);
                batch.unmapped(&self.shared.spaces[0], range, self.shared.pair[0]);
                for frame in batch.finish() {
                    // The new owner.
                    self.hw.set_word(frame, 0, NEW);
                }
                // Give the others time to read.
                (0..8).for_each(|_| self.hw.relax());
                self.shared.stage.store(1, SeqCst);
            } else {
                let mut met_new_owner = false;
                while self.shared.stage.load(SeqCst) == 0 {
                    self.slowly(|| met_new_owner |= self.reads(BASE, NEW));
                }
                let right = expect(!met_new_owner, "a frame's new owner was read");
                verdict = verdict.and(right);
            }
            let gone = self.hw.try_read(BASE.address()).is_none();
            verdict = verdict.and(expect(gone, "an unmapped page could be read"));
        }
        verdict
    }

    fn capture(&self) -> Verdict {
        let mut verdict = Ok(());
        let frame = self.shared.pair[0];
        let mine = BASE.address() + 8 * (1 + self.me as u64);
        for _ in 0..ROUNDS {
            verdict = verdict.and(self.begin(BASE, Rights::Write));
            let wrote = self.hw.try_write(mine, 1);
            verdict = verdict.and(expect(wrote, "a store to a writable page was refused"));
            self.barrier();
            if self.initiates() {
                self.set(BASE, Some((frame, Rights::Read)));
                self.flush(BASE, 1);
                let words = || (1..=self.hw.cpus()).map(|index| self.hw.word(frame, index));
                let captured: Vec<u64> = words().collect();
                (0..8).for_each(|_| self.hw.relax());
                let same = words().eq(captured);
                self.shared.stage.store(1, SeqCst);
                verdict = verdict.and(expect(same, "a page was written after its capture"));
            } else {
                let mut stored = 1;
                while self.shared.stage.load(SeqCst) == 0 {
                    self.slowly(|| {
                        stored += 1;
                        self.hw.try_write(mine, stored);
                    });
                }
            }
            let refused = !self.hw.try_write(mine, 0);
            verdict = verdict.and(expect(refused, "a store to a protected page succeeded"));
            self.end(BASE);
        }
        verdict
    }

    fn range(&self) -> Verdict {
        let above = self.hw.features().full_above.min(TABLE);
        let mut verdict = Ok(());
        // We flush the first range page by page and the second as a whole.
        for pages in [above.min(16), above + 8] {
            let all = |value| (0..pages).all(|page| self.reads(BASE.plus(page), value));
            for (frame, value) in self.shared.pair.into_iter().zip([OLD, NEW]) {
                self.lead(|| {
                    self.hw.set_word(frame, 0, value);
                    (0..pages)
                        .for_each(|page| self.set(BASE.plus(page), Some((frame, Rights::Read))));
                    self.flush(BASE, pages);
                });
                verdict = verdict
                    .and(expect(all(value), "part of a range had its old content after a change"));
            }
            self.lead(|| {
                (0..pages).for_each(|page| self.set(BASE.plus(page), None));
                self.flush(BASE, pages);
            });
        }
        verdict
    }

    fn isolate(&self) -> Verdict {
        let [one, two] = self.shared.pair;
        let three = self.shared.own[0][0];
        self.lead(|| {
            for (frame, value) in [(one, 1), (two, 2), (three, 3)] {
                self.hw.set_word(frame, 0, value);
            }
            self.set(BASE, Some((one, Rights::Read)));
            self.hw.set(self.root(1), BASE, Some((two, Rights::Read)));
            self.hw.fence();
        });
        let mut right = true;
        for _ in 0..8 {
            right &= self.reads(BASE, 1);
            self.enter(1);
            right &= self.reads(BASE, 2);
            self.enter(0);
        }
        self.enter(1);
        // The page changes while no CPU has the space loaded.
        self.lead(|| {
            self.set(BASE, Some((three, Rights::Read)));
            self.flush(BASE, 1);
        });
        right &= self.reads(BASE, 2);
        self.enter(0);
        let fresh = self.reads(BASE, 3);
        self.end(BASE);
        expect(right, "a space saw another's page")?;
        expect(fresh, "a space was entered with translations from before a flush")
    }

    fn unlink(&self) -> Verdict {
        // This page has its own table.
        let page = BASE.plus(TABLE);
        let mut verdict = Ok(());
        for _ in 0..4 {
            verdict = verdict.and(self.begin(page, Rights::Read));
            let [_, new] = self.shared.pair;
            self.lead(|| {
                let table = self.hw.unlink_table(self.root(0), page);
                let range = PageRange { start: page, pages: TABLE, stride: PageSize::Base };
                let mut batch = self.engine.batch(Purpose::Call);
                batch.table_unlinked(&self.shared.spaces[0], range, table);
                for table in batch.finish() {
                    // The table's next owner stores zeros, which aren't present entries.
                    (0..512).for_each(|index| self.hw.set_word(table, index, 0));
                    self.hw.free_tables(table);
                }
                self.hw.set_word(new, 0, NEW);
                self.set(page, Some((new, Rights::Read)));
                self.hw.fence();
            });
            let read = self.reads(page, NEW);
            verdict = verdict.and(expect(read, "a page was read through a freed table"));
            self.end(page);
        }
        verdict
    }

    fn together(&self) -> Verdict {
        let page = |cpu: usize| BASE.plus(cpu as u64);
        let frames = self.shared.own[self.me];
        let all = |value| (0..self.hw.cpus()).all(|cpu| self.reads(page(cpu), value));
        let (mut right, mut nests) = (true, true);
        for round in 0..ROUNDS {
            let frame = frames[round as usize % 2];
            self.hw.set_word(frame, 0, round);
            let were_on = (round % 3 == 0).then(|| {
                let were_on = self.hw.mask_interrupts();
                // The engine nests masking in the same way if its caller has masked interrupts.
                let inner = self.hw.mask_interrupts();
                self.hw.restore_interrupts(inner);
                let after = self.hw.mask_interrupts();
                nests &= !inner && !after;
                were_on
            });
            self.set(page(self.me), Some((frame, Rights::Read)));
            self.flush(page(self.me), 1);
            right &= self.reads(page(self.me), round);
            if let Some(were_on) = were_on {
                self.hw.restore_interrupts(were_on);
            }
            if round % 2 == 1 {
                self.barrier();
                right &= all(round);
                self.barrier();
            }
        }
        self.lead(|| {
            (0..self.hw.cpus()).for_each(|cpu| self.set(page(cpu), None));
            self.flush(BASE, self.hw.cpus() as u64);
        });
        expect(nests, "interrupts that were masked came on again")?;
        expect(right, "a page had its old content after a change")
    }

    /// Makes another CPU flush for the initiator. It finds an entry that the initiator has cleared but not flushed yet.
    fn flush_pending(&self) -> Verdict {
        let mut verdict = Ok(());
        for round in 0..ROUNDS {
            verdict = verdict.and(self.begin(BASE, Rights::Read));
            let first = self.turn.get();
            let second = (first + 1) % self.hw.cpus();
            let flushes_pending = || {
                self.until(1);
                self.engine.flush_pending(&self.shared.spaces[0]);
                self.shared.stage.store(2, SeqCst);
            };
            if self.initiates() {
                let purpose = [Purpose::Call, Purpose::Reclaim][round as usize % 2];
                let mut batch = self.engine.batch::<_, Frame>(purpose);
                self.set(BASE, None);
                let (space, range) = (&self.shared.spaces[0], PageRange::base(BASE, 1));
                batch.changed(space, range, Scope::Leaf);
                self.shared.stage.store(1, SeqCst);
                if first == second {
                    flushes_pending();
                }
                // Wait until the others have read.
                self.until(2 + self.hw.cpus() as u64 - 1);
                let gone = self.hw.try_read(BASE.address()).is_none();
                verdict =
                    verdict.and(expect(gone, "an unmapped page could be read after its flush"));
                batch.finish().for_each(drop);
            } else {
                if self.me == second {
                    flushes_pending();
                }
                self.until(2);
                let gone = self.hw.try_read(BASE.address()).is_none();
                self.shared.stage.fetch_add(1, SeqCst);
                verdict =
                    verdict.and(expect(gone, "an unmapped page could be read after its flush"));
            }
            self.barrier();
        }
        verdict
    }

    fn defer(&self) -> Verdict {
        let [frame, _] = self.shared.pair;
        let deferred_flush = &self.shared.deferred_flush;
        let mut verdict = Ok(());
        for _ in 0..ROUNDS {
            verdict = verdict.and(self.begin(BASE, Rights::Read));
            self.lead(|| {
                deferred_flush.begin();
                self.set(BASE, None);
                let mut batch = self.engine.batch::<_, Frame>(Purpose::Lazy);
                let (space, range) = (&self.shared.spaces[0], PageRange::base(BASE, 1));
                batch.changed(space, range, Scope::Leaf);
                match batch.finish_deferred() {
                    Outcome::Deferred(deferred) => deferred_flush.defer(deferred.stamp()),
                    Outcome::Flushed(_) => deferred_flush.clear(),
                };
            });
            let still = self.hw.try_read(BASE.address());
            let same = still.is_none_or(|value| value == OLD);
            verdict =
                verdict.and(expect(same, "a frame changed before its deferred flush was made"));
            self.lead(|| {
                // This returns `None` if the flush wasn't deferred but made at once.
                let _ = self.engine.flush_before_reuse(deferred_flush);
                self.hw.set_word(frame, 0, NEW);
            });
            let gone = self.hw.try_read(BASE.address()).is_none();
            verdict = verdict.and(expect(gone, "a frame's new owner was read"));
        }
        verdict
    }

    /// Changes a page of the kernel's half while CPUs run, are idle or undisturbed, or cache it under two tags. Then
    /// unmaps it without a flush, and uses its address again.
    fn own_half(&self) -> Verdict {
        let (Some((_, first)), Some(spaces)) = (self.hw.own_half(), &self.shared.own_half) else {
            return Ok(());
        };
        let mut verdict = Ok(());
        for (which, entries) in OWN_ENTRIES.into_iter().enumerate() {
            let (page, space) = (first.plus(which as u64), &spaces[which]);
            let range = PageRange::base(page, 1);
            let reads = |value| self.hw.try_read_own(page.address()) == Some(value);
            let map = |value: u64| {
                let frame = self.shared.pair[value as usize % 2];
                self.hw.set_word(frame, 0, value);
                self.hw.set_own(page, Some((frame, entries)));
                self.hw.fence();
            };
            let unmap = || {
                self.hw.set_own(page, None);
                let mut batch = self.engine.batch::<_, Frame>(Purpose::Call);
                batch.changed(space, range, Scope::Leaf);
                batch.finish().for_each(drop);
            };
            self.lead(|| map(0));
            for value in 1..=2 * self.hw.cpus() as u64 {
                let lazily = value % 2 == 0;
                let mut right = reads(value - 1);
                self.enter(1);
                right &= reads(value - 1);
                let undisturbed = self.me.is_multiple_of(2) && self.turn.get() != self.me;
                if self.me % 2 == 1 {
                    self.engine.this_cpu().enter_lazy();
                } else if undisturbed {
                    self.masked(|| {
                        // SAFETY: until it enters the kernel again this CPU waits at a barrier, and nothing changes in
                        // the kernel's half except the pages of the suite.
                        unsafe { self.engine.this_cpu().enter_user() }
                    });
                }
                self.lead(|| {
                    if lazily {
                        self.hw.set_own(page, None);
                        let mut batch = self.engine.batch::<_, Frame>(Purpose::Lazy);
                        batch.changed(space, range, Scope::Leaf);
                        if let Outcome::Deferred(deferred) = batch.finish_deferred() {
                            // A flush of a user space makes none of the kernel's deferred flushes.
                            let mut users = self.engine.batch::<_, Frame>(Purpose::Call);
                            users.changed_all(&self.shared.spaces[1], Scope::Leaf);
                            users.finish().for_each(drop);
                            self.engine.flush_until(deferred.stamp());
                        }
                    } else {
                        unmap();
                    }
                    map(value);
                });
                if undisturbed {
                    self.masked(|| self.engine.this_cpu().enter_kernel());
                }
                right &= reads(value);
                self.enter(0);
                right &= reads(value);
                // We also read through the tables of one of the kernel's processes, if one runs.
                if self.enter_before() {
                    right &= reads(value);
                    self.enter(0);
                }
                let said = "a page of the kernel's half had its old content after a change";
                verdict = verdict.and(expect(right, said));
            }
            self.lead(unmap);
            let gone = self.hw.try_read_own(page.address()).is_none();
            let said = "a page of the kernel's half could be read after it was unmapped";
            verdict = verdict.and(expect(gone, said));
        }
        verdict
    }

    /// Changes a page with a flush, and then unmaps it, half of the time with a deferred flush. After each flush, the
    /// device must have dropped the old translation.
    fn devices(&self) -> Verdict {
        let reads = |value| self.hw.try_read_by_device(self.root(0), BASE.address()) == Some(value);
        let [old, new] = self.shared.pair;
        let mut verdict =
            expect(H::HAS_SECONDARY, "a device walks the tables, but HAS_SECONDARY is false");
        for round in 0..2 * self.hw.cpus() as u64 {
            verdict = verdict.and(self.begin(BASE, Rights::Read));
            let (mut found, mut forgot) = (true, true);
            self.lead(|| {
                found = reads(OLD);
                self.hw.set_word(new, 0, NEW);
                self.set(BASE, Some((new, Rights::Read)));
                self.flush(BASE, 1);
                forgot = reads(NEW);
                self.set(BASE, None);
                let purpose = [Purpose::Call, Purpose::Lazy][round as usize % 2];
                let mut batch = self.engine.batch::<_, Frame>(purpose);
                let (space, range) = (&self.shared.spaces[0], PageRange::base(BASE, 1));
                batch.changed(space, range, Scope::Leaf);
                match batch.finish_deferred() {
                    Outcome::Deferred(deferred) => {
                        forgot &= !reads(NEW);
                        self.engine.flush_until(deferred.stamp());
                    }
                    Outcome::Flushed(_none) => {}
                }
                forgot &= !reads(NEW);
                self.hw.set_word(old, 0, NEW);
            });
            verdict = verdict.and(expect(found, "a device could not read a mapped page"));
            verdict =
                verdict.and(expect(forgot, "a device read a page's old content after a change"));
        }
        verdict
    }

    fn zero(&self) -> Verdict {
        let block = self.shared.block;
        let mut verdict = Ok(());
        for _ in 0..self.hw.cpus() {
            self.lead(|| {
                let frames = (0..block.frames).map(|frame| block.first.plus(frame));
                for frame in frames {
                    (0..512).for_each(|index| self.hw.set_word(frame, index, NEW));
                }
                let policy = ClearPolicy::cooperative(Plan::default());
                let clearer = Clearer::new(self.hw, &policy);
                // SAFETY: the block belongs to the suite, and the other CPUs wait for this one.
                unsafe { clearer.extent(block, Some(block.first), || {}) };
            });
            let zero = (0..block.frames)
                .all(|frame| (0..512).all(|i| self.hw.word(block.first.plus(frame), i) == 0));
            verdict = verdict.and(expect(zero, "zeroed memory was not zero"));
            self.barrier();
        }
        verdict
    }
}

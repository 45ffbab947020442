//! The checks. Each calls the engine, and every CPU reads before and after.

use crate::bench::{Bench, Rights};
use crate::part::{NEW, OLD, OWN_ENTRIES, Part};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::SeqCst;
use quell::{Frame, Page, PageRange, PageSize, Purpose, Scope, Word};
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
pub(crate) type Step<'s, 'm, H> = fn(&Part<'s, 'm, H>);

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
    fn stale(&self) {
        self.begin(BASE, Rights::Read);
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
    }

    fn change(&self) {
        self.begin(BASE, Rights::Read);
        let frames = self.shared.pair;
        for round in 1..=self.hw.cpus() {
            let (frame, value) = (frames[round % 2], round as u64);
            self.lead(|| {
                self.hw.set_word(frame, 0, value);
                self.set(BASE, Some((frame, Rights::Read)));
                self.flush(BASE, 1);
            });
            let read = self.reads(BASE, value);
            self.expect(read, "a page had its old content after a change");
        }
        self.end(BASE);
    }

    fn reuse(&self) {
        for _ in 0..ROUNDS {
            self.begin(BASE, Rights::Read);
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
                self.expect(!met_new_owner, "a frame's new owner was read");
            }
            let gone = self.hw.try_read(BASE.address()).is_none();
            self.expect(gone, "an unmapped page could be read");
        }
    }

    fn capture(&self) {
        let frame = self.shared.pair[0];
        let mine = BASE.address() + 8 * (1 + self.me as u64);
        for _ in 0..ROUNDS {
            self.begin(BASE, Rights::Write);
            let wrote = self.hw.try_write(mine, 1);
            self.expect(wrote, "a store to a writable page was refused");
            self.barrier();
            if self.initiates() {
                self.set(BASE, Some((frame, Rights::Read)));
                self.flush(BASE, 1);
                let words = || (1..=self.hw.cpus()).map(|index| self.hw.word(frame, index));
                let captured: Vec<u64> = words().collect();
                (0..8).for_each(|_| self.hw.relax());
                let same = words().eq(captured);
                self.shared.stage.store(1, SeqCst);
                self.expect(same, "a page was written after its capture");
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
            self.expect(refused, "a store to a protected page succeeded");
            self.end(BASE);
        }
    }

    fn range(&self) {
        let above = self.hw.features().full_above.min(TABLE);
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
                self.expect(all(value), "part of a range had its old content after a change");
            }
            self.lead(|| {
                (0..pages).for_each(|page| self.set(BASE.plus(page), None));
                self.flush(BASE, pages);
            });
        }
    }

    fn isolate(&self) {
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
        self.expect(right, "a space saw another's page");
        self.expect(fresh, "a space was entered with translations from before a flush");
    }

    fn unlink(&self) {
        // This page has its own table.
        let page = BASE.plus(TABLE);
        for _ in 0..4 {
            self.begin(page, Rights::Read);
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
            self.expect(read, "a page was read through a freed table");
            self.end(page);
        }
    }

    fn together(&self) {
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
        self.expect(nests, "interrupts that were masked came on again");
        self.expect(right, "a page had its old content after a change");
    }

    /// Makes another CPU flush for the initiator. It finds an entry that the initiator has cleared but not flushed yet.
    fn flush_pending(&self) {
        for round in 0..ROUNDS {
            self.begin(BASE, Rights::Read);
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
                self.expect(gone, "an unmapped page could be read after its flush");
                batch.finish().for_each(drop);
            } else {
                if self.me == second {
                    flushes_pending();
                }
                self.until(2);
                let gone = self.hw.try_read(BASE.address()).is_none();
                self.shared.stage.fetch_add(1, SeqCst);
                self.expect(gone, "an unmapped page could be read after its flush");
            }
            self.barrier();
        }
    }

    fn defer(&self) {
        let [frame, _] = self.shared.pair;
        let deferred_flush = &self.shared.deferred_flush;
        for _ in 0..ROUNDS {
            self.begin(BASE, Rights::Read);
            self.lead(|| {
                deferred_flush.begin();
                self.set(BASE, None);
                match self.defer_in(&self.shared.spaces[0], PageRange::base(BASE, 1)) {
                    Some(stamp) => deferred_flush.defer(stamp),
                    None => deferred_flush.clear(),
                }
            });
            let still = self.hw.try_read(BASE.address());
            let same = still.is_none_or(|value| value == OLD);
            self.expect(same, "a frame changed before its deferred flush was made");
            self.lead(|| {
                // This returns `None` if the flush wasn't deferred but made at once.
                let _ = self.engine.flush_before_reuse(deferred_flush);
                self.hw.set_word(frame, 0, NEW);
            });
            let gone = self.hw.try_read(BASE.address()).is_none();
            self.expect(gone, "a frame's new owner was read");
        }
    }

    /// Changes a page of the kernel's half while CPUs run, are idle or undisturbed, or cache it under two tags. Then
    /// unmaps it without a flush, and uses its address again.
    fn own_half(&self) {
        let (Some((_, first)), Some(spaces)) = (self.hw.own_half(), &self.shared.own_half) else {
            return;
        };
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
                self.flush_in(space, range);
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
                        if let Some(stamp) = self.defer_in(space, range) {
                            // A flush of a user space makes none of the kernel's deferred flushes.
                            let mut users = self.engine.batch::<_, Frame>(Purpose::Call);
                            users.changed_all(&self.shared.spaces[1], Scope::Leaf);
                            users.finish().for_each(drop);
                            self.engine.flush_until(stamp);
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
                self.expect(right, said);
            }
            self.lead(unmap);
            let gone = self.hw.try_read_own(page.address()).is_none();
            let said = "a page of the kernel's half could be read after it was unmapped";
            self.expect(gone, said);
        }
    }

    /// Changes a page with a flush, and then unmaps it, half of the time with a deferred flush. After each flush, the
    /// device must have dropped the old translation.
    fn devices(&self) {
        let reads = |value| self.hw.try_read_by_device(self.root(0), BASE.address()) == Some(value);
        let [old, new] = self.shared.pair;
        self.expect(H::HAS_SECONDARY, "a device walks the tables, but HAS_SECONDARY is false");
        for round in 0..2 * self.hw.cpus() as u64 {
            self.begin(BASE, Rights::Read);
            let (mut found, mut forgot) = (true, true);
            self.lead(|| {
                found = reads(OLD);
                self.hw.set_word(new, 0, NEW);
                self.set(BASE, Some((new, Rights::Read)));
                self.flush(BASE, 1);
                forgot = reads(NEW);
                self.set(BASE, None);
                let (space, range) = (&self.shared.spaces[0], PageRange::base(BASE, 1));
                if round % 2 == 0 {
                    self.flush_in(space, range);
                } else if let Some(stamp) = self.defer_in(space, range) {
                    forgot &= !reads(NEW);
                    self.engine.flush_until(stamp);
                }
                forgot &= !reads(NEW);
                self.hw.set_word(old, 0, NEW);
            });
            self.expect(found, "a device could not read a mapped page");
            self.expect(forgot, "a device read a page's old content after a change");
        }
    }

    fn zero(&self) {
        let block = self.shared.block;
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
            self.expect(zero, "zeroed memory was not zero");
            self.barrier();
        }
    }
}

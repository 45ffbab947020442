//! Lazy unmap (S3): flushes deferred until reuse.
//!
//! # The rule
//!
//! A frame may be unmapped without a flush if every mapping of it was read-only and clean: its content cannot
//! change through a stale entry, and as long as nothing else changes, a stale read returns the right bytes.
//! Four things must not happen before the deferred flush is made, *and nothing else is needed*:
//!
//! 1. the frame gets a new owner ([`Engine::flush_before_reuse`]);
//! 2. the emptied entry is written again ([`Engine::flush_before_refill`]), except with the same frame,
//!    read-only ([`DeferredFlush::reinstate`]);
//! 3. the emptied page-cache slot is filled again (the same call), so that no CPU can change the
//!    bytes of the file page behind the stale entry's back;
//! 4. a call by which the program took the mapping or a right to it away returns
//!    ([`Engine::flush_pending`] or the deferred flush of each marker that it met).
//!
//! All four are one check, on the frame's [`DeferredFlush`]: one load, zero when no flush is deferred. The
//! four programs for which Linux refused this mechanism each break one of them.
//!
//! A *marker*, here and below, is the non-present entry that the embedder leaves in place of one that it took away
//! without a flush, to name the frame.
//!
//! # After a reinstate
//!
//! A deferred flush is one word, and a reinstate clears it. But the frame may have been taken away from several
//! places, and where it was not mapped again, CPUs may still use stale entries. So the embedder does one of two
//! things. Before it drops the lock of the page-cache slot, it maps the frame again at *every* place whose marker
//! names it. Or it goes on treating each such marker as a mapping of the frame: code that takes the mapping away later
//! (an unmap by the program as well as reclaim, lazy or not) reports the marker's range to its batch as if the entry
//! were present, or flushes what is pending the space. (`quell-vm` does the second: its reverse map lists the markers.)
//!
//! # Participants
//!
//! The rules bind all code that could break them. Code that changes the bytes of a file page in another way (it punches
//! a hole, or a server says that the file has changed) takes the lock of the page's slot, too, and keeps rules 3 and 4;
//! the engine cannot see it. Nor does the engine know of translations that are not a CPU's: a secondary MMU that maps
//! the frame must be told as the entry is cleared, not when the deferred flush is made.
//!
//! # The flush clock
//!
//! A deferred flush is a *stamp*: a tick of the flush clock, taken after the entries were cleared. Each CPU publishes
//! what the clock showed before it last flushed its loaded tag whole. If that is the stamp or later, the CPU holds
//! none of the translations that the deferred flush is about, whatever that flush was for. So every flush of a whole
//! tag pays deferred flushes, and a reuse interrupts only CPUs that are behind. It does not ask CPUs that keep entries
//! under a tag that is not loaded: the space's deferred flush word makes them flush as they load it again. Only CPUs
//! that had the space loaded when the deferred flush was taken can hold such translations; the *ledger entry* of the
//! stamp remembers them.
//!
//! # What is shared
//!
//! Taking a deferred flush ticks the clock, writes the deferred flush into its spaces and then publishes one ledger
//! entry; nothing is locked. A ledger entry is used again only after its deferred flush was made. A CPU that defers
//! that finds the ledger full pays the deferred flushes in it first; if there is still no room, its own deferred flush
//! is refused, and it flushes as without S3. A payer marks no deferred flush as paid that is not published: the spaces
//! do not know that deferred flush yet, so a lazy CPU that the payer leaves out could come back without flushing. A
//! CPU that defers that stalls between its stamp and its ledger entry (a preempted virtual CPU) leaves a gap. The
//! deferred flushes around it are still paid, and each ledger entry says so for itself; a CPU that looks at a deferred
//! flush behind the gap needs a second load, and no CPU an interrupt.
//!
//! # What this does not guarantee
//!
//! a CPU that reuses the frame may have to wait for other CPUs: it pays for the unmap by which another space lost the
//! frame. [`Engine::flush_deferred`], called in the background, keeps that rare.

use crate::cpu::{Asked, Concern, Loaded};
use crate::cpu_set::{CpuId, CpuSet};
use crate::engine::Engine;
use crate::hardware::{Hardware, Scope};
use crate::ledger::{Deferral, Stamp};
use crate::request::Request;
use crate::space::AddressSpace;
use crate::stack::Stack;
use crate::stats::Counter;
use crate::word::Word;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// How many deferred flushes one round of a payment covers, the oldest first; a payer goes on until its own deferred
/// flush is made.
const TOGETHER: usize = 64;

/// Why a deferred flush is made.
#[derive(Clone, Copy)]
enum Reason {
    Reuse,
    Refill,
    Background,
}

const NONE: u64 = 0;
const PENDING: u64 = 1;
const DEFERRED_SHIFT: u32 = 1;

/// What a frame defers: one word in the embedder's frame table.
///
/// It is *clear* for a frame that has no deferred flush, *pending* from before its entries are cleared until
/// the stamp is known, and then *deferred* until the frame is reused or reinstated.
pub struct DeferredFlush<H: Hardware> {
    word: H::Word,
}

impl<H: Hardware> Default for DeferredFlush<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Hardware> DeferredFlush<H> {
    /// Of a frame that has no deferred flush. Never waits.
    pub fn new() -> Self {
        DeferredFlush {
            word: H::Word::new(NONE),
        }
    }

    /// Whether the frame has no deferred flush: one load. Never waits.
    #[inline]
    pub fn is_clear(&self) -> bool {
        // Acquire pairs with `flush_before_reuse` and `clear`: the flushes for what the frame deferred are done.
        // Lost without it: a look at a frame that has no deferred flush any more.
        self.word.load(Acquire) == NONE
    }

    /// The frame's entries are about to be cleared without a flush. Called under the lock of the
    /// page-cache slot, before the first entry is cleared. Never waits.
    pub fn begin(&self) {
        // Relaxed: the lock publishes it, and nothing goes with it.
        self.word.store(PENDING, Relaxed);
    }

    /// The frame's flush is deferred as of `stamp`. Called under the same lock. Never waits.
    pub fn defer(&self, stamp: Stamp) {
        // Release pairs with `flush_before_reuse` and `flush_before_refill`: the deferred flush's ledger entry is
        // published. Lost without it: a reuse while the deferred flush is taken.
        self.word.store(stamp.0 << DEFERRED_SHIFT, Release);
    }

    /// The frame has no deferred flush: it was flushed after all, or its entries were not cleared. Called under the
    /// same lock. Never waits.
    ///
    /// Pays nothing: a frame that has a deferred flush is reused ([`Engine::flush_before_reuse`]) or reinstated
    /// ([`DeferredFlush::reinstate`]) instead.
    pub fn clear(&self) {
        // Release pairs with `flush_before_refill` and `is_clear`: the frame's flush is done.
        // Lost without it: a refill against a deferred flush that becomes none.
        self.word.store(NONE, Release);
    }

    /// Takes the frame back for the page that it belonged to, to be mapped as it was: read-only, at the same
    /// places. No flush is needed and no content is lost. `false` if a CPU that reuses the frame was first; then its
    /// deferred flush was paid. Never waits.
    ///
    /// The deferred flush is clear afterwards, and says nothing any more of the places at which the frame is not mapped
    /// again: stale entries may be in use there. See "After a reinstate" in [the module](crate::lazy) for what is due.
    ///
    /// Called under the lock of the page-cache slot.
    #[must_use]
    pub fn reinstate(&self, engine: &Engine<'_, H>) -> bool {
        // Acquire pairs with `flush_before_reuse`: a frame that was reused has its deferred flush paid.
        // Lost without it: a reinstate that comes too late.
        let held = self.word.load(Acquire);
        // Only if no CPU that reuses it was first. [mutant ReinstateUnchecked]
        let won = held > PENDING
            && self
                .word
                // Acquire on failure pairs with `flush_before_reuse`: a frame that was reused meanwhile has its
                // deferred flush paid.
                // Lost without it: a reinstate that comes too late.
                .compare_exchange(held, NONE, Relaxed, Acquire)
                .is_ok();
        engine.count(engine.hw.this_cpu(), Counter::Reinstated, u64::from(won));
        won
    }
}

/// Proof that a frame's deferred flush was made and that only the holder may give it a new owner.
#[must_use = "a reused frame belongs to the CPU that reuses it now and is lost if it is not used or freed"]
#[derive(Debug)]
pub struct Reusable(());

impl<H: Hardware> Engine<'_, H> {
    /// Reuses a frame for a new owner, paying its deferred flush if it is still deferred (rule 1).
    /// `None` if the frame was reinstated, or was never deferred.
    ///
    /// May wait for other CPUs: see [`Hardware::may_wait`] for what the caller may hold meanwhile.
    #[inline]
    pub fn flush_before_reuse(&self, deferred_flush: &DeferredFlush<H>) -> Option<Reusable> {
        loop {
            // Acquire pairs with `defer`: the deferred flush that is paid next has its ledger entry published.
            // Lost without it: a reuse while the deferred flush is taken.
            let held = deferred_flush.word.load(Acquire);
            if held <= PENDING {
                return None;
            }
            let stamp = held >> DEFERRED_SHIFT;
            let me = self.hw.this_cpu();
            // Pay, then take: as long as the deferred flush says "deferred", a refill of what the frame held pays, or
            // waits for the payment. [mutants ReuseSkipsFlush: L4, ReuseTakesFirst]
            if self.ledger.is_flushed(stamp) {
                self.count(me, Counter::ReusedFree, 1);
            } else {
                self.pay(me, stamp, Reason::Reuse);
            }
            // Release pairs with `reinstate`, `is_clear`, `is_flushed` and `flush_before_refill`: they find the
            // frame reused, and so its deferred flush paid.
            // Lost without it: a reinstate that comes too late.
            let taken = (deferred_flush.word).compare_exchange(held, NONE, Release, Relaxed);
            if taken.is_ok() {
                return Some(Reusable(()));
            }
        }
    }

    /// Whether a reuse of this frame would interrupt no CPU: two loads when no flush is deferred. Never waits.
    pub fn is_flushed(&self, deferred_flush: &DeferredFlush<H>) -> bool {
        // Acquire pairs with `flush_before_reuse`: a frame that has no deferred flush any more has its deferred flush
        // paid. Lost without it: a look at a frame that was reused.
        let held = deferred_flush.word.load(Acquire);
        held != PENDING && self.ledger.is_flushed(held >> DEFERRED_SHIFT)
    }

    /// Pays the frame's deferred flush: called before an entry of `space` whose marker names the frame is rewritten,
    /// and before a page-cache slot that held the frame is filled again (rules 2 and 3). One load when no flush is
    /// deferred. May wait for other CPUs. A deferred flush that a reinstate has cleared says nothing of other markers
    /// that name the frame.
    #[inline]
    pub fn flush_before_refill(&self, deferred_flush: &DeferredFlush<H>, space: &AddressSpace<H>) {
        // [mutant RefillSkipsFlush: L1, L2, L3]
        // Acquire pairs with `flush_before_reuse`, `defer` and `clear`: what the frame deferred is flushed, or the
        // deferred flush that is looked up has its ledger entry published.
        // Lost without it: a refill against a reuse.
        match deferred_flush.word.load(Acquire) {
            NONE => {}
            // The batch has no stamp yet: its deferred flush still stands in the space.
            PENDING => self.flush_pending(space),
            deferred if self.ledger.is_flushed(deferred >> DEFERRED_SHIFT) => {}
            deferred => self.pay(
                self.hw.this_cpu(),
                deferred >> DEFERRED_SHIFT,
                Reason::Refill,
            ),
        }
    }

    /// For a later observer, before it relies on a cleared entry of `space` (rule 4, and the same for batches
    /// of reclaim and migration): after it, no CPU uses a translation of the space that was
    /// cleared before the call. Three loads from one line when no flush is deferred. May wait for other CPUs; its
    /// caller may hold the lock of the table if that is a lock under which [it may wait](Hardware::may_wait).
    #[inline]
    pub fn flush_pending(&self, space: &AddressSpace<H>) {
        // [mutant FlushPendingSkipped: bugs 3, 6, 19]
        if self.has_pending_batch(space) || space.deferred() != 0 {
            self.flush_pending_slow(space, Scope::Leaf);
        }
    }

    /// As [`Engine::flush_pending`], but leaves alone the deferred flush until reuse: for a later observer that
    /// finds an entry cleared *without* a marker, so by a batch that is still to flush, and that
    /// deals with markers one by one. Two loads when no batch is outstanding. May wait for other CPUs.
    #[inline]
    pub fn flush_pending_batches(&self, space: &AddressSpace<H>) {
        // [mutant FlushPendingSkipped: bugs 3, 6, 19]
        if self.has_pending_batch(space) {
            self.flush_pending_slow(space, Scope::Leaf);
        }
    }

    /// As [`Engine::flush_pending_batches`], but waits until every CPU has flushed, where that waits for receipts;
    /// CPUs that have the space loaded lazily flush, too. For a later observer that is about to write an entry of
    /// another page size where it finds none ([`Flush::break_first`](crate::Flush)). Whoever cleared the entry
    /// reported it with [`Scope::Tables`]. May wait for other CPUs.
    #[inline]
    pub fn flush_pending_tables(&self, space: &AddressSpace<H>) {
        // [mutant FlushPendingSkipped: bugs 3, 6, 19]
        if self.has_pending_batch(space) {
            // A receipt is not enough: no TLB may hold the old translation. [mutant FlushedByReceipt]
            self.flush_pending_slow(space, Scope::Tables);
        }
    }

    /// Whether a batch has still to flush a change of the space, or may have.
    #[inline]
    fn has_pending_batch(&self, space: &AddressSpace<H>) -> bool {
        space.flushes().pending != 0 || space.overflow() != 0
    }

    #[cold]
    fn flush_pending_slow(&self, space: &AddressSpace<H>, scope: Scope) {
        let (pending, deferred) = (self.has_pending_batch(space), space.deferred());
        // That the latest deferred flush is made would do: whoever paid it has flushed all of the space since. To ask
        // so costs a look at its ledger entry.
        if !pending && self.ledger.is_flushed_up_to(deferred) {
            return;
        }
        self.count(self.hw.this_cpu(), Counter::FlushedPending, 1);
        self.assert_may_wait();
        // Read before the flush, which does not reach changes that are reported meanwhile. [mutant
        // OverflowReadAfterFlush]
        let overflow = space.overflow();
        // Where invalidations are broadcast, too: our own barrier completes nothing that the other CPU has sent.
        // [mutant FlushPendingOnlyWaits: bug 5]
        self.flush([(space, &Request::Full(scope))].into_iter());
        space.overflow_flushed(overflow);
        // CPUs that had the space loaded have flushed it; the others will, by its generation.
        space.deferred_flushed(deferred);
    }

    /// The next stamp of the flush clock, with a ledger entry to publish its deferred flush in, paying old deferred
    /// flushes if the ledger is full of them; `None` if there is no ledger, or if it stays full: others filled it
    /// again, or have taken stamps whose deferred flushes they have not published yet.
    pub(crate) fn take_stamp(&self, me: CpuId) -> Option<u64> {
        let ledger = &self.ledger;
        // One look at each ledger entry: a CPU that defers that has stalled keeps its own, not the others'.
        for _ in 0..ledger.capacity() {
            let stamp = ledger.tick();
            if ledger.take_entry(stamp) {
                return Some(stamp);
            }
            if let Some(older) = ledger.in_the_way_of(stamp, self.count) {
                self.pay(me, older, Reason::Background);
                if ledger.take_entry(stamp) {
                    return Some(stamp);
                }
            }
        }
        None
    }

    /// Whether any flush may be deferred until reuse. `false` is certain; `true` may be left over from a void stamp,
    /// for which the ledger had no room. Never waits.
    pub fn has_deferred(&self) -> bool {
        !self.ledger.is_flushed_up_to(self.ledger.now())
    }

    /// Makes every deferred flush there is: for a thread that does so in the background, before memory runs
    /// short, so that allocations need not.
    ///
    /// A batch whose [`Batch::finish_deferred`](crate::Batch::finish_owed) has not returned yet may be left out. May
    /// wait for other CPUs.
    pub fn flush_deferred(&self) {
        self.flush_up_to(self.ledger.now());
    }

    /// Makes all deferred flushes up to `stamp`: after it, no CPU uses a translation whose flush a batch deferred that
    /// ended, with this stamp or an earlier one, before the call began. Called before the bytes of a page change whose
    /// former frame, unmapped as of `stamp`, CPUs may still read (rule 3, for a page that has moved), and before
    /// addresses of the [kernel's half](crate::kernel) are given out again. One load when no flush is deferred. May
    /// wait for other CPUs.
    #[inline]
    pub fn flush_until(&self, stamp: Stamp) {
        self.flush_up_to(stamp.0);
    }

    #[inline]
    fn flush_up_to(&self, stamp: u64) {
        if !self.ledger.is_flushed_up_to(stamp) {
            self.pay(self.hw.this_cpu(), stamp, Reason::Background);
        }
    }

    /// Flushes this CPU's loaded tag whole if the flush clock has run a sixteenth of the ledger ahead of it:
    /// for a CPU that is in the kernel anyway, at a fault. A frame reused after every CPU has done so costs no
    /// interrupt. Two loads if the clock has not run that far.
    ///
    /// It pays nothing by itself: a later CPU that reuses it finds this CPU flushed. Never waits.
    #[inline]
    pub fn catch_up(&self) {
        let far = (self.ledger.capacity() as u64).div_ceil(16);
        if far == 0 || !self.on().lazy_unmap || self.broadcasts().is_some() {
            return;
        }
        let me = self.hw.this_cpu();
        let flushed_at = self.cpu(me).state.flushed_at();
        if self.ledger.seen() >= flushed_at + far {
            self.catch_up_now(me);
        }
    }

    #[cold]
    fn catch_up_now(&self, me: CpuId) {
        let cpu = self.cpu(me);
        let were_on = self.hw.mask_interrupts();
        if cpu.state.is_running() && cpu.state.loaded() != Loaded::Nothing {
            self.count(me, Counter::CaughtUp, 1);
            self.flush_tag(cpu, cpu.slot(cpu.state.slot()));
        }
        self.hw.restore_interrupts(were_on);
    }

    /// Makes every deferred flush that is published, up to and with `through`; and younger ones with them, but only
    /// as far as no CPU has to be interrupted for those alone.
    #[cold]
    fn pay(&self, me: CpuId, through: u64, reason: Reason) {
        self.assert_may_wait();
        let mut counted = false;
        while self.flush_some(me, through, reason, &mut counted) {}
        self.ledger.advance_flushed_up_to();
    }

    /// Pays up to [`TOGETHER`] deferred flushes; whether there may be more of them up to `through`.
    ///
    /// A deferred flush of the kernel's mappings concerns every CPU and all of its entries: a reuse or a refill that
    /// is about a user's page leaves such deferred flushes unpaid.
    fn flush_some(&self, me: CpuId, through: u64, reason: Reason, counted: &mut bool) -> bool {
        // Where invalidations are broadcast, a CPU that loads a space keeps its entries and looks at no deferred flush.
        // [mutant ReuseTrustsFlushes]
        let known = self.broadcasts().is_none();
        let with_kernel = matches!(reason, Reason::Background) || self.ledger.is_of_kernel(through);
        let (mut paid, mut behind) = (Stack::<(u64, bool), TOGETHER>::new(), CpuSet::none());
        let (mut more, mut kernel, mut enough) = (false, false, false);
        for place in self.ledger.unpaid() {
            if place > through && (enough || paid.is_full()) {
                // No ledger entry from here on holds a deferred flush of `through` or earlier.
                break;
            }
            let deferred = self.ledger.deferred_at(place, self.count);
            // Not published yet: those behind it are paid all the same. [mutant PaymentStopsAtGap]
            let Some(deferral) = &deferred else {
                continue;
            };
            let stamp = deferral.stamp;
            if deferral.kernel && !with_kernel {
                continue;
            }
            if paid.is_full() {
                more |= stamp <= through;
                continue;
            }
            let told = behind.is_empty() && !paid.is_empty() && known;
            if stamp > through && told {
                let mut late = CpuSet::none();
                self.add_behind(me, deferral, &mut late);
                if !late.is_empty() {
                    // Every CPU has flushed since what is asked for: younger deferred flushes can wait.
                    enough = true;
                    continue;
                }
            } else {
                self.add_behind(me, deferral, &mut behind);
            }
            kernel |= deferral.kernel;
            paid.push((stamp, deferral.kernel));
        }
        if paid.is_empty() {
            return false;
        }
        if !core::mem::replace(counted, true) {
            let counter = match reason {
                Reason::Reuse => Counter::FlushedForReuse,
                Reason::Refill => Counter::FlushedForRefill,
                Reason::Background => Counter::FlushedInBackground,
            };
            self.count(me, counter, 1);
        }
        if behind.is_empty() && known {
            // Every CPU has flushed since, for reasons of its own.
        } else if self.broadcasts().is_some() {
            self.broadcast_everything(me, kernel);
        } else {
            // None of them is left to its entry into the kernel: it may be among them for what a user space defers.
            // [mutant PaymentLeftToEntry]
            self.flush_whole(me, &behind, Scope::Leaf, kernel);
        }
        for &(stamp, kernel) in paid.as_slice() {
            self.ledger.pay_off(stamp, kernel);
        }
        more
    }

    /// Adds those CPUs that may hold what the deferred flush is about and have not flushed since.
    fn add_behind(&self, me: CpuId, deferral: &Deferral, behind: &mut CpuSet) {
        let concern = match deferral.kernel {
            true => Concern::KernelDeferral(deferral.stamp),
            false => Concern::Deferral(deferral.stamp),
        };
        for cpu in deferral.cpus.iter() {
            let state = &self.cpu(cpu).state;
            match state.must_be_asked(concern) {
                Asked::Must if deferral.kernel && state.leave_to_entry(Scope::Leaf) => {
                    self.count(me, Counter::SkippedLazy, 1);
                }
                Asked::Must => behind.insert(cpu),
                Asked::Flushed => self.count(me, Counter::FoundFlushed, 1),
                Asked::Lazy | Asked::Detached => {}
            }
        }
    }
}

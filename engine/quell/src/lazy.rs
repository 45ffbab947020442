//! Lazy unmap (S3): flushes owed until reuse.
//!
//! # The rule
//!
//! A frame may be unmapped without a flush if every mapping of it was read-only and clean: its content cannot
//! change through a stale entry, and as long as nothing else changes, a stale read returns the right bytes.
//! Four things must not happen before the debt is paid, *and nothing else is needed*:
//!
//! 1. the frame gets a new owner ([`Engine::claim`]);
//! 2. the emptied entry is written again ([`Engine::settle_residue`]), except with the same frame,
//!    read-only ([`Residue::rescue`]);
//! 3. the emptied page-cache slot is filled again (the same call), so that no CPU can change the
//!    bytes of the file page behind the stale entry's back;
//! 4. a call by which the program took the mapping or a right to it away returns
//!    ([`Engine::settle`] or the residue of each marker that it met).
//!
//! All four are one check, on the frame's [`Residue`]: one load, zero when nothing is owed. The
//! four programs for which Linux refused this mechanism each break one of them.
//!
//! A *marker*, here and below, is the non-present entry that the embedder leaves in place of one that it took away
//! without a flush, to name the frame.
//!
//! # After a rescue
//!
//! A residue is one word, and a rescue clears it. But the frame may have been taken away from several places, and where
//! it was not mapped again, CPUs may still use stale entries. So the embedder does one of two things. Before it drops
//! the lock of the page-cache slot, it maps the frame again at *every* place whose marker names it. Or it goes on
//! treating each such marker as a mapping of the frame: code that takes the mapping away later (an unmap by the program
//! as well as reclaim, lazy or not) reports the marker's range to its batch as if the entry were present, or settles
//! the space. (`quell-vm` does the second: its reverse map lists the markers.)
//!
//! # Participants
//!
//! The rules bind all code that could break them. Code that changes the bytes of a file page in another way (it punches
//! a hole, or a server says that the file has changed) takes the lock of the page's slot, too, and keeps rules 3 and 4;
//! the engine cannot see it. Nor does the engine know of translations that are not a CPU's: a secondary MMU that maps
//! the frame must be told as the entry is cleared, not when the debt is paid.
//!
//! # The flush clock
//!
//! A debt is a *stamp*: a tick of the flush clock, taken after the entries were cleared. Each CPU publishes what the
//! clock showed before it last flushed its loaded tag whole. If that is the stamp or later, the CPU holds none of the
//! translations that the debt is about, whatever that flush was for. So every flush of a whole tag pays debts, and a
//! claim interrupts only CPUs that are behind. It does not ask CPUs that keep entries under a tag that is not loaded:
//! the space's debt word makes them flush as they load it again. Only CPUs that had the space loaded when the debt was
//! taken can hold such translations; the *ledger entry* of the stamp remembers them.
//!
//! # What is shared
//!
//! Taking a debt ticks the clock, writes the debt into its spaces and then publishes one ledger entry; nothing is
//! locked. A ledger entry is used again only after its debt was paid. A debtor that finds the ledger full pays the
//! debts in it first; if there is still no room, its own debt is refused, and it flushes as without S3. A payer marks
//! no debt as paid that is not published: the spaces do not know that debt yet, so a lazy CPU that the payer leaves out
//! could come back without flushing. A debtor that stalls between its stamp and its ledger entry (a preempted virtual
//! CPU) leaves a gap. The debts around it are still paid, and each ledger entry says so for itself; a CPU that looks at
//! a debt behind the gap needs a second load, and no CPU an interrupt.
//!
//! # What this does not guarantee
//!
//! A claimer may have to wait for other CPUs: it pays for the unmap by which another space lost the frame.
//! [`Engine::pay_all`], called in the background, keeps that rare.

use crate::cpu::{Asked, Concern, Loaded};
use crate::cpu_set::{CpuId, CpuSet};
use crate::engine::Engine;
use crate::hardware::{Hardware, Scope};
use crate::ledger::{Debt, Stamp};
use crate::request::Request;
use crate::space::AddressSpace;
use crate::stack::Stack;
use crate::stats::Counter;
use crate::word::Word;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// How many debts one round of a payment covers, the oldest first; a payer goes on until its own debt is paid.
const TOGETHER: usize = 64;

/// Why a debt is paid.
#[derive(Clone, Copy)]
enum Reason {
    Claim,
    Refill,
    Background,
}

const NONE: u64 = 0;
const PENDING: u64 = 1;
const OWED_SHIFT: u32 = 1;

/// What a frame owes: one word in the embedder's frame table.
///
/// It is *clear* for a frame that owes nothing, *pending* from before its entries are cleared until
/// the stamp is known, and then *owed* until the frame is claimed or rescued.
pub struct Residue<H: Hardware> {
    word: H::Word,
}

impl<H: Hardware> Default for Residue<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Hardware> Residue<H> {
    /// Of a frame that owes nothing. Never waits.
    pub fn new() -> Self {
        Residue {
            word: H::Word::new(NONE),
        }
    }

    /// Whether the frame owes nothing: one load. Never waits.
    #[inline]
    pub fn is_clear(&self) -> bool {
        // Acquire pairs with `claim` and `clear`: the flushes for what the frame owed are done.
        // Lost without it: a look at a frame that owes nothing any more.
        self.word.load(Acquire) == NONE
    }

    /// The frame's entries are about to be cleared without a flush. Called under the lock of the
    /// page-cache slot, before the first entry is cleared. Never waits.
    pub fn begin(&self) {
        // Relaxed: the lock publishes it, and nothing goes with it.
        self.word.store(PENDING, Relaxed);
    }

    /// The frame's flush is owed as of `stamp`. Called under the same lock. Never waits.
    pub fn owe(&self, stamp: Stamp) {
        // Release pairs with `claim` and `settle_residue`: the debt's ledger entry is published.
        // Lost without it: a claim while the debt is taken.
        self.word.store(stamp.0 << OWED_SHIFT, Release);
    }

    /// The frame owes nothing: it was flushed after all, or its entries were not cleared. Called under the same lock.
    /// Never waits.
    ///
    /// Pays nothing: a frame that owes a flush is claimed ([`Engine::claim`]) or rescued ([`Residue::rescue`]) instead.
    pub fn clear(&self) {
        // Release pairs with `settle_residue` and `is_clear`: the frame's flush is done.
        // Lost without it: a refill against a debt that becomes none.
        self.word.store(NONE, Release);
    }

    /// Takes the frame back for the page that it belonged to, to be mapped as it was: read-only, at the same
    /// places. No flush is needed and no content is lost. `false` if a claimer was first; then its debt was
    /// paid. Never waits.
    ///
    /// The residue is clear afterwards, and says nothing any more of the places at which the frame is not mapped
    /// again: stale entries may be in use there. See "After a rescue" in [the module](crate::lazy) for what is due.
    ///
    /// Called under the lock of the page-cache slot.
    #[must_use]
    pub fn rescue(&self, engine: &Engine<'_, H>) -> bool {
        // Acquire pairs with `claim`: a frame that was claimed has its debt paid.
        // Lost without it: a rescue that comes too late.
        let held = self.word.load(Acquire);
        // Only if no claimer was first. [mutant RescueUnchecked]
        let won = held > PENDING
            && self
                .word
                // Acquire on failure pairs with `claim`: a frame that was claimed meanwhile has its debt
                // paid.
                // Lost without it: a rescue that comes too late.
                .compare_exchange(held, NONE, Relaxed, Acquire)
                .is_ok();
        engine.count(engine.hw.this_cpu(), Counter::Rescued, u64::from(won));
        won
    }
}

/// Proof that a frame's debt was paid and that only the holder may give it a new owner.
#[must_use = "a claimed frame belongs to the claimer now and is lost if it is not used or freed"]
#[derive(Debug)]
pub struct Claimed(());

impl<H: Hardware> Engine<'_, H> {
    /// Claims a frame for a new owner, paying its debt if it is still owed (rule 1).
    /// `None` if the frame was rescued, or was never owed.
    ///
    /// May wait for other CPUs: see [`Hardware::may_wait`] for what the caller may hold meanwhile.
    #[inline]
    pub fn claim(&self, residue: &Residue<H>) -> Option<Claimed> {
        loop {
            // Acquire pairs with `owe`: the debt that is paid next has its ledger entry published.
            // Lost without it: a claim while the debt is taken.
            let held = residue.word.load(Acquire);
            if held <= PENDING {
                return None;
            }
            let stamp = held >> OWED_SHIFT;
            let me = self.hw.this_cpu();
            // Pay, then take: as long as the residue says "owed", a refill of what the frame held pays, or waits for the
            // payment. [mutants ClaimSkipsDebt: L4, ClaimTakesFirst]
            if self.ledger.is_paid(stamp) {
                self.count(me, Counter::ClaimsFree, 1);
            } else {
                self.pay(me, stamp, Reason::Claim);
            }
            // Release pairs with `rescue`, `is_clear`, `is_paid` and `settle_residue`: they find the
            // frame claimed, and so its debt paid.
            // Lost without it: a rescue that comes too late.
            let taken = (residue.word).compare_exchange(held, NONE, Release, Relaxed);
            if taken.is_ok() {
                return Some(Claimed(()));
            }
        }
    }

    /// Whether a claim of this frame would interrupt no CPU: two loads when nothing is owed. Never waits.
    pub fn is_paid(&self, residue: &Residue<H>) -> bool {
        // Acquire pairs with `claim`: a frame that owes nothing any more has its debt paid.
        // Lost without it: a look at a frame that was claimed.
        let held = residue.word.load(Acquire);
        held != PENDING && self.ledger.is_paid(held >> OWED_SHIFT)
    }

    /// Pays the frame's debt: called before an entry of `space` whose marker names the frame is rewritten, and before a
    /// page-cache slot that held the frame is filled again (rules 2 and 3). One load when nothing is owed. May wait for
    /// other CPUs. A residue that a rescue has cleared says nothing of other markers that name the frame.
    #[inline]
    pub fn settle_residue(&self, residue: &Residue<H>, space: &AddressSpace<H>) {
        // [mutant RefillSkipsDebt: L1, L2, L3]
        // Acquire pairs with `claim`, `owe` and `clear`: what the frame owed is flushed, or the debt
        // that is looked up has its ledger entry published.
        // Lost without it: a refill against a claim.
        match residue.word.load(Acquire) {
            NONE => {}
            // The batch has no stamp yet: its debt still stands in the space.
            PENDING => self.settle(space),
            owed if self.ledger.is_paid(owed >> OWED_SHIFT) => {}
            owed => self.pay(self.hw.this_cpu(), owed >> OWED_SHIFT, Reason::Refill),
        }
    }

    /// For a second actor, before it relies on a cleared entry of `space` (rule 4, and the same for batches
    /// of reclaim and migration): after it, no CPU uses a translation of the space that was
    /// cleared before the call. Three loads from one line when nothing is owed. May wait for other CPUs; its caller
    /// may hold the lock of the table if that is a lock under which [it may wait](Hardware::may_wait).
    #[inline]
    pub fn settle(&self, space: &AddressSpace<H>) {
        // [mutant SettleSkipped: bugs 3, 6, 19]
        if self.is_deferred(space) || space.owed() != 0 {
            self.settle_owed(space, Scope::Leaf);
        }
    }

    /// As [`Engine::settle`], but leaves alone what is owed until reuse: for a second actor that
    /// finds an entry cleared *without* a marker, so by a batch that is still to flush, and that
    /// deals with markers one by one. Two loads when no batch is outstanding. May wait for other CPUs.
    #[inline]
    pub fn settle_deferred(&self, space: &AddressSpace<H>) {
        // [mutant SettleSkipped: bugs 3, 6, 19]
        if self.is_deferred(space) {
            self.settle_owed(space, Scope::Leaf);
        }
    }

    /// As [`Engine::settle_deferred`], but waits until every CPU has flushed, where that waits for receipts; CPUs that
    /// have the space loaded lazily flush, too. For a second actor that is about to write an entry of another page size
    /// where it finds none ([`Flush::break_first`](crate::Flush)). Whoever cleared the entry reported it with
    /// [`Scope::Tables`]. May wait for other CPUs.
    #[inline]
    pub fn settle_tables(&self, space: &AddressSpace<H>) {
        // [mutant SettleSkipped: bugs 3, 6, 19]
        if self.is_deferred(space) {
            // A receipt is not enough: no TLB may hold the old translation. [mutant SettledByReceipt]
            self.settle_owed(space, Scope::Tables);
        }
    }

    /// Whether a batch has still to flush a change of the space, or may have.
    #[inline]
    fn is_deferred(&self, space: &AddressSpace<H>) -> bool {
        space.flushes().deferred != 0 || space.unplaced() != 0
    }

    #[cold]
    fn settle_owed(&self, space: &AddressSpace<H>, scope: Scope) {
        let (deferred, owed) = (self.is_deferred(space), space.owed());
        // That the latest debt is paid would do: whoever paid it has flushed all of the space since. To ask so costs a
        // look at its ledger entry.
        if !deferred && self.ledger.is_paid_up_to(owed) {
            return;
        }
        self.count(self.hw.this_cpu(), Counter::PaidBySettle, 1);
        self.assert_may_wait();
        // Read before the flush, which does not reach changes that are reported meanwhile. [mutant UnplacedReadAfterFlush]
        let unplaced = space.unplaced();
        // Where invalidations are broadcast, too: our own barrier completes nothing that the other CPU has sent.
        // [mutant SettleOnlyWaits: bug 5]
        self.flush([(space, &Request::Full(scope))].into_iter());
        space.unplaced_paid(unplaced);
        // CPUs that had the space loaded have flushed it; the others will, by its generation.
        space.owed_paid(owed);
    }

    /// The next stamp of the flush clock, with a ledger entry to publish its debt in, paying old debts if the
    /// ledger is full of them; `None` if there is no ledger, or if it stays full: others filled it
    /// again, or have taken stamps whose debts they have not published yet.
    pub(crate) fn take_stamp(&self, me: CpuId) -> Option<u64> {
        let ledger = &self.ledger;
        // One look at each ledger entry: a debtor that has stalled keeps its own, not the others'.
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

    /// Whether any flush may be owed until reuse. `false` is certain; `true` may be left over from a void stamp, for
    /// which the ledger had no room. Never waits.
    pub fn owes_anything(&self) -> bool {
        !self.ledger.is_paid_up_to(self.ledger.now())
    }

    /// Pays every debt there is: for a thread that does so in the background, before memory runs
    /// short, so that allocations need not.
    ///
    /// A batch whose [`Batch::finish_owed`](crate::Batch::finish_owed) has not returned yet may be left out. May wait
    /// for other CPUs.
    pub fn pay_all(&self) {
        self.pay_through(self.ledger.now());
    }

    /// Pays all debts up to `stamp`: after it, no CPU uses a translation whose flush a batch owed that ended, with this
    /// stamp or an earlier one, before the call began. Called before the bytes of a page change whose former frame,
    /// unmapped as of `stamp`, CPUs may still read (rule 3, for a page that has moved), and before addresses of the
    /// [kernel's half](crate::kernel) are given out again. One load when nothing is owed. May wait for other CPUs.
    #[inline]
    pub fn settle_stamp(&self, stamp: Stamp) {
        self.pay_through(stamp.0);
    }

    #[inline]
    fn pay_through(&self, stamp: u64) {
        if !self.ledger.is_paid_up_to(stamp) {
            self.pay(self.hw.this_cpu(), stamp, Reason::Background);
        }
    }

    /// Flushes this CPU's loaded tag whole if the flush clock has run a sixteenth of the ledger ahead of it:
    /// for a CPU that is in the kernel anyway, at a fault. A frame claimed after every CPU has done so costs no
    /// interrupt. Two loads if the clock has not run that far.
    ///
    /// It pays nothing by itself: a later claimer finds this CPU flushed. Never waits.
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

    /// Pays every debt that is published, up to and with `through`; and younger ones with them, but only
    /// as far as no CPU has to be interrupted for those alone.
    #[cold]
    fn pay(&self, me: CpuId, through: u64, reason: Reason) {
        self.assert_may_wait();
        let mut counted = false;
        while self.pay_some(me, through, reason, &mut counted) {}
        self.ledger.advance_paid_up_to();
    }

    /// Pays up to [`TOGETHER`] debts; whether there may be more of them up to `through`.
    ///
    /// A debt of the kernel's mappings concerns every CPU and all of its entries: a claim or a refill that is about a
    /// user's page leaves such debts unpaid.
    fn pay_some(&self, me: CpuId, through: u64, reason: Reason, counted: &mut bool) -> bool {
        // Where invalidations are broadcast, a CPU that loads a space keeps its entries and looks at no debt.
        // [mutant ClaimTrustsFlushes]
        let known = self.broadcasts().is_none();
        let with_kernel = matches!(reason, Reason::Background) || self.ledger.is_of_kernel(through);
        let (mut paid, mut behind) = (Stack::<(u64, bool), TOGETHER>::new(), CpuSet::none());
        let (mut more, mut kernel, mut enough) = (false, false, false);
        for place in self.ledger.unpaid() {
            if place > through && (enough || paid.is_full()) {
                // No ledger entry from here on holds a debt of `through` or earlier.
                break;
            }
            let owed = self.ledger.owed_at(place, self.count);
            // Not published yet: those behind it are paid all the same. [mutant PaymentStopsAtGap]
            let Some(debt) = &owed else {
                continue;
            };
            let stamp = debt.stamp;
            if debt.kernel && !with_kernel {
                continue;
            }
            if paid.is_full() {
                more |= stamp <= through;
                continue;
            }
            let told = behind.is_empty() && !paid.is_empty() && known;
            if stamp > through && told {
                let mut late = CpuSet::none();
                self.add_behind(me, debt, &mut late);
                if !late.is_empty() {
                    // Every CPU has flushed since what is asked for: younger debts can wait.
                    enough = true;
                    continue;
                }
            } else {
                self.add_behind(me, debt, &mut behind);
            }
            kernel |= debt.kernel;
            paid.push((stamp, debt.kernel));
        }
        if paid.is_empty() {
            return false;
        }
        if !core::mem::replace(counted, true) {
            let counter = match reason {
                Reason::Claim => Counter::PaidByClaim,
                Reason::Refill => Counter::PaidByRefill,
                Reason::Background => Counter::PaidByBackground,
            };
            self.count(me, counter, 1);
        }
        if behind.is_empty() && known {
            // Every CPU has flushed since, for reasons of its own.
        } else if self.broadcasts().is_some() {
            self.broadcast_everything(me, kernel);
        } else {
            // None of them is left to its entry into the kernel: it may be among them for what a user space owes.
            // [mutant PaymentLeftToEntry]
            self.flush_whole(me, &behind, Scope::Leaf, kernel);
        }
        for &(stamp, kernel) in paid.as_slice() {
            self.ledger.pay_off(stamp, kernel);
        }
        more
    }

    /// Adds those CPUs that may hold what the debt is about and have not flushed since.
    fn add_behind(&self, me: CpuId, debt: &Debt, behind: &mut CpuSet) {
        let concern = match debt.kernel {
            true => Concern::KernelDebt(debt.stamp),
            false => Concern::Debt(debt.stamp),
        };
        for cpu in debt.cpus.iter() {
            let state = &self.cpu(cpu).state;
            match state.must_be_asked(concern) {
                Asked::Must if debt.kernel && state.leave_to_entry(Scope::Leaf) => {
                    self.count(me, Counter::SkippedLazy, 1);
                }
                Asked::Must => behind.insert(cpu),
                Asked::Flushed => self.count(me, Counter::PaidByOthers, 1),
                Asked::Lazy | Asked::Detached => {}
            }
        }
    }
}

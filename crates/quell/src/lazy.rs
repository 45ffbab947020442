//! Lazy unmap (S3): flushes owed until reuse.
//!
//! # The rule
//!
//! A frame may be unmapped without a flush if every mapping of it was read-only and clean: its
//! content cannot change through a stale entry, and as long as nothing else changes, a stale read
//! returns the right bytes. What must not happen before the debt is paid, *and nothing else is
//! needed*:
//!
//! 1. the frame gets a new owner ([`Engine::claim`]);
//! 2. the emptied entry is written again ([`Engine::settle_residue`]), except with the same frame,
//!    read-only ([`Residue::rescue`]);
//! 3. the emptied page-cache slot is filled again (the same call), so that nobody can change the
//!    bytes of the file page behind the stale entry's back;
//! 4. a call by which the program took the mapping or a right to it away returns
//!    ([`Engine::settle`] or the residue of each marker that it met).
//!
//! All four are one check, on the frame's [`Residue`]: one load, zero when nothing is owed. The
//! four programs for which Linux refused this mechanism each break one of them.
//!
//! # The flush clock
//!
//! A debt is a *stamp*: a tick of the flush clock, taken after the entries were cleared. Each CPU
//! publishes what the clock showed before it last flushed its loaded tag whole. If that is the
//! stamp or later, the CPU cannot hold what the debt is about, whoever asked for that flush and
//! why; so debts are paid by anybody's flush, and a claim interrupts only CPUs that are behind.
//! CPUs that keep entries under a tag that is not loaded are not asked at all: the space's debt
//! word makes them flush as they load it again. Only CPUs that had the space loaded when the debt
//! was taken could hold anything; the *epoch* of the stamp remembers them.
//!
//! # What is shared
//!
//! Taking a debt ticks the clock, writes the debt into its spaces and then publishes one epoch;
//! nothing is locked. An epoch is used again only after it was paid: who finds the ledger full pays
//! for all at once, and a debt for which there is still no room is refused and flushed as without
//! S3. A payer calls nothing paid that is not published: the spaces do not know that debt yet, so
//! a lazy CPU that the payer leaves out could come back without flushing.
//!
//! # What this does not guarantee
//!
//! A claim may have to wait for CPUs that others made it depend on: the one who needs a frame pays
//! for somebody's unmap. [`Engine::pay_all`], called in the background, keeps that rare.

use crate::cpu_set::AtomicCpuSet;
use crate::hardware::{CpuId, Hardware, Invalidate, Scope, Word};
use crate::mutant::Mutant;
use crate::per_cpu::{LAZY, LEFT, NOTHING, RUNNING};
use crate::shootdown::Message;
use crate::stats::Counter;
use crate::{AddressSpace, CpuSet, Engine, Purpose};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// A tick of the flush clock at which a flush began to be owed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stamp(pub(crate) u64);

/// The memory of one tick: which CPUs had an indebted space loaded.
#[repr(align(64))]
pub struct Epoch<H: Hardware> {
    /// The stamp that this memory belongs to; 0 while it is being written.
    stamp: H::Word,
    cpus: AtomicCpuSet<H::Word>,
}

impl<H: Hardware> Default for Epoch<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Hardware> Epoch<H> {
    /// An epoch that belongs to no stamp.
    pub fn new() -> Self {
        Epoch {
            stamp: H::Word::new(0),
            cpus: AtomicCpuSet::new(),
        }
    }
}

#[repr(align(64))]
struct Line<W>(W);

/// The flush clock and what it owes.
pub(crate) struct Ledger<'m, H: Hardware> {
    /// Ticks once for each debt. Written by those who owe, read by those who flush.
    clock: Line<H::Word>,
    /// Every debt up to this stamp is paid.
    paid: Line<H::Word>,
    epochs: &'m [Epoch<H>],
}

impl<'m, H: Hardware> Ledger<'m, H> {
    pub(crate) fn new(epochs: &'m [Epoch<H>]) -> Self {
        Ledger {
            clock: Line(H::Word::new(0)),
            paid: Line(H::Word::new(0)),
            epochs,
        }
    }

    /// What the clock shows. Acquire: the flush that follows sees the tables as they were when the
    /// clock ticked last.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.clock.0.load(Acquire)
    }

    #[inline]
    fn is_paid(&self, stamp: u64) -> bool {
        stamp <= self.paid.0.load(Acquire)
    }

    /// Every debt up to `stamp` is paid. Release: whoever finds it so sees the flushes done.
    fn paid_up_to(&self, stamp: u64) {
        self.paid.0.fetch_max(stamp, Release);
    }

    /// The debt, still owed, whose epoch `stamp` would need.
    fn in_the_way_of(&self, stamp: u64) -> Option<u64> {
        stamp
            .checked_sub(self.epochs.len() as u64)
            .filter(|&older| !self.is_paid(older))
    }

    /// Publishes a debt: remembers the CPUs that it is about. The spaces know of it already.
    ///
    /// Nobody else writes the epoch: its last stamp was paid, so it was published before, and the
    /// next one is given out only after this one was paid.
    pub(crate) fn record(&self, stamp: u64, count: usize, cpus: &CpuSet) {
        let epoch = &self.epochs[stamp as usize % self.epochs.len()];
        // Release: who finds its debt gone from here finds it paid.
        epoch.stamp.store(0, Release);
        // No CPU of the new set is seen by whoever still finds the old stamp in its second look.
        H::Word::fence(Release);
        epoch.cpus.assign(count, cpus, Relaxed);
        epoch.stamp.store(stamp, Release);
    }

    /// The CPUs that the debt of `stamp` is about; `None` if it is not published, or no longer.
    fn recorded(&self, stamp: u64, count: usize) -> Option<CpuSet> {
        let epoch = &self.epochs[stamp as usize % self.epochs.len()];
        // Acquire: the debt that the spaces were told of before is seen by whoever sees the epoch,
        // and that its last debt was paid by whoever sees it used again.
        while epoch.stamp.load(Acquire) == stamp {
            let cpus = epoch.cpus.snapshot(count, Relaxed);
            H::Word::fence(Acquire);
            if epoch.stamp.load(Relaxed) == stamp {
                return Some(cpus);
            }
        }
        None
    }
}

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
    /// Of a frame that owes nothing.
    pub fn new() -> Self {
        Residue {
            word: H::Word::new(NONE),
        }
    }

    /// Whether the frame owes nothing: one load.
    #[inline]
    pub fn is_clear(&self) -> bool {
        self.word.load(Acquire) == NONE
    }

    /// The frame's entries are about to be cleared without a flush. Called under the lock of the
    /// page-cache slot, before the first entry is cleared.
    pub fn begin(&self) {
        // Relaxed: the lock publishes it, and nothing goes with it.
        self.word.store(PENDING, Relaxed);
    }

    /// The frame's flush is owed as of `stamp`. Called under the same lock.
    pub fn owe(&self, stamp: Stamp) {
        self.word.store(stamp.0 << OWED_SHIFT, Release);
    }

    /// The frame was flushed after all, or its entries were not cleared.
    pub fn settle_flushed(&self) {
        self.word.store(NONE, Release);
    }

    /// Takes the frame back for the page that it belonged to, to be mapped as it was: read-only, at
    /// the same places. No flush is needed and no content is lost. `false` if somebody has
    /// claimed it first; then its debt was paid.
    ///
    /// Called under the lock of the page-cache slot.
    #[must_use]
    pub fn rescue(&self, engine: &Engine<'_, H>) -> bool {
        let held = self.word.load(Acquire);
        // Acquire, in either: that somebody has claimed it means that its debt was paid.
        let won = held > PENDING
            && self
                .word
                .compare_exchange(held, NONE, Relaxed, Acquire)
                .is_ok();
        let won = won || engine.hw.mutant(Mutant::RescueUnchecked);
        engine.count(engine.hw.this_cpu(), Counter::Rescued, u64::from(won));
        won
    }
}

/// Proof that a frame's debt was paid and that the holder, nobody else, may give it a new owner.
#[must_use = "a claimed frame belongs to the claimer now and is lost if it is not used or freed"]
#[derive(Debug)]
pub struct Claimed(());

impl<H: Hardware> Engine<'_, H> {
    /// Claims a frame for a new owner, paying its debt if nobody has (rule 1).
    /// `None` if the frame was rescued, or was never owed.
    ///
    /// May wait for other CPUs; the caller holds no lock that their interrupt handlers need.
    pub fn claim(&self, residue: &Residue<H>) -> Option<Claimed> {
        let me = self.hw.this_cpu();
        loop {
            let held = residue.word.load(Acquire);
            if held <= PENDING {
                return None;
            }
            let stamp = held >> OWED_SHIFT;
            // Paid before it is taken: as long as the word says "owed", a refill pays or rescues.
            if !self.hw.mutant(Mutant::ClaimSkipsDebt) {
                if self.ledger.is_paid(stamp) {
                    self.count(me, Counter::ClaimsFree, 1);
                } else {
                    self.pay(me, stamp, Reason::Claim);
                }
            }
            if residue
                .word
                .compare_exchange(held, NONE, Release, Relaxed)
                .is_ok()
            {
                return Some(Claimed(()));
            }
        }
    }

    /// Whether a claim of this frame would have to interrupt nobody: one load when nothing is owed.
    pub fn is_paid(&self, residue: &Residue<H>) -> bool {
        let held = residue.word.load(Acquire);
        held != PENDING && self.ledger.is_paid(held >> OWED_SHIFT)
    }

    /// Before an entry of `space` whose marker names the frame is rewritten, or a page-cache slot
    /// that held the frame is filled again (rules 2 and 3). One load when nothing is owed.
    #[inline]
    pub fn settle_residue(&self, residue: &Residue<H>, space: &AddressSpace<H>) {
        if self.hw.mutant(Mutant::RefillSkipsDebt) {
            return;
        }
        match residue.word.load(Acquire) {
            NONE => {}
            // The batch has no stamp yet: its debt still stands in the space.
            PENDING => self.settle(space),
            owed if self.ledger.is_paid(owed >> OWED_SHIFT) => {}
            owed => self.pay(self.hw.this_cpu(), owed >> OWED_SHIFT, Reason::Refill),
        }
    }

    /// Before a second actor relies on a cleared entry of `space` (rule 4, and the same for batches
    /// of reclaim and migration): after it, no CPU uses a translation of the space that was
    /// cleared before the call. Two loads from one line when nothing is owed.
    #[inline]
    pub fn settle(&self, space: &AddressSpace<H>) {
        if self.hw.mutant(Mutant::SettleSkipped) {
            return;
        }
        if space.flushes().deferred() != 0 || space.owed() != 0 {
            self.settle_owed(space);
        }
    }

    /// As [`Engine::settle`], but leaves alone what is owed until reuse: for a second actor that
    /// finds an entry cleared *without* a marker, so by a batch that is still to flush, and that
    /// deals with markers one by one. One load when no batch is outstanding.
    #[inline]
    pub fn settle_deferred(&self, space: &AddressSpace<H>) {
        if !self.hw.mutant(Mutant::SettleSkipped) && space.flushes().deferred() != 0 {
            self.settle_owed(space);
        }
    }

    #[cold]
    fn settle_owed(&self, space: &AddressSpace<H>) {
        let (deferred, owed) = (space.flushes().deferred(), space.owed());
        if deferred == 0 && self.ledger.is_paid(owed) {
            return;
        }
        self.count(self.hw.this_cpu(), Counter::PaidBySettle, 1);
        // On a machine with broadcasts, waiting for our own barrier would complete nothing that the
        // other CPU has sent: the flush is sent again from here.
        if self.features.broadcast && self.hw.mutant(Mutant::SettleOnlyWaits) {
            self.hw.complete_broadcasts();
        } else {
            self.flush_whole(space);
        }
        // CPUs that had the space loaded have flushed it; the others will, by its generation.
        space.owed_paid(owed);
    }

    /// The next stamp of the flush clock, paying old debts if the ledger is full of them; `None` if
    /// there is no ledger, or if it stays full: others filled it again, or one of them has not
    /// published its debt yet.
    pub(crate) fn take_stamp(&self, me: CpuId) -> Option<u64> {
        let ledger = &self.ledger;
        if ledger.epochs.is_empty() {
            return None;
        }
        let mut now = ledger.now();
        if let Some(oldest) = ledger.in_the_way_of(now + 1) {
            self.pay(me, oldest, Reason::Background);
        }
        // A stamp that is given out is published: none is taken before there is room for it.
        while ledger.in_the_way_of(now + 1).is_none() {
            match ledger
                .clock
                .0
                .compare_exchange(now, now + 1, Release, Relaxed)
            {
                Ok(_) => return Some(now + 1),
                Err(later) => now = later,
            }
        }
        None
    }

    /// Whether any flush is owed until reuse.
    pub fn owes_anything(&self) -> bool {
        !self.ledger.is_paid(self.ledger.now())
    }

    /// Pays every debt there is: for a thread that does so in the background, before memory runs
    /// short, so that allocations need not.
    pub fn pay_all(&self) {
        let now = self.ledger.now();
        if !self.ledger.is_paid(now) {
            self.pay(self.hw.this_cpu(), now, Reason::Background);
        }
    }

    /// Flushes a space whole, on every CPU that has it loaded.
    fn flush_whole(&self, space: &AddressSpace<H>) {
        let mut batch = self.batch::<_, ()>(Purpose::Call);
        batch.changed_all(space, Scope::Leaf);
        for () in batch.finish() {}
    }

    /// Flushes this CPU's loaded tag whole if the flush clock has run a sixteenth of the ledger ahead of
    /// it: for a CPU that is in the kernel anyway, at a fault. A debt that nobody claims until every
    /// CPU has done so interrupts nobody. Two loads if the clock has not run that far.
    ///
    /// It pays nothing by itself: whoever claims finds this CPU flushed.
    #[inline]
    pub fn catch_up(&self) {
        let far = (self.ledger.epochs.len() as u64).div_ceil(16);
        if far == 0 || !self.policy.lazy_unmap || self.features.broadcast {
            return;
        }
        let me = self.hw.this_cpu();
        let flushed_at = self.cpus[me.index()].published.flushed_at.load(Relaxed);
        if self.ledger.clock.0.load(Relaxed) >= flushed_at + far {
            self.catch_up_now(me);
        }
    }

    #[cold]
    fn catch_up_now(&self, me: CpuId) {
        let cpu = &self.cpus[me.index()];
        let were_on = self.hw.mask_interrupts();
        if cpu.published.state.load(Relaxed) == RUNNING
            && cpu.private.space.load(Relaxed) != NOTHING
        {
            self.count(me, Counter::CaughtUp, 1);
            self.flush_tag(me, &cpu.slots()[cpu.private.slot.load(Relaxed) as usize]);
        }
        self.hw.restore_interrupts(were_on);
    }

    /// Pays the debt `through`, and with it every one that is published before or after it; those
    /// alone for which nobody has to be interrupted, if it is among them.
    #[cold]
    fn pay(&self, me: CpuId, through: u64, reason: Reason) {
        // Relaxed: no older than the debt, which was acquired; what is newer is paid by others.
        let now = self.ledger.clock.0.load(Relaxed);
        let paid = self.ledger.paid.0.load(Acquire);
        if paid >= through {
            return;
        }
        self.count(
            me,
            match reason {
                Reason::Claim => Counter::PaidByClaim,
                Reason::Refill => Counter::PaidByRefill,
                Reason::Background => Counter::PaidByBackground,
            },
            1,
        );
        let mut behind = CpuSet::EMPTY;
        let mut upto = paid;
        while upto < now {
            let nobody = behind.is_empty();
            if !self.add_behind(me, upto + 1, &mut behind) {
                break;
            }
            // With broadcasts nobody is known to have flushed: who comes back from idle, where loads
            // keep their entries, looks at no debt.
            let known = !self.features.broadcast || self.hw.mutant(Mutant::ClaimTrustsFlushes);
            if nobody && upto >= through && !behind.is_empty() && known {
                // Everybody has flushed since what is asked for: what is younger can wait.
                self.ledger.paid_up_to(upto);
                return;
            }
            upto += 1;
        }
        if upto < through {
            // Somebody has not published an earlier one. This one is paid all the same, though
            // nobody else will know.
            self.add_behind(me, through, &mut behind);
        }
        if self.features.broadcast {
            self.fence_before_tag();
            self.count(me, Counter::Broadcasts, 1);
            self.hw.broadcast(Invalidate::All);
            self.complete(me);
        } else {
            let (mut targets, mut interrupts) = (CpuSet::EMPTY, CpuSet::EMPTY);
            self.post_to(
                me,
                &behind,
                &Message::EVERYTHING,
                &mut targets,
                &mut interrupts,
            );
            self.send(me, &interrupts);
            if behind.contains(me) {
                let were_on = self.hw.mask_interrupts();
                self.obey(me, &Message::EVERYTHING);
                self.hw.restore_interrupts(were_on);
            }
            self.wait(me, &targets, Scope::Leaf);
        }
        self.ledger.paid_up_to(upto);
    }

    /// Adds the CPUs that may hold what `stamp` is about and have not flushed since; `false` if the
    /// debt is not published yet.
    fn add_behind(&self, me: CpuId, stamp: u64, behind: &mut CpuSet) -> bool {
        let Some(cpus) = self.ledger.recorded(stamp, self.cpus.len()) else {
            return self.ledger.is_paid(stamp);
        };
        for cpu in cpus.iter() {
            let published = &self.cpus[cpu.index()].published;
            // Lazy CPUs use nothing now and look at the space's debt before they do.
            if matches!(published.state.load(SeqCst), LAZY | LEFT) {
                continue;
            }
            if published.flushed_at.load(Acquire) >= stamp {
                self.count(me, Counter::PaidByOthers, 1);
            } else {
                behind.insert(cpu);
            }
        }
        true
    }
}

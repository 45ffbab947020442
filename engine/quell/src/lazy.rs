//! Lazy unmap: defers the flush of clean, read-only frames until they're reused.
//!
//! The idea is [Park's LUF](https://lore.kernel.org/all/20240510065206.76078-10-byungchul@sk.com/) for Linux.
//!
//! # The rule
//!
//! A frame may be unmapped without a flush if every mapping of it was read-only and clean, and no other batch has a
//! flush of it outstanding. Its content can't change through a stale translation, so a stale read returns the right
//! bytes as long as nothing else changes them. Four things must not happen before the deferred flush is made. The call
//! in parentheses flushes first:
//!
//! 1. the frame gets a new owner ([`Engine::flush_before_reuse`]);
//! 2. the cleared entry is written again ([`Engine::flush_before_refill`]). Exception: the same frame may be mapped
//!    there again, read-only ([`DeferredFlush::reinstate`]);
//! 3. the emptied slot of the page cache is filled again ([`Engine::flush_before_refill`], too). One CPU could then
//!    change the bytes of the file page while another still reads the old frame;
//! 4. a system call that removes the mapping, or a right to it, returns to the program ([`Engine::flush_pending`]).
//!
//! Two more sections add duties: after a [reinstatement](crate::lazy#reinstating-a-frame), and for [code that changes
//! file pages](crate::lazy#participants).
//!
//! A *marker* is a non-present entry that names the frame. The kernel writes it in place of each entry that it clears
//! without a flush. Instead of [`Engine::flush_pending`], the kernel may make the deferred flush of each marker that it
//! finds. Entries that were cleared without a marker then need [`Engine::flush_pending_batches`].
//!
//! Where no flush is deferred, rules 1 to 3 cost one load each, of the frame's [`DeferredFlush`]. Rule 4 costs one such
//! load per marker, or three loads from the space.
//!
//! # Reinstating a frame
//!
//! To *reinstate* a lazily unmapped frame is to map it again for the same page, without a flush. That clears its
//! deferred flush. But the frame may have been unmapped in several places. For example, two processes mapped a
//! library's page, and only one of them faults on it. At the other places, CPUs may still use stale translations. So
//! the kernel does one of two things:
//!
//! * It maps the frame again at *every* place with a marker for it, before it drops the lock of the page-cache slot.
//! * It keeps treating each such marker as a mapping of the frame. Later some code removes that mapping: an unmap by
//!   the program, for example, or reclaim. That code reports the marker's range to its batch as if the entry were
//!   present, or calls [`Engine::flush_pending`] for the space. `quell-vm` does this: its reverse map lists the
//!   markers.
//!
//! # Participants
//!
//! The rules bind all code that could break them. Some code changes the bytes of a file page without filling its slot:
//! for example, it punches a hole, or a network file system learns that the file has changed on the server. Such code
//! must take the slot's lock and call [`Engine::flush_before_refill`] before it changes the bytes. If it also removes
//! mappings, rule 4 applies. The engine can't see such code. Nor does the engine track translations in other MMUs,
//! apart from those behind [`Hardware::start_secondary`]. Flush any other MMU when the entry is cleared, not when the
//! deferred flush is made.
//!
//! # The flush clock
//!
//! The *flush clock* is a counter that ticks once for each deferred flush. The tick is taken after the entries were
//! cleared, and is the *stamp* of that deferred flush. Whenever a CPU flushes its whole loaded tag, for whatever
//! reason, it reads the clock before the flush and publishes that time after it. Once a CPU's published time reaches
//! the stamp, its loaded tag holds none of the translations that the deferred flush covers. Other tags may. So a CPU
//! that flushes its loaded tag has done its share of all earlier deferred flushes. A reuse interrupts only CPUs whose
//! published time is before the stamp.
//!
//! We don't interrupt a CPU for translations under a tag that isn't loaded. When it loads the space again, it reads the
//! space's latest stamp, and flushes the tag if it hasn't flushed it since that stamp. (On machines that broadcast
//! invalidations, the deferred flush is a broadcast, which reaches every tag.) Apart from such CPUs, only those that
//! had the space loaded when the stamp was taken can hold the translations. The *ledger* is a table of deferred
//! flushes. Its entry for a stamp lists the CPUs that had the space loaded.
//!
//! # Shared words
//!
//! To defer a flush, a CPU ticks the clock, writes the stamp into the spaces and then publishes one ledger entry. It
//! takes no lock. We reuse a ledger entry only after its deferred flush was made. If the ledger is full, the CPU first
//! makes the oldest deferred flushes in it. If there's still no room, the CPU makes its own flush at once, as without
//! lazy unmap.
//!
//! We mark only published deferred flushes as made. Before publication, the stamp may be missing from the spaces. If we
//! marked such a flush as made, an idle CPU that has kept the space loaded could resume the space without flushing: it
//! got no request, and finds no stamp. A CPU that stalls between its stamp and its ledger entry, for example a
//! preempted virtual CPU, leaves a gap. Deferred flushes before and after the gap are still made, because each ledger
//! entry has its own mark. Checking one after the gap takes a second load, but no interrupt.
//!
//! # What we don't guarantee
//!
//! A CPU that reuses a frame may have to wait for other CPUs, because it makes the flush that the unmap has deferred.
//! To keep that rare, call [`Engine::flush_deferred`] in the background.

use crate::cpu::{Decision, FlushReason, LoadedSpace};
use crate::cpu_set::CpuSet;
use crate::engine::Engine;
use crate::hardware::{Hardware, Scope};
use crate::ledger::{Deferral, Stamp};
use crate::request::Request;
use crate::space::AddressSpace;
use crate::stack::InlineQueue;
use crate::stats::Counter;
use crate::this_cpu::Cpu;
use crate::word::Word;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The maximum number of deferred flushes that one round makes, the oldest first. If the requested flush isn't among
/// them, further rounds follow.
const TOGETHER: usize = 64;

/// The reason why a deferred flush is made.
#[derive(Clone, Copy)]
enum Reason {
    Reuse,
    Refill,
    Background,
}

const NONE: u64 = 0;
const PENDING: u64 = 1;
const DEFERRED_SHIFT: u32 = 1;

/// Records a frame's deferred flush, in one word of the kernel's frame table.
///
/// [Lazy unmap](crate::lazy) clears a frame's entries and flushes later, at the latest before the frame gets a new
/// owner. The word is *clear* if the frame has no deferred flush. It becomes *pending* before the frame's entries are
/// cleared ([`DeferredFlush::begin`]), and *deferred* when the batch has ended without a flush
/// ([`DeferredFlush::defer`]). It stays deferred until the frame is reused ([`Engine::flush_before_reuse`]) or
/// [reinstated](DeferredFlush::reinstate).
///
/// # Examples
///
/// ```
/// # quell::one_cpu!(machine, engine, space);
/// use quell::{DeferredFlush, Frame, Outcome, Page, PageRange, Purpose};
/// # let deferred_flush = DeferredFlush::new();
/// # deferred_flush.begin();
/// # let mut batch = engine.batch(Purpose::Lazy);
/// # batch.unmapped(&space, PageRange::base(Page(5), 1), Frame(42));
/// # let Outcome::Deferred(frames) = batch.finish_deferred() else { panic!() };
/// # deferred_flush.defer(frames.stamp());
/// # drop(frames);
/// // The page is wanted back: no flush, no input or output.
/// assert!(deferred_flush.reinstate(&engine));
/// // The frame is mapped again, so nobody may take it for a new owner.
/// assert!(engine.flush_before_reuse(&deferred_flush).is_none());
/// ```
pub struct DeferredFlush<H: Hardware> {
    word: H::Word,
}

impl<H: Hardware> Default for DeferredFlush<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Hardware> DeferredFlush<H> {
    /// Makes the word of a frame that has no deferred flush. Never waits.
    pub fn new() -> Self {
        DeferredFlush { word: H::Word::new(NONE) }
    }

    /// Returns whether the word is clear: the frame's flush is neither pending nor deferred. Takes one load. Never
    /// waits.
    #[inline]
    pub fn is_clear(&self) -> bool {
        // Acquire pairs with `flush_before_reuse` and `clear`: if the word is clear, the frame's deferred flush is
        // done.
        // A weaker ordering fails the loom race "a look at a frame that has no deferred flush any more".
        self.word.load(Acquire) == NONE
    }

    /// Records that the frame's entries are about to be cleared without a flush.
    ///
    /// Call it under the lock of the page-cache slot, before the first entry is cleared. Never waits.
    pub fn begin(&self) {
        // Relaxed: the lock publishes the word, which publishes nothing else.
        self.word.store(PENDING, Relaxed);
    }

    /// Records that the frame's flush is deferred as of `stamp`, which
    /// [`DeferredFrames::stamp`](crate::DeferredFrames::stamp) returns. Call it under the lock under which you called
    /// [`DeferredFlush::begin`]. Never waits.
    pub fn defer(&self, stamp: Stamp) {
        // Release pairs with `flush_before_reuse` and `flush_before_refill`: they find the deferred flush's ledger
        // entry published.
        // A weaker ordering fails the loom race "a reuse while the deferred flush is taken".
        self.word.store(stamp.0 << DEFERRED_SHIFT, Release);
    }

    /// Records that the frame has no deferred flush.
    ///
    /// Use it after [`DeferredFlush::begin`], and under the same lock, if the frame was flushed after all or its
    /// entries weren't cleared. Never waits.
    ///
    /// It flushes nothing. For a frame whose flush is deferred, call [`Engine::flush_before_reuse`] or
    /// [`DeferredFlush::reinstate`] instead.
    pub fn clear(&self) {
        // Release pairs with `flush_before_refill` and `is_clear`: if they find the word clear, the frame's flush is
        // done.
        // A weaker ordering fails the loom race "a refill against a deferred flush that becomes none".
        self.word.store(NONE, Release);
    }

    /// Takes the frame back for its former page, without a flush.
    ///
    /// Returns `true` if you may map the frame as before: read-only, at the same places. No content is lost. Returns
    /// `false` if the frame's flush isn't deferred: usually because another CPU has reused the frame first, and so has
    /// flushed. Never waits.
    ///
    /// The word is clear afterwards. At places where you don't map the frame again, CPUs may still use stale
    /// translations, which no deferred flush covers any more. For your duties at these places, see ["Reinstating a
    /// frame"](crate::lazy#reinstating-a-frame).
    ///
    /// Call it under the lock of the page-cache slot.
    #[must_use]
    pub fn reinstate(&self, engine: &Engine<'_, H>) -> bool {
        // Acquire pairs with `flush_before_reuse`: if the frame was reused, its deferred flush is done.
        // A weaker ordering fails the loom race "reinstating too late".
        let held = self.word.load(Acquire);
        // Reinstate only if no other CPU has reused the frame first. [mutant ReinstateUnchecked]
        let won = held > PENDING
            && self
                .word
                // Acquire on failure pairs with `flush_before_reuse`: if the frame was reused meanwhile, its deferred
                // flush is done.
                // A weaker ordering fails the loom race "reinstating too late".
                .compare_exchange(held, NONE, Relaxed, Acquire)
                .is_ok();
        engine.this_cpu().count(Counter::Reinstated, u64::from(won));
        won
    }
}

/// Proves that a frame's deferred flush was made.
///
/// Made by [`Engine::flush_before_reuse`]. Give a lazily unmapped frame a new owner only with this proof.
///
/// # Examples
///
/// ```
/// # quell::one_cpu!(machine, engine, space);
/// use quell::{DeferredFlush, Frame, Outcome, Page, PageRange, Purpose, ReuseProof};
/// # machine.access(Page(5));
/// # let deferred_flush = DeferredFlush::new();
/// # deferred_flush.begin();
/// # let mut batch = engine.batch(Purpose::Lazy);
/// # batch.unmapped(&space, PageRange::base(Page(5), 1), Frame(42));
/// # let Outcome::Deferred(frames) = batch.finish_deferred() else { panic!() };
/// # deferred_flush.defer(frames.stamp());
/// # drop(frames);
/// /// Gives a frame to a new owner, which needs the proof.
/// fn hand_out(frame: Frame, _proof: ReuseProof) -> Frame {
///     frame
/// }
/// let proof = engine.flush_before_reuse(&deferred_flush).unwrap();
/// assert_eq!(hand_out(Frame(42), proof), Frame(42));
/// assert!(!machine.caches(Page(5)));
/// assert!(engine.flush_before_reuse(&deferred_flush).is_none()); // there is one proof
/// ```
#[must_use = "the frame belongs to the caller now and is lost if it is not used or freed"]
#[derive(Debug)]
pub struct ReuseProof(());

impl<H: Hardware> Engine<'_, H> {
    /// Takes a lazily unmapped frame for a new owner, after making its deferred flush.
    ///
    /// That's rule 1 of [lazy unmap](crate::lazy#the-rule). Returns `None` if the frame's flush isn't deferred: it
    /// never was, its batch hasn't ended yet, or another CPU has reinstated or reused the frame first. In all these
    /// cases the call gives the caller no right to the frame.
    ///
    /// May wait for other CPUs.
    #[inline]
    pub fn flush_before_reuse(&self, deferred_flush: &DeferredFlush<H>) -> Option<ReuseProof> {
        loop {
            // Acquire pairs with `defer`: the ledger entry of this deferred flush is published.
            // A weaker ordering fails the loom race "a reuse while the deferred flush is taken".
            let held = deferred_flush.word.load(Acquire);
            if held <= PENDING {
                return None;
            }
            let stamp = held >> DEFERRED_SHIFT;
            // Flush, then take: as long as the word is deferred, a CPU that refills the page's place makes the flush,
            // or waits for it. [mutants ReuseSkipsFlush: L4, ReuseTakesFirst]
            if self.ledger.is_flushed(stamp) {
                self.this_cpu().count(Counter::ReusedFree, 1);
            } else {
                self.flush_deferred_until(stamp, Reason::Reuse);
            }
            // Release pairs with `reinstate`, `is_clear`, `is_flushed` and `flush_before_refill`: if they find the
            // frame reused, its deferred flush is done.
            // A weaker ordering fails the loom race "reinstating too late".
            let taken = (deferred_flush.word).compare_exchange(held, NONE, Release, Relaxed);
            if taken.is_ok() {
                return Some(ReuseProof(()));
            }
        }
    }

    /// Returns whether the frame has no flush left: none was deferred, or it was made.
    ///
    /// Returns `false` while the flush is [pending](DeferredFlush). Takes two loads if the frame has no deferred flush.
    /// Never waits.
    pub fn is_flushed(&self, deferred_flush: &DeferredFlush<H>) -> bool {
        // Acquire pairs with `flush_before_reuse`: if the frame's word is clear again, its deferred flush is done.
        // A weaker ordering fails the loom race "a look at a frame that was reused".
        let held = deferred_flush.word.load(Acquire);
        held != PENDING && self.ledger.is_flushed(held >> DEFERRED_SHIFT)
    }

    /// Makes the frame's deferred flush before its entry or page-cache slot is refilled.
    ///
    /// Call it before you overwrite a marker in a table of `space`: a non-present entry that names the frame (rule 2 of
    /// [lazy unmap](crate::lazy#the-rule)). If the frame's flush is still [pending](DeferredFlush), the call flushes
    /// `space` like [`Engine::flush_pending`].
    ///
    /// Call it also before you fill a page-cache slot that held the frame (rule 3). Hold the slot's lock: then the
    /// flush isn't pending, and any space will do as `space`.
    ///
    /// Takes one load if no flush is deferred. May wait for other CPUs.
    ///
    /// If the frame was [reinstated](DeferredFlush::reinstate), this call flushes nothing, although other markers may
    /// still name the frame: see ["Reinstating a frame"](crate::lazy#reinstating-a-frame).
    #[inline]
    pub fn flush_before_refill(&self, deferred_flush: &DeferredFlush<H>, space: &AddressSpace<H>) {
        // [mutant RefillSkipsFlush: L1, L2, L3]
        // Acquire pairs with `flush_before_reuse`, `defer` and `clear`: the frame's deferred flush is done, or its
        // ledger entry is published.
        // A weaker ordering fails the loom race "a refill against a reuse".
        match deferred_flush.word.load(Acquire) {
            NONE => {}
            // The batch has no stamp yet, so the space still counts it as pending.
            PENDING => self.flush_pending(space),
            deferred if self.ledger.is_flushed(deferred >> DEFERRED_SHIFT) => {}
            deferred => self.flush_deferred_until(deferred >> DEFERRED_SHIFT, Reason::Refill),
        }
    }

    /// Flushes every entry of `space` that is cleared but not flushed yet.
    ///
    /// Call it when you find an entry that other code has cleared, before you rely on that. Such code is a
    /// *later observer*: for example, a page fault that finds an entry that reclaim has cleared in a
    /// [`Batch`](crate::Batch). Rule 4 of [lazy unmap](crate::lazy#the-rule) requires this call, too. When it returns,
    /// no CPU uses a translation of the space whose entry was cleared before the call. Takes three loads from one cache
    /// line if there's nothing to flush.
    ///
    /// May wait for other CPUs. Hold the table's lock only if you may wait under it ([`Hardware::may_wait`]).
    #[inline]
    pub fn flush_pending(&self, space: &AddressSpace<H>) {
        // [mutant FlushPendingSkipped: bugs 3, 6, 19]
        if self.has_pending_batch(space) || space.deferred() != 0 {
            self.flush_pending_slow(space, Scope::Leaf);
        }
    }

    /// Flushes entries of `space` that a batch has cleared and hasn't flushed yet.
    ///
    /// Unlike [`Engine::flush_pending`], it makes no flush that lazy unmap has deferred. Use it in code that makes the
    /// deferred flush of each marker by itself. If such code finds an entry cleared *without* a marker, the batch that
    /// cleared it may still have to flush. This call makes that flush. Takes two loads if every batch has flushed. May
    /// wait for other CPUs.
    #[inline]
    pub fn flush_pending_batches(&self, space: &AddressSpace<H>) {
        // [mutant FlushPendingSkipped: bugs 3, 6, 19]
        if self.has_pending_batch(space) {
            self.flush_pending_slow(space, Scope::Leaf);
        }
    }

    /// Flushes like [`Engine::flush_pending_batches`], and waits until no TLB uses the old translations.
    ///
    /// The other call may return once each CPU has acknowledged its request ([`Policy::asynchronous`](crate::Policy)),
    /// and leaves out idle CPUs that keep the space loaded. This one waits for the flush itself, on those CPUs, too.
    /// Use it if you find an entry cleared and write one of another page size ([`Flush::break_first`](crate::Flush)).
    /// The code that cleared the entry must have reported the change with [`Scope::Tables`]. May wait for other CPUs.
    #[inline]
    pub fn flush_pending_tables(&self, space: &AddressSpace<H>) {
        // [mutant FlushPendingSkipped: bugs 3, 6, 19]
        if self.has_pending_batch(space) {
            // A receipt isn't enough: no TLB may hold the old translation. [mutant FlushedByReceipt]
            self.flush_pending_slow(space, Scope::Tables);
        }
    }

    /// Returns whether a batch may have an unflushed change of the space.
    #[inline]
    fn has_pending_batch(&self, space: &AddressSpace<H>) -> bool {
        space.flushes().pending != 0 || space.overflow() != 0
    }

    /// Makes every deferred flush, so that later reuses don't have to wait for it. Call it in a background thread.
    ///
    /// It may leave out a batch whose [`Batch::finish_deferred`](crate::Batch::finish_deferred) hasn't returned yet.
    /// May wait for other CPUs.
    pub fn flush_deferred(&self) {
        self.flush_up_to(self.ledger.now());
    }

    /// Makes all deferred flushes up to and including `stamp`.
    ///
    /// It covers batches that had ended before the call began: afterwards no CPU uses a translation whose entry they
    /// cleared. Usually takes one load if all of these flushes were made already. May wait for other CPUs.
    ///
    /// For example, a page was moved, and its former frame was unmapped lazily as of `stamp`. CPUs may still read that
    /// frame. So call this before anything changes the page's bytes (rule 3 of [lazy unmap](crate::lazy#the-rule)).
    /// Call it also before you give out lazily unmapped [kernel addresses](crate::kernel) again.
    #[inline]
    pub fn flush_until(&self, stamp: Stamp) {
        self.flush_up_to(stamp.0);
    }

    #[inline]
    fn flush_up_to(&self, stamp: u64) {
        if !self.ledger.is_flushed_up_to(stamp) {
            self.flush_deferred_until(stamp, Reason::Background);
        }
    }

    /// Returns whether any flush may be deferred until reuse. Never waits.
    ///
    /// `false` means that no flush is deferred. `true` may be a false alarm: for example, a CPU took a stamp, found no
    /// room in the ledger and flushed at once.
    pub fn has_deferred(&self) -> bool {
        !self.ledger.is_flushed_up_to(self.ledger.now())
    }

    #[cold]
    fn flush_pending_slow(&self, space: &AddressSpace<H>, scope: Scope) {
        let (pending, deferred) = (self.has_pending_batch(space), space.deferred());
        // We could return if just the latest deferred flush is made, because that flushed the whole space. But to check
        // that, we'd have to read its ledger entry.
        if !pending && self.ledger.is_flushed_up_to(deferred) {
            return;
        }
        let cpu = self.this_cpu();
        cpu.count(Counter::FlushedPending, 1);
        self.assert_may_wait();
        // Read before the flush, which doesn't reach changes that are reported meanwhile. [mutant
        // OverflowReadAfterFlush]
        let overflow = space.overflow();
        // We flush even where invalidations are broadcast: our barrier completes nothing that the other CPU has sent.
        // [mutant FlushPendingOnlyWaits: bug 5]
        cpu.shoot_down([(space, &Request::Full(scope))].into_iter());
        space.overflow_flushed(overflow);
        // CPUs that had the space loaded have flushed it; the others will, because they compare its generation.
        space.deferred_flushed(deferred);
    }

    /// Makes every published deferred flush up to and including `through`.
    ///
    /// Makes later ones with them if that interrupts no further CPU.
    #[cold]
    fn flush_deferred_until(&self, through: u64, reason: Reason) {
        self.assert_may_wait();
        let (cpu, mut counted) = (self.this_cpu(), false);
        while cpu.flush_some(through, reason, &mut counted) {}
        self.ledger.advance_flushed_up_to();
    }
}

impl<H: Hardware> Cpu<'_, H> {
    /// Takes the next stamp of the flush clock and a ledger entry for it.
    ///
    /// If the ledger is full, makes old deferred flushes first. Returns `None` if there's no ledger, or if it stays
    /// full because other CPUs have filled it again, or have taken stamps that they haven't published yet.
    pub(crate) fn take_stamp(self) -> Option<u64> {
        let ledger = &self.ledger;
        // We try each ledger entry once: a CPU that stalls while it defers a flush blocks only its own entry.
        for _ in 0..ledger.capacity() {
            let stamp = ledger.tick();
            if ledger.take_entry(stamp) {
                return Some(stamp);
            }
            if let Some(older) = ledger.in_the_way_of(stamp, self.count) {
                self.flush_deferred_until(older, Reason::Background);
                if ledger.take_entry(stamp) {
                    return Some(stamp);
                }
            }
        }
        None
    }

    /// Flushes this CPU's loaded tag if many flushes were deferred since its last full flush.
    ///
    /// *Many* means a sixteenth of the ledger's entries. Call it on a CPU that is in the kernel anyway, for example at
    /// a page fault. It flushes so that later reuses don't have to wait for this CPU, if their frames were lazily
    /// unmapped before the call: see [the flush clock](crate::lazy#the-flush-clock). Takes two loads if there's nothing
    /// to do. It does nothing on machines that broadcast invalidations.
    ///
    /// No deferred flush is complete because of this call alone, since other CPUs may not have flushed. Never waits.
    #[inline]
    pub fn catch_up(self) {
        let far = (self.ledger.capacity() as u64).div_ceil(16);
        if far == 0 || !self.on().lazy_unmap || self.broadcasts().is_some() {
            return;
        }
        let flushed_at = self.here.state.flushed_at();
        if self.ledger.seen() >= flushed_at + far {
            self.flush_to_catch_up();
        }
    }

    #[cold]
    fn flush_to_catch_up(self) {
        let were_on = self.hw.mask_interrupts();
        if self.here.state.is_running() && self.here.state.loaded() != LoadedSpace::Nothing {
            self.count(Counter::CaughtUp, 1);
            self.flush_tag(self.here.slot(self.here.state.slot()));
        }
        self.hw.restore_interrupts(were_on);
    }

    /// Makes up to [`TOGETHER`] deferred flushes. Returns whether more of them may be left up to `through`.
    ///
    /// To make a deferred flush of kernel mappings, every CPU must flush its whole TLB. So if a user page is reused or
    /// its place filled again, we leave such flushes deferred.
    fn flush_some(self, through: u64, reason: Reason, counted: &mut bool) -> bool {
        // Where invalidations are broadcast, a CPU that loads a space keeps its entries and ignores its deferred
        // flushes. [mutant ReuseTrustsFlushes]
        let known = self.broadcasts().is_none();
        let with_kernel = matches!(reason, Reason::Background) || self.ledger.is_of_kernel(through);
        let (mut covered, mut behind) =
            (InlineQueue::<(u64, bool), TOGETHER>::new(), CpuSet::none());
        let (mut more, mut kernel, mut enough) = (false, false, false);
        for place in self.ledger.unflushed() {
            if place > through && (enough || covered.is_full()) {
                // No later ledger entry holds a deferred flush of `through` or earlier.
                break;
            }
            let deferred = self.ledger.deferred_at(place, self.count);
            // Not published yet. We still make those behind it. [mutant PaymentStopsAtGap]
            let Some(deferral) = &deferred else {
                continue;
            };
            let stamp = deferral.stamp;
            if deferral.kernel && !with_kernel {
                continue;
            }
            if covered.is_full() {
                more |= stamp <= through;
                continue;
            }
            let told = behind.is_empty() && !covered.is_empty() && known;
            if stamp > through && told {
                let mut late = CpuSet::none();
                self.add_behind(deferral, &mut late);
                if !late.is_empty() {
                    // Every CPU has flushed since the requested stamps, so later deferred flushes can wait.
                    enough = true;
                    continue;
                }
            } else {
                self.add_behind(deferral, &mut behind);
            }
            kernel |= deferral.kernel;
            covered.push((stamp, deferral.kernel));
        }
        if covered.is_empty() {
            return false;
        }
        if !core::mem::replace(counted, true) {
            let counter = match reason {
                Reason::Reuse => Counter::FlushedForReuse,
                Reason::Refill => Counter::FlushedForRefill,
                Reason::Background => Counter::FlushedInBackground,
            };
            self.count(counter, 1);
        }
        if behind.is_empty() && known {
            // Every CPU has flushed since, for other reasons.
        } else if self.broadcasts().is_some() {
            self.broadcast_everything(kernel);
        } else {
            // We flush these CPUs now, even for kernel mappings: one of them may be here because of a user space, which
            // must not wait for its next kernel entry. [mutant PaymentLeftToEntry]
            self.flush_whole(&behind, Scope::Leaf, kernel);
        }
        for &(stamp, kernel) in covered.as_slice() {
            self.ledger.mark_flushed(stamp, kernel);
        }
        more
    }

    /// Adds to `behind` each CPU that may hold a translation that the deferred flush covers and hasn't flushed since
    /// its stamp.
    fn add_behind(self, deferral: &Deferral, behind: &mut CpuSet) {
        let concern = match deferral.kernel {
            true => FlushReason::KernelDeferral(deferral.stamp),
            false => FlushReason::Deferral(deferral.stamp),
        };
        for cpu in deferral.cpus.iter() {
            let state = &self.cpu(cpu).state;
            match state.must_be_asked(concern) {
                Decision::Ask if deferral.kernel && state.leave_to_entry(Scope::Leaf) => {
                    self.count(Counter::SkippedLazy, 1);
                }
                Decision::Ask => behind.insert(cpu),
                Decision::Flushed => self.count(Counter::FoundFlushed, 1),
                Decision::Lazy | Decision::Detached => {}
            }
        }
    }
}

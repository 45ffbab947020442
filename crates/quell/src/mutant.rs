//! Known mistakes, made on purpose by the tests.
//!
//! A test that passes with the mechanism taken out proves nothing. So each fence, flush, wait,
//! generation bump, debt check and guard of the engine can be left out: at that line the engine
//! asks [`Hardware::mutant`](crate::Hardware::mutant), which is a constant `false` on every real
//! machine, so that the question and the mistake are compiled away. The adversary of
//! `quell-adversary` answers `true` for one mutant at a time and must then find an interleaving that
//! breaks the contract.

/// Declares the mutants with their names and the one-line account of the mistake.
macro_rules! mutants {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// One known mistake.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u16)]
        pub enum Mutant { $($(#[doc = $doc])+ $name,)* }

        impl Mutant {
            /// Every mutant.
            pub const ALL: &'static [Mutant] = &[$(Mutant::$name,)*];
            /// The mutant's name, as it is written in the source.
            pub const fn name(self) -> &'static str {
                match self { $(Mutant::$name => stringify!($name),)* }
            }
            /// What the mutant does wrong.
            pub const fn mistake(self) -> &'static str {
                match self { $(Mutant::$name => concat!($($doc,)+),)* }
            }
        }
    };
}

mutants! {
    // Shootdown.
    /// The initiator does not invalidate its own translations.
    SkipLocalFlush,
    /// The flush takes no generation, so CPUs that load the space later see nothing to catch up with.
    SkipGenerationBump,
    /// No request is posted to the targets.
    SkipPost,
    /// Requests are posted but no interrupt is sent.
    SkipInterrupt,
    /// The initiator does not wait for its targets.
    SkipWait,
    /// The handler acknowledges without flushing.
    HandlerSkipsFlush,
    /// The handler says "flushed" before it has flushed.
    AckBeforeFlush,
    /// A receipt is taken for enough although page-table pages were freed.
    EarlyAckForTables,
    /// Page-table pages were freed, the flush leaves the walker caches alone (family d).
    TablesFlushedAsLeaf,
    /// Lazy CPUs are left out although page-table pages were freed (bug 10).
    LazySkippedForTables,
    /// A second request overwrites the pending one instead of merging with it (bug 33).
    MergeOverwrites,
    /// The handler trusts a request that an initiator is still writing.
    TakeIgnoresLock,
    /// A target that missed a request flushes only what the next one says.
    GapNotEscalated,
    /// A spurious interrupt acknowledges a request that is yet to come (bug 32).
    SpuriousAcknowledges,
    /// The last page of a range is not invalidated (bugs 17, 36).
    RangeLosesTail,
    /// A waiter with interrupts off does not serve its own inbox (C7).
    WaiterServesNobody,
    /// A flush is preempted by another between a post and its interrupt (C7).
    PostingPreempted,
    /// A flush that preempts another writes its request over one that targets have yet to read (C1).
    OutboxOverwritten,
    /// What a CPU has loaded is looked at before nothing can come in between any more (C1).
    LoadedSpaceStale,
    /// An initiator waits for what was counted after the target had gone offline (C7).
    WaitsForClosedInbox,
    /// NMI handlers may touch user memory between receipt and flush.
    NmiGuardAlwaysAllows,
    /// The acknowledgement is stored relaxed.
    RelaxedDone,
    // CPUs that come and go.
    /// A CPU decides that it is current before it can be seen to run the space (bug 8).
    SwitchPublishesLate,
    /// A space is loaded with its entries kept although it was flushed meanwhile.
    SwitchIgnoresGeneration,
    /// A space is loaded with its entries kept although it owes a flush.
    SwitchIgnoresDebt,
    /// A space is loaded with its entries kept although a batch has changed it and not flushed yet.
    SwitchIgnoresBatch,
    /// A lazy CPU goes on with its space without looking what it missed.
    LazyResumesUnchecked,
    /// A lazy CPU that comes back lets NMI handlers at user memory before it has caught up (C1).
    ResumeLetsNmisIn,
    /// A lazy CPU declares itself running with a relaxed store (bug 34).
    RelaxedLeaveLazy,
    /// A CPU comes online with whatever its TLB holds.
    OnlineSkipsFlush,
    /// A CPU goes offline without answering what is in its inbox (C7).
    OfflineForgetsInbox,
    /// A dying space's root is freed under CPUs that hold it lazily (bug 25).
    RetireSkipsEviction,
    // Tags.
    /// A tag is taken over from another space without a flush (C5).
    TagTakenUnflushed,
    /// A tag rollover does not make CPUs flush.
    RolloverSkipsFlush,
    /// A tag rollover deals out tags that CPUs are running on.
    RolloverForgetsReserved,
    /// A CPU walks under a new tag before others can see it: invalidations miss it (bug 16).
    TagWalkedBeforeSeen,
    // Broadcast invalidation.
    /// The broadcast is sent before the table stores are visible to all walkers (bug 16).
    BroadcastSkipsFence,
    /// Where entries have no tags, a broadcast is sent for none (C1).
    UntaggedUnflushed,
    /// Ranges are broadcast, but a whole tag is invalidated on the own CPU alone (bug 35).
    WholeTagStaysLocal,
    /// The batch ends without the completion barrier.
    SkipBarrier,
    /// A second actor waits for its own barrier instead of sending the invalidation again (bug 5).
    SettleOnlyWaits,
    // Batches and second actors.
    /// A batch gives its frames out unflushed (bug 30).
    FinishSkipsFlush,
    /// A batch does not tell second actors that it owes a flush (bug 3).
    DebtNotRecorded,
    /// So many batches are outstanding that their number runs into the generation (C1, C3).
    BatchesCountedWithoutEnd,
    /// A second actor ignores that a flush is owed (bugs 3, 6, 19).
    SettleSkipped,
    // Lazy unmap.
    /// A frame gets a new owner although its flush is owed (L4).
    ClaimSkipsDebt,
    /// A payment stops at a debt that is not published yet, and passes for one of all the debts behind it (C4).
    PaymentStopsAtGap,
    /// Where invalidations are broadcast, a claim relies on who has flushed since.
    ClaimTrustsFlushes,
    /// An entry or a slot is filled again although a flush is owed (L1, L2, L3).
    RefillSkipsDebt,
    /// A frame is taken back although somebody has claimed it.
    RescueUnchecked,
    /// The flush clock is read after the flush instead of before it.
    ClockReadAfterFlush,
    /// Clearing leaves out the last page of an extent (C8).
    ZeroSkipsTail,
    /// Clearing leaves out the faulting page and its neighbours (C8).
    ZeroSkipsFaultingPage,
    /// The faulting page is cleared first, so that it is cold when the program reads it (S1).
    ZeroFaultingPageFirst,
    /// A piece may be longer than the cap (S1).
    ZeroIgnoresCap,
    /// There is no preemption point between pieces (S1).
    ZeroHoldsCpu,
    /// The pool takes frames in without clearing them (C8).
    PoolHandsOutDirty,
    /// The pool is filled without regard to the budget of bandwidth.
    PoolIgnoresBudget,
    // The memory manager.
    /// A frame that was unmapped is released before the flush (bug 30).
    VmFreesBeforeFlush,
    /// An entry leaves the reverse map before the flush (bugs 1, 7).
    VmUnlinksBeforeFlush,
    /// A table page is freed before the flush (bugs 10, 11).
    VmFreesTableBeforeFlush,
    /// A table page is freed behind a flush of leaf entries alone (family d).
    VmTableFlushLeafOnly,
    /// Memory is handed out as zeroed without zeroing it (C8).
    VmSkipsZeroing,
    /// A page that was written is still taken for zeros when it is freed (C8).
    VmKeepsZeroFlag,
    /// A marker is overwritten or dropped without the flush that is owed behind it (L1).
    VmIgnoresMarker,
    /// A page-cache slot that was emptied lazily is filled with another frame (L2, L3).
    VmRefillsOwedSlot,
    /// An entry that was emptied lazily is written again with another frame, the debt unpaid (L1).
    VmRewritesOwedEntry,
    /// A page that was moved lazily is written while its old frame may still be read (L2, L3).
    VmWritesShadowedPage,
    /// A dirty page is taken away lazily (L3).
    VmOwesDirtyPages,
    /// An unmap finds entries cleared by somebody else and does not settle (bugs 6, 19).
    VmUnmapsUnsettled,
    /// A discard finds entries cleared by somebody else and does not settle (bugs 4, 6).
    VmDiscardsUnsettled,
    /// A protect finds entries cleared by somebody else and does not settle (bug 3).
    VmProtectsUnsettled,
    /// A remap finds entries cleared by somebody else and does not settle (family a).
    VmRemapsUnsettled,
    /// A remap moves an entry while somebody who walks the reverse map looks for it (C3).
    VmRemapsUnlocked,
    /// Truncation finds a mapping cleared by somebody else and frees the page without settling (bug 1).
    VmTruncatesUnsettled,
    /// Writeback finds a mapping cleared by somebody else and cleans the page without settling (bug 22).
    VmCleansUnsettled,
    /// Reclaim finds a mapping cleared by somebody else and takes the page without settling (family a).
    VmReclaimsUnsettled,
    /// Migration finds a mapping cleared by somebody else and copies the page without settling (family a).
    VmMigratesUnsettled,
    /// A fault copies a page whose write protection may not have been flushed (bug 21).
    VmCopiesUnsettled,
    /// A fork makes its child known before its write protection was flushed (bug 21).
    VmForkReturnsUnflushed,
    /// A copied page is mapped before the old one was flushed (C4).
    VmMapsCopyBeforeFlush,
    /// Writeback captures a page before its write protection was flushed (bug 22).
    VmCleansBeforeFlush,
    /// Reclaim writes pages out before their entries were flushed (C2).
    VmWritesOutBeforeFlush,
    /// Migration copies pages before their entries were flushed (C2).
    VmMigratesBeforeFlush,
    /// Collapse copies pages before their entries were flushed (C2).
    VmCollapseCopiesBeforeFlush,
    /// A large page is split while reclaim or migration take a reference to it, which is forgotten (C1).
    VmSplitsUnlocked,
    /// A fault splits a large page that it holds, and waits for itself (C7).
    VmSplitsHeldBlock,
}

/// The rules of another crate, kept as a machine keeps them: not if it makes the mutant of that name.
#[derive(Clone, Copy, Debug)]
pub struct KeptBy<'a, H>(pub &'a H);

impl<H: crate::Hardware> crate::Rules for KeptBy<'_, H> {
    #[inline(always)]
    fn keeps(&self, rule: &'static crate::Rule) -> bool {
        let makes = |&mutant: &Mutant| self.0.mutant(mutant) && mutant.name() == rule.name;
        !Mutant::ALL.iter().any(makes)
    }
}

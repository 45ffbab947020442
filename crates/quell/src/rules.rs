//! The rules that must never be forgotten.
//!
//! A protocol consists of small decisions: wait here, look again there, leave no CPU out. Those that no
//! type and no compiler keeps stand in this file alone, each as one line with the clause of the
//! contract that it keeps and the reason; the modules of the protocol call them by name.
//!
//! # Why they are gathered
//!
//! A test that passes with a rule taken out has not tested it. So each rule also says what an engine without
//! it does instead: its *mutant*. An engine asks its [`Rules`] which of the two it does. [`AllRules`], the
//! default, is a constant "keep" and compiled away; a machine under test has [`Rules`] that leave one out,
//! and a search must then find an interleaving that breaks the contract.
//!
//! Two other kinds of mistakes need no rule. A wrapper around [`Hardware`](crate::Hardware) makes those at the border to the machine
//! (it sends no interrupt, or leaves a barrier out); the machine's words make orderings too weak.
//! `docs/mutants.md` lists all three.
//!
//! A number (`bug 8`) is that of a bug which another system shipped, `L1` to `L4` are the programs for which Linux
//! refused lazy unmap: `docs/mutants.md` has a table of them, too.

mod form;

pub use form::{AllRules, Rule, Rules};

use crate::hardware::Scope;

crate::rules! {
    /// The engine's rules.
    pub(crate) trait EngineRules, mod list;

    // The flush.

    /// An initiator may hold the translation that it takes away, like every other CPU.
    "C1" fn initiator_flushes() -> bool { true }
        or SkipLocalFlush { false } "The initiator does not invalidate its own translations.";

    /// A CPU that loads the space later compares generations: each flush takes one, after the tables were written
    /// and before the CPUs that have the space loaded are looked up.
    "C1" fn generation_of_flush(next: impl FnOnce() -> u64, last: impl FnOnce() -> u64) -> u64 { next() }
        or SkipGenerationBump { last() } "The flush takes no generation, so CPUs that load the space later see nothing to catch up with.";

    /// A batch that finds its own CPU alone in the space takes its generation and ends its debt in one step: both
    /// must be due.
    "C1" fn may_end_alone(alone: bool) -> bool { alone }
        also SkipGenerationBump { false }
        also DebtNotRecorded { false };

    /// A CPU that has the space loaded and may use it is told.
    "C1" fn target_is_told() -> bool { true }
        or SkipPost { false } "No request is posted to the targets.";

    /// A CPU that has a root loaded lazily uses no translation, but its walker may follow the root at any time: it is
    /// asked when tables are freed (bugs 10, 25).
    "C6" fn lazy_cpu_is_asked(tables: bool) -> bool { tables }
        or LazySkippedForTables { false } "Lazy CPUs are left out although page-table pages were freed (bug 10).";

    /// Nothing runs on a CPU between a post and its interrupt: a flush there would find its request merged with
    /// one that no interrupt was sent for, and wait for ever.
    "C7" fn posting_is_masked() -> bool { true }
        or PostingPreempted { false } "A flush is preempted by another between a post and its interrupt (C7).";

    /// A flush that preempts one that waits leaves its outbox alone: targets have yet to read it.
    "C1" fn outbox_is_free(free: bool) -> bool { free }
        or OutboxOverwritten { true } "A flush that preempts another writes its request over one that targets have yet to read (C1).";

    /// A CPU looks at what it has loaded when nothing can come between the look and the flush for it.
    "C1" fn mask_then_look<M, L>(mask: impl FnOnce() -> M, look: impl FnOnce() -> L) -> (M, L) { let mask = mask(); (mask, look()) }
        or LoadedSpaceStale { let look = look(); (mask(), look) } "What a CPU has loaded is looked at before nothing can come in between any more (C1).";

    /// The flush is over when every target has acknowledged.
    "C1" fn initiator_waits() -> bool { true }
        or SkipWait { false } "The initiator does not wait for its targets.";

    /// A target that has received a request may still walk tables before it flushes.
    "C6" fn receipt_is_enough(scope: Scope) -> bool { scope == Scope::Leaf }
        or EarlyAckForTables { true } "A receipt is taken for enough although page-table pages were freed.";

    /// Two CPUs with interrupts off that shoot at each other both get on.
    "C7" fn waiter_serves(mail: bool) -> bool { mail }
        or WaiterServesNobody { false } "A waiter with interrupts off does not serve its own inbox (C7).";

    /// A CPU that spins with interrupts off, for a lock that a flushing CPU holds, serves its inbox.
    "C7" fn poll_serves(mail: bool) -> bool { mail }
        or PollServesNobody { false } "A CPU that spins with interrupts off looks at nothing but the lock (C7).";

    /// A post that is counted into an inbox after it has closed is answered when its CPU comes back, perhaps
    /// never.
    "C7" fn is_awaited(closed: bool) -> bool { !closed }
        or WaitsForClosedInbox { true } "An initiator waits for what was counted after the target had gone offline (C7).";

    /// An initiator that goes on while its flush does hears of each target that has answered.
    "C7" fn starter_is_told(started: bool) -> bool { started }
        or StarterNotTold { false } "Targets do not say that they have answered a flush that was started and not waited for (C7).";

    // The inbox.

    /// A request that finds another one pending joins it.
    "C1" fn may_overwrite(idle: bool) -> bool { idle }
        or MergeOverwrites { true } "A second request overwrites the pending one instead of merging with it (bug 33).";

    /// Words that an initiator writes meanwhile say nothing.
    "C1" fn words_may_be_read(quiet: bool) -> bool { quiet }
        or TakeIgnoresLock { true } "The handler trusts a request that an initiator is still writing.";

    /// Words that were read count if the inbox's state is the same after as before.
    "C1" fn words_are_unchanged(look: impl FnOnce() -> bool) -> bool { look() }
        also TakeIgnoresLock { true };

    /// Only posts are acknowledged: "up to number n", never one more or less.
    "C1" fn unanswered(posted: u64, done: u64) -> Option<u64> { (posted != done).then_some(posted) }
        or SpuriousAcknowledges { (posted >= done).then_some(posted + u64::from(posted == done)) } "A spurious interrupt acknowledges a request that is yet to come (bug 32).";

    /// An initiator that finds a request done relies on the flush.
    "C1" fn flush_then_acknowledge(flush: impl FnOnce(), acknowledge: impl FnOnce()) { flush(); acknowledge(); }
        or HandlerSkipsFlush { acknowledge(); } "The handler acknowledges without flushing."
        or AckBeforeFlush { acknowledge(); flush(); } "The handler says \"flushed\" before it has flushed.";

    /// A request that is not the next step leaves a gap, which only a flush of the whole tag closes.
    "C1" fn is_next(next: bool) -> bool { next }
        or GapNotEscalated { true } "A target that missed a request flushes only what the next one says.";

    /// NMI handlers and probes stay away from user memory while a flush is acknowledged and not done, and during a
    /// switch.
    "C1" fn nmi_may_access(safe: bool) -> bool { safe }
        or NmiGuardAlwaysAllows { true } "NMI handlers may touch user memory between receipt and flush.";

    // CPUs that switch, come and go.

    /// A CPU that has looked what it must flush is known to run the space: otherwise a flush in between
    /// misses it (bug 8).
    "C1" fn publish_then_look<T>(publish: impl FnOnce(), look: impl FnOnce() -> T) -> T { publish(); look() }
        or SwitchPublishesLate { let seen = look(); publish(); seen } "A CPU decides that it is current before it can be seen to run the space (bug 8).";

    /// Entries under a tag that was not loaded are as old as the generation that this CPU has caught up with.
    "C1" fn is_current(current: bool) -> bool { current }
        or SwitchIgnoresGeneration { true } "A space is loaded with its entries kept although it was flushed meanwhile.";

    /// A batch that is outstanding will not tell a CPU that loads the space after the batch has looked.
    "C3" fn nothing_is_outstanding(batches: u64) -> bool { batches == 0 }
        or SwitchIgnoresBatch { true } "A space is loaded with its entries kept although a batch has changed it and not flushed yet.";

    /// A CPU flushes what the space owes until reuse, by its stamp, before it uses the entries again.
    "C1" fn debt_of(look: impl FnOnce() -> u64) -> u64 { look() }
        or SwitchIgnoresDebt { 0 } "A space is loaded with its entries kept although it owes a flush.";

    /// A tag that is taken over from another space is flushed as it is loaded.
    "C5" fn may_keep_entries(keep: bool, stranger: bool) -> bool { keep }
        or TagTakenUnflushed { keep || stranger } "A tag is taken over from another space without a flush (C5).";

    /// A lazy CPU was not told what changed.
    "C1" fn resume_catches_up(missed: bool) -> bool { missed }
        or LazyResumesUnchecked { false } "A lazy CPU goes on with its space without looking what it missed.";

    /// NMI handlers stay away from user memory until a CPU that comes back has caught up.
    "C1" fn nmis_wait_for_resume(missed: bool) -> bool { missed }
        or ResumeLetsNmisIn { false } "A lazy CPU that comes back lets NMI handlers at user memory before it has caught up (C1).";

    /// Initiators wait for what they posted before the CPU went offline.
    "C7" fn offline_answers() -> bool { true }
        or OfflineForgetsInbox { false } "A CPU goes offline without answering what is in its inbox (C7).";

    /// A root is freed when no CPU has it loaded, lazily or not (bug 25).
    "C6" fn retired_root_is_left() -> bool { true }
        or RetireSkipsEviction { false } "A dying space's root is freed under CPUs that hold it lazily (bug 25).";

    /// A CPU that has answered and has another root loaded will not load a dying one again; no other CPU takes it out of
    /// the space's set if it went offline without naming the space.
    "C7" fn answered_cpu_is_out(elsewhere: bool) -> bool { elsewhere }
        or RetireAsksAgain { false } "A dying space asks the same CPU again and again, which has left it and runs another (C7).";

    /// A CPU may answer before it has left a dying root: its thread is on its way out, and switches later.
    "C6" fn is_elsewhere(elsewhere: bool) -> bool { elsewhere }
        or RetireTrustsAnswer { true } "A CPU that has answered is taken for gone from a dying root that it still has loaded.";

    // The kernel's mappings.

    /// Every CPU that is online uses the kernel's mappings: one that is idle, or has left its root, does too.
    "C1" fn kernel_is_used_everywhere() -> bool { true }
        or KernelSkipsIdle { false } "A CPU that is idle or has left its root is not told of a change of the kernel's mappings.";

    /// A target that has received a request is in the kernel, and its NMI handlers ask no CPU before they use
    /// the kernel's mappings: an initiator waits until it has flushed.
    "C1" fn kernel_is_waited_for(kernel: bool) -> bool { kernel }
        or KernelReceiptIsEnough { false } "A receipt is taken for enough although the kernel's mappings changed.";

    /// A request that merges with others into "everything" says whether the kernel's mappings are meant.
    "C1" fn kernel_is_marked(kernel: bool) -> bool { kernel }
        or KernelLostInMerge { false } "A request for the kernel's mappings that meets another one becomes a flush of the user space alone.";

    /// Where kernel entries are not global, the CPU has them under every tag that it keeps.
    "C1" fn other_tags_go(tagged: bool) -> bool { tagged }
        or KernelKeptUnderTags { false } "Entries of the kernel that are not global stay under the tags that are not loaded.";

    /// Walker caches are tagged, above global entries too: a table of the kernel's half that goes is in them under every
    /// tag that the CPU keeps.
    "C6" fn tables_are_tagged(tables: bool) -> bool { tables }
        or KernelTablesKeptUnderTags { false } "A table of the kernel's half whose entries are global is freed while walker caches lead to it under tags that are not loaded.";

    /// A CPU that comes online has the kernel's mappings loaded all the time: it takes requests from before it
    /// flushes.
    "C1" fn open_then_flush(open: impl FnOnce(), flush: impl FnOnce()) { open(); flush(); }
        or KernelFlushedBeforeOnline { flush(); open(); } "A CPU that comes online flushes before it takes requests: one in between is lost.";

    /// What is owed of the kernel's mappings is paid by a flush that reaches them: a flush of a user's tag is none.
    "C1" fn kernel_debt_is_its_own() -> bool { true }
        or KernelDebtPaidByTag { false } "A flush of the loaded tag passes for one of the kernel's mappings.";

    /// A CPU executes what it has fetched, whatever becomes of the translation that it was fetched through.
    "C4" fn text_is_synchronized() -> bool { true }
        or TextKeptFetched { false } "Other CPUs are not told that the kernel's text has changed: they execute what they have fetched.";

    // Programs that are not disturbed.

    /// A CPU that runs a program uses no mapping of the kernel before it enters the kernel; but its walker may roam in the
    /// kernel's half at any time: it is interrupted when tables of that are freed.
    "C6" fn program_is_left_alone(scope: Scope) -> bool { scope == Scope::Leaf }
        or ProgramLeftForTables { true } "A CPU that runs a program is left alone although page tables of the kernel's half were freed.";

    /// What was left to a CPU's entry into the kernel is flushed there, before a mapping of the kernel is used.
    "C1" fn entry_flushes(owing: bool) -> bool { owing }
        or EntrySkipsFlush { false } "A CPU enters the kernel and does not flush what was left to its entry.";

    /// An NMI handler in the middle of an entry finds the kernel's mappings as they were: it flushes too.
    "C1" fn nested_entry_flushes(nested: bool) -> bool { nested }
        or NestedEntryUnflushed { false } "An NMI in the middle of an entry into the kernel relies on a flush that is yet to come.";

    /// A CPU that must flush for a user's debt is interrupted, also if a debt of the kernel's mappings is paid with it: the
    /// user's translations it uses.
    "C1" fn payment_is_left_to_entry(kernel: bool) -> bool { false }
        or PaymentLeftToEntry { kernel } "A payment for the kernel's mappings and for a user's leaves the user's to the CPU's entry into the kernel, too.";

    /// One stamp is of the kernel's mappings or of users': what is owed of the kernel's is left to the entry of a CPU that
    /// runs a program, what is owed of its space is not.
    "C1" fn may_be_owed(both: bool) -> bool { !both }
        or MixedDebtOwed { true } "One debt is of the kernel's mappings and of a user's, and is left to the CPU's entry into the kernel.";

    // Tags that mean the same everywhere, and broadcasts.

    /// A CPU drops what it holds under the last tag generation before it loads a tag of the next.
    "C5" fn rollover_is_flushed(pending: bool) -> bool { pending }
        or RolloverSkipsFlush { false } "A tag rollover does not make CPUs flush.";

    /// A tag that a CPU runs on while tags run out stays its space's.
    "C5" fn reserved_tag_is_kept(reserved: bool) -> bool { reserved }
        or RolloverForgetsReserved { false } "A tag rollover deals out tags that CPUs are running on.";

    /// A space that a CPU is just leaving when tags run out is under its old tag there until the new root is loaded.
    "C6" fn left_root_is_awaited(leaving: bool) -> bool { leaving }
        or RolloverForgetsLeaving { false } "Tags run out while a CPU changes its root: a table of the old one is freed under a tag that this CPU does not have.";

    /// An initiator sees a tag that a CPU walks under, or the CPU sees the entry that the initiator has cleared: two
    /// fences, this one and the next (bug 16).
    "C1" fn fence_before_walk(fence: impl FnOnce()) { fence(); }
        or TagWalkedBeforeSeen {} "A CPU walks under a new tag before others can see it: invalidations miss it (bug 16).";

    /// The table stores are visible to all walkers before the tag is read that is broadcast.
    "C1" fn fence_before_tag(fence: impl FnOnce()) { fence(); }
        or BroadcastSkipsFence {} "The broadcast is sent before the table stores are visible to all walkers (bug 16).";

    /// Where entries have no tags, there is nothing to look up, and something to flush.
    "C1" fn untagged_is_flushed(untagged: bool) -> bool { untagged }
        or UntaggedUnflushed { false } "Where entries have no tags, a broadcast is sent for none (C1).";

    /// A wait for completion completes what its own CPU has sent: a second actor sends the invalidation again
    /// (bug 5).
    "C3" fn own_barrier_is_enough(broadcasts: bool) -> bool { false }
        or SettleOnlyWaits { broadcasts } "A second actor waits for its own barrier instead of sending the invalidation again (bug 5).";

    // Batches and second actors.

    /// A batch gives its frames out behind the flush (bug 30).
    "C1" fn finish_flushes() -> bool { true }
        or FinishSkipsFlush { false } "A batch gives its frames out unflushed (bug 30).";

    /// A batch tells second actors that it owes a flush, before the lock is dropped under which it changed an
    /// entry (bug 3).
    "C3" fn batch_is_counted() -> bool { true }
        or DebtNotRecorded { false } "A batch does not tell second actors that it owes a flush (bug 3).";

    /// So many batches of one space are counted at once: more would run into its generation.
    "C1, C3" fn most_batches(most: u64) -> u64 { most }
        or BatchesCountedWithoutEnd { u64::MAX } "So many batches are outstanding that their number runs into the generation (C1, C3).";

    /// A batch flushes what it had no place for, too.
    "C1" fn unplaced_is_flushed() -> bool { true }
        or UnplacedUnflushed { false } "A batch gives its frames out with what it had no place for unflushed (C1).";

    /// Where tables were freed, lazy CPUs are asked and receipts are not enough, also for what a batch had no place for.
    "C6" fn scope_of_unplaced(scope: Scope) -> Scope { scope }
        or UnplacedTablesAreLeaves { Scope::Leaf } "A batch forgets that tables were freed of a space that it had no place for (C6).";

    /// Second actors are told of a change that no batch counts.
    "C3" fn unplaced_is_owed() -> bool { true }
        or UnplacedNotOwed { false } "Second actors are not told of a change that no batch counts (C3).";

    /// What is reported while a second actor flushes is not flushed by that.
    "C3" fn read_unplaced_then_flush(read: impl FnOnce() -> u64, flush: impl FnOnce()) -> u64 { let unplaced = read(); flush(); unplaced }
        or UnplacedReadAfterFlush { flush(); read() } "A second actor calls paid what was reported while it flushed (C3).";

    /// A second actor that finds an entry cleared and relies on it pays what is outstanding (bugs 3, 6, 19).
    "C3" fn second_actor_settles() -> bool { true }
        or SettleSkipped { false } "A second actor ignores that a flush is owed (bugs 3, 6, 19).";

    // Lazy unmap.

    /// A frame gets a new owner after its debt is paid (L4).
    "C1" fn claim_pays() -> bool { true }
        or ClaimSkipsDebt { false } "A frame gets a new owner although its flush is owed (L4).";

    /// A payment covers every debt that is published, past one that is not yet.
    "C4" fn payment_passes_gap() -> bool { true }
        or PaymentStopsAtGap { false } "A payment stops at a debt that is not published yet, and passes for one of all the debts behind it (C4).";

    /// Where invalidations are broadcast, loads keep entries and look at no debt: no CPU is known to have flushed.
    "C1" fn flushes_are_known(broadcasts: bool) -> bool { !broadcasts }
        or ClaimTrustsFlushes { true } "Where invalidations are broadcast, a claim relies on the CPUs that have flushed since.";

    /// An entry or a page-cache slot is filled again after the debt behind it is paid (L1, L2, L3).
    "C4" fn refill_pays() -> bool { true }
        or RefillSkipsDebt { false } "An entry or a slot is filled again although a flush is owed (L1, L2, L3).";

    /// A frame belongs to the one that takes it first: to its page again, or to a claimer.
    "C1" fn rescue_is_won(won: bool) -> bool { won }
        or RescueUnchecked { true } "A frame is taken back although another CPU has claimed it.";

    /// A debt that is taken while a flush runs is not paid by it.
    "C1" fn read_clock_then_flush(clock: impl FnOnce() -> u64, flush: impl FnOnce()) -> u64 { let now = clock(); flush(); now }
        or ClockReadAfterFlush { flush(); clock() } "The flush clock is read after the flush instead of before it.";
}

/// Every rule of the engine, by the names of their mutants.
pub use list::*;

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
//! Two other kinds of mistakes need no rule. A wrapper around [`Hardware`](crate::Hardware) makes those at the border
//! to the machine (it sends no interrupt, or leaves a barrier out); the machine's words make orderings too weak.
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

    /// A batch that ends alone flushes first: a second actor that sees its debt gone relies on that, and on an NMI
    /// handler of this CPU no less than on its program.
    "C3" fn flush_then_end<T>(flush: impl FnOnce(), end: impl FnOnce() -> T) -> T { flush(); end() }
        or DebtEndsBeforeFlush { let ended = end(); flush(); ended } "A batch that ends alone takes its debt back and flushes after that.";

    /// A CPU that has a root loaded lazily uses no translation, but its walker may follow the root at any time: an
    /// initiator that freed tables asks it (bugs 10, 25).
    "C6" fn lazy_cpu_is_asked(tables: bool) -> bool { tables }
        or LazySkippedForTables { false } "Lazy CPUs are left out although page-table pages were freed (bug 10).";

    /// An initiator masks interrupts between a post and its interrupt: a flush that preempted it there would find its
    /// request merged with one that no interrupt was sent for, and wait for ever.
    "C7" fn posting_is_masked() -> bool { true }
        or PostingPreempted { false } "A flush is preempted by another between a post and its interrupt (C7).";

    /// A flush that tasks share serves those that had changed their entries before it began: a CPU may have flushed and
    /// walked the tables again before a later one.
    "C1" fn flush_serves(before: u64, after: impl FnOnce() -> u64) -> u64 { before }
        or JoinedLate { after() } "A task shares a flush that began before it had changed its entries.";

    /// A task that shares a flush waits until that is over.
    "C1" fn joined_flush_is_over(done: bool, begun: bool) -> bool { done }
        or JoinerSkipsWait { done || begun } "A task that shares a flush returns while it is being made.";

    /// A flush that preempts one that waits leaves its outbox alone: targets have yet to read it.
    "C1" fn outbox_is_free(free: bool) -> bool { free }
        or OutboxOverwritten { true } "A flush that preempts another writes its request over one that targets have yet to read (C1).";

    /// A CPU masks interrupts before it looks at what it has loaded: a thread that preempts it between the look and the
    /// flush may load another space.
    "C1" fn mask_then_look<M, L>(mask: impl FnOnce() -> M, look: impl FnOnce() -> L) -> (M, L) { let mask = mask(); (mask, look()) }
        or LoadedSpaceStale { let look = look(); (mask(), look) } "A CPU looks at what it has loaded before it masks interrupts, so a thread that preempts it may load another space (C1).";

    /// A hypervisor that flushes a virtual CPU before it runs that again takes neither the root away nor what was
    /// fetched: an initiator that is about those interrupts the CPU.
    "C6" fn reentry_flush_is_enough(translations: bool) -> bool { translations }
        or RetirementLeftToReentry { true } "A virtual CPU that does not run is left alone although the root dies \
            that it has loaded.";

    /// The flush is over when every target has acknowledged.
    "C1" fn initiator_waits() -> bool { true }
        or SkipWait { false } "The initiator does not wait for its targets.";

    /// A target that has received a request may still walk tables before it flushes.
    "C6" fn receipt_is_enough(scope: Scope) -> bool { scope == Scope::Leaf }
        or EarlyAckForTables { true } "A receipt is taken for enough although page-table pages were freed.";

    /// Nor is a receipt enough for a frame that bears no speculative load.
    "C1" fn quiet_after<T>(flushed: T, received: T) -> T { flushed }
        or QuiesceTakesReceipt { received } "A frame that bears no speculation goes on when every CPU has received what it is to flush.";

    /// An initiator that waits serves its own inbox: otherwise two CPUs with interrupts off, each the target of the
    /// other, wait for ever.
    "C7" fn waiter_serves(request: bool) -> bool { request }
        or WaiterSkipsInbox { false } "A waiter with interrupts off does not serve its own inbox (C7).";

    /// A CPU that spins with interrupts off, for a lock that a flushing CPU holds, serves its inbox.
    "C7" fn poll_serves(request: bool) -> bool { request }
        or PollSkipsInbox { false } "A CPU that spins with interrupts off looks at nothing but the lock (C7).";

    /// An initiator does not wait for a post that it counted into a closed inbox: the target answers it when it comes
    /// back, perhaps never.
    "C7" fn is_awaited(closed: bool) -> bool { !closed }
        or WaitsForClosedInbox { true } "An initiator waits for what was counted after the target had gone offline (C7).";

    /// A target tells the machine that it has answered as long as any flush is in flight: the initiator of that does
    /// not wait, and asks when it hears of an answer.
    "C7" fn starter_is_told(started: bool) -> bool { started }
        or StarterNotTold { false } "Targets do not say that they have answered a flush that was started and not waited for (C7).";

    // The inbox.

    /// An initiator that finds a request pending merges its own into that.
    "C1" fn may_overwrite(idle: bool) -> bool { idle }
        or MergeOverwrites { true } "A second request overwrites the pending one instead of merging with it (bug 33).";

    /// A target trusts no words that an initiator is still writing, and flushes everything instead.
    "C1" fn words_may_be_read(quiet: bool) -> bool { quiet }
        or TakeIgnoresLock { true } "The handler trusts a request that an initiator is still writing.";

    /// A target trusts the words that it has read if the inbox's state is the same after as before.
    "C1" fn words_are_unchanged(look: impl FnOnce() -> bool) -> bool { look() }
        also TakeIgnoresLock { true };

    /// A target acknowledges posts alone: "up to number n", never one more or less.
    "C1" fn unanswered(posted: u64, done: u64) -> Option<u64> { (posted != done).then_some(posted) }
        or SpuriousAcknowledges { (posted >= done).then_some(posted + u64::from(posted == done)) } "A spurious interrupt acknowledges a request that is yet to come (bug 32).";

    /// A target flushes before it says so: an initiator that finds a request done relies on the flush.
    "C1" fn flush_then_acknowledge(flush: impl FnOnce(), acknowledge: impl FnOnce()) { flush(); acknowledge(); }
        or HandlerSkipsFlush { acknowledge(); } "The handler acknowledges without flushing."
        or AckBeforeFlush { acknowledge(); flush(); } "The handler says \"flushed\" before it has flushed.";

    /// A target whose request is not the next step flushes the whole tag: nothing less closes the gap.
    "C1" fn is_next(next: bool) -> bool { next }
        or GapNotEscalated { true } "A target that missed a request flushes only what the next one says.";

    /// NMI handlers and probes stay away from user memory while a flush is acknowledged and not done, and during a
    /// switch.
    "C1" fn nmi_may_access(safe: bool) -> bool { safe }
        or NmiGuardAlwaysAllows { true } "NMI handlers may touch user memory between receipt and flush.";

    // CPUs that switch, come and go.

    /// A CPU says that it runs a space before it looks what it must flush: otherwise an initiator in between
    /// misses it (bug 8).
    "C1" fn publish_then_look<T>(publish: impl FnOnce(), look: impl FnOnce() -> T) -> T { publish(); look() }
        or SwitchPublishesLate { let seen = look(); publish(); seen } "A CPU decides that it is current before it can be seen to run the space (bug 8).";

    /// A CPU that loads a space keeps the entries of its tag only if it has caught up with the space's generation.
    "C1" fn is_current(current: bool) -> bool { current }
        or SwitchIgnoresGeneration { true } "A space is loaded with its entries kept although it was flushed meanwhile.";

    /// A CPU that loads a space of which a batch is outstanding flushes: the initiator may have looked already which
    /// CPUs have the space loaded, and will not ask this one.
    "C3" fn nothing_is_outstanding(batches: u64) -> bool { batches == 0 }
        or SwitchIgnoresBatch { true } "A space is loaded with its entries kept although a batch has changed it and not flushed yet.";

    /// A CPU that loads a space compares the stamp of the latest flush that the space owes until reuse, and flushes
    /// before it uses older entries again.
    "C1" fn debt_of(look: impl FnOnce() -> u64) -> u64 { look() }
        or SwitchIgnoresDebt { 0 } "A space is loaded with its entries kept although it owes a flush.";

    /// A CPU that takes a tag over from another space flushes it as it loads it.
    "C5" fn may_keep_entries(keep: bool, stranger: bool) -> bool { keep }
        or TagTakenUnflushed { keep || stranger } "A tag is taken over from another space without a flush (C5).";

    /// A lazy CPU that comes back looks what it has missed: initiators have left it out.
    "C1" fn resume_catches_up(missed: bool) -> bool { missed }
        or LazyResumesUnchecked { false } "A lazy CPU goes on with its space without looking what it missed.";

    /// What a CPU flushes may be filled again, and changed, before it has noted the flush: it notes the generation that it
    /// read before, and answers the request for a later one.
    "C1" fn generation_caught_up(before: u64, after: impl FnOnce() -> u64) -> u64 { before }
        or NotesLaterGeneration { after() } "A lazy CPU that comes back flushes, and notes the generation that it finds after that: it ignores a request that it has not answered.";

    /// A lazy CPU that is asked and leaves its root says that it has caught up only if it has flushed: with tags it
    /// finds its entries again.
    "C1" fn flush_what_is_kept(flush: impl FnOnce(), note: impl FnOnce()) { flush(); note(); }
        or LeavesCaughtUp { note(); } "A lazy CPU that leaves its root notes a flush that it has not made, and finds its entries again.";

    /// A lazy CPU that is asked flushes what it keeps while its root is loaded: an invalidation of its own reaches the tag
    /// that is loaded, and no other.
    "C1" fn catch_up_then_leave(catch_up: impl FnOnce(), leave: impl FnOnce()) { catch_up(); leave(); }
        or LeavesThenCatchesUp { leave(); catch_up(); } "A lazy CPU that is asked leaves its root, and flushes under a tag that is not loaded any more.";

    /// NMI handlers stay away from user memory until a CPU that comes back has caught up.
    "C1" fn nmis_wait_for_resume(missed: bool) -> bool { missed }
        or ResumeLetsNmisIn { false } "A lazy CPU that comes back lets NMI handlers at user memory before it has caught up (C1).";

    /// A CPU that goes offline answers what is in its inbox: initiators wait for that.
    "C7" fn offline_answers() -> bool { true }
        or OfflineForgetsInbox { false } "A CPU goes offline without answering what is in its inbox (C7).";

    /// The CPU that retires a space makes every other one leave its root, lazy ones included, before the embedder frees
    /// it (bug 25).
    "C6" fn retired_root_is_left() -> bool { true }
        or RetireSkipsEviction { false } "A dying space's root is freed under CPUs that hold it lazily (bug 25).";

    /// The CPU that retires a space takes one that has answered and has another root loaded out of the space's set: if
    /// that one went offline without naming the space, no other CPU does, and it will not load the dying root again.
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

    /// An initiator marks a request for the kernel's mappings: the target must know that these are meant, also if the
    /// request merges with others into "everything".
    "C1" fn kernel_is_marked(kernel: bool) -> bool { kernel }
        or KernelLostInMerge { false } "A request for the kernel's mappings that meets another one becomes a flush of the user space alone.";

    /// Where kernel entries are not global, the CPU has them under every tag that it keeps.
    "C1" fn other_tags_go(tagged: bool) -> bool { tagged }
        or KernelKeptUnderTags { false } "Entries of the kernel that are not global stay under the tags that are not loaded.";

    /// Walker caches are tagged, above global entries too: a CPU may have a freed table of the kernel's half in them
    /// under every tag that it keeps.
    "C6" fn tables_are_tagged(tables: bool) -> bool { tables }
        or KernelTablesKeptUnderTags { false } "A table of the kernel's half whose entries are global is freed while walker caches lead to it under tags that are not loaded.";

    /// A CPU that comes online has the kernel's mappings loaded all the time: it takes requests from before it
    /// flushes.
    "C1" fn open_then_flush(open: impl FnOnce(), flush: impl FnOnce()) { open(); flush(); }
        or KernelFlushedBeforeOnline { flush(); open(); } "A CPU that comes online flushes before it takes requests: one in between is lost.";

    /// A CPU pays a debt of the kernel's mappings by a flush that reaches them: a flush of a user's tag does not.
    "C1" fn kernel_debt_is_its_own() -> bool { true }
        or KernelDebtPaidByTag { false } "A flush of the loaded tag passes for one of the kernel's mappings.";

    /// A CPU executes what it has fetched, whatever becomes of the translation that it was fetched through.
    "C4" fn text_is_synchronized() -> bool { true }
        or TextKeptFetched { false } "Other CPUs are not told that the kernel's text has changed: they execute what they have fetched.";

    /// A request for text that meets one for the kernel's mappings in an inbox is answered with it.
    "C4" fn text_is_marked(text: bool, kernel: bool) -> bool { text }
        or TextLostInMerge { text && !kernel } "A request for text that meets one for the kernel's mappings becomes a flush of translations alone.";

    // Programs that are not disturbed.

    /// A CPU that runs a program uses no mapping of the kernel before it enters the kernel; but its walker may roam in
    /// the kernel's half at any time: an initiator that freed tables of that half interrupts it.
    "C6" fn program_is_left_alone(scope: Scope) -> bool { scope == Scope::Leaf }
        or ProgramLeftForTables { true } "A CPU that runs a program is left alone although page tables of the kernel's half were freed.";

    /// A CPU that enters the kernel flushes what initiators left to its entry, before it uses a mapping of the kernel.
    "C1" fn entry_flushes(owing: bool) -> bool { owing }
        or EntrySkipsFlush { false } "A CPU enters the kernel and does not flush what was left to its entry.";

    /// An NMI handler in the middle of an entry finds the kernel's mappings as they were: it flushes too.
    "C1" fn nested_entry_flushes(nested: bool) -> bool { nested }
        or NestedEntryUnflushed { false } "An NMI in the middle of an entry into the kernel relies on a flush that is yet to come.";

    /// A payer interrupts a CPU that must flush for a user's debt, also if it pays a debt of the kernel's mappings with
    /// it: the program on that CPU uses the user's translations.
    "C1" fn payment_is_left_to_entry(kernel: bool) -> bool { false }
        or PaymentLeftToEntry { kernel } "A payment for the kernel's mappings and for a user's leaves the user's to the CPU's entry into the kernel, too.";

    /// A debtor takes a stamp for mappings of the kernel or for users', never for both: a payer leaves the kernel's
    /// debts to the entry of a CPU that runs a program, and must not leave it the debts of its space.
    "C1" fn may_be_owed(both: bool) -> bool { !both }
        or MixedDebtOwed { true } "One debt is of the kernel's mappings and of a user's, and is left to the CPU's entry into the kernel.";

    // Tags that mean the same everywhere, and broadcasts.

    /// A CPU drops what it holds under the last tag generation before it loads a tag of the next.
    "C5" fn rollover_is_flushed(pending: bool) -> bool { pending }
        or RolloverSkipsFlush { false } "A tag rollover does not make CPUs flush.";

    /// The dealer leaves a space the tag that a CPU runs on while tags run out.
    "C5" fn reserved_tag_is_kept(reserved: bool) -> bool { reserved }
        or RolloverForgetsReserved { false } "A tag rollover deals out tags that CPUs are running on.";

    /// The dealer tells every CPU that runs on a tag by which word its space keeps that: when tags run out again, the
    /// space is known by it, wherever it still runs.
    "C1" fn cpu_keeps_tag(reserved: bool, first: bool) -> bool { reserved }
        also RolloverForgetsReserved { false }
        or RolloverTellsOneAlone { reserved && first } "Of the CPUs that run a space as tags run out one alone is told \
            that it keeps its tag: the next time, the space gets another under the others.";

    /// The dealer gives a space no other tag while a CPU is just leaving it: that CPU walks under the old tag until it
    /// has loaded the new root.
    "C6" fn left_root_is_awaited(leaving: bool) -> bool { leaving }
        or RolloverForgetsLeaving { false } "Tags run out while a CPU changes its root: a table of the old one is freed under a tag that this CPU does not have.";

    /// An initiator sees a tag that a CPU walks under, or the CPU sees the entry that the initiator has cleared: two
    /// fences, this one and the next (bug 16).
    "C1" fn fence_before_walk(fence: impl FnOnce()) { fence(); }
        or TagWalkedBeforeSeen {} "A CPU walks under a new tag before others can see it: invalidations miss it (bug 16).";

    /// The table stores are visible to all walkers before the tag is read that is broadcast.
    "C1" fn fence_before_tag(fence: impl FnOnce()) { fence(); }
        or BroadcastSkipsFence {} "The broadcast is sent before the table stores are visible to all walkers (bug 16).";

    /// Where entries have no tags, an initiator looks up no tag, and broadcasts all the same.
    "C1" fn untagged_is_flushed(untagged: bool) -> bool { untagged }
        or UntaggedUnflushed { false } "Where entries have no tags, a broadcast is sent for none (C1).";

    /// A second actor sends the invalidation again: its own barrier completes only what its own CPU has sent
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

    /// The engine counts at most so many batches of one space at once: more would run into the generation.
    "C1, C3" fn most_batches(most: u64) -> u64 { most }
        or BatchesCountedWithoutEnd { u64::MAX } "So many batches are outstanding that their number runs into the generation (C1, C3).";

    /// A batch flushes what it had no place for, too.
    "C1" fn unplaced_is_flushed() -> bool { true }
        or UnplacedUnflushed { false } "A batch gives its frames out with what it had no place for unflushed (C1).";

    /// What a batch has no place for takes its generation before it looks which CPUs have the space loaded: one that
    /// loads the space after that look compares generations.
    "C1" fn take_generation_then_look<T>(take: impl FnOnce(), look: impl FnOnce() -> T) -> T { take(); look() }
        or UnplacedLooksFirst { let seen = look(); take(); seen } "A batch looks which CPUs have a space loaded that it has no place for, and takes the generation of the change after that (C1).";

    /// A batch remembers that tables were freed of a space that it had no place for: then the initiator asks lazy CPUs,
    /// too, and receipts are not enough.
    "C6" fn scope_of_unplaced(scope: Scope) -> Scope { scope }
        or UnplacedTablesAreLeaves { Scope::Leaf } "A batch forgets that tables were freed of a space that it had no place for (C6).";

    /// A space remembers a change that no batch counts: second actors look there.
    "C3" fn unplaced_is_owed() -> bool { true }
        or UnplacedNotOwed { false } "Second actors are not told of a change that no batch counts (C3).";

    /// A second actor looks which changes no batch counts before it flushes: its flush does not reach those that are
    /// reported meanwhile.
    "C3" fn read_unplaced_then_flush(read: impl FnOnce() -> u64, flush: impl FnOnce()) -> u64 { let unplaced = read(); flush(); unplaced }
        or UnplacedReadAfterFlush { flush(); read() } "A second actor calls paid what was reported while it flushed (C3).";

    /// A second actor that finds an entry cleared and relies on it pays what is outstanding (bugs 3, 6, 19).
    "C3" fn second_actor_settles() -> bool { true }
        or SettleSkipped { false } "A second actor ignores that a flush is owed (bugs 3, 6, 19).";

    /// A CPU that changes the size of a page waits until no TLB holds the old translation: a receipt is not enough.
    "Misuse" fn scope_of_settled_tables() -> Scope { Scope::Tables }
        or SettledByReceipt { Scope::Leaf } "A second actor writes an entry of another size after receipts alone (break before make).";

    // Lazy unmap.

    /// A claimer pays the debt of a frame before the frame gets a new owner (L4).
    "C1" fn claim_pays() -> bool { true }
        or ClaimSkipsDebt { false } "A frame gets a new owner although its flush is owed (L4).";

    /// A batch whose flush is owed counts as outstanding until its spaces know what they owe: a second actor finds the
    /// one or the other.
    "C3" fn owe_then_end(owe: impl FnOnce(), end: impl FnOnce()) { owe(); end(); }
        or DebtEndsBeforeOwed { end(); owe(); } "A batch is outstanding no more before its spaces know what they owe: \
            a second actor in between finds nothing (C3).";

    /// A payer pays every debt that is published, also those behind one that is not yet.
    "C4" fn payment_passes_gap() -> bool { true }
        or PaymentStopsAtGap { false } "A payment stops at a debt that is not published yet, and passes for one of all the debts behind it (C4).";

    /// Where invalidations are broadcast, a claimer relies on no earlier flush: a CPU that loads a space there keeps
    /// its entries and looks at no debt.
    "C1" fn flushes_are_known(broadcasts: bool) -> bool { !broadcasts }
        or ClaimTrustsFlushes { true } "Where invalidations are broadcast, a claim relies on the CPUs that have flushed since.";

    /// A CPU that fills an entry or a page-cache slot again pays the debt behind it first (L1, L2, L3).
    "C4" fn refill_pays() -> bool { true }
        or RefillSkipsDebt { false } "An entry or a slot is filled again although a flush is owed (L1, L2, L3).";

    /// A page takes its frame back only if no claimer was first.
    "C1" fn rescue_is_won(won: bool) -> bool { won }
        or RescueUnchecked { true } "A frame is taken back although another CPU has claimed it.";

    /// A claimer pays before it takes the frame: as long as the residue says "owed", a refill of what the frame held pays
    /// or waits for the payment.
    "C4" fn pay_then_take(pay: impl FnOnce(), take: impl FnOnce() -> bool) -> bool { pay(); take() }
        or ClaimTakesFirst { let taken = take(); pay(); taken } "A claimer takes the frame and pays its debt after that: what the frame held is filled again as if nothing were owed.";

    /// A CPU reads the flush clock before it flushes: its flush pays no debt that is taken meanwhile.
    "C1" fn read_clock_then_flush(clock: impl FnOnce() -> u64, flush: impl FnOnce()) -> u64 { let now = clock(); flush(); now }
        or ClockReadAfterFlush { flush(); clock() } "The flush clock is read after the flush instead of before it.";
}

/// Every rule of the engine, by the names of their mutants.
pub use list::*;

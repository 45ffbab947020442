//! The rules that the manager must never forget.
//!
//! Each rule is one decision of the protocol, with the clause of the contract that it keeps,
//! its reason, and its mutant: a kernel that forgets it, most of them one that shipped. The
//! protocol calls the rules by name; [`quell::rules`] says how a mutant is made to decide.
//!
//! There are four kinds:
//!
//! * **release behind the flush** ([`Moment`]): the manager gives nothing up as it clears an entry, and all of it after
//!   the flush;
//! * **flush, then rely on it**: a CPU flushes its own changes before it copies, captures or maps;
//! * **a second actor flushes an entry that it finds cleared**: another CPU may not have flushed it yet;
//! * **pay before bytes differ**: a CPU pays a debt of lazy unmapping before it changes the bytes behind an address or
//!   a file page.
//!
//! The others are about what an entry says, about zeroed memory and about locks.

use core::sync::atomic::Ordering;
use quell::{Frame, Scope};

/// A moment in the life of an entry that was taken out of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moment {
    /// The entry was cleared; translations of it may be in use.
    Cleared,
    /// The flush is done.
    Flushed,
}

quell::rules! {
    /// The rules of the manager, for anything that says which rules are kept.
    pub(crate) trait VmRules, mod list;

    // Release behind the flush.

    /// A frame is free to become something else once no CPU uses a translation to it.
    "C1" fn releases_frame(now: Moment) -> bool { now == Moment::Flushed }
        or VmFreesBeforeFlush { now == Moment::Cleared }
        "A frame that was unmapped is released before the flush (bug 30).";

    /// A walk of the reverse map that finds nothing takes the frame for unmapped everywhere.
    "C1" fn leaves_reverse_map(now: Moment) -> bool { now == Moment::Flushed }
        also VmFreesBeforeFlush { now == Moment::Cleared }
        or VmUnlinksBeforeFlush { now == Moment::Cleared }
        "An entry leaves the reverse map before the flush (bugs 1, 7).";

    /// A hardware walker may be in the middle of a table that was unlinked.
    "C6" fn releases_table(now: Moment) -> bool { now == Moment::Flushed }
        or VmFreesTableBeforeFlush { now == Moment::Cleared }
        "A table page is freed before the flush (bugs 10, 11).";

    /// Walker caches keep upper levels: a flush of leaf entries leaves them.
    "C6" fn scope_of_table() -> Scope { Scope::Tables }
        or VmTableFlushLeafOnly { Scope::Leaf }
        "A table page is freed behind a flush of leaf entries alone (family d).";

    /// A smaller page may take the place of a large one: its flush is waited for to the end, not to the receipt.
    "Misuse" fn scope_of_large_page() -> Scope { Scope::Tables }
        or VmLargePageFlushedAsLeaf { Scope::Leaf }
        "A large page goes behind a flush of leaf entries, whose receipt is enough, and a smaller one takes its place (break before make).";

    /// A frame without a reference may be free, and mapped at the same place again, before the flush of its old entry.
    "C2" fn same_life_is_listed(same: bool) -> bool { same }
        or VmUnlistsNextLife { true }
        "The release of a marker takes the frame's next mapping at that place out of the reverse map, and writeback passes it by (C2; found by an audit).";

    // Flush, then rely on it.

    /// Reclaim captures a page's content when the entries that could write it are gone from every TLB.
    "C2" fn flush_before_write_out(flush: impl FnOnce()) { flush() }
        or VmWritesOutBeforeFlush {}
        "Reclaim writes pages out before their entries were flushed (C2).";

    /// Migration copies a page when no CPU can write it: a write after the copy would be lost.
    "C2" fn flush_before_migration_copies(flush: impl FnOnce()) { flush() }
        or VmMigratesBeforeFlush {}
        "Migration copies pages before their entries were flushed (C2).";

    /// Writeback marks a page clean when no CPU can write it without a fault.
    "C2" fn flush_before_cleaning(flush: impl FnOnce()) { flush() }
        or VmCleansBeforeFlush {}
        "Writeback captures a page before its write protection was flushed (bug 22).";

    /// Collapse copies the small pages when no CPU can write them.
    "C2" fn unmap_before_collapse_copies(unmap: impl FnOnce(), copy: impl FnOnce()) { unmap(); copy() }
        or VmCollapseCopiesBeforeFlush { copy(); unmap() }
        "Collapse copies pages before their entries were flushed (C2).";

    /// The child may run as soon as it is known, and copies pages that the parent must not write.
    "C2" fn flush_before_child_runs(flush: impl FnOnce()) { flush() }
        or VmForkReturnsUnflushed {}
        "A fork makes its child known before its write protection was flushed (bug 21).";

    /// Another CPU must not read the old page after this one has written the copy.
    "C4" fn flush_before_copy_is_mapped(flush: impl FnOnce()) { flush() }
        or VmMapsCopyBeforeFlush {}
        "A copied page is mapped before the old one was flushed (C4).";

    /// A TLB may not hold the large page beside its pieces (break before make).
    "Misuse" fn flush_before_split_links(flush: impl FnOnce()) { flush() }
        or VmLinksBeforeFlush {}
        "A split links the table with the pieces before the large page was flushed (break before make).";

    // A second actor flushes an entry that it finds cleared.

    /// The CPU that emptied the entry may not have flushed it yet, and a TLB may not hold what was there beside what
    /// comes (break before make): asked where the architecture says so (Arm).
    "Misuse" fn flush_pending_before_refill(flush: impl FnOnce()) { flush() }
        or VmRefillsUnsettled {}
        "A fault fills an entry that another CPU has emptied, unflushed (break before make).";

    /// The same for a page of a file, in place of which a private copy may have been.
    "Misuse" fn flush_pending_before_file_refill(flush: impl FnOnce()) { flush() }
        also VmRefillsUnsettled {}
        or VmRefillsFileUnsettled {}
        "A fault maps a file's page where another CPU has emptied the entry, unflushed (break before make).";

    /// The same for another size, in place of which a large page, or a table, may have been: on x86, too.
    "Misuse" fn flush_pending_before_table_links(flush: impl FnOnce()) { flush() }
        also VmRefillsUnsettled {}
        or VmLinksTableUnsettled {}
        "A fault links a table where another CPU has taken out a large page, unflushed (break before make).";

    /// Another CPU may have filled an empty entry, used it and emptied it since the fault looked at it.
    "C4" fn flush_pending_before_copy_fills(flush: impl FnOnce()) { flush() }
        or VmFillsUnsettled {}
        "A private copy of a file's page goes where another CPU has just taken out the page itself, unflushed (C4; found by an audit).";

    /// Entries that an unmap finds cleared may be in use until their flush.
    "C3" fn flush_pending_before_unmap_returns(flush: impl FnOnce()) { flush() }
        or VmUnmapsUnsettled {}
        "An unmap finds entries cleared by another CPU and does not flush them (bugs 6, 19).";

    /// As for unmap.
    "C3" fn flush_pending_before_discard_returns(flush: impl FnOnce()) { flush() }
        or VmDiscardsUnsettled {}
        "A discard finds entries cleared by another CPU and does not flush them (bugs 4, 6).";

    /// As for unmap.
    "C3" fn flush_pending_before_protect_returns(flush: impl FnOnce()) { flush() }
        or VmProtectsUnsettled {}
        "A protect finds entries cleared by another CPU and does not flush them (bug 3).";

    /// As for unmap: the old place.
    "C3" fn flush_pending_before_remap_returns(flush: impl FnOnce()) { flush() }
        or VmRemapsUnsettled {}
        "A remap finds entries cleared by another CPU and does not flush them (family a).";

    /// A mapping that the reverse map lists, and whose entry is cleared, may be in use until its flush.
    "C3" fn flush_pending_before_truncation_frees(flush: impl FnOnce()) { flush() }
        or VmTruncatesUnsettled {}
        "Truncation finds a mapping cleared by another CPU and frees the page without flushing it (bug 1).";

    /// A mapping that lost its right to write, or all, may write until its flush.
    "C2" fn flush_pending_before_cleaning(flush: impl FnOnce()) { flush() }
        or VmCleansUnsettled {}
        "Writeback finds a mapping cleared by another CPU and cleans the page without flushing it (bug 22).";

    /// As for truncation.
    "C1" fn flush_pending_before_reclaim(flush: impl FnOnce()) { flush() }
        or VmReclaimsUnsettled {}
        "Reclaim finds a mapping cleared by another CPU and takes the page without flushing it (family a).";

    /// As for cleaning.
    "C2" fn flush_pending_before_migration_copies(flush: impl FnOnce()) { flush() }
        or VmMigratesUnsettled {}
        "Migration finds a mapping cleared by another CPU and copies the page without flushing it (family a).";

    /// A page on its way out is shared with the child by its swap slot: the parent's entry for it was cleared by
    /// another CPU, and may write until its flush.
    "C2" fn flush_pending_before_child_runs(flush: impl FnOnce()) { flush() }
        or VmForksUnsettled {}
        "A fork finds entries cleared by another CPU and shares their pages without flushing them (family a).";

    /// The page is read-only in the tables, and until the flush of that perhaps not in a TLB.
    "C2" fn flush_pending_before_copy(flush: impl FnOnce()) { flush() }
        or VmCopiesUnsettled {}
        "A fault copies a page whose write protection may not have been flushed (bug 21).";

    // What an entry says.

    /// The right to execute is a right: a change that takes it away alone is flushed, too.
    "C3" fn may_execute(executable: bool) -> bool { executable }
        or VmExecutionUnflushed { false }
        "The right to execute is taken away without a flush (C3).";

    /// A walker that reads an entry sees what it points to as prepared.
    // Release pairs with the walkers of all CPUs: a program that reaches a page through the entry finds it
    // zeroed or filled.
    // Lost without it: `VmMapsBeforeContent`.
    "C8" fn order_of_entry() -> Ordering { Ordering::Release }
        or VmMapsBeforeContent { Ordering::Relaxed }
        "An entry is written by a relaxed store: the page can be used before its content is there (C8).";

    // Pay before bytes differ.

    /// A stale translation of a dirty page may be writable.
    "C2" fn may_owe(dirty: bool) -> bool { !dirty }
        or VmOwesDirtyPages { true }
        "A dirty page is taken away lazily (L3).";

    /// A marker that the frame still lists stands for a translation that may be in use.
    "C4" fn marker_maps(listed: bool) -> bool { listed }
        or VmIgnoresMarker { false }
        "A marker is overwritten or dropped without the flush that is owed behind it (L1).";

    /// A CPU writes an emptied entry again with the frame that the marker names, or pays the debt first.
    "C4" fn marker_is_paid(marker: Frame, wanted: Frame) -> bool { marker != wanted }
        or VmRewritesOwedEntry { false }
        "An entry that was emptied lazily is written again with another frame, the debt unpaid (L1).";

    /// A CPU fills an emptied slot again with the frame that the slot names, unless a claimer has taken that and paid
    /// the debt.
    "C4" fn rescue_before_refill(rescue: impl FnOnce() -> bool) -> bool { rescue() }
        or VmRefillsOwedSlot { false }
        "A page-cache slot that was emptied lazily is filled with another frame (L2, L3).";

    /// Stale translations may lead to the frames that a page was in before: a CPU that changes the page pays their debt
    /// first.
    "C4" fn pay_before_write(pay: impl FnOnce()) { pay() }
        or VmWritesShadowedPage {}
        "A page that was moved lazily is written while its old frame may still be read (L2, L3).";

    /// A CPU that empties the slots beyond a file's new end settles where their pages were before, too: no mapping leads
    /// from the new frame there.
    "C4" fn settle_before_truncation(settle: impl FnOnce()) { settle() }
        or VmTruncatesShadowed {}
        "A truncation leaves alone what may still be read where a lazily moved page was before.";

    /// A marker stands for a translation to the frame that a migration gives up.
    "C1" fn marker_does_not_move(take: impl FnOnce()) { take() }
        or VmMigratesPastMarker {}
        "A migration flushes no marker of the page: the old frame is free while a CPU may use it.";

    /// A marker stands for a translation of the place that a remap empties.
    "C3" fn marker_is_flushed(take: impl FnOnce(), lift: impl FnOnce()) { take() }
        or VmLiftsMarker { lift() }
        "A remap takes a marker out without a flush: what it stands for is used at the old place.";

    /// A stale frame that was claimed may be stale again, as the page of another file.
    "C5" fn may_rescue(own: bool) -> bool { own }
        or VmRescuesOtherPage { true }
        "A page is brought back with a frame that has become another file's page.";

    // References.

    /// A CPU that goes on with a page holds it before it gives up the lock under which it found it.
    "C1" fn hold_then_unlock(hold: impl FnOnce(), unlock: impl FnOnce()) { hold(); unlock(); }
        or VmHoldsAfterUnlock { unlock(); hold(); }
        "A private copy holds its original after it has given up the slot: the page is reclaimed in between.";

    // What walkers record.

    /// A walker may set the dirty bit of a word between a load and a store of it.
    "C8" fn replace_in_one_step(swap: impl FnOnce() -> u64, load: impl FnOnce() -> u64, store: impl FnOnce()) -> u64 { swap() }
        or VmReplacesInTwoSteps { let old = load(); store(); old }
        "A word is read and then written: a dirty bit that comes between is lost, and a written page passes for zeros.";

    /// The same for a word that is changed.
    "C8" fn change_in_one_step(exchange: impl FnOnce() -> Result<u64, u64>, store: impl FnOnce() -> Result<u64, u64>) -> Result<u64, u64> { exchange() }
        or VmChangesInTwoSteps { store() }
        "A protection is changed by a store: a dirty bit that comes between is lost, and a written page passes for zeros.";

    // Zeroed memory.

    /// The manager zeroes memory that it hands out as zeroed, unless it is known to be zero.
    "C8" fn must_zero(known_zero: bool) -> bool { !known_zero }
        or VmSkipsZeroing { false }
        "Memory is handed out as zeroed without zeroing it (C8).";

    /// A page that was written is not known to be zero.
    "C8" fn forgets_zeros(dirty: bool) -> bool { dirty }
        or VmKeepsZeroFlag { false }
        "A page that was written is still taken for zeros when it is freed (C8).";

    /// A frame into which a page was moved is not zero any more, though it was when it was taken.
    "C8" fn copy_is_written(written: impl FnOnce(), owned: impl FnOnce()) { written() }
        or VmMovesIntoZeros { owned() }
        "A frame that was zero when a page was moved there is still taken for zeros when it is freed (C8).";

    /// What a piece of a large page holds is not known.
    "C8" fn piece_is_zero() -> bool { false }
        or VmPiecesAreZero { true }
        "The pieces of a large page that was written are taken for zeros (C8).";

    // Locks.

    /// A walk of the reverse map looks at the places that were listed as it began.
    "C3" fn lock_before_move<T>(lock: impl FnOnce() -> T) -> Option<T> { Some(lock()) }
        or VmRemapsUnlocked { None }
        "A remap moves an entry while a walk of the reverse map looks for it (C3).";

    /// Between the change of the length and the emptying of the slots beyond it, a truncation takes what is written
    /// there.
    "C2" fn lock_before_lengthening<T>(lock: impl FnOnce() -> T) -> Option<T> { Some(lock()) }
        or VmLengthensUnlocked { None }
        "A write lengthens a file in the middle of a truncation, which then empties the page that was written (C2; found by an audit).";

    /// A CPU that splits a block keeps reclaim and migration away: the references that they took meanwhile would be
    /// forgotten.
    "C1" fn lock_before_split<T>(lock: impl FnOnce() -> T) -> Option<T> { Some(lock()) }
        or VmSplitsUnlocked { None }
        "A large page is split while reclaim or migration take a reference to it, which is forgotten (C1).";

    /// A split waits for every reference, so a fault gives its own up first.
    "C7" fn let_go_before_split<T>(put: impl FnOnce(), split: impl FnOnce() -> T) -> T { put(); split() }
        or VmSplitsHeldBlock { let done = split(); put(); done }
        "A fault splits a large page that it holds, and waits for itself (C7).";

    /// A large page that was mapped since the edges were split may reach beyond them.
    "C2" fn takes_page(inside: bool) -> bool { inside }
        or VmDiscardsWholePage { true }
        "A discard takes out a large page that a fault has put across its edge meanwhile (C2; found by an audit).";

    /// A block that was split meanwhile has a first piece in the same frame.
    "C1" fn is_the_block(mapped: u64, block: u64) -> bool { mapped == block }
        or VmUnsharesPiece { true }
        "A copy of a large page, in pieces, takes the place of its first piece, since another CPU has split it (C1; found by generated programs).";
}

/// Every rule of the manager, by the names of their mutants.
pub use list::*;

/// The rule with the mutant of this name: the engine's, zeroing's or the manager's.
pub fn named(mutant: &str) -> Option<&'static quell::Rule> {
    let below = quell::rules::ALL.iter().chain(quell_zero::rules::zero::ALL);
    below.chain(ALL).copied().find(|rule| rule.name == mutant)
}

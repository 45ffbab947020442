//! What the manager must never forget, one rule each: the list that the engine has in [`quell::rules`], for those
//! who write page tables.
//!
//! Each rule stands with the clause of the contract that it keeps and the reason; the modules of the manager call it
//! by name. Its mutant is what somebody who forgets it would do, and a search must find that this breaks the
//! contract.

use core::sync::atomic::Ordering;

quell::rules! {
    /// The manager's rules.
    pub(crate) trait VmRules, mod list;

    // Second actors: a call, a fault or a walk of the reverse map that finds an entry cleared by another CPU, whose flush is still to come.

    /// An unmap returns after what others have cleared in its range, and not flushed yet, was flushed (bugs 6, 19).
    "C3" fn unmap_settles(settle: impl FnOnce()) { settle(); }
        or VmUnmapsUnsettled {} "An unmap finds entries cleared by somebody else and does not settle (bugs 6, 19).";

    /// The same for a discard (bugs 4, 6).
    "C3" fn discard_settles(settle: impl FnOnce()) { settle(); }
        or VmDiscardsUnsettled {} "A discard finds entries cleared by somebody else and does not settle (bugs 4, 6).";

    /// The same for a protection (bug 3).
    "C3" fn protect_settles(settle: impl FnOnce()) { settle(); }
        or VmProtectsUnsettled {} "A protect finds entries cleared by somebody else and does not settle (bug 3).";

    /// The same for a remap, at its old place.
    "C3" fn remap_settles(settle: impl FnOnce()) { settle(); }
        or VmRemapsUnsettled {} "A remap finds entries cleared by somebody else and does not settle (family a).";

    /// Truncation frees a page after every mapping of it, also one that somebody else has cleared, was flushed (bug 1).
    "C1" fn truncate_settles(settle: impl FnOnce()) { settle(); }
        or VmTruncatesUnsettled {} "Truncation finds a mapping cleared by somebody else and frees the page without settling (bug 1).";

    /// The same before a page is written back (bug 22).
    "C2" fn writeback_settles(settle: impl FnOnce()) { settle(); }
        or VmCleansUnsettled {} "Writeback finds a mapping cleared by somebody else and cleans the page without settling (bug 22).";

    /// The same before reclaim takes a page.
    "C2" fn reclaim_settles(settle: impl FnOnce()) { settle(); }
        or VmReclaimsUnsettled {} "Reclaim finds a mapping cleared by somebody else and takes the page without settling (family a).";

    /// The same before migration copies a page.
    "C2" fn migration_settles(settle: impl FnOnce()) { settle(); }
        or VmMigratesUnsettled {} "Migration finds a mapping cleared by somebody else and copies the page without settling (family a).";

    /// A fault copies a page after its write protection was flushed, whoever took the right away (bug 21).
    "C2" fn copy_settles(settle: impl FnOnce()) { settle(); }
        or VmCopiesUnsettled {} "A fault copies a page whose write protection may not have been flushed (bug 21).";

    /// The right to execute is a right: taking it away alone is flushed, too.
    "C3" fn execution_is_taken_away() -> bool { true }
        or VmExecutionUnflushed { false } "The right to execute is taken away without a flush (C3).";

    // What waits for the flush.

    /// A frame is released behind the flush of what mapped it.
    "C1" fn frame_waits_for_flush() -> bool { true }
        or VmFreesBeforeFlush { false } "A frame that was unmapped is released before the flush (bug 30).";

    /// A mapping stays in the reverse map until it is flushed: whoever truncates or reclaims the page meanwhile finds it, and pays.
    "C1" fn mapping_stays_listed() -> bool { true }
        or VmUnlinksBeforeFlush { false } "An entry leaves the reverse map before the flush (bugs 1, 7).";

    /// A table is released behind the flush: walkers may be in it.
    "C6" fn table_waits_for_flush() -> bool { true }
        or VmFreesTableBeforeFlush { false } "A table page is freed before the flush (bugs 10, 11).";

    /// A table that was taken out of its parent is cached by walkers, not as a leaf entry.
    "C6" fn walkers_are_flushed() -> bool { true }
        or VmTableFlushLeafOnly { false } "A table page is freed behind a flush of leaf entries alone (family d).";

    /// A child runs after the write protection of what it shares was flushed.
    "C2" fn child_waits_for_write_protection() -> bool { true }
        or VmForkReturnsUnflushed { false } "A fork makes its child known before its write protection was flushed (bug 21).";

    /// A copy is mapped after the old page was flushed: two CPUs of one process see one page.
    "C4" fn copy_waits_for_flush() -> bool { true }
        or VmMapsCopyBeforeFlush { false } "A copied page is mapped before the old one was flushed (C4).";

    /// A page is written back after its write protection was flushed.
    "C2" fn writeback_waits_for_flush() -> bool { true }
        or VmCleansBeforeFlush { false } "Writeback captures a page before its write protection was flushed (bug 22).";

    /// A page is written out after its entries were flushed.
    "C2" fn swap_out_waits_for_flush() -> bool { true }
        or VmWritesOutBeforeFlush { false } "Reclaim writes pages out before their entries were flushed (C2).";

    /// A page is copied after its entries were flushed.
    "C2" fn migration_waits_for_flush() -> bool { true }
        or VmMigratesBeforeFlush { false } "Migration copies pages before their entries were flushed (C2).";

    /// Pages are copied into a large one after their entries were flushed.
    "C2" fn collapse_waits_for_flush() -> bool { true }
        or VmCollapseCopiesBeforeFlush { false } "Collapse copies pages before their entries were flushed (C2).";

    // Lazy unmap.

    /// A marker names a frame whose flush is owed: the entry is not forgotten before that is paid (L1).
    "C4" fn marker_is_honoured() -> bool { true }
        or VmIgnoresMarker { false } "A marker is overwritten or dropped without the flush that is owed behind it (L1).";

    /// A page-cache slot that was emptied lazily gets its own frame back, or another one behind the debt (L2, L3).
    "C4" fn owed_slot_is_rescued() -> bool { true }
        or VmRefillsOwedSlot { false } "A page-cache slot that was emptied lazily is filled with another frame (L2, L3).";

    /// An entry that was emptied lazily is written again with its own frame, or behind the debt (L1).
    "C4" fn owed_entry_is_settled() -> bool { true }
        or VmRewritesOwedEntry { false } "An entry that was emptied lazily is written again with another frame, the debt unpaid (L1).";

    /// A page that was moved lazily changes after the debts of its old frames are paid (L2, L3).
    "C4" fn shadow_is_settled() -> bool { true }
        or VmWritesShadowedPage { false } "A page that was moved lazily is written while its old frame may still be read (L2, L3).";

    /// A page that may still be written through a stale entry is not taken away lazily (L3).
    "C2" fn only_clean_pages_are_owed() -> bool { true }
        or VmOwesDirtyPages { false } "A dirty page is taken away lazily (L3).";

    // Locks.

    /// A mapping moves under the lock of its page: a walk of the reverse map finds it at one place or the other.
    "C3" fn remap_locks_page() -> bool { true }
        or VmRemapsUnlocked { false } "A remap moves an entry while somebody who walks the reverse map looks for it (C3).";

    /// While a large page is split, no CPU takes a reference to it, which would be forgotten.
    "C1" fn split_locks_block() -> bool { true }
        or VmSplitsUnlocked { false } "A large page is split while reclaim or migration take a reference to it, which is forgotten (C1).";

    /// A fault lets go of a large page before it splits it: the split waits until no CPU holds it.
    "C7" fn split_lets_go_first() -> bool { true }
        or VmSplitsHeldBlock { false } "A fault splits a large page that it holds, and waits for itself (C7).";

    // Zeros.

    /// Memory that programs see for the first time is zeroed, unless it is known to be zero.
    "C8" fn fresh_memory_is_zeroed() -> bool { true }
        or VmSkipsZeroing { false } "Memory is handed out as zeroed without zeroing it (C8).";

    /// A CPU that reads an entry, walkers included, sees what it points to as prepared.
    "C8" fn order_of_entry() -> Ordering { Ordering::AcqRel }
        or VmMapsBeforeContent { Ordering::Relaxed } "An entry is written by a relaxed store: the page can be used before its content is there (C8).";

    /// A page that was written is not known to be zero any more.
    "C8" fn write_ends_zeros() -> bool { true }
        or VmKeepsZeroFlag { false } "A page that was written is still taken for zeros when it is freed (C8).";
}

/// Every rule of the manager, by the names of their mutants.
pub use list::*;

/// The rule with the mutant of this name, the engine's or the manager's.
pub fn named(mutant: &str) -> Option<&'static quell::Rule> {
    let rules = quell::rules::ALL.iter().chain(ALL);
    rules.copied().find(|rule| rule.name == mutant)
}

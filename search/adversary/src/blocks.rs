//! What a kernel that maps blocks of pages must not forget: rules as the engine's own, with a mutant for each.
//!
//! A block is an aligned row of entries that map adjacent frames in the same way and say so (Arm's contiguous bit,
//! RISC-V's Svnapot). What a TLB may make of that is in [`mmu`](crate::mmu). The engine knows of ranges alone; the
//! kernel decides which entries it clears, and which pages it reports.

use quell::PageRange;

quell::rules! {
    /// What a kernel that maps blocks must not forget.
    pub(crate) trait BlockRules, mod list;

    /// As long as one entry of a block stands, a TLB may fill every page of the block from it: all of them are cleared
    /// and flushed before one page goes, and what stays is written anew (break before make).
    "C1" fn pages_to_clear(page: PageRange, block: PageRange) -> PageRange { block }
        or BlockBrokenInPart { page } "One page is taken out of a block whose other entries stand.";

    /// A TLB that has kept the pages of a block apart loses of them what an invalidation names.
    "C1" fn pages_to_report(block: PageRange) -> PageRange { block }
        or BlockReportedAsPage { PageRange { pages: 1, ..block } } "A block goes, and its first page alone is flushed.";
}

pub use list::ALL;

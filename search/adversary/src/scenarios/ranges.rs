//! Calls that remove several pages, entries or rights at once, and later observers of their changes.

use super::*;

/// The first page of the large page.
const LARGE_PAGE: u64 = 1024;

pub(super) const ALL: &[Scenario] = &[
    // CPU 0 reclaims a page and hasn't flushed yet. CPU 1 unmaps the same page, finds the entry empty and returns.
    Scenario::engine("reclaim-unmap")
        .about("an unmap finds an entry that reclaim has cleared")
        .bugs(&["6", "19", "4"])
        .finds(&["FlushPendingOnlyWaits", "PendingNotRecorded", "FlushPendingSkipped"])
        .must(Every, &[Engine(FlushedPending)])
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .cpu(|k| _ = k.give_away(k.reclaim(&[0], 0)))
        .cpu(|k| _ = k.read(0).unmap(0, 0).read(0)),
    // CPU 0 reclaims a page and hasn't flushed yet. CPU 1 write-protects it, finds the entry empty and returns. CPU 2
    // writes.
    Scenario::engine("reclaim-protect")
        .about("a protect finds an entry that reclaim has cleared")
        .bugs(&["3", "5"])
        .must(Every, &[Engine(FlushedPending)])
        .must(Broadcast, &[Engine(Barriers)])
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .cpu(|k| _ = k.give_away(k.reclaim(&[0], 0)))
        .cpu(|k| _ = k.protect(0, 0))
        .cpu(|k| _ = k.write(0, 1).write(0, 2)),
    Scenario::engine("reclaim-shared")
        .about("one batch with changes of two spaces")
        .bugs(&["1"])
        .must(Every, &[Engine(Requested)])
        .start(|k| _ = k.map(0, 0, frame(0), true).map(1, 0, frame(0), true))
        .each(|k, cpu| _ = k.switch(cpu))
        .cpu(|k| _ = k.give_away(k.reclaim(&[0, 1], 0)))
        .cpu(|k| _ = k.read(0).switch(0).read(0)),
    Scenario::engine("long-range")
        .about("a long range becomes a flush of the whole tag")
        .bugs(&["35"])
        .finds(&["WholeTagStaysLocal"])
        .must(Every, &[Engine(EscalatedLength)])
        .must(Interrupts, &[Engine(FlushedFull)])
        .start(|k| _ = k.map_first(5, true))
        .cpu(|k| _ = k.unmap_range(0, 0, 5, false).read(2))
        .cpu(|k| _ = k.write(0, 1).read(4)),
    Scenario::engine("range-tail")
        .about("the last page of a range is flushed")
        .bugs(&["17", "36"])
        .finds(&["RangeLosesTail"])
        .must(Every, &[Machine(StaleUse)])
        .must(Interrupts, &[Engine(FlushedRanges)])
        .start(two_pages)
        .cpu(|k| _ = k.unmap_range(0, 0, 2, false))
        .cpu(|k| _ = k.write(1, 1).read(1)),
    // CPU 0 unmaps two base pages and a large page with one flush. CPU 1 uses the second base page and a page in the
    // large one. An invalidation in strides of the wrong size leaves one of them.
    Scenario::engine("mixed-sizes")
        .about("base pages and a large page in one flush")
        .finds(&["BasePagesInLargeStrides", "LargePageAsBasePage"])
        .must(Every, &[Machine(StaleUse)])
        .must(Interrupts, &[Engine(FlushedRanges)])
        .start(|k| _ = k.map_first(2, true).map_large(0, LARGE_PAGE, frame(2), true))
        .cpu(|k| _ = k.unmap_mixed(0, 0, LARGE_PAGE))
        .cpu(|k| _ = k.read(1).read(LARGE_PAGE + 1)),
    // CPU 0 unmaps a block of pages of CPU 1, whose TLB may cache the block as one entry or as several. So invalidating
    // one page needn't drop the others.
    Scenario::engine("block-unmap")
        .about("a block of contiguous entries is unmapped")
        .finds(&["BlockReportedAsPage"])
        .must(Every, &[Machine(StaleUse)])
        .must(Interrupts, &[Engine(FlushedRanges)])
        .on(Blocks)
        .start(|k| k.map_block(0, 4, frame(0)))
        .cpu(|k| k.unmap_block(0, 4))
        .cpu(|k| _ = k.read(4).read(5)),
    // CPU 0 unmaps one page of a block. As long as another page's entry is marked as part of the block, CPU 1's TLB may
    // fill the unmapped page from it.
    Scenario::engine("block-break")
        .about("one page of a block of contiguous entries is unmapped")
        .finds(&["BlockBrokenInPart"])
        .must(Every, &[Machine(StaleUse)])
        .must(Interrupts, &[Engine(FlushedRanges)])
        .on(Blocks)
        .start(|k| k.map_block(0, 4, frame(0)))
        .cpu(|k| _ = k.give_away(k.unmap_from_block(0, 5)).read(4))
        .cpu(|k| _ = k.write(5, 1).read(4).read(5)),
    // CPU 0 unmaps a page whose frame is to leave the machine, and waits until all CPUs have flushed. A receipt isn't
    // enough, because a CPU may load speculatively until it has flushed.
    Scenario::engine("withdraw-running")
        .about("a frame is withdrawn from the machine while a CPU uses its page")
        .finds(&["QuiesceTakesReceipt"])
        .must(Interrupts, &[Engine(WaitedReceipt)])
        .must(Every, &[Machine(StaleUse)])
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .cpu(|k| k.withdraw(k.take(0, 0)))
        .cpu(read_twice),
    // The same with an idle CPU 1, which keeps its entries unless it is interrupted.
    Scenario::engine("withdraw-idle")
        .about("a frame is withdrawn from the machine while an idle CPU holds its translation")
        .finds(&["LazySkippedForTables", "LeavesThenCatchesUp"])
        .must(Interrupts, &[Engine(Sent)])
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .start_1(|k| _ = k.idle())
        .cpu(|k| k.withdraw(k.unmap_for_all(0, 0)))
        .cpu(|k| _ = k.switch(0).read(0)),
];

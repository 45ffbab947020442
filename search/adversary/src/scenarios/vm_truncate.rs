//! The memory manager: truncation, discards, and memory that is reused.

use super::*;

fn clean_file_and_memory(k: &VmKernel<'_>) {
    k.read_clean_file(0).map(4, 1);
}

fn page_out_and_reinstate(k: &VmKernel<'_>) {
    k.page_out(0, 1).write_file(0, 0, 0, 2);
}

fn truncate(k: &VmKernel<'_>) {
    k.truncate(0, 0, 0).tell(0);
}

/// Reads after CPU 0's signal.
fn read_late(k: &VmKernel<'_>) {
    k.wait_for(0).read(0);
}

fn written_file_of_two(k: &VmKernel<'_>) {
    k.create(1, 1).map_file(0, 1, 0).write(0, 1).create(1, 0).keep_table();
}

/// Truncates a file, and gets its frame for another file.
fn truncate_and_reuse(k: &VmKernel<'_>) {
    k.truncate(0, 0, 0).write_file(1, 0, 0, 5).tell(0);
}

fn write_twice(k: &VmKernel<'_>) {
    k.write(0, 2).wait_for(0).write(0, 3);
}

fn read_page(k: &VmKernel<'_>) {
    k.map(0, 2).read(0).keep_table();
}

fn unread_file(k: &VmKernel<'_>) {
    k.create_clean(1, 1).map_file_read(0, 1, 0);
}

pub(super) const ALL: &[Scenario] = &[
    // CPU 0 moves a file page, whose old address is in use until the flush. CPU 1 truncates the file, finds the page at
    // its new address and frees it. CPU 2 uses the old address. CPU 1 also mustn't search only the old address.
    Scenario::over_vm("vm-remap-truncate")
        .about("remap against truncation")
        .bugs(&["1"])
        .finds(&["VmTruncatesUnflushed", "VmRemapsUnlocked", "VmUnlinksBeforeFlush"])
        .must(Every, &[Engine(FlushedPending), Machine(FrameReused)])
        .must(Every, &[Machine(StaleUse)])
        .vm_start(written_file_of_two)
        .vm_cpu(|k| _ = k.remap(0, 1, 2))
        .vm_cpu(truncate_and_reuse)
        .vm_cpu(write_twice),
    // CPU 0 unmaps a file page and hasn't flushed yet. CPU 1 truncates the file and gets the frame for another file.
    // CPU 2 uses the old address.
    Scenario::over_vm("vm-unmap-truncate")
        .about("unmap against truncation")
        .bugs(&["7"])
        .finds(&["VmFreesBeforeFlush"])
        .must(Every, &[Engine(FlushedPending), Machine(FrameReused)])
        .must(Every, &[Machine(StaleUse)])
        .vm_start(written_file_of_two)
        .vm_cpu(|k| _ = k.unmap(0, 1))
        .vm_cpu(truncate_and_reuse)
        .vm_cpu(write_twice),
    // A file page was reclaimed lazily and reinstated by a call, which maps it nowhere. CPU 0 writes to it, reclaims
    // it, this time with a flush, and gets its frame for another page. CPU 1 reads through the entry left by the first
    // reclaim.
    Scenario::over_vm("vm-reclaim-reinstated")
        .about("a lazily reclaimed page is reinstated and then reclaimed with a flush")
        .must(Every, &[Engine(FlushesDeferred), Machine(FrameReinstated)])
        .must(Every, &[Machine(FrameReused)])
        .vm_start(clean_file_and_memory)
        .vm_start_1(page_out_and_reinstate)
        .vm_cpu(|k| _ = k.reclaim(1).write(4, 5).tell(0))
        .vm_cpu(read_late),
    // CPU 0 truncates a file while CPU 1 faults on the page that is removed. Either the fault comes first and the page
    // is unmapped, or the fault fails.
    Scenario::over_vm("vm-truncate-fault")
        .about("truncation against fault")
        .must(Every, &[Machine(FrameReused), Machine(Fault)])
        .with_memory([16, 0])
        .vm_start(|k| _ = k.create_clean(1, 1).map_file(0, 1, 0).map(4, 1).keep_table())
        .vm_cpu(|k| _ = k.truncate(0, 0, 0).write(4, 5))
        .vm_cpu(|k| _ = k.write(0, 2).read(0)),
    // A file page was reclaimed lazily. CPU 0 truncates the file. After that has returned, CPU 1 mustn't read the page
    // through the stale entry.
    Scenario::over_vm("vm-truncate-stale")
        .about("truncation of a lazily reclaimed page")
        .must(Every, &[Engine(FlushesDeferred), Machine(FrameReinstated)])
        .vm_start(clean_file)
        .vm_start_1(|k| _ = k.page_out(0, 1))
        .vm_cpu(truncate)
        .vm_cpu(read_late),
    // The same, but the page was reinstated in the cache meanwhile. A call that reinstates a page maps it nowhere, so
    // the stale entry is still in use.
    Scenario::over_vm("vm-truncate-reinstated")
        .about("truncation of a reinstated page")
        .must(Every, &[Engine(FlushesDeferred), Machine(FrameReinstated)])
        .vm_start(clean_file)
        .vm_start_1(|k| _ = k.page_out(0, 1).read_file(0, 0, 0))
        .vm_cpu(truncate)
        .vm_cpu(read_late),
    // The same, but the page was migrated lazily, and may be read at its old place.
    Scenario::over_vm("vm-truncate-shadow")
        .about("truncation of a lazily migrated page")
        .finds(&["VmTruncatesShadowed"])
        .must(Every, &[Engine(FlushesDeferred)])
        .with_memory([12, 4])
        .vm_start(clean_file)
        .vm_start_1(|k| _ = k.read(0).migrate(0, 1, 1))
        .vm_cpu(truncate)
        .vm_cpu(read_late),
    // A page was only read. CPU 1 stores to it while CPU 0 discards it and hands out its frame as memory known to be
    // zero. The dirty bit that CPU 1's walker sets in the entry mustn't be lost.
    Scenario::over_vm("vm-discard-store")
        .about("a discard against the first store")
        .finds(&["VmReplacesInTwoSteps"])
        .must(Every, &[Machine(FrameReused), Machine(CallReturned)])
        .vm_start(read_page)
        .vm_cpu(|k| _ = k.discard(0, 1).read(1))
        .vm_cpu(|k| _ = k.write(0, 7)),
    // The same, but CPU 0 removes the right to write first.
    Scenario::over_vm("vm-protect-store")
        .about("a protect and a discard against the first store")
        .finds(&["VmChangesInTwoSteps"])
        .must(Every, &[Machine(FrameReused), Machine(CallReturned)])
        .vm_start(read_page)
        .vm_cpu(|k| _ = k.protect(0, 1).discard(0, 1).read(1))
        .vm_cpu(|k| _ = k.write(0, 7)),
    // A file page was reclaimed lazily. Its frame has become a page of another file, which was reclaimed lazily as
    // well. CPU 0 reads the first file.
    Scenario::over_vm("vm-reinstate-other")
        .about("reinstating a frame that has become another file's page")
        .finds(&["VmReinstatesOtherPage"])
        .must(Every, &[Engine(FlushesDeferred), Machine(FrameReused)])
        .with_memory([7, 0])
        .vm_start(|k| {
            k.read_clean_file(0).page_out(0, 1);
            // There is no other free memory for the last page.
            k.create_clean(3, 2).map_file_read(1, 3, 1);
            for page in 1..=3 {
                k.read(page);
            }
            k.page_out(1, 3);
        })
        .vm_cpu(|k| _ = k.read_file(0, 0, 0).read(0))
        .vm_cpu(|k| _ = k.read(1)),
    // A file page was reclaimed lazily. CPU 0 moves its area. After that has returned, CPU 1 mustn't read the page at
    // its old address.
    Scenario::over_vm("vm-lazy-reclaim-remap")
        .about("remap of a lazily reclaimed page")
        .finds(&["VmLiftsMarker"])
        .must(Every, &[Engine(FlushesDeferred), Machine(CallReturned)])
        .vm_start(clean_file)
        .vm_start_1(|k| _ = k.read(0).page_out(0, 1))
        .vm_cpu(|k| _ = k.remap(0, 1, 8).tell(0))
        .vm_cpu(|k| _ = k.wait_for(0).read(0)),
    // Like `vm-reclaim-reinstated`, but CPU 0 migrates the page to another node instead of reclaiming it.
    Scenario::over_vm("vm-migrate-reinstated")
        .about("a lazily reclaimed page is reinstated and then migrated")
        .finds(&["VmMigratesPastMarker"])
        .must(Every, &[Engine(FlushesDeferred), Machine(FrameReinstated)])
        .must(Every, &[Machine(FrameReused)])
        .with_memory([12, 4])
        .vm_start(clean_file_and_memory)
        .vm_start_1(page_out_and_reinstate)
        .vm_cpu(|k| _ = k.demote(1).write(4, 5).tell(0))
        .vm_cpu(read_late),
    // CPU 0 stores to a private mapping of a file's page, which copies the page. Meanwhile CPU 1 reclaims the page and
    // gets its frame for another page.
    Scenario::over_vm("vm-private-reclaim")
        .about("a private copy against reclaim of its original")
        .finds(&["VmHoldsAfterUnlock"])
        .must(Every, &[Machine(FrameReused)])
        .vm_start(|k| {
            k.create_clean(1, 1).map_file_private(0, 1, 0).map_file_read(1, 1, 0).read(1).map(2, 1);
            k.keep_table();
        })
        .vm_cpu(|k| _ = k.write(0, 3).read(0))
        .vm_cpu(|k| _ = k.page_out(1, 1).write(2, 9)),
    // A page was migrated into a frame that had been zeroed ahead. CPU 0 frees the page and allocates memory that must
    // be zero. CPU 1 allocates some, too.
    Scenario::over_vm("vm-zero-move")
        .about("a page that was migrated into a zeroed frame is freed")
        .finds(&["VmMovesIntoZeros"])
        .must(Every, &[Machine(FrameReused)])
        .with_memory([12, 4])
        .vm_start(|k| {
            k.read_clean_file(0).migrate(0, 1, 1);
            // This zeroes memory ahead.
            k.idle().migrate(0, 1, 0).map(1, 2).keep_table();
        })
        .vm_cpu(|k| _ = k.unmap(0, 1).truncate(0, 0, 0).read(1))
        .vm_cpu(|k| _ = k.read(2)),
    // CPU 0 truncates a file to nothing while CPU 1 writes beyond its end. If the truncation comes first, the write
    // makes the file longer again, and the file contains the written value. If a page was overlooked, the manager's
    // records show it.
    Scenario::over_vm("vm-truncate-write")
        .about("truncation against a write beyond the end")
        .must(Every, &[Machine(FrameReused)])
        .vm_start(unread_file)
        .vm_cpu(|k| _ = k.truncate(0, 0, 0))
        .vm_cpu(|k| _ = k.write_file(0, 1, 0, 7)),
    // The same, but CPU 1 writes to a page that is removed. The file mustn't be longer than the content written to it,
    // and that content mustn't be lost.
    Scenario::over_vm("vm-truncate-rewrite")
        .about("truncation against a write to a page that it removes")
        .finds(&["VmLengthensUnlocked"])
        .must(Every, &[Machine(FrameReused)])
        .vm_start(unread_file)
        .vm_cpu(|k| _ = k.truncate(0, 0, 0))
        .vm_cpu(|k| _ = k.write_file(0, 0, 0, 7)),
    // CPU 0 discards a file page and hasn't flushed yet. CPU 1 truncates the file and finds the mapping cleared. After
    // that has returned, CPU 2 mustn't read beyond the end of the file, although the frame has no other owner yet.
    Scenario::over_vm("vm-discard-truncate")
        .about("discard against truncation")
        .bugs(&["1"])
        .finds(&["VmTruncatesUnflushed"])
        .must(Every, &[Engine(FlushedPending), Machine(StaleUse)])
        .must(Every, &[Machine(CallReturned)])
        .vm_start(|k| _ = k.create_clean(1, 1).map_file(0, 1, 0).keep_table().read(0))
        .vm_cpu(|k| _ = k.discard(0, 1))
        .vm_cpu(|k| _ = k.truncate(0, 0, 0).tell(0))
        .vm_cpu(|k| _ = k.read(0).wait_for(0).read(0)),
    // CPU 0 discards two pages in the middle of an area for large pages, and finds nothing to split there. Then CPU 1
    // writes beside them, and its fault maps a large page across both edges.
    Scenario::over_vm("vm-discard-fault")
        .about("discard against a fault for a large page")
        .finds(&["VmDiscardsWholePage"])
        .must(Every, &[Machine(CallReturned)])
        .one_in(50)
        .steps(16_000)
        .with_memory([1100, 0])
        .vm_start(|k| _ = k.map_large(LARGE, LARGE))
        .vm_cpu(|k| _ = k.discard(LARGE + 2, 2))
        .vm_cpu(|k| _ = k.write(LARGE + 1, 2)),
    // CPU 0 discards memory. Before it has flushed, CPU 1 writes there, and its fault fills the empty entry. Where
    // break before make is required, the fault must first flush the entry that CPU 0 has cleared, because a page with
    // another frame takes its place.
    Scenario::over_vm("vm-discard-refill")
        .about("discard of a page against a fault there")
        .finds(&["VmRefillsUnflushed", "RulesOfAnother"])
        .must(Every, &[Machine(CallReturned)])
        .vm_start(written_page)
        .vm_cpu(|k| _ = k.discard(0, 1))
        .vm_cpu(|k| _ = k.write(0, 2)),
    // The same, but the file's page takes the place of its copy.
    Scenario::over_vm("vm-discard-refill-file")
        .about("discard of a private copy against a fault that finds the file's page")
        .finds(&["VmRefillsFileUnflushed"])
        .must(Every, &[Machine(CallReturned)])
        .vm_start(|k| _ = k.create_clean(1, 1).map_file_private(0, 1, 0).write(0, 2).keep_table())
        .vm_cpu(|k| _ = k.discard(0, 1))
        .vm_cpu(|k| _ = k.read(0)),
    // The same, but a base page takes the place of a large one.
    Scenario::over_vm("vm-discard-refill-smaller")
        .about("discard of a large page against a fault that finds memory for a small one")
        .finds(&["VmRefillsUnflushed"])
        .must(Every, &[Machine(CallReturned)])
        .one_in(5)
        // There is room for one large page, which the discard holds until it has flushed.
        .with_memory([1040, 0])
        .vm_start(|k| _ = k.map_large(0, LARGE).write(0, 1))
        .vm_cpu(|k| _ = k.discard(0, LARGE))
        .vm_cpu(|k| _ = k.write(0, 2)),
    // The same, but a table takes the place of the first of three large pages.
    Scenario::over_vm("vm-discard-refill-table")
        .about("discard of large pages against faults that put a table in place of the first")
        .finds(&["VmLinksTableUnflushed", "FlushedByReceipt"])
        .must(Every, &[Machine(CallReturned)])
        .one_in(5)
        // There is room for as many large pages as the discard holds until it has flushed.
        .with_memory([3 * LARGE + 528, 0])
        .vm_start(|k| {
            k.map_large(0, 3 * LARGE);
            for large in 0..3 {
                k.write(large * LARGE, 1);
            }
        })
        .vm_cpu(|k| _ = k.discard(0, 3 * LARGE))
        .vm_cpu(|k| _ = k.write(0, 2))
        .vm_cpu(|k| _ = k.write(0, 2)),
    // CPU 0 discards a page for which lazy reclaim has left a marker, and hasn't flushed yet. Meanwhile the frame is
    // reused, freed, and read back for the same page by CPU 1. After its flush, CPU 0 must release the old mapping, not
    // the new one.
    Scenario::over_vm("vm-discard-release")
        .about("discard of a marker while the frame is reused")
        .finds(&["VmUnlistsNextLife"])
        .must(Every, &[Machine(CallReturned)])
        // There are so few frames that the last one freed is used again.
        .with_memory([6, 0])
        .vm_start(|k| _ = k.create_clean(4, 1).map_file(1, 2, 0).map(8, 4).read(1))
        .vm_cpu(|k| _ = k.discard(1, 2))
        .vm_cpu(|k| _ = k.page_out(1, 1).write(8, 2).write(9, 3).discard(8, 4).read(1)),
    Scenario::over_vm("vm-truncate-middle")
        .about("truncation in the middle of a page")
        .finds(&["VmTruncatesUnmarked", "VmTruncateLeavesTail"])
        .must(Every, &[Machine(CallReturned)])
        .vm_start(|k| {
            k.create(1, 1).write_file(0, 0, 1, 2).sync(0).map_file_read(0, 1, 0).read(0);
        })
        .vm_cpu(|k| _ = k.truncate(0, 0, 1).page_out(0, 1))
        .vm_cpu(|k| _ = k.read(0)),
    Scenario::over_vm("vm-table-reuse")
        .about("a page table gets memory that a program has written")
        .finds(&["VmTablesUnzeroed"])
        .must(Every, &[Machine(FrameReused), Machine(Zeroed)])
        .with_memory([16, 0])
        .vm_start(|k| _ = k.map(0, 2).write(0, 1).write(1, 2).keep_table().map(2 * LARGE, 1))
        .vm_cpu(|k| _ = k.discard(0, 2).read(2 * LARGE))
        .vm_cpu(|k| _ = k.read(0)),
    Scenario::over_vm("vm-root-reuse")
        .about("a page of zeros gets the memory of a root table")
        .finds(&["VmRootStaysZero"])
        .must(Every, &[Machine(SpaceRetired), Machine(Zeroed)])
        .vm_start(|k| _ = k.map(0, 1).keep_table().spawn())
        .vm_cpu(|k| _ = k.exit(CHILD).read(0))
        .vm_cpu(|k| _ = k.read(0)),
    Scenario::over_vm("vm-read-behind-end")
        .about("a call that reads behind the end of a file")
        .finds(&["VmReadsBehindEnd"])
        .must(Every, &[Machine(CallReturned)])
        .vm_start(|k| _ = k.create(1, 1).map_file_read(0, 1, 0))
        .vm_cpu(|k| _ = k.truncate(0, 0, 1).read_file(0, 0, 1))
        .vm_cpu(|k| _ = k.read(0)),
    // A file ends after the first word of its page. CPU 0 stores to the second word, behind the end, and then truncates
    // the file to the same length, so that word becomes zero.
    Scenario::over_vm("vm-truncate-behind-end")
        .about("truncation of what a program has stored behind the end")
        .finds(&["VmTruncatesOnlyShorter"])
        .must(Every, &[Machine(CallReturned)])
        .vm_start(|k| _ = k.create(1, 1).truncate(0, 0, 1).map_file(0, 1, 0))
        .vm_cpu(|k| _ = k.write_second_word(0, 2).truncate(0, 0, 1))
        .vm_cpu(|k| _ = k.read(0)),
];

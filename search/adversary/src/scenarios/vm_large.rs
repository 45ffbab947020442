//! The memory manager: migration, and large pages whole and split.

use super::*;

/// Writes to a large page as the child.
fn write_as_child(k: &VmKernel<'_>, value: u64) {
    k.enter(CHILD);
    // This fails if there is no memory for a second copy in base pages.
    k.write(300, value);
}

pub(super) const ALL: &[Scenario] = &[
    Scenario::over_vm("vm-migrate-write")
        .about("migration against write")
        .finds(&["VmMigratesBeforeFlush"])
        .must(Every, &[Machine(Captured), Machine(StaleUse)])
        .with_memory([12, 4])
        .vm_start(written_page)
        .vm_cpu(|k| _ = k.migrate(0, 1, 1))
        .vm_cpu(|k| _ = k.write(0, 2).must_read(0, 2)),
    Scenario::over_vm("vm-migrate-reclaim")
        .about("migration against reclaim")
        .must(Every, &[Machine(Captured), Machine(StaleUse)])
        .with_memory([12, 4])
        .vm_start(written_page)
        .vm_cpu(|k| _ = k.migrate(0, 1, 1))
        .vm_cpu(|k| _ = k.page_out(0, 1))
        .vm_cpu(|k| _ = k.write(0, 2)),
    Scenario::over_vm("vm-demote-fork")
        .about("demotion against fork")
        .finds(&["VmForksPastMigration"])
        .must(Every, &[Machine(Captured)])
        .with_memory([24, 4])
        .vm_start(written_page)
        .vm_cpu(|k| _ = k.demote(1))
        .vm_cpu(|k| _ = k.fork().enter(CHILD).read(0)),
    // CPU 0 demotes a page while CPU 1 removes the right to write to it. The page mustn't come back with its old
    // rights.
    Scenario::over_vm("vm-demote-protect")
        .about("demotion against protect")
        .finds(&["VmProtectsPastMigration"])
        .must(Every, &[Machine(Captured)])
        .with_memory([12, 4])
        .vm_start(written_page)
        .vm_cpu(|k| _ = k.demote(2))
        .vm_cpu(|k| _ = k.protect(0, 1).read(0)),
    // CPU 0 unmaps an area while CPU 1 writes there. The fault holds the areas' lock until it has written the entry.
    Scenario::over_vm("vm-fault-unmap")
        .about("fault against unmap")
        .finds(&["VmFaultsUnlocked"])
        .must(Every, &[Machine(Fault)])
        .with_memory([12, 0])
        .vm_start(|k| _ = k.map(0, 1).keep_table())
        .vm_cpu(|k| _ = k.unmap(0, 1))
        .vm_cpu(|k| _ = k.write(0, 2)),
    Scenario::over_vm("vm-collapse-write")
        .about("collapse against write")
        .finds(&["VmCollapseCopiesBeforeFlush"])
        .must(Every, &[Machine(Captured)])
        .one_in(100)
        .steps(16_000)
        .with_memory([2072, 0])
        .vm_start(|k| {
            k.map(0, LARGE);
            for page in 0..LARGE {
                k.write(page, 1);
            }
        })
        .vm_cpu(|k| _ = k.collapse(0))
        // We use the page that is copied first, so that its old entry lives longest.
        .vm_cpu(|k| _ = k.write(0, 2)),
    // CPU 0 splits a large page while CPU 1 takes hold of it to migrate it, and finds no room for the whole page. CPU 1
    // runs the process, so its TLB may hold the large page until that is flushed.
    Scenario::over_vm("vm-split-migrate")
        .about("split against migration")
        .finds(&["VmSplitsUnlocked", "VmLinksBeforeFlush"])
        .must(Every, &[Machine(CallReturned)])
        .one_in(50)
        .steps(16_000)
        // Fast memory has room for one large page.
        .with_memory([1040, 8])
        .vm_start(|k| _ = k.map_large(0, LARGE).write(0, 1))
        .vm_cpu(|k| _ = k.discard(5, 1).write(0, 2))
        .vm_cpu(|k| _ = k.migrate(0, 1, 1)),
    // Pages that were written have become a large page, of which no entry is marked as written. CPU 0 frees two of its
    // base pages and allocates memory that must be zero. CPU 1 writes to the rest.
    Scenario::over_vm("vm-split-zero")
        .about("pieces of a large page are freed")
        .finds(&["VmPiecesAreZero"])
        .must(Every, &[Machine(FrameReused)])
        .one_in(50)
        .steps(64_000)
        .with_memory([1040, 0])
        .vm_start(|k| {
            k.map(0, LARGE);
            for page in 0..LARGE {
                k.write(page, 1);
            }
            k.collapse(0).map(LARGE, 2);
        })
        .vm_cpu(|k| {
            for page in [0, 1] {
                k.unmap(page, 1);
            }
            for page in [0, 1] {
                k.read(LARGE + page);
            }
        })
        .vm_cpu(|k| _ = k.write(LARGE - 1, 2)),
    // CPU 0 writes to a large page that it shares with a child. There is no room for a second large page, so the page
    // must be split. Meanwhile CPU 1 ends the child, so that only CPU 0 holds the page.
    Scenario::over_vm("vm-copy-split")
        .about("copy of a large page against exit")
        .finds(&["VmSplitsHeldBlock"])
        .must(Every, &[Machine(CallReturned)])
        .one_in(50)
        .steps(64_000)
        // There is room for one large page, and for its copy in base pages.
        .with_memory([1110, 0])
        .vm_start(|k| _ = k.map_large(0, LARGE).write(0, 1).fork())
        .vm_cpu(|k| _ = k.must_write(0, 2))
        .vm_cpu(|k| _ = k.exit(CHILD)),
    // Two CPUs of a child write to a large page that its parent also maps, and there is no room for a second large
    // page. Meanwhile the parent discards its mapping. The child's CPU that checks last finds that only the child holds
    // the page, and splits it in place. The other CPU has prepared a copy in base pages, but the page is no longer
    // whole, and its first part is in the same frame.
    Scenario::over_vm("vm-split-copy")
        .about("split of a large page against its copy in pieces")
        .finds(&["VmUnsharesPiece", "VmLargePageFlushedAsLeaf"])
        .must(Every, &[Machine(CallReturned)])
        .one_in(50)
        .steps(64_000)
        // There is room for one large page, and for one copy in base pages.
        .with_memory([1040, 0])
        .vm_start(|k| _ = k.map_large(0, LARGE).write(0, 1).fork())
        .vm_cpu(|k| _ = k.discard(0, LARGE))
        .vm_cpu(|k| write_as_child(k, 1))
        .vm_cpu(|k| write_as_child(k, 2)),
    // CPU 0 splits a large page that a child also maps, and has found its frame. Meanwhile CPU 1 stores to it, so it has a
    // copy of its own in another frame, and CPU 2 takes hold of that copy to migrate it.
    Scenario::over_vm("vm-split-copied")
        .about("split of a large page against migration of its copy")
        .must(Every, &[Machine(CallReturned)])
        .one_in(5)
        .steps(64_000)
        // There is room for one more large page on each node.
        .with_memory([1560, 1040])
        .vm_start(|k| _ = k.map_large(0, LARGE).write(0, 1).fork())
        .vm_cpu(|k| _ = k.discard(5, 1))
        .vm_cpu(|k| _ = k.write(0, 2).tell(0))
        .vm_cpu(|k| _ = k.wait_for(0).migrate(0, 1, 1)),
];

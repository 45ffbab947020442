//! The memory manager: migration, large pages, and their pieces.

use super::*;

/// Writes to a large page of the child.
fn write_as_child(k: &VmKernel<'_>, value: u64) {
    k.enter(CHILD);
    // Without memory for a second copy in pieces it fails.
    k.write(300, value);
}

pub(super) const ALL: &[Scenario] = &[
    // CPU 0 moves a page to another node while CPU 1 writes it.
    Scenario::over_vm("vm-migrate-write")
        .about("migration against write")
        .finds(&["VmMigratesBeforeFlush"])
        .must(Every, &[Machine(Captured), Machine(StaleUse)])
        .with_memory([12, 4])
        .vm_start(written_page)
        .vm_cpu(|k| k.migrate(0, 1, 1))
        .vm_cpu(|k| {
            k.write(0, 2);
            assert_eq!(k.read(0), Some(2));
        }),
    // CPU 0 moves a page to another node, CPU 1 reclaims it, CPU 2 writes it.
    Scenario::over_vm("vm-migrate-reclaim")
        .about("migration against reclaim")
        .must(Every, &[Machine(Captured), Machine(StaleUse)])
        .with_memory([12, 4])
        .vm_start(written_page)
        .vm_cpu(|k| k.migrate(0, 1, 1))
        .vm_cpu(|k| k.page_out(0, 1))
        .vm_cpu(|k| k.write(0, 2)),
    // CPU 0 demotes a page, without the areas' lock, while CPU 1 forks. The child has no entry that could wait for it.
    Scenario::over_vm("vm-demote-fork")
        .about("demotion against fork")
        .finds(&["VmForksPastMigration"])
        .must(Every, &[Machine(Captured)])
        .with_memory([24, 4])
        .vm_start(written_page)
        .vm_cpu(|k| k.demote(1))
        .vm_cpu(|k| {
            let child = k.fork();
            k.enter(child);
            k.read(0);
        }),
    // CPU 0 demotes both pages while CPU 1 takes the right to write away from one: it must not come back with the
    // rights that it had.
    Scenario::over_vm("vm-demote-protect")
        .about("demotion against protection")
        .finds(&["VmProtectsPastMigration"])
        .must(Every, &[Machine(Captured)])
        .with_memory([12, 4])
        .vm_start(written_page)
        .vm_cpu(|k| k.demote(2))
        .vm_cpu(|k| {
            k.protect(0, 1);
            k.read(0);
        }),
    // CPU 0 takes a mapping away while CPU 1 writes there: the fault holds the areas until it has written the entry.
    Scenario::over_vm("vm-fault-unmap")
        .about("fault against unmap")
        .finds(&["VmFaultsUnlocked"])
        .must(Every, &[Machine(Fault)])
        .with_memory([12, 0])
        .vm_start(|k| {
            k.map(0, 1);
            k.keep_table();
        })
        .vm_cpu(|k| k.unmap(0, 1))
        .vm_cpu(|k| {
            k.try_write(0, 2);
        }),
    // CPU 0 collapses 512 pages into a large one while CPU 1 writes one of them.
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
        .vm_cpu(|k| {
            assert!(k.collapse(0), "there is room for a large page");
        })
        // The page that is taken first, so that its old entry lives longest.
        .vm_cpu(|k| k.write(0, 2)),
    // CPU 0 splits a large page while CPU 1 takes hold of it, to move it, and finds no room for all of it. CPU 1 runs
    // the process: its TLB may hold the large page until that is flushed.
    Scenario::over_vm("vm-split-migrate")
        .about("split against migration")
        .finds(&["VmSplitsUnlocked", "VmLinksBeforeFlush"])
        .must(Every, &[Machine(CallReturned)])
        .one_in(50)
        .steps(16_000)
        // One large block, in fast memory.
        .with_memory([1040, 8])
        .vm_start(|k| {
            k.map_large(0, LARGE);
            k.write(0, 1);
        })
        .vm_cpu(|k| {
            k.discard(5, 1);
            k.write(0, 2);
        })
        .vm_cpu(|k| k.migrate(0, 1, 1)),
    // Pages that were written have become a large one, of which no entry says that it was written. CPU 0 takes two out
    // of it, and takes memory that must be zero; CPU 1 stores to what is left.
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
            assert!(k.collapse(0));
            k.map(LARGE, 2);
        })
        .vm_cpu(|k| {
            for page in [0, 1] {
                k.unmap(page, 1);
            }
            for page in [0, 1] {
                k.read(LARGE + page);
            }
        })
        .vm_cpu(|k| k.write(LARGE - 1, 2)),
    // CPU 0 writes a large page that it shares with a child, and there is no second block to copy it to: the
    // page is to be split. Meanwhile CPU 1 ends the child, and CPU 0 alone holds the page.
    Scenario::over_vm("vm-copy-split")
        .about("copy of a large page against exit")
        .finds(&["VmSplitsHeldBlock"])
        .must(Every, &[Machine(CallReturned)])
        .one_in(50)
        .steps(64_000)
        // One large block, and enough around it for a copy in pieces.
        .with_memory([1110, 0])
        .vm_start(|k| {
            k.map_large(0, LARGE);
            k.write(0, 1);
            assert_eq!(k.fork(), CHILD);
        })
        .vm_cpu(|k| {
            assert!(k.try_write(0, 2), "there is room for a copy in pieces");
        })
        .vm_cpu(|k| k.exit(CHILD)),
    // Two CPUs of a child write to a large page that its parent maps too, and there is no second block to copy it to.
    // Meanwhile the parent drops its own: whichever child's CPU looks last finds the child alone, and splits the page
    // in place. The other has its copy in pieces ready for a page that is whole no more, and whose first piece lies in
    // the same frame.
    Scenario::over_vm("vm-split-copy")
        .about("split of a large page against its copy in pieces")
        .finds(&["VmUnsharesPiece", "VmLargePageFlushedAsLeaf"])
        .must(Every, &[Machine(CallReturned)])
        .one_in(50)
        .steps(64_000)
        // One large block, and enough around it for one copy in pieces.
        .with_memory([1040, 0])
        .vm_start(|k| {
            k.map_large(0, LARGE);
            k.write(0, 1);
            assert_eq!(k.fork(), CHILD);
        })
        .vm_cpu(|k| k.discard(0, LARGE))
        .vm_cpu(|k| write_as_child(k, 1))
        .vm_cpu(|k| write_as_child(k, 2)),
];

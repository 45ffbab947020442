//! The memory manager: unmapping, reclaim and swap.

use super::*;

pub(super) const ALL: &[Scenario] = &[
    Scenario::over_vm("vm-unmap-access")
        .about("unmap, free and zero against access")
        .bugs(&["30"])
        .must(Every, &[Engine(Requested), Machine(StaleUse), Machine(FrameReused)])
        .must(Every, &[Machine(Zeroed)])
        .vm_start(written_page_of_two)
        .vm_cpu(|k| _ = k.unmap(0, 1).read(1))
        .vm_cpu(|k| _ = k.write(0, 2).read(0)),
    Scenario::over_vm("vm-table-free")
        .about("a table page is freed against a walk")
        .bugs(&["10", "11"])
        .finds(&["VmFreesTableBeforeFlush", "VmTableFlushLeafOnly", "VmLockTakenRelaxed"])
        .must(Every, &[Engine(Requested), Machine(TableFreed)])
        .vm_start(|k| _ = k.map(0, 1).write(0, 1))
        .vm_cpu(|k| _ = k.unmap(0, 1).map(0, 1).write(0, 3))
        .vm_cpu(|k| _ = k.write(0, 2).read(0)),
    // CPU 0 unmaps everything that a leaf table maps. CPU 1, which is idle, may still walk it speculatively. One
    // schedule in a hundred interrupts the idle CPU.
    Scenario::over_vm("vm-table-free-idle")
        .about("a table page is freed against an idle CPU")
        .bugs(&["10"])
        .must(Every, &[Machine(TableFreed)])
        .must(Interrupts, &[Engine(Evicted)])
        .one_in(1)
        .vm_start(|k| _ = k.map(0, 1).write(0, 1))
        .vm_cpu(|k| _ = k.unmap(0, 1))
        .vm_cpu(|k| _ = k.idle().read(0)),
    // CPU 0 unmaps the only page of a leaf table. CPU 1 writes to an area beside it, in the same table.
    Scenario::over_vm("vm-table-free-fault")
        .about("a table page is freed against a fault beside it")
        .must(Every, &[Engine(Requested), Machine(TableFreed)])
        .vm_start(|k| _ = k.map(0, 2).write(0, 1))
        .vm_cpu(|k| _ = k.unmap(0, 1))
        .vm_cpu(|k| _ = k.read(0).write(1, 2).must_read(1, 2)),
    Scenario::over_vm("vm-unmap-map")
        .about("unmap against a new mapping")
        .finds(&["VmUnmapsUnlocked"])
        .must(Every, &[Machine(CallReturned)])
        .vm_start(written_page)
        .vm_cpu(|k| _ = k.unmap(0, 1))
        .vm_cpu(|k| _ = k.map(0, 1).write(0, 2).read(0)),
    // CPU 0 reclaims a page: it clears the entry and flushes later. In between, CPU 1 makes a call about the page and
    // finds nothing to flush. The call mustn't return while a TLB may hold the old entry. The next three scenarios are
    // similar.
    Scenario::over_vm("vm-reclaim-unmap")
        .about("reclaim against unmap")
        .bugs(&["6", "19"])
        .finds(&["VmUnmapsUnflushed"])
        .must(Every, &[Engine(FlushedPending), Machine(CallReturned)])
        .with_memory([8, 0])
        .vm_start(written_page)
        .vm_cpu(|k| _ = k.reclaim(1))
        .vm_cpu(|k| _ = k.unmap(0, 1).read(0)),
    Scenario::over_vm("vm-reclaim-discard")
        .about("reclaim against discard")
        .bugs(&["4", "6"])
        .finds(&["VmDiscardsUnflushed"])
        .must(Every, &[Engine(FlushedPending), Machine(CallReturned)])
        .with_memory([8, 0])
        .vm_start(written_page)
        .vm_cpu(|k| _ = k.reclaim(1))
        .vm_cpu(|k| _ = k.discard(0, 1).read(0)),
    Scenario::over_vm("vm-reclaim-protect")
        .about("reclaim against protect")
        .bugs(&["3", "19"])
        .finds(&["VmProtectsUnflushed"])
        .must(Every, &[Engine(FlushedPending), Machine(CallReturned)])
        .with_memory([8, 0])
        .vm_start(written_page)
        .vm_cpu(|k| _ = k.reclaim(1))
        .vm_cpu(|k| _ = k.protect(0, 1).write(0, 3)),
    Scenario::over_vm("vm-reclaim-remap")
        .about("reclaim against remap")
        .finds(&["VmRemapsUnflushed"])
        .must(Every, &[Engine(FlushedPending), Machine(CallReturned)])
        .with_memory([8, 0])
        .vm_start(written_page)
        .vm_cpu(|k| _ = k.reclaim(1))
        .vm_cpu(|k| _ = k.remap(0, 1, 2).read(0).read(2)),
    // CPU 0 reclaims a page that CPU 1 is writing, while CPU 2 forks. The child must see everything written before the
    // fork, and nothing written later.
    Scenario::over_vm("vm-reclaim-fork")
        .about("reclaim against fork and write")
        .bugs(&["21"])
        .must(Every, &[Machine(Captured)])
        .with_memory([14, 0])
        .vm_start(written_page)
        .vm_cpu(|k| _ = k.reclaim(1))
        .vm_cpu(|k| _ = k.write(0, 2))
        .vm_cpu(|k| {
            k.fork().enter(CHILD);
            let seen = k.load(0);
            k.enter(1).read(0).enter(CHILD);
            // The child's copy is independent of the parent.
            assert_eq!(k.load(0), seen);
        }),
    Scenario::over_vm("vm-page-out-twice")
        .about("page-out against page-out")
        .must(Every, &[Machine(Captured)])
        .vm_start(written_page)
        .vm_cpu(|k| _ = k.page_out(0, 1))
        .vm_cpu(|k| _ = k.page_out(0, 1).write(0, 2).must_read(0, 2)),
    // CPU 0 pages out a page while CPU 1 writes to it. No written content may be lost.
    Scenario::over_vm("vm-page-out-write")
        .about("page-out against write")
        .bugs(&["3"])
        .finds(&["VmWritesOutBeforeFlush"])
        .must(Every, &[Machine(Captured)])
        .with_memory([16, 0])
        .vm_start(written_page)
        .vm_cpu(|k| _ = k.page_out(0, 1))
        .vm_cpu(|k| _ = k.write(0, 2).must_read(0, 2)),
    // CPU 0 is paging out a page. CPU 1 pages it in again and writes to it, and CPU 2 still writes through the old
    // entry.
    Scenario::over_vm("vm-swap-in-write")
        .about("swap-in against page-out")
        .finds(&["VmCopiesUnflushed"])
        .must(Every, &[Machine(Captured), Machine(StaleUse)])
        .with_memory([16, 0])
        .vm_start(written_page)
        .vm_cpu(|k| _ = k.page_out(0, 1))
        .vm_cpu(|k| _ = k.write(0, 2).read(0))
        .vm_cpu(|k| _ = k.write(0, 3)),
];

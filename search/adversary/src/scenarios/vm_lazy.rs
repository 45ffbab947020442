//! The memory manager: lazy reclaim and migration, idle and offline CPUs.

use super::*;

/// Reads the old content, and then the content that CPU 0 has written.
fn read_old_then_new(k: &VmKernel<'_>) {
    k.read(0).wait_for(0).must_read(0, 2);
}

fn write_file(k: &VmKernel<'_>) {
    k.write_file(0, 0, 0, 2).tell(0);
}

pub(super) const ALL: &[Scenario] = &[
    // File 0 is mapped read-only and reclaimed lazily. CPU 0 maps file 1 over it. After the call has returned, CPU 1
    // mustn't read file 0 any more.
    Scenario::over_vm("vm-luf-map-fixed")
        .about("another file is mapped over a lazily reclaimed page")
        .bugs(&["L1"])
        .finds(&["VmIgnoresMarker", "VmRewritesDeferredEntry"])
        .must(Every, &[Engine(FlushesDeferred), Machine(CallReturned)])
        .must(Every, &[Machine(StaleUse)])
        .vm_start(|k| {
            k.create_clean(1, 1).map_file_read(0, 1, 0).create_clean(1, 2).read(0).keep_table();
        })
        .vm_start_1(|k| _ = k.page_out(0, 1))
        .vm_cpu(|k| _ = k.map_file_read(0, 1, 1).must_read(0, 2))
        .vm_cpu(|k| _ = k.read(0).read(0)),
    // A file page is mapped read-only and reclaimed lazily. CPU 0 writes to the file. After the call has returned, CPU
    // 1 must read the new content.
    Scenario::over_vm("vm-luf-file-write")
        .about("the file of a lazily reclaimed page is written")
        .bugs(&["L2"])
        .finds(&["VmRefillsDeferredSlot"])
        .must(Every, &[Engine(FlushesDeferred), Machine(FrameReinstated)])
        .must(Every, &[Machine(Compared)])
        .vm_start(clean_file)
        .vm_start_1(|k| _ = k.page_out(0, 1))
        .vm_cpu(write_file)
        .vm_cpu(read_old_then_new),
    // One file is mapped read-only at page 0 and writable at page 1. Page 0 is reclaimed lazily. CPU 0 writes through
    // page 1. CPU 1 mustn't read the old content at page 0.
    Scenario::over_vm("vm-luf-shared-write")
        .about("a lazily reclaimed page is written through another mapping")
        .bugs(&["L3"])
        .finds(&["VmRefillsDeferredSlot"])
        .must(Every, &[Engine(FlushesDeferred), Machine(FrameReinstated)])
        .vm_start(|k| {
            k.create_clean(1, 1).map_file_read(0, 1, 0).map_file(1, 1, 0).read(0).read(1);
            k.keep_table();
        })
        .vm_start_1(|k| _ = k.page_out(0, 1))
        .vm_cpu(|k| _ = k.write(1, 2).tell(0))
        .vm_cpu(read_old_then_new),
    // A file page is mapped read-only and reclaimed lazily. CPU 0 reuses its frame for another page. CPU 1 mustn't read
    // that page through the old entry.
    Scenario::over_vm("vm-luf-kernel-reuse")
        .about("the frame of a lazily reclaimed page is reused")
        .bugs(&["L4"])
        .must(Every, &[Engine(FlushesDeferred), Engine(FlushedForReuse)])
        .must(Every, &[Machine(FrameReused)])
        .with_memory([7, 0])
        .vm_start(|k| _ = k.read_clean_file(0).map(1, 3))
        .vm_start_1(|k| {
            k.page_out(0, 1);
            // No other memory is free after this.
            k.read(1).read(2);
        })
        .vm_cpu(|k| _ = k.write(3, 7))
        .vm_cpu(|k| _ = k.read(0)),
    // A file page is migrated to another node lazily, so page 0 may still be read at its old place. CPU 0 writes to the
    // file. After the call has returned, CPU 1 must read the new content.
    Scenario::over_vm("vm-shadow-write")
        .about("the file of a lazily migrated page is written")
        .bugs(&["L2", "L3"])
        .finds(&["VmWritesShadowedPage"])
        .must(Every, &[Engine(FlushesDeferred), Engine(FlushedInBackground)])
        .with_memory([12, 4])
        .vm_start(clean_file)
        .vm_start_1(|k| _ = k.migrate(0, 1, 1))
        .vm_cpu(write_file)
        .vm_cpu(read_old_then_new),
    // A file page was migrated to another node lazily, used there, and migrated back in the same way. So page 0 may
    // still be read at the place in between. CPU 0 writes to the file. After the call has returned, CPU 1 must read the
    // new content.
    Scenario::over_vm("vm-shadow-twice")
        .about("the file of a page that was migrated lazily twice is written")
        .must(Every, &[Engine(FlushesDeferred), Engine(FlushedInBackground)])
        .with_memory([12, 4])
        .vm_start(clean_file)
        .vm_start_1(|k| {
            for node in [1, 0] {
                k.migrate(0, 1, node);
                if node == 1 {
                    k.read(0);
                }
            }
        })
        .vm_cpu(write_file)
        .vm_cpu(|k| _ = k.wait_for(0).must_read(0, 2)),
    // A file page is migrated to another node lazily. CPU 0 faults on it, which writes another frame into the emptied
    // entry. CPU 1 reads. Then CPU 0 writes to the file.
    Scenario::over_vm("vm-shadow-fault")
        .about("the entry of a lazily migrated page is written again")
        .bugs(&["L1"])
        .finds(&["VmWritesShadowedPage"])
        .must(Every, &[Engine(FlushesDeferred), Engine(FlushedForRefill)])
        .with_memory([12, 4])
        .vm_start(clean_file)
        .vm_start_1(|k| _ = k.migrate(0, 1, 1))
        .vm_cpu(|k| _ = k.read(0).write_file(0, 0, 0, 2))
        .vm_cpu(|k| _ = k.read(0).read(0)),
    // A file page is mapped writable, and dirty. CPU 0 reclaims it while CPU 1 writes to it. Memory is so short that
    // the frame is reused at once. No written content may be lost.
    Scenario::over_vm("vm-deferred-dirty")
        .about("reclaim of a dirty page against write and reuse")
        .bugs(&["L3"])
        .finds(&["VmDefersDirtyPages"])
        .must(Every, &[Machine(Captured), Machine(FrameReused)])
        .with_memory([7, 0])
        .vm_start(|k| _ = k.create(1, 1).map_file(0, 1, 0).write(0, 1).map(1, 2))
        .vm_cpu(|k| _ = k.page_out(0, 1).read(1).read(2))
        .vm_cpu(|k| _ = k.write(0, 2)),
    // A file page was reclaimed lazily. CPU 0 needs it again, CPU 1 needs its frame, and CPU 2 reads through the old
    // entry.
    Scenario::over_vm("vm-reinstate-reuse")
        .about("reinstating a frame against reusing it")
        .must(Every, &[Engine(FlushesDeferred), Machine(FrameReinstated)])
        .must(Every, &[Engine(FlushedForReuse)])
        .with_memory([7, 0])
        .vm_start(|k| _ = k.read_clean_file(0).map(1, 3))
        .vm_start_1(|k| {
            k.page_out(0, 1);
            // No other memory is free after this.
            k.read(1).read(2);
        })
        .vm_cpu(|k| _ = k.read_file(0, 0, 0))
        .vm_cpu(|k| _ = k.write(3, 7))
        .vm_cpu(|k| _ = k.read(0)),
    Scenario::over_vm("vm-lazy-reclaim-discard")
        .about("lazy reclaim against discard")
        .must(Every, &[Engine(FlushesDeferred), Machine(CallReturned)])
        .vm_start(clean_file)
        .vm_cpu(|k| _ = k.page_out(0, 1))
        .vm_cpu(|k| _ = k.discard(0, 1).read(0))
        .vm_cpu(|k| _ = k.read(0)),
    Scenario::over_vm("vm-lazy-reclaim-protect")
        .about("lazy reclaim against protect")
        .must(Every, &[Engine(FlushesDeferred), Machine(CallReturned)])
        .vm_start(clean_file)
        .vm_cpu(|k| _ = k.page_out(0, 1))
        .vm_cpu(|k| _ = k.forbid(0, 1))
        .vm_cpu(|k| _ = k.read(0).read(0)),
    Scenario::over_vm("vm-lazy-reclaim-private")
        .about("lazy reclaim against copy on write")
        .must(Every, &[Engine(FlushesDeferred), Machine(Captured)])
        .vm_start(|k| _ = k.create_clean(1, 1).map_file_private(0, 1, 0).read(0).keep_table())
        .vm_cpu(|k| _ = k.page_out(0, 1).read(0))
        .vm_cpu(|k| _ = k.write(0, 2).must_read(0, 2)),
    Scenario::over_vm("vm-zero-ahead")
        .about("zeroing ahead against faults")
        .finds(&["ZeroSkipsTail", "ZeroSkipsFaultingPage", "VmKeepsZeroFlag", "VmSkipsZeroing"])
        .must(Every, &[Machine(Zeroed), Machine(FrameReused)])
        .vm_start(|k| _ = k.map(0, 1).write(0, 1).map(1, 2).keep_table())
        .vm_cpu(|k| _ = k.unmap(0, 1).idle().read(1))
        .vm_cpu(|k| _ = k.write(2, 2).read(1)),
    // CPU 0 ends a process, frees its tables and uses them again. CPU 1, which is idle, may still have the process's
    // root loaded.
    Scenario::over_vm("vm-exit-lazy")
        .about("the end of a process against a lazy CPU")
        .bugs(&["25"])
        .must(Every, &[Machine(SpaceRetired), Machine(TableFreed)])
        .vm_start_1(|k| _ = k.spawn().enter(CHILD).map(0, 1).write(0, 1))
        .vm_cpu(|k| _ = k.make_at_last(Call::Exit { process: 2 }).map(0, 1).write(0, 2))
        .vm_cpu(|k| _ = k.leave().tell(0).wait_for(0).enter(1).read(0)),
    // CPU 0 runs so many processes that tags run out, and enters the first one again. CPU 1 unmaps a page of the first
    // one.
    Scenario::over_vm("vm-rollover-unmap")
        .about("tag rollover against unmap")
        .bugs(&["16"])
        .must(Scarce, &[Engine(Rollovers)])
        .must(Every, &[Machine(CallReturned)])
        .vm_start(|k| {
            k.map(0, 1).write(0, 1).keep_table();
            for _ in 0..3 {
                k.spawn();
            }
        })
        .vm_cpu(|k| {
            for process in [2, 3, 4, 1] {
                k.enter(process).read(0);
            }
        })
        .vm_cpu(|k| _ = k.unmap(0, 1)),
    Scenario::over_vm("vm-offline-unmap")
        .about("offline against unmap")
        .must(Every, &[Machine(Offline), Machine(FrameReused)])
        .vm_start(written_page_of_two)
        .vm_cpu(|k| _ = k.unmap(0, 1).read(1))
        .vm_cpu(|k| _ = k.offline().online().enter(1).read(0)),
    // CPU 0 discards pages. CPU 1 writes to memory that it gets only after their frames are free. CPU 2 keeps writing
    // to the old pages.
    Scenario::over_vm("vm-allocate-flush")
        .about("allocation against a flush in flight")
        .bugs(&["30"])
        .must(Every, &[Machine(FrameReused), Machine(StaleUse)])
        .with_memory([8, 0])
        .vm_start(|k| _ = k.map(0, 3).write(0, 1).write(1, 1))
        .vm_cpu(|k| _ = k.discard(0, 2))
        .vm_cpu(|k| _ = k.write(2, 2))
        .vm_cpu(|k| _ = k.write(0, 3).write(1, 3)),
    Scenario::over_vm("vm-discard-twice")
        .about("discard against discard")
        .bugs(&["6"])
        .finds(&["VmDiscardsUnflushed"])
        .must(Every, &[Engine(FlushedPending), Machine(CallReturned)])
        .vm_start(|k| _ = k.map(0, 2).write(0, 1).write(1, 1).keep_table())
        .vm_cpu(|k| _ = k.discard(0, 2).read(1))
        .vm_cpu(|k| _ = k.discard(1, 1).read(1)),
    Scenario::over_vm("vm-idle-unmap")
        .about("idle against unmap")
        .bugs(&["34"])
        .must(Every, &[Machine(FrameReused)])
        .must(Interrupts, &[Engine(SkippedLazy)])
        .vm_start(written_page_of_two)
        .vm_cpu(|k| _ = k.unmap(0, 1).read(1))
        .vm_cpu(|k| _ = k.idle().read(0)),
];

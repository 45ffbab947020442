//! The memory manager: lazy reclaim and migration, idle and offline CPUs.

use super::*;

/// Reads what was there before, and then what CPU 0 has written.
fn read_old_then_new(k: &VmKernel<'_>) {
    k.read(0);
    k.wait_for(0);
    assert_eq!(k.read(0), Some(2));
}

fn write_file(k: &VmKernel<'_>) {
    k.write_file(0, 0, 2);
    k.tell(0);
}

pub(super) const ALL: &[Scenario] = &[
    // File 0 is mapped to read and reclaimed without a flush. CPU 0 maps file 1 over it; CPU 1 must not read
    // file 0 any more once the call has returned.
    Scenario::over_vm("vm-luf-map-fixed")
        .about("another file is mapped over a lazily reclaimed page")
        .bugs(&["L1"])
        .finds(&["VmIgnoresMarker", "VmRewritesDeferredEntry"])
        .must(Every, &[Engine(FlushesDeferred), Machine(CallReturned)])
        .must(Every, &[Machine(StaleUse)])
        .vm_start(|k| {
            let one = k.create_clean(1, 1);
            k.map_file_read(0, 1, one);
            k.create_clean(1, 2);
            k.read(0);
            k.keep_table();
        })
        .vm_start_1(|k| k.page_out(0, 1))
        .vm_cpu(|k| {
            k.map_file_read(0, 1, 1);
            assert_eq!(k.read(0), Some(2));
        })
        .vm_cpu(|k| {
            k.read(0);
            k.read(0);
        }),
    // A file page is mapped to read and reclaimed without a flush. CPU 0 writes the file; CPU 1 must read what
    // was written once the call has returned.
    Scenario::over_vm("vm-luf-file-write")
        .about("the file of a lazily reclaimed page is written")
        .bugs(&["L2"])
        .finds(&["VmRefillsDeferredSlot"])
        .must(Every, &[Engine(FlushesDeferred), Machine(FrameReinstated)])
        .must(Every, &[Machine(Compared)])
        .vm_start(clean_file)
        .vm_start_1(|k| k.page_out(0, 1))
        .vm_cpu(write_file)
        .vm_cpu(read_old_then_new),
    // One file is mapped to read at page 0 and to write at page 1. Page 0 is reclaimed without a flush; CPU 0
    // writes through page 1; CPU 1 must not read old bytes at page 0.
    Scenario::over_vm("vm-luf-shared-write")
        .about("a lazily reclaimed page is written through another mapping")
        .bugs(&["L3"])
        .finds(&["VmRefillsDeferredSlot"])
        .must(Every, &[Engine(FlushesDeferred), Machine(FrameReinstated)])
        .vm_start(|k| {
            let file = k.create_clean(1, 1);
            k.map_file_read(0, 1, file);
            k.map_file(1, 1, file);
            k.read(0);
            k.read(1);
            k.keep_table();
        })
        .vm_start_1(|k| k.page_out(0, 1))
        .vm_cpu(|k| {
            k.write(1, 2);
            k.tell(0);
        })
        .vm_cpu(read_old_then_new),
    // A file page is mapped to read and reclaimed without a flush. CPU 0 needs its frame for a page of its own;
    // CPU 1 must not read that through the old entry.
    Scenario::over_vm("vm-luf-kernel-reuse")
        .about("the frame of a lazily reclaimed page is reused")
        .bugs(&["L4"])
        .must(Every, &[Engine(FlushesDeferred), Engine(FlushedForReuse)])
        .must(Every, &[Machine(FrameReused)])
        .with_memory([7, 0])
        .vm_start(|k| {
            k.read_clean_file(0);
            k.map(1, 3);
        })
        .vm_start_1(|k| {
            k.page_out(0, 1);
            // Nothing else is free.
            k.read(1);
            k.read(2);
        })
        .vm_cpu(|k| k.write(3, 7))
        .vm_cpu(|k| {
            k.read(0);
        }),
    // A file page is moved to another node without a flush: page 0 may still be read at its old place. CPU 0
    // writes the file; CPU 1 must read what was written once the call has returned.
    Scenario::over_vm("vm-shadow-write")
        .about("the file of a lazily moved page is written")
        .bugs(&["L2", "L3"])
        .finds(&["VmWritesShadowedPage"])
        .must(
            Every,
            &[Engine(FlushesDeferred), Engine(FlushedInBackground)],
        )
        .with_memory([12, 4])
        .vm_start(clean_file)
        .vm_start_1(|k| k.migrate(0, 1, 1))
        .vm_cpu(write_file)
        .vm_cpu(read_old_then_new),
    // A file page was moved to another node without a flush, used there, and moved back in the same way: page 0 may
    // still be read at the place between. CPU 0 writes the file; CPU 1 must read what was written once the call has
    // returned.
    Scenario::over_vm("vm-shadow-twice")
        .about("the file of a page that was moved lazily twice is written")
        .must(
            Every,
            &[Engine(FlushesDeferred), Engine(FlushedInBackground)],
        )
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
        .vm_cpu(|k| {
            k.wait_for(0);
            assert_eq!(k.read(0), Some(2));
        }),
    // A file page is moved to another node without a flush; CPU 0 faults on it, which writes the emptied entry
    // again with another frame; CPU 1 reads; then CPU 0 unmaps it.
    Scenario::over_vm("vm-shadow-fault")
        .about("the entry of a lazily moved page is written again")
        .bugs(&["L1"])
        .finds(&["VmWritesShadowedPage"])
        .must(Every, &[Engine(FlushesDeferred), Engine(FlushedForRefill)])
        .with_memory([12, 4])
        .vm_start(clean_file)
        .vm_start_1(|k| k.migrate(0, 1, 1))
        .vm_cpu(|k| {
            k.read(0);
            k.write_file(0, 0, 2);
        })
        .vm_cpu(|k| {
            k.read(0);
            k.read(0);
        }),
    // A file page is mapped to write and dirty; CPU 0 reclaims it, CPU 1 writes it meanwhile, and memory is so
    // short that the frame is reused at once: nothing that was written may be lost.
    Scenario::over_vm("vm-deferred-dirty")
        .about("reclaim of a dirty page against write and reuse")
        .bugs(&["L3"])
        .finds(&["VmDefersDirtyPages"])
        .must(Every, &[Machine(Captured), Machine(FrameReused)])
        .with_memory([7, 0])
        .vm_start(|k| {
            let file = k.create(1, 1);
            k.map_file(0, 1, file);
            k.write(0, 1);
            k.map(1, 2);
        })
        .vm_cpu(|k| {
            k.page_out(0, 1);
            k.read(1);
            k.read(2);
        })
        .vm_cpu(|k| k.write(0, 2)),
    // A file page was reclaimed without a flush. CPU 0 wants it back, CPU 1 needs its frame; CPU 2 reads
    // through the old entry.
    Scenario::over_vm("vm-reinstate-reuse")
        .about("reinstating a frame against reusing it")
        .must(Every, &[Engine(FlushesDeferred), Machine(FrameReinstated)])
        .must(Every, &[Engine(FlushedForReuse)])
        .with_memory([7, 0])
        .vm_start(|k| {
            k.read_clean_file(0);
            k.map(1, 3);
        })
        .vm_start_1(|k| {
            k.page_out(0, 1);
            // Nothing else is free.
            k.read(1);
            k.read(2);
        })
        .vm_cpu(|k| {
            assert_eq!(k.read_file(0, 0), Some(1));
        })
        .vm_cpu(|k| k.write(3, 7))
        .vm_cpu(|k| {
            k.read(0);
        }),
    // A file page is reclaimed without a flush while CPU 1 discards it and CPU 2 reads it.
    Scenario::over_vm("vm-lazy-reclaim-discard")
        .about("lazy reclaim against discard")
        .must(Every, &[Engine(FlushesDeferred), Machine(CallReturned)])
        .vm_start(clean_file)
        .vm_cpu(|k| k.page_out(0, 1))
        .vm_cpu(|k| {
            k.discard(0, 1);
            k.read(0);
        })
        .vm_cpu(|k| {
            k.read(0);
        }),
    // A file page is reclaimed without a flush while CPU 1 takes every right to it away and CPU 2 reads it.
    Scenario::over_vm("vm-lazy-reclaim-protect")
        .about("lazy reclaim against protect")
        .must(Every, &[Engine(FlushesDeferred), Machine(CallReturned)])
        .vm_start(clean_file)
        .vm_cpu(|k| k.page_out(0, 1))
        .vm_cpu(|k| k.forbid(0, 1))
        .vm_cpu(|k| {
            k.read(0);
            k.read(0);
        }),
    // A private file page is reclaimed without a flush while CPU 1 writes it, which makes a copy of its own.
    Scenario::over_vm("vm-lazy-reclaim-private")
        .about("lazy reclaim against copy on write")
        .must(Every, &[Engine(FlushesDeferred), Machine(Captured)])
        .vm_start(|k| {
            let file = k.create_clean(1, 1);
            k.map_file_private(0, 1, file);
            k.read(0);
            k.keep_table();
        })
        .vm_cpu(|k| {
            k.page_out(0, 1);
            k.read(0);
        })
        .vm_cpu(|k| {
            k.write(0, 2);
            assert_eq!(k.read(0), Some(2));
        }),
    // CPU 0 frees a page that it has written, goes idle and zeroes free memory; CPU 1 takes memory meanwhile.
    Scenario::over_vm("vm-zero-ahead")
        .about("zeroing ahead against faults")
        .finds(&[
            "ZeroSkipsTail",
            "ZeroSkipsFaultingPage",
            "VmKeepsZeroFlag",
            "VmSkipsZeroing",
        ])
        .must(Every, &[Machine(Zeroed), Machine(FrameReused)])
        .vm_start(|k| {
            k.map(0, 1);
            k.write(0, 1);
            k.map(1, 2);
            k.keep_table();
        })
        .vm_cpu(|k| {
            k.unmap(0, 1);
            k.idle();
            k.read(1);
        })
        .vm_cpu(|k| {
            k.write(2, 2);
            k.read(1);
        }),
    // CPU 0 ends a process whose root CPU 1, idle, may still have loaded; its tables are freed and used again.
    Scenario::over_vm("vm-exit-lazy")
        .about("the end of a process against a lazy CPU")
        .bugs(&["25"])
        .must(Every, &[Machine(SpaceRetired), Machine(TableFreed)])
        .vm_start_1(|k| {
            let process = k.spawn();
            k.enter(process);
            k.map(0, 1);
            k.write(0, 1);
        })
        .vm_cpu(|k| {
            while k.try_call(Call::Exit { process: 2 }).is_err() {
                k.pause();
            }
            k.map(0, 1);
            k.write(0, 2);
        })
        .vm_cpu(|k| {
            k.vm.leave();
            k.tell(0);
            k.wait_for(0);
            k.enter(1);
            k.read(0);
        }),
    // CPU 0 goes through so many processes that tags run out; CPU 1 unmaps a page of the first, which CPU 0
    // enters again.
    Scenario::over_vm("vm-rollover-unmap")
        .about("tag rollover against unmap")
        .bugs(&["16"])
        .must(Scarce, &[Engine(Rollovers)])
        .must(Every, &[Machine(CallReturned)])
        .vm_start(|k| {
            k.map(0, 1);
            k.write(0, 1);
            k.keep_table();
            for _ in 0..3 {
                k.spawn();
            }
        })
        .vm_cpu(|k| {
            for process in [2, 3, 4, 1] {
                k.enter(process);
                k.read(0);
            }
        })
        .vm_cpu(|k| k.unmap(0, 1)),
    // CPU 1 goes offline and comes back while CPU 0 unmaps a page that CPU 1 was using.
    Scenario::over_vm("vm-offline-unmap")
        .about("offline against unmap")
        .must(Every, &[Machine(Offline), Machine(FrameReused)])
        .vm_start(written_page_of_two)
        .vm_cpu(|k| {
            k.unmap(0, 1);
            k.read(1);
        })
        .vm_cpu(|k| {
            k.offline();
            k.online();
            k.enter(1);
            k.read(0);
        }),
    // CPU 0 discards pages, CPU 1 writes to memory that it finds only once their frames are free, CPU 2 goes on
    // writing the old ones.
    Scenario::over_vm("vm-allocate-flush")
        .about("allocation against a flush in flight")
        .bugs(&["30"])
        .must(Every, &[Machine(FrameReused), Machine(StaleUse)])
        .with_memory([8, 0])
        .vm_start(|k| {
            k.map(0, 3);
            k.write(0, 1);
            k.write(1, 1);
        })
        .vm_cpu(|k| k.discard(0, 2))
        .vm_cpu(|k| k.write(2, 2))
        .vm_cpu(|k| {
            k.write(0, 3);
            k.write(1, 3);
        }),
    // Two CPUs discard overlapping ranges: each finds entries that the other has cleared and not yet flushed.
    Scenario::over_vm("vm-discard-twice")
        .about("discard against discard")
        .bugs(&["6"])
        .finds(&["VmDiscardsUnflushed"])
        .must(Every, &[Engine(FlushedPending), Machine(CallReturned)])
        .vm_start(|k| {
            k.map(0, 2);
            k.write(0, 1);
            k.write(1, 1);
            k.keep_table();
        })
        .vm_cpu(|k| {
            k.discard(0, 2);
            k.read(1);
        })
        .vm_cpu(|k| {
            k.discard(1, 1);
            k.read(1);
        }),
    // CPU 1 goes idle and comes back while CPU 0 unmaps a page, whose frame comes back as another.
    Scenario::over_vm("vm-idle-unmap")
        .about("idle against unmap")
        .bugs(&["34"])
        .must(Every, &[Machine(FrameReused)])
        .must(Interrupts, &[Engine(SkippedLazy)])
        .vm_start(written_page_of_two)
        .vm_cpu(|k| {
            k.unmap(0, 1);
            k.read(1);
        })
        .vm_cpu(|k| {
            k.idle();
            k.read(0);
        }),
];

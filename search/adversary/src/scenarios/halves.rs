//! The kernel's own half of each space, and the user's half under page-table isolation.

use super::*;

pub(super) const ALL: &[Scenario] = &[
    Scenario::engine("own-unmap")
        .about("the kernel's mappings change while a CPU is idle")
        .finds(&["KernelSkipsIdle"])
        .must(Every, &[Machine(KernelAccess)])
        .must(Interrupts, &[Engine(Sent)])
        .start(two_own_pages)
        .start_1(|k| _ = k.idle())
        .cpu(|k| _ = k.free_own(OWN).free_own(OWN_TAGGED))
        .cpu(|k| _ = k.read_own(OWN).read_own(OWN_TAGGED)),
    // NMI handlers on CPU 1 use a kernel mapping, for which they check no permission, while CPU 0 unmaps it.
    Scenario::engine("own-nmi")
        .about("an NMI handler uses a kernel mapping while it is unmapped")
        .finds(&["KernelReceiptIsEnough"])
        .must(Every, &[Machine(KernelAccess)])
        .nmis(2)
        .start(own_page)
        .cpu(|k| _ = k.free_own(OWN))
        .cpu(|k| _ = k.read(0)),
    Scenario::engine("own-meets-user")
        .about("a request for kernel mappings is merged with one for user mappings")
        .finds(&["KernelLostInMerge"])
        .must(Every, &[Machine(KernelAccess)])
        .must(OwnLines, &[Engine(Merged)])
        .start(|k| _ = k.use_own_half().map_own(OWN, frame(0)).map(0, 0, frame(1), true))
        .cpu(|k| _ = k.free_own(OWN))
        .cpu(|k| _ = k.free(0, 0))
        .cpu(|k| _ = k.read_own(OWN).read(0).read_own(OWN)),
    // CPU 1 has used a non-global kernel mapping under two tags. CPU 0 unmaps it while one of the tags is loaded.
    Scenario::engine("own-switch")
        .about("kernel entries under a tag that is not loaded")
        .finds(&["KernelKeptUnderTags"])
        .must(Every, &[Machine(KernelAccess)])
        .start(|k| _ = k.use_own_half().map_own(OWN_TAGGED, frame(0)))
        .start_1(|k| _ = k.switch(1))
        .cpu(|k| _ = k.free_own(OWN_TAGGED))
        .cpu(|k| _ = k.read_own(OWN_TAGGED).switch(0).read_own(OWN_TAGGED)),
    // CPU 1 has used a non-global kernel mapping under the tag of a space, and has left that space's root when CPU 0
    // unmaps it. Then CPU 1 returns to the space, which no CPU has changed.
    Scenario::engine("own-leave")
        .about("kernel entries under the tag of a root that a CPU has left")
        .must(Every, &[Machine(KernelAccess)])
        .start(|k| _ = k.use_own_half().map_own(OWN_TAGGED, frame(0)))
        .cpu(|k| _ = k.free_own(OWN_TAGGED))
        .cpu(|k| _ = k.leave().read_own(OWN_TAGGED).switch(0).read_own(OWN_TAGGED)),
    Scenario::engine("own-online")
        .about("a CPU comes online while the kernel's mappings change")
        .finds(&["KernelFlushedBeforeOnline"])
        .must(Every, &[Machine(KernelAccess), Machine(Offline)])
        .start(own_page)
        .each(|_, _| {})
        .cpu(|k| {
            // Under some policies this leaves no deferred flush of the space, so fewer operations order the following
            // steps.
            k.give_away(k.unmap_own_for(Purpose::Reclaim, OWN));
        })
        .cpu(|k| _ = k.offline().online().read_own(OWN)),
    // CPU 1 comes online while CPU 0 unmaps a kernel range lazily and gives its frame to a new owner. The flush that
    // CPU 1 makes as it comes online doesn't cover one that is deferred meanwhile.
    Scenario::engine("own-online-deferral")
        .about("a CPU comes online while a lazily unmapped kernel frame is reused")
        .finds(&["ClockReadAfterFlush"])
        .must(Every, &[Engine(FlushesDeferred), Machine(Reusable), Machine(Offline)])
        .start(own_page)
        .each(|_, _| {})
        .start_1(|k| _ = k.offline())
        .cpu(|k| {
            let (freed, _) = k.unmap_own_lazily(OWN);
            k.flush_before_reuse(freed).tell(0);
        })
        .cpu(|k| _ = k.online().wait_for(0).read_own(OWN)),
    // CPU 0 unmaps a kernel range lazily and reuses its address; later it gives the frame to a new owner. Meanwhile CPU
    // 1 uses the new mapping. Its program's tag is flushed for other reasons.
    Scenario::engine("own-reuse")
        .about("a lazily unmapped kernel address is used again")
        .finds(&["KernelDeferralFlushedByTag"])
        .must(Every, &[Engine(FlushesDeferred), Engine(FlushedInBackground)])
        .must(Every, &[Machine(KernelAccess)])
        .start(|k| _ = k.use_own_half().map_own(OWN, frame(0)).map(0, 0, frame(2), true))
        .start_1(|k| _ = k.idle())
        .cpu(|k| {
            let (freed, stamp) = k.unmap_own_lazily(OWN);
            k.tell(0).wait_for(1).reuse_own(OWN, stamp, frame(1), 7).tell(2);
            k.flush_before_reuse(freed);
        })
        .cpu(|k| _ = k.wait_for(0).switch(0).flush_all(0).tell(1).wait_for(2).read_own(OWN)),
    // CPU 0 unmaps a kernel range lazily, and its frame gets a new owner. CPU 1 is idle. If it has kept a stale
    // translation, that shows when it uses the address again.
    Scenario::engine("own-frame-reuse")
        .about("a lazily unmapped kernel frame gets a new owner")
        .finds(&["ReuseSkipsFlush"])
        .must(Every, &[Engine(FlushesDeferred), Engine(FlushedForReuse), Machine(Reusable)])
        .start(two_own_pages)
        .start_1(|k| _ = k.idle())
        .cpu(|k| {
            let freed = [OWN, OWN_TAGGED].map(|page| k.unmap_own_lazily(page).0);
            freed.into_iter().for_each(|frame| _ = k.flush_before_reuse(frame));
            k.tell(0);
        })
        .cpu(|k| {
            k.wait_for(0);
            // The access is invalid, but it mustn't reach a frame with a new owner.
            k.read_own(OWN).read_own(OWN_TAGGED);
        }),
    Scenario::engine("own-table-free")
        .about("a table of the kernel's half is freed while a CPU is idle")
        .finds(&["KernelSkipsIdle"])
        .must(Every, &[Machine(TableFreed)])
        .start(two_own_pages)
        .start_1(|k| _ = k.idle())
        .cpu(|k| k.free_own_table())
        .cpu(|k| _ = k.read_own(OWN).switch(0).switch(1)),
    Scenario::engine("own-table-switch")
        .about("a table of the kernel's half is freed while a CPU switches")
        .finds(&["KernelTablesKeptUnderTags"])
        .must(Every, &[Machine(TableFreed)])
        .start(own_page)
        .cpu(|k| k.free_own_table())
        .cpu(|k| _ = k.read_own(OWN).switch(1).switch(0).read_own(OWN)),
    // CPU 0 replaces kernel text. CPU 1 may have fetched the old text, and executes the page again when CPU 0 is done.
    Scenario::engine("own-text")
        .about("kernel text is replaced while another CPU executes it")
        .finds(&["TextKeptFetched", "FetchedTextStays"])
        .must(Every, &[Machine(TextSynchronized)])
        .start(own_page)
        .cpu(|k| k.replace_text(OWN, 7))
        .cpu(|k| _ = k.execute_own(OWN).execute_own(OWN)),
    // CPU 0 unmaps a page of the kernel's half without waiting, and replaces text. CPU 1 may have fetched the old text,
    // and may receive both requests as one.
    Scenario::engine("own-text-merged")
        .about("kernel text is replaced during a flush of kernel mappings")
        .finds(&["TextLostInMerge"])
        .must(Every, &[Machine(TextSynchronized)])
        .must(OwnLines, &[Engine(Merged)])
        .start(|k| _ = k.use_own_half().map_own(OWN, frame(0)).map_own(OWN + 1, frame(1)))
        .cpu(|k| k.unmap_own_and_replace_text(OWN + 1, OWN, 7))
        .cpu(|k| _ = k.execute_own(OWN).execute_own(OWN)),
    // CPU 1 runs an undisturbed program while CPU 0 unmaps two pages of the kernel's half, one global and one not. CPU
    // 1 enters the kernel at any moment (before, between or after) and uses both.
    Scenario::engine("own-program")
        .about("kernel mappings change while a CPU runs a program undisturbed")
        .finds(&["EntrySkipsFlush"])
        .must(Every, &[Machine(KernelAccess)])
        .must(Interrupts, &[Engine(SkippedLazy), Engine(FlushedFull)])
        .start(two_own_pages)
        .start_1(|k| _ = k.enter_user())
        .cpu(|k| _ = k.free_own(OWN).free_own(OWN_TAGGED))
        .cpu(|k| _ = k.enter_kernel().read_own(OWN).read_own(OWN_TAGGED)),
    // CPU 1 enters the kernel from an undisturbed program, and on the way an NMI handler uses a kernel mapping that CPU
    // 0 has unmapped.
    Scenario::engine("own-program-nmi")
        .about("an NMI during an undisturbed program's entry into the kernel")
        .finds(&["NestedEntryUnflushed"])
        .must(Every, &[Machine(KernelAccess)])
        .must(Interrupts, &[Engine(SkippedLazy)])
        .nmis(1)
        .start(own_page)
        .start_1(|k| _ = k.enter_user())
        .cpu(|k| _ = k.free_own(OWN))
        .cpu(|k| _ = k.enter_kernel()),
    // CPU 0 frees a page table of the kernel's half that CPU 1's walker may have cached, while CPU 1 runs an
    // undisturbed program.
    Scenario::engine("own-program-table")
        .about("a table of the kernel's half is freed while a CPU runs a program undisturbed")
        .finds(&["ProgramLeftForTables"])
        .must(Every, &[Machine(TableFreed)])
        .start(|k| {
            k.use_own_half().map_own(OWN, frame(0)).map_own(OWN_TAGGED, frame(1));
            k.map(0, 0, frame(2), true);
        })
        .cpu(|k| k.free_own_table())
        .cpu(|k| _ = k.enter_user().read(0).enter_kernel().read_own(OWN)),
    // CPU 0 unmaps a page of a program and a kernel range lazily. Then it makes both deferred flushes and gives both
    // frames to new owners. CPU 1 runs that program undisturbed. It uses the program's page at once, and the kernel
    // range after it has entered the kernel.
    Scenario::engine("own-program-deferral")
        .about("deferred flushes of the kernel and of an undisturbed program are made together")
        .finds(&["PaymentLeftToEntry"])
        .must(Every, &[Engine(FlushesDeferred), Engine(FlushedInBackground)])
        .must(Every, &[Machine(Reusable)])
        .must(Interrupts, &[Engine(Sent)])
        .start(|k| _ = k.use_own_half().map_own(OWN, frame(0)).map(0, 0, frame(2), false))
        .start_1(|k| _ = k.enter_user())
        .cpu(|k| {
            let taken = k.take_lazily(&[0], 0);
            let (freed, stamp) = k.unmap_own_lazily(OWN);
            k.reuse_own(OWN, stamp, frame(1), 7).tell(0);
            k.flush_before_reuse(taken).flush_before_reuse(freed);
        })
        .cpu(|k| _ = k.read(0).wait_for(0).read(0).enter_kernel().read_own(OWN)),
    // CPU 0 unmaps a page of a program and a page of the kernel in one batch that may defer its flush. Then both frames
    // get new owners. CPU 1 runs that program undisturbed. The flush of the kernel's mapping may wait until CPU 1
    // enters the kernel, but that of the program's page may not.
    Scenario::engine("own-mixed-deferral")
        .about(
            "one batch for pages of the kernel and of an undisturbed program may defer its flush",
        )
        .finds(&["MixedFlushDeferred"])
        .must(Interrupts, &[Engine(Sent)])
        .start(|k| _ = k.use_own_half().map_own(OWN, frame(0)).map(0, 0, frame(2), false))
        .start_1(|k| _ = k.enter_user())
        .cpu(|k| {
            for frame in k.reclaim_with_own_lazily(0, 0, OWN) {
                k.flush_before_reuse(Some(frame));
            }
            k.tell(0);
        })
        .cpu(|k| _ = k.read(0).wait_for(0).read(0).enter_kernel()),
    // CPU 1 runs a program under user mode's own tag, and switches to another space and back. Meanwhile CPU 0 unmaps a
    // page and write-protects another.
    Scenario::engine("isolated-unmap")
        .about("an unmap under page-table isolation also reaches user mode's tag")
        .finds(&["UserHalfKept", "WrongHalfNoted"])
        .must(Every, &[Engine(Sent), Engine(SwitchKept)])
        .on(Isolated)
        .start(|k| _ = k.map_first(2, true).map(1, 0, frame(2), true))
        .cpu(|k| _ = k.free(0, 0).protect(0, 1))
        .cpu(|k| _ = k.read(0).write(1, 1).switch(1).read(0).switch(0).read(0).write(1, 2)),
    Scenario::engine("isolated-tag")
        .about("another space takes over a tag, in user mode too")
        .finds(&["UserHalfOutlivesTag"])
        .must(Every, &[Engine(SwitchTagTaken)])
        .on(Isolated)
        .start(|k| _ = k.map_spaces(3))
        .cpu(|k| _ = k.free(1, 0))
        .cpu(|k| _ = k.visit(&[0, 1, 2, 0])),
    // CPU 0 frees a table while CPU 1 runs its program. CPU 1's walker caches the table under user mode's own tag.
    Scenario::engine("isolated-table")
        .about("a table that user mode's walker has cached is freed")
        .must(Every, &[Machine(TableFreed), Engine(Waited)])
        .on(Isolated)
        .start(second_table)
        .cpu(|k| _ = k.free_table(0, SECOND))
        .cpu(|k| _ = k.read(SECOND).read(SECOND)),
];

//! CPUs that run, switch, idle or take NMIs while other CPUs unmap pages and free tables.

use super::*;

/// Switches to a space, leaves it and returns.
fn come_and_go(k: &BareKernel<'_>) {
    k.switch(0).read(0).switch(1).switch(0).read(0);
}

/// Unmaps a page with interrupts off.
fn shoot(k: &BareKernel<'_>, page: u64) {
    let were_on = k.hw.mask_interrupts();
    k.unmap(0, page);
    k.hw.restore_interrupts(were_on);
    k.read(0).read(1);
}

pub(super) const ALL: &[Scenario] = &[
    Scenario::engine("unmap-access")
        .about("unmap and reuse against access")
        .bugs(&["30"])
        .finds(&[
            "SkipLocalFlush",
            "SkipGenerationBump",
            "SkipPost",
            "SkipInterrupt",
            "SkipWait",
            "HandlerSkipsFlush",
            "BroadcastSkipsFence",
            "SkipBarrier",
            "FinishSkipsFlush",
            "AllStaysCached",
            "FenceLeftOut",
            "ReentryUnflushed",
        ])
        .must(Every, &[Engine(Requested), Machine(StaleUse), Machine(FrameReused)])
        .must(Interrupts, &[Engine(Sent), Engine(WaitedReceipt), Engine(FlushedRanges)])
        .must(Broadcast, &[Engine(Barriers)])
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .cpu(|k| _ = k.free(0, 0).read(0))
        .cpu(|k| _ = k.write(0, 1).read(0)),
    Scenario::engine("protect-access")
        .about("write protection and capture against access")
        .bugs(&["21", "22"])
        .must(Every, &[Engine(Requested), Machine(Captured)])
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .cpu(|k| k.protect(0, 0).capture(frame(0)))
        .cpu(|k| _ = k.write(0, 1).write(0, 2)),
    // CPU 0 removes the right to execute a page. CPU 1 keeps fetching from it, and may still load and store.
    Scenario::engine("execute-access")
        .about("removal of execute permission against instruction fetch")
        .finds(&["SkipWait", "SkipBarrier"])
        .must(Every, &[Machine(CallReturned), Machine(Fault)])
        .start(|k| k.map(0, 0, frame(0), true).allow_execution(0, 0))
        .cpu(|k| _ = k.forbid_execution(0, 0).fetch(0))
        .cpu(|k| _ = k.fetch(0).write(0, 1).fetch(0)),
    Scenario::engine("switch-unmap")
        .about("context switch against unmap")
        .bugs(&["8"])
        .finds(&[
            "SwitchPublishesLate",
            "SwitchIgnoresGeneration",
            "SwitchIgnoresBatch",
            "InterruptsStayOff",
            "SpaceReadEarly",
            "SpaceAnnouncesLate",
        ])
        .must(Every, &[Engine(Switches)])
        .must(Interrupts, &[Engine(SkippedNoTarget)])
        .must(OwnTags, &[Engine(SwitchBehind), Engine(SwitchKept)])
        .must(Interrupts, &[Engine(Sent)])
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .start_1(|k| _ = k.switch(1))
        .cpu(|k| _ = k.free(0, 0))
        .cpu(come_and_go),
    // CPU 1 loads a space that only CPU 0 runs. Meanwhile CPU 0 unmaps two pages of it in one batch. It clears the
    // second page after the batch has announced that it is outstanding.
    Scenario::engine("switch-unmap-range")
        .about("a space's load against an unmap of two pages")
        .must(Every, &[Machine(StaleUse), Machine(Fault)])
        .start(two_pages)
        .each(|k, cpu| _ = k.switch(cpu))
        .cpu(|k| _ = k.unmap_range(0, 0, 2, true))
        .cpu(|k| _ = k.switch(0).read(1).read(1)),
    // CPU 1 switches to a space, leaves it and returns. Meanwhile CPU 0 unmaps a page of it and flushes at once,
    // without a batch. Since no batch is outstanding, CPU 1 can notice the flush only by the generation.
    Scenario::engine("switch-at-once")
        .about("context switch against a flush without a batch")
        .bugs(&["8"])
        .finds(&["SwitchPublishesLate", "SkipGenerationBump", "SkipPost", "SkipWait"])
        .must(Every, &[Engine(Switches)])
        .must(Interrupts, &[Engine(SkippedNoTarget)])
        .must(OwnTags, &[Engine(SwitchBehind), Engine(SwitchKept)])
        .must(Interrupts, &[Engine(Sent)])
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .start_1(|k| _ = k.read(0).switch(1))
        .cpu(|k| _ = k.read(0).give_away(k.unmap_at_once(0, 0)))
        .cpu(come_and_go),
    // CPU 1 loads a space for the first time, under a tag that no other CPU knows yet. Meanwhile CPU 0 unmaps a page of
    // it.
    Scenario::engine("first-switch-unmap")
        .about("a space's first load against unmap")
        .bugs(&["16"])
        .finds(&["TagWalkedBeforeSeen"])
        .must(Every, &[Machine(FrameReused), Machine(Fault)])
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .each(|k, _| _ = k.switch(1))
        .cpu(|k| _ = k.free(0, 0))
        .cpu(|k| _ = k.switch(0).read(0).read(0)),
    // ANCHOR: simple
    // CPU 1 becomes idle and returns to the same space while CPU 0 unmaps a page of it.
    Scenario::engine("idle-unmap")
        .about("a lazy CPU against unmap")
        .bugs(&["34"])
        .finds(&["LazyResumesUnchecked", "RelaxedLeaveLazy"])
        .must(Interrupts, &[Engine(SkippedLazy), Engine(SwitchBehind)])
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .cpu(|k| _ = k.free(0, 0))
        .cpu(|k| _ = k.idle().switch(0).read(0)),
    // ANCHOR_END: simple
    // CPU 0 unmaps two pages of a space, one after the other. CPU 1 was idle during the first flush, and leaves lazy
    // mode during the second.
    Scenario::engine("idle-return")
        .about("a lazy CPU misses one unmap, and returns during the next")
        .finds(&["NotesLaterGeneration"])
        .must(Interrupts, &[Engine(SkippedLazy), Engine(SwitchBehind)])
        .must(Interrupts, &[Engine(IgnoredGeneration)])
        .start(|k| _ = k.map_first(2, true))
        .start_1(|k| _ = k.idle())
        .cpu(|k| _ = k.free(0, 0).free(0, 1))
        .cpu(|k| _ = k.switch(0).read(1).read(1)),
    Scenario::engine("table-free")
        .about("freeing a table against walkers")
        .bugs(&["11", "29"])
        .finds(&["AckBeforeFlush", "EarlyAckForTables", "TablesFlushedAsLeaf", "RelaxedDone"])
        .must(Every, &[Machine(TableFreed)])
        .must(Interrupts, &[Engine(Waited), Engine(FlushedRanges)])
        .must(Broadcast, &[Engine(Barriers)])
        .start(second_table)
        .cpu(|k| _ = k.free_table(0, SECOND))
        .cpu(|k| _ = k.read(SECOND).read(SECOND)),
    Scenario::engine("idle-table-free")
        .about("freeing a table under a lazy CPU")
        .bugs(&["10"])
        .finds(&["LazySkippedForTables", "LeavesCaughtUp"])
        .must(Every, &[Machine(TableFreed)])
        .must(Interrupts, &[Engine(Waited)])
        .start(second_table)
        .cpu(|k| _ = k.free_table(0, SECOND))
        .cpu(|k| _ = k.idle().switch(0).read(SECOND)),
    // CPU 1 leaves its root for a long idle time and returns, twice. CPU 0 unmaps a page and frees a table, and
    // interrupts CPU 1 for neither while it is away.
    Scenario::engine("idle-leave")
        .about("a CPU leaves its root by itself while tables are freed")
        .must(Every, &[Machine(TableFreed)])
        .must(Interrupts, &[Engine(SkippedNoTarget)])
        .start(two_pages)
        .cpu(|k| _ = k.free(0, 1).free_table(0, 0))
        .cpu(|k| {
            k.leave().resume(0).read(1).idle().resume(0).read(0).leave().switch(0).read(0);
        }),
    // CPU 0 moves a page-table page with all its mappings to another address, and maps one more page there. CPU 1 uses
    // the old addresses. Nothing is freed: if a walker still reaches translations through a cached pointer, these are
    // wrong only because the call that moved the table has returned.
    Scenario::engine("table-move")
        .about("moving a table against its old addresses")
        .finds(&["TablesFlushedAsLeaf", "BasePagesInLargeStrides"])
        .must(Every, &[Machine(StaleUse)])
        .must(Interrupts, &[Engine(FlushedRanges)])
        .must(Broadcast, &[Engine(Barriers)])
        .start(|k| {
            for page in 0..2 {
                k.map(0, SECOND + page, frame(page), true);
            }
            k.link(0, SECOND);
        })
        .cpu(|k| {
            k.move_table(0, 2);
            // This is the table that was moved.
            k.map(0, SECOND + 2, frame(2), false).read(THIRD + 2);
        })
        .cpu(|k| _ = k.read(SECOND + 1).read(SECOND + 2)),
    Scenario::engine("two-initiators")
        .about("two initiators, one target")
        .bugs(&["33"])
        .must(OwnLines, &[Engine(Merged), Engine(EscalatedContention)])
        .must(Interrupts, &[Engine(IgnoredGeneration), Engine(EscalatedGap)])
        .must(Interrupts, &[Engine(ServedEarly)])
        .start(two_pages)
        .cpu(|k| _ = k.unmap(0, 0))
        .cpu(|k| _ = k.read(0).read(1).read(0))
        .cpu(|k| _ = k.unmap(0, 1)),
    // CPUs 0 and 2 unmap different pages without a batch. Their requests meet in the shared inbox of CPU 1.
    Scenario::engine("initiators-at-once")
        .about("two initiators without a batch, one target")
        .finds(&["SharedRequestOverwritten"])
        .must(Interrupts, &[Engine(EscalatedGap)])
        .start(two_pages)
        .cpu(|k| _ = k.unmap_at_once(0, 0))
        .cpu(|k| _ = k.read(0).read(1).read(0).read(1))
        .cpu(|k| _ = k.unmap_at_once(0, 1)),
    // CPU 0 unmaps two pages of three CPUs, which count their answers: CPU 1 is alone in a group. CPU 3 goes offline.
    Scenario::engine("targets-in-groups")
        .about("two groups of targets answer shared requests, and a CPU goes offline")
        .finds(&["SharedCountKept", "SharedPostsToOffline", "OfflineOverlooksPost"])
        .must(Every, &[Machine(Offline)])
        .must(SharedLines, &[Engine(WaitedReceipt)])
        .start(two_pages)
        .cpu(|k| _ = k.free(0, 0).free(0, 1))
        .cpu(|k| _ = k.read(0).read(1))
        .cpu(|k| _ = k.read(0).read(1))
        .cpu(|k| _ = k.read(1).offline()),
    // CPUs 0 and 2 unmap different pages and share full flushes. CPU 1 uses both pages.
    Scenario::engine("coalesced-unmap")
        .about("two tasks share a full flush")
        .must(Every, &[Engine(Coalesced)])
        .start(two_pages)
        .cpu(|k| _ = k.give_away(k.unmap_coalesced(0, 0)))
        .cpu(|k| _ = k.read(1).read(0).read(1).read(0).read(1))
        .cpu(|k| _ = k.give_away(k.unmap_coalesced(0, 1))),
    // CPUs 0 and 2 unmap different pages with a batch each. CPU 1 uses both pages. Where CPUs share lines, batches share
    // full flushes if several CPUs have the space loaded.
    Scenario::engine("coalesced-batches")
        .about("two batches share a full flush")
        .must(Every, &[Machine(CallReturned)])
        .must(SharedLines, &[Engine(Coalesced)])
        .start(two_pages)
        .cpu(|k| _ = k.free(0, 0))
        .cpu(|k| _ = k.read(1).read(0).read(1).read(0))
        .cpu(|k| _ = k.free(0, 1)),
    // CPU 0 unmaps a page while CPU 2 frees a table. Their requests meet in CPU 1's inbox.
    Scenario::engine("leaf-meets-table")
        .about("a leaf flush is merged with a table flush")
        .finds(&["MergeOverwrites", "TakeIgnoresLock", "GapNotEscalated"])
        .must(OwnLines, &[Engine(Merged)])
        .must(Every, &[Machine(TableFreed)])
        .start(|k| _ = k.map(0, 0, frame(0), true).map(0, SECOND, frame(1), true).link(0, SECOND))
        .cpu(|k| _ = k.unmap(0, 0))
        .cpu(|k| _ = k.read(0).read(SECOND))
        .cpu(|k| _ = k.free_table(0, SECOND)),
    // Two CPUs interrupt each other, both with interrupts off.
    Scenario::engine("cross-shootdown")
        .about("two waiters with interrupts off")
        .bugs(&["32"])
        .finds(&["WaiterSkipsInbox"])
        .must(Interrupts, &[Engine(ServedEarly)])
        .start(two_pages)
        .cpu(|k| shoot(k, 0))
        .cpu(|k| shoot(k, 1)),
    // An NMI handler on CPU 1 tries to read user memory, at any moment of a shootdown.
    Scenario::engine("nmi-unmap")
        .about("an NMI between receipt and flush")
        .finds(&["NmiGuardAlwaysAllows"])
        .must(Every, &[Machine(NmiAccess)])
        .must(Interrupts, &[Machine(NmiRefused), Engine(WaitedReceipt)])
        .nmis(2)
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .cpu(|k| _ = k.free(0, 0))
        .cpu(|k| _ = k.read(0)),
    // CPU 0 is the only CPU that has a space loaded, and unmaps a page of it. An NMI handler there reads the page at
    // any moment, and CPU 1 relies on the cleared entry.
    Scenario::engine("nmi-alone")
        .about("an NMI on the only CPU that must flush, against a later observer")
        .finds(&["PendingEndsBeforeFlush"])
        .must(Every, &[Machine(NmiAccess)])
        .must(Interrupts, &[Engine(SkippedNoTarget)])
        .nmis(1)
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .each(|k, cpu| _ = k.switch(cpu))
        .cpu(|k| _ = k.read(0).unmap(0, 0))
        .cpu(|k| _ = k.unmap(0, 0)),
    // An NMI handler on CPU 1 tries to read user memory while the CPU is between two spaces.
    Scenario::engine("nmi-switch")
        .about("an NMI during a context switch")
        .finds(&["NmiGuardAlwaysAllows"])
        .must(Every, &[Machine(NmiAccess), Machine(NmiRefused)])
        .nmis(2)
        .start(|k| _ = k.map(0, 0, frame(0), true).map(1, 0, frame(1), true))
        .cpu(|k| _ = k.free(0, 0))
        .cpu(|k| _ = k.switch(1).idle().switch(0)),
    // CPU 1 returns to a space that it had left, and an NMI handler tries to read user memory before CPU 1 has flushed
    // CPU 0's changes.
    Scenario::engine("nmi-idle")
        .about("an NMI while a CPU leaves lazy mode")
        .finds(&["ResumeLetsNmisIn"])
        .must(Every, &[Machine(NmiAccess), Machine(NmiRefused)])
        .must(Interrupts, &[Engine(SkippedLazy), Engine(SwitchBehind)])
        .nmis(2)
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .cpu(|k| _ = k.free(0, 0))
        .cpu(|k| _ = k.idle().switch(0)),
    // During an unmap, both CPUs take interrupts that no CPU sent.
    Scenario::engine("spurious")
        .about("spurious interrupts acknowledge nothing")
        .bugs(&["32"])
        .finds(&["SpuriousAcknowledges"])
        .must(Every, &[Machine(Spurious)])
        .must(Interrupts, &[Engine(Sent)])
        .spurious(2)
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .cpu(|k| _ = k.free(0, 0))
        .cpu(read_twice),
];

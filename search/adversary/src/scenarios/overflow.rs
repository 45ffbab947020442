//! Batches that change a space for which they have no room, and batches that two CPUs use.

use super::*;

pub(super) const ALL: &[Scenario] = &[
    Scenario::engine("overflow-access")
        .about("a batch unmaps a page of a space for which it has no room")
        .finds(&["OverflowUnflushed"])
        .must(Every, &[Engine(EscalatedBatch)])
        .start(|k| _ = k.map(1, 0, frame(0), true))
        .each(|k, cpu| _ = k.switch(cpu))
        .cpu(|k| k.reclaim_crowded(0, 1, &[0]))
        .cpu(read_twice),
    // CPU 0 unmaps two pages, one after the other, in a batch that has no room for their space. CPU 1 finds them
    // unmapped before the batch ends, and relies on that. Its flush for the first page doesn't cover the second.
    Scenario::engine("overflow-unmap")
        .about("a later observer finds an entry that an overflowing batch has cleared")
        .finds(&["OverflowNotPending", "OverflowReadAfterFlush"])
        .must(Every, &[Engine(EscalatedBatch), Engine(FlushedPending)])
        .start(|k| _ = k.map(1, 0, frame(0), true).map(1, 1, frame(1), true))
        .each(|k, cpu| _ = k.switch(cpu))
        .cpu(|k| k.reclaim_crowded(0, 1, &[0, 1]))
        .cpu(|k| _ = k.read(1).unmap_cleared(1, 0).read(0).unmap(1, 1).read(1)),
    // CPU 0 unmaps a page in a batch that has no room for its space. Meanwhile CPU 1 returns to that space, whose
    // entries it has kept.
    Scenario::engine("overflow-load")
        .about("a space is loaded again while a batch without room for it unmaps a page")
        .finds(&["OverflowLooksFirst"])
        .must(Every, &[Engine(EscalatedBatch)])
        .must(OwnTags, &[Engine(SwitchBehind)])
        .start(|k| _ = k.map(1, 0, frame(0), true))
        .each(|k, cpu| {
            if cpu > 0 {
                k.switch(1).read(0);
            }
            k.switch(0);
        })
        .cpu(|k| k.reclaim_crowded(0, 1, &[0]))
        .cpu(|k| _ = k.switch(1).read(0)),
    Scenario::engine("overflow-switch")
        .about("context switch against an unmap by an overflowing batch")
        .must(Every, &[Engine(EscalatedBatch)])
        .must(OwnTags, &[Engine(SwitchBehind)])
        .start(|k| _ = k.map(1, 0, frame(0), true))
        .each(|k, cpu| _ = k.switch(cpu))
        .cpu(|k| k.reclaim_crowded(0, 1, &[0]))
        .cpu(|k| _ = k.read(0).switch(0).switch(1).read(0)),
    // CPU 0 frees a table and then unmaps a page in a batch that has no room for their space, which CPU 1 keeps loaded
    // lazily.
    Scenario::engine("overflow-tables")
        .about("a table is freed in a space for which the batch has no room")
        .finds(&["OverflowTablesAreLeaves"])
        .must(Every, &[Engine(EscalatedBatch), Machine(TableFreed)])
        .start(|k| _ = k.map(1, 0, frame(0), true).map(1, SECOND, frame(1), true).link(1, SECOND))
        .each(|k, cpu| _ = k.switch(cpu))
        .cpu(|k| k.free_table_crowded(0, 1, SECOND))
        .cpu(|k| _ = k.idle().switch(1).read(SECOND)),
    Scenario::engine("overflow-own")
        .about("a batch unmaps kernel pages for which it has no room")
        .must(Every, &[Engine(EscalatedBatch), Machine(KernelAccess)])
        .start(|k| {
            two_own_pages(k);
            k.map(1, 0, frame(2), true);
        })
        .each(|k, cpu| _ = k.switch(cpu))
        .cpu(|k| k.unmap_own_crowded(0, &[OWN, OWN_TAGGED]))
        .cpu(|k| _ = k.read_own(OWN_TAGGED).switch(0).read_own(OWN).read_own(OWN_TAGGED)),
    // CPU 0 unmaps a page, and CPU 1 ends the batch: its barrier does not complete what CPU 0 has broadcast.
    Scenario::engine("lent-end")
        .about("a CPU ends a batch that another has filled")
        .finds(&["CarriedNotResent"])
        .must(Every, &[Machine(FrameReused)])
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .cpu(|k| k.lend_batch(0, 0, 0))
        .cpu(|k| k.use_lent_batch(0, &[], true))
        .cpu(read_twice),
    // CPU 0 unmaps a page in a batch, CPU 1 another one and CPU 0 a third. CPU 0 ends the batch: its barrier does not
    // complete what CPU 1 has broadcast.
    Scenario::engine("lent-between")
        .about("a CPU ends its batch, in which another has unmapped a page meanwhile")
        .finds(&["LentChangeForgotten", "LentChangeTaken"])
        .must(Every, &[Machine(FrameReused)])
        .start(|k| {
            two_pages(k);
            k.map(0, 2, frame(2), true);
        })
        .cpu(|k| k.lend_between(0, [0, 2]))
        .cpu(|k| k.use_lent_batch(0, &[1], false))
        .cpu(|k| _ = k.read(1).read(1)),
    // The same in a space for which the batch has no room.
    Scenario::engine("lent-overflow")
        .about("a CPU ends another's batch, which has no room for the space")
        .finds(&["OverflowSenderTrusted"])
        .must(Every, &[Engine(EscalatedBatch)])
        .start(|k| _ = k.map(1, 0, frame(0), true))
        .each(|k, cpu| _ = k.switch(cpu / 2))
        .cpu(|k| k.lend_batch(0, 1, 0))
        .cpu(|k| k.use_lent_batch(1, &[], true))
        .cpu(read_twice),
    // CPU 1 unmaps another page in the batch, and CPU 0 ends it: its barrier does not complete what CPU 1 has broadcast.
    Scenario::engine("lent-back")
        .about("two CPUs fill a batch without room for the space, and the first ends it")
        .finds(&["OverflowSenderKept"])
        .must(Every, &[Engine(EscalatedBatch)])
        .start(|k| _ = k.map(1, 0, frame(0), true).map(1, 1, frame(1), true))
        .each(|k, cpu| _ = k.switch(cpu / 2))
        .cpu(|k| k.lend_batch(0, 1, 1))
        .cpu(|k| k.use_lent_batch(1, &[0], false))
        .cpu(read_twice),
    Scenario::engine("lent-filled")
        .about("two CPUs fill a batch, and the first ends it")
        .must(Every, &[Machine(FrameReused)])
        .start(two_pages)
        .cpu(|k| k.lend_batch(0, 0, 1))
        .cpu(|k| k.use_lent_batch(0, &[0], false))
        .cpu(read_twice),
];

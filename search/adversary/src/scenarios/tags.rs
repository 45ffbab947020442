//! Tags that are assigned, taken over, and exhausted.

use super::*;

/// Links a table of space 0, loads the space and reads through the table.
fn read_table(k: &BareKernel<'_>) {
    k.map(0, SECOND, frame(0), true).link(0, SECOND).switch(0).read(SECOND);
}

pub(super) const ALL: &[Scenario] = &[
    // CPU 0 runs more spaces than there are tags. Each space has its own frame behind the same page.
    Scenario::engine("tag-reuse")
        .about("one space after the other takes over the tags")
        .bugs(&["13"])
        .finds(&["TagTakenUnflushed", "RolloverSkipsFlush", "RolloverForgetsReserved"])
        .must(OwnTags, &[Engine(SwitchTagTaken)])
        .must(Scarce, &[Engine(Rollovers)])
        .start(|k| _ = k.map_spaces(6))
        .cpu(|k| _ = k.visit(&[1, 2, 3, 4, 5, 0, 1])),
    Scenario::engine("rollover-unmap")
        .about("tag rollover against unmap")
        .bugs(&["16"])
        .must(Scarce, &[Engine(Rollovers)])
        .on(Broadcast)
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .each(|k, cpu| _ = k.switch(1 - cpu))
        .cpu(|k| _ = k.switch_through(&[2, 3, 4, 0]).free(0, 0))
        .cpu(read_twice),
    Scenario::engine("rollover-switch")
        .about("tag rollover against a context switch")
        .bugs(&["16"])
        .finds(&["TagLockTakenRelaxed"])
        .must(Scarce, &[Engine(Rollovers)])
        .on(Broadcast)
        .start(|k| _ = k.map_spaces(5))
        .each(|k, cpu| _ = k.switch(cpu))
        .cpu(|k| _ = k.visit(&[2, 3, 4, 0]).unmap(1, 0))
        .cpu(|k| _ = k.visit(&[0, 1])),
    // CPU 0 leaves a space. Before it has loaded the next root, CPU 1 exhausts all tags, switches to the first space
    // under any tag, and frees one of its tables. CPU 1 exhausts the tags twice. If CPU 0's next space has no tag any
    // more, the space that CPU 0 leaves may keep its tag the first time and lose it the second.
    Scenario::engine("rollover-table")
        .about("tag rollover while a CPU changes its root")
        .finds(&["RolloverForgetsLeaving"])
        .must(Scarce, &[Engine(Rollovers)])
        .must(Every, &[Machine(TableFreed)])
        .on(Broadcast)
        .start(read_table)
        .each(|_, _| {})
        .start_1(|k| _ = k.switch(1))
        .cpu(|k| _ = k.switch(1))
        .cpu(|k| _ = k.switch_through(&[2, 3, 0, 2, 3, 0]).free_table(0, SECOND)),
    // The same, but tags run out after CPU 0 has found one. The space that it leaves loses its tag at once, and would
    // get the same number again the second time.
    Scenario::engine("rollover-table-once")
        .about("tag rollover after a CPU has found a tag and before it has changed its root")
        .must(Scarce, &[Engine(Rollovers)])
        .must(Every, &[Machine(TableFreed)])
        .on(Broadcast)
        .start(read_table)
        .each(|_, _| {})
        .start_1(|k| _ = k.switch(1))
        .cpu(|k| _ = k.switch(1))
        .cpu(|k| _ = k.switch_through(&[2, 3, 0]).free_table(0, SECOND)),
    // Tags run out while CPU 1 runs a space, whose tag is therefore reserved. CPU 0 switches to that space, which keeps
    // the tag. Then CPU 1 is taken offline. The tag must stay reserved, because if the next space got it, both would
    // share the TLB's entries.
    Scenario::engine("rollover-offline")
        .about("a CPU whose tag is reserved goes offline")
        .must(Scarce, &[Engine(Rollovers)])
        .must(Every, &[Machine(Offline)])
        .on(Broadcast)
        .start(|k| _ = k.map_spaces(5))
        .each(|k, cpu| _ = k.switch(cpu))
        .cpu(|k| _ = k.switch_through(&[2, 3, 1]).tell(0).wait_for(1).visit(&[4, 1]))
        .cpu(|k| _ = k.wait_for(0).offline().tell(1)),
    // Both CPUs run one space when tags run out. CPU 0 returns to it, exhausts all tags once more, returns again and
    // unmaps a page. CPU 1 has never switched, and still reaches the page under the tag that it had from the start.
    Scenario::engine("rollover-twice")
        .about("two tag rollovers against unmap")
        .finds(&["RolloverTellsOneAlone"])
        .must(Scarce, &[Engine(Rollovers)])
        .on(Broadcast)
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .cpu(|k| {
            // When tags run out for the first time, this CPU also runs the space.
            k.switch_through(&[1, 2, 0, 3, 0, 1, 2, 0]);
            k.free(0, 0);
        })
        .cpu(read_twice),
];

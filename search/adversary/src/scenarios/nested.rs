//! Flushes that preempt flushes, and many batches at once.

use super::*;

pub(super) const ALL: &[Scenario] = &[
    // CPU 0 unmaps a page, and a thread that preempts it unmaps another. The second request merges with the first,
    // whose interrupt must have been sent by then.
    Scenario::engine("nested-posting")
        .about("a flush preempts another before its interrupt is sent")
        .finds(&["PostingPreempted", "InboxLooksCross", "InboxPostsCross"])
        .must(Every, &[Machine(Preempted)])
        .must(OwnLines, &[Engine(Merged)])
        .preempted_by(|k| _ = k.free(1, 1))
        .start(|k| _ = k.map(0, 0, frame(0), true).map(1, 1, frame(1), true))
        .each(|k, _| _ = k.switch(1).switch(0))
        .cpu(|k| _ = k.free(0, 0))
        .cpu(|k| _ = k.read(0).switch(1).read(1).switch(0).read(0)),
    // CPU 0 unmaps a page, and while it waits, a thread that preempts it unmaps a page of another space. If senders
    // keep their requests, the second one mustn't overwrite the first before its target has read that.
    Scenario::engine("nested-outbox")
        .about("a flush preempts another that waits")
        .finds(&["OutboxOverwritten"])
        .must(Every, &[Machine(Preempted)])
        .preempted_by(|k| _ = k.free(1, 1))
        .start(|k| _ = k.map(0, 0, frame(0), true).map(1, 1, frame(1), true))
        .each(|k, cpu| _ = k.switch(usize::from(cpu == 2)))
        .cpu(|k| _ = k.free(0, 0))
        .cpu(read_twice)
        .cpu(|k| _ = k.read(1)),
    // CPU 0 makes a flush for all tasks that wait. A thread that preempts it flushes the same space. It mustn't wait for
    // the flush that it has preempted.
    Scenario::engine("nested-coalesced")
        .about("a coalesced flush preempts another")
        .finds(&["CoalescerPreempted"])
        .must(Every, &[Machine(Preempted)])
        .preempted_by(|k| k.flush_coalesced(0))
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .cpu(|k| _ = k.give_away(k.unmap_coalesced(0, 0)))
        .cpu(read_twice),
    // CPU 0 unmaps a page of a space that only it runs. A thread of another space, which CPU 1 changes, preempts it. A
    // flush that needs no other CPU mustn't mistake the other space's slot for its own.
    Scenario::engine("nested-alone")
        .about("a thread of another space preempts a flush that needs no other CPU")
        .finds(&["LoadedSpaceStale"])
        .must(Every, &[Machine(Preempted)])
        .must(Interrupts, &[Engine(SkippedNoTarget)])
        .preempted_by(|k| _ = k.switch(1).read(1))
        .start(|k| _ = k.map(0, 0, frame(0), true).map(1, 1, frame(1), true).switch(1).switch(0))
        .each(|_, _| {})
        .cpu(|k| _ = k.free(0, 0).switch(1).read(1))
        .cpu(|k| _ = k.free(1, 1)),
    // More batches of one space are outstanding than its count can hold. Meanwhile a later observer relies on the
    // cleared entries.
    Scenario::engine("many-batches")
        .about("more batches are outstanding than can be counted")
        .finds(&["BatchesCountedWithoutEnd"])
        .must(Every, &[Machine(CallReturned)])
        .start(|k| _ = k.map_first(5, true))
        .cpu(|k| _ = k.nested(0, 0, 4))
        .cpu(|k| _ = k.read(0).read(3).unmap(0, 0).unmap(0, 3).read(0).read(3)),
];

//! Retired spaces, descheduled virtual CPUs, and pages that are being filled.

use super::*;

pub(super) const ALL: &[Scenario] = &[
    Scenario::engine("retire-lazy")
        .about("retiring a space against lazy CPUs")
        .bugs(&["25"])
        .finds(&["RetireSkipsEviction"])
        .must(Every, &[Machine(SpaceRetired), Engine(Evicted)])
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .each(|k, cpu| _ = k.switch(1 - cpu))
        .cpu(|k| {
            // After this the space has no thread.
            k.wait_for(0).retire(0);
        })
        .cpu(|k| _ = k.read(0).idle().tell(0).switch(1).read(0)),
    // CPU 1 is evicted from a space that it keeps loaded lazily, leaves without naming it, comes online and runs
    // another. Then the space ends.
    Scenario::engine("retire-offline")
        .about("retiring a space that a CPU left by going offline")
        .finds(&["RetireAsksAgain"])
        .must(Interrupts, &[Engine(Evicted)])
        .must(Every, &[Machine(Offline), Machine(SpaceRetired)])
        .start(|k| _ = k.map(0, 0, frame(0), true).link(0, SECOND))
        .each(|_, _| {})
        .start_1(|k| _ = k.switch(0).idle())
        .cpu(|k| k.free_table(0, SECOND).tell(0).wait_for(1).retire(0))
        .cpu(|k| _ = k.wait_for(0).offline_unnamed().online().switch(1).tell(1).read(0)),
    // CPU 0 retires a space whose last thread has made its last access on CPU 1. CPU 1 hasn't switched yet, so it
    // answers while it still has the root loaded.
    Scenario::engine("retire-running")
        .about("retiring a space while a CPU is switching away from it")
        .finds(&["RetireTrustsAnswer"])
        .must(Every, &[Machine(SpaceRetired)])
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .each(|_, _| {})
        .start_1(|k| _ = k.switch(0))
        .cpu(|k| k.wait_for(1).retire(0))
        .cpu(|k| _ = k.read(0).tell(1).switch(1).read(0)),
    // A guest, whose hypervisor has descheduled CPU 1 whenever it must flush, and flushes it before it runs again. CPU
    // 0 unmaps a page of CPU 1's space. Then the space ends, whose root CPU 1 keeps loaded lazily.
    Scenario::engine("unscheduled")
        .about("unmap and retirement of a space while a virtual CPU is not running")
        .finds(&["RetirementLeftToReentry"])
        .must(Interrupts, &[Engine(SkippedNotRunning)])
        .must(Every, &[Machine(SpaceRetired), Engine(Evicted)])
        .with_unscheduled(0b10)
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .each(|k, cpu| _ = k.switch(1 - cpu))
        .cpu(|k| {
            k.free(0, 0);
            // After this the space has no thread.
            k.wait_for(0).retire(0);
        })
        .cpu(|k| _ = k.read(0).idle().tell(0).switch(1).read(0)),
    // CPU 0 zeroes a frame and maps it. CPU 1 uses the page as soon as it sees the entry. On machines whose stores
    // overtake each other, the entry mustn't become visible before the zeroes.
    Scenario::engine("late-content")
        .about("mapping a page against the stores that zeroed it")
        .finds(&["VmMapsBeforeContent"])
        .must(Every, &[Machine(Zeroed), Machine(Fault)])
        .start(|k| _ = k.fill(frame(0), 0xdead))
        .cpu(|k| _ = k.map_zeroes(0, 0, frame(0)).read(0))
        .cpu(|k| _ = k.read(0).write(0, 1).read(0)),
];

//! Retired spaces, descheduled virtual CPUs, and pages that are being filled.

use super::*;

pub(super) const ALL: &[Scenario] = &[
    // CPU 0 retires a space while CPU 1 still has its root loaded lazily, or is switching away from it.
    Scenario::engine("retire-lazy")
        .about("retiring a space against lazy CPUs")
        .bugs(&["25"])
        .finds(&["RetireSkipsEviction"])
        .must(Every, &[Machine(SpaceRetired), Engine(Evicted)])
        .start(|k| k.map(0, 0, frame(0), true))
        .each(|k, cpu| k.switch(1 - cpu))
        .cpu(|k| {
            // After this the space has no thread.
            k.wait_for(0);
            k.retire(0);
        })
        .cpu(|k| {
            k.read(0);
            k.idle();
            k.tell(0);
            k.switch(1);
            k.read(0);
        }),
    // CPU 1 is evicted from a space that it keeps loaded lazily, leaves without naming it, comes online and runs
    // another. Then the space ends.
    Scenario::engine("retire-offline")
        .about("retiring a space that a CPU left by going offline")
        .finds(&["RetireAsksAgain"])
        .must(Interrupts, &[Engine(Evicted)])
        .must(Every, &[Machine(Offline), Machine(SpaceRetired)])
        .start(|k| {
            k.map(0, 0, frame(0), true);
            k.link(0, SECOND);
        })
        .each(|_, _| {})
        .start_1(|k| {
            k.switch(0);
            k.idle();
        })
        .cpu(|k| {
            k.free_table(0, SECOND);
            k.tell(0);
            k.wait_for(1);
            k.retire(0);
        })
        .cpu(|k| {
            k.wait_for(0);
            k.offline_unnamed();
            k.online();
            k.switch(1);
            k.tell(1);
            k.read(0);
        }),
    // CPU 0 retires a space whose last thread has made its last access on CPU 1. CPU 1 hasn't switched yet, so it
    // answers while it still has the root loaded.
    Scenario::engine("retire-running")
        .about("retiring a space while a CPU is switching away from it")
        .finds(&["RetireTrustsAnswer"])
        .must(Every, &[Machine(SpaceRetired)])
        .start(|k| k.map(0, 0, frame(0), true))
        .each(|_, _| {})
        .start_1(|k| k.switch(0))
        .cpu(|k| {
            k.wait_for(1);
            k.retire(0);
        })
        .cpu(|k| {
            k.read(0);
            k.tell(1);
            k.switch(1);
            k.read(0);
        }),
    // A guest, whose hypervisor has descheduled CPU 1 whenever it must flush, and flushes it before it runs again. CPU
    // 0 unmaps a page of CPU 1's space. Then the space ends, whose root CPU 1 keeps loaded lazily.
    Scenario::engine("unscheduled")
        .about("unmap and retirement of a space while a virtual CPU is not running")
        .finds(&["RetirementLeftToReentry"])
        .must(Interrupts, &[Engine(SkippedNotRunning)])
        .must(Every, &[Machine(SpaceRetired), Engine(Evicted)])
        .with_unscheduled(0b10)
        .start(|k| k.map(0, 0, frame(0), true))
        .each(|k, cpu| k.switch(1 - cpu))
        .cpu(|k| {
            k.free(0, 0);
            // After this the space has no thread.
            k.wait_for(0);
            k.retire(0);
        })
        .cpu(|k| {
            k.read(0);
            k.idle();
            k.tell(0);
            k.switch(1);
            k.read(0);
        }),
    // CPU 0 zeroes a frame and maps it. CPU 1 uses the page as soon as it sees the entry. On machines whose stores
    // overtake each other, the entry mustn't become visible before the zeroes.
    Scenario::engine("late-content")
        .about("mapping a page against the stores that zeroed it")
        .finds(&["VmMapsBeforeContent"])
        .must(Every, &[Machine(Zeroed), Machine(Fault)])
        .start(|k| k.fill(frame(0), 0xdead))
        .cpu(|k| {
            k.map_zeroes(0, 0, frame(0));
            k.read(0);
        })
        .cpu(|k| {
            k.read(0);
            k.write(0, 1);
            k.read(0);
        }),
];

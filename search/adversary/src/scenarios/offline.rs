//! CPUs that go offline and come online again.

use super::*;

pub(super) const ALL: &[Scenario] = &[
    Scenario::engine("offline-shootdown")
        .about("offline and online against shootdown")
        .must(Every, &[Machine(Offline)])
        .must(Interrupts, &[Engine(SkippedOffline)])
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .cpu(|k| _ = k.free(0, 0))
        .cpu(|k| _ = k.read(0).offline().online().switch(0).read(0)),
    // CPU 1 is taken offline in the middle of a shootdown, and comes online when the initiator has finished. So no
    // initiator may wait for it.
    Scenario::engine("offline-answers")
        .about("a CPU answers its requests before it goes offline")
        .finds(&["OfflineForgetsInbox"])
        .must(Every, &[Machine(Offline)])
        .must(Interrupts, &[Engine(SkippedOffline)])
        .start(|k| _ = k.map(0, 0, frame(0), true))
        .cpu(|k| _ = k.unmap(0, 0).tell(0))
        .cpu(|k| _ = k.offline().wait_for(0).online()),
    // CPU 1 is taken offline while two initiators write to its inbox. They may interrupt it again when it is online.
    Scenario::engine("offline-two")
        .about("an inbox closes while requests are posted to it")
        .must(Every, &[Machine(Offline)])
        .must(Interrupts, &[Engine(SkippedOffline)])
        .start(two_pages)
        .cpu(|k| _ = k.unmap(0, 0))
        .cpu(|k| _ = k.offline().online().switch(0).read(1))
        .cpu(|k| _ = k.unmap(0, 1)),
    // CPU 1 is taken offline for good while two initiators write to its inbox. If one counts its request after the
    // other was answered, its request is never answered.
    Scenario::engine("offline-for-good")
        .about("an inbox closes for good while requests are posted to it")
        .finds(&["WaitsForClosedInbox"])
        .must(Every, &[Machine(Offline)])
        .must(Interrupts, &[Engine(SkippedOffline)])
        .start(two_pages)
        .cpu(|k| _ = k.unmap(0, 0))
        .cpu(|k| _ = k.offline())
        .cpu(|k| _ = k.unmap(0, 1)),
    // CPU 1 is taken offline while CPU 0 unlinks and frees a page-table page. CPU 1's walker may read that page for as
    // long as the root is loaded there.
    Scenario::engine("offline-table-free")
        .about("freeing a table while a CPU goes offline")
        .must(Every, &[Machine(TableFreed), Machine(Offline)])
        .start(second_table)
        .cpu(|k| _ = k.free_table(0, SECOND))
        .cpu(|k| _ = k.read(SECOND).offline()),
];

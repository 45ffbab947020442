//! CPU 0 unmaps a page and gives its frame away; both CPUs go on using the page.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["30"],
    finds: &[
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
    ],
    must: &[
        (On::Every, Reach::Engine(Counter::Requested)),
        (On::Every, Reach::Machine(Happening::StaleUse)),
        (On::Every, Reach::Machine(Happening::FrameReused)),
        (On::Interrupts, Reach::Engine(Counter::Sent)),
        (On::Interrupts, Reach::Engine(Counter::WaitedReceipt)),
        (On::Interrupts, Reach::Engine(Counter::FlushedRanges)),
        (On::Broadcast, Reach::Engine(Counter::Barriers)),
    ],
    ..Scenario::engine(
        "unmap-access",
        "unmap and reuse against access",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        if let Some(frame) = k.unmap(0, 0) {
            k.give_away(frame);
        }
        k.read(0);
    } else {
        k.write(0, 1);
        k.read(0);
    }
}

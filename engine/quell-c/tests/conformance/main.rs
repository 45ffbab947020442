//! Runs the conformance suite through the C interface, in both directions. The suite's calls of the engine use the
//! functions of `quell.h`, and the machine below consists of functions with C's calling convention.
//!
//! The suite is generic over machines, not over interfaces. So we compile its source here a second time, against this
//! crate under the name `quell`. [`interface`] has the engine's types and methods as thin wrappers of the C functions;
//! everything that isn't a call is the engine's own. If the suite fails here and not in `quell-conformance`, the
//! interface is at fault: for example, it lost an argument, mistook a purpose or a scope for another, or didn't wait
//! for a flush. We also make mistakes of an embedder on purpose, to show that the suite detects them.

extern crate alloc;
// The suite's sources use `quell::Engine`, which is ours.
extern crate self as quell;
// The engine itself.
extern crate quell as engine;

#[path = "../../../quell-conformance/src/bench.rs"]
mod bench;
#[path = "../../../quell-conformance/src/checks.rs"]
mod checks;
#[allow(dead_code, reason = "the machine has mistakes of its own, for the suite in Rust")]
#[path = "../../../quell-conformance/tests/toy/machine.rs"]
mod machine;
#[path = "../../../quell-conformance/src/part.rs"]
mod part;
#[path = "../../../quell-conformance/src/promises.rs"]
mod promises;
#[path = "../../../quell-conformance/src/suite.rs"]
mod suite;
#[path = "../../../quell-conformance/src/verdict.rs"]
mod verdict;

mod around;
mod interface;
mod kernel;

pub(crate) use engine::{
    Broadcast, CpuId, CpuSet, Extent, Features, Frame, Hardware, Invalidation, KernelEntries, Page,
    PageRange, PageSize, Purpose, Scope, Tag, Tagging, Word,
};
pub(crate) use interface::{AddressSpace, DeferredFlush, Engine, Outcome};
pub(crate) use quell_c::place::quell_stamp as Stamp;

use bench::{Bench, Rights};
use kernel::{Kernel, Mistake};
use machine::CPUS;
use std::sync::Mutex;
use suite::{Check, Suite};

const PCID: Tagging = Tagging::PerCpu { count: 4 };
const ASID: Tagging = Tagging::Global { bits: 8 };

/// Runs the suite, and returns the results on the first CPU.
fn run(tagging: Tagging, policy: &str, wrong: Mistake) -> Vec<Check> {
    let kernel = Kernel::new(tagging, wrong);
    let _here = kernel.enter(0);
    let engine = Engine::new(kernel, policy);
    let suite = Suite::new(&engine);
    let checks = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for cpu in 0..CPUS {
            let (engine, suite, checks) = (&engine, &suite, &checks);
            scope.spawn(move || {
                let _here = kernel.enter(cpu);
                engine.cpu_online();
                suite.run(None, |check| checks.lock().unwrap().push(check));
            });
        }
    });
    checks.into_inner().unwrap()
}

#[test]
fn the_suite_passes_through_the_c_interface() {
    for (tagging, policy) in
        [(Tagging::None, "all"), (PCID, "baseline"), (PCID, "all"), (ASID, "all")]
    {
        let checks = run(tagging, policy, Mistake::Nothing);
        assert_eq!(checks.len(), 16);
        let kept = checks.iter().find_map(|check| check.kept);
        assert_eq!(kept, Some(CPUS as u64), "nothing was stale to see");
        for check in checks {
            assert_eq!(check.failures, 0, "{tagging:?} {policy} {check:?}");
        }
    }
}

#[test]
fn mistakes_of_the_embedder_are_found() {
    for (wrong, name) in [
        (Mistake::NotFinished, "changed_pages"),
        (Mistake::PageTooFar, "changed_pages"),
        (Mistake::TablesAsLeaves, "unlinked_tables"),
        (Mistake::NotFlushed, "later_observers"),
        (Mistake::NotReused, "deferred_flushes"),
        (Mistake::StampNotFlushed, checks::OWN_HALF),
        (Mistake::TaggedAsGlobal, checks::OWN_HALF),
        (Mistake::EntersUnsaid, checks::OWN_HALF),
        (Mistake::DeviceNotTold, checks::DEVICES),
    ] {
        let checks = run(PCID, "all", wrong);
        let failed: Vec<_> = checks.iter().filter(|check| check.failures > 0).collect();
        let found = failed.iter().any(|check| check.name.contains(name));
        assert!(found, "{wrong:?}: {failed:?}");
    }
}

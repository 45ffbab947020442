//! Runs the conformance suite through the C interface, in both directions. The suite's calls of the engine use the
//! functions of `quell.h`, and the machine below consists of functions with C's calling convention.
//!
//! The suite is generic over machines, not over interfaces. So we compile its source here a second time, against this
//! crate under the name `quell`. [`interface`] has the engine's types and methods as thin wrappers of the C functions;
//! everything that isn't a call is the engine's own. If the suite fails here and not in `quell-conformance`, the
//! interface is at fault: for example, it lost an argument, mistook a purpose or a scope for another, or didn't wait
//! for a flush. We also make mistakes of a machine and of an embedder on purpose, to show that the suite detects them.

extern crate alloc;
// The suite's sources use `quell::Engine`, which is ours.
extern crate self as quell;
// The engine itself.
extern crate quell as engine;

#[path = "../../../quell-conformance/src/bench.rs"]
mod bench;
#[path = "../../../quell-conformance/src/checks.rs"]
mod checks;
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
    Extent, Frame, Hardware, KernelEntries, Page, PageRange, PageSize, Purpose, Scope, Word,
};
pub(crate) use interface::{AddressSpace, DeferredFlush, Engine, Outcome};

use engine::Tagging;
use kernel::{CPUS, Kernel, Mistake};
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
        assert_eq!(checks.len(), 15);
        let kept = checks.iter().find_map(|check| check.kept);
        assert_eq!(kept, Some(CPUS as u64), "nothing was stale to see");
        for check in checks {
            assert_eq!(check.failures, 0, "{tagging:?} {policy} {check:?}");
        }
    }
}

#[test]
fn mistakes_of_the_machine_and_of_its_embedder_are_found() {
    for (tagging, wrong, name) in [
        (PCID, Mistake::AlwaysKeeps, "own_pages"),
        (PCID, Mistake::LeafOnly, "unlinked_tables"),
        (ASID, Mistake::NoCompletion, "changed_pages"),
        (PCID, Mistake::NotFinished, "changed_pages"),
        (PCID, Mistake::PageTooFar, "changed_pages"),
        (PCID, Mistake::TablesAsLeaves, "unlinked_tables"),
        (PCID, Mistake::NotFlushed, "later_observers"),
        (PCID, Mistake::NotReused, "deferred_flushes"),
        (PCID, Mistake::KeepsGlobal, checks::OWN_HALF),
        (PCID, Mistake::KeepsKernel, checks::OWN_HALF),
        (ASID, Mistake::KeepsKernel, checks::OWN_HALF),
        (PCID, Mistake::StampNotFlushed, checks::OWN_HALF),
        (PCID, Mistake::TaggedAsGlobal, checks::OWN_HALF),
        (PCID, Mistake::EntersUnsaid, checks::OWN_HALF),
    ] {
        let checks = run(tagging, "all", wrong);
        let failed: Vec<_> = checks.iter().filter(|check| check.failures > 0).collect();
        let found = failed.iter().any(|check| check.name.contains(name));
        assert!(found, "{wrong:?}: {failed:?}");
    }
}

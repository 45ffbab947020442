//! Random programs against a model of the expected results: plain vectors.

mod model;
mod program;
mod run;

use crate::common::{Options, be, release_machines};
use program::op;
use proptest::prelude::*;
use quell::{Frame, Mechanism, Policy, Tagging};
use quell_vm::{MemoryMap, Node};
use run::Run;

const PAGE: u64 = 4096;
const PAGES: u64 = 24;
/// The address of mappings: in the middle of a large page.
const BASE: u64 = (1 << 40) + 500 * PAGE;
const FILE_PAGES: u64 = 12;
const FILES: u64 = 2;

fn options() -> impl Strategy<Value = Options> {
    let policies = [Policy::BASELINE, Policy::ALL]
        .into_iter()
        .chain(Mechanism::ALL.map(Policy::only))
        .collect::<Vec<_>>();
    let machines = vec![
        (Tagging::None, false, true),
        (Tagging::PerCpu { count: 6 }, false, true),
        (Tagging::Global { bits: 8 }, true, false),
    ];
    // Enough memory for everything, or so little that every allocation reclaims.
    let sizes = vec![(256, 256), (48, 32), (40, 0)];
    let choices = (
        prop::sample::select(policies),
        prop::sample::select(machines),
        prop::sample::select(sizes),
    );
    choices.prop_map(|(policy, (tagging, broadcast, hardware_dirty), (fast, slow))| {
        let node = |first, frames, slow| Node {
            extent: quell::Extent { first: Frame(first), frames },
            slow,
        };
        let nodes = [node(0x1000, fast, false), node(0x2000, slow.max(16), true)];
        Options {
            map: MemoryMap::new(&nodes),
            policy,
            tagging,
            broadcast,
            hardware_dirty,
            ..Options::new(0)
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn programs_see_what_the_model_says(
        options in options(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        // SAFETY: nothing of an earlier case is used any more.
        unsafe { release_machines() };
        be(0);
        let mut run = Run::start(options);
        for op in &ops {
            run.step(op);
        }
        run.finish();
    }
}

//! The model's figures before each change are those that calibrated it.
//!
//! A change of the manager, the engine or the clock moves them. Then fit again what the machine and kernel files derive
//! from figures before a change, and never what comes after it.

use std::thread;

use quell_clock::built_in;
use quell_model::headlines::{HEADLINES, Headline};
use quell_model::trial::Trial;

#[global_allocator]
static ALLOCATOR: quell_vm::sim::LineAllocator = quell_vm::sim::LineAllocator;

/// How far a figure may be from the published one.
const NEAR: f64 = 0.05;

#[test]
fn figures_before_a_change_are_near_the_published_ones() {
    thread::scope(|scope| {
        // Of an experiment that is scaled down, only the change can be compared.
        for headline in HEADLINES.iter().filter(|headline| !headline.scaled) {
            scope.spawn(|| before_is_near(headline));
        }
    });
}

fn before_is_near(headline: &Headline) {
    let machine = built_in(headline.machine).unwrap();
    let workload = headline.workload(false);
    let trial = Trial {
        machine: &machine,
        workload,
        policy: headline.before(),
        cpus: headline.cpus,
        seed: 1,
        trace: 0,
    };
    let figure = headline.read(&trial.run().unwrap(), &workload);
    let off = headline.before_off(figure).unwrap();
    let (experiment, case) = (headline.experiment, headline.case);
    assert!(
        off.abs() <= NEAR,
        "{experiment}, {case}: {figure} before is {:+.1} % off",
        100.0 * off
    );
}

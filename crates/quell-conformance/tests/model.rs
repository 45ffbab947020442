//! The suites on the machine in software, whose oracle also watches: they pass there, and a manager
//! or an engine with a known mistake does not.

use quell::Policy;
use quell_conformance::programs::Suite;
use quell_conformance::stress::{self, Length, Progress};
use quell_model::{Run, Setup, built_in};
use std::cell::{Cell, RefCell};

/// The manager's first process, which every CPU of a run enters.
const HOME: u32 = 1;

fn on_model(
    machine: &str,
    cpus: usize,
    policy: Policy,
    program: &dyn Fn(&quell_model::ModelUser<'_>),
) {
    let machine = built_in(machine).unwrap();
    let mut setup = Setup::new(&machine);
    setup.cpus = Some(cpus);
    setup.node_bytes = Some(4 << 20);
    setup.slow_node_bytes = Some(4 << 20);
    let outcome = Run::new(setup, policy).execute(program).unwrap();
    assert_eq!(outcome.run.violations, []);
}

#[test]
fn the_suite_passes() {
    for machine in ["haswell-server", "kunpeng-920"] {
        for policy in [Policy::ALL, Policy::BASELINE] {
            let checks = Cell::new(0);
            on_model(machine, 4, policy, &|user| {
                Suite::new(user, HOME).run(|name, failures, detail| {
                    assert_eq!(failures, 0, "{name} on {machine}: {detail}");
                    checks.set(checks.get() + 1);
                });
            });
            assert_eq!(checks.get(), 12);
        }
    }
}

fn stress(seed: u64, rounds: u64) -> Progress {
    let last = Cell::new(None);
    let failures = RefCell::new(Vec::new());
    on_model("haswell-server", 3, Policy::ALL, &|user| {
        let outcome = stress::run(
            user,
            seed,
            HOME,
            Length::Rounds(rounds),
            &|_| {},
            |progress| last.set(Some(progress)),
        );
        failures.borrow_mut().extend(outcome.err());
    });
    assert_eq!(failures.into_inner(), Vec::<String>::new());
    last.get().expect("a round")
}

#[test]
fn a_seed_replays_the_operations() {
    let once = stress(1, 2);
    assert_eq!((once.rounds, once.operations), (2, 2 * 3 * stress::ROUND));
    assert_eq!(stress(1, 2).digest, once.digest);
    assert_ne!(stress(2, 2).digest, once.digest);
}

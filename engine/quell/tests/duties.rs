//! Debug builds notice a machine that breaches its duties. Each test breaches one, and fails without the assertion.
//! docs/duties.md lists them, and those that only a judge of accesses notices.
#![cfg(debug_assertions)]

use crate::support::{Breach, E, Machine, S, both, one, panic_of, space, switch, unmapping};
use quell::{Batch, Engine, Frame, PerCpuData, Policy, Purpose};

/// Returns the engine's panic, if any, when the machine breaches a duty while both CPUs run a space.
fn said(breach: Option<Breach>, call: fn(&Machine, E, S)) -> Option<String> {
    let (machine, engine, x) = both();
    machine.breach.set(breach);
    panic_of(|| call(machine, engine, x))
}

/// Checks that the engine panics with `expected` for this breach, and doesn't panic without it.
#[track_caller]
fn notices(breach: Breach, expected: &str, call: fn(&Machine, E, S)) {
    assert_eq!(said(None, call), None);
    let said = said(Some(breach), call).unwrap_or_default();
    assert!(said.contains(expected), "{breach:?}: {said:?}");
}

/// Makes a batch that we don't drop after a panic of the engine, because it would flush again.
fn batch(engine: E, space: S) -> &'static mut Batch<'static, S> {
    Box::leak(Box::new(unmapping(engine, Purpose::Call, space, 5)))
}

/// hardware.rs: a thread must not migrate to another CPU while it's inside the engine.
#[test]
fn a_thread_that_moves_inside_the_engine_is_noticed() {
    let moved = "moved to another CPU inside the engine";
    notices(Breach::MovesAsItWaits, moved, |_, engine, x| {
        assert_eq!(batch(engine, x).finish().count(), 1);
    });
    // We notice it even if there's no CPU to wait for.
    notices(Breach::MovesAsInterruptsComeOn, moved, |machine, engine, x| {
        machine.on(1, || engine.this_cpu().leave(x));
        let batch = batch(engine, x);
        batch.unmapped(space(engine, 2), one(5), Frame(2));
        assert_eq!(batch.finish().count(), 2);
    });
}

/// hardware.rs: the features must not change after the engine was made.
#[test]
fn features_that_change_are_noticed() {
    notices(Breach::FeaturesChange, "features have changed", |machine, engine, x| {
        machine.me.set(1);
        engine.cpu_offline(Some(x));
        engine.cpu_online();
    });
}

/// engine.rs: no CPU may switch to a retired space.
#[test]
fn a_space_that_is_loaded_after_its_end_is_noticed() {
    let before = said(None, |_, engine, x| {
        let other = space(engine, 2);
        switch(engine, Some(x), other);
        switch(engine, Some(other), x);
        engine.retire(other);
    });
    assert_eq!(before, None);
    let after = said(None, |_, engine, x| {
        let other = space(engine, 2);
        engine.retire(other);
        switch(engine, Some(x), other);
    });
    let after = after.unwrap_or_default();
    assert!(after.contains("that was retired"), "{after:?}");
}

/// hardware.rs: the embedder must detach devices before a space ends.
#[test]
fn a_device_that_stays_as_its_space_ends_is_noticed() {
    notices(Breach::DeviceStays, "a space ends that a device still uses", |_, engine, _| {
        engine.retire(space(engine, 2))
    });
}

/// per_cpu.rs: the embedder must give a CPU's state to no other engine.
#[test]
fn two_engines_that_share_the_state_of_a_cpu_are_noticed() {
    let machine: &Machine = Box::leak(Box::default());
    let cpus: &[PerCpuData<'_, Machine>] =
        Box::leak(Box::new([PerCpuData::new(), PerCpuData::new()]));
    let first = Engine::new(machine, cpus, &[], Policy::ALL).expect("a machine that holds");
    first.cpu_online();
    let second = panic_of(|| _ = Engine::new(machine, cpus, &[], Policy::ALL));
    let said = second.expect("the state is the first engine's");
    assert!(said.contains("belongs to another engine"), "{said:?}");
    // It may once the first engine's CPUs are offline.
    first.cpu_offline(None);
    assert!(Engine::new(machine, cpus, &[], Policy::ALL).is_ok());
}

/// hardware.rs: `load_root` is called with interrupts masked, and the methods of a machine must not call the engine.
#[test]
fn a_handler_in_the_middle_of_a_switch_is_noticed() {
    notices(
        Breach::InterruptsTheSwitch,
        "interrupts are masked during a switch",
        |machine, engine, x| {
            let y = space(engine, 2);
            let batch = batch(engine, x);
            let flight = Box::leak(Box::new(machine.on(1, || batch.start())));
            // CPU 0 has a request now.
            switch(engine, Some(x), y);
            assert!(!flight.is_done());
        },
    );
}

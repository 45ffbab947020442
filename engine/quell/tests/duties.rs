//! Debug builds notice breaches of the duties: each row breaches one, and fails without its assertion. docs/duties.md
//! lists the duties, and those that only a judge of accesses notices.
#![cfg(debug_assertions)]

use crate::support::{Breach, E, Machine, S, both, leak, one, panic_of, space, switch, unmapping};
use quell::{Batch, Engine, Frame, PerCpuData, Policy, Purpose};

type Call = fn(&Machine, E, S);

/// Makes a batch that we don't drop after a panic of the engine, because it would flush again.
fn batch(engine: E, space: S) -> &'static mut Batch<'static, S> {
    Box::leak(Box::new(unmapping(engine, Purpose::Call, space, 5)))
}

const MOVED: &str = "moved to another CPU inside the engine";

/// Breaches of the machine, a part of the panic, and a call that panics only then. The duties are in hardware.rs.
const BREACHES: &[(Breach, &str, Call)] = &[
    // A thread must not migrate to another CPU while it's inside the engine.
    (Breach::MovesAsItWaits, MOVED, |_, engine, x| {
        assert_eq!(batch(engine, x).finish().count(), 1);
    }),
    // We notice it even if there's no CPU to wait for.
    (Breach::MovesAsInterruptsComeOn, MOVED, |machine, engine, x| {
        machine.on(1, || engine.this_cpu().leave(x));
        let batch = batch(engine, x);
        batch.unmapped(space(engine, 2), one(5), Frame(2));
        assert_eq!(batch.finish().count(), 2);
    }),
    // The features must not change after the engine was made.
    (Breach::FeaturesChange, "features have changed", |machine, engine, x| {
        machine.me.set(1);
        engine.cpu_offline(Some(x));
        engine.cpu_online();
    }),
    // The embedder must detach devices before a space ends.
    (Breach::DeviceStays, "a space ends that a device still uses", |_, engine, _| {
        engine.retire(space(engine, 2));
    }),
    // `load_root` is called with interrupts masked, and the methods of a machine must not call the engine.
    (Breach::InterruptsTheSwitch, "interrupts are masked during a switch", |machine, engine, x| {
        let y = space(engine, 2);
        let batch = batch(engine, x);
        let flight = Box::leak(Box::new(machine.on(1, || batch.start())));
        // CPU 0 has a request now.
        switch(engine, Some(x), y);
        assert!(!flight.is_done());
    }),
];

#[test]
fn breaches_of_the_machine_are_noticed() {
    for (breach, expected, call) in BREACHES {
        let said = |breach| {
            let (machine, engine, x) = both();
            machine.breach.set(breach);
            panic_of(|| call(machine, engine, x))
        };
        assert_eq!(said(None), None, "{breach:?}");
        let said = said(Some(*breach)).unwrap_or_default();
        assert!(said.contains(expected), "{breach:?}: {said:?}");
    }
}

/// Wrong calls, with a part of the panic.
const WRONG_CALLS: &[(&str, Call)] = &[
    // No CPU may switch to a retired space.
    ("that was retired", |_, engine, x| {
        let other = space(engine, 2);
        engine.retire(other);
        switch(engine, Some(x), other);
    }),
    ("with interrupts on", |_, engine, _| {
        // SAFETY: deliberately violated, as below. The assertion ends the call before it does anything.
        unsafe { engine.this_cpu().assume_masked() }.on_interrupt();
    }),
    ("in the engine with the state of another", |machine, engine, _| {
        let elsewhere = engine.this_cpu();
        machine.me.set(1);
        // SAFETY: deliberately violated.
        let _ = unsafe { engine.on_cpu(elsewhere.state()) };
    }),
    ("in the engine with the state of another", |machine, engine, _| {
        let elsewhere = engine.this_cpu();
        machine.me.set(1);
        machine.masked.set(true);
        // SAFETY: deliberately violated.
        let _ = unsafe { elsewhere.assume_masked() };
    }),
];

#[test]
fn wrong_calls_are_noticed() {
    for (row, (expected, call)) in WRONG_CALLS.iter().enumerate() {
        let (machine, engine, x) = both();
        let said = panic_of(|| call(machine, engine, x)).unwrap_or_default();
        assert!(said.contains(expected), "{row}: {said:?}");
    }
}

/// per_cpu.rs: the embedder must give a CPU's state to no other engine, until the first engine's CPUs are offline.
#[test]
fn two_engines_that_share_the_state_of_a_cpu_are_noticed() {
    let machine: &Machine = leak(Machine::default());
    let cpus: &[PerCpuData<'_, Machine>] = leak([PerCpuData::new(), PerCpuData::new()]);
    let first = Engine::new(machine, cpus, &[], Policy::ALL).expect("a machine that holds");
    first.cpu_online();
    let said = panic_of(|| _ = Engine::new(machine, cpus, &[], Policy::ALL)).unwrap_or_default();
    assert!(said.contains("belongs to another engine"), "{said:?}");
    first.cpu_offline(None);
    assert!(Engine::new(machine, cpus, &[], Policy::ALL).is_ok());
}

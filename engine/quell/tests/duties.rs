//! What the engine notices of a machine that does not do its duty, in debug builds: each test breaches one, and fails
//! without the assertion. docs/duties.md lists them, beside those that only a judge of accesses notices.
#![cfg(debug_assertions)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::support::{Breach, E, Machine, S, both, one, space, switch};
use quell::{Batch, CoalescedFlushes, Engine, Frame, PerCpu, Policy, Purpose};

/// What the engine says when the machine does this, and both CPUs run a space.
fn said(breach: Option<Breach>, call: fn(&Machine, E, S)) -> Option<String> {
    let (machine, engine, x) = both();
    machine.breach.set(breach);
    let outcome = catch_unwind(AssertUnwindSafe(|| call(machine, engine, x)));
    let why = outcome.err()?;
    let said = why.downcast_ref::<String>().cloned();
    said.or_else(|| Some((*why.downcast_ref::<&str>()?).to_string()))
}

/// The engine says this of the breach, and nothing without it.
#[track_caller]
fn notices(breach: Breach, expected: &str, call: fn(&Machine, E, S)) {
    assert_eq!(said(None, call), None);
    let said = said(Some(breach), call).unwrap_or_default();
    assert!(said.contains(expected), "{breach:?}: {said:?}");
}

/// A batch that is not dropped when the engine has noticed something: it would flush again.
fn batch(engine: E) -> &'static mut Batch<'static, S> {
    Box::leak(Box::new(engine.batch(Purpose::Call)))
}

fn unmap(engine: E, space: S) {
    let batch = batch(engine);
    batch.unmapped(space, one(5), Frame(42));
    assert_eq!(batch.finish().count(), 1);
}

/// hardware.rs: "A thread must not migrate to another CPU while it is inside the engine."
#[test]
fn a_thread_that_moves_inside_the_engine_is_noticed() {
    let moved = "moved to another CPU inside the engine";
    notices(Breach::MovesAsItWaits, moved, |_, engine, x| {
        unmap(engine, x);
    });
    // Also where there is nobody to wait for.
    notices(
        Breach::MovesAsInterruptsComeOn,
        moved,
        |machine, engine, x| {
            machine.on(1, || engine.this_cpu().leave(x));
            let other = space(engine, 2);
            let batch = batch(engine);
            batch.unmapped(x, one(5), Frame(1));
            batch.unmapped(other, one(5), Frame(2));
            assert_eq!(batch.finish().count(), 2);
        },
    );
}

/// hardware.rs: "What the machine can do. Must not change after the engine was made."
#[test]
fn features_that_change_are_noticed() {
    notices(
        Breach::FeaturesChange,
        "Hardware::features has changed",
        |machine, engine, x| {
            machine.me.set(1);
            engine.cpu_offline(Some(x));
            engine.cpu_online();
        },
    );
}

/// at_once.rs, of a shared flush: "nor may an interrupt handler call it".
#[test]
fn a_handler_that_shares_the_flush_that_it_has_interrupted_is_noticed() {
    notices(
        Breach::HandlerJoins,
        "a CPU waits for a flush that it makes itself",
        |machine, engine, x| {
            let coalesced: &CoalescedFlushes<_> = Box::leak(Box::default());
            machine.joins.set(Some((x, coalesced)));
            engine.this_cpu().flush_coalesced(x, coalesced);
        },
    );
}

/// engine.rs, of a root: "no CPU switches to the space after that".
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

/// hardware.rs: "the embedder detaches devices before".
#[test]
fn a_device_that_stays_as_its_space_ends_is_noticed() {
    notices(
        Breach::DeviceStays,
        "a space ends that a device still uses",
        |_, engine, _| engine.retire(space(engine, 2)),
    );
}

/// per_cpu.rs: the embedder "gives it to no other engine".
#[test]
fn two_engines_that_share_the_state_of_a_cpu_are_noticed() {
    let machine: &Machine = Box::leak(Box::default());
    let cpus: &[PerCpu<'_, Machine>] = Box::leak(Box::new([PerCpu::new(), PerCpu::new()]));
    let first = Engine::new(machine, cpus, &[], Policy::ALL).expect("a machine that holds");
    first.cpu_online();
    let second = catch_unwind(AssertUnwindSafe(|| {
        let _ = Engine::new(machine, cpus, &[], Policy::ALL);
    }));
    let why = second.expect_err("the state is the first engine's");
    let said = why.downcast_ref::<&str>().copied().unwrap_or_default();
    assert!(said.contains("belongs to another engine"), "{said:?}");
    // Not so when its CPUs have gone offline.
    first.cpu_offline(None);
    assert!(Engine::new(machine, cpus, &[], Policy::ALL).is_ok());
}

/// hardware.rs: `load_root` is "called with interrupts masked", and the methods of a machine call nothing of the
/// engine.
#[test]
fn a_handler_in_the_middle_of_a_switch_is_noticed() {
    notices(
        Breach::InterruptsTheSwitch,
        "interrupts are masked during a switch",
        |machine, engine, x| {
            let y = space(engine, 2);
            let batch = batch(engine);
            batch.unmapped(x, one(5), Frame(42));
            machine.me.set(1);
            let flight = Box::leak(Box::new(batch.start()));
            // CPU 0 has a request.
            machine.me.set(0);
            switch(engine, Some(x), y);
            assert!(!flight.is_done());
        },
    );
}

//! The engine's calls into the kernel that embeds it: may it wait, which flushes are answered, which waits are long,
//! where is a CPU's state, and which virtual CPUs aren't running.

use crate::support::{
    E, Machine, S, begin, both, both_of, defer, kernel_space, leak, panic_of, run_on_both, space,
    switch, unmap, unmapping,
};
use quell::{
    Counter, CpuId, Engine, EngineError, KernelEntries, LedgerEntry, Outcome, PerCpuData, Policy,
    Purpose,
};

/// Every call that may wait checks `may_wait` first. Without that check each of these would pass.
#[test]
#[cfg(debug_assertions)]
fn calls_that_may_wait_are_noticed_where_they_must_not() {
    /// Makes a call that may wait while waiting is forbidden.
    fn forbidden(machine: &Machine, call: impl FnOnce()) {
        machine.forbidden.set(true);
        call();
        assert!(!machine.forbidden.get(), "the engine has not asked");
    }
    type Call = fn(&'static Machine, E, S);
    let calls: &[(&str, Call)] = &[
        ("finish", |machine, engine, x| {
            forbidden(machine, || unmap(engine, x, 5));
        }),
        ("drop", |machine, engine, x| {
            let batch = unmapping(engine, Purpose::Call, x, 5);
            forbidden(machine, || drop(batch));
        }),
        ("unlocked, without S0", |_, _, _| {
            let (machine, engine, x) = both_of(Machine::default(), Policy::BASELINE);
            let mut batch = unmapping(engine, Purpose::Reclaim, x, 5);
            forbidden(machine, || batch.unlocked());
        }),
        ("FlushInFlight::finish", |machine, engine, x| {
            let mut batch = unmapping(engine, Purpose::Call, x, 5);
            let flight = batch.start();
            forbidden(machine, || flight.finish().for_each(drop));
        }),
        ("finish_deferred, for the devices", |machine, engine, x| {
            let mut batch = unmapping(engine, Purpose::Lazy, x, 5);
            forbidden(machine, || drop(batch.finish_deferred()));
        }),
        ("flush_pending", |machine, engine, x| {
            let _batch = unmapping(engine, Purpose::Call, x, 5);
            forbidden(machine, || engine.flush_pending(x));
        }),
        ("flush_before_reuse", |machine, engine, x| {
            let deferred_flush = defer(engine, x, 5);
            forbidden(machine, || _ = engine.flush_before_reuse(&deferred_flush));
        }),
        ("flush_before_refill", |machine, engine, x| {
            let deferred_flush = defer(engine, x, 5);
            forbidden(machine, || engine.flush_before_refill(&deferred_flush, x));
        }),
        ("flush_until", |machine, engine, x| {
            let mut batch = unmapping(engine, Purpose::Lazy, x, 5);
            let Outcome::Deferred(deferred) = batch.finish_deferred() else {
                return;
            };
            forbidden(machine, || engine.flush_until(deferred.stamp()));
        }),
        ("flush_deferred", |machine, engine, x| {
            defer(engine, x, 5);
            forbidden(machine, || engine.flush_deferred());
        }),
        ("retire", |machine, engine, _| {
            forbidden(machine, || engine.retire(space(engine, 2)));
        }),
        ("synchronize_text", |machine, engine, _| {
            forbidden(machine, || engine.this_cpu().synchronize_text());
        }),
        ("quiesce", |machine, engine, _| {
            forbidden(machine, || engine.this_cpu().quiesce());
        }),
    ];
    for (name, call) in calls {
        let (machine, engine, x) = both();
        let said = panic_of(|| call(machine, engine, x)).expect(name);
        assert!(said.contains("waits for other CPUs"), "{name}: {said:?}");
    }
}

#[test]
fn a_flush_that_was_started_is_over_when_its_target_has_answered() {
    let (machine, engine, x) = both();
    unmap(engine, x, 5);
    let answers = machine.answers.get();
    assert_eq!(answers, 0, "no code waits for a flush whose initiator waits");
    let mut batch = unmapping(engine, Purpose::Call, x, 5);
    let mut flight = batch.start();
    assert_eq!(machine.interrupts.get(), 2);
    assert!(!flight.is_done() && x.is_in_batch());
    // Poll it on the other CPU, too.
    machine.me.set(1);
    assert!(!flight.is_done());
    engine.this_cpu().mask_interrupts().on_interrupt();
    assert_eq!(machine.answers.get(), 1);
    assert!(flight.is_done() && !x.is_in_batch());
    assert_eq!(flight.finish().count(), 1);
    // The batch may be filled again. If it's dropped in flight, it waits.
    machine.me.set(0);
    batch.hold(quell::Frame(43));
    batch.changed_all(x, quell::Scope::Leaf);
    drop(batch.start());
    assert!(!x.is_in_batch());
    let answers = machine.answers.get();
    unmap(engine, x, 5);
    assert_eq!(machine.answers.get(), answers, "nothing is in flight");
}

#[test]
fn a_wait_that_lasts_is_told_and_goes_on() {
    const DEAF: u64 = 200_000;
    let (machine, engine, x) = both();
    // The reports come in exactly these turns.
    let expected = [1 << 16, 1 << 17].map(|turns| (CpuId(1), turns, DEAF - (turns - 1)));
    machine.deaf_for.set(DEAF);
    unmap(engine, x, 5);
    assert_eq!(machine.long_waits.take(), expected);
    machine.deaf_for.set(DEAF);
    let mut batch = unmapping(engine, Purpose::Call, x, 5);
    assert_eq!(batch.start().finish().count(), 1);
    assert_eq!(machine.long_waits.take(), expected);
    unmap(engine, x, 5);
    assert_eq!(machine.long_waits.take(), []);
}

/// switch.rs: retiring a space interrupts a CPU that still runs it again and again, and reports the wait.
#[test]
fn a_cpu_that_goes_on_running_a_space_that_ends_is_told_of() {
    let (machine, engine, x) = both();
    switch(engine, Some(x), space(engine, 2));
    machine.goes_at_last.set(true);
    engine.retire(x);
    assert!(!machine.goes_at_last.get());
    assert_eq!(machine.long_waits.take(), [(CpuId(1), 65536, 0)]);
}

#[test]
fn state_of_cpus_lies_where_the_kernel_keeps_it() {
    let machine = leak(Machine::default());
    let ledger = leak([(); 4].map(|()| LedgerEntry::new()));
    let make = || Engine::with_own_state(machine, 2, ledger, Policy::ALL);
    assert_eq!(make().err(), Some(EngineError::NoState { cpu: 0 }));
    machine.places.borrow_mut().push(leak(PerCpuData::new()));
    assert_eq!(make().err(), Some(EngineError::NoState { cpu: 1 }));
    // Put the two states at different distances.
    let _between = leak([0u8; 4096]);
    machine.places.borrow_mut().push(leak(PerCpuData::new()));
    let engine: E = leak(make().expect("two places"));
    begin(machine, engine);
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    unmap(engine, x, 5);
    assert_eq!(machine.interrupts.get(), 1);
    assert_eq!(engine.cpu_stats(CpuId(0)).get(Counter::Sent), 1);
    assert_eq!(engine.stats().get(Counter::Sent), 1);

    // The machine has a third CPU and a place for its state; the engine was made for two.
    machine.places.borrow_mut().push(leak(PerCpuData::new()));
    machine.me.set(2);
    assert!(panic_of(|| _ = engine.cpu_stats(CpuId(2))).is_some());
    assert!(panic_of(|| _ = engine.this_cpu()).is_some());
}

/// hardware.rs: `per_cpu` returns a different address for each CPU, and the same one at each call.
#[test]
#[cfg(debug_assertions)]
fn state_of_cpus_that_is_shared_or_moves_is_noticed() {
    type Places = [&'static PerCpuData<'static, Machine>; 2];
    let [one, other, third] = [(); 3].map(|()| leak(PerCpuData::new()));
    let online = |made_with: Places, online_with: Places| {
        let machine = leak(Machine::default());
        machine.places.replace(made_with.into());
        panic_of(|| {
            let engine = Engine::with_own_state(machine, 2, &[], Policy::ALL).expect("two places");
            machine.places.replace(online_with.into());
            engine.cpu_online();
            engine.cpu_offline(None);
        })
    };
    let shared = online([one, one], [one, one]).expect("one place, two CPUs");
    assert!(shared.contains("two CPUs are in one place"), "{shared}");
    assert_eq!(online([one, other], [one, other]), None);
    for moved in [[third, other], [one, third], [other, one]] {
        let said = online([one, other], moved).expect("another place");
        assert!(said.contains("state has changed"), "{said}");
    }
}

#[test]
fn virtual_cpus_that_do_not_run_are_not_interrupted() {
    let (machine, engine, x) = both();
    machine.preempted.set(true);
    unmap(engine, x, 5);
    assert_eq!(engine.stats().get(Counter::SkippedNotRunning), 1);
    unmap(engine, kernel_space(engine, KernelEntries::Global), 5);
    assert_eq!(machine.interrupts.get(), 0);
    // The hypervisor doesn't drop fetched instructions, so the CPU is interrupted for those.
    engine.this_cpu().synchronize_text();
    assert_eq!(machine.interrupts.get(), 1);
    // When the CPU runs again, it gets requests. Since it missed some, it flushes the whole tag.
    machine.preempted.set(false);
    unmap(engine, x, 5);
    assert_eq!(machine.interrupts.get(), 2);
    assert_eq!(engine.stats().get(Counter::EscalatedGap), 1);
}

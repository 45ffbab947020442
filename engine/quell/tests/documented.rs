//! The documented promises of single calls, on a machine of two CPUs that does nothing by itself.

use crate::support::{
    E, KERNEL_PAGE, Machine, S, both, both_of, kernel_space, leak, one, panic_of, run_on_both,
    space, switch, two, unmap, unmapping, world,
};
use quell::{
    Engine, EngineError, Frame, Hardware, Invalidation, KernelEntries, LedgerEntry, PerCpuData,
    Policy, Purpose, Scope, TagPolicy,
};

/// space.rs: every CPU has kernel mappings loaded for ever, even if its idle thread has the kernel space as its own.
#[test]
fn no_cpu_leaves_the_kernels_mappings() {
    type Departure = fn(E, S, S);
    let ways: [(&str, Departure); 4] = [
        ("switch from a user's", |engine, x, _| {
            switch(engine, None, x);
        }),
        ("switch", |engine, x, kernel| {
            switch(engine, Some(kernel), x);
        }),
        ("leave", |engine, _, kernel| engine.this_cpu().leave(kernel)),
        ("go offline", |engine, _, kernel| {
            engine.cpu_offline(Some(kernel));
            engine.cpu_online();
        }),
    ];
    for (way, leaves) in ways {
        let (machine, engine) = world(Machine::default(), Policy::ALL);
        let x = space(engine, 1);
        let kernel = kernel_space(engine, KernelEntries::Global);
        machine.on(1, || leaves(engine, x, kernel));
        machine.invalidated.borrow_mut().clear();
        unmap(engine, kernel, KERNEL_PAGE);
        assert!(machine.flushed_on().contains(&1), "{way}");
    }
}

/// Calls that panic before they change anything.
#[test]
fn what_no_cpu_may_do_panics() {
    type Call = fn(&Machine, E, S, S);
    let calls: [(&str, Call); 7] = [
        ("as if it were a user's", |_, engine, _, kernel| {
            switch(engine, None, kernel);
        }),
        ("retired by a CPU that runs it", |_, engine, x, _| {
            engine.retire(x);
        }),
        ("their space cannot be retired", |_, engine, _, kernel| {
            engine.retire(kernel);
        }),
        ("an engine that was made for 2", |machine, engine, _, _| {
            machine.me.set(2);
            engine.cpu_online();
        }),
        // No initiator would send it a request.
        ("before it has come online", |_, engine, x, _| {
            engine.cpu_offline(Some(x));
            switch(engine, None, x);
        }),
        // It would treat its loaded space as none, and ignore that space's flushes.
        ("CPU 0 comes online, and is online already", |_, engine, _, _| {
            engine.cpu_online();
        }),
        // Text would change under a CPU of a kernel that doesn't define `synchronize_text`.
        ("does not define synchronize_text", |_, _, _, _| {
            quell::example::OneCpu::default().synchronize_text();
        }),
    ];
    for (expected, call) in calls {
        let (machine, engine, x) = both();
        let kernel = kernel_space(engine, KernelEntries::Global);
        let why = panic_of(|| call(machine, engine, x, kernel)).expect(expected);
        assert!(why.contains(expected), "{why}");
    }
}

/// in_flight.rs: `is_done` never waits, not even on another CPU of a machine that broadcasts.
#[test]
fn whether_a_flush_is_over_may_be_asked_anywhere() {
    let (machine, engine, x) = both_of(Machine::new(true), Policy::ALL);
    let mut batch = unmapping(engine, Purpose::Call, x, 5);
    let mut flight = batch.start();
    machine.me.set(1);
    machine.forbidden.set(true);
    assert!(flight.is_done());
    machine.forbidden.set(false);
}

/// ledger.rs: no other engine accepts an entry, and an engine that is refused takes none.
#[test]
fn two_engines_share_no_ledger() {
    let machine = leak(Machine::default());
    let ledger: &'static [LedgerEntry<Machine>] = leak([(); 4].map(|()| LedgerEntry::new()));
    let made = |ledger| {
        let cpus = leak([PerCpuData::new(), PerCpuData::new()]);
        Engine::new(machine, cpus, ledger, Policy::ALL).err()
    };
    assert_eq!(made(&ledger[2..]), None);
    for _ in 0..2 {
        assert_eq!(made(ledger), Some(EngineError::LedgerInUse));
    }
    assert_eq!(made(&ledger[..2]), None);
}

/// target.rs: `user_access_allowed` returns `false` while the CPU keeps its root lazily, has none, or is offline.
#[test]
fn an_nmi_right_after_a_root_was_left_is_refused() {
    let ways: [fn(E, S); 2] =
        [|engine, x| engine.this_cpu().leave(x), |engine, x| engine.cpu_offline(Some(x))];
    for leaves in ways {
        let (machine, engine, x) = both();
        leaves(engine, x);
        assert_eq!(*machine.nmis.borrow(), [false]);
    }
}

/// switch.rs: if a switch leaves out the last space, its set keeps the CPU until the space is retired. Until then its
/// flushes interrupt that CPU in vain.
#[test]
fn a_space_that_a_switch_left_out_is_retired() {
    let (machine, engine, [x, y]) = two(Machine::default(), Policy::ALL);
    run_on_both(machine, engine, x);
    machine.on(1, || switch(engine, None, y));
    switch(engine, Some(x), y);
    machine.limit.set(4);
    unmap(engine, x, 5);
    assert_eq!(machine.interrupts.get(), 1, "CPU 1 is still named");
    engine.retire(x);
    assert_eq!(machine.interrupts.get(), 2);
}

/// in_flight.rs: if a flush in flight is forgotten, the batch keeps its frames, and flushes again.
#[test]
fn a_flush_in_flight_that_was_forgotten_is_made_again() {
    let (machine, engine, x) = both();
    let mut batch = unmapping(engine, Purpose::Call, x, 5);
    std::mem::forget(batch.start());
    assert!(x.is_in_batch(), "later observers are told of it");
    machine.invalidated.borrow_mut().clear();
    assert!(batch.finish().eq([Frame(5)]));
    let flushed = machine.flushed_on();
    assert!(flushed.contains(&0) && flushed.contains(&1));
    assert!(!x.is_in_batch());
}

/// inbox.rs: the outbox is reserved for a flush, and free when all targets have flushed.
#[test]
fn a_cpu_that_has_retired_a_space_goes_on_to_ask_for_pages() {
    let (machine, engine, x) = both_of(Machine::default(), Policy::BASELINE);
    engine.retire(space(engine, 2));
    machine.invalidated.borrow_mut().clear();
    unmap(engine, x, 5);
    let invalidated = machine.invalidated.borrow();
    let mut at_target = invalidated.iter().filter(|(cpu, _)| *cpu == 1);
    assert!(matches!(at_target.next(), Some((_, Invalidation::Range { .. }))));
    assert_eq!(at_target.next(), None);
}

/// policy.rs: `TagPolicy::Slots(0)` is `TagPolicy::Off`.
#[test]
fn no_slots_are_no_tags() {
    for global in [false, true] {
        let policy = Policy { tags: TagPolicy::Slots(0), ..Policy::ALL };
        let (machine, engine, [x, y]) = two(Machine::new(global), policy);
        switch(engine, None, x);
        engine.cpu_offline(Some(x));
        engine.cpu_online();
        switch(engine, None, x);
        switch(engine, Some(x), y);
        switch(engine, Some(y), x);
        // Become lazy, with one slot that no space has taken.
        engine.this_cpu().enter_lazy();
        machine.on(1, || engine.this_cpu().flush(y, Some(one(1)), Scope::Leaf));
        let kept = machine.kept.take();
        assert!(!kept.contains(&true), "global {global}: {kept:?}");
    }
}

/// Kernel mappings are flushed even if there's only one CPU.
#[test]
fn one_cpu_flushes_the_kernel_s_own_mappings() {
    let machine = leak(Machine::default());
    let cpus = leak([PerCpuData::new()]);
    let engine: E = leak(Engine::new(machine, cpus, &[], Policy::ALL).expect("a machine"));
    engine.cpu_online();
    for entries in [KernelEntries::Global, KernelEntries::Tagged] {
        machine.invalidated.borrow_mut().clear();
        unmap(engine, kernel_space(engine, entries), 5);
        let flushed = machine.flushed(0, |what| matches!(what, Invalidation::Kernel { .. }));
        assert!(flushed, "{entries:?}");
    }
}

/// flush.rs: `quiesce` waits until every online CPU has *flushed*, even if the initiator of the flush waited only for
/// receipts.
#[test]
fn a_cpu_that_has_taken_a_request_is_waited_for_until_it_has_flushed() {
    let (machine, engine, x) = both();
    let mut batch = unmapping(engine, Purpose::Call, x, 5);
    let mut flight = batch.start();
    // CPU 1 has acknowledged the receipt, and is about to flush.
    *machine.nmi.borrow_mut() = Some(|engine| {
        let machine = engine.hw();
        assert_eq!(machine.me.replace(0), 1);
        machine.patience.set(9);
        let waits = panic_of(|| engine.this_cpu().quiesce()).is_some();
        machine.nmis.borrow_mut().push(waits);
        machine.patience.set(0);
        machine.me.set(1);
    });
    machine.relax();
    assert_eq!(machine.nmis.take(), [true]);
    assert!(flight.is_done());
    flight.finish().for_each(drop);
    // Now CPU 1 has flushed, so `quiesce` doesn't wait.
    machine.patience.set(1);
    engine.this_cpu().quiesce();
    // `quiesce` also serves the requests for its own CPU.
    batch.changed(x, one(5), Scope::Leaf);
    let flight = batch.start();
    machine.on(1, || engine.this_cpu().quiesce());
    flight.finish().for_each(drop);
    assert_eq!(machine.patience.get(), 1);
}

//! The documented promises of single calls, on a machine of two CPUs that does nothing by itself.

use crate::support::{
    E, Machine, S, both, kernel_space, leak, message, one, run_on_both, space, switch, two, unmap,
    world,
};
use quell::Hardware;
use quell::{
    Batch, DeferredFlush, Engine, Frame, Invalidate, KernelEntries, LedgerEntry, Outcome, PerCpu,
    Policy, Purpose, Scope, TagPolicy, Unsupported,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// batch.rs: a batch with mappings of both the kernel and a user space is flushed. CPU 1, which runs that space's
/// program undisturbed, is interrupted for it.
#[test]
fn what_is_deferred_of_a_program_does_not_wait_for_its_entry_into_the_kernel() {
    for with_kernel in [false, true] {
        let (machine, engine) = world(Machine::default(), Policy::ALL);
        let x = space(engine, 1);
        let kernel = kernel_space(engine, KernelEntries::Global);
        run_on_both(machine, engine, x);
        // SAFETY: no memory is behind any frame.
        machine.on(1, || unsafe { engine.this_cpu().enter_user() });
        machine.interrupts.set(0);
        let deferred_flush = DeferredFlush::new();
        deferred_flush.begin();
        let mut batch: Batch<'_, S> = engine.batch(Purpose::Lazy);
        batch.unmapped(x, one(5), Frame(42));
        if with_kernel {
            batch.unmapped(kernel, one(0x7_ffff_f000), Frame(43));
        }
        match batch.finish_deferred() {
            Outcome::Deferred(deferred) => deferred_flush.defer(deferred.stamp()),
            Outcome::Flushed(_) => deferred_flush.clear(),
        }
        assert!(deferred_flush.is_clear() || engine.flush_before_reuse(&deferred_flush).is_some());
        assert_eq!(
            machine.interrupts.get(),
            1,
            "with the kernel: {with_kernel}"
        );
    }
}

/// space.rs: every CPU has kernel mappings loaded for ever, even if its idle thread has the kernel space as its own.
#[test]
fn no_cpu_leaves_the_kernels_mappings() {
    type Leaves = fn(E, S, S);
    let ways: [(&str, Leaves); 4] = [
        ("switch from a user's", |engine, x, _| {
            switch(engine, None, x)
        }),
        ("switch", |engine, x, kernel| {
            switch(engine, Some(kernel), x)
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
        machine.me.set(1);
        leaves(engine, x, kernel);
        machine.me.set(0);
        machine.invalidated.borrow_mut().clear();
        unmap(engine, kernel, 0x7_ffff_f000);
        let told = machine.flushed_on().contains(&1);
        assert!(
            told,
            "{way}: CPU 1 is not told of what changes in the kernel's half"
        );
    }
}

/// Calls that panic before they change anything.
#[test]
fn what_no_cpu_may_do_panics() {
    type Call = fn(&Machine, E, S, S);
    let calls: [(&str, Call); 4] = [
        ("as if it were a user's", |_, engine, _, kernel| {
            switch(engine, None, kernel)
        }),
        ("retired by a CPU that runs it", |_, engine, x, _| {
            engine.retire(x)
        }),
        ("their space cannot be retired", |_, engine, _, kernel| {
            engine.retire(kernel)
        }),
        ("an engine that was made for 2", |machine, engine, _, _| {
            machine.me.set(2);
            engine.cpu_online();
        }),
    ];
    for (expected, call) in calls {
        let (machine, engine, x) = both();
        let kernel = kernel_space(engine, KernelEntries::Global);
        let panics = catch_unwind(AssertUnwindSafe(|| call(machine, engine, x, kernel)));
        let why = message(&*panics.expect_err(expected));
        assert!(why.contains(expected), "{why}");
    }
}

/// in_flight.rs: `is_done` never waits, not even on another CPU of a machine that broadcasts.
#[test]
fn whether_a_flush_is_over_may_be_asked_anywhere() {
    let (machine, engine) = world(Machine::new(true), Policy::ALL);
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
    batch.unmapped(x, one(5), Frame(42));
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
        let cpus = leak([PerCpu::new(), PerCpu::new()]);
        Engine::new(machine, cpus, ledger, Policy::ALL).err()
    };
    assert_eq!(made(&ledger[2..]), None);
    for _ in 0..2 {
        assert_eq!(made(ledger), Some(Unsupported::LedgerInUse));
    }
    assert_eq!(made(&ledger[..2]), None);
}

/// target.rs: `user_access_allowed` returns `false` while the CPU keeps its root lazily, has none, or is offline.
#[test]
fn an_nmi_right_after_a_root_was_left_is_refused() {
    let ways: [fn(E, S); 2] = [
        |engine, x| engine.this_cpu().leave(x),
        |engine, x| engine.cpu_offline(Some(x)),
    ];
    for leaves in ways {
        let (machine, engine, x) = both();
        leaves(engine, x);
        assert_eq!(*machine.nmis.borrow(), [false]);
    }
}

/// hardware.rs: every call that may wait calls `may_wait` in debug builds, for example `finish` and `retire`.
#[test]
fn a_batch_that_finishes_asks_whether_it_may_wait() {
    let (machine, engine, x) = both();
    unmap(engine, x, 5);
    assert!(machine.interrupts.get() > 0, "it waited");
    assert!(machine.asked.get() > 0, "a batch that waited has not asked");
}

#[test]
fn retire_asks_whether_it_may_wait() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    machine.me.set(1);
    switch(engine, None, x);
    engine.this_cpu().enter_lazy();
    machine.me.set(0);
    engine.retire(x);
    assert!(machine.interrupts.get() > 0, "it waited");
    assert!(
        machine.asked.get() > 0,
        "a retirement that waited has not asked"
    );
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
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
    batch.unmapped(x, one(5), Frame(42));
    std::mem::forget(batch.start());
    assert!(x.is_in_batch(), "later observers are told of it");
    machine.invalidated.borrow_mut().clear();
    let free: Vec<Frame> = batch.finish().collect();
    assert_eq!(free, [Frame(42)]);
    let invalidated = machine.invalidated.borrow();
    assert!(
        [0, 1]
            .iter()
            .all(|me| invalidated.iter().any(|(cpu, _)| cpu == me)),
        "{invalidated:?}"
    );
    assert!(!x.is_in_batch());
}

/// inbox.rs: the outbox is reserved for a flush, and free when all targets have flushed.
#[test]
fn a_cpu_that_has_retired_a_space_goes_on_to_ask_for_pages() {
    let (machine, engine) = world(Machine::default(), Policy::BASELINE);
    let (x, gone) = (space(engine, 1), space(engine, 2));
    run_on_both(machine, engine, x);
    engine.retire(gone);
    machine.invalidated.borrow_mut().clear();
    unmap(engine, x, 5);
    let invalidated = machine.invalidated.borrow();
    let at_target: Vec<_> = invalidated.iter().filter(|(cpu, _)| *cpu == 1).collect();
    assert!(
        at_target
            .iter()
            .all(|(_, what)| matches!(what, Invalidate::Range { .. }))
            && !at_target.is_empty(),
        "{at_target:?}"
    );
}

/// policy.rs: `TagPolicy::Slots(0)` is `TagPolicy::Off`.
#[test]
fn no_slots_are_no_tags() {
    for global in [false, true] {
        let policy = Policy {
            tags: TagPolicy::Slots(0),
            ..Policy::ALL
        };
        let (machine, engine, [x, y]) = two(Machine::new(global), policy);
        switch(engine, None, x);
        engine.cpu_offline(Some(x));
        engine.cpu_online();
        switch(engine, None, x);
        switch(engine, Some(x), y);
        switch(engine, Some(y), x);
        // Become lazy, with one slot that no space has taken.
        engine.this_cpu().enter_lazy();
        machine.me.set(1);
        let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
        batch.changed(y, one(1), Scope::Leaf);
        drop(batch);
        assert!(
            machine.kept.borrow().iter().all(|keep| !keep),
            "global {global}: entries were kept {:?}",
            machine.kept.borrow()
        );
    }
}

/// Kernel mappings are flushed even if there's only one CPU.
#[test]
fn one_cpu_flushes_the_kernel_s_own_mappings() {
    let machine = leak(Machine::default());
    let cpus = leak([PerCpu::new()]);
    let ledger = leak([(); 4].map(|()| LedgerEntry::new()));
    let engine: E = leak(Engine::new(machine, cpus, ledger, Policy::ALL).expect("a machine"));
    engine.cpu_online();
    for entries in [KernelEntries::Global, KernelEntries::Tagged] {
        // SAFETY: a root is a number on this machine.
        let own = leak(unsafe { engine.new_kernel_space(Frame(1), entries) });
        machine.invalidated.borrow_mut().clear();
        unmap(engine, own, 5);
        let done = machine.invalidated.borrow();
        assert!(
            done.iter()
                .any(|(_, what)| matches!(what, Invalidate::Kernel { .. })),
            "{entries:?}: {done:?}"
        );
    }
}

/// flush.rs: `quiesce` waits until every online CPU has *flushed*, even if the initiator of the flush waited only for
/// receipts.
#[test]
fn a_cpu_that_has_taken_a_request_is_waited_for_until_it_has_flushed() {
    let (machine, engine, x) = both();
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
    batch.unmapped(x, one(5), Frame(42));
    let mut flight = batch.start();
    // CPU 1 has acknowledged the receipt, and is about to flush.
    *machine.nmi.borrow_mut() = Some(|engine| {
        let machine = engine.hw();
        assert_eq!(machine.me.replace(0), 1);
        machine.patience.set(9);
        let waits = catch_unwind(AssertUnwindSafe(|| engine.this_cpu().quiesce())).is_err();
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
    batch.changed(x, one(5), quell::Scope::Leaf);
    let flight = batch.start();
    machine.on(1, || engine.this_cpu().quiesce());
    flight.finish().for_each(drop);
    assert_eq!(machine.patience.get(), 1);
}

//! What the interface's documents promise of single calls, on a machine of two CPUs that does nothing by itself.

mod support;

use quell::{
    Batch, Engine, Frame, Invalidate, KernelEntries, LedgerEntry, Outcome, Page, PageRange, PerCpu,
    Policy, Purpose, Scope, TagPolicy,
};
use support::{E, Machine, S, leak, run_on_both, space, world};

/// C1: "A frame goes into the batch by value and comes out only against proof of the flush."
#[test]
fn owed_frames_that_were_forgotten_do_not_come_out_as_flushed() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    let mut batch: Batch<'_, '_, _, S, Frame> = engine.batch(Purpose::Lazy);
    batch.unmapped(x, PageRange::base(Page(5), 1), Frame(42));
    let outcome = batch.finish_owed();
    assert!(matches!(outcome, Outcome::Owed(_)));
    std::mem::forget(outcome);
    machine.invalidated.borrow_mut().clear();
    let free: Vec<Frame> = batch.finish().collect();
    assert!(
        free.is_empty() || !machine.invalidated.borrow().is_empty(),
        "{free:?} came out as flushed, and no CPU has flushed"
    );
}

/// hardware.rs: "Asked, in debug builds alone, by every call that may wait: a batch that finishes, ... retire."
#[test]
fn a_batch_that_finishes_asks_whether_it_may_wait() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    let mut batch: Batch<'_, '_, _, S, Frame> = engine.batch(Purpose::Call);
    batch.unmapped(x, PageRange::base(Page(5), 1), Frame(42));
    assert_eq!(batch.finish().count(), 1);
    assert!(machine.interrupts.get() > 0, "it waited");
    assert!(machine.asked.get() > 0, "a batch that waited has not asked");
}

#[test]
fn retire_asks_whether_it_may_wait() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    machine.me.set(1);
    engine.switch_to(None, x);
    engine.enter_lazy();
    machine.me.set(0);
    engine.retire(x);
    assert!(machine.interrupts.get() > 0, "it waited");
    assert!(
        machine.asked.get() > 0,
        "a retirement that waited has not asked"
    );
}

/// inbox.rs: the outbox is taken for a flush, and free when all targets have flushed.
#[test]
fn a_cpu_that_has_retired_a_space_goes_on_to_ask_for_pages() {
    let (machine, engine) = world(Machine::default(), Policy::BASELINE);
    let (x, gone) = (space(engine, 1), space(engine, 2));
    run_on_both(machine, engine, x);
    engine.retire(gone);
    machine.invalidated.borrow_mut().clear();
    let mut batch: Batch<'_, '_, _, S, Frame> = engine.batch(Purpose::Call);
    batch.unmapped(x, PageRange::base(Page(5), 1), Frame(42));
    assert_eq!(batch.finish().count(), 1);
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

/// policy.rs: "0 is `TagPolicy::Off`".
#[test]
fn no_slots_are_no_tags() {
    for global in [false, true] {
        let policy = Policy {
            tags: TagPolicy::Slots(0),
            ..Policy::ALL
        };
        let (machine, engine) = world(
            Machine {
                global,
                ..Machine::default()
            },
            policy,
        );
        let (x, y) = (space(engine, 1), space(engine, 2));
        engine.switch_to(None, x);
        engine.cpu_offline(Some(x));
        engine.cpu_online();
        engine.switch_to(None, x);
        engine.switch_to(Some(x), y);
        engine.switch_to(Some(y), x);
        // Leave and come back, with one slot that nobody has taken.
        engine.enter_lazy();
        machine.me.set(1);
        let mut batch: Batch<'_, '_, _, S, Frame> = engine.batch(Purpose::Call);
        batch.changed(y, PageRange::base(Page(1), 1), Scope::Leaf);
        drop(batch);
        assert!(
            machine.kept.borrow().iter().all(|keep| !keep),
            "global {global}: entries were kept {:?}",
            machine.kept.borrow()
        );
    }
}

/// C6: "A batch with an unlinked table ... is waited for to the end".
#[test]
fn a_batch_that_has_unlinked_a_table_owes_nothing() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    let mut batch: Batch<'_, '_, _, S, Frame> = engine.batch(Purpose::Lazy);
    batch.table_unlinked(x, PageRange::base(Page(0), 1), Frame(7));
    assert!(
        matches!(batch.finish_owed(), Outcome::Flushed(_)),
        "a table's frame is owed: CPU 1's walker may still read it, and Owed frames may be dropped"
    );
}

/// The kernel's own mappings are flushed also where there is no CPU but this one.
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
        let mut batch: Batch<'_, '_, _, S, Frame> = engine.batch(Purpose::Call);
        batch.unmapped(own, PageRange::base(Page(5), 1), Frame(42));
        assert_eq!(batch.finish().count(), 1);
        let done = machine.invalidated.borrow();
        assert!(
            done.iter()
                .any(|(_, what)| matches!(what, Invalidate::Kernel { .. })),
            "{entries:?}: {done:?}"
        );
    }
}

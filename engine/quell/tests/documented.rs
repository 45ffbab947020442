//! What the interface's documents promise of single calls, on a machine of two CPUs that does nothing by itself.

use crate::support::{E, Machine, S, leak, run_on_both, space, world};
use quell::{
    Batch, DeferredFlush, Engine, Frame, Hardware, Invalidate, KernelEntries, LedgerEntry, Outcome,
    Page, PageRange, PerCpu, Policy, Purpose, Scope, TagPolicy, Unsupported,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// C1: "A frame goes into the batch by value and comes out only against proof of the flush."
#[test]
fn deferred_frames_that_were_forgotten_do_not_come_out_as_flushed() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Lazy);
    batch.unmapped(x, PageRange::base(Page(5), 1), Frame(42));
    let outcome = batch.finish_deferred();
    assert!(matches!(outcome, Outcome::Deferred(_)));
    std::mem::forget(outcome);
    machine.invalidated.borrow_mut().clear();
    let free: Vec<Frame> = batch.finish().collect();
    assert!(
        free.is_empty() || !machine.invalidated.borrow().is_empty(),
        "{free:?} came out as flushed, and no CPU has flushed"
    );
    batch.unmapped(x, PageRange::base(Page(5), 1), Frame(42));
    let outcome = batch.finish_deferred();
    assert!(matches!(outcome, Outcome::Deferred(_)));
    std::mem::forget(outcome);
    machine.invalidated.borrow_mut().clear();
    let free: Vec<Frame> = batch.start().finish().collect();
    assert!(
        free.is_empty() || !machine.invalidated.borrow().is_empty(),
        "{free:?} came out of a flush in flight, and no CPU has flushed"
    );
}

/// batch.rs: they are lost when the batch is used again, and none that comes later.
#[test]
fn what_comes_after_deferred_frames_that_were_forgotten_comes_out() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Lazy);
    batch.unmapped(x, PageRange::base(Page(5), 1), Frame(42));
    std::mem::forget(batch.finish_deferred());
    batch.unlocked();
    batch.unmapped(x, PageRange::base(Page(6), 1), Frame(43));
    assert!(batch.finish().eq([Frame(43)]));
}

/// batch.rs: a batch that was told of mappings of the kernel and of a user space is flushed: CPU 1, which runs the
/// program of that space and is left alone, is interrupted for it.
#[test]
fn what_is_deferred_of_a_program_does_not_wait_for_its_entry_into_the_kernel() {
    for with_kernel in [false, true] {
        let (machine, engine) = world(Machine::default(), Policy::ALL);
        let x = space(engine, 1);
        // SAFETY: no memory is behind any frame.
        let kernel: S = leak(unsafe { engine.new_kernel_space(Frame(2), KernelEntries::Global) });
        run_on_both(machine, engine, x);
        machine.me.set(1);
        // SAFETY: no memory is behind any frame.
        unsafe { engine.this_cpu().enter_user() };
        machine.me.set(0);
        machine.interrupts.set(0);
        let deferred_flush = DeferredFlush::new();
        deferred_flush.begin();
        let mut batch: Batch<'_, S> = engine.batch(Purpose::Lazy);
        batch.unmapped(x, PageRange::base(Page(5), 1), Frame(42));
        if with_kernel {
            batch.unmapped(kernel, PageRange::base(Page(0x7_ffff_f000), 1), Frame(43));
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

/// space.rs: every CPU has the kernel's mappings loaded for ever, also one whose idle thread calls them its space.
#[test]
fn no_cpu_leaves_the_kernels_mappings() {
    type Leaves = fn(E, S, S);
    let ways: [(&str, Leaves); 4] = [
        ("switch from a user's", |engine, x, _| {
            engine.this_cpu().mask_interrupts().switch(None, x)
        }),
        ("switch", |engine, x, kernel| {
            engine.this_cpu().mask_interrupts().switch(Some(kernel), x)
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
        // SAFETY: no memory is behind any frame.
        let kernel: S = leak(unsafe { engine.new_kernel_space(Frame(2), KernelEntries::Global) });
        machine.me.set(1);
        leaves(engine, x, kernel);
        machine.me.set(0);
        machine.invalidated.borrow_mut().clear();
        let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
        batch.unmapped(kernel, PageRange::base(Page(0x7_ffff_f000), 1), Frame(43));
        assert_eq!(batch.finish().count(), 1);
        let told = machine
            .invalidated
            .borrow()
            .iter()
            .any(|(cpu, _)| *cpu == 1);
        assert!(
            told,
            "{way}: CPU 1 is not told of what changes in the kernel's half"
        );
    }
}

/// switch.rs: "If `to` is a space of the kernel's mappings".
#[test]
#[should_panic(expected = "as if it were a user's")]
fn the_kernels_mappings_are_no_space_to_switch_to() {
    let (_, engine) = world(Machine::default(), Policy::ALL);
    // SAFETY: no memory is behind any frame.
    let kernel: S = leak(unsafe { engine.new_kernel_space(Frame(2), KernelEntries::Global) });
    engine.this_cpu().mask_interrupts().switch(None, kernel);
}

/// switch.rs: "If the space is running on the calling CPU".
#[test]
#[should_panic(expected = "retired by a CPU that runs it")]
fn a_space_does_not_end_where_it_runs() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    engine.retire(x);
}

/// switch.rs: "or is one of the kernel's mappings".
#[test]
#[should_panic(expected = "their space cannot be retired")]
fn the_kernels_mappings_have_no_end() {
    let (_, engine) = world(Machine::default(), Policy::ALL);
    // SAFETY: no memory is behind any frame.
    let kernel: S = leak(unsafe { engine.new_kernel_space(Frame(2), KernelEntries::Global) });
    engine.retire(kernel);
}

/// in_flight.rs: "Never waits", also where no CPU may wait: on a machine that broadcasts, asked on another CPU.
#[test]
fn whether_a_flush_is_over_may_be_asked_anywhere() {
    let hardware = Machine {
        global: true,
        ..Machine::default()
    };
    let (machine, engine) = world(hardware, Policy::ALL);
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
    batch.unmapped(x, PageRange::base(Page(5), 1), Frame(42));
    let mut flight = batch.start();
    machine.me.set(1);
    machine.forbidden.set(true);
    assert!(flight.is_done());
    machine.forbidden.set(false);
}

/// batch.rs: "or the range is of no page: the frame would come out unflushed".
#[test]
#[should_panic(expected = "behind a range of no page")]
fn no_frame_is_behind_no_page() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
    batch.unmapped(x, PageRange::base(Page(5), 0), Frame(42));
}

/// ledger.rs: "No other one takes it".
#[test]
fn two_engines_share_no_ledger() {
    let machine = leak(Machine::default());
    let ledger: &'static [LedgerEntry<Machine>] = leak([(); 4].map(|()| LedgerEntry::new()));
    let made = || {
        Engine::new(
            machine,
            leak([PerCpu::new(), PerCpu::new()]),
            ledger,
            Policy::ALL,
        )
    };
    let first = made();
    assert!(first.is_ok());
    assert_eq!(made().err(), Some(Unsupported::LedgerInUse));
    drop(first);
    assert_eq!(made().err(), Some(Unsupported::LedgerInUse));
}

/// target.rs: `user_access_allowed` is `false` "as long as it keeps its root lazily, has none, or is offline".
#[test]
fn an_nmi_right_after_a_root_was_left_is_refused() {
    let ways: [fn(E, S); 2] = [
        |engine, x| engine.this_cpu().leave(x),
        |engine, x| engine.cpu_offline(Some(x)),
    ];
    for leaves in ways {
        let (machine, engine) = world(Machine::default(), Policy::ALL);
        let x = space(engine, 1);
        run_on_both(machine, engine, x);
        leaves(engine, x);
        assert_eq!(*machine.nmis.borrow(), [false]);
    }
}

/// hotplug.rs: "If the engine was made for fewer CPUs".
#[test]
#[should_panic(expected = "an engine that was made for 2")]
fn a_cpu_that_the_engine_does_not_know_does_not_come_online() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    machine.me.set(2);
    engine.cpu_online();
}

/// hardware.rs: "Asked, in debug builds alone, by every call that may wait: a batch that finishes, ... retire."
#[test]
fn a_batch_that_finishes_asks_whether_it_may_wait() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
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
    engine.this_cpu().mask_interrupts().switch(None, x);
    engine.this_cpu().enter_lazy();
    machine.me.set(0);
    engine.retire(x);
    assert!(machine.interrupts.get() > 0, "it waited");
    assert!(
        machine.asked.get() > 0,
        "a retirement that waited has not asked"
    );
}

/// switch.rs: a space that a switch has left out goes on naming the CPU until it is retired, and its flushes interrupt
/// that CPU in vain; its retirement ends.
#[test]
fn a_space_that_a_switch_left_out_is_retired() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let (x, y) = (space(engine, 1), space(engine, 2));
    run_on_both(machine, engine, x);
    machine.me.set(1);
    engine.this_cpu().mask_interrupts().switch(None, y);
    machine.me.set(0);
    engine.this_cpu().mask_interrupts().switch(Some(x), y);
    machine.limit.set(4);
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
    batch.unmapped(x, PageRange::base(Page(5), 1), Frame(42));
    assert_eq!(batch.finish().count(), 1);
    assert_eq!(machine.interrupts.get(), 1, "CPU 1 is still named");
    engine.retire(x);
    assert_eq!(machine.interrupts.get(), 2);
}

/// in_flight.rs: if a flush in flight is forgotten, the batch still holds its frames, and flushes again.
#[test]
fn a_flush_in_flight_that_was_forgotten_is_made_again() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
    batch.unmapped(x, PageRange::base(Page(5), 1), Frame(42));
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

/// inbox.rs: the outbox is taken for a flush, and free when all targets have flushed.
#[test]
fn a_cpu_that_has_retired_a_space_goes_on_to_ask_for_pages() {
    let (machine, engine) = world(Machine::default(), Policy::BASELINE);
    let (x, gone) = (space(engine, 1), space(engine, 2));
    run_on_both(machine, engine, x);
    engine.retire(gone);
    machine.invalidated.borrow_mut().clear();
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
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
        engine.this_cpu().mask_interrupts().switch(None, x);
        engine.cpu_offline(Some(x));
        engine.cpu_online();
        engine.this_cpu().mask_interrupts().switch(None, x);
        engine.this_cpu().mask_interrupts().switch(Some(x), y);
        engine.this_cpu().mask_interrupts().switch(Some(y), x);
        // Leave and come back, with one slot that no space has taken.
        engine.this_cpu().enter_lazy();
        machine.me.set(1);
        let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
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
fn a_batch_that_has_unlinked_a_table_defers_nothing() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Lazy);
    batch.table_unlinked(x, PageRange::base(Page(0), 1), Frame(7));
    assert!(
        matches!(batch.finish_deferred(), Outcome::Flushed(_)),
        "a table's frame is deferred: CPU 1's walker may still read it, and deferred frames may be dropped"
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
        let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
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

/// flush.rs, of `quiesce`: "every CPU that is online has *flushed*", where the initiator of the flush goes on with the
/// receipt.
#[test]
fn a_cpu_that_has_taken_a_request_is_waited_for_until_it_has_flushed() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
    batch.unmapped(x, PageRange::base(Page(5), 1), Frame(42));
    let mut flight = batch.start();
    // CPU 1 has said that it has taken the request, and is about to flush.
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
    // Now it has, and there is nothing to wait for.
    machine.patience.set(1);
    engine.this_cpu().quiesce();
    // What is asked of this CPU is done on the way.
    batch.changed(x, PageRange::base(Page(5), 1), quell::Scope::Leaf);
    let flight = batch.start();
    machine.me.set(1);
    engine.this_cpu().quiesce();
    machine.me.set(0);
    flight.finish().for_each(drop);
    assert_eq!(machine.patience.get(), 1);
}

//! Flushes in flight (`Batch::start`): which answers `is_done` waits for. It also covers changes without a place in the
//! batch, machines that broadcast, and slow devices.

use std::cell::RefCell;

use crate::support::{
    E, KERNEL_PAGE, Machine, S, SmallBatch, alone, answer, both, both_of, kernel_space, leak, one,
    run_on_both, small, space, switch, two, unmapping,
};
use quell::{
    Counter, CpuId, Engine, FlushInFlight, Frame, FrameArray, Invalidation, KernelEntries, Outcome,
    PageRange, PerCpuData, Policy, Purpose, Scope,
};

type Flight = FlushInFlight<'static, 'static, S, FrameArray<Frame>, 1>;

thread_local! {
    static FLIGHT: RefCell<Option<Flight>> = const { RefCell::new(None) };
}

const PAGE: PageRange = one(5);

fn batch_for_ever(engine: E) -> &'static mut SmallBatch {
    Box::leak(Box::new(small(engine, Purpose::Call)))
}

fn kernel(engine: E) -> S {
    kernel_space(engine, KernelEntries::Global)
}

/// C6, kernel.rs, flush.rs: a receipt is enough for leaf entries of user spaces. If one of the changes is for a table
/// or for the kernel, `is_done` returns `false` until the target has flushed, whether or not the batch had a place for
/// that change.
#[test]
fn a_look_is_content_with_the_receipt_of_leaves_alone() {
    /// Reports a change of this space, or of the kernel.
    type Change = fn(&mut SmallBatch, E, S);
    let changes: [Change; 3] = [
        |batch, _, user| batch.changed(user, PAGE, Scope::Leaf),
        |batch, _, user| batch.changed(user, PAGE, Scope::Tables),
        |batch, engine, _| batch.changed(kernel(engine), one(KERNEL_PAGE), Scope::Leaf),
    ];
    for (placed, overflow) in (0..9).map(|pair| (pair / 3, pair % 3)) {
        let (machine, engine, [x, y]) = two(Machine::default(), Policy::ALL);
        switch(engine, None, x);
        machine.on(1, || switch(engine, None, y));
        let batch = batch_for_ever(engine);
        changes[placed](batch, engine, x);
        changes[overflow](batch, engine, y);
        assert_eq!(engine.stats().get(Counter::EscalatedBatch), 1);
        FLIGHT.set(Some(batch.start()));
        // Runs when CPU 1 has acknowledged the receipt, and is about to flush.
        *machine.nmi.borrow_mut() = Some(|engine| {
            let over =
                FLIGHT.with_borrow_mut(|flight| flight.as_mut().is_some_and(Flight::is_done));
            engine.hw().nmis.borrow_mut().push(over);
        });
        answer(machine, engine);
        let leaves = placed + overflow == 0;
        assert_eq!(machine.nmis.take(), [leaves], "{placed}, {overflow}");
        let mut flight = FLIGHT.take().expect("in flight");
        assert!(flight.is_done(), "CPU 1 has flushed");
        flight.finish().for_each(drop);
    }
}

/// overflow.rs: the CPU that starts a flush drops its own entries, too, if its space may be one without a place.
#[test]
fn what_has_no_place_is_flushed_on_the_cpu_that_starts() {
    let (machine, engine, [x, y]) = two(Machine::default(), Policy::ALL);
    run_on_both(machine, engine, y);
    let mut batch = small(engine, Purpose::Call);
    batch.unmapped(x, PAGE, Frame(1));
    batch.unmapped(y, PAGE, Frame(2));
    machine.invalidated.borrow_mut().clear();
    let mut flight = batch.start();
    let flushed = |cpu| machine.flushed(cpu, |what| matches!(what, Invalidation::Tag(_)));
    assert!(flushed(0) && !flushed(1) && !flight.is_done());
    answer(machine, engine);
    assert!(flushed(1) && flight.is_done());
    assert_eq!(flight.finish().count(), 2);
}

/// in_flight.rs: the first `is_done` executes the only barrier, however often a device is polled. When the flush is
/// over, no CPU reports answers any more.
#[test]
fn a_broadcast_flush_has_one_barrier_however_long_devices_take() {
    let (machine, engine, x) = both_of(Machine::new(true), Policy::ALL);
    let mut batch = unmapping(engine, Purpose::Call, x, 5);
    let mut flight = batch.start();
    machine.busy.set(2);
    assert!(!flight.is_done() && !flight.is_done() && flight.is_done());
    assert_eq!(flight.finish().count(), 1);
    let barriers = machine.broadcast.0.take();
    assert_eq!(barriers.iter().filter(|what| what.is_none()).count(), 1);
    engine.this_cpu().mask_interrupts().on_interrupt();
    assert_eq!(machine.answers.get(), 0, "nothing is in flight");
}

/// C7, in_flight.rs, secondary.rs: a CPU that waits only for a device serves requests of others, and lets other CPUs
/// make progress.
#[test]
fn a_wait_for_a_device_serves_the_waiters_inbox() {
    for started in [false, true] {
        let (machine, engine, x) = if started { both() } else { alone() };
        let mut mine = unmapping(engine, Purpose::Call, x, 5);
        let mut theirs = unmapping(engine, Purpose::Call, kernel(engine), KERNEL_PAGE);
        let mut flight = started.then(|| mine.start());
        if let Some(flight) = &mut flight {
            answer(machine, engine);
            machine.busy.set(2);
            assert!(!flight.is_done(), "the device takes long");
        }
        // CPU 1 sends a request to CPU 0, which has interrupts off.
        let mut other = machine.on(1, || theirs.start());
        assert!(!other.is_done());
        machine.busy.set(4);
        machine.patience.set(10);
        drop(flight);
        assert_eq!(mine.finish().count(), 1);
        let served = engine.cpu_stats(CpuId(0)).get(Counter::ServedEarly);
        assert_eq!(served, 1, "CPU 1 would wait for CPU 0's device");
        assert!(machine.patience.get() < 10, "other CPUs get on meanwhile");
        assert!(machine.on(1, || other.is_done()));
    }
}

/// stats.rs: a request that a handler finds in its second read of the inbox has an interrupt of its own, which then
/// finds an empty inbox. If we didn't count that, it would look like a lost interrupt.
#[test]
fn a_request_that_the_handler_finds_as_it_looks_again_is_counted() {
    let (machine, engine, x) = both();
    let mut first = unmapping(engine, Purpose::Call, x, 5);
    let mut first = first.start();
    // When CPU 1 has received this request, CPU 0 posts another.
    *machine.nmi.borrow_mut() = Some(|engine| {
        engine.hw().me.set(0);
        let batch = batch_for_ever(engine);
        batch.changed(kernel(engine), one(KERNEL_PAGE), Scope::Leaf);
        FLIGHT.set(Some(batch.start()));
        engine.hw().me.set(1);
    });
    let early = || engine.cpu_stats(CpuId(1)).get(Counter::ServedEarly);
    answer(machine, engine);
    assert_eq!(early(), 1, "the second request, by the first one's handler");
    assert!(first.is_done());
    assert!(FLIGHT.take().expect("in flight").is_done());
    assert_eq!(engine.stats().get(Counter::Sent), 2);
    answer(machine, engine);
    assert_eq!(early(), 1, "the second interrupt comes to an empty inbox");
    first.finish().for_each(drop);
}

/// batch.rs: a batch with more spaces than places is flushed, because a deferred flush would cover only the others.
#[test]
fn what_has_no_place_is_not_deferred() {
    let (machine, engine, [x, y]) = two(Machine::default(), Policy::ALL);
    run_on_both(machine, engine, y);
    let mut batch = small(engine, Purpose::Lazy);
    batch.unmapped(x, PAGE, Frame(1));
    batch.unmapped(y, PAGE, Frame(2));
    machine.invalidated.borrow_mut().clear();
    let outcome = batch.finish_deferred();
    assert!(matches!(outcome, Outcome::Flushed(_)), "CPU 1 runs y");
    assert!(machine.flushed_on().contains(&1));
}

/// overflow.rs: a CPU that runs a program undisturbed is interrupted for a change without a place in its program's
/// space, but not for one of the kernel.
#[test]
fn a_program_is_disturbed_for_its_own_space_alone() {
    for (of_kernel, interrupts) in [(true, 0), (false, 1)] {
        let (machine, engine, [x, y]) = two(Machine::default(), Policy::ALL);
        machine.on(1, || {
            switch(engine, None, y);
            // SAFETY: no memory is behind any frame.
            unsafe { engine.this_cpu().enter_user() };
        });
        let mut batch = small(engine, Purpose::Call);
        batch.unmapped(x, PAGE, Frame(1));
        match of_kernel {
            true => batch.unmapped(kernel(engine), one(KERNEL_PAGE), Frame(2)),
            false => batch.unmapped(y, PAGE, Frame(2)),
        }
        assert_eq!(batch.finish().count(), 2);
        assert_eq!(machine.interrupts.get(), interrupts, "kernel: {of_kernel}");
    }
}

/// overflow.rs: CPUs are recorded in 64 groups, even if there are more CPUs.
#[test]
fn a_cpu_beyond_the_first_64_is_flushed_with_its_group() {
    let machine = leak(Machine::default());
    let cpus: &[PerCpuData<'_, Machine>] = Vec::leak((0..65).map(|_| PerCpuData::new()).collect());
    let engine: E = leak(Engine::new(machine, cpus, &[], Policy::ALL).expect("a machine"));
    machine.me.set(64);
    engine.cpu_online();
    let (x, y) = (space(engine, 1), space(engine, 2));
    switch(engine, None, y);
    let mut batch = small(engine, Purpose::Call);
    batch.unmapped(x, PAGE, Frame(1));
    batch.unmapped(y, PAGE, Frame(2));
    machine.invalidated.borrow_mut().clear();
    assert_eq!(batch.finish().count(), 2);
    assert!(machine.flushed(64, |what| matches!(what, Invalidation::Tag(_))));
}

//! Flushes in flight (`Batch::start`): which answers `is_done` waits for. It also covers changes without a place in the
//! batch, machines that broadcast, and slow devices.

use std::cell::RefCell;

use crate::support::{E, Machine, S, both, leak, one, run_on_both, space, switch, two, world};
use quell::{
    Batch, Counter, CpuId, Engine, Frame, InFlight, InPlace, Invalidate, KernelEntries, Outcome,
    PageRange, PerCpu, Policy, Purpose, Scope,
};

/// A batch with a place for one space: a second space has none.
type Small = Batch<'static, S, InPlace<Frame>, 1>;
type Flight = InFlight<'static, 'static, S, InPlace<Frame>, 1>;

thread_local! {
    static FLIGHT: RefCell<Option<Flight>> = const { RefCell::new(None) };
}

const PAGE: PageRange = one(5);
const KERNEL_PAGE: PageRange = one(0x7_ffff_f000);

fn small(engine: E) -> &'static mut Small {
    Box::leak(Box::new(
        engine.batch_of_spaces(Purpose::Call, InPlace::new()),
    ))
}

fn kernel_space(engine: E) -> S {
    // SAFETY: no memory is behind any frame.
    leak(unsafe { engine.new_kernel_space(Frame(3), KernelEntries::Global) })
}

/// Makes CPU 1 take its interrupt.
fn answer(machine: &Machine, engine: E) {
    assert!(machine.pending[1].take(), "CPU 1 is interrupted");
    machine.on(1, || engine.this_cpu().mask_interrupts().on_interrupt());
}

/// C6, kernel.rs, flush.rs: a receipt is enough for leaf entries of user spaces. If one of the changes is for a table
/// or for the kernel, `is_done` returns `false` until the target has flushed, whether or not the batch had a place for
/// that change.
#[test]
fn a_look_is_content_with_the_receipt_of_leaves_alone() {
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Change {
        Leaf,
        Tables,
        OfKernel,
    }
    const ALL: [Change; 3] = [Change::Leaf, Change::Tables, Change::OfKernel];
    for (placed, overflow) in ALL.iter().flat_map(|&one| ALL.map(|other| (one, other))) {
        let (machine, engine, [x, y]) = two(Machine::default(), Policy::ALL);
        switch(engine, None, x);
        machine.on(1, || switch(engine, None, y));
        let batch = small(engine);
        for (user, change) in [(x, placed), (y, overflow)] {
            match change {
                Change::Leaf => batch.changed(user, PAGE, Scope::Leaf),
                Change::Tables => batch.changed(user, PAGE, Scope::Tables),
                Change::OfKernel => batch.changed(kernel_space(engine), KERNEL_PAGE, Scope::Leaf),
            }
        }
        assert_eq!(engine.stats().get(Counter::EscalatedBatch), 1);
        FLIGHT.set(Some(batch.start()));
        // Runs when CPU 1 has acknowledged the receipt, and is about to flush.
        *machine.nmi.borrow_mut() = Some(|engine| {
            let over =
                FLIGHT.with_borrow_mut(|flight| flight.as_mut().is_some_and(Flight::is_done));
            engine.hw().nmis.borrow_mut().push(over);
        });
        answer(machine, engine);
        let leaves = placed == Change::Leaf && overflow == Change::Leaf;
        assert_eq!(
            machine.nmis.take(),
            [leaves],
            "{placed:?}, and {overflow:?} without a place"
        );
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
    let batch = small(engine);
    batch.unmapped(x, PAGE, Frame(1));
    batch.unmapped(y, PAGE, Frame(2));
    machine.invalidated.borrow_mut().clear();
    let mut flight = batch.start();
    let of = |cpu: u16, (flushed, what): &(u16, Invalidate)| {
        *flushed == cpu && matches!(what, Invalidate::Tag(_))
    };
    let flushes = |cpu| {
        machine
            .invalidated
            .borrow()
            .iter()
            .any(|done| of(cpu, done))
    };
    assert!(flushes(0) && !flushes(1) && !flight.is_done());
    answer(machine, engine);
    assert!(flushes(1) && flight.is_done());
    assert_eq!(flight.finish().count(), 2);
}

/// overflow.rs: the batch's end waits for the broadcasts of changes without a place. On another CPU than the sender it
/// broadcasts an invalidation of everything.
#[test]
fn broadcasts_without_a_place_are_completed_where_they_were_sent() {
    for (first, second) in [(0, 0), (1, 1), (0, 1), (1, 0)] {
        for (last, started) in [(0, false), (1, false), (0, true), (1, true)] {
            let (machine, engine) = world(Machine::new(true), Policy::ALL);
            let (x, y, z) = (space(engine, 1), space(engine, 2), space(engine, 4));
            run_on_both(machine, engine, x);
            let batch = small(engine);
            machine.me.set(last);
            batch.unmapped(x, PAGE, Frame(1));
            machine.me.set(first);
            batch.unmapped(y, PAGE, Frame(2));
            machine.me.set(second);
            batch.unmapped(z, PAGE, Frame(3));
            machine.me.set(last);
            machine.broadcast.0.borrow_mut().clear();
            let came_out = match started {
                true => {
                    let mut flight = batch.start();
                    assert!(flight.is_done());
                    flight.finish().count()
                }
                false => batch.finish().count(),
            };
            assert_eq!(came_out, 3);
            let sent = machine.broadcast.0.take();
            let everything = |what: &Option<Invalidate>| {
                matches!(what, Some(Invalidate::All | Invalidate::Everything))
            };
            let case = format!("{first}, {second}, {last}, started {started}: {sent:?}");
            assert_eq!(
                sent.iter().any(everything),
                first != last || second != last,
                "{case}"
            );
            assert_eq!(sent.last(), Some(&None), "it is waited for: {case}");
        }
    }
}

/// in_flight.rs: the first `is_done` executes the only barrier, however often a device is polled. When the flush is
/// over, no CPU reports answers any more.
#[test]
fn a_broadcast_flush_has_one_barrier_however_long_devices_take() {
    let (machine, engine) = world(Machine::new(true), Policy::ALL);
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
    batch.unmapped(x, PAGE, Frame(1));
    let mut flight = batch.start();
    machine.busy.set(2);
    assert!(!flight.is_done() && !flight.is_done() && flight.is_done());
    assert_eq!(flight.finish().count(), 1);
    let barriers = machine.broadcast.0.take();
    assert_eq!(barriers.iter().filter(|what| what.is_none()).count(), 1);
    engine.this_cpu().mask_interrupts().on_interrupt();
    assert_eq!(machine.answers.get(), 0, "nothing is in flight");
}

/// C7, in_flight.rs: a CPU that waits only for a device serves requests of others, and lets other CPUs make progress.
#[test]
fn a_wait_for_a_device_serves_the_waiters_inbox() {
    let (machine, engine, x) = both();
    let mut mine: Batch<'_, S> = engine.batch(Purpose::Call);
    mine.unmapped(x, PAGE, Frame(1));
    let mut flight = mine.start();
    answer(machine, engine);
    machine.busy.set(2);
    assert!(!flight.is_done(), "the device takes long");
    // CPU 1 sends a request to CPU 0, which has interrupts off.
    machine.me.set(1);
    let mut theirs: Batch<'_, S> = engine.batch(Purpose::Call);
    theirs.unmapped(x, one(6), Frame(2));
    let mut other = theirs.start();
    assert!(!other.is_done());
    machine.me.set(0);
    machine.busy.set(4);
    machine.patience.set(10);
    assert_eq!(flight.finish().count(), 1);
    let served = engine.cpu_stats(CpuId(0)).get(Counter::ServedEarly);
    assert_eq!(served, 1, "CPU 1 would wait for CPU 0's device");
    assert!(machine.patience.get() < 10, "other CPUs get on meanwhile");
    machine.me.set(1);
    assert!(other.is_done());
    assert_eq!(other.finish().count(), 1);
}

/// stats.rs: a request that a handler finds in its second read of the inbox has an interrupt of its own, which then
/// finds an empty inbox. If we didn't count that, it would look like a lost interrupt.
#[test]
fn a_request_that_the_handler_finds_as_it_looks_again_is_counted() {
    let (machine, engine, x) = both();
    let mut first: Batch<'_, S> = engine.batch(Purpose::Call);
    first.unmapped(x, PAGE, Frame(1));
    let mut first = first.start();
    // When CPU 1 has received this request, CPU 0 posts another.
    *machine.nmi.borrow_mut() = Some(|engine| {
        engine.hw().me.set(0);
        let batch = small(engine);
        batch.changed(kernel_space(engine), KERNEL_PAGE, Scope::Leaf);
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

/// secondary.rs: the same holds if the batch is finished at once, and no other CPU has its space loaded.
#[test]
fn a_batch_that_waits_for_a_device_alone_serves_its_cpus_inbox() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    switch(engine, None, x);
    let mut mine: Batch<'_, S> = engine.batch(Purpose::Call);
    mine.unmapped(x, PAGE, Frame(1));
    machine.me.set(1);
    let mut theirs: Batch<'_, S> = engine.batch(Purpose::Call);
    theirs.unmapped(kernel_space(engine), KERNEL_PAGE, Frame(2));
    let mut other = theirs.start();
    assert!(!other.is_done(), "CPU 0 is to flush");
    machine.me.set(0);
    machine.busy.set(3);
    assert_eq!(mine.finish().count(), 1);
    let served = engine.cpu_stats(CpuId(0)).get(Counter::ServedEarly);
    assert_eq!(served, 1, "CPU 1 would wait for CPU 0's device");
    machine.me.set(1);
    assert!(other.is_done());
    assert_eq!(other.finish().count(), 1);
}

/// batch.rs: a batch with more spaces than places is flushed, because a deferred flush would cover only the others.
#[test]
fn what_has_no_place_is_not_deferred() {
    let (machine, engine, [x, y]) = two(Machine::default(), Policy::ALL);
    run_on_both(machine, engine, y);
    let mut batch: Small = engine.batch_of_spaces(Purpose::Lazy, InPlace::new());
    batch.unmapped(x, PAGE, Frame(1));
    batch.unmapped(y, PAGE, Frame(2));
    machine.invalidated.borrow_mut().clear();
    let outcome = batch.finish_deferred();
    assert!(matches!(outcome, Outcome::Flushed(_)), "CPU 1 runs y");
    let invalidated = machine.invalidated.borrow();
    assert!(invalidated.iter().any(|(cpu, _)| *cpu == 1));
}

/// overflow.rs: a CPU that runs a program undisturbed is interrupted for a change without a place in its program's
/// space, but not for one of the kernel.
#[test]
fn a_program_is_disturbed_for_its_own_space_alone() {
    for (of_kernel, interrupts) in [(true, 0), (false, 1)] {
        let (machine, engine, [x, y]) = two(Machine::default(), Policy::ALL);
        machine.me.set(1);
        switch(engine, None, y);
        // SAFETY: no memory is behind any frame.
        unsafe { engine.this_cpu().enter_user() };
        machine.me.set(0);
        let mut batch: Small = engine.batch_of_spaces(Purpose::Call, InPlace::new());
        batch.unmapped(x, PAGE, Frame(1));
        match of_kernel {
            true => batch.unmapped(kernel_space(engine), KERNEL_PAGE, Frame(2)),
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
    let cpus: &[PerCpu<'_, Machine>] = Vec::leak((0..65).map(|_| PerCpu::new()).collect());
    let engine: E = leak(Engine::new(machine, cpus, &[], Policy::ALL).expect("a machine"));
    machine.me.set(64);
    engine.cpu_online();
    let (x, y) = (space(engine, 1), space(engine, 2));
    switch(engine, None, y);
    let batch = small(engine);
    batch.unmapped(x, PAGE, Frame(1));
    batch.unmapped(y, PAGE, Frame(2));
    machine.invalidated.borrow_mut().clear();
    assert_eq!(batch.finish().count(), 2);
    let invalidated = machine.invalidated.borrow();
    assert!(
        invalidated
            .iter()
            .any(|(cpu, what)| *cpu == 64 && matches!(what, Invalidate::Tag(_)))
    );
}

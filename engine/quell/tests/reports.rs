//! A report to a batch waits for no CPU and no device, under every policy. That holds even for more spaces than places,
//! and for more batches than a space counts. At its end the batch flushes changes without a place, and later observers
//! find them outstanding before.

use crate::support::{Machine, both_of, one, small, space};
use quell::{Counter, Frame, Hardware, PageRange, Policy, Purpose, Scope, Word};

const PAGE: PageRange = one(5);

/// Runs `act` and checks that it neither waits, nor interrupts, nor polls devices.
fn without_waiting<R>(machine: &Machine, act: impl FnOnce() -> R) -> R {
    let (asked, sent) = (machine.asked.get(), machine.interrupts.get());
    let looks = || (machine.secondary.borrow().iter()).filter(|told| told.is_none()).count();
    let looked = looks();
    machine.forbidden.set(true);
    let done = act();
    machine.forbidden.set(false);
    assert_eq!(machine.asked.get(), asked, "a report asks");
    assert_eq!(machine.interrupts.get(), sent, "a report interrupts");
    assert_eq!(looks(), looked, "a report waits for devices");
    done
}

/// The batch's end waits for devices, even for changes without a place and on another CPU. Where invalidations are
/// broadcast, a report executes at most its own CPU's barrier.
#[test]
fn devices_are_waited_for_at_the_end() {
    for policy in [Policy::BASELINE, Policy::ALL] {
        for (global, carried) in [(false, false), (false, true), (true, false), (true, true)] {
            let (machine, engine, shared) = both_of(Machine::new(global), policy);
            let other = space(engine, 2);
            let mut batch = without_waiting(machine, || {
                let mut batch = small(engine, Purpose::Reclaim);
                batch.changed(other, PAGE, Scope::Leaf);
                batch.unmapped(shared, PAGE, Frame(42));
                batch
            });
            assert!(other.is_in_batch());
            if carried {
                machine.me.set(1);
            }
            machine.busy.set(5);
            assert!(batch.finish().eq([Frame(42)]));
            assert_eq!(machine.busy.get(), 0, "devices were not waited for");
            let told = machine.secondary.take();
            assert!(told.contains(&Some(1)) && told.contains(&Some(2)));
            assert_eq!(told.last(), Some(&None));
            // The same holds for a flush in flight.
            batch.changed(other, PAGE, Scope::Leaf);
            batch.unmapped(shared, PAGE, Frame(43));
            machine.secondary.take();
            machine.busy.set(2);
            let mut flight = batch.start();
            machine.relax();
            assert!(!flight.is_done() && !flight.is_done() && flight.is_done());
            assert!(flight.finish().eq([Frame(43)]));
            assert!(!other.is_in_batch());
        }
    }
}

#[test]
fn reports_of_a_space_too_many_do_not_wait() {
    for policy in [Policy::BASELINE, Policy::ALL] {
        for purpose in [Purpose::Call, Purpose::Reclaim, Purpose::Migration] {
            let (machine, engine, shared) = both_of(Machine::default(), policy);
            let other = space(engine, 2);
            let interrupts = || machine.interrupts.get();
            let mut batch = without_waiting(machine, || {
                let mut batch = small(engine, purpose);
                batch.changed(other, PAGE, Scope::Leaf);
                batch.unmapped(shared, PAGE, Frame(42));
                batch.changed_all(shared, Scope::Leaf);
                batch
            });
            assert_eq!(engine.stats().get(Counter::EscalatedBatch), 2);
            engine.flush_pending(shared);
            assert_eq!(interrupts(), 1, "the later observer was not told");
            engine.flush_pending(shared);
            assert_eq!(interrupts(), 1, "a deferred flush is made twice");
            without_waiting(machine, || batch.changed(shared, PAGE, Scope::Leaf));
            assert!(batch.finish().eq([Frame(42)]));
            assert_eq!(interrupts(), 2, "nothing was flushed at the end");
            engine.flush_pending_batches(shared);
            assert_eq!(interrupts(), 3, "the last report is forgotten");
            assert!(batch.is_empty());
            // Start it and don't wait.
            batch.changed(other, PAGE, Scope::Leaf);
            batch.changed(shared, PAGE, Scope::Tables);
            let mut flight = batch.start();
            assert!(!flight.is_done());
            flight.finish().for_each(drop);
            assert_eq!(interrupts(), 4);
            drop(batch);
            assert_eq!(interrupts(), 4);
        }
    }
}

#[test]
fn more_batches_than_are_counted_do_not_wait() {
    let (machine, engine, space) = both_of(Machine::default(), Policy::ALL);
    let mut batches: Vec<_> = without_waiting(machine, || {
        let batch = |_| {
            let mut batch = small(engine, Purpose::Call);
            batch.changed(space, PAGE, Scope::Leaf);
            batch
        };
        // Half of the count is for batches, the other half for initiators that have counted and not yet checked.
        let counted = 1u32 << (<<Machine as Hardware>::Word as Word>::BATCH_BITS - 1);
        (0..=counted).map(batch).collect()
    });
    assert_eq!(engine.stats().get(Counter::EscalatedBatch), 1);
    let last = batches.pop();
    drop(batches);
    let before = machine.interrupts.get();
    assert!(before >= 1 && !space.is_in_batch());
    machine.busy.set(2);
    drop(last);
    assert_eq!(machine.interrupts.get(), before + 1);
    assert_eq!(machine.busy.get(), 0, "devices are waited for");
}

/// Without S0, a kernel that calls `unlocked` flushes once for each change. With S0 it flushes once, as it does for a
/// call, and if the flush may be deferred.
#[test]
fn without_s0_each_change_is_flushed() {
    let without_s0 = Policy { batch: false, ..Policy::ALL };
    for (policy, purpose, flushes) in [
        (Policy::BASELINE, Purpose::Reclaim, 3),
        (Policy::BASELINE, Purpose::Migration, 3),
        (Policy::BASELINE, Purpose::Lazy, 3),
        (Policy::BASELINE, Purpose::Call, 1),
        (without_s0, Purpose::Reclaim, 3),
        (without_s0, Purpose::Lazy, 1),
        (without_s0, Purpose::Call, 1),
        (Policy::ALL, Purpose::Reclaim, 1),
    ] {
        let (machine, engine, space) = both_of(Machine::default(), policy);
        let mut batch = small(engine, purpose);
        for page in 0..3 {
            without_waiting(machine, || batch.changed(space, one(page), Scope::Leaf));
            batch.unlocked();
        }
        batch.finish().for_each(drop);
        assert_eq!(machine.interrupts.get(), flushes, "{purpose:?}, {policy:?}");
    }
}

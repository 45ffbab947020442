//! The interrupts of an idle CPU, and the entries that it finds again when it resumes the same space.
//!
//! A walker may read a freed table as long as the root above it is loaded, so a CPU that keeps its root needs a request
//! each time that tables are freed. So it's interrupted once, leaves the root, and isn't interrupted again before it
//! comes back; Linux does the same. It keeps its tag: when it loads the root again, it finds the entries that no
//! request covered.

use crate::support::{
    E, KERNEL_PAGE, Machine, S, both, both_of, kernel_space, one, run_on_both, switch, two, unmap,
    unmapping,
};
use quell::{
    Batch, Counter, CpuId, Frame, Invalidation, KernelEntries, Mechanism, Policy, Purpose, Scope,
};

/// Frees `tables` tables on CPU 0, 512 pages apart, each for a range of one page.
fn free_tables(engine: E, space: S, tables: u64) {
    for table in 0..tables {
        let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
        batch.table_unlinked(space, one(table * 512), Frame(table));
        assert_eq!(batch.finish().count(), 1);
    }
}

/// Returns the number of interrupts of CPU 1 while CPU 0 frees tables.
///
/// CPU 1 has become idle by `idle`.
fn interrupts(tables: u64, idle: fn(E, S)) -> usize {
    let (machine, engine, x) = both();
    machine.on(1, || idle(engine, x));
    free_tables(engine, x, tables);
    machine.interrupts.get()
}

#[test]
fn freed_tables_interrupt_an_idle_cpu_once() {
    for tables in [1, 2, 8, 100] {
        let idle = interrupts(tables, |engine, _| engine.this_cpu().enter_lazy());
        assert_eq!(idle, 1);
        // A CPU that has left its root by itself is never interrupted.
        let left = interrupts(tables, |engine, x| engine.this_cpu().leave(x));
        assert_eq!(left, 0);
        // A CPU that isn't idle is interrupted each time.
        assert_eq!(interrupts(tables, |_, _| {}) as u64, tables);
    }
}

/// Makes CPU 1 idle while `happens` runs on CPU 0.
///
/// Returns its invalidations meanwhile, and whether it keeps its entries when it resumes.
fn wakes(policy: Policy, happens: fn(E, S)) -> (Vec<Invalidation>, Vec<bool>) {
    let (machine, engine, x) = both_of(Machine::default(), policy);
    machine.on(1, || engine.this_cpu().enter_lazy());
    machine.invalidated.borrow_mut().clear();
    happens(engine, x);
    let invalidated = machine.invalidated.take();
    let meanwhile = invalidated.iter().filter(|&&(cpu, _)| cpu == 1);
    let meanwhile = meanwhile.map(|&(_, what)| what).collect();
    machine.kept.borrow_mut().clear();
    machine.me.set(1);
    assert!(engine.this_cpu().is_detached() && !engine.this_cpu().resume(x));
    switch(engine, Some(x), x);
    assert!(engine.this_cpu().user_access_allowed());
    (meanwhile, machine.kept.take())
}

#[test]
fn an_idle_cpu_that_missed_nothing_else_finds_its_entries_again() {
    let (meanwhile, kept) = wakes(Policy::ALL, |engine, x| free_tables(engine, x, 1));
    let [Invalidation::Range { range, scope: Scope::Tables, .. }] = meanwhile[..] else {
        panic!("it flushes what it is told before it leaves: {meanwhile:?}");
    };
    assert_eq!((range, &kept[..]), (one(0), &[true][..]));
}

#[test]
fn without_tags_there_is_nothing_to_flush_before_it_leaves() {
    let policy = Policy::ALL.without(Mechanism::Tags);
    let (meanwhile, kept) = wakes(policy, |engine, x| free_tables(engine, x, 1));
    assert_eq!((&meanwhile[..], &kept[..]), (&[][..], &[false][..]));
}

/// Sends CPU 1 one request for both kernel mappings and a user space.
fn told_of_both(loaded: fn([S; 2]) -> S) -> (&'static Machine, E, [S; 2]) {
    let (machine, engine, spaces) = two(Machine::default(), Policy::ALL);
    let kernel = kernel_space(engine, KernelEntries::Global);
    let [x, _] = spaces;
    run_on_both(machine, engine, x);
    // This space has more generations than the other one.
    (0..4).for_each(|page| unmap(engine, x, page));
    let mut batch = unmapping(engine, Purpose::Call, kernel, KERNEL_PAGE);
    batch.unmapped(x, one(5), Frame(2));
    let flight = batch.start();
    machine.me.set(1);
    switch(engine, Some(x), loaded(spaces));
    machine.invalidated.borrow_mut().clear();
    engine.this_cpu().mask_interrupts().on_interrupt();
    assert_eq!(machine.invalidated.take(), [(1, Invalidation::Everything)]);
    machine.me.set(0);
    assert_eq!(flight.finish().count(), 2);
    (machine, engine, spaces)
}

#[test]
fn a_cpu_that_has_flushed_everything_is_up_to_date_with_the_user_space_too() {
    let (machine, engine, [x, _]) = told_of_both(|[x, _]| x);
    let gaps = engine.cpu_stats(CpuId(1)).get(Counter::EscalatedGap);
    unmap(engine, x, 9);
    let told = machine.invalidated.take();
    let ranges = |&(_, what): &(u16, Invalidation)| matches!(what, Invalidation::Range { .. });
    assert!(told.len() == 2 && told.iter().all(ranges), "{told:?}");
    assert_eq!(engine.cpu_stats(CpuId(1)).get(Counter::EscalatedGap), gaps);
}

#[test]
fn a_cpu_that_runs_another_space_has_not_caught_up_with_that() {
    let (machine, engine, [_, y]) = told_of_both(|[_, y]| y);
    machine.me.set(0);
    switch(engine, None, y);
    machine.invalidated.borrow_mut().clear();
    unmap(engine, y, 9);
    let told = machine.invalidated.take();
    assert!(told.iter().any(|&(cpu, _)| cpu == 1), "{told:?}");
}

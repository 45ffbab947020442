//! Edge cases that ordinary runs don't reach: the longest ranges, many slots, a long ledger, batches that change their
//! CPU. The file is long because many of them have a machine of their own.

use crate::support::{
    E, Machine, S, both, defer, kernel_space, leak, message, one, run_on_both, space, switch, two,
    unmap, world, world_of,
};
use quell::{
    Batch, Counter, DeferredFlush, Engine, Features, Frame, InPlace, Invalidate, KernelEntries,
    Mechanism, Outcome, Page, PageRange, PageSize, PerCpu, Policy, Purpose, Request, Scope, Slot,
    TagPolicy, Unsupported,
};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Makes a machine on which no range is too long.
fn patient() -> Machine {
    Machine {
        full_above: 1 << 40,
        ..Machine::default()
    }
}

/// Returns the ranges that one batch flushes, or `None` if it flushes a whole tag. A range is a pair of first page and
/// number of pages.
fn flushed(
    machine: &Machine,
    engine: E,
    space: S,
    ranges: &[PageRange],
) -> Option<Vec<(u64, u64)>> {
    machine.invalidated.borrow_mut().clear();
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
    for range in ranges {
        batch.changed(space, *range, Scope::Leaf);
    }
    drop(batch);
    let range = |(_, what): (u16, Invalidate)| match what {
        Invalidate::Range { range, .. } => Some((range.start.0, range.pages)),
        _ => None,
    };
    machine.invalidated.take().into_iter().map(range).collect()
}

/// request.rs: a range has at most 65535 strides, as a single report or page by page.
#[test]
fn ranges_grow_to_65535_strides() {
    let (machine, engine) = world(patient(), Policy::ALL);
    let x = space(engine, 1);
    switch(engine, None, x);
    let base = |start, pages| PageRange::base(Page(start), pages);
    let told = |ranges: &[PageRange]| flushed(machine, engine, x, ranges);
    assert_eq!(told(&[base(7, 65535)]), Some(vec![(7, 65535)]));
    assert_eq!(told(&[base(7, 65536)]), None);
    // A range after the last one.
    assert_eq!(
        told(&[base(7, 65534), base(65541, 1)]),
        Some(vec![(7, 65535)])
    );
    assert_eq!(told(&[base(7, 65535), base(65542, 1)]), None);
    assert_eq!(
        told(&[base(7, 1), base(100, 65535)]),
        Some(vec![(7, 1), (100, 65535)])
    );
    assert_eq!(told(&[base(7, 1), base(100, 65536)]), None);
    // A range before it, and one that overlaps it.
    assert_eq!(told(&[base(8, 65534), base(7, 1)]), Some(vec![(7, 65535)]));
    assert_eq!(told(&[base(8, 65535), base(7, 1)]), None);
    assert_eq!(told(&[base(8, 65535), base(1, 65535)]), None);
    assert_eq!(
        told(&[base(80000, 65535), base(1, 65535)]),
        Some(vec![(80000, 65535), (1, 65535)])
    );
    // Base pages never join a range of large strides, even if they touch it.
    let mixed = [(1536, 512), (2048, 1)];
    let large_page = PageRange {
        start: Page(1536),
        pages: 512,
        stride: PageSize::Large,
    };
    assert_eq!(told(&[large_page, base(2048, 1)]), Some(mixed.into()));
    assert_eq!(
        told(&[base(2048, 1), large_page]),
        Some(vec![mixed[1], mixed[0]])
    );
    let huge = PageRange {
        start: Page(1 << 18),
        pages: 3 << 18,
        stride: PageSize::Huge,
    };
    assert_eq!(told(&[huge]), Some(vec![(1 << 18, 3 << 18)]));
    // The limit counts large strides, too.
    let large = |start: u64, strides: u64| PageRange {
        start: Page(start * 512),
        pages: strides * 512,
        stride: PageSize::Large,
    };
    assert_eq!(told(&[large(3, 65535)]), Some(vec![(3 * 512, 65535 * 512)]));
    assert_eq!(told(&[large(3, 65536)]), None);
    assert_eq!(
        told(&[large(3, 65534), large(65537, 1)]),
        Some(vec![(3 * 512, 65535 * 512)])
    );
    assert_eq!(told(&[large(3, 65535), large(65538, 1)]), None);
}

/// An empty request covers nothing, and counts no invalidation.
#[test]
fn requests_know_what_they_cover() {
    assert!(!Request::Empty.covers(Page(5)));
    assert_eq!(Request::Empty.strides(), Some(0));
    let range = Request::range(PageRange::base(Page(5), 2), Scope::Tables);
    let covered: Vec<u64> = (0..10).filter(|&page| range.covers(Page(page))).collect();
    assert_eq!(covered, [5, 6]);
    assert_ne!(
        range,
        Request::range(PageRange::base(Page(5), 3), Scope::Tables)
    );
    assert_ne!(
        range,
        Request::range(PageRange::base(Page(4), 2), Scope::Tables)
    );
    assert_eq!(range, Request::Empty.merge(range));
    assert_eq!(
        Request::range(PageRange::base(Page(5), 0), Scope::Tables),
        Request::Empty
    );
    assert!(Request::Full(Scope::Leaf).covers(Page(5)));
    for scope in [Scope::Leaf, Scope::Tables] {
        assert_eq!(
            range.merge(Request::Full(scope)),
            Request::Full(Scope::Tables)
        );
        assert_eq!(
            Request::Full(scope).merge(range),
            Request::Full(Scope::Tables)
        );
    }
}

/// switch.rs: with more than eight slots, a space's id selects its slot.
#[test]
fn with_many_slots_each_space_has_its_place() {
    let slots = |count: usize| -> &'static [Slot<Machine>] {
        Vec::leak((0..count).map(|_| Slot::new()).collect())
    };
    let cpu = || PerCpu::with_slots(slots(12));
    let policy = Policy {
        tags: TagPolicy::All,
        ..Policy::ALL
    };
    let machine = Machine {
        tags: 64,
        ..Machine::default()
    };
    let (machine, engine) = world_of(machine, policy, [cpu(), cpu()], 4);
    let spaces: Vec<S> = (0..13).map(|root| space(engine, root)).collect();
    let mut last = None;
    for &space in &spaces[..12] {
        switch(engine, last.replace(space), space);
    }
    machine.kept.borrow_mut().clear();
    for &space in &spaces[..12] {
        switch(engine, last.replace(space), space);
    }
    assert_eq!(machine.kept.take(), [true; 12]);
    // The thirteenth space has the slot of the first, and of no other.
    switch(engine, last.replace(spaces[12]), spaces[12]);
    for &space in &spaces[..12] {
        switch(engine, last.replace(space), space);
    }
    let kept = machine.kept.take();
    assert_eq!(kept.iter().filter(|keep| !**keep).count(), 2, "{kept:?}");
    assert!(!kept[0]);
}

/// lazy.rs: if there are more deferred flushes than one round makes, several rounds follow.
#[test]
fn many_deferrals_are_paid_together() {
    let (machine, engine) = world_of(
        Machine::default(),
        Policy::ALL,
        [PerCpu::new(), PerCpu::new()],
        200,
    );
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    for together in [1, 63, 64, 65, 150, 200] {
        let deferred: Vec<DeferredFlush<Machine>> =
            (0..together).map(|page| defer(engine, x, page)).collect();
        assert!(
            deferred
                .iter()
                .all(|deferred_flush| !engine.is_flushed(deferred_flush))
        );
        machine.interrupts.set(0);
        engine.flush_deferred();
        assert!(
            deferred
                .iter()
                .all(|deferred_flush| engine.is_flushed(deferred_flush)),
            "{together}"
        );
        assert!(!engine.has_deferred());
        // One interrupt is enough: the second round finds that every CPU has flushed.
        assert_eq!(machine.interrupts.get(), 1, "{together}");
    }
}

/// batch.rs: the CPU that waits sends again all broadcasts that another CPU sent.
#[test]
fn a_batch_that_changes_its_cpu_is_sent_by_the_cpu_that_waits() {
    let page = |page: u64| one(page);
    for (first, second, last) in [
        (0, 1, 0),
        (1, 0, 1),
        (0, 0, 1),
        (1, 1, 0),
        (0, 1, 1),
        (1, 0, 0),
        (0, 0, 0),
    ] {
        for (started, same) in [(false, false), (true, false), (false, true), (true, true)] {
            let (machine, engine) = world(Machine::new(true), Policy::ALL);
            let x = space(engine, 1);
            let y = if same { x } else { space(engine, 2) };
            machine.on(1, || switch(engine, None, y));
            switch(engine, None, x);
            let mut batch: Batch<'_, S> = engine.batch(Purpose::Reclaim);
            machine.me.set(first);
            batch.unmapped(x, page(5), Frame(1));
            machine.me.set(second);
            batch.unmapped(y, page(6), Frame(2));
            machine.me.set(last);
            machine.broadcast.0.borrow_mut().clear();
            let came_out = match started {
                true => batch.start().finish().count(),
                false => batch.finish().count(),
            };
            assert_eq!(came_out, 2);
            let sent = machine.broadcast.0.take();
            assert_eq!(sent.last(), Some(&None), "it is waited for");
            let again = |page: u64| {
                let is = |what: &Option<Invalidate>| matches!(what, Some(Invalidate::Range { range, .. }) if range.contains(Page(page)));
                sent.iter().filter(|what| is(what)).count()
            };
            let case = format!("{first} {second} {last}, started {started}: {sent:?}");
            // For broadcasts that this CPU sent itself, while the batch belonged to it, it only waits.
            let (first_again, second_again) = (first != last, first != last || second != first);
            assert_eq!(
                again(5),
                usize::from(first_again || same && second_again),
                "{case}"
            );
            assert_eq!(again(6), usize::from(second_again), "{case}");
        }
    }
}

/// engine.rs: the engine refuses machines that lack something.
#[test]
fn machines_that_lack_something_are_refused() {
    let ledger =
        || -> &'static [_] { Vec::leak((0..4).map(|_| quell::LedgerEntry::new()).collect()) };
    let without: &'static [Slot<Machine>] = &[];
    let cpus = leak([PerCpu::new(), PerCpu::with_slots(without)]);
    let made = Engine::new(leak(Machine::default()), cpus, ledger(), Policy::ALL);
    assert_eq!(made.err(), Some(Unsupported::NoSlots { cpu: 1 }));
    let mute = Machine {
        global: true,
        mute: true,
        ..Machine::default()
    };
    assert!(mute_features(&mute).broadcast);
    let made = Engine::new(
        leak(mute),
        leak([PerCpu::new(), PerCpu::new()]),
        ledger(),
        Policy::ALL,
    );
    assert_eq!(made.err(), Some(Unsupported::NoBroadcasts));
}

fn mute_features(machine: &Machine) -> Features {
    quell::Hardware::features(machine)
}

/// addr.rs: the invalidation for each stride names the stride's first page.
#[test]
fn a_range_names_the_first_page_of_each_stride() {
    let range = PageRange {
        start: Page(512),
        pages: 1500,
        stride: PageSize::Large,
    };
    let named: Vec<u64> = range.each().map(|page| page.0).collect();
    assert_eq!(named, [512, 1024, 1536]);
}

/// A frame that counts its drop.
struct Counted<'a>(&'a Cell<usize>);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

/// batch.rs: frames of a forgotten `Deferred` never come out. They're leaked, which is safe.
#[test]
fn frames_of_a_forgotten_deferral_are_lost_and_no_others() {
    let dropped: &Cell<usize> = leak(Cell::new(0));
    let (_, engine, x) = both();
    let page = one(5);
    let mut batch: Batch<'_, S, InPlace<Counted<'_>>> = engine.batch(Purpose::Lazy);
    let forget = |batch: &mut Batch<'_, S, InPlace<Counted<'_>>>| {
        batch.unmapped(x, page, Counted(dropped));
        let outcome = batch.finish_deferred();
        assert!(matches!(outcome, Outcome::Deferred(_)));
        std::mem::forget(outcome);
    };
    // They come out in none of these ways, and later frames do.
    type Way = fn(&mut Batch<'_, S, InPlace<Counted<'_>>>) -> usize;
    let ways: [Way; 4] = [
        |batch| batch.finish().count(),
        |batch| batch.start().finish().count(),
        |batch| {
            batch.unlocked();
            0
        },
        |batch| match batch.finish_deferred() {
            Outcome::Deferred(deferred) => deferred.count(),
            Outcome::Flushed(_) => panic!("there is room in the ledger"),
        },
    ];
    for way in ways {
        forget(&mut batch);
        assert_eq!(way(&mut batch), 0);
        batch.unmapped(x, page, Counted(dropped));
        assert_eq!(batch.finish().count(), 1);
    }
    assert_eq!(dropped.replace(0), 4);
    forget(&mut batch);
    drop(batch);
    assert_eq!(
        dropped.get(),
        0,
        "a frame was dropped, and no CPU has flushed"
    );
}

/// batch.rs: a batch that holds only frames isn't empty, and its list comes out flushed.
#[test]
fn a_list_comes_out_behind_the_flush() {
    let (machine, engine, x) = both();
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
    assert!(batch.is_empty());
    batch.changed(x, one(4), Scope::Leaf);
    assert!(!batch.is_empty() && batch.finish().count() == 0);
    batch.hold(Frame(1));
    assert!(!batch.is_empty());
    batch.changed(x, one(5), Scope::Leaf);
    machine.invalidated.borrow_mut().clear();
    let _list = batch.finish_list();
    assert_eq!(machine.flushed_on(), [0, 1]);
}

/// batch.rs: a batch with an unlinked table is flushed, whatever else it contains.
#[test]
fn one_table_among_pages_is_not_deferred() {
    for with_page in [false, true] {
        let (_, engine, x) = both();
        let mut batch: Batch<'_, S> = engine.batch(Purpose::Lazy);
        batch.table_unlinked(x, one(0), Frame(7));
        if with_page {
            batch.unmapped(space(engine, 2), one(5), Frame(8));
        }
        assert!(matches!(batch.finish_deferred(), Outcome::Flushed(_)));
    }
}

/// A space that is flushed whole doesn't hide another one.
#[test]
fn what_follows_a_whole_space_is_flushed() {
    let (machine, engine, [x, y]) = two(Machine::default(), Policy::ALL);
    machine.on(1, || switch(engine, None, y));
    switch(engine, None, x);
    machine.interrupts.set(0);
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
    batch.changed_all(x, Scope::Leaf);
    batch.changed(x, one(5), Scope::Leaf);
    batch.changed(y, one(6), Scope::Leaf);
    drop(batch);
    assert_eq!(machine.interrupts.get(), 1, "CPU 1 runs the other space");
}

/// Reports that the batch covers may be left out, and no others.
#[test]
fn what_a_batch_covers_is_flushed_unreported() {
    let (machine, engine, [x, y]) = two(Machine::default(), Policy::ALL);
    run_on_both(machine, engine, x);
    let page = |page| one(page);
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Reclaim);
    // The first report alone doesn't cover: a flush may rely on tables that weren't written since.
    batch.changed_all(x, Scope::Leaf);
    assert!(!batch.covers(x, Scope::Leaf));
    batch.changed_all(x, Scope::Leaf);
    batch.changed(y, page(5), Scope::Leaf);
    batch.changed(y, page(7), Scope::Leaf);
    assert!(batch.covers(x, Scope::Leaf) && !batch.covers(x, Scope::Tables));
    assert!(!batch.covers(y, Scope::Leaf));
    assert_eq!(batch.finish().count(), 0);
    assert_eq!(machine.interrupts.get(), 1);
    assert!(!batch.covers(x, Scope::Leaf));
    // Report one page, then everything.
    batch.changed(x, page(5), Scope::Leaf);
    batch.changed_all(x, Scope::Leaf);
    assert!(batch.covers(x, Scope::Leaf));
    drop(batch);
    // Where invalidations are broadcast, each report sends one.
    let (_, engine) = world(Machine::new(true), Policy::ALL);
    let x = space(engine, 1);
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Reclaim);
    batch.changed_all(x, Scope::Leaf);
    batch.changed_all(x, Scope::Leaf);
    assert!(!batch.covers(x, Scope::Leaf));
}

/// overflow.rs: for changes without a place, a batch interrupts no CPU before its end, and flushes them once there.
#[test]
fn a_batch_that_is_full_of_spaces_is_flushed_at_its_end() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let spaces: Vec<S> = (0..5).map(|root| space(engine, root)).collect();
    run_on_both(machine, engine, spaces[0]);
    let frames: InPlace<Frame> = InPlace::new();
    let mut batch: Batch<'_, S, _, 2> = engine.batch_of_spaces(Purpose::Call, frames);
    for (number, &space) in spaces.iter().enumerate() {
        batch.unmapped(space, one(5), Frame(number as u64));
        assert_eq!(machine.interrupts.get(), 0);
    }
    assert_eq!(engine.stats().get(Counter::EscalatedBatch), 3);
    assert_eq!(batch.finish().count(), 5);
    assert_eq!(engine.stats().get(Counter::Requested), 3);
    assert_eq!(machine.interrupts.get(), 1);
}

/// asid.rs: with system-wide tags a space has one tag on all CPUs, a CPU that runs it keeps it over rollovers, no space
/// gets the kernel's tag, and a CPU that takes a used one flushes first.
#[test]
fn tags_that_run_out_are_dealt_again() {
    let (machine, engine) = world(Machine::new(true), Policy::ALL);
    let stays = space(engine, 1000);
    machine.me.set(1);
    switch(engine, None, stays);
    let own = machine.tag.get();
    machine.me.set(0);
    let spaces: Vec<S> = (0..260).map(|root| space(engine, root)).collect();
    let mut owner = vec![None; 256];
    let mut last = None;
    let mut flushes = Vec::new();
    for turn in 0..1100 {
        machine.invalidated.borrow_mut().clear();
        let number = turn % 260;
        switch(engine, last.replace(spaces[number]), spaces[number]);
        let tag = machine.tag.get();
        assert!(tag != 0 && tag != own, "turn {turn}: tag {tag}");
        if !machine.invalidated.borrow().is_empty() {
            flushes.push(turn);
            // The tag is the same on every CPU.
            machine.me.set(1);
            switch(engine, Some(stays), spaces[number]);
            assert_eq!(machine.tag.get(), tag, "turn {turn}");
            switch(engine, Some(spaces[number]), stays);
            assert_eq!(machine.tag.get(), own, "turn {turn}");
            machine.me.set(0);
            owner.fill(None);
        }
        let before = owner[usize::from(tag)].replace(number);
        assert!(
            before.is_none() || before == Some(number),
            "turn {turn}: tag {tag} is another's"
        );
        // The space that another CPU runs keeps its tag on this CPU, too.
        if turn % 100 == 99 {
            switch(engine, last.replace(stays), stays);
            assert_eq!(machine.tag.get(), own, "turn {turn}");
            switch(engine, last.replace(spaces[number]), spaces[number]);
            assert_eq!(machine.tag.get(), tag, "turn {turn}");
        }
    }
    // There are 255 tags, less the one that is kept, and the one in use at a rollover.
    assert_eq!(flushes, FLUSHES);
    assert_eq!(engine.stats().get(Counter::Rollovers), FLUSHES.len() as u64);
}

/// The turns at which tags had run out.
const FLUSHES: [usize; 4] = [254, 507, 760, 1013];

/// hardware.rs: devices get an invalidation for every change that needs a flush, and the flush waits for them.
#[test]
fn devices_hear_of_every_flush() {
    for global in [false, true] {
        for purpose in [Purpose::Call, Purpose::Reclaim, Purpose::Lazy] {
            for runs in [0, 1, 2] {
                for started in [false, true] {
                    let (machine, engine) = world(Machine::new(global), Policy::ALL);
                    let x = space(engine, 77);
                    match runs {
                        0 => {}
                        1 => switch(engine, None, x),
                        _ => run_on_both(machine, engine, x),
                    }
                    let mut batch: Batch<'_, S> = engine.batch(purpose);
                    batch.unmapped(x, one(5), Frame(1));
                    match (purpose, started) {
                        (Purpose::Lazy, _) => {
                            assert!(matches!(batch.finish_deferred(), Outcome::Deferred(_)))
                        }
                        (_, true) => assert_eq!(batch.start().finish().count(), 1),
                        (_, false) => assert_eq!(batch.finish().count(), 1),
                    }
                    let told = machine.secondary.take();
                    let case = format!(
                        "global {global}, {purpose:?}, on {runs} CPUs, started {started}: {told:?}"
                    );
                    assert!(told.contains(&Some(77)), "{case}");
                    assert_eq!(told.last(), Some(&None), "{case}");
                }
            }
        }
    }
}

/// hardware.rs: a batch that finishes calls `may_wait`, unless it has nothing to flush.
#[test]
fn a_batch_asks_whether_it_may_wait_if_it_has_something_to_flush() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    switch(engine, None, x);
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
    machine.asked.set(0);
    machine.forbidden.set(true);
    batch.hold(Frame(1));
    assert_eq!(batch.finish().count(), 1);
    machine.forbidden.set(false);
    assert_eq!(machine.asked.take(), 0);
    batch.unmapped(x, one(5), Frame(2));
    assert_eq!(batch.finish().count(), 1);
    assert_eq!(machine.asked.take(), 1);
}

/// policy.rs: each mechanism works alone, so a flush is deferred even if batches are off.
#[test]
fn flushes_are_deferred_without_batches() {
    for global in [false, true] {
        let policy = Policy::only(Mechanism::LazyUnmap);
        let (machine, engine) = world(Machine::new(global), policy);
        let x = space(engine, 1);
        run_on_both(machine, engine, x);
        machine.interrupts.set(0);
        machine.broadcast.0.borrow_mut().clear();
        let mut batch: Batch<'_, S> = engine.batch(Purpose::Lazy);
        batch.unmapped(x, one(5), Frame(1));
        batch.unmapped(x, one(3), Frame(2));
        assert!(matches!(batch.finish_deferred(), Outcome::Deferred(_)));
        assert_eq!(machine.interrupts.get(), 0);
        assert!(machine.broadcast.0.borrow().is_empty());
    }
}

/// policy.rs: a CPU uses exactly the policy's number of slots.
#[test]
fn with_one_slot_a_cpu_remembers_one_space() {
    for slots in [1, 2] {
        let policy = Policy {
            tags: TagPolicy::Slots(slots),
            ..Policy::ALL
        };
        let (machine, engine, [x, y]) = two(Machine::default(), policy);
        for (from, to) in [(None, x), (Some(x), y), (Some(y), x), (Some(x), y)] {
            switch(engine, from, to);
        }
        let kept = slots == 2;
        assert_eq!(machine.kept.take(), [false, false, kept, kept]);
    }
}

/// switch.rs: retiring a space waits for no CPU that has left it, whatever that CPU runs now.
#[test]
fn a_space_is_retired_from_a_cpu_that_runs_another() {
    for order in [[1, 2], [2, 1]] {
        let (machine, engine) = world(
            Machine {
                limit: 10.into(),
                ..Machine::default()
            },
            Policy::ALL,
        );
        let spaces = [1, 2].map(|root| space(engine, root));
        let [dying, other] = order.map(|number: usize| spaces[number - 1]);
        machine.me.set(1);
        switch(engine, None, dying);
        // The CPU doesn't pass the space that it had loaded, so the space's set still contains it.
        engine.cpu_offline(None);
        engine.cpu_online();
        switch(engine, None, other);
        machine.me.set(0);
        engine.retire(dying);
        machine.me.set(1);
        assert!(engine.this_cpu().runs(other));
    }
}

/// inbox.rs: a CPU to which an interrupt is on its way isn't interrupted for the next request.
#[test]
fn requests_share_an_interrupt() {
    let (machine, engine, x) = both();
    let mut batches: [Batch<'_, S>; 2] = [engine.batch(Purpose::Call), engine.batch(Purpose::Call)];
    machine.interrupts.set(0);
    let flights: Vec<_> = (batches.iter_mut().zip(5..))
        .map(|(batch, page)| {
            batch.unmapped(x, one(page), Frame(page));
            batch.start()
        })
        .collect();
    assert_eq!(machine.interrupts.get(), 1);
    for flight in flights {
        assert_eq!(flight.finish().count(), 1);
    }
    assert_eq!(engine.stats().get(Counter::Merged), 1);
}

/// target.rs: `user_access_allowed` returns `false` between two address spaces.
#[test]
fn an_nmi_between_two_spaces_is_refused() {
    for global in [false, true] {
        let (machine, engine, [x, y]) = two(Machine::new(global), Policy::ALL);
        switch(engine, None, x);
        assert!(engine.this_cpu().user_access_allowed());
        engine.this_cpu().enter_lazy();
        assert!(!engine.this_cpu().user_access_allowed());
        switch(engine, Some(x), y);
        switch(engine, Some(y), x);
        assert_eq!(machine.nmis_at_load.take(), [false; 3]);
        assert!(engine.this_cpu().user_access_allowed() && !machine.masked.get());
    }
}

/// inbox.rs: requests that meet merge into one, which is everything if it's too long.
#[test]
fn requests_that_meet_are_limited() {
    for (pages, whole) in [(16, false), (17, true)] {
        let (machine, engine, x) = both();
        let mut batches: [Batch<'_, S>; 2] =
            [engine.batch(Purpose::Call), engine.batch(Purpose::Call)];
        let flights: Vec<_> = (batches.iter_mut().zip([100, 200]))
            .map(|(batch, page)| {
                batch.changed(x, PageRange::base(Page(page), pages), Scope::Leaf);
                batch.start()
            })
            .collect();
        machine.invalidated.borrow_mut().clear();
        for flight in flights {
            assert_eq!(flight.finish().count(), 0);
        }
        let tag = |(cpu, what): &(u16, Invalidate)| *cpu == 1 && matches!(what, Invalidate::Tag(_));
        assert_eq!(machine.invalidated.borrow().iter().any(tag), whole);
    }
}

/// in_flight.rs: a flush that concerns only this CPU is over at once, and made once.
#[test]
fn a_flush_that_starts_alone_is_over() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    switch(engine, None, x);
    machine.invalidated.borrow_mut().clear();
    for _ in 0..3 {
        let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
        batch.unmapped(x, one(5), Frame(1));
        assert_eq!(batch.start().finish().count(), 1);
        assert_eq!(machine.invalidated.take().len(), 1);
        engine.flush_pending(x);
        assert!(
            machine.invalidated.borrow().is_empty(),
            "no deferred flush is left"
        );
    }
}

/// lazy.rs: `catch_up` flushes this CPU's whole loaded tag if the flush clock is a sixteenth of the ledger ahead of it.
#[test]
fn a_cpu_catches_up_after_a_sixteenth_of_the_ledger() {
    for (entries, far) in [(64, 4), (85, 6)] {
        let (machine, engine) = world_of(
            Machine::default(),
            Policy::ALL,
            [PerCpu::new(), PerCpu::new()],
            entries,
        );
        let x = space(engine, 1);
        switch(engine, None, x);
        machine.invalidated.borrow_mut().clear();
        for deferral in 1..=far {
            let mut batch: Batch<'_, S> = engine.batch(Purpose::Lazy);
            batch.unmapped(x, one(5), Frame(1));
            assert!(matches!(batch.finish_deferred(), Outcome::Deferred(_)));
            engine.this_cpu().catch_up();
            assert_eq!(
                !machine.invalidated.borrow().is_empty(),
                deferral == far,
                "{deferral} of {entries}"
            );
        }
    }
}

/// lazy.rs: the background also makes deferred flushes of kernel mappings; reusing a user page doesn't.
#[test]
fn the_background_pays_for_everything() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    let kernel = kernel_space(engine, KernelEntries::Global);
    run_on_both(machine, engine, x);
    assert!(
        engine.is_flushed(&DeferredFlush::new()),
        "no flush is deferred"
    );
    let [own, user] = [kernel, x].map(|space| defer(engine, space, 5));
    assert!(engine.flush_before_reuse(&user).is_some());
    assert!(!engine.is_flushed(&own) && engine.has_deferred());
    defer(engine, x, 5);
    engine.flush_deferred();
    assert!(engine.is_flushed(&own) && !engine.has_deferred());
}

/// lazy.rs: a frame whose deferred flush has no stamp yet is flushed with its space.
#[test]
fn a_deferred_flush_that_has_begun_is_flushed_with_its_space() {
    let (machine, engine, x) = both();
    let deferred_flush = DeferredFlush::new();
    deferred_flush.begin();
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Reclaim);
    batch.unmapped(x, one(5), Frame(1));
    machine.invalidated.borrow_mut().clear();
    engine.flush_before_refill(&deferred_flush, x);
    assert_eq!(machine.flushed_on(), [0, 1]);
    assert_eq!(batch.finish().count(), 1);
}

/// kernel.rs: kernel entries that aren't global are dropped under every tag, and global ones from all at once.
#[test]
fn other_tags_lose_the_kernel_s_entries_only_where_those_have_tags() {
    for (entries, kept) in [
        (KernelEntries::Global, true),
        (KernelEntries::Tagged, false),
    ] {
        let (machine, engine, [x, y]) = two(Machine::default(), Policy::ALL);
        let kernel = kernel_space(engine, entries);
        switch(engine, None, x);
        switch(engine, Some(x), y);
        unmap(engine, kernel, 0x7_ffff_f000);
        machine.kept.borrow_mut().clear();
        switch(engine, Some(y), x);
        switch(engine, Some(x), y);
        // The loaded tag needs no further flush.
        assert_eq!(machine.kept.take(), [kept, true], "{entries:?}");
    }
}

/// kernel.rs: a lazy CPU leaves its root if a request covers both a table and kernel mappings.
#[test]
fn a_lazy_cpu_leaves_its_root_for_whatever_may_be_a_table() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    let kernel = kernel_space(engine, KernelEntries::Global);
    run_on_both(machine, engine, x);
    machine.on(1, || engine.this_cpu().enter_lazy());
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
    batch.unmapped(kernel, one(0x7_ffff_f000), Frame(1));
    batch.table_unlinked(x, one(0), Frame(7));
    assert_eq!(batch.finish().count(), 2);
    machine.me.set(1);
    assert!(
        engine.this_cpu().is_detached(),
        "its walker may read the table"
    );
}

/// switch.rs: calls with another space than the loaded one don't change the loaded one.
#[test]
fn what_is_said_of_another_space_changes_nothing() {
    let (machine, engine, [x, y]) = two(Machine::default(), Policy::ALL);
    run_on_both(machine, engine, y);
    assert!(engine.this_cpu().runs(y) && !engine.this_cpu().runs(x));
    engine.this_cpu().leave(x);
    assert!(engine.this_cpu().runs(y));
    engine.this_cpu().enter_lazy();
    assert!(
        !engine.this_cpu().resume(x)
            && !engine.this_cpu().runs(y)
            && !engine.this_cpu().user_access_allowed()
    );
    // A lazy CPU that switches to its loaded space catches up.
    machine.me.set(1);
    unmap(engine, y, 5);
    machine.me.set(0);
    machine.invalidated.borrow_mut().clear();
    switch(engine, None, y);
    assert!(engine.this_cpu().runs(y));
    assert_eq!(machine.invalidated.take().len(), 1);
}

/// target.rs: a request for a space that the CPU has left flushes nothing of the space that it runs now.
#[test]
fn requests_for_another_space_are_ignored() {
    for order in [[0, 1], [1, 0]] {
        let (machine, engine) = world(Machine::default(), Policy::ALL);
        let spaces = [1, 2].map(|root| space(engine, root));
        let [old, new] = order.map(|number: usize| spaces[number]);
        run_on_both(machine, engine, old);
        let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
        batch.unmapped(old, one(5), Frame(1));
        let flight = batch.start();
        machine.me.set(1);
        switch(engine, Some(old), new);
        machine.invalidated.borrow_mut().clear();
        engine.this_cpu().mask_interrupts().on_interrupt();
        assert!(machine.invalidated.borrow().is_empty());
        machine.me.set(0);
        assert_eq!(flight.finish().count(), 1);
    }
}

/// flushed.rs: flushed frames that the embedder doesn't take out are dropped, after the flush. Deferred ones come out
/// one by one.
#[test]
fn frames_come_out_one_way_or_the_other() {
    let dropped: &Cell<usize> = leak(Cell::new(0));
    let (_, engine, x) = both();
    let mut batch: Batch<'_, S, InPlace<Counted<'_>>> = engine.batch(Purpose::Lazy);
    for page in [5, 9] {
        batch.unmapped(x, one(page), Counted(dropped));
    }
    drop(batch.finish());
    assert_eq!(dropped.take(), 2);
    batch.unmapped(x, one(5), Counted(dropped));
    match batch.finish_deferred() {
        Outcome::Deferred(deferred) => assert_eq!(deferred.count(), 1),
        Outcome::Flushed(_) => panic!("there is room in the ledger"),
    }
    assert_eq!(dropped.take(), 1);
}

/// target.rs: `refresh` has an effect for a kernel space.
#[test]
fn the_kernel_s_entries_are_refreshed() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let kernel = kernel_space(engine, KernelEntries::Global);
    machine.invalidated.borrow_mut().clear();
    engine.this_cpu().refresh(kernel, one(0x7_ffff_f000));
    let done = machine.invalidated.take();
    assert!(
        matches!(done[..], [(0, Invalidate::Kernel { .. })]),
        "{done:?}"
    );
}

/// user_mode.rs: an idle CPU that calls `enter_user` doesn't count as one that runs a program.
#[test]
fn an_idle_cpu_runs_no_program() {
    let (machine, engine, x) = both();
    machine.me.set(1);
    engine.this_cpu().enter_lazy();
    // SAFETY: nothing is mapped on this machine.
    unsafe { engine.this_cpu().enter_user() };
    machine.me.set(0);
    machine.interrupts.set(0);
    unmap(engine, x, 5);
    assert_eq!(machine.interrupts.get(), 0, "an idle CPU is interrupted");
    // An entry flushes nothing if no flush was left to it.
    machine.me.set(1);
    machine.invalidated.borrow_mut().clear();
    engine.this_cpu().enter_kernel();
    assert!(engine.this_cpu().resume(x));
    machine.invalidated.borrow_mut().clear();
    engine.this_cpu().enter_kernel();
    assert_eq!(machine.invalidated.take(), []);
}

/// user_mode.rs: each NMI in the middle of an entry flushes itself, and nothing else does.
#[test]
fn each_nmi_in_an_entry_flushes_for_itself() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let kernel = kernel_space(engine, KernelEntries::Tagged);
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    // SAFETY: nothing is mapped on this machine.
    machine.on(1, || unsafe { engine.this_cpu().enter_user() });
    unmap(engine, kernel, 5);
    assert_eq!(machine.interrupts.get(), 0, "a program is interrupted");
    machine.me.set(1);
    machine.invalidated.borrow_mut().clear();
    *machine.nmi.borrow_mut() = Some(|engine| {
        (0..3).for_each(|_| engine.this_cpu().enter_kernel());
    });
    engine.this_cpu().enter_kernel();
    let everything = (1, Invalidate::Everything);
    assert_eq!(machine.invalidated.take(), [everything; 4]);
    engine.this_cpu().enter_kernel();
    assert_eq!(machine.invalidated.take(), []);
}

/// in_flight.rs: a flush by broadcasts ends once, and devices get one invalidation.
#[test]
fn a_broadcast_flush_that_was_started_ends_once() {
    let told = |started: bool| {
        let (machine, engine) = world(Machine::new(true), Policy::ALL);
        let x = space(engine, 1);
        run_on_both(machine, engine, x);
        let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
        batch.unmapped(x, one(5), Frame(5));
        let count = match started {
            true => batch.start().finish().count(),
            false => batch.finish().count(),
        };
        assert_eq!(count, 1);
        let secondary = machine.secondary.take();
        (
            secondary.iter().filter(|told| told.is_some()).count(),
            x.is_in_batch(),
        )
    };
    assert_eq!(told(true), told(false));
    assert!(!told(true).1);
}

#[test]
fn a_handle_of_masked_interrupts_leaves_them_as_they_were() {
    let (machine, engine, [x, y]) = two(Machine::default(), Policy::ALL);
    run_on_both(machine, engine, x);
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
    batch.changed(x, one(7), Scope::Leaf);
    let mut flight = batch.start();
    assert!(!flight.is_done());
    machine.me.set(1);
    machine.masked.set(true);
    let cpu = engine.this_cpu();
    // SAFETY: interrupts are masked.
    unsafe { cpu.assume_masked() }.on_interrupt();
    assert!(flight.is_done() && machine.masked.get());
    cpu.mask_interrupts().switch(Some(x), y);
    assert!(cpu.runs(y) && !cpu.runs(x) && machine.masked.get());
    machine.masked.set(false);
    let masked = cpu.mask_interrupts();
    assert!(machine.masked.get());
    masked.switch(Some(y), x);
    drop(masked);
    assert!(cpu.runs(x) && !machine.masked.get());
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "with interrupts on")]
fn a_handler_that_forgets_to_mask_interrupts_is_noticed() {
    let (_, engine) = world(Machine::default(), Policy::ALL);
    // SAFETY: deliberately violated. We test the assertion, which ends the call before it does anything.
    unsafe { engine.this_cpu().assume_masked() }.on_interrupt();
}

#[test]
#[cfg(debug_assertions)]
fn the_handle_of_another_cpu_is_noticed() {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let elsewhere = engine.this_cpu();
    machine.me.set(1);
    machine.masked.set(true);
    // SAFETY: deliberately violated. We test the assertions, which end the calls before they do anything.
    let calls: [&dyn Fn(); 2] = unsafe {
        [&|| _ = engine.on_cpu(elsewhere.state()), &|| {
            _ = elsewhere.assume_masked()
        }]
    };
    for (number, call) in calls.into_iter().enumerate() {
        let ended = catch_unwind(AssertUnwindSafe(call));
        let why = ended.expect_err("the call comes back");
        let why = why.downcast_ref::<&str>().copied();
        let expected = "a CPU is in the engine with the state of another";
        assert_eq!(why, Some(expected), "call {number}");
    }
}

/// batch.rs: if a report panics, its frame is leaked, because a CPU may still use it.
#[test]
fn a_frame_that_is_refused_is_not_given_back_unflushed() {
    type Refused<'b> = fn(&mut Batch<'b, S, InPlace<Counted<'b>>>, S, Counted<'b>);
    let refused: [(&str, usize, Refused<'_>); 5] = [
        ("unmapped", 64, |batch, x, frame| {
            batch.unmapped(x, one(7), frame);
        }),
        ("table_unlinked", 64, |batch, x, frame| {
            batch.table_unlinked(x, one(7), frame);
        }),
        ("hold", 64, |batch, _, frame| batch.hold(frame)),
        ("unmapped, of no page", 0, |batch, x, frame| {
            batch.unmapped(x, PageRange::base(Page(7), 0), frame);
        }),
        ("table_unlinked, of no page", 0, |batch, x, frame| {
            batch.table_unlinked(x, PageRange::base(Page(7), 0), frame);
        }),
    ];
    for (how, before, refuse) in refused {
        let given_back = leak(Cell::new(0));
        let (machine, engine, x) = both();
        let mut batch = engine.batch(Purpose::Call);
        for _ in 0..before {
            batch.hold(Counted(given_back));
        }
        let refusing = || refuse(&mut batch, x, Counted(given_back));
        let panics = catch_unwind(AssertUnwindSafe(refusing));
        let why = message(&*panics.expect_err(how));
        assert!(
            why.contains(["full", "of no page"][usize::from(before == 0)]),
            "{how}: {why}"
        );
        assert_eq!(given_back.get(), 0, "{how}");
        machine.invalidated.borrow_mut().clear();
        drop(batch);
        assert_eq!(given_back.get(), before, "{how}");
        // The range that was reported with the frame is flushed with the batch.
        let reported = before != 0 && how != "hold";
        assert_eq!(!machine.invalidated.borrow().is_empty(), reported, "{how}");
    }
}

/// batch.rs: if a drop panics instead of flushing, the frames are leaked.
#[test]
#[cfg(debug_assertions)]
fn frames_of_a_batch_that_may_not_flush_as_it_is_dropped_are_leaked() {
    let given_back = Cell::new(0);
    let (machine, engine, x) = both();
    let mut batch = engine.batch(Purpose::Call);
    batch.unmapped(x, one(7), Counted(&given_back));
    machine.invalidated.borrow_mut().clear();
    machine.forbidden.set(true);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(batch))).is_err());
    assert!(machine.invalidated.borrow().is_empty());
    assert_eq!(given_back.get(), 0, "a CPU may still use it");
}

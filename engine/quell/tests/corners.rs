//! Edge cases that ordinary runs don't reach: the longest ranges, many slots, a long ledger, batches that change their
//! CPU. The file is long because many of them have a machine of their own.

use crate::support::{
    KERNEL_PAGE, Machine, S, alone, both, both_of, defer, kernel_space, leak, one, panic_of,
    run_on_both, space, switch, two, unmap, unmapping, world, world_of,
};
use quell::{
    Batch, Counter, DeferredFlush, Engine, EngineError, Frame, FrameArray, Invalidation,
    KernelEntries, Mechanism, Outcome, Page, PageRange, PageSize, PerCpuData, Policy, Purpose,
    Request, Scope, Slot, TagPolicy,
};
use std::cell::Cell;

const fn base(start: u64, pages: u64) -> PageRange {
    PageRange::base(Page(start), pages)
}

const fn large(start: u64, strides: u64) -> PageRange {
    PageRange { start: Page(start * 512), pages: strides * 512, stride: PageSize::Large }
}

const HUGE: PageRange = PageRange { start: Page(1 << 18), pages: 3 << 18, stride: PageSize::Huge };

/// request.rs: a range has at most 65535 strides, as a single report or page by page. Each row has the reported ranges
/// and the flushed ones, as first page and number of pages, or `None` for the whole tag.
#[test]
fn ranges_grow_to_65535_strides() {
    type Row = (&'static [PageRange], Option<&'static [(u64, u64)]>);
    const ROWS: [Row; 17] = [
        (&[base(7, 65535)], Some(&[(7, 65535)])),
        (&[base(7, 65536)], None),
        // A range after the last one.
        (&[base(7, 65534), base(65541, 1)], Some(&[(7, 65535)])),
        (&[base(7, 65535), base(65542, 1)], None),
        (&[base(7, 1), base(9, 65535)], Some(&[(7, 1), (9, 65535)])),
        (&[base(7, 1), base(9, 65536)], None),
        // A range before it, and one that overlaps it.
        (&[base(8, 65534), base(7, 1)], Some(&[(7, 65535)])),
        (&[base(8, 65535), base(7, 1)], None),
        (&[base(8, 65535), base(1, 65535)], None),
        (&[base(80000, 9), base(1, 9)], Some(&[(80000, 9), (1, 9)])),
        // Base pages never join a range of large strides, even if they touch it.
        (&[large(3, 1), base(2048, 1)], Some(&[(1536, 512), (2048, 1)])),
        (&[base(2048, 1), large(3, 1)], Some(&[(2048, 1), (1536, 512)])),
        (&[HUGE], Some(&[(1 << 18, 3 << 18)])),
        // The limit counts large strides, too.
        (&[large(3, 65535)], Some(&[(1536, 65535 * 512)])),
        (&[large(3, 65536)], None),
        (&[large(3, 65534), large(65537, 1)], Some(&[(1536, 65535 * 512)])),
        (&[large(3, 65535), large(65538, 1)], None),
    ];
    let no_range_is_too_long = Machine { full_above: 1 << 40, ..Machine::default() };
    let (machine, engine) = world(no_range_is_too_long, Policy::ALL);
    let x = space(engine, 1);
    switch(engine, None, x);
    for (reported, flushed) in ROWS {
        machine.invalidated.borrow_mut().clear();
        let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
        for range in reported {
            batch.changed(x, *range, Scope::Leaf);
        }
        drop(batch);
        let range = |(_, what): (u16, Invalidation)| match what {
            Invalidation::Range { range, .. } => Some((range.start.0, range.pages)),
            _ => None,
        };
        let ranges: Option<Vec<_>> = machine.invalidated.take().into_iter().map(range).collect();
        assert_eq!(ranges.as_deref(), flushed, "{reported:?}");
    }
}

/// An empty request covers nothing, and counts no invalidation.
#[test]
fn requests_know_what_they_cover() {
    let range = |start, pages| Request::range(base(start, pages), Scope::Tables);
    assert_eq!(range(5, 0), Request::Empty);
    assert!(!Request::Empty.covers(Page(5)) && Request::Empty.strides() == Some(0));
    assert!(Request::Full(Scope::Leaf).covers(Page(5)));
    let covered = (0..10).filter(|&page| range(5, 2).covers(Page(page)));
    assert!(covered.eq([5, 6]));
    assert!(range(5, 2) != range(5, 3) && range(5, 2) != range(4, 2));
    for full in [Scope::Leaf, Scope::Tables].map(Request::Full) {
        for merged in [range(5, 2).merge(full), full.merge(range(5, 2))] {
            assert_eq!(merged, Request::Full(Scope::Tables));
        }
    }
}

/// switch.rs: with more than eight slots, a space's id selects its slot.
#[test]
fn with_many_slots_each_space_has_its_place() {
    let cpus = [(); 2].map(|()| {
        let slots = (0..12).map(|_| Slot::new()).collect();
        PerCpuData::with_slots(Vec::leak(slots))
    });
    let policy = Policy { tags: TagPolicy::All, ..Policy::ALL };
    let machine = Machine { tags: 64, ..Machine::default() };
    let (machine, engine) = world_of(machine, policy, cpus, 4);
    let spaces: Vec<S> = (0..13).map(|root| space(engine, root)).collect();
    let last = Cell::new(None);
    // Returns whether each of the spaces has kept its entries.
    let load = |spaces: &[S]| {
        machine.kept.borrow_mut().clear();
        for &space in spaces {
            switch(engine, last.replace(Some(space)), space);
        }
        machine.kept.take()
    };
    load(&spaces[..12]);
    assert_eq!(load(&spaces[..12]), [true; 12]);
    // The thirteenth space has the slot of the first, and of no other.
    assert_eq!(load(&spaces[12..]), [false]);
    let kept = load(&spaces[..12]);
    assert!(!kept[0] && kept[1..].iter().all(|&kept| kept), "{kept:?}");
}

/// lazy.rs: if there are more deferred flushes than one round makes, several rounds follow.
#[test]
fn many_deferrals_are_paid_together() {
    let cpus = [PerCpuData::new(), PerCpuData::new()];
    let (machine, engine) = world_of(Machine::default(), Policy::ALL, cpus, 200);
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    for together in [1, 63, 64, 65, 150, 200] {
        let deferred: Vec<_> = (0..together).map(|page| defer(engine, x, page)).collect();
        assert!(!deferred.iter().any(|flush| engine.is_flushed(flush)));
        machine.interrupts.set(0);
        engine.flush_deferred();
        assert!(deferred.iter().all(|flush| engine.is_flushed(flush)));
        assert!(!engine.has_deferred());
        // One interrupt is enough: the second round finds that every CPU has flushed.
        assert_eq!(machine.interrupts.get(), 1, "{together}");
    }
}

/// lazy.rs: in the background, the kernel's flushes are made, too, even if a user page's was deferred last.
#[test]
fn no_deferral_is_left_because_it_is_the_kernel_s() {
    let (_, engine, x) = both();
    let kernel = kernel_space(engine, KernelEntries::Global);
    let deferred = [defer(engine, kernel, KERNEL_PAGE), defer(engine, x, 5)];
    assert!(!deferred.iter().any(|flush| engine.is_flushed(flush)));
    engine.flush_deferred();
    assert!(deferred.iter().all(|flush| engine.is_flushed(flush)));
}

/// batch.rs: the CPU that waits sends again all broadcasts that another CPU sent.
#[test]
fn a_batch_that_changes_its_cpu_is_sent_by_the_cpu_that_waits() {
    for case in 0..32u16 {
        let [first, second, last] = [0, 1, 2].map(|bit| case >> bit & 1);
        let [started, same] = [3, 4].map(|bit| case >> bit & 1 != 0);
        let (machine, engine) = world(Machine::new(true), Policy::ALL);
        let x = space(engine, 1);
        let y = if same { x } else { space(engine, 2) };
        machine.on(1, || switch(engine, None, y));
        switch(engine, None, x);
        machine.me.set(first);
        let mut batch = unmapping(engine, Purpose::Reclaim, x, 5);
        machine.me.set(second);
        batch.unmapped(y, one(6), Frame(2));
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
            let is = |what: &&Option<Invalidation>| match what {
                Some(Invalidation::Range { range, .. }) => range.contains(Page(page)),
                Some(
                    Invalidation::Tag(_)
                    | Invalidation::All
                    | Invalidation::Kernel { .. }
                    | Invalidation::Everything,
                )
                | None => false,
            };
            sent.iter().filter(is).count()
        };
        let case = format!("{first} {second} {last}, started {started}: {sent:?}");
        // For broadcasts that this CPU sent itself, while the batch belonged to it, it only waits.
        let second_again = first != last || second != first;
        let first_again = first != last || same && second_again;
        assert_eq!(again(5), usize::from(first_again), "{case}");
        assert_eq!(again(6), usize::from(second_again), "{case}");
    }
}

/// engine.rs: the engine refuses machines that lack something.
#[test]
fn machines_that_lack_something_are_refused() {
    let without: &'static [Slot<Machine>] = &[];
    let mute = Machine { global: true, mute: true, ..Machine::default() };
    let no_slots = [PerCpuData::new(), PerCpuData::with_slots(without)];
    let slots = [PerCpuData::new(), PerCpuData::new()];
    for (machine, cpus, why) in [
        (Machine::default(), no_slots, EngineError::NoSlots { cpu: 1 }),
        (mute, slots, EngineError::NoBroadcasts),
    ] {
        let made = Engine::new(leak(machine), leak(cpus), &[], Policy::ALL);
        assert_eq!(made.err(), Some(why));
    }
}

/// A frame that counts its drop.
struct CountedFrame<'a>(&'a Cell<usize>);

impl Drop for CountedFrame<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

/// batch.rs: frames of a forgotten `DeferredFrames` never come out. They're leaked, which is safe.
#[test]
fn frames_of_a_forgotten_deferral_are_lost_and_no_others() {
    let dropped: &Cell<usize> = leak(Cell::new(0));
    let (_, engine, x) = both();
    let mut batch: Batch<'_, S, FrameArray<CountedFrame<'_>>> = engine.batch(Purpose::Lazy);
    let forget = |batch: &mut Batch<'_, S, FrameArray<CountedFrame<'_>>>| {
        batch.unmapped(x, one(5), CountedFrame(dropped));
        let outcome = batch.finish_deferred();
        assert!(matches!(outcome, Outcome::Deferred(_)));
        std::mem::forget(outcome);
    };
    // They come out in none of these ways, and later frames do.
    type BatchUse = fn(&mut Batch<'_, S, FrameArray<CountedFrame<'_>>>) -> usize;
    let ways: [BatchUse; 4] = [
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
        batch.unmapped(x, one(5), CountedFrame(dropped));
        assert_eq!(batch.finish().count(), 1);
    }
    assert_eq!(dropped.replace(0), 4);
    forget(&mut batch);
    drop(batch);
    assert_eq!(dropped.get(), 0, "dropped, and no CPU has flushed");
}

/// frames.rs: a dropped batch flushes first.
#[test]
fn a_dropped_batch_flushes_before_its_frames_are_dropped() {
    struct Witness<'m>(&'m Machine);
    impl Drop for Witness<'_> {
        fn drop(&mut self) {
            assert_eq!(self.0.flushed_on(), [0, 1]);
        }
    }
    let (machine, engine, x) = both();
    machine.invalidated.borrow_mut().clear();
    let mut batch = engine.batch(Purpose::Call);
    batch.unmapped(x, one(3), Witness(machine));
    drop(batch);
    assert_eq!(machine.flushed_on(), [0, 1]);
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
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Reclaim);
    // The first report alone doesn't cover: a flush may rely on tables that weren't written since.
    batch.changed_all(x, Scope::Leaf);
    assert!(!batch.covers(x, Scope::Leaf));
    batch.changed_all(x, Scope::Leaf);
    batch.changed(y, one(5), Scope::Leaf);
    batch.changed(y, one(7), Scope::Leaf);
    assert!(batch.covers(x, Scope::Leaf) && !batch.covers(x, Scope::Tables));
    assert!(!batch.covers(y, Scope::Leaf));
    assert_eq!(batch.finish().count(), 0);
    assert_eq!(machine.interrupts.get(), 1);
    assert!(!batch.covers(x, Scope::Leaf));
    // Report one page, then everything.
    batch.changed(x, one(5), Scope::Leaf);
    batch.changed_all(x, Scope::Leaf);
    assert!(batch.covers(x, Scope::Leaf));
    drop(batch);
    // Where invalidations are broadcast, each report sends one.
    let (_, engine, x) = both_of(Machine::new(true), Policy::ALL);
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Reclaim);
    batch.changed_all(x, Scope::Leaf);
    batch.changed_all(x, Scope::Leaf);
    assert!(!batch.covers(x, Scope::Leaf));
}

/// asid.rs: with system-wide tags a space has one tag on all CPUs, a CPU that runs it keeps it over rollovers, no space
/// gets the kernel's tag, and a CPU that takes a used one flushes first.
#[test]
fn tags_that_run_out_are_dealt_again() {
    /// The turns at which tags have run out: there are 255, less the one that is kept, and the one in use then.
    const FLUSHES: [usize; 4] = [254, 507, 760, 1013];
    let (machine, engine) = world(Machine::new(true), Policy::ALL);
    let stays = space(engine, 1000);
    let load = |from: Option<S>, to: S| {
        switch(engine, from, to);
        machine.tag.get()
    };
    let own = machine.on(1, || load(None, stays));
    let spaces: Vec<S> = (0..260).map(|root| space(engine, root)).collect();
    let mut owner = vec![None; 256];
    let mut last = None;
    let mut flushes = Vec::new();
    for turn in 0..1100 {
        machine.invalidated.borrow_mut().clear();
        let number = turn % 260;
        let mine = spaces[number];
        let tag = load(last.replace(mine), mine);
        assert!(tag != 0 && tag != own, "turn {turn}: tag {tag}");
        if !machine.invalidated.borrow().is_empty() {
            flushes.push(turn);
            // The tag is the same on every CPU.
            let there = machine.on(1, || [load(Some(stays), mine), load(Some(mine), stays)]);
            assert_eq!(there, [tag, own], "turn {turn}");
            owner.fill(None);
        }
        let before = owner[usize::from(tag)].replace(number);
        let is_free = before.is_none() || before == Some(number);
        assert!(is_free, "turn {turn}: tag {tag} is another's");
        // The space that another CPU runs keeps its tag on this CPU, too.
        if turn % 100 == 99 {
            let here = [load(Some(mine), stays), load(Some(stays), mine)];
            assert_eq!(here, [own, tag], "turn {turn}");
        }
    }
    assert_eq!(flushes, FLUSHES);
    assert_eq!(engine.stats().get(Counter::Rollovers), FLUSHES.len() as u64);
}

/// hardware.rs: devices get one invalidation for every change that needs a flush, and the flush waits for them.
#[test]
fn devices_hear_of_every_flush() {
    type End = fn(&mut Batch<'_, S>);
    let ends: [(Purpose, End); 5] = [
        (Purpose::Call, |batch| assert_eq!(batch.finish().count(), 1)),
        (Purpose::Call, |batch| drop(batch.start())),
        (Purpose::Reclaim, |batch| drop(batch.finish())),
        (Purpose::Reclaim, |batch| drop(batch.start())),
        (Purpose::Lazy, |batch| {
            assert!(matches!(batch.finish_deferred(), Outcome::Deferred(_)));
        }),
    ];
    for global in [false, true] {
        for runs in [0, 1, 2] {
            for (number, (purpose, end)) in ends.into_iter().enumerate() {
                let (machine, engine) = world(Machine::new(global), Policy::ALL);
                let x = space(engine, 77);
                (0..runs).for_each(|cpu| machine.on(cpu, || switch(engine, None, x)));
                end(&mut unmapping(engine, purpose, x, 5));
                let told = machine.secondary.take();
                let case = format!("global {global}, end {number}, on {runs} CPUs: {told:?}");
                assert_eq!(told.iter().flatten().collect::<Vec<_>>(), [&77], "{case}");
                assert_eq!(told.last(), Some(&None), "{case}");
                assert!(!x.is_in_batch(), "{case}");
            }
        }
    }
}

/// hardware.rs: a batch that finishes calls `may_wait`, unless it has nothing to flush.
#[test]
fn a_batch_asks_whether_it_may_wait_if_it_has_something_to_flush() {
    let (machine, engine, x) = alone();
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
    machine.asked.set(0);
    batch.hold(Frame(1));
    assert_eq!(batch.finish().count(), 1);
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
        let (machine, engine, x) = both_of(Machine::new(global), policy);
        let mut batch = unmapping(engine, Purpose::Lazy, x, 5);
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
        let policy = Policy { tags: TagPolicy::Slots(slots), ..Policy::ALL };
        let (machine, engine, [x, y]) = two(Machine::default(), policy);
        for (from, to) in [(None, x), (Some(x), y), (Some(y), x), (Some(x), y)] {
            switch(engine, from, to);
        }
        let kept = slots == 2;
        assert_eq!(machine.kept.take(), [false, false, kept, kept]);
    }
}

/// inbox.rs: a CPU to which an interrupt is on its way isn't interrupted for the next request.
#[test]
fn requests_share_an_interrupt() {
    let (machine, engine, x) = both();
    let mut batches = [5, 6].map(|page| unmapping(engine, Purpose::Call, x, page));
    let flights = batches.each_mut().map(Batch::start);
    assert_eq!(machine.interrupts.get(), 1);
    for flight in flights {
        assert_eq!(flight.finish().count(), 1);
    }
    assert_eq!(engine.stats().get(Counter::Merged), 1);
}

/// inbox.rs: requests that meet merge into one, which is everything if it's too long.
#[test]
fn requests_that_meet_are_limited() {
    for (pages, whole) in [(16, false), (17, true)] {
        let (machine, engine, x) = both();
        let mut batches = [100, 200].map(|page| {
            let mut batch: Batch<'_, S> = engine.batch(Purpose::Call);
            batch.changed(x, base(page, pages), Scope::Leaf);
            batch
        });
        let flights = batches.each_mut().map(Batch::start);
        machine.invalidated.borrow_mut().clear();
        drop(flights);
        let flushed = machine.flushed(1, |what| matches!(what, Invalidation::Tag(_)));
        assert_eq!(flushed, whole);
    }
}

/// in_flight.rs: a flush that concerns only this CPU is over at once, and made once.
#[test]
fn a_flush_that_starts_alone_is_over() {
    let (machine, engine, x) = alone();
    machine.invalidated.borrow_mut().clear();
    for _ in 0..3 {
        let mut batch = unmapping(engine, Purpose::Call, x, 5);
        assert_eq!(batch.start().finish().count(), 1);
        assert_eq!(machine.invalidated.take().len(), 1);
        engine.flush_pending(x);
        assert_eq!(machine.invalidated.take(), [], "no flush is left");
    }
}

/// lazy.rs: `catch_up` flushes this CPU's whole loaded tag if the flush clock is a sixteenth of the ledger ahead of it.
#[test]
fn a_cpu_catches_up_after_a_sixteenth_of_the_ledger() {
    for (entries, far) in [(64, 4), (85, 6)] {
        let cpus = [PerCpuData::new(), PerCpuData::new()];
        let (machine, engine) = world_of(Machine::default(), Policy::ALL, cpus, entries);
        let x = space(engine, 1);
        switch(engine, None, x);
        machine.invalidated.borrow_mut().clear();
        for deferral in 1..=far {
            defer(engine, x, 5);
            engine.this_cpu().catch_up();
            let flushed = !machine.invalidated.borrow().is_empty();
            assert_eq!(flushed, deferral == far, "{deferral} of {entries}");
        }
    }
}

/// lazy.rs: a frame whose deferred flush has no stamp yet is flushed with its space.
#[test]
fn a_deferred_flush_that_has_begun_is_flushed_with_its_space() {
    let (machine, engine, x) = both();
    let deferred_flush = DeferredFlush::new();
    deferred_flush.begin();
    let mut batch = unmapping(engine, Purpose::Reclaim, x, 5);
    machine.invalidated.borrow_mut().clear();
    engine.flush_before_refill(&deferred_flush, x);
    assert_eq!(machine.flushed_on(), [0, 1]);
    assert_eq!(batch.finish().count(), 1);
}

/// kernel.rs: kernel entries that aren't global are dropped under every tag, and global ones from all at once.
#[test]
fn other_tags_lose_the_kernel_s_entries_only_where_those_have_tags() {
    for (entries, kept) in [(KernelEntries::Global, true), (KernelEntries::Tagged, false)] {
        let (machine, engine, [x, y]) = two(Machine::default(), Policy::ALL);
        switch(engine, None, x);
        switch(engine, Some(x), y);
        unmap(engine, kernel_space(engine, entries), KERNEL_PAGE);
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
    let (machine, engine, x) = both();
    let kernel = kernel_space(engine, KernelEntries::Global);
    machine.on(1, || engine.this_cpu().enter_lazy());
    let mut batch = unmapping(engine, Purpose::Call, kernel, KERNEL_PAGE);
    batch.table_unlinked(x, one(0), Frame(7));
    assert_eq!(batch.finish().count(), 2);
    let left = machine.on(1, || engine.this_cpu().is_detached());
    assert!(left, "its walker may read the table");
}

/// switch.rs: calls with another space than the loaded one don't change the loaded one.
#[test]
fn what_is_said_of_another_space_changes_nothing() {
    let (machine, engine, [x, y]) = two(Machine::default(), Policy::ALL);
    run_on_both(machine, engine, y);
    let cpu = engine.this_cpu();
    assert!(cpu.runs(y) && !cpu.runs(x));
    cpu.leave(x);
    assert!(cpu.runs(y));
    cpu.enter_lazy();
    assert!(!cpu.resume(x) && !cpu.runs(y) && !cpu.user_access_allowed());
    // A lazy CPU that switches to its loaded space catches up.
    machine.on(1, || unmap(engine, y, 5));
    machine.invalidated.borrow_mut().clear();
    switch(engine, None, y);
    assert!(cpu.runs(y));
    assert_eq!(machine.invalidated.take().len(), 1);
}

/// target.rs: a request for a space that the CPU has left flushes nothing of the space that it runs now.
#[test]
fn requests_for_another_space_are_ignored() {
    for order in [[0, 1], [1, 0]] {
        let (machine, engine, spaces) = two(Machine::default(), Policy::ALL);
        let [old, new] = order.map(|number: usize| spaces[number]);
        run_on_both(machine, engine, old);
        let mut batch = unmapping(engine, Purpose::Call, old, 5);
        let flight = batch.start();
        machine.on(1, || {
            switch(engine, Some(old), new);
            machine.invalidated.borrow_mut().clear();
            engine.this_cpu().mask_interrupts().on_interrupt();
        });
        assert_eq!(machine.invalidated.take(), []);
        assert_eq!(flight.finish().count(), 1);
    }
}

/// flushed.rs: flushed frames that the embedder doesn't take out are dropped, after the flush. Deferred ones come out
/// one by one.
#[test]
fn frames_come_out_one_way_or_the_other() {
    let dropped: &Cell<usize> = leak(Cell::new(0));
    let (_, engine, x) = both();
    let mut batch: Batch<'_, S, FrameArray<CountedFrame<'_>>> = engine.batch(Purpose::Lazy);
    for page in [5, 9] {
        batch.unmapped(x, one(page), CountedFrame(dropped));
    }
    drop(batch.finish());
    assert_eq!(dropped.take(), 2);
    batch.unmapped(x, one(5), CountedFrame(dropped));
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
    engine.this_cpu().refresh(kernel, one(KERNEL_PAGE));
    let done = machine.invalidated.take();
    assert!(matches!(done[..], [(0, Invalidation::Kernel { .. })]));
}

/// user_mode.rs: an idle CPU that calls `enter_user` doesn't count as one that runs a program.
#[test]
fn an_idle_cpu_runs_no_program() {
    let (machine, engine, x) = both();
    machine.on(1, || {
        engine.this_cpu().enter_lazy();
        // SAFETY: nothing is mapped on this machine.
        unsafe { engine.this_cpu().enter_user() };
    });
    unmap(engine, x, 5);
    assert_eq!(machine.interrupts.get(), 0, "an idle CPU is interrupted");
    // An entry flushes nothing if no flush was left to it.
    machine.me.set(1);
    engine.this_cpu().enter_kernel();
    assert!(engine.this_cpu().resume(x));
    machine.invalidated.borrow_mut().clear();
    engine.this_cpu().enter_kernel();
    assert_eq!(machine.invalidated.take(), []);
}

#[test]
fn a_handle_of_masked_interrupts_leaves_them_as_they_were() {
    let (machine, engine, [x, y]) = two(Machine::default(), Policy::ALL);
    run_on_both(machine, engine, x);
    let mut batch = unmapping(engine, Purpose::Call, x, 7);
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

/// batch.rs: if a report panics, its frame is leaked, because a CPU may still use it.
#[test]
fn a_frame_that_is_refused_is_not_given_back_unflushed() {
    type RefusedReport<'b> =
        fn(&mut Batch<'b, S, FrameArray<CountedFrame<'b>>>, S, CountedFrame<'b>);
    /// The call, the number of frames before it, whether its range is flushed with the batch, and a part of the panic.
    type Row<'b> = (RefusedReport<'b>, usize, bool, &'static str);
    const NOTHING: PageRange = base(7, 0);
    let rows: [Row<'_>; 5] = [
        (|b, x, frame| b.unmapped(x, one(7), frame), 64, true, "full"),
        (|b, x, frame| b.table_unlinked(x, one(7), frame), 64, true, "full"),
        (|b, _, frame| b.hold(frame), 64, false, "full"),
        (|b, x, frame| b.unmapped(x, NOTHING, frame), 0, false, "of no page"),
        (|b, x, frame| b.table_unlinked(x, NOTHING, frame), 0, false, "of no page"),
    ];
    for (row, (refused, before, reported, expected)) in rows.into_iter().enumerate() {
        let given_back = leak(Cell::new(0));
        let (machine, engine, x) = both();
        let mut batch = engine.batch(Purpose::Call);
        for _ in 0..before {
            batch.hold(CountedFrame(given_back));
        }
        let why = panic_of(|| refused(&mut batch, x, CountedFrame(given_back)));
        let why = why.expect("a panic");
        assert!(why.contains(expected), "{row}: {why}");
        assert_eq!(given_back.get(), 0, "{row}");
        machine.invalidated.borrow_mut().clear();
        drop(batch);
        assert_eq!(given_back.get(), before, "{row}");
        let flushed = !machine.invalidated.borrow().is_empty();
        assert_eq!(flushed, reported, "{row}");
    }
}

/// batch.rs: if a drop panics instead of flushing, the frames are leaked.
#[test]
#[cfg(debug_assertions)]
fn frames_of_a_batch_that_may_not_flush_as_it_is_dropped_are_leaked() {
    let given_back = Cell::new(0);
    let (machine, engine, x) = both();
    let mut batch = engine.batch(Purpose::Call);
    batch.unmapped(x, one(7), CountedFrame(&given_back));
    machine.invalidated.borrow_mut().clear();
    machine.forbidden.set(true);
    assert!(panic_of(|| drop(batch)).is_some());
    assert_eq!(machine.invalidated.take(), []);
    assert_eq!(given_back.get(), 0, "a CPU may still use it");
}

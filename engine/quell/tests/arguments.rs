//! A caller may pass any argument that the types allow. Calls of the engine with arbitrary arguments, in arbitrary
//! order, on both CPUs, never panic, with the documented exceptions: a batch that is full, a frame behind an empty
//! range, a space that is retired where it runs, a CPU that isn't online. We build tests with overflow checks, so
//! arithmetic counts. The file is long because it contains every call.

use crate::support::any::{self as any_value, entry, scope};
use crate::support::{
    E, Machine, S, both, kernel_space, run_on_both, space, switch, unmapping, world, world_of,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use quell::{
    Batch, Break, CpuId, CpuSet, DeferredFlush, Extent, Features, Frame, FrameArray, KernelEntries,
    Level, Need, Outcome, Page, PageRange, PerCpuData, Policy, Purpose, Request, Scope, Slot,
    Stamp, TagPolicy, Tagging, TlbRules, flush_needed,
};

/// Small enough that ranges touch or overlap.
const FEW: u64 = 20;

fn number() -> impl Strategy<Value = u64> {
    any_value::number(FEW)
}

fn range() -> impl Strategy<Value = PageRange> {
    any_value::range(FEW)
}

/// A report to a batch.
#[derive(Clone, Debug)]
enum Report {
    Changed(PageRange, Scope),
    All(Scope),
    Unmapped(PageRange),
    Table(PageRange),
    Held,
    Unlocked,
}

/// The `from` argument of a switch.
#[derive(Clone, Copy, Debug)]
enum PreviousSpace {
    Loaded,
    Nothing,
    Kernel,
}

/// The way in which a batch ends.
#[derive(Clone, Copy, Debug)]
enum BatchEnd {
    Finish,
    Deferred,
    Drop,
    Start,
    /// Started, polled twice, and dropped.
    Poll,
    List,
    /// Started or deferred, and forgotten.
    Forget(bool),
}

fn report() -> impl Strategy<Value = Report> {
    prop_oneof![
        (range(), scope()).prop_map(|(range, scope)| Report::Changed(range, scope)),
        scope().prop_map(Report::All),
        range().prop_map(Report::Unmapped),
        range().prop_map(Report::Table),
        Just(Report::Held),
        Just(Report::Unlocked),
    ]
}

/// The arguments of a call. Each call uses some of them.
#[derive(Clone, Debug)]
struct Arguments {
    purpose: Purpose,
    reports: Vec<(usize, Report)>,
    end: BatchEnd,
    from: PreviousSpace,
    /// A user space, and any space.
    user: usize,
    space: usize,
    range: PageRange,
    flag: bool,
}

prop_compose! {
    fn arguments(most_reports: usize)(
        purpose in select(&[Purpose::Call, Purpose::Reclaim, Purpose::Migration, Purpose::Lazy][..]),
        reports in vec((0..SPACES, report()), 0..=most_reports),
        end in prop_oneof![
            select(&[BatchEnd::Finish, BatchEnd::Deferred, BatchEnd::Drop][..]),
            select(&[BatchEnd::Start, BatchEnd::Poll, BatchEnd::List][..]),
            any::<bool>().prop_map(BatchEnd::Forget),
        ],
        from in prop_oneof![
            3 => Just(PreviousSpace::Loaded),
            1 => Just(PreviousSpace::Nothing),
            1 => Just(PreviousSpace::Kernel),
        ],
        user in 0..USER,
        space in 0..SPACES,
        range in range(),
        flag in any::<bool>(),
    ) -> Arguments {
        Arguments { purpose, reports, end, from, user, space, range, flag }
    }
}

/// Yields a number of [`CALLS`], and arguments. Batches and switches come more often.
fn call() -> impl Strategy<Value = (usize, Arguments)> {
    let others = prop_oneof![3 => Just(1), 25 => 2..CALLS.len()];
    prop_oneof![9 => (Just(0), arguments(30)), 28 => (others, arguments(0))]
}

type Call = fn(&mut World, Arguments);

/// Every call of the engine on a CPU.
const CALLS: &[Call] = &[
    // Fills and ends a batch. If the flag is set, it has places for one space and one frame.
    |world, with| match with.flag {
        true => world.batch::<1, 1>(with.purpose, &with.reports, with.end),
        false => world.batch::<8, 64>(with.purpose, &with.reports, with.end),
    },
    // Switches, with the right `from`, with none, or with a kernel space.
    |world, with| {
        let (me, to) = (world.me(), world.spaces[with.user]);
        let from = match with.from {
            PreviousSpace::Loaded => Some(world.loaded[me]),
            PreviousSpace::Nothing => None,
            PreviousSpace::Kernel => Some(world.spaces[USER]),
        };
        switch(world.engine, from, to);
        world.loaded[me] = to;
    },
    // Makes a CPU the caller from here on.
    |world, with| world.machine.me.set(with.flag.into()),
    // Retires a space that no CPU runs, and makes another in its place.
    |world, with| {
        let dying = world.spaces[with.user];
        if world.loaded.iter().all(|loaded| loaded.id() != dying.id()) {
            world.engine.retire(dying);
            world.spaces[with.user] = space(world.engine, with.user as u64);
        }
    },
    |world, _| world.engine.this_cpu().enter_lazy(),
    |world, with| world.engine.this_cpu().leave(world.spaces[with.space]),
    |world, with| _ = world.engine.this_cpu().resume(world.spaces[with.space]),
    |world, with| (world.engine.this_cpu()).refresh(world.spaces[with.space], with.range),
    |world, with| world.engine.flush_pending(world.spaces[with.space]),
    |world, with| (world.engine).flush_pending_batches(world.spaces[with.space]),
    |world, with| {
        let space = world.spaces[with.space];
        world.engine.flush_before_refill(&world.deferred_flush, space);
    },
    |world, _| {
        if let Some(stamp) = world.stamp {
            world.engine.flush_until(stamp);
        }
    },
    |world, _| _ = world.engine.flush_before_reuse(&world.deferred_flush),
    |world, _| world.deferred_flush.begin(),
    |world, _| {
        if let Some(stamp) = world.stamp {
            world.deferred_flush.defer(stamp);
        }
    },
    |world, _| world.deferred_flush.clear(),
    |world, _| _ = world.deferred_flush.reinstate(world.engine),
    |world, _| world.engine.flush_deferred(),
    |world, _| world.engine.this_cpu().catch_up(),
    |world, _| {
        let (engine, cpu) = (world.engine, world.engine.this_cpu());
        cpu.poll();
        cpu.mask_interrupts().on_interrupt();
        let _ = (cpu.user_access_allowed(), cpu.is_detached());
        let _ = cpu.runs(world.loaded[world.me()]);
        let _ = (engine.has_deferred(), world.deferred_flush.is_clear());
        let _ = engine.is_flushed(&world.deferred_flush);
        let _ = (engine.stats(), engine.cpu_stats(CpuId(1)));
    },
    |world, _| world.engine.this_cpu().synchronize_text(),
    |world, _| world.engine.this_cpu().quiesce(),
    // Takes the other CPU offline and online again, with its last space or without.
    |world, with| {
        let last = world.loaded[1 - world.me()];
        world.on_other(|world| {
            world.engine.cpu_offline(with.flag.then_some(last));
            world.engine.cpu_online();
        });
    },
    // Uses a stamp and a deferred flush of another engine.
    |world, with| {
        let (stamp, deferred_flush) = &world.foreign;
        world.engine.flush_until(*stamp);
        (world.engine).flush_before_refill(deferred_flush, world.spaces[0]);
        let _ = world.engine.is_flushed(deferred_flush);
        if with.flag {
            let _ = world.engine.flush_before_reuse(deferred_flush);
        }
    },
    // Changes a range of the kernel while the other CPU runs its program undisturbed.
    |world, with| {
        // SAFETY: nothing is accessed on this machine.
        world.on_other(|world| unsafe { world.engine.this_cpu().enter_user() });
        let kernel = USER + usize::from(with.flag);
        let reports = [(kernel, Report::Changed(with.range, Scope::Leaf))];
        world.batch::<2, 0>(Purpose::Call, &reports, BatchEnd::Finish);
        world.on_other(|world| world.engine.this_cpu().enter_kernel());
    },
];

prop_compose! {
    /// Yields any policy: each mechanism and each of its parts on or off.
    fn policy()(
        [batch, extents, lazy_unmap, concurrent, asynchronous, inline_requests] in any::<[bool; 6]>(),
        cap_bytes in proptest::option::of(number()),
        tags in prop_oneof![
            Just(TagPolicy::Off),
            any::<u16>().prop_map(TagPolicy::Slots),
            Just(TagPolicy::All),
        ],
    ) -> Policy {
        Policy {
            batch, extents, cap_bytes, tags, lazy_unmap, concurrent, asynchronous, inline_requests,
        }
    }
}

/// More spaces than a batch has places for, and two kernel spaces.
const USER: usize = 9;
const SPACES: usize = USER + 2;

struct World {
    machine: &'static Machine,
    engine: E,
    spaces: Vec<S>,
    loaded: [S; 2],
    deferred_flush: DeferredFlush<Machine>,
    stamp: Option<Stamp>,
    /// A late stamp of another engine, and a frame whose flush is deferred as of it.
    foreign: (Stamp, DeferredFlush<Machine>),
}

/// The kind of a machine: global and untagged, tags, `full_above`, the slots of each CPU, ledger entries.
type Kind = ([bool; 2], u16, u64, [Option<usize>; 2], usize);

fn kind() -> impl Strategy<Value = Kind> {
    let slots = || proptest::option::of(1..20usize);
    let tags = prop_oneof![0..4u16, any::<u16>()];
    let most = prop_oneof![0..4u64, number()];
    (any::<[bool; 2]>(), tags, most, [slots(), slots()], 0..6usize)
}

/// Makes a stamp that no ledger here returns, and a frame whose flush is deferred as of it.
fn foreign() -> (Stamp, DeferredFlush<Machine>) {
    let (_, engine, x) = both();
    let stamps =
        (0..50).filter_map(|_| match unmapping(engine, Purpose::Lazy, x, 1).finish_deferred() {
            Outcome::Deferred(deferred) => Some(deferred.stamp()),
            Outcome::Flushed(_) => None,
        });
    let stamp = stamps.last().expect("a ledger");
    let deferred_flush = DeferredFlush::new();
    deferred_flush.defer(stamp);
    (stamp, deferred_flush)
}

impl World {
    fn new(([global, untagged], tags, full_above, slots, entries): Kind, policy: Policy) -> World {
        let hardware = Machine { global, untagged, tags, full_above, ..Machine::default() };
        let cpus = slots.map(|slots| match slots {
            None => PerCpuData::new(),
            Some(slots) => {
                PerCpuData::with_slots(Vec::leak((0..slots).map(|_| Slot::new()).collect()))
            }
        });
        let (machine, engine) = world_of(hardware, policy, cpus, entries);
        let mut spaces: Vec<S> = (0..USER as u64).map(|root| space(engine, root)).collect();
        let kinds = [KernelEntries::Global, KernelEntries::Tagged];
        spaces.extend(kinds.map(|entries| kernel_space(engine, entries)));
        run_on_both(machine, engine, spaces[0]);
        World {
            machine,
            engine,
            loaded: [spaces[0]; 2],
            spaces,
            deferred_flush: DeferredFlush::new(),
            stamp: None,
            foreign: foreign(),
        }
    }

    fn batch<const N: usize, const FRAMES: usize>(
        &mut self,
        purpose: Purpose,
        reports: &[(usize, Report)],
        way: BatchEnd,
    ) {
        let engine = self.engine;
        let mut batch: Batch<'_, S, FrameArray<Frame, FRAMES>, N> =
            engine.batch_of_spaces(purpose, FrameArray::new());
        for (of, report) in reports {
            let space = self.spaces[*of];
            if batch.is_full() {
                batch.finish().for_each(drop);
            }
            match report {
                Report::Changed(range, scope) => batch.changed(space, *range, *scope),
                Report::All(scope) => batch.changed_all(space, *scope),
                Report::Unmapped(PageRange { pages: 0, .. })
                | Report::Table(PageRange { pages: 0, .. }) => {}
                Report::Unmapped(range) => batch.unmapped(space, *range, Frame(range.pages)),
                Report::Table(range) => batch.table_unlinked(space, *range, Frame(1)),
                Report::Held => batch.hold(Frame(u64::MAX)),
                Report::Unlocked => batch.unlocked(),
            }
        }
        match way {
            BatchEnd::Finish => batch.finish().for_each(drop),
            BatchEnd::Drop => drop(batch),
            BatchEnd::List => drop(batch.finish_list()),
            BatchEnd::Start => batch.start().finish().for_each(drop),
            BatchEnd::Poll => {
                let mut flight = batch.start();
                let _ = (flight.is_done(), flight.is_done());
            }
            BatchEnd::Deferred => {
                if let Outcome::Deferred(deferred) = batch.finish_deferred() {
                    self.stamp = Some(deferred.stamp());
                }
            }
            BatchEnd::Forget(true) => std::mem::forget(batch.start()),
            BatchEnd::Forget(false) => std::mem::forget(batch.finish_deferred()),
        }
    }

    /// Returns the number of the calling CPU.
    fn me(&self) -> usize {
        self.machine.me.get().into()
    }

    /// Runs a call on the other CPU.
    fn on_other(&mut self, call: impl FnOnce(&mut World)) {
        let me = self.machine.me.get();
        self.machine.me.set(1 - me);
        call(self);
        self.machine.me.set(me);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_call_panics(kind in kind(), policy in policy(), calls in vec(call(), 1..40)) {
        let mut world = World::new(kind, policy);
        for (call, arguments) in calls {
            CALLS[call](&mut world, arguments);
        }
    }

    #[test]
    fn no_value_panics(
        (one, other) in (range(), range()),
        (a, b) in (number(), number()),
        (cpus, bits, count, full_above, broadcast) in (any::<usize>(), any::<u8>(), any::<u16>(), any::<u64>(), any::<bool>()),
        scope in scope(),
    ) {
        let (page, frame) = (Page(a), Frame(b));
        let _ = (page.address(), page.plus(b), frame.address(), frame.plus(a));
        let _ = (Page::containing(a), Frame::containing(b), Extent { first: frame, frames: a }.bytes());
        let _ = (one.end(), one.strides(), one.contains(page), one.names(page, b));
        one.each().take(3).for_each(drop);
        let mut request = Request::range(one, scope).merge(Request::range(other, Scope::Leaf));
        let _ = (request.strides(), request.covers(page), request.scope());
        request = request.merge(request);
        // Addresses have 57 bits; a range in the gap between the two halves covers nothing.
        let exists = one.start.0 < 1 << 44;
        prop_assert!(!exists || one.pages == 0 || request.covers(one.start));
        for tagging in [Tagging::None, Tagging::PerCpu { count }, Tagging::Global { bits }] {
            if let Err(why) = (Features { tagging, broadcast, full_above }).check(cpus) {
                prop_assert!(!why.to_string().is_empty());
            }
        }
        let level = Level(bits);
        let _ = (level.size(), level.pages(), level.index(page), level.base(page));
        let mut set: CpuSet = [CpuId(count % 1024)].into_iter().collect();
        set.remove(CpuId(count));
        let _ = (set.contains(CpuId(count)), set.len(), set.is_empty(), set.iter().count());
        // Counters may overflow when we add them up often.
        let (_, engine) = world(Machine::default(), Policy::ALL);
        space(engine, a);
        let mut stats = engine.stats();
        for _ in 0..66 {
            let same = stats;
            stats.add(&same);
            let _ = stats.since(&engine.stats());
        }
    }

    #[test]
    fn no_entry_panics(old in entry(FEW), new in entry(FEW), bits in any::<[bool; 4]>()) {
        let breaks = [Break::Never, Break::Size, Break::Translation][usize::from(bits[0]) + usize::from(bits[1])];
        let rules = TlbRules {
            keeps_refused: bits[2],
            keeps_absent: bits[3],
            user_excludes_kernel: bits[0],
            break_before_make: breaks,
        };
        let need = flush_needed(rules, &old, &new);
        prop_assert!(old.present || !matches!(need, Need::Flush(_)));
    }
}

//! A caller may pass any argument that the types allow. Calls of the engine with arbitrary arguments, in arbitrary
//! order, on both CPUs, never panic, with the documented exceptions: a batch that is full, a frame behind an empty
//! range, a space that is retired where it runs, a CPU that isn't online. We build tests with overflow checks, so
//! arithmetic counts. The file is long because it contains every call.

use crate::support::any::{self as any_value, entry, scope};
use crate::support::{E, Machine, S, run_on_both, space, world, world_of};
use proptest::prelude::*;
use quell::{
    Batch, Break, CpuId, CpuSet, DeferredFlush, Extent, Features, Frame, InPlace, KernelEntries,
    Level, Need, Outcome, Page, PageRange, PerCpu, Policy, Purpose, Request, Scope, Slot, Stamp,
    TagPolicy, Tagging, TlbRules, flush_needed,
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

#[derive(Clone, Debug)]
enum Call {
    /// Makes this CPU the caller from here on.
    On(u16),
    /// Fills and ends a batch. With `true` it has places for one space and one frame.
    Batch(Purpose, Vec<(usize, Report)>, BatchEnd, bool),
    /// Retires a space that no CPU runs, and makes another in its place.
    Retire(usize),
    /// Switches, with the right `from`, with none, or with a kernel space.
    SwitchTo(usize, From),
    EnterLazy,
    Leave(usize),
    Resume(usize),
    Refresh(usize, PageRange),
    FlushPending(usize),
    FlushPendingBatches(usize),
    FlushBeforeRefill(usize),
    FlushUntil,
    Reuse,
    Begin,
    Defer,
    Clear,
    Reinstate,
    PayAll,
    CatchUp,
    Ask,
    Synchronize,
    Quiesce,
    /// Takes the other CPU offline and online again, with its last space or without.
    HotplugOther(bool),
    /// Uses a stamp and a deferred flush of another engine.
    Foreign(bool),
    /// Changes a range of the kernel while the other CPU runs its program undisturbed.
    EnterOther(usize, PageRange),
}

/// The `from` argument of a switch.
#[derive(Clone, Copy, Debug)]
enum From {
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

fn call() -> impl Strategy<Value = Call> {
    let purpose = prop_oneof![
        Just(Purpose::Call),
        Just(Purpose::Reclaim),
        Just(Purpose::Migration),
        Just(Purpose::Lazy)
    ];
    let way = prop_oneof![
        Just(BatchEnd::Finish),
        Just(BatchEnd::Deferred),
        Just(BatchEnd::Drop),
        Just(BatchEnd::Start),
        Just(BatchEnd::Poll),
        Just(BatchEnd::List),
        any::<bool>().prop_map(BatchEnd::Forget)
    ];
    let from =
        prop_oneof![3 => Just(From::Loaded), 1 => Just(From::Nothing), 1 => Just(From::Kernel)];
    let reports = proptest::collection::vec((0..SPACES, report()), 0..30);
    let of = 0..SPACES;
    prop_oneof![
        2 => (0..2u16).prop_map(Call::On),
        9 => (purpose, reports, way, any::<bool>())
            .prop_map(|(purpose, reports, way, small)| Call::Batch(purpose, reports, way, small)),
        1 => (0..USER).prop_map(Call::Retire),
        3 => (0..USER, from).prop_map(|(to, from)| Call::SwitchTo(to, from)),
        1 => Just(Call::EnterLazy),
        1 => of.clone().prop_map(Call::Leave),
        1 => of.clone().prop_map(Call::Resume),
        1 => (of.clone(), range()).prop_map(|(space, range)| Call::Refresh(space, range)),
        1 => of.clone().prop_map(Call::FlushPending),
        1 => of.clone().prop_map(Call::FlushPendingBatches),
        1 => of.prop_map(Call::FlushBeforeRefill),
        1 => Just(Call::FlushUntil),
        1 => Just(Call::Reuse),
        1 => Just(Call::Begin),
        1 => Just(Call::Defer),
        1 => Just(Call::Clear),
        1 => Just(Call::Reinstate),
        1 => Just(Call::PayAll),
        1 => Just(Call::CatchUp),
        1 => Just(Call::Ask),
        1 => Just(Call::Synchronize),
        1 => Just(Call::Quiesce),
        1 => any::<bool>().prop_map(Call::HotplugOther),
        1 => any::<bool>().prop_map(Call::Foreign),
        1 => (USER..SPACES, range()).prop_map(|(space, range)| Call::EnterOther(space, range)),
    ]
}

/// Yields any policy: each mechanism and each of its parts on or off.
fn policy() -> impl Strategy<Value = Policy> {
    let tags = prop_oneof![
        Just(TagPolicy::Off),
        any::<u16>().prop_map(TagPolicy::Slots),
        Just(TagPolicy::All)
    ];
    (any::<[bool; 6]>(), proptest::option::of(number()), tags).prop_map(
        |(
            [
                batch,
                extents,
                lazy_unmap,
                concurrent,
                asynchronous,
                inline_requests,
            ],
            cap_bytes,
            tags,
        )| {
            Policy {
                batch,
                extents,
                cap_bytes,
                tags,
                lazy_unmap,
                concurrent,
                asynchronous,
                inline_requests,
            }
        },
    )
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
    (
        any::<[bool; 2]>(),
        tags,
        most,
        [slots(), slots()],
        0..6usize,
    )
}

/// Makes a stamp that no ledger here returns, and a frame whose flush is deferred as of it.
fn foreign() -> (Stamp, DeferredFlush<Machine>) {
    let (machine, engine) = world(Machine::default(), Policy::ALL);
    let x = space(engine, 1);
    run_on_both(machine, engine, x);
    let mut batch: Batch<'_, S> = engine.batch(Purpose::Lazy);
    let stamps = (0..50).filter_map(|_| {
        batch.changed(x, PageRange::base(Page(1), 1), Scope::Leaf);
        match batch.finish_deferred() {
            Outcome::Deferred(deferred) => Some(deferred.stamp()),
            Outcome::Flushed(_) => None,
        }
    });
    let stamp = stamps.last().expect("a ledger");
    let deferred_flush = DeferredFlush::new();
    deferred_flush.defer(stamp);
    (stamp, deferred_flush)
}

impl World {
    fn new(([global, untagged], tags, full_above, slots, entries): Kind, policy: Policy) -> World {
        let hardware = Machine {
            global,
            untagged,
            tags,
            full_above,
            ..Machine::default()
        };
        let cpus = slots.map(|slots| match slots {
            None => PerCpu::new(),
            Some(slots) => PerCpu::with_slots(Vec::leak((0..slots).map(|_| Slot::new()).collect())),
        });
        let (machine, engine) = world_of(hardware, policy, cpus, entries);
        let mut spaces: Vec<S> = (0..USER as u64).map(|root| space(engine, root)).collect();
        spaces.extend(
            [KernelEntries::Global, KernelEntries::Tagged].map(|entries| {
                // SAFETY: a root is a number on this machine.
                crate::support::leak(unsafe { engine.new_kernel_space(Frame(99), entries) })
            }),
        );
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
        let mut batch: Batch<'_, S, InPlace<Frame, FRAMES>, N> =
            engine.batch_of_spaces(purpose, InPlace::new());
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

    fn call(&mut self, call: &Call) {
        let engine = self.engine;
        let me = usize::from(self.machine.me.get());
        match call {
            Call::On(cpu) => self.machine.me.set(*cpu),
            Call::Batch(purpose, reports, way, false) => {
                self.batch::<8, 64>(*purpose, reports, *way);
            }
            Call::Batch(purpose, reports, way, true) => {
                self.batch::<1, 1>(*purpose, reports, *way);
            }
            Call::Retire(of) => {
                if self
                    .loaded
                    .iter()
                    .all(|loaded| loaded.id() != self.spaces[*of].id())
                {
                    engine.retire(self.spaces[*of]);
                    self.spaces[*of] = space(engine, *of as u64);
                }
            }
            Call::SwitchTo(to, from) => {
                let from = match from {
                    From::Loaded => Some(self.loaded[me]),
                    From::Nothing => None,
                    From::Kernel => Some(self.spaces[USER]),
                };
                engine
                    .this_cpu()
                    .mask_interrupts()
                    .switch(from, self.spaces[*to]);
                self.loaded[me] = self.spaces[*to];
            }
            Call::EnterLazy => engine.this_cpu().enter_lazy(),
            Call::Leave(space) => engine.this_cpu().leave(self.spaces[*space]),
            Call::Resume(space) => _ = engine.this_cpu().resume(self.spaces[*space]),
            Call::Refresh(space, range) => engine.this_cpu().refresh(self.spaces[*space], *range),
            Call::FlushPending(space) => engine.flush_pending(self.spaces[*space]),
            Call::FlushPendingBatches(space) => engine.flush_pending_batches(self.spaces[*space]),
            Call::FlushBeforeRefill(space) => {
                engine.flush_before_refill(&self.deferred_flush, self.spaces[*space])
            }
            Call::FlushUntil => self
                .stamp
                .into_iter()
                .for_each(|stamp| engine.flush_until(stamp)),
            Call::Reuse => _ = engine.flush_before_reuse(&self.deferred_flush),
            Call::Begin => self.deferred_flush.begin(),
            Call::Defer => self
                .stamp
                .into_iter()
                .for_each(|stamp| self.deferred_flush.defer(stamp)),
            Call::Clear => self.deferred_flush.clear(),
            Call::Reinstate => _ = self.deferred_flush.reinstate(engine),
            Call::PayAll => engine.flush_deferred(),
            Call::CatchUp => engine.this_cpu().catch_up(),
            Call::Ask => {
                engine.this_cpu().poll();
                engine.this_cpu().mask_interrupts().on_interrupt();
                let answers = [
                    engine.this_cpu().user_access_allowed(),
                    engine.this_cpu().is_detached(),
                    engine.has_deferred(),
                    engine.is_flushed(&self.deferred_flush),
                    self.deferred_flush.is_clear(),
                    engine.this_cpu().runs(self.loaded[me]),
                ];
                let _ = (answers, engine.stats(), engine.cpu_stats(CpuId(1)));
            }
            Call::Synchronize => engine.this_cpu().synchronize_text(),
            Call::Quiesce => engine.this_cpu().quiesce(),
            Call::HotplugOther(says) => {
                self.machine.me.set(1 - me as u16);
                engine.cpu_offline(says.then_some(self.loaded[1 - me]));
                engine.cpu_online();
                self.machine.me.set(me as u16);
            }
            Call::Foreign(reuses) => {
                let (stamp, deferred_flush) = &self.foreign;
                engine.flush_until(*stamp);
                engine.flush_before_refill(deferred_flush, self.spaces[0]);
                let _ = (
                    engine.is_flushed(deferred_flush),
                    reuses.then(|| engine.flush_before_reuse(deferred_flush)),
                );
            }
            Call::EnterOther(space, range) => {
                self.machine.me.set(1 - me as u16);
                // SAFETY: nothing is accessed on this machine.
                unsafe { engine.this_cpu().enter_user() };
                self.machine.me.set(me as u16);
                let reports = [(*space, Report::Changed(*range, Scope::Leaf))];
                self.batch::<2, 0>(Purpose::Call, &reports, BatchEnd::Finish);
                self.machine.me.set(1 - me as u16);
                engine.this_cpu().enter_kernel();
                self.machine.me.set(me as u16);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_call_panics(kind in kind(), policy in policy(), calls in proptest::collection::vec(call(), 1..40)) {
        let mut world = World::new(kind, policy);
        for call in &calls {
            world.call(call);
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

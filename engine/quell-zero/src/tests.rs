//! Tests every promise of this crate on a machine that records the zeroing.

use crate::{
    Budget, Caches, Chooser, ClearPolicy, Clearer, PhysicalMemory, Plan, Sample, Strategy,
    StrategySet, Temperature,
};
use proptest::prelude::{Just, prop_assert, prop_assert_eq, prop_oneof, proptest};
use quell::PAGE_BYTES;
use quell::{Extent, Frame};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::vec::Vec;

mod plan;
mod pool;

/// A machine that only zeroes, and records the extents.
#[derive(Default)]
struct Recorder {
    zeroed: Mutex<Vec<(Extent, Strategy)>>,
}

impl Recorder {
    fn calls(&self) -> Vec<(Extent, Strategy)> {
        self.zeroed.lock().unwrap().clone()
    }

    /// Returns the number of times that each frame was zeroed.
    fn times(&self) -> HashMap<u64, u32> {
        let mut times = HashMap::new();
        for (extent, _) in self.calls() {
            for frame in extent.first.0..extent.first.0 + extent.frames {
                *times.entry(frame).or_default() += 1;
            }
        }
        times
    }

    /// Returns whether exactly the frames of `extent` were zeroed, each once.
    fn zeroed_once(&self, extent: Extent) -> bool {
        let times = self.times();
        times.len() as u64 == extent.frames
            && (extent.first.0..extent.first.0 + extent.frames).all(|f| times.get(&f) == Some(&1))
    }
}

impl PhysicalMemory for Recorder {
    unsafe fn zero(&self, extent: Extent, strategy: Strategy) {
        self.zeroed.lock().unwrap().push((extent, strategy));
    }
}

fn extent(first: u64, frames: u64) -> Extent {
    Extent { first: Frame(first), frames }
}

/// Returns the set of all strategies.
fn all() -> StrategySet {
    Strategy::ALL.iter().fold(StrategySet::STORES, |set, &strategy| set.with(strategy))
}

/// Returns a plan with a different strategy for each temperature.
fn two_tone() -> Plan {
    let [hot, bypassing] =
        [(Temperature::Hot, Strategy::RepStos), (Temperature::Bypassing, Strategy::Clzero)]
            .map(|(temperature, strategy)| Sample { strategy, temperature, bytes: 4096, ticks: 1 });
    // Longer runs follow, because the plan before has one strategy for all lengths.
    let chooser = Chooser { available: all(), ..Chooser::default() };
    chooser.calibrated(&Plan::default(), &[hot, bypassing])
}

/// Checks all promises of [`Clearer::extent`] for one case.
fn check_clear(
    whole: Extent,
    fault: Option<u64>,
    policy: &ClearPolicy,
) -> Result<(), &'static str> {
    let machine = Recorder::default();
    let mut preempted = Vec::new();
    let clearer = Clearer::new(&machine, policy);
    let preempt = || preempted.push(machine.calls().len());
    // SAFETY: no memory is behind any frame.
    let done = unsafe { clearer.extent(whole, fault.map(Frame), preempt) };
    let calls = machine.calls();
    if !machine.zeroed_once(whole) {
        return Err("not every byte was zeroed exactly once");
    }
    if done.pieces != calls.len() as u64 || done.hot_bytes + done.bypassing_bytes != whole.bytes() {
        return Err("the statistics do not add up");
    }
    let cap = match (policy.whole_extents, policy.cap_bytes) {
        (false, _) => PAGE_BYTES,
        (true, cap) => cap.unwrap_or(u64::MAX).max(PAGE_BYTES),
    };
    if calls.iter().any(|(e, _)| e.bytes() > cap) {
        return Err("a piece exceeds the cap");
    }
    if preempted != (1..calls.len()).collect::<Vec<_>>() {
        return Err("no preemption point between two pieces");
    }
    let inside = fault.filter(|&f| whole.first.0 <= f && f < whole.first.0 + whole.frames);
    // If whole extents are cleared and there's no cap, there are at most three pieces.
    if policy.whole_extents && policy.cap_bytes.is_none() && calls.len() > 3 {
        return Err("an uncapped extent was cut up");
    }
    if let Some(f) = inside {
        let near = |e: &Extent| {
            e.first.0 + policy.neighbours.min(f) >= f
                && e.first.0 + e.frames <= f + policy.neighbours + 1
        };
        let hot: Vec<bool> = calls.iter().map(|(e, _)| near(e)).collect();
        if hot.windows(2).any(|w| w[0] && !w[1]) {
            return Err("the faulting page's neighbourhood was not cleared last");
        }
        for (e, strategy) in &calls {
            let temperature = if near(e) { Temperature::Hot } else { Temperature::Bypassing };
            if *strategy != policy.plan.strategy(temperature, e.bytes()) {
                return Err("a piece was cleared at the wrong temperature");
            }
        }
    } else if calls
        .iter()
        .any(|(e, s)| *s != policy.plan.strategy(Temperature::Bypassing, e.bytes()))
    {
        return Err("without a fault something was cleared hot");
    }
    Ok(())
}

proptest! {
    #[test]
    fn every_byte_once_capped_and_the_fault_last(
        first in 0u64..5000,
        frames in 0u64..2000,
        fault in proptest::option::of(0u64..8000),
        whole_extents: bool,
        cap_bytes in proptest::option::of(0u64..3_000_000),
        neighbours in prop_oneof![0u64..6, Just(u64::MAX - 8000)],
    ) {
        let policy = ClearPolicy { whole_extents, cap_bytes, neighbours, plan: two_tone() };
        prop_assert_eq!(check_clear(extent(first, frames), fault, &policy), Ok(()));
    }

    /// No arguments that the types allow cause a panic. We build tests with overflow checks.
    #[test]
    fn no_argument_panics(
        (first, frames, near) in (number(), number(), number()),
        fault: bool,
        whole_extents: bool,
        cap_bytes in proptest::option::of(number()),
        neighbours in number(),
        (rate, burst, now, later) in (number(), number(), number(), number()),
        samples in proptest::collection::vec((number(), number(), 0..Strategy::ALL.len(), proptest::bool::ANY), 0..12),
    ) {
        let extent = extent(first, frames);
        let fault = fault.then_some(Frame(first.wrapping_add(near)));
        let samples: Vec<_> = samples.into_iter().map(|(bytes, ticks, strategy, hot)| Sample {
            strategy: Strategy::ALL[strategy],
            temperature: if hot { Temperature::Hot } else { Temperature::Bypassing },
            bytes,
            ticks,
        }).collect();
        let caches = Caches { l1d: near, l2: neighbours, last: frames };
        let chooser = Chooser { available: all(), caches };
        let plan = chooser.calibrated(&chooser.defaults(), &samples);
        let policy = ClearPolicy { whole_extents, cap_bytes, neighbours, plan };
        let pieces: Vec<_> = policy.pieces(extent, fault).take(20).collect();
        let whole = pieces.iter().all(|piece| extent.frames > piece.extent.first.0.wrapping_sub(first));
        prop_assert!(whole, "{pieces:?}");
        if policy.pieces(extent, fault).take(2000).count() < 2000 {
            let recorder = Recorder::default();
            // SAFETY: no memory is behind any frame.
            let done = unsafe { Clearer::new(&recorder, &policy).extent(extent, fault, || {}) };
            prop_assert_eq!(done.pieces, recorder.calls().len() as u64);
        }
        let budget = Budget::<AtomicU64>::new(rate, burst, now);
        let _ = (budget.try_spend(frames, now), budget.try_spend(near, later));
    }
}

/// Returns a strategy for numbers, including those at which arithmetic overflows.
fn number() -> impl proptest::strategy::Strategy<Value = u64> {
    use proptest::prelude::Strategy as _;
    prop_oneof![
        4 => 0..3000u64,
        2 => proptest::num::u64::ANY,
        2 => (0..64u32, -2..3i64).prop_map(|(bit, by)| (1u64 << bit).wrapping_add_signed(by)),
    ]
}

#[test]
fn presets_are_the_published_ones() {
    let one_gb = extent(0, 1 << 18);
    let count = |policy: ClearPolicy| policy.pieces(one_gb, None).count();
    let plan = Plan::uniform(Strategy::RepStos);
    assert_eq!(count(ClearPolicy::cooperative(plan)), 32);
    assert_eq!(count(ClearPolicy::preemptible(plan)), 1);
    assert_eq!(count(ClearPolicy::page_by_page(plan)), 1 << 18);
    let s1 = ClearPolicy { cap_bytes: Some(ClearPolicy::S1_CAP), ..ClearPolicy::cooperative(plan) };
    assert_eq!(count(s1), 128);
    assert_eq!(ClearPolicy::preemptible(plan).cap_bytes, None);
    // Linux keeps two neighbours on either side.
    let large = ClearPolicy::cooperative(plan);
    let hot = large.pieces(extent(0, 512), Some(Frame(9))).last().unwrap();
    assert_eq!(hot.extent, extent(7, 5));
}

/// We use the order of the kernel on which zeroing by extents was measured: in a 2 MB page, the pages after the fault are
/// cleared from the end.
#[test]
fn page_by_page_a_large_page_is_cleared_towards_the_fault() {
    let first = |policy: ClearPolicy, frames| -> Vec<u64> {
        let pieces = policy.pieces(extent(512, frames), Some(Frame(700)));
        pieces.map(|piece| piece.extent.first.0).collect()
    };
    let plan = Plan::uniform(Strategy::RepStos);
    let page_by_page = ClearPolicy::page_by_page(plan);
    let towards: Vec<u64> = (512..698).chain((703..1024).rev()).chain(698..703).collect();
    assert_eq!(first(page_by_page, 512), towards);
    // A longer extent is cleared from its beginning, for example the smallest, of 513 frames, and one of 1 GB. So are
    // pieces of extents.
    let upwards: Vec<u64> = (512..698).chain(703..1025).chain(698..703).collect();
    assert_eq!(first(page_by_page, 513), upwards);
    let capped =
        ClearPolicy { cap_bytes: Some(100 * PAGE_BYTES), ..ClearPolicy::cooperative(plan) };
    assert_eq!(
        first(capped, 512),
        [512, 612, 703, 803, 903, 1003, 698],
        "a cap of a hundred pages"
    );
}

/// Each piece is cleared by its own length and temperature, and counted accordingly.
#[test]
fn a_piece_is_cleared_by_its_own_length() {
    let available = StrategySet::STORES.with(Strategy::RepStos).with(Strategy::Clzero);
    let chooser = Chooser { available, ..Chooser::default() };
    // The plan clears through the caches below 16 KB, and around them from there on.
    let policy = ClearPolicy {
        cap_bytes: Some(4 * PAGE_BYTES),
        ..ClearPolicy::cooperative(chooser.defaults())
    };
    let machine = Recorder::default();
    let clearer = Clearer::new(&machine, &policy);
    let (_, done) = clearer.frame(pool::Run(extent(100, 13)), Some(Frame(107)), || {});
    let (around, through) = (Strategy::Clzero, Strategy::RepStos);
    assert_eq!(
        machine.calls(),
        [
            (extent(100, 4), around),
            (extent(104, 1), through),
            (extent(110, 3), through),
            (extent(105, 4), through),
            (extent(109, 1), through),
        ]
    );
    assert_eq!(done.pieces, 5);
    assert_eq!(done.hot_bytes, 5 * PAGE_BYTES);
    assert_eq!(done.bypassing_bytes, 8 * PAGE_BYTES);
}

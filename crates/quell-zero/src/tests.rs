//! Every promise of this module against a machine that counts what is zeroed, and every mutant
//! against the test that must notice it.

use super::*;
use crate::rules::zero;
use proptest::prelude::{Just, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::strategy::Strategy as Generator;
use quell::addr::PAGE_BYTES;
use quell::{Extent, Frame, Rule, Rules};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::vec::Vec;

/// A machine that can do nothing but zero, and writes down what it zeroed.
#[derive(Default)]
struct Recorder {
    zeroed: Mutex<Vec<(Extent, Strategy)>>,
}

impl Recorder {
    fn calls(&self) -> Vec<(Extent, Strategy)> {
        self.zeroed.lock().unwrap().clone()
    }

    /// How often each frame was zeroed.
    fn times(&self) -> HashMap<u64, u32> {
        let mut times = HashMap::new();
        for (extent, _) in self.calls() {
            for frame in extent.first.0..extent.first.0 + extent.frames {
                *times.entry(frame).or_default() += 1;
            }
        }
        times
    }

    /// Whether exactly the frames of `extent` were zeroed, each once.
    fn zeroed_once(&self, extent: Extent) -> bool {
        let times = self.times();
        times.len() as u64 == extent.frames
            && (extent.first.0..extent.first.0 + extent.frames).all(|f| times.get(&f) == Some(&1))
    }
}

impl Clear for Recorder {
    fn zero(&self, extent: Extent, strategy: Strategy) {
        self.zeroed.lock().unwrap().push((extent, strategy));
    }
}

/// All rules but one.
#[derive(Clone, Copy)]
struct But(Option<&'static Rule>);

impl Rules for But {
    fn keeps(&self, rule: &'static Rule) -> bool {
        self.0 != Some(rule)
    }
}

fn extent(first: u64, frames: u64) -> Extent {
    Extent {
        first: Frame(first),
        frames,
    }
}

/// A plan whose choice for any length tells the temperatures apart.
fn two_tone() -> Plan {
    let available = Available::STORES
        .with(Strategy::RepStos)
        .with(Strategy::Clzero);
    let samples: Vec<Sample> = (12..=30)
        .flat_map(|log| {
            [
                (Temperature::Hot, Strategy::RepStos),
                (Temperature::Bypassing, Strategy::Clzero),
            ]
            .map(|(temperature, strategy)| Sample {
                strategy,
                temperature,
                bytes: 1 << log,
                ticks: 1,
            })
        })
        .collect();
    Chooser {
        available,
        ..Chooser::default()
    }
    .calibrated(&Plan::default(), &samples)
}

/// Everything [`Clearer::extent`] promises, checked for one case, perhaps with a rule not kept.
fn check_clear(
    mutant: Option<&'static Rule>,
    whole: Extent,
    fault: Option<u64>,
    policy: &ClearPolicy,
) -> Result<(), &'static str> {
    let machine = Recorder::default();
    let mut preempted = Vec::new();
    let clearer = Clearer::new(&machine, policy).with_rules(But(mutant));
    let done = clearer.extent(whole, fault.map(Frame), || {
        preempted.push(machine.calls().len());
    });
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
    // Where S1 is on and nothing caps the pieces, there are at most three.
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
            let temperature = if near(e) {
                Temperature::Hot
            } else {
                Temperature::Bypassing
            };
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
        prop_assert_eq!(check_clear(None, extent(first, frames), fault, &policy), Ok(()));
    }
}

#[test]
fn each_mutant_of_clearing_is_noticed() {
    let large = extent(512, 512);
    let policy = ClearPolicy {
        cap_bytes: Some(256 << 10),
        ..ClearPolicy::cooperative(two_tone())
    };
    assert_eq!(check_clear(None, large, Some(700), &policy), Ok(()));
    for (mutant, complaint) in [
        (&zero::ZeroSkipsTail, "exactly once"),
        (&zero::ZeroSkipsFaultingPage, "exactly once"),
        (&zero::ZeroFaultingPageFirst, "cleared last"),
        (&zero::ZeroIgnoresCap, "exceeds the cap"),
        (&zero::ZeroHoldsCpu, "preemption point"),
    ] {
        let found = check_clear(Some(mutant), large, Some(700), &policy);
        assert!(
            found.is_err_and(|e| e.contains(complaint)),
            "{}: {found:?}",
            mutant.name
        );
    }
}

#[test]
fn presets_are_the_published_ones() {
    let one_gb = extent(0, 1 << 18);
    let count = |policy: ClearPolicy| policy.pieces(one_gb, None).count();
    let plan = Plan::uniform(Strategy::RepStos);
    assert_eq!(count(ClearPolicy::cooperative(plan)), 32);
    assert_eq!(count(ClearPolicy::preemptible(plan)), 1);
    assert_eq!(count(ClearPolicy::page_by_page(plan)), 1 << 18);
    let s1 = ClearPolicy {
        cap_bytes: Some(ClearPolicy::S1_CAP),
        ..ClearPolicy::cooperative(plan)
    };
    assert_eq!(count(s1), 128);
}

#[test]
fn a_base_page_fault_is_one_hot_piece() {
    let policy = ClearPolicy::preemptible(two_tone());
    let pieces: Vec<Piece> = policy.pieces(extent(9, 1), Some(Frame(9))).collect();
    assert_eq!(pieces.len(), 1);
    assert_eq!(pieces[0].temperature, Temperature::Hot);
}

#[test]
fn available_sets_keep_stores_and_drop_vectors() {
    let all = Strategy::ALL
        .iter()
        .fold(Available::STORES, |set, &s| set.with(s));
    assert_eq!(all.iter().count(), Strategy::ALL.len());
    assert!(all.without(Strategy::Stores).has(Strategy::Stores));
    assert!(all.without_vectors().iter().all(|s| !s.uses_vectors()));
    assert!(all.without_vectors().has(Strategy::NonTemporal64));
}

#[test]
fn defaults_follow_features_and_caches() {
    let zen4 = Chooser {
        available: Available::STORES
            .with(Strategy::RepStos)
            .with(Strategy::Clzero)
            .with(Strategy::NonTemporal64)
            .with(Strategy::NonTemporal512),
        caches: Caches {
            l1d: 32 << 10,
            l2: 1 << 20,
            last: 32 << 20,
        },
    };
    let plan = zen4.defaults();
    let at = |t, b| plan.strategy(t, b);
    assert_eq!(at(Temperature::Bypassing, 4 << 10), Strategy::RepStos);
    assert_eq!(
        at(Temperature::Bypassing, 64 << 10),
        Strategy::NonTemporal512
    );
    assert_eq!(at(Temperature::Hot, 2 << 20), Strategy::RepStos);
    assert_eq!(at(Temperature::Hot, 1 << 30), Strategy::NonTemporal512);

    let kernel = Chooser {
        available: zen4.available.without_vectors(),
        ..zen4
    };
    assert_eq!(
        kernel.defaults().strategy(Temperature::Bypassing, 2 << 20),
        Strategy::Clzero
    );
    assert_eq!(Chooser::default().defaults(), Plan::default());
}

#[test]
fn lookup_takes_the_class_below() {
    let plan = two_tone();
    let rows: Vec<_> = plan.rows(Temperature::Hot).collect();
    assert_eq!(rows.first().unwrap().0, 4 << 10);
    assert_eq!(rows.last().unwrap().0, 1 << 30);
    for bytes in [0, 1, 4095, 4096, 5000, u64::MAX] {
        assert_eq!(plan.strategy(Temperature::Hot, bytes), Strategy::RepStos);
    }
}

fn sample(strategy: Strategy, bytes: u64, ticks: u64) -> Sample {
    Sample {
        strategy,
        temperature: Temperature::Bypassing,
        bytes,
        ticks,
    }
}

#[test]
fn calibration_needs_a_margin_and_ignores_what_cannot_be_used() {
    let chooser = Chooser {
        available: Available::STORES
            .with(Strategy::RepStos)
            .with(Strategy::Clzero),
        caches: Caches::default(),
    };
    let before = Plan::uniform(Strategy::RepStos);
    let pick = |samples: &[Sample], bytes| {
        chooser
            .calibrated(&before, samples)
            .strategy(Temperature::Bypassing, bytes)
    };
    let held = sample(Strategy::RepStos, 65536, 1000);
    // 2 % faster is noise, 4 % is not; the fastest sample of each counts.
    assert_eq!(
        pick(&[held, sample(Strategy::Clzero, 65536, 980)], 65536),
        Strategy::RepStos
    );
    assert_eq!(
        pick(&[held, sample(Strategy::Clzero, 65536, 960)], 65536),
        Strategy::Clzero
    );
    let slow = sample(Strategy::RepStos, 65536, 9000);
    assert_eq!(
        pick(&[held, slow, sample(Strategy::Clzero, 65536, 980)], 65536),
        Strategy::RepStos
    );
    // A class without samples follows the nearest shorter one that was treated alike; a class
    // before all keeps its own.
    let won = [held, sample(Strategy::Clzero, 65536, 500)];
    assert_eq!(pick(&won, 1 << 30), Strategy::Clzero);
    assert_eq!(pick(&won, 4096), Strategy::RepStos);
    let apart = chooser.defaults();
    let fast = [sample(Strategy::Stores, 4096, 1)];
    let after = chooser.calibrated(&apart, &fast);
    let at = |bytes| after.strategy(Temperature::Bypassing, bytes);
    assert_eq!(at(8 << 10), Strategy::Stores, "treated like 4 KB before");
    assert_eq!(
        at(16 << 10),
        Strategy::Clzero,
        "not treated like 4 KB before"
    );
    // Not available, nonsense, or leaving nothing hot.
    assert_eq!(
        pick(&[held, sample(Strategy::NonTemporal512, 65536, 1)], 65536),
        Strategy::RepStos
    );
    assert_eq!(
        pick(&[held, sample(Strategy::Clzero, 65536, 0)], 65536),
        Strategy::RepStos
    );
    let hot = Sample {
        temperature: Temperature::Hot,
        ..sample(Strategy::Clzero, 65536, 1)
    };
    assert_eq!(
        chooser
            .calibrated(&before, &[hot])
            .strategy(Temperature::Hot, 65536),
        Strategy::RepStos
    );
    // An incumbent that is gone yields even without samples.
    let gone = Plan::uniform(Strategy::NonTemporal512);
    assert_eq!(chooser.calibrated(&gone, &[]), Plan::default());
}

fn any_sample() -> impl Generator<Value = Sample> {
    (0..Strategy::ALL.len(), any::<bool>(), 10u32..32, 1u64..1000).prop_map(
        |(strategy, hot, log, ticks)| Sample {
            strategy: Strategy::ALL[strategy],
            temperature: if hot {
                Temperature::Hot
            } else {
                Temperature::Bypassing
            },
            bytes: 1 << log,
            ticks,
        },
    )
}

proptest! {
    #[test]
    fn calibration_settles_and_stays_within_what_is_available(
        samples in proptest::collection::vec(any_sample(), 0..200),
        members in any::<[bool; 9]>(),
    ) {
        let available = Strategy::ALL.iter().zip(members).filter(|(_, m)| *m)
            .fold(Available::STORES, |set, (&s, _)| set.with(s));
        let chooser = Chooser { available, caches: Caches::default() };
        let plan = chooser.calibrated(&chooser.defaults(), &samples);
        for temperature in [Temperature::Hot, Temperature::Bypassing] {
            for (_, strategy) in plan.rows(temperature) {
                prop_assert!(available.has(strategy));
            }
        }
        // The same measurements again change nothing.
        prop_assert_eq!(chooser.calibrated(&plan, &samples), plan);
        // Noise below the margin changes no class that was measured with its incumbent.
        let nudged: Vec<Sample> = samples.iter()
            .map(|s| Sample { ticks: s.ticks * 1000 + s.ticks * 1000 / 70 * (s.ticks % 2), ..*s })
            .collect();
        let again = chooser.calibrated(&plan, &nudged);
        prop_assert_eq!(chooser.calibrated(&again, &nudged), again);
    }
}

/// A frame owned by whoever holds the value.
#[derive(PartialEq, Eq, Debug)]
struct Owned(u64);

impl Clearable for Owned {
    fn extent(&self) -> Extent {
        extent(self.0, 1)
    }
}
impl Pooled for Owned {
    fn into_raw(self) -> u64 {
        self.0
    }
    fn from_raw(raw: u64) -> Self {
        Owned(raw)
    }
}

fn slots(n: usize) -> Vec<AtomicU64> {
    (0..n).map(|_| AtomicU64::new(77)).collect()
}

/// Fills a pool of eight slots three times with a budget of three pages, takes everything out and
/// says what is wrong.
fn check_pool(mutant: Option<&'static Rule>) -> Result<(), &'static str> {
    let machine = Recorder::default();
    let slots = slots(8);
    let pool = Pool::new(&slots, PAGE_BYTES);
    let budget = Budget::new(1, 3 * PAGE_BYTES, 1000);
    let policy = ClearPolicy::default();
    let clearer = Clearer::new(&machine, &policy).with_rules(But(mutant));
    let mut next = 0..100;
    let mut fill = |now| pool.fill(&clearer, &budget, now, || next.next().map(Owned), || {});
    let by_budget = |frames| Filled {
        frames,
        stopped: Stopped::Budget,
    };
    if fill(1000) != by_budget(3) || fill(1000) != by_budget(0) {
        return Err("the budget did not bound a burst");
    }
    if fill(1000 + 2 * PAGE_BYTES) != by_budget(2) {
        return Err("the budget did not follow time");
    }
    while let Some(frame) = pool.take() {
        if machine.times().get(&frame.get().0) != Some(&1) {
            return Err("a frame came out that was not zeroed exactly once");
        }
    }
    Ok(())
}

#[test]
fn the_pool_hands_out_zeroed_frames_within_its_budget() {
    assert_eq!(check_pool(None), Ok(()));
    assert!(check_pool(Some(&zero::PoolHandsOutDirty)).is_err_and(|e| e.contains("zeroed")));
    assert!(check_pool(Some(&zero::PoolIgnoresBudget)).is_err_and(|e| e.contains("budget")));
}

#[test]
fn a_full_pool_gives_frames_back_and_a_dry_source_costs_nothing() {
    let machine = Recorder::default();
    let slots = slots(2);
    let pool = Pool::new(&slots, PAGE_BYTES);
    let policy = ClearPolicy::default();
    let clearer = Clearer::new(&machine, &policy);
    let budget = Budget::new(0, 2 * PAGE_BYTES, 0);
    for _ in 0..3 {
        let dry = pool.fill(&clearer, &budget, 0, || None, || {});
        assert_eq!((dry.frames, dry.stopped), (0, Stopped::Source));
    }
    assert!(pool.is_empty());
    let full = pool.fill(&clearer, &budget, 0, || Some(Owned(5)), || {});
    // Two slots and a budget for two: the third is refused for want of a slot.
    assert_eq!((full.frames, full.stopped), (2, Stopped::Full));
    let (extra, _) = clearer.frame(Owned(9), None, || {});
    assert_eq!(pool.put(extra).unwrap_err().into_inner(), Owned(9));
    assert_eq!(pool.take().unwrap().into_inner(), Owned(5));
    assert_eq!(pool.len(), 1);
}

#[test]
fn a_budget_grants_a_large_request_only_when_full_and_makes_up_for_it() {
    let budget = Budget::<AtomicU64>::new(10, 100, 0);
    assert!(budget.try_spend(1000, 0), "full: a large request passes");
    assert!(
        !budget.try_spend(1, 90),
        "900 earned back, nothing left over"
    );
    assert!(!budget.try_spend(11, 91), "ten bytes a tick");
    assert!(budget.try_spend(10, 91));
    assert!(
        budget.try_spend(100, 1_000_000),
        "no more than the burst is saved up"
    );
    assert!(!budget.try_spend(1, 1_000_000));
    // Wrapping around.
    let late = Budget::<AtomicU64>::new(1 << 40, 1 << 41, u64::MAX - 1);
    assert!(late.try_spend(1 << 41, u64::MAX - 1));
    assert!(!late.try_spend(1, u64::MAX - 1));
    assert!(late.try_spend(1 << 40, u64::MAX));
    assert!(late.try_spend(1 << 40, 0));
    assert!(!late.try_spend(1, 0));
}

#[test]
fn threads_never_lose_or_double_a_frame() {
    const THREADS: u64 = 4;
    let slots = slots(5);
    let pool: Pool<'_, _, Owned> = Pool::new(&slots, PAGE_BYTES);
    // Whoever holds a frame outside the pool sets its bit; one that is set already is a double.
    let held = AtomicU64::new(0);
    let hold = |raw: u64| assert_eq!(held.fetch_or(1 << raw, SeqCst) & 1 << raw, 0);
    let release = |raw: u64| held.fetch_and(!(1 << raw), SeqCst);
    let work = |t: u64| {
        let machine = Recorder::default();
        let policy = ClearPolicy::default();
        let clearer = Clearer::new(&machine, &policy);
        let mut mine: Vec<Zeroed<Owned>> = [2 * t, 2 * t + 1]
            .map(|raw| {
                hold(raw);
                clearer.frame(Owned(raw), None, || {}).0
            })
            .into();
        for round in 0..20_000u64 {
            if (round + t).is_multiple_of(3) {
                if let Some(frame) = pool.take() {
                    hold(frame.get().0);
                    mine.push(frame);
                }
            } else if let Some(frame) = mine.pop() {
                let raw = frame.get().0;
                release(raw);
                if let Err(back) = pool.put(frame) {
                    hold(raw);
                    mine.push(back);
                }
            }
        }
        mine
    };
    let mut all: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|t| {
                scope.spawn({
                    let work = &work;
                    move || work(t)
                })
            })
            .collect();
        let frames = threads.into_iter().flat_map(|t| t.join().unwrap());
        frames.map(|f| f.into_inner().0).collect()
    });
    all.extend(core::iter::from_fn(|| pool.take()).map(|f| f.into_inner().0));
    all.sort_unstable();
    assert_eq!(all, (0..2 * THREADS).collect::<Vec<_>>());
    assert!(pool.is_empty());
}

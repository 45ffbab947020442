//! Tests the choice of a strategy for each length: by rule, and from measurements.

use super::two_tone;
use crate::{Caches, Chooser, Plan, Sample, Strategy, StrategySet, Temperature};
use proptest::prelude::{Just, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::strategy::Strategy as Generator;
use std::vec::Vec;

#[test]
fn available_sets_keep_stores_and_drop_vectors() {
    let all = Strategy::ALL.iter().fold(StrategySet::STORES, |set, &s| set.with(s));
    assert_eq!(all.iter().count(), Strategy::ALL.len());
    assert!(all.without(Strategy::Stores).has(Strategy::Stores));
    assert!(all.without_vectors().iter().all(|s| !s.uses_vectors()));
    assert!(all.without_vectors().has(Strategy::NonTemporal64));
}

#[test]
fn defaults_follow_features_and_caches() {
    let zen4 = Chooser {
        available: StrategySet::STORES
            .with(Strategy::RepStos)
            .with(Strategy::Clzero)
            .with(Strategy::NonTemporal64)
            .with(Strategy::NonTemporal512),
        caches: Caches { l1d: 32 << 10, l2: 1 << 20, last: 32 << 20 },
    };
    let plan = zen4.defaults();
    let at = |t, b| plan.strategy(t, b);
    assert_eq!(at(Temperature::Bypassing, 4 << 10), Strategy::RepStos);
    assert_eq!(at(Temperature::Bypassing, 64 << 10), Strategy::NonTemporal512);
    assert_eq!(at(Temperature::Hot, 2 << 20), Strategy::RepStos);
    assert_eq!(at(Temperature::Hot, 1 << 30), Strategy::NonTemporal512);

    let kernel = Chooser { available: zen4.available.without_vectors(), ..zen4 };
    assert_eq!(kernel.defaults().strategy(Temperature::Bypassing, 2 << 20), Strategy::Clzero);
    assert_eq!(Chooser::default().defaults(), Plan::default());
}

/// Checks each strategy's name, whether it leaves memory hot, and whether it overwrites vector registers.
#[test]
fn strategies_are_what_they_say() {
    let x86 = cfg!(target_arch = "x86_64");
    let said: Vec<_> =
        Strategy::ALL.iter().map(|s| (s.name(), s.keeps_hot(), s.uses_vectors())).collect();
    assert_eq!(
        said,
        [
            ("stores", true, false),
            ("rep-stosb", true, false),
            ("rep-stosq", true, false),
            ("clzero", false, false),
            ("nt64", false, false),
            ("nt128", false, x86),
            ("nt256", false, true),
            ("nt512", false, true),
            ("dc-zva", true, false),
        ]
    );
}

/// Checks the rule's choice when all strategies are available, and then without its last choice, and so on.
#[test]
fn the_rule_takes_the_first_that_is_there() {
    use Strategy::*;
    let all = Strategy::ALL.iter().fold(StrategySet::STORES, |set, &strategy| set.with(strategy));
    let ranks = |temperature, bytes| {
        let mut available = all;
        let mut ranks = Vec::new();
        loop {
            let caches = Caches::default();
            let plan = Chooser { available, caches }.defaults();
            let first = plan.strategy(temperature, bytes);
            ranks.push(first);
            if first == Stores {
                return ranks;
            }
            available = available.without(first);
        }
    };
    let through = [RepStos, RepStosq, DcZva, Stores];
    // If no strategy bypasses the caches, memory is cleared through them.
    let around = [
        NonTemporal512,
        Clzero,
        NonTemporal256,
        DcZva,
        NonTemporal128,
        NonTemporal64,
        RepStos,
        RepStosq,
        Stores,
    ];
    // With caches of unknown size, memory always stays hot.
    for bytes in [4 << 10, 1 << 30] {
        assert_eq!(ranks(Temperature::Hot, bytes), through);
    }
    assert_eq!(ranks(Temperature::Bypassing, 8 << 10), through);
    assert_eq!(ranks(Temperature::Bypassing, 16 << 10), around);
    // An extent of the size of the last level doesn't stay hot.
    let caches = Caches { last: 32 << 20, ..Caches::default() };
    let available = all;
    let plan = Chooser { available, caches }.defaults();
    assert_eq!(plan.strategy(Temperature::Hot, (32 << 20) - 4096), RepStos);
    assert_eq!(plan.strategy(Temperature::Hot, 32 << 20), NonTemporal512);
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
    Sample { strategy, temperature: Temperature::Bypassing, bytes, ticks }
}

#[test]
fn calibration_needs_a_margin_and_ignores_what_cannot_be_used() {
    let chooser = Chooser {
        available: StrategySet::STORES.with(Strategy::RepStos).with(Strategy::Clzero),
        caches: Caches::default(),
    };
    let before = Plan::uniform(Strategy::RepStos);
    let pick = |samples: &[Sample], bytes| {
        chooser.calibrated(&before, samples).strategy(Temperature::Bypassing, bytes)
    };
    let held = sample(Strategy::RepStos, 65536, 1000);
    // 2 % faster is noise, 4 % isn't. The fastest sample of each strategy counts.
    assert_eq!(pick(&[held, sample(Strategy::Clzero, 65536, 980)], 65536), Strategy::RepStos);
    assert_eq!(pick(&[held, sample(Strategy::Clzero, 65536, 960)], 65536), Strategy::Clzero);
    let slow = sample(Strategy::RepStos, 65536, 9000);
    assert_eq!(pick(&[held, slow, sample(Strategy::Clzero, 65536, 980)], 65536), Strategy::RepStos);
    // A class without samples follows the nearest shorter class that had the same strategy. A class shorter than all
    // samples keeps its strategy.
    let won = [held, sample(Strategy::Clzero, 65536, 500)];
    assert_eq!(pick(&won, 1 << 30), Strategy::Clzero);
    assert_eq!(pick(&won, 4096), Strategy::RepStos);
    let apart = chooser.defaults();
    let fast = [sample(Strategy::Stores, 4096, 1)];
    let after = chooser.calibrated(&apart, &fast);
    let at = |bytes| after.strategy(Temperature::Bypassing, bytes);
    assert_eq!(at(8 << 10), Strategy::Stores, "treated like 4 KB before");
    assert_eq!(at(16 << 10), Strategy::Clzero, "not treated like 4 KB before");
    // Samples that are ignored: of an unavailable strategy, of 0 ticks or bytes, or of a strategy that leaves nothing
    // hot.
    assert_eq!(pick(&[held, sample(Strategy::NonTemporal512, 65536, 1)], 65536), Strategy::RepStos);
    assert_eq!(pick(&[held, sample(Strategy::Clzero, 65536, 0)], 65536), Strategy::RepStos);
    assert_eq!(pick(&[sample(Strategy::Clzero, 0, 1)], 4096), Strategy::RepStos);
    let hot = Sample { temperature: Temperature::Hot, ..sample(Strategy::Clzero, 65536, 1) };
    assert_eq!(
        chooser.calibrated(&before, &[hot]).strategy(Temperature::Hot, 65536),
        Strategy::RepStos
    );
    // Every strategy has a rank: if it's measured alone, it's chosen.
    let all = Chooser {
        available: Strategy::ALL.iter().fold(StrategySet::STORES, |set, &s| set.with(s)),
        ..chooser
    };
    for &strategy in Strategy::ALL {
        let alone = all.calibrated(&before, &[sample(strategy, 65536, 1)]);
        assert_eq!(alone.strategy(Temperature::Bypassing, 65536), strategy);
    }
    // An incumbent that's no longer available is replaced even without samples.
    let gone = Plan::uniform(Strategy::NonTemporal512);
    assert_eq!(chooser.calibrated(&gone, &[]), Plan::default());
}

/// Rows of a length and the GB/s of each strategy at that length, from one run.
type Table = [(u64, [(Strategy, f64); 5])];

/// Returns a Zen 4's choice from such a table at one length, and its share of the best speed there.
fn zen4_choice(table: &Table, bytes: u64) -> (Strategy, f64) {
    let available = table[0].1.iter().fold(StrategySet::STORES, |set, (s, _)| set.with(*s));
    let chooser =
        Chooser { available, caches: Caches { l1d: 32 << 10, l2: 1 << 20, last: 32 << 20 } };
    let ticks = |bytes: u64, gbps: f64| (bytes as f64 / gbps * 1e3) as u64;
    let samples: Vec<Sample> = table
        .iter()
        .flat_map(|(bytes, row)| row.map(|(s, gbps)| sample(s, *bytes, ticks(*bytes, gbps))))
        .collect();
    let plan = chooser.calibrated(&chooser.defaults(), &samples);
    let chosen = plan.strategy(Temperature::Bypassing, bytes);
    let (_, row) = table.iter().find(|(at, _)| *at == bytes).unwrap();
    let speed = |wanted| row.iter().find(|(s, _)| *s == wanted).unwrap().1;
    let best = row.iter().map(|(_, gbps)| *gbps).fold(0.0, f64::max);
    (chosen, speed(chosen) / best)
}

#[test]
fn what_is_faster_at_a_length_is_chosen_there() {
    use Strategy::*;
    let row = |bytes, rep, clz, nt64, nt256, nt512| {
        let row = [(RepStos, rep), (Clzero, clz), (NonTemporal64, nt64)];
        let wide = [(NonTemporal256, nt256), (NonTemporal512, nt512)];
        (bytes, [row[0], row[1], row[2], wide[0], wide[1]])
    };
    // Invented numbers in the proportions of Zen 4: wide stores are ahead of `clzero` up to 8 MB, and behind it from 32
    // MB on, where `rep stos` stops allocating lines.
    let table = [
        row(4 << 10, 30.0, 24.0, 20.0, 23.0, 24.0),
        row(16 << 10, 30.0, 52.0, 50.0, 59.0, 60.0),
        row(64 << 10, 30.0, 60.0, 58.0, 68.0, 69.0),
        row(2 << 20, 31.0, 62.0, 60.0, 71.0, 70.0),
        row(8 << 20, 32.0, 62.0, 60.0, 71.0, 68.0),
        row(32 << 20, 73.0, 74.0, 58.0, 60.0, 61.0),
        row(128 << 20, 75.0, 74.0, 58.0, 60.0, 61.0),
    ];
    for (bytes, wanted) in [
        (4 << 10, RepStos),
        (16 << 10, NonTemporal512),
        (64 << 10, NonTemporal512),
        // 1.4 % behind is a tie, which the rule breaks; 4 % isn't.
        (2 << 20, NonTemporal512),
        (8 << 20, NonTemporal256),
        // Two tie, and the incumbent isn't among them: the rule's order decides, not the noise.
        (32 << 20, Clzero),
        (128 << 20, Clzero),
    ] {
        let (chosen, share) = zen4_choice(&table, bytes);
        assert_eq!(chosen, wanted, "at {bytes}");
        assert!(share >= 0.95, "{share} at {bytes}");
    }
}

fn any_sample() -> impl Generator<Value = Sample> {
    (0..Strategy::ALL.len(), any::<bool>(), 10u32..32, 1u64..1000).prop_map(
        |(strategy, hot, log, ticks)| Sample {
            strategy: Strategy::ALL[strategy],
            temperature: if hot { Temperature::Hot } else { Temperature::Bypassing },
            bytes: 1 << log,
            ticks,
        },
    )
}

proptest! {
    #[test]
    fn calibration_converges_within_the_available_strategies(
        samples in proptest::collection::vec(any_sample(), 0..200),
        members in any::<[bool; 9]>(),
    ) {
        let available = Strategy::ALL.iter().zip(members).filter(|(_, m)| *m)
            .fold(StrategySet::STORES, |set, (&s, _)| set.with(s));
        let chooser = Chooser { available, caches: Caches::default() };
        let plan = chooser.calibrated(&chooser.defaults(), &samples);
        for temperature in [Temperature::Hot, Temperature::Bypassing] {
            for (_, strategy) in plan.rows(temperature) {
                prop_assert!(available.has(strategy));
            }
        }
        // A second calibration with the same measurements changes nothing.
        prop_assert_eq!(chooser.calibrated(&plan, &samples), plan);
        // Noise below the margin changes no class whose incumbent was measured.
        let nudged: Vec<Sample> = samples.iter()
            .map(|s| Sample { ticks: s.ticks * 1000 + s.ticks * 1000 / 70 * (s.ticks % 2), ..*s })
            .collect();
        let again = chooser.calibrated(&plan, &nudged);
        prop_assert_eq!(chooser.calibrated(&again, &nudged), again);
    }
}

#[test]
fn what_one_run_chooses_is_near_the_best_of_another() {
    use Strategy::*;
    let named = |run: &[(u64, [f64; 5])]| -> Vec<_> {
        let names = [RepStos, Clzero, NonTemporal64, NonTemporal256, NonTemporal512];
        let row = |speeds: [f64; 5]| std::array::from_fn(|i| (names[i], speeds[i]));
        run.iter().map(|&(bytes, speeds)| (bytes, row(speeds))).collect()
    };
    let runs: Vec<Vec<_>> = super::zen4::RUNS.iter().map(|run| named(run)).collect();
    for chosen_by in &runs {
        for (bytes, row) in runs.iter().flatten() {
            let measured = chosen_by.iter().any(|(length, _)| length == bytes);
            if !measured {
                continue;
            }
            let (chosen, _) = zen4_choice(chosen_by, *bytes);
            let best = row.iter().map(|(_, gbps)| *gbps).fold(0.0, f64::max);
            let speed = row.iter().find(|(s, _)| *s == chosen).unwrap().1;
            assert!(speed >= 0.95 * best, "{chosen} at {bytes}");
        }
    }
}

proptest! {
    #[test]
    fn noise_of_a_percent_costs_less_than_the_margin_and_moves_no_tie(
        noise in proptest::array::uniform5(0.99..1.01f64),
        bytes in prop_oneof![Just(64u64 << 10), Just(32 << 20)],
    ) {
        use Strategy::*;
        let speeds = [(RepStos, 70.5), (Clzero, 70.0), (NonTemporal64, 50.0),
            (NonTemporal256, 70.3), (NonTemporal512, 70.1)];
        let mut row = speeds;
        row.iter_mut().zip(noise).for_each(|((_, gbps), noise)| *gbps *= noise);
        let (chosen, share) = zen4_choice(&[(bytes, row)], bytes);
        prop_assert_eq!(chosen, NonTemporal512);
        prop_assert!(share >= 0.96);
    }
}

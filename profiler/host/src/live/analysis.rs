//! Computes figures across rows: the quiet samples, the price of a shootdown, and its share of each row.

use std::collections::BTreeMap;

use quell_threads::pulse;

use super::report::{Benchmark, QuietSamples, Row, Sample, Shootdown, Spread};

/// The least share of its expected or usual interrupts that a sample needs to count. With fewer, another program had
/// the target's CPU, so that CPU needed no interrupt.
const INTERRUPTED: f64 = 0.95;
/// The least number of interrupts for each discard that can explain the difference between the times.
const TOO_FEW_INTERRUPTS: f64 = 0.5;

/// Finds the quiet samples of each row. Returns the share of all samples on a shared core.
///
/// We compare pulses among rows with the same number of busy CPUs, for two reasons. A processor may run faster with
/// fewer busy CPUs, and a thread that spins on the other half of the same core belongs to the measurement.
pub fn find_quiet(benchmarks: &mut [Benchmark]) -> Option<f64> {
    let mut alike: BTreeMap<usize, Vec<&mut Row>> = BTreeMap::new();
    for row in benchmarks.iter_mut().flat_map(|b| &mut b.rows) {
        alike.entry(row.targets).or_default().push(row);
    }
    let (mut shared, mut all) = (0, 0);
    for rows in alike.into_values() {
        let samples = || rows.iter().flat_map(|row| &row.samples);
        let Some(own) = pulse::longest_own(samples().map(|s| s.pulse)) else {
            continue;
        };
        shared += samples().filter(|s| s.pulse > own).count();
        all += samples().count();
        for row in rows {
            row.quiet = quiet(row, own);
        }
    }
    (all > 0).then(|| shared as f64 / all as f64)
}

/// Returns the samples with all their interrupts.
fn whole(row: &Row) -> impl Iterator<Item = Sample> {
    let usual = Spread::of(row.samples.iter().filter_map(|s| s.interrupts)).map_or(0.0, |s| s.q3);
    let wanted = INTERRUPTED * row.expected_interrupts.unwrap_or(usual);
    let samples = row.samples.iter().copied();
    samples.filter(move |s| s.interrupts.is_none_or(|n| n >= wanted))
}

/// Returns the samples with all their interrupts that had the core to themselves.
fn quiet(row: &Row, longest_own: f64) -> Option<QuietSamples> {
    let found = pulse::quiet(whole(row).map(|s| (s.pulse, s)), longest_own)?;
    let samples = &found.values;
    Some(QuietSamples {
        samples: samples.len(),
        median: Spread::of(samples.iter().map(|s| s.ns))?.median,
        tlb_interrupts_per_op: Spread::of(samples.iter().filter_map(|s| s.interrupts))
            .map(|s| s.median),
        own_core: found.own_core,
        pulse: Spread::of(samples.iter().map(|s| s.pulse))?.median,
        noise: noise(samples),
    })
}

/// The factor by which two pulses of the same state of the core may differ.
const ALIKE: f64 = 1.1;
/// The least number of samples in a state of the core.
const ALIKE_SAMPLES: usize = 5;
/// The share by which the slowdowns of two rows differ: 1.3 to 1.6 times were measured, which is 45 % and a third of it
/// more or less.
const OTHER_WORK: f64 = 1.0 / 3.0;

/// A row's time in another state of its core, compared with its quiet samples.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Slowdown {
    /// The factor.
    pub factor: f64,
    /// The noise of the samples in that state, and the difference between the slowdowns of two rows.
    pub noise: f64,
}

/// Returns by how much `row` is slower in samples whose pulse is like `pulse` than in its quiet samples.
///
/// Returns `None` if too few samples, or samples of too few rounds, have such a pulse.
pub fn slowdown(row: &Row, pulse: f64) -> Option<Slowdown> {
    let alike = |s: &Sample| s.pulse <= pulse * ALIKE && s.pulse >= pulse / ALIKE;
    let samples: Vec<Sample> = whole(row).filter(alike).collect();
    let spread = Spread::of(samples.iter().map(|s| s.ns))?;
    let factor = spread.median / row.quiet?.median;
    let noise = noise(&samples)? + OTHER_WORK * (factor - 1.0).abs() / factor;
    (spread.samples >= ALIKE_SAMPLES).then_some(Slowdown { factor, noise })
}

/// The least number of rounds whose spread is meaningful.
const ROUNDS_THAT_SHOW_NOISE: usize = 3;

/// Returns the noise: the distance of the quartiles of the rounds' medians, as a share of their median.
///
/// We use quartiles because one round of five may fail without a change to the median of all.
fn noise(samples: &[Sample]) -> Option<f64> {
    let mut rounds: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for sample in samples {
        rounds.entry(sample.round).or_default().push(sample.ns);
    }
    let medians = rounds.into_values().filter_map(Spread::of);
    let apart = Spread::of(medians.map(|round| round.median))?;
    (apart.samples >= ROUNDS_THAT_SHOW_NOISE).then(|| (apart.q3 - apart.q1) / apart.median)
}

/// Returns the noise of the host: the median of that of all rows.
pub fn host_noise(benchmarks: &[Benchmark]) -> Option<f64> {
    let rows = benchmarks.iter().flat_map(|b| &b.rows);
    Some(Spread::of(rows.filter_map(|row| row.quiet?.noise))?.median)
}

/// Computes the price of one shootdown from the quiet samples of both rows.
///
/// It's the time with one spinning thread minus the time alone, divided by the interrupts.
pub fn price(alone: &Row, one_target: Option<&Row>) -> Shootdown {
    let alone_ns = alone.undisturbed();
    let mut price = Shootdown { alone_ns, ..Shootdown::default() };
    let Some(row) = one_target else {
        price.note = Some("this process may use only one CPU".into());
        return price;
    };
    let one_target_ns = row.undisturbed();
    price.one_target_ns = Some(one_target_ns);
    price.all_samples = row.samples.len();
    price.quiet_samples = row.quiet.map_or(0, |quiet| quiet.samples);
    price.interrupts_per_op = match row.quiet {
        Some(quiet) => quiet.tlb_interrupts_per_op,
        None => row.tlb_interrupts_per_op,
    };
    match price.interrupts_per_op {
        None => {
            price.note = Some("this kernel counts no TLB interrupts (the hardware broadcasts invalidations); the difference of the two times is the price of a remote invalidation, however it is done".into());
            price.ns = Some((one_target_ns - alone_ns).max(0.0));
            price.reliable = row.warnings.is_empty() && alone.warnings.is_empty();
        }
        Some(interrupts) if interrupts < TOO_FEW_INTERRUPTS => {
            price.note = Some(format!(
                "only {interrupts:.2} interrupts for each discard: other programs held the spinning thread's CPU, or the kernel flushes remote CPUs without interrupts (AMD INVLPGB)"
            ));
        }
        Some(interrupts) => {
            price.ns = Some(((one_target_ns - alone_ns) / interrupts).max(0.0));
            let busy = interrupts < INTERRUPTED || alone.foreign_cpus.is_some_and(|c| c >= 0.5);
            price.reliable = row.quiet.is_some() && !busy;
            if !price.reliable {
                let why = if busy {
                    "other programs were busy meanwhile; run again on a quiet machine"
                } else {
                    "too few samples; measure longer (--seconds)"
                };
                price.note = Some(why.into());
            }
        }
    }
    price
}

/// Sets the share of each row's time that its interrupts take.
pub fn fill_shares(benchmarks: &mut [Benchmark], price_ns: f64) {
    for row in benchmarks.iter_mut().flat_map(|b| &mut b.rows) {
        let Some(interrupts) = row.tlb_interrupts_per_op else {
            continue;
        };
        // An initiator interrupts all its targets at once and waits once.
        let shootdowns = interrupts / row.targets.max(1) as f64;
        let mean = row.samples.iter().map(|s| s.ns).sum::<f64>() / row.samples.len().max(1) as f64;
        row.shootdown_share = Some((shootdowns * price_ns / mean).min(1.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowdown_is_that_of_samples_on_an_equally_shared_core() {
        let taken = |ns: f64, pulse, rounds: usize| {
            (0..6 * rounds).map(move |at| Sample { round: at % rounds, ..sample(ns, pulse) })
        };
        let mut row = row(&[(1.0, 0.0)]);
        row.samples = taken(100.0, 1.0, 5).chain(taken(145.0, 2.0, 5)).collect();
        row.quiet = quiet(&row, 1.15);
        assert_eq!(row.quiet.unwrap().median, 100.0);
        assert_eq!(slowdown(&row, 1.05).unwrap(), Slowdown { factor: 1.0, noise: 0.0 });
        let shared = slowdown(&row, 1.9).unwrap();
        assert_eq!(shared.factor, 1.45);
        assert!((shared.noise - 0.45 / 3.0 / 1.45).abs() < 1e-9);
        // No sample was in such a state, or they are of too few rounds.
        assert_eq!(slowdown(&row, 1.5), None);
        row.samples.extend(taken(120.0, 1.5, 2));
        assert_eq!(slowdown(&row, 1.5), None);
    }

    fn row(samples: &[(f64, f64)]) -> Row {
        let mut row = Row::made_up("", samples);
        row.quiet = quiet(&row, 1.0);
        row
    }

    fn sample(ns: f64, pulse: f64) -> Sample {
        Sample { ns, interrupts: None, pulse, round: 0 }
    }

    #[test]
    fn noise_is_how_far_rounds_lie_apart_and_not_samples() {
        let rounds = |medians: &[f64]| {
            let sample = |(round, ns)| Sample { round, ..sample(ns, 1.0) };
            let around = |(round, &ns)| [0.5, 1.0, 1.0, 1.0, 3.0].map(|part| (round, ns * part));
            let samples = medians.iter().enumerate().flat_map(around).map(sample);
            noise(&samples.collect::<Vec<_>>())
        };
        assert_eq!(rounds(&[100.0; 5]), Some(0.0));
        assert_eq!(rounds(&[100.0, 90.0, 110.0, 300.0, 80.0]), Some(0.2));
        assert_eq!(rounds(&[100.0, 200.0]), None);
    }

    #[test]
    fn the_fastest_pulse_with_as_many_busy_cpus_is_the_measure_for_all() {
        let bench = |targets, pulses: [f64; 5]| Benchmark {
            rows: vec![Row {
                targets,
                samples: pulses.map(|pulse| sample(pulse, pulse)).to_vec(),
                ..row(&[(1.0, 0.0)])
            }],
            ..Benchmark::default()
        };
        let own_core = |b: &Benchmark| b.rows[0].quiet.unwrap().own_core;
        let mut both = [bench(0, [2.0; 5]), bench(0, [1.0, 1.1, 1.1, 1.1, 1.1])];
        assert_eq!(find_quiet(&mut both), Some(0.5));
        assert_eq!(both.each_ref().map(own_core), [false, true]);
        let mut apart = [bench(1, [2.0; 5]), bench(0, [1.0, 1.1, 1.1, 1.1, 1.1])];
        assert_eq!(find_quiet(&mut apart), Some(0.0));
        assert_eq!(apart.each_ref().map(own_core), [true, true]);
        assert_eq!(find_quiet(&mut [Benchmark::default()]), None);
    }

    #[test]
    fn the_price_rests_on_enough_undisturbed_samples() {
        let alone = row(&[(3000.0, 0.0); 6]);
        for (samples, ns, note) in [
            // Half of the interrupts do not arrive, or nearly all of them.
            (vec![(8_000.0, 0.5); 16], Some(10_000.0), Some("busy")),
            (vec![(3400.0, 0.1); 16], None, Some("only 0.10 interrupts")),
            (vec![(13_000.0, 1.0); 4], Some(10_000.0), Some("--seconds")),
            // Disturbed samples do not cheapen the price.
            ([vec![(13_000.0, 1.0); 6], vec![(3500.0, 0.1); 30]].concat(), Some(10_000.0), None),
        ] {
            let found = price(&alone, Some(&row(&samples)));
            assert_eq!((found.ns, found.reliable), (ns, note.is_none()));
            if note.is_none() {
                assert_eq!((found.quiet_samples, found.all_samples), (6, 36));
            }
            assert_eq!(found.note.is_none(), note.is_none());
            assert!(found.note.unwrap_or_default().contains(note.unwrap_or_default()));
        }
    }

    #[test]
    fn the_share_counts_shootdowns_not_interrupts() {
        let mut wide = row(&[(20_000.0, 3.0); 4]);
        wide.targets = 3;
        let mut benchmarks = [Benchmark { rows: vec![wide], ..Benchmark::default() }];
        fill_shares(&mut benchmarks, 10_000.0);
        assert_eq!(benchmarks[0].rows[0].shootdown_share, Some(0.5));
    }
}

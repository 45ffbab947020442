//! What is computed across rows: the price of a shootdown, and what share of each row it is.

use super::report::{Benchmark, Row, Shootdown, Spread};

/// A sample with one spinning thread counts as quiet if at least this many interrupts arrived for each discard.
const QUIET_INTERRUPTS: f64 = 0.95;
/// Quiet samples wanted before the others are left out.
const QUIET_SAMPLES: usize = 5;
/// Below this many interrupts for each discard, the difference of times says nothing about interrupts.
const TOO_FEW_INTERRUPTS: f64 = 0.5;

/// The price of one shootdown: ((with one spinning thread) - (alone)) / interrupts.
///
/// While another program runs on the spinning thread's CPU no interrupt is sent, so samples with too few are left out if
/// enough others remain.
pub fn price(alone: &Row, one_target: Option<&Row>) -> Shootdown {
    let alone_ns = alone.ns.median;
    let mut price = Shootdown {
        alone_ns,
        one_target_ns: None,
        interrupts_per_op: None,
        ns: None,
        quiet_samples: 0,
        all_samples: 0,
        reliable: false,
        note: None,
    };
    let Some(row) = one_target else {
        price.note = Some("no second CPU to shoot at".into());
        return price;
    };
    let quiet: Vec<_> = row
        .samples
        .iter()
        .filter(|s| s.interrupts.is_some_and(|n| n >= QUIET_INTERRUPTS))
        .collect();
    price.quiet_samples = quiet.len();
    price.all_samples = row.samples.len();
    let enough = quiet.len() >= QUIET_SAMPLES;
    let used = if enough {
        quiet
    } else {
        row.samples.iter().collect()
    };
    let one_target_ns = Spread::of(used.iter().map(|s| s.ns)).map_or(row.ns.median, |s| s.median);
    price.one_target_ns = Some(one_target_ns);
    price.interrupts_per_op =
        Spread::of(used.iter().filter_map(|s| s.interrupts)).map(|s| s.median);
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
            price.reliable = enough && alone.foreign_cpus.is_none_or(|c| c < 0.5);
            if !price.reliable {
                let why = if price.all_samples < QUIET_SAMPLES {
                    "too few samples; give it more --seconds"
                } else {
                    "other programs were busy meanwhile; run again on a quiet machine"
                };
                price.note = Some(why.into());
            }
        }
    }
    price
}

/// Fills in what part of each row's time the price of its interrupts is.
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

    fn row(samples: &[(f64, f64)]) -> Row {
        Row::made_up("", samples)
    }

    #[test]
    fn disturbed_samples_do_not_cheapen_the_price() {
        let alone = row(&[(3000.0, 0.0); 6]);
        let mut samples = vec![(13_000.0, 1.0); 6];
        samples.extend([(3500.0, 0.1); 10]);
        let found = price(&alone, Some(&row(&samples)));
        assert_eq!((found.quiet_samples, found.all_samples), (6, 16));
        assert_eq!(found.ns, Some(10_000.0));
        assert!(found.reliable);
    }

    #[test]
    fn a_busy_second_cpu_gives_no_price() {
        let found = price(&row(&[(3000.0, 0.0); 6]), Some(&row(&[(3400.0, 0.1); 16])));
        assert_eq!(found.ns, None);
        assert!(!found.reliable && found.note.is_some());
    }

    #[test]
    fn the_share_counts_shootdowns_not_interrupts() {
        let mut wide = row(&[(20_000.0, 3.0); 4]);
        wide.targets = 3;
        let mut benchmarks = [Benchmark {
            name: "x",
            seed: "S4",
            title: "",
            rows: vec![wide],
            refused: Vec::new(),
            failed: None,
            warnings: Vec::new(),
            rounds: 1,
            seconds: 0.0,
        }];
        fill_shares(&mut benchmarks, 10_000.0);
        assert_eq!(benchmarks[0].rows[0].shootdown_share, Some(0.5));
    }
}

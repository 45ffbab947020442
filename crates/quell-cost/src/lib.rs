//! What the engine itself costs.
//!
//! On a kernel's hardware the price of an operation is mostly the hardware's: a root load, an
//! invalidation, an interrupt. Here those are a few plain stores, a scan of a small table and a flag
//! in another core's cache line, so that what is left is the engine. Each operation is timed beside
//! the algorithm that it replaces, interleaved with it in the same run, and the medians are given: of the
//! samples in which the core was the measuring thread's own, because a busy neighbour on the core's other hardware
//! thread makes everything slower by a third or more ([`pulse`]).
//!
//! The [guards](Costs::guards), which close holes, are timed beside the same operation with
//! the guard compiled away.
//!
//! Not shown: real invalidations and interrupts (measure the host for those), and caches that other
//! work has emptied. Cycles are those of the time-stamp counter, which ticks at one rate whatever the core's
//! clock does.

mod guards;
mod operation;
mod sample;

use operation::{HOLDS, LOOP, Machine, TAGGED, new_space, page, paid_debt, ping_pong, unmap};
use quell::{
    AddressSpace, Batch, CpuId, Engine, Frame, LedgerEntry, Outcome, PerCpu, Policy, Purpose,
    Residue, TagPolicy,
};
use quell_threads::pulse;
pub use sample::{Cost, Row};
use sample::{Samples, longest_own, timed};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The initiator's latency of one shootdown.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Shootdowns {
    /// Remote first, then here: the baseline.
    pub serial: Cost,
    /// Here while the request travels.
    pub concurrent: Cost,
    /// And content with the target's receipt.
    pub asynchronous: Cost,
}

/// Everything that was measured.
#[derive(Clone, Debug)]
pub struct Costs {
    /// Operations of one CPU.
    pub rows: Vec<Row>,
    /// One shootdown of [`SHOOTDOWN_PAGES`] pages between two cores; `None` where there is only one.
    pub shootdowns: Option<Shootdowns>,
    /// Operations of one CPU beside the same with a guard left out: what closing a hole costs.
    pub guards: Vec<Row>,
    /// In what part of the samples behind `rows` the core was shared with a neighbour, 0 to 1; those count only where
    /// too few others are ([`pulse`]).
    pub shared_core: f64,
}

impl Costs {
    /// Whether an asynchronous flush was faster than a concurrent one, and that than a serial one; true where none was
    /// measured.
    pub fn is_in_order(&self) -> bool {
        self.shootdowns.is_none_or(|one| {
            one.asynchronous.ns < one.concurrent.ns && one.concurrent.ns < one.serial.ns
        })
    }

    /// Whether every operation stayed below its limit, and the flushes are in their order.
    pub fn is_kept(&self) -> bool {
        let below = |row: &Row| row.limit_ns.is_none_or(|limit| row.cost.ns < limit);
        self.rows.iter().all(below) && self.is_in_order()
    }
}

/// Pages, not adjacent, that each measured shootdown covers.
pub const SHOOTDOWN_PAGES: usize = 3;

/// One thing to time: does it [`LOOP`] times.
struct Subject<'a> {
    run: Box<dyn FnMut() + 'a>,
    samples: Samples,
}

/// Measures everything, `rounds` times over; `progress` hears how many rounds are done.
///
/// # Panics
/// If a measuring thread panicked.
pub fn measure(rounds: usize, mut progress: impl FnMut(usize) + Send) -> Costs {
    let alone = Machine::new(1, 16, TAGGED);
    let progress = std::sync::Mutex::new(&mut progress);
    let ((mut rows, shared_core), guards) = alone
        .run(|_| {
            let rows = operations(&alone, rounds, &progress);
            (rows, guards::measure(rounds))
        })
        .pop()
        .expect("one CPU gives one result")
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let remote = (cores > 1).then(|| remote(rounds, &progress));
    let shootdowns = remote.map(|(shootdowns, claim)| {
        rows.push(claim);
        shootdowns
    });
    Costs {
        rows,
        shootdowns,
        guards,
        shared_core,
    }
}

/// What one CPU does alone, and in what part of the samples its core was shared.
fn operations(
    hw: &Machine,
    rounds: usize,
    progress: &std::sync::Mutex<&mut (impl FnMut(usize) + Send)>,
) -> (Vec<Row>, f64) {
    let tags_off = Policy {
        tags: TagPolicy::Off,
        ..Policy::ALL
    };
    let (cpus, ledger) = ([PerCpu::new()], [(); 4].map(|()| LedgerEntry::new()));
    let (cpus_off, ledger_off) = ([PerCpu::new()], []);
    let engine = Engine::new(hw, &cpus, &ledger, Policy::ALL).expect(HOLDS);
    let untagged = Engine::new(hw, &cpus_off, &ledger_off, tags_off).expect(HOLDS);
    engine.cpu_online();
    untagged.cpu_online();
    let spaces = [0, 1].map(|root| new_space(&engine, root));
    let spaces_off = [0, 1].map(|root| new_space(&untagged, root));
    let away = new_space(&engine, 2);
    let clear = Residue::<Machine>::new();
    let paid = Residue::<Machine>::new();
    let stamp = paid_debt(&engine, &away);
    let lock = std::sync::Mutex::new(0u64);

    let contenders: Vec<Box<dyn FnMut() + '_>> = vec![
        Box::new(|| ping_pong(&engine, &spaces)),
        Box::new(|| ping_pong(&untagged, &spaces_off)),
        Box::new(|| (0..LOOP).for_each(|index| unmap(&engine, &away, [index % 32].into_iter()))),
        Box::new(|| {
            (0..LOOP).for_each(|index| unmap(&untagged, &spaces_off[1], [index % 32].into_iter()))
        }),
        Box::new(|| (0..LOOP / 32).for_each(|_| unmap(&engine, &spaces[1], 0..32))),
        Box::new(|| {
            (0..LOOP).for_each(|index| unmap(&engine, &spaces[1], [index % 32].into_iter()))
        }),
        Box::new(|| {
            for _ in 0..LOOP {
                black_box(engine.claim(black_box(&clear)).is_some());
            }
        }),
        Box::new(|| {
            for _ in 0..LOOP {
                *black_box(&lock)
                    .lock()
                    .unwrap_or_else(|held| held.into_inner()) += 1;
            }
        }),
        Box::new(|| {
            for _ in 0..LOOP {
                paid.owe(stamp);
                black_box(engine.claim(black_box(&paid)).is_some());
            }
        }),
        Box::new(|| {
            for _ in 0..LOOP {
                engine.settle_residue(black_box(&clear), &away);
            }
        }),
        Box::new(|| {
            for _ in 0..LOOP {
                engine.on_interrupt();
            }
        }),
    ];
    let mut subjects: Vec<Subject<'_>> = contenders
        .into_iter()
        .map(|run| Subject {
            run,
            samples: Samples::default(),
        })
        .collect();
    let mut before = pulse::take();
    for round in 0..rounds {
        for subject in &mut subjects {
            let cost = timed(LOOP, &mut subject.run);
            let after = pulse::take();
            // The first rounds warm caches and predictors.
            if round > 0 {
                subject.samples.0.push((before.max(after), cost));
            }
            before = after;
        }
        (progress.lock().unwrap_or_else(|held| held.into_inner()))(round);
    }
    let samples: Vec<Samples> = subjects
        .into_iter()
        .map(|subject| subject.samples)
        .collect();
    let own = longest_own(&samples);
    let row = |name, ours: usize, baseline_name, baseline: usize, limit_ns| Row {
        name,
        cost: samples[ours].cost(own),
        quartiles: samples[ours].quartiles(),
        baseline_name,
        baseline: samples[baseline].cost(own),
        limit_ns,
    };
    let pulses = || samples.iter().flat_map(Samples::pulses);
    let shared = pulses().filter(|&pulse| pulse > own).count() as f64 / pulses().count() as f64;
    const LOCK: &str = "a global lock, taken and released";
    let rows = vec![
        row(
            "switch that hits its slot",
            0,
            "switch that drops the entries",
            1,
            Some(30.0),
        ),
        row(
            "flush with no target: batch, add, finish",
            2,
            "flush that invalidates here",
            3,
            Some(30.0),
        ),
        row(
            "unmap a page in a batch of 32, flushed here",
            4,
            "in a batch of its own",
            5,
            None,
        ),
        row("claim with no debt", 6, LOCK, 7, Some(30.0)),
        row("claim of a debt that others paid", 8, LOCK, 7, Some(30.0)),
        row("check before a refill, nothing owed", 9, LOCK, 7, None),
        row("spurious interrupt", 10, LOCK, 7, None),
    ];
    (rows, shared)
}

/// One shootdown between two cores under each policy, and a claim that has to pay.
fn remote(
    rounds: usize,
    progress: &std::sync::Mutex<&mut (impl FnMut(usize) + Send)>,
) -> (Shootdowns, Row) {
    let serial = Policy {
        lazy_unmap: true,
        ..Policy::BASELINE
    };
    let concurrent = Policy {
        concurrent: true,
        inline_requests: true,
        ..serial
    };
    let policies = [
        serial,
        concurrent,
        Policy {
            asynchronous: true,
            ..concurrent
        },
    ];
    let hw = Machine::new(2, 16, TAGGED);
    let cpus = [(); 3].map(|()| [PerCpu::new(), PerCpu::new()]);
    let ledger = [(); 3].map(|()| [(); 64].map(|()| LedgerEntry::new()));
    let engines: Vec<_> = (0..3)
        .map(|index| Engine::new(&hw, &cpus[index], &ledger[index], policies[index]).expect(HOLDS))
        .collect();
    let spaces: Vec<_> = engines.iter().map(|engine| new_space(engine, 0)).collect();
    let (ready, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let variant = AtomicUsize::new(0);
    let body = |me: CpuId| {
        for (engine, space) in engines.iter().zip(&spaces) {
            engine.cpu_online();
            engine.switch_to(None, space);
        }
        ready.fetch_add(1, Ordering::SeqCst);
        if me.0 == 1 {
            while !done.load(Ordering::Acquire) {
                if hw.interrupt_pending() {
                    engines[variant.load(Ordering::Acquire)].on_interrupt();
                }
                std::hint::spin_loop();
            }
            return None;
        }
        while ready.load(Ordering::SeqCst) < 2 {
            std::hint::spin_loop();
        }
        let residue = Residue::<Machine>::new();
        let mut samples: [Samples; 5] = Default::default();
        const TURNS: usize = 32;
        // Pages that do not touch stay ranges of their own.
        let pages = || (0..SHOOTDOWN_PAGES).map(|index| index * 2);
        for round in 0..rounds {
            // All by turns, so that what slows the other core slows them all.
            let before = pulse::take();
            let mut costs = [[Cost::default(); TURNS]; 5];
            for turn in 0..TURNS {
                for (index, costs) in costs.iter_mut().enumerate() {
                    let engine_index = index.min(2);
                    variant.store(engine_index, Ordering::Release);
                    let (engine, space) = (&engines[engine_index], &spaces[engine_index]);
                    // Rarely in step with the target's loop.
                    (0..turn % 7 * 20).for_each(|_| std::hint::spin_loop());
                    costs[turn] = match index {
                        3 => timed(1, || owe_and_claim(engine, space, &residue)),
                        4 => timed(1, || unmap(engine, space, 0..1)),
                        _ => timed(1, || unmap(engine, space, pages())),
                    };
                    // The target is done before the next one begins, or they would merge.
                    (0..200).for_each(|_| std::hint::spin_loop());
                }
            }
            let pulse = before.max(pulse::take());
            if round > 0 {
                for (samples, costs) in samples.iter_mut().zip(costs) {
                    samples.0.extend(costs.map(|cost| (pulse, cost)));
                }
            }
            (progress.lock().unwrap_or_else(|held| held.into_inner()))(rounds + round);
        }
        done.store(true, Ordering::Release);
        Some(samples)
    };
    let samples = hw
        .run(body)
        .into_iter()
        .find_map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        .expect("the first CPU measures");
    let own = longest_own(&samples);
    let claim = Row {
        name: "unmap a page owed, claim it and pay (one target)",
        cost: samples[3].cost(own),
        quartiles: samples[3].quartiles(),
        baseline_name: "unmap and flush it at once",
        baseline: samples[4].cost(own),
        limit_ns: None,
    };
    let shootdowns = Shootdowns {
        serial: samples[0].cost(own),
        concurrent: samples[1].cost(own),
        asynchronous: samples[2].cost(own),
    };
    (shootdowns, claim)
}

fn owe_and_claim(
    engine: &Engine<'_, Machine>,
    space: &AddressSpace<Machine>,
    residue: &Residue<Machine>,
) {
    residue.begin();
    let mut batch: Batch<'_, '_, Machine, &AddressSpace<Machine>, Frame> =
        engine.batch(Purpose::Lazy);
    batch.unmapped(space, page(0), Frame(0));
    match batch.finish_owed() {
        Outcome::Owed(owed) => residue.owe(owed.stamp()),
        Outcome::Flushed(_) => residue.clear(),
    }
    black_box(engine.claim(residue).is_some());
}

//! Times one shootdown between two cores: the initiator's latency under each policy, and a reuse that must flush.

use super::sample::{Cost, Progress, Row, Samples, longest_own, timed};
use super::{HOLDS, Machine, TAGGED, new_space, unmap, unmap_lazily};
use crate::pulse;
use quell::{AddressSpace, CpuId, DeferredFlush, Engine, LedgerEntry, PerCpuData, Policy};
use std::hint::black_box;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The initiator's latency of one shootdown.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Shootdowns {
    /// The remote CPU flushes first, then this CPU: the baseline.
    pub serial: Cost,
    /// This CPU flushes while the request is under way.
    pub concurrent: Cost,
    /// This CPU flushes while the request is under way. Then it waits only until the target has received the request.
    pub asynchronous: Cost,
}

/// The number of pages in each measured shootdown. They aren't adjacent.
pub const SHOOTDOWN_PAGES: usize = 3;

/// Measures one shootdown between two cores under each policy, and a reuse that must make a flush.
pub fn measure(rounds: usize, progress: &Progress<'_>) -> (Shootdowns, Row) {
    let serial = Policy { lazy_unmap: true, ..Policy::BASELINE };
    let concurrent = Policy { concurrent: true, inline_requests: true, ..serial };
    let policies = [serial, concurrent, Policy { asynchronous: true, ..concurrent }];
    let hw = Machine::new(2, 16, TAGGED);
    let cpus = [(); 3].map(|()| [PerCpuData::new(), PerCpuData::new()]);
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
            engine.this_cpu().mask_interrupts().switch(None, space);
        }
        ready.fetch_add(1, Ordering::SeqCst);
        if me.0 == 1 {
            while !done.load(Ordering::Acquire) {
                if hw.interrupt_pending() {
                    engines[variant.load(Ordering::Acquire)]
                        .this_cpu()
                        .mask_interrupts()
                        .on_interrupt();
                }
                std::hint::spin_loop();
            }
            return None;
        }
        while ready.load(Ordering::SeqCst) < 2 {
            std::hint::spin_loop();
        }
        let deferred_flush = DeferredFlush::<Machine>::new();
        let mut samples: [Samples; 5] = Default::default();
        const TURNS: usize = 32;
        // Pages that aren't adjacent remain separate ranges.
        let pages = || (0..SHOOTDOWN_PAGES).map(|index| index * 2);
        for round in 0..rounds {
            // We alternate, so that a slow phase of the other core slows all variants.
            let before = pulse::take();
            let mut costs = [[Cost::default(); TURNS]; 5];
            for turn in 0..TURNS {
                for (index, costs) in costs.iter_mut().enumerate() {
                    let engine_index = index.min(2);
                    variant.store(engine_index, Ordering::Release);
                    let (engine, space) = (&engines[engine_index], &spaces[engine_index]);
                    // The delay varies, so that we are rarely in step with the target's loop.
                    (0..turn % 7 * 20).for_each(|_| std::hint::spin_loop());
                    costs[turn] = match index {
                        3 => timed(1, || defer_and_reuse(engine, space, &deferred_flush)),
                        4 => timed(1, || unmap(engine, space, 0..1)),
                        _ => timed(1, || unmap(engine, space, pages())),
                    };
                    // The target must finish before the next one begins, because otherwise they would merge.
                    (0..200).for_each(|_| std::hint::spin_loop());
                }
            }
            let pulse = before.max(pulse::take());
            if round > 0 {
                for (samples, costs) in samples.iter_mut().zip(costs) {
                    samples.0.extend(costs.map(|cost| (pulse, cost)));
                }
            }
            (progress.lock().unwrap_or_else(PoisonError::into_inner))(rounds + round);
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
    let flush_before_reuse = Row::new(
        ("unmap a page deferred, reuse it and flush (one target)", &samples[3]),
        ("unmap and flush it at once", &samples[4]),
        own,
    );
    let shootdowns = Shootdowns {
        serial: samples[0].cost(own),
        concurrent: samples[1].cost(own),
        asynchronous: samples[2].cost(own),
    };
    (shootdowns, flush_before_reuse)
}

fn defer_and_reuse(
    engine: &Engine<'_, Machine>,
    space: &AddressSpace<Machine>,
    deferred_flush: &DeferredFlush<Machine>,
) {
    deferred_flush.begin();
    match unmap_lazily(engine, space) {
        Some(stamp) => deferred_flush.defer(stamp),
        None => deferred_flush.clear(),
    }
    black_box(engine.flush_before_reuse(deferred_flush).is_some());
}

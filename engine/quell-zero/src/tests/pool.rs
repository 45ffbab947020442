//! Tests the pool and its budget.

use super::{Recorder, extent};
use crate::{
    Budget, ClearPolicy, Clearer, FillResult, OwnedMemory, Pool, PooledMemory, StopReason,
    ZeroedFrame,
};
use quell::Extent;
use quell::PAGE_BYTES;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::vec::Vec;

/// A frame owned by the holder of the value.
#[derive(PartialEq, Eq, Debug)]
struct OwnedFrame(u64);

// SAFETY: no memory is behind any frame.
unsafe impl OwnedMemory for OwnedFrame {
    fn extent(&self) -> Extent {
        extent(self.0, 1)
    }
}

/// Frames owned by the holder of the value.
pub(super) struct Run(pub(super) Extent);

// SAFETY: no memory is behind any frame.
unsafe impl OwnedMemory for Run {
    fn extent(&self) -> Extent {
        self.0
    }
}
impl PooledMemory for OwnedFrame {
    fn into_raw(self) -> u64 {
        self.0
    }
    unsafe fn from_raw(raw: u64) -> Self {
        OwnedFrame(raw)
    }
}

/// Frames of a pool of pairs: each value owns two frames.
impl PooledMemory for Run {
    fn into_raw(self) -> u64 {
        self.0.first.0
    }
    unsafe fn from_raw(raw: u64) -> Self {
        Run(extent(raw, 2))
    }
}

fn slots(n: usize) -> Vec<AtomicU64> {
    (0..n).map(|_| AtomicU64::new(77)).collect()
}

#[test]
fn the_pool_hands_out_zeroed_frames_within_its_budget() {
    let machine = Recorder::default();
    let mut slots = slots(8);
    let pool = Pool::new(&mut slots, PAGE_BYTES);
    let budget = Budget::new(1, 3 * PAGE_BYTES, 1000);
    let policy = ClearPolicy::default();
    let clearer = Clearer::new(&machine, &policy);
    let mut next = 0..100;
    let mut fill = |now| pool.fill(&clearer, &budget, now, || next.next().map(OwnedFrame), || {});
    let by_budget = |frames| FillResult { frames, stopped: StopReason::Budget };
    assert_eq!(fill(1000), by_budget(3));
    assert_eq!(fill(1000), by_budget(0));
    assert_eq!(fill(1000 + 2 * PAGE_BYTES), by_budget(2));
    while let Some(frame) = pool.take() {
        assert_eq!(machine.times().get(&frame.get().0), Some(&1));
    }
}

#[test]
fn a_full_pool_gives_frames_back_and_a_dry_source_costs_nothing() {
    let machine = Recorder::default();
    let mut slots = slots(2);
    let pool = Pool::new(&mut slots, PAGE_BYTES);
    let policy = ClearPolicy::default();
    let clearer = Clearer::new(&machine, &policy);
    let budget = Budget::new(0, 2 * PAGE_BYTES, 0);
    for _ in 0..3 {
        let dry = pool.fill(&clearer, &budget, 0, || None, || {});
        assert_eq!((dry.frames, dry.stopped), (0, StopReason::Source));
    }
    assert!(pool.is_empty());
    let full = pool.fill(&clearer, &budget, 0, || Some(OwnedFrame(5)), || {});
    // There are two slots and a budget for two frames: the third frame finds no slot.
    assert_eq!((full.frames, full.stopped), (2, StopReason::Full));
    let (extra, _) = clearer.frame(OwnedFrame(9), None, || {});
    assert_eq!(pool.put(extra).unwrap_err().into_inner(), OwnedFrame(9));
    assert_eq!(pool.take().unwrap().into_inner(), OwnedFrame(5));
    assert_eq!(pool.len(), 1);
}

#[test]
fn a_thread_that_fills_can_be_preempted_between_pieces_and_between_frames() {
    let machine = Recorder::default();
    let mut slots = slots(3);
    let pool: Pool<'_, _, Run> = Pool::new(&mut slots, 2 * PAGE_BYTES);
    let policy = ClearPolicy { cap_bytes: Some(PAGE_BYTES), ..ClearPolicy::default() };
    let clearer = Clearer::new(&machine, &policy);
    let budget = Budget::new(0, 6 * PAGE_BYTES, 0);
    let mut next = (0..3).map(|pair| Run(extent(2 * pair, 2)));
    let mut preempted = Vec::new();
    let preempt = || preempted.push(machine.calls().len());
    let filled = pool.fill(&clearer, &budget, 0, || next.next(), preempt);
    assert_eq!((filled.frames, filled.stopped), (3, StopReason::Full));
    assert_eq!(preempted, [1, 2, 3, 4, 5]);
}

#[test]
fn a_budget_grants_a_large_request_only_when_full_and_makes_up_for_it() {
    let budget = Budget::<AtomicU64>::new(10, 100, 0);
    assert!(budget.try_spend(1000, 0), "full: a large request passes");
    assert!(!budget.try_spend(1, 90), "900 earned back, nothing left over");
    assert!(!budget.try_spend(11, 91), "ten bytes a tick");
    assert!(budget.try_spend(10, 91));
    assert!(budget.try_spend(100, 1_000_000), "no more than the burst is saved up");
    assert!(!budget.try_spend(1, 1_000_000));
    // The time wraps around.
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
    let mut slots = slots(5);
    let pool: Pool<'_, _, OwnedFrame> = Pool::new(&mut slots, PAGE_BYTES);
    // A thread that holds a frame outside the pool sets the frame's bit. If the bit is set already, two threads hold
    // the frame.
    let held = AtomicU64::new(0);
    let hold = |raw: u64| assert_eq!(held.fetch_or(1 << raw, SeqCst) & 1 << raw, 0);
    let release = |raw: u64| held.fetch_and(!(1 << raw), SeqCst);
    let work = |t: u64| {
        let machine = Recorder::default();
        let policy = ClearPolicy::default();
        let clearer = Clearer::new(&machine, &policy);
        let mut mine: Vec<ZeroedFrame<OwnedFrame>> = [2 * t, 2 * t + 1]
            .map(|raw| {
                hold(raw);
                clearer.frame(OwnedFrame(raw), None, || {}).0
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

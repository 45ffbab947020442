//! Measures the costs of operations, and the interrupts and invalidations that they need.

use crate::pinned;
use crate::world::{World, frames, range};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use ostd::arch::read_tsc;
use ostd::mm::tlb::TlbFlushOp;
use ostd::mm::{PAGE_SIZE, PageFlags, VmSpace};
use ostd::prelude::*;
use ostd::sync::WaitQueue;
use ostd::task::{Task, disable_preempt};

/// Repetitions; the median counts, since the timer's interrupts fall into some.
const TIMES: usize = 21;

/// Returns the counts of interrupts sent, pages invalidated and full flushes.
fn counts() -> [u64; 3] {
    let counts = &ostd::counts::COUNTS;
    [&counts.interrupts, &counts.pages, &counts.full].map(|count: &AtomicU64| count.load(SeqCst))
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

/// Measures `work`, which `prepare` comes before each time, and prints its rows.
fn measure(name: &str, mut prepare: impl FnMut(), mut work: impl FnMut()) {
    let mut times = Vec::new();
    let mut counted = [const { Vec::new() }; 3];
    for _ in 0..TIMES {
        prepare();
        let before = counts();
        let start = read_tsc();
        work();
        times.push(read_tsc() - start);
        for (index, (after, before)) in counts().into_iter().zip(before).enumerate() {
            counted[index].push(after - before);
        }
    }
    println!("trial: row ns {}|{}", name, median(times));
    let [interrupts, pages, full] = counted.map(median);
    println!("trial: row interrupts {}|{}", name, interrupts);
    println!("trial: row pages {}|{}", name, pages);
    println!("trial: row full {}|{}", name, full);
}

/// Unmaps this many pages, including the end of the flush.
pub fn unmaps(world: &World) {
    for (pages, name) in [(1, "unmap 1 page"), (16, "unmap 16 pages"), (512, "unmap 512 pages")] {
        measure(name, || world.map(&frames(pages)), || world.unmap(pages));
    }
}

/// Pages that do not touch one another lose the right to be written.
pub fn protects(world: &World) {
    const SCATTERED: usize = 8;
    let frames = frames(2 * SCATTERED);
    let protect = || {
        let guard = disable_preempt();
        let range = range(2 * SCATTERED);
        let mut cursor = world.space.cursor_mut(&guard, &range).expect("a range");
        for index in 0..SCATTERED {
            let page = range.start + 2 * index * PAGE_SIZE;
            cursor.jump(page).expect("a page of the range");
            cursor.protect_next(PAGE_SIZE, |flags, _| *flags = PageFlags::R);
            cursor.flusher().issue_tlb_flush(TlbFlushOp::for_single(page));
        }
        cursor.flusher().dispatch_tlb_flush();
        cursor.flusher().sync_tlb_flush();
    };
    let prepare = || {
        world.unmap(2 * SCATTERED);
        world.map(&frames);
    };
    measure("protect 8 scattered pages", prepare, protect);
    world.unmap(2 * SCATTERED);
}

/// Makes two tasks of two address spaces take turns on this CPU.
pub fn switches() {
    static TURNS: AtomicUsize = AtomicUsize::new(0);
    static TOOK: AtomicU64 = AtomicU64::new(0);
    static ENDED: AtomicUsize = AtomicUsize::new(0);
    static OTHERS: WaitQueue = WaitQueue::new();
    const EACH: usize = 2000;
    for _ in 0..2 {
        pinned::spawn(0, Some(Arc::new(VmSpace::new())), || {
            // Both are there before either is timed.
            while TURNS.fetch_add(1, SeqCst) < 20 {
                Task::yield_now();
            }
            let start = read_tsc();
            for _ in 0..EACH {
                Task::yield_now();
            }
            TOOK.store(read_tsc() - start, Relaxed);
            ENDED.fetch_add(1, SeqCst);
            OTHERS.wake_all();
        });
    }
    OTHERS.wait_until(|| (ENDED.load(SeqCst) == 2).then_some(()));
    println!("trial: row ns context switch|{}", TOOK.load(SeqCst) / (2 * EACH as u64));
}

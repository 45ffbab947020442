//! Detects waits that never end.
//!
//! The host's scheduler may take a thread off its core for any time. So no clock distinguishes a CPU that waits for
//! ever from a CPU whose target gets no time. Instead, each CPU counts *signs of life*: one for every step of its
//! program ([`CpuStatus::step`]) and one for every [`TURNS_A_SIGN`] iterations of a waiting loop. A wait counts as
//! endless (C7) if every CPU of the machine, including the waiting one, has given [`PATIENCE`] signs since the wait
//! began. Then all CPUs had time for the step that the waiter needs. A thread that doesn't run gives no signs, which
//! delays the verdict.
//!
//! The signs are collected in [`ROUNDS`]; every CPU gives its share in each. Otherwise a verdict could rest on a single
//! check of a lock. For example, a waiter gives all of its signs while the lock's holder doesn't run. Then the holder
//! releases the lock and gives all of its own signs while the waiter doesn't run. When the waiter checks once more, the
//! lock is taken again.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The number of iterations of a waiting loop that count as one sign of life.
pub const TURNS_A_SIGN: u64 = 64;
/// The number of signs that every CPU must give before a wait counts as endless.
///
/// It corresponds to four million iterations of a loop, or to 65 536 steps of a program, each of which checks for
/// interrupts.
pub const PATIENCE: u64 = 1 << 16;
const ROUNDS: u32 = 64;
/// The number of signs between two checks of the other CPUs' signs.
const SIGNS_A_LOOK: u64 = 64;

/// The number of signs of a wait that are each followed by a nap. Later, we nap only after each `WAKEFUL`-th, so that
/// an endless wait is found soon on a host with slow naps.
const WAKEFUL: u64 = 64;

/// The state of a CPU that other CPUs can see.
#[derive(Default)]
pub struct CpuStatus {
    /// The number of signs of life. Only the CPU itself writes it.
    signs: AtomicU64,
    /// Whether the CPU's body has returned or panicked. Then the others needn't wait for its signs.
    gone: AtomicBool,
}

/// The state of a CPU's present wait.
#[derive(Default)]
struct WaitState {
    /// All CPUs' signs of life at the beginning of the round, or nothing before the first round.
    began: Vec<u64>,
    /// The number of rounds that have ended since the wait began.
    rounds: u32,
}

thread_local! {
    /// The iterations of this CPU's present waiting loop.
    static TURNS: Cell<u64> = const { Cell::new(0) };
    static WAIT: RefCell<WaitState> = const { RefCell::new(WaitState { began: Vec::new(), rounds: 0 }) };
}

/// A guard that marks the CPU as running until it's dropped, also by a panic.
pub struct Body<'a>(&'a CpuStatus);

impl Drop for Body<'_> {
    fn drop(&mut self) {
        self.0.gone.store(true, Ordering::Relaxed);
    }
}

impl CpuStatus {
    /// Begins the CPU's body. Call it before any CPU may wait for this CPU.
    pub fn begin(&self) -> Body<'_> {
        self.gone.store(false, Ordering::Relaxed);
        Body(self)
    }

    /// Records a step of this CPU's program. It's a sign of life, and ends the CPU's wait.
    #[inline]
    pub fn step(&self) {
        self.give_sign();
        if TURNS.replace(0) >= TURNS_A_SIGN {
            WAIT.with_borrow_mut(|wait| {
                wait.began.clear();
                wait.rounds = 0;
            });
        }
    }

    /// Counts an iteration of a waiting loop.
    ///
    /// Returns the number of signs if the iteration completes a sign of life.
    #[inline]
    pub fn turn(&self) -> Option<u64> {
        let turns = TURNS.get() + 1;
        TURNS.set(turns);
        turns.is_multiple_of(TURNS_A_SIGN).then(|| self.give_sign())
    }

    /// Counts a sign of life. Only the CPU itself counts, so that no locked operation adds an ordering to the tested
    /// code.
    #[inline]
    fn give_sign(&self) -> u64 {
        let signs = self.signs.load(Ordering::Relaxed).wrapping_add(1);
        self.signs.store(signs, Ordering::Relaxed);
        signs
    }

    fn signs(&self) -> u64 {
        self.signs.load(Ordering::Relaxed)
    }
}

/// Returns whether a waiting CPU should compare this many signs with the others' now.
#[inline]
pub fn is_time_to_look(signs: u64) -> bool {
    signs.is_multiple_of(SIGNS_A_LOOK)
}

/// Returns whether a waiting CPU that shares its core should leave it now.
#[inline]
pub fn is_time_to_nap() -> bool {
    let signs = TURNS.get() / TURNS_A_SIGN;
    signs < WAKEFUL || signs.is_multiple_of(WAKEFUL)
}

/// Returns how often every one of `cpus` gave [`PATIENCE`] signs since this CPU's wait began.
///
/// The result is 0 as long as the wait may still end.
#[cold]
pub fn patience_lost<'a>(cpus: impl Iterator<Item = &'a CpuStatus> + Clone) -> u32 {
    WAIT.with_borrow_mut(|wait| {
        let lively = |(cpu, began): (&CpuStatus, &u64)| {
            let signs = cpu.signs().wrapping_sub(*began);
            cpu.gone.load(Ordering::Relaxed) || signs >= PATIENCE / u64::from(ROUNDS)
        };
        if !wait.began.is_empty() {
            if !cpus.clone().zip(&wait.began).all(lively) {
                return 0;
            }
            wait.rounds += 1;
            wait.began.clear();
        }
        wait.began.extend(cpus.map(CpuStatus::signs));
        wait.rounds / ROUNDS
    })
}

//! Detects waits that never end.
//!
//! The host's scheduler may take a thread off its core for any time, so no clock distinguishes a CPU that waits for
//! ever from one whose target gets no time. Instead, each CPU counts *signs of life*: one for every step of its
//! program ([`CpuStatus::step`]) and one for every [`TURNS_A_SIGN`] turns of a waiting loop. A wait never ends (C7) if
//! every CPU of the machine, including the waiting one, has given [`PATIENCE`] signs since it began: all had time for
//! the step that the waiter needs. A thread that does not run gives none, which delays the verdict.
//!
//! The signs are collected in [`ROUNDS`]; every CPU gives its share in each. Otherwise, a waiter could give all of its
//! signs while a lock's holder does not run, the holder all of its own after releasing the lock while the waiter does
//! not run, and one look at the lock, by then taken again, would be the verdict.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Turns of a waiting loop that count as one sign of life.
pub const TURNS_A_SIGN: u64 = 64;
/// Signs of life that every CPU must give before a wait counts as endless: four million turns of a loop, or 65 536
/// steps of a program, each of which checks for interrupts.
pub const PATIENCE: u64 = 1 << 16;
/// The number of consecutive rounds.
const ROUNDS: u32 = 64;
/// Signs between two looks of a waiting CPU at those of the others.
const SIGNS_A_LOOK: u64 = 64;

/// Signs of a wait that are each followed by a nap. After this many, only each `WAKEFUL`-th is, so that an endless
/// wait is found soon on a host with slow naps.
const WAKEFUL: u64 = 64;

/// A CPU's state, visible to the others.
#[derive(Default)]
pub struct CpuStatus {
    /// Signs of life; written by the CPU itself.
    signs: AtomicU64,
    /// Whether the CPU's body has returned, or has panicked: the others need not wait for its signs.
    gone: AtomicBool,
}

/// The state of a CPU's present wait.
#[derive(Default)]
struct WaitState {
    /// All CPUs' signs of life when the round began; empty if none has yet.
    began: Vec<u64>,
    /// How many rounds have ended since the wait began.
    rounds: u32,
}

thread_local! {
    /// Turns of the waiting loop that this CPU is in.
    static TURNS: Cell<u64> = const { Cell::new(0) };
    static WAIT: RefCell<WaitState> = const { RefCell::new(WaitState { began: Vec::new(), rounds: 0 }) };
}

/// Marks the CPU as running until it is dropped, by a panic too.
pub struct Body<'a>(&'a CpuStatus);

impl Drop for Body<'_> {
    fn drop(&mut self) {
        self.0.gone.store(true, Ordering::Relaxed);
    }
}

impl CpuStatus {
    /// The CPU's body begins. Called before any CPU may wait for this one.
    pub fn begin(&self) -> Body<'_> {
        self.gone.store(false, Ordering::Relaxed);
        Body(self)
    }

    /// This CPU has made a step of its program: a sign of life, and the end of its wait.
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

    /// Counts a turn of a waiting loop. If it completes a sign of life, returns the number of signs.
    #[inline]
    pub fn turn(&self) -> Option<u64> {
        let turns = TURNS.get() + 1;
        TURNS.set(turns);
        turns.is_multiple_of(TURNS_A_SIGN).then(|| self.give_sign())
    }

    /// Only the CPU itself counts, so that no locked operation adds an ordering to the tested code.
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

/// Returns whether a waiting CPU with this many signs compares them with the others' now.
#[inline]
pub fn is_time_to_look(signs: u64) -> bool {
    signs.is_multiple_of(SIGNS_A_LOOK)
}

/// Returns whether a waiting CPU that shares its core leaves it now.
#[inline]
pub fn is_time_to_nap() -> bool {
    let signs = TURNS.get() / TURNS_A_SIGN;
    signs < WAKEFUL || signs.is_multiple_of(WAKEFUL)
}

/// How many times [`PATIENCE`] signs every one of `cpus` has given since this CPU's wait began: none, as long as
/// the wait may yet end.
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

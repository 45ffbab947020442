//! When a wait is without end.
//!
//! The host's scheduler may take a thread off its core for as long as it likes, so no clock tells a
//! CPU that waits for ever from one whose target gets no time. Each CPU counts *signs of life*
//! instead: one for every step of its program ([`CpuStatus::step`]) and one for every [`TURNS_A_SIGN`]
//! turns of a waiting loop. A wait is without end (C7) once every CPU of the machine, the waiting one
//! included, has given [`PATIENCE`] signs since it began: all had the time to do what the waiter waits
//! for. A thread that does not run gives none, and the verdict waits for it.
//!
//! The signs are asked for in [`ROUNDS`], in each of which every CPU gives its part. Otherwise a waiter could give all
//! of its own while the holder of a lock does not run, the holder all of its own when it has given the lock up and the
//! waiter does not run, and a single look at the lock, which somebody else has by then, would be the verdict.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Turns of a waiting loop that count as one sign of life.
pub const TURNS_A_SIGN: u64 = 64;
/// Signs of life that every CPU has given before a wait counts as one without end: four million turns
/// of a loop, or 65 536 steps of a program, each of which looks for interrupts.
pub const PATIENCE: u64 = 1 << 16;
/// In so many parts, one after the other.
const ROUNDS: u32 = 64;
/// Signs between two looks of a waiting CPU at those of the others.
const SIGNS_A_LOOK: u64 = 64;

/// Signs of one wait that are each followed by a nap; later on each of so many is, so that a wait without end is
/// found soon on a host that lets nappers wait.
const WAKEFUL: u64 = 64;

/// What a CPU shows the others of itself.
#[derive(Default)]
pub struct CpuStatus {
    /// Signs of life; written by the CPU itself.
    signs: AtomicU64,
    /// Whether the CPU's body has returned, or has panicked: the others need not wait for its signs.
    gone: AtomicBool,
}

/// What a CPU remembers of the wait that it is in.
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

/// While it lives, the CPU's body runs; the CPU is gone as soon as it is dropped, by a panic as well.
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

    /// This CPU has made a turn of a waiting loop. Where that makes a sign of life, says how many signs it has given.
    #[inline]
    pub fn turn(&self) -> Option<u64> {
        let turns = TURNS.get() + 1;
        TURNS.set(turns);
        turns.is_multiple_of(TURNS_A_SIGN).then(|| self.give_sign())
    }

    /// Only the CPU itself counts, so that no locked operation orders what is under test.
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

/// Returns whether a waiting CPU that has given so many signs looks at those of the others now.
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

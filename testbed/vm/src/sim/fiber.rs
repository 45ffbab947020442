//! Runs one CPU as a coroutine: a body that can stop inside any call and continue later.
//!
//! Stacks come from a pool of the thread, because making one takes a thousand times as long as switching to one.
//!
//! A fiber that suspends itself with [`suspend_legibly`] exposes its stack and registers as bytes ([`Fiber::stack`]).
//! If two fibers of one body have equal bytes, and the memory to which the bytes point is also equal, they continue
//! alike.

use corosensei::stack::{DefaultStack, Stack};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::ptr;
use std::thread_local;
use std::vec::Vec;

/// Bytes of a CPU's stack. The host provides memory only for touched pages.
const STACK_BYTES: usize = 256 << 10;

/// Bytes of a stack that [`Fiber::legible`] clears: more than bodies use.
const CLEARED: usize = 32 << 10;

/// Bytes that [`suspend_legibly`] clears below its frame. An operation uses less, so its leftovers don't appear in
/// later frames there.
const WIPED: usize = 1 << 10;

/// Bytes below the frame of [`suspend_legibly`] that may contain its registers.
const REGISTERS: usize = 256;

/// The number of stacks that a thread keeps.
const POOL: usize = 1100;

thread_local! {
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
    /// The yielder of the running fiber; null outside of fibers.
    static RUNNING: Cell<*const Yielder<(), ()>> = const { Cell::new(ptr::null()) };
    /// The lowest address of the stack of the fiber that last suspended itself legibly.
    static LOWEST: Cell<usize> = const { Cell::new(0) };
}

/// The state of a fiber after [`Fiber::resume`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The body called [`suspend`] or [`suspend_legibly`].
    Suspended,
    /// The body returned.
    Done,
}

/// A coroutine: a body with its own stack, which may borrow for `'a`.
pub struct Fiber<'a> {
    /// `None` only while it is dropped.
    inner: Option<Coroutine<(), (), ()>>,
    /// The yielder while the fiber is suspended; [`RUNNING`] gets it when the fiber continues.
    yielder: *const Yielder<(), ()>,
    /// The end of the stack from which it grows.
    base: usize,
    /// The lowest used address, if the fiber suspended itself legibly.
    lowest: usize,
    borrows: PhantomData<&'a mut ()>,
}

impl<'a> Fiber<'a> {
    /// Creates a fiber that will run `body` when it is first resumed.
    ///
    /// # Errors
    /// If the host has no memory for a stack.
    pub fn new(body: impl FnOnce() + 'a) -> std::io::Result<Self> {
        Ok(Self::on(take_stack()?, body))
    }

    fn on(stack: DefaultStack, body: impl FnOnce() + 'a) -> Self {
        let base = stack.base().get();
        let run = move |yielder: &Yielder<(), ()>, ()| {
            RUNNING.set(yielder);
            body();
        };
        // SAFETY: `body` borrows data that lives for `'a`. The fiber is bounded by `'a`. When it is dropped, it is
        // marked as completed and never runs again. If it is leaked instead, no caller can resume it, because `resume`
        // needs the fiber.
        let inner = unsafe { Coroutine::with_stack_unchecked(stack, run) };
        Fiber { inner: Some(inner), yielder: ptr::null(), base, lowest: base, borrows: PhantomData }
    }

    /// Creates a fiber like [`Fiber::new`], on a stack without traces of earlier fibers.
    ///
    /// Use it for fibers that call [`suspend_legibly`].
    ///
    /// # Errors
    /// If the host has no memory for a stack.
    pub fn legible(body: impl FnOnce() + 'a) -> std::io::Result<Self> {
        let stack = take_stack()?;
        let start = (stack.base().get() - CLEARED) as *mut u8;
        // SAFETY: the bytes below the base belong to this stack, which is larger than `CLEARED` and
        // which no other code uses while it is not in a fiber.
        unsafe { start.write_bytes(0, CLEARED) };
        Ok(Self::on(stack, body))
    }

    /// Returns the stack and registers of a fiber that called [`suspend_legibly`]; otherwise nothing.
    ///
    /// The bytes include dead values, which will not be read again.
    pub fn stack(&self) -> &[u8] {
        let bytes = self.base - self.lowest;
        // SAFETY: the bytes between belong to the fiber's stack, which is mapped and was written or
        // cleared there; nothing writes to it while the fiber is suspended, and it is not resumed
        // during the borrow.
        unsafe { std::slice::from_raw_parts(self.lowest as *const u8, bytes) }
    }

    /// Runs the body until it suspends itself or returns.
    ///
    /// # Panics
    /// If the body has returned before, or if a fiber calls this.
    pub fn resume(&mut self) -> State {
        assert!(RUNNING.get().is_null(), "a fiber resumes another");
        let Some(inner) = &mut self.inner else {
            return State::Done;
        };
        RUNNING.set(self.yielder);
        let result = inner.resume(());
        self.yielder = RUNNING.replace(ptr::null());
        self.lowest = match LOWEST.take() {
            0 => self.base,
            frame => frame - REGISTERS,
        };
        match result {
            CoroutineResult::Yield(()) => State::Suspended,
            CoroutineResult::Return(()) => State::Done,
        }
    }
}

impl Drop for Fiber<'_> {
    fn drop(&mut self) {
        let Some(mut inner) = self.inner.take() else {
            return;
        };
        if inner.started() && !inner.done() {
            // SAFETY: the body is abandoned in the middle. Its values are leaked, not dropped, which is safe for any
            // value. Nothing outside of the stack points into it and relies on a destructor: bodies run the engine and
            // the manager, whose shared state is in memory that their embedder owns, and this crate's own code keeps no
            // borrow across a suspension.
            unsafe { inner.force_reset() };
        }
        if inner.done() {
            let stack = inner.into_stack();
            STACKS.with_borrow_mut(|stacks| {
                if stacks.len() < POOL {
                    stacks.push(stack);
                }
            });
        }
    }
}

/// Takes a stack from the pool, or makes one.
fn take_stack() -> std::io::Result<DefaultStack> {
    let stack = STACKS.with_borrow_mut(Vec::pop);
    stack.map_or_else(|| DefaultStack::new(STACK_BYTES), Ok)
}

/// Returns whether the calling code runs in a fiber.
pub fn is_running() -> bool {
    !RUNNING.get().is_null()
}

/// Suspends the running fiber until it is resumed.
///
/// # Panics
/// If no fiber runs.
#[inline]
pub fn suspend() {
    let yielder = RUNNING.get();
    assert!(!yielder.is_null(), "only a CPU of a run can be suspended");
    // SAFETY: `RUNNING` is not null only while the fiber it belongs to runs, and a yielder lives
    // on the stack of its fiber from before `RUNNING` is set until the body returns.
    unsafe { (*yielder).suspend(()) };
}

/// Suspends the running fiber so that [`Fiber::stack`] returns little besides its state.
///
/// # Panics
/// If no fiber runs.
#[inline(never)]
pub fn suspend_legibly() {
    wipe();
    // The registers are saved in this frame or directly below it.
    let frame = 0u8;
    LOWEST.set(ptr::from_ref(std::hint::black_box(&frame)) as usize);
    suspend();
}

/// Clears the stack below the caller's frame, where returned calls left bytes.
#[inline(never)]
fn wipe() {
    std::hint::black_box(&mut [0u8; WIPED]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_shows_what_lives_on_it() {
        const KEPT: u64 = 0x0dd_ba11_cafe_f00d;
        let mut fiber = Fiber::legible(|| {
            let kept = std::hint::black_box(KEPT);
            suspend_legibly();
            std::hint::black_box(kept);
        })
        .expect("a stack");
        assert!(fiber.stack().is_empty());
        assert_eq!(fiber.resume(), State::Suspended);
        let shows = |value: u64| {
            let bytes = value.to_ne_bytes();
            fiber.stack().windows(8).any(|window| window == bytes)
        };
        assert!(shows(KEPT));
        assert_eq!(fiber.resume(), State::Done);
    }

    #[test]
    fn fibers_interleave_and_borrow() {
        let log = RefCell::new(Vec::new());
        let mut fibers: Vec<_> = (0..3)
            .map(|fiber| {
                let log = &log;
                Fiber::new(move || {
                    for step in 0..2 {
                        log.borrow_mut().push((fiber, step));
                        suspend();
                    }
                })
                .expect("a stack")
            })
            .collect();
        for _ in 0..2 {
            for fiber in &mut fibers {
                assert_eq!(fiber.resume(), State::Suspended);
            }
        }
        for fiber in &mut fibers {
            assert_eq!(fiber.resume(), State::Done);
        }
        drop(fibers);
        let expected = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)];
        assert_eq!(log.into_inner(), expected);
    }

    #[test]
    fn abandoned_fibers_give_their_stacks_back() {
        let count = || STACKS.with_borrow(Vec::len);
        let mut fiber = Fiber::new(|| {
            suspend();
            unreachable!("a fiber that has ended is not resumed")
        })
        .expect("a stack");
        let before = count();
        fiber.resume();
        drop(fiber);
        assert_eq!(count(), before + 1);
    }
}

//! Gives operations access to the machine that runs on this thread.
//!
//! A word is eight bytes and can't refer to its machine. So [`enter`](Context::enter) sets a thread-local pointer to
//! the machine's state for the length of a run, and [`with`] lends that state to a closure. A `RefCell` panics if two
//! closures nest. No closure may suspend.

use crate::clock::{Point, Step};
use crate::core::Core;
use crate::kernel::Kernel;
use crate::lines::LineUse;
use quell_mutants::list;
use quell_vm::sim::fiber;
use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;

/// A machine at work.
pub(crate) struct Context {
    core: RefCell<Core>,
    /// The kernel that serves interrupts, once it exists.
    kernel: Cell<Option<NonNull<dyn Kernel>>>,
    /// While set, words cost nothing and are no points: the oracle reads them, or no CPU runs.
    quiet: Cell<bool>,
    /// The omitted guards, by the numbers of their mutants.
    without: Vec<u32>,
}

thread_local! {
    static CURRENT: Cell<*const Context> = const { Cell::new(ptr::null()) };
}

impl Context {
    pub(crate) fn new(core: Core, without: &[&str]) -> Self {
        assert!(
            without.is_empty() || list::IN_COPY,
            "guards are left out in the copy with the mutants alone"
        );
        list::install(leaves_out);
        Context {
            core: RefCell::new(core),
            kernel: Cell::new(None),
            quiet: Cell::new(true),
            without: without.iter().map(|name| number_of(name)).collect(),
        }
    }

    /// Makes this the machine of the thread while `body` runs.
    ///
    /// # Panics
    /// If a machine is at work on this thread already.
    pub(crate) fn enter<R>(&self, body: impl FnOnce() -> R) -> R {
        struct CurrentGuard;
        impl Drop for CurrentGuard {
            fn drop(&mut self) {
                CURRENT.set(ptr::null());
            }
        }
        assert!(CURRENT.get().is_null(), "a machine is at work on this thread already");
        CURRENT.set(self);
        let _leave = CurrentGuard;
        body()
    }

    /// Runs CPUs with this kernel while `body` runs; words then cost time and are points.
    pub(crate) fn serve<R>(&self, kernel: &dyn Kernel, body: impl FnOnce() -> R) -> R {
        struct KernelGuard<'c>(&'c Context);
        impl Drop for KernelGuard<'_> {
            fn drop(&mut self) {
                self.0.kernel.set(None);
                self.0.quiet.set(true);
            }
        }
        // SAFETY: only the lifetime changes. `Context::kernel` alone uses the pointer, and `KernelGuard` clears it
        // before this function returns, even by unwinding.
        let kernel: &'static dyn Kernel = unsafe { std::mem::transmute(kernel) };
        self.kernel.set(Some(NonNull::from(kernel)));
        self.quiet.set(false);
        let _rest = KernelGuard(self);
        body()
    }
}

impl Context {
    /// Returns the kernel, while one is served.
    fn kernel(&self) -> Option<&dyn Kernel> {
        let kernel = self.kernel.get()?;
        // SAFETY: `serve` set the pointer from a reference that lives until it takes the pointer
        // away; the reference handed out is used by functions of this module that run inside
        // `serve`, on its thread.
        Some(unsafe { kernel.as_ref() })
    }
}

/// Returns the machine of this thread, if one runs.
#[inline]
fn current<'c>() -> Option<&'c Context> {
    // Every access of a program runs this, so we avoid `CURRENT.get()`, which would be two calls.
    let context = CURRENT.try_with(Cell::get).unwrap_or(ptr::null());
    if context.is_null() {
        return None;
    }
    // SAFETY: only `enter` sets the pointer, from a reference that outlives the call, and clears it before it returns,
    // even by unwinding. The lifetimes handed out end with functions of this module, whose callers run inside `enter`.
    Some(unsafe { &*context })
}

fn number_of(mutant: &str) -> u32 {
    list::named(mutant).map_or_else(|| panic!("no mutant is called {mutant}"), |one| one.number)
}

/// Returns whether this thread's machine omits the guard of this mutant.
fn leaves_out(number: u32) -> bool {
    current().is_some_and(|context| context.without.contains(&number))
}

/// Uses the state of the machine that runs on this thread.
///
/// # Panics
/// If there is none, or `body` uses it again.
#[inline]
pub(crate) fn with<R>(body: impl FnOnce(&mut Core) -> R) -> R {
    match current() {
        Some(context) => body(&mut context.core.borrow_mut()),
        None => panic!("no machine is at work on this thread"),
    }
}

/// Returns whether CPUs run. They don't before and after a run, nor while the oracle reads.
#[inline]
pub(crate) fn running() -> bool {
    current().is_some_and(|context| !context.quiet.get())
}

/// Lets the oracle read the kernel's state: words cost nothing, and no other CPU runs.
pub(crate) fn quietly<R>(body: impl FnOnce(&dyn Kernel) -> R) -> Option<R> {
    struct QuietGuard<'c>(&'c Context);
    impl Drop for QuietGuard<'_> {
        fn drop(&mut self) {
            self.0.quiet.set(false);
        }
    }
    let context = current()?;
    let kernel = context.kernel()?;
    context.quiet.set(true);
    let _loud = QuietGuard(context);
    Some(body(kernel))
}

/// Accounts for an operation on a shared word, at its place in the order of time.
#[inline]
#[track_caller]
pub(crate) fn word_access(address: usize, kind: LineUse, order: Ordering) {
    let code = Location::caller();
    let Some(context) = current() else { return };
    if context.quiet.get() {
        return;
    }
    while !context.core.borrow_mut().word(address, kind, order, code) {
        attend(Point::Shared);
    }
}

/// Forgets the line of a dropped word.
#[inline]
pub(crate) fn forget_word(address: usize) {
    if let Some(context) = current()
        && let Ok(mut core) = context.core.try_borrow_mut()
    {
        core.forget_word(address);
    }
}

/// Runs other CPUs and takes interrupts until this CPU may perform its next operation.
#[cold]
pub(crate) fn attend(point: Point) {
    loop {
        match with(|core| core.step(point)) {
            Step::Go => return,
            Step::Suspend => {
                fiber::suspend();
                // Usually it's our CPU's turn then, and nothing has arrived.
                if with(|core| core.may(point)) {
                    return;
                }
            }
            interrupt => take(interrupt),
        }
    }
}

/// Takes the interrupt of a step.
pub(crate) fn take(step: Step) {
    let kernel = current().and_then(Context::kernel);
    match step {
        Step::Interrupt => {
            with(Core::begin_interrupt);
            if let Some(kernel) = kernel {
                kernel.interrupt();
            }
            with(Core::end_interrupt);
        }
        Step::Nmi => {
            with(Core::begin_nmi);
            if let Some(kernel) = kernel {
                kernel.nmi();
            }
            with(Core::end_nmi);
        }
        Step::Go | Step::Suspend => {}
    }
}

/// Takes due interrupts and waits until the CPU may continue in private, then runs `body`.
#[inline]
pub(crate) fn private<R>(body: impl FnOnce(&mut Core) -> R) -> R {
    if running() && !with(|core| core.may_run()) {
        attend(Point::Local);
    }
    with(body)
}

/// Waits until the CPU may perform an operation whose place in the order of time matters, then performs it.
#[inline]
pub(crate) fn shared<R>(body: impl FnOnce(&mut Core) -> R) -> R {
    if running() && !with(|core| core.may_share()) {
        attend(Point::Shared);
    }
    with(body)
}

/// Executes a fence between shared words: an instruction on Arm, on x86 only if it is sequentially consistent.
#[inline]
pub(crate) fn fence(order: Ordering) {
    if running() {
        shared(|core| {
            if core.costs.architecture.fences(order) {
                core.fence();
            }
        });
    }
}

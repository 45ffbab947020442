//! Gives operations access to the current run of this thread.
//!
//! A word is eight bytes and can't refer to its machine. So [`Context::enter`] sets a thread-local pointer to the run's
//! state for the duration of the run. [`with`] lends that state to a closure in which nothing suspends. A `RefCell`
//! checks that.

mod operations;

use crate::action::Op;
use crate::footprint::PassedRules;
use crate::machine::{Core, Verdict};
use crate::mistake::{Mistake, OrderingMistake};
use crate::tables::Arena;
use crate::word::AdversaryWord;
use quell_mutants::Mutant;
use quell_vm::sim::{fiber, heap};
use std::cell::{Cell, RefCell, RefMut};
use std::ptr;
use std::rc::Rc;

/// The functions of a kernel that the machine calls.
pub trait Kernel {
    /// Handles an interrupt that the CPU took. Interrupts are masked.
    fn interrupt(&self);
    /// Handles an NMI that the CPU took.
    fn nmi(&self);
    /// Runs other code on the CPU until that code ends. Interrupts are on.
    ///
    /// It's a thread that preempts the CPU's code, or a device's interrupt handler.
    fn preempt(&self);
    /// Returns a digest of the state that the kernel keeps for a CPU outside of words and stacks.
    fn kept(&self, cpu: usize) -> u64;
}

/// How operations behave.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Everything takes effect at once, and no other CPU runs: before and after the run.
    Quiet,
    /// Every operation is a point, at which other CPUs may run.
    Loud,
}

pub(crate) struct Context {
    core: RefCell<Box<Core>>,
    /// Set only while [`Context::with_kernel`] runs, from a reference that outlives it.
    kernel: Cell<Option<*const dyn Kernel>>,
    mode: Cell<Mode>,
    cpu: Cell<u8>,
    /// The number of the mutant that is on; 0 if none.
    mutant: u32,
    weakened: Option<&'static OrderingMistake>,
    /// The number of the mutant whose places schedules watch; 0 if none.
    watched: u32,
    /// The addresses of words whose stores are relaxed, whatever the code requests.
    weak: RefCell<Vec<usize>>,
    weakens: Cell<bool>,
    /// Whether the mutant is off for the moment.
    spared: Cell<bool>,
    /// Whether the code has panicked.
    panicked: Cell<bool>,
    /// The mutants whose places runs have passed.
    asked: Rc<Cell<PassedRules>>,
    /// Whether it matters when the run passes a mutant's place: for the schedule, or for the footprints.
    attends: bool,
    /// Whether the search compares the stacks of waiting CPUs.
    legible: bool,
    arena: Rc<Arena>,
}

/// Access to the machine ([`Context::visit`]).
struct MachineGuard<'c> {
    core: RefMut<'c, Box<Core>>,
    _off: heap::SystemAllocGuard,
}

/// Runs a closure when it's dropped, even by unwinding.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

thread_local! {
    static CURRENT: Cell<*const Context> = const { Cell::new(ptr::null()) };
    /// The number of the mutant that is on outside runs, or 0.
    static ALONE: Cell<u32> = const { Cell::new(0) };
}

impl Context {
    pub(crate) fn new(
        core: Box<Core>,
        arena: Rc<Arena>,
        asked: Rc<Cell<PassedRules>>,
        mistake: Option<Mistake>,
        watched: Option<&'static Mutant>,
    ) -> Self {
        assert!(
            quell_mutants::list::IN_COPY || !mistake.is_some_and(Mistake::is_of_source),
            "only the copy with the mutants makes mistakes of the source"
        );
        quell_mutants::list::install(makes);
        Context {
            legible: core.searches,
            kernel: Cell::new(None),
            mode: Cell::new(Mode::Quiet),
            cpu: Cell::new(0),
            mutant: match mistake {
                Some(Mistake::Source(mutant)) => mutant.number,
                Some(Mistake::Boundary(_) | Mistake::Ordering(_)) | None => 0,
            },
            weakened: match mistake {
                Some(Mistake::Ordering(weakened)) => Some(weakened),
                _ => None,
            },
            watched: watched.map_or(0, |mutant| mutant.number),
            weak: RefCell::default(),
            weakens: Cell::new(false),
            spared: Cell::new(false),
            panicked: Cell::new(false),
            asked,
            attends: watched.is_some() || core.footprints.is_some(),
            arena,
            core: RefCell::new(core),
        }
    }

    /// Returns the machine, which is at rest.
    pub(crate) fn into_core(self) -> Box<Core> {
        self.core.into_inner()
    }

    /// Makes this the run of the thread while `body` runs.
    ///
    /// # Panics
    /// If the thread is in a run.
    pub(crate) fn enter<R>(&self, body: impl FnOnce() -> R) -> R {
        assert!(CURRENT.get().is_null(), "a run inside a run");
        CURRENT.set(ptr::from_ref(self));
        let _leave = OnDrop(|| CURRENT.set(ptr::null()));
        body()
    }

    /// Makes every operation a point while `body` runs.
    pub(crate) fn loudly<R>(&self, kernel: &dyn Kernel, body: impl FnOnce() -> R) -> R {
        self.with_kernel(kernel, || {
            self.mode.set(Mode::Loud);
            let _hush = OnDrop(|| self.mode.set(Mode::Quiet));
            body()
        })
    }

    /// Calls `kernel` for interrupts while `body` runs.
    pub(crate) fn with_kernel<R>(&self, kernel: &dyn Kernel, body: impl FnOnce() -> R) -> R {
        // The pointer has no lifetime; `_leave` clears it before the kernel's lifetime ends.
        let kernel: *const (dyn Kernel + '_) = kernel;
        // SAFETY: the two types differ only in a lifetime.
        let kernel: *const (dyn Kernel + 'static) = unsafe { std::mem::transmute(kernel) };
        self.kernel.set(Some(kernel));
        let _leave = OnDrop(|| self.kernel.set(None));
        body()
    }

    fn kernel(&self) -> &dyn Kernel {
        let kernel = self.kernel.get().expect("a run in motion has a kernel");
        // SAFETY: `with_kernel` clears the pointer before the kernel's lifetime ends.
        unsafe { &*kernel }
    }

    /// Makes the stores to these words relaxed from now on.
    pub(crate) fn weaken(&self, words: Vec<usize>) {
        self.weakens.set(!words.is_empty());
        *self.weak.borrow_mut() = words;
    }

    /// Runs `body` on the machine. Allocations come from the host, not from the run's heap.
    #[inline]
    pub(crate) fn machine<R>(&self, body: impl FnOnce(&mut Core) -> R) -> R {
        body(&mut self.visit().core)
    }

    /// Borrows the machine. Meanwhile allocations come from the host, not from the run's heap.
    #[inline]
    fn visit(&self) -> MachineGuard<'_> {
        let _off = heap::off_for_now();
        let core = self.core.borrow_mut();
        MachineGuard { core, _off }
    }

    /// Reports to the scheduler and the footprints that the run passes a place of a mutant.
    ///
    /// Does nothing if the machine itself runs the code there: it uses functions of the engine, too.
    fn attend(&self, number: u32) {
        let _off = heap::off_for_now();
        let Ok(mut core) = self.core.try_borrow_mut() else { return };
        let (core, me) = (&mut *core, usize::from(self.cpu.get()));
        if self.watched == number {
            core.strategy.come_by(me, core.decisions);
        }
        if let Some(footprints) = &mut core.footprints {
            footprints.ask(me, number as u16);
        }
    }

    /// Sets the CPU whose code runs from now on.
    pub(crate) fn on_cpu(&self, cpu: usize) {
        self.cpu.set(cpu as u8);
    }
}

#[inline]
fn current<'c>() -> Option<&'c Context> {
    let context = CURRENT.get();
    if context.is_null() {
        return None;
    }
    // SAFETY: only `enter` sets the pointer, from a reference that outlives the call, and clears it before it returns,
    // even by unwinding. No reference from here outlives the functions of this module, whose callers run inside
    // `enter`.
    Some(unsafe { &*context })
}

#[inline]
fn expect<'c>() -> &'c Context {
    current().expect("the machine under the adversary is used outside of a run")
}

/// Uses the machine's state.
#[inline]
pub(crate) fn with<R>(body: impl FnOnce(&mut Core) -> R) -> R {
    expect().machine(body)
}

/// Runs `body` on the machine, for operations that have no reference to it.
pub(crate) fn on_machine<R>(body: impl FnOnce(&mut Core, usize) -> R) -> R {
    let me = this_cpu();
    with(|core| body(core, me))
}

/// Records that a program has finished one of its operations.
pub(crate) fn come_further() {
    on_machine(Core::come_further);
}

/// Returns the CPU whose code runs.
#[inline]
pub(crate) fn this_cpu() -> usize {
    expect().cpu.get().into()
}

/// Returns the CPU whose code runs, for that code.
///
/// After a panic, the CPU stops here for good, before a dropped batch can begin to flush. A flush that failed would
/// fail again, and a panic in a destructor during a panic ends the process.
#[inline]
pub(crate) fn own_number() -> usize {
    let context = expect();
    if context.panicked.get() {
        stop();
    }
    context.cpu.get().into()
}

#[cold]
fn stop() {
    while fiber::is_running() {
        fiber::suspend();
    }
}

/// Returns whether the running code makes the mistake of this mutant.
fn makes(number: u32) -> bool {
    let Some(context) = current() else {
        return ALONE.get() == number;
    };
    // Before the run no other CPU runs, so it doesn't matter which places are passed.
    if context.mode.get() == Mode::Loud {
        context.asked.update(|mut asked| {
            asked.insert(number as u16);
            asked
        });
        if context.attends {
            context.attend(number);
        }
    }
    context.mutant == number && !context.spared.get()
}

/// Runs `body` outside a run, with this mutant on.
pub(crate) fn alone<R>(mutant: &'static Mutant, body: impl FnOnce() -> R) -> R {
    quell_mutants::list::install(makes);
    ALONE.set(mutant.number);
    let done = body();
    ALONE.set(0);
    done
}

/// Handles a panic of the running code. It is a violation, which ends the run at once.
///
/// While the CPU drops its state, it reaches no point at which it would continue ([`own_number`] is one too). If the
/// machine itself panicked, and is borrowed, this returns the account.
pub(crate) fn panicked(account: String) -> Option<String> {
    let Some(context) = current() else {
        return Some(account);
    };
    context.panicked.set(true);
    let me = usize::from(context.cpu.get());
    let _off = heap::off_for_now();
    match context.core.try_borrow_mut() {
        Ok(mut core) => {
            core.fail_panic(me, account);
            None
        }
        Err(_) => Some(account),
    }
}

/// Runs `body` with no mutant on. Before a run, nothing would notice that a CPU waits for ever.
pub(crate) fn faultlessly<R>(body: impl FnOnce() -> R) -> R {
    let context = expect();
    let spared = context.spared.replace(true);
    let _back = OnDrop(|| context.spared.set(spared));
    body()
}

/// Runs `body` as CPU `cpu`, with the stores in that CPU's buffer.
pub(crate) fn as_cpu<R>(cpu: usize, body: impl FnOnce() -> R) -> R {
    let context = expect();
    let me = context.cpu.replace(cpu as u8);
    let done = body();
    context.cpu.set(me);
    done
}

/// Returns the page-table pages of the machine.
#[inline]
pub(crate) fn arena() -> *const Arena {
    Rc::as_ptr(&expect().arena)
}

/// Returns whether a timeline is recorded, which needs the names of words.
#[inline]
pub(crate) fn tracing() -> bool {
    current().is_some_and(|context| context.core.borrow().tracing())
}

/// Lets the targets of an interrupt take it at once. Called for interrupts that are sent while operations aren't
/// points.
pub(crate) fn interrupt_at_once(targets: u8) {
    let context = expect();
    let me = context.cpu.get();
    for cpu in (0..8).filter(|cpu| targets & 1 << cpu != 0) {
        context.cpu.set(cpu);
        context.kernel().interrupt();
    }
    context.cpu.set(me);
}

/// Runs `body` with no operation a point, so that it observes the machine without affecting other CPUs. It works
/// outside runs, too.
pub(crate) fn quietly<R>(body: impl FnOnce() -> R) -> R {
    let _back = current().map(|context| {
        let mode = context.mode.replace(Mode::Quiet);
        OnDrop(move || context.mode.set(mode))
    });
    body()
}

/// Returns the table and the index of the word at this address, if it belongs to a table.
pub(crate) fn place_of(word: usize) -> Option<(u32, usize)> {
    expect().arena.place(word as *const AdversaryWord)
}

/// Forgets a dropped word. Between runs nothing refers to words.
#[inline]
pub(crate) fn forget(word: &AdversaryWord) {
    if let Some(context) = current()
        && context.mode.get() == Mode::Loud
        && let Ok(mut core) = context.core.try_borrow_mut()
    {
        core.forget(word);
    }
}

/// Stores to a word outside points. The translation hardware sees the store.
#[inline]
pub(crate) fn quiet_store(word: &AdversaryWord, value: u64) {
    let Some(context) = current() else {
        return word.poke(value);
    };
    let noticed = context.core.borrow_mut().notices(word, value);
    if noticed {
        context.machine(|core| core.write_visible(word, value));
    } else {
        word.poke(value);
    }
}

/// Waits until the CPU may perform `op`; meanwhile others run and interrupts are taken. Returns `false` if operations
/// aren't points now: the caller then performs it directly.
#[inline(always)]
pub(crate) fn point(op: Op) -> bool {
    loud().is_some_and(|context| context.wait_at(op))
}

/// Returns the run, if every operation is a point now.
#[inline(always)]
pub(crate) fn loud<'c>() -> Option<&'c Context> {
    current().filter(|context| context.mode.get() == Mode::Loud)
}

/// Begins the code of a CPU, whose turn it is.
pub(crate) fn begin(cpu: usize) {
    let context = expect();
    context.cpu.set(cpu as u8);
    let verdict = context.machine(|core| core.resumed(cpu));
    debug_assert_eq!(verdict, Verdict::Go, "a program begins with a step");
}

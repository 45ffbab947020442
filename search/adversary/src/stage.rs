//! Prepares a program's machine, and runs the coroutines of its CPUs.

use crate::action::MAX_CPUS;
use crate::action::Op;
use crate::context::{self, Context, Kernel};
use crate::hardware::Adversary;
use crate::kind::MachineKind;
use crate::machine::{Core, End, SavedMachine};
use crate::mistake::{Mistake, WeakenedOperation};
use crate::timeline;
use quell::{Hardware, PerCpuData, Policy};
use quell_vm::contract::timeline::Line;
use quell_vm::sim::fiber::Fiber;
use quell_vm::sim::heap::{self, Heap, Image};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static QUIET_PANICS: Cell<bool> = const { Cell::new(false) };
    /// The account of a panic of the machine itself.
    static PANIC: Cell<Option<String>> = const { Cell::new(None) };
}

/// The beginning of the message of a panic for lack of memory.
const NO_MEMORY: &str = "the host has no memory for a stack";

/// Keeps panics of the code under test off the terminal, because they are findings.
pub(crate) fn quieten_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            // Without memory no run means anything, and the tested code isn't to blame for such a panic.
            let text = info.payload().downcast_ref::<String>();
            let has_memory = !text.is_some_and(|text| text.starts_with(NO_MEMORY));
            if QUIET_PANICS.get() && has_memory {
                let account = info.to_string().replace('\n', " ");
                PANIC.set(context::panicked(account));
            } else {
                usual(info);
            }
        }));
    });
}

/// The stage of a program: the machine at rest, and the settings of a run.
pub(crate) struct Stage<'s> {
    pub(crate) context: &'s Context,
    pub(crate) kind: MachineKind,
    pub(crate) cpus: usize,
    /// The engine's policy.
    pub(crate) policy: Policy,
    /// The deliberate mistake, if any.
    pub(crate) mistake: Option<Mistake>,
    /// Whether to record a timeline.
    pub(crate) record: bool,
    /// The memory in which programs allocate, if it isn't the host's.
    pub(crate) heap: Option<&'s Heap>,
    /// Whether the heap's content is part of the state, because a manager has records there. Otherwise it has only
    /// words, which the machine tracks itself.
    pub(crate) has_records: bool,
    /// The beginning that an earlier run has kept, or a place to keep one for later runs.
    pub(crate) beginning: &'s Cell<Option<Beginning>>,
    /// Whether the run begins there.
    pub(crate) resumes: bool,
}

/// The beginning of further runs: the machine and the heap as they were when the program was ready.
pub(crate) struct Beginning {
    /// The kernel, which is on the heap.
    pub(crate) kernel: *const (),
    pub(crate) image: Image,
    pub(crate) machine: SavedMachine,
    /// Whether it comes from an exhaustive search, for which the machine tracks more.
    pub(crate) searches: bool,
}

impl Stage<'_> {
    /// Keeps the present moment as the beginning of further runs, if possible. It is if the heap, which contains
    /// `kernel`, and the machine hold everything that preparing the program has changed.
    pub(crate) fn keep(&self, kernel: *const ()) {
        let Some(heap) = self.heap.filter(|heap| heap.holds_everything()) else { return };
        // Weakened stores and timelines are for a single run.
        if self.record || matches!(self.mistake, Some(Mistake::Ordering(_))) {
            return;
        }
        let kept = self.context.machine(|core| {
            let machine = core.save()?;
            Some(Beginning { kernel, image: heap.image(), machine, searches: core.searches })
        });
        self.beginning.set(kept);
    }

    /// Returns the kernel with which the run begins, if it continues from an earlier beginning.
    pub(crate) fn resumed(&self) -> Option<*const ()> {
        if !self.resumes {
            return None;
        }
        let beginning = self.beginning.take()?;
        let kernel = beginning.kernel;
        self.beginning.set(Some(beginning));
        Some(kernel)
    }

    /// Adds the mistake at the boundary to a machine, if that is the run's mistake.
    pub(crate) fn broken(&self, machine: Adversary) -> Adversary {
        machine.with_mistake(match self.mistake {
            Some(Mistake::Boundary(boundary)) => Some(boundary),
            Some(Mistake::Source(_) | Mistake::Ordering(_)) | None => None,
        })
    }

    /// Makes stores to words of these CPUs relaxed, if that is the run's mistake.
    pub(crate) fn weaken<H: Hardware>(&self, cpus: &[PerCpuData<'_, H>]) {
        let Some(Mistake::Ordering(weakened)) = self.mistake else { return };
        let WeakenedOperation::Stores(name) = weakened.what else { return };
        let words = cpus.iter().flat_map(|cpu| {
            let start = std::ptr::from_ref(cpu) as usize;
            let inside = (start..start + size_of_val(cpu)).step_by(size_of::<H::Word>());
            inside.filter(|&word| cpu.word_name(word) == Some(name))
        });
        self.context.weaken(words.collect());
    }

    /// Runs `body` as CPU `cpu` while no other CPU runs, before or after the run itself. Interrupts are taken as they
    /// are sent. A panic is a violation, as in the run.
    pub(crate) fn prepare(&self, cpu: usize, kernel: &dyn Kernel, body: impl FnOnce()) {
        self.context.on_cpu(cpu);
        self.context.with_kernel(kernel, || {
            let quiet = QUIET_PANICS.replace(true);
            // It has its own stack, which we abandon where a panic stops it ([`context::own_number`]).
            let body = || judge_panics(cpu, body);
            let mut fiber = heap::off(|| Fiber::new(body)).expect(NO_MEMORY);
            fiber.resume();
            heap::off(|| drop(fiber));
            QUIET_PANICS.set(quiet);
        });
    }

    /// Runs all CPUs until the run ends. If all programs have ended, `after` checks the result. `names` names words for
    /// the timeline.
    pub(crate) fn perform(
        &self,
        kernel: &dyn Kernel,
        body: &dyn Fn(usize),
        after: &dyn Fn(),
        names: &timeline::WordNames<'_>,
    ) -> Vec<Line> {
        let count = self.cpus;
        let run = || {
            QUIET_PANICS.set(true);
            let mut fibers: [Option<Fiber<'_>>; MAX_CPUS] = Default::default();
            let searches = context::with(|core| core.searches);
            for (cpu, fiber) in fibers.iter_mut().enumerate().take(count) {
                let program = move || act(cpu, body);
                let made = if searches { Fiber::legible(program) } else { Fiber::new(program) };
                *fiber = Some(made.expect(NO_MEMORY));
            }
            let mut next = context::with(Core::begin);
            // The CPUs whose state has changed since we last passed it to the machine, as bits.
            let mut changed = 0u8;
            while let Some(cpu) = next {
                if let Some(fiber) = &mut fibers[cpu] {
                    match self.heap {
                        Some(heap) => heap.on(Some(1 + cpu), || fiber.resume()),
                        None => fiber.resume(),
                    };
                    changed |= 1 << cpu;
                }
                next = context::with(|core| {
                    if core.wants_state() {
                        for (cpu, fiber) in fibers.iter().enumerate() {
                            if let (Some(fiber), true) = (fiber, changed & 1 << cpu != 0) {
                                core.local(cpu, fiber.stack(), kernel.kept(cpu));
                            }
                        }
                        changed = 0;
                        core.digest_heap(self.heap.filter(|_| self.has_records));
                    }
                    core.turn()
                });
            }
            context::with(Core::forget_locals);
            // Freeing in reverse gives each CPU the same stack in the next run.
            for fiber in fibers.iter_mut().rev() {
                *fiber = None;
            }
            QUIET_PANICS.set(false);
        };
        // Memory that we keep from run to run must not come from the programs' heap.
        self.context.loudly(kernel, || heap::off(run));
        if context::with(|core| core.end == Some(End::Finished)) {
            self.prepare(0, kernel, after);
        }
        if !self.record {
            return Vec::new();
        }
        let entries = context::with(|core| core.timeline.take()).unwrap_or_default();
        // The lines outlive everything that the program has allocated.
        heap::off(|| timeline::lines(&entries, names))
    }
}

/// Runs a CPU for a whole run.
fn act(cpu: usize, body: &dyn Fn(usize)) {
    context::begin(cpu);
    judge_panics(cpu, || body(cpu));
    context::with(|core| core.check_end(cpu));
    loop {
        context::point(Op::Park);
    }
}

/// Runs a CPU's code and reports a panic as a violation. Mostly the panic is reported when it begins
/// ([`context::panicked`]), but here if the machine was in use then.
fn judge_panics(cpu: usize, body: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(body)).is_err()
        && let Some(account) = PANIC.take()
    {
        context::with(|core| core.fail_panic(cpu, account));
    }
}

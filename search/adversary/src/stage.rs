//! Where a program performs: the machine at rest, and how its CPUs are set in motion.

use crate::action::MAX_CPUS;
use crate::broken::Broken;
use crate::context::{self, Context, Kernel};
use crate::hardware::Adversary;
use crate::kind::MachineKind;
use crate::machine::{Core, End, Saved};
use crate::mistake::{Mistake, Weak};
use crate::op::Op;
use crate::timeline;
use quell::{Hardware, PerCpu, Policy};
use quell_vm::MemoryMap;
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

/// The beginning of a panic for want of memory.
const NO_MEMORY: &str = "the host has no memory for a stack";

/// Panics of code under test are findings, not messages on the terminal.
pub(crate) fn quieten_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            // Without memory no run means anything: that is not the tested code's panic.
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

/// The machine that engine and manager see.
pub type Hw = Broken<Adversary>;

/// Where a program performs: the machine, at rest, and how to set it in motion.
pub(crate) struct Stage<'s> {
    pub(crate) context: &'s Context,
    /// The machine.
    pub(crate) kind: MachineKind,
    /// How many CPUs it has.
    pub(crate) cpus: usize,
    /// The engine's policy.
    pub(crate) policy: Policy,
    /// The mistake that is made, if one is.
    pub(crate) mistake: Option<Mistake>,
    /// Whether a timeline is wanted.
    pub(crate) record: bool,
    /// Where programs allocate, if not from the host.
    pub(crate) heap: Option<&'s Heap>,
    /// Whether what lies there is part of the state: records of a manager. All else are words, of which the
    /// machine keeps account.
    pub(crate) has_records: bool,
    /// The kernel of an earlier run and what everything was when its programs had been made ready, which it is again;
    /// or where to keep that for later runs.
    pub(crate) beginning: &'s Cell<Option<Beginning>>,
    /// Whether the run begins there.
    pub(crate) resumes: bool,
}

/// Where further runs of a program begin: the machine and the heap as they were when it had been made ready.
pub(crate) struct Beginning {
    /// The kernel, on the heap.
    pub(crate) kernel: *const (),
    pub(crate) image: Image,
    pub(crate) machine: Saved,
    /// Whether that was a run of a search, for which more is kept account of.
    pub(crate) searches: bool,
}

impl Stage<'_> {
    /// Keeps the present moment as that at which further runs begin, if they can: if all that lies on the heap
    /// and in the machine, where `kernel` does, is all that making the program ready has changed.
    pub(crate) fn keep(&self, kernel: *const ()) {
        let Some(heap) = self.heap.filter(|heap| heap.holds_everything()) else {
            return;
        };
        // The stores of a mistaken kernel are weakened for one run, and lines are written for one.
        if self.record || matches!(self.mistake, Some(Mistake::Ordering(_))) {
            return;
        }
        let kept = self.context.machine(|core| {
            let machine = core.save()?;
            Some(Beginning {
                kernel,
                image: heap.image(),
                machine,
                searches: core.searches,
            })
        });
        self.beginning.set(kept);
    }

    /// The kernel with which the run begins, if it goes on where an earlier one did.
    pub(crate) fn resumed(&self) -> Option<*const ()> {
        if !self.resumes {
            return None;
        }
        let beginning = self.beginning.take()?;
        let kernel = beginning.kernel;
        self.beginning.set(Some(beginning));
        Some(kernel)
    }

    /// The machine that the engine sees, with its memory.
    pub(crate) fn machine(&self, memory: MemoryMap) -> Hw {
        self.broken(Adversary::new(self.kind, self.cpus, memory))
    }

    /// A machine, with the mistake that is made at its boundary, if one is.
    pub(crate) fn broken(&self, machine: Adversary) -> Hw {
        let mistake = match self.mistake {
            Some(Mistake::Boundary(boundary)) => Some(boundary),
            _ => None,
        };
        Broken::new(machine, mistake)
    }

    /// Makes the stores relaxed that are to be, in the words of these CPUs.
    pub(crate) fn weaken<H: Hardware>(&self, cpus: &[PerCpu<'_, H>]) {
        let Some(Mistake::Ordering(weakened)) = self.mistake else {
            return;
        };
        let Weak::Stores(name) = weakened.what else {
            return;
        };
        let words = cpus.iter().flat_map(|cpu| {
            let start = std::ptr::from_ref(cpu) as usize;
            let inside = (start..start + size_of_val(cpu)).step_by(size_of::<H::Word>());
            inside.filter(|&word| cpu.word_name(word) == Some(name))
        });
        self.context.weaken(words.collect());
    }

    /// Runs `body` as CPU `cpu`, while no other CPU runs: for what lies before the run, or behind it. Interrupts
    /// are taken as they are sent. A panic is a violation, as in the run.
    pub(crate) fn prepare(&self, cpu: usize, kernel: &dyn Kernel, body: impl FnOnce()) {
        self.context.on_cpu(cpu);
        self.context.with_kernel(kernel, || {
            let quiet = QUIET_PANICS.replace(true);
            // On a stack of its own, which is left where a panic stops it ([`context::own_number`]).
            let body = || judge_panics(cpu, body);
            let mut fiber = heap::off(|| Fiber::new(body)).expect(NO_MEMORY);
            fiber.resume();
            heap::off(|| drop(fiber));
            QUIET_PANICS.set(quiet);
        });
    }

    /// Sets all CPUs in motion until the run ends. If all programs came to their end, `after` looks
    /// at what is left. `names` names words for the timeline.
    pub(crate) fn perform(
        &self,
        kernel: &dyn Kernel,
        body: &dyn Fn(usize),
        after: &dyn Fn(),
        names: &timeline::Names<'_>,
    ) -> Vec<Line> {
        let count = self.cpus;
        let run = || {
            QUIET_PANICS.set(true);
            let mut fibers: [Option<Fiber<'_>>; MAX_CPUS] = Default::default();
            let searches = context::with(|core| core.searches);
            for (cpu, fiber) in fibers.iter_mut().enumerate().take(count) {
                let program = move || act(cpu, body);
                let made = if searches {
                    Fiber::legible(program)
                } else {
                    Fiber::new(program)
                };
                *fiber = Some(made.expect(NO_MEMORY));
            }
            let mut next = context::with(Core::begin);
            // Whose state has changed since it was last told.
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
            // The next run gives each CPU the stack that it had in this one.
            for fiber in fibers.iter_mut().rev() {
                *fiber = None;
            }
            QUIET_PANICS.set(false);
        };
        // Memory that is kept from run to run is not the programs'.
        self.context.loudly(kernel, || heap::off(run));
        if context::with(|core| core.end == Some(End::Finished)) {
            self.prepare(0, kernel, after);
        }
        if !self.record {
            return Vec::new();
        }
        let entries = context::with(|core| core.timeline.take()).unwrap_or_default();
        // It outlives what the program has allocated.
        heap::off(|| timeline::lines(&entries, names))
    }
}

/// The whole life of a CPU in a run.
fn act(cpu: usize, body: &dyn Fn(usize)) {
    context::begin(cpu);
    judge_panics(cpu, || body(cpu));
    context::with(|core| core.check_end(cpu));
    loop {
        context::point(Op::Park);
    }
}

/// Runs what a CPU does; a panic is a violation, noted when it begins ([`context::panicked`]) or, if the machine was in
/// use then, here.
fn judge_panics(cpu: usize, body: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(body)).is_err()
        && let Some(account) = PANIC.take()
    {
        context::with(|core| core.fail_panic(cpu, account));
    }
}

//! Runs: one program, on one machine, under one schedule.
//!
//! A [`Session`] keeps what is dear to make (tables, lists, stacks) from run to run; a run itself
//! allocates nothing for the machine.

use super::context::{self, Context, Kernel};
use super::coverage::Coverage;
use super::kind::MachineKind;
use super::machine::{Core, End, Op};
use super::schedule::{Deviation, Strategy};
use super::search::Exhaustive;
use super::tables::Arena;
use super::timeline;
use crate::scenarios::{Program, Scenario};
use quell::mutant::Mutant;
use quell::{CpuId, Policy};
use quell_contract::timeline::Line;
use quell_contract::{Clause, Violation};
use quell_sim::fiber::Fiber;
use quell_sim::heap::{self, Heap};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Once;

/// The number of decisions after which a run is called endless.
pub const LIMIT: u32 = 40_000;

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The program.
    pub scenario: &'static Scenario,
    /// The machine.
    pub kind: MachineKind,
    /// The engine's policy.
    pub policy: Policy,
    /// A mistake to make.
    pub mutant: Option<Mutant>,
}

/// What became of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Why it ended.
    pub end: End,
    /// How many decisions it took.
    pub decisions: u32,
}

/// The memory of runs, one after another, of one scenario on one machine.
pub struct Session {
    case: Case,
    core: Option<Core>,
    arena: Rc<Arena>,
    /// Where programs over the manager allocate during a search.
    heap: Option<Box<Heap>>,
    /// What happened in all runs so far.
    pub coverage: Coverage,
}

thread_local! {
    static QUIET_PANICS: Cell<bool> = const { Cell::new(false) };
    static PANIC: Cell<Option<String>> = const { Cell::new(None) };
}

/// Panics of code under test are findings, not messages on the terminal.
fn quieten_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if QUIET_PANICS.get() {
                PANIC.set(Some(info.to_string().replace('\n', " ")));
            } else {
                usual(info);
            }
        }));
    });
}

impl Session {
    /// A session for one case.
    pub fn new(case: Case) -> Self {
        quieten_panics();
        let program = &case.scenario.program;
        let arena = Rc::new(Arena::new(program.table_frames()));
        let mut core = Core::new(
            case.kind,
            case.scenario.cpus,
            Rc::clone(&arena),
            program.frames(),
            program.table_frames(),
        );
        core.limit = LIMIT;
        Session {
            case,
            core: Some(core),
            arena,
            heap: None,
            coverage: Coverage::default(),
        }
    }

    /// The case.
    pub fn case(&self) -> &Case {
        &self.case
    }

    /// Runs once under `strategy`, which is given back in the state it has reached.
    pub fn run(&mut self, strategy: Strategy) -> (Run, Strategy) {
        let (run, strategy, _) = self.run_named(strategy, false);
        (run, strategy)
    }

    /// A search through every schedule, by state if this program can show its state.
    pub(crate) fn search(&mut self) -> Exhaustive {
        let engine = matches!(self.case.scenario.program, Program::Engine(_));
        if !engine && self.heap.is_none() {
            self.heap = Heap::new();
        }
        Exhaustive::new(engine || self.heap.is_some())
    }

    /// Runs once as `search` wants it.
    pub(crate) fn run_search(&mut self, search: &mut Exhaustive) -> Run {
        let (run, strategy) = self.run(Strategy::Exhaustive(std::mem::take(search)));
        let Strategy::Exhaustive(reached) = strategy else {
            unreachable!("a search stays a search")
        };
        *search = reached;
        run
    }

    /// Whether the last run has shown what the search of all schedules did not expect when it began:
    /// then it must begin anew.
    pub fn take_surprise(&mut self) -> bool {
        self.core.as_mut().is_some_and(Core::take_surprise)
    }

    /// What the machine was when the last run, one of a search, had ended, without the CPUs' code.
    pub fn last_state(&self) -> u128 {
        self.core.as_ref().map_or(0, Core::state)
    }

    /// How the last run deviated from the fixed scheduler: enough to repeat it.
    pub fn trail(&self) -> Vec<Deviation> {
        self.core
            .as_ref()
            .map(|core| core.trail.clone())
            .unwrap_or_default()
    }

    /// Runs a script and tells what happens step by step.
    pub fn replay(&mut self, deviations: Vec<Deviation>) -> (Run, Vec<Line>) {
        let (run, _, lines) = self.run_named(Strategy::script(deviations), true);
        (run, lines)
    }

    fn run_named(&mut self, strategy: Strategy, record: bool) -> (Run, Strategy, Vec<Line>) {
        let program = &self.case.scenario.program;
        let mut core = self.core.take().expect("a session at rest has its machine");
        core.timeline = record.then(Vec::new);
        core.reset(program.levels());
        core.nmis = self.case.scenario.nmis;
        core.preemptions = self.case.scenario.preemptions;
        core.spurious = self.case.scenario.spurious;
        core.searches = matches!(strategy, Strategy::Exhaustive(_));
        core.fair_after = match &strategy {
            // Whoever searches by state notices where nothing leads on.
            Strategy::Exhaustive(search) if search.by_state() => u32::MAX,
            // A schedule that was found so is no shorter than its last deviation.
            Strategy::Script { deviations, .. } => {
                let last = deviations.last().map_or(0, |deviation| deviation.0);
                self.case.scenario.steps.max(last)
            }
            _ => self.case.scenario.steps,
        };
        core.strategy = strategy;
        let context = Context::new(core, Rc::clone(&self.arena), self.case.mutant);
        let heap = self.heap.as_deref().filter(|_| context.searches());
        let mut lines = Vec::new();
        let mut perform = || {
            context.enter(|| {
                let stage = Stage {
                    context: &context,
                    case: &self.case,
                    record,
                    heap,
                };
                lines = program.perform(stage, &mut self.coverage);
            });
            // What the run has found must outlive its heap, and what lies there must go with it.
            context.machine(|core| core.end.take().clone().unwrap_or(End::Finished))
        };
        let end = match heap {
            Some(heap) => {
                heap.clear();
                heap.on(Some(0), perform)
            }
            None => perform(),
        };
        let mut core = match heap {
            Some(heap) => heap.on(None, || context.into_core()),
            None => context.into_core(),
        };
        let run = Run {
            end,
            decisions: core.decisions,
        };
        self.coverage.add_machine(&core.events);
        let strategy = std::mem::replace(&mut core.strategy, Strategy::script(Vec::new()));
        self.core = Some(core);
        (run, strategy, lines)
    }
}

/// Where a program performs: the machine, at rest, and how to set it in motion.
pub(crate) struct Stage<'s> {
    context: &'s Context,
    pub(crate) case: &'s Case,
    record: bool,
    heap: Option<&'s Heap>,
}

impl Stage<'_> {
    /// Runs `body` as CPU `cpu`, with nobody else about: for what lies before the run. Interrupts
    /// are taken as they are sent.
    pub(crate) fn prepare<R>(
        &self,
        cpu: usize,
        kernel: &dyn Kernel,
        body: impl FnOnce() -> R,
    ) -> R {
        self.context.on_cpu(cpu);
        self.context.with_kernel(kernel, body)
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
        let count = self.case.scenario.cpus;
        let run = || {
            QUIET_PANICS.set(true);
            let mut fibers: [Option<Fiber<'_>>; super::schedule::MAX_CPUS] = Default::default();
            let searches = context::with(|core| core.searches);
            for (cpu, fiber) in fibers.iter_mut().enumerate().take(count) {
                let program = move || act(cpu, body);
                let made = if searches {
                    Fiber::legible(program)
                } else {
                    Fiber::new(program)
                };
                *fiber = Some(made.expect("the host has memory for a stack"));
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
                        core.books(self.heap);
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
        // What is kept from run to run is not the programs'.
        self.context.loudly(kernel, || heap::off(run));
        if context::with(|core| core.end == Some(End::Finished)) {
            self.prepare(0, kernel, after);
        }
        if !self.record {
            return Vec::new();
        }
        let entries = context::with(|core| core.timeline.take()).unwrap_or_default();
        timeline::lines(&entries, names)
    }
}

/// The whole life of a CPU in a run.
fn act(cpu: usize, body: &dyn Fn(usize)) {
    context::begin(cpu);
    if catch_unwind(AssertUnwindSafe(|| body(cpu))).is_err() {
        let account = PANIC.take().unwrap_or_else(|| "the code panicked".into());
        context::with(|core| {
            core.fail(
                // A CPU that stops itself completes nothing.
                Violation::new(Clause::C7, account).by(CpuId(cpu as u16)),
            );
        });
    }
    loop {
        context::point(Op::Park);
    }
}

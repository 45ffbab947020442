//! Runs one program on one machine, under one schedule after another.
//!
//! A [`Session`] keeps expensive memory (tables, lists, stacks) from run to run. If every run prepares the program in
//! the same way, the session also keeps the state after the preparation, and further runs begin there ([`Beginning`]).
//! A run itself allocates nothing for the machine.

use crate::action::Deviation;
use crate::context::Context;
use crate::coverage::Coverage;
use crate::footprint::{Footprints, PassedRules};
use crate::kind::MachineKind;
use crate::machine::{Core, End};
use crate::mistake::Mistake;
use crate::scenario::Scenario;
use crate::schedule::Strategy;
use crate::search::ExhaustiveSearch;
use crate::stage::{Beginning, Stage, quieten_panics};
use crate::tables::Arena;
use quell::Policy;
use quell_mutants::Mutant;
use quell_vm::contract::timeline::Line;
use quell_vm::sim::heap::Heap;
use std::cell::Cell;
use std::rc::Rc;

/// The number of decisions after which we give up a run of a search that distinguishes states, unless its program needs
/// more.
const LIMIT: u32 = 40_000;

/// The inputs of a run, apart from the schedule.
#[derive(Clone, Copy, Debug)]
pub struct Case<'p> {
    /// The program.
    pub scenario: &'p Scenario<'p>,
    /// The machine.
    pub kind: MachineKind,
    /// The engine's policy.
    pub policy: Policy,
    /// The deliberate mistake, if any.
    pub mistake: Option<Mistake>,
}

impl<'p> Case<'p> {
    /// Creates a scenario's case on the named machine, with every mechanism and no mistake.
    ///
    /// # Panics
    /// If no machine has this name.
    pub fn on(scenario: &'p Scenario<'p>, machine: &str) -> Self {
        Case {
            scenario,
            kind: *MachineKind::named(machine).expect("a machine"),
            policy: Policy::ALL,
            mistake: None,
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The reason why the run ended.
    pub end: End,
    /// The number of the scheduler's decisions in the run.
    pub decisions: u32,
    /// The number of moments (steps), including those before the run. It's a measure of the host's cost.
    pub moments: u32,
}

/// The memory that runs of one scenario on one machine share, one run after another.
pub struct Session<'p> {
    case: Case<'p>,
    core: Option<Box<Core>>,
    arena: Rc<Arena>,
    /// The memory of kernels, and of programs over the manager. It has the same addresses in every run, whatever else
    /// the host allocates. An exhaustive search includes its content in the state, and all of it is freed at once.
    heap: Option<Box<Heap>>,
    /// The beginning of further runs, so that we prepare a scenario only once.
    beginning: Cell<Option<Beginning>>,
    /// The counts of the transitions in all runs so far.
    pub coverage: Coverage,
    /// The rule at which CPUs stall under a lurking schedule.
    pub(crate) watched: Option<&'static Mutant>,
    asking: Rc<Cell<PassedRules>>,
}

impl<'p> Session<'p> {
    /// Creates a session for one case.
    pub fn new(case: Case<'p>) -> Self {
        quieten_panics();
        let program = &case.scenario.program;
        let arena = Rc::new(Arena::new(program.table_frames()));
        let core = Core::new(
            case.kind,
            case.scenario.cpus,
            Rc::clone(&arena),
            program.frames(),
            program.table_frames(),
        );
        Session {
            core: Some(Box::new(core)),
            arena,
            heap: case.scenario.lies_on_heap().then(Heap::new).flatten(),
            beginning: Cell::default(),
            coverage: Coverage::default(),
            asking: Rc::default(),
            watched: None,
            case,
        }
    }

    /// Sets the mistake of further runs.
    pub fn set_mistake(&mut self, mistake: Option<Mistake>) {
        self.case.mistake = mistake;
        self.beginning.take();
    }

    /// Starts or stops recording the effects of the CPUs on each other's words. Returns the footprints recorded so far.
    pub(crate) fn watch(&mut self, footprints: Option<Box<Footprints>>) -> Option<Box<Footprints>> {
        let core = self.core.as_mut()?;
        std::mem::replace(&mut core.footprints, footprints)
    }

    /// Returns the mutants whose rules the runs so far have passed.
    ///
    /// A mutant's rule is the place in the code that it changes.
    pub fn asked(&self) -> PassedRules {
        self.asking.get()
    }

    /// Returns the case.
    pub fn case(&self) -> &Case<'p> {
        &self.case
    }

    /// Runs once under `strategy`. Returns the result, and the strategy in the state that it has reached.
    pub fn run(&mut self, strategy: Strategy) -> (Run, Strategy) {
        let (run, strategy, _) = self.run_named(strategy, false);
        (run, strategy)
    }

    /// Creates an exhaustive search. It distinguishes states if this program's state can be read.
    pub(crate) fn search(&self) -> ExhaustiveSearch {
        let on_stack = !self.case.scenario.lies_on_heap();
        ExhaustiveSearch::new(on_stack || self.heap.is_some())
    }

    /// Performs the next run of `search`.
    pub(crate) fn run_search(&mut self, search: &mut ExhaustiveSearch) -> Run {
        let (run, strategy) = self.run(Strategy::Exhaustive(std::mem::take(search)));
        let Strategy::Exhaustive(reached) = strategy else {
            unreachable!("a search stays a search")
        };
        *search = reached;
        run
    }

    /// Returns whether the last run has contradicted an assumption of the exhaustive search.
    ///
    /// If so, the search must begin again.
    pub fn take_surprise(&mut self) -> bool {
        self.core.as_mut().is_some_and(|core| core.take_surprise())
    }

    /// Returns the machine's state after the last run, without the state of the CPUs' code.
    ///
    /// That run must have been part of a search.
    pub fn last_state(&self) -> u128 {
        self.core.as_ref().map_or(0, |core| core.state())
    }

    /// Returns the last run's deviations from the fixed scheduler, which suffice to repeat it.
    pub fn trail(&self) -> Vec<Deviation> {
        self.core.as_ref().map(|core| core.trail.clone()).unwrap_or_default()
    }

    /// Runs the program with these deviations. Returns the result and the run's steps.
    pub fn replay(&mut self, deviations: Vec<Deviation>) -> (Run, Vec<Line>) {
        let (run, _, lines) = self.run_named(Strategy::script(deviations), true);
        (run, lines)
    }

    fn run_named(&mut self, strategy: Strategy, record: bool) -> (Run, Strategy, Vec<Line>) {
        let program = &self.case.scenario.program;
        let mut core = self.core.take().expect("a session at rest has its machine");
        core.timeline = record.then(Vec::new);
        let searches = matches!(strategy, Strategy::Exhaustive(_));
        let heap = self.heap.as_deref();
        let beginning = self.beginning.take();
        let beginning = beginning.filter(|kept| !record && kept.searches == searches);
        match (heap, &beginning) {
            (Some(heap), Some(beginning)) => {
                heap.restore(&beginning.image);
                core.restore(&beginning.machine);
            }
            _ => {
                let Policy { asynchronous, inline_requests, .. } = self.case.policy;
                let receipts = asynchronous && inline_requests;
                core.reset(program.levels(), receipts, heap.map_or(0..0, Heap::range));
            }
        }
        let resumes = beginning.is_some();
        self.beginning.set(beginning);
        core.nmis = self.case.scenario.nmis;
        core.preemptions = self.case.scenario.preemptions;
        core.spurious = self.case.scenario.spurious;
        core.searches = searches;
        core.fair_after = match &strategy {
            // A search by state notices when no path leads to the end.
            Strategy::Exhaustive(search) if search.by_state() => u32::MAX,
            // A schedule found in such a search is at least as long as its last deviation.
            Strategy::Script(script) => {
                let last = script.deviations.last().map_or(0, |deviation| deviation.0);
                self.case.scenario.steps.max(last)
            }
            _ => self.case.scenario.steps,
        };
        let steps = self.case.scenario.steps;
        core.patience = program.patience().max(steps);
        core.limit = match core.fair_after {
            u32::MAX => LIMIT.max(2 * steps),
            fair_after => fair_after.saturating_add(core.patience),
        };
        core.strategy = strategy;
        let context = Context::new(
            core,
            Rc::clone(&self.arena),
            Rc::clone(&self.asking),
            self.case.mistake,
            self.watched,
        );
        let mut lines = Vec::new();
        let mut perform = || {
            context.enter(|| {
                let stage = Stage {
                    context: &context,
                    kind: self.case.kind,
                    cpus: self.case.scenario.cpus,
                    policy: self.case.policy,
                    mistake: self.case.mistake,
                    record,
                    heap,
                    has_records: self.case.scenario.uses_vm(),
                    beginning: &self.beginning,
                    resumes,
                };
                lines = program.perform(stage, &mut self.coverage);
            });
            // The result must outlive the heap, while everything on the heap is freed with it. So we clone the result
            // here.
            context.machine(|core| core.end.take().clone().unwrap_or(End::Finished))
        };
        let end = match heap {
            Some(heap) => {
                if !resumes {
                    heap.clear();
                }
                heap.on(Some(0), perform)
            }
            None => perform(),
        };
        let mut core = match heap {
            Some(heap) => heap.on(None, || context.into_core()),
            None => context.into_core(),
        };
        let run = Run { end, decisions: core.decisions, moments: core.now };
        self.coverage.add_machine(&core.events);
        let strategy = std::mem::replace(&mut core.strategy, Strategy::script(Vec::new()));
        self.core = Some(core);
        (run, strategy, lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cases that cover all the machine's state: contended locks, stores that wait, early loads, interrupts, NMIs,
    /// preemptions, CPUs that go offline and return, and a mistake that breaks the contract.
    const CASES: [(&str, &str, Option<&str>); 14] = [
        ("unmap-access", "x86", None),
        ("nmi-unmap", "riscv", None),
        ("nested-posting", "x86-pcid", None),
        ("spurious", "arm-asid8", None),
        ("offline-two", "arm-reordering", None),
        ("reclaim-protect", "riscv-reordering", None),
        ("vm-unmap-reclaim", "x86", None),
        ("vm-reclaim-fork", "arm-asid16", None),
        ("vm-offline-unmap", "x86-broadcast", None),
        ("vm-rollover-unmap", "arm-asid8", None),
        ("vm-lazy-reclaim-discard", "riscv-reordering", None),
        ("vm-swap-in-write", "arm-reordering", None),
        ("vm-table-free", "x86-pcid", Some("TablesFlushedAsLeaf")),
        ("vm-discard-twice", "riscv", Some("RangeLosesTail")),
    ];

    fn case((scenario, machine, mistake): (&str, &str, Option<&str>)) -> Case<'static> {
        let scenario = Scenario::named(scenario).expect("a scenario");
        Case {
            mistake: mistake.map(|name| Mistake::named(name).expect("a mistake")),
            ..Case::on(scenario, machine)
        }
    }

    fn strategy(seed: u64) -> Strategy {
        match seed % 2 {
            0 => Strategy::random(seed),
            _ => Strategy::pct(seed, 3, 100),
        }
    }

    /// Formats a run's result, as far as it doesn't depend on the host's memory.
    fn told(session: &Session<'_>, run: &Run) -> String {
        let Run { end, decisions, moments, .. } = run;
        let trail = session.trail();
        format!("{end:?} after {decisions} decisions, {moments} moments: {trail:?}")
    }

    #[test]
    fn runs_begin_where_programs_were_made_ready_as_if_they_were_made_ready_anew() {
        for named in CASES {
            let (mut kept, mut anew) = (Session::new(case(named)), Session::new(case(named)));
            let mut resumed = 0;
            for seed in 0..60 {
                resumed += u32::from(kept.beginning.get_mut().is_some());
                let run = kept.run(strategy(seed)).0;
                anew.beginning.take();
                let other = anew.run(strategy(seed)).0;
                assert_eq!(told(&kept, &run), told(&anew, &other), "{named:?}, {seed}");
            }
            let counts = |session: &Session<'_>| format!("{:?}", session.coverage);
            assert_eq!(counts(&kept), counts(&anew), "{named:?}");
            assert!(resumed > 50, "{named:?}");
        }
    }
}

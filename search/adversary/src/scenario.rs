//! Defines a scenario: a small program that races, its machines, and the known bugs that it covers.

use crate::bare_kernel::{self, BareKernel, BareProgram};
use crate::coverage::{Coverage, ReachGoal};
use crate::generated;
use crate::kind::MachineKind;
use crate::stage::Stage;
use crate::vm_kernel::{VmKernel, VmProgram};
use crate::workload::WorkloadRun;
use quell_vm::contract::timeline::Line;

/// A set of machines to which something applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MachineSet {
    /// All machines.
    Every,
    /// Machines that interrupt CPUs for a flush.
    Interrupts,
    /// Machines on which each request is in its target's own cache line, so that requests of all flushes merge.
    ///
    /// They also interrupt CPUs for a flush.
    OwnLines,
    /// The other machines that interrupt CPUs: their CPUs share lines.
    SharedLines,
    /// Machines that broadcast invalidations.
    Broadcast,
    /// Machines on which system-wide tags run out all the time.
    Scarce,
    /// Machines on which each CPU assigns its own tags.
    OwnTags,
    /// Machines whose TLB entries carry tags.
    Tagged,
    /// Machines on which user mode has its own tags.
    Isolated,
    /// Machines on which a TLB may fill the pages of a block from any of its entries.
    Blocks,
}

impl MachineSet {
    /// Returns whether the set includes this machine.
    pub fn includes(self, kind: &MachineKind) -> bool {
        match self {
            MachineSet::Every => true,
            MachineSet::Interrupts => !kind.broadcasts(),
            MachineSet::OwnLines => !kind.broadcasts() && kind.shares_lines_from == usize::MAX,
            MachineSet::SharedLines => !kind.broadcasts() && kind.shares_lines_from != usize::MAX,
            MachineSet::Broadcast => kind.broadcasts(),
            MachineSet::Scarce => kind.scarce_tags(),
            MachineSet::OwnTags => !kind.broadcasts() && kind.tagged(),
            MachineSet::Tagged => kind.tagged(),
            MachineSet::Isolated => kind.isolated,
            MachineSet::Blocks => kind.blocks,
        }
    }
}

/// The program of a scenario's CPUs.
#[derive(Clone, Copy, Debug)]
pub enum Script<'p> {
    /// A program for the engine under the smallest kernel.
    Engine(BareProgram),
    /// A program for the memory manager.
    Vm(VmProgram),
    /// A generated program, which is data.
    Generated(&'p generated::Program),
    /// A workload file.
    Workload(&'p WorkloadRun),
}

impl Script<'_> {
    pub(crate) fn frames(&self) -> usize {
        match self {
            Script::Engine(_) => bare_kernel::FRAMES,
            Script::Vm(program) => program.frames(),
            Script::Generated(program) => program.frames(),
            Script::Workload(performance) => performance.frames(),
        }
    }

    pub(crate) fn table_frames(&self) -> usize {
        match self {
            Script::Engine(_) => bare_kernel::TABLES,
            Script::Vm(program) => program.frames(),
            Script::Generated(program) => program.table_frames(),
            Script::Workload(performance) => performance.frames(),
        }
    }

    pub(crate) fn levels(&self) -> u8 {
        match self {
            Script::Engine(_) => 2,
            Script::Vm(_) | Script::Workload(_) => 4,
            Script::Generated(program) => program.levels(),
        }
    }

    /// Returns the number of fair decisions after which a run counts as endless. It applies to the whole run, or to
    /// each operation of a generated program.
    pub(crate) fn patience(&self) -> u32 {
        match self {
            Script::Engine(_) | Script::Vm(_) | Script::Workload(_) => PATIENCE,
            Script::Generated(program) => program.patience(),
        }
    }

    pub(crate) fn perform(&self, stage: Stage<'_>, coverage: &mut Coverage) -> Vec<Line> {
        match self {
            Script::Engine(program) => program.perform(stage, coverage),
            Script::Vm(program) => program.perform(stage, coverage),
            Script::Generated(program) => program.perform(stage, coverage),
            Script::Workload(performance) => performance.perform(stage, coverage),
        }
    }
}

/// A small program that races, with the machines that it runs on.
#[derive(Clone, Copy, Debug)]
pub struct Scenario<'p> {
    /// The scenario's name on the command line.
    pub name: &'p str,
    /// A description of the race.
    pub about: &'static str,
    /// The known bugs that the scenario covers.
    pub bugs: &'static [&'static str],
    /// The names of the [mistakes](crate::mistake) that the scenario should find. The search for them begins here.
    pub finds: &'static [&'static str],
    /// The number of CPUs.
    pub cpus: usize,
    /// The machines on which the scenario makes sense.
    pub on: MachineSet,
    /// The largest number of NMIs in a run.
    pub nmis: u8,
    /// The largest number of preemptions in a run.
    pub preemptions: u8,
    /// The largest number of interrupts in a run that no CPU sent.
    pub spurious: u8,
    /// The transitions that must happen in some run when every mechanism is on. For example, two requests were merged.
    pub must: [Option<(MachineSet, ReachGoal)>; MOST_REACHED],
    /// The divisor of the number of schedules that a budget allows.
    ///
    /// It exceeds 1 for long runs, so that scenarios with short runs get their share of the time.
    pub one_in: u64,
    /// A number of steps that no run needs.
    ///
    /// After that, the scheduler is fair. A program that still doesn't end violates C7.
    pub steps: u32,
    /// The program.
    pub program: Script<'p>,
}

/// The maximum number of transitions that a scenario must reach.
const MOST_REACHED: usize = 10;

/// The default of [`Scenario::steps`].
const STEPS: u32 = 8_000;

/// The number of fair decisions after which a run counts as endless.
const PATIENCE: u32 = 32_000;

impl Scenario<'static> {
    /// Creates a scenario for the engine. Before the run, every CPU switches to space 0.
    pub(crate) const fn engine(name: &'static str) -> Self {
        Self::of(name, 1, Script::Engine(BareProgram::NONE))
    }

    /// Creates a scenario over the memory manager, with 32 frames of memory.
    pub(crate) const fn over_vm(name: &'static str) -> Self {
        Self::of(name, 4, Script::Vm(VmProgram::NONE))
    }

    /// Sets the description of the race.
    pub(crate) const fn about(mut self, about: &'static str) -> Self {
        self.about = about;
        self
    }

    /// Sets the known bugs that it covers.
    pub(crate) const fn bugs(mut self, bugs: &'static [&'static str]) -> Self {
        self.bugs = bugs;
        self
    }

    /// Sets the mistakes that it should find.
    pub(crate) const fn finds(mut self, finds: &'static [&'static str]) -> Self {
        self.finds = finds;
        self
    }

    /// Adds transitions that must fire at least once on these machines, with every mechanism on.
    ///
    /// # Panics
    /// If there are too many.
    pub(crate) const fn must(mut self, on: MachineSet, reached: &[ReachGoal]) -> Self {
        let (mut at, mut next) = (0, 0);
        while next < reached.len() {
            if self.must[at].is_none() {
                self.must[at] = Some((on, reached[next]));
                next += 1;
            }
            at += 1;
        }
        self
    }

    /// Leaves out all other machines.
    pub(crate) const fn on(mut self, on: MachineSet) -> Self {
        self.on = on;
        self
    }

    /// Allows this many NMIs.
    pub(crate) const fn nmis(mut self, nmis: u8) -> Self {
        self.nmis = nmis;
        self
    }

    /// Allows this many interrupts that no CPU sent.
    pub(crate) const fn spurious(mut self, spurious: u8) -> Self {
        self.spurious = spurious;
        self
    }

    /// Sets the divisor of the number of schedules that a budget allows.
    pub(crate) const fn one_in(mut self, one_in: u64) -> Self {
        self.one_in = one_in;
        self
    }

    /// Sets the number of steps after which scheduling is fair.
    pub(crate) const fn steps(mut self, steps: u32) -> Self {
        self.steps = steps;
        self
    }
}

/// Programs for the engine. All of these panic for a scenario over the manager.
impl Scenario<'static> {
    /// Sets CPU 0's first work before the run.
    pub(crate) const fn start(mut self, first: fn(&BareKernel<'_>)) -> Self {
        self.bare().first = first;
        self
    }

    /// Sets the work of each CPU before the run, in turn. The default is to switch to space 0.
    pub(crate) const fn each(mut self, each: fn(&BareKernel<'_>, usize)) -> Self {
        self.bare().each = each;
        self
    }

    /// Sets CPU 1's last work before the run.
    pub(crate) const fn start_1(mut self, second: fn(&BareKernel<'_>)) -> Self {
        self.bare().second = second;
        self
    }

    /// Adds a CPU with its work during the run.
    pub(crate) const fn cpu(mut self, body: fn(&BareKernel<'_>)) -> Self {
        let number = self.cpus;
        self.bare().cpus[number] = body;
        self.cpus += 1;
        self
    }

    /// Sets the code that preempts CPU 0's work once, anywhere.
    pub(crate) const fn preempted_by(mut self, preempts: fn(&BareKernel<'_>)) -> Self {
        self.bare().preempts = preempts;
        self.preemptions = 1;
        self
    }

    /// Sets the number of flushes that can be deferred at once.
    pub(crate) const fn with_ledger(mut self, ledger: usize) -> Self {
        self.bare().ledger = ledger;
        self
    }

    /// Sets the CPUs, as bits, that a hypervisor has descheduled when they must flush.
    pub(crate) const fn with_unscheduled(mut self, unscheduled: u8) -> Self {
        self.bare().unscheduled = unscheduled;
        self
    }

    const fn bare(&mut self) -> &mut BareProgram {
        match &mut self.program {
            Script::Engine(program) => program,
            _ => panic!("not a scenario of the engine's own"),
        }
    }
}

/// Programs over the manager. All of these panic for a scenario for the engine.
impl Scenario<'static> {
    /// Sets CPU 0's work before the run.
    pub(crate) const fn vm_start(mut self, first: fn(&VmKernel<'_>)) -> Self {
        self.vm_program().first = first;
        self
    }

    /// Sets CPU 1's work after that.
    pub(crate) const fn vm_start_1(mut self, second: fn(&VmKernel<'_>)) -> Self {
        self.vm_program().second = second;
        self
    }

    /// Adds a CPU with its work during the run.
    pub(crate) const fn vm_cpu(mut self, body: fn(&VmKernel<'_>)) -> Self {
        let number = self.cpus;
        self.vm_program().cpus[number] = body;
        self.cpus += 1;
        self
    }

    /// Sets the number of frames of fast memory and of slow memory.
    pub(crate) const fn with_memory(mut self, memory: [u64; 2]) -> Self {
        self.vm_program().memory = memory;
        self
    }

    const fn vm_program(&mut self) -> &mut VmProgram {
        match &mut self.program {
            Script::Vm(program) => program,
            _ => panic!("not a scenario over the manager"),
        }
    }
}

impl<'p> Scenario<'p> {
    /// Creates a scenario without CPUs, for all machines, with neither NMIs nor spurious interrupts.
    pub const fn of(name: &'p str, one_in: u64, program: Script<'p>) -> Self {
        Scenario {
            name,
            about: "",
            bugs: &[],
            finds: &[],
            cpus: 0,
            on: MachineSet::Every,
            nmis: 0,
            preemptions: 0,
            spurious: 0,
            must: [None; MOST_REACHED],
            one_in,
            steps: STEPS,
            program,
        }
    }

    /// Creates a scenario for all machines from a program that is data.
    pub fn generated(name: &'p str, program: &'p generated::Program) -> Self {
        let [nmis, preemptions, spurious] = program.uninvited();
        Scenario {
            about: "a generated program",
            cpus: program.cpus(),
            nmis,
            preemptions,
            spurious,
            steps: program.steps(),
            ..Self::of(name, 1, Script::Generated(program))
        }
    }

    /// Creates a scenario for all machines from a workload. After `steps` steps, its runs are scheduled fairly.
    pub(crate) fn workload(name: &'p str, performance: &'p WorkloadRun, steps: u32) -> Self {
        Scenario {
            about: "a workload file",
            cpus: performance.cpus(),
            steps,
            ..Self::of(name, 1, Script::Workload(performance))
        }
    }

    /// Returns whether the scenario runs over the memory manager.
    pub fn uses_vm(&self) -> bool {
        match self.program {
            Script::Engine(_) => false,
            Script::Vm(_) | Script::Workload(_) => true,
            Script::Generated(program) => program.uses_vm(),
        }
    }

    /// Returns whether its kernel is on the heap of its session ([`quell_vm::sim::heap`]). Such a kernel is created in
    /// the same way for every run.
    pub(crate) fn lies_on_heap(&self) -> bool {
        matches!(self.program, Script::Engine(_)) || self.uses_vm()
    }

    /// Returns whether the scenario makes sense on a machine.
    pub fn runs_on(&self, kind: &MachineKind) -> bool {
        self.on.includes(kind) && (self.on == MachineSet::Isolated || !kind.isolated)
    }
}

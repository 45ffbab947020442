//! What a scenario is: a small program that races, the machines on which it makes sense, the bugs
//! that it is about.

use crate::bare_kernel::{self, BareKernel, BareProgram};
use crate::coverage::{Coverage, Reach};
use crate::generated;
use crate::generated::performed::Performed;
use crate::kind::MachineKind;
use crate::stage::Stage;
use crate::vm_kernel::{VmKernel, VmProgram};
use crate::workload::Performance;
use quell_vm::contract::timeline::Line;

/// On which machines something applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum On {
    /// On all.
    Every,
    /// Where CPUs are interrupted for a flush.
    Interrupts,
    /// Where, moreover, each request lies in its target's own line, so requests of all flushes merge.
    OwnLines,
    /// Where invalidations are broadcast.
    Broadcast,
    /// Where system-wide tags run out all the time.
    Scarce,
    /// Where each CPU gives tags their meaning.
    OwnTags,
    /// Where entries carry tags.
    Tagged,
    /// Where user mode has tags of its own.
    Isolated,
    /// Where a TLB may fill pages of a block from any entry of it.
    Blocks,
}

impl On {
    /// Whether it applies on this machine.
    pub fn includes(self, kind: &MachineKind) -> bool {
        match self {
            On::Every => true,
            On::Interrupts => !kind.broadcasts(),
            On::OwnLines => !kind.broadcasts() && kind.shares_lines_from == usize::MAX,
            On::Broadcast => kind.broadcasts(),
            On::Scarce => kind.scarce_tags(),
            On::OwnTags => !kind.broadcasts() && kind.tagged(),
            On::Tagged => kind.tagged(),
            On::Isolated => kind.isolated,
            On::Blocks => kind.blocks,
        }
    }
}

/// What a scenario's CPUs run.
#[derive(Clone, Copy, Debug)]
pub enum Script<'p> {
    /// The engine under the smallest kernel.
    Engine(BareProgram),
    /// The memory manager.
    Vm(VmProgram),
    /// What is written as data.
    Generated(&'p generated::Program),
    /// A workload file.
    Workload(&'p Performance),
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

    /// How many decisions, all of them fair, a run may take before it is called endless: the whole run, or
    /// each operation of a generated one.
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

/// A small program that races.
#[derive(Clone, Copy, Debug)]
pub struct Scenario<'p> {
    /// Its name on the command line.
    pub name: &'p str,
    /// What races with what.
    pub about: &'static str,
    /// The known bugs that it is about.
    pub bugs: &'static [&'static str],
    /// The names of the [mistakes](crate::mistake) that it is there to find, and in which they are looked for
    /// first.
    pub finds: &'static [&'static str],
    /// How many CPUs it has.
    pub cpus: usize,
    /// On which machines it makes sense.
    pub on: On,
    /// How many NMIs may happen.
    pub nmis: u8,
    /// How often a CPU may be preempted.
    pub preemptions: u8,
    /// How many interrupts that no CPU sent may come.
    pub spurious: u8,
    /// What must happen at least once, with every mechanism on.
    pub must: [Option<(On, Reach)>; MOST_REACHED],
    /// Of the schedules that a budget allows, one in so many is run: more than 1 where runs are long,
    /// so that the short ones get their share of the time.
    pub one_in: u64,
    /// More steps than a run takes: those that come later are scheduled fairly, and a program that is not
    /// through then never will be (C7).
    pub steps: u32,
    /// What the CPUs run.
    pub program: Script<'p>,
}

/// How many transitions a scenario may have to reach.
const MOST_REACHED: usize = 10;

/// [`Scenario::steps`], unless a scenario says otherwise.
const STEPS: u32 = 8_000;

/// How many fair decisions follow before a run is called endless.
const PATIENCE: u32 = 32_000;

impl Scenario<'static> {
    /// A scenario of the engine's own. Before the run every CPU switches to space 0.
    pub(crate) const fn engine(name: &'static str) -> Self {
        Self::of(name, 1, Script::Engine(BareProgram::NONE))
    }

    /// A scenario over the memory manager, with 32 frames of memory.
    pub(crate) const fn over_vm(name: &'static str) -> Self {
        Self::of(name, 4, Script::Vm(VmProgram::NONE))
    }

    /// Sets what races with what.
    pub(crate) const fn about(mut self, about: &'static str) -> Self {
        self.about = about;
        self
    }

    /// Sets the known bugs that it is about.
    pub(crate) const fn bugs(mut self, bugs: &'static [&'static str]) -> Self {
        self.bugs = bugs;
        self
    }

    /// Sets the mistakes that it is there to find.
    pub(crate) const fn finds(mut self, finds: &'static [&'static str]) -> Self {
        self.finds = finds;
        self
    }

    /// Adds transitions that must happen at least once on these machines, with every mechanism on.
    ///
    /// # Panics
    /// If there are too many.
    pub(crate) const fn must(mut self, on: On, reached: &[Reach]) -> Self {
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

    /// Leaves out the other machines.
    pub(crate) const fn on(mut self, on: On) -> Self {
        self.on = on;
        self
    }

    /// Allows so many NMIs.
    pub(crate) const fn nmis(mut self, nmis: u8) -> Self {
        self.nmis = nmis;
        self
    }

    /// Allows so many interrupts that no CPU sent.
    pub(crate) const fn spurious(mut self, spurious: u8) -> Self {
        self.spurious = spurious;
        self
    }

    /// Runs one in so many of the schedules that a budget allows.
    pub(crate) const fn one_in(mut self, one_in: u64) -> Self {
        self.one_in = one_in;
        self
    }

    /// Schedules fairly after so many steps.
    pub(crate) const fn steps(mut self, steps: u32) -> Self {
        self.steps = steps;
        self
    }
}

/// Programs of the engine's own. All of these panic for a scenario over the manager.
impl Scenario<'static> {
    /// Before the run: what CPU 0 does first.
    pub(crate) const fn start(mut self, first: fn(&BareKernel<'_>)) -> Self {
        self.bare().first = first;
        self
    }

    /// Before the run: what each CPU in turn does instead of switching to space 0.
    pub(crate) const fn each(mut self, each: fn(&BareKernel<'_>, usize)) -> Self {
        self.bare().each = each;
        self
    }

    /// Before the run: what CPU 1 does last.
    pub(crate) const fn start_1(mut self, second: fn(&BareKernel<'_>)) -> Self {
        self.bare().second = second;
        self
    }

    /// Adds a CPU, and what it does.
    pub(crate) const fn cpu(mut self, body: fn(&BareKernel<'_>)) -> Self {
        let number = self.cpus;
        self.bare().cpus[number] = body;
        self.cpus += 1;
        self
    }

    /// `preempts` runs once, in the middle of what a CPU does.
    pub(crate) const fn preempted_by(mut self, preempts: fn(&BareKernel<'_>, usize)) -> Self {
        self.bare().preempts = preempts;
        self.preemptions = 1;
        self
    }

    /// Sets how many flushes can be deferred at once.
    pub(crate) const fn with_ledger(mut self, ledger: usize) -> Self {
        self.bare().ledger = ledger;
        self
    }

    /// A hypervisor does not run these CPUs when they are asked to flush.
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

/// Programs over the manager. All of these panic for a scenario of the engine's own.
impl Scenario<'static> {
    /// Before the run: what CPU 0 does.
    pub(crate) const fn vm_start(mut self, first: fn(&VmKernel<'_>)) -> Self {
        self.vm_program().first = first;
        self
    }

    /// Before the run: what CPU 1 does after that.
    pub(crate) const fn vm_start_1(mut self, second: fn(&VmKernel<'_>)) -> Self {
        self.vm_program().second = second;
        self
    }

    /// Adds a CPU, and what it does.
    pub(crate) const fn vm_cpu(mut self, body: fn(&VmKernel<'_>)) -> Self {
        let number = self.cpus;
        self.vm_program().cpus[number] = body;
        self.cpus += 1;
        self
    }

    /// So many frames of fast memory and of slow memory.
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
    /// A scenario without CPUs, on all machines, with neither NMIs nor spurious interrupts.
    pub const fn of(name: &'p str, one_in: u64, program: Script<'p>) -> Self {
        Scenario {
            name,
            about: "",
            bugs: &[],
            finds: &[],
            cpus: 0,
            on: On::Every,
            nmis: 0,
            preemptions: 0,
            spurious: 0,
            must: [None; MOST_REACHED],
            one_in,
            steps: STEPS,
            program,
        }
    }

    /// A program that is data, as a scenario on all machines.
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

    /// A workload as a scenario on all machines; after so many steps its runs are scheduled fairly.
    pub(crate) fn workload(name: &'p str, performance: &'p Performance, steps: u32) -> Self {
        Scenario {
            about: "a workload file",
            cpus: performance.cpus(),
            steps,
            ..Self::of(name, 1, Script::Workload(performance))
        }
    }

    /// Whether the scenario runs over the memory manager.
    pub fn uses_vm(&self) -> bool {
        match self.program {
            Script::Engine(_) => false,
            Script::Vm(_) | Script::Workload(_) => true,
            Script::Generated(program) => program.uses_vm(),
        }
    }

    /// Whether its kernel lies on the heap of its session ([`quell_vm::sim::heap`]): a kernel that is made in the same
    /// way for every run.
    pub(crate) fn lies_on_heap(&self) -> bool {
        matches!(self.program, Script::Engine(_)) || self.uses_vm()
    }

    /// Whether the scenario makes sense on a machine.
    pub fn runs_on(&self, kind: &MachineKind) -> bool {
        self.on.includes(kind) && (self.on == On::Isolated || !kind.isolated)
    }
}

//! Runs one kernel on a machine, and one program on each of its CPUs.
//!
//! The result depends on the inputs alone. The same machine file, kernel, program and seed give the same result on
//! every host, to the last picosecond.

use crate::clock::Clock;
use crate::context::{self, Context};
use crate::core::Core;
use crate::costs::Costs;
use crate::counts::Counts;
use crate::cpu::{Activity, Cpu};
use crate::file::{MachineFile, Parameter, Time};
use crate::kernel::Kernel;
use crate::latency::Latency;
use crate::machine::{self, Model};
use crate::memory::{Memory, Tables};
use crate::moves::LineMove;
use crate::program::{ModelUser, Progress, SHARED_WORDS};
use crate::trace::Trace;
use crate::word::Line;
use quell::{Extent, Frame};
use quell_vm::contract::Violation;
use quell_vm::sim::fiber::{Fiber, State};
use quell_vm::{MemoryMap, Node};
use rand::RngExt;
use rand_pcg::Pcg64;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Instant;

/// The first frame of memory. We omit the first 16 MB, as on real machines.
const FIRST_FRAME: u64 = 4096;

/// The random stream of the machine. The program of CPU `n` uses stream `n`.
const STREAM: u128 = 1 << 32;
/// The end of any run, two hours. An [agenda](crate::clock) key has room for later times, so no wake-up overflows.
const LATEST: Time = 7_200_000_000_000_000;
/// The default receiver of progress.
static NOT_ASKED: Progress = Progress::new();

/// The inputs of a run on the machine.
#[derive(Clone, Debug)]
pub struct Setup<'f> {
    /// The machine file.
    pub machine: &'f MachineFile,
    /// The number of CPUs. `None` means the machine file's number.
    pub cpus: Option<usize>,
    /// The seed of the program's random choices and of the CPUs' starting times.
    pub seed: u64,
    /// The number of events that the trace keeps; 0 records none.
    pub trace: usize,
    /// Whether to record [which cache lines move](RunResult::moves).
    pub lines: bool,
    /// The time by which a CPU may run ahead of the others. `None` means the maximum.
    ///
    /// The maximum is the shortest latency of an interrupt between CPUs. The value affects only page-table walks: above
    /// 0, a walk may read a table before others have made their earlier stores to it.
    pub lookahead: Option<Time>,
    /// The size of each ordinary memory node in bytes, instead of the machine file's. Experiments use less memory.
    pub node_bytes: Option<u64>,
    /// The size of each slow memory node in bytes, instead of the machine file's.
    pub slow_node_bytes: Option<u64>,
    /// The limit of virtual time without a step of the program ([`User::step`](quell_vm::User::step)).
    ///
    /// Beyond it the run ends with an error.
    pub limit: Time,
    /// A place for the run's progress, which other threads can read.
    pub progress: &'f Progress,
    /// The guards of engine and manager to omit, by the names of their mutants. This measures the guards' cost.
    ///
    /// It works only in the [instrumented copy](quell_mutants) of the workspace. Such a run may end with an error, or
    /// break the contract, which the oracle reports.
    pub without: &'f [&'f str],
}

impl<'f> Setup<'f> {
    /// Creates the inputs for a machine, with defaults for the rest.
    ///
    /// The defaults are seed 0, no trace, all guards, and a limit of a minute of virtual time for each step.
    pub fn new(machine: &'f MachineFile) -> Self {
        Setup {
            machine,
            cpus: None,
            seed: 0,
            trace: 0,
            lines: false,
            lookahead: None,
            node_bytes: None,
            slow_node_bytes: None,
            limit: 60_000_000_000_000,
            progress: &NOT_ASKED,
            without: &[],
        }
    }
}

/// Returns advice for a machine that the engine refuses.
fn way_out(why: &quell::EngineError) -> &'static str {
    match why {
        quell::EngineError::BroadcastOfPerCpuTags
        | quell::EngineError::GlobalTagsWithoutBroadcast => {
            "change tlb.tags (\"none\" works with either) or broadcast.hardware in its file"
        }
        _ => "use fewer CPUs, or a machine with more tags",
    }
}

/// The reason why a run has no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The engine doesn't support the machine with this number of CPUs.
    #[error("the engine refuses the machine: {why}; {way_out}", why = .0, way_out = way_out(.0))]
    Unsupported(quell::EngineError),
    /// Every CPU waits, and no event that could wake one is under way (C7).
    #[error("C7: every CPU waits for ever: {0}")]
    Stuck(String),
    /// The program made no step in the allowed virtual time. That violates C7 (progress), unless the program computes
    /// that long.
    #[error(
        "no step in {seconds} s of virtual time: {what}; an endless loop, a violation of C7, or too few `progress` statements"
    )]
    Endless {
        /// The limit.
        seconds: f64,
        /// The activity of the CPUs.
        what: String,
    },
    /// The program made progress, but its time exceeds the clock's range.
    #[error("the program still runs after {} h of virtual time; reduce its work", LATEST / 3_600_000_000_000_000)]
    TooLong,
    /// The kernel or the program panicked.
    #[error("CPU {cpu} panicked: {message}")]
    Panic {
        /// The CPU.
        cpu: usize,
        /// The panic's message.
        message: String,
    },
    /// The host has no memory for the CPUs' stacks.
    #[error("no memory for the stack of a CPU")]
    Stack(#[from] std::io::Error),
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct RunResult {
    /// The virtual time at which the last CPU's program ended, in picoseconds.
    pub elapsed: Time,
    /// The virtual time at which each CPU's program ended.
    pub times: Vec<Time>,
    /// The event counts of each CPU.
    pub cpus: Vec<Counts>,
    /// The time between the program's marks in picoseconds, and all CPUs' counts in that time. `None` without marks.
    pub window: Option<(Time, Counts)>,
    /// The durations of the calls that began and ended between the program's marks, by name.
    pub latencies: Vec<Latency>,
    /// The moves of cache lines between cores, if [`Setup::lines`] enabled their record.
    ///
    /// They're those between the program's marks, or of the whole run without marks.
    pub moves: Option<Vec<LineMove>>,
    /// The number of violations of the contract that the oracle found.
    pub violation_count: u64,
    /// The first violations.
    pub violations: Vec<Violation>,
    /// The number of accesses that break a clause which the [policy](MachineFile::policy) gives up.
    pub expected_violations: u64,
    /// The trace. It's empty unless [`Setup::trace`] enabled it.
    pub trace: Trace,
    /// The host's time in seconds. Only this figure differs from run to run.
    pub host_seconds: f64,
}

impl RunResult {
    /// Returns the sum of all CPUs' counts.
    pub fn counts(&self) -> Counts {
        self.cpus.iter().copied().sum()
    }

    /// Returns the number of program accesses that the host simulated per second.
    pub fn accesses_per_second(&self) -> f64 {
        self.counts().accesses as f64 / self.host_seconds
    }
}

/// A machine without a kernel, as [`Setup::run`] builds it.
pub struct BuiltMachine<'c> {
    context: &'c Context,
    model: &'c Model,
    setup: &'c Setup<'c>,
}

impl<'c> BuiltMachine<'c> {
    /// Returns the machine, on which the kernel is built.
    pub fn model(&self) -> &'c Model {
        self.model
    }

    /// Runs `program` on every CPU under this kernel.
    ///
    /// Each CPU gets its own [`ModelUser`]. The kernel's words are built and dropped outside of this call, at no
    /// virtual cost.
    ///
    /// # Errors
    /// See [`RunError`]. Violations of the contract aren't errors: the result contains them.
    pub fn go(
        &self,
        kernel: &dyn Kernel,
        program: &dyn Fn(&ModelUser<'_>),
    ) -> Result<RunResult, RunError> {
        self.context.serve(kernel, || drive(self, kernel, program))
    }
}

impl Setup<'_> {
    fn memory_map(&self) -> MemoryMap {
        let file = self.machine;
        let frames = |bytes: Option<u64>, parameter| {
            bytes.unwrap_or_else(|| file.count(parameter) as u64) / quell::PAGE_BYTES
        };
        let fast = frames(self.node_bytes, Parameter::NodeSize);
        let slow = frames(self.slow_node_bytes, Parameter::SlowSize);
        let mut nodes = Vec::new();
        let mut first = FIRST_FRAME;
        let mut add = |frames: u64, slow: bool| {
            nodes.push(Node { extent: Extent { first: Frame(first), frames }, slow });
            // We start nodes at multiples of 1 GB, so that huge pages fit.
            first = (first + frames).next_multiple_of(1 << 18);
        };
        for _ in 0..file.count(Parameter::Nodes) {
            add(fast, false);
        }
        for _ in 0..file.count(Parameter::SlowNodes) {
            add(slow, true);
        }
        MemoryMap::new(&nodes)
    }

    /// Builds the machine, and lets `boot` build a kernel and run programs on it.
    ///
    /// # Errors
    /// Those of `boot`, or if the engine doesn't support the machine.
    ///
    /// # Panics
    /// If a machine is running on this thread already.
    pub fn run(
        &self,
        boot: impl FnOnce(&BuiltMachine<'_>) -> Result<RunResult, RunError>,
    ) -> Result<RunResult, RunError> {
        let cpus = self.cpus.unwrap_or_else(|| self.machine.count(Parameter::Cpus));
        let costs = Costs::new(self.machine);
        costs.features().check(cpus).map_err(RunError::Unsupported)?;
        let map = self.memory_map();
        let end = map.nodes().iter().map(|node| node.extent.first.0 + node.extent.frames);
        let all = Extent { first: Frame(0), frames: end.max().unwrap_or(0) };
        let tables = Arc::new(Tables::new(all));
        let mut states: Vec<Cpu> = (0..cpus).map(|_| Cpu::new(&costs)).collect();
        let mut random = Pcg64::new(self.seed.into(), STREAM);
        for cpu in states.iter_mut().skip(1) {
            // CPUs of a real machine never start in step. We start them within a tenth of a microsecond.
            cpu.now = random.random_range(0..100_000);
        }
        let exact = costs.shortest_influence();
        let lookahead = self.lookahead.unwrap_or(exact).min(exact);
        let clock = Clock::new(&states, lookahead, costs.idle_wake);
        let model = Model::new(&costs, cpus, map, tables.clone());
        let mut core =
            Core::new(costs, states, map, tables, Memory::new(all), clock, Trace::new(self.trace));
        core.moves = self.lines.then(Box::default);
        let context = Context::new(core, self.without);
        context.enter(|| boot(&BuiltMachine { context: &context, model: &model, setup: self }))
    }
}

/// Runs the CPUs until all programs have ended.
fn drive(
    bench: &BuiltMachine<'_>,
    kernel: &dyn Kernel,
    program: &dyn Fn(&ModelUser<'_>),
) -> Result<RunResult, RunError> {
    let began = Instant::now();
    let cpus = context::with(|core| core.cpus.len());
    let control: [Line<1>; SHARED_WORDS] = std::array::from_fn(|_| Line::new());
    let tally = Cell::new(0);
    let panicked: RefCell<Option<(usize, Box<dyn Any + Send>)>> = RefCell::new(None);
    let mut fibers = Vec::with_capacity(cpus);
    for cpu in 0..cpus {
        let user = ModelUser {
            cpu,
            cpus,
            kernel,
            control: &control,
            tally: &tally,
            progress: bench.setup.progress,
        };
        let panicked = &panicked;
        fibers.push(Fiber::new(move || {
            let body = || {
                kernel.online();
                program(&user);
            };
            if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(body)) {
                panicked.replace(Some((cpu, payload)));
                return;
            }
            context::with(Core::end_program);
            // We keep it halted: the others may still need it to answer interrupts.
            kernel.idle();
            loop {
                machine::pass(Time::MAX, Activity::Halted);
            }
        })?);
    }
    context::with(Core::come_up);
    loop {
        let next = context::with(|core| match core.programs {
            0 => None,
            _ => Some(core.choose().map(|chosen| (chosen, core.cpus[chosen].now))),
        });
        let Some(chosen) = next else { break };
        let Some((chosen, now)) = chosen else {
            return Err(RunError::Stuck(context::with(|core| describe(core))));
        };
        if now > context::with(|core| core.stepped) + bench.setup.limit {
            return Err(RunError::Endless {
                seconds: bench.setup.limit as f64 / 1e12,
                what: context::with(|core| describe(core)),
            });
        }
        if now > LATEST {
            return Err(RunError::TooLong);
        }
        if fibers[chosen].resume() == State::Done
            && let Some((cpu, payload)) = panicked.borrow_mut().take()
        {
            let message = message_of(payload.as_ref());
            return Err(RunError::Panic { cpu, message });
        }
    }
    drop(fibers);
    let host_seconds = began.elapsed().as_secs_f64();
    Ok(context::with(|core| RunResult {
        elapsed: core.cpus.iter().filter_map(|cpu| cpu.ended).max().unwrap_or(0),
        times: core.cpus.iter().filter_map(|cpu| cpu.ended).collect(),
        cpus: core.cpus.iter().map(|cpu| cpu.counts).collect(),
        window: core.window,
        latencies: std::mem::take(&mut core.latencies).sorted(),
        moves: core.moves.take().map(|moves| moves.sorted()),
        violation_count: core.oracle.found,
        violations: std::mem::take(&mut core.oracle.violations),
        expected_violations: core.oracle.expected,
        trace: std::mem::take(&mut core.trace),
        host_seconds,
    }))
}

/// Describes each CPU's activity in a line: the first few CPUs and the number of others.
fn describe(core: &Core) -> String {
    let mut parts: Vec<String> = core
        .cpus
        .iter()
        .enumerate()
        .filter(|(_, cpu)| cpu.ended.is_none())
        .map(|(number, cpu)| {
            let masked = if cpu.masked { ", interrupts off" } else { "" };
            let pending = match cpu.arrivals.len() {
                0 => String::new(),
                some => format!(", {some} interrupts pending"),
            };
            let doing = match (&cpu.activity, &cpu.call) {
                (Activity::Halted, _) => "halted".to_owned(),
                (_, Some((call, _))) => format!("in {call:?}"),
                _ => "in its program".to_owned(),
            };
            let line = match cpu.line {
                0 => String::new(),
                line => format!(" at line {line}"),
            };
            format!("CPU {number} {doing}{line}{masked}{pending}")
        })
        .collect();
    let more = parts.len().saturating_sub(8);
    parts.truncate(8);
    if more > 0 {
        parts.push(format!("and {more} more"));
    }
    parts.join("; ")
}

/// Returns the text of a panic.
fn message_of(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into())
}

//! Runs a workload file on all CPUs.

use super::memory::{Machine, Memory};
use super::oracle::Activity;
use super::watch::{self, IdleSnapshot, UnreportedWork, Watch};
use crate::{cores, handler};
use quell::{
    Engine, Extent, Features, Frame, Hardware, LedgerEntry, PerCpuData, Policy, Stats, Tagging,
};
use quell_mutants::Mutant;
use quell_vm::contract::{Clause, Violation};
use quell_vm::{Access, Call, Error, Fault, Mark, MemoryMap, Node, User, Vm, VmConfig};
use quell_workloads::{Failure, WORDS, Window, Workload, abandon};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The maximum amount of memory that a workload may touch, in all nodes, because the host must have it.
const MOST_BYTES: u64 = 4 << 30;
/// The number of ledger entries.
const LEDGER_ENTRIES: usize = 64;
/// The alignment of nodes, in frames: that of the largest page.
const NODE_ALIGNMENT: u64 = 1 << 18;

/// The inputs of a run.
#[derive(Clone, Copy, Debug)]
pub struct ProgramRun {
    /// The workload.
    pub workload: Workload,
    /// The number of CPUs.
    pub cpus: usize,
    /// The mechanisms that are on.
    pub policy: Policy,
    /// The seed of the workload's random choices; the host determines the interleaving.
    pub seed: u64,
    /// The mutant to turn on. A violation turns it off, so that the run can end.
    pub without: Option<&'static Mutant>,
}

/// The reason why a run has no report.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The workload can't run here as it is.
    #[error("{workload}: {why}")]
    Unfit {
        /// The name of the workload.
        workload: &'static str,
        /// The reason, and a remedy.
        why: String,
    },
    /// The workload failed.
    #[error("{workload}, CPU {cpu}: {failure}")]
    Failed {
        /// The workload's file.
        workload: &'static str,
        /// The CPU on which it failed.
        cpu: usize,
        /// The reason.
        failure: Failure,
    },
    /// The workload makes no progress, although no CPU waits in the kernel for ever.
    #[error("{workload}: {why}; {at}")]
    Stuck {
        /// The workload's file.
        workload: &'static str,
        /// The evidence, and a remedy.
        why: &'static str,
        /// The lines of the file at which the CPUs are.
        at: String,
    },
}

/// The results of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The first violation, if any. A violation ends the run early.
    pub violation: Option<Violation>,
    /// The number of operations in the measured window, as the workload counts them.
    pub operations: u64,
    /// The number of programs' accesses, each of which was checked.
    pub accesses: u64,
    /// The number of page faults.
    pub faults: u64,
    /// The number of system calls.
    pub calls: u64,
    /// The engine's counts over the whole run.
    pub engine: Stats,
    /// The engine's counts in the measured window. Without a window they're those of the whole run.
    pub engine_window: Stats,
}

impl ProgramRun {
    fn unfit(&self, why: String) -> RunError {
        RunError::Unfit { workload: self.workload.name(), why }
    }

    /// Returns the memory that it needs.
    fn map(&self) -> Result<MemoryMap, RunError> {
        self.workload.check(self.cpus).map_err(|why| self.unfit(why))?;
        let touched = self.workload.touched(self.cpus);
        let [bytes, nodes, slow] =
            touched.map_err(|why| self.unfit(format!("the memory that it needs: {why}")))?;
        let touched = bytes.saturating_mul(nodes).saturating_add(slow);
        if touched > MOST_BYTES {
            let (needed, most) = (touched.div_ceil(1 << 20), MOST_BYTES >> 20);
            return Err(self.unfit(format!(
                "needs {needed} MB of memory; a machine of threads has at most {most} MB: use smaller parameters"
            )));
        }
        let memory = self.workload.memory(self.cpus);
        let mut first = NODE_ALIGNMENT;
        let mut nodes: Vec<Node> = Vec::new();
        let near = (0..memory.nodes).map(|_| (memory.node, false));
        for (bytes, slow) in near.chain(memory.slow.map(|bytes| (bytes, true))) {
            let frames = bytes.div_ceil(4096);
            let extent = Extent { first: Frame(first), frames };
            nodes.push(Node { extent, slow });
            first += frames.next_multiple_of(NODE_ALIGNMENT);
        }
        Ok(MemoryMap::new(&nodes))
    }

    /// Runs the workload.
    ///
    /// # Errors
    /// See [`RunError`]. A violation of the contract isn't an error: the report contains it.
    ///
    /// # Panics
    /// If the manager panics although the contract wasn't broken before. Then the manager's records were wrong.
    pub fn run(&self) -> Result<Report, RunError> {
        let map = self.map()?;
        // These are the features of an x86-64 processor with few tags.
        let features =
            Features { tagging: Tagging::PerCpu { count: 6 }, broadcast: false, full_above: 33 };
        let hw = Machine::with_tables(self.cpus, Memory::new(map, self.cpus), features)
            .with_mutant(self.without);
        let cpus: Vec<_> = (0..self.cpus).map(|_| PerCpuData::new()).collect();
        let ledger: Vec<_> = (0..LEDGER_ENTRIES).map(|_| LedgerEntry::new()).collect();
        let engine = Engine::new(&hw, &cpus, &ledger, self.policy);
        let engine = engine.map_err(|why| self.unfit(why.to_string()))?;
        let memory = self.workload.memory(self.cpus);
        let mut config = VmConfig::for_memory(&map, self.cpus);
        config.demotion = memory.demotion;
        config.reclaim_ahead = memory.ahead.unwrap_or(config.reclaim_ahead);
        config.reclaim_idle = memory.idle_reclaims;
        let stage = Stage {
            hw: &hw,
            vm: Vm::new(engine, config),
            words: [const { AtomicU64::new(0) }; WORDS],
            watch: Watch::new(self.cpus),
            tally: AtomicU64::new(0),
            stuck: OnceLock::new(),
            counts: [const { AtomicU64::new(0) }; 3],
            failure: Mutex::new(None),
            window: Mutex::new([None; 2]),
        };
        self.perform_on(&stage)
    }

    fn perform_on(&self, stage: &Stage<'_>) -> Result<Report, RunError> {
        let (hw, vm) = (stage.hw, &stage.vm);
        let process = vm.spawn();
        let handler = || vm.engine().this_cpu().mask_interrupts().on_interrupt();
        let results = hw.run(|me| {
            handler::with(&handler, || {
                vm.online();
                let user = Program::new(stage, me.index());
                match process.and_then(|process| vm.enter(process)) {
                    Ok(()) => user.perform(&self.workload, self.seed),
                    Err(error) => panic!("the first process could not be made: {error}"),
                }
                vm.offline();
            });
        });
        let oracle = &hw.tables().oracle;
        // After a violation the manager's records may be wrong, so a panic adds no information.
        if let Some(panic) = results.into_iter().find_map(Result::err)
            && !oracle.has_found()
        {
            std::panic::resume_unwind(panic);
        }
        if hw.is_hung() {
            oracle.report(Violation::new(Clause::C7, "a CPU waits for ever"));
        }
        if !oracle.has_found()
            && let Err(account) = vm.check()
        {
            // With such records, the manager would hand out memory that is in use.
            oracle.report(Violation::new(Clause::C1, account));
        }
        let violation = oracle.verdict();
        let workload = self.workload.path();
        if violation.is_none() {
            if let Some((why, at)) = stage.stuck.get() {
                return Err(RunError::Stuck { workload, why, at: at.clone() });
            }
            if let Some((cpu, failure)) = *stage.failed() {
                return Err(RunError::Failed { workload, cpu, failure });
            }
        }
        let words = std::array::from_fn(|index| stage.words[index].load(Ordering::SeqCst));
        let done = Window::of(&words).map_or(0, |window| window.done);
        let engine = vm.engine().stats();
        let window = *stage.window.lock().unwrap_or_else(PoisonError::into_inner);
        let [accesses, faults, calls] =
            [0, 1, 2].map(|index| stage.counts[index].load(Ordering::Relaxed));
        Ok(Report {
            violation,
            operations: self.workload.operations(done),
            accesses,
            faults,
            calls,
            engine,
            engine_window: match window {
                [Some(begin), Some(end)] => end.since(&begin),
                _ => engine,
            },
        })
    }
}

/// The shared state of a run's programs.
struct Stage<'m> {
    hw: &'m Machine,
    vm: Vm<'m, Machine>,
    words: [AtomicU64; WORDS],
    /// The value of [`User::tally`].
    tally: AtomicU64,
    watch: Watch,
    /// The reason why the run was given up, and the positions of its CPUs.
    stuck: OnceLock<(&'static str, String)>,
    /// The numbers of accesses, faults and calls.
    counts: [AtomicU64; 3],
    /// The first failure, with its CPU.
    failure: Mutex<Option<(usize, Failure)>>,
    /// The engine's counts at the window's start and end.
    window: Mutex<[Option<Stats>; 2]>,
}

impl Stage<'_> {
    fn failed(&self) -> std::sync::MutexGuard<'_, Option<(usize, Failure)>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the programs should end.
    fn is_over(&self) -> bool {
        self.hw.tables().oracle.has_found() || self.hw.is_hung() || self.stuck.get().is_some()
    }
}

/// A program's view of one CPU.
struct Program<'s> {
    stage: &'s Stage<'s>,
    cpu: usize,
    seen: RefCell<IdleSnapshot>,
    since: RefCell<UnreportedWork>,
    counts: [Cell<u64>; 3],
}

impl<'s> Program<'s> {
    fn new(stage: &'s Stage<'s>, cpu: usize) -> Self {
        Program {
            stage,
            cpu,
            seen: RefCell::default(),
            since: RefCell::default(),
            counts: Default::default(),
        }
    }

    fn perform(&self, workload: &Workload, seed: u64) {
        if let Err(failure) = workload.run(self, seed) {
            let mut kept = self.stage.failed();
            // We keep the original error instead of `Elsewhere`.
            if kept.is_none_or(|(_, known)| known == Failure::Elsewhere) {
                *kept = Some((self.cpu, failure));
            }
        }
        self.stage.watch.ends(self.cpu);
        for (all, own) in self.stage.counts.iter().zip(&self.counts) {
            all.fetch_add(own.get(), Ordering::Relaxed);
        }
    }

    /// Records that the program reads a value that others change. It gives a sign of life and takes interrupts.
    fn look(&self) {
        self.stage.hw.progress();
        self.stage.hw.poll();
    }

    /// Counts work that others may notice.
    fn does(&self, much: u64) {
        self.stage.hw.progress();
        if self.stage.watch.does(self.cpu, much, &mut self.since.borrow_mut()) {
            self.give_up(
                "a CPU has made billions of accesses without a `progress` statement of CPU 0: does the loop end?",
            );
        }
        if self.stage.hw.tables().oracle.has_found() {
            self.stage.hw.mend();
        }
    }

    /// Counts idle turns.
    fn idles(&self, turns: u64) {
        let watch = &self.stage.watch;
        if watch.idles(self.cpu, turns, &mut self.seen.borrow_mut()) {
            self.give_up(
                "every CPU only computes or waits: end the loop, or let another CPU write the word",
            );
        }
    }

    /// Ends a run that would not end.
    fn give_up(&self, why: &'static str) {
        let stage = self.stage;
        stage.stuck.get_or_init(|| (why, stage.watch.to_string()));
        abandon(self);
    }

    fn count(&self, kind: usize) {
        self.counts[kind].set(self.counts[kind].get() + 1);
    }

    /// Runs `body` in the kernel, and reports its activity to the oracle.
    fn in_kernel<R>(&self, doing: Activity, body: impl FnOnce() -> R) -> R {
        let Memory { frames, oracle, .. } = self.stage.hw.tables();
        let at = (self.stage.hw.this_cpu(), self.stage.hw.root());
        oracle.during(frames, at, doing, body)
    }

    fn access(&self, address: u64, store: Option<u64>) -> Result<u64, Fault> {
        let hw = self.stage.hw;
        self.does(1);
        loop {
            if self.stage.is_over() {
                return Err(Fault::NotMapped);
            }
            hw.poll_sometimes();
            self.count(0);
            if let Some(held) = hw.access_word(address, store) {
                return Ok(held);
            }
            self.count(1);
            let access = match store {
                Some(_) => Access::Write,
                None => Access::Read,
            };
            self.in_kernel(Activity::Fault, || self.stage.vm.fault(address, access))?;
        }
    }
}

impl User for Program<'_> {
    fn cpu(&self) -> usize {
        self.cpu
    }

    fn cpus(&self) -> usize {
        self.stage.hw.cpus()
    }

    fn try_read(&self, address: u64) -> Result<u64, Fault> {
        self.access(address, None)
    }

    fn try_write(&self, address: u64, value: u64) -> Result<(), Fault> {
        self.access(address, Some(value)).map(|_| ())
    }

    fn call(&self, call: Call) -> Result<u64, Error> {
        self.does(watch::CALL);
        self.stage.hw.poll();
        if self.stage.is_over() {
            return Err(Error::NoProcess);
        }
        self.count(2);
        self.in_kernel(Activity::Call(call), || self.stage.vm.call(call))
    }

    fn compute(&self, _nanoseconds: u64) {
        self.look();
        self.idles(1);
    }

    fn wait(&self, _nanoseconds: u64) {
        self.look();
        cores::nap();
        self.idles(watch::WAIT);
        if self.stage.is_over() {
            abandon(self);
        }
    }

    fn now(&self) -> u64 {
        self.look();
        self.stage.hw.tables().look_at_clock()
    }

    fn step(&self, _done: u64, _all: u64) {
        self.stage.watch.tells();
    }

    fn at(&self, line: u32) -> bool {
        self.stage.watch.at(self.cpu, line);
        !self.stage.is_over()
    }

    fn tally(&self, add: u64) -> u64 {
        let before = self.stage.tally.fetch_add(add, Ordering::SeqCst);
        before.wrapping_add(add)
    }

    fn mark(&self, mark: Mark) {
        let now = self.stage.vm.engine().stats();
        let window = self.stage.window.lock();
        let mut window = window.unwrap_or_else(PoisonError::into_inner);
        window[usize::from(mark == Mark::End)] = Some(now);
    }

    fn shared(&self, index: usize) -> u64 {
        self.look();
        self.stage.words[index].load(Ordering::SeqCst)
    }

    fn set_shared(&self, index: usize, value: u64) {
        self.does(1);
        self.stage.words[index].store(value, Ordering::SeqCst);
    }

    fn add_shared(&self, index: usize, value: u64) -> u64 {
        self.does(1);
        self.stage.words[index].fetch_add(value, Ordering::SeqCst)
    }
}

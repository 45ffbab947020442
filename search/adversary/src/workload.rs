//! Runs workload files under the adversary, on the memory manager.
//!
//! A [`WorkloadRun`] is a workload whose parameters are so small that a run takes some thousand decisions. Its machine
//! has as many frames as it needs. Each of its calls, accesses and control words is a point where anything may happen.
//! The same is judged as for scenarios over the manager: every access, everything that each call guarantees, and the
//! manager's records. There are two differences from other machines:
//!
//! * Every word of a page is its first, because frames have hardly more here.
//! * Time passes only when a program reads the clock, by 0.1 ms for each read. So if a program returns to an earlier
//!   state, a search notices. `compute` only lets other CPUs run, and the scheduler chooses when a sleep ends.
//!
//! Where memory is short, a workload may fail in some schedules and not in others. Then it just ends early, which isn't
//! reported.

use crate::action::{AccessKind, MAX_CPUS};
use crate::coverage::Coverage;
use crate::kind::MachineKind;
use crate::scenario::Scenario;
use crate::schedule::Strategy;
use crate::session::{Case, Session};
use crate::stage::Stage;
use crate::vm_kernel::{self, ProgramParts, VmKernel};
use crate::word::AdversaryWord;
use quell::{Hardware, Policy, Word};
use quell_vm::contract::timeline::Line;
use quell_vm::{Call, Error, Fault, User};
use quell_workloads::{Failure, WORDS, Workload};
use std::array;
use std::cell::Cell;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The maximum number of frames of a node.
const MOST_FRAMES: u64 = 4096;
/// The number of frames for each CPU's page tables and caches, in addition to those that a workload touches.
const ROOM: u64 = 24;
/// The time that passes at each read of the clock, in nanoseconds.
const LOOK: u64 = 100_000;
/// The seed of the workload's random choices, which are the same in every schedule.
const SEED: u64 = 1;

/// A workload on a machine under the adversary.
#[derive(Debug)]
pub struct WorkloadRun {
    workload: Workload,
    cpus: usize,
    /// The number of frames of ordinary and of slow memory.
    memory: [u64; 2],
    /// The failure of the first CPU that couldn't continue.
    failure: Mutex<Option<Failure>>,
}

impl WorkloadRun {
    /// Prepares a workload for this number of CPUs.
    ///
    /// # Errors
    /// Returns why the workload doesn't run on that many CPUs, or not under the adversary. The sentence lacks its
    /// subject, the workload's name.
    pub fn new(workload: Workload, cpus: usize) -> Result<WorkloadRun, String> {
        if !(1..=MAX_CPUS).contains(&cpus) {
            return Err(format!("runs under the adversary on 1 to {MAX_CPUS} CPUs, not on {cpus}"));
        }
        let workload = workload.fitted(cpus)?;
        let [bytes, nodes, slow] =
            workload.touched(cpus).map_err(|why| format!("the memory that it needs: {why}"))?;
        let [touched, slow] = [bytes, slow].map(|bytes| bytes.div_ceil(4096));
        if touched.max(slow) > MOST_FRAMES {
            return Err(format!(
                "needs {} pages of memory; a machine of the adversary has at most {MOST_FRAMES}: use smaller parameters",
                touched.max(slow)
            ));
        }
        let near = touched + ROOM * cpus as u64;
        let memory = match (nodes, slow) {
            (1, 0) => [near, 0],
            (1, slow) => [near, slow],
            // A second node is slow here, which doesn't matter to any oracle.
            (2, 0) => [near, near],
            _ => {
                return Err(format!(
                    "needs {nodes} memory nodes and slow memory; a machine of the adversary has at most two nodes"
                ));
            }
        };
        Ok(WorkloadRun { workload, cpus, memory, failure: Mutex::new(None) })
    }

    fn failed(&self) -> MutexGuard<'_, Option<Failure>> {
        // No code panics while it holds the lock, so its value is valid.
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of CPUs on which it runs.
    pub(crate) fn cpus(&self) -> usize {
        self.cpus
    }

    /// Takes the failure of a CPU that couldn't continue, in the runs since the last call.
    pub(crate) fn take_failure(&self) -> Option<Failure> {
        self.failed().take()
    }

    /// Returns the number of the machine's frames.
    pub(crate) fn frames(&self) -> usize {
        vm_kernel::frames(self.memory)
    }

    pub(crate) fn perform(&self, stage: Stage<'_>, coverage: &mut Coverage) -> Vec<Line> {
        let words: Box<[AdversaryWord; WORDS + 1]> =
            Box::new(array::from_fn(|_| AdversaryWord::new(0)));
        let tally = Cell::new(0);
        let parts = ProgramParts {
            start: &|_, _| {},
            body: &|kernel, cpu| {
                let user = Program { kernel, words: &words, tally: &tally, cpu, cpus: self.cpus };
                if let Err(failure) = self.workload.run(&user, SEED)
                    && failure != Failure::Elsewhere
                {
                    self.failed().get_or_insert(failure);
                }
            },
            after: &|_| {},
            // The words belong to this run.
            repeats: false,
        };
        vm_kernel::perform(&vm_kernel::with_frames(self.memory), &parts, stage, coverage)
    }
}

/// The machine, as a workload sees it.
struct Program<'k> {
    kernel: &'k VmKernel<'k>,
    /// The control words and the clock.
    words: &'k [AdversaryWord; WORDS + 1],
    tally: &'k Cell<u64>,
    cpu: usize,
    cpus: usize,
}

impl Program<'_> {
    fn clock(&self) -> &AdversaryWord {
        &self.words[WORDS]
    }
}

impl User for Program<'_> {
    fn cpu(&self) -> usize {
        self.cpu
    }

    fn cpus(&self) -> usize {
        self.cpus
    }

    fn try_read(&self, address: u64) -> Result<u64, Fault> {
        self.kernel.attempt((address >> 12, 0), AccessKind::Load, 0)
    }

    fn try_write(&self, address: u64, value: u64) -> Result<(), Fault> {
        let at = (address >> 12, 0);
        let stored = self.kernel.attempt(at, AccessKind::Store, value);
        stored.map(|_| ())
    }

    // All lines of a page are one word here.
    fn try_read_span(&self, address: u64, bytes: u64) -> Result<(), Fault> {
        let mut pages = (address >> 12)..(address + bytes).div_ceil(4096);
        pages.try_for_each(|page| self.try_read(page << 12).map(|_| ()))
    }

    fn try_write_span(&self, address: u64, bytes: u64, value: u64) -> Result<(), Fault> {
        let mut pages = (address >> 12)..(address + bytes).div_ceil(4096);
        pages.try_for_each(|page| self.try_write(page << 12, value))
    }

    fn call(&self, call: Call) -> Result<u64, Error> {
        self.kernel.try_call(call)
    }

    fn compute(&self, _nanoseconds: u64) {
        AdversaryWord::touch(std::ptr::from_ref(self.clock()) as usize, false);
    }

    fn wait(&self, _nanoseconds: u64) {
        self.kernel.hw.relax();
    }

    fn now(&self) -> u64 {
        self.clock().fetch_add(LOOK, SeqCst)
    }

    fn tally(&self, add: u64) -> u64 {
        self.tally.update(|count| count.wrapping_add(add));
        self.tally.get()
    }

    fn shared(&self, index: usize) -> u64 {
        self.words[index].load(SeqCst)
    }

    fn set_shared(&self, index: usize, value: u64) {
        self.words[index].store(value, SeqCst);
    }

    fn add_shared(&self, index: usize, value: u64) -> u64 {
        self.words[index].fetch_add(value, SeqCst)
    }
}

/// The maximum number of decisions of a run. A search has many runs, so they must be short.
const MOST_DECISIONS: u32 = 200_000;

/// Creates a scenario of a workload for all machines.
///
/// To do so, it runs the workload on one machine with every mechanism on. If that run violates the contract, it isn't
/// reported here: a search finds the violation again, with its schedule.
///
/// # Errors
/// Returns an operation that the adversary doesn't support, with the line of its file, or that the run is too long to
/// search.
pub fn rehearse<'p>(performance: &'p WorkloadRun, name: &'p str) -> Result<Scenario<'p>, String> {
    let long = Scenario::workload(name, performance, MOST_DECISIONS);
    let case =
        Case { scenario: &long, kind: MachineKind::ALL[0], policy: Policy::ALL, mistake: None };
    // The schedule is random, so that a CPU that polls a word can't keep the others from writing it.
    let (run, _) = Session::new(case).run(Strategy::random(1));
    if let Some(failure) = performance.take_failure() {
        return Err(failure.to_string());
    }
    if run.decisions >= MOST_DECISIONS {
        return Err(format!(
            "one run takes more than {MOST_DECISIONS} decisions of the search: use smaller parameters"
        ));
    }
    // Other schedules may need more steps because of contention.
    let steps = run.decisions.saturating_mul(4).max(8_000);
    Ok(Scenario::workload(name, performance, steps))
}

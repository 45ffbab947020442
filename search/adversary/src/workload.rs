//! Workload files under the adversary: the memory manager runs them, on a machine of as many frames as they need.
//!
//! A [`Performance`] is a workload with parameters small enough that a run takes some thousand decisions. Each of its
//! calls, accesses and control words is a point where anything may happen, and what is judged is what is judged of
//! scenarios over the manager: every access, what every call guarantees, the manager's records. This differs from other
//! machines:
//!
//! * every word of a page is its first, because frames have hardly more here;
//! * a look at the clock lets 0.1 ms pass and nothing else does, so that a program which comes back to a state is seen
//!   to; `compute` lets others come by, and when a sleep ends is the scheduler's to choose.
//!
//! A workload may fail in some schedules and not in others, where memory is short. That is not held against it: it
//! ends early.

use crate::action::MAX_CPUS;
use crate::cell::AdversaryWord;
use crate::coverage::Coverage;
use crate::op::AccessKind;
use crate::stage::Stage;
use crate::vm_kernel::{self, LEDGER_ENTRIES, Parts, VmKernel};
use quell::{Hardware, Word};
use quell_vm::contract::timeline::Line;
use quell_vm::{Call, Error, Fault, User};
use quell_workloads::{Failure, WORDS, Workload};
use std::array;
use std::cell::Cell;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most frames of a node.
const MOST_FRAMES: u64 = 4096;
/// Frames for page tables and for what CPUs hold, beside those that a workload touches.
const ROOM: u64 = 24;
/// How long a look at the clock takes, in nanoseconds.
const LOOK: u64 = 100_000;
/// Random choices of the run are the same in every schedule.
const SEED: u64 = 1;

/// A workload on a machine under the adversary.
#[derive(Debug)]
pub struct Performance {
    workload: Workload,
    cpus: usize,
    /// Frames of ordinary and of slow memory.
    memory: [u64; 2],
    /// Why the first CPU that could not go on could not.
    failure: Mutex<Option<Failure>>,
}

impl Performance {
    /// A workload on so many CPUs.
    ///
    /// # Errors
    /// Why it does not run on so many, or not here: a sentence that begins after the workload's name.
    pub fn new(workload: Workload, cpus: usize) -> Result<Performance, String> {
        if !(1..=MAX_CPUS).contains(&cpus) {
            return Err(format!("runs here on 1 to {MAX_CPUS} CPUs, not on {cpus}"));
        }
        let workload = workload.fitted(cpus)?;
        let [bytes, nodes, slow] = workload
            .touched(cpus)
            .map_err(|why| format!("the memory that it needs: {why}"))?;
        let [touched, slow] = [bytes, slow].map(|bytes| bytes.div_ceil(4096));
        if touched.max(slow) > MOST_FRAMES {
            return Err(format!(
                "needs {} pages of memory; a machine of the adversary has at most {MOST_FRAMES}: let it touch less",
                touched.max(slow)
            ));
        }
        let near = touched + ROOM * cpus as u64;
        let memory = match (nodes, slow) {
            (1, 0) => [near, 0],
            (1, slow) => [near, slow],
            // A second node is slow here, which no oracle looks at.
            (2, 0) => [near, near],
            _ => {
                return Err(format!(
                    "needs {nodes} memory nodes and slow memory; a machine of the adversary has two nodes in all"
                ));
            }
        };
        Ok(Performance {
            workload,
            cpus,
            memory,
            failure: Mutex::new(None),
        })
    }

    fn failed(&self) -> MutexGuard<'_, Option<Failure>> {
        // Nothing panics under the lock.
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many CPUs it runs on.
    pub(crate) fn cpus(&self) -> usize {
        self.cpus
    }

    /// Why some CPU could not go on, in the runs since the last question.
    pub(crate) fn take_failure(&self) -> Option<Failure> {
        self.failed().take()
    }

    /// The frame after the last.
    pub(crate) fn frames(&self) -> usize {
        vm_kernel::frames(self.memory)
    }

    pub(crate) fn perform(&self, stage: Stage<'_>, coverage: &mut Coverage) -> Vec<Line> {
        let words: Box<[AdversaryWord; WORDS + 1]> =
            Box::new(array::from_fn(|_| AdversaryWord::new(0)));
        let tally = Cell::new(0);
        let parts = Parts {
            start: &|_, _| {},
            body: &|kernel, cpu| {
                let user = Program {
                    kernel,
                    words: &words,
                    tally: &tally,
                    cpu,
                    cpus: self.cpus,
                };
                if let Err(failure) = self.workload.run(&user, SEED)
                    && failure != Failure::Elsewhere
                {
                    self.failed().get_or_insert(failure);
                }
            },
            after: &|_| {},
            // The words are this run's own.
            repeats: false,
        };
        vm_kernel::perform(self.memory, LEDGER_ENTRIES, &parts, stage, coverage)
    }
}

/// What a workload sees of the machine.
struct Program<'k> {
    kernel: &'k VmKernel<'k>,
    /// The control words, and the clock.
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
        self.kernel.attempt(address >> 12, AccessKind::Load, 0)
    }

    fn try_write(&self, address: u64, value: u64) -> Result<(), Fault> {
        let stored = self.kernel.attempt(address >> 12, AccessKind::Store, value);
        stored.map(|_| ())
    }

    // A page's lines are one word here.
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

//! Runs the memory manager on the adversary's machine, and defines the steps of its scenarios.
//!
//! [`quell_vm`] runs here unchanged, on a machine with a few dozen frames. Programs name pages instead of addresses,
//! and panic if a call fails that shouldn't. Besides the oracle of single translations, the [abstract
//! machine](quell_vm::contract::abstract_machine) judges every access, the return of every call, and the final state
//! after the run.

mod calls;

use crate::action::MAX_CPUS;
use crate::action::{AccessKind, Op};
use crate::context::{self, Kernel};
use crate::coverage::{Coverage, MachineEvent};
use crate::generated::program::Memory;
use crate::hardware::Adversary;
use crate::machine::AccessOutcome;
use crate::stage::Stage;
use crate::timeline;
use crate::timeline::Address;
use crate::word::AdversaryWord;
use crate::word::FRAME_WORDS;
use quell::{CpuId, Engine, Extent, Frame, Hardware, LedgerEntry, PerCpuData, Word};
use quell_vm::contract::timeline::Line;
use quell_vm::contract::{AbstractMachine, Clause, Violation};
use quell_vm::machine::{MemoryMap, Node};
use quell_vm::sim::heap::{self, Heap};
use quell_vm::{Access, Call, Error, Fault, FileId, ProcessId};
use quell_vm::{Vm, VmConfig};
use quell_zero::{ClearPolicy, Plan};
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering::{Acquire, Release};

/// The first frame of memory.
const FIRST: u64 = 8;
/// The number of flushes that can be deferred at once.
const LEDGER_ENTRIES: usize = 4;
/// The number of flags by which the CPUs of a program signal each other.
pub(crate) const FLAGS: usize = 6;
/// The content of memory when the machine starts.
const JUNK: u64 = 0xdead;

/// The process that every CPU runs when a scenario begins.
pub const FIRST_PROCESS: ProcessId = 1;

/// A program over the memory manager: each CPU's work before and during the run.
#[derive(Clone, Copy, Debug)]
pub struct VmProgram {
    /// The number of frames of fast memory, and of slow memory.
    pub memory: [u64; 2],
    /// CPU 0's work before the run, while no other CPU runs. Every CPU runs [`FIRST_PROCESS`].
    pub first: fn(&VmKernel<'_>),
    /// CPU 1's work after `first`.
    pub second: fn(&VmKernel<'_>),
    /// The work of each CPU during the run.
    pub cpus: [fn(&VmKernel<'_>); MAX_CPUS],
    /// A check after the run, while no CPU runs.
    pub after: fn(&VmKernel<'_>),
}

impl VmProgram {
    /// A program that does nothing, with 32 frames of memory.
    pub const NONE: Self = VmProgram {
        memory: [32, 0],
        first: |_| {},
        second: |_| {},
        cpus: [|_| {}; MAX_CPUS],
        after: |_| {},
    };
}

/// The memory manager, its machine, and flags by which CPUs signal each other.
pub struct VmKernel<'m> {
    /// The machine.
    pub hw: &'m Adversary,
    /// The manager.
    pub vm: Vm<'m, Adversary>,
    flags: ManuallyDrop<[AdversaryWord; FLAGS]>,
}

const fn address(page: u64) -> u64 {
    page << 12
}

impl VmKernel<'_> {
    /// Makes a call of this CPU's process, as a program does.
    ///
    /// # Errors
    /// Returns the manager's error, as [`Call`] documents it.
    pub fn try_call(&self, call: Call) -> Result<u64, Error> {
        let me = self.hw.this_cpu().index();
        self.hw.say(|| format!("{call:x?}"));
        let process = self.vm.current();
        context::with(|core| {
            core.begin_call(me);
            core.show_stores();
            if let (Some(process), false) = (process, core.searches) {
                core.abstract_machine.begin_call(me, process, call);
            }
        });
        let result = self.vm.call(call);
        if let Err(error) = result {
            self.hw.say(|| format!("refused: {error}"));
        }
        self.judge(|machine| machine.end_call(me, result, |file, at| self.device(file, at)));
        if let (Some(process), false) = (self.vm.current(), context::with(|core| core.searches)) {
            self.judge_program(me, process);
        }
        result
    }

    /// Runs `body` on the abstract machine, and reports a violation that it returns. The abstract machine isn't part of
    /// the machine under test, and may query the manager.
    ///
    /// It does nothing in exhaustive searches. They compare stacks to distinguish states, and the judge would leave
    /// moments on the stacks, so that no two schedules would reach the same state.
    fn judge(&self, body: impl FnOnce(&mut AbstractMachine) -> Result<(), Violation>) {
        if context::with(|core| core.searches) {
            return;
        }
        let mut machine = context::with(|core| {
            core.show_stores();
            std::mem::take(&mut core.abstract_machine)
        });
        let verdict = heap::off(|| body(&mut machine));
        context::with(|core| {
            core.abstract_machine = machine;
            if let Err(violation) = verdict {
                core.fail(violation);
            }
        });
    }

    /// Judges everything that the program of a CPU could access now. The CPU runs this process.
    pub(crate) fn judge_program(&self, cpu: usize, process: ProcessId) {
        context::with(|core| {
            core.happen(MachineEvent::Compared);
            core.show_stores();
            for reach in core.reaches(cpu, false) {
                if let Err(violation) = core.abstract_machine.judge_reach(cpu, process, &reach) {
                    core.fail(violation.by(CpuId(cpu as u16)));
                    return;
                }
            }
        });
    }

    /// Returns the word at a byte offset of the device behind a file.
    fn device(&self, file: FileId, at: u64) -> Option<u64> {
        // SAFETY: as in `word`.
        context::quietly(|| unsafe { self.vm.peek_device(file, at) })
    }

    /// Makes a call that must not fail.
    ///
    /// # Panics
    /// If the call fails.
    pub fn call(&self, call: Call) -> u64 {
        match self.try_call(call) {
            Ok(value) => value,
            Err(error) => panic!("{call:?}: {error}"),
        }
    }

    /// Sets a flag for which another CPU waits.
    pub fn tell(&self, flag: usize) -> &Self {
        self.flags[flag].store(1, Release);
        self
    }

    /// Waits until another CPU sets a flag.
    pub fn wait_for(&self, flag: usize) -> &Self {
        while self.flags[flag].load(Acquire) == 0 {
            self.hw.relax();
        }
        self
    }

    /// Loads the first word of a page as a program, if the program may.
    pub fn read(&self, page: u64) -> &Self {
        self.load(page);
        self
    }

    /// Loads the first word of a page as a program. Returns `None` if the program has no right to load it.
    pub fn load(&self, page: u64) -> Option<u64> {
        self.attempt((page, 0), AccessKind::Load, 0).ok()
    }

    /// Loads the first word of a page as a program.
    ///
    /// # Panics
    /// If it isn't `value`.
    pub fn must_read(&self, page: u64, value: u64) -> &Self {
        assert_eq!(self.load(page), Some(value));
        self
    }

    /// Fetches an instruction from a page as a program, if the program may.
    pub fn fetch(&self, page: u64) -> &Self {
        let _ = self.attempt((page, 0), AccessKind::Fetch, 0);
        self
    }

    /// Stores to a page's first word as a program, if the program may.
    pub fn write(&self, page: u64, value: u64) -> &Self {
        let _ = self.attempt((page, 0), AccessKind::Store, value);
        self
    }

    /// Stores to a page's first word as a program.
    ///
    /// # Panics
    /// If the program may not.
    pub fn must_write(&self, page: u64, value: u64) -> &Self {
        self.attempt((page, 0), AccessKind::Store, value).expect("the program may store there");
        self
    }

    /// Stores to the second word of a page as a program, if the program may.
    pub fn write_second_word(&self, page: u64, value: u64) -> &Self {
        let _ = self.attempt((page, 1), AccessKind::Store, value);
        self
    }

    /// Accesses a word of a page as a program. Returns the word's value before the access.
    ///
    /// # Errors
    /// Returns the fault that the manager couldn't handle.
    pub(crate) fn attempt(
        &self,
        (page, word): (u64, usize),
        kind: AccessKind,
        value: u64,
    ) -> Result<u64, Fault> {
        let access = match kind {
            AccessKind::Load => Access::Read,
            AccessKind::Store => Access::Write,
            AccessKind::Fetch => Access::Execute,
        };
        let me = self.hw.this_cpu().index();
        let judged = context::with(|core| !core.searches);
        if let (Some(process), true) = (self.vm.current(), judged) {
            context::with(|core| {
                core.show_stores();
                core.abstract_machine.begin_access(me, process, access, page, word, value);
            });
        }
        let end = |result, stale| {
            if !judged {
                return;
            }
            context::with(|core| {
                core.show_stores();
                if let Err(violation) = core.abstract_machine.end_access(me, result, stale) {
                    core.fail(violation.by(CpuId(me as u16)).through(address(page)));
                }
            });
        };
        loop {
            if let Some((held, stale)) = self.access((page, word), kind, value) {
                end(Ok(held), stale);
                return Ok(held);
            }
            // Before the run, nothing else stops a CPU whose access broke the contract.
            if context::with(|core| core.end.is_some()) {
                return Err(Fault::NotMapped);
            }
            if let Err(fault) = self.vm.fault(address(page), access) {
                self.hw.say(|| format!("page {page:#x}: {fault}"));
                end(Err(fault), false);
                return Err(fault);
            }
        }
    }

    /// Tries an access once. Returns the word's value, and whether the translation was a stale one, or `None` for a
    /// fault.
    fn access(
        &self,
        (page, word): (u64, usize),
        kind: AccessKind,
        value: u64,
    ) -> Option<(u64, bool)> {
        let loud = context::point(Op::Access(kind));
        let me = self.hw.this_cpu().index();
        let accessed = context::with(|core| {
            let accessed = core.access(me, page, word, (kind, value));
            if !loud {
                core.drain_all(me);
            }
            accessed
        });
        match accessed {
            AccessOutcome::Fault => None,
            AccessOutcome::Value { held, stale } => Some((held, stale.is_some())),
        }
    }

    /// Returns a word of a process's page, by the manager's records.
    fn word(&self, process: ProcessId, page: u64, word: usize) -> Option<u64> {
        // SAFETY: all CPUs are coroutines of this thread. They are suspended only inside operations of the machine,
        // which the manager performs between its changes.
        context::quietly(|| unsafe { self.vm.peek(process, address(page) + word as u64 * 8) })
    }

    /// Checks a fact after the run. If it doesn't hold, reports a violation of `clause`.
    pub fn must(&self, clause: Clause, fact: bool, account: &str) {
        if !fact {
            self.hw.fail(clause, None, account.into());
        }
    }
}

impl Kernel for VmKernel<'_> {
    fn interrupt(&self) {
        let me = self.hw.this_cpu().index();
        let was = context::with(|core| core.leave_program(me));
        self.vm.engine().this_cpu().mask_interrupts().on_interrupt();
        if was {
            context::with(|core| core.enter_program(me));
        }
    }

    fn preempt(&self) {}

    fn nmi(&self) {
        if self.vm.engine().this_cpu().user_access_allowed() {
            self.access((0, 0), AccessKind::Load, 0);
        } else {
            self.hw.happen(MachineEvent::NmiRefused);
        }
    }

    fn kept(&self, _cpu: usize) -> u64 {
        0
    }
}

/// Returns the number of frames of a machine with this much fast and slow memory.
pub(crate) fn frames(memory: [u64; 2]) -> usize {
    (FIRST + memory[0] + memory[1]) as usize
}

fn map([fast, slow]: [u64; 2]) -> MemoryMap {
    let node = |first: u64, frames: u64, slow: bool| Node {
        extent: Extent { first: Frame(first), frames },
        slow,
    };
    let near = node(FIRST, fast, false);
    match slow {
        0 => MemoryMap::new(&[near]),
        _ => MemoryMap::new(&[near, node(FIRST + fast, slow, true)]),
    }
}

impl VmProgram {
    /// Returns the number of the machine's frames.
    pub(crate) fn frames(&self) -> usize {
        frames(self.memory)
    }

    pub(crate) fn perform(&self, stage: Stage<'_>, coverage: &mut Coverage) -> Vec<Line> {
        let parts = ProgramParts {
            start: &|k, cpu| match cpu {
                0 => (self.first)(k),
                1 => (self.second)(k),
                _ => {}
            },
            body: &|k, cpu| (self.cpus[cpu])(k),
            after: &|k| (self.after)(k),
            repeats: true,
        };
        perform(&with_frames(self.memory), &parts, stage, coverage)
    }
}

/// The parts of a program over the manager, as in [`VmProgram`].
pub(crate) struct ProgramParts<'p> {
    pub(crate) start: &'p dyn Fn(&VmKernel<'_>, usize),
    pub(crate) body: &'p dyn Fn(&VmKernel<'_>, usize),
    pub(crate) after: &'p dyn Fn(&VmKernel<'_>),
    /// Whether the work before the run changes only the kernel and its machine, so that further runs can begin after
    /// it.
    pub(crate) repeats: bool,
}

/// Returns the usual sizes, with this much fast and slow memory.
pub(crate) fn with_frames([fast, slow]: [u64; 2]) -> Memory {
    Memory { fast, slow, ..Memory::default() }
}

/// Runs a program on a machine of these sizes.
pub(crate) fn perform(
    memory: &Memory,
    parts: &ProgramParts<'_>,
    stage: Stage<'_>,
    coverage: &mut Coverage,
) -> Vec<Line> {
    if let Some(kernel) = stage.resumed() {
        // SAFETY: `keep` below stored the pointer to a kernel of this type. Its borrows are on the heap like itself,
        // and all of it has been restored. The lifetime is that of this call, during which the heap isn't cleared.
        let kernel = unsafe { &*kernel.cast::<VmKernel<'_>>() };
        return kernel.run(parts, &stage, coverage, &|_| None);
    }
    let count = stage.cpus;
    let map = map([memory.fast, memory.slow]);
    let hw = Box::new(stage.broken(Adversary::new(stage.kind, count, map)));
    let hw = &*hw;
    // We put all words on the heap, so that they have the same distances from each other in every run.
    let cpus: Box<[PerCpuData<'_, Adversary>; MAX_CPUS]> =
        Box::new(std::array::from_fn(|_| PerCpuData::new()));
    let ledger: Box<[LedgerEntry<Adversary>; LEDGER_ENTRIES]> =
        Box::new(std::array::from_fn(|_| LedgerEntry::new()));
    stage.weaken(&cpus[..count]);
    let engine = Engine::new(hw, &cpus[..count], &ledger[..memory.ledger.into()], stage.policy)
        .expect("the engine runs on every machine under the adversary");
    context::with(|core| {
        for node in map.nodes() {
            for frame in node.extent.first.0..node.extent.first.0 + node.extent.frames {
                core.oracle.frame_mut(frame as u32).free = true;
                for word in 0..FRAME_WORDS {
                    core.set_content(frame as u32, word, JUNK);
                }
            }
        }
    });
    let config = VmConfig {
        cache_batch: memory.cache.into(),
        swap_pages: memory.swap.into(),
        demotion: memory.demotes,
        reclaim_ahead: memory.ahead.into(),
        reclaim_idle: memory.reclaims_idle,
        catch_up: memory.catches_up,
        migrate_together: usize::from(memory.together.div_ceil(2)),
        flush_together: memory.together.into(),
        clear: ClearPolicy::cooperative(Plan::default()),
        zero_ahead: memory.zeroed.into(),
        reclaim_attempts: 3,
    };
    let kernel = Box::new(VmKernel {
        hw,
        vm: Vm::new(engine, config),
        flags: ManuallyDrop::new(std::array::from_fn(|_| AdversaryWord::new(0))),
    });
    for cpu in 0..count {
        stage.prepare(cpu, &*kernel, || {
            hw.online();
            kernel.vm.online();
            if cpu == 0 {
                assert_eq!(kernel.vm.spawn(), Ok(FIRST_PROCESS));
            }
            let entered = kernel.vm.enter(FIRST_PROCESS);
            // The preparation of an earlier CPU may have ended the process.
            assert!(entered == Ok(()) || (cpu > 0 && entered == Err(Error::NoProcess)));
            (parts.start)(&kernel, cpu);
        });
    }
    if parts.repeats {
        stage.keep(std::ptr::from_ref(&*kernel).cast());
    }
    let names = |word: usize| kernel.name(&cpus[..count], word);
    let lines = kernel.run(parts, &stage, coverage, &names);
    if stage.heap.is_some_and(Heap::holds_everything) {
        // The heap's owner frees it.
        std::mem::forget(kernel);
    }
    lines
}

impl VmKernel<'_> {
    /// Runs the CPUs, and judges the final state when all of them have ended.
    fn run(
        &self,
        parts: &ProgramParts<'_>,
        stage: &Stage<'_>,
        coverage: &mut Coverage,
        names: &timeline::WordNames<'_>,
    ) -> Vec<Line> {
        let after = || {
            (parts.after)(self);
            let page = |process, page, word| self.word(process, page, word);
            // SAFETY: as in `word`.
            let file = |file, at| context::quietly(|| unsafe { self.vm.peek_file(file, at) });
            self.judge(|machine| machine.judge_rest(page, file));
            if let Err(account) = self.vm.check() {
                // With such records, the manager would hand out memory that is in use.
                self.hw.fail(Clause::C1, None, account);
            }
        };
        let body = |cpu: usize| (parts.body)(self, cpu);
        let lines = stage.perform(self, &body, &after, names);
        heap::off(|| coverage.add_engine(&self.vm.engine().stats()));
        lines
    }

    /// Returns the name of a word, for timelines.
    fn name(&self, cpus: &[PerCpuData<'_, Adversary>], word: usize) -> Option<String> {
        let at = Address(word);
        at.of_cpus(cpus)
            .or_else(|| at.numbered("flag", &self.flags[..]))
            .or_else(|| {
                let (table, index) = context::place_of(word)?;
                Some(format!("entry {index} of table {table:#x}"))
            })
            .or_else(|| self.vm.word_name(word))
    }
}

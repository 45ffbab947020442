//! Runs programs on the memory manager of `quell_vm` on the machine.
//!
//! [`Run`] combines machine, engine, manager, one process that every CPU enters, and a program. The manager's code is
//! exactly that of a kernel; this module only forwards interrupts, faults and calls to it.

use crate::context;
use crate::core::Core;
use crate::kernel::Kernel;
use crate::machine::Model;
use crate::program::ModelUser;
use crate::run::{RunError, RunResult, Setup};
use quell::{Engine, LedgerEntry, PerCpuData, Policy, Stats};
use quell_vm::{Access, Call, Error, Event, Fault, Machine, Mark, ProcessId, Vm, VmConfig};
use std::cell::Cell;

/// Ledger entries of the flush clock.
const LEDGER_ENTRIES: usize = 64;

/// A run of a program on the memory manager.
///
/// ```
/// use quell::Policy;
/// use quell_clock::{Run, Setup, built_in};
/// use quell_vm::{Backing, Call, Protection, User};
///
/// let machine = built_in("haswell-server").unwrap();
/// let mut setup = Setup::new(&machine);
/// setup.cpus = Some(2);
/// let outcome = Run::new(setup, Policy::ALL)
///     .execute(&|user| {
///         let address = user
///             .call(Call::Map {
///                 address: None,
///                 bytes: 4096,
///                 protection: Protection::READ_WRITE,
///                 backing: Backing::Anonymous { page: quell::PageSize::Base },
///             })
///             .unwrap();
///         user.write(address, 1);
///         assert_eq!(user.read(address), 1);
///         user.call(Call::Unmap { address, bytes: 4096 }).unwrap();
///     })
///     .unwrap();
/// assert_eq!(outcome.run.violations, []);
/// assert_eq!(outcome.run.counts().faults, 2);
/// ```
pub struct Run<'f> {
    /// The machine, the number of CPUs, the seed and other inputs.
    pub setup: Setup<'f>,
    /// The mechanisms that are on.
    pub policy: Policy,
    /// A function that adjusts the manager's default configuration.
    pub configure: &'f dyn Fn(&mut VmConfig),
}

/// The result of a run on the manager.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The machine's result.
    pub run: RunResult,
    /// The engine's counts between the program's marks. Without marks they're those of the whole run.
    pub engine: Stats,
}

impl<'f> Run<'f> {
    /// Creates a run with the manager's usual configuration.
    pub fn new(setup: Setup<'f>, policy: Policy) -> Self {
        Run { setup, policy, configure: &|_| {} }
    }

    /// Runs `program` on every CPU, all in one process.
    ///
    /// # Errors
    /// See [`RunError`]. Violations of the contract aren't errors; the result contains them.
    pub fn execute(&self, program: &dyn Fn(&ModelUser<'_>)) -> Result<Outcome, RunError> {
        let stats = Cell::new(None);
        let run = self.setup.run(|bench| {
            let model = bench.model();
            let cpus: Vec<_> = (0..model.cpu_count()).map(|_| PerCpuData::new()).collect();
            let ledger: Vec<_> = (0..LEDGER_ENTRIES).map(|_| LedgerEntry::new()).collect();
            let engine = Engine::new(model, &cpus, &ledger, self.policy)
                .expect("the run has checked the machine's features");
            let map = model.memory();
            let mut config = VmConfig::for_memory(&map, model.cpu_count());
            (self.configure)(&mut config);
            let vm = Vm::new(engine, config);
            let kernel = ManagerKernel {
                process: vm.spawn(),
                vm,
                begin: Cell::new(None),
                window: Cell::new(None),
            };
            let run = bench.go(&kernel, program);
            let all = kernel.vm.engine().stats();
            stats.set(Some(kernel.window.get().unwrap_or(all)));
            run
        })?;
        Ok(Outcome { run, engine: stats.get().unwrap_or_default() })
    }
}

struct ManagerKernel<'m> {
    vm: Vm<'m, Model>,
    /// The process that every CPU enters.
    process: Result<ProcessId, Error>,
    begin: Cell<Option<Stats>>,
    window: Cell<Option<Stats>>,
}

impl Kernel for ManagerKernel<'_> {
    fn interrupt(&self) {
        let model = self.vm.engine().hw();
        if let Some(flushes) = model.flushes() {
            flushes.serve(model);
            // The engine must not be interrupted where it has turned interrupts off.
            if context::with(|core| core.cpu().was_masked) {
                return;
            }
        }
        self.vm.engine().this_cpu().mask_interrupts().on_interrupt();
    }

    fn nmi(&self) {
        let model = self.vm.engine().hw();
        if let Some(flushes) = model.flushes() {
            flushes.sweep(model);
            context::with(Core::arm_timer);
        }
    }

    fn fault(&self, address: u64, access: Access) -> Result<(), Fault> {
        self.vm.fault(address, access)
    }

    fn call(&self, call: Call) -> Result<u64, Error> {
        let result = self.vm.call(call);
        if let (Call::Truncate { file, bytes }, Ok(_)) = (call, &result) {
            let end = bytes.div_ceil(quell::PAGE_BYTES);
            // SAFETY: as in `peek`.
            let beyond = unsafe { self.vm.peek_mappings(file, end) };
            for (root, range) in beyond {
                let model = self.vm.engine().hw();
                model.note(Event::ReturnedUnmap { root, range });
            }
        }
        result
    }

    fn peek(&self, address: u64) -> Option<u64> {
        let process = self.vm.current()?;
        // SAFETY: the manager is used by the coroutines of this thread alone: a `Model` reaches its
        // machine through the thread that runs it. They are suspended only inside operations of
        // the machine, which the manager uses between its changes.
        unsafe { self.vm.peek(process, address) }
    }

    fn online(&self) {
        context::with(Core::arm_timer);
        self.vm.engine().cpu_online();
        if let Err(error) = self.process.and_then(|process| self.vm.enter(process)) {
            panic!("the first process could not be made: {error}");
        }
    }

    fn idle(&self) {
        self.vm.leave();
    }

    fn mark(&self, mark: Mark) {
        let now = self.vm.engine().stats();
        match (mark, self.begin.get()) {
            (Mark::Begin, _) => self.begin.set(Some(now)),
            (Mark::End, Some(begin)) => self.window.set(Some(now.since(&begin))),
            (Mark::End, None) => {}
        }
    }
}

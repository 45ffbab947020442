//! A machine for the tests, the manager on it, and programs that it runs.
#![allow(dead_code)]

mod machine;

pub use machine::{TestMachine, be};

use quell::{Engine, Extent, Frame, LedgerEntry, PerCpuData, Policy, Tagging};
use quell_vm::{Access, Call, Error, Fault, MemoryMap, Node, ProcessId, Vm, VmConfig};

/// Options of a [`TestMachine`].
#[derive(Clone, Debug)]
pub struct Options {
    pub cpus: usize,
    pub map: MemoryMap,
    pub policy: Policy,
    pub tagging: Tagging,
    pub broadcast: bool,
    pub hardware_dirty: bool,
    /// One thread plays all CPUs.
    pub alone: bool,
    pub config: fn(&mut VmConfig),
}

impl Options {
    pub fn new(frames: u64) -> Self {
        Options {
            cpus: 2,
            map: MemoryMap::flat(Frame(0x1000), frames),
            policy: Policy::ALL,
            tagging: Tagging::PerCpu { count: 6 },
            broadcast: false,
            hardware_dirty: true,
            alone: true,
            config: |_| (),
        }
    }
}

/// Returns a fast node and a slow one with these numbers of frames.
pub fn nodes(fast: u64, slow: u64) -> MemoryMap {
    let node = |first, frames, slow| Node { extent: Extent { first: Frame(first), frames }, slow };
    MemoryMap::new(&[node(0x1000, fast, false), node(0x2000, slow, true)])
}

pub type TestVm = Vm<'static, TestMachine>;

/// Makes a machine with a manager, which live for ever.
pub fn machine(options: Options) -> (&'static TestMachine, &'static TestVm) {
    let machine: &TestMachine = Box::leak(Box::new(TestMachine::new(options.clone())));
    let cpus: Box<[PerCpuData<TestMachine>]> =
        (0..options.cpus).map(|_| PerCpuData::new()).collect();
    let ledger: Box<[LedgerEntry<TestMachine>]> = (0..64).map(|_| LedgerEntry::new()).collect();
    let engine = Engine::new(machine, Box::leak(cpus), Box::leak(ledger), options.policy);
    let mut config = VmConfig::for_memory(&options.map, options.cpus);
    (options.config)(&mut config);
    let vm: &TestVm = Box::leak(Box::new(Vm::new(engine.expect("a machine that holds"), config)));
    let handle = || vm.engine().this_cpu().mask_interrupts().on_interrupt();
    assert!(machine.handler.set(Box::new(handle)).is_ok());
    if options.alone {
        for cpu in (0..options.cpus).rev() {
            be(cpu);
            vm.online();
        }
    }
    (machine, vm)
}

/// A program on the calling CPU.
#[derive(Clone, Copy)]
pub struct Program {
    pub machine: &'static TestMachine,
    pub vm: &'static TestVm,
}

impl Program {
    /// Makes a machine, and a program in a new process on CPU 0.
    pub fn start(options: Options) -> Program {
        let (machine, vm) = machine(options);
        let process = vm.spawn().unwrap();
        vm.enter(process).unwrap();
        Program { machine, vm }
    }

    pub fn try_access(&self, address: u64, store: Option<u64>) -> Result<u64, Fault> {
        for _ in 0..10_000 {
            if let Some(value) = self.machine.access(address, store) {
                return Ok(value);
            }
            let access = if store.is_some() { Access::Write } else { Access::Read };
            self.vm.fault(address, access)?;
        }
        panic!("an access to {address:#x} faults again and again");
    }

    pub fn read(&self, address: u64) -> u64 {
        self.try_access(address, None).unwrap_or_else(|fault| panic!("load {address:#x}: {fault}"))
    }

    pub fn write(&self, address: u64, value: u64) {
        if let Err(fault) = self.try_access(address, Some(value)) {
            panic!("store {address:#x}: {fault}");
        }
    }

    pub fn call(&self, call: Call) -> Result<u64, Error> {
        self.vm.call(call)
    }

    /// Returns the word that the program would read, by the manager's records.
    pub fn peek(&self, address: u64) -> Option<u64> {
        // SAFETY: only tests with one thread peek.
        unsafe { self.vm.peek(self.vm.current().unwrap(), address) }
    }

    /// Ends all processes and checks that every frame was freed.
    pub fn finish(&self, processes: &[ProcessId]) {
        self.vm.check().unwrap();
        for cpu in 0..self.machine.cpus.len() {
            be(cpu);
            self.vm.leave();
        }
        for &process in processes {
            self.vm.call(Call::Exit { process }).unwrap();
        }
        let totals = self.vm.check().unwrap();
        assert_eq!(
            (totals.tables, totals.anonymous, totals.swapped),
            (0, 0, 0),
            "leaked: {totals:?}"
        );
        be(0);
    }
}

//! CPUs as threads, which run the stress of the conformance suite in too little memory.

use crate::common::{Options, Program, be, machine, nodes};
use quell::{Hardware, Mechanism, Policy, Tagging};
use quell_vm::{Call, Error, Fault, Machine, User};
use quell_workloads::conformance::stress::{self, Length};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const CPUS: usize = 3;
/// More processes than a run makes.
const PROCESSES: u32 = 1000;

/// A CPU and the control words.
struct Cpu<'w>(Program, usize, &'w [AtomicU64; 64]);

impl User for Cpu<'_> {
    fn cpu(&self) -> usize {
        self.1
    }
    fn cpus(&self) -> usize {
        CPUS
    }
    fn try_read(&self, address: u64) -> Result<u64, Fault> {
        self.0.try_access(address, None)
    }
    fn try_write(&self, address: u64, value: u64) -> Result<(), Fault> {
        self.0.try_access(address, Some(value)).map(|_| ())
    }
    fn call(&self, call: Call) -> Result<u64, Error> {
        self.0.call(call)
    }
    fn compute(&self, _nanoseconds: u64) {}
    fn now(&self) -> u64 {
        self.0.machine.now()
    }
    fn shared(&self, index: usize) -> u64 {
        // A CPU that waits for a word takes interrupts.
        self.0.machine.relax();
        self.2[index].load(SeqCst)
    }
    fn set_shared(&self, index: usize, value: u64) {
        self.2[index].store(value, SeqCst);
    }
    fn add_shared(&self, index: usize, value: u64) -> u64 {
        self.2[index].fetch_add(value, SeqCst)
    }
}

fn run(policy: Policy, tagging: Tagging, broadcast: bool, hardware_dirty: bool, seed: u64) {
    let options = Options { policy, tagging, broadcast, hardware_dirty, ..Options::new(0) };
    let map = nodes(320, 96);
    let (machine, vm) = machine(Options { cpus: CPUS, map, alone: false, ..options });
    let program = Program { machine, vm };
    let (start, words) = (Barrier::new(CPUS), [const { AtomicU64::new(0) }; 64]);
    std::thread::scope(|scope| {
        for cpu in 0..CPUS {
            let (start, words) = (&start, &words);
            scope.spawn(move || {
                be(cpu);
                vm.online();
                if cpu == 0 {
                    assert_eq!(vm.spawn(), Ok(1));
                }
                start.wait();
                vm.enter(1).unwrap();
                let user = Cpu(program, cpu, words);
                let outcome = stress::run(&user, seed, 1, Length::Rounds(1), &|_| (), |_| ());
                vm.offline();
                assert_eq!(outcome, Ok(()));
            });
        }
    });
    be(0);
    vm.online();
    vm.check().unwrap();
    for process in 1..PROCESSES {
        assert!(matches!(vm.call(Call::Exit { process }), Ok(0) | Err(Error::NoProcess)));
    }
    let totals = vm.check().unwrap();
    assert_eq!((totals.tables, totals.anonymous, totals.swapped), (0, 0, 0), "leaked: {totals:?}");
}

#[test]
fn no_write_is_lost_among_threads() {
    let policies = [Policy::BASELINE, Policy::ALL, Policy::only(Mechanism::LazyUnmap)];
    for (seed, policy) in policies.into_iter().enumerate() {
        let seed = seed as u64 + 1;
        run(policy, Tagging::PerCpu { count: 6 }, false, true, seed);
        run(policy, Tagging::None, false, true, seed + 10);
        run(policy, Tagging::Global { bits: 8 }, true, false, seed + 20);
    }
}

//! CPUs as threads: each writes its own words in pages that all others page out, migrate, write-protect, fork and
//! unmap. No write may get lost.

use crate::common::{Options, Program, be, machine, nodes};
use quell::{Mechanism, PageSize, Policy, Tagging};
use quell_vm::{Backing, Call, Error, Protection};
use rand::RngExt;
use rand_pcg::Pcg64;
use std::sync::Barrier;

const PAGE: u64 = 4096;
const PAGES: u64 = 24;
const CPUS: usize = 3;

struct SharedPages {
    anonymous: u64,
    file: u64,
    reader: u64,
    id: u32,
}

fn body(program: Program, cpu: usize, shared: &SharedPages, start: &Barrier, seed: u64) {
    let mut choices = Pcg64::new(seed.into(), cpu as u128);
    // This CPU's word of each page, in the two areas.
    let mut values = [[0u64; PAGES as usize]; 2];
    let word = |area: usize, page: u64| {
        [shared.anonymous, shared.file][area] + page * PAGE + 8 * cpu as u64
    };
    let backing = Backing::Anonymous { page: PageSize::Base };
    let own =
        Call::Map { address: None, bytes: 4 * PAGE, protection: Protection::READ_WRITE, backing };
    let own = program.call(own).unwrap();
    // No CPU moves a page before all pages are mapped.
    start.wait();
    let protect = |protection| Call::Protect { address: own, bytes: 2 * PAGE, protection };
    for turn in 0..800 {
        let (area, page) = (choices.random_range(0..2), choices.random_range(0..PAGES));
        let base = [shared.anonymous, shared.file][area];
        let range = (base + page * PAGE, (1 + choices.random_range(0..PAGES - page)) * PAGE);
        match choices.random_range(0..16) {
            0 | 1 => {
                let call = Call::PageOut { address: range.0, bytes: range.1 };
                assert!(program.call(call).is_ok());
            }
            2 => {
                let node = choices.random_range(0..2) as u32;
                let call = Call::Migrate { address: range.0, bytes: range.1, node };
                assert!(program.call(call).is_ok());
            }
            3 => assert!(program.call(Call::Sync { file: shared.id }).is_ok()),
            4 => {
                program.call(Call::Reclaim { pages: 8 }).unwrap();
            }
            5 if turn % 4 == 0 => match program.call(Call::Fork) {
                Ok(process) => {
                    let process = process as u32;
                    assert_eq!(program.call(Call::Exit { process }), Ok(0));
                }
                Err(error) => assert_eq!(error, Error::OutOfMemory),
            },
            6 => {
                // A page of its own: a removed right is gone when the call returns.
                program.write(own, turn);
                program.call(protect(Protection::READ)).unwrap();
                assert!(program.try_access(own, Some(1)).is_err());
                assert_eq!(program.read(own), turn);
                program.call(protect(Protection::READ_WRITE)).unwrap();
                program.write(own + PAGE, turn);
                program.call(Call::Discard { address: own, bytes: 4 * PAGE }).unwrap();
                assert_eq!((program.read(own), program.read(own + PAGE)), (0, 0));
            }
            7 => {
                let place = own + (1 << 32) * (1 + turn % 2);
                let bytes = PAGE;
                program.write(own + 3 * PAGE, turn);
                let call = Call::Remap { address: own + 3 * PAGE, bytes, to: Some(place) };
                assert_eq!(program.call(call), Ok(place));
                assert_eq!(program.read(place), turn);
                let to = Some(own + 3 * PAGE);
                assert!(program.call(Call::Remap { address: place, bytes, to }).is_ok());
            }
            8 => assert!(program.call(Call::Demote { pages: 4 }).is_ok()),
            9 | 10 => {
                let page = choices.random_range(0..PAGES);
                let at = shared.reader + page * PAGE + 8 * cpu as u64;
                assert_eq!(program.read(at), values[1][page as usize], "CPU {cpu} turn {turn}");
            }
            _ => {
                let address = word(area, page);
                let held = &mut values[area][page as usize];
                assert_eq!(
                    program.read(address),
                    *held,
                    "CPU {cpu} area {area} page {page} turn {turn}"
                );
                *held = turn + 1;
                program.write(address, *held);
            }
        }
    }
    for (area, values) in values.iter().enumerate() {
        for (page, &value) in values.iter().enumerate() {
            assert_eq!(program.read(word(area, page as u64)), value);
        }
    }
}

fn run(policy: Policy, tagging: Tagging, broadcast: bool, hardware_dirty: bool, seed: u64) {
    let map = nodes(112, 24);
    let (machine, vm) = machine(Options {
        cpus: CPUS,
        map,
        policy,
        tagging,
        broadcast,
        hardware_dirty,
        alone: false,
        ..Options::new(0)
    });
    let program = Program { machine, vm };
    let start = Barrier::new(CPUS);
    let shared = std::sync::OnceLock::new();
    std::thread::scope(|scope| {
        for cpu in 0..CPUS {
            let (start, shared) = (&start, &shared);
            scope.spawn(move || {
                be(cpu);
                vm.online();
                if cpu == 0 {
                    assert_eq!(vm.spawn(), Ok(1));
                }
                start.wait();
                vm.enter(1).unwrap();
                if cpu == 0 {
                    let id = program.call(Call::Create { bytes: PAGES * PAGE }).unwrap() as u32;
                    let map = |backing, protection| {
                        let bytes = PAGES * PAGE;
                        let call = Call::Map { address: None, bytes, protection, backing };
                        program.call(call).unwrap()
                    };
                    let file = Backing::Shared { file: id, offset: 0 };
                    let zeros = Backing::Anonymous { page: PageSize::Base };
                    let ready = SharedPages {
                        anonymous: map(zeros, Protection::READ_WRITE),
                        file: map(file, Protection::READ_WRITE),
                        reader: map(file, Protection::READ),
                        id,
                    };
                    assert!(shared.set(ready).is_ok());
                }
                start.wait();
                body(program, cpu, shared.get().unwrap(), start, seed);
                vm.offline();
            });
        }
    });
    be(0);
    vm.online();
    vm.check().unwrap();
    vm.call(Call::Exit { process: 1 }).unwrap();
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

//! How CPUs wait for each other.

use crate::common::{Options, Program, be};
use quell::{Extent, Frame, PageSize};
use quell_vm::{Backing, Call, MemoryMap, Node, Protection};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

const PAGE: u64 = 4096;

/// Checks that a CPU which waits for a moving page reads its entry without the table's lock, which the migrating CPU
/// needs. On a machine where both run in step, a waiter that took the lock for every check would keep the other out for
/// ever.
#[test]
fn a_waiter_leaves_the_lock_of_the_table_to_the_migrating_cpu() {
    const TURNS: u64 = 1000;
    let by_access: fn(Program, u64) = |program, address| assert_eq!(program.read(address), 0);
    let by_call: fn(Program, u64) = |program, address| {
        let bytes = PAGE;
        assert_eq!(program.call(Call::PageOut { address, bytes }), Ok(0));
    };
    for wait in [by_access, by_call] {
        let node =
            |first, frames| Node { extent: Extent { first: Frame(first), frames }, slow: false };
        let program = Program::start(Options {
            cpus: 3,
            map: MemoryMap::new(&[node(0x1000, 128), node(0x2000, 128)]),
            ..Options::new(0)
        });
        let Program { machine, vm } = program;
        let map = Call::Map {
            address: None,
            bytes: PAGE,
            protection: Protection::READ_WRITE,
            backing: Backing::Anonymous { page: PageSize::Base },
        };
        let address = program.call(map).unwrap();
        program.write(address, 7);
        let bytes = PAGE;
        for cpu in [2, 1] {
            be(cpu);
            vm.enter(1).unwrap();
        }
        let looks = Arc::new(OnceLock::new());
        let seen = looks.clone();
        // CPU 1 has removed the page's entry, flushed, and is about to copy the page. Meanwhile CPU 0 waits for the
        // page, until CPU 2 discards it.
        machine.at_copy(move || {
            be(0);
            let before = machine.tables_read.load(Relaxed);
            machine.after_turns(TURNS, move || {
                let read = machine.tables_read.load(Relaxed) - before;
                assert_eq!(seen.set(read), Ok(()));
                be(2);
                program.call(Call::Discard { address, bytes }).unwrap();
                be(0);
            });
            wait(program, address);
            be(1);
        });
        let node = 1;
        let migrate = Call::Migrate { address, bytes, node };
        program.call(migrate).unwrap();
        // Five tables for each walk, and a walk for each check under the lock.
        let read = *looks.get().expect("CPU 0 has waited");
        assert!(read < TURNS / 4, "{read} tables were read in {TURNS} turns of waiting");
        program.finish(&[1]);
    }
}

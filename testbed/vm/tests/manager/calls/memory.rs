//! Anonymous memory: mapping, discarding, protecting, forking, paging out.

use super::*;
use quell::Extent;
use quell_vm::FrameTotals;
use std::sync::atomic::Ordering::Relaxed;

#[test]
fn anonymous_memory_reads_zero_and_keeps_what_is_written() {
    everywhere(128, |program| {
        let a = program.call(anonymous(8 * PAGE, PageSize::Base)).unwrap();
        for page in 0..8 {
            assert_eq!(program.read(a + page * PAGE + 8), 0);
            program.write(a + page * PAGE, page);
        }
        for page in 0..8 {
            assert_eq!(program.read(a + page * PAGE), page);
            assert_eq!(program.peek(a + page * PAGE), Some(page));
        }
        program.call(Call::Unmap { address: a, bytes: 8 * PAGE }).unwrap();
        assert_eq!(program.try_access(a, None), Err(Fault::NotMapped));
        program.finish(&[1]);
    });
}

#[test]
fn discard_gives_zeros_again() {
    everywhere(128, |program| {
        let a = program.call(anonymous(2 * PAGE, PageSize::Base)).unwrap();
        for turn in 1..20 {
            program.write(a, turn);
            assert_eq!(program.call(Call::Discard { address: a, bytes: PAGE }), Ok(0));
            assert_eq!(program.read(a), 0);
        }
        program.finish(&[1]);
    });
}

#[test]
fn protection_is_enforced_and_given_back() {
    everywhere(128, |program| {
        let a = program.call(anonymous(3 * PAGE, PageSize::Base)).unwrap();
        for page in 0..3 {
            program.write(a + page * PAGE, 7);
        }
        let protect = |protection| Call::Protect { address: a + PAGE, bytes: PAGE, protection };
        program.call(protect(Protection::READ)).unwrap();
        assert_eq!(program.try_access(a + PAGE, Some(1)), Err(Fault::Forbidden));
        assert_eq!(program.read(a + PAGE), 7);
        program.call(protect(Protection::NONE)).unwrap();
        assert_eq!(program.try_access(a + PAGE, None), Err(Fault::Forbidden));
        assert_eq!(program.peek(a + PAGE), None);
        program.call(protect(Protection::READ_WRITE)).unwrap();
        program.write(a + PAGE, 8);
        assert_eq!(
            (program.read(a), program.read(a + PAGE), program.read(a + 2 * PAGE)),
            (7, 8, 7)
        );
        program.finish(&[1]);
    });
}

#[test]
fn fork_shares_until_somebody_writes() {
    everywhere(256, |program| {
        let a = program.call(anonymous(4 * PAGE, PageSize::Base)).unwrap();
        for page in 0..3 {
            program.write(a + page * PAGE, 10 + page);
        }
        program.call(Call::PageOut { address: a + 2 * PAGE, bytes: PAGE }).unwrap();
        let child = program.call(Call::Fork).unwrap() as u32;
        program.write(a, 99);
        program.call(Call::Enter { process: child }).unwrap();
        assert_eq!([0, 1, 2, 3].map(|page| program.read(a + page * PAGE)), [10, 11, 12, 0]);
        program.write(a + PAGE, 55);
        program.write(a + 2 * PAGE, 56);
        program.call(Call::Enter { process: 1 }).unwrap();
        assert_eq!([0, 1, 2, 3].map(|page| program.read(a + page * PAGE)), [99, 11, 12, 0]);
        assert_eq!(program.call(Call::Exit { process: 1 }), Err(Error::Busy));
        program.finish(&[1, child]);
    });
}

#[test]
fn paged_out_memory_comes_back() {
    everywhere(256, |program| {
        let a = program.call(anonymous(80 * PAGE, PageSize::Base)).unwrap();
        for page in 0..80 {
            program.write(a + page * PAGE + 16, page * 1_000_003);
        }
        assert_eq!(program.call(Call::PageOut { address: a, bytes: 80 * PAGE }), Ok(80));
        assert_eq!(program.vm.check().unwrap().swapped, 80);
        assert_eq!(program.peek(a + 5 * PAGE + 16), Some(5 * 1_000_003));
        for page in 0..80 {
            assert_eq!(program.read(a + page * PAGE + 16), page * 1_000_003);
        }
        assert_eq!(program.vm.check().unwrap().swapped, 0);
        program.call(Call::PageOut { address: a, bytes: 80 * PAGE }).unwrap();
        program.finish(&[1]);
    });
}

#[test]
fn more_memory_than_there_is() {
    everywhere(160, |program| {
        let a = program.call(anonymous(300 * PAGE, PageSize::Base)).unwrap();
        for turn in 0..3 {
            for page in 0..300 {
                let held = program.read(a + page * PAGE);
                assert_eq!(
                    held,
                    if turn == 0 { 0 } else { page + turn },
                    "page {page} turn {turn}"
                );
                program.write(a + page * PAGE, page + turn + 1);
            }
        }
        program.finish(&[1]);
    });
}

#[test]
fn empty_tables_are_freed() {
    let program = Program::start(Options::new(64));
    let before = program.vm.check().unwrap().tables;
    for turn in 1..50 {
        let address = Some(turn << 32);
        let protection = Protection::READ_WRITE;
        let backing = Backing::Anonymous { page: PageSize::Base };
        let a = program.call(Call::Map { address, bytes: PAGE, protection, backing }).unwrap();
        program.write(a, 1);
        program.call(Call::Unmap { address: a, bytes: PAGE }).unwrap();
        assert_eq!(program.vm.check().unwrap().tables, before);
    }
    program.finish(&[1]);
}

#[test]
fn a_page_that_was_never_written_is_not_zeroed_again() {
    let program = Program::start(Options::new(64));
    let zeroed = || program.machine.zeroed.load(Relaxed);
    let (address, bytes) = (program.call(anonymous(PAGE, PageSize::Base)).unwrap(), PAGE);
    for written in [false, true] {
        program.read(address);
        let before = zeroed();
        if written {
            program.write(address, 1);
        }
        program.call(Call::Discard { address, bytes }).unwrap();
        assert_eq!(program.read(address), 0);
        assert_eq!(zeroed() - before, u64::from(written));
    }
    program.finish(&[1]);
}

#[test]
fn reclaim_and_demotion_take_as_many_pages_as_they_are_told() {
    let node = |first, slow| Node { extent: Extent { first: Frame(first), frames: 64 }, slow };
    let program = Program::start(Options {
        map: MemoryMap::new(&[node(0x1000, false), node(0x2000, true)]),
        ..Options::new(0)
    });
    let a = program.call(anonymous(20 * PAGE, PageSize::Base)).unwrap();
    (0..20).for_each(|page| program.write(a + page * PAGE, page));
    assert_eq!(program.call(Call::Demote { pages: 4 }), Ok(4));
    assert_eq!(program.call(Call::Reclaim { pages: 4 }), Ok(4));
    assert_eq!(program.vm.check().unwrap().swapped, 4);
    (0..20).for_each(|page| assert_eq!(program.read(a + page * PAGE), page));
    program.finish(&[1]);
}

#[test]
fn frames_are_kept_free_ahead() {
    let config = |config: &mut quell_vm::VmConfig| config.reclaim_ahead = 16;
    let program = Program::start(Options { config, ..Options::new(64) });
    let a = program.call(anonymous(100 * PAGE, PageSize::Base)).unwrap();
    for page in 0..100 {
        program.write(a + page * PAGE, page);
        let FrameTotals { free, stale, .. } = program.vm.check().unwrap();
        assert!(free + stale >= 15, "{free} frames are free");
    }
    program.finish(&[1]);
}

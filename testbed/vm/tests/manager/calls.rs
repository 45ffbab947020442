//! Each call alone: its effect on programs, and whether every frame is freed.

use crate::common::{Options, Program, be, nodes};
use quell::{Frame, Mechanism, PageSize, Policy, Tagging};
use quell_vm::{Backing, Call, Error, Fault, FrameTotals, MemoryMap, Protection, VmConfig};
use std::sync::atomic::Ordering::Relaxed;

const PAGE: u64 = 4096;
const LARGE: u64 = 512 * PAGE;

fn anonymous_at(address: Option<u64>, bytes: u64, page: PageSize) -> Call {
    let backing = Backing::Anonymous { page };
    Call::Map { address, bytes, protection: Protection::READ_WRITE, backing }
}

fn anonymous(bytes: u64, page: PageSize) -> Call {
    anonymous_at(None, bytes, page)
}

/// Starts a program on 64 frames, with swap for ten pages.
fn on_little_memory() -> Program {
    let config = |config: &mut VmConfig| config.swap_pages = 10;
    Program::start(Options { config, ..Options::new(64) })
}

/// Writes to the pages of a new mapping until memory runs out. Returns its address, and the first page that found none.
fn fill_memory(program: &Program) -> (u64, u64) {
    let a = program.call(anonymous(100 * PAGE, PageSize::Base)).unwrap();
    let full = (0..100).find(|page| program.try_access(a + page * PAGE, Some(*page)).is_err());
    (a, full.expect("64 frames and 10 pages of swap do not hold 100 pages"))
}

fn map_file(program: &Program, file: u64, bytes: u64, shared: bool, protection: Protection) -> u64 {
    let file = file as u32;
    let backing = if shared {
        Backing::Shared { file, offset: 0 }
    } else {
        Backing::Private { file, offset: 0 }
    };
    program.call(Call::Map { address: None, bytes, protection, backing }).unwrap()
}

/// Runs a test on every machine and policy, none of which may affect the result.
fn everywhere(frames: u64, test: impl Fn(Program)) {
    let mut policies = vec![Policy::BASELINE, Policy::ALL];
    policies.extend(Mechanism::ALL.map(Policy::only));
    for policy in policies {
        for (tagging, broadcast, hardware_dirty) in [
            (Tagging::None, false, true),
            (Tagging::PerCpu { count: 6 }, false, true),
            (Tagging::Global { bits: 8 }, true, false),
        ] {
            let base = Options::new(frames);
            test(Program::start(Options { policy, tagging, broadcast, hardware_dirty, ..base }));
            be(0);
        }
    }
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
fn empty_tables_are_freed() {
    let program = Program::start(Options::new(64));
    let before = program.vm.check().unwrap().tables;
    for turn in 1..50 {
        let a = program.call(anonymous_at(Some(turn << 32), PAGE, PageSize::Base)).unwrap();
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
    let program = Program::start(Options { map: nodes(64, 64), ..Options::new(0) });
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
    let config = |config: &mut VmConfig| config.reclaim_ahead = 16;
    let program = Program::start(Options { config, ..Options::new(64) });
    let a = program.call(anonymous(100 * PAGE, PageSize::Base)).unwrap();
    for page in 0..100 {
        program.write(a + page * PAGE, page);
        let FrameTotals { free, stale, .. } = program.vm.check().unwrap();
        assert!(free + stale >= 15, "{free} frames are free");
    }
    program.finish(&[1]);
}

#[test]
fn sizes_of_zero_count_as_one() {
    let config = |config: &mut VmConfig| {
        (config.cache_batch, config.flush_together, config.migrate_together) = (0, 0, 0);
    };
    let map = nodes(64, 64);
    let program = Program::start(Options { map, config, ..Options::new(0) });
    let a = program.call(anonymous(8 * PAGE, PageSize::Base)).unwrap();
    (0..8).for_each(|page| program.write(a + page * PAGE, page));
    let bytes = 8 * PAGE;
    assert_eq!(program.call(Call::Migrate { address: a, bytes, node: 1 }), Ok(8));
    (0..8).for_each(|page| assert_eq!(program.read(a + page * PAGE), page));
    program.call(Call::Unmap { address: a, bytes }).unwrap();
    program.finish(&[1]);
}

#[test]
fn large_pages_are_used_split_copied_and_collapsed() {
    everywhere(8 * 512, |program| {
        let a = program.call(anonymous(2 * LARGE, PageSize::Large)).unwrap();
        assert_eq!(a % LARGE, 0);
        program.write(a + 5 * PAGE, 5);
        program.write(a + LARGE, 6);
        assert_eq!(program.vm.check().unwrap().anonymous, 1024);
        // Splitting keeps contents; the removed page is gone.
        program.call(Call::Unmap { address: a + 7 * PAGE, bytes: PAGE }).unwrap();
        assert_eq!(program.try_access(a + 7 * PAGE, None), Err(Fault::NotMapped));
        assert_eq!((program.read(a + 5 * PAGE), program.read(a + LARGE)), (5, 6));
        assert_eq!(program.vm.check().unwrap().anonymous, 1023);
        // A copy of a shared large page.
        let child = program.call(Call::Fork).unwrap() as u32;
        program.write(a + LARGE + PAGE, 61);
        program.call(Call::Enter { process: child }).unwrap();
        assert_eq!((program.read(a + LARGE), program.read(a + LARGE + PAGE)), (6, 0));
        program.call(Call::Enter { process: 1 }).unwrap();
        // A page that must be split while it is shared.
        let again = program.call(Call::Fork).unwrap() as u32;
        program.call(Call::Discard { address: a + LARGE + PAGE, bytes: PAGE }).unwrap();
        assert_eq!((program.read(a + LARGE), program.read(a + LARGE + PAGE)), (6, 0));
        program.call(Call::Enter { process: again }).unwrap();
        assert_eq!((program.read(a + LARGE), program.read(a + LARGE + PAGE)), (6, 61));
        program.call(Call::Enter { process: 1 }).unwrap();
        program.vm.leave();
        for process in [child, again] {
            program.vm.call(Call::Exit { process }).unwrap();
        }
        program.vm.enter(1).unwrap();
        for page in 0..512 {
            program.write(a + LARGE + page * PAGE + 8, page);
        }
        assert_eq!(program.call(Call::Collapse { address: a + LARGE + 1 }), Ok(1));
        assert_eq!(program.call(Call::Collapse { address: a + LARGE }), Ok(0));
        for page in 0..512 {
            assert_eq!(program.read(a + LARGE + page * PAGE + 8), page);
        }
        program.write(a + LARGE, 8);
        assert_eq!(program.read(a + LARGE), 8);
        // Swapped out in pieces.
        assert_eq!(program.call(Call::PageOut { address: a + LARGE, bytes: LARGE }), Ok(512));
        assert_eq!(program.read(a + LARGE + 9 * PAGE + 8), 9);
        program.finish(&[1]);
    });
}

#[test]
fn shared_large_pages_are_copied_in_pieces_where_no_block_is_left() {
    let by_store = |program: Program, a: u64| program.write(a + 5 * PAGE, 50);
    let by_discard = |program: Program, a: u64| {
        let (address, bytes) = (a + 5 * PAGE, PAGE);
        program.call(Call::Discard { address, bytes }).unwrap();
        program.write(address, 50);
    };
    for change in [by_store, by_discard] {
        // One block of 512 frames, and twice 511 frames that form none.
        let map = MemoryMap::flat(Frame(0x1001), 511 + 512 + 511);
        let program = Program::start(Options { map, ..Options::new(0) });
        let a = program.call(anonymous(LARGE, PageSize::Large)).unwrap();
        for page in 0..512 {
            program.write(a + page * PAGE, page);
        }
        let child = program.call(Call::Fork).unwrap() as u32;
        assert_eq!(program.vm.check().unwrap().anonymous, 512);
        change(program, a);
        assert_eq!(program.vm.check().unwrap().anonymous, 1024);
        for (process, fifth) in [(1, 50), (child, 5)] {
            program.call(Call::Enter { process }).unwrap();
            for page in 0..512 {
                let expected = if page == 5 { fifth } else { page };
                assert_eq!(program.read(a + page * PAGE), expected);
            }
        }
        program.write(a, 7);
        program.call(Call::Enter { process: 1 }).unwrap();
        assert_eq!(program.read(a), 0);
        program.finish(&[1, child]);
    }
}

#[test]
fn huge_pages_are_used_and_split() {
    let frames = 3 * 512 * 512;
    let program = Program::start(Options {
        map: MemoryMap::flat(Frame(512 * 512), frames),
        ..Options::new(0)
    });
    let bytes = PageSize::Huge.bytes();
    let a = program.call(anonymous(bytes, PageSize::Huge)).unwrap();
    program.write(a + 77 * LARGE, 7);
    assert_eq!(program.vm.check().unwrap().anonymous, 512 * 512);
    program.call(Call::Unmap { address: a + PAGE, bytes: PAGE }).unwrap();
    assert_eq!((program.read(a), program.read(a + 77 * LARGE)), (0, 7));
    assert_eq!(program.vm.check().unwrap().anonymous, 512 * 512 - 1);
    program.finish(&[1]);
}

#[test]
fn pages_of_two_areas_are_not_collapsed() {
    let program = Program::start(Options::new(4 * 512));
    let address = program.call(anonymous_at(Some(1 << 40), LARGE, PageSize::Base)).unwrap();
    (0..512).for_each(|page| program.write(address + page * PAGE, page));
    let half = |address, protection| Call::Protect { address, bytes: LARGE / 2, protection };
    program.call(half(address + LARGE / 2, Protection::READ)).unwrap();
    assert_eq!(program.call(Call::Collapse { address }), Ok(0));
    program.finish(&[1]);
}

#[test]
fn files_are_shared_private_written_and_read() {
    everywhere(256, |program| {
        let id = program.call(Call::Create { bytes: 4 * PAGE }).unwrap();
        let file = id as u32;
        let shared = map_file(&program, id, 4 * PAGE, true, Protection::READ_WRITE);
        let reader = map_file(&program, id, 4 * PAGE, true, Protection::READ);
        let private = map_file(&program, id, 4 * PAGE, false, Protection::READ_WRITE);
        program.call(Call::Write { file, offset: 8, value: 1 }).unwrap();
        assert_eq!([shared, reader, private].map(|at| program.read(at + 8)), [1; 3]);
        program.write(shared + 8, 2);
        assert_eq!([shared, reader, private].map(|at| program.read(at + 8)), [2; 3]);
        assert_eq!(program.call(Call::Read { file, offset: 8 }), Ok(2));
        program.write(private + 8, 3);
        program.write(shared + 8, 4);
        assert_eq!([shared, reader, private].map(|at| program.read(at + 8)), [4, 4, 3]);
        assert_eq!(program.try_access(reader, Some(1)), Err(Fault::Forbidden));
        assert_eq!(program.call(Call::Sync { file }), Ok(1));
        assert_eq!(program.call(Call::Sync { file }), Ok(0));
        program.write(shared + 2 * PAGE, 5);
        program.write(shared + 8, 6);
        assert_eq!(program.call(Call::Sync { file }), Ok(2));
        // Pages are reclaimed and read back from the device.
        program.call(Call::PageOut { address: shared, bytes: 4 * PAGE }).unwrap();
        assert_eq!([shared, reader].map(|at| program.read(at + 8)), [6, 6]);
        assert_eq!([shared, private].map(|at| program.read(at + 2 * PAGE)), [5, 5]);
        program.finish(&[1]);
    });
}

#[test]
fn truncation_takes_pages_from_under_their_mappings() {
    everywhere(256, |program| {
        let id = program.call(Call::Create { bytes: 40 * PAGE }).unwrap();
        let file = id as u32;
        let a = map_file(&program, id, 40 * PAGE, true, Protection::READ_WRITE);
        for page in 0..40 {
            program.write(a + page * PAGE, 1 + page);
            program.write(a + page * PAGE + 2048, 1 + page);
        }
        program.call(Call::Sync { file }).unwrap();
        program.call(Call::PageOut { address: a + 20 * PAGE, bytes: 10 * PAGE }).unwrap();
        program.call(Call::Truncate { file, bytes: 2 * PAGE + 1024 }).unwrap();
        assert_eq!(program.read(a + 2 * PAGE), 3);
        assert_eq!(program.read(a + 2 * PAGE + 2048), 0);
        assert_eq!(program.try_access(a + 3 * PAGE, None), Err(Fault::BeyondEnd));
        assert_eq!(program.try_access(a + 25 * PAGE, None), Err(Fault::BeyondEnd));
        assert_eq!(program.call(Call::Read { file, offset: 3 * PAGE }), Err(Error::BeyondEnd));
        program.call(Call::Truncate { file, bytes: 40 * PAGE }).unwrap();
        assert_eq!([3, 25, 39].map(|page| program.read(a + page * PAGE)), [0; 3]);
        program.finish(&[1]);
    });
}

#[test]
fn migration_keeps_contents_and_demotion_makes_room() {
    for policy in [Policy::BASELINE, Policy::ALL] {
        let map = nodes(128, 1024);
        let program = Program::start(Options { map, policy, ..Options::new(0) });
        let a = program.call(anonymous(20 * PAGE, PageSize::Base)).unwrap();
        for page in 0..20 {
            program.write(a + page * PAGE, page);
        }
        assert_eq!(program.call(Call::Migrate { address: a, bytes: 20 * PAGE, node: 1 }), Ok(20));
        for page in 0..20 {
            assert_eq!(program.read(a + page * PAGE), page);
            program.write(a + page * PAGE, page + 1);
        }
        assert_eq!(program.call(Call::Migrate { address: a, bytes: 20 * PAGE, node: 1 }), Ok(0));
        assert_eq!(program.call(Call::Migrate { address: a, bytes: PAGE, node: 0 }), Ok(1));
        assert_eq!(
            program.call(Call::Migrate { address: a, bytes: PAGE, node: 2 }),
            Err(Error::NoNode)
        );
        // More than the fast node holds: old pages move to the slow one, none to swap.
        let b = program.call(anonymous(300 * PAGE, PageSize::Base)).unwrap();
        for page in 0..300 {
            program.write(b + page * PAGE, page);
        }
        let totals = program.vm.check().unwrap();
        assert_eq!((totals.anonymous, totals.swapped), (320, 0));
        for page in 0..300 {
            assert_eq!(program.read(b + page * PAGE), page);
        }
        program.finish(&[1]);
    }
}

#[test]
fn clean_pages_that_were_taken_lazily_are_reinstated() {
    let policy = Policy::only(Mechanism::LazyUnmap);
    let program = Program::start(Options { policy, ..Options::new(256) });
    let id = program.call(Call::Create { bytes: 8 * PAGE }).unwrap();
    let file = id as u32;
    for page in 0..8 {
        program.call(Call::Write { file, offset: page * PAGE, value: page + 1 }).unwrap();
    }
    program.call(Call::Sync { file }).unwrap();
    let a = map_file(&program, id, 8 * PAGE, true, Protection::READ);
    let other = map_file(&program, id, 8 * PAGE, true, Protection::READ_WRITE);
    for page in 0..8 {
        program.read(a + page * PAGE);
        program.read(other + page * PAGE);
    }
    assert_eq!(program.call(Call::PageOut { address: a, bytes: 8 * PAGE }), Ok(8));
    assert_eq!(program.vm.check().unwrap().stale, 8);
    // The write call, a write fault and truncation find the frame. The read of page 1 still uses the translation that
    // was left behind.
    program.call(Call::Write { file, offset: 0, value: 100 }).unwrap();
    assert_eq!([program.read(a), program.read(other)], [100, 100]);
    assert_eq!(program.read(a + PAGE), 2);
    program.write(other + 2 * PAGE, 300);
    assert_eq!(program.read(a + 2 * PAGE), 300);
    program.call(Call::Truncate { file, bytes: 7 * PAGE }).unwrap();
    assert_eq!(program.try_access(a + 7 * PAGE, None), Err(Fault::BeyondEnd));
    assert_eq!(program.machine.reinstated.load(Relaxed), 3);
    program.vm.check().unwrap();
    // When memory is short, an allocation reuses the other frames. After that the program reads their pages from the
    // device.
    let hog = program.call(anonymous(400 * PAGE, PageSize::Base)).unwrap();
    for page in 0..400 {
        program.write(hog + page * PAGE, page);
    }
    assert_eq!([3, 4, 5, 6].map(|page| program.read(a + page * PAGE)), [4, 5, 6, 7]);
    program.finish(&[1]);
}

/// Runs the four programs for which reviewers rejected lazy unmapping in Linux.
#[test]
fn stale_readers_never_see_wrong_bytes() {
    for policy in [Policy::ALL, Policy::only(Mechanism::LazyUnmap)] {
        let program = Program::start(Options { policy, ..Options::new(256) });
        let files = [1, 2].map(|value| {
            let file = program.call(Call::Create { bytes: PAGE }).unwrap();
            program.call(Call::Write { file: file as u32, offset: 0, value }).unwrap();
            program.call(Call::Sync { file: file as u32 }).unwrap();
            file
        });
        let a = map_file(&program, files[0], PAGE, true, Protection::READ);
        // The second CPU keeps its translation all the time.
        let on = |cpu: usize, value: u64| {
            be(cpu);
            assert_eq!(program.read(a), value, "CPU {cpu} {policy:?}");
            be(0);
        };
        be(1);
        program.vm.enter(1).unwrap();
        be(0);
        let out = || assert!(program.call(Call::Reclaim { pages: 9 }).unwrap() >= 1);
        on(0, 1);
        on(1, 1);
        out();
        let backing = Backing::Shared { file: files[1] as u32, offset: 0 };
        let protection = Protection::READ;
        let replace = Call::Map { address: Some(a), bytes: PAGE, protection, backing };
        program.call(replace).unwrap();
        on(0, 2);
        on(1, 2);
        out();
        program.call(Call::Write { file: files[1] as u32, offset: 0, value: 20 }).unwrap();
        on(1, 20);
        on(0, 20);
        program.call(Call::Sync { file: files[1] as u32 }).unwrap();
        out();
        let writer = map_file(&program, files[1], PAGE, true, Protection::READ_WRITE);
        program.write(writer, 200);
        on(1, 200);
        on(0, 200);
        program.call(Call::Sync { file: files[1] as u32 }).unwrap();
        out();
        let hog = program.call(anonymous(400 * PAGE, PageSize::Base)).unwrap();
        for page in 0..400 {
            program.write(hog + page * PAGE, 7);
        }
        on(1, 200);
        program.finish(&[1]);
    }
}

#[test]
fn readers_of_moved_pages_never_see_wrong_bytes() {
    let map = nodes(128, 128);
    let policy = Policy::only(Mechanism::LazyUnmap);
    let program = Program::start(Options { map, policy, ..Options::new(0) });
    let file = program.call(Call::Create { bytes: 4 * PAGE }).unwrap() as u32;
    let a = map_file(&program, file.into(), 4 * PAGE, true, Protection::READ);
    let writer = map_file(&program, file.into(), 4 * PAGE, true, Protection::READ_WRITE);
    be(1);
    program.vm.enter(1).unwrap();
    for page in 0..4 {
        assert_eq!(program.read(a + page * PAGE), 0);
    }
    be(0);
    let bytes = 4 * PAGE;
    assert_eq!(program.call(Call::Migrate { address: a, bytes, node: 1 }), Ok(4));
    assert_eq!(program.vm.check().unwrap().stale, 4);
    // CPU 1 still reads the old frames, but must not once the bytes differ.
    program.call(Call::Write { file, offset: 0, value: 1 }).unwrap();
    assert_eq!(program.call(Call::Migrate { address: a, bytes, node: 0 }), Ok(0));
    program.write(writer + PAGE, 2);
    program.call(Call::Truncate { file, bytes: 3 * PAGE }).unwrap();
    be(1);
    assert_eq!([0, 1, 2].map(|page| program.read(a + page * PAGE)), [1, 2, 0]);
    assert_eq!(program.try_access(a + 3 * PAGE, None), Err(Fault::BeyondEnd));
    be(0);
    assert_eq!([0, 1, 2].map(|page| program.read(a + page * PAGE)), [1, 2, 0]);
    program.finish(&[1]);
}

#[test]
fn wrong_calls_are_refused_and_change_nothing() {
    let program = Program::start(Options::new(64));
    let a = program.call(anonymous(2 * PAGE, PageSize::Base)).unwrap();
    program.write(a, 1);
    let end = 1 << 47;
    let none = Protection::NONE;
    let file = Backing::Shared { file: 9, offset: 0 };
    let cases = [
        (Call::Unmap { address: a + 1, bytes: PAGE }, Error::Unaligned),
        (Call::Unmap { address: a, bytes: 0 }, Error::BadRange),
        (Call::Unmap { address: end, bytes: PAGE }, Error::BadRange),
        (Call::Unmap { address: 0, bytes: u64::MAX }, Error::BadRange),
        (Call::Unmap { address: u64::MAX - 4095, bytes: 4096 }, Error::BadRange),
        (Call::Protect { address: a, bytes: 3 * PAGE, protection: none }, Error::NotMapped),
        (Call::Discard { address: a, bytes: 3 * PAGE }, Error::NotMapped),
        (Call::PageOut { address: a - PAGE, bytes: 2 * PAGE }, Error::NotMapped),
        (Call::Remap { address: a, bytes: 3 * PAGE, to: None }, Error::NotMapped),
        (Call::Collapse { address: 0 }, Error::NotMapped),
        (Call::Enter { process: 99 }, Error::NoProcess),
        (Call::Exit { process: 99 }, Error::NoProcess),
        (Call::Exit { process: 1 }, Error::Busy),
        (Call::Write { file: 0, offset: 0, value: 0 }, Error::NoFile),
        (Call::Sync { file: 7 }, Error::NoFile),
        (Call::Truncate { file: u32::MAX, bytes: 0 }, Error::NoFile),
        (Call::Create { bytes: u64::MAX }, Error::BadRange),
        (Call::Map { address: None, bytes: PAGE, protection: none, backing: file }, Error::NoFile),
        (anonymous(end, PageSize::Base), Error::NoSpace),
        (anonymous(0, PageSize::Base), Error::BadRange),
    ];
    for (call, error) in cases {
        assert_eq!(program.call(call), Err(error), "{call:?}");
        assert_eq!(program.read(a), 1, "{call:?}");
    }
    program.finish(&[1]);
}

#[test]
fn memory_that_runs_out_is_an_error() {
    let program = on_little_memory();
    let (a, full) = fill_memory(&program);
    assert_eq!(program.try_access(a + full * PAGE, Some(1)), Err(Fault::OutOfMemory));
    assert_eq!(program.call(Call::Fork), Err(Error::OutOfMemory));
    for page in 0..full {
        assert_eq!(program.try_access(a + page * PAGE, None).unwrap_or(page), page);
    }
    program.finish(&[1]);
}

#[test]
fn tables_for_a_move_that_finds_no_memory_for_all_of_them_are_given_back() {
    let program = on_little_memory();
    // Each page needs its own table.
    let bytes = 8 * LARGE;
    let spread = program.call(anonymous(bytes, PageSize::Base)).unwrap();
    for page in 0..8 {
        program.write(spread + page * LARGE, page + 1);
    }
    let (a, _) = fill_memory(&program);
    program.call(Call::Discard { address: a + 20 * PAGE, bytes: 4 * PAGE }).unwrap();
    let remap = Call::Remap { address: spread, bytes, to: None };
    assert_eq!(program.call(remap), Err(Error::OutOfMemory));
    for page in 0..8 {
        let found = program.try_access(spread + page * LARGE, None);
        assert_eq!(found.unwrap_or(page + 1), page + 1);
    }
    program.finish(&[1]);
}

#[test]
fn a_file_call_that_finds_no_memory_leaves_the_file_as_it_was() {
    let program = on_little_memory();
    let id = program.call(Call::Create { bytes: PAGE }).unwrap();
    let file = id as u32;
    let read = |offset| program.call(Call::Read { file, offset });
    let write = |offset, value| program.call(Call::Write { file, offset, value });
    let truncate = |bytes| program.call(Call::Truncate { file, bytes });
    // The page is only on the device: a cut in its middle must read it back.
    let mapped = map_file(&program, id, PAGE, true, Protection::READ_WRITE);
    program.write(mapped + 2048, 7);
    assert_eq!(program.call(Call::PageOut { address: mapped, bytes: PAGE }), Ok(1));
    let (a, _) = fill_memory(&program);
    assert_eq!(truncate(16), Err(Error::OutOfMemory));
    let still_long = "the truncation that failed has cut the file";
    assert_eq!(read(2048), Err(Error::OutOfMemory), "{still_long}");
    assert_eq!(write(3 * PAGE, 1), Err(Error::OutOfMemory));
    program.call(Call::Unmap { address: a, bytes: 100 * PAGE }).unwrap();
    assert_eq!(read(2048), Ok(7));
    assert_eq!(
        read(3 * PAGE),
        Err(Error::BeyondEnd),
        "the write that failed has lengthened the file"
    );
    truncate(16).unwrap();
    truncate(PAGE).unwrap();
    assert_eq!(read(2048), Ok(0), "what was cut off came back");
    program.finish(&[1]);
}

/// In each turn there is one frame more, so that memory runs out at another allocation.
#[test]
fn wherever_memory_runs_out_nothing_is_lost() {
    for frames in 12..60 {
        let config = |config: &mut VmConfig| config.swap_pages = 0;
        let program = Program::start(Options { config, ..Options::new(frames) });
        let done = |result: Result<u64, Error>| match result {
            Ok(value) => Some(value),
            Err(Error::OutOfMemory) => None,
            Err(other) => panic!("with {frames} frames: {other}"),
        };
        let access = |address, store| match program.try_access(address, store) {
            Ok(value) => Some(value),
            Err(Fault::OutOfMemory) => None,
            Err(other) => panic!("with {frames} frames: {address:#x}: {other}"),
        };
        // The other CPU keeps some free frames in its cache.
        be(1);
        program.vm.enter(1).unwrap();
        let some = program.call(anonymous(2 * PAGE, PageSize::Base)).unwrap();
        (0..frames % 3).for_each(|page| _ = access(some + page * PAGE, Some(1)));
        let (address, bytes) = (some, 2 * PAGE);
        program.call(Call::Unmap { address, bytes }).unwrap();
        be(0);
        let id = program.call(Call::Create { bytes: 2 * PAGE }).unwrap();
        let mut spread = program.call(anonymous(4 * LARGE, PageSize::Base)).unwrap();
        let shared = map_file(&program, id, 2 * PAGE, true, Protection::READ_WRITE);
        let private = map_file(&program, id, 2 * PAGE, false, Protection::READ_WRITE);
        let mut held = [0; 6];
        let mut child = None;
        for round in 0..2 {
            let places = (0..4).map(|at| spread + at * LARGE).chain([shared, private + PAGE]);
            for (number, place) in places.enumerate() {
                let value = 10 * round + number as u64 + 1;
                if access(place, Some(value)).is_some() {
                    held[number] = value;
                }
            }
            // The second round copies what is shared with the child.
            child = child.or_else(|| done(program.call(Call::Fork)));
        }
        let (address, bytes, to) = (spread, 4 * LARGE, None);
        spread = done(program.call(Call::Remap { address, bytes, to })).unwrap_or(spread);
        let bytes = frames * PAGE;
        // In one table of leaves, for which there may be no memory either.
        let hog = program.call(anonymous_at(Some(1 << 40), bytes, PageSize::Base)).unwrap();
        let full = (0..frames).find(|page| access(hog + page * PAGE, Some(7)).is_none());
        let full = full.expect("so many frames do not hold so many pages and their tables");
        let FrameTotals { free, stale, .. } = program.vm.check().unwrap();
        assert!(full == 0 || free + stale == 0, "of {frames} frames {free} are not used");
        let address = hog;
        program.call(Call::Unmap { address, bytes }).unwrap();
        let places = (0..4).map(|at| spread + at * LARGE).chain([shared, private + PAGE]);
        for (number, place) in places.enumerate() {
            let found = access(place, None);
            assert!(
                found.is_none_or(|found| found == held[number]),
                "with {frames} frames: {number}"
            );
        }
        let children = child.map(|child| child as u32);
        program.finish(&[Some(1), children].into_iter().flatten().collect::<Vec<_>>());
    }
}

//! Calls that are refused.

use super::*;
use quell_vm::FrameTotals;

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
    let config = |config: &mut quell_vm::VmConfig| config.swap_pages = 10;
    let program = Program::start(Options { config, ..Options::new(64) });
    let a = program.call(anonymous(100 * PAGE, PageSize::Base)).unwrap();
    let full = (0..100).find(|page| program.try_access(a + page * PAGE, Some(*page)).is_err());
    let full = full.expect("64 frames and 10 pages of swap do not hold 100 pages");
    assert_eq!(program.try_access(a + full * PAGE, Some(1)), Err(Fault::OutOfMemory));
    assert_eq!(program.call(Call::Fork), Err(Error::OutOfMemory));
    for page in 0..full {
        assert_eq!(program.try_access(a + page * PAGE, None).unwrap_or(page), page);
    }
    program.finish(&[1]);
}

#[test]
fn tables_for_a_move_that_finds_no_memory_for_all_of_them_are_given_back() {
    const APART: u64 = 512 * PAGE;
    let config = |config: &mut quell_vm::VmConfig| config.swap_pages = 10;
    let program = Program::start(Options { config, ..Options::new(64) });
    // Each page needs its own table.
    let bytes = 8 * APART;
    let spread = program.call(anonymous(bytes, PageSize::Base)).unwrap();
    for page in 0..8 {
        program.write(spread + page * APART, page + 1);
    }
    let a = program.call(anonymous(100 * PAGE, PageSize::Base)).unwrap();
    let full = (0..100).find(|page| program.try_access(a + page * PAGE, Some(*page)).is_err());
    full.expect("64 frames and 10 pages of swap do not hold 100 pages");
    let (address, some) = (a + 20 * PAGE, 4 * PAGE);
    let discard = Call::Discard { address, bytes: some };
    program.call(discard).unwrap();
    let address = spread;
    let to = None;
    let remap = Call::Remap { address, bytes, to };
    assert_eq!(program.call(remap), Err(Error::OutOfMemory));
    for page in 0..8 {
        let found = program.try_access(spread + page * APART, None);
        assert_eq!(found.unwrap_or(page + 1), page + 1);
    }
    program.finish(&[1]);
}

#[test]
fn a_file_call_that_finds_no_memory_leaves_the_file_as_it_was() {
    let config = |config: &mut quell_vm::VmConfig| config.swap_pages = 10;
    let program = Program::start(Options { config, ..Options::new(64) });
    let id = program.call(Call::Create { bytes: PAGE }).unwrap();
    let file = id as u32;
    let read = |offset| program.call(Call::Read { file, offset });
    let write = |offset, value| program.call(Call::Write { file, offset, value });
    let truncate = |bytes| program.call(Call::Truncate { file, bytes });
    // The page is only on the device: a cut in its middle must read it back.
    let mapped = map_file(&program, id, PAGE, true, Protection::READ_WRITE);
    program.write(mapped + 2048, 7);
    let out = Call::PageOut { address: mapped, bytes: PAGE };
    assert_eq!(program.call(out), Ok(1));
    let a = program.call(anonymous(100 * PAGE, PageSize::Base)).unwrap();
    let full = (0..100).find(|page| program.try_access(a + page * PAGE, Some(*page)).is_err());
    full.expect("64 frames and 10 pages of swap do not hold 100 pages");
    assert_eq!(truncate(16), Err(Error::OutOfMemory));
    let still_long = "the truncation that failed has cut the file";
    assert_eq!(read(2048), Err(Error::OutOfMemory), "{still_long}");
    assert_eq!(write(3 * PAGE, 1), Err(Error::OutOfMemory));
    let all = Call::Unmap { address: a, bytes: 100 * PAGE };
    program.call(all).unwrap();
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
    const APART: u64 = 512 * PAGE;
    for frames in 12..60 {
        let config = |config: &mut quell_vm::VmConfig| config.swap_pages = 0;
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
        let mut spread = program.call(anonymous(4 * APART, PageSize::Base)).unwrap();
        let shared = map_file(&program, id, 2 * PAGE, true, Protection::READ_WRITE);
        let private = map_file(&program, id, 2 * PAGE, false, Protection::READ_WRITE);
        let mut held = [0; 6];
        let mut child = None;
        for round in 0..2 {
            let places = (0..4).map(|at| spread + at * APART).chain([shared, private + PAGE]);
            for (number, place) in places.enumerate() {
                let value = 10 * round + number as u64 + 1;
                if access(place, Some(value)).is_some() {
                    held[number] = value;
                }
            }
            // The second round copies what is shared with the child.
            child = child.or_else(|| done(program.call(Call::Fork)));
        }
        let (address, bytes, to) = (spread, 4 * APART, None);
        spread = done(program.call(Call::Remap { address, bytes, to })).unwrap_or(spread);
        let bytes = frames * PAGE;
        // In one table of leaves, for which there may be no memory either.
        let hog = Call::Map {
            address: Some(1 << 40),
            bytes,
            protection: Protection::READ_WRITE,
            backing: Backing::Anonymous { page: PageSize::Base },
        };
        let hog = program.call(hog).unwrap();
        let full = (0..frames).find(|page| access(hog + page * PAGE, Some(7)).is_none());
        let full = full.expect("so many frames do not hold so many pages and their tables");
        let FrameTotals { free, stale, .. } = program.vm.check().unwrap();
        assert!(full == 0 || free + stale == 0, "of {frames} frames {free} are not used");
        let address = hog;
        program.call(Call::Unmap { address, bytes }).unwrap();
        let places = (0..4).map(|at| spread + at * APART).chain([shared, private + PAGE]);
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

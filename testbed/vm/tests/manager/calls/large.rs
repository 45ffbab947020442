//! Large pages: used, split, copied and collapsed.

use super::*;

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
    let map = Call::Map {
        address: Some(1 << 40),
        bytes: LARGE,
        protection: Protection::READ_WRITE,
        backing: Backing::Anonymous { page: PageSize::Base },
    };
    let address = program.call(map).unwrap();
    (0..512).for_each(|page| program.write(address + page * PAGE, page));
    let half = |address, protection| Call::Protect { address, bytes: LARGE / 2, protection };
    program.call(half(address + LARGE / 2, Protection::READ)).unwrap();
    assert_eq!(program.call(Call::Collapse { address }), Ok(0));
    program.finish(&[1]);
}

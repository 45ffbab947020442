//! Lazy unmapping: stale translations never return wrong bytes, and broken rules are noticed.

use super::*;

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
    assert_eq!(program.machine.reinstated.load(std::sync::atomic::Ordering::Relaxed), 3);
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
    let node =
        |first, frames, slow| Node { extent: quell::Extent { first: Frame(first), frames }, slow };
    let map = MemoryMap::new(&[node(0x1000, 128, false), node(0x2000, 128, true)]);
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

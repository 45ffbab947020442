//! Contents and history of frames.

use super::*;

fn memory() -> Memory {
    Memory::new(Extent {
        first: Frame(100),
        frames: 4096,
    })
}

#[test]
fn memory_is_zero_until_written_and_zero_again_after_zeroing() {
    let mut memory = memory();
    let frame = Frame(700);
    assert_eq!(memory.load(frame, 8), 0);
    memory.store(frame, 8, 0);
    assert!(memory.page(frame).is_none(), "zeros cost nothing");
    memory.store(frame, 8, 0x0102_0304_0506_0708);
    let mut bytes = [0; 4];
    memory.read(frame, 10, &mut bytes);
    assert_eq!(bytes, [6, 5, 4, 3]);
    memory.write(frame, 9, &[0, 0]);
    assert_eq!(memory.load(frame, 8), 0x0102_0304_0500_0008);
    assert_eq!(memory.first_nonzero(Frame(600), 600), Some(frame));
    memory.zero(Frame(690), 1000);
    assert_eq!(memory.load(frame, 8), 0);
    assert_eq!(memory.first_nonzero(Frame(100), 4096), None);
    memory.store(frame, 0, 1);
    assert_eq!(memory.load(frame, 8), 0, "pages of the pool are cleared");
}

#[test]
fn copies_carry_contents_and_zeros() {
    let mut memory = memory();
    memory.store(Frame(100), 0, 5);
    memory.store(Frame(201), 0, 6);
    memory.copy(Frame(100), Frame(200), 2);
    assert_eq!(memory.load(Frame(200), 0), 5);
    assert_eq!(memory.load(Frame(201), 0), 0);
}

#[test]
fn histories_are_kept_for_many_and_for_each() {
    let mut memory = memory();
    let owned = History {
        allocated: 9,
        state: State::Owned,
        ..History::default()
    };
    memory.set(Frame(100), 2048, 9, owned);
    assert_eq!(memory.history(Frame(2000)).allocated, 9);
    assert_eq!(memory.history(Frame(2148)).allocated, 0);
    memory.update(Frame(1000), 3, 11, |history| history.captured = 11);
    for frame in 990..1010 {
        let touched = (1000..1003).contains(&frame);
        let history = memory.history(Frame(frame));
        assert_eq!(history.captured, if touched { 11 } else { 0 });
        assert_eq!(history.allocated, 9);
        assert_eq!(memory.changed(Frame(frame)), if touched { 11 } else { 9 });
    }
    // A run that covers whole chunks and parts of others.
    memory.set(Frame(500), 2000, 12, History::default());
    assert_eq!(memory.history(Frame(499)).allocated, 9);
    assert_eq!(memory.history(Frame(500)).allocated, 0);
    assert_eq!(memory.changed(Frame(2499)), 12);
    assert_eq!(memory.changed(Frame(2500)), 0);
}

#[test]
fn tables_are_made_when_asked_for() {
    let tables = Tables::new(Extent {
        first: Frame(100),
        frames: 4096,
    });
    assert!(tables.existing(Frame(300)).is_none());
    tables.page(Frame(300)).words[3].poke(7);
    assert_eq!(
        tables.existing(Frame(300)).map(|words| words[3].peek()),
        Some(7)
    );
    assert!(tables.existing(Frame(99)).is_none());
    assert!(tables.existing(Frame(1 << 40)).is_none());
}

//! Contents and history of frames.

use super::*;
use rand::RngExt;
use rand_pcg::Pcg64;

fn memory() -> Memory {
    Memory::new(Extent { first: Frame(100), frames: 4096 })
}

#[test]
fn memory_is_zero_until_written_and_zero_again_after_zeroing() {
    let mut memory = memory();
    let frame = Frame(700);
    assert_eq!(memory.load(frame, 8), 0);
    memory.store(frame, 8, 0);
    assert!(memory.content(frame).is_none(), "zeros cost nothing");
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

/// Returns the number of frames that need all their bytes.
fn whole(memory: &Memory) -> usize {
    let any = |frame| matches!(memory.content(Frame(frame)), Some(Content::Any(_)));
    (100..4196).filter(|&frame| any(frame)).count()
}

#[test]
fn patterns_take_no_page_of_the_host() {
    let mut memory = memory();
    let streamed = |memory: &mut Memory, frame, word: usize, value| {
        for line in 0..64 {
            memory.store(Frame(frame), line * 64 + word * 8, value);
        }
    };
    for round in 1..4 {
        for frame in 200..300 {
            streamed(&mut memory, frame, 2, round);
        }
    }
    memory.copy(Frame(200), Frame(300), 100);
    let mut page = [0; 4096];
    memory.read(Frame(399), 0, &mut page);
    memory.write(Frame(400), 0, &page);
    assert_eq!(whole(&memory), 0);
    assert_eq!(memory.load(Frame(400), 63 * 64 + 16), 3);
    assert_eq!(memory.load(Frame(400), 63 * 64 + 8), 0);
    // Another word of the page needs all its bytes, and keeps the others.
    memory.store(Frame(400), 8, 9);
    assert_eq!(whole(&memory), 1);
    assert_eq!(memory.load(Frame(400), 16), 3);
    memory.zero(Frame(200), 201);
    assert_eq!(memory.first_nonzero(Frame(100), 4096), None);
}

#[test]
fn any_content_is_kept_whatever_its_form() {
    let mut memory = memory();
    let mut truth = vec![0u8; 8 * 4096];
    let mut random = Pcg64::new(1, 0);
    for step in 0..200_000 {
        let frame = random.random_range(0..8usize);
        // Mostly one word of the lines in order, so that runs begin, grow and are overwritten.
        let (line, word) = match random.random_range(0..64) {
            0 => (random.random_range(0..64), random.random_range(0..8)),
            _ => (step / 8 % 64, 1),
        };
        let (offset, value) = (line * 64 + word * 8, random.random_range(0..3u64));
        let at = frame * 4096;
        match random.random_range(0..4000) {
            0 => {
                memory.zero(Frame(100 + frame as u64), 1);
                truth[at..at + 4096].fill(0);
            }
            1 => {
                let from = random.random_range(0..8usize);
                memory.copy(Frame(100 + from as u64), Frame(100 + frame as u64), 1);
                truth.copy_within(from * 4096..from * 4096 + 4096, at);
            }
            2 => {
                let mut page = [0; 4096];
                memory.read(Frame(100 + frame as u64), 0, &mut page);
                memory.write(Frame(100 + frame as u64), 0, &page);
            }
            3 => {
                memory.write(Frame(100 + frame as u64), offset + 3, &[7; 4]);
                truth[at + offset + 3..at + offset + 7].fill(7);
            }
            _ => {
                memory.store(Frame(100 + frame as u64), offset, value);
                truth[at + offset..at + offset + 8].copy_from_slice(&value.to_le_bytes());
            }
        }
        let expected = u64::from_le_bytes(truth[at + offset..at + offset + 8].try_into().unwrap());
        assert_eq!(memory.load(Frame(100 + frame as u64), offset), expected);
        if step % 1000 == 0 {
            let mut page = [0; 4096];
            for frame in 0..8 {
                memory.read(Frame(100 + frame as u64), 0, &mut page);
                assert_eq!(page, truth[frame * 4096..frame * 4096 + 4096]);
                let first = memory.first_nonzero(Frame(100 + frame as u64), 1);
                assert_eq!(first.is_some(), page.iter().any(|&byte| byte != 0));
            }
        }
    }
}

#[test]
fn histories_are_kept_for_many_and_for_each() {
    let mut memory = memory();
    let owned = History { allocated: 9, ..History::default() };
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
    let tables = Tables::new(Extent { first: Frame(100), frames: 4096 });
    assert!(tables.existing(Frame(300)).is_none());
    tables.page(Frame(300)).words[3].poke(7);
    assert_eq!(tables.existing(Frame(300)).map(|words| words[3].peek()), Some(7));
    assert!(tables.existing(Frame(99)).is_none());
    assert!(tables.existing(Frame(1 << 40)).is_none());
}

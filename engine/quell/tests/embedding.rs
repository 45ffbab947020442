//! The lists in which an embedder keeps frames: how often each makes a batch flush.

use std::cell::Cell;

use crate::support::{Machine, both, one};
use quell::{AddressSpace, Batch, Frame, FrameArray, FrameList, Purpose};

/// The index of the next frame in a chain; [`END`] for none.
const END: usize = usize::MAX;

/// Frames that are linked to one another through the array of their descriptors.
struct Chain<'d> {
    next: &'d [Cell<usize>],
    first: usize,
}

impl FrameList for Chain<'_> {
    type Frame = Frame;

    fn is_full(&self) -> bool {
        false
    }
    fn is_empty(&self) -> bool {
        self.first == END
    }
    fn push(&mut self, frame: Frame) {
        self.next[frame.0 as usize].set(self.first);
        self.first = frame.0 as usize;
    }
    fn take(&mut self) -> Option<Frame> {
        let first = Some(self.first).filter(|&first| first != END)?;
        self.first = self.next[first].get();
        Some(Frame(first as u64))
    }
}

const PAGES: u64 = 512;

/// Unmaps 512 pages in ascending order, and returns the number of interrupts.
///
/// It finishes the batch whenever the list is full.
fn interrupts<L: FrameList<Frame = Frame>>(list: L) -> usize {
    let (machine, engine, x) = both();
    let mut freed = Vec::new();
    let mut batch: Batch<'_, &AddressSpace<Machine>, L> = engine.batch_into(Purpose::Call, list);
    for page in 0..PAGES {
        if batch.is_full() {
            freed.extend(batch.finish());
        }
        batch.unmapped(x, one(page), Frame(page));
    }
    let before = machine.interrupts.get();
    freed.extend(batch.finish());
    let sent = machine.interrupts.get();
    assert_eq!(sent, before + 1, "the last frames came out behind a flush");
    assert!(batch.is_empty());
    freed.sort_unstable_by_key(|frame: &Frame| frame.0);
    let all = (0..PAGES).map(Frame);
    assert!(freed.into_iter().eq(all), "every frame came back once");
    sent
}

#[test]
fn a_longer_list_flushes_less_often() {
    assert_eq!(interrupts(FrameArray::<Frame>::new()), 8);
    assert_eq!(interrupts(FrameArray::<Frame, 100>::new()), 6);
    assert_eq!(interrupts(FrameArray::<Frame, 512>::new()), 1);
    let next: Vec<_> = (0..PAGES).map(|_| Cell::new(END)).collect();
    let (next, first) = (&*next, END);
    assert_eq!(interrupts(Chain { next, first }), 1);
}

#[test]
fn a_dropped_batch_flushes_before_its_frames_are_dropped() {
    struct Witness<'m>(&'m Machine);
    impl Drop for Witness<'_> {
        fn drop(&mut self) {
            assert_eq!(self.0.flushed_on(), [0, 1]);
        }
    }
    let (machine, engine, x) = both();
    machine.invalidated.borrow_mut().clear();
    let mut batch = engine.batch(Purpose::Call);
    batch.unmapped(x, one(3), Witness(machine));
    drop(batch);
    assert_eq!(machine.flushed_on(), [0, 1]);
}

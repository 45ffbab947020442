//! Allocates blocks of frames of one memory node: a buddy allocator.
//!
//! A free block of `2^order` frames begins at a multiple of its size. Two halves of a block join as soon as both are
//! free. Blocks are kept in ordered sets and the lowest address is taken first, so that a mostly free node keeps large
//! blocks.

use alloc::collections::BTreeSet;
use quell::{Extent, Frame};

/// The largest block: 1 GB.
const MAX_ORDER: u8 = 18;

/// Free blocks of one node, by order and address. Lowest addresses go first.
pub(crate) struct Buddy {
    free: [BTreeSet<u64>; MAX_ORDER as usize + 1],
    frames: u64,
}

impl Buddy {
    /// Creates a node whose frames are all free.
    pub(crate) fn new(extent: Extent) -> Self {
        let mut buddy =
            Buddy { free: [const { BTreeSet::new() }; MAX_ORDER as usize + 1], frames: 0 };
        let end = extent.first.0 + extent.frames;
        let mut at = extent.first.0;
        while at < end {
            let fits = (end - at).ilog2() as u8;
            let order = (at.trailing_zeros() as u8).min(fits).min(MAX_ORDER);
            buddy.free[order as usize].insert(at);
            at += 1 << order;
        }
        buddy.frames = extent.frames;
        buddy
    }

    /// Returns the number of free base frames.
    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }

    /// Takes a block, splitting a larger one if necessary.
    pub(crate) fn take(&mut self, order: u8) -> Option<Frame> {
        let found = (order..=MAX_ORDER).find(|&order| !self.free[order as usize].is_empty())?;
        let block = self.free[found as usize].pop_first()?;
        for half in (order..found).rev() {
            self.free[half as usize].insert(block + (1 << half));
        }
        self.frames -= 1 << order;
        Some(Frame(block))
    }

    /// Returns a block, and joins it with free neighbours.
    pub(crate) fn give(&mut self, frame: Frame, order: u8) {
        let (mut block, mut at) = (frame.0, order);
        while at < MAX_ORDER && self.free[at as usize].remove(&(block ^ 1 << at)) {
            block &= !(1 << at);
            at += 1;
        }
        self.free[at as usize].insert(block);
        self.frames += 1 << order;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn buddy_gives_everything_once_and_joins_again() {
        let extent = Extent { first: Frame(37), frames: 1000 };
        let mut buddy = Buddy::new(extent);
        let mut taken = Vec::new();
        for order in [3, 0, 5, 1, 0] {
            taken.push((buddy.take(order).unwrap(), order));
        }
        while let Some(frame) = buddy.take(0) {
            taken.push((frame, 0));
        }
        let mut owned = alloc::vec![false; 1100];
        for &(frame, order) in &taken {
            assert_eq!(frame.0 % (1 << order), 0);
            for at in frame.0..frame.0 + (1 << order) {
                assert!(
                    (37..1037).contains(&at) && !core::mem::replace(&mut owned[at as usize], true)
                );
            }
        }
        assert_eq!(owned.iter().filter(|&&owned| owned).count(), 1000);
        assert_eq!(buddy.frames(), 0);
        for (frame, order) in taken {
            buddy.give(frame, order);
        }
        assert_eq!(buddy.frames(), 1000);
        assert_eq!(buddy.take(8), Some(Frame(256)));
    }
}

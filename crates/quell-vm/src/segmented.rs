//! An array that grows without moving its elements and without a lock for readers.
//!
//! Elements live in segments of doubling length, each made at its first use, so a reference into
//! the array stays good and an empty array costs one pointer per possible segment. Elements are never
//! removed; users reuse them.

use alloc::boxed::Box;
use once_cell::race::OnceBox;

const SEGMENTS: usize = 27;

/// The array. The first segment holds `FIRST` elements, a power of two.
pub(crate) struct SegmentedArray<T, const FIRST: usize> {
    segments: [OnceBox<Box<[T]>>; SEGMENTS],
}

impl<T, const FIRST: usize> SegmentedArray<T, FIRST> {
    pub(crate) const fn new() -> Self {
        SegmentedArray {
            segments: [const { OnceBox::new() }; SEGMENTS],
        }
    }

    /// Which segment holds the element, and where in it.
    fn place(index: usize) -> (usize, usize) {
        let segment = (index / FIRST + 1).ilog2() as usize;
        (segment, index - FIRST * ((1 << segment) - 1))
    }

    /// The element, if its segment was made.
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        let (segment, offset) = Self::place(index);
        self.segments.get(segment)?.get()?.get(offset)
    }

    /// The element; makes its segment of `new` elements if need be. `None` beyond the largest index.
    pub(crate) fn get_or_make(&self, index: usize, new: impl Fn() -> T) -> Option<&T> {
        let (segment, offset) = Self::place(index);
        self.segments
            .get(segment)?
            .get_or_init(|| Box::new((0..FIRST << segment).map(|_| new()).collect()))
            .get(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_index_has_its_own_element() {
        let array = SegmentedArray::<AtomicUsize, 4>::new();
        assert!(array.get(0).is_none());
        for index in 0..1000 {
            let element = array
                .get_or_make(index, || AtomicUsize::new(usize::MAX))
                .unwrap();
            assert_eq!(element.swap(index, Ordering::Relaxed), usize::MAX);
        }
        for index in 0..1000 {
            assert_eq!(array.get(index).unwrap().load(Ordering::Relaxed), index);
        }
    }
}

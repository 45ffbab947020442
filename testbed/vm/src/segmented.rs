//! Implements arrays that grow without moving their elements and without a lock for readers.
//!
//! Elements are in segments of doubling length, each made when it is first used. So references into the array stay
//! valid, and an empty array costs one pointer per possible segment. Elements are never removed; users reuse them.
//!
//! If programs choose the index, as for pages of a file, one far index must not allocate everything below it. For this
//! case a [`SparseArray`] has segments of pointers, with a few elements behind each.

use alloc::boxed::Box;
use once_cell::race::OnceBox;

const SEGMENTS: usize = 27;

/// An array that grows by segments. The first segment holds `FIRST` elements, a power of two.
pub(crate) struct SegmentedArray<T, const FIRST: usize> {
    segments: [OnceBox<Box<[T]>>; SEGMENTS],
}

impl<T, const FIRST: usize> SegmentedArray<T, FIRST> {
    pub(crate) const fn new() -> Self {
        SegmentedArray { segments: [const { OnceBox::new() }; SEGMENTS] }
    }

    /// Returns the segment of an element, and its position there.
    fn place(index: usize) -> (usize, usize) {
        let segment = (index / FIRST + 1).ilog2() as usize;
        (segment, index - FIRST * ((1 << segment) - 1))
    }

    /// Returns the element, if its segment exists.
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        let (segment, offset) = Self::place(index);
        self.segments.get(segment)?.get()?.get(offset)
    }

    /// Returns the element, and makes its segment of `new` elements if necessary. Returns `None` beyond the largest
    /// index.
    pub(crate) fn get_or_make(&self, index: usize, new: impl Fn() -> T) -> Option<&T> {
        let (segment, offset) = Self::place(index);
        self.segments
            .get(segment)?
            .get_or_init(|| Box::new((0..FIRST << segment).map(|_| new()).collect()))
            .get(offset)
    }

    /// Returns the first index after this one's segment, if that segment doesn't exist.
    fn past_unmade(&self, index: usize) -> Option<usize> {
        let (segment, _) = Self::place(index);
        let made = self.segments.get(segment)?.get().is_some();
        (!made).then(|| FIRST * ((1 << (segment + 1)) - 1))
    }
}

/// The number of [`SparseArray`] elements that are made at once, a power of two.
const TOGETHER: usize = 16;

/// An array whose elements are made a few at a time, at any index.
pub(crate) struct SparseArray<T> {
    parts: SegmentedArray<OnceBox<Box<[T]>>, 4>,
}

impl<T> SparseArray<T> {
    pub(crate) const fn new() -> Self {
        SparseArray { parts: SegmentedArray::new() }
    }

    /// Returns the element, if it exists.
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        let part = self.parts.get(index / TOGETHER)?.get()?;
        part.get(index % TOGETHER)
    }

    /// Returns the element, and makes it and its neighbours, each `new`, if necessary. Returns `None` beyond the
    /// largest index.
    pub(crate) fn get_or_make(&self, index: usize, new: impl Fn() -> T) -> Option<&T> {
        self.parts
            .get_or_make(index / TOGETHER, OnceBox::new)?
            .get_or_init(|| Box::new((0..TOGETHER).map(|_| new()).collect()))
            .get(index % TOGETHER)
    }

    /// Returns the first element in `from..below` that exists. Reads one pointer for [`TOGETHER`] elements, and none in
    /// a segment without elements.
    pub(crate) fn first_made(&self, from: usize, below: usize) -> Option<usize> {
        let mut part = from / TOGETHER;
        while from.max(part * TOGETHER) < below {
            match self.parts.past_unmade(part) {
                Some(next) => part = next,
                None if self.parts.get(part)?.get().is_some() => {
                    return Some(from.max(part * TOGETHER));
                }
                None => part += 1,
            }
        }
        None
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
            let element = array.get_or_make(index, || AtomicUsize::new(usize::MAX)).unwrap();
            assert_eq!(element.swap(index, Ordering::Relaxed), usize::MAX);
        }
        for index in 0..1000 {
            assert_eq!(array.get(index).unwrap().load(Ordering::Relaxed), index);
        }
    }
    #[test]
    fn elements_far_out_are_found_and_make_few_others() {
        let array = SparseArray::<AtomicUsize>::new();
        let made = AtomicUsize::new(0);
        let new = || AtomicUsize::new(made.fetch_add(1, Ordering::Relaxed));
        let far = (1 << 24) - 1;
        for index in [5, 300, far] {
            assert!(array.get(index).is_none());
            array.get_or_make(index, new).unwrap();
            assert!(array.get(index).is_some());
        }
        assert_eq!(made.into_inner(), 3 * TOGETHER);
        let first = |from, below| array.first_made(from, below);
        assert_eq!(first(0, far + 1), Some(0));
        assert_eq!(first(7, far + 1), Some(7));
        assert_eq!(first(16, far + 1), Some(288));
        assert_eq!(first(303, far + 1), Some(303));
        assert_eq!(first(304, far + 1), Some(far - 15));
        assert_eq!(first(304, far - 15), None);
        assert_eq!(first(17, 288), None);
        // An empty range beside an existing element.
        assert_eq!(first(7, 7), None);
        assert_eq!(first(303, 302), None);
    }
}

//! Lists of bounded length, stored in place.
//!
//! Every call that changes an entry makes a batch. It has room for 64 frames and eleven ranges, but mostly holds one or
//! two frames and one range. Filling the rest with empty values, and moving those, took longer than the flush. So we
//! leave unused room uninitialised, in [`InlineQueue`], which owns its values, and in [`CopyList`], which can be
//! copied.

use core::mem::MaybeUninit;

/// A list of up to `N` values, taken out in the order of their addition.
pub(crate) struct InlineQueue<T, const N: usize> {
    /// `start..end` are initialised.
    room: [MaybeUninit<T>; N],
    start: usize,
    end: usize,
}

impl<T, const N: usize> InlineQueue<T, N> {
    #[inline]
    pub(crate) fn new() -> Self {
        InlineQueue {
            // Not `[const { MaybeUninit::uninit() }; N]`: if N is 1, the compiler fills that with zeroes.
            room: core::array::from_fn(|_| MaybeUninit::uninit()),
            start: 0,
            end: 0,
        }
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.end >= N
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Adds a value at the end, and returns a reference to it.
    ///
    /// # Panics
    /// If there is no room.
    #[inline]
    pub(crate) fn push(&mut self, value: T) -> &mut T {
        let place = &mut self.room[self.end];
        self.end += 1;
        place.write(value)
    }

    /// Takes the value that was added first.
    #[inline]
    pub(crate) fn take_first(&mut self) -> Option<T> {
        if self.start == self.end {
            return None;
        }
        let index = self.start;
        self.start += 1;
        if self.start == self.end {
            // All the room is free again.
            (self.start, self.end) = (0, 0);
        }
        // SAFETY: `index` was in `start..end`, so it is initialised. It is not in there any more, so it is neither read
        // nor dropped again before `push` has written it again.
        Some(unsafe { self.room[index].assume_init_read() })
    }

    /// Drops all values. Afterwards there's room for `N` again.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.drop_all();
        (self.start, self.end) = (0, 0);
    }

    #[inline]
    fn drop_all(&mut self) {
        if core::mem::needs_drop::<T>() {
            while self.take_first().is_some() {}
        }
    }

    /// Returns the values.
    #[inline]
    pub(crate) fn as_slice(&self) -> &[T] {
        let held = &self.room[self.start..self.end];
        // SAFETY: all of `start..end` is initialised, and MaybeUninit<T> is laid out as T.
        unsafe { &*(core::ptr::from_ref(held) as *const [T]) }
    }

    /// Returns the value that was added last.
    #[inline]
    pub(crate) fn last(&self) -> Option<&T> {
        if self.is_empty() {
            return None;
        }
        let last = self.room.get(self.end.wrapping_sub(1))?;
        // SAFETY: all of `start..end` is initialised, and it is not empty.
        Some(unsafe { last.assume_init_ref() })
    }

    /// Returns the value that was added last, as a mutable reference.
    #[inline]
    pub(crate) fn last_mut(&mut self) -> Option<&mut T> {
        if self.is_empty() {
            return None;
        }
        let last = self.room.get_mut(self.end.wrapping_sub(1))?;
        // SAFETY: all of `start..end` is initialised, and it is not empty.
        Some(unsafe { last.assume_init_mut() })
    }

    /// Returns the values, to be changed.
    #[inline]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        let held = &mut self.room[self.start..self.end];
        // SAFETY: as for `as_slice`; the borrow of `self` is exclusive.
        unsafe { &mut *(core::ptr::from_mut(held) as *mut [T]) }
    }
}

impl<T, const N: usize> Drop for InlineQueue<T, N> {
    #[inline]
    fn drop(&mut self) {
        self.drop_all();
    }
}

/// A list of up to `N` values that can be copied.
#[derive(Clone, Copy)]
pub(crate) struct CopyList<T: Copy, const N: usize> {
    /// The first `count` are initialised; `count` is at most `N`.
    room: [MaybeUninit<T>; N],
    count: u8,
}

impl<T: Copy, const N: usize> CopyList<T, N> {
    #[inline]
    pub(crate) const fn new() -> Self {
        CopyList {
            // If `N` exceeds the range of `count`, this doesn't compile.
            room: [const {
                assert!(N <= u8::MAX as usize);
                MaybeUninit::uninit()
            }; N],
            count: 0,
        }
    }

    /// Drops all values, and prepares to take others.
    #[inline]
    pub(crate) fn refill(&mut self) -> Refill<'_, T, N> {
        Refill { few: self, count: 0 }
    }

    /// Adds a value at the end.
    ///
    /// # Panics
    /// If there is no room.
    #[inline]
    pub(crate) fn push(&mut self, value: T) {
        self.room[usize::from(self.count)].write(value);
        self.count += 1;
    }

    /// Returns the values.
    #[inline]
    pub(crate) fn as_slice(&self) -> &[T] {
        let count = usize::from(self.count);
        // SAFETY: only `push` and `Refill` increase `count`, after the values were written, and they panic if there is
        // no room. So `count` is at most `N`, the first `count` are initialised, and MaybeUninit<T> is laid out as T.
        unsafe { core::slice::from_raw_parts(self.room.as_ptr().cast(), count) }
    }

    /// Returns the values, to be changed.
    #[inline]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        let count = usize::from(self.count);
        // SAFETY: as for `as_slice`; the borrow of `self` is exclusive.
        unsafe { core::slice::from_raw_parts_mut(self.room.as_mut_ptr().cast(), count) }
    }
}

/// Fills a [`CopyList`], which has the values once this is dropped.
///
/// It counts in a register, while [`CopyList::push`] counts in memory.
pub(crate) struct Refill<'f, T: Copy, const N: usize> {
    few: &'f mut CopyList<T, N>,
    count: usize,
}

impl<T: Copy, const N: usize> Refill<'_, T, N> {
    /// Adds a value at the end.
    ///
    /// # Panics
    /// If there is no room.
    #[inline]
    pub(crate) fn push(&mut self, value: T) {
        self.few.room[self.count].write(value);
        self.count += 1;
    }
}

impl<T: Copy, const N: usize> Drop for Refill<'_, T, N> {
    #[inline]
    fn drop(&mut self) {
        self.few.count = self.count as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn there_is_room_again_for_all() {
        let token = Rc::new(());
        let mut stack = InlineQueue::<_, 2>::new();
        assert!(stack.is_empty() && !stack.is_full() && stack.last_mut().is_none());
        for _ in 0..3 {
            stack.push((1, Rc::clone(&token)));
            assert!(!stack.is_empty() && !stack.is_full());
            stack.push((2, Rc::clone(&token))).0 += 1;
            assert_eq!(stack.last_mut().map(|(number, _)| *number), Some(3));
            // Taken one by one.
            assert_eq!(stack.take_first().map(|(number, _)| number), Some(1));
            assert_eq!(stack.take_first().map(|(number, _)| number), Some(3));
            assert!(!stack.is_full(), "a list is empty and full");
            assert!(stack.is_empty() && stack.last_mut().is_none() && stack.take_first().is_none());
            assert_eq!(Rc::strong_count(&token), 1);
            // Dropped all at once.
            stack.push((1, Rc::clone(&token)));
            stack.push((2, Rc::clone(&token)));
            stack.as_mut_slice().swap(0, 1);
            assert_eq!(stack.as_slice()[0].0, 2);
            stack.clear();
            assert!(stack.is_empty());
            assert_eq!(Rc::strong_count(&token), 1);
        }
        stack.push((1, Rc::clone(&token)));
        drop(stack);
        assert_eq!(Rc::strong_count(&token), 1);
        // The same holds for values without a destructor.
        let mut plain = InlineQueue::<u8, 1>::new();
        for number in 0..3 {
            plain.push(number);
            assert_eq!(plain.as_slice(), [number]);
            plain.clear();
        }
    }
}

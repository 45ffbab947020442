//! Provides the heap of a search, whose allocations can be read back as a whole.
//!
//! The memory manager keeps its records on the heap. So the heap's content is part of the state that a search compares.
//! While code of the manager runs, [`LineAllocator`](super::LineAllocator) allocates from this heap: the first free
//! lines in the running CPU's part. Freed memory is cleared. So the heap's content hardly depends on the order of
//! earlier allocations.
//!
//! A heap belongs to the thread that made it.

use alloc::boxed::Box;
use memmap2::{MmapOptions, MmapRaw};
use std::alloc::Layout;
use std::cell::{Cell, RefCell};
use std::hash::Hasher;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;
use std::thread_local;

/// Bytes of a line, the unit of allocation.
const LINE: usize = 64;
/// Lines of a part.
const LINES: usize = 1 << 14;
/// The number of CPUs that have their own part of the heap.
pub const CPUS: usize = 4;
/// One part for allocations before the run, and one for each CPU.
const PARTS: usize = 1 + CPUS;

/// Bytes of all parts.
const BYTES: usize = PARTS * LINES * LINE;

/// The taken lines of a part, as bits.
type LineBitmap = [u64; LINES / 64];

/// The heap of a search. See [the module](self).
pub struct Heap {
    /// All lines. We map them instead of allocating them: an allocator clears reused memory completely, and a search
    /// uses only a little of its heap.
    memory: MmapRaw,
    taken: RefCell<[LineBitmap; PARTS]>,
    /// For each part, the end of the lines that were ever taken since the heap was cleared.
    end: [Cell<usize>; PARTS],
    /// For each part, a line before which none is free.
    free_from: [Cell<usize>; PARTS],
    /// Whether an allocation found no room since the heap was cleared.
    overflowed: Cell<bool>,
    /// Keeps the heap on its thread, which finds it by a pointer.
    stays: PhantomData<*mut u8>,
}

/// The content of a heap at some moment, for [`Heap::restore`].
pub struct Image {
    parts: [PartImage; PARTS],
}

struct PartImage {
    bytes: Box<[u8]>,
    taken: Box<[u64]>,
    free_from: usize,
}

thread_local! {
    /// The thread's heap.
    static HEAP: Cell<*const Heap> = const { Cell::new(ptr::null()) };
    /// The part from which to allocate; `PARTS` if none. It is separate because it changes at every step of a run.
    static PART: Cell<usize> = const { Cell::new(PARTS) };
}

/// Restores the part when dropped.
#[derive(Debug)]
struct Part(usize);

impl Part {
    #[inline]
    fn set(part: usize) -> Self {
        Part(PART.replace(part))
    }
}

impl Drop for Part {
    #[inline]
    fn drop(&mut self) {
        PART.set(self.0);
    }
}

impl Heap {
    /// Creates an empty heap.
    ///
    /// Returns `None` if the program's allocator isn't [`LineAllocator`](super::LineAllocator), or if the host has no
    /// memory.
    pub fn new() -> Option<Box<Self>> {
        let heap = Box::new(Heap {
            memory: MmapOptions::new().len(BYTES).map_anon().ok()?.into(),
            taken: RefCell::new([[0; LINES / 64]; PARTS]),
            end: Default::default(),
            free_from: Default::default(),
            overflowed: Cell::new(false),
            stays: PhantomData,
        });
        let inside =
            heap.on(Some(0), || heap.part_of(ptr::from_ref(&*Box::new(1u64)) as usize).is_some());
        inside.then_some(heap)
    }

    /// Returns the heap's addresses.
    pub fn range(&self) -> Range<usize> {
        let start = self.memory.as_ptr() as usize;
        start..start + BYTES
    }

    /// Runs `body`, which allocates from a part of the heap.
    ///
    /// Part 0 is for allocations before the run, and part `n + 1` is for CPU `n`. With `None`, `body` allocates from
    /// the system.
    pub fn on<R>(&self, part: Option<usize>, body: impl FnOnce() -> R) -> R {
        struct RestoreGuard(*const Heap);
        impl Drop for RestoreGuard {
            fn drop(&mut self) {
                HEAP.set(self.0);
            }
        }
        let _back = RestoreGuard(HEAP.replace(self));
        let _part = Part::set(part.unwrap_or(PARTS));
        body()
    }

    /// Frees all allocations. None of them may be used any more.
    pub fn clear(&self) {
        self.overflowed.set(false);
        for part in 0..PARTS {
            self.free_from[part].set(0);
            let end = self.end[part].take();
            // SAFETY: the lines are this heap's own.
            unsafe { self.line(part, 0).write_bytes(0, end * LINE) };
            self.taken.borrow_mut()[part][..end.div_ceil(64)].fill(0);
        }
    }

    /// Returns a copy of the present content.
    pub fn image(&self) -> Image {
        let parts = std::array::from_fn(|part| {
            let end = self.end[part].get();
            // SAFETY: the lines are this heap's own and were cleared or written.
            let bytes = unsafe { std::slice::from_raw_parts(self.line(part, 0), end * LINE) };
            PartImage {
                bytes: bytes.into(),
                taken: self.taken.borrow()[part][..end.div_ceil(64)].into(),
                free_from: self.free_from[part].get(),
            }
        });
        Image { parts }
    }

    /// Restores the content of an image, at the same addresses.
    ///
    /// Allocations that were made since may not be used any more.
    ///
    /// # Panics
    /// May panic if the image is of another heap.
    pub fn restore(&self, image: &Image) {
        self.overflowed.set(false);
        for (part, image) in image.parts.iter().enumerate() {
            let bytes = image.bytes.len();
            let end = self.end[part].replace(bytes / LINE).max(bytes / LINE);
            self.free_from[part].set(image.free_from);
            if end == 0 {
                // The part was never used. Writing even nothing to memory that the host hasn't provided yet can take
                // longer than all the rest.
                continue;
            }
            // SAFETY: the lines are this heap's own, and their content is not used any more.
            unsafe {
                let lines = self.line(part, 0);
                lines.copy_from_nonoverlapping(image.bytes.as_ptr(), bytes);
                lines.add(bytes).write_bytes(0, end * LINE - bytes);
            }
            let taken = &mut self.taken.borrow_mut()[part][..end.div_ceil(64)];
            let (kept, rest) = taken.split_at_mut(image.taken.len());
            kept.copy_from_slice(&image.taken);
            rest.fill(0);
        }
    }

    /// Returns whether the heap contains everything that was allocated since it was cleared.
    ///
    /// Then allocations need not be freed one by one: clearing the heap frees them.
    pub fn holds_everything(&self) -> bool {
        !self.overflowed.get()
    }

    /// Adds all live allocations to a digest.
    pub fn digest(&self, digest: &mut impl Hasher) {
        for (part, taken) in self.taken.borrow().iter().enumerate() {
            let blocks = self.end[part].get().div_ceil(64);
            let last = taken[..blocks].iter().rposition(|&bits| bits != 0);
            let blocks = last.map_or(0, |last| last + 1);
            digest.write_usize(blocks);
            for (block, bits) in taken[..blocks].iter().enumerate() {
                digest.write_u64(*bits);
                if *bits != 0 {
                    // SAFETY: the lines are this heap's own and were cleared or written.
                    let bytes = unsafe {
                        std::slice::from_raw_parts(self.line(part, block * 64), 64 * LINE)
                    };
                    digest.write(bytes);
                }
            }
        }
    }

    fn line(&self, part: usize, line: usize) -> *mut u8 {
        let lines = self.memory.as_mut_ptr();
        lines.wrapping_add((part * LINES + line) * LINE)
    }

    /// Returns the part and the line at an address.
    fn part_of(&self, address: usize) -> Option<(usize, usize)> {
        let line = address.wrapping_sub(self.memory.as_ptr() as usize) / LINE;
        (line < PARTS * LINES).then_some((line / LINES, line % LINES))
    }

    /// Takes the first consecutive free lines.
    fn take(&self, part: usize, lines: usize) -> Option<*mut u8> {
        let taken = &mut self.taken.borrow_mut()[part];
        let is_free = |line: usize, taken: &LineBitmap| taken[line / 64] >> (line % 64) & 1 == 0;
        let (mut first, mut line) = (self.free_from[part].get(), self.free_from[part].get());
        let mut first_free = None;
        while line < first + lines {
            if line == LINES {
                return None;
            }
            if line % 64 == 0 && taken[line / 64] == u64::MAX {
                line += 64;
                first = line;
                continue;
            }
            let free = is_free(line, taken);
            line += 1;
            if !free {
                first = line;
            } else {
                first_free.get_or_insert(line - 1);
            }
        }
        let next =
            if first_free == Some(first) { first + lines } else { first_free.unwrap_or(first) };
        self.free_from[part].set(next);
        for line in first..first + lines {
            taken[line / 64] |= 1 << (line % 64);
        }
        self.end[part].set(self.end[part].get().max(first + lines));
        Some(self.line(part, first))
    }

    fn give(&self, (part, first): (usize, usize), lines: usize) {
        // SAFETY: the lines are this heap's own, and their old content is not used any more.
        unsafe { self.line(part, first).write_bytes(0, lines * LINE) };
        let free_from = &self.free_from[part];
        free_from.set(free_from.get().min(first));
        let taken = &mut self.taken.borrow_mut()[part];
        for line in first..first + lines {
            taken[line / 64] &= !(1 << (line % 64));
        }
    }
}

/// Runs `body`, which allocates from the system even if a heap is in use.
#[inline]
pub fn off<R>(body: impl FnOnce() -> R) -> R {
    let _off = off_for_now();
    body()
}

/// Makes the thread allocate from the system until this value is dropped, like [`off`].
///
/// Drop several in the reverse order.
#[derive(Debug)]
pub struct SystemAllocGuard(#[expect(dead_code, reason = "sets the part back")] Part);

/// Makes the thread allocate from the system until the result is dropped.
#[inline]
#[must_use]
pub fn off_for_now() -> SystemAllocGuard {
    SystemAllocGuard(Part::set(PARTS))
}

/// Returns cleared memory from the thread's heap, if one is in use and has room.
pub fn allocate(layout: Layout) -> Option<*mut u8> {
    let part = PART.get();
    if part == PARTS {
        return None;
    }
    // SAFETY: `Heap::on`, which has named a part, borrows the heap for as long.
    let heap = unsafe { &*HEAP.get() };
    let lines = layout.size().div_ceil(LINE);
    let place = (layout.align() <= LINE).then(|| heap.take(part, lines));
    let place = place.flatten();
    heap.overflowed.set(heap.overflowed.get() || place.is_none());
    place
}

/// Frees memory of the thread's heap. Returns whether the memory was from there.
pub fn free(pointer: *mut u8, layout: Layout) -> bool {
    let heap = HEAP.get();
    if heap.is_null() {
        return false;
    }
    // SAFETY: `Heap::on` borrows the heap for as long as it is named here.
    let heap = unsafe { &*heap };
    let Some(place) = heap.part_of(pointer as usize) else {
        return false;
    };
    heap.give(place, layout.size().div_ceil(LINE));
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::hash::DefaultHasher;

    fn number(heap: &Heap) -> u64 {
        let mut digest = DefaultHasher::new();
        heap.digest(&mut digest);
        digest.finish()
    }

    #[test]
    fn what_is_alive_decides_and_what_is_gone_does_not() {
        let heap = Heap::new().expect("the tests' allocator comes here");
        heap.on(None, || {
            let empty = number(&heap);
            let kept = heap.on(Some(1), || Box::new(5u64));
            let one = number(&heap);
            assert_ne!(one, empty);
            let map: BTreeMap<_, _> = heap.on(Some(1), || (0..500u64).map(|n| (n, n)).collect());
            let two = number(&heap);
            assert_ne!(two, one);
            drop(map);
            assert_eq!(number(&heap), one, "freed memory is cleared");
            let again: BTreeMap<_, _> = heap.on(Some(1), || (0..500u64).map(|n| (n, n)).collect());
            assert_eq!(number(&heap), two, "and taken again in the same order");
            drop((again, kept));
            assert_eq!(number(&heap), empty);
        });
    }

    #[test]
    fn what_lay_there_lies_there_again_and_nothing_else() {
        let heap = Heap::new().expect("the tests' allocator comes here");
        heap.on(None, || {
            let kept = heap.on(Some(0), || Box::leak(Box::new(Cell::new(5u64))));
            let gone = heap.on(Some(0), || Box::leak(Box::new([7u64; 100])).as_ptr().addr());
            let (image, was) = (heap.image(), number(&heap));
            let place = |part: usize| heap.on(Some(part), || Box::leak(Box::new(1u64)) as *mut u64);
            let next = [place(0), place(1)];
            kept.set(6);
            // SAFETY: it was leaked above, as an array of this type.
            drop(unsafe { Box::from_raw(gone as *mut [u64; 100]) });
            place(2);
            heap.restore(&image);
            // SAFETY: the cell still exists. Read it as something that changed without the compiler's knowledge.
            let held = unsafe { kept.as_ptr().read_volatile() };
            assert_eq!((held, number(&heap)), (5, was));
            assert_eq!([place(0), place(1)], next, "the same lines are free");
            // SAFETY: the lines were cleared or written, and no other code writes there.
            assert_eq!(unsafe { *heap.line(2, 0) }, 0, "what came later has gone");
        });
    }

    #[test]
    fn parts_are_apart_and_what_finds_no_room_comes_from_the_system() {
        let heap = Heap::new().expect("the tests' allocator comes here");
        heap.on(None, || {
            let place = |part: usize, bytes: usize| {
                let bytes = heap.on(Some(part), || vec![1u8; bytes]);
                (heap.part_of(bytes.as_ptr() as usize), bytes)
            };
            let (first, _first) = place(0, 100);
            let (second, _second) = place(2, 1);
            let (third, _third) = place(2, 1);
            assert_eq!(first, Some((0, 0)));
            assert_eq!(second, Some((2, 0)));
            assert_eq!(third, Some((2, 1)));
            assert_eq!(place(1, 2 * LINES * LINE).0, None);
            heap.clear();
            assert_eq!(place(0, 1).0, Some((0, 0)));
        });
    }
}

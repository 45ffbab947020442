//! The page tables that walkers read.
//!
//! The machine needs only walks ([`PageTables`]), so programs of a few pages and a memory manager run on the same
//! threads. [`FlatTable`] is for the former: one level of entry words for each space, and one table for the kernel's
//! half. They are written under the embedder's locks and walked by all CPUs. The embedder defines the other bits of a
//! word.

use quell::{Frame, PageSize};
use std::sync::atomic::{AtomicU64, Ordering};

/// The tables of the machine's walkers.
pub trait PageTables: Send + Sync {
    /// How large the pages are that entries map.
    const SIZES: &'static [PageSize];

    /// Returns whether a page is in the kernel's half, which every CPU walks under any root.
    fn is_kernels(page: u64) -> bool;

    /// Walks from this root for a load or a store. Returns the entry; `None` on a fault.
    fn walk(&self, root: Option<Frame>, page: u64, store: bool) -> Option<WalkResult>;

    /// Returns whether a store may go through this entry; if not, it is walked for again.
    fn takes_stores(&self, entry: u64) -> bool;

    /// Returns the page of a speculative walk on a CPU whose program used `last`. `roll` draws a number below its
    /// argument.
    fn stray(&self, last: u64, roll: fn(u16) -> u16) -> u64;
}

/// The result of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WalkResult {
    /// The entry word.
    pub entry: u64,
    /// The size of the page that it maps.
    pub size: PageSize,
    /// Whether it is one for all tags.
    pub global: bool,
    /// When it was read, for an oracle that counts moments.
    pub since: u64,
}

/// Pages of each address space of [`FlatTable`].
pub const PAGES: usize = 24;

/// A page table: one level of entry words, written under the embedder's lock, walked by all.
pub type Table = [AtomicU64; PAGES];

/// Pages of the kernel's half.
pub const KERNEL_PAGES: usize = 8;

/// The number of the first of them. A page below it is that of a space; its entry has its number modulo [`PAGES`].
pub const FIRST_KERNEL_PAGE: u32 = 1 << 30;

/// The table of the kernel's half.
pub type KernelTable = [AtomicU64; KERNEL_PAGES];

/// The bit of an entry word without which it is not cached.
pub const PRESENT: u64 = 1;
/// The bit of an entry word of the kernel's half with which it is one for all tags.
pub const GLOBAL: u64 = 1 << 2;

/// Tables of one level.
pub struct FlatTable {
    /// Those of the spaces: root `Frame(n)` is number `n`.
    pub(crate) spaces: Box<[Table]>,
    /// That of the kernel's half.
    pub(crate) kernel: KernelTable,
    /// Whether TLBs fill from the kernel's half as they like.
    pub(crate) speculates_in_kernel: bool,
}

impl FlatTable {
    /// Creates empty tables for this many spaces and the kernel's half.
    pub(crate) fn new(spaces: usize) -> Self {
        FlatTable {
            spaces: (0..spaces)
                .map(|_| std::array::from_fn(|_| AtomicU64::new(0)))
                .collect(),
            kernel: std::array::from_fn(|_| AtomicU64::new(0)),
            speculates_in_kernel: false,
        }
    }
}

impl PageTables for FlatTable {
    const SIZES: &'static [PageSize] = &[PageSize::Base];

    #[inline]
    fn is_kernels(page: u64) -> bool {
        page >= u64::from(FIRST_KERNEL_PAGE)
    }

    #[inline]
    fn walk(&self, root: Option<Frame>, page: u64, _store: bool) -> Option<WalkResult> {
        let in_kernel = Self::is_kernels(page);
        let word = if in_kernel {
            &self.kernel[(page - u64::from(FIRST_KERNEL_PAGE)) as usize]
        } else {
            &self.spaces[root?.0 as usize][page as usize % PAGES]
        };
        // A walker follows the pointer that it read; the acquire represents that dependency.
        let entry = word.load(Ordering::Acquire);
        (entry & PRESENT != 0).then_some(WalkResult {
            entry,
            size: PageSize::Base,
            global: in_kernel && entry & GLOBAL != 0,
            since: 0,
        })
    }

    /// The embedder looks at its own bits.
    #[inline]
    fn takes_stores(&self, _entry: u64) -> bool {
        true
    }

    fn stray(&self, _last: u64, roll: fn(u16) -> u16) -> u64 {
        if self.speculates_in_kernel && roll(2) == 0 {
            u64::from(FIRST_KERNEL_PAGE) + u64::from(roll(KERNEL_PAGES as u16))
        } else {
            roll(PAGES as u16).into()
        }
    }
}

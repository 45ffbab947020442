//! Defines the page tables that walkers read.
//!
//! The machine only walks the tables ([`PageTables`]). So small programs that write entries themselves and a memory
//! manager can run on the same threads. [`FlatTable`] is for the small programs: one level of entry words for each
//! space, and one table for the kernel's half. The embedder (the code that uses the engine) writes them under its
//! locks, and all CPUs walk them. The embedder also defines the other bits of a word.

use crate::machine::Threads;
use quell::{Features, Frame, PageSize};
use std::sync::atomic::{AtomicU64, Ordering};

/// The tables that the machine's walkers read.
pub trait PageTables: Send + Sync {
    /// The sizes of the pages that entries map.
    const SIZES: &'static [PageSize];

    /// Returns whether a page is in the kernel's half, which every CPU walks under any root.
    fn is_kernels(page: u64) -> bool;

    /// Walks from this root for a load or a store. Returns the entry, or `None` on a fault.
    fn walk(&self, root: Option<Frame>, page: u64, store: bool) -> Option<WalkResult>;

    /// Returns whether a store may use this entry. If not, the CPU walks again.
    fn takes_stores(&self, entry: u64) -> bool;

    /// Returns the page of a speculative walk on a CPU whose program used `last`.
    ///
    /// `roll` returns a random number below its argument.
    fn stray(&self, last: u64, roll: fn(u16) -> u16) -> u64;
}

/// The result of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WalkResult {
    pub entry: u64,
    /// The size of the page that the entry maps.
    pub size: PageSize,
    /// Whether the entry is valid for all tags.
    pub global: bool,
    /// The moment of the walk, for an oracle that numbers moments.
    pub since: u64,
}

/// The number of pages in each address space of [`FlatTable`].
pub const PAGES: usize = 24;

/// A page table: one level of entry words.
///
/// The embedder writes them under its lock, and all CPUs walk them.
pub type Table = [AtomicU64; PAGES];

pub const KERNEL_PAGES: usize = 8;

/// The number of the first page in the kernel's half.
///
/// Pages below it belong to spaces, and page `n` has entry `n` modulo [`PAGES`].
pub const FIRST_KERNEL_PAGE: u32 = 1 << 30;

pub type KernelTable = [AtomicU64; KERNEL_PAGES];

/// The bit of an entry word that marks it as present. A word without it isn't cached.
pub const PRESENT: u64 = 1;
/// The bit of the kernel's entry words that makes them valid for all tags.
pub const GLOBAL: u64 = 1 << 2;

/// Page tables of one level.
pub struct FlatTable {
    /// The tables of the spaces. Root `Frame(n)` is number `n`.
    spaces: Box<[Table]>,
    kernel: KernelTable,
    /// Whether TLBs also fill speculatively from the kernel's half. It has an effect only with `STRESS`.
    pub(crate) speculates_in_kernel: bool,
}

impl FlatTable {
    fn new(spaces: usize) -> Self {
        FlatTable {
            spaces: (0..spaces).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect(),
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

    /// Always returns `true`, because the embedder checks its own bits.
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

/// The machine with tables of one level, for programs that write entries themselves.
impl<const STRESS: bool> Threads<STRESS> {
    /// Creates a machine of `cpus` CPUs with `tables` page tables. Root `Frame(n)` is table `n`.
    ///
    /// # Panics
    /// If there is no CPU.
    pub fn new(cpus: usize, tables: usize, features: Features) -> Self {
        Threads::with_tables(cpus, FlatTable::new(tables), features)
    }

    /// Returns the table of the kernel's half.
    ///
    /// The half begins at page [`FIRST_KERNEL_PAGE`].
    pub fn kernel_table(&self) -> &KernelTable {
        &self.tables.kernel
    }

    pub fn table(&self, index: usize) -> &Table {
        &self.tables.spaces[index]
    }
}

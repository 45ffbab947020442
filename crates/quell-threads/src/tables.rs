//! The page tables: how large they are, and what of an entry word the hardware looks at.
//!
//! Tables have one level. They are written under the embedder's locks and walked by all CPUs; what else is in a word is the
//! embedder's.

use std::sync::atomic::AtomicU64;

/// Pages of each address space.
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

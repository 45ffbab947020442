//! Checks and converts small values that pass between C and Rust.
//!
//! C may pass any number where the header names an enumeration. So the functions take numbers, and this module refuses
//! a number that isn't in the enumeration.

use crate::status::{quell_status, refuse};
use quell::{KernelEntries, Page, PageRange, PageSize, Purpose, Scope};

macro_rules! numbers_of_c {
    ($($name:ident)*) => {$(
        /// A number that C passes as the enumeration of this name. It may be any number.
        pub type $name = u32;
    )*};
}

// The header has `enum quell_scope` in the place of `enum_quell_scope`, so that C compilers detect arguments that are
// exchanged.
numbers_of_c! {
    enum_quell_architecture enum_quell_break enum_quell_counter enum_quell_kernel_entries enum_quell_purpose
    enum_quell_rights enum_quell_scope enum_quell_status enum_quell_stride enum_quell_tagging
}

/// The page size of the entries that map a range.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum quell_stride {
    /// 4 KB: entries of the lowest level.
    Base,
    /// 2 MB: entries one level up, 512 pages each.
    Large,
    /// 1 GB: entries two levels up, 262144 pages each.
    Huge,
}

/// The entries that an invalidation reaches: leaf entries alone, or walker caches too.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum quell_scope {
    /// Leaf entries alone: the walker caches may keep upper levels.
    Leaf,
    /// Also walker caches, because page-table pages were unlinked. CPUs that have the space loaded lazily leave it.
    Tables,
}

/// Whether a kernel space's entries are global.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum quell_kernel_entries {
    /// Global entries, one for all tags.
    Global,
    /// Some or all entries aren't global.
    ///
    /// TLBs keep an entry that isn't global under each tag that was loaded when the entry was used. So a flush on a CPU
    /// with per-CPU tags drops the entries of all other spaces too.
    Tagged,
}

/// The purpose of a batch.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum quell_purpose {
    /// The changes of one call or fault of the program: unmap, protect or fork, for example.
    Call,
    /// Pages taken away by reclaim.
    Reclaim,
    /// Pages about to move to other frames.
    Migration,
    /// Clean pages that were mapped read-only everywhere, taken away by reclaim or demotion.
    ///
    /// The batch may end with quell_batch_finish_deferred, so it starts no flush before that.
    Lazy,
}

/// A run of virtual pages that are or were mapped with entries of one size.
///
/// Pages have 4096 bytes, whatever the stride.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct quell_range {
    /// The first page: its address divided by 4096. It must be a multiple of the stride.
    pub start: u64,
    /// The number of pages of 4096 bytes: at least one stride, and a multiple of the stride.
    pub pages: u64,
    /// The size of the entries.
    ///
    /// There is one invalidation per stride, and it drops the entry that translates the first page of the stride. So
    /// don't report base pages in larger strides.
    pub stride: enum_quell_stride,
}

/// The number of virtual pages; every page's number is lower.
const PAGES: u64 = 1 << 52;
/// The number of pages in each half of the largest address space, 57 bits. Numbers between the halves name no page. If
/// C passes an address by mistake instead of a page's number, it's mostly between the halves, so we refuse it.
pub(crate) const HALF: u64 = 1 << 44;
/// The most pages by which the header's inline function extends a range. We check longer ranges in the library.
pub(crate) const RUN_PAGES: u64 = 65536;

impl quell_range {
    /// # Errors
    /// If the range doesn't consist of whole strides.
    #[inline]
    pub(crate) fn checked(self) -> Result<PageRange, quell_status> {
        let stride = match self.stride {
            0 => PageSize::Base,
            1 => PageSize::Large,
            stride => {
                refuse(stride != quell_stride::Huge as u32, quell_status::Value)?;
                PageSize::Huge
            }
        };
        // Page sizes are powers of two, so one test covers both numbers.
        let whole = (self.start | self.pages) & (stride.pages() - 1) == 0;
        let end = if self.start < HALF { HALF } else { PAGES };
        let within = self.start < HALF || (PAGES - HALF..PAGES).contains(&self.start);
        let within = within && self.pages <= end - self.start;
        refuse(self.pages == 0 || !whole || !within, quell_status::Range)?;
        Ok(PageRange { start: Page(self.start), pages: self.pages, stride })
    }
}

impl From<PageRange> for quell_range {
    #[inline]
    fn from(range: PageRange) -> Self {
        quell_range {
            start: range.start.0,
            pages: range.pages,
            stride: match range.stride {
                PageSize::Base => quell_stride::Base as u32,
                PageSize::Large => quell_stride::Large as u32,
                PageSize::Huge => quell_stride::Huge as u32,
            },
        }
    }
}

impl From<Scope> for quell_scope {
    #[inline]
    fn from(scope: Scope) -> Self {
        match scope {
            Scope::Leaf => quell_scope::Leaf,
            Scope::Tables => quell_scope::Tables,
        }
    }
}

/// # Errors
/// If there is no such scope.
#[inline]
pub(crate) fn scope(number: enum_quell_scope) -> Result<Scope, quell_status> {
    match number {
        0 => Ok(Scope::Leaf),
        number => {
            refuse(number != quell_scope::Tables as u32, quell_status::Value)?;
            Ok(Scope::Tables)
        }
    }
}

/// # Errors
/// If there are no such entries.
pub(crate) fn kernel_entries(
    number: enum_quell_kernel_entries,
) -> Result<KernelEntries, quell_status> {
    match number {
        0 => Ok(KernelEntries::Global),
        1 => Ok(KernelEntries::Tagged),
        _ => Err(quell_status::Value),
    }
}

/// # Errors
/// If there is no such purpose.
#[inline]
pub(crate) fn purpose(number: enum_quell_purpose) -> Result<Purpose, quell_status> {
    match number {
        0 => Ok(Purpose::Call),
        1 => Ok(Purpose::Reclaim),
        2 => Ok(Purpose::Migration),
        3 => Ok(Purpose::Lazy),
        _ => Err(quell_status::Value),
    }
}

// The functions above use the header's numbers.
const _: () = assert!(
    quell_stride::Huge as u32 == 2
        && quell_scope::Tables as u32 == 1
        && quell_kernel_entries::Tagged as u32 == 1
        && quell_purpose::Call as u32 == 0
        && quell_purpose::Reclaim as u32 == 1
        && quell_purpose::Migration as u32 == 2
        && quell_purpose::Lazy as u32 == 3
);

//! Page-table entries, independent of their encoding on an architecture.
//!
//! There's one type for an entry and one for a level. Memory managers make them. `quell-arch` and the simulators
//! encode and decode them. [`flush_needed`](crate::flush_needed) compares two of them. Each attribute that
//! hardware caches has a field here, so we miss no change of it. Bits that hardware ignores have no field, and encoding
//! writes them as zero.
//!
//! We assume 4 levels of tables with 512 entries of 64 bits each (48-bit virtual addresses, 4 KB granule). x86-64,
//! AArch64 and RISC-V Sv48 agree on that. On all three, an entry whose bit 0 is clear isn't present, and its other 63
//! bits belong to software. [`Entry`] never holds these 63 bits: a manager checks bit 0 before it decodes.

use crate::addr::{Frame, Page, PageSize};

/// The number of words in a page-table page, one per entry.
pub const TABLE_WORDS: usize = 512;

/// Names a level of the page table, counted from the leaves.
///
/// We assume 4 levels of tables with 512 entries each, as on x86-64, on AArch64 with its 4 KB granule, and on RISC-V
/// Sv48.
///
/// # Examples
///
/// ```
/// use quell::{Level, PageSize};
/// assert_eq!(Level::of(PageSize::Large), Level::LARGE);
/// assert_eq!(Level::LARGE.pages(), 512);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Level(pub u8);

impl Level {
    /// Tables whose entries map 4 KB pages.
    pub const LEAF: Level = Level(0);
    /// Tables whose entries map 2 MB pages or point to leaf tables.
    pub const LARGE: Level = Level(1);
    /// Tables whose entries map 1 GB pages or point to tables of 2 MB entries.
    pub const HUGE: Level = Level(2);
    /// The table that a root register points to; its entries map no pages.
    pub const ROOT: Level = Level(3);

    /// Returns the level at which an entry maps a page of this size.
    #[inline]
    pub const fn of(size: PageSize) -> Level {
        match size {
            PageSize::Base => Level::LEAF,
            PageSize::Large => Level::LARGE,
            PageSize::Huge => Level::HUGE,
        }
    }

    /// Returns the size of a page mapped at this level, or `None` for the root.
    #[inline]
    pub const fn size(self) -> Option<PageSize> {
        match self.0 {
            0 => Some(PageSize::Base),
            1 => Some(PageSize::Large),
            2 => Some(PageSize::Huge),
            _ => None,
        }
    }

    /// Returns the number of base pages (4 KB) that one entry at this level spans.
    ///
    /// Returns `u64::MAX` from level 8 on.
    #[inline]
    pub const fn pages(self) -> u64 {
        match 1u64.checked_shl(9 * self.0 as u32) {
            Some(pages) => pages,
            None => u64::MAX,
        }
    }

    /// Returns the index of the entry for `page` in a table of this level.
    #[inline]
    pub const fn index(self, page: Page) -> usize {
        match page.0.checked_shr(9 * self.0 as u32) {
            Some(above) => above as usize & (TABLE_WORDS - 1),
            None => 0,
        }
    }

    /// Returns the lowest page that this level's table of `page` translates.
    #[inline]
    pub const fn base(self, page: Page) -> Page {
        match 1u64.checked_shl(9 * (self.0 as u32 + 1)) {
            Some(span) => Page(page.0 & !(span - 1)),
            None => Page(0),
        }
    }
}

/// Selects how a page's memory is cached. The meaning of the number depends on the architecture.
///
/// On x86-64 the number is the index into the PAT. On AArch64, bits 0 to 2 are the index into MAIR, bits 3 and 4 the
/// shareability (XORed with "inner shareable"), and bit 5 is the non-secure bit. On RISC-V it's the PBMT field. On
/// x86-64, an entry that points to a table has a memory type, too, for the walker's own accesses.
///
/// # Examples
///
/// ```
/// use quell::{Entry, Frame, MemoryType};
/// // The local APIC on x86-64: entry 3 of the PAT is uncached after reset.
/// let registers = Entry {
///     present: true,
///     writable: true,
///     frame: Frame::containing(0xfee0_0000),
///     memory: MemoryType(3),
///     ..Entry::ABSENT
/// };
/// assert_ne!(registers.memory, MemoryType::NORMAL);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct MemoryType(pub u8);

impl MemoryType {
    /// Ordinary memory, coherent and cached for writing: 0 on every architecture.
    pub const NORMAL: MemoryType = MemoryType(0);
}

/// Describes a page-table entry, independent of its encoding.
///
/// Each attribute that hardware caches has a field, so [`flush_needed`](crate::flush_needed) sees every change that
/// matters. Bits that hardware ignores have none. `quell-arch` encodes and decodes entries. The default is an entry
/// that isn't present.
///
/// Not all hardware sets the dirty bit. Where it doesn't, an entry that is `writable` and not `dirty` is encoded so
/// that the first store faults. The fault handler then sets `dirty`.
///
/// # Examples
///
/// ```
/// use quell::{Entry, Frame};
/// let entry = Entry { present: true, user: true, writable: true, frame: Frame(42), ..Entry::ABSENT };
/// let write_protected = Entry { writable: false, ..entry };
/// assert_ne!(entry, write_protected);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Entry {
    /// Walkers may use the entry. If this is `false`, all other fields are meaningless.
    pub present: bool,
    /// The entry points to a table of the next level instead of mapping a page.
    pub table: bool,
    /// The frame of the table, or the first frame of the page. A page's frame is aligned to the page's size.
    pub frame: Frame,
    /// Stores are allowed. In an entry for a table: stores are allowed where the entries below allow them, too.
    ///
    /// The same holds for `user` and `executable`. On RISC-V, entries for tables have no such rights, and decode as if
    /// they had all of them.
    pub writable: bool,
    /// User mode may use the page.
    pub user: bool,
    /// Instructions may be fetched: by user mode if `user` is set, otherwise by the kernel.
    pub executable: bool,
    /// The hardware, or the kernel in its place, has recorded an access.
    pub accessed: bool,
    /// The hardware, or the kernel in its place, has recorded a store. Unused in entries for tables.
    pub dirty: bool,
    /// The translation belongs to every address space, and survives flushes of one tag. On RISC-V an entry for a table
    /// may have this bit, too. Then all translations below it are global.
    pub global: bool,
    /// The entry is one of sixteen that a TLB may keep as one translation.
    ///
    /// The sixteen entries are aligned and map adjacent frames with the same attributes (AArch64's contiguous bit,
    /// RISC-V's Svnapot with 64 KB). All sixteen change together.
    pub contiguous: bool,
    /// How the memory is cached.
    pub memory: MemoryType,
    /// The protection key or overlay index, or 0 if the architecture has none.
    pub key: u8,
    /// The memory is encrypted with the machine's key (AMD's C-bit).
    pub encrypted: bool,
    /// Attributes that only one architecture has, or 0: see the architecture's module in `quell-arch`.
    ///
    /// [`flush_needed`](crate::flush_needed) treats each change of them as a right that is taken away.
    pub special: u8,
}

impl Entry {
    /// An entry that is not present.
    pub const ABSENT: Entry = Entry {
        present: false,
        table: false,
        frame: Frame(0),
        writable: false,
        user: false,
        executable: false,
        accessed: false,
        dirty: false,
        global: false,
        contiguous: false,
        memory: MemoryType::NORMAL,
        key: 0,
        encrypted: false,
        special: 0,
    };

    /// Makes an entry for the table in `frame`. It leaves all rights to the entries below.
    #[inline]
    pub const fn table(frame: Frame) -> Entry {
        Entry {
            present: true,
            table: true,
            frame,
            writable: true,
            user: true,
            executable: true,
            accessed: true,
            ..Entry::ABSENT
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_walk_the_address_from_the_top() {
        let page = Page::containing((5 << 39) | (6 << 30) | (7 << 21) | (8 << 12) | 0x123);
        assert_eq!([3, 2, 1, 0].map(|level| Level(level).index(page)), [5, 6, 7, 8]);
        // The upper half starts in the middle of the root.
        let upper = Page::containing(0xffff_8000_0000_0000);
        assert_eq!(Level::ROOT.index(upper), 256);
        assert_eq!(Level::LEAF.base(page), Page(page.0 - 8));
    }

    #[test]
    fn sizes_and_levels_are_inverse() {
        for size in [PageSize::Base, PageSize::Large, PageSize::Huge] {
            assert_eq!(Level::of(size).size(), Some(size));
            assert_eq!(Level::of(size).pages(), size.pages());
        }
        assert_eq!(Level::ROOT.size(), None);
    }

    #[test]
    fn the_default_is_absent() {
        assert_eq!(Entry::default(), Entry::ABSENT);
    }
}

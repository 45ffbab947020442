//! What a page-table entry says, apart from how an architecture writes it down.
//!
//! Both formats have four levels of 512 entries here (48-bit addresses, 4 KB granule): level 3 is
//! the root, level 0 holds base pages, level 1 may hold 2 MB leaves and level 2 1 GB leaves.
//!
//! An entry whose present bit is clear belongs to software. Decoding hands its raw bits back
//! unchanged as [`Entry::Absent`], and every value with bit 0 clear is such an entry, so a manager
//! can keep swap slots or migration marks in it.

use quell::{Frame, PageSize};

/// What a leaf entry allows and records.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Access {
    /// Stores are allowed.
    pub writable: bool,
    /// User mode may use the translation.
    pub user: bool,
    /// Instructions may be fetched (by user mode if `user`, else by the kernel).
    pub executable: bool,
    /// The translation belongs to all address spaces and survives flushes of one tag.
    pub global: bool,
    /// The hardware (or a fault handler in its place) has seen an access.
    pub accessed: bool,
    /// The hardware (or a fault handler in its place) has seen a store.
    pub dirty: bool,
}

/// A leaf: the translation of one page of some size.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Leaf {
    /// The first frame, aligned to the size.
    pub frame: Frame,
    /// How much the entry maps; decides the level it lives at.
    pub size: PageSize,
    /// What it allows and records.
    pub access: Access,
}

/// A decoded entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Entry {
    /// Not present: the raw bits, which belong to software.
    Absent(u64),
    /// Points to a table of the next level.
    Table(Frame),
    /// Maps a page.
    Leaf(Leaf),
}

/// The index into the table of `level` (0 to 3) for a virtual address.
#[inline]
pub const fn index(address: u64, level: u8) -> usize {
    ((address >> (12 + 9 * level as u64)) & 511) as usize
}

/// The level at which a page of `size` is a leaf.
#[inline]
pub const fn level_of(size: PageSize) -> u8 {
    match size {
        PageSize::Base => 0,
        PageSize::Large => 1,
        PageSize::Huge => 2,
    }
}

/// The size of a leaf at `level`; `None` where the formats have no leaves.
#[inline]
pub const fn size_at(level: u8) -> Option<PageSize> {
    match level {
        0 => Some(PageSize::Base),
        1 => Some(PageSize::Large),
        2 => Some(PageSize::Huge),
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::vec::Vec;

    /// Every combination of the six attributes.
    pub(crate) fn all_accesses() -> Vec<Access> {
        (0..64u32)
            .map(|bits| Access {
                writable: bits & 1 != 0,
                user: bits & 2 != 0,
                executable: bits & 4 != 0,
                global: bits & 8 != 0,
                accessed: bits & 16 != 0,
                dirty: bits & 32 != 0,
            })
            .collect()
    }

    #[test]
    fn indices_walk_the_address_from_the_top() {
        let address = (5 << 39) | (6 << 30) | (7 << 21) | (8 << 12) | 0x123;
        assert_eq!(
            [3, 2, 1, 0].map(|level| index(address, level)),
            [5, 6, 7, 8]
        );
        // The upper half starts in the middle of the root.
        assert_eq!(index(0xffff_8000_0000_0000, 3), 256);
    }

    #[test]
    fn sizes_and_levels_are_inverse() {
        for size in [PageSize::Base, PageSize::Large, PageSize::Huge] {
            assert_eq!(size_at(level_of(size)), Some(size));
        }
        assert_eq!(size_at(3), None);
    }
}

//! The x86-64 format of page-table entries (Intel SDM volume 3, chapter "Paging"; AMD64 APM
//! volume 2, chapter 5).

use crate::entry::{Access, Entry, Leaf, size_at};
use quell::{Frame, PageSize};

/// The entry may be used by the walker. Clear: the other 63 bits belong to software.
pub const PRESENT: u64 = 1 << 0;
/// Stores are allowed.
pub const WRITABLE: u64 = 1 << 1;
/// User mode is allowed.
pub const USER: u64 = 1 << 2;
/// Write-through.
pub const WRITE_THROUGH: u64 = 1 << 3;
/// Uncached.
pub const UNCACHED: u64 = 1 << 4;
/// Set by the walker when it uses the entry.
pub const ACCESSED: u64 = 1 << 5;
/// Set by the walker when a store uses the leaf.
pub const DIRTY: u64 = 1 << 6;
/// At levels 1 and 2: the entry is a leaf. (At level 0 the bit selects a memory type.)
pub const LARGE: u64 = 1 << 7;
/// The translation survives loads of CR3.
pub const GLOBAL: u64 = 1 << 8;
/// No instruction fetch.
pub const NO_EXECUTE: u64 = 1 << 63;
/// Bits of a base-page entry that hold the frame.
pub const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// The entry for a leaf. The frame must be aligned to its size.
#[inline]
pub const fn leaf(leaf: Leaf) -> u64 {
    let access = leaf.access;
    debug_assert!(leaf.frame.0.is_multiple_of(leaf.size.pages()));
    let mut raw = leaf.frame.address() & ADDRESS | PRESENT;
    if access.writable {
        raw |= WRITABLE;
    }
    if access.user {
        raw |= USER;
    }
    if !access.executable {
        raw |= NO_EXECUTE;
    }
    if access.global {
        raw |= GLOBAL;
    }
    if access.accessed {
        raw |= ACCESSED;
    }
    if access.dirty {
        raw |= DIRTY;
    }
    if !matches!(leaf.size, PageSize::Base) {
        raw |= LARGE;
    }
    raw
}

/// The entry that points to the next level's table; permissions are left to the leaves.
#[inline]
pub const fn table(table: Frame) -> u64 {
    table.address() & ADDRESS | PRESENT | WRITABLE | USER | ACCESSED
}

/// What the entry at `level` (0 lowest, 3 root) says.
#[inline]
pub const fn decode(raw: u64, level: u8) -> Entry {
    if raw & PRESENT == 0 {
        return Entry::Absent(raw);
    }
    let is_leaf = level == 0 || (level < 3 && raw & LARGE != 0);
    let Some(size) = size_at(level) else {
        return Entry::Table(Frame::containing(raw & ADDRESS));
    };
    if !is_leaf {
        return Entry::Table(Frame::containing(raw & ADDRESS));
    }
    // Bit 12 of a large leaf selects a memory type: it is no part of the address.
    let frame = Frame::containing(raw & ADDRESS & !(size.bytes() - 1));
    Entry::Leaf(Leaf {
        frame,
        size,
        access: Access {
            writable: raw & WRITABLE != 0,
            user: raw & USER != 0,
            executable: raw & NO_EXECUTE == 0,
            global: raw & GLOBAL != 0,
            accessed: raw & ACCESSED != 0,
            dirty: raw & DIRTY != 0,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{level_of, tests::all_accesses};

    #[test]
    fn leaves_survive_encoding_at_every_size() {
        for access in all_accesses() {
            for size in [PageSize::Base, PageSize::Large, PageSize::Huge] {
                let original = Leaf {
                    frame: Frame(7 << 18),
                    size,
                    access,
                };
                assert_eq!(
                    decode(leaf(original), level_of(size)),
                    Entry::Leaf(original)
                );
            }
        }
    }

    #[test]
    fn software_entries_come_back_bit_for_bit() {
        for raw in [0, 2, !1u64, 0xdead_beef_0000_0ff0, NO_EXECUTE | LARGE] {
            for level in 0..4 {
                assert_eq!(decode(raw, level), Entry::Absent(raw));
            }
        }
    }

    #[test]
    fn known_entries_match_the_manual() {
        let access = Access {
            writable: true,
            user: true,
            dirty: true,
            accessed: true,
            ..Access::default()
        };
        let raw = leaf(Leaf {
            frame: Frame(0x1234),
            size: PageSize::Base,
            access,
        });
        assert_eq!(raw, 0x8000_0000_0123_4067);
        assert_eq!(table(Frame(0x99)), 0x99027);
        assert_eq!(decode(table(Frame(0x99)), 3), Entry::Table(Frame(0x99)));
        assert_eq!(decode(table(Frame(0x99)), 1), Entry::Table(Frame(0x99)));
    }
}

//! The AArch64 stage 1 format of page-table entries, 4 KB granule (Arm ARM, "VMSAv8-64 translation
//! table format descriptors").
//!
//! *Dirty state.* With hardware management of dirty state (FEAT_HAFDBS) a writable, clean page is
//! read-only with the dirty-bit-modifier set, and the walker clears the read-only bit at the first
//! store; without it a fault handler does the same ([`mark_dirty`]). A page that was
//! write-protected after it had been written keeps that fact in a software bit. So `dirty` means
//! "writable in effect, or the software bit".
//!
//! *Global* is the absence of the not-global bit. *Memory types*: index 0 of MAIR must be normal
//! write-back memory and index 1 device memory.

use crate::entry::{Access, Entry, Leaf, size_at};
use quell::{Frame, PageSize};

/// The walker may use the entry. Clear: the other 63 bits belong to software.
pub const PRESENT: u64 = 1 << 0;
/// Table (levels 1 to 3) or page (level 0); clear: a block.
pub const TABLE_OR_PAGE: u64 = 1 << 1;
/// Index 1 of MAIR: device memory.
pub const DEVICE: u64 = 1 << 2;
/// User mode is allowed.
pub const USER: u64 = 1 << 6;
/// Stores are refused.
pub const READ_ONLY: u64 = 1 << 7;
/// Inner shareable.
pub const INNER_SHAREABLE: u64 = 3 << 8;
/// The access flag.
pub const ACCESSED: u64 = 1 << 10;
/// The translation belongs to one ASID.
pub const NOT_GLOBAL: u64 = 1 << 11;
/// The read-only bit may be cleared by the walker.
pub const DIRTY_MODIFIER: u64 = 1 << 51;
/// No instruction fetch by the kernel.
pub const KERNEL_NO_EXECUTE: u64 = 1 << 53;
/// No instruction fetch by user mode.
pub const USER_NO_EXECUTE: u64 = 1 << 54;
/// Software: written before it was write-protected.
pub const SOFTWARE_DIRTY: u64 = 1 << 55;
/// Bits of an entry that hold the frame.
pub const ADDRESS: u64 = 0x0000_ffff_ffff_f000;

/// The entry for a leaf. The frame must be aligned to its size.
#[inline]
pub const fn leaf(leaf: Leaf) -> u64 {
    let access = leaf.access;
    debug_assert!(leaf.frame.0.is_multiple_of(leaf.size.pages()));
    let mut raw = leaf.frame.address() & ADDRESS | PRESENT | INNER_SHAREABLE;
    if matches!(leaf.size, PageSize::Base) {
        raw |= TABLE_OR_PAGE;
    }
    if access.user {
        raw |= USER;
    }
    if access.accessed {
        raw |= ACCESSED;
    }
    if !access.global {
        raw |= NOT_GLOBAL;
    }
    if access.writable {
        raw |= DIRTY_MODIFIER;
        if !access.dirty {
            raw |= READ_ONLY;
        }
    } else {
        raw |= READ_ONLY;
        if access.dirty {
            raw |= SOFTWARE_DIRTY;
        }
    }
    // What user mode may execute the kernel must not, and the other way round.
    if !(access.executable && access.user) {
        raw |= USER_NO_EXECUTE;
    }
    if !access.executable || access.user {
        raw |= KERNEL_NO_EXECUTE;
    }
    raw
}

/// The entry that points to the next level's table; permissions are left to the leaves.
#[inline]
pub const fn table(table: Frame) -> u64 {
    table.address() & ADDRESS | PRESENT | TABLE_OR_PAGE
}

/// What the entry at `level` (0 lowest, 3 root) says.
#[inline]
pub const fn decode(raw: u64, level: u8) -> Entry {
    if raw & PRESENT == 0 {
        return Entry::Absent(raw);
    }
    let Some(size) = size_at(level) else {
        return Entry::Table(Frame::containing(raw & ADDRESS));
    };
    if level > 0 && raw & TABLE_OR_PAGE != 0 {
        return Entry::Table(Frame::containing(raw & ADDRESS));
    }
    let user = raw & USER != 0;
    let no_execute = if user {
        USER_NO_EXECUTE
    } else {
        KERNEL_NO_EXECUTE
    };
    let writable = raw & DIRTY_MODIFIER != 0;
    Entry::Leaf(Leaf {
        frame: Frame::containing(raw & ADDRESS & !(size.bytes() - 1)),
        size,
        access: Access {
            writable,
            user,
            executable: raw & no_execute == 0,
            global: raw & NOT_GLOBAL == 0,
            accessed: raw & ACCESSED != 0,
            dirty: if writable {
                raw & READ_ONLY == 0
            } else {
                raw & SOFTWARE_DIRTY != 0
            },
        },
    })
}

/// The entry after an access: what a walker with FEAT_HAFDBS would have written, or `None` if the
/// access is not one it would let through (or nothing changes).
///
/// For fault handlers on processors without it. Write the result with a compare-exchange.
#[inline]
pub const fn mark_dirty(raw: u64, write: bool) -> Option<u64> {
    if raw & PRESENT == 0 {
        return None;
    }
    let mut marked = raw | ACCESSED;
    if write {
        if raw & DIRTY_MODIFIER == 0 {
            return None;
        }
        marked &= !READ_ONLY;
    }
    if marked == raw { None } else { Some(marked) }
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
        for raw in [0, 2, !1u64, 0xdead_beef_0000_0ff0] {
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
        assert_eq!(raw, 0x0068_0000_0123_4f43);
        assert_eq!(decode(table(Frame(0x99)), 1), Entry::Table(Frame(0x99)));
    }

    #[test]
    fn user_code_is_never_executable_by_the_kernel() {
        for access in all_accesses() {
            let raw = leaf(Leaf {
                frame: Frame(0),
                size: PageSize::Base,
                access,
            });
            assert!(!access.user || raw & KERNEL_NO_EXECUTE != 0);
            assert!(access.user || raw & USER_NO_EXECUTE != 0);
        }
    }

    #[test]
    fn the_first_store_to_a_writable_page_makes_it_dirty() {
        let access = Access {
            writable: true,
            user: true,
            ..Access::default()
        };
        let clean = leaf(Leaf {
            frame: Frame(1),
            size: PageSize::Base,
            access,
        });
        let read = mark_dirty(clean, false).unwrap();
        let Entry::Leaf(after) = decode(read, 0) else {
            panic!()
        };
        assert!(after.access.accessed && !after.access.dirty);
        let Entry::Leaf(after) = decode(mark_dirty(read, true).unwrap(), 0) else {
            panic!()
        };
        assert!(after.access.dirty && after.access.writable);
        let protected = leaf(Leaf {
            frame: Frame(1),
            size: PageSize::Base,
            access: Access {
                writable: false,
                ..access
            },
        });
        assert_eq!(mark_dirty(protected, true), None);
        assert_eq!(mark_dirty(0, true), None);
    }
}

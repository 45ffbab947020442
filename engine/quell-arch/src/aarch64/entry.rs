//! Encodes and decodes AArch64's page-table entries.
//!
//! The format is stage 1 with a 4 KB granule and output addresses of 48 bits ([Arm
//! ARM](https://developer.arm.com/documentation/ddi0487/latest), "VMSAv8-64 translation table format descriptors").
//!
//! *Dirty state.* [`Entry::dirty`] is set if [`READ_ONLY`] is clear, or if [`SOFTWARE_DIRTY`] is set in a
//! write-protected page. A page that is writable but clean has both [`READ_ONLY`] and [`DIRTY_MODIFIER`] set. At the
//! first store, a walker with FEAT_HAFDBS clears [`READ_ONLY`]; on other processors the fault handler does that with
//! [`mark_dirty`]. Write-protecting a dirty page sets [`SOFTWARE_DIRTY`], so that the entry stays dirty.
//!
//! *Global* translations are those without [`NOT_GLOBAL`]. [`Entry::memory`] is 0 for index 0 of MAIR, which must be
//! normal write-back memory, inner shareable. Index 1 must be device memory. [`Entry::key`] holds bits 59 to 62 of a
//! leaf: an overlay index (FEAT_S1POE) or page-based hardware attributes. [`Entry::encrypted`] is unused.
//!
//! *52-bit output addresses* (FEAT_LPA2) use the shareability bits for the address. That's another format, so
//! [`encode`] refuses frames beyond 48 bits.

use quell::{Break, Entry, Frame, Level, MemoryType, TlbRules};

/// Lets the walker use the entry. If clear, the other 63 bits belong to software.
pub const PRESENT: u64 = 1 << 0;
/// Marks a table (levels 1 to 3) or a page (level 0), not a block.
pub const TABLE_OR_PAGE: u64 = 1 << 1;
/// The index into MAIR.
pub const ATTRIBUTES: u64 = 7 << 2;
/// Marks the output address as non-secure, in the security states that check this bit.
pub const NON_SECURE: u64 = 1 << 5;
/// Allows user mode to access the page.
pub const USER: u64 = 1 << 6;
/// Forbids stores.
pub const READ_ONLY: u64 = 1 << 7;
/// The shareability field. Both bits set mean inner shareable.
pub const INNER_SHAREABLE: u64 = 3 << 8;
/// The access flag. In a table entry it has a meaning only with FEAT_HAFT.
pub const ACCESSED: u64 = 1 << 10;
/// Limits the translation to one ASID. If clear, it's global.
pub const NOT_GLOBAL: u64 = 1 << 11;
/// Bits of an entry that hold the frame.
pub const ADDRESS: u64 = 0x0000_ffff_ffff_f000;
/// Requires indirect branches to land on a marked instruction (FEAT_BTI).
pub const GUARDED: u64 = 1 << 50;
/// Lets the walker clear [`READ_ONLY`].
pub const DIRTY_MODIFIER: u64 = 1 << 51;
/// Marks one of sixteen entries that the TLB may hold as one.
pub const CONTIGUOUS: u64 = 1 << 52;
/// Forbids the kernel to fetch instructions.
pub const KERNEL_NO_EXECUTE: u64 = 1 << 53;
/// Forbids user mode to fetch instructions.
pub const USER_NO_EXECUTE: u64 = 1 << 54;
/// Records in software that the page was written before it was write-protected.
pub const SOFTWARE_DIRTY: u64 = 1 << 55;
/// Bits 59 to 62 of a leaf: the overlay index, or attributes for memory.
pub const KEY: u64 = 0xf << KEY_SHIFT;
/// In a table entry: forbids the kernel to fetch instructions from the pages below.
pub const TABLE_KERNEL_NO_EXECUTE: u64 = 1 << 59;
/// In a table entry: forbids user mode to fetch instructions from the pages below.
pub const TABLE_USER_NO_EXECUTE: u64 = 1 << 60;
/// In a table entry: forbids user mode to access the pages below.
pub const TABLE_NO_USER: u64 = 1 << 61;
/// In a table entry: makes the pages below read-only.
pub const TABLE_READ_ONLY: u64 = 1 << 62;
/// In a table entry: marks the memory below as non-secure. Only some security states check this bit.
pub const TABLE_NON_SECURE: u64 = 1 << 63;

const KEY_SHIFT: u32 = 59;

/// The memory type of devices: index 1 of MAIR.
pub const DEVICE: MemoryType = MemoryType(1);
/// The non-secure bit in a [`MemoryType`].
const MEMORY_NON_SECURE: u8 = 1 << 5;

/// In [`Entry::special`]: lets the other side fetch instructions from the page too.
///
/// That is the kernel for a page of user mode, and user mode for a page of the kernel. The kernel never executes a page
/// that user mode may write.
pub const OTHER_EXECUTES: u8 = 1 << 0;
/// In [`Entry::special`]: set if [`GUARDED`] is set.
pub const IS_GUARDED: u8 = 1 << 1;
/// In [`Entry::special`] of a table entry: set if [`TABLE_KERNEL_NO_EXECUTE`] is set.
pub const KERNEL_NEVER_EXECUTES: u8 = 1 << 2;

/// The rules of AArch64's TLBs (Arm ARM, "TLB maintenance"), without FEAT_BBML1.
pub const RULES: TlbRules = TlbRules {
    keeps_refused: true,
    keeps_absent: false,
    user_excludes_kernel: true,
    break_before_make: Break::Translation,
};

/// Encodes a present entry of a table at `level`.
///
/// # Panics
/// If the frame lies beyond 48 bits of address, or if the entry is a leaf at the root level. Debug builds also panic if
/// the frame isn't aligned to the size of the page.
#[inline]
pub fn encode(entry: Entry, level: Level) -> u64 {
    assert!(
        entry.frame.address() & !ADDRESS == 0,
        "an entry cannot hold frame {:#x}: it lies beyond the 48 bits of output addresses",
        entry.frame.0
    );
    let bit = |set: bool, bit: u64| if set { bit } else { 0 };
    let non_secure = entry.memory.0 & MEMORY_NON_SECURE != 0;
    let raw = entry.frame.address() | PRESENT;
    if entry.table {
        return raw
            | TABLE_OR_PAGE
            | bit(entry.accessed, ACCESSED)
            | bit(!entry.writable, TABLE_READ_ONLY)
            | bit(!entry.user, TABLE_NO_USER)
            | bit(!entry.executable, TABLE_USER_NO_EXECUTE)
            | bit(entry.special & KERNEL_NEVER_EXECUTES != 0, TABLE_KERNEL_NO_EXECUTE)
            | bit(non_secure, TABLE_NON_SECURE);
    }
    let size = level.size().expect("a root maps no pages");
    debug_assert!(entry.frame.0.is_multiple_of(size.pages()));
    let read_only = !(entry.writable && entry.dirty);
    // The kernel must not execute pages that user mode may execute, nor the other way round, unless the entry demands
    // it.
    let other = entry.special & OTHER_EXECUTES != 0;
    let (user_executes, kernel_executes) =
        if entry.user { (entry.executable, other) } else { (other, entry.executable) };
    let memory = u64::from(entry.memory.0);
    raw | bit(level == Level::LEAF, TABLE_OR_PAGE)
        | (memory & 7) << ATTRIBUTES.trailing_zeros()
        | bit(non_secure, NON_SECURE)
        | bit(entry.user, USER)
        | bit(read_only, READ_ONLY)
        | INNER_SHAREABLE ^ (memory >> 3 & 3) << INNER_SHAREABLE.trailing_zeros()
        | bit(entry.accessed, ACCESSED)
        | bit(!entry.global, NOT_GLOBAL)
        | bit(entry.special & IS_GUARDED != 0, GUARDED)
        | bit(entry.writable, DIRTY_MODIFIER)
        | bit(entry.contiguous, CONTIGUOUS)
        | bit(!kernel_executes, KERNEL_NO_EXECUTE)
        | bit(!user_executes, USER_NO_EXECUTE)
        | bit(entry.dirty && !entry.writable, SOFTWARE_DIRTY)
        | u64::from(entry.key) << KEY_SHIFT & KEY
}

/// Decodes a word of a table at `level`.
///
/// Returns [`Entry::ABSENT`] if the word isn't present, or if its form is reserved at that level, so that a walker
/// faults. In table entries, the accessed bit has a meaning only with FEAT_HAFT.
#[inline]
pub fn decode(raw: u64, level: Level) -> Entry {
    let is_table_or_page = raw & TABLE_OR_PAGE != 0;
    // Pages without the second bit, and blocks in a root, are reserved: they fault.
    let reserved = !is_table_or_page && (level == Level::LEAF || level == Level::ROOT);
    if raw & PRESENT == 0 || reserved {
        return Entry::ABSENT;
    }
    let frame = Frame::containing(raw & ADDRESS);
    let non_secure = |bit: u64| if raw & bit != 0 { MEMORY_NON_SECURE } else { 0 };
    if level > Level::LEAF && is_table_or_page {
        return Entry {
            present: true,
            table: true,
            frame,
            writable: raw & TABLE_READ_ONLY == 0,
            user: raw & TABLE_NO_USER == 0,
            executable: raw & TABLE_USER_NO_EXECUTE == 0,
            accessed: raw & ACCESSED != 0,
            memory: MemoryType(non_secure(TABLE_NON_SECURE)),
            special: if raw & TABLE_KERNEL_NO_EXECUTE != 0 { KERNEL_NEVER_EXECUTES } else { 0 },
            ..Entry::ABSENT
        };
    }
    let user = raw & USER != 0;
    let (no_execute, other_no_execute) = if user {
        (USER_NO_EXECUTE, KERNEL_NO_EXECUTE)
    } else {
        (KERNEL_NO_EXECUTE, USER_NO_EXECUTE)
    };
    let stores = raw & READ_ONLY == 0;
    let writable = stores || raw & DIRTY_MODIFIER != 0;
    // The kernel never executes a page that user mode may write, whatever the bit is.
    let other_executes = raw & other_no_execute == 0 && !(user && writable);
    let shareability = (!raw & INNER_SHAREABLE) >> INNER_SHAREABLE.trailing_zeros();
    let attributes = (raw & ATTRIBUTES) >> ATTRIBUTES.trailing_zeros();
    Entry {
        present: true,
        table: false,
        // The lower bits of a block aren't part of the address.
        frame: Frame(frame.0 & !(level.pages() - 1)),
        writable,
        user,
        executable: raw & no_execute == 0,
        accessed: raw & ACCESSED != 0,
        dirty: stores || !writable && raw & SOFTWARE_DIRTY != 0,
        global: raw & NOT_GLOBAL == 0,
        contiguous: raw & CONTIGUOUS != 0,
        memory: MemoryType((attributes | shareability << 3) as u8 | non_secure(NON_SECURE)),
        key: ((raw & KEY) >> KEY_SHIFT) as u8,
        encrypted: false,
        special: if other_executes { OTHER_EXECUTES } else { 0 }
            | if raw & GUARDED != 0 { IS_GUARDED } else { 0 },
    }
}

/// Returns the entry as a walker with FEAT_HAFDBS would write it after an access.
///
/// Returns `None` if the entry isn't present, if it forbids the store, or if nothing changes.
///
/// Fault handlers need it on processors without FEAT_HAFDBS. Write the result with a compare-exchange.
#[inline]
pub const fn mark_dirty(raw: u64, write: bool) -> Option<u64> {
    if raw & PRESENT == 0 {
        return None;
    }
    let mut marked = raw | ACCESSED;
    if write && raw & READ_ONLY != 0 {
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
    use crate::entries::{all_entries, check_absent, levels_of};

    #[test]
    fn entries_survive_encoding() {
        for entry in all_entries() {
            for level in levels_of(&entry) {
                let specials = [0, IS_GUARDED, OTHER_EXECUTES | IS_GUARDED];
                for (special, memory) in specials.into_iter().zip([0, 1 | 2 << 3, 1 << 5]) {
                    let entry = if entry.table {
                        Entry {
                            global: false,
                            memory: MemoryType(memory & MEMORY_NON_SECURE),
                            special: if special == 0 { 0 } else { KERNEL_NEVER_EXECUTES },
                            ..entry
                        }
                    } else {
                        Entry {
                            memory: MemoryType(memory),
                            special: if entry.user && entry.writable {
                                special & IS_GUARDED
                            } else {
                                special
                            },
                            contiguous: special != 0,
                            key: 5 * special,
                            ..entry
                        }
                    };
                    assert_eq!(decode(encode(entry, level), level), entry);
                }
            }
        }
    }

    #[test]
    fn words_of_software_are_absent() {
        check_absent(decode);
    }

    #[test]
    fn known_entries_match_the_manual() {
        let entry = Entry {
            present: true,
            frame: Frame(0x1234),
            writable: true,
            user: true,
            dirty: true,
            accessed: true,
            ..Entry::ABSENT
        };
        assert_eq!(encode(entry, Level::LEAF), 0x0068_0000_0123_4f43);
        let device = Entry { memory: DEVICE, ..entry };
        assert_eq!(encode(device, Level::LEAF), 0x0068_0000_0123_4f47);
        let table = Entry::table(Frame(0x99));
        assert_eq!(encode(table, Level::LARGE), 0x99403);
        assert_eq!(decode(0x99403, Level::LARGE), table);
    }

    #[test]
    fn an_entry_that_stores_go_through_is_writable() {
        // Neither read-only nor with the dirty-bit-modifier: for example, an entry of a boot loader.
        let entry = decode(0x0060_0000_0123_4f43, Level::LEAF);
        assert!(entry.writable && entry.dirty);
    }

    #[test]
    fn user_code_is_never_executable_by_the_kernel() {
        for entry in all_entries().into_iter().filter(|entry| !entry.table) {
            let raw = encode(entry, Level::LEAF);
            assert!(!entry.user || raw & KERNEL_NO_EXECUTE != 0);
            assert!(entry.user || raw & USER_NO_EXECUTE != 0);
        }
    }

    #[test]
    fn the_first_store_to_a_writable_page_makes_it_dirty() {
        let entry =
            Entry { present: true, writable: true, user: true, frame: Frame(1), ..Entry::ABSENT };
        let clean = encode(entry, Level::LEAF);
        let read = mark_dirty(clean, false).unwrap();
        let after = decode(read, Level::LEAF);
        assert!(after.accessed && !after.dirty);
        let after = decode(mark_dirty(read, true).unwrap(), Level::LEAF);
        assert!(after.dirty && after.writable);
        let protected = encode(Entry { writable: false, ..entry }, Level::LEAF);
        assert_eq!(mark_dirty(protected, true), None);
        assert_eq!(mark_dirty(0, true), None);
        // Another kernel's entry may be writable without the modifier. Its first access is a fault all the same.
        let other = clean & !(READ_ONLY | DIRTY_MODIFIER);
        assert_eq!(mark_dirty(other, true), Some(other | ACCESSED));
        assert_eq!(mark_dirty(other | ACCESSED, true), None);
    }
}

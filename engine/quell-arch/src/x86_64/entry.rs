//! Encodes and decodes x86-64's page-table entries.
//!
//! [Intel's manual](https://www.intel.com/content/www/us/en/developer/articles/technical/intel-sdm.html)
//! describes the format in volume 3, chapter "Paging", and [AMD's manual](https://docs.amd.com/v/u/en-US/24593_3.43) in
//! volume 2, chapter 5.
//!
//! [`Entry::key`] is the protection key. [`Entry::memory`] is the index into the PAT; an entry that points to a table
//! has only the index's two lower bits. [`Entry::special`] and [`Entry::contiguous`] are unused. Decoding drops bits 9
//! to 11 and 52 to 58, which hardware ignores; encoding clears them.

use quell::{Break, Entry, Frame, Level, MemoryType, TlbRules};

/// Lets the walker use the entry. If clear, the other 63 bits belong to software.
pub const PRESENT: u64 = 1 << 0;
/// Allows stores.
pub const WRITABLE: u64 = 1 << 1;
/// Allows user mode to access the page.
pub const USER: u64 = 1 << 2;
/// Bit 0 of the index into the PAT. With the PAT's reset values it selects write-through.
pub const WRITE_THROUGH: u64 = 1 << 3;
/// Bit 1 of the index into the PAT. With the PAT's reset values it selects uncached memory.
pub const UNCACHED: u64 = 1 << 4;
/// Set by the walker when it uses the entry.
pub const ACCESSED: u64 = 1 << 5;
/// Set by the walker when a store uses the leaf.
pub const DIRTY: u64 = 1 << 6;
/// Marks a leaf at levels 1 and 2. At level 0 it's bit 2 of the index into the PAT.
pub const LARGE: u64 = 1 << 7;
/// Keeps the translation across loads of CR3.
pub const GLOBAL: u64 = 1 << 8;
/// Bit 2 of the index into the PAT, in leaves at levels 1 and 2.
pub const LARGE_PAT: u64 = 1 << 12;
/// The protection key of a leaf.
pub const KEY: u64 = 0xf << KEY_SHIFT;
/// Forbids instruction fetches.
pub const NO_EXECUTE: u64 = 1 << 63;
/// The bits of a base-page entry that hold the frame.
pub const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

const KEY_SHIFT: u32 = 59;

/// The memory type of devices: strongly uncached, with the PAT's reset values.
pub const DEVICE: MemoryType = MemoryType(3);

/// The rules of x86-64's TLBs (Intel SDM volume 3, "Caching Translation Information").
pub const RULES: TlbRules = TlbRules {
    keeps_refused: false,
    keeps_absent: false,
    user_excludes_kernel: true,
    break_before_make: Break::Size,
};

/// The format of a machine's entries, with the position of its encryption bit.
///
/// # Examples
///
/// ```
/// use quell::{Entry, Frame, Level};
/// use quell_arch::x86_64::entry::Format;
/// let format = Format::with_encryption_bit(51); // AMD's C-bit
/// let entry = Entry { present: true, encrypted: true, frame: Frame(42), ..Entry::ABSENT };
/// let word = format.encode(entry, Level::LEAF);
/// assert_ne!(word & 1 << 51, 0);
/// assert_eq!(format.decode(word, Level::LEAF).frame, Frame(42));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Format {
    encrypted: u64,
}

impl Format {
    /// The format without an encryption bit.
    pub const PLAIN: Format = Format { encrypted: 0 };

    /// Makes the format of a machine with an encryption bit in the address, AMD's C-bit.
    ///
    /// CPUID leaf 0x8000001F reports the bit's position in EBX, bits 0 to 5.
    ///
    /// # Panics
    /// If the bit isn't an address bit.
    pub const fn with_encryption_bit(bit: u32) -> Format {
        assert!(bit >= 12 && bit < 52, "the encryption bit is one of the address bits 12 to 51");
        Format { encrypted: 1 << bit }
    }

    /// Encodes a present entry of a table at `level`.
    ///
    /// # Panics
    /// If the frame doesn't fit into the format, or if the entry is a leaf at the root level. Debug builds also panic
    /// if the frame isn't aligned to the size of the page, or if an entry of the lowest level points to a table.
    #[inline]
    pub fn encode(self, entry: Entry, level: Level) -> u64 {
        let address = entry.frame.address();
        assert!(
            address & !(ADDRESS & !self.encrypted) == 0,
            "an entry cannot hold frame {:#x}: it lies beyond the physical addresses of the format",
            entry.frame.0
        );
        let bit = |set: bool, bit: u64| if set { bit } else { 0 };
        let memory = u64::from(entry.memory.0);
        let raw = address
            | PRESENT
            | bit(entry.writable, WRITABLE)
            | bit(entry.user, USER)
            | bit(!entry.executable, NO_EXECUTE)
            | bit(entry.accessed, ACCESSED)
            | bit(entry.encrypted, self.encrypted)
            | (memory & 3) << WRITE_THROUGH.trailing_zeros();
        if entry.table {
            debug_assert!(level > Level::LEAF);
            return raw;
        }
        let size = level.size().expect("a root maps no pages");
        debug_assert!(entry.frame.0.is_multiple_of(size.pages()));
        let (large, pat) = match level {
            Level::LEAF => (0, LARGE),
            _ => (LARGE, LARGE_PAT),
        };
        raw | bit(entry.dirty, DIRTY)
            | bit(entry.global, GLOBAL)
            | large
            | bit(memory & 4 != 0, pat)
            | u64::from(entry.key) << KEY_SHIFT & KEY
    }

    /// Decodes a word of a table at `level`.
    ///
    /// Returns [`Entry::ABSENT`] if the word isn't present.
    #[inline]
    pub fn decode(self, raw: u64, level: Level) -> Entry {
        if raw & PRESENT == 0 {
            return Entry::ABSENT;
        }
        let address = raw & ADDRESS & !self.encrypted;
        let entry = Entry {
            present: true,
            table: true,
            frame: Frame::containing(address),
            writable: raw & WRITABLE != 0,
            user: raw & USER != 0,
            executable: raw & NO_EXECUTE == 0,
            accessed: raw & ACCESSED != 0,
            memory: MemoryType((raw >> WRITE_THROUGH.trailing_zeros() & 3) as u8),
            encrypted: raw & self.encrypted != 0,
            ..Entry::ABSENT
        };
        let pat = match (level, raw & LARGE != 0) {
            (Level::LEAF, _) => LARGE,
            (Level::LARGE | Level::HUGE, true) => LARGE_PAT,
            _ => return entry,
        };
        let index = entry.memory.0 | if raw & pat != 0 { 4 } else { 0 };
        Entry {
            table: false,
            // The lower bits of a large leaf aren't part of the address.
            frame: Frame(entry.frame.0 & !(level.pages() - 1)),
            dirty: raw & DIRTY != 0,
            global: raw & GLOBAL != 0,
            memory: MemoryType(index),
            key: ((raw & KEY) >> KEY_SHIFT) as u8,
            ..entry
        }
    }
}

/// Encodes an entry on a machine without encryption, like [`Format::encode`].
///
/// # Panics
/// As [`Format::encode`].
#[inline]
pub fn encode(entry: Entry, level: Level) -> u64 {
    Format::PLAIN.encode(entry, level)
}

/// Decodes a word on a machine without encryption, like [`Format::decode`].
#[inline]
pub fn decode(raw: u64, level: Level) -> Entry {
    Format::PLAIN.decode(raw, level)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entries::{all_entries, check_absent, levels_of};
    use quell::PageSize;

    #[test]
    fn entries_survive_encoding() {
        let format = Format::with_encryption_bit(51);
        for entry in all_entries() {
            for level in levels_of(&entry) {
                for (encrypted, memory, key) in [(false, 0, 0), (true, 3, 9), (false, 7, 15)] {
                    let entry = Entry {
                        encrypted,
                        memory: MemoryType(if entry.table { memory & 3 } else { memory }),
                        key: if entry.table { 0 } else { key },
                        global: entry.global && !entry.table,
                        ..entry
                    };
                    assert_eq!(format.decode(format.encode(entry, level), level), entry);
                }
            }
        }
    }

    #[test]
    fn words_of_software_are_absent() {
        check_absent(decode);
        assert_eq!(decode(NO_EXECUTE | LARGE, Level::LARGE), Entry::ABSENT);
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
        assert_eq!(encode(entry, Level::LEAF), 0x8000_0000_0123_4067);
        let keyed = Entry { key: 5, ..entry };
        assert_eq!(encode(keyed, Level::LEAF), 0xa800_0000_0123_4067);
        let device = Entry { frame: Frame(0x200), memory: MemoryType(5), ..entry };
        assert_eq!(encode(device, Level::of(PageSize::Large)), 0x8000_0000_0020_10ef);
        assert_eq!(encode(Entry::table(Frame(0x99)), Level::ROOT), 0x99027);
        for level in [1, 3].map(Level) {
            assert_eq!(decode(0x99027, level), Entry::table(Frame(0x99)));
        }
    }

    #[test]
    #[should_panic(expected = "cannot hold frame 0x8000000000")]
    fn frames_in_the_place_of_the_encryption_bit_are_refused() {
        Format::with_encryption_bit(51).encode(Entry::table(Frame(1 << 39)), Level::ROOT);
    }
}

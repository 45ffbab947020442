//! The RISC-V format of page-table entries: Sv48 (privileged specification, chapter "Supervisor-Level ISA", with Svpbmt
//! and Svnapot).
//!
//! An entry that points to a table has no rights and no accessed bit, so we decode it as granting all rights and
//! accessed. [`Entry::memory`] is the PBMT field. [`Entry::contiguous`] is the N bit with the only size that is
//! defined, 64 KB. The format has no room for the lowest four bits of such an entry's frame, which are those of its
//! page, so decoding returns the first frame of the sixteen. We don't use [`Entry::key`] and [`Entry::encrypted`]. The
//! kernel can never execute a leaf that user mode may use.
//!
//! Without Svadu the hardware refuses an access if the accessed or dirty bit is missing, and a fault handler sets the
//! bit.

use quell::{Break, Entry, Frame, Level, MemoryType, TlbRules};

/// Lets the walker use the entry. If clear, the other 63 bits belong to software.
pub const PRESENT: u64 = 1 << 0;
/// Loads are allowed.
pub const READABLE: u64 = 1 << 1;
/// Stores are allowed.
pub const WRITABLE: u64 = 1 << 2;
/// Instructions may be fetched.
pub const EXECUTABLE: u64 = 1 << 3;
/// The page belongs to user mode.
pub const USER: u64 = 1 << 4;
/// The translation, or every translation below the table, belongs to every address space.
pub const GLOBAL: u64 = 1 << 5;
/// Accessed since the bit was cleared.
pub const ACCESSED: u64 = 1 << 6;
/// Stored to since the bit was cleared.
pub const DIRTY: u64 = 1 << 7;
/// Bits that hold the frame.
pub const FRAME: u64 = ((1 << 44) - 1) << FRAME_SHIFT;
/// The memory type (Svpbmt).
pub const MEMORY: u64 = 3 << MEMORY_SHIFT;
/// The entry is one of a row of pages that are translated as one (Svnapot).
pub const NAPOT: u64 = 1 << 63;

const FRAME_SHIFT: u32 = 10;
const MEMORY_SHIFT: u32 = 61;
/// The lowest four bits of a frame, and their content for a row of 64 KB.
const NAPOT_BITS: u64 = 15;
const NAPOT_64K: u64 = 8;

/// Uncached, non-idempotent memory (Svpbmt): for devices.
pub const DEVICE: MemoryType = MemoryType(2);

/// In [`Entry::special`]: loads aren't allowed. With [`Entry::writable`] the page is a shadow stack (Zicfiss), with
/// [`Entry::executable`] alone it's execute-only.
pub const UNREADABLE: u8 = 1 << 0;

/// Returns the behaviour of TLBs. With `svvptc`, a TLB soon detects that an absent entry became present.
pub const fn rules(svvptc: bool) -> TlbRules {
    TlbRules {
        keeps_refused: true,
        keeps_absent: !svvptc,
        user_excludes_kernel: true,
        break_before_make: Break::Never,
    }
}

/// Encodes a present entry of a table at `level`.
///
/// # Panics
/// If the frame doesn't fit into the format, if a root would map a page, or if a leaf would allow no access: without
/// rights the format marks a table. In debug builds also if the frame isn't aligned to the size of the page.
#[inline]
pub fn encode(entry: Entry, level: Level) -> u64 {
    assert!(
        entry.frame.0 <= FRAME >> FRAME_SHIFT,
        "an entry cannot hold frame {:#x}: it lies beyond the 56 bits of physical addresses",
        entry.frame.0
    );
    let bit = |set: bool, bit: u64| if set { bit } else { 0 };
    let raw = PRESENT | bit(entry.global, GLOBAL);
    if entry.table {
        return raw | entry.frame.0 << FRAME_SHIFT;
    }
    let size = level.size().expect("a root maps no pages");
    debug_assert!(entry.frame.0.is_multiple_of(size.pages()));
    let rights = bit(entry.special & UNREADABLE == 0, READABLE)
        | bit(entry.writable, WRITABLE)
        | bit(entry.executable, EXECUTABLE);
    assert!(rights != 0, "a leaf without any right looks like a table");
    let frame = if entry.contiguous {
        entry.frame.0 & !NAPOT_BITS | NAPOT_64K
    } else {
        entry.frame.0
    };
    raw | rights
        | frame << FRAME_SHIFT
        | bit(entry.user, USER)
        | bit(entry.accessed, ACCESSED)
        | bit(entry.dirty, DIRTY)
        | bit(entry.contiguous, NAPOT)
        | u64::from(entry.memory.0) << MEMORY_SHIFT & MEMORY
}

/// Decodes a word of a table at `level`. Returns [`Entry::ABSENT`] if the word is not present.
#[inline]
pub fn decode(raw: u64, _level: Level) -> Entry {
    if raw & PRESENT == 0 {
        return Entry::ABSENT;
    }
    let frame = (raw & FRAME) >> FRAME_SHIFT;
    if raw & (READABLE | WRITABLE | EXECUTABLE) == 0 {
        return Entry {
            global: raw & GLOBAL != 0,
            ..Entry::table(Frame(frame))
        };
    }
    let contiguous = raw & NAPOT != 0;
    Entry {
        present: true,
        table: false,
        frame: Frame(if contiguous {
            frame & !NAPOT_BITS
        } else {
            frame
        }),
        writable: raw & WRITABLE != 0,
        user: raw & USER != 0,
        executable: raw & EXECUTABLE != 0,
        accessed: raw & ACCESSED != 0,
        dirty: raw & DIRTY != 0,
        global: raw & GLOBAL != 0,
        contiguous,
        memory: MemoryType(((raw & MEMORY) >> MEMORY_SHIFT) as u8),
        special: if raw & READABLE == 0 { UNREADABLE } else { 0 },
        ..Entry::ABSENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entries::{all_entries, check_absent, levels_of};

    #[test]
    fn entries_survive_encoding() {
        for entry in all_entries() {
            for level in levels_of(&entry) {
                let entry = if entry.table {
                    Entry {
                        global: entry.global,
                        ..Entry::table(entry.frame)
                    }
                } else {
                    entry
                };
                for (memory, contiguous) in [(0, false), (2, true)] {
                    let entry = Entry {
                        memory: MemoryType(if entry.table { 0 } else { memory }),
                        contiguous: contiguous && !entry.table,
                        ..entry
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
            frame: Frame(0x80200),
            writable: true,
            user: true,
            accessed: true,
            dirty: true,
            ..Entry::ABSENT
        };
        assert_eq!(encode(entry, Level::LEAF), 0x2008_00d7);
        let row = Entry {
            memory: DEVICE,
            contiguous: true,
            ..entry
        };
        assert_eq!(encode(row, Level::LEAF), 0xc000_0000_2008_20d7);
        assert_eq!(encode(Entry::table(Frame(0x99)), Level::ROOT), 0x26401);
    }

    #[test]
    #[should_panic(expected = "looks like a table")]
    fn leaves_without_rights_are_refused() {
        let none = Entry {
            present: true,
            special: UNREADABLE,
            ..Entry::ABSENT
        };
        encode(none, Level::LEAF);
    }

    #[test]
    #[should_panic(expected = "cannot hold frame 0x100000000000")]
    fn frames_beyond_the_format_are_refused() {
        encode(Entry::table(Frame(1 << 44)), Level::ROOT);
    }
}

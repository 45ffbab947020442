//! Encodes and decodes RISC-V's page-table entries.
//!
//! The format is Sv48 with Svpbmt and Svnapot ([privileged specification](https://github.com/riscv/riscv-isa-manual),
//! chapter "Supervisor-Level ISA"). The kernel can never execute a leaf that user mode may use.
//!
//! Entries that point to a table have no rights and no accessed bit in this format. [`decode`] returns them with all
//! rights granted and the accessed bit set. [`Entry::memory`] is the PBMT field. [`Entry::key`] and
//! [`Entry::encrypted`] are unused.
//!
//! [`Entry::contiguous`] is the N bit, for 64 KB: the only size that Svnapot defines. Such an entry has no room for the
//! lowest four bits of its page's frame. So [`decode`] returns the first of the sixteen frames.
//!
//! Without Svadu the processor faults if the accessed or dirty bit is missing, and a fault handler sets it.

use quell::{Break, Entry, Frame, Level, MemoryType, TlbRules};

/// Lets the walker use the entry. If clear, the other 63 bits belong to software.
pub const PRESENT: u64 = 1 << 0;
/// Allows loads.
pub const READABLE: u64 = 1 << 1;
/// Allows stores.
pub const WRITABLE: u64 = 1 << 2;
/// Allows instruction fetches.
pub const EXECUTABLE: u64 = 1 << 3;
/// Marks a page of user mode.
pub const USER: u64 = 1 << 4;
/// Marks a translation of every address space. In a table entry it covers all pages below.
pub const GLOBAL: u64 = 1 << 5;
/// Set if the page was accessed since the bit was cleared.
pub const ACCESSED: u64 = 1 << 6;
/// Set if the page was written since the bit was cleared.
pub const DIRTY: u64 = 1 << 7;
/// The bits that hold the frame.
pub const FRAME: u64 = ((1 << 44) - 1) << FRAME_SHIFT;
/// The memory type (Svpbmt).
pub const MEMORY: u64 = 3 << MEMORY_SHIFT;
/// Marks one of several adjacent pages that the TLB may hold as one (Svnapot).
pub const NAPOT: u64 = 1 << 63;

const FRAME_SHIFT: u32 = 10;
const MEMORY_SHIFT: u32 = 61;
/// The lowest four bits of a frame, and their content for a row of 64 KB.
const NAPOT_BITS: u64 = 15;
const NAPOT_64K: u64 = 8;

/// The memory type of devices: uncached, non-idempotent (Svpbmt).
pub const DEVICE: MemoryType = MemoryType(2);

/// In [`Entry::special`]: forbids loads.
///
/// With [`Entry::writable`] the page is a shadow stack (Zicfiss). With [`Entry::executable`] alone it's execute-only.
pub const UNREADABLE: u8 = 1 << 0;

/// Returns the rules of RISC-V's TLBs.
///
/// Set `svvptc` if the processor has the extension Svvptc: it then soon uses an entry that became present, without a
/// fence.
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
/// If the frame doesn't fit into the format, or if the entry is a leaf at the root level. Also if a leaf would allow no
/// access: a word without rights means a table. Debug builds also panic if the frame isn't aligned to the size of the
/// page.
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
    let frame =
        if entry.contiguous { entry.frame.0 & !NAPOT_BITS | NAPOT_64K } else { entry.frame.0 };
    raw | rights
        | frame << FRAME_SHIFT
        | bit(entry.user, USER)
        | bit(entry.accessed, ACCESSED)
        | bit(entry.dirty, DIRTY)
        | bit(entry.contiguous, NAPOT)
        | u64::from(entry.memory.0) << MEMORY_SHIFT & MEMORY
}

/// Decodes a word of a table at `level`.
///
/// Returns [`Entry::ABSENT`] if the word isn't present.
#[inline]
pub fn decode(raw: u64, _level: Level) -> Entry {
    if raw & PRESENT == 0 {
        return Entry::ABSENT;
    }
    let frame = (raw & FRAME) >> FRAME_SHIFT;
    if raw & (READABLE | WRITABLE | EXECUTABLE) == 0 {
        return Entry { global: raw & GLOBAL != 0, ..Entry::table(Frame(frame)) };
    }
    let contiguous = raw & NAPOT != 0;
    Entry {
        present: true,
        table: false,
        frame: Frame(if contiguous { frame & !NAPOT_BITS } else { frame }),
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
                    Entry { global: entry.global, ..Entry::table(entry.frame) }
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
        let row = Entry { memory: DEVICE, contiguous: true, ..entry };
        assert_eq!(encode(row, Level::LEAF), 0xc000_0000_2008_20d7);
        assert_eq!(encode(Entry::table(Frame(0x99)), Level::ROOT), 0x26401);
    }
}

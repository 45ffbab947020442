//! Entries for the tests of all formats.

use quell::{Entry, Frame, Level};
use std::vec::Vec;

/// Returns tables and leaves with every combination of the attributes that all formats have.
pub(crate) fn all_entries() -> Vec<Entry> {
    (0..128u32)
        .map(|bits| {
            let table = bits & 64 != 0;
            Entry {
                present: true,
                table,
                frame: Frame(7 << 18),
                writable: bits & 1 != 0,
                user: bits & 2 != 0,
                executable: bits & 4 != 0,
                accessed: bits & 8 != 0,
                dirty: bits & 16 != 0 && !table,
                global: bits & 32 != 0,
                ..Entry::ABSENT
            }
        })
        .collect()
}

/// Returns levels at which an entry may occur.
pub(crate) fn levels_of(entry: &Entry) -> [Level; 3] {
    let first = if entry.table { 1 } else { 0 };
    [0, 1, 2].map(|level| Level(first + level))
}

/// Checks that words with bit 0 clear decode as absent at every level: they belong to software.
pub(crate) fn check_absent(decode: impl Fn(u64, Level) -> Entry) {
    for raw in [0, 2, !1u64, 0xdead_beef_0000_0ff0] {
        for level in 0..4 {
            assert_eq!(decode(raw, Level(level)), Entry::ABSENT);
        }
    }
}

//! Random values of every type, for tests that call everything with everything. `quell-arch` uses them, too.
#![allow(dead_code)] // Each test uses a part.

use proptest::prelude::*;
use quell::{Entry, Frame, MemoryType, Page, PageRange, PageSize, Scope};

/// Yields numbers at which arithmetic overflows, and others, many of them below `few`.
pub fn number(few: u64) -> impl Strategy<Value = u64> + Clone {
    prop_oneof![
        4 => 0..few,
        2 => any::<u64>(),
        2 => (0..64u32, -2..3i64).prop_map(|(bit, by)| (1u64 << bit).wrapping_add_signed(by)),
        1 => (0..4u64).prop_map(|below| u64::MAX - below),
    ]
}

/// Yields any range, with numbers as [`number`] yields them.
pub fn range(few: u64) -> impl Strategy<Value = PageRange> {
    let stride = prop_oneof![Just(PageSize::Base), Just(PageSize::Large), Just(PageSize::Huge)];
    (number(few), number(few), stride).prop_map(|(start, pages, stride)| PageRange {
        start: Page(start),
        pages,
        stride,
    })
}

/// Yields either scope.
pub fn scope() -> impl Strategy<Value = Scope> {
    prop_oneof![Just(Scope::Leaf), Just(Scope::Tables)]
}

/// Yields any entry, including combinations of bits that no architecture has.
pub fn entry(few: u64) -> impl Strategy<Value = Entry> {
    let numbers = any::<(u8, u8, u8)>();
    (any::<[bool; 10]>(), number(few), numbers).prop_map(|(bits, frame, (memory, key, special))| {
        Entry {
            present: bits[0],
            table: bits[1],
            frame: Frame(frame),
            writable: bits[2],
            user: bits[3],
            executable: bits[4],
            dirty: bits[5],
            accessed: bits[6],
            global: bits[7],
            encrypted: bits[8],
            contiguous: bits[9],
            memory: MemoryType(memory),
            key,
            special,
        }
    })
}

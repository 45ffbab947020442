//! Whatever the types allow: values at random, for the tests that call everything with everything, here and in the
//! crates beside.
#![allow(dead_code)] // Each test uses a part.

use proptest::prelude::*;
use quell::{Entry, Frame, MemoryType, Page, PageRange, PageSize, Scope};

/// Numbers at which arithmetic goes wrong, and others, many of them below `few`.
pub fn number(few: u64) -> impl Strategy<Value = u64> + Clone {
    prop_oneof![
        4 => 0..few,
        2 => any::<u64>(),
        2 => (0..64u32, -2..3i64).prop_map(|(bit, by)| (1u64 << bit).wrapping_add_signed(by)),
        1 => (0..4u64).prop_map(|below| u64::MAX - below),
    ]
}

/// Any range; its numbers as [`number`] has them.
pub fn range(few: u64) -> impl Strategy<Value = PageRange> {
    let stride = prop_oneof![
        Just(PageSize::Base),
        Just(PageSize::Large),
        Just(PageSize::Huge)
    ];
    (number(few), number(few), stride).prop_map(|(start, pages, stride)| PageRange {
        start: Page(start),
        pages,
        stride,
    })
}

/// Either of them.
pub fn scope() -> impl Strategy<Value = Scope> {
    prop_oneof![Just(Scope::Leaf), Just(Scope::Tables)]
}

/// Any entry, with combinations of bits that no architecture has, too.
pub fn entry(few: u64) -> impl Strategy<Value = Entry> {
    let numbers = any::<(u8, u8, u8)>();
    (any::<[bool; 10]>(), number(few), numbers).prop_map(|(bits, frame, (memory, key, special))| {
        let [
            present,
            table,
            writable,
            user,
            executable,
            dirty,
            accessed,
            global,
            encrypted,
            contiguous,
        ] = bits;
        Entry {
            present,
            table,
            frame: Frame(frame),
            writable,
            user,
            executable,
            dirty,
            accessed,
            global,
            encrypted,
            contiguous,
            memory: MemoryType(memory),
            key,
            special,
        }
    })
}

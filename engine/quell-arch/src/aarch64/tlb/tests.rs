//! Checks operands by decoding them with the manual's formulas.

use super::*;
use quell::Page;
use std::vec::Vec;

const ALL: Operands = Operands { range: true, level_hint: true, wide_addresses: false };
const WIDE: Operands = Operands { wide_addresses: true, ..ALL };

/// Page numbers have 52 bits.
const PAGES: u64 = (1 << 52) - 1;

/// Returns the first page and the number of pages that an operation covers.
fn covered(operation: Operation, stride: u64, with: Operands) -> (u64, u64) {
    // The processor extends the sign of an address.
    let extended = |value: u64, bits: u32| ((value << (64 - bits)) as i64 >> (64 - bits)) as u64;
    match operation {
        Operation::Page(x) => (extended(x, 44) & PAGES, stride),
        Operation::Range(x) => {
            let (scale, num) = (x >> 44 & 3, x >> 39 & 31);
            let unit = if with.wide_addresses { 16 } else { 1 };
            let start = extended(x, 37).wrapping_mul(unit) & PAGES;
            (start, (num + 1) << (5 * scale + 1))
        }
    }
}

#[test]
fn addresses_of_every_width_are_covered_exactly_once() {
    // Starts in the lower and the upper half, with 48 bits and with 52, and across 2^48.
    let starts = [
        0x1,
        0x10,
        (1 << 36) - 7,
        1 << 36,
        (1 << 39) + 16,
        PAGES - (1 << 35),
        PAGES - (1 << 39) + 1,
        PAGES - 5000,
    ];
    for with in [ALL, WIDE, Operands::default()] {
        for start in starts {
            for pages in [1, 2, 15, 16, 33, 4000] {
                let range = PageRange::base(Page(start), pages);
                let mut next = start;
                for one in operations(Tag(9), range, Scope::Leaf, with) {
                    let (first, count) = covered(one, 1, with);
                    assert_eq!(first, next, "{pages} pages from {start:#x}, {with:?}");
                    next += count;
                }
                assert_eq!(next, start + pages);
            }
        }
    }
    // Range operations are used wherever they can start.
    let count = |start, with| {
        let range = PageRange::base(Page(start), 4000);
        operations(Tag(9), range, Scope::Leaf, with).count()
    };
    assert!(count(0x10, ALL) < 6 && count(0x10, WIDE) < 6 && count(1 << 36, WIDE) < 6);
    assert!(count(0x11, WIDE) < 6 + 15);
    assert_eq!(count(1 << 36, ALL), 4000);
}

#[test]
fn every_range_is_covered_exactly_once() {
    for stride in [PageSize::Base, PageSize::Large] {
        for strides in (1..200).chain([511, 512, 513, 2047, 65_537, 2_097_151]) {
            let pages = strides * stride.pages();
            let range = PageRange { start: Page(0x4_0000), pages, stride };
            let mut next = range.start.0;
            let mut count = 0;
            for one in operations(Tag(9), range, Scope::Leaf, ALL) {
                let (start, pages) = covered(one, stride.pages(), ALL);
                assert_eq!(start, next, "{strides} strides");
                next += pages;
                count += 1;
            }
            assert_eq!(next, range.end().0, "{strides} strides");
            // One operation of the largest scale covers up to 2^21 pages. Each scale adds at most one operation, and a
            // single page may remain.
            assert!(count <= 5 + (pages >> 21), "{count} operations, {strides} strides");
        }
    }
}

#[test]
fn without_ranges_there_is_one_operation_per_stride() {
    let range = PageRange { start: Page(512), pages: 512 * 4, stride: PageSize::Large };
    let all: Vec<_> = operations(Tag(1), range, Scope::Leaf, Operands::default()).collect();
    let pages = [512, 1024, 1536, 2048].map(|page| Operation::Page(1 << 48 | page));
    assert_eq!(all, pages);
}

//! Compares the entries that an invalidation of a range drops with the manuals.

use super::*;
use quell::PageSize;

fn leaf(page: u64, level: u8) -> Leaf {
    Leaf { level, ..Leaf::junk(1, page, PRESENT, (0, 0)) }
}

#[test]
fn an_invalidation_drops_what_translates_the_pages_that_it_names() {
    let leaves = [
        leaf(0, 0),
        leaf(1, 0),
        leaf(511, 0),
        leaf(512, 0),
        leaf(1024, 0),
        leaf(0, 1),
        leaf(512, 1),
        leaf(1024, 1),
        leaf(0, 2),
        leaf(512 * 512, 2),
    ];
    for stride in [PageSize::Base, PageSize::Large, PageSize::Huge] {
        for start in [0, 1, 511, 512, 513, 1024, 512 * 512] {
            for strides in [1, 2, 3] {
                let range = PageRange {
                    start: quell::Page(start),
                    pages: strides * stride.pages(),
                    stride,
                };
                for leaf in &leaves {
                    // Hardware invalidates one page after the other.
                    let named = (0..strides).map(|at| start + at * stride.pages());
                    let translated = named.clone().any(|page| leaf.covers(page));
                    let same_size = leaf.pages() == stride.pages();
                    let told = same_size && start % stride.pages() == 0;
                    let what = format!("{leaf:?} by {range:?}");
                    assert_eq!(reaches(range, leaf, false), translated, "{what}");
                    assert_eq!(reaches(range, leaf, true), translated && told, "{what}");
                }
            }
        }
    }
}

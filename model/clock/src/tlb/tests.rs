//! Geometry, replacement, tags, invalidation and the walker caches.

use super::array::Replacement;
use super::*;
use crate::file::built_in;

fn entry(size: PageSize) -> Translation {
    Translation { size, ..Translation::default() }
}

fn tlb() -> Tlb {
    let file = built_in("haswell-server").expect("built in");
    Tlb::new(&Costs::new(&file))
}

const TAG: Tag = Tag(1);

#[test]
fn a_set_holds_as_many_as_it_has_ways() {
    for replacement in [Replacement::Lru, Replacement::PseudoLru] {
        // 16 sets of 4 ways: pages 16 apart share a set.
        let mut array = Array::new(64, 4, replacement);
        for number in 0..4 {
            array.add(key(Page(16 * number), PageSize::Base, TAG), &entry(PageSize::Base));
        }
        let held = |array: &mut Array<Translation>, number: u64| {
            array.lookup(key(Page(16 * number), PageSize::Base, TAG)).is_some()
        };
        assert!((0..4).all(|number| held(&mut array, number)));
        array.add(key(Page(1), PageSize::Base, TAG), &entry(PageSize::Base));
        assert!((0..4).all(|number| held(&mut array, number)), "another set");
        array.add(key(Page(16 * 4), PageSize::Base, TAG), &entry(PageSize::Base));
        assert_eq!((0..5).filter(|&number| held(&mut array, number)).count(), 4);
        assert!(held(&mut array, 4), "the new one stays");
    }
}

#[test]
fn lru_drops_the_least_recently_used() {
    let mut array = Array::new(4, 4, Replacement::Lru);
    for page in 0..4 {
        array.add(key(Page(page), PageSize::Base, TAG), &entry(PageSize::Base));
    }
    for page in [2, 0, 3] {
        array.lookup(key(Page(page), PageSize::Base, TAG));
    }
    array.add(key(Page(9), PageSize::Base, TAG), &entry(PageSize::Base));
    assert!(array.lookup(key(Page(1), PageSize::Base, TAG)).is_none());
}

#[test]
fn pseudo_lru_never_drops_the_most_recently_used() {
    for ways in [2, 3, 4, 16, 64, 100] {
        let mut array = Array::new(ways, ways, Replacement::PseudoLru);
        for page in 0..1000 {
            array.add(key(Page(page), PageSize::Base, TAG), &entry(PageSize::Base));
            let held = |page| array.find(key(Page(page), PageSize::Base, TAG)).is_some();
            assert!(held(page));
            assert!(page == 0 || held(page - 1), "{ways} ways, page {page}");
        }
        assert_eq!(array.iter().count(), ways);
    }
}

#[test]
fn guesses_of_ways_change_nothing() {
    // 64 ways use hints: pages that share a hint must be distinguished.
    let mut array = Array::new(64, 64, Replacement::Lru);
    for page in 0..64 {
        let mut with_frame = entry(PageSize::Base);
        with_frame.frame = Frame(1000 + page);
        array.add(key(Page(page * 257), PageSize::Base, TAG), &with_frame);
    }
    for page in (0..64).rev() {
        let at = array.lookup(key(Page(page * 257), PageSize::Base, TAG));
        assert_eq!(at.map(|at| array.entry(at).frame), Some(Frame(1000 + page)));
    }
}

#[test]
fn levels_hold_what_their_geometry_says() {
    let mut tlb = tlb();
    for page in 0..1024 {
        tlb.fill(Page(page), TAG, &entry(PageSize::Base));
    }
    let first = (0..1024).filter(|&page| tlb.lookup_first(Page(page), TAG).is_some()).count();
    assert_eq!(first, 64);
    let second = (0..1024).filter(|&page| tlb.lookup_second(Page(page), TAG).is_some()).count();
    assert_eq!(second, 1024);
    // One entry too many for a full set.
    tlb.fill(Page(1024), TAG, &entry(PageSize::Base));
    let second = (0..1025).filter(|&page| tlb.lookup_second(Page(page), TAG).is_some()).count();
    assert_eq!(second, 1024);
}

#[test]
fn sizes_live_beside_each_other() {
    let mut tlb = tlb();
    for (page, size) in [
        (Page(5), PageSize::Base),
        (Page(512 * 7), PageSize::Large),
        (Page(512 * 512 * 3), PageSize::Huge),
    ] {
        tlb.fill(page, TAG, &entry(size));
        let inside = page.plus(size.pages() - 1);
        let place = tlb.lookup_first(inside, TAG).expect("covers its last page");
        assert_eq!(tlb.at(place).size, size);
        assert!(tlb.lookup_first(page.plus(size.pages()), TAG).is_none());
    }
}

#[test]
fn tags_keep_spaces_apart_and_survive_each_others_flush() {
    let mut tlb = tlb();
    for tag in 1..4 {
        tlb.fill(Page(5), Tag(tag), &entry(PageSize::Base));
    }
    tlb.drop_tag(Tag(2));
    let held = [1, 2, 3].map(|tag| tlb.lookup_first(Page(5), Tag(tag)).is_some());
    assert_eq!(held, [true, false, true]);
    assert!(tlb.lookup_second(Page(5), Tag(2)).is_none());
    tlb.drop_all();
    assert_eq!(tlb.iter().count(), 0);
}

#[test]
fn ranges_drop_exactly_what_they_cover() {
    for pages in [1, 8, 5000] {
        let mut tlb = tlb();
        for page in 90..400 {
            tlb.fill(Page(page), TAG, &entry(PageSize::Base));
            tlb.fill(Page(page), Tag(2), &entry(PageSize::Base));
        }
        let range = PageRange::base(Page(100), pages);
        tlb.drop_range(TAG, range, Scope::Leaf, false);
        for page in 90..400 {
            let gone = tlb.lookup_second(Page(page), TAG).is_none();
            assert_eq!(gone, range.contains(Page(page)), "page {page} of {pages}");
            assert!(tlb.lookup_second(Page(page), Tag(2)).is_some());
        }
    }
}

#[test]
fn an_invalidation_drops_what_translates_the_pages_that_it_names() {
    let sizes = [PageSize::Base, PageSize::Large, PageSize::Huge];
    let starts = [0, 1, 511, 512, 513, 1024, 512 * 512];
    for (stride, start) in sizes.into_iter().flat_map(|s| starts.map(|at| (s, at))) {
        for (strides, hinted) in [(1, false), (3, false), (1, true), (3, true)] {
            let mut tlb = tlb();
            let entries = [
                (0, PageSize::Base),
                (1, PageSize::Base),
                (513, PageSize::Base),
                (1024, PageSize::Base),
                (1535, PageSize::Base),
                (2 * 512, PageSize::Large),
                (3 * 512, PageSize::Large),
                (0, PageSize::Huge),
                (512 * 512, PageSize::Huge),
            ];
            for (page, size) in entries {
                tlb.fill(Page(page), TAG, &entry(size));
            }
            let range = PageRange { start: Page(start), pages: strides * stride.pages(), stride };
            tlb.drop_range(TAG, range, Scope::Leaf, hinted);
            let left: Vec<_> = tlb.iter().map(|(page, _, held)| (page, held.size)).collect();
            for (page, size) in entries {
                // By the manuals, one invalidation after the other.
                let named = (0..strides).map(|at| start + at * stride.pages());
                let reached = |named: u64| (page..page + size.pages()).contains(&named);
                let told = !hinted || size == stride && start.is_multiple_of(stride.pages());
                let goes = told && named.clone().any(reached);
                assert_eq!(
                    !left.contains(&(Page(page), size)),
                    goes,
                    "{size:?} at {page}, {strides} {stride:?} strides from {start}, {hinted}"
                );
            }
        }
    }
}

#[test]
fn large_strides_drop_the_paths_to_the_pages_that_they_name() {
    let mut tlb = tlb();
    let pages = [0, 512, 1024].map(Page);
    for page in pages {
        tlb.walk_seen(page, TAG, 0, Frame(10 + page.0), 0);
    }
    let range = PageRange { start: Page(512), pages: 1024, stride: PageSize::Large };
    tlb.drop_range(TAG, range, Scope::Tables, false);
    let held = pages.map(|page| tlb.walk_start(page, TAG).is_some());
    assert_eq!(held, [true, false, false]);
    // A stride of 1 GB names one table in it.
    tlb.walk_seen(Page(512), TAG, 0, Frame(11), 0);
    tlb.drop_range(TAG, PageRange::one(Page(0), PageSize::Huge), Scope::Tables, false);
    let held = pages.map(|page| tlb.walk_start(page, TAG).is_some());
    assert_eq!(held, [false, true, false]);
}

#[test]
fn walker_caches_start_below_the_root_and_forget_by_scope() {
    let mut tlb = tlb();
    let page = Page(3 << 27 | 5 << 18 | 6 << 9 | 7);
    assert!(tlb.walk_start(page, TAG).is_none());
    for (level, table) in [(2, Frame(30)), (1, Frame(20)), (0, Frame(10))] {
        tlb.walk_seen(page, TAG, level, table, 0);
        let (found, entry) = tlb.walk_start(page, TAG).expect("known");
        assert_eq!((found, entry.table), (level, table));
    }
    // A neighbour under the same 1 GB starts one level up, another tag at the root.
    let (level, _) = tlb.walk_start(page.plus(512), TAG).expect("known");
    assert_eq!(level, 1);
    assert!(tlb.walk_start(page, Tag(2)).is_none());
    tlb.drop_range(TAG, PageRange::base(page, 1), Scope::Leaf, false);
    assert_eq!(tlb.walk_start(page, TAG).map(|(level, _)| level), Some(0));
    tlb.drop_range(TAG, PageRange::base(page, 1), Scope::Tables, false);
    assert!(tlb.walk_start(page, TAG).is_none());
}

#[test]
fn walker_caches_replace_the_oldest() {
    let mut tlb = tlb();
    for number in 0..33u64 {
        tlb.walk_seen(Page(number << 9), TAG, 0, Frame(number), 0);
    }
    assert!(tlb.walk_start(Page(0), TAG).is_none());
    assert!((1..33).all(|number| tlb.walk_start(Page(number << 9), TAG).is_some()));
}

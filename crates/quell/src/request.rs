//! What to invalidate: a lattice `Empty ⊑ Ranges ⊑ Full`.
//!
//! Requests only grow. Two of them always have one that covers both ([`Request::merge`]), in the
//! worst case [`Request::Full`]; the scope grows with them from leaf entries to page-table pages.
//! `Empty` is a value of its own, never an empty list of ranges, so "nothing" and "everything"
//! cannot be confused.

use crate::addr::{Page, PageRange, PageSize};
use crate::hardware::Scope;

/// How many ranges a request holds before it becomes full. Three fit, with the rest of a request,
/// into one cache line of the target's inbox.
pub const RANGES: usize = 3;

/// A few ranges of one address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ranges {
    list: [PageRange; RANGES],
    count: u8,
}

impl Ranges {
    /// The ranges.
    #[inline]
    pub fn as_slice(&self) -> &[PageRange] {
        &self.list[..self.count as usize]
    }
}

/// What to invalidate in one address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Request {
    /// Nothing.
    #[default]
    Empty,
    /// A few ranges.
    Ranges(Ranges, Scope),
    /// Everything of the space.
    Full(Scope),
}

impl Request {
    /// The request for one range; nothing if the range is empty.
    #[inline]
    pub fn range(range: PageRange, scope: Scope) -> Self {
        if range.pages == 0 {
            return Request::Empty;
        }
        let mut list = [PageRange::default(); RANGES];
        list[0] = range;
        Request::Ranges(Ranges { list, count: 1 }, scope)
    }

    /// Leaf entries alone, or page-table pages too.
    pub fn scope(&self) -> Scope {
        match self {
            Request::Empty => Scope::Leaf,
            Request::Ranges(_, scope) | Request::Full(scope) => *scope,
        }
    }

    /// The least request of this kind that covers both.
    #[must_use]
    pub fn merge(self, other: Request) -> Request {
        let scope = self.scope().max(other.scope());
        match (self, other) {
            (Request::Empty, some) | (some, Request::Empty) => some,
            (Request::Full(_), _) | (_, Request::Full(_)) => Request::Full(scope),
            (Request::Ranges(mut mine, _), Request::Ranges(theirs, _)) => {
                for &range in theirs.as_slice() {
                    if !mine.add(range) {
                        return Request::Full(scope);
                    }
                }
                Request::Ranges(mine, scope)
            }
        }
    }

    /// How many single invalidations the ranges take; `None` for a full request.
    pub fn strides(&self) -> Option<u64> {
        match self {
            Request::Empty => Some(0),
            Request::Ranges(ranges, _) => {
                Some(ranges.as_slice().iter().map(|range| range.strides()).sum())
            }
            Request::Full(_) => None,
        }
    }

    /// This request, or the full one if more than `full_above` single invalidations would be
    /// needed or a range does not fit into its packed form.
    #[must_use]
    pub fn limited(self, full_above: u64) -> Request {
        match self {
            Request::Ranges(_, scope)
                if self
                    .strides()
                    .is_none_or(|n| n > full_above.min(MAX_PACKED_STRIDES)) =>
            {
                Request::Full(scope)
            }
            _ => self,
        }
    }

    /// Whether the request covers `page`.
    pub fn covers(&self, page: Page) -> bool {
        match self {
            Request::Empty => false,
            Request::Ranges(ranges, _) => ranges.as_slice().iter().any(|r| r.contains(page)),
            Request::Full(_) => true,
        }
    }
}

impl Ranges {
    /// Adds a range, joined to one that it touches; `false` if there is no room.
    fn add(&mut self, range: PageRange) -> bool {
        for mine in &mut self.list[..self.count as usize] {
            let touches = range.start.0 <= mine.end().0 && mine.start.0 <= range.end().0;
            if mine.stride == range.stride && touches {
                let end = mine.end().0.max(range.end().0);
                mine.start = Page(mine.start.0.min(range.start.0));
                mine.pages = end - mine.start.0;
                return true;
            }
        }
        if (self.count as usize) < RANGES {
            self.list[self.count as usize] = range;
            self.count += 1;
            return true;
        }
        false
    }
}

/// The longest range, in strides, that fits into a packed word.
const MAX_PACKED_STRIDES: u64 = (1 << 16) - 1;

const PAGE_BITS: u32 = 45;

/// Packs a range into a word: 45 bits of page number (57-bit addresses), 16 bits of strides, 2 bits
/// of stride. The range must have passed [`Request::limited`].
pub(crate) fn pack(range: PageRange) -> u64 {
    let page = range.start.0 & ((1 << PAGE_BITS) - 1);
    let stride = match range.stride {
        PageSize::Base => 0,
        PageSize::Large => 1,
        PageSize::Huge => 2,
    };
    page | range.strides() << PAGE_BITS | stride << (PAGE_BITS + 16)
}

/// Undoes [`pack`]; addresses of the upper half come back canonical.
pub(crate) fn unpack(word: u64) -> PageRange {
    let page = (word << (64 - PAGE_BITS)) as i64 >> (64 - PAGE_BITS);
    let stride = match word >> (PAGE_BITS + 16) & 3 {
        0 => PageSize::Base,
        1 => PageSize::Large,
        _ => PageSize::Huge,
    };
    let strides = word >> PAGE_BITS & MAX_PACKED_STRIDES;
    PageRange {
        start: Page(page as u64 & (u64::MAX >> 12)),
        pages: strides * stride.pages(),
        stride,
    }
}

/// Rebuilds a request from packed ranges.
pub(crate) fn from_packed(words: impl Iterator<Item = u64>, scope: Scope) -> Request {
    let mut ranges = Ranges {
        list: [PageRange::default(); RANGES],
        count: 0,
    };
    // Every handler does this: no request is merged, and so moved, for each word.
    for range in words.map(unpack).filter(|range| range.pages != 0) {
        if !ranges.add(range) {
            return Request::Full(scope);
        }
    }
    match ranges.count {
        0 => Request::Empty,
        _ => Request::Ranges(ranges, scope),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_range() -> impl Strategy<Value = PageRange> {
        (
            0u64..1 << 20,
            1u64..200,
            prop_oneof![Just(PageSize::Base), Just(PageSize::Large)],
        )
            .prop_map(|(page, strides, stride)| PageRange {
                start: Page(page * stride.pages()),
                pages: strides * stride.pages(),
                stride,
            })
    }

    fn any_request() -> impl Strategy<Value = Request> {
        let scope = prop_oneof![Just(Scope::Leaf), Just(Scope::Tables)];
        (proptest::collection::vec(any_range(), 0..5), scope).prop_map(|(ranges, scope)| {
            ranges.into_iter().fold(Request::Empty, |request, range| {
                request.merge(Request::range(range, scope))
            })
        })
    }

    fn below(low: Request, high: Request) -> bool {
        let pages_covered = match low {
            Request::Empty => true,
            Request::Full(_) => matches!(high, Request::Full(_)),
            Request::Ranges(ranges, _) => ranges
                .as_slice()
                .iter()
                .all(|r| high.covers(r.start) && high.covers(Page(r.end().0 - 1))),
        };
        pages_covered && low.scope() <= high.scope()
    }

    proptest! {
        #[test]
        fn merge_is_an_upper_bound(a in any_request(), b in any_request()) {
            let both = a.merge(b);
            prop_assert!(below(a, both) && below(b, both));
        }

        #[test]
        fn merge_is_idempotent_and_has_a_unit(a in any_request()) {
            prop_assert!(below(a.merge(a), a) && below(a, a.merge(a)));
            prop_assert_eq!(a.merge(Request::Empty), a);
            prop_assert_eq!(Request::Empty.merge(a), a);
        }

        #[test]
        fn packing_keeps_a_range(range in any_range()) {
            prop_assert_eq!(unpack(pack(range)), range);
        }

        #[test]
        fn limited_covers_as_much(a in any_request(), ceiling in 0u64..600) {
            prop_assert!(below(a, a.limited(ceiling)));
        }
    }

    #[test]
    fn addresses_of_the_upper_half_survive_packing() {
        let range = PageRange::base(Page::containing(0xffff_8000_1234_5000), 7);
        assert_eq!(unpack(pack(range)), range);
    }
}

//! Requests: the translations to invalidate, as a lattice `Empty ⊑ Ranges ⊑ Full`.
//!
//! Requests only grow. For any two there's one that covers both ([`Request::merge`]), in the worst case
//! [`Request::Full`]. The scope grows, too, from leaf entries to page-table pages. `Empty` is a separate value, never
//! an empty list of ranges, so "nothing" and "everything" can't be confused.

use crate::addr::{Page, PageRange, PageSize};
use crate::hardware::Scope;
use crate::stack::CopyList;
use core::fmt;

/// The maximum number of ranges in a request. With one more it becomes full.
///
/// Three ranges fit, with the rest of a request, into one cache line of the target's inbox. Eight more fit into the
/// next line, which requests of three or fewer ranges don't touch.
pub const RANGES: usize = 11;

/// Lists the ranges of a [`Request`], at most 11.
#[derive(Clone, Copy)]
pub struct Ranges {
    /// The ranges, packed as in the words of an inbox.
    words: CopyList<u64, RANGES>,
}

impl Ranges {
    /// Makes an empty list. This is a function, because each use of a constant would zero the whole list.
    #[inline]
    fn none() -> Self {
        Ranges { words: CopyList::new() }
    }

    /// Iterates over the ranges.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = PageRange> + '_ {
        self.packed().iter().copied().map(unpack)
    }

    #[inline]
    pub(crate) fn packed(&self) -> &[u64] {
        self.words.as_slice()
    }
}

impl PartialEq for Ranges {
    fn eq(&self, other: &Self) -> bool {
        self.packed() == other.packed()
    }
}

impl Eq for Ranges {}

impl fmt::Debug for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Names the translations to invalidate in one address space.
///
/// # Examples
///
/// ```
/// use quell::{Page, PageRange, Request, Scope};
/// let first = Request::range(PageRange::base(Page(5), 1), Scope::Leaf);
/// let second = Request::range(PageRange::base(Page(6), 1), Scope::Leaf);
/// let both = first.merge(second);
/// assert!(both.covers(Page(5)) && both.covers(Page(6)));
/// assert_eq!(both.strides(), Some(2));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Request {
    /// No translation.
    #[default]
    Empty,
    /// A few ranges.
    Ranges(Ranges, Scope),
    /// All translations of the space.
    Full(Scope),
}

impl Request {
    /// Makes a request for one range.
    ///
    /// Returns [`Request::Empty`] for an empty range, and [`Request::Full`] for one of more than 65535 strides
    /// (entries).
    #[inline]
    pub fn range(range: PageRange, scope: Scope) -> Self {
        if range.pages == 0 {
            return Request::Empty;
        }
        if range.strides() > MAX_PACKED_STRIDES {
            return Request::Full(scope);
        }
        let mut ranges = Ranges::none();
        ranges.words.push(pack(range));
        Request::Ranges(ranges, scope)
    }

    /// Makes the request for a range that isn't empty, or for everything.
    ///
    /// `None` means everything.
    #[inline]
    pub(crate) fn of(range: Option<PageRange>, scope: Scope) -> Self {
        match range {
            Some(range) => Request::range(range, scope),
            None => Request::Full(scope),
        }
    }

    /// Returns a reference to the request for everything.
    #[inline]
    pub(crate) const fn full(scope: Scope) -> &'static Request {
        match scope {
            Scope::Leaf => &Request::Full(Scope::Leaf),
            Scope::Tables => &Request::Full(Scope::Tables),
        }
    }

    /// Becomes the request that these words of an inbox encode, at most [`RANGES`] of them.
    #[inline]
    pub(crate) fn become_packed(
        &mut self,
        count: usize,
        word: impl FnMut(usize) -> u64,
        scope: Scope,
    ) {
        if count == 0 {
            *self = Request::Empty;
            return;
        }
        *self = Request::Ranges(Ranges::none(), scope);
        if let Request::Ranges(ranges, _) = self {
            let mut words = ranges.words.refill();
            (0..count).map(word).for_each(|word| words.push(word));
        }
    }

    /// Returns the scope: leaf entries alone, or page-table pages, too. It's [`Scope::Leaf`] for [`Request::Empty`].
    pub fn scope(&self) -> Scope {
        match self {
            Request::Empty => Scope::Leaf,
            Request::Ranges(_, scope) | Request::Full(scope) => *scope,
        }
    }

    /// Returns the packed range if the request is a single range.
    ///
    /// Returns an inner `None` if it's everything, and the outer `None` if it's empty or several ranges.
    #[inline]
    pub(crate) fn lone(&self) -> Option<Option<u64>> {
        match self {
            Request::Full(_) => Some(None),
            Request::Ranges(ranges, _) => match ranges.packed() {
                [word] => Some(Some(*word)),
                _ => None,
            },
            Request::Empty => None,
        }
    }

    /// Grows in place to cover a range, or everything if `range` is `None`.
    ///
    /// Becomes the smallest request that covers both, with at most `most` ranges.
    #[inline]
    pub(crate) fn grow(&mut self, range: Option<PageRange>, scope: Scope, most: usize) {
        let whole = scope.max(self.scope());
        match (&mut *self, range) {
            (Request::Empty, range) => *self = Request::of(range, scope),
            (Request::Ranges(ranges, own), Some(range)) => {
                if ranges.add(range, most) {
                    *own = whole;
                } else {
                    *self = Request::Full(whole);
                }
            }
            (this, _) => *this = Request::Full(whole),
        }
    }

    /// Grows to cover another request, like [`Request::grow`].
    pub(crate) fn include(&mut self, other: &Request, most: usize) {
        match other {
            Request::Empty => {}
            Request::Full(scope) => self.grow(None, *scope, most),
            Request::Ranges(ranges, scope) => {
                ranges.iter().for_each(|range| self.grow(Some(range), *scope, most));
            }
        }
    }

    /// Merges two requests into one that covers both.
    ///
    /// If that takes more than 11 ranges, or one of more than 65535 strides, the result is [`Request::Full`].
    #[must_use]
    pub fn merge(mut self, other: Request) -> Request {
        self.include(&other, RANGES);
        self
    }

    /// Returns the number of single invalidations that the ranges need, or `None` for [`Request::Full`].
    #[inline]
    pub fn strides(&self) -> Option<u64> {
        match self {
            Request::Empty => Some(0),
            Request::Ranges(ranges, _) => {
                Some(ranges.packed().iter().map(|&word| strides(word)).sum())
            }
            Request::Full(_) => None,
        }
    }

    /// Returns whether the ranges take more than `full_above` single invalidations.
    #[inline]
    pub(crate) fn exceeds(&self, full_above: u64) -> bool {
        self.strides().is_some_and(|strides| strides > full_above)
    }

    /// Becomes the full request if it exceeds `full_above`.
    #[inline]
    pub(crate) fn limit(&mut self, full_above: u64) {
        if self.exceeds(full_above) {
            *self = Request::Full(self.scope());
        }
    }

    /// Returns whether the request covers the translation of `page`.
    pub fn covers(&self, page: Page) -> bool {
        match self {
            Request::Empty => false,
            Request::Ranges(ranges, _) => ranges.iter().any(|range| range.contains(page)),
            Request::Full(_) => true,
        }
    }
}

impl Ranges {
    /// Adds a range of base pages that lies behind the last one.
    ///
    /// Pages are mostly reported in ascending order. Returns `false`, and does nothing, if the range isn't behind
    /// the last one, or if there would be more than `most` ranges.
    #[inline]
    pub(crate) fn follow(&mut self, range: PageRange, most: usize) -> bool {
        let room = self.packed().len() < most.min(RANGES);
        let Some(last) = self.words.as_mut_slice().last_mut() else {
            return false;
        };
        // For base pages the bits above the strides are zero, and a stride is a page. A range in larger strides looks
        // like a long one here, so nothing joins it. A separate range is correct wherever such a range ends.
        let held = *last >> PAGE_BITS;
        let start = range.start.0 & PAGE_MASK;
        let end = (*last & PAGE_MASK) + held;
        if range.stride != PageSize::Base || start < end || range.pages > MAX_PACKED_STRIDES {
            return false;
        }
        if start > end {
            if room {
                self.words.push(start | range.pages << PAGE_BITS);
            }
            return room;
        }
        let fits = held + range.pages <= MAX_PACKED_STRIDES;
        if fits {
            *last += range.pages << PAGE_BITS;
        }
        fits
    }

    /// Adds a range, and joins it to one that it touches.
    ///
    /// Returns `false` if there's no room, or if it's too long to be packed.
    #[inline]
    fn add(&mut self, range: PageRange, most: usize) -> bool {
        if range.strides() > MAX_PACKED_STRIDES {
            return false;
        }
        let added = pack(range);
        // Check the last range first: pages are mostly reported in ascending order.
        for word in self.words.as_mut_slice().iter_mut().rev() {
            if touch(*word, added) {
                let coalesced = join(*word, added);
                if let Some(coalesced) = coalesced {
                    *word = coalesced;
                }
                return coalesced.is_some();
            }
        }
        let room = self.packed().len() < most.min(RANGES);
        if room {
            self.words.push(added);
        }
        room
    }
}

/// The longest range, in strides, that fits into a packed word.
pub(crate) const MAX_PACKED_STRIDES: u64 = (1 << 16) - 1;

const PAGE_BITS: u32 = 45;
const PAGE_MASK: u64 = (1 << PAGE_BITS) - 1;
/// The position of the bits that hold the size of a stride, as a level above base pages.
const SIZE_SHIFT: u32 = PAGE_BITS + 16;

/// Returns the page after the last one of a packed range. It may need one more bit than a page number.
#[inline]
fn end(word: u64) -> u64 {
    (word & PAGE_MASK) + (strides(word) << (9 * (word >> SIZE_SHIFT)))
}

/// Returns whether two packed ranges have strides of the same size, and meet or overlap.
#[inline]
fn touch(one: u64, other: u64) -> bool {
    one >> SIZE_SHIFT == other >> SIZE_SHIFT
        && one & PAGE_MASK <= end(other)
        && other & PAGE_MASK <= end(one)
}

/// Returns the packed range that covers two that touch, or `None` if it's too long.
#[inline]
fn join(one: u64, other: u64) -> Option<u64> {
    let size = one >> SIZE_SHIFT;
    let start = (one & PAGE_MASK).min(other & PAGE_MASK);
    // If one range begins in the middle of a stride of the other, covering the end takes one more stride.
    let strides = (end(one).max(end(other)) - start).div_ceil(1 << (9 * size));
    (strides <= MAX_PACKED_STRIDES).then_some(start | strides << PAGE_BITS | size << SIZE_SHIFT)
}

/// Packs a range into a word.
///
/// The word has 45 bits of page number (57-bit addresses), 16 bits of strides and 2 bits for the size of a stride. The
/// range has at most [`MAX_PACKED_STRIDES`].
#[inline]
pub(crate) fn pack(range: PageRange) -> u64 {
    let page = range.start.0 & PAGE_MASK;
    page | range.strides() << PAGE_BITS | (range.stride as u64) << SIZE_SHIFT
}

/// Returns the number of strides of a packed range.
#[inline]
pub(crate) fn strides(word: u64) -> u64 {
    word >> PAGE_BITS & MAX_PACKED_STRIDES
}

/// Unpacks a range. Addresses of the upper half come back canonical.
#[inline]
pub(crate) fn unpack(word: u64) -> PageRange {
    const SIZES: [PageSize; 1 << (64 - SIZE_SHIFT)] = {
        let mut sizes = [PageSize::Huge; 1 << (64 - SIZE_SHIFT)];
        (sizes[0], sizes[1]) = (PageSize::Base, PageSize::Large);
        sizes
    };
    let page = (word << (64 - PAGE_BITS)) as i64 >> (64 - PAGE_BITS);
    let stride = SIZES[(word >> SIZE_SHIFT) as usize];
    PageRange {
        start: Page(page as u64 & (u64::MAX >> 12)),
        pages: strides(word) * stride.pages(),
        stride,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_range() -> impl Strategy<Value = PageRange> {
        (0u64..1 << 20, 1u64..200, prop_oneof![Just(PageSize::Base), Just(PageSize::Large)])
            .prop_map(|(page, strides, stride)| PageRange {
                start: Page(page * stride.pages()),
                pages: strides * stride.pages(),
                stride,
            })
    }

    fn any_request() -> impl Strategy<Value = Request> {
        let scope = prop_oneof![Just(Scope::Leaf), Just(Scope::Tables)];
        (proptest::collection::vec(any_range(), 0..5), scope).prop_map(|(ranges, scope)| {
            ranges
                .into_iter()
                .fold(Request::Empty, |request, range| request.merge(Request::range(range, scope)))
        })
    }

    fn below(low: Request, high: Request) -> bool {
        let pages_covered = match low {
            Request::Empty => true,
            Request::Full(_) => matches!(high, Request::Full(_)),
            Request::Ranges(ranges, _) => {
                ranges.iter().all(|r| high.covers(r.start) && high.covers(Page(r.end().0 - 1)))
            }
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
            prop_assert_eq!(super::strides(pack(range)), range.strides());
        }

        #[test]
        fn a_limited_request_covers_as_much(a in any_request(), ceiling in 0u64..600) {
            let mut limited = a;
            limited.limit(ceiling);
            prop_assert!(below(a, limited));
            prop_assert!(limited.strides().is_none_or(|strides| strides <= ceiling));
        }

        #[test]
        fn no_more_ranges_than_allowed(pages in proptest::collection::vec(0u64..60, 1..40), most in 0..=RANGES + 2) {
            let mut request = Request::Empty;
            for page in &pages {
                request.grow(Some(PageRange::base(Page(*page), 1)), Scope::Leaf, most);
                if let Request::Ranges(ranges, _) = &request {
                    prop_assert!(ranges.iter().len() <= most.clamp(1, RANGES));
                }
            }
            prop_assert!(pages.iter().all(|page| request.covers(Page(*page))));
        }

        #[test]
        fn what_follows_is_covered(ranges in proptest::collection::vec((any_range(), any::<bool>()), 1..20), most in 0..=RANGES + 2) {
            let mut request = Request::range(ranges[0].0, Scope::Leaf);
            for (range, tables) in &ranges {
                let scope = if *tables { Scope::Tables } else { Scope::Leaf };
                let before = request;
                let Request::Ranges(held, own) = &mut request else { unreachable!("it was a range") };
                if *own != scope || !held.follow(*range, most) {
                    prop_assert_eq!(before, request);
                    continue;
                }
                prop_assert!(below(before, request) && below(Request::range(*range, scope), request));
                prop_assert_eq!(request.strides(), Some(before.strides().unwrap_or(0) + range.strides()));
                let Request::Ranges(held, _) = &request else { unreachable!("it was a range") };
                prop_assert!(held.iter().len() <= most.clamp(1, RANGES));
            }
        }
    }

    #[test]
    fn pages_in_order_are_one_range_and_scattered_ones_are_kept_apart() {
        let grown = |pages: &mut dyn Iterator<Item = u64>| {
            pages.fold(Request::Empty, |mut request, page| {
                request.grow(Some(PageRange::base(Page(page), 1)), Scope::Leaf, RANGES);
                request
            })
        };
        let range = Request::range(PageRange::base(Page(0), 512), Scope::Leaf);
        assert_eq!(grown(&mut (0..512)), range);
        let scattered = |count: u64| grown(&mut (0..count).map(|page| 2 * page));
        assert_eq!(scattered(11).strides(), Some(11));
        assert_eq!(scattered(12), Request::Full(Scope::Leaf));
    }

    #[test]
    fn addresses_of_the_upper_half_survive_packing() {
        let range = PageRange::base(Page::containing(0xffff_8000_1234_5000), 7);
        assert_eq!(unpack(pack(range)), range);
    }
}

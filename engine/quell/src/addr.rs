//! Names for memory: virtual pages, physical frames, page sizes, extents and ranges.
//!
//! All numbers count base pages of 4096 bytes, whatever the size of the mapping. Virtual numbers ([`Page`]) and
//! physical ones ([`Frame`]) are different types, so they do not mix. None of these types owns memory:
//! [`Batch`](crate::batch::Batch) and the embedder's frame allocator own frames.

/// Bytes in a base page.
pub const PAGE_BYTES: u64 = 4096;

/// A virtual page number: a virtual address divided by 4096.
///
/// # Examples
///
/// ```
/// use quell::Page;
/// assert_eq!(Page::containing(0x5123), Page(5));
/// assert_eq!(Page(5).plus(1).address(), 0x6000);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Page(pub u64);

/// A physical frame number: a physical address divided by 4096.
///
/// # Examples
///
/// ```
/// use quell::Frame;
/// assert_eq!(Frame::containing(0x5123), Frame(5));
/// assert_eq!(Frame(5).plus(1).address(), 0x6000);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Frame(pub u64);

impl Page {
    /// Returns the page that holds the virtual address `address`.
    #[inline]
    pub const fn containing(address: u64) -> Self {
        Page(address / PAGE_BYTES)
    }
    /// Returns the address of the page's first byte, modulo 2^64.
    #[inline]
    pub const fn address(self) -> u64 {
        self.0.wrapping_mul(PAGE_BYTES)
    }
    /// Returns the page `pages` base pages further on. Numbers wrap around.
    #[inline]
    pub const fn plus(self, pages: u64) -> Self {
        Page(self.0.wrapping_add(pages))
    }
}

impl Frame {
    /// Returns the frame that holds the physical address `address`.
    #[inline]
    pub const fn containing(address: u64) -> Self {
        Frame(address / PAGE_BYTES)
    }
    /// Returns the physical address of the frame's first byte, modulo 2^64.
    #[inline]
    pub const fn address(self) -> u64 {
        self.0.wrapping_mul(PAGE_BYTES)
    }
    /// Returns the frame `frames` base frames further on. Numbers wrap around.
    #[inline]
    pub const fn plus(self, frames: u64) -> Self {
        Frame(self.0.wrapping_add(frames))
    }
}

/// The size of one mapping: those of x86-64 and of AArch64's 4 KB granule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum PageSize {
    /// 4 KB: an entry of the lowest level.
    #[default]
    Base,
    /// 2 MB: an entry one level up.
    Large,
    /// 1 GB: an entry two levels up.
    Huge,
}

impl PageSize {
    /// Returns how many base pages one mapping of this size spans.
    #[inline]
    pub const fn pages(self) -> u64 {
        1 << self.shift()
    }
    /// Returns the logarithm of that: each level of a table has 512 entries.
    #[inline]
    const fn shift(self) -> u32 {
        9 * self as u32
    }
    /// Returns how many bytes one mapping of this size spans.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.pages() * PAGE_BYTES
    }
}

/// A run of virtual pages that are or were mapped with entries of one size.
///
/// The caller ensures that it consists of whole strides, which is not checked. If a range begins inside a stride, the
/// last stride is left out.
///
/// # Examples
///
/// ```
/// use quell::{Page, PageRange, PageSize};
/// let range = PageRange::base(Page(5), 3);
/// assert!(range.contains(Page(7)) && !range.contains(range.end()));
/// let large = PageRange::one(Page(512), PageSize::Large);
/// assert_eq!((large.pages, large.strides()), (512, 1)); // one invalidation
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PageRange {
    /// The first base page, a multiple of the stride.
    pub start: Page,
    /// The number of base pages, a multiple of the stride.
    pub pages: u64,
    /// The size of the entries: one invalidation per stride covers the range.
    pub stride: PageSize,
}

impl PageRange {
    /// Makes the range of `pages` base pages from `start`, mapped by base-page entries.
    #[inline]
    pub const fn base(start: Page, pages: u64) -> Self {
        PageRange {
            start,
            pages,
            stride: PageSize::Base,
        }
    }
    /// Makes the range of one mapping of size `stride` at `start`.
    #[inline]
    pub const fn one(start: Page, stride: PageSize) -> Self {
        PageRange {
            start,
            pages: stride.pages(),
            stride,
        }
    }
    /// Fails if the range is empty. A frame goes with it, which must not be given out without a flush.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn assert_some(self) {
        assert!(
            self.pages != 0,
            "a frame is reported behind a range of no page"
        );
    }
    /// Returns the first page after the range. Numbers wrap around.
    #[inline]
    pub const fn end(self) -> Page {
        self.start.plus(self.pages)
    }
    /// Returns how many invalidations, one per entry, cover the range.
    #[inline]
    pub const fn strides(self) -> u64 {
        if let PageSize::Base = self.stride {
            return self.pages;
        }
        let part = self.pages & (self.stride.pages() - 1) != 0;
        (self.pages >> self.stride.shift()) + part as u64
    }
    /// Iterates over the first page of each stride, which the range's invalidations name.
    #[inline]
    pub fn each(self) -> impl Iterator<Item = Page> {
        let step = self.stride.pages();
        let mut next = self.start;
        (0..self.strides()).map(move |_| {
            let page = next;
            next = next.plus(step);
            page
        })
    }
    /// Returns whether one invalidation per stride reaches a translation of the `pages` pages from `first` on.
    ///
    /// An invalidation names one page, the first of its stride, and hardware drops the translation of *that page*,
    /// however large it is. A smaller translation elsewhere in the stride stays. So do not report base pages in larger
    /// strides.
    #[inline]
    pub const fn names(self, first: Page, pages: u64) -> bool {
        let stride = self.stride.pages();
        let skipped = first.0.saturating_sub(self.start.0).div_ceil(stride);
        // Not before `first`, unless the range begins there: numbers wrap round.
        let named = self.start.0.wrapping_add(skipped.wrapping_mul(stride));
        skipped < self.strides() && named.wrapping_sub(first.0) < pages
    }
    /// Returns whether `page` lies in the range.
    #[inline]
    pub const fn contains(self, page: Page) -> bool {
        page.0.wrapping_sub(self.start.0) < self.pages
    }
}

/// A physically contiguous run of frames.
///
/// # Examples
///
/// ```
/// use quell::{Extent, Frame};
/// let extent = Extent { first: Frame(16), frames: 4 };
/// assert_eq!(extent.bytes(), 16 << 10);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Extent {
    /// The first frame.
    pub first: Frame,
    /// The number of base frames.
    pub frames: u64,
}

impl Extent {
    /// Returns the extent's length in bytes, or [`u64::MAX`] if it is longer.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.frames.saturating_mul(PAGE_BYTES)
    }
}

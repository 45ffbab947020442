//! Types that name memory: virtual pages, physical frames, page sizes, extents and ranges.
//!
//! All numbers count base pages of 4096 bytes, whatever the size of the mapping. Virtual numbers ([`Page`]) and
//! physical ones ([`Frame`]) have different types, so they can't be mixed up. None of these types owns memory:
//! [`Batch`](crate::batch::Batch) and the kernel's frame allocator own frames.

/// The size of a base page in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// Identifies a virtual page by its number: its address divided by 4096.
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

/// Identifies a physical frame by its number: its address divided by 4096.
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
    /// Returns the page that is `pages` base pages further on. Numbers wrap around.
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
    /// Returns the frame that is `frames` base frames further on. Numbers wrap around.
    #[inline]
    pub const fn plus(self, frames: u64) -> Self {
        Frame(self.0.wrapping_add(frames))
    }
}

/// Selects the size of one mapping (x86-64; AArch64 with its 4 KB granule).
///
/// # Examples
///
/// ```
/// use quell::PageSize;
/// assert_eq!(PageSize::Large.pages(), 512);
/// assert_eq!(PageSize::Huge.bytes(), 1 << 30);
/// ```
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
    /// Returns the number of base pages (4 KB) in one mapping of this size.
    #[inline]
    pub const fn pages(self) -> u64 {
        1 << self.shift()
    }
    /// Returns the binary logarithm of [`PageSize::pages`]: each level of a table has 512 entries.
    #[inline]
    const fn shift(self) -> u32 {
        9 * self as u32
    }
    /// Returns the number of bytes in one mapping of this size.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.pages() * PAGE_BYTES
    }
}

/// Describes a run of virtual pages that entries of one size map.
///
/// A *stride* is the reach of one such entry. The range must consist of whole strides, which we don't check: if it
/// begins inside a stride, its last stride gets no invalidation.
///
/// # Examples
///
/// ```
/// use quell::{Page, PageRange, PageSize};
/// let range = PageRange::base(Page(5), 3);
/// assert!(range.contains(Page(7)) && !range.contains(range.end()));
/// let large = PageRange { start: Page(512), pages: 1024, stride: PageSize::Large };
/// assert!(large.each().eq([Page(512), Page(1024)])); // two invalidations
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PageRange {
    /// The first page, aligned to the stride.
    pub start: Page,
    /// The number of base pages (4 KB). It makes whole strides.
    pub pages: u64,
    /// The size of the entries. One invalidation per stride covers the range.
    pub stride: PageSize,
}

impl PageRange {
    /// Makes the range of `pages` base pages from `start`, each mapped by its own entry.
    #[inline]
    pub const fn base(start: Page, pages: u64) -> Self {
        PageRange { start, pages, stride: PageSize::Base }
    }
    /// Makes the range of a single mapping of size `stride` at `start`.
    #[inline]
    pub const fn one(start: Page, stride: PageSize) -> Self {
        PageRange { start, pages: stride.pages(), stride }
    }
    /// Returns the first page after the range. Numbers wrap around.
    #[inline]
    pub const fn end(self) -> Page {
        self.start.plus(self.pages)
    }
    /// Returns the number of strides, each of which needs one invalidation.
    #[inline]
    pub const fn strides(self) -> u64 {
        if let PageSize::Base = self.stride {
            return self.pages;
        }
        let part = self.pages & (self.stride.pages() - 1) != 0;
        (self.pages >> self.stride.shift()) + part as u64
    }
    /// Iterates over the first page of each stride.
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
    /// Returns whether invalidating the range drops a translation of `pages` base pages at `first`.
    ///
    /// An invalidation names one page, the first of its stride. Hardware drops the translation of *that page*, however
    /// large the translation is. A smaller translation elsewhere in the stride stays. For example, if 512 base-page
    /// translations lie in a 2 MB stride, its invalidation drops only the first. So don't report base pages in larger
    /// strides.
    #[inline]
    pub const fn names(self, first: Page, pages: u64) -> bool {
        let stride = self.stride.pages();
        let skipped = first.0.saturating_sub(self.start.0).div_ceil(stride);
        // The first page from `first` on that an invalidation names. Page numbers wrap around.
        let named = self.start.0.wrapping_add(skipped.wrapping_mul(stride));
        skipped < self.strides() && named.wrapping_sub(first.0) < pages
    }
    /// Returns whether the range contains `page`.
    #[inline]
    pub const fn contains(self, page: Page) -> bool {
        page.0.wrapping_sub(self.start.0) < self.pages
    }
}

/// Describes a physically contiguous run of frames.
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
    /// The number of base frames (4 KB).
    pub frames: u64,
}

impl Extent {
    /// Returns the extent's length in bytes, or [`u64::MAX`] if it's longer.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.frames.saturating_mul(PAGE_BYTES)
    }
}

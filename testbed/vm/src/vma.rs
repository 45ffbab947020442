//! Keeps the areas of a process (VMAs): ranges of pages with their rights and memory, as its calls mapped them.

use crate::machine::USER_END;
use crate::syscall::{Error, FileId, Protection};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use quell::PAGE_BYTES;
use quell::{Page, PageRange, PageSize};

/// The first address for mappings without an address: 4 GB.
const FIRST_CHOICE: Page = Page(1 << 20);

/// Converts a call's range of addresses to pages.
pub(crate) fn page_range(address: u64, bytes: u64) -> Result<PageRange, Error> {
    if !address.is_multiple_of(PAGE_BYTES) {
        return Err(Error::Unaligned);
    }
    let start = Page::containing(address);
    let count = bytes.div_ceil(PAGE_BYTES);
    if count == 0 || start > USER_END || count > USER_END.0 - start.0 {
        return Err(Error::BadRange);
    }
    Ok(PageRange::base(start, count))
}

/// The memory behind an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// Zeros, in pages of up to this size.
    Anonymous(PageSize),
    /// A file: its page at the area's start, and whether stores reach it.
    File { file: FileId, first: u64, shared: bool },
}

/// A range of pages with the same rights and source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Vma {
    pub(crate) start: Page,
    pub(crate) end: Page,
    pub(crate) protection: Protection,
    pub(crate) source: Source,
}

impl Vma {
    /// Returns the area's pages.
    pub(crate) fn range(&self) -> PageRange {
        PageRange::base(self.start, self.end.0 - self.start.0)
    }

    /// Returns the page of the file behind `page`.
    pub(crate) fn file_page(&self, page: Page) -> Option<(FileId, u64)> {
        match self.source {
            Source::File { file, first, .. } => Some((file, first + (page.0 - self.start.0))),
            Source::Anonymous(_) => None,
        }
    }

    /// Returns the part of the area from `page` on.
    fn from(mut self, page: Page) -> Vma {
        if let Source::File { first, .. } = &mut self.source {
            *first += page.0 - self.start.0;
        }
        self.start = page;
        self
    }

    /// Returns whether `next`, which starts at the end of this one, continues it.
    fn continues(&self, next: &Vma) -> bool {
        self.end == next.start
            && self.protection == next.protection
            && match (self.source, next.source) {
                (Source::Anonymous(a), Source::Anonymous(b)) => a == b,
                (Source::File { .. }, Source::File { .. }) => {
                    self.from(self.end).source == next.source
                }
                _ => false,
            }
    }
}

/// All areas of a process, by their start; they don't overlap.
#[derive(Clone, Default)]
pub(crate) struct VmaTree {
    list: BTreeMap<u64, Vma>,
}

impl VmaTree {
    pub(crate) fn find(&self, page: Page) -> Option<&Vma> {
        let (_, vma) = self.list.range(..=page.0).next_back()?;
        (page < vma.end).then_some(vma)
    }

    /// Returns the areas within the range, cut to it, in ascending order.
    pub(crate) fn within(&self, range: PageRange) -> impl Iterator<Item = Vma> {
        let (start, end) = (range.start, range.end());
        let first = self.find(start).map_or(start.0, |vma| vma.start.0);
        self.list.range(first..end.0).map(move |(_, vma)| {
            let mut part = vma.from(vma.start.max(start));
            part.end = part.end.min(end);
            part
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Vma> + Clone {
        self.list.values()
    }

    /// Returns whether every page of the range is in some area.
    pub(crate) fn covers(&self, range: PageRange) -> bool {
        let mut at = range.start;
        for vma in self.within(range) {
            if vma.start != at {
                return false;
            }
            at = vma.end;
        }
        at == range.end()
    }

    /// Removes the range and returns its areas.
    pub(crate) fn remove(&mut self, range: PageRange) -> Vec<Vma> {
        let removed: Vec<Vma> = self.within(range).collect();
        for part in &removed {
            // The area that contains the part starts at or before it.
            let Some(mut whole) = self.find(part.start).copied() else {
                continue;
            };
            self.list.remove(&whole.start.0);
            if part.end < whole.end {
                let rest = whole.from(part.end);
                self.list.insert(rest.start.0, rest);
            }
            if whole.start < part.start {
                whole.end = part.start;
                self.list.insert(whole.start.0, whole);
            }
        }
        removed
    }

    /// Adds an area where none is, and joins it with neighbours that it continues.
    pub(crate) fn insert(&mut self, mut vma: Vma) {
        if let Some(next) = self.list.get(&vma.end.0).copied()
            && vma.continues(&next)
        {
            self.list.remove(&next.start.0);
            vma.end = next.end;
        }
        if let Some((_, before)) = self.list.range_mut(..vma.start.0).next_back()
            && before.continues(&vma)
        {
            before.end = vma.end;
            return;
        }
        self.list.insert(vma.start.0, vma);
    }

    /// Returns a free range of this number of pages, at a multiple of `align` pages.
    pub(crate) fn find_free(&self, pages: u64, align: u64) -> Option<Page> {
        let mut at = FIRST_CHOICE.0.next_multiple_of(align);
        if let Some(vma) = self.find(Page(at)) {
            at = vma.end.0.next_multiple_of(align);
        }
        for vma in self.list.range(FIRST_CHOICE.0..).map(|(_, vma)| vma) {
            if vma.end.0 <= at {
                continue;
            }
            if vma.start.0 >= at.checked_add(pages)? {
                break;
            }
            at = vma.end.0.next_multiple_of(align);
        }
        (at.checked_add(pages)? <= USER_END.0).then_some(Page(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vma(start: u64, end: u64, first: u64) -> Vma {
        Vma {
            start: Page(start),
            end: Page(end),
            protection: Protection::READ,
            source: Source::File { file: 0, first, shared: true },
        }
    }

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::base(Page(start), end - start)
    }

    #[test]
    fn removing_cuts_and_inserting_joins() {
        let mut vmas = VmaTree::default();
        vmas.insert(vma(10, 20, 100));
        assert_eq!(vmas.remove(range(13, 15)), [vma(13, 15, 103)]);
        assert!(vmas.iter().eq(&[vma(10, 13, 100), vma(15, 20, 105)]));
        assert!(!vmas.covers(range(10, 20)) && vmas.covers(range(15, 20)));
        vmas.insert(vma(13, 15, 103));
        assert!(vmas.iter().eq(&[vma(10, 20, 100)]));
        vmas.insert(vma(20, 22, 0));
        assert_eq!(vmas.iter().count(), 2);
        assert_eq!(vmas.remove(range(0, 100)).len(), 2);
        assert_eq!(vmas.iter().count(), 0);
    }

    #[test]
    fn free_ranges_fit_between_areas() {
        let mut vmas = VmaTree::default();
        let base = FIRST_CHOICE.0;
        vmas.insert(vma(base, base + 5, 0));
        vmas.insert(vma(base + 10, base + 12, 50));
        assert_eq!(vmas.find_free(5, 1), Some(Page(base + 5)));
        assert_eq!(vmas.find_free(6, 1), Some(Page(base + 12)));
        assert_eq!(vmas.find_free(1, 512), Some(Page(base + 512)));
        assert_eq!(vmas.find_free(USER_END.0, 1), None);
    }
}

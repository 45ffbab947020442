//! The areas of a process: what its calls have mapped, page ranges with a protection and a backing.

use crate::machine::USER_END;
use crate::user::{FileId, Protection};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use quell::{Page, PageSize};

/// Where mappings without an address go: from 4 GB.
const FIRST_CHOICE: Page = Page(1 << 20);

/// What lies behind an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// Zeros, in pages of up to this size.
    Zeros(PageSize),
    /// A file: the page of it at the area's start, and whether stores reach it.
    File {
        file: FileId,
        first: u64,
        shared: bool,
    },
}

/// A range of pages mapped alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Area {
    pub(crate) start: Page,
    pub(crate) end: Page,
    pub(crate) protection: Protection,
    pub(crate) source: Source,
}

impl Area {
    /// The page of the file behind `page`.
    pub(crate) fn file_page(&self, page: Page) -> Option<(FileId, u64)> {
        match self.source {
            Source::File { file, first, .. } => Some((file, first + (page.0 - self.start.0))),
            Source::Zeros(_) => None,
        }
    }

    /// The part of the area from `page` on.
    fn from(mut self, page: Page) -> Area {
        if let Source::File { first, .. } = &mut self.source {
            *first += page.0 - self.start.0;
        }
        self.start = page;
        self
    }

    /// Whether `next`, which starts where this one ends, continues it.
    fn continues(&self, next: &Area) -> bool {
        self.end == next.start
            && self.protection == next.protection
            && match (self.source, next.source) {
                (Source::Zeros(a), Source::Zeros(b)) => a == b,
                (Source::File { .. }, Source::File { .. }) => {
                    self.from(self.end).source == next.source
                }
                _ => false,
            }
    }
}

/// All areas of a process, by their start; they do not overlap.
#[derive(Clone, Default)]
pub(crate) struct Areas {
    list: BTreeMap<u64, Area>,
}

impl Areas {
    pub(crate) fn find(&self, page: Page) -> Option<&Area> {
        let (_, area) = self.list.range(..=page.0).next_back()?;
        (page < area.end).then_some(area)
    }

    /// The areas that meet `start..end`, cut to it, in ascending order.
    pub(crate) fn within(&self, start: Page, end: Page) -> impl Iterator<Item = Area> {
        let first = self.find(start).map_or(start.0, |area| area.start.0);
        self.list.range(first..end.0).map(move |(_, area)| {
            let mut part = area.from(area.start.max(start));
            part.end = part.end.min(end);
            part
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Area> {
        self.list.values()
    }

    /// Whether every page of the range is in some area.
    pub(crate) fn covers(&self, start: Page, end: Page) -> bool {
        let mut at = start;
        for area in self.within(start, end) {
            if area.start != at {
                return false;
            }
            at = area.end;
        }
        at == end
    }

    /// Cuts the range out and returns what was there.
    pub(crate) fn remove(&mut self, start: Page, end: Page) -> Vec<Area> {
        let removed: Vec<Area> = self.within(start, end).collect();
        for part in &removed {
            // The area that holds the part: it starts at or before it.
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

    /// Adds an area where none is, joined to its neighbours where they continue each other.
    pub(crate) fn insert(&mut self, mut area: Area) {
        if let Some(next) = self.list.get(&area.end.0).copied()
            && area.continues(&next)
        {
            self.list.remove(&next.start.0);
            area.end = next.end;
        }
        if let Some((_, before)) = self.list.range_mut(..area.start.0).next_back()
            && before.continues(&area)
        {
            before.end = area.end;
            return;
        }
        self.list.insert(area.start.0, area);
    }

    /// A free range of that many pages at a multiple of `align` pages.
    pub(crate) fn find_free(&self, pages: u64, align: u64) -> Option<Page> {
        let mut at = FIRST_CHOICE.0.next_multiple_of(align);
        if let Some(area) = self.find(Page(at)) {
            at = area.end.0.next_multiple_of(align);
        }
        for area in self.list.range(FIRST_CHOICE.0..).map(|(_, area)| area) {
            if area.end.0 <= at {
                continue;
            }
            if area.start.0 >= at.checked_add(pages)? {
                break;
            }
            at = area.end.0.next_multiple_of(align);
        }
        (at.checked_add(pages)? <= USER_END.0).then_some(Page(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(start: u64, end: u64, first: u64) -> Area {
        Area {
            start: Page(start),
            end: Page(end),
            protection: Protection::READ,
            source: Source::File {
                file: 0,
                first,
                shared: true,
            },
        }
    }

    #[test]
    fn removing_cuts_and_inserting_joins() {
        let mut areas = Areas::default();
        areas.insert(area(10, 20, 100));
        assert_eq!(areas.remove(Page(13), Page(15)), [area(13, 15, 103)]);
        assert!(areas.iter().eq(&[area(10, 13, 100), area(15, 20, 105)]));
        assert!(!areas.covers(Page(10), Page(20)) && areas.covers(Page(15), Page(20)));
        areas.insert(area(13, 15, 103));
        assert!(areas.iter().eq(&[area(10, 20, 100)]));
        areas.insert(area(20, 22, 0));
        assert_eq!(areas.iter().count(), 2);
        assert_eq!(areas.remove(Page(0), Page(100)).len(), 2);
        assert_eq!(areas.iter().count(), 0);
    }

    #[test]
    fn free_ranges_fit_between_areas() {
        let mut areas = Areas::default();
        let base = FIRST_CHOICE.0;
        areas.insert(area(base, base + 5, 0));
        areas.insert(area(base + 10, base + 12, 50));
        assert_eq!(areas.find_free(5, 1), Some(Page(base + 5)));
        assert_eq!(areas.find_free(6, 1), Some(Page(base + 12)));
        assert_eq!(areas.find_free(1, 512), Some(Page(base + 512)));
        assert_eq!(areas.find_free(USER_END.0, 1), None);
    }
}

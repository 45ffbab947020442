//! The promises of calls: when they return, a range is unmapped or a right to it is removed.

use super::state::Kernel;
use crate::context;
use crate::generated::program::{HUGE, PAGES, Right, WINDOW};
use crate::oracle::Moment;
use crate::tables;
use quell::{Page, PageRange, Word};
use quell_vm::machine::{Event, Machine};
use std::sync::atomic::Ordering::Relaxed;

impl Kernel<'_> {
    /// Reports that a call that unmapped a range, or removed a right to it, returns.
    pub(super) fn returned(
        &self,
        slot: usize,
        range: PageRange,
        began: Moment,
        right: Option<Right>,
    ) {
        let root = self.layout.root(slot);
        let me = self.me();
        context::with(|core| core.set_call_began(me, began));
        self.hw.note(match right {
            Some(right) => Event::ReturnedProtect {
                root,
                range,
                readable: true,
                writable: right != Right::Write,
                executable: right != Right::Execute,
            },
            None => Event::ReturnedUnmap { root, range },
        });
    }

    pub(super) fn confirm(&self, slot: usize, page: u64, pages: u64) {
        let began = context::with(|core| core.now);
        let Some(space) = self.lock(slot) else { return };
        let empty = self.all_empty(slot, page, pages);
        self.unlock(slot);
        if empty {
            self.engine.flush_pending(space);
            self.returned(slot, PageRange::base(Page(page), pages), began, None);
        }
    }

    fn all_empty(&self, slot: usize, page: u64, pages: u64) -> bool {
        let range = page..page.saturating_add(pages);
        let windows =
            (0..2u64).filter(|w| w * WINDOW < range.end && range.start < (w + 1) * WINDOW);
        let large = |window: u64| {
            let held = self.window_entry(slot, window).load(Relaxed);
            held & tables::PRESENT != 0 && held & tables::TABLE == 0
        };
        let huge = range.end > HUGE && self.huge_entry(slot).load(Relaxed) & tables::PRESENT != 0;
        let mapped = |page: &u64| {
            self.entry(slot, *page).is_some_and(|entry| entry.load(Relaxed) & tables::PRESENT != 0)
        };
        !huge
            && !windows.into_iter().any(large)
            && !PAGES.iter().filter(|page| range.contains(page)).any(mapped)
    }
}

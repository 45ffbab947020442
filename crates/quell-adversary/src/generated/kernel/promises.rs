//! What calls promise their program: that a range, or the right to write it, is gone when they return.

use super::state::Kernel;
use crate::context;
use crate::generated::program::{HUGE, PAGES, WINDOW};
use crate::oracle::Moment;
use crate::tables;
use quell::{Page, PageRange, Word};
use quell_vm::machine::{Event, Machine};
use std::sync::atomic::Ordering::Relaxed;

impl Kernel<'_> {
    /// A call that took a range, or the right to write it, away returns.
    pub(super) fn returned(
        &self,
        slot: usize,
        range: PageRange,
        began: Moment,
        writable_only: bool,
    ) {
        let root = self.layout.root(slot);
        let me = self.me();
        context::with(|core| core.set_call_began(me, began));
        self.hw.note(if writable_only {
            Event::ReturnedProtect {
                root,
                range,
                readable: true,
                writable: false,
                executable: true,
            }
        } else {
            Event::ReturnedUnmap { root, range }
        });
    }

    pub(super) fn confirm(&self, slot: usize, page: u64, pages: u64) {
        let began = context::with(|core| core.now);
        let Some(space) = self.lock(slot) else { return };
        let empty = self.all_empty(slot, page, pages);
        self.unlock(slot);
        if empty {
            self.engine.settle(space);
            self.returned(slot, PageRange::base(Page(page), pages), began, false);
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
            self.entry(slot, *page)
                .is_some_and(|entry| entry.load(Relaxed) & tables::PRESENT != 0)
        };
        !huge
            && !windows.into_iter().any(large)
            && !PAGES.iter().filter(|page| range.contains(page)).any(mapped)
    }
}

//! Operations on the anonymous pages of a space.

use super::program::Program;
use crate::world::{EntryWord, FILE_PAGES, FIRST_FILE_PAGE, Space, World};
use quell::{Purpose, Scope};
use quell_vm::contract::Clause;

impl<'a> Program<'a> {
    pub fn map(&mut self, space: &'a Space, page: usize) {
        let Some(frame) = self.allocate() else {
            return;
        };
        let mut layout = self.lock_space(space);
        if self.entry(space, page).present() {
            drop(layout);
            return self.free(frame);
        }
        self.engine.flush_pending(&space.engine);
        layout.versions[page] += 1;
        let owner = self.own(frame, FILE_PAGES, 0);
        let version = layout.versions[page];
        self.write_entry(space, page, EntryWord::new(frame, owner, version, true));
    }

    pub fn unmap(&mut self, space: &'a Space, first: usize) {
        let mut layout = self.lock_space(space);
        let mut gather = self.gather(Purpose::Call);
        let mut changes = Vec::new();
        let mut met_cleared = false;
        let pages = 1 + self.roll(5);
        let tables = self.roll(8) == 0;
        for page in first..(first + pages).min(FIRST_FILE_PAGE) {
            let entry = self.entry(space, page);
            layout.versions[page] += 1;
            changes.push((page, layout.versions[page]));
            if entry.present() {
                self.write_entry(space, page, EntryWord(0));
                gather.unmapped(&space.engine, World::range(page), entry.frame());
                if tables {
                    gather.changed(&space.engine, World::range(page), Scope::Tables);
                }
            } else {
                met_cleared = true;
            }
        }
        let held = (self.roll(2) == 0).then_some(layout);
        if met_cleared {
            self.engine.flush_pending(&space.engine);
        }
        self.finish(gather);
        drop(held);
        Self::complete(space, &changes);
    }

    pub fn protect(&mut self, space: &'a Space, first: usize) {
        let mut layout = self.lock_space(space);
        let mut gather = self.gather(Purpose::Call);
        let mut changes = Vec::new();
        let pages = 1 + self.roll(3);
        for page in first..(first + pages).min(FIRST_FILE_PAGE) {
            let entry = self.entry(space, page);
            if entry.present() && entry.writable() {
                layout.versions[page] += 1;
                let version = layout.versions[page];
                changes.push((page, version));
                let narrow = EntryWord::new(entry.frame(), entry.owner(), version, false);
                self.write_entry(space, page, narrow);
                gather.changed(&space.engine, World::range(page), Scope::Leaf);
            }
        }
        drop(layout);
        self.finish(gather);
        Self::complete(space, &changes);
    }

    pub fn unprotect(&mut self, space: &'a Space, page: usize) {
        let mut layout = self.lock_space(space);
        let entry = self.entry(space, page);
        if entry.present() && !entry.writable() {
            layout.versions[page] += 1;
            let wide = EntryWord::new(entry.frame(), entry.owner(), layout.versions[page], true);
            self.write_entry(space, page, wide);
        }
    }

    /// Protects a page from writes, flushes, and captures its content, like a writeback.
    pub fn capture(&mut self, space: &'a Space, page: usize) {
        let mut layout = self.lock_space(space);
        let entry = self.entry(space, page);
        if !entry.present() {
            return;
        }
        layout.versions[page] += 1;
        let narrow = EntryWord::new(entry.frame(), entry.owner(), layout.versions[page], false);
        self.write_entry(space, page, narrow);
        let mut gather = self.gather(Purpose::Call);
        gather.changed(&space.engine, World::range(page), Scope::Leaf);
        self.finish(gather);
        let captured = self.world.content(entry.frame());
        self.pause(200);
        let now = self.world.content(entry.frame());
        if captured != now {
            let account = format!("{now:?} after {captured:?} was captured");
            let at = format!("space {}, page {page}", space.table);
            self.report(entry.frame(), &at, (Clause::C2, account));
        }
    }

    /// Unmaps a few pages of up to two spaces, and flushes after dropping the locks.
    pub fn reclaim(&mut self, space: &'a Space) {
        let purpose = [Purpose::Reclaim, Purpose::Migration][self.roll(2)];
        let mut gather = self.gather(purpose);
        let world: &'a World = self.world;
        let other = &world.spaces[self.roll(world.spaces.len())];
        for space in [space, other] {
            let mut layout = self.lock_space(space);
            for _ in 0..2 {
                let page = self.roll(FIRST_FILE_PAGE);
                let entry = self.entry(space, page);
                if entry.present() {
                    layout.versions[page] += 1;
                    self.write_entry(space, page, EntryWord(0));
                    gather.unmapped(&space.engine, World::range(page), entry.frame());
                }
            }
        }
        self.pause(100);
        self.finish(gather);
    }
}

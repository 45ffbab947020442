//! Performs operations on the file that all spaces map.
//!
//! They use lazy unmap (S3), with which a frame's translations outlive its unmapping.

use super::program::Program;
use crate::tables::PAGES;
use crate::world::{
    CacheSlot, Content, EntryWord, FILE_PAGES, FIRST_FILE_PAGE, FreeFrame, Space, World, lock,
};
use quell::{Hardware, Outcome, Purpose, Scope};
use std::sync::atomic::Ordering;

impl<'a> Program<'a> {
    /// Unmaps a file's page from every space that maps it, and defers the flush.
    pub fn reclaim_file(&mut self, file_page: usize) {
        let mut slot = self.lock_slot(file_page);
        let CacheSlot::Filled(frame) = *slot else {
            return;
        };
        let world: &'a World = self.world;
        let deferred_flush = &world.frames[frame].deferred_flush;
        deferred_flush.begin();
        let mut gather = self.gather(Purpose::Lazy);
        let mut locks = Vec::new();
        for space in &world.spaces {
            let mut layout = self.lock_space(space);
            for page in FIRST_FILE_PAGE..PAGES {
                let entry = self.entry(space, page);
                if entry.present() && entry.frame() == frame {
                    layout.versions[page] += 1;
                    self.write_entry(space, page, EntryWord::marker(frame));
                    gather.changed(&space.engine, World::range(page), Scope::Leaf);
                }
            }
            locks.push(layout);
        }
        gather.hold(frame);
        match gather.finish_deferred() {
            Outcome::Flushed(frames) => {
                deferred_flush.clear();
                *slot = CacheSlot::Empty;
                drop(locks);
                frames.for_each(|frame| self.free(frame));
            }
            Outcome::Deferred(deferred) => {
                deferred_flush.defer(deferred.stamp());
                *slot = CacheSlot::Emptied(frame);
                drop(locks);
                let mut free = lock(&world.free, || self.hw.relax());
                free.extend(deferred.map(|frame| FreeFrame::Deferred(frame, file_page)));
            }
        }
    }

    /// Handles a read of a page of the file that isn't mapped.
    pub fn fault_file(&mut self, space: &'a Space, index: usize) {
        let mut spare = self.allocate();
        let page = FIRST_FILE_PAGE + index;
        let file_page = self.lock_space(space).maps[index];
        let mut slot = self.lock_slot(file_page);
        if let CacheSlot::Emptied(frame) = *slot {
            if self.reinstate(frame) {
                *slot = CacheSlot::Filled(frame);
            } else {
                // If a CPU has reused the frame and not yet updated the slot, it has flushed the frame.
                self.flush_frame_before_refill(frame, space);
                *slot = CacheSlot::Empty;
            }
        }
        if *slot == CacheSlot::Empty
            && let Some(frame) = spare.take()
        {
            let written = self.world.written[file_page].load(Ordering::Relaxed);
            self.own(frame, file_page, written);
            *slot = CacheSlot::Filled(frame);
        }
        let mut layout = self.lock_space(space);
        let held = self.entry(space, page);
        if let CacheSlot::Filled(frame) = *slot
            && !held.present()
            && layout.maps[index] == file_page
        {
            if held.is_marker() {
                self.flush_frame_before_refill(held.frame(), space);
            }
            layout.versions[page] += 1;
            let owner = self.world.content(frame).owner();
            let entry = EntryWord::new(frame, owner, layout.versions[page], false);
            self.write_entry(space, page, entry);
        }
        drop(layout);
        drop(slot);
        if let Some(frame) = spare {
            self.free(frame);
        }
    }

    /// Takes back a frame with a deferred flush, and maps it where markers name it.
    ///
    /// A remaining marker would name a frame without a deferred flush, while some CPU may still have the translation.
    pub fn reinstate(&self, frame: usize) -> bool {
        let world: &'a World = self.world;
        let mut locks: Vec<_> = world.spaces.iter().map(|space| self.lock_space(space)).collect();
        if !world.frames[frame].deferred_flush.reinstate(self.engine) {
            return false;
        }
        let owner = world.content(frame).owner();
        for (space, layout) in world.spaces.iter().zip(&mut locks) {
            for page in FIRST_FILE_PAGE..PAGES {
                if self.entry(space, page) == EntryWord::marker(frame) {
                    layout.versions[page] += 1;
                    let entry = EntryWord::new(frame, owner, layout.versions[page], false);
                    self.write_entry(space, page, entry);
                }
            }
        }
        true
    }

    pub fn flush_frame_before_refill(&self, frame: usize, space: &Space) {
        let deferred_flush = &self.world.frames[frame].deferred_flush;
        self.engine.flush_before_refill(deferred_flush, &space.engine);
    }

    /// Writes a page of the file: in place if cached, otherwise to a new frame.
    pub fn write_file(&mut self, file_page: usize) {
        let spare = self.allocate();
        let mut unused = spare;
        let mut slot = self.lock_slot(file_page);
        let written = &self.world.written[file_page];
        let value = written.load(Ordering::Relaxed) + 1;
        match *slot {
            CacheSlot::Filled(frame) => {
                let owner = self.world.content(frame).owner();
                let content = Content::new(owner, file_page, value);
                self.world.frames[frame].content.store(content.0, Ordering::Relaxed);
                written.store(value, Ordering::Release);
            }
            before => {
                if let Some(frame) = unused.take() {
                    if let CacheSlot::Emptied(old) = before {
                        self.flush_frame_before_refill(old, &self.world.spaces[0]);
                    }
                    self.own(frame, file_page, value);
                    *slot = CacheSlot::Filled(frame);
                    written.store(value, Ordering::Release);
                    self.pause(50);
                    if let CacheSlot::Emptied(old) = before
                        && self
                            .engine
                            .flush_before_reuse(&self.world.frames[old].deferred_flush)
                            .is_some()
                    {
                        self.free(old);
                    }
                }
            }
        }
        drop(slot);
        if let Some(frame) = unused {
            self.free(frame);
        }
    }

    /// Maps another page of the file over a mapped one, like a fixed mapping.
    pub fn remap(&mut self, space: &'a Space, index: usize) {
        let page = FIRST_FILE_PAGE + index;
        let mut layout = self.lock_space(space);
        let entry = self.entry(space, page);
        layout.maps[index] = self.roll(FILE_PAGES);
        layout.versions[page] += 1;
        let version = layout.versions[page];
        self.write_entry(space, page, EntryWord(0));
        if entry.present() {
            let mut gather = self.gather(Purpose::Call);
            gather.changed(&space.engine, World::range(page), Scope::Leaf);
            self.finish(gather);
        } else if entry.is_marker() {
            self.flush_frame_before_refill(entry.frame(), space);
        }
        drop(layout);
        Self::complete(space, &[(page, version)]);
    }
}

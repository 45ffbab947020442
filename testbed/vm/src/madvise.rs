//! Moves the pages of a range out of memory, or to another node (`MADV_PAGEOUT`, `move_pages`).
//!
//! These calls change no area and revoke no right. They lock the areas for reading, so that the range stays mapped, and
//! list its frames. Then they pass these to reclaim or migration, which also find all other mappings of the frames.

use crate::entry::EntryKind;
use crate::frames::Frames;
use crate::large::LargePages;
use crate::machine::Machine;
use crate::migrate::Migration;
use crate::process::Process;
use crate::reclaim::Reclaim;
use crate::syscall::Error;
use crate::tables::{MigrationHandling, Tables};
use crate::vma::page_range;
use alloc::sync::Arc;
use alloc::vec::Vec;
use quell::{Frame, Page};

/// The calls that move pages.
pub(crate) struct Madvise<'m, M: Machine> {
    frames: Arc<Frames<'m, M>>,
    tables: Arc<Tables<'m, M>>,
    large: Arc<LargePages<'m, M>>,
    reclaim: Arc<Reclaim<'m, M>>,
    migration: Arc<Migration<'m, M>>,
}

impl<'m, M: Machine> Madvise<'m, M> {
    pub(crate) fn new(
        frames: Arc<Frames<'m, M>>,
        tables: Arc<Tables<'m, M>>,
        large: Arc<LargePages<'m, M>>,
        reclaim: Arc<Reclaim<'m, M>>,
        migration: Arc<Migration<'m, M>>,
    ) -> Self {
        Madvise { frames, tables, large, reclaim, migration }
    }

    /// Reclaims the pages of a range (`MADV_PAGEOUT`). Returns the number of reclaimed pages.
    pub(crate) fn page_out(
        &self,
        process: &Arc<Process<M>>,
        address: u64,
        bytes: u64,
    ) -> Result<u64, Error> {
        let (start, end) = page_range(address, bytes)?;
        let vmas = process.vmas().read(self.frames.machine());
        if !vmas.covers(start, end) {
            return Err(Error::NotMapped);
        }
        self.large.split_range(process, start, end)?;
        let frames = self.mapped_frames(process, start, end, |_| true);
        Ok(self.reclaim.page_out(&frames))
    }

    /// Moves the pages of a range to a node (`move_pages`). Returns the number of moved base pages.
    pub(crate) fn migrate(
        &self,
        process: &Arc<Process<M>>,
        address: u64,
        bytes: u64,
        node: usize,
    ) -> Result<u64, Error> {
        let (start, end) = page_range(address, bytes)?;
        let map = self.frames.map();
        if node >= map.nodes().len() {
            return Err(Error::NoNode);
        }
        let vmas = process.vmas().read(self.frames.machine());
        if !vmas.covers(start, end) {
            return Err(Error::NotMapped);
        }
        let elsewhere = |frame| map.node_of(frame) != Some(node);
        let frames = self.mapped_frames(process, start, end, elsewhere);
        Ok(self.migration.migrate(&frames, node))
    }

    /// Returns the first frames of the range's mapped pages that are `wanted`.
    fn mapped_frames(
        &self,
        process: &Arc<Process<M>>,
        start: Page,
        end: Page,
        wanted: impl Fn(Frame) -> bool,
    ) -> Vec<Frame> {
        let mut frames = Vec::new();
        self.tables.each_entry(process, start, end, MigrationHandling::Visit, |_, _, view| {
            if let EntryKind::Page(entry) = view
                && wanted(entry.frame)
            {
                frames.push(entry.frame);
            }
        });
        frames
    }
}

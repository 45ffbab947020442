//! Copies a process that shares anonymous pages until one side writes (Linux's `dup_mmap`).
//!
//! The parent's pages become read-only, and the child can be entered only after the flush. Before that, a thread of the
//! parent could still write a page through an old translation while another CPU copies it for the child (C2). A page
//! that reclaim is unmapping has the same problem: the child shares its swap slot, but reclaim may not have flushed the
//! parent's cleared entry yet. So a fork also flushes for entries that it finds cleared. File pages aren't copied; the
//! child's faults map them.

use crate::entry::EntryKind;
use crate::frame::Owner;
use crate::machine::{Entry, Level, Machine};
use crate::mmu_gather::MmuGather;
use crate::processes::Process;
use crate::syscall::Error;
use crate::tables::MigrationHandling;
use crate::vm::Vm;
use crate::vma::{Source, VmaTree};
use alloc::sync::Arc;
use alloc::vec::Vec;
use quell::{Page, PageRange};

impl<'m, M: Machine> Vm<'m, M> {
    /// Shares the anonymous pages in `vmas`, the areas of both processes. No CPU can enter the child yet. The parent's
    /// loss of rights is added to the gather.
    pub(crate) fn share_all(
        &self,
        parent: &Arc<Process<M>>,
        child: &Arc<Process<M>>,
        vmas: &VmaTree,
        gather: &mut MmuGather<'_, 'm, M>,
    ) -> Result<(), Error> {
        vmas.iter()
            .filter(|vma| !matches!(vma.source, Source::File { shared: true, .. }))
            .try_for_each(|vma| self.share(parent, child, vma.range(), gather))
    }

    /// Shares the anonymous pages of a range with the child.
    fn share(
        &self,
        parent: &Arc<Process<M>>,
        child: &Arc<Process<M>>,
        range: PageRange,
        gather: &mut MmuGather<'_, 'm, M>,
    ) -> Result<(), Error> {
        // We make the child's tables without the parent's lock. Until then, references keep the pages that the child
        // will map.
        let mut found: Vec<(Page, Level, EntryKind)> = Vec::new();
        // The child has no entry on which it could wait for the page. [mutant VmForksPastMigration]
        self.each_entry(parent, range, MigrationHandling::Wait, |guard, page, view| match view {
            EntryKind::Page(entry) => {
                let mut state = self.frames.state(entry.frame);
                if state.owner == Owner::Anonymous {
                    state.hold();
                    drop(state);
                    // [mutant VmParentWritesChild]
                    guard.update(page, Some(gather), |entry| entry.writable = false);
                    found.push((guard.range(page).start, guard.level(), view));
                }
            }
            EntryKind::Swapped(slot) => {
                self.swap.hold(slot);
                found.push((page, guard.level(), view));
            }
            _ => {}
        });
        let mut result = Ok(());
        for (page, level, view) in found {
            let guard = match result {
                Ok(()) => self.table_for(child, page, level),
                Err(_) => None,
            };
            match (guard, view) {
                (Some(guard), EntryKind::Page(entry)) => {
                    // The first store of either process copies the page. [mutant VmChildWritesParent]
                    guard.map(page, Entry { writable: false, ..entry });
                }
                (Some(guard), view) => guard.put(page, view),
                (None, EntryKind::Page(entry)) => {
                    result = Err(Error::OutOfMemory);
                    self.frames.put(entry.frame);
                }
                (None, EntryKind::Swapped(slot)) => {
                    result = Err(Error::OutOfMemory);
                    self.swap.put(slot);
                }
                (None, _) => {}
            }
        }
        result
    }
}

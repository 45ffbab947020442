//! Maps frames back to the page-table entries that map them: the reverse map (rmap).
//!
//! One rule makes every later observer correct:
//!
//! > **An entry leaves the reverse map only after the flush that its removal needed.**
//!
//! So a walk of the reverse map (by truncation, writeback, reclaim, migration) finds each mapping through which some
//! CPU may still reach the frame. The mapping is a present entry, a lazy marker, or an entry that another CPU has
//! cleared but not yet flushed. In the last case the walker flushes the space itself
//! ([`Tables::flush_pending`](crate::tables::Tables::flush_pending)).

use crate::machine::Machine;
use crate::process::Process;
use alloc::sync::Arc;
use alloc::vec::Vec;
use quell::Page;
use smallvec::SmallVec;

/// One entry that maps a block.
pub(crate) struct Mapping<M: Machine> {
    pub(crate) process: Arc<Process<M>>,
    /// The first page that the entry maps.
    pub(crate) page: Page,
}

impl<M: Machine> Clone for Mapping<M> {
    fn clone(&self) -> Self {
        Mapping { process: self.process.clone(), page: self.page }
    }
}

impl<M: Machine> Mapping<M> {
    fn is(&self, process: &Arc<Process<M>>, page: Page) -> bool {
        self.page == page && Arc::ptr_eq(&self.process, process)
    }
}

/// The mappings of a block at some moment, usually one.
pub(crate) type Mappings<M> = SmallVec<[Mapping<M>; 1]>;

/// The entries that map one block, in no particular order.
pub(crate) struct Rmap<M: Machine> {
    /// Most frames are mapped once, so the first entry needs no heap.
    first: Option<Mapping<M>>,
    more: Vec<Mapping<M>>,
}

impl<M: Machine> Rmap<M> {
    pub(crate) fn new() -> Self {
        Rmap { first: None, more: Vec::new() }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Mapping<M>> {
        self.first.iter().chain(&self.more)
    }

    pub(crate) fn contains(&self, process: &Arc<Process<M>>, page: Page) -> bool {
        self.iter().any(|mapping| mapping.is(process, page))
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.len()
    }

    pub(crate) fn add(&mut self, process: &Arc<Process<M>>, page: Page) {
        let mapping = Mapping { process: process.clone(), page };
        if self.first.is_none() {
            self.first = Some(mapping);
        } else {
            self.more.push(mapping);
        }
    }

    /// Removes one mapping, if it is listed. An entry that was mapped, cleared, and mapped again before its flush is
    /// listed twice.
    pub(crate) fn remove(&mut self, process: &Arc<Process<M>>, page: Page) {
        let at = |mapping: &Mapping<M>| mapping.is(process, page);
        if self.first.as_ref().is_some_and(at) {
            self.first = self.more.pop();
        } else if let Some(at) = self.more.iter().position(at) {
            self.more.swap_remove(at);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.first = None;
        self.more.clear();
    }
}

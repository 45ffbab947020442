//! Which table a page-table page is: how a walk without locks knows that it is where it wanted to be.
//!
//! Each page-table page carries the name of the table that it is, set before the table is linked and cleared under
//! the table's lock when it is unlinked. A walk believes a pointer to a table only if the name there is the one it
//! expects ([`crate::tables`]).

use crate::shared::Shared;
use core::sync::atomic::Ordering;
use quell::Level;
use quell::{Page, Word};

/// Which table a page-table page is: space, level and the first page it translates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TableId(u64);

impl TableId {
    pub(crate) const NONE: TableId = TableId(0);

    /// `process` is a number that no other living process has.
    pub(crate) fn new(process: u32, level: Level, page: Page) -> Self {
        let base = level.base(page).0 >> 9;
        TableId(1 << 63 | u64::from(level.0) << 60 | base << 32 | u64::from(process))
    }
}

/// The name of the table that a frame is at this moment.
pub(crate) struct TableName<W> {
    id: Shared<W>,
}

impl<W: Word> TableName<W> {
    /// Of a frame that is no table.
    pub(crate) fn new() -> Self {
        TableName {
            id: Shared::new(TableId::NONE.0),
        }
    }

    pub(crate) fn get(&self) -> TableId {
        // Acquire pairs with `set`: a walk that finds the table's name finds its words as they were prepared.
        // Lost without it: a walk comes to a new table.
        TableId(self.id.load(Ordering::Acquire))
    }

    pub(crate) fn set(&self, id: TableId) {
        // Release pairs with `get`: the words are prepared before a walk finds the name.
        // Lost without it: a walk comes to a new table.
        self.id.store(id.0, Ordering::Release);
    }
}

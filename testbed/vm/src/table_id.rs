//! Names page-table pages, so that a walk without locks detects that it reached the right table.
//!
//! Each page-table page carries the name of its table. The name is set before the table is linked, and cleared under
//! the table's lock when it is unlinked. A walk accepts a pointer to a table only if the table has the expected name
//! ([`crate::tables`]).

use crate::shared::SharedNumber;
use core::sync::atomic::Ordering;
use quell::Level;
use quell::{Page, Word};

/// The name of a table: space, level and the first page that it translates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TableId(u64);

impl TableId {
    pub(crate) const NONE: TableId = TableId(0);

    /// Creates a name. `process` must be a number that no other living process has.
    pub(crate) fn new(process: u32, level: Level, page: Page) -> Self {
        let base = level.base(page).0 >> 9;
        TableId(1 << 63 | u64::from(level.0) << 60 | base << 32 | u64::from(process))
    }
}

/// The name of the table that a frame holds at this moment.
pub(crate) struct TableName<W> {
    id: SharedNumber<W>,
}

impl<W: Word> TableName<W> {
    /// Creates the name of a frame that is no table.
    pub(crate) fn new() -> Self {
        TableName { id: SharedNumber::new(TableId::NONE.0) }
    }

    pub(crate) fn get(&self) -> TableId {
        // Acquire pairs with `set`: a walk that finds the table's name finds its words as they were prepared. Lost
        // without it: a walk reaches a new table before its words are ready.
        TableId(self.id.load(Ordering::Acquire))
    }

    pub(crate) fn set(&self, id: TableId) {
        // Release pairs with `get`: the words are prepared before a walk finds the name. Lost without it: a walk
        // reaches a new table before its words are ready.
        self.id.store(id.0, Ordering::Release);
    }
}

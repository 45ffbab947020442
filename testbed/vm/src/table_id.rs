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

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn tables_of_living_processes_have_names_of_their_own() {
        let mut names: Vec<u64> = Vec::new();
        let end = Level::ROOT.pages() << 8;
        for process in [1, 2, u32::MAX] {
            names.push(TableId::new(process, Level::ROOT, Page(0)).0);
            for level in [Level::HUGE, Level::LARGE, Level::LEAF] {
                let pages = level.pages() << 9;
                let tables = [0, 1, 2, end / pages / 2, end / pages - 1];
                names.extend(
                    tables.map(|table| TableId::new(process, level, Page(table * pages)).0),
                );
            }
        }
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        assert!(!names.contains(&TableId::NONE.0));
    }
}

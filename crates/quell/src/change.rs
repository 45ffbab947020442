//! Does this change of an entry need a flush, and how large?
//!
//! One function for everybody who writes page tables, because kernels keep arguing about it case by
//! case. It looks at an entry before and after the change and answers with the least flush that
//! keeps the contract.
//!
//! The reasoning: TLBs do not cache entries that are not present, so filling one in needs nothing.
//! A right that was added may be refused by a stale entry, which then faults and is walked again,
//! so upgrades are lazy. A right that was taken away, a frame that changed or a mapping that went
//! must be flushed. A dirty bit that was cleared must be flushed as well: a stale dirty entry lets
//! the CPU write without setting it again (C2). An accessed bit that was cleared need not be: the
//! price of a stale one is that a page looks idle for longer than it was.

use crate::addr::{Frame, PageSize};

/// What matters of a page-table entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EntryView {
    /// The hardware may use it.
    pub present: bool,
    /// It points to a page-table page, not to memory.
    pub table: bool,
    /// The frame that it maps, or that holds the table.
    pub frame: Frame,
    /// The size of the mapping; for a table, of the mapping that could stand in its place.
    pub size: PageSize,
    /// May be written through.
    pub writable: bool,
    /// May be used by user code.
    pub user: bool,
    /// May be executed.
    pub executable: bool,
    /// The hardware, or the kernel in its stead, has recorded a write.
    pub dirty: bool,
    /// The hardware, or the kernel in its stead, has recorded an access.
    pub accessed: bool,
    /// Survives root switches and flushes by tag.
    pub global: bool,
}

/// The least flush that a change needs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Need {
    /// None. A stale entry can at worst cause a spurious fault.
    Nothing,
    /// The leaf entry on every CPU that runs the space, before the change may be relied upon.
    Leaf,
    /// The leaf entries below the entry, of whatever size, and the walker caches; before the
    /// unlinked table is freed or the change relied upon, also on CPUs that hold the space lazily.
    Tables,
    /// [`Need::Tables`] or [`Need::Leaf`] between clearing the entry and writing the new one, on
    /// architectures that forbid two translations for one address at the same time (Arm's
    /// break-before-make); elsewhere afterwards.
    BreakBeforeMake,
    /// The entry under every tag: it was global.
    Global,
}

/// The least flush that replacing `old` by `new` needs.
///
/// Does not look at who uses the space: [`Batch`](crate::Batch) leaves out CPUs that cannot hold the
/// entry. Says nothing about accessed bits that a caller wants to be exact: then flush as for
/// [`Need::Leaf`].
pub fn flush_needed(old: &EntryView, new: &EntryView) -> Need {
    if !old.present {
        return Need::Nothing;
    }
    if old.global && !same_or_more(old, new) {
        return Need::Global;
    }
    if old.table {
        return match (new.present, new.table && new.frame == old.frame) {
            (true, true) => Need::Nothing,
            (true, false) => Need::BreakBeforeMake,
            (false, _) => Need::Tables,
        };
    }
    if same_or_more(old, new) {
        return Need::Nothing;
    }
    let replaced = new.present && (new.table || new.frame != old.frame || new.size != old.size);
    if replaced {
        Need::BreakBeforeMake
    } else {
        Need::Leaf
    }
}

/// Whether every access that the old leaf allowed does the same through the new one.
fn same_or_more(old: &EntryView, new: &EntryView) -> bool {
    new.present
        && new.table == old.table
        && new.frame == old.frame
        && new.size == old.size
        && (new.writable || !old.writable)
        && (new.user || !old.user)
        && (new.executable || !old.executable)
        && (new.dirty || !old.dirty)
        && (new.global || !old.global)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: EntryView = EntryView {
        present: true,
        table: false,
        frame: Frame(7),
        size: PageSize::Base,
        writable: true,
        user: true,
        executable: true,
        dirty: true,
        accessed: true,
        global: false,
    };
    const ABSENT: EntryView = EntryView {
        present: false,
        table: false,
        frame: Frame(0),
        size: PageSize::Base,
        writable: false,
        user: false,
        executable: false,
        dirty: false,
        accessed: false,
        global: false,
    };

    #[test]
    fn filling_in_and_upgrading_need_nothing() {
        assert_eq!(flush_needed(&ABSENT, &LEAF), Need::Nothing);
        let read_only = EntryView {
            writable: false,
            dirty: false,
            ..LEAF
        };
        assert_eq!(flush_needed(&read_only, &LEAF), Need::Nothing);
        let unused = EntryView {
            accessed: false,
            ..LEAF
        };
        assert_eq!(flush_needed(&LEAF, &unused), Need::Nothing);
    }

    #[test]
    fn every_loss_needs_a_flush() {
        for new in [
            EntryView {
                writable: false,
                ..LEAF
            },
            EntryView {
                executable: false,
                ..LEAF
            },
            EntryView {
                user: false,
                ..LEAF
            },
            EntryView {
                dirty: false,
                ..LEAF
            },
            ABSENT,
        ] {
            assert_eq!(flush_needed(&LEAF, &new), Need::Leaf, "{new:?}");
        }
    }

    #[test]
    fn another_translation_for_the_same_address_breaks_first() {
        for new in [
            EntryView {
                frame: Frame(8),
                ..LEAF
            },
            EntryView {
                size: PageSize::Large,
                ..LEAF
            },
            EntryView {
                table: true,
                frame: Frame(9),
                ..LEAF
            },
        ] {
            assert_eq!(flush_needed(&LEAF, &new), Need::BreakBeforeMake, "{new:?}");
        }
        let table = EntryView {
            table: true,
            ..LEAF
        };
        assert_eq!(flush_needed(&table, &LEAF), Need::BreakBeforeMake);
    }

    #[test]
    fn tables_that_go_concern_walkers() {
        let table = EntryView {
            table: true,
            ..LEAF
        };
        assert_eq!(flush_needed(&table, &ABSENT), Need::Tables);
        assert_eq!(flush_needed(&table, &table), Need::Nothing);
    }

    #[test]
    fn global_entries_go_everywhere() {
        let global = EntryView {
            global: true,
            ..LEAF
        };
        assert_eq!(flush_needed(&global, &ABSENT), Need::Global);
        assert_eq!(flush_needed(&global, &LEAF), Need::Global);
        assert_eq!(flush_needed(&global, &global), Need::Nothing);
    }
}

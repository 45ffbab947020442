//! Page-table entries in the format of the machine, by `quell-arch`.

use quell_arch::entry::{Access, Entry as Raw, Leaf};
use quell_arch::{aarch64, x86_64};
use quell_vm::{Entry, Level};

/// The word of a present entry.
pub fn encode(arm: bool, entry: Entry, level: Level) -> u64 {
    if entry.table {
        return if arm {
            aarch64::entry::table(entry.frame)
        } else {
            x86_64::entry::table(entry.frame)
        };
    }
    let Some(size) = level.size() else {
        unreachable!("entries of a root map no pages")
    };
    let leaf = Leaf {
        frame: entry.frame,
        size,
        access: Access {
            writable: entry.writable,
            user: entry.user,
            executable: entry.executable,
            global: entry.global,
            accessed: entry.accessed,
            dirty: entry.dirty,
        },
    };
    if arm {
        aarch64::entry::leaf(leaf)
    } else {
        x86_64::entry::leaf(leaf)
    }
}

/// What a word of a table of `level` says.
#[inline(always)]
pub fn decode(arm: bool, raw: u64, level: u8) -> Entry {
    let decoded = if arm {
        aarch64::entry::decode(raw, level)
    } else {
        x86_64::entry::decode(raw, level)
    };
    match decoded {
        Raw::Absent(_) => Entry::default(),
        Raw::Table(frame) => Entry {
            present: true,
            table: true,
            frame,
            ..Entry::default()
        },
        Raw::Leaf(leaf) => Entry {
            present: true,
            table: false,
            frame: leaf.frame,
            writable: leaf.access.writable,
            user: leaf.access.user,
            executable: leaf.access.executable,
            accessed: leaf.access.accessed,
            dirty: leaf.access.dirty,
            global: leaf.access.global,
        },
    }
}

/// The word after a walker used it: accessed, and dirty after a store.
#[inline]
pub fn used(arm: bool, raw: u64, write: bool) -> u64 {
    if arm {
        aarch64::entry::mark_dirty(raw, write).unwrap_or(raw)
    } else {
        let dirty = if write { x86_64::entry::DIRTY } else { 0 };
        raw | x86_64::entry::ACCESSED | dirty
    }
}

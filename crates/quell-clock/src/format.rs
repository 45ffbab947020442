//! Page-table entries in the format of the machine, by `quell-arch`.

use quell::{Entry, Level, TlbRules};
use quell_arch::{aarch64, x86_64};

/// The word of a present entry.
pub fn encode(arm: bool, entry: Entry, level: Level) -> u64 {
    if arm {
        aarch64::entry::encode(entry, level)
    } else {
        x86_64::entry::encode(entry, level)
    }
}

/// What a word of a table of `level` says.
#[inline(always)]
pub fn decode(arm: bool, raw: u64, level: Level) -> Entry {
    if arm {
        aarch64::entry::decode(raw, level)
    } else {
        x86_64::entry::decode(raw, level)
    }
}

/// What the machine's TLBs may keep.
pub fn tlb_rules(arm: bool) -> TlbRules {
    if arm {
        aarch64::entry::RULES
    } else {
        x86_64::entry::RULES
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

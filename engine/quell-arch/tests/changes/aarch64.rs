//! The oracle for AArch64, from the Arm ARM: "TLB maintenance", rules RGPPYH and IWZCBG (changes that need an
//! invalidation), RWHZWS and RKHRBC (changes that must go through an invalid entry, without FEAT_BBML1); "VMSAv8-64
//! translation table format descriptors" for the bits.

use super::{Architecture, LEAF, differs, gained, is, lost, parts};
use quell::{Flush, Level, Need, Scope};
use quell_arch::aarch64::entry::{RULES, decode};

const VALID: u32 = 0;
const TABLE_OR_PAGE: u32 = 1;
const ATTRIBUTES: u32 = 2;
const NON_SECURE: u32 = 5;
const USER: u32 = 6;
const READ_ONLY: u32 = 7;
const SHAREABILITY: u32 = 8;
const ACCESSED: u32 = 10;
const NOT_GLOBAL: u32 = 11;
const GUARDED: u32 = 50;
const DIRTY_MODIFIER: u32 = 51;
const CONTIGUOUS: u32 = 52;
const PXN: u32 = 53;
const UXN: u32 = 54;
const SOFTWARE_DIRTY: u32 = 55;
const TABLE_PXN: u32 = 59;
const TABLE_UXN: u32 = 60;
const TABLE_NO_USER: u32 = 61;
const TABLE_READ_ONLY: u32 = 62;
const TABLE_NON_SECURE: u32 = 63;

/// Returns whether a word is valid. Words that fault because they're invalid or reserved are never cached.
fn is_valid(word: u64, level: Level) -> bool {
    is(word, VALID) && (is(word, TABLE_OR_PAGE) || level.0 == 1 || level.0 == 2)
}

fn is_table(word: u64, level: Level) -> bool {
    level.0 > 0 && is(word, TABLE_OR_PAGE)
}

/// Returns whether stores are allowed, now or after the walker has set the dirty state.
fn writable(word: u64) -> bool {
    !is(word, READ_ONLY) || is(word, DIRTY_MODIFIER)
}

fn user_executes(word: u64) -> bool {
    !is(word, UXN)
}

/// Returns whether the kernel may execute the page. At level 1 it may never execute a page that user mode may write.
fn kernel_executes(word: u64) -> bool {
    let user_writes = is(word, USER) && writable(word);
    !is(word, PXN) && !user_writes
}

fn demand(old: u64, new: u64, level: Level) -> Need {
    if !is_valid(old, level) {
        return Need::Nothing;
    }
    let was_table = is_table(old, level);
    let flush = Flush {
        scope: if was_table { Scope::Tables } else { Scope::Leaf },
        every_tag: !was_table && !is(old, NOT_GLOBAL),
        ..LEAF
    };
    if !is_valid(new, level) {
        return Need::Flush(flush);
    }
    // A new global translation conflicts with those of single spaces, under any ASID.
    let created =
        !is_table(new, level) && !is(new, NOT_GLOBAL) && (was_table || is(old, NOT_GLOBAL));
    let breaks = Flush {
        // A receipt isn't enough: the flush must be complete before the new entry is written.
        scope: Scope::Tables,
        break_first: true,
        every_tag: flush.every_tag || created,
    };
    // A block for a table, or a table for a block.
    if was_table != is_table(new, level) {
        return Need::Flush(breaks);
    }
    if was_table {
        // Another table may translate to other addresses, in other sizes.
        if differs(old, new, 12..=47) || differs(old, new, TABLE_NON_SECURE..=TABLE_NON_SECURE) {
            return Need::Flush(breaks);
        }
        let limits = [TABLE_PXN, TABLE_UXN, TABLE_READ_ONLY];
        // The kernel loses a page that user mode gains (PAN).
        if limits.iter().any(|bit| gained(old, new, *bit))
            || differs(old, new, TABLE_NO_USER..=TABLE_NO_USER)
        {
            return Need::Flush(flush);
        }
        return match limits.iter().any(|bit| lost(old, new, *bit)) {
            true => Need::Local(Scope::Tables),
            false => Need::Nothing,
        };
    }
    let low = [12, 21, 30][usize::from(level.0)];
    if differs(old, new, low..=47)
        || differs(old, new, ATTRIBUTES..=NON_SECURE)
        || differs(old, new, SHAREABILITY..=SHAREABILITY + 1)
        || differs(old, new, CONTIGUOUS..=CONTIGUOUS)
        || created
    {
        return Need::Flush(breaks);
    }
    let goes = |right: fn(u64) -> bool| right(old) && !right(new);
    let comes = |right: fn(u64) -> bool| !right(old) && right(new);
    let stored_to = |word: u64| !is(word, READ_ONLY);
    if goes(writable)
        || goes(user_executes)
        || goes(kernel_executes)
        // The dirty state is cleared: a stale entry would allow a store without setting it (C2).
        || stored_to(old) && !stored_to(new)
        || differs(old, new, USER..=USER)
        || gained(old, new, NOT_GLOBAL)
        || gained(old, new, GUARDED)
        // The overlay index, or attributes that the hardware exports.
        || differs(old, new, 59..=62)
    {
        return Need::Flush(flush);
    }
    // A TLB may keep an entry that refused an access: only entries with a translation, address size or access flag
    // fault aren't kept.
    if comes(writable) || comes(user_executes) || comes(kernel_executes) || comes(stored_to) {
        return Need::Local(Scope::Leaf);
    }
    Need::Nothing
}

/// Returns whether `flush_needed` may return more than the manual demands, in three cases. An access flag that is set
/// counts as a refusal that may be kept, as on RISC-V. Attributes without a field of their own count as removed,
/// whichever way they change. So does the software dirty state of a page without write permission.
fn may_exceed(old: u64, new: u64, level: Level) -> bool {
    if is_table(old, level) {
        return gained(old, new, ACCESSED) || lost(old, new, TABLE_PXN);
    }
    gained(old, new, ACCESSED)
        || lost(old, new, GUARDED)
        || differs(old, new, SOFTWARE_DIRTY..=SOFTWARE_DIRTY)
        || (is(old, SOFTWARE_DIRTY) && differs(old, new, DIRTY_MODIFIER..=DIRTY_MODIFIER))
        || !kernel_executes(old) && kernel_executes(new)
        || !user_executes(old) && user_executes(new)
}

const AARCH64: Architecture =
    Architecture { decode, rules: RULES, demand, may_exceed, is_defined: |_, _| true };

#[test]
fn rights_of_pages() {
    let bits = [
        VALID,
        USER,
        READ_ONLY,
        ACCESSED,
        NOT_GLOBAL,
        12,
        GUARDED,
        DIRTY_MODIFIER,
        CONTIGUOUS,
        PXN,
        UXN,
        SOFTWARE_DIRTY,
    ];
    AARCH64.check_all_pairs(0x1_0302, &parts(bits), Level::LEAF);
}

#[test]
fn attributes_of_pages() {
    let bits = [
        VALID,
        TABLE_OR_PAGE,
        ATTRIBUTES,
        NON_SECURE,
        READ_ONLY,
        SHAREABILITY,
        NOT_GLOBAL,
        13,
        DIRTY_MODIFIER,
        CONTIGUOUS,
        UXN,
        60,
    ];
    AARCH64.check_all_pairs(0, &parts(bits), Level::LEAF);
}

#[test]
fn blocks_and_tables() {
    let bits = [
        VALID,
        TABLE_OR_PAGE,
        READ_ONLY,
        NOT_GLOBAL,
        13,
        21,
        TABLE_PXN,
        TABLE_UXN,
        TABLE_NO_USER,
        TABLE_READ_ONLY,
        TABLE_NON_SECURE,
        USER,
    ];
    AARCH64.check_all_pairs(0, &parts(bits), Level::LARGE);
}

#[test]
fn every_bit() {
    let words = [0, 0x1003, 0x0068_0000_0123_4f43, 0x0060_0000_0120_0f41, !0];
    for level in 0..4 {
        AARCH64.check_all_bits(&words, Level(level));
    }
}

//! The oracle for RISC-V, from the privileged specification: "Supervisor Memory-Management Fence Instruction" (changes
//! that need a fence, and changes that may wait for a fault); "Svvptc", "Svnapot", "Svpbmt", "Svrsw60t59b" for the
//! bits.

use super::{Architecture, differs, gained, is, lost, parts};
use quell::{Flush, Level, Need, Scope};
use quell_arch::riscv64::entry::{decode, rules};

const VALID: u32 = 0;
const READ: u32 = 1;
const WRITE: u32 = 2;
const EXECUTE: u32 = 3;
const USER: u32 = 4;
const GLOBAL: u32 = 5;
const ACCESSED: u32 = 6;
const DIRTY: u32 = 7;
const SOFTWARE: u32 = 8;
const PBMT: u32 = 61;
const NAPOT: u32 = 63;
/// The lowest bits of the frame of a 64 KB row, besides the N bit.
const NAPOT_64K: u64 = 8 << 10;

fn is_table(word: u64) -> bool {
    !is(word, READ) && !is(word, WRITE) && !is(word, EXECUTE)
}

fn scope_of(word: u64) -> Scope {
    if is_table(word) { Scope::Tables } else { Scope::Leaf }
}

/// Returns whether a word is defined. Reserved words fault, now or in a later version; in tables most bits are
/// reserved.
fn is_defined(word: u64, level: Level) -> bool {
    if !is(word, VALID) {
        return true;
    }
    let reserved = 0x7f << 54 & !(3 << PBMT);
    if word & reserved != 0 || word >> PBMT & 3 == 3 {
        return false;
    }
    if is_table(word) {
        let unused = [USER, ACCESSED, DIRTY, PBMT, PBMT + 1, NAPOT];
        return level.0 > 0 && unused.iter().all(|bit| !is(word, *bit));
    }
    let napot = !is(word, NAPOT) || level.0 == 0 && word >> 10 & 15 == 8;
    let aligned = word >> 10 & (level.pages() - 1) == 0;
    napot && aligned && level.0 < 3
}

fn demand_with(old: u64, new: u64, caches_absent: bool) -> Need {
    if !is(old, VALID) {
        // From invalid to valid, the fence may wait for the fault; with Svvptc there's no fault.
        return match caches_absent && is(new, VALID) {
            true => Need::Local(scope_of(new)),
            false => Need::Nothing,
        };
    }
    // Svpbmt: after the change, no hart may load lines of the frame into its cache under the old memory type.
    let retyped = is(new, VALID) && differs(old, new, PBMT..=PBMT + 1);
    let flush = Need::Flush(Flush {
        scope: match retyped {
            true => Scope::Tables,
            false => scope_of(old),
        },
        // For a global entry the fence has no ASID.
        every_tag: is(old, GLOBAL),
        // Until the fence, harts use the old or the new translation, and nothing worse happens.
        break_first: false,
    });
    if !is(new, VALID)
        || is_table(old) != is_table(new)
        || differs(old, new, 10..=53)
        || differs(old, new, PBMT..=NAPOT)
        || [READ, WRITE, EXECUTE, DIRTY, GLOBAL]
            .iter()
            .any(|bit| lost(old, new, *bit))
        // The kernel never executes pages of user mode, and accesses them only on request.
        || differs(old, new, USER..=USER)
    {
        return flush;
    }
    // New permissions, or a bit whose absence caused a fault, may wait for the fault.
    match [READ, WRITE, EXECUTE, ACCESSED, DIRTY].iter().any(|bit| gained(old, new, *bit)) {
        true => Need::Local(scope_of(old)),
        false => Need::Nothing,
    }
}

const RISCV64: Architecture = Architecture {
    decode,
    rules: rules(false),
    demand: |old, new, _| demand_with(old, new, true),
    // `Entry` has no field for "readable", because pages nearly always are.
    may_exceed: |old, new, _| gained(old, new, READ),
    is_defined,
};

const WITH_SVVPTC: Architecture = Architecture {
    rules: rules(true),
    demand: |old, new, _| demand_with(old, new, false),
    ..RISCV64
};

/// Returns the bits that matter in every entry, and `more` of one test.
fn with(more: &[u64]) -> Vec<u64> {
    let bits = [VALID, READ, WRITE, EXECUTE, USER, GLOBAL, ACCESSED, DIRTY, PBMT];
    [&parts(bits)[..], more].concat()
}

#[test]
fn pages() {
    let more = [1 << SOFTWARE, 1 << 14, 1 << NAPOT | NAPOT_64K];
    RISCV64.check_all_pairs(READ_BASE, &with(&more), Level::LEAF);
    WITH_SVVPTC.check_all_pairs(READ_BASE, &with(&more[1..]), Level::LEAF);
}

/// A base with the right to read: at the lowest level a word without rights would be a table, which is reserved.
const READ_BASE: u64 = 1 << READ;

#[test]
fn large_pages_and_tables() {
    // A frame bit that both large pages and tables may have.
    let more = [1 << 19, 1 << SOFTWARE];
    RISCV64.check_all_pairs(0, &with(&more), Level::LARGE);
    WITH_SVVPTC.check_all_pairs(0, &with(&more), Level::LARGE);
}

#[test]
fn every_bit() {
    let words = [0, 0x2008_00d7, 0x8000_0000_2008_20d7];
    for architecture in [&RISCV64, &WITH_SVVPTC] {
        architecture.check_all_bits(&words, Level::LEAF);
        architecture.check_all_bits(&[0x2008_00cf, 0x2_6401, 0x2_6401 | 1 << GLOBAL], Level::LARGE);
        architecture.check_all_bits(&[0x2_6401], Level::ROOT);
    }
}

//! RISC-V: privileged specification, "Supervisor Memory-Management Fence Instruction" (what must be
//! fenced, what may be left to a fault), "Svvptc", "Svnapot", "Svpbmt", "Svrsw60t59b" for the bits.

use super::{Architecture, differs, gained, lost};
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
/// What a row of 64 KB has in the lowest bits of its frame, besides the bit that names it.
const NAPOT_64K: u64 = 8 << 10;

fn is(word: u64, bit: u32) -> bool {
    word >> bit & 1 != 0
}

fn is_table(word: u64) -> bool {
    !is(word, READ) && !is(word, WRITE) && !is(word, EXECUTE)
}

fn scope_of(word: u64) -> Scope {
    if is_table(word) {
        Scope::Tables
    } else {
        Scope::Leaf
    }
}

/// Reserved words fault, now or in some later version. In tables most bits are reserved.
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
        // From invalid to valid: the fence may wait for the fault, and with Svvptc there is none.
        return match caches_absent && is(new, VALID) {
            true => Need::Local(scope_of(new)),
            false => Need::Nothing,
        };
    }
    // Svpbmt: no hart may bring lines of the frame into its cache under the old memory type after the change.
    let retyped = is(new, VALID) && differs(old, new, PBMT..=PBMT + 1);
    let flush = Need::Flush(Flush {
        scope: match retyped {
            true => Scope::Tables,
            false => scope_of(old),
        },
        // Then the fence has no ASID.
        every_tag: is(old, GLOBAL),
        // The old or the new translation is used until the fence, and nothing else happens.
        break_first: false,
    });
    if !is(new, VALID)
        || is_table(old) != is_table(new)
        || differs(old, new, 10..=53)
        || differs(old, new, PBMT..=NAPOT)
        || [READ, WRITE, EXECUTE, DIRTY, GLOBAL]
            .iter()
            .any(|bit| lost(old, new, *bit))
        // The kernel never executes what belongs to user mode, and accesses it only on request.
        || differs(old, new, USER..=USER)
    {
        return flush;
    }
    // More permissions, or a bit whose absence was a fault: may wait for the fault.
    match [READ, WRITE, EXECUTE, ACCESSED, DIRTY]
        .iter()
        .any(|bit| gained(old, new, *bit))
    {
        true => Need::Local(scope_of(old)),
        false => Need::Nothing,
    }
}

const RISCV64: Architecture = Architecture {
    decode,
    rules: rules(false),
    demand: |old, new, _| demand_with(old, new, true),
    // Whether a page can be read has no field of its own, because it nearly always can.
    may_exceed: |old, new, _| gained(old, new, READ),
    is_defined,
};

const WITH_SVVPTC: Architecture = Architecture {
    rules: rules(true),
    demand: |old, new, _| demand_with(old, new, false),
    ..RISCV64
};

fn parts(more: &[u64]) -> Vec<u64> {
    let bits = [
        VALID, READ, WRITE, EXECUTE, USER, GLOBAL, ACCESSED, DIRTY, PBMT,
    ];
    let mut parts: Vec<u64> = bits.iter().map(|bit| 1 << bit).collect();
    parts.extend(more);
    parts
}

#[test]
fn pages() {
    let more = [1 << SOFTWARE, 1 << 14, 1 << NAPOT | NAPOT_64K];
    RISCV64.check_all_pairs(READ_BASE, &parts(&more), Level::LEAF);
    WITH_SVVPTC.check_all_pairs(READ_BASE, &parts(&more[1..]), Level::LEAF);
}

/// At the lowest level a word without rights would be a table, which is reserved: most words can be
/// read.
const READ_BASE: u64 = 1 << READ;

#[test]
fn large_pages_and_tables() {
    // A frame that both may have.
    let more = [1 << 19, 1 << SOFTWARE];
    RISCV64.check_all_pairs(0, &parts(&more), Level::LARGE);
    WITH_SVVPTC.check_all_pairs(0, &parts(&more), Level::LARGE);
}

#[test]
fn every_bit() {
    let words = [0, 0x2008_00d7, 0x8000_0000_2008_20d7];
    for architecture in [&RISCV64, &WITH_SVVPTC] {
        architecture.check_all_bits(&words, Level::LEAF);
        architecture.check_all_bits(
            &[0x2008_00cf, 0x2_6401, 0x2_6401 | 1 << GLOBAL],
            Level::LARGE,
        );
        architecture.check_all_bits(&[0x2_6401], Level::ROOT);
    }
}

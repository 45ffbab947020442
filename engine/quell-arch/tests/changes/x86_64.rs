//! The oracle for x86-64, from the Intel SDM, volume 3, "Caching Translation Information", above all its sections on
//! recommended and on optional invalidation; and from the AMD64 APM, volume 2, "Translation-Lookaside Buffer", and for
//! bit 51 as the encryption bit its chapter on secure memory encryption.

use super::{Architecture, LEAF, differs, gained, is, lost, parts};
use quell::{Flush, Level, Need, Scope};
use quell_arch::x86_64::entry::{Format, RULES};

const PRESENT: u32 = 0;
const WRITE: u32 = 1;
const USER: u32 = 2;
const PWT: u32 = 3;
const PCD: u32 = 4;
const ACCESSED: u32 = 5;
const DIRTY: u32 = 6;
const PS_OR_PAT: u32 = 7;
const GLOBAL: u32 = 8;
const LARGE_PAT: u32 = 12;
const ENCRYPTED: u32 = 51;
const NO_EXECUTE: u32 = 63;

fn maps_a_page(word: u64, level: Level) -> bool {
    level.0 == 0 || level.0 < 3 && word >> PS_OR_PAT & 1 != 0
}

/// Returns the flush for which a receipt isn't enough. When the new entry is written, no CPU may hold the old entry
/// (APM and SDM on changes of the page size), or cache lines of the frame under the old memory type or encryption.
fn to_the_end(flush: Flush) -> Flush {
    Flush { scope: Scope::Tables, ..flush }
}

fn demand(old: u64, new: u64, level: Level) -> Need {
    // CPUs never cache a word that isn't present.
    if !is(old, PRESENT) {
        return Need::Nothing;
    }
    let was_page = maps_a_page(old, level);
    let flush = Flush {
        scope: if was_page { Scope::Leaf } else { Scope::Tables },
        // TLBs keep global pages under every PCID. In an entry that points to a table, hardware ignores the bit.
        every_tag: was_page && is(old, GLOBAL),
        ..LEAF
    };
    if !is(new, PRESENT) {
        return Need::Flush(flush);
    }
    // A write must not change the size of a translation and anything else of it at once.
    if was_page != maps_a_page(new, level) {
        return Need::Flush(Flush { break_first: true, ..to_the_end(flush) });
    }
    // Walker caches keep these parts of a table's entry, and TLBs those of a page's: the address, R/W, U/S, XD and the
    // memory type. A change of U/S matters in both directions: the kernel loses a page that user mode gains (SMEP,
    // SMAP).
    let rights = lost(old, new, WRITE)
        || differs(old, new, USER..=USER)
        || gained(old, new, NO_EXECUTE)
        || differs(old, new, PWT..=PCD);
    if !was_page {
        let address = differs(old, new, 12..=51);
        return match address || rights {
            // The other table may contain larger or smaller pages.
            true => Need::Flush(Flush { break_first: address, ..flush }),
            false => Need::Nothing,
        };
    }
    let (low, pat) = match level.0 {
        0 => (12, PS_OR_PAT),
        1 => (21, LARGE_PAT),
        _ => (30, LARGE_PAT),
    };
    let retyped = differs(old, new, PWT..=PCD)
        || differs(old, new, pat..=pat)
        || differs(old, new, ENCRYPTED..=ENCRYPTED);
    if retyped {
        return Need::Flush(to_the_end(flush));
    }
    let page = rights
        || differs(old, new, low..=51)
        || lost(old, new, DIRTY)
        || lost(old, new, GLOBAL)
        // The protection key.
        || differs(old, new, 59..=62);
    if page { Need::Flush(flush) } else { Need::Nothing }
}

const X86_64: Architecture = Architecture {
    decode: |word, level| Format::with_encryption_bit(ENCRYPTED).decode(word, level),
    rules: RULES,
    demand,
    may_exceed: |_, _, _| false,
    is_defined: |_, _| true,
};

/// The bits that matter in every entry. Each test adds a frame bit and perhaps others.
const BITS: [u32; 12] =
    [PRESENT, WRITE, USER, PWT, ACCESSED, DIRTY, PS_OR_PAT, GLOBAL, ENCRYPTED, NO_EXECUTE, 59, 9];

#[test]
fn pages() {
    X86_64.check_all_pairs(0x5000, &parts(BITS.into_iter().chain([13])), Level::LEAF);
}

#[test]
fn large_pages_and_tables() {
    X86_64.check_all_pairs(0, &parts(BITS.into_iter().chain([21])), Level::LARGE);
    // The memory type of a large page has other bits.
    let memory = parts([PRESENT, WRITE, PWT, PCD, PS_OR_PAT, LARGE_PAT, 13, 29, 30, 31]);
    X86_64.check_all_pairs(0, &memory, Level::LARGE);
    X86_64.check_all_pairs(0, &memory, Level::HUGE);
}

#[test]
fn every_bit() {
    let words = [0, 0x1063, 0x8000_0000_1234_5067, 0x1e7, 0x7800_0000_4020_11e7, !0];
    for level in 0..4 {
        X86_64.check_all_bits(&words, Level(level));
    }
}

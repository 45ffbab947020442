//! Arm ARM (DDI 0487): C5.5 (each TLBI instruction's operand and encoding), D8.16 ("TLB maintenance"), C6.2 (DSB,
//! ISB), D24.2 (TTBR0_EL1 and the identification registers).

use super::{Case, compare};
use crate::aarch64::features::{Features, registers};
use crate::aarch64::tlb::{self, Operands, Operation};
use quell::{Frame, Page, PageRange, PageSize, Scope, Tag};
use std::vec::Vec;

/// Calls a function on all processors and on this one, for each scope.
fn in_all_forms(call: fn(Scope, bool)) {
    for broadcast in [true, false] {
        for scope in [Scope::Leaf, Scope::Tables] {
            call(scope, broadcast);
        }
    }
}

const CASES: &[Case] = &[
    // The mnemonics: V is by address, A under all ASIDs, L for the last level only, IS for the inner shareable domain.
    (
        "by address, on all processors and on this one",
        &[],
        || in_all_forms(|scope, is| unsafe { tlb::tlbi(Operation::Page(0x12), scope, is) }),
        &[
            "tlbi vale1is, x0 | x0=0x12",
            "tlbi vae1is, x0 | x0=0x12",
            "tlbi vale1, x0 | x0=0x12",
            "tlbi vae1, x0 | x0=0x12",
        ],
    ),
    // SYS #op1, Cn, Cm, #op2: RVAE1IS is 0 8 2 1, RVALE1IS 0 8 2 5, RVAE1 0 8 6 1, RVALE1 0 8 6 5.
    (
        "by range",
        &[],
        || in_all_forms(|scope, is| unsafe { tlb::tlbi(Operation::Range(0x12), scope, is) }),
        &[
            "sys #0, c8, c2, #5, x0 | x0=0x12",
            "sys #0, c8, c2, #1, x0 | x0=0x12",
            "sys #0, c8, c6, #5, x0 | x0=0x12",
            "sys #0, c8, c6, #1, x0 | x0=0x12",
        ],
    ),
    (
        "by address under all ASIDs",
        &[],
        || in_all_forms(|scope, is| unsafe { tlb::tlbi_any_tag(Operation::Page(0x12), scope, is) }),
        &[
            "tlbi vaale1is, x0 | x0=0x12",
            "tlbi vaae1is, x0 | x0=0x12",
            "tlbi vaale1, x0 | x0=0x12",
            "tlbi vaae1, x0 | x0=0x12",
        ],
    ),
    // RVAAE1IS is 0 8 2 3, RVAALE1IS 0 8 2 7, RVAAE1 0 8 6 3, RVAALE1 0 8 6 7.
    (
        "by range under all ASIDs",
        &[],
        || {
            in_all_forms(|scope, is| unsafe {
                tlb::tlbi_any_tag(Operation::Range(0x12), scope, is)
            })
        },
        &[
            "sys #0, c8, c2, #7, x0 | x0=0x12",
            "sys #0, c8, c2, #3, x0 | x0=0x12",
            "sys #0, c8, c6, #7, x0 | x0=0x12",
            "sys #0, c8, c6, #3, x0 | x0=0x12",
        ],
    ),
    // ASIDE1: the ASID in bits 63:48.
    (
        "by ASID",
        &[],
        || unsafe {
            tlb::tlbi_tag(Tag(0xabcd), true);
            tlb::tlbi_tag(Tag(0xabcd), false);
        },
        &["tlbi aside1is, x0 | x0=0xabcd000000000000", "tlbi aside1, x0 | x0=0xabcd000000000000"],
    ),
    (
        "everything at level 1",
        &[],
        || unsafe {
            tlb::tlbi_all(true);
            tlb::tlbi_all(false);
        },
        &["tlbi vmalle1is", "tlbi vmalle1"],
    ),
    // D8.16: a DSB makes stores to tables visible to walkers (ISHST for stores alone, in the domain of the processors
    // that walk). A TLBI is complete after a DSB of the domain that it reaches, and this processor's own fetches see it
    // after an ISB.
    ("table stores before a TLBI", &[], || tlb::publish_tables(), &["dsb ishst"]),
    ("the end of a TLBI of the domain", &[], || tlb::complete(), &["dsb ish; isb"]),
    ("the end of a TLBI of this processor", &[], || tlb::complete_local(), &["dsb nsh; isb"]),
    ("a full barrier", &[], || tlb::fence(), &["dsb ish"]),
    ("a barrier for fetches", &[], || unsafe { tlb::isb() }, &["isb"]),
    // TTBR0_EL1: ASID in bits 63:48, BADDR in 47:1, CnP (bit 0) clear.
    (
        "a load of TTBR0_EL1",
        &[],
        || unsafe { tlb::load_ttbr0(tlb::ttbr0(Frame(0xf_edcb_a987), Tag(0xabcd))) },
        &["msr ttbr0_el1, x0; isb | x0=0xabcdfedcba987000"],
    ),
    // Each field of its own register: ASIDBits and PARange of ID_AA64MMFR0_EL1, HAFDBS of ID_AA64MMFR1_EL1, TTL of
    // ID_AA64MMFR2_EL1, TLB of ID_AA64ISAR0_EL1.
    (
        "the identification registers",
        if cfg!(target_arch = "aarch64") {
            &[0x25, 2, 1 << 48, 2 << 56]
        } else {
            &[0x25, 2, 1 << 48, 2 << 56, 4]
        },
        || {
            let found = unsafe { Features::detect() };
            assert_eq!((found.asid_bits, found.physical_range), (16, 5));
            assert!(found.hardware_access && found.hardware_dirty);
            assert!(found.level_hint && found.range);
            // BS of DCZID_EL0: the number of words, as a power of two. On AArch64 the test reads the processor's own
            // value.
            assert!(cfg!(target_arch = "aarch64") || found.zero_block == 64);
        },
        &[
            "mrs x0, id_aa64mmfr0_el1",
            "mrs x0, id_aa64mmfr1_el1",
            "mrs x0, id_aa64mmfr2_el1",
            "mrs x0, id_aa64isar0_el1",
            "mrs x0, dczid_el0",
        ],
    ),
];

#[test]
fn instructions_are_those_of_the_manual() {
    compare(
        CASES,
        &[tlb::instructions::SHORT_BLOCKS, tlb::instructions::BLOCKS, registers::BLOCKS],
    );
}

/// Returns the operations that cover these pages.
fn operands(
    start: u64,
    pages: u64,
    stride: PageSize,
    scope: Scope,
    with: Operands,
) -> Vec<Operation> {
    let range = PageRange { start: Page(start), pages, stride };
    tlb::operations(Tag(0xabcd), range, scope, with).collect()
}

/// By address: ASID in bits 63:48, TTL in 47:44 (01 in its upper half is the granule of 4 KB, the lower half is the level
/// of the leaf), VA[55:12] in 43:0. Without FEAT_TTL the field is reserved, 0.
#[test]
fn operands_by_address_have_the_fields_of_the_manual() {
    let hints = Operands { level_hint: true, ..Operands::default() };
    for (size, leaf) in [
        (PageSize::Base, 0xabcd_7000_4000_0000),
        (PageSize::Large, 0xabcd_6000_4000_0000),
        (PageSize::Huge, 0xabcd_5000_4000_0000),
    ] {
        let one = |scope, with| operands(0x4000_0000, size.pages(), size, scope, with);
        assert_eq!(one(Scope::Leaf, hints), [Operation::Page(leaf)], "{size:?}");
        let plain = [Operation::Page(0xabcd_0000_4000_0000)];
        assert_eq!(one(Scope::Tables, hints), plain, "a table is of no leaf's level");
        assert_eq!(one(Scope::Leaf, Operands::default()), plain);
    }
    // The operand has bits 55:12 of the address, and no more.
    let high = operands(0xf_ffff_8000_0001, 1, PageSize::Base, Scope::Leaf, hints);
    assert_eq!(high, [Operation::Page(0xabcd_7fff_8000_0001)]);
}

/// By range: ASID in bits 63:48, TG in 47:46 (01: 4 KB), SCALE in 45:44, NUM in 43:39, TTL in 38:37, BaseADDR in 36:0;
/// (NUM + 1) * 2^(5 * SCALE + 1) pages are covered.
#[test]
fn operands_by_range_have_the_fields_of_the_manual() {
    let all = Operands { range: true, level_hint: true, wide_addresses: false };
    let field = |asid: u64, tg: u64, scale: u64, num: u64, ttl: u64, base: u64| {
        Operation::Range(asid << 48 | tg << 46 | scale << 44 | num << 39 | ttl << 37 | base)
    };
    // Two pages are NUM 0 of SCALE 0. From 64 pages on, a larger scale fits: 128 pages are NUM 1 of SCALE 1, for
    // example.
    for (pages, scale, num) in [
        (2, 0, 0),
        (62, 0, 30),
        (64, 1, 0),
        (128, 1, 1),
        (2048, 2, 0),
        (3 << 11, 2, 2),
        (1 << 16, 3, 0),
        (1 << 21, 3, 31),
    ] {
        let found = operands(0x1234, pages, PageSize::Base, Scope::Leaf, all);
        assert_eq!(found, [field(0xabcd, 1, scale, num, 3, 0x1234)], "{pages} pages");
        let tables = operands(0x1234, pages, PageSize::Base, Scope::Tables, all);
        assert_eq!(tables, [field(0xabcd, 1, scale, num, 0, 0x1234)]);
    }
    // The TTL of ranges of large leaves is level 2, and of huge leaves level 1.
    let large = operands(0x400, 1024, PageSize::Large, Scope::Leaf, all);
    assert_eq!(large, [field(0xabcd, 1, 1, 15, 2, 0x400)]);
    let huge = operands(1 << 18, 2 << 18, PageSize::Huge, Scope::Leaf, all);
    assert_eq!(huge, [field(0xabcd, 1, 3, 7, 1, 1 << 18)]);
    // With TCR_EL1.DS, BaseADDR is in units of 64 KB.
    let wide = Operands { wide_addresses: true, ..all };
    let found = operands(0x1230, 2, PageSize::Base, Scope::Leaf, wide);
    assert_eq!(found, [field(0xabcd, 1, 0, 0, 3, 0x123)]);
    // BaseADDR has the lower 37 bits of a sign-extended page number.
    let high = operands(0xf_ffff_8000_0000, 2, PageSize::Base, Scope::Leaf, all);
    assert_eq!(high, [field(0xabcd, 1, 0, 0, 3, 0x1f_8000_0000)]);
}

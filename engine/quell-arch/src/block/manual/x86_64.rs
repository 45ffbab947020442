//! Intel SDM volume 2 (INVLPG, INVPCID, MOV to and from control registers) and volume 3, 4.10.4.1 ("Operations that
//! Invalidate TLBs and Paging-Structure Caches"); AMD64 APM volume 3 (INVLPGB, TLBSYNC).

use super::{Case, compare};
use crate::x86_64::tlb::{self, Broadcast, Invpcid};
use quell::{Frame, Page, PageRange, PageSize, Scope, Tag};
use std::format;
use std::vec::Vec;

/// Every function that executes an instruction, in each of its ways.
const CASES: &[Case] = &[
    (
        "INVLPG takes the address of the operand, not what lies there",
        &[],
        || unsafe { tlb::invlpg(0xffff_8000_1234_5000) },
        &["invlpg [rax] | rax=0xffff800012345000"],
    ),
    // INVPCID: the type in the first operand; in the descriptor bits 11:0 the PCID, bits 63:12 zero, bits 127:64 the
    // linear address.
    (
        "INVPCID type 0: individual address",
        &[],
        || unsafe { tlb::invpcid(Invpcid::Address, Tag(0xabc), 0x7fff_1234_5000) },
        &["invpcid rax, [rcx] | rax=0x0 rcx=[0xabc,0x7fff12345000,]"],
    ),
    (
        "INVPCID type 1: single context",
        &[],
        || unsafe { tlb::invpcid(Invpcid::Tag, Tag(0xfff), 0) },
        &["invpcid rax, [rcx] | rax=0x1 rcx=[0xfff,0x0,]"],
    ),
    (
        "INVPCID type 2: all contexts, including global translations",
        &[],
        || unsafe { tlb::invpcid(Invpcid::AllAndGlobal, Tag::KERNEL, 0) },
        &["invpcid rax, [rcx] | rax=0x2 rcx=[0x0,0x0,]"],
    ),
    (
        "INVPCID type 3: all contexts but global translations",
        &[],
        || unsafe { tlb::invpcid(Invpcid::All, Tag::KERNEL, 0) },
        &["invpcid rax, [rcx] | rax=0x3 rcx=[0x0,0x0,]"],
    ),
    // CR3: bits 51:12 the root, bits 11:0 the PCID, bit 63 "do not invalidate".
    (
        "MOV to CR3 that invalidates",
        &[],
        || unsafe { tlb::load_cr3(tlb::cr3(Frame(0x1234), Tag(0x567), false)) },
        &["mov cr3, rax | rax=0x1234567"],
    ),
    (
        "MOV to CR3 with bit 63",
        &[],
        || unsafe { tlb::load_cr3(tlb::cr3(Frame(0x1234), Tag(0x567), true)) },
        &["mov cr3, rax | rax=0x8000000001234567"],
    ),
    (
        "MOV from CR3",
        &[0x5678_9abc],
        || assert_eq!(unsafe { tlb::read_cr3() }, 0x5678_9abc),
        &["mov rax, cr3"],
    ),
    // A change of CR4.PGE, bit 7, invalidates everything. The other bits must stay.
    (
        "CR4.PGE off and on again",
        &[0x3506f8],
        || unsafe { tlb::flush_all_by_cr4() },
        &["mov rax, cr4", "mov cr4, rax | rax=0x350678", "mov cr4, rax | rax=0x3506f8"],
    ),
    // INVLPGB is 0F 01 FE, TLBSYNC 0F 01 FF. rAX: bit 0 the address is valid, 1 the PCID, 2 the ASID, 3 global entries
    // too, 4 the final translation only; bits 63:12 the address. ECX: bits 15:0 the number of further pages, bit 31 set
    // if they're 2 MB. EDX: bits 15:0 the ASID, bits 27:16 the PCID.
    (
        "INVLPGB of one tag",
        &[],
        || unsafe { tlb::invlpgb(Broadcast::tag(Tag(0xabc))) },
        &[".byte 0x0f, 0x01, 0xfe | rax=0x6 ecx=0x0 edx=0xabc0000"],
    ),
    (
        "INVLPGB of all tags",
        &[],
        || unsafe { tlb::invlpgb(Broadcast::ALL) },
        &[".byte 0x0f, 0x01, 0xfe | rax=0x4 ecx=0x0 edx=0x0"],
    ),
    (
        "INVLPGB of all tags and global entries",
        &[],
        || unsafe { tlb::invlpgb(Broadcast::ALL_AND_GLOBAL) },
        &[".byte 0x0f, 0x01, 0xfe | rax=0xc ecx=0x0 edx=0x0"],
    ),
    (
        "INVLPGB of three pages of a tag, final translations, two at once",
        &[],
        || {
            let range = PageRange::base(Page(0x12345), 3);
            Broadcast::range(Tag(0xabc), range, Scope::Leaf, 2)
                .for_each(|one| unsafe { tlb::invlpgb(one) });
        },
        &[
            ".byte 0x0f, 0x01, 0xfe | rax=0x12345017 ecx=0x1 edx=0xabc0000",
            ".byte 0x0f, 0x01, 0xfe | rax=0x12347017 ecx=0x0 edx=0xabc0000",
        ],
    ),
    (
        "INVLPGB of the tables of a large page",
        &[],
        || {
            let range = PageRange::one(Page(0x400), PageSize::Large);
            Broadcast::range(Tag(1), range, Scope::Tables, 8)
                .for_each(|one| unsafe { tlb::invlpgb(one) });
        },
        &[".byte 0x0f, 0x01, 0xfe | rax=0x400007 ecx=0x80000000 edx=0x10000"],
    ),
    (
        "INVLPGB of the kernel's pages: no PCID, global entries too",
        &[],
        || {
            let range = PageRange::base(Page(0xf_ffff_8000_0000), 2);
            for scope in [Scope::Leaf, Scope::Tables] {
                Broadcast::kernel(range, scope, 8).for_each(|one| unsafe { tlb::invlpgb(one) });
            }
        },
        &[
            ".byte 0x0f, 0x01, 0xfe | rax=0xfffff8000000001d ecx=0x1 edx=0x0",
            ".byte 0x0f, 0x01, 0xfe | rax=0xfffff8000000000d ecx=0x1 edx=0x0",
        ],
    ),
    ("TLBSYNC", &[], || unsafe { tlb::tlbsync() }, &[".byte 0x0f, 0x01, 0xff"]),
    ("MFENCE", &[], || tlb::fence(), &["mfence"]),
];

#[test]
fn instructions_are_those_of_the_manual() {
    compare(CASES, &[tlb::instructions::BLOCKS]);
}

#[test]
fn a_broadcast_counts_no_more_pages_than_its_field_holds() {
    // The count has bits 15:0 of ECX, even if a processor reports a larger limit.
    let pages = (1 << 16) + 1;
    let range = PageRange::base(Page(0), pages);
    let all: Vec<_> = Broadcast::range(Tag(1), range, Scope::Leaf, u32::MAX).collect();
    let fields: Vec<_> = all.iter().map(|one| (one.rax >> 12, one.ecx)).collect();
    assert_eq!(fields, [(0, 0xffff), (1 << 16, 0)]);
    // One instruction covers at least one page, even if the processor reports a limit of 0.
    assert_eq!(Broadcast::range(Tag(1), range, Scope::Leaf, 0).count() as u64, pages);
    // 1 GB pages have the stride of 2 MB pages, and we count each stride.
    let huge = PageRange { start: Page(1 << 18), pages: 2 << 18, stride: PageSize::Huge };
    let all: Vec<_> = Broadcast::range(Tag(1), huge, Scope::Leaf, 1 << 16).collect();
    let texts: Vec<_> = all.iter().map(|one| format!("{:#x} {:#x}", one.rax, one.ecx)).collect();
    assert_eq!(texts, ["0x40000017 0x800003ff"]);
}

/// Intel SDM volume 3, "Memory Ordering", and the pages of CLZERO and of the non-temporal stores: they're weakly
/// ordered, and only an SFENCE (or MFENCE, or a locked instruction) orders them before later stores.
#[cfg(target_arch = "x86_64")]
#[test]
fn weakly_ordered_stores_are_fenced_before_the_block_ends() {
    let weak =
        |line: &&str| ["movnt", "vmovnt", "clzero"].iter().any(|start| line.starts_with(start));
    let mut found = 0;
    for block in crate::zero::x86_64::BLOCKS {
        let Some(last) = block.text.iter().rposition(weak) else {
            continue;
        };
        found += 1;
        let jump = block.text.iter().rposition(|line| line.starts_with('j'));
        let fence = block.text.iter().rposition(|line| *line == "sfence");
        assert!(fence > Some(last) && fence > jump, "{}: stores that nothing orders", block.name);
    }
    // CLZERO and the stores of 64, 128, 256 and 512 bits.
    assert_eq!(found, 5);
}

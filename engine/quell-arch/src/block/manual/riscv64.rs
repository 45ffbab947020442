//! The RISC-V privileged specification, "Supervisor Memory-Management Fence Instruction" (SFENCE.VMA rs1, rs2: rs1 is
//! the address, rs2 the ASID, x0 means all) and "Supervisor Address Translation and Protection (satp) Register" (MODE
//! in bits 63:60, ASID in 59:44, PPN in 43:0; with four levels MODE is 9); the unprivileged one for FENCE.
//!
//! We use neither Svinval nor the SBI's remote fences: we interrupt a remote CPU, which fences for itself.

use super::{Case, compare};
use crate::riscv64::tlb::{self, Operation};
use quell::{Frame, Page, PageRange, PageSize, Scope, Tag};

const CASES: &[Case] = &[
    (
        "an address under a tag",
        &[],
        || unsafe { tlb::invalidate(Operation::Page(0x1234_5000), Tag(0xabcd)) },
        &["sfence.vma a0, a1 | a0=0x12345000 a1=0xabcd"],
    ),
    (
        "all addresses under a tag",
        &[],
        || unsafe { tlb::invalidate(Operation::Tag, Tag(0xabcd)) },
        &["sfence.vma zero, a0 | a0=0xabcd"],
    ),
    (
        "an address under all tags",
        &[],
        || unsafe { tlb::invalidate_page(0x1234_5000) },
        &["sfence.vma a0, zero | a0=0x12345000"],
    ),
    ("everything", &[], || unsafe { tlb::invalidate_all() }, &["sfence.vma zero, zero"]),
    // Only an SFENCE.VMA of all addresses drops the non-leaf entries of an address.
    (
        "leaves by their strides, tables by the tag",
        &[],
        || {
            let large = PageRange { start: Page(0x200), pages: 0x400, stride: PageSize::Large };
            for scope in [Scope::Leaf, Scope::Tables] {
                tlb::operations(large, scope)
                    .for_each(|one| unsafe { tlb::invalidate(one, Tag(7)) });
            }
        },
        &[
            "sfence.vma a0, a1 | a0=0x200000 a1=0x7",
            "sfence.vma a0, a1 | a0=0x400000 a1=0x7",
            "sfence.vma zero, a0 | a0=0x7",
        ],
    ),
    (
        "a load of satp",
        &[],
        || unsafe { tlb::load_satp(tlb::satp(Frame(0x80400), Tag(0x1234))) },
        &["csrw satp, a0 | a0=0x9123400000080400"],
    ),
    (
        "a read of satp",
        &[0x9000_0000_0008_0400],
        || assert_eq!(unsafe { tlb::read_satp() }, 0x9000_0000_0008_0400),
        &["csrr a0, satp"],
    ),
    // "The number of ASID bits may be determined by writing one to every bit position in the ASID field, then reading
    // back". Entries that were filled under another ASID meanwhile are dropped after the old ASID is back.
    (
        "which bits of the ASID are there",
        &[0x9001_2000_0008_0400, 0x91ff_f000_0008_0400],
        || assert_eq!(unsafe { tlb::writable_asid() }, 0x1fff),
        &[
            "csrr a0, satp",
            "csrw satp, a0 | a0=0x9ffff00000080400",
            "csrr a0, satp",
            "csrw satp, a0 | a0=0x9001200000080400",
            "sfence.vma zero, zero",
        ],
    ),
    ("a barrier for memory", &[], || tlb::fence(), &["fence rw, rw"]),
    ("a barrier for memory and devices", &[], || tlb::fence_devices(), &["fence iorw, iorw"]),
    ("a barrier for fetches", &[], || tlb::fence_instructions(), &["fence.i"]),
];

#[test]
fn instructions_are_those_of_the_manual() {
    compare(CASES, &[tlb::instructions::SHORT_BLOCKS, tlb::instructions::BLOCKS]);
}

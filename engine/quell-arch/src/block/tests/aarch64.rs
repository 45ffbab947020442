//! The blocks of AArch64, their inputs, and blocks with wrong declarations.

use super::super::Block;
use super::PAGE;
use std::vec;
use std::vec::Vec;

/// Every table of blocks.
pub(super) const TABLES: &[&[Block]] = &[
    crate::zero::aarch64::BLOCKS,
    crate::aarch64::tlb::instructions::SHORT_BLOCKS,
    crate::aarch64::tlb::instructions::BLOCKS,
    crate::aarch64::features::registers::BLOCKS,
    crate::hints::BLOCKS,
];

/// Returns a block's inputs: registers and values. Blocks that zero get `page`.
pub(super) fn inputs(block: &Block, page: *mut u8) -> Vec<(&'static str, u64)> {
    let (at, end) = (page.addr() as u64, page.addr() as u64 + PAGE as u64);
    match block.name {
        "stnp" => vec![("x0", at), ("x1", end)],
        // SAFETY: the register may be read at every exception level.
        "dc_zva" => vec![
            ("x0", at),
            ("x1", end),
            ("x2", 4 << (unsafe { crate::aarch64::features::registers::dczid() } & 0xf)),
        ],
        "dczid" | "yield_cpu" => vec![],
        barrier if barrier.starts_with("dsb_") => vec![],
        wrong if wrong.starts_with("wrong_") => vec![],
        other => panic!("nothing is known of the inputs of {other}"),
    }
}

/// Returns whether this processor, under this operating system, has the instructions of a block.
pub(super) fn exists(block: &Block) -> bool {
    block.name != "dc_zva" || crate::zero::available().has(quell_zero::Strategy::DcZva)
}

/// Facts from the manual (Arm ARM, each instruction's page) about instructions that fault in user mode: the start of a
/// line that contains one, whether it writes its first operand, whether it changes NZCV, and whether memory accesses
/// must stay on their side of it.
pub(super) const PRIVILEGED: &[(&str, bool, bool, bool)] = &[
    ("tlbi ", false, false, true),
    // TLBI by range.
    ("sys #0, c8,", false, false, true),
    ("msr ttbr0_el1,", false, false, true),
    ("isb", false, false, true),
    ("mrs ", true, false, false),
];

wrong! {
    "wrong_general": "mov w28, w28"; [] => "changes x28 and",
    "wrong_link": "bl 2f", "2:"; [] => "changes x30 and",
    "wrong_vector": "fmov d31, d31"; [] => "changes v31 and",
    "wrong_flags": "cmp x0, x0"; [] => "changes flags and",
    "wrong_status": "msr fpsr, xzr"; [] => "changes fpsr and",
    "wrong_rounding": "msr fpcr, xzr"; [] => "changes fpcr and",
    "wrong_below_the_stack": "str xzr, [sp, #-128]"; [] => "changes stack and",
    "wrong_stack_pointer": "add sp, sp, #16"; [] => "changes sp and",
    "wrong_too_much": "nop"; ["x9"] => "leaves x9 alone and",
}

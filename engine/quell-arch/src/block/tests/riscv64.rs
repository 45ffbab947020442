//! The blocks of RISC-V, their inputs, and blocks with wrong declarations.

use super::super::Block;
use std::vec;
use std::vec::Vec;

/// Every table of blocks.
pub(super) const TABLES: &[&[Block]] =
    &[crate::riscv64::tlb::instructions::SHORT_BLOCKS, crate::riscv64::tlb::instructions::BLOCKS];

/// Returns a block's inputs: registers and values. No block here reads memory.
pub(super) fn inputs(block: &Block, _page: *mut u8) -> Vec<(&'static str, u64)> {
    match block.name {
        fence if fence.starts_with("fence_") => vec![],
        wrong if wrong.starts_with("wrong_") => vec![],
        other => panic!("nothing is known of the inputs of {other}"),
    }
}

/// Returns whether this processor, under this operating system, has the instructions of a block: all do.
pub(super) fn exists(_block: &Block) -> bool {
    true
}

/// Facts from the manual (privileged specification, each instruction's section) about instructions that fault in user
/// mode: the start of a line that contains one, whether it writes its first operand, whether it changes floating-point
/// flags, and whether memory accesses must stay on their side of it.
pub(super) const PRIVILEGED: &[(&str, bool, bool, bool)] = &[
    ("sfence.vma ", false, false, true),
    ("csrw satp,", false, false, true),
    ("csrr ", true, false, false),
];

wrong! {
    "wrong_general": "addiw s5, s5, 0"; [] => "changes s5 and",
    "wrong_link": "jal 2f", "2:"; [] => "changes ra and",
    "wrong_global_pointer": "li gp, 0"; [] => "changes gp and",
    "wrong_floating": "fneg.d f31, f31"; [] => "changes f31 and",
    "wrong_flags": "fsflagsi zero, 0"; [] => "changes flags and",
    "wrong_rounding": "fsrmi zero, 1"; [] => "changes frm and",
    "wrong_below_the_stack": "sd zero, -128(sp)"; [] => "changes stack and",
    "wrong_stack_pointer": "addi sp, sp, 16"; [] => "changes sp and",
    "wrong_too_much": "nop"; ["t1"] => "leaves t1 alone and",
}

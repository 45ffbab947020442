//! The blocks of RISC-V, their inputs, and blocks with wrong declarations.

#![allow(dead_code, reason = "only the probes of WRONG are used")]

use super::super::Block;
use std::vec;
use std::vec::Vec;

/// Every table of blocks.
pub(super) const TABLES: &[&[Block]] = &[crate::riscv64::tlb::instructions::BLOCKS];

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

blocks! {
    WRONG;

    unsafe fn wrong_general() {
        user: "addiw s5, s5, 0";
        options(nomem, nostack, preserves_flags)
    }

    unsafe fn wrong_link() {
        user: "jal 2f", "2:";
        options(nomem, nostack, preserves_flags)
    }

    unsafe fn wrong_global_pointer() {
        user: "li gp, 0";
        options(nomem, nostack, preserves_flags)
    }

    unsafe fn wrong_floating() {
        user: "fneg.d f31, f31";
        options(nomem, nostack, preserves_flags)
    }

    unsafe fn wrong_flags() {
        user: "fsflagsi zero, 0";
        options(nomem, nostack, preserves_flags)
    }

    unsafe fn wrong_rounding() {
        user: "fsrmi zero, 1";
        options(nomem, nostack, preserves_flags)
    }

    unsafe fn wrong_below_the_stack() {
        user: "sd zero, -128(sp)";
        options(nostack, preserves_flags)
    }

    unsafe fn wrong_stack_pointer() {
        user: "addi sp, sp, 16";
        options(nomem, nostack, preserves_flags)
    }

    unsafe fn wrong_too_much() {
        user: "nop";
        out("t1"),
        options(nomem, nostack, preserves_flags)
    }
}

/// The expected complaint about each of [`WRONG`].
pub(super) const COMPLAINTS: &[&str] = &[
    "wrong_general changes s5 and",
    "wrong_link changes ra and",
    "wrong_global_pointer changes gp and",
    "wrong_floating changes f31 and",
    "wrong_flags changes flags and",
    "wrong_rounding changes frm and",
    "wrong_below_the_stack changes stack and",
    "wrong_stack_pointer changes sp and",
    "wrong_too_much leaves t1 alone and",
];

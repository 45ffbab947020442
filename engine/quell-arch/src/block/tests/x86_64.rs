//! The blocks of x86-64, their inputs, and blocks with wrong declarations.

#![allow(dead_code, reason = "only the probes of WRONG are used")]

use super::super::Block;
use super::PAGE;
use std::vec;
use std::vec::Vec;

/// Every table of blocks.
pub(super) const TABLES: &[&[Block]] =
    &[crate::zero::x86_64::BLOCKS, crate::x86_64::tlb::instructions::BLOCKS];

/// Returns a block's inputs: registers and values. Blocks that zero get `page`.
pub(super) fn inputs(block: &Block, page: *mut u8) -> Vec<(&'static str, u64)> {
    let (at, end) = (page.addr() as u64, page.addr() as u64 + PAGE as u64);
    match block.name {
        "xcr0" => vec![("ecx", 0)],
        "rep_stosb" => vec![("eax", 0), ("rdi", at), ("rcx", PAGE as u64)],
        "rep_stosq" => vec![("rax", 0), ("rdi", at), ("rcx", PAGE as u64 / 8)],
        "clzero" => vec![("rax", at), ("rsi", end)],
        "nt64" => vec![("rax", 0), ("rdi", at), ("rsi", end)],
        "nt128" | "nt256" | "nt512" => vec![("rdi", at), ("rsi", end)],
        "mfence" => vec![],
        wrong if wrong.starts_with("wrong_") => vec![],
        other => panic!("nothing is known of the inputs of {other}"),
    }
}

/// Returns whether this processor, under this operating system, has the instructions of a block.
pub(super) fn exists(block: &Block) -> bool {
    match block.name {
        "xcr0" => std::is_x86_feature_detected!("xsave"),
        "clzero" => crate::x86_64::features::Features::detect().clzero,
        "nt256" | "wrong_upper_halves" => std::is_x86_feature_detected!("avx"),
        "nt512" | "wrong_upper_vector" => std::is_x86_feature_detected!("avx512f"),
        "wrong_mask" => std::is_x86_feature_detected!("avx512bw"),
        _ => true,
    }
}

/// Facts from the manuals (Intel SDM and AMD64 APM, each instruction's page) about instructions that fault in user
/// mode: the start of a line that contains one, whether it writes its first operand, whether it changes status flags or
/// leaves them undefined, and whether memory accesses must stay on their side of it.
pub(super) const PRIVILEGED: &[(&str, bool, bool, bool)] = &[
    ("invlpg ", false, false, true),
    ("invpcid ", false, false, true),
    ("mov cr3,", false, true, true),
    ("mov cr4,", false, true, true),
    // Reads: the first operand is the general register that follows `mov`.
    ("mov ", true, true, false),
    // INVLPGB and TLBSYNC.
    (".byte 0x0f, 0x01, 0xfe", false, false, true),
    (".byte 0x0f, 0x01, 0xff", false, false, true),
];

blocks! {
    WRONG;

    unsafe fn wrong_upper_halves() {
        user: "vpxor xmm0, xmm0, xmm0", "vzeroupper";
        out("xmm0"),
        options(nomem, nostack, preserves_flags)
    }

    unsafe fn wrong_upper_vector() {
        user: "vpxord zmm31, zmm31, zmm31";
        options(nomem, nostack, preserves_flags)
    }

    unsafe fn wrong_mask() {
        user: "kxorq k7, k7, k7";
        options(nomem, nostack, preserves_flags)
    }

    unsafe fn wrong_general() {
        user: "mov r15d, r15d";
        options(nomem, nostack, preserves_flags)
    }

    unsafe fn wrong_flags() {
        user: "cmp rax, rax";
        options(nomem, nostack, preserves_flags)
    }

    unsafe fn wrong_direction() {
        user: "std";
        options(nomem, nostack)
    }

    unsafe fn wrong_red_zone() {
        user: "push rax", "pop rax";
        options(nomem, nostack, preserves_flags)
    }

    unsafe fn wrong_end_of_red_zone() {
        user: "mov byte ptr [rsp - 128], 0";
        options(nostack, preserves_flags)
    }

    unsafe fn wrong_stack_pointer() {
        user: "lea rsp, [rsp + 8]";
        options(nomem, nostack, preserves_flags)
    }

    unsafe fn wrong_rounding() {
        user: "mov dword ptr [rsp - 4], 0x1f80", "ldmxcsr [rsp - 4]";
        options(preserves_flags)
    }

    unsafe fn wrong_floating_point() {
        user: "fninit";
        options(nomem, nostack, preserves_flags)
    }

    unsafe fn wrong_media() {
        user: "pcmpeqd mm3, mm3";
        options(nomem, nostack, preserves_flags)
    }

    unsafe fn wrong_too_much() {
        user: "nop";
        out("r9"),
        options(nomem, nostack, preserves_flags)
    }
}

/// The expected complaint about each of [`WRONG`].
pub(super) const COMPLAINTS: &[&str] = &[
    "wrong_upper_halves changes xmm15 and",
    "wrong_upper_vector changes xmm31 and",
    "wrong_mask changes k7 and",
    "wrong_general changes r15 and",
    "wrong_flags changes flags and",
    "wrong_direction changes flags other than the status flags",
    "wrong_red_zone changes stack and",
    "wrong_end_of_red_zone changes stack and",
    "wrong_stack_pointer changes rsp and",
    "wrong_rounding changes mxcsr and",
    "wrong_floating_point changes x87 and",
    "wrong_media changes x87 and",
    "wrong_too_much leaves r9 alone and",
];

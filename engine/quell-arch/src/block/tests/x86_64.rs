//! The blocks of x86-64, their inputs, and blocks with wrong declarations.

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

wrong! {
    "wrong_upper_halves": "vpxor xmm0, xmm0, xmm0", "vzeroupper"; ["xmm0"] => "changes xmm15 and",
    "wrong_upper_vector": "vpxord zmm31, zmm31, zmm31"; [] => "changes xmm31 and",
    "wrong_mask": "kxorq k7, k7, k7"; [] => "changes k7 and",
    "wrong_general": "mov r15d, r15d"; [] => "changes r15 and",
    "wrong_flags": "cmp rax, rax"; [] => "changes flags and",
    "wrong_direction": "std"; [] => "changes flags other than the status flags",
    "wrong_red_zone": "push rax", "pop rax"; [] => "changes stack and",
    "wrong_end_of_red_zone": "mov byte ptr [rsp - 128], 0"; [] => "changes stack and",
    "wrong_stack_pointer": "lea rsp, [rsp + 8]"; [] => "changes rsp and",
    "wrong_rounding": "mov dword ptr [rsp - 4], 0x1f80", "ldmxcsr [rsp - 4]";
        [] => "changes mxcsr and",
    "wrong_floating_point": "fninit"; [] => "changes x87 and",
    "wrong_media": "pcmpeqd mm3, mm3"; [] => "changes x87 and",
    "wrong_too_much": "nop"; ["r9"] => "leaves r9 alone and",
}

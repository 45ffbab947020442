//! x86-64: string instructions, `clzero` and non-temporal stores of every width.
//!
//! All of it is inline assembly: it must stay the instruction it names, it must assemble for
//! targets without vector registers (the kernel's), where intrinsics do not exist, and it may run
//! only where [`available`] says so, which the compiler cannot know.

use super::{in_blocks, portable};
use crate::x86_64::features::{Features, cpuid};
use core::arch::asm;
use quell_zero::{Available, Caches, Strategy};

/// Bytes that one turn of a non-temporal loop writes, and that `clzero` zeroes: a cache line on
/// every x86-64 processor so far.
const LINE: usize = 64;

/// See [`super::available`].
pub fn available() -> Available {
    let features = Features::detect();
    let (avx, avx512) = vectors(cpuid, xcr0);
    [
        (features.erms, Strategy::RepStos),
        (true, Strategy::RepStosq),
        (features.clzero, Strategy::Clzero),
        (true, Strategy::NonTemporal64),
        (true, Strategy::NonTemporal128),
        (avx, Strategy::NonTemporal256),
        (avx512, Strategy::NonTemporal512),
    ]
    .into_iter()
    .filter(|(there, _)| *there)
    .fold(Available::STORES, |set, (_, strategy)| set.with(strategy))
}

/// See [`super::caches`].
pub fn caches() -> Caches {
    decode_caches(cpuid)
}

/// Reads XCR0: which parts of the vector state the operating system saves. Only where CPUID has
/// OSXSAVE.
fn xcr0() -> u32 {
    let low: u32;
    // SAFETY: only called where CPUID reports OSXSAVE, so the instruction exists and is enabled in
    // every mode; it reads a register.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _,
            options(nomem, nostack, preserves_flags));
    }
    low
}

/// Whether AVX and AVX-512F may be used: the processor has them and the operating system saves the
/// registers.
fn vectors(cpuid: impl Fn(u32, u32) -> [u32; 4], xcr0: impl Fn() -> u32) -> (bool, bool) {
    const YMM: u32 = 0b110;
    const ZMM: u32 = 0b1110_0110;
    let ecx1 = cpuid(1, 0)[2];
    let (osxsave, avx) = (ecx1 >> 27 & 1 != 0, ecx1 >> 28 & 1 != 0);
    if !osxsave || !avx {
        return (false, false);
    }
    let enabled = xcr0();
    let avx512f = cpuid(0, 0)[0] >= 7 && cpuid(7, 0)[1] >> 16 & 1 != 0;
    let avx = enabled & YMM == YMM;
    (avx, avx && avx512f && enabled & ZMM == ZMM)
}

/// Decodes the cache leaf: number 4 on Intel, 0x8000001d with the same layout on AMD.
fn decode_caches(cpuid: impl Fn(u32, u32) -> [u32; 4]) -> Caches {
    let has_topology = cpuid(0x8000_0000, 0)[0] >= 0x8000_001d
        // TopologyExtensions; reserved on Intel, which has leaf 4.
        && cpuid(0x8000_0001, 0)[2] >> 22 & 1 != 0;
    let leaf = match (has_topology, cpuid(0, 0)[0] >= 4) {
        (true, _) => 0x8000_001d,
        (false, true) => 4,
        (false, false) => return Caches::default(),
    };
    let mut caches = Caches::default();
    // No processor lists more than a handful; a hypervisor may fail to end the list.
    for subleaf in 0..16 {
        let [eax, ebx, ecx, _] = cpuid(leaf, subleaf);
        let (kind, level) = (eax & 0x1f, eax >> 5 & 7);
        if kind == 0 {
            break;
        }
        if kind == 2 {
            // Instructions only.
            continue;
        }
        let line = u64::from(ebx & 0xfff) + 1;
        let partitions = u64::from(ebx >> 12 & 0x3ff) + 1;
        let ways = u64::from(ebx >> 22) + 1;
        let bytes = line * partitions * ways * (u64::from(ecx) + 1);
        match level {
            1 => caches.l1d = bytes,
            2 => caches.l2 = bytes,
            _ => {}
        }
        caches.last = caches.last.max(bytes);
    }
    caches
}

/// A loop of non-temporal stores: the register is cleared once, each turn writes one line with the
/// stores given, and the vector state that other code would trip over is left clean.
macro_rules! non_temporal {
    ($(#[$doc:meta])* $name:ident, $clear:literal, [$($store:literal),+], $leave:literal) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As for [`super::zero`]; `start` is aligned to [`LINE`] and `bytes` is a multiple of it,
        /// not 0.
        unsafe fn $name(start: *mut u8, bytes: usize) {
            // SAFETY: writes `bytes` bytes from `start` and nothing else; the register it uses is
            // declared overwritten; the caller guarantees the instruction set.
            unsafe {
                asm!(
                    $clear,
                    "2:",
                    $($store,)+
                    "add {at}, 64",
                    "cmp {at}, {end}",
                    "jne 2b",
                    "sfence",
                    $leave,
                    at = inout(reg) start => _,
                    end = in(reg) start.add(bytes),
                    out("xmm0") _,
                    options(nostack),
                );
            }
        }
    };
}

non_temporal!(
    /// Stores of 128 bits, SSE2.
    nt128,
    "pxor xmm0, xmm0",
    [
        "movntdq [{at}], xmm0",
        "movntdq [{at} + 16], xmm0",
        "movntdq [{at} + 32], xmm0",
        "movntdq [{at} + 48], xmm0"
    ],
    ""
);
non_temporal!(
    /// Stores of 256 bits, AVX.
    nt256,
    "vpxor xmm0, xmm0, xmm0",
    ["vmovntdq [{at}], ymm0", "vmovntdq [{at} + 32], ymm0"],
    "vzeroupper"
);
non_temporal!(
    /// Stores of 512 bits, AVX-512F.
    nt512,
    "vpxor xmm0, xmm0, xmm0",
    ["vmovntdq [{at}], zmm0"],
    "vzeroupper"
);

/// Non-temporal stores of 64 bits from a general register.
///
/// # Safety
///
/// As for [`super::zero`]; `start` is aligned to [`LINE`] and `bytes` is a multiple of it, not 0.
unsafe fn nt64(start: *mut u8, bytes: usize) {
    // SAFETY: writes `bytes` bytes from `start` and nothing else; SSE2 is part of x86-64.
    unsafe {
        asm!(
            "2:",
            "movnti [{at}], {zero}",
            "movnti [{at} + 8], {zero}",
            "movnti [{at} + 16], {zero}",
            "movnti [{at} + 24], {zero}",
            "movnti [{at} + 32], {zero}",
            "movnti [{at} + 40], {zero}",
            "movnti [{at} + 48], {zero}",
            "movnti [{at} + 56], {zero}",
            "add {at}, 64",
            "cmp {at}, {end}",
            "jne 2b",
            "sfence",
            at = inout(reg) start => _,
            end = in(reg) start.add(bytes),
            zero = in(reg) 0u64,
            options(nostack),
        );
    }
}

/// `clzero` for each line.
///
/// # Safety
///
/// As for [`super::zero`]; `start` is aligned to [`LINE`] and `bytes` is a multiple of it, not 0.
unsafe fn clzero(start: *mut u8, bytes: usize) {
    // SAFETY: each turn zeroes the line at rax, from `start` up to `start + bytes`.
    unsafe {
        asm!(
            "2:",
            "clzero",
            "add rax, 64",
            "cmp rax, {end}",
            "jne 2b",
            "sfence",
            inout("rax") start => _,
            end = in(reg) start.add(bytes),
            options(nostack),
        );
    }
}

/// See [`super::zero`].
///
/// # Safety
///
/// As for [`super::zero`].
#[inline]
pub unsafe fn zero(start: *mut u8, bytes: usize, strategy: Strategy) {
    // SAFETY: the caller owns the run and vouches for the strategy; `in_blocks` hands out only
    // whole aligned lines. The direction flag is clear on entry to any asm block.
    unsafe {
        match strategy {
            Strategy::RepStos => asm!(
                "rep stosb",
                inout("rdi") start => _, inout("rcx") bytes => _, in("eax") 0,
                options(nostack, preserves_flags),
            ),
            Strategy::RepStosq => in_blocks(start, bytes, 8, |at, bytes| {
                asm!(
                    "rep stosq",
                    inout("rdi") at => _, inout("rcx") bytes / 8 => _, in("rax") 0u64,
                    options(nostack, preserves_flags),
                )
            }),
            Strategy::Clzero => in_blocks(start, bytes, LINE, |at, n| clzero(at, n)),
            Strategy::NonTemporal64 => in_blocks(start, bytes, LINE, |at, n| nt64(at, n)),
            Strategy::NonTemporal128 => in_blocks(start, bytes, LINE, |at, n| nt128(at, n)),
            Strategy::NonTemporal256 => in_blocks(start, bytes, LINE, |at, n| nt256(at, n)),
            Strategy::NonTemporal512 => in_blocks(start, bytes, LINE, |at, n| nt512(at, n)),
            _ => portable::stores(start, bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_need_the_processor_and_the_operating_system() {
        let cpu = |ecx1: u32, ebx7: u32| {
            move |leaf: u32, _: u32| match leaf {
                0 => [7, 0, 0, 0],
                1 => [0, 0, ecx1, 0],
                7 => [0, ebx7, 0, 0],
                _ => [0; 4],
            }
        };
        let (osxsave, avx, avx512f) = (1 << 27, 1 << 28, 1 << 16);
        let full = cpu(osxsave | avx, avx512f);
        assert_eq!(vectors(full, || 0b1110_0111), (true, true));
        assert_eq!(vectors(full, || 0b111), (true, false));
        assert_eq!(vectors(full, || 0b11), (false, false));
        assert_eq!(vectors(cpu(osxsave | avx, 0), || 0xff), (true, false));
        assert_eq!(vectors(cpu(osxsave, avx512f), || 0xff), (false, false));
        assert_eq!(
            vectors(cpu(avx, avx512f), || panic!("xgetbv without OSXSAVE")),
            (false, false)
        );
    }

    #[test]
    fn caches_are_decoded_from_either_leaf() {
        // A 48 KB 12-way first level, an instruction cache, a 2 MB 16-way second level, and a
        // last level of 32 MB: kind and level in eax, line and ways in ebx, sets in ecx.
        let entries = [
            [1 | 1 << 5, 11 << 22 | 63, 63, 0],
            [2 | 1 << 5, 7 << 22 | 63, 63, 0],
            [3 | 2 << 5, 15 << 22 | 63, 2047, 0],
            [3 | 3 << 5, 15 << 22 | 63, 32767, 0],
        ];
        let list = |subleaf: u32| entries.get(subleaf as usize).copied().unwrap_or([0; 4]);
        let intel = |leaf: u32, subleaf: u32| match leaf {
            0 => [0x1b, 0, 0, 0],
            4 => list(subleaf),
            0x8000_0000 => [0x8000_0008, 0, 0, 0],
            _ => [0; 4],
        };
        let amd = |leaf: u32, subleaf: u32| match leaf {
            0 => [0x10, 0, 0, 0],
            0x8000_0000 => [0x8000_0028, 0, 0, 0],
            0x8000_0001 => [0, 0, 1 << 22, 0],
            0x8000_001d => list(subleaf),
            _ => [0; 4],
        };
        let want = Caches {
            l1d: 48 << 10,
            l2: 2 << 20,
            last: 32 << 20,
        };
        assert_eq!(decode_caches(intel), want);
        assert_eq!(decode_caches(amd), want);
        assert_eq!(decode_caches(|_, _| [0; 4]), Caches::default());
        // A list that does not end.
        assert_eq!(decode_caches(|_, _| [1 | 1 << 5; 4]).l2, 0);
    }
}

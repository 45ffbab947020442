//! x86-64: string instructions, `clzero` and non-temporal stores of every width.
//!
//! We use inline assembly for three reasons. The code must stay the instruction that it names. It must assemble for
//! targets without vector registers (the kernel's), where intrinsics don't exist. And it may run only where
//! [`available`] reports the strategy, which the compiler can't know.
//!
//! The loops of 256 and 512 bits end with `vzeroupper`, so that later SSE code isn't slowed down. That clears the upper
//! parts of *all* of the first sixteen vector registers. We declare each of them, because a caller that was compiled
//! for AVX may inline the loop and keep a value in any of them.

use super::portable::{self, in_blocks};
use crate::x86_64::features::{Features, cpuid};
use quell_zero::{Caches, Strategy, StrategySet};

/// The bytes that one turn of a non-temporal loop writes, and that `clzero` zeroes: a cache line on every x86-64
/// processor so far.
const LINE: usize = 64;

/// `rep stosq`: every x86-64 processor has it.
pub const PAGE: Strategy = Strategy::RepStosq;

/// Implements [`super::available`].
pub fn available() -> StrategySet {
    let features = Features::detect();
    // SAFETY: `vectors` calls it only where CPUID has OSXSAVE.
    let (avx, avx512) = vectors(cpuid, || unsafe { xcr0() });
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
    .fold(StrategySet::STORES, |set, (_, strategy)| set.with(strategy))
}

/// Implements [`super::caches`].
pub fn caches() -> Caches {
    decode_caches(cpuid)
}

/// Returns whether AVX and AVX-512F may be used: the processor has them, and the operating system saves the registers.
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
        // The bit TopologyExtensions, which is reserved on Intel: Intel has leaf 4.
        && cpuid(0x8000_0001, 0)[2] >> 22 & 1 != 0;
    let leaf = match (has_topology, cpuid(0, 0)[0] >= 4) {
        (true, _) => 0x8000_001d,
        (false, true) => 4,
        (false, false) => return Caches::default(),
    };
    let mut caches = Caches::default();
    // No processor lists more than a handful of caches, but a hypervisor may fail to end the list.
    for subleaf in 0..16 {
        let [eax, ebx, ecx, _] = cpuid(leaf, subleaf);
        let (kind, level) = (eax & 0x1f, eax >> 5 & 7);
        if kind == 0 {
            break;
        }
        if kind == 2 {
            // An instruction cache.
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

blocks! {
    BLOCKS;

    /// Reads XCR0: the parts of the vector state that the operating system saves.
    ///
    /// # Safety
    /// CPUID has OSXSAVE.
    unsafe fn xcr0() -> u32 {
        user: "xgetbv";
        in("ecx") 0u32,
        out("edx"),
        returns("eax"),
        options(nomem, nostack, preserves_flags)
    }

    /// Zeroes `bytes` bytes from `at`.
    ///
    /// # Safety
    /// As for [`super::zero`].
    unsafe fn rep_stosb(at: *mut u8, bytes: usize) {
        user: "rep stosb";
        in("eax") 0u32,
        inout("rdi") at,
        inout("rcx") bytes,
        options(nostack, preserves_flags)
    }

    /// Zeroes `words` words of eight bytes from `at`.
    ///
    /// # Safety
    /// As for [`super::zero`].
    unsafe fn rep_stosq(at: *mut u8, words: usize) {
        user: "rep stosq";
        in("rax") 0u64,
        inout("rdi") at,
        inout("rcx") words,
        options(nostack, preserves_flags)
    }

    /// Executes `clzero` for each line from `at` to `end`.
    ///
    /// # Safety
    /// As for [`super::zero`]. `at` and `end` are aligned to [`LINE`], and `end` is beyond `at`.
    unsafe fn clzero(at: *mut u8, end: *mut u8) {
        user: "2:", "clzero", "add rax, 64", "cmp rax, rsi", "jne 2b", "sfence";
        in("rsi") end,
        inout("rax") at,
        options(nostack)
    }

    /// Zeroes memory from `at` to `end` with non-temporal stores of 64 bits.
    ///
    /// # Safety
    /// As for [`super::zero`]. `at` and `end` are aligned to [`LINE`], and `end` is beyond `at`.
    unsafe fn nt64(at: *mut u8, end: *mut u8) {
        user:
            "2:",
            "movnti [rdi], rax",
            "movnti [rdi + 8], rax",
            "movnti [rdi + 16], rax",
            "movnti [rdi + 24], rax",
            "movnti [rdi + 32], rax",
            "movnti [rdi + 40], rax",
            "movnti [rdi + 48], rax",
            "movnti [rdi + 56], rax",
            "add rdi, 64",
            "cmp rdi, rsi",
            "jne 2b",
            "sfence";
        in("rax") 0u64,
        in("rsi") end,
        inout("rdi") at,
        options(nostack)
    }

    /// Zeroes memory from `at` to `end` with non-temporal stores of 128 bits (SSE2).
    ///
    /// # Safety
    /// As for [`super::zero`]. `at` and `end` are aligned to [`LINE`], and `end` is beyond `at`.
    unsafe fn nt128(at: *mut u8, end: *mut u8) {
        user:
            "pxor xmm0, xmm0",
            "2:",
            "movntdq [rdi], xmm0",
            "movntdq [rdi + 16], xmm0",
            "movntdq [rdi + 32], xmm0",
            "movntdq [rdi + 48], xmm0",
            "add rdi, 64",
            "cmp rdi, rsi",
            "jne 2b",
            "sfence";
        in("rsi") end,
        inout("rdi") at,
        out("xmm0"),
        options(nostack)
    }

    /// Zeroes memory from `at` to `end` with non-temporal stores of 256 bits (AVX).
    ///
    /// # Safety
    /// As for [`super::zero`]. `at` and `end` are aligned to [`LINE`], and `end` is beyond `at`.
    unsafe fn nt256(at: *mut u8, end: *mut u8) {
        user:
            "vpxor xmm0, xmm0, xmm0",
            "2:",
            "vmovntdq [rdi], ymm0",
            "vmovntdq [rdi + 32], ymm0",
            "add rdi, 64",
            "cmp rdi, rsi",
            "jne 2b",
            "sfence",
            "vzeroupper";
        in("rsi") end,
        inout("rdi") at,
        out("xmm0"), out("xmm1"), out("xmm2"), out("xmm3"),
        out("xmm4"), out("xmm5"), out("xmm6"), out("xmm7"),
        out("xmm8"), out("xmm9"), out("xmm10"), out("xmm11"),
        out("xmm12"), out("xmm13"), out("xmm14"), out("xmm15"),
        options(nostack)
    }

    /// Zeroes memory from `at` to `end` with non-temporal stores of 512 bits (AVX-512F).
    ///
    /// # Safety
    /// As for [`super::zero`]. `at` and `end` are aligned to [`LINE`], and `end` is beyond `at`.
    unsafe fn nt512(at: *mut u8, end: *mut u8) {
        user:
            "vpxor xmm0, xmm0, xmm0",
            "2:",
            "vmovntdq [rdi], zmm0",
            "add rdi, 64",
            "cmp rdi, rsi",
            "jne 2b",
            "sfence",
            "vzeroupper";
        in("rsi") end,
        inout("rdi") at,
        out("xmm0"), out("xmm1"), out("xmm2"), out("xmm3"),
        out("xmm4"), out("xmm5"), out("xmm6"), out("xmm7"),
        out("xmm8"), out("xmm9"), out("xmm10"), out("xmm11"),
        out("xmm12"), out("xmm13"), out("xmm14"), out("xmm15"),
        options(nostack)
    }
}

/// Implements [`super::zero`].
///
/// # Safety
///
/// As for [`super::zero`].
#[inline]
pub unsafe fn zero(start: *mut u8, bytes: usize, strategy: Strategy) {
    // SAFETY: the caller owns the run and vouches for the strategy; `in_blocks` passes only whole aligned lines. The
    // direction flag is clear on entry to any asm block.
    unsafe {
        let lines = |body: unsafe fn(*mut u8, *mut u8)| {
            in_blocks(start, bytes, LINE, |at, n| body(at, at.add(n)))
        };
        match strategy {
            Strategy::RepStos => rep_stosb(start, bytes),
            Strategy::RepStosq => in_blocks(start, bytes, 8, |at, n| rep_stosq(at, n / 8)),
            Strategy::Clzero => lines(clzero),
            Strategy::NonTemporal64 => lines(nt64),
            Strategy::NonTemporal128 => lines(nt128),
            Strategy::NonTemporal256 => lines(nt256),
            Strategy::NonTemporal512 => lines(nt512),
            _ => portable::stores(start, bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::arch::x86_64::{
        __m256d, __m512d, _mm256_add_pd, _mm256_set1_pd, _mm512_add_pd, _mm512_set1_pd,
    };
    use core::hint::black_box;

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
        assert_eq!(vectors(cpu(avx, avx512f), || panic!("xgetbv without OSXSAVE")), (false, false));
    }

    #[test]
    fn caches_are_decoded_from_either_leaf() {
        // A 48 KB 12-way first level, an instruction cache, a 2 MB 16-way second level, and a last level of 32 MB: kind
        // and level in eax, line and ways in ebx, sets in ecx.
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
        let want = Caches { l1d: 48 << 10, l2: 2 << 20, last: 32 << 20 };
        assert_eq!(decode_caches(intel), want);
        assert_eq!(decode_caches(amd), want);
        assert_eq!(decode_caches(|_, _| [0; 4]), Caches::default());
        // A list of caches without an end.
        assert_eq!(decode_caches(|_, _| [1 | 1 << 5; 4]).l2, 0);
    }

    /// Defines a caller that was compiled with more features than the crate. It inlines a loop, and keeps values in
    /// registers that the crate's own code can't name.
    macro_rules! sum_around {
        ($name:ident, $feature:literal, $block:ident, $set:ident, $add:ident, $vector:ty) => {
            #[target_feature(enable = $feature)]
            fn $name(page: &mut Page) -> f64 {
                let vectors: [$vector; 8] = core::array::from_fn(|_| $set(black_box(1.5)));
                let range = page.0.as_mut_ptr_range();
                // SAFETY: the page is borrowed exclusively and aligned; the feature is there.
                unsafe { $block(range.start.cast(), range.end.cast()) };
                let sum = vectors.into_iter().reduce(|a, b| $add(a, b)).unwrap();
                // SAFETY: a vector of floating-point numbers.
                let lanes: [f64; size_of::<$vector>() / 8] = unsafe { core::mem::transmute(sum) };
                lanes.iter().sum()
            }
        };
    }
    #[repr(align(4096))]
    struct Page([u64; 512]);
    sum_around!(sum_of_four, "avx", nt256, _mm256_set1_pd, _mm256_add_pd, __m256d);
    sum_around!(sum_of_eight, "avx512f", nt512, _mm512_set1_pd, _mm512_add_pd, __m512d);

    #[test]
    fn values_of_newer_callers_survive() {
        let mut page = Page([!0; 512]);
        if std::is_x86_feature_detected!("avx") {
            // SAFETY: the processor has the feature.
            assert_eq!(unsafe { sum_of_four(&mut page) }, 1.5 * 8.0 * 4.0);
        }
        if std::is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has the feature.
            assert_eq!(unsafe { sum_of_eight(&mut page) }, 1.5 * 8.0 * 8.0);
        }
    }
}

//! The contenders of the comparison: ways to write memory.

use quell_zero::Strategy;

const PAGE: u64 = 4096;

/// A way to write memory that takes part in the comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contender {
    /// A strategy of the engine, which knows the length of the extent.
    Clear(Strategy),
    /// The same, and then one read of every byte: to calibrate for memory that is read next.
    ClearAndRead(Strategy),
    /// glibc's `memset` with zero, which knows the length of the extent.
    Memset,
    /// The string instruction, 4 KB at a time: the baseline kernel.
    PageByPage,
    /// glibc's `memset` with a byte that isn't zero: for the peak only.
    FillMemset,
    /// Streaming stores of 128 bits that aren't zero: for the peak only.
    FillStream,
}

impl Contender {
    /// Returns the name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Contender::Clear(strategy) | Contender::ClearAndRead(strategy) => strategy.name(),
            Contender::Memset => "memset",
            Contender::PageByPage => "page-by-page",
            Contender::FillMemset => "fill-memset",
            Contender::FillStream => "fill-stream",
        }
    }

    /// Writes `bytes` from `start`, which is aligned to a page.
    ///
    /// # Safety
    ///
    /// The memory is valid for writes and accessed by nothing else. If the contender has a strategy, it's available
    /// here.
    pub unsafe fn write(self, start: *mut u8, bytes: u64) {
        let length = bytes as usize;
        // SAFETY: as the caller promises.
        unsafe {
            match self {
                Contender::Clear(strategy) => quell_arch::zero::zero(start, length, strategy),
                Contender::ClearAndRead(strategy) => {
                    quell_arch::zero::zero(start, length, strategy);
                    std::hint::black_box(sum(start, bytes));
                }
                Contender::Memset => {
                    libc::memset(start.cast(), 0, length);
                }
                Contender::PageByPage => {
                    for page in (0..length).step_by(PAGE as usize) {
                        clear_page(start.add(page));
                    }
                }
                Contender::FillMemset => {
                    libc::memset(start.cast(), 0x5a, length);
                }
                Contender::FillStream => stream(start, length),
            }
        }
    }
}

/// Reads every line of a run and returns a sum that depends on it.
///
/// # Safety
///
/// The run is valid for reads and a multiple of eight bytes from an aligned address.
#[inline(never)]
pub unsafe fn sum(start: *const u8, bytes: u64) -> u64 {
    let words = start.cast::<u64>();
    // SAFETY: within the run.
    (0..bytes as usize / 8).fold(0, |sum, i| sum | unsafe { words.add(i).read() })
}

/// Zeroes a page as a kernel without extents does.
///
/// # Safety
///
/// The page is valid for writes and accessed by nothing else.
#[inline(never)]
unsafe fn clear_page(page: *mut u8) {
    // SAFETY: as the caller promises; `rep stosq` is part of x86-64, and Linux on Arm needs `dc zva` itself.
    unsafe { quell_arch::zero::zero(page, PAGE as usize, quell_arch::zero::PAGE) }
}

/// Writes bytes that aren't zero with streaming stores.
///
/// # Safety
///
/// The memory is valid for writes, aligned to 16 bytes, a multiple of 16 bytes long, and accessed by nothing else.
unsafe fn stream(start: *mut u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 is part of x86-64; the addresses are within the range.
    unsafe {
        use std::arch::x86_64::{_mm_set1_epi8, _mm_sfence, _mm_stream_si128};
        let value = _mm_set1_epi8(0x5a);
        for at in (0..bytes).step_by(16) {
            _mm_stream_si128(start.add(at).cast(), value);
        }
        _mm_sfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as the caller promises.
    unsafe {
        libc::memset(start.cast(), 0x5a, bytes);
    }
}

/// Contenders at the greatest length only, for the peak.
pub const FILLS: &[Contender] = &[Contender::FillMemset, Contender::FillStream];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clear::region::{HUGE, Region};

    #[test]
    fn contenders_write_all_they_are_given() {
        let mut region = Region::new(4 * HUGE).unwrap();
        for contender in quell_arch::zero::available()
            .iter()
            .flat_map(|strategy| [Contender::Clear(strategy), Contender::ClearAndRead(strategy)])
            .chain([Contender::Memset, Contender::PageByPage])
            .chain(FILLS.iter().copied())
        {
            let start = region.span(4 * HUGE);
            // SAFETY: the region's own memory, initialised by `Region::new`.
            let bytes = unsafe {
                libc::memset(start.cast(), 0xa5, (4 * HUGE) as usize);
                contender.write(start, 2 * HUGE);
                std::slice::from_raw_parts(start, (4 * HUGE) as usize)
            };
            let value = if FILLS.contains(&contender) { 0x5a } else { 0 };
            let (written, rest) = bytes.split_at((2 * HUGE) as usize);
            assert!(written.iter().all(|&b| b == value), "{contender:?}");
            assert!(rest.iter().all(|&b| b == 0xa5), "{contender:?}");
        }
    }
}

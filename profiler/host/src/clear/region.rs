//! Memory to clear: regions of huge pages. Each sample gets a part that has left the caches, except for its
//! translations.
//!
//! A hypervisor may map a guest's memory with base pages. Then clearing reads one line of its page tables for each
//! eight pages. Whether those lines are cached depends on the programs that ran since the part was last used. For
//! example, a Zen 4 guest cleared the same memory at 88 GB/s with these lines in the caches, and at 62 GB/s without,
//! where all strategies were alike. To compare clearing alone, [`Region::span`] fetches the lines before the clock
//! starts.

use crate::memory::Mapping;
use anyhow::{Context, Result};
use quell::PAGE_BYTES;
use rustix::mm::Advice;

/// A huge page, to which regions are aligned.
pub const HUGE: u64 = 2 << 20;
/// Memory whose page-table entries share a cache line: eight entries of eight bytes.
const ENTRY_LINE: usize = 8 * PAGE_BYTES as usize;

/// A private mapping of zeroed memory, aligned to huge pages and present.
pub struct Region {
    mapping: Mapping,
    first: usize,
    pub bytes: u64,
    /// The start of the next sample.
    cursor: u64,
}

impl Region {
    /// Maps `bytes`, a multiple of 2 MB, requests huge pages and touches every page.
    pub fn new(bytes: u64) -> Result<Self> {
        let mapped = usize::try_from(bytes + HUGE)?;
        let mapping =
            Mapping::anonymous(mapped).with_context(|| format!("cannot map {} MB", bytes >> 20))?;
        let mut region =
            Region { first: mapping.offset_of_aligned(HUGE as usize), mapping, bytes, cursor: 0 };
        // If the kernel refuses huge pages, we use base pages, and `huge_bytes` shows it.
        let length = bytes as usize;
        let _ = (region.mapping).advise(region.first, length, Advice::LinuxHugepage);
        let all = region.span(bytes);
        // SAFETY: the region's own memory, to which there is no other pointer.
        unsafe { all.write_bytes(0xa5, length) };
        Ok(region)
    }

    /// Returns `bytes` of memory for the next sample, untouched in the last turn.
    ///
    /// We bring its translations into the caches, and with them a line of every eighth page.
    pub fn span(&mut self, bytes: u64) -> *mut u8 {
        assert!(bytes <= self.bytes);
        if self.cursor + bytes > self.bytes {
            self.cursor = 0;
        }
        // SAFETY: within the region by the check above, and the region is within the mapping.
        let at = unsafe { (self.mapping.start()).add(self.first + self.cursor as usize) };
        // We keep spans aligned to huge pages, whatever their length.
        self.cursor = (self.cursor + bytes).next_multiple_of(HUGE);
        for offset in (0..bytes as usize).step_by(ENTRY_LINE) {
            // SAFETY: within the span, which `new` has mapped and only the region's user touches.
            unsafe { at.add(offset).read_volatile() };
        }
        at
    }

    /// Returns the number of bytes that the kernel maps with huge pages.
    pub fn huge_bytes(&self) -> u64 {
        self.mapping.huge_bytes(self.first, self.bytes as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_aligned_disjoint_and_wrap_around() {
        let mut region = Region::new(4 * HUGE).unwrap();
        let base = region.mapping.start().addr() + region.first;
        let mut at = |bytes| (region.span(bytes).addr() - base) as u64;
        assert_eq!(at(1), 0);
        assert_eq!(at(HUGE + 1), HUGE);
        assert_eq!(at(HUGE), 3 * HUGE);
        assert_eq!(at(HUGE), 0);
        assert_eq!(at(4 * HUGE), 0);
    }

    #[test]
    fn of_a_span_every_eighth_page_is_read_and_nothing_else() {
        let mut region = Region::new(4 * HUGE).unwrap();
        let (first, bytes) = (region.first, region.bytes as usize);
        // Kernels without huge pages refuse the advice, and don't need it.
        let _ = (region.mapping).advise(first, bytes, Advice::LinuxNoHugepage);
        (region.mapping).advise(first, bytes, Advice::LinuxDontNeed).unwrap();
        assert_eq!(region.mapping.resident().unwrap(), 0);
        region.span(2 * HUGE);
        let read = region.mapping.resident().unwrap();
        assert_eq!(read as u64, 2 * HUGE / PAGE_BYTES / 8);
    }
}

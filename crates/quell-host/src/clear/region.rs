//! Memory to clear: regions of huge pages, of which every sample gets a part that has left the caches.

use anyhow::{Context, Result};

/// A huge page, to which regions are aligned.
pub const HUGE: u64 = 2 << 20;
/// A private mapping of zeroed memory, aligned to huge pages and present.
pub struct Region {
    mapping: *mut u8,
    mapped: usize,
    /// Where it begins.
    pub start: *mut u8,
    /// Its length.
    pub bytes: u64,
    /// Where the next sample begins.
    cursor: u64,
}

// SAFETY: a region is plain memory that it owns; nothing about it belongs to one thread.
unsafe impl Send for Region {}

impl Region {
    /// Maps `bytes`, a multiple of 2 MB, asks for huge pages and touches every page.
    pub fn new(bytes: u64) -> Result<Self> {
        let mapped = usize::try_from(bytes + HUGE)?;
        // SAFETY: a new private mapping at an address of the kernel's choice.
        let mapping = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if mapping == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error())
                .with_context(|| format!("cannot map {} MB", bytes >> 20));
        }
        let mapping: *mut u8 = mapping.cast();
        // SAFETY: the mapping is longer than the region by one huge page.
        let start = unsafe { mapping.add(mapping.align_offset(HUGE as usize)) };
        let mut region = Region {
            mapping,
            mapped,
            start,
            bytes,
            cursor: 0,
        };
        // SAFETY: the region's own memory. Where huge pages are refused, base pages serve, and
        // `huge_bytes` tells.
        unsafe { libc::madvise(start.cast(), bytes as usize, libc::MADV_HUGEPAGE) };
        let all = region.span(bytes);
        // SAFETY: the region's own memory, to which nobody else has a pointer.
        unsafe { libc::memset(all.cast(), 0xa5, bytes as usize) };
        Ok(region)
    }

    /// Memory for the next sample: `bytes` that no sample of the last turn around has touched.
    pub fn span(&mut self, bytes: u64) -> *mut u8 {
        assert!(bytes <= self.bytes);
        if self.cursor + bytes > self.bytes {
            self.cursor = 0;
        }
        // SAFETY: within the region by the check above.
        let at = unsafe { self.start.add(self.cursor as usize) };
        // Keep spans aligned to huge pages whatever their length.
        self.cursor = (self.cursor + bytes).next_multiple_of(HUGE);
        at
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `new` mapped; no pointer into it outlives the region's user.
        unsafe { libc::munmap(self.mapping.cast(), self.mapped) };
    }
}

/// How much of a run of memory the kernel maps with huge pages, from `/proc/self/smaps`.
pub fn huge_bytes(start: *const u8, bytes: u64) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let (from, to) = (start.addr(), start.addr() + bytes as usize);
    let mut inside = false;
    let mut total = 0;
    for line in maps.lines() {
        let bounds = line.split_once(' ').and_then(|(r, _)| r.split_once('-'));
        if let Some((a, b)) = bounds {
            let parse = |hex| usize::from_str_radix(hex, 16);
            if let (Ok(a), Ok(b)) = (parse(a), parse(b)) {
                inside = a < to && from < b;
            }
        } else if inside && let Some(rest) = line.strip_prefix("AnonHugePages:") {
            let kilobytes = rest.trim().trim_end_matches(" kB").parse::<u64>();
            total += kilobytes.unwrap_or(0) << 10;
        }
    }
    total.min(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_aligned_disjoint_and_wrap_around() {
        let mut region = Region::new(4 * HUGE).unwrap();
        let base = region.start.addr();
        let mut at = |bytes| (region.span(bytes).addr() - base) as u64;
        assert_eq!(at(1), 0);
        assert_eq!(at(HUGE + 1), HUGE);
        assert_eq!(at(HUGE), 3 * HUGE);
        assert_eq!(at(HUGE), 0);
        assert_eq!(at(4 * HUGE), 0);
    }
}

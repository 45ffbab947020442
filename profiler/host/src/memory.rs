//! Memory of this process, mapped for a measurement.
//!
//! A [`Mapping`] is only ever read and written through relaxed atomics, unless a caller of [`Mapping::start`] uses the
//! pointer. So several threads may touch it. We map only files that this process created, unlinked and doesn't
//! truncate, so an access within bounds can't raise `SIGBUS` for a missing page of the file.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use procfs_core::FromRead;
use procfs_core::process::MemoryMaps;
use rustix::mm::{Advice, MapFlags, ProtFlags};
pub use rustix::param::page_size;

use crate::process::check;

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// A mapped region, unmapped on drop.
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the region belongs to the value, and its bytes are only accessed through atomics.
unsafe impl Send for Mapping {}
// SAFETY: every method that takes `&self` is one system call or one relaxed atomic access.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps private anonymous memory without populating it.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        Self::map_anonymous(len, MapFlags::PRIVATE)
    }

    /// Maps private anonymous memory without huge pages, which the kernel would have to split or page out whole.
    pub fn base_pages(pages: usize) -> io::Result<Self> {
        let map = Self::anonymous(pages * page_size())?;
        // Kernels without huge pages refuse the advice, and don't need it.
        let _ = map.advise(0, map.len, Advice::LinuxNoHugepage);
        Ok(map)
    }

    /// Maps anonymous memory in hugetlb pages of 1 GiB.
    pub fn giant(len: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_1GB;
        Self::map_anonymous(len, flags)
    }

    fn map_anonymous(len: usize, flags: MapFlags) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, READ_WRITE, flags)? };
        Self::of(base.cast(), len)
    }

    /// Maps the first `len` bytes of `file`, shared; writable if `writable` is set.
    pub fn file(file: &File, len: usize, writable: bool) -> io::Result<Self> {
        let rights = if writable { READ_WRITE } else { ProtFlags::READ };
        // SAFETY: as in `map_anonymous`.
        let base =
            unsafe { rustix::mm::mmap(ptr::null_mut(), len, rights, MapFlags::SHARED, file, 0)? };
        Self::of(base.cast(), len)
    }

    /// Maps the first `len` bytes of `file`; stores stay private.
    pub fn private(file: &File, len: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE;
        // SAFETY: as in `map_anonymous`.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), len, READ_WRITE, flags, file, 0)? };
        Self::of(base.cast(), len)
    }

    /// Allows stores to part of the region, or forbids them.
    pub fn protect(&self, offset: usize, len: usize, writable: bool) -> io::Result<()> {
        let range = self.range(offset, len);
        let flags = match writable {
            true => rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE,
            false => rustix::mm::MprotectFlags::READ,
        };
        // SAFETY: the range is this region's, and callers store to it only while they may.
        unsafe { rustix::mm::mprotect(range.iov_base.cast(), len, flags)? };
        Ok(())
    }

    fn of(base: *mut u8, len: usize) -> io::Result<Self> {
        let base = NonNull::new(base).ok_or_else(|| io::Error::other("mmap returned address 0"))?;
        Ok(Self { base, len })
    }

    /// Returns the number of mapped bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the start, for accesses that aren't atomic. The caller must keep them free of races.
    pub fn start(&mut self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns the offset of the first address that is a multiple of `size`.
    pub fn offset_of_aligned(&self, size: usize) -> usize {
        self.base.addr().get().wrapping_neg() % size
    }

    /// Returns the word at byte `offset`, for loads, stores and counters shared with children.
    ///
    /// # Panics
    /// If the word is outside the mapping or isn't aligned. Writing through it to a read-only mapping faults.
    #[inline]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= self.len && offset.is_multiple_of(8));
        // SAFETY: in bounds and aligned (checked above); the memory lives as long as `self` and is only accessed
        // through atomics.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Writes a word in each `step` bytes, so that a page is present and dirty.
    pub fn touch(&self, step: usize, value: u64) {
        for offset in (0..self.len).step_by(step) {
            self.word(offset).store(value ^ offset as u64, Ordering::Relaxed);
        }
    }

    /// Reads one word in each `step` bytes.
    pub fn read(&self, step: usize) {
        for offset in (0..self.len).step_by(step) {
            std::hint::black_box(self.word(offset).load(Ordering::Relaxed));
        }
    }

    /// Returns the range of `len` bytes from byte `offset`, for lists of ranges.
    pub fn range(&self, offset: usize, len: usize) -> libc::iovec {
        assert!(offset + len <= self.len);
        // SAFETY: in bounds.
        let base = unsafe { self.base.as_ptr().add(offset) };
        libc::iovec { iov_base: base.cast(), iov_len: len }
    }

    /// Calls `madvise` once for a part of the mapping.
    pub fn advise(&self, offset: usize, len: usize, advice: Advice) -> io::Result<()> {
        let range = self.range(offset, len);
        // SAFETY: the range is inside the mapping. Advice that drops content (DONTNEED) loses only bytes that nothing
        // borrows: all access goes through single atomic words.
        unsafe { rustix::mm::madvise(range.iov_base, range.iov_len, advice)? };
        Ok(())
    }

    /// Zeroes the page at byte `offset` as a kernel for this architecture does.
    ///
    /// # Panics
    /// If it isn't a page of the mapping. Zeroing a read-only mapping faults.
    pub fn zero_page(&self, offset: usize) {
        let page = self.range(offset, page_size());
        // SAFETY: in bounds of memory that nothing borrows: all other access is by single atomic words, for which any
        // racing value is valid. The processor has the instructions with which its kernels zero a page.
        unsafe {
            quell_arch::zero::zero(page.iov_base.cast(), page.iov_len, quell_arch::zero::PAGE)
        }
    }

    /// Writes a part of the mapping to the same place of `file`.
    pub fn write_to(&self, file: &File, offset: usize, len: usize) -> io::Result<()> {
        let part = self.range(offset, len);
        let (fd, at) = (file.as_raw_fd(), offset as libc::off_t);
        // libc, because rustix only writes slices, and other threads may write this memory.
        // SAFETY: the part is inside the mapping, and the kernel only reads it.
        let done = check(unsafe { libc::pwrite(fd, part.iov_base, len, at) } as libc::c_long)?;
        whole(done, len)
    }

    /// Reads a part of the mapping from the same place of `file`.
    pub fn read_from(&self, file: &File, offset: usize, len: usize) -> io::Result<()> {
        let part = self.range(offset, len);
        let (fd, at) = (file.as_raw_fd(), offset as libc::off_t);
        // libc: see `Mapping::write_to`.
        // SAFETY: the part is inside the mapping, whose bytes nothing borrows: see `Mapping::advise`.
        let done = check(unsafe { libc::pread(fd, part.iov_base, len, at) } as libc::c_long)?;
        whole(done, len)
    }

    /// Returns the number of base pages that `mincore` reports as resident. Pages in the swap cache count, too.
    pub fn resident(&self) -> io::Result<usize> {
        let mut flags = vec![0u8; self.len.div_ceil(page_size())];
        let base = self.base.as_ptr().cast();
        // libc, because rustix has no mincore.
        // SAFETY: the range is the mapping, and the vector has one byte for each of its pages.
        let result = unsafe { libc::mincore(base, self.len, flags.as_mut_ptr()) };
        check(result.into())?;
        Ok(flags.iter().filter(|&&f| f & 1 == 1).count())
    }

    /// Returns a part's bytes that transparent huge pages map, if the kernel reports them.
    pub fn huge_bytes(&self, offset: usize, len: usize) -> u64 {
        let from = self.range(offset, len).iov_base.addr() as u64;
        let to = from + len as u64;
        let Ok(maps) = MemoryMaps::from_file("/proc/self/smaps") else {
            return 0;
        };
        let inside = maps.iter().filter(|map| map.address.0 < to && from < map.address.1);
        let huge = inside.filter_map(|map| map.extension.map.get("AnonHugePages"));
        huge.sum::<u64>().min(len as u64)
    }
}

/// Returns an error unless all bytes were transferred.
fn whole(done: libc::c_long, len: usize) -> io::Result<()> {
    if done as usize == len {
        return Ok(());
    }
    let account = format!("{done} of {len} bytes were moved");
    Err(io::Error::other(account))
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the region is ours and nothing borrows from it any more. A refusal leaves it mapped until the end.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discarded_pages_read_as_zero_and_only_those() {
        let page = page_size();
        let map = Mapping::anonymous(4 * page).unwrap();
        map.touch(page, u64::MAX);
        assert_eq!(map.resident().unwrap(), 4);
        map.advise(page, page, Advice::LinuxDontNeed).unwrap();
        assert_eq!(map.resident().unwrap(), 3);
        assert_eq!(map.word(page).load(Ordering::Relaxed), 0);
        assert_ne!(map.word(2 * page).load(Ordering::Relaxed), 0);
        assert_eq!(map.huge_bytes(0, map.len()), 0);
    }

    #[test]
    #[should_panic]
    fn a_word_past_the_end_is_refused() {
        let map = Mapping::anonymous(page_size()).unwrap();
        let _ = map.word(page_size());
    }
}

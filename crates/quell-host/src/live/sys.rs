//! The few system calls that the benchmarks need, each behind a small safe wrapper.
//!
//! All of the folder's `unsafe` that touches memory is here. A [`Mapping`] is only ever read and written through
//! relaxed atomics, so several threads may touch it, and file mappings are of files that this process created,
//! unlinked and does not truncate, so an access within bounds cannot raise `SIGBUS` for a missing page of the file.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of a base page.
pub fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Turns the -1 of a system call into the error it left in `errno`.
fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// An error unless all of it was moved.
fn whole(done: libc::c_long, len: usize) -> io::Result<()> {
    if done as usize == len {
        Ok(())
    } else {
        Err(io::Error::other(format!(
            "{done} of {len} bytes were moved"
        )))
    }
}

/// A system call that does nothing: it asks for the parent, which the C library does not remember.
pub fn null_call() {
    // SAFETY: takes no arguments and changes nothing.
    unsafe { libc::syscall(libc::SYS_getppid) };
}

/// A mapped region, unmapped on drop.
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the region belongs to the value, and its bytes are only accessed through atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above; every method that takes `&self` is one system call or one relaxed atomic access.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Private anonymous memory, not populated.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        Self::map(
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
        )
    }

    /// Anonymous memory that forked children share.
    pub fn shared(len: usize) -> io::Result<Self> {
        Self::map(
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
        )
    }

    /// Anonymous memory in hugetlb pages of `1 << shift` bytes.
    pub fn hugetlb(len: usize, shift: u32) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE
            | libc::MAP_ANONYMOUS
            | libc::MAP_HUGETLB
            | ((shift as i32) << libc::MAP_HUGE_SHIFT);
        Self::map(len, libc::PROT_READ | libc::PROT_WRITE, flags, -1)
    }

    /// The first `len` bytes of `file`, shared; writable if asked.
    pub fn file(file: &File, len: usize, writable: bool) -> io::Result<Self> {
        let prot = if writable {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        Self::map(len, prot, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn map(len: usize, prot: i32, flags: i32, fd: i32) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base =
            NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap returned address 0"))?;
        Ok(Self { base, len })
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The word at byte `offset`, for loads, stores and counters shared with children.
    ///
    /// # Panics
    /// If the word is outside the mapping or not aligned. Writing through it to a read-only mapping faults.
    #[inline]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= self.len && offset.is_multiple_of(8));
        // SAFETY: in bounds and aligned (checked above); the memory lives as long as `self` and is only accessed
        // through atomics.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Writes one word in each `step` bytes, which makes a base or huge page present and dirty.
    pub fn touch(&self, step: usize, value: u64) {
        for offset in (0..self.len).step_by(step) {
            self.word(offset)
                .store(value ^ offset as u64, Ordering::Relaxed);
        }
    }

    /// Reads one word in each `step` bytes.
    pub fn read(&self, step: usize) {
        for offset in (0..self.len).step_by(step) {
            std::hint::black_box(self.word(offset).load(Ordering::Relaxed));
        }
    }

    /// The address of byte `offset`, for lists of ranges.
    pub fn range(&self, offset: usize, len: usize) -> libc::iovec {
        assert!(offset + len <= self.len);
        // SAFETY: in bounds.
        let base = unsafe { self.base.as_ptr().add(offset) };
        libc::iovec {
            iov_base: base.cast(),
            iov_len: len,
        }
    }

    /// One `madvise` over a part of the mapping.
    pub fn advise(&self, offset: usize, len: usize, advice: i32) -> io::Result<()> {
        let range = self.range(offset, len);
        // SAFETY: the range is inside the mapping. Advice that drops content (DONTNEED) loses only bytes that
        // nobody borrows: all access goes through single atomic words.
        check(unsafe { libc::madvise(range.iov_base, range.iov_len, advice) }.into()).map(drop)
    }

    /// One `msync(MS_SYNC)` over a part of the mapping.
    pub fn sync(&self, offset: usize, len: usize) -> io::Result<()> {
        let range = self.range(offset, len);
        // SAFETY: the range is inside the mapping; msync changes no byte of it.
        check(unsafe { libc::msync(range.iov_base, range.iov_len, libc::MS_SYNC) }.into()).map(drop)
    }

    /// Zeroes the page at byte `offset` as the kernel of this architecture zeroes one.
    ///
    /// # Panics
    /// If it is not a page of the mapping. Zeroing a read-only mapping faults.
    pub fn zero_page(&self, offset: usize) {
        let page = self.range(offset, page_size());
        // SAFETY: in bounds of memory that nobody borrows: all other access goes through single atomic words, and
        // what a racing one reads is a number. What a kernel here zeroes a page with, the processor has.
        unsafe {
            quell_arch::zero::zero(page.iov_base.cast(), page.iov_len, quell_arch::zero::PAGE)
        }
    }

    /// Writes a part of the mapping to the same place of `file`.
    pub fn write_to(&self, file: &File, offset: usize, len: usize) -> io::Result<()> {
        let part = self.range(offset, len);
        let (fd, at) = (file.as_raw_fd(), offset as libc::off_t);
        // SAFETY: the part is inside the mapping, and the kernel only reads it.
        let done = check(unsafe { libc::pwrite(fd, part.iov_base, len, at) } as libc::c_long)?;
        whole(done, len)
    }

    /// Reads a part of the mapping from the same place of `file`.
    pub fn read_from(&self, file: &File, offset: usize, len: usize) -> io::Result<()> {
        let part = self.range(offset, len);
        let (fd, at) = (file.as_raw_fd(), offset as libc::off_t);
        // SAFETY: the part is inside the mapping, whose bytes nobody borrows: see `Mapping::advise`.
        let done = check(unsafe { libc::pread(fd, part.iov_base, len, at) } as libc::c_long)?;
        whole(done, len)
    }

    /// How many base pages `mincore` calls resident. A page in the swap cache counts as resident.
    pub fn resident(&self) -> io::Result<usize> {
        let mut flags = vec![0u8; self.len.div_ceil(page_size())];
        let base = self.base.as_ptr().cast();
        // SAFETY: the range is the mapping, and the vector has one byte for each of its pages.
        let result = unsafe { libc::mincore(base, self.len, flags.as_mut_ptr()) };
        check(result.into())?;
        Ok(flags.iter().filter(|&&f| f & 1 == 1).count())
    }

    /// Moves pages to NUMA nodes with one `move_pages`, or asks where they are if `nodes` is `None`. Returns for each
    /// page its node or a negated error number.
    pub fn move_pages(&self, offsets: &[usize], nodes: Option<&[i32]>) -> io::Result<Vec<i32>> {
        let pages: Vec<_> = offsets.iter().map(|&o| self.range(o, 1).iov_base).collect();
        let mut status = vec![-libc::ENOENT; pages.len()];
        assert!(nodes.is_none_or(|n| n.len() == pages.len()));
        let nodes = nodes.map_or(ptr::null(), <[i32]>::as_ptr);
        const MPOL_MF_MOVE: libc::c_long = 2;
        // SAFETY: three arrays of the length that is passed (the second may be null); migration keeps the content.
        check(unsafe {
            let status = status.as_mut_ptr();
            libc::syscall(
                libc::SYS_move_pages,
                0,
                pages.len(),
                pages.as_ptr(),
                nodes,
                status,
                MPOL_MF_MOVE,
            )
        })?;
        Ok(status)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the region is ours and nothing borrows from it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// This process as a target of `process_madvise`.
pub struct OwnProcess(OwnedFd);

impl OwnProcess {
    /// Opens a pidfd of this process (Linux 5.3).
    pub fn open() -> io::Result<Self> {
        // SAFETY: pidfd_open takes two integers and returns a descriptor that we own.
        let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) })?;
        // SAFETY: the descriptor was just returned and is nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// One `process_madvise` over all `ranges`, which must come from [`Mapping::range`] of live mappings.
    ///
    /// # Errors
    /// Those of the call; `EINVAL` where the kernel does not take this advice. A call that stopped early is an error.
    pub fn advise(&self, ranges: &[libc::iovec], advice: i32) -> io::Result<()> {
        let want: usize = ranges.iter().map(|r| r.iov_len).sum();
        // SAFETY: an array of ranges of our own mappings with its length; see `Mapping::advise` on their content.
        let done = check(unsafe {
            let fd = self.0.as_raw_fd();
            libc::syscall(
                libc::SYS_process_madvise,
                fd,
                ranges.as_ptr(),
                ranges.len(),
                advice,
                0,
            )
        })?;
        if done as usize == want {
            Ok(())
        } else {
            Err(io::Error::other(format!(
                "process_madvise stopped after {done} of {want} bytes"
            )))
        }
    }
}

/// The CPUs that this thread may use, in order.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    // SAFETY: a zeroed set is a valid empty set, and the kernel writes no more than its size.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        check(libc::sched_getaffinity(0, size_of_val(&set), &raw mut set).into())?;
        set
    };
    // SAFETY: the index is below the set's size.
    Ok((0..libc::CPU_SETSIZE as usize)
        .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) })
        .collect())
}

/// Restricts the calling thread to `cpus`.
pub fn pin(cpus: &[usize]) -> io::Result<()> {
    // SAFETY: a zeroed set is valid; CPU_SET checks nothing, so indices at or above its size are skipped here.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for &cpu in cpus.iter().filter(|&&c| c < libc::CPU_SETSIZE as usize) {
            libc::CPU_SET(cpu, &mut set);
        }
        check(libc::sched_setaffinity(0, size_of_val(&set), &raw const set).into()).map(drop)
    }
}

fn clock(id: libc::clockid_t) -> io::Result<Duration> {
    // SAFETY: the kernel writes one timespec.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        check(libc::clock_gettime(id, &raw mut time).into())?;
        Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }
}

/// CPU time of this process so far.
pub fn own_cpu_time() -> io::Result<Duration> {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time so far of a thread that was not joined yet.
pub fn thread_cpu_time<T>(thread: &std::thread::JoinHandle<T>) -> io::Result<Duration> {
    use std::os::unix::thread::JoinHandleExt;
    let mut id = 0;
    // SAFETY: the handle is neither joined nor detached, so the pthread_t is valid.
    match unsafe { libc::pthread_getcpuclockid(thread.as_pthread_t(), &raw mut id) } {
        0 => clock(id),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// A forked child, killed and collected on drop, and killed by the kernel if this process dies first.
pub struct Child(libc::pid_t);

impl Child {
    /// Forks; the child runs `body` and exits without running any destructor of its copy of this process.
    ///
    /// # Safety
    /// This process must have one thread, or `body` must only make async-signal-safe calls (no allocation).
    pub unsafe fn fork(body: impl FnOnce()) -> io::Result<Self> {
        // SAFETY: the caller's promise.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // A panic must not unwind into the copy of the parent's stack: its guards would undo the parent's set-up.
                let body = std::panic::AssertUnwindSafe(body);
                // SAFETY: both calls take plain integers.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                let code = i32::from(std::panic::catch_unwind(body).is_err());
                // SAFETY: as above; ends the child at once.
                unsafe { libc::_exit(code) }
            }
            pid => Ok(Self(pid)),
        }
    }

    /// The child's process id.
    pub fn id(&self) -> i32 {
        self.0
    }

    /// CPU time of the child so far.
    pub fn cpu_time(&self) -> io::Result<Duration> {
        let mut id = 0;
        // SAFETY: writes one clock id.
        match unsafe { libc::clock_getcpuclockid(self.0, &raw mut id) } {
            0 => clock(id),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Whether the child has ended by itself; does not collect it.
    pub fn has_ended(&self) -> bool {
        // SAFETY: WNOWAIT leaves the child to be collected on drop; the zeroed structure is written by the kernel.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            libc::waitid(libc::P_PID, self.0 as u32, &raw mut info, flags) == 0
                && info.si_pid() == self.0
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: the child is ours and not yet collected, so the id cannot name another process.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, ptr::null_mut(), 0);
        }
    }
}

/// An eventfd: a counter that blocks its reader while zero.
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A new counter at zero.
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes two integers, returns a descriptor that we own.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }.into())?;
        // SAFETY: just returned, nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// Adds one; wakes the reader.
    pub fn signal(&self) -> io::Result<()> {
        let one = 1u64;
        // SAFETY: eight readable bytes.
        check(
            unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) } as libc::c_long,
        )
        .map(drop)
    }

    /// Waits until the counter is not zero and clears it.
    pub fn wait(&self) -> io::Result<()> {
        let mut value = 0u64;
        // SAFETY: eight writable bytes.
        check(unsafe { libc::read(self.0.as_raw_fd(), (&raw mut value).cast(), 8) } as libc::c_long)
            .map(drop)
    }
}

/// Whether this process is privileged enough for the parts that set something up (effective user 0; a container may
/// still refuse).
pub fn is_root() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// The magic number of the file system under `path`, as `statfs` gives it.
pub fn file_system(path: &std::path::Path) -> io::Result<i64> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a terminated path and one structure for the kernel to write.
    unsafe {
        let mut info: libc::statfs = std::mem::zeroed();
        check(libc::statfs(path.as_ptr(), &raw mut info).into())?;
        #[allow(
            clippy::unnecessary_cast,
            reason = "the field's type differs between architectures"
        )]
        Ok(info.f_type as i64)
    }
}

/// Writes `file`'s data out and drops its clean pages from the page cache.
pub fn drop_cache(file: &File) -> io::Result<()> {
    file.sync_data()?;
    // SAFETY: takes a descriptor and integers.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Starts swapping to `device` before every other swap area.
pub fn swap_on(device: &std::ffi::CStr) -> io::Result<()> {
    const SWAP_FLAG_PREFER_HIGHEST: i32 = 0x8000 | 0x7fff;
    // SAFETY: a terminated path and flags.
    check(unsafe { libc::swapon(device.as_ptr(), SWAP_FLAG_PREFER_HIGHEST) }.into()).map(drop)
}

/// Reads everything back from `device` and stops swapping to it.
pub fn swap_off(device: &std::ffi::CStr) -> io::Result<()> {
    // SAFETY: a terminated path.
    check(unsafe { libc::swapoff(device.as_ptr()) }.into()).map(drop)
}

/// Restricts an open tracepoint event to records that match `filter`.
pub fn set_event_filter(event: &impl AsRawFd, filter: &std::ffi::CStr) -> io::Result<()> {
    const PERF_EVENT_IOC_SET_FILTER: libc::c_ulong = 0x4008_2406;
    // SAFETY: the request takes a terminated string, which outlives the call.
    check(
        unsafe {
            libc::ioctl(
                event.as_raw_fd(),
                PERF_EVENT_IOC_SET_FILTER as _,
                filter.as_ptr(),
            )
        }
        .into(),
    )
    .map(drop)
}

/// The root of a tracefs that is mounted nowhere: it disappears when the descriptor is closed.
pub fn detached_tracefs() -> io::Result<OwnedFd> {
    const FSCONFIG_CMD_CREATE: libc::c_int = 6;
    let null = ptr::null::<libc::c_char>();
    // SAFETY: each call takes integers and terminated strings or nulls where the interface allows them, and returns
    // a descriptor that we own.
    unsafe {
        let context = check(libc::syscall(libc::SYS_fsopen, c"tracefs".as_ptr(), 1))?;
        let context = OwnedFd::from_raw_fd(context as i32);
        check(libc::syscall(
            libc::SYS_fsconfig,
            context.as_raw_fd(),
            FSCONFIG_CMD_CREATE,
            null,
            null,
            0,
        ))?;
        let mount = check(libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), 1, 0))?;
        Ok(OwnedFd::from_raw_fd(mount as i32))
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
        map.advise(page, page, libc::MADV_DONTNEED).unwrap();
        assert_eq!(map.resident().unwrap(), 3);
        assert_eq!(map.word(page).load(Ordering::Relaxed), 0);
        assert_ne!(map.word(2 * page).load(Ordering::Relaxed), 0);
    }

    #[test]
    #[should_panic]
    fn a_word_past_the_end_is_refused() {
        let map = Mapping::anonymous(page_size()).unwrap();
        let _ = map.word(page_size());
    }

    #[test]
    fn a_query_of_move_pages_names_a_node_or_says_absent() {
        let page = page_size();
        let map = Mapping::anonymous(2 * page).unwrap();
        map.word(0).store(1, Ordering::Relaxed);
        match map.move_pages(&[0, page], None) {
            Ok(status) => {
                assert!(status[0] >= 0, "a touched page is on a node: {status:?}");
                assert!(status[1] < 0, "an untouched page is nowhere: {status:?}");
            }
            Err(error) => assert!(
                matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)),
                "{error}"
            ),
        }
    }

    #[test]
    fn a_child_is_collected_on_drop() {
        // SAFETY: the child only sleeps.
        let child = unsafe {
            Child::fork(|| {
                libc::pause();
            })
        }
        .unwrap();
        let id = child.id();
        assert!(!child.has_ended());
        drop(child);
        assert!(!std::path::Path::new(&format!("/proc/{id}")).exists());
    }

    #[test]
    fn pinning_takes_effect() {
        let all = allowed_cpus().unwrap();
        std::thread::spawn(move || {
            pin(&all[..1]).unwrap();
            assert_eq!(allowed_cpus().unwrap(), all[..1]);
        })
        .join()
        .unwrap();
    }
}

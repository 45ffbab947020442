//! What a program may do, done by Linux: [`User`] for one thread pinned to one CPU.
//!
//! Each call becomes the system call that means the same. Differences that remain:
//!
//! * A thread of Linux cannot go on in another process ([`Visitor`](crate::visitor::Visitor) is for programs that must). The processes of a job are made before it
//!   starts, each with the threads that the workload is going to send there; `Spawn` hands out their
//!   numbers and `Enter` only checks that the thread is where it asks to go.
//! * An access that cannot be completed ends the process (`SIGSEGV`), and with it the job.
//! * `PageOut` and `Sync` return 0: Linux does not say how many pages went.
//! * Pages of 1 GB, `Fork`, `Exit`, `Demote` and `Reclaim` are refused with `BadCall`.
//!
//! Addresses are chosen here, not by the kernel, so that every process of a job chooses alike.

use crate::control::Control;
use crate::counters::Recorder;
use libc::{c_int, c_void};
use quell::PageSize;
use quell_vm::{Backing, Call, Error, Fault, FileId, Mark, Protection, User};
use std::cell::RefCell;
use std::ffi::CString;
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// The directory of the files that workloads create.
pub const FILES: &str = "/files";

/// Where the addresses handed out in this process begin: far from what the loader uses.
const BASE: u64 = 0x1000_0000_0000;
/// How many files a job can create.
const MOST_FILES: usize = 64;

/// The next address to hand out in this process.
static NEXT: AtomicU64 = AtomicU64::new(BASE);
/// The files that this process has open, or -1.
static OPEN: [AtomicI32; MOST_FILES] = [const { AtomicI32::new(-1) }; MOST_FILES];

/// The time-stamp counter, which counts nanoseconds where the emulator counts instructions.
pub fn ticks() -> u64 {
    // SAFETY: reads a counter that every x86-64 processor has.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// One CPU of a job.
pub struct Linux<'c> {
    /// The control words and counters of the job.
    pub control: &'c Control,
    /// This CPU.
    pub cpu: usize,
    /// How many take part.
    pub cpus: usize,
    /// The number of the process that this thread is of.
    pub process: usize,
    /// Reads the kernel's counters where the workload marks its window.
    pub recorder: RefCell<Recorder>,
}

/// The error of a system call that failed.
fn refused() -> Error {
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::ENOMEM) => Error::OutOfMemory,
        Some(libc::ENOENT | libc::EBADF) => Error::NoFile,
        Some(libc::EEXIST) => Error::NoSpace,
        Some(libc::ENODEV) => Error::NoNode,
        Some(libc::EINVAL) => Error::BadRange,
        _ => Error::BadCall,
    }
}

/// The result of a system call that says -1 if it failed.
fn done(result: c_int) -> Result<u64, Error> {
    u64::try_from(result).map_err(|_| refused())
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

fn bits(protection: Protection) -> c_int {
    let bit = |set: bool, bit| if set { bit } else { 0 };
    bit(
        protection.read || protection.write || protection.execute,
        libc::PROT_READ,
    ) | bit(protection.write, libc::PROT_WRITE)
        | bit(protection.execute, libc::PROT_EXEC)
}

/// A file that some process of the job has created.
fn open(file: FileId) -> Result<c_int, Error> {
    let slot = OPEN.get(file as usize).ok_or(Error::NoFile)?;
    let known = slot.load(Ordering::Acquire);
    if known >= 0 {
        return Ok(known);
    }
    let path = CString::new(format!("{FILES}/{file}")).map_err(|_| Error::NoFile)?;
    // SAFETY: the path is a string that ends in zero and outlives the call.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(refused());
    }
    // Another thread may have opened it meanwhile: both descriptors work, one is kept.
    slot.store(fd, Ordering::Release);
    Ok(fd)
}

fn map(
    address: Option<u64>,
    bytes: u64,
    protection: Protection,
    backing: Backing,
) -> Result<u64, Error> {
    let bytes = bytes.next_multiple_of(4096);
    let (flags, file, offset, page) = match backing {
        Backing::Anonymous { page } => (
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
            page,
        ),
        Backing::Shared { file, offset } => (libc::MAP_SHARED, open(file)?, offset, PageSize::Base),
        Backing::Private { file, offset } => {
            (libc::MAP_PRIVATE, open(file)?, offset, PageSize::Base)
        }
    };
    let alignment = match page {
        PageSize::Base => 1 << 12,
        PageSize::Large => 1 << 21,
        PageSize::Huge => return Err(Error::BadCall),
    };
    let (place, fixed) = match address {
        Some(address) => (address, libc::MAP_FIXED),
        None => {
            // Room for aligning, and a page between two mappings so that they do not merge.
            let from = NEXT.fetch_add(bytes + alignment + 4096, Ordering::Relaxed);
            (from.next_multiple_of(alignment), libc::MAP_FIXED_NOREPLACE)
        }
    };
    // SAFETY: the range was handed out here: nothing of this program lies in it, and what a workload
    // has there it reaches through the accesses below alone.
    let mapped = unsafe {
        libc::mmap(
            pointer(place),
            bytes as usize,
            bits(protection),
            flags | fixed,
            file,
            offset as i64,
        )
    };
    if mapped == libc::MAP_FAILED {
        return Err(refused());
    }
    if page == PageSize::Large {
        advise(place, bytes, libc::MADV_HUGEPAGE)?;
    }
    Ok(mapped.expose_provenance() as u64)
}

/// Takes away all that workloads have mapped in this process.
pub fn forget_all() {
    let bytes = NEXT.load(Ordering::Relaxed) - BASE;
    // SAFETY: nothing of this program lies there, and workloads map and access by addresses that they were given here.
    unsafe { libc::munmap(pointer(BASE), bytes as usize) };
}

fn advise(address: u64, bytes: u64, advice: c_int) -> Result<u64, Error> {
    // SAFETY: advice changes at most the content of memory that a workload has mapped.
    done(unsafe { libc::madvise(pointer(address), bytes as usize, advice) })
}

fn create(control: &Control, bytes: u64) -> Result<u64, Error> {
    let file = control.files.fetch_add(1, Ordering::SeqCst);
    if file as usize >= MOST_FILES {
        return Err(Error::NoSpace);
    }
    let write = || -> std::io::Result<c_int> {
        use std::io::Write;
        let mut handle = std::fs::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(format!("{FILES}/{file}"))?;
        let zeros = vec![0; 1 << 16];
        let mut left = bytes;
        while left > 0 {
            let now = left.min(zeros.len() as u64);
            handle.write_all(&zeros[..now as usize])?;
            left -= now;
        }
        handle.sync_all()?;
        Ok(handle.into_raw_fd())
    };
    let fd = write().map_err(|error| match error.raw_os_error() {
        Some(libc::ENOSPC) => Error::NoSpace,
        _ => Error::NoFile,
    })?;
    OPEN[file as usize].store(fd, Ordering::Release);
    // Not yet in memory, as the call promises.
    // SAFETY: takes numbers alone.
    unsafe { libc::posix_fadvise(fd, 0, 0, libc::POSIX_FADV_DONTNEED) };
    Ok(file)
}

/// Moves pages to a node; returns how many are there now.
fn migrate(address: u64, bytes: u64, node: u32) -> Result<u64, Error> {
    /// Pages named in one call.
    const PAGES: usize = 2048;
    /// `MPOL_MF_MOVE`: only pages that no other process maps, which those of a workload are.
    const MOVE: c_int = 1 << 1;
    let node = c_int::try_from(node).map_err(|_| Error::NoNode)?;
    let nodes = [node; PAGES];
    let mut status = [0; PAGES];
    let mut pages = [0; PAGES];
    let mut moved = 0;
    let all: u64 = bytes.div_ceil(4096);
    let mut first = 0;
    while first < all {
        let count = (all - first).min(PAGES as u64) as usize;
        for (index, page) in pages[..count].iter_mut().enumerate() {
            *page = address + ((first + index as u64) << 12);
        }
        // SAFETY: the arrays hold at least `count` entries and outlive the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                count,
                pages.as_ptr(),
                nodes.as_ptr(),
                status.as_mut_ptr(),
                MOVE,
            )
        };
        if result < 0 {
            return Err(refused());
        }
        moved += status[..count].iter().filter(|&&now| now == node).count() as u64;
        first += count as u64;
    }
    Ok(moved)
}

impl User for Linux<'_> {
    fn cpu(&self) -> usize {
        self.cpu
    }
    fn cpus(&self) -> usize {
        self.cpus
    }
    #[inline]
    fn try_read(&self, address: u64) -> Result<u64, Fault> {
        // SAFETY: workloads access only what they mapped through `map`, where nothing of this
        // program lies; anything else ends the process.
        Ok(unsafe { pointer(address).cast::<u64>().read_volatile() })
    }
    #[inline]
    fn try_write(&self, address: u64, value: u64) -> Result<(), Fault> {
        // SAFETY: as for `try_read`.
        unsafe { pointer(address).cast::<u64>().write_volatile(value) };
        Ok(())
    }

    fn call(&self, call: Call) -> Result<u64, Error> {
        match call {
            Call::Nothing => {
                // SAFETY: takes and changes nothing.
                unsafe { libc::getppid() };
                Ok(0)
            }
            Call::Map {
                address,
                bytes,
                protection,
                backing,
            } => map(address, bytes, protection, backing),
            // SAFETY: workloads unmap only what they mapped.
            Call::Unmap { address, bytes } => {
                done(unsafe { libc::munmap(pointer(address), bytes as usize) })
            }
            Call::Protect {
                address,
                bytes,
                protection,
            } => {
                // SAFETY: workloads protect only what they mapped.
                done(unsafe { libc::mprotect(pointer(address), bytes as usize, bits(protection)) })
            }
            Call::Discard { address, bytes } => advise(address, bytes, libc::MADV_DONTNEED),
            Call::PageOut { address, bytes } => advise(address, bytes, libc::MADV_PAGEOUT),
            Call::Remap { address, bytes, to } => {
                let to = to.unwrap_or_else(|| NEXT.fetch_add(bytes + 4096, Ordering::Relaxed));
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                let bytes = bytes as usize;
                // SAFETY: both places belong to the workload, as for `map`.
                let moved =
                    unsafe { libc::mremap(pointer(address), bytes, bytes, flags, pointer(to)) };
                if moved == libc::MAP_FAILED {
                    return Err(refused());
                }
                Ok(moved.expose_provenance() as u64)
            }
            Call::Collapse { address } => {
                const LARGE: u64 = 1 << 21;
                Ok(advise(address & !(LARGE - 1), LARGE, libc::MADV_COLLAPSE).is_ok() as u64)
            }
            Call::Spawn => Ok(self.control.spawned.fetch_add(1, Ordering::SeqCst)),
            Call::Enter { process } if process as usize == self.process => Ok(0),
            Call::Enter { .. } => Err(Error::NoProcess),
            Call::Create { bytes } => create(self.control, bytes),
            Call::Write {
                file,
                offset,
                value,
            } => {
                let fd = open(file)?;
                let word = value.to_le_bytes();
                // SAFETY: the word outlives the call.
                let written = unsafe { libc::pwrite(fd, word.as_ptr().cast(), 8, offset as i64) };
                if written == 8 { Ok(0) } else { Err(refused()) }
            }
            Call::Read { file, offset } => {
                let fd = open(file)?;
                let mut word = [0; 8];
                // SAFETY: the word outlives the call.
                let read = unsafe { libc::pread(fd, word.as_mut_ptr().cast(), 8, offset as i64) };
                match read {
                    8 => Ok(u64::from_le_bytes(word)),
                    0.. => Err(Error::BeyondEnd),
                    _ => Err(refused()),
                }
            }
            Call::Truncate { file, bytes } => {
                let fd = open(file)?;
                // SAFETY: takes numbers alone.
                done(unsafe { libc::ftruncate(fd, bytes as i64) })
            }
            Call::Sync { file } => {
                let fd = open(file)?;
                // SAFETY: takes a number alone.
                done(unsafe { libc::fdatasync(fd) })
            }
            Call::Migrate {
                address,
                bytes,
                node,
            } => migrate(address, bytes, node),
            Call::Idle { until } => {
                std::thread::sleep(std::time::Duration::from_nanos(
                    until.saturating_sub(self.now()),
                ));
                Ok(0)
            }
            Call::Fork | Call::Exit { .. } | Call::Demote { .. } | Call::Reclaim { .. } => {
                Err(Error::BadCall)
            }
        }
    }

    fn compute(&self, nanoseconds: u64) {
        let end = ticks() + nanoseconds;
        while ticks() < end {
            // Lets the emulator go on with the next CPU.
            std::hint::spin_loop();
        }
    }
    fn now(&self) -> u64 {
        ticks()
    }
    fn mark(&self, mark: Mark) {
        self.recorder.borrow_mut().mark(mark);
    }

    fn shared(&self, index: usize) -> u64 {
        // A thread that reads a word waits for another CPU, most often: let the emulator go on with it.
        std::hint::spin_loop();
        self.control.words[index].load(Ordering::SeqCst)
    }
    fn set_shared(&self, index: usize, value: u64) {
        self.control.words[index].store(value, Ordering::SeqCst);
    }
    fn add_shared(&self, index: usize, value: u64) -> u64 {
        self.control.words[index].fetch_add(value, Ordering::SeqCst)
    }
}

//! Implements [`User`] by Linux's system calls, for one thread pinned to one CPU.
//!
//! Each call becomes the equivalent system call. Differences remain:
//!
//! * A thread of Linux can't move to another process; programs that must use [`Visitor`](crate::visitor::Visitor). We
//!   create a job's processes before it starts, each with the threads that the workload will send there. `Spawn`
//!   returns their numbers, and `Enter` only checks that the thread is in the right one.
//! * An access that can't be completed ends the process (`SIGSEGV`), and the job.
//! * `PageOut` and `Sync` return 0, because Linux doesn't report the number of pages.
//! * Pages of 1 GB, `Fork`, `Exit`, `Demote` and `Reclaim` are refused with `BadCall`.
//!
//! We choose addresses here, so that every process of a job chooses the same ones.

use crate::control::Control;
use crate::counters::Recorder;
use quell::PageSize;
use quell_vm::{Backing, Call, Error, Fault, FileId, Mark, Protection, User};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The directory of the files that workloads create.
pub const FILES: &str = "/files";

/// The first address to hand out, which is far from the loader's.
const BASE: u64 = 0x1000_0000_0000;
/// The most files that a job can create.
const MOST_FILES: usize = 64;

/// The next address to hand out in this process.
static NEXT: AtomicU64 = AtomicU64::new(BASE);
/// The files that this process has opened.
static OPEN: [OnceLock<OwnedFd>; MOST_FILES] = [const { OnceLock::new() }; MOST_FILES];

/// Returns the time-stamp counter, which counts nanoseconds if the emulator counts instructions.
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
    /// The number of CPUs that take part.
    pub cpus: usize,
    /// The number of this thread's process.
    pub process: usize,
    /// Reads the kernel's counters at the marks of the workload's window.
    pub recorder: RefCell<Recorder>,
}

impl<'c> Linux<'c> {
    /// Creates one of `cpus` CPUs, in a process.
    pub fn new(
        control: &'c Control,
        cpu: usize,
        cpus: usize,
        process: usize,
        traced: bool,
    ) -> Self {
        Linux { control, cpu, cpus, process, recorder: Recorder::new(traced).into() }
    }
}

/// Translates the error of a system call for workloads.
fn workload_error(error: Errno) -> Error {
    match error {
        Errno::NOMEM => Error::OutOfMemory,
        Errno::NOENT | Errno::BADF => Error::NoFile,
        Errno::EXIST => Error::NoSpace,
        Errno::NODEV => Error::NoNode,
        Errno::INVAL => Error::BadRange,
        _ => Error::BadCall,
    }
}

/// Returns the error of a failed system call that rustix doesn't have.
fn last_error() -> Error {
    let error = std::io::Error::last_os_error();
    workload_error(Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
}

/// Translates the result of a system call that returns only success or failure.
fn done(result: rustix::io::Result<()>) -> Result<u64, Error> {
    result.map(|()| 0).map_err(workload_error)
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

fn bits(protection: Protection) -> ProtFlags {
    let mut bits = ProtFlags::empty();
    let readable = protection.read || protection.write || protection.execute;
    bits.set(ProtFlags::READ, readable);
    bits.set(ProtFlags::WRITE, protection.write);
    bits.set(ProtFlags::EXEC, protection.execute);
    bits
}

/// Opens a file that some process of the job has created.
fn open(file: FileId) -> Result<&'static OwnedFd, Error> {
    let slot = OPEN.get(file as usize).ok_or(Error::NoFile)?;
    if let Some(known) = slot.get() {
        return Ok(known);
    }
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let opened = rustix::fs::open(format!("{FILES}/{file}"), flags, Mode::empty());
    let opened = opened.map_err(workload_error)?;
    // Another thread may have opened the file meanwhile. We keep one descriptor.
    Ok(slot.get_or_init(|| opened))
}

fn map(
    address: Option<u64>,
    bytes: u64,
    protection: Protection,
    backing: Backing,
) -> Result<u64, Error> {
    let bytes = bytes.next_multiple_of(4096);
    let (flags, file, page) = match backing {
        Backing::Anonymous { page } => (MapFlags::PRIVATE | MapFlags::NORESERVE, None, page),
        Backing::Shared { file, offset } => {
            (MapFlags::SHARED, Some((open(file)?, offset)), PageSize::Base)
        }
        Backing::Private { file, offset } => {
            (MapFlags::PRIVATE, Some((open(file)?, offset)), PageSize::Base)
        }
    };
    let alignment = match page {
        PageSize::Base => 1 << 12,
        PageSize::Large => 1 << 21,
        PageSize::Huge => return Err(Error::BadCall),
    };
    let (place, fixed) = match address {
        Some(address) => (address, MapFlags::FIXED),
        None => {
            // This leaves room for aligning, and a page between two mappings so that they don't merge.
            let from = NEXT.fetch_add(bytes + alignment + 4096, Ordering::Relaxed);
            (from.next_multiple_of(alignment), MapFlags::FIXED_NOREPLACE)
        }
    };
    // SAFETY: the range was handed out here, so this program has nothing in it, and workloads reach it only through the
    // accesses below.
    let mapped = unsafe {
        let (place, length, rights, flags) =
            (pointer(place), bytes as usize, bits(protection), flags | fixed);
        match file {
            None => rustix::mm::mmap_anonymous(place, length, rights, flags),
            Some((file, offset)) => rustix::mm::mmap(place, length, rights, flags, file, offset),
        }
    };
    let mapped = mapped.map_err(workload_error)?;
    if page == PageSize::Large {
        advise(place, bytes, Advice::LinuxHugepage)?;
    }
    Ok(mapped.expose_provenance() as u64)
}

/// Unmaps everything that workloads have mapped in this process.
pub fn forget_all() {
    /// Programs that choose addresses themselves stay above this, and below twice [`BASE`].
    const LOWEST: u64 = 1 << 32;
    // SAFETY: the loader, the heap and the stacks are elsewhere.
    let _ = unsafe { rustix::mm::munmap(pointer(LOWEST), (2 * BASE - LOWEST) as usize) };
}

fn advise(address: u64, bytes: u64, advice: Advice) -> Result<u64, Error> {
    // SAFETY: advice changes at most the content of memory that a workload has mapped.
    done(unsafe { rustix::mm::madvise(pointer(address), bytes as usize, advice) })
}

/// Replaces the small pages at an address by one page of 2 MB, and returns whether that succeeded.
fn collapse(address: u64) -> bool {
    const LARGE: u64 = 1 << 21;
    // SAFETY: as for `advise`; rustix doesn't have this advice.
    let result = unsafe {
        libc::madvise(pointer(address & !(LARGE - 1)), LARGE as usize, libc::MADV_COLLAPSE)
    };
    result == 0
}

fn create(control: &Control, bytes: u64) -> Result<u64, Error> {
    let file = control.files.fetch_add(1, Ordering::SeqCst);
    if file as usize >= MOST_FILES {
        return Err(Error::NoSpace);
    }
    let write = || -> std::io::Result<OwnedFd> {
        use std::io::Read;
        let mut handle = std::fs::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(format!("{FILES}/{file}"))?;
        std::io::copy(&mut std::io::repeat(0).take(bytes), &mut handle)?;
        handle.sync_all()?;
        Ok(handle.into())
    };
    let handle = write().map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NOSPC) => Error::NoSpace,
        _ => Error::NoFile,
    })?;
    let handle = OPEN[file as usize].get_or_init(|| handle);
    // The call promises that the file isn't in memory. If the kernel ignores the advice, the first reads find it there.
    let _ = rustix::fs::fadvise(handle, 0, None, rustix::fs::Advice::DontNeed);
    Ok(file)
}

/// The arguments of a call that moves pages: the pages, their node, and each result. We keep them, so that a call
/// allocates nothing.
#[derive(Default)]
struct MoveRequest {
    pages: Vec<u64>,
    nodes: Vec<c_int>,
    status: Vec<c_int>,
}

/// Moves pages to a node, all in one call. Returns the number of pages on the node afterwards.
fn migrate(address: u64, bytes: u64, node: u32) -> Result<u64, Error> {
    /// `MPOL_MF_MOVE`: moves only pages that no other process maps. A workload's pages are of this kind.
    const MOVE: c_int = 1 << 1;
    thread_local! {
        static MOVES: RefCell<MoveRequest> = RefCell::default();
    }
    let node = c_int::try_from(node).map_err(|_| Error::NoNode)?;
    let count = bytes.div_ceil(4096);
    MOVES.with_borrow_mut(|moves| {
        moves.pages.clear();
        moves.pages.extend((0..count).map(|page| address + (page << 12)));
        moves.nodes.clear();
        moves.nodes.resize(count as usize, node);
        moves.status.clear();
        moves.status.resize(count as usize, 0);
        // SAFETY: the arrays hold `count` entries and outlive the call, which rustix doesn't have.
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                count,
                moves.pages.as_ptr(),
                moves.nodes.as_ptr(),
                moves.status.as_mut_ptr(),
                MOVE,
            )
        };
        if result < 0 {
            return Err(last_error());
        }
        Ok(moves.status.iter().filter(|&&now| now == node).count() as u64)
    })
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
        // SAFETY: workloads access only memory from `map`, where this program has nothing; any other access ends the
        // process.
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
                std::hint::black_box(rustix::process::getppid());
                Ok(0)
            }
            Call::Map { address, bytes, protection, backing } => {
                map(address, bytes, protection, backing)
            }
            Call::Unmap { address, bytes } => {
                // SAFETY: workloads unmap only memory that they mapped.
                done(unsafe { rustix::mm::munmap(pointer(address), bytes as usize) })
            }
            Call::Protect { address, bytes, protection } => {
                let rights = MprotectFlags::from_bits_retain(bits(protection).bits());
                // SAFETY: workloads protect only memory that they mapped.
                done(unsafe { rustix::mm::mprotect(pointer(address), bytes as usize, rights) })
            }
            Call::Discard { address, bytes } => advise(address, bytes, Advice::LinuxDontNeed),
            Call::PageOut { address, bytes } => advise(address, bytes, Advice::LinuxPageOut),
            Call::Remap { address, bytes, to } => {
                let to = to.unwrap_or_else(|| NEXT.fetch_add(bytes + 4096, Ordering::Relaxed));
                let (from, to, bytes) = (pointer(address), pointer(to), bytes as usize);
                let flags = MremapFlags::MAYMOVE;
                // SAFETY: both places belong to the workload, as for `map`.
                let moved = unsafe { rustix::mm::mremap_fixed(from, bytes, bytes, flags, to) };
                Ok(moved.map_err(workload_error)?.expose_provenance() as u64)
            }
            Call::Collapse { address } => Ok(u64::from(collapse(address))),
            Call::Spawn => Ok(self.control.spawned.fetch_add(1, Ordering::SeqCst)),
            Call::Enter { process } if process as usize == self.process => Ok(0),
            Call::Enter { .. } => Err(Error::NoProcess),
            Call::Create { bytes } => create(self.control, bytes),
            Call::Write { file, offset, value } => {
                match rustix::io::pwrite(open(file)?, &value.to_le_bytes(), offset) {
                    Ok(8) => Ok(0),
                    Ok(_) => Err(Error::NoSpace),
                    Err(error) => Err(workload_error(error)),
                }
            }
            Call::Read { file, offset } => {
                let mut word = [0; 8];
                match rustix::io::pread(open(file)?, &mut word, offset) {
                    Ok(8) => Ok(u64::from_le_bytes(word)),
                    Ok(_) => Err(Error::BeyondEnd),
                    Err(error) => Err(workload_error(error)),
                }
            }
            Call::Truncate { file, bytes } => done(rustix::fs::ftruncate(open(file)?, bytes)),
            Call::Sync { file } => done(rustix::fs::fdatasync(open(file)?)),
            Call::Migrate { address, bytes, node } => migrate(address, bytes, node),
            Call::Idle { until } => {
                std::thread::sleep(std::time::Duration::from_nanos(
                    until.saturating_sub(self.now()),
                ));
                Ok(0)
            }
            // Fork, exit, demote, reclaim and any new call are refused. The error names the statement.
            _ => Err(Error::BadCall),
        }
    }

    fn compute(&self, nanoseconds: u64) {
        let end = ticks() + nanoseconds;
        while ticks() < end {
            // This lets the emulator switch to the next CPU.
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
        // A thread that reads a word mostly waits for another CPU, so we let the emulator switch to that CPU.
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

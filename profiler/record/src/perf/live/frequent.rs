//! Closes frequent events between windows: system calls, flushes, waits for `mmap_lock`, and page faults.
//!
//! These are so frequent that an open event slows programs down even if no event is recorded. The kernel needs about 40
//! ms to close a tracepoint, because it waits for all CPUs. A separate thread does that while we continue to read. No
//! window opens meanwhile.
//!
//! With two tracepoints for each kind of call, closing would take 1.5 s. So we record calls by the two tracepoints that
//! all calls share, with a filter. The drawback: in a window, every system call is checked against the filter.
//!
//! On a 64-bit kernel, calls of a 32-bit program get the name that their number has in 64-bit programs.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::thread::{self, JoinHandle};

use super::options::{CountMode, EventRequest, Stack};
use super::rings::{self, Point, PointEvents, Ring};
use crate::event::CALLS;

/// The tracepoints at the start and the end of all system calls.
pub(super) const ALL: [&str; 2] = ["raw_syscalls:sys_enter", "raw_syscalls:sys_exit"];

/// Wanted starts and ends of system calls. Each has the call's number, and the caller's index of the event.
#[derive(Default)]
pub(super) struct CallEnds([Vec<(u64, usize)>; 2]);

impl CallEnds {
    /// Takes an event if the shared tracepoints can replace it. Returns whether it was taken.
    ///
    /// It must be one end of a system call, without a stack, a count or a filter, and not kept in all processes.
    pub(super) fn take(&mut self, wanted: &EventRequest, event: usize) -> bool {
        let Some((end, number)) = number(&wanted.event) else {
            return false;
        };
        let alike = !wanted.everywhere
            && wanted.stack == Stack::Absent
            && wanted.counted == CountMode::No
            && wanted.filter.is_none();
        if alike {
            self.0[end].push((number, event));
        }
        alike
    }

    /// Returns the points of both ends. `all` has the numbers of the shared tracepoints.
    pub(super) fn points(self, all: [u64; 2]) -> impl Iterator<Item = Point> {
        let taken = all.into_iter().zip(self.0).filter(|(_, calls)| !calls.is_empty());
        taken.map(|(id, calls)| {
            let numbers: BTreeSet<u64> = calls.iter().map(|&(number, _)| number).collect();
            let each: Vec<String> =
                numbers.iter().map(|number| format!("id == {number}")).collect();
            Point {
                of: PointEvents::Calls(calls),
                id,
                stack: Stack::Absent,
                counted: false,
                everywhere: false,
                filter: CString::new(each.join(" || ")).ok(),
                frequent: true,
            }
        })
    }
}

/// System calls that may flush, with their numbers on this machine: those of [`CALLS`], and others that read files,
/// protect pages for userfaultfd, or start and end processes.
const NUMBERS: [(&str, libc::c_long); 40] = [
    ("brk", libc::SYS_brk),
    ("clone", libc::SYS_clone),
    ("clone3", libc::SYS_clone3),
    ("execve", libc::SYS_execve),
    ("execveat", libc::SYS_execveat),
    ("exit", libc::SYS_exit),
    ("exit_group", libc::SYS_exit_group),
    ("fallocate", libc::SYS_fallocate),
    ("ftruncate", libc::SYS_ftruncate),
    ("futex", libc::SYS_futex),
    ("ioctl", libc::SYS_ioctl),
    ("madvise", libc::SYS_madvise),
    ("mbind", libc::SYS_mbind),
    ("membarrier", libc::SYS_membarrier),
    ("migrate_pages", libc::SYS_migrate_pages),
    ("mmap", libc::SYS_mmap),
    ("move_pages", libc::SYS_move_pages),
    ("mprotect", libc::SYS_mprotect),
    ("mremap", libc::SYS_mremap),
    ("msync", libc::SYS_msync),
    ("munmap", libc::SYS_munmap),
    ("pkey_mprotect", libc::SYS_pkey_mprotect),
    ("pread64", libc::SYS_pread64),
    ("preadv2", libc::SYS_preadv2),
    ("process_madvise", libc::SYS_process_madvise),
    ("process_mrelease", libc::SYS_process_mrelease),
    ("pwrite64", libc::SYS_pwrite64),
    ("read", libc::SYS_read),
    ("readv", libc::SYS_readv),
    ("recvmsg", libc::SYS_recvmsg),
    ("remap_file_pages", libc::SYS_remap_file_pages),
    ("sendfile", libc::SYS_sendfile),
    ("sendmsg", libc::SYS_sendmsg),
    ("shmat", libc::SYS_shmat),
    ("shmdt", libc::SYS_shmdt),
    ("splice", libc::SYS_splice),
    ("unlinkat", libc::SYS_unlinkat),
    ("userfaultfd", libc::SYS_userfaultfd),
    ("write", libc::SYS_write),
    ("writev", libc::SYS_writev),
];

/// Returns the name of a system call, if it's listed here.
pub(super) fn name(number: u32) -> Option<&'static str> {
    let found = NUMBERS.iter().find(|(_, of)| *of == libc::c_long::from(number));
    found.map(|(name, _)| *name)
}

/// Returns whether an event is a call's start (0) or end (1), and its number.
///
/// Returns `None` unless the event is one of [`CALLS`].
fn number(event: &str) -> Option<(usize, u64)> {
    let name = event.strip_prefix("syscalls:sys_")?;
    let (end, call) = match name.strip_prefix("enter_") {
        Some(call) => (0, call),
        None => (1, name.strip_prefix("exit_")?),
    };
    let (name, number) = NUMBERS.iter().find(|(name, _)| *name == call)?;
    CALLS.contains(name).then_some(())?;
    Some((end, (*number).try_into().ok()?))
}

pub(super) struct FrequentEvents {
    points: Vec<Point>,
    counts_lost: bool,
    closing: Option<JoinHandle<()>>,
    open: bool,
}

impl FrequentEvents {
    /// Manages these points, which are open.
    pub(super) fn of(points: Vec<Point>) -> Self {
        Self {
            open: points.iter().any(|point| point.frequent),
            points,
            counts_lost: rings::counts_lost(),
            closing: None,
        }
    }

    /// Returns all points, frequent or not, in the order in which they were opened.
    pub(super) fn points(&self) -> &[Point] {
        &self.points
    }

    /// Starts to close the frequent events.
    pub(super) fn close(&mut self, rings: &mut [Ring]) -> io::Result<()> {
        if std::mem::take(&mut self.open) {
            let mut taken = Vec::new();
            for ring in rings {
                taken.extend(ring.take_frequent(&self.points)?);
            }
            // If the system refuses a thread, the failed call closes them.
            self.closing = thread::Builder::new().spawn(move || drop(taken)).ok();
        }
        Ok(())
    }

    pub(super) fn is_closing(&self) -> bool {
        let closing = self.closing.as_ref();
        closing.is_some_and(|thread| !thread.is_finished())
    }

    /// Returns whether closing has ended since the last call.
    pub(super) fn has_closed(&mut self) -> bool {
        self.closing.take_if(|thread| thread.is_finished()).is_some()
    }

    /// Opens closed frequent events. Returns whether there were any.
    pub(super) fn open(&mut self, rings: &mut [Ring]) -> io::Result<bool> {
        let closed = !self.open && self.points.iter().any(|point| point.frequent);
        if closed {
            for ring in rings {
                ring.open_frequent(&self.points, self.counts_lost)?;
            }
            self.open = true;
        }
        Ok(closed)
    }
}

impl Drop for FrequentEvents {
    fn drop(&mut self) {
        // No event may stay open in the kernel.
        if let Some(thread) = self.closing.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(event: &str, stack: Stack) -> EventRequest {
        EventRequest {
            event: event.into(),
            everywhere: false,
            stack,
            counted: CountMode::No,
            filter: None,
        }
    }

    #[test]
    fn calls_are_told_apart_by_their_numbers_and_the_others_are_left_out() {
        let mut ends = CallEnds::default();
        let (enter, exit) = ("syscalls:sys_enter_madvise", "syscalls:sys_exit_munmap");
        assert!(ends.take(&wanted(enter, Stack::Absent), 3));
        assert!(ends.take(&wanted(exit, Stack::Absent), 4));
        // The shared tracepoints can't provide a stack. And the second event is no system call.
        assert!(!ends.take(&wanted(enter, Stack::Whole), 5));
        assert!(!ends.take(&wanted("tlb:tlb_flush", Stack::Absent), 6));
        let points: Vec<Point> = ends.points([8, 9]).collect();
        let record = |number: i64| {
            let mut bytes = vec![0; 8];
            bytes.extend(number.to_ne_bytes());
            bytes
        };
        for (at, id, number, event) in [(0, 8, libc::SYS_madvise, 3), (1, 9, libc::SYS_munmap, 4)] {
            let point = &points[at];
            assert_eq!(point.id, id);
            let filter = point.filter.as_ref().unwrap();
            assert_eq!(filter.to_str().unwrap(), format!("id == {number}"));
            assert_eq!(point.of.event(&record(number)), Some(event));
            assert_eq!(point.of.event(&record(libc::SYS_read)), None);
            assert_eq!(point.of.event(&[0; 9]), None);
        }
    }

    #[test]
    fn what_is_open_is_closed_beside_the_reading_and_opened_again() {
        let point = Point {
            of: PointEvents::Event(0),
            id: 1,
            stack: Stack::Absent,
            counted: false,
            everywhere: false,
            filter: None,
            frequent: true,
        };
        let mut frequent = FrequentEvents::of(vec![point]);
        assert!(!frequent.open(&mut []).unwrap(), "it is open");
        frequent.close(&mut []).unwrap();
        while frequent.is_closing() {
            thread::yield_now();
        }
        assert!(frequent.open(&mut []).unwrap());
    }
}

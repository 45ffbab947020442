//! Handles this process and its children: CPU time, children that end with it, advice about its own memory.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::mm::Advice;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions};
use rustix::time::{ClockId, Timespec};

/// Turns a system call's -1, made through `libc`, into the error in `errno`.
pub fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Returns whether this process is privileged enough for set-ups: effective user 0. A container may still refuse.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Makes a system call that does nothing: the parent's id, which no library caches.
pub fn null_call() {
    let _ = std::hint::black_box(rustix::process::getppid());
}

fn duration(time: Timespec) -> Duration {
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

pub fn own_cpu_time() -> Duration {
    duration(rustix::time::clock_gettime(ClockId::ProcessCPUTime))
}

pub fn own_thread_cpu_time() -> Duration {
    duration(rustix::time::clock_gettime(ClockId::ThreadCPUTime))
}

/// Reads the clock with this number. We use libc, because rustix has no clocks of other threads and processes.
fn clock(id: libc::clockid_t) -> io::Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    check(unsafe { libc::clock_gettime(id, &raw mut time) }.into())?;
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Returns the CPU time so far of a thread that wasn't joined yet.
pub fn thread_cpu_time<T>(thread: &std::thread::JoinHandle<T>) -> io::Result<Duration> {
    use std::os::unix::thread::JoinHandleExt;
    let mut id = 0;
    // libc: see `clock`.
    // SAFETY: the handle is neither joined nor detached, so the pthread_t is valid.
    match unsafe { libc::pthread_getcpuclockid(thread.as_pthread_t(), &raw mut id) } {
        0 => clock(id),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// This process as a target of `process_madvise`.
pub struct OwnProcess(OwnedFd);

impl OwnProcess {
    /// Opens a pidfd of this process (Linux 5.3).
    pub fn open() -> io::Result<Self> {
        let own = rustix::process::getpid();
        Ok(Self(rustix::process::pidfd_open(own, PidfdFlags::empty())?))
    }

    /// Calls `process_madvise` once over all `ranges`, which must come from
    /// [`Mapping::range`](crate::memory::Mapping::range) of live mappings.
    ///
    /// # Errors
    /// The errors of the call: `EINVAL` if the kernel doesn't support this advice. A call that stopped early is an
    /// error.
    pub fn advise(&self, ranges: &[libc::iovec], advice: Advice) -> io::Result<()> {
        let want: usize = ranges.iter().map(|r| r.iov_len).sum();
        // libc, because rustix has no process_madvise.
        // SAFETY: an array of ranges of our own mappings with its length; see `Mapping::advise` on their content.
        let done = check(unsafe {
            let fd = self.0.as_raw_fd();
            libc::syscall(
                libc::SYS_process_madvise,
                fd,
                ranges.as_ptr(),
                ranges.len(),
                advice as libc::c_int,
                0,
            )
        })?;
        if done as usize == want {
            return Ok(());
        }
        let account = format!("process_madvise stopped after {done} of {want} bytes");
        Err(io::Error::other(account))
    }
}

/// A forked child. It is killed and collected on drop, and the kernel kills it if this process dies first.
pub struct Child(Pid);

impl Child {
    /// Forks a child that runs `body` and exits without running this process's destructors.
    ///
    /// # Safety
    /// This process must have one thread, or `body` must only make async-signal-safe calls (no allocation).
    pub unsafe fn fork(body: impl FnOnce()) -> io::Result<Self> {
        // libc, because rustix only forks processes without a C library.
        // SAFETY: the caller's promise.
        match Pid::from_raw(check(unsafe { libc::fork() }.into())? as i32) {
            None => {
                // A panic must not unwind into the copy of the parent's stack: its guards would undo the parent's
                // set-up.
                let body = std::panic::AssertUnwindSafe(body);
                // We ignore the result: Linux has had the call since 2.1.57, and accepts every signal that exists.
                let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
                let code = i32::from(std::panic::catch_unwind(body).is_err());
                // libc, because std's exit runs the parent's exit handlers.
                // SAFETY: takes an integer; ends the child at once.
                unsafe { libc::_exit(code) }
            }
            Some(pid) => Ok(Self(pid)),
        }
    }

    pub fn id(&self) -> i32 {
        self.0.as_raw_nonzero().get()
    }

    pub fn cpu_time(&self) -> io::Result<Duration> {
        let mut id = 0;
        // libc: see `clock`.
        // SAFETY: writes one clock id.
        match unsafe { libc::clock_getcpuclockid(self.id(), &raw mut id) } {
            0 => clock(id),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Returns whether the child has ended by itself. It doesn't collect the child.
    pub fn has_ended(&self) -> bool {
        // NOWAIT leaves the child to be collected on drop.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        rustix::process::waitid(WaitId::Pid(self.0), options).is_ok_and(|ended| ended.is_some())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The child is ours and not collected yet, so the id can't name another process.
        let _ = rustix::process::kill_process(self.0, Signal::KILL);
        let _ = rustix::process::waitpid(Some(self.0), WaitOptions::empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_runs_until_it_ends_or_is_dropped() {
        // SAFETY: the child only sleeps.
        let asleep = unsafe { Child::fork(|| while libc::pause() == 0 {}) }.unwrap();
        // SAFETY: the child does nothing.
        let done = unsafe { Child::fork(|| ()) }.unwrap();
        while !done.has_ended() {
            std::thread::yield_now();
        }
        assert!(done.has_ended() && !asleep.has_ended());
        for child in [asleep, done] {
            let id = child.id();
            drop(child);
            assert!(!std::path::Path::new(&format!("/proc/{id}")).exists());
        }
    }
}

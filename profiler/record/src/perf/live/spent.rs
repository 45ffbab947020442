//! Runs a command and returns its time, memory and page faults, by the kernel's account.
//!
//! Also counts the interrupts that it sends to flush TLBs. Records nothing else.

use std::io;
use std::mem::MaybeUninit;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use perf_event::events::Tracepoint;
use perf_event::{Builder, Counter};

use super::rings;
use crate::perf::sample::NameTable;
use crate::perf::tracefs::Tracefs;

/// The resources used by a command and by all that it started and waited for.
#[derive(Clone, Copy, Debug)]
pub struct CommandUsage {
    /// The time from start to end.
    pub wall: Duration,
    /// The total CPU time.
    pub cpu: Duration,
    /// The part of `cpu` in the kernel.
    pub kernel: Duration,
    /// Page faults.
    pub faults: u64,
    /// Interrupts that it sent to flush TLBs. `None` if we can't count them.
    pub interrupts: Option<u64>,
    /// Peak memory of its largest process, in bytes.
    pub peak: u64,
    /// Its exit status.
    pub status: ExitStatus,
}

impl CommandUsage {
    /// Runs a command to its end.
    ///
    /// # Errors
    ///
    /// If it can't be started.
    pub fn of(command: &mut Command) -> io::Result<Self> {
        // The counter includes all processes that this thread starts.
        let mut counter = interrupts_sent();
        let begun = Instant::now();
        let child = command.spawn()?;
        let (status, usage) = waited_for(child.id())?;
        let wall = begun.elapsed();
        let time = |time: libc::timeval| {
            let micros = time.tv_sec.cast_unsigned() * 1_000_000 + time.tv_usec.cast_unsigned();
            Duration::from_micros(micros)
        };
        let kernel = time(usage.ru_stime);
        Ok(CommandUsage {
            wall,
            cpu: time(usage.ru_utime) + kernel,
            kernel,
            faults: usage.ru_minflt.cast_unsigned() + usage.ru_majflt.cast_unsigned(),
            interrupts: counter.as_mut().and_then(|counter| counter.read().ok()),
            peak: usage.ru_maxrss.cast_unsigned() * 1024,
            status,
        })
    }
}

/// Starts to count flush interrupts that this thread and all its descendants send.
fn interrupts_sent() -> Option<Counter> {
    let tracefs = Tracefs::find().ok()?;
    let format = tracefs.format("csd:csd_queue_cpu", &mut NameTable::default());
    let mut event = Builder::new(Tracepoint::with_id(format.ok()??.id));
    event.include_kernel().inherit(true);
    let mut counter = event.build().ok()?;
    rings::restrict(&counter, c"func.function == flush_tlb_func").ok()?;
    counter.enable().ok()?;
    Some(counter)
}

/// Waits for a child. Returns its exit status and its resource usage.
fn waited_for(pid: u32) -> io::Result<(ExitStatus, libc::rusage)> {
    use std::os::unix::process::ExitStatusExt;
    let (mut status, mut usage) = (0, MaybeUninit::zeroed());
    loop {
        // SAFETY: the kernel writes a status and an `rusage` to these two, which live until it returns.
        let waited =
            unsafe { libc::wait4(pid.cast_signed(), &raw mut status, 0, usage.as_mut_ptr()) };
        if waited >= 0 {
            // SAFETY: all-zero bytes are a valid `rusage`, and the kernel has written one since.
            return Ok((ExitStatus::from_raw(status), unsafe { usage.assume_init() }));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

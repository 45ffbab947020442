//! Measures what commands and running processes use: time, memory and page faults, by the kernel's account.
//!
//! Also counts the interrupts that they send to flush TLBs. Records nothing else.

use std::collections::HashSet;
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use perf_event::events::Tracepoint;
use perf_event::{Builder, Counter};
use rustix::process::{Pid, Signal, kill_process};

use super::host::process_ns;
use super::processes::{descendants, numbers};
use super::rings;
use crate::perf::counters::{self, Usage};
use crate::perf::sample::NameTable;
use crate::perf::tracefs::Tracefs;

/// The resources used in a run or a turn.
#[derive(Clone, Copy, Debug)]
pub struct RunUsage {
    /// Its length.
    pub wall: Duration,
    /// The total CPU time.
    pub cpu: Duration,
    /// The part of `cpu` in the kernel.
    pub kernel: Duration,
    /// Page faults.
    pub faults: u64,
    /// Interrupts sent to flush TLBs. `None` if we can't count them.
    pub interrupts: Option<u64>,
    /// Memory in bytes: the peak of a command's largest process, or that of running processes at the end.
    ///
    /// A command's is at least that of this process, because the kernel's account of it begins before the command
    /// replaces this process.
    pub memory: u64,
    /// Whether `memory` is that of the command, and not of this process.
    pub shows_memory: bool,
}

/// A command that runs, and a counter of its interrupts.
pub struct CommandRun {
    counter: Option<Counter>,
    begun: Instant,
    /// The time at which it was told to end.
    ended: Option<Instant>,
    child: Child,
    /// The peak of this process in KiB when the command started.
    own_rss: i64,
}

impl CommandRun {
    /// Starts a command.
    ///
    /// # Errors
    ///
    /// If it can't be started.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        // The counter includes all processes that this thread starts from now on.
        let counter = interrupts_sent(None);
        Ok(Self {
            counter,
            begun: Instant::now(),
            ended: None,
            child: command.spawn()?,
            own_rss: usage(libc::RUSAGE_SELF).map_or(0, |usage| usage.ru_maxrss),
        })
    }

    /// Returns whether the command has ended. Leaves its account to [`wait`](Self::wait).
    pub fn has_ended(&self) -> bool {
        has_ended(self.child.id())
    }

    /// Tells the command to end (`SIGTERM`). Its length is counted until now.
    ///
    /// # Errors
    ///
    /// If the kernel refuses.
    pub fn terminate(&mut self) -> io::Result<()> {
        self.ended = Some(Instant::now());
        Ok(kill_process(Pid::from_child(&self.child), Signal::TERM)?)
    }

    /// Waits for the end of the command.
    ///
    /// # Errors
    ///
    /// If something else waited for it.
    pub fn wait(mut self) -> io::Result<(RunUsage, ExitStatus)> {
        let (status, usage) = waited_for(self.child.id())?;
        let wall = self.ended.unwrap_or_else(Instant::now) - self.begun;
        let time = |time: libc::timeval| {
            let micros = time.tv_sec.cast_unsigned() * 1_000_000 + time.tv_usec.cast_unsigned();
            Duration::from_micros(micros)
        };
        let kernel = time(usage.ru_stime);
        let counter = self.counter.as_mut();
        let usage = RunUsage {
            wall,
            cpu: time(usage.ru_utime) + kernel,
            kernel,
            faults: usage.ru_minflt.cast_unsigned() + usage.ru_majflt.cast_unsigned(),
            interrupts: counter.and_then(|counter| counter.read().ok()),
            memory: usage.ru_maxrss.cast_unsigned() * 1024,
            shows_memory: usage.ru_maxrss > self.own_rss,
        };
        Ok((usage, status))
    }
}

/// A turn of a process that was running before, with its descendants.
pub struct ProcessTurn {
    pid: u32,
    begun: Instant,
    before: Account,
    /// A counter for each thread that we may count. Empty without the right to.
    counters: Vec<Counter>,
}

/// The account of a process and its descendants so far.
struct Account {
    cpu_ns: u64,
    used: Usage,
    pages: u64,
    pids: Vec<u32>,
}

impl ProcessTurn {
    /// Begins a turn. Returns `None` if there is no such process.
    pub fn start(pid: u32) -> Option<Self> {
        let before = Account::of(pid)?;
        let tasks = |pid: &u32| numbers(Path::new(&format!("/proc/{pid}/task")));
        let threads = before.pids.iter().flat_map(tasks);
        Some(Self {
            pid,
            counters: threads.filter_map(|tid| interrupts_sent(Some(tid))).collect(),
            begun: Instant::now(),
            before,
        })
    }

    /// Ends the turn. Returns `None` if the process has ended.
    pub fn end(self) -> Option<RunUsage> {
        let wall = self.begun.elapsed();
        let (after, before) = (Account::of(self.pid)?, self.before);
        let used = after.used.minus(before.used);
        let is_counted = !self.counters.is_empty();
        let counts = self.counters.into_iter();
        let sent = counts.filter_map(|mut counter| counter.read().ok()).sum();
        Some(RunUsage {
            wall,
            cpu: Duration::from_nanos(after.cpu_ns.saturating_sub(before.cpu_ns)),
            kernel: Duration::from_nanos(used.kernel_ns),
            faults: used.faults,
            interrupts: is_counted.then_some(sent),
            memory: after.pages * rustix::param::page_size() as u64,
            shows_memory: true,
        })
    }
}

impl Account {
    /// Reads the accounts. Returns `None` if the process has ended.
    fn of(pid: u32) -> Option<Self> {
        if has_ended(pid) {
            return None;
        }
        let mut all = descendants(&HashSet::from([pid]), &numbers(Path::new("/proc")));
        all.push((pid, counters::process(pid)?));
        let mut account = Self {
            cpu_ns: 0,
            used: Usage::default(),
            pages: 0,
            pids: all.iter().map(|(pid, _)| *pid).collect(),
        };
        for (pid, process) in all {
            // The clock of a process is finer than its account, which counts in steps of 10 ms.
            let own_ns = process_ns(pid).unwrap_or(process.own.ns());
            account.cpu_ns += own_ns + process.children.ns();
            account.used = account.used.plus(process.own).plus(process.children);
            account.pages += process.pages;
        }
        Some(account)
    }
}

/// Returns whether a process has ended, whether its parent has waited for it or not.
fn has_ended(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, state)| state);
    state.is_none_or(|state| state.starts_with('Z'))
}

/// Starts to count flush interrupts of a thread, or of this one, and of all that it starts.
fn interrupts_sent(tid: Option<u32>) -> Option<Counter> {
    let tracefs = Tracefs::find().ok()?;
    let format = tracefs.format("csd:csd_queue_cpu", &mut NameTable::default());
    let mut event = Builder::new(Tracepoint::with_id(format.ok()??.id));
    event.include_kernel().inherit(true);
    if let Some(tid) = tid {
        event.observe_pid(tid.cast_signed());
    }
    let mut counter = event.build().ok()?;
    rings::restrict(&counter, c"func.function == flush_tlb_func").ok()?;
    counter.enable().ok()?;
    Some(counter)
}

/// Returns the most resident pages that any process had that this one, or one of its children, has waited for.
pub(super) fn peak_pages() -> u64 {
    // In KiB.
    usage(libc::RUSAGE_CHILDREN).map_or(0, |usage| (usage.ru_maxrss / 4).unsigned_abs())
}

/// Returns the kernel's account of this process, or of its children.
fn usage(of: libc::c_int) -> Option<libc::rusage> {
    let mut usage = MaybeUninit::zeroed();
    // SAFETY: the kernel writes an `rusage` to this one, which lives until the call returns.
    let result = unsafe { libc::getrusage(of, usage.as_mut_ptr()) };
    // SAFETY: all-zero bytes are a valid `rusage`, and the kernel has written one since.
    (result == 0).then_some(unsafe { usage.assume_init() })
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

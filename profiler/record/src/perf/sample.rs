//! The items of a recording, wherever it comes from.
//!
//! A recording is a stream of [`Item`]s: the host, its counters before, events with their stacks, losses, changes of
//! processes, and the counters after. A reader takes them one by one from a [`Source`] and keeps what it needs: ten million
//! events do not fit into memory. Items share names and stacks (`Arc`), because a recording has few different ones. If
//! `Arc::ptr_eq` is true, two are equal; if it is false, they may be equal all the same.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// One event with its time, CPU, thread, fields and stack.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Nanoseconds on the recording's clock, which all CPUs share. Its zero has no meaning.
    pub time_ns: u64,
    /// The CPU.
    pub cpu: u32,
    /// The process (thread group) that was running; 0 is the idle task.
    pub pid: u32,
    /// The thread that was running; for an interrupt, the interrupted thread.
    pub tid: u32,
    /// The thread's name at that time, empty if it is not known.
    pub comm: Arc<str>,
    /// The event's name as Linux writes it, `group:name`: `tlb:tlb_flush`.
    pub event: Arc<str>,
    /// Its fields in the order in which the kernel lists them, without the common ones.
    pub fields: Vec<(Arc<str>, Value)>,
    /// The frames, innermost first: those of the kernel, then those of the program. Empty if none were recorded.
    pub stack: Arc<[Frame]>,
}

impl Sample {
    /// The field of this name.
    pub fn field(&self, name: &str) -> Option<&Value> {
        let found = self.fields.iter().find(|(field, _)| &**field == name);
        found.map(|(_, value)| value)
    }

    /// The field of this name as a number, if it is one that is not negative.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.field(name)?.number()
    }
}

/// The value of an event's field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number that may be negative.
    Signed(i64),
    /// A number that cannot be negative, or an address.
    Unsigned(u64),
    /// Text, or the name of a kernel function that was resolved from its address.
    Text(Arc<str>),
    /// A set of CPUs, in rising order.
    Cpus(Arc<[u32]>),
}

impl Value {
    /// Returns the number, unless it is negative or no number.
    pub fn number(&self) -> Option<u64> {
        match self {
            Value::Signed(number) => u64::try_from(*number).ok(),
            Value::Unsigned(number) => Some(*number),
            Value::Text(_) | Value::Cpus(_) => None,
        }
    }

    /// Returns the text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Signed(number) => number.fmt(f),
            Value::Unsigned(number) => number.fmt(f),
            Value::Text(text) => text.fmt(f),
            Value::Cpus(cpus) => f.debug_set().entries(cpus.iter()).finish(),
        }
    }
}

/// One place on a stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The instruction's address, as the CPU saw it. If the recorder found a file but no symbol for it, its place in that
    /// file. All but the innermost frame of each part have return addresses.
    pub address: u64,
    /// Whether it is a frame of the kernel.
    pub kernel: bool,
    /// The function's name, demangled, without an offset; `None` if no symbol covers the address.
    pub symbol: Option<Arc<str>>,
    /// The path of the code's file; `[kernel]` for the kernel, `[jit]` for code compiled at run time, `None` if it is not
    /// known.
    pub module: Option<Arc<str>>,
}

/// Why events left no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum LossReason {
    /// Their buffer was full, as the kernel reports.
    Full,
    /// They were counted, and left no record for a reason that the kernel does not report. Two are known. Since 2026, Linux
    /// counts an event but leaves it out if recording stopped on its CPU in between (`perf_swevent_event`). And some
    /// kernels of virtual machines record nothing of the idle task of some CPUs; `perf record` beside `perf stat` shows
    /// the same.
    Untold,
}

/// Events that happened and were not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Why.
    pub why: LossReason,
    /// When the loss was noticed.
    pub time_ns: u64,
    /// On which CPU.
    pub cpu: u32,
    /// How many.
    pub count: u64,
}

/// A change of a process or thread. Names are of type `N`: text, or numbers in a recording.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Change<N = Arc<str>> {
    /// A thread has this name, from before the recording or from now on.
    Named {
        /// When, 0 if before the recording.
        time_ns: u64,
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// The name.
        comm: N,
        /// Whether another program was loaded (`execve`), which removes all mappings.
        exec: bool,
    },
    /// A thread began. It is a new process if `pid` and `parent` differ.
    Forked {
        /// When.
        time_ns: u64,
        /// Its process.
        pid: u32,
        /// Itself.
        tid: u32,
        /// The process that made it.
        parent: u32,
        /// The thread that made it.
        parent_tid: u32,
    },
    /// A thread ended.
    Exited {
        /// When.
        time_ns: u64,
        /// Its process.
        pid: u32,
        /// Itself.
        tid: u32,
    },
    /// A process mapped executable memory.
    Mapped {
        /// When, 0 if before the recording.
        time_ns: u64,
        /// The process.
        pid: u32,
        /// Where it begins.
        start: u64,
        /// How many bytes it has.
        bytes: u64,
        /// Where in the file it begins, in bytes.
        offset: u64,
        /// The file, or what the kernel calls the mapping.
        module: N,
    },
}

impl Change {
    /// Names a process by its main thread; `exec` if it loaded another program.
    pub fn named(time_ns: u64, pid: u32, comm: impl Into<Arc<str>>, exec: bool) -> Self {
        Change::Named {
            time_ns,
            pid,
            tid: pid,
            comm: comm.into(),
            exec,
        }
    }

    /// Begins a process, made by the main thread of `parent`.
    pub fn forked(time_ns: u64, pid: u32, parent: u32) -> Self {
        Change::Forked {
            time_ns,
            pid,
            tid: pid,
            parent,
            parent_tid: parent,
        }
    }

    /// Ends a process with its main thread.
    pub fn exited(time_ns: u64, pid: u32) -> Self {
        Change::Exited {
            time_ns,
            pid,
            tid: pid,
        }
    }
}

impl<N> Change<N> {
    /// Converts the change's name, if it has one.
    ///
    /// # Errors
    /// That of `name`.
    pub(crate) fn with_name<M, E>(
        &self,
        name: impl FnOnce(&N) -> Result<M, E>,
    ) -> Result<Change<M>, E> {
        Ok(match *self {
            Change::Named {
                time_ns,
                pid,
                tid,
                ref comm,
                exec,
            } => Change::Named {
                time_ns,
                pid,
                tid,
                comm: name(comm)?,
                exec,
            },
            Change::Forked {
                time_ns,
                pid,
                tid,
                parent,
                parent_tid,
            } => Change::Forked {
                time_ns,
                pid,
                tid,
                parent,
                parent_tid,
            },
            Change::Exited { time_ns, pid, tid } => Change::Exited { time_ns, pid, tid },
            Change::Mapped {
                time_ns,
                pid,
                start,
                bytes,
                offset,
                ref module,
            } => Change::Mapped {
                time_ns,
                pid,
                start,
                bytes,
                offset,
                module: name(module)?,
            },
        })
    }
}

/// The host and the scope of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Host {
    /// The kernel's release, as `uname -r` prints it; empty if it is not known.
    pub kernel: String,
    /// The number of online CPUs; 0 if it is not known.
    pub cpus: u32,
    /// The processor's model; empty if it is not known.
    pub processor: String,
    /// Whether this is a virtual machine; `None` if it is not known.
    pub virtual_machine: Option<bool>,
    /// The scope in words: "everything", "process 17", "the command …".
    pub scope: String,
    /// The processes that the recording is about; empty if it is about all of them.
    pub pids: Vec<u32>,
    /// Requested events that were recorded.
    pub events: Vec<String>,
    /// Requested events that this kernel lacks.
    pub missing: Vec<String>,
}

/// Whether counters were read before the recording or after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum When {
    /// Before.
    Before,
    /// After.
    After,
}

/// One line of `/proc/interrupts`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Interrupts {
    /// The text before the colon: `TLB`, `CAL`, `17`.
    pub name: String,
    /// The counts, in the order of the online CPUs.
    pub counts: Vec<u64>,
    /// The text behind the counts.
    pub description: String,
}

/// The kernel's own counters, always of the whole machine.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Statistics {
    /// When they were read.
    pub when: When,
    /// On the recording's clock.
    pub time_ns: u64,
    /// `/proc/interrupts`.
    pub interrupts: Vec<Interrupts>,
    /// `/proc/vmstat`.
    pub vmstat: Vec<(String, u64)>,
    /// `/proc/stat`: nanoseconds of all CPUs together by use (`user`, `system`, `steal`, …).
    pub cpu_ns: Vec<(String, u64)>,
}

/// The event that is counted by the growth of `pgfault` in `/proc/vmstat`, which costs nothing. That includes faults of the
/// kernel's own accesses to a program's memory.
pub const FAULTS: &str = "exceptions:page_fault_user";

/// The exact count of an event, and how often it was recorded.
///
/// Each recorded event stands for `exact / seen` events. `seen` is at most `exact`, except for events between the two
/// readings.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Count {
    /// The event's name, `group:name`.
    pub event: String,
    /// Its count on all CPUs and in all processes while the recording ran, from the kernel.
    pub exact: u64,
    /// Samples of it that reached the recorder, of all processes.
    pub seen: u64,
    /// Samples of it in the recording.
    pub kept: u64,
}

impl Count {
    /// Adds the count of other occurrences of the same event.
    pub(crate) fn add(&mut self, other: &Count) {
        self.exact += other.exact;
        self.seen += other.seen;
        self.kept += other.kept;
    }
}

/// Costs on this host of things that a recording only counts, measured before it, in nanoseconds of CPU time.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Prices {
    /// A page fault that fills an anonymous page, its zeroing included: at least (few pages, again and again), at most
    /// (every CPU fills many).
    pub fault_ns: (f64, f64),
    /// Giving such a page back (`MADV_DONTNEED` of many at once), at least and at most likewise.
    pub discard_ns: (f64, f64),
    /// Zeroing a page: in the cache, and out of it.
    pub zero_ns: (f64, f64),
    /// Recording an event, for its thread: without a stack, with one that the kernel walks, with a copy of one.
    pub event_ns: [f64; 3],
}

/// The CPU time of all recorded processes of one name, by the kernel's own account.
///
/// The recorder reads the account of each process from time to time, and of all at the end. Time after the last reading,
/// and all time of a process that was never read, is known once its parent has waited for it. That time is split among the
/// names of the children that ended unread, by their number, and includes their own children: `sh` has the time of its
/// `cc1`. If all children were read, it counts for the name of the parent. Time that nobody has waited for before
/// the recording ends is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CpuTime {
    /// Their main threads' name.
    pub comm: String,
    /// Nanoseconds in user mode.
    pub user_ns: u64,
    /// Nanoseconds in the kernel.
    pub kernel_ns: u64,
    /// The part of `user_ns` used by processes that were forked during the recording, loaded no other program, and have
    /// ended: a process for each request, or for a snapshot.
    pub forked_user_ns: u64,
    /// Pages by which processes shrank that existed before the recording.
    pub shrank_pages: u64,
    /// Page faults, except those of kernel threads.
    pub faults: u64,
}

impl CpuTime {
    /// Returns user and kernel time together.
    pub fn ns(&self) -> u64 {
        self.user_ns.saturating_add(self.kernel_ns)
    }
}

/// A stretch of time in which events were recorded. Between windows they are only counted, to limit the cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Window {
    /// Its begin, on the recording's clock.
    pub start_ns: u64,
    /// Its end.
    pub end_ns: u64,
}

/// One thing in a recording.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// The host; the first item, if it is known.
    Host(Host),
    /// The kernel's counters, before and after.
    Statistics(Statistics),
    /// An event.
    Sample(Sample),
    /// Events that are missing.
    Lost(Lost),
    /// A process changed.
    Change(Change),
    /// A window closed; its samples came before. A recording without windows is recorded as a whole.
    Window(Window),
    /// An exact count; after the samples.
    Count(Count),
    /// Costs of things that are only counted; before the samples.
    Prices(Prices),
    /// The CPU time of a program; after the samples.
    CpuTime(CpuTime),
    /// A note for the reader of the result: a file that could not be read, the overhead.
    Note(Arc<str>),
}

/// An error in reading a recording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct SourceError {
    /// The file, with the line or the offset.
    pub place: String,
    /// The problem, and what to do.
    pub what: String,
}

/// Reads a recording from begin to end.
pub trait Source {
    /// Reads the next item; `None` after the last.
    ///
    /// Samples of each CPU come in the order of time. Some sources also order them over all CPUs.
    ///
    /// # Errors
    ///
    /// Items read before the error are valid; nothing follows it.
    fn next(&mut self) -> Result<Option<Item>, SourceError>;

    /// Returns the share that has been read, from 0 to 1, if it is known.
    fn progress(&self) -> Option<f64> {
        None
    }
}

impl<S: Source + ?Sized> Source for Box<S> {
    fn next(&mut self) -> Result<Option<Item>, SourceError> {
        (**self).next()
    }

    fn progress(&self) -> Option<f64> {
        (**self).progress()
    }
}

/// The flushes of a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushes {
    /// Flushes.
    pub flushes: u64,
    /// Flushes of the whole address space.
    pub full: u64,
    /// Pages of the other flushes.
    pub pages: u64,
    /// Flushes that interrupted other CPUs.
    pub remote: u64,
    /// Interrupts sent.
    pub interrupts: u64,
    /// Nanoseconds from sending the first interrupt until the last target was done.
    pub waited_ns: u64,
    /// Nanoseconds that targets spent flushing.
    pub work_ns: u64,
}

/// A count of [`Flushes`]: its name in recordings, and how to read it.
pub type FlushCount = (&'static str, fn(&Flushes) -> u64);

impl Flushes {
    /// Every count.
    pub const COUNTS: [FlushCount; 7] = [
        ("flushes", |f| f.flushes),
        ("full", |f| f.full),
        ("pages", |f| f.pages),
        ("remote", |f| f.remote),
        ("interrupts", |f| f.interrupts),
        ("waited_ns", |f| f.waited_ns),
        ("work_ns", |f| f.work_ns),
    ];

    /// Makes flushes of one value for each of [`COUNTS`](Self::COUNTS).
    pub fn from_counts(value: impl FnMut(FlushCount) -> u64) -> Flushes {
        let [flushes, full, pages, remote, interrupts, waited_ns, work_ns] =
            Self::COUNTS.map(value);
        Flushes {
            flushes,
            full,
            pages,
            remote,
            interrupts,
            waited_ns,
            work_ns,
        }
    }

    /// Subtracts an earlier state.
    #[must_use]
    pub fn since(&self, before: &Flushes) -> Flushes {
        Self::from_counts(|(_, of)| of(self).saturating_sub(of(before)))
    }

    /// Adds the flushes of another place.
    pub fn add(&mut self, other: &Flushes) {
        *self = Self::from_counts(|(_, of)| of(self) + of(other));
    }

    /// Multiplies each count, and rounds it.
    #[must_use]
    pub fn times(&self, factor: f64) -> Flushes {
        Self::from_counts(|(_, of)| (of(self) as f64 * factor).round() as u64)
    }
}

/// Names that are kept once.
#[derive(Clone, Debug, Default)]
pub struct Names(HashSet<Arc<str>>);

impl Names {
    /// The one copy of this name.
    pub fn get(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.get(name) {
            return known.clone();
        }
        let name: Arc<str> = name.into();
        self.0.insert(name.clone());
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_once() {
        let mut names = Names::default();
        let first = names.get("tlb:tlb_flush");
        assert!(Arc::ptr_eq(&first, &names.get("tlb:tlb_flush")));
        assert!(!Arc::ptr_eq(&first, &names.get("ipi:ipi_send_cpu")));
    }

    #[test]
    fn negative_numbers_and_text_are_no_counts() {
        assert_eq!(Value::Signed(-1).number(), None);
        assert_eq!(Value::Signed(4).number(), Some(4));
        assert_eq!(Value::Text("4".into()).number(), None);
    }
}

//! Defines the items of a recording, which are the same for every source.
//!
//! A recording is a stream of [`Item`]s: the host, its counters before, events with their stacks, losses, changes of
//! processes, and the counters after. A reader takes them one by one from a [`Source`] and keeps only what it needs,
//! because ten million events don't fit into memory. A recording has few different names and stacks, so items share
//! them (`Arc`). If `Arc::ptr_eq` returns `true`, two are equal. If it returns `false`, they may still be equal.

use std::collections::HashSet;
use std::sync::Arc;

use crate::figures::Range;

/// One event with its time, CPU, thread, fields and stack.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Nanoseconds on the recording's clock. All CPUs share it, and its zero has no meaning.
    pub time_ns: u64,
    /// The CPU.
    pub cpu: u32,
    /// The process (thread group) that was running. 0 is the idle task.
    pub pid: u32,
    /// The thread that was running. For an interrupt it's the interrupted thread.
    pub tid: u32,
    /// The thread's name at that time. Empty if it isn't known.
    pub comm: Arc<str>,
    /// The event's name as Linux writes it, `group:name`. For example `tlb:tlb_flush`.
    pub event: Arc<str>,
    /// Its fields in the kernel's order, without the common ones.
    pub fields: Vec<(Arc<str>, Value)>,
    /// The frames, innermost first: those of the kernel, then those of the program. Empty if no stack was recorded.
    pub stack: Arc<[Frame]>,
}

impl Sample {
    /// Returns the field of this name.
    pub fn field(&self, name: &str) -> Option<&Value> {
        let found = self.fields.iter().find(|(field, _)| &**field == name);
        found.map(|(_, value)| value)
    }

    /// Returns the field of this name as a number, unless it's negative or no number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.field(name)?.number()
    }
}

/// The value of an event's field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number that may be negative.
    Signed(i64),
    /// A number that can't be negative, or an address.
    Unsigned(u64),
    /// Text, or the resolved name of a kernel function.
    Text(Arc<str>),
}

impl Value {
    /// Returns the number, unless it's negative or no number.
    pub fn number(&self) -> Option<u64> {
        match self {
            Value::Signed(number) => u64::try_from(*number).ok(),
            Value::Unsigned(number) => Some(*number),
            Value::Text(_) => None,
        }
    }

    /// Returns the number's bits. A recorder may have turned an unsigned number into a negative one.
    pub(crate) fn bits(&self) -> Option<u64> {
        match self {
            Value::Signed(number) => Some(number.cast_unsigned()),
            Value::Unsigned(number) => Some(*number),
            Value::Text(_) => None,
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

/// One level of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The address of the instruction. If the recorder found a file but no symbol, the offset in that file.
    ///
    /// All but the innermost frame of each part have return addresses.
    pub address: u64,
    /// Whether it's a frame of the kernel.
    pub kernel: bool,
    /// The function's name, demangled and without an offset. `None` if no symbol covers the address.
    pub symbol: Option<Arc<str>>,
    /// The path of the code's file. It's `[kernel]` for the kernel and `[jit]` for code compiled at run time. `None` if
    /// the file isn't known.
    pub module: Option<Arc<str>>,
}

/// The reason why events left no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum LossReason {
    /// The buffer was full, as the kernel reports.
    Full,
    /// The kernel doesn't report the reason. It counted these events, but wrote no record.
    ///
    /// We know two reasons. Since 2026, Linux counts an event but drops its record if recording stopped on its CPU in
    /// between (`perf_swevent_event`). And some guest kernels record nothing of the idle task on some CPUs: `perf
    /// record` beside `perf stat` shows the same.
    Unexplained,
}

/// Events that happened and weren't recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LostEvents {
    /// The reason.
    pub why: LossReason,
    /// The time at which the loss was noticed.
    pub time_ns: u64,
    /// The CPU.
    pub cpu: u32,
    /// The number of lost events.
    pub count: u64,
}

/// A change of a process or thread.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Change {
    /// A thread has this name, from before the recording or from now on.
    Named {
        /// The time; 0 if before the recording.
        time_ns: u64,
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// The name.
        comm: Arc<str>,
        /// Whether it loaded another program (`execve`), which removes all mappings.
        exec: bool,
    },
    /// A thread began. It's a new process if `pid` and `parent` differ.
    Forked {
        /// The time.
        time_ns: u64,
        /// Its process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// The process that created it.
        parent: u32,
        /// The thread that created it.
        parent_tid: u32,
    },
    /// A thread ended.
    Exited {
        /// The time.
        time_ns: u64,
        /// Its process.
        pid: u32,
        /// The thread.
        tid: u32,
    },
    /// A process mapped executable memory.
    Mapped {
        /// The time; 0 if before the recording.
        time_ns: u64,
        /// The process.
        pid: u32,
        /// The first address.
        start: u64,
        /// The number of bytes.
        bytes: u64,
        /// The mapping's offset in the file, in bytes.
        offset: u64,
        /// The file's path, or the kernel's name for the mapping.
        module: Arc<str>,
    },
}

impl Change {
    /// Creates a name change of a process. `exec` is set if it loaded another program.
    pub fn named(time_ns: u64, pid: u32, comm: impl Into<Arc<str>>, exec: bool) -> Self {
        Change::Named { time_ns, pid, tid: pid, comm: comm.into(), exec }
    }

    /// Creates the start of a process, by the main thread of `parent`.
    pub fn forked(time_ns: u64, pid: u32, parent: u32) -> Self {
        Change::Forked { time_ns, pid, tid: pid, parent, parent_tid: parent }
    }

    /// Creates the end of a process and its main thread.
    pub fn exited(time_ns: u64, pid: u32) -> Self {
        Change::Exited { time_ns, pid, tid: pid }
    }
}

/// The host and the scope of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Host {
    /// The kernel's release, as `uname -r` prints it. Empty if it isn't known.
    pub kernel: String,
    /// The number of online CPUs. 0 if it isn't known.
    pub cpus: u32,
    /// The processor's model. Empty if it isn't known.
    pub processor: String,
    /// Whether this is a virtual machine. `None` if it isn't known.
    pub virtual_machine: Option<bool>,
    /// The scope in words: "everything", "process 17", "the command …".
    pub scope: String,
    /// The processes that the recording is about. Empty if it's about all of them.
    pub pids: Vec<u32>,
    /// Requested events that were recorded.
    pub events: Vec<String>,
    /// Requested events that this kernel lacks.
    pub missing: Vec<String>,
}

/// Whether counters were read before the recording or after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum ReadTime {
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
    /// The text after the counts.
    pub description: String,
}

/// The kernel's own counters, which always cover the whole machine.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Statistics {
    /// Whether they were read before the recording or after it.
    pub when: ReadTime,
    /// The time of the reading on the recording's clock.
    pub time_ns: u64,
    /// `/proc/interrupts`.
    pub interrupts: Vec<Interrupts>,
    /// `/proc/vmstat`.
    pub vmstat: Vec<(String, u64)>,
    /// The line `cpu` of `/proc/stat`: nanoseconds of all CPUs by use (`user`, `system`, `steal`, …).
    pub cpu_ns: Vec<(String, u64)>,
}

/// The event of a user-mode page fault.
///
/// We count it by the growth of `pgfault` in `/proc/vmstat`, which costs nothing. That row also counts faults of the
/// kernel's own accesses to a program's memory.
pub const FAULTS: &str = "exceptions:page_fault_user";

/// The exact count of an event, and the number of its samples.
///
/// Each sample represents `exact / seen` events. `seen` is at most `exact`, apart from events that happened between the
/// two readings.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Count {
    /// The event's name, `group:name`.
    pub event: String,
    /// The kernel's count on all CPUs and in all processes during the recording.
    pub exact: u64,
    /// Samples that reached the recorder, of all processes.
    pub seen: u64,
    /// Samples in the recording.
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

/// Costs of actions that a recording only counts, in nanoseconds of CPU time.
///
/// We measure those of memory on the same host just before the recording.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Prices {
    /// A page fault that fills an anonymous page, with its zeroing.
    ///
    /// The lower bound is for a few pages filled repeatedly, the upper bound for many pages filled by every CPU at
    /// once.
    pub fault_ns: Range,
    /// Bounds for zeroing a page: inside the cache, and outside.
    pub zero_ns: Range,
    /// Recording an event, as assumed: without a stack, with a walked stack, and with a copied stack.
    pub event_ns: [f64; 3],
}

/// The CPU time of all recorded processes of one name, by the kernel's own account.
///
/// The recorder reads the account of each process from time to time, and all accounts at the end. A process may end
/// before a reading. Its remaining time is known only once its parent has waited for it, and then only in the sum of
/// the parent's children. We split that sum evenly among the names of the children that ended unread. It includes their
/// own children: for example, `sh` is charged for its `cc1`. If all children were read, the sum is charged to the
/// parent's name. Time that no parent has waited for when the recording ends is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CpuTime {
    /// The name of their main threads.
    pub comm: String,
    /// Nanoseconds in user mode.
    pub user_ns: u64,
    /// Nanoseconds in the kernel.
    pub kernel_ns: u64,
    /// The part of `user_ns` in short-lived forks.
    ///
    /// These were forked during the recording, loaded no other program, and have ended. For example, servers fork a
    /// process for each request or for a snapshot.
    pub forked_user_ns: u64,
    /// Pages by which processes shrank that existed before the recording.
    pub shrank_pages: u64,
    /// Page faults, except those of kernel threads.
    pub faults: u64,
    /// The number of these processes.
    pub processes: u64,
    /// The most resident pages of any process of the recorded command, or 0 if that isn't known.
    pub peak_pages: u64,
}

impl CpuTime {
    /// Returns the sum of user and kernel time.
    pub fn ns(&self) -> u64 {
        self.user_ns.saturating_add(self.kernel_ns)
    }
}

/// A stretch of time in which events were recorded. Between windows they're only counted, to limit the cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Window {
    /// Its start, on the recording's clock.
    pub start_ns: u64,
    /// Its end.
    pub end_ns: u64,
}

/// One thing in a recording.
///
/// Files contain all of them but samples as they are, so the order of the variants is part of their format. Samples are
/// last because the numbers of variants after one that is left out would differ between writing and reading.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum Item {
    /// The host. It's the first item, if it's known.
    Host(Host),
    /// The kernel's counters, before and after.
    Statistics(Statistics),
    /// Events that are missing.
    Lost(LostEvents),
    /// A process changed.
    Change(Change),
    /// A window closed, and its samples came before. Without windows, the whole time was recorded.
    Window(Window),
    /// An exact count. Comes after the samples.
    Count(Count),
    /// Costs of actions that are only counted. Comes before the samples.
    Prices(Prices),
    /// The CPU time of a program. Comes after the samples.
    CpuTime(CpuTime),
    /// A note for the user: for example, a file that couldn't be read.
    Note(Arc<str>),
    /// An event.
    #[serde(skip)]
    Sample(Sample),
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

/// Reads a recording from start to end.
pub trait Source {
    /// Reads the next item. Returns `None` after the last.
    ///
    /// Samples of each CPU come in the order of time. Some sources also order them over all CPUs.
    ///
    /// # Errors
    ///
    /// If the source can't be read. Items read before remain valid, and no item follows.
    fn next(&mut self) -> Result<Option<Item>, SourceError>;

    /// Returns the share that has been read, from 0 to 1, if it's known.
    fn progress(&self) -> Option<f64> {
        None
    }
}

/// The flushes of one place.
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

/// A count of [`Flushes`]: its name in recordings, and a function that returns it.
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

    /// Creates flushes from a value for each of [`COUNTS`](Self::COUNTS).
    pub fn from_counts(value: impl FnMut(FlushCount) -> u64) -> Flushes {
        let [flushes, full, pages, remote, interrupts, waited_ns, work_ns] =
            Self::COUNTS.map(value);
        Flushes { flushes, full, pages, remote, interrupts, waited_ns, work_ns }
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

    /// Multiplies and rounds each count.
    #[must_use]
    pub fn times(&self, factor: f64) -> Flushes {
        Self::from_counts(|(_, of)| (of(self) as f64 * factor).round() as u64)
    }
}

/// A set of names that stores each name once.
#[derive(Clone, Debug, Default)]
pub struct NameTable(HashSet<Arc<str>>);

impl NameTable {
    /// Returns the shared copy of this name.
    pub fn get(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.get(name) {
            return known.clone();
        }
        let name: Arc<str> = name.into();
        self.0.insert(name.clone());
        name
    }
}

//! What a recording consists of, wherever it comes from.
//!
//! A recording is a stream of [`Item`]s: what the host was, what its counters showed before, the events with their
//! stacks, what was lost, what became of processes, and what the counters showed after. A reader asks a
//! [`Source`] for one after the other and keeps what it needs: ten million events do not fit into memory, so nothing
//! here keeps them. Names and stacks are shared between the items that carry them (`Arc`), because a recording holds
//! few different ones: to compare two, `Arc::ptr_eq` is a fast *yes*, never a *no*.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// One event: when, where, of whom, what it said, and how the CPU came there.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Nanoseconds on the recording's clock, which is the same for all CPUs; its zero means nothing.
    pub time_ns: u64,
    /// The CPU on which it happened.
    pub cpu: u32,
    /// The process (thread group) that was running; 0 is the idle task.
    pub pid: u32,
    /// The thread that was running. For an interrupt that is the thread that was interrupted.
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

/// What a field of an event holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number that may be negative.
    Signed(i64),
    /// A number that is not, or an address.
    Unsigned(u64),
    /// Text. An address of the kernel that was resolved to a function's name is such text, too.
    Text(Arc<str>),
    /// A set of CPUs, in rising order.
    Cpus(Arc<[u32]>),
}

impl Value {
    /// The number that this is, if it is one and not negative.
    pub fn number(&self) -> Option<u64> {
        match self {
            Value::Signed(number) => u64::try_from(*number).ok(),
            Value::Unsigned(number) => Some(*number),
            Value::Text(_) | Value::Cpus(_) => None,
        }
    }

    /// The text that this is, if it is one.
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
    /// The instruction's address, as the CPU saw it; in a recording of the recorder's, where no symbol covers it and it
    /// is a file's, its place in that file. A return address but in the innermost frame of each part.
    pub address: u64,
    /// Whether this is the kernel's.
    pub kernel: bool,
    /// The function's name, demangled, without an offset; `None` if no symbol covers the address.
    pub symbol: Option<Arc<str>>,
    /// The file that the code comes from, by its path; `[kernel]` for the kernel, `[jit]` for code that was
    /// compiled at run time, `None` if nothing says.
    pub module: Option<Arc<str>>,
}

/// Why events left no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum LossReason {
    /// Their buffer was full: the kernel says so.
    Full,
    /// They were counted, and the kernel does not say what became of them. Two reasons are known: since 2026, Linux counts
    /// an event and leaves it out if recording stopped on its CPU in between (`perf_swevent_event`); and some kernels of
    /// virtual machines record nothing of the idle task of some CPUs, as `perf record` beside `perf stat` shows there.
    Untold,
}

/// Events that happened and were not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Why.
    pub why: LossReason,
    /// When that was noticed.
    pub time_ns: u64,
    /// On which CPU.
    pub cpu: u32,
    /// How many.
    pub count: u64,
}

/// What became of a process or thread. `N` is what names are: texts, or their numbers in a recording.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Change<N = Arc<str>> {
    /// A thread has a name; it was there before the recording, or took the name now.
    Named {
        /// When, 0 if before the recording.
        time_ns: u64,
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// The name.
        comm: N,
        /// Whether another program was loaded (`execve`): mappings from before are gone.
        exec: bool,
    },
    /// A thread began; of a new process if `pid` and `parent` differ.
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
    /// The same change with its name, if it has one, in another form.
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

/// On what and how the recording was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Host {
    /// The kernel's release, as `uname -r` prints it; empty if it is not known.
    pub kernel: String,
    /// How many CPUs were online; 0 if that is not known.
    pub cpus: u32,
    /// The processor's model; empty if it is not known.
    pub processor: String,
    /// Whether this is a virtual machine; `None` if nothing says.
    pub virtual_machine: Option<bool>,
    /// What was recorded, in words: "everything", "process 17", "the command …".
    pub scope: String,
    /// The processes that the recording is about; empty if it is about all of them.
    pub pids: Vec<u32>,
    /// The names of the events that were asked for and recorded.
    pub events: Vec<String>,
    /// The names of those that were asked for and are missing here.
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
    /// What stands before the colon: `TLB`, `CAL`, `17`.
    pub name: String,
    /// The counts, in the order of the online CPUs.
    pub counts: Vec<u64>,
    /// What stands behind the counts.
    pub description: String,
}

/// What the kernel's own counters showed: of the whole machine, whatever the recording's scope is.
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
    /// `/proc/stat`: nanoseconds of all CPUs together, by what they were spent on (`user`, `system`, `steal`, …).
    pub cpu_ns: Vec<(String, u64)>,
}

/// The event whose count is the growth of `pgfault` in `/proc/vmstat`, which costs nothing; there are also faults of
/// the kernel's own accesses to a program's memory in it.
pub const FAULTS: &str = "exceptions:page_fault_user";

/// How often an event happened, exactly, and how often it was recorded.
///
/// `exact / seen` is what each recorded one stands for. `seen` is at most `exact`, but for events that happened
/// between the two readings.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Count {
    /// The event's name, `group:name`.
    pub event: String,
    /// How often it happened on all CPUs while the recording ran, in whichever process; counted by the kernel.
    pub exact: u64,
    /// For how many of these a sample reached the recorder, in whichever process.
    pub seen: u64,
    /// For how many of these a sample is in the recording.
    pub kept: u64,
}

impl Count {
    /// Adds what was counted of other occurrences of the same event.
    pub(crate) fn add(&mut self, other: &Count) {
        self.exact += other.exact;
        self.seen += other.seen;
        self.kept += other.kept;
    }
}

/// What things cost on this host that a recording only counts: measured when it was made, in nanoseconds of CPU time.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Prices {
    /// A page fault that fills an anonymous page, its zeroing included: at least (few pages, again and again), at most
    /// (every CPU fills many).
    pub fault_ns: (f64, f64),
    /// To give such a page back (`MADV_DONTNEED`, of many at once), at least and at most likewise.
    pub discard_ns: (f64, f64),
    /// To zero a page: in the cache, and out of it.
    pub zero_ns: (f64, f64),
    /// An event that was recorded, for the thread that ran into it: without a stack, with one that was walked, with a
    /// copy of one.
    pub event_ns: [f64; 3],
}

/// How long the processes of a name ran that the recording is about, by the kernel's own account. They are looked at
/// from time to time, of many a part each time, and all at the end; what a process did after the last look, and all
/// that one did which nobody has looked at, is known once its parent has waited for it. It is shared out by the number
/// of those that ended of each name and were not looked at: what children of these did goes by their parents' name
/// (`sh` has what its `cc1` used). Where all were looked at, what they did after their last look goes by the name of
/// the process that waited for them. What nobody waits for before the recording ends is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CpuTime {
    /// Their main threads' name.
    pub comm: String,
    /// Nanoseconds in the program itself.
    pub user_ns: u64,
    /// Nanoseconds in the kernel.
    pub kernel_ns: u64,
    /// Of `user_ns`, what processes used that were forked while it was recorded, have loaded no other program, and have
    /// ended: a process for each request, or for a snapshot.
    pub forked_user_ns: u64,
    /// How many pages of memory fewer those that were there before the recording had at last than at first; 0 of those
    /// that began later.
    pub shrank_pages: u64,
    /// Their page faults, all but those of threads of the kernel: known as their time is.
    pub faults: u64,
}

impl CpuTime {
    /// Nanoseconds in both together.
    pub fn ns(&self) -> u64 {
        self.user_ns.saturating_add(self.kernel_ns)
    }
}

/// A stretch of time in which events were recorded. Between windows they were only counted, which keeps the overhead
/// within its bound.
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
    /// On what it was made; the first item, if it is known.
    Host(Host),
    /// The kernel's counters, before and after.
    Statistics(Statistics),
    /// An event.
    Sample(Sample),
    /// Events that are missing.
    Lost(Lost),
    /// A process changed.
    Change(Change),
    /// A window closed; its samples came before this. Without any of these, the whole recording is one.
    Window(Window),
    /// Exact counts, behind the samples.
    Count(Count),
    /// What things cost that are only counted; before the samples.
    Prices(Prices),
    /// How long a program ran, behind the samples.
    CpuTime(CpuTime),
    /// Something that a reader of the result should know: a file that could not be read, the overhead.
    Note(Arc<str>),
}

/// Why a recording cannot be read on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct SourceError {
    /// Where: a file, with the line or the offset.
    pub place: String,
    /// What is wrong, and what helps.
    pub what: String,
}

/// A recording that is read from its begin to its end.
pub trait Source {
    /// The next item, `None` behind the last.
    ///
    /// Samples come in the order of their times on each CPU; over all CPUs they do where the source says so.
    ///
    /// # Errors
    ///
    /// What was read up to here stands; after an error there is nothing more to come.
    fn next(&mut self) -> Result<Option<Item>, SourceError>;

    /// Which share has been read, from 0 to 1, if that is known.
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

/// What the flushes of a place were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushes {
    /// How many there were.
    pub flushes: u64,
    /// Of these, those of everything.
    pub full: u64,
    /// Pages of the others.
    pub pages: u64,
    /// How many flushes interrupted other CPUs.
    pub remote: u64,
    /// How many interrupts that took.
    pub interrupts: u64,
    /// Nanoseconds from the first interrupt's sending to the last target's end.
    pub waited_ns: u64,
    /// Nanoseconds that targets flushed.
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

    /// What came since these were as in `before`.
    #[must_use]
    pub fn since(&self, before: &Flushes) -> Flushes {
        Self::from_counts(|(_, of)| of(self).saturating_sub(of(before)))
    }

    /// Adds another place's.
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

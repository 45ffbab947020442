//! Options of a recording.

/// An event that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its name, `group:name`. An event that this kernel lacks is listed in
    /// [`Host::missing`](crate::perf::sample::Host::missing).
    pub event: String,
    /// Whether it is kept in all processes: an interrupt concerns its sender, too.
    pub everywhere: bool,
    /// The stacks in its records.
    pub stack: Stack,
    /// Whether it is also counted exactly, all the time. That costs about 100 ns an event, recorded or not.
    pub counted: Counted,
    /// A filter of the events to record and count; `None` for all. The same event may be wanted several times with
    /// different stacks and filters; the counts are then added up.
    pub filter: Option<Filter>,
}

/// Whether an event is counted all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Never.
    No,
    /// Always.
    Yes,
    /// Only if the kernel lacks this other event, which gives the same at a lower cost.
    Without(&'static str),
}

/// A filter of an event's occurrences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// In the kernel's language for filters (`reason != 1`).
    pub text: String,
    /// Whether a kernel that refuses the filter records all of them. Otherwise it records none, which suits if another
    /// wanted event includes these.
    pub or_all: bool,
}

/// The stacks in an event's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// None.
    Absent,
    /// The kernel's.
    Kernel,
    /// The kernel's, and the program's as far as it has frame pointers. If an earlier event of the same call had an unwound
    /// stack, that is used.
    Whole,
    /// The kernel's, and the program's by its unwind tables: 4 KB of its stack are copied for each event.
    Unwound,
}

/// Whether the kernel sums flushes all the time ([`bpf`](crate::perf::bpf)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summing {
    /// Never.
    No,
    /// If it can, beside recording. Events are then not counted.
    Beside,
    /// Always, and nothing else is recorded. Opening fails if the kernel cannot.
    Alone,
}

/// How to record.
#[derive(Clone, Debug)]
pub struct Options {
    /// The events to record.
    pub wanted: Vec<Wanted>,
    /// The share of CPU time that recording may cost: of the machine's busy time, and of the recorded programs' time. At a
    /// higher cost, events are recorded only in stretches ([`Item::Window`](crate::perf::sample::Item::Window)).
    /// `f64::INFINITY` records everything.
    pub overhead: f64,
    /// Whether the kernel sums flushes.
    pub sums: Summing,
    /// Whether the recording continues after its command has ended, until all that this started has ended: the command of a
    /// daemon ends at once.
    pub outlives: bool,
    /// The buffer of each CPU in bytes; `None` to let the recorder choose.
    pub buffer: Option<usize>,
}

impl Default for Options {
    /// No events, at most 1 %: the aim is below 2 %, the limit is exceeded a little, and losses in caches are not included.
    fn default() -> Self {
        Self {
            wanted: Vec::new(),
            overhead: 0.01,
            sums: Summing::No,
            outlives: false,
            buffer: None,
        }
    }
}

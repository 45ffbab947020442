//! What to record, and how.

/// An event that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its name, `group:name`. One that this kernel does not have is listed among
    /// [`Host::missing`](crate::perf::sample::Host::missing).
    pub event: String,
    /// Whether it is kept whichever process was running: an interrupt concerns its sender, too.
    pub everywhere: bool,
    /// Which stacks its records carry.
    pub stack: Stack,
    /// Whether it is also counted all the time, exactly. That costs some 100 ns for each one, recorded or not.
    pub counted: Counted,
    /// Which of its events are recorded and counted; `None` for
    /// all. An event may be wanted more than once, with other stacks and filters: its counts are added up.
    pub filter: Option<Filter>,
}

/// Whether an event is counted all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// It is not.
    No,
    /// It is.
    Yes,
    /// It is where the kernel lacks this other event, which tells the same at a lower price.
    Without(&'static str),
}

/// Which of an event's occurrences are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// In the kernel's language for filters (`reason != 1`).
    pub text: String,
    /// What is recorded in their place by a kernel that refuses the filter: all of them, or none, where another wanted
    /// event has these.
    pub or_all: bool,
}

/// Which stacks a record of an event carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// None.
    Absent,
    /// The kernel's.
    Kernel,
    /// The kernel's, and the program's as far as it has frame pointers. Where the same call has brought an event with
    /// an unwound stack before, that is taken.
    Whole,
    /// The kernel's, and the program's by its unwind tables: the top of its stack is copied, four kilobytes for each
    /// event.
    Unwound,
}

/// Whether the kernel adds flushes up all the time ([`bpf`](crate::perf::bpf)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summing {
    /// It does not.
    No,
    /// It does where it can. Events are not counted then.
    Beside,
    /// It does, and nothing else is recorded. A kernel that cannot is refused.
    Alone,
}

/// How to record.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which events.
    pub wanted: Vec<Wanted>,
    /// Which share of the machine's busy CPU time recording may cost, and of the CPU time of what it is about. When it
    /// costs more, events are recorded only in stretches of time, as long as this pays for
    /// ([`Item::Window`](crate::perf::sample::Item::Window)). Counting ([`Wanted::counted`]) cannot be held back.
    /// `f64::INFINITY` records everything.
    pub overhead: f64,
    /// Whether flushes are added up in the kernel.
    pub sums: Summing,
    /// Whether recording goes on after its command has ended, while anything runs that this has started: a program that
    /// goes to the background ends what was called.
    pub outlives: bool,
    /// The buffer of each CPU, in bytes; `None` for as much as suits the machine.
    pub buffer: Option<usize>,
}

impl Default for Options {
    /// No events, at most 1 %: less than 2 % is aimed at, the limit is exceeded a little, and what caches lose is not in
    /// it.
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

//! Converts a recording to a workload: memory calls that quell can run again.
//!
//! A recording has too many calls to write each of them, and their addresses have no meaning elsewhere. The cost of
//! shootdowns depends on a few facts: how often each thread makes which call, on how much memory with how many pages,
//! how long it computes in between, and which other threads run in the process. We keep these.
//!
//! Each thread becomes one loop. In each round, each kind of its calls advances by its share, so that over the whole
//! loop it's made exactly as often as it was recorded.
//!
//! A call that interrupted other CPUs must do so again. That only depends on whether it finds pages. So we let such a
//! call find pages, and a call that interrupted no CPU finds none.
//!
//! We keep the kernel's own flushes in a thread like calls, if a statement can cause them. For example, a page that a
//! fork shares is written and copied. Reclaim by a thread that is short of memory becomes reclaim of a file's pages. We
//! drop flushes by kernel threads (kswapd, compaction, KSM), because their events don't contain the process.
//!
//! Two facts are lost: which memory several calls shared, and the program's reads and writes. [`Process::workload`]
//! writes that into the file, and also what it left out of this recording.

mod file;
mod process;
mod statement;
mod thread;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::perf::{Item, Source, SourceError};

pub use process::{Process, WorkloadFile};
use statement::{CallKey, CallTotals, Kind, LARGEST, PAGE};
use thread::{OpenCall, PAGES, Thread};

use crate::event::{Arguments, Event, flushes, of, reason};
use crate::stack::Stacks;

/// The reason why a recording can't become a workload.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum WorkloadError {
    /// No process made a call that becomes a statement.
    #[error(
        "the recording has no madvise, munmap, mprotect or mremap calls{}; record syscalls:sys_enter_* and syscalls:sys_exit_* of \
         these calls, too (docs/record.md)", of_program(.0.as_deref())
    )]
    NoCalls(Option<String>),
}

/// Returns whether a workload can contain flushes for this kernel reason.
pub fn stands_for(cause: &str) -> bool {
    Kind::of_cause(cause).is_some()
}

fn of_program(program: Option<&str>) -> String {
    program.map_or_else(String::new, |name| format!(" of the program {name}"))
}

type Threads = BTreeMap<u32, Thread>;

/// The largest number of processes in a workload.
const PROCESSES: usize = 8;

/// The factor by which a similar process may make fewer calls than the busiest one.
const ALIKE: u64 = 10;

#[derive(Clone, Debug, Default)]
struct ProcessCalls {
    name: String,
    threads: Threads,
    /// Its interrupts, by events and by the kernel's sums. The sums also cover the time outside of windows.
    ///
    /// We choose the busiest process by these. Otherwise a process that ran only at the start would win, because the
    /// first window records everything.
    sent: u64,
}

impl ProcessCalls {
    fn calls(&self) -> u64 {
        self.threads.values().map(Thread::count).sum()
    }
}

/// The calls of a recording, by process and thread.
///
/// Memory grows with the number of different calls, not with the number of calls.
#[derive(Debug, Default)]
pub struct Calls {
    stacks: Stacks,
    processes: BTreeMap<u32, ProcessCalls>,
    lost: u64,
    /// Whether the recording contains the interrupts. If not, we assume them for each call that was about to send some.
    queued: bool,
}

impl Calls {
    /// Adds an item of the recording. Items must come in the recording's order.
    pub fn item(&mut self, item: &Item) {
        let sample = match item {
            Item::Sample(sample) => sample,
            Item::Lost(lost) => {
                self.lost = self.lost.saturating_add(lost.count);
                return;
            }
            Item::Window(_) => {
                for process in self.processes.values_mut() {
                    process.threads.values_mut().for_each(Thread::interrupted);
                }
                return;
            }
            _ => return,
        };
        let event = of(sample);
        if sample.pid == 0 {
            return;
        }
        let kind = match event {
            Event::Flush { reason: reason::SEND, .. } => self.stacks.tell(&sample.stack).cause,
            Event::Queue { function, .. } if flushes(function) => {
                self.queued = true;
                self.stacks.tell(&sample.stack).cause
            }
            _ => None,
        };
        let kind = kind.and_then(Kind::of_cause);
        let process = self.processes.entry(sample.pid).or_default();
        // A process that executes another program continues under the new name.
        if process.name.is_empty() || sample.pid == sample.tid && *process.name != *sample.comm {
            process.name = sample.comm.to_string();
        }
        process.sent += match event {
            Event::Queue { function, .. } if flushes(function) => 1,
            Event::Summed { flushes, .. } => flushes.interrupts,
            _ => 0,
        };
        let thread = process.threads.entry(sample.tid).or_default();
        match event {
            Event::Enter { call, arguments: Arguments { bytes, how, .. } } => {
                // The return of an earlier call may not have been recorded.
                thread.returned(sample.time_ns);
                thread.computes_until(sample.time_ns);
                let bytes = bytes.min(LARGEST).next_multiple_of(PAGE);
                let kind = Kind::of(call, how).filter(|_| bytes > 0);
                thread.open = Some(OpenCall {
                    entered_ns: sample.time_ns,
                    alike: kind.map(|kind| CallKey { kind, bytes, said: false, asked: false }),
                    made: CallTotals { count: 1, pages: 1, interrupts: 0 },
                });
            }
            Event::Exit { .. } => thread.returned(sample.time_ns),
            Event::Flush { reason: reason::SEND, pages } => match kind {
                Some(kind) => thread.flushes(kind, sample.time_ns),
                None => thread.asked(pages.unwrap_or(PAGES), 0),
            },
            Event::Queue { function, .. } if flushes(function) => match kind {
                Some(kind) => thread.interrupts(kind, sample.time_ns),
                None => thread.asked(1, 1),
            },
            _ => {}
        }
    }

    /// Returns the calls of the busiest process, and of similar processes of the same program.
    ///
    /// The busiest process sent the most interrupts or, if equal, made the most calls. A process is similar if it made
    /// at least a tenth as many calls. With `only`, we consider only the program of that name.
    ///
    /// # Errors
    /// If no process made a call that becomes a statement.
    pub fn busiest(&self, only: Option<&str>) -> Result<Process, WorkloadError> {
        let (queued, lost) = (self.queued, self.lost);
        let mut all = Vec::from_iter(self.processes.values().cloned());
        let threads = all.iter_mut().flat_map(|of| of.threads.values_mut());
        threads.for_each(Thread::end);
        let calls: u64 = all.iter().map(ProcessCalls::calls).sum();
        all.retain(|of| only.is_none_or(|only| of.name == only) && of.calls() > 0);
        all.sort_by_key(|of| Reverse((of.sent, of.calls())));
        let Some(first) = all.first() else {
            return Err(WorkloadError::NoCalls(only.map(str::to_owned)));
        };
        let (name, most) = (first.name.clone(), first.calls());
        // A server with several similar processes is replayed as several processes.
        all.retain(|other| other.name == name && other.calls() * ALIKE >= most);
        all.truncate(PROCESSES);
        let elsewhere = calls - all.iter().map(ProcessCalls::calls).sum::<u64>();
        let mut together = Vec::new();
        for (process, of) in all.into_iter().enumerate() {
            together.extend(of.threads.into_values().map(|mut thread| {
                thread.process = process;
                thread
            }));
        }
        let asks = |alike: CallKey| CallKey {
            said: false,
            asked: alike.asked || alike.said && !queued,
            ..alike
        };
        let process = Process { name, threads: together, queued, elsewhere, lost };
        Ok(process.each(|alike, made| (asks(alike), made)).each(|alike, made| made.together(alike)))
    }
}

/// A source that passes on the items of another, and collects their calls.
pub struct CallCollector<'a> {
    source: &'a mut dyn Source,
    /// The calls so far.
    pub calls: Calls,
}

impl<'a> CallCollector<'a> {
    /// Creates a source that reads from `source`.
    pub fn new(source: &'a mut dyn Source) -> Self {
        let calls = Calls::default();
        CallCollector { source, calls }
    }
}

impl Source for CallCollector<'_> {
    fn next(&mut self) -> Result<Option<Item>, SourceError> {
        let item = self.source.next()?;
        if let Some(item) = &item {
            self.calls.item(item);
        }
        Ok(item)
    }

    fn progress(&self) -> Option<f64> {
        self.source.progress()
    }
}

//! A recording as a workload: what a program did with its memory, as a file that quell runs again.
//!
//! A recording has too many calls to write each of them down, and their addresses mean nothing elsewhere. The cost of
//! shootdowns depends on how often each thread makes which call, of how much memory, with how many pages in it, how
//! long it computes in between, and which other threads run in the process. That is kept, and the order of a thread's
//! calls, if it is short once each part that repeats is written once ([`order`]). Any other thread becomes one loop; in
//! each round, each kind of its calls advances by its share, so that over the whole loop it is made exactly as often as
//! it was recorded. A call that asked other CPUs to flush finds pages there when it is made again; one that asked no
//! CPU finds none. Which of both is all that decides whether it asks again.
//!
//! The kernel's own flushes in a thread are kept like calls where a statement does what led to them: a page that a fork
//! shares is written and copied; pages of files are reclaimed by the thread whose memory is short. Flushes by kernel
//! threads (kswapd, compaction, KSM) are not kept: their events do not say of which process.
//!
//! Which memory calls shared, and the reads and writes of the program are lost;
//! [`Process::workload`] writes that into the file, together with what it left out of this recording.

mod file;
mod order;
mod process;
mod statement;
mod thread;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::perf::{Item, Source, SourceError};

pub use process::{Process, Written};
use statement::{Alike, Kind, LARGEST, PAGE};
use thread::{Open, PAGES, Thread};

use crate::event::{Event, flushes, of, reason};
use crate::stack::Stacks;

/// Why a recording cannot become a workload.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NoWorkload {
    /// No process called anything that becomes a statement.
    #[error(
        "no call of madvise, munmap, mprotect or mremap is in this recording{}; record the events syscalls:sys_enter_* and \
         syscalls:sys_exit_* of these calls, too (docs/record.md says how)", of_program(.0.as_deref())
    )]
    NoCalls(Option<String>),
}

/// Whether a workload has what the kernel flushes for this reason.
pub fn stands_for(cause: &str) -> bool {
    Kind::of_cause(cause).is_some()
}

fn of_program(program: Option<&str>) -> String {
    program.map_or_else(String::new, |name| format!(" of the program {name}"))
}

type Threads = BTreeMap<u32, Thread>;

/// How many processes of a program are in a workload.
const PROCESSES: usize = 8;

/// Whether a process does as the busiest: if it makes one call for so many of that one's, or more.
const ALIKE: u64 = 10;

/// A process of a recording.
#[derive(Clone, Debug, Default)]
struct Candidate {
    name: String,
    threads: Threads,
    /// How many of its interrupts are in the recording, also of the time in which no calls were recorded: by these the
    /// busiest is told. What ran in the first moments alone was recorded whole.
    sent: u64,
}

impl Candidate {
    /// How many calls it made.
    fn calls(&self) -> u64 {
        self.threads.values().map(Thread::count).sum()
    }
}

/// The calls of a recording, by process and thread; grows with the number of different calls, not of calls.
#[derive(Debug, Default)]
pub struct Calls {
    stacks: Stacks,
    processes: BTreeMap<u32, Candidate>,
    lost: u64,
    /// Whether it was recorded which CPUs were interrupted. If not, a call that says that it asks others does.
    queued: bool,
}

impl Calls {
    /// Adds an item of the recording; in the recording's order.
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
            Event::Flush {
                reason: reason::SEND,
                ..
            } => self.stacks.tell(&sample.stack).cause,
            Event::Queue { function, .. } if flushes(function) => {
                self.queued = true;
                self.stacks.tell(&sample.stack).cause
            }
            _ => None,
        };
        let kind = kind.and_then(Kind::of_cause);
        let process = self.processes.entry(sample.pid).or_default();
        // A process that executes another program goes on under its name.
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
            Event::Enter {
                call, bytes, how, ..
            } => {
                // One whose return was not recorded.
                thread.returned(sample.time_ns);
                thread.computes_until(sample.time_ns);
                let bytes = bytes.min(LARGEST).next_multiple_of(PAGE);
                let kind = Kind::of(call, how).filter(|_| bytes > 0);
                thread.open = Some(Open {
                    entered_ns: sample.time_ns,
                    alike: kind.map(|kind| Alike {
                        kind,
                        bytes,
                        said: false,
                        asked: false,
                    }),
                    pages: 1,
                    interrupts: 0,
                });
            }
            Event::Exit { .. } => thread.returned(sample.time_ns),
            Event::Flush {
                reason: reason::SEND,
                pages,
            } => match kind {
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

    /// The process that sent most interrupts, or else made most calls, and those of the same program that made a tenth
    /// as many calls or more; of the program `only` if one is named.
    ///
    /// # Errors
    /// If no process made a call that a statement of a workload stands for.
    pub fn busiest(&self, only: Option<&str>) -> Result<Process, NoWorkload> {
        let (queued, lost) = (self.queued, self.lost);
        let mut all = Vec::from_iter(self.processes.values().cloned());
        let threads = all.iter_mut().flat_map(|of| of.threads.values_mut());
        threads.for_each(Thread::end);
        let calls: u64 = all.iter().map(Candidate::calls).sum();
        all.retain(|of| only.is_none_or(|only| of.name == only) && of.calls() > 0);
        all.sort_by_key(|of| Reverse((of.sent, of.calls())));
        let Some(first) = all.first() else {
            return Err(NoWorkload::NoCalls(only.map(str::to_owned)));
        };
        let (name, most) = (first.name.clone(), first.calls());
        // A server of many processes is replayed as that, as far as they do alike.
        all.retain(|other| other.name == name && other.calls() * ALIKE >= most);
        all.truncate(PROCESSES);
        let elsewhere = calls - all.iter().map(Candidate::calls).sum::<u64>();
        let mut together = Vec::new();
        for (process, of) in all.into_iter().enumerate() {
            together.extend(of.threads.into_values().map(|mut thread| {
                thread.process = process;
                thread
            }));
        }
        let asks = |alike: Alike| Alike {
            said: false,
            asked: alike.asked || alike.said && !queued,
            ..alike
        };
        for thread in &mut together {
            thread.order.each(asks);
        }
        let process = Process {
            name,
            threads: together,
            queued,
            elsewhere,
            lost,
        };
        Ok(process
            .each(|alike, made| (asks(alike), made))
            .each(|alike, made| made.together(alike)))
    }
}

/// A source that hands on what another has, and keeps its calls.
pub struct Listening<'a> {
    source: &'a mut dyn Source,
    /// What was heard.
    pub calls: Calls,
}

impl<'a> Listening<'a> {
    /// Of this source.
    pub fn new(source: &'a mut dyn Source) -> Self {
        let calls = Calls::default();
        Listening { source, calls }
    }
}

impl Source for Listening<'_> {
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

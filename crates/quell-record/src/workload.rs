//! A recording as a workload: what one process did with its memory, as a file that quell runs again.
//!
//! A recording has too many calls to write each of them down, and their addresses mean nothing elsewhere. What makes a
//! shootdown expensive is how often each thread makes which call, of how much memory, with how many pages in it, how long
//! it computes in between, and who else runs in the process. That is kept. A thread becomes one loop; in each round,
//! each kind of its calls advances by its share, so that over the whole loop it is made exactly as often as it
//! was recorded. A call that asked other CPUs to flush finds pages there when it is made again; one that
//! asked nobody finds none. Which of both is all that decides whether it asks again.
//!
//! The order of different calls, which memory they shared, and the reads and writes of the program are lost;
//! [`Calls::workload`] writes that into the file, together with what it left out of this recording.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use quell_perf::{Item, Source, SourceError};

use crate::event::{Event, flushes, of, reason};

/// How many threads make calls in the file; the busiest ones do.
const THREADS: usize = 32;
/// How many different calls a thread has in the file; the most frequent ones.
const KINDS: usize = 12;
/// How large a range is in the file; larger ones become as large.
const LARGEST: u64 = 1 << 30;
/// How many pages a call finds whose flush named none.
const PAGES: u64 = 1024;
/// How long a thread computes in a round at most.
const LONGEST_NS: u64 = 100_000_000;

const PAGE: u64 = 4096;

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

fn of_program(program: Option<&str>) -> String {
    program.map_or_else(String::new, |name| format!(" of the program {name}"))
}

/// What a call becomes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Discard,
    PageOut,
    Unmap,
    Protect,
    Remap,
}

impl Kind {
    fn of(call: &str, how: u64) -> Option<Kind> {
        match (call, how) {
            // MADV_DONTNEED, MADV_FREE, MADV_PAGEOUT.
            ("madvise", 4 | 8) => Some(Kind::Discard),
            ("madvise", 21) => Some(Kind::PageOut),
            ("munmap", _) => Some(Kind::Unmap),
            ("mprotect" | "pkey_mprotect", _) => Some(Kind::Protect),
            ("mremap", _) => Some(Kind::Remap),
            _ => None,
        }
    }
}

/// Calls that are alike.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Alike {
    kind: Kind,
    bytes: u64,
    /// Whether it asked other CPUs to flush.
    asked: bool,
}

/// A call that has not returned.
#[derive(Debug)]
struct Open {
    alike: Option<Alike>,
    pages: u64,
}

/// What a thread did.
#[derive(Debug, Default)]
struct Thread {
    open: Option<Open>,
    /// How often, and with how many pages at most.
    calls: BTreeMap<Alike, (u64, u64)>,
    /// Calls that no statement stands for.
    others: u64,
    returned_ns: Option<u64>,
    between_ns: u64,
}

impl Thread {
    fn count(&self) -> u64 {
        self.calls.values().map(|&(count, _)| count).sum()
    }

    fn returned(&mut self, time_ns: u64) {
        let Some(open) = self.open.take() else { return };
        self.returned_ns = Some(time_ns);
        match open.alike {
            Some(alike) => {
                let (count, pages) = self.calls.entry(alike).or_default();
                *count += 1;
                *pages = open.pages.max(*pages);
            }
            None => self.others += 1,
        }
    }
}

/// A process's name, and its threads by number.
type Process = (String, BTreeMap<u32, Thread>);

/// The calls of a recording, by process and thread; grows with the number of different calls, not of calls.
#[derive(Debug, Default)]
pub struct Calls {
    processes: BTreeMap<u32, Process>,
    lost: u64,
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
            _ => return,
        };
        let event = of(sample);
        if sample.pid == 0 {
            return;
        }
        let (name, threads) = self.processes.entry(sample.pid).or_default();
        // A process that executes another program goes on under its name.
        if name.is_empty() || sample.pid == sample.tid && **name != *sample.comm {
            *name = sample.comm.to_string();
        }
        let thread = threads.entry(sample.tid).or_default();
        match event {
            Event::Enter {
                call, bytes, how, ..
            } => {
                // One whose return was not recorded.
                thread.returned(sample.time_ns);
                if let Some(returned) = thread.returned_ns {
                    let between = sample.time_ns.saturating_sub(returned);
                    thread.between_ns = thread.between_ns.saturating_add(between);
                }
                let bytes = bytes.min(LARGEST).next_multiple_of(PAGE);
                let kind = Kind::of(call, how).filter(|_| bytes > 0);
                thread.open = Some(Open {
                    alike: kind.map(|kind| Alike {
                        kind,
                        bytes,
                        asked: false,
                    }),
                    pages: 1,
                });
            }
            Event::Exit { .. } => thread.returned(sample.time_ns),
            Event::Flush {
                reason: reason::SEND,
                pages,
            } => thread.asked(pages.unwrap_or(PAGES)),
            Event::Queue { function, .. } if flushes(function) => thread.asked(1),
            _ => {}
        }
    }

    /// The workload file: of the process that made most calls, of the program `only` if one is named. The file is one that
    /// `quell-workloads` reads, and says in its head what of this recording is not in it.
    ///
    /// # Errors
    /// If there is no call in the recording that a statement of a workload stands for.
    pub fn workload(mut self, only: Option<&str>) -> Result<String, NoWorkload> {
        for thread in self
            .processes
            .values_mut()
            .flat_map(|(_, threads)| threads.values_mut())
        {
            let last = thread.returned_ns.unwrap_or(0);
            thread.returned(last);
        }
        let count = |(_, threads): &Process| threads.values().map(Thread::count).sum::<u64>();
        let all: u64 = self.processes.values().map(count).sum();
        let named = |process: &&Process| only.is_none_or(|only| process.0 == only);
        let chosen = self.processes.values().filter(named);
        let Some(process) = chosen
            .max_by_key(|process| count(process))
            .filter(|process| count(process) > 0)
        else {
            return Err(NoWorkload::NoCalls(only.map(str::to_owned)));
        };
        let mut threads: Vec<&Thread> = process.1.values().collect();
        threads.sort_by_key(|thread| std::cmp::Reverse(thread.count()));
        let callers = threads.iter().filter(|thread| thread.count() > 0).count();
        let written: Vec<Loop<'_>> = threads
            .iter()
            .take(callers.min(THREADS))
            .map(|thread| Loop::new(thread))
            .collect();
        let asks = written
            .iter()
            .any(|thread| thread.calls.iter().any(|(alike, _)| alike.asked));
        // Whoever was asked ran in the process, even if no event of its own was recorded.
        let cpus = threads
            .len()
            .min(THREADS)
            .max(written.len() + usize::from(asks && written.len() == 1));
        let kept: u64 = written.iter().map(Loop::count).sum();
        let lost = Lost {
            processes: all - count(process),
            kinds: count(process) - kept,
            calls: threads.iter().map(|thread| thread.others).sum(),
            events: self.lost,
        };
        Ok(file(&process.0, &written, cpus, kept, &lost))
    }
}

impl Thread {
    fn asked(&mut self, pages: u64) {
        if let Some(open) = &mut self.open
            && let Some(alike) = &mut open.alike
        {
            alike.asked = true;
            open.pages = pages.max(open.pages).min(alike.bytes / PAGE).min(PAGES);
        }
    }
}

/// What of a recording is not in the file.
struct Lost {
    processes: u64,
    kinds: u64,
    calls: u64,
    events: u64,
}

/// A thread as a loop.
struct Loop<'a> {
    /// The most frequent first, with how often and how many pages.
    calls: Vec<(&'a Alike, (u64, u64))>,
    between_ns: u64,
}

impl<'a> Loop<'a> {
    fn new(thread: &'a Thread) -> Self {
        let mut calls: Vec<_> = thread.calls.iter().map(|(key, &of)| (key, of)).collect();
        calls.sort_by_key(|&(_, (count, _))| std::cmp::Reverse(count));
        calls.truncate(KINDS);
        let rounds = calls.first().map_or(1, |&(_, (count, _))| count);
        Loop {
            calls,
            between_ns: (thread.between_ns / rounds).min(LONGEST_NS),
        }
    }

    fn rounds(&self) -> u64 {
        self.calls.first().map_or(0, |&(_, (count, _))| count)
    }

    fn count(&self) -> u64 {
        self.calls.iter().map(|&(_, (count, _))| count).sum()
    }

    /// Bytes that it touches, with page tables.
    fn touched(&self) -> u64 {
        let of = |&(alike, (_, pages)): &(&Alike, (u64, u64))| match alike.asked {
            true => (pages + pages / 512 + 4) * PAGE,
            false => 4 * PAGE,
        };
        self.calls.iter().map(of).sum()
    }

    /// As the program of a CPU, of `callers` that are alike.
    fn write(&self, cpu: usize, callers: usize, text: &mut String) {
        let rounds = self.rounds();
        let mut line = |line: String| {
            text.push_str(&line);
            text.push('\n');
        };
        line(format!(
            "\n[[threads]]\nwhen = \"cpu == {cpu}\"\nprogram = ["
        ));
        for (at, (alike, _)) in self.calls.iter().enumerate() {
            line(format!("    {{ let = \"e{at}\", be = 0 }},"));
            if alike.kind != Kind::Unmap {
                line(format!(
                    "    {{ map = \"a{at}\", bytes = {} }},",
                    alike.bytes
                ));
            }
        }
        line(format!(
            "    {{ begin = true }},\n    {{ without = \"excess(cpus, {callers})\" }},\n    {{ for = \"round\", below = \"min(rounds, {rounds})\", do = ["
        ));
        if self.between_ns > 0 {
            line(format!("        {{ compute = {} }},", self.between_ns));
        }
        for (at, &(alike, (count, pages))) in self.calls.iter().enumerate() {
            line(format!(
                "        {{ let = \"e{at}\", be = \"e{at} + {count}\" }},"
            ));
            line(format!("        {{ if = \"e{at} >= {rounds}\", then = ["));
            line(format!(
                "            {{ let = \"e{at}\", be = \"e{at} - {rounds}\" }},"
            ));
            for statement in statements(at, alike, pages * PAGE) {
                line(format!("            {{ {statement} }},"));
            }
            line("            { done = 1 },\n        ] },".into());
        }
        if cpu == 0 {
            line(format!(
                "        {{ progress = \"round\", of = \"min(rounds, {rounds})\" }},"
            ));
        }
        line("    ] },\n    { end = true },\n]".into());
    }
}

/// What stands for a call, and before it what lets it find pages if it asked others.
fn statements(at: usize, alike: &Alike, touched: u64) -> Vec<String> {
    let bytes = alike.bytes;
    let write = format!("write = \"a{at}\", bytes = {touched}, value = \"round\"");
    let mut all = Vec::new();
    match alike.kind {
        Kind::Unmap => all.push(format!("map = \"a{at}\", bytes = {bytes}")),
        Kind::Protect if alike.asked => {
            all.push(format!(
                "protect = \"a{at}\", bytes = {bytes}, protection = \"rw\""
            ));
        }
        _ => {}
    }
    if alike.asked {
        all.push(write);
    }
    all.push(match alike.kind {
        Kind::Discard => format!("discard = \"a{at}\", bytes = {bytes}"),
        Kind::PageOut => format!("page_out = \"a{at}\", bytes = {bytes}"),
        Kind::Unmap => format!("unmap = \"a{at}\", bytes = {bytes}"),
        Kind::Protect => format!("protect = \"a{at}\", bytes = {bytes}, protection = \"r\""),
        Kind::Remap => format!("remap = \"a{at}\", bytes = {bytes}, into = \"a{at}\""),
    });
    all
}

fn file(program: &str, threads: &[Loop<'_>], cpus: usize, kept: u64, lost: &Lost) -> String {
    // A program chooses its name: nothing of it may leave the comment or the string that it stands in.
    let program: String = program
        .chars()
        .map(|c| match c.is_ascii_alphanumeric() || "-_.".contains(c) {
            true => c,
            false => '_',
        })
        .collect();
    let most = threads.iter().map(Loop::rounds).max().unwrap_or(1);
    let touched: u64 = threads.iter().map(Loop::touched).sum();
    let asked: u64 = threads
        .iter()
        .flat_map(|thread| &thread.calls)
        .filter(|(alike, _)| alike.asked)
        .map(|(_, (count, _))| count)
        .sum();
    let mut text = format!(
        "# Written from a recording of {program}: {kept} calls of its busiest process, of which {asked} asked other CPUs to flush.
# Kept: how often each thread made which call, of how many bytes, how many pages it found (the most of calls that are
# alike), how many threads there were, and the mean time between calls, which is computing here.
# Not kept: addresses and what areas shared, the order of different calls, reads and writes beyond those that let a call
# find pages, maps beyond those that an unmap needs; a protect that asked others takes writing away.
# Left out of this recording: {} calls of other processes, {} calls of rare kinds or more threads, {} calls that no
# statement stands for, {} events that the recorder lost.
",
        lost.processes, lost.kinds, lost.calls, lost.events
    );
    // Writing to a string does not fail.
    let _ = write!(
        text,
        "name = \"recorded\"
title = \"the calls of {program}, from a recording\"
mechanism = \"S4\"
cpus = {cpus}

[parameters]
rounds = {{ unit = \"count\", default = {most}, least = 1, most = {most}, meaning = \"How many rounds a thread makes at most.\" }}

[memory]
touched = {touched}

[figure]
says = \"ns per call\"
value = \"nanoseconds / done\"

[operation]
is = \"recorded call\"
"
    );
    for (cpu, thread) in threads.iter().enumerate() {
        thread.write(cpu, threads.len(), &mut text);
    }
    text.push_str(
        "\n[[threads]]\nprogram = [\n    { begin = true },\n    { bystand = \"20us\" },\n]\n",
    );
    text
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

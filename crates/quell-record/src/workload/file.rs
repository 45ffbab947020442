//! The text of the workload file: each thread's calls as a loop.

use std::fmt::Write as _;

use super::statement::{Alike, Kind, Made, PAGE};
use super::thread::Thread;

/// How many different calls a thread has in the file; the most frequent ones.
const KINDS: usize = 12;
/// How many pages Linux takes out behind one flush (`MAX_GATHER_BATCH_COUNT` pages of 510 pointers).
const TOGETHER: u64 = 10_000;
/// How long a thread computes in a round at most.
const LONGEST_NS: u64 = 100_000_000;

/// What of a recording is not in the file.
pub struct Lost {
    pub processes: u64,
    pub kinds: u64,
    pub calls: u64,
    pub events: u64,
}

/// A thread as a loop.
pub struct Loop<'a> {
    /// The process that it runs in, by number.
    pub process: usize,
    /// The most frequent first.
    pub calls: Vec<(&'a Alike, Made)>,
    between_ns: u64,
}

impl<'a> Loop<'a> {
    pub fn new(thread: &'a Thread) -> Self {
        let mut calls: Vec<_> = thread.calls.iter().map(|(key, &of)| (key, of)).collect();
        calls.sort_by_key(|(_, made)| std::cmp::Reverse(made.count));
        calls.truncate(KINDS);
        let rounds = calls.first().map_or(1, |(_, made)| made.count);
        Loop {
            process: thread.process,
            calls,
            between_ns: (thread.between_ns / rounds).min(LONGEST_NS),
        }
    }

    pub fn rounds(&self) -> u64 {
        self.calls.first().map_or(0, |(_, made)| made.count)
    }

    pub fn count(&self) -> u64 {
        self.calls.iter().map(|(_, made)| made.count).sum()
    }

    /// Whether it asks others to flush.
    pub fn asks(&self) -> bool {
        self.calls.iter().any(|(alike, _)| alike.asked)
    }

    /// Bytes that it touches, with page tables; copies count twice, once for the child that has the original.
    fn touched(&self) -> u64 {
        let of = |(alike, made): &(&Alike, Made)| match alike.asked {
            true => {
                let pages = made.pages * if alike.kind == Kind::Copy { 2 } else { 1 };
                (pages + pages / 512 + 8) * PAGE
            }
            false => 4 * PAGE,
        };
        self.calls.iter().map(of).sum()
    }

    /// As the program of a CPU, of `callers` that are alike; it comes to its process by these statements.
    fn write(&self, cpu: usize, callers: usize, into: &[String], text: &mut String) {
        let rounds = self.rounds();
        let mut line = |line: String| {
            text.push_str(&line);
            text.push('\n');
        };
        line(format!(
            "\n[[threads]]\nwhen = \"cpu == {cpu}\"\nprogram = ["
        ));
        for statement in into {
            line(format!("    {{ {statement} }},"));
        }
        for (at, (alike, _)) in self.calls.iter().enumerate() {
            line(format!("    {{ let = \"e{at}\", be = 0 }},"));
            for statement in begins(at, alike) {
                line(format!("    {{ {statement} }},"));
            }
        }
        line(format!(
            "    {{ begin = true }},\n    {{ without = \"excess(cpus, {callers})\" }},\n    {{ for = \"round\", below = \"min(rounds, {rounds})\", do = ["
        ));
        if self.between_ns > 0 {
            line(format!("        {{ compute = {} }},", self.between_ns));
        }
        for (at, &(alike, made)) in self.calls.iter().enumerate() {
            line(format!(
                "        {{ let = \"e{at}\", be = \"e{at} + {}\" }},",
                made.count
            ));
            line(format!("        {{ if = \"e{at} >= {rounds}\", then = ["));
            line(format!(
                "            {{ let = \"e{at}\", be = \"e{at} - {rounds}\" }},"
            ));
            for statement in statements(at, alike, made.pages * PAGE) {
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

/// What a call needs before the first time.
fn begins(at: usize, alike: &Alike) -> Vec<String> {
    let bytes = alike.bytes;
    let area = format!("map = \"a{at}\", bytes = {bytes}");
    match alike.kind {
        Kind::Unmap => Vec::new(),
        Kind::Copy => vec![area, format!("write = \"a{at}\", bytes = {bytes}")],
        Kind::Reclaim => vec![
            format!("create = \"f{at}\", bytes = {bytes}"),
            format!("{area}, shared = \"f{at}\", protection = \"r\""),
        ],
        _ => vec![area],
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
    match alike.kind {
        // A child shares all of it while it is written.
        Kind::Copy if alike.asked => {
            let child = [format!("fork = \"c{at}\""), format!("exit = \"c{at}\"")];
            let [begins, ends] = child;
            return vec![begins, write, ends];
        }
        Kind::Copy => return Vec::new(),
        Kind::Reclaim if alike.asked => all.push(format!("read = \"a{at}\", bytes = {touched}")),
        _ if alike.asked => all.push(write),
        _ => {}
    }
    all.push(match alike.kind {
        Kind::Discard => format!("discard = \"a{at}\", bytes = {bytes}"),
        Kind::PageOut | Kind::Reclaim | Kind::Copy => {
            format!("page_out = \"a{at}\", bytes = {bytes}")
        }
        Kind::Unmap => format!("unmap = \"a{at}\", bytes = {bytes}"),
        Kind::Protect => format!("protect = \"a{at}\", bytes = {bytes}, protection = \"r\""),
        Kind::Remap => format!("remap = \"a{at}\", bytes = {bytes}, into = \"a{at}\""),
    });
    all
}

/// The file's text; `(kept, asked)` are how many calls are in it, and how many of them asked others.
pub fn file(
    program: &str,
    threads: &[Loop<'_>],
    bystanders: &[usize],
    (kept, asked): (u64, u64),
    lost: &Lost,
) -> String {
    // A program chooses its name: nothing of it may leave the comment or the string that it stands in.
    let program: String = program
        .chars()
        .map(|c| match c.is_ascii_alphanumeric() || "-_.".contains(c) {
            true => c,
            false => '_',
        })
        .collect();
    let cpus = threads.len() + bystanders.len();
    let processes = threads.iter().map(|thread| thread.process + 1).max();
    let processes = processes.unwrap_or(1);
    let most = threads.iter().map(Loop::rounds).max().unwrap_or(1);
    let touched: u64 = threads.iter().map(Loop::touched).sum();
    let mut text = format!(
        "# Written from a recording of {program}: {kept} calls of its {}, with {asked} flushes that asked other CPUs.
# Kept: how often each thread made which call, of how many bytes, how many pages it found (the most of calls that are
# alike), how many threads there were, and the mean time between calls, which is computing here; pages that were copied after a
# fork ({{ fork }}, written, {{ exit }}), and reclaim by the thread itself (a file's pages, read and paged out).
# Not kept: addresses and what areas shared, the order of different calls, reads and writes beyond those that let a call
# find pages, maps beyond those that an unmap needs; a protect that asked others takes writing away.
# Left out of this recording: {} calls of other processes, {} calls of rare kinds or more threads, {} calls that no
# statement stands for, {} events that the recorder lost.
",
        match processes {
            1 => "busiest process".to_owned(),
            many => format!("{many} busiest processes"),
        },
        lost.processes,
        lost.kinds,
        lost.calls,
        lost.events
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

{}[memory]
touched = {touched}
together = {TOGETHER}

[figure]
says = \"ns per call\"
value = \"nanoseconds / done\"

[operation]
is = \"recorded call\"
",
        match processes {
            1 => String::new(),
            many => format!("[shared]\nprocess = {many}\n\n"),
        }
    );
    // The first thread of each process but the first makes it; the others wait until it has.
    let mut made = vec![false; processes];
    made[0] = true;
    let mut into = |process: usize| {
        let mut statements = Vec::new();
        if processes > 1 {
            if !std::mem::replace(&mut made[process], true) {
                statements.push(format!("spawn = \"process[{process}]\""));
            }
            statements.push("barrier = true".to_owned());
            if process > 0 {
                statements.push(format!("enter = \"process[{process}]\""));
            }
        }
        statements
    };
    for (cpu, thread) in threads.iter().enumerate() {
        let into = into(thread.process);
        thread.write(cpu, threads.len(), &into, &mut text);
    }
    for (at, &process) in bystanders
        .iter()
        .enumerate()
        .filter(|(_, process)| **process > 0)
    {
        let cpu = threads.len() + at;
        let _ = write!(
            text,
            "\n[[threads]]\nwhen = \"cpu == {cpu}\"\nprogram = [\n"
        );
        stands_by(&into(process), &mut text);
    }
    text.push_str("\n[[threads]]\nprogram = [\n");
    stands_by(&into(0), &mut text);
    text
}

/// The rest of the program of a CPU that is there until the others have ended.
fn stands_by(into: &[String], text: &mut String) {
    for statement in into {
        let _ = writeln!(text, "    {{ {statement} }},");
    }
    text.push_str("    { begin = true },\n    { bystand = \"20us\" },\n]\n");
}

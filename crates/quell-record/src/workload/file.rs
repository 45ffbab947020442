//! The text of the workload file: each thread's calls as a loop.

use std::fmt::Write as _;

use super::call::{Alike, Kind, Made, PAGE};
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

    /// Bytes that it touches, with page tables.
    fn touched(&self) -> u64 {
        let of = |(alike, made): &(&Alike, Made)| match alike.asked {
            true => (made.pages + made.pages / 512 + 4) * PAGE,
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

/// The file's text; `(kept, asked)` are how many calls are in it, and how many of them asked others.
pub fn file(
    program: &str,
    threads: &[Loop<'_>],
    cpus: usize,
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
    let most = threads.iter().map(Loop::rounds).max().unwrap_or(1);
    let touched: u64 = threads.iter().map(Loop::touched).sum();
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
together = {TOGETHER}

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

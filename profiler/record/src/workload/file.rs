//! Writes the workload file: each thread's calls as a loop.

use std::fmt::Write as _;

use super::statement::{CallKey, CallTotals, Kind, PAGE};
use super::thread::Thread;

/// The largest number of different calls of a thread in the file. We choose the most frequent ones.
const KINDS: usize = 12;
/// The number of pages that Linux unmaps for each flush (`MAX_GATHER_BATCH_COUNT` pages of 510 pointers).
const TOGETHER: u64 = 10_000;
/// The longest computing time in one round, in nanoseconds.
const LONGEST_NS: u64 = 100_000_000;

/// Counts of calls and events that aren't in the file.
pub struct OmittedContent {
    pub processes: u64,
    pub kinds: u64,
    pub calls: u64,
    pub events: u64,
}

/// A thread's calls in the form in which they're written.
pub struct Loop {
    /// The index of its process.
    pub process: usize,
    /// The calls, the most frequent kind first.
    pub calls: Vec<(CallKey, CallTotals)>,
    between_ns: u64,
}

impl Loop {
    /// Converts the calls of a thread.
    pub fn new(thread: &Thread) -> Self {
        let calls = thread.calls.iter();
        let mut calls: Vec<_> = calls.map(|(&key, &of)| (key, of)).collect();
        calls.sort_by_key(|(_, made)| std::cmp::Reverse(made.count));
        calls.truncate(KINDS);
        let rounds = calls.first().map_or(1, |(_, made)| made.count);
        Loop {
            process: thread.process,
            calls,
            between_ns: (thread.between_ns / rounds).min(LONGEST_NS),
        }
    }

    /// Returns the number of rounds.
    pub fn rounds(&self) -> u64 {
        self.calls.first().map_or(0, |(_, made)| made.count)
    }

    pub fn count(&self) -> u64 {
        self.calls.iter().map(|(_, made)| made.count).sum()
    }

    /// Returns whether it flushes other CPUs.
    pub fn asks(&self) -> bool {
        self.calls.iter().any(|(alike, _)| alike.asked)
    }

    /// Returns the bytes that it touches, with page tables. Copies count twice, because the child has the original.
    fn touched(&self) -> u64 {
        let of = |(alike, made): &(CallKey, CallTotals)| match alike.asked {
            true => {
                let pages = made.pages * if alike.kind == Kind::Copy { 2 } else { 1 };
                (pages + pages / 512 + 8) * PAGE
            }
            false => 4 * PAGE,
        };
        self.calls.iter().map(of).sum()
    }

    /// Writes the program of this CPU, one of `callers` similar ones. The statements `into` move it into its process.
    fn write(&self, cpu: usize, callers: usize, into: &[String], text: &mut String) {
        let mut lines = Lines { text, depth: 0 };
        lines.add(&format!("\n[[threads]]\nwhen = \"cpu == {cpu}\"\nprogram = ["));
        lines.depth = 1;
        for statement in into {
            lines.statement(statement);
        }
        for (at, (alike, _)) in self.calls.iter().enumerate() {
            lines.statement(&format!("let = \"e{at}\", be = 0"));
            for statement in begins(at, alike) {
                lines.statement(&statement);
            }
        }
        lines.statement("begin = true");
        lines.statement(&format!("without = \"excess(cpus, {callers})\""));
        self.write_loop(cpu == 0, &mut lines);
        lines.statement("end = true");
        lines.depth = 0;
        lines.add("]");
    }

    /// Writes a loop in which each kind of call advances by its share.
    fn write_loop(&self, tells: bool, lines: &mut Lines<'_>) {
        let rounds = self.rounds();
        let body = format!("for = \"round\", below = \"min(rounds, {rounds})\", do");
        lines.nest(&body, |lines| {
            lines.compute(self.between_ns);
            for (at, (alike, made)) in self.calls.iter().enumerate() {
                lines.statement(&format!("let = \"e{at}\", be = \"e{at} + {}\"", made.count));
                lines.nest(&format!("if = \"e{at} >= {rounds}\", then"), |lines| {
                    lines.statement(&format!("let = \"e{at}\", be = \"e{at} - {rounds}\""));
                    lines.call(at, alike, made.pages);
                });
            }
            if tells {
                lines.statement(&format!("progress = \"round\", of = \"min(rounds, {rounds})\""));
            }
        });
    }
}

/// The lines of a program.
struct Lines<'t> {
    text: &'t mut String,
    depth: usize,
}

impl Lines<'_> {
    fn add(&mut self, line: &str) {
        self.text.push_str(&"    ".repeat(self.depth));
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn statement(&mut self, statement: &str) {
        self.add(&format!("{{ {statement} }},"));
    }

    fn nest(&mut self, head: &str, body: impl FnOnce(&mut Self)) {
        self.add(&format!("{{ {head} = ["));
        self.depth += 1;
        body(self);
        self.depth -= 1;
        self.add("] },");
    }

    fn compute(&mut self, ns: u64) {
        if ns > 0 {
            self.statement(&format!("compute = {ns}"));
        }
    }

    fn call(&mut self, at: usize, alike: &CallKey, pages: u64) {
        for statement in statements(at, alike, pages * PAGE) {
            self.statement(&statement);
        }
        self.statement("done = 1");
    }
}

/// Returns the statements that a call needs before its first time.
fn begins(at: usize, alike: &CallKey) -> Vec<String> {
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

/// Returns the statements for a call. If it flushed other CPUs, these first let it find pages.
fn statements(at: usize, alike: &CallKey, touched: u64) -> Vec<String> {
    let bytes = alike.bytes;
    let write = format!("write = \"a{at}\", bytes = {touched}, value = \"round\"");
    let mut all = Vec::new();
    match alike.kind {
        Kind::Unmap => all.push(format!("map = \"a{at}\", bytes = {bytes}")),
        Kind::Protect if alike.asked => {
            all.push(format!("protect = \"a{at}\", bytes = {bytes}, protection = \"rw\""));
        }
        _ => {}
    }
    match alike.kind {
        // A child shares all pages while they're written.
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

/// Returns the file's text. `(kept, asked)` are the number of calls in it, and of those that flushed other CPUs.
pub fn file(
    program: &str,
    threads: &[Loop],
    bystanders: &[usize],
    (kept, asked): (u64, u64),
    lost: &OmittedContent,
) -> String {
    // A program chooses its own name, so we replace all characters that could end the comment or the string.
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
        "# Written from a recording of {program}: {kept} calls of its {}, with {asked} flushes of other CPUs.
# Kept: the calls of each thread with their number, size and pages (the maximum of similar calls); the number of threads;
# the mean time between calls, as computing; pages copied after a fork ({{ fork }}, written, {{ exit }}); reclaim by the thread
# itself (a file's pages, read and paged out).
# Not kept: the order of calls (a loop mixes them in proportion), addresses, sharing between areas, and reads, writes and maps that no call needs. A protect that flushed other
# CPUs removes the right to write.
# Left out: {} calls of other processes, {} calls of rare kinds or further threads, {} calls without a matching statement,
# {} events that the recorder lost.
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
    // Writing to a string can't fail.
    let _ = write!(
        text,
        "name = \"recorded\"
title = \"the calls of {program}, from a recording\"
mechanism = \"S4\"
cpus = {cpus}

[parameters]
rounds = {{ unit = \"count\", default = {most}, least = 1, most = {most}, meaning = \"The most rounds that a thread makes.\" }}

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
    // The first thread of each additional process creates that process. The others wait for this.
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
    for (at, &process) in bystanders.iter().enumerate().filter(|(_, process)| **process > 0) {
        let cpu = threads.len() + at;
        let _ = write!(text, "\n[[threads]]\nwhen = \"cpu == {cpu}\"\nprogram = [\n");
        stands_by(&into(process), &mut text);
    }
    text.push_str("\n[[threads]]\nprogram = [\n");
    stands_by(&into(0), &mut text);
    text
}

/// Writes the rest of a program that only runs until the others have ended.
fn stands_by(into: &[String], text: &mut String) {
    for statement in into {
        let _ = writeln!(text, "    {{ {statement} }},");
    }
    text.push_str("    { begin = true },\n    { bystand = \"20us\" },\n]\n");
}

//! Writes the workload file: each thread's calls as a loop.

use std::fmt::Write as _;

use super::Process;
use super::statement::{CallKey, CallTotals, Kind, PAGE};
use super::thread::Thread;

/// The largest number of different calls of a thread in the file. We choose the most frequent ones.
const KINDS: usize = 12;
/// The number of pages that Linux unmaps for each flush (`MAX_GATHER_BATCH_COUNT` pages of 510 pointers).
const TOGETHER: u64 = 10_000;
/// The longest computing time in one round, in nanoseconds.
const LONGEST_NS: u64 = 100_000_000;

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

    /// Returns the program of this CPU, one of `callers` similar ones.
    fn program(&self, cpu: usize, callers: usize) -> Vec<String> {
        let mut lines = Vec::new();
        for (at, (alike, _)) in self.calls.iter().enumerate() {
            lines.push(statement(&format!("let = \"e{at}\", be = 0")));
            lines.extend(begins(at, alike).iter().map(|of| statement(of)));
        }
        lines.push(statement("begin = true"));
        lines.push(statement(&format!("without = \"excess(cpus, {callers})\"")));
        let rounds = self.rounds();
        let body = format!("for = \"round\", below = \"min(rounds, {rounds})\", do");
        lines.extend(nest(&body, self.round(cpu == 0)));
        lines.push(statement("end = true"));
        lines
    }

    /// Returns a round, in which each kind of call advances by its share.
    fn round(&self, tells: bool) -> Vec<String> {
        let (rounds, mut lines) = (self.rounds(), Vec::new());
        if self.between_ns > 0 {
            lines.push(statement(&format!("compute = {}", self.between_ns)));
        }
        for (at, (alike, made)) in self.calls.iter().enumerate() {
            lines.push(statement(&format!("let = \"e{at}\", be = \"e{at} + {}\"", made.count)));
            let mut call = vec![format!("let = \"e{at}\", be = \"e{at} - {rounds}\"")];
            call.extend(statements(at, alike, made.pages * PAGE));
            call.push("done = 1".to_owned());
            let call = call.iter().map(|of| statement(of)).collect();
            lines.extend(nest(&format!("if = \"e{at} >= {rounds}\", then"), call));
        }
        if tells {
            let progress = format!("progress = \"round\", of = \"min(rounds, {rounds})\"");
            lines.push(statement(&progress));
        }
        lines
    }
}

fn statement(of: &str) -> String {
    format!("{{ {of} }},")
}

/// Returns a statement with a list of others.
fn nest(head: &str, body: Vec<String>) -> Vec<String> {
    let body = body.into_iter().map(|line| format!("    {line}"));
    let (begin, end) = (format!("{{ {head} = ["), "] },".to_owned());
    [begin].into_iter().chain(body).chain([end]).collect()
}

fn threads(cpu: Option<usize>, program: &[String], text: &mut String) {
    text.push_str("\n[[threads]]\n");
    if let Some(cpu) = cpu {
        let _ = writeln!(text, "when = \"cpu == {cpu}\"");
    }
    text.push_str("program = [\n");
    for line in program {
        let _ = writeln!(text, "    {line}");
    }
    text.push_str("]\n");
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
            return vec![format!("fork = \"c{at}\""), write, format!("exit = \"c{at}\"")];
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

/// Returns the text of a process's file. `(kept, asked)` are the number of calls in it, and of those that flushed other
/// CPUs.
pub fn file(
    process: &Process,
    loops: &[Loop],
    bystanders: &[usize],
    (kept, asked): (u64, u64),
) -> String {
    // A program chooses its own name, so we replace all characters that could end the comment or the string.
    let program: String = process
        .name()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' })
        .collect();
    let cpus = loops.len() + bystanders.len();
    let processes = loops.iter().map(|thread| thread.process + 1).max();
    let processes = processes.unwrap_or(1);
    let most = loops.iter().map(Loop::rounds).max().unwrap_or(1);
    let touched: u64 = loops.iter().map(Loop::touched).sum();
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
        process.elsewhere,
        process.count().saturating_sub(kept),
        process.threads.iter().map(|thread| thread.others).sum::<u64>(),
        process.lost
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
                statements.push(statement(&format!("spawn = \"process[{process}]\"")));
            }
            statements.push(statement("barrier = true"));
            if process > 0 {
                statements.push(statement(&format!("enter = \"process[{process}]\"")));
            }
        }
        statements
    };
    for (cpu, thread) in loops.iter().enumerate() {
        let mut program = into(thread.process);
        program.extend(thread.program(cpu, loops.len()));
        threads(Some(cpu), &program, &mut text);
    }
    // The others only run until these have ended.
    let stand_by = ["begin = true", "bystand = \"20us\""].map(statement);
    for (at, &process) in bystanders.iter().enumerate().filter(|(_, process)| **process > 0) {
        let program = [&into(process)[..], &stand_by].concat();
        threads(Some(loops.len() + at), &program, &mut text);
    }
    threads(None, &[&into(0)[..], &stand_by].concat(), &mut text);
    text
}

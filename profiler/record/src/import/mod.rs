//! Reads the text of other recorders: `perf script`, `trace-cmd report`, or the kernel's `trace` file.
//!
//! So we can analyse machines on which quell isn't installed.
//!
//! We read the text line by line, and keep an event until its stack is complete: one event at a time or, if stacks are
//! separate lines, one for each CPU. We guess nothing. We count lines that we can't read, and add a note at the end
//! with the first of them. The text may also contain the kernel's counters as `cat /proc/interrupts` prints them. The
//! first such block counts as read before the recording, and the last one as read after it.

mod counters;
mod field;
mod frame;
mod head;
mod lines;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use crate::perf::{
    Change, Frame, Host, Item, LossReason, LostEvents, NameTable, Sample, Source, SourceError,
    Value,
};
use rustc_hash::FxHashMap;

use counters::Counters;
use field::Fields;
use head::Head;
use lines::{ENDLESS, Lines};

/// The number of different stacks to remember. At the limit we forget all of them.
const STACKS: usize = 1 << 15;
/// The number of events that may wait for their stacks.
const WAITING: usize = 256;
/// The number of characters to show of an unreadable line.
const SHOWN: usize = 60;

/// An event whose stack may be incomplete.
struct PendingEvent {
    sample: Sample,
    /// The lines of its stack, each after a letter for its form.
    raw: Vec<u8>,
    /// The form of further lines that belong to its stack. `None` if there can't be any.
    goes_on: Option<Kind>,
    complete: bool,
}

/// The form of a stack line, by its letter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Perf = b'p' as isize,
    Kernel = b'k' as isize,
    User = b'u' as isize,
}

impl PendingEvent {
    /// Appends a line to its stack.
    fn keep(&mut self, kind: Kind, line: &[u8]) {
        self.raw.push(kind as u8);
        self.raw.extend_from_slice(line);
        self.raw.push(b'\n');
    }

    /// Ends its stack.
    fn complete(&mut self) {
        self.complete = true;
        self.goes_on = None;
    }
}

/// A recording in text.
pub struct Import {
    lines: Lines<Box<dyn BufRead + Send>>,
    name: String,
    size: Option<u64>,
    names: NameTable,
    stacks: FxHashMap<Box<[u8]>, Arc<[Frame]>>,
    counters: Counters,
    host: Option<Host>,
    /// Events in the order of the text, until their stacks are complete.
    waiting: VecDeque<PendingEvent>,
    /// The process of each thread, from task events. We need it if lines contain no process.
    processes: FxHashMap<u32, u32>,
    ready: VecDeque<Item>,
    samples: u64,
    unreadable: u64,
    first_unreadable: Option<(u64, String)>,
    ended: bool,
}

impl Import {
    /// Opens a file. `-` is standard input.
    ///
    /// # Errors
    /// If it can't be read, or is a binary recording that its own tool must print first.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        if path == Path::new("-") {
            return Import::read(
                BufReader::with_capacity(1 << 18, io::stdin()),
                "standard input",
                None,
            );
        }
        let name = path.display().to_string();
        let wrong = |error: io::Error| SourceError { place: name.clone(), what: error.to_string() };
        let file = File::open(path).map_err(wrong)?;
        let about = file.metadata().map_err(wrong)?;
        if about.is_dir() {
            return Err(wrong(io::Error::from(io::ErrorKind::IsADirectory)));
        }
        let size = about.is_file().then_some(about.len());
        Import::read(BufReader::with_capacity(1 << 18, file), &name, size)
    }

    /// Reads from `from`. Errors contain `name`. `size` is the number of bytes, if known.
    ///
    /// # Errors
    /// If it can't be read, or is a binary recording that its own tool must print first.
    pub fn read(
        mut from: impl BufRead + Send + 'static,
        name: &str,
        size: Option<u64>,
    ) -> Result<Self, SourceError> {
        let mut start = Vec::new();
        let taken = from.by_ref().take(16).read_to_end(&mut start);
        let wrong = |what: String| SourceError { place: name.to_owned(), what };
        taken.map_err(|error| wrong(error.to_string()))?;
        if start.is_empty() {
            return Err(wrong(
                "this file is empty: its recorder failed or is still running; record again (docs/record.md)".into(),
            ));
        }
        let perf =
            "this is perf's binary file; convert it with `perf script -F +pid -i NAME > FILE`";
        let packed = "this file is compressed; unpack it, or pipe the unpacked text into `-`";
        let others: [(&[u8], &str); 6] = [
            (
                b"quell recording ",
                "a recording of `quell record` cannot be read from a pipe; give the name of its file",
            ),
            (b"PERFILE2", perf),
            (b"2ELIFREP", perf),
            (
                b"\x17\x08\x44tracing",
                "this is trace-cmd's binary file; convert it with `trace-cmd report -i NAME > FILE`",
            ),
            (b"\x1f\x8b", packed),
            (b"\x28\xb5\x2f\xfd", packed),
        ];
        if let Some((_, what)) = others.iter().find(|(magic, _)| start.starts_with(magic)) {
            return Err(wrong(what.replace("NAME", name)));
        }
        Ok(Import {
            lines: Lines::new(Box::new(io::Cursor::new(start).chain(from))),
            name: name.to_owned(),
            size,
            names: NameTable::default(),
            stacks: FxHashMap::default(),
            counters: Counters::default(),
            host: None,
            waiting: VecDeque::new(),
            processes: FxHashMap::default(),
            ready: VecDeque::new(),
            samples: 0,
            unreadable: 0,
            first_unreadable: None,
            ended: false,
        })
    }

    fn refuse(&self, what: impl Into<String>) -> SourceError {
        SourceError {
            place: format!("{}, line {}", self.name, self.lines.number),
            what: what.into(),
        }
    }

    /// Reads one line. Returns whether there was one.
    fn step(&mut self) -> Result<bool, SourceError> {
        let number = self.lines.number + 1;
        let line = match self.lines.next() {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(false),
            Err(error) => return Err(self.refuse(error.to_string())),
        };
        // Most lines are frames of known stacks, so we keep them without parsing.
        if line.first() == Some(&b'\t') && line.get(1) != Some(&b'=') {
            let last = self.waiting.back_mut();
            if let Some(last) = last.filter(|last| last.goes_on == Some(Kind::Perf)) {
                last.keep(Kind::Perf, line);
                return Ok(true);
            }
        }
        let line = String::from_utf8_lossy(line).into_owned();
        self.line(&line, number);
        Ok(true)
    }

    fn line(&mut self, line: &str, number: u64) {
        let text = line.trim();
        if text.is_empty() {
            let last = self.waiting.back_mut();
            if let Some(last) = last.filter(|last| last.goes_on == Some(Kind::Perf)) {
                last.complete();
            }
            return;
        }
        if let Some(about) = text.strip_prefix('#') {
            self.about(about.trim());
            return;
        }
        let (took, block) = self.counters.line(line);
        self.ready.extend(block.map(Item::Statistics));
        if took {
            return;
        }
        if let Some(frame) = text.strip_prefix("=>") {
            self.frame_of_trace(frame);
            return;
        }
        if self.lost_of_trace(text) {
            return;
        }
        if let Some(count) = text.strip_prefix("cpus=")
            && let Ok(cpus) = count.parse()
        {
            self.host.get_or_insert_default().cpus = cpus;
            return;
        }
        match head::parse(line) {
            Some(head) => self.event(head),
            None => {
                self.unreadable += 1;
                let shown = || (number, text.chars().take(SHOWN).collect());
                self.first_unreadable.get_or_insert_with(shown);
            }
        }
    }

    /// Parses a line of `perf script --header`.
    fn about(&mut self, text: &str) {
        let Some((key, value)) = text.split_once(" : ") else {
            return;
        };
        let value = value.trim();
        let host = self.host.get_or_insert_default();
        match key.trim() {
            "os release" => host.kernel = value.into(),
            "nrcpus online" => host.cpus = value.parse().unwrap_or(0),
            "cpudesc" => host.processor = value.into(),
            "cmdline" => host.scope = value.chars().take(200).collect(),
            _ => {}
        }
    }

    /// Adds `=> symbol` to the last event whose stack was announced.
    fn frame_of_trace(&mut self, frame: &str) {
        for waiting in self.waiting.iter_mut().rev() {
            if let Some(kind @ (Kind::Kernel | Kind::User)) = waiting.goes_on {
                return waiting.keep(kind, frame.as_bytes());
            }
        }
    }

    /// Parses `CPU:1 [LOST 12 EVENTS]` and `CPU:1 [12 EVENTS DROPPED]`. Returns whether the line has this form.
    fn lost_of_trace(&mut self, text: &str) -> bool {
        let Some(rest) = text.strip_prefix("CPU:") else {
            return false;
        };
        let Some((cpu, rest)) = rest.split_once(" [") else {
            return false;
        };
        let (Ok(cpu), true) = (cpu.trim().parse(), rest.contains("EVENTS")) else {
            return false;
        };
        let count = rest.split(' ').find_map(|word| word.parse().ok());
        let time_ns = self.waiting.back().map_or(0, |last| last.sample.time_ns);
        self.ready.push_back(Item::Lost(LostEvents {
            why: LossReason::Full,
            time_ns,
            cpu,
            count: count.unwrap_or(1),
        }));
        true
    }

    fn event(&mut self, head: Head<'_>) {
        if let Some(record) = head.event.strip_prefix("PERF_RECORD_") {
            self.record(record.trim_end_matches(':'), &head);
            return;
        }
        let cpu = head.cpu.unwrap_or(0);
        match head.event {
            "kernel_stack" | "<stack trace>" if head.trace => {
                return self.announce(cpu, head.tid, Kind::Kernel, head.text);
            }
            "user_stack" | "<user stack trace>" if head.trace => {
                return self.announce(cpu, head.tid, Kind::User, head.text);
            }
            _ => {}
        }
        // An event ends the stack of the last event on its CPU. In `perf`'s text it ends that of the last event at all.
        let mut events = self.waiting.iter_mut().rev();
        if let Some(last) = events.find(|last| !head.trace || last.sample.cpu == cpu) {
            last.complete();
        }
        let event = if head.trace { full_name(head.event, head.text) } else { head.event.into() };
        let is_call = head.trace && head.event.starts_with("sys_");
        let fields = match head.text.strip_prefix('(').filter(|_| is_call) {
            Some(inner) => {
                hexadecimal(field::of(&event, inner.trim_end_matches(')'), &mut self.names))
            }
            None => field::of(&event, head.text, &mut self.names),
        };
        let pid = head.pid.or_else(|| self.processes.get(&head.tid).copied());
        let sample = Sample {
            time_ns: head.time_ns,
            cpu,
            pid: pid.unwrap_or(head.tid),
            tid: head.tid,
            comm: self.names.get(head.comm),
            event: self.names.get(&event),
            fields,
            stack: Arc::default(),
        };
        self.samples += 1;
        self.waiting.push_back(PendingEvent {
            sample,
            raw: Vec::new(),
            goes_on: (!head.trace).then_some(Kind::Perf),
            complete: false,
        });
        while self.waiting.len() > WAITING {
            self.hand_on();
        }
    }

    /// Assigns the next lines to the stack of the thread's last event on this CPU.
    fn announce(&mut self, cpu: u32, tid: u32, kind: Kind, text: &str) {
        let mut found = false;
        for waiting in self.waiting.iter_mut().rev() {
            let this = !found && waiting.sample.cpu == cpu && waiting.sample.tid == tid;
            found |= this;
            waiting.goes_on = this.then_some(kind);
        }
        if let Some(frame) = text.trim().strip_prefix("=>") {
            self.frame_of_trace(frame);
        }
    }

    /// Parses the records of `perf script` about tasks and lost events.
    fn record(&mut self, record: &str, head: &Head<'_>) {
        let pair = |text: &str, by: char| {
            let (one, two) = text.split_once(by)?;
            Some((one.trim().parse().ok()?, two.trim().parse().ok()?))
        };
        let time_ns = head.time_ns;
        let item = if record.starts_with("LOST") {
            let count = head.text.rsplit(' ').next().and_then(|n| n.parse().ok());
            Some(Item::Lost(LostEvents {
                why: LossReason::Full,
                time_ns,
                cpu: head.cpu.unwrap_or(0),
                count: count.unwrap_or(1),
            }))
        } else if record.starts_with("COMM") {
            let exec = head.text.starts_with("exec: ");
            let text = head.text.trim_start_matches("exec: ");
            text.rsplit_once(':').and_then(|(comm, ids)| {
                let (pid, tid) = pair(ids, '/')?;
                self.processes.insert(tid, pid);
                let comm = self.names.get(comm);
                Some(Item::Change(Change::Named { time_ns, pid, tid, comm, exec }))
            })
        } else {
            // `FORK(pid:tid):(parent:tid)`, and the same for EXIT.
            let whole = record.to_owned() + head.text;
            let mut parts = whole.split(['(', ')']).filter_map(|part| pair(part, ':'));
            match (parts.next(), parts.next()) {
                (Some((pid, tid)), Some((parent, parent_tid))) if whole.starts_with("FORK") => {
                    self.processes.insert(tid, pid);
                    Some(Item::Change(Change::Forked { time_ns, pid, tid, parent, parent_tid }))
                }
                (Some((pid, tid)), _) if whole.starts_with("EXIT") => {
                    Some(Item::Change(Change::Exited { time_ns, pid, tid }))
                }
                _ => None,
            }
        };
        self.ready.extend(item);
    }

    /// Passes on the first event of the queue with its stack.
    fn hand_on(&mut self) {
        let Some(mut first) = self.waiting.pop_front() else {
            return;
        };
        if !first.raw.is_empty() {
            first.sample.stack = match self.stacks.get(&first.raw[..]) {
                Some(known) => known.clone(),
                None => self.new_stack(&first.raw),
            };
        }
        self.ready.push_back(Item::Sample(first.sample));
    }

    fn new_stack(&mut self, raw: &[u8]) -> Arc<[Frame]> {
        let mut frames = Vec::new();
        for line in raw.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let text = String::from_utf8_lossy(&line[1..]);
            let is_perf = line[0] == Kind::Perf as u8;
            let frame = match is_perf {
                true => frame::of_perf(text.trim(), &mut self.names),
                false => frame::of_trace(&text, line[0] == Kind::Kernel as u8, &mut self.names),
            };
            self.unreadable += u64::from(is_perf && frame.is_none());
            // We skip the tracer's own frame.
            let is_tracer = |symbol: &str| {
                symbol.starts_with("trace_event_raw_event_")
                    || symbol.starts_with("ftrace_syscall_")
            };
            frames.extend(frame.filter(|of| !of.symbol.as_deref().is_some_and(is_tracer)));
        }
        let stack: Arc<[Frame]> = frames.into();
        if self.stacks.len() >= STACKS {
            self.stacks.clear();
        }
        self.stacks.insert(raw.into(), stack.clone());
        stack
    }

    /// Passes on the rest, and adds a note on unreadable lines. Fails if there was no event.
    fn end(&mut self) -> Result<(), SourceError> {
        while !self.waiting.is_empty() {
            self.hand_on();
        }
        self.ready.extend(self.counters.end().map(Item::Statistics));
        let first = self.first_unreadable.take();
        if self.samples == 0 {
            let (place, line) = match first {
                Some((number, text)) => (
                    format!("{}, line {number}", self.name),
                    format!("; this line is not an event: `{text}`"),
                ),
                None => (self.name.clone(), String::new()),
            };
            let read = match self.lines.bytes > ENDLESS {
                true => format!("the first {} MB of ", ENDLESS >> 20),
                false => String::new(),
            };
            let what =
                format!("no event in {read}this file{line}; docs/record.md shows how to record");
            return Err(SourceError { place, what });
        }
        if self.unreadable > 0 {
            let place = match first {
                Some((number, text)) => format!("; the first is line {number}: `{text}`"),
                None => String::new(),
            };
            let note = format!(
                "{} of {} lines of {} were not understood and are left out{place}",
                self.unreadable, self.lines.number, self.name
            );
            self.ready.push_back(Item::Note(note.into()));
        }
        Ok(())
    }
}

impl Source for Import {
    fn next(&mut self) -> Result<Option<Item>, SourceError> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Ok(Some(item));
            }
            if self.ended {
                return Ok(None);
            }
            while self.waiting.front().is_some_and(|first| first.complete) {
                self.hand_on();
            }
            if !self.ready.is_empty() {
                continue;
            }
            let endless = self.samples == 0 && self.lines.bytes > ENDLESS;
            if endless || !self.step()? {
                self.ended = true;
                self.end()?;
            }
            if (self.samples > 0 || self.ended)
                && let Some(mut host) = self.host.take()
            {
                host.virtual_machine = self.counters.virtual_machine;
                self.ready.push_back(Item::Host(host));
            }
        }
    }

    fn progress(&self) -> Option<f64> {
        let size = self.size.filter(|&size| size > 0)?;
        Some((self.lines.bytes as f64 / size as f64).min(1.0))
    }
}

/// Converts a call's values from hexadecimal. The kernel's own `trace` file prints them without `0x`.
fn hexadecimal(mut fields: Fields) -> Fields {
    for (_, value) in &mut fields {
        if let Value::Text(text) = value
            && let Ok(number) = u64::from_str_radix(text, 16)
        {
            *value = Value::Unsigned(number);
        }
    }
    fields
}

/// Returns the event's name with its group, which `trace-cmd` and the kernel leave out.
fn full_name<'a>(name: &'a str, text: &str) -> Cow<'a, str> {
    let groups = [
        ("tlb_flush", "tlb"),
        ("csd_", "csd"),
        ("call_function_", "irq_vectors"),
        ("sys_enter_", "syscalls"),
        ("sys_exit_", "syscalls"),
        ("page_fault_", "exceptions"),
        ("mmap_lock_", "mmap_lock"),
        ("sched_", "sched"),
    ];
    if let Some((_, group)) = groups.iter().find(|(prefix, _)| name.starts_with(prefix)) {
        return format!("{group}:{name}").into();
    }
    match name.strip_prefix("sys_") {
        Some(call) if text.starts_with("->") => format!("syscalls:sys_exit_{call}").into(),
        Some(call) => format!("syscalls:sys_enter_{call}").into(),
        None => name.into(),
    }
}

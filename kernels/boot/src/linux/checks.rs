//! Follows boots of a Linux whose programs check it: the kernel's complaints, and the engine's counts beside Linux's.

use crate::ending::end_requested;
use crate::follow::{self, Line};
use crate::images::Images;
use crate::qemu::{self, Machine};
use crate::versus::compare::{command_for, counted};
use crate::versus::linux;
use crate::versus::protocol::Event;
use crate::{Arch, files};
use anyhow::{anyhow, bail};
use serde_json::Value;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// A Linux to boot.
pub struct Boot<'b> {
    /// The image of the kernel.
    pub kernel: &'b linux::Kernel,
    /// An emulator other than QEMU of the system.
    pub emulator: Option<&'b Path>,
    /// The number of CPUs.
    pub cpus: u16,
    /// The memory in megabytes.
    pub memory_mb: u32,
    /// Whether the machine counts instructions, and its CPUs take turns. Otherwise each is a thread of the host.
    pub icount: bool,
    /// Linux's command line.
    pub words: Vec<String>,
    /// The time that the machine may be silent, or run without using the processor, before it's examined and ended.
    pub limit: Duration,
    /// Whether to show every line of the serial console, on standard error.
    pub verbose: bool,
}

impl Boot<'_> {
    /// Boots with these initial files. Passes each event to `event`, or its text if it's none of the guest, with the
    /// complaints until then. Returns the outcome, the complaints that `event` hasn't taken, and the counts if the
    /// engine shows them.
    pub fn follow(
        &self,
        archive: &[u8],
        mut event: impl FnMut(Result<Event, &Value>, &mut Splats),
    ) -> anyhow::Result<(follow::Outcome, Splats, Option<BootCounters>)> {
        let emulator = match self.emulator {
            Some(emulator) => emulator.to_owned(),
            None => qemu::find(Arch::X86_64)?,
        };
        let machine = Machine::x86_64(self.cpus, self.memory_mb, self.icount);
        let file = files::temporary(&linux::cache(), "initial-", ".cpio", archive)?;
        let images = Images { kernel: self.kernel.image.clone(), program: file.to_path_buf() };
        let command = command_for(&emulator, &machine, &images, &self.words)?;
        let (mut splats, mut counts, mut lacking) = (Splats::default(), None, Vec::new());
        let outcome = follow::run(command, self.limit, |line| {
            if self.verbose {
                remark!("  | {line}");
            }
            let text = match line {
                Line::Text(text) => return splats.line(text),
                Line::Event(text) => text,
            };
            match serde_json::from_value(text.clone()) {
                Ok(Event::Lacking { what, why }) => lacking.push(format!("{what}: {why}")),
                Ok(Event::Counted { before, engine, after }) => {
                    counts = Some(BootCounters::of(&before, &engine, &after));
                }
                Ok(known) => event(Ok(known), &mut splats),
                Err(_) => event(Err(text), &mut splats),
            }
        })?;
        for what in lacking {
            remark!("Linux lacks {what}");
        }
        if end_requested().is_some() {
            bail!("ended by a signal");
        }
        Ok((outcome, splats, counts))
    }

    /// Returns the error of a boot that didn't end by itself.
    pub fn failed(&self, outcome: &follow::Outcome) -> anyhow::Error {
        let why = outcome.failure.as_deref().unwrap_or("it did not end");
        anyhow!("Linux on {}: {why}\n{}", counted(self.cpus), outcome.last_lines.join("\n"))
    }
}

/// The counts of the engine and of Linux in a completed boot.
#[derive(Clone, Debug)]
pub struct BootCounters {
    /// Interrupts in Linux's row `TLB`, read before and after the engine's counts.
    pub interrupts: [u64; 2],
    /// The engine's counters, in its order.
    pub engine: Vec<(String, u64)>,
}

impl BootCounters {
    /// Returns the engine's counter `name`; 0 if there is none.
    pub fn get(&self, name: &str) -> u64 {
        let found = self.engine.iter().find(|(counter, _)| counter == name);
        found.map_or(0, |(_, count)| *count)
    }

    /// Checks that both counts agree.
    ///
    /// Linux counts an interrupt when it arrives, the engine when it's sent. Two interrupts to a CPU may arrive as one
    /// if the first request was served before its interrupt arrived. Otherwise the second request merges into the first
    /// and sends none. So Linux's count isn't above the engine's, and is less by at most the number of requests that
    /// were served early.
    ///
    /// # Errors
    /// The difference.
    pub fn agree(&self) -> Result<(), String> {
        let ([before, after], sent) = (self.interrupts, self.get("sent"));
        let early = self.get("served_early");
        if before > sent {
            return Err(format!("Linux counted {before} interrupts, but the engine sent {sent}"));
        }
        if sent > after + early {
            return Err(format!(
                "the engine sent {sent} interrupts, but Linux counted {after}; {early} requests were served without one"
            ));
        }
        Ok(())
    }

    fn of(before: &str, engine: &str, after: &str) -> BootCounters {
        // A row contains its name, a number for each CPU, and its description.
        let sum =
            |row: &str| -> u64 { row.split(' ').filter_map(|word| word.parse::<u64>().ok()).sum() };
        let counter = |line: &str| {
            let (name, count) = line.split_once(' ')?;
            Some((name.to_string(), count.parse().ok()?))
        };
        BootCounters {
            interrupts: [sum(before), sum(after)],
            engine: engine.lines().filter_map(counter).collect(),
        }
    }
}

impl fmt::Display for BootCounters {
    /// Prints Linux's interrupts, and each of the engine's counters that isn't 0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TLB interrupts {}; engine:", self.interrupts[1])?;
        let moved = self.engine.iter().filter(|(_, count)| *count > 0);
        for (number, (name, count)) in moved.enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(f, "{comma} {name} {count}")?;
        }
        Ok(())
    }
}

/// Shows warnings (level 4) in spite of `quiet`.
pub const SHOWN: &str = "loglevel=5";

/// The most lines to keep of a splat.
const LINES: usize = 60;

/// Texts in the first lines of Linux's complaints.
const SPLATS: [&str; 16] = [
    "WARNING: ",
    "BUG: ",
    "kernel BUG at ",
    "Oops: ",
    "INFO: possible ",
    "INFO: task ",
    "rcu: INFO: ",
    "INFO: rcu",
    "Kernel panic",
    "general protection fault",
    "page allocation stalls",
    "UBSAN: ",
    "list_add corruption",
    "list_del corruption",
    "nobody cared",
    "refcount_t: ",
];

/// The complaints among the lines of a console.
#[derive(Default)]
pub struct Splats {
    found: Vec<Vec<String>>,
    /// Whether the next lines belong to the last complaint.
    open: bool,
}

impl Splats {
    /// Handles the next line.
    pub fn line(&mut self, line: &str) {
        let line = plain(line);
        if SPLATS.iter().any(|mark| line.contains(mark)) {
            // A complaint within a complaint's own lines is part of it.
            if !self.open {
                self.found.push(Vec::new());
            }
            self.open = true;
        }
        if self.open
            && let Some(splat) = self.found.last_mut()
        {
            splat.push(line.to_string());
            if splat.len() == LINES || line.contains("---[ end ") || line == " </TASK>" {
                self.open = false;
            }
        }
    }

    /// Returns the splats found since the last call, each with its lines.
    pub fn take(&mut self) -> Vec<Vec<String>> {
        self.open = false;
        std::mem::take(&mut self.found)
    }
}

/// Returns a line of the kernel's log without its time.
fn plain(line: &str) -> &str {
    line.split_once("] ")
        .filter(|(time, _)| {
            time.strip_prefix('[')
                .is_some_and(|time| time.trim_start().starts_with(|c: char| c.is_ascii_digit()))
        })
        .map_or(line, |(_, text)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_read() {
        let row = |count| format!(" TLB:          1          {count}   TLB shootdowns");
        let counted = BootCounters::of(&row(2), "requested 7\nsent 3\n", &row(3));
        assert_eq!(counted.interrupts, [3, 4]);
        let text = "TLB interrupts 4; engine: requested 7, sent 3";
        assert_eq!(counted.to_string(), text);
        assert_eq!((counted.get("sent"), counted.get("none")), (3, 0));
    }

    #[test]
    fn counts_that_differ_are_named() {
        let counted = |interrupts, sent: u64, served: u64| BootCounters {
            interrupts,
            engine: vec![("sent".into(), sent), ("served_early".into(), served)],
        };
        assert!(counted([3, 3], 3, 0).agree().is_ok());
        assert!(counted([3, 3], 4, 1).agree().is_ok());
        assert!(counted([3, 4], 3, 0).agree().is_ok());
        assert!(counted([3, 3], 4, 0).agree().is_err());
        assert!(counted([3, 3], 2, 0).agree().is_err());
    }

    fn followed(lines: &[&str]) -> Splats {
        let mut splats = Splats::default();
        for line in lines {
            splats.line(line);
        }
        splats
    }

    #[test]
    fn a_splat_is_seen_with_its_lines_and_no_others() {
        let found = followed(&[
            "[    1.000000] all is well",
            "[    1.500000] WARNING: CPU: 1 PID: 7 at mm/rmap.c:12 f+0x1/0x2",
            "[    1.500001] Call Trace:",
            "[    1.500002] ---[ end trace 0000000000000000 ]---",
            "[    2.000000] Out of memory: Killed process 9",
            "[    3.000000] ======================================================",
            "[    3.000000] WARNING: possible circular locking dependency detected",
        ])
        .take();
        assert_eq!(found.len(), 2, "{:?}", found);
        assert_eq!(found[0].len(), 3);
        assert!(found[0][0].starts_with("WARNING: CPU: 1"));
    }
}

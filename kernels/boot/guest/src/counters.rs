//! Reads the kernel's counters at the two marks of a window.
//!
//! Interrupts come from `/proc/interrupts` and the engine's counters, which cost nothing while the window is open.
//! Flushes come from a histogram on the tracepoint `tlb:tlb_flush`, which slows every flush. So we either time a job or
//! trace it.

use crate::protocol::{Counters, Event, Window};
use anyhow::bail;
use quell_vm::Mark;
use std::fs::{read_to_string, write};

/// The file of the histogram's trigger.
const TRIGGER: &str = "/sys/kernel/tracing/events/tlb/tlb_flush/trigger";
/// The file of the histogram's result.
const RESULT: &str = "/sys/kernel/tracing/events/tlb/tlb_flush/hist";
/// The histogram's definition.
const HISTOGRAM: &str = "hist:keys=reason,pages:size=2048";

/// The rows of `/proc/vmstat` to keep, by prefix.
const MEMORY: [&str; 10] = [
    "pgpgin",
    "pgfault",
    "pgmajfault",
    "pswpin",
    "pswpout",
    "pgmigrate_",
    "pgsteal_",
    "pgdemote_",
    "thp_fault_alloc",
    "nr_written",
];

/// The engine's counters, if the engine is on and shows them.
const ENGINE: &str = "/sys/kernel/debug/x86/quell/statistics";

/// Reads the engine's counters between two readings of Linux's.
pub fn engine() -> Option<Event> {
    let row = || -> Option<String> {
        let all = read_to_string("/proc/interrupts").ok()?;
        let row = all.lines().find(|row| row.trim_start().starts_with("TLB:"));
        row.map(str::to_string)
    };
    let before = row()?;
    let engine = read_to_string(ENGINE).ok()?;
    let after = row()?;
    Some(Event::Counted { before, engine, after })
}

/// Reads the counters at the marks of a window.
#[derive(Default)]
pub struct Recorder {
    /// Whether flushes are counted.
    pub traced: bool,
    /// Counters when the window opened.
    pub before: Counters,
    /// Counters when it closed.
    pub after: Counters,
    /// The histogram of flushes, as the kernel prints it.
    pub flushes: String,
    /// The first error in reading.
    pub error: Option<std::io::Error>,
}

impl Recorder {
    /// Creates a recorder for a job.
    pub fn new(traced: bool) -> Self {
        Recorder { traced, ..Recorder::default() }
    }

    /// Reads the counters when the window opens or closes.
    pub fn mark(&mut self, mark: Mark) {
        let result = match mark {
            Mark::Begin => self.begin(),
            Mark::End => self.end(),
        };
        if let Err(error) = result {
            self.error = Some(error);
        }
    }

    /// Returns the measurements of a window.
    pub fn window(self, done: u64, ticks: u64) -> anyhow::Result<Window> {
        let Recorder { before, after, flushes, error, .. } = self;
        match error {
            Some(error) => bail!("reading the kernel's counters: {error}"),
            None => Ok(Window { done, ticks, before, after, flushes }),
        }
    }

    fn begin(&mut self) -> std::io::Result<()> {
        self.before = read()?;
        if self.traced {
            // Opening the file for writing removes every earlier trigger.
            write(TRIGGER, HISTOGRAM)?;
        }
        Ok(())
    }

    fn end(&mut self) -> std::io::Result<()> {
        if self.traced {
            self.flushes = read_to_string(RESULT)?;
            write(TRIGGER, "")?;
        }
        self.after = read()?;
        Ok(())
    }
}

fn read() -> std::io::Result<Counters> {
    let rows = |file: &str, keep: &dyn Fn(&str) -> bool| -> std::io::Result<String> {
        let text = read_to_string(file)?;
        let kept: Vec<_> = text.lines().filter(|line| keep(line.trim_start())).collect();
        Ok(kept.join("\n"))
    };
    Ok(Counters {
        idle: rows("/proc/timer_list", &|row| row.starts_with(".idle_sleeptime"))?,
        memory: rows("/proc/vmstat", &|row| MEMORY.iter().any(|name| row.starts_with(name)))?,
        interrupts: rows("/proc/interrupts", &|row| row.starts_with("CAL:"))?,
        engine: rows(ENGINE, &|row| row.starts_with("sent ")).unwrap_or_default(),
    })
}

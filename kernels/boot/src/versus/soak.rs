//! Runs third-party programs on a Linux, and records how each ends and the kernel's complaints during its run.
//!
//! If a program crashes the kernel, the next boot continues after it. The emulator's CPUs are threads of the host, or
//! alternate on one ([`Soak::icount`]). The console shows warnings, so we attribute a splat to the running program.

use super::compare::{command_for, counted};
use super::counted::BootCounters;
use super::protocol::{Event, ExitKind, Program};
use super::splats::{SHOWN, Splats};
use super::{guest, linux};
use crate::arch::Arch;
use crate::ending::end_requested;
use crate::files;
use crate::follow::{self, Line};
use crate::images::Images;
use crate::qemu::{self, Accelerator, Machine};
use anyhow::bail;
use std::path::PathBuf;
use std::time::Duration;

/// The programs to run, and the machine for them.
#[derive(Clone, Debug)]
pub struct Soak {
    /// The image of a Linux kernel for x86-64.
    pub kernel: PathBuf,
    /// An emulator other than QEMU of the system.
    pub emulator: Option<PathBuf>,
    /// The value of Linux's option `quell=`; `None` leaves it unset.
    pub mechanisms: Option<String>,
    /// Words to add to Linux's command line.
    pub words: Vec<String>,
    /// The number of CPUs of the machine.
    pub cpus: u16,
    /// The memory of the machine in megabytes.
    pub memory_mb: u32,
    /// Additional files of the initial file system: path and content. We create their folders.
    pub files: Vec<(String, Vec<u8>)>,
    /// The programs, in their order.
    pub programs: Vec<Program>,
    /// Whether the machine's clock counts instructions and its CPUs take turns. Then a run repeats itself, and the
    /// host's other work can't delay a program between two steps.
    pub icount: bool,
    /// The time that the machine may be silent, or run without using the processor, before it's examined and ended.
    pub limit: Duration,
    /// Whether to show every line of the serial console, on standard error.
    pub verbose: bool,
}

/// The result of a program.
#[derive(Clone, Debug)]
pub struct ProgramResult {
    /// The program's place in the list.
    pub program: usize,
    /// The way in which it ended; `None` if the kernel ended first.
    pub how: Option<ExitKind>,
    /// The time that it took in milliseconds; 0 if the kernel ended first.
    pub milliseconds: u64,
    /// The number of its parts that passed, if reported.
    pub passed: u64,
    /// The names of the parts that failed.
    pub failed: Vec<String>,
    /// The last lines of its output, or of the console if the kernel ended.
    pub last: Vec<String>,
    /// The kernel's complaints during the run. Each entry contains the lines of one complaint.
    pub splats: Vec<Vec<String>>,
}

/// The state of a boot that we follow.
#[derive(Default)]
struct BootFollower {
    ran: Vec<ProgramResult>,
    running: Option<usize>,
    splats: Splats,
    counted: Option<BootCounters>,
    lacking: Vec<String>,
}

impl BootFollower {
    /// Handles the next event. The boot's first program has number `first`.
    fn event(&mut self, event: Event, first: usize) -> Option<&ProgramResult> {
        match event {
            Event::Starts { program } => {
                self.running = Some(first + program);
                None
            }
            Event::Ended { how, milliseconds, passed, failed, last, .. } => {
                let program = self.running.take()?;
                self.ran.push(ProgramResult {
                    program,
                    how: Some(how),
                    milliseconds,
                    passed,
                    failed,
                    last,
                    splats: self.splats.take(),
                });
                self.ran.last()
            }
            Event::Lacking { what, why } => {
                self.lacking.push(format!("{what}: {why}"));
                None
            }
            event => {
                self.counted = BootCounters::of(&event).or(self.counted.take());
                None
            }
        }
    }
}

impl Soak {
    /// Boots, runs every program, and passes each result to `report`. Returns the counts of the last boot, if it
    /// finished and the engine shows them.
    ///
    /// # Errors
    /// If something can't be built or started, if the kernel ends while no program runs, or if a signal ends this.
    pub fn run(
        &self,
        mut report: impl FnMut(&ProgramResult),
    ) -> anyhow::Result<Option<BootCounters>> {
        let emulator = qemu::named(self.emulator.as_deref(), Arch::X86_64)?;
        let kernel = linux::find(Some(&self.kernel), None, false)?;
        let program = guest::build()?;
        let machine = Machine {
            arch: Arch::X86_64,
            cpus: self.cpus,
            memory_mb: self.memory_mb,
            icount: self.icount,
            threads: !self.icount,
            accelerator: Accelerator::Tcg,
        };
        let mut first = 0;
        loop {
            let archive =
                linux::initial_files(&kernel, &program, &[], &self.programs[first..], &self.files)?;
            let file = files::temporary(&linux::cache(), "initial-", ".cpio", &archive)?;
            drop(archive);
            let images = Images { kernel: kernel.image.clone(), program: file.to_path_buf() };
            let mut words = self.words();
            words.extend(self.words.iter().cloned());
            let command = command_for(&emulator, &machine, &images, &words)?;
            let mut following = BootFollower::default();
            let outcome = follow::run(command, self.limit, |line| {
                if self.verbose {
                    match line {
                        Line::Event(event) => remark!("  | {event}"),
                        Line::Text(text) => remark!("  | {text}"),
                    }
                }
                match line {
                    Line::Text(text) => following.splats.line(text),
                    Line::Event(event) => {
                        if let Ok(event) = serde_json::from_value(event.clone())
                            && let Some(ran) = following.event(event, first)
                        {
                            report(ran);
                        }
                    }
                }
            })?;
            if end_requested().is_some() {
                bail!("ended by a signal");
            }
            for what in &following.lacking {
                remark!("Linux lacks {what}");
            }
            if outcome.passed() {
                return Ok(following.counted);
            }
            let why = outcome.failure.as_deref().unwrap_or("it did not end");
            let Some(program) = following.running else {
                let on = counted(self.cpus);
                bail!("Linux on {on}: {why}\n{}", outcome.last_lines.join("\n"));
            };
            let mut last = vec![why.to_string()];
            last.extend(outcome.last_lines);
            report(&ProgramResult {
                program,
                how: None,
                milliseconds: 0,
                passed: 0,
                failed: Vec::new(),
                last,
                splats: following.splats.take(),
            });
            first = program + 1;
            if first == self.programs.len() {
                return Ok(None);
            }
        }
    }

    /// Returns Linux's command line, which turns all its checks on and shows its warnings.
    fn words(&self) -> Vec<String> {
        let mut words: Vec<String> = [
            "console=ttyS0",
            SHOWN,
            "panic=-1",
            "oops=panic",
            // On a busy host, Linux measures the rate of the time-stamp counter wrong, by half and more, and then its
            // time limits are wrong, too.
            "tsc=unstable",
            // On such a host, an interrupt of the timer may also be so late that Linux assumes it was lost and doesn't
            // boot.
            "no_timer_check",
            "mitigations=off",
            // The emulator's CPUs share few CPUs of the host.
            "watchdog_thresh=60",
            "rcupdate.rcu_cpu_stall_timeout=120",
        ]
        .map(String::from)
        .into();
        words.extend(self.mechanisms.iter().map(|on| format!("quell={on}")));
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_splat_belongs_to_the_program_that_runs() {
        let mut following = BootFollower::default();
        following.event(Event::Starts { program: 1 }, 3);
        following.splats.line("BUG: Bad page state in process x  pfn:00001");
        let ended = |program| Event::Ended {
            program,
            how: ExitKind::Code(0),
            milliseconds: 5,
            passed: 0,
            failed: Vec::new(),
            last: Vec::new(),
        };
        let ran = following.event(ended(1), 3).unwrap();
        assert_eq!((ran.program, ran.splats.len()), (4, 1));
        following.event(Event::Starts { program: 2 }, 3);
        assert!(following.event(ended(2), 3).unwrap().splats.is_empty());
    }
}

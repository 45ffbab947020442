//! Runs the comparison: one or several boots of Linux for all rows on a number of CPUs, and one of quell's kernel for
//! each row.
//!
//! A count that depends on the order of CPUs changes if everything begins a little later. Boots repeat exactly, which
//! would hide that. So if there are several boots, we begin the jobs of each at another point between two timer ticks.
//! A row then shows the median, the minimum and the maximum.

use super::plan::{self, Case, Scale};
use super::protocol::Job;
use super::report::{Outcome, Report, Side};
use super::{counters, linux, ours, protocol};
use crate::arch::Arch;
use crate::ending::end_requested;
use crate::images::Images;
use crate::qemu::{self, Machine};
use crate::usage::UsageError;
use crate::{files, follow, toolchain};
use anyhow::bail;
use indicatif::{ProgressBar, ProgressStyle};
use quell::Policy;
use quell_workloads::Workload;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The memory of either machine, in megabytes.
pub(crate) const MEMORY_MB: u32 = 768;

/// The options of a comparison.
#[derive(Clone, Debug)]
pub struct Options {
    /// A Linux kernel image for x86-64; by default the one that an earlier run fetched.
    pub kernel: Option<PathBuf>,
    /// The directory of the kernel's modules; by default, the one in which its package installed them.
    pub modules: Option<PathBuf>,
    /// Whether to fetch Debian's kernel if none is given and none was fetched before.
    pub fetch: bool,
    /// The image of a patched Linux, to compare with.
    pub patched: Option<PathBuf>,
    /// The image of a Linux with quell's engine in it, to compare with.
    pub on_quell: Option<PathBuf>,
    /// The mechanisms that are on in that Linux, in the form of Linux's option `quell=`.
    pub mechanisms: String,
    /// The workloads; by default all built-in ones.
    pub workloads: Vec<Workload>,
    /// The numbers of CPUs.
    pub cpus: Vec<u16>,
    /// Whether we boot quell's own kernel, too.
    pub own: bool,
    /// The policy of quell's engine in its own kernel.
    pub policy: Policy,
    /// The amount of work.
    pub scale: Scale,
    /// Words to add to Linux's command line.
    pub linux_options: Vec<String>,
    /// The number of boots of each Linux, each at another point between two ticks of its timer.
    pub boots: u16,
    /// The time that one boot may take before it's examined and ended.
    pub limit: Duration,
    /// Whether to show every line of the serial consoles, on standard error.
    pub verbose: bool,
}

/// A planned comparison, for which everything but the programs was found.
pub struct Comparison {
    options: Options,
    runs: Vec<(Machine, Vec<Case>)>,
    without: Vec<String>,
    emulator: PathBuf,
    kernel: linux::Kernel,
    patched: Option<linux::Kernel>,
    on_quell: Option<linux::Kernel>,
}

impl Comparison {
    /// Plans the rows, and finds the emulator and the Linux kernel.
    ///
    /// # Errors
    /// If a requirement is missing, a workload doesn't exist, or no workload has rows on these numbers of CPUs
    /// ([`crate::UsageError`]).
    pub fn plan(options: Options) -> anyhow::Result<Self> {
        let mut cpus = options.cpus.clone();
        cpus.sort_unstable();
        cpus.dedup();
        let (mut runs, mut without) = (Vec::new(), Vec::new());
        for cpus in cpus {
            let rows = plan::rows(&options.workloads, cpus, options.scale)?;
            without.extend(rows.without);
            if !rows.cases.is_empty() {
                runs.push((Machine::x86_64(cpus, MEMORY_MB, true), rows.cases));
            }
        }
        if runs.is_empty() {
            return Err(UsageError(format!("nothing to compare: {}", without.join("; "))).into());
        }
        let emulator = qemu::find(Arch::X86_64)?;
        let kernel =
            linux::find(options.kernel.as_deref(), options.modules.as_deref(), options.fetch)?;
        if kernel.modules.is_none() {
            remark!(
                "no modules of Linux {} beside {}: swap and files work only if they are built in; \
                 name the modules' directory with --modules",
                kernel.release,
                kernel.image.display()
            );
        }
        let other = |image: &Option<PathBuf>| {
            let image = image.as_deref();
            let found = image.map(|image| linux::find(Some(image), None, false));
            found.transpose()
        };
        let (patched, on_quell) = (other(&options.patched)?, other(&options.on_quell)?);
        Ok(Comparison { options, runs, without, emulator, kernel, patched, on_quell })
    }

    /// Returns the tools of the comparison, in one line.
    ///
    /// # Errors
    /// If no toolchain can build quell's kernel.
    pub fn found(&self) -> anyhow::Result<String> {
        let toolchain = toolchain::find(Arch::X86_64)?;
        let (emulator, release) = (self.emulator.display(), &self.kernel.release);
        Ok(format!("{emulator}, Linux {release} and {toolchain}"))
    }

    /// Builds everything, and returns the command lines in order without running them.
    ///
    /// # Errors
    /// If something can't be built or written.
    pub fn commands(&self) -> anyhow::Result<Vec<String>> {
        let program = linux::guest()?;
        let mut shown = Vec::new();
        for (machine, cases) in &self.runs {
            for linux in self.linuxes(machine).into_iter().flatten() {
                for boot in 0..self.options.boots {
                    let jobs = plan::jobs(&linux.turned(cases, boot));
                    let name = format!("initial-{}-{boot}.cpio", machine.cpus);
                    // The file stays, for a person who runs the command line later.
                    let place = linux::cache().join(name);
                    files::replace(&place, &linux.archive(&program, &jobs)?)?;
                    shown.push(linux.command(&place, boot)?.shown());
                }
            }
            if !self.options.own {
                continue;
            }
            let images = ours::images()?;
            for case in cases {
                let words = ours::words(case, self.options.policy);
                let images = ours::with_file(&images, case)?;
                shown.push(command_for(&self.emulator, machine, &images, &words)?.shown());
            }
        }
        Ok(shown)
    }

    /// Boots both kernels and compares them. Shows progress on standard error.
    ///
    /// # Errors
    /// If something can't be built, started or written. A workload that fails on one side isn't an error: its row
    /// contains the reason.
    pub fn run(&self) -> anyhow::Result<Report> {
        let (options, emulator) = (&self.options, &self.emulator);
        let program = linux::guest()?;
        let images = options.own.then(ours::images);
        if let Some(Err(error)) = &images {
            remark!("SKIPPED: quell's own side: {error:#}");
        }
        let version = qemu::version(emulator)?;
        let mut report = Report::new(&self.kernel.release, &version, options.policy);
        report.boots = options.boots;
        report.without_rows.clone_from(&self.without);
        let patched = self.patched.as_ref();
        report.linux_patched = patched.map(|kernel| kernel.release.clone());
        report.linux_on_quell = self
            .on_quell
            .as_ref()
            .map(|kernel| format!("{}, quell={}", kernel.release, options.mechanisms));
        for (machine, cases) in &self.runs {
            // The kernels alternate, so that changes over time affect both alike.
            let linuxes = self.linuxes(machine);
            let mut boots = [const { Vec::new() }; 3];
            for boot in 0..options.boots {
                for (linux, outcomes) in linuxes.iter().zip(&mut boots) {
                    if let Some(linux) = linux {
                        outcomes.push(linux.boot(&program, cases, boot)?);
                    }
                }
            }
            let quell = match &images {
                None => Vec::new(),
                Some(Ok(images)) => run_ours(options, emulator, machine, images, cases)?,
                Some(Err(error)) => vec![Err(format!("{error:#}")); cases.len()],
            };
            let [linux, patched, on_quell] = boots.map(together);
            let sides = [linux, patched, on_quell, quell];
            for (index, case) in cases.iter().enumerate() {
                // A side that nobody requested has no outcomes.
                let outcomes = sides.each_ref().map(|side| side.get(index).cloned());
                report.add(case, machine.cpus, outcomes);
            }
        }
        Ok(report)
    }

    /// Returns the kernels to boot on a machine: stock, and perhaps patched and with the engine.
    fn linuxes<'c>(&'c self, machine: &'c Machine) -> [Option<Linux<'c>>; 3] {
        let mechanisms = Some(self.options.mechanisms.as_str());
        let kernels = [
            (Some(&self.kernel), None),
            (self.patched.as_ref(), None),
            (self.on_quell.as_ref(), mechanisms),
        ];
        let (options, emulator) = (&self.options, &*self.emulator);
        kernels.map(|(kernel, engine)| {
            Some(Linux { options, emulator, machine, kernel: kernel?, engine })
        })
    }
}

/// A Linux that we boot once or several times.
struct Linux<'c> {
    options: &'c Options,
    emulator: &'c Path,
    machine: &'c Machine,
    kernel: &'c linux::Kernel,
    /// The mechanisms of quell's engine in it; `None` if it has no engine.
    engine: Option<&'c str>,
}

impl Linux<'_> {
    /// Returns the initial file system with these jobs.
    fn archive(&self, program: &Path, jobs: &[Job]) -> anyhow::Result<Vec<u8>> {
        linux::initial_files(self.kernel, program, jobs, &[], &BTreeMap::new())
    }

    /// Returns the command line of a boot. The first boot has no delay between ticks; each later one has a longer one.
    fn command(&self, initial: &Path, boot: u16) -> anyhow::Result<qemu::Command> {
        let mut words: Vec<String> = linux::WORDS.map(String::from).into();
        if boot > 0 {
            let late = TICK_US * u32::from(boot) / u32::from(self.options.boots);
            words.push(format!("{}={late}", protocol::LATE));
        }
        words.extend(self.engine.map(|mechanisms| format!("quell={mechanisms}")));
        words.extend(self.options.linux_options.iter().cloned());
        let images = Images { kernel: self.kernel.image.clone(), program: initial.to_owned() };
        command_for(self.emulator, self.machine, &images, &words)
    }

    /// Returns the rotation of a boot's cases. Each boot begins with another case, so that a row doesn't depend on the
    /// programs before it.
    fn turn(&self, cases: &[Case], boot: u16) -> usize {
        cases.len() * usize::from(boot) / usize::from(self.options.boots)
    }

    /// Returns the cases in the order of a boot.
    fn turned(&self, cases: &[Case], boot: u16) -> Vec<Case> {
        let mut turned = cases.to_vec();
        turned.rotate_left(self.turn(cases, boot));
        turned
    }

    /// Boots for the `boot`th time. Returns the outcomes of the cases in their original order.
    fn boot(&self, program: &Path, cases: &[Case], boot: u16) -> anyhow::Result<Vec<Outcome>> {
        let turned = self.turned(cases, boot);
        let jobs = plan::jobs(&turned);
        // Other comparisons may run at the same time.
        let archive = self.archive(program, &jobs)?;
        let file = files::temporary(&linux::cache(), "initial-", ".cpio", &archive)?;
        let command = self.command(&file, boot)?;
        let name = match self.engine {
            Some(_) => "Linux with the engine",
            None => "Linux",
        };
        let which = match self.options.boots {
            1 => String::new(),
            boots => format!(", boot {} of {boots}", boot + 1),
        };
        let bar =
            progress(format!("{name} on {}{which}", counted(self.machine.cpus)), jobs.len() as u64);
        let outcome = follow(self.options, command, &bar, |event| {
            matches!(event["event"].as_str(), Some("done" | "failed"))
        })?;
        let events: Vec<protocol::Event> = outcome
            .events
            .iter()
            .filter_map(|event| serde_json::from_value(event.clone()).ok())
            .collect();
        for event in &events {
            if let protocol::Event::Lacking { what, why } = event {
                remark!("Linux lacks {what}: {why}");
            }
        }
        let mut outcomes = counters::outcomes(&turned, &events, outcome.failure.as_deref());
        outcomes.rotate_right(self.turn(cases, boot));
        Ok(outcomes)
    }
}

/// Returns the emulator's command line for a kernel: memory in two nodes, all CPUs on the first.
pub(crate) fn command_for(
    emulator: &Path,
    machine: &Machine,
    images: &Images,
    words: &[String],
) -> anyhow::Result<qemu::Command> {
    let mut command = machine.command(emulator, &images.kernel, Some(&images.program), words)?;
    for node in 0..2 {
        let half = machine.memory_mb / 2;
        let cpus = match (node, machine.cpus) {
            (0, 1) => ",cpus=0".to_string(),
            (0, all) => format!(",cpus=0-{}", all - 1),
            _ => String::new(),
        };
        command.arguments.extend(
            [
                "-object".to_string(),
                format!("memory-backend-ram,id=node{node},size={half}M"),
                "-numa".to_string(),
                format!("node,nodeid={node},memdev=node{node}{cpus}"),
            ]
            .map(Into::into),
        );
    }
    Ok(command)
}

/// Combines the outcomes of each case in several boots.
fn together(boots: Vec<Vec<Outcome>>) -> Vec<Outcome> {
    let cases = boots.first().map_or(0, Vec::len);
    let mut boots: Vec<_> = boots.into_iter().map(Vec::into_iter).collect();
    let next = |_| -> Outcome {
        let sides: Result<Vec<Side>, String> = boots
            .iter_mut()
            .map(|outcomes| outcomes.next().unwrap_or_else(|| Err("no outcome".into())))
            .collect();
        Side::median(&sides?).ok_or_else(|| "no boot".into())
    };
    (0..cases).map(next).collect()
}

/// The time in microseconds between two ticks of Linux's timer, which ticks 250 times a second in Debian's
/// configuration and in ours.
const TICK_US: u32 = 4000;

/// Boots quell's kernel once for each case.
fn run_ours(
    options: &Options,
    emulator: &Path,
    machine: &Machine,
    images: &Images,
    cases: &[Case],
) -> anyhow::Result<Vec<Outcome>> {
    let name = format!("quell on {}", counted(machine.cpus));
    let bar = progress(name, cases.len() as u64);
    let mut outcomes = Vec::new();
    for case in cases {
        let words = ours::words(case, options.policy);
        let images = ours::with_file(images, case)?;
        let command = command_for(emulator, machine, &images, &words)?;
        let outcome = follow(options, command, &bar, |event| event["event"] == "exit")?;
        outcomes.push(ours::outcome(case, &outcome));
    }
    Ok(outcomes)
}

pub(crate) fn counted(cpus: u16) -> String {
    match cpus {
        1 => "1 CPU".to_string(),
        _ => format!("{cpus} CPUs"),
    }
}

/// Creates a progress line on terminals.
fn progress(what: String, steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix} [{bar:20}] {pos}/{len} {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(steps).with_style(style).with_prefix(what);
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// Follows a boot, and advances the bar at each event that `step` accepts.
fn follow(
    options: &Options,
    command: qemu::Command,
    bar: &ProgressBar,
    step: impl Fn(&serde_json::Value) -> bool,
) -> anyhow::Result<follow::Outcome> {
    let outcome = follow::run(command, options.limit, |line| {
        if options.verbose {
            bar.suspend(|| remark!("  | {line}"));
        }
        if let follow::Line::Event(event) = line
            && step(event)
        {
            bar.inc(1);
        }
    })?;
    if let (Some(why), false) = (&outcome.failure, outcome.code == Some(1)) {
        // Reading the prefix inside the closure would deadlock.
        let name = bar.prefix();
        bar.suspend(|| {
            remark!("{name}: {why}");
            for line in &outcome.last_lines {
                remark!("  | {line}");
            }
        });
    }
    if end_requested().is_some() {
        bail!("ended by a signal");
    }
    if outcome.events.is_empty() {
        bail!("the emulator printed nothing; try --verbose");
    }
    Ok(outcome)
}

//! Reads and performs workloads: files that describe the work of each CPU.
//!
//! A workload file contains parameters, a program for each CPU, and the figure to measure. Programs consist of the
//! operations of [`User`]: loads, stores, system calls, a clock, and a few control words. The same file runs as
//! coroutines on a machine in software, in the user mode of our kernel, and as a Linux program. So it's compiled to a
//! flat program of numbers that allocates nothing while it runs and starts no thread. `docs/workloads.md` describes the
//! format.
//!
//! Every CPU of a run calls [`Workload::run`], all in one process. The first CPU prepares the memory, all CPUs meet at
//! a barrier, and the *measured window* opens. At the end, the window's counts are in control words, and
//! [`Workload::measure`] computes the workload's one figure from them.
//!
//! # Scale
//!
//! The built-in workloads have the shape of published ones, but less memory and fewer rounds. Each parameter documents
//! its reduction: one tenth of the published memory, for example. Numbers of CPUs, threads and processes aren't
//! reduced.
#![no_std]
// A new word or operation must not silently do nothing.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

extern crate alloc;

mod builtin;
#[cfg(feature = "conformance")]
pub mod conformance;
mod expression;
pub mod files;
pub mod numbers;
#[cfg(feature = "pages")]
pub mod pages;
pub mod parameter;
mod perform;
mod program;
mod read;
mod script;
mod team;

pub use expression::EvalError;
pub use files::{FileError, Mistake};
pub use parameter::{BadParameter, Parameter, Unit};
pub use program::{Memory, Window};
pub use read::{STATEMENTS, StatementForm};
pub use script::StatementError;
pub use team::{Failure, WORDS};

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use expression::{EvalError as Nothing, Expression, Name, Values};
use quell::Mechanism;
use quell_vm::User;
use script::{MemoryNeed, MessagePart, PARAMETERS, Script};
use team::{Team, word};

/// Ends the run of all CPUs early, for a machine that detects a deadlock.
///
/// CPUs that wait, or reach a barrier, return [`Failure::Elsewhere`]. A CPU may call it in the middle of
/// [`Workload::run`].
pub fn abandon<U: User + ?Sized>(user: &U) {
    Team::new(user).fail();
}

/// The figure that a workload measures.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measure {
    /// The figure's name.
    pub metric: &'static str,
    /// Whether a higher figure is better.
    pub more_is_better: bool,
    /// The figure. It's not finite if the run ended too early.
    pub value: f64,
}

/// A workload file with values of its parameters.
///
/// Copying is cheap, because the file's content is kept until the process ends.
#[derive(Clone, Copy)]
pub struct Workload {
    script: &'static Script,
    values: [u64; PARAMETERS],
}

/// Compares the file and the values.
impl PartialEq for Workload {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self.script, other.script) && self.values == other.values
    }
}

impl Eq for Workload {}

/// Distinguishes unequal workloads if each path names one file.
impl fmt::Debug for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.script.path)?;
        for (parameter, value) in self.parameters().iter().zip(self.values) {
            write!(f, " {}={}", parameter.name, parameter.unit.show(value))?;
        }
        Ok(())
    }
}

/// The most memory of a node: 16 TB.
const MOST_MEMORY: u64 = 1 << 44;
/// The most memory nodes of one kind.
const MOST_NODES: u64 = 8;
/// The most CPUs of a run.
const MOST_CPUS: u64 = 1024;

/// The values known before a run: parameters and the number of CPUs.
struct SetupValues<'w> {
    values: &'w [u64; PARAMETERS],
    cpus: u64,
    done: u64,
}

impl Values for SetupValues<'_> {
    fn value(&self, name: Name) -> u64 {
        match name {
            Name::Parameter(index) => self.values[usize::from(index)],
            Name::Cpus => self.cpus,
            Name::Shared(index) if usize::from(index) == word::DONE => self.done,
            // The reader refuses these outside of programs.
            Name::Shared(_)
            | Name::Local(_)
            | Name::Cpu
            | Name::Now
            | Name::Stopped
            | Name::Offset
            | Name::Nanoseconds => 0,
        }
    }

    fn random(&self, _bound: u64) -> u64 {
        0
    }
}

impl Workload {
    /// Reads a workload from the text of a file.
    ///
    /// `path` appears in messages and distinguishes workloads. The file's content is kept until the process ends.
    ///
    /// # Errors
    /// If the text is not TOML, or contains a wrong key, name, statement or expression. The error contains all
    /// mistakes, with lines.
    pub fn parse(path: &str, text: &str) -> Result<Workload, FileError> {
        Ok(Workload::of(Box::leak(Box::new(read::read(path, text)?))))
    }

    /// Creates a workload with its parameters' defaults.
    fn of(script: &'static Script) -> Workload {
        let mut values = [0; PARAMETERS];
        for (value, parameter) in values.iter_mut().zip(script.parameters) {
            *value = parameter.default;
        }
        Workload { script, values }
    }

    /// Returns every built-in workload with its default parameters.
    pub fn all() -> Vec<Workload> {
        builtin::FILES.iter().filter_map(|file| file.script().map(Workload::of)).collect()
    }

    /// Returns the built-in workload with this name, with its default parameters.
    pub fn from_name(name: &str) -> Option<Workload> {
        let file = builtin::FILES.iter().find(|file| file.name == name)?;
        file.script().map(Workload::of)
    }

    /// Returns the text of the workload's file.
    pub fn text(&self) -> &'static str {
        self.script.text
    }

    /// Returns whether this is a built-in workload, which [`Workload::from_name`] returns.
    pub fn is_built_in(&self) -> bool {
        let file = builtin::FILES.iter().find(|file| file.name == self.name());
        file.is_some_and(|file| file.text == self.text())
    }

    /// Returns the workload's name.
    pub fn name(&self) -> &'static str {
        self.script.name
    }

    /// Returns the path that [`Workload::parse`] got, or the name of a built-in workload.
    pub fn path(&self) -> &'static str {
        self.script.path
    }

    /// Returns the workload's purpose, in a sentence.
    pub fn title(&self) -> &'static str {
        self.script.title
    }

    /// Returns the mechanism that the workload is meant to show.
    pub fn mechanism(&self) -> Mechanism {
        self.script.mechanism
    }

    /// Returns the name of the workload's figure.
    pub fn metric(&self) -> &'static str {
        self.script.figure.metric
    }

    /// Returns whether a higher figure is better.
    pub fn more_is_better(&self) -> bool {
        self.script.figure.more_is_better
    }

    /// Returns the workload's parameters.
    pub fn parameters(&self) -> &'static [Parameter] {
        self.script.parameters
    }

    /// Returns the value of the parameter with this name, if there is one.
    pub fn get(&self, name: &str) -> Option<u64> {
        let index = self.parameters().iter().position(|parameter| parameter.name == name)?;
        Some(self.values[index])
    }

    fn before(&self, cpus: u64, done: u64) -> SetupValues<'_> {
        SetupValues { values: &self.values, cpus, done }
    }

    /// Returns the workload's default number of CPUs.
    ///
    /// It's 1 to 1024, even if [`Workload::check`] refuses the workload.
    pub fn cpus(&self) -> usize {
        let cpus = self.script.cpus.evaluate(&self.before(1, 0)).unwrap_or(1);
        cpus.clamp(1, MOST_CPUS) as usize
    }

    /// Returns the number of processes on machines where a thread can't enter another process.
    ///
    /// On Linux, for example, the CPUs are divided evenly among these processes.
    pub fn processes(&self) -> usize {
        let processes = self.script.processes.evaluate(&self.before(1, 0));
        processes.unwrap_or(1).clamp(1, MOST_CPUS) as usize
    }

    /// Checks that the workload can run on this many CPUs.
    ///
    /// # Errors
    /// The reason and the remedy: a sentence that follows the workload's name.
    pub fn check(&self, cpus: usize) -> Result<(), String> {
        let before = self.before(cpus as u64, 0);
        for refusal in &self.script.refusals {
            match refusal.when.evaluate(&before) {
                Ok(0) => {}
                Ok(_) => return Err(self.say(&refusal.why, &before)),
                Err(why) => return Err(format!("whether it can run on {cpus} CPUs: {why}")),
            }
        }
        for (what, number) in [
            ("the number of CPUs", &self.script.cpus),
            ("the number of processes", &self.script.processes),
        ] {
            match number.evaluate(&before) {
                Ok(1..=MOST_CPUS) => {}
                Ok(other) => return Err(format!("{what} is {other}, not 1 to {MOST_CPUS}")),
                Err(why) => return Err(format!("{what}: {why}")),
            }
        }
        match self.try_memory(cpus) {
            Err(why) => Err(format!("the memory that it needs: {why}")),
            Ok(memory) if memory.node.max(memory.slow.unwrap_or(0)) > MOST_MEMORY => {
                Err("would need more than 16 TB of memory in a node".into())
            }
            Ok(memory) if !(1..=MOST_NODES).contains(&memory.nodes) => {
                Err(format!("would need {} memory nodes, not 1 to {MOST_NODES}", memory.nodes))
            }
            Ok(memory) if memory.node < 1 << 20 => {
                Err("would have less than 1 MB of memory in a node".into())
            }
            Ok(_) => Ok(()),
        }
    }

    fn say(&self, pieces: &[MessagePart], before: &SetupValues<'_>) -> String {
        let mut text = String::new();
        for piece in pieces {
            match piece {
                MessagePart::Text(piece) => text.push_str(piece),
                MessagePart::Parameter(index) => {
                    let index = usize::from(*index);
                    text.push_str(&self.parameters()[index].unit.show(self.values[index]));
                }
                MessagePart::Value(value) => match value.evaluate(before) {
                    Ok(value) => text.push_str(&value.to_string()),
                    Err(why) => text.push_str(&format!("({why})")),
                },
            }
        }
        text
    }

    /// Returns the workload adjusted to this many CPUs.
    ///
    /// If [`Workload::check`] refuses the number of CPUs, it changes those parameters that the file computes from the
    /// number.
    ///
    /// # Errors
    /// The reason why the workload still can't run: a sentence that follows its name.
    pub fn fitted(&self, cpus: usize) -> Result<Workload, String> {
        let mut fitted = *self;
        let Err(why) = self.check(cpus) else {
            return Ok(fitted);
        };
        for (index, value) in &self.script.fits {
            let (index, parameter) = (usize::from(*index), &self.parameters()[usize::from(*index)]);
            match value.evaluate(&fitted.before(cpus as u64, 0)) {
                Ok(value) if (parameter.least..=parameter.most).contains(&value) => {
                    fitted.values[index] = value;
                }
                _ => return Err(why),
            }
        }
        fitted.check(cpus).map(|()| fitted)
    }

    /// Returns the memory that the workload needs on this many CPUs.
    ///
    /// The result is meaningless if [`Workload::check`] refuses them.
    pub fn memory(&self, cpus: usize) -> Memory {
        self.try_memory(cpus).unwrap_or(Memory::roomy(0, 1))
    }

    fn try_memory(&self, cpus: usize) -> Result<Memory, Nothing> {
        let before = self.before(cpus as u64, 0);
        let of = |expression: &Expression| expression.evaluate(&before);
        let together = self.script.together.as_ref().map(of).transpose()?;
        Ok(match &self.script.memory {
            MemoryNeed::Touched { bytes, nodes } => {
                let bytes = of(bytes)?;
                if bytes > MOST_MEMORY {
                    return Err(Nothing::Overflow);
                }
                Memory { nodes: of(nodes)?, together, ..Memory::roomy(bytes, cpus as u64) }
            }
            MemoryNeed::Exact { node, slow, nodes, ahead, idle_reclaims } => {
                let slow = Some(of(slow)?).filter(|&slow| slow > 0);
                Memory {
                    node: of(node)?,
                    slow,
                    nodes: of(nodes)?,
                    demotion: slow.is_some(),
                    ahead: ahead.as_ref().map(of).transpose()?,
                    idle_reclaims: of(idle_reclaims)? != 0,
                    together,
                }
            }
        })
    }

    /// Returns the memory that the workload accesses: bytes per ordinary node, their number, slow bytes.
    ///
    /// Unlike [`Workload::memory`], it leaves no room for page tables and caches.
    ///
    /// # Errors
    /// If an expression has no value.
    pub fn touched(&self, cpus: usize) -> Result<[u64; 3], Nothing> {
        let before = self.before(cpus as u64, 0);
        let (bytes, nodes, slow) = match &self.script.memory {
            MemoryNeed::Touched { bytes, nodes } => (bytes, nodes, None),
            MemoryNeed::Exact { node, nodes, slow, .. } => (node, nodes, Some(slow)),
        };
        let slow = slow.map_or(Ok(0), |slow| slow.evaluate(&before))?;
        Ok([bytes.evaluate(&before)?, nodes.evaluate(&before)?, slow])
    }

    /// Performs one CPU's part of a run.
    ///
    /// Every CPU of the run calls this, all in the same process. `seed` determines the random choices.
    ///
    /// # Errors
    /// The failure, with the line of its statement. The other CPUs then return [`Failure::Elsewhere`] or end early.
    pub fn run<U: User + ?Sized>(&self, user: &U, seed: u64) -> Result<(), Failure> {
        let team = Team::new(user);
        let result = perform::perform(self.script, &self.values, &team, seed);
        if result.is_err() {
            team.fail();
        }
        team.ends();
        result
    }

    /// Computes the figure of a finished run from the run's control words.
    pub fn measure(&self, words: &[u64; WORDS], cpus: usize) -> Measure {
        let figure = &self.script.figure;
        let value = Window::of(words).map_or(f64::NAN, |window| {
            figure.value.real(&|name| match name {
                Name::Parameter(index) => self.values[usize::from(index)] as f64,
                Name::Nanoseconds => window.nanoseconds as f64,
                Name::Cpus => cpus as f64,
                Name::Shared(index) if usize::from(index) == word::DONE => window.done as f64,
                // The reader refuses these in a figure.
                Name::Shared(_)
                | Name::Local(_)
                | Name::Cpu
                | Name::Now
                | Name::Stopped
                | Name::Offset => f64::NAN,
            })
        });
        Measure { metric: figure.metric, more_is_better: figure.more_is_better, value }
    }

    /// Returns the name of one operation, the unit in which the workload counts its work.
    pub fn operation(&self) -> &'static str {
        self.script.operation.name
    }

    /// Returns the number of operations in an amount of work, [`Window::done`].
    ///
    /// It's 0 if the file's expression has no value.
    pub fn operations(&self, done: u64) -> u64 {
        let count = &self.script.operation.count;
        count.evaluate(&self.before(1, done)).unwrap_or(0)
    }

    /// Returns whether each operation causes a page fault.
    pub fn faults(&self) -> bool {
        self.script.operation.faults
    }

    /// Returns whether the first CPU does all work, so that its sleep doesn't count.
    pub fn first_cpu_works(&self) -> bool {
        self.script.operation.first_cpu_works
    }

    /// Sets a parameter from text like `pages=512`.
    ///
    /// # Errors
    /// If the workload has no such parameter, or the parameter refuses the value. Then nothing is changed.
    pub fn set(&mut self, pair: &str) -> Result<(), BadParameter> {
        let (name, value) =
            pair.split_once('=').ok_or_else(|| BadParameter::NotAPair(pair.to_string()))?;
        let (name, value) = (name.trim(), value.trim());
        let table = self.parameters();
        let Some(index) = table.iter().position(|parameter| parameter.name == name) else {
            let known: Vec<_> = table.iter().map(|parameter| parameter.name).collect();
            return Err(BadParameter::Unknown {
                workload: self.name(),
                name: name.to_string(),
                hint: files::hint(name, known.iter().copied()),
                known: match &known[..] {
                    [] => "none".into(),
                    known => known.join(", "),
                },
            });
        };
        self.values[index] = table[index].read(value)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;

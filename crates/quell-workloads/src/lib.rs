//! The workloads of the published experiments, written once.
//!
//! A workload is a program for several CPUs against [`User`] alone: loads, stores, system calls, a
//! clock and a few control words. The same source runs as coroutines on the machine in software
//! and in the user mode of a kernel that boots, so nothing here allocates while it runs, starts a
//! thread or knows what is below it.
//!
//! Every CPU of a run calls [`Workload::run`], all of them in one process. The first CPU prepares,
//! all CPUs meet, the measured window opens, and what was done in it ends up in control words from
//! which [`Workload::measure`] computes the workload's one figure.
//!
//! | workload | what it does | published for |
//! | --- | --- | --- |
//! | [`Dontneed`] | drops and touches one page while other CPUs spin | S4 |
//! | [`Fileio`] | random writes to mapped files, synced regularly | S4 |
//! | [`Swap`] | touches memory and pages it out, over and over | S0 |
//! | [`Migrate`] | moves memory between two nodes | S0 |
//! | [`Demand`] | touches fresh memory page by page | S1 |
//! | [`Pingpong`] | switches between processes on one CPU | S2 |
//! | [`Readers`] | several processes stream files that do not fit into memory | S3 |
//!
//! # What is not claimed
//!
//! Workloads are the published ones in shape, not in size: memory and rounds are scaled down, and
//! each parameter says by how much its default is. CPUs, threads and processes are not scaled.
#![no_std]

extern crate alloc;

mod demand;
mod dontneed;
mod fileio;
mod migrate;
pub mod parameter;
mod pingpong;
mod program;
mod readers;
mod swap;
mod team;

pub use demand::Demand;
pub use dontneed::Dontneed;
pub use fileio::Fileio;
pub use migrate::Migrate;
pub use parameter::{BadParameter, Parameter, Unit};
pub use pingpong::Pingpong;
pub use program::{Memory, Window};
pub use readers::Readers;
pub use swap::Swap;
pub use team::{Failure, WORDS};

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use parameter::Table;
use program::Program;
use quell::Mechanism;
use quell_vm::User;
use team::Team;

/// The figure that a workload is about.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measure {
    /// What it says.
    pub metric: &'static str,
    /// Whether more is better.
    pub more_is_better: bool,
    /// The figure; not finite if the run did not get that far.
    pub value: f64,
}

macro_rules! workloads {
    ($($name:ident,)*) => {
        /// A workload with its parameters.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Workload { $(#[doc = concat!("See [`", stringify!($name), "`].")] $name($name),)* }

        impl Workload {
            /// Every workload with its default parameters.
            pub fn all() -> Vec<Workload> {
                alloc::vec![$(Workload::$name($name::default()),)*]
            }

            /// Its name.
            pub fn name(&self) -> &'static str {
                match self { $(Workload::$name(_) => $name::NAME,)* }
            }

            /// What it does, in a sentence.
            pub fn title(&self) -> &'static str {
                match self { $(Workload::$name(_) => $name::TITLE,)* }
            }

            /// The mechanism that it was published for.
            pub fn mechanism(&self) -> Mechanism {
                match self { $(Workload::$name(_) => $name::MECHANISM,)* }
            }

            /// Whether more of its figure is better.
            pub fn more_is_better(&self) -> bool {
                match self { $(Workload::$name(_) => $name::MORE_IS_BETTER,)* }
            }

            /// What can be set.
            pub fn parameters(&self) -> &'static [Parameter] {
                match self { $(Workload::$name(_) => $name::PARAMETERS,)* }
            }

            /// The value of a parameter, if there is one of that name.
            pub fn get(&self, name: &str) -> Option<u64> {
                let mut copy = *self;
                copy.word(name).copied()
            }

            fn word(&mut self, name: &str) -> Option<&mut u64> {
                match self { $(Workload::$name(program) => program.word(name),)* }
            }

            /// How many CPUs it runs on unless told otherwise.
            pub fn cpus(&self) -> usize {
                match self { $(Workload::$name(program) => program.cpus(),)* }
            }

            /// Whether it can run on that many CPUs.
            ///
            /// # Errors
            /// Why not, and what to change: a sentence that begins after the workload's name.
            pub fn check(&self, cpus: usize) -> Result<(), String> {
                match self { $(Workload::$name(program) => program.check(cpus),)* }
            }

            /// The memory it needs on that many CPUs.
            pub fn memory(&self, cpus: usize) -> Memory {
                match self { $(Workload::$name(program) => program.memory(cpus as u64),)* }
            }

            /// What one CPU does. Every CPU of the run calls this, all in the same process.
            ///
            /// `seed` decides what is random.
            ///
            /// # Errors
            /// What could not be done. The other CPUs then return [`Failure::Elsewhere`] or end
            /// early.
            pub fn run<U: User + ?Sized>(&self, user: &U, seed: u64) -> Result<(), Failure> {
                let team = Team::new(user);
                let result = match self { $(Workload::$name(program) => program.body(&team, seed),)* };
                if result.is_err() {
                    team.fail();
                }
                result
            }

            /// The figure of a finished run, from its control words.
            pub fn measure(&self, words: &[u64; WORDS]) -> Measure {
                let window = Window::of(words);
                match self {
                    $(Workload::$name(program) => Measure {
                        metric: $name::METRIC,
                        more_is_better: self.more_is_better(),
                        value: window.map_or(f64::NAN, |window| program.value(window)),
                    },)*
                }
            }
        }
    };
}

workloads! { Dontneed, Fileio, Swap, Migrate, Demand, Pingpong, Readers, }

impl Workload {
    /// The workload of that name, with its default parameters.
    pub fn from_name(name: &str) -> Option<Workload> {
        Self::all()
            .into_iter()
            .find(|workload| workload.name() == name)
    }

    /// Sets a parameter from text like `pages=512`.
    ///
    /// # Errors
    /// If the workload has no such parameter or the value is not one it takes; nothing is changed.
    pub fn set(&mut self, pair: &str) -> Result<(), BadParameter> {
        let (name, value) = pair
            .split_once('=')
            .ok_or_else(|| BadParameter::NotAPair(pair.to_string()))?;
        let (name, value) = (name.trim(), value.trim());
        let workload = self.name();
        let table = self.parameters();
        let Some(parameter) = table.iter().find(|parameter| parameter.name == name) else {
            let mut known = String::new();
            for parameter in table {
                if !known.is_empty() {
                    known.push_str(", ");
                }
                known.push_str(parameter.name);
            }
            return Err(BadParameter::Unknown {
                workload,
                name: name.to_string(),
                known,
            });
        };
        let value = parameter.read(value)?;
        if let Some(word) = self.word(name) {
            *word = value;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

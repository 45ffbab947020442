//! One CPU goes round several processes, each of which may read some pages in its turn.
//!
//! What an `eventfd` ping-pong does between two processes on one CPU. Without tags every switch
//! drops what the other process will need again.

use crate::parameter::parameters;
use crate::team::{Failure, Team, word};
use crate::{Memory, Program, Window};
use quell::{Mechanism, PageSize};
use quell_vm::{Backing, Call, ProcessId, Protection, User};

parameters! {
    /// Switches between processes on one CPU.
    pub struct Pingpong {
        /// How many switches are measured.
        switches: Count = 4_000, 2 => 1_000_000_000;
        /// How many pages each process reads in its turn.
        pages: Count = 0, 0 => 65_536;
        /// How many pages a program uses in its turn even if it touches no others: code, stack, libraries.
        own: Count = 8, 0 => 64;
        /// How many processes take turns.
        processes: Count = 2, 2 => 40;
    }
}

/// The first of the spawned processes; the others follow.
const PROCESSES: usize = word::FREE;

impl Program for Pingpong {
    const NAME: &'static str = "pingpong";
    const TITLE: &'static str = "one CPU switches between processes that read some pages each turn";
    const MECHANISM: Mechanism = Mechanism::Tags;
    const METRIC: &'static str = "us per switch";

    fn memory(&self, cpus: u64) -> Memory {
        Memory::roomy(
            self.processes * (((self.pages + self.own) << 12) + (1 << 16)),
            cpus,
        )
    }

    fn check(&self, cpus: usize) -> Result<(), &'static str> {
        if cpus == 1 {
            Ok(())
        } else {
            Err("one CPU, because the processes take turns on it")
        }
    }

    fn body<U: User + ?Sized>(&self, team: &Team<'_, U>, _seed: u64) -> Result<(), Failure> {
        // The process that the run begins in only spawns the others and waits.
        let pages = self.pages + self.own;
        let mut address = 0;
        for index in 0..self.processes as usize {
            let process = team.call("spawning a process", Call::Spawn)?;
            team.user.set_shared(PROCESSES + index, process);
            self.enter(team, index)?;
            if pages > 0 {
                let mapped = team.call(
                    "mapping memory",
                    Call::Map {
                        // The same place in every process, as copies of one program have it.
                        address: (index > 0).then_some(address),
                        bytes: pages << 12,
                        protection: Protection::READ_WRITE,
                        backing: Backing::Anonymous {
                            page: PageSize::Base,
                        },
                    },
                )?;
                address = mapped;
                for page in 0..pages {
                    team.write("touching memory", address + (page << 12), page)?;
                }
            }
        }
        let turns = |count: u64| {
            let mut index = 0;
            for _ in 0..count {
                self.enter(team, index)?;
                index = if index + 1 == self.processes as usize {
                    0
                } else {
                    index + 1
                };
                for page in 0..pages {
                    team.read("reading memory", address + (page << 12))?;
                }
            }
            Ok(())
        };
        turns(2 * self.processes)?;
        team.begin()?;
        turns(self.switches)?;
        team.done(self.switches);
        team.close();
        Ok(())
    }

    fn value(&self, window: Window) -> f64 {
        window.nanoseconds as f64 / 1e3 / window.done as f64
    }
}

impl Pingpong {
    fn enter<U: User + ?Sized>(&self, team: &Team<'_, U>, index: usize) -> Result<(), Failure> {
        let process = team.user.shared(PROCESSES + index) as ProcessId;
        team.call("entering a process", Call::Enter { process })?;
        Ok(())
    }
}

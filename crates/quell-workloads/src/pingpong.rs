//! Each CPU goes round several processes, each of which may read some pages in its turn.
//!
//! What an `eventfd` ping-pong does between two processes on one CPU. Without tags every switch
//! drops what the other process will need again. Of several CPUs, those after the first switch at
//! random; if a process also [drops](Pingpong::drops) pages in its turn, what the others keep of it under
//! its tag is out of date when they come back to it.

use crate::parameter::parameters;
use crate::program::{Memory, Program, Window};
use crate::team::{Failure, Team, random, word};
use alloc::format;
use alloc::string::String;
use quell::{Mechanism, PageSize};
use quell_vm::{Backing, Call, FileId, ProcessId, Protection, User};
use rand::RngExt;

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
        /// How many of its pages the process drops at the end of its turn, on the first CPU (MADV_DONTNEED, or MADV_PAGEOUT if they are a file's).
        drops: Count = 0, 0 => 65_536;
        /// Whether the pages are a file's that is only read: they can be dropped without a flush (S3).
        clean: Switch = 0, 0 => 1;
    }
}

/// Where every process has its pages.
const ADDRESS: usize = word::FREE;
/// The first of the spawned processes; the others follow.
const PROCESSES: usize = word::FREE + 1;
/// How long, at most, CPUs other than the first compute between two turns, in nanoseconds.
const PAUSE: u64 = 1_000;

impl Program for Pingpong {
    const NAME: &'static str = "pingpong";
    const TITLE: &'static str =
        "each CPU switches between processes that read some pages each turn";
    const MECHANISM: Mechanism = Mechanism::Tags;
    const METRIC: &'static str = "us per switch";

    fn memory(&self, cpus: u64) -> Memory {
        Memory::roomy(
            self.processes * (((self.pages + self.own) << 12) + (1 << 16)),
            cpus,
        )
    }

    fn check(&self, _cpus: usize) -> Result<(), String> {
        if self.drops > self.pages + self.own {
            return Err(format!(
                "a turn cannot drop {} pages (drops) of {} (pages and own together): lower drops or raise pages",
                self.drops,
                self.pages + self.own
            ));
        }
        Ok(())
    }

    fn body<U: User + ?Sized>(&self, team: &Team<'_, U>, seed: u64) -> Result<(), Failure> {
        if !team.leads() {
            team.begin()?;
            let address = team.user.shared(ADDRESS);
            let mut random = random(seed, team.user.cpu());
            let mut turns = 0;
            while !team.stopped() {
                turns += 1;
                self.turn(
                    team,
                    address,
                    random.random_range(0..self.processes) as usize,
                    false,
                )?;
                // Or they and the first CPU would fall in step, for better or worse.
                team.user.compute(random.random_range(0..PAUSE));
            }
            team.done(turns);
            return team.barrier();
        }
        // The process that the run begins in only spawns the others and waits.
        let all = 3 * self.processes + self.switches;
        for index in 0..self.processes as usize {
            let process = team.call("spawning a process", Call::Spawn)?;
            team.user.set_shared(PROCESSES + index, process);
            team.step(index as u64, all);
            self.enter(team, index)?;
            if self.pages + self.own > 0 {
                self.prepare(team, index)?;
            }
        }
        let address = team.user.shared(ADDRESS);
        let turns = |before: u64, count: u64| {
            let mut index = 0;
            for turn in 0..count {
                team.step(before + turn, all);
                self.turn(team, address, index, true)?;
                index = (index + 1) % self.processes as usize;
            }
            Ok(())
        };
        turns(self.processes, 2 * self.processes)?;
        team.begin()?;
        turns(3 * self.processes, self.switches)?;
        team.done(self.switches);
        team.close();
        team.barrier()?;
        // Of one CPU, on the average.
        let all = team.user.shared(word::DONE);
        team.user
            .set_shared(word::DONE, all / team.user.cpus() as u64);
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

    /// Gives the process that was entered its pages.
    fn prepare<U: User + ?Sized>(&self, team: &Team<'_, U>, index: usize) -> Result<(), Failure> {
        let pages = self.pages + self.own;
        let clean = self.clean != 0;
        let (protection, backing) = if clean {
            let bytes = pages << 12;
            let file = team.call("creating a file", Call::Create { bytes })? as FileId;
            (Protection::READ, Backing::Shared { file, offset: 0 })
        } else {
            let page = PageSize::Base;
            (Protection::READ_WRITE, Backing::Anonymous { page })
        };
        let address = team.call(
            "mapping memory",
            Call::Map {
                // The same place in every process, as copies of one program have it.
                address: (index > 0).then(|| team.user.shared(ADDRESS)),
                bytes: pages << 12,
                protection,
                backing,
            },
        )?;
        team.user.set_shared(ADDRESS, address);
        for page in 0..pages {
            if clean {
                team.read("touching memory", address + (page << 12))?;
            } else {
                team.write("touching memory", address + (page << 12), page)?;
            }
        }
        Ok(())
    }

    /// One turn of a process.
    fn turn<U: User + ?Sized>(
        &self,
        team: &Team<'_, U>,
        address: u64,
        index: usize,
        drops: bool,
    ) -> Result<(), Failure> {
        self.enter(team, index)?;
        for page in 0..self.pages + self.own {
            team.read("reading memory", address + (page << 12))?;
        }
        if drops && self.drops > 0 {
            let bytes = self.drops << 12;
            if self.clean != 0 {
                team.call("paging out", Call::PageOut { address, bytes })?;
            } else {
                team.call("dropping pages", Call::Discard { address, bytes })?;
            }
        }
        Ok(())
    }
}

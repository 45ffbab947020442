//! Several processes, each with many threads, stream read-only files that do not fit into memory.
//!
//! What several instances of llama.cpp do: each process maps its own file and goes through all of
//! it over and over, its threads sharing each stretch of the file. Ordinary memory holds a part, slow memory another, the rest must be read again, so pages
//! are demoted and dropped all the time although no thread ever writes one.
//!
//! Between two pages of its file a thread computes and uses some pages of its own (stack,
//! activations): what a flush of everything takes away from it.

use crate::parameter::parameters;
use crate::program::{Memory, Program, Window};
use crate::team::{Failure, Team, word};
use alloc::format;
use alloc::string::String;
use quell::{Mechanism, PageSize};
use quell_vm::{Backing, Call, FileId, ProcessId, Protection, User};

parameters! {
    /// Processes streaming files larger than memory.
    pub struct Readers {
        /// How many processes.
        processes: Count = 3, 1 => 16;
        /// How many threads each has, one a CPU.
        threads: Count = 15, 1 => 256;
        /// The size of each process's file; the published ones had 70 GB.
        size: Bytes = 70 << 20, 1 << 20 => 1 << 32;
        /// Ordinary memory; the published machine had 42 GB.
        fast: Bytes = 42 << 20, 1 << 20 => 1 << 34;
        /// Slow memory, to which pages are demoted; the published machine had 98 GB. With none, pages are dropped at once.
        slow: Bytes = 98 << 20, 0 => 1 << 34;
        /// How many frames each node keeps free, and how many pages are demoted or dropped at a time; Linux keeps about 10 000 on 42 GB.
        ahead: Count = 2_048, 32 => 1_000_000;
        /// How many more CPUs do nothing but demote and reclaim, as a kernel's threads for it; with none the readers do.
        reclaimers: Count = 0, 0 => 16;
        /// How many times each file is read after it was read once.
        passes: Count = 1, 1 => 1_000;
        /// The stretch of a file that one thread reads before it goes on behind the others' stretches.
        stretch: Bytes = 64 << 10, 4096 => 1 << 24;
        /// How long a thread computes on each page: so that before S3 each takes 26 000 shootdown interrupts a second, as published.
        compute: Time = 70_000, 0 => 1_000_000_000;
        /// How many pages of its own a thread uses with each page of the file.
        own: Count = 8, 0 => 64;
    }
}

/// Where the first process has its file; every process has it at the same place.
const ADDRESS: usize = word::FREE;
/// The first process; the others follow.
const PROCESSES: usize = word::FREE + 1;
/// The first process's file; the others follow.
const FILES: usize = PROCESSES + 16;
/// How often a reclaimer looks whether there is something to do, in nanoseconds.
const RECLAIM_EVERY: u64 = 20_000;

impl Program for Readers {
    const NAME: &'static str = "readers";
    const TITLE: &'static str =
        "processes of many threads stream files larger than memory, with demotion (llama.cpp)";
    const MECHANISM: Mechanism = Mechanism::LazyUnmap;
    const METRIC: &'static str = "ms per pass";

    fn cpus(&self) -> usize {
        (self.processes * self.threads + self.reclaimers) as usize
    }

    fn check(&self, cpus: usize) -> Result<(), String> {
        if cpus != self.cpus() {
            return Err(format!(
                "runs on {} CPUs, one for each thread (processes times threads, and reclaimers), not on {cpus}: change \
                 the number of CPUs or these parameters",
                self.cpus()
            ));
        }
        // With less, pages are taken away again before the fault that brought them has returned.
        let smaller = match self.slow {
            0 => self.fast,
            slow => slow.min(self.fast),
        };
        let most = (smaller >> 12) / 5;
        if self.ahead > most {
            return Err(format!(
                "ahead={} is more than a fifth of the frames of a node: at most {most} here",
                self.ahead
            ));
        }
        Ok(())
    }

    fn memory(&self, _cpus: u64) -> Memory {
        Memory {
            node: self.fast,
            slow: (self.slow > 0).then_some(self.slow),
            nodes: 1,
            demotion: self.slow > 0,
            ahead: Some(self.ahead),
            idle_reclaims: self.reclaimers > 0,
        }
    }

    fn body<U: User + ?Sized>(&self, team: &Team<'_, U>, _seed: u64) -> Result<(), Failure> {
        let user = team.user;
        let group = user.cpu() as u64 / self.threads;
        let thread = user.cpu() as u64 % self.threads;
        if team.leads() {
            for index in 0..self.processes as usize {
                let process = team.call("spawning a process", Call::Spawn)?;
                user.set_shared(PROCESSES + index, process);
                let file = team.call("creating a file", Call::Create { bytes: self.size })?;
                user.set_shared(FILES + index, file);
            }
        }
        team.barrier()?;
        if group >= self.processes {
            return team.bystand(RECLAIM_EVERY, true);
        }
        team.without(self.reclaimers);
        let process = user.shared(PROCESSES + group as usize) as ProcessId;
        team.call("entering a process", Call::Enter { process })?;
        if thread == 0 {
            let mapped = team.call(
                "mapping a file",
                Call::Map {
                    address: None,
                    bytes: self.size,
                    protection: Protection::READ,
                    backing: Backing::Shared {
                        file: user.shared(FILES + group as usize) as FileId,
                        offset: 0,
                    },
                },
            )?;
            // Equal in every process: all of them are made alike.
            user.set_shared(ADDRESS, mapped);
        }
        team.barrier()?;
        let file = user.shared(ADDRESS);
        let own = if self.own == 0 {
            0
        } else {
            team.call(
                "mapping memory",
                Call::Map {
                    address: None,
                    bytes: self.own << 12,
                    protection: Protection::READ_WRITE,
                    backing: Backing::Anonymous {
                        page: PageSize::Base,
                    },
                },
            )?
        };
        self.pass(team, file, own, thread, 0)?;
        team.begin()?;
        let began = user.now();
        for pass in 1..=self.passes {
            self.pass(team, file, own, thread, pass)?;
            if team.stopped() {
                return Err(Failure::Elsewhere);
            }
        }
        // Each thread's own time: their mean, as published, not the last one's.
        team.done(user.now() - began);
        team.end()
    }

    fn value(&self, window: Window) -> f64 {
        window.done as f64 / 1e6 / (self.processes * self.threads * self.passes) as f64
    }
}

impl Readers {
    /// Reads this thread's stretches of the file once.
    fn pass<U: User + ?Sized>(
        &self,
        team: &Team<'_, U>,
        file: u64,
        own: u64,
        thread: u64,
        pass: u64,
    ) -> Result<(), Failure> {
        let stretch = self.stretch.next_multiple_of(4096);
        let mut from = thread * stretch;
        while from < self.size {
            if team.leads() {
                team.step(pass * self.size + from, (self.passes + 1) * self.size);
            }
            for page in (from..(from + stretch).min(self.size)).step_by(4096) {
                team.user.read_span(file + page, 4096);
                for index in 0..self.own {
                    team.write("writing own memory", own + (index << 12), page)?;
                }
                team.user.compute(self.compute);
            }
            from += self.threads * stretch;
        }
        Ok(())
    }
}

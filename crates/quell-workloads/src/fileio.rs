//! Random writes to mapped files, with a sync of all files after every so many of them.
//!
//! What `sysbench fileio` does in its mode "mmap, random write, fdatasync": each thread fills one
//! block at a random place with stores; after every [`sync_every`](Fileio::sync_every) requests,
//! counted over all threads, the thread that made the last one syncs every file. Cleaning a page
//! takes its write permission away, on all CPUs, before its content is written.

use crate::parameter::{Unit, parameters};
use crate::program::{Memory, Program, Window};
use crate::team::{Failure, Team, random, word};
use alloc::format;
use alloc::string::String;
use quell::Mechanism;
use quell_vm::{Backing, Call, FileId, Protection, User};
use rand::RngExt;

parameters! {
    /// Random writes to mapped files, synced regularly.
    pub struct Fileio {
        /// How long is measured; the published runs took 10 s.
        duration: Time = 60_000_000, 1_000_000 => 60_000_000_000;
        /// How many files there are; sysbench makes 128.
        files: Count = 16, 1 => 48;
        /// The size of each file; sysbench's are 24 MB.
        size: Bytes = 3 << 20, 1 << 14 => 1 << 30;
        /// How many bytes one request writes.
        block: Bytes = 16 << 10, 64 => 1 << 20;
        /// How long a request computes besides its stores (sysbench, the file system's faults): so that 575 k take 10 s before S4.
        compute: Time = 20_000, 0 => 1_000_000_000;
        /// After how many requests all files are synced.
        sync_every: Count = 100, 1 => 1_000_000;
    }
}

/// Requests so far, over all CPUs.
const REQUESTS: usize = word::FREE;
/// Where the first file is mapped; the others follow.
const ADDRESS: usize = word::FREE + 1;
/// The first file; the others are numbered from it on.
const FILES: usize = word::FREE + 2;

impl Program for Fileio {
    const NAME: &'static str = "fileio";
    const TITLE: &'static str =
        "threads write random blocks of mapped files and sync them regularly (sysbench fileio)";
    const MECHANISM: Mechanism = Mechanism::RemoteFlush;
    const METRIC: &'static str = "k events in 10 s";
    const MORE_IS_BETTER: bool = true;

    fn cpus(&self) -> usize {
        4
    }

    fn memory(&self, cpus: u64) -> Memory {
        Memory::roomy(self.files * self.size, cpus)
    }

    fn check(&self, _cpus: usize) -> Result<(), String> {
        if self.block > self.size {
            let show = |bytes| Unit::Bytes.show(bytes);
            return Err(format!(
                "a block (block={}) does not fit into a file (size={}): make the block smaller or the files larger",
                show(self.block),
                show(self.size)
            ));
        }
        Ok(())
    }

    fn body<U: User + ?Sized>(&self, team: &Team<'_, U>, seed: u64) -> Result<(), Failure> {
        let user = team.user;
        let size = self.size.next_multiple_of(4096);
        if team.leads() {
            self.prepare(team, size)?;
        }
        team.begin()?;
        let end = user.shared(word::BEGIN) + self.duration;
        let address = user.shared(ADDRESS);
        let mut random = random(seed, user.cpu());
        let mut written = 0;
        loop {
            let left = end.saturating_sub(user.now());
            if left == 0 || team.stopped() {
                break;
            }
            if team.leads() {
                team.step(self.duration - left, self.duration);
            }
            let file = random.random_range(0..self.files);
            let block = random.random_range(0..self.size / self.block);
            user.write_span(
                address + file * size + block * self.block,
                self.block,
                written,
            );
            user.compute(self.compute);
            written += 1;
            if (user.add_shared(REQUESTS, 1) + 1).is_multiple_of(self.sync_every) {
                self.sync(team)?;
            }
        }
        team.done(written);
        team.end()
    }

    fn value(&self, window: Window) -> f64 {
        window.done as f64 / window.nanoseconds as f64 * 1e10 / 1e3
    }
}

impl Fileio {
    /// Makes, maps and reads the files, so that the measured window finds them in memory.
    fn prepare<U: User + ?Sized>(&self, team: &Team<'_, U>, size: u64) -> Result<(), Failure> {
        // One reservation, over which the files are mapped one after the other.
        let address = team.call(
            "reserving addresses",
            Call::Map {
                address: None,
                bytes: self.files * size,
                protection: Protection::NONE,
                backing: Backing::Anonymous {
                    page: quell::PageSize::Base,
                },
            },
        )?;
        team.user.set_shared(ADDRESS, address);
        for index in 0..self.files {
            let file = team.call("creating a file", Call::Create { bytes: self.size })?;
            team.user.set_shared(FILES + index as usize, file);
            let address = team.call(
                "mapping a file",
                Call::Map {
                    address: Some(address + index * size),
                    bytes: size,
                    protection: Protection::READ_WRITE,
                    backing: Backing::Shared {
                        file: file as FileId,
                        offset: 0,
                    },
                },
            )?;
            for page in (address..address + size).step_by(4096) {
                team.read("reading a file", page)?;
            }
        }
        Ok(())
    }

    fn sync<U: User + ?Sized>(&self, team: &Team<'_, U>) -> Result<(), Failure> {
        for index in 0..self.files {
            let file = team.user.shared(FILES + index as usize) as FileId;
            team.call("syncing a file", Call::Sync { file })?;
        }
        Ok(())
    }
}

//! Performs random operations of the memory manager on every CPU at once.
//!
//! All CPUs run in one process and change shared memory. Each CPU writes its own words in shared pages and in a file.
//! Meanwhile, other CPUs page out, migrate or reclaim the same pages, collapse them into huge pages, move them to slower
//! memory, or fork the process. Each CPU also has its own region, which it discards, protects, unmaps and moves while
//! others read it. It has other processes, to which it switches, and a file that it truncates. It also becomes idle and
//! returns. The kernel provides less memory than the test needs, and can disturb CPUs meanwhile.
//!
//! Every stored value contains a checksum of its kind, its place and the number of times that its owner has written
//! there. The owner must read exactly its last value. Another CPU must read a value that the owner wrote, and never one
//! older than it saw before. So the test detects lost writes, reads of another owner's frame or another process's
//! memory, and memory that was not zeroed.
//!
//! A seed and a CPU's number determine the CPU's operations. So the same seed repeats the operations. It repeats their
//! order across CPUs only on an emulator that counts instructions.

mod own;
mod part;
mod shared;
mod values;

use alloc::format;
use alloc::vec;
use part::{Chunk, Outcome, Stress, word};
use quell::PageSize;
use quell_vm::contract::Clause;
use quell_vm::{Backing, Call, Protection, User};
use rand_pcg::Pcg64;
use values::*;
pub use values::{CPUS, probe};

/// The operations of each CPU between two checks for the end of the run.
pub const ROUND: u64 = 1_000;

/// The length of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    /// This many rounds, with [`ROUND`] operations on each CPU.
    Rounds(u64),
    /// Whole rounds until this many nanoseconds have passed.
    Nanoseconds(u64),
}

/// The counts at the end of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The number of rounds so far.
    pub rounds: u64,
    /// The number of operations of all CPUs so far.
    pub operations: u64,
    /// A digest of all operations chosen so far. It's the same for the same seed, CPUs and rounds.
    pub digest: u64,
    /// The nanoseconds since the start, by the machine's clock.
    pub nanoseconds: u64,
}

/// Runs one CPU's part. Every CPU calls this at the same time, in the process `home`.
///
/// After each round, the first CPU passes the counts to `progress`. The run sometimes calls `disturb` with the number
/// of another CPU. The kernel then interrupts that CPU, for example by an NMI.
///
/// # Errors
/// Describes a violation of the contract that this CPU saw, or a refused call.
///
/// # Panics
/// If there are more than [`CPUS`] CPUs.
pub fn run<U: User>(
    user: &U,
    seed: u64,
    home: u32,
    length: Length,
    disturb: &dyn Fn(usize),
    progress: impl Fn(Progress),
) -> Outcome {
    let (me, cpus) = (user.cpu(), user.cpus());
    assert!(cpus <= CPUS, "{cpus} CPUs share a page of {CPUS} lines");
    let began = user.now();
    let mut stress = Stress {
        user,
        disturb,
        me,
        crossed: 0,
        choices: Pcg64::new(seed.into(), me as u128),
        digest: 0,
        file: 0,
        tail: 0,
        tail_pages: TAIL,
        tail_counts: [0; TAIL as usize],
        home,
        guests: [(0, 0); GUESTS],
        shared: vec![0; SHARED as usize],
        large: vec![0; LARGE as usize],
        filed: vec![0; FILE as usize],
        seen: vec![0; FILE as usize],
        chunks: [Chunk { mapped: false, writable: true, half: 0, counts: [0; CHUNK as usize] };
            CHUNKS as usize],
        latest: 0,
    };
    let mut outcome = stress.set_up();
    let mut rounds = 0;
    loop {
        stress.note(&outcome);
        stress.barrier();
        let failed = user.shared(word::FAILED) != 0;
        if me == 0 {
            if rounds > 0 {
                progress(Progress {
                    rounds,
                    operations: rounds * ROUND * cpus as u64,
                    digest: user.shared(word::DIGEST),
                    nanoseconds: user.now() - began,
                });
            }
            let more = match length {
                Length::Rounds(wanted) => rounds < wanted,
                Length::Nanoseconds(wanted) => user.now() - began < wanted,
            };
            user.set_shared(word::GOES_ON, u64::from(more && !failed));
        }
        stress.barrier();
        if user.shared(word::GOES_ON) == 0 {
            return outcome;
        }
        let before = stress.digest;
        for operation in 0..ROUND {
            if outcome.is_ok() {
                outcome = stress.operate().map_err(|what| {
                    format!("cpu {me}, round {rounds}, operation {operation}: {what}")
                });
                stress.note(&outcome);
            }
        }
        if outcome.is_ok() {
            outcome = stress.verify_all();
        }
        user.add_shared(word::DIGEST, stress.digest.wrapping_sub(before));
        rounds += 1;
    }
}

impl<U: User> Stress<'_, U> {
    fn set_up(&mut self) -> Outcome {
        let anonymous = |page| Backing::Anonymous { page };
        let mut outcome = Ok(());
        if self.me == 0 {
            outcome = (|| {
                self.map(SHARED_AT, SHARED, anonymous(PageSize::Base), Protection::READ_WRITE)?;
                self.map(LARGE_AT, LARGE, anonymous(PageSize::Large), Protection::READ_WRITE)?;
                let file = self.call("create", Call::Create { bytes: FILE * PAGE })? as u32;
                let backing = Backing::Shared { file, offset: 0 };
                self.map(FILE_AT, FILE, backing, Protection::READ_WRITE)?;
                self.map(READ_AT, FILE, backing, Protection::READ)?;
                self.user.set_shared(word::FILE, file.into());
                Ok(())
            })();
            self.note(&outcome);
        }
        self.barrier();
        if self.user.shared(word::FAILED) != 0 {
            return outcome;
        }
        self.file = self.user.shared(word::FILE) as u32;
        self.tail = self.call("create", Call::Create { bytes: TAIL * PAGE })? as u32;
        let backing = Backing::Shared { file: self.tail, offset: 0 };
        let tail_at = self.tail_at(0);
        self.map(tail_at, TAIL, backing, Protection::READ_WRITE)?;
        for chunk in 0..CHUNKS {
            self.map_chunk(chunk)?;
        }
        for guest in 0..GUESTS {
            self.guests[guest].0 = self.call("spawn", Call::Spawn)? as u32;
        }
        outcome
    }

    /// Performs one operation, chosen at random.
    fn operate(&mut self) -> Outcome {
        match self.choose(100) {
            0..=19 => self.count_up(),
            20..=27 => self.write_file(),
            28..=35 => self.look_at_neighbour(),
            36..=43 => self.use_own(),
            44..=46 => self.discard(),
            47..=49 => self.protect(),
            50..=53 => self.unmap_or_map(),
            54..=56 => self.remap(),
            57..=62 => self.page_out(),
            63..=67 => self.migrate(),
            68..=69 => {
                let pages = 1 + self.choose(24);
                self.call("reclaim", Call::Reclaim { pages }).map(|_| ())
            }
            70..=71 => {
                let pages = 1 + self.choose(24);
                self.call("demote", Call::Demote { pages }).map(|_| ())
            }
            72..=73 => {
                let file = self.file;
                self.call("sync", Call::Sync { file }).map(|_| ())
            }
            74..=75 => self.collapse(),
            76..=77 => self.fork(),
            78..=82 => self.visit(),
            83..=85 => self.truncate(),
            86..=87 => {
                let until = self.user.now() + 1_000 * (1 + self.choose(100));
                self.call("idle", Call::Idle { until }).map(|_| ())
            }
            88..=90 => {
                let target = self.choose(self.user.cpus() as u64) as usize;
                if target != self.me {
                    (self.disturb)(target);
                }
                Ok(())
            }
            _ => self.peek(),
        }
    }

    /// Verifies everything that this CPU has written.
    fn verify_all(&mut self) -> Outcome {
        for (kind, pages) in [(Kind::Shared, SHARED), (Kind::Large, LARGE), (Kind::File, FILE)] {
            for page in 0..pages {
                let expected = self.expected(kind, page);
                self.must_hold(self.word_of(kind, page), expected, Clause::C2)?;
            }
        }
        for chunk in 0..CHUNKS {
            for page in 0..CHUNK {
                self.check_own(chunk, page, 0)?;
            }
        }
        Ok(())
    }
}

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

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::hash::BuildHasher;
use quell::{CpuId, PageSize};
use quell_vm::contract::{Clause, Violation};
use quell_vm::{Backing, Call, Error, Fault, Protection, User};
use rand::RngExt;
use rand_pcg::Pcg64;
use rustc_hash::FxBuildHasher;

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

const PAGE: u64 = 4096;
/// Pages that all CPUs write, anonymous.
const SHARED: u64 = 96;
/// Pages that all CPUs write, of a file.
const FILE: u64 = 32;
/// Pages that all CPUs write and that may be one large page.
const LARGE: u64 = 512;
/// Pages of one chunk of a CPU's own region.
const CHUNK: u64 = 8;
/// Chunks of a CPU's own region, in one of two halves.
const CHUNKS: u64 = 16;
/// Processes of each CPU's own.
const GUESTS: usize = 3;
/// Pages of the file that each CPU truncates.
const TAIL: u64 = 6;
/// The most CPUs: each has a cache line of every shared page.
pub const CPUS: usize = 64;
/// The address of the anonymous shared pages.
const SHARED_AT: u64 = 0x20_0000_0000;
const LARGE_AT: u64 = 0x21_0000_0000;
const FILE_AT: u64 = 0x22_0000_0000;
/// The same file, read-only.
const READ_AT: u64 = 0x23_0000_0000;
const OWN_AT: u64 = 0x24_0000_0000;
/// The distance between CPUs' own regions, and of their tails.
const OWN_STRIDE: u64 = 1 << 24;
/// The distance between the halves of one.
const HALF: u64 = 1 << 23;
const TAIL_AT: u64 = 0x25_0000_0000;

/// Kinds of memory, part of every checksum.
#[derive(Clone, Copy)]
enum Kind {
    Shared,
    Large,
    File,
    Own,
    Guest,
    Tail,
    Child,
}

/// Returns the value of the `count`th store to a place: the count above its checksum. Memory that was never written is
/// zero.
fn value(kind: Kind, cpu: usize, page: u64, count: u64) -> u64 {
    if count == 0 {
        return 0;
    }
    let checksum = FxBuildHasher.hash_one((kind as u8, cpu, page, count));
    count << 24 | checksum & 0xff_ffff
}

/// Returns the place's number of writes when this value was stored. Returns `None` if no such store was made.
fn count_of(kind: Kind, cpu: usize, page: u64, held: u64) -> Option<u64> {
    let count = held >> 24;
    (value(kind, cpu, page, count) == held).then_some(count)
}

/// Returns an address for a non-maskable interrupt to read, and the value's check. `choice` is any number.
///
/// The interrupt handler doesn't know its CPU's current process. So in guests and in child processes, too, the word at
/// that address contains a value that its CPU stored in that process.
pub fn probe(choice: u64, cpus: usize) -> (u64, impl Fn(u64) -> bool) {
    let (page, cpu) = (choice % SHARED, (choice >> 32) as usize % cpus);
    let address = SHARED_AT + page * PAGE + 64 * cpu as u64;
    (address, move |held| {
        [Kind::Shared, Kind::Guest, Kind::Child]
            .into_iter()
            .any(|kind| count_of(kind, cpu, page, held).is_some())
    })
}

/// Control words.
mod word {
    pub const ARRIVALS: usize = 0;
    pub const FAILED: usize = 1;
    pub const GOES_ON: usize = 2;
    pub const DIGEST: usize = 3;
    pub const FILE: usize = 4;
}

/// The most retries of an access that finds no memory. This is a last resort: the host may give no time for a while to
/// the CPU that holds the memory.
const RETRIES: u32 = 20_000;

/// This CPU's knowledge of one chunk of its own region.
#[derive(Clone, Copy)]
struct Chunk {
    mapped: bool,
    writable: bool,
    half: u64,
    /// Writes of each page since it was last zero; 0 if it is zero.
    counts: [u64; CHUNK as usize],
}

/// One CPU's part.
struct Stress<'u, U> {
    user: &'u U,
    disturb: &'u dyn Fn(usize),
    me: usize,
    crossed: u64,
    choices: Pcg64,
    digest: u64,
    file: u32,
    tail: u32,
    tail_counts: [u64; TAIL as usize],
    home: u32,
    guests: [(u32, u64); GUESTS],
    /// This CPU's writes of its word in each page that all CPUs write.
    shared: Vec<u64>,
    large: Vec<u64>,
    filed: Vec<u64>,
    /// The latest store of the next CPU that this one has seen, by page of the file.
    seen: Vec<u64>,
    chunks: [Chunk; CHUNKS as usize],
    /// Never decreases, so old values are distinct from new ones.
    latest: u64,
}

/// The result of an operation; the error describes a violation.
type Outcome<T = ()> = Result<T, String>;

fn failed(call: &'static str) -> impl Fn(Error) -> String {
    move |error| format!("{call}: {error}")
}

impl<U: User> Stress<'_, U> {
    fn note(&self, outcome: &Outcome) {
        if outcome.is_err() {
            self.user.set_shared(word::FAILED, 1);
        }
    }

    fn barrier(&mut self) {
        self.crossed += 1;
        let all = self.crossed * self.user.cpus() as u64;
        self.user.add_shared(word::ARRIVALS, 1);
        while self.user.shared(word::ARRIVALS) < all {}
    }

    /// Makes a random choice and adds it to the digest of operations.
    fn choose(&mut self, bound: u64) -> u64 {
        let choice = self.choices.random_range(0..bound);
        self.digest = FxBuildHasher.hash_one((self.digest, choice, bound));
        choice
    }

    /// Retries an access, which may fail while other CPUs hold memory that could be freed.
    fn retry<T>(&self, what: impl Fn() -> Result<T, Fault>) -> Result<T, Fault> {
        for _ in 0..RETRIES {
            match what() {
                Err(Fault::OutOfMemory) => {
                    let until = self.user.now() + 50_000;
                    let _ = self.user.call(Call::Reclaim { pages: 32 });
                    let _ = self.user.call(Call::Idle { until });
                }
                other => return other,
            }
        }
        what()
    }

    fn load(&self, address: u64) -> Result<u64, Fault> {
        self.retry(|| self.user.try_read(address))
    }

    fn must_load(&self, address: u64) -> Outcome<u64> {
        self.load(address).map_err(|fault| format!("load of {address:#x}: {fault}"))
    }

    fn must_store(&self, address: u64, value: u64) -> Outcome {
        self.retry(|| self.user.try_write(address, value))
            .map_err(|fault| format!("store to {address:#x}: {fault}"))
    }

    fn must_hold(&self, address: u64, expected: u64, clause: Clause) -> Outcome {
        let held = self.must_load(address)?;
        if held == expected {
            return Ok(());
        }
        let account = format!(
            "{address:#x} holds {held:#x} (store {}), not {expected:#x} (store {})",
            held >> 24,
            expected >> 24
        );
        self.broken(clause, account)
    }

    /// Checks that a load faults.
    fn must_fault(&self, address: u64, fault: Fault, clause: Clause, what: &str) -> Outcome {
        match self.load(address) {
            Err(found) if found == fault => Ok(()),
            other => self.broken(clause, format!("{what}, {address:#x}, gives {other:x?}")),
        }
    }

    /// Reports that this CPU saw the contract broken.
    fn broken<T>(&self, clause: Clause, account: String) -> Outcome<T> {
        let violation = Violation::new(clause, account).by(CpuId(self.me as u16));
        Err(violation.to_string())
    }

    fn call(&self, name: &'static str, call: Call) -> Outcome<u64> {
        self.user.call(call).map_err(failed(name))
    }

    fn next_count(&mut self) -> u64 {
        self.latest += 1;
        self.latest
    }

    fn map(&self, address: u64, pages: u64, backing: Backing, protection: Protection) -> Outcome {
        self.call(
            "map",
            Call::Map { address: Some(address), bytes: pages * PAGE, protection, backing },
        )
        .map(|_| ())
    }

    fn tail_at(&self, page: u64) -> u64 {
        TAIL_AT + self.me as u64 * OWN_STRIDE + page * PAGE
    }

    fn own_at(cpu: usize, half: u64, chunk: u64, page: u64) -> u64 {
        OWN_AT + cpu as u64 * OWN_STRIDE + half * HALF + (chunk * CHUNK + page) * PAGE
    }

    fn map_chunk(&mut self, chunk: u64) -> Outcome {
        let half = self.chunks[chunk as usize].half;
        let backing = Backing::Anonymous { page: PageSize::Base };
        self.map(Self::own_at(self.me, half, chunk, 0), CHUNK, backing, Protection::READ_WRITE)?;
        let state = &mut self.chunks[chunk as usize];
        *state = Chunk { mapped: true, writable: true, half, counts: [0; CHUNK as usize] };
        Ok(())
    }

    /// Returns the address of this CPU's word in a page that all CPUs write.
    fn word_of(&self, kind: Kind, page: u64) -> u64 {
        let base = match kind {
            Kind::Shared => SHARED_AT,
            Kind::Large => LARGE_AT,
            Kind::File | Kind::Own | Kind::Guest | Kind::Tail | Kind::Child => FILE_AT,
        };
        base + page * PAGE + 64 * self.me as u64
    }

    fn counts(&mut self, kind: Kind) -> &mut Vec<u64> {
        match kind {
            Kind::Shared => &mut self.shared,
            Kind::Large => &mut self.large,
            Kind::File | Kind::Own | Kind::Guest | Kind::Tail | Kind::Child => &mut self.filed,
        }
    }

    fn expected(&mut self, kind: Kind, page: u64) -> u64 {
        value(kind, self.me, page, self.counts(kind)[page as usize])
    }
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
            72..=73 => self.call("sync", Call::Sync { file: self.file }).map(|_| ()),
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

/// Operations on memory that all CPUs write.
impl<U: User> Stress<'_, U> {
    fn count_up(&mut self) -> Outcome {
        let (kind, page) = match self.choose(4) {
            0 => (Kind::Large, self.choose(LARGE)),
            _ => (Kind::Shared, self.choose(SHARED)),
        };
        let (address, old) = (self.word_of(kind, page), self.expected(kind, page));
        self.must_hold(address, old, Clause::C2)?;
        let count = self.next_count();
        self.counts(kind)[page as usize] = count;
        let new = value(kind, self.me, page, count);
        self.must_store(address, new)?;
        self.must_hold(address, new, Clause::C2)
    }

    fn write_file(&mut self) -> Outcome {
        let page = self.choose(FILE);
        let by_call = self.choose(2) == 0;
        let (address, old) = (self.word_of(Kind::File, page), self.expected(Kind::File, page));
        let offset = address - FILE_AT;
        self.must_hold(READ_AT + offset, old, Clause::C4)?;
        let count = self.next_count();
        self.filed[page as usize] = count;
        let new = value(Kind::File, self.me, page, count);
        if by_call {
            self.call("write", Call::Write { file: self.file, offset, value: new })?;
            self.must_hold(address, new, Clause::C4)
        } else {
            self.must_store(address, new)?;
            self.must_hold(READ_AT + offset, new, Clause::C4)
        }
    }

    /// Checks the next CPU's word of the file: never older than seen before.
    fn look_at_neighbour(&mut self) -> Outcome {
        let neighbour = (self.me + 1) % self.user.cpus();
        let (page, way) = (self.choose(FILE), self.choose(3));
        let offset = page * PAGE + 64 * neighbour as u64;
        let held = match way {
            0 => self.must_load(FILE_AT + offset)?,
            1 => self.must_load(READ_AT + offset)?,
            _ => self.call("read", Call::Read { file: self.file, offset })?,
        };
        let seen = &mut self.seen[page as usize];
        let (clause, account) = match count_of(Kind::File, neighbour, page, held) {
            Some(count) if count >= *seen => {
                *seen = count;
                return Ok(());
            }
            Some(count) => {
                (Clause::C4, format!("went back from store {seen} of cpu {neighbour} to {count}"))
            }
            None => (Clause::C1, format!("holds {held:#x}, which cpu {neighbour} never wrote")),
        };
        self.broken(clause, format!("page {page} of the file {account}"))
    }

    /// Returns a range in which all CPUs, or only this one, have pages.
    fn some_range(&mut self) -> (u64, u64) {
        let (base, pages) = match self.choose(5) {
            0 => (FILE_AT, FILE),
            1 => (READ_AT, FILE),
            2 => (LARGE_AT, LARGE),
            3 => {
                let chunk = self.choose(CHUNKS);
                let half = self.chunks[chunk as usize].half;
                (Self::own_at(self.me, half, chunk, 0), CHUNK)
            }
            _ => (SHARED_AT, SHARED),
        };
        let first = self.choose(pages);
        let count = 1 + self.choose((pages - first).min(40));
        (base + first * PAGE, count * PAGE)
    }

    /// Makes a call about a range that may be unmapped, which is then refused.
    fn about_range(&self, name: &'static str, call: Call) -> Outcome {
        match self.user.call(call) {
            Ok(_) | Err(Error::NotMapped | Error::OutOfMemory) => Ok(()),
            Err(error) => Err(failed(name)(error)),
        }
    }

    fn page_out(&mut self) -> Outcome {
        let (address, bytes) = self.some_range();
        self.about_range("page out", Call::PageOut { address, bytes })
    }

    fn migrate(&mut self) -> Outcome {
        let (address, bytes) = self.some_range();
        let node = self.choose(2) as u32;
        self.about_range("migrate", Call::Migrate { address, bytes, node })
    }

    fn collapse(&mut self) -> Outcome {
        let page = self.choose(LARGE);
        let address = LARGE_AT + page * PAGE;
        self.about_range("collapse", Call::Collapse { address })?;
        let old = self.expected(Kind::Large, page);
        self.must_hold(self.word_of(Kind::Large, page), old, Clause::C2)
    }

    /// Reads memory that other CPUs own, map and unmap.
    fn peek(&mut self) -> Outcome {
        let cpu = self.choose(self.user.cpus() as u64) as usize;
        let (half, chunk, page) = (self.choose(2), self.choose(CHUNKS), self.choose(CHUNK));
        let shared = self.choose(SHARED);
        let address = Self::own_at(cpu, half, chunk, page);
        match self.load(address) {
            Err(Fault::NotMapped) => {}
            Ok(held) if count_of(Kind::Own, cpu, chunk * CHUNK + page, held).is_some() => {}
            other => {
                return self
                    .broken(Clause::C1, format!("{address:#x} of cpu {cpu} gives {other:x?}"));
            }
        }
        let address = SHARED_AT + shared * PAGE + 64 * cpu as u64;
        let held = self.must_load(address)?;
        match count_of(Kind::Shared, cpu, shared, held) {
            Some(_) => Ok(()),
            None => self.broken(
                Clause::C1,
                format!("{address:#x} holds {held:#x}, which cpu {cpu} never wrote there"),
            ),
        }
    }
}

/// Operations on memory, processes and a file that only one CPU writes.
impl<U: User> Stress<'_, U> {
    /// Checks a page of this CPU's own region. Memory that it never wrote must be zero.
    fn check_own(&mut self, chunk: u64, page: u64, beside: u64) -> Outcome {
        let state = self.chunks[chunk as usize];
        let address = Self::own_at(self.me, state.half, chunk, page);
        if !state.mapped {
            return self.must_fault(address, Fault::NotMapped, Clause::C3, "an unmapped page");
        }
        let count = state.counts[page as usize];
        let expected = value(Kind::Own, self.me, chunk * CHUNK + page, count);
        self.must_hold(address, expected, Clause::C3)?;
        self.must_hold(address + 8 + 64 * beside, 0, Clause::C8)
    }

    fn use_own(&mut self) -> Outcome {
        let (chunk, page, beside) = (self.choose(CHUNKS), self.choose(CHUNK), self.choose(64));
        self.check_own(chunk, page, beside)?;
        let state = self.chunks[chunk as usize];
        if !state.mapped {
            return Ok(());
        }
        let address = Self::own_at(self.me, state.half, chunk, page);
        let count = self.next_count();
        let new = value(Kind::Own, self.me, chunk * CHUNK + page, count);
        if state.writable {
            self.must_store(address, new)?;
            self.chunks[chunk as usize].counts[page as usize] = count;
            return self.must_hold(address, new, Clause::C2);
        }
        match self.retry(|| self.user.try_write(address, new)) {
            Err(Fault::Forbidden) => Ok(()),
            other => self
                .broken(Clause::C3, format!("a store to protected {address:#x} gives {other:?}")),
        }
    }

    fn discard(&mut self) -> Outcome {
        let chunk = self.choose(CHUNKS);
        let state = self.chunks[chunk as usize];
        if state.mapped {
            let address = Self::own_at(self.me, state.half, chunk, 0);
            self.call("discard", Call::Discard { address, bytes: CHUNK * PAGE })?;
            self.chunks[chunk as usize].counts = [0; CHUNK as usize];
        }
        let page = self.choose(CHUNK);
        self.check_own(chunk, page, 3)
    }

    fn protect(&mut self) -> Outcome {
        let (chunk, page) = (self.choose(CHUNKS), self.choose(CHUNK));
        let state = self.chunks[chunk as usize];
        if !state.mapped {
            return Ok(());
        }
        let address = Self::own_at(self.me, state.half, chunk, 0);
        let protection = if state.writable { Protection::READ } else { Protection::READ_WRITE };
        self.call("protect", Call::Protect { address, bytes: CHUNK * PAGE, protection })?;
        self.chunks[chunk as usize].writable = !state.writable;
        let first = address + page * PAGE;
        let held = self.must_load(first)?;
        match (self.retry(|| self.user.try_write(first, held)), protection.write) {
            (Ok(()), true) | (Err(Fault::Forbidden), false) => self.check_own(chunk, page, 5),
            (other, _) => self.broken(
                Clause::C3,
                format!("a store to {first:#x}, protected {protection:?}, gives {other:?}"),
            ),
        }
    }

    fn unmap_or_map(&mut self) -> Outcome {
        let (chunk, page) = (self.choose(CHUNKS), self.choose(CHUNK));
        let state = self.chunks[chunk as usize];
        if state.mapped {
            let address = Self::own_at(self.me, state.half, chunk, 0);
            self.call("unmap", Call::Unmap { address, bytes: CHUNK * PAGE })?;
            self.chunks[chunk as usize].mapped = false;
        } else {
            self.map_chunk(chunk)?;
        }
        self.check_own(chunk, page, 7)
    }

    fn remap(&mut self) -> Outcome {
        let (chunk, page) = (self.choose(CHUNKS), self.choose(CHUNK));
        let state = self.chunks[chunk as usize];
        if !state.mapped {
            return Ok(());
        }
        let [from, to] =
            [state.half, 1 - state.half].map(|half| Self::own_at(self.me, half, chunk, 0));
        self.call("remap", Call::Remap { address: from, bytes: CHUNK * PAGE, to: Some(to) })?;
        self.chunks[chunk as usize].half = 1 - state.half;
        let old = from + page * PAGE;
        self.must_fault(old, Fault::NotMapped, Clause::C3, "a page that moved away")?;
        self.check_own(chunk, page, 9)
    }

    /// Checks that a process's copy sees this CPU's words, and keeps its own stores.
    fn fork(&mut self) -> Outcome {
        let (page, chunk, own) = (self.choose(SHARED), self.choose(CHUNKS), self.choose(CHUNK));
        let child = match self.user.call(Call::Fork) {
            Ok(child) => child as u32,
            Err(Error::OutOfMemory | Error::Busy) => return Ok(()),
            Err(error) => return Err(failed("fork")(error)),
        };
        let (address, old) = (self.word_of(Kind::Shared, page), self.expected(Kind::Shared, page));
        self.call("enter", Call::Enter { process: child })?;
        let in_child = self
            .must_hold(address, old, Clause::C5)
            .and_then(|()| self.check_own(chunk, own, 11))
            .and_then(|()| {
                let count = self.next_count();
                let new = value(Kind::Child, self.me, page, count);
                self.must_store(address, new)?;
                self.must_hold(address, new, Clause::C5)
            });
        self.call("enter", Call::Enter { process: self.home })?;
        in_child?;
        self.must_hold(address, old, Clause::C5)?;
        self.call("exit", Call::Exit { process: child }).map(|_| ())
    }

    /// Visits this CPU's own process, where the shared addresses map other memory.
    fn visit(&mut self) -> Outcome {
        let guest = self.choose(GUESTS as u64) as usize;
        let ends = self.choose(4) == 0;
        let (process, count) = self.guests[guest];
        let address = self.word_of(Kind::Shared, guest as u64);
        let held = |count| value(Kind::Guest, self.me, guest as u64, count);
        self.call("enter", Call::Enter { process })?;
        let next = self.latest + 1;
        let inside = (|| {
            if count == 0 {
                let what = "a page of a new process";
                self.must_fault(address, Fault::NotMapped, Clause::C5, what)?;
                let backing = Backing::Anonymous { page: PageSize::Base };
                self.map(SHARED_AT, SHARED, backing, Protection::READ_WRITE)?;
            }
            self.must_hold(address, held(count), Clause::C5)?;
            self.must_store(address, held(next))?;
            self.must_hold(address, held(next), Clause::C5)
        })();
        self.call("enter", Call::Enter { process: self.home })?;
        inside?;
        self.latest = next;
        self.guests[guest].1 = next;
        if ends {
            self.call("exit", Call::Exit { process })?;
            self.guests[guest] = (self.call("spawn", Call::Spawn)? as u32, 0);
        }
        let (home, old) = (self.word_of(Kind::Shared, 0), self.expected(Kind::Shared, 0));
        self.must_hold(home, old, Clause::C5)
    }

    fn truncate(&mut self) -> Outcome {
        let (pages, written) = (self.choose(TAIL + 1), self.choose(TAIL));
        self.call("truncate", Call::Truncate { file: self.tail, bytes: pages * PAGE })?;
        self.tail_counts[pages as usize..].fill(0);
        for page in 0..TAIL {
            let address = self.tail_at(page);
            if page >= pages {
                let what = "a page beyond the end";
                self.must_fault(address, Fault::BeyondEnd, Clause::C3, what)?;
                continue;
            }
            let expected = value(Kind::Tail, self.me, page, self.tail_counts[page as usize]);
            self.must_hold(address, expected, Clause::C4)?;
        }
        if written < pages {
            let count = self.next_count();
            self.must_store(self.tail_at(written), value(Kind::Tail, self.me, written, count))?;
            self.tail_counts[written as usize] = count;
        }
        Ok(())
    }
}

//! Stress: every operation of the memory manager, on every CPU at once, at random.
//!
//! All CPUs run in one process and change memory that all of them use: they write words of their
//! own in shared pages and in a file, while others page the same pages out, migrate, demote,
//! reclaim, collapse and fork them. Each CPU also has a region of its own, which it discards,
//! protects, unmaps and moves while others look into it, processes of its own that it visits, a
//! file that it truncates, and it goes idle and comes back. Whoever runs it gives it less memory
//! than it uses, and can disturb CPUs meanwhile.
//!
//! Every value that is ever stored carries a checksum of what it is, where it belongs and how
//! often its owner has written there. A word that its owner reads must be exactly what it wrote
//! last; a word that another CPU reads must be one that the owner has written, and never an older
//! one than was seen before. So a lost write, a read through a translation to a frame that belongs
//! to somebody else, another process's memory, and memory that was not zeroed all show.
//!
//! What each CPU does is a function of the seed and its number alone, so a seed replays the
//! operations (not their interleaving; on an emulator that counts instructions, that too).

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use quell::{CpuId, PageSize};
use quell_contract::{Clause, Violation};
use quell_vm::{Backing, Call, Error, Fault, Protection, User};

const PAGE: u64 = 4096;
/// Pages that all CPUs write, anonymous.
const SHARED: u64 = 96;
/// Pages that all CPUs write, of a file.
const FILE: u64 = 32;
/// Pages that all CPUs write and that may be one large page.
const LARGE: u64 = 512;
/// Pages of one chunk of a CPU's own region.
const CHUNK: u64 = 8;
/// Chunks of a CPU's own region; each lies in one of two halves.
const CHUNKS: u64 = 16;
/// Processes of each CPU's own.
const GUESTS: usize = 3;
/// Pages of the file that each CPU truncates.
const TAIL: u64 = 6;
/// Operations of each CPU between two looks at whether the run goes on.
pub const ROUND: u64 = 1_000;
/// The most CPUs: each has a cache line of every shared page.
pub const CPUS: usize = 64;
/// Where the anonymous shared pages lie.
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

/// Control words.
mod word {
    pub const ARRIVALS: usize = 0;
    pub const FAILED: usize = 1;
    pub const GOES_ON: usize = 2;
    pub const DIGEST: usize = 3;
    pub const FILE: usize = 4;
}

/// How long to go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    /// That many rounds of [`ROUND`] operations on each CPU.
    Rounds(u64),
    /// Until that many nanoseconds have passed, and to the end of the round.
    Nanoseconds(u64),
}

/// What was done when a round has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Rounds so far.
    pub rounds: u64,
    /// Operations of all CPUs so far.
    pub operations: u64,
    /// Digest of all operations chosen so far: the same for the same seed, CPUs and rounds.
    pub digest: u64,
    /// Nanoseconds since the start, by the machine's clock.
    pub nanoseconds: u64,
}

/// A generator of choices (SplitMix64, Steele, Lea and Flood 2014).
struct Choices(u64);

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Choices {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0) % bound
    }
}

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

/// The value of the `count`th store to a place: the count above, a checksum of it below.
fn value(kind: Kind, cpu: usize, page: u64, count: u64) -> u64 {
    let place = (kind as u64) << 56 | (cpu as u64) << 40 | page;
    count << 24 | mix(mix(place) ^ count) & 0xff_ffff
}

/// How often the place had been written when this value was stored; `None` if no such store was
/// ever made there. Memory that was never written is zero.
fn count_of(kind: Kind, cpu: usize, page: u64, held: u64) -> Option<u64> {
    let count = held >> 24;
    (held == 0 || value(kind, cpu, page, count) == held).then_some(count)
}

/// Where a non-maskable interrupt may look: a word that all CPUs share, and whether what it holds
/// was ever stored there. `choice` is any number.
///
/// The interrupt does not know which process it finds its CPU in. In a guest and in a child, the
/// word at that address is what its CPU stored in that process.
pub fn probe(choice: u64, cpus: usize) -> (u64, impl Fn(u64) -> bool) {
    let (page, cpu) = (choice % SHARED, (choice >> 32) as usize % cpus);
    let address = SHARED_AT + page * PAGE + 64 * cpu as u64;
    (address, move |held| {
        [Kind::Shared, Kind::Guest, Kind::Child]
            .into_iter()
            .any(|kind| count_of(kind, cpu, page, held).is_some())
    })
}

/// What this CPU knows of one chunk of its own region.
#[derive(Clone, Copy)]
struct Chunk {
    mapped: bool,
    writable: bool,
    half: u64,
    /// How often each page was written since it was last zero; 0 is zero.
    counts: [u64; CHUNK as usize],
}

/// One CPU's part.
struct Stress<'u, U> {
    user: &'u U,
    disturb: &'u dyn Fn(usize),
    me: usize,
    crossed: u64,
    choices: Choices,
    digest: u64,
    file: u32,
    tail: u32,
    tail_pages: u64,
    tail_counts: [u64; TAIL as usize],
    home: u32,
    guests: [(u32, u64); GUESTS],
    /// How often this CPU has written its word of each page that all write.
    shared: Vec<u64>,
    large: Vec<u64>,
    filed: Vec<u64>,
    /// The latest store of the next CPU that this one has seen, by page of the file.
    seen: Vec<u64>,
    chunks: [Chunk; CHUNKS as usize],
    /// Counts never go back, so that old values are told from new ones.
    latest: u64,
}

/// What was seen that must not be.
type Outcome<T = ()> = Result<T, String>;

/// Runs one CPU's part; every CPU calls this at the same time, in the process `home`. The first CPU
/// hands what was done to `progress` after each round. `disturb` is called now and then with the
/// number of another CPU: whoever runs the stress interrupts that CPU in some way.
///
/// # Errors
/// What was seen on this CPU that breaks the contract, or which call was refused.
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
        choices: Choices(mix(seed ^ mix(me as u64 + 1))),
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
        chunks: [Chunk {
            mapped: false,
            writable: true,
            half: 0,
            counts: [0; CHUNK as usize],
        }; CHUNKS as usize],
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

    /// A choice that counts for the digest of what was done.
    fn choose(&mut self, bound: u64) -> u64 {
        let choice = self.choices.below(bound);
        self.digest = mix(self.digest ^ choice).wrapping_add(bound);
        choice
    }

    /// Under memory pressure an access may find no memory while others hold what could be freed.
    fn retry<T>(&self, what: impl Fn() -> Result<T, Fault>) -> Result<T, Fault> {
        for _ in 0..200 {
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
        self.load(address)
            .map_err(|fault| format!("load of {address:#x}: {fault}"))
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

    /// This CPU saw the contract broken.
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
            Call::Map {
                address: Some(address),
                bytes: pages * PAGE,
                protection,
                backing,
            },
        )
        .map(|_| ())
    }

    fn set_up(&mut self) -> Outcome {
        let anonymous = |page| Backing::Anonymous { page };
        let mut outcome = Ok(());
        if self.me == 0 {
            outcome = (|| {
                self.map(
                    SHARED_AT,
                    SHARED,
                    anonymous(PageSize::Base),
                    Protection::READ_WRITE,
                )?;
                self.map(
                    LARGE_AT,
                    LARGE,
                    anonymous(PageSize::Large),
                    Protection::READ_WRITE,
                )?;
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
        let backing = Backing::Shared {
            file: self.tail,
            offset: 0,
        };
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

    fn tail_at(&self, page: u64) -> u64 {
        TAIL_AT + self.me as u64 * OWN_STRIDE + page * PAGE
    }

    fn own_at(cpu: usize, half: u64, chunk: u64, page: u64) -> u64 {
        OWN_AT + cpu as u64 * OWN_STRIDE + half * HALF + (chunk * CHUNK + page) * PAGE
    }

    fn map_chunk(&mut self, chunk: u64) -> Outcome {
        let half = self.chunks[chunk as usize].half;
        let backing = Backing::Anonymous {
            page: PageSize::Base,
        };
        self.map(
            Self::own_at(self.me, half, chunk, 0),
            CHUNK,
            backing,
            Protection::READ_WRITE,
        )?;
        let state = &mut self.chunks[chunk as usize];
        *state = Chunk {
            mapped: true,
            writable: true,
            half,
            counts: [0; CHUNK as usize],
        };
        Ok(())
    }

    /// This CPU's word of a page that all write.
    fn word_of(&self, kind: Kind, page: u64) -> u64 {
        let base = match kind {
            Kind::Shared => SHARED_AT,
            Kind::Large => LARGE_AT,
            _ => FILE_AT,
        };
        base + page * PAGE + 64 * self.me as u64
    }

    fn counts(&mut self, kind: Kind) -> &mut Vec<u64> {
        match kind {
            Kind::Shared => &mut self.shared,
            Kind::Large => &mut self.large,
            _ => &mut self.filed,
        }
    }

    fn expected(&mut self, kind: Kind, page: u64) -> u64 {
        match self.counts(kind)[page as usize] {
            0 => 0,
            count => value(kind, self.me, page, count),
        }
    }

    /// One operation, chosen at random.
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
        let (address, old) = (
            self.word_of(Kind::File, page),
            self.expected(Kind::File, page),
        );
        let offset = address - FILE_AT;
        self.must_hold(READ_AT + offset, old, Clause::C4)?;
        let count = self.next_count();
        self.filed[page as usize] = count;
        let new = value(Kind::File, self.me, page, count);
        if by_call {
            let call = Call::Write {
                file: self.file,
                offset,
                value: new,
            };
            self.call("write", call)?;
            self.must_hold(address, new, Clause::C4)
        } else {
            self.must_store(address, new)?;
            self.must_hold(READ_AT + offset, new, Clause::C4)
        }
    }

    /// What the next CPU wrote to the file: never something older than was seen before.
    fn look_at_neighbour(&mut self) -> Outcome {
        let neighbour = (self.me + 1) % self.user.cpus();
        let (page, way) = (self.choose(FILE), self.choose(3));
        let offset = page * PAGE + 64 * neighbour as u64;
        let held = match way {
            0 => self.must_load(FILE_AT + offset)?,
            1 => self.must_load(READ_AT + offset)?,
            _ => {
                let file = self.file;
                self.call("read", Call::Read { file, offset })?
            }
        };
        match count_of(Kind::File, neighbour, page, held) {
            Some(count) if count >= self.seen[page as usize] => {
                self.seen[page as usize] = count;
                Ok(())
            }
            Some(count) => self.broken(
                Clause::C4,
                format!(
                    "page {page} of the file went back from store {} of cpu {neighbour} to {count}",
                    self.seen[page as usize]
                ),
            ),
            None => self.broken(
                Clause::C1,
                format!(
                    "page {page} of the file holds {held:#x}, which cpu {neighbour} never wrote"
                ),
            ),
        }
    }

    /// Checks a page of this CPU's own region, and that what nobody writes in it is zero.
    fn check_own(&mut self, chunk: u64, page: u64, beside: u64) -> Outcome {
        let state = self.chunks[chunk as usize];
        let address = Self::own_at(self.me, state.half, chunk, page);
        if !state.mapped {
            return match self.load(address) {
                Err(Fault::NotMapped) => Ok(()),
                other => self.broken(
                    Clause::C3,
                    format!("unmapped page {address:#x} gives {other:x?}"),
                ),
            };
        }
        let expected = match state.counts[page as usize] {
            0 => 0,
            count => value(Kind::Own, self.me, chunk * CHUNK + page, count),
        };
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
            other => self.broken(
                Clause::C3,
                format!("a store to protected {address:#x} gives {other:?}"),
            ),
        }
    }

    fn discard(&mut self) -> Outcome {
        let chunk = self.choose(CHUNKS);
        let state = self.chunks[chunk as usize];
        if state.mapped {
            let address = Self::own_at(self.me, state.half, chunk, 0);
            let bytes = CHUNK * PAGE;
            self.call("discard", Call::Discard { address, bytes })?;
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
        let protection = if state.writable {
            Protection::READ
        } else {
            Protection::READ_WRITE
        };
        let call = Call::Protect {
            address,
            bytes: CHUNK * PAGE,
            protection,
        };
        self.call("protect", call)?;
        self.chunks[chunk as usize].writable = !state.writable;
        let first = address + page * PAGE;
        let held = self.must_load(first)?;
        match (
            self.retry(|| self.user.try_write(first, held)),
            protection.write,
        ) {
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
            let bytes = CHUNK * PAGE;
            self.call("unmap", Call::Unmap { address, bytes })?;
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
        let (from, to) = (
            Self::own_at(self.me, state.half, chunk, 0),
            Self::own_at(self.me, 1 - state.half, chunk, 0),
        );
        let call = Call::Remap {
            address: from,
            bytes: CHUNK * PAGE,
            to: Some(to),
        };
        self.call("remap", call)?;
        self.chunks[chunk as usize].half = 1 - state.half;
        match self.load(from + page * PAGE) {
            Err(Fault::NotMapped) => self.check_own(chunk, page, 9),
            other => self.broken(
                Clause::C3,
                format!("a page that moved away gives {other:x?}"),
            ),
        }
    }

    /// A range in which all CPUs, or this one alone, have pages.
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

    /// A call about a range that may be unmapped is refused if it is.
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
        let call = Call::Migrate {
            address,
            bytes,
            node,
        };
        self.about_range("migrate", call)
    }

    fn collapse(&mut self) -> Outcome {
        let page = self.choose(LARGE);
        let address = LARGE_AT + page * PAGE;
        self.about_range("collapse", Call::Collapse { address })?;
        let old = self.expected(Kind::Large, page);
        self.must_hold(self.word_of(Kind::Large, page), old, Clause::C2)
    }

    /// A copy of the process sees this CPU's words as they are, and its stores stay its own.
    fn fork(&mut self) -> Outcome {
        let (page, chunk, own) = (self.choose(SHARED), self.choose(CHUNKS), self.choose(CHUNK));
        let child = match self.user.call(Call::Fork) {
            Ok(child) => child as u32,
            Err(Error::OutOfMemory | Error::Busy) => return Ok(()),
            Err(error) => return Err(failed("fork")(error)),
        };
        let (address, old) = (
            self.word_of(Kind::Shared, page),
            self.expected(Kind::Shared, page),
        );
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

    /// Goes to a process of this CPU's own, where the shared pages' addresses mean other memory.
    fn visit(&mut self) -> Outcome {
        let guest = self.choose(GUESTS as u64) as usize;
        let ends = self.choose(4) == 0;
        let (process, count) = self.guests[guest];
        let address = self.word_of(Kind::Shared, guest as u64);
        let held = |count| match count {
            0 => 0,
            count => value(Kind::Guest, self.me, guest as u64, count),
        };
        self.call("enter", Call::Enter { process })?;
        let next = self.latest + 1;
        let inside = (|| {
            if count == 0 {
                match self.load(address) {
                    Err(Fault::NotMapped) => {}
                    other => {
                        return self.broken(Clause::C5, format!("a new process has {other:x?}"));
                    }
                }
                let backing = Backing::Anonymous {
                    page: PageSize::Base,
                };
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
        let (home, old) = (
            self.word_of(Kind::Shared, 0),
            self.expected(Kind::Shared, 0),
        );
        self.must_hold(home, old, Clause::C5)
    }

    fn truncate(&mut self) -> Outcome {
        let (pages, written) = (self.choose(TAIL + 1), self.choose(TAIL));
        let call = Call::Truncate {
            file: self.tail,
            bytes: pages * PAGE,
        };
        self.call("truncate", call)?;
        for page in pages..TAIL {
            self.tail_counts[page as usize] = 0;
        }
        self.tail_pages = pages;
        for page in 0..TAIL {
            let address = self.tail_at(page);
            if page >= pages {
                match self.load(address) {
                    Err(Fault::BeyondEnd) => continue,
                    other => {
                        return self.broken(
                            Clause::C3,
                            format!("a page beyond the end gives {other:x?}"),
                        );
                    }
                }
            }
            let expected = match self.tail_counts[page as usize] {
                0 => 0,
                count => value(Kind::Tail, self.me, page, count),
            };
            self.must_hold(address, expected, Clause::C4)?;
        }
        if written < pages {
            let count = self.next_count();
            self.must_store(
                self.tail_at(written),
                value(Kind::Tail, self.me, written, count),
            )?;
            self.tail_counts[written as usize] = count;
        }
        Ok(())
    }

    /// Looks into memory that other CPUs own, map and unmap.
    fn peek(&mut self) -> Outcome {
        let cpu = self.choose(self.user.cpus() as u64) as usize;
        let (half, chunk, page) = (self.choose(2), self.choose(CHUNKS), self.choose(CHUNK));
        let shared = self.choose(SHARED);
        let address = Self::own_at(cpu, half, chunk, page);
        match self.load(address) {
            Err(Fault::NotMapped) => {}
            Ok(held) if count_of(Kind::Own, cpu, chunk * CHUNK + page, held).is_some() => {}
            other => {
                return self.broken(
                    Clause::C1,
                    format!("{address:#x} of cpu {cpu} gives {other:x?}"),
                );
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

    /// Everything that this CPU has written is there.
    fn verify_all(&mut self) -> Outcome {
        for (kind, pages) in [
            (Kind::Shared, SHARED),
            (Kind::Large, LARGE),
            (Kind::File, FILE),
        ] {
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

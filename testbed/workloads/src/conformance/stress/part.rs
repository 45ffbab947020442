//! One CPU's part: its knowledge of the memory that it writes, and its accesses.

use super::values::*;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::hash::BuildHasher;
use quell::{CpuId, PageSize};
use quell_vm::contract::{Clause, Violation};
use quell_vm::{Backing, Call, Error, Fault, Protection, User};
use rand::RngExt;
use rand_pcg::Pcg64;
use rustc_hash::FxBuildHasher;

/// Control words.
pub mod word {
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
pub struct Chunk {
    pub mapped: bool,
    pub writable: bool,
    pub half: u64,
    /// Writes of each page since it was last zero; 0 if it is zero.
    pub counts: [u64; CHUNK as usize],
}

/// One CPU's part.
pub struct Stress<'u, U> {
    pub user: &'u U,
    pub disturb: &'u dyn Fn(usize),
    pub me: usize,
    pub crossed: u64,
    pub choices: Pcg64,
    pub digest: u64,
    pub file: u32,
    pub tail: u32,
    pub tail_pages: u64,
    pub tail_counts: [u64; TAIL as usize],
    pub home: u32,
    pub guests: [(u32, u64); GUESTS],
    /// This CPU's writes of its word in each page that all CPUs write.
    pub shared: Vec<u64>,
    pub large: Vec<u64>,
    pub filed: Vec<u64>,
    /// The latest store of the next CPU that this one has seen, by page of the file.
    pub seen: Vec<u64>,
    pub chunks: [Chunk; CHUNKS as usize],
    /// Never decreases, so old values are distinct from new ones.
    pub latest: u64,
}

/// The result of an operation; the error describes a violation.
pub type Outcome<T = ()> = Result<T, String>;

pub fn failed(call: &'static str) -> impl Fn(Error) -> String {
    move |error| format!("{call}: {error}")
}

impl<U: User> Stress<'_, U> {
    pub fn note(&self, outcome: &Outcome) {
        if outcome.is_err() {
            self.user.set_shared(word::FAILED, 1);
        }
    }

    pub fn barrier(&mut self) {
        self.crossed += 1;
        let all = self.crossed * self.user.cpus() as u64;
        self.user.add_shared(word::ARRIVALS, 1);
        while self.user.shared(word::ARRIVALS) < all {}
    }

    /// Makes a random choice and adds it to the digest of operations.
    pub fn choose(&mut self, bound: u64) -> u64 {
        let choice = self.choices.random_range(0..bound);
        self.digest = FxBuildHasher.hash_one((self.digest, choice, bound));
        choice
    }

    /// Retries an access, which may fail while other CPUs hold memory that could be freed.
    pub fn retry<T>(&self, what: impl Fn() -> Result<T, Fault>) -> Result<T, Fault> {
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

    pub fn load(&self, address: u64) -> Result<u64, Fault> {
        self.retry(|| self.user.try_read(address))
    }

    pub fn must_load(&self, address: u64) -> Outcome<u64> {
        self.load(address).map_err(|fault| format!("load of {address:#x}: {fault}"))
    }

    pub fn must_store(&self, address: u64, value: u64) -> Outcome {
        self.retry(|| self.user.try_write(address, value))
            .map_err(|fault| format!("store to {address:#x}: {fault}"))
    }

    pub fn must_hold(&self, address: u64, expected: u64, clause: Clause) -> Outcome {
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

    /// Reports that this CPU saw the contract broken.
    pub fn broken<T>(&self, clause: Clause, account: String) -> Outcome<T> {
        let violation = Violation::new(clause, account).by(CpuId(self.me as u16));
        Err(violation.to_string())
    }

    pub fn call(&self, name: &'static str, call: Call) -> Outcome<u64> {
        self.user.call(call).map_err(failed(name))
    }

    pub fn next_count(&mut self) -> u64 {
        self.latest += 1;
        self.latest
    }

    pub fn map(
        &self,
        address: u64,
        pages: u64,
        backing: Backing,
        protection: Protection,
    ) -> Outcome {
        self.call(
            "map",
            Call::Map { address: Some(address), bytes: pages * PAGE, protection, backing },
        )
        .map(|_| ())
    }

    pub fn tail_at(&self, page: u64) -> u64 {
        TAIL_AT + self.me as u64 * OWN_STRIDE + page * PAGE
    }

    pub fn own_at(cpu: usize, half: u64, chunk: u64, page: u64) -> u64 {
        OWN_AT + cpu as u64 * OWN_STRIDE + half * HALF + (chunk * CHUNK + page) * PAGE
    }

    pub fn map_chunk(&mut self, chunk: u64) -> Outcome {
        let half = self.chunks[chunk as usize].half;
        let backing = Backing::Anonymous { page: PageSize::Base };
        self.map(Self::own_at(self.me, half, chunk, 0), CHUNK, backing, Protection::READ_WRITE)?;
        let state = &mut self.chunks[chunk as usize];
        *state = Chunk { mapped: true, writable: true, half, counts: [0; CHUNK as usize] };
        Ok(())
    }

    /// Returns the address of this CPU's word in a page that all CPUs write.
    pub fn word_of(&self, kind: Kind, page: u64) -> u64 {
        let base = match kind {
            Kind::Shared => SHARED_AT,
            Kind::Large => LARGE_AT,
            Kind::File | Kind::Own | Kind::Guest | Kind::Tail | Kind::Child => FILE_AT,
        };
        base + page * PAGE + 64 * self.me as u64
    }

    pub fn counts(&mut self, kind: Kind) -> &mut Vec<u64> {
        match kind {
            Kind::Shared => &mut self.shared,
            Kind::Large => &mut self.large,
            Kind::File | Kind::Own | Kind::Guest | Kind::Tail | Kind::Child => &mut self.filed,
        }
    }

    pub fn expected(&mut self, kind: Kind, page: u64) -> u64 {
        match self.counts(kind)[page as usize] {
            0 => 0,
            count => value(kind, self.me, page, count),
        }
    }
}

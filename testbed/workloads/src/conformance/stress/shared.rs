//! Operations on memory that all CPUs write.

use super::part::{Outcome, Stress, failed};
use super::values::*;
use alloc::format;
use quell_vm::contract::Clause;
use quell_vm::{Call, Error, Fault, User};

impl<U: User> Stress<'_, U> {
    pub fn count_up(&mut self) -> Outcome {
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

    pub fn write_file(&mut self) -> Outcome {
        let page = self.choose(FILE);
        let by_call = self.choose(2) == 0;
        let (address, old) = (self.word_of(Kind::File, page), self.expected(Kind::File, page));
        let offset = address - FILE_AT;
        self.must_hold(READ_AT + offset, old, Clause::C4)?;
        let count = self.next_count();
        self.filed[page as usize] = count;
        let new = value(Kind::File, self.me, page, count);
        if by_call {
            let call = Call::Write { file: self.file, offset, value: new };
            self.call("write", call)?;
            self.must_hold(address, new, Clause::C4)
        } else {
            self.must_store(address, new)?;
            self.must_hold(READ_AT + offset, new, Clause::C4)
        }
    }

    /// Checks the next CPU's word of the file: never older than seen before.
    pub fn look_at_neighbour(&mut self) -> Outcome {
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

    /// Returns a range in which all CPUs, or only this one, have pages.
    pub fn some_range(&mut self) -> (u64, u64) {
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
    pub fn about_range(&self, name: &'static str, call: Call) -> Outcome {
        match self.user.call(call) {
            Ok(_) | Err(Error::NotMapped | Error::OutOfMemory) => Ok(()),
            Err(error) => Err(failed(name)(error)),
        }
    }

    pub fn page_out(&mut self) -> Outcome {
        let (address, bytes) = self.some_range();
        self.about_range("page out", Call::PageOut { address, bytes })
    }

    pub fn migrate(&mut self) -> Outcome {
        let (address, bytes) = self.some_range();
        let node = self.choose(2) as u32;
        let call = Call::Migrate { address, bytes, node };
        self.about_range("migrate", call)
    }

    pub fn collapse(&mut self) -> Outcome {
        let page = self.choose(LARGE);
        let address = LARGE_AT + page * PAGE;
        self.about_range("collapse", Call::Collapse { address })?;
        let old = self.expected(Kind::Large, page);
        self.must_hold(self.word_of(Kind::Large, page), old, Clause::C2)
    }

    /// Reads memory that other CPUs own, map and unmap.
    pub fn peek(&mut self) -> Outcome {
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

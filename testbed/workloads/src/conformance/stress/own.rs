//! Operations on memory, processes and a file that only one CPU writes.

use super::part::{Outcome, Stress, failed};
use super::values::*;
use alloc::format;
use quell::PageSize;
use quell_vm::contract::Clause;
use quell_vm::{Backing, Call, Error, Fault, Protection, User};

impl<U: User> Stress<'_, U> {
    /// Checks a page of this CPU's own region. Memory that it never wrote must be zero.
    pub fn check_own(&mut self, chunk: u64, page: u64, beside: u64) -> Outcome {
        let state = self.chunks[chunk as usize];
        let address = Self::own_at(self.me, state.half, chunk, page);
        if !state.mapped {
            return match self.load(address) {
                Err(Fault::NotMapped) => Ok(()),
                other => {
                    self.broken(Clause::C3, format!("unmapped page {address:#x} gives {other:x?}"))
                }
            };
        }
        let expected = match state.counts[page as usize] {
            0 => 0,
            count => value(Kind::Own, self.me, chunk * CHUNK + page, count),
        };
        self.must_hold(address, expected, Clause::C3)?;
        self.must_hold(address + 8 + 64 * beside, 0, Clause::C8)
    }

    pub fn use_own(&mut self) -> Outcome {
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

    pub fn discard(&mut self) -> Outcome {
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

    pub fn protect(&mut self) -> Outcome {
        let (chunk, page) = (self.choose(CHUNKS), self.choose(CHUNK));
        let state = self.chunks[chunk as usize];
        if !state.mapped {
            return Ok(());
        }
        let address = Self::own_at(self.me, state.half, chunk, 0);
        let protection = if state.writable { Protection::READ } else { Protection::READ_WRITE };
        let call = Call::Protect { address, bytes: CHUNK * PAGE, protection };
        self.call("protect", call)?;
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

    pub fn unmap_or_map(&mut self) -> Outcome {
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

    pub fn remap(&mut self) -> Outcome {
        let (chunk, page) = (self.choose(CHUNKS), self.choose(CHUNK));
        let state = self.chunks[chunk as usize];
        if !state.mapped {
            return Ok(());
        }
        let (from, to) = (
            Self::own_at(self.me, state.half, chunk, 0),
            Self::own_at(self.me, 1 - state.half, chunk, 0),
        );
        let call = Call::Remap { address: from, bytes: CHUNK * PAGE, to: Some(to) };
        self.call("remap", call)?;
        self.chunks[chunk as usize].half = 1 - state.half;
        match self.load(from + page * PAGE) {
            Err(Fault::NotMapped) => self.check_own(chunk, page, 9),
            other => self.broken(Clause::C3, format!("a page that moved away gives {other:x?}")),
        }
    }

    /// Checks that a process's copy sees this CPU's words, and keeps its own stores.
    pub fn fork(&mut self) -> Outcome {
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
    pub fn visit(&mut self) -> Outcome {
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

    pub fn truncate(&mut self) -> Outcome {
        let (pages, written) = (self.choose(TAIL + 1), self.choose(TAIL));
        let call = Call::Truncate { file: self.tail, bytes: pages * PAGE };
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
                        return self
                            .broken(Clause::C3, format!("a page beyond the end gives {other:x?}"));
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
            self.must_store(self.tail_at(written), value(Kind::Tail, self.me, written, count))?;
            self.tail_counts[written as usize] = count;
        }
        Ok(())
    }
}

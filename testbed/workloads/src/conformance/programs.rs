//! Checks clauses C1 to C8 of the contract through the accesses of programs.
//!
//! Each check performs one operation of the memory manager on one CPU, and checks the accesses of every CPU before and
//! after. The suite only uses [`User`], so it runs wherever workloads run.
//!
//! It detects a mistake only if a stale translation is visible on *that* machine. For example, an emulator may drop
//! entries early that a processor would keep: those of other address spaces under their tags, speculative fills, and
//! walker caches. The machines in software cover those.

use core::cell::Cell;
use quell::PageSize;
use quell_conformance::verdict::{Verdict, expect};
use quell_vm::{Backing, Call, Error, Fault, Protection, User};

/// Control words. No workload runs beside a suite, so they may overlap a workload's.
mod word {
    pub const ARRIVALS: usize = 0;
    pub const RESULT: usize = 1;
    pub const FAILURES: usize = 2;
    pub const ROUND: usize = 3;
}

const PAGE: u64 = 4096;
const ANONYMOUS: Backing = Backing::Anonymous { page: PageSize::Base };

/// One CPU's part in the suite.
///
/// Every CPU creates one and calls [`Suite::run`].
pub struct Suite<'u, U> {
    user: &'u U,
    /// The suite's process.
    home: u32,
    crossed: Cell<u64>,
}

impl<'u, U: User> Suite<'u, U> {
    /// Creates this CPU's part, in the process `home`.
    pub fn new(user: &'u U, home: u32) -> Self {
        Suite { user, home, crossed: Cell::new(0) }
    }

    /// Runs every check.
    ///
    /// For each check, the first CPU passes to `report` the check's name, the number of CPUs that failed, and the
    /// finding of the first CPU that failed.
    pub fn run(&self, report: impl Fn(&'static str, u64, &'static str)) {
        #[expect(clippy::type_complexity, reason = "read once, here")]
        let checks: [(&'static str, fn(&Self) -> Verdict); 12] = [
            ("C3 C8 discarded_pages_read_zero", Self::discard),
            ("C2 C3 protected_pages_refuse_stores", Self::protect),
            ("C1 C3 unmapped_pages_are_gone", Self::unmap),
            ("C3 moved_pages_leave_their_place", Self::remap),
            ("C2 swapped_pages_lose_no_store", Self::page_out),
            ("C2 migrated_pages_lose_no_store", Self::migrate),
            ("C2 C5 forked_pages_part_on_write", Self::fork),
            ("C5 processes_see_their_own_memory", Self::isolation),
            ("C4 written_files_are_read_anew", Self::file_write),
            ("C4 replaced_mappings_show_the_new_file", Self::file_replace),
            ("C3 truncated_files_end", Self::truncate),
            ("C6 freed_tables_are_not_walked", Self::tables),
        ];
        for (name, check) in checks {
            self.barrier();
            let verdict = check(self);
            if verdict.is_err() {
                self.user.add_shared(word::FAILURES, 1);
            }
            self.barrier();
            let failures = self.user.shared(word::FAILURES);
            self.barrier();
            if self.leads() {
                self.user.set_shared(word::FAILURES, 0);
                report(name, failures, verdict.err().unwrap_or(""));
            }
        }
    }

    fn leads(&self) -> bool {
        self.user.cpu() == 0
    }

    fn barrier(&self) {
        self.crossed.set(self.crossed.get() + 1);
        self.user.add_shared(word::ARRIVALS, 1);
        while self.user.shared(word::ARRIVALS) < self.crossed.get() * self.user.cpus() as u64 {}
    }

    /// Lets the first CPU perform an action between two barriers. Returns its result, or that it failed, on all CPUs.
    fn lead(&self, action: impl FnOnce(&U) -> Result<u64, Error>) -> Result<u64, &'static str> {
        const REFUSED: u64 = u64::MAX;
        self.barrier();
        if self.leads() {
            self.user.set_shared(word::RESULT, action(self.user).unwrap_or(REFUSED));
        }
        self.barrier();
        match self.user.shared(word::RESULT) {
            REFUSED => Err("a call was refused"),
            result => Ok(result),
        }
    }

    fn map(
        &self,
        pages: u64,
        protection: Protection,
        backing: Backing,
    ) -> Result<u64, &'static str> {
        self.lead(|user| {
            user.call(Call::Map { address: None, bytes: pages * PAGE, protection, backing })
        })
    }

    fn unmap_all(&self, address: u64, pages: u64) -> Verdict {
        self.lead(|user| user.call(Call::Unmap { address, bytes: pages * PAGE })).map(|_| ())
    }

    /// Makes every CPU load every page and compare.
    fn all_read(&self, address: u64, pages: u64, value: u64, otherwise: &'static str) -> Verdict {
        let same = (0..pages).all(|p| self.user.try_read(address + p * PAGE) == Ok(value));
        self.barrier();
        expect(same, otherwise)
    }

    fn fill(&self, address: u64, pages: u64, value: u64) -> Verdict {
        self.lead(|user| {
            (0..pages).for_each(|page| user.write(address + page * PAGE, value));
            Ok(0)
        })
        .map(|_| ())
    }

    fn discard(&self) -> Verdict {
        const PAGES: u64 = 8;
        let address = self.map(PAGES, Protection::READ_WRITE, ANONYMOUS)?;
        self.fill(address, PAGES, 0xd15c)?;
        let before = self.all_read(address, PAGES, 0xd15c, "a store was lost before the discard");
        self.lead(|user| user.call(Call::Discard { address, bytes: PAGES * PAGE }))?;
        let after = self.all_read(address, PAGES, 0, "a discarded page was not zero");
        self.unmap_all(address, PAGES)?;
        before.and(after)
    }

    fn protect(&self) -> Verdict {
        let address = self.map(1, Protection::READ_WRITE, ANONYMOUS)?;
        let mine = address + 64 * self.user.cpu() as u64 % PAGE;
        let change = |protection| {
            self.lead(|user| user.call(Call::Protect { address, bytes: PAGE, protection }))
        };
        let first = self.user.try_write(mine, 1);
        change(Protection::READ)?;
        let refused = self.user.try_write(mine, 2);
        change(Protection::READ_WRITE)?;
        let last = self.user.try_write(mine, 3);
        self.unmap_all(address, 1)?;
        expect(first.is_ok() && last.is_ok(), "a store to a writable page was refused")?;
        expect(refused == Err(Fault::Forbidden), "a store to a protected page went through")
    }

    fn unmap(&self) -> Verdict {
        const PAGES: u64 = 40;
        let address = self.map(PAGES, Protection::READ_WRITE, ANONYMOUS)?;
        self.fill(address, PAGES, 1)?;
        let before = self.all_read(address, PAGES, 1, "a store was lost before the unmap");
        self.unmap_all(address, PAGES)?;
        // The frames get new owners at once.
        let other = self.map(PAGES, Protection::READ_WRITE, ANONYMOUS)?;
        self.fill(other, PAGES, 2)?;
        let gone = other == address
            || (0..PAGES).all(|p| self.user.try_read(address + p * PAGE) == Err(Fault::NotMapped));
        self.unmap_all(other, PAGES)?;
        before.and(expect(gone, "an unmapped page could be read"))
    }

    fn remap(&self) -> Verdict {
        const PAGES: u64 = 4;
        let address = self.map(PAGES, Protection::READ_WRITE, ANONYMOUS)?;
        self.fill(address, PAGES, 0x3e3)?;
        let before = self.all_read(address, PAGES, 0x3e3, "a store was lost before the move");
        let bytes = PAGES * PAGE;
        let moved = self.lead(|user| user.call(Call::Remap { address, bytes, to: None }))?;
        let after = self.all_read(moved, PAGES, 0x3e3, "a moved page lost its content");
        let gone = self.user.try_read(address) == Err(Fault::NotMapped);
        self.unmap_all(moved, PAGES)?;
        before.and(after).and(expect(gone, "the old place of a moved page could be read"))
    }

    /// Makes every CPU count in its own word of one page, which the first CPU unmaps in the meantime.
    fn counting(&self, disturb: impl Fn(&U, u64) -> Result<u64, Error>) -> Verdict {
        const ROUNDS: u64 = 40;
        let address = self.map(1, Protection::READ_WRITE, ANONYMOUS)?;
        let mine = address + 64 * self.user.cpu() as u64 % PAGE;
        self.lead(|user| {
            user.set_shared(word::ROUND, 0);
            Ok(0)
        })?;
        let mut counted = 0;
        let mut verdict = Ok(());
        if self.leads() {
            for round in 1..=ROUNDS {
                self.user.write(mine, self.user.read(mine) + 1);
                counted += 1;
                if disturb(self.user, address).is_err() {
                    verdict = Err("a call was refused");
                }
                self.user.set_shared(word::ROUND, round);
            }
        } else {
            while self.user.shared(word::ROUND) < ROUNDS {
                self.user.write(mine, self.user.read(mine) + 1);
                counted += 1;
            }
        }
        self.barrier();
        let right = self.user.read(mine) == counted;
        self.unmap_all(address, 1)?;
        verdict.and(expect(right, "a store was lost"))
    }

    fn page_out(&self) -> Verdict {
        self.counting(|user, address| user.call(Call::PageOut { address, bytes: PAGE }))
    }

    fn migrate(&self) -> Verdict {
        self.counting(|user, address| {
            let node = user.shared(word::ROUND) as u32 % 2;
            user.call(Call::Migrate { address, bytes: PAGE, node })
        })
    }

    fn fork(&self) -> Verdict {
        let address = self.map(2, Protection::READ_WRITE, ANONYMOUS)?;
        self.fill(address, 2, 1)?;
        let before = self.all_read(address, 2, 1, "a store was lost before the fork");
        let child = self.lead(|user| user.call(Call::Fork))?;
        self.fill(address, 1, 2)?;
        let parent = self.all_read(address, 1, 2, "the parent's store is not seen by all of it");
        let seen = self.lead(|user| {
            user.call(Call::Enter { process: child as u32 })?;
            let seen = user.read(address);
            user.call(Call::Enter { process: self.home })?;
            user.call(Call::Exit { process: child as u32 })?;
            Ok(seen)
        })?;
        self.unmap_all(address, 2)?;
        before.and(parent).and(expect(seen == 1, "the child saw the parent's store"))
    }

    /// Makes each CPU except the first enter its own process and return.
    fn isolation(&self) -> Verdict {
        let address = self.map(1, Protection::READ_WRITE, ANONYMOUS)?;
        self.fill(address, 1, 0x900d)?;
        let home = self.home;
        let visit = || -> Result<bool, Error> {
            let process = self.user.call(Call::Spawn)? as u32;
            let own = 1000 + self.user.cpu() as u64;
            let mut right = true;
            for turn in 0..8 {
                right &= self.user.try_read(address) == Ok(0x900d);
                self.user.call(Call::Enter { process })?;
                if turn == 0 {
                    right &= self.user.try_read(address) == Err(Fault::NotMapped);
                    self.user.call(Call::Map {
                        address: Some(address),
                        bytes: PAGE,
                        protection: Protection::READ_WRITE,
                        backing: ANONYMOUS,
                    })?;
                    self.user.write(address, own);
                }
                right &= self.user.try_read(address) == Ok(own);
                self.user.call(Call::Enter { process: home })?;
            }
            self.user.call(Call::Exit { process })?;
            Ok(right)
        };
        let seen = visit();
        self.unmap_all(address, 1)?;
        match seen {
            Ok(right) => expect(right, "a process saw another's memory"),
            Err(_) => Err("a call was refused"),
        }
    }

    /// Creates a file whose first word is `value`.
    fn file(&self, pages: u64, value: u64) -> Result<u32, &'static str> {
        self.lead(|user| {
            let file = user.call(Call::Create { bytes: pages * PAGE })? as u32;
            user.call(Call::Write { file, offset: 0, value })?;
            user.call(Call::Sync { file })?;
            Ok(u64::from(file))
        })
        .map(|file| file as u32)
    }

    fn file_write(&self) -> Verdict {
        let file = self.file(1, 1)?;
        let address = self.map(1, Protection::READ, Backing::Shared { file, offset: 0 })?;
        let mut verdict = Ok(());
        for value in 2..12 {
            let old = self.all_read(address, 1, value - 1, "an old write is missing");
            // The page is clean and read-only, as are the entries that lazy unmap leaves on other CPUs.
            self.lead(|user| user.call(Call::PageOut { address, bytes: PAGE }))?;
            self.lead(|user| user.call(Call::Write { file, offset: 0, value }))?;
            let new = self.all_read(address, 1, value, "a write to a file was not seen");
            self.lead(|user| user.call(Call::Sync { file }))?;
            verdict = verdict.and(old).and(new);
        }
        self.unmap_all(address, 1)?;
        verdict
    }

    fn file_replace(&self) -> Verdict {
        let (one, two) = (self.file(1, 1)?, self.file(1, 2)?);
        let address = self.map(1, Protection::READ, Backing::Shared { file: one, offset: 0 })?;
        let before = self.all_read(address, 1, 1, "the first file is not there");
        self.lead(|user| user.call(Call::PageOut { address, bytes: PAGE }))?;
        self.lead(|user| {
            user.call(Call::Map {
                address: Some(address),
                bytes: PAGE,
                protection: Protection::READ,
                backing: Backing::Shared { file: two, offset: 0 },
            })
        })?;
        let after = self.all_read(address, 1, 2, "the replaced file was read");
        self.unmap_all(address, 1)?;
        before.and(after)
    }

    fn truncate(&self) -> Verdict {
        let file = self.file(4, 9)?;
        let backing = Backing::Shared { file, offset: 0 };
        let address = self.map(4, Protection::READ_WRITE, backing)?;
        let before = self.all_read(address, 1, 9, "the file is not there");
        let tail = self.user.try_read(address + 3 * PAGE);
        self.lead(|user| user.call(Call::Truncate { file, bytes: PAGE }))?;
        let after = self.user.try_read(address + 3 * PAGE);
        self.unmap_all(address, 4)?;
        before?;
        expect(tail == Ok(0), "the file's tail is not there")?;
        expect(after == Err(Fault::BeyondEnd), "a page beyond the end could be read")
    }

    fn tables(&self) -> Verdict {
        const STRIDE: u64 = 512;
        const TABLES: u64 = 6;
        let mut verdict = Ok(());
        let pages = TABLES * STRIDE;
        for round in 1..=8 {
            let address = self.map(pages, Protection::READ_WRITE, ANONYMOUS)?;
            for table in 0..TABLES {
                self.fill(address + table * STRIDE * PAGE, 1, round)?;
                let at = address + table * STRIDE * PAGE;
                verdict = verdict.and(self.all_read(at, 1, round, "a store was lost"));
            }
            self.unmap_all(address, pages)?;
            let gone = (0..TABLES).all(|table| {
                let at = address + table * STRIDE * PAGE;
                self.user.try_read(at) == Err(Fault::NotMapped)
            });
            verdict = verdict.and(expect(gone, "a page under a freed table could be read"));
        }
        verdict
    }
}

//! One CPU drops a page and touches it again, in a loop; all others spin in the same process.
//!
//! The smallest program that needs a shootdown each time round: the page that comes back is a new
//! one, so every CPU that runs the process must forget the old translation before the call returns.

use crate::parameter::parameters;
use crate::program::{Memory, Program, Window};
use crate::team::{Failure, Team};
use quell::{Mechanism, PageSize};
use quell_vm::{Backing, Call, Protection, User};

parameters! {
    /// `MADV_DONTNEED` and touch, other threads spinning.
    pub struct Dontneed {
        /// How many times the first CPU drops the pages and touches them again.
        iterations: Count = 2_000, 1 => 1_000_000_000;
        /// How many pages it drops with one call.
        pages: Count = 1, 1 => 65_536;
        /// How many pages lie from one of them to the next; the call spans the untouched ones between.
        stride: Count = 1, 1 => 512;
        /// Whether the pages are touched each time round; if not, the call finds nothing to drop.
        touch: Switch = 1, 0 => 1;
        /// How long the other CPUs compute between two looks at whether all is over.
        spin: Time = 100_000, 100 => 1_000_000;
        /// Whether the other CPUs sleep instead of computing.
        idle: Switch = 0, 0 => 1;
        /// Whether the pages are unmapped and mapped again instead (munmap, mmap), which frees page tables.
        unmap: Switch = 0, 0 => 1;
    }
}

/// Iterations before the measured ones, which fill the caches of the machine.
const WARM_UP: u64 = 16;

impl Program for Dontneed {
    const NAME: &'static str = "dontneed";
    const TITLE: &'static str =
        "one CPU drops and touches a page (MADV_DONTNEED) while the others spin in its process";
    const MECHANISM: Mechanism = Mechanism::RemoteFlush;
    const METRIC: &'static str = "ns per iteration";

    fn cpus(&self) -> usize {
        2
    }

    fn memory(&self, cpus: u64) -> Memory {
        // The pages, and the page tables that lead to them.
        Memory::roomy((self.pages + self.pages * self.stride / 512) << 12, cpus)
    }

    fn body<U: User + ?Sized>(&self, team: &Team<'_, U>, _seed: u64) -> Result<(), Failure> {
        if !team.leads() {
            team.begin()?;
            return team.bystand(self.spin, self.idle != 0);
        }
        let bytes = ((self.pages - 1) * self.stride + 1) << 12;
        let map = |address| {
            team.call(
                "mapping the pages",
                Call::Map {
                    address,
                    bytes,
                    protection: Protection::READ_WRITE,
                    backing: Backing::Anonymous {
                        page: PageSize::Base,
                    },
                },
            )
        };
        let address = map(None)?;
        let all = WARM_UP + self.iterations;
        let rounds = |before: u64, count: u64| {
            for round in 0..count {
                team.step(before + round, all);
                for page in 0..self.pages * self.touch {
                    team.write(
                        "touching a page",
                        address + ((page * self.stride) << 12),
                        round,
                    )?;
                }
                if self.unmap == 0 {
                    team.call("dropping the pages", Call::Discard { address, bytes })?;
                } else {
                    team.call("unmapping the pages", Call::Unmap { address, bytes })?;
                    map(Some(address))?;
                }
            }
            Ok(())
        };
        rounds(0, WARM_UP)?;
        team.begin()?;
        rounds(WARM_UP, self.iterations)?;
        team.done(self.iterations);
        team.close();
        Ok(())
    }

    fn value(&self, window: Window) -> f64 {
        window.nanoseconds as f64 / window.done as f64
    }
}

//! Touches fresh memory page by page: each touch faults, takes a page and zeroes it.

use crate::parameter::parameters;
use crate::program::{Memory, Program, Window};
use crate::team::{Failure, Team};
use quell::{Mechanism, PageSize};
use quell_vm::{Backing, Call, Protection, User};

parameters! {
    /// Demand faults over fresh memory.
    pub struct Demand {
        /// How much memory each CPU touches; the published runs touched 64 GB.
        size: Bytes = 1 << 30, 4096 => 1 << 36;
        /// The size of the pages.
        page: PageSize = 2 << 20, 1 << 12 => 1 << 30;
    }
}

impl Program for Demand {
    const NAME: &'static str = "demand";
    const TITLE: &'static str =
        "touches fresh memory so that every page is zeroed by a fault (perf bench mem map)";
    const MECHANISM: Mechanism = Mechanism::Extents;
    const METRIC: &'static str = "GB/s";
    const MORE_IS_BETTER: bool = true;

    fn memory(&self, cpus: u64) -> Memory {
        // Whole pages, and one more in case that the node's frames are not aligned to them.
        let each = self.size.next_multiple_of(self.page);
        Memory::roomy(cpus * each + 2 * self.page, cpus)
    }

    fn body<U: User + ?Sized>(&self, team: &Team<'_, U>, _seed: u64) -> Result<(), Failure> {
        let page = match self.page {
            0x1000 => PageSize::Base,
            0x20_0000 => PageSize::Large,
            _ => PageSize::Huge,
        };
        let bytes = self.size.next_multiple_of(self.page);
        let address = team.call(
            "mapping memory",
            Call::Map {
                address: None,
                bytes,
                protection: Protection::READ_WRITE,
                backing: Backing::Anonymous { page },
            },
        )?;
        team.begin()?;
        for at in (address..address + bytes).step_by(self.page as usize) {
            team.write("touching memory", at, 1)?;
            if team.leads() {
                team.step(at - address, bytes);
            }
        }
        team.done(bytes);
        team.end()
    }

    fn value(&self, window: Window) -> f64 {
        window.done as f64 / window.nanoseconds as f64
    }
}

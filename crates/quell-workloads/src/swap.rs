//! Touches memory page by page and pages it out, over and over: `swap_bench`.
//!
//! Every page that goes is unmapped, flushed, compressed and freed; every touch brings one back.

use crate::parameter::parameters;
use crate::program::{Memory, Program, Window};
use crate::team::{Failure, Team};
use quell::{Mechanism, PageSize};
use quell_vm::{Backing, Call, FileId, Protection, User};

parameters! {
    /// Touch, then `MADV_PAGEOUT`.
    pub struct Swap {
        /// How many times the memory is paged out; the published runs did it 10 000 times.
        rounds: Count = 20, 1 => 1_000_000;
        /// How much memory.
        size: Bytes = 1 << 20, 4096 => 1 << 30;
        /// How long the other CPUs, if there are any, compute between two looks at whether all is over.
        spin: Time = 10_000, 100 => 1_000_000;
        /// Whether the other CPUs sleep instead of computing.
        idle: Switch = 0, 0 => 1;
        /// Whether the memory is a file's that is only read: its pages go without being written.
        clean: Switch = 0, 0 => 1;
        /// Whether the pages hold zeros, which are swapped without being compressed.
        zeros: Switch = 0, 0 => 1;
    }
}

/// How many rounds the published figure is the time of.
const PUBLISHED_ROUNDS: f64 = 10_000.0;

impl Program for Swap {
    const NAME: &'static str = "swap";
    const TITLE: &'static str =
        "touches 1 MB page by page and pages it out to compressed swap (MADV_PAGEOUT)";
    const MECHANISM: Mechanism = Mechanism::Batch;
    const METRIC: &'static str = "s for 10 000 rounds";

    fn memory(&self, cpus: u64) -> Memory {
        Memory::roomy(3 * self.size, cpus)
    }

    fn body<U: User + ?Sized>(&self, team: &Team<'_, U>, _seed: u64) -> Result<(), Failure> {
        if !team.leads() {
            team.barrier()?;
            return team.bystand(self.spin, self.idle != 0);
        }
        let bytes = self.size;
        let (clean, zeros) = (self.clean != 0, self.zeros != 0);
        let (protection, backing) = if clean {
            let file = team.call("creating a file", Call::Create { bytes })? as FileId;
            (Protection::READ, Backing::Shared { file, offset: 0 })
        } else {
            let page = PageSize::Base;
            (Protection::READ_WRITE, Backing::Anonymous { page })
        };
        let address = team.call(
            "mapping memory",
            Call::Map {
                address: None,
                bytes,
                protection,
                backing,
            },
        )?;
        let round = |value: u64| {
            for page in (0..bytes).step_by(4096) {
                if clean {
                    team.read("touching memory", address + page)?;
                } else {
                    // Different in each page and round, as a program's memory is.
                    let content = if zeros { 0 } else { value << 20 | page };
                    team.write("touching memory", address + page, content)?;
                }
            }
            team.call("paging out", Call::PageOut { address, bytes })
        };
        round(0)?;
        team.barrier()?;
        // Once more while the others come to what they do, be it sleep: until they do it, they are
        // CPUs that run the process.
        round(0)?;
        team.open();
        for value in 1..=self.rounds {
            round(value)?;
            team.step(value, self.rounds);
        }
        team.done(self.rounds);
        team.close();
        Ok(())
    }

    fn value(&self, window: Window) -> f64 {
        window.nanoseconds as f64 / 1e9 * PUBLISHED_ROUNDS / window.done as f64
    }
}

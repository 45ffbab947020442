//! Moves the memory of a process between two nodes, to and fro.

use crate::parameter::parameters;
use crate::program::{Memory, Program, Window};
use crate::team::{Failure, Team, word};
use quell::{Mechanism, PageSize};
use quell_vm::{Backing, Call, Protection, User};

parameters! {
    /// Moves memory between two nodes.
    pub struct Migrate {
        /// How many times the memory moves; the published runs did it 100 times.
        rounds: Count = 4, 1 => 1_000_000;
        /// How much memory; the published runs moved 1 GB.
        size: Bytes = 8 << 20, 4096 => 1 << 32;
        /// Whether the other CPUs, if there are any, read the memory while it moves; if not, they spin.
        readers: Switch = 0, 0 => 1;
    }
}

/// How many bytes the published figure is the time of.
const PUBLISHED_BYTES: f64 = 100.0 * (1u64 << 30) as f64;

/// Where the memory is.
const ADDRESS: usize = word::FREE;

impl Program for Migrate {
    const NAME: &'static str = "migrate";
    const TITLE: &'static str = "moves memory between two nodes, to and fro (pmbench)";
    const MECHANISM: Mechanism = Mechanism::Batch;
    const METRIC: &'static str = "s for 100 x 1 GB";

    fn memory(&self, cpus: u64) -> Memory {
        Memory {
            nodes: 2,
            ..Memory::roomy(self.size, cpus)
        }
    }

    fn body<U: User + ?Sized>(&self, team: &Team<'_, U>, _seed: u64) -> Result<(), Failure> {
        let bytes = self.size;
        if !team.leads() {
            team.begin()?;
            let address = team.user.shared(ADDRESS);
            while !team.stopped() {
                if self.readers == 0 {
                    team.user.compute(10_000);
                } else {
                    for page in (0..bytes).step_by(4096) {
                        team.read("reading memory", address + page)?;
                    }
                }
            }
            return Ok(());
        }
        let address = team.call(
            "mapping memory",
            Call::Map {
                address: None,
                bytes,
                protection: Protection::READ_WRITE,
                backing: Backing::Anonymous {
                    page: PageSize::Base,
                },
            },
        )?;
        for page in (0..bytes).step_by(4096) {
            team.write("touching memory", address + page, page)?;
        }
        team.user.set_shared(ADDRESS, address);
        let to = |node: u32| {
            team.call(
                "moving memory",
                Call::Migrate {
                    address,
                    bytes,
                    node,
                },
            )
        };
        // Wherever the pages were, they are on node 0 when the measurement begins.
        to(1)?;
        to(0)?;
        team.begin()?;
        let mut moved = 0;
        for round in 1..=self.rounds {
            moved += to((round % 2) as u32)?;
            team.step(round, self.rounds);
        }
        team.done(moved << 12);
        team.close();
        Ok(())
    }

    fn value(&self, window: Window) -> f64 {
        window.nanoseconds as f64 / 1e9 * PUBLISHED_BYTES / window.done as f64
    }
}

//! Runs random programs on all CPUs.
//!
//! Each CPU draws from its own seeded generator. It accesses memory, changes tables of its own space and others',
//! switches, becomes lazy or offline, and changes the kernel's half. It also reclaims pages with and without a flush,
//! reuses and reinstates frames, and writes the file. [`world`](crate::world) checks every access. The seed fixes each
//! CPU's operations, but the host determines their interleaving.

mod anonymous;
mod file;
mod kernel;
mod program;

use crate::tables::PAGES;
use crate::world::{EngineMemory, FILE_PAGES, FIRST_FILE_PAGE, Machine, World};
use program::Program;
use quell::{Features, Hardware, Policy, Stats, Tagging};
use quell_mutants::Mutant;
use quell_vm::contract::{Clause, Violation};
use rand_pcg::Pcg64;
use std::sync::atomic::{AtomicU64, Ordering};

/// The configuration of a stress run.
#[derive(Clone, Debug)]
pub struct StressConfig {
    /// The number of threads. With more threads than cores, CPUs are preempted at any point.
    pub cpus: usize,
    /// The number of address spaces.
    pub spaces: usize,
    /// The number of frames. Few frames make reclaim and reuse frequent.
    pub frames: usize,
    /// The number of ledger entries, which limits how many batches have deferred flushes at once.
    pub ledger: usize,
    /// The machine's features.
    pub features: Features,
    /// The mechanisms that are on.
    pub policy: Policy,
    /// The mistake that the engine makes, if any.
    pub mutant: Option<&'static Mutant>,
    /// Whether the programs use and change the kernel's half too.
    pub kernel: bool,
    /// Whether the machine fails to wait for its broadcasts, which is a mistake that the run should detect.
    pub skips_barrier: bool,
    /// The number of targets from which targets share cache lines in a flush.
    pub shares_lines_from: usize,
    /// The seed. Each CPU's program has its own random numbers.
    pub seed: u64,
    /// The number of operations of all CPUs together, if nothing breaks.
    ///
    /// There may be a few more, because each CPU adds 64 at a time.
    pub operations: u64,
}

impl StressConfig {
    /// Creates a configuration with four CPUs, few tags per CPU, and every mechanism on.
    pub fn new(seed: u64, operations: u64) -> Self {
        StressConfig {
            cpus: 4,
            spaces: 6,
            frames: 96,
            ledger: 4,
            features: Features {
                tagging: Tagging::PerCpu { count: 3 },
                broadcast: false,
                full_above: 3,
            },
            policy: Policy::ALL,
            mutant: None,
            kernel: false,
            skips_barrier: false,
            shares_lines_from: usize::MAX,
            seed,
            operations,
        }
    }
}

/// The number of operations that a CPU performs before it adds them to the common count.
const AT_ONCE: u64 = 64;

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    /// The first violation, if any.
    pub violation: Option<Violation>,
    /// The number of accesses that were judged.
    pub accesses: u64,
    /// The number of other operations.
    pub operations: u64,
    /// The engine's counts.
    pub stats: Stats,
}

/// Runs until the operations are done or a violation is found.
pub fn run(plan: &StressConfig) -> Report {
    let mut hw = Machine::new(plan.cpus, plan.spaces, plan.features).with_mutant(plan.mutant);
    hw.tables.speculates_in_kernel = plan.kernel;
    hw.skips_barrier = plan.skips_barrier;
    hw.shares_lines_from = plan.shares_lines_from;
    let ground = EngineMemory::new(plan.cpus, plan.ledger);
    let engine = ground.engine(&hw, plan.policy);
    let world = World::new(&engine, plan.spaces, plan.frames);
    let (accesses, operations) = (AtomicU64::new(0), AtomicU64::new(0));
    let results = hw.run(|me| {
        let mut program = Program {
            world: &world,
            engine: &engine,
            hw: &hw,
            me,
            dice: Pcg64::new(plan.seed.into(), me.0.into()),
            current: None,
            lazy: false,
            in_kernel: plan.kernel,
            accesses: 0,
        };
        let mut steps = 0;
        engine.cpu_online();
        while !world.is_stopped() && !hw.is_hung() {
            hw.progress();
            program.step();
            steps += 1;
            if steps == AT_ONCE {
                steps = 0;
                let before = operations.fetch_add(AT_ONCE, Ordering::Relaxed);
                if before + AT_ONCE >= plan.operations {
                    world.stop();
                }
            }
        }
        // Others may still wait for this CPU, so it goes offline in good order.
        engine.cpu_offline(program.space());
        accesses.fetch_add(program.accesses, Ordering::Relaxed);
        operations.fetch_add(steps, Ordering::Relaxed);
    });
    if let Some(panic) = results.into_iter().find_map(Result::err) {
        std::panic::resume_unwind(panic);
    }
    if hw.is_hung() {
        world.report(Violation::new(Clause::C7, "a CPU waits for ever"));
    }
    Report {
        violation: world.verdict(),
        accesses: accesses.into_inner(),
        operations: operations.into_inner(),
        stats: engine.stats(),
    }
}

/// The operations of a program.
impl<'a> Program<'a> {
    fn step(&mut self) {
        self.poll();
        if self.in_kernel && self.roll(4) == 0 {
            return self.kernel_step();
        }
        let choice = self.roll(100);
        let world: &'a World = self.world;
        let space = &world.spaces[self.roll(world.spaces.len())];
        let page = self.roll(FIRST_FILE_PAGE);
        let file_page = self.roll(FILE_PAGES);
        match choice {
            0..50 => self.access_some(),
            50..58 => self.map(space, page),
            58..63 => self.unmap(space, page),
            63..67 => self.protect(space, page),
            67..69 => self.unprotect(space, page),
            69..71 => self.capture(space, page),
            71..75 => self.reclaim(space),
            75..80 => self.reclaim_file(file_page),
            80..82 => self.write_file(file_page),
            82..84 => self.remap(space, file_page),
            84..86 => {
                if let Some(frame) = self.allocate() {
                    self.free(frame);
                }
            }
            86 => self.engine.flush_pending(&space.engine),
            87 if self.roll(8) == 0 => self.engine.flush_deferred(),
            87 => self.switch(),
            88..96 => self.switch(),
            96..99 => self.go_lazy(),
            _ => self.go_offline(),
        }
    }

    fn switch(&mut self) {
        let to = self.roll(self.world.spaces.len());
        self.engine
            .this_cpu()
            .mask_interrupts()
            .switch(self.space(), &self.world.spaces[to].engine);
        self.current = Some(to);
        self.lazy = false;
    }

    fn go_lazy(&mut self) {
        if self.current.is_some() {
            self.engine.this_cpu().enter_lazy();
            self.lazy = true;
        }
    }

    fn go_offline(&mut self) {
        self.engine.cpu_offline(self.space());
        self.current = None;
        for _ in 0..self.roll(50) {
            self.hw.relax();
        }
        self.engine.cpu_online();
    }

    /// Makes a few accesses in the current space, like a program.
    fn access_some(&mut self) {
        let Some(index) = self.current else {
            return self.switch();
        };
        let space = &self.world.spaces[index];
        if self.lazy {
            self.engine.this_cpu().mask_interrupts().switch(Some(&space.engine), &space.engine);
            self.lazy = false;
        }
        for _ in 0..8 {
            let page = self.roll(PAGES);
            let write = page < FIRST_FILE_PAGE && self.roll(2) == 0;
            if !self.access(space, page, write) && page >= FIRST_FILE_PAGE {
                self.fault_file(space, page - FIRST_FILE_PAGE);
            }
        }
    }
}

//! Defines and runs a race.

use crate::machine::{PausePoint, Program, World, be, hold_up};
use crate::programs::run_there;
use loom::thread;
use quell::{Policy, Purpose, Scope};

/// A program for each CPU, and each CPU's preparation.
pub struct Race {
    /// Its name in the table of orderings.
    pub name: &'static str,
    /// The maximum number of preemptions that loom tries.
    pub preemptions: usize,
    pub body: Body,
}

pub enum Body {
    /// The engine, on several CPUs.
    Engine(Setup),
    /// Anything else.
    Free(fn()),
}

/// The engine on as many CPUs as there are programs.
#[derive(Clone, Copy)]
pub struct Setup {
    pub policy: Policy,
    pub broadcast: bool,
    /// Whether CPUs share lines, as those of large machines do.
    pub shares: bool,
    pub ledger: usize,
    /// Each CPU's preparation.
    pub prepare: Program,
    /// The program of each CPU. After it, all but CPU 0 take interrupts until all programs have ended.
    pub programs: &'static [Program],
    /// The points at which CPU 2 and later ones are paused before the programs start, each while it unmaps page 1. They
    /// continue after CPU 0 ends, and have no threads of their own.
    pub held_up: &'static [PausePoint],
    /// The check after all programs.
    pub finally: Program,
}

/// Creates a race with at most two preemptions, enough to lose all orderings but one.
pub const fn race(name: &'static str, setup: Setup) -> Race {
    Race { name, preemptions: 2, body: Body::Engine(setup) }
}

/// Creates a race without the engine.
pub const fn free(name: &'static str, run: fn()) -> Race {
    Race { name, preemptions: 2, body: Body::Free(run) }
}

impl Race {
    /// Runs the race once; loom runs this in every way it knows.
    pub fn run(&self) {
        let setup = match &self.body {
            Body::Free(run) => return run(),
            Body::Engine(setup) => *setup,
        };
        let world = World::new(&setup);
        setup.run(world, 0);
        HANDLES.take().into_iter().for_each(|other| other.join().expect("the program ended"));
        (setup.finally)(world);
    }
}

/// Creates the setup of these programs with every mechanism on. CPU 1 runs the space, and its TLB holds page 0.
pub const fn meet(programs: &'static [Program]) -> Setup {
    Setup {
        policy: Policy::ALL,
        broadcast: false,
        shares: false,
        ledger: 2,
        prepare: run_there,
        programs,
        held_up: &[],
        finally: |_| (),
    }
}

/// The options of a race.
impl Setup {
    pub const fn under(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    pub const fn broadcasting(mut self) -> Self {
        self.broadcast = true;
        self
    }

    pub const fn sharing(mut self) -> Self {
        self.shares = true;
        self
    }

    pub const fn with_ledger(mut self, ledger: usize) -> Self {
        self.ledger = ledger;
        self
    }

    pub const fn after(mut self, prepare: Program) -> Self {
        self.prepare = prepare;
        self
    }

    pub const fn holding_up(mut self, held_up: &'static [PausePoint]) -> Self {
        self.held_up = held_up;
        self
    }

    pub const fn then(mut self, finally: Program) -> Self {
        self.finally = finally;
        self
    }

    /// Runs the programs. `held_up` CPUs are paused already.
    fn run(self, world: &'static World, held_up: usize) {
        let Some(&moment) = self.held_up.get(held_up) else {
            return self.start(world);
        };
        let cpu = (self.programs.len() + held_up) as u16;
        hold_up(cpu, moment, Box::new(move || self.run(world, held_up + 1)));
        be(cpu);
        world.unmap(1, Purpose::Reclaim, Scope::Leaf);
        world.end();
    }

    fn start(self, world: &'static World) {
        let ends = self.programs.len() + self.held_up.len();
        let others = (1..self.programs.len()).map(|cpu| {
            thread::spawn(move || {
                be(cpu as u16);
                self.programs[cpu](world);
                world.end();
                world.serve(ends);
            })
        });
        HANDLES.set(others.collect());
        be(0);
        self.programs[0](world);
        world.end();
    }
}

std::thread_local! {
    /// The threads of the programs.
    static HANDLES: std::cell::RefCell<Vec<thread::JoinHandle<()>>> = const { std::cell::RefCell::new(Vec::new()) };
}

//! The adversary's tests. They are one program, so that the long searches run in parallel. The test that needs another
//! allocator is separate (`allocator.rs`).

use quell_adversary::replay::replay_code;
use quell_adversary::{Budget, Case, Exploration, Report, Session, explore};

mod adversary;
mod generate;
mod grammar;
mod misuse;
mod pairs;
mod reordering;
mod sizes;
mod to_come;
mod workload;

/// With this allocator, searches can read the state of programs over the memory manager.
#[global_allocator]
static ALLOCATOR: quell_vm::sim::LineAllocator = quell_vm::sim::LineAllocator;

fn search(case: Case, budget: Budget) -> Report {
    let exploration = Exploration { case, budget, seed: 1, depth: 4 };
    explore(&mut Session::new(case), &exploration, |_, _| true)
}

/// Searches a case, which must hold.
fn holds(case: Case, budget: Budget) -> Report {
    let report = search(case, budget);
    if let Some(failure) = &report.failure {
        let code = replay_code(&case, &failure.deviations);
        panic!("{}\nquell explore --replay '{code}'", failure.violation);
    }
    report
}

//! Runs the engine on threads, so that the processor's real memory ordering tests it.
//!
//! The machines in software run one CPU at a time and choose the values that loads return. Here, each CPU is an
//! operating-system thread pinned to a core, the engine's words are the processor's atomics, and the processor
//! determines the loaded values. So a run can't be replayed: a seed fixes each CPU's operations, but not their
//! interleaving.
//!
//! The crate has three uses:
//!
//! * the stress test (`cargo test -p quell-threads`; longer with `QUELL_STRESS_OPERATIONS`);
//! * running workload files (`quell stress`);
//! * measuring the engine's own cost, because nothing else takes time here.
//!
//! # Not shown
//!
//! Interrupts are taken at accesses and in waiting loops, not between any two instructions. There are no walker caches,
//! so of C6 (freed tables) only walks that read a freed table are detected. A processor with strong ordering hides
//! mistakes that a weaker one would show. The test `orderings`, which uses loom, searches for those.

pub mod cores;
pub mod cost;
mod handler;
mod life;
mod machine;
pub mod pulse;
pub mod stress;
mod tables;
mod tlb;
pub mod vm;
mod world;

use machine::Threads;

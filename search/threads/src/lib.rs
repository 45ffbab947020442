//! A machine of threads: the engine on real memory ordering.
//!
//! The machines in software run one CPU at a time and decide themselves what a load may see. Here
//! each CPU is an operating-system thread, pinned to a core; the engine's words
//! are the processor's own atomics, and the processor decides what a load sees. In exchange
//! no run can be replayed: a seed fixes the operations that each CPU tries, not how the CPUs interleave.
//!
//! | part | what it is |
//! | --- | --- |
//! | [`machine`] | [`Threads`]: threads as CPUs, mailboxes as interrupts, `Hardware` for the engine |
//! | [`handler`] | what serves a CPU's interrupts wherever it waits |
//! | [`life`] | when a CPU waits without end |
//! | [`cost`] | what the engine itself costs |
//! | [`cores`] | the cores of the host, and pinning threads to them |
//! | [`tables`] | what walkers read; page tables of one level: each space's, and the kernel's half |
//! | [`tlb`] | a TLB per CPU, for entries with tags and global ones, of any size, which other CPUs can invalidate where the machine broadcasts |
//! | [`vm`] | the memory manager on this machine, and workload files on that |
//! | [`world`] | spaces, the kernel's half, frames, a page cache, and the oracle that checks each access |
//! | [`stress`] | programs that do everything at random, and a verdict |
//! | [`pulse`] | whether a neighbour shared the core while something was measured |
//!
//! It has three uses: the stress test (`cargo test -p quell-threads`; longer with `QUELL_STRESS_OPERATIONS`; the
//! conformance suite runs there, too), workload files (`quell stress`), and measuring the engine's own cost, since here
//! nothing but the engine takes time.
//!
//! # What it does not show
//!
//! Interrupts are taken at access points and in waiting loops, not between any two instructions.
//! There are no walker caches: of C6 only a walk that reads a freed table shows. A processor with strong ordering
//! passes code that a weaker one would break; the test `orderings` looks for that, under loom.

pub mod cores;
pub mod cost;
pub mod handler;
pub mod life;
pub mod machine;
pub mod pulse;
pub mod stress;
pub mod tables;
pub mod tlb;
pub mod vm;
pub mod world;

pub use machine::Threads;

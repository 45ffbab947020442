//! A machine of threads: the engine on real memory ordering.
//!
//! The machine in software runs one CPU at a time and decides itself what a load may see. Here it is
//! the other way round: each CPU is an operating-system thread, pinned to a core, the engine's words
//! are the processor's own atomics, and what a load sees is what the silicon does. In exchange
//! nothing can be replayed: a seed fixes what each CPU tries, not how the CPUs interleave.
//!
//! | part | what it is |
//! | --- | --- |
//! | [`machine`] | [`Threads`]: threads as CPUs, mailboxes as interrupts, `Hardware` for the engine |
//! | [`life`] | when a CPU waits without end |
//! | [`cores`] | the cores of the host, and pinning threads to them |
//! | [`tables`] | page tables of one level: each space's, and the kernel's half |
//! | [`tlb`] | a TLB per CPU, for entries with tags and global ones, which other CPUs can invalidate where the machine broadcasts |
//! | [`world`] | spaces, the kernel's half, frames, a page cache, and the oracle that checks each access |
//! | [`stress`] | programs that do everything at random, and a verdict |
//! | [`cost`] | what the engine itself costs, in nanoseconds and cycles |
//! | [`pulse`] | whether a neighbour shared the core while something was measured |
//!
//! It serves two ends: the stress test (`cargo test -p quell-threads`; longer with
//! `QUELL_STRESS_OPERATIONS`; the conformance suite runs there too), and measuring what the engine itself costs, since here nothing but the
//! engine takes time.
//!
//! # What it does not show
//!
//! Interrupts are taken at access points and in waiting loops, not between any two instructions.
//! Tables have one level, so walker caches (C6) are not modelled. A processor with strong ordering
//! passes code that a weaker one would break; for that there are the models under loom in the
//! engine's own tests.

pub mod cores;
pub mod cost;
pub mod life;
pub mod machine;
pub mod pulse;
pub mod stress;
pub mod tables;
pub mod tlb;
pub mod world;

pub use machine::Threads;

//! The contract that the quell engine keeps, for everything that judges whether it does.
//!
//! Two machines in software, threads that play CPUs and a kernel that boots watch the engine at
//! work. Each has an oracle of its own, because each knows different things about an access; what
//! they say when something is wrong is the same, and is here.

#![no_std]

extern crate alloc;

mod clause;

pub use clause::Clause;

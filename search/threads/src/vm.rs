//! The memory manager on threads, and workload files on that.
//!
//! `quell-vm` runs here unchanged: page tables of four levels in x86-64's format, which every CPU's walker reads and
//! marks while others change them; pages of all sizes in the TLBs; frames with all their words. Stores and loads of
//! programs are the processor's own, so a copy that is made too early, or a frame that is given out too early, is seen
//! as it would be.
//!
//! | part | what it is |
//! | --- | --- |
//! | [`frames`] | memory: words, what happened to each frame, the walk |
//! | [`oracle`] | the judge of each access |
//! | [`memory`] | the machine under the manager: frames and oracle behind `Threads` |
//! | [`watch`] | whether programs wait for each other for ever |
//! | [`perform`] | a workload file on all CPUs, and what came of it |
//!
//! # What it does not show
//!
//! Time: only reading the clock lets some pass, a sleep ends when its time would have come, and computing takes none.
//! Broadcasts of invalidations: CPUs are interrupted. Memory that nodes have far away is not slower.

pub mod frames;
pub mod memory;
pub mod oracle;
pub mod perform;
pub mod watch;

pub use perform::{ProgramRun, Report, RunError};

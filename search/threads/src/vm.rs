//! Runs the memory manager and workload files on threads.
//!
//! `quell-vm` runs here unchanged. It has four-level page tables in x86-64's format, which every CPU's walker reads and
//! marks while others change them. TLBs hold pages of all sizes, and every frame has all of its words. Programs' loads
//! and stores are the processor's own. So if a copy is made too early, for example, or a frame is handed out too early,
//! the mistake has its real effect.
//!
//! # Not modelled
//!
//! Time isn't modelled. Only reading the clock advances it, a sleep ends when its time would have come, and computing
//! takes none. There are no broadcasts, so CPUs are interrupted. Remote memory nodes aren't slower.

mod frames;
mod memory;
mod oracle;
mod perform;
mod watch;

pub use perform::{ProgramRun, Report, RunError};

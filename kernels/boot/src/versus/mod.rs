//! The same workloads on stock Linux and on quell's kernel, in one emulator.
//!
//! Both kernels boot in the same QEMU with the same CPUs, memory and switches, its clock counting executed
//! instructions, so a run is reproduced byte for byte and instructions can be compared exactly. On Linux one static
//! program, the first process ([`guest`]), performs the workloads from the source that quell's own kernel runs;
//! [`plan`] says which, [`linux`] finds a kernel and puts the initial file system together, [`counters`] reads what
//! Linux counted, [`ours`] what quell's kernel counted, [`report`] puts them side by side and [`compare`] carries it
//! all out. [`conform`] has that program run the conformance suite instead, on one Linux ([`counted`] is what its
//! engine has counted then), and [`soak`] has it run programs of others; [`splats`] is what either kernel complains of
//! meanwhile.
//!
//! What this does not show: time on real hardware. An emulated instruction has no cache misses, an
//! interrupt no latency, and TLBs that flush keep no entry that hardware would keep.

mod compare;
mod conform;
mod counted;
mod counters;
mod guest;
mod linux;
mod ours;
mod plan;
#[path = "../../guest/src/protocol.rs"]
mod protocol;
pub mod report;
mod soak;
mod splats;

pub use compare::{Comparison, Options};
pub use conform::{Check, CheckOutcomes, Programs};
pub use counted::BootCounters;
pub use plan::Scale;
pub use protocol::{ExitKind, Program};
pub use soak::{ProgramResult, Soak};

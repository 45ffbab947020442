//! Runs the same workloads on stock Linux and on quell's kernel, in one emulator.
//!
//! Both kernels boot in the same QEMU with the same CPUs, memory and options. Its clock counts executed instructions,
//! so a run repeats byte for byte and instructions compare exactly. On Linux, one static program (`guest/`) performs the
//! workloads from the source that quell's own kernel runs.
//!
//! * [`plan`] lists the rows, and [`compare`] runs them;
//! * [`linux`] finds a kernel and builds the initial file system;
//! * [`counters`] parses Linux's counters, [`ours`] those of quell's kernel, and [`report`] compares them.
//!
//! We don't show time on real hardware. An emulated instruction has no cache misses, an interrupt has no latency, and
//! the TLBs drop entries that hardware would keep.

pub(crate) mod compare;
mod counters;
pub(crate) mod linux;
mod ours;
mod plan;
pub(crate) mod protocol;
pub mod report;

pub use compare::{Comparison, Options};
pub use plan::Scale;
pub use protocol::ExitKind;

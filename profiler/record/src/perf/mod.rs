//! Events of the running Linux: recorded from tracepoints that the caller names, kept in a file, read back.
//!
//! This module does not interpret the events. It hands out a stream of [`Item`]s through one interface, [`Source`],
//! whatever recorded them.

#[cfg(target_os = "linux")]
pub mod bpf;
pub mod counters;
pub mod file;
pub mod format;
#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
pub mod live;
pub mod sample;
pub mod sink;
pub mod symbols;
pub mod tracefs;

pub use sample::{
    Change, Count, CpuTime, FAULTS, Flushes, Frame, Host, Interrupts, Item, LossReason, Lost,
    Names, Prices, Sample, Source, SourceError, Statistics, Value, When, Window,
};
pub use sink::{Progress, Sink};

//! Records events of a running Linux, stores them in a file, and reads them back.
//!
//! This module doesn't interpret events. It returns a stream of [`Item`]s through one interface, [`Source`], whatever
//! recorded them.

#[cfg(target_os = "linux")]
pub mod bpf;
pub mod counters;
pub mod file;
pub mod format;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub mod live;
pub mod sample;
pub mod sink;
pub mod symbols;
#[cfg(target_os = "linux")]
pub mod tracefs;

pub use sample::{
    Change, Count, CpuTime, FAULTS, Flushes, Frame, Host, Interrupts, Item, LossReason, LostEvents,
    NameTable, Prices, ReadTime, Sample, Source, SourceError, Statistics, Value, Window,
};
pub use sink::{Progress, Sink};

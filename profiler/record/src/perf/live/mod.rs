//! Recording the running Linux.
//!
//! [`Recorder::open`] opens the events on every CPU, [`Recorder::run`] records until it is told to stop, and hands what
//! comes to a [`Sink`](crate::perf::Sink), such as a [`Writer`](crate::perf::file::Writer), in the order of time over all CPUs:
//! records are held back for two milliseconds, in which every CPU has long written what it began before; one that is
//! written later still (its virtual CPU was not run meanwhile) comes out of order and is there all the same.
//!
//! Events are those of the whole machine, because a shootdown begins in one process and interrupts whatever runs
//! elsewhere. The [`Scope`] and each [`Wanted`] event decide whether the events of the processes in question are kept,
//! or of all. Recording costs time, and is held to a share of what the machine does: see [`Options::overhead`].

mod adding;
mod budget;
mod cost;
mod drain;
mod frequent;
mod host;
mod memory;
mod options;
mod plan;
mod price;
mod processes;
mod recorder;
mod records;
mod rights;
mod rings;
mod running;
mod scope;
mod spent;
mod summary;
mod times;
mod unwind;

pub use cost::Measured;
pub use host::now_ns;
pub use options::{Counted, Filter, Options, Stack, Summing, Wanted};
pub use price::Price;
pub use recorder::Recorder;
pub use rights::Refused;
pub use scope::{Scope, is_running};
pub use spent::Spent;
pub use summary::Summary;

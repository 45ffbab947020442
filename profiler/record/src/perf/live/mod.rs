//! Records events of a running Linux.
//!
//! [`Recorder::open`] opens the events on every CPU. [`Recorder::run`] records until a callback stops it, and passes
//! items to a [`Sink`](crate::perf::Sink), for example a [`Writer`](crate::perf::file::Writer). Items are in the order
//! of time over all CPUs. For that we hold each record back for 2 ms, because by then every CPU has written its older
//! records. A record may still come later, for example if its virtual CPU didn't run meanwhile. Then it's out of order,
//! but not lost.
//!
//! We record events of the whole machine, because a shootdown begins in one process and interrupts any other. The
//! [`Scope`] and each [`EventRequest`] event decide whether we keep events of all processes or only of the chosen ones.
//! Recording costs time, and we limit it to a share of the machine's work: see [`Options::overhead`].

mod adding;
mod budget;
mod cost;
mod drain;
mod frequent;
mod host;
mod memory;
mod options;
mod plan;
mod processes;
mod recorder;
mod records;
mod rings;
mod running;
mod scope;
mod spent;
mod summary;
mod times;
mod unwind;

pub use host::now_ns;
pub use options::{CountMode, EventRequest, Filter, Options, RecordError, Stack, SumMode};
pub(crate) use processes::numbers;
pub use recorder::Recorder;
pub use scope::{Scope, is_running, no_process};
pub use spent::{CommandRun, ProcessTurn, RunUsage};
pub use summary::Summary;

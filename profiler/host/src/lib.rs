//! Measures this machine and its Linux, and compares them with the model's predictions.
//!
//! * `clear`: the speed of zeroing memory, by strategy and length, and the engine's choices from it.
//! * `live`: the costs of TLB shootdowns and page clearing in the running kernel, and a machine file from them.
//! * `paths`: the cost of the running kernel's own code, as a kernel file for the model.
//! * [`predict`]: the time that each mechanism would save on a machine, by the model.
//!
//! All modules except the last need Linux. Every measurement is limited in time, and shows progress on standard error
//! if that's a terminal. If the machine, the kernel or the permissions don't allow a measurement, its result has the
//! reason, and the others continue. Results are values that serialise as JSON; we print nothing here.

#[cfg(target_os = "linux")]
pub mod clear;
#[cfg(target_os = "linux")]
pub mod live;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(target_os = "linux")]
pub mod paths;
pub mod predict;
#[cfg(target_os = "linux")]
mod process;
mod processor;

/// Lets tests predict with the clock: the model depends on which words share a cache line.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: quell_vm::sim::LineAllocator = quell_vm::sim::LineAllocator;

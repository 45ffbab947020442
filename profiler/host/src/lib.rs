//! Measuring the machine and the Linux that this runs on, next to the model's predictions.
//!
//! * `clear`: how fast this machine zeroes memory, by every strategy at every length, and what the engine's
//!   choice makes of it.
//! * `live`: what TLB shootdowns and page clearing cost the running kernel, and a machine file for the model
//!   made from that.
//! * [`predict`]: what each mechanism would save on a machine, by the model.
//!
//! The first two need Linux. Every measurement is bounded in time and shows progress on standard error where
//! that is a terminal. Where the machine, the kernel or the permissions do not allow one, its result says so
//! and why, and the rest goes on. Results are values that serialise as JSON; nothing is printed here.

#[cfg(target_os = "linux")]
pub mod clear;
#[cfg(target_os = "linux")]
mod errors;
#[cfg(target_os = "linux")]
pub mod live;
#[cfg(target_os = "linux")]
mod memory;
pub mod predict;
#[cfg(target_os = "linux")]
mod process;
mod processor;

/// Tests predict with the clock, where which words share a line is part of the model.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: quell_vm::sim::LineAllocator = quell_vm::sim::LineAllocator;

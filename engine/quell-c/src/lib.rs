//! Offers the engine to kernels in C: a static library and `quell.h`.
//!
//! The interface is that of the crate [`quell`], function for function. It differs only where C lacks a feature of
//! Rust:
//!
//! * The machine isn't a type. It's a set of functions that the kernel defines and the linker resolves ([`machine`]).
//! * Rust's types enforce rules that C's types can't. The library checks such a rule if memory that the call reads
//!   anyway reveals misuse. For example, a batch wasn't begun, or a CPU isn't online. The call then does nothing and
//!   returns a [`status`]. The header documents all other rules.
//! * The kernel provides all memory, in the sizes and alignments that the header defines ([`place`]).
//!
//! S0 to S4 number the engine's mechanisms: batching, extents, tags, lazy unmap and remote flush.
//!
//! ```text
//! cargo rustc --release -p quell-c --crate-type staticlib                  for the host
//! scripts/build-c                                                          for a kernel (x86_64-unknown-none)
//! ```
//!
//! # What C promises
//!
//! Functions that take a pointer are `unsafe` for these reasons, which aren't repeated at each function:
//!
//! * The pointer points to memory of its type, initialised as the header documents. No other code moves or uses this
//!   memory during the call. In a library that checks for misuse, the pointer may also be NULL.
//! * A space or engine lives longer than everything that refers to it.
//! * The machine's functions do what their documentation promises.
//!
//! # Panics
//!
//! A call that detects a wrong argument refuses it and doesn't panic. Panics have other reasons: a debug assertion
//! failed, or memory was overwritten. A library for a kernel then calls [`panic::quell_panic`]. A library for the host
//! aborts the process.
//!
//! # The header
//!
//! cbindgen writes `include/quell.h` from the documentation in this crate, and a test compares the two. To update the
//! header:
//!
//! ```text
//! QUELL_WRITE_HEADER=1 cargo test --package xtask --test header
//! ```
#![no_std]
// We use the names of the header.
#![allow(non_camel_case_types)]
// The documentation of this crate lists the conditions, under "What C promises".
#![allow(clippy::missing_safety_doc)]

// A static library for a host needs a panic handler; we use that of std.
#[cfg(not(target_os = "none"))]
extern crate std;

pub mod batch;
pub mod capacity;
pub mod change;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod cpu;
pub mod engine;
mod flight;
pub mod flush;
mod held;
pub mod lazy;
mod left;
pub mod machine;
pub mod mistakes;
mod online;
pub mod panic;
pub mod place;
pub mod space;
pub mod stats;
pub mod status;
mod text;
pub mod values;
pub mod zero;

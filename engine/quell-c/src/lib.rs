//! The engine for kernels in C: a static library and `quell.h`.
//!
//! The interface is [`quell`]'s own, function for function. It differs only where C lacks a feature of Rust. A machine
//! isn't a type but a set of functions that the embedder defines and the linker resolves ([`machine`]). Rust's types
//! enforce some rules that C's can't. We check such a rule if memory that the call reads anyway reveals misuse: for
//! example, a batch that wasn't begun, a space that was retired, a CPU that isn't online. The call refuses the misuse
//! with a [`status`]. The header documents the other rules. The embedder provides all memory, in the sizes and
//! alignments that the header names ([`place`]).
//!
//! ```text
//! cargo rustc --release -p quell-c --crate-type staticlib                  for the host
//! scripts/build-c                                                          for a kernel (x86_64-unknown-none)
//! ```
//!
//! # What C promises
//!
//! Every function that takes a pointer is `unsafe` for the same reasons, so we list them only here:
//!
//! * The pointer points to memory of its type that was initialised as the header documents. During the call, it isn't
//!   moved or used by other code. In a library that checks for misuse it may also be NULL.
//! * A space or engine outlives everything that refers to it.
//! * The machine's functions do what their documentation promises.
//!
//! # Panics
//!
//! A call that can detect a wrong argument refuses it and doesn't panic. A panic for another reason (a debug assertion,
//! memory that was overwritten) calls [`panic::quell_panic`] in a library for a kernel, and aborts the process in a
//! library for the host.
//!
//! # The header
//!
//! cbindgen writes `include/quell.h` from the documentation in this crate. A test compares the two, and
//!
//! ```text
//! QUELL_WRITE_HEADER=1 cargo test --package xtask --test header
//! ```
//!
//! updates the header.
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
pub mod panic;
pub mod place;
pub mod space;
pub mod stats;
pub mod status;
mod text;
pub mod values;
pub mod zero;

//! The engine for kernels in C: a static library and `quell.h`.
//!
//! The interface is [`quell`]'s own, function for function; what differs is what C lacks. A machine is not a type but
//! a set of functions that the embedder defines and the linker resolves ([`machine`]). A rule that Rust's types keep
//! is either checked, where a look at memory that is touched anyway tells (a batch that was not begun, a space that
//! was retired, a CPU that is not online), and refused with a [`status`]; or it is said in the header. All
//! memory is the embedder's: its types have sizes and alignments that the header names ([`place`]).
//!
//! ```text
//! cargo rustc --release -p quell-c --crate-type staticlib                  for the host
//! scripts/build-c                                                          for a kernel (x86_64-unknown-none)
//! ```
//!
//! # What C promises
//!
//! Every function that takes a pointer is `unsafe` for the same reasons, which its `# Safety` calls "as the header
//! says": the pointer is NULL, in a library that looks for misuse, or points to memory of its type that was initialised
//! as the header says, is not moved and not used otherwise meanwhile; spaces and engines outlive what was told of them;
//! the machine's functions do what their documentation says.
//!
//! # Panics
//!
//! What C passes makes no call panic as far as the call can check it: such a call refuses. A panic for another reason
//! (a debug assertion, memory that was overwritten) calls [`panic::quell_panic`] in a library for no operating system,
//! and aborts the process in one for the host.
//!
//! # The header
//!
//! `include/quell.h` is written by cbindgen from the documentation in here. A test compares the two, and
//!
//! ```text
//! QUELL_WRITE_HEADER=1 cargo test --package xtask --test header
//! ```
//!
//! writes it anew.
#![no_std]
// Names are those of the header.
#![allow(non_camel_case_types)]

// A static library for a host needs a panic handler; std's is as good as any.
#[cfg(not(target_os = "none"))]
extern crate std;

pub mod batch;
pub mod capacity;
pub mod change;
pub mod cpu;
pub mod engine;
pub mod flush;
mod held;
pub mod lazy;
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

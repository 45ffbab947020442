//! Programs that are data.
//!
//! A scenario's program is Rust; here it is a list of operations for each CPU, which can be drawn, changed, written
//! down and read ([`program`]). Two kernels do what such lists say and keep every rule of an embedder: one over the
//! engine alone ([`kernel`]), one over the memory manager ([`calls`]).

mod calls;
mod kernel;
pub(crate) mod performed;

pub use program::Program;
pub use quell_programs as program;

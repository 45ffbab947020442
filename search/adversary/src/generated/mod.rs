//! Programs that are data.
//!
//! The program of a scenario is Rust code. Here a program is a list of operations for each CPU, which we can draw,
//! change, write and read ([`program`]). Two kernels execute such lists and keep every rule of an embedder: one over
//! the engine alone ([`kernel`]), one over the memory manager ([`calls`]).

mod calls;
mod kernel;
pub(crate) mod performed;

pub use program::Program;
pub use quell_programs as program;

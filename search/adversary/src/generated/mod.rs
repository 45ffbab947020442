//! Runs programs that are data, on two kernels that keep every rule of an embedder.
//!
//! The program of a scenario is Rust code. Here a program is a list of operations for each CPU ([`program`]), which can
//! be drawn, changed, written and read. One kernel executes such lists over the engine alone ([`kernel`]), the other
//! over the memory manager ([`calls`]).

mod calls;
mod kernel;
pub(crate) mod performed;

pub use program::Program;
pub use quell_programs as program;

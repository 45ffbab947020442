//! Puts quell into the published sources of Asterinas' `ostd`, and compares both in an emulator.
//!
//! [`kernels`] fetches the sources and edits them by `measure.toml` and `port.toml` of `kernels/asterinas`. It builds
//! the trial kernel with ostd's own flusher and with quell, and the kernels that run ostd's unit tests and quell's
//! conformance suite. [`machine`] boots a kernel and reads its output; [`table`] compares the figures.

pub mod kernels;
pub mod machine;
pub mod table;

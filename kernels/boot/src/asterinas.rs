//! Puts quell into Asterinas' `ostd`, as the package client delivers it, and compares the two in an emulator.
//!
//! [`kernels`] fetches its sources, edits them as `measure.toml` and `port.toml` in `kernels/asterinas` say, and builds the trial
//! kernel with ostd's own flusher and with quell, and the kernels that run ostd's unit tests and quell's conformance
//! suite; [`machine`] boots one and reads what it prints; [`table`] puts the figures side by side.

pub mod kernels;
pub mod machine;
pub mod table;

//! Puts quell into Asterinas' `ostd`, as the package client delivers it, and compares the two in an emulator.
//!
//! [`edits`] changes sources that are not ours by a list of anchors; [`kernels`] fetches them, and builds the trial
//! kernel with ostd's own flusher and with quell; [`machine`] boots one and reads what it prints; [`table`] puts the
//! figures side by side.

pub mod edits;
pub mod kernels;
pub mod machine;
pub mod table;

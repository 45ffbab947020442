//! RISC-V, 64 bits: entries.

pub mod entry;

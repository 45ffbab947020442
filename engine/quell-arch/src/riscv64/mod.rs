//! RISC-V, 64 bits: entries, features, and the instructions SFENCE.VMA, FENCE and the load of satp.

pub mod entry;
pub mod features;
pub mod tlb;

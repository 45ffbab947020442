//! x86-64: entries, features, and the instructions INVLPG, INVPCID, INVLPGB and the load of CR3.

pub mod entry;
pub mod features;
pub mod isolation;
pub mod tlb;

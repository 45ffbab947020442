//! x86-64: page-table entries, features, and the instructions for TLBs and CR3.

pub mod entry;
pub mod features;
pub mod isolation;
pub mod tlb;

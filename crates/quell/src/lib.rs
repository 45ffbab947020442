//! Keeps translation caches coherent on many CPUs, and zeroes memory, fast and checked.
#![cfg_attr(not(test), no_std)]

pub mod addr;
pub mod clear;
pub mod cpu_set;
pub mod hardware;
#[doc(hidden)]
pub mod mutant;

pub use addr::{Extent, Frame, Page, PageRange, PageSize};
pub use cpu_set::CpuSet;
pub use hardware::{CpuId, Features, Hardware, Invalidate, Scope, Tag, Tagging, Word};

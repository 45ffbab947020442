//! A small virtual-memory manager on the quell engine.
#![cfg_attr(not(test), no_std)]

pub mod machine;
pub mod user;

pub use machine::{Entry, Event, Level, Machine, MemoryMap, Node, Work};
pub use user::{Access, Backing, Call, Error, Fault, FileId, Mark, ProcessId, Protection, User};

//! A small virtual-memory manager on the quell engine, for kernels and for the machine in software.
//!
//! It exercises the engine the way a real kernel does: demand faults with 4 KB, 2 MB and 1 GB
//! pages, copy-on-write, a page cache, writeback, reclaim to compressed swap, migration between
//! memory nodes. [`Vm`] is the manager, [`Machine`] what it needs below it, [`User`] and [`Call`]
//! what programs see above it.
//!
//! | module | what happens there |
//! | --- | --- |
//! | [`machine`] | what a machine must provide besides the engine's needs |
//! | [`user`] | what programs may do |
//! | `vm` | the manager, its processes and the door for calls |
//! | `lock` | spin locks, and the order in which they are taken |
//! | `frame`, `frames` | the frame table and the reverse map; allocating and freeing |
//! | `entry`, `table` | words of page tables; the one place where they change |
//! | `gather` | the engine's batches, and what is released after their flush |
//! | `books` | how much memory is what, and whether it adds up |
//! | `area`, `process` | what is mapped where |
//! | `fault` | demand faults and copy-on-write |
//! | `call`, `fork`, `large` | map, unmap, protect, discard, remap; fork; split and collapse |
//! | `file` | files, the page cache, writeback, truncation |
//! | `reclaim`, `swap`, `migrate` | taking pages away and moving them |
//!
//! # What keeps it coherent
//!
//! Five rules, each stated where it is kept:
//!
//! 1. Words of tables change in one place, under the table's lock, and what needs a flush is in a
//!    gather before the lock is dropped (`table`).
//! 2. A mapping leaves the reverse map, and a frame or a table is freed, only after the flush
//!    (`gather`, `frame`).
//! 3. Who finds an entry cleared and relies on it settles the space first: every call before it
//!    returns, every walker of the reverse map before it captures a page.
//! 4. A page is clean only while no writable translation of it exists, stale or not (`file`); only
//!    clean pages are taken away lazily (`reclaim`).
//! 5. Content is captured (copied, compressed, written out) after the flush that keeps writers out.
//!
//! # What it does not do
//!
//! No scheduling (a CPU runs the process that it was told to enter), no signals (a bad access is an
//! `Err` for the embedder), no read-ahead, no swap device. Files cannot be deleted. Truncation
//! leaves private copies of pages beyond the new end alone.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod area;
mod arena;
mod books;
mod call;
mod entry;
mod fault;
mod file;
mod fork;
mod frame;
mod frames;
mod gather;
mod large;
mod lock;
pub mod machine;
mod migrate;
mod process;
mod reclaim;
mod shared;
mod swap;
mod table;
pub mod user;
mod vm;

pub use books::Totals;
pub use machine::{Entry, Event, Level, Machine, MemoryMap, Node, Work};
pub use user::{Access, Backing, Call, Error, Fault, FileId, Mark, ProcessId, Protection, User};
pub use vm::{Vm, VmConfig};

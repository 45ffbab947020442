//! A small virtual-memory manager on the quell engine, for kernels and for the machine in software.
//!
//! It exercises the engine the way a real kernel does: demand faults with 4 KB, 2 MB and 1 GB
//! pages, copy-on-write, a page cache, writeback, reclaim to compressed swap, migration between
//! memory nodes. [`Vm`] is the manager, [`Machine`] what it needs below it, [`User`] and [`Call`]
//! what programs see above it.
//!
//! # The objects
//!
//! The manager is a few objects. Each owns its fields, knows only objects below it in this picture,
//! and is put together with them in [`Vm::new`]:
//!
//! ```text
//!                               Vm
//!                                │
//!   FaultHandler   Mmap   Madvise   Fork   Files        what programs ask for
//!          └─────────┴───┬────┴───────┴──────┘
//!                   LargePages                          split and collapse
//!                        │
//!                      Memory                           allocation under pressure
//!                   ┌────┴────┐
//!               Reclaim   Migration                     taking pages away, moving them
//!                 │ └────┬────┘
//!                 │  LazyUnmap   Pages                  deferred flushes; page locks
//!                 │      └────┬───┘
//!               Swap   PageCache   Tables   Processes   what there is
//!                 └────────┴───┬──────┘        │
//!                           Frames             │        physical memory
//!                              └───── Engine ──┘
//! ```
//!
//! | module | what happens there | Linux |
//! | --- | --- | --- |
//! | [`machine`] | what a machine must provide besides the engine's needs | |
//! | [`syscall`], [`program`] | what programs may do | |
//! | [`contract`] | what is a violation, and the timeline that led to it; for every judge of a run | |
//! | `sim` (feature) | what machines in software stand on: fibers, a heap that can be read back | |
//! | `vm`, `config` | the parts put together; calls, faults and CPUs come in here | |
//! | `processes`, `process`, `vma` | address spaces, their areas, the CPUs that run them | `mm_struct`, `vm_area_struct` |
//! | `fault` | demand faults and copy-on-write | `mm/memory.c` |
//! | `mmap`, `madvise`, `fork` | map, unmap, protect, discard, remap; page out, migrate; copy | `mm/mmap.c`, `mm/mremap.c`, `mm/madvise.c` |
//! | `large` | split and collapse | `mm/huge_memory.c` |
//! | `files`, `page_cache`, `length` | reading, writing, writeback, truncation; the pages in memory | `mm/filemap.c` |
//! | `memory` | what happens when no frame is left | slow path of `mm/page_alloc.c` |
//! | `reclaim`, `lazy_unmap`, `pages`, `swap` | taking pages away | `mm/vmscan.c`, `mm/swapfile.c` |
//! | `migrate` | moving pages to another node | `mm/migrate.c` |
//! | `tables`, `table`, `table_id`, `entry` | page tables; the one place where their words change | |
//! | `mmu_gather` | the engine's batches, and what is released after their flush | `mmu_gather` |
//! | `frames`, `buddy` | allocating and freeing | `mm/page_alloc.c` |
//! | `frame`, `rmap` | the frame table and the reverse map | `struct page`, `mm/rmap.c` |
//! | `audit` | how much memory is what, and whether it adds up | |
//! | `lock`, `shared`, `segmented` | locks and their order; shared numbers; an array that grows | |
//!
//! # What keeps it coherent
//!
//! Five rules, each stated where it is kept:
//!
//! 1. Words of tables change in one place, under the table's lock, and what needs a flush is in a
//!    gather before the lock is dropped (`table`).
//! 2. A mapping leaves the reverse map, and a frame or a table is freed, only after the flush
//!    (`mmu_gather`, `rmap`).
//! 3. A later observer, which finds an entry that another CPU has cleared and relies on it, flushes
//!    the space first: every call before it returns, every walk of the reverse map before it
//!    captures a page (`Tables::flush_pending`).
//! 4. A page is clean only while no writable translation of it exists, stale or not (`page_cache`);
//!    only clean pages are taken away lazily (`lazy_unmap`).
//! 5. Content is captured (copied, compressed, written out) after the flush that keeps writers out.
//!
//! # What it does not do
//!
//! No scheduling (a CPU runs the process that it was told to enter), no signals (a bad access is an
//! `Err` for the embedder), no read-ahead, no swap device. Files cannot be deleted. Truncation
//! leaves private copies of pages beyond the new end alone.
#![cfg_attr(not(test), no_std)]

extern crate alloc;
#[cfg(all(any(feature = "sim", feature = "timeline"), not(test)))]
extern crate std;

mod audit;
mod buddy;
mod config;
pub mod contract;
mod entry;
mod fault;
mod files;
mod fork;
mod frame;
mod frames;
mod large;
mod lazy_unmap;
mod length;
mod lock;
pub mod machine;
mod madvise;
mod masked_lock;
mod memory;
mod migrate;
mod mmap;
mod mmu_gather;
mod page_cache;
mod pages;
mod process;
mod processes;
pub mod program;
mod reclaim;
mod rmap;
mod segmented;
mod shared;
#[cfg(feature = "sim")]
pub mod sim;
mod swap;
pub mod syscall;
mod table;
mod table_id;
mod tables;
mod vm;
mod vma;

pub use audit::Totals;
pub use config::VmConfig;
pub use machine::{Engine, Entry, Event, Level, LockUse, Machine, MemoryMap, Node, Path, Work};
pub use program::{Access, Fault, Mark, User};
pub use syscall::{Backing, Call, Error, FileId, ProcessId, Protection};
pub use vm::Vm;

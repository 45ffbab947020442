//! Manages virtual memory on the quell engine, as a small model of a kernel's mm.
//!
//! The manager runs in our kernel and on the machines in software, and uses the engine as a real kernel does. It has
//! demand faults with 4 KB, 2 MB and 1 GB pages, copy-on-write, a page cache and writeback. It reclaims pages to
//! compressed swap, and migrates them between memory nodes. [`Vm`] is the manager and [`Machine`] its platform.
//! Programs use [`User`] and [`Call`].
//!
//! S0 to S4 number the engine's mechanisms: batching, extents, tags, lazy unmap and remote flush. C1 to C8 number the
//! [clauses](contract::Clause) of its contract.
//!
//! # The parts
//!
//! [`Vm`] owns four objects with state: the physical memory (`frames`), the page cache, swap, and the processes. Each
//! uses only the physical memory and the engine. The other modules are the calls of programs, and what these need:
//! methods of [`Vm`], from page tables (`tables`) up.
//!
//! | module | purpose | Linux |
//! | --- | --- | --- |
//! | [`machine`] | the platform's functions, beyond those for the engine | |
//! | [`syscall`], [`program`] | programs' calls and accesses | |
//! | [`contract`] | violations and the timelines that led to them, for every oracle | |
//! | `sim` (feature) | the basis of machines in software: fibers, a heap that can be read back | |
//! | `vm`, `config` | connects the parts; the entry points for calls, faults and CPUs | |
//! | `processes`, `vma` | address spaces, their areas, the CPUs that run them | `mm_struct`, `vm_area_struct` |
//! | `fault` | demand faults and copy-on-write | `mm/memory.c` |
//! | `mmap` | map, unmap, protect, discard, remap, page out, migrate | `mm/mmap.c`, `mm/madvise.c`, … |
//! | `fork` | copying a process | `dup_mmap` |
//! | `large` | split and collapse | `mm/huge_memory.c` |
//! | `files`, `page_cache`, `length` | reading, writing, writeback, truncation; the pages in memory | `mm/filemap.c` |
//! | `memory` | allocation when no frame is left | slow path of `mm/page_alloc.c` |
//! | `reclaim`, `lazy_unmap`, `pages`, `swap` | reclaim of pages | `mm/vmscan.c`, `mm/swapfile.c` |
//! | `migrate` | moving pages to another node | `mm/migrate.c` |
//! | `tables`, `table`, `table_id`, `entry` | page tables; the one place where their words change | |
//! | `mmu_gather` | the engine's batches, and the frames to release after their flush | `mmu_gather` |
//! | `frames`, `buddy` | allocating and freeing | `mm/page_alloc.c` |
//! | `frame` | the frame table and the reverse map | `struct page`, `mm/rmap.c` |
//! | `audit` | totals of memory by use, and consistency checks | |
//! | `lock`, `shared`, `segmented` | locks and their order; shared numbers; an array that grows | |
//!
//! # What keeps it coherent
//!
//! The manager keeps five rules, which the modules in brackets explain:
//!
//! 1. Words of page tables change in one place, under the table's lock (`table`). If a change needs a flush, it joins a
//!    gather before the lock is dropped. A gather is like Linux's `mmu_gather`.
//! 2. A mapping leaves the reverse map only after its flush. Frames and tables are freed only after their flush, too
//!    (`mmu_gather`, `frame`).
//! 3. A *later observer* is code that finds an entry already cleared by another CPU and relies on that. It flushes the
//!    space first (`Vm::flush_pending`). For example, every call does so before it returns, and every walk of the
//!    reverse map before it captures a page.
//! 4. A page is clean only while no writable translation of it exists, stale or not (`page_cache`). Only clean pages
//!    are unmapped lazily (`lazy_unmap`).
//! 5. Content is captured (copied, compressed, written out) only after the flush that stops writers.
//!
//! # Not implemented
//!
//! There are no signals: the kernel gets an `Err` for a bad access. There is no scheduler: the kernel chooses each
//! CPU's process. Read-ahead and swap devices are missing, and files can't be deleted. After a truncation, private
//! copies of pages beyond the new end stay mapped.
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
mod masked_lock;
mod memory;
mod migrate;
mod mmap;
mod mmu_gather;
mod page_cache;
mod pages;
mod processes;
pub mod program;
mod reclaim;
mod segmented;
mod shared;
#[cfg(feature = "sim")]
pub mod sim;
mod swap;
pub mod syscall;
mod table;
mod table_id;
mod table_lock;
mod tables;
mod vm;
mod vma;

pub use audit::FrameTotals;
pub use config::VmConfig;
pub use machine::{
    Change, Engine, Entry, Event, Freed, Level, LockUse, Machine, MemoryMap, Node, Path, Work,
};
pub use program::{Access, Fault, Mark, User};
pub use syscall::{Backing, Call, Error, FileId, ProcessId, Protection};
pub use vm::Vm;

//! Contains the code that both machines in software share: the clock and the adversary.
//!
//! | module | contents |
//! | --- | --- |
//! | [`fiber`] | CPUs as coroutines |
//! | [`alloc`] | an allocator under which a run depends on its seed alone |
//! | [`heap`] | the heap of a search, whose bytes are part of its states |
//! | [`calls`] | the addresses that a system call in progress may change |

pub mod alloc;
pub mod calls;
pub mod fiber;
pub mod heap;

pub use alloc::LineAllocator;
pub use calls::may_change;

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: LineAllocator = LineAllocator;

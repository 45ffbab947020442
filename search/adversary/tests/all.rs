//! The adversary's tests. They are one program, so that the long searches run in parallel. The test that needs another
//! allocator is separate (`allocator.rs`).

mod adversary;
mod generate;
mod grammar;
mod misuse;
mod pairs;
mod reordering;
mod sizes;
mod to_come;
mod workload;

/// With this allocator, searches can read the state of programs over the memory manager.
#[global_allocator]
static ALLOCATOR: quell_vm::sim::LineAllocator = quell_vm::sim::LineAllocator;

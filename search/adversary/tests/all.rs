//! The adversary's tests: one program, so that the long searches run side by side. What needs an allocator of its own
//! stays apart (`allocator.rs`).

mod adversary;
mod generate;
mod grammar;
mod misuse;
mod reordering;
mod sizes;
mod to_come;
mod workload;

/// Searches know the states of programs over the memory manager through it.
#[global_allocator]
static ALLOCATOR: quell_vm::sim::LineAllocator = quell_vm::sim::LineAllocator;

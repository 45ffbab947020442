//! The clock's tests: one program, because building it is most of what its tests take.

mod clock;
mod files;
mod oracle;
mod support;
mod workloads;

/// Which words share a line must not depend on where the host's allocator puts things: what a test compares would.
#[global_allocator]
static ALLOCATOR: quell_vm::sim::LineAllocator = quell_vm::sim::LineAllocator;

//! The clock's tests, in one program because building dominates their time.

mod clock;
mod files;
mod oracle;
mod support;
mod workloads;

/// Makes it independent of the host's allocator which words share a line. Tests compare costs.
#[global_allocator]
static ALLOCATOR: quell_vm::sim::LineAllocator = quell_vm::sim::LineAllocator;

//! The clock's tests, in one program because building dominates their time.

mod clock;
mod files;
mod flushes;
mod oracle;
mod support;
mod workloads;

/// Makes the sharing of lines independent of the host's allocator, because tests compare costs.
#[global_allocator]
static ALLOCATOR: quell_vm::sim::LineAllocator = quell_vm::sim::LineAllocator;

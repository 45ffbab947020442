//! Sizes and choices of a manager.

use crate::machine::MemoryMap;
use quell_zero::{ClearPolicy, Plan};

/// Sizes and choices of a [`Vm`](crate::Vm).
#[derive(Clone, Debug)]
pub struct VmConfig {
    /// Base frames that a CPU's cache exchanges with a node at a time. The cache keeps up to twice as many, and as many
    /// again that are known to be zero.
    pub cache_batch: usize,
    /// Capacity of compressed swap, in base pages.
    pub swap_pages: u32,
    /// Moves cold pages to a slow node when a fast node is exhausted, instead of allocating new pages there.
    pub demotion: bool,
    /// The base frames that each node keeps free. Below that, one CPU demotes or reclaims as many in batches, while the
    /// others use the rest. With 0, a batch is reclaimed only when no frame is free.
    pub reclaim_ahead: u64,
    /// Leaves that to idle CPUs, which check whenever they become idle. This models a kernel whose reclaim thread has a
    /// CPU to itself. Otherwise the allocating CPU reclaims.
    pub reclaim_idle: bool,
    /// Makes a faulting CPU flush when it is far behind the flush clock (see [`Cpu::catch_up`](quell::Cpu::catch_up)).
    /// Reuses then rarely interrupt CPUs that fault all the time. The published S3 has no such rule: there only reuses
    /// and switches make deferred flushes.
    pub catch_up: bool,
    /// Pages that one [`Call::Migrate`](crate::Call::Migrate) moves per flush. More pages per flush mean fewer
    /// interrupts, but a thread that touches one of them waits until it is copied, in the worst case after all others.
    /// Linux uses 512.
    pub migrate_together: usize,
    /// Frames that a call unmaps per flush. Up to 64 wait on the stack; more wait on the heap, which then grows under a
    /// page table's lock. Linux uses about 10 000.
    pub flush_together: usize,
    /// How large pages are zeroed. Whether whole extents or single pages (S1) is the engine's policy.
    pub clear: ClearPolicy,
    /// Frames that a CPU zeroes in advance whenever it becomes idle.
    pub zero_ahead: usize,
    /// Batches that an allocation reclaims before it fails.
    pub reclaim_attempts: usize,
}

impl VmConfig {
    /// Returns a configuration for this memory. The CPUs' caches of one node hold at most an eighth of all memory, not
    /// counting frames that are known to be zero.
    pub fn for_memory(map: &MemoryMap, cpus: usize) -> Self {
        let frames: u64 = map.nodes().iter().map(|node| node.extent.frames).sum();
        let share = frames / (16 * cpus.max(1) as u64);
        VmConfig {
            cache_batch: share.clamp(1, 32) as usize,
            swap_pages: u32::MAX,
            demotion: map.nodes().iter().any(|node| node.slow),
            reclaim_ahead: 0,
            reclaim_idle: false,
            catch_up: false,
            migrate_together: 512,
            flush_together: 64,
            clear: ClearPolicy::cooperative(Plan::default()),
            zero_ahead: 0,
            reclaim_attempts: 8,
        }
    }
}

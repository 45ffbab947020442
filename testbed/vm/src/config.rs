//! Configures a manager.

use crate::machine::MemoryMap;
use quell_zero::{ClearPolicy, Plan};

/// The sizes and choices of a [`Vm`](crate::Vm).
#[derive(Clone, Debug)]
pub struct VmConfig {
    /// The base frames that a CPU's cache of free frames exchanges with a node at a time.
    ///
    /// The cache holds up to twice as many, and as many again that are known to be zero. 0 counts as 1, here and for
    /// pages per flush.
    pub cache_batch: usize,
    /// The capacity of compressed swap, in base pages.
    pub swap_pages: u32,
    /// Whether cold pages move to a slow node when a fast node is exhausted. Otherwise new pages are allocated on the
    /// slow node.
    pub demotion: bool,
    /// The base frames that each node keeps free.
    ///
    /// When a node has fewer, one CPU demotes or reclaims that many pages, in batches. Other CPUs use the remaining
    /// frames meanwhile. With 0, a batch is reclaimed only when no frame is free.
    pub reclaim_ahead: u64,
    /// Whether idle CPUs do that reclaim: they check whenever they become idle. Otherwise the allocating CPU reclaims.
    ///
    /// With it we model a kernel whose reclaim thread has a CPU to itself.
    pub reclaim_idle: bool,
    /// Whether a faulting CPU flushes if many flushes were deferred since its last flush.
    ///
    /// See [`Cpu::catch_up`](quell::Cpu::catch_up). If set, the reuse of a frame rarely interrupts CPUs that fault all
    /// the time. The published form of lazy unmap (S3) has no such rule: there, deferred flushes are made only when a
    /// frame is reused or a CPU switches.
    pub catch_up: bool,
    /// The pages that one [`Call::Migrate`](crate::Call::Migrate) moves per flush.
    ///
    /// More pages per flush mean fewer interrupts. But a thread that accesses one of them waits until it is copied, in
    /// the worst case after all others. Linux uses 512.
    pub migrate_together: usize,
    /// The frames that a call unmaps per flush.
    ///
    /// Up to 64 wait on the stack. More wait on the heap, which then grows under a page table's lock. Linux uses about
    /// 10 000.
    pub flush_together: usize,
    /// How large pages are zeroed. The engine's policy decides whether whole extents or single pages are zeroed (S1).
    pub clear: ClearPolicy,
    /// The frames that a CPU zeroes in advance whenever it becomes idle.
    pub zero_ahead: usize,
    /// The batches that an allocation reclaims before it fails.
    pub reclaim_attempts: usize,
}

impl VmConfig {
    /// Returns a configuration for this memory.
    ///
    /// All CPUs' caches of one node together hold at most an eighth of all memory, not counting frames that are known
    /// to be zero.
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

//! Sizes and choices of a manager.

use crate::machine::MemoryMap;
use quell_zero::{ClearPolicy, Plan};

/// Sizes and choices of a [`Vm`](crate::Vm).
#[derive(Clone, Debug)]
pub struct VmConfig {
    /// How many base frames a CPU's cache of a node trades with that node at a time; it keeps up to twice as
    /// many, and as many again that are known to be zero.
    pub cache_batch: usize,
    /// How many base pages compressed swap may hold.
    pub swap_pages: u32,
    /// Whether a fast node that is exhausted moves pages that were not used lately to a slow node
    /// rather than taking new pages from there.
    pub demotion: bool,
    /// The base frames that each node keeps free. If fewer are free, one CPU demotes or reclaims that many in batches
    /// while the others use the rest. With 0, a batch is reclaimed when none is free.
    pub reclaim_ahead: u64,
    /// Whether that is left to CPUs that are idle, which look each time they go idle, as on a
    /// kernel with a thread for it that has a CPU to itself; if not, the CPU that allocates does it.
    pub reclaim_idle: bool,
    /// Whether a CPU that takes a fault flushes by itself when the flush clock is far ahead of it (see
    /// [`Cpu::catch_up`](quell::Cpu::catch_up)): while CPUs fault all the time, reuses then interrupt none of them.
    /// Not part of S3 as published, where only reuse and switches make deferred flushes.
    pub catch_up: bool,
    /// How many pages a call of [`Call::Migrate`](crate::Call::Migrate) moves behind one flush. More make fewer
    /// interrupts; a thread that touches one of them meanwhile waits until it was copied, behind all others at worst.
    /// Linux takes 512.
    pub migrate_together: usize,
    /// How many frames a call takes out behind one flush. Up to 64 wait on the stack, more on the heap, which then
    /// grows under the lock of a page table. Linux takes some ten thousand.
    pub flush_together: usize,
    /// How large pages are zeroed. Whole extents or pages (S1) is the engine's policy, not this.
    pub clear: ClearPolicy,
    /// How many frames an idle CPU zeroes ahead each time it turns idle.
    pub zero_ahead: usize,
    /// How often an allocation reclaims a batch before it fails.
    pub reclaim_attempts: usize,
}

impl VmConfig {
    /// A configuration for so much memory: the CPUs' caches of one node hold at most as many frames as an eighth of all
    /// memory, the frames that are known to be zero aside.
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

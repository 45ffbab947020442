//! Allocation under pressure, when a node has no frame left (Linux's allocator slow path).
//!
//! Four sources are tried in turn: the home node; the other nodes, slow ones last; when every node is exhausted, pages
//! of processes, by reclaim; and if none can be reclaimed, the caches of other CPUs. One CPU at a time balances a node
//! ahead of that, if it is to keep frames free.

use crate::frames::{AllocFrames, CLUSTER, Content, Frames};
use crate::machine::Machine;
use crate::migrate::Migration;
use crate::reclaim::Reclaim;
use alloc::sync::Arc;
use quell::Frame;

/// When pages are taken away to make room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pressure {
    /// Whether a fast node that is exhausted demotes pages to a slow one.
    pub(crate) demotion: bool,
    /// How many base frames each node keeps free.
    pub(crate) ahead: u64,
    /// Whether that is left to idle CPUs.
    pub(crate) idle: bool,
    /// How often an allocation reclaims a batch before it fails.
    pub(crate) attempts: usize,
}

/// Memory as the layers above see it.
pub(crate) struct Memory<'m, M: Machine> {
    frames: Arc<Frames<'m, M>>,
    reclaim: Arc<Reclaim<'m, M>>,
    migration: Arc<Migration<'m, M>>,
    pressure: Pressure,
}

impl<'m, M: Machine> Memory<'m, M> {
    pub(crate) fn new(
        frames: Arc<Frames<'m, M>>,
        reclaim: Arc<Reclaim<'m, M>>,
        migration: Arc<Migration<'m, M>>,
        pressure: Pressure,
    ) -> Self {
        Memory {
            frames,
            reclaim,
            migration,
            pressure,
        }
    }

    /// An idle CPU's work for memory: balances the nodes, if that is left to idle CPUs, and keeps some frames without
    /// a deferred flush.
    pub(crate) fn idle(&self) {
        if self.pressure.idle {
            self.balance();
            self.frames.reuse_ahead(self.pressure.ahead / 4);
        }
    }

    /// Demotes and reclaims on nodes with too few free frames. One CPU at a time does so for each node while the
    /// others continue; if less than half is left and flushes are deferred, each frees a batch. If a node has no frame
    /// left and no page to reclaim, a batch of allocations passes before all its pages are scanned again. Otherwise a
    /// call that takes 512 frames one by one (the copy of a large page in pieces) would scan all of memory for each of
    /// them.
    fn balance(&self) {
        let ahead = self.pressure.ahead;
        if ahead == 0 {
            return;
        }
        let defers = self.frames.engine().policy().lazy_unmap;
        // Slow nodes first, to make room for demoted pages.
        for slow in [true, false] {
            for (node, place) in self.frames.map().nodes().iter().enumerate() {
                let free = self.frames.free_on(node);
                if place.slow != slow || free >= ahead {
                    continue;
                }
                let mut balancing = self.frames.try_balance(node);
                let pages = match &mut balancing {
                    Some(pause) if **pause > 0 => {
                        **pause -= 1;
                        continue;
                    }
                    Some(_) => ahead,
                    // The CPU that balances does not keep up: those that allocate help, before all
                    // that is left defers its flush since a moment ago.
                    None if defers && free < ahead / 2 => CLUSTER as u64,
                    None => continue,
                };
                let taken = if self.pressure.demotion && !slow {
                    self.migration.demote(pages)
                } else {
                    self.reclaim.reclaim_on(node, pages)
                };
                if let (0, 0, Some(pause)) = (free, taken, &mut balancing) {
                    **pause = CLUSTER;
                }
            }
        }
    }
}

impl<M: Machine> AllocFrames for Memory<'_, M> {
    /// A block from the nearest node that has one, reclaiming base frames if need be.
    fn alloc(&self, order: u8, content: Content) -> Option<Frame> {
        let machine = self.frames.machine();
        if !self.pressure.idle {
            self.balance();
        }
        let home = machine.home_node(machine.this_cpu());
        if let Some(frame) = self.frames.alloc_on(home, order, content) {
            return Some(frame);
        }
        if order == 0 && self.pressure.demotion {
            self.migration.demote(CLUSTER as u64);
            if let Some(frame) = self.frames.alloc_on(home, order, content) {
                return Some(frame);
            }
        }
        let nodes = self.frames.map().nodes();
        for slow in [false, true] {
            for (node, place) in nodes.iter().enumerate() {
                if node != home
                    && place.slow == slow
                    && let Some(frame) = self.frames.alloc_on(node, order, content)
                {
                    return Some(frame);
                }
            }
        }
        let anywhere =
            || (0..nodes.len()).find_map(|node| self.frames.alloc_on(node, order, content));
        for attempt in 0..self.pressure.attempts {
            // Reclaimable pages, of this node first. Their frames are in this CPU's cache then.
            if order == 0
                && self.reclaim.reclaim(home, CLUSTER as u64) > 0
                && let Some(frame) = anywhere()
            {
                return Some(frame);
            }
            // Nothing is reclaimable, or others were faster: use other CPUs' caches. Not before, because a CPU without
            // a stock comes here for its next frame too, and all CPUs would keep emptying each other's.
            self.frames.drain_caches();
            if let Some(frame) = anywhere() {
                return Some(frame);
            }
            if order > 0 {
                return None;
            }
            if attempt > 1 {
                machine.relax();
            }
        }
        None
    }
}

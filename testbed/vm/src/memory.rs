//! Allocation under pressure: what happens when a node has no frame left (Linux's allocator slow
//! path).
//!
//! Four sources are asked in turn: the home node; the other nodes, slow ones last; when every
//! node is exhausted, the pages of processes, which are reclaimed; and where none can go, the caches of other CPUs. A
//! node that is to keep frames free is balanced ahead of that, by one CPU at a time.

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

    /// What a CPU does for memory that goes idle: balances the nodes, where that is left to idle CPUs,
    /// and keeps some frames that have no deferred flush.
    pub(crate) fn idle(&self) {
        if self.pressure.idle {
            self.balance();
            self.frames.reuse_ahead(self.pressure.ahead / 4);
        }
    }

    /// Demotes and reclaims where fewer frames are free than are to be kept so: for each node one
    /// CPU at a time, the others go on; with less than half left, where flushes are deferred, each frees a
    /// batch. Where a node has no frame left and no page that can go, a batch of allocations passes before all its
    /// pages are looked at again: else a call that takes 512 frames one by one (the copy of a large page in pieces)
    /// would look at all of memory for each of them.
    fn balance(&self) {
        let ahead = self.pressure.ahead;
        if ahead == 0 {
            return;
        }
        let defers = self.frames.engine().policy().lazy_unmap;
        // Slow nodes first: they take what is demoted.
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
            // Pages that can go, of this node first. Their frames lie with this CPU then.
            if order == 0
                && self.reclaim.reclaim(home, CLUSTER as u64) > 0
                && let Some(frame) = anywhere()
            {
                return Some(frame);
            }
            // Nothing can go, or others were faster: what other CPUs keep. Not before, because a CPU without a stock
            // comes here for its next frame, too, and then they all empty each other's.
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

//! Allocates when a node has no frame left (Linux's allocator slow path).
//!
//! There are four sources, in this order: the home node; the other nodes, slow ones last; reclaim of pages; and other
//! CPUs' caches. Pages are reclaimed when every node is exhausted, and the caches are used if nothing can be reclaimed.
//! If nodes keep frames free, one CPU at a time balances a node before it is exhausted.

use crate::frames::{CLUSTER, Content};
use crate::machine::Machine;
use crate::vm::Vm;
use quell::Frame;

impl<M: Machine> Vm<'_, M> {
    /// Does an idle CPU's work, if idle CPUs balance: balances the nodes and keeps some frames without a deferred
    /// flush.
    pub(crate) fn balance_idle(&self) {
        if self.config.reclaim_idle {
            self.balance();
            self.frames.reuse_ahead(self.config.reclaim_ahead / 4);
        }
    }

    /// Demotes and reclaims on nodes with too few free frames. One CPU at a time does so for each node, while the
    /// others continue. If less than half is left and flushes are deferred, the others free a batch each. If a node has
    /// no frame left and no page to reclaim, we skip a batch of allocations before we scan its pages again. For
    /// example, the copy of a large page in pieces takes 512 frames one by one; it would otherwise scan all of memory
    /// for each of them.
    fn balance(&self) {
        let ahead = self.config.reclaim_ahead;
        if ahead == 0 {
            return;
        }
        let defers = self.frames.engine().policy().lazy_unmap;
        // Slow nodes first, to make room for demoted pages.
        for slow in [true, false] {
            for (node, place) in self.frames.map.nodes().iter().enumerate() {
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
                    // The CPU that balances is too slow. Allocating CPUs help before all remaining frames have recently
                    // deferred flushes.
                    None if defers && free < ahead / 2 => CLUSTER as u64,
                    None => continue,
                };
                let taken = if self.config.demotion && !slow {
                    self.demote(pages)
                } else {
                    self.reclaim_on(node, pages)
                };
                if let (0, 0, Some(pause)) = (free, taken, &mut balancing) {
                    **pause = CLUSTER;
                }
            }
        }
    }

    /// Allocates a block of `2^order` frames with one reference, owned by the manager ([`Owner::Kernel`]). It comes from
    /// the nearest node that has one; base frames are reclaimed if necessary. Returns `None` if memory is short.
    ///
    /// The caller holds no table lock and no lock below it, because we may take page locks and table locks to take pages
    /// away.
    pub(crate) fn alloc(&self, order: u8, content: Content) -> Option<Frame> {
        let machine = self.machine();
        if !self.config.reclaim_idle {
            self.balance();
        }
        let home = machine.home_node(machine.this_cpu());
        if let Some(frame) = self.frames.alloc_on(home, order, content) {
            return Some(frame);
        }
        if order == 0 && self.config.demotion {
            self.demote(CLUSTER as u64);
            if let Some(frame) = self.frames.alloc_on(home, order, content) {
                return Some(frame);
            }
        }
        let nodes = self.frames.map.nodes();
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
        for attempt in 0..self.config.reclaim_attempts {
            // We reclaim pages, first on this node. Their frames are then in this CPU's cache.
            if order == 0
                && self.reclaim(home, CLUSTER as u64) > 0
                && let Some(frame) = anywhere()
            {
                return Some(frame);
            }
            // Nothing can be reclaimed, or others were faster: use other CPUs' caches. We don't do this earlier,
            // because any CPU with an empty cache comes here, and all CPUs would keep emptying each other's.
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

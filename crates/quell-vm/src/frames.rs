//! Allocating and freeing frames: per-CPU caches over one buddy allocator per node.
//!
//! Base frames come from and go to the CPU's own cache, which trades with the node in batches;
//! larger blocks, up to 1 GB, always come from the node. Three stocks are asked in turn: frames
//! that owe nothing; frames that owe a flush (S3), oldest first, whose claim pays for all that are
//! older at once; then the caches of other CPUs. Slow nodes come last.
//!
//! Frames known to be zero are kept apart in the cache, so that a fault that needs zeros finds
//! them: anonymous pages that were mapped and never written, and frames zeroed while idle. All
//! other frames are zeroed when they are handed out as such, through [`quell_zero`] (C8).

use crate::frame::Owner;
use crate::lock::Lock;
use crate::machine::{Event, Machine, Work};
use crate::reclaim::BATCH;
use crate::shared::Shared;
use crate::vm::Vm;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use quell::mutant::{KeptBy, Mutant};
use quell::{CpuId, Extent, Frame};
use quell_zero::Clearer;

/// The largest block: 1 GB.
pub(crate) const MAX_ORDER: u8 = 18;

/// Free blocks of one node, by order and address. Lowest addresses go first.
pub(crate) struct Buddy {
    free: [BTreeSet<u64>; MAX_ORDER as usize + 1],
    frames: u64,
}

impl Buddy {
    pub(crate) fn new(extent: Extent) -> Self {
        let mut buddy = Buddy {
            free: [const { BTreeSet::new() }; MAX_ORDER as usize + 1],
            frames: 0,
        };
        let end = extent.first.0 + extent.frames;
        let mut at = extent.first.0;
        while at < end {
            let fits = (end - at).ilog2() as u8;
            let order = (at.trailing_zeros() as u8).min(fits).min(MAX_ORDER);
            buddy.free[order as usize].insert(at);
            at += 1 << order;
        }
        buddy.frames = extent.frames;
        buddy
    }

    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }

    fn take(&mut self, order: u8) -> Option<Frame> {
        let found = (order..=MAX_ORDER).find(|&order| !self.free[order as usize].is_empty())?;
        let block = self.free[found as usize].pop_first()?;
        for half in (order..found).rev() {
            self.free[half as usize].insert(block + (1 << half));
        }
        self.frames -= 1 << order;
        Some(Frame(block))
    }

    fn give(&mut self, frame: Frame, order: u8) {
        let (mut block, mut at) = (frame.0, order);
        while at < MAX_ORDER && self.free[at as usize].remove(&(block ^ 1 << at)) {
            block &= !(1 << at);
            at += 1;
        }
        self.free[at as usize].insert(block);
        self.frames += 1 << order;
    }
}

/// One memory node.
pub(crate) struct NodeState<M: Machine> {
    pub(crate) buddy: Lock<M::Word, Buddy>,
    /// Frames whose flush is owed until reuse, oldest first; some were rescued since.
    pub(crate) stale: Lock<M::Word, VecDeque<Frame>>,
    /// How many base frames lie in the two above: a hint, not charged for.
    pub(crate) free: Shared<M::Word>,
    /// Held by the CPU that frees pages of this node ahead.
    balancing: Lock<M::Word, ()>,
    /// Where reclaim and demotion go on looking.
    pub(crate) hand: Lock<M::Word, Frame>,
}

impl<M: Machine> NodeState<M> {
    pub(crate) fn new(extent: Extent) -> Self {
        NodeState {
            buddy: Lock::new(Buddy::new(extent)),
            stale: Lock::new(VecDeque::new()),
            free: Shared::new(extent.frames),
            balancing: Lock::new(()),
            hand: Lock::new(extent.first),
        }
    }
}

/// The free base frames of one CPU, all of its home node.
#[derive(Default)]
pub(crate) struct CpuCache {
    any: Vec<Frame>,
    zeros: Vec<Frame>,
}

impl CpuCache {
    pub(crate) fn frames(&self) -> u64 {
        (self.any.len() + self.zeros.len()) as u64
    }
}

/// What a new block contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    /// The caller overwrites all of it.
    Any,
    /// Zeros; the frame at this distance from the first is read next.
    Zeros(u64),
}

impl<M: Machine> Vm<'_, M> {
    /// A block of `2^order` frames from the nearest node that has one, reclaiming base frames if
    /// need be. It has one reference and belongs to the manager.
    pub(crate) fn allocate(&self, order: u8, content: Content) -> Option<Frame> {
        if !self.config.reclaim_idle {
            self.balance();
        }
        let home = self.machine().home_node(self.cpu());
        if let Some(frame) = self.allocate_from(home, order, content) {
            return Some(frame);
        }
        if order == 0 && self.config.demotion {
            self.demote(BATCH as u64);
            if let Some(frame) = self.allocate_from(home, order, content) {
                return Some(frame);
            }
        }
        let nodes = self.frames.map().nodes();
        for slow in [false, true] {
            for (node, place) in nodes.iter().enumerate() {
                if node != home
                    && place.slow == slow
                    && let Some(frame) = self.allocate_from(node, order, content)
                {
                    return Some(frame);
                }
            }
        }
        // Frames are scarce: other CPUs' stocks first, other people's pages next.
        for attempt in 0..self.config.reclaim_attempts {
            self.drain_caches();
            for node in 0..nodes.len() {
                if let Some(frame) = self.allocate_from(node, order, content) {
                    return Some(frame);
                }
            }
            if order > 0 {
                return None;
            }
            if self.reclaim(BATCH as u64) == 0 && attempt > 1 {
                self.machine().relax();
            }
        }
        None
    }

    /// Demotes and reclaims where fewer frames are free than are to be kept so: for each node one
    /// CPU at a time, the others go on; with less than half left, where flushes are owed, each frees a
    /// batch.
    pub(crate) fn balance(&self) {
        let ahead = self.config.reclaim_ahead;
        if ahead == 0 {
            return;
        }
        let owes = self.engine.policy().lazy_unmap;
        // Slow nodes first: they take what is demoted.
        for slow in [true, false] {
            for (place, node) in self.frames.map().nodes().iter().zip(&self.nodes) {
                let free = node.free.load(Relaxed);
                if place.slow != slow || free >= ahead {
                    continue;
                }
                let balancing = node.balancing.try_lock();
                let pages = match balancing {
                    Some(_) => ahead,
                    // That one CPU does not keep up: those who allocate help, before all that is
                    // left owes its flush since a moment ago.
                    None if owes && free < ahead / 2 => BATCH as u64,
                    None => continue,
                };
                if self.config.demotion && !slow {
                    self.demote(pages);
                } else {
                    self.reclaim(pages);
                }
            }
        }
    }

    /// Keeps some frames that owe nothing on each node, by claiming the oldest stale ones: for a CPU
    /// that is idle, so that those that allocate neither pay nor look frames over one by one.
    pub(crate) fn claim_ahead(&self) {
        let machine = self.machine();
        let wanted = self.config.reclaim_ahead / 4;
        for (index, node) in self.nodes.iter().enumerate() {
            while node.buddy.lock(machine).frames() < wanted {
                let claimed = self.claim_stale(index, BATCH);
                if claimed.is_empty() {
                    break;
                }
                node.free.fetch_add(claimed.len() as u64, Relaxed);
                let mut buddy = node.buddy.lock(machine);
                claimed.into_iter().for_each(|frame| buddy.give(frame, 0));
            }
        }
    }

    /// A block of one node, without reclaim.
    pub(crate) fn allocate_from(&self, node: usize, order: u8, content: Content) -> Option<Frame> {
        let machine = self.machine();
        let (frame, known) = self.take_block(node, order, content)?;
        machine.note(Event::FrameAllocated {
            frame,
            frames: 1 << order,
        });
        let mut zeros = known;
        if let Content::Zeros(near) = content {
            if !known && !machine.mutant(Mutant::VmSkipsZeroing) {
                let extent = Extent {
                    first: frame,
                    frames: 1 << order,
                };
                let near = Some(frame.plus(near));
                self.clearer().extent(extent, near, || machine.preempt());
            }
            zeros = true;
        }
        let mut state = self.frames.info(frame).state(machine);
        state.owner = Owner::Kernel;
        state.order = order;
        state.references = 1;
        state.zeros = zeros;
        state.forget_mappings();
        Some(frame)
    }

    /// A free block, and whether it is known to be zero.
    fn take_block(&self, node: usize, order: u8, content: Content) -> Option<(Frame, bool)> {
        let machine = self.machine();
        let cpu = self.cpu();
        if order > 0 || node != machine.home_node(cpu) {
            machine.charge(Work::Allocate {
                frames: 1 << order,
                refill: true,
            });
            let block = self.nodes[node].buddy.lock(machine).take(order);
            if block.is_some() {
                self.nodes[node].free.fetch_sub(1 << order, Relaxed);
            }
            return block
                .or_else(|| {
                    if order == 0 {
                        self.claim_stale(node, 1).pop()
                    } else {
                        None
                    }
                })
                .map(|frame| (frame, false));
        }
        let mut cache = self.caches[cpu.index()].lock(machine);
        let cached = match content {
            Content::Zeros(_) => cache.zeros.pop().map(|frame| (frame, true)),
            Content::Any => None,
        };
        let cached = cached
            .or_else(|| cache.any.pop().map(|frame| (frame, false)))
            .or_else(|| cache.zeros.pop().map(|frame| (frame, true)));
        if let Some(found) = cached {
            machine.charge(Work::Allocate {
                frames: 1,
                refill: false,
            });
            return Some(found);
        }
        machine.charge(Work::Allocate {
            frames: 1,
            refill: true,
        });
        {
            let mut buddy = self.nodes[node].buddy.lock(machine);
            // Taken in descending order, so that the cache hands out ascending addresses.
            for _ in 0..self.config.cache_batch.max(1) {
                let Some(frame) = buddy.take(0) else { break };
                self.nodes[node].free.fetch_sub(1, Relaxed);
                cache.any.push(frame);
            }
        }
        cache.any.reverse();
        let refilled = cache.any.pop();
        drop(cache);
        if refilled.is_some() {
            return refilled.map(|frame| (frame, false));
        }
        // Fewer than otherwise: a debt is the likelier to be paid already the longer it is left.
        let mut claimed = self.claim_stale(node, self.config.cache_batch.div_ceil(4));
        let frame = claimed.pop()?;
        self.caches[cpu.index()].lock(machine).any.extend(claimed);
        Some((frame, false))
    }

    /// Up to `many` of the oldest stale frames of the node that were not rescued, their debts paid;
    /// none if there is none.
    fn claim_stale(&self, node: usize, many: usize) -> Vec<Frame> {
        let machine = self.machine();
        loop {
            let oldest: Vec<Frame> = {
                let mut stale = self.nodes[node].stale.lock(machine);
                let many = many.min(stale.len());
                self.nodes[node].free.fetch_sub(many as u64, Relaxed);
                stale
                    .drain(..many)
                    .inspect(|&frame| self.frames.info(frame).state(machine).listed = false)
                    .collect()
            };
            if oldest.is_empty() {
                return oldest;
            }
            let claim = |&frame: &Frame| {
                let info = self.frames.info(frame);
                let claimed = self.engine.claim(&info.residue).is_some();
                if claimed {
                    let mut state = info.state(machine);
                    state.owner = Owner::Free;
                    // Markers that name the frame are void from here on: their debt was paid.
                    state.forget_mappings();
                }
                claimed
            };
            // The youngest first: what pays its debt pays the others'.
            let claimed: Vec<Frame> = oldest.into_iter().rev().filter(claim).collect();
            if !claimed.is_empty() {
                return claimed;
            }
        }
    }

    /// Puts a frame whose flush is owed on its node's list.
    pub(crate) fn list_stale(&self, frame: Frame) {
        let machine = self.machine();
        let Some(node) = self.frames.map().node_of(frame) else {
            return;
        };
        let mut stale = self.nodes[node].stale.lock(machine);
        let mut state = self.frames.info(frame).state(machine);
        machine.note(Event::FrameFreed { frame, frames: 1 });
        if !state.listed {
            state.listed = true;
            stale.push_back(frame);
            self.nodes[node].free.fetch_add(1, Relaxed);
        }
    }

    /// Takes a reference.
    pub(crate) fn hold(&self, frame: Frame) {
        self.frames.info(frame).state(self.machine()).references += 1;
    }

    /// Gives a reference up, and the block with the last one. The caller vouches that no CPU uses a
    /// translation to it that the reference stood for.
    pub(crate) fn put(&self, frame: Frame) {
        let mut state = self.frames.info(frame).state(self.machine());
        state.references -= 1;
        if state.references > 0 {
            return;
        }
        let (order, zeros) = (state.order, state.zeros);
        state.owner = Owner::Free;
        state.zeros = false;
        state.forget_mappings();
        drop(state);
        self.free(frame, order, zeros);
    }

    /// Gives a block back to the allocator.
    fn free(&self, frame: Frame, order: u8, zeros: bool) {
        let machine = self.machine();
        let cpu = self.cpu();
        machine.note(Event::FrameFreed {
            frame,
            frames: 1 << order,
        });
        let Some(node) = self.frames.map().node_of(frame) else {
            return;
        };
        if order > 0 || node != machine.home_node(cpu) {
            machine.charge(Work::Free {
                frames: 1 << order,
                spill: true,
            });
            self.nodes[node].buddy.lock(machine).give(frame, order);
            self.nodes[node].free.fetch_add(1 << order, Relaxed);
            return;
        }
        let mut cache = self.caches[cpu.index()].lock(machine);
        if zeros {
            cache.zeros.push(frame)
        } else {
            cache.any.push(frame)
        }
        let limit = 2 * self.config.cache_batch;
        let spill = cache.any.len().max(cache.zeros.len()) > limit;
        machine.charge(Work::Free { frames: 1, spill });
        if spill {
            let mut buddy = self.nodes[node].buddy.lock(machine);
            let keep = self.config.cache_batch;
            let CpuCache { any, zeros } = &mut *cache;
            for list in [any, zeros] {
                let extra = list.len().saturating_sub(keep);
                // The oldest go: the youngest are still in the processor's caches.
                self.nodes[node].free.fetch_add(extra as u64, Relaxed);
                list.drain(..extra).for_each(|frame| buddy.give(frame, 0));
            }
        }
    }

    /// Empties the caches of all CPUs into the nodes.
    fn drain_caches(&self) {
        for cpu in 0..self.caches.len() {
            self.drain_cache(CpuId(cpu as u16));
        }
    }

    /// Empties the cache of one CPU into the nodes.
    pub(crate) fn drain_cache(&self, cpu: CpuId) {
        let machine = self.machine();
        let mut cache = self.caches[cpu.index()].lock(machine);
        let CpuCache { any, zeros } = &mut *cache;
        for frame in any.drain(..).chain(zeros.drain(..)) {
            if let Some(node) = self.frames.map().node_of(frame) {
                self.nodes[node].buddy.lock(machine).give(frame, 0);
                self.nodes[node].free.fetch_add(1, Relaxed);
            }
        }
    }

    /// What zeroes this machine's memory.
    fn clearer(&self) -> Clearer<'_, M, KeptBy<'_, M>> {
        let machine = self.machine();
        Clearer::new(machine, &self.config.clear).with_rules(KeptBy(machine))
    }

    /// Zeroes up to `frames` free frames of this CPU's cache ahead of need.
    pub(crate) fn zero_ahead(&self, frames: usize) {
        let machine = self.machine();
        for _ in 0..frames {
            let Some(frame) = self.caches[self.cpu().index()].lock(machine).any.pop() else {
                return;
            };
            let extent = Extent {
                first: frame,
                frames: 1,
            };
            self.clearer().extent(extent, None, || ());
            self.caches[self.cpu().index()]
                .lock(machine)
                .zeros
                .push(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buddy_gives_everything_once_and_joins_again() {
        let extent = Extent {
            first: Frame(37),
            frames: 1000,
        };
        let mut buddy = Buddy::new(extent);
        let mut taken = Vec::new();
        for order in [3, 0, 5, 1, 0] {
            taken.push((buddy.take(order).unwrap(), order));
        }
        while let Some(frame) = buddy.take(0) {
            taken.push((frame, 0));
        }
        let mut owned = alloc::vec![false; 1100];
        for &(frame, order) in &taken {
            assert_eq!(frame.0 % (1 << order), 0);
            for at in frame.0..frame.0 + (1 << order) {
                assert!(
                    (37..1037).contains(&at) && !core::mem::replace(&mut owned[at as usize], true)
                );
            }
        }
        assert_eq!(owned.iter().filter(|&&owned| owned).count(), 1000);
        assert_eq!(buddy.frames(), 0);
        for (frame, order) in taken {
            buddy.give(frame, order);
        }
        assert_eq!(buddy.frames(), 1000);
        assert_eq!(buddy.take(8), Some(Frame(256)));
    }
}

//! Allocates physical memory, through per-CPU caches of free frames and a buddy allocator for each node.
//!
//! A CPU has a cache of base frames for every node, and exchanges frames with the node in batches. Larger blocks, up to
//! 1 GB, always come from the node. A cache of the home node alone would not suffice. Demotion fills, and reclaim
//! empties, nodes that are no CPU's home; each of their frames would take the node's lock, for which all CPUs would
//! wait.
//!
//! A node has two stocks: frames without a deferred flush are allocated first, then frames with one (S3), the oldest
//! first. The flush before a frame is reused also covers all older ones.
//!
//! The cache keeps frames that are known to be zero apart, for faults that need zeros. They are anonymous pages that
//! were mapped but never written, and frames that an idle CPU has zeroed. All other frames are zeroed through
//! [`quell_zero`] (C8) when they are allocated as zeroed.
//!
//! [`Frames`] never takes a page away from a process. The code that does so when frames are scarce is above page
//! tables, page cache and swap ([`crate::memory`]). They allocate with [`Vm::alloc`](crate::Vm::alloc).

use crate::buddy::Buddy;
use crate::frame::{FrameState, Mappings, Owner, Sections, sections};
use crate::lock::{Guard, Lock};
use crate::machine::{Engine, Event, LockUse, Machine, MemoryMap, Work};
use crate::masked_lock::MaskedLock;
use crate::mmu_gather::WaitingObject;
use crate::shared::SharedNumber;
use crate::table_lock::Places;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use quell::{CpuId, Extent, Frame};
use quell_zero::{ClearPolicy, Clearer};

/// Pages that reclaim, migration and writeback handle at a time: Linux's `SWAP_CLUSTER_MAX`.
pub(crate) const CLUSTER: usize = 32;

/// One memory node.
struct NodeState<M: Machine> {
    buddy: MaskedLock<M::Word, Buddy>,
    /// Frames whose flush is deferred until reuse, the oldest first. Some of them may have been reinstated.
    stale: MaskedLock<M::Word, VecDeque<Frame>>,
    /// The number of base frames in `buddy` and `stale`. It is a hint, and reading it costs no virtual time.
    free: SharedNumber<M::Word>,
    /// Held by the CPU that frees pages of this node in advance. The value is the number of allocations to skip before
    /// the next attempt, because the last scan of all pages found none to free.
    balancing: Lock<M::Word, usize>,
    /// The clock hand: the frame at which reclaim and demotion continue.
    hand: MaskedLock<M::Word, Frame>,
}

impl<M: Machine> NodeState<M> {
    fn new(extent: Extent) -> Self {
        NodeState {
            buddy: MaskedLock::new(Buddy::new(extent)),
            stale: MaskedLock::new(VecDeque::new()),
            free: SharedNumber::new(extent.frames),
            balancing: Lock::new(0),
            hand: MaskedLock::new(extent.first),
        }
    }
}

/// A CPU's free base frames of one node (Linux's per-CPU page lists of a zone).
#[derive(Default)]
struct CpuCache {
    any: Vec<Frame>,
    zeros: Vec<Frame>,
}

/// The required content of a new block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    /// Any content: the caller overwrites all of it.
    Any,
    /// Zeros. The caller next reads the frame at this distance from the first.
    Zeros(u64),
}

/// Objects that a CPU releases later, with the moments from which it may.
type PostponedObjects<M> = VecDeque<(u64, WaitingObject<M>)>;

/// All frames of the machine.
pub(crate) struct Frames<'m, M: Machine> {
    engine: Arc<Engine<'m, M>>,
    pub(crate) map: MemoryMap,
    pub(crate) sections: Sections<M>,
    places: Places<M::Word>,
    nodes: Vec<NodeState<M>>,
    /// Each CPU's caches of all nodes, in node order.
    caches: Box<[Lock<M::Word, CpuCache>]>,
    cache_batch: usize,
    clear: ClearPolicy,
    /// Each CPU's objects that wait for a time, because the machine flushes later. The oldest is first.
    postponed: Box<[Lock<M::Word, PostponedObjects<M>>]>,
}

/// Objects that wait for a time.
impl<M: Machine> Frames<'_, M> {
    /// Keeps objects until [`Frames::take_due`] on this CPU returns them.
    pub(crate) fn postpone(&self, objects: impl Iterator<Item = (u64, WaitingObject<M>)>) {
        let machine = self.machine();
        let mut list = self.postponed[machine.this_cpu().index()].lock(machine);
        list.extend(objects);
    }

    /// Returns this CPU's objects whose time has come.
    pub(crate) fn take_due(&self, now: u64) -> Vec<WaitingObject<M>> {
        let machine = self.machine();
        let mut list = self.postponed[machine.this_cpu().index()].lock(machine);
        let due = list.partition_point(|(until, _)| *until <= now);
        list.drain(..due).map(|(_, held)| held).collect()
    }
}

/// The frame table.
impl<'m, M: Machine> Frames<'m, M> {
    /// Creates all memory of the machine, free. CPU caches exchange `cache_batch` frames with their node.
    pub(crate) fn new(engine: Arc<Engine<'m, M>>, cache_batch: usize, clear: ClearPolicy) -> Self {
        let machine = engine.hw();
        let map = machine.memory();
        let nodes = map.nodes().iter();
        Frames {
            sections: sections(&map),
            places: Places::new(machine.cpu_count()),
            nodes: nodes.map(|node| NodeState::new(node.extent)).collect(),
            caches: (0..machine.cpu_count() * map.nodes().len())
                .map(|_| Lock::new(CpuCache::default()))
                .collect(),
            cache_batch: cache_batch.max(1),
            clear,
            postponed: (0..machine.cpu_count()).map(|_| Lock::new(VecDeque::new())).collect(),
            map,
            engine,
        }
    }

    /// Returns the engine that keeps translations of the frames coherent.
    pub(crate) fn engine(&self) -> &Engine<'m, M> {
        &self.engine
    }

    pub(crate) fn machine(&self) -> &'m M {
        self.engine.hw()
    }

    /// Returns the places of CPUs that lock tables.
    pub(crate) fn places(&self) -> &Places<M::Word> {
        &self.places
    }

    /// Locks the state of a block. Panics as [`Frames::info`].
    pub(crate) fn state(&self, frame: Frame) -> Guard<'_, M::Word, FrameState<M>> {
        self.info(frame).state(self.machine())
    }

    /// Returns the entries that map a block at this moment.
    pub(crate) fn mappings(&self, frame: Frame) -> Mappings<M> {
        self.state(frame).rmap.iter().cloned().collect()
    }

    /// Advances the node's clock hand by at most `most` frames, or at once over a whole stretch of never-used frames.
    /// Returns the number of frames passed, and the frames to examine.
    pub(crate) fn advance_hand(&self, node: usize, most: u64) -> (u64, Extent) {
        let extent = self.map.nodes()[node].extent;
        let end = extent.first.plus(extent.frames);
        let mut hand = self.nodes[node].hand.lock(self.machine());
        let first = if *hand < end { *hand } else { extent.first };
        let skipped = self.untouched_until(node, first);
        let next = skipped.unwrap_or_else(|| {
            let limit = end.0.min(first.0 + most);
            let mut more = (first.0 + 1..limit).map(Frame);
            let unused = more.find(|&frame| self.untouched_until(node, frame).is_some());
            unused.unwrap_or(Frame(limit))
        });
        *hand = next;
        let passed = next.0 - first.0;
        let frames = if skipped.is_some() { 0 } else { passed };
        (passed, Extent { first, frames })
    }
}

/// References, and freeing of blocks without any.
impl<M: Machine> Frames<'_, M> {
    /// Takes a reference.
    pub(crate) fn hold(&self, frame: Frame) {
        self.state(frame).hold();
    }

    /// Drops a reference, and frees the block with the last one. The caller guarantees that no CPU uses a translation
    /// that the reference represented.
    pub(crate) fn put(&self, frame: Frame) {
        let last = self.state(frame).put();
        if let Some((order, zeros)) = last {
            self.free(frame, order, zeros);
        }
    }

    /// Appends frames with deferred flushes to their nodes' lists, in order. Skips frames that are still listed from an
    /// earlier life, and frames that were reinstated.
    pub(crate) fn list_stale(&self, frames: &[Frame]) {
        let machine = self.machine();
        let node_of = |frame: &Frame| self.map.node_of(*frame);
        for together in frames.chunk_by(|one, next| node_of(one) == node_of(next)) {
            let Some(node) = node_of(&together[0]) else {
                continue;
            };
            let mut stale = self.nodes[node].stale.lock(machine);
            for &frame in together {
                let mut state = self.state(frame);
                if !state.listed && !self.info(frame).deferred_flush.is_clear() {
                    state.listed = true;
                    stale.push_back(frame);
                    self.nodes[node].free.fetch_add(1, Relaxed);
                }
            }
        }
    }

    /// Returns the CPU's cache of the node.
    fn cache(&self, cpu: CpuId, node: usize) -> &Lock<M::Word, CpuCache> {
        &self.caches[cpu.index() * self.nodes.len() + node]
    }

    /// Returns a block to its allocator.
    fn free(&self, frame: Frame, order: u8, zeros: bool) {
        let machine = self.machine();
        let cpu = machine.this_cpu();
        machine.note(Event::FrameFreed { frame, frames: 1 << order });
        let Some(node) = self.map.node_of(frame) else {
            return;
        };
        if order > 0 {
            machine.charge(Work::Free { frames: 1 << order, spill: true });
            self.nodes[node].buddy.lock(machine).give(frame, order);
            self.nodes[node].free.fetch_add(1 << order, Relaxed);
            return;
        }
        let mut cache = self.cache(cpu, node).lock(machine);
        if zeros {
            cache.zeros.push(frame)
        } else {
            cache.any.push(frame)
        }
        let limit = 2 * self.cache_batch;
        let spill = cache.any.len().max(cache.zeros.len()) > limit;
        machine.charge(Work::Free { frames: 1, spill });
        if spill {
            let frames = (limit + 1).saturating_sub(self.cache_batch) as u64;
            machine.charge(Work::Locked(LockUse::Zone { node, frames }));
            let mut buddy = self.nodes[node].buddy.lock(machine);
            let CpuCache { any, zeros } = &mut *cache;
            for list in [any, zeros] {
                let extra = list.len().saturating_sub(self.cache_batch);
                // We return the oldest frames: the youngest are still in the processor's caches.
                self.nodes[node].free.fetch_add(extra as u64, Relaxed);
                list.drain(..extra).for_each(|frame| buddy.give(frame, 0));
            }
        }
    }
}

/// Allocation from one node, and the stocks.
impl<M: Machine> Frames<'_, M> {
    /// Allocates a block on one node, with one reference, owned by the manager. Returns `None` if the node has no such
    /// block, stale frames included.
    pub(crate) fn alloc_on(&self, node: usize, order: u8, content: Content) -> Option<Frame> {
        let machine = self.machine();
        let (frame, known) = self.take_block(node, order, content)?;
        machine.note(Event::FrameAllocated { frame, frames: 1 << order });
        let mut zeros = known;
        if let Content::Zeros(near) = content {
            // [mutant VmSkipsZeroing]
            if !known {
                let extent = Extent { first: frame, frames: 1 << order };
                let near = Some(frame.plus(near));
                // SAFETY: nobody else has the frames, and no deferred flush is left about them.
                unsafe { self.clearer().extent(extent, near, || machine.preempt()) };
            }
            zeros = true;
        }
        self.state(frame).begin(Owner::Kernel, order, 1, zeros);
        Some(frame)
    }

    /// Takes a free block. Returns whether it is known to be zero.
    fn take_block(&self, node: usize, order: u8, content: Content) -> Option<(Frame, bool)> {
        let machine = self.machine();
        let cpu = machine.this_cpu();
        if order > 0 {
            machine.charge(Work::Allocate { frames: 1 << order, refill: true });
            let block = self.nodes[node].buddy.lock(machine).take(order)?;
            self.nodes[node].free.fetch_sub(1 << order, Relaxed);
            return Some((block, false));
        }
        let mut cache = self.cache(cpu, node).lock(machine);
        let cached = match content {
            Content::Zeros(_) => cache.zeros.pop().map(|frame| (frame, true)),
            Content::Any => None,
        };
        let cached = cached
            .or_else(|| cache.any.pop().map(|frame| (frame, false)))
            .or_else(|| cache.zeros.pop().map(|frame| (frame, true)));
        if let Some(found) = cached {
            machine.charge(Work::Allocate { frames: 1, refill: false });
            return Some(found);
        }
        machine.charge(Work::Allocate { frames: 1, refill: true });
        let frames = self.cache_batch as u64;
        machine.charge(Work::Locked(LockUse::Zone { node, frames }));
        {
            let mut buddy = self.nodes[node].buddy.lock(machine);
            // We take them in descending order, so that the cache hands out ascending addresses.
            for _ in 0..self.cache_batch {
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
        // We take fewer than usual: the longer a deferred flush waits, the more likely another flush covers it.
        let mut reused = self.reuse_stale(node, self.cache_batch.div_ceil(4));
        let frame = reused.pop()?;
        self.cache(cpu, node).lock(machine).any.extend(reused);
        Some((frame, false))
    }

    /// Takes up to `many` of the node's oldest stale frames that weren't reinstated, after making their deferred
    /// flushes. Returns none if there are none.
    fn reuse_stale(&self, node: usize, many: usize) -> Vec<Frame> {
        let machine = self.machine();
        loop {
            let oldest: Vec<Frame> = {
                let mut stale = self.nodes[node].stale.lock(machine);
                let many = many.min(stale.len());
                self.nodes[node].free.fetch_sub(many as u64, Relaxed);
                stale.drain(..many).inspect(|&frame| self.state(frame).listed = false).collect()
            };
            if oldest.is_empty() {
                return oldest;
            }
            let flush_before_reuse = |&frame: &Frame| {
                let info = self.info(frame);
                let reused = self.engine.flush_before_reuse(&info.deferred_flush).is_some();
                if reused {
                    info.state(machine).reused();
                }
                reused
            };
            // The youngest first: its flush also covers the older ones.
            let reused: Vec<Frame> = oldest.into_iter().rev().filter(flush_before_reuse).collect();
            if !reused.is_empty() {
                return reused;
            }
        }
    }

    /// Refills each node to `wanted` frames without a deferred flush, by reusing the oldest stale ones. An idle CPU
    /// does this, so that allocating CPUs need neither flush nor examine single frames.
    pub(crate) fn reuse_ahead(&self, wanted: u64) {
        let machine = self.machine();
        for (index, node) in self.nodes.iter().enumerate() {
            while node.buddy.lock(machine).frames() < wanted {
                let reused = self.reuse_stale(index, CLUSTER);
                if reused.is_empty() {
                    break;
                }
                node.free.fetch_add(reused.len() as u64, Relaxed);
                let mut buddy = node.buddy.lock(machine);
                reused.into_iter().for_each(|frame| buddy.give(frame, 0));
            }
        }
    }

    /// Zeroes up to `frames` of this CPU's own free frames of its home node in advance.
    pub(crate) fn zero_ahead(&self, frames: usize) {
        let machine = self.machine();
        let cpu = machine.this_cpu();
        let cache = self.cache(cpu, machine.home_node(cpu));
        for _ in 0..frames {
            let Some(frame) = cache.lock(machine).any.pop() else {
                return;
            };
            let extent = Extent { first: frame, frames: 1 };
            // SAFETY: nobody else has the frame: it is in no list.
            unsafe { self.clearer().extent(extent, None, || ()) };
            cache.lock(machine).zeros.push(frame);
        }
    }

    /// Empties the caches of all CPUs into the nodes.
    pub(crate) fn drain_caches(&self) {
        for cpu in 0..self.machine().cpu_count() {
            self.drain_cache(CpuId(cpu as u16));
        }
    }

    /// Empties the caches of one CPU into the nodes.
    pub(crate) fn drain_cache(&self, cpu: CpuId) {
        let machine = self.machine();
        for (index, node) in self.nodes.iter().enumerate() {
            let mut cache = self.cache(cpu, index).lock(machine);
            let CpuCache { any, zeros } = &mut *cache;
            let frames = (any.len() + zeros.len()) as u64;
            if frames > 0 {
                let mut buddy = node.buddy.lock(machine);
                let all = any.drain(..).chain(zeros.drain(..));
                all.for_each(|frame| buddy.give(frame, 0));
                node.free.fetch_add(frames, Relaxed);
            }
        }
    }

    /// Returns the code that zeroes this machine's memory.
    fn clearer(&self) -> Clearer<'_, M> {
        Clearer::new(self.machine(), &self.clear)
    }

    /// Returns roughly the number of free frames of the node, including stale ones but not those in caches.
    pub(crate) fn free_on(&self, node: usize) -> u64 {
        self.nodes[node].free.load(Relaxed)
    }

    /// Takes the right to free pages of the node in advance, unless another CPU has it. The value is the number of
    /// allocations to skip before the next attempt.
    pub(crate) fn try_balance(&self, node: usize) -> Option<Guard<'_, M::Word, usize>> {
        self.nodes[node].balancing.try_lock()
    }

    /// Returns the number of free frames, including those with a deferred flush.
    pub(crate) fn free_frames(&self) -> u64 {
        let machine = self.machine();
        let nodes = self.nodes.iter().map(|node| {
            let stale = node.stale.lock(machine).len() as u64;
            stale + node.buddy.lock(machine).frames()
        });
        let caches = self.caches.iter().map(|cache| {
            let cache = cache.lock(machine);
            (cache.any.len() + cache.zeros.len()) as u64
        });
        nodes.sum::<u64>() + caches.sum::<u64>()
    }

    /// Returns the number of frames in the stale lists. Some of them may have been reinstated.
    pub(crate) fn stale_frames(&self) -> u64 {
        let machine = self.machine();
        let lists = self.nodes.iter().map(|node| node.stale.lock(machine).len());
        lists.sum::<usize>() as u64
    }

    /// Compares each node's count of free frames with its lists, and the lists of stale frames with the `listed` frames
    /// that say they are in one.
    pub(crate) fn check(&self, listed: u64) -> Result<(), String> {
        let machine = self.machine();
        for (number, node) in self.nodes.iter().enumerate() {
            let stale = node.stale.lock(machine).len() as u64;
            let (counted, found) =
                (node.free.load(Relaxed), node.buddy.lock(machine).frames() + stale);
            if counted != found {
                return Err(format!("node {number} counts {counted} free frames, but has {found}"));
            }
        }
        match self.stale_frames() {
            stale if stale == listed => Ok(()),
            stale => Err(format!("the lists of stale frames hold {stale}, but {listed} say so")),
        }
    }
}

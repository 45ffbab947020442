//! Physical memory: the frame table, and allocating and freeing frames from per-CPU caches over one
//! buddy allocator per node.
//!
//! Base frames come from and go to the CPU's own cache of the node that they lie on, which trades with that node
//! in batches; larger blocks, up to 1 GB, always come from the node. A CPU has a cache of every node, not of its
//! home alone: demotion fills and reclaim empties nodes that are no CPU's home, and without a cache each of their
//! frames would cost the one lock that all CPUs then wait for. Of one node two stocks are asked in turn:
//! frames that have no deferred flush; then frames that have a deferred flush (S3), oldest first. The flush
//! before one is reused serves all older ones, too.
//!
//! Frames known to be zero are kept apart in the cache, so that a fault that needs zeros finds
//! them: anonymous pages that were mapped and never written, and frames zeroed while idle. All
//! other frames are zeroed when they are handed out as such, through [`quell_zero`] (C8).
//!
//! [`Frames`] never takes a page away from a process. The code that does when frames are scarce stands above
//! page tables, page cache and swap ([`crate::memory`]), all of which need frames: they ask an
//! [`AllocFrames`].

use crate::buddy::Buddy;
use crate::frame::{FrameInfo, FrameState, FrameTable, Owner};
use crate::lock::{Guard, Lock};
use crate::machine::{Engine, Event, LockUse, Machine, MemoryMap, Work};
use crate::masked_lock::MaskedLock;
use crate::rmap::Mappings;
use crate::shared::Shared;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use quell::{CpuId, Extent, Frame};
use quell_zero::{ClearPolicy, Clearer};

/// How many pages reclaim, migration and writeback work on at a time: Linux's `SWAP_CLUSTER_MAX`.
pub(crate) const CLUSTER: usize = 32;

/// One memory node.
struct NodeState<M: Machine> {
    buddy: MaskedLock<M::Word, Buddy>,
    /// Frames whose flush is deferred until reuse, oldest first; some were reinstated since.
    stale: MaskedLock<M::Word, VecDeque<Frame>>,
    /// The number of base frames in the two above: a hint, not charged for.
    free: Shared<M::Word>,
    /// Held by the CPU that frees pages of this node ahead. How many allocations pass before it is tried again,
    /// because the last look at all pages found none that can go.
    balancing: Lock<M::Word, usize>,
    /// The clock's hand: where reclaim and demotion continue.
    hand: MaskedLock<M::Word, Frame>,
}

impl<M: Machine> NodeState<M> {
    fn new(extent: Extent) -> Self {
        NodeState {
            buddy: MaskedLock::new(Buddy::new(extent)),
            stale: MaskedLock::new(VecDeque::new()),
            free: Shared::new(extent.frames),
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

/// The content of a new block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    /// Anything: the caller overwrites all of it.
    Any,
    /// Zeros; the frame at this distance from the first is read next.
    Zeros(u64),
}

/// Where layers above the frames get theirs from: an allocator that may make room first.
///
/// The caller holds no lock of a table and none below it, because pages may be taken away under
/// page locks and table locks before the answer comes.
pub(crate) trait AllocFrames {
    /// A block of `2^order` frames with one reference, owned by the manager ([`Owner::Kernel`]);
    /// `None` if memory is short.
    fn alloc(&self, order: u8, content: Content) -> Option<Frame>;
}

/// All frames of the machine.
pub(crate) struct Frames<'m, M: Machine> {
    engine: Arc<Engine<'m, M>>,
    table: FrameTable<M>,
    nodes: Vec<NodeState<M>>,
    /// Of each CPU those of all nodes, in the order of the nodes.
    caches: Box<[Lock<M::Word, CpuCache>]>,
    cache_batch: usize,
    clear: ClearPolicy,
}

/// The frame table.
impl<'m, M: Machine> Frames<'m, M> {
    /// All memory of the machine, free. CPU caches trade `cache_batch` frames with their node.
    pub(crate) fn new(engine: Arc<Engine<'m, M>>, cache_batch: usize, clear: ClearPolicy) -> Self {
        let machine = engine.hw();
        let map = machine.memory();
        let nodes = map.nodes().iter();
        Frames {
            table: FrameTable::new(map),
            nodes: nodes.map(|node| NodeState::new(node.extent)).collect(),
            caches: (0..machine.cpu_count() * map.nodes().len())
                .map(|_| Lock::new(CpuCache::default()))
                .collect(),
            cache_batch,
            clear,
            engine,
        }
    }

    /// The engine that keeps translations of the frames coherent.
    pub(crate) fn engine(&self) -> &Engine<'m, M> {
        &self.engine
    }

    pub(crate) fn machine(&self) -> &'m M {
        self.engine.hw()
    }

    /// The memory that there is.
    pub(crate) fn map(&self) -> &MemoryMap {
        self.table.map()
    }

    /// Returns the description of `frame`; `None` if the manager does not own it.
    pub(crate) fn get(&self, frame: Frame) -> Option<&FrameInfo<M>> {
        self.table.get(frame)
    }

    /// Returns the description of a frame that the manager owns.
    ///
    /// # Panics
    /// If it does not: a table or a list names a frame that never was in the memory map.
    pub(crate) fn info(&self, frame: Frame) -> &FrameInfo<M> {
        self.table.info(frame)
    }

    /// The state of a block, locked. Panics as [`Frames::info`].
    pub(crate) fn state(&self, frame: Frame) -> Guard<'_, M::Word, FrameState<M>> {
        self.info(frame).state(self.machine())
    }

    /// The entries that map a block at this moment.
    pub(crate) fn mappings(&self, frame: Frame) -> Mappings<M> {
        self.state(frame).mappings()
    }

    /// The frames that were ever used, for walks over all memory.
    pub(crate) fn described(&self) -> impl Iterator<Item = (Frame, &FrameInfo<M>)> {
        self.table.described()
    }

    /// Moves the clock's hand of the node on over at most `most` frames, and over a whole stretch of frames that were
    /// never used at once. Returns how many frames it passed, and which of them the caller is to look at.
    pub(crate) fn advance_hand(&self, node: usize, most: u64) -> (u64, Extent) {
        let extent = self.map().nodes()[node].extent;
        let end = extent.first.plus(extent.frames);
        let mut hand = self.nodes[node].hand.lock(self.machine());
        let first = if *hand < end { *hand } else { extent.first };
        let skipped = self.table.untouched_until(node, first);
        let next = skipped.unwrap_or_else(|| {
            let limit = end.0.min(first.0 + most);
            let mut more = (first.0 + 1..limit).map(Frame);
            let unused = more.find(|&frame| self.table.untouched_until(node, frame).is_some());
            unused.unwrap_or(Frame(limit))
        });
        *hand = next;
        let passed = next.0 - first.0;
        let frames = if skipped.is_some() { 0 } else { passed };
        (passed, Extent { first, frames })
    }
}

/// References, and freeing blocks without any.
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

    /// Appends frames with deferred flushes to their nodes' lists, in order. Excluded are frames that are listed from
    /// an earlier time and were reused since, and frames that were reinstated.
    pub(crate) fn list_stale(&self, frames: &[Frame]) {
        let machine = self.machine();
        let node_of = |frame: &Frame| self.map().node_of(*frame);
        for together in frames.chunk_by(|one, next| node_of(one) == node_of(next)) {
            let Some(node) = node_of(&together[0]) else {
                continue;
            };
            let mut stale = self.nodes[node].stale.lock(machine);
            for &frame in together {
                let mut state = self.state(frame);
                if !state.is_listed() && !self.info(frame).deferred_flush().is_clear() {
                    state.set_listed(true);
                    stale.push_back(frame);
                    self.nodes[node].free.fetch_add(1, Relaxed);
                }
            }
        }
    }

    /// The CPU's frames of the node.
    fn cache(&self, cpu: CpuId, node: usize) -> &Lock<M::Word, CpuCache> {
        &self.caches[cpu.index() * self.nodes.len() + node]
    }

    /// Gives a block back to the allocator.
    fn free(&self, frame: Frame, order: u8, zeros: bool) {
        let machine = self.machine();
        let cpu = machine.this_cpu();
        machine.note(Event::FrameFreed {
            frame,
            frames: 1 << order,
        });
        let Some(node) = self.map().node_of(frame) else {
            return;
        };
        if order > 0 {
            machine.charge(Work::Free {
                frames: 1 << order,
                spill: true,
            });
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
                // The oldest go: the youngest are still in the processor's caches.
                self.nodes[node].free.fetch_add(extra as u64, Relaxed);
                list.drain(..extra).for_each(|frame| buddy.give(frame, 0));
            }
        }
    }
}

/// Allocation from one node, and the stocks.
impl<M: Machine> Frames<'_, M> {
    /// A block of one node, with one reference and owned by the manager; `None` if the node has no
    /// such block, stale frames included.
    pub(crate) fn alloc_on(&self, node: usize, order: u8, content: Content) -> Option<Frame> {
        let machine = self.machine();
        let (frame, known) = self.take_block(node, order, content)?;
        machine.note(Event::FrameAllocated {
            frame,
            frames: 1 << order,
        });
        let mut zeros = known;
        if let Content::Zeros(near) = content {
            // [mutant VmSkipsZeroing]
            if !known {
                let extent = Extent {
                    first: frame,
                    frames: 1 << order,
                };
                let near = Some(frame.plus(near));
                // SAFETY: nobody else has the frames, and no deferred flush is left about them.
                unsafe { self.clearer().extent(extent, near, || machine.preempt()) };
            }
            zeros = true;
        }
        self.state(frame).begin(Owner::Kernel, order, 1, zeros);
        Some(frame)
    }

    /// A free block, and whether it is known to be zero.
    fn take_block(&self, node: usize, order: u8, content: Content) -> Option<(Frame, bool)> {
        let machine = self.machine();
        let cpu = machine.this_cpu();
        if order > 0 {
            machine.charge(Work::Allocate {
                frames: 1 << order,
                refill: true,
            });
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
        let frames = self.cache_batch.max(1) as u64;
        machine.charge(Work::Locked(LockUse::Zone { node, frames }));
        {
            let mut buddy = self.nodes[node].buddy.lock(machine);
            // Taken in descending order, so that the cache hands out ascending addresses.
            for _ in 0..self.cache_batch.max(1) {
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
        // Fewer than otherwise: a deferred flush is the likelier to be made already the longer it is left.
        let mut reused = self.reuse_stale(node, self.cache_batch.div_ceil(4));
        let frame = reused.pop()?;
        self.cache(cpu, node).lock(machine).any.extend(reused);
        Some((frame, false))
    }

    /// Up to `many` of the oldest stale frames of the node that were not reinstated, their deferred flushes made;
    /// none if there is none.
    fn reuse_stale(&self, node: usize, many: usize) -> Vec<Frame> {
        let machine = self.machine();
        loop {
            let oldest: Vec<Frame> = {
                let mut stale = self.nodes[node].stale.lock(machine);
                let many = many.min(stale.len());
                self.nodes[node].free.fetch_sub(many as u64, Relaxed);
                stale
                    .drain(..many)
                    .inspect(|&frame| self.state(frame).set_listed(false))
                    .collect()
            };
            if oldest.is_empty() {
                return oldest;
            }
            let flush_before_reuse = |&frame: &Frame| {
                let info = self.info(frame);
                let reused = self
                    .engine
                    .flush_before_reuse(info.deferred_flush())
                    .is_some();
                if reused {
                    info.state(machine).reused();
                }
                reused
            };
            // The youngest first: its deferred flush makes the others', too.
            let reused: Vec<Frame> = oldest
                .into_iter()
                .rev()
                .filter(flush_before_reuse)
                .collect();
            if !reused.is_empty() {
                return reused;
            }
        }
    }

    /// Keeps `wanted` frames that have no deferred flush on each node, by reusing the oldest stale ones: for a
    /// CPU that is idle, so that those that allocate neither flush nor look frames over one by one.
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

    /// Zeroes up to `frames` free frames of this CPU's home node, those that it holds itself, ahead of need.
    pub(crate) fn zero_ahead(&self, frames: usize) {
        let machine = self.machine();
        let cpu = machine.this_cpu();
        let cache = self.cache(cpu, machine.home_node(cpu));
        for _ in 0..frames {
            let Some(frame) = cache.lock(machine).any.pop() else {
                return;
            };
            let extent = Extent {
                first: frame,
                frames: 1,
            };
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

    /// About how many frames of the node are free, stale ones included, those in the caches not.
    pub(crate) fn free_on(&self, node: usize) -> u64 {
        self.nodes[node].free.load(Relaxed)
    }

    /// The right to free pages of the node ahead, if no other CPU is doing so, with how many allocations are to
    /// pass before that is worth another look.
    pub(crate) fn try_balance(&self, node: usize) -> Option<Guard<'_, M::Word, usize>> {
        self.nodes[node].balancing.try_lock()
    }

    /// How many frames are free, those included that have a deferred flush.
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

    /// How many frames are listed as stale; some of them were reinstated.
    pub(crate) fn stale_frames(&self) -> u64 {
        let machine = self.machine();
        let lists = self.nodes.iter().map(|node| node.stale.lock(machine).len());
        lists.sum::<usize>() as u64
    }
}

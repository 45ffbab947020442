//! Protocols of other systems, which keep TLBs coherent instead of the engine.
//!
//! A *policy file* selects the protocol of a run and its parameters. The manager passes changed translations to
//! [`Flushes::flush`]; locks, tables, frames and all costs of calls and faults stay as they are. Requests are words of
//! the machine, so that the lines, interrupts and waits of a protocol are simulated, and the oracle judges its accesses.
//!
//! * *calls*: Linux on x86. The initiator queues a request with each target and interrupts it. The target reads the
//!   initiator's request, flushes, and writes a line that the initiator reads.
//! * *latr*: as *calls*, but a call that only frees memory leaves its requests to the targets' next tick or switch.
//! * *abis*: as *calls*, but only to the CPUs that have filled the page's translation, if at most one has.
//! * *fpr*: as *calls*, but a call or an eviction that only frees pages flushes on its own CPU alone. A page that another
//!   process, or a table, gets later is flushed first, with all entries of the process that had it.
//! * *rar*: the processor of a target executes the request, without a handler, also with interrupts off.
//!
//! Each protocol may broadcast instead if the space runs on enough CPUs, and uses Linux's generations: a CPU that loads
//! a root flushes unless it has made all flushes of the space.
//!
//! # Simplifications
//!
//! * *abis* records who filled a translation at no cost. On the processor, this takes writes of the entry.
//! * Idle CPUs with the root loaded are interrupted like others; Linux skips them if no table was freed.
//! * Addresses may be mapped again before a lazy flush (*latr*, *fpr*). The published systems keep them back; here the
//!   oracle reports such accesses.
//! * *fpr* flushes a recycled page that becomes a table after it was zeroed, not before. Its record of who had a page
//!   costs nothing, because a kernel keeps it in lines that it uses anyway.
//! * With *rar*, interrupts of the engine arrive masked or not, so programs must not end processes.

use crate::context;
use crate::costs::Costs;
use crate::file::{MachineFile, Parameter as P};
use crate::machine::Model;
use crate::word::{Line, ModelWord};
use quell::{
    Broadcast, CpuId, CpuSet, Frame, Hardware, Invalidation, PageRange, PageSize, Scope, Word,
};
use quell_vm::{Change, Freed, Machine};
use rustc_hash::FxHashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

/// The way in which CPUs are told to flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    Engine,
    Calls,
    Latr,
    Rar,
    Abis,
    Fpr,
}

impl Protocol {
    pub fn new(file: &MachineFile) -> Self {
        match file.choice(P::FlushProtocol) {
            "engine" => Protocol::Engine,
            "calls" => Protocol::Calls,
            "latr" => Protocol::Latr,
            "rar" => Protocol::Rar,
            "abis" => Protocol::Abis,
            "fpr" => Protocol::Fpr,
            other => unreachable!("the protocol `{other}` needs a line here"),
        }
    }
}

/// A flush of a space.
#[derive(Clone, Copy, Debug)]
struct Request {
    root: Frame,
    /// The pages, or all.
    range: Option<PageRange>,
    scope: Scope,
    generation: u64,
}

impl Request {
    /// Adds a change of the same space.
    fn merge(&mut self, change: &Change) {
        let other = first_of(change);
        self.scope = self.scope.max(change.scope);
        self.range = self.range.map(|range| {
            let start = range.start.min(other.start);
            let end = range.end().max(other.end());
            PageRange { start, pages: end.0 - start.0, stride: range.stride.min(other.stride) }
        });
    }
}

/// Returns the pages to drop for a change. One page drops all pointers to a table that covered many.
fn first_of(change: &Change) -> PageRange {
    let range = change.range;
    match change.scope {
        Scope::Tables => PageRange { pages: range.stride.pages(), ..range },
        Scope::Leaf => range,
    }
}

/// A published request: the line that its readers fetch, and its content.
struct Slot {
    line: Line<1>,
    content: Mutex<Option<Request>>,
}

impl Slot {
    fn new() -> Self {
        Slot { line: Line::new(), content: Mutex::new(None) }
    }

    fn publish(&self, request: Request) {
        *self.content.lock().unwrap_or_else(PoisonError::into_inner) = Some(request);
        self.line.word().store(request.generation, Release);
    }

    fn read(&self) -> Option<Request> {
        self.line.word().load(Acquire);
        *self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lazy request, with the CPUs that must still make it.
struct LazyState {
    slot: Slot,
    waiting: Box<[ModelWord]>,
}

/// The protocol's state of a CPU.
struct FlushCpu {
    /// The loaded root plus one, or 0.
    loaded: Line<1>,
    /// The last initiator in its queue plus one, or 0.
    queue: Line<1>,
    /// Bits of the payloads that its processor must execute.
    actions: Line<1>,
    /// The request that its targets read.
    outbox: Slot,
    /// The number of lazy requests so far.
    tail: Line<1>,
    states: Box<[LazyState]>,
    /// Each CPU's lazy requests that this CPU has seen.
    cursors: Box<[AtomicU64]>,
    /// The generations of the spaces when this CPU last had no entry older than them. Private to it.
    seen: Mutex<FxHashMap<u64, u64>>,
}

impl FlushCpu {
    fn seen(&self, root: Frame) -> u64 {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(&root.0).copied().unwrap_or(0)
    }

    fn see(&self, root: Frame, generation: u64) -> Option<u64> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.insert(root.0, generation)
    }
}

/// The protocol's state of a space.
struct FlushSpace {
    generation: Line<1>,
    /// The generation of the last flush of all its pages that is complete.
    whole: AtomicU64,
    /// The CPUs that may have entries. Eight words share a line.
    cpus: Box<[Line<8>]>,
}

impl FlushSpace {
    fn word(&self, cpu: usize) -> (&ModelWord, u64) {
        (&self.cpus[cpu / 512].0[cpu / 64 % 8], 1 << (cpu % 64))
    }
}

/// The state of a protocol.
pub(crate) struct Flushes {
    costs: Costs,
    cpus: Box<[FlushCpu]>,
    /// For each target, and in it for each initiator: whether the initiator's request waits, and the initiator queued
    /// before it.
    calls: Box<[Line<2>]>,
    spaces: Mutex<FxHashMap<u64, Arc<FlushSpace>>>,
    /// Frames that a space had without a flush since: its root, and its generation then.
    recycled: Mutex<FxHashMap<u64, (Frame, u64)>>,
    /// Bits of the payloads in use.
    used: Line<1>,
    payloads: Box<[Slot]>,
}

/// Returns the tag that this CPU has loaded with `root`, or `None` if another root is loaded.
fn tag_of(root: Frame) -> Option<quell::Tag> {
    context::with(|core| {
        let cpu = core.cpu();
        (cpu.root == Some(root)).then_some(cpu.tag)
    })
}

impl Flushes {
    pub fn new(costs: Costs, cpus: usize) -> Self {
        let lazy = match costs.protocol {
            Protocol::Latr => costs.count(P::LazyStates),
            _ => 0,
        };
        let calls = match costs.protocol {
            Protocol::Rar => 0,
            _ => cpus * cpus,
        };
        let state = || LazyState {
            slot: Slot::new(),
            waiting: (0..cpus.div_ceil(64)).map(|_| ModelWord::new(0)).collect(),
        };
        let cpu = |_| FlushCpu {
            loaded: Line::new(),
            queue: Line::new(),
            actions: Line::new(),
            outbox: Slot::new(),
            tail: Line::new(),
            states: (0..lazy).map(|_| state()).collect(),
            cursors: (0..cpus).map(|_| AtomicU64::new(0)).collect(),
            seen: Mutex::default(),
        };
        Flushes {
            costs,
            cpus: (0..cpus).map(cpu).collect(),
            calls: (0..calls).map(|_| Line::new()).collect(),
            spaces: Mutex::default(),
            recycled: Mutex::default(),
            used: Line::new(),
            payloads: (0..64).map(|_| Slot::new()).collect(),
        }
    }

    fn space(&self, root: Frame) -> Arc<FlushSpace> {
        let mut spaces = self.spaces.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            let lines = self.cpus.len().div_ceil(512);
            Arc::new(FlushSpace {
                generation: Line::new(),
                whole: AtomicU64::new(0),
                cpus: (0..lines).map(|_| Line::new()).collect(),
            })
        };
        spaces.entry(root.0).or_insert_with(new).clone()
    }

    /// Prepares a CPU to load a root. Returns whether it may keep the entries under its tag. Interrupts are off.
    pub fn load(&self, hw: &Model, root: Frame, keep: bool) -> bool {
        let me = hw.this_cpu().index();
        let space = self.space(root);
        let (word, bit) = space.word(me);
        // A CPU that changes the space after this reads the mask and finds us. One that did so before has increased the
        // generation.
        self.cpus[me].loaded.word().store(root.0 + 1, SeqCst);
        if word.load(Relaxed) & bit == 0 {
            word.fetch_or(bit, SeqCst);
        }
        self.sweep(hw);
        let generation = space.generation.word().load(SeqCst);
        keep && self.cpus[me].see(root, generation) == Some(generation)
    }

    /// Records that this CPU has left its root.
    pub fn unload(&self, hw: &Model) {
        let me = hw.this_cpu().index();
        self.cpus[me].loaded.word().store(0, SeqCst);
    }

    /// Flushes changed translations on all CPUs, as [`Machine::flush`].
    pub fn flush(&self, hw: &Model, changes: &[Change], freed: Option<Freed>) -> u64 {
        let base =
            |change: &Change| change.scope == Scope::Leaf && change.range.stride == PageSize::Base;
        let recycles = self.costs.protocol == Protocol::Fpr
            && matches!(freed, Some(Freed::Unmapped | Freed::Evicted))
            && changes.iter().all(base);
        if recycles {
            self.recycle(hw, changes);
            return 0;
        }
        let mut requests: Vec<Request> = Vec::new();
        for change in changes {
            match requests.iter_mut().find(|known| known.root == change.root) {
                Some(known) => known.merge(change),
                None => requests.push(Request {
                    root: change.root,
                    range: Some(first_of(change)),
                    scope: change.scope,
                    generation: 0,
                }),
            }
        }
        let ceiling = self.costs.count(P::FlushCeiling) as u64;
        let flushed = requests.into_iter().map(|mut request| {
            let few = |range: &PageRange| range.strides() <= ceiling;
            request.range = request.range.filter(few);
            self.flush_space(hw, request, freed)
        });
        flushed.max().unwrap_or(0)
    }

    fn flush_space(&self, hw: &Model, mut request: Request, freed: Option<Freed>) -> u64 {
        let me = hw.this_cpu().index();
        let space = self.space(request.root);
        request.generation = space.generation.word().fetch_add(1, SeqCst) + 1;
        let mut targets = CpuSet::default();
        for first in (0..self.cpus.len()).step_by(64) {
            let mut bits = space.word(first).0.load(SeqCst);
            while bits != 0 {
                targets.insert(CpuId((first + bits.trailing_zeros() as usize) as u16));
                bits &= bits - 1;
            }
        }
        if targets.len() > self.costs.count(P::BroadcastAbove) {
            self.broadcast(hw, &request);
            return 0;
        }
        // The flush drops the pages on all their users. A CPU that fills one again before that is recorded again.
        if let Some(range) = request.range.filter(|_| request.scope == Scope::Leaf)
            && let Some(users) = context::shared(|core| core.take_users(request.root, range))
        {
            targets = targets.iter().filter(|&cpu| users.contains(cpu)).collect();
        }
        targets.remove(CpuId(me as u16));
        let base = request.range.is_none_or(|range| range.stride == PageSize::Base);
        let lazy = self.costs.protocol == Protocol::Latr
            && matches!(freed, Some(Freed::Unmapped | Freed::Discarded))
            && base
            && request.scope == Scope::Leaf
            && !targets.is_empty();
        if let Some(until) = lazy.then(|| self.defer(hw, request, &targets)).flatten() {
            self.make_masked(hw, &request);
            return until;
        }
        match self.costs.protocol {
            _ if targets.is_empty() => self.make_masked(hw, &request),
            Protocol::Rar => self.act(hw, request, &targets),
            _ => self.call(hw, request, &targets),
        }
        if request.range.is_none() {
            space.whole.fetch_max(request.generation, Relaxed);
        }
        0
    }

    /// Flushes freed pages here alone, and remembers which space had them.
    fn recycle(&self, hw: &Model, changes: &[Change]) {
        for change in changes {
            if let Some(tag) = tag_of(change.root) {
                let Change { range, scope, .. } = *change;
                hw.invalidate(Invalidation::Range { tag, range, scope });
            }
            // Its entries are cleared. So a flush of a later generation drops their translations.
            let generation = self.space(change.root).generation.word().load(SeqCst);
            if let Some(frame) = change.removed {
                let mut recycled = self.recycled.lock().unwrap_or_else(PoisonError::into_inner);
                recycled.insert(frame.0, (change.root, generation));
            }
        }
    }

    /// Flushes the spaces that had these frames, unless the frames return to the space that is loaded here.
    pub fn allocate(&self, hw: &Model, frame: Frame, frames: u64, for_table: bool) {
        if self.costs.protocol != Protocol::Fpr {
            return;
        }
        for distance in 0..frames {
            let Some((root, generation)) = self.leave(frame.plus(distance), for_table) else {
                continue;
            };
            if self.space(root).whole.load(Relaxed) <= generation {
                let request = Request { root, range: None, scope: Scope::Tables, generation: 0 };
                self.flush_space(hw, request, None);
            }
        }
    }

    /// Forgets which space had a frame, and returns it. Does nothing if the frame returns to that space.
    fn leave(&self, frame: Frame, for_table: bool) -> Option<(Frame, u64)> {
        let mut recycled = self.recycled.lock().unwrap_or_else(PoisonError::into_inner);
        let &(root, _) = recycled.get(&frame.0)?;
        if !for_table && tag_of(root).is_some() {
            return None;
        }
        recycled.remove(&frame.0)
    }

    /// Broadcasts a request, and waits for it.
    fn broadcast(&self, hw: &Model, request: &Request) {
        // Broadcasts need tags that all CPUs share, so the running one is the space's. If the space isn't loaded here,
        // we drop everything.
        Broadcast::start(
            hw,
            match (tag_of(request.root), request.range) {
                (Some(tag), Some(range)) => {
                    Invalidation::Range { tag, range, scope: request.scope }
                }
                (Some(tag), None) => Invalidation::Tag(tag),
                (None, _) => Invalidation::All,
            },
        );
        Broadcast::complete(hw);
    }

    /// Queues a request with each target, interrupts those whose queue was empty, and waits. As in Linux
    /// (`smp_call_function_many_cond`), interrupts stay on, so that this CPU answers others meanwhile.
    fn call(&self, hw: &Model, request: Request, targets: &CpuSet) {
        let me = hw.this_cpu().index();
        if !self.costs.yes(P::FlushConcurrent) {
            self.make_masked(hw, &request);
        }
        self.cpus[me].outbox.publish(request);
        let mut asleep = CpuSet::default();
        for target in targets.iter() {
            let cpu = &self.cpus[target.index()];
            // Linux reads whether the target is lazy.
            cpu.loaded.word().load(Relaxed);
            let [flag, next] = &self.place(target.index(), me).0;
            flag.store(1, Relaxed);
            let head = cpu.queue.word();
            let mut first = head.load(Relaxed);
            loop {
                next.store(first, Relaxed);
                match head.compare_exchange(first, me as u64 + 1, SeqCst, Relaxed) {
                    Ok(_) => break,
                    Err(now) => first = now,
                }
            }
            if first == 0 {
                asleep.insert(target);
            }
        }
        if !asleep.is_empty() {
            hw.interrupt(&asleep);
        }
        if self.costs.yes(P::FlushConcurrent) {
            self.make_masked(hw, &request);
        }
        for target in targets.iter() {
            while self.place(target.index(), me).0[0].load(Acquire) != 0 {
                hw.relax();
            }
        }
    }

    fn place(&self, target: usize, initiator: usize) -> &Line<2> {
        &self.calls[target * self.cpus.len() + initiator]
    }

    /// Lets the processors of the targets execute a request.
    fn act(&self, hw: &Model, request: Request, targets: &CpuSet) {
        let used = self.used.word();
        let index = loop {
            let held = used.load(Relaxed);
            let free = held.trailing_ones();
            if free < 64 && used.compare_exchange(held, held | 1 << free, SeqCst, Relaxed).is_ok() {
                break free as usize;
            }
            hw.relax();
        };
        self.payloads[index].publish(request);
        for target in targets.iter() {
            self.cpus[target.index()].actions.word().fetch_or(1 << index, SeqCst);
        }
        hw.interrupt(targets);
        self.make_masked(hw, &request);
        for target in targets.iter() {
            let actions = self.cpus[target.index()].actions.word();
            while actions.load(Acquire) & 1 << index != 0 {
                hw.relax();
            }
        }
        used.fetch_and(!(1 << index), SeqCst);
    }

    /// Leaves a request to the targets' ticks. Returns the time until which frames must wait, or `None` if all of this
    /// CPU's places are in use.
    fn defer(&self, hw: &Model, request: Request, targets: &CpuSet) -> Option<u64> {
        let cpu = &self.cpus[hw.this_cpu().index()];
        let number = cpu.tail.word().load(Relaxed);
        let state = &cpu.states[number as usize % cpu.states.len()];
        if state.waiting.iter().any(|word| word.load(Acquire) != 0) {
            return None;
        }
        state.slot.publish(request);
        for (word, &bits) in state.waiting.iter().zip(targets.words()) {
            word.store(bits, Relaxed);
        }
        cpu.tail.word().store(number + 1, Release);
        let wait = self.costs.count(P::WaitTicks) as u64 * self.costs.time(P::Tick);
        Some(hw.now() + wait / 1000)
    }

    /// Makes this CPU's outstanding lazy requests, at a tick or before it loads a root.
    pub fn sweep(&self, hw: &Model) {
        if self.costs.protocol != Protocol::Latr {
            return;
        }
        let me = hw.this_cpu().index();
        for (cpu, cursor) in self.cpus.iter().zip(&self.cpus[me].cursors) {
            let tail = cpu.tail.word().load(Acquire);
            // Older ones are over: all CPUs have made them.
            let first = cursor.load(Relaxed).max(tail.saturating_sub(cpu.states.len() as u64));
            for number in first..tail {
                let state = &cpu.states[number as usize % cpu.states.len()];
                let word = &state.waiting[me / 64];
                if word.load(Relaxed) & 1 << (me % 64) != 0 {
                    if let Some(request) = state.slot.read() {
                        self.make(hw, &request);
                    }
                    word.fetch_and(!(1 << (me % 64)), Relaxed);
                }
            }
            cursor.fetch_max(tail, Relaxed);
        }
    }

    /// Makes this CPU's requests, in the interrupt handler or a loop with interrupts off.
    pub fn serve(&self, hw: &Model) {
        let me = hw.this_cpu().index();
        let cpu = &self.cpus[me];
        if self.costs.protocol == Protocol::Rar {
            let mut pending = cpu.actions.word().load(Acquire);
            while pending != 0 {
                let bit = pending & pending.wrapping_neg();
                if let Some(request) = self.payloads[bit.trailing_zeros() as usize].read() {
                    self.make(hw, &request);
                }
                cpu.actions.word().fetch_and(!bit, Release);
                pending &= !bit;
            }
            return;
        }
        let mut queued = cpu.queue.word().swap(0, SeqCst);
        let mut initiators = Vec::new();
        while queued != 0 {
            let initiator = queued as usize - 1;
            initiators.push(initiator);
            queued = self.place(me, initiator).0[1].load(Relaxed);
        }
        // The first that came is served first.
        for initiator in initiators.into_iter().rev() {
            if let Some(request) = self.cpus[initiator].outbox.read() {
                self.make(hw, &request);
            }
            self.place(me, initiator).0[0].store(0, Release);
        }
    }

    /// Makes a request on this CPU with interrupts off.
    fn make_masked(&self, hw: &Model, request: &Request) {
        let were_on = hw.mask_interrupts();
        self.make(hw, request);
        hw.restore_interrupts(were_on);
    }

    /// Makes a request on this CPU, unless it has made a later flush of the space already.
    fn make(&self, hw: &Model, request: &Request) {
        let me = hw.this_cpu().index();
        let cpu = &self.cpus[me];
        let space = self.space(request.root);
        if cpu.loaded.word().load(Relaxed) != request.root.0 + 1 {
            let (word, bit) = space.word(me);
            word.fetch_and(!bit, SeqCst);
            return;
        }
        let seen = cpu.seen(request.root);
        // Linux since 6.0 (aa44284960d5) looks at the contended generation of the space only if it must flush.
        if seen >= request.generation && self.costs.protocol != Protocol::Rar {
            return;
        }
        let now = space.generation.word().load(SeqCst);
        let Some(tag) = tag_of(request.root) else {
            // The CPU is about to load the root, and may keep its entries.
            hw.invalidate(Invalidation::All);
            return;
        };
        // Linux flushes only the pages if it is up to date but for this request. A lazy request that follows it is made
        // later. A processor that executes requests knows no generations, and with access bits a CPU misses some.
        let next = request.generation == seen + 1;
        let alone = match self.costs.protocol {
            Protocol::Latr => next,
            Protocol::Rar | Protocol::Abis => true,
            _ => next && now == request.generation,
        };
        match request.range {
            Some(range) if alone => {
                hw.invalidate(Invalidation::Range { tag, range, scope: request.scope });
                if next {
                    cpu.see(request.root, request.generation);
                }
            }
            _ => {
                hw.invalidate(Invalidation::Tag(tag));
                cpu.see(request.root, now);
            }
        }
    }
}

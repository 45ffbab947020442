//! Implements the machine's interface for the engine and the manager.
//!
//! A [`Model`] is a handle. It holds constants (features, memory map, the words of the page tables) and reaches all
//! other state through the machine that runs on the thread. So it is `Send` and `Sync` without `unsafe`. Its operations
//! panic on another thread or outside a run.

use crate::clock::Step;
use crate::context;
use crate::core::Core;
use crate::costs::Costs;
use crate::cpu::Activity;
use crate::file::{Parameter as P, Time};
use crate::flushes::{Flushes, Protocol};
use crate::memory::Tables;
use crate::mmu;
use crate::trace::Mark;
use crate::word::ModelWord;
use quell::{
    Broadcast, CpuId, CpuSet, Extent, Features, Frame, Hardware, Invalidation, Tag, TlbRules,
};
use quell_vm::machine::TABLE_WORDS;
use quell_vm::sim::fiber;
use quell_vm::{Change, Entry, Event, Freed, Level, Machine, MemoryMap, Work};
use quell_zero::{PhysicalMemory, Strategy};
use std::panic::Location;
use std::sync::Arc;

/// Longer work than this can be interrupted in the middle.
const INTERRUPTIBLE: Time = 100_000;

/// The machine in software, as kernels use it.
///
/// It implements [`Hardware`](quell::Hardware) for the engine and [`Machine`](quell_vm::Machine) for the memory
/// manager.
#[derive(Clone)]
pub struct Model {
    costs: Arc<Costs>,
    map: MemoryMap,
    cpus: usize,
    tables: Arc<Tables>,
    /// The protocol that flushes instead of the engine.
    flushes: Option<Arc<Flushes>>,
}

impl Model {
    pub(crate) fn new(costs: &Costs, cpus: usize, map: MemoryMap, tables: Arc<Tables>) -> Self {
        let other = costs.protocol != Protocol::Engine;
        let flushes = other.then(|| Arc::new(Flushes::new(costs.clone(), cpus)));
        Model { costs: Arc::new(costs.clone()), map, cpus, tables, flushes }
    }

    /// Returns the protocol that flushes instead of the engine, if any.
    pub(crate) fn flushes(&self) -> Option<&Flushes> {
        self.flushes.as_deref()
    }

    /// Sends a non-maskable interrupt to a CPU, which may be the caller.
    ///
    /// # Panics
    /// If the machine has no such CPU.
    pub fn send_nmi(&self, target: CpuId) {
        assert!(target.index() < self.cpus, "no CPU {}", target.0);
        context::shared(|core| core.send_nmi(target.index()));
    }
}

/// Advances the CPU's clock by `duration`. Interrupts taken in the meantime add their time.
pub(crate) fn pass(duration: Time, activity: Activity) -> bool {
    if !context::running() {
        return false;
    }
    let mut goal = context::with(|core| core.cpu().now).saturating_add(duration);
    let mut interrupted = false;
    loop {
        match context::with(|core| core.wait_step(goal, activity)) {
            Step::Go => return interrupted,
            Step::Suspend => fiber::suspend(),
            step => {
                interrupted = true;
                let before = context::with(|core| core.cpu().now);
                context::take(step);
                if activity == Activity::Halted {
                    return true;
                }
                goal += context::with(|core| core.cpu().now) - before;
            }
        }
    }
}

/// Accounts for work of a known length.
fn work(duration: Time) {
    if duration > INTERRUPTIBLE {
        pass(duration, Activity::Computing);
    } else {
        context::with(|core| core.spend(duration));
    }
}

impl Core {
    /// Returns the memory node next to a CPU.
    ///
    /// Sockets take ordinary nodes in turn.
    pub fn home_node(&self, cpu: usize) -> usize {
        let ordinary = self.map.nodes().iter().filter(|node| !node.slow).count();
        self.costs.topology.socket(cpu) % ordinary.max(1)
    }

    /// Returns the time that the running CPU needs to zero an extent.
    fn zeroing(&mut self, extent: Extent, strategy: Strategy) -> Time {
        let costs = &self.costs;
        let bytes = extent.bytes();
        let (rate, drain) = match strategy {
            Strategy::RepStos | Strategy::RepStosq | Strategy::DcZva => {
                let elided = costs.count(P::ElideFrom) as u64 > 0
                    && bytes >= costs.count(P::ElideFrom) as u64;
                let gain = if elided { costs.amount(P::ElideGain) } else { 1.0 };
                (costs.rate(P::StringRate) / gain, 0)
            }
            Strategy::Clzero => (costs.rate(P::ClzeroRate), costs.time(P::BypassDrain)),
            Strategy::NonTemporal64
            | Strategy::NonTemporal128
            | Strategy::NonTemporal256
            | Strategy::NonTemporal512 => (costs.rate(P::BypassRate), costs.time(P::BypassDrain)),
            _ => (costs.rate(P::StoreRate), 0),
        };
        let cpu = &self.cpus[self.current];
        let jump = if cpu.cleared_to == extent.first { 0 } else { costs.time(P::ZeroJump) };
        let fixed = costs.time(P::ZeroStart) + jump + drain;
        let now = cpu.now + fixed;
        let node = self.map.node_of(extent.first).unwrap_or(0);
        let slow = self.map.nodes()[node].slow;
        let shared = if slow { costs.rate(P::SlowNodeRate) } else { costs.rate(P::NodeRate) };
        let far = !slow && self.home_node(self.current) != node;
        let factor = if far {
            costs.time(P::RemoteLatency) as f64 / costs.time(P::MemoryLatency) as f64
        } else if slow {
            costs.rate(P::SlowRate) / costs.rate(P::StreamRate)
        } else {
            1.0
        };
        self.cpu().cleared_to = extent.first.plus(extent.frames);
        self.cpu().counts.zeroed += bytes;
        fixed + mmu::book(self, node, now, bytes, rate * factor, shared)
    }
}

impl Broadcast for Model {
    fn start(&self, what: Invalidation) {
        context::shared(|core| core.broadcast(what));
    }

    fn complete(&self) {
        context::shared(Core::complete_broadcasts);
    }
}

// SAFETY: a machine in software: translations are numbers, and reach no memory.
unsafe impl Hardware for Model {
    type Word = ModelWord;
    type Broadcasts = Self;

    fn broadcasts(&self) -> Option<&Self> {
        Some(self)
    }

    #[inline]
    fn this_cpu(&self) -> CpuId {
        CpuId(context::with(|core| core.current) as u16)
    }

    fn features(&self) -> Features {
        self.costs.features()
    }

    #[inline]
    fn ranges(&self) -> usize {
        self.costs.count(P::Ranges)
    }

    #[inline]
    fn shares_lines_from(&self) -> usize {
        match self.costs.count(P::SharesLinesFrom) {
            0 => usize::MAX,
            targets => targets,
        }
    }

    fn fence(&self) {
        context::shared(Core::fence);
    }

    fn invalidate(&self, what: Invalidation) {
        context::shared(|core| core.invalidate(what));
    }

    unsafe fn load_root(&self, root: Frame, tag: Tag, keep: bool) {
        let keep = match self.flushes() {
            Some(flushes) => flushes.load(self, root, keep),
            None => keep,
        };
        context::shared(|core| core.load_root(Some(root), tag, keep));
    }

    fn unload_root(&self) {
        if let Some(flushes) = self.flushes() {
            flushes.unload(self);
        }
        context::shared(|core| core.load_root(None, Tag::KERNEL, true));
    }

    fn interrupt(&self, targets: &CpuSet) {
        context::shared(|core| core.interrupt(targets));
    }

    fn mask_interrupts(&self) -> bool {
        // Interrupts that arrive before this moment are taken before it.
        context::private(|core| core.set_masked(true))
    }

    fn restore_interrupts(&self, were_on: bool) {
        if were_on {
            context::with(|core| core.set_masked(false));
        }
    }

    fn relax(&self) {
        if context::private(Core::relax) {
            fiber::suspend();
        }
    }
}

impl PhysicalMemory for Model {
    unsafe fn zero(&self, extent: Extent, strategy: Strategy) {
        let duration = context::shared(|core| {
            core.memory.zero(extent.first, extent.frames);
            for offset in 0..extent.frames {
                if let Some(words) = core.tables.existing(extent.first.plus(offset)) {
                    words.iter().for_each(|word| word.poke(0));
                }
            }
            let start = core.cpu().now;
            let duration = core.zeroing(extent, strategy);
            let mark = Mark::Zero(extent.bytes());
            core.trace.span(core.current, start, start + duration, mark);
            duration
        });
        work(duration);
    }
}

// SAFETY: frames are numbers; their words and bytes belong to a table of the machine.
unsafe impl Machine for Model {
    fn memory(&self) -> MemoryMap {
        self.map
    }

    fn cpu_count(&self) -> usize {
        self.cpus
    }

    fn home_node(&self, cpu: CpuId) -> usize {
        context::with(|core| core.home_node(cpu.index()))
    }

    #[inline]
    fn table(&self, frame: Frame) -> &[ModelWord; TABLE_WORDS] {
        &self.tables.page(frame).words
    }

    fn encode(&self, entry: Entry, level: Level) -> u64 {
        self.costs.architecture.encode(entry, level)
    }

    #[inline]
    fn decode(&self, word: u64, level: Level) -> Entry {
        self.costs.architecture.decode(word, level)
    }

    fn hardware_dirty(&self) -> bool {
        self.costs.yes(P::HardwareDirty)
    }

    #[inline]
    fn masks_locks(&self) -> bool {
        self.costs.yes(P::MaskedLocks)
    }

    fn tlb_rules(&self) -> TlbRules {
        self.costs.architecture.tlb_rules()
    }

    #[inline]
    fn flushes_itself(&self) -> bool {
        self.flushes.is_some()
    }

    fn flush(&self, changes: &[Change], freed: Option<Freed>) -> u64 {
        self.flushes().map_or(0, |flushes| flushes.flush(self, changes, freed))
    }

    fn read_frame(&self, frame: Frame, offset: usize, into: &mut [u8]) {
        if !context::running() {
            // The oracle reads it.
            return context::with(|core| core.memory.read(frame, offset, into));
        }
        context::shared(|core| {
            core.memory.read(frame, offset, into);
            let time = core.costs.time(P::LlcHit) + mmu::stream(core, frame, into.len() as u64);
            core.spend(time);
        });
    }

    fn write_frame(&self, frame: Frame, offset: usize, from: &[u8]) {
        context::shared(|core| {
            core.memory.write(frame, offset, from);
            let time = core.costs.time(P::LlcHit) + mmu::stream(core, frame, from.len() as u64);
            core.spend(time);
        });
    }

    fn copy_frames(&self, from: Frame, to: Frame, frames: u64) {
        let duration = context::shared(|core| {
            core.memory.copy(from, to, frames);
            let bytes = frames * quell::PAGE_BYTES;
            core.cpu().counts.copied += bytes;
            core.cpu().filled_page = true;
            let start = core.cpu().now;
            let alone = (bytes as f64 * core.costs.rate(P::CopyRate)) as Time;
            let duration = [from, to]
                .map(|frame| mmu::stream(core, frame, bytes))
                .into_iter()
                .fold(alone, Time::max);
            core.trace.span(core.current, start, start + duration, Mark::Copy(bytes));
            duration
        });
        work(duration);
    }

    fn now(&self) -> u64 {
        context::with(|core| {
            let cpu = core.cpu();
            cpu.poll.interfere();
            cpu.now / 1000
        })
    }

    fn halt(&self, until: u64) {
        if !context::running() {
            return;
        }
        let start = context::with(|core| core.cpu().now);
        let length = until.saturating_mul(1000).saturating_sub(start);
        pass(length, Activity::Halted);
        context::with(|core| {
            let cpu = core.cpu();
            cpu.counts.halted += cpu.now - start;
            core.trace_since(start, Mark::Halted);
        });
    }

    #[inline]
    #[track_caller]
    fn charge(&self, charged: Work) {
        let code = Location::caller();
        if let Work::Locked(used) = charged {
            return context::shared(|core| core.hold(used, code));
        }
        let time = context::with(|core| core.charge(charged));
        work(time);
    }

    #[inline]
    fn note(&self, event: Event) {
        match (self.flushes(), event) {
            (Some(flushes), Event::FrameAllocated { frame, frames }) => {
                flushes.allocate(self, frame, frames, false);
            }
            (Some(flushes), Event::TableAllocated { frame, .. }) => {
                flushes.allocate(self, frame, 1, true);
            }
            _ => {}
        }
        context::shared(|core| core.note(event));
    }
}

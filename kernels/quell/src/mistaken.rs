//! A machine that makes mistakes, under the engine and the manager in tests.
//!
//! [`FaultyMachine`] acts like [`Kernel`] but leaves out the steps that [`mistakes`] selects, so the machine itself
//! contains no mistake. It exists only with the feature `mutants`.

use crate::cpu;
use crate::machine::Kernel;
use crate::mistakes::{self, Mistake};
use core::sync::atomic::{AtomicU64, Ordering};
use quell::{
    Broadcast, CpuId, CpuSet, Extent, Features, Frame, Hardware, Invalidation, Tag, TlbRules,
};
use quell_vm::machine::{Event, TABLE_WORDS};
use quell_vm::{Entry, Level, Machine, MemoryMap};
use quell_zero::{PhysicalMemory, Strategy};

/// A machine that makes mistakes.
#[derive(Clone, Copy, Debug)]
pub struct FaultyMachine(pub Kernel);

// SAFETY: as for the machine below. A mistake breaks the contract on purpose, so that a check may notice it. It affects
// only memory of the checking user programs.
unsafe impl Hardware for FaultyMachine {
    type Word = AtomicU64;
    type Broadcasts = Self;

    fn invalidate(&self, what: Invalidation) {
        let mistake = match cpu::this().serving.load(Ordering::Relaxed) {
            true => Mistake::InvalidateOnRequest,
            false => Mistake::InvalidateHere,
        };
        if !mistakes::makes(mistake) {
            self.0.invalidate(what);
        }
    }
    fn interrupt(&self, targets: &CpuSet) {
        if !mistakes::makes(Mistake::SkipInterrupt) {
            self.0.interrupt(targets);
        }
    }
    fn broadcasts(&self) -> Option<&Self> {
        Some(self)
    }

    fn this_cpu(&self) -> CpuId {
        self.0.this_cpu()
    }
    fn features(&self) -> Features {
        self.0.features()
    }
    fn fence(&self) {
        self.0.fence();
    }
    unsafe fn load_root(&self, root: Frame, tag: Tag, keep: bool) {
        // SAFETY: by the caller's promise about the root.
        unsafe { self.0.load_root(root, tag, keep) };
    }
    fn unload_root(&self) {
        self.0.unload_root();
    }
    fn synchronize_text(&self) {
        self.0.synchronize_text();
    }
    fn mask_interrupts(&self) -> bool {
        self.0.mask_interrupts()
    }
    fn restore_interrupts(&self, were_on: bool) {
        self.0.restore_interrupts(were_on);
    }
    fn relax(&self) {
        self.0.relax();
    }
}

impl Broadcast for FaultyMachine {
    fn start(&self, what: Invalidation) {
        if !mistakes::makes(Mistake::Broadcast) {
            self.0.start(what);
        }
    }
    fn complete(&self) {
        if !mistakes::makes(Mistake::SkipBarrier) {
            self.0.complete();
        }
    }
}

impl PhysicalMemory for FaultyMachine {
    unsafe fn zero(&self, extent: Extent, strategy: Strategy) {
        // SAFETY: we pass this on to the caller.
        unsafe { self.0.zero(extent, strategy) };
    }
}

// SAFETY: as for the machine below.
unsafe impl Machine for FaultyMachine {
    fn memory(&self) -> MemoryMap {
        self.0.memory()
    }
    fn cpu_count(&self) -> usize {
        self.0.cpu_count()
    }
    fn home_node(&self, cpu: CpuId) -> usize {
        self.0.home_node(cpu)
    }
    fn table(&self, frame: Frame) -> &[AtomicU64; TABLE_WORDS] {
        self.0.table(frame)
    }
    fn prepare_root(&self, root: Frame) {
        self.0.prepare_root(root);
    }
    fn encode(&self, entry: Entry, level: Level) -> u64 {
        self.0.encode(entry, level)
    }
    fn decode(&self, word: u64, level: Level) -> Entry {
        self.0.decode(word, level)
    }
    fn hardware_dirty(&self) -> bool {
        self.0.hardware_dirty()
    }
    fn tlb_rules(&self) -> TlbRules {
        self.0.tlb_rules()
    }
    fn read_frame(&self, frame: Frame, offset: usize, into: &mut [u8]) {
        self.0.read_frame(frame, offset, into);
    }
    fn write_frame(&self, frame: Frame, offset: usize, from: &[u8]) {
        self.0.write_frame(frame, offset, from);
    }
    fn copy_frames(&self, from: Frame, to: Frame, frames: u64) {
        self.0.copy_frames(from, to, frames);
    }
    fn note(&self, event: Event) {
        self.0.note(event);
    }
    fn now(&self) -> u64 {
        self.0.now()
    }
    fn halt(&self, until: u64) {
        self.0.halt(until);
    }
}

//! The machine under the engine: this kernel's CPUs, through [`quell::Hardware`].

use crate::sync::Masked;
use crate::{arch, audit, cpu, late, memory, watchdog};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use quell::{
    Broadcast, CpuId, CpuSet, Extent, Features, Frame, Hardware, Invalidation, PAGE_BYTES, Tag,
    Tagging, TlbRules,
};
use quell_arch::native;
use quell_vm::machine::{Event, TABLE_WORDS};
use quell_vm::{Entry, Level, Machine, MemoryMap};
use quell_zero::{PhysicalMemory, Strategy};

/// The machine of this kernel. It has no state: each CPU's state is in [`cpu::Cpu`], and the rest is in the hardware.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel;

/// Makes a new root in which user mode has nothing. It's for spaces without a manager, which makes its own roots.
pub fn new_root() -> Frame {
    let root = memory::take_frame();
    arch::paging::prepare_root(root);
    root
}

/// The width of system-wide tags, or 0 for the processor's full width.
static TAG_BITS: AtomicU8 = AtomicU8::new(0);

/// Makes system-wide tags run out sooner. Call this before the engine is made.
/// Fails if the tags of this processor aren't system-wide, or aren't that wide.
pub fn set_tag_bits(bits: u8) -> Result<(), &'static str> {
    match arch::paging::engine_features().tagging {
        Tagging::Global { bits: most } if (1..=most).contains(&bits) => {
            TAG_BITS.store(bits, Ordering::SeqCst);
            Ok(())
        }
        Tagging::Global { .. } => Err("the processor has no tags of that width"),
        _ => Err("the processor has no system-wide tags"),
    }
}

impl Broadcast for Kernel {
    fn start(&self, what: Invalidation) {
        watchdog::progress();
        cpu::this().counters.broadcasts.add(late::broadcast(what));
        note_flushed(what, true);
    }

    fn complete(&self) {
        let counters = &cpu::this().counters;
        counters.completions.add(1);
        counters.broadcasts.add(late::complete());
    }
}

// SAFETY: `arch` has the instructions and barriers that the manuals require, and a register reserved for that contains
// each CPU's number. `features` reports detected features.
unsafe impl Hardware for Kernel {
    type Word = AtomicU64;
    type Broadcasts = Self;

    fn broadcasts(&self) -> Option<&Self> {
        Some(self)
    }

    #[inline]
    fn this_cpu(&self) -> CpuId {
        CpuId(arch::cpu::index() as u16)
    }

    fn features(&self) -> Features {
        let features = arch::paging::engine_features();
        match (features.tagging, TAG_BITS.load(Ordering::Relaxed)) {
            (Tagging::Global { .. }, bits @ 1..) => {
                Features { tagging: Tagging::Global { bits }, ..features }
            }
            _ => features,
        }
    }

    #[inline]
    fn fence(&self) {
        native::tlb::fence();
    }

    fn invalidate(&self, what: Invalidation) {
        let counters = &cpu::this().counters;
        match what {
            Invalidation::Range { range, .. } | Invalidation::Kernel { range, .. } => {
                counters.local_pages.add(range.strides());
            }
            Invalidation::Tag(_) => counters.local_tags.add(1),
            Invalidation::All | Invalidation::Everything => counters.local_all.add(1),
        }
        watchdog::progress();
        arch::paging::invalidate(what);
        note_flushed(what, false);
    }

    unsafe fn load_root(&self, root: Frame, tag: Tag, keep: bool) {
        let this = cpu::this();
        if keep { &this.counters.loads_kept } else { &this.counters.loads_flushed }.add(1);
        this.loaded.store(root.address() | u64::from(tag.0), Ordering::Relaxed);
        audit::loaded(root, tag, keep);
        // SAFETY: by the caller's promise about the root.
        unsafe { arch::paging::load_root(root, tag, keep) };
    }

    fn unload_root(&self) {
        let this = cpu::this();
        this.counters.unloads.add(1);
        this.loaded.store(0, Ordering::Relaxed);
        audit::unloaded();
        arch::paging::unload_root();
    }

    fn synchronize_text(&self) {
        arch::paging::synchronize_text();
    }

    fn interrupt(&self, targets: &CpuSet) {
        watchdog::progress();
        let counters = &cpu::this().counters;
        counters.shootdowns_sent.add(targets.len() as u64);
        arch::interrupts::shoot(targets);
    }

    #[inline]
    fn mask_interrupts(&self) -> bool {
        arch::cpu::mask_interrupts()
    }

    #[inline]
    fn restore_interrupts(&self, were_on: bool) {
        arch::cpu::restore_interrupts(were_on);
    }

    #[inline]
    fn relax(&self) {
        watchdog::relax();
    }
}

impl PhysicalMemory for Kernel {
    unsafe fn zero(&self, extent: Extent, strategy: Strategy) {
        // We don't save a user program's vector registers in this kernel.
        let strategy = if strategy.uses_vectors() { Strategy::Stores } else { strategy };
        memory::zero(extent, strategy);
    }
}

/// Passes fully flushed tags to the audit.
#[inline]
fn note_flushed(what: Invalidation, everywhere: bool) {
    match what {
        Invalidation::Range { .. } | Invalidation::Kernel { .. } => {}
        Invalidation::Tag(tag) => audit::flushed(Some(tag), everywhere),
        Invalidation::All | Invalidation::Everything => audit::flushed(None, everywhere),
    }
}

/// The nodes of memory that the manager owns, set once before it is made.
static MEMORY: spin::Once<MemoryMap> = spin::Once::new();

/// Gives the manager its memory.
pub fn set_memory(map: MemoryMap) {
    MEMORY.call_once(|| map);
}

// SAFETY: the memory was taken from the allocator of frames for good and is mapped in the direct map. Each function
// checks that its frames are part of it.
unsafe impl Machine for Kernel {
    fn memory(&self) -> MemoryMap {
        *MEMORY.get().expect("set before the manager is made")
    }

    fn cpu_count(&self) -> usize {
        cpu::count()
    }

    fn home_node(&self, cpu: CpuId) -> usize {
        // The emulated machines have one node. If we split its memory into several nodes, we distribute them among the
        // CPUs.
        let map = self.memory();
        let fast = map.nodes().iter().filter(|node| !node.slow).count();
        cpu.index() % fast.max(1)
    }

    #[inline]
    fn table(&self, frame: Frame) -> &[AtomicU64; TABLE_WORDS] {
        memory::words(frame)
    }

    fn prepare_root(&self, root: Frame) {
        arch::paging::prepare_root(root);
    }

    fn encode(&self, entry: Entry, level: Level) -> u64 {
        native::entry::encode(entry, level)
    }

    fn decode(&self, word: u64, level: Level) -> Entry {
        native::entry::decode(word, level)
    }

    fn tlb_rules(&self) -> TlbRules {
        arch::paging::tlb_rules()
    }

    fn hardware_dirty(&self) -> bool {
        arch::paging::hardware_dirty()
    }

    fn read_frame(&self, frame: Frame, offset: usize, into: &mut [u8]) {
        memory::read(frame, offset, into);
    }

    fn write_frame(&self, frame: Frame, offset: usize, from: &[u8]) {
        memory::write(frame, offset, from);
    }

    fn copy_frames(&self, from: Frame, to: Frame, frames: u64) {
        memory::copy(from, to, frames);
    }

    fn note(&self, event: Event) {
        if let Event::FrameAllocated { frame, frames } = event {
            arch::cpu::tell_reusable(frame.0 * PAGE_BYTES, frames);
        }
        if let Event::TableFreed { frame } = event {
            arch::cpu::tell_reusable(frame.0 * PAGE_BYTES, 1);
        }
    }

    fn now(&self) -> u64 {
        crate::clock::now()
    }

    fn halt(&self, until: u64) {
        let _masked = Masked::new();
        let now = self.now();
        if now < until {
            arch::interrupts::set_timer(until - now);
            cpu::halt();
        }
        watchdog::progress();
    }
}

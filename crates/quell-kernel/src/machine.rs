//! The machine under the engine: this kernel's CPUs, through [`quell::Hardware`].

use crate::{arch, cpu, watchdog};
use core::sync::atomic::{AtomicU64, Ordering};
use quell::clear::Strategy;
use quell::{CpuId, CpuSet, Extent, Features, Frame, Hardware, Invalidate, Tag};

/// The machine the kernel runs on. It has no state of its own: what a CPU keeps is in
/// [`cpu::Cpu`], the rest in the hardware.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel;

/// What a CPU does when a shootdown interrupt reaches it, as the address of a `fn()`.
static ON_SHOOTDOWN: AtomicU64 = AtomicU64::new(0);

/// Sets what a shootdown interrupt does: the engine's `on_interrupt`, or a test.
pub fn set_on_shootdown(handler: fn()) {
    ON_SHOOTDOWN.store(handler as usize as u64, Ordering::Release);
}

/// Serves a shootdown interrupt.
pub fn on_shootdown() {
    let handler = ON_SHOOTDOWN.load(Ordering::Acquire);
    if handler != 0 {
        // SAFETY: only `set_on_shootdown` writes the word, and it writes a `fn()`.
        let handler: fn() = unsafe { core::mem::transmute(handler as usize) };
        handler();
    }
}

impl Hardware for Kernel {
    type Word = AtomicU64;

    #[inline]
    fn this_cpu(&self) -> CpuId {
        CpuId(arch::cpu::index() as u16)
    }

    fn features(&self) -> Features {
        arch::paging::engine_features()
    }

    #[inline]
    fn fence(&self) {
        quell_arch::native::tlb::fence();
    }

    fn invalidate(&self, what: Invalidate) {
        let counters = &cpu::this().counters;
        match what {
            Invalidate::Range { range, .. } => counters.local_pages.add(range.strides()),
            Invalidate::Tag(_) => counters.local_tags.add(1),
            Invalidate::All => counters.local_all.add(1),
        }
        watchdog::progress();
        arch::paging::invalidate(what);
    }

    fn broadcast(&self, what: Invalidate) {
        watchdog::progress();
        cpu::this()
            .counters
            .broadcasts
            .add(arch::paging::broadcast(what));
    }

    fn complete_broadcasts(&self) {
        cpu::this().counters.completions.add(1);
        arch::paging::complete_broadcasts();
    }

    fn load_root(&self, root: Frame, tag: Tag, keep: bool) {
        let this = cpu::this();
        if keep {
            &this.counters.loads_kept
        } else {
            &this.counters.loads_flushed
        }
        .add(1);
        this.loaded
            .store(root.address() | u64::from(tag.0), Ordering::Relaxed);
        arch::paging::load_root(root, tag, keep);
    }

    fn unload_root(&self) {
        let this = cpu::this();
        this.counters.unloads.add(1);
        this.loaded.store(0, Ordering::Relaxed);
        arch::paging::unload_root();
    }

    fn interrupt(&self, targets: &CpuSet) {
        watchdog::progress();
        for target in targets.iter() {
            cpu::this().counters.shootdowns_sent.add(1);
            arch::interrupts::shoot(target.index());
        }
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

    fn zero(&self, extent: Extent, _strategy: Strategy) {
        let start = crate::memory::pointer::<u8>(extent.first.address());
        // SAFETY: the caller owns the extent, and the direct map covers it.
        unsafe { core::ptr::write_bytes(start, 0, extent.bytes() as usize) };
    }
}

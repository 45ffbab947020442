//! TLB coherence by quell, in place of ostd's own flusher.
//!
//! The interface to the rest of the kernel is unchanged. A [`TlbFlusher`] is a batch of the engine: it takes unmapped
//! frames and releases them, to RCU, after the flush. Dropping it flushes, so no flush can be forgotten.
//!
//! # Differences
//!
//! * [`TlbFlusher::dispatch_tlb_flush`] waits until all CPUs have taken the request, so [`TlbFlusher::sync_tlb_flush`]
//!   need not wait. It may be called with interrupts off: a waiting CPU serves requests of others, and so do locks
//!   that wait with interrupts off ([`poll`]).
//! * Only the CPU that unmapped the frames holds them, not every CPU that flushes.
//! * Only CPUs with the address space loaded are interrupted. The request is in the target's inbox; the interrupt
//!   carries no function.

use alloc::{boxed::Box, vec::Vec};
use core::{any::Any, ops::Range, sync::atomic::AtomicU64};

use quell::{
    Batch, CpuSet, Engine, Features, FrameArray, FrameList, Hardware, Invalidation,
    KernelEntries, NoBroadcasts, Page, PageRange, PerCpuData, Policy, Purpose, Scope, Tag, TagPolicy,
    Tagging,
};
use spin::Once;

use super::{
    CachePolicy, PAGE_SIZE, Paddr, Vaddr,
    frame::{Frame, meta::AnyFrameMeta},
};
use crate::{
    arch::{irq, mm},
    cpu::{CpuId, PinCurrentCpu, num_cpus},
    sync::{LocalIrqDisabled, RcuDrop, SpinLock},
    util::id_set::Id,
};

/// Longer ranges are flushed whole.
const FULL_ABOVE: u64 = 31;

/// The mechanisms in use: no tags, no deferred flushes. The rest of the engine is not linked.
const POLICY: Policy = Policy {
    tags: TagPolicy::Off,
    lazy_unmap: false,
    ..Policy::ALL
};

/// The CPUs, as the engine sees them.
#[derive(Debug)]
pub(crate) struct Cpus;

/// The engine's state of a page table's user half.
pub(crate) type AddressSpace = quell::AddressSpace<Cpus>;

/// A batch of changes of the kernel's own mappings, which holds no frames.
type KernelBatch =
    Batch<'static, &'static AddressSpace, FrameArray<(), 0>, 1>;

static ENGINE: Once<Engine<'static, Cpus>> = Once::new();

/// The kernel's own mappings, which every CPU has loaded.
static KERNEL: Once<AddressSpace> = Once::new();

/// The engine.
///
/// # Panics
/// Before [`init_on_bsp`].
pub(crate) fn engine() -> &'static Engine<'static, Cpus> {
    ENGINE
        .get()
        .expect("TLB coherence is used before it is initialized")
}

/// Loads an address space on this CPU in place of the last one.
#[inline]
pub(crate) fn switch_to(from: Option<&AddressSpace>, to: &AddressSpace) {
    // SAFETY: the engine has made the address space.
    unsafe { ENGINE.get_unchecked() }.this_cpu().mask_interrupts().switch(from, to);
}

/// Makes the engine, and takes the first CPU into it. Called once, when there is a heap.
pub(crate) fn init_on_bsp() {
    let cpus = (0..num_cpus())
        .map(|_| PerCpuData::new())
        .collect::<Vec<_>>()
        .leak();
    ENGINE
        .call_once(|| Engine::new(&Cpus, cpus, &[], POLICY).expect("a machine that quell runs on"));
    let root = super::kspace::KERNEL_PAGE_TABLE
        .get()
        .expect("a kernel page table")
        .root_paddr();
    // SAFETY: it is never freed, its entries are global or there are no tags, and `Cpus` invalidates them.
    KERNEL.call_once(|| unsafe {
        engine().new_kernel_space(quell::Frame::containing(root as u64), KernelEntries::Global)
    });
    init_on_ap();
}

/// Takes another CPU into the engine: called on it, before it loads an address space.
pub(crate) fn init_on_ap() {
    engine().cpu_online();
}

/// A range of the kernel's half that is used no more: unmapped, but perhaps still in TLBs.
struct UnmappedRange {
    range: Range<Vaddr>,
    /// The memory that was mapped there.
    _unmapped: Box<dyn Any + Send>,
    free: fn(Range<Vaddr>),
}

/// The most ranges that wait for one flush.
const MOST_UNUSED: usize = 16;

static UNUSED: SpinLock<Vec<UnmappedRange>, LocalIrqDisabled> = SpinLock::new(Vec::new());

/// Frees an unmapped range of the kernel's half: first the memory that was mapped there, then, by `free`, the
/// addresses. Both wait for a flush on all CPUs, which one range in sixteen makes for all of them.
pub(crate) fn let_go(range: Range<Vaddr>, unmapped: impl Any + Send, free: fn(Range<Vaddr>)) {
    let unused = UnmappedRange {
        range,
        _unmapped: Box::new(unmapped),
        free,
    };
    let mut waiting = UNUSED.lock();
    waiting.push(unused);
    let (Some(engine), Some(kernel)) = (ENGINE.get(), KERNEL.get()) else {
        return;
    };
    if waiting.len() < MOST_UNUSED {
        return;
    }
    let flushed = core::mem::take(&mut *waiting);
    drop(waiting);
    let _pinned = crate::task::disable_preempt();
    let mut batch: KernelBatch = engine.batch_of_spaces(Purpose::Call, FrameArray::new());
    for unused in &flushed {
        batch.changed(kernel, pages(&unused.range), Scope::Leaf);
    }
    drop(batch.finish());
    for unused in flushed {
        (unused.free)(unused.range);
    }
}

/// Serves other CPUs' requests; part of the handler of interrupts between CPUs.
pub(crate) fn on_interrupt() {
    if let Some(engine) = ENGINE.get() {
        engine.this_cpu().mask_interrupts().on_interrupt();
    }
}

/// As [`on_interrupt`], for loops that wait for a lock, perhaps with interrupts off.
pub(crate) fn poll() {
    if let Some(engine) = ENGINE.get() {
        engine.this_cpu().poll();
    }
}

// SAFETY: INVLPG and a load of CR3 perform `invalidate` and `load_root` on this CPU, and are ordered after earlier
// stores, as MFENCE is; an interrupt between CPUs ends in `on_interrupt`; CPU numbers are the kernel's; there are no
// tags and no broadcasts.
unsafe impl Hardware for Cpus {
    const MECHANISMS: Policy = POLICY;

    type Word = AtomicU64;
    type Broadcasts = NoBroadcasts;

    #[inline]
    fn this_cpu(&self) -> quell::CpuId {
        quell::CpuId(CpuId::current_racy().as_usize() as u16)
    }

    fn features(&self) -> Features {
        Features {
            tagging: Tagging::None,
            broadcast: false,
            full_above: FULL_ABOVE,
        }
    }

    #[inline]
    fn fence(&self) {
        core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
    }

    #[inline(always)]
    fn invalidate(&self, what: Invalidation) {
        match what {
            Invalidation::Range { range, .. } | Invalidation::Kernel { range, .. } => {
                if range.pages == 1 {
                    return mm::tlb_flush_addr(range.start.address() as Vaddr);
                }
                for page in range.each() {
                    mm::tlb_flush_addr(page.address() as Vaddr);
                }
            }
            Invalidation::Tag(_) | Invalidation::All => mm::tlb_flush_all_excluding_global(),
            Invalidation::Everything => mm::tlb_flush_all_including_global(),
        }
    }

    #[inline]
    unsafe fn load_root(&self, root: quell::Frame, _: Tag, _: bool) {
        // SAFETY: as the caller has promised.
        unsafe { mm::activate_page_table(root.address() as Paddr, CachePolicy::Writeback) };
    }

    fn unload_root(&self) {
        let kernel = super::kspace::KERNEL_PAGE_TABLE
            .get()
            .expect("a kernel page table");
        // SAFETY: it is never freed.
        unsafe { mm::activate_page_table(kernel.root_paddr(), CachePolicy::Writeback) };
    }

    fn interrupt(&self, targets: &CpuSet) {
        let guard = crate::task::disable_preempt();
        let sender = crate::smp::IPI_SENDER.get().expect("other CPUs are online");
        for target in targets.iter() {
            sender.interrupt(target.index(), &guard);
        }
    }

    #[inline]
    fn mask_interrupts(&self) -> bool {
        let were_on = irq::is_local_enabled();
        if were_on {
            irq::disable_local();
        }
        were_on
    }

    #[inline]
    fn restore_interrupts(&self, were_on: bool) {
        if were_on {
            irq::enable_local();
        }
    }

    #[inline]
    fn relax(&self) {
        core::hint::spin_loop();
    }
}

/// Frames that wait for a flush.
struct Frames(Vec<Frame<dyn AnyFrameMeta>>);

impl FrameList for Frames {
    type Frame = Frame<dyn AnyFrameMeta>;

    fn is_full(&self) -> bool {
        false
    }
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    #[inline]
    fn push(&mut self, frame: Frame<dyn AnyFrameMeta>) {
        self.0.push(frame);
    }
    fn take(&mut self) -> Option<Frame<dyn AnyFrameMeta>> {
        self.0.pop()
    }
}

/// Gathers changes of one page table, and flushes every CPU that has it loaded.
pub struct TlbFlusher<'a, G: PinCurrentCpu> {
    batch: Batch<'static, &'a AddressSpace, Frames, 1>,
    space: &'a AddressSpace,
    _pin_current: G,
}

impl<'a, G: PinCurrentCpu> TlbFlusher<'a, G> {
    /// Of this address space, on this CPU.
    #[inline]
    pub(crate) fn new(space: &'a AddressSpace, pin_current_guard: G) -> Self {
        Self {
            batch: engine().batch_of_spaces(Purpose::Call, Frames(Vec::new())),
            space,
            _pin_current: pin_current_guard,
        }
    }

    /// Reports a changed entry, under the lock of its page table. Flushes nothing yet.
    #[inline]
    pub fn issue_tlb_flush(&mut self, op: TlbFlushOp) {
        match op.0 {
            Some(range) => self.batch.changed(self.space, range, Scope::Leaf),
            None => self.batch.changed_all(self.space, Scope::Leaf),
        }
    }

    /// Does [`Self::issue_tlb_flush`], and gives the entry's frame to RCU after the flush.
    #[inline]
    pub fn issue_tlb_flush_with(
        &mut self,
        op: TlbFlushOp,
        drop_after_flush: RcuDrop<Frame<dyn AnyFrameMeta>>,
    ) {
        self.hold(drop_after_flush);
        self.issue_tlb_flush(op);
    }

    /// As [`Self::issue_tlb_flush_with`]; the frame held a page table for the range, and no walker reads it afterwards.
    pub(crate) fn issue_table_flush_with(
        &mut self,
        range: Range<Vaddr>,
        drop_after_flush: RcuDrop<Frame<dyn AnyFrameMeta>>,
    ) {
        self.hold(drop_after_flush);
        self.batch.changed(self.space, pages(&range), Scope::Tables);
    }

    #[inline]
    fn hold(&mut self, frame: RcuDrop<Frame<dyn AnyFrameMeta>>) {
        // SAFETY: `release` gives it back to RCU.
        let (frame, panic_guard) = unsafe { RcuDrop::into_inner(frame) };
        self.batch.hold(frame);
        panic_guard.forget();
    }

    /// Flushes on all CPUs that have the page table loaded. After it returns, no user access uses the old entries.
    #[inline]
    pub fn dispatch_tlb_flush(&mut self) {
        let frames = core::mem::take(&mut self.batch.finish_list().0);
        if !frames.is_empty() {
            drop(RcuDrop::new(frames));
        }
    }

    /// Does nothing: [`Self::dispatch_tlb_flush`] has waited.
    #[inline]
    pub fn sync_tlb_flush(&mut self) {}
}

/// A range to flush, or everything.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TlbFlushOp(Option<PageRange>);

impl TlbFlushOp {
    /// Covers everything but global entries.
    pub const fn for_all() -> Self {
        TlbFlushOp(None)
    }

    /// Covers the page at this address.
    #[inline]
    pub const fn for_single(addr: Vaddr) -> Self {
        TlbFlushOp(Some(PageRange::base(Page::containing(addr as u64), 1)))
    }

    /// Covers a range of whole pages.
    ///
    /// # Panics
    /// If it does not begin and end with a page, or is empty.
    pub const fn for_range(range: Range<Vaddr>) -> Self {
        assert!(
            range.start.is_multiple_of(PAGE_SIZE) && range.end.is_multiple_of(PAGE_SIZE),
            "a range to flush must begin and end with a page"
        );
        assert!(
            range.start < range.end,
            "a range to flush must not be empty"
        );
        TlbFlushOp(Some(pages(&range)))
    }
}

const fn pages(range: &Range<Vaddr>) -> PageRange {
    let count = (range.end - range.start) / PAGE_SIZE;
    PageRange::base(Page::containing(range.start as u64), count as u64)
}

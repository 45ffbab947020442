//! Flushes the kernel's own mappings, which every CPU has loaded.
//!
//! A kernel maps memory for itself under every root: stacks, `vmalloc` memory, windows onto I/O memory, the text of
//! modules. These mappings belong to a [kernel space](crate::Engine::new_kernel_space). It's an [`AddressSpace`], and
//! you report its changes to a [`Batch`](crate::Batch) like those of any other space. [The
//! contract](crate#the-contract) holds for it, with kernel code in the role of the program. A kernel may have several
//! kernel spaces: for example one for global entries and one for others, or one for each lock.
//!
//! # Differences from user spaces
//!
//! * The *initiator*, the CPU that makes a flush, sends a request to every online CPU. Even a CPU that is idle or has
//!   left its root uses kernel mappings. The initiator leaves out a CPU in user mode that flushes when it enters the
//!   kernel ([`user_mode`](crate::user_mode)).
//! * The initiator waits until each target has *flushed*. An acknowledgement before the flush
//!   ([`Policy::asynchronous`](crate::Policy)) isn't enough, because in between the target, or an NMI handler on it,
//!   uses kernel mappings.
//! * CPUs don't look for missed flushes when they switch, because each request reaches each online CPU, at once or when
//!   it enters the kernel. A CPU that comes online first accepts requests and then flushes everything
//!   ([`Engine::cpu_online`]).
//! * A TLB keeps an entry that isn't global ([`KernelEntries::Tagged`]) under each tag that was loaded while the entry
//!   was used. With per-CPU tags the target flushes the range under the loaded tag now, and every other tag whole when
//!   it's loaded next. It does the same when a table is freed, even for global entries, because walker caches are
//!   tagged. With system-wide tags the invalidation reaches all tags.
//! * Requests for one CPU may merge into a flush of everything. That flush includes global entries only if one of the
//!   requests was for a kernel space.
//!
//! # Lazy unmapping of kernel ranges
//!
//! If the kernel no longer uses a range, it may unmap the range without a flush, whatever the range's rights were. No
//! access to such a range is valid, so two rules replace rules 1 to 4 of [`lazy`](crate::lazy):
//!
//! 1. It gives the *addresses* out again only after [`Engine::flush_until`] with the range's stamp. It has got this
//!    stamp from [`DeferredFrames::stamp`](crate::DeferredFrames::stamp) at the unmap.
//! 2. It gives each *frame* to a new owner only after [`Engine::flush_before_reuse`] with its
//!    [`DeferredFlush`](crate::DeferredFlush).
//!
//! So one flush of everything on every CPU can serve many ranges, as many as the ledger has entries. Flushes of user
//! spaces and reuses of user frames don't make deferred flushes of kernel mappings.
//!
//! # Text
//!
//! A CPU may still execute instructions that it fetched through a translation before the flush. So after text was
//! written or unmapped and the batch has finished, call [`Cpu::synchronize_text`]. It makes every CPU drop the
//! instructions that it has fetched. For example, call it before the memory of an unloaded module is reused.
//!
//! # What we don't guarantee
//!
//! The engine doesn't keep the kernel's half the same in all roots. The kernel must do that: it adds a top-level entry
//! to all roots, and clears one in all roots before it reports the table below to a batch. [`Cpu::catch_up`] doesn't
//! make deferred flushes of kernel mappings. A kernel space is never retired.

use crate::addr::Frame;
use crate::cpu::{Activity, FlushReason, LoadedSpace};
use crate::cpu_set::CpuSet;
use crate::engine::Engine;
use crate::features::Tagging;
use crate::flush_info::FlushInfo;
use crate::hardware::{Hardware, Invalidation, Scope};
use crate::inbox::Marks;
use crate::request::Request;
use crate::space::{AddressSpace, KernelEntries, SpaceId};
use crate::stats::Counter;
use crate::this_cpu::Cpu;

impl<H: Hardware> Engine<'_, H> {
    /// Makes a space of the kernel's own mappings, which every CPU has loaded for ever. Never waits.
    ///
    /// `entries` is the kind of the space's entries. [`KernelEntries::Tagged`] is correct for both kinds. But with
    /// per-CPU tags, each flush of such a space makes the targets drop their entries of user spaces that aren't loaded.
    ///
    /// # Safety
    /// As long as the engine lives, the frame `root` holds a root table in the machine's format that maps the kernel.
    /// With [`KernelEntries::Global`], every entry that is reported with this space is global. The machine's
    /// [`Hardware::invalidate`] handles [`Invalidation::Kernel`] and [`Invalidation::Everything`].
    #[allow(unsafe_code)] // A declaration: there is nothing unsafe in here.
    pub unsafe fn new_kernel_space(&self, root: Frame, entries: KernelEntries) -> AddressSpace<H> {
        const {
            assert!(H::HAS_KERNEL_SPACES, "Hardware::HAS_KERNEL_SPACES is false");
        }
        let id = SpaceId::of_kernel(self.next_space(), entries);
        AddressSpace::of_kernel(id, root, self.count)
    }
}

impl<H: Hardware> Cpu<'_, H> {
    /// Carries out a request with marks on this CPU. Interrupts are masked.
    #[cold]
    pub(crate) fn flush_marked(self, info: &FlushInfo<'_>, marks: Marks) {
        if marks.has(Marks::KERNEL) {
            self.flush_with_kernel(info);
        } else {
            self.flush_here(info);
        }
        // Even if the request has merged with one for kernel mappings. [mutant TextLostInMerge]
        if marks.has(Marks::TEXT) {
            self.hw.synchronize_text();
        }
    }

    /// Carries out a request that includes kernel mappings on this CPU. Interrupts are masked.
    #[cold]
    pub(crate) fn flush_with_kernel(self, info: &FlushInfo<'_>) {
        if !H::HAS_KERNEL_SPACES {
            return self.flush_here(info);
        }
        let Some(entries) = info.space.and_then(|space| space.kernel()) else {
            self.flush_everything();
            let slot = self.here.slot(self.here.state.slot());
            if info.space.is_some_and(|space| self.here.state.has_loaded(space)) {
                slot.caught_up_with(slot.generation().max(info.last));
            }
            if self.here.state.activity() == Activity::Lazy {
                // Tables of the space that this CPU keeps lazily may have been freed.
                self.here.state.detach(self.hw);
                self.count(Counter::Evicted, 1);
            }
            return;
        };
        match info.request {
            Request::Empty => {}
            Request::Full(_) => self.flush_everything(),
            Request::Ranges(ranges, scope) => {
                let scope = *scope;
                self.count(Counter::FlushedRanges, 1);
                for range in ranges.iter() {
                    self.hw.invalidate(Invalidation::Kernel { range, scope });
                }
                let own = matches!(self.features.tagging, Tagging::PerCpu { .. });
                // Walker caches are tagged, even those above global entries. [mutant KernelTablesKeptUnderTags]
                let tagged = entries == KernelEntries::Tagged || scope == Scope::Tables;
                // This CPU may hold such entries under every tag that it keeps. [mutant KernelKeptUnderTags]
                if own && tagged {
                    self.forget_other_slots();
                }
            }
        }
    }

    /// Gives up the slots whose tags aren't loaded. So this CPU flushes each when it loads it.
    fn forget_other_slots(self) {
        let loaded = matches!(self.here.state.loaded(), LoadedSpace::Space(_))
            .then(|| self.here.state.slot());
        for (index, slot) in self.here.slots().enumerate().take(self.slots) {
            if Some(index) != loaded {
                slot.forget();
            }
        }
    }

    /// Flushes all entries of this CPU, and publishes the time of the flush clock.
    pub(crate) fn flush_everything(self) {
        self.count(Counter::FlushedFull, 1);
        // We read the clock before the flush, which doesn't cover flushes that are deferred meanwhile. [mutant
        // ClockReadAfterFlush]
        let now = self.ledger.now();
        self.hw.invalidate(Invalidation::Everything);
        self.here.state.flushed_everything(now);
        if self.broadcasts().is_none() && matches!(self.here.state.loaded(), LoadedSpace::Space(_))
        {
            self.here.slot(self.here.state.slot()).flushed(now);
            self.here.state.flushed(now);
        }
    }

    /// Makes every online CPU drop the instructions that it fetched before the call.
    ///
    /// Call it after kernel text was written, mapped or unmapped, and after the batch with that change has finished. If
    /// the machine's instruction caches need maintenance, do it before this call. May wait for other CPUs.
    ///
    /// It calls [`Hardware::synchronize_text`] on every online CPU. Other CPUs are interrupted for that, even on
    /// machines that broadcast invalidations. A CPU that comes online later must do it itself: see
    /// [`Engine::cpu_online`].
    ///
    /// # Panics
    /// If the machine doesn't define [`Hardware::synchronize_text`].
    pub fn synchronize_text(self) {
        self.assert_may_wait();
        let mut shootdown = self.begin_shootdown();
        // A CPU executes the instructions that it has fetched, even if their translation no longer exists. [mutant
        // TextKeptFetched]
        let all = CpuSet::first(self.count);
        self.post(&all, &FlushInfo::NOTHING, FlushReason::Text, &mut shootdown);
        self.interrupt(&shootdown);
        self.hw.synchronize_text();
        self.let_interrupts_in(&shootdown);
        self.wait(&shootdown, Scope::Tables, true);
    }
}

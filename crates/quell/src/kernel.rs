//! The kernel's own mappings: spaces that every CPU has loaded.
//!
//! What a kernel maps for itself, whatever root is loaded: stacks, memory of `vmalloc`, windows onto I/O memory, the text of
//! modules. A [kernel space](crate::Engine::new_kernel_space) is an [`AddressSpace`] to which a [`Batch`](crate::Batch)
//! is told of changes as of any other, and the contract's clauses hold for it, where "a program" is any code of
//! the kernel. A kernel may have several: one for entries that are global and one for those that are not, or one for
//! each lock.
//!
//! # What differs
//!
//! * Every CPU that is online is asked: one that is idle, and one that has left its root, uses the kernel's
//!   mappings too. One that runs a program undisturbed is left out until it enters the kernel ([`user_mode`](crate::user_mode)).
//! * The initiator waits until each has *flushed*. A receipt is not enough: the target is in the kernel, and so is
//!   whatever interrupts it there. NMI handlers need no permission for mappings of the kernel.
//! * There are no generations to catch up with. Each request reaches each CPU, or is known to the one that it was left to;
//!   one that comes online takes requests first and flushes everything then ([`hotplug`](crate::Engine::cpu_online)).
//! * Entries that are not global ([`KernelEntries::Tagged`]) are in a TLB under each tag that was loaded while they were used.
//!   The tag that is loaded is flushed; those of the CPU's other slots are given up, and flushed as they are loaded
//!   again. So it is with a table that is freed, global entries or not: walker caches are tagged. Where tags mean the same
//!   everywhere, the invalidation reaches all of them.
//! * "Everything" in an inbox, where requests met that have no smaller sum, includes global entries if one of them was
//!   the kernel's, and only then.
//!
//! # Lazy unmapping of kernel ranges
//!
//! A range that the kernel uses no more may be unmapped without a flush, whatever its rights were: rules 1 to 4 of
//! [`lazy`](crate::lazy) are two for it, because no access is lawful any more.
//!
//! 1. Its *addresses* are given out again after [`Engine::settle_stamp`] with the stamp that
//!    [`Owed::stamp`](crate::Owed::stamp) said: it is kept with the range.
//! 2. Its *frames* get a new owner after [`Engine::claim`], each behind its [`Residue`](crate::Residue).
//!
//! So a flush of everything on every CPU is paid for by as many ranges as the ledger has entries. A debt of the kernel's
//! mappings is paid by a flush that reaches them alone: flushes of user spaces pay nothing of it, and claims of users'
//! frames leave it to the calls that need it.
//!
//! # Text
//!
//! A CPU may have fetched instructions through a translation before it went, and executes what it fetched. So after
//! text was written or unmapped and the batch has finished, [`Engine::synchronize_text`] makes every CPU forget what it has fetched.
//!
//! # What this does not guarantee
//!
//! Upper levels of the kernel's half are the embedder's: a top-level entry that is added after roots were made must reach
//! all of them, and one that is taken away must leave all of them before its table goes into a batch. Debts of the
//! kernel's mappings are not paid by [`Engine::catch_up`]. A kernel space has no end.

use crate::addr::Frame;
use crate::cpu::{Activity, Concern, Loaded};
use crate::cpu_set::{CpuId, CpuSet};
use crate::engine::Engine;
use crate::features::Tagging;
use crate::flush_info::FlushInfo;
use crate::hardware::{Hardware, Invalidate, Scope};
use crate::inbox::Marks;
use crate::request::Request;
use crate::rules::{EngineRules, Rules};
use crate::space::{AddressSpace, KernelEntries, SpaceId};
use crate::stats::Counter;

impl<H: Hardware, R: Rules> Engine<'_, H, R> {
    /// A space of the kernel's own mappings, which every CPU has loaded from the start and for ever. Never waits.
    ///
    /// `entries` says what TLBs keep of them; [`KernelEntries::Tagged`] is right for both kinds, and costs CPUs
    /// with tags of their own what they kept of other spaces.
    ///
    /// # Safety
    /// `root` holds a root table of the machine's format that maps the kernel, as long as the engine lives. Entries that
    /// are reported to batches of this space are not global if `entries` does not say so, and the machine's
    /// [`Hardware::invalidate`] knows [`Invalidate::Kernel`] and [`Invalidate::Everything`].
    #[allow(unsafe_code)] // A declaration: there is nothing unsafe in here.
    pub unsafe fn new_kernel_space(&self, root: Frame, entries: KernelEntries) -> AddressSpace<H> {
        let id = SpaceId::of_kernel(self.next_space(), entries);
        AddressSpace::of_kernel(id, root, self.count)
    }

    /// Does on this CPU what a request says that has marks. Interrupts are masked.
    #[cold]
    pub(crate) fn flush_marked(&self, me: CpuId, info: &FlushInfo, marks: Marks) {
        if marks.has(Marks::KERNEL) {
            self.flush_with_kernel(me, info);
        } else {
            self.flush_here(me, info);
        }
        if marks.has(Marks::TEXT) {
            self.hw.synchronize_text();
        }
    }

    /// Flushes on this CPU what a request says that the kernel's mappings are among. Interrupts are masked.
    #[cold]
    pub(crate) fn flush_with_kernel(&self, me: CpuId, info: &FlushInfo) {
        let Some(entries) = info.space.and_then(|space| space.kernel()) else {
            self.flush_everything(me);
            let state = &self.cpu(me).state;
            if state.activity() == Activity::Lazy {
                // Perhaps tables were freed of the space that it keeps.
                state.detach(self.hw);
                self.count(me, Counter::Evicted, 1);
            }
            return;
        };
        match &info.request {
            Request::Empty => {}
            Request::Full(_) => self.flush_everything(me),
            Request::Ranges(ranges, scope) => {
                let scope = *scope;
                self.count(me, Counter::FlushedRanges, 1);
                for range in ranges.iter() {
                    self.hw.invalidate(Invalidate::Kernel { range, scope });
                }
                let own = matches!(self.features.tagging, Tagging::PerCpu { .. });
                let tagged = entries == KernelEntries::Tagged
                    || self.rules.tables_are_tagged(scope == Scope::Tables);
                if self.rules.other_tags_go(own && tagged) {
                    self.forget_other_slots(me);
                }
            }
        }
    }

    /// What was kept under tags that are not loaded is flushed as they are.
    fn forget_other_slots(&self, me: CpuId) {
        let cpu = self.cpu(me);
        let loaded = matches!(cpu.state.loaded(), Loaded::Space(_)).then(|| cpu.state.slot());
        for (index, slot) in cpu.slots().iter().enumerate().take(self.slots) {
            if Some(index) != loaded {
                slot.forget();
            }
        }
    }

    /// Flushes all that this CPU has, and tells the flush clock's readers.
    pub(crate) fn flush_everything(&self, me: CpuId) {
        let cpu = self.cpu(me);
        self.count(me, Counter::FlushedFull, 1);
        let now = self.rules.read_clock_then_flush(
            || self.ledger.now(),
            || self.hw.invalidate(Invalidate::Everything),
        );
        cpu.state.flushed_everything(now);
        if self.broadcasts().is_none() && matches!(cpu.state.loaded(), Loaded::Space(_)) {
            cpu.slots()[cpu.state.slot()].flushed(now);
            cpu.state.flushed(now);
        }
    }

    /// Makes every CPU that is online execute no instruction that it fetched before the call: after the text of
    /// the kernel was written, mapped or unmapped, and the batch that was told of it has finished. What the machine's
    /// instruction caches need is the embedder's and comes before. May wait for other CPUs.
    ///
    /// Calls [`Hardware::synchronize_text`] on every CPU, by interrupts, on machines that broadcast too. A CPU that is
    /// offline is not told, now or later: see [`Engine::cpu_online`].
    pub fn synchronize_text(&self) {
        self.assert_may_wait();
        let me = self.hw.this_cpu();
        let mut shootdown = self.begin_shootdown(me);
        if self.rules.text_is_synchronized() {
            let all = CpuSet::first(self.count);
            self.post(me, &all, &FlushInfo::NOTHING, Concern::Text, &mut shootdown);
        }
        self.interrupt(me, &shootdown);
        self.hw.synchronize_text();
        self.let_interrupts_in(&shootdown);
        self.wait(me, &shootdown, Scope::Tables, true);
    }
}

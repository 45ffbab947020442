//! The flush: the steps by which an initiator makes every CPU drop translations.
//!
//! The file is long because all flushes take these steps, in this order. [`at_once`](crate::at_once) has a leaner
//! version for a single range. The idea is [Nadav
//! Amit's](https://lore.kernel.org/all/20190531063645.4697-1-namit@vmware.com/); Linux merged its concurrent half.
//!
//! The initiator
//!
//! 1. takes the space's next generation, after the tables were written and before it reads which CPUs have the space
//!    loaded. A CPU that loads the space enters that set before it reads the generation. So either the initiator sees
//!    the CPU, or the CPU sees the generation.
//! 2. posts the request to the CPUs that need it ([`CpuState::must_be_asked`](crate::cpu::CpuState)), and interrupts
//!    those to which no interrupt is on its way.
//! 3. flushes its own entries while the requests travel.
//! 4. waits, and serves its own inbox meanwhile. So two CPUs that send each other requests with interrupts off both
//!    make progress (C7).
//!
//! # Acknowledging
//!
//! With [`Policy::asynchronous`](crate::Policy) the initiator only waits until the target has *received* the request.
//! The target is then in its handler with interrupts off, and flushes before it returns to code that could access user
//! memory. Two things can still happen in between:
//!
//! * A speculative walk through tables. So an initiator that freed tables waits until the target is *done*.
//!   [`Cpu::quiesce`] does the same for frames that must not be read speculatively.
//! * An NMI. So code that touches user memory from an NMI or a probe calls [`Cpu::user_access_allowed`] first.
//!
//! No wait has a timeout. A CPU that never answers is a bug of the embedder, and if we pretended success, we'd corrupt
//! memory silently.
//!
//! # Nesting
//!
//! A thread or an interrupt handler may preempt a flush almost anywhere, and flush, too. But we mask interrupts between
//! the first post and the interrupts. A flush that ran there would find its request merged with one whose interrupt
//! wasn't sent yet, and wait for a target that was never interrupted.

use crate::cpu::{Decision, FlushReason};
use crate::cpu_set::{CpuId, CpuSet};
use crate::flush_info::{EncodedRequest, FlushInfo};
use crate::hardware::{Hardware, Scope};
use crate::inbox::{Marks, Post, PostOutcome, WaitGoal};
use crate::per_cpu::PerCpuData;
use crate::request::Request;
use crate::space::AddressSpace;
use crate::stack::InlineQueue;
use crate::stats::Counter;
use crate::this_cpu::Cpu;
use crate::word::Word;
use core::sync::atomic::Ordering::SeqCst;

/// The number of turns after which we report a wait to the machine. We report it again each time the number has
/// doubled.
const LONG: u64 = 1 << 16;

/// The maximum number of spaces that one flush covers.
pub(crate) const SPACES: usize = 8;

/// The data that an initiator posts to each target of one request.
pub(crate) struct PostedRequest<'i> {
    pub(crate) post: Post<'i>,
    pub(crate) marks: Marks,
    pub(crate) concern: FlushReason,
}

/// A shootdown under way: made by [`Cpu::begin_shootdown`], ended by [`Cpu::wait`].
pub(crate) struct Shootdown {
    pub(crate) targets: CpuSet,
    /// The targets to interrupt. A target of several requests is interrupted once.
    pub(crate) interrupts: CpuSet,
    /// The number of CPUs in `interrupts`.
    pub(crate) sent: u64,
    /// Set if this flush has reserved the outbox until all targets are done.
    outbox: bool,
    pub(crate) were_on: bool,
}

impl Shootdown {
    #[inline]
    pub(crate) const fn none() -> Self {
        Shootdown {
            targets: CpuSet::none(),
            interrupts: CpuSet::none(),
            sent: 0,
            outbox: false,
            were_on: false,
        }
    }

    /// Returns whether any CPU has got a request.
    #[inline]
    pub(crate) fn has_targets(&self) -> bool {
        !self.targets.is_empty()
    }

    #[inline]
    pub(crate) fn ask(&mut self, target: CpuId, interrupt: bool) {
        if interrupt {
            self.sent += u64::from(self.interrupts.insert_new(target));
        }
        self.targets.insert(target);
    }
}

impl<H: Hardware> Cpu<'_, H> {
    #[inline]
    pub(crate) fn take_generation(self, space: &AddressSpace<H>) -> u64 {
        // Each flush takes a generation, because a CPU that loads the space later compares it. [mutant
        // SkipGenerationBump]
        space.next_generation()
    }

    /// Flushes at most [`SPACES`] requests on every CPU that may hold their translations, and waits.
    ///
    /// When it returns, no CPU uses a covered translation in any later user access.
    pub(crate) fn shoot_down<'s>(
        self,
        requests: impl ExactSizeIterator<Item = (&'s AddressSpace<H>, &'s Request)> + Clone,
    ) where
        H: 's,
    {
        self.assert_may_wait();
        if self.broadcasts().is_some() {
            self.flush_by_broadcast(requests);
            return;
        }
        let told = self.start_secondary(requests.clone());
        let mut mine = InlineQueue::<FlushInfo<'s>, SPACES>::new();
        let mut shootdown = self.begin_shootdown();
        let (scope, kernel) = self.post_all(requests, &mut mine, &mut shootdown);
        self.flush_posted(mine.as_slice(), &shootdown, scope, kernel);
        self.wait_for_secondary(told);
    }

    /// Interrupts the targets of the posted requests, flushes this CPU's own entries, and waits.
    fn flush_posted(
        self,
        mine: &[FlushInfo<'_>],
        shootdown: &Shootdown,
        scope: Scope,
        kernel: bool,
    ) {
        let concurrent = self.on().concurrent;
        if shootdown.has_targets() {
            self.interrupt(shootdown);
        } else {
            self.count(Counter::SkippedNoTarget, 1);
        }
        if concurrent {
            self.flush_own(mine);
        }
        self.let_interrupts_in(shootdown);
        self.wait(shootdown, scope, kernel);
        if !concurrent {
            let were_on = self.hw.mask_interrupts();
            self.flush_own(mine);
            self.hw.restore_interrupts(were_on);
        }
    }

    /// Takes generations and posts each request to the CPUs that need it.
    ///
    /// Puts the requests into `mine`, for this CPU's own flush. Returns the greatest scope, and whether kernel mappings
    /// are among the requests.
    #[inline]
    pub(crate) fn post_all<'s>(
        self,
        requests: impl ExactSizeIterator<Item = (&'s AddressSpace<H>, &'s Request)> + Clone,
        mine: &mut InlineQueue<FlushInfo<'s>, SPACES>,
        shootdown: &mut Shootdown,
    ) -> (Scope, bool)
    where
        H: 's,
    {
        let scope = requests.clone().map(|(_, request)| request.scope()).max();
        let scope = scope.unwrap_or_default();
        let mut kernel = false;
        // The outbox has room for one request, so a flush of several spaces posts "everything" instead.
        let too_many_for_outbox = !self.on().inline_requests && requests.len() > 1;
        for (space, request) in requests {
            self.count(Counter::Requested, 1);
            let request = self.limited(request);
            let info = FlushInfo::of(space.id(), self.take_generation(space), request);
            let info = mine.push(info);
            let concern = FlushReason::of_flush(scope, info.is_kernel());
            kernel |= info.is_kernel();
            let mut loaded = CpuSet::none();
            space.read_loaded(&mut loaded, self.count);
            loaded.remove(self.id());
            if info.is_kernel() {
                loaded = self.without_programs(&loaded, scope);
            }
            if !loaded.is_empty() {
                let everything = FlushInfo::whole(scope);
                let sent = if too_many_for_outbox { &everything } else { &*info };
                self.post(&loaded, sent, concern, shootdown);
            }
        }
        (scope, kernel)
    }

    #[inline]
    pub(crate) fn flush_own(self, mine: &[FlushInfo<'_>]) {
        // The initiator may hold the translations, too. [mutant SkipLocalFlush]
        for info in mine {
            if info.is_kernel() {
                self.flush_with_kernel(info);
            } else {
                self.flush_here(info);
            }
        }
    }

    /// Flushes and ends a batch if no other CPU has the space loaded. Otherwise returns `false` and does nothing.
    ///
    /// The caller ensures that no table was written since the batch was counted as pending. So this count takes the
    /// place of the generation in [`Cpu::shoot_down`]: a CPU that loads the space enters the set before it reads the
    /// count. See [`crate::space`].
    #[inline(always)]
    pub(crate) fn flush_alone(self, space: &AddressSpace<H>, request: &Request) -> bool {
        // Kernel mappings never occupy a slot, even on a single-CPU machine.
        let alone = self.broadcasts().is_none()
            && !space.id().is_kernel()
            && space.is_loaded_only_on(self.here.seat(), self.count);
        alone && self.end_alone(space, request)
    }

    /// Flushes and ends a batch of a space that no other CPU has loaded.
    #[inline(always)]
    fn end_alone(self, space: &AddressSpace<H>, request: &Request) -> bool {
        // We wait for devices before we mask interrupts, because they may take long.
        let told = self.start_secondary([(space, request)].into_iter());
        self.wait_for_secondary(told);
        // Mask interrupts before the check: a thread that preempts this one between the check and the flush could load
        // another space. [mutant LoadedSpaceStale]
        let were_on = self.hw.mask_interrupts();
        let here = self.here.state.has_loaded(space.id());
        if here {
            if !self.here.state.is_running() {
                self.hw.restore_interrupts(were_on);
                return false;
            }
            let slot = self.here.slot(self.here.state.slot());
            let caught_up = slot.generation();
            // Flush before the batch ends: a later observer, or an NMI handler of this CPU, that finds it ended relies
            // on the flush. [mutants SkipLocalFlush, PendingEndsBeforeFlush]
            self.invalidate_here(slot, self.limited(request));
            // If another initiator took a generation in between, our slot's generation stays behind. A later request
            // then finds the gap and makes us flush the whole tag.
            let before = space.end_batch_alone();
            if before == caught_up {
                slot.caught_up_with(caught_up + 1);
            }
        } else {
            space.end_batch_alone();
        }
        self.hw.restore_interrupts(were_on);
        self.count(Counter::Requested, 1);
        self.count(Counter::SkippedNoTarget, 1);
        true
    }

    /// Flushes the loaded address space on every CPU in `cpus` and waits. If `kernel` is set, also flushes kernel
    /// mappings.
    pub(crate) fn flush_whole(self, cpus: &CpuSet, scope: Scope, kernel: bool) {
        let mut shootdown = self.begin_shootdown();
        self.post_whole(cpus, scope, kernel, &mut shootdown);
        self.interrupt(&shootdown);
        self.flush_whole_here(cpus, scope, kernel);
        self.let_interrupts_in(&shootdown);
        self.wait(&shootdown, scope, kernel);
    }

    /// Posts a flush of everything to those of `cpus` that need it.
    pub(crate) fn post_whole(
        self,
        cpus: &CpuSet,
        scope: Scope,
        kernel: bool,
        shootdown: &mut Shootdown,
    ) {
        let concern = FlushReason::of_flush(scope, kernel);
        self.post(cpus, &FlushInfo::whole(scope), concern, shootdown);
    }

    /// Flushes everything on this CPU if it's among `cpus`. Interrupts are masked.
    pub(crate) fn flush_whole_here(self, cpus: &CpuSet, scope: Scope, kernel: bool) {
        // [mutant SkipLocalFlush]
        if cpus.contains(self.id()) {
            let everything = FlushInfo::whole(scope);
            if kernel {
                self.flush_with_kernel(&everything);
            } else {
                self.flush_here(&everything);
            }
        }
    }

    /// Flushes these requests by broadcast, on CPUs and devices.
    ///
    /// Waits for this CPU's barrier and for devices, but for no other CPU.
    pub(crate) fn flush_by_broadcast<'s>(
        self,
        requests: impl Iterator<Item = (&'s AddressSpace<H>, &'s Request)> + Clone,
    ) where
        H: 's,
    {
        let told = self.start_secondary(requests.clone());
        self.broadcast_flush(requests);
        self.wait_for_secondary(told);
    }

    /// Returns the request, or one for everything if it has too many strides.
    #[inline]
    pub(crate) fn limited(self, request: &Request) -> &Request {
        if !request.exceeds(self.features.full_above) {
            return request;
        }
        self.count(Counter::EscalatedLength, 1);
        Request::full(request.scope())
    }

    // The initiator's side.

    /// Begins a shootdown: masks interrupts and reserves the outbox if requests aren't inlined.
    ///
    /// [`Cpu::let_interrupts_in`] restores interrupts, after [`Cpu::interrupt`].
    pub(crate) fn begin_shootdown(self) -> Shootdown {
        let mut shootdown = self.begin_without_outbox();
        // If this flush has preempted another one, the targets of that one may still read the outbox.
        shootdown.outbox = !self.on().inline_requests && self.here.outbox.reserve();
        shootdown
    }

    /// Begins a shootdown like [`Cpu::begin_shootdown`], without an outbox.
    #[inline]
    pub(crate) fn begin_without_outbox(self) -> Shootdown {
        let mut shootdown = Shootdown::none();
        shootdown.were_on = self.mask_for_shootdown();
        shootdown
    }

    #[inline]
    pub(crate) fn mask_for_shootdown(self) -> bool {
        // A flush that preempted this one between a post and its interrupt would find its own request merged with one
        // whose interrupt wasn't sent, and wait for ever. [mutant PostingPreempted]
        self.hw.mask_interrupts()
    }

    /// Posts a request to those of `cpus` that need it.
    ///
    /// Not inlined: in each of its callers it would take a tenth of the library's text.
    #[inline(never)]
    pub(crate) fn post(
        self,
        cpus: &CpuSet,
        info: &FlushInfo<'_>,
        concern: FlushReason,
        shootdown: &mut Shootdown,
    ) {
        let laid = info.laid_out();
        let posting = self.posting(&laid, concern, shootdown.outbox);
        let me = self.id();
        for target in cpus.iter().filter(|&target| target != me) {
            if let Some(posted) = self.post_to(target, &posting) {
                shootdown.ask(target, posted == PostOutcome::Interrupt);
            }
        }
    }

    /// Prepares the post for the targets of a flush.
    ///
    /// If `outbox` is set, writes the request into this CPU's outbox.
    #[inline(always)]
    fn posting<'i>(
        self,
        laid: &'i EncodedRequest<'i>,
        concern: FlushReason,
        outbox: bool,
    ) -> PostedRequest<'i> {
        let post = match (self.on().inline_requests, outbox) {
            (true, _) => Post::Inline(laid),
            (false, true) => {
                self.here.outbox.lay_out(laid);
                Post::InOutbox(self.id())
            }
            (false, false) => Post::Everything,
        };
        let marks = match concern {
            // The target must know that kernel mappings are meant, even if the request merges into "everything".
            // [mutant KernelLostInMerge]
            FlushReason::Kernel => Marks::KERNEL,
            FlushReason::Text => Marks::TEXT,
            FlushReason::Flush(_)
            | FlushReason::Retirement
            | FlushReason::Deferral(_)
            | FlushReason::KernelDeferral(_) => Marks::NONE,
        };
        if matches!(concern, FlushReason::Kernel | FlushReason::Text) {
            // SeqCst pairs with `inbox::open`, after which the CPU invalidates everything, with a full barrier. So a
            // CPU that comes online and walks the kernel's tables or fetches its text sees our earlier writes, or we
            // find its inbox open. Otherwise we'd skip that CPU although it could still load a stale entry. For user
            // spaces the set of CPUs does the same.
            // A weaker ordering fails the loom race "a CPU comes online while the kernel's mappings change".
            H::Word::fence(SeqCst);
        }
        PostedRequest { post, marks, concern }
    }

    /// Posts to one CPU if it needs a request. Otherwise returns `None`.
    #[inline(always)]
    pub(crate) fn post_to(self, target: CpuId, posting: &PostedRequest<'_>) -> Option<PostOutcome> {
        let there = self.cpu(target);
        match self.must_ask(target, there, posting.concern) {
            true => self.post_asked(there, posting),
            false => None,
        }
    }

    /// Posts to a CPU that needs a request, whose state is `there`. Returns `None` if it's offline by now.
    #[inline(always)]
    pub(crate) fn post_asked(
        self,
        there: &PerCpuData<'_, H>,
        posting: &PostedRequest<'_>,
    ) -> Option<PostOutcome> {
        let contended = || self.count(Counter::EscalatedContention, 1);
        let (post, marks) = (posting.post, posting.marks);
        // [mutant SkipPost]
        let posted = there.inbox.post(post, marks, self.most(), contended);
        match posted {
            PostOutcome::Interrupt => {}
            PostOutcome::Merged => self.count(Counter::Merged, 1),
            PostOutcome::Offline => {
                self.count(Counter::SkippedOffline, 1);
                return None;
            }
        }
        Some(posted)
    }

    /// Returns whether `target`, whose state is `there`, needs a request.
    #[inline(always)]
    pub(crate) fn must_ask(
        self,
        target: CpuId,
        there: &PerCpuData<'_, H>,
        concern: FlushReason,
    ) -> bool {
        let skipped = match there.state.must_be_asked(concern) {
            Decision::Ask => None,
            Decision::Lazy => Some(Counter::SkippedLazy),
            Decision::Detached => Some(Counter::SkippedLeft),
            Decision::Flushed => Some(Counter::FoundFlushed),
        };
        if let Some(counter) = skipped {
            self.count(counter, 1);
            return false;
        }
        // The hypervisor's flush on reentry neither unloads the root nor drops fetched instructions. [mutant
        // RetirementLeftToReentry]
        let translations = matches!(concern, FlushReason::Flush(_) | FlushReason::Kernel);
        if translations && self.hw.flush_on_reentry(target) {
            self.count(Counter::SkippedNotRunning, 1);
            return false;
        }
        true
    }

    /// Interrupts the targets to which no interrupt is on its way.
    #[inline]
    pub(crate) fn interrupt(self, shootdown: &Shootdown) {
        if shootdown.sent > 0 {
            self.count(Counter::Shootdowns, 1);
            self.count(Counter::Sent, shootdown.sent);
            self.hw.interrupt(&shootdown.interrupts);
        }
    }

    /// Restores interrupts as they were before [`Cpu::begin_shootdown`].
    pub(crate) fn let_interrupts_in(self, shootdown: &Shootdown) {
        self.hw.restore_interrupts(shootdown.were_on);
    }

    /// Waits until every target has flushed, or has received the request if that's enough.
    pub(crate) fn wait(self, shootdown: &Shootdown, scope: Scope, kernel: bool) {
        self.wait_inlined(shootdown, scope, kernel);
    }

    /// Waits like [`Cpu::wait`], but is inlined.
    #[inline(always)]
    pub(crate) fn wait_inlined(self, shootdown: &Shootdown, scope: Scope, kernel: bool) {
        self.assert_still_here();
        let until = self.until(scope, kernel);
        // The flush is over when every target has answered. [mutant SkipWait]
        for target in shootdown.targets.iter() {
            self.wait_for(target, until);
        }
        if shootdown.outbox {
            self.here.outbox.release();
        }
    }

    /// Returns the progress that a target must reach before the initiator stops waiting.
    #[inline]
    pub(crate) fn until(self, scope: Scope, kernel: bool) -> WaitGoal {
        // A target sends a receipt before it reads its own inbox. So a receipt is enough only if the request is in the
        // target's own line: an outbox could be overwritten.
        let receipt = self.on().asynchronous && self.on().inline_requests;
        // A receipt isn't enough for kernel mappings: a target that has received a request is in the kernel, and so are
        // its NMI handlers. [mutant KernelReceiptIsEnough]
        // It isn't enough for freed tables either, which the target may still walk before it flushes. [mutant
        // EarlyAckForTables]
        if receipt && !kernel && scope == Scope::Leaf { WaitGoal::Received } else { WaitGoal::Done }
    }

    /// Waits until `target` has reached this goal for every request posted to it.
    #[inline(always)]
    fn wait_for(self, target: CpuId, until: WaitGoal) {
        let inbox = &self.cpu(target).inbox;
        let Some(number) = inbox.awaited() else {
            return;
        };
        self.count(Counter::Waited, 1);
        let receipt = u64::from(until == WaitGoal::Received);
        self.count(Counter::WaitedReceipt, receipt);
        let mut turns = 0;
        while !inbox.has_reached(number, until) {
            self.wait_a_turn_for(target, &mut turns);
        }
    }

    /// Waits until every online CPU has made the flushes that it has acknowledged.
    ///
    /// With [`Policy::asynchronous`](crate::Policy) a flush may end when each target has acknowledged its request and
    /// not flushed yet. This call waits for the flush itself. It interrupts no CPU. May wait for other CPUs.
    ///
    /// No program can observe the difference. But until a target has flushed, it may speculatively load cache lines of
    /// an unmapped frame. Some frames must not be loaded any more: for example, a frame changes its memory type or
    /// encryption, becomes private to a guest, or leaves the machine. Make this call after such a frame has come out of
    /// a batch or of [`Engine::flush_before_reuse`](crate::Engine::flush_before_reuse).
    ///
    /// It doesn't cover CPUs that got no request. Such a CPU has the space loaded lazily ([`Cpu::enter_lazy`]), or is
    /// in user mode and flushes kernel mappings at its next kernel entry ([`user_mode`](crate::user_mode)). Changes
    /// that are reported with [`Scope::Tables`] reach these CPUs, too.
    pub fn quiesce(self) {
        self.assert_may_wait();
        let me = self.id();
        self.poll();
        // A receipt isn't enough for a frame that must not be loaded speculatively. [mutant QuiesceTakesReceipt]
        let until = WaitGoal::Done;
        for cpu in (0..self.count).map(|cpu| CpuId(cpu as u16)) {
            let inbox = &self.cpu(cpu).inbox;
            let behind = |number| !inbox.has_reached(number, until);
            if cpu != me && inbox.awaited().is_some_and(behind) {
                self.wait_for(cpu, until);
            }
            if cpu != me && self.shares_lines() {
                // [mutant QuiesceForgetsShared]
                let progress = self.cpu(cpu).state.shared_progress();
                let (deferring, mut turns) = (progress.deferring(), 0);
                while deferring.is_some() && progress.deferring() == deferring {
                    self.wait_a_turn_for(cpu, &mut turns);
                }
            }
        }
    }

    /// Waits one more turn for `target`, and reports long waits to the machine.
    pub(crate) fn wait_a_turn_for(self, target: CpuId, turns: &mut u64) {
        self.tell_of_long_wait(|| target, turns);
        self.wait_a_turn();
    }

    /// Counts a turn of a wait, and reports long waits to the machine. Calls `target` only for a report.
    #[inline]
    pub(crate) fn tell_of_long_wait(self, target: impl FnOnce() -> CpuId, turns: &mut u64) {
        if H::IS_SMALL {
            return;
        }
        *turns += 1;
        if *turns >= LONG && turns.is_power_of_two() {
            self.hw.waits_long(target(), *turns);
        }
    }

    /// Waits one turn, and serves the requests of other CPUs meanwhile.
    pub(crate) fn wait_a_turn(self) {
        // Without this, two CPUs with interrupts off that send each other requests would wait for ever. [mutant
        // WaiterSkipsInbox]
        if self.has_request() {
            self.count(Counter::ServedEarly, 1);
            self.serve();
        } else {
            self.hw.relax();
        }
        self.assert_still_here();
    }
}

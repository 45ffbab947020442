//! Flushes of one change of one space, without a batch. Most batches with changes of one space end here, too.
//!
//! The steps are those of [`flush`](crate::flush), in the same order, and the same functions write every word that
//! other CPUs see. But there are fewer instructions, because three things are known: there is one request, requests are
//! inlined, and this CPU flushes while the others do. We test for the common cases first. Often no other CPU has the
//! space loaded. Otherwise every CPU that has it loaded usually gets a request and an interrupt. The request is usually
//! a short range, and this CPU's next generation. Policies without remote flush, machines that broadcast and kernel
//! spaces use the general code.
//!
//! Tasks that flush all of one space at the same time may share these flushes: see [`coalesced`](crate::coalesced).

use crate::addr::PageRange;
use crate::cpu::FlushReason;
use crate::cpu_set::{CpuId, CpuSet};
use crate::flush::{PostedRequest, Shootdown};
use crate::flush_info::{EncodedRequest, FlushInfo, SimpleRequest};
use crate::hardware::{Hardware, Scope};
use crate::inbox::{Marks, Post, PostOutcome, WaitGoal};
use crate::request::{MAX_PACKED_STRIDES, Request, pack, strides, unpack};
use crate::secondary::SecondaryMark;
use crate::shared_inbox::{clusters, members};
use crate::space::{AddressSpace, SpaceId};
use crate::stats::Counter;
use crate::this_cpu::Cpu;

impl<H: Hardware> Cpu<'_, H> {
    /// Flushes a changed range of `space`, or all of the space if `range` is `None`.
    ///
    /// Call it after the tables were written. When it returns, no later user access on any CPU uses a translation that
    /// the change took away (clauses C1 and C3 of [the contract](crate#the-contract)). The effect is that of a
    /// [`Batch`](crate::Batch) with this one change, in fewer steps. An empty range is no change. May wait for other
    /// CPUs.
    ///
    /// Until it returns, other code that finds the entry already cleared can't learn of the flush:
    /// [`Engine::flush_pending`](crate::Engine::flush_pending) doesn't cover it. So hold the lock of the table during
    /// the call. You may drop the lock earlier if no code relies on the entry, or if such code learns of the flush in
    /// another way. Linux's `mm_tlb_flush_pending` is an example.
    #[inline]
    pub fn flush(self, space: &AddressSpace<H>, range: Option<PageRange>, scope: Scope) {
        self.flush_from(space, range, scope);
    }

    /// Flushes all of `space`, or waits for another task's flush that begins after this call.
    ///
    /// Any entry may have changed and any page-table page may have been unlinked, as for [`Cpu::flush`] with
    /// [`Scope::Tables`]. When it returns, no later user access on any CPU uses a translation that the change took
    /// away. No CPU walks the unlinked tables any more (clauses C1, C3 and C6 of [the contract](crate#the-contract)).
    /// May wait for other CPUs.
    ///
    /// As with [`Cpu::flush`], other code can't learn of the flush before it's over. Use this call if several threads
    /// change one space at the same time and more than two CPUs have it loaded. If no other task shares the flush, it
    /// takes three more writes than [`Cpu::flush`].
    ///
    /// Interrupts are masked during the call, for at most the time of two flushes. If devices walk the tables, too
    /// ([`Hardware::HAS_SECONDARY`]), tasks share no flush, because a device may take long.
    ///
    /// # Examples
    ///
    /// ```
    /// # quell::one_cpu!(machine, engine, space);
    /// use quell::Page;
    /// machine.access(Page(5));
    /// // Any task that has changed tables of the space:
    /// engine.this_cpu().flush_coalesced(&space);
    /// assert!(!machine.caches(Page(5)));
    /// ```
    pub fn flush_coalesced(self, space: &AddressSpace<H>) {
        if H::HAS_SECONDARY {
            self.flush_from(space, None, Scope::Tables);
        } else {
            self.coalesce(space, Scope::Tables);
        }
    }

    /// Flushes all of a space, or shares another task's flush of the same scope.
    fn coalesce(self, space: &AddressSpace<H>, scope: Scope) {
        self.assert_may_wait();
        let coalesced = space.coalesced(scope);
        // A task that preempts this one and takes a later number would wait for it. [mutant CoalescerPreempted]
        let were_on = self.hw.mask_interrupts();
        let mine = coalesced.take_number();
        let mut turns = 0;
        loop {
            let served = coalesced.served();
            if served >= mine {
                self.count(Counter::Coalesced, 1);
                break;
            }
            if served == mine - 1 {
                // We read the latest number before the flush begins: a CPU may have flushed and walked the tables again
                // before a later task wrote to them. [mutant CoalescedLate]
                let number = coalesced.lead(self.id());
                // The tasks with these numbers return once we mark them. [mutant CoalescerSkipsWait]
                self.flush_from(space, None, scope);
                coalesced.end(number);
                break;
            }
            self.tell_of_long_wait(|| coalesced.leader(), &mut turns);
            self.wait_a_turn();
        }
        self.hw.restore_interrupts(were_on);
    }

    /// Flushes a batch's request for one space, alone or together with other batches.
    #[inline]
    pub(crate) fn flush_one_or_coalesce(self, space: &AddressSpace<H>, request: &Request) {
        let request = match self.crowd(space) {
            0..=2 => request,
            // On few CPUs, to wait for another task's flush takes longer than one's own. But full flushes merge best.
            few if few + 1 < self.hw.shares_lines_from() => Request::full(request.scope()),
            _ => return self.coalesce(space, request.scope()),
        };
        self.flush_one(space, request);
    }

    /// Returns how many CPUs have the space loaded if several of its batches are pending. Otherwise returns 0.
    ///
    /// A full flush of a kernel space would cost every program its translations.
    #[inline]
    fn crowd(self, space: &AddressSpace<H>) -> usize {
        let may_coalesce = self.shares_lines() && !H::HAS_SECONDARY && !space.id().is_kernel();
        let crowded = may_coalesce && space.flushes().pending > 1;
        if crowded { space.loaded_on(self.count).len() } else { 0 }
    }

    /// Flushes a batch's request for one space on this CPU and others.
    ///
    /// Most such requests are one range or the whole space. The batch has checked that it may wait.
    #[inline]
    pub(crate) fn flush_one(self, space: &AddressSpace<H>, request: &Request) {
        match request.lone() {
            Some(range) if self.flushes_at_once() && !space.id().is_kernel() => {
                let told = self.start_secondary([(space, request)].into_iter());
                self.flush_told(space, range, request.scope(), told);
            }
            _ => self.shoot_down([(space, request)].into_iter()),
        }
    }

    #[inline(always)]
    fn flush_from(self, space: &AddressSpace<H>, range: Option<PageRange>, scope: Scope) {
        if !self.flushes_at_once() || space.id().is_kernel() {
            return match range {
                Some(range) if range.pages == 0 => {}
                _ => self.shoot_down([(space, &Request::of(range, scope))].into_iter()),
            };
        }
        // Packed, a range fits into a register.
        let packed = match range {
            Some(range) if range.pages == 0 => return,
            Some(range) if range.strides() <= MAX_PACKED_STRIDES => Some(pack(range)),
            _ => None,
        };
        self.assert_may_wait();
        let told = self.start_secondary([(space, &Request::of(range, scope))].into_iter());
        self.flush_told(space, packed, scope, told);
    }

    /// Flushes a request that devices already have: a packed range, or the whole space.
    ///
    /// A range with more than `full_above` strides becomes the whole space.
    #[inline(always)]
    fn flush_told(
        self,
        space: &AddressSpace<H>,
        range: Option<u64>,
        scope: Scope,
        told: SecondaryMark,
    ) {
        let range = self.limited_range(range);
        self.count(Counter::Requested, 1);
        let generation = self.take_generation(space);
        // Since the generation is taken, a CPU that loads the space later flushes by itself.
        if space.is_loaded_only_on(self.here.seat(), self.count) {
            self.count(Counter::SkippedNoTarget, 1);
            let were_on = self.hw.mask_interrupts();
            self.flush_mine(space.id(), generation, range, scope);
            self.hw.restore_interrupts(were_on);
        } else {
            self.flush_beside(space, generation, range, scope, None);
        }
        if H::HAS_SECONDARY {
            self.wait_for_secondary(told);
        }
    }

    /// Returns the packed range, or `None`, which means the whole space, if it has too many strides.
    #[inline(always)]
    fn limited_range(self, range: Option<u64>) -> Option<u64> {
        match range {
            Some(word) if strides(word) > self.features.full_above => {
                self.count(Counter::EscalatedLength, 1);
                None
            }
            range => range,
        }
    }

    /// Flushes this CPU's own entries. Interrupts are masked.
    #[inline(always)]
    fn flush_mine(self, space: SpaceId, generation: u64, range: Option<u64>, scope: Scope) {
        let lone = SimpleRequest { space, first: generation, last: generation, range, scope };
        // The initiator may hold the translation, too. [mutant SkipLocalFlush]
        if !self.flush_next(&lone) {
            self.flush_anyhow(space, generation, range, scope);
        }
    }

    /// Flushes this CPU's entries if the request isn't its next generation.
    #[cold]
    pub(crate) fn flush_anyhow(
        self,
        space: SpaceId,
        generation: u64,
        range: Option<u64>,
        scope: Scope,
    ) {
        let request = Request::of(range.map(unpack), scope);
        self.flush_here(&FlushInfo::of(space, generation, &request));
    }

    /// Flushes without a batch, on this CPU and on all others that need a request.
    ///
    /// If there's a set for `started`, writes the targets into it and doesn't wait for them. One function for both, so
    /// that the compiler inlines the post.
    #[inline(never)]
    fn flush_beside(
        self,
        space: &AddressSpace<H>,
        generation: u64,
        range: Option<u64>,
        scope: Scope,
        started: Option<&mut CpuSet>,
    ) {
        let me = self.id();
        let mut shootdown = Shootdown::none();
        space.read_loaded(&mut shootdown.targets, self.count);
        shootdown.targets.remove(me);
        shootdown.were_on = self.mask_for_shootdown();
        let laid = EncodedRequest::of(space.id(), generation, range.as_ref(), scope);
        if self.shares_lines()
            && started.is_none()
            && shootdown.targets.len() >= self.shares_lines_from(space)
        {
            let request = SimpleRequest {
                space: space.id(),
                first: generation,
                last: generation,
                range,
                scope,
            };
            return self.flush_sharing(&request, &laid, &mut shootdown);
        }
        self.post_to_all(&laid, FlushReason::Flush(scope), &mut shootdown);
        self.interrupt(&shootdown);
        let idle = shootdown.sent == 0 && !shootdown.has_targets();
        self.count(Counter::SkippedNoTarget, idle.into());
        self.flush_mine(space.id(), generation, range, scope);
        self.let_interrupts_in(&shootdown);
        match started {
            None => self.wait_inlined(&shootdown, scope, false),
            Some(started) => started.become_same(&shootdown.targets),
        }
    }

    /// Starts a flush like [`Cpu::flush_one`], but waits for no target: writes the targets into `started`.
    ///
    /// Returns `false`, and does nothing, unless the request is one range or the whole of a user space.
    #[inline]
    pub(crate) fn start_one(
        self,
        space: &AddressSpace<H>,
        request: &Request,
        started: &mut CpuSet,
    ) -> bool {
        let range = match request.lone() {
            Some(range) if self.flushes_at_once() && !space.id().is_kernel() => range,
            _ => return false,
        };
        let range = self.limited_range(range);
        self.count(Counter::Requested, 1);
        let generation = self.take_generation(space);
        self.flush_beside(space, generation, range, request.scope(), Some(started));
        true
    }

    /// Returns the smallest number of targets for which a flush of the space uses shared inboxes.
    fn shares_lines_from(self, space: &AddressSpace<H>) -> usize {
        let from = self.hw.shares_lines_from();
        // With several flushes at the same time, many would find the shared inboxes busy, and requests merge only in
        // own inboxes.
        if space.flushes().pending > 1 { from.saturating_mul(16) } else { from }
    }

    /// Flushes on many other CPUs through their shared inboxes, and on this CPU.
    ///
    /// Not inlined: flushes with few targets need less stack.
    #[inline(never)]
    fn flush_sharing(
        self,
        request: &SimpleRequest,
        laid: &EncodedRequest<'_>,
        shootdown: &mut Shootdown,
    ) {
        let (scope, me) = (request.scope, self.id());
        let mut shared = CpuSet::none();
        self.post_to_shared(request, laid, shootdown, &mut shared);
        self.interrupt(shootdown);
        let idle = shared.is_empty() && !shootdown.has_targets();
        self.count(Counter::SkippedNoTarget, idle.into());
        self.flush_mine(request.space, request.last, request.range, scope);
        self.let_interrupts_in(shootdown);
        self.wait_inlined(shootdown, scope, false);
        self.count(Counter::Waited, shared.len() as u64);
        if self.until(scope, false) == WaitGoal::Received {
            self.count(Counter::WaitedReceipt, shared.len() as u64);
        }
        // [mutant SkipWait]
        for (first, targets) in clusters(&shared) {
            let inbox = self.shared_inbox(first);
            let mut turns = 0;
            while inbox.is_busy_for(me) {
                self.tell_of_long_wait(|| self.unanswered(first, targets), &mut turns);
                self.wait_a_turn();
            }
        }
    }

    /// Returns a target of the cluster's request that has yet to answer.
    fn unanswered(self, first: CpuId, targets: u32) -> CpuId {
        let cpus = members(first, targets);
        let mut unanswered = cpus.filter(|&cpu| self.own_shared_inbox(self.cpu(cpu)).has_request());
        unanswered.next().unwrap_or(first)
    }

    /// Posts a request to the targets that need it. Adds the targets whose shared inbox it used to `shared`, an empty
    /// set.
    ///
    /// After the first busy shared inbox, we use the targets' own inboxes. If many CPUs flush at the same time, most
    /// shared inboxes are busy, and requests merge only in own inboxes.
    fn post_to_shared(
        self,
        request: &SimpleRequest,
        laid: &EncodedRequest<'_>,
        shootdown: &mut Shootdown,
        shared: &mut CpuSet,
    ) {
        let posting = PostedRequest {
            post: Post::Inline(laid),
            marks: Marks::NONE,
            concern: FlushReason::Flush(request.scope),
        };
        // A plain copy of a set would copy the room for all CPUs.
        let mut asked = CpuSet::none();
        asked.become_same(&shootdown.targets);
        asked.retain(|target| self.must_ask(target, self.cpu(target), posting.concern));
        for (first, wanted) in clusters(&asked) {
            let posted = self.shared_inbox(first).post(self.id(), wanted, request);
            if posted == 0 {
                break;
            }
            members(first, posted).for_each(|cpu| shared.insert(cpu));
        }
        shootdown.targets = CpuSet::none();
        shootdown.interrupts.become_same(shared);
        shootdown.sent = shared.len() as u64;
        for target in asked.iter().filter(|&target| !shared.contains(target)) {
            if let Some(posted) = self.post_asked(self.cpu(target), &posting) {
                shootdown.ask(target, posted == PostOutcome::Interrupt);
            }
        }
    }

    /// Posts a request to the targets that need it, and removes the others.
    #[inline(always)]
    fn post_to_all(
        self,
        laid: &EncodedRequest<'_>,
        concern: FlushReason,
        shootdown: &mut Shootdown,
    ) {
        let posting = PostedRequest { post: Post::Inline(laid), marks: Marks::NONE, concern };
        // In the common case every target gets a request and an interrupt.
        let Shootdown { targets, interrupts, sent, .. } = shootdown;
        interrupts.become_same(targets);
        targets.retain(|target| {
            let asked = self.post_to(target, &posting);
            match asked {
                Some(PostOutcome::Interrupt) => *sent += 1,
                _ => interrupts.remove(target),
            }
            asked.is_some()
        });
    }
}

//! The flush: what an initiator does to make every CPU forget translations (S4).
//!
//! 1. It takes the space's next generation, after the tables were written and before it reads which CPUs have
//!    the space loaded. A CPU that loads the space enters that set before it reads the generation; so either
//!    the initiator sees the CPU, or the CPU sees the generation.
//! 2. It posts the request to the CPUs that must be asked ([`CpuState::must_be_asked`](crate::cpu::CpuState)), and
//!    interrupts those that no interrupt is on its way to.
//! 3. It flushes its own entries while the requests travel.
//! 4. It waits, serving its own inbox meanwhile: two CPUs that shoot at each other with interrupts off both get
//!    on (C7).
//!
//! # Three numbers meet at a target
//!
//! The request's generation, the CPU's and the space's: whatever happens to a request on its
//! way, merged, late or doubled, [`Engine::flush_here`] compares generations. A request that is the next step is
//! flushed as it says, one that is behind is ignored, a gap is closed by a flush of the whole tag.
//!
//! # Acknowledging
//!
//! With [`Policy::asynchronous`](crate::Policy) the initiator waits until the target has *received* the request: the
//! target is in its handler, interrupts are off, and it flushes before it returns to whatever could
//! access user memory. Two things can still happen in between: a speculative walk through tables,
//! so an initiator that freed tables waits until the target is *done*; and an NMI, so code that touches user
//! memory from an NMI or a probe asks [`Engine::user_access_allowed`] first.
//!
//! Nothing is waited for with a time-out: a CPU that never answers is a fault of the embedder, and pretending
//! success would trade it for silent corruption.
//!
//! # Nesting
//!
//! A flush may be preempted, by a thread or an interrupt handler that flushes too, anywhere but between its first
//! post and its interrupts, where interrupts are masked: a flush that ran there would find its request merged with
//! one whose interrupt was not sent yet, and wait for a target that was not interrupted.

use crate::addr::PageRange;
use crate::cpu::{Activity, Asked, Concern, Loaded};
use crate::cpu_set::{CpuId, CpuSet};
use crate::engine::Engine;
use crate::flush_info::FlushInfo;
use crate::hardware::{Hardware, Invalidate, Scope};
use crate::inbox::{Post, Posted, Until};
use crate::request::Request;
use crate::rules::{EngineRules, Rules};
use crate::space::AddressSpace;
use crate::stack::Stack;
use crate::stats::Counter;
use crate::tags::Slot;

/// How many spaces one flush covers.
pub(crate) const SPACES: usize = 8;

/// A shootdown on its way: made by [`Engine::begin_shootdown`], ended by [`Engine::wait`].
pub(crate) struct Shootdown {
    targets: CpuSet,
    interrupts: CpuSet,
    /// Whether the outbox is this flush's until all targets are done.
    outbox: bool,
    were_on: bool,
}

impl Shootdown {
    /// Whether any CPU was asked.
    pub(crate) fn has_targets(&self) -> bool {
        !self.targets.is_empty()
    }
}

impl<H: Hardware, R: Rules> Engine<'_, H, R> {
    /// Flushes requests, at most [`SPACES`], on every CPU that may hold what they cover.
    ///
    /// When it returns, no CPU uses a covered translation in any later user access.
    pub(crate) fn flush<'s>(
        &self,
        requests: impl ExactSizeIterator<Item = (&'s AddressSpace<H>, &'s Request)> + Clone,
    ) where
        H: 's,
    {
        if self.broadcasts.is_some() {
            self.broadcast_flush(requests);
            return;
        }
        let me = self.hw.this_cpu();
        let scope = requests.clone().map(|(_, request)| request.scope()).max();
        let scope = scope.unwrap_or_default();
        // One request fits into the outbox: a flush of several spaces sends "everything" from there.
        let one_request = !self.policy.inline_requests && requests.len() > 1;
        let mut mine = Stack::<FlushInfo, SPACES>::new();
        let mut shootdown = self.begin_shootdown(me);
        for (space, request) in requests {
            self.count(me, Counter::Requested, 1);
            let request = self.limited(me, request);
            let generation = self
                .rules
                .generation_of_flush(|| space.next_generation(), || space.flushes().generation);
            let info = FlushInfo::of(space.id(), generation, *request);
            mine.push(info);
            let sent = if one_request {
                FlushInfo::whole(scope)
            } else {
                info
            };
            let mut loaded = space.loaded_on(self.cpus.len());
            loaded.remove(me);
            if !loaded.is_empty() {
                self.post(me, &loaded, &sent, Concern::Flush(scope), &mut shootdown);
            }
        }
        let nobody = !shootdown.has_targets();
        self.count(me, Counter::SkippedNoTarget, u64::from(nobody));
        self.interrupt(me, &shootdown);
        let flush_own = || {
            if self.rules.initiator_flushes() {
                for info in mine.as_slice() {
                    self.flush_here(me, info);
                }
            }
        };
        if self.policy.concurrent {
            flush_own();
            self.let_interrupts_in(&shootdown);
            self.wait(me, &shootdown, scope);
        } else {
            self.let_interrupts_in(&shootdown);
            self.wait(me, &shootdown, scope);
            let were_on = self.hw.mask_interrupts();
            flush_own();
            self.hw.restore_interrupts(were_on);
        }
    }

    /// Ends the debt of a batch that only this CPU has to hear of; `false`, and nothing was done, if another
    /// CPU has the space loaded.
    ///
    /// No table was written since the debt was raised. It, the set and a CPU that loads the space
    /// are as in [`Engine::flush`], with the debt in the generation's place: see
    /// [`crate::space`].
    #[inline]
    pub(crate) fn flush_alone(
        &self,
        me: CpuId,
        space: &AddressSpace<H>,
        request: &Request,
    ) -> bool {
        let alone = self.broadcasts.is_none() && space.is_loaded_only_on(me, self.cpus.len());
        if !self.rules.may_end_alone(alone) {
            return false;
        }
        let cpu = &self.cpus[me.index()];
        // Nothing may come between the look at what is loaded and what is done for it: a thread that
        // preempts this one may leave another space's slot behind, for a moment.
        let (were_on, here) = self.rules.mask_then_look(
            || self.hw.mask_interrupts(),
            || cpu.state.has_loaded(space.id()),
        );
        if here {
            if cpu.state.activity() != Activity::Running {
                self.hw.restore_interrupts(were_on);
                return false;
            }
            let slot = &cpu.slots()[cpu.state.slot()];
            let caught_up = slot.generation();
            if self.rules.initiator_flushes() {
                self.invalidate_here(me, slot, self.limited(me, request));
            }
            // The flush first: a second actor that sees the debt gone relies on it. Another initiator's request
            // that came in between stays behind, and the next one closes the gap.
            if space.end_batch_alone() == caught_up {
                slot.caught_up_with(caught_up + 1);
            }
        } else {
            space.end_batch_alone();
        }
        self.hw.restore_interrupts(were_on);
        self.count(me, Counter::Requested, 1);
        self.count(me, Counter::SkippedNoTarget, 1);
        true
    }

    /// Makes these CPUs, and this one if it is among them, flush whatever they have loaded whole: they may hold
    /// what is owed as of `stamp`, or earlier.
    pub(crate) fn flush_loaded(&self, me: CpuId, cpus: &CpuSet) {
        let everything = FlushInfo::EVERYTHING;
        let mut shootdown = self.begin_shootdown(me);
        let concern = Concern::Flush(Scope::Leaf);
        self.post(me, cpus, &everything, concern, &mut shootdown);
        self.interrupt(me, &shootdown);
        if cpus.contains(me) {
            self.flush_here(me, &everything);
        }
        self.let_interrupts_in(&shootdown);
        self.wait(me, &shootdown, Scope::Leaf);
    }

    /// The request, or one for everything if that is cheaper.
    #[inline]
    pub(crate) fn limited<'r>(&self, me: CpuId, request: &'r Request) -> &'r Request {
        if !request.exceeds(self.features.full_above) {
            return request;
        }
        self.count(me, Counter::EscalatedLength, 1);
        match request.scope() {
            Scope::Leaf => &Request::Full(Scope::Leaf),
            Scope::Tables => &Request::Full(Scope::Tables),
        }
    }

    // The initiator's side.

    /// Masks interrupts until [`Engine::let_interrupts_in`], which comes after [`Engine::interrupt`].
    pub(crate) fn begin_shootdown(&self, me: CpuId) -> Shootdown {
        let were_on = self.rules.posting_is_masked() && self.hw.mask_interrupts();
        // A flush that this one has preempted may still wait for targets that read the outbox.
        let outbox =
            !self.policy.inline_requests && self.cpus[me.index()].outbox.claim(&self.rules);
        Shootdown {
            targets: CpuSet::EMPTY,
            interrupts: CpuSet::EMPTY,
            outbox,
            were_on,
        }
    }

    /// Posts a request to those of `cpus` that must be asked.
    pub(crate) fn post(
        &self,
        me: CpuId,
        cpus: &CpuSet,
        info: &FlushInfo,
        concern: Concern,
        shootdown: &mut Shootdown,
    ) {
        let post = match (self.policy.inline_requests, shootdown.outbox) {
            (true, _) => Post::Inline(info),
            (false, true) => {
                self.cpus[me.index()].outbox.lay_out(info);
                Post::InOutbox(me)
            }
            (false, false) => Post::Everything,
        };
        for target in cpus.iter().filter(|&target| target != me) {
            let cpu = &self.cpus[target.index()];
            let skipped = match cpu.state.must_be_asked(concern, &self.rules) {
                Asked::Must => None,
                Asked::Lazy => Some(Counter::SkippedLazy),
                Asked::Detached => Some(Counter::SkippedLeft),
                Asked::Flushed => Some(Counter::PaidByOthers),
            };
            if let Some(counter) = skipped {
                self.count(me, counter, 1);
                continue;
            }
            if !self.rules.target_is_told() {
                continue;
            }
            let contended = || self.count(me, Counter::EscalatedContention, 1);
            match cpu
                .inbox
                .post(post, self.features.full_above, &self.rules, contended)
            {
                Posted::Interrupt => {
                    shootdown.targets.insert(target);
                    shootdown.interrupts.insert(target);
                }
                Posted::Merged => {
                    self.count(me, Counter::Merged, 1);
                    shootdown.targets.insert(target);
                }
                Posted::Offline => self.count(me, Counter::SkippedOffline, 1),
            }
        }
    }

    /// Interrupts the targets that no interrupt is on its way to.
    pub(crate) fn interrupt(&self, me: CpuId, shootdown: &Shootdown) {
        if !shootdown.interrupts.is_empty() {
            self.count(me, Counter::Shootdowns, 1);
            self.count(me, Counter::Sent, shootdown.interrupts.len() as u64);
            self.hw.interrupt(&shootdown.interrupts);
        }
    }

    /// Undoes what [`Engine::begin_shootdown`] has done to interrupts.
    pub(crate) fn let_interrupts_in(&self, shootdown: &Shootdown) {
        self.hw.restore_interrupts(shootdown.were_on);
    }

    /// Waits until every target has flushed, or, where that is enough, has received the request.
    pub(crate) fn wait(&self, me: CpuId, shootdown: &Shootdown, scope: Scope) {
        // A receipt comes before the request was read: enough only if it lies in the target's own line.
        let receipt = self.policy.asynchronous && self.policy.inline_requests;
        let until = if receipt && self.rules.receipt_is_enough(scope) {
            Until::Received
        } else {
            Until::Done
        };
        if self.rules.initiator_waits() {
            for target in shootdown.targets.iter() {
                self.wait_for(me, target, until);
            }
        }
        if shootdown.outbox {
            self.cpus[me.index()].outbox.release();
        }
    }

    fn wait_for(&self, me: CpuId, target: CpuId, until: Until) {
        let inbox = &self.cpus[target.index()].inbox;
        let Some(number) = inbox.awaited(&self.rules) else {
            return;
        };
        self.count(me, Counter::Waited, 1);
        let receipt = u64::from(until == Until::Received);
        self.count(me, Counter::WaitedReceipt, receipt);
        while !inbox.has_reached(number, until) {
            if self
                .rules
                .waiter_serves(self.cpus[me.index()].inbox.has_mail())
            {
                self.count(me, Counter::ServedWaiting, 1);
                self.on_interrupt();
            } else {
                self.hw.relax();
            }
        }
    }

    // The target's side.

    /// Takes and flushes every request in this CPU's inbox: the handler of the shootdown interrupt.
    ///
    /// May be called at any time, from any context that is not inside the engine on the same CPU
    /// with interrupts masked; a spurious call costs two loads. Must not be called from an NMI.
    pub fn on_interrupt(&self) {
        let were_on = self.hw.mask_interrupts();
        let me = self.hw.this_cpu();
        let outbox = |initiator: usize| Some(&self.cpus.get(initiator)?.outbox);
        self.cpus[me.index()]
            .inbox
            .serve(&self.rules, outbox, |info| self.flush_here(me, info));
        self.hw.restore_interrupts(were_on);
    }

    /// For loops that spin with interrupts off, for a lock that a flushing CPU may hold: serves what other
    /// CPUs want of this one. Two loads when that is nothing.
    #[inline]
    pub fn poll(&self) {
        if self.cpus[self.hw.this_cpu().index()].inbox.has_mail() {
            self.on_interrupt();
        }
    }

    /// Flushes on this CPU what a request says. Interrupts are masked.
    pub(crate) fn flush_here(&self, me: CpuId, info: &FlushInfo) {
        let cpu = &self.cpus[me.index()];
        let loaded = match cpu.state.loaded() {
            Loaded::Space(loaded) => loaded,
            Loaded::Nothing | Loaded::Offline => {
                self.count(me, Counter::IgnoredOtherSpace, 1);
                return;
            }
            Loaded::Switching => unreachable!("interrupts are masked during a switch"),
        };
        if info.space.is_some_and(|space| space != loaded) {
            // Entries that linger under another tag are compared when that tag is loaded again.
            self.count(me, Counter::IgnoredOtherSpace, 1);
            return;
        }
        if cpu.state.activity() == Activity::Lazy {
            // No program here needs the space: the CPU leaves it, and is asked no more.
            cpu.state.detach(self.hw);
            self.count(me, Counter::Evicted, 1);
            return;
        }
        let slot = &cpu.slots()[cpu.state.slot()];
        if info.space.is_none() {
            self.flush_tag(me, slot);
            return;
        }
        let caught_up = slot.generation();
        if info.last <= caught_up {
            self.count(me, Counter::IgnoredGeneration, 1);
            return;
        }
        let next = self.rules.is_next(info.first <= caught_up + 1);
        if next || info.request == Request::Empty {
            self.invalidate_here(me, slot, &info.request);
        } else {
            self.count(me, Counter::EscalatedGap, 1);
            self.flush_tag(me, slot);
        }
        slot.caught_up_with(info.last);
    }

    /// Invalidates on this CPU what a request for the loaded space says. Interrupts are masked.
    fn invalidate_here(&self, me: CpuId, slot: &Slot<H>, request: &Request) {
        match request {
            Request::Ranges(ranges, scope) => {
                let (tag, scope) = (self.cpus[me.index()].state.tag(), *scope);
                self.count(me, Counter::FlushedRanges, 1);
                for range in ranges.iter() {
                    self.hw.invalidate(Invalidate::Range { tag, range, scope });
                }
            }
            Request::Empty => {}
            Request::Full(_) => self.flush_tag(me, slot),
        }
    }

    /// Flushes the tag that is loaded, whole, and tells the flush clock's readers.
    pub(crate) fn flush_tag(&self, me: CpuId, slot: &Slot<H>) {
        let state = &self.cpus[me.index()].state;
        self.count(me, Counter::FlushedFull, 1);
        let now = self.rules.read_clock_then_flush(
            || self.ledger.now(),
            || self.hw.invalidate(Invalidate::Tag(state.tag())),
        );
        slot.flushed(now);
        state.flushed(now);
    }

    /// Makes this CPU, if it runs `space`, forget the translations of a range that has gained rights:
    /// after a fault, on machines whose TLBs may keep an entry that refused an access. Others find
    /// out by faults of their own. Not for changes that need a flush.
    pub fn refresh(&self, space: &AddressSpace<H>, range: PageRange) {
        let were_on = self.hw.mask_interrupts();
        let state = &self.cpus[self.hw.this_cpu().index()].state;
        if state.has_loaded(space.id()) {
            let (tag, scope) = (state.tag(), Scope::Leaf);
            self.hw.invalidate(Invalidate::Range { tag, range, scope });
        }
        self.hw.restore_interrupts(were_on);
    }

    /// Whether user memory may be accessed from an NMI handler or a probe right now.
    ///
    /// `false` while this CPU has acknowledged a flush that it has not done yet, while it is
    /// between two address spaces or on its way back to one that it had left alone, and as long as it keeps its
    /// root lazily, has none, or is offline; the caller then
    /// gives up, as for an access that faults. Any other code need not ask: it never runs in the windows between
    /// two spaces and between receipt and flush, and it accesses no user memory without a space that runs.
    pub fn user_access_allowed(&self) -> bool {
        let cpu = &self.cpus[self.hw.this_cpu().index()];
        self.rules.nmi_may_access(
            matches!(cpu.state.loaded(), Loaded::Space(_))
                && cpu.state.activity() == Activity::Running
                && !cpu.inbox.owes_flush(),
        )
    }
}

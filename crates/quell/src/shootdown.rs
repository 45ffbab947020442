//! Remote flush (S4): how a request reaches other CPUs, and when its sender may go on.
//!
//! # Posting
//!
//! Each CPU has one inbox, one cache line. An initiator that finds it idle writes its request there;
//! one that finds a request pending merges its own into it; one that finds another initiator
//! writing does not wait for it but turns the pending request into "everything", which needs no
//! writing. So posting never blocks, not even on an initiator whose virtual CPU is preempted.
//! Posting counts `posted` up; an initiator remembers the number and waits until the target's
//! acknowledgement has reached it: "up to number n", never "one less", so a spurious, doubled or
//! late interrupt acknowledges nothing that was not done.
//!
//! An interrupt is sent only if every earlier request was already received; otherwise one is on
//! its way. Both sides of that race: the target stores `received` and *then* looks at `posted`
//! again; the initiator counts `posted` up and *then* looks at `received`. All four are
//! sequentially consistent, so at least one of them sees the other.
//!
//! # Taking
//!
//! The handler takes no lock. It reads the request between two reads of the state; if an initiator
//! was writing, it flushes everything instead, which covers every request counted so far, whatever
//! it said.
//!
//! # Acknowledging
//!
//! With [`Policy::asynchronous`](crate::Policy) the sender waits for `received` only: the target
//! is in its handler, interrupts are off, and it flushes before it returns to whatever could
//! access user memory. Two things can still happen in between: a speculative walk through tables,
//! so a request that freed tables waits for `done`; and an NMI, so code that touches user memory
//! from an NMI or a probe asks [`Engine::user_access_allowed`] first.
//!
//! # Waiting
//!
//! A waiter serves its own inbox, so two CPUs that shoot at each other with interrupts off both get
//! on (C7). Nothing is waited for with a time-out: a CPU that never answers is a fault of the
//! embedder, and pretending success would trade it for silent corruption.

use crate::addr::PageRange;
use crate::batch::Pending;
use crate::cpu_set::CpuSet;
use crate::hardware::{CpuId, Hardware, Invalidate, Scope, Tag, Word};
use crate::mutant::Mutant;
use crate::per_cpu::{
    ANY_SPACE, Inbox, LAZY, LEFT, Letter, META_COUNT, META_ELSEWHERE, META_FULL, META_SENDER_SHIFT,
    META_TABLES, NOTHING, RUNNING, SWITCHING,
};
use crate::request::{self, Request};
use crate::space::SpaceId;
use crate::stack::Stack;
use crate::stats::Counter;
use crate::{AddressSpace, Engine};
use core::ops::Deref;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// An initiator is writing the letter.
const LOCKED: u64 = 1;
/// The letter does not matter: everything goes.
const EVERYTHING: u64 = 1 << 1;
/// The CPU is offline: it uses no translations until it has flushed everything.
const CLOSED: u64 = 1 << 2;
const POSTED_SHIFT: u32 = 3;
const ONE_POST: u64 = 1 << POSTED_SHIFT;

fn posted(state: u64) -> u64 {
    state >> POSTED_SHIFT
}

/// A request as it travels.
#[derive(Clone, Copy)]
pub(crate) struct Message {
    space: u64,
    first: u64,
    last: u64,
    request: Request,
}

impl Message {
    /// Whatever is loaded: flush it whole.
    pub(crate) const EVERYTHING: Message = Message {
        space: ANY_SPACE,
        first: 0,
        last: 0,
        request: Request::Full(Scope::Leaf),
    };

    /// Everything of a space that is being retired, tables included.
    pub(crate) fn for_retired(space: SpaceId, generation: u64) -> Message {
        let request = Request::Full(Scope::Tables);
        Message {
            space: space.0,
            first: generation,
            last: generation,
            request,
        }
    }

    fn merge(self, other: Message) -> Message {
        if self.space == other.space && self.space != ANY_SPACE {
            Message {
                space: self.space,
                first: self.first.min(other.first),
                last: self.last.max(other.last),
                // Generations that arrive out of order leave a hole between the two; only
                // neighbours may keep their ranges.
                request: if self.last + 1 >= other.first && other.last + 1 >= self.first {
                    self.request.merge(other.request)
                } else {
                    Request::Full(self.request.scope().max(other.request.scope()))
                },
            }
        } else {
            let scope = self.request.scope().max(other.request.scope());
            Message {
                request: Request::Full(scope),
                ..Message::EVERYTHING
            }
        }
    }

    fn write<W: Word>(&self, letter: &Letter<W>) {
        let mut meta = if self.request.scope() == Scope::Tables {
            META_TABLES
        } else {
            0
        };
        match &self.request {
            Request::Empty => {}
            Request::Full(_) => meta |= META_FULL,
            Request::Ranges(ranges, _) => {
                let list = ranges.as_slice();
                meta |= list.len() as u64;
                for (word, &range) in letter.ranges.iter().zip(list) {
                    word.store(request::pack(range), Relaxed);
                }
            }
        }
        letter.space.store(self.space, Relaxed);
        letter.first.store(self.first, Relaxed);
        letter.last.store(self.last, Relaxed);
        letter.meta.store(meta, Relaxed);
    }

    #[inline]
    fn read<W: Word>(letter: &Letter<W>, meta: u64) -> Message {
        let scope = if meta & META_TABLES != 0 {
            Scope::Tables
        } else {
            Scope::Leaf
        };
        let count = (meta & META_COUNT) as usize;
        Message {
            space: letter.space.load(Relaxed),
            first: letter.first.load(Relaxed),
            last: letter.last.load(Relaxed),
            request: if meta & META_FULL != 0 {
                Request::Full(scope)
            } else {
                request::from_packed(
                    letter.ranges[..count].iter().map(|w| w.load(Relaxed)),
                    scope,
                )
            },
        }
    }
}

/// Requests on their way.
///
/// From [`Engine::begin_posting`] to [`Engine::send`] interrupts are masked, so that nothing runs on
/// this CPU in between: a handler or a thread that flushed there would find its request merged with one
/// whose interrupt was not sent yet, and wait for a target that nobody has interrupted.
pub(crate) struct Posting {
    targets: CpuSet,
    interrupts: CpuSet,
    /// Whether the outbox is this flush's until all targets are done.
    outbox: bool,
    were_on: bool,
}

/// What became of a post.
enum Post {
    /// An interrupt must be sent.
    Interrupt,
    /// An interrupt is on its way already.
    Merged,
    /// The CPU is offline and uses no translations.
    Offline,
}

impl<H: Hardware> Engine<'_, H> {
    /// Flushes the requests of a batch on every CPU that may hold what they cover.
    ///
    /// When it returns, no CPU uses a covered translation in any later user access.
    pub(crate) fn flush_pending<S>(&self, pending: &[Pending<S>])
    where
        S: Deref<Target = AddressSpace<H>>,
    {
        if self.features.broadcast {
            self.broadcast_pending(pending);
            return;
        }
        let me = self.hw.this_cpu();
        let scope = pending
            .iter()
            .map(|entry| entry.request.scope())
            .max()
            .unwrap_or_default();
        // One letter fits into the outbox: a flush of several spaces sends "everything" from there.
        let one_letter = !self.policy.inline_requests && pending.len() > 1;
        let mut mine = Stack::<Message, { crate::batch::SPACES }>::new();
        let mut posting = self.begin_posting(me);
        for entry in pending {
            self.count(me, Counter::Requested, 1);
            let request = self.limited(me, entry.request);
            // The bump comes after the table writes and before the set of CPUs is read; a CPU that
            // loads the space enters the set before it reads the generation. So either we see
            // the CPU, or the CPU sees the generation.
            let last = if self.hw.mutant(Mutant::SkipGenerationBump) {
                entry.space.flushes().generation
            } else {
                entry.space.next_generation()
            };
            let message = Message {
                space: entry.space.id().0,
                first: last,
                last,
                request,
            };
            mine.push(message);
            let sent = if one_letter {
                Message {
                    request: Request::Full(scope),
                    ..Message::EVERYTHING
                }
            } else {
                message
            };
            let mut loaded = entry.space.loaded.snapshot(self.cpus.len(), SeqCst);
            loaded.remove(me);
            if !loaded.is_empty() {
                self.post_to(me, &loaded, &sent, &mut posting);
            }
        }
        let nobody = posting.targets.is_empty();
        self.count(me, Counter::SkippedNoTarget, u64::from(nobody));
        self.send(me, &posting);
        let flush_here = || {
            if !self.hw.mutant(Mutant::SkipLocalFlush) {
                let were_on = self.hw.mask_interrupts();
                for message in mine.as_slice() {
                    self.obey(me, message);
                }
                self.hw.restore_interrupts(were_on);
            }
        };
        if self.policy.concurrent {
            flush_here();
            self.wait(me, posting, scope);
        } else {
            self.wait(me, posting, scope);
            flush_here();
        }
    }

    /// Ends the debt of a batch that nobody but this CPU has to hear of; `false`, and nothing was
    /// done, if somebody else has the space loaded.
    ///
    /// No table was written since the debt was raised. It, the set and a CPU that loads the space
    /// are as in [`Engine::flush_pending`], with the debt in the generation's place: see
    /// [`crate::space`].
    #[inline]
    pub(crate) fn flush_alone(
        &self,
        me: CpuId,
        space: &AddressSpace<H>,
        request: &Request,
    ) -> bool {
        if self.features.broadcast || !space.loaded.is_within(me, self.cpus.len(), SeqCst) {
            return false;
        }
        let cpu = &self.cpus[me.index()];
        let bump = !self.hw.mutant(Mutant::SkipGenerationBump);
        let recorded = !self.hw.mutant(Mutant::DebtNotRecorded);
        let here = || cpu.private.space.load(Relaxed) == space.id().0;
        let looked = here();
        // Nothing may come between the look at what is loaded and what is done for it: a thread that
        // preempts this one may leave another space's slot behind, for a moment.
        let were_on = self.hw.mask_interrupts();
        let here = if self.hw.mutant(Mutant::LoadedSpaceStale) {
            looked
        } else {
            here()
        };
        if here {
            let running = cpu.published.state.load(Relaxed) == RUNNING;
            if running {
                let slot = &cpu.slots()[cpu.private.slot.load(Relaxed) as usize];
                let caught_up = slot.generation.load(Relaxed);
                if !self.hw.mutant(Mutant::SkipLocalFlush) {
                    self.invalidate_here(me, slot, &self.limited(me, *request));
                }
                // The flush first: whoever sees the debt gone relies on it. Somebody else's request
                // that came in between stays behind, and the next one closes the gap.
                if space.deferred_alone(bump, recorded) == caught_up {
                    slot.generation.store(caught_up + 1, Relaxed);
                }
            }
            if !running {
                self.hw.restore_interrupts(were_on);
                return false;
            }
        } else {
            space.deferred_alone(bump, recorded);
        }
        self.hw.restore_interrupts(were_on);
        cpu.stats.add(Counter::Requested, 1);
        cpu.stats.add(Counter::SkippedNoTarget, 1);
        true
    }

    /// Invalidates on this CPU what a request for the loaded space says. Interrupts are masked.
    fn invalidate_here(&self, me: CpuId, slot: &crate::Slot<H>, request: &Request) {
        match request {
            Request::Ranges(ranges, scope) => {
                let tag = self.loaded_tag(me);
                let scope = if self.hw.mutant(Mutant::TablesFlushedAsLeaf) {
                    Scope::Leaf
                } else {
                    *scope
                };
                self.count(me, Counter::FlushedRanges, 1);
                for &range in ranges.as_slice() {
                    let range = self.covered(range);
                    self.hw.invalidate(Invalidate::Range { tag, range, scope });
                }
            }
            Request::Empty => {}
            Request::Full(_) => self.flush_tag(me, slot),
        }
    }

    /// What of a range is invalidated: all of it.
    #[inline]
    fn covered(&self, range: PageRange) -> PageRange {
        let stride = range.stride.pages();
        if range.pages > stride && self.hw.mutant(Mutant::RangeLosesTail) {
            let pages = range.pages - stride;
            return PageRange { pages, ..range };
        }
        range
    }

    /// [`Engine::flush_pending`] on a machine whose invalidations reach every CPU without an interrupt.
    fn broadcast_pending<S>(&self, pending: &[Pending<S>])
    where
        S: Deref<Target = AddressSpace<H>>,
    {
        let me = self.hw.this_cpu();
        self.fence_before_tag();
        let mut sent = false;
        for entry in pending {
            self.count(me, Counter::Requested, 1);
            entry.space.next_generation();
            if let Some(tag) = self.broadcast_tag(&entry.space) {
                sent |= self.broadcast_request(me, tag, self.limited(me, entry.request));
            }
        }
        if sent {
            self.complete(me);
        }
    }

    /// Makes the table stores so far visible to every walker before a tag is read.
    pub(crate) fn fence_before_tag(&self) {
        if !self.hw.mutant(Mutant::BroadcastSkipsFence) {
            self.hw.fence();
        }
    }

    /// Starts the broadcasts of a request; whether there were any.
    pub(crate) fn broadcast_request(&self, me: CpuId, tag: Tag, request: Request) -> bool {
        match request {
            Request::Empty => return false,
            Request::Full(_) if self.hw.mutant(Mutant::WholeTagStaysLocal) => {
                self.hw.invalidate(Invalidate::Tag(tag));
            }
            Request::Full(_) => {
                self.count(me, Counter::Broadcasts, 1);
                self.hw.broadcast(Invalidate::Tag(tag));
            }
            Request::Ranges(ranges, scope) => {
                let scope = if self.hw.mutant(Mutant::TablesFlushedAsLeaf) {
                    Scope::Leaf
                } else {
                    scope
                };
                for &range in ranges.as_slice() {
                    let range = self.covered(range);
                    self.count(me, Counter::Broadcasts, range.strides());
                    self.hw.broadcast(Invalidate::Range { tag, range, scope });
                }
            }
        }
        true
    }

    /// Waits for this CPU's broadcasts.
    pub(crate) fn complete(&self, me: CpuId) {
        if self.hw.mutant(Mutant::SkipBarrier) {
            return;
        }
        self.count(me, Counter::Barriers, 1);
        self.hw.complete_broadcasts();
    }

    pub(crate) fn limited(&self, me: CpuId, request: Request) -> Request {
        let limited = request.limited(self.features.full_above);
        if limited != request {
            self.count(me, Counter::EscalatedLength, 1);
        }
        limited
    }

    /// Masks interrupts until the requests that follow are sent.
    pub(crate) fn begin_posting(&self, me: CpuId) -> Posting {
        let unmasked = self.hw.mutant(Mutant::PostingPreempted);
        let were_on = !unmasked && self.hw.mask_interrupts();
        // A flush that this one has preempted may still wait for targets that read the outbox. Then
        // what is posted here is "everything", which needs no letter.
        let busy = &self.cpus[me.index()].outbox.state;
        let outbox = !self.policy.inline_requests
            && (busy.load(Relaxed) == 0 || self.hw.mutant(Mutant::OutboxOverwritten));
        if outbox {
            busy.store(1, Relaxed);
        }
        Posting {
            targets: CpuSet::EMPTY,
            interrupts: CpuSet::EMPTY,
            outbox,
            were_on,
        }
    }

    /// Posts a message to those of `cpus` that need it.
    pub(crate) fn post_to(
        &self,
        me: CpuId,
        cpus: &CpuSet,
        message: &Message,
        posting: &mut Posting,
    ) {
        let tables = message.request.scope() == Scope::Tables;
        if posting.outbox {
            // The targets of this CPU's last flush have all flushed, so nobody reads the outbox;
            // those of this flush read the same letter as before.
            message.write(&self.cpus[me.index()].outbox.letter);
        }
        for cpu in cpus.iter().filter(|&cpu| cpu != me) {
            match self.cpus[cpu.index()].published.state.load(SeqCst) {
                // It uses no user translation now, and compares generations before it does again.
                // But its walker may follow the root at any time, so freed tables concern it.
                LAZY if !tables || self.hw.mutant(Mutant::LazySkippedForTables) => {
                    self.count(me, Counter::SkippedLazy, 1);
                    continue;
                }
                LEFT => {
                    self.count(me, Counter::SkippedLeft, 1);
                    continue;
                }
                _ => {}
            }
            if self.hw.mutant(Mutant::SkipPost) {
                continue;
            }
            match self.post(me, cpu, message, posting.outbox) {
                Post::Interrupt => {
                    posting.targets.insert(cpu);
                    posting.interrupts.insert(cpu);
                }
                Post::Merged => {
                    self.count(me, Counter::Merged, 1);
                    posting.targets.insert(cpu);
                }
                Post::Offline => self.count(me, Counter::SkippedOffline, 1),
            }
        }
    }

    /// Interrupts the targets that must be, and lets interrupts in on this CPU again.
    pub(crate) fn send(&self, me: CpuId, posting: &Posting) {
        if !posting.interrupts.is_empty() && !self.hw.mutant(Mutant::SkipInterrupt) {
            self.count(me, Counter::Shootdowns, 1);
            self.count(me, Counter::Sent, posting.interrupts.len() as u64);
            self.hw.interrupt(&posting.interrupts);
        }
        self.hw.restore_interrupts(posting.were_on);
    }

    fn post(&self, me: CpuId, target: CpuId, message: &Message, outbox: bool) -> Post {
        let cpu = &self.cpus[target.index()];
        let state = &cpu.inbox.state;
        // Acquire: who finds it offline has its accesses behind it.
        let mut seen = state.load(Acquire);
        let before = loop {
            if seen & CLOSED != 0 {
                return Post::Offline;
            }
            if seen & LOCKED != 0 {
                // Another initiator is writing. Covering both needs no writing at all.
                match state.compare_exchange(seen, (seen + ONE_POST) | EVERYTHING, SeqCst, Acquire)
                {
                    Ok(before) => {
                        self.count(me, Counter::EscalatedContention, 1);
                        break before;
                    }
                    Err(now) => seen = now,
                }
                continue;
            }
            // Relaxed: a handler that still reads the letter notices in its second look that it changed.
            let idle = cpu.acks.done.load(Relaxed) == posted(seen);
            let locked = if idle {
                (seen & !EVERYTHING) | LOCKED
            } else {
                seen | LOCKED
            };
            // Relaxed: what the letter holds came with `seen`, and changes only as the count does.
            match state.compare_exchange(seen, locked, Relaxed, Acquire) {
                Ok(_) => {
                    // Pairs with the handler's acquire fence: a handler that reads any word we
                    // write from here on sees LOCKED, or a later count, in its second look.
                    H::Word::fence(Release);
                    self.write_inbox(me, &cpu.inbox, message, idle, outbox);
                    let before = state.fetch_add(ONE_POST - LOCKED, SeqCst);
                    if before & CLOSED != 0 {
                        // It went offline meanwhile, and answers nobody until it is back.
                        return Post::Offline;
                    }
                    break before;
                }
                Err(now) => seen = now,
            }
        };
        if cpu.acks.received.load(SeqCst) >= posted(before) {
            Post::Interrupt
        } else {
            Post::Merged
        }
    }

    fn write_inbox(
        &self,
        me: CpuId,
        inbox: &Inbox<H::Word>,
        message: &Message,
        idle: bool,
        outbox: bool,
    ) {
        if !self.policy.inline_requests {
            if idle && outbox {
                let meta = META_ELSEWHERE | u64::from(me.0) << META_SENDER_SHIFT;
                inbox.letter.meta.store(meta, Relaxed);
            } else {
                // Two letters at two places, or no place for one: only "everything" covers them.
                inbox.state.fetch_or(EVERYTHING, Relaxed);
            }
            return;
        }
        if idle || self.hw.mutant(Mutant::MergeOverwrites) {
            message.write(&inbox.letter);
        } else {
            let pending = Message::read(&inbox.letter, inbox.letter.meta.load(Relaxed));
            let merged = pending.merge(*message);
            Message {
                request: merged.request.limited(self.features.full_above),
                ..merged
            }
            .write(&inbox.letter);
        }
    }

    /// Waits until every target has flushed, or, where that is enough, has taken the request.
    pub(crate) fn wait(&self, me: CpuId, posting: Posting, scope: Scope) {
        // A receipt comes before the letter was read: enough only if the letter is the target's own.
        let receipt = self.policy.asynchronous
            && self.policy.inline_requests
            && (scope == Scope::Leaf || self.hw.mutant(Mutant::EarlyAckForTables));
        if !self.hw.mutant(Mutant::SkipWait) {
            self.wait_for(me, &posting.targets, receipt);
        }
        if posting.outbox {
            self.cpus[me.index()].outbox.state.store(0, Relaxed);
        }
    }

    fn wait_for(&self, me: CpuId, targets: &CpuSet, receipt: bool) {
        for target in targets.iter() {
            let cpu = &self.cpus[target.index()];
            // Acquire: a target that is found offline has left its root.
            let state = cpu.inbox.state.load(Acquire);
            if state & CLOSED != 0 && !self.hw.mutant(Mutant::WaitsForClosedInbox) {
                // The target answered our post as it went, or went before. What is counted above its
                // answer, by an initiator that was writing meanwhile, is answered when it comes back.
                continue;
            }
            // At least the number of our own post: no other word of the inbox may be older.
            let number = posted(state);
            let ack = if receipt {
                &cpu.acks.received
            } else {
                &cpu.acks.done
            };
            self.count(me, Counter::Waited, 1);
            self.count(me, Counter::WaitedReceipt, u64::from(receipt));
            while ack.load(Acquire) < number {
                if self.has_mail(me) && !self.hw.mutant(Mutant::WaiterServesNobody) {
                    self.count(me, Counter::ServedWaiting, 1);
                    self.on_interrupt();
                } else {
                    self.hw.relax();
                }
            }
        }
    }

    fn has_mail(&self, me: CpuId) -> bool {
        let cpu = &self.cpus[me.index()];
        posted(cpu.inbox.state.load(Relaxed)) != cpu.acks.done.load(Relaxed)
    }

    /// Takes and obeys every request in this CPU's inbox: the handler of the shootdown interrupt.
    ///
    /// May be called at any time, from any context that is not inside the engine on the same CPU
    /// with interrupts masked; a spurious call costs two loads. Must not be called from an NMI.
    pub fn on_interrupt(&self) {
        let were_on = self.hw.mask_interrupts();
        let me = self.hw.this_cpu();
        let cpu = &self.cpus[me.index()];
        loop {
            let seen = cpu.inbox.state.load(SeqCst);
            let number = posted(seen);
            if cpu.acks.done.load(Relaxed) == number {
                if self.hw.mutant(Mutant::SpuriousAcknowledges) {
                    cpu.acks.received.store(number + 1, Relaxed);
                    cpu.acks.done.store(number + 1, Relaxed);
                }
                break;
            }
            cpu.acks.received.swap(number, SeqCst);
            let message = self.take(&cpu.inbox, seen);
            if self.hw.mutant(Mutant::AckBeforeFlush) {
                cpu.acks.done.store(number, Relaxed);
            }
            if !self.hw.mutant(Mutant::HandlerSkipsFlush) {
                // By reference: a message is too long to be copied in every interrupt.
                self.obey(me, message.as_ref().unwrap_or(&Message::EVERYTHING));
            }
            // Release: whoever sees the request done sees it flushed.
            cpu.acks
                .done
                .store(number, self.weakened(Mutant::RelaxedDone, Release));
        }
        self.hw.restore_interrupts(were_on);
    }

    /// The pending message, or `None` if only flushing everything covers it.
    #[inline]
    fn take(&self, inbox: &Inbox<H::Word>, seen: u64) -> Option<Message> {
        if seen & (LOCKED | EVERYTHING) != 0 && !self.hw.mutant(Mutant::TakeIgnoresLock) {
            return None;
        }
        let meta = inbox.letter.meta.load(Relaxed);
        let message = if meta & META_ELSEWHERE != 0 {
            let sender = (meta >> META_SENDER_SHIFT) as usize;
            // The sender waits for us before it writes its outbox again.
            let letter = &self.cpus.get(sender)?.outbox.letter;
            Message::read(letter, letter.meta.load(Relaxed))
        } else {
            Message::read(&inbox.letter, meta)
        };
        H::Word::fence(Acquire);
        let settled = self.hw.mutant(Mutant::TakeIgnoresLock) || inbox.state.load(Relaxed) == seen;
        settled.then_some(message)
    }

    /// Does on this CPU what a message says. Interrupts are masked.
    pub(crate) fn obey(&self, me: CpuId, message: &Message) {
        let cpu = &self.cpus[me.index()];
        let loaded = cpu.private.space.load(Relaxed);
        debug_assert!(loaded != SWITCHING, "interrupts are masked during a switch");
        if loaded == NOTHING || (message.space != ANY_SPACE && message.space != loaded) {
            // Entries that linger under another tag are compared when that tag is loaded again.
            self.count(me, Counter::IgnoredOtherSpace, 1);
            return;
        }
        if cpu.published.state.load(Relaxed) == LAZY {
            // Nobody here needs the space: leave it, and be asked no more.
            self.leave_root(me);
            self.count(me, Counter::Evicted, 1);
            return;
        }
        let slot = &cpu.slots()[cpu.private.slot.load(Relaxed) as usize];
        if message.space == ANY_SPACE {
            self.flush_tag(me, slot);
            return;
        }
        let caught_up = slot.generation.load(Relaxed);
        if message.last <= caught_up {
            self.count(me, Counter::IgnoredGeneration, 1);
            return;
        }
        let next = message.first <= caught_up + 1 || self.hw.mutant(Mutant::GapNotEscalated);
        if next || message.request == Request::Empty {
            self.invalidate_here(me, slot, &message.request);
        } else {
            self.count(me, Counter::EscalatedGap, 1);
            self.flush_tag(me, slot);
        }
        slot.generation.store(message.last, Relaxed);
    }

    /// Flushes the tag that is loaded, whole, and tells the flush clock's readers.
    pub(crate) fn flush_tag(&self, me: CpuId, slot: &crate::Slot<H>) {
        let cpu = &self.cpus[me.index()];
        // Read before the flush: a debt taken while the flush runs is not paid by it.
        let now = self.ledger.now();
        self.count(me, Counter::FlushedFull, 1);
        self.hw.invalidate(Invalidate::Tag(self.loaded_tag(me)));
        let now = if self.hw.mutant(Mutant::ClockReadAfterFlush) {
            self.ledger.now()
        } else {
            now
        };
        slot.flushed_at.store(now, Relaxed);
        cpu.published.flushed_at.store(now, Release);
    }

    /// Leaves whatever root is loaded. Interrupts are masked.
    pub(crate) fn leave_root(&self, me: CpuId) {
        let cpu = &self.cpus[me.index()];
        self.hw.unload_root();
        cpu.private.space.store(NOTHING, Relaxed);
        cpu.published.state.store(LEFT, Release);
    }

    /// Whether user memory may be accessed from an NMI handler or a probe right now.
    ///
    /// `false` while this CPU has acknowledged a flush that it has not done yet, and while it is
    /// between two address spaces or on its way back to one that it had left alone; the caller then
    /// gives up, as for an access that faults. Any other code need not ask: it never runs in those
    /// windows.
    pub fn user_access_allowed(&self) -> bool {
        if self.hw.mutant(Mutant::NmiGuardAlwaysAllows) {
            return true;
        }
        let cpu = &self.cpus[self.hw.this_cpu().index()];
        let loaded = cpu.private.space.load(Relaxed);
        loaded != SWITCHING
            && loaded != NOTHING
            && cpu.published.state.load(Relaxed) == RUNNING
            && cpu.acks.received.load(Relaxed) == cpu.acks.done.load(Relaxed)
    }

    /// Takes this CPU into the protocol. Called on the CPU itself, before it loads its first space
    /// and with interrupts masked or nothing to interrupt.
    pub fn cpu_online(&self) {
        let me = self.hw.this_cpu();
        let cpu = &self.cpus[me.index()];
        for slot in cpu.slots() {
            slot.space.store(NOTHING, Relaxed);
        }
        // Nobody knows what the TLB holds: at boot, the firmware's; later, what was left behind when
        // the CPU went offline.
        if !self.hw.mutant(Mutant::OnlineSkipsFlush) {
            self.hw.invalidate(Invalidate::All);
        }
        cpu.published.flushed_at.store(self.ledger.now(), Release);
        cpu.inbox.state.fetch_and(!CLOSED, Release);
        // A request that was being written when this CPU went offline was counted after its last
        // answer; unanswered, it would make every later initiator believe in an interrupt that
        // nobody sent.
        self.on_interrupt();
    }

    /// Takes this CPU out of the protocol: it leaves its space, answers what is in its inbox and is
    /// asked no more. What its TLB holds is useless without a root, and is flushed when it comes
    /// back. Called on the CPU itself, which from here on touches no user memory until [`Engine::cpu_online`]. `current` is the space that it had loaded, lazily
    /// or not, if any.
    pub fn cpu_offline(&self, current: Option<&AddressSpace<H>>) {
        let were_on = self.hw.mask_interrupts();
        let me = self.hw.this_cpu();
        let cpu = &self.cpus[me.index()];
        self.leave_root(me);
        if let Some(space) = current {
            space.loaded.remove(me, Release);
        }
        let last = cpu.inbox.state.fetch_or(CLOSED, Release);
        if self.features.broadcast {
            self.forget_running_tag(me);
        }
        if !self.hw.mutant(Mutant::OfflineForgetsInbox) {
            cpu.acks.received.store(posted(last), Release);
            cpu.acks.done.store(posted(last), Release);
        }
        self.hw.restore_interrupts(were_on);
    }
}

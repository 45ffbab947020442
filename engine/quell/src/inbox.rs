//! The inbox: the path of a request to a CPU, and of the CPU's acknowledgement back to the initiator.
//!
//! The file is long because it contains all words of this exchange, and both sides of each race next to each other.
//!
//! # Posting
//!
//! Each CPU has one inbox: one cache line, and a second one for requests of more than three ranges. If an initiator
//! finds it idle, it writes its request there. If it finds a request pending, it merges its own into that. If it finds
//! another initiator writing, it doesn't wait. Instead it sets a flag that turns the pending request into "everything",
//! whose words don't matter. So posting never blocks, not even on an initiator whose virtual CPU is preempted.
//!
//! Posting increments `posted`, and the initiator waits until the target's acknowledgement has reached that number. An
//! acknowledgement means "up to number n", never "one less to do". So a spurious, duplicated or late interrupt never
//! acknowledges a flush that wasn't made.
//!
//! We send an interrupt only if every earlier request was already received; otherwise one is on its way. This race has
//! two sides. The target stores `received` and *then* reads `posted` again. The initiator increments `posted` and
//! *then* reads `received`. All four accesses are sequentially consistent, so at least one side sees the other.
//!
//! # Taking
//!
//! The handler takes no lock. It reads the request between two reads of the state. If an initiator was writing, the
//! handler flushes everything instead, which covers every request counted so far.
//!
//! # Closing
//!
//! A CPU that is going offline leaves its root, closes its inbox and answers the requests posted before. An initiator
//! that was writing at that moment still counts its request, and then finds that the target is offline. The CPU answers
//! that number when it comes back. No initiator waits for a closed inbox.

use crate::cpu_set::CpuId;
use crate::flush_info::{
    EncodedRequest, FlushInfo, FlushWords, RequestPlace, SimpleRequest, TakenRequest,
};
use crate::request::Request;
use crate::word::{Word, is_at, name_at};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// A CPU's own request, for its targets to read if it isn't inlined.
#[repr(C, align(64))]
pub(crate) struct Outbox<W> {
    /// Set while targets of this CPU's flush may still read the words.
    busy: W,
    words: FlushWords<W>,
}

impl<W: Word> Outbox<W> {
    pub(crate) fn new() -> Self {
        Outbox { busy: W::new(0), words: FlushWords::new() }
    }

    /// Reserves the outbox for a flush of its own CPU.
    ///
    /// Returns `false` if another flush, preempted by this one, still uses it. Called with interrupts masked.
    pub(crate) fn reserve(&self) -> bool {
        // If this flush has preempted another, that one's targets have yet to read the outbox. [mutant
        // OutboxOverwritten]
        let free = self.busy.load(Relaxed) == 0;
        if free {
            self.busy.store(1, Relaxed);
        }
        free
    }

    /// Writes a request, which every target of the flush reads.
    pub(crate) fn lay_out(&self, laid: &EncodedRequest<'_>) {
        self.words.write(laid);
    }

    /// Releases the outbox. All targets have flushed, so none reads it any more.
    pub(crate) fn release(&self) {
        self.busy.store(0, Relaxed);
    }

    pub(crate) fn word_name(&self, address: usize) -> Option<&'static str> {
        if is_at(&self.busy, address) {
            return Some("outbox.busy");
        }
        self.words.word_name(address).map(|_| "outbox[..]")
    }
}

/// The form in which an initiator posts a request.
#[derive(Clone, Copy)]
pub(crate) enum Post<'i> {
    /// The request itself, in the target's line.
    Inline(&'i EncodedRequest<'i>),
    /// A reference to the outbox of this CPU.
    InOutbox(CpuId),
    /// "Everything", for which no words are written.
    Everything,
}

/// The result of a post.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PostOutcome {
    /// An interrupt must be sent.
    Interrupt,
    /// An interrupt is on its way already.
    Merged,
    /// The CPU is offline and uses no translations.
    Offline,
}

/// The progress that a target must reach before an initiator stops waiting.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum WaitGoal {
    /// The target has taken the request. It flushes before it returns to code that could access user memory.
    Received,
    /// The target has flushed.
    #[default]
    Done,
}

/// An initiator is writing the request.
const LOCKED: u64 = 1;
/// The words don't matter: the target flushes everything.
const EVERYTHING: u64 = 1 << 1;
/// The CPU is offline: it uses no translations until it has flushed everything.
const CLOSED: u64 = 1 << 2;
const POSTED_SHIFT: u32 = 5;
const ONE_POST: u64 = 1 << POSTED_SHIFT;

/// Properties of a pending request that no merge loses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Marks(u64);

impl Marks {
    pub(crate) const NONE: Marks = Marks(0);
    /// The request covers kernel mappings, so "everything" includes these.
    pub(crate) const KERNEL: Marks = Marks(1 << 3);
    /// The target drops the instructions that it has fetched, too.
    pub(crate) const TEXT: Marks = Marks(1 << 4);
    const ALL: u64 = Marks::KERNEL.0 | Marks::TEXT.0;

    #[inline]
    const fn of(state: u64) -> Marks {
        Marks(state & Marks::ALL)
    }

    /// Returns whether no mark is set.
    #[inline]
    pub(crate) const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Returns whether `mark` is set.
    #[inline]
    pub(crate) const fn has(self, mark: Marks) -> bool {
        self.0 & mark.0 != 0
    }
}

/// The state of an inbox as its CPU has read it.
#[derive(Clone, Copy)]
pub(crate) struct InboxState(u64);

fn posted(state: u64) -> u64 {
    state >> POSTED_SHIFT
}

/// The limits of a request. Beyond them it becomes "everything".
#[derive(Clone, Copy)]
pub(crate) struct RequestLimits {
    /// The maximum number of ranges.
    pub(crate) ranges: usize,
    /// The maximum number of strides of all ranges together.
    pub(crate) strides: u64,
}

/// Holds one pending request for a CPU, into which later ones merge.
///
/// Initiators write the first lines, the CPU itself the last one.
#[repr(C)]
pub(crate) struct Inbox<W> {
    line: RequestLine<W>,
    acks: Acks<W>,
}

#[repr(C, align(64))]
struct RequestLine<W> {
    /// The number of requests posted so far, above the flags.
    state: W,
    words: FlushWords<W>,
}

/// The CPU's progress. Both words only grow, and `done <= received <= posted`.
#[repr(align(64))]
struct Acks<W> {
    /// The CPU has taken every request up to this number. It will flush before it runs user code.
    received: W,
    /// The CPU has flushed every request up to this number.
    done: W,
}

impl<W: Word> Inbox<W> {
    /// Makes a closed inbox: its CPU isn't online yet.
    pub(crate) fn new() -> Self {
        Inbox {
            line: RequestLine { state: W::new(CLOSED), words: FlushWords::new() },
            acks: Acks { received: W::new(0), done: W::new(0) },
        }
    }

    /// Posts a request.
    ///
    /// A merged request that exceeds `most` becomes a full one. Calls `contended` if another initiator was writing.
    #[inline(always)]
    pub(crate) fn post(
        &self,
        what: Post<'_>,
        marks: Marks,
        most: RequestLimits,
        mut contended: impl FnMut(),
    ) -> PostOutcome {
        let state = &self.line.state;
        let Marks(marks) = marks;
        // Acquire pairs with `close`, `open` and the post in `post`: if we find the target offline, its accesses are
        // over. If we find a request pending, we read it as its initiator wrote it.
        // A weaker ordering fails the loom race "a CPU goes offline while it is asked".
        let mut seen = state.load(Acquire);
        let before = loop {
            if seen & CLOSED != 0 {
                return PostOutcome::Offline;
            }
            if seen & LOCKED != 0 || matches!(what, Post::Everything) {
                // Another initiator is writing, or this post is "everything" itself. A flag covers both, without words.
                // SeqCst pairs with `serve`: the target sees this post when it reads the state again, or this initiator
                // sees below that all earlier posts were received, and interrupts the target. Otherwise no interrupt
                // would make the target flush.
                // A weaker ordering fails the loom race "a request comes while another is written".
                // Acquire on failure pairs with `close`: if the target is offline by now, its accesses are over.
                // A weaker ordering fails the loom race "a CPU goes offline while its inbox is locked".
                let next = (seen + ONE_POST) | EVERYTHING | marks;
                match state.compare_exchange(seen, next, SeqCst, Acquire) {
                    Ok(before) => {
                        if seen & LOCKED != 0 {
                            contended();
                        }
                        break before;
                    }
                    Err(now) => seen = now,
                }
                continue;
            }
            // Relaxed: a handler that still reads the words notices in its second read of the state that they changed.
            let idle = self.acks.done.load(Relaxed) == posted(seen);
            let locked = if idle {
                (seen & !(EVERYTHING | Marks::ALL)) | LOCKED | marks
            } else {
                seen | LOCKED | marks
            };
            // Relaxed: our Acquire load of `seen` also covers the words, which change only when the count does.
            // Acquire on failure pairs with `close`: if the target is offline by now, its accesses are over.
            // A weaker ordering fails the loom race "a CPU goes offline while it is asked".
            match state.compare_exchange(seen, locked, Relaxed, Acquire) {
                Ok(_) => {
                    // Release pairs with the fence in `take`: a handler that reads any word written from here on sees
                    // LOCKED, or a later count, in its second read of the state. Otherwise it could flush the wrong
                    // ranges.
                    // A weaker ordering fails the loom race "a request comes while another is taken".
                    W::fence(Release);
                    self.write(what, idle, most);
                    // SeqCst pairs with `serve` and the first load in `post`: the target sees this post when it reads
                    // the state again, or this initiator sees below that all earlier posts were received, and
                    // interrupts the target.
                    // A weaker ordering fails the loom race "a request comes while another is taken".
                    let before = state.fetch_add(ONE_POST - LOCKED, SeqCst);
                    if before & CLOSED != 0 {
                        // The CPU is offline by now, and answers this post when it's back.
                        return PostOutcome::Offline;
                    }
                    break before;
                }
                Err(now) => seen = now,
            }
        };
        // SeqCst pairs with `serve`: the initiator posts and then reads here; the target stores here and then looks for
        // posts. One of them sees the other, so we leave out an interrupt only for a post that the target sees.
        // A weaker ordering fails the loom race "a request comes while another is taken".
        if self.acks.received.load(SeqCst) >= posted(before) {
            PostOutcome::Interrupt
        } else {
            PostOutcome::Merged
        }
    }

    #[inline(always)]
    fn write(&self, what: Post<'_>, idle: bool, most: RequestLimits) {
        let words = &self.line.words;
        match what {
            Post::Inline(laid) if idle => words.write(laid),
            // A request is pending, and its initiator waits for it. [mutant MergeOverwrites: bug 33]
            Post::Inline(laid) => self.merge(laid, most),
            Post::InOutbox(sender) if idle => words.refer_to(sender),
            // As in `merge_any`.
            Post::InOutbox(_) | Post::Everything => {
                self.line.state.fetch_or(EVERYTHING, Relaxed);
            }
        }
    }

    /// Merges a request into the pending one.
    fn merge(&self, laid: &EncodedRequest<'_>, most: RequestLimits) {
        let words = &self.line.words;
        // The common case: several CPUs flush one space, mostly all of it.
        if !words.include_whole(laid) {
            self.merge_any(laid, most);
        }
    }

    /// Merges any two requests.
    #[cold]
    fn merge_any(&self, laid: &EncodedRequest<'_>, most: RequestLimits) {
        let words = &self.line.words;
        let mut pending = TakenRequest::new();
        let mut request = Request::Empty;
        match words.read(&mut pending) {
            RequestPlace::Here => {
                pending.include(&laid.info(&mut request), most.ranges);
                pending.limit(most.strides);
                words.write(&pending.info().laid_out());
            }
            // The two requests are in two places, so only "everything" covers both.
            RequestPlace::InOutbox(_) => {
                self.line.state.fetch_or(EVERYTHING, Relaxed);
            }
        }
    }

    /// Returns the number that an initiator waits for, or `None` if the CPU is offline.
    ///
    /// The number is at least that of the initiator's own post. A CPU that is offline has left its root.
    pub(crate) fn awaited(&self) -> Option<u64> {
        // Acquire pairs with `close`: if we find the target offline, its accesses are over.
        // A weaker ordering fails the loom race "a CPU goes offline while it is asked".
        let state = self.line.state.load(Acquire);
        // The target answers posts from before it closed its inbox. A post that was counted later, by an initiator that
        // was writing meanwhile, is answered when the CPU comes back: perhaps never. [mutant WaitsForClosedInbox]
        (state & CLOSED == 0).then_some(posted(state))
    }

    /// Returns whether the CPU has reached this goal for the posts up to `number`.
    #[inline]
    pub(crate) fn has_reached(&self, number: u64, until: WaitGoal) -> bool {
        let ack = match until {
            WaitGoal::Received => &self.acks.received,
            WaitGoal::Done => &self.acks.done,
        };
        // Acquire pairs with `serve` and `close`: the target has flushed, or uses no translation before it has flushed.
        // A weaker ordering fails the loom race "a flush that waits until it is done".
        ack.load(Acquire) >= number
    }

    /// Returns whether a request is pending. Called by the inbox's own CPU.
    #[inline]
    pub(crate) fn has_request(&self) -> bool {
        posted(self.line.state.load(Relaxed)) != self.acks.done.load(Relaxed)
    }

    /// Returns whether the CPU has acknowledged a request that it hasn't flushed yet. Called by that CPU.
    #[inline]
    pub(crate) fn defers_flush(&self) -> bool {
        self.acks.received.load(Relaxed) != self.acks.done.load(Relaxed)
    }

    /// Serves requests until the inbox is empty, and returns their number.
    ///
    /// It acknowledges each request before and after its flush. Most are for one range of a space or for all of it,
    /// without marks. `flush_next` carries these out, or returns `false`. For all others, `flush_any` gets the state
    /// for [`Inbox::read_any`]. Called by the inbox's own CPU with interrupts masked.
    #[inline]
    pub(crate) fn serve(
        &self,
        flush_next: impl Fn(&SimpleRequest) -> bool,
        flush_any: impl Fn(InboxState),
    ) -> u64 {
        let mut times = 0;
        loop {
            // SeqCst pairs with `post`: the target has stored its last receipt before it reads the state here. So it
            // sees a post, or the initiator of that post sees the receipt and sends an interrupt.
            // A weaker ordering fails the loom race "a request comes while another is taken".
            let seen = self.line.state.load(SeqCst);
            let done = self.acks.done.load(Relaxed);
            // We answer only counted posts, up to this number, never a post that is yet to come. [mutant
            // SpuriousAcknowledges: bug 32]
            let number = posted(seen);
            if number == done {
                return times;
            }
            times += 1;
            // SeqCst pairs with `post` and `has_reached`: this CPU looks for posts again after it has stored the
            // receipt. An initiator that waits only for the receipt finds this CPU's accesses over.
            // A weaker ordering fails the loom race "a request comes while another is taken".
            self.acks.received.swap(number, SeqCst);
            let mut lone = None;
            if Marks::of(seen).is_none() {
                lone = self.take(seen, FlushWords::read_lone);
            }
            // Flush before the acknowledgement: an initiator that finds its request done relies on the flush. [mutants
            // HandlerSkipsFlush, AckBeforeFlush]
            if !lone.is_some_and(|lone| flush_next(&lone)) {
                flush_any(InboxState(seen));
            }
            // Release pairs with `has_reached`: an initiator that sees the request done sees it flushed.
            // A weaker ordering fails the loom race "a flush that waits until it is done".
            self.acks.done.store(number, Release);
        }
    }

    /// Reads the pending request of any kind into `taken`, and returns it with its marks.
    ///
    /// Returns "everything" if nothing less covers it. `outbox_of` finds the outbox of an initiator.
    pub(crate) fn read_any<'t, 'o>(
        &self,
        InboxState(seen): InboxState,
        outbox_of: impl Fn(usize) -> Option<&'o Outbox<W>>,
        taken: &'t mut TakenRequest,
    ) -> (FlushInfo<'t>, Marks)
    where
        W: 'o,
    {
        let read = |words: &FlushWords<W>| match words.read(taken) {
            RequestPlace::Here => Some(()),
            // The initiator waits for us before it writes its outbox again.
            RequestPlace::InOutbox(initiator) => match outbox_of(initiator)?.words.read(taken) {
                RequestPlace::Here => Some(()),
                RequestPlace::InOutbox(_) => None,
            },
        };
        let info = match self.take(seen, read) {
            Some(()) => taken.info(),
            None => FlushInfo::EVERYTHING,
        };
        (info, Marks::of(seen))
    }

    /// Reads the pending request. Returns `None` if only a flush of everything covers it, or if `read` does.
    #[inline(always)]
    fn take<T>(&self, seen: u64, read: impl FnOnce(&FlushWords<W>) -> Option<T>) -> Option<T> {
        // While an initiator writes the words, they aren't valid. [mutant TakeIgnoresLock]
        if seen & (LOCKED | EVERYTHING) != 0 {
            return None;
        }
        let taken = read(&self.line.words)?;
        // Acquire pairs with the fence in `post`: if we read any word that an initiator wrote later, the read of the
        // state below finds it changed. Otherwise we could flush a mix of two requests.
        // A weaker ordering fails the loom race "a request comes while another is taken".
        W::fence(Acquire);
        // [mutant TakeIgnoresLock]
        let unchanged = self.line.state.load(Relaxed) == seen;
        unchanged.then_some(taken)
    }

    /// Closes the inbox of a CPU that is going offline, and answers the posted requests.
    ///
    /// The CPU has left its root.
    pub(crate) fn close(&self) {
        // Release pairs with `post` and `awaited`: this CPU has left its root before an initiator finds it offline.
        // A weaker ordering fails the loom race "a CPU goes offline while it is asked".
        let last = self.line.state.fetch_or(CLOSED, Release);
        // Initiators wait for the requests in the inbox. [mutant OfflineForgetsInbox]
        // Release pairs with `has_reached`: this CPU has left its root before an initiator finds its request received.
        // A weaker ordering fails the loom race "a CPU goes offline while its receipt is awaited".
        self.acks.received.store(posted(last), Release);
        // Release pairs with `has_reached`: this CPU has left its root before an initiator finds its request done.
        // A weaker ordering fails the loom race "a CPU goes offline while it is asked".
        self.acks.done.store(posted(last), Release);
    }

    /// Opens the inbox of a CPU that comes online.
    ///
    /// The CPU flushes everything next, and then serves posts that were counted while it was offline. If it left them
    /// unanswered, every later initiator would assume an interrupt that was never sent.
    pub(crate) fn open(&self) {
        // Release pairs with `post` and `flush::posting`: an initiator that finds this CPU online sees the answers that
        // it gave when it was going offline, and doesn't mistake an answered request for a pending one.
        // A weaker ordering fails the loom race "a CPU goes offline and comes back with a request in its inbox".
        self.line.state.fetch_and(!CLOSED, Release);
    }

    pub(crate) fn word_name(&self, address: usize) -> Option<&'static str> {
        let names = [
            (&self.line.state, "inbox.state"),
            (&self.acks.received, "received"),
            (&self.acks.done, "done"),
        ];
        name_at(names, address).or_else(|| self.line.words.word_name(address))
    }
}

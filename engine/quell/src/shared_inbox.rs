//! The shared inbox: how a flush of many CPUs writes and reads a line for every eight of them.
//!
//! An [`Inbox`](crate::inbox) has lines of its own, so an initiator writes one line and reads one for each target. On a
//! machine of hundreds of CPUs these transfers are nearly all of a flush's time. A kernel of such a machine sets
//! [`Hardware::shares_lines_from`](crate::Hardware::shares_lines_from). Then a flush of that many targets writes its
//! request once, into the outbox of its own CPU, and posts a single word to each target. The words of [`GROUP`]
//! neighbours are in one line, and so are their acknowledgements.
//!
//! A shared inbox holds one request, which never merges. If it is not idle, the initiator uses the target's own inbox,
//! whose requests merge. So the rules are few:
//!
//! * A request is posted only if the one before is done. Each post is followed by an interrupt: no other one can be
//!   relied on.
//! * The target acknowledges the receipt after it has read the initiator's outbox, and the initiator keeps its outbox
//!   until every target has.
//! * An initiator waits for its own request alone. If it finds a later one, its own is done.
//!
//! The words of a group are in the state of its first CPU, online or not.

use crate::cpu_set::CpuId;
use crate::inbox::WaitGoal;
use crate::word::Word;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The number of CPUs whose words share a line.
const GROUP: usize = 8;

/// Holds the shared inboxes of neighbouring CPUs: a line of requests, which initiators write, and then a line of
/// acknowledgements, which the CPUs of the group write.
#[repr(align(64))]
pub(crate) struct Group<W>([W; 2 * GROUP]);

/// The shared inbox of one CPU.
pub(crate) struct SharedInbox<'g, W> {
    /// The number of requests posted so far, above the flag and the CPU that posted the last one.
    request: &'g W,
    /// Twice the number of requests done, and one more from the receipt of the next until that is done.
    ack: &'g W,
}

/// The shared inbox of the CPU that executes the call, with interrupts masked.
pub(crate) struct OwnSharedInbox<'g, W> {
    inbox: SharedInbox<'g, W>,
    /// The same as `inbox.ack`, in a line that no other CPU reads.
    acknowledged: &'g W,
}

/// A request in a shared inbox, as its target finds it.
pub(crate) struct SharedRequest {
    number: u64,
    /// The CPU whose outbox holds it.
    pub(crate) sender: CpuId,
}

/// The CPU is online.
const OPEN: u64 = 1 << 16;
const POSTED_SHIFT: u32 = 17;

fn posted(request: u64) -> u64 {
    request >> POSTED_SHIFT
}

fn sender(request: u64) -> CpuId {
    CpuId(request as u16)
}

impl<W: Word> Group<W> {
    /// Makes closed inboxes: no CPU is online yet.
    pub(crate) fn new() -> Self {
        Group(core::array::from_fn(|_| W::new(0)))
    }

    /// Returns the CPU in whose state the group of `cpu` is.
    #[inline]
    pub(crate) fn first(cpu: CpuId) -> CpuId {
        CpuId(cpu.0 - cpu.0 % GROUP as u16)
    }

    /// Returns the inbox of `cpu`, which is of this group.
    #[inline]
    pub(crate) fn inbox(&self, cpu: CpuId) -> SharedInbox<'_, W> {
        let index = usize::from(cpu.0) % GROUP;
        SharedInbox {
            request: &self.0[index],
            ack: &self.0[GROUP + index],
        }
    }

    pub(crate) fn word_name(&self, address: usize) -> Option<&'static str> {
        let at = |word: &W| core::ptr::from_ref(word) as usize == address;
        let (requests, acks) = self.0.split_at(GROUP);
        let request = requests.iter().any(at).then_some("shared.request");
        request.or_else(|| acks.iter().any(at).then_some("shared.ack"))
    }
}

impl<W: Word> SharedInbox<'_, W> {
    /// Posts the request in the outbox of `me`. Returns `false`, and posts nothing, if the CPU is offline or has not
    /// done the request before. If it returns `true`, the target must be interrupted.
    #[inline]
    pub(crate) fn post(&self, me: CpuId) -> bool {
        // Relaxed: the target's own inbox decides if it is closed, and the exchange checks the rest.
        let seen = self.request.load(Relaxed);
        // Nobody has read the request before, or its initiator still waits for it. [mutant SharedRequestOverwritten]
        if seen & OPEN == 0 || self.ack.load(Relaxed) != 2 * posted(seen) {
            return false;
        }
        let next = (posted(seen) + 1) << POSTED_SHIFT | OPEN | u64::from(me.0);
        // Release pairs with `pending`: the target finds this request in the outbox, and the tables as they are now.
        // Lost without it: a handler finds a shared request that no interrupt announced.
        let posted = self.request.compare_exchange(seen, next, Release, Relaxed);
        posted.is_ok()
    }

    /// Returns the acknowledgement that ends the wait of `me`, which has posted a request.
    #[inline]
    pub(crate) fn awaited(&self, me: CpuId, until: WaitGoal) -> u64 {
        // Relaxed: this CPU sees its own post, or a later one.
        let seen = self.request.load(Relaxed);
        if sender(seen) != me {
            // Another request was posted, after this one was done.
            return 2 * (posted(seen) - 1);
        }
        2 * posted(seen) - u64::from(until == WaitGoal::Received)
    }

    /// Returns the acknowledgement of everything posted so far.
    pub(crate) fn all_done(&self) -> u64 {
        // Relaxed: the caller has seen the receipt of the request that it means, and so its post.
        2 * posted(self.request.load(Relaxed))
    }

    /// Returns whether the CPU has got this far.
    #[inline]
    pub(crate) fn has_reached(&self, ack: u64) -> bool {
        // Acquire pairs with `receive`, `finish` and `close`: the target has flushed, or uses no translation before it
        // has, and has read the outbox.
        // Lost without it: a shared flush that waits for the receipt.
        self.ack.load(Acquire) >= ack
    }
}

impl<'g, W: Word> OwnSharedInbox<'g, W> {
    #[inline]
    pub(crate) fn new(inbox: SharedInbox<'g, W>, acknowledged: &'g W) -> Self {
        OwnSharedInbox {
            inbox,
            acknowledged,
        }
    }

    /// Returns whether a request is pending.
    #[inline]
    pub(crate) fn has_request(&self) -> bool {
        self.acknowledged.load(Relaxed) != self.inbox.all_done()
    }

    /// Returns whether the CPU has acknowledged a request that it has not flushed yet.
    #[inline]
    pub(crate) fn defers_flush(&self) -> bool {
        !self.acknowledged.load(Relaxed).is_multiple_of(2)
    }

    /// Returns the pending request, if any.
    #[inline]
    pub(crate) fn pending(&self) -> Option<SharedRequest> {
        // Acquire pairs with `post`: the outbox holds the request, and this CPU walks the tables as they are now.
        // Lost without it: a handler finds a shared request that no interrupt announced.
        let seen = self.inbox.request.load(Acquire);
        let number = posted(seen);
        let sender = sender(seen);
        (self.acknowledged.load(Relaxed) != 2 * number).then_some(SharedRequest { number, sender })
    }

    /// Acknowledges that the request was read. The CPU flushes before it returns to code that could access user memory.
    #[inline]
    pub(crate) fn receive(&self, request: &SharedRequest) {
        let ack = 2 * request.number - 1;
        // First: an NMI handler that comes in between must find that this CPU defers a flush.
        self.acknowledged.store(ack, Relaxed);
        // Release pairs with `has_reached`: this CPU's accesses are over for an initiator that waits for the receipt
        // alone, and it has read the outbox.
        // Lost without it: a shared flush that waits for the receipt.
        self.inbox.ack.store(ack, Release);
    }

    /// Acknowledges that the request is done.
    #[inline]
    pub(crate) fn finish(&self, request: &SharedRequest) {
        self.acknowledge(2 * request.number);
    }

    fn acknowledge(&self, ack: u64) {
        // Release pairs with `has_reached`: an initiator that sees the request done sees it flushed, or sees that this
        // CPU has left its root.
        // Lost without it: a shared flush that waits until it is done.
        self.inbox.ack.store(ack, Release);
        self.acknowledged.store(ack, Relaxed);
    }

    /// Closes the inbox of a CPU that has left its root and goes offline. Answers the request in it.
    pub(crate) fn close(&self) {
        // Relaxed: an initiator that finds it closed uses the CPU's own inbox, and one whose exchange came first finds
        // the answer.
        let last = self.inbox.request.fetch_and(!OPEN, Relaxed);
        // An initiator waits for the request. [mutant OfflineForgetsInbox]
        self.acknowledge(2 * posted(last));
    }

    /// Opens the inbox of a CPU that is back and flushes everything next.
    pub(crate) fn open(&self) {
        // Relaxed: there is no request in it.
        self.inbox.request.fetch_or(OPEN, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;

    #[test]
    fn a_request_is_posted_only_when_the_one_before_is_done() {
        let group = Group::<AtomicU64>::new();
        let acknowledged = AtomicU64::new(0);
        let target = CpuId(13);
        let inbox = group.inbox(target);
        let own = OwnSharedInbox::new(group.inbox(target), &acknowledged);
        let (first, second) = (CpuId(0), CpuId(8191));
        assert!(!inbox.post(first), "closed");
        own.open();
        assert!(!own.has_request() && inbox.post(first));
        assert!(own.has_request() && !inbox.post(second));
        let request = own.pending().expect("it was posted");
        assert_eq!(request.sender, first);
        let receipt = inbox.awaited(first, WaitGoal::Received);
        let done = inbox.awaited(first, WaitGoal::Done);
        assert!(!inbox.has_reached(receipt));
        own.receive(&request);
        assert!(inbox.has_reached(receipt) && !inbox.has_reached(done));
        assert!(own.defers_flush() && !inbox.post(second), "not flushed yet");
        own.finish(&request);
        assert!(inbox.has_reached(done) && !own.defers_flush() && !own.has_request());
        assert!(inbox.post(second));
        // The first does not wait for the second.
        assert!(inbox.has_reached(inbox.awaited(first, WaitGoal::Done)));
        assert!(!inbox.has_reached(inbox.awaited(second, WaitGoal::Received)));
        own.close();
        assert!(inbox.has_reached(inbox.awaited(second, WaitGoal::Done)));
        assert!(!inbox.post(first), "closed");
    }
}

//! The shared inbox: a flush with many targets writes and reads one line for every eight of them.
//!
//! An [`Inbox`](crate::inbox) has lines of its own, so an initiator writes one line and reads one line for each target.
//! On a machine with hundreds of CPUs these transfers take nearly all of a flush's time. A kernel of such a machine
//! sets [`Hardware::shares_lines_from`](crate::Hardware::shares_lines_from). Then a flush with that many targets writes
//! its request once, into the outbox of its own CPU, and posts a single word to each target. The words of [`GROUP`]
//! neighbouring CPUs share a line, and so do their acknowledgements.
//!
//! A shared inbox holds one request, which never merges. If it isn't idle, the initiator uses the target's own inbox,
//! whose requests merge. So there are few rules:
//!
//! * We post a request only if the one before is done, and send an interrupt after each post, because no earlier
//!   interrupt is on its way.
//! * The target acknowledges the receipt after it has read the initiator's outbox, and the initiator doesn't reuse its
//!   outbox until every target has acknowledged.
//! * An initiator waits only for its own request. If it finds a later one, its own is done.
//!
//! The state of a group's first CPU, online or not, contains the words of the group.

use crate::cpu_set::CpuId;
use crate::inbox::WaitGoal;
use crate::word::Word;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The number of CPUs whose words share a line.
const GROUP: usize = 8;

/// The shared inboxes of neighbouring CPUs.
///
/// A line of requests, which initiators write, precedes a line of acknowledgements, which the CPUs of the group write.
#[repr(align(64))]
pub(crate) struct Group<W>([W; 2 * GROUP]);

/// The shared inbox of one CPU.
pub(crate) struct SharedInbox<'g, W> {
    /// The number of requests posted so far, above the flag and the last sender's number.
    request: &'g W,
    /// Twice the number of requests done, plus 1 while the next one is received but not done.
    ack: &'g W,
}

/// The shared inbox of the CPU that executes the call, with interrupts masked.
pub(crate) struct OwnSharedInbox<'g, W> {
    inbox: SharedInbox<'g, W>,
    /// The same as `inbox.ack`, in a line that no other CPU reads.
    acknowledged: &'g W,
}

/// A request that a target has found in its shared inbox.
pub(crate) struct SharedRequest {
    number: u64,
    /// The CPU whose outbox contains the request.
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

    /// Returns the CPU whose state contains the group of `cpu`.
    #[inline]
    pub(crate) fn first(cpu: CpuId) -> CpuId {
        CpuId(cpu.0 - cpu.0 % GROUP as u16)
    }

    /// Returns the inbox of `cpu`, which belongs to this group.
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
    /// Posts the request in the outbox of `me`. Returns `false`, and posts nothing, if the inbox is busy or closed.
    ///
    /// The inbox is closed while its CPU is offline. If this returns `true`, interrupt the target.
    #[inline]
    pub(crate) fn post(&self, me: CpuId) -> bool {
        // Relaxed: if this inbox is closed, the initiator uses the target's own inbox, and the exchange checks the
        // rest.
        let seen = self.request.load(Relaxed);
        // The target has yet to read the last request, or its initiator still waits for it. [mutant
        // SharedRequestOverwritten]
        if seen & OPEN == 0 || self.ack.load(Relaxed) != 2 * posted(seen) {
            return false;
        }
        let next = (posted(seen) + 1) << POSTED_SHIFT | OPEN | u64::from(me.0);
        // Release pairs with `pending`: the target finds this request in the outbox, and the tables as they are now.
        // A weaker ordering fails the loom race "a handler finds a shared request that no interrupt announced".
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
        // Relaxed: the caller has seen the receipt of the request that it waits for, and so its post.
        2 * posted(self.request.load(Relaxed))
    }

    /// Returns whether the CPU's acknowledgement has reached `ack`.
    #[inline]
    pub(crate) fn has_reached(&self, ack: u64) -> bool {
        // Acquire pairs with `receive`, `finish` and `close`: the target has read the outbox, and it has flushed or
        // uses no translation before it has flushed.
        // A weaker ordering fails the loom race "a shared flush that waits for the receipt".
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

    #[inline]
    pub(crate) fn has_request(&self) -> bool {
        self.acknowledged.load(Relaxed) != self.inbox.all_done()
    }

    /// Returns whether the CPU has acknowledged a request that it hasn't flushed yet.
    #[inline]
    pub(crate) fn defers_flush(&self) -> bool {
        !self.acknowledged.load(Relaxed).is_multiple_of(2)
    }

    #[inline]
    pub(crate) fn pending(&self) -> Option<SharedRequest> {
        // Acquire pairs with `post`: the outbox contains the request, and this CPU walks the tables as they are now.
        // A weaker ordering fails the loom race "a handler finds a shared request that no interrupt announced".
        let seen = self.inbox.request.load(Acquire);
        let number = posted(seen);
        let sender = sender(seen);
        (self.acknowledged.load(Relaxed) != 2 * number).then_some(SharedRequest { number, sender })
    }

    /// Acknowledges that the request was read.
    ///
    /// The CPU flushes before it returns to code that could access user memory.
    #[inline]
    pub(crate) fn receive(&self, request: &SharedRequest) {
        let ack = 2 * request.number - 1;
        // Store this first: an NMI handler that comes in between must find that this CPU defers a flush.
        self.acknowledged.store(ack, Relaxed);
        // Release pairs with `has_reached`: if an initiator waits only for the receipt, it finds this CPU's accesses
        // over and its outbox read.
        // A weaker ordering fails the loom race "a shared flush that waits for the receipt".
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
        // A weaker ordering fails the loom race "a shared flush that waits until it is done".
        self.inbox.ack.store(ack, Release);
        self.acknowledged.store(ack, Relaxed);
    }

    /// Closes the inbox of a CPU that is going offline, and answers its request.
    ///
    /// The CPU has left its root.
    pub(crate) fn close(&self) {
        // Relaxed: an initiator that finds the inbox closed uses the CPU's own inbox. If its exchange came first, it
        // finds the answer.
        let last = self.inbox.request.fetch_and(!OPEN, Relaxed);
        // An initiator waits for the request. [mutant OfflineForgetsInbox]
        self.acknowledge(2 * posted(last));
    }

    /// Opens the inbox of a CPU that comes online and flushes everything next.
    pub(crate) fn open(&self) {
        // Relaxed: the inbox is empty.
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
        // The first initiator doesn't wait for the second.
        assert!(inbox.has_reached(inbox.awaited(first, WaitGoal::Done)));
        assert!(!inbox.has_reached(inbox.awaited(second, WaitGoal::Received)));
        own.close();
        assert!(inbox.has_reached(inbox.awaited(second, WaitGoal::Done)));
        assert!(!inbox.post(first), "closed");
    }
}

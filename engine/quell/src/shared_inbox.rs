//! The shared inbox: a flush with many targets writes and reads one line for every 32 of them.
//!
//! An [`Inbox`](crate::inbox) has lines of its own, so an initiator writes one line and reads one line for each target.
//! On a machine with hundreds of CPUs these transfers take nearly all of a flush's time. A kernel of such a machine
//! sets [`Hardware::shares_lines_from`](crate::Hardware::shares_lines_from). Then a flush with that many targets writes
//! its request once for each *cluster* of 32 neighbouring CPUs. The targets count their answers in a tree: the last
//! target of each *group* of a cluster counts its group, and the last group tells the initiator.
//!
//! A shared inbox holds one request, which never merges. While a request is in it, other initiators use the targets'
//! own inboxes, whose requests merge. So no initiator waits to post, and there are few rules:
//!
//! * The word `turns` has a bit for each CPU, which an initiator toggles to post. A CPU has a request if this bit
//!   differs from the parity of the number of requests that it has done. So it answers each request once, whatever
//!   interrupts come.
//! * A request changes only after each of its targets has answered. So a target reads it without a check.
//! * `turns` also has a bit for each CPU that is online. So a post and the end of a CPU come one after the other: either
//!   the CPU finds the request and answers it, or the initiator finds the CPU offline.
//! * We interrupt every target, because it may have taken the interrupt for an earlier request before this post.
//!
//! The words of a cluster are in the state of its first CPU, and the counter of a group is in that of the group's first
//! CPU. These CPUs needn't be online.

use crate::cpu_set::{CpuId, CpuSet};
use crate::flush_info::{SimpleRequest, SimpleWords};
use crate::word::{Word, name_at};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// The number of CPUs that share an inbox. Two bits for each of them fill a word.
pub(crate) const CLUSTER: usize = 32;

/// The shared inbox of a cluster, and a group's counter.
#[repr(C)]
pub(crate) struct SharedInbox<W> {
    line: RequestLine<W>,
    counts: Counts<W>,
}

/// The line that initiators write, and the last target.
#[repr(C, align(64))]
struct RequestLine<W> {
    /// The number of requests, above [`BUSY`] and the number of the last initiator's CPU.
    state: W,
    /// The turn of each CPU. The upper half has a bit for each CPU that is online.
    turns: W,
    /// The targets of the request.
    targets: W,
    request: SimpleWords<W>,
}

/// The answers to a request.
#[repr(align(64))]
struct Counts<W> {
    /// The targets in this group that have answered.
    targets: W,
    /// The groups in this cluster whose targets have all answered.
    groups: W,
}

/// A request is in the inbox, or about to be written.
const BUSY: u64 = 1 << 16;
const ONE_REQUEST: u64 = 1 << 17;

/// A target that has a request and has yet to answer it.
pub(crate) struct SharedRequest {
    pub(crate) request: SimpleRequest,
    targets: u32,
}

/// The shared inbox as one of its CPUs sees it, with interrupts masked.
pub(crate) struct OwnSharedInbox<'e, W> {
    pub(crate) inbox: &'e SharedInbox<W>,
    pub(crate) progress: &'e SharedProgress<W>,
    pub(crate) cpu: CpuId,
}

/// Returns the first CPU of a CPU's cluster.
#[inline]
pub(crate) fn cluster_of(cpu: CpuId) -> CpuId {
    CpuId(cpu.0 - cpu.0 % CLUSTER as u16)
}

/// Returns each cluster that has members of the set: its first CPU, and a bit for each member.
pub(crate) fn clusters(set: &CpuSet) -> impl Iterator<Item = (CpuId, u32)> {
    let halves = |(index, &word): (usize, &u64)| {
        let first = (index * 2 * CLUSTER) as u16;
        let next = first + CLUSTER as u16;
        [(CpuId(first), word as u32), (CpuId(next), (word >> CLUSTER) as u32)]
    };
    let all = set.words().iter().enumerate().flat_map(halves);
    all.filter(|(_, members)| *members != 0)
}

/// Returns the CPUs of a cluster whose bits are set.
pub(crate) fn members(first: CpuId, mut bits: u32) -> impl Iterator<Item = CpuId> {
    core::iter::from_fn(move || {
        let next = bits.trailing_zeros() as u16;
        // There is a lowest bit to clear unless none is left.
        bits &= bits.checked_sub(1)?;
        Some(CpuId(first.0 + next))
    })
}

/// Returns the first CPU of a CPU's group.
#[inline]
pub(crate) fn group_of<W: Word>(cpu: CpuId) -> CpuId {
    CpuId(cpu.0 - cpu.0 % W::GROUP as u16)
}

/// Returns the bits of the CPUs that are in a group with the CPU at `index`.
fn group_mask<W: Word>(index: usize) -> u32 {
    const { assert!(CLUSTER.is_multiple_of(W::GROUP) && W::GROUP < CLUSTER) }
    ((1 << W::GROUP) - 1) << (index - index % W::GROUP)
}

impl<W: Word> SharedInbox<W> {
    /// Makes an inbox whose CPUs are offline.
    pub(crate) fn new() -> Self {
        SharedInbox {
            line: RequestLine {
                state: W::new(0),
                turns: W::new(0),
                targets: W::new(0),
                request: SimpleWords::new(),
            },
            counts: Counts { targets: W::new(0), groups: W::new(0) },
        }
    }

    /// Posts a request to those of the CPUs `wanted` that are online. Returns these: none if the inbox is busy.
    ///
    /// Interrupt them. Called with interrupts masked, by the CPU `me`.
    pub(crate) fn post(&self, me: CpuId, wanted: u32, request: &SimpleRequest) -> u32 {
        let line = &self.line;
        let seen = self.state();
        // Targets have yet to read the request. [mutant SharedRequestOverwritten]
        if seen & BUSY != 0 {
            return 0;
        }
        let number = seen / ONE_REQUEST + 1;
        let taken = (number * ONE_REQUEST) | BUSY | u64::from(me.0);
        // Relaxed: if this succeeds, `state` has returned the latest answer, and all targets have read the last request.
        let took = line.state.compare_exchange(seen, taken, Relaxed, Relaxed);
        if took.is_err() {
            return 0;
        }
        line.request.write(request);
        let mut turns = line.turns.load(Relaxed);
        loop {
            // An offline CPU wouldn't answer. [mutant SharedPostsToOffline]
            let targets = wanted & (turns >> CLUSTER) as u32;
            line.targets.store(targets.into(), Relaxed);
            // Release pairs with `pending`: the target finds this request, and the tables as they are now.
            // A weaker ordering fails the loom race "a handler finds a shared request that no interrupt announced".
            let next = turns ^ u64::from(targets);
            match line.turns.compare_exchange(turns, next, Release, Relaxed) {
                Ok(_) => {
                    if targets == 0 {
                        self.end();
                    }
                    return targets;
                }
                // A CPU has come online or gone offline.
                Err(now) => turns = now,
            }
        }
    }

    /// Returns whether a request of `me` is in the inbox.
    #[inline]
    pub(crate) fn is_busy_for(&self, me: CpuId) -> bool {
        let state = self.state();
        state & BUSY != 0 && state as u16 == me.0
    }

    fn state(&self) -> u64 {
        // Acquire pairs with `end`: all targets have read the request. They have flushed, or use no translation before
        // they have flushed.
        // A weaker ordering fails the loom race "a shared flush that waits for the receipt".
        self.line.state.load(Acquire)
    }

    /// Makes the inbox idle: all targets have answered.
    fn end(&self) {
        // Release pairs with `state`: an initiator sees the flushes of all targets, or that their accesses are over.
        // A weaker ordering fails the loom race "a shared flush that waits for the receipt".
        self.line.state.fetch_and(!BUSY, Release);
    }

    pub(crate) fn word_name(&self, address: usize) -> Option<&'static str> {
        let names = [
            (&self.line.state, "shared.state"),
            (&self.line.turns, "shared.turns"),
            (&self.line.targets, "shared.targets"),
            (&self.counts.targets, "shared.count"),
            (&self.counts.groups, "shared.groups"),
        ];
        let request = || self.line.request.has_word(address);
        name_at(names, address).or_else(|| request().then_some("shared.request"))
    }
}

/// Counts one more. Returns whether all `of` are counted, and begins again if so.
fn is_last<W: Word>(count: &W, of: u32) -> bool {
    // Acquire and release pair with the earlier counts here: the last one tells the initiator of the others' flushes,
    // too.
    // A weaker ordering fails the loom race "two targets answer a shared flush".
    let last = count.fetch_add(1, AcqRel) + 1 == of.into();
    if last {
        // Relaxed: the next request comes after the answer to this one. [mutant SharedCountKept]
        count.store(0, Relaxed);
    }
    last
}

impl<W: Word> OwnSharedInbox<'_, W> {
    fn index(&self) -> usize {
        self.cpu.index() % CLUSTER
    }

    fn has_turn(&self, turns: u64) -> bool {
        turns >> self.index() & 1 != self.progress.0.load(Relaxed) / 2 % 2
    }

    #[inline]
    pub(crate) fn has_request(&self) -> bool {
        self.has_turn(self.inbox.line.turns.load(Relaxed))
    }

    /// Returns this CPU's request, if any.
    #[inline]
    pub(crate) fn pending(&self) -> Option<SharedRequest> {
        let line = &self.inbox.line;
        // Acquire pairs with `post`: the words contain the request, and this CPU walks the tables as they are now.
        // A weaker ordering fails the loom race "a handler finds a shared request that no interrupt announced".
        let has = self.has_turn(line.turns.load(Acquire));
        has.then(|| SharedRequest {
            request: line.request.read(),
            targets: line.targets.load(Relaxed) as u32,
        })
    }

    /// Answers a request, whose words may change from here on. `group` has the counter of this CPU's group.
    pub(crate) fn answer(&self, request: &SharedRequest, group: &SharedInbox<W>) {
        let in_group = |index| (request.targets & group_mask::<W>(index)).count_ones();
        let groups = (0..CLUSTER).step_by(W::GROUP);
        let groups = groups.filter(|&index| in_group(index) != 0).count() as u32;
        if is_last(&group.counts.targets, in_group(self.index()))
            && is_last(&self.inbox.counts.groups, groups)
        {
            self.inbox.end();
        }
    }

    /// Closes this CPU's part of the inbox, and answers its request. The CPU has left its root.
    pub(crate) fn close(&self, group: &SharedInbox<W>) {
        let online = 1 << (CLUSTER + self.index());
        // Relaxed: the exchange in `post` comes before this, and `pending` finds the request. Or it fails, and the
        // initiator uses the CPU's own inbox.
        self.inbox.line.turns.fetch_and(!online, Relaxed);
        // An initiator waits for the request. We look for it when no other can come. [mutants OfflineForgetsInbox,
        // OfflineOverlooksPost]
        let last = self.pending();
        if let Some(request) = last {
            self.progress.finish();
            self.answer(&request, group);
        }
    }

    /// Opens the part of a CPU that comes online, and flushes everything next.
    pub(crate) fn open(&self) {
        let online = 1 << (CLUSTER + self.index());
        // Relaxed: this CPU has no request.
        self.inbox.line.turns.fetch_or(online, Relaxed);
    }
}

/// Counts the requests in its shared inbox that a CPU has done.
///
/// The word holds twice that number, plus 1 while the CPU has answered the next request and has yet to flush.
pub(crate) struct SharedProgress<W>(pub(crate) W);

impl<W: Word> SharedProgress<W> {
    /// Returns a number that changes when this CPU has flushed, or `None` if it has made all flushes that it has
    /// answered.
    pub(crate) fn deferring(&self) -> Option<u64> {
        // Acquire pairs with `finish`: the CPU has flushed.
        // A weaker ordering fails the loom race "a CPU is quiesced after a shared flush".
        let progress = self.0.load(Acquire);
        (!progress.is_multiple_of(2)).then_some(progress)
    }

    /// Returns whether the CPU has answered a request that it hasn't flushed yet. Called by that CPU.
    #[inline]
    pub(crate) fn defers_flush(&self) -> bool {
        !self.0.load(Relaxed).is_multiple_of(2)
    }

    /// Records that this CPU answers a request before it flushes.
    pub(crate) fn defer_flush(&self) {
        // Relaxed: the answer comes after this, and an NMI handler that comes in between runs on this CPU.
        self.0.store(self.0.load(Relaxed) + 1, Relaxed);
    }

    /// Records that this CPU has flushed.
    pub(crate) fn finish(&self) {
        let done = self.0.load(Relaxed) / 2 + 1;
        // Release pairs with `deferring`: the CPU has flushed.
        // A weaker ordering fails the loom race "a CPU is quiesced after a shared flush".
        self.0.store(2 * done, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::Scope;
    use crate::space::SpaceId;
    use core::sync::atomic::AtomicU64;

    /// A cluster of 32 CPUs in four groups.
    struct Cpus {
        inboxes: Vec<SharedInbox<AtomicU64>>,
        progress: Vec<SharedProgress<AtomicU64>>,
    }

    impl Cpus {
        fn online(cpus: u32) -> Self {
            let all = Cpus {
                inboxes: (0..CLUSTER).map(|_| SharedInbox::new()).collect(),
                progress: (0..CLUSTER).map(|_| SharedProgress(Word::new(0))).collect(),
            };
            all.each(cpus, |own| own.open());
            all
        }

        fn cpu(&self, index: usize) -> OwnSharedInbox<'_, AtomicU64> {
            let cpu = CpuId(index as u16);
            OwnSharedInbox { inbox: &self.inboxes[0], progress: &self.progress[index], cpu }
        }

        fn group(&self, cpu: CpuId) -> &SharedInbox<AtomicU64> {
            &self.inboxes[group_of::<AtomicU64>(cpu).index()]
        }

        fn each(&self, cpus: u32, act: impl Fn(OwnSharedInbox<'_, AtomicU64>)) {
            let members = (0..CLUSTER).filter(|index| cpus >> index & 1 != 0);
            members.for_each(|index| act(self.cpu(index)));
        }

        fn serve(&self, cpus: u32, request: &SimpleRequest) {
            self.each(cpus, |own| {
                let pending = own.pending().expect("it was posted");
                assert_eq!(pending.request.last, request.last);
                assert_eq!(pending.request.range, request.range);
                own.progress.finish();
                own.answer(&pending, self.group(own.cpu));
                assert!(own.pending().is_none() && !own.has_request());
            });
        }
    }

    fn request(generation: u64, range: Option<u64>) -> SimpleRequest {
        SimpleRequest {
            space: SpaceId(1),
            first: generation,
            last: generation,
            range,
            scope: Scope::Leaf,
        }
    }

    const ME: CpuId = CpuId(700);

    #[test]
    fn an_inbox_is_busy_until_each_target_has_answered() {
        let cpus = Cpus::online(u32::MAX);
        let inbox = &cpus.inboxes[0];
        let sets = [u32::MAX, 1, 1 << 31, 0x0101_0101, 0xff00, 0x8000_7fff];
        for (generation, targets) in (1..).zip(sets) {
            let range = (generation % 2 == 0).then_some(64 * generation);
            let request = request(generation, range);
            assert_eq!(inbox.post(ME, targets, &request), targets);
            assert!(inbox.is_busy_for(ME) && !inbox.is_busy_for(CpuId(0)));
            cpus.each(!targets, |own| assert!(own.pending().is_none()));
            cpus.each(targets, |own| assert!(own.has_request()));
            let last = 1 << targets.trailing_zeros();
            cpus.serve(targets & !last, &request);
            assert!(inbox.is_busy_for(ME), "a target of {targets:#x} is missing");
            assert_eq!(inbox.post(CpuId(1), targets, &request), 0);
            cpus.serve(last, &request);
            assert!(!inbox.is_busy_for(ME));
        }
    }

    #[test]
    fn only_cpus_that_are_online_get_requests() {
        let cpus = Cpus::online(0b1011);
        let inbox = &cpus.inboxes[0];
        let (first, second) = (request(1, None), request(2, None));
        assert_eq!(inbox.post(ME, 0b0100, &first), 0);
        assert!(!inbox.is_busy_for(ME), "it has no target");
        assert_eq!(inbox.post(ME, 0b0111, &first), 0b0011);
        cpus.serve(0b0001, &first);
        // CPU 1 answers its request, and may come back.
        cpus.cpu(1).close(inbox);
        assert!(!inbox.is_busy_for(ME));
        assert_eq!(inbox.post(ME, 0b1010, &second), 0b1000);
        cpus.cpu(1).open();
        assert!(!cpus.cpu(1).has_request());
        cpus.serve(0b1000, &second);
        assert_eq!(inbox.post(ME, 0b1010, &first), 0b1010);
        cpus.serve(0b1010, &first);
    }

    #[test]
    fn a_cpu_defers_a_flush_from_its_receipt_to_the_flush() {
        let cpus = Cpus::online(0b1);
        let (inbox, own) = (&cpus.inboxes[0], cpus.cpu(0));
        inbox.post(ME, 0b1, &request(1, None));
        assert!(!own.progress.defers_flush());
        let pending = own.pending().expect("it was posted");
        own.progress.defer_flush();
        own.answer(&pending, inbox);
        assert!(!inbox.is_busy_for(ME) && own.progress.defers_flush());
        let deferring = own.progress.deferring();
        assert!(deferring.is_some());
        // The next request may come before the flush.
        assert_eq!(inbox.post(ME, 0b1, &request(2, None)), 0b1);
        assert_eq!(own.progress.deferring(), deferring);
        own.progress.finish();
        assert!(!own.progress.defers_flush() && own.progress.deferring().is_none());
        cpus.serve(0b1, &request(2, None));
    }

    #[test]
    fn a_set_is_divided_into_clusters() {
        let cpus = [0, 31, 32, 100, 127].map(CpuId);
        let set: CpuSet = cpus.into_iter().collect();
        let clusters: Vec<_> = clusters(&set).collect();
        let expected = [(0, 1 << 31 | 1), (32, 1), (96, 1 << 31 | 1 << 4)];
        assert_eq!(clusters, expected.map(|(first, cpus)| (CpuId(first), cpus)));
        let (last, bits) = clusters[2];
        assert!(members(last, bits).eq([CpuId(100), CpuId(127)]));
        let firsts = cpus.map(|cpu| cluster_of(cpu).0);
        assert_eq!(firsts, [0, 0, 32, 96, 96]);
    }
}

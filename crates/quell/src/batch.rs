//! Gathers (S0): one place where entries that changed wait for their flush, and where frames wait
//! with them.
//!
//! A [`Batch`] owns the frames that were unmapped and gives them back only as [`Flushed`], the proof
//! that no CPU uses a translation to them any more (C1). It must be consumed by
//! [`Batch::finish`]; dropped, it flushes first. There is no other way to get a frame out.
//!
//! When the flush happens depends on [`Purpose`] and policy. The changes of one call
//! ([`Purpose::Call`]) are always flushed once, at its end. Reclaim and migration take pages from
//! many places and many spaces; a simple kernel flushes at each of them, and with
//! [`Policy::batch`](crate::Policy) they wait for the end of the batch as well. On machines whose
//! invalidations are broadcast, those are sent at once and only their completion waits: one
//! barrier for all, executed by the CPU that sent them, because it completes nothing else.
//!
//! While a flush is outstanding the space's debt is not zero; it rises under the table's lock as the
//! entry is reported, and falls after the flush. A second actor that takes the lock, finds the
//! entry cleared and would rely on it calls [`Engine::settle`] first, and pays.

use crate::hardware::{CpuId, Hardware, Scope};
use crate::lazy::Stamp;
use crate::mutant::Mutant;
use crate::request::Request;
use crate::stats::Counter;
use crate::{AddressSpace, CpuSet, Engine, PageRange};
use core::ops::Deref;
use core::sync::atomic::Ordering::SeqCst;

/// How many spaces a batch gathers before it flushes early.
pub(crate) const SPACES: usize = 8;

/// How many frames a batch holds.
pub const CAPACITY: usize = 64;

/// What a batch is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// The changes of one call of the program: unmap, protect, fork, a fault.
    Call,
    /// Pages taken away by reclaim.
    Reclaim,
    /// Pages about to move to other frames.
    Migration,
    /// Clean pages that were mapped read-only everywhere, taken away by reclaim or demotion: the
    /// batch may end with [`Batch::finish_owed`], so nothing is sent before.
    Lazy,
}

/// What is outstanding for one space.
pub(crate) struct Pending<S> {
    pub(crate) space: S,
    pub(crate) request: Request,
    /// Broadcasts that were sent already and only lack completion.
    sent: bool,
}

/// Frames behind a flush: what is safe to reuse.
#[must_use = "frames that are not taken out are dropped"]
pub struct Flushed<F> {
    frames: Frames<F>,
    next: usize,
}

impl<F> Iterator for Flushed<F> {
    type Item = F;
    fn next(&mut self) -> Option<F> {
        let frame = self.frames.list.get_mut(self.next)?.take();
        self.next += 1;
        frame
    }
}

/// Frames whose flush is owed until reuse: each goes behind a [`Residue`](crate::Residue).
#[must_use = "frames that are not taken out are dropped, and a frame that is dropped may be reused before its debt is paid"]
pub struct Owed<F> {
    frames: Flushed<F>,
    stamp: Stamp,
}

impl<F> Owed<F> {
    /// When the debt was taken.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }
}

impl<F> Iterator for Owed<F> {
    type Item = F;
    fn next(&mut self) -> Option<F> {
        self.frames.next()
    }
}

/// How a batch that wanted to owe its flush ended.
pub enum Outcome<F> {
    /// Nothing is owed: S3 is off, or its ledger is full.
    Flushed(Flushed<F>),
    /// The flush is owed.
    Owed(Owed<F>),
}

struct Frames<F> {
    list: [Option<F>; CAPACITY],
    count: usize,
}

impl<F> Frames<F> {
    fn new() -> Self {
        Frames {
            list: [const { None }; CAPACITY],
            count: 0,
        }
    }
}

/// Entries that changed and frames that were behind them. Made by [`Engine::batch`].
///
/// `S` refers to an address space (a plain or counted reference), `F` is whatever the embedder owns
/// a frame by. The batch is bound to the CPU that made it only for speed: finished elsewhere, it
/// sends its broadcasts again.
#[must_use = "a batch must be finished; dropped, it flushes at once"]
pub struct Batch<'e, 'm, H: Hardware, S, F>
where
    S: Deref<Target = AddressSpace<H>>,
{
    engine: &'e Engine<'m, H>,
    purpose: Purpose,
    cpu: CpuId,
    pending: [Option<Pending<S>>; SPACES],
    frames: Frames<F>,
}

impl<'m, H: Hardware> Engine<'m, H> {
    /// Begins a gather.
    pub fn batch<S, F>(&self, purpose: Purpose) -> Batch<'_, 'm, H, S, F>
    where
        S: Deref<Target = AddressSpace<H>>,
    {
        Batch {
            engine: self,
            purpose,
            cpu: self.hw.this_cpu(),
            pending: [const { None }; SPACES],
            frames: Frames::new(),
        }
    }
}

impl<H: Hardware, S, F> Batch<'_, '_, H, S, F>
where
    S: Deref<Target = AddressSpace<H>>,
{
    /// Whether there is room for no more frames: time to finish.
    pub fn is_full(&self) -> bool {
        self.frames.count == CAPACITY
    }

    /// Whether nothing was reported.
    pub fn is_empty(&self) -> bool {
        self.frames.count == 0 && self.pending.iter().all(Option::is_none)
    }

    /// Entries of `space` were cleared or lost rights, and no frame goes with them.
    ///
    /// Called after the tables were written, under their lock. With [`Scope::Tables`] the flush
    /// reaches the walker caches and CPUs that hold the space lazily.
    pub fn changed(&mut self, space: S, range: PageRange, scope: Scope) {
        self.add(space, Request::range(range, scope));
    }

    /// As [`Batch::changed`], for the whole space.
    pub fn changed_all(&mut self, space: S, scope: Scope) {
        self.add(space, Request::Full(scope));
    }

    /// An entry of `space` was cleared, and `frame` was behind it. Called as [`Batch::changed`].
    ///
    /// # Panics
    /// If the batch is full.
    pub fn unmapped(&mut self, space: S, range: PageRange, frame: F) {
        self.hold(frame);
        self.add(space, Request::range(range, Scope::Leaf));
    }

    /// A page-table page that spanned `range` was unlinked from `space`; `frame` held it.
    /// Called as [`Batch::changed`]. The flush reaches walkers, and is waited for to the end.
    ///
    /// # Panics
    /// If the batch is full.
    pub fn table_unlinked(&mut self, space: S, range: PageRange, frame: F) {
        self.hold(frame);
        self.add(space, Request::range(range, Scope::Tables));
    }

    /// Takes charge of a frame whose entries were all reported with [`Batch::changed`] (a frame
    /// that several spaces mapped), or of one that nothing maps any more.
    ///
    /// # Panics
    /// If the batch is full.
    pub fn hold(&mut self, frame: F) {
        assert!(
            !self.is_full(),
            "a batch holds at most {CAPACITY} frames: finish it when is_full"
        );
        self.frames.list[self.frames.count] = Some(frame);
        self.frames.count += 1;
    }

    fn add(&mut self, space: S, request: Request) {
        let engine = self.engine;
        if request == Request::Empty {
            return;
        }
        let may_owe = self.purpose == Purpose::Lazy && engine.policy.lazy_unmap;
        if !(engine.policy.batch || self.purpose == Purpose::Call || may_owe) {
            engine.flush_pending(&[Some(Pending {
                space,
                request,
                sent: false,
            })]);
            return;
        }
        if !engine.hw.mutant(Mutant::DebtNotRecorded) && self.find(&space).is_none() {
            space.defer();
        }
        // On a machine with broadcasts, reclaim sends now and waits later.
        let me = engine.hw.this_cpu();
        let send_now = engine.features.broadcast
            && self.purpose != Purpose::Call
            && !may_owe
            && me == self.cpu;
        if send_now {
            engine.fence_before_tag();
            engine.count(me, Counter::Requested, 1);
            if let Some(tag) = engine.broadcast_tag(&space) {
                engine.broadcast_request(me, tag, engine.limited(me, request));
            }
        }
        match self.find(&space) {
            Some(index) => {
                let entry = self.pending[index]
                    .as_mut()
                    .expect("found entries are occupied");
                entry.request = entry.request.merge(request);
                entry.sent &= send_now;
            }
            None => {
                if self.pending.iter().all(Option::is_some) {
                    engine.count(engine.hw.this_cpu(), Counter::EscalatedBatch, 1);
                    self.flush();
                }
                let free = self.pending.iter_mut().find(|entry| entry.is_none());
                *free.expect("a flush empties the list") = Some(Pending {
                    space,
                    request,
                    sent: send_now,
                });
            }
        }
    }

    fn find(&self, space: &S) -> Option<usize> {
        let same = |entry: &Option<Pending<S>>| {
            entry
                .as_ref()
                .is_some_and(|entry| entry.space.id() == space.id())
        };
        self.pending.iter().position(same)
    }

    /// Flushes what is outstanding; the frames stay.
    fn flush(&mut self) {
        let engine = self.engine;
        let me = engine.hw.this_cpu();
        let mut rest = core::mem::replace(&mut self.pending, [const { None }; SPACES]);
        // Sort what was sent and only lacks this CPU's barrier from what still has to be sent; a
        // batch that was carried to another CPU sends everything again.
        let mut unsent = 0;
        let mut sent = 0;
        for index in 0..SPACES {
            match &rest[index] {
                Some(entry) if entry.sent && me == self.cpu => sent += 1,
                Some(_) => {
                    rest.swap(unsent, index);
                    unsent += 1;
                }
                None => {}
            }
        }
        if unsent > 0 {
            engine.flush_pending(&rest[..unsent]);
        }
        if sent > 0 {
            engine.complete(me);
        }
        for entry in rest.iter().flatten() {
            if !engine.hw.mutant(Mutant::DebtNotRecorded) {
                entry.space.deferred_done();
            }
        }
    }

    /// Flushes, and yields the frames. When it returns, no CPU uses a translation that was
    /// reported, in any later user access (C1, C3).
    pub fn finish(mut self) -> Flushed<F> {
        if !self.engine.hw.mutant(Mutant::FinishSkipsFlush) {
            self.flush();
        }
        Flushed {
            frames: core::mem::replace(&mut self.frames, Frames::new()),
            next: 0,
        }
    }

    /// Owes the flush until the frames are reused (S3), where policy and ledger allow it.
    ///
    /// The caller vouches that every mapping of every frame was read-only and clean and that no
    /// table was unlinked, and puts each frame behind its residue before the locks under which
    /// its entries were cleared are dropped.
    pub fn finish_owed(mut self) -> Outcome<F> {
        let engine = self.engine;
        if !engine.policy.lazy_unmap {
            return Outcome::Flushed(self.finish());
        }
        let me = engine.hw.this_cpu();
        // After the entries were cleared: a flush that began before this tick pays nothing of it.
        let Some(stamp) = engine.take_stamp(me) else {
            engine.count(me, Counter::DebtsRefused, 1);
            return Outcome::Flushed(self.finish());
        };
        engine.count(me, Counter::DebtsTaken, 1);
        let mut cpus = CpuSet::EMPTY;
        for entry in self.pending.iter().flatten() {
            // The debt first, then the set: a CPU that loads the space enters the set before it
            // reads the debt, so one of the two sees the other.
            entry.space.deferred_owed(stamp);
            cpus.union(&entry.space.loaded.snapshot(engine.cpus.len(), SeqCst));
        }
        engine.ledger.record(stamp, engine.cpus.len(), &cpus);
        self.pending = [const { None }; SPACES];
        let frames = core::mem::replace(&mut self.frames, Frames::new());
        Outcome::Owed(Owed {
            frames: Flushed { frames, next: 0 },
            stamp: Stamp(stamp),
        })
    }
}

impl<H: Hardware, S, F> Drop for Batch<'_, '_, H, S, F>
where
    S: Deref<Target = AddressSpace<H>>,
{
    /// Flushes what was forgotten, then drops the frames.
    fn drop(&mut self) {
        if self.pending.iter().any(Option::is_some)
            && !self.engine.hw.mutant(Mutant::FinishSkipsFlush)
        {
            self.flush();
        }
    }
}

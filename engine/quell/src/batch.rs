//! Batches (S0): one place where entries that changed wait for their flush, and where frames wait with them.
//!
//! A [`Batch`] owns the frames that were unmapped and gives them back as [`Flushed`], the proof that no CPU uses a
//! translation to them any more (C1), from [`Batch::finish`]; or, with lazy unmap, as [`Deferred`], from
//! [`Batch::finish_deferred`]: those are not flushed, and go behind a [`DeferredFlush`](crate::Residue). Dropped, a batch flushes
//! first. The file is long because every way in which frames leave a batch is in it, beside the rules that they share.
//!
//! When the flush happens depends on [`Purpose`] and policy. The changes of one call ([`Purpose::Call`]) are always
//! flushed once, at its end. Reclaim and migration take pages from many places and many spaces; a simple kernel flushes
//! at each of them, as soon as its lock is dropped ([`Batch::unlocked`]), and with [`Policy::batch`](crate::Policy)
//! they wait for the end of the batch as well. On machines whose invalidations are broadcast, those are sent at once
//! and only their completion waits: one barrier for all, executed by the CPU that sent them, because it completes
//! nothing else.
//!
//! Changes are reported under locks, so a report waits for no CPU, ever: a batch flushes a change that it has no place
//! for at its end, too ([`overflow`](crate::unplaced)).
//!
//! While a flush is outstanding the space's deferred flush is not zero; it rises under the table's lock as the
//! entry is reported, and falls after the flush. A later observer that takes the lock, finds the
//! entry cleared and would rely on it calls [`Engine::flush_pending`] first, and pays.

use crate::addr::PageRange;
use crate::cpu_set::{CpuId, CpuSet};
use crate::engine::Engine;
use crate::flush::SPACES;
use crate::flushed::{Deferred, Flushed, Outcome};
use crate::frames::{FrameList, InPlace};
use crate::hardware::{Hardware, Scope};
use crate::ledger::Stamp;
use crate::overflow::Overflow;
use crate::pending::Pending;
use crate::request::Request;
use crate::space::AddressSpace;
use crate::stack::Stack;
use crate::stats::Counter;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::Deref;

/// Why entries change: it decides when the batch flushes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// The changes of one call of the program: unmap, protect, fork, a fault.
    Call,
    /// Pages taken away by reclaim.
    Reclaim,
    /// Pages about to move to other frames.
    Migration,
    /// Clean pages that were mapped read-only everywhere, taken away by reclaim or demotion: the
    /// batch may end with [`Batch::finish_deferred`], so nothing is sent before.
    Lazy,
}

/// Entries that changed and frames that were behind them. Made by [`Engine::batch`].
///
/// `S` is a reference to an address space (plain or counted), `F` the embedder's type that owns a frame, and `L` the
/// list in which frames wait, by default with room for 64 in the batch itself. A batch may be finished on another CPU
/// than the one that filled it; on a machine that broadcasts, it then sends its broadcasts again. A finished batch is
/// empty and may be filled again.
///
/// With 64 frames it is some 1.7 KB, most of it uninitialised: leave it where it is, moving it costs more than a flush.
#[must_use = "a batch must be finished; dropped, it flushes at once"]
pub struct Batch<'e, 'm, H: Hardware, S, F, L: FrameList<F> = InPlace<F>, const N: usize = SPACES>
where
    S: Deref<Target = AddressSpace<H>>,
{
    pub(crate) unflushed: Unflushed<'e, 'm, H, S, N>,
    pub(crate) frames: L,
    /// An [`Deferred`] has the frames, whose translations CPUs may still use. If this is still set when there is no
    /// such value, the embedder has forgotten it ([`core::mem::forget`]): then the frames are leaked.
    borrowed: bool,
    frame: PhantomData<F>,
}

impl<H, S, F, L, const N: usize> Drop for Batch<'_, '_, H, S, F, L, N>
where
    H: Hardware,
    S: Deref<Target = AddressSpace<H>>,
    L: FrameList<F>,
{
    /// Flushes what is left, and drops the frames then. If it panics instead of flushing, they are leaked.
    #[inline]
    fn drop(&mut self) {
        self.lose_borrowed();
        if !self.unflushed.is_empty() {
            let unflushed = Leaked(&mut self.frames, PhantomData);
            self.unflushed.flush();
            core::mem::forget(unflushed);
        }
    }
}

/// Frames that are leaked as this value is dropped, because CPUs may still use them.
struct Leaked<'l, F, L: FrameList<F>>(&'l mut L, PhantomData<F>);

impl<F, L: FrameList<F>> Drop for Leaked<'_, F, L> {
    #[cold]
    fn drop(&mut self) {
        core::iter::from_fn(|| self.0.take()).for_each(core::mem::forget);
    }
}

/// The half of a batch that is flushed.
pub(crate) struct Unflushed<'e, 'm, H: Hardware, S, const N: usize>
where
    S: Deref<Target = AddressSpace<H>>,
{
    pub(crate) engine: &'e Engine<'m, H>,
    purpose: Purpose,
    /// The CPU that has sent the broadcasts.
    pub(crate) cpu: CpuId,
    pub(crate) pending: Stack<Pending<S>, N>,
    /// The changes that had no place among these.
    pub(crate) overflow: Option<Overflow>,
}

impl<'m, H: Hardware> Engine<'m, H> {
    /// Begins a batch, with room for 64 frames. Never waits.
    #[inline]
    pub fn batch<S, F>(&self, purpose: Purpose) -> Batch<'_, 'm, H, S, F>
    where
        S: Deref<Target = AddressSpace<H>>,
    {
        self.batch_into(purpose, InPlace::new())
    }

    /// Begins a batch whose frames wait in a list of the embedder's choice, which is empty.
    #[inline]
    pub fn batch_into<S, F, L>(&self, purpose: Purpose, frames: L) -> Batch<'_, 'm, H, S, F, L>
    where
        S: Deref<Target = AddressSpace<H>>,
        L: FrameList<F>,
    {
        self.batch_of_spaces(purpose, frames)
    }

    /// As [`Engine::batch_into`], with room for the changes of `N` spaces, from 1 to 8: of a space more the batch keeps
    /// nothing, and its end flushes all of that space, on all CPUs that may have it loaded and some others. A batch of
    /// one space is some 160 bytes and its list: cheap to move, where that cannot be avoided. Never waits.
    #[inline]
    pub fn batch_of_spaces<S, F, L, const N: usize>(
        &self,
        purpose: Purpose,
        frames: L,
    ) -> Batch<'_, 'm, H, S, F, L, N>
    where
        S: Deref<Target = AddressSpace<H>>,
        L: FrameList<F>,
    {
        const {
            assert!(N >= 1 && N <= SPACES, "a batch has room for 1 to 8 spaces");
        }
        Batch {
            unflushed: Unflushed {
                engine: self,
                purpose,
                // The first change that is sent says which.
                cpu: CpuId::default(),
                pending: Stack::new(),
                overflow: None,
            },
            frames,
            borrowed: false,
            frame: PhantomData,
        }
    }
}

impl<H: Hardware, S, F, L: FrameList<F>, const N: usize> Batch<'_, '_, H, S, F, L, N>
where
    S: Deref<Target = AddressSpace<H>>,
{
    /// Whether there is no room for another frame: then it must be finished first. Never waits.
    pub fn is_full(&self) -> bool {
        self.frames.is_full()
    }

    /// Whether nothing was reported. Never waits.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.unflushed.is_empty()
    }

    /// Whether everything of `space` is flushed as this batch is finished, and at least as far as `scope` says. Then
    /// there is nothing to be added until it is finished, and a caller may leave out further reports of the space.
    /// Never `true` where invalidations are broadcast, nor of a space that the batch has no place for. Never waits.
    pub fn covers(&self, space: &AddressSpace<H>, scope: Scope) -> bool {
        let pending = self.unflushed.pending.as_slice();
        pending
            .iter()
            .any(|entry| core::ptr::eq(&*entry.space, space) && entry.is_whole(scope))
    }

    /// Entries of `space` were cleared or lost rights, and no frame goes with them.
    ///
    /// Called after the tables were written, under their lock. With [`Scope::Tables`] the flush
    /// reaches the walker caches and CPUs that hold the space lazily.
    ///
    /// Never waits, for a CPU or a device. Where invalidations are broadcast and S0 is off, it executes its own CPU's
    /// barrier, which no code of another CPU holds up.
    #[inline(always)]
    pub fn changed(&mut self, space: S, range: PageRange, scope: Scope) {
        if range.pages != 0 {
            self.unflushed.add(space, Some(range), scope);
        }
    }

    /// As [`Batch::changed`], for the whole space; waits for no CPU either.
    pub fn changed_all(&mut self, space: S, scope: Scope) {
        self.unflushed.add(space, None, scope);
    }

    /// An entry of `space` was cleared, and `frame` was behind it. Called as [`Batch::changed`]; waits for no CPU
    /// either. Where it panics the frame is leaked, because a CPU may still use it; a range that did not fit into the
    /// batch is flushed with it all the same.
    ///
    /// # Panics
    /// If the batch is full. If the range is of no page: the frame would come out unflushed.
    #[inline(always)]
    pub fn unmapped(&mut self, space: S, range: PageRange, frame: F) {
        self.report(space, range, Scope::Leaf, frame);
    }

    /// A page-table page that spanned `range` was unlinked from `space`; `frame` held it. Called as [`Batch::changed`];
    /// waits for no CPU either. The flush reaches walkers, and its initiator waits until every target has flushed. If
    /// the table still mapped pages, the flush drops only those that the range's strides name, the first of each
    /// stride: clear and report such pages by themselves, or give the range the stride of the pages. Where it panics
    /// the frame is leaked, as by [`Batch::unmapped`].
    ///
    /// # Panics
    /// If the batch is full. If the range is of no page: the frame would come out unflushed.
    pub fn table_unlinked(&mut self, space: S, range: PageRange, frame: F) {
        self.report(space, range, Scope::Tables, frame);
    }

    /// Reports the change before it takes the frame, which whoever unwinds must not drop: it is not flushed.
    #[inline(always)]
    fn report(&mut self, space: S, range: PageRange, scope: Scope, frame: F) {
        let frame = ManuallyDrop::new(frame);
        range.assert_some();
        self.unflushed.add(space, Some(range), scope);
        self.hold(ManuallyDrop::into_inner(frame));
    }

    /// Takes charge of a frame whose entries were all reported with [`Batch::changed`] (a frame
    /// that several spaces mapped), or of one that nothing maps any more. Never waits.
    /// Where it panics the frame is leaked, because a CPU may still use it.
    ///
    /// # Panics
    /// If the batch is full.
    #[inline]
    pub fn hold(&mut self, frame: F) {
        let frame = ManuallyDrop::new(frame);
        assert!(
            !self.is_full(),
            "a batch whose list of frames is full must be finished before it takes another one"
        );
        self.frames.push(ManuallyDrop::into_inner(frame));
    }

    /// The lock is dropped under which changes were reported: with S0 off, and a purpose other than a call's, flushes
    /// them; the frames stay. With S0 on it does nothing, and so it does where the flush may be deferred. So a kernel
    /// that calls it each time flushes once for each change with S0 off, and once for the batch with S0 on. One that
    /// does not call it flushes at the end of the batch. May wait for other CPUs.
    #[inline]
    pub fn unlocked(&mut self) {
        self.lose_borrowed();
        if !self.unflushed.has_pending_batch() && !self.unflushed.is_empty() {
            self.unflushed.flush();
        }
    }

    /// Flushes, and yields the frames. When it returns, no CPU uses a translation that was
    /// reported, in any later user access (C1, C3). May wait for other CPUs.
    #[inline]
    pub fn finish(&mut self) -> Flushed<'_, F, L> {
        self.flush();
        Flushed::new(&mut self.frames)
    }

    /// Flushes all that is behind the frames of the list.
    #[inline]
    fn flush(&mut self) {
        self.lose_borrowed();
        self.unflushed.flush();
    }

    /// Frames of an [`Deferred`] that was forgotten never come out: they are leaked, which is safe.
    #[inline]
    pub(crate) fn lose_borrowed(&mut self) {
        if self.borrowed {
            self.borrowed = false;
            drop(Leaked(&mut self.frames, PhantomData));
        }
    }

    /// As [`Batch::finish`], and yields the list itself: for an owner that empties it at once, faster than frame by
    /// frame. The frames that it leaves in the list come out with those of the next flush, or are dropped with the
    /// batch. May wait.
    #[inline]
    pub fn finish_list(&mut self) -> &mut L {
        self.flush();
        &mut self.frames
    }

    /// Owes the flush until the frames are reused (S3), if policy and ledger allow it; otherwise flushes. May wait for
    /// other CPUs if it flushes, and if the ledger is full; and for devices, if there are any
    /// ([`Hardware::HAS_SECONDARY`]), whose part is never deferred.
    ///
    /// A batch is flushed, too, if it has an unlinked table, was told of mappings of the kernel and of a user space, or
    /// of more spaces than it has places for, or if more batches of a space are outstanding than are counted.
    ///
    /// The caller vouches that every mapping of every frame was read-only and clean, or was one of the kernel that no
    /// CPU uses any more ([`crate::kernel`]). It puts each frame behind its deferred flush before it drops the lock
    /// under which it began that ([`DeferredFlush::begin`](crate::Residue::begin)). It may drop the locks of the
    /// tables before this call: later observers find the batch outstanding, then the deferred flush.
    ///
    /// The engine checks none of this. A mapping counts for as long as a CPU may use it: before the caller passes over
    /// an entry of the frame that another CPU has cleared or write-protected, it makes sure that the other CPU's batch
    /// has flushed ([`Engine::flush_pending_batches`]).
    pub fn finish_deferred(&mut self) -> Outcome<'_, F, L> {
        let engine = self.unflushed.engine;
        self.lose_borrowed();
        let pending = self.unflushed.pending.as_slice();
        let tables = pending
            .iter()
            .any(|entry| entry.request.scope() == Scope::Tables);
        let of_kernel = |entry: &&Pending<S>| entry.space.id().is_kernel();
        let kernels = pending.iter().filter(of_kernel).count();
        // A stamp is for the kernel's mappings or for users', never for both: a payer leaves the kernel's deferred
        // flushes to the entry of a CPU that runs a program, and must not leave it the deferred flushes of its space.
        // [mutant MixedFlushDeferred]
        let both = (1..pending.len()).contains(&kernels);
        let overflow = self.unflushed.overflow.is_some();
        if !engine.on().lazy_unmap || tables || overflow || both {
            return Outcome::Flushed(self.finish());
        }
        let me = engine.hw.this_cpu();
        if H::HAS_SECONDARY {
            engine.assert_may_wait();
        }
        // Before the deferred flush is one of CPUs alone.
        let told = engine.start_secondary(self.unflushed.requests());
        engine.wait_for_secondary(me, told);
        // After the entries were cleared: a flush that began before this tick pays nothing of it.
        let Some(stamp) = engine.take_stamp(me) else {
            engine.count(me, Counter::DeferralsRefused, 1);
            return Outcome::Flushed(self.finish());
        };
        engine.count(me, Counter::FlushesDeferred, 1);
        let mut cpus = CpuSet::none();
        for (number, entry) in self.unflushed.pending.as_slice().iter().enumerate() {
            // The deferred flush first, then the set: a CPU that loads the space enters the set before it
            // reads the deferred flush, so one of the two sees the other.
            // And defer before the deferred flush ends: a later observer finds the one or the other. [mutant
            // PendingEndsBeforeDeferred]
            entry.space.defer(stamp);
            engine.end_pending(&entry.space);
            match number {
                // Mostly the only one: its set is not copied.
                0 => entry.space.read_loaded(&mut cpus, engine.count),
                _ => cpus.union(&entry.space.loaded_on(engine.count)),
            }
        }
        engine
            .ledger
            .record(stamp, engine.count, &cpus, kernels != 0);
        self.unflushed.pending.clear();
        self.borrowed = true;
        Outcome::Deferred(Deferred::new(
            &mut self.frames,
            Stamp(stamp),
            &mut self.borrowed,
        ))
    }
}

impl<H: Hardware, S, const N: usize> Unflushed<'_, '_, H, S, N>
where
    S: Deref<Target = AddressSpace<H>>,
{
    /// Adds a range that is not empty, or everything. In a long unmap that is flushed whole, that is nothing at all.
    #[inline(always)]
    fn add(&mut self, space: S, range: Option<PageRange>, scope: Scope) {
        match self.pending.last_mut() {
            Some(last) if last.whole >= Some(scope) && last.is_of(&space) => {}
            Some(_) => self.add_next(space, range, scope),
            None => self.add_first(space, range, scope),
        }
    }

    #[inline(never)]
    fn add_next(&mut self, space: S, range: Option<PageRange>, scope: Scope) {
        let most = self.engine.most();
        // Mostly another page of the space that the last one was of.
        if let Some(last) = self.pending.last_mut()
            && last.joins
            && last.is_of(&space)
            && last.take(range, scope, most)
        {
            return;
        }
        self.add_another(space, range, scope);
    }

    /// The first of a batch, and mostly the only one: where it is reported, most of what is stored is known.
    #[inline(always)]
    fn add_first(&mut self, space: S, range: Option<PageRange>, scope: Scope) {
        if !self.joins() {
            return self.add_another(space, range, scope);
        }
        if !self.engine.begin_pending(&space) {
            return self.add_overflow(&space, range, scope);
        }
        self.pending
            .push(Pending::first(space, range, scope, false, true));
    }

    /// Whether the flush may be deferred until the frames are reused.
    #[inline]
    fn may_defer(&self) -> bool {
        self.purpose == Purpose::Lazy && self.engine.on().lazy_unmap
    }

    /// Whether changes wait for the end of the batch.
    #[inline]
    fn has_pending_batch(&self) -> bool {
        self.engine.on().batch || self.purpose == Purpose::Call || self.may_defer()
    }

    /// Whether what is added is flushed with the rest, and nothing is sent before.
    #[inline]
    fn joins(&self) -> bool {
        self.engine.broadcasts().is_none()
    }

    /// Whether nothing is outstanding.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.overflow.is_none()
    }

    /// There is no place for this space, or no more batches of it are counted.
    #[cold]
    fn add_overflow(&mut self, space: &S, range: Option<PageRange>, scope: Scope) {
        let request = Request::of(range, scope);
        self.engine
            .report_overflow(space, &request, &mut self.overflow);
    }

    #[inline(never)]
    fn add_another(&mut self, space: S, range: Option<PageRange>, scope: Scope) {
        let engine = self.engine;
        let request = || Request::of(range, scope);
        if !self.joins() && !self.has_pending_batch() && !H::HAS_SECONDARY {
            // The barrier is this CPU's alone. For devices there would be a wait, so they have it at the end.
            return engine.flush_by_broadcast([(&*space, &request())].into_iter());
        }
        let me = engine.hw.this_cpu();
        if self.pending.is_empty() {
            self.cpu = me;
        }
        let found = self.find(&space);
        if found.is_none() && (self.pending.is_full() || !engine.begin_pending(&space)) {
            return self.add_overflow(&space, range, scope);
        }
        // On a machine with broadcasts, reclaim sends now and waits later.
        let send_now = engine.broadcasts().is_some()
            && self.purpose != Purpose::Call
            && !self.may_defer()
            && me == self.cpu;
        if send_now {
            engine.broadcast_early(me, &space, &request());
        }
        match found {
            Some(index) => {
                let entry = &mut self.pending.as_mut_slice()[index];
                entry.request.grow(range, scope, engine.hw.ranges());
                entry.sent &= send_now;
                entry.fresh = false;
                entry.strides = entry.request.strides().unwrap_or(0);
            }
            None => {
                let joins = self.joins();
                self.pending
                    .push(Pending::first(space, range, scope, send_now, joins));
            }
        }
    }

    #[inline]
    fn find(&self, space: &S) -> Option<usize> {
        self.pending
            .as_slice()
            .iter()
            .position(|entry| entry.space.id() == space.id())
    }

    /// Flushes what is outstanding; the frames stay.
    #[inline(always)]
    fn flush(&mut self) {
        let engine = self.engine;
        // Frames come out behind the flush. [mutant FinishSkipsFlush: bug 30]
        if !self.is_empty() {
            engine.assert_may_wait();
        }
        let me = engine.hw.this_cpu();
        match self.pending.as_slice() {
            [only] if self.overflow.is_none() && engine.broadcasts().is_none() => {
                if !only.fresh || !engine.flush_alone(me, &only.space, &only.request) {
                    engine.flush_one(me, &only.space, &only.request);
                    engine.end_pending(&only.space);
                }
                self.pending.clear();
            }
            _ => self.flush_everywhere(me),
        }
    }

    /// The requests that are outstanding, of each space one.
    pub(crate) fn requests(
        &self,
    ) -> impl ExactSizeIterator<Item = (&AddressSpace<H>, &Request)> + Clone {
        requests(self.pending.as_slice())
    }

    pub(crate) fn end_all_pending(&mut self) {
        for entry in self.pending.as_slice() {
            self.engine.end_pending(&entry.space);
        }
        self.pending.clear();
    }

    #[inline(never)]
    fn flush_everywhere(&mut self, me: CpuId) {
        let engine = self.engine;
        if engine.broadcasts().is_some() {
            let told = engine.start_secondary(self.requests());
            self.complete_broadcasts(me);
            engine.wait_for_secondary(me, told);
        } else if !self.pending.as_slice().is_empty() {
            engine.flush(self.requests());
        }
        if let Some(overflow) = self.overflow.take() {
            engine.flush_overflow(me, &overflow);
            engine.wait_for_secondary(me, overflow.told);
        }
        self.end_all_pending();
    }

    /// Sends what was not sent, on a machine with broadcasts, and executes the barrier of this CPU.
    pub(crate) fn complete_broadcasts(&mut self, me: CpuId) {
        let engine = self.engine;
        // Sort what still has to be sent from what was sent and only lacks this CPU's barrier; a
        // batch that was carried to another CPU sends everything again.
        let carried = me != self.cpu;
        let entries = self.pending.as_mut_slice();
        let mut unsent = 0;
        for index in 0..entries.len() {
            if carried || !entries[index].sent {
                entries.swap(unsent, index);
                unsent += 1;
            }
        }
        if unsent > 0 {
            engine.broadcast_flush(requests(&entries[..unsent]));
        }
        if unsent < entries.len() {
            engine.complete(me);
        }
    }
}

/// The requests of these.
fn requests<'p, H, S>(
    pending: &'p [Pending<S>],
) -> impl ExactSizeIterator<Item = (&'p AddressSpace<H>, &'p Request)> + Clone
where
    H: Hardware + 'p,
    S: Deref<Target = AddressSpace<H>>,
{
    pending.iter().map(|entry| (&*entry.space, &entry.request))
}

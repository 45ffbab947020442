//! Batches: changed entries that wait for their flush, and the frames that they mapped.
//!
//! A [`Batch`] owns the frames that were unmapped. [`Batch::finish`] returns them as [`FlushedFrames`], the proof that
//! no CPU uses a translation to them any more (C1). With lazy unmap, [`Batch::finish_deferred`] returns them as
//! [`DeferredFrames`]. The file is long because it contains all ways in which frames leave a batch, and the rules
//! common to these ways.
//!
//! [`Purpose`] and policy determine when the flush happens. On machines that broadcast invalidations, a batch of
//! reclaim or migration sends each invalidation as soon as the change is reported. With batching it waits for their
//! completion only at its end. One barrier completes them all. The CPU that sent them must execute it, because a
//! barrier completes only its own CPU's broadcasts.
//!
//! Changes are reported under locks, so a report never waits for a CPU. If the batch has no place for a change, it
//! still flushes that change at its end ([`overflow`](crate::overflow)).
//!
//! Each space counts its pending batches. The count rises under the table's lock when an entry is reported, and falls
//! after the flush. Suppose that, before the flush, a page fault takes that lock and finds the entry cleared. Before
//! such a *later observer* relies on the cleared entry, it calls [`Engine::flush_pending`], which flushes if the count
//! isn't zero.

use crate::addr::{Frame, PageRange};
use crate::cpu_set::{CpuId, CpuSet};
use crate::engine::Engine;
use crate::flush::SPACES;
use crate::flushed::{DeferredFrames, FlushedFrames, Outcome};
use crate::frames::{FrameArray, FrameList};
use crate::hardware::{Hardware, Scope};
use crate::ledger::Stamp;
use crate::overflow::Overflow;
use crate::pending::PendingChanges;
use crate::request::Request;
use crate::space::AddressSpace;
use crate::stack::InlineQueue;
use crate::stats::Counter;
use crate::this_cpu::Cpu;
use core::mem::ManuallyDrop;
use core::ops::Deref;

/// Gives the reason why entries change, which determines when a [`Batch`] flushes.
///
/// # Examples
///
/// ```
/// # quell::one_cpu!(machine, engine, space);
/// use quell::{Frame, Page, PageRange, Purpose};
/// machine.access(Page(5));
/// let mut batch = engine.batch(Purpose::Reclaim);
/// batch.unmapped(&space, PageRange::base(Page(5), 1), Frame(42));
/// batch.unlocked(); // the lock of the table was dropped
/// assert!(machine.caches(Page(5))); // with batching, reclaim flushes only at the end
/// batch.finish().for_each(drop);
/// assert!(!machine.caches(Page(5)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// The changes of one system call or fault: for example `munmap`, `mprotect` or `fork`. They're flushed once, at
    /// the end of the batch.
    Call,
    /// Reclaim takes pages away. With [`Policy::batch`](crate::Policy), the batch waits for one flush, at its end.
    /// Otherwise it flushes as soon as the kernel drops a lock ([`Batch::unlocked`]).
    Reclaim,
    /// Pages are about to move to other frames. The batch flushes as for [`Purpose::Reclaim`].
    Migration,
    /// Reclaim or demotion takes away clean pages whose mappings are all read-only. The batch may end with
    /// [`Batch::finish_deferred`]. If lazy unmap is on, it flushes nothing before its end.
    Lazy,
}

/// Refers to an address space: `&AddressSpace<H>`, `Arc<AddressSpace<H>>`, or the kernel's own type.
///
/// Every type that dereferences to an [`AddressSpace`] implements it. A [`Batch`] keeps a reference to each space that
/// it has a place for, until it has flushed.
///
/// # Examples
///
/// ```
/// # quell::one_cpu!(machine, engine, space);
/// use quell::{Batch, Frame, Page, PageRange, Purpose, Scope, SpaceRef};
/// use std::sync::Arc;
/// /// Reports a changed page of a space, whichever reference the kernel uses.
/// fn page_changed<S: SpaceRef>(batch: &mut Batch<'_, S>, space: S, page: Page) {
///     batch.changed(space, PageRange::base(page, 1), Scope::Leaf);
/// }
/// let space = Arc::new(space);
/// let mut batch = engine.batch(Purpose::Call);
/// page_changed(&mut batch, Arc::clone(&space), Page(5));
/// assert_eq!(Arc::strong_count(&space), 2); // the batch keeps the space alive
/// batch.finish();
/// assert_eq!(Arc::strong_count(&space), 1);
/// ```
pub trait SpaceRef: Deref<Target = AddressSpace<<Self as SpaceRef>::Hardware>> {
    /// The machine on which the space is used.
    type Hardware: Hardware;
}

impl<H: Hardware, S: Deref<Target = AddressSpace<H>>> SpaceRef for S {
    type Hardware = H;
}

/// Collects changed page-table entries and the frames that they mapped, until one flush. Made by [`Engine::batch`].
///
/// Frames come out of a batch only after the flush ([`Batch::finish`]), or with a record that the flush is deferred
/// ([`Batch::finish_deferred`]). A batch that is dropped flushes first. A finished batch is empty and can be filled
/// again.
///
/// `S` is a reference to an address space, plain or counted. `L` is the list in which frames wait, by default with room
/// for 64 in the batch itself. `N` is the number of spaces for which the batch has places: it keeps a reference and the
/// ranges of each. Changes of further spaces are flushed, too ([`Engine::batch_of_spaces`]).
///
/// You may finish a batch on another CPU than the one that filled it. On a machine that broadcasts invalidations, it
/// then sends them again.
///
/// With room for 64 frames a batch takes about 1.7 KB, most of it uninitialised. Avoid moving it, because a move copies
/// all of that.
///
/// # Examples
///
/// ```
/// # quell::one_cpu!(machine, engine, space);
/// use quell::{Frame, Page, PageRange, Purpose};
/// machine.access(Page(5));
/// // Clear the entry first, under the lock of the table; then report it.
/// let mut batch = engine.batch(Purpose::Call);
/// batch.unmapped(&space, PageRange::base(Page(5), 1), Frame(42));
/// let free: Vec<Frame> = batch.finish().collect();
/// assert_eq!(free, [Frame(42)]); // it may get a new owner now
/// assert!(!machine.caches(Page(5)));
/// ```
#[must_use = "a batch must be finished; dropped, it flushes at once"]
pub struct Batch<'e, S: SpaceRef, L: FrameList = FrameArray<Frame>, const N: usize = SPACES> {
    pub(crate) unflushed: BatchChanges<'e, S, N>,
    pub(crate) frames: L,
    /// Set while [`DeferredFrames`] hold the frames, whose translations CPUs may still use. If it's still set after
    /// that value is gone, the embedder has forgotten the value ([`core::mem::forget`]), and we leak the frames.
    borrowed: bool,
}

impl<S: SpaceRef, L: FrameList, const N: usize> Drop for Batch<'_, S, L, N> {
    /// Flushes the remaining changes, then drops the frames. If the flush panics, the frames are leaked.
    #[inline]
    fn drop(&mut self) {
        self.lose_borrowed();
        if !self.unflushed.is_empty() {
            let unflushed = LeakGuard(&mut self.frames);
            self.unflushed.flush();
            core::mem::forget(unflushed);
        }
    }
}

/// Leaks the frames when dropped, because CPUs may still use them.
struct LeakGuard<'l, L: FrameList>(&'l mut L);

impl<L: FrameList> Drop for LeakGuard<'_, L> {
    #[cold]
    fn drop(&mut self) {
        core::iter::from_fn(|| self.0.take()).for_each(core::mem::forget);
    }
}

/// The changes of a batch that aren't flushed yet.
pub(crate) struct BatchChanges<'e, S: SpaceRef, const N: usize> {
    pub(crate) engine: &'e Engine<'e, S::Hardware>,
    purpose: Purpose,
    /// The CPU that has sent the broadcasts.
    pub(crate) cpu: CpuId,
    pub(crate) pending: InlineQueue<PendingChanges<S>, N>,
    /// The changes that have no place in `pending`.
    pub(crate) overflow: Option<Overflow>,
}

impl<H: Hardware> Engine<'_, H> {
    /// Makes an empty batch with room for 64 frames. Never waits.
    #[inline]
    pub fn batch<S, F>(&self, purpose: Purpose) -> Batch<'_, S, FrameArray<F>>
    where
        S: Deref<Target = AddressSpace<H>>,
    {
        self.batch_into(purpose, FrameArray::new())
    }

    /// Makes an empty batch whose frames wait in `frames`, an empty list of your choice. Never waits.
    #[inline]
    pub fn batch_into<S, L>(&self, purpose: Purpose, frames: L) -> Batch<'_, S, L>
    where
        S: Deref<Target = AddressSpace<H>>,
        L: FrameList,
    {
        self.batch_of_spaces(purpose, frames)
    }

    /// Makes an empty batch like [`Engine::batch_into`], with places for `N` spaces, from 1 to 8. Never waits.
    ///
    /// The batch also takes changes of further spaces, but keeps only a summary of their CPUs. When it ends, all CPUs
    /// of the summary flush everything that they have loaded. With `N` = 1, a batch takes about 160 bytes plus its
    /// list. So with a short list it's cheap to move.
    #[inline]
    pub fn batch_of_spaces<S, L, const N: usize>(
        &self,
        purpose: Purpose,
        frames: L,
    ) -> Batch<'_, S, L, N>
    where
        S: Deref<Target = AddressSpace<H>>,
        L: FrameList,
    {
        const {
            assert!(N >= 1 && N <= SPACES, "a batch has room for 1 to 8 spaces");
        }
        Batch {
            unflushed: BatchChanges {
                engine: self,
                purpose,
                // Set by the first change that is sent.
                cpu: CpuId::default(),
                pending: InlineQueue::new(),
                overflow: None,
            },
            frames,
            borrowed: false,
        }
    }
}

impl<H: Hardware, S, L: FrameList, const N: usize> Batch<'_, S, L, N>
where
    S: Deref<Target = AddressSpace<H>>,
{
    /// Returns whether the batch can't take another frame. If so, finish it first. Never waits.
    pub fn is_full(&self) -> bool {
        self.frames.is_full()
    }

    /// Returns whether the batch is empty: it holds no frames and no unflushed changes. Never waits.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.unflushed.is_empty()
    }

    /// Returns whether finishing this batch flushes all of `space`, with at least this `scope`.
    ///
    /// If so, you may leave out further reports of the space until the batch is finished. It's always `false` if the
    /// machine broadcasts invalidations, or if the batch has no place for the space. Never waits.
    pub fn covers(&self, space: &AddressSpace<H>, scope: Scope) -> bool {
        let pending = self.unflushed.pending.as_slice();
        pending.iter().any(|entry| core::ptr::eq(&*entry.space, space) && entry.is_whole(scope))
    }

    /// Returns whether you may report a change of `space` after you have dropped the table's lock.
    ///
    /// If `true`, report the change at any time before the batch flushes. It's `true` if the batch's last report was
    /// for `space`, and no invalidation was broadcast for it. The space then counts the batch already, so other code
    /// that finds the entry cleared makes the flush ([`Engine::flush_pending`]). Never waits.
    #[inline]
    pub fn may_report_late(&self, space: &AddressSpace<H>) -> bool {
        let last = self.unflushed.pending.last();
        last.is_some_and(|last| !last.sent && core::ptr::eq(&*last.space, space))
    }

    /// Reports that entries of `space` were cleared or lost rights, without a frame.
    ///
    /// Call it after the tables were written, under their lock. With [`Scope::Tables`] the flush also reaches the
    /// caches of page-table walkers, and CPUs that keep the space loaded lazily ([`Cpu::enter_lazy`]). An empty range
    /// is no change.
    ///
    /// Never waits for a CPU or a device. If the machine broadcasts invalidations and [`Policy::batch`](crate::Policy)
    /// is off, the call may execute this CPU's barrier, which no code of another CPU can delay.
    #[inline(always)]
    pub fn changed(&mut self, space: S, range: PageRange, scope: Scope) {
        if range.pages != 0 {
            self.unflushed.add(space, Some(range), scope);
        }
    }

    /// Reports that entries anywhere in `space` were cleared or lost rights, like [`Batch::changed`]. Never waits for a
    /// CPU.
    pub fn changed_all(&mut self, space: S, scope: Scope) {
        self.unflushed.add(space, None, scope);
    }

    /// Reports that an entry of `space` was cleared, and takes the `frame` that it mapped.
    ///
    /// Call it like [`Batch::changed`]. The frame comes out of the batch after the flush. If the call panics, the frame
    /// is leaked, because a CPU may still use it. Never waits for a CPU.
    ///
    /// # Panics
    /// If the batch is full. If the range is empty, because the frame would come out unflushed.
    #[inline(always)]
    pub fn unmapped(&mut self, space: S, range: PageRange, frame: L::Frame) {
        self.report(space, range, Scope::Leaf, frame);
    }

    /// Reports that the page-table page in `frame` was unlinked from `space`.
    ///
    /// `range` is the range that the table spanned. Call it like [`Batch::changed`], with [`Scope::Tables`]. The flush
    /// then waits until every target has flushed, even with [`Policy::asynchronous`](crate::Policy). If the call
    /// panics, the frame is leaked, as by [`Batch::unmapped`]. Never waits for a CPU.
    ///
    /// If the table still maps pages, either clear and report each of them, or give `range` the stride of these pages.
    /// Otherwise the flush drops only the first page of each stride.
    ///
    /// # Panics
    /// If the batch is full. If the range is empty, because the frame would come out unflushed.
    pub fn table_unlinked(&mut self, space: S, range: PageRange, frame: L::Frame) {
        self.report(space, range, Scope::Tables, frame);
    }

    /// Reports the change and then takes the frame. A panic in between must not drop the frame, which isn't flushed.
    #[inline(always)]
    fn report(&mut self, space: S, range: PageRange, scope: Scope, frame: L::Frame) {
        let frame = ManuallyDrop::new(frame);
        assert!(range.pages != 0, "a frame is reported behind a range of no page");
        self.unflushed.add(space, Some(range), scope);
        self.hold(ManuallyDrop::into_inner(frame));
    }

    /// Takes a frame that needs no report of its own.
    ///
    /// Use it if all entries of the frame were reported with [`Batch::changed`], for example because several spaces
    /// mapped the frame. Use it also for a frame that no CPU can use any more. If the call panics, the frame is leaked,
    /// because a CPU may still use it. Never waits.
    ///
    /// # Panics
    /// If the batch is full.
    #[inline]
    pub fn hold(&mut self, frame: L::Frame) {
        let frame = ManuallyDrop::new(frame);
        assert!(
            !self.is_full(),
            "a batch whose list of frames is full must be finished before it takes another one"
        );
        self.frames.push(ManuallyDrop::into_inner(frame));
    }

    /// Flushes the changes of reclaim or migration if [`Policy::batch`](crate::Policy) is off.
    ///
    /// Call it each time you drop a lock under which changes were reported. Without batching such a batch then flushes
    /// once for each lock, and with batching once at its end. The frames stay in the batch. The call does nothing for
    /// [`Purpose::Call`], or if the flush may be deferred. May wait for other CPUs.
    #[inline]
    pub fn unlocked(&mut self) {
        self.lose_borrowed();
        if !self.unflushed.has_pending_batch() && !self.unflushed.is_empty() {
            self.unflushed.flush();
        }
    }

    /// Flushes all reported changes and returns the frames, which may have new owners now.
    ///
    /// Afterwards no user access on any CPU uses a translation that was reported (clauses C1 and C3 of [the
    /// contract](crate#the-contract)). May wait for other CPUs.
    #[inline]
    pub fn finish(&mut self) -> FlushedFrames<'_, L> {
        self.flush();
        FlushedFrames::new(&mut self.frames)
    }

    /// Flushes all changes. The frames stay in the list.
    #[inline]
    fn flush(&mut self) {
        self.lose_borrowed();
        self.unflushed.flush();
    }

    /// Leaks the frames if their [`DeferredFrames`] was forgotten, which is safe.
    #[inline]
    pub(crate) fn lose_borrowed(&mut self) {
        if H::MECHANISMS.lazy_unmap && self.borrowed {
            self.borrowed = false;
            drop(LeakGuard(&mut self.frames));
        }
    }

    /// Flushes like [`Batch::finish`] and returns the list itself.
    ///
    /// If you can empty your list in one step, this is faster than taking frame by frame. Frames that you leave in the
    /// list come out after the next flush, or are dropped with the batch. May wait for other CPUs.
    #[inline]
    pub fn finish_list(&mut self) -> &mut L {
        self.flush();
        &mut self.frames
    }

    /// Defers the flush until the frames are reused ([lazy unmap](crate::lazy)), or flushes now.
    ///
    /// May wait for other CPUs. If there are devices ([`Hardware::HAS_SECONDARY`]), it waits for them, because their
    /// flush is never deferred.
    ///
    /// It flushes now in these cases:
    ///
    /// * [`Policy::lazy_unmap`](crate::Policy) is off.
    /// * The ledger, the embedder's list of deferred flushes ([`LedgerEntry`](crate::LedgerEntry)), is full.
    /// * The batch has a change with [`Scope::Tables`], or changes of both the kernel and a user space.
    /// * The batch has more spaces than places.
    /// * A space has more outstanding batches than twice [`MAX_CPUS`](crate::MAX_CPUS).
    ///
    /// You guarantee that every mapping of every frame was read-only and clean, or was a kernel mapping that no CPU
    /// uses any more ([`crate::kernel`]). Before you clear a frame's entries, call
    /// [`DeferredFlush::begin`](crate::DeferredFlush::begin) under the lock of its page-cache slot. Before you drop
    /// that lock, call [`DeferredFlush::defer`](crate::DeferredFlush::defer) if the flush was deferred, and otherwise
    /// [`DeferredFlush::clear`](crate::DeferredFlush::clear). You may drop the locks of the tables before you finish
    /// the batch.
    ///
    /// The engine checks none of this. A mapping counts as long as a CPU may use it, even if its entry has changed. For
    /// example, if another CPU has write-protected an entry of the frame, first make sure that its batch has flushed
    /// ([`Engine::flush_pending_batches`]).
    pub fn finish_deferred(&mut self) -> Outcome<'_, L> {
        let engine = self.unflushed.engine;
        self.lose_borrowed();
        let pending = self.unflushed.pending.as_slice();
        // A lazy CPU gets no request for a deferred flush, but its walker may read a freed table. [mutant
        // TablesDeferred]
        let tables = pending.iter().any(|entry| entry.request.scope() == Scope::Tables);
        let of_kernel = |entry: &&PendingChanges<S>| entry.space.id().is_kernel();
        let kernels = pending.iter().filter(of_kernel).count();
        // A stamp is for kernel mappings or for user mappings, never for both. A CPU in user mode may leave a deferred
        // flush of kernel mappings to its next kernel entry, but not one of its own space. [mutant MixedFlushDeferred]
        let both = (1..pending.len()).contains(&kernels);
        let overflow = self.unflushed.overflow.is_some();
        if !engine.on().lazy_unmap || tables || overflow || both {
            return Outcome::Flushed(self.finish());
        }
        let me = engine.this_cpu();
        if H::HAS_SECONDARY {
            engine.assert_may_wait();
        }
        // Devices flush now. We defer only the CPUs' part.
        let told = me.start_secondary(self.unflushed.requests());
        me.wait_for_secondary(told);
        // We take the stamp after the entries were cleared: a flush that began before this tick doesn't cover them.
        let Some(stamp) = me.take_stamp() else {
            me.count(Counter::DeferralsRefused, 1);
            return Outcome::Flushed(self.finish());
        };
        me.count(Counter::FlushesDeferred, 1);
        let mut cpus = CpuSet::none();
        for (number, entry) in self.unflushed.pending.as_slice().iter().enumerate() {
            // Write the stamp, then read the set. A CPU that loads the space enters the set before it reads the stamp,
            // so one of the two sees the other. Write the stamp before the batch ends, so a later observer finds the
            // stamp or the batch. [mutant PendingEndsBeforeDeferred]
            entry.space.defer(stamp);
            entry.space.end_pending();
            match number {
                // With a single space, as is common, we read its set in place.
                0 => entry.space.read_loaded(&mut cpus, engine.count),
                _ => cpus.union(&entry.space.loaded_on(engine.count)),
            }
        }
        engine.ledger.record(stamp, engine.count, &cpus, kernels != 0);
        self.unflushed.pending.clear();
        self.borrowed = true;
        Outcome::Deferred(DeferredFrames::new(&mut self.frames, Stamp(stamp), &mut self.borrowed))
    }
}

impl<H: Hardware, S, const N: usize> BatchChanges<'_, S, N>
where
    S: Deref<Target = AddressSpace<H>>,
{
    /// Adds a range that isn't empty, or the whole space. Stores nothing if the batch already flushes the last space
    /// whole.
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
        // The common case: another page of the same space.
        if let Some(last) = self.pending.last_mut()
            && last.joins
            && last.is_of(&space)
            && last.take(range, scope, most)
        {
            return;
        }
        self.add_another(space, range, scope);
    }

    /// Adds the first change of a batch, often the only one. Inlined, because most of the stored values are constants
    /// there.
    #[inline(always)]
    fn add_first(&mut self, space: S, range: Option<PageRange>, scope: Scope) {
        if !self.joins() {
            return self.add_another(space, range, scope);
        }
        if !space.begin_pending() {
            return self.add_overflow(&space, range, scope);
        }
        self.pending.push(PendingChanges::first(space, range, scope, false, true));
    }

    /// Returns whether the flush may be deferred until the frames are reused.
    #[inline]
    fn may_defer(&self) -> bool {
        self.purpose == Purpose::Lazy && self.engine.on().lazy_unmap
    }

    /// Returns whether changes wait for the end of the batch.
    #[inline]
    fn has_pending_batch(&self) -> bool {
        self.engine.on().batch || self.purpose == Purpose::Call || self.may_defer()
    }

    /// Returns whether nothing is sent early, so that later changes join the same flush.
    #[inline]
    fn joins(&self) -> bool {
        self.engine.broadcasts().is_none()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.overflow.is_none()
    }

    /// Adds a change of a space without a place, or with too many outstanding batches.
    #[cold]
    fn add_overflow(&mut self, space: &S, range: Option<PageRange>, scope: Scope) {
        let request = Request::of(range, scope);
        self.engine.this_cpu().report_overflow(space, &request, &mut self.overflow);
    }

    #[inline(never)]
    fn add_another(&mut self, space: S, range: Option<PageRange>, scope: Scope) {
        let engine = self.engine;
        let me = engine.this_cpu();
        let request = || Request::of(range, scope);
        if !self.joins() && !self.has_pending_batch() && !H::HAS_SECONDARY {
            // We can send and wait at once: the barrier waits for this CPU only. With devices we'd have to wait for
            // these too, so they're flushed at the end.
            return me.flush_by_broadcast([(&*space, &request())].into_iter());
        }
        // The CPU of the first change alone sends early. [mutant LentChangeTaken]
        if self.pending.is_empty() {
            self.cpu = me.id();
        }
        let found = self.find(&space);
        if found.is_none() && (self.pending.is_full() || !space.begin_pending()) {
            return self.add_overflow(&space, range, scope);
        }
        // On a machine that broadcasts, reclaim sends now and waits later, provided that this CPU sent the earlier
        // broadcasts: its barrier completes them all.
        let send_now = engine.broadcasts().is_some()
            && self.purpose != Purpose::Call
            && !self.may_defer()
            && me.id() == self.cpu;
        if send_now {
            me.broadcast_early(&space, &request());
        }
        match found {
            Some(index) => {
                let entry = &mut self.pending.as_mut_slice()[index];
                entry.request.grow(range, scope, engine.hw.ranges());
                // Another CPU's change may be unsent. [mutant LentChangeForgotten]
                entry.sent &= send_now;
                entry.fresh = false;
                entry.strides = entry.request.strides().unwrap_or(0);
            }
            None => {
                let joins = self.joins();
                self.pending.push(PendingChanges::first(space, range, scope, send_now, joins));
            }
        }
    }

    #[inline]
    fn find(&self, space: &S) -> Option<usize> {
        self.pending.as_slice().iter().position(|entry| entry.space.id() == space.id())
    }

    /// Flushes all outstanding changes. The frames stay.
    #[inline(always)]
    fn flush(&mut self) {
        let engine = self.engine;
        // Frames come out only after the flush. [mutant FinishSkipsFlush: bug 30]
        if !self.is_empty() {
            engine.assert_may_wait();
        }
        let me = engine.this_cpu();
        match self.pending.as_slice() {
            [only] if !H::IS_SMALL && self.overflow.is_none() && engine.broadcasts().is_none() => {
                if !only.fresh || !me.flush_alone(&only.space, &only.request) {
                    me.flush_one_or_coalesce(&only.space, &only.request);
                    only.space.end_pending();
                }
                self.pending.clear();
            }
            _ => self.flush_everywhere(me),
        }
    }

    /// Returns the outstanding requests, one for each space.
    pub(crate) fn requests(
        &self,
    ) -> impl ExactSizeIterator<Item = (&AddressSpace<H>, &Request)> + Clone {
        requests(self.pending.as_slice())
    }

    pub(crate) fn end_all_pending(&mut self) {
        for entry in self.pending.as_slice() {
            entry.space.end_pending();
        }
        self.pending.clear();
    }

    #[inline(never)]
    fn flush_everywhere(&mut self, me: Cpu<'_, H>) {
        let engine = self.engine;
        if engine.broadcasts().is_some() {
            let told = me.start_secondary(self.requests());
            self.complete_broadcasts(me);
            me.wait_for_secondary(told);
        } else if !self.pending.as_slice().is_empty() {
            me.shoot_down(self.requests());
        }
        if let Some(overflow) = self.overflow.take() {
            me.flush_overflow(&overflow);
            me.wait_for_secondary(overflow.told);
        }
        self.end_all_pending();
    }

    /// Sends the remaining broadcasts and executes this CPU's barrier, on a machine that broadcasts.
    pub(crate) fn complete_broadcasts(&mut self, me: Cpu<'_, H>) {
        // Separate the requests to send from those that only lack this CPU's barrier. A batch that was carried to
        // another CPU sends everything again. [mutant CarriedNotResent]
        let carried = me.id() != self.cpu;
        let entries = self.pending.as_mut_slice();
        let mut unsent = 0;
        for index in 0..entries.len() {
            if carried || !entries[index].sent {
                entries.swap(unsent, index);
                unsent += 1;
            }
        }
        if unsent > 0 {
            me.broadcast_flush(requests(&entries[..unsent]));
        }
        if unsent < entries.len() {
            me.complete();
        }
    }
}

fn requests<'p, H, S>(
    pending: &'p [PendingChanges<S>],
) -> impl ExactSizeIterator<Item = (&'p AddressSpace<H>, &'p Request)> + Clone
where
    H: Hardware + 'p,
    S: Deref<Target = AddressSpace<H>>,
{
    pending.iter().map(|entry| (&*entry.space, &entry.request))
}

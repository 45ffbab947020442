//! An address space as the engine sees it: a generation, the CPUs that use it, and its deferred flushes.
//!
//! # Generations
//!
//! Each flush of changed entries takes the next *flush generation* of the space, after the table was written and before
//! the initiator reads the set of CPUs. Each CPU stores for each of its tags the generation that it has caught up with.
//! A target compares the request's generation with its own, so a request may be merged, late or doubled. A target that
//! has caught up with generation 7, for example, flushes the ranges of request 8 and ignores request 6. Request 9 makes
//! it flush the whole tag, because it has missed request 8.
//!
//! # The set of CPUs to interrupt
//!
//! `loaded` contains the CPUs that may have the space's root loaded. A CPU enters the set *before* it reads the
//! generation and loads the root, and leaves it after another root was loaded. So the set may contain a CPU
//! needlessly, but never misses one. It doesn't contain CPUs that merely keep tagged entries: they compare generations
//! when they load the space again.
//!
//! # Deferred flushes
//!
//! A *later observer* finds an entry already cleared, and must know whether its flush is over. It reads three words of
//! one cache line: the number of batches that have yet to flush, the latest unflushed change that belongs to no counted
//! batch ([`overflow`](crate::overflow)), and the latest flush that is deferred until reuse. If all three are 0, every
//! cleared entry of the space has been flushed.
//!
//! # Generation and count share a word
//!
//! The high bits of one word hold the generation. The low bits hold the number of pending batches, which have yet to
//! flush. So a batch that finds only its own CPU in `loaded` needs one locked operation, not two, to take its
//! generation and to subtract itself from the count. In this case alone, it reads the set *before* it takes the
//! generation. A CPU that enters the set later reads this word later still. If it finds the batch pending, it drops its
//! own entries of the space. Otherwise it finds the new generation.
//!
//! The count must not overflow into the generation. Half of its range is for pending batches, two for each CPU that the
//! engine supports. Changes of further batches aren't counted: the space records only the generation of the latest one
//! ([`overflow`](crate::overflow)). The other half is for initiators that have incremented the count and not yet
//! checked the result. It's enough for two on each CPU: one that an interrupt handler has preempted, and that handler.
//! If a thread can be preempted while it holds the lock of a table, each thread that is stopped between the increment
//! and the check takes one of these places, too.
//!
//! The generation has the remaining 52 bits. At a flush every 100 ns in one space, they last 14 years. With sets of
//! 8192 CPUs, 49 bits remain, which last one year and nine months.

use crate::addr::Frame;
use crate::asid::SpaceTag;
use crate::coalesced::CoalescedFlushes;
use crate::cpu_set::{AtomicCpuSet, CpuBit, CpuId, CpuSet, MAX_CPUS};
use crate::hardware::{Hardware, Scope, Tag};
use crate::word::{self, Word, is_at};
use core::fmt;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// Names an [`AddressSpace`]. An engine never uses a name twice.
///
/// The two highest bits encode whether the space is the kernel's, and the kind of its entries: [`SpaceId::kernel`]
/// decodes them.
///
/// # Examples
///
/// ```
/// # quell::one_cpu!(machine, engine, space);
/// use quell::Frame;
/// // SAFETY: this machine walks no tables.
/// let next = unsafe { engine.new_space(Frame(2)) };
/// assert_ne!(next.id(), space.id());
/// assert_eq!(next.id().kernel(), None); // a user space
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SpaceId(pub u64);

/// Selects the kind of entries that map a kernel space. TLBs keep each kind differently.
///
/// # Examples
///
/// ```
/// # quell::one_cpu!(machine, engine, space);
/// use quell::{Frame, KernelEntries, Page, PageRange, Purpose};
/// // SAFETY: this machine walks no tables, and all entries reported below are global.
/// let kernel = unsafe { engine.new_kernel_space(Frame(2), KernelEntries::Global) };
/// machine.access(Page(60)); // the kernel's own
/// let mut batch = engine.batch(Purpose::Call);
/// batch.unmapped(&kernel, PageRange::base(Page(60), 1), Frame(42));
/// batch.finish().for_each(drop);
/// assert!(!machine.caches(Page(60)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KernelEntries {
    /// Global entries only. A TLB keeps one translation of a page, whatever root is loaded.
    Global,
    /// Entries that aren't global, or entries of both kinds. A TLB with tags keeps a translation under each tag that
    /// was loaded while the translation was used. An example is x86 with page-table isolation, whose kernel half isn't
    /// global.
    Tagged,
}

const KERNEL: u64 = 1 << 63;
const KERNEL_TAGGED: u64 = 1 << 62;

impl SpaceId {
    pub(crate) const fn of_kernel(number: u64, entries: KernelEntries) -> SpaceId {
        match entries {
            KernelEntries::Global => SpaceId(number | KERNEL),
            KernelEntries::Tagged => SpaceId(number | KERNEL | KERNEL_TAGGED),
        }
    }

    /// Returns the kind of a kernel space's entries, or `None` for a user space.
    #[inline]
    pub const fn kernel(self) -> Option<KernelEntries> {
        match (self.is_kernel(), self.0 & KERNEL_TAGGED != 0) {
            (false, _) => None,
            (true, false) => Some(KernelEntries::Global),
            (true, true) => Some(KernelEntries::Tagged),
        }
    }

    #[inline]
    pub(crate) const fn is_kernel(self) -> bool {
        self.0 & KERNEL != 0
    }
}

/// Holds the engine's state of an address space: the CPUs that may have it loaded, and its outstanding flushes.
///
/// Made by [`Engine::new_space`](crate::Engine::new_space), or by
/// [`Engine::new_kernel_space`](crate::Engine::new_kernel_space) for the kernel's own mappings.
///
/// It owns neither its root nor its tables: the kernel frees these after [`Engine::retire`](crate::Engine::retire).
/// Dropping the value flushes nothing, and makes no CPU leave the root.
///
/// # Examples
///
/// ```
/// # quell::one_cpu!(machine, engine, space);
/// use quell::{Page, PageRange, Purpose, Scope};
/// let mut batch = engine.batch::<_, ()>(Purpose::Call);
/// batch.changed(&space, PageRange::base(Page(5), 1), Scope::Leaf);
/// assert!(space.is_in_batch());
/// engine.flush_pending(&space); // a later observer, which relies on the cleared entry
/// batch.finish();
/// assert!(!space.is_in_batch());
/// ```
// In this order, the fields of most calls lie in the first line, where code reaches them by the shortest instructions.
#[repr(C, align(64))]
pub struct AddressSpace<H: Hardware> {
    /// A [`Flushes`]. Initiators write it; CPUs that load the space and later observers read it.
    flushes: H::Word,
    /// The latest stamp deferred until reuse, or 0.
    deferred: H::Word,
    /// The generation of the latest unflushed change that no batch counts, or 0.
    overflow: H::Word,
    /// The system-wide tag.
    pub(crate) tag: SpaceTag<H::Word>,
    /// The number of the latest [shared flush](crate::coalesced) that a task has requested, by scope. It's in this
    /// cache line because such a task has just written `flushes`.
    taken: [H::Word; 2],
    id: SpaceId,
    root: Frame,
    /// The CPUs that may have the root loaded.
    loaded: AtomicCpuSet<H::Word>,
    waited: WaitedLine<H::Word>,
}

/// Words in a line of their own, because tasks that wait read it all the time.
#[repr(align(64))]
struct WaitedLine<W> {
    /// The latest numbers of shared flushes that are served, by scope.
    served: [W; 2],
    /// Set once the space has ended. Only an assertion reads it, so it isn't a word of the protocol.
    #[cfg(debug_assertions)]
    retired: core::sync::atomic::AtomicBool,
}

/// Returns the set of the first `cpus` CPUs.
///
/// Adds them one by one, because copying a constant set would take 2 KB of text.
fn everywhere<W: Word>(cpus: usize) -> AtomicCpuSet<W> {
    let set = AtomicCpuSet::new();
    for cpu in 0..cpus {
        // Relaxed: no other CPU knows the set yet.
        set.insert(CpuId(cpu as u16), Relaxed);
    }
    set
}

impl<H: Hardware> fmt::Debug for AddressSpace<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("AddressSpace");
        shown.field("id", &self.id).field("root", &self.root);
        shown.finish_non_exhaustive()
    }
}

/// The progress of a space's flushes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flushes {
    /// The number of batches that have yet to flush.
    pub(crate) pending: u64,
    /// The latest flush generation taken.
    pub(crate) generation: u64,
}

// Half of the range is for two outstanding batches of each CPU, the other half for initiators that have yet to check
// the count.
const _: () = assert!(1 << word::BATCH_BITS == 4 * MAX_CPUS);

impl<H: Hardware> AddressSpace<H> {
    const ONE_GENERATION: u64 = 1 << H::Word::BATCH_BITS;
    /// The maximum number of outstanding batches.
    pub(crate) const MOST_BATCHES: u64 = Self::ONE_GENERATION / 2;

    #[inline]
    fn decode(word: u64) -> Flushes {
        Flushes {
            pending: word & (Self::ONE_GENERATION - 1),
            generation: word >> H::Word::BATCH_BITS,
        }
    }

    pub(crate) fn new(id: SpaceId, root: Frame) -> Self {
        AddressSpace {
            flushes: H::Word::new(Self::ONE_GENERATION),
            deferred: H::Word::new(0),
            overflow: H::Word::new(0),
            tag: SpaceTag::new(),
            taken: core::array::from_fn(|_| H::Word::new(0)),
            id,
            root,
            loaded: AtomicCpuSet::new(),
            waited: WaitedLine {
                served: core::array::from_fn(|_| H::Word::new(0)),
                #[cfg(debug_assertions)]
                retired: core::sync::atomic::AtomicBool::new(false),
            },
        }
    }

    /// Makes [`AddressSpace::assert_not_retired`] fail from now on, in debug builds.
    #[inline]
    pub(crate) fn assert_never_loaded_again(&self) {
        #[cfg(debug_assertions)]
        self.waited.retired.store(true, Relaxed);
    }

    /// Panics, in debug builds, if the space has ended.
    #[inline]
    #[track_caller]
    pub(crate) fn assert_not_retired(&self) {
        #[cfg(debug_assertions)]
        assert!(
            !self.waited.retired.load(Relaxed),
            "a CPU loads an address space that was retired: its root may be freed"
        );
    }

    /// Makes a kernel space, which each of `cpus` CPUs has loaded for ever.
    pub(crate) fn of_kernel(id: SpaceId, root: Frame, cpus: usize) -> Self {
        AddressSpace { loaded: everywhere(cpus), ..Self::new(id, root) }
    }

    /// Returns the space's id.
    #[inline]
    pub fn id(&self) -> SpaceId {
        self.id
    }

    /// Returns the frame of the space's root table.
    pub fn root(&self) -> Frame {
        self.root
    }

    /// Returns whether a [`Batch`](crate::Batch) that holds a reference to the space has yet to flush.
    ///
    /// [`Engine::retire`](crate::Engine::retire) doesn't check this, because such a batch flushes at its end even if
    /// the space was retired. The answer doesn't cover other outstanding flushes: those of
    /// [`Cpu::flush`](crate::Cpu::flush), those of [overflow](crate::overflow), and those that [lazy
    /// unmap](crate::lazy) has deferred.
    #[inline]
    pub fn is_in_batch(&self) -> bool {
        self.flushes().pending != 0
    }

    /// Loads the root on this CPU, like [`Hardware::load_root`].
    #[allow(unsafe_code)]
    #[inline]
    pub(crate) fn load(&self, hw: &H, tag: Tag, keep: bool) {
        // SAFETY: the root stays a root table while CPUs may switch to the space, as the caller of
        // `Engine::new_space` has promised; `retire` returns after every CPU has left it.
        unsafe { hw.load_root(self.root, tag, keep) };
    }

    /// Returns the name of the word at this address if it belongs to this space. For tools that show
    /// which word each step of the engine reads or writes.
    #[doc(hidden)]
    pub fn word_name(&self, address: usize) -> Option<&'static str> {
        let at = |word: &H::Word| is_at(word, address);
        let start = core::ptr::from_ref(self) as usize;
        match () {
            () if at(&self.flushes) => Some("generation"),
            () if at(&self.deferred) => Some("deferral"),
            () if at(&self.overflow) => Some("overflow"),
            () if self.tag.has_word(address) => Some("tag"),
            () if self.taken.iter().any(at) => Some("taken"),
            () if self.waited.served.iter().any(at) => Some("served"),
            () if (start..start + size_of_val(self)).contains(&address) => Some("loaded"),
            () => None,
        }
    }

    /// Returns the two words with the numbers of a scope's shared flushes: the latest requested, and the latest made.
    pub(crate) fn coalesced(&self, scope: Scope) -> CoalescedFlushes<'_, H::Word> {
        let index = usize::from(scope == Scope::Tables);
        CoalescedFlushes { taken: &self.taken[index], served: &self.waited.served[index] }
    }

    /// Returns the generation and the number of pending batches.
    #[inline]
    pub(crate) fn flushes(&self) -> Flushes {
        // SeqCst pairs with `next_generation`, `begin_batch`, `end_batch` and `end_batch_alone`: a CPU that loads the
        // space is in its set before it reads here, so it sees the change, or the initiator sees the CPU. A later
        // observer that finds no batch sees the flushes done.
        // A weaker ordering fails the loom race "an idle CPU comes back".
        Self::decode(self.flushes.load(SeqCst))
    }

    /// Returns the latest stamp deferred until reuse, or 0.
    ///
    /// A batch that defers raises the stamp *before* it decrements [`Flushes::pending`]. So a CPU that reads the count
    /// first, then the stamp, sees at least one of the two.
    #[inline]
    pub(crate) fn deferred(&self) -> u64 {
        if !H::MECHANISMS.lazy_unmap {
            return 0;
        }
        // Acquire pairs with `deferred_flushed`: a later observer that finds nothing deferred sees the flushes done.
        // A weaker ordering fails the loom race "two later observers meet a deferred flush".
        self.deferred.load(Acquire)
    }

    /// Takes the next flush generation and returns it.
    pub(crate) fn next_generation(&self) -> u64 {
        // SeqCst pairs with `flushes`: the initiator reads the set next, so it sees a CPU that loads the space, or that
        // CPU sees the new generation.
        // A weaker ordering fails the loom race "an idle CPU comes back".
        Self::decode(self.flushes.fetch_add(Self::ONE_GENERATION, SeqCst)).generation + 1
    }

    /// Counts a batch that has cleared an entry of the space and will flush later.
    ///
    /// Called under the lock of the table: a later observer that takes that lock next and finds the entry cleared finds
    /// the batch, too. Returns `false`, and counts nothing, if `most` are outstanding: see the module.
    #[inline]
    #[must_use]
    pub(crate) fn begin_batch(&self, most: u64) -> bool {
        // SeqCst pairs with `flushes`: an initiator may read the set before it takes its generation. It finds a CPU
        // that loads the space in the set, or that CPU sees the batch outstanding.
        // A weaker ordering fails the loom race "a space is loaded while it is flushed".
        let before = Self::decode(self.flushes.fetch_add(1, SeqCst));
        before.pending < most || self.refuse_batch()
    }

    #[cold]
    fn refuse_batch(&self) -> bool {
        self.end_batch();
        false
    }

    /// Ends the count of a batch that has flushed, or whose flush is deferred.
    pub(crate) fn end_batch(&self) {
        // SeqCst pairs with `flushes`: a later observer that finds no batch sees it flushed. A CPU that comes back and
        // finds none sees the stamp of a deferred flush.
        // A weaker ordering fails the loom race "an idle CPU comes back to a deferred flush".
        self.flushes.fetch_add(u64::MAX, SeqCst);
    }

    /// Ends a batch that needed no other CPU, and takes a generation, in one step.
    ///
    /// Returns the previous generation.
    #[inline]
    pub(crate) fn end_batch_alone(&self) -> u64 {
        let step = Self::ONE_GENERATION - 1;
        // Release pairs with `flushes`: a later observer that finds no batch sees it flushed. A CPU that loads the
        // space and misses this update finds the batch, which `begin_batch` has counted.
        // A weaker ordering fails the loom race "a later observer meets a batch that flushes alone".
        Self::decode(self.flushes.fetch_add(step, Release)).generation
    }

    /// Records that a batch defers its flush until reuse, as of `stamp`. [`AddressSpace::end_batch`] follows.
    pub(crate) fn defer(&self, stamp: u64) {
        // Relaxed: every CPU reads this word after the one that `end_batch` publishes. A CPU that misses the stamp has
        // seen the batch outstanding, or none of its changes.
        self.deferred.fetch_max(stamp, Relaxed);
    }

    /// Records that the deferred flush as of `stamp` was made.
    pub(crate) fn deferred_flushed(&self, stamp: u64) {
        // A later deferred flush stays.
        // Release pairs with `deferred`: the next later observer, which finds nothing deferred, sees the flushes done.
        // A weaker ordering fails the loom race "two later observers meet a deferred flush".
        let _ = self.deferred.compare_exchange(stamp, 0, Release, Relaxed);
    }

    /// Records that a change that no batch counts took this generation.
    ///
    /// Called under the lock of the table, like [`AddressSpace::begin_batch`].
    pub(crate) fn overflow_pending(&self, generation: u64) {
        // Relaxed: a later observer that reads it takes a generation of its own next. That comes after this one, so it
        // sees the tables as they were written before.
        self.overflow.fetch_max(generation, Relaxed);
    }

    /// Returns the generation of the latest unflushed change that no batch counts, or 0.
    #[inline]
    pub(crate) fn overflow(&self) -> u64 {
        // Acquire pairs with `overflow_flushed`: a later observer that finds no such change sees the flush done.
        // A weaker ordering fails the loom race "two later observers meet a change that no batch counts".
        self.overflow.load(Acquire)
    }

    /// Records that the whole space was flushed after [`AddressSpace::overflow`] had returned `generation`.
    pub(crate) fn overflow_flushed(&self, generation: u64) {
        // A later change stays.
        // Release pairs with `overflow`: the next later observer, which finds no such change, sees the flush done.
        // A weaker ordering fails the loom race "two later observers meet a change that no batch counts".
        let _ = self.overflow.compare_exchange(generation, 0, Release, Relaxed);
    }

    /// Adds a CPU that is about to load the root.
    #[inline]
    pub(crate) fn enter(&self, cpu: CpuBit) {
        // SeqCst pairs with `read_loaded` and `is_loaded_only_on`: this CPU reads the generation and the stamp next. So
        // the initiator sees this CPU in the set, or this CPU sees the change.
        // A weaker ordering fails the loom race "a space is loaded while it is flushed".
        self.loaded.seat(cpu, SeqCst);
    }

    /// Removes a CPU like [`AddressSpace::leave`], but does nothing for a kernel space.
    ///
    /// Every CPU has the kernel mappings loaded for ever. So it doesn't leave the kernel space when it switches away
    /// from an idle thread that has this space as its own.
    #[inline]
    pub(crate) fn leave_if_user(&self, cpu: CpuBit) {
        if !self.id.is_kernel() {
            self.leave(cpu);
        }
    }

    /// Removes a CPU that has loaded another root: its accesses through this user space's root are over.
    #[inline]
    pub(crate) fn leave(&self, cpu: CpuBit) {
        // Release pairs with `read_loaded` and `is_loaded_only_on`: this CPU's accesses are over before an initiator
        // finds it absent.
        // A weaker ordering fails the loom race "a CPU leaves a space while it is flushed".
        self.loaded.unseat(cpu, Release);
    }

    /// Returns those of the first `cpus` CPUs that may have the root loaded.
    #[inline]
    pub(crate) fn loaded_on(&self, cpus: usize) -> CpuSet {
        let mut loaded = CpuSet::none();
        self.read_loaded(&mut loaded, cpus);
        loaded
    }

    /// Writes the CPUs that may have the root loaded into an empty set. In place, to avoid a copy.
    #[inline]
    pub(crate) fn read_loaded(&self, into: &mut CpuSet, cpus: usize) {
        // SeqCst pairs with `enter` and `leave`: the initiator has taken its generation or written its stamp before
        // this. So it sees a CPU that loads the space, or that CPU sees the generation or the stamp.
        // A weaker ordering fails the loom race "a space is loaded while a deferred flush is taken".
        self.loaded.read_into(into, cpus, SeqCst);
    }

    /// Returns whether no CPU below `cpus` except `cpu` may have the root loaded.
    #[inline]
    pub(crate) fn is_loaded_only_on(&self, cpu: CpuBit, cpus: usize) -> bool {
        // SeqCst pairs with `enter` and `leave`: the batch was counted before this, or the generation taken. So the
        // initiator sees a CPU that loads the space, or that CPU sees the batch or the generation.
        // A weaker ordering fails the loom race "a space is loaded while it is flushed".
        self.loaded.is_within_seat(cpu, cpus, SeqCst)
    }
}

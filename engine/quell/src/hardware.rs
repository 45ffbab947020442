//! What a machine must provide: the one interface between the engine and everything below it.
//!
//! The engine never names a machine. A kernel, a hypervisor, the machine in software, a set of
//! threads and a checker of memory orderings all implement [`Hardware`]; the engine is compiled
//! for each of them, so nothing is dispatched at run time, and a method that a machine leaves at its
//! default costs nothing.
//!
//! Shared memory is part of the machine too: every word that two CPUs may touch is a
//! [`Hardware::Word`]. A kernel takes [`core::sync::atomic::AtomicU64`]; the machine in software
//! takes a word that charges for the transfer of cache lines and lets a scheduler step in.
//!
//! A thread must not migrate to another CPU while it is inside the engine. Interrupts may be on or off; the engine
//! masks them where it must ([`Hardware::mask_interrupts`]). Where they are not masked, a thread inside the engine may
//! be preempted, and an interrupt handler may call the engine. An NMI handler may only call
//! [`Engine::user_access_allowed`](crate::Engine::user_access_allowed) and
//! [`Engine::enter_kernel`](crate::Engine::enter_kernel), and, where it returns to a program,
//! [`Engine::enter_user`](crate::Engine::enter_user). The methods of a machine call nothing of the engine, but
//! [`Hardware::relax`] and [`Hardware::restore_interrupts`] may let an interrupt in whose handler does.
//!
//! # Locks
//!
//! Every call says whether it may wait. A call that waits does so until other CPUs have taken an interrupt. It serves
//! its own CPU's inbox meanwhile, so waiting with interrupts off does not deadlock by itself (C7). But it waits for
//! ever for a CPU that spins, with interrupts off, for a lock that the caller holds. So there is one rule: under a lock
//! that is taken with interrupts off the kernel calls nothing that may wait, unless every loop that spins for that lock
//! calls [`Engine::poll`](crate::Engine::poll). It may hold locks that are taken with interrupts on. With
//! [`Hardware::may_wait`] a debug build notices a mistake.

use crate::addr::{Frame, PageRange};
use crate::cpu_set::{CpuId, CpuSet};
use crate::features::Features;
use crate::policy::Policy;
use crate::word::Word;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// A hardware tag of TLB entries: a PCID on x86, an ASID on Arm and RISC-V.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Tag(pub u16);

impl Tag {
    /// The tag of the kernel's own root, never given to an address space.
    pub const KERNEL: Tag = Tag(0);
}

/// What an invalidation reaches besides leaf entries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Scope {
    /// Only leaf entries changed: the walker caches may keep upper levels.
    #[default]
    Leaf,
    /// Page-table pages were unlinked too: the walker caches must drop what they know of them.
    Tables,
}

/// What to invalidate with one [`Hardware::invalidate`] or [`Broadcast::start`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Invalidate {
    /// The entries of a range under one tag. On machines without tags the tag is ignored.
    Range {
        /// The tag whose entries go.
        tag: Tag,
        /// The range, one invalidation per stride.
        range: PageRange,
        /// Leaf entries alone, or the walker caches on the path as well.
        scope: Scope,
    },
    /// All entries under one tag, walker caches included.
    Tag(Tag),
    /// All entries under all tags, walker caches included; global kernel entries may stay.
    All,
    /// The entries of a range of the kernel's half, global ones and those under the tag that is loaded: what
    /// `invlpg`, `tlbi vaae1` and `sfence.vma` with an address alone do. Entries under other tags may stay where
    /// each CPU gives tags its own meaning; where tags mean the same everywhere, they go as well.
    Kernel {
        /// The range, one invalidation per stride.
        range: PageRange,
        /// Leaf entries alone, or the walker caches on the path as well.
        scope: Scope,
    },
    /// All entries under all tags, global ones and walker caches included. It begins with a full barrier, as
    /// [`Hardware::fence`]: what this CPU has stored is visible to others before it fills anything again. A machine on
    /// which no kernel space is made may treat it as [`Invalidate::All`].
    Everything,
}

/// Where the engine's state of one CPU is. Made by [`PerCpu::place`](crate::PerCpu::place) alone.
pub struct PlaceOf<H> {
    address: NonNull<()>,
    of: PhantomData<fn(H)>,
}

impl<H> PlaceOf<H> {
    pub(crate) fn new(address: NonNull<()>) -> Self {
        PlaceOf {
            address,
            of: PhantomData,
        }
    }

    pub(crate) fn address(self) -> NonNull<()> {
        self.address
    }
}

/// The machine under the engine.
///
/// # Guarantees the implementation gives
///
/// * [`Hardware::invalidate`] has taken effect on this CPU when it returns: no later access of this CPU, and no
///   speculation that a later access uses, sees an entry it covers unless the entry was filled again from the tables
///   after the call began. Stores to page tables that precede the call in program order, or that other CPUs have made
///   and this one has observed, are visible to the fills that follow it. A release store that follows the call is seen
///   by others only after it has taken effect. All of this holds of [`Hardware::load_root`] where it keeps nothing.
/// * [`Hardware::fence`] orders everything before it, table stores included, before everything
///   after it, *and* makes the table stores visible to the walkers of all CPUs (`mfence` on x86,
///   `dsb ish` on Arm): its own, and those of other CPUs that it has observed, for instance by
///   taking the lock under which they were made.
/// * An interrupt sent by [`Hardware::interrupt`] sooner or later makes its target call
///   [`Engine::on_interrupt`](crate::Engine::on_interrupt), once interrupts are on there; what was
///   stored before the sending is visible to the handler.
///
/// # What it does not guarantee
///
/// Interrupts may be late, merged, duplicated or spurious. TLBs may fill speculatively at any time
/// from any table reachable from a loaded root, and may forget anything at any time.
///
/// # Safety
/// Memory that a kernel frees after a flush is safe only if the flush happened. The implementation gives the
/// guarantees above, its [`Hardware::Broadcasts`] gives those of [`Broadcast`], [`Hardware::this_cpu`] names the CPU
/// that executes the call and no other CPU at the same time, and [`Hardware::features`] reuses nothing that the
/// machine lacks.
#[allow(unsafe_code)] // A declaration: there is nothing unsafe in here.
pub unsafe trait Hardware: Sized + Send + Sync {
    /// Memory shared between CPUs.
    type Word: Word;

    /// The mechanisms that an engine on this machine can have on: all by default. The code of the others is compiled
    /// away, and the engine refuses a policy that asks for one of them
    /// ([`Unsupported::LeftOut`](crate::Unsupported::LeftOut)). Only which mechanisms this policy [has](Policy::has)
    /// counts, not their settings.
    const MECHANISMS: Policy = Policy::ALL;

    /// The most ranges that one request has, from 1 to 11: with one more it becomes a flush of the whole tag, as it
    /// does with more pages than [`Features::full_above`]. Fewer are right where a whole flush is cheap; a request
    /// takes as much room with fewer.
    ///
    /// No engine is made with another number:
    ///
    /// ```compile_fail,E0080
    /// # use quell::{CpuId, CpuSet, Engine, Features, Frame, Hardware, Invalidate, NoBroadcasts, PerCpu, Policy, Tag, Tagging};
    /// # struct Machine;
    /// # // SAFETY: it keeps no translations.
    /// unsafe impl Hardware for Machine {
    ///     const RANGES: usize = 12;
    /// #   type Word = std::sync::atomic::AtomicU64;
    /// #   type Broadcasts = NoBroadcasts;
    /// #   fn this_cpu(&self) -> CpuId { CpuId(0) }
    /// #   fn features(&self) -> Features { Features { tagging: Tagging::None, broadcast: false, full_above: 33 } }
    /// #   fn fence(&self) {}
    /// #   fn invalidate(&self, _: Invalidate) {}
    /// #   unsafe fn load_root(&self, _: Frame, _: Tag, _: bool) {}
    /// #   fn unload_root(&self) {}
    /// #   fn interrupt(&self, _: &CpuSet) {}
    /// #   fn mask_interrupts(&self) -> bool { false }
    /// #   fn restore_interrupts(&self, _: bool) {}
    /// #   fn relax(&self) {}
    ///     // …
    /// }
    /// let engine = Engine::new(&Machine, &[], &[], Policy::ALL);
    /// ```
    const RANGES: usize = 11;

    /// The most ranges that a request on this machine has, where that is known at run time only: from 1 to
    /// [`Hardware::RANGES`], which it is by default. It answers the same at each call.
    #[inline]
    fn ranges(&self) -> usize {
        Self::RANGES
    }

    /// Whether devices or hypervisors walk the tables of spaces, too. If not, [`Hardware::start_secondary`] is never
    /// called.
    const HAS_SECONDARY: bool = false;

    /// The type of [`Hardware::broadcasts`]: [`NoBroadcasts`] on machines without.
    type Broadcasts: Broadcast;

    /// The CPU that executes the call.
    fn this_cpu(&self) -> CpuId;

    /// Where the engine's state of this CPU is, for kernels that keep it in their per-CPU area: such a kernel makes its
    /// engine with [`Engine::with_own_state`](crate::Engine::with_own_state). `None`, for each CPU, if the state is in
    /// the slice that [`Engine::new`](crate::Engine::new) was given.
    ///
    /// It answers the same at each call, and differently for each CPU.
    #[inline]
    fn per_cpu(&self, cpu: CpuId) -> Option<PlaceOf<Self>> {
        let _ = cpu;
        None
    }

    /// The features of the machine. They must not change after the engine was made.
    fn features(&self) -> Features;

    /// A full barrier; see the guarantees above.
    fn fence(&self);

    /// Invalidates translations of this CPU alone. A tag that is named is the one under which this CPU has its
    /// root loaded; only a [`Broadcast`] may name another.
    fn invalidate(&self, what: Invalidate);

    /// How to reach every CPU without interrupts, if the machine has that and says so in
    /// [`Features::broadcast`]; `type Broadcasts = NoBroadcasts` and `None` if not.
    #[inline]
    fn broadcasts(&self) -> Option<&Self::Broadcasts> {
        None
    }

    /// Loads a root under a tag. With `keep`, entries under the tag survive; without it, all of them are gone when the
    /// call returns. On machines without tags nothing survives, with one exception: if the machine broadcasts, and its
    /// broadcasts name no tag and reach the entries of every CPU under every tag, it may keep entries under tags of its
    /// own that the engine does not know. Called with interrupts masked.
    ///
    /// # Safety
    /// `root` holds a root table of the machine's format, which maps the kernel as every root does, until another
    /// root is loaded on this CPU, or none.
    unsafe fn load_root(&self, root: Frame, tag: Tag, keep: bool);

    /// Leaves every user root, for the kernel's own root on x86, for a reserved table on Arm: afterwards this CPU uses
    /// and fills no user translation until the next [`Hardware::load_root`]. Entries under the tag that this loads are
    /// dropped, global ones excepted: the engine remembers nothing of that tag.
    fn unload_root(&self);

    /// This CPU executes no instruction that it fetched before the call: `isb` on Arm, `fence.i` on RISC-V, on x86 an
    /// instruction that serializes (the return from an interrupt does). Called for
    /// [`Engine::synchronize_text`](crate::Engine::synchronize_text) alone, in its interrupt and by its caller.
    ///
    /// # Panics
    /// If the machine does not define it: a CPU could go on with text that is gone.
    fn synchronize_text(&self) {
        panic!(
            "this machine's Hardware does not define synchronize_text, which Engine::synchronize_text needs"
        );
    }

    /// Interrupts each CPU of `targets`, which never holds the caller. Called with interrupts masked, so it must not
    /// wait for a target.
    fn interrupt(&self, targets: &CpuSet);

    /// In a guest: asks the hypervisor to flush the virtual CPU `target` if that does not run. `true` if it did not
    /// run, and will have lost every translation, global ones and walker caches included, before it executes or walks
    /// again; the engine does not interrupt it then. Called for each target, after the tables were changed. The
    /// implementation is one atomic operation, a full barrier, on memory that the hypervisor shares with the guest
    /// ("preempted" becomes "preempted, to be flushed").
    #[inline]
    fn flush_on_reentry(&self, target: CpuId) -> bool {
        let _ = target;
        false
    }

    /// Starts to invalidate the translations that other walkers of a space's tables hold: an IOMMU that shares them, a
    /// hypervisor's second stage. `root` is the space's; `range` has changed, or all of the space if it is `None`.
    /// Called after the tables were changed, on the CPU that flushes or defers the flush, for every change that needs a
    /// flush, even if no CPU must be interrupted. If the flush is deferred until reuse (S3), this is called at the
    /// unmap, not when the deferred flush is made.
    ///
    /// It may be called under the lock of a table, and waits for nothing: [`Hardware::secondary_is_done`] is asked
    /// later.
    #[inline]
    fn start_secondary(&self, root: Frame, range: Option<PageRange>, scope: Scope) {
        let _ = (root, range, scope);
    }

    /// A number that stands for all that was started with [`Hardware::start_secondary`] before this call: by this CPU,
    /// and by others of which it has heard. Where invalidations go into a queue, that is the number of a command behind
    /// them, which tells when it was reached; where `start_secondary` has done all there is to do, any number will do.
    /// May be called under the lock of a table; waits for nothing.
    #[inline]
    fn mark_secondary(&self) -> u64 {
        0
    }

    /// Whether all that `mark` stands for is complete: those other walkers use and fill none of what was invalidated.
    /// Asked, on any CPU, until it says yes, before a flush is over: so [`Flushed`](crate::Flushed) is true of devices,
    /// too. It does not wait: the engine serves requests for its CPU between two questions.
    #[inline]
    fn secondary_is_done(&self, mark: u64) -> bool {
        let _ = mark;
        self.complete_secondary();
        true
    }

    /// For machines that cannot be asked: waits until all that was started with [`Hardware::start_secondary`] before
    /// this call is complete. [`Hardware::secondary_is_done`] calls it unless that is defined, never under the lock of
    /// a table; then a look at a flush in flight waits, too.
    #[inline]
    fn complete_secondary(&self) {}

    /// Whether such a walker still uses the space of this root. Asked, in debug builds alone, as the space ends
    /// ([`Engine::retire`](crate::Engine::retire)): the embedder detaches devices before, because the engine tells them
    /// nothing of that.
    #[inline]
    fn secondary_is_attached(&self, root: Frame) -> bool {
        let _ = root;
        false
    }

    /// Masks interrupts on this CPU; returns whether they were on.
    fn mask_interrupts(&self) -> bool;

    /// Undoes [`Hardware::mask_interrupts`]: turns interrupts on again if `were_on`.
    fn restore_interrupts(&self, were_on: bool);

    /// One turn of a waiting loop (`pause`, `yield`); must let other CPUs make progress.
    fn relax(&self);

    /// This CPU has answered requests while some flush is in flight ([`Batch::start`](crate::Batch::start)): the kernel
    /// may wake, or queue, the code that asks [`InFlight::is_done`](crate::InFlight::is_done). Called with interrupts
    /// masked, at the end of every [`Engine::on_interrupt`](crate::Engine::on_interrupt) while a flush is in flight,
    /// and by every CPU that goes offline: often without need, never too early.
    #[inline]
    fn flush_answered(&self) {}

    /// This CPU has waited for `target` for `turns` turns ([`Hardware::relax`]): a kernel may report a hang. Called
    /// after 65536 turns, and each time that their number has doubled. `target` does not answer, or it goes on running
    /// a space that ends ([`Engine::retire`](crate::Engine::retire)). The wait goes on when this returns: there is no
    /// time-out, because going on without the flush corrupts memory.
    #[inline]
    fn waits_long(&self, target: CpuId, turns: u64) {
        let _ = (target, turns);
    }

    /// Whether this CPU may wait for others now. Asked, in debug builds alone, by every call that says that it may wait
    /// and is about to: a batch that finishes, [`Engine::flush_before_reuse`](crate::Engine::claim),
    /// [`Engine::retire`](crate::Engine::retire) and others.
    ///
    /// It may not while it holds a lock for which another CPU spins with interrupts off, unless that
    /// CPU calls [`Engine::poll`](crate::Engine::poll) in its loop: that CPU would never answer. A kernel with a lock
    /// checker asks that here.
    #[inline]
    fn may_wait(&self) -> bool {
        true
    }
}

/// Invalidations that reach every CPU by themselves: Arm's `TLBI … IS`, x86's INVLPGB.
pub trait Broadcast {
    /// Whether a value of this type can exist: `false` for [`NoBroadcasts`] alone.
    #[doc(hidden)]
    const EXISTS: bool = true;

    /// Starts to invalidate translations on every CPU.
    ///
    /// The invalidation is complete only after *the CPU that sent it* has called
    /// [`Broadcast::complete`]; the same call by another CPU completes nothing of it.
    /// Table stores that precede the call in program order are visible to the fills that follow
    /// the completion.
    fn start(&self, what: Invalidate);

    /// Waits until every broadcast that this CPU has sent is complete on every CPU
    /// (`dsb ish` on Arm, `tlbsync` on x86).
    fn complete(&self);
}

/// The broadcasts of a machine that has none: there is no value of this type.
#[derive(Clone, Copy, Debug)]
pub enum NoBroadcasts {}

impl Broadcast for NoBroadcasts {
    const EXISTS: bool = false;
    fn start(&self, _what: Invalidate) {
        match *self {}
    }
    fn complete(&self) {
        match *self {}
    }
}

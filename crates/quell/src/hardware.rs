//! What a machine must provide: the one interface between the engine and everything below it.
//!
//! The engine never names a machine. A kernel, a hypervisor, the machine in software, a set of
//! threads and a checker of memory orderings all sit behind [`Hardware`]; the engine is compiled
//! for each of them, so nothing is dispatched at run time and whatever a machine leaves at its
//! default costs nothing.
//!
//! Shared memory is part of the machine too: every word that two CPUs may touch is a
//! [`Hardware::Word`]. A kernel takes [`core::sync::atomic::AtomicU64`]; the machine in software
//! takes a word that charges for the transfer of cache lines and lets a scheduler step in.
//!
//! The engine expects of the caller, everywhere: the calling thread does not migrate to
//! another CPU while it is inside the engine. Interrupts may be on or off; the engine masks them
//! where it must ([`Hardware::mask_interrupts`]) and a waiter serves its own inbox, so waiting
//! with interrupts off does not deadlock (C7). A thread inside the engine may be preempted, and an interrupt
//! handler may call the engine, wherever interrupts are not masked; an NMI handler may only ask
//! [`Engine::user_access_allowed`](crate::Engine::user_access_allowed). Calls that may wait say so: see
//! [`Hardware::may_wait`] for what must not be held meanwhile.

use crate::addr::{Frame, PageRange};
use crate::cpu_set::{CpuId, CpuSet};
use crate::features::Features;
use crate::word::Word;

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
}

/// The machine under the engine.
///
/// # Guarantees the implementation gives
///
/// * [`Hardware::invalidate`] has taken effect on this CPU when it returns: no later access of this
///   CPU, and no speculation that a later access uses, sees an entry it covers unless the entry was
///   filled again from the tables after the call began. Stores to page tables that precede the
///   call in program order are visible to the fills that follow it. A release store that follows
///   the call is seen by others only after it has taken effect.
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
/// that executes the call and no other CPU at the same time, and [`Hardware::features`] claims nothing that the
/// machine lacks.
#[allow(unsafe_code)] // A declaration: there is nothing unsafe in here.
pub unsafe trait Hardware: Sized + Send + Sync {
    /// Memory shared between CPUs.
    type Word: Word;

    /// What [`Hardware::broadcasts`] gives: [`NoBroadcasts`] on machines without.
    type Broadcasts: Broadcast;

    /// The CPU that executes the call.
    fn this_cpu(&self) -> CpuId;

    /// What the machine can do. Must not change after the engine was made.
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

    /// Loads a root under a tag. With `keep`, entries under the tag survive; without it, all of
    /// them are gone when the call returns. On machines without tags nothing survives. Called with interrupts
    /// masked.
    ///
    /// # Safety
    /// `root` holds a root table of the machine's format, which maps the kernel as every root does, until another
    /// root is loaded on this CPU, or none.
    unsafe fn load_root(&self, root: Frame, tag: Tag, keep: bool);

    /// Leaves every user root: afterwards no user translation is used or filled on this CPU until
    /// the next [`Hardware::load_root`] (the kernel's own root on x86, a reserved table on Arm).
    fn unload_root(&self);

    /// Interrupts each CPU of `targets`, which never holds the caller. Called with interrupts masked, so it must not
    /// wait for a target.
    fn interrupt(&self, targets: &CpuSet);

    /// Masks interrupts on this CPU; returns whether they were on.
    fn mask_interrupts(&self) -> bool;

    /// Undoes [`Hardware::mask_interrupts`]: turns interrupts on again if `were_on`.
    fn restore_interrupts(&self, were_on: bool);

    /// One turn of a waiting loop (`pause`, `yield`); must let other CPUs make progress.
    fn relax(&self);

    /// Whether this CPU may wait for others now. Asked, in debug builds alone, by every call that may wait:
    /// a batch that finishes, [`Engine::claim`](crate::Engine::claim), [`Engine::settle`](crate::Engine::settle),
    /// [`Engine::retire`](crate::Engine::retire).
    ///
    /// It may not while it holds a lock for which another CPU spins with interrupts off, unless that
    /// CPU calls [`Engine::poll`](crate::Engine::poll) in its loop: it would never answer. An embedder that can
    /// tell (most have a checker of locks) says so here.
    #[inline]
    fn may_wait(&self) -> bool {
        true
    }
}

/// Invalidations that reach every CPU by themselves: Arm's `TLBI … IS`, x86's INVLPGB.
pub trait Broadcast {
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
    fn start(&self, _what: Invalidate) {
        match *self {}
    }
    fn complete(&self) {
        match *self {}
    }
}

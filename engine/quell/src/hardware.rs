//! The interface that a machine provides to the engine.
//!
//! The engine is generic over the machine. A kernel, a hypervisor, the machine in software, a set of threads and a
//! checker of memory orderings all implement [`Hardware`]. The engine is compiled for each of them, so nothing is
//! dispatched at run time, and a method left at its default costs nothing.
//!
//! Shared memory is part of the machine, too: every word that two CPUs may access is a [`Hardware::Word`]. A kernel
//! uses [`core::sync::atomic::AtomicU64`]. The machine in software uses a word that charges for the transfer of cache
//! lines and lets a scheduler switch CPUs.
//!
//! A thread must not migrate to another CPU while it's inside the engine. Interrupts may be on or off; the engine masks
//! them where it must ([`Hardware::mask_interrupts`]). Where they aren't masked, a thread inside the engine may be
//! preempted, and an interrupt handler may call the engine. An NMI handler may only call
//! [`Cpu::user_access_allowed`](crate::Cpu::user_access_allowed) and [`Cpu::enter_kernel`](crate::Cpu::enter_kernel),
//! and [`Cpu::enter_user`](crate::Cpu::enter_user) if it returns to a program. The methods of a machine must not call
//! the engine. But [`Hardware::relax`] and [`Hardware::restore_interrupts`] may admit an interrupt whose handler does.
//!
//! # Locks
//!
//! The documentation of every call states whether it may wait. Such a call waits until other CPUs have taken an
//! interrupt. It serves its own CPU's inbox meanwhile, so waiting with interrupts off doesn't deadlock by itself (C7).
//! But if a CPU spins, with interrupts off, for a lock that the caller holds, the call waits for ever. For example, CPU
//! 0 flushes under lock A, and CPU 1 spins for A with interrupts off: CPU 1 never takes CPU 0's interrupt. So there's
//! one rule: under a lock that is taken with interrupts off, the kernel makes no call that may wait, unless every loop
//! that spins for that lock calls [`Cpu::poll`](crate::Cpu::poll). Locks that are taken with interrupts on are no
//! problem. [`Hardware::may_wait`] lets a debug build detect a mistake.

use crate::addr::{Frame, PageRange};
use crate::cpu_set::{CpuId, CpuSet};
use crate::features::Features;
use crate::policy::Policy;
use crate::word::Word;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// A hardware tag of TLB entries: a PCID on x86, an ASID on Arm and RISC-V.
///
/// # Examples
///
/// ```
/// use quell::{Frame, Tag};
/// /// The value of CR3 that loads a root under a tag, on x86.
/// fn cr3(root: Frame, tag: Tag) -> u64 {
///     root.address() | u64::from(tag.0)
/// }
/// assert_eq!(cr3(Frame(0x42), Tag(3)), 0x42003);
/// assert_eq!(cr3(Frame(0x42), Tag::KERNEL), 0x42000);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Tag(pub u16);

impl Tag {
    /// The tag of the kernel's own root. No address space gets it.
    pub const KERNEL: Tag = Tag(0);
}

/// The reach of an invalidation beyond leaf entries.
///
/// # Examples
///
/// ```
/// use quell::{Page, PageRange, Request, Scope};
/// let page = Request::range(PageRange::base(Page(5), 1), Scope::Leaf);
/// // A table of 512 entries was unlinked, too.
/// let table = Request::range(PageRange::base(Page(512), 512), Scope::Tables);
/// assert_eq!(page.merge(table).scope(), Scope::Tables);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Scope {
    /// Only leaf entries changed. The walker caches may keep upper levels.
    #[default]
    Leaf,
    /// Page-table pages were unlinked, too. The walker caches must drop their entries for these pages.
    Tables,
}

/// An invalidation for [`Hardware::invalidate`] or [`Broadcast::start`].
///
/// # Examples
///
/// ```
/// # use quell::example::OneCpu;
/// use quell::{Hardware, Invalidate, Page, PageRange, Scope, Tag};
/// # let machine = OneCpu::default();
/// machine.access(Page(5));
/// // On x86, one `invlpg`:
/// machine.invalidate(Invalidate::Range {
///     tag: Tag(3),
///     range: PageRange::base(Page(5), 1),
///     scope: Scope::Leaf,
/// });
/// assert!(!machine.caches(Page(5)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Invalidate {
    /// The entries of a range under one tag. On machines without tags the tag is ignored.
    Range {
        /// The tag whose entries are dropped.
        tag: Tag,
        /// The range, one invalidation per stride.
        range: PageRange,
        /// Leaf entries alone, or the walker caches on the path as well.
        scope: Scope,
    },
    /// All entries under one tag, walker caches included.
    Tag(Tag),
    /// All entries under all tags, walker caches included. Global kernel entries may stay.
    All,
    /// The entries of a range of the kernel's half: global ones and the loaded tag's. Examples are `invlpg`, `tlbi
    /// vaae1`, and `sfence.vma` with only an address. With per-CPU tags, entries under other tags may stay. With
    /// system-wide tags they must be dropped, too.
    Kernel {
        /// The range, one invalidation per stride.
        range: PageRange,
        /// Leaf entries alone, or the walker caches on the path as well.
        scope: Scope,
    },
    /// All entries under all tags, global ones and walker caches included. It begins with a full barrier, like
    /// [`Hardware::fence`]: this CPU's earlier stores are visible to others before it fills any entry again. A machine
    /// without kernel spaces may treat it as [`Invalidate::All`].
    Everything,
}

/// The address of the engine's state of one CPU. Only [`PerCpu::place`](crate::PerCpu::place) makes one.
///
/// # Examples
///
/// ```
/// # use quell::example::OneCpu;
/// use quell::{CpuId, Hardware, PerCpu, PlaceOf};
/// /// `Hardware::per_cpu` of a kernel that keeps the states in an array.
/// fn per_cpu<H: Hardware>(states: &'static [PerCpu<'static, H>], cpu: CpuId) -> Option<PlaceOf<H>> {
///     states.get(cpu.index()).map(PerCpu::place)
/// }
/// # let states: &[PerCpu<OneCpu>] = Box::leak(Box::new([PerCpu::new(), PerCpu::new()]));
/// assert!(per_cpu(states, CpuId(1)).is_some());
/// assert!(per_cpu(states, CpuId(2)).is_none());
/// ```
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

/// The machine under the engine, implemented by the embedder.
///
/// # Guarantees of the implementation
///
/// * [`Hardware::invalidate`] has taken effect on this CPU when it returns. No later access of this CPU, and no
///   speculation that a later access uses, sees a covered entry unless it was filled again from the tables after the
///   call began. The fills that follow see stores to page tables that precede the call in program order, and those of
///   other CPUs that this one has observed. Others see a release store that follows the call only after the call has
///   taken effect. All of this also holds for [`Hardware::load_root`] without `keep`.
/// * [`Hardware::fence`] orders everything before it, table stores included, before everything after it. It *also*
///   makes table stores visible to the walkers of all CPUs: this CPU's stores, and those of other CPUs that it has
///   observed, for example by taking the lock under which they were made. On x86 it's `mfence`, on Arm `dsb ish`.
/// * An interrupt sent by [`Hardware::interrupt`] eventually makes its target call
///   [`Masked::on_interrupt`](crate::Masked::on_interrupt), once interrupts are on there. The handler sees stores made
///   before the interrupt was sent.
///
/// # What it needn't guarantee
///
/// Interrupts may be late, merged, duplicated or spurious. TLBs may fill speculatively at any time from any table
/// reachable from a loaded root, and may drop any entry at any time.
///
/// # Examples
///
/// `examples/embed.rs` implements it for a machine with two CPUs.
///
/// # Safety
/// A kernel frees memory after a flush, which is safe only if the flush happened. So the implementation gives the
/// guarantees above, and its [`Hardware::Broadcasts`] gives those of [`Broadcast`]. [`Hardware::this_cpu`] returns the
/// CPU that executes the call, and never the same CPU on two CPUs at the same time. [`Hardware::features`] claims
/// nothing that the machine lacks.
#[allow(unsafe_code)] // A declaration: there is nothing unsafe in here.
pub unsafe trait Hardware: Sized + Send + Sync {
    /// Memory shared between CPUs.
    type Word: Word;

    /// The mechanisms that an engine on this machine may use: all by default.
    ///
    /// The code of the others is compiled away, and the engine refuses a policy that has one of them
    /// ([`Unsupported::LeftOut`](crate::Unsupported::LeftOut)). Only the mechanisms that this policy [has](Policy::has)
    /// count, not their settings.
    const MECHANISMS: Policy = Policy::ALL;

    /// The maximum number of ranges in one request, from 1 to 11.
    ///
    /// With one more range, or more pages than [`Features::full_above`], it becomes a flush of the whole tag. A lower
    /// number suits machines where a whole flush is cheap; it doesn't make a request smaller.
    ///
    /// Any other number doesn't compile:
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

    /// Returns the maximum number of ranges in a request, if only run time determines it.
    ///
    /// It's from 1 to [`Hardware::RANGES`], the default, and must be the same at each call.
    #[inline]
    fn ranges(&self) -> usize {
        Self::RANGES
    }

    /// Returns the number of targets from which a flush uses shared inboxes.
    ///
    /// With that many targets or more, a flush writes and reads a cache line for every eight CPUs instead of one for
    /// each. Since eight CPUs share lines, a flush with few targets takes longer. So the default is never; kernels of
    /// machines with many CPUs set it, for example to 32. It must be the same at each call. Flushes of one range, or of
    /// a whole space, use shared inboxes; others don't.
    ///
    /// If this isn't the default, batches of one space that finish at the same time share a full flush, provided that
    /// more than two CPUs have the space loaded.
    #[inline]
    fn shares_lines_from(&self) -> usize {
        usize::MAX
    }

    /// Set if [`Hardware::MECHANISMS`] is the only policy of engines on this machine.
    ///
    /// Code for any other policy is compiled away, and the engine refuses one
    /// ([`Unsupported::OtherPolicy`](crate::Unsupported::OtherPolicy)).
    const POLICY_IS_FIXED: bool = false;

    /// Set if small code is more important than few instructions.
    ///
    /// We then leave out the fast paths of common flushes, so all flushes take the general path. All counters stay 0,
    /// and we report no long wait.
    const IS_SMALL: bool = false;

    /// Set if the kernel makes spaces for its own mappings ([`Engine::new_kernel_space`](crate::Engine)).
    const HAS_KERNEL_SPACES: bool = true;

    /// Set if devices or hypervisors walk the tables of spaces, too. If it's `false`, we never call
    /// [`Hardware::start_secondary`].
    const HAS_SECONDARY: bool = false;

    /// The type of [`Hardware::broadcasts`]: [`NoBroadcasts`] on machines without broadcasts.
    type Broadcasts: Broadcast;

    /// Returns the CPU that executes the call.
    fn this_cpu(&self) -> CpuId;

    /// Returns the address of the engine's state of `cpu`, if the kernel keeps it.
    ///
    /// A kernel that keeps it in its per-CPU area makes its engine with
    /// [`Engine::with_own_state`](crate::Engine::with_own_state). Return `None` for each CPU if the state is in the
    /// slice passed to [`Engine::new`](crate::Engine::new).
    ///
    /// It must return the same address at each call, and a different one for each CPU.
    #[inline]
    fn per_cpu(&self, cpu: CpuId) -> Option<PlaceOf<Self>> {
        let _ = cpu;
        None
    }

    /// Returns the features of the machine. They must not change after the engine was made.
    fn features(&self) -> Features;

    /// Executes a full barrier: see the guarantees above.
    fn fence(&self);

    /// Invalidates translations of this CPU only.
    ///
    /// If `what` contains a tag, this CPU has its root loaded under that tag. Only a [`Broadcast`] may name another
    /// one.
    fn invalidate(&self, what: Invalidate);

    /// Returns the broadcasts, which reach every CPU without interrupts.
    ///
    /// Returns `None` unless [`Features::broadcast`] is set; the type is then `type Broadcasts = NoBroadcasts`.
    #[inline]
    fn broadcasts(&self) -> Option<&Self::Broadcasts> {
        None
    }

    /// Loads a root under a tag. With `keep`, entries under the tag survive; without it, none of them exists when the
    /// call returns. Called with interrupts masked.
    ///
    /// On machines without tags no entry survives, with one exception. If the machine's broadcasts name no tag and
    /// reach the entries of every CPU under every tag, it may keep entries under private tags that the engine doesn't
    /// know.
    ///
    /// # Safety
    /// `root` holds a root table of the machine's format, which maps the kernel as every root does, until another
    /// root is loaded on this CPU, or none.
    unsafe fn load_root(&self, root: Frame, tag: Tag, keep: bool);

    /// Leaves every user root: loads the kernel's own root on x86, a reserved table on Arm.
    ///
    /// Afterwards this CPU uses and fills no user translation until the next [`Hardware::load_root`]. Drop the entries
    /// under the tag that this loads, except global ones, because the engine keeps no record of that tag.
    fn unload_root(&self);

    /// Makes this CPU drop the instructions that it has fetched.
    ///
    /// That's `isb` on Arm, `fence.i` on RISC-V, and on x86 an instruction that serializes, for example the return from
    /// an interrupt. Called only for [`Cpu::synchronize_text`](crate::Cpu::synchronize_text), in its interrupt and by
    /// its caller.
    ///
    /// # Panics
    /// If the machine doesn't define it: a CPU could continue with text that no longer exists.
    fn synchronize_text(&self) {
        panic!(
            "this machine's Hardware does not define synchronize_text, which Cpu::synchronize_text needs"
        );
    }

    /// Interrupts each CPU of `targets`, which never include the caller.
    ///
    /// Called with interrupts masked, so it must not wait for a target.
    fn interrupt(&self, targets: &CpuSet);

    /// Requests a flush of virtual CPU `target` before it runs again, in a guest.
    ///
    /// Returns `true` if `target` wasn't running. The hypervisor then drops all its translations, global ones and
    /// walker caches included, before it executes or walks again, and the engine doesn't interrupt it. Called for each
    /// target, after the tables were changed.
    ///
    /// The implementation is one atomic operation, with a full barrier, on memory that the hypervisor shares with the
    /// guest: "preempted" becomes "preempted, to be flushed".
    #[inline]
    fn flush_on_reentry(&self, target: CpuId) -> bool {
        let _ = target;
        false
    }

    /// Starts to invalidate translations in devices.
    ///
    /// Devices are other walkers of a space's tables, for example an IOMMU that shares them or a hypervisor's second
    /// stage. `root` is the space's root; `range` has changed, or all of the space if it's `None`. We call it after the
    /// tables were changed, on the CPU that flushes or defers the flush, for every change that needs a flush, even if
    /// no CPU must be interrupted. If the flush is deferred until reuse (S3), we call it at the unmap, not when the
    /// deferred flush is made.
    ///
    /// We may call it under the lock of a table, so it must not wait: we call [`Hardware::secondary_is_done`] later.
    #[inline]
    fn start_secondary(&self, root: Frame, range: Option<PageRange>, scope: Scope) {
        let _ = (root, range, scope);
    }

    /// Returns a mark that covers all invalidations started before this call.
    ///
    /// It covers those of this CPU, and those of other CPUs whose calls of [`Hardware::start_secondary`] it has
    /// observed. If invalidations use a queue, the mark is for example the number of a later command that signals its
    /// completion. If `start_secondary` completes them itself, any number will do. We may call it under the lock of a
    /// table, so it must not wait.
    #[inline]
    fn mark_secondary(&self) -> u64 {
        0
    }

    /// Returns whether all invalidations covered by `mark` are complete.
    ///
    /// Then devices neither use nor fill the old translations any more. A flush is over only after this has returned
    /// `true`, so [`Flushed`](crate::Flushed) holds for devices, too. We call it on any CPU, repeatedly, and serve
    /// requests for that CPU between two calls. So it must not wait.
    #[inline]
    fn secondary_is_done(&self, mark: u64) -> bool {
        let _ = mark;
        self.complete_secondary();
        true
    }

    /// Waits until all invalidations started before this call are complete.
    ///
    /// For machines that can't be polled: the default [`Hardware::secondary_is_done`] calls it, never under the lock of
    /// a table. Then [`InFlight::is_done`](crate::InFlight::is_done) waits, too.
    #[inline]
    fn complete_secondary(&self) {}

    /// Returns whether a device still uses the space with this root.
    ///
    /// Called only in debug builds, when the space ends ([`Engine::retire`](crate::Engine::retire)). The embedder must
    /// detach devices before, because the engine doesn't inform them.
    #[inline]
    fn secondary_is_attached(&self, root: Frame) -> bool {
        let _ = root;
        false
    }

    /// Masks interrupts on this CPU. Returns whether they were on.
    fn mask_interrupts(&self) -> bool;

    /// Undoes [`Hardware::mask_interrupts`]: unmasks interrupts if `were_on`.
    fn restore_interrupts(&self, were_on: bool);

    /// Waits one turn of a loop (`pause`, `yield`). It must let other CPUs make progress.
    fn relax(&self);

    /// Reports that this CPU has answered requests while a flush is in flight ([`Batch::start`](crate::Batch::start)).
    ///
    /// The kernel may wake or queue the code that calls [`InFlight::is_done`](crate::InFlight::is_done). Called with
    /// interrupts masked, at the end of every [`Masked::on_interrupt`](crate::Masked::on_interrupt) while a flush is in
    /// flight, and by every CPU that is going offline: often without need, but never too early.
    #[inline]
    fn flush_answered(&self) {}

    /// Reports that this CPU has waited for `target` for `turns` turns ([`Hardware::relax`]).
    ///
    /// The kernel may report a hang. Called after 65536 turns, and each time their number has doubled. Either `target`
    /// doesn't answer, or it keeps running a space that is being retired ([`Engine::retire`](crate::Engine::retire)).
    /// The wait continues when this returns. There's no timeout, because if we continued without the flush, we'd
    /// corrupt memory.
    #[inline]
    fn waits_long(&self, target: CpuId, turns: u64) {
        let _ = (target, turns);
    }

    /// Returns whether this CPU may wait for others now.
    ///
    /// Called only in debug builds, by every call that may wait and is about to:
    /// [`Batch::finish`](crate::Batch::finish), [`Engine::flush_before_reuse`](crate::Engine::flush_before_reuse),
    /// [`Engine::retire`](crate::Engine::retire) and others.
    ///
    /// Return `false` while this CPU holds a lock for which another CPU spins with interrupts off, unless that CPU
    /// calls [`Cpu::poll`](crate::Cpu::poll) in its loop: that CPU would never answer. For example, a kernel can call
    /// its lock checker here.
    #[inline]
    fn may_wait(&self) -> bool {
        true
    }
}

/// Invalidations that the machine sends to every CPU: Arm's `TLBI … IS`, x86's INVLPGB.
///
/// # Examples
///
/// ```
/// use quell::{Broadcast, Invalidate, Tag};
/// use std::cell::RefCell;
/// /// Broadcasts of Arm; a list takes the place of the instructions.
/// struct Tlbi(RefCell<Vec<String>>);
/// impl Broadcast for Tlbi {
///     fn start(&self, what: Invalidate) {
///         self.0.borrow_mut().push(format!("tlbi for {what:?}"));
///     }
///     fn complete(&self) {
///         self.0.borrow_mut().push("dsb ish".into());
///     }
/// }
/// let tlbi = Tlbi(RefCell::default());
/// tlbi.start(Invalidate::Tag(Tag(3)));
/// tlbi.start(Invalidate::Tag(Tag(4)));
/// tlbi.complete(); // one barrier for both
/// assert_eq!(*tlbi.0.borrow(), ["tlbi for Tag(Tag(3))", "tlbi for Tag(Tag(4))", "dsb ish"]);
/// ```
pub trait Broadcast {
    /// Set if a value of this type can exist: `false` for [`NoBroadcasts`] only.
    #[doc(hidden)]
    const EXISTS: bool = true;

    /// Starts to invalidate translations on every CPU.
    ///
    /// The invalidation is complete only after *the CPU that sent it* has called [`Broadcast::complete`]. A call by
    /// another CPU doesn't complete it. Table stores that precede the call in program order are visible to the fills
    /// that follow the completion.
    fn start(&self, what: Invalidate);

    /// Waits until all broadcasts of this CPU are complete on every CPU. That's `dsb ish` on Arm, `tlbsync` on x86.
    fn complete(&self);
}

/// The broadcasts of a machine that has none. No value of this type exists.
///
/// # Examples
///
/// ```
/// # use quell::example::OneCpu;
/// use quell::{Hardware, NoBroadcasts};
/// let machine = OneCpu::default(); // its `Hardware` has `type Broadcasts = NoBroadcasts;`
/// let broadcasts: Option<&NoBroadcasts> = machine.broadcasts();
/// assert!(broadcasts.is_none());
/// ```
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

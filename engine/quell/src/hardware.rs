//! The interface between the engine and a machine. The rules are on the page of [`Hardware`].
//!
//! The engine is generic over the machine. A kernel, a hypervisor, the simulators, a set of threads and a checker of
//! memory orderings all implement [`Hardware`]. Shared memory is part of the machine, too: every word that
//! two CPUs may access is a [`Hardware::Word`].

use crate::addr::{Frame, PageRange};
use crate::cpu_set::{CpuId, CpuSet};
use crate::features::Features;
use crate::policy::Policy;
use crate::word::Word;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// The number of a hardware tag of TLB entries: a PCID (x86) or ASID (Arm, RISC-V).
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

/// Selects whether an invalidation reaches more than leaf entries.
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
    /// Only leaf entries changed. The caches of the page-table walker may keep upper levels.
    #[default]
    Leaf,
    /// Page-table pages were unlinked, too. The caches of the page-table walker must drop entries that lead to them.
    Tables,
}

/// Says which translations [`Hardware::invalidate`] or [`Broadcast::start`] must drop.
///
/// # Examples
///
/// ```
/// # use quell::example::OneCpu;
/// use quell::{Hardware, Invalidation, Page, PageRange, Scope, Tag};
/// # let machine = OneCpu::default();
/// machine.access(Page(5));
/// // On x86, one `invlpg`:
/// machine.invalidate(Invalidation::Range {
///     tag: Tag(3),
///     range: PageRange::base(Page(5), 1),
///     scope: Scope::Leaf,
/// });
/// assert!(!machine.caches(Page(5)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Invalidation {
    /// The entries of a range under one tag. Machines without tags ignore the tag.
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
    /// The entries of a range of the kernel's half: global ones, and those under the loaded tag. For example, `invlpg`,
    /// `tlbi vaae1`, or `sfence.vma` with only an address. Entries under other tags may stay if each CPU has its own
    /// tags, but not if tags are system-wide.
    Kernel {
        /// The range, one invalidation per stride.
        range: PageRange,
        /// Leaf entries alone, or the walker caches on the path as well.
        scope: Scope,
    },
    /// All entries under all tags, global ones and walker caches included. It begins with a full barrier, like
    /// [`Hardware::fence`]: this CPU's earlier stores are visible to other CPUs before this CPU fills any entry again.
    /// A machine without kernel spaces may treat it as [`Invalidation::All`].
    Everything,
}

/// Points to the engine's state of one CPU. Only [`PerCpuData::address`](crate::PerCpuData::address) makes one.
///
/// # Examples
///
/// ```
/// # use quell::example::OneCpu;
/// use quell::{CpuId, Hardware, PerCpuData, PerCpuAddress};
/// /// `Hardware::per_cpu` of a kernel that keeps the states in an array.
/// fn per_cpu<H: Hardware>(states: &'static [PerCpuData<'static, H>], cpu: CpuId) -> Option<PerCpuAddress<H>> {
///     states.get(cpu.index()).map(PerCpuData::address)
/// }
/// # let states: &[PerCpuData<OneCpu>] = Box::leak(Box::new([PerCpuData::new(), PerCpuData::new()]));
/// assert!(per_cpu(states, CpuId(1)).is_some());
/// assert!(per_cpu(states, CpuId(2)).is_none());
/// ```
pub struct PerCpuAddress<H> {
    address: NonNull<()>,
    of: PhantomData<fn(H)>,
}

impl<H> PerCpuAddress<H> {
    pub(crate) fn new(address: NonNull<()>) -> Self {
        PerCpuAddress { address, of: PhantomData }
    }

    pub(crate) fn address(self) -> NonNull<()> {
        self.address
    }
}

/// Describes the machine to the engine. The kernel that uses the engine implements it.
///
/// The engine is compiled for each machine, so a method left at its default costs nothing.
///
/// A thread must not migrate to another CPU while it's inside the engine. Interrupts may be on: the engine masks them
/// where it must ([`Hardware::mask_interrupts`]). Where they aren't masked, an interrupt handler may preempt a thread
/// inside the engine and call the engine itself. An NMI handler may call only
/// [`Cpu::user_access_allowed`](crate::Cpu::user_access_allowed), [`Cpu::enter_kernel`](crate::Cpu::enter_kernel) and,
/// if it returns to a program, [`Cpu::enter_user`](crate::Cpu::enter_user). The methods of this trait must not call the
/// engine. But [`Hardware::relax`] and [`Hardware::restore_interrupts`] may let in an interrupt whose handler does.
///
/// # Locks
///
/// Each call of the engine documents whether it may wait. Such a call waits until other CPUs have taken an interrupt.
/// It serves the requests for its own CPU meanwhile, so waiting with interrupts off is no deadlock in itself. But CPU 0
/// may flush under a lock for which CPU 1 spins with interrupts off. Then CPU 1 never takes CPU 0's interrupt, and CPU
/// 0 waits for ever. So one rule applies to each lock that is taken with interrupts off: make no call that may wait
/// while you hold the lock, or call [`Cpu::poll`](crate::Cpu::poll) in every loop that spins for it. Locks that are
/// taken with interrupts on are no problem. [`Hardware::may_wait`] lets a debug build detect a mistake.
///
/// # Guarantees of the implementation
///
/// * When [`Hardware::invalidate`] returns, it has taken effect on this CPU. No later access of this CPU uses a covered
///   entry. If a later access was begun speculatively with such an entry, its result is discarded. Entries that were
///   filled again after the call began may be used. Fills after the call see every page-table store that precedes the
///   call in program order, and those of other CPUs that this CPU has observed. If a release store follows the call,
///   another CPU sees that store only after the call has taken effect. All of this also holds for
///   [`Hardware::load_root`] without `keep`.
/// * [`Hardware::fence`] orders everything before it, table stores included, before everything after it. It *also*
///   makes table stores visible to the page-table walkers of all CPUs. These are this CPU's stores, and those of other
///   CPUs that it has observed, for example by taking the lock under which they were made. On x86 it's `mfence`, on Arm
///   `dsb ish`.
/// * An interrupt sent by [`Hardware::interrupt`] eventually makes its target call
///   [`MaskedCpu::on_interrupt`](crate::MaskedCpu::on_interrupt), once interrupts are on there. The handler sees all
///   stores made before the interrupt was sent.
///
/// # What it needn't guarantee
///
/// Interrupts may be late, merged, duplicated or spurious. At any time, a TLB may drop any entry, and may speculatively
/// fill entries from any table that a loaded root leads to.
///
/// # Examples
///
/// `examples/embed.rs` implements the trait for a machine with two CPUs.
///
/// # Safety
/// A kernel frees memory after a flush, which is safe only if the flush happened. So the implementation must give the
/// guarantees above, and its [`Hardware::Broadcasts`] those of [`Broadcast`]. [`Hardware::this_cpu`] returns the number
/// of the CPU that executes the call, and no two CPUs get the same number at the same time. [`Hardware::features`]
/// reports nothing that the machine lacks.
#[allow(unsafe_code)] // A declaration: there is nothing unsafe in here.
pub unsafe trait Hardware: Sized + Send + Sync {
    /// Memory shared between CPUs.
    type Word: Word;

    /// Lists the mechanisms that an engine on this machine may use: all by default.
    ///
    /// The code of the other mechanisms is compiled away, and the engine refuses a policy that has one of them
    /// ([`EngineError::LeftOut`](crate::EngineError::LeftOut)). Only the mechanisms that are on ([`Policy::has`])
    /// count, not their settings.
    const MECHANISMS: Policy = Policy::ALL;

    /// The maximum number of ranges in one request, from 1 to 11.
    ///
    /// A request with more ranges, or with more invalidations than [`Features::full_above`], becomes a flush of the
    /// whole tag. Choose a lower number if a whole flush is cheap. A request takes the same memory with any number.
    ///
    /// Any other number doesn't compile:
    ///
    /// ```compile_fail,E0080
    /// # use quell::{CpuId, CpuSet, Engine, Features, Frame, Hardware, Invalidation, NoBroadcasts};
    /// # use quell::{PerCpuData, Policy, Tag, Tagging};
    /// # struct Machine;
    /// # // SAFETY: it keeps no translations.
    /// unsafe impl Hardware for Machine {
    ///     const RANGES: usize = 12;
    /// #   type Word = std::sync::atomic::AtomicU64;
    /// #   type Broadcasts = NoBroadcasts;
    /// #   fn this_cpu(&self) -> CpuId { CpuId(0) }
    /// #   fn features(&self) -> Features { Features { tagging: Tagging::None, broadcast: false, full_above: 33 } }
    /// #   fn fence(&self) {}
    /// #   fn invalidate(&self, _: Invalidation) {}
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

    /// Returns the maximum number of ranges in one request, for a machine that learns it at run time.
    ///
    /// The number is from 1 to [`Hardware::RANGES`], which is the default. Return the same number at each call.
    #[inline]
    fn ranges(&self) -> usize {
        Self::RANGES
    }

    /// Returns the smallest number of targets for which a flush uses shared cache lines.
    ///
    /// With that many targets or more, the initiator writes and reads one cache line for every 32 CPUs instead of one
    /// for each CPU. A flush with few targets takes longer that way, because the targets count their answers. By
    /// default no flush does this. On a machine with many CPUs return for example 8, and the same number at each call.
    ///
    /// Only flushes of one range or of a whole space use shared lines. While several batches of the space are pending,
    /// a flush uses them only with 16 times as many targets.
    ///
    /// With any value but the default, batches of one space that finish at the same time make full flushes if more than
    /// two CPUs have the space loaded. With 8, they share these flushes from 7 CPUs on.
    #[inline]
    fn shares_lines_from(&self) -> usize {
        usize::MAX
    }

    /// Set if [`Hardware::MECHANISMS`] is the only policy of engines on this machine.
    ///
    /// The code for any other policy is compiled away, and the engine refuses such a policy
    /// ([`EngineError::OtherPolicy`](crate::EngineError::OtherPolicy)).
    const POLICY_IS_FIXED: bool = false;

    /// Set if small code is more important than few instructions.
    ///
    /// If so, we leave out the fast paths of common flushes, so all flushes take the general path. All
    /// [counters](crate::Counter) stay 0, and we never call [`Hardware::waits_long`].
    const IS_SMALL: bool = false;

    /// Set if the kernel makes spaces for its own mappings
    /// ([`Engine::new_kernel_space`](crate::Engine::new_kernel_space)).
    const HAS_KERNEL_SPACES: bool = true;

    /// Set if devices or a hypervisor walk the tables of address spaces, too. If it's `false`, we never call
    /// [`Hardware::start_secondary`].
    const HAS_SECONDARY: bool = false;

    /// The type of [`Hardware::broadcasts`]: [`NoBroadcasts`] on machines without broadcasts.
    type Broadcasts: Broadcast;

    /// Returns the number of the CPU that executes the call.
    fn this_cpu(&self) -> CpuId;

    /// Returns the address of the engine's state of `cpu`, if the kernel keeps that state.
    ///
    /// A kernel that keeps the states in its per-CPU areas makes its engine with
    /// [`Engine::with_own_state`](crate::Engine::with_own_state). If you pass the states to
    /// [`Engine::new`](crate::Engine::new) instead, return `None` for each CPU.
    ///
    /// Return the same address at each call, and a different one for each CPU.
    #[inline]
    fn per_cpu(&self, cpu: CpuId) -> Option<PerCpuAddress<Self>> {
        let _ = cpu;
        None
    }

    /// Returns the machine's features. They must not change after the engine was made.
    fn features(&self) -> Features;

    /// Executes a full barrier that page-table walkers obey, too: see the guarantees above.
    fn fence(&self);

    /// Invalidates translations of this CPU only.
    ///
    /// If `what` contains a tag, it's the one under which this CPU has its root loaded. Only a [`Broadcast`] may name
    /// another tag.
    fn invalidate(&self, what: Invalidation);

    /// Returns the broadcasts, which reach every CPU without interrupts.
    ///
    /// Return `Some` if you set [`Features::broadcast`]. Otherwise keep this default, and write `type Broadcasts =
    /// NoBroadcasts;`.
    #[inline]
    fn broadcasts(&self) -> Option<&Self::Broadcasts> {
        None
    }

    /// Loads a root under a tag. With `keep`, entries under the tag may survive. Without it, none of them exists when
    /// the call returns. Called with interrupts masked.
    ///
    /// On machines without tags only global entries survive, with one exception. A machine may use tags of its own, of
    /// which the engine doesn't know, and keep entries under them. Its broadcasts must then name no tag, and reach the
    /// entries of every CPU under every tag.
    ///
    /// # Safety
    /// The frame `root` holds a root table in the machine's format, which maps the kernel as every root does. It stays
    /// so until this CPU loads another root or unloads this one.
    unsafe fn load_root(&self, root: Frame, tag: Tag, keep: bool);

    /// Leaves every user root: loads the kernel's own root on x86, a reserved table on Arm.
    ///
    /// Afterwards this CPU uses and fills no user translation until the next [`Hardware::load_root`]. The call also
    /// drops the entries under the tag that it loads, except global ones, because the engine keeps no record of that
    /// tag.
    fn unload_root(&self);

    /// Makes this CPU drop the instructions that it has fetched.
    ///
    /// That's `isb` on Arm, `fence.i` on RISC-V, and on x86 an instruction that serializes, for example the return from
    /// an interrupt. Only [`Cpu::synchronize_text`](crate::Cpu::synchronize_text) calls it, on every online CPU.
    ///
    /// # Panics
    /// This default always panics, because a CPU could otherwise continue with text that no longer exists.
    fn synchronize_text(&self) {
        panic!(
            "this machine's Hardware does not define synchronize_text, which Cpu::synchronize_text needs"
        );
    }

    /// Interrupts each CPU in `targets`, which never contains this CPU.
    ///
    /// The call happens with interrupts masked, so it must not wait for a target.
    fn interrupt(&self, targets: &CpuSet);

    /// Makes the hypervisor flush virtual CPU `target` before that CPU runs again. Only for guests.
    ///
    /// Returns `true` if `target` isn't running, and the hypervisor will drop all its translations before it executes
    /// or walks tables again. That includes global entries and walker caches. The engine then doesn't interrupt
    /// `target`. It makes this call for each target of a flush, after the tables were changed.
    /// [`Engine::retire`](crate::Engine::retire) and [`Cpu::synchronize_text`](crate::Cpu::synchronize_text) don't make
    /// it.
    ///
    /// Implement it as one atomic operation, with a full barrier, on memory that the hypervisor shares with the guest.
    /// It changes "preempted" to "preempted, to be flushed".
    #[inline]
    fn flush_on_reentry(&self, target: CpuId) -> bool {
        let _ = target;
        false
    }

    /// Starts to invalidate translations of a changed range in devices.
    ///
    /// Devices are other walkers of a space's tables, for example an IOMMU that shares them or a hypervisor's second
    /// stage. `root` is the space's root. If `range` is `None`, all of the space has changed. We make this call for
    /// every change that needs a flush, even if no CPU must be interrupted. It comes after the tables were changed, on
    /// the CPU that makes the flush. If [lazy unmap](crate::lazy) defers the flush, the call still comes at the unmap.
    ///
    /// The call may come under the lock of a table, so it must not wait. We call [`Hardware::secondary_is_done`] later.
    #[inline]
    fn start_secondary(&self, root: Frame, range: Option<PageRange>, scope: Scope) {
        let _ = (root, range, scope);
    }

    /// Returns a number, the *mark*, that covers all invalidations in devices started before this call.
    ///
    /// It covers the calls of [`Hardware::start_secondary`] on this CPU, and those on other CPUs that this CPU has
    /// observed. If devices take invalidations from a queue, put a command behind them that signals when it
    /// completes. The mark can be the number of that command. If `start_secondary` itself completes the invalidations,
    /// return any number. The call may come under the lock of a table, so it must not wait.
    #[inline]
    fn mark_secondary(&self) -> u64 {
        0
    }

    /// Returns whether all invalidations in devices that `mark` covers are complete.
    ///
    /// If so, devices neither use nor fill the old translations any more. A flush is over only after this has returned
    /// `true`, so the frames in [`FlushedFrames`](crate::FlushedFrames) are safe from devices, too. We call it
    /// repeatedly, on any CPU, and serve requests for that CPU between two calls. So it must not wait.
    #[inline]
    fn secondary_is_done(&self, mark: u64) -> bool {
        let _ = mark;
        self.complete_secondary();
        true
    }

    /// Waits until all invalidations in devices started before this call are complete.
    ///
    /// Define it if devices can't be polled. The default [`Hardware::secondary_is_done`] calls it, never under the lock
    /// of a table. With that default, [`FlushInFlight::is_done`](crate::FlushInFlight::is_done) waits, too.
    #[inline]
    fn complete_secondary(&self) {}

    /// Returns whether a device still uses the address space with this root.
    ///
    /// Called only in debug builds, by [`Engine::retire`](crate::Engine::retire). The kernel must detach devices
    /// before, because the engine doesn't tell them that a space ends.
    #[inline]
    fn secondary_is_attached(&self, root: Frame) -> bool {
        let _ = root;
        false
    }

    /// Masks interrupts on this CPU. Returns whether they were on.
    fn mask_interrupts(&self) -> bool;

    /// Undoes [`Hardware::mask_interrupts`]: unmasks interrupts if `were_on`.
    fn restore_interrupts(&self, were_on: bool);

    /// Pauses for one turn of a waiting loop (`pause`, `yield`). It must let other CPUs make progress.
    fn relax(&self);

    /// Reports that this CPU has answered requests while a flush is in flight
    /// ([`FlushInFlight`](crate::FlushInFlight)).
    ///
    /// The kernel may wake or queue the code that calls [`FlushInFlight::is_done`](crate::FlushInFlight::is_done).
    /// While a flush is in flight, everything that answers requests makes this call afterwards, with interrupts masked:
    /// [`MaskedCpu::on_interrupt`](crate::MaskedCpu::on_interrupt), [`Cpu::poll`](crate::Cpu::poll), each call that
    /// waits for other CPUs, and [`Engine::cpu_offline`](crate::Engine::cpu_offline). So it must not take a lock under
    /// which a CPU polls or waits. The call may be needless, but never comes before the answers.
    #[inline]
    fn flush_answered(&self) {}

    /// Reports that this CPU has waited for `target` for `turns` turns ([`Hardware::relax`]).
    ///
    /// The kernel may report a hang. The first call comes after 65536 turns, and others each time that number has
    /// doubled. Either `target` doesn't answer, or it keeps running a space that is being retired
    /// ([`Engine::retire`](crate::Engine::retire)). The wait continues when this returns. There's no timeout, because
    /// going on without the flush would corrupt memory.
    #[inline]
    fn waits_long(&self, target: CpuId, turns: u64) {
        let _ = (target, turns);
    }

    /// Returns whether this CPU may wait for other CPUs now.
    ///
    /// In debug builds, a call of the engine that is about to wait, for example
    /// [`Batch::finish`](crate::Batch::finish), calls this first. If this returns `false`, the call panics.
    ///
    /// Return `false` while this CPU holds a lock for which another CPU may spin with interrupts off. Such a CPU would
    /// never answer, unless it calls [`Cpu::poll`](crate::Cpu::poll) in its loop. For example, a kernel can call its
    /// lock checker here.
    #[inline]
    fn may_wait(&self) -> bool {
        true
    }
}

/// Invalidates translations on every CPU without interrupts: Arm's `TLBI … IS`, x86's INVLPGB.
///
/// # Examples
///
/// ```
/// use quell::{Broadcast, Invalidation, Tag};
/// use std::cell::RefCell;
/// /// Broadcasts of Arm; a list takes the place of the instructions.
/// struct Tlbi(RefCell<Vec<String>>);
/// impl Broadcast for Tlbi {
///     fn start(&self, what: Invalidation) {
///         self.0.borrow_mut().push(format!("tlbi for {what:?}"));
///     }
///     fn complete(&self) {
///         self.0.borrow_mut().push("dsb ish".into());
///     }
/// }
/// let tlbi = Tlbi(RefCell::default());
/// tlbi.start(Invalidation::Tag(Tag(3)));
/// tlbi.start(Invalidation::Tag(Tag(4)));
/// tlbi.complete(); // one barrier for both
/// assert_eq!(*tlbi.0.borrow(), ["tlbi for Tag(Tag(3))", "tlbi for Tag(Tag(4))", "dsb ish"]);
/// ```
pub trait Broadcast {
    /// Set if a value of this type can exist: `false` for [`NoBroadcasts`] only.
    #[doc(hidden)]
    const EXISTS: bool = true;

    /// Starts to invalidate translations on every CPU.
    ///
    /// The invalidation is complete only after *the CPU that sent it* has called [`Broadcast::complete`]. A call of
    /// that method on another CPU doesn't complete it. Fills after the completion see every page-table store that
    /// precedes this call in program order.
    fn start(&self, what: Invalidation);

    /// Waits until all broadcasts of this CPU are complete on every CPU. That's `dsb ish` on Arm, `tlbsync` on x86.
    fn complete(&self);
}

/// Stands for the broadcasts of a machine that has none. No value of this type exists.
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
    fn start(&self, _what: Invalidation) {
        match *self {}
    }
    fn complete(&self) {
        match *self {}
    }
}

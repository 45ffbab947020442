//! The machine below the engine, made of functions that the embedder defines in C and the linker resolves.
//!
//! There is one machine in a program, so [`Machine`] is a value without content but for what the embedder has said of
//! its features, and every call of the engine's goes straight to the function.

use core::mem::size_of;
use core::sync::atomic::AtomicU64;
use quell::cpu_set::MAX_CPUS;
use quell::{
    Broadcast, CpuId, CpuSet, Features, Frame, Hardware, Invalidate, Mechanism, PageRange, Policy,
    Scope, Tag,
};

use crate::values::{quell_range, quell_scope};

/// The most CPUs that an engine handles.
pub const QUELL_MAX_CPUS: usize = 1024;
/// The words of a `struct quell_cpu_set`.
pub const QUELL_CPU_SET_WORDS: usize = 16;
const _: () = assert!(QUELL_MAX_CPUS == MAX_CPUS && QUELL_CPU_SET_WORDS * 64 == MAX_CPUS);

/// A set of CPUs: CPU n is a member if bit n % 64 of `bits[n / 64]` is set.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct quell_cpu_set {
    /// The members.
    pub bits: [u64; QUELL_CPU_SET_WORDS],
}

/// How much an invalidation takes away.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum quell_invalidate_kind {
    /// The entries of `range` under `tag`, in `scope`. Without tags the tag is ignored.
    Range,
    /// All entries under `tag`, walker caches included; `range` and `scope` say nothing.
    Tag,
    /// All entries under all tags, walker caches included; global kernel entries may stay.
    All,
}

/// What to invalidate.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct quell_invalidate {
    /// How much.
    pub kind: quell_invalidate_kind,
    /// Leaf entries alone, or the walker caches on the path as well.
    pub scope: quell_scope,
    /// The range, one invalidation per stride.
    pub range: quell_range,
    /// The hardware's tag: PCID or ASID. Tag 0 is the kernel's.
    pub tag: u16,
}

impl From<Invalidate> for quell_invalidate {
    #[inline]
    fn from(what: Invalidate) -> Self {
        let (kind, tag, range, scope) = match what {
            Invalidate::Range { tag, range, scope } => {
                (quell_invalidate_kind::Range, tag, range, scope)
            }
            Invalidate::Tag(tag) => (
                quell_invalidate_kind::Tag,
                tag,
                PageRange::default(),
                Scope::Tables,
            ),
            // Through this interface no space of the kernel's mappings is made, so nothing is asked for of these.
            Invalidate::All | Invalidate::Everything | Invalidate::Kernel { .. } => (
                quell_invalidate_kind::All,
                Tag::KERNEL,
                PageRange::default(),
                Scope::Tables,
            ),
        };
        quell_invalidate {
            kind,
            scope: scope.into(),
            range: range.into(),
            tag: tag.0,
        }
    }
}

unsafe extern "C" {
    /// The number of the CPU that executes the call, from 0, and of no other CPU at the same time.
    pub fn quell_hw_this_cpu() -> u32;

    /// A full barrier that also makes table stores visible to the walkers of all CPUs: its own stores, and those of
    /// other CPUs that it has observed, for instance by taking the lock under which they were made. `mfence` on x86,
    /// `dsb ish` on Arm.
    pub fn quell_hw_fence();

    /// Invalidates translations of this CPU alone. In effect when it returns: no later access of this CPU uses an
    /// entry that is covered, unless it was filled again from the tables after the call began.
    pub fn quell_hw_invalidate(what: *const quell_invalidate);

    /// Starts to invalidate translations on every CPU (`TLBI ... IS`, INVLPGB). Table stores before the call are seen
    /// by fills after the completion. Not called unless `quell_features.broadcast` is set; then it may be a trap.
    pub fn quell_hw_broadcast_start(what: *const quell_invalidate);

    /// Waits until every broadcast that *this* CPU has sent is complete on every CPU (`dsb ish`, `tlbsync`). Not
    /// called unless `quell_features.broadcast` is set.
    pub fn quell_hw_broadcast_complete();

    /// Loads the root table in frame `root` under `tag`. With `keep`, entries under the tag survive; without, all of
    /// them are gone on return. Without tags, nothing survives. Interrupts are masked.
    pub fn quell_hw_load_root(root: u64, tag: u16, keep: bool);

    /// Leaves every user root: until the next quell_hw_load_root this CPU uses and fills no user translation (the
    /// kernel's own root on x86, a reserved table on Arm). Interrupts are masked.
    pub fn quell_hw_unload_root();

    /// Interrupts each CPU of `targets`, which never holds the caller and is gone when this returns. Each of them
    /// sooner or later calls quell_on_interrupt, and sees what was stored before the sending. Interrupts are masked,
    /// so it must not wait for other CPUs.
    pub fn quell_hw_interrupt(targets: *const quell_cpu_set);

    /// Masks interrupts on this CPU; returns whether they were on.
    pub fn quell_hw_mask_interrupts() -> bool;

    /// Undoes quell_hw_mask_interrupts: turns interrupts on again if `were_on`.
    pub fn quell_hw_restore_interrupts(were_on: bool);

    /// One turn of a waiting loop (`pause`, `yield`).
    pub fn quell_hw_relax();

    /// Whether this CPU may wait for others now. Only a library with debug assertions asks, and only such a one needs
    /// the function: a checker of locks answers here. `false` is a panic.
    #[cfg(debug_assertions)]
    pub fn quell_hw_may_wait() -> bool;
}

/// The machine that the functions make.
#[derive(Debug)]
pub struct Machine {
    features: Features,
}

impl Machine {
    /// The machine, with the features that the embedder has named.
    pub(crate) const fn new(features: Features) -> Self {
        Machine { features }
    }
}

/// The mechanisms that the library was built with.
const fn compiled_in() -> Policy {
    let mut policy = Policy::BASELINE;
    if cfg!(feature = "batch") {
        policy = policy.with(Mechanism::Batch);
    }
    if cfg!(feature = "extents") {
        policy = policy.with(Mechanism::Extents);
    }
    if cfg!(feature = "tags") {
        policy = policy.with(Mechanism::Tags);
    }
    if cfg!(feature = "lazy") {
        policy = policy.with(Mechanism::LazyUnmap);
    }
    if cfg!(feature = "remote") {
        policy = policy.with(Mechanism::RemoteFlush);
    }
    policy
}

// SAFETY: every guarantee is passed on to the embedder's function of the same name, whose documentation asks for it.
unsafe impl Hardware for Machine {
    const MECHANISMS: Policy = compiled_in();

    type Word = AtomicU64;
    type Broadcasts = Self;

    #[inline]
    fn this_cpu(&self) -> CpuId {
        // SAFETY: the embedder's function has no conditions; nor have those below, but where it is said.
        let cpu = unsafe { quell_hw_this_cpu() };
        // What does not fit is no CPU of any engine, and must not become one by being cut off.
        CpuId(cpu.try_into().unwrap_or(u16::MAX))
    }

    fn features(&self) -> Features {
        self.features
    }

    #[inline]
    fn fence(&self) {
        // SAFETY: as above.
        unsafe { quell_hw_fence() };
    }

    #[inline]
    fn invalidate(&self, what: Invalidate) {
        let what = what.into();
        // SAFETY: the pointer is to a value that outlives the call.
        unsafe { quell_hw_invalidate(&raw const what) };
    }

    #[inline]
    fn broadcasts(&self) -> Option<&Self> {
        self.features.broadcast.then_some(self)
    }

    #[inline]
    unsafe fn load_root(&self, root: Frame, tag: Tag, keep: bool) {
        // SAFETY: the caller's promise for `root` is the one that the function wants.
        unsafe { quell_hw_load_root(root.0, tag.0, keep) };
    }

    #[inline]
    fn unload_root(&self) {
        // SAFETY: as above.
        unsafe { quell_hw_unload_root() };
    }

    fn interrupt(&self, targets: &CpuSet) {
        let mut bits = [0; QUELL_CPU_SET_WORDS];
        for cpu in targets.iter() {
            bits[cpu.index() / 64] |= 1 << (cpu.index() % 64);
        }
        let set = quell_cpu_set { bits };
        // SAFETY: the pointer is to a value that outlives the call.
        unsafe { quell_hw_interrupt(&raw const set) };
    }

    #[inline]
    fn mask_interrupts(&self) -> bool {
        // SAFETY: as above.
        unsafe { quell_hw_mask_interrupts() }
    }

    #[inline]
    fn restore_interrupts(&self, were_on: bool) {
        // SAFETY: as above.
        unsafe { quell_hw_restore_interrupts(were_on) };
    }

    #[inline]
    fn relax(&self) {
        // SAFETY: as above.
        unsafe { quell_hw_relax() };
    }

    #[cfg(debug_assertions)]
    fn may_wait(&self) -> bool {
        // SAFETY: as above.
        unsafe { quell_hw_may_wait() }
    }
}

impl Broadcast for Machine {
    fn start(&self, what: Invalidate) {
        let what = what.into();
        // SAFETY: the pointer is to a value that outlives the call.
        unsafe { quell_hw_broadcast_start(&raw const what) };
    }

    fn complete(&self) {
        // SAFETY: as above.
        unsafe { quell_hw_broadcast_complete() };
    }
}

// What C sees of a set is what it declares.
const _: () = assert!(size_of::<quell_cpu_set>() == MAX_CPUS / 8);

//! Declares the machine below the engine: functions that the kernel defines in C and the linker resolves.
//!
//! A program has one machine, so the engine calls these functions directly. [`Machine`] holds only the features that
//! the kernel has stated. Functions that few kernels need are optional ([`quell_hooks`]): for guests, devices and
//! reports of hangs, for example.

use core::mem::{MaybeUninit, size_of};
use core::sync::atomic::AtomicU64;
use quell::MAX_CPUS;
use quell::{
    CpuId, CpuSet, Features, Frame, Hardware, Invalidation, Mechanism, PageRange, PerCpuAddress,
    PerCpuData, Policy, Scope, Tag,
};

use crate::capacity::CHECKED;
use crate::flight::Flights;
use crate::values::{enum_quell_scope, quell_range, quell_scope};

/// The most CPUs that an engine handles.
///
/// It's 8192 if the library was built with the feature "cpus-8192". Then define QUELL_CPUS_8192 wherever you include
/// this header.
#[cfg(not(feature = "cpus-8192"))]
pub const QUELL_MAX_CPUS: usize = 1024;
/// The most CPUs that an engine handles.
#[cfg(feature = "cpus-8192")]
pub const QUELL_MAX_CPUS: usize = 8192;
/// The number of words in a `struct quell_cpu_set`.
#[cfg(not(feature = "cpus-8192"))]
pub const QUELL_CPU_SET_WORDS: usize = 16;
/// The number of words in a `struct quell_cpu_set`.
#[cfg(feature = "cpus-8192")]
pub const QUELL_CPU_SET_WORDS: usize = 128;
const _: () = assert!(QUELL_MAX_CPUS == MAX_CPUS && QUELL_CPU_SET_WORDS * 64 == MAX_CPUS);

/// A set of CPUs. CPU n is a member if bit n % 64 of `bits[n / 64]` is set.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct quell_cpu_set {
    /// The members, one bit each.
    pub bits: [u64; QUELL_CPU_SET_WORDS],
}

/// The kind of an invalidation: the translations that it drops.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum quell_invalidation_kind {
    /// The entries of `range` under `tag`, in `scope`. On a machine without tags, ignore the tag.
    Range,
    /// All entries under `tag`, walker caches included. Ignore `range` and `scope`.
    Tag,
    /// All entries under all tags, walker caches included. Global kernel entries may stay.
    All,
    /// The entries of `range` in the kernel's half, in `scope`: global ones, and those under the loaded tag.
    ///
    /// `invlpg` and `tlbi vaae1` do that. With global tags, drop those under all tags. quell uses this kind only for
    /// spaces that quell_kernel_space_new made.
    Kernel,
    /// All entries under all tags, global ones and walker caches included, after a full barrier like quell_hw_fence.
    ///
    /// Ignore `tag`, `range` and `scope`. quell_cpu_online uses it, too. A kernel that makes no kernel space may treat
    /// it as `All`.
    Everything,
}

/// The arguments of one invalidation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct quell_invalidation {
    /// The kind of translations to drop.
    pub kind: quell_invalidation_kind,
    /// The entries to drop: leaf entries alone, or also the walker caches on the path.
    pub scope: quell_scope,
    /// The pages to invalidate, with one invalidation per stride.
    pub range: quell_range,
    /// The hardware's tag, a PCID or ASID. Tag 0 is the kernel's.
    pub tag: u16,
}

impl From<Invalidation> for quell_invalidation {
    #[inline]
    fn from(what: Invalidation) -> Self {
        use quell_invalidation_kind as Kind;
        let whole = |kind, tag| (kind, tag, PageRange::default(), Scope::Tables);
        let (kind, tag, range, scope) = match what {
            Invalidation::Range { tag, range, scope } => (Kind::Range, tag, range, scope),
            Invalidation::Tag(tag) => whole(Kind::Tag, tag),
            Invalidation::Kernel { range, scope } => (Kind::Kernel, Tag::KERNEL, range, scope),
            Invalidation::All => whole(Kind::All, Tag::KERNEL),
            Invalidation::Everything => whole(Kind::Everything, Tag::KERNEL),
        };
        quell_invalidation { kind, scope: scope.into(), range: range.into(), tag: tag.0 }
    }
}

unsafe extern "C" {
    /// Returns the number of the CPU that executes the call, from 0.
    ///
    /// No other CPU has this number at the same time.
    pub fn quell_hw_this_cpu() -> u32;

    /// Executes a full barrier that also shows table stores to the walkers of all CPUs.
    ///
    /// It covers this CPU's own stores. It also covers stores of other CPUs that this CPU has observed: it took the
    /// lock under which they were made, for example. On x86 it's `mfence`, on Arm `dsb ish`.
    pub fn quell_hw_fence();

    /// Invalidates translations of this CPU alone. The invalidation has taken effect on return.
    ///
    /// After that, no access of this CPU uses a covered entry, unless the walker filled the entry from the tables after
    /// the call began. Fills after the call see table stores that this CPU made before it, and those of other CPUs that
    /// it has observed. So on Arm the invalidation begins with `dsb ishst`, or with `dsb ish` in a kernel that
    /// broadcasts nothing. quell_hw_load_root without `keep` guarantees the same.
    ///
    /// If another CPU sees a release store that this CPU made after the call, the invalidation has taken effect. If
    /// `what` names a tag, it's the loaded one.
    pub fn quell_hw_invalidate(what: *const quell_invalidation);

    /// Starts to invalidate translations on every CPU (`TLBI ... IS`, INVLPGB).
    ///
    /// Fills after its completion see table stores made before the call. quell calls it only if
    /// `quell_features.broadcast` is set; otherwise it may trap. A library without the feature "broadcast" needs
    /// neither this function nor quell_hw_broadcast_complete.
    pub fn quell_hw_broadcast_start(what: *const quell_invalidation);

    /// Waits until this CPU's broadcasts are complete on every CPU (`dsb ish`, `tlbsync`).
    ///
    /// quell calls it only if `quell_features.broadcast` is set.
    pub fn quell_hw_broadcast_complete();

    /// Loads the root table in frame `root` under `tag`.
    ///
    /// If `keep` is set, entries under the tag may survive. Otherwise none is left on return. On a machine without
    /// tags, only global ones survive. Interrupts are masked.
    pub fn quell_hw_load_root(root: u64, tag: u16, keep: bool);

    /// Leaves every user root. Until the next quell_hw_load_root, this CPU uses and fills no user translation.
    ///
    /// For example, it loads the kernel's own root on x86, or a reserved table on Arm. It also drops entries under the
    /// tag of the root that it loads, except global ones. Interrupts are masked.
    pub fn quell_hw_unload_root();

    /// Interrupts each CPU of `targets`; the caller is never one of them.
    ///
    /// Each target eventually calls quell_on_interrupt, and then sees the stores that precede this call. Interrupts are
    /// masked, so this function must not wait for other CPUs.
    ///
    /// `targets` is valid until this function returns. Only the words that cover the engine's CPUs are initialised:
    /// don't read or copy the others.
    pub fn quell_hw_interrupt(targets: *const quell_cpu_set);

    /// Masks interrupts on this CPU, and returns whether they were on.
    pub fn quell_hw_mask_interrupts() -> bool;

    /// Undoes quell_hw_mask_interrupts: turns interrupts on again if `were_on` is true.
    pub fn quell_hw_restore_interrupts(were_on: bool);

    /// Runs one turn of a waiting loop (`pause`, `yield`).
    ///
    /// Other CPUs must make progress meanwhile.
    pub fn quell_hw_relax();

    /// Returns whether this CPU may wait for other CPUs now.
    ///
    /// A kernel can query its lock checker, for example. Only a library with debug assertions needs this function, and
    /// panics if it returns false.
    #[cfg(debug_assertions)]
    pub fn quell_hw_may_wait() -> bool;
}

/// Optional functions of the kernel. quell doesn't call a function that is NULL.
///
/// Set the struct to zero first. As with quell_hw_*, none of these functions may call quell or wait for other CPUs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct quell_hooks {
    /// Makes this CPU drop the instructions that it fetched before the call.
    ///
    /// It's `isb` on Arm, and a serializing instruction on x86. quell_synchronize_text refuses to work without it.
    pub synchronize_text: Option<extern "C" fn()>,
    /// In a guest: requests that the hypervisor flush the virtual CPU `target` if it isn't running.
    ///
    /// Returns true if `target` wasn't running and will lose every translation before it executes or walks again,
    /// global ones and walker caches included. Then quell doesn't interrupt it. quell calls this function for each
    /// target of a flush, after the tables were changed, but not for quell_space_retire and quell_synchronize_text.
    ///
    /// The function is one atomic operation on memory that the hypervisor shares with the guest, and a full barrier.
    pub flush_on_reentry: Option<extern "C" fn(target: u32) -> bool>,
    /// Starts to invalidate the translations of devices that walk a space's tables: an IOMMU, or a hypervisor's second
    /// stage.
    ///
    /// The entries in `range` have changed, or all entries if it's NULL, in the space whose root is in frame `root`.
    /// quell calls this function for every change that needs a flush, after the tables were changed, on the CPU that
    /// flushes or defers the flush. If the flush is deferred until reuse, quell calls it at the unmap. Table locks may
    /// be held, so it must not wait.
    ///
    /// quell_engine_new refuses this function if the library was built without the feature "secondary".
    pub start_secondary:
        Option<extern "C" fn(root: u64, range: *const quell_range, scope: enum_quell_scope)>,
    /// Returns a number that identifies everything that was started with `start_secondary` before this call.
    ///
    /// That includes calls by other CPUs that this CPU has observed. The number may be that of a later command in the
    /// device's queue, for example. Must not wait.
    pub mark_secondary: Option<extern "C" fn() -> u64>,
    /// Returns whether everything that `mark` covers is complete: devices use and fill no invalidated translation.
    ///
    /// quell calls it on any CPU until it returns true; only then is a flush over. It must not wait: between two calls
    /// quell serves requests for its CPU, and quell_batch_poll calls it once. NULL means that invalidations are
    /// complete when `start_secondary` returns.
    pub secondary_is_done: Option<extern "C" fn(mark: u64) -> bool>,
    /// Reports that this CPU has waited for CPU `target` for `turns` turns of quell_hw_relax.
    ///
    /// With it a kernel can report a hang. quell calls it after 65536 turns, and again whenever the number has doubled.
    /// Either `target` doesn't answer, or it still runs a space that is being retired (quell_space_retire). The wait
    /// continues when the function returns.
    pub waits_long: Option<extern "C" fn(target: u32, turns: u64)>,
}

/// The address of each CPU's state, if the states aren't one array.
pub(crate) type Places = &'static [&'static PerCpuData<'static, Machine>];

/// The machine that the kernel's functions form.
pub struct Machine {
    features: Features,
    /// 0 means never.
    shares_lines_from: u32,
    hooks: quell_hooks,
    /// Empty if the states of the CPUs are one array.
    places: Places,
    /// The number of words of a CPU set that cover CPUs of the engine.
    words: usize,
    flights: Flights,
}

impl Machine {
    /// Creates the machine from the embedder's `quell_setup`.
    pub(crate) const fn new(
        features: Features,
        shares_lines_from: u32,
        hooks: quell_hooks,
        places: Places,
        cpus: usize,
    ) -> Self {
        Machine {
            features,
            shares_lines_from,
            hooks,
            places,
            words: cpus.div_ceil(64),
            flights: Flights::new(),
        }
    }

    /// The started flushes that end with a callback.
    pub(crate) const fn flights(&self) -> &Flights {
        &self.flights
    }

    /// Returns whether the embedder provides `synchronize_text`.
    pub(crate) const fn synchronizes_text(&self) -> bool {
        self.hooks.synchronize_text.is_some()
    }
}

/// The type through which we send the machine's broadcasts.
#[cfg(feature = "broadcast")]
type Broadcasts = Machine;
/// We built the library without broadcasts.
#[cfg(not(feature = "broadcast"))]
type Broadcasts = quell::NoBroadcasts;

/// Returns the mechanisms that the library was built with.
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

// SAFETY: each function calls the embedder's function of the same name, whose documentation demands the same
// guarantees.
unsafe impl Hardware for Machine {
    const MECHANISMS: Policy = compiled_in();
    const IS_SMALL: bool = crate::capacity::SMALL;
    const HAS_KERNEL_SPACES: bool = cfg!(feature = "kernel");
    // Without the feature "text" an embedder can't choose another policy.
    const POLICY_IS_FIXED: bool = !cfg!(feature = "text");
    const HAS_SECONDARY: bool = cfg!(feature = "secondary");
    const RANGES: usize = crate::capacity::RANGES;

    type Word = AtomicU64;
    type Broadcasts = Broadcasts;

    #[inline]
    fn this_cpu(&self) -> CpuId {
        // SAFETY: the embedder's function has no conditions.
        let cpu = unsafe { quell_hw_this_cpu() };
        if !CHECKED {
            return CpuId(cpu as u16);
        }
        // A number that doesn't fit belongs to no CPU of an engine; if we truncated it, it could become one that does.
        CpuId(cpu.try_into().unwrap_or(u16::MAX))
    }

    #[inline]
    fn per_cpu(&self, cpu: CpuId) -> Option<PerCpuAddress<Self>> {
        Some(self.places.get(cpu.index())?.address())
    }

    fn features(&self) -> Features {
        self.features
    }

    #[inline]
    fn shares_lines_from(&self) -> usize {
        match self.shares_lines_from {
            _ if Self::IS_SMALL => usize::MAX,
            0 => usize::MAX,
            targets => targets as usize,
        }
    }

    #[inline]
    fn fence(&self) {
        // SAFETY: the embedder's function has no conditions.
        unsafe { quell_hw_fence() };
    }

    #[inline(always)]
    fn invalidate(&self, what: Invalidation) {
        let what = what.into();
        // SAFETY: the pointer is to a value that outlives the call.
        unsafe { quell_hw_invalidate(&raw const what) };
    }

    #[inline]
    fn broadcasts(&self) -> Option<&Broadcasts> {
        #[cfg(feature = "broadcast")]
        let broadcasts = self.features.broadcast.then_some(self);
        #[cfg(not(feature = "broadcast"))]
        let broadcasts = None;
        broadcasts
    }

    #[inline]
    unsafe fn load_root(&self, root: Frame, tag: Tag, keep: bool) {
        // SAFETY: the caller's promise for `root` is the function's condition.
        unsafe { quell_hw_load_root(root.0, tag.0, keep) };
    }

    #[inline]
    fn unload_root(&self) {
        // SAFETY: the embedder's function has no conditions.
        unsafe { quell_hw_unload_root() };
    }

    fn interrupt(&self, targets: &CpuSet) {
        if targets.words().len() == self.words {
            // SAFETY: the pointer is to words that outlive the call, and the function reads no word beyond them.
            return unsafe { quell_hw_interrupt(targets.words().as_ptr().cast()) };
        }
        // We write only the words that cover CPUs: filling the others would take longer than everything else here.
        let mut set = MaybeUninit::<quell_cpu_set>::uninit();
        let bits = set.as_mut_ptr().cast::<u64>();
        for index in 0..self.words {
            let word = targets.words().get(index).copied().unwrap_or_default();
            // SAFETY: an engine has no more CPUs than the set has bits, so the word lies within the set.
            unsafe { bits.add(index).write(word) };
        }
        // SAFETY: the pointer is to a value that outlives the call, and the function reads only the initialised words.
        unsafe { quell_hw_interrupt(set.as_ptr()) };
    }

    #[inline]
    fn mask_interrupts(&self) -> bool {
        // SAFETY: the embedder's function has no conditions.
        unsafe { quell_hw_mask_interrupts() }
    }

    #[inline]
    fn restore_interrupts(&self, were_on: bool) {
        // SAFETY: the embedder's function has no conditions.
        unsafe { quell_hw_restore_interrupts(were_on) };
    }

    #[inline]
    fn relax(&self) {
        // SAFETY: the embedder's function has no conditions.
        unsafe { quell_hw_relax() };
    }

    fn synchronize_text(&self) {
        // Only `quell_synchronize_text` uses it, and refuses if there's no function.
        if let Some(synchronize) = self.hooks.synchronize_text {
            synchronize();
        }
    }

    #[inline]
    fn flush_on_reentry(&self, target: CpuId) -> bool {
        match self.hooks.flush_on_reentry {
            Some(flushes) => flushes(target.0.into()),
            None => false,
        }
    }

    #[inline]
    fn start_secondary(&self, root: Frame, range: Option<PageRange>, scope: Scope) {
        if let Some(start) = self.hooks.start_secondary {
            let range = range.map(quell_range::from);
            let at = range.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
            start(root.0, at, quell_scope::from(scope) as u32);
        }
    }

    #[inline]
    fn mark_secondary(&self) -> u64 {
        self.hooks.mark_secondary.map_or(0, |mark| mark())
    }

    #[inline]
    fn secondary_is_done(&self, mark: u64) -> bool {
        self.hooks.secondary_is_done.is_none_or(|is_done| is_done(mark))
    }

    #[inline]
    fn flush_answered(&self) {
        if cfg!(feature = "start") {
            self.flights.look_masked();
        }
    }

    #[cold]
    fn waits_long(&self, target: CpuId, turns: u64) {
        if let Some(says) = self.hooks.waits_long {
            says(target.0.into(), turns);
        }
    }

    #[cfg(debug_assertions)]
    fn may_wait(&self) -> bool {
        // SAFETY: the embedder's function has no conditions.
        unsafe { quell_hw_may_wait() }
    }
}

#[cfg(feature = "broadcast")]
impl quell::Broadcast for Machine {
    fn start(&self, what: Invalidation) {
        let what = what.into();
        // SAFETY: the pointer is to a value that outlives the call.
        unsafe { quell_hw_broadcast_start(&raw const what) };
    }

    fn complete(&self) {
        // SAFETY: the embedder's function has no conditions.
        unsafe { quell_hw_broadcast_complete() };
    }
}

// We pass our words as a `struct quell_cpu_set`, so its size must be the engine's.
const _: () = assert!(size_of::<quell_cpu_set>() == MAX_CPUS / 8);

//! The activity of a CPU, and the decision whether a flush must interrupt it.
//!
//! Each CPU publishes in one word whether it runs user code, keeps a root without using it, or has none. Only that CPU
//! writes the word, with one exception ([`Activity::UserDeferring`]). Initiators read it. For a CPU that has a space
//! loaded, [`CpuState::must_be_asked`] decides whether it needs a request: it does if it may hold translations that no
//! other event will flush. Flushes, retirements and deferred flushes all call it. Two more checks can spare a CPU the
//! interrupt: [`CpuState::leave_to_entry`] for kernel mappings, and [`Hardware::flush_on_reentry`] for virtual CPUs.
//!
//! The CPU makes up for skipped requests when it loads or resumes a space: it compares the generation and the stamp, in
//! [`switch`](crate::switch).

use crate::hardware::{Hardware, Scope, Tag};
use crate::shared_inbox::SharedProgress;
use crate::space::SpaceId;
use crate::word::{Word, name_at};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// A CPU's use of its loaded root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(crate) enum Activity {
    /// The CPU runs, or is about to run, user code of its loaded space.
    Running = 0,
    /// The CPU is idle or runs a kernel thread. A root is loaded, but its user half isn't used.
    Lazy = 1,
    /// The CPU has no user root loaded.
    Detached = 2,
    /// The CPU resumes the space that it kept lazily. For other CPUs this equals [`Activity::Running`]. NMI handlers
    /// may not access user memory yet, because this TLB may still hold entries that all other CPUs have flushed.
    Waking = 3,
    /// The CPU runs a program undisturbed. It uses its user translations, but no kernel mapping before it has entered
    /// the kernel ([`CpuState::enter_kernel`]).
    User = 4,
    /// The CPU runs a program undisturbed, and must flush kernel mappings on kernel entry.
    ///
    /// An initiator has left the flush to it. This is the only state that other CPUs write.
    UserDeferring = 5,
    /// The CPU has entered the kernel and is about to flush.
    Entering = 6,
}

impl Activity {
    fn of(word: u64) -> Activity {
        match word {
            1 => Activity::Lazy,
            2 => Activity::Detached,
            3 => Activity::Waking,
            4 => Activity::User,
            5 => Activity::UserDeferring,
            6 => Activity::Entering,
            _ => Activity::Running,
        }
    }
}

/// The space that a CPU has loaded, as the CPU itself sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LoadedSpace {
    /// The CPU is offline: no initiator sends it requests, so it may load no space.
    Offline,
    /// No space.
    Nothing,
    /// The CPU is between two spaces and may access neither.
    Switching,
    /// This space, used or kept lazily.
    Space(SpaceId),
}

const NOTHING: u64 = 0;
const SWITCHING: u64 = u64::MAX;
const OFFLINE: u64 = u64::MAX - 1;

/// The condition that an initiator requires of every CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FlushReason {
    /// The CPU uses no translation that this flush covers.
    Flush(Scope),
    /// The CPU's walker reads no table of a space that is being retired.
    Retirement,
    /// The CPU uses no translation whose flush is deferred as of this stamp.
    Deferral(u64),
    /// The CPU uses no kernel translation that this flush covers.
    Kernel,
    /// The CPU uses no kernel translation whose flush is deferred as of this stamp.
    KernelDeferral(u64),
    /// The CPU executes no instruction that it fetched before.
    Text,
}

impl FlushReason {
    /// Returns the concern of a flush.
    ///
    /// If it covers `kernel` mappings, it concerns every online CPU, and so also those that user mappings of this scope
    /// concern.
    #[inline]
    pub(crate) fn of_flush(scope: Scope, kernel: bool) -> Self {
        if kernel { FlushReason::Kernel } else { FlushReason::Flush(scope) }
    }
}

/// The decision whether a CPU with the space loaded needs a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    /// The CPU needs a request.
    Ask,
    /// The CPU uses no translation now, and compares generations and stamps before it does again.
    Lazy,
    /// The CPU has left its root, and compares when it loads the next one.
    Detached,
    /// The CPU has flushed since the flush was deferred.
    Flushed,
}

/// The work that a CPU has when it enters the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// No flush was left to the entry.
    Flushed,
    /// The CPU must flush kernel mappings, and then call [`CpuState::has_entered`].
    Deferring,
    /// An NMI, in the middle of such an entry.
    Nested,
}

/// The state that initiators read to decide whether to interrupt a CPU. Only that CPU writes it, rarely, except for
/// [`Activity::UserDeferring`].
#[repr(align(64))]
struct PublishedState<W> {
    /// An [`Activity`].
    activity: W,
    /// The time of the flush clock before the last flush of the whole loaded tag.
    flushed_at: W,
    /// The time of the flush clock before the last flush of everything, global entries included.
    all_flushed_at: W,
}

/// The state that only the CPU itself writes, and mostly only it reads.
#[repr(align(64))]
struct PrivateState<W> {
    /// The id of the loaded space, or [`NOTHING`], [`SWITCHING`] or [`OFFLINE`].
    space: W,
    /// The tag under which the space is loaded.
    tag: W,
    /// The index of the loaded space's slot.
    slot: W,
    /// The slot to take over next.
    victim: W,
    shared: SharedProgress<W>,
}

/// The state of one CPU.
#[repr(C)]
pub(crate) struct CpuState<W> {
    published: PublishedState<W>,
    private: PrivateState<W>,
}

impl<W: Word> CpuState<W> {
    /// Makes the state of an offline CPU.
    pub(crate) fn new() -> Self {
        CpuState {
            published: PublishedState {
                activity: W::new(Activity::Detached as u64),
                flushed_at: W::new(0),
                all_flushed_at: W::new(0),
            },
            private: PrivateState {
                space: W::new(OFFLINE),
                tag: W::new(0),
                slot: W::new(0),
                victim: W::new(0),
                shared: SharedProgress(W::new(0)),
            },
        }
    }

    /// Decides whether this CPU, which has the space loaded, needs a request.
    ///
    /// Other CPUs call it after they have changed the generation or the stamp that this CPU compares.
    #[inline]
    pub(crate) fn must_be_asked(&self, concern: FlushReason) -> Decision {
        let published = &self.published;
        let tables = match concern {
            FlushReason::Flush(scope) => scope == Scope::Tables,
            FlushReason::Retirement => true,
            FlushReason::Deferral(_) => false,
            FlushReason::KernelDeferral(stamp) => {
                // A flush of a user tag doesn't reach kernel mappings. [mutant KernelDeferralFlushedByTag]
                return if Self::has_flushed_since(&published.all_flushed_at, stamp) {
                    Decision::Flushed
                } else {
                    Decision::Ask
                };
            }
            // A CPU that's idle, or has left its root, uses kernel mappings, too. [mutant KernelSkipsIdle]
            FlushReason::Text | FlushReason::Kernel => return Decision::Ask,
        };
        // SeqCst pairs with `declare_running`, `wake`, `go_lazy` and `detach`. The initiator has changed the generation
        // or the stamp before it reads the activity here. So it sees that the CPU is about to run, or that CPU sees the
        // change. If the initiator finds the CPU idle or without a root, that CPU's accesses are over. Otherwise we
        // could skip a CPU that then uses a stale entry.
        // A weaker ordering fails the loom race "an idle CPU comes back".
        match Activity::of(published.activity.load(SeqCst)) {
            // A lazy CPU uses no translation, but its walker may follow the root, so freed tables concern it. [mutant
            // LazySkippedForTables: bugs 10, 25]
            Activity::Lazy if !tables => Decision::Lazy,
            Activity::Detached => Decision::Detached,
            _ => match concern {
                FlushReason::Deferral(stamp)
                    if Self::has_flushed_since(&published.flushed_at, stamp) =>
                {
                    Decision::Flushed
                }
                _ => Decision::Ask,
            },
        }
    }

    /// Leaves a flush of kernel mappings to the next kernel entry of an undisturbed CPU.
    ///
    /// Returns `false` if the CPU needs a request. Other CPUs call it after they have changed the tables.
    pub(crate) fn leave_to_entry(&self, scope: Scope) -> bool {
        let activity = &self.published.activity;
        // Relaxed: the exchange below checks the value again.
        let mut seen = activity.load(Relaxed);
        // A program uses no kernel mapping, but the CPU's walker may read the kernel's half, so freed tables concern
        // it. [mutant ProgramLeftForTables]
        while matches!(Activity::of(seen), Activity::User | Activity::UserDeferring)
            && scope == Scope::Leaf
        {
            // We write even if the state is "deferring" already: the CPU must see the tables as the last initiator has
            // left them.
            // Release pairs with `enter_kernel`: the CPU flushes next, and then walks the tables as they are now.
            // A weaker ordering fails the loom race "a program enters the kernel, whose mappings change".
            match activity.compare_exchange(seen, Activity::UserDeferring as u64, Release, Relaxed)
            {
                Ok(_) => {
                    // Acquire pairs with `enter_user`: the CPU's accesses through kernel mappings are over.
                    // A weaker ordering fails the loom race "a program is returned to while the kernel's mappings
                    // change".
                    W::fence(Acquire);
                    return true;
                }
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Returns whether this CPU has another space than `space` loaded, or none.
    ///
    /// Other CPUs call it after this CPU has answered, for a space to which no CPU switches any more.
    pub(crate) fn is_elsewhere(&self, space: SpaceId) -> bool {
        // Relaxed: this CPU's answer published the space that was loaded then. It stores a later space only after it
        // has loaded that root.
        match self.loaded() {
            LoadedSpace::Space(loaded) => loaded != space,
            LoadedSpace::Switching => false,
            LoadedSpace::Nothing | LoadedSpace::Offline => true,
        }
    }

    fn has_flushed_since(flushed_at: &W, stamp: u64) -> bool {
        // Acquire pairs with `end_switch` and `publish`: the target's accesses from before that flush are over.
        // A weaker ordering fails the loom race "a CPU goes offline and comes back while it is asked to flush".
        flushed_at.load(Acquire) >= stamp
    }

    // Only the CPU itself calls the functions below.

    /// Returns how the CPU uses its root.
    #[inline]
    pub(crate) fn activity(&self) -> Activity {
        Activity::of(self.published.activity.load(Relaxed))
    }

    /// Returns whether the CPU runs its loaded space and has nothing left to do before.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        self.published.activity.load(Relaxed) == Activity::Running as u64
    }

    #[inline]
    pub(crate) fn loaded(&self) -> LoadedSpace {
        match self.private.space.load(Relaxed) {
            NOTHING => LoadedSpace::Nothing,
            OFFLINE => LoadedSpace::Offline,
            SWITCHING => LoadedSpace::Switching,
            id => LoadedSpace::Space(SpaceId(id)),
        }
    }

    /// Returns whether the CPU has this space loaded, used or not.
    #[inline]
    pub(crate) fn has_loaded(&self, space: SpaceId) -> bool {
        self.private.space.load(Relaxed) == space.0
    }

    /// Returns the tag under which the space is loaded.
    #[inline]
    pub(crate) fn tag(&self) -> Tag {
        Tag(self.private.tag.load(Relaxed) as u16)
    }

    /// Returns the index of the loaded space's slot.
    #[inline]
    pub(crate) fn slot(&self) -> usize {
        self.private.slot.load(Relaxed) as usize
    }

    /// Returns the CPU's progress with the requests in its shared inbox.
    #[inline]
    pub(crate) fn shared_progress(&self) -> &SharedProgress<W> {
        &self.private.shared
    }

    /// Returns the next of the first `slots` slots to take over.
    pub(crate) fn next_victim(&self, slots: usize) -> usize {
        let victim = self.private.victim.load(Relaxed) as usize;
        self.private.victim.store(((victim + 1) % slots) as u64, Relaxed);
        victim
    }

    /// Begins a switch. The CPU still belongs to the old space.
    ///
    /// `defers` is set if any flush is ever deferred. Otherwise no CPU reads the time of its flushes.
    #[inline]
    pub(crate) fn begin_switch(&self, defers: bool) {
        self.private.space.store(SWITCHING, Relaxed);
        if defers {
            // A CPU that makes a deferred flush and finds this CPU in the new space's set must not read the old tag's
            // flush time, which may be newer.
            self.published.flushed_at.store(0, Relaxed);
        }
    }

    /// Publishes that the CPU has entered the new space's set and will run it.
    pub(crate) fn declare_running(&self) {
        // We can leave the store out if the CPU runs already: no other CPU writes the activity, and an initiator that
        // finds this CPU in the set sees its latest value.
        if !self.is_running() {
            // SeqCst pairs with `must_be_asked`: an initiator sees that this CPU runs, or this CPU, which reads the
            // generation next, sees the change. Otherwise the initiator could skip this CPU while it loads a stale
            // entry.
            // A weaker ordering fails the loom race "an idle CPU loads a space while it is flushed".
            self.published.activity.store(Activity::Running as u64, SeqCst);
        }
    }

    /// Ends a switch: the new space is loaded. For `defers` see [`CpuState::begin_switch`].
    #[inline]
    pub(crate) fn end_switch(&self, space: SpaceId, flushed_at: u64, defers: bool) {
        self.private.space.store(space.0, Relaxed);
        if !defers {
            return;
        }
        // Release pairs with `has_flushed_since`: this CPU's accesses under its former tag are over.
        // A weaker ordering fails the loom race "a reuse against a CPU that leaves".
        self.published.flushed_at.store(flushed_at, Release);
    }

    /// Stores the tag and the slot of the new space.
    pub(crate) fn use_tag(&self, tag: Tag, slot: Option<usize>) {
        if let Some(slot) = slot {
            self.private.slot.store(slot as u64, Relaxed);
        }
        self.private.tag.store(tag.0.into(), Relaxed);
    }

    /// Publishes that the CPU keeps its root but stops using it.
    pub(crate) fn go_lazy(&self) {
        if self.is_running() {
            // Release pairs with `must_be_asked`: this CPU's accesses are over before an initiator finds it idle and
            // skips it.
            // A weaker ordering fails the loom race "a CPU goes idle while its space is flushed".
            self.published.activity.store(Activity::Lazy as u64, Release);
        }
    }

    /// Publishes that the CPU is about to use its kept root. It gets requests from now on.
    ///
    /// With `unchecked` it has yet to catch up; [`CpuState::caught_up`] follows.
    pub(crate) fn wake(&self, unchecked: bool) {
        let activity = if unchecked { Activity::Waking } else { Activity::Running };
        // SeqCst pairs with `must_be_asked`: an initiator sees this CPU awake, or this CPU, which reads generation and
        // stamp next, sees the change. Otherwise it could resume with a stale entry.
        // A weaker ordering fails the loom race "an idle CPU comes back".
        self.published.activity.store(activity as u64, SeqCst);
    }

    /// Publishes that the CPU has caught up with the space that it resumed.
    pub(crate) fn caught_up(&self) {
        // Relaxed: initiators treat "waking" and "running" alike.
        self.published.activity.store(Activity::Running as u64, Relaxed);
    }

    /// Publishes that the CPU returns to a program that should run undisturbed.
    pub(crate) fn enter_user(&self) {
        if self.is_running() {
            // Release pairs with `leave_to_entry`: this CPU's accesses through kernel mappings are over before an
            // initiator leaves a flush to its next entry.
            // A weaker ordering fails the loom race "a program is returned to while the kernel's mappings change".
            self.published.activity.store(Activity::User as u64, Release);
        }
    }

    /// Publishes that the CPU enters the kernel. Returns the work left to the entry.
    ///
    /// The CPU uses no kernel mapping that may change before it has made the flushes left to it.
    #[inline]
    pub(crate) fn enter_kernel(&self) -> Entry {
        match self.activity() {
            Activity::User | Activity::UserDeferring => {}
            Activity::Entering => return Entry::Nested,
            _ => return Entry::Flushed,
        }
        let (user, running) = (Activity::User as u64, Activity::Running as u64);
        // Relaxed: if this succeeds, no flush was left to the entry, and the CPU gets requests from here on.
        let activity = &self.published.activity;
        match activity.compare_exchange(user, running, Relaxed, Relaxed) {
            Ok(_) => Entry::Flushed,
            Err(_) => {
                // A store wouldn't do, because it reads nothing: initiators write "deferring" over "deferring", and we
                // need the last of them.
                // Acquire pairs with `leave_to_entry`: the flush that follows covers the tables as that initiator left
                // them.
                // A weaker ordering fails the loom race "a program that has a deferred flush enters the kernel, whose
                // mappings change".
                activity.swap(Activity::Entering as u64, Acquire);
                Entry::Deferring
            }
        }
    }

    /// Publishes that the CPU has made the flushes left to its entry.
    pub(crate) fn has_entered(&self) {
        // Relaxed: other CPUs write nothing over "entering", and treat it like "running".
        self.published.activity.store(Activity::Running as u64, Relaxed);
    }

    /// Leaves the loaded root, if any. Interrupts are masked.
    pub(crate) fn detach<H: Hardware>(&self, hw: &H) {
        // From here on an NMI handler sees that the root may be gone.
        self.private.space.store(SWITCHING, Relaxed);
        hw.unload_root();
        self.private.space.store(NOTHING, Relaxed);
        // Release pairs with `must_be_asked`: this CPU has left its root before an initiator finds it without one and
        // skips it.
        // A weaker ordering fails the loom race "a CPU goes offline while it is asked".
        self.published.activity.store(Activity::Detached as u64, Release);
    }

    /// Records that the CPU takes part from now on, with no space loaded. It has yet to flush its old entries.
    pub(crate) fn go_online(&self) {
        self.private.space.store(NOTHING, Relaxed);
    }

    /// Leaves the loaded root, if any, and stops taking part. Interrupts are masked.
    pub(crate) fn go_offline<H: Hardware>(&self, hw: &H) {
        self.detach(hw);
        self.private.space.store(OFFLINE, Relaxed);
    }

    /// Publishes a flush of the whole loaded tag, made after the clock read `now`.
    pub(crate) fn flushed(&self, now: u64) {
        Self::publish(&self.published.flushed_at, now);
    }

    /// Publishes a flush of everything, global entries included, made after the clock read `now`.
    pub(crate) fn flushed_everything(&self, now: u64) {
        Self::publish(&self.published.all_flushed_at, now);
    }

    #[inline]
    fn publish(flushed_at: &W, now: u64) {
        // Release pairs with `has_flushed_since`: a CPU that makes a deferred flush and skips this one finds its flush
        // done.
        // A weaker ordering fails the loom race "a refill against a reuse".
        flushed_at.store(now, Release);
    }

    /// Returns the time of the flush clock before the last flush of the loaded tag.
    #[inline]
    pub(crate) fn flushed_at(&self) -> u64 {
        self.published.flushed_at.load(Relaxed)
    }

    pub(crate) fn word_name(&self, address: usize) -> Option<&'static str> {
        let names = [
            (&self.published.activity, "state"),
            (&self.published.flushed_at, "flushed_at"),
            (&self.published.all_flushed_at, "all_flushed_at"),
            (&self.private.space, "space"),
            (&self.private.tag, "tag"),
            (&self.private.slot, "slot"),
            (&self.private.victim, "victim"),
            (&self.private.shared.0, "shared.progress"),
        ];
        name_at(names, address)
    }
}

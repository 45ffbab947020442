//! The activity of a CPU, and the decision which CPUs are interrupted.
//!
//! Each CPU publishes in one word whether it runs user code, keeps a root without using it, or has none. Only that CPU
//! writes the word, with one exception ([`Activity::UserDeferring`]). Initiators read it. [`CpuState::must_be_asked`]
//! alone decides whether a CPU that has a space loaded must be interrupted: it must if it may hold translations that no
//! other event will flush. Flushes, retirements and deferred flushes all call it.
//!
//! The CPU does its own half when it loads a space or resumes it: it compares the generation and the stamp, in
//! [`switch`](crate::switch).

use crate::hardware::{Hardware, Scope, Tag};
use crate::space::SpaceId;
use crate::word::Word;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// A CPU's use of its loaded root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(crate) enum Activity {
    /// It runs, or is about to run, user code of the space that it has loaded.
    Running = 0,
    /// It is idle or runs a kernel thread. A root is loaded, but its user half is not used.
    Lazy = 1,
    /// It has no user root loaded.
    Detached = 2,
    /// It resumes the space that it kept lazily. For other CPUs this equals [`Activity::Running`]. NMI handlers may not
    /// access user memory yet, because this TLB may still hold entries that all other CPUs have flushed.
    Waking = 3,
    /// It runs a program and should not be interrupted. It uses its user translations, but no kernel mapping before it
    /// has entered the kernel ([`CpuState::enter_kernel`]).
    User = 4,
    /// It runs such a program, and an initiator has left a flush of the kernel's mappings to its entry. The only state
    /// that other CPUs write.
    UserDeferring = 5,
    /// It has entered the kernel and is about to flush.
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
pub(crate) enum Loaded {
    /// It does not take part in the protocol: no initiator asks it, so it may load no space.
    Offline,
    /// None.
    Nothing,
    /// It is between two spaces, neither of which may be accessed.
    Switching,
    /// This one, used or kept lazily.
    Space(SpaceId),
}

const NOTHING: u64 = 0;
const SWITCHING: u64 = u64::MAX;
const OFFLINE: u64 = u64::MAX - 1;

/// The property that an initiator requires of every CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Concern {
    /// No use of a translation that this flush covers.
    Flush(Scope),
    /// No walker in the tables of a space that is being retired.
    Retirement,
    /// No use of a translation whose flush is deferred as of this stamp.
    Deferral(u64),
    /// No use of a translation of the kernel's half that this flush covers.
    Kernel,
    /// No use of a translation of the kernel's half whose flush is deferred as of this stamp.
    KernelDeferral(u64),
    /// No execution of instructions that were fetched before.
    Text,
}

impl Concern {
    /// Returns the concern of a flush. If it covers `kernel` mappings, it concerns every online CPU, which includes
    /// those that user mappings of this scope concern.
    #[inline]
    pub(crate) fn of_flush(scope: Scope, kernel: bool) -> Self {
        if kernel {
            Concern::Kernel
        } else {
            Concern::Flush(scope)
        }
    }
}

/// Whether a CPU that has the space loaded must be asked to flush, and why not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    /// It must be asked.
    Ask,
    /// It uses no translation now, and compares generations and stamps before it does again.
    Lazy,
    /// It has left its root, and compares when it loads the next one.
    Detached,
    /// It has flushed since the deferred flush was taken.
    Flushed,
}

/// How a CPU enters the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// No flush was left to it.
    Flushed,
    /// It must flush the kernel's mappings, and then call [`CpuState::has_entered`].
    Deferring,
    /// An NMI, in the middle of such an entry.
    Nested,
}

/// The state by which initiators decide whether to interrupt a CPU. Only that CPU writes it, rarely; but see
/// [`Activity::UserDeferring`].
#[repr(align(64))]
struct Published<W> {
    /// An [`Activity`].
    activity: W,
    /// The time of the flush clock before the whole loaded tag was last flushed.
    flushed_at: W,
    /// The time of the flush clock before the CPU last flushed everything, global entries included.
    all_flushed_at: W,
}

/// The state that only the CPU itself reads.
#[repr(align(64))]
struct Private<W> {
    /// The id of the loaded space, or [`NOTHING`], [`SWITCHING`] or [`OFFLINE`].
    space: W,
    /// The tag that it is loaded under.
    tag: W,
    /// The index of its slot.
    slot: W,
    /// The slot to take over next.
    victim: W,
    /// The CPU's acknowledgement in its shared inbox.
    shared_ack: W,
}

/// The state of one CPU.
#[repr(C)]
pub(crate) struct CpuState<W> {
    published: Published<W>,
    private: Private<W>,
}

impl<W: Word> CpuState<W> {
    /// Makes the state of an offline CPU.
    pub(crate) fn new() -> Self {
        CpuState {
            published: Published {
                activity: W::new(Activity::Detached as u64),
                flushed_at: W::new(0),
                all_flushed_at: W::new(0),
            },
            private: Private {
                space: W::new(OFFLINE),
                tag: W::new(0),
                slot: W::new(0),
                victim: W::new(0),
                shared_ack: W::new(0),
            },
        }
    }

    /// Returns whether this CPU, found among those that have a space loaded, must be asked to flush, and why not. Other
    /// CPUs call it after they have changed the generation or the stamp that this CPU compares.
    #[inline]
    pub(crate) fn must_be_asked(&self, concern: Concern) -> Decision {
        let published = &self.published;
        let tables = match concern {
            Concern::Flush(scope) => scope == Scope::Tables,
            Concern::Retirement => true,
            Concern::Deferral(_) => false,
            Concern::KernelDeferral(stamp) => {
                // A flush of a user's tag does not reach the kernel's mappings. [mutant KernelDeferralFlushedByTag]
                return if Self::has_flushed_since(&published.all_flushed_at, stamp) {
                    Decision::Flushed
                } else {
                    Decision::Ask
                };
            }
            // A CPU that is idle, or has left its root, uses the kernel's mappings, too. [mutant KernelSkipsIdle]
            Concern::Text | Concern::Kernel => return Decision::Ask,
        };
        // SeqCst pairs with `declare_running`, `wake`, `go_lazy` and `detach`: the initiator has changed the generation
        // or the stamp before it looks here, so it sees a CPU that is about to run, or that CPU sees the change. If a
        // CPU is found idle or without a root, its accesses are over.
        // Lost without it: an idle CPU comes back.
        match Activity::of(published.activity.load(SeqCst)) {
            // A lazy CPU uses no translation, but its walker may follow the root: freed tables concern it.
            // [mutant LazySkippedForTables: bugs 10, 25]
            Activity::Lazy if !tables => Decision::Lazy,
            Activity::Detached => Decision::Detached,
            _ => match concern {
                Concern::Deferral(stamp)
                    if Self::has_flushed_since(&published.flushed_at, stamp) =>
                {
                    Decision::Flushed
                }
                _ => Decision::Ask,
            },
        }
    }

    /// Leaves a flush of the kernel's mappings to the CPU's next entry into the kernel, if it runs a program. Returns
    /// `false` if it must be asked. Other CPUs call it after they have changed the tables.
    pub(crate) fn leave_to_entry(&self, scope: Scope) -> bool {
        let activity = &self.published.activity;
        // Relaxed: the value is checked again by the exchange below.
        let mut seen = activity.load(Relaxed);
        // A program uses no mapping of the kernel, but the CPU's walker may read the kernel's half: freed tables
        // concern it. [mutant ProgramLeftForTables]
        while matches!(Activity::of(seen), Activity::User | Activity::UserDeferring)
            && scope == Scope::Leaf
        {
            // Written even if the state is "deferring" already: the CPU must see the tables as the last initiator has
            // left them.
            // Release pairs with `enter_kernel`: the CPU, which flushes next, walks the tables as they are now.
            // Lost without it: a program enters the kernel, whose mappings change.
            match activity.compare_exchange(seen, Activity::UserDeferring as u64, Release, Relaxed)
            {
                Ok(_) => {
                    // Acquire pairs with `enter_user`: the CPU's accesses through the kernel's mappings are over.
                    // Lost without it: a program is returned to while the kernel's mappings change.
                    W::fence(Acquire);
                    return true;
                }
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Returns whether this CPU, which has answered, has left the root of `space`: it has another space loaded, or
    /// none. Other CPUs call it, for a space to which no CPU switches any more.
    pub(crate) fn is_elsewhere(&self, space: SpaceId) -> bool {
        // Relaxed: its answer published the space loaded then. It stores a later one after it has loaded that root.
        match self.loaded() {
            Loaded::Space(loaded) => loaded != space,
            Loaded::Switching => false,
            Loaded::Nothing | Loaded::Offline => true,
        }
    }

    fn has_flushed_since(flushed_at: &W, stamp: u64) -> bool {
        // Acquire pairs with `end_switch` and `publish`: the target's accesses from before that flush are
        // over.
        // Lost without it: a CPU goes offline and comes back while it is asked to flush.
        flushed_at.load(Acquire) >= stamp
    }

    // Only the CPU itself calls the rest.

    /// Returns its use of its root.
    #[inline]
    pub(crate) fn activity(&self) -> Activity {
        Activity::of(self.published.activity.load(Relaxed))
    }

    /// Returns whether it runs the space that it has loaded, with nothing left to do before.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        self.published.activity.load(Relaxed) == Activity::Running as u64
    }

    /// Returns the space that it has loaded.
    #[inline]
    pub(crate) fn loaded(&self) -> Loaded {
        match self.private.space.load(Relaxed) {
            NOTHING => Loaded::Nothing,
            OFFLINE => Loaded::Offline,
            SWITCHING => Loaded::Switching,
            id => Loaded::Space(SpaceId(id)),
        }
    }

    /// Returns whether it has this space loaded, used or not.
    #[inline]
    pub(crate) fn has_loaded(&self, space: SpaceId) -> bool {
        self.private.space.load(Relaxed) == space.0
    }

    /// Returns the tag under which its space is loaded.
    #[inline]
    pub(crate) fn tag(&self) -> Tag {
        Tag(self.private.tag.load(Relaxed) as u16)
    }

    /// Returns the index of its space's slot.
    #[inline]
    pub(crate) fn slot(&self) -> usize {
        self.private.slot.load(Relaxed) as usize
    }

    /// Returns the word of the CPU's acknowledgement in its shared inbox.
    #[inline]
    pub(crate) fn shared_ack(&self) -> &W {
        &self.private.shared_ack
    }

    /// Returns the next of the first `slots` slots to take over.
    pub(crate) fn next_victim(&self, slots: usize) -> usize {
        let victim = self.private.victim.load(Relaxed) as usize;
        self.private
            .victim
            .store(((victim + 1) % slots) as u64, Relaxed);
        victim
    }

    /// Begins a switch; the CPU still belongs to the old space. Unless any flush is ever deferred (`defers`), no CPU
    /// reads the time of its flushes.
    #[inline]
    pub(crate) fn begin_switch(&self, defers: bool) {
        self.private.space.store(SWITCHING, Relaxed);
        if defers {
            // A CPU that makes a deferred flush and finds this CPU in the new space's set must not read the old tag's
            // newer flush time.
            self.published.flushed_at.store(0, Relaxed);
        }
    }

    /// Notes that the CPU is in the new space's set and is about to run it.
    pub(crate) fn declare_running(&self) {
        // No other CPU writes the activity, and an initiator that finds this CPU in the set sees its latest value.
        if !self.is_running() {
            // SeqCst pairs with `must_be_asked`: an initiator sees this CPU run, or this CPU, which reads the
            // generation next, sees the change.
            // Lost without it: an idle CPU loads a space while it is flushed.
            self.published
                .activity
                .store(Activity::Running as u64, SeqCst);
        }
    }

    /// Ends a switch: the new space is loaded. Unless any flush is ever deferred (`defers`), no CPU reads the time of
    /// its flushes.
    #[inline]
    pub(crate) fn end_switch(&self, space: SpaceId, flushed_at: u64, defers: bool) {
        self.private.space.store(space.0, Relaxed);
        if !defers {
            return;
        }
        // Release pairs with `has_flushed_since`: this CPU's accesses under its former tag are over.
        // Lost without it: a reuse against a CPU that leaves.
        self.published.flushed_at.store(flushed_at, Release);
    }

    /// Notes the tag and the slot of the new space.
    pub(crate) fn use_tag(&self, tag: Tag, slot: Option<usize>) {
        if let Some(slot) = slot {
            self.private.slot.store(slot as u64, Relaxed);
        }
        self.private.tag.store(tag.0.into(), Relaxed);
    }

    /// Notes that the CPU keeps its root but stops using it.
    pub(crate) fn go_lazy(&self) {
        if self.is_running() {
            // Release pairs with `must_be_asked`: this CPU's accesses are over before it is found idle.
            // Lost without it: a CPU goes idle while its space is flushed.
            self.published
                .activity
                .store(Activity::Lazy as u64, Release);
        }
    }

    /// Notes that the CPU is about to use the root that it has kept, so it is asked from now on. With `unchecked` it
    /// has yet to catch up; [`CpuState::caught_up`] follows.
    pub(crate) fn wake(&self, unchecked: bool) {
        let activity = if unchecked {
            Activity::Waking
        } else {
            Activity::Running
        };
        // SeqCst pairs with `must_be_asked`: an initiator sees this CPU awake, or this CPU, which reads generation and
        // stamp next, sees the change.
        // Lost without it: an idle CPU comes back.
        self.published.activity.store(activity as u64, SeqCst);
    }

    /// Notes that the CPU has caught up with the space that it resumed.
    pub(crate) fn caught_up(&self) {
        // Relaxed: for initiators the two are the same.
        self.published
            .activity
            .store(Activity::Running as u64, Relaxed);
    }

    /// Notes that the CPU returns to a program and should not be interrupted.
    pub(crate) fn enter_user(&self) {
        if self.is_running() {
            // Release pairs with `leave_to_entry`: this CPU's accesses through the kernel's mappings are over before an
            // initiator leaves it alone.
            // Lost without it: a program is returned to while the kernel's mappings change.
            self.published
                .activity
                .store(Activity::User as u64, Release);
        }
    }

    /// Notes that the CPU enters the kernel. It uses no kernel mapping before it has made the flushes left to it.
    #[inline]
    pub(crate) fn enter_kernel(&self) -> Entry {
        match self.activity() {
            Activity::User | Activity::UserDeferring => {}
            Activity::Entering => return Entry::Nested,
            _ => return Entry::Flushed,
        }
        let (user, running) = (Activity::User as u64, Activity::Running as u64);
        // Relaxed: from here on it is asked, and no flush was left to it.
        let activity = &self.published.activity;
        match activity.compare_exchange(user, running, Relaxed, Relaxed) {
            Ok(_) => Entry::Flushed,
            Err(_) => {
                // Not a store, which reads nothing: initiators write "deferring" over "deferring", and the last of them
                // counts. Acquire pairs with `leave_to_entry`: the flush that follows covers the tables as they are
                // now. Lost without it: a program that has a deferred flush enters the kernel, whose mappings change.
                activity.swap(Activity::Entering as u64, Acquire);
                Entry::Deferring
            }
        }
    }

    /// Notes that the CPU has made the flushes left to its entry.
    pub(crate) fn has_entered(&self) {
        // Relaxed: other CPUs write nothing over "entering", and treat it like running.
        self.published
            .activity
            .store(Activity::Running as u64, Relaxed);
    }

    /// Leaves the loaded root, if any. Interrupts are masked.
    pub(crate) fn detach<H: Hardware>(&self, hw: &H) {
        // From here on an NMI handler sees that the root may be gone.
        self.private.space.store(SWITCHING, Relaxed);
        hw.unload_root();
        self.private.space.store(NOTHING, Relaxed);
        // Release pairs with `must_be_asked`: this CPU has left its root before it is found without one.
        // Lost without it: a CPU goes offline while it is asked.
        self.published
            .activity
            .store(Activity::Detached as u64, Release);
    }

    /// Notes that the CPU takes part from now on, with no space loaded. It has yet to flush its old entries.
    pub(crate) fn go_online(&self) {
        self.private.space.store(NOTHING, Relaxed);
    }

    /// Leaves the loaded root, if any, and ends taking part. Interrupts are masked.
    pub(crate) fn go_offline<H: Hardware>(&self, hw: &H) {
        self.detach(hw);
        self.private.space.store(OFFLINE, Relaxed);
    }

    /// Publishes that the whole loaded tag was flushed after the flush clock was `now`.
    pub(crate) fn flushed(&self, now: u64) {
        Self::publish(&self.published.flushed_at, now);
    }

    /// Publishes that everything was flushed, global entries included, after the flush clock was `now`.
    pub(crate) fn flushed_everything(&self, now: u64) {
        Self::publish(&self.published.all_flushed_at, now);
    }

    #[inline]
    fn publish(flushed_at: &W, now: u64) {
        // Release pairs with `has_flushed_since`: a CPU that makes a deferred flush and leaves this one out finds it
        // flushed.
        // Lost without it: a refill against a reuse.
        flushed_at.store(now, Release);
    }

    /// Returns the time of the flush clock before the whole loaded tag was last flushed.
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
            (&self.private.shared_ack, "shared_ack"),
        ];
        let at = |word: &W| core::ptr::from_ref(word) as usize == address;
        let name = names.into_iter().find(|(word, _)| at(word));
        name.map(|(_, name)| name)
    }
}

//! What a CPU is doing, and which CPUs are interrupted.
//!
//! Each CPU says in one word whether it runs user code, keeps a root without using it, or has none. Only that CPU
//! writes the word, with one exception ([`Activity::UserDeferring`]). Initiators read it: [`CpuState::must_be_asked`]
//! alone decides whether a CPU that has a space loaded may hold translations of it that no other event will flush, and
//! so must be interrupted. Flushes, the retirement of a space and payments of what lazy unmap defers all ask it.
//!
//! The CPU answers its own half of the question as it loads a space or comes back to it: by generation and deferred
//! flush, in [`switch`](crate::switch).

use crate::hardware::{Hardware, Scope, Tag};
use crate::space::SpaceId;
use crate::word::Word;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// The use that a CPU makes of the root that it has loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(crate) enum Activity {
    /// It runs, or is about to run, user code of the space that it has loaded.
    Running = 0,
    /// It is idle or runs a kernel thread; a root is loaded, its user half is not used.
    Lazy = 1,
    /// It has no user root loaded.
    Detached = 2,
    /// It comes back to the space that it kept lazily. To others that is [`Activity::Running`]; NMI handlers may
    /// not access user memory yet, because this TLB may still hold entries that all other CPUs have flushed.
    Waking = 3,
    /// It runs a program and is not to be disturbed: it uses its user translations, but no mapping of the kernel before
    /// it has entered the kernel ([`CpuState::enter_kernel`]).
    User = 4,
    /// It runs such a program, and an initiator has left a flush of the kernel's mappings to its entry. The only state
    /// that others write.
    UserDeferring = 5,
    /// It has entered the kernel, and flushes first.
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

/// Which space a CPU has loaded, as it sees it itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Loaded {
    /// It takes no part in the protocol: no initiator asks it, so it may load nothing.
    Offline,
    /// None.
    Nothing,
    /// It is between two spaces: neither may be accessed.
    Switching,
    /// This one, used or kept lazily.
    Space(SpaceId),
}

const NOTHING: u64 = 0;
const SWITCHING: u64 = u64::MAX;
const OFFLINE: u64 = u64::MAX - 1;

/// The property that an initiator needs of every CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Concern {
    /// That no translation is used which this flush covers.
    Flush(Scope),
    /// That no walker reads the tables of a space that dies.
    Retirement,
    /// That no translation is used whose flush is deferred as of this stamp.
    Deferral(u64),
    /// That no translation of the kernel's half is used which this flush covers.
    Kernel,
    /// That no translation of the kernel's half is used whose flush is deferred as of this stamp.
    KernelDeferral(u64),
    /// That nothing is executed which was fetched before.
    Text,
}

impl Concern {
    /// Of a flush: if the `kernel`'s mappings are among what it covers, every CPU that is online is concerned, and that
    /// includes those that a user's mappings of this scope concern.
    #[inline]
    pub(crate) fn of_flush(scope: Scope, kernel: bool) -> Self {
        if kernel {
            Concern::Kernel
        } else {
            Concern::Flush(scope)
        }
    }
}

/// Whether a CPU that has the space loaded must be asked to flush, or why not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// It must.
    Must,
    /// It uses nothing now, and compares generations and deferred flushes before it does again.
    Lazy,
    /// It has left its root, and compares as it loads the next one.
    Detached,
    /// It has flushed since the deferred flush was taken.
    Flushed,
}

/// How a CPU enters the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// No flush was left to it.
    Flushed,
    /// It must flush the kernel's mappings, and say so with [`CpuState::has_entered`].
    Deferring,
    /// An NMI, in the middle of such an entry.
    Nested,
}

/// The state of a CPU by which initiators decide whether to interrupt it. Written by it alone, rarely; but see
/// [`Activity::UserDeferring`].
#[repr(align(64))]
struct Published<W> {
    /// An [`Activity`].
    activity: W,
    /// The flush clock as it was before the tag that is loaded was last flushed whole.
    flushed_at: W,
    /// The flush clock as it was before the CPU last flushed everything, global entries included.
    all_flushed_at: W,
}

/// The state that only the CPU itself looks at.
#[repr(align(64))]
struct Private<W> {
    /// The id of the space that is loaded; [`NOTHING`], [`SWITCHING`] or [`OFFLINE`].
    space: W,
    /// The tag that it is loaded under.
    tag: W,
    /// The index of its slot.
    slot: W,
    /// The slot to take over next.
    victim: W,
}

/// The state of one CPU.
#[repr(C)]
pub(crate) struct CpuState<W> {
    published: Published<W>,
    private: Private<W>,
}

impl<W: Word> CpuState<W> {
    /// Of a CPU that is offline.
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
            },
        }
    }

    /// Whether this CPU, which was found among those that have a space loaded, must be asked to flush, or
    /// why not. Asked by others, after they have changed what the CPU compares: the generation, or the deferred flush.
    #[inline]
    pub(crate) fn must_be_asked(&self, concern: Concern) -> Asked {
        let published = &self.published;
        let tables = match concern {
            Concern::Flush(scope) => scope == Scope::Tables,
            Concern::Retirement => true,
            Concern::Deferral(_) => false,
            Concern::KernelDeferral(stamp) => {
                // A flush of a user's tag does not reach the kernel's mappings. [mutant KernelDeferralFlushedByTag]
                return if Self::has_flushed_since(&published.all_flushed_at, stamp) {
                    Asked::Flushed
                } else {
                    Asked::Must
                };
            }
            // A CPU that is idle, or has left its root, uses the kernel's mappings, too. [mutant KernelSkipsIdle]
            Concern::Text | Concern::Kernel => return Asked::Must,
        };
        // SeqCst pairs with `declare_running`, `wake`, `go_lazy` and `detach`: the initiator has changed the
        // generation or the deferred flush before it looks here, so it sees a CPU that is about to run, or that CPU
        // sees the change. A CPU found idle or without a root has its accesses behind it.
        // Lost without it: an idle CPU comes back.
        match Activity::of(published.activity.load(SeqCst)) {
            // A lazy CPU uses no translation, but its walker may follow the root: freed tables concern it.
            // [mutant LazySkippedForTables: bugs 10, 25]
            Activity::Lazy if !tables => Asked::Lazy,
            Activity::Detached => Asked::Detached,
            _ => match concern {
                Concern::Deferral(stamp)
                    if Self::has_flushed_since(&published.flushed_at, stamp) =>
                {
                    Asked::Flushed
                }
                _ => Asked::Must,
            },
        }
    }

    /// Leaves a flush of the kernel's mappings to the CPU's entry into the kernel, if it runs a program: `false` if it
    /// must be asked. Asked by others, after they have changed the tables.
    pub(crate) fn leave_to_entry(&self, scope: Scope) -> bool {
        let activity = &self.published.activity;
        // Relaxed: what is written counts, and it is written only where this is still true.
        let mut seen = activity.load(Relaxed);
        // A program uses no mapping of the kernel, but the CPU's walker may roam in the kernel's half: freed tables
        // concern it. [mutant ProgramLeftForTables]
        while matches!(Activity::of(seen), Activity::User | Activity::UserDeferring)
            && scope == Scope::Leaf
        {
            // Written also where it says so already: the CPU sees the tables as they were before the last one that
            // has written.
            // Release pairs with `enter_kernel`: the CPU, which flushes next, walks the tables as they are now.
            // Lost without it: a program enters the kernel, whose mappings change.
            match activity.compare_exchange(seen, Activity::UserDeferring as u64, Release, Relaxed)
            {
                Ok(_) => {
                    // Acquire pairs with `enter_user`: what the CPU did with the kernel's mappings is over.
                    // Lost without it: a program is returned to while the kernel's mappings change.
                    W::fence(Acquire);
                    return true;
                }
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Whether this CPU, of which an answer was seen, has another space loaded than this one, or none: it has left the
    /// root then. Asked by others, of a space that no CPU switches to any more.
    pub(crate) fn is_elsewhere(&self, space: SpaceId) -> bool {
        // Relaxed: with its answer came what it had loaded then; what it stores later comes after it has loaded the
        // root.
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

    // The rest is for the CPU itself.

    /// The use that it makes of its root.
    #[inline]
    pub(crate) fn activity(&self) -> Activity {
        Activity::of(self.published.activity.load(Relaxed))
    }

    /// Whether it runs the space that it has loaded, and nothing is to be done before.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        self.published.activity.load(Relaxed) == Activity::Running as u64
    }

    /// The space that it has loaded.
    #[inline]
    pub(crate) fn loaded(&self) -> Loaded {
        match self.private.space.load(Relaxed) {
            NOTHING => Loaded::Nothing,
            OFFLINE => Loaded::Offline,
            SWITCHING => Loaded::Switching,
            id => Loaded::Space(SpaceId(id)),
        }
    }

    /// Whether it has this space loaded, used or not.
    #[inline]
    pub(crate) fn has_loaded(&self, space: SpaceId) -> bool {
        self.private.space.load(Relaxed) == space.0
    }

    /// The tag that its space is loaded under.
    #[inline]
    pub(crate) fn tag(&self) -> Tag {
        Tag(self.private.tag.load(Relaxed) as u16)
    }

    /// The index of its space's slot.
    #[inline]
    pub(crate) fn slot(&self) -> usize {
        self.private.slot.load(Relaxed) as usize
    }

    /// The slot to take over next, of so many.
    pub(crate) fn next_victim(&self, slots: usize) -> usize {
        let victim = self.private.victim.load(Relaxed) as usize;
        self.private
            .victim
            .store(((victim + 1) % slots) as u64, Relaxed);
        victim
    }

    /// It leaves the old space, to which it still belongs, for a new one. Unless anything is ever deferred (`defers`),
    /// no CPU asks when it has flushed.
    #[inline]
    pub(crate) fn begin_switch(&self, defers: bool) {
        self.private.space.store(SWITCHING, Relaxed);
        if defers {
            // A payer that finds this CPU in the new space's set must not find the old tag's newer flush time.
            self.published.flushed_at.store(0, Relaxed);
        }
    }

    /// It is in the new space's set and is about to run it.
    pub(crate) fn declare_running(&self) {
        // No other CPU writes the activity, and an initiator that finds this CPU in the set sees what it was.
        if !self.is_running() {
            // SeqCst pairs with `must_be_asked`: an initiator sees this CPU run, or this CPU, which reads the
            // generation next, sees the change.
            // Lost without it: an idle CPU loads a space while it is flushed.
            self.published
                .activity
                .store(Activity::Running as u64, SeqCst);
        }
    }

    /// The new space is loaded. Unless anything is ever deferred (`defers`), no CPU asks when it has flushed.
    #[inline]
    pub(crate) fn end_switch(&self, space: SpaceId, flushed_at: u64, defers: bool) {
        self.private.space.store(space.0, Relaxed);
        if !defers {
            return;
        }
        // Release pairs with `has_flushed_since`: what this CPU did under the tag that it had before is over.
        // Lost without it: a reuse against a CPU that leaves.
        self.published.flushed_at.store(flushed_at, Release);
    }

    /// The new space gets this tag, in this slot.
    pub(crate) fn use_tag(&self, tag: Tag, slot: Option<usize>) {
        if let Some(slot) = slot {
            self.private.slot.store(slot as u64, Relaxed);
        }
        self.private.tag.store(tag.0.into(), Relaxed);
    }

    /// It stops to use the root that it keeps.
    pub(crate) fn go_lazy(&self) {
        if self.is_running() {
            // Release pairs with `must_be_asked`: this CPU's accesses are over before it is found idle.
            // Lost without it: a CPU goes idle while its space is flushed.
            self.published
                .activity
                .store(Activity::Lazy as u64, Release);
        }
    }

    /// It is about to use the root that it has kept: from here on it is asked. With `unchecked` it has yet to
    /// catch up, and then says so with [`CpuState::caught_up`].
    pub(crate) fn wake(&self, unchecked: bool) {
        let activity = if unchecked {
            Activity::Waking
        } else {
            Activity::Running
        };
        // SeqCst pairs with `must_be_asked`: an initiator sees this CPU awake, or this CPU, which reads
        // generation and deferred flush next, sees the change.
        // Lost without it: an idle CPU comes back.
        self.published.activity.store(activity as u64, SeqCst);
    }

    /// It has caught up with the space that it came back to.
    pub(crate) fn caught_up(&self) {
        // Relaxed: initiators make no difference between the two.
        self.published
            .activity
            .store(Activity::Running as u64, Relaxed);
    }

    /// It returns to a program, and wants not to be disturbed.
    pub(crate) fn enter_user(&self) {
        if self.is_running() {
            // Release pairs with `leave_to_entry`: what this CPU did with the kernel's mappings is over before an
            // initiator leaves it alone.
            // Lost without it: a program is returned to while the kernel's mappings change.
            self.published
                .activity
                .store(Activity::User as u64, Release);
        }
    }

    /// It enters the kernel, which uses none of the kernel's mappings before it has flushed what was left to it.
    #[inline]
    pub(crate) fn enter_kernel(&self) -> Entry {
        match self.activity() {
            Activity::User | Activity::UserDeferring => {}
            Activity::Entering => return Entry::Nested,
            _ => return Entry::Flushed,
        }
        let (user, running) = (Activity::User as u64, Activity::Running as u64);
        // Relaxed: from here on it is asked, and nothing was left to it.
        let activity = &self.published.activity;
        match activity.compare_exchange(user, running, Relaxed, Relaxed) {
            Ok(_) => Entry::Flushed,
            Err(_) => {
                // Not a store, which reads nothing: initiators write "deferring" over "deferring", and the last of
                // them counts. Acquire pairs with `leave_to_entry`: the flush that follows is one of the tables as
                // they are now. Lost without it: a program that has a deferred flush enters the kernel, whose mappings
                // change.
                activity.swap(Activity::Entering as u64, Acquire);
                Entry::Deferring
            }
        }
    }

    /// It has flushed what was left to its entry.
    pub(crate) fn has_entered(&self) {
        // Relaxed: others write nothing over "entering", and make no difference between this and running.
        self.published
            .activity
            .store(Activity::Running as u64, Relaxed);
    }

    /// It leaves whatever root it has loaded. Interrupts are masked.
    pub(crate) fn detach<H: Hardware>(&self, hw: &H) {
        // An NMI from here on is told that the root may be gone.
        self.private.space.store(SWITCHING, Relaxed);
        hw.unload_root();
        self.private.space.store(NOTHING, Relaxed);
        // Release pairs with `must_be_asked`: this CPU has left its root before it is found without one.
        // Lost without it: a CPU goes offline while it is asked.
        self.published
            .activity
            .store(Activity::Detached as u64, Release);
    }

    /// It takes part from now on, with nothing loaded. It has yet to flush what it kept from before.
    pub(crate) fn go_online(&self) {
        self.private.space.store(NOTHING, Relaxed);
    }

    /// It leaves whatever root it has loaded, and takes part no more. Interrupts are masked.
    pub(crate) fn go_offline<H: Hardware>(&self, hw: &H) {
        self.detach(hw);
        self.private.space.store(OFFLINE, Relaxed);
    }

    /// The tag that is loaded was flushed whole after the flush clock had shown `now`.
    pub(crate) fn flushed(&self, now: u64) {
        Self::publish(&self.published.flushed_at, now);
    }

    /// Everything was flushed, global entries included, after the flush clock had shown `now`.
    pub(crate) fn flushed_everything(&self, now: u64) {
        Self::publish(&self.published.all_flushed_at, now);
    }

    #[inline]
    fn publish(flushed_at: &W, now: u64) {
        // Release pairs with `has_flushed_since`: a payer that leaves this CPU out finds it flushed.
        // Lost without it: a refill against a reuse.
        flushed_at.store(now, Release);
    }

    /// The flush clock before the tag that is loaded was last flushed whole.
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
        ];
        let at = |word: &W| core::ptr::from_ref(word) as usize == address;
        let name = names.into_iter().find(|(word, _)| at(word));
        name.map(|(_, name)| name)
    }
}

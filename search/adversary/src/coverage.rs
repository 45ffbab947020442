//! Counts the protocol's transitions in runs.
//!
//! A search that finds no violation proves nothing about transitions that never fired.

use quell::Counter;

macro_rules! happenings {
    ($($(#[doc = $doc:literal])+ $name:ident = $label:literal,)*) => {
        /// An event that the machine counts. The engine counts other events itself.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(usize)]
        pub enum MachineEvent { $($(#[doc = $doc])+ $name,)* }

        impl MachineEvent {
            /// Every event.
            pub const ALL: &'static [MachineEvent] = &[$(MachineEvent::$name,)*];
            /// The number of events.
            pub const COUNT: usize = Self::ALL.len();
            /// Returns the event's name in reports.
            pub const fn label(self) -> &'static str {
                match self { $(MachineEvent::$name => $label,)* }
            }
        }
    };
}

happenings! {
    /// An access faulted.
    Fault = "fault",
    /// An access lawfully used a translation that the tables no longer have.
    StaleUse = "stale_use",
    /// An NMI handler was allowed to access user memory, and did.
    NmiAccess = "nmi_access",
    /// An NMI handler was refused access.
    NmiRefused = "nmi_refused",
    /// A frame got a new owner.
    FrameReused = "frame_reused",
    /// A page-table page was freed.
    TableFreed = "table_freed",
    /// A frame's content was captured.
    Captured = "captured",
    /// A frame with a deferred flush got a new owner.
    Reusable = "reused",
    /// A CPU went offline.
    Offline = "offline",
    /// Another thread or interrupt handler preempted a CPU's code.
    Preempted = "preempted",
    /// An interrupt arrived although none was sent.
    Spurious = "spurious",
    /// A root was freed.
    SpaceRetired = "space_retired",
    /// Memory was handed out as zeroed.
    Zeroed = "zeroed",
    /// A load through a stale translation was compared with the page's content.
    Compared = "compared",
    /// A frame was reinstated for its page.
    FrameReinstated = "frame_reinstated",
    /// A call that removed a mapping or a right returned.
    CallReturned = "call_returned",
    /// The kernel accessed its own half.
    KernelAccess = "kernel_access",
    /// A CPU dropped the kernel text that it had fetched.
    TextSynchronized = "text_synchronized",
    /// A load returned a value that its word no longer holds.
    LoadedEarly = "loaded_early",
}

/// A transition of the protocol that a scenario must reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReachGoal {
    /// A transition that the engine counts.
    Engine(Counter),
    /// An event that the machine counts.
    Machine(MachineEvent),
}

impl ReachGoal {
    /// Returns the transition's name in reports.
    pub const fn label(self) -> &'static str {
        match self {
            ReachGoal::Engine(counter) => counter.label(),
            ReachGoal::Machine(happening) => happening.label(),
        }
    }
}

/// The counts of all transitions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Coverage {
    engine: [u64; Counter::ALL.len()],
    machine: [u64; MachineEvent::COUNT],
}

impl Default for Coverage {
    fn default() -> Self {
        Coverage { engine: [0; Counter::ALL.len()], machine: [0; MachineEvent::COUNT] }
    }
}

impl Coverage {
    pub(crate) fn add_machine(&mut self, events: &[u64; MachineEvent::COUNT]) {
        for (mine, theirs) in self.machine.iter_mut().zip(events) {
            *mine += theirs;
        }
    }

    pub(crate) fn add_engine(&mut self, stats: &quell::Stats) {
        for (mine, (_, count)) in self.engine.iter_mut().zip(stats.iter()) {
            *mine += count;
        }
    }

    /// Adds the counts of another campaign.
    pub fn add(&mut self, other: &Coverage) {
        for (mine, theirs) in self.engine.iter_mut().zip(&other.engine) {
            *mine += theirs;
        }
        self.add_machine(&other.machine);
    }

    /// Returns the count of a transition.
    pub fn get(&self, reach: ReachGoal) -> u64 {
        match reach {
            ReachGoal::Engine(counter) => self.engine[counter as usize],
            ReachGoal::Machine(happening) => self.machine[happening as usize],
        }
    }

    /// Returns all transitions with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (ReachGoal, u64)> + '_ {
        let engine = Counter::ALL.iter().map(|&c| ReachGoal::Engine(c));
        let machine = MachineEvent::ALL.iter().map(|&h| ReachGoal::Machine(h));
        engine.chain(machine).map(|reach| (reach, self.get(reach)))
    }
}

//! Processes: an address space, its areas, and who runs it.

use crate::area::Areas;
use crate::lock::RwLock;
use crate::machine::Machine;
use crate::shared::Shared;
use crate::user::ProcessId;
use alloc::sync::Arc;
use core::ops::Deref;
use core::sync::atomic::Ordering;
use quell::{AddressSpace, Frame};

/// A process. Whoever may still have to flush its space, a batch or a mapping in a reverse map,
/// holds it.
pub(crate) struct Process<M: Machine> {
    pub(crate) id: ProcessId,
    pub(crate) space: AddressSpace<M>,
    /// Faults and calls that change no area read; calls that do write.
    pub(crate) areas: RwLock<M::Word, Areas>,
    /// How many CPUs run it.
    pub(crate) running: Shared<M::Word>,
    retired: Shared<M::Word>,
}

impl<M: Machine> Process<M> {
    pub(crate) fn new(id: ProcessId, space: AddressSpace<M>, areas: Areas) -> Self {
        Process {
            id,
            space,
            areas: RwLock::new(areas),
            running: Shared::new(0),
            retired: Shared::new(0),
        }
    }

    pub(crate) fn root(&self) -> Frame {
        self.space.root()
    }

    pub(crate) fn set_retired(&self) {
        self.retired.store(1, Ordering::Release);
    }

    /// Whether the engine has retired the space: no CPU has its root loaded.
    pub(crate) fn retired(&self) -> bool {
        self.retired.load(Ordering::Acquire) != 0
    }
}

/// A counted reference to a process, as the engine's batches hold their spaces.
pub(crate) struct SpaceRef<M: Machine>(pub(crate) Arc<Process<M>>);

impl<M: Machine> Deref for SpaceRef<M> {
    type Target = AddressSpace<M>;
    fn deref(&self) -> &AddressSpace<M> {
        &self.0.space
    }
}

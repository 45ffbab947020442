//! A process: an address space, its areas, and the number of CPUs that run it.

use crate::lock::RwLock;
use crate::machine::Machine;
use crate::shared::SharedNumber;
use crate::syscall::ProcessId;
use crate::vma::VmaTree;
use alloc::sync::Arc;
use core::ops::Deref;
use core::sync::atomic::Ordering;
use quell::{AddressSpace, Batch, Frame, FrameArray};

/// A process. A batch that may still flush its space holds a reference to it, as does a mapping in a reverse map.
pub(crate) struct Process<M: Machine> {
    id: ProcessId,
    space: AddressSpace<M>,
    vmas: RwLock<M::Word, VmaTree>,
    running: SharedNumber<M::Word>,
    retired: SharedNumber<M::Word>,
}

impl<M: Machine> Process<M> {
    pub(crate) fn new(id: ProcessId, space: AddressSpace<M>, vmas: VmaTree) -> Self {
        Process {
            id,
            space,
            vmas: RwLock::new(vmas),
            running: SharedNumber::new(0),
            retired: SharedNumber::new(0),
        }
    }

    pub(crate) fn id(&self) -> ProcessId {
        self.id
    }

    pub(crate) fn space(&self) -> &AddressSpace<M> {
        &self.space
    }

    /// Returns the lock of the areas. Calls that change an area lock it for writing, faults and other calls for
    /// reading.
    pub(crate) fn vmas(&self) -> &RwLock<M::Word, VmaTree> {
        &self.vmas
    }

    /// Returns the frame of the root table.
    pub(crate) fn root(&self) -> Frame {
        self.space.root()
    }

    // Relaxed, in all functions below: CPUs enter a process, and an exit checks it, under the lock of the list. When
    // the engine has retired the space, the accesses of a CPU that has stopped are over.

    /// Counts one CPU more that runs the process.
    pub(crate) fn run(&self) {
        self.running.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one CPU less that runs the process.
    pub(crate) fn stop(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns whether some CPU runs the process.
    pub(crate) fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn set_retired(&self) {
        self.retired.store(1, Ordering::Relaxed);
    }

    /// Returns whether the engine has retired the space, so that no CPU has its root loaded.
    pub(crate) fn retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed) != 0
    }
}

/// A counted reference to a process, for the engine's batches.
pub(crate) struct SpaceRef<M: Machine>(pub(crate) Arc<Process<M>>);

impl<M: Machine> Deref for SpaceRef<M> {
    type Target = AddressSpace<M>;
    fn deref(&self) -> &AddressSpace<M> {
        &self.0.space
    }
}

/// A batch of the engine over processes' spaces.
pub(crate) type SpaceBatch<'v, M, L = FrameArray<Frame>> = Batch<'v, SpaceRef<M>, L>;

//! Processes: address spaces, their areas, and the CPUs that run them.

use crate::lock::{Lock, RwLock};
use crate::machine::{Engine, Machine, Work};
use crate::shared::SharedNumber;
use crate::syscall::{Error, ProcessId};
use crate::vma::VmaTree;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use quell::{AddressSpace, Batch, Break, Frame, FrameArray};

/// A process. A batch that may still flush its space holds a reference to it, as does a mapping in a reverse map.
pub(crate) struct Process<M: Machine> {
    pub(crate) id: ProcessId,
    pub(crate) space: AddressSpace<M>,
    /// The areas. Calls that change an area lock them for writing, faults and other calls for reading.
    pub(crate) vmas: RwLock<M::Word, VmaTree>,
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

/// The process that one CPU runs. Only that CPU accesses this.
struct CpuProcess<M: Machine> {
    /// The process of the thread that runs, or idles, here.
    current: Option<Arc<Process<M>>>,
    /// The process whose space was loaded last.
    loaded: Option<Arc<Process<M>>>,
}

/// All processes.
pub(crate) struct Processes<'m, M: Machine> {
    engine: Arc<Engine<'m, M>>,
    list: Lock<M::Word, BTreeMap<ProcessId, Arc<Process<M>>>>,
    next: AtomicU32,
    running: Box<[Lock<AtomicU64, CpuProcess<M>>]>,
}

impl<'m, M: Machine> Processes<'m, M> {
    pub(crate) fn new(engine: Arc<Engine<'m, M>>) -> Self {
        Processes {
            list: Lock::new(BTreeMap::new()),
            next: AtomicU32::new(1),
            running: (0..engine.hw().cpu_count())
                .map(|_| Lock::new(CpuProcess { current: None, loaded: None }))
                .collect(),
            engine,
        }
    }

    fn machine(&self) -> &'m M {
        self.engine.hw()
    }

    /// Accesses the record of the process that this CPU runs.
    fn running<T>(&self, look: impl FnOnce(&mut CpuProcess<M>) -> T) -> T {
        match self.running[self.machine().this_cpu().index()].try_lock() {
            Some(mut running) => look(&mut running),
            None => unreachable!("only the CPU itself looks at what it runs, and never twice"),
        }
    }

    /// Returns the process that this CPU runs.
    pub(crate) fn current(&self) -> Option<Arc<Process<M>>> {
        self.running(|running| running.current.clone())
    }

    /// Returns the name of the process that this CPU runs.
    pub(crate) fn current_id(&self) -> Option<ProcessId> {
        self.running(|running| running.current.as_ref().map(|process| process.id))
    }

    /// Returns a name that no process has had yet.
    pub(crate) fn new_id(&self) -> ProcessId {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Lets CPUs enter the process from now on.
    pub(crate) fn publish(&self, process: Arc<Process<M>>) {
        let mut list = self.list.lock(self.machine());
        list.insert(process.id, process);
    }

    /// Makes this CPU run the process, instead of another one or none.
    pub(crate) fn enter(&self, process: ProcessId) -> Result<(), Error> {
        let next = {
            let list = self.list.lock(self.machine());
            let next = list.get(&process).ok_or(Error::NoProcess)?.clone();
            // Under the lock, so that an exit either sees this CPU or comes first.
            next.run();
            next
        };
        self.machine().charge(Work::Schedule);
        let (current, loaded) =
            self.running(|running| (running.current.take(), running.loaded.take()));
        let from = loaded.as_deref().filter(|process| !process.retired());
        self.engine
            .this_cpu()
            .mask_interrupts()
            .switch(from.map(|process| &process.space), &next.space);
        if let Some(current) = current {
            current.stop();
        }
        self.running(|running| {
            running.current = Some(next.clone());
            running.loaded = Some(next);
        });
        Ok(())
    }

    /// Makes this CPU run no process. The space of the last one stays loaded lazily if possible.
    pub(crate) fn leave(&self) {
        if let Some(current) = self.running(|running| running.current.take()) {
            rest(&self.engine, Some(&current));
            current.stop();
        }
    }

    /// Makes this CPU, which runs no process, leave its root, so that no flush interrupts it.
    pub(crate) fn take_offline(&self) {
        let loaded = self.running(|running| running.loaded.take());
        let loaded = loaded.as_deref().filter(|process| !process.retired());
        self.engine.cpu_offline(loaded.map(|process| &process.space));
    }

    /// Removes a process that no CPU runs from the list, so that no CPU can enter it.
    pub(crate) fn remove(&self, id: ProcessId) -> Result<Arc<Process<M>>, Error> {
        let mut list = self.list.lock(self.machine());
        let process = list.get(&id).ok_or(Error::NoProcess)?;
        if process.is_running() {
            return Err(Error::Busy);
        }
        let process = process.clone();
        list.remove(&id);
        Ok(process)
    }

    /// Drops this CPU's reference to a process that has ended, if it has one.
    pub(crate) fn forget(&self, process: &Arc<Process<M>>) {
        self.running(|running| {
            running.loaded.take_if(|loaded| Arc::ptr_eq(loaded, process));
        });
    }

    /// Returns all processes that haven't ended.
    pub(crate) fn living(&self) -> Vec<Arc<Process<M>>> {
        self.list.lock(self.machine()).values().cloned().collect()
    }

    /// Returns the name of the word at this address, if the engine keeps it for a process.
    pub(crate) fn word_name(&self, address: usize) -> Option<(ProcessId, &'static str)> {
        let list = self.list.try_lock()?;
        list.values().find_map(|process| Some((process.id, process.space.word_name(address)?)))
    }

    /// Returns the process, even if some CPU holds the lock of the list.
    ///
    /// # Safety
    /// As for [`Lock::peek`].
    pub(crate) unsafe fn peek(&self, id: ProcessId) -> Option<&Process<M>> {
        // SAFETY: passed on to the caller.
        unsafe { self.list.peek() }.get(&id).map(|found| &**found)
    }

    /// Returns all processes, even if some CPU holds the lock of the list.
    ///
    /// # Safety
    /// As for [`Lock::peek`].
    pub(crate) unsafe fn peek_all(&self) -> impl Iterator<Item = &Process<M>> {
        // SAFETY: passed on to the caller.
        unsafe { self.list.peek() }.values().map(|found| &**found)
    }
}

/// Makes this CPU lazy: it uses no translation of its loaded process until it switches to one, and flushes of leaf
/// entries don't interrupt it.
///
/// If an entry must not meet its replacement in any TLB, and no broadcast reaches a lazy CPU, the CPU leaves the root
/// instead. Otherwise a walker that follows the root could fill the new entry beside the old one.
pub(crate) fn rest<M: Machine>(engine: &Engine<'_, M>, loaded: Option<&Process<M>>) {
    let machine = engine.hw();
    let must_not_meet = machine.tlb_rules().break_before_make == Break::Translation;
    match loaded {
        Some(loaded) if must_not_meet && !machine.features().broadcast => {
            engine.this_cpu().leave(&loaded.space);
        }
        _ => engine.this_cpu().enter_lazy(),
    }
}

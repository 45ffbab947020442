//! Connects the manager's parts, and provides its entry points for calls, faults and CPUs.

use crate::config::VmConfig;
use crate::frames::Frames;
use crate::machine::{Engine, Event, Machine, Work};
use crate::page_cache::PageCache;
use crate::processes::{self, Process, Processes};
use crate::program::{Access, Fault};
use crate::swap::Swap;
use crate::syscall::{Call, Error, FileId, ProcessId};
use crate::vma::{VmaTree, page_range};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use quell::PAGE_BYTES;
use quell::{Page, Purpose};
use quell_zero::ClearPolicy;

/// A virtual-memory manager on the engine.
///
/// All CPUs may call all methods at the same time. The manager panics if its own records are wrong, for example if a
/// table names a frame that was never in the memory map. A program's wrong call returns an [`Error`].
pub struct Vm<'m, M: Machine> {
    pub(crate) frames: Arc<Frames<'m, M>>,
    pub(crate) cache: Box<PageCache<'m, M>>,
    pub(crate) swap: Box<Swap<'m, M>>,
    pub(crate) processes: Processes<'m, M>,
    pub(crate) config: VmConfig,
}

impl<'m, M: Machine> Vm<'m, M> {
    /// Creates a manager, without processes, of all memory of the engine's machine.
    pub fn new(engine: Engine<'m, M>, config: VmConfig) -> Self {
        let clear = ClearPolicy { whole_extents: engine.policy().extents, ..config.clear };
        let engine = Arc::new(engine);
        let frames = Arc::new(Frames::new(engine.clone(), config.cache_batch, clear));
        Vm {
            cache: Box::new(PageCache::new(frames.clone())),
            swap: Box::new(Swap::new(frames.clone(), config.swap_pages)),
            processes: Processes::new(engine),
            frames,
            config,
        }
    }

    /// Returns the engine that keeps translations coherent.
    pub fn engine(&self) -> &Engine<'m, M> {
        self.frames.engine()
    }

    pub(crate) fn machine(&self) -> &'m M {
        self.frames.machine()
    }

    /// Returns the process that this CPU runs.
    pub fn current(&self) -> Option<ProcessId> {
        self.processes.current_id()
    }

    /// Makes a process without mappings.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn spawn(&self) -> Result<ProcessId, Error> {
        let process = self.new_process(VmaTree::default())?;
        self.processes.publish(process.clone());
        Ok(process.id)
    }

    /// Makes a process that no CPU can enter yet.
    fn new_process(&self, vmas: VmaTree) -> Result<Arc<Process<M>>, Error> {
        let id = self.processes.new_id();
        let root = self.new_root(id);
        let root = root.ok_or(Error::OutOfMemory)?;
        // SAFETY: the root was made for this space, and is freed by `retire` alone, after the engine's.
        let space = unsafe { self.engine().new_space(root) };
        Ok(Arc::new(Process::new(id, space, vmas)))
    }

    /// Makes this CPU run the process, instead of another one or none.
    ///
    /// # Errors
    /// [`Error::NoProcess`].
    pub fn enter(&self, process: ProcessId) -> Result<(), Error> {
        self.processes.enter(process)
    }

    /// Makes this CPU run no process. Call it before the CPU's process is ended.
    ///
    /// The space of the process stays loaded lazily if possible.
    pub fn leave(&self) {
        self.processes.leave();
    }

    /// Makes this CPU take part in flushes from now on.
    pub fn online(&self) {
        self.engine().cpu_online();
    }

    /// Takes this CPU offline until [`Vm::online`].
    ///
    /// It then runs no process, has left its root and gets no requests to flush. Its free frames return to the nodes.
    pub fn offline(&self) {
        self.processes.leave();
        self.processes.take_offline();
        self.frames.drain_cache(self.machine().this_cpu());
    }

    fn idle(&self, until: u64) {
        processes::rest(self.engine(), self.processes.current().as_deref());
        self.balance_idle();
        self.frames.zero_ahead(self.config.zero_ahead);
        self.machine().halt(until);
        if let Some(current) = self.processes.current() {
            self.engine().this_cpu().mask_interrupts().switch(Some(&current.space), &current.space);
        }
    }

    fn fork(&self, parent: &Arc<Process<M>>) -> Result<ProcessId, Error> {
        let machine = self.machine();
        let vmas = parent.vmas.write(machine);
        let child = self.new_process(vmas.clone())?;
        let mut gather = self.gather(Purpose::Call);
        let shared = self.share_all(parent, &child, &vmas, &mut gather);
        // The child may run as soon as it is published, and copies pages that the parent must not write any more.
        // [mutant VmForkReturnsUnflushed]
        gather.flush();
        // Flushes that are still pending after this CPU's own flush belong to other CPUs. They may have cleared an
        // entry of the parent whose swap slot the child shares, and through which a CPU can write until its flush.
        // [mutant VmForksUnflushed]
        self.flush_pending(parent);
        if shared.is_err() {
            // An incomplete child is never published.
            drop((gather, vmas));
            self.end(&child);
            return shared.map(|()| child.id);
        }
        self.processes.publish(child.clone());
        drop(vmas);
        Ok(child.id)
    }

    /// Ends a process that no CPU runs.
    fn exit(&self, id: ProcessId) -> Result<(), Error> {
        let process = self.processes.remove(id)?;
        self.end(&process);
        Ok(())
    }

    /// Frees everything of a process that no CPU can run any more.
    fn end(&self, process: &Arc<Process<M>>) {
        // No CPU loads the space again. After every lazy CPU has left its root, no walker reads its tables, and no CPU
        // uses a translation of it. So we need no flush below.
        self.engine().retire(&process.space);
        process.set_retired();
        let root = process.root();
        self.machine().note(Event::SpaceRetired { root });
        self.unmap_all(process);
        self.discard_root(root);
        self.processes.forget(process);
    }

    /// Handles a page fault of the process that this CPU runs. After `Ok`, retry the access.
    ///
    /// Interrupts are on.
    ///
    /// # Errors
    /// The faults for which a Unix kernel sends a signal.
    pub fn fault(&self, address: u64, access: Access) -> Result<(), Fault> {
        self.machine().charge(Work::Fault);
        if self.config.catch_up {
            self.engine().this_cpu().catch_up();
        }
        let process = self.processes.current().ok_or(Fault::NotMapped)?;
        self.handle_fault(&process, Page::containing(address), access)
    }

    /// Executes a system call of the process that this CPU runs.
    ///
    /// # Errors
    /// Those that [`Call`] and [`Error`] describe.
    pub fn call(&self, call: Call) -> Result<u64, Error> {
        self.machine().charge(Work::SystemCall);
        let current = self.processes.current();
        let process = current.as_ref().ok_or(Error::NoProcess);
        match call {
            Call::Nothing => Ok(0),
            Call::Map { address, bytes, protection, backing } => {
                self.map(process?, address, bytes, protection, backing)
            }
            Call::Unmap { address, bytes } => self.unmap(process?, page_range(address, bytes)?),
            Call::Protect { address, bytes, protection } => {
                self.protect(process?, page_range(address, bytes)?, protection)
            }
            Call::Discard { address, bytes } => self.discard(process?, page_range(address, bytes)?),
            Call::PageOut { address, bytes } => {
                self.page_out(process?, page_range(address, bytes)?)
            }
            Call::Remap { address, bytes, to } => self.remap(process?, address, bytes, to),
            Call::Collapse { address } => self.collapse(process?, address),
            Call::Spawn => self.spawn().map(u64::from),
            Call::Fork => self.fork(process?).map(u64::from),
            Call::Enter { process } => self.enter(process).map(|()| 0),
            Call::Exit { process } => self.exit(process).map(|()| 0),
            Call::Create { bytes } => self.cache.create(bytes).map(u64::from),
            Call::Write { file, offset, value } => self.write_file(file, offset, value),
            Call::Read { file, offset } => self.read_file(file, offset),
            Call::Truncate { file, bytes } => self.truncate(file, bytes),
            Call::Sync { file } => self.sync(file),
            Call::Migrate { address, bytes, node } => {
                self.migrate(process?, page_range(address, bytes)?, node as usize)
            }
            Call::Demote { pages } => Ok(self.demote(pages)),
            Call::Reclaim { pages } => {
                let home = self.machine().home_node(self.machine().this_cpu());
                Ok(self.reclaim(home, pages))
            }
            Call::Idle { until } => {
                self.idle(until);
                Ok(0)
            }
        }
    }

    /// Returns the number of free frames, including those with a deferred flush.
    pub fn free_frames(&self) -> u64 {
        self.frames.free_frames()
    }

    /// Returns eight bytes of a file, in memory or not, or `None` beyond its end.
    ///
    /// # Safety
    /// As for [`Vm::peek`].
    pub unsafe fn peek_file(&self, file: FileId, at: u64) -> Option<u64> {
        // SAFETY: passed on to the caller.
        unsafe { self.cache.peek(file, at / PAGE_BYTES, (at % PAGE_BYTES) as usize) }
    }

    /// Returns eight bytes of the device behind a file, or `None` beyond its end.
    ///
    /// # Safety
    /// As for [`Vm::peek`].
    pub unsafe fn peek_device(&self, file: FileId, at: u64) -> Option<u64> {
        // SAFETY: passed on to the caller.
        unsafe { self.cache.peek_device(file, at / PAGE_BYTES, (at % PAGE_BYTES) as usize) }
    }

    /// Names the word at this address, if it belongs to the manager or engine.
    ///
    /// Tools show the name to people.
    #[doc(hidden)]
    pub fn word_name(&self, address: usize) -> Option<String> {
        let mut frames = self.frames.described();
        let found = frames.find_map(|(frame, info)| Some((frame, info.word_name(address)?)));
        if let Some((frame, name)) = found {
            return Some(format!("{name} of frame {:#x}", frame.0));
        }
        let (process, name) = self.processes.word_name(address)?;
        Some(format!("{name} of process {process}"))
    }
}

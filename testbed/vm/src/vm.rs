//! Connects the manager's parts, and provides its entry points for calls, faults and CPUs.

use crate::audit::{Audit, FrameTotals};
use crate::config::VmConfig;
use crate::fault::FaultHandler;
use crate::files::Files;
use crate::fork::Fork;
use crate::frames::Frames;
use crate::large::LargePages;
use crate::lazy_unmap::LazyUnmap;
use crate::machine::{Engine, Event, Machine, Work};
use crate::madvise::Madvise;
use crate::memory::{Memory, Pressure};
use crate::migrate::Migration;
use crate::mmap::Mmap;
use crate::page_cache::PageCache;
use crate::pages::Pages;
use crate::process::Process;
use crate::processes::{self, Processes};
use crate::program::{Access, Fault};
use crate::reclaim::Reclaim;
use crate::swap::Swap;
use crate::syscall::{Call, Error, FileId, ProcessId};
use crate::tables::Tables;
use crate::vma::VmaTree;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use quell::PAGE_BYTES;
use quell::{Frame, Page, PageRange, Purpose};

/// A virtual-memory manager on the engine.
///
/// All CPUs may call all methods at the same time. The manager panics if its own records are wrong, for example if a
/// table names a frame that was never in the memory map. A program's wrong call returns an [`Error`].
pub struct Vm<'m, M: Machine> {
    engine: Arc<Engine<'m, M>>,
    // Objects with state, from the bottom up.
    frames: Arc<Frames<'m, M>>,
    tables: Arc<Tables<'m, M>>,
    cache: Arc<PageCache<'m, M>>,
    swap: Arc<Swap<'m, M>>,
    processes: Processes<'m, M>,
    // Reclaim and migration take pages away, by themselves or for a call.
    reclaim: Arc<Reclaim<'m, M>>,
    migration: Arc<Migration<'m, M>>,
    memory: Arc<Memory<'m, M>>,
    // The programs' calls.
    faults: FaultHandler<'m, M>,
    mmap: Mmap<'m, M>,
    madvise: Madvise<'m, M>,
    large: Arc<LargePages<'m, M>>,
    fork: Fork<'m, M>,
    files: Files<'m, M>,
    catch_up: bool,
    zero_ahead: usize,
}

impl<'m, M: Machine> Vm<'m, M> {
    /// Creates a manager, without processes, of all memory of the engine's machine.
    pub fn new(engine: Engine<'m, M>, config: VmConfig) -> Self {
        let VmConfig {
            cache_batch,
            swap_pages,
            demotion,
            reclaim_ahead,
            reclaim_idle,
            catch_up,
            migrate_together,
            flush_together,
            mut clear,
            zero_ahead,
            reclaim_attempts,
        } = config;
        clear.whole_extents = engine.policy().extents;
        let pressure = Pressure {
            demotion,
            ahead: reclaim_ahead,
            idle: reclaim_idle,
            attempts: reclaim_attempts,
        };

        let engine = Arc::new(engine);
        let frames = Arc::new(Frames::new(engine.clone(), cache_batch, clear));
        let tables = Arc::new(Tables::new(frames.clone(), flush_together));
        let cache = Arc::new(PageCache::new(frames.clone()));
        let swap = Arc::new(Swap::new(frames.clone(), swap_pages));
        let pages = Arc::new(Pages::new(frames.clone(), tables.clone(), cache.clone()));
        let lazy = Arc::new(LazyUnmap::new(frames.clone(), tables.clone()));
        let reclaim = Arc::new(Reclaim::new(
            frames.clone(),
            tables.clone(),
            cache.clone(),
            swap.clone(),
            pages.clone(),
            lazy.clone(),
            demotion,
        ));
        let migration = Arc::new(Migration::new(
            frames.clone(),
            tables.clone(),
            pages.clone(),
            lazy,
            migrate_together,
        ));
        let memory =
            Arc::new(Memory::new(frames.clone(), reclaim.clone(), migration.clone(), pressure));
        let large = Arc::new(LargePages::new(
            frames.clone(),
            tables.clone(),
            pages.clone(),
            memory.clone(),
        ));
        Vm {
            faults: FaultHandler::new(
                frames.clone(),
                tables.clone(),
                cache.clone(),
                swap.clone(),
                memory.clone(),
                large.clone(),
            ),
            mmap: Mmap::new(
                tables.clone(),
                cache.clone(),
                swap.clone(),
                pages,
                memory.clone(),
                large.clone(),
            ),
            madvise: Madvise::new(
                frames.clone(),
                tables.clone(),
                large.clone(),
                reclaim.clone(),
                migration.clone(),
            ),
            fork: Fork::new(frames.clone(), tables.clone(), swap.clone(), memory.clone()),
            files: Files::new(frames.clone(), tables.clone(), cache.clone(), memory.clone()),
            processes: Processes::new(engine.clone()),
            engine,
            frames,
            tables,
            cache,
            swap,
            reclaim,
            migration,
            memory,
            large,
            catch_up,
            zero_ahead,
        }
    }

    /// Returns the engine that keeps translations coherent.
    pub fn engine(&self) -> &Engine<'m, M> {
        &self.engine
    }

    fn machine(&self) -> &'m M {
        self.engine.hw()
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
        Ok(process.id())
    }

    /// Makes a process that no CPU can enter yet.
    fn new_process(&self, vmas: VmaTree) -> Result<Arc<Process<M>>, Error> {
        let id = self.processes.new_id();
        let root = self.tables.new_root(id, &*self.memory);
        let root = root.ok_or(Error::OutOfMemory)?;
        // SAFETY: the root was made for this space, and is freed by `retire` alone, after the engine's.
        let space = unsafe { self.engine.new_space(root) };
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
        self.engine.cpu_online();
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
        processes::rest(&self.engine, self.processes.current().as_deref());
        self.memory.idle();
        self.frames.zero_ahead(self.zero_ahead);
        self.machine().halt(until);
        if let Some(current) = self.processes.current() {
            self.engine.this_cpu().mask_interrupts().switch(Some(current.space()), current.space());
        }
    }

    fn fork(&self, parent: &Arc<Process<M>>) -> Result<ProcessId, Error> {
        let machine = self.machine();
        let vmas = parent.vmas().write(machine);
        let child = self.new_process(vmas.clone())?;
        let mut gather = self.tables.gather(Purpose::Call);
        let shared = self.fork.share_all(parent, &child, &vmas, &mut gather);
        // The child may run as soon as it is published, and copies pages that the parent must not write any more.
        // [mutant VmForkReturnsUnflushed]
        gather.flush();
        // Flushes that are still pending after this CPU's own flush belong to other CPUs. They may have cleared an
        // entry of the parent whose swap slot the child shares, and through which a CPU can write until its flush.
        // [mutant VmForksUnflushed]
        self.tables.flush_pending(parent);
        if shared.is_err() {
            // An incomplete child is never published.
            drop((gather, vmas));
            self.end(&child);
            return shared.map(|()| child.id());
        }
        self.processes.publish(child.clone());
        drop(vmas);
        Ok(child.id())
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
        self.engine.retire(process.space());
        process.set_retired();
        let root = process.root();
        self.machine().note(Event::SpaceRetired { root });
        self.mmap.unmap_all(process);
        self.tables.discard_root(root);
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
        if self.catch_up {
            self.engine.this_cpu().catch_up();
        }
        let process = self.processes.current().ok_or(Fault::NotMapped)?;
        self.faults.fault(&process, Page::containing(address), access)
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
                self.mmap.map(process?, address, bytes, protection, backing)
            }
            Call::Unmap { address, bytes } => self.mmap.unmap(process?, address, bytes),
            Call::Protect { address, bytes, protection } => {
                self.mmap.protect(process?, address, bytes, protection)
            }
            Call::Discard { address, bytes } => self.mmap.discard(process?, address, bytes),
            Call::PageOut { address, bytes } => self.madvise.page_out(process?, address, bytes),
            Call::Remap { address, bytes, to } => self.mmap.remap(process?, address, bytes, to),
            Call::Collapse { address } => self.large.collapse(process?, address),
            Call::Spawn => self.spawn().map(u64::from),
            Call::Fork => self.fork(process?).map(u64::from),
            Call::Enter { process } => self.enter(process).map(|()| 0),
            Call::Exit { process } => self.exit(process).map(|()| 0),
            Call::Create { bytes } => self.cache.create(bytes).map(u64::from),
            Call::Write { file, offset, value } => self.files.write(file, offset, value),
            Call::Read { file, offset } => self.files.read(file, offset),
            Call::Truncate { file, bytes } => self.files.truncate(file, bytes),
            Call::Sync { file } => self.files.sync(file),
            Call::Migrate { address, bytes, node } => {
                self.madvise.migrate(process?, address, bytes, node as usize)
            }
            Call::Demote { pages } => Ok(self.migration.demote(pages)),
            Call::Reclaim { pages } => {
                let home = self.machine().home_node(self.machine().this_cpu());
                Ok(self.reclaim.reclaim(home, pages))
            }
            Call::Idle { until } => {
                self.idle(until);
                Ok(0)
            }
        }
    }

    fn audit(&self) -> Audit<'_, 'm, M> {
        Audit {
            frames: &self.frames,
            cache: &self.cache,
            swap: &self.swap,
            processes: &self.processes,
        }
    }

    /// Returns the number of free frames, including those with a deferred flush.
    pub fn free_frames(&self) -> u64 {
        self.frames.free_frames()
    }

    /// Checks all records of the manager, while all CPUs are outside it.
    ///
    /// Each frame must belong to exactly one owner. References and entries of reverse maps must correspond to entries
    /// of tables and slots of the page cache. Swap slots must correspond to the entries that name them. The time is
    /// proportional to memory.
    ///
    /// # Errors
    /// Describes the first inconsistency.
    pub fn check(&self) -> Result<FrameTotals, String> {
        self.audit().check()
    }

    /// Returns the eight bytes that the program would read at `address`, wherever the page is.
    ///
    /// It reads the manager's records, takes no lock and changes nothing; oracles use it. Returns `None` if the process
    /// may not read there, or if the page is being moved.
    ///
    /// # Safety
    /// No other thread of the host is inside this manager. Coroutines of the calling thread may be suspended inside it,
    /// because they're suspended only between the manager's changes.
    pub unsafe fn peek(&self, process: ProcessId, address: u64) -> Option<u64> {
        // SAFETY: passed on to the caller.
        unsafe { self.audit().peek(process, address) }
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

    /// Returns the roots and ranges of shared mappings of the file from `page` on.
    ///
    /// It takes no lock and changes nothing. An oracle calls it to find the mappings that a truncation will remove.
    ///
    /// # Safety
    /// As for [`Vm::peek`].
    pub unsafe fn peek_mappings(&self, file: FileId, page: u64) -> Vec<(Frame, PageRange)> {
        // SAFETY: passed on to the caller.
        unsafe { self.audit().peek_mappings(file, page) }
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

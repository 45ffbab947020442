//! The manager: what it owns, who runs what, and the door for calls.

use crate::area::{Area, Areas, Source};
use crate::arena::Arena;
use crate::entry::View;
use crate::file::File;
use crate::frame::{FrameTable, Mappings};
use crate::frames::{CpuCache, NodeState};
use crate::lock::Lock;
use crate::machine::{Level, Machine, MemoryMap, USER_END, Work};
use crate::process::Process;
use crate::swap::Swap;
use crate::user::{Call, Error, ProcessId};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use once_cell::race::OnceBox;
use quell::mutant::Mutant;
use quell::{CpuId, Engine, Frame, Page, Word};
use quell_zero::{ClearPolicy, Plan};

/// Sizes and choices of a [`Vm`].
#[derive(Clone, Debug)]
pub struct VmConfig {
    /// How many base frames a CPU's cache trades with its node at a time; it keeps up to twice as
    /// many, and as many again that are known to be zero.
    pub cache_batch: usize,
    /// How many base pages compressed swap may hold.
    pub swap_pages: u32,
    /// Whether a fast node that is exhausted moves pages that were not used lately to a slow node
    /// rather than taking new pages from there.
    pub demotion: bool,
    /// How many base frames each node keeps free: when fewer are left, one CPU demotes or reclaims
    /// so many in batches while the others live on what is left. 0 reclaims a batch when nothing is
    /// left.
    pub reclaim_ahead: u64,
    /// Whether that is left to CPUs that are idle, which look each time they go idle, as on a
    /// kernel with a thread for it that has a CPU to itself; if not, whoever allocates does it.
    pub reclaim_idle: bool,
    /// Whether a CPU that takes a fault flushes by itself when the flush clock has run far ahead of it
    /// (see [`Engine::catch_up`]): while CPUs fault all the time, claims then interrupt none of
    /// them. Not part of S3 as published, where only claims and switches pay.
    pub catch_up: bool,
    /// How many pages a call of [`Call::Migrate`] moves behind one flush. More make fewer interrupts;
    /// a thread that touches one of them meanwhile waits until it was copied, behind all others at
    /// worst. Linux takes 512.
    pub migrate_together: usize,
    /// How large pages are zeroed. Whole extents or pages (S1) is the engine's policy, not this.
    pub clear: ClearPolicy,
    /// How many frames an idle CPU zeroes ahead each time it goes idle.
    pub zero_ahead: usize,
    /// How often an allocation reclaims a batch before it fails.
    pub reclaim_attempts: usize,
}

impl VmConfig {
    /// A configuration for so much memory: caches together hold at most an eighth of it.
    pub fn for_memory(map: &MemoryMap, cpus: usize) -> Self {
        let frames: u64 = map.nodes().iter().map(|node| node.extent.frames).sum();
        let share = frames / (16 * cpus.max(1) as u64);
        VmConfig {
            cache_batch: share.clamp(1, 32) as usize,
            swap_pages: u32::MAX,
            demotion: map.nodes().iter().any(|node| node.slow),
            reclaim_ahead: 0,
            reclaim_idle: false,
            catch_up: false,
            migrate_together: 512,
            clear: ClearPolicy::cooperative(Plan::default()),
            zero_ahead: 0,
            reclaim_attempts: 8,
        }
    }
}

/// What one CPU runs. Only that CPU looks.
pub(crate) struct Running<M: Machine> {
    /// The process of the thread that runs, or is idle, here.
    current: Option<Arc<Process<M>>>,
    /// The process whose space was loaded last.
    loaded: Option<Arc<Process<M>>>,
}

/// A virtual-memory manager. All methods may be called by all CPUs at once.
///
/// It panics where its own books are wrong (a table names a frame that was never in the memory
/// map); wrong calls of programs get an [`Error`].
pub struct Vm<'m, M: Machine> {
    pub(crate) engine: Engine<'m, M>,
    pub(crate) config: VmConfig,
    pub(crate) frames: FrameTable<M>,
    pub(crate) nodes: Vec<NodeState<M>>,
    pub(crate) caches: Box<[Lock<M::Word, CpuCache>]>,
    running: Box<[Lock<AtomicU64, Running<M>>]>,
    processes: Lock<M::Word, BTreeMap<ProcessId, Arc<Process<M>>>>,
    next_process: AtomicU32,
    pub(crate) files: Arena<OnceBox<File<M>>, 4>,
    pub(crate) files_made: AtomicU32,
    pub(crate) swap: Swap<M>,
}

impl<'m, M: Machine> Vm<'m, M> {
    /// A manager of all memory of the engine's machine, with no process.
    pub fn new(engine: Engine<'m, M>, config: VmConfig) -> Self {
        let machine = engine.hw();
        let map = machine.memory();
        let cpus = machine.cpu_count();
        let mut config = config;
        config.clear.whole_extents = engine.policy().extents;
        Vm {
            frames: FrameTable::new(map),
            nodes: map
                .nodes()
                .iter()
                .map(|node| NodeState::new(node.extent))
                .collect(),
            caches: (0..cpus).map(|_| Lock::new(CpuCache::default())).collect(),
            running: (0..cpus)
                .map(|_| {
                    Lock::new(Running {
                        current: None,
                        loaded: None,
                    })
                })
                .collect(),
            processes: Lock::new(BTreeMap::new()),
            next_process: AtomicU32::new(1),
            files: Arena::new(),
            files_made: AtomicU32::new(0),
            swap: Swap::new(config.swap_pages),
            config,
            engine,
        }
    }

    /// The engine that keeps translations coherent.
    pub fn engine(&self) -> &Engine<'m, M> {
        &self.engine
    }

    pub(crate) fn machine(&self) -> &'m M {
        self.engine.hw()
    }

    pub(crate) fn cpu(&self) -> CpuId {
        self.machine().this_cpu()
    }

    /// What this CPU runs.
    fn running<T>(&self, look: impl FnOnce(&mut Running<M>) -> T) -> T {
        match self.running[self.cpu().index()].try_lock() {
            Some(mut running) => look(&mut running),
            None => unreachable!("only the CPU itself looks at what it runs, and never twice"),
        }
    }

    pub(crate) fn current_process(&self) -> Option<Arc<Process<M>>> {
        self.running(|running| running.current.clone())
    }

    /// The process that this CPU runs.
    pub fn current(&self) -> Option<ProcessId> {
        self.running(|running| running.current.as_ref().map(|process| process.id))
    }

    /// Pays for entries of the process that somebody else has cleared and not yet flushed: one load
    /// if there are none. Lazily cleared entries have markers and are not meant. `mutant` is the
    /// mistake of not doing so at this place.
    pub(crate) fn settle(&self, process: &Process<M>, mutant: Mutant) {
        if !self.machine().mutant(mutant) {
            self.engine.settle_deferred(&process.space);
        }
    }

    /// The entries that map a block.
    pub(crate) fn mappings(&self, frame: Frame) -> Mappings<M> {
        self.frames
            .info(frame)
            .state(self.machine())
            .mappings()
            .cloned()
            .collect()
    }

    /// Makes a process without any mapping.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn spawn(&self) -> Result<ProcessId, Error> {
        let process = self.new_process(Areas::default())?;
        self.publish(process.clone());
        Ok(process.id)
    }

    /// From here on CPUs may enter the process.
    pub(crate) fn publish(&self, process: Arc<Process<M>>) {
        let mut processes = self.processes.lock(self.machine());
        processes.insert(process.id, process);
    }

    /// A process that nobody knows yet.
    pub(crate) fn new_process(&self, areas: Areas) -> Result<Arc<Process<M>>, Error> {
        let id = self.next_process.fetch_add(1, Ordering::Relaxed);
        let root = self.new_root(id).ok_or(Error::OutOfMemory)?;
        let space = self.engine.new_space(root);
        Ok(Arc::new(Process::new(id, space, areas)))
    }

    /// This CPU goes on in that process, from no process or another one.
    ///
    /// # Errors
    /// [`Error::NoProcess`].
    pub fn enter(&self, process: ProcessId) -> Result<(), Error> {
        let next = {
            let processes = self.processes.lock(self.machine());
            let next = processes.get(&process).ok_or(Error::NoProcess)?.clone();
            // Under the lock, so that an exit sees it or comes first.
            next.running.fetch_add(1, Ordering::AcqRel);
            next
        };
        self.machine().charge(Work::Schedule);
        let (current, loaded) =
            self.running(|running| (running.current.take(), running.loaded.take()));
        let from = loaded.as_deref().filter(|process| !process.retired());
        self.engine
            .switch_to(from.map(|process| &process.space), &next.space);
        if let Some(current) = current {
            current.running.fetch_sub(1, Ordering::AcqRel);
        }
        self.running(|running| {
            running.current = Some(next.clone());
            running.loaded = Some(next);
        });
        Ok(())
    }

    /// This CPU runs no process any more; the space of the last one stays loaded lazily. To be
    /// called before the process is ended.
    pub fn leave(&self) {
        if let Some(current) = self.running(|running| running.current.take()) {
            self.engine.enter_lazy();
            current.running.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// This CPU takes part from here on.
    pub fn online(&self) {
        self.engine.cpu_online();
    }

    /// This CPU takes part no more, until [`Vm::online`]: it runs no process, has left its root and
    /// is asked for no flush. Its free frames go back to the nodes.
    pub fn offline(&self) {
        self.leave();
        let loaded = self.running(|running| running.loaded.take());
        let loaded = loaded.as_deref().filter(|process| !process.retired());
        self.engine
            .cpu_offline(loaded.map(|process| &process.space));
        self.drain_cache(self.cpu());
    }

    fn idle(&self, until: u64) {
        self.engine.enter_lazy();
        if self.config.reclaim_idle {
            self.balance();
            self.claim_ahead();
        }
        self.zero_ahead(self.config.zero_ahead);
        self.machine().halt(until);
        if let Some(current) = self.current_process() {
            self.engine.switch_to(Some(&current.space), &current.space);
        }
    }

    /// Ends a process that no CPU runs.
    fn exit(&self, id: ProcessId) -> Result<u64, Error> {
        let process = {
            let mut processes = self.processes.lock(self.machine());
            let process = processes.get(&id).ok_or(Error::NoProcess)?;
            if process.running.load(Ordering::Acquire) > 0 {
                return Err(Error::Busy);
            }
            let process = process.clone();
            processes.remove(&id);
            process
        };
        // No CPU loads the space again. Once every lazy one has left its root, no walker reads its
        // tables and no translation of it is used: what follows needs no flush.
        self.engine.retire(&process.space);
        process.set_retired();
        self.machine().note(crate::machine::Event::SpaceRetired {
            root: process.root(),
        });
        self.unmap_range(&process, Page(0), USER_END);
        self.discard_table(process.root());
        self.running(|running| {
            running
                .loaded
                .take_if(|loaded| Arc::ptr_eq(loaded, &process));
        });
        Ok(0)
    }

    /// Executes a system call of the process that this CPU runs.
    ///
    /// # Errors
    /// Those that [`Call`] and [`Error`] describe.
    pub fn call(&self, call: Call) -> Result<u64, Error> {
        self.machine().charge(Work::SystemCall);
        let current = self.current_process();
        let process = current.as_ref().ok_or(Error::NoProcess);
        match call {
            Call::Nothing => Ok(0),
            Call::Map {
                address,
                bytes,
                protection,
                backing,
            } => self.map(process?, address, bytes, protection, backing),
            Call::Unmap { address, bytes } => self.unmap(process?, address, bytes),
            Call::Protect {
                address,
                bytes,
                protection,
            } => self.protect(process?, address, bytes, protection),
            Call::Discard { address, bytes } => self.discard(process?, address, bytes),
            Call::PageOut { address, bytes } => self.page_out(process?, address, bytes),
            Call::Remap { address, bytes, to } => self.remap(process?, address, bytes, to),
            Call::Collapse { address } => self.collapse(process?, address),
            Call::Spawn => self.spawn().map(u64::from),
            Call::Fork => self.fork(process?),
            Call::Enter { process } => self.enter(process).map(|()| 0),
            Call::Exit { process } => self.exit(process),
            Call::Create { bytes } => self.create(bytes),
            Call::Write {
                file,
                offset,
                value,
            } => self.write(file, offset, value),
            Call::Read { file, offset } => self.read(file, offset),
            Call::Truncate { file, bytes } => self.truncate(file, bytes),
            Call::Sync { file } => self.sync(file),
            Call::Migrate {
                address,
                bytes,
                node,
            } => self.migrate(process?, address, bytes, node as usize),
            Call::Demote { pages } => Ok(self.demote(pages)),
            Call::Reclaim { pages } => Ok(self.reclaim(pages)),
            Call::Idle { until } => {
                self.idle(until);
                Ok(0)
            }
        }
    }

    /// What the program would read at `address`: eight bytes, by the manager's own books, wherever
    /// the page is. `None` if the process may not read there, or if the page is on its way.
    /// Takes no lock and changes nothing: for an oracle.
    ///
    /// # Safety
    /// No other thread of the host is inside this manager. (Suspended coroutines of the calling
    /// thread may be: they are suspended only between the manager's changes.)
    pub unsafe fn peek(&self, process: ProcessId, address: u64) -> Option<u64> {
        let page = Page::containing(address);
        let offset = (address % quell::addr::PAGE_BYTES) as usize;
        // SAFETY: passed on to the caller.
        let process = unsafe { self.processes.peek() }.get(&process)?;
        // SAFETY: as above.
        let area = *unsafe { process.areas.peek() }.find(page)?;
        if !readable(&area) {
            return None;
        }
        let (mut table, mut level) = (process.root(), Level::ROOT);
        let view = loop {
            let word = self.machine().table(table)[level.index(page)].load(Ordering::Acquire);
            match View::of(self.machine(), word, level) {
                View::Table(next) => (table, level) = (next, Level(level.0 - 1)),
                view => break view,
            }
        };
        let mut bytes = [0; 8];
        // Who holds the table's lock may be about to fill the word again.
        if view == View::Empty && self.frames.info(table).table.is_held() {
            return None;
        }
        match (view, area.source) {
            (View::Page(entry), _) => {
                let within = page.0 & (level.pages() - 1);
                self.machine()
                    .read_frame(entry.frame.plus(within), offset, &mut bytes);
            }
            (View::Moving(frame), _) => {
                let within = page.0 & (level.pages() - 1);
                self.machine()
                    .read_frame(frame.plus(within), offset, &mut bytes);
            }
            // SAFETY: as above.
            (View::Swapped(slot), _) => unsafe { self.swap_peek(slot, offset, &mut bytes) }?,
            (_, Source::Zeros(_)) => {}
            (_, Source::File { file, first, .. }) => {
                // SAFETY: as above.
                return unsafe { self.peek_file(file, first + page.0 - area.start.0, offset) };
            }
        }
        Some(u64::from_le_bytes(bytes))
    }

    /// The name of the word at this address, if it is one of the manager's locks or one that the
    /// engine keeps for it: for whoever shows people what happens, word by word.
    #[doc(hidden)]
    pub fn word_name(&self, address: usize) -> Option<alloc::string::String> {
        let mut frames = self.frames.described();
        let found = frames.find_map(|(frame, info)| Some((frame, info.word_name(address)?)));
        if let Some((frame, name)) = found {
            return Some(alloc::format!("{name} of frame {:#x}", frame.0));
        }
        let processes = self.processes.try_lock()?;
        processes.values().find_map(|process| {
            let name = process.space.word_name(address)?;
            Some(alloc::format!("{name} of process {}", process.id))
        })
    }

    /// All processes that have not ended.
    pub(crate) fn living(&self) -> Vec<Arc<Process<M>>> {
        self.processes
            .lock(self.machine())
            .values()
            .cloned()
            .collect()
    }
}

/// Whether programs may load from the area. Rights to store or to execute imply it.
pub(crate) fn readable(area: &Area) -> bool {
    area.protection.read || area.protection.write || area.protection.execute
}

//! Answers tests and oracles: the memory in each state, errors in the records, and the content of a page.

use crate::entry::EntryKind;
use crate::frame::{FrameState, Owner};
use crate::machine::{Entry, Level, Machine};
use crate::page_cache::SlotState;
use crate::syscall::{FileId, ProcessId, Protection};
use crate::vm::Vm;
use crate::vma::{Source, Vma};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use quell::PAGE_BYTES;
use quell::{Frame, Page, PageRange, Word};

/// The numbers of base frames by use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrameTotals {
    /// Free, without a deferred flush.
    pub free: u64,
    /// Free, with a deferred flush (S3).
    pub stale: u64,
    /// Page-table pages.
    pub tables: u64,
    /// Anonymous memory.
    pub anonymous: u64,
    /// In the page cache.
    pub file: u64,
    /// Swap slots in use. They aren't frames.
    pub swapped: u64,
}

/// The entries that name a frame, counted.
#[derive(Default)]
struct EntryCounts {
    mapped: u32,
    markers: u32,
}

/// Everything that the page tables name.
#[derive(Default)]
struct TableContents {
    frames: BTreeMap<Frame, EntryCounts>,
    /// Entries per swap slot.
    slots: BTreeMap<u32, u32>,
}

impl<M: Machine> Vm<'_, M> {
    /// Checks all records of the manager, while all CPUs are outside it.
    ///
    /// Each frame must belong to exactly one owner. References and entries of reverse maps must correspond to entries
    /// of tables and slots of the page cache. Swap slots must correspond to the entries that name them. The time is
    /// proportional to memory.
    ///
    /// # Errors
    /// Describes the first inconsistency.
    pub fn check(&self) -> Result<FrameTotals, String> {
        let mut named = self.named_by_tables()?;
        self.swap.check(&named.slots)?;
        let mut totals = FrameTotals { swapped: self.swap.used(), ..FrameTotals::default() };
        let mut skip = Frame(0);
        let mut listed = 0;
        for (frame, info) in self.frames.described() {
            listed += u64::from(info.state(self.machine()).listed);
            // The first frame describes a block.
            if frame >= skip {
                let state = info.state(self.machine());
                let by_tables = named.frames.remove(&frame).unwrap_or_default();
                skip = self.check_frame(frame, &state, &by_tables, &mut totals)?;
            }
        }
        // Tables name the remaining frames, but the records have them as free.
        let free = named.frames.iter().find(|(_, by)| by.mapped + by.markers > 0);
        if let Some((frame, by)) = free {
            return Err(format!("free frame {:#x} is mapped {} times", frame.0, by.mapped));
        }
        self.frames.check(listed)?;
        totals.free = self.frames.free_frames() - self.frames.stale_frames();
        let nodes = self.frames.map.nodes().iter();
        let all: u64 = nodes.map(|node| node.extent.frames).sum();
        let used = totals.stale + totals.tables + totals.anonymous + totals.file;
        if totals.free + used != all {
            return Err(format!("{all} frames, but {} free and {used} used", totals.free));
        }
        Ok(totals)
    }

    /// Collects the frames and swap slots in the tables of all living processes. Each mapped frame must list its
    /// mapping.
    fn named_by_tables(&self) -> Result<TableContents, String> {
        let mut named = TableContents::default();
        for process in self.processes.living() {
            let vmas = process.vmas.read(self.machine());
            let mut visit = |page: Page, entry: EntryKind| match entry {
                EntryKind::Page(entry) => {
                    let state = self.frames.state(entry.frame);
                    if !state.rmap.contains(&process, page) {
                        return Err(format!(
                            "process {} maps frame {:#x} at page {:#x}, its reverse map does not say so",
                            process.id, entry.frame.0, page.0
                        ));
                    }
                    let behind = (state.owner, state.references);
                    drop(state);
                    let by = named.frames.entry(entry.frame).or_default();
                    by.mapped += 1;
                    self.check_entry(vmas.find(page), page, &entry, behind).map_err(|what| {
                        format!("process {}, page {:#x}: {what}", process.id, page.0)
                    })
                }
                EntryKind::Marker(frame) => {
                    let listed = self.frames.state(frame).rmap.contains(&process, page);
                    named.frames.entry(frame).or_default().markers += u32::from(listed);
                    Ok(())
                }
                EntryKind::Moving(frame) => {
                    Err(format!("frame {:#x} is left in migration", frame.0))
                }
                EntryKind::Swapped(slot) => {
                    *named.slots.entry(slot).or_default() += 1;
                    Ok(())
                }
                EntryKind::Empty | EntryKind::Table(_) => Ok(()),
            };
            self.check_table(process.root(), Level::ROOT, Page(0), &mut visit)?;
        }
        Ok(named)
    }

    /// Checks an entry against its area; `owner` and `references` are its frame's.
    fn check_entry(
        &self,
        vma: Option<&Vma>,
        page: Page,
        entry: &Entry,
        (owner, references): (Owner, u32),
    ) -> Result<(), &'static str> {
        let vma = vma.ok_or("an entry outside of every area")?;
        let Protection { write, execute, .. } = vma.protection;
        if entry.user && !vma.protection.readable()
            || entry.writable && !write
            || entry.executable && !execute
        {
            return Err("an entry has more rights than its area");
        }
        match (owner, vma.source) {
            (Owner::File(file, index), Source::File { shared, .. }) => {
                if vma.file_page(page) != Some((file, index)) {
                    return Err("an entry maps another page of a file than its area");
                }
                let slot = self.cache.file(file).ok().and_then(|file| file.used_slot(index));
                let dirty = slot.is_some_and(|slot| slot.lock(self.machine()).dirty);
                if entry.writable && !(shared && dirty) {
                    return Err("a clean page, or one that is to be copied, can be stored to");
                }
                Ok(())
            }
            (Owner::Anonymous, Source::Anonymous(_) | Source::File { shared: false, .. }) => {
                if entry.writable && references > 1 {
                    return Err("a page that others share can be stored to");
                }
                Ok(())
            }
            _ => Err("an entry maps what does not lie behind its area"),
        }
    }

    /// Checks the records of a frame (or of the block that begins there) against tables and page cache, and adds it to
    /// the totals. Returns the first frame that it did not cover.
    fn check_frame(
        &self,
        frame: Frame,
        state: &FrameState<M>,
        by_tables: &EntryCounts,
        totals: &mut FrameTotals,
    ) -> Result<Frame, String> {
        let frames = 1 << state.order;
        let cached = match state.owner {
            Owner::Free => return Ok(frame),
            Owner::Kernel => {
                return Err(format!("frame {:#x} was lost by the manager", frame.0));
            }
            Owner::Table => {
                totals.tables += 1;
                return Ok(frame);
            }
            Owner::Anonymous => {
                totals.anonymous += frames;
                0
            }
            Owner::File(..) if state.references == 0 => {
                totals.stale += 1;
                0
            }
            Owner::File(file, page) => {
                totals.file += 1;
                u32::from(self.cached_at(file, page, frame)?)
            }
        };
        if state.references != by_tables.mapped + cached {
            return Err(format!(
                "frame {:#x} ({:?}) has {} references, but {} mappings and {cached} in the cache",
                frame.0, state.owner, state.references, by_tables.mapped
            ));
        }
        if state.rmap.len() as u32 != by_tables.mapped + by_tables.markers {
            return Err(format!(
                "frame {:#x} ({:?}) lists {} mappings, but {} entries and {} markers name it",
                frame.0,
                state.owner,
                state.rmap.len(),
                by_tables.mapped,
                by_tables.markers
            ));
        }
        Ok(frame.plus(frames))
    }

    /// Returns whether the page cache has this frame for the page, which must lie within the file.
    fn cached_at(&self, file: FileId, page: u64, frame: Frame) -> Result<bool, String> {
        let file = self.cache.file(file).map_err(|error| format!("file {file}: {error}"))?;
        if page >= file.pages() {
            return Err(format!(
                "frame {:#x} holds page {page} of a file of {} pages",
                frame.0,
                file.pages()
            ));
        }
        let Some(slot) = file.used_slot(page).map(|slot| slot.lock(self.machine())) else {
            return Ok(false);
        };
        let cached = slot.cached == SlotState::Present(frame);
        let mut bytes = [0; PAGE_BYTES as usize];
        if cached && !slot.dirty {
            self.machine().read_frame(frame, 0, &mut bytes);
            if !slot.is_on_device(&bytes) {
                return Err(format!(
                    "page {page} of a file is clean, and not what its device holds"
                ));
            }
        }
        Ok(cached)
    }

    /// Visits all used words of a table and of the tables below it, and checks their counts.
    fn check_table(
        &self,
        table: Frame,
        level: Level,
        base: Page,
        visit: &mut impl FnMut(Page, EntryKind) -> Result<(), String>,
    ) -> Result<(), String> {
        let words = self.machine().table(table);
        let ours = if level == Level::ROOT { words.len() / 2 } else { words.len() };
        let mut used = 0;
        let in_use = self.machine().words_in_use(table);
        for index in in_use.take_while(|&index| index < ours) {
            // Relaxed: no CPU changes a table during an audit.
            let word = words[index].load(Ordering::Relaxed);
            if word == 0 {
                continue;
            }
            used += 1;
            let page = base.plus(index as u64 * level.pages());
            match EntryKind::of(self.machine(), word, level) {
                EntryKind::Table(next) => {
                    self.check_table(next, Level(level.0 - 1), page, visit)?
                }
                view => visit(page, view)?,
            }
        }
        let counted = self.frames.info(table).words_used.load(Ordering::Relaxed);
        if counted != used {
            return Err(format!(
                "table {:#x} counts {counted} words in use, but has {used}",
                table.0
            ));
        }
        Ok(())
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
        let machine = self.machine();
        let page = Page::containing(address);
        let offset = (address % PAGE_BYTES) as usize;
        // SAFETY: passed on to the caller.
        let process = unsafe { self.processes.peek(process) }?;
        // SAFETY: passed on to the caller.
        let vma = *unsafe { process.vmas.peek() }.find(page)?;
        if !vma.protection.readable() {
            return None;
        }
        let (mut table, mut level) = (process.root(), Level::ROOT);
        let view = loop {
            // Relaxed: the caller excludes other threads.
            let word = machine.table(table)[level.index(page)].load(Ordering::Relaxed);
            match EntryKind::of(machine, word, level) {
                EntryKind::Table(next) => (table, level) = (next, Level(level.0 - 1)),
                view => break view,
            }
        };
        let mut bytes = [0; 8];
        // The CPU that holds the table's lock may be about to refill the word.
        if view == EntryKind::Empty && self.frames.info(table).is_table_locked() {
            return None;
        }
        match (view, vma.source) {
            (EntryKind::Page(entry), _) => {
                let within = page.0 & (level.pages() - 1);
                machine.read_frame(entry.frame.plus(within), offset, &mut bytes);
            }
            (EntryKind::Moving(frame), _) => {
                let within = page.0 & (level.pages() - 1);
                machine.read_frame(frame.plus(within), offset, &mut bytes);
            }
            // SAFETY: passed on to the caller.
            (EntryKind::Swapped(slot), _) => unsafe { self.swap.peek(slot, offset, &mut bytes) }?,
            (_, Source::Anonymous(_)) => {}
            (_, Source::File { file, first, .. }) => {
                // SAFETY: passed on to the caller.
                return unsafe { self.cache.peek(file, first + page.0 - vma.start.0, offset) };
            }
        }
        Some(u64::from_le_bytes(bytes))
    }

    /// Returns the roots and ranges of shared mappings of the file from `page` on.
    ///
    /// It takes no lock and changes nothing. An oracle calls it to find the mappings that a truncation will remove.
    ///
    /// # Safety
    /// As for [`Vm::peek`].
    pub unsafe fn peek_mappings(&self, id: FileId, page: u64) -> Vec<(Frame, PageRange)> {
        let mut found = Vec::new();
        // SAFETY: passed on to the caller.
        for process in unsafe { self.processes.peek_all() } {
            // SAFETY: passed on to the caller.
            for vma in unsafe { process.vmas.peek() }.iter() {
                let Source::File { file, first, shared: true } = vma.source else {
                    continue;
                };
                let start = vma.start.plus(page.saturating_sub(first));
                if file == id && start < vma.end {
                    let range = PageRange::base(start, vma.end.0 - start.0);
                    found.push((process.root(), range));
                }
            }
        }
        found
    }
}

//! The manager's books: how much memory is what, and whether that adds up.

use crate::entry::View;
use crate::file::Cached;
use crate::frame::Owner;
use crate::machine::{Level, Machine};
use crate::vm::Vm;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use core::sync::atomic::Ordering;
use quell::{Frame, Page, Word};

/// How many base frames are what.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// With an allocator, owing nothing.
    pub free: u64,
    /// Free, and a flush is owed (S3).
    pub stale: u64,
    /// Page-table pages.
    pub tables: u64,
    /// Anonymous memory.
    pub anonymous: u64,
    /// In the page cache.
    pub file: u64,
    /// Slots of swap in use: not frames.
    pub swapped: u64,
}

/// What the tables say about a frame.
#[derive(Default)]
struct Seen {
    mapped: u32,
    markers: u32,
}

impl<M: Machine> Vm<'_, M> {
    /// How many frames are free, those included that owe a flush.
    pub fn free_frames(&self) -> u64 {
        let machine = self.machine();
        let nodes = self.nodes.iter().map(|node| {
            let stale = node.stale.lock(machine).len() as u64;
            stale + node.buddy.lock(machine).frames()
        });
        let caches = self.caches.iter().map(|cache| cache.lock(machine).frames());
        nodes.sum::<u64>() + caches.sum::<u64>()
    }

    /// Goes through all books: each frame belongs to exactly one owner, each reference and each
    /// entry of a reverse map stands for an entry of a table or a slot of the page cache, and the
    /// other way round. All CPUs must be outside the manager. Takes time in proportion to memory.
    ///
    /// # Errors
    /// The first thing that does not add up.
    pub fn check(&self) -> Result<Totals, String> {
        let machine = self.machine();
        let mut seen: BTreeMap<Frame, Seen> = BTreeMap::new();
        let mut totals = Totals {
            swapped: self.swap_used(),
            ..Totals::default()
        };
        for process in self.living() {
            let mut at = |page: Page, view: View| match view {
                View::Page(entry) => {
                    let state = self.frames.info(entry.frame).state(machine);
                    if !state.maps(&process, page) {
                        return Err(format!(
                            "process {} maps frame {:#x} at page {:#x}, its reverse map does not say so",
                            process.id, entry.frame.0, page.0
                        ));
                    }
                    seen.entry(entry.frame).or_default().mapped += 1;
                    Ok(())
                }
                View::Marker(frame) => {
                    let state = self.frames.info(frame).state(machine);
                    let listed = state.maps(&process, page);
                    seen.entry(frame).or_default().markers += u32::from(listed);
                    Ok(())
                }
                View::Moving(frame) => Err(format!("frame {:#x} is left in migration", frame.0)),
                View::Empty | View::Table(_) | View::Swapped(_) => Ok(()),
            };
            self.check_table(process.root(), Level::ROOT, Page(0), &mut at)?;
        }
        let mut skip = Frame(0);
        for (frame, info) in self.frames.described() {
            if frame < skip {
                continue;
            }
            let state = info.state(machine);
            let found = seen.remove(&frame).unwrap_or_default();
            let frames = 1 << state.order;
            let cached = match state.owner {
                Owner::Free => continue,
                Owner::Kernel => {
                    return Err(format!("frame {:#x} was lost by the manager", frame.0));
                }
                Owner::Table => {
                    totals.tables += 1;
                    continue;
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
                    let file = self
                        .file(file)
                        .map_err(|error| format!("file {file}: {error}"))?;
                    let slot = file.slot(page).map(|slot| slot.lock(machine).cached);
                    u32::from(slot == Some(Cached::Present(frame)))
                }
            };
            skip = frame.plus(frames);
            if state.references != found.mapped + cached {
                return Err(format!(
                    "frame {:#x} ({:?}) has {} references, but {} mappings and {cached} in the cache",
                    frame.0, state.owner, state.references, found.mapped
                ));
            }
            if state.mapped() as u32 != found.mapped + found.markers {
                return Err(format!(
                    "frame {:#x} ({:?}) lists {} mappings, but {} entries and {} markers name it",
                    frame.0,
                    state.owner,
                    state.mapped(),
                    found.mapped,
                    found.markers
                ));
            }
        }
        // What is left was seen in a table and is a free frame by the books.
        if let Some((frame, seen)) = seen.iter().find(|(_, seen)| seen.mapped + seen.markers > 0) {
            return Err(format!(
                "free frame {:#x} is mapped {} times",
                frame.0, seen.mapped
            ));
        }
        totals.free = self.free_frames();
        let stale_listed: u64 = self
            .nodes
            .iter()
            .map(|node| node.stale.lock(machine).len() as u64)
            .sum();
        totals.free -= stale_listed;
        let all: u64 = self
            .frames
            .map()
            .nodes()
            .iter()
            .map(|node| node.extent.frames)
            .sum();
        let used = totals.stale + totals.tables + totals.anonymous + totals.file;
        if totals.free + used != all {
            return Err(format!(
                "{all} frames, but {} free and {used} used",
                totals.free
            ));
        }
        Ok(totals)
    }

    /// Visits all words of a table and those below it that are not empty, and checks their count.
    fn check_table(
        &self,
        table: Frame,
        level: Level,
        base: Page,
        visit: &mut impl FnMut(Page, View) -> Result<(), String>,
    ) -> Result<(), String> {
        let words = self.machine().table(table);
        let ours = if level == Level::ROOT {
            &words[..words.len() / 2]
        } else {
            &words[..]
        };
        let mut used = 0;
        for (index, word) in ours.iter().enumerate() {
            let word = word.load(Ordering::Acquire);
            used += u32::from(word != 0);
            let page = base.plus(index as u64 * level.pages());
            match View::of(self.machine(), word, level) {
                View::Table(next) => self.check_table(next, Level(level.0 - 1), page, visit)?,
                view => visit(page, view)?,
            }
        }
        let counted = self.frames.info(table).used.load(Ordering::Relaxed);
        if counted != used {
            return Err(format!(
                "table {:#x} counts {counted} words in use, but has {used}",
                table.0
            ));
        }
        Ok(())
    }
}

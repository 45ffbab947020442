//! What memory must hold: a simple judge of what programs over the manager lose.
//!
//! A page, or a page of a file, that one CPU alone has written since the run began, and that no call has dropped
//! or moved, holds what that CPU has written last (C2). Of everything else nothing is known. The judge lies outside
//! of the machine.
//!
//! *Truncation.* A page beyond the new end goes, and one that a write puts there meanwhile stays or goes with it. The
//! bytes that the write has put there are known all the same: it lengthens the file, so afterwards the page lies beyond
//! the end, where nothing can be read, or it holds what was written. That is so unless something else makes the file
//! longer than the page: then it may hold zeros.

use crate::action::MAX_CPUS;
use crate::vm_kernel::FIRST_PROCESS;
use quell_vm::{FileId, ProcessId};
use rustc_hash::FxHashMap;

/// Where something is written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Place {
    /// A page that one process alone sees.
    Page(ProcessId, u64),
    /// A page of a file.
    File(FileId, u64),
}

/// The writer of what was there before the run.
pub(super) const NO_CPU: usize = MAX_CPUS;

/// What is known of a place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Known {
    /// The CPU that alone has written it since the run began, or [`NO_CPU`], and what.
    Written(usize, u64),
    /// Several have, or a call has changed it.
    Nothing,
}

/// What pages are backed by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Behind {
    Memory,
    Private(FileId),
    Shared(FileId, u64),
}

/// The judge of what is lost. It lies outside of the machine.
#[derive(Default)]
pub(super) struct Expected {
    pub(super) places: FxHashMap<Place, Known>,
    behind: FxHashMap<(ProcessId, u64), Behind>,
    /// The files that are being truncated: private copies that are written there meanwhile may stay or go.
    cutting: Vec<FileId>,
    /// From which page on truncations of the run may have emptied each file.
    cut_from: FxHashMap<FileId, u64>,
    /// Pages below may have come to be within each file in the run, by something else than a write to them.
    lengthened: FxHashMap<FileId, u64>,
    /// The run has begun; before, calls come one after the other.
    begun: bool,
    /// Children whose forks have returned.
    children: Vec<ProcessId>,
    /// Processes that did something while nothing was known of them: a child may run before its fork has returned.
    strange: Vec<ProcessId>,
}

impl Expected {
    /// Where a store to a page goes; `None` if that is not known.
    pub(super) fn place(&self, process: ProcessId, page: u64) -> Option<Place> {
        match self.behind.get(&(process, page))? {
            Behind::Shared(file, at) => Some(Place::File(*file, *at)),
            _ => Some(Place::Page(process, page)),
        }
    }

    /// Whether a truncation may take what is written there now, and leave something else.
    fn is_cut(&self, place: Place) -> bool {
        match place {
            Place::File(file, page) => self.may_hold_zeros(file, page),
            Place::Page(process, page) => match self.behind.get(&(process, page)) {
                Some(Behind::Private(file)) => self.cutting.contains(file),
                _ => false,
            },
        }
    }

    /// Whether a page may have gone, and come back without being written.
    fn may_hold_zeros(&self, file: FileId, page: u64) -> bool {
        let cut = self.cut_from.get(&file).is_some_and(|from| page >= *from);
        cut && { self.lengthened.get(&file) }.is_some_and(|below| page < *below)
    }

    /// Forgets the pages of a file that may hold zeros.
    fn forget_zeros(&mut self, file: FileId) {
        let doubtful: Vec<_> = { self.places.keys().copied() }
            .filter(|place| matches!(*place, Place::File(of, page) if of == file && self.may_hold_zeros(file, page)))
            .collect();
        for place in doubtful {
            self.forget(place);
        }
    }

    /// A call is about to write to a page of a file, which may make that longer.
    pub(super) fn lengthens(&mut self, file: FileId, page: u64) {
        let below = self.lengthened.entry(file).or_default();
        *below = page.max(*below);
        self.forget_zeros(file);
    }

    /// A process is about to store, or to change what lies behind its pages. If nothing is known of it, nothing ever
    /// will be, and any file may be what it stores to.
    pub(super) fn acts(&mut self, process: ProcessId) {
        if process == FIRST_PROCESS || self.children.contains(&process) {
            return;
        }
        if self.strange.contains(&process) {
            return;
        }
        self.strange.push(process);
        for (place, known) in &mut self.places {
            if matches!(place, Place::File(..)) {
                *known = Known::Nothing;
            }
        }
    }

    pub(super) fn writes(&mut self, place: Place, cpu: usize, value: u64) {
        let elsewhere = matches!(place, Place::File(..)) && !self.strange.is_empty();
        if elsewhere || self.is_cut(place) {
            return self.forget(place);
        }
        match self.places.get_mut(&place) {
            Some(Known::Nothing) => {}
            Some(known @ Known::Written(..)) => {
                let Known::Written(other, held) = known else {
                    return;
                };
                if *other == cpu || *other == NO_CPU {
                    (*other, *held) = (cpu, value);
                } else {
                    *known = Known::Nothing;
                }
            }
            None => {
                self.places.insert(place, Known::Written(cpu, value));
            }
        }
    }

    pub(super) fn forget(&mut self, place: Place) {
        self.places.insert(place, Known::Nothing);
    }

    /// A call is about to change what lies behind a range, or what it holds.
    pub(super) fn changes(
        &mut self,
        process: ProcessId,
        page: u64,
        pages: u64,
        anew: Option<Behind>,
    ) {
        self.acts(process);
        for at in page..page + pages {
            if let Some(place) = self.place(process, at) {
                self.forget(place);
            }
            self.forget(Place::Page(process, at));
            if let Some(Behind::Shared(file, first)) = anew {
                self.forget(Place::File(file, first + at - page));
            }
            self.behind.remove(&(process, at));
        }
    }

    /// Before the run nothing is in doubt.
    pub(super) fn flushes_pending(
        &mut self,
        process: ProcessId,
        page: u64,
        pages: u64,
        anew: Behind,
    ) {
        for at in page..page + pages {
            self.places.remove(&Place::Page(process, at));
            let behind = match anew {
                Behind::Shared(file, first) => Behind::Shared(file, first + at - page),
                other => other,
            };
            self.behind.insert((process, at), behind);
        }
    }

    /// The run begins: every CPU finds what was written before it, until one writes.
    pub(super) fn begins(&mut self) {
        self.begun = true;
        self.lengthened.clear();
        for known in self.places.values_mut() {
            if let Known::Written(writer, _) = known {
                *writer = NO_CPU;
            }
        }
    }

    /// A truncation to so many pages begins.
    pub(super) fn cut(&mut self, file: FileId, pages: u64) {
        self.cutting.push(file);
        if self.begun {
            let from = self.cut_from.entry(file).or_insert(pages);
            *from = pages.min(*from);
            self.lengthens(file, pages);
        } else {
            // What lies beyond has gone, and what will be there is not known before it is written.
            self.places.retain(
                |place, _| !matches!(*place, Place::File(of, page) if of == file && page >= pages),
            );
        }
        let private: Vec<_> = self
            .behind
            .iter()
            .filter(|(_, behind)| **behind == Behind::Private(file))
            .map(|((process, page), _)| Place::Page(*process, *page))
            .collect();
        for place in private {
            self.forget(place);
        }
    }

    /// A truncation has returned.
    pub(super) fn has_cut(&mut self, file: FileId) {
        if let Some(at) = self.cutting.iter().position(|&one| one == file) {
            self.cutting.swap_remove(at);
        }
    }

    /// A fork has returned.
    pub(super) fn fork(&mut self, parent: ProcessId, child: ProcessId) {
        if self.strange.contains(&parent) || self.strange.contains(&child) {
            return;
        }
        self.children.push(child);
        let shared: Vec<_> = self
            .behind
            .iter()
            .filter(|((process, _), _)| *process == parent)
            .map(|((_, page), behind)| ((child, *page), *behind))
            .collect();
        self.behind.extend(shared);
    }
}

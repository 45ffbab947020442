//! Checks each access in the middle of concurrent threads.
//!
//! Every translation records the moment of its walk ([`frames`](super::frames)). An access through it breaks
//!
//! * **C5** if it was walked from another root than the loaded one, or the root has a new owner since;
//! * **C1** if its frame has a new owner since, or it stores to a frame that lost its owner since;
//! * **C2** if it stores, and the frame's content was captured since.
//!
//! If the tables still contain the translation, it is valid. Otherwise the access breaks
//!
//! * **C3** if a call has returned that revoked the page or the right and began after the walk;
//! * **C4** if the tables now have another frame, the load has returned a value that this frame does not hold, and no
//!   concurrent call or fault explains it.
//!
//! A walk of a former table breaks **C6**. Memory handed out as zeroed that isn't zero breaks **C8**. The run detects
//! violations of C7 ([`perform`](super::perform)).
//!
//! # No lock
//!
//! An access consists of a few steps of one thread between two checks for interrupts. Until this CPU has answered, the
//! engine delays everything that mustn't happen during the access: the frame's next owner, the capture, the return of
//! the call. So the oracle may check later, because every violation remains one. If a translation was filled while the
//! call that revokes it was in progress, using it counts as lawful.

use super::frames::{Frames, History, resolve};
use crate::tlb::CachedEntry;
use quell::{CpuId, Frame, Page, PageRange};
use quell_vm::contract::{Clause, Violation};
use quell_vm::sim::may_change;
use quell_vm::{Call, Event};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The reason why a CPU is in the kernel.
#[derive(Clone, Copy, Debug)]
pub enum Activity {
    Call(Call),
    Fault,
}

#[derive(Clone, Copy)]
struct OngoingCall {
    root: Option<Frame>,
    doing: Activity,
    began: u64,
}

/// The rights to a range that calls removed: the moment of each removal, 0 if never.
#[derive(Clone, Copy, Default)]
struct Revocations {
    loads: u64,
    stores: u64,
}

/// An access that was made, or a store that is about to be made.
pub struct AccessRecord {
    pub cpu: CpuId,
    /// The root that the CPU has loaded.
    pub root: Frame,
    pub address: u64,
    /// The translation that the access uses.
    pub cached: CachedEntry,
    /// The frame that the access reaches.
    pub frame: Frame,
    pub store: bool,
    /// The value that was loaded or is to be stored.
    pub held: u64,
}

#[derive(Default)]
pub struct Oracle {
    under_way: Box<[Mutex<Option<OngoingCall>>]>,
    taken: Mutex<HashMap<Frame, HashMap<PageRange, Revocations>>>,
    first: Mutex<Option<Violation>>,
    found: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Oracle {
    pub fn new(cpus: usize) -> Self {
        Oracle { under_way: (0..cpus).map(|_| Mutex::default()).collect(), ..Oracle::default() }
    }

    pub fn report(&self, violation: Violation) {
        lock(&self.first).get_or_insert(violation);
        self.found.store(true, Ordering::Relaxed);
    }

    pub fn has_found(&self) -> bool {
        self.found.load(Ordering::Relaxed)
    }

    pub fn verdict(&self) -> Option<Violation> {
        lock(&self.first).clone()
    }

    /// Runs `body`, and records meanwhile that this CPU is in the kernel.
    ///
    /// The CPU runs the space of this root.
    pub fn during<R>(
        &self,
        frames: &Frames,
        (cpu, root): (CpuId, Option<Frame>),
        doing: Activity,
        body: impl FnOnce() -> R,
    ) -> R {
        let began = frames.next_moment();
        *lock(&self.under_way[cpu.index()]) = Some(OngoingCall { root, doing, began });
        let result = body();
        *lock(&self.under_way[cpu.index()]) = None;
        result
    }

    /// Judges an access just made, or a store about to be made.
    ///
    /// Returns whether the contract allows it.
    pub fn judge(&self, frames: &Frames, used: &AccessRecord) -> bool {
        let since = used.cached.since;
        let moment = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let history = frames.history(used.frame);
        let broken = if Frame(used.cached.root) != used.root {
            Some((Clause::C5, "through a translation of another space"))
        } else if moment(&frames.history(used.root).allocated) > since {
            Some((Clause::C5, "through a translation of an earlier space with this root"))
        } else if moment(&history.allocated) > since {
            Some((Clause::C1, "through a translation walked before the frame got a new owner"))
        } else if used.store && moment(&history.freed) > since {
            Some((Clause::C1, "to a frame without an owner"))
        } else if used.store && moment(&history.captured) > since {
            Some((Clause::C2, "through a translation walked before the content was captured"))
        } else {
            self.judge_stale(frames, used)
        };
        if let Some((clause, what)) = broken {
            let access = if used.store { "store" } else { "load" };
            let violation = Violation::new(clause, format!("{access} {what}"));
            let violation = violation.by(used.cpu).in_frame(used.frame);
            self.report(violation.through(used.address));
        }
        broken.is_none()
    }

    /// Checks an access against the present tables.
    fn judge_stale(&self, frames: &Frames, used: &AccessRecord) -> Option<(Clause, &'static str)> {
        let page = Page::containing(used.address);
        let leaf = frames.walk(used.root, page, |_| ());
        let now = leaf.map(|leaf| resolve(leaf.raw, leaf.level, page));
        let now = now.filter(|(entry, _)| entry.user && (entry.writable || !used.store));
        if now.is_some_and(|(_, frame)| frame == used.frame) {
            return None;
        }
        if self.was_taken(used.root, page, used.store) > used.cached.since {
            return Some((
                Clause::C3,
                "through the old translation after the call that took it away returned",
            ));
        }
        let (_, frame) = now.filter(|_| !used.store)?;
        let word = (used.address % 4096 / 8) as usize;
        let holds = frames.find(frame)?[word].load(Ordering::Relaxed);
        let breaks = holds != used.held && !self.explained(used.root, used.address);
        breaks.then_some((
            Clause::C4,
            "through a translation left behind returned other bytes than the page holds",
        ))
    }

    /// Returns the moment from which no access of this kind may use a translation of the page.
    fn was_taken(&self, root: Frame, page: Page, store: bool) -> u64 {
        let taken = lock(&self.taken);
        let of_root = taken.get(&root).into_iter().flatten();
        let covering = of_root.filter(|(range, _)| range.contains(page));
        let moments = covering.map(|(_, taken)| if store { taken.stores } else { taken.loads });
        moments.max().unwrap_or(0)
    }

    /// Returns whether a call or fault in progress explains that an address of a space returns old values for a moment.
    fn explained(&self, root: Frame, address: u64) -> bool {
        self.under_way.iter().any(|slot| {
            let Some(under_way) = *lock(slot) else {
                return false;
            };
            let here = under_way.root == Some(root);
            match under_way.doing {
                Activity::Fault => here,
                Activity::Call(call) => may_change(call, |start, bytes| {
                    here && (start..start.saturating_add(bytes)).contains(&address)
                }),
            }
        })
    }

    pub fn note(&self, memory: &Frames, cpu: CpuId, event: Event) {
        let now = memory.next_moment();
        let each = |first: Frame, frames: u64, what: &dyn Fn(&History)| {
            (0..frames).for_each(|offset| what(memory.history(first.plus(offset))));
        };
        match event {
            Event::FrameAllocated { frame, frames } => each(frame, frames, &|history| {
                history.freed.store(0, Ordering::Relaxed);
                history.captured.store(0, Ordering::Relaxed);
                history.allocated.store(now, Ordering::Relaxed);
            }),
            Event::FrameFreed { frame, frames } => each(frame, frames, &|history| {
                history.freed.store(now, Ordering::Relaxed);
            }),
            Event::FrameReinstated { frame } => each(frame, 1, &|history| {
                history.freed.store(0, Ordering::Relaxed);
            }),
            Event::Captured { frame, frames } => each(frame, frames, &|history| {
                history.captured.store(now, Ordering::Relaxed);
            }),
            Event::FrameZeroed { frame, frames } => {
                for offset in 0..frames {
                    self.must_be_zero(memory, frame.plus(offset), cpu);
                }
            }
            Event::TableAllocated { frame, .. } => {
                self.must_be_zero(memory, frame, cpu);
                each(frame, 1, &|history| {
                    history.allocated.store(now, Ordering::Relaxed);
                    history.is_table.store(true, Ordering::Relaxed);
                });
            }
            Event::TableFreed { frame } => each(frame, 1, &|history| {
                history.is_table.store(false, Ordering::Relaxed);
            }),
            Event::ReturnedUnmap { root, range } => {
                self.take(root, range, [true, true], cpu, now);
            }
            Event::ReturnedProtect { root, range, readable, writable, executable: _ } => {
                self.take(root, range, [!readable, !writable], cpu, now)
            }
            Event::SpaceRetired { root } => {
                lock(&self.taken).remove(&root);
            }
        }
    }

    /// Records a call that is about to return and has removed the right to load from a range, or to store to it.
    fn take(
        &self,
        root: Frame,
        range: PageRange,
        [loads, stores]: [bool; 2],
        cpu: CpuId,
        now: u64,
    ) {
        let began = lock(&self.under_way[cpu.index()]).map_or(now, |call| call.began);
        let mut taken = lock(&self.taken);
        let known = taken.entry(root).or_default().entry(range).or_default();
        for (moment, took) in [(&mut known.loads, loads), (&mut known.stores, stores)] {
            if took {
                *moment = began.max(*moment);
            }
        }
    }

    fn must_be_zero(&self, memory: &Frames, frame: Frame, cpu: CpuId) {
        let words = memory.words(frame);
        if words.iter().any(|word| word.load(Ordering::Relaxed) != 0) {
            let what = "memory handed out as zeroed is not zero";
            self.report(Violation::new(Clause::C8, what).by(cpu).in_frame(frame));
        }
    }

    /// Judges a walker's read of a table. Returns whether the contract allows it.
    pub fn judge_table(&self, memory: &Frames, table: Frame, page: Page) -> bool {
        let is_table =
            memory.find(table).is_some() && memory.history(table).is_table.load(Ordering::Relaxed);
        if !is_table {
            let what = "a walker reads a page-table page that was freed";
            let violation = Violation::new(Clause::C6, what).in_frame(table);
            self.report(violation.through(page.address()));
        }
        is_table
    }
}

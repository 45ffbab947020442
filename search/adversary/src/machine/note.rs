//! The events that the kernel under test reports to the judge: for example, new owners of frames, freed frames and
//! returns of calls. Also invalid requests to the machine, which no clause covers.
//!
//! The interface ([`Hardware`](quell::Hardware)) defines the valid requests of engine and embedder. Real machines
//! respond to an invalid one with an exception, with nothing at all, or with a fault somewhere else much later. Here
//! the judge reports it as [`Clause::Misuse`].

use super::{Core, breach};
use crate::coverage::MachineEvent;
use crate::mmu::EntryConflict;
use crate::oracle::RevokedRight;
use crate::word::FRAME_WORDS;
use quell::{CpuId, CpuSet, Frame, Invalidation, Page, PageRange, Tag, Tagging};
use quell_vm::contract::{Clause, Violation};
use quell_vm::machine::Event;

impl Core {
    pub(crate) fn note(&mut self, me: usize, event: Event) {
        self.now += 1;
        let (now, by) = (self.now, me as u8);
        let each = |frame: Frame, frames: u64| (frame.0..frame.0 + frames).map(|f| f as u32);
        match event {
            Event::FrameAllocated { frame, frames } => {
                self.happen(MachineEvent::FrameReused);
                for frame in each(frame, frames) {
                    self.check_unowned(me, frame);
                    let history = self.oracle.frame_mut(frame);
                    history.allocated = now;
                    history.allocated_by = by;
                    history.free = false;
                    history.captured = 0;
                    history.dead_table = false;
                }
            }
            Event::FrameZeroed { frame, frames } => {
                self.happen(MachineEvent::Zeroed);
                let dirty = each(frame, frames)
                    .find(|&f| (0..FRAME_WORDS).any(|word| self.content_seen(me, f, word) != 0));
                if let Some(dirty) = dirty {
                    self.fail(breach(
                        Clause::C8,
                        "memory is handed out as zeroed and is not",
                        me,
                        dirty,
                    ));
                }
            }
            Event::FrameFreed { frame, frames } => {
                for frame in each(frame, frames) {
                    let history = self.oracle.frame_mut(frame);
                    history.free = true;
                    history.freed_by = by;
                }
            }
            Event::FrameReinstated { frame } => {
                self.happen(MachineEvent::FrameReinstated);
                self.check_unowned(me, frame.0 as u32);
                let history = self.oracle.frame_mut(frame.0 as u32);
                history.free = false;
                history.allocated_by = by;
            }
            Event::TableAllocated { frame, .. } => {
                let number = frame.0 as u32;
                // The words of tables are stored apart from the content of frames, so no walk shows what is left there.
                if (0..FRAME_WORDS).any(|word| self.content_seen(me, number, word) != 0) {
                    let account = "a page table is made in memory that is not zero";
                    self.fail(
                        Violation::new(Clause::C8, account).by(CpuId(me as u16)).in_frame(frame),
                    );
                }
                let history = self.oracle.frame_mut(number);
                history.captured = 0;
                history.dead_table = false;
                history.free = false;
                history.allocated = now;
                history.allocated_by = by;
            }
            Event::TableFreed { frame } => {
                self.happen(MachineEvent::TableFreed);
                let history = self.oracle.frame_mut(frame.0 as u32);
                history.dead_table = true;
                history.freed_by = by;
                self.check_tables();
            }
            Event::Captured { frame, frames } => {
                self.happen(MachineEvent::Captured);
                for frame in each(frame, frames) {
                    let history = self.oracle.frame_mut(frame);
                    history.captured = now;
                    history.captured_by = by;
                }
            }
            Event::ReturnedUnmap { root, range } => {
                self.returned(now, by, root, range, [false; 3]);
            }
            Event::ReturnedProtect { root, range, readable, writable, executable } => {
                self.returned(now, by, root, range, [readable, writable, executable])
            }
            Event::SpaceRetired { root } => {
                self.happen(MachineEvent::SpaceRetired);
                let history = self.oracle.frame_mut(root.0 as u32);
                history.dead_table = true;
                history.freed_by = by;
                self.check_tables();
            }
        }
        self.judge_programs();
    }

    /// Checks that a frame that is about to get an owner has none.
    fn check_unowned(&mut self, me: usize, frame: u32) {
        let history = *self.oracle.frame(frame);
        if !history.free {
            self.fail(
                breach(Clause::C1, "a frame that has an owner gets another one", me, frame)
                    .after(CpuId(history.allocated_by.into())),
            );
        }
    }

    fn returned(
        &mut self,
        at: u32,
        by: u8,
        root: Frame,
        range: PageRange,
        [readable, writable, executable]: [bool; 3],
    ) {
        self.happen(MachineEvent::CallReturned);
        let began = self.call_began(usize::from(by));
        self.oracle.returned(RevokedRight {
            began,
            root: root.0 as u32,
            start: range.start.0,
            end: range.end().0,
            at,
            by,
            readable,
            writable,
            executable,
        });
    }
}

/// Returns the tag that an invalidation names.
fn named(what: Invalidation) -> Option<u16> {
    match what {
        Invalidation::Range { tag, .. } | Invalidation::Tag(tag) => Some(tag.0),
        Invalidation::All | Invalidation::Kernel { .. } | Invalidation::Everything => None,
    }
}

impl Core {
    fn misuse(&mut self, me: usize, account: impl Into<String>) {
        self.fail(Violation::new(Clause::Misuse, account).by(CpuId(me as u16)));
    }

    /// Checks that the machine has broadcasts.
    pub(super) fn check_broadcast(&mut self, me: usize) {
        if !self.features.broadcast {
            self.misuse(me, "broadcasts an invalidation on a machine without broadcasts");
        }
    }

    /// Checks break before make ([`breaks`](crate::mmu)): no entry is made while a TLB that may fill it holds one that
    /// contradicts it. Called after this CPU has changed a table or loaded a root.
    #[inline]
    pub(super) fn check_breaks(&mut self, me: usize) {
        while let Some(meeting) = self.mmu.take_meeting() {
            self.judge_meeting(me, &meeting);
        }
    }

    #[cold]
    fn judge_meeting(&mut self, me: usize, meeting: &EntryConflict) {
        let holder = meeting.cpu;
        // Leftovers of an earlier space with that root are covered by C5.
        let of_another = self.oracle.frame(meeting.root()).allocated > meeting.old_written;
        let same = |(old, new, frames): (u32, u32, u64)| {
            let content = |first: u32, at| self.content.get(first as usize + at);
            (0..frames as usize).all(|at| content(old, at) == content(new, at))
        };
        if !self.cpus[holder].online || of_another || meeting.of_equals().is_some_and(same) {
            return;
        }
        self.fail(
            breach(Clause::Misuse, meeting.to_string(), me, meeting.frame())
                .after(CpuId(holder as u16))
                .through(Page(meeting.page()).address()),
        );
    }

    /// Checks an invalidation: its tag must exist. Its range must have whole strides, at least one, and begin where an
    /// entry of that size can.
    pub(super) fn check_invalidation(&mut self, me: usize, what: Invalidation) {
        if let Some(tag) = named(what).filter(|&tag| !self.has_tag(tag)) {
            self.misuse(me, format!("invalidates tag {tag}, which does not exist"));
        }
        if let Invalidation::Range { range, .. } | Invalidation::Kernel { range, .. } = what {
            let stride = range.stride.pages();
            let whole = range.start.0.is_multiple_of(stride) && range.pages.is_multiple_of(stride);
            if range.pages == 0 || !whole {
                let (pages, start) = (range.pages, range.start.0);
                self.misuse(
                    me,
                    format!("invalidates {pages} pages from {start:#x} in strides of {stride}"),
                );
            }
        }
    }

    /// Checks that an invalidation of one CPU alone names the tag under which that CPU has its root loaded. An
    /// instruction that takes an address but no tag reaches no other tag.
    pub(super) fn check_own_tag(&mut self, me: usize, what: Invalidation) {
        if self.features.tagging == Tagging::None {
            return;
        }
        // After a CPU has left its root, nothing is loaded.
        let loaded = self.mmu.root(me).map_or(Tag::KERNEL.0, |_| self.mmu.tag(me));
        if let Some(tag) = named(what).filter(|&tag| tag != loaded) {
            self.misuse(me, format!("invalidates tag {tag} while tag {loaded} is loaded"));
        }
    }

    fn has_tag(&self, tag: u16) -> bool {
        match self.features.tagging {
            Tagging::None => true,
            Tagging::PerCpu { count } => tag <= count,
            Tagging::Global { bits } => u32::from(tag) < 1 << bits,
        }
    }

    /// Checks that a CPU that loads a root is online and uses an existing tag.
    pub(super) fn check_root(&mut self, me: usize, tag: u16) {
        if !self.cpus[me].online {
            self.misuse(me, "loads a root while it is offline");
        }
        if !self.has_tag(tag) {
            self.misuse(me, format!("loads a root under tag {tag}, which does not exist"));
        }
    }

    /// Checks that interrupts are sent to other CPUs that exist. Returns these CPUs as bits.
    pub(crate) fn check_targets(&mut self, me: usize, first: u16, targets: &CpuSet) -> u8 {
        let mut set = 0;
        for target in targets.iter() {
            let Some(target) = target.index().checked_sub(first.into()) else {
                self.misuse(me, format!("interrupts CPU {}, which is offline", target.0));
                continue;
            };
            if target == me {
                self.misuse(me, "interrupts itself");
            } else if target >= self.count {
                self.misuse(me, format!("interrupts CPU {target}, which does not exist"));
            } else {
                set |= 1 << target;
            }
        }
        set
    }

    /// Checks that a program runs on a CPU that is online, with interrupts on or in an NMI handler.
    pub(super) fn check_user(&mut self, me: usize) -> bool {
        let cpu = &self.cpus[me];
        let (online, interruptible) = (cpu.online, cpu.interrupts_on || cpu.in_nmi);
        if !online {
            self.misuse(me, "user memory is accessed while the CPU is offline");
        } else if !interruptible {
            self.misuse(me, "a program runs with interrupts off");
        }
        online && interruptible
    }

    /// Checks that the kernel uses its own half only on CPUs that are online.
    pub(super) fn check_kernel(&mut self, me: usize) -> bool {
        let online = self.cpus[me].online;
        if !online {
            self.misuse(me, "the kernel's half is accessed while the CPU is offline");
        }
        online
    }

    /// Checks that a CPU that sleeps until an interrupt can take interrupts.
    pub(crate) fn check_sleep(&mut self, me: usize) {
        if !self.cpus[me].interrupts_on {
            self.misuse(me, "sleeps with interrupts off");
        }
    }

    /// Checks that a handler returns with interrupts off, as it was entered.
    pub(super) fn check_handler(&mut self, me: usize) {
        if self.cpus[me].interrupts_on {
            self.misuse(me, "the handler has turned interrupts on");
        }
    }

    /// Checks that a CPU is brought online and taken offline alternately.
    pub(super) fn check_presence(&mut self, me: usize, comes: bool) {
        if self.cpus[me].online == comes {
            let what = if comes { "comes online" } else { "goes offline" };
            self.misuse(me, format!("{what} twice"));
        }
    }

    /// Checks that a program ends with interrupts on, unless its CPU is offline.
    pub(crate) fn check_end(&mut self, me: usize) {
        if self.cpus[me].online && !self.cpus[me].interrupts_on {
            self.misuse(me, "the program has ended with interrupts off");
        }
    }
}

//! Reports invalid requests to the machine, which no clause covers.
//!
//! The interface ([`Hardware`](quell::Hardware)) defines the valid requests of engine and embedder. Real machines
//! respond to an invalid one with an exception, with nothing at all, or with a fault somewhere else much later. Here
//! the judge reports it as [`Clause::Misuse`].

use super::Core;
use crate::mmu::EntryConflict;
use quell::{CpuId, CpuSet, Frame, Invalidation, Page, Tag, Tagging};
use quell_vm::contract::{Clause, Violation};

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
            Violation::new(Clause::Misuse, meeting.to_string())
                .by(CpuId(me as u16))
                .after(CpuId(holder as u16))
                .in_frame(Frame(meeting.frame().into()))
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

//! CPUs that run spaces, idle in them and access memory; spaces that end and begin again.
//!
//! An undisturbed program loads, stores and fetches, and signals others or waits for them. For everything else the CPU
//! enters the kernel first: an operation, an interrupt, a thread that preempts the program, an NMI. Afterwards the
//! program continues undisturbed. While a CPU enters or leaves, it uses none of the kernel's mappings. An NMI may arrive
//! meanwhile: its handler also enters the kernel, and leaves the CPU in that state. So a CPU's kernel half is judged only
//! if the CPU is certainly in the kernel. Once it has entered, everything that its TLB holds of that half must match the
//! tables.

use super::state::{
    ALIVE, GONE, Kernel, LIFE_SHIFT, LIVES, Mode, ONE_USER, OwnedFrame, Space, USERS, is_table,
    life_of, pages_of, peek,
};
use crate::action::MAX_CPUS;
use crate::action::{AccessKind, Op};
use crate::coverage::MachineEvent;
use crate::generated::program::PAGES;
use crate::machine::AccessOutcome;
use crate::{context, tables};
use quell::{Frame, Hardware, Word};
use quell_vm::contract::Clause;
use quell_vm::machine::{Event, Level, Machine};
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

impl Kernel<'_> {
    pub(super) fn join(&self, slot: usize) -> Option<usize> {
        if slot >= usize::from(self.shape.spaces) {
            return None;
        }
        let word = &self.lives[slot];
        let mut held = word.load(Relaxed);
        loop {
            if held & ALIVE == 0 {
                return None;
            }
            match word.compare_exchange(held, held + ONE_USER, AcqRel, Relaxed) {
                Ok(_) => return Some(life_of(held)),
                Err(now) => held = now,
            }
        }
    }

    pub(super) fn quit(&self, slot: usize) {
        self.lives[slot].fetch_add(0u64.wrapping_sub(ONE_USER), Release);
    }

    /// Brings this CPU online, for the first time or again.
    pub(super) fn come_online(&self) {
        self.hw.online();
        self.engine.cpu_online();
        // While it was offline, no CPU notified it of changed text.
        if self.layout.own {
            self.hw.synchronize_text();
        }
    }

    pub(super) fn loaded(&self) -> Option<&Space> {
        let (slot, life) = self.here().loaded?;
        Some(&self.spaces[usize::from(slot)][usize::from(life)])
    }

    pub(super) fn switch(&self, slot: usize) {
        let before = self.here();
        if before.runs && before.loaded.is_some_and(|(at, _)| usize::from(at) == slot) {
            return;
        }
        // A thread that preempts us now would load another space.
        self.update(|here| here.pinned = true);
        let Some(life) = self.join(slot) else {
            return self.update(|here| here.pinned = false);
        };
        // The old space has had its last access, so it may end while its root is still loaded.
        if let (true, Some((old, _))) = (before.runs, before.loaded) {
            self.quit(old.into());
        }
        self.engine.this_cpu().mask_interrupts().switch(self.loaded(), &self.spaces[slot][life]);
        self.update(|here| {
            here.loaded = Some((slot as u8, life as u8));
            here.runs = true;
            here.pinned = false;
        });
    }

    pub(super) fn idle(&self) {
        let here = self.here();
        if let (true, Some((slot, _))) = (here.runs, here.loaded) {
            self.update(|here| here.pinned = true);
            self.engine.this_cpu().enter_lazy();
            self.update(|here| (here.runs, here.pinned) = (false, false));
            self.quit(slot.into());
        }
    }

    /// Leaves the root for a long idle time, from a program or from a shorter sleep.
    pub(super) fn leave_root(&self) {
        let here = self.here();
        let Some(space) = self.loaded() else { return };
        self.update(|here| here.pinned = true);
        self.engine.this_cpu().leave(space);
        self.update(|here| (here.runs, here.pinned) = (false, false));
        if let (true, Some((slot, _))) = (here.runs, here.loaded) {
            self.quit(slot.into());
        }
    }

    /// Continues in the space that this CPU has kept, if it hasn't ended.
    pub(super) fn resume(&self) {
        let here = self.here();
        let Some((slot, life)) = here.loaded.filter(|_| !here.runs) else { return };
        let slot = usize::from(slot);
        self.update(|here| here.pinned = true);
        if let Some(now) = self.join(slot) {
            let runs =
                now == usize::from(life) && self.engine.this_cpu().resume(&self.spaces[slot][now]);
            self.update(|here| here.runs = runs);
            if !runs {
                self.quit(slot);
            }
        }
        self.update(|here| here.pinned = false);
    }

    /// Returns the space whose program runs on a CPU.
    pub(super) fn program_of(&self, cpu: usize) -> Option<usize> {
        let there = self.current[cpu].get();
        // Programs run with interrupts on.
        let slot = there.loaded.filter(|_| there.runs && !there.masked);
        slot.map(|(slot, _)| slot.into())
    }

    /// Records that the CPU is back in its program, if it runs one. Also judges the kernel's possible accesses to its
    /// own half.
    pub(super) fn back_in_program(&self) {
        let me = self.me();
        if self.layout.own && !self.here().offline && self.here().mode == Mode::Kernel {
            context::with(|core| core.judge_kernel(me));
        }
        if self.program_of(me).is_some() {
            context::with(|core| core.enter_program(me));
        }
    }

    /// Checks that stale translations of files give programs the present content of the files.
    pub(super) fn compare_all(&self) {
        for cpu in 0..MAX_CPUS {
            let Some(slot) = self.program_of(cpu) else { continue };
            if !context::with(|core| core.in_program(cpu)) {
                continue;
            }
            for reach in context::with(|core| core.reaches(cpu, true)) {
                let frame = reach.frame.0 as u32;
                context::as_cpu(cpu, || self.compare(slot, reach.page, frame, reach.held[0]));
            }
        }
    }

    pub(super) fn access(&self, page: u64, kind: AccessKind, value: u64) {
        let me = self.me();
        if self.program_of(me).is_none() {
            return;
        }
        let loud = context::point(Op::Access(kind));
        // A thread that preempted this CPU may have left another space loaded.
        let Some(slot) = self.program_of(me) else { return };
        let accessed = context::with(|core| {
            let accessed = core.access(me, page, 0, (kind, value));
            if !loud {
                core.drain_all(me);
            }
            accessed
        });
        if let AccessOutcome::Value { held, stale: Some(frame) } = accessed
            && kind != AccessKind::Store
        {
            self.compare(slot, page, frame, held);
        }
    }

    /// Checks the result of a load or fetch through a stale translation. If the page belongs to a file, it must be the
    /// file's present content.
    fn compare(&self, slot: usize, page: u64, frame: u32, held: u64) {
        let Some(file) = Self::file_at(page).filter(|&file| self.shape.maps(slot, file)) else {
            return;
        };
        // The frame belongs to a large page that was mapped here, not to a file.
        if u64::from(frame) >= self.layout.block(0).0 {
            return;
        }
        let truth = match peek(&self.slots[file]) {
            0 => peek(&self.disks[file]),
            frame => context::with(|core| core.content(frame as u32, 0)),
        };
        self.hw.happen(MachineEvent::Compared);
        if truth != held {
            let account = format!(
                "a load through a translation left behind returned {held:#x}, the file says {truth:#x}"
            );
            self.hw.fail(Clause::C4, Some(Frame(frame.into())), account);
        }
    }

    pub(super) fn retire(&self, slot: usize) {
        if slot >= usize::from(self.shape.spaces) {
            return;
        }
        let word = &self.lives[slot];
        let held = word.load(Relaxed);
        let dying = held & !ALIVE;
        if held & ALIVE == 0
            || held & USERS != 0
            || word.compare_exchange(held, dying, AcqRel, Relaxed).is_err()
        {
            return;
        }
        self.lock_word(&self.locks[slot]);
        let space = &self.spaces[slot][life_of(held)];
        self.engine.retire(space);
        let root = self.layout.root(slot);
        self.hw.note(Event::SpaceRetired { root });
        // No walker uses this root any more. Before the tables or frames are used again, we also clear its entries, and
        // make walkers see that.
        let mut freed = [None; PAGES.len() + 3];
        let mut free = |what: OwnedFrame| {
            if let Some(place) = freed.iter_mut().find(|place| place.is_none()) {
                *place = Some(what);
            }
        };
        for window in 0..2 {
            for page in pages_of(window) {
                let Some(entry) = self.entry(slot, page) else { continue };
                let old = entry.swap(0, AcqRel);
                if old & tables::PRESENT != 0 && Self::file_at(page).is_none() {
                    free(OwnedFrame::Single(Frame(old >> 12)));
                }
            }
            match self.window_entry(slot, window).swap(0, AcqRel) {
                old if old & tables::PRESENT == 0 => {}
                old if is_table(old) => free(OwnedFrame::Table(Frame(old >> 12))),
                old => free(OwnedFrame::Block(Frame(old >> 12))),
            }
        }
        let old = self.huge_entry(slot).swap(0, AcqRel);
        if old & tables::PRESENT != 0 {
            free(OwnedFrame::Block(Frame(old >> 12)));
        }
        self.hw.fence();
        for what in freed.into_iter().flatten() {
            self.release(what);
        }
        word.store(dying | GONE, Release);
        self.unlock(slot);
    }

    pub(super) fn revive(&self, slot: usize) {
        if slot >= usize::from(self.shape.spaces) {
            return;
        }
        self.lock_word(&self.locks[slot]);
        let held = self.lives[slot].load(Relaxed);
        let life = life_of(held) + 1;
        if held & GONE != 0 && life < LIVES {
            for frame in [self.layout.root(slot), self.layout.middle(slot)] {
                let level = Level::LARGE;
                self.hw.note(Event::TableAllocated { frame, level });
            }
            self.lives[slot].store((life as u64) << LIFE_SHIFT | ALIVE, Release);
        }
        self.unlock(slot);
    }

    /// Returns the CPU to its program, if it runs one. The program is undisturbed from now on.
    pub(super) fn enter_user(&self) {
        let here = self.here();
        if self.program_of(self.me()).is_none() || here.preempts || here.mode != Mode::Kernel {
            return;
        }
        let were_on = self.hw.mask_interrupts();
        self.leave_kernel();
        self.hw.restore_interrupts(were_on);
    }

    /// Returns to an undisturbed program, with interrupts masked or from an NMI handler.
    pub(super) fn leave_kernel(&self) {
        self.update(|here| here.mode = Mode::Crossing);
        // SAFETY: until `enter_kernel`, this kernel uses no page of its own half, and NMI handlers call that first.
        unsafe { self.engine.this_cpu().enter_user() };
        self.update(|here| here.mode = Mode::Undisturbed);
    }

    /// Enters the kernel. Returns whether an undisturbed program was interrupted. If so, the caller continues it with
    /// [`enter_user`](Self::enter_user).
    pub(super) fn enter_kernel(&self) -> bool {
        if self.here().mode == Mode::Kernel {
            return false;
        }
        let were_on = self.hw.mask_interrupts();
        let was = self.cross();
        self.hw.restore_interrupts(were_on);
        was == Mode::Undisturbed
    }

    /// Enters the kernel from an NMI handler, which may have interrupted an entry.
    pub(super) fn enter_kernel_from_nmi(&self) -> bool {
        self.here().mode != Mode::Kernel && self.cross() == Mode::Undisturbed
    }

    fn cross(&self) -> Mode {
        let was = self.here().mode;
        self.update(|here| here.mode = Mode::Crossing);
        self.engine.this_cpu().enter_kernel();
        let me = self.me();
        if self.layout.own {
            context::with(|core| core.judge_kernel(me));
        }
        let now = match was {
            Mode::Undisturbed => Mode::Kernel,
            was => was,
        };
        self.update(|here| here.mode = now);
        was
    }
}

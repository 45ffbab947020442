//! The events that the kernel under test reports to the judge: for example, new owners of frames, freed frames and
//! returns of calls.

use super::Core;
use crate::cell::FRAME_WORDS;
use crate::coverage::MachineEvent;
use crate::oracle::RevokedRight;
use quell::{CpuId, Frame, PageRange};
use quell_vm::contract::{Clause, Violation};
use quell_vm::machine::Event;

impl Core {
    /// Records an event.
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
                    self.fail(
                        Violation::new(Clause::C8, "memory is handed out as zeroed and is not")
                            .by(CpuId(me as u16))
                            .in_frame(Frame(dirty.into())),
                    );
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
                Violation::new(Clause::C1, "a frame that has an owner gets another one")
                    .by(CpuId(me as u16))
                    .after(CpuId(history.allocated_by.into()))
                    .in_frame(Frame(frame.into())),
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

//! The effect of each operation of a program, and of interruptions.

use super::batches::{BatchTable, RightRemoval, purpose_of};
use super::state::{LIVES, peek};
use crate::action::{AccessKind, Op};
use crate::context;
use crate::coverage::MachineEvent;
use crate::generated::program::{EngineOp, OWN_PAGES};
use quell::{Frame, Hardware, Page, PageRange, Word};
use std::sync::atomic::Ordering::{Acquire, Release};

impl<'k, 'm> BatchTable<'k, 'm> {
    pub(super) fn perform(&self, op: EngineOp) {
        let kernel = self.kernel;
        kernel.hw.say(|| format!("{op:?}"));
        let here = kernel.here();
        // An offline CPU still signals and waits. Otherwise others would wait for it for ever.
        let there = matches!(op, EngineOp::Online | EngineOp::Tell { .. } | EngineOp::Wait { .. });
        if here.offline && !there || here.preempts && !op.may_preempt() {
            return;
        }
        if !op.is_the_programs() {
            kernel.enter_kernel();
        }
        match op {
            EngineOp::Switch { space } => kernel.switch(space.into()),
            EngineOp::Lazy => kernel.idle(),
            EngineOp::Leave => kernel.leave_root(),
            EngineOp::Resume => kernel.resume(),
            EngineOp::Undisturbed => kernel.enter_user(),
            EngineOp::Read { page } => kernel.access(page, AccessKind::Load, 0),
            EngineOp::Fetch { page } => kernel.access(page, AccessKind::Fetch, 0),
            EngineOp::Write { page } => {
                kernel.access(page, AccessKind::Store, self.next_value(8));
            }
            EngineOp::Map { space, page, write } => kernel.map(space.into(), page, write),
            EngineOp::MapFile { space, file, write } => {
                kernel.map_file(space.into(), file.into(), write);
            }
            EngineOp::MapBlock { space, page } => kernel.map_contiguous(space.into(), page),
            EngineOp::MapLarge { space, window } => {
                let slot = usize::from(space);
                kernel.map_large(slot, |k| k.window_entry(slot, window.into()));
            }
            EngineOp::MapHuge { space } => {
                let slot = usize::from(space);
                kernel.map_large(slot, |k| k.huge_entry(slot));
            }
            EngineOp::Open { batch, purpose } => self.open(batch, purpose),
            EngineOp::Unmap { batch, space, page, pages, report } => {
                self.with_open(batch, page << 8 | pages << 40 | u64::from(space), |open| {
                    self.unmap(open, space.into(), page, pages, report);
                })
            }
            EngineOp::Sweep { batch, page } => self.sweep(batch, page),
            EngineOp::Protect { batch, space, page, pages, capture, right } => {
                self.with_open(batch, page << 8 | pages << 40 | u64::from(space), |open| {
                    let takes = RightRemoval { right, capture };
                    self.protect(open, space.into(), PageRange::base(Page(page), pages), takes);
                })
            }
            EngineOp::Unlink { batch, space, window } => {
                self.with_open(batch, u64::from(window) << 8 | u64::from(space), |open| {
                    self.unlink(open, space.into(), window.into());
                })
            }
            EngineOp::UnmapAtOnce { space, page, whole } => {
                kernel.unmap_at_once(space.into(), page, whole);
            }
            EngineOp::UnmapCoalesced { space, page } => kernel.unmap_coalesced(space.into(), page),
            EngineOp::UnlinkAtOnce { space, window, whole } => {
                kernel.unlink_at_once(space.into(), window.into(), whole)
            }
            EngineOp::Finish { batch } => self.finish(batch),
            EngineOp::Start { batch } => self.start(batch),
            EngineOp::Forget { batch } => self.forget(batch),
            EngineOp::MapOwn { own } => kernel.map_own(own.into()),
            EngineOp::ReadOwn { own } => kernel.access_own(own.into(), AccessKind::Load),
            EngineOp::RunOwn { own } => kernel.access_own(own.into(), AccessKind::Fetch),
            EngineOp::UnmapOwn { own, purpose } => {
                kernel.unmap_own(own.into(), purpose_of(purpose))
            }
            // Before the run, some CPUs aren't online yet.
            EngineOp::UnlinkOwn if self.begun.get() => kernel.unlink_own(),
            EngineOp::UnlinkOwn => {}
            EngineOp::UnmapOwnLazily { own } => kernel.unmap_own_lazily(own.into()),
            EngineOp::ReuseOwn { own } => kernel.reuse_own(own.into()),
            EngineOp::Patch { own } => kernel.patch(own.into()),
            EngineOp::Confirm { space, page, pages } => kernel.confirm(space.into(), page, pages),
            EngineOp::Unprotect { space, page, right } => {
                kernel.unprotect(space.into(), page, right);
            }
            EngineOp::Move { space, page, to } => kernel.move_page(space.into(), page, to),
            EngineOp::Migrate { space, page } => kernel.migrate(space.into(), page),
            EngineOp::Withdraw { space, page } => kernel.withdraw(space.into(), page),
            EngineOp::Split { space, window } => kernel.split(space.into(), window.into()),
            EngineOp::Collapse { space, window } => kernel.collapse(space.into(), window.into()),
            EngineOp::Reclaim { file } => kernel.reclaim(file.into()),
            EngineOp::ReclaimLazily { files } => kernel.reclaim_lazily(files, None),
            EngineOp::ReclaimWithOwn { files, own } => kernel.reclaim_with_own(files, own.into()),
            EngineOp::Reuse { file } => {
                if let frame @ 1.. = peek(&kernel.shadows[usize::from(file)]) {
                    kernel.reuse_frame(Frame(frame), None);
                }
            }
            EngineOp::Reinstate { file } => kernel.reinstate(file.into()),
            EngineOp::WriteFile { file } => kernel.write_file(file.into(), self.next_value(12)),
            EngineOp::Pay => kernel.engine.flush_deferred(),
            EngineOp::CatchUp => kernel.engine.this_cpu().catch_up(),
            EngineOp::Offline => self.offline(),
            EngineOp::Online => self.online(),
            EngineOp::Retire { space } => kernel.retire(space.into()),
            EngineOp::Revive { space } => kernel.revive(space.into()),
            EngineOp::Mask { on } => self.mask(on),
            EngineOp::Tell { flag } => self.tell(flag),
            EngineOp::Wait { flag } => self.wait(flag),
        }
    }

    /// Returns the CPU's next value to store: the CPU's number shifted by `bits`, and its count of stores.
    fn next_value(&self, bits: u32) -> u64 {
        let kernel = self.kernel;
        kernel.update(|here| here.stores = here.stores.wrapping_add(1));
        (kernel.me() as u64 + 1) << bits | u64::from(kernel.here().stores)
    }

    fn online(&self) {
        let kernel = self.kernel;
        if kernel.here().offline {
            kernel.come_online();
            kernel.hw.restore_interrupts(true);
            kernel.update(|here| here.offline = false);
        }
    }

    fn mask(&self, on: bool) {
        let kernel = self.kernel;
        if on {
            kernel.hw.mask_interrupts();
        } else {
            kernel.hw.restore_interrupts(true);
        }
        kernel.update(|here| here.masked = on);
    }

    fn tell(&self, flag: u8) {
        if self.begun.get() {
            let kernel = self.kernel;
            kernel.told[usize::from(flag)].store(1, Release);
            kernel.update(|here| here.flag = here.flag.max(flag));
        }
    }

    fn offline(&self) {
        let kernel = self.kernel;
        let here = kernel.here();
        kernel.hw.happen(MachineEvent::Offline);
        kernel.update(|here| here.pinned = true);
        kernel.hw.mask_interrupts();
        // A kernel that forgets the space of an evicted CPU doesn't name it.
        let current = kernel.loaded().filter(|_| !kernel.engine.this_cpu().is_detached());
        kernel.engine.cpu_offline(current);
        kernel.hw.offline();
        kernel.update(|here| {
            here.offline = true;
            here.masked = false;
            here.pinned = false;
            here.loaded = None;
            here.runs = false;
        });
        if let (true, Some((slot, _))) = (here.runs, here.loaded) {
            kernel.quit(slot.into());
        }
    }

    fn wait(&self, flag: u8) {
        let kernel = self.kernel;
        let here = kernel.here();
        if !self.begun.get() || !kernel.flags.counts(kernel.me(), flag, here.flag) {
            return;
        }
        kernel.update(|here| here.flag = flag);
        while kernel.told[usize::from(flag)].load(Acquire) == 0 {
            if here.masked {
                kernel.engine.this_cpu().poll();
            }
            kernel.hw.relax();
        }
    }

    pub(super) fn run(&self, ops: &[EngineOp]) {
        for &op in ops {
            self.perform(op);
            context::come_further();
            if self.begun.get() {
                self.kernel.back_in_program();
                self.kernel.compare_all();
            }
        }
        if self.kernel.here().masked {
            self.perform(EngineOp::Mask { on: false });
        }
    }
}

impl context::Kernel for BatchTable<'_, '_> {
    fn interrupt(&self) {
        self.interrupting(|| {
            self.in_kernel(|| self.kernel.engine.this_cpu().mask_interrupts().on_interrupt())
        });
    }

    /// Runs another thread here for a while. The loaded space can't end meanwhile. It is loaded again afterwards,
    /// unless the preempted thread detects the change itself ([`Shape::leaves_space`]).
    ///
    /// [`Shape::leaves_space`]: crate::generated::program::Shape::leaves_space
    fn preempt(&self) {
        self.interrupting(|| self.in_kernel(|| self.preempted()));
    }

    fn nmi(&self) {
        self.interrupting(|| {
            let undisturbed = self.kernel.enter_kernel_from_nmi();
            self.nmi_handler();
            if undisturbed {
                self.kernel.leave_kernel();
            }
        });
    }

    fn kept(&self, cpu: usize) -> u64 {
        let here = self.kernel.current[cpu].get();
        let bits = [here.runs, here.offline, here.masked, here.pinned, here.preempts];
        let loaded = here
            .loaded
            .map_or(0, |(slot, life)| 1 + u64::from(slot) * LIVES as u64 + u64::from(life));
        let bits = bits.into_iter().fold(loaded, |sum, bit| sum << 1 | u64::from(bit));
        let bits = bits << 2 | here.mode as u64;
        (bits << 16 | u64::from(here.flag) << 8 | u64::from(here.stores)) ^ self.kernel.own.kept()
    }
}

impl BatchTable<'_, '_> {
    /// Interrupts the current code with other code, and resumes it.
    fn interrupting(&self, body: impl FnOnce()) {
        let me = self.kernel.me();
        let was = context::with(|core| core.leave_program(me));
        body();
        if was {
            self.kernel.back_in_program();
        }
    }

    /// Runs a handler in the kernel. If it interrupted an undisturbed program, this continues undisturbed.
    fn in_kernel(&self, handler: impl FnOnce()) {
        let undisturbed = self.kernel.enter_kernel();
        handler();
        if undisturbed {
            self.kernel.enter_user();
        }
    }

    fn preempted(&self) {
        let kernel = self.kernel;
        let before = kernel.here();
        if before.offline || before.pinned || before.preempts {
            return;
        }
        let space = before.loaded.filter(|_| before.runs).map(|(slot, _)| usize::from(slot));
        if let Some(slot) = space
            && kernel.join(slot).is_none()
        {
            return;
        }
        kernel.update(|here| here.preempts = true);
        for &op in &self.lanes[kernel.me()].preempts {
            self.perform(op);
        }
        let restores = !kernel.shape.leaves_space;
        match space {
            Some(slot) => {
                if restores {
                    kernel.switch(slot);
                }
                kernel.quit(slot);
            }
            None if restores => kernel.idle(),
            None => {}
        }
        kernel.update(|here| here.preempts = false);
    }

    fn nmi_handler(&self) {
        let here = self.kernel.here();
        if self.kernel.layout.own && !here.offline && !here.pinned {
            // An NMI handler reads the kernel's half without any check.
            let own = self.kernel.shape.nmi_page as usize % OWN_PAGES;
            self.kernel.access_own(own, AccessKind::Load);
        }
        if self.kernel.engine.this_cpu().user_access_allowed() {
            let me = self.kernel.me();
            context::point(Op::Access(AccessKind::Load));
            let load = (AccessKind::Load, 0);
            context::with(|core| {
                core.access(me, self.kernel.shape.nmi_page, 0, load);
                core.judge_handler(me);
            });
        } else {
            self.kernel.hw.happen(MachineEvent::NmiRefused);
        }
    }
}

//! The phrases of programs over the engine: a few operations on one page of one space. [`Swarm`] limits the
//! operations.

use super::engine::Kind;
use super::engine::{Swarm, allow};
use crate::generated::program::{
    BatchPurpose, EngineOp, FILES, FLAGS, HUGE, ReportMode, Right, WINDOW,
};
use crate::schedule::Rng;

/// The subject of a phrase, and its destination.
struct Phrase<'p> {
    swarm: &'p Swarm,
    space: u8,
    page: u64,
    file: u8,
    batch: u8,
    /// The number of the page's leaf table.
    window: u8,
    into: &'p mut Vec<EngineOp>,
}

impl Swarm {
    /// Draws a phrase.
    pub(super) fn phrase(&self, rng: &mut Rng, into: &mut Vec<EngineOp>) {
        let space = self.space(rng);
        let page = self.page(rng);
        let file = rng.pick(&self.files);
        let batch = rng.within(&self.batches) as u8;
        let phrase = Phrase {
            swarm: self,
            space,
            page,
            file,
            batch,
            window: u8::from(page / WINDOW == 1),
            into,
        };
        phrase.of_kind(rng.weigh(&self.kinds), rng);
    }
}

impl Phrase<'_> {
    fn of_kind(mut self, kind: Kind, rng: &mut Rng) {
        let (space, page, file, window) = (self.space, self.page, self.file, self.window);
        match kind {
            Kind::Read => self.put(EngineOp::Read { page }),
            Kind::Write => self.put(EngineOp::Write { page }),
            Kind::Map => {
                let write = rng.below(3) > 0;
                self.put(EngineOp::Map { space, page, write });
            }
            Kind::MapFile => {
                let write = rng.one_in(3);
                self.put(EngineOp::MapFile { space, file, write });
            }
            Kind::MapLarge if page >= HUGE => self.put(EngineOp::MapHuge { space }),
            Kind::MapLarge => self.put(EngineOp::MapLarge { space, window }),
            Kind::Block if rng.one_in(3) => self.put(EngineOp::MapBlock { space, page }),
            Kind::Block => self.break_block(rng),
            Kind::Unmap | Kind::Protect | Kind::Reclaim | Kind::Mixed => self.change(kind, rng),
            Kind::Sweep => self.sweep(rng),
            Kind::Unlink => self.unlink(rng),
            Kind::Confirm => self.confirm(rng),
            Kind::Unprotect => {
                let right = Right::Write;
                self.put(EngineOp::Unprotect { space, page, right });
            }
            Kind::Code => self.code(rng),
            Kind::Move => {
                let to = self.swarm.page(rng);
                self.put(EngineOp::Move { space, page, to });
            }
            Kind::Migrate => self.put(EngineOp::Migrate { space, page }),
            Kind::Withdraw => self.put(EngineOp::Withdraw { space, page }),
            Kind::Split => self.put(EngineOp::Split { space, window }),
            Kind::Collapse => self.put(EngineOp::Collapse { space, window }),
            Kind::Switch => self.put(EngineOp::Switch { space }),
            Kind::Idle => self.idle(rng),
            Kind::Tour => self.tour(rng),
            Kind::FileReclaim => self.put(EngineOp::Reclaim { file }),
            Kind::Lazily => self.reclaim_lazily(rng),
            Kind::Reuse => self.put(EngineOp::Reuse { file }),
            Kind::Reinstate => self.put(EngineOp::Reinstate { file }),
            Kind::WriteFile => self.put(EngineOp::WriteFile { file }),
            Kind::Pay => self.put(EngineOp::Pay),
            Kind::CatchUp => self.put(EngineOp::CatchUp),
            Kind::Hotplug => self.leave(rng),
            Kind::Retire => self.retire(rng),
            Kind::Mask => self.flush_masked(rng),
            Kind::Own => self.put(self.swarm.use_own(rng)),
            Kind::Undisturbed => self.swarm.run_undisturbed(page, rng, self.into),
            Kind::UnmapOwn | Kind::OwnLazily | Kind::UnlinkOwn | Kind::Patch => {
                self.swarm.change_own(kind, rng, self.into);
            }
            Kind::Start => self.start(rng),
            Kind::Share => self.share(rng),
            Kind::AtOnce => self.flush_at_once(rng),
            Kind::Signal => self.signal(rng),
        }
    }

    fn put(&mut self, op: EngineOp) {
        self.into.push(op);
    }

    fn open(&mut self, purpose: BatchPurpose) {
        let batch = self.batch;
        self.put(EngineOp::Open { batch, purpose });
    }

    fn finish(&mut self) {
        let batch = self.batch;
        self.put(EngineOp::Finish { batch });
    }

    /// Ends the batch. Mostly finishes it, but sometimes forgets it or leaves it open.
    fn end(&mut self, rng: &mut Rng) {
        let batch = self.batch;
        match rng.below(12) {
            0 => self.put(EngineOp::Forget { batch }),
            1 => {}
            _ => self.finish(),
        }
    }

    /// Unmaps a range, or removes the right to write there.
    fn take_away(&mut self, protects: bool, rng: &mut Rng) {
        self.put(self.swarm.change(rng, self.batch, protects));
    }

    /// Frees a table, with the pages that it maps.
    fn free_table(&mut self) {
        let (batch, space, window) = (self.batch, self.space, self.window);
        self.put(EngineOp::Unlink { batch, space, window });
    }

    /// Unmaps the first page of a block, or the whole block.
    fn break_block(&mut self, rng: &mut Rng) {
        let (page, pages) = (self.page & !1, 1 + rng.below(2));
        let report = rng.pick(&[ReportMode::Each, ReportMode::Each, ReportMode::Range]);
        self.open(rng.pick(&[BatchPurpose::Call, BatchPurpose::Reclaim]));
        self.put(EngineOp::Unmap { batch: self.batch, space: self.space, page, pages, report });
        self.end(rng);
    }

    /// Opens a batch that unmaps pages or removes rights.
    fn change(&mut self, kind: Kind, rng: &mut Rng) {
        let mixed = kind == Kind::Mixed;
        self.open(match kind {
            Kind::Reclaim => BatchPurpose::Reclaim,
            Kind::Mixed => {
                rng.pick(&[BatchPurpose::Call, BatchPurpose::Reclaim, BatchPurpose::Migration])
            }
            _ => BatchPurpose::Call,
        });
        for _ in 0..rng.few(if mixed { 4 } else { 2 }) {
            let protects = kind == Kind::Protect || mixed && rng.one_in(3);
            self.take_away(protects, rng);
        }
        self.end(rng);
    }

    /// Unmaps a page in every space. The engine mustn't use the results of one page for another.
    fn sweep(&mut self, rng: &mut Rng) {
        let (batch, page) = (self.batch, self.page);
        self.open(rng.pick(&[BatchPurpose::Call, BatchPurpose::Reclaim]));
        self.put(EngineOp::Sweep { batch, page });
        for _ in 1..rng.few(3) {
            let page = self.swarm.page(rng);
            self.put(EngineOp::Sweep { batch, page });
        }
        self.end(rng);
    }

    fn unlink(&mut self, rng: &mut Rng) {
        self.open(BatchPurpose::Call);
        if rng.one_in(3) {
            self.take_away(false, rng);
        }
        self.free_table();
        self.end(rng);
    }

    /// Relies on the absence of pages that others may have unmapped.
    fn confirm(&mut self, rng: &mut Rng) {
        let space = self.space;
        for _ in 0..rng.few(2) {
            let (page, pages) = self.swarm.range(rng);
            self.put(EngineOp::Confirm { space, page, pages });
        }
    }

    /// Makes a page executable, removes that right, or executes the page.
    fn code(&mut self, rng: &mut Rng) {
        let (space, page) = (self.space, self.page);
        match rng.below(4) {
            0 => self.put(allow(space, page)),
            1 => {
                let (page, pages) = self.swarm.range(rng);
                self.open(BatchPurpose::Call);
                self.put(EngineOp::Protect {
                    batch: self.batch,
                    space,
                    page,
                    pages,
                    capture: false,
                    right: Right::Execute,
                });
                self.end(rng);
            }
            _ => self.put(EngineOp::Fetch { page }),
        }
    }

    /// Becomes idle, and mostly resumes.
    fn idle(&mut self, rng: &mut Rng) {
        let (space, page) = (self.space, self.page);
        self.put(match rng.below(4) {
            0 => EngineOp::Leave,
            _ => EngineOp::Lazy,
        });
        if rng.below(4) > 0 {
            self.put(match rng.below(4) {
                0 => EngineOp::Resume,
                _ => EngineOp::Switch { space },
            });
            self.put(EngineOp::Read { page });
        }
    }

    /// Switches from space to space.
    fn tour(&mut self, rng: &mut Rng) {
        let (page, spaces) = (self.page, self.swarm.spaces);
        let rounds = if self.swarm.goes_round { 1 } else { 4 };
        if spaces > 2 && rng.one_in(rounds) {
            self.go_round(rng);
            return;
        }
        for _ in 0..1 + rng.few(4) {
            let space = rng.below(spaces) as u8;
            self.put(EngineOp::Switch { space });
            if rng.one_in(2) {
                self.put(EngineOp::Read { page });
            }
        }
    }

    /// Loads one space after the other, so that tags run out, mostly twice. Then it may unmap a page there.
    fn go_round(&mut self, rng: &mut Rng) {
        let spaces = self.swarm.spaces;
        let first = rng.below(spaces);
        let count = spaces * (1 + rng.few(2));
        self.into.extend(
            (first..first + count).map(|at| EngineOp::Switch { space: (at % spaces) as u8 }),
        );
        let space = self.swarm.home;
        if rng.one_in(2) {
            self.put(EngineOp::Switch { space });
        }
        if rng.one_in(2) {
            self.space = space;
            self.open(BatchPurpose::Call);
            match rng.one_in(3) {
                true => self.take_away(false, rng),
                false => self.free_table(),
            }
            self.finish();
        }
    }

    /// Reclaims files lazily, and perhaps reuses the frames.
    fn reclaim_lazily(&mut self, rng: &mut Rng) {
        let file = self.file;
        let others = match rng.below(3) {
            0 => rng.below(1 << FILES) as u8,
            _ => 0,
        };
        let files = 1 << file | others;
        if self.swarm.uses_own_half() && rng.one_in(2) {
            let own = rng.pick(&self.swarm.own);
            self.put(EngineOp::ReclaimWithOwn { files, own });
            if rng.one_in(3) {
                self.put(EngineOp::ReuseOwn { own });
            }
        } else {
            self.put(EngineOp::ReclaimLazily { files });
        }
        if rng.one_in(2) {
            self.put(EngineOp::Reuse { file });
        }
    }

    /// Takes the CPU offline, and mostly online again. Most kernels take only idle CPUs offline.
    fn leave(&mut self, rng: &mut Rng) {
        if rng.one_in(2) {
            self.put(EngineOp::Lazy);
        }
        self.put(EngineOp::Offline);
        if rng.below(3) > 0 {
            self.put(EngineOp::Online);
            let space = rng.below(self.swarm.spaces) as u8;
            self.put(EngineOp::Switch { space });
        }
    }

    /// Ends a space. Mostly removes its mappings first, with their tables.
    fn retire(&mut self, rng: &mut Rng) {
        let space = self.space;
        self.put(EngineOp::Lazy);
        if rng.below(3) > 0 {
            self.open(BatchPurpose::Call);
            self.free_table();
            self.finish();
        }
        self.put(EngineOp::Retire { space });
        if rng.one_in(2) {
            self.put(EngineOp::Revive { space });
            self.put(EngineOp::Switch { space });
        }
    }

    /// Flushes with interrupts off, like a kernel that flushes under a lock that interrupt handlers take.
    fn flush_masked(&mut self, rng: &mut Rng) {
        self.put(EngineOp::Mask { on: true });
        self.open(BatchPurpose::Call);
        self.take_away(false, rng);
        self.finish();
        self.put(EngineOp::Mask { on: false });
    }

    /// Starts a flush without waiting for it.
    fn start(&mut self, rng: &mut Rng) {
        let batch = self.batch;
        self.open(rng.pick(&[BatchPurpose::Call, BatchPurpose::Reclaim]));
        for _ in 0..rng.few(2) {
            let protects = rng.one_in(4);
            self.take_away(protects, rng);
        }
        self.put(EngineOp::Start { batch });
    }

    /// Fills the batch that all CPUs use, or ends it.
    fn share(&mut self, rng: &mut Rng) {
        self.batch = 0;
        if rng.below(3) > 0 {
            self.open(rng.pick(&[
                BatchPurpose::Call,
                BatchPurpose::Reclaim,
                BatchPurpose::Reclaim,
                BatchPurpose::Migration,
            ]));
            let (batch, page) = (self.batch, self.page);
            match self.swarm.crowded {
                true => self.put(EngineOp::Sweep { batch, page }),
                false => (0..rng.few(2)).for_each(|_| self.take_away(false, rng)),
            }
        }
        match rng.below(5) {
            0 => self.put(EngineOp::Start { batch: 0 }),
            1 | 2 => self.finish(),
            _ => {}
        }
    }

    /// Flushes without a batch.
    fn flush_at_once(&mut self, rng: &mut Rng) {
        let (space, page, window) = (self.space, self.page, self.window);
        let whole = rng.one_in(4);
        self.put(match rng.below(4) {
            0 => EngineOp::UnlinkAtOnce { space, window, whole },
            1 => EngineOp::UnmapAtOnce { space, page, whole },
            _ => EngineOp::UnmapCoalesced { space, page },
        });
    }

    fn signal(&mut self, rng: &mut Rng) {
        let flag = rng.below(FLAGS as u64) as u8;
        self.put(match rng.one_in(2) {
            true => EngineOp::Tell { flag },
            false => EngineOp::Wait { flag },
        });
    }
}

impl Swarm {
    /// Returns whether a program uses the kernel's own half.
    pub(super) fn uses_own_half(&self) -> bool {
        use Kind::{Own, Undisturbed};
        let uses = |kind| matches!(kind, Own | Undisturbed) || kind.changes_own();
        self.kinds.iter().any(|&(_, kind)| uses(kind))
    }

    /// Draws a phrase that unmaps pages there, or writes text.
    pub(super) fn change_own(&self, kind: Kind, rng: &mut Rng, into: &mut Vec<EngineOp>) {
        let own = rng.pick(&self.own);
        match kind {
            Kind::UnmapOwn => {
                let purpose = rng.pick(&[BatchPurpose::Call, BatchPurpose::Reclaim]);
                into.push(EngineOp::UnmapOwn { own, purpose });
                if rng.one_in(3) {
                    into.push(EngineOp::MapOwn { own });
                }
            }
            Kind::OwnLazily => {
                into.push(EngineOp::UnmapOwnLazily { own });
                into.push(match rng.below(4) {
                    0 => EngineOp::MapOwn { own },
                    1 => EngineOp::Pay,
                    _ => EngineOp::ReuseOwn { own },
                });
            }
            Kind::UnlinkOwn => {
                into.push(EngineOp::UnlinkOwn);
                if rng.one_in(2) {
                    into.push(EngineOp::MapOwn { own });
                }
            }
            _ => into.push(EngineOp::Patch { own }),
        }
    }

    /// Draws an undisturbed program: its accesses, and mostly a reason to enter the kernel.
    pub(super) fn run_undisturbed(&self, page: u64, rng: &mut Rng, into: &mut Vec<EngineOp>) {
        into.push(EngineOp::Undisturbed);
        for _ in 0..rng.below(3) {
            into.push(EngineOp::Read { page });
        }
        if rng.below(3) > 0 {
            into.push(self.use_own(rng));
        }
    }

    /// Draws an access.
    pub(super) fn use_own(&self, rng: &mut Rng) -> EngineOp {
        let own = rng.pick(&self.own);
        if rng.one_in(3) { EngineOp::RunOwn { own } } else { EngineOp::ReadOwn { own } }
    }
}

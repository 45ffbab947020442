//! What programs over the engine may do, and the phrases that do it. [`whole`](super::whole) makes programs of them.
//! The file is long because the phrases share what a program may do, and are read beside each other.

use super::kinds::{KINDS, Kind, NESTED, ROUND, THEMES};
use super::pages::few_of;
use crate::generated::program::{
    BATCHES, EngineOp, FILE_PAGES, FILES, FLAGS, For, HUGE, Lane, OWN_PAGES, PAGES, PLACES,
    Reported, Right, WINDOW,
};
use crate::schedule::Rng;

/// What a program may do.
#[derive(Clone)]
pub(super) struct Swarm {
    pub(super) kinds: Vec<(u64, Kind)>,
    pub(super) pages: Vec<u64>,
    pub(super) files: Vec<u8>,
    pub(super) spaces: u64,
    /// The space that most of it is about.
    pub(super) home: u8,
    pub(super) batches: std::ops::Range<u64>,
    /// Pages of the kernel's own half.
    pub(super) own: Vec<u8>,
    /// It is about flushes in the middle of each other.
    pub(super) nests: bool,
    /// It is about more spaces than a batch has room for.
    pub(super) crowded: bool,
    /// It is about tags that run out.
    pub(super) goes_round: bool,
    /// Most of it is about the kind that comes last.
    pub(super) centre: bool,
}

impl Swarm {
    pub(super) fn draw(rng: &mut Rng, spaces: u64) -> Self {
        let wanted = 2 + rng.few(6);
        let mut kinds = vec![(8, Kind::Read)];
        let crowded = spaces > PLACES as u64 && rng.one_in(4);
        if crowded {
            // More than a batch takes: operations on all of them at once, and second actors that find them done.
            kinds.extend([(8, Kind::Sweep), (6, Kind::Confirm)]);
        }
        let theme = rng.one_in(3).then(|| rng.pick(&THEMES));
        // Of a theme each is as likely, and not much less than what only uses memory: what is seldom drawn elsewhere
        // meets there.
        let likely = |(weight, kind): (u64, Kind)| match theme {
            Some(theme) => 4 * u64::from(theme.contains(&kind)),
            None => weight,
        };
        let all = KINDS.map(|one| (likely(one), one));
        for _ in 0..wanted {
            let kind = rng.weigh(&all);
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        // An undisturbed CPU differs from others only in what becomes of the kernel's own half.
        let about = |wanted: fn(Kind) -> bool, kinds: &[(u64, Kind)]| {
            kinds.iter().any(|&(_, kind)| wanted(kind))
        };
        if about(|kind| kind == Kind::Undisturbed, &kinds) && !about(Kind::changes_own, &kinds) {
            let takes = [
                Kind::UnmapOwn,
                Kind::OwnLazily,
                Kind::UnlinkOwn,
                Kind::Lazily,
            ];
            kinds.push((4, rng.pick(&takes)));
        }
        let small = &PAGES[..9];
        let one = if crowded { 2 } else { 6 };
        let count = rng.weigh(&[(one, 1), (3, 2), (1, 3)]);
        let pages = (0..count).map(|_| match rng.below(24) {
            0 => rng.pick(&[HUGE, HUGE + 1]),
            1..12 => rng.below(3),
            _ => rng.pick(small),
        });
        let pages: Vec<u64> = pages.collect();
        let files = (0..rng.few(2))
            .map(|_| rng.below(FILES as u64) as u8)
            .collect();
        let batches = 0..rng.few(BATCHES as u64);
        let own = (0..rng.few(2))
            .map(|_| rng.below(OWN_PAGES as u64) as u8)
            .collect();
        Swarm {
            kinds,
            pages,
            files,
            spaces,
            home: 0,
            batches,
            own,
            nests: theme == Some(NESTED),
            crowded,
            goes_round: theme == Some(ROUND),
            centre: false,
        }
    }

    /// The same, about the pages that a program has used so far.
    pub(super) fn about(mut self, pages: &[u64]) -> Self {
        if !pages.is_empty() {
            self.pages = pages.to_vec();
        }
        self
    }

    /// The same about one of these kinds, and another.
    pub(super) fn about_kinds(mut self, kinds: &[Kind], rng: &mut Rng) -> Self {
        if kinds.is_empty() {
            return self;
        }
        for _ in 0..2 {
            let kind = rng.pick(kinds);
            self.kinds.retain(|(_, other)| *other != kind);
            self.kinds.push((8, kind));
        }
        self.centre = true;
        self
    }

    /// What one CPU does: the kind that is its part of a duel, or accesses alone, or all of it; mostly with a
    /// batch of its own.
    pub(super) fn part(&self, cpu: usize, duel: Option<[(u64, Kind); 2]>, rng: &mut Rng) -> Self {
        let mut part = self.clone();
        if let Some(kinds) = duel {
            // Now and then there are two on a side.
            let side = if rng.one_in(3) { cpu % 2 } else { cpu };
            part.kinds = match kinds.get(side) {
                Some(&kind) => vec![kind],
                None if self.uses_own_half() => {
                    vec![(4, Kind::Own), (1, Kind::Read), (2, Kind::Tour)]
                }
                None => vec![(4, Kind::Read), (1, Kind::Write), (1, Kind::Tour)],
            };
        }
        if rng.below(4) > 0 {
            let own = (cpu % BATCHES) as u64;
            part.batches = own..own + 1;
        }
        part
    }

    /// A kind for one side of a duel: of those of the swarm that do more than use memory, or any.
    pub(super) fn any_kind(&self, rng: &mut Rng) -> (u64, Kind) {
        if self.centre && rng.one_in(2) {
            return self.kinds[self.kinds.len() - 1];
        }
        let (weight, kind) = rng.pick(&self.kinds);
        match kind {
            Kind::Read | Kind::Write if rng.one_in(2) => rng.pick(&KINDS[2..]),
            // Mostly there is another.
            Kind::Read | Kind::Write => self.kinds[self.kinds.len() - 1],
            kind => (weight, kind),
        }
    }

    /// Whether there are programs that are not to be disturbed.
    pub(super) fn leaves_alone(&self) -> bool {
        self.kinds
            .iter()
            .any(|(_, kind)| *kind == Kind::Undisturbed)
    }

    /// Whether pages are mapped in blocks.
    pub(super) fn maps_blocks(&self) -> bool {
        self.kinds.iter().any(|(_, kind)| *kind == Kind::Block)
    }

    /// Whether CPUs go idle, or leave.
    pub(super) fn goes_idle(&self) -> bool {
        { self.kinds.iter() }.any(|(_, kind)| matches!(kind, Kind::Idle | Kind::Hotplug))
    }

    /// Whether a program runs code that it has mapped.
    pub(super) fn runs_code(&self) -> bool {
        self.kinds.iter().any(|(_, kind)| *kind == Kind::Code)
    }

    /// Whether what a program does is about files.
    fn files(&self) -> bool {
        let about = |(_, kind): &(u64, Kind)| {
            use Kind::{Claim, FileReclaim, Lazily, MapFile, Rescue, WriteFile};
            matches!(
                kind,
                MapFile | FileReclaim | Lazily | Claim | Rescue | WriteFile
            )
        };
        self.kinds.iter().any(about)
    }

    fn page(&self, rng: &mut Rng) -> u64 {
        if rng.below(8) < if self.files() { 5 } else { 1 } {
            return FILE_PAGES[usize::from(rng.pick(&self.files))];
        }
        rng.pick(&self.pages)
    }

    pub(super) fn space(&self, rng: &mut Rng) -> u8 {
        if rng.below(3) > 0 {
            return self.home;
        }
        rng.below(self.spaces) as u8
    }

    fn range(&self, rng: &mut Rng) -> (u64, u64) {
        let page = self.page(rng);
        match rng.below(10) {
            0..6 => (page, 1),
            6 => (page.saturating_sub(1), 2),
            7 => (page, 1 + rng.below(4)),
            8 => (page.saturating_sub(rng.below(WINDOW)), WINDOW),
            _ => (0, 2 * WINDOW),
        }
    }

    fn change(&self, rng: &mut Rng, batch: u8, protects: bool) -> EngineOp {
        let (page, pages) = self.range(rng);
        let space = self.space(rng);
        if protects {
            let capture = rng.one_in(2);
            return EngineOp::Protect {
                batch,
                space,
                page,
                pages,
                capture,
                right: Right::Write,
            };
        }
        let report = rng.pick(&[
            Reported::Each,
            Reported::Each,
            Reported::Range,
            Reported::All,
        ]);
        EngineOp::Unmap {
            batch,
            space,
            page,
            pages,
            report,
        }
    }

    /// Uses what the program is about.
    pub(super) fn look(&self, rng: &mut Rng) -> EngineOp {
        if self.uses_own_half() && rng.below(3) > 0 {
            return self.use_own(rng);
        }
        let page = self.page(rng);
        EngineOp::Read { page }
    }

    /// A phrase.
    pub(super) fn phrase(&self, rng: &mut Rng, into: &mut Vec<EngineOp>) {
        let space = self.space(rng);
        let page = self.page(rng);
        let file = rng.pick(&self.files);
        let batch = rng.within(&self.batches) as u8;
        let window = u8::from(page / WINDOW == 1);
        let end = |rng: &mut Rng, into: &mut Vec<EngineOp>| match rng.below(12) {
            0 => into.push(EngineOp::Forget { batch }),
            1 => {}
            _ => into.push(EngineOp::Finish { batch }),
        };
        let open = |purpose: For| EngineOp::Open { batch, purpose };
        match rng.weigh(&self.kinds) {
            Kind::Read => into.push(EngineOp::Read { page }),
            Kind::Write => into.push(EngineOp::Write { page }),
            Kind::Map => {
                let write = rng.below(3) > 0;
                into.push(EngineOp::Map { space, page, write });
            }
            Kind::MapFile => {
                let write = rng.one_in(3);
                into.push(EngineOp::MapFile { space, file, write });
            }
            Kind::MapLarge if page >= HUGE => into.push(EngineOp::MapHuge { space }),
            Kind::MapLarge => into.push(EngineOp::MapLarge { space, window }),
            Kind::Block if rng.one_in(3) => into.push(EngineOp::MapBlock { space, page }),
            Kind::Block => {
                // The first page of one: all of it goes, or that page alone.
                let (page, pages) = (page & !1, 1 + rng.below(2));
                let report = rng.pick(&[Reported::Each, Reported::Each, Reported::Range]);
                into.push(open(rng.pick(&[For::Call, For::Reclaim])));
                into.push(EngineOp::Unmap {
                    batch,
                    space,
                    page,
                    pages,
                    report,
                });
                end(rng, into);
            }
            kind @ (Kind::Unmap | Kind::Protect | Kind::Reclaim | Kind::Mixed) => {
                let purpose = match kind {
                    Kind::Reclaim => For::Reclaim,
                    Kind::Mixed => rng.pick(&[For::Call, For::Reclaim, For::Migration]),
                    _ => For::Call,
                };
                into.push(open(purpose));
                for _ in 0..rng.few(if kind == Kind::Mixed { 4 } else { 2 }) {
                    let protects = kind == Kind::Protect || (kind == Kind::Mixed && rng.one_in(3));
                    into.push(self.change(rng, batch, protects));
                }
                end(rng, into);
            }
            Kind::Sweep => {
                into.push(open(rng.pick(&[For::Call, For::Reclaim])));
                into.push(EngineOp::Sweep { batch, page });
                // What is found out about one of them must not be taken for the others'.
                for _ in 1..rng.few(3) {
                    let page = self.page(rng);
                    into.push(EngineOp::Sweep { batch, page });
                }
                end(rng, into);
            }
            Kind::Unlink => {
                into.push(open(For::Call));
                if rng.one_in(3) {
                    into.push(self.change(rng, batch, false));
                }
                into.push(EngineOp::Unlink {
                    batch,
                    space,
                    window,
                });
                end(rng, into);
            }
            Kind::Confirm => {
                for _ in 0..rng.few(2) {
                    let (page, pages) = self.range(rng);
                    into.push(EngineOp::Confirm { space, page, pages });
                }
            }
            Kind::Unprotect => into.push(EngineOp::Unprotect {
                space,
                page,
                right: Right::Write,
            }),
            Kind::Code => match rng.below(4) {
                0 => into.push(allow(space, page)),
                1 => {
                    let (page, pages) = self.range(rng);
                    into.push(open(For::Call));
                    into.push(EngineOp::Protect {
                        batch,
                        space,
                        page,
                        pages,
                        capture: false,
                        right: Right::Execute,
                    });
                    end(rng, into);
                }
                _ => into.push(EngineOp::Fetch { page }),
            },
            Kind::Move => {
                let to = self.page(rng);
                into.push(EngineOp::Move { space, page, to });
            }
            Kind::Migrate => into.push(EngineOp::Migrate { space, page }),
            Kind::Withdraw => into.push(EngineOp::Withdraw { space, page }),
            Kind::Split => into.push(EngineOp::Split { space, window }),
            Kind::Collapse => into.push(EngineOp::Collapse { space, window }),
            Kind::Switch => into.push(EngineOp::Switch { space }),
            Kind::Idle => {
                into.push(match rng.below(4) {
                    0 => EngineOp::Leave,
                    _ => EngineOp::Lazy,
                });
                if rng.below(4) > 0 {
                    into.push(match rng.below(4) {
                        0 => EngineOp::Resume,
                        _ => EngineOp::Switch { space },
                    });
                    into.push(EngineOp::Read { page });
                }
            }
            Kind::Tour if self.spaces > 2 && rng.one_in(if self.goes_round { 1 } else { 4 }) => {
                self.go_round(window, batch, rng, into);
            }
            Kind::Tour => {
                for _ in 0..1 + rng.few(4) {
                    let space = rng.below(self.spaces) as u8;
                    into.push(EngineOp::Switch { space });
                    if rng.one_in(2) {
                        into.push(EngineOp::Read { page });
                    }
                }
            }
            Kind::FileReclaim => into.push(EngineOp::Reclaim { file }),
            Kind::Lazily => {
                let others = match rng.below(3) {
                    0 => rng.below(1 << FILES) as u8,
                    _ => 0,
                };
                let files = 1 << file | others;
                if self.uses_own_half() && rng.one_in(2) {
                    let own = rng.pick(&self.own);
                    into.push(EngineOp::ReclaimWithOwn { files, own });
                    if rng.one_in(3) {
                        into.push(EngineOp::ClaimOwn { own });
                    }
                } else {
                    into.push(EngineOp::ReclaimLazily { files });
                }
                if rng.one_in(2) {
                    into.push(EngineOp::Claim { file });
                }
            }
            Kind::Claim => into.push(EngineOp::Claim { file }),
            Kind::Rescue => into.push(EngineOp::Rescue { file }),
            Kind::WriteFile => into.push(EngineOp::WriteFile { file }),
            Kind::Pay => into.push(EngineOp::Pay),
            Kind::CatchUp => into.push(EngineOp::CatchUp),
            Kind::Hotplug => {
                // Most kernels let an idle CPU go.
                if rng.one_in(2) {
                    into.push(EngineOp::Lazy);
                }
                into.push(EngineOp::Offline);
                if rng.below(3) > 0 {
                    into.push(EngineOp::Online);
                    let space = rng.below(self.spaces) as u8;
                    into.push(EngineOp::Switch { space });
                }
            }
            Kind::Retire => {
                into.push(EngineOp::Lazy);
                if rng.below(3) > 0 {
                    // What it maps goes first, with its tables.
                    into.push(open(For::Call));
                    into.push(EngineOp::Unlink {
                        batch,
                        space,
                        window,
                    });
                    into.push(EngineOp::Finish { batch });
                }
                into.push(EngineOp::Retire { space });
                if rng.one_in(2) {
                    into.push(EngineOp::Revive { space });
                    into.push(EngineOp::Switch { space });
                }
            }
            Kind::Mask => {
                // As a kernel that flushes under a lock that interrupt handlers take.
                into.push(EngineOp::Mask { on: true });
                into.push(open(For::Call));
                into.push(self.change(rng, batch, false));
                into.push(EngineOp::Finish { batch });
                into.push(EngineOp::Mask { on: false });
            }
            Kind::Own => into.push(self.use_own(rng)),
            Kind::Undisturbed => self.run_undisturbed(page, rng, into),
            kind @ (Kind::UnmapOwn | Kind::OwnLazily | Kind::UnlinkOwn | Kind::Patch) => {
                self.change_own(kind, rng, into);
            }
            Kind::Start => {
                into.push(open(rng.pick(&[For::Call, For::Reclaim])));
                for _ in 0..rng.few(2) {
                    let protects = rng.one_in(4);
                    into.push(self.change(rng, batch, protects));
                }
                into.push(EngineOp::Start { batch });
            }
            Kind::AtOnce => {
                let whole = rng.one_in(4);
                into.push(match rng.one_in(3) {
                    true => EngineOp::UnlinkAtOnce {
                        space,
                        window,
                        whole,
                    },
                    false => EngineOp::UnmapAtOnce { space, page, whole },
                });
            }
            Kind::Signal => {
                let flag = rng.below(FLAGS as u64) as u8;
                into.push(if rng.one_in(2) {
                    EngineOp::Tell { flag }
                } else {
                    EngineOp::Wait { flag }
                });
            }
        }
    }
}

impl Swarm {
    /// One space after the other, so that tags run out, mostly twice over; then perhaps what most of the program is
    /// about, to take something away there.
    fn go_round(&self, window: u8, batch: u8, rng: &mut Rng, into: &mut Vec<EngineOp>) {
        let first = rng.below(self.spaces);
        let count = self.spaces * (1 + rng.few(2));
        into.extend((first..first + count).map(|at| EngineOp::Switch {
            space: (at % self.spaces) as u8,
        }));
        let space = self.home;
        if rng.one_in(2) {
            into.push(EngineOp::Switch { space });
        }
        if rng.one_in(2) {
            let purpose = For::Call;
            into.push(EngineOp::Open { batch, purpose });
            into.push(match rng.one_in(3) {
                true => self.change(rng, batch, false),
                false => EngineOp::Unlink {
                    batch,
                    space,
                    window,
                },
            });
            into.push(EngineOp::Finish { batch });
        }
    }
}

/// Makes a page one of code.
pub(super) fn allow(space: u8, page: u64) -> EngineOp {
    EngineOp::Unprotect {
        space,
        page,
        right: Right::Execute,
    }
}

/// The pages that programs map and use, the first few of them.
pub(super) fn pages_of(cpu: &[Lane<EngineOp>]) -> Vec<u64> {
    few_of(cpu, |op| match *op {
        EngineOp::Read { page } | EngineOp::Write { page } | EngineOp::Map { page, .. } => {
            Some(page)
        }
        _ => None,
    })
}

/// The kinds of what a program does in its run, accesses aside.
pub(super) fn kinds_of(cpu: &[Lane<EngineOp>]) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for kind in cpu.iter().flat_map(|lane| &lane.run).filter_map(Kind::of) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}
